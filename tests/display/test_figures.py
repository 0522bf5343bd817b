"""What a figure shows: curves, marks, limits, ticks and labels."""

import base64
import math
import warnings

import pytest
import torch
from matplotlib import pyplot
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import cbnb.all as cbnb
from cbnb.display import figures as plot
from cbnb.display.chart import Chart, Line, chart_figure
from cbnb.display.figures import COLORS, RULE_COLORS, RUN_COLORS
from cbnb.history import History
from helpers import RaiseIn, line_learner

NAN, TEXT = math.nan, COLORS["text"]


def curves(ax) -> list[tuple]:
    """Label, xs and ys of each curve; vertical and horizontal lines are not among them."""
    return [(line.get_label(), list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines if line.get_transform() == ax.transData]


def marks(ax) -> list[float]:
    """Where vertical lines stand."""
    return [line.get_xdata()[0] for line in ax.lines if line.get_transform() == ax.get_xaxis_transform()]


def look(ax, i: int) -> tuple:
    """Colour, width, marker and its size of a line."""
    line = ax.lines[i]
    return line.get_color(), line.get_linewidth(), line.get_marker(), line.get_markersize()


def labels(ax) -> tuple:
    return ax.get_title("left"), ax.get_xlabel(), ax.get_ylabel()


def names(ax) -> list[str]:
    """Names at the ends of curves, from the top, with the last values."""
    found = [text for text in ax.texts if text.get_transform() == ax.transAxes and text.get_text() not in "●—"]
    return [text.get_text() for text in sorted(found, key=lambda text: -text.get_position()[1])]


def below(ax) -> list[tuple]:
    """Step and number of the epochs below the steps."""
    [other] = ax.child_axes
    assert other.get_xlabel() == "epoch"
    return [(tick, label.get_text()) for tick, label in zip(other.get_xticks(), other.get_xticklabels())]


def near(*values):
    return pytest.approx(list(values))


@pytest.fixture
def in_notebook(monkeypatch):
    """What a notebook would show: (bundle, metadata) of each figure."""
    shown, formats = [], []
    monkeypatch.setattr(plot, "shell", lambda: True)
    monkeypatch.setattr("IPython.core.pylabtools.select_figure_formats", lambda shell, kinds: formats.append(kinds))
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw, metadata: raw and shown.append((bundle, metadata)))
    yield shown
    assert {"png"} in formats


# Figures of any kind


class Window(FigureManagerBase):
    """Stands in for that of an interactive backend."""


def test_a_figure_of_a_program_is_open_where_there_are_windows_until_it_is_returned(monkeypatch):
    monkeypatch.setattr(FigureCanvasAgg, "manager_class", Window)
    n = len(pyplot.get_fignums())
    with plot.figure() as (fig, _):
        assert fig.number in pyplot.get_fignums()
    assert plot.show(fig, "words") is None and fig.number in pyplot.get_fignums()
    assert plot.show(fig, "words", return_fig=True) is fig and len(pyplot.get_fignums()) == n


def test_without_windows_no_figure_stays_open(tmp_path):
    """40 sweeps of a script held 147 MB."""
    n = len(pyplot.get_fignums())
    with plot.figure() as (fig, [ax]):
        ax.plot([1, 2])
    assert len(pyplot.get_fignums()) == n
    plot.show(fig, "words", return_fig=True).savefig(tmp_path / "losses.png")
    assert (tmp_path / "losses.png").stat().st_size > 1000


def test_sweeps_plots_and_results_of_a_script_leave_no_figure_open():
    learn, n = line_learner(metrics=cbnb.MAE()), len(pyplot.get_fignums())
    assert learn.lr_find(num_it=20) is not None
    learn.fit_one_cycle(2)
    recorder = learn.recorder
    for show in (recorder.plot, recorder.plot_losses, recorder.plot_lr, recorder.plot_metrics, recorder.plot_loss, recorder.plot_sched):
        show()
    learn.lr_find(num_it=20).plot()
    cbnb.compare(learn, return_fig=True)
    cbnb.OneCycle(0.1).plot()
    assert len(pyplot.get_fignums()) == n


def test_a_figure_is_returned_also_where_pyplot_was_never_imported(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "matplotlib.pyplot")
    fig = Figure()
    assert plot.show(fig, "words", True) is fig


def test_a_figure_of_a_notebook_is_shown_once_with_words_and_a_size(in_notebook):
    n = len(pyplot.get_fignums())
    with plot.figure(size=(4, 2.5)) as (fig, _):
        pass
    assert len(pyplot.get_fignums()) == n and plot.show(fig, "a plane") is None
    [(bundle, metadata)] = in_notebook
    assert metadata == {"image/png": dict(width=400, height=250, alt="a plane")} and bundle["text/plain"] == "a plane"
    picture = base64.b64decode(bundle["image/png"])
    assert [int.from_bytes(picture[i : i + 4], "big") for i in (16, 20)] == [4 * 144, 2.5 * 144]
    assert plot.show(fig, "a plane", True) is fig and len(in_notebook) == 1


