"""Curves as HTML and SVG: numbers, ticks and places that can be worked out by hand. Plots with controls are in test_widgets.py."""

import math
import re

import pytest
import torch

from cbnb.basics.text import number
from cbnb.display import chart as charts
from cbnb.display.chart import (
    Axis,
    Line,
    LiveCurve,
    Mark,
    described,
    linear_ticks,
    log_ticks,
    nice_step,
    path,
    sparkline,
    thinned,
    tick_labels,
)

nan, inf = math.nan, math.inf


def chart(*args, **kwargs):
    """The page, with its texts where they are read: the library keeps them in attributes that the style shows."""
    return re.sub(r' data-t="([^"]*)"></', r">\1</", charts.chart(*args, **kwargs))


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
        ([1, 1.0000001], False, ["1", "1"]),
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
    assert path([0, 2, 4], [0, 1, 0.5], x, y, (100, 10)) == "M0.0,10.0L50.0,0.0L100.0,5.0"
    assert path([0, 1, 2, 3, 4], [0, nan, 1, nan, nan], x, y, (100, 10)) == "M0.0,10.0h0M50.0,0.0h0"  # points alone are dots
    assert path([0, 1, 2, 3], [0, 1, nan, 1], x, y, (100, 10)) == "M0.0,10.0L25.0,0.0M75.0,0.0h0"
    assert path([0, 2], [0, 1], x, y, (100, 10), dots=True) == "M0.0,10.0h0M50.0,0.0h0"
    assert path([], [], x, y, (100, 10)) == "" == path([0], [nan], x, y, (100, 10))


def test_far_outside_is_just_outside():
    x, y = Axis([0, 4]), Axis([0, 1])
    assert path([0, 1, 2, 3], [1e9, 2, -1, -1e9], x, y, (100, 10)) == "M0.0,-10.0L25.0,-10.0L50.0,20.0L75.0,20.0"


def drawn(page, look):
    """The `d` of all paths of this class."""
    return re.findall(rf'<path class="{look}"[^>]*? d="(.*?)"', page)


TWO = Line("a", [0, 10], [0.0, 1.0])  # in a plane of 640 x 220; with 5% above and below, from 210 to 10


def test_a_chart_of_one_line():
    page = chart([TWO])
    assert drawn(page, "") == ["M0.0,210.0L640.0,10.0"] and drawn(page, "dots") == []
    across, down = "".join(f"M0,{210 - 40 * k:.1f}H640" for k in range(6)), "".join(f"M{128 * k:.1f},0V220" for k in range(6))
    assert drawn(page, "grid") == [across + down] and drawn(page, "axis") == ["M0,0V220H640"]
    assert re.findall(r'<span style="left:(.*?)%">(.*?)</span>', page) == [(f"{20 * k:.1f}", f"{2 * k}") for k in range(6)]
    assert re.findall(r'<span style="top:(.*?)%">(.*?)</span>', page) == [
        (place, f"{k / 5:.1f}") for k, place in enumerate(("95.5", "77.3", "59.1", "40.9", "22.7", "4.5"))
    ]
    assert '<span class="wide">0.0</span>' in page and 'class="legend"' not in page and 'aria-label="a from 0 to 1, lowest 0"' in page
    assert page.count('viewBox="0 0 640 220"') == 2 and 'style="height:220px"' in page and "max-width:640px" in page


@pytest.mark.parametrize(
    "size, plane, n_x, n_y",
    [((100, 90), (100, 60), 3, 2), ((2000, 400), (2000, 340), 6, 11), ((300, 131), (300, 71), 3, 2), ((300, 132), (300, 72), 3, 3)],
)
def test_the_number_of_ticks_follows_the_size(size, plane, n_x, n_y):
    page = chart([TWO], size=size)
    assert f'viewBox="0 0 {plane[0]} {plane[1]}"' in page
    assert len(re.findall(r'<span style="left:', page)) == n_x and len(re.findall(r'<span style="top:', page)) == n_y


def test_names_and_labels_are_text_whatever_is_in_them():
    page = chart(
        [Line("<i>a", [0], [1], "<red>")] * 2,
        marks=[Mark("<b>m", 0, 1, "<blue>")],
        xlabel="<x>",
        ylabel="<y>",
        title="<t>",
        hover=True,
        cursor=0,
    )
    for text in ("<i>a", "<red>", "<b>m", "<blue>", "<x>", "<y>", "<t>"):
        assert text not in page and text.replace("<", "&lt;").replace(">", "&gt;") in page


