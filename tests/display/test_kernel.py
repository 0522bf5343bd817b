"""What a person sees in a notebook: in a real kernel, with the outputs as they would be saved."""

import re
import time
from pathlib import Path

import pytest
from jupyter_client import BlockingKernelClient
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import notebooks
from kernels import of_the_fit

HERE = Path(__file__).resolve().parents[1]
SETUP = f"""
import sys
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE)!r}]
import signal
from cbnb.all import *
from helpers import *

class Stop(Callback):
    "Presses the stop button"
    def after_step(self):
        if self.learn.train_iter == 3: signal.raise_signal(signal.SIGINT)
"""


class Kernel:
    """Runs cells; `run` gives a cell's outputs as they are saved, `client` can also send several at once."""

    def __init__(self, nbclient: NotebookClient):
        self.nbclient = nbclient
        self.client = BlockingKernelClient(connection_file=nbclient.km.connection_file)
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, source: str, *, fails: bool = False) -> list:
        cells = self.nbclient.nb.cells
        cells.append(new_code_cell(source))
        self.nbclient.execute_cell(cells[-1], len(cells) - 1)
        outputs = cells[-1].outputs
        errors = [o for o in outputs if o.output_type == "error"]
        assert bool(errors) == fails, errors and "\n".join(errors[0].traceback)
        return outputs

    def value(self, expression: str) -> object:
        """A plain Python value."""
        output = self.run(f"print(repr(({expression})))")[0]
        return eval(output.text, {"nan": float("nan")})

    def interrupt(self) -> None:
        run_sync(self.nbclient.km.interrupt_kernel)()

    def drain(self) -> None:
        while self.client.iopub_channel.msg_ready():
            self.client.get_iopub_msg(timeout=1)


@pytest.fixture(scope="module")
def kernel():
    with notebooks.clean_kernels():
        client = NotebookClient(new_notebook(), timeout=60, kernel_name="python3", allow_errors=True, coalesce_streams=True)
        with client.setup_kernel():
            shared = Kernel(client)
            try:
                assert shared.run(SETUP) == []
                yield shared
            finally:
                shared.client.stop_channels()


def images(outputs) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_a_fit_leaves_one_output(kernel):
    """A table as HTML, and the same as text without HTML."""
    outputs = kernel.run(
        "learn = line_learner(progress=True, metrics=AvgMetric(lambda p, y: (p - y).abs().mean(), name='mae'))\nlearn.fit(3)"
    )
    assert [output.output_type for output in outputs] == ["display_data"]
    data = outputs[0].data
    assert set(data) == {"text/html", "text/plain"}
    page = data["text/html"]
    assert page.count("<tr") == 4 and "mae" in page and "batch 2 of 2" not in page and page.count("data:image/svg+xml") == 1
    lines = data["text/plain"].splitlines()
    assert len(lines) == 7 and lines[0].split() == ["epoch", "train_loss", "valid_loss", "mae", "time"]
    assert lines[4].startswith("lowest valid_loss") and "epoch 2" in lines[4]
    assert lines[5].startswith("loss █") and lines[6] == "done: 3 epochs, 6 batches in 00:00" and lines[6] in page
    assert lines[1].split()[:2] == ["0", "10.660000"] and "10.660000" in data["text/html"] and not re.search("[<>]|&", data["text/plain"])


def test_names_are_escaped(kernel):
    outputs = kernel.run(
        "learn = line_learner(progress=True, metrics=AvgMetric(lambda p, y: p.mean(), name='a<b & <img src=x>'))\nlearn.fit(1)"
    )
    assert len(outputs) == 1
    page, text = outputs[0].data["text/html"], outputs[0].data["text/plain"]
    assert "a&lt;b &amp; &lt;img src=x&gt;" in page and "<img" not in page and "a<b & <img src=x>" in text


def test_evaluation_leaves_no_debris(kernel):
    kernel.run("learn = line_learner(progress=True)\nlearn.fit(1)\nlearn.progress.every = 0.")
    for call in ("r = learn.validate()", "r = learn.get_preds()"):
        shown = [output for output in kernel.run(call) if output.get("data", {}).get("text/plain", "").strip() or "batch" in str(output)]
        assert shown == []
    outputs = kernel.run("with learn.no_bar(): learn.fit(1)")
    assert [output.output_type for output in outputs] == ["stream"]  # the rows are printed then


