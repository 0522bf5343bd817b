"""The live display in a real kernel, seen from where its messages arrive."""

import json
import re
import time
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat.v4 import new_code_cell, new_notebook

import notebooks
from kernels import of_the_fit

HERE = Path(__file__).resolve().parents[1]
SETUP = f"""
import sys, time
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE)!r}]
import torch
from cbnb.all import *
from cbnb.display.dashboard import Dashboard
from helpers import line_batches, line_learner

Dashboard.wait_for_page = float('inf')    # a page may be slow to answer
Dashboard.curve_every = 0.2

class Slow(Callback):
    "Makes batches last longer"
    def __init__(self, seconds): self.seconds = seconds
    def after_step(self): time.sleep(self.seconds)

def digits_learner(n=400, **kwargs):
    torch.manual_seed(0)
    x = torch.randn(32*n, 8)
    batches = list(zip(x.split(32), x.sum(1, keepdim=True).split(32)))
    dls = DataLoaders(batches, batches[:20], device='cpu')
    return Learner(dls, torch.nn.Linear(8, 1), torch.nn.MSELoss(), lr=1e-3, metrics=[mae], **kwargs)

def mae(pred, y): return (pred - y).abs().mean()
"""
SHOWN = ("display_data", "update_display_data", "comm_open", "comm_msg", "comm_close")