def test_panels_and_sizes_of_a_figure():
    with plot.figure(cols=2, rows=3) as (fig, axes):
        assert list(fig.get_size_inches()) == [6.4, 3.4] and len(axes) == 6
        places = [ax.get_subplotspec() for ax in axes]
        assert [(place.rowspan.start, place.colspan.start) for place in places] == [(r, c) for r in range(3) for c in range(2)]
    assert fig.get_layout_engine() is not None
    with plot.figure(axes[3]) as (same, [ax]):
        assert same is fig and ax is axes[3]
    pyplot.close(fig)


def test_names_stand_beside_our_own_axes_and_a_legend_in_yours():
    with plot.figure() as (fig, [ax]):
        ax.plot([0, 1], [0, 1], label="a line")
        ax.plot([0, 1], [0, 0.5], "o", label="dots")
        ax.plot([0, 1], [0, NAN], label="ends early")
        ax.plot([0, 1], [NAN, NAN], label="nothing")
        plot.legend(ax)
    fig.canvas.draw()
    assert names(ax) == ["a line  1", "dots  0.5", "ends early  0", "nothing"] or names(ax) == [
        "a line  1",
        "dots  0.5",
        "nothing",
        "ends early  0",
    ]
    assert [text.get_text() for text in ax.texts if text.get_text() in "●—"] == ["—", "●", "—", "—"] and ax.get_legend() is None
    boxes, axes = [text.get_window_extent() for text in ax.texts], ax.get_window_extent()
    assert all(box.x0 > axes.x1 and box.x1 <= fig.bbox.x1 for box in boxes)
    rows = sorted(box.y0 for box, text in zip(boxes, ax.texts) if text.get_text() in "●—")
    assert all(high - low > 9 for low, high in zip(rows, rows[1:]))
    plot.legend(ax, own=False)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a line", "dots", "ends early", "nothing"]
    assert ax.get_legend().get_texts()[0].get_fontsize() == 9
    pyplot.close(fig)


@pytest.mark.parametrize(
    "widget, return_fig, ax, mode, found",
    [
        (None, None, None, "widgets", True),
        (None, None, None, "plain", False),
        (True, None, None, "plain", True),
        (False, None, None, "widgets", False),
        (None, True, None, "widgets", False),
        (None, False, "axes", "widgets", False),
        (True, False, None, "plain", True),
    ],
)
def test_where_a_view_takes_the_place_of_a_figure(widget, return_fig, ax, mode, found, monkeypatch):
    monkeypatch.setattr(plot, "display_mode", lambda: mode)
    monkeypatch.setitem(plot.VIEWS, "mine", print)
    assert plot.view_for("mine", widget, return_fig, ax) is (print if found else None)
    assert plot.view_for("no such view", widget, return_fig, ax) is None


@pytest.mark.parametrize("return_fig, ax", [(True, None), (None, "axes"), (True, "axes")])
def test_a_view_where_a_figure_is_wanted_is_refused(return_fig, ax):
    with pytest.raises(ValueError, match="widget=True shows a widget, but .* asks? for a figure"):
        plot.view_for("losses", True, return_fig, ax)


def test_a_figure_is_legible_on_any_page():
    """It has a light ground of its own, since a page may be dark, a frame below only, and a faint grid."""
    with plot.figure() as (fig, [ax]):
        assert to_hex(fig.get_facecolor()) == to_hex(ax.get_facecolor()) == COLORS["page"]
        assert {side: spine.get_visible() for side, spine in ax.spines.items()} == dict(left=False, bottom=True, right=False, top=False)
        grid = ax.xaxis.get_gridlines()[0]
        assert grid.get_visible() and (grid.get_alpha(), grid.get_color()) == (0.12, TEXT)
        ax.plot([0, 1], label="a")
        assert not ax.legend().get_frame_on() and ax.legend().get_texts()[0].get_color() == TEXT
    pyplot.close(fig)


# Envelopes


