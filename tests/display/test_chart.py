"""Curves as data for a page and as a picture: numbers, ticks and places that can be worked out by hand.

What the page does with the data is in browser/test_chart_page.py.
"""

import base64
import itertools
import json
import math
import re
from xml.etree import ElementTree

import pytest
import torch

from cbnb.basics.text import number
from cbnb.display.axes import Axis, linear_ticks, log_ticks, nice_step, path, spread, tick_labels
from cbnb.display.chart import Chart, Event, Line, Mark, chart, chart_spec, charts_html, described, means, still_svg, thinned
from cbnb.display.look import COLORS, RUN_COLORS, count_text, lr_text, sparkline
from helpers import packed_texts

nan, inf = math.nan, math.inf


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (12345, "12,345"),
        (12345.6, "12,346"),
        (1234.5, "1,234"),
        (0.25, "0.25"),
        (0.12345, "0.1235"),
        (2.0, "2"),
        (1.5, "1.5"),
        (-3.14159, "-3.142"),
    ]
    + [
        (0.001, "0.001"),
        (0.00099, "9.9e-4"),
        (1e-5, "1e-5"),
        (-1.2345e-5, "-1.234e-5"),
        (9_999_999, "9,999,999"),
        (1e7, "1e7"),
        (-2.5e8, "-2.5e8"),
    ]
    + [(nan, "nan"), (inf, "inf")],
)
def test_four_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    "least, step", [(1, 1), (1.1, 2), (2, 2), (2.1, 5), (5, 5), (5.1, 10), (10, 10), (0.03, 0.05), (0.3, 0.5), (0.06, 0.1), (700, 1000)]
)
def test_steps_are_1_2_or_5(least, step):
    assert nice_step(least) == pytest.approx(step)


@pytest.mark.parametrize(
    "lo, hi, n, ticks",
    [
        (0, 10, 6, [0, 2, 4, 6, 8, 10]),
        (0.1, 0.9, 4, [0.2, 0.4, 0.6, 0.8]),
        (-1, 1, 4, [-1, -0.5, 0, 0.5, 1]),
        (0, 1, 1, [0, 1]),
        (7, 7, 3, [7]),
    ],
)
def test_even_ticks(lo, hi, n, ticks):
    assert linear_ticks(lo, hi, n) == pytest.approx(ticks)


def test_whole_ticks():
    assert linear_ticks(0, 2, 6, whole=True) == [0, 1, 2] and linear_ticks(0, 20, 6, whole=True) == [0, 5, 10, 15, 20]
    assert linear_ticks(0, 2, 6) == [0, 0.5, 1, 1.5, 2]


@pytest.mark.parametrize(
    "lo, hi, n, ticks",
    [
        (1, 1000, 6, [1, 10, 100, 1000]),
        (1, 10, 6, [1, 2, 5, 10]),  # less than two decades: 2 and 5, too
        (1, 100, 6, [1, 10, 100]),
        (10, 1e12, 4, [1e3, 1e6, 1e9, 1e12]),  # eleven decades: each third power
        (2, 4, 6, [2, 2.5, 3, 3.5, 4]),  # too few of these: even steps
        (4, 30, 6, [5, 10, 20]),
        (4, 45, 2, [10]),  # more than one decade stays logarithmic
    ],
)
def test_powers_of_ten(lo, hi, n, ticks):
    assert log_ticks(lo, hi, n) == pytest.approx(ticks)


@pytest.mark.parametrize(
    "ticks, log, labels",
    [
        ([], False, []),
        ([0, 0.5, 1], False, ["0.0", "0.5", "1.0"]),
        ([0, 0.05, 0.1], False, ["0.00", "0.05", "0.10"]),
        ([0, 1000, 2000], False, ["0", "1,000", "2,000"]),
        ([5], False, ["5"]),
        ([0, 5e6, 1e7], False, ["0", "5e6", "1e7"]),
        ([-5e6, 0, 5e6], False, ["-5,000,000", "0", "5,000,000"]),
        ([0, 5e-4], False, ["0", "5e-4"]),
        ([0, 5e-4, 1e-3], False, ["0.0000", "0.0005", "0.0010"]),
        ([1, 1.000001], False, ["1.000000", "1.000001"]),
        ([1, 1.0000001], False, ["1.0000000", "1.0000001"]),
        ([12000000, 12001000], False, ["12,000,000", "12,001,000"]),
        ([1e7, 3e7], False, ["1e7", "3e7"]),
        ([0.01, 0.1, 1], True, ["0.01", "0.1", "1"]),
        ([1e-3, 1e-2], True, ["0.001", "0.01"]),
        ([1e-4, 1e-1, 100, 5000, 1e4], True, ["1e-4", "1e-1", "100", "5,000", "1e4"]),
    ],
)
def test_labels_of_an_axis_are_written_in_one_way(ticks, log, labels):
    assert tick_labels(ticks, log) == labels


