"""What runs become in a chart: lines, epochs, borders, events, and what is left out."""

import math
from xml.etree import ElementTree

import pytest
import torch

import cbnb.all as cbnb
from cbnb.basics.text import number
from cbnb.display.chart import Event, Line, chart_spec, still_svg
from cbnb.display.look import COLORS, RUN_COLORS
from cbnb.display.run_charts import (
    column_of,
    diverged,
    ends_of,
    events_of,
    losses_chart,
    metric_charts,
    metric_names,
    rates_charts,
    small_charts,
    starts_of,
)
from cbnb.metrics import AvgMetric
from helpers import RaiseIn, line_learner

NAN, INF = math.nan, math.inf


def mae(pred, y):
    return (pred - y).abs().mean()


def sgd(p, lr):
    return torch.optim.SGD(p, lr=lr, momentum=0.9)


def runs_of(*epochs: int, **kwargs) -> list:
    """The runs of fits of so many epochs, four steps each."""
    learn = line_learner(n=4, **kwargs)
    with learn.no_logging():
        for n in epochs:
            learn.fit(n, lr=0.02)
    return learn.recorder.history.runs


def named(chart, name: str) -> list[Line]:
    return [line for line in chart.lines if line.name == name]


def values(lines) -> list[float]:
    return [float(y) for line in lines for y in line.ys]


def steps(lines) -> list[list[int]]:
    return [list(line.xs) for line in lines]


def test_where_runs_and_epochs_are():
    runs = runs_of(3, 2, 1)
    assert starts_of(runs) == [0, 12, 20] and starts_of([]) == []
    assert ends_of(runs) == [(3, 0), (7, 1), (11, 2), (15, 0), (19, 1), (23, 0)]


def test_columns_of_a_run():
    (run,) = runs_of(2, opt_func=sgd)
    assert column_of(run, "loss") == run.raw_losses and column_of(run, "smooth") == run.losses
    assert list(column_of(run, "mom")) == [0.9] * 8 and all(map(math.isnan, column_of(run, "eps"))) and len(column_of(run, "eps")) == 8


def test_the_chart_of_losses():
    runs = runs_of(3, 2)
    chart = losses_chart(runs)
    raw, smooth, valid = (named(chart, name) for name in ("train, each batch", "train, smoothed", "valid"))
    assert steps(raw) == steps(smooth) == [list(range(12)), list(range(12, 20))] and steps(valid) == [[3, 7, 11], [15, 19]]
    assert values(raw) == [loss for run in runs for loss in run.raw_losses] and values(smooth) == [
        loss for run in runs for loss in run.losses
    ]
    assert values(valid) == [row["valid_loss"] for run in runs for row in run.epochs]
    assert [(line.color, line.faint, line.dots) for line in (raw[0], smooth[0], valid[0])] == [
        (COLORS["raw"], True, False), (COLORS["train"], False, False), (COLORS["valid"], False, True),
    ]  # fmt: skip
    assert [line.run for line in chart.lines] == [0, 1] * 3 and all(list(a.smooths) == list(b.ys) for a, b in zip(smooth, raw))
    assert (chart.title, chart.xlabel, chart.borders, chart.epochs, chart.smoothing) == ("Losses", "step", [12], ends_of(runs), 0.98)
    assert chart.tools == ["smooth", "log_x", "log_y", "overlay"] and chart.x_format == "count"
    assert chart.runs == [("run 0", 0, RUN_COLORS[0]), ("run 1", 12, RUN_COLORS[1])]
    first, last = number(smooth[0].ys[0].item()), number(smooth[1].ys[-1].item())
    assert (
        chart.text.startswith(f"losses over 20 training steps; train, smoothed from {first} to {last}, lowest ")
        and "; valid from" in chart.text
    )


