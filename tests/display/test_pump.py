"""Clicks that act while a cell runs, in real kernels of several versions of ipykernel."""

import subprocess
import sys
import time

import pytest
from jupyter_client.manager import start_new_kernel

import kernels

SETUP = """
import threading, time
import ipywidgets
from cbnb.display.pump import Pump

def until(what, seconds=10):
    "Work, and pump, until something has come about"
    end = time.time() + seconds
    while not what() and time.time() < end:
        handled.append(pump())
        time.sleep(0.01)
    assert what(), 'nothing happened'

handled, clicks, where = [], [], []
def clicked(_):
    clicks.append(1)
    where.append(threading.current_thread())

button = ipywidgets.Button()
button.on_click(clicked)
pump = Pump()
print(button.comm.comm_id)
"""


class Kernel:
    """A kernel and its client; all that it sent is in `sent`."""

    def __init__(self, version: str):
        self.version = tuple(int(part) for part in version.split(".")[:2])
        self.manager, self.client = start_new_kernel(startup_timeout=60, stderr=subprocess.DEVNULL)
        self.sent, self.replies, self.order = [], {}, []

    def send(self, kind: str, content: dict, subshell: str | None = None, metadata: dict | None = None) -> str:
        message = self.client.session.msg(kind, content, metadata=metadata)
        if subshell:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def start(self, code: str, subshell: str | None = None) -> str:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "stop_on_error": True}
        return self.send("execute_request", content, subshell)

    def listen(self, done, seconds: float = 20) -> None:
        """Take in what comes, until `done()`."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, [m["content"] for m in self.sent[-12:]]
            if self.client.iopub_channel.msg_ready():
                self.sent.append(self.client.get_iopub_msg(timeout=1))
            elif self.client.shell_channel.msg_ready():
                reply = self.client.get_shell_msg(timeout=1)
                self.order.append(reply["parent_header"]["msg_id"])
                self.replies[self.order[-1]] = reply["content"]
            else:
                time.sleep(0.005)

    def wait(self, *messages: str) -> list[str]:
        """The replies' status, once they are there and the kernel has said that it is idle."""
        self.listen(lambda: all(m in self.replies and "idle" in self.states(m) for m in messages))
        return [self.replies[m]["status"] for m in messages]

    def run(self, code: str, subshell: str | None = None) -> str:
        sent = self.start(code, subshell)
        assert self.wait(sent) == ["ok"], "\n".join(self.replies[sent]["traceback"])
        return self.text(sent)

    def of(self, parent: str, kind: str) -> list[dict]:
        return [m["content"] for m in self.sent if m["parent_header"].get("msg_id") == parent and m["msg_type"] == kind]

    def states(self, parent: str) -> list[str]:
        return [content["execution_state"] for content in self.of(parent, "status")]

    def text(self, parent: str) -> str:
        return "".join(content["text"] for content in self.of(parent, "stream") if content["name"] == "stdout")

    def until_printed(self, parent: str, text: str = "ready") -> None:
        self.listen(lambda: text in self.text(parent))

    def click(self, subshell: str | None = None) -> str:
        content = {"comm_id": self.button, "data": {"method": "custom", "content": {"event": "click"}}}
        return self.send("comm_msg", content, subshell)

    def subshell(self) -> str:
        """The name of a new one."""
        message = self.client.session.msg("create_subshell_request")
        self.client.control_channel.send(message)
        reply = self.client.get_control_msg(timeout=10)
        return reply["content"]["subshell_id"]


@pytest.fixture(scope="module", params=kernels.kernel_params())
def shared(request):
    with kernels.kernels_of(request.param):
        kernel = Kernel(request.param)
        try:
            assert kernel.run("import ipykernel; print(ipykernel.__version__)").strip() == request.param
            kernel.button = kernel.run(SETUP).strip()
            yield kernel
        finally:
            kernel.client.stop_channels()
            kernel.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(shared):
    shared.run("pump.close(); clicks.clear(); handled.clear(); where.clear(); order = []")
    shared.sent.clear()
    return shared


WAITS = "pump = Pump(button)\nprint('ready', bool(pump), flush=True)\n"


