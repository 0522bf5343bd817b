"""A person with a notebook: the quick start, a look at a running fit, the stop button, coming back."""

import re

from lab import ROOT
from notebook_page import wait_until

SETUP = """
import time
from cbnb.all import *
from helpers import *

class Slowly(Callback):
    def after_batch(self): time.sleep(0.02)

learn = line_learner(10, progress=True)
"""


def check_quiet(page):
    """Neither an error in the console nor a request to anywhere else."""
    assert page.console_errors() == []
    assert page.outside_requests() == []


def test_the_quick_start(lab):
    with lab.open(lab.copy(ROOT / "nbs" / "index.ipynb")) as page:
        page.run_all()
        assert page.errors() == []
        page.wait_until_idle()
        streams = [output for cell in page.save().cells for output in cell.get("outputs", []) if output.output_type == "stream"]
        assert any(output.text.startswith("validation accuracy: 0.9") for output in streams)  # its cell may be out of the window
        assert page.value("len(learn.recorder.history)") == 2
        check_quiet(page)


def test_the_table_is_there_while_it_trains_and_the_next_cell_runs(lab, kernel):
    notebook = lab.write(
        "watch.ipynb",
        [SETUP, "learn.fit(6, cbs=[Slowly(), Held('table.seen', lambda learn: learn.epoch == 5)])", "print('then', 'this')"],
        kernel,
    )
    with lab.open(notebook) as page:
        assert page.value("__import__('ipykernel').__version__") == kernel
        page.run_all(wait=False)
        page.wait_for_text("train_loss", cell=1)
        assert page.is_running(1) and page.is_running(2) and page.text(2) == ""
        lab.touch("table")
        page.wait_until_idle()
        page.wait_for_text("then this", cell=2)
        assert page.errors() == []
        assert re.findall(r"^(★ )?(\d+)\t", page.text(1), re.MULTILINE) == [*(("", n) for n in "01234"), ("★ ", "5")]  # the best one
        check_quiet(page)


def test_the_stop_button_leaves_one_quiet_line_and_a_usable_learner(lab, kernel):
    cells = [SETUP, "learn.fit(10**6, cbs=Slowly())", "print('never', 'this')", "learn.fit(2)"]
    with lab.open(lab.write("stop.ipynb", cells, kernel)) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        page.run_cell(2, wait=False)
        page.wait_for_text("train_loss", cell=1)
        page.interrupt()
        page.wait_until_idle()
        (line,) = page.errors()
        assert re.fullmatch(r"stopped in epoch \d+ at (validation )?batch \d+; learn is usable", line) and line in page.text(1)
        assert page.text(2) == ""
        page.run_cell(3)
        assert page.value("[run.status for run in learn.recorder.history]") == ["interrupted", "done"]
        check_quiet(page)


def test_a_fit_goes_on_while_nobody_looks_and_is_found_with_all_figures(lab):
    notebook = lab.write(
        "again.ipynb",
        [
            SETUP,
            "learn.fit(2)",
            "learn.recorder.plot_losses()",
            "learn.fit(10, cbs=[Slowly(), Held('left.seen', lambda learn: learn.epoch == 5)])",
        ],
    )
    with lab.open(notebook) as page:
        for cell in range(3):
            page.run_cell(cell)
        page.run_cell(3, wait=False)
        page.output(3).locator(".cbnb-bars").wait_for()
        page.save()
        page.close_tab()
        lab.touch("left")
        wait_until(lambda: lab.request("kernels")[0]["execution_state"] == "idle")
        page.open()
        page.wait_for_text("done: 2 epochs, 20 batches", cell=1)
        page.wait_for_text("done: 10 epochs, 100 batches", cell=3)
        assert page.output(3).locator("[role=progressbar], .cbnb-stop").count() == 0
        for cell in (1, 3):  # the button of the first fit is closed: nothing stands where it was
            left = page.output(cell).get_by_text("widget").filter(visible=True)
            wait_until(lambda left=left: left.count() == 0)
        smoothed = page.output(2).locator(".cbnb-lc .names button", has_text="smoothed")
        before = smoothed.inner_text()
        page.output(2).get_by_label("smoothing").fill("0")
        wait_until(lambda: smoothed.inner_text() != before)
        assert page.value("[(run.status, run.n_steps, len(run.epochs)) for run in learn.recorder.history]") == [
            ("done", 20, 2),
            ("done", 100, 10),
        ]
        check_quiet(page)