def test_validations_in_mid_epoch_are_points_of_the_charts():
    learn = line_learner(n=4, metrics=mae)
    with learn.no_logging():
        learn.fit("10 steps", lr=0.02, valid_every="3 steps")
    [run] = learn.recorder.history.runs
    found = [row for row in run.epochs if row["valid_loss"] is not None]
    assert [row["step"] for row in found] == [3, 6, 9]  # and rows without a validation at the ends of epochs
    [valid] = named(losses_chart([run]), "valid")
    assert list(valid.xs) == [2, 5, 8] and list(valid.ys) == [row["valid_loss"] for row in found]
    [line] = metric_charts([run])[0].lines
    assert (list(line.xs), list(line.ys)) == ([2, 5, 8], [row["mae"] for row in found])


def test_a_single_run_has_no_border_and_nothing_to_overlay():
    chart = losses_chart(runs_of(1), beta=0.5, title="mine", size=(600, 200))
    assert (chart.borders, chart.tools, chart.smoothing, chart.title, chart.size) == (
        [],
        ["smooth", "log_x", "log_y"],
        0.5,
        "mine",
        (600, 200),
    )


def test_a_run_without_validation_has_no_such_line():
    chart = losses_chart(runs_of(2, valid=False))
    assert {line.name for line in chart.lines} == {"train, each batch", "train, smoothed"} and "valid" not in chart.text


@pytest.mark.parametrize(
    "skips, spans",
    [((0, 0), [(0, 12), (12, 20)]), ((3, 2), [(3, 12), (12, 18)]), ((15, 0), [(15, 20)]), ((0, 10), [(0, 10)]), ((12, 8), [(0, 12), (12, 20)]), ((99, 0), [(0, 12), (12, 20)])],
)  # fmt: skip
def test_what_skips_leave_of_runs(skips, spans):
    """Rather everything than nothing."""
    chart = losses_chart(runs_of(3, 2), *skips)
    assert steps(named(chart, "train, each batch")) == steps(named(chart, "train, smoothed")) == [list(range(*span)) for span in spans]
    first, last = spans[0][0], spans[-1][1]
    assert [step for line in named(chart, "valid") for step in line.xs] == [end for end in (3, 7, 11, 15, 19) if first <= end < last]
    assert [step for step, _ in chart.epochs] == [end for end in (3, 7, 11, 15, 19) if first <= end < last]
    assert chart.borders == [12] * (first < 12 < last) and all(
        len(line.smooths) == len(line.ys) for line in named(chart, "train, smoothed")
    )


@pytest.mark.parametrize("make", [losses_chart, metric_charts, lambda runs, *skips: rates_charts(runs, False, *skips)])
def test_negative_skips_are_refused(make):
    for skips in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="should be 0 or more"):
            make(runs_of(2), *skips)


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_named_losses_are_lines_of_the_runs_that_have_them():
    def step(x, y):
        return {"loss": torch.tensor(1.0), "<extra>": torch.tensor(2.0)}

    runs = [*runs_of(1), *runs_of(1, valid=False, train_step=cbnb.UpdateStep(step))]
    chart = losses_chart(runs)
    (extra,) = named(chart, "<extra>")
    assert (extra.run, list(extra.xs), list(extra.ys)) == (1, [4, 5, 6, 7], [2.0] * 4) and extra.color == COLORS["lr"]
    assert "<extra> from 2 to 2" in chart.text and "&lt;extra&gt;" in still_svg(chart) and "<extra>" not in still_svg(chart)


def lines_of(*runs) -> list[Line]:
    return [Line("loss", range(len(ys)), torch.tensor(ys, dtype=torch.float64), run=i) for i, ys in enumerate(runs)]


@pytest.mark.parametrize(
    "third, beyond",
    [([4, 50, 500, 1000], {2}), ([NAN, 4, INF, 1000], {2}), ([NAN] * 4, set()), ([60, 7, 5, 1], set())],  # the last: it falls
)
def test_which_runs_would_flatten_the_others(third, beyond):
    """The rule is that of a comparison, and tested there."""
    assert diverged(lines_of([10, 8, 6, 4], [4, 3, 2, 1], third)) == beyond


def test_of_two_runs_the_lower_one_is_usual():
    assert diverged(lines_of([2, 1, 1, 1], [2, 90, 90, 90])) == {1} and diverged(lines_of([2, 90, 90, 90])) == set()
    assert diverged([Line("no run", [0], [1.0])]) == set() == diverged([])
    assert diverged([*lines_of([2, 1, 1, 1]), *(line._replace(name="other") for line in lines_of([1], [2, 90, 90, 90])[1:])]) == set()