def test_an_envelope_has_the_extremes_of_each_piece_in_their_order():
    """Seven values for four points: pieces of 4, the second of them short; a gap is not an extreme."""
    xs, ys = [10, 11, 12, 13, 14, 15, 16], [3.0, NAN, 9.0, 1.0, 5.0, 4.0, 6.0]
    assert plot.envelope(xs, ys, 4) == ([12, 13, 15, 16], [9, 1, 4, 6])
    assert plot.envelope(xs, ys, 7) == (xs, ys) and plot.envelope(range(3), (1, 2, 3), 3) == ([0, 1, 2], [1, 2, 3])
    assert plot.envelope([1, 2, 3], [5.0, math.inf, 7.0], 2) == ([1, 2], [5, math.inf])
    assert plot.envelope([1, 2, 3], [5.0, -math.inf, 7.0], 2) == ([2, 3], [-math.inf, 7])
    short = plot.envelope(xs[:3], [NAN, NAN, 2.0], 2)
    assert short == ([12, 12], [2, 2])
    xs, ys = plot.envelope(range(8), [NAN] * 8, 4)
    assert len(xs) == 4 and all(map(math.isnan, ys)) and max(xs) < 8


def test_the_last_piece_of_an_envelope_ends_with_the_curve():
    xs, ys = plot.envelope(range(9), list(range(8, -1, -1)), 4)
    assert xs == [0, 4, 5, 8] and ys == [8, 4, 3, 0]


# Charts as figures


def lines_of(columns: dict, **look) -> list[Line]:
    """A line for each name, over steps that count from 0."""
    return [Line(name, range(len(ys)), ys, **look) for name, ys in columns.items()]


def test_what_a_figure_of_losses_shows():
    """Two runs are one curve; where the second does not go on from the first, there is a gap."""
    lines = [
        Line("raw", range(1, 3), [5.0, 4.0], COLORS["raw"], faint=True, run=0), Line("raw", range(3, 5), [3.0, 2.0], COLORS["raw"], faint=True, run=1),
        Line("smooth", range(1, 3), [5.5, 5.0], run=0), Line("smooth", range(4, 5), [4.0], run=1),
        Line("valid", [1], [2.5], COLORS["valid"], dots=True, run=0), Line("valid", [4], [1.5], COLORS["valid"], dots=True, run=1),
    ]  # fmt: skip
    chart = Chart(lines, title="Losses", xlabel="step", borders=[3], epochs=[(0, 7), (1, 0), (4, 1), (5, 2)])
    fig = chart_figure([chart], size=plot.WIDE)
    [ax] = fig.axes
    (_, gap_x, gap_y), *others = [curve for curve in curves(ax) if curve[0] == "smooth"]
    assert gap_x == [1, 2, 2, 4] and gap_y[:2] == [5.5, 5] and math.isnan(gap_y[2]) and gap_y[3] == 4 and not others
    assert [curve for curve in curves(ax) if curve[0] != "smooth"] == [("raw", [1, 2, 3, 4], [5, 4, 3, 2]), ("valid", [1, 4], [2.5, 1.5])]
    assert marks(ax) == [3] and below(ax) == [(1, "0"), (4, "1")] and labels(ax) == ("Losses", "step", "")
    assert [look(ax, i)[:3] for i in range(3)] == [(COLORS["raw"], 1, "."), (COLORS["train"], 2.2, "."), (COLORS["valid"], 2.2, "o")]
    assert look(ax, 2)[3] == 4 and (ax.lines[3].get_linestyle(), *look(ax, 3)[:2]) == (":", TEXT, 1)
    assert names(ax) == ["smooth  4", "raw  2", "valid  1.5"] and list(fig.get_size_inches()) == [8.4, 3.4]
    pyplot.close(fig)


@pytest.mark.parametrize("more, has_name", [({}, False), ({"smooth": [1.0, 1.0]}, True)])
def test_one_curve_needs_no_name(more, has_name):
    fig = chart_figure([Chart(lines_of({"raw": [1.0, 2.0]} | more))])
    assert bool(names(fig.axes[0])) == has_name and not fig.axes[0].child_axes and labels(fig.axes[0])[2] == ("" if has_name else "raw")
    pyplot.close(fig)


def test_a_figure_in_axes_of_ones_own():
    fig = Figure()
    ax = fig.subplots()
    ax.set_xscale("log")
    chart = Chart(lines_of({"a": [2.0, 1.0], "b": [2.0, 1.5]}), epochs=[(0, 0), (1, 1)])
    assert chart_figure([chart], ax) is fig
    assert len(fig.axes) == 1 and not ax.child_axes  # a logarithmic axis has no epochs below
    fig.canvas.draw()
    assert ax.get_legend().get_window_extent().x1 < ax.get_window_extent().x1


@pytest.mark.parametrize(
    "start, end, span", [(0, 0, (0, 3)), (1, 1, (1, 2)), (0, 2, (0, 1)), (2, 1, (0, 3)), (3, 0, (0, 3)), (9, 9, (0, 3))]
)
def test_rather_everything_than_nothing(start, end, span):
    assert plot.kept_span(3, start, end) == span


