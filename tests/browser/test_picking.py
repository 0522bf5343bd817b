"""A person who looks for a learning rate and a schedule: points at a rate, uses it, trains with it, and drags a cycle into shape."""

import random
import re

import pytest

from lab import Lab
from notebook_page import NotebookPage, axe_violations_in, wait_until
from test_chart_page import number
from test_exact_page import RAW, SMOOTH, hovered

SETUP = """
from cbnb.all import *
from helpers import Held
from waves import *

learn = wave_learner()
learn.add_cb(Slowly());
learn.add_cb(Held("bars.seen", lambda learn: learn.train_iter > 75));  # the learning rate finder trains 60 batches
"""
QUICK = """
from cbnb.all import *
from cbnb.display.look import lr_text
from waves import *

learn = wave_learner()
"""
CHART = ".cbnb-picker .cbnb-lc"
NAMES = "chart => [...chart.querySelectorAll('.names button')].map(b => [b.querySelector('em').textContent, b.lastChild.textContent])"


def shown_rate(page: NotebookPage, cell: int) -> str:
    """The rate on the flag below the line of the picker."""
    return page.output(cell).locator(f"{CHART} .flag.fixed text").text_content()


def wait_for_rate(page: NotebookPage, cell: int, rate: str) -> None:
    page.output(cell).locator(f"{CHART} .flag.fixed text", has_text=re.compile(f"^{re.escape(rate)}$")).wait_for(state="attached")


def left_of(page: NotebookPage, cell: int, part: str) -> float:
    """Where a part of the curve begins, in pixels from the left. The chart draws itself anew all the time, so this asks in one go."""
    return page.output(cell).locator(CHART).evaluate("(chart, part) => chart.querySelector(part).getBoundingClientRect().x", part)


def line_at(page: NotebookPage, cell: int) -> float:
    """Where the line at the chosen rate is."""
    return left_of(page, cell, "path.chosen")


def spot(page: NotebookPage, cell: int, share: float, down: float = 0.5) -> tuple[float, float]:
    """A place on the curve, as a share of its width. A chart that was taken off the page meanwhile has no width: ask its successor."""
    look = "chart => { chart.scrollIntoViewIfNeeded(); return chart.querySelector('.hit').getBoundingClientRect().toJSON() }"
    for _ in range(200):
        box = page.output(cell).locator(f"{CHART} .plot").evaluate(look)
        if box["width"]:
            break
        page.tab.wait_for_timeout(50)
    return box["x"] + share * box["width"], box["y"] + down * box["height"]


def leave(page: NotebookPage) -> None:
    """Take the mouse off the chart, so that the flag says what is chosen."""
    page.tab.mouse.move(5, 5)


def pictures(page: NotebookPage, cell: int) -> int:
    """How many charts and images can be seen below the cell."""
    return sum(part.is_visible() for part in page.output(cell).locator(".cbnb-lc, img").all())


def is_quiet(page: NotebookPage) -> bool:
    return page.errors() == [] and page.console_errors() == [] and page.outside_requests() == []


def test_predictions_and_a_search_for_a_batch_size_stop_at_a_click(lab: Lab):
    setup = """
import torch
from cbnb.all import *
from helpers import Held
from torch import nn
from torch.utils.data import Dataset

class Slow(Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i): return torch.ones(2)*i/4000, torch.tensor([1.])

class SlowFrom32(Held):
    def after_batch(self):
        if len(self.xb[0]) >= 32: super().after_batch()

learn = Learner(DataLoaders.from_datasets(Slow(), Slow(), bs=8), nn.Linear(2, 1), nn.MSELoss())
"""
    cells = [
        setup,
        "learn.get_preds(cbs=Held('preds.seen', seconds=0.2))",
        "learn.add_cb(SlowFrom32('tries.seen', seconds=3)); found = learn.find_batch_size()",
    ]
    with lab.open(lab.write("slow_runs.ipynb", cells), size=(1100, 900)) as page:
        page.run_cell(0)
        for cell, words in (1, "get_preds: batch"), (2, "find_batch_size: 32 of 4,000 items, batch"):
            page.run_cell(cell, wait=False)
            page.wait_for_text(words, cell)
            stop = page.output(cell).locator("button", has_text="Stop")
            stop.click()
            page.wait_until_idle()
            stop.wait_for(state="detached")
        (error,) = page.errors()
        assert "get_preds stopped at batch" in error and "learn is usable" in error and "Traceback" not in error
        assert page.value("([t.bs for t in found.tries], found.why, learn.running)") == ([8, 16], "you stopped the search", False)
        assert page.console_errors() == []


