"""A person who watches a fit and steers it: stops it, holds it, slows it down, goes away and comes back."""

import re

import pytest

from cbnb.display.page_script import EMPTY
from kernels import INSTALLED
from lab import Lab
from notebook_page import NotebookPage, axe_violations, axe_violations_in, wait_until
from waves import count_dots

SETUP = """
from cbnb.all import *
from waves import *

learn = wave_learner()
"""
STATUS, STOP, PAUSE, SCALE, TABLE = (f".cbnb-{name}" for name in ("bars", "stop", "pause", "scale", "table"))
BAR = "[role=progressbar], .cbnb-bars"
REWIND = ".cbnb-rewind button"  # the only one that stays, under the last fit
IMAGE = 'img[src="x"]'  # what the names below would make if they were read as HTML
EVIL = '<img src="x" onerror="window.tricked = true">'


def numbers(page: NotebookPage) -> list[int]:
    """Epochs done and planned, batches done and to do, as the dashboard says them."""
    text = page.tab.locator(STATUS).inner_text()
    return [int(n.replace(",", "")) for n in re.search(r"(\d+) of (\d+) epochs[^b]*batch (\d+) of (\d+)", text.replace("\n", " ")).groups()]


def wait_for_batches(page: NotebookPage) -> None:
    """Until the dashboard counts batches."""
    page.tab.locator(STATUS, has_text="batch").wait_for()


def steps_drawn(page: NotebookPage) -> int:
    return step_at(page, "End")


def step_at(page: NotebookPage, key: str) -> int:
    """The step to which this key leads in the running chart, while the kernel is busy."""
    chart = page.tab.locator(".cbnb-curve .cbnb-lc")
    chart.locator(".plot").press(key)
    return int(re.search(r"step ([\d,]+)", chart.locator(".said").text_content())[1].replace(",", ""))


def dots(page: NotebookPage) -> int:
    """How many batches the kernel has trained, without asking it."""
    return count_dots(page.path.parent / "dots")


def wait_for_dots(page: NotebookPage, more: int) -> None:
    """Until the kernel has trained so many more batches."""
    wanted = dots(page) + more
    wait_until(lambda: dots(page) >= wanted)


def check_over(page: NotebookPage, cell: int, word: str) -> None:
    """The fit has ended with these words, and nothing there looks as if it went on."""
    page.wait_for_text(word, cell)
    output = page.output(cell)
    assert (
        output.locator(f"{BAR}, button:not(.cbnb-lc *):not(.cbnb-smalls *), .widget-slider").count() == output.locator(REWIND).count() <= 1
    )
    assert output.locator(".cbnb-lc svg").count() == 1
    assert "batch 1 of" not in page.text(cell) and "left" not in page.text(cell)


def check_quiet(page: NotebookPage) -> None:
    assert page.console_errors() == []
    assert page.outside_requests() == []


def n_places(page: NotebookPage, cell: int) -> int:
    """How many outputs of the cell take a place in the page."""
    boxes = [child.bounding_box() for child in page.output(cell).locator(".jp-OutputArea-child").all()]
    return sum(box is not None and box["height"] > 0 for box in boxes)


def test_stop_ends_the_fit_and_the_next_cells_fit_on(lab: Lab, kernel: str):
    cells = [
        SETUP,
        "learn.fit(10**4, cbs=Slowly())",
        "print('stopped', 'once')",
        "learn.fit(10**4, cbs=Slowly())",
        "print('stopped', 'twice')",
    ]
    with lab.open(lab.write("stop.ipynb", cells, kernel)) as page:
        page.run_all(wait=False)
        for cell, word in ((1, "once"), (3, "twice")):
            wait_for_batches(page)
            page.output(cell).locator(STOP).click()
            page.wait_for_text(f"stopped {word}", cell + 1)
        page.wait_until_idle()
        assert page.errors() == []
        assert page.value("[run.status for run in learn.recorder.history]") == ["cancelled"] * 2
        assert page.value("sum(run.n_steps for run in learn.recorder.history)") > 2
        for cell in (1, 3):
            check_over(page, cell, "stopped in epoch")
        check_quiet(page)


