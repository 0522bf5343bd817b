"""A fit of two processes, started from a cell: it is seen, slowed down, held, stopped and interrupted in the page."""

import re

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("cloudpickle")

from lab import Lab
from notebook_page import NotebookPage, wait_until
from test_dashboard_page import PAUSE, SCALE, STATUS, STOP, TABLE, check_over, check_quiet, numbers, steps_drawn

SETUP = """
import os, time
from glob import glob
from cbnb.all import *
from waves import wave_learner

class Gently(Callback):
    def before_batch(self): time.sleep(0.02)

learn = wave_learner()
weights = lambda: [p.tolist() for p in learn.model.parameters()]
learn.fit(1)
before = weights()
"""
FIT = "learn.fit_distributed(10**4, n_process=2, cbs=Gently())"
CHILDREN = "[pid for path in glob(f'/proc/{os.getpid()}/task/*/children') for pid in open(path).read().split()]"
START = 120.0  # seconds for two processes to start


def wait_for_row(page: NotebookPage, cell: int) -> None:
    page.output(cell).locator(STATUS, has_text="batch").wait_for(timeout=START * 1000)
    page.output(cell).locator(TABLE, has_text="valid_loss").wait_for()


def test_two_processes_are_watched_and_steered_and_the_learner_goes_on(lab: Lab):
    cells = [SETUP, FIT, FIT, "learn.fit(1)"]
    with lab.open(lab.write("two.ipynb", cells)) as page:
        status, pause = page.tab.locator(STATUS), page.tab.locator(PAUSE)
        page.run_cell(0)
        children = page.value(CHILDREN)
        page.run_cell(1, wait=False)
        wait_for_row(page, 1)
        seen = steps_drawn(page)
        wait_until(lambda: steps_drawn(page) > seen + 10)
        assert page.output(1).locator(".cbnb-curve .cbnb-lc path.line").count() >= 1
        assert numbers(page)[1] == 10**4 and numbers(page)[3] in (20, 3)  # 40 batches and 5 of validation, two at a time
        page.drag(page.tab.locator(SCALE), 0.6)
        page.tab.locator(STATUS, has_text="planned lr × 0.6").wait_for()
        pause.click()
        page.tab.locator(STATUS, has_text="paused").wait_for()
        page.tab.wait_for_timeout(700)  # what was under way has arrived
        held = status.inner_text()
        page.tab.wait_for_timeout(700)
        assert status.inner_text() == held
        pause.click()
        page.wait_for("([where, before]) => document.querySelector(where).innerText !== before", [STATUS, held])
        page.tab.click(STOP)
        page.wait_until_idle()
        check_over(page, 1, "stopped in epoch")
        assert re.search(r"planned lr .*× 0\.6\d? from step", page.text(1))
        assert page.errors() == [] and page.value(CHILDREN) == children
        assert page.value("[run.status for run in learn.recorder.history]") == ["done", "cancelled"]
        assert page.value("len(learn.recorder.last().epochs) > 1 and weights() != before")
        assert page.value("len({round(lr, 6) for lr in learn.recorder.lrs}) > 1")

        page.run_cell(2, wait=False)  # the stop button of the notebook
        wait_for_row(page, 2)
        page.interrupt()
        page.wait_until_idle()
        (line,) = page.errors()
        assert re.fullmatch(r"stopped in epoch \d+( at (validation )?batch \d+)?; learn is usable", line) and line in page.text(2)
        page.run_cell(3)
        assert page.value("[run.status for run in learn.recorder.history]") == ["done", "cancelled", "interrupted", "done"]
        assert page.value(CHILDREN) == children
        check_quiet(page)