def test_places_on_an_axis():
    axis = Axis([0, 10, nan, inf, 1e300])
    assert (axis.lo, axis.hi, axis.empty) == (0, 10, False)
    assert axis.places([0, 4, 10, 15, -5, nan, inf, 1e300, -1e300]) == pytest.approx([0, 0.4, 1, 1.5, -0.5, None, None, None, None])
    assert axis.place(4) == pytest.approx(0.4) and axis.has(-1e299) and not axis.has(nan)
    assert axis.ticks(2) == [(0, "0"), (0.5, "5"), (1, "10")]


def test_places_on_a_logarithmic_axis():
    axis = Axis([0, -3, 1e-4, 1], log=True)
    assert (axis.lo, axis.hi) == (-4, 0) and not axis.has(0) and Axis([1]).has(0)
    assert axis.places([1e-3, 0, -1, nan]) == pytest.approx([0.25, None, None, None])
    assert axis.ticks(4) == [(pytest.approx(k / 4), f"1e{k - 4}" if k < 4 else "1") for k in range(5)]


def test_room_around_values():
    assert (Axis([0, 10], pad=0.05).lo, Axis([0, 10], pad=0.05).hi) == (-0.5, 10.5)
    assert (Axis([0, 10], limits=(2, 4), pad=0.05).lo, Axis([0, 10], limits=(2, 4), pad=0.05).hi) == (2, 4)
    assert (Axis([5]).lo, Axis([5]).hi) == (4.5, 5.5) and (Axis([-20.0]).lo, Axis([-20.0]).hi) == (-22, -18)
    assert (Axis([0]).lo, Axis([0]).hi) == (-0.5, 0.5) and Axis([1, 1 + 1e-13]).place(1) == pytest.approx(0.5)
    assert (Axis([10], log=True).lo, Axis([10], log=True).hi) == pytest.approx((0.7, 1.3))
    assert Axis([nan]).empty and (Axis([nan]).lo, Axis([]).hi) == (0, 1) and not Axis([0]).empty


def test_whole_numbers_are_for_the_ticks_of_that_axis():
    assert [label for _, label in Axis([0, 2], whole=True).ticks(6)] == ["0", "1", "2"]
    assert [label for _, label in Axis([0, 2]).ticks(6)] == ["0.0", "0.5", "1.0", "1.5", "2.0"]


def test_a_line_is_read_at_its_nearest_point():
    line = Line("a", [1, 2, 4], [10.0, 20.0, nan])
    assert [line.at(x) for x in (0.9, 1, 1.4, 1.5, 2.9, 3, 4, 4.1)] == [None, 10, 10, 20, 20, None, None, None]
    assert Line("b", [1, 2], [3, 4], held=True).at(9) == 4 and Line("b", [1, 2], [3, 4], held=True).at(0) is None
    assert Line("c", [], []).at(0) is None


def test_dots_are_read_at_the_latest():
    """The loss of an epoch holds until there is the next."""
    dots = Line("valid", [4, 8], [1.0, 2.0], dots=True)
    assert [dots.at(x) for x in (3, 4, 7.9, 8, 9)] == [None, 1, 1, 2, 2]
    held = dots._replace(dots=False, held=True)  # as a curve of `compare`, where chart.js shows the latest value, too
    assert [held.at(x) for x in (3, 4, 7.9, 8, 9)] == [None, 1, 1, 2, 2]


def test_few_points_are_drawn_as_they_are_and_many_with_their_extremes():
    line = Line("a", range(1000), [float(i == 500) for i in range(1000)])
    assert thinned(line, 1000) == (list(range(1000)), line.ys)
    xs, ys = thinned(line, 100)
    assert len(xs) == len(ys) <= 100 and ys[xs.index(500)] == 1 == sum(ys)
    assert thinned(Line("t", [1, 2], torch.tensor([3.0, 4.0])), 9) == ([1, 2], [3.0, 4.0])


def test_on_a_logarithmic_axis_each_doubling_gets_its_points():
    """Zero cannot be drawn. Of 1 to 1023, ten doublings, each has at most 2*40/11 points, whether there are 2 or 512."""
    line = Line("a", range(1024), [float(i) for i in range(1024)])
    xs, ys = thinned(line, 40, log_x=True)
    assert xs == ys and xs[:8] == [1, 2, 3, 4, 5, 6, 7, 8] and xs[-1] == 1023 and len(xs) <= 11 * 7
    counts = [sum(2**k <= x < 2 ** (k + 1) for x in xs) for k in range(10)]
    assert counts == [1, 2, 4] + [6] * 7
    assert thinned(line, 1023, log_x=True) == (list(range(1, 1024)), [float(i) for i in range(1, 1024)])
    assert thinned(Line("b", [0, 0, 3], [1.0, 2.0, 3.0]), 9, log_x=True) == ([3], [3.0])