def test_a_click_acts_while_the_cell_runs(kernel):
    cell = kernel.start(WAITS + "until(lambda: clicks)\nprint(len(clicks), sum(handled))\nprint(where == [threading.main_thread()])")
    kernel.until_printed(cell)
    click = kernel.click()
    assert kernel.wait(cell) == ["ok"]
    assert kernel.text(cell) == "ready True\n1 1\nTrue\n"
    assert kernel.states(click) == ["busy", "idle"]
    ends = [m["parent_header"]["msg_id"] for m in kernel.sent if m["content"].get("execution_state") == "idle"]
    assert ends == [click, cell] and kernel.states(cell) == ["busy", "busy", "idle"]  # in between the page is told that the cell still runs


def test_without_a_pump_it_does_not(kernel):
    cell = kernel.start("print('ready', flush=True); time.sleep(0.4); print(len(clicks))")
    kernel.until_printed(cell)
    click = kernel.click()
    kernel.wait(cell)
    assert kernel.text(cell) == "ready\n0\n"
    kernel.listen(lambda: "idle" in kernel.states(click))
    assert kernel.run("print(len(clicks))") == "1\n"


def test_the_queue_keeps_its_order(kernel):
    first = kernel.start(WAITS + "until(lambda: clicks)\norder.append(1)")
    kernel.until_printed(first)
    second = kernel.start("order.append(2)\nimport decimal; decimal.getcontext().prec = 7")
    third = kernel.start("order.append(3)")
    complete = kernel.send("complete_request", {"code": "order.app", "cursor_pos": 9})
    time.sleep(0.2)
    fourth = kernel.start("order.append(4); print(order, decimal.getcontext().prec)")
    kernel.click()
    assert kernel.wait(first, second, third, complete, fourth) == ["ok"] * 5
    assert kernel.order[-5:] == [first, second, third, complete, fourth]
    if kernel.version != (7, 0):  # there each cell has its own context, with and without a pump
        assert kernel.text(fourth) == "[1, 2, 3, 4] 7\n"


def test_an_error_aborts_the_queue(kernel):
    first = kernel.start(WAITS + "until(lambda: clicks)\n1/0")
    kernel.until_printed(first)
    second, third = kernel.start("order.append(2)"), kernel.start("order.append(3)")
    time.sleep(0.2)
    kernel.click()
    assert kernel.wait(first, second, third) == ["error", "aborted", "aborted"]
    assert kernel.run("print(order)") == "[]\n"


def test_ctrl_c_while_pumping(kernel):
    cell = kernel.start(WAITS + "until(lambda: False)")
    kernel.until_printed(cell)
    kernel.manager.interrupt_kernel()
    assert kernel.wait(cell) == ["error"] and kernel.replies[cell]["ename"] == "KeyboardInterrupt"
    assert kernel.run("print(1)") == "1\n"


def test_ctrl_c_in_a_handler_loses_nothing(kernel):
    kernel.run("def slow(_):\n    if len(clicks) == 1: print('slow', flush=True); time.sleep(60)\nbutton.on_click(slow)")
    cell = kernel.start(
        WAITS + "try: until(lambda: len(clicks) == 3)\nexcept KeyboardInterrupt: print('stopped', len(clicks))\nprint('after', flush=True)"
    )
    kernel.until_printed(cell)
    click = kernel.click()
    kernel.until_printed(click, "slow")
    clicks = [kernel.click(), kernel.click()]
    queued = kernel.start("order.append(2)")
    time.sleep(0.3)
    kernel.manager.interrupt_kernel()
    assert kernel.wait(cell, queued) == ["ok", "ok"]
    assert kernel.text(cell) == "ready True\nstopped 1\nafter\n"  # the output is the cell's again
    kernel.listen(lambda: all("idle" in kernel.states(c) for c in clicks))
    assert kernel.run("button.on_click(slow, remove=True); print(len(clicks), order)") == "3 [2]\n"


