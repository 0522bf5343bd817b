"""What a live chart sends, and what it hears; a page that draws it is in browser/test_chart_page.py."""

import gzip
import math
import struct
import sys
from array import array

import pytest

pytest.importorskip("anywidget")

from cbnb.display import live_chart
from cbnb.display.chart import Chart, Event, Line, Mark, chart_spec
from cbnb.display.figures import envelope_places
from cbnb.display.live_chart import LiveChart, Points, has_live_charts, news
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
        values, places = array("f", buffer), array("f")
        for (xs, ys), n in zip(self.points, counts):
            if n >= 0:  # a negative number: the x values of the line before
                places, values = values[:n], values[n:]
            xs.extend(places), ys.extend(values[: abs(n)])
            values = values[abs(n) :]
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
    ys = [0.0] * 100
    ys[33], ys[66] = 5.0, -5.0
    assert list(envelope_places(ys, 100)) == list(range(100)) and list(envelope_places([], 5)) == []
    places = envelope_places(ys, 20)
    assert len(places) <= 22 and {33, 66, 99} <= set(places) and places == sorted(places)


def test_points_that_are_not_finite_hide_no_others():
    """min and max of nan depend on the order."""
    ys = [math.nan if i % 3 == 0 else float(i) for i in range(90)]
    short = [ys[i] for i in envelope_places(ys, 20)]
    assert max(y for y in short if y == y) == 89 and min(y for y in short if y == y) == 1


def test_news_are_what_came_since():
    points = Points()
    points.add([1, 2], [10, 20])
    assert [list(part) for part in news([points])[0]] == [[1, 2], [10, 20]] and [list(part) for part in news([points])[0]] == [[], []]
    points.add([3], [30])
    assert [list(part) for part in news([points])[0]] == [[3], [30]] and points.sent == 3


def test_lines_over_the_same_steps_keep_the_same_steps():
    """Each value beside a step is that of the step: in what is sent, and in what is kept."""
    raw, smooth, other = Points(), Points(), Points()
    for i in range(0, 9000, 500):
        steps = range(i, i + 500)
        raw.add(steps, [float(step * 7919 % 1000) for step in steps]), smooth.add(steps, [float(step) for step in steps])
        other.add(steps[::2], [1.0] * 250)
        (xs, _), (same, ys), (_, ones) = news([raw, smooth, other], most=16, limit=1000)
        assert xs == same == ys and xs[-1] == i + 499 and len(xs) <= 18 and set(ones) == {1}
        assert raw.xs == smooth.xs == smooth.ys and len(raw.xs) <= 2500
    assert list(raw.ys) == [step * 7919 % 1000 for step in raw.xs]


def test_of_many_points_a_bounded_number_is_kept():
    points = Points()
    for i in range(0, 5000, 50):
        points.add(range(i, i + 50), [float(j == 2500) for j in range(i, i + 50)])
        news([points], limit=100)
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


def test_lines_over_the_same_steps_send_them_once():
    chart = LiveChart([Line("raw", [], []), Line("smooth", [], []), Line("valid", [], [], dots=True)])
    page, sizes = Page(chart), []
    for xs in (range(5), range(5, 300)):
        for name in ("raw", "smooth"):
            chart.add(name, xs, [7.0 * x % 5 if name == "raw" else float(x) for x in xs])
        chart.add("valid", xs[-1:], [1.0])
        send, chart.widget.send = (
            chart.widget.send,
            lambda message, buffers: sizes.append((message["n"], len(buffers[0]))) or page.hear(message, buffers),
        )
        chart.flush(most=100)
        chart.widget.send = send
    (first, few), (second, many) = sizes
    assert first == [5, -5, 1] and few == 4 * (5 + 5 + 5 + 2)
    n = second[0]
    assert second == [n, -n, 1] and many == 4 * (3 * n + 2) and page.points[0][0] == page.points[1][0]
    assert page.points[1][0] == page.points[1][1] and page.points[2] == ([4, 299], [1, 1])
    page.load()
    assert page.points[0][0] == page.points[1][0] == page.points[1][1]
    chart.close()


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
    assert "picks" not in live.spec() and len(picks) == 2


def test_a_page_gets_the_exact_steps_that_it_asks_for():
    """All of a short range, the same steps for all lines, none after the last that was sent; with another weight as the recorder smooths."""
    ys, sent = [float(i * 7919 % 1000) for i in range(5000)], []
    lines = [Line("raw", range(5000), ys), Line("smooth", range(5000), ys, smooths=ys), Line("valid", [4999], [1.0], dots=True)]
    chart = LiveChart([line._replace(xs=(), ys=()) for line in lines], whole=lambda: lines)
    chart.widget.send = lambda message, buffers: sent.append((message["steps"], array("f", buffers[0])))
    for name in ("raw", "smooth"):
        chart.add(name, range(4900), ys[:4900])
    chart.hold()
    say(chart, type="steps", range=[10, 265], beta=None)
    say(chart, type="steps", range=[4800, 4999], beta=0.0)
    say(chart, type="steps", range=[0, 4899], beta=0.5)
    (few, first), (late, last), (many, wide) = sent
    assert (
        few == [256, 256, -1] and list(first[:256]) == list(range(10, 266)) == list(first[512:768]) and list(first[256:512]) == ys[10:266]
    )
    assert late == [100, 100, -1] and last[99] == 4899 and list(last[300:]) == ys[4800:4900] == list(last[100:200])
    n = many[0]
    assert many == [n, n, -1] and n <= 2002 and wide[:n] == wide[2 * n : 3 * n] and (wide[0], wide[n - 1]) == (0, 4899)
    assert all(wide[n + i] == ys[int(wide[i])] for i in range(n))
    mean, weight = 0.0, 0.0
    for y in ys[:4900]:
        mean, weight = 0.5 * mean + 0.5 * y, 0.5 * weight + 0.5
    assert wide[-1] == pytest.approx(mean / weight)
    chart.close()


def test_the_code_goes_to_a_page_that_has_none(live):
    sent = []
    live.widget.send, live.widget.send_state = lambda *message: sent.append(message), sent.append
    assert len(live.widget._esm) < 1100
    say(live, type="code")
    content, (code,) = sent[0]
    assert (
        content == {"code": True} and b"export default" in gzip.decompress(code) and sent[1] == ["history", "spec"]
    )  # what it missed meanwhile


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


def test_an_anywidget_that_cannot_be_imported_leaves_pictures(monkeypatch, tmp_path):
    (tmp_path / "anywidget.py").write_text("raise ImportError('libfile.so is missing')")
    monkeypatch.delitem(sys.modules, "anywidget", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match=r"could not import anywidget \(libfile.so is missing\): try pip install --upgrade"):
        assert not has_live_charts()