@pytest.mark.parametrize("n, marker", [(1, "."), (3, "."), (19, "."), (20, "None"), (30, "None")])
def test_few_points_are_marked(n, marker):
    fig = chart_figure([Chart(lines_of({"loss": [1.0] * n}))])
    assert look(fig.axes[0], 0)[2] == marker
    fig.canvas.draw()
    assert n == 1 or all(tick == int(tick) for tick in fig.axes[0].get_xticks())  # there are no half steps
    pyplot.close(fig)


def test_a_diverged_run_does_not_set_the_limits():
    lines = [Line("a", range(3), [2.0, 1.5, 1.0], beyond=False), Line("b", range(3), [2.0, 50.0, 900.0], beyond=True, dash="dash")]
    ax = chart_figure([Chart(lines)]).axes[0]
    assert ax.get_ylim() == near(0.95, 2.05) and [line.get_linestyle() for line in ax.lines] == ["-", "--"]
    pyplot.close("all")


@pytest.mark.parametrize(
    "n, most, epochs",
    [
        (0, 12, []), (1, 12, [0]), (12, 12, range(12)), (13, 12, range(0, 13, 2)), (24, 12, range(0, 24, 2)), (25, 12, range(0, 25, 5)), (60, 12, range(0, 60, 5)),
        (61, 12, range(0, 61, 10)), (120, 12, range(0, 120, 10)), (121, 12, range(0, 121, 20)), (241, 12, range(0, 241, 50)), (601, 12, range(0, 601, 100)),
        (5, 4, range(0, 5, 2)), (13, 6, range(0, 13, 5)),
    ],
)  # fmt: skip
def test_which_epochs_are_written_below(n, most, epochs):
    ends = [(3 * i + 2, i) for i in range(n)]
    assert plot.epoch_ticks(ends, most) == [(3 * i + 2, str(i)) for i in epochs]
    assert most != 12 or plot.epoch_ticks(ends) == plot.epoch_ticks(ends, 12)


def test_many_short_fits_have_few_labels():
    ends = [(i, i % 2) for i in range(100)]  # 50 fits of two epochs
    assert plot.epoch_ticks(ends) == [(i, "0") for i in range(0, 100, 10)]


def test_epochs_stand_below_the_steps_and_have_no_frame():
    fig = chart_figure([Chart(lines_of({"loss": [1.0] * 30}), xlabel="step", epochs=[(i, i) for i in range(30)])])
    [ax] = fig.axes
    [other] = ax.child_axes
    assert below(ax) == [(i, str(i)) for i in range(0, 30, 5)] and not other.spines["bottom"].get_visible()
    fig.canvas.draw()
    steps, epochs = (axis.get_xticklabels()[0].get_window_extent() for axis in (ax, other))
    assert epochs.y1 <= steps.y0 and other.xaxis.get_major_ticks()[0].tick1line.get_markersize() == 0
    for axis, row in ((ax, steps), (other, epochs)):  # their names stand before them
        name = axis.xaxis.label.get_window_extent()
        assert name.x1 < ax.get_window_extent().x0 and abs((name.y0 + name.y1) - (row.y0 + row.y1)) < 8
    pyplot.close(fig)


@pytest.mark.parametrize(
    "n, cols, rows, size",
    [(1, 1, 1, [8.4, 2.8]), (2, 2, 1, [8.4, 2.8]), (3, 3, 1, [8.4, 2.8]), (4, 3, 2, [8.4, 5.6]), (7, 3, 3, [8.4, 8.4])],
)
def test_panels(n, cols, rows, size):
    def chart(i):
        line = Line(f"m{i}", [1, 5], [0.5, 0.7], COLORS["valid"], dots=True)
        return Chart([line], title=f"m{i}", xlabel="step", borders=[4], epochs=[(0, 9), (1, 0), (3, 1), (5, 2), (7, 3)])

    fig = chart_figure([chart(i) for i in range(n)])
    assert len(fig.axes) == n and list(fig.get_size_inches()) == near(*size)
    grid = fig.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == (rows, cols)
    for i, ax in enumerate(fig.axes):
        assert labels(ax) == (f"m{i}", "step", "") and curves(ax)[0][1:] == ([1, 5], [0.5, 0.7]) and marks(ax) == [4]
        assert below(ax) == [(1, "0"), (3, "1"), (5, "2")] and look(ax, 0) == (COLORS["valid"], 2.2, "o", 4)
    pyplot.close(fig)