def test_ctrl_c_while_a_message_is_read_does_not_lose_it(kernel):
    """A cell that waits still runs."""
    code = """
import signal
session = get_ipython().kernel.session
feed = session.feed_identities
def interrupted(*args, **how):
    if threading.current_thread() is threading.main_thread():
        session.feed_identities = feed
        signal.raise_signal(signal.SIGINT)
    return feed(*args, **how)
"""
    kernel.run(code)
    cell = kernel.start(
        WAITS + "session.feed_identities = interrupted\ntry: until(lambda: False)\nexcept KeyboardInterrupt: print('stopped')"
    )
    kernel.until_printed(cell)
    queued = kernel.start("order.append(2); print(order)")
    assert kernel.wait(cell, queued) == ["ok", "ok"]
    assert kernel.text(cell) == "ready True\nstopped\n" and kernel.text(queued) == "[2]\n"


def test_output_goes_to_its_cell(kernel):
    kernel.run("def says(_): print('click')\nbutton.on_click(says)")
    code = "print('before')\nuntil(lambda: clicks)\nprint('after')\ndisplay('shown')\nbutton.on_click(says, remove=True)"
    cell = kernel.start(WAITS + code)
    kernel.until_printed(cell)
    click = kernel.click()
    kernel.wait(cell)
    assert kernel.text(cell) == "ready True\nbefore\nafter\n" and kernel.text(click) == "click\n"
    assert [content["data"]["text/plain"] for content in kernel.of(cell, "display_data")] == ["'shown'"]


def test_a_figure_that_the_cell_draws_is_left_alone(kernel):
    code = "%matplotlib inline\nimport matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(1, 1))\n"
    cell = kernel.start(code + WAITS + "until(lambda: clicks)\nprint(plt.get_fignums())")
    kernel.until_printed(cell)
    click = kernel.click()
    kernel.wait(cell)
    assert kernel.text(cell) == "ready True\n[1]\n"
    assert len(kernel.of(cell, "display_data")) == 1 and kernel.of(click, "display_data") == []


def test_an_error_in_a_handler_stops_nothing(kernel):
    kernel.run("def fails(*_): 1/0\nbutton.on_click(fails)")
    kernel.run("handlers = get_ipython().kernel.shell_handlers\nclose, handlers['comm_close'] = handlers['comm_close'], fails")
    cell = kernel.start(WAITS + "until(lambda: len(clicks) == 2)\nprint(sum(handled))\nhandlers['comm_close'] = close")
    kernel.until_printed(cell)
    kernel.click()
    kernel.send("comm_close", {"comm_id": "x", "data": {}})  # what the kernel itself does with it fails
    kernel.click()
    assert kernel.wait(cell) == ["ok"] and kernel.text(cell) == "ready True\n3\n"
    kernel.run("button.on_click(fails, remove=True)")


def test_a_handler_may_pump_too(kernel):
    nested = "def nested(_):\n    seen.append(len(clicks))\n    if len(seen) == 1: until(lambda: len(clicks) == 3)\n"
    kernel.run("seen = []\n" + nested + "button.on_click(nested)")
    cell = kernel.start(WAITS + "until(lambda: len(clicks) == 3)\nprint(seen, len(clicks))\nbutton.on_click(nested, remove=True)")
    kernel.until_printed(cell)
    clicks = [kernel.click() for _ in range(3)]
    queued = kernel.start("order.append(2); print(order)")
    assert kernel.wait(cell, queued) == ["ok", "ok"]
    assert kernel.text(cell) == "ready True\n[1, 2, 3] 3\n" and kernel.text(queued) == "[2]\n"
    assert all(kernel.states(c)[-1] == "idle" for c in clicks)


def test_a_page_that_is_opened_again(kernel):
    """It asks for the state of all widgets, and gets it before the cell has ended."""
    cell = kernel.start(WAITS + "until(lambda: clicks)")
    kernel.until_printed(cell)
    opened = {"comm_id": "again", "target_name": "jupyter.widget.control", "data": {}}
    kernel.send("comm_open", opened, metadata={"version": "1.0.0"})
    ask = kernel.send("comm_msg", {"comm_id": "again", "data": {"method": "request_states"}})
    kernel.listen(lambda: kernel.of(ask, "comm_msg"))
    answer = kernel.of(ask, "comm_msg")[0]
    assert answer["data"]["method"] == "update_states" and kernel.button in answer["data"]["states"]
    assert "idle" not in kernel.states(cell)
    kernel.click()
    assert kernel.wait(cell) == ["ok"]


