"""The panel of a fit, used as a page does; how it looks in a real notebook is in test_live.py and browser/test_dashboard_page.py."""

import json
import random
import re
from types import SimpleNamespace

import pytest

import cbnb.all as cbnb
from cbnb.display import dashboard
from cbnb.display.dashboard import Dashboard, LiveLosses, Panel, status_html, waiting_html
from cbnb.display.page_script import EMPTY
from cbnb.display.progress import Progress, picture_so_far
from cbnb.display.steering import Steering
from helpers import line_learner

VIEW = "application/vnd.jupyter.widget-view+json"


class Hands:
    """Stands in for the pump: what somebody does at a page arrives when the fit asks for it."""

    works, todo, last = True, [], None

    def __init__(self, *widgets):
        Hands.last, self.widgets, self.open = self, widgets, True

    def __bool__(self):
        return self.works and self.open

    def __call__(self):
        if self.todo:
            self.todo.pop(0)()
        return 0

    def route(self, *widgets):
        self.widgets += widgets

    def close(self):
        self.open = False


class Page:
    """All of a notebook: its time, its outputs, and somebody who uses the panel. A batch takes a second."""

    def __init__(self):
        self.now, self.views, self.outputs, self.panels, self.lives = 100.0, 1, [], [], []

    def perf_counter(self):
        return self.now

    def display(self, bundle, *, raw, display_id):
        output = [bundle]
        self.outputs.append(output)
        return SimpleNamespace(update=lambda bundle, *, raw: output.append(bundle))

    def tick(self, cb):
        self.now += 1

    @property
    def panel(self):
        return self.panels[-1]

    @property
    def live(self):
        return self.lives[-1]

    def learner(self, **kwargs):
        return line_learner(4, progress=True, cbs=cbnb.Callback(before_batch=self.tick), **kwargs)


@pytest.fixture
def page(monkeypatch):
    page = Page()

    class Made(Panel):
        def __init__(self, table):
            super().__init__(table)
            self.box._view_count = page.views
            page.panels.append(self)

    monkeypatch.setattr("cbnb.display.progress.time", page)
    monkeypatch.setattr("cbnb.display.dashboard.time", page)
    monkeypatch.setattr("cbnb.display.progress.display_mode", lambda: "widgets")
    monkeypatch.setattr("IPython.display.display", page.display)
    monkeypatch.setattr(dashboard, "Pump", Hands)
    monkeypatch.setattr(Dashboard, "keep_first", 1e9)  # rows so far have tests of their own

    class Live(LiveLosses):
        def __init__(self, run):
            super().__init__(run)
            page.lives.append(self)

    monkeypatch.setattr(dashboard, "Panel", Made)
    monkeypatch.setattr(dashboard, "LiveLosses", Live)
    monkeypatch.setattr(Hands, "works", True)
    monkeypatch.setattr(Hands, "todo", [])
    Dashboard._ended.clear()
    return page


def words(page):
    """Its words, one for each element."""
    return re.findall(r">([^<>]+)<", re.sub(r"<style>.*?</style>", "", page, flags=re.S))


@pytest.mark.parametrize(
    "at, scale, word, expected, widths",
    [
        (
            Progress("fit", 1, 3, 2, 4, share=0.5, left=61.0, rate=1234.6, loss=0.123456, lr=0.01, mom=0.9),
            1.0,
            "",
            ["1 of 3 epochs · 01:01 left", "batch 2 of 4 · 1,235 samples/s", "loss", "0.1235", "lr", "0.01", "momentum", "0.9"],
            [("50", "50.0"), ("50", "50.0")],
        ),
        (
            Progress("fit", 0, 1, 7, None, training=False, share=None, left=0.0, rate=0.0, loss=0.0),
            0.5,
            "paused",
            ["0 of 1 epochs · 00:00 left · paused", "batch 7 · validation", "loss", "0", "planned lr × 0.5"],
            [("0", "0.0"), ("0", "0.0")],
        ),
        (
            Progress("fit", 0, 1, 1, 3, share=1.2),
            1.004,
            "<b>",
            ["0 of 1 epochs · &lt;b&gt;", "batch 1 of 3"],
            [("100", "100.0"), ("33", "33.3")],
        ),
        (Progress("fit", 0, 1, 1, 3), 0.94, "", ["0 of 1 epochs", "batch 1 of 3", "planned lr × 0.94"], [("0", "0.0"), ("33", "33.3")]),
    ],
)
def test_bars_and_numbers(at, scale, word, expected, widths):
    page = status_html(at, scale, word)
    assert words(page) == expected
    assert re.findall(r"aria-valuenow=(\d+) style=--w:([\d.]+)%>", page) == widths
    assert re.findall("role=progressbar aria-label=(\\w+)", page) == ["epochs", "batches"]


