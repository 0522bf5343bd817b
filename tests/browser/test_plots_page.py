"""A person who looks at the plots of a fit, and at the notebook a day later."""

import re

from lab import Lab
from notebook_page import NotebookPage, wait_until

SETUP = """
from cbnb.all import *
from waves import *

learn = wave_learner()
learn.fit(2)
learn.fit(1)
"""
CHART = ".cbnb-chart"


def slider(page: NotebookPage, cell: int, label: str):
    return page.output(cell).locator(".widget-slider", has_text=label)


def says(page: NotebookPage, cell: int) -> str:
    """What the chart says to those who cannot see it."""
    return page.output(cell).locator(CHART).first.get_attribute("aria-label")


def curves(page: NotebookPage, cell: int) -> list[str]:
    """The shapes that are drawn."""
    return page.output(cell).locator(f"{CHART} path").evaluate_all("paths => paths.map(path => path.getAttribute('d'))")


def wait_for_change(page: NotebookPage, cell: int, before: str) -> None:
    changed = (
        "([cell, before]) => document.querySelectorAll('.jp-Notebook .jp-Cell')[cell].querySelector('.cbnb-chart').ariaLabel !== before"
    )
    page.wait_for(changed, [cell, before])


def pictures(page: NotebookPage, cell: int) -> int:
    """How many charts and images can be seen below the cell."""
    return sum(part.is_visible() for part in page.output(cell).locator(f"{CHART}, img").all())


def test_the_controls_of_a_plot_change_it(lab: Lab, kernel: str):
    cells = [SETUP, "learn.recorder.plot_losses()", "learn.recorder.plot_lr()", "learn.recorder.plot_metrics()", "OneCycle(0.1).plot()"]
    with lab.open(lab.write("plots.ipynb", cells, kernel), size=(1100, 1300)) as page:
        page.run_all()
        for cell in (1, 2, 3):
            page.output(cell).locator(CHART).first.wait_for()
            assert pictures(page, cell) == 1
        # smoothing
        before, shapes = says(page, 1), curves(page, 1)
        assert "at step 119" in before or "at step 120" in before
        page.drag(slider(page, 1, "smoothing"), 0.5)
        wait_for_change(page, 1, before)
        assert 0.4 < float(slider(page, 1, "smoothing").locator(".widget-readout").inner_text()) < 0.6
        page.wait_until_idle()
        assert curves(page, 1) != shapes
        # values at a step
        before = says(page, 1)
        page.drag(slider(page, 1, "step"), 0.5)
        wait_for_change(page, 1, before)
        page.wait_until_idle()
        step = int(slider(page, 1, "step").locator(".widget-readout").inner_text().replace(",", ""))
        assert 50 < step < 70
        page.tab.locator(f"{CHART}[aria-label*='at step {step}:']").wait_for()
        loss = page.value(f"[loss for run in learn.recorder.history for loss in run.raw_losses][{step}]")
        assert f"train, each batch {loss:.4g}" in says(page, 1)
        # one of the runs, by the keyboard
        shapes = curves(page, 1)
        page.output(1).get_by_label("run 1").focus()
        page.tab.keyboard.press("Space")
        page.wait_until_idle()
        wait_until(lambda: curves(page, 1) != shapes)
        # the other plots
        page.output(2).get_by_label("momentum").click()
        page.output(2).locator(CHART).nth(1).wait_for()
        page.drag(slider(page, 4, "pct_start"), 0.8)
        wait_until(lambda: re.search(r"learn.fit_one_cycle\(n_epoch, lr_max=0.1, pct_start=0.(7[5-9]|8[0-5]?),", page.text(4)))
        assert page.errors() == [] and page.console_errors() == [] and page.outside_requests() == []


def test_a_day_later_the_pictures_are_there(lab: Lab):
    cells = [SETUP, "learn.recorder.plot_losses()", "learn.recorder.plot_metrics()", "found = wave_learner().lr_find(num_it=60)"]
    with lab.open(lab.write("later.ipynb", cells), size=(1100, 1300)) as page:
        page.run_all()
        for cell in (1, 2, 3):
            page.output(cell).locator(CHART).first.wait_for()
        saved = page.save()
        for cell, words in enumerate(["Losses over 120 steps", "mae over 120 steps", "recommended is balanced"], 1):
            image = saved.cells[cell].outputs[-1]
            assert sorted(image.data) == ["image/png", "text/plain"] and words in image.metadata["image/png"].alt
        page.close_tab()
        lab.end_kernels()
        page.open()  # with a new kernel, which knows nothing
        for cell in (1, 2, 3):
            page.output(cell).locator("img").wait_for()
            assert pictures(page, cell) == 1
        assert pictures(page, 0) == 2