def test_a_slow_sweep_grows_before_your_eyes_and_stops_at_a_click(lab: Lab):
    cells = [QUICK + "from helpers import Held\nlearn.add_cb(Held('sweep.seen', seconds=0.5));", "found = learn.lr_find()"]
    with lab.open(lab.write("slow_sweep.ipynb", cells), size=(1100, 900)) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        output = page.output(1)
        output.locator("img[alt*='so far']").wait_for()
        output.locator("button", has_text="Stop").click()
        output.locator(".cbnb-picker .cbnb-lc").wait_for()  # the batches would have taken 50 s
        lab.touch("sweep")
        page.wait_until_idle()
        n = page.value("len(found.lrs)")
        assert 4 <= n < 100 and "the sweep was stopped by hand at" in page.value("found.reason")
        output.locator("button", has_text="Stop").wait_for(state="detached")
        wait_until(lambda: pictures(page, 1) == 1)
        assert is_quiet(page)


def test_a_rate_is_chosen_used_and_trained_with(lab: Lab):
    cells = [SETUP, "found = learn.lr_find(num_it=60)", "learn.lr_finder_result.widget()", "print('still', 'here')"]
    with lab.open(lab.write("pick.ipynb", cells), size=(1100, 1300)) as page:
        page.run_cell(0)
        page.run_cell(1)
        output = page.output(1)
        picker = output.locator(".cbnb-picker")
        picker.locator(".cbnb-lc").wait_for()
        assert pictures(page, 1) == 1
        rates = page.value("dict(learn.lr_finder_result.suggestions)")
        rule, recommended = page.value("(found.rule, found.lr)")
        wait_for_rate(page, 1, f"{recommended:.2g}")
        assert f"by the rule {rule}" in picker.inner_text()
        # another one
        before = line_at(page, 1)
        picker.locator(".cbnb-rule-steep").click()
        wait_for_rate(page, 1, f"{rates['steep']:.2g}")
        assert (line_at(page, 1) - before) * (rates["steep"] - recommended) > 0
        picker.locator(".cbnb-use").click()
        picker.locator(".cbnb-said", has_text=f"learn.lr is now {rates['steep']:.2g} (before: 0.01)").wait_for()
        assert page.value("learn.lr") == rates["steep"]
        # one that nobody suggests
        assert not picker.locator(".cbnb-lr").is_visible()  # the curve does what the slider does
        page.tab.mouse.click(*spot(page, 1, 0.45))
        leave(page)
        page.wait_until(f"found.lr != {rates['steep']!r}")
        page.wait_until_idle()
        first, last = page.value("learn.lr_finder_result.lrs[0], learn.lr_finder_result.lrs[-1]")
        picker.locator(".cbnb-use").click()
        page.wait_until(f"learn.lr != {rates['steep']!r}")
        lr = page.value("learn.lr")
        assert first < lr < last
        wait_for_rate(page, 1, page.value("__import__('cbnb').display.look.lr_text(learn.lr)"))
        # train with it, from the picker
        epochs = picker.locator(".cbnb-epochs input")
        epochs.fill("2")
        epochs.press("Enter")
        picker.locator(".cbnb-start").click()
        picker.locator(".cbnb-dashboard .cbnb-bars", has_text="of 2 epochs").wait_for()
        lab.touch("bars")
        picker.locator(".cbnb-said", has_text="done: 2 epochs").wait_for()
        assert page.value("(learn.recorder.last().status, learn.recorder.last().n_steps)") == ("done", 80)
        assert page.value("max(learn.recorder.lrs)") == pytest.approx(lr, rel=0.01)
        assert picker.locator("[role=progressbar], .cbnb-stop").count() == 0
        # and stop there
        page.tab.wait_for_timeout(600)  # a second click within half a second counts as one of a double click
        epochs.fill("10000")
        epochs.press("Enter")
        picker.locator(".cbnb-start").click()
        picker.locator(".cbnb-dashboard .cbnb-bars", has_text="of 10000 epochs").wait_for()
        picker.locator(".cbnb-stop").click()
        picker.locator(".cbnb-said", has_text="stopped in epoch").wait_for()
        assert page.value("learn.recorder.last().status") == "cancelled"
        # the same later, in another cell
        page.run_cell(2)
        later = page.output(2).locator(".cbnb-picker")
        later.locator(".cbnb-lc").wait_for()
        assert pictures(page, 2) == 1
        later.locator(".cbnb-rule-valley").click()
        later.locator(".cbnb-use").click()
        page.wait_until(f"learn.lr == {rates['valley']!r}")
        page.run_cell(3)
        page.wait_for_text("still here", 3)
        assert is_quiet(page)