def test_a_path_breaks_at_gaps():
    x, y = Axis([0, 4]), Axis([0, 1])
    assert path([0, 2, 4], [0, 1, 0.5], x, y, (100, 10)) == "M0,10L50,0L100,5"
    assert path([0, 1, 2, 3, 4], [0, nan, 1, nan, nan], x, y, (100, 10)) == "M0,10h0M50,0h0"  # points alone are dots
    assert path([0, 1, 2, 3], [0, 1, nan, 1], x, y, (100, 10)) == "M0,10L25,0M75,0h0"
    assert path([0, 2], [0, 1], x, y, (100, 10), dots=True) == "M0,10h0M50,0h0"
    assert path([], [], x, y, (100, 10)) == "" == path([0], [nan], x, y, (100, 10))


def test_far_outside_is_just_outside():
    x, y = Axis([0, 4]), Axis([0, 1])
    assert path([0, 1, 2, 3], [1e9, 2, -1, -1e9], x, y, (100, 10)) == "M0,-10L25,-10L50,20L75,20"


def test_words_that_do_not_overlap():
    assert spread([0, 10, 50], 16, 100) == [0, 16, 50] and spread([50, 10, 0], 16, 100) == [50, 16, 0]
    assert spread([90, 95, 99], 16, 100) == [68, 84, 100] and spread([], 16, 100) == []


# --- the picture ---


class Picture:
    """A chart as it is shown where no script runs. Places in the plane are shares of it, from the left and from the top."""

    def __init__(self, lines, **layout):
        layout.setdefault("size", (640, 280))
        self.root = ElementTree.fromstring(still_svg(Chart(lines, **layout)))
        for group in self.root.iter("{http://www.w3.org/2000/svg}g"):
            for node in group:
                node.attrib |= {name: group.get(name) for name in ("text-anchor",) if group.get(name)}
        for node in self.root.iter():  # what need not be written
            if node.tag.endswith("text"):
                node.attrib.setdefault("text-anchor", "start"), node.attrib.setdefault("fill", self.root.get("fill"))
            elif node.tag.endswith("path"):
                node.attrib.setdefault("stroke-width", "1")
        (self.inner,) = self.root.findall("{*}svg")
        x, y, width, height = self.clip = [float(self.inner.get(name)) for name in ("x", "y", "width", "height")]
        left, top, *inside = map(float, self.inner.get("viewBox").split())
        assert inside == [width, height]  # not scaled: what is at 0, 0 inside is at the corner of the plane
        self.left, self.top = x - left, y - top
        (axis,) = [p.get("d") for p in self.root.findall("{*}path") if p.get("opacity") == ".6" and p.get("stroke") == COLORS["text"]]
        begin, bottom, self.width = map(float, re.fullmatch(r"M([\d.]+),([\d.]+)h([\d.]+)", axis).groups())
        assert begin == self.left
        self.height = bottom - self.top

    def paths(self, **wanted):
        """The corners of each path in the plane that has these attributes, as (command, x, y)."""
        wanted = {name.replace("_", "-"): value for name, value in wanted.items()}
        found = [path for path in self.inner.findall(".//{*}path") if all(path.get(name) == value for name, value in wanted.items())]
        return [self._corners(path.get("d")) for path in found]

    def _corners(self, d):
        points = re.findall(r"([ML])(-?[\d.]+),(-?[\d.]+)", d)
        return [(command, *near(float(x) / self.width, float(y) / self.height)) for command, x, y in points]

    def verticals(self, **wanted):
        """Where lines from the top to the bottom stand."""
        return [corners[0][1] for corners in self.paths(**wanted)]

    def words(self):
        return [text.text for text in self.root.findall(".//{*}text")]

    def place(self, words):
        """Anchor, x and y of a text."""
        (text,) = [text for text in self.root.findall(".//{*}text") if text.text == words]
        return text.get("text-anchor"), float(text.get("x")), float(text.get("y"))

    def below(self, row):
        """(place along the axis, label) of the ticks in the row of steps, 0, or in that of epochs, 1."""
        y = self.top + self.height + (17, 34)[row]
        found = [text for text in self.root.findall(".//{*}text") if float(text.get("y")) == y and text.get("text-anchor") == "middle"]
        return [((float(text.get("x")) - self.left) / self.width, text.text) for text in found]

    def beside(self):
        """(place from the bottom, label) of the ticks of y."""
        found = [
            text for text in self.root.findall(".//{*}text") if text.get("text-anchor") == "end" and float(text.get("x")) == self.left - 8
        ]
        return [
            (1 - (float(t.get("y")) - 4 - self.top) / self.height, t.text) for t in found if float(t.get("y")) < self.top + self.height + 5
        ]

    def circles(self, **wanted):
        """(x, y) of the circles of this look, as shares of the plane."""
        found = [c for c in self.root.findall(".//{*}circle") if all(c.get(name) == value for name, value in wanted.items())]
        return [tuple(near((float(c.get("cx")) - self.left) / self.width, (float(c.get("cy")) - self.top) / self.height)) for c in found]