def test_panels_share_the_room_for_epochs():
    for n, every in ((1, 1), (2, 2), (3, 5)):
        fig = chart_figure([Chart(lines_of({"a": [1.0] * 12}), epochs=[(i, i) for i in range(12)])] * n)
        assert below(fig.axes[0]) == [(i, str(i)) for i in range(0, 12, every)]
        fig.canvas.draw()
        assert all(tick == int(tick) for tick in fig.axes[0].get_xticks())
        pyplot.close(fig)


def test_panels_that_cannot_be_drawn():
    fig = chart_figure([Chart([], title="mae", epochs=[(0, 0)])])  # no value: no curve, no epochs
    [ax] = fig.axes
    assert not ax.lines and not ax.child_axes
    with pytest.raises(ValueError, match=r"2 charts \(a, b\) do not fit into one `ax`"):
        chart_figure([Chart([], title="a"), Chart([], title="b")], ax)
    pyplot.close(fig)


# Rates to take


def test_what_a_figure_of_the_finder_shows():
    lrs, losses = [1e-4, 1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.9, 1.0, 1.2, 90.0]
    fig = plot.lr_find_figure(lrs, losses, {"valley": (1e-3, 1.9), "mine": (1e-2, 1.0)}, 5e-3, band=(1e-3, 2e-2), faint=["mine"])
    [ax] = fig.axes
    assert labels(ax) == ("Learning rate finder", "learning rate", "loss") and ax.get_xscale() == "log"
    assert [curve[1:] for curve in curves(ax)] == [(lrs, losses), ([1e-3], [1.9]), ([1e-2], [1.0])] and marks(ax) == [5e-3]
    assert [text.get_text() for text in ax.texts[:2]] == ["recommended 0.005", "perhaps 0.001 to 0.02"] and ax.get_legend() is None
    assert [(text.get_text(), text.xy, text.get_color()) for text in ax.texts[2:]] == [
        ("valley 0.001", (1e-3, 1.9), TEXT), ("mine 0.01", (1e-2, 1.0), COLORS["quiet"]),
    ]  # fmt: skip
    [band] = ax.patches
    assert (
        (band.get_x(), band.get_x() + band.get_width()) == (1e-3, pytest.approx(2e-2))
        and band.get_alpha() == 0.14
        and band.get_linewidth() == 0
    )
    assert [line.get_linestyle() for line in ax.lines if line.get_xdata()[0] == 5e-3] == ["--"] and look(ax, 0)[0] == COLORS["train"]
    assert [(line.get_marker(), line.get_color(), line.get_markersize()) for line in ax.lines if line.get_marker() == "o"] == [
        ("o", RULE_COLORS["valley"], 7), ("o", COLORS["quiet"], 7),
    ]  # fmt: skip
    assert ax.get_ylim() == near(1 - 0.12, 2 + 5 * 0.12)  # room for four times a part, and what explodes is cut off
    assert list(fig.get_size_inches()) == [8.4, 3.6]
    pyplot.close(fig)


@pytest.mark.parametrize(
    "losses, limits",
    [
        ([3.0, 2.0, 1.0], (1 - 0.24, 3 + 0.24)),
        ([1.0, 2.0, 3.0], (1 - 0.12, 2 + 5 * 0.12)),
        ([math.inf, 2.0, 1.0, 5.0], (1 - 0.48, 5 + 0.48)),
        ([NAN, 2.0, 1.0], (1 - 0.12, 2 + 0.12)),
        ([2.0, 2.0 + 1e-7], (1.9, 2.1)),
        ([1.0, 9.0, 9.5, 9.9, 50.0], (1 - 1.02, 9.5 + 5 * 1.02)),
    ],
)
def test_limits_of_the_losses_of_a_sweep(losses, limits):
    fig = plot.lr_find_figure([10.0**i for i in range(len(losses))], losses)
    assert fig.axes[0].get_ylim() == near(*limits) and fig.axes[0].get_legend() is None
    pyplot.close(fig)


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({}, ""),
        (dict(recommended=0.1), "recommended 0.1"),
        (dict(marks={"a": (0.1, NAN)}), ""),
        (dict(band=(0.1, 0.2)), "perhaps 0.1 to 0.2"),
    ],
)
def test_a_sweep_without_finite_losses_is_drawn(kwargs, words):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fig = plot.lr_find_figure([0.1, 1.0], [NAN, math.inf], title="mine", **kwargs)
    [ax] = fig.axes
    assert 0 < ax.get_xlim()[0] < 0.1 and ax.get_xlim()[1] > 1.0  # the rates of the sweep
    assert ax.get_title("left") == "mine" and [text.get_text() for text in ax.texts] == [words] * bool(words)
    fig.canvas.draw()
    pyplot.close(fig)


