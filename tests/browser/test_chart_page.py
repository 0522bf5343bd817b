"""A person with a mouse on a chart: while a cell runs, after it, without a kernel, in a saved page."""

import base64
from pathlib import Path

import pytest

from lab import Lab
from notebook_page import NotebookPage, axe_violations, wait_until

SETUP = """
import sys
from cbnb.all import *
from waves import *
from cbnb.display.chart import Event, Line, chart
from cbnb.display.live_chart import LiveChart
from cbnb.display.look import COLORS
from cbnb.display.page_script import Html

learn = wave_learner()
learn.fit(3)
run = learn.recorder.last()
"""
GROWING = """
picks = []
live = LiveChart([Line('loss', [], []), Line('valid', [], [], COLORS['valid'], dots=True)], xlabel='step', title='Losses',
                 on_pick=lambda x, done: picks.append((x, done)))
Html(live.slot)
"""
GROW = """
import time
from pathlib import Path
for i in range(40):
    live.add('loss', range(10*i, 10*i + 10), [2/(1 + step) for step in range(10*i, 10*i + 10)])
    if i == 20: live.add('valid', [200], [0.5])
    live.set(events=[Event(100, 'lr', 'lr × 0.5 by hand')])
    live.flush()
    time.sleep(0.02)
while not Path('seen.seen').exists(): time.sleep(0.05)
"""
ALL_THERE = "() => document.querySelectorAll('.jp-Notebook .jp-Cell')[1].querySelector('.names')?.innerText.includes('0.005')"
COUNT = """() => {
    window.sent = 0; const send = WebSocket.prototype.send
    WebSocket.prototype.send = function (data) { window.sent += 1; return send.call(this, data) }
}"""


def plot(page: NotebookPage, cell: int):
    found = page.output(cell).locator(".cbnb-lc .plot").first
    found.wait_for()
    found.scroll_into_view_if_needed()
    return found


def point(page: NotebookPage, cell: int, share: float, down: float = 0.4) -> None:
    """Put the mouse on the plane of a chart, at a share of its width."""
    boxes = []  # a chart that is just being drawn again has no place
    wait_until(lambda: boxes.append(plot(page, cell).locator(".hit").bounding_box()) or boxes[-1])
    box = boxes[-1]
    page.tab.mouse.move(box["x"] + share * box["width"], box["y"] + down * box["height"])


def where(page: NotebookPage, cell: int) -> str:
    page.wait_for(
        "(cell) => document.querySelectorAll('.jp-Notebook .jp-Cell')[cell].querySelector('.cbnb-lc .where').textContent.includes('step')",
        cell,
    )
    return page.output(cell).locator(".where").first.inner_text()


def values(page: NotebookPage, cell: int) -> dict[str, str]:
    """Name at the end of a line -> its value."""
    return dict(
        page.output(cell)
        .locator(".names button")
        .evaluate_all("buttons => buttons.map(b => [b.querySelector('em').textContent, b.lastChild.textContent])")
    )


def shapes(page: NotebookPage, cell: int) -> list[str]:
    return plot(page, cell).locator("svg path.line, svg path.faint").evaluate_all("paths => paths.map(path => path.getAttribute('d'))")


def ticks(page: NotebookPage, cell: int) -> list[str]:
    return plot(page, cell).locator("svg > text").all_inner_texts()


def changed(page: NotebookPage, cell: int, before: list[str]) -> list[str]:
    """What is drawn once it is something else; a chart is drawn with the next frame."""
    for _ in range(100):
        if (now := shapes(page, cell)) != before:
            return now
        page.tab.wait_for_timeout(50)
    raise AssertionError("nothing has changed")


def number(value: float) -> str:
    from cbnb.basics.text import number

    return number(value)


def test_values_under_the_mouse_while_a_cell_runs_and_a_click_that_python_hears(lab: Lab):
    with lab.open(lab.write("live.ipynb", [SETUP, GROWING, GROW, "print(picks[-1], live.here)"])) as page:
        page.run_cell(0)
        page.run_cell(1)
        page.run_cell(2, wait=False)
        page.wait_for(ALL_THERE)  # the last loss
        point(page, 1, 0.5)
        step = int(where(page, 1).split(",")[0].removeprefix("step "))
        assert page.is_running(2) and 150 < step < 250
        shown = values(page, 1)
        assert shown["loss"] == number(2 / (1 + step)) and shown["valid"] == ("0.5" if step >= 200 else "–")
        point(page, 1, 100 / 399)
        assert "lr × 0.5 by hand" in where(page, 1)
        page.save()
        page.reopen()  # in the middle of the cell
        lab.touch("seen")
        page.wait_for(ALL_THERE)
        page.wait_until_idle()
        point(page, 1, 0.25)
        page.tab.mouse.down()
        page.tab.mouse.up()
        page.wait_until("bool(picks) and picks[-1][1]")
        assert page.value("picks[-1][0]") == pytest.approx(399 / 4, abs=2) and page.value("live.here")
        assert not page.console_errors() and not page.outside_requests()