def test_by_default_the_rate_is_the_planned_one():
    assert status_html(Progress("fit", 0, 1, 1, 3)) == status_html(Progress("fit", 0, 1, 1, 3), 1.0, "")


def test_a_panel():
    panel = Panel()
    main, table = panel.box.children
    style, curve, status, controls = main.children
    assert dashboard.STYLE == style.value and panel.box._view_count == 0
    assert (status, controls, curve, table) == (panel.status, panel.controls, panel.curve, panel.table)
    assert controls.children == (panel.stop, panel.pause, panel.scale, panel.planned)
    assert [widget.description for widget in controls.children] == ["Stop", "Pause", "lr ×", "lr × 1"]
    assert (panel.scale.value, panel.scale.min, panel.scale.max, panel.scale.base) == (1, -2, 1, 10)  # a hundredth to ten times
    found = {name: getattr(panel, name)._dom_classes for name in "style status stop pause scale planned controls curve main".split()}
    assert found == {name: (f"cbnb-{name}",) for name in found} and table._dom_classes == ("cbnb-table", "cbnb-side")
    assert panel.box._dom_classes == ("cbnb-dashboard", "cbnb-fit", f"cbnb-at-{panel.name}")  # as the page that the fit leaves
    parts = (*controls.children, style, status, controls, curve, table, main)
    assert all(part._trait_values.get(name) is None for part in parts for name in ("layout", "style"))  # each would be a message
    panel.replace_by("<p>done</p>")
    assert [child.value for child in panel.box.children] == ["<p>done</p>"] and panel.box.comm is not None
    assert all(part.comm is None for part in parts)


def test_a_panel_can_vanish():
    panel = Panel()
    parts = [panel.box, *panel.box.children, *panel.main.children, *panel.controls.children]
    panel.close()
    assert all(part.comm is None for part in parts)


def test_a_fit_with_a_panel(page):
    learn = page.learner()
    learn.fit(2)
    panel, (output, _) = page.panel, page.outputs  # the other one is the button that takes the fit back
    view = dict(version_major=2, version_minor=0, model_id=panel.box.model_id)
    assert output[0] == {VIEW: view, "text/plain": "a running fit"} and len(output) == 2
    assert Hands.last.widgets == (panel.box, page.live.chart.widget) and not Hands.last.open
    final = output[1]
    assert final["text/plain"].splitlines()[-1] == "done: 2 epochs, 8 batches in 00:10"
    assert len(final["text/plain"].splitlines()) == 1 + 2 + 3 and "<img" in final["text/html"]  # a row for each epoch; best, losses, end
    (shown,) = panel.box.children  # for a page that is opened again: no script runs there, so the live chart stays
    assert "done: 2 epochs" in shown.value and page.live.chart.name in shown.value and page.live.chart.widget.comm is not None


def test_what_a_panel_shows_meanwhile(page):
    learn, seen, drawn = page.learner(), [], []

    def look(cb):
        panel = page.panel
        seen.append((panel.status.value, panel.curve.value, panel.table.value))
        drawn.append(picture_so_far(learn.recorder.last()))

    cb = cbnb.Callback(after_batch=look)
    cb.order = 100
    learn.fit(2, cbs=cb)
    status, curves, tables = zip(*seen)
    assert [words(page)[:2] for page in status[3:7]] == [
        ["0 of 2 epochs · 00:05 left", "batch 4 of 4 · 8 samples/s"],
        ["0 of 2 epochs · 00:05 left", "batch 1 of 1 · validation"],
        ["1 of 2 epochs · 00:04 left", "batch 1 of 4 · 8 samples/s"],
        ["1 of 2 epochs · 00:03 left", "batch 2 of 4 · 8 samples/s"],
    ]
    assert curves[3] == page.live.chart.slot_html(drawn[3]) and "<img" in drawn[3] and curves[2] == page.live.chart.slot_html("<i></i>")
    assert curves[3] == curves[4] != curves[5]  # the next picture comes two seconds later
    assert {table.count("<tr") for table in tables[:5]} == {1} and tables[5].count("<tr") == 2  # the headings are there from the start
    assert len(set(tables[5:])) == 1  # of the first epoch, until the second has ended


