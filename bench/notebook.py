"""What the live display costs in a real Jupyter kernel: CPU time, messages, bytes, size of the saved notebook, and how soon Stop ends the cell.

    python bench/notebook.py                 about three minutes
    python bench/notebook.py --rounds 5      less exact

The benchmark trains a small model (64-32-10, batches of 32 digits) alternately with a plain loop and with a Learner that has its
default callbacks, in one kernel. The CPU time is the time of the whole kernel, including the threads that send messages.
`widgets` is the dashboard in a page that draws the live chart and already has the code of the charts. `html` is the dashboard in a
page that shows widgets but does not have anywidget. `plain` is the display for front ends without widgets. `html` has no limits.
"""

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path

from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
SETUP = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "bench")!r}]
import torch
torch.set_num_threads(1)
import cbnb
import loop_overhead
from cbnb.display.dashboard import Dashboard
from cbnb.display.front_end import set_display
Dashboard.wait_for_page = float('inf')          # there is no page, but act as if there were one
task = loop_overhead.digits()

def ours(epochs):
    dls = cbnb.DataLoaders(task.train, task.valid, device='cpu')
    learn = cbnb.Learner(dls, task.model(), task.loss_func, torch.optim.Adam, lr=1e-3)
    learn.fit(epochs)

def cost(train, epochs):
    cpu, wall = time.process_time(), time.perf_counter()
    train(epochs)
    return time.process_time() - cpu, time.perf_counter() - wall