def test_a_diverged_run_does_not_flatten_the_others():
    learn = line_learner(n=4)
    with learn.no_logging():
        learn.fit(2, lr=0.02), learn.fit(2, lr=0.02), learn.fit(2, lr=1e6)
    runs = learn.recorder.history.runs
    chart = losses_chart(runs)
    assert {line.run for line in chart.lines if line.beyond} == {2} == {line.run for line in chart.lines if line.run == 2}
    assert not any(line.beyond for line in losses_chart(runs[:2]).lines)
    assert chart_spec(chart)["lines"][2]["beyond"] and "nan" not in still_svg(chart)
    shown, alone = still_svg(chart), still_svg(losses_chart(runs[:2]))
    assert labels_of_y(shown) == labels_of_y(alone)


def labels_of_y(svg: str) -> list[str]:
    texts = ElementTree.fromstring(svg).findall(".//{*}text")
    return [text.text for text in texts if text.get("x") == "44" and text.text.replace(".", "").isdigit()]


def test_a_first_fit_is_not_taken_for_a_diverged_one():
    """It begins far above a second one that goes on from there, as any first fit does."""
    runs = runs_of(20, 2)
    assert max(runs[0].raw_losses) > 20 * max(runs[1].raw_losses) and not any(line.beyond for line in losses_chart(runs).lines)


def test_a_run_that_is_not_finite_can_be_looked_at():
    learn = line_learner(n=4)
    with learn.no_logging():
        learn.fit(2, lr=1e30)
    chart = losses_chart(learn.recorder.history.runs)
    assert not math.isfinite(chart.lines[0].ys[-1]) and "nan" not in still_svg(chart).replace("none", "")


def test_many_runs_are_told_apart():
    chart = losses_chart(runs_of(*[1] * 10))
    assert [name for name, _, _ in chart.runs] == [f"run {i}" for i in range(10)] and len({color for _, _, color in chart.runs[:8]}) == 8


def test_a_chart_that_was_made_keeps_its_steps():
    """Runs go on, and others follow: a chart has what there was."""
    learn, charts = line_learner(n=4), []
    with learn.no_logging():
        learn.fit(2, cbs=cbnb.Callback(after_epoch=lambda self: charts.append(losses_chart(self.learn.recorder.history.runs))))
    assert [len(named(chart, "train, each batch")[0].ys) for chart in charts] == [4, 8]


def test_events_are_counted_over_all_runs():
    runs = runs_of(1, 1)
    runs[0].note("lr", "half the rate", 2), runs[1].note("best", "the best so far", 3)
    assert events_of(runs)[:1] == [Event(2, "lr", "half the rate")] and Event(7, "best", "the best so far") in events_of(runs)
    assert (
        Event(2, "lr", "half the rate") not in losses_chart(runs, 3).events and Event(2, "lr", "half the rate") in losses_chart(runs).events
    )


def test_a_stopped_fit_says_where():
    stop = RaiseIn("before_batch", cbnb.CancelFitException, when=lambda learn: learn.train_iter == 5)
    learn = line_learner(4, cbs=stop)
    with learn.no_logging():
        learn.fit(3)
    (event,) = events_of(learn.recorder.history.runs)
    assert event.kind == "stopped" and 4 <= event.x <= 5 and named(losses_chart(learn.recorder.history.runs), "valid")[0].xs == [3]


@pytest.mark.parametrize("show_moms", [False, True])
def test_the_charts_of_rates(show_moms):
    learn = line_learner(n=4, opt_func=sgd)
    with learn.no_logging():
        learn.fit_one_cycle(2, lr_max=0.01)
    runs = learn.recorder.history.runs
    charts = rates_charts(runs, show_moms, 1, 2)
    assert [chart.title for chart in charts] == ["Learning rate", "Momentum"][: 1 + show_moms]
    for chart, name in zip(charts, ("lr", "mom")):
        (line,) = chart.lines
        assert list(line.xs) == [1, 2, 3, 4, 5] and list(line.ys) == pytest.approx(runs[0].hyper(name)[1:6]) and line.color == COLORS[name]
        assert chart.epochs == [(3, 0)] and chart.smoothing is None


