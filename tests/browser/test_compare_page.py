"""A person who compares runs: picks a metric and an axis, sorts the table, hides a run, and needs no kernel for it."""

from lab import Lab
from notebook_page import NotebookPage, wait_until

SETUP = """
from cbnb.all import *
from cbnb.display.compare import compare, runs_table
from waves import *

a, b, c = (wave_learner() for _ in range(3))
for learn, lr in ((a, 0.003), (b, 0.01), (c, 60.)): learn.fit(3, lr)
"""
FITTED = "baseline_of_last_week, wide = wave_learner(), wave_learner()\nfor learn in (baseline_of_last_week, wide): learn.fit(1)"
COMPARED = "found = compare(low=a, middle=b, high=c); found"


def names(page: NotebookPage, cell: int) -> list[str]:
    """The runs in the order of the table."""
    return page.output(cell).locator(".cbnb-runs tbody th").all_inner_texts()


def test_runs_are_chosen_sorted_and_named_without_a_kernel(lab: Lab):
    cells = [SETUP, COMPARED, "b.fit(1, 0.02); b.recorder.history", FITTED, "compare(baseline_of_last_week, wide)"]
    with lab.open(lab.write("compared.ipynb", cells), size=(1200, 1200)) as page:
        page.run_all()
        out = page.output(1)
        out.locator(".cbnb-lc svg").wait_for()
        assert names(page, 1) == page.value("[row['run'] for row in found.rows]")
        assert out.locator("img:visible").count() == 0  # the picture made room
        assert "high leaves the range of the others" in out.locator(".notes").inner_text()
        # names of variables, none of them cut where there is room
        shown = page.output(4).locator(".cbnb-lc .names em")
        shown.nth(1).wait_for()
        assert sorted(shown.all_inner_texts()) == ["baseline_of_last_week", "wide"]
        assert shown.evaluate_all("all => all.map(name => name.scrollWidth - name.clientWidth)") == [0, 0]
        # from here on, everything happens in the page
        page.tab.evaluate(
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.anyMessage.connect(() => { window.heard = 1 })"
        )
        out.locator("thead").get_by_role("button", name="run", exact=True).click()
        assert names(page, 1) == ["high", "low", "middle"]
        out.locator("thead").get_by_role("button", name="lr", exact=True).click()
        assert names(page, 1) == ["low", "middle", "high"]
        out.locator("thead").get_by_role("button", name="lr", exact=True).click()
        assert names(page, 1) == ["high", "middle", "low"]
        assert out.locator("th[aria-sort=descending]").inner_text().startswith("lr")
        # another metric over another axis
        out.get_by_label("metric").select_option("mae")
        out.get_by_label("over").select_option("epoch")
        wait_until(
            lambda: out.locator(".cbnb-lc .head > b").inner_text() == "mae" and "epochs" in out.locator(".cbnb-lc svg").first.text_content()
        )
        # the mouse on a line names its run, with what differs in bold
        plot = out.locator(".cbnb-lc .plot")
        box = plot.bounding_box()
        # in one go: a dot that was found may be gone when its place is asked for, as the chart is drawn again
        x, y = out.locator(".cbnb-lc").evaluate(
            "chart => { const box = [...chart.querySelectorAll('circle.dot')].at(-1).getBoundingClientRect(); return [box.x, box.y] }"
        )
        page.tab.mouse.move(x + 3, y + 3)
        out.locator(".cbnb-lc .detail b").nth(1).wait_for()
        wait_until(lambda: out.locator("tr.near").count() == 1)
        assert out.locator("tr.near th").inner_text() in out.locator(".cbnb-lc .detail").inner_text()
        assert box["width"] > 600
        # a run is hidden in the table, and shown by its name in the chart
        out.get_by_role("row", name="middle").locator("th button").click()
        wait_until(lambda: out.locator(".cbnb-lc .names [aria-pressed=false]").count() == 1)
        out.locator(".cbnb-lc .names button", has_text="middle").click()
        wait_until(lambda: out.get_by_role("row", name="middle").locator("th button").get_attribute("aria-pressed") == "true")
        out.get_by_role("button", name="none", exact=True).click()
        wait_until(lambda: out.locator(".cbnb-lc .names [aria-pressed=false]").count() == 3)
        # the history of a learner is such a table, too
        table = page.output(2).locator(".cbnb-runs table")
        table.locator("thead").get_by_role("button", name="lr", exact=True).click()
        table.locator("thead").get_by_role("button", name="lr", exact=True).click()
        assert names(page, 2) == ["run 1", "run 0"]
        assert page.output(2).locator("details table").count() == 1
        assert page.tab.evaluate("window.heard ?? 0") == 0