def at_batch(page, step, *acts):
    """Somebody does these things, one after another, at the end of this batch of training."""
    cb = cbnb.Callback(after_batch=lambda self: Hands.todo.extend(acts) if self.learn.train_iter == step and self.learn.training else None)
    cb.order = 0
    return cb


def test_a_click_on_stop(page):
    learn, said = page.learner(), []
    stop = at_batch(page, 2, lambda: page.panel.stop.click(), lambda: None)
    learn.fit(3, cbs=[stop, cbnb.Callback(after_cancel_fit=lambda self: said.append(page.panel.status.value))])
    assert learn.recorder.last().status == "cancelled" and learn.recorder.last().n_steps == 2
    assert words(said[0])[0] == "0 of 3 epochs · 00:11 left · stopping"
    assert "stopped in epoch 0 at batch 1 after 00:02" in page.outputs[0][-1]["text/plain"]
    assert not learn.callbacks.find(Steering)  # it came with the panel, and goes with the fit


def test_a_pause_and_its_end(page, monkeypatch):
    """The panel acts while the fit is held, and says so."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    learn, seen = page.learner(), []

    def look():
        pause = page.panel.pause
        seen.append((learn.steering.paused, pause.value, pause.description, pause.icon, words(page.panel.status.value)[0].split(" · ")[2:]))

    def hold(to):
        page.panel.pause.value = to

    acts = [lambda: hold(True), look, lambda: hold(False)]
    learn.fit(1, cbs=[at_batch(page, 2, *acts), at_batch(page, 3, look)])
    assert seen == [(True, True, "Resume", "play", ["paused"]), (False, False, "Pause", "pause", [])]
    assert learn.recorder.last().status == "done"


def test_a_button_shows_a_pause_that_came_from_elsewhere(page, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    learn, seen = page.learner(), []
    acts = [lambda: learn.steering.pause(), lambda: None, lambda: (seen.append(page.panel.pause.value), learn.steering.resume())]
    learn.fit(1, cbs=[at_batch(page, 2, *acts), at_batch(page, 4, lambda: seen.append(page.panel.pause.value))])
    assert seen == [True, False]


@pytest.mark.parametrize("given", [False, True])
def test_a_slider_scales_the_rate(page, given):
    """A page that shows 1 sends 0.9999999999999994, and the button goes back to the plan."""
    learn, said = page.learner(), []
    cbs = [Steering()] if given else []

    def move(to):
        page.panel.scale.value = to
        said.append(words(page.panel.status.value)[-1])

    acts = [at_batch(page, 2, lambda: move(0.5)), at_batch(page, 3, lambda: page.panel.planned.click())]
    acts += [at_batch(page, 5, lambda: move(2.0)), at_batch(page, 6, lambda: move(1 + 1e-9)), at_batch(page, 7, lambda: move(1.001))]
    learn.fit(2, lr=0.1, cbs=[*cbs, *acts])
    assert learn.recorder.lrs == pytest.approx([0.1, 0.1, 0.05, 0.1, 0.1, 0.2, 0.1, 0.1001])
    assert said[0] == "planned lr × 0.5" and said[1] == "planned lr × 2" and "planned" not in said[2]
    assert "planned lr × 0.5 from step 2, × 1 from step 3" in page.outputs[0][-1]["text/plain"]
    assert not learn.callbacks.find(Steering)


@pytest.mark.parametrize("views, shown_at", [(0, 5), (1, None)])
def test_a_panel_that_no_page_shows_becomes_a_plain_display(page, views, shown_at):
    page.views, learn, gone = views, page.learner(), []
    look = cbnb.Callback(after_batch=lambda self: gone.append(page.panel.box.comm is None))
    look.order = 100
    learn.fit(2, cbs=look)
    first = gone.index(True) if True in gone else None  # more than 5 s after the start
    assert first == shown_at and gone[shown_at or 10 :] == [True] * (10 - (shown_at or 10))
    output, *button = page.outputs
    assert len(button) == bool(views)
    assert (len(output) == 2) == bool(views) and ("text/html" in output[1]) and Hands.last.open is False
    if not views:
        assert len(output) == 1 + 4 + 1  # from then on once a second, and less often the longer it takes


def test_a_page_that_has_seen_the_panel_may_be_closed(page):
    learn = page.learner()
    learn.fit(3, cbs=at_batch(page, 2, lambda: setattr(page.panel.box, "_view_count", 0)))
    assert len(page.outputs[0]) == 2 and VIEW in page.outputs[0][0] and page.panel.box.comm is not None


def test_where_nothing_arrives_there_is_no_panel(page, monkeypatch):
    monkeypatch.setattr(Hands, "works", False)
    learn = page.learner()
    learn.fit(1)
    assert page.panel.box.comm is None and VIEW not in page.outputs[0][0] and len(page.outputs[0]) > 3
    assert page.outputs[0][0]["text/plain"] == "waiting for the first batch" and not learn.callbacks.find(Steering)


@pytest.mark.parametrize("works", [True, False])
def test_a_panel_in_a_place_of_its_own(page, monkeypatch, works):
    """It stays there, without controls where nothing could arrive, and is nobody's output."""
    monkeypatch.setattr(Hands, "works", works)
    page.views, placed, seen = 0, [], []
    learn = page.learner()
    learn.progress.place = placed.append

    def look(cb):
        seen.append(("cbnb-off" in page.panel.controls._dom_classes, page.panel.status.value, cb.learn.callbacks.find(Steering) != []))

    learn.fit(2, cbs=cbnb.Callback(before_train=look))
    assert placed == [page.panel.box] and page.outputs == [] and page.panel.box.comm is not None
    assert seen[0] == (not works, waiting_html(), works)
    assert "done: 2 epochs" in page.panel.box.children[0].children[0].value and not Dashboard._ended
    assert words(seen[1][1])[0].startswith("0 of 2 epochs") and "planned lr" not in seen[1][1]