def test_the_chart_of_a_fit_from_the_picker_has_every_step(lab: Lab):
    """A fast fit: each step under the mouse has its own values, as below a cell. A saved notebook has the rows and the chart, too."""
    setup = QUICK.replace("wave_learner()", "wave_learner(n=120)")
    with lab.open(lab.write("fast.ipynb", [setup, "learn.lr_find(num_it=60)"]), size=(1100, 1300)) as page:
        page.run_cell(0)
        page.run_cell(1)
        picker = page.output(1).locator(".cbnb-picker")
        picker.locator(".cbnb-lc").wait_for()
        epochs = picker.locator(".cbnb-epochs input")
        epochs.fill("3")
        epochs.press("Enter")
        picker.locator(".cbnb-start").click()
        picker.locator(".cbnb-said", has_text="done: 3 epochs").wait_for()
        raw, smooth, valid = page.value("[list(v) for r in [learn.recorder.last()] for v in (r.raw_losses, r.losses, r['valid_loss'])]")
        chart = ".cbnb-dashboard .cbnb-lc"
        picker.locator(chart).wait_for()
        last = dict(page.output(1).locator(chart).evaluate(NAMES))
        assert len(raw) == 360 and last == {RAW: number(raw[-1]), SMOOTH: number(smooth[-1]), "valid": number(valid[-1])}
        rng = random.Random(1)
        for said, step, shown in hovered(page, 1, [rng.uniform(0.001, 0.999) for _ in range(50)], exact=True, chart=chart):
            assert "nearest" not in said and (shown[RAW], shown[SMOOTH]) == (number(raw[step]), number(smooth[step]))
        assert is_quiet(page)
        page.save()
    with lab.open("fast.ipynb") as page:  # without its kernel
        page.output(1).locator(".cbnb-fit .cbnb-lc").wait_for()
        assert "done: 3 epochs" in page.text(1) and page.output(1).locator(".cbnb-side tr").count() == 4
        assert page.output(1).locator(".cbnb-lc").count() == 2 and not page.errors()


def test_a_notebook_that_is_saved_during_a_fit_of_the_picker_keeps_the_rows_so_far(lab: Lab):
    setup = QUICK.replace("wave_learner()", "wave_learner(n=20)\nlearn.add_cb(Slowly())")
    with lab.open(lab.write("during.ipynb", [setup, "learn.lr_find(num_it=60)"]), size=(1100, 1300)) as page:
        page.run_cell(0)
        page.run_cell(1)
        picker = page.output(1).locator(".cbnb-picker")
        picker.locator(".cbnb-lc").wait_for()
        epochs = picker.locator(".cbnb-epochs input")
        epochs.fill("10000")
        epochs.press("Enter")
        picker.locator(".cbnb-start").click()
        so_far = page.output(1).locator("[class^=cbnb-so-far]")
        wait_until(lambda: so_far.locator("tr").count() > 2)
        assert so_far.is_hidden()
        page.save()
        picker.locator(".cbnb-stop").click()
        picker.locator(".cbnb-said", has_text="stopped in epoch").wait_for()
        assert so_far.count() == 0
    with lab.open("during.ipynb") as page:
        so_far = page.output(1).locator("[class^=cbnb-so-far]")
        so_far.wait_for()
        assert so_far.locator("tr").count() >= 3 and "a fit that was running when this was stored" in so_far.inner_text()
        assert not page.errors()