def test_small_charts_open_while_the_fit_runs_and_after_it(lab: Lab):
    """A button for each other value: the rate, the momentum, a metric, a value of learn.log."""
    log = "class LogNorm(Callback):\n    def after_step(self): self.learn.log(grad_norm=self.train_iter + 1)\n"
    cells = [
        SETUP,
        f"{log}learn.metrics = accuracy_of_sign\nlearn.fit_one_cycle(10**4, 0.01, cbs=[Slowly(), LogNorm()])",
        "print('stopped', 'once')",
    ]
    cells[0] += "\ndef accuracy_of_sign(pred, y): return (pred.sign() == y.sign()).float().mean()\n"
    with lab.open(lab.write("small_charts.ipynb", cells)) as page:
        page.run_all(wait=False)
        running = page.tab.locator(".cbnb-dashboard .cbnb-smalls [role=group] > button")
        rate = running.filter(has_text="learning rate")
        rate.wait_for()
        assert rate.get_attribute("aria-pressed") == "false"
        rate.click()
        opened = page.tab.locator(".cbnb-dashboard .cbnb-smalls .cbnb-lc")
        opened.locator("svg").wait_for()
        assert opened.locator("b").first.inner_text() == "learning rate" and rate.get_attribute("aria-pressed") == "true"
        assert axe_violations(page, ".cbnb-dashboard .cbnb-smalls") == []
        wait_for_dots(page, 5)  # so that the momentum has changed
        page.output(1).locator(STOP).click()
        page.wait_for_text("stopped once", 2)
        page.wait_until_idle()
        output = page.output(1)
        buttons = output.locator(".cbnb-smalls [role=group] > button")
        buttons.filter(has_text="grad_norm").wait_for()
        names = [text.split("\n")[0] for text in buttons.all_inner_texts()]
        assert set(names) <= {"learning rate", "momentum", "grad_norm", "accuracy_of_sign"} and names[:3] == [
            "learning rate",
            "momentum",
            "grad_norm",
        ]
        # with the keyboard
        buttons.nth(2).focus()
        page.tab.keyboard.press("Enter")
        assert output.locator(".cbnb-smalls .cbnb-lc b").first.inner_text() == "grad_norm"
        page.tab.keyboard.press("Enter")
        assert output.locator(".cbnb-smalls .cbnb-lc").count() == 0
        for theme in ("light", "dark"):
            page.set_theme(theme)
            assert axe_violations_in(page, 1) == []
        check_over(page, 1, "stopped in epoch")
        check_quiet(page)


def test_pause_holds_the_fit_and_the_slider_slows_down_what_follows(lab: Lab, kernel: str):
    cells = [SETUP, "slowly = Slowly()\nlearn.fit_one_cycle(100, 0.01, cbs=slowly)"]
    with lab.open(lab.write("steer.ipynb", cells, kernel)) as page:
        status, pause, scale = (page.tab.locator(name) for name in (STATUS, PAUSE, SCALE))
        page.run_all(wait=False)
        wait_for_batches(page)
        pause.click()
        page.tab.locator(STATUS, has_text="paused").wait_for()
        held, shown = dots(page), numbers(page)
        page.tab.wait_for_timeout(600)
        assert (dots(page), numbers(page)) == (held, shown)
        assert pause.inner_text().strip() == "Resume"
        page.drag(scale, 0.2)
        page.tab.locator(STATUS, has_text="planned lr × 0.0").wait_for()  # while it is paused, too
        chosen = float(scale.locator(".widget-readout").inner_text())
        assert 0.01 < chosen < 0.1 and dots(page) == held
        pause.click()
        wait_for_dots(page, 10)
        page.wait_for("([where, before]) => document.querySelector(where).innerText !== before", [STATUS, status.inner_text()])
        assert numbers(page) != shown and "paused" not in status.inner_text()
        assert pause.inner_text().strip() == "Pause"
        page.drag(scale, 0.6)
        page.tab.locator(STATUS, has_text="planned lr × 0.6").wait_for()
        wait_for_dots(page, 5)
        pause.click()  # and a fit that is paused can be stopped
        page.tab.locator(STATUS, has_text="paused").wait_for()
        page.tab.click(STOP)
        page.wait_until_idle()
        check_over(page, 1, "stopped in epoch")
        assert page.errors() == [] and page.value("learn.recorder.last().status") == "cancelled"
        scales, lrs = (page.value(what) for what in ("slowly.scales", "[float(lr) for lr in learn.recorder.lrs]"))
        plan = page.value(f"[OneCycle(0.01).planned()['lr'](i/{100 * 40}) for i in range({len(lrs)})]")
        assert lrs == pytest.approx([lr * by for lr, by in zip(plan, scales, strict=True)])
        assert scales[:held] == [1] * held and scales[held + 1 : held + 10] == pytest.approx([chosen] * 9, abs=0.006)
        assert scales[-1] == pytest.approx(10**-0.2, rel=0.1)  # the slider goes from 0.01 to 10
        assert page.value("learn.lr") == 0.01  # what was planned is kept
        check_quiet(page)