class Kernel:
    """Sends code, and sees every message that comes back."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(extra_arguments=["--IPKernelApp.log_level=ERROR"])
        self.widgets: dict[str, dict] = {}  # comm_id -> state

    def run(self, code: str, react=lambda message: None) -> tuple[str, list[dict]]:
        """The printed text, and the messages that show something; `react` sees each as it comes."""
        request, printed, shown = self.client.execute(code), "", []
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle" and message["parent_header"].get("msg_id") == request:
                return printed, shown
            assert kind != "error", "\n".join(content["traceback"])
            if kind == "stream":
                printed += content["text"]
            if kind in SHOWN:
                shown.append(message)
                self.note(kind, content)
                react(message)

    def note(self, kind: str, content: dict) -> None:
        if kind == "comm_open":
            self.widgets[content["comm_id"]] = dict(content["data"]["state"])
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self.widgets.setdefault(content["comm_id"], {}).update(content["data"]["state"])

    def find(self, name: str) -> str:
        """The id of the newest widget with a CSS class."""
        return [key for key, state in self.widgets.items() if name in state.get("_dom_classes", ())][-1]

    def send(self, comm_id: str, **data) -> None:
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        self.client.shell_channel.send(message)

    def set(self, name: str, **state) -> None:
        """What a page sends when somebody moves a control."""
        self.send(self.find(name), method="update", state=state, buffer_paths=[])

    def click(self, name: str) -> None:
        self.send(self.find(name), method="custom", content={"event": "click"})


@pytest.fixture(scope="module")
def kernel():
    with notebooks.clean_kernels():
        kernel = Kernel()
        kernel.run(SETUP + "\nDashboard.keep_first = 1e9  # rows so far have tests of their own")
        try:
            yield kernel
        finally:
            kernel.client.stop_channels()
            kernel.manager.shutdown_kernel(now=True)


def size(message: dict) -> int:
    return len(json.dumps(message["content"]))


def is_curve(message: dict) -> bool:
    return message["msg_type"] == "comm_msg" and "<img" in json.dumps(message["content"])


def reacts(*steps):
    """Calls the steps in turn, one a second curve, so that each is seen to have its effect."""
    waiting, curves = list(steps), []

    def react(message):
        if is_curve(message):
            curves.append(message)
            if len(curves) % 2 == 0 and waiting:
                waiting.pop(0)()

    return react


def test_a_page_can_stop_a_fit(kernel):
    kernel.run("learn = line_learner(4, progress=True)")
    see = lambda: kernel.set("cbnb-dashboard", _view_count=1)
    printed, shown = kernel.run(
        "learn.fit(10**6, cbs=Slow(.002)); print(learn.recorder.last().status)", reacts(see, lambda: kernel.click("cbnb-stop"))
    )
    assert printed == "cancelled\n"
    texts = [m["content"]["data"].get("text/plain", "") for m in shown if m["msg_type"] == "update_display_data"]
    assert len([text for text in texts if re.search(r"stopped in epoch \d+ at batch \d+ after \d\d:\d\d$", text)]) == 1
    printed, _ = kernel.run("learn.fit(1); print(learn.recorder.last().status)")  # and on
    assert printed.endswith("done\n")


def test_a_page_can_scale_the_learning_rate(kernel):
    kernel.run("learn = line_learner(4, progress=True, lr=0.01)")
    steps = [lambda: kernel.set("cbnb-scale", value=0.5), lambda: kernel.click("cbnb-stop")]
    printed, _ = kernel.run("learn.fit(10**6, cbs=Slow(.002)); print(sorted(set(learn.recorder.lrs)))", reacts(*steps))
    assert printed == "[0.005, 0.01]\n"
    printed, _ = kernel.run("learn.fit(1); print(set(learn.recorder.lrs), [type(cb).__name__ for cb in learn.cbs])")
    assert printed.endswith("{0.01} ['TrainEvalCallback', 'Recorder', 'ProgressCallback']\n")


def test_a_page_can_hold_a_fit(kernel):
    kernel.run("learn = line_learner(4, progress=True)")
    held = []

    def hold():
        kernel.set("cbnb-pause", value=True)
        held.append(time.monotonic())

    def react(message):
        state = message["content"].get("data", {})
        text = json.dumps(state)
        if is_curve(message) and not held:
            hold()
        if "paused" in text and len(held) == 1:
            held.append(time.monotonic())
        if len(held) == 2 and "Resume" in json.dumps(kernel.widgets[kernel.find("cbnb-pause")]):
            held.append(time.monotonic())
            kernel.set("cbnb-pause", value=False)
        if is_curve(message) and len(held) == 3:
            held.append(time.monotonic())
            kernel.click("cbnb-stop")

    printed, _ = kernel.run("learn.fit(10**6, cbs=Slow(.002)); print(learn.recorder.last().status)", react)
    assert printed == "cancelled\n" and len(held) == 4


def test_without_a_page_that_shows_widgets_the_display_becomes_plain(kernel):
    kernel.run("Dashboard.wait_for_page = 0.6; learn = line_learner(4, progress=True)")
    _, shown = kernel.run("learn.fit(100, cbs=Slow(.004))")
    kernel.run("Dashboard.wait_for_page = float('inf')")
    updates = [m["content"]["data"] for m in shown if m["msg_type"] == "update_display_data"]
    assert len(updates) > 2 and "batch" in updates[0]["text/html"] and updates[-1]["text/plain"].splitlines()[-1].startswith("done: ")
    assert not any("application/vnd.jupyter.widget-view+json" in data for data in updates)


def test_a_plain_display_is_bounded(kernel):
    _, shown = kernel.run("set_display('plain'); digits_learner(400).fit(10)")
    assert {m["msg_type"] for m in shown} == {"display_data", "update_display_data"}
    assert len(shown) <= 60 and sum(map(size, shown)) <= 60_000
    rates_are_bounded(shown)


def test_a_dashboard_is_bounded(kernel):
    kernel.run("Dashboard.wait_for_chart, wait = 0, Dashboard.wait_for_chart")  # a fit that is over sooner sends no curve
    _, shown = kernel.run("set_display('widgets'); digits_learner(400).fit(10); set_display(None)")
    kernel.run("Dashboard.wait_for_chart = wait")
    curves = [m for m in shown if is_curve(m)]
    assert curves and max(map(size, curves)) <= 6000
    rates_are_bounded(curves)
    outputs = of_the_fit(shown)
    assert [m["msg_type"] for m in outputs] == ["display_data", "update_display_data"]
    assert size(outputs[-1]) < 30_000  # with the code and the data of a chart that answers the mouse


def rates_are_bounded(messages: list[dict]) -> None:
    """At most five a second; the last one may follow at once."""
    sent = [m["header"]["date"].timestamp() for m in messages[:-1]]
    for i, first in enumerate(sent):
        assert sum(first <= later < first + 1 for later in sent[i:]) <= 5


def test_the_display_slows_down_if_it_is_expensive(kernel):
    _, shown = kernel.run("""