def test_it_is_false_where_it_cannot_work(kernel):
    code = """
from cbnb.basics.text import shell
found = []
pump = Pump(button)
def look(): found.extend([bool(Pump(button)), bool(pump), pump()])
thread = threading.Thread(target=look); thread.start(); thread.join()
print(found, bool(pump))
pump.close()
print(bool(pump), pump(), '_reply_subshell_for' in vars(button.comm))
type(shell().kernel)._publish_status = property()   # as if there were none
print(bool(Pump(button)))
del type(shell().kernel)._publish_status
print(bool(Pump(button)), '_reply_subshell_for' in vars(button.comm))
"""
    assert kernel.run(code) == "[False, False, 0] True\nFalse 0 False\nFalse\nTrue False\n"


def test_one_that_is_not_used_leaves_the_queue_alone(kernel):
    cell = kernel.start("print('ready', flush=True); time.sleep(0.3); pump = Pump(button); print(bool(pump))")
    kernel.until_printed(cell)
    queued = kernel.start("order.append(2); print(order)")
    assert kernel.wait(cell, queued) == ["ok", "ok"] and kernel.text(queued) == "[2]\n"


def test_in_a_subshell(kernel):
    """There a button's handler runs, and a training that it starts."""
    if kernel.version < (7, 0):
        pytest.skip("ipykernel 6 has none")
    name = kernel.subshell()
    cell = kernel.start(WAITS + "until(lambda: clicks)\nprint(len(clicks), where == [threading.current_thread()])\npump.close()", name)
    kernel.until_printed(cell)
    queued = kernel.start("order.append(1)", name)
    assert kernel.run("print(bool(Pump()), where)") == "True []\n"  # the main thread is free meanwhile
    kernel.click(name if kernel.version < (7, 4) else None)
    assert kernel.wait(cell, queued) == ["ok", "ok"]
    assert kernel.text(cell) == "ready True\n1 True\n"
    assert kernel.run("print(order)") == "[1]\n"


def test_a_click_comes_to_the_thread_that_pumps(kernel):
    """Although another thread wrote to the button last."""
    if kernel.version < (7, 4):
        pytest.skip("the page says where it goes")
    name = kernel.subshell()
    kernel.run("button.description = 'written in a subshell'", name)
    cell = kernel.start(WAITS + "until(lambda: clicks)\nprint(where == [threading.main_thread()])\npump.close()")
    kernel.until_printed(cell)
    kernel.click(name)
    assert kernel.wait(cell) == ["ok"] and kernel.text(cell) == "ready True\nTrue\n"
    click = kernel.click(name)  # closed: as it was before
    kernel.listen(lambda: "idle" in kernel.states(click))
    assert kernel.run("print(where[1] is threading.main_thread())") == "False\n"


ROUTED = """
a, b, c, d, e = (ipywidgets.Button() for _ in range(5))
box = ipywidgets.HBox([a, ipywidgets.VBox([b])])
e.close()   # it has no comm any more
def routed(): print(*('_reply_subshell_for' in vars(w.comm) for w in (box, a, b, c, d)))
def answer(w): print(w.comm._reply_subshell_for({}, 'default'))
"""


def test_which_widgets_are_routed(kernel):
    """Those in lists and in boxes, too; as long as one pump wants it."""
    if kernel.version < (7, 4):
        pytest.skip("the page says where it goes")
    kernel.run(ROUTED)
    assert kernel.run("pump = Pump([box, e], None, (c,)); routed(); answer(b)") == "True True True True False\nNone\n"
    assert kernel.run("pump.route(d); routed(); pump.route([[]])") == "True True True True True\n"
    name = kernel.subshell()
    assert kernel.run("other = Pump([c, [a]]); routed(); answer(c)", name) == f"True True True True True\n{name}\n"
    assert kernel.run("answer(c); answer(b)") == f"{name}\nNone\n"  # the latest decides
    assert kernel.run("pump.close(); routed(); answer(c); answer(a); pump.close()") == f"False True False True False\n{name}\n{name}\n"
    assert kernel.run("other.close(); routed(); other.route(c); routed()", name) == "False False False False False\n" * 2
    assert kernel.run("with Pump(a, c) as pump: print(bool(pump)); routed()\nprint(bool(pump)); routed()") == (
        "True\nFalse True False True False\nFalse\nFalse False False False False\n"
    )
    assert kernel.run("import gc; pump = Pump(a); routed(); del pump; gc.collect(); routed(); pump = Pump()").split() == [
        "False",
        "True",
        *["False"] * 8,
    ]