def test_zoom_names_axes_smoothing_keys_and_table_need_no_kernel(lab: Lab):
    cells = [SETUP, "learn.recorder.plot_losses()", "learn.fit(2)", "learn.recorder.plot_lr()"]
    with lab.open(lab.write("mouse.ipynb", cells), size=(1200, 1200)) as page:
        page.run_all()
        raw, smooth = page.value("list(run.raw_losses)"), page.value("list(run.losses)")
        again = page.value("__import__('cbnb.toy') and [float(v) for v in __import__('torch').tensor(list(run.raw_losses))]")
        page.tab.evaluate(COUNT)
        point(page, 1, 0.5)
        step = int(where(page, 1).split(",")[0].removeprefix("step "))
        assert values(page, 1)["train, smoothed"] == number(smooth[step]) and values(page, 1)["train, each batch"] == number(raw[step])
        # names
        before = shapes(page, 1)
        page.output(1).locator(".names button", has_text="each batch").click()
        before = changed(page, 1, before)
        # brush, double click, wheel
        point(page, 1, 0.2)
        page.tab.mouse.down()
        point(page, 1, 0.6)
        page.tab.mouse.up()
        zoomed = changed(page, 1, before)
        plot(page, 1).dblclick(position={"x": 300, "y": 80})
        assert changed(page, 1, zoomed) == before
        point(page, 1, 0.5)
        page.tab.mouse.wheel(0, -400)
        wheeled = changed(page, 1, before)
        page.tab.keyboard.press("0")
        assert changed(page, 1, wheeled) == before
        # axes
        page.output(1).locator(".tools button", has_text="log y").click()
        logged = changed(page, 1, before)
        page.output(1).locator(".tools button", has_text="log y").click()
        assert changed(page, 1, logged) == before
        # smoothing, as the recorder would have done it with this weight
        page.output(1).locator(".tools input").evaluate("(e) => { e.value = 0.5; e.dispatchEvent(new Event('input')) }")
        changed(page, 1, before)
        point(page, 1, 0.5)
        step = int(where(page, 1).split(",")[0].removeprefix("step "))
        mean = weight = 0.0
        for value in again[: step + 1]:
            mean, weight = 0.5 * mean + 0.5 * value, 0.5 * weight + 0.5
        assert values(page, 1)["train, smoothed"] == number(mean / weight)
        # keys, and what is said
        plot(page, 1).focus()
        page.tab.keyboard.press("Home")
        wait_until(lambda: where(page, 1).startswith("step 0"))  # drawn with the next frame
        page.tab.keyboard.press("ArrowRight")
        wait_until(lambda: where(page, 1).startswith("step 1,"))
        assert page.output(1).locator(".said").inner_text().startswith("step 1")
        # table
        page.output(1).locator(".tools button", has_text="table").click()
        page.output(1).locator(".rows tr").first.wait_for()  # drawn with the next frame
        assert page.output(1).locator(".rows tr").count() > 10
        assert page.tab.evaluate("() => window.sent") == 0  # the fit after it changes nothing, and nothing was asked of the kernel
        assert page.value("learn.recorder.last().number") == 1 and not page.console_errors()


def test_overlaid_runs_have_colors_and_settings(lab: Lab):
    cells = [SETUP + "learn.fit(2, lr=1e-3)\n", "learn.recorder.plot_losses()"]
    with lab.open(lab.write("overlay.ipynb", cells)) as page:
        page.run_all()
        before = shapes(page, 1)
        page.output(1).locator(".tools button", has_text="overlay runs").click()
        changed(page, 1, before)
        assert list(values(page, 1)) == ["run 0", "run 1"]
        page.output(1).locator(".names button", has_text="run 1").hover()
        detail = page.output(1).locator(".detail")
        detail.wait_for()
        assert "lr" in detail.inner_text() and "0.001" in detail.locator("b").all_inner_texts()