def near(*values):
    return [pytest.approx(value, abs=0.003) for value in values]


def at(*values):
    return pytest.approx(list(values), abs=0.003)


TWO = Line("a", [0, 10], [0.0, 1.0])  # with a twentieth of the length above and below: from 21/22 of the height to 1/22
LOW, HIGH, DOT = 1 - 1 / 22, 1 / 22, "7"


def test_a_picture_of_one_line():
    page = Picture([TWO])
    assert page.paths(stroke=COLORS["train"]) == [[("M", 0, LOW), ("L", 1, HIGH)]]
    assert [label for _, label in page.below(0)] == ["0", "2", "4", "6", "8", "10"]
    assert [place for place, _ in page.below(0)] == at(0, 0.2, 0.4, 0.6, 0.8, 1)
    places, labels = zip(*page.beside())
    assert list(labels) == [f"{float(label):.1f}" for label in labels] and labels[0] == "0.0" and labels[-1] == "1.0"
    assert list(places) == at(*((1 + 20 * float(label)) / 22 for label in labels))
    assert float(page.root.get("width")) == 640 and page.root.get("viewBox") == f"0 0 640 {page.root.get('height')}"
    assert page.words()[-2:] == ["a", "1"] and page.left + page.width < 560  # its name and its value stand beside it


def test_curves_are_clipped_a_bit_outside_of_the_plane():
    """Curves are clipped outside of the plane, at the sides and above by more than the radius of a dot, below by a bit less."""
    for size in [(300, 120), (640, 280), (2000, 700)]:
        page = Picture([TWO], size=size)
        x, y, width, height = page.clip
        assert (page.left - x, page.top - y) == (5, 5) and float(DOT) / 2 < 5 and page.inner.get("overflow") == "hidden"
        assert [x + width - page.left - page.width, y + height - page.top - page.height] == pytest.approx([5, 5], abs=0.06)


@pytest.mark.parametrize("size, n_x, n_y", [((300, 120), 3, 2), ((640, 280), 6, 3), ((2000, 280), 6, 3), ((640, 700), 6, 11)])
def test_the_number_of_ticks_follows_the_size(size, n_x, n_y):
    page = Picture([TWO], size=size)
    assert float(page.root.get("width")) == min(size[0], 760) and (len(page.below(0)), len(page.beside())) == (n_x, n_y)


def test_names_and_labels_are_text_whatever_is_in_them():
    """In the picture, in its words, and in the data of the script, which comes as base64."""
    texts = dict(xlabel="<x>", ylabel="<y>", title="</script><t>")
    lines, marks = [Line("<i>a", [0], [1], '"<red>')] * 2, [Mark("<b>m", 0, 1, "<blue>")]
    page, words = charts_html([Chart(lines, marks=marks, **texts)], live=True), Picture(lines, marks=marks, **texts).words()
    for text in ("<i>a", "<red>", "<b>m", "<blue>", "<x>", "<y>", "<t>"):
        assert text not in page
    assert {"<i>a", "<b>m", "<x>", "</script><t>"} <= set(words)
    assert page.count("</script>") == 1 and 'alt="&lt;/script&gt;&lt;t&gt;; &lt;i&gt;a from 1' in page


def test_names_and_last_values_stand_at_the_ends_of_lines():
    lines = [
        TWO,
        Line("b", [0, 4], [1.0, 0.5], COLORS["raw"], faint=True),
        Line("v", [5, 9], [0.25, nan], COLORS["valid"], dots=True, dash=True),
    ]
    page = Picture(lines)
    assert page.words()[-6:] == ["a", "1", "b", "0.5", "v", "0.25"]
    places = [page.place(name)[2] for name in "avb"]
    ends = [page.top + page.height * down for down in (HIGH, 0.5 + 0.25 / 1.1, 0.5)]
    assert places == [pytest.approx(end + 4, abs=1) for end in ends]
    keys = [key for key in page.root.findall("{*}path") if float(key.get("stroke-width")) in (1, 2.5) and key.get("d").endswith("h14")]
    assert [(key.get("stroke"), key.get("stroke-width")) for key in keys] == [
        (COLORS["train"], "2.5"),
        (COLORS["raw"], "1"),
        (COLORS["valid"], "2.5"),  # a dot on a dash
    ]
    assert [c.get("fill") for c in page.root.findall(".//{*}circle")] == [COLORS["valid"]]
    assert page.words()[-2:] != ["none", "–"] and Picture([Line("none", [0, 1], [nan, nan]), TWO]).words()[-3:] == ["none", "a", "1"]


def test_names_of_lines_that_end_at_one_place_are_apart():
    page = Picture([TWO._replace(name=name) for name in "abcde"])
    places = sorted(page.place(name)[2] for name in "abcde")
    assert all(b - a > 15.8 for a, b in itertools.pairwise(places))