def test_the_legend_and_the_values_at_the_cursor():
    page = chart([TWO, Line("b", [0, 4], [1.0, 1.0], faint=True), Line("v", [5], [0.5], dots=True, dash=True)], cursor=9, xlabel="step")
    legend = re.search(r'<div class="legend">(.*?)</div>', page)[1]
    assert re.sub("<.*?>", "", legend) == "step 9a 1b –v 0.5"
    assert re.findall(r'class="key (.*?)" style="(\w+):', legend) == [("", "color"), ("faint", "color"), ("dots dash", "background")]
    assert drawn(page, "cursor") == ["M576.0,0V220"] and drawn(page, "dots") == ["M320.0,110.0h0", "M576.0,10.0h0"]
    assert drawn(page, "dash") == [] and drawn(page, " dash") == ["M320.0,110.0h0"] and drawn(page, "faint") == ["M0.0,10.0L256.0,10.0"]
    assert "<b>x 9</b>" in chart([TWO], cursor=9) and 'class="legend"' in chart([TWO, TWO])


def test_borders_and_marks_inside_of_the_plane_only():
    page = chart(
        [TWO],
        borders=[-1, 0, 5, 10, 11, nan],
        marks=[Mark("m", 5, 0.5, "red"), Mark("s", 10, 1.0, "blue", strong=True), Mark("n", nan, 1, "red")],
    )
    assert drawn(page, "border") == ["M0.0,0V220M320.0,0V220M640.0,0V220"]
    assert drawn(page, "mark") == ["M320.0,110.0h0", "M640.0,10.0h0"] and drawn(page, "strong") == ["M640.0,0V220"]
    assert re.findall('<path class="(?:strong|mark)" stroke="(.*?)"', page) == ["red", "blue", "blue"]
    assert drawn(chart([TWO], borders=[0], log_x=True), "border") == []
    clipped = chart([TWO], y_range=(0.0, 0.5), marks=[Mark("m", 5, 0.7, "red"), Mark("n", 5, 0.5, "red")], cursor=10)
    assert drawn(clipped, "mark") == ["M320.0,0.0h0"] and drawn(clipped, "dots") == []


def test_marks_are_given_room_on_both_axes():
    page = chart([TWO], marks=[Mark("m", 20, 2.0, "red")])
    assert drawn(page, "") == ["M0.0,210.0L320.0,110.0"] and drawn(page, "mark") == ["M640.0,10.0h0"]


def test_dots_outside_of_the_given_range_are_not_drawn():
    dots = Line("v", [0, 5, 10], [0.0, 1.0, 3.0], dots=True)
    assert drawn(chart([dots], y_range=(0.0, 1.0)), "dots") == ["M0.0,220.0h0M320.0,0.0h0"]
    with pytest.raises(ValueError, match="low below high"):
        chart([dots], y_range=(1.0, 1.0))


def test_an_empty_chart_says_so():
    page = chart([Line("a", [], [])], hover=True)
    assert "no values yet" in page and 'class="at' not in page and 'aria-label="a: no values"' in page
    assert 'aria-label="empty chart"' in chart([]) and "no values yet" not in chart([TWO])
    assert "no values yet" in chart([Line("a", [0], [1.0])], log_x=True) and "no values yet" in chart([Line("a", [1], [0.0])], log_y=True)


def columns(page):
    """Of each column under the mouse: its class, the four places, and what it says."""
    found = re.findall(
        r'<div class="(at|at late)" style="left:(.*?)%;width:(.*?)%;--i:(.*?)%;--p:(.*?)%"><i></i><div>(.*?)</div></div>', page
    )
    return [(look, *map(float, where), re.sub("<.*?>", " ", text).split()) for look, *where, text in found]


def test_a_column_for_each_point_under_the_mouse():
    """Points at 0, 0.2 and 1: borders half way, at 0.1 and 0.6."""
    page = chart([Line("a", [0.0, 2.0, 10.0], [5.0, nan, 7.0])], hover=True, xlabel="lr")
    assert columns(page) == [
        ("at", 0.0, 10.0, 0.0, 0.0, ["lr", "0", "a", "5"]),
        ("at", 10.0, 50.0, 20.0, 20.0, ["lr", "2"]),
        ("at late", 60.0, 40.0, 100.0, 100.0, ["lr", "10", "a", "7"]),
    ]
    assert columns(chart([TWO])) == [] and columns(chart([TWO], hover=True))[0][-1][0] == "x"