def saved(lab: Lab, name: str) -> Path:
    """A notebook with a plot in it, saved."""
    with lab.open(lab.write(f"{name}.ipynb", [SETUP, "learn.recorder.plot_losses()"])) as page:
        page.run_all()
        plot(page, 1)
        page.save()
    return lab.notebooks / f"{name}.ipynb"


def test_a_saved_chart_answers_without_its_kernel(lab: Lab):
    path = saved(lab, "later")
    with lab.open(path.name) as page:
        point(page, 1, 0.5)
        assert where(page, 1).startswith("step ") and not page.errors()


def test_a_notebook_that_is_not_trusted_shows_a_picture(lab: Lab):
    path = saved(lab, "strange")
    with lab.open(lab.untrusted(path.name)) as page:
        page.output(1).locator("img.cbnb-still, img[alt]").wait_for()
        assert page.output(1).locator(".cbnb-lc").count() == 0 and not page.errors()
        assert page.output(1).locator("img").evaluate("image => image.naturalWidth") > 600


def test_a_page_made_by_nbconvert_answers_too(lab: Lab):
    path = saved(lab, "converted")
    address = lab.to_html(path.name)
    tab = lab.browser.new_page()
    tab.goto(address)
    hit = tab.locator(".cbnb-lc .hit").last  # the plot, below the fit
    hit.wait_for()
    hit.scroll_into_view_if_needed()
    box = hit.bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    tab.wait_for_function("() => [...document.querySelectorAll('.cbnb-lc .where')].at(-1).textContent.startsWith('step ')")
    tab.close()


def test_a_browser_that_cannot_run_the_script_shows_the_picture(lab: Lab):
    """Such as one that cannot unpack it, or one with scripts off."""
    path = saved(lab, "old_browser")
    address = lab.to_html(path.name)
    for settings in ({}, dict(java_script_enabled=False)):
        context = lab.browser.new_context(**settings)
        context.add_init_script("delete window.DecompressionStream")
        tab, said, errors = context.new_page(), [], []
        tab.on("console", lambda message, said=said: said.append((message.type, message.text)))
        tab.on("pageerror", lambda error, errors=errors: errors.append(error))
        tab.goto(address)
        image = tab.locator("img.cbnb-still").last
        image.wait_for()
        assert image.bounding_box()["width"] > 500 and tab.locator(".cbnb-lc").count() == 0
        if not settings:
            assert any("cbnb shows a picture" in text for kind, text in said if kind == "warning")
        assert not errors
        context.close()


def test_without_anywidget_a_fit_and_its_plots_are_shown(lab: Lab):
    missing = "import sys; sys.modules['anywidget'] = None\n"
    with lab.open(lab.write("without.ipynb", [missing + SETUP, "learn.fit(1)", "learn.recorder.plot_losses()"])) as page:
        page.run_all()
        point(page, 2, 0.5)
        assert where(page, 2).startswith("step ") and not page.errors()
        assert page.output(1).locator(".cbnb-lc, img").count()


def test_where_the_server_has_no_anywidget_a_fit_is_shown_all_the_same(lab: Lab):
    with lab.open(lab.write("server.ipynb", [SETUP, "learn.fit(2)", "'end'"]), fresh=True) as page:
        page.tab.route("**/anywidget/**", lambda route: route.abort())
        page.run_all()
        assert page.output(1).locator(".cbnb-lc, img").count() and not page.errors()
        assert "rror" not in page.text(1)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everybody_can_use_a_chart(lab: Lab, theme: str):
    cells = [SETUP + "learn.fit(1)\n", GROWING, "learn.recorder.plot_losses()", "learn.recorder.plot_metrics()"]
    cells[1] = cells[1].replace("Html(", "live.add('loss', [0, 1], [2, 1]); live.flush(); Html(")
    with lab.open(lab.write(f"axe_{theme}.ipynb", cells), size=(1200, 1500)) as page:
        page.set_theme(theme)
        page.run_all()
        for cell in (1, 2, 3):
            plot(page, cell)
        page.output(2).locator(".tools button", has_text="table").click()
        page.output(2).locator(".names button").first.click()
        point(page, 2, 0.5)
        where(page, 2)
        assert axe_violations(page, ".cbnb-lc") == []
        page.tab.locator(".jp-NotebookPanel").evaluate("panel => panel.style.maxWidth = '640px'")
        page.tab.set_viewport_size(dict(width=600, height=1200))
        page.wait_for("() => [...document.querySelectorAll('.cbnb-lc .names')].every(names => !names.style.width)")  # below the plot
        assert axe_violations(page, ".cbnb-lc") == []