def test_looks_of_lines():
    faint, dots = Line("f", [0, 10], [1.0, 0.0], "red", faint=True), Line("d", [0, 10], [0.0, 0.5], "blue", dots=True)
    page = Picture([TWO, faint, dots, TWO._replace(dash=True, color="green"), TWO._replace(dash="dot", color="gray")])
    assert page.paths(stroke="red", stroke_width="1", opacity=".6") and page.paths(stroke="green", stroke_dasharray="6 4")
    assert page.paths(stroke="gray", stroke_dasharray="1.5 4")
    assert page.paths(stroke="blue", stroke_width="1.5") == [[("M", 0, LOW), ("L", 1, 0.5)]]
    assert page.paths(stroke="blue", stroke_width=DOT) == [[("M", 0, LOW), ("M", 1, 0.5)]]


def test_gaps_are_not_drawn():
    page = Picture([Line("a", range(6), [0.0, 1.0, nan, inf, 1.0, 0.0])])
    assert [[command for command, *_ in corners] for corners in page.paths(stroke=COLORS["train"])] == [list("MLML")]


def test_borders_marks_and_events_inside_of_the_plane_only():
    marks = [Mark("m", 5, 0.5, "red"), Mark("s", 10, 1.0, "blue", strong=True), Mark("n", nan, 1, "red"), Mark("o", 5, nan, "red")]
    events = [Event(5, "lr", "half the rate"), Event(7, "best", "the best"), Event(3, "what is this", ""), Event(nan, "lr", "nowhere")]
    page = Picture([TWO], borders=[-1, 0, 5, 10, 11, nan], marks=marks, events=[*events, Event(11, "stopped", "")])
    assert page.verticals(stroke_dasharray="1 4") == at(0, 0.5, 1) and page.verticals(stroke_dasharray="3 3") == at(0.5, 0.3)
    assert page.circles(fill="red") == [(0.5, 0.5)] and page.circles(fill="blue", r="5.5") == [(1, HIGH)]
    assert page.verticals(stroke="blue") == at(1) and not page.verticals(stroke="red")
    assert [word for word in page.words() if word and word in "×★•■"] == ["•", "×", "★"]
    assert Picture([TWO], borders=[0], log_x=True).verticals(stroke_dasharray="1 4") == []
    clipped = Picture([TWO], y_range=(0.0, 0.5), marks=[Mark("m", 5, 0.5, "red")])
    assert clipped.circles(fill="red") == [(0.5, 0)]


def test_signs_of_events_that_would_cover_each_other_share_one():
    events = [Event(x, "note", "") for x in (5, 1.1, 1, 1.05)] + [Event(9, "best", "")]
    page = Picture([TWO], events=events)
    assert page.words().count("3") == 1 and page.words().count("•") == 1 and page.words().count("★") == 1
    assert page.verticals(stroke_dasharray="3 3") == at(0.5, 0.11, 0.1, 0.105)


def test_marks_are_given_room_on_both_axes():
    page = Picture([TWO], marks=[Mark("m", 20, 2.0, "red")])
    assert page.paths(stroke=COLORS["train"]) == [[("M", 0, LOW), ("L", 0.5, 0.5)]] and page.circles(fill="red") == [(1, HIGH)]


def test_dots_outside_of_the_given_range_are_not_drawn():
    dots = Line("v", [0, 5, 10, 12], [0.0, 1.0, 3.0, -1.0], "red", dots=True)
    assert Picture([dots], y_range=(0.0, 1.0)).paths(stroke="red", stroke_width=DOT) == [
        [("M", 0, 1), ("M", pytest.approx(5 / 12, abs=0.003), 0)]
    ]
    with pytest.raises(ValueError, match="low below high"):
        Chart([dots], y_range=(1.0, 1.0))


def test_an_empty_chart_says_so():
    for lines, log in [
        ([Line("a", [], [])], {}),
        ([], {}),
        ([Line("a", [0], [1.0])], dict(log_x=True)),
        ([Line("a", [1], [0.0])], dict(log_y=True)),
    ]:
        assert "no values yet" in Picture(lines, **log).words()
    assert Chart([Line("a", [], [])]).text == "a: no values" and Chart([]).text == "empty chart"
    assert "no values yet" not in Picture([TWO]).words()


def marked(*marks, lines=()):
    """Name of each mark -> anchor, pixels to the right of its point, pixels below."""
    line = Line("corners", [0, 100], [nan, nan])
    page = Picture([line, *lines], marks=[Mark(name, x, y, "red", strong) for name, x, y, strong in marks], y_range=(0.0, 1.0))
    found = {}
    for name, x, y, _ in marks:
        anchor, right, down = page.place(name)
        found[name] = anchor, round(right - page.left - x / 100 * page.width), round(down - 4 - page.top - (1 - y) * page.height)
    return found