def test_of_many_points_sixty_have_a_column():
    stops = [float(text[1]) for *_, text in columns(chart([Line("a", range(601), [0.0] * 601)], hover=True, points=700))]
    assert len(stops) == 60 and stops[:2] == [5, 15] and stops[-1] == 595  # the middle of each sixtieth
    assert len(columns(chart([Line("a", range(60), [0.0] * 60)], hover=True))) == 60
    page = chart([Line("a", [10 ** (i / 200) for i in range(601)], [0.0] * 601)], hover=True, log_x=True, points=700)
    lefts = [left for _, left, *_ in columns(page)]
    assert len(lefts) == 60 and lefts[30] == pytest.approx(50, abs=1)  # even steps of the exponent


def names(page):
    """Where names of marks stand: name -> side, place along, place down, bold."""
    found = re.findall(r'<span class="name" style="(left|right):(.*?)%;top:(.*?)%;color:\w+(;font-weight:700)?">(.*?)</span>', page)
    return {name: (side, float(along), float(down), bool(bold)) for side, along, down, bold, name in found}


BOX = dict(size=(640, 260), y_range=(0.0, 1.0))  # a plane of 640 x 200


def marked(*marks, lines=()):
    line = Line("corners", [0, 100], [nan, nan])
    return names(chart([line, *lines], marks=[Mark(name, x, y, "red", strong) for name, x, y, strong in marks], **BOX))


def test_the_name_of_a_mark_stands_above_it_to_the_right():
    """11 pixels above the middle of 200 are 44.5%."""
    assert marked(("a", 0, 0.5, False), ("b", 50, 0.5, True)) == {"a": ("left", 0.0, 44.5, False), "b": ("left", 50.0, 44.5, True)}


def test_at_a_border_the_name_of_a_mark_is_where_there_is_room():
    assert marked(("a", 0, 0.0, False), ("m", 100, 0.5, False)) == {"a": ("left", 0.0, 94.5, False), "m": ("right", 0.0, 44.5, False)}
    assert marked(("a", 0, 0.5, False), ("t", 100, 1.0, False))["t"] == ("right", 0.0, 5.5, False)


def test_names_of_marks_do_not_cover_each_other_nor_a_line():
    two = marked(("weak", 50, 0.5, False), ("strong", 50, 0.5, True), ("end", 0, 0.5, False))
    assert two["strong"] == ("left", 50.0, 44.5, True) and two["weak"] == ("right", 50.0, 44.5, False)
    above = Line("above", list(range(101)), [0.5 + 11 / 200] * 101)
    assert marked(("a", 50, 0.5, False), ("b", 0, 0.5, False), lines=[above])["a"] == ("left", 50.0, 55.5, False)


def test_the_name_of_a_mark_covers_no_other_mark():
    """The second is where the name of the first would stand."""
    assert marked(("a", 50, 0.5, False), ("b", 52, 0.5 + 11 / 200, False), ("end", 0, 0.1, False))["a"] == ("right", 50.0, 44.5, False)


def test_near_the_lower_border_a_name_moves_further_up():
    """10 pixels above it: 11 below would be outside, 11 above is a line, so it is 26 above."""
    above = Line("above", list(range(101)), [0.05 + 11 / 200] * 101)
    assert marked(("a", 50, 0.05, False), ("end", 0, 0.5, False), lines=[above])["a"] == ("left", 50.0, 82.0, False)


def test_curves_in_words():
    assert described([("a", [3.0, 1.0, 2.0, nan]), ("b", [inf])], "title") == "title; a from 3 to 2, lowest 1; b: no values"
    assert described([]) == "empty chart" and 'aria-label="mine"' in chart([TWO], text="mine")


def test_a_sparkline_is_a_line_of_means():
    assert sparkline([7, 6, 5, 4, 3, 2, 1, 0]) == "█▇▆▅▄▃▂▁"
    assert sparkline([0, 0, 7, 7], width=2) == "▁█" and sparkline([0, 2, nan, 14, 14], width=2) == "▁█"
    assert sparkline([nan, 1, 8]) == " ▁█" and sparkline([nan]) == " " and sparkline([]) == "" and sparkline([3, 3]) == "▁▁"
    assert len(sparkline(range(100))) == 24 and sparkline(range(100))[0] == "▁" and sparkline(range(100))[-1] == "█"