def test_the_recommended_suggestion_is_bold_and_names_do_not_cover_each_other():
    lrs = [10.0**i for i in range(-5, 1)]
    marks = dict.fromkeys(("a", "b", "c", "d"), (0.01, 1.0))
    fig = plot.lr_find_figure(lrs, [3.0, 2.5, 2.0, 1.0, 1.5, 2.0], marks, 1e-2)
    [ax] = fig.axes
    assert [text.get_fontweight() for text in ax.texts].count("bold") == 1
    fig.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    pyplot.close(fig)


def test_rules_keep_their_colours_and_others_get_free_ones():
    names = ["a", "valley", *"bcde"]
    assert plot.rule_colors(names) == dict(
        zip(names, [RUN_COLORS[6], RULE_COLORS["valley"], *RUN_COLORS[7:], *RUN_COLORS[6:], RUN_COLORS[6]])
    )


def test_what_a_figure_of_trials_shows():
    fig = plot.lr_trials_figure([0.02, 0.01, 0.04, 0.08], [0.5, 0.7, 0.4, math.inf], 2.345, 0.03, (0.02, 0.05), "Mine")
    [ax] = fig.axes
    assert (
        labels(ax) == ("Mine", "learning rate", "loss at the end")
        and ax.get_xscale() == "log"
        and list(fig.get_size_inches()) == [6.2, 3.6]
    )
    assert curves(ax)[0] == ("trials, numbered in their order", [0.01, 0.02, 0.04], [0.7, 0.5, 0.4]) and 0.03 in marks(ax)
    assert (look(ax, 1)[0], look(ax, 1)[2:]) == (COLORS["valid"], ("o", 6))
    assert ax.get_ylim() == near(0.4 - 0.2 * 0.3, 0.7 + 0.4 * 0.3)
    taken, *above = [text for text in ax.texts if hasattr(text, "xy")][1:]
    assert taken.get_text() == "perhaps 0.02 to 0.05"
    assert [(text.get_text(), text.xy) for text in above] == [
        ("1", (0.02, 0.5)),
        ("2", (0.01, 0.7)),
        ("3", (0.04, 0.4)),
        ("4: blew up", (0.08, 0.94)),
    ]
    assert above[0].get_position() == (0, 6) and [text.get_ha() for text in above] == ["center"] * 4
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.01", "0.02", "0.04", "0.08"] and list(ax.get_xticks()) == [
        0.01,
        0.02,
        0.04,
        0.08,
    ]
    low, high = ax.get_xlim()
    assert list(ax.get_xticks(minor=True)) == [] and low < 0.01 * 0.8 and high > 0.08 * 1.2  # room for the names at both ends
    line = next(line for line in ax.lines if line.get_linestyle() == ":")
    assert (line.get_label(), list(line.get_ydata()), line.get_linestyle(), line.get_linewidth()) == (
        "untrained",
        [2.345] * 2,
        ":",
        1,
    )
    assert ax.texts[0].get_text() == "recommended 0.03"
    assert names(ax) == ["untrained  2.345", "trials, numbered in their order  0.4"] and ax.get_legend() is None
    pyplot.close(fig)


@pytest.mark.filterwarnings("ignore:No artists")
@pytest.mark.parametrize(
    "losses, limits", [([2.0, 2.0], (1.96, 2.08)), ([0.0, 0.0], (-0.02, 0.04)), ([-2.0, NAN], (-2.04, -1.92)), ([math.inf, NAN], (0, 1))]
)
def test_limits_of_the_losses_of_trials(losses, limits):
    fig = plot.lr_trials_figure([0.1, 1.0], losses)
    assert fig.axes[0].get_ylim() == near(*limits) and fig.axes[0].get_title("left") == "Trials"
    pyplot.close(fig)


# Figures of the record


def two_fits(**kwargs) -> cbnb.Learner:
    """Three batches an epoch: of two epochs, then of one that is cut off after a batch of its second."""
    stop = RaiseIn("before_batch", cbnb.CancelFitException, when=lambda learn: learn.n_epoch == 3 and learn.train_iter == 4)
    learn = line_learner(3, cbs=stop, **kwargs)
    with learn.no_logging():
        learn.fit(2, lr=0.1), learn.fit(3, lr=0.05)
    return learn


def mae(pred, y):
    return (pred - y).abs().mean()


def bias(pred, y):
    return (pred - y).mean()


def sgd(p, lr):
    return torch.optim.SGD(p, lr=lr, momentum=0.9)