def bare(epochs): loop_overhead.bare(task, epochs)
for warm_up in (bare, ours): warm_up(2)
"""
LIMITS = dict(cpu=1.06, updates=5, messages=60, bytes=60_000, panel=40_000, update=1_000, saved=30_000, stop=1)


DISPLAYS = dict(widgets="widgets", html="widgets", plain="plain")


class Kernel:
    """Run code and collect the messages that the kernel sends. With `draws`, act as a page that draws live charts."""

    def __init__(self, draws: bool = False):
        self.draws = draws
        self.manager, self.client = start_new_kernel(kernel_name="python3", extra_arguments=["--IPKernelApp.log_level=ERROR"])

    def run(self, code: str) -> tuple[str, list[dict]]:
        """The text printed, and the messages in which something is shown or changed."""
        request, printed, shown = self.client.execute(code), "", []
        while True:
            message = self.client.get_iopub_msg(timeout=600)
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle" and message["parent_header"].get("msg_id") == request:
                return printed, shown
            if kind == "error":
                sys.exit("\n".join(content["traceback"]))
            if kind == "stream":
                printed += content["text"]
            if kind in ("display_data", "update_display_data", "comm_open", "comm_msg", "comm_close"):
                shown.append(message)
            if kind == "comm_open" and "_esm" in content["data"]["state"] and self.draws:
                self.send(content["comm_id"], {"type": "here"})

    def send(self, comm_id: str, content: dict) -> None:
        """Send a message to a widget, as a page does."""
        message = {"comm_id": comm_id, "data": {"method": "custom", "content": content}}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", message))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def size(message: dict) -> int:
    return len(json.dumps(message["content"])) + sum(len(buffer) for buffer in message.get("buffers", ()))


def is_update(message: dict) -> bool:
    """Return whether a message updates the live chart, or the curve as HTML."""
    data = message["content"].get("data", {})
    return message["msg_type"] == "comm_msg" and ("beside" in data.get("content", {}) or "preserveAspectRatio" in json.dumps(data))


def costs(kernel: Kernel, mode: str, epochs: int) -> dict:
    """Train with the plain loop and with a Learner, in both orders, and return the costs: CPU time, messages and bytes."""
    kernel.draws = mode == "widgets"
    ours = f"set_display({DISPLAYS[mode]!r}); print('OURS', *cost(ours, {epochs}))"
    bare = f"print('BARE', *cost(bare, {epochs}))"
    seen = {}
    for code in (bare, ours, ours, bare):
        printed, messages = kernel.run(code)
        word, cpu, wall = re.search(r"(OURS|BARE) (\S+) (\S+)", printed).groups()
        seen.setdefault(word, []).append((float(cpu), float(wall)))
        if word == "OURS":
            sent = messages
    cpu = {word: sum(c for c, _ in values) / 2 for word, values in seen.items()}
    wall = seen["OURS"][-1][1]
    updates = [m for m in sent if (m["msg_type"] == "update_display_data" if mode == "plain" else is_update(m))]
    return dict(
        ratio=cpu["OURS"] / cpu["BARE"],
        wall=wall,
        rate=len(updates) / wall,
        messages=len(sent),
        bytes=sum(map(size, sent)),
        panel=sum(map(size, sent)) - LIMITS["update"] * len(updates),
        update=max(map(size, updates), default=0),
        page=max(len(json.dumps(m["content"]["data"])) for m in sent if m["msg_type"] == "update_display_data"),
        opening=sum(size(m) for m in sent if m["msg_type"] == "comm_open"),
    )


def seconds_to_stop(kernel: Kernel) -> float:
    """Return the seconds from a click on Stop, as a page sends it, to the end of the cell."""
    request, stop, updates, clicked = kernel.client.execute("set_display('widgets'); ours(10**6)"), None, 0, 0.0
    while True:
        message = kernel.client.get_iopub_msg(timeout=600)
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle" and message["parent_header"].get("msg_id") == request:
            return time.perf_counter() - clicked
        if kind in ("comm_open", "comm_msg") and "cbnb-stop" in content["data"].get("state", {}).get("_dom_classes", ()):
            stop = content["comm_id"]
        updates += is_update(message)
        if stop and updates == 3:
            kernel.send(stop, {"event": "click"})
            stop, clicked = None, time.perf_counter()


def saved_size(mode: str, epochs: int) -> int:
    """Return the bytes that a fit adds to the saved notebook."""
    cells = [new_code_cell(SETUP), new_code_cell(f"set_display({DISPLAYS[mode]!r}); ours({epochs})")]
    nb = NotebookClient(new_notebook(cells=cells), timeout=600, store_widget_state=False).execute()
    return len(json.dumps(nb.cells[1].outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="how often each is trained twice")
    parser.add_argument("--epochs", type=int, default=90, help="of 45 batches each (default: 90, some 4,000 steps)")
    args = parser.parse_args()
    kernel = Kernel()
    try:
        kernel.run(SETUP)
        for mode in DISPLAYS:
            rounds = [costs(kernel, mode, args.epochs) for _ in range(args.rounds)]
            ratios = [r["ratio"] for r in rounds]
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            worst = {key: max(r[key] for r in rounds) for key in ("rate", "messages", "bytes", "panel", "update", "opening", "page")}
            print(f"\n{mode}: {args.epochs * 45:,} steps in {rounds[-1]['wall']:.1f} s")
            print(f"  CPU time        {middle:.3f} x the loop by hand (half of the rounds: {low:.3f} to {high:.3f}; limit {LIMITS['cpu']})")
            print(f"  updates         {worst['rate']:.1f} a second (limit {LIMITS['updates']})")
            limits = f" (limits {LIMITS['messages']} and {LIMITS['bytes'] / 1000:.0f} kB)" if mode == "plain" else ""
            print(f"  messages        {worst['messages']}, {worst['bytes'] / 1000:.1f} kB{limits}")
            if mode != "plain":
                limits = f" (limits {LIMITS['panel'] / 1000:.0f} kB and {LIMITS['update']} bytes)" if mode == "widgets" else ""
                print(
                    f"  but updates     {worst['panel'] / 1000:.1f} kB, without 1 kB for each update; an update {worst['update']} bytes{limits}"
                )
                print(f"  panel and chart {worst['opening'] / 1000:.1f} kB to open them")
            without = saved_size(mode, args.epochs) / 1000
            print(
                f"  saved notebook  {worst['page'] / 1000:.1f} kB, {without:.1f} kB if run without a page (limit {LIMITS['saved'] / 1000:.0f} kB)"
            )
        took = sorted(seconds_to_stop(kernel) for _ in range(args.rounds))
        print(
            f"\nStop: {statistics.median(took):.2f} s from the click to the end of the cell, {took[-1]:.2f} s at most (limit {LIMITS['stop']} s)"
        )
    finally:
        kernel.close()


if __name__ == "__main__":
    main()