def test_the_latest_panels_stay_open(page):
    learn = page.learner()
    for _ in range(4):
        learn.fit(1)
    assert [panel.box.comm is not None for panel in page.panels] == [False, True, True, True]
    assert [live.chart.widget.comm is not None for live in page.lives] == [False, True, True, True]


def test_once_the_page_draws_the_chart_no_curve_is_sent(page):
    """Here from the 5th batch on: its buttons stay, and it has all points."""
    learn, curves = page.learner(), []
    here = at_batch(page, 5, lambda: page.live.chart._receive(None, dict(type="here"), []))
    learn.fit(2, cbs=[here, cbnb.Callback(after_batch=lambda cb: curves.append(page.panel.curve.value))])
    assert len(set(curves[6:])) == 1 and len(set(curves)) > 1
    points = page.live.chart.points
    run = learn.recorder.last()
    assert list(points["train, each batch"].ys) == list(run.raw_losses) and list(points["valid"].xs) == [3, 7]
    assert page.live.chart.layout["epochs"] == [(3, 0), (7, 1)] and [e.kind for e in page.live.chart.layout["events"]] == ["best"]


def test_without_anywidget_the_curve_stays(page, monkeypatch):
    monkeypatch.setattr(dashboard, "has_live_charts", lambda: False)
    learn, curves = page.learner(), []
    learn.fit(2, cbs=cbnb.Callback(after_batch=lambda cb: curves.append(page.panel.curve.value)))
    assert page.lives == [] and len(set(curves)) > 3 and "cbnb-slot" not in curves[-1]
    assert "done: 2 epochs" in page.panel.box.children[0].value


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_losses_that_a_step_names_are_in_the_live_chart(page):
    learn = line_learner(4, progress=True, train_step=cbnb.UpdateStep(lambda x, y: dict(loss=41.0, low=1.0, high=40.0)), valid=False)
    learn.add_cb(cbnb.Callback(before_batch=page.tick))
    tables = []
    learn.fit(2, cbs=cbnb.Callback(after_batch=lambda cb: tables.append(page.panel.table.value)))
    assert [live.chart.widget.comm is None for live in page.lives] == [True, False]  # made again when the names were known
    assert list(page.live.sent) == ["train, each batch", "train, smoothed", "low", "high"]
    assert {name: len(points.ys) for name, points in page.live.chart.points.items()} == dict.fromkeys(page.live.sent, 8)
    assert re.findall("<th scope=col>([^<]*)", tables[-1]) == ["epoch", "train_loss", "low", "high", "time"]