def test_a_click_on_the_curve_sets_the_rate(lab: Lab):
    waits = "import time\nbegin, before = time.time(), found.lr\nwhile found.lr == before and time.time() < begin + 20: time.sleep(0.05)\nseen = found.lr"
    with lab.open(
        lab.write("click.ipynb", [QUICK, "found = learn.lr_find()", waits, "learn.fit_one_cycle(1, found.lr)"]), size=(1200, 1200)
    ) as page:
        page.run_cell(0)
        page.run_cell(1)
        page.output(1).locator(f"{CHART} .hit").wait_for()
        recommended = page.value("found.lr")
        # a click
        x, y = spot(page, 1, 0.4)
        page.tab.mouse.click(x, y)
        page.wait_until(f"found.lr != {recommended!r}")
        leave(page)
        chosen = page.value("found.lr")
        assert shown_rate(page, 1) == page.value("lr_text(found.lr)") and float(f"{chosen:.1e}") == chosen
        assert line_at(page, 1) == pytest.approx(x, abs=8) and page.value("learn.lr") == 0.01
        # a drag: the line is under the mouse all the time
        page.tab.mouse.move(x, y)
        page.tab.mouse.down()
        for share in (0.45, 0.5, 0.55):
            page.tab.mouse.move(*spot(page, 1, share), steps=4)
            wait_until(lambda share=share: abs(line_at(page, 1) - spot(page, 1, share)[0]) < 4)
        page.tab.mouse.up()
        page.wait_until(f"found.lr > {5 * chosen!r}")
        page.wait_until_idle()
        # a click on a mark is the suggestion itself
        page.output(1).locator(f"{CHART} circle.dot").first.scroll_into_view_if_needed()
        marks = page.value("dict(found.suggestions)")
        page.output(1).locator(".cbnb-rule-valley").click()
        page.wait_until(f"found.lr == {marks['valley']!r}")
        x = line_at(page, 1)
        page.tab.mouse.click(*spot(page, 1, 0.3))
        page.wait_until(f"found.lr != {marks['valley']!r}")
        page.tab.mouse.click(x + 2, spot(page, 1, 0.5)[1])
        page.wait_until(f"found.lr == {marks['valley']!r}")
        # the keyboard
        page.tab.mouse.click(*spot(page, 1, 0.5))
        leave(page)
        plot, before = page.output(1).locator(f"{CHART} .plot"), page.value("found.lr")

        def keys_choose_more() -> bool:
            for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Enter"):
                plot.press(key)  # gives the plot the focus, should it have lost it
            return page.value(f"found.lr > {1.5 * before!r}")

        wait_until(keys_choose_more)
        # while a cell runs
        page.run_cell(2, wait=False)
        wait_until(lambda: page.is_running(2))
        page.tab.wait_for_timeout(300)
        page.tab.mouse.click(*spot(page, 1, 0.35))
        page.wait_until_idle()
        assert page.value("seen == found.lr < before") and page.value("time.time() - begin") < 19
        page.run_cell(3)
        assert page.value("max(learn.recorder.lrs) == found.lr")
        # more epochs, a lower rate, the band goes along
        page.output(1).locator(".cbnb-rule-balanced").click()
        page.wait_until("found.lr == found.recommended")
        before, at = page.value("found.lr"), left_of(page, 1, ".band")
        epochs = page.output(1).locator(".cbnb-epochs input")
        epochs.fill("100")
        epochs.press("Enter")
        page.wait_until(f"found.lr == found.recommended < {before!r}")
        wait_until(lambda: left_of(page, 1, ".band") < at - 5)
        leave(page)
        assert shown_rate(page, 1) == page.value("lr_text(found.lr)")
        assert "for 100 epochs" in page.output(1).inner_text() and is_quiet(page)


def test_without_anywidget_there_is_a_slider(lab: Lab):
    missing = QUICK + "import cbnb.display.lr_picker\ncbnb.display.lr_picker.has_live_charts = lambda: False\n"
    with lab.open(lab.write("slider.ipynb", [missing, "found = learn.lr_find()"]), size=(1200, 1200)) as page:
        page.run_all()
        picker = page.output(1).locator(".cbnb-picker")
        picker.locator("img").wait_for()
        assert pictures(page, 1) == 1
        before = page.value("found.lr")
        page.drag(picker.locator(".cbnb-lr"), 0.4)
        page.wait_until(f"found.lr != {before!r}")
        page.wait_until_idle()
        rate = page.value("lr_text(found.lr)")
        picker.locator(f"img[alt*='chosen: {rate},']").wait_for()
        assert is_quiet(page)