def test_the_keyboard_reaches_every_control(lab: Lab):
    cells = [SETUP, "learn.fit(10**4, cbs=Slowly())", "learn.fit(10**4, cbs=Slowly())"]
    with lab.open(lab.write("keys.ipynb", cells)) as page:
        press = page.tab.keyboard.press
        page.run_cell(0)
        page.run_cell(1, wait=False)
        wait_for_batches(page)
        page.tab.locator(STATUS).click()  # from here on without the mouse
        seen = []
        while "cbnb-stop" not in (seen or [""])[-1]:  # JupyterLab's own controls of the cell come first
            assert len(seen) < 20, seen
            press("Tab")
            seen.append(page.tab.evaluate("() => document.activeElement.className"))
        assert "End the fit" in page.tab.locator(f"{STOP}:focus").get_attribute("title")
        press("Tab")
        assert "Hold the fit" in page.tab.locator(f"{PAUSE}:focus").get_attribute("title")
        press("Space")
        page.tab.locator(STATUS, has_text="paused").wait_for()
        press("Space")
        page.tab.locator(f"{STATUS}:not(:has-text('paused'))").wait_for()
        press("Tab")
        assert page.tab.locator(f"{SCALE} .noUi-handle:focus").count() == 1
        assert page.tab.locator(SCALE).inner_text().startswith("lr ×")
        for _ in range(10):
            press("ArrowLeft")
        page.tab.locator(STATUS, has_text="planned lr × 0.63").wait_for()  # ten steps of 0.02 decades
        press("Shift+Tab")
        press("Shift+Tab")
        press("Space")
        page.wait_until_idle()
        check_over(page, 1, "stopped in epoch")
        page.run_cell(2, wait=False)
        wait_for_batches(page)
        page.output(2).locator(STOP).focus()
        press("Enter")
        page.wait_until_idle()
        check_over(page, 2, "stopped in epoch")
        assert page.value("[run.status for run in learn.recorder.history]") == ["cancelled"] * 2


def test_axe_finds_nothing_in_a_running_dashboard(lab: Lab):
    with lab.open(lab.write("axe_live.ipynb", [SETUP, "learn.fit(10**4, cbs=Slowly())"]), size=(1200, 1300)) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        wait_for_batches(page)
        page.tab.locator(f"{SCALE} .noUi-handle[aria-label]").wait_for()
        page.tab.click(PAUSE)  # else the axis moves while axe looks
        page.tab.locator(STATUS, has_text="paused").wait_for()
        for theme in ("light", "dark"):
            page.set_theme(theme)
            assert axe_violations(page, ".cbnb-dashboard") == []
        page.tab.click(STOP)
        page.wait_until_idle()