def check_one_quiet_line(outputs):
    error = outputs[-1]
    assert error.output_type == "error" and error.ename == "FitInterrupted"
    assert len(error.traceback) == 1 and "\n" not in error.traceback[0] and "\x1b" not in error.traceback[0]
    assert re.fullmatch(r"stopped in epoch \d+ at batch \d+; learn is usable", error.traceback[0])
    assert sum(output.output_type == "display_data" for output in outputs) == 1 and len(outputs) == 2


def test_a_stopped_cell_shows_one_line(kernel):
    kernel.run("learn = line_learner(4, progress=True)")
    outputs = kernel.run("learn.fit(2, cbs=Stop)", fails=True)
    check_one_quiet_line(outputs)
    assert "stopped in epoch 0" in outputs[0].data["text/plain"]
    assert kernel.value("[(run.status, run.n_steps) for run in learn.recorder.history]") == [("interrupted", 3)]
    assert len(kernel.run("learn.fit(1)")) == 1
    assert kernel.value("[run.status for run in learn.recorder.history]") == ["interrupted", "done"]


ENDLESS = "learn.fit(10**6, cbs=Callback(after_epoch=lambda self: print('ready', flush=True) if self.learn.epoch == 2 else None))"


def test_the_stop_button_and_the_queue(kernel):
    """The cells that wait in the queue do not run; one that is run afterwards does, and trains on."""
    kernel.run("learn = line_learner(progress=True)\nran = []")
    client = kernel.client
    kernel.drain()
    first = client.execute(ENDLESS, stop_on_error=True)
    second = client.execute("ran.append('queued')", stop_on_error=True)
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream" and "ready" in message["content"]["text"]:
            break
    kernel.interrupt()
    replies = {}
    while len(replies) < 2:
        reply = client.get_shell_msg(timeout=60)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]
    assert replies[first]["status"] == "error" and replies[first]["ename"] == "FitInterrupted" and len(replies[first]["traceback"]) == 1
    assert replies[second]["status"] == "aborted"
    assert kernel.value("ran, learn.running, learn.recorder.history[-1].status") == ([], False, "interrupted")
    kernel.run("learn.fit(2)\nran.append('later')")
    assert kernel.value("ran, learn.recorder.history[-1].status, len(learn.recorder.history)") == (["later"], "done", 2)


def test_a_stopped_sweep_shows_one_line_and_changes_nothing(kernel):
    kernel.run(
        "learn = line_learner(4)\nlearn.fit(1)\nbefore = exact(learn.model.a), exact(learn.model.b), learn.opt.param_groups[0]['lr']"
    )
    error = kernel.run("learn.lr_find(cbs=Stop)", fails=True)[-1]
    assert error.ename == "FitInterrupted" and len(error.traceback) == 1
    assert kernel.value("before == (exact(learn.model.a), exact(learn.model.b), learn.opt.param_groups[0]['lr'])")


def test_an_error_shows_the_line_of_the_user_and_where_it_was(kernel):
    kernel.run(
        "class Fails(Callback):\n    def after_loss(self):\n        if self.learn.iter == 1: assert False, 'mine'\nlearn = line_learner(progress=True)"
    )
    outputs = kernel.run("learn.fit(1, cbs=Fails)", fails=True)
    error = outputs[-1]
    text = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    assert error.ename == "AssertionError" and "assert False, 'mine'" in text
    assert "in Fails.after_loss, epoch 0, training batch 1" in text
    assert "failed in epoch 0" in outputs[0].data["text/plain"]
    kernel.run("learn.fit(1)")


SWEEP = {
    "learn.lr_find()": 1,
    "lr = learn.lr_find().lr": 1,
    "found = learn.lr_find()\nfound": 1,
    "found = learn.lr_find(show_plot=False)": 0,
    "found = learn.lr_find(show_plot=False)\nfound": 1,
    "fig = learn.lr_find(show_plot=False).fig": 0,
}


@pytest.mark.parametrize("source", SWEEP)
def test_the_figure_of_a_sweep_is_shown_once(kernel, source):
    kernel.run("learn = line_learner(opt_func=torch.optim.Adam)")
    outputs = kernel.run(source)
    assert images(outputs) == SWEEP[source]
    assert all(output.output_type != "stream" for output in outputs)
    assert all("text/plain" in output.data and "<" not in output.data["text/plain"][:1] for output in outputs)


def test_a_result_shows_its_figure_again_in_another_cell(kernel):
    kernel.run("learn = line_learner(opt_func=torch.optim.Adam)\nfound = learn.lr_find()")
    assert images(kernel.run("found")) == 1 and images(kernel.run("found.plot()")) == 1 and images(kernel.run("learn.recorder.plot()")) == 1


