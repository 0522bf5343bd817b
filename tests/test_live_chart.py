"""What a live chart sends, and what it hears; a page that draws it is in browser/test_chart_page.py."""

import math
import struct
import sys
from array import array

import pytest

pytest.importorskip("anywidget")

from cbnb.display import live_chart
from cbnb.display.chart import Chart, Event, Line, Mark, chart_spec
from cbnb.display.live_chart import LiveChart, Points, extremes, has_live_charts
from cbnb.display.look import COLORS

LINES = [Line("loss", [], []), Line("valid", [], [], COLORS["valid"], dots=True)]


class Page:
    """What a page does with the messages of a chart: the points of each line, and the layout."""

    def __init__(self, live: LiveChart):
        self.live, self.layout, self.sizes, self.seen = live, {}, [], None
        live.widget.send = self.hear
        self.load()

    def load(self):
        """As a page that is opened now."""
        state, n = self.live.history(), len(self.live.lines)
        self.seen, *counts = struct.unpack_from(f"<{1 + n}I", state)
        self.points = [([], []) for _ in range(n)]
        self.take(state[4 * (1 + n) :], counts)
        self.lost = 0

    def hear(self, message, buffers=None):
        self.sizes.append(len(str(message)) + sum(map(len, buffers or [])))
        self.layout |= message.get("set", {})
        if "n" not in message:
            return
        self.lost += message["s"] != self.seen
        self.seen = message["s"] + 1
        self.take(buffers[0], message["n"])

    def take(self, buffer, counts):
        values = array("f", buffer)
        for (xs, ys), n in zip(self.points, counts):
            xs.extend(values[:n]), ys.extend(values[n : 2 * n])
            values = values[2 * n :]
        assert not values


@pytest.fixture
def live():
    chart = LiveChart(LINES, xlabel="step", title="Losses")
    yield chart
    chart.close()


def say(live, **message):
    live._receive(live.widget, message, [])


# --- points ---


def test_few_points_stay_as_they_are_and_many_keep_their_extremes():
    xs, ys = array("f", range(100)), array("f", [0.0] * 100)
    ys[33], ys[66] = 5.0, -5.0
    assert extremes(xs, ys, 100) == (xs, ys)
    short_x, short_y = extremes(xs, ys, 20)
    assert len(short_x) == len(short_y) <= 22 and short_y[list(short_x).index(33)] == 5 and short_y[list(short_x).index(66)] == -5
    assert list(short_x) == sorted(short_x) and extremes(array("f"), array("f"), 5) == (array("f"), array("f"))


def test_points_that_are_not_finite_hide_no_others():
    """min and max of nan depend on the order."""
    ys = array("f", [math.nan if i % 3 == 0 else float(i) for i in range(90)])
    _, short = extremes(array("f", range(90)), ys, 20)
    assert max(y for y in short if y == y) == 89 and min(y for y in short if y == y) == 1


def test_news_are_what_came_since():
    points = Points()
    points.add([1, 2], [10, 20])
    assert [list(part) for part in points.news()] == [[1, 2], [10, 20]] and [list(part) for part in points.news()] == [[], []]
    points.add([3], [30])
    assert [list(part) for part in points.news()] == [[3], [30]] and points.sent == 3


def test_of_many_points_a_bounded_number_is_kept():
    points = Points(limit=100)
    for i in range(0, 5000, 50):
        points.add(range(i, i + 50), [float(j == 2500) for j in range(i, i + 50)])
        points.news()
        assert len(points.xs) <= 250 and points.sent == len(points.xs)
    assert max(points.ys) == 1 and points.xs[list(points.ys).index(1)] == 2500 and list(points.xs) == sorted(points.xs)


# --- messages ---


def test_a_page_has_what_was_added(live):
    page = Page(live)
    live.add("loss", [0, 1, 2], [3.0, 2.5, 2.0]), live.add("valid", [2], [1.5])
    live.flush()
    live.add("loss", [3], [1.0])
    live.flush()
    assert page.points == [([0, 1, 2, 3], [3, 2.5, 2, 1]), ([2], [1.5])] and page.lost == 0 and live.n_sent == 2


def test_nothing_new_is_no_message(live):
    page = Page(live)
    live.flush()
    live.add("loss", [], [])
    live.flush()
    assert page.sizes == []


def test_a_message_is_small(live):
    """Few points: less than 1 kB, layout included; many are thinned."""
    page = Page(live)
    live.add("loss", range(20), [1.0] * 20), live.add("valid", [19], [1.0])
    live.set(epochs=[(19, 0)])
    live.flush()
    live.add("loss", range(20, 20_020), [float(i % 7) for i in range(20_000)])
    live.flush()
    assert page.sizes[0] < 1000 and page.sizes[1] < 2500 and max(page.points[0][1]) == 6