def test_the_name_of_a_mark_stands_above_it_to_the_right():
    assert marked(("a", 0, 0.5, False), ("b", 50, 0.5, True)) == {"a": ("start", 9, -12), "b": ("start", 9, -12)}


def test_at_a_border_the_name_of_a_mark_is_where_there_is_room():
    assert marked(("x", 0, 0.0, False), ("m", 100, 0.5, False)) == {"x": ("start", 9, -12), "m": ("end", -9, -12)}
    assert marked(("x", 0, 0.5, False), ("t", 100, 1.0, False))["t"] == ("end", -9, 14)


def test_names_of_marks_do_not_cover_each_other():
    """The strong one has the first choice."""
    found = marked(("weak", 50, 0.5, False), ("strong", 50, 0.5, True), ("end", 0, 0.5, False))
    assert found["strong"] == ("start", 9, -12) and found["weak"] == ("end", -9, -12)
    many = marked(*((f"m{i}", 50, 0.5, False) for i in range(6)))
    assert len(set(many.values())) == 6


def test_a_strong_mark_is_bold_and_a_faint_one_gray():
    page = Picture([TWO], marks=[Mark("s", 5, 0.5, "red", strong=True), Mark("f", 2, 0.2, "red", faint=True)])
    texts = {text.text: text for text in page.root.findall(".//{*}text")}
    assert texts["s"].get("font-weight") == "700" and texts["f"].get("fill") == COLORS["quiet"] and texts["s"].get("fill") == COLORS["text"]
    assert len(page.circles(fill=COLORS["quiet"])) == 1


@pytest.mark.parametrize("band, rect", [((2, 5), (0.2, 0.3)), ((-5, 20), (0, 1)), ((4, 4), (0.4, 0)), ((nan, 5), None), (None, None)])
def test_a_band_is_shaded_inside_of_the_plane(band, rect):
    page = Picture([TWO], band=band)
    found = [(float(r.get("x")) / page.width, float(r.get("width")) / page.width) for r in page.inner.findall(".//{*}rect")]
    assert found == ([] if rect is None else [tuple(near(*rect))])
    assert not list(Picture([Line("a", [1, 10], [0.0, 1.0])], band=(0, 5), log_x=True).inner.findall(".//{*}rect"))


def test_the_chosen_x_is_a_line():
    assert Picture([TWO], cursor=5).verticals(stroke=COLORS["mark"]) == at(0.5) and not Picture([TWO], cursor=11).verticals(
        stroke=COLORS["mark"]
    )


def test_epochs_are_a_second_row_below():
    page = Picture([TWO], epochs=[(-1, 0), (0, 1), (5, 2), (10, 3), (11, 4)], xlabel="step")
    places, labels = zip(*page.below(1))
    assert labels == ("1", "2", "3") and list(places) == at(0, 0.5, 1) and len(page.below(0)) == 6
    assert {"step", "epoch"} <= set(page.words()) and "epoch" not in Picture([TWO]).words() and not Picture([TWO]).below(1)
    assert "epoch" not in Picture([Line("a", [1, 10], [0.0, 1.0])], epochs=[(5, 1)], log_x=True).words()


def test_labels_of_the_axes():
    page = Picture([TWO], xlabel="rate", title="Losses")
    assert page.words()[0] == "Losses" and "rate" in page.words()


def test_many_points_are_thinned_as_asked():
    line = Line("a", range(1000), [float(i % 10) for i in range(1000)])
    (drawn,) = Picture([line]).paths(stroke=COLORS["train"])
    assert len(drawn) <= 240 and {round(y, 3) for _, _, y in unwrapped(drawn)} >= {round(LOW, 3), round(HIGH, 3)}
    assert len(points_of(chart_spec(Chart([line]))["lines"][0])[0]) <= 400
    assert len(points_of(chart_spec(Chart([line], points=1000))["lines"][0])[0]) == 1000


def unwrapped(corners):
    return [(command, x.expected, y.expected) for command, x, y in corners]


def test_the_first_tenth_takes_at_most_as_much_room_as_the_rest():
    """From 9 it falls to 1 within a tenth of the steps: to 0 are as many pixels as the rest needs."""
    line = Line("a", range(101), [9.0 - i for i in range(8)] + [1.0 - i / 92 for i in range(93)])
    plain, robust = Picture([line]), Picture([line], robust=True)
    assert plain.beside()[-1][1] == "8" and float(robust.beside()[-1][1]) == 2.0
    assert Picture([line], robust=True, y_range=(0.0, 9.0)).beside()[-1][1] == "8"
    assert Picture([line], robust=True, log_y=True).beside() == Picture([line], log_y=True).beside()
    flat = Line("a", range(101), [9.0] + [1.0] * 100)
    assert "nan" not in still_svg(Chart([flat], robust=True))