@pytest.mark.parametrize("kernel", [INSTALLED])
def test_who_closes_the_page_and_comes_back_finds_the_whole_curve_and_the_controls(lab: Lab, kernel: str):
    cells = [SETUP, "learn.fit(10**4, cbs=Slowly())"]
    with lab.open(lab.write("leave.ipynb", cells, kernel)) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        page.tab.locator(TABLE, has_text="train_loss").wait_for()
        page.save()
        drawn = steps_drawn(page)
        page.close_tab()
        wait_for_dots(page, 60)
        page.open()
        page.tab.locator(".cbnb-curve .cbnb-lc").wait_for()
        wait_until(lambda: steps_drawn(page) > drawn + 60)
        assert step_at(page, "Home") == 0
        page.tab.click(PAUSE)
        page.tab.locator(STATUS, has_text="paused").wait_for()
        trained = dots(page)
        page.tab.click(STOP)
        page.wait_until_idle()
        check_over(page, 1, "stopped in epoch")
        assert page.value("[run.n_steps for run in learn.recorder.history]") == [trained]
        assert page.value("len(learn.recorder.lrs)") == trained
        check_quiet(page)


def test_a_long_table_is_whole_in_the_page_and_short_without_scripts(lab: Lab):
    """The file stores the rows as data, and the script of the chart creates the same table from them as Python."""
    setup = f"{SETUP}\nfrom cbnb.display.progress import as_cell, best_row, changes"
    with lab.open(lab.write("table.ipynb", [setup, "learn.fit(20)"]), size=(1300, 900)) as page:
        page.run_all()
        rows = page.output(1).locator(".cbnb-side tbody tr")
        rows.nth(19).wait_for()
        cells = rows.evaluate_all("rows => rows.map(row => [...row.cells].map(c => [c.innerText.replace('★ ', ''), c.className]))")
        names = page.output(1).locator(".cbnb-side thead th").all_inner_texts()
        table = f"[[row.get(name) for name in {names}] for row in learn.recorder.last().epochs]"
        wanted, looks = page.value(f"[[as_cell(v) for v in row] for row in {table}]"), page.value(f"changes({names}, {table})")
        assert [[text for text, _ in row[:-1]] for row in cells] == [row[:-1] for row in wanted]  # the record has no time
        short = {"better": "b", "worse": "w"}
        assert [[look for _, look in row] for row in cells] == [[short.get(look, look) for look in row] for row in looks]
        assert rows.nth(page.value(f"best_row({names}, {table})")).get_attribute("class") == "best"
        assert page.output(1).locator("tr.best").count() == 1 and axe_violations_in(page, 1) == []
        (saved,) = [output["data"]["text/html"] for output in page.save().cells[1].outputs if "text/html" in output.get("data", {})]
        still = re.sub("<script>.*?</script>", "", saved, flags=re.S)
        assert still.count("<tr") == 1 + 8 and re.search(r"\.\.\. \d+ more", still) and "lowest valid_loss" in still and "<img" in still


def test_names_are_shown_as_they_are_written(lab: Lab):
    cells = [
        SETUP,
        f"mae.__name__ = {EVIL!r}\nlearn = wave_learner()\nlearn.fit(10**4, cbs=Slowly())",
        "learn.recorder.plot_metrics()\nlearn.recorder.plot_losses()",
        f"""def fail(self):
    if self.learn.train_iter > 20: raise type({EVIL!r}, (ValueError,), {{}})('it is ' + {EVIL!r})

evil = type({EVIL!r}, (Callback,), dict(after_batch=fail))()
learn.fit(2, cbs=[evil, Slowly()])""",
    ]
    with lab.open(lab.write("names.ipynb", cells)) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        page.tab.locator(TABLE, has_text=EVIL).wait_for()
        page.tab.click(STOP)
        page.wait_until_idle()
        check_over(page, 1, "stopped in epoch")
        assert EVIL in page.text(1)
        page.run_cell(2)
        page.output(2).locator(".cbnb-lc").first.wait_for()
        assert EVIL in page.text(2)
        page.run_cell(3)
        (error,) = page.errors()
        assert EVIL in error
        check_over(page, 3, f"failed in epoch 0, training batch 20: {EVIL}")
        assert page.value("learn.recorder.last().status") == "failed"
        assert page.tab.locator(IMAGE).count() == 0
        assert not page.tab.evaluate("() => window.tricked")


