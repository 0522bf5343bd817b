"""A person who looks at the plots of a fit, and at the notebook a day later."""

from lab import Lab
from notebook_page import NotebookPage

SETUP = """
from cbnb.all import *
from waves import *

learn = wave_learner()
learn.fit(2)
learn.fit(1)
"""
PLOTS = ["learn.recorder.plot_losses()", "learn.recorder.plot_lr()", "learn.recorder.plot_metrics()", "OneCycle(0.1).plot()"]
CHART = ".cbnb-lc"


def pictures(page: NotebookPage, cell: int) -> int:
    """How many charts and images can be seen below the cell."""
    return sum(part.is_visible() for part in page.output(cell).locator(f"{CHART}, img").all())


def test_each_plot_is_one_chart_that_says_what_it_shows(lab: Lab):
    with lab.open(lab.write("plots.ipynb", [SETUP, *PLOTS[:3]]), size=(1100, 1300)) as page:
        page.run_all()
        for cell, words in ((1, "Losses: train, each batch"), (2, "Learning rate: learning rate"), (3, "mae: mae")):
            page.output(cell).locator(f"{CHART} .hit").wait_for()
            assert pictures(page, cell) == 1
            assert page.output(cell).locator(".plot").get_attribute("aria-label").startswith(words)
        assert not page.console_errors() and not page.outside_requests()


def test_a_day_later_the_plots_are_there(lab: Lab):
    cells = [SETUP, *PLOTS, "learn.lr_find()"]
    with lab.open(lab.write("later_plots.ipynb", cells), size=(1100, 1300)) as page:
        page.run_all()
        page.output(5).locator(".cbnb-picker").wait_for()
        page.save()
    with lab.open("later_plots.ipynb", size=(1100, 1300)) as page:  # a kernel that knows nothing of it
        for cell in range(len(cells)):
            page.output(cell).locator(f"{CHART}:visible, img:visible").first.wait_for()
            assert pictures(page, cell) >= 1 and "Error" not in page.text(cell)  # nor of a button without its kernel
        assert not page.errors()
