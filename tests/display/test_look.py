"""Colors that can be told apart, and one way of writing a number, in Python and in the page."""

import json
import math
import random
import re
import shutil
import subprocess

import pytest

from cbnb.basics.buffers import Smoother
from cbnb.basics.text import number
from cbnb.display import figures
from cbnb.display.axes import Axis, linear_ticks, log_ticks, tick_labels
from cbnb.display.chart import chart_css
from cbnb.display.look import (
    COLORS,
    PAGES,
    PALETTE,
    RUN_COLORS,
    RUN_SHADES,
    contrast,
    count_text,
    css_variables,
    in_page,
    lr_text,
    value_text,
)
from cbnb.display.page_script import asset, script

TEXTS = ("text", "quiet", "good", "bad")
THEMES = range(2)  # light, dark: of a color


# --- colors ---


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name, shade", [*PALETTE.items(), *((f"run{i}", shade) for i, shade in enumerate(RUN_SHADES))])
def test_marks_and_text_stand_out_from_the_page(name, shade, theme):
    """WCAG 2.2, 1.4.11 and 1.4.3."""
    if name != "page":
        assert contrast(shade[theme], PAGES[theme]) >= (4.5 if name in TEXTS else 3)


def test_contrasts_that_are_known():
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#ffffff", "#ffffff") == 1
    assert contrast("#777777", "#ffffff") == contrast("#ffffff", "#777777") == pytest.approx(4.478, abs=0.001)


def test_light_colors_are_those_of_figures():
    assert COLORS == {name: light for name, (light, _) in PALETTE.items()} and RUN_COLORS == [light for light, _ in RUN_SHADES]
    assert all(len(shade) == 2 and all(re.fullmatch("#[0-9a-f]{6}", color) for color in shade) for shade in PALETTE.values())
    assert set(figures.RULE_COLORS.values()) <= set(COLORS.values()) and len(set(figures.RULE_COLORS.values())) == len(figures.RULE_COLORS)


def test_colors_follow_the_theme_of_the_page():
    assert in_page(COLORS["train"]) == "var(--cbnb-train)" and in_page("red") == "red" and in_page(RUN_COLORS[5]) == "var(--cbnb-run5)"
    css = css_variables(".here")
    light, dark, auto = re.findall(r"--cbnb-valid:(#\w+);", css)
    assert (light, dark, auto) == (*PALETTE["valid"], PALETTE["valid"][1]) and css.startswith(".here{--cbnb-")
    for page in ("[data-jp-theme-light=false] .here", ".vscode-dark .here", "body[data-theme=dark] .here", "html[theme=dark] .here"):
        assert page in css
    assert css.index("prefers-color-scheme") > css.index(".vscode-dark")


@pytest.mark.parametrize("name", ["chart.css", "chart.js", "live_chart.js", "schedule.css", "schedule.js", "compare.css", "compare.js"])
def test_pages_use_colors_that_exist(name):
    defined = set(re.findall(r"--cbnb-[\w-]+(?=:)", css_variables(".cbnb-lc")))
    try:
        used = set(re.findall(r"--cbnb-[\w-]+", asset(name)))
    except FileNotFoundError:
        pytest.skip(f"there is no {name}")
    assert used <= defined


def test_the_style_of_charts_has_its_colors():
    css = chart_css()
    assert set(re.findall(r"var\((--cbnb-[\w-]+)", css)) <= set(re.findall(r"(--cbnb-[\w-]+):", css)) and css.count("{") == css.count("}")


# --- numbers ---