def test_a_page_that_is_opened_late_gets_the_whole_and_goes_on(live):
    live.add("loss", [0, 1], [2.0, 1.0])
    live.flush()
    live.add("loss", [2], [0.5])  # not sent: it comes with the next message
    page = Page(live)
    assert page.points[0] == ([0, 1], [2, 1])
    live.flush()
    assert page.points[0] == ([0, 1, 2], [2, 1, 0.5]) and page.lost == 0
    page.load()
    assert page.points[0] == ([0, 1, 2], [2, 1, 0.5])


def test_points_that_were_there_at_first():
    live = LiveChart([Line("a", [0, 1], [3.0, 2.0])])
    page = Page(live)
    live.flush()
    assert page.points == [([0, 1], [3, 2])] and list(live.chart().lines[0].ys) == [3, 2]
    live.close()


def test_the_layout_reaches_the_page_under_its_names(live):
    page = Page(live)
    live.set(
        epochs=[(9, 0)], events=[Event(3, "lr", "half")], cursor=4, marks=[Mark("m", 1, 2.0, COLORS["mark"])], band=(1, 2), borders=[5]
    )
    assert page.layout == {}
    live.flush()
    spec = chart_spec(
        Chart(
            [],
            epochs=[(9, 0)],
            events=[Event(3, "lr", "half")],
            cursor=4,
            marks=[Mark("m", 1, 2.0, COLORS["mark"])],
            band=(1, 2),
            borders=[5],
        )
    )
    assert page.layout == {name: spec[name] for name in ("epochs", "events", "chosen", "marks", "band", "borders")}
    live.set(title="new", xlabel="time", y_range=(0, 1))
    live.flush()
    assert (page.layout["title"], page.layout["x_label"], page.layout["y_range"]) == ("new", "time", (0, 1))
    assert live.spec()["title"] == "new" == live.chart().title


def test_what_a_page_says(live):
    picks, sent = [], []
    live.on_pick = lambda x, done: picks.append((x, done))
    live.widget.send_state = sent.append
    assert not live.here
    say(live, type="here")
    assert live.here and live.spec()["picks"]
    say(live, type="pick", x=3.5, done=False), say(live, type="pick", x=4.0, done=True)
    assert picks == [(3.5, False), (4.0, True)] and live.chart().cursor == 4
    say(live, type="lost")
    assert sent == [["history", "spec"]]
    say(live, type="what is this"), say(live)
    live.on_pick = None
    say(live, type="pick", x=1.0, done=True)  # nothing hears it
    assert not live.spec()["picks"] and len(picks) == 2


def test_the_code_goes_to_a_page_that_has_none(live):
    sent = []
    live.widget.send, live.widget.send_state = sent.append, sent.append
    assert len(live.widget._esm) < 5000
    say(live, type="code")
    assert [*sent[0]] == ["code"] and len(sent[0]["code"]) > 5000 and sent[1] == ["history", "spec"]  # what it missed meanwhile


def test_before_a_page_draws_nothing_is_sent_and_then_everything_at_once(live):
    sent = []
    live.widget.send, live.widget.send_state = lambda *message: sent.append("points"), sent.append
    live.add("loss", range(100), [1.0] * 100), live.add_epochs([(99, 0)])
    live.hold()
    assert sent == [] and len(live.history()) == 12 + 8 * 100 and live.spec()["epochs"] == [(99, 0)]
    say(live, type="here")
    assert sent == [["history", "spec"]]
    say(live, type="here")  # another page, which got it all when it was opened
    live.flush()
    assert len(sent) == 1
    live.beside = lambda: "new"
    assert live.spec()["beside"] == "new"


def test_epochs_come_one_by_one(live):
    messages = []
    live.widget.send = lambda message, buffers: messages.append(message)
    live.add_epochs([(3, 0), (7, 1)])
    live.flush()
    live.add_epochs([(11, 2)])
    live.flush(beside=[1])
    live.flush()
    assert messages[0] == dict(ends=dict(at=0, more=[(3, 0), (7, 1)]))
    assert messages[1:] == [dict(ends=dict(at=2, more=[(11, 2)]), beside=[1])]
    live.set(epochs=[(1, 0)])
    live.flush()
    assert messages[-1] == dict(set=dict(epochs=[(1, 0)])) and live.spec()["epochs"] == [(1, 0)]


def test_the_place_for_the_chart_has_a_picture_until_it_comes(live):
    live.add("loss", [0, 1], [2.0, 1.0])
    assert f'class="cbnb-slot-{live.name}"' in live.slot and "<img" in live.slot and "Losses; loss from 2 to 1" in live.slot
    assert live.slot_html("<b>old</b>") == f'<div class="cbnb-slot-{live.name}"><b>old</b></div>' and live.widget.slot == live.name


def test_two_charts_do_not_share_a_place(live):
    other = LiveChart(LINES)
    assert other.name != live.name
    other.close()


def test_without_anywidget_it_says_what_to_install(monkeypatch):
    assert has_live_charts()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    live_chart._widget_class.cache_clear()
    with pytest.raises(ImportError, match=r'pip install "cbnb\[notebook\]"'):
        LiveChart(LINES)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not has_live_charts()