def test_the_losses_of_all_fits():
    learn = two_fits()
    first, second = learn.recorder.history
    fig = learn.recorder.plot_losses(return_fig=True)
    [ax] = fig.axes
    valid = [(2, first.epochs[0]), (5, first.epochs[1]), (8, second.epochs[0])]
    assert curves(ax) == [
        ("train, each batch", list(range(10)), near(*first.raw_losses, *second.raw_losses)),
        (
            "train, smoothed",
            [*range(6), 5, *range(6, 10)],
            pytest.approx([*first.losses, math.nan, *second.losses], nan_ok=True),
        ),  # a break
        ("valid", [step for step, _ in valid], near(*(row["valid_loss"] for _, row in valid))),
    ]
    assert marks(ax) == [6] and below(ax) == [(2, "0"), (5, "1"), (8, "0")]
    fig = learn.recorder.plot_losses(1, 2, return_fig=True)
    assert curves(fig.axes[0])[0][1] == list(range(1, 8))
    own = Figure().subplots()
    assert learn.recorder.plot_losses(ax=own) is own and len(curves(own)) == 3


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_named_losses_of_all_fits_have_gaps_where_there_are_none():
    n = [0]

    def step(x, y):
        n[0] += 1
        return {"loss": torch.tensor(1.0), "extra": torch.tensor(float(n[0]))}

    learn = line_learner(2, valid=False, train_step=cbnb.UpdateStep(step))
    with learn.no_logging():
        learn.fit(1)
    learn.recorder.history.runs.insert(0, two_fits().recorder.history[0])
    fig = learn.recorder.plot_losses(return_fig=True)
    xs, extra = next(found for name, *found in curves(fig.axes[0]) if name == "extra")
    assert xs == [6, 7] and extra == near(1, 1.505051)  # smoothed


def test_the_rates_of_all_fits():
    learn = two_fits(opt_func=sgd)
    fig = learn.recorder.plot_lr(return_fig=True)
    assert curves(fig.axes[0])[0][2] == [0.1] * 6 + [0.05] * 4 and marks(fig.axes[0]) == [6] and len(fig.axes) == 1
    fig = learn.recorder.plot_lr(True, 2, 1, return_fig=True)
    assert [curves(ax)[0][1:] for ax in fig.axes] == [(list(range(2, 9)), [0.1] * 4 + [0.05] * 3), (list(range(2, 9)), [0.9] * 7)]
    assert below(fig.axes[1]) == [(2, "0"), (5, "1"), (8, "0")]
    own = Figure().subplots()
    assert learn.recorder.plot_lr(ax=own) is own and curves(own)
    with pytest.raises(ValueError, match="Adagrad has no momentum to show"):
        two_fits(opt_func=torch.optim.Adagrad).recorder.plot_lr(True)


def test_the_metrics_of_all_fits():
    """A fit without a metric leaves a gap in it."""
    learn = two_fits(metrics=[mae, bias])
    first, second = learn.recorder.history
    fig = learn.recorder.plot_metrics(return_fig=True)
    assert [ax.get_title("left") for ax in fig.axes] == ["mae", "bias"]
    rows = [*first.epochs, second.epochs[0]]
    for ax, name in zip(fig.axes, ("mae", "bias")):
        assert curves(ax)[0][1:] == ([2, 5, 8], near(*(row[name] for row in rows))) and marks(ax) == [6]
        assert below(ax) == [(2, "0"), (5, "1"), (8, "0")]
    fig = learn.recorder.plot_metrics(1, 1, return_fig=True)
    assert [curves(ax)[0][1] for ax in fig.axes] == [[5], [5]]
    learn.metrics = [mae]
    with learn.no_logging():
        learn.fit(1)
    third = learn.recorder.plot_metrics(return_fig=True).axes
    assert [curves(ax)[0][1] for ax in third] == [[2, 5, 8, 12], [2, 5, 8]] and marks(third[0]) == [6, 10]
    with pytest.raises(ValueError, match="no metrics were recorded"):
        two_fits().recorder.plot_metrics()
    with pytest.raises(ValueError, match=r"2 charts \(mae, bias\) do not fit"):
        learn.recorder.plot_metrics(ax=Figure().subplots())


def test_words_for_those_who_cannot_see(in_notebook):
    learn = two_fits(metrics=[mae], opt_func=sgd)
    first, second = learn.recorder.history
    for draw in (
        learn.recorder.plot_losses,
        lambda **kw: learn.recorder.plot_lr(True, **kw),
        learn.recorder.plot_lr,
        learn.recorder.plot_metrics,
    ):
        assert draw(widget=False) is None
    losses, both, rates, metrics = (bundle["text/plain"] for bundle, _ in in_notebook)
    assert (
        losses.startswith("losses over 10 training steps; train, smoothed from")
        and f"valid from {first.epochs[0]['valid_loss']:.4g}"[:14] in losses
    )
    assert both.startswith("learning rate from") and "; momentum" in both and "momentum" not in rates
    assert metrics.startswith("mae from")