def test_a_line_beyond_the_others_does_not_flatten_them():
    far = Line("far", [0, 10], [0.0, 1e6], "red", beyond=True)
    assert Picture([TWO, far]).beside() == Picture([TWO]).beside() and Picture([far]).beside() != Picture([TWO]).beside()
    assert "far" in Picture([TWO, far]).words()


# --- the data for the page ---


def floats_of(text):
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32).tolist() if text else []


def points_of(line):
    """The points of a line as `chart.js` reads them."""
    x = line["x"]
    if isinstance(x, list):
        xs = [x[0] + i * x[1] for i in range(x[2])]
    else:
        xs = list(itertools.accumulate(x["d"])) if isinstance(x, dict) else floats_of(x)
    return xs, floats_of(line["y"])


@pytest.mark.parametrize(
    "xs, kind",
    [
        (range(3, 8), list),
        (range(0, 10, 2), list),
        ([3, 4, 6, 7, 2**24 + 1], dict),
        (torch.tensor([1, 5, 6, 7, 9]), dict),
        ([0.5, 1.0, 2.0, 3.0, 4.25], str),
    ],
)
def test_points_reach_the_page(xs, kind):
    ys = [1.0, 0.1, nan, inf, 1e300]
    line = chart_spec(Chart([Line("a", xs, ys)]))["lines"][0]
    found_x, found_y = points_of(line)
    assert isinstance(line["x"], kind) and found_x == [float(x) for x in xs]
    assert found_y[:2] == [1, pytest.approx(0.1)] and math.isnan(found_y[2]) and found_y[3:] == [inf, inf]


def test_no_points_reach_the_page_either():
    for xs in ([], range(0), torch.zeros(0)):
        assert points_of(chart_spec(Chart([Line("a", xs, [])]))["lines"][0]) == ([], [])


def test_the_look_of_a_line_reaches_the_page():
    lines = [
        Line("a", [0], [1.0]),
        Line("b", [0], [1.0], COLORS["raw"], faint=True),
        Line("c", [0], [1.0], RUN_COLORS[3], dots=True, dash=True, run=1, beyond=True),
        Line("d", [0], [1.0], "red", dash="dot", held=True, of="a"),
    ]
    found = [{name: value for name, value in line.items() if name not in "xy"} for line in chart_spec(Chart(lines))["lines"]]
    assert found == [
        dict(name="a", color="var(--cbnb-train)"),
        dict(name="b", color="var(--cbnb-raw)", kind="faint"),
        dict(name="c", color="var(--cbnb-run3)", kind="dots", dash="dash", run=1, beyond=True),
        dict(name="a", color="red", dash="dot", held=True),
    ]


@pytest.mark.parametrize("n, most, k", [(1, 400, 1), (400, 400, 1), (401, 400, 2), (1001, 400, 3)])
def test_the_source_of_a_smoothed_line_is_means_of_neighbors(n, most, k):
    ys = [float(i) for i in range(n)]
    found, size = means(ys, most)
    assert size == k and len(found) == n // k and found[0] == (k - 1) / 2 and means(torch.tensor(ys), most) == (found, k)
    line = chart_spec(Chart([Line("a", range(5, 5 + n), ys, smooths=list(ys))], smoothing=0.9, points=most))["lines"][0]
    xs, values = points_of(line["source"])
    assert values == pytest.approx(found) and xs == [5 + i * k + (k - 1) / 2 for i in range(len(found))] and line["source"]["k"] == k


def test_means_leave_out_what_is_not_finite():
    assert means([1.0, nan, inf, 4.0, 2.0, 4.0], 3) == ([1, 4, 3], 2) and math.isnan(means([nan, nan, 1.0, 1.0], 2)[0][0])


def test_the_layout_reaches_the_page():
    marks, events = [Mark("m", 1, 2.0, COLORS["mark"]), Mark("n", 1, nan, "red")], [Event(3, "lr", "half")]
    spec = chart_spec(
        Chart(
            [TWO], marks=marks, events=events, borders=[4], epochs=[(4, 0)], band=(1, 2), cursor=5, title="t", xlabel="x", ylabel="y", log_y=True,
            size=(900, 300), smoothing=0.9, say=lr_text, runs=[("run 0", 0, RUN_COLORS[5])], details={"a": [("lr", "0.1", True)]}, robust=True,
        )
    )  # fmt: skip
    assert spec["marks"] == [dict(name="m", x=1, y=2.0, color="var(--cbnb-mark)", strong=False, faint=False)]
    assert spec["events"] == [dict(x=3, kind="lr", text="half")] and (spec["borders"], spec["epochs"], spec["band"]) == (
        [4],
        [(4, 0)],
        (1, 2),
    )
    assert (spec["title"], spec["x_label"], spec["y_label"], spec["log_x"], spec["log_y"]) == ("t", "x", "y", False, True)
    assert (spec["chosen"], spec["width"], spec["whole"], spec["x_format"], spec["robust"]) == (5, 900, True, "rate", True)
    assert spec["tools"] == ["smooth", "log_y"] and spec["smoothing"] == 0.9
    assert spec["runs"] == [dict(name="run 0", start=0, color="var(--cbnb-run5)")] and spec["details"] == {"a": [("lr", "0.1", True)]}