def live(raw, smooth=None):
    curve = LiveCurve()
    curve.add(raw, raw if smooth is None else smooth)
    return curve


def test_steps_are_joined_when_there_are_more_than_buckets():
    values = [float(i) for i in range(54)]
    curve = live(values)
    assert (curve.size, curve.n_steps, curve.lows, curve.highs) == (1, 54, values, values)
    curve.add([100.0], [99.0])  # the 55th step: 27 buckets of two, and a new one
    assert (curve.size, curve.filled, curve.n_steps, len(curve.lows)) == (2, 1, 55, 28)
    assert curve.lows[:2] == [0, 2] and curve.highs[:2] == [1, 3] and curve.smooth[:2] == [1, 3] and curve.smooth[-1] == 99
    curve.add([98.0], [98.5])
    assert (curve.lows[-1], curve.highs[-1], curve.smooth[-1], curve.n_steps, len(curve.lows)) == (98, 100, 98.5, 56, 28)
    assert LiveCurve().n_steps == 0


def test_the_drawing_does_not_depend_on_how_many_steps_come_at_once():
    values = [math.sin(i) if i % 7 else nan for i in range(300)]
    at_once, one_by_one = live(values), LiveCurve()
    for value in values:
        one_by_one.add([value], [value])
    assert at_once.svg() == one_by_one.svg() and at_once.n_steps == 300 and at_once.size == 8


@pytest.mark.parametrize(
    "raw, valid, limits",
    [
        ([], [], (0, 1)),
        ([nan], [], (0, 1)),
        ([4.0, 2.0], [], (2, 4)),
        ([3.0], [], (2.6, 3.4)),
        ([0.0], [], (-0.6, 0.6)),
        ([1.1, 1.9], [(1, 2.5)], (1, 2.5)),
    ]
    + [([99.0] + [1.0] * 9 + [2.0] * 10, [], (1, 2)), ([99.0] + [1.0] * 8, [], (0, 100))],
)
def test_the_axis_of_the_live_curve_forgets_the_first_tenth(raw, valid, limits):
    """Five steps of 1, 2 or 5 have to be enough; of twenty steps, the first two may be higher than the axis."""
    curve = live(raw)
    curve.svg(valid)
    assert curve.y_limits == pytest.approx(limits)


def test_the_labels_of_the_live_curve():
    assert live([4000.0, 2000.0]).labels == ("4,000", "2,000", "1") and LiveCurve().labels == ("1", "0", "0")


def live_paths(curve, valid=()):
    return dict(re.findall(r"<path class=(\w) d='(.*?)'", curve.svg(valid)))


def test_the_live_curve_step_by_step():
    """From 0 at the top to 99 at the bottom; a step is 2 wide, with the raw loss at a quarter and three, the smoothed one at its end."""
    curve = live([4.0, 2.0], [4.0, 3.0])
    assert live_paths(curve) == {"r": "M.5 0h0l1 0 1 99 1 0", "s": "M2 0h0l2 50"} and "viewBox='0 0 4 99'" in curve.svg()
    assert live_paths(curve, [(0, 3.0), (1, nan), (1, 2.0)]) == live_paths(curve) | {"w": "M2 50l2 49", "v": "M2 50h0m2 49h0"}


def test_at_most_a_thousand_characters_and_the_latest_validations():
    torch.manual_seed(0)
    curve = live(torch.rand(4000).tolist())
    valid = [(100 * i, i / 40) for i in range(41)]
    page = curve.svg(valid)
    assert len(page) <= 1000 and page.endswith("</svg>") and "class=v" in page
    few = live([0.0, 1.0]).svg([(i / 20, i / 40) for i in range(41)])
    assert few.split("class=v")[1].count("h0") == 20  # never more


@pytest.mark.parametrize(
    "band, rect", [((2, 5), ("128.0", "192.0")), ((-5, 20), ("0.0", "640.0")), ((4, 4), ("256.0", "0.0")), ((nan, 5), None), (None, None)]
)
def test_a_band_is_shaded_inside_of_the_plane(band, rect):
    found = re.findall(r'<rect class="band" x="(.*?)" width="(.*?)" height="220" fill="(.*?)"/>', chart([TWO], band=band))
    assert found == ([] if rect is None else [(*rect, charts.COLORS["mark"])])
    assert "<rect" not in chart([Line("a", [1, 10], [0.0, 1.0])], band=(0, 5), log_x=True)