def test_losses_that_a_step_names_late_are_there_from_then_on(page):
    """The record has the columns of its first epoch; the page has them all."""
    learn = line_learner(4, progress=True, valid=False)
    learn.train_step = lambda x, y: dict(loss=learn.model(x).sum(), low=2.0, **({"late": 1.0} if learn.epoch else {}))
    learn.add_cb(cbnb.Callback(before_batch=page.tick))
    tables = []
    learn.fit(3, cbs=cbnb.Callback(after_batch=lambda cb: tables.append(page.panel.table.value)))
    assert list(page.live.sent)[2:] == ["low", "late"] and page.live.sent["late"] == 8
    for table in (tables[-1], page.outputs[0][-1]["text/html"]):
        assert re.findall("<th scope=col>([^<]*)", table) == ["epoch", "train_loss", "low", "late", "time"]
    rows = [row.split("<td")[3].partition(">")[2] for row in page.outputs[0][-1]["text/html"].split("<tr>")[2:]]
    assert [row.partition("<")[0] for row in rows] == ["", "1.000000", "1.000000"]


def test_an_update_is_one_message(page):
    """The messages of the live chart contain numbers and new rows. A page that is opened later gets both in the widgets' state."""
    learn, sent, state = page.learner(), [], []
    here = at_batch(page, 2, lambda: page.live.chart._receive(None, dict(type="here"), []))

    def look(cb):
        page.live.chart.widget.send = lambda message, buffers=None: sent.append(message)
        for name in ("status", "table", "curve"):
            getattr(page.panel, name).send_state = lambda name=name, **key: sent.append(name)
        if cb.learn.train_iter == 7 and cb.training:
            state.extend(part.get_state()["value"] for part in (page.panel.status, page.panel.table))

    learn.fit(2, cbs=[here, cbnb.Callback(before_batch=look)])
    late = [message for message in sent if isinstance(message, dict)]
    assert sent[-len(late) :] == late and len(late) > 4 and all("beside" in message for message in late[:-1])
    assert late[-2]["beside"]["at"][:4] == [1, 2, 1, 1] and "1 of 2 epochs" in state[0] and "<th>0<" in state[1]
    tables = [message["beside"]["table"] for message in late[:-1] if "table" in message["beside"]]
    assert [[place for place, _ in table["rows"]] for table in tables] == [[0]]  # each row once


def test_what_a_page_that_is_opened_later_gets(page):
    learn = page.learner()
    learn.fit(1)
    (final,) = page.panel.box.children
    assert final.n_read == 1 and "done: 1 epoch" in final.get_state()["value"]  # no message yet: the output has it


def test_time_and_polls_of_a_panel(page):
    """It hears of a click within a twentieth of a second, and is drawn as often however long a fit takes."""
    learn, seen = page.learner(), []
    learn.fit(
        1,
        cbs=cbnb.Callback(
            after_fit=lambda self: seen.append((self.learn.progress.shown.poll_every, self.learn.progress.shown.patience(100.0)))
        ),
    )
    assert seen == [(0.05, 0.0)]


# --- bytes that are sent, independently of the speed of the machine ---


def n_sent(content) -> int:
    """The bytes of a message as Jupyter writes it."""
    return len(json.dumps(content, default=list, ensure_ascii=False).encode())