def test_everybody_can_use_them(lab: Lab):
    cells = [
        QUICK,
        "found = learn.lr_find()",
        "OneCycle(0.01).plot()",
        "SchedCos(0.1, 0).plot()",
        "learn.plot_schedule(3, method='fine_tune')",
    ]
    with lab.open(lab.write("axe.ipynb", cells), size=(1200, 1300)) as page:
        page.run_all()
        page.output(1).locator(f"{CHART} .hit").wait_for()
        wait_until(lambda: not page.output(1).locator(".cbnb-lr").is_visible())
        for theme in ("light", "dark"):
            page.set_theme(theme)
            assert [axe_violations_in(page, cell) for cell in (1, 2, 3, 4)] == [[], [], [], []]


def test_a_picker_out_of_order(lab: Lab):
    cells = [
        QUICK,
        "found = learn.lr_find()",
        "learn.fit_one_cycle(1)\nagain = learn.lr_find(show_plot=False)",
        "del found, learn.lr_finder_result",
    ]
    with lab.open(lab.write("order.ipynb", cells), size=(1200, 1200)) as page:
        for cell in (0, 1, 2):
            page.run_cell(cell)
        page.output(1).locator(f"{CHART} .hit").wait_for()
        new = page.value("again.lr")
        page.output(1).locator(".cbnb-rule-slide").click()
        page.wait_until("found.lr == found.slide")
        assert page.value("again.lr") == new
        page.run_cell(1)  # once more: one picker, of the new result
        page.output(1).locator(f"{CHART} .hit").wait_for()
        assert pictures(page, 1) == 1
        page.run_cell(3)
        page.tab.mouse.click(*spot(page, 1, 0.4))
        leave(page)
        page.output(1).locator(".cbnb-use").click()
        page.output(1).locator(".cbnb-said", has_text="learn.lr is now").wait_for()
        assert page.value("__import__('cbnb').display.look.lr_text(learn.lr)") == shown_rate(page, 1)
        saved = page.save()
        assert [sorted(output.data) for output in saved.cells[1].outputs] == [
            ["application/vnd.jupyter.widget-view+json", "text/plain"],
            ["text/html", "text/plain"],
        ]
        assert len(saved.cells[1].outputs[1].data["text/html"]) < 40_000
        # with a kernel that knows nothing: the same chart, and no error
        page.close_tab()
        lab.end_kernels()
        page.open()
        page.output(1).locator(".cbnb-lc").wait_for()
        assert pictures(page, 1) == 1 and "rror" not in page.text(1) and "is recommended" in page.text(1)
        page.tab.mouse.move(*box_center(page, 1))
        assert "learning rate" in page.output(1).locator(".cbnb-lc .where").inner_text()
        assert page.errors() == page.console_errors() == page.outside_requests() == []


def box_center(page: NotebookPage, cell: int) -> tuple[float, float]:
    area = page.output(cell).locator(".cbnb-lc .hit")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


# --- a cycle ---


def point(page: NotebookPage, cell: int, name: str):
    return page.output(cell).locator(f".cbnb-cycle [data-point={name}] .knob")


def place(page: NotebookPage, cell: int, name: str) -> tuple[float, float]:
    knob = point(page, cell, name)
    knob.scroll_into_view_if_needed()
    box = knob.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: NotebookPage, cell: int, name: str, dx: float, dy: float) -> None:
    x, y = place(page, cell, name)
    page.tab.mouse.move(x, y)
    page.tab.mouse.down()
    page.tab.mouse.move(x + dx, y + dy, steps=6)
    page.tab.mouse.up()


def call(page: NotebookPage, cell: int) -> dict[str, float]:
    """The numbers of the call below the curve."""
    text = page.output(cell).locator(".cbnb-cycle .call code").inner_text()
    assert text.startswith("learn.fit_one_cycle(")
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.e-]+)", text)}