def test_validation_before_and_after_leaves_one_table_and_no_bars(lab: Lab):
    cells = [
        "from cbnb.all import *\nfrom waves import *\nfrom helpers import Held\nlearn = wave_learner(n_valid=40)\nlearn.add_cb(Slowly())",
        "learn.validate(cbs=Held('validated.seen', seconds=1)); learn.fit(1, cbs=Held('trained.seen', seconds=1)); learn.validate(); print('at', 'last')",
        "learn.lr_find(num_it=60, cbs=Held('found.seen', seconds=1))",
    ]
    with lab.open(lab.write("bars.ipynb", cells)) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        page.wait_for_text("validate: batch", 1)
        lab.touch("validated")
        wait_for_batches(page)
        lab.touch("trained")
        page.wait_until_idle()
        check_over(page, 1, "done: 1 epoch")
        assert page.text(1).count("train_loss") == 1 and "validate:" not in page.text(1)
        assert page.text(1).rstrip().endswith("at last")
        page.run_cell(2, wait=False)
        page.wait_for_text("lr_find: ", 2)
        lab.touch("found")
        page.wait_until_idle()
        page.output(2).locator(".cbnb-picker .cbnb-lc").wait_for()
        assert "lr_find:" not in page.text(2)
        for cell, most in ((1, 3), (2, 2)):  # an output that has become empty takes no place; a button stands under the fit
            assert n_places(page, cell) == most
        assert [output.get("data") == EMPTY for output in page.outputs(2)] == [True, True, False, False, False]  # the sweep, and its button
        check_quiet(page)


@pytest.mark.parametrize("kernel", [INSTALLED])
def test_after_a_restart_of_the_kernel_nothing_looks_as_if_it_ran_on(lab: Lab, kernel: str):
    """The dashboard stayed, with Stop and Pause and a time left."""
    with lab.open(lab.write("restart.ipynb", [SETUP, "learn.fit(10**4, cbs=Slowly())"], kernel)) as page:
        page.run_all(wait=False)
        wait_for_batches(page)
        assert page.tab.locator(STOP).is_visible()
        page.tab.click('[data-command="notebook:restart-kernel"]')
        page.tab.click(".jp-Dialog .jp-mod-accept")
        page.tab.locator(STOP).wait_for(state="hidden")
        after = "box => getComputedStyle(box, '::after').content"
        boxes = page.tab.locator(".cbnb-dashboard")
        assert boxes.count() == 1 and "the kernel is gone" in boxes.evaluate(after)
        assert page.value("6*7") == 42  # the new kernel is there


@pytest.mark.parametrize("kernel", [INSTALLED])
def test_a_click_takes_the_last_fit_back(lab: Lab, kernel: str):
    cells = [SETUP, "learn.fit(1)", "learn.fit(2, 20.)", "learn.runs"]
    with lab.open(lab.write("rewind.ipynb", cells, kernel)) as page:
        page.run_all()
        assert page.tab.locator(REWIND).count() == 1 and page.output(2).locator(REWIND).is_visible()
        assert n_places(page, 1) == 1
        page.output(2).locator(REWIND).click()
        page.wait_for_text("took back fit(2, 20.0): 1 epoch trained", 2)
        assert page.value("[len(learn.recorder.history), len(learn.runs)]") == [1, 1]
        assert "Redo" in page.output(2).locator(REWIND).inner_text() and "done: 2 epochs" in page.text(2)
        assert page.errors() == []
        check_quiet(page)
        page.tab.click('[data-command="notebook:restart-kernel"]')
        page.tab.click(".jp-Dialog .jp-mod-accept")
        page.tab.locator(REWIND).wait_for(state="hidden")
        assert "done: 2 epochs" in page.text(2)
        assert page.value("6*7") == 42  # the new kernel is there