def test_who_hears_of_executions(kernel):
    """A click is none; what a handler registers meanwhile stays, after what was there."""
    code = """
told, events = [], get_ipython().events
def late(*_): told.append('late')
def early(*_): told.append('early')
def register(_): events.register('post_execute', late)
events.register('post_execute', early)
events.register('pre_execute', early)
button.on_click(register)
"""
    kernel.run(code)
    assert kernel.run("print(told.count('early')); told.clear()") == "2\n"  # after the cell before, and before this one
    cell = kernel.start(WAITS + "told.clear()\nuntil(lambda: clicks)\nprint(told)")
    kernel.until_printed(cell)
    kernel.click()
    kernel.wait(cell)
    assert kernel.text(cell) == "ready True\n['late']\n"
    assert kernel.run("print(told)") == "['late', 'early', 'late', 'early']\n"
    code = "for name, f in (('post_execute', late), ('post_execute', early), ('pre_execute', early)): events.unregister(name, f)"
    kernel.run(code + "\nbutton.on_click(register, remove=True)")


def test_what_was_handled_is_counted(kernel):
    cell = kernel.start("pump = Pump(button)\nprint('ready', pump(), flush=True)\ntime.sleep(0.6)\nprint(pump(), pump(), len(clicks))")
    kernel.until_printed(cell)
    kernel.click(), kernel.click(), kernel.start("order.append(1)"), kernel.click()
    kernel.wait(cell)
    assert kernel.text(cell) == "ready 0\n3 0 3\n"


def test_an_error_in_the_kernels_own_handling_is_logged(kernel):
    code = """
logged, handlers = [], get_ipython().kernel.shell_handlers
log, get_ipython().kernel.log.error = get_ipython().kernel.log.error, lambda *args, **how: logged.append((args, how))
def fails(*_): 1/0
close, handlers['comm_close'] = handlers['comm_close'], fails
"""
    kernel.run(code)
    cell = kernel.start(WAITS + "until(lambda: sum(handled))\nprint(logged)")
    kernel.until_printed(cell)
    kernel.send("comm_close", {"comm_id": "x", "data": {}})
    kernel.wait(cell)
    assert kernel.text(cell) == "ready True\n[(('a %s was not handled', 'comm_close'), {'exc_info': True})]\n"
    kernel.run("handlers['comm_close'] = close; get_ipython().kernel.log.error = log")


def test_output_of_a_click_is_flushed_before_the_cell_goes_on(kernel):
    """Also that of the cell before the click, and without a stream."""
    kernel.run("def says(_): print('click', end='')\nbutton.on_click(says)")
    cell = kernel.start(WAITS + "print('a', end='')\nuntil(lambda: clicks)\nprint('b', end='')\nbutton.on_click(says, remove=True)")
    kernel.until_printed(cell)
    click = kernel.click()
    kernel.wait(cell)
    assert kernel.text(cell) == "ready True\nab" and kernel.text(click) == "click"
    code = "import sys\nerr, sys.stderr = sys.stderr, None\n"
    cell = kernel.start(code + WAITS + "until(lambda: clicks[1:])\nsys.stderr = err\nprint(len(clicks))")
    kernel.until_printed(cell)
    kernel.click()
    assert kernel.wait(cell) == ["ok"] and kernel.text(cell) == "ready True\n2\n"


def test_in_a_script():
    code = "from cbnb.display.pump import Pump\nwith Pump() as pump: print(bool(pump), pump())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False 0\n"