@pytest.mark.parametrize("call", ["plot_losses()", "plot_lr()", "plot_lr(show_moms=True)", "plot_metrics()", "plot_loss()", "plot_sched()"])
def test_each_plot_is_shown_once(kernel, call):
    kernel.run(
        "learn = line_learner(5, metrics=AvgMetric(lambda p, y: p.mean(), name='m'), opt_func=torch.optim.Adam)\nlearn.fit_one_cycle(3)"
    )
    assert images(kernel.run(f"learn.recorder.{call}")) == 1 and images(kernel.run(f"x = learn.recorder.{call};")) == 1


CELL = """
class Double(Callback):
    def __init__(self, factor=1): self.factor = factor
    def after_loss(self):
        if self.learn.training: self.learn.loss_grad = {factor} * self.factor * self.loss_grad

def distance(pred, y): return {scale} * (pred - y).abs().mean()
"""


def test_cells_may_be_edited_and_run_again(kernel):
    kernel.run("learn = line_learner()")
    for factor, gained in ((2, 1.28), (1, 0.72), (3, 1.68)):
        kernel.run(CELL.format(factor=factor, scale=factor))
        for _ in range(2):
            kernel.run("learn.add_cb(Double(factor=1)); learn.metrics = distance")
        kernel.run("learn.model.load_state_dict(Line().state_dict()); learn.fit(1)")
        assert kernel.value("[type(cb).__name__ for cb in learn.cbs]") == ["TrainEvalCallback", "Recorder", "Double"]
        assert kernel.value("learn.model.a.item(), type(learn.double) is Double") == (pytest.approx(gained), True)
        a, b = kernel.value("learn.model.a.item(), learn.model.b.item()")
        expected = factor * (abs((3 - b) + (2 - a)) + abs((3 - b) - (2 - a))) / 2
        assert kernel.value("learn.recorder.values[-1][-1]") == pytest.approx(expected)
    kernel.run(CELL.format(factor=5, scale=5))
    kernel.run("learn.remove_cb(Double)")
    assert kernel.value("len(learn.cbs)") == 2


def test_the_same_cell_three_times(kernel):
    kernel.run("learn = line_learner()")
    for _ in range(3):
        kernel.run(
            "class Tally(Callback):\n    def __init__(self): self.n = 0\n    def after_step(self): self.n += 1\nlearn.add_cb(Tally())\nlearn.fit(1)"
        )
    assert kernel.value("sum(type(cb).__name__ == 'Tally' for cb in learn.cbs), learn.tally.n") == (1, 2)


def test_the_shadow_warning_shows_the_line(kernel):
    outputs = kernel.run(
        "class Hides(Callback):\n    def after_batch(self):\n        self.loss = 0  # mine\nlearn = line_learner()\nlearn.fit(3, cbs=Hides)"
    )
    text = "".join(output.text for output in outputs if output.get("name") == "stderr")
    assert text.count("You are shadowing an attribute (loss)") == 1 and "self.loss = 0  # mine" in text


@pytest.mark.parametrize("fit", ["learn.fit(400)", "learn.dls = DataLoaders(line_batches(1)*6_000, device='cpu'); learn.fit(1, lr=1e-6)"])
def test_updates_are_bounded(kernel, fit):
    """At most five a second, however short epochs and batches are, and none of them large."""
    kernel.run("learn = line_learner(progress=True)")
    client = kernel.client
    kernel.drain()
    begun = time.perf_counter()
    sent = client.execute(fit)
    messages = []
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == sent:
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
    client.get_shell_msg(timeout=60)
    seconds = time.perf_counter() - begun
    shown = of_the_fit(messages)
    assert 1 <= len(shown) <= 5 * seconds + 3, f"{len(shown)} updates in {seconds:.1f} s"
    assert shown[0]["msg_type"] == "display_data" and all(m["msg_type"] == "update_display_data" for m in shown[1:])


def test_no_figures_are_left_open(kernel):
    assert kernel.value("len(sys.modules['matplotlib.pyplot'].get_fignums()) if 'matplotlib.pyplot' in sys.modules else 0") == 0


def test_a_figure_that_is_returned_is_shown_as_a_picture(kernel):
    outputs = kernel.run("learn = line_learner()\nwith learn.no_logging(): learn.fit(1)\nlearn.recorder.plot_losses(return_fig=True)")
    assert [("image/png" in output.data) for output in outputs if output.output_type == "execute_result"] == [True]