class Wire:
    """Count the bytes of all messages of widgets and of all outputs."""

    def __init__(self, page, monkeypatch):
        import comm
        import ipywidgets

        self.opened, self.updates, self.outputs, self.closed, self.page = [], [], [], [], page
        kind = type(ipywidgets.Widget().comm)
        assert issubclass(kind, comm.base_comm.BaseComm)
        monkeypatch.setattr(kind, "publish_msg", lambda comm, *args, **kwargs: self.publish(comm.comm_id, *args, **kwargs))

    def publish(self, comm_id, msg_type, data=None, metadata=None, buffers=None, **keys):
        content = dict(data=data or {}, comm_id=comm_id, **keys)
        n = n_sent(content) + sum(map(len, buffers or ()))
        if msg_type == "comm_msg" and data.get("method") != "echo_update":
            self.updates.append((self.page.now, n))
        elif msg_type != "comm_msg":
            (self.opened if msg_type == "comm_open" else self.closed).append(n)

    def total(self):
        self.outputs = [n_sent(bundle) for output in self.page.outputs for bundle in output]
        return sum(self.opened) + sum(n for _, n in self.updates) + sum(self.outputs) + sum(self.closed)


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("noisy", [False, True])
def test_how_many_bytes_a_long_fit_sends(page, monkeypatch, no_button, draws, noisy):
    """A fit of 4,050 steps in 90 epochs has five updates. If the page draws the live chart, it sends at most 40 kB, and 1 kB an update."""
    monkeypatch.setattr("cbnb.display.progress.runs_scripts", lambda: True)
    monkeypatch.setattr("cbnb.display.chart.runs_scripts", lambda: True)
    monkeypatch.setattr(Page, "tick", lambda self, cb: setattr(self, "now", self.now + 1.4 / (90 * 46)))
    wire, rng = Wire(page, monkeypatch), random.Random(1)
    loss = lambda pred, y: ((pred - y) ** 2).mean() * (rng.lognormvariate(0, 2) if noisy else 1)  # random digits cannot be compressed
    learn = line_learner(45, progress=True, cbs=cbnb.Callback(before_batch=page.tick), lr=1e-5, loss_func=loss)
    seen = []
    here = cbnb.Callback(before_train=lambda cb: seen or (draws and say_here(page), seen.append(1)))
    learn.fit(90, cbs=here)
    total, times = wire.total(), {now for now, _ in wire.updates}
    assert sum(wire.opened) < 15_000 and len(wire.opened) < 20
    assert 24_000 < max(wire.outputs) < 30_000  # the size that the saved notebook grows by
    between = [(now, n) for now, n in wire.updates if min(times) < now < max(times)]
    n = len({now for now, _ in between})
    assert n == 5
    assert total <= (40_000 if draws else 46_000) + 1000 * n
    if draws:
        assert len(between) == n and max(n for _, n in between) <= 1000  # an update is one message


def say_here(page):
    page.live.chart._receive(None, dict(type="here"), [])


# --- the button under a fit ---


def buttons(page):
    """The buttons that can be clicked, the latest last."""
    return [box.children[0] for box, _ in dashboard._offered]


@pytest.fixture
def no_button():
    dashboard._offered.clear()
    yield
    dashboard._offered.clear()


def test_a_button_takes_the_fit_back(page, no_button):
    learn = page.learner()
    learn.fit(1)
    weight = learn.model.a.item()
    learn.fit(2)
    (box, _), said = dashboard._offered[0], dashboard._offered[0][0].children[1]
    view = dict(version_major=2, version_minor=0, model_id=box.model_id)
    assert page.outputs[3] == [{VIEW: view, "text/plain": ""}] and "fit(2): back to the state" in box.children[0].tooltip
    box.children[0].click()
    assert said.value == "took back fit(2): 1 epoch trained" and box.children[0].description == "Redo"
    assert learn.model.a.item() == weight and len(learn.recorder.history) == 1
    assert "done: 2 epochs" in page.outputs[2][-1]["text/html"]  # the table of that fit stays


def test_a_fit_that_was_taken_back_can_be_redone(page, no_button):
    """The weights, the optimizer, the history and what follows are as without the two clicks."""
    (learn, other), found = (page.learner(metrics=[]), page.learner(metrics=[])), []
    for each in (learn, other):
        each.fit(1)
        each.fit(2)
        if each is learn:
            (button,), said = buttons(page), dashboard._offered[0][0].children[1]
            after = each.model.a.item()
            button.click()
            assert each.model.a.item() != after and len(each.recorder.history) == 1
            button.click()
            assert said.value == "redid fit(2): 3 epochs trained" and button.description == "Take back"
            assert each.model.a.item() == after and [point.called for point in each.runs] == ["fit(1)", "fit(2)"]
            button.click(), button.click()
        each.fit(1)
        found.append(([list(run.raw_losses) for run in each.recorder.history], each.model.a.item()))
    assert found[0] == found[1]
    button.click()
    assert said.value.startswith("took back fit(1), fit(2)") or button.comm is None