def test_a_cycle_is_dragged_into_shape(lab: Lab):
    cells = [QUICK, "view = OneCycle(0.01).plot(widget=True)\nview", "learn.plot_schedule(3)"]
    with lab.open(lab.write("cycle.ipynb", cells), size=(1200, 1300)) as page:
        page.run_all()
        page.output(2).locator(".cbnb-cycle").wait_for()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        assert call(page, 1) == dict(lr_max=0.01, pct_start=0.25, div=25)
        # the top, to the right and down; the point is under the mouse
        x, y = place(page, 1, "top")
        page.tab.mouse.move(x, y)
        page.tab.mouse.down()
        page.tab.mouse.move(x + 200, y + 60, steps=6)
        wait_until(lambda: abs(place(page, 1, "top")[0] - x - 200) < 8 and abs(place(page, 1, "top")[1] - y - 60) < 6)
        page.tab.mouse.up()
        now = call(page, 1)
        assert 0.4 < now["pct_start"] < 0.5 and 0.005 < now["lr_max"] < 0.008 and now["div"] == 25
        page.wait_until(f"view.cycle().lr_max == {now['lr_max']} and view.one_cycle.pct_start == {now['pct_start']}")
        # start and end
        drag(page, 1, "start", 0, -60)
        drag(page, 1, "end", 0, -30)
        now = call(page, 1)
        assert 1 < now["div"] < 5 and 1 < now["div_final"] < 15 and now["lr_max"] == page.value("view.lr_max.value")
        # the keyboard
        page.output(1).locator(".cbnb-cycle [data-point=top]").focus()
        for key in ("ArrowUp", "ArrowUp", "ArrowLeft", "Shift+ArrowLeft"):
            page.tab.keyboard.press(key)
        after = call(page, 1)
        assert after["lr_max"] > 1.15 * now["lr_max"] and after["pct_start"] == pytest.approx(now["pct_start"] - 0.06)
        assert page.value("1") == 1  # the keys did nothing to the notebook
        # numbers
        field = page.output(1).get_by_label("lr_max")
        field.fill("0.3")
        field.press("Enter")
        assert call(page, 1)["lr_max"] == 0.3
        field.fill("nonsense")
        field.press("Enter")
        assert call(page, 1)["lr_max"] == 0.3 and "should be a number" in page.text(1)
        page.wait_until("view.cycle().lr_max == 0.3")
        # what is copied is the call
        page.output(1).get_by_text("copy", exact=True).click()
        page.output(1).get_by_text("copied").wait_for()
        assert page.tab.evaluate("navigator.clipboard.readText()") == page.value("view.call()")
        # from Python
        page.tab.evaluate("() => document.activeElement.blur()")
        page.value("setattr(view.pct_start, 'value', 0.1)")
        wait_until(lambda: call(page, 1)["pct_start"] == 0.1)
        # the fit of the learner
        assert "learn.fit_one_cycle(3, lr_max=0.01" in page.text(2)
        drag(page, 2, "top", 100, 0)
        assert call(page, 2)["pct_start"] > 0.3 and is_quiet(page)
        # a day later, with a kernel that knows nothing
        page.save()
        page.close_tab()
        lab.end_kernels()
        page.open()
        page.output(1).locator(".cbnb-cycle").wait_for()
        drag(page, 1, "top", 150, 40)
        assert call(page, 1)["pct_start"] > 0.3 and call(page, 1)["lr_max"] < 0.01
        assert is_quiet(page)


def test_a_cycle_where_no_script_runs_is_a_picture(lab: Lab):
    cells = [QUICK, "OneCycle(0.01).plot()"]
    with lab.open(lab.write("still.ipynb", cells), size=(1200, 1000)) as page:
        page.run_all()
        page.output(1).locator(".cbnb-cycle").wait_for()
        page.save()
    with lab.open(lab.untrusted("still.ipynb"), size=(1200, 1000)) as page:
        page.output(1).locator("img").first.wait_for()
        assert page.output(1).locator(".cbnb-cycle").count() == 0 and page.output(1).locator("img").first.is_visible()
        assert "learn.fit_one_cycle(n_epoch, lr_max=0.01, pct_start=0.25, div=25)" in page.text(1)