@pytest.mark.parametrize(
    "lr, text",
    [
        (0.001, "0.001"), (0.00123, "0.0012"), (1e-4, "0.0001"), (9.96e-4, "0.001"), (3.2e-5, "3.2e-5"), (1e-5, "1e-5"), (0.125, "0.12"), (1, "1"),
        (0.999, "1"), (12.3, "12"), (1234, "1234"), (12345, "1.2e4"), (1e-300, "1e-300"), (0, "0"), (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_rates_have_two_digits(lr, text):
    assert lr_text(lr) == text


def test_values_and_counts():
    assert value_text(0.25131) == "0.2513" and value_text(None) == "–" and count_text(12345) == "12,345" and count_text(0) == "0"


# --- the same in the page ---


def in_node(code: str, values: object) -> object:
    """What JavaScript makes of values: `code` is a function of them, with the names of page.js and chart.js."""
    if not shutil.which("node"):
        pytest.skip("there is no node")
    names = "number, rate, linearTicks, logTicks, shortLabels, smoothed, Points"
    code = script("chart.js") + f"\nconst f = {code}\nprocess.stdout.write(JSON.stringify(f({json.dumps(values)}, {{{names}}})))"
    found = subprocess.run(["node", "--input-type=module", "-"], input=code, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(found.stdout)


def some_numbers() -> list[float]:
    """Of all sizes, just below a power of ten, and just between two ways of writing them."""
    rng = random.Random(0)
    found = [rng.uniform(1, 10) * 10.0**k * rng.choice((1, -1)) for k in range(-12, 13) for _ in range(20)]
    found += [sign * float(f"{m}e{k}") for k in range(-9, 10) for m in (1, 1.5, 2.5, 9.9994, 9.9995, 9.9996, 9.95) for sign in (1, -1)]
    found += [k / 2**p for p in range(1, 8) for k in (1, 3, 5, 7, 33, 129, 12345, 2469)] + [1234.5, 1235.5, 0.1, 0.3, 1.005, 1.015]
    return found + [0.0, 999.95, 9999.5, 99999.5, 9_999_999, 9_999_999.5, 1e7, 12_345_000_000.0]


def test_numbers_are_written_as_python_writes_them():
    values = some_numbers()
    assert len(values) > 500
    written = in_node("(values, { number, rate }) => values.map(v => [number(v), v > 0 ? rate(v) : ''])", values)
    assert [text for text, _ in written] == [number(v) for v in values]
    assert [text for _, text in written] == [lr_text(v) if v > 0 else "" for v in values]


def test_ticks_are_those_of_python():
    rng = random.Random(0)
    spans = [
        (lo, lo + 10.0**k * rng.uniform(0.2, 5), rng.randint(2, 12), rng.random() < 0.3)
        for k in range(-8, 9)
        for lo in (0, -(10.0**k), 3.3 * 10.0**k)
    ]
    spans += [(0, 20, 6, True), (0, 1e7, 5, False), (-1e7, 1e7, 5, False), (0, 5e-4, 3, False), (5, 5 + 1e-7, 3, False)]
    found = in_node("(spans, { linearTicks }) => spans.map(span => linearTicks(...span).map(([v, text]) => [v, text]))", spans)
    for span, ticks in zip(spans, found):
        expected = linear_ticks(*span)
        assert [v for v, _ in ticks] == pytest.approx(expected, abs=1e-12 * span[1]) and [text for _, text in ticks] == tick_labels(
            expected
        ), span


def test_logarithmic_ticks_with_a_label_are_those_of_python():
    rng = random.Random(0)
    spans = [(10 ** rng.uniform(-9, 3), 10 ** rng.uniform(0.05, 9), rng.randint(2, 12)) for _ in range(200)]
    spans = [(lo, lo * times, n) for lo, times, n in spans] + [
        (1, 1000, 6),
        (1, 10, 6),
        (10, 1e12, 4),
        (2, 4, 6),
        (4, 30, 6),
        (4, 45, 2),
        (1e-7, 10, 8),
    ]
    exponents = [(math.log10(lo), math.log10(hi), n) for lo, hi, n in spans]
    found = in_node(
        "(spans, { logTicks }) => spans.map(span => logTicks(...span).filter(([, text]) => text).map(([v, text]) => [v, text]))", exponents
    )
    for (lo, hi, n), ticks in zip(spans, found):
        expected = log_ticks(lo, hi, n)
        assert ([v for v, _ in ticks], [text for _, text in ticks]) == (pytest.approx(expected), tick_labels(expected, True)), (lo, hi, n)


@pytest.mark.parametrize(
    "lo, hi, labels",
    [
        (0, 6e5, ["0", "200,000", "400,000", "600,000"]),
        (0, 6e6, ["0", "2e6", "4e6", "6e6"]),
        (1e-7, 2e-7, ["1e-7", "1.5e-7", "2e-7"]),
        (123456, 123458, ["123,456", "123,457", "123,458"]),
        (-12345.002, -12345, ["-12,345.002", "-12,345.001", "-12,345.000"]),  # with exponents, all three were -1.234e4
    ],
)
def test_labels_beside_a_chart_are_distinct_and_as_short_as_that_allows(lo, hi, labels):
    code = "([lo, hi], { linearTicks, shortLabels }) => shortLabels(linearTicks(lo, hi, 3)).map(([, text]) => text)"
    assert [text for _, text in Axis([lo, hi]).ticks(3, widest=8)] == labels == in_node(code, [lo, hi])


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.98, 0.999])
def test_smoothing_in_the_page_is_that_of_the_recorder(beta):
    """Also where a batch has no finite loss: it is left out there, and ends the recorder's curve."""
    rng = random.Random(0)
    values = [rng.random() + 0.5 for _ in range(257)]
    code = """([values, beta], { smoothed, Points }) =>
        [...smoothed(new Points(Float64Array.from(values.keys()), Float64Array.from(values, v => v ?? NaN)), beta, 1).y]"""
    assert in_node(code, [values, beta]) == pytest.approx(list(map(Smoother(beta).add, values)), rel=1e-5)
    gap = in_node(code, [[1.0, None, 3.0], 0.5])
    assert gap == pytest.approx([1, 1, (0.25 + 1.5) / 0.75])


def test_smoothing_of_means_looks_back_as_far():
    """Of pairs of steps, the weight of the past is squared."""
    code = "([values, beta, k], { smoothed, Points }) => [...smoothed(new Points(Float64Array.from(values.keys()), Float64Array.from(values)), beta, k).y]"
    values = [1.0] * 40 + [0.0] * 10
    pairs = in_node(code, [values[::2], 0.9, 2])
    assert pairs[-1] == pytest.approx(in_node(code, [values, 0.9, 1])[-1], rel=1e-5)
