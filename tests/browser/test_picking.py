"""A person who looks for a learning rate: points at one, uses it, and trains with it from there."""

import pytest

from lab import Lab
from notebook_page import NotebookPage

SETUP = """
from cbnb.all import *
from helpers import Held
from waves import *

learn = wave_learner()
learn.add_cb(Slowly());
learn.add_cb(Held("bars.seen", lambda learn: learn.train_iter > 75));  # the learning rate finder trains 60 batches
"""


def chart_says(page: NotebookPage, cell: int) -> str:
    """What the picker's chart says to those who cannot see it."""
    return page.output(cell).locator(".cbnb-picker .cbnb-chart").first.get_attribute("aria-label")


def cursor(page: NotebookPage, cell: int) -> float:
    """Where the line at the chosen rate is, in pixels from the left."""
    return page.output(cell).locator(".cbnb-picker .cbnb-chart path.cursor").bounding_box()["x"]


def pictures(page: NotebookPage, cell: int) -> int:
    """How many charts and images can be seen below the cell."""
    return sum(part.is_visible() for part in page.output(cell).locator(".cbnb-chart, img").all())


def test_a_rate_is_chosen_used_and_trained_with(lab: Lab, kernel: str):
    cells = [SETUP, "found = learn.lr_find(num_it=60)", "learn.lr_finder_result.widget()", "print('still', 'here')"]
    with lab.open(lab.write("pick.ipynb", cells, kernel), size=(1100, 1300)) as page:
        page.run_cell(0)
        page.run_cell(1)
        output = page.output(1)
        picker = output.locator(".cbnb-picker")
        picker.locator(".cbnb-chart").wait_for()
        assert pictures(page, 1) == 1
        rates = page.value("dict(learn.lr_finder_result.suggestions)")
        recommended = page.value("(found.rule, found.lr)")
        assert f"chosen: {recommended[1]:.2g}" in chart_says(page, 1)
        assert f"by the rule {recommended[0]}" in picker.inner_text()
        # another one
        before = cursor(page, 1)
        picker.locator(".cbnb-rule-steep").click()
        page.tab.locator(f".cbnb-chart[aria-label*='chosen: {rates['steep']:.2g}']").wait_for()
        assert (cursor(page, 1) - before) * (rates["steep"] - recommended[1]) > 0
        picker.locator(".cbnb-use").click()
        picker.locator(".cbnb-said", has_text=f"learn.lr is now {rates['steep']:.2g} (before: 0.01)").wait_for()
        assert page.value("learn.lr") == rates["steep"]
        # one that nobody suggests
        page.drag(picker.locator(".cbnb-lr"), 0.5)
        page.tab.locator(f".cbnb-chart:not([aria-label*='chosen: {rates['steep']:.2g}'])").wait_for()
        page.wait_until_idle()
        chosen = page.value("learn.lr_finder_result.lrs[0], learn.lr_finder_result.lrs[-1]")
        picker.locator(".cbnb-use").click()
        page.wait_until(f"learn.lr != {rates['steep']!r}")
        lr = page.value("learn.lr")
        assert chosen[0] < lr < chosen[1] and f"chosen: {lr:.2g}" in chart_says(page, 1)
        # train with it, from the picker
        epochs = picker.locator(".cbnb-epochs input")
        epochs.fill("2")
        epochs.press("Enter")
        picker.locator(".cbnb-fit").click()
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
        picker.locator(".cbnb-fit").click()
        picker.locator(".cbnb-dashboard .cbnb-bars", has_text="of 10000 epochs").wait_for()
        picker.locator(".cbnb-stop").click()
        picker.locator(".cbnb-said", has_text="stopped in epoch").wait_for()
        assert page.value("learn.recorder.last().status") == "cancelled"
        # the same later, in another cell
        page.run_cell(2)
        later = page.output(2).locator(".cbnb-picker")
        later.locator(".cbnb-chart").wait_for()
        assert pictures(page, 2) == 1
        later.locator(".cbnb-rule-valley").click()
        later.locator(".cbnb-use").click()
        page.wait_until(f"learn.lr == {rates['valley']!r}")
        page.run_cell(3)
        page.wait_for_text("still here", 3)
        assert page.errors() == [] and page.console_errors() == [] and page.outside_requests() == []