@pytest.mark.parametrize("say, name", [(number, "number"), (lr_text, "rate"), (count_text, "count"), (str, "number")])
def test_values_of_x_are_written_as_asked_for(say, name):
    assert Chart([TWO], say=say).x_format == name and Chart([TWO], say=say, x_format="time").x_format == "time"


def test_controls_are_those_that_were_asked_for():
    assert Chart([TWO]).tools == ["log_y"] and Chart([TWO], tools=[]).tools == []
    assert Chart([TWO], tools=["overlay", "log_x"], smoothing=0.5).tools == ["smooth", "log_x", "overlay"]
    assert Chart([TWO], tools=["smooth"], smoothing=0.0).tools == ["smooth"]


def test_whole_steps_are_told_from_others():
    assert chart_spec(Chart([TWO, Line("e", [], [])]))["whole"] and not chart_spec(Chart([TWO, Line("b", [0.5], [1.0])]))["whole"]


def data_of(page):
    """The data in the script of a page, which is the second of its packed texts."""
    return json.loads(packed_texts(page)[1])


def test_nothing_that_is_not_finite_stops_a_chart():
    """JSON has no nan."""
    for layout in (
        dict(borders=[nan, 3]), dict(marks=[Mark("m", nan, 1.0, "red"), Mark("n", 1, inf, "red")]), dict(band=(nan, 5)), dict(cursor=nan),
        dict(events=[Event(nan, "lr", "")]), dict(epochs=[(nan, 0)]),
    ):  # fmt: skip
        (spec,) = data_of(chart([TWO], live=True, **layout))["charts"]  # without what is empty
        assert spec.get("borders", []) in ([], [3]) and not any(map(spec.get, ("marks", "events", "epochs")))
        assert spec.get("band") is spec.get("chosen") is None


def test_a_page_of_several_charts():
    one, two = Chart([TWO], text="first"), Chart([TWO], title="second")
    page = charts_html([one, two], columns=2, live=True)
    assert page.count("<img") == 2 and 'alt="first"' in page and page.count("<script>") == 1
    data = data_of(page)
    assert data["columns"] == 2 and [spec.get("title", "") for spec in data["charts"]] == ["", "second"] and ".cbnb-lc" in data["css"]
    assert "<script" not in charts_html([one, two], live=False) and chart([TWO], live=False) == charts_html([Chart([TWO])], live=False)
    assert "<script" not in chart([TWO])  # there is no page


def test_curves_in_words():
    assert described([("a", [3.0, 1.0, 2.0, nan]), ("b", [inf])], "title") == "title; a from 3 to 2, lowest 1; b: no values"
    assert described([("learning rate", [2.0, 1.0])], "Learning rate") == "learning rate from 2 to 1, lowest 1"  # said once
    assert described([]) == "empty chart" and Chart([TWO]).text == "a from 0 to 1, lowest 0"
    assert Chart([TWO], title="t").text == "t; " + Chart([TWO]).text and Chart([TWO], text="mine").text == "mine"
    assert (
        Chart([TWO, Line("b", [0], [5.0]), TWO._replace(ys=torch.tensor([7.0, 0.5]))]).text
        == "a from 0 to 0.5, lowest 0; b from 5 to 5, lowest 5"
    )


def test_a_sparkline_is_a_line_of_means():
    assert sparkline([7, 6, 5, 4, 3, 2, 1, 0]) == "█▇▆▅▄▃▂▁"
    assert sparkline([0, 0, 7, 7], width=2) == "▁█" and sparkline([0, 2, nan, 14, 14], width=2) == "▁█"
    assert sparkline([nan, 1, 8]) == " ▁█" and sparkline([nan]) == " " and sparkline([]) == "" and sparkline([3, 3]) == "▁▁"
    assert len(sparkline(range(100))) == 24 and sparkline(range(100))[0] == "▁" and sparkline(range(100))[-1] == "█"


def test_labels_of_large_values_fit_beside_the_picture():
    """A label like 3,000,000 was cut off at the left."""
    page = still_svg(Chart([Line("loss", range(4), [0.0, 3e6, 1e6, 2e6])]))
    assert ">3e6<" in page and ">0<" in page and ">1,000,000<" not in page
    page = still_svg(Chart([Line("loss", range(4), [1.0, 3e6, 10.0, 2e6])], log_y=True))
    assert ">1e6<" in page and ">100<" in page
    assert ">200,000<" in still_svg(Chart([Line("loss", range(4), [0.0, 3e5, 1e5, 2e5])]))