def test_epochs_are_a_second_row_below():
    page = chart([TWO], epochs=[(-1, 0), (0, 1), (5, 2), (10, 3), (11, 4)], xlabel="step")
    first, second = re.findall(r'<div class="xs">(.*?)</div>', page)
    assert (
        re.findall(r'left:(.*?)%">(.*?)<', second) == [("0.0", "1"), ("50.0", "2"), ("100.0", "3")] and len(re.findall("left", first)) == 6
    )
    assert re.findall(r'<div class="small what">(.*?)</div>', page) == ["step", "epoch"]
    assert "epoch" not in chart([TWO]).split("</style>")[1] and chart([TWO]).count('<div class="xs">') == 1


def test_labels_of_the_axes():
    page = chart([TWO], xlabel="rate", ylabel="loss", title="Losses").split("</style>")[1]
    assert page.startswith('<div class="title">Losses</div><div class="small">loss</div><div class="body">')
    assert page.endswith('<div class="small" style="grid-column:2;text-align:center">rate</div></div></div>')
    assert "small" not in chart([TWO]).split("</style>")[1]


def test_values_of_x_are_written_as_asked_for():
    page = chart([TWO], cursor=4, hover=True, say=lambda v: f"at {v:.0f}", xlabel="lr")
    assert "<b>lr at 4</b>" in page and [text[:3] for *_, text in columns(page)] == [["lr", "at", "0"], ["lr", "at", "10"]]


@pytest.mark.parametrize(
    "lo, hi, limits",
    [(None, 1.0, (0, 1)), (1.0, None, (0, 1)), (1.0, 2.0, (1, 2)), (1.05, 1.95, (1, 2)), (0.0, 7.0, (0, 8)), (5.0, 5.0, (4.4, 5.6))],
)
def test_limits_at_even_steps(lo, hi, limits):
    assert charts.rounded_limits(lo, hi) == pytest.approx(limits)


def test_the_limits_of_losses_are_those_of_the_live_curve():
    assert charts.loss_limits([99.0] + [1.0] * 9 + [2.0] * 10, torch.ones(20), [2.5, nan]) == pytest.approx((1, 2.5))
    assert charts.loss_limits([], [], []) == (0, 1)


@pytest.mark.parametrize(
    "n, ys, at, xs",
    [
        (12, ["15", "10", "5", "0"], 5 / 11, ["0", "5", "10"]),
        (0, ["1.0", "0.8", "0.6", "0.4", "0.2", "0.0"], 1.0, ["0", "1"]),
        (11, ["10", "8", "6", "4", "2", "0"], 0.2, ["0", "2", "4", "6", "8", "10"]),
        (2, None, 1.0, ["0", "1"]),
    ],
)
def test_ticks_of_the_live_curve(n, ys, at, xs):
    """From the top; and where the second label below is."""
    found = live([float(i) for i in range(n)]).ticks
    assert (found[1], found[2]) == (pytest.approx(at), xs) and (ys is None or found[0] == ys)


def test_shared_entries_of_the_legend():
    page = chart([TWO, Line("valid", [5], [0.5], dots=True, of="a")], cursor=6, hover=True)
    legend = re.search(r'<div class="legend">(.*?)</div>', page)[1]
    assert re.sub("<.*?>", "", legend) == "x 6a 1 · valid 0.5"
    assert [text for *_, text in columns(page)][-1][2:] == ["a", "1", "·", "valid", "0.5"]


def test_a_dot_is_drawn_only_inside():
    dots = Line("v", [0, 5, 10], [-0.5, 0.5, 1.5], dots=True)
    page = chart([dots], y_range=(0.0, 1.0), cursor=5)
    assert drawn(page, "dots") == ["M320.0,110.0h0", "M320.0,110.0h0"]
    assert drawn(chart([dots], y_range=(0.0, 1.0), cursor=9), "dots") == ["M320.0,110.0h0", "M576.0,110.0h0"]


def test_many_points_are_thinned_as_asked():
    line = Line("a", range(1000), [float(i % 10) for i in range(1000)])
    assert drawn(chart([line]), "")[0].count("L") < 400 and drawn(chart([line], points=1000), "")[0].count("L") == 999