set_display('plain')
from cbnb.display.progress import DISPLAYS, NotebookDisplay
class Expensive(NotebookDisplay):
    def progress(self, at): time.sleep(0.02); super().progress(at)
DISPLAYS['plain'] = Expensive
line_learner(4, progress=True).fit(700, cbs=Slow(.002))
DISPLAYS['plain'] = NotebookDisplay; set_display(None)""")
    sent = [m["header"]["date"].timestamp() for m in shown[:-1]]
    gaps = [b - a for a, b in zip(sent[1:], sent[2:])]
    assert gaps[0] >= 1.0 and len(gaps) > 1 and min(gaps[1:]) >= 2.0  # a hundred times its cost; after the first update a second


def test_an_error_and_an_interrupt_end_in_a_true_state(kernel):
    for error, word in (
        ("ValueError", "failed in epoch 1, training batch 2: ValueError"),
        ("KeyboardInterrupt", "stopped in epoch 1 at batch 2 after "),
    ):
        _, shown = kernel.run(f"""
class Fails(Callback):
    def after_step(self):
        if self.train_iter == 6: raise {error}
try: line_learner(4, progress=True).fit(3, cbs=Fails)
except BaseException as e: pass""")
        final = of_the_fit(shown)[-1]["content"]["data"]
        assert (
            final["text/plain"].splitlines()[-1].startswith(word)
            and word in final["text/html"]
            and "cbnb-bar" not in final["text/html"].split("<svg")[0]
        )


def test_text_of_callbacks_stays_in_order_in_one_output(kernel):
    outputs = []
    printed, _ = kernel.run(
        "line_learner(4, progress=True).fit(50, cbs=Callback(after_epoch=lambda self: print('epoch', self.learn.epoch)))",
        lambda message: outputs.extend(m["msg_type"] for m in of_the_fit([message])),
    )
    assert printed.split() == [word for i in range(50) for word in ("epoch", str(i))] and outputs.count("display_data") == 1


def test_names_with_html_are_shown_literally(kernel):
    nasty = "<img src=x onerror=alert(1)>"
    _, shown = kernel.run(f"""
learn = line_learner(4, progress=True, metrics=AvgMetric(lambda p, y: p.mean(), name={nasty!r}))
learn.fit(100, cbs=Slow(.002))""")
    text = "".join(json.dumps(m["content"]) for m in shown if "display" in m["msg_type"] or m["msg_type"].startswith("comm"))
    pages = re.sub(r'"text/plain": "(?:[^"\\]|\\.)*"', "", text)
    assert "&lt;img" in pages and "<img" not in pages.replace('<img class=\\"cbnb-still\\"', "")  # but for the picture of the losses


def headless(*sources: str):
    with notebooks.clean_kernels():
        nb = new_notebook(cells=[new_code_cell(source) for source in (SETUP, *sources)])
        return NotebookClient(nb, timeout=60, kernel_name="python3", store_widget_state=False).execute()


def test_a_headless_run_shows_everything():
    nb = headless("learn = digits_learner(40)\nr = learn.lr_find()", "learn.validate()\nlearn.fit(20)\nlearn.validate()")
    found, fit = nb.cells[1].outputs, nb.cells[2].outputs
    assert [list(o.data) for o in found] == [["image/png", "text/plain"]]
    assert [o.output_type for o in fit] == ["display_data", "execute_result"]  # one bar region; then what validate returned
    for text in (HTMLExporter().from_notebook_node(nb)[0], MarkdownExporter().from_notebook_node(nb)[0], fit[0].data["text/html"]):
        assert "train_loss" in text and "<img" in text and "done: 20 epochs, 800 batches" in text
        assert "Output()" not in text and "vnd.jupyter.widget-view" not in text
    plain = "\n".join(o.get("data", {}).get("text/plain", "") for o in found + fit)
    assert (
        "train_loss" in plain
        and "done: 20 epochs" in plain
        and "loss █" in plain
        and "LRFind" in plain
        and not re.search("<|Output", plain)
    )
    assert "widgets" not in nb.metadata