def test_the_learning_curve_of_the_last_fit(in_notebook):
    learn = two_fits()
    run = learn.recorder.history[1]
    ax = learn.recorder.plot_loss(0)
    assert labels(ax) == ("learning curve", "steps", "loss") and list(ax.figure.get_size_inches()) == [7.4, 3.4]
    assert curves(ax) == [("train", [0, 1, 2, 3], near(*run.losses)), ("valid", [2], [run.epochs[0]["valid_loss"]])] and not marks(ax)
    assert [look(ax, i)[0] for i in (0, 1)] == [COLORS["train"], COLORS["valid"]] and look(ax, 1)[2:] == ("o", 4)
    assert (
        len(names(ax)) == 2
        and names(ax)[0].startswith(("train  ", "valid  "))
        and in_notebook[0][0]["text/plain"] == "learning curve over 4 steps"
    )
    late = learn.recorder.plot_loss(3)
    assert curves(late) == [("train", [3], near(run.losses[3]))] and not names(late)
    assert curves(learn.recorder.plot_loss(2))[1][1] == [2] and curves(learn.recorder.plot_loss()) == [("train", [], [])]
    assert len(curves(learn.recorder.plot_loss(0, with_valid=False))) == 1
    both = learn.recorder.plot_loss(0, log=True, show_epochs=True)
    assert both.get_xscale() == both.get_yscale() == "log" and marks(both) == [2, 3]
    assert (both.lines[-1].get_linestyle(), both.lines[-1].get_linewidth(), both.lines[-1].get_color()) == (":", 1, TEXT)
    n, own = len(in_notebook), Figure().subplots()
    assert learn.recorder.plot_loss(0, ax=own) is own and len(in_notebook) == n and own.get_xscale() == "linear"


def test_the_hyper_parameters_of_the_last_fit(in_notebook):
    learn = two_fits(opt_func=sgd)
    fig = learn.recorder.plot_sched(return_fig=True)
    assert [(ax.get_ylabel(), curves(ax)[0][2]) for ax in fig.axes] == [("lr", [0.05] * 4), ("mom", [0.9] * 4)]
    for keys in ("mom", ["mom"]):
        assert [ax.get_ylabel() for ax in learn.recorder.plot_sched(keys, (3, 2), True).axes] == ["mom"]
    assert (
        learn.recorder.plot_sched() is None
        and in_notebook[-1][0]["text/plain"] == "lr from 0.05 to 0.05, lowest 0.05; mom from 0.9 to 0.9, lowest 0.9"
    )
    with pytest.raises(ValueError, match="'wd' was not recorded: the choices are lr, mom"):
        learn.recorder.plot_sched("wd")


@pytest.mark.parametrize("name", ["plot_losses", "plot_lr", "plot_metrics", "plot_loss", "plot_sched"])
def test_there_is_nothing_to_draw_before_the_first_fit(name):
    with pytest.raises(AttributeError, match="recorded yet"):
        getattr(line_learner(metrics=mae).recorder, name)()


def _run(learn, **kwargs):
    with learn.profiling() as profile:
        learn.fit(1)
    return profile


@pytest.mark.parametrize(
    "mistake, error, said",
    [
        (lambda learn: learn.recorder.plot_losses(ax=3), TypeError, "ax=3 should be the axes of one plot of matplotlib"),
        (lambda learn: learn.recorder.plot_sched([["lr"]]), ValueError, r"\['lr'\] was not recorded"),
        (lambda learn: learn.recorder.plot_sched(3), ValueError, "3 was not recorded"),
        (lambda learn: Chart([], y_range=3), ValueError, "y_range=3 should be two numbers"),
        (lambda learn: cbnb.compare(learn, metric=torch.ones(2)), ValueError, r"metric=tensor\(\[1., 1.\]\) is not a metric"),
        (lambda learn: cbnb.compare(learn, sort=-1), ValueError, "there is no column for sort=-1"),
        (lambda learn: _run(learn)[torch.ones(2)], KeyError, r"no part is called tensor\(\[1., 1.\]\)"),
        (lambda learn: _run(learn).plot(most=0), ValueError, "most=0 should be 1 or more"),
        (lambda learn: History.from_json("nowhere.json"), FileNotFoundError, "there is no file 'nowhere.json': pass a file"),
        (lambda learn: History.from_json(None), TypeError, "source=None should be a path"),
        (lambda learn: learn.lr_find(show_plot=False).widget(3), TypeError, "learn=3 is not a learner"),
    ],
)
def test_a_wrong_argument_is_named(mistake, error, said):
    learn = line_learner()
    learn.fit(1)
    with pytest.raises(error, match=said):
        mistake(learn)