def test_a_run_without_momentum_has_a_gap():
    learn = line_learner(n=4, opt_func=sgd)
    with learn.no_logging():
        learn.fit(1)
        learn.opt = torch.optim.Adagrad(learn.model.parameters(), lr=0.1)
        learn.fit(1)
    _, momentum = rates_charts(learn.recorder.history.runs, True)
    assert [line.ys.isnan().tolist() for line in momentum.lines] == [[False] * 4, [True] * 4]


def test_the_charts_of_metrics():
    runs = runs_of(3, 2, metrics=[AvgMetric(mae, "one"), AvgMetric(mae, "two")])
    assert metric_names(runs) == ["one", "two"] and metric_names(runs_of(1)) == []
    charts = metric_charts(runs)
    assert [chart.title for chart in charts] == ["one", "two"] and metric_charts(runs_of(1)) == []
    for chart, name in zip(charts, ("one", "two")):
        assert steps(chart.lines) == [[3, 7, 11], [15, 19]] and values(chart.lines) == [row[name] for run in runs for row in run.epochs]
        assert chart.borders == [12] and all(line.dots for line in chart.lines)


@pytest.mark.parametrize(
    "skips, kept",
    [((0, 0), [3, 7, 11, 15, 19]), ((2, 1), [11, 15]), ((1, 2), [7, 11]), ((4, 0), [19]), ((5, 0), [3, 7, 11, 15, 19]), ((0, 4), [3]), ((0, 5), [3, 7, 11, 15, 19])],
)  # fmt: skip
def test_skips_of_metrics_are_epochs(skips, kept):
    """Epochs of 4 steps, three in the first run and two in the second."""
    (chart,) = metric_charts(runs_of(3, 2, metrics=AvgMetric(mae, "mae")), *skips)
    assert [step for line in chart.lines for step in line.xs] == kept


def logged_run(n_epoch: int = 3, n: int = 4, **kwargs):
    """A run with a metric and a logged value, and a momentum that stays as it is."""
    learn = line_learner(n=n, metrics=mae, opt_func=sgd, cbs=cbnb.Callback(after_step=lambda cb: cb.learn.log(a=cb.model.a)), **kwargs)
    with learn.no_logging():
        learn.fit(n_epoch, lr=0.02)
    return learn.recorder.last()


def test_small_charts_are_those_of_the_other_values():
    run = logged_run()
    charts = {chart.title: chart for chart in small_charts(run)}
    assert list(charts) == ["learning rate", "a", "mae"]  # the momentum is the same throughout
    assert values(charts["learning rate"].lines) == [0.02] * 2 and steps(charts["learning rate"].lines) == [[0, 11]]
    assert values(named(charts["mae"], "mae")) == run["mae"] and steps(named(charts["mae"], "mae")) == [[3, 7, 11]]
    assert values(named(charts["a"], "a, each batch")) == list(run.steps["a"]) and values(named(charts["a"], "a")) == run["a"]


def test_small_charts_of_a_running_fit_read_no_value_of_a_batch(monkeypatch):
    run = logged_run()
    waits = []
    read = type(run.logged["a"].series).read
    monkeypatch.setattr(type(run.logged["a"].series), "read", lambda self: waits.append(1) or read(self))
    charts = {chart.title: chart for chart in small_charts(run, wait=False)}
    assert not waits and [line.name for line in charts["a"].lines] == ["a"]
    small_charts(run)
    assert waits


def test_small_charts_of_a_long_fit_have_few_points():
    learn = line_learner(n=5000)
    learn.fit_one_cycle(1, 0.02)
    chart = small_charts(learn.recorder.last())[0]
    assert 100 < len(chart.lines[0].xs) < 260 and chart.lines[0].xs[-1] == 4999  # the button shows the latest value
    assert chart.lines[0].ys[-1] == learn.recorder.lrs[-1]