def test_values_that_cannot_be_drawn_are_left_out(lab: Lab):
    """Zeros and less on logarithmic axes, gaps, and a run that ends in nan: no place of a point is nan, which a browser calls an error."""
    cells = [
        SETUP,
        """nan, inf = float('nan'), float('inf')
Html(chart([Line('loss', range(8), [3, 0, -1, nan, inf, 2, 1, nan]), Line('valid', [0, 3, 7], [0.5, nan, 0], dots=True)], title='odd',
           xlabel='step', borders=[0, 4], epochs=[(0, 0), (4, 1)], band=(0, 2), cursor=0, tools=['log_x', 'log_y'], smoothing=None,
           marks=[Mark('m', 0, 0, 'red', strong=True)], events=[Event(0, 'lr', 'at the start')]))""",
    ]
    cells[0] += "from cbnb.display.chart import Mark\n"
    with lab.open(lab.write("odd.ipynb", cells)) as page:
        page.run_all()
        for tool in ("log y", "log x", "log y"):
            before = shapes(page, 1)
            point(page, 1, 0.01)
            point(page, 1, 0.9)
            page.output(1).locator(".tools button", has_text=tool).click()
            assert not any("NaN" in shape or "Infinity" in shape for shape in changed(page, 1, before))
        point(page, 1, 0.5)
        where(page, 1)
        assert not page.console_errors() and not page.errors()
        drawn = plot(page, 1).locator("svg").first.inner_html()
        assert "NaN" not in drawn and "Infinity" not in drawn


def test_names_and_colors_in_a_page_are_never_code(lab: Lab):
    evil = "<img src=x onerror='document.title=1'>"
    cells = [
        SETUP + f"evil = {evil!r}\n",
        """Html(chart([Line(evil, [0, 1, 2], [1, 2, 3], color='red" onload="document.title=1'), Line('b', [0, 2], [1, 2], 'url(//x.test/a)')], title=evil,
           xlabel=evil, ylabel=evil, events=[Event(1, 'note', evil)], details={evil: [(evil, evil, True)]}))""",
    ]
    with lab.open(lab.write("evil.ipynb", cells)) as page:
        page.run_all()
        point(page, 1, 0.5)
        page.output(1).locator(".names button").first.hover()
        page.output(1).locator(".tools button", has_text="table").click()
        page.output(1).locator(".rows tr").first.wait_for()
        assert page.output(1).locator(".cbnb-lc img").count() == 0 and evil in page.text(1)
        assert page.tab.title() != "1" and not page.console_errors()
        assert plot(page, 1).locator("svg path.line").last.get_attribute("style") == "stroke:currentColor" and not page.outside_requests()


def test_labels_of_an_axis_are_not_cut_off(lab: Lab):
    """Labels of six digits began left of the chart."""
    from cbnb.display.chart import Line, chart

    tab = lab.browser.new_page(viewport=dict(width=900, height=400))
    for ys in ([-6e5, -3e5], [3e5, 6e5], [1e-7, 2e-7], [123456.0, 123458.0], [1.0, 3e6]):
        tab.set_content(chart([Line("loss", range(2), ys)], live=True))
        tab.locator(".cbnb-lc svg text").first.wait_for()
        assert tab.evaluate(
            """() => { const left = document.querySelector('.cbnb-lc').getBoundingClientRect().left
                return [...document.querySelectorAll('.cbnb-lc svg text')].every(t => t.getBoundingClientRect().left >= left) }"""
        )
    tab.close()


def test_numbers_and_ticks_are_written_as_python_writes_them(lab: Lab):
    from cbnb.basics.text import number
    from cbnb.display.look import lr_text
    from cbnb.display.page_script import script

    tab = lab.browser.new_page()
    sizes = [m * 10.0**k for m in (1, -1, 1.5, 2.34567, 9.9996, -7.25, 1 / 3) for k in range(-9, 9)]
    code = "data:text/javascript;base64," + base64.b64encode(script("chart.js").encode()).decode()
    tab.goto("about:blank")
    found = tab.evaluate(
        "async ([code, sizes]) => { const m = await import(code); return [sizes.map(m.number), sizes.filter(v => v > 0).map(m.rate)] }",
        [code, sizes],
    )
    tab.close()
    assert found[0] == [number(v) for v in sizes]
    assert found[1] == [lr_text(v) for v in sizes if v > 0]