def test_a_fit_cannot_be_redone_once_another_has_begun(page, no_button):
    learn = page.learner()
    learn.fit(1)
    learn.runs.take_back(1, redo=True)
    with learn.no_bar():
        learn.fit(1)
    with pytest.raises(RuntimeError, match="there is no fit to redo"):
        learn.runs.redo()


def test_a_profile_has_no_button_and_leaves_that_of_the_last_fit(page, no_button):
    """Its button took back the last real fit, whose own button was gone."""
    learn = page.learner()
    learn.fit(2)
    (button,), n = buttons(page), len(page.outputs)
    weight = learn.model.a.item()
    learn.profile(workers=())
    assert buttons(page) == [button] and button.comm is not None and len(page.outputs) == n + 1  # the panel alone
    assert learn.model.a.item() == weight and len(learn.recorder.history) == 1
    learn.fit(1)
    assert buttons(page) != [button] and button.comm is None


def test_the_stored_output_of_a_running_fit_has_the_rows_and_a_picture(page, no_button, monkeypatch):
    """In an output of its own, hidden while the panel is there; it becomes that of the button."""
    monkeypatch.setattr(Dashboard, "keep_first", 2.0)
    learn = page.learner()
    learn.fit(4)  # 20 s
    panel, so_far = page.outputs
    *stored, last = so_far
    assert len(panel) == 2 and len(stored) == 2 and VIEW in last  # after 2 and 12 seconds
    text = stored[1]["text/html"]
    assert text.count("<tr") == 1 + 2 and "<img" in text and "a fit that was running" in text and "2 of 4 epochs" in text
    assert f".cbnb-at-{page.panel.name})" in text and stored[1]["text/plain"].count("\n") == 4
    assert len(text) < 5000
    learn.keep_restore_points = 0
    learn.fit(4)
    assert page.outputs[-1][-1] == EMPTY


def test_only_the_last_fit_has_a_button(page, no_button):
    learn = page.learner()
    learn.fit(1)
    (first,) = buttons(page)
    learn.fit(1)
    assert len(buttons(page)) == 1 and first.comm is None and page.outputs[1][-1] == EMPTY  # closed, its output empty
    learn.keep_restore_points = 0
    learn.fit(1)
    assert buttons(page) == [] and len(page.outputs) == 5


def test_a_click_that_comes_too_late_says_so(page, no_button):
    learn = page.learner()
    learn.fit(1)
    (button,), said = buttons(page), dashboard._offered[0][0].children[1]
    with learn.no_bar():
        learn.fit(1, cbs=cbnb.Callback(after_epoch=lambda cb: button.click()))
    assert said.value == "this learner is running (epoch 0): rewind it when the run has ended" and not button.disabled
    learn.rewind(2)
    button.click()
    assert said.value == "this fit cannot be taken back any more" and button.disabled


def test_the_button_of_the_last_fit_is_disabled_while_another_fit_runs(page, no_button):
    """A profile leaves the button, which is then enabled again; so does a fit that fails before it has a button of its own."""
    learn, seen = page.learner(), []
    learn.fit(1)
    (button,) = buttons(page)
    watch = cbnb.Callback(before_batch=lambda cb: seen.append(button.disabled))
    learn.profile(workers=())
    assert not button.disabled and buttons(page) == [button]
    learn.fit(1, cbs=watch)
    assert seen and all(seen) and buttons(page) != [button] and not buttons(page)[0].disabled


def test_a_button_that_was_used_up_stays_disabled(page, no_button):
    learn = page.learner()
    learn.fit(1)
    (button,) = buttons(page)
    learn.rewind()
    button.click()
    assert button.disabled
    learn.profile(workers=())
    assert button.disabled


def test_a_click_takes_back_later_fits_without_a_panel_too(page, no_button):
    learn = page.learner()
    learn.fit(1)
    (button,), said = buttons(page), dashboard._offered[0][0].children[1]
    with learn.no_bar():
        learn.fit(2)
    button.click()
    assert said.value == "took back fit(2), fit(1): 0 epochs trained" and learn.opt is None


def test_a_button_stands_in_the_place_of_its_panel(page, no_button):
    learn, placed = page.learner(), []
    learn.progress.place = placed.append
    learn.fit(1)
    table, box = placed[0].children[0].children
    assert page.outputs == [] and "done: 1 epoch" in table.value and buttons(page) == []
    box.children[0].click()
    assert box.children[1].value == "took back fit(1): 0 epochs trained" and learn.opt is None
