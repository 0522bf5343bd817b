"""Many runs in one chart and one table: names, axes, ranges, rows, and what differs."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cbnb
from cbnb.basics.settings import brief, settings_of
from cbnb.display import compare as page
from cbnb.display.chart import charts_html
from cbnb.display.compare import (
    Comparison,
    cell_text,
    compare,
    differences,
    knots,
    leaves_range,
    places,
    run_curve,
    runs_of,
    runs_table,
    sorted_rows,
)
from cbnb.display.look import RUN_COLORS
from cbnb.history import Run
from helpers import RaiseIn, line_learner


def mae(pred, y):
    return (pred - y).abs().mean()


def fitted(n_epoch=2, lr=0.1, **kwargs):
    learn = line_learner(metrics=mae, **kwargs)
    learn.fit(n_epoch, lr)
    return learn


def failed(error=KeyboardInterrupt, at=3):
    learn = line_learner(metrics=mae)
    with pytest.raises((error, RuntimeError)):
        learn.fit(3, cbs=RaiseIn("before_batch", error, when=lambda learn: learn.train_iter == at))
    return learn


# --- settings ---


def test_a_run_has_the_settings_of_its_fit():
    torch.manual_seed(3)
    learn = line_learner(metrics=mae, cbs=cbnb.GradientClip(1.0))
    learn.fit_one_cycle(2, 0.05, wd=0.25)
    found = learn.recorder.last().settings
    assert (found["method"], found["n_epoch"], found["lr"], found["wd"], found["optimizer"]) == ("fit_one_cycle", 2, 0.05, 0.25, "SGD")
    assert (found["model"], found["parameters"], found["loss"]) == ("Line", 2, brief(learn.loss_func))
    assert found["callbacks"] == ["GradientClip(max_norm=1.0)", "OneCycle(lr_max=0.05)"]
    assert json.loads(json.dumps(found)) == found and "seed" in found


def test_settings_have_no_addresses_and_ask_for_no_data():
    class Tells(cbnb.Callback):
        def __repr__(self):
            return object.__repr__(self)

    class Loader:
        batch_size = 7

        def __init__(self, batches):
            self.batches, self.asked = batches, 0

        def __iter__(self):
            self.asked += 1
            return iter(self.batches)

        def __len__(self):
            return len(self.batches)

    x = torch.ones(4, 1)
    train, seen = Loader([(x, x)] * 3), []
    learn = cbnb.Learner(cbnb.DataLoaders(train, [(x, x)]), nn.Linear(1, 1), nn.MSELoss(), lr=0.1, cbs=Tells())
    learn.logger = lambda row: None
    asked = train.asked
    learn.fit(1, cbs=cbnb.Callback(before_fit=lambda cb: seen.append((settings_of(cb.learn), train.asked))))
    settings, then = seen[0]
    assert then == asked and settings["batch_size"] == 7 and settings["batches"] == 3
    assert not re.search("0x[0-9a-f]+", str(settings)) and any("Tells" in name for name in settings["callbacks"])


def test_rates_of_groups_are_a_list_unless_they_are_equal():
    learn = line_learner(splitter=lambda m: [[m.a], [m.b]])
    learn.fit(1, [0.1, 0.2])
    learn.fit(1, [0.1, 0.1])
    assert [run.settings["lr"] for run in learn.recorder.history] == [[0.1, 0.2], 0.1]


def test_a_callback_whose_repr_fails_or_is_long_is_cut():
    class Long(cbnb.Callback):
        def __repr__(self):
            return "x" * 1000

    learn = line_learner(cbs=Long())
    learn.fit(1)
    assert learn.recorder.last().settings["callbacks"] == ["x" * 200]


def test_settings_and_name_are_kept_in_files_and_checkpoints():
    learn = fitted()
    run = learn.recorder.last()
    run.name = "wide"
    again = cbnb.History.from_json(learn.recorder.history.to_json())[0]
    assert again.settings == run.settings and again.name == "wide" and repr(again) == "Run(wide: 2 of 2 epochs, 4 steps, done)"
    restored = cbnb.History()
    restored.load_state_dict(learn.recorder.history.state_dict())
    assert restored[0].settings == run.settings and restored[0].name == "wide" and restored[0].settings is not run.settings
    run.name = None
    assert run.name == "run 0" and repr(run).startswith("Run(0: ")


def test_records_without_settings_can_be_read():
    learn = fitted()
    data, state = json.loads(learn.recorder.history.to_json()), learn.recorder.history.state_dict()
    for run in data["runs"]:
        del run["settings"], run["name"]
    for run in state["runs"]:
        del run["settings"], run["given_name"]
    old = cbnb.History.from_json(json.dumps(data))
    restored = cbnb.History()
    restored.load_state_dict(state)
    assert old[0].settings == restored[0].settings == {} and old[0].name == restored[0].name == "run 0"
    assert compare(old, fitted()).rows[0]["run"] and differences([old[0], old[0]]) == {}


def test_a_resumed_run_has_the_settings_of_the_last_call(tmp_path):
    def make(**kwargs):
        return line_learner(path=tmp_path, cbs=cbnb.Checkpoint(every_steps=1), **kwargs)

    make().fit(1)
    learn = make()
    learn.fit(3, resume=cbnb.Resume(allow="n_epoch"))
    assert learn.recorder.last().settings["n_epoch"] == 3 and learn.recorder.last().status == "done"


# --- names ---


def test_each_run_has_a_name_of_its_own():
    a, b = fitted(), fitted()
    b.fit(1)
    assert list(runs_of(a)) == ["run 0"] and list(runs_of(b.recorder)) == ["run 0", "run 1"]
    assert list(runs_of(a, b)) == ["a", "b, run 0", "b, run 1"]
    assert list(runs_of(a, wide=b)) == ["a", "wide, run 0", "wide, run 1"]
    assert list(runs_of({"x": a, "y": b.recorder.history[1]})) == ["x", "y"]
    assert list(runs_of([a, b])) == list(runs_of(a, b))
    b.recorder.history[1].name = "last"
    assert list(runs_of(a, b)) == ["a", "b, run 0", "last"]
    assert list(runs_of(a.recorder.history[0], b.recorder.history[0], b.recorder.history[1])) == ["run 0", "run 0_2", "last"]


@pytest.mark.parametrize("source", [3, "learn", SimpleNamespace(recorder=None), nn.Linear(1, 1)])
def test_other_things_have_no_runs(source):
    with pytest.raises(TypeError, match="has no recorded runs: pass learners"):
        compare(source)


def test_without_runs_there_is_nothing_to_compare():
    with pytest.raises(ValueError, match="there are no runs to compare: call learn.fit"):
        compare(line_learner())
    assert len(runs_table(line_learner())) == 0 and "no runs yet" in runs_table(line_learner())._repr_html_()


# --- curves ---


def test_a_long_run_is_thinned_and_ends_with_its_last_value():
    run = Run(0, ["epoch", "train_loss"], 1)
    run.series.fill(torch.rand(100_003).tolist())
    curve = run_curve(run, "train_loss")
    assert len(curve.ys) <= 200 and curve.xs[-1] == 100_002 and curve.ys[-1] == run.losses[-1]
    assert run_curve(run, "valid_loss").ys == [] and run_curve(run, "lr").ys == []


def test_places_on_the_axes_of_epochs_and_time():
    run = Run(0, ["epoch", "train_loss"], 3)
    run.series.fill([0.0] * 25)
    run.start_epoch, run.settings = 1, dict(batches=10)
    run.epochs = [
        dict(epoch=1, step=10, time=2.0, complete=True),
        dict(epoch=2, step=20, time=4.0, complete=True),
        dict(epoch=3, step=25, time=1.0, complete=False),
    ]
    assert knots(run, "epoch") == [(0, 1.0), (10, 2.0), (20, 3.0), (25, 3.5)]
    assert knots(run, "time") == [(0, 0.0), (10, 2.0), (20, 6.0), (25, 7.0)]
    assert places([4, 9, 14, 24], knots(run, "epoch")) == [1.5, 2.0, 2.5, 3.5]
    run.epochs.pop()  # it still runs: at the speed so far
    assert knots(run, "epoch")[-1] == (25, 3.5) and knots(run, "time")[-1] == (25, 7.5)
    run.epochs.clear()
    assert knots(run, "epoch") == [(0, 1.0), (25, 3.5)] and knots(run, "time") == [(0, 0.0), (25, 0.0)]
    run.start_epoch = 0
    assert knots(run, "epoch") == [(0, 0.0), (25, 2.5)]
    run.settings = {}
    assert knots(run, "epoch") == [(0, 0.0), (25, 1.0)] and knots(Run(0, [], 1), "epoch") == [(0, 0.0)]
    assert places([], knots(run, "epoch")) == []


def test_an_epoch_without_training_batches_takes_time():
    run = Run(0, ["epoch"], 2)
    run.series.fill([0.0] * 2)
    run.epochs = [dict(epoch=0, step=0, time=3.0, complete=True), dict(epoch=1, step=2, time=2.0, complete=True)]
    assert places([0, 1], knots(run, "time")) == [4.0, 5.0] and places([0, 1], knots(run, "epoch")) == [1.5, 2.0]


@pytest.mark.parametrize(
    "curves, far",
    [
        ([[2, 1, 0.5], [2, 1.1, 0.6], [2, 1e6, 1e7]], [0, 0, 1]),
        ([[2, 1, 0.5], [2, 1e6, 1e7]], [0, 1]),
        ([[2, 1, 0.5]] * 8 + [[2, 90, 90], [2, -90, -90]], [0] * 8 + [1, 1]),
        ([[2.3, 1.0, 0.5], [2.3, 2.2, 2.1]], [0, 0]),  # slow, not diverged
        ([[0.1, 0.9], [0.1, 0.2]], [0, 0]),
        ([[1e6, *[1.0] * 30], [2.0, *[1.0] * 30]], [0, 0]),  # a spike at the start
        ([[math.nan, math.inf], [1.0, 2.0], []], [0, 0, 0]),
        ([[0.0, 0.0], [0.0, 0.0]], [0, 0]),
        ([], []),
    ],
)
def test_which_runs_leave_the_range(curves, far):
    assert leaves_range(curves) == list(map(bool, far))


def test_a_diverged_run_does_not_flatten_the_others():
    good, wild = fitted(6), line_learner(metrics=mae, lr=0.1)
    wild.fit(6, lr=3.0)
    found = compare(good=good, wild=wild)
    assert found.far("valid_loss") == ["wild"]
    assert any(note.startswith("wild leaves the range of the others: ") for note in found.notes("valid_loss"))
    assert [line.beyond for line in found.lines("valid_loss", "step")] == [False, True]
    fig = compare(good=good, wild=wild, return_fig=True)
    assert fig.axes[0].get_ylim()[1] < 2 * max(good.recorder.history["valid_loss"])
    assert "wild leaves the range of the others" in fig.axes[0].get_xlabel()


def test_a_loss_that_is_not_finite_is_said_in_words():
    good, wild = fitted(3), line_learner(metrics=mae)
    wild.fit(3, 1e30)
    found = compare(good=good, wild=wild, metric="train_loss")
    assert any(re.match("wild: done, loss (inf|nan) from step ", note) for note in found.notes("train_loss"))
    assert "loss inf from step" in str(found) or "loss nan from step" in str(found)
    data = page.comparison_data(found)
    json.dumps(data, allow_nan=False)
    assert "NaN" not in found.html(live=False)


# --- the table ---


def test_rows_of_runs_that_ended_in_different_ways():
    done, stopped, broken = fitted(), failed(), failed(ZeroDivisionError)
    rows = runs_table(done=done, stopped=stopped, broken=broken).rows
    assert [row["status"] for row in rows] == ["done", "interrupted", "failed"]
    assert [row["epochs"] for row in rows] == [2, 1, 1] and [row["steps"] for row in rows] == [4, 3, 3]
    assert rows[0]["valid_loss"] == done.recorder.history[0]["valid_loss"][-1]
    assert rows[0]["best mae"] == min(done.recorder.history[0]["mae"]) and rows[0]["n_epoch"] == 2
    assert "wd" not in rows[0] and all(row.keys() == rows[0].keys() for row in rows)


def test_the_best_of_a_metric_depends_on_its_name():
    def accuracy(pred, y):
        return 1 / (1 + (pred - y).abs().mean())

    learn = line_learner(metrics=[mae, accuracy])
    learn.fit(3)
    learn.fit(1, 0.001)
    rows = runs_table(learn, sort="best accuracy").rows
    history = learn.recorder.history
    assert rows[0]["best accuracy"] == max(history["accuracy"]) and rows[0]["best mae"] == min(history["mae"])
    assert rows[0]["best accuracy"] >= rows[1]["best accuracy"]
    turned = runs_table(learn, sort="-best accuracy").rows
    assert [row["run"] for row in turned] == [row["run"] for row in reversed(rows)]


def test_rows_without_a_value_come_last():
    rows = [dict(run=name, x=x) for name, x in [("a", None), ("b", 2.0), ("c", math.nan), ("d", 1.0), ("e", math.inf)]]
    assert "".join(row["run"] for row in sorted_rows(rows, "x")) == "dbeac"
    assert "".join(row["run"] for row in sorted_rows(rows, "-x")) == "ebdac"
    mixed = [dict(run="a", x="words"), dict(run="b", x=3), dict(run="c", x=[1.0, 2.0])]
    assert [row["run"] for row in sorted_rows(mixed, "x")][0] == "b"
    with pytest.raises(ValueError, match="there is no column for .*: did you mean 'run'"):
        sorted_rows(rows, "rnu")


@pytest.mark.parametrize(
    "column, value, text",
    [
        ("lr", 0.00123, "0.0012"),
        ("lr", [1e-5, 0.1], "1e-5, 0.1"),
        ("wd", 0.0, "0"),
        ("time", 75.0, "01:15"),
        ("steps", 12345, "12,345"),
        ("seed", 12345, "12345"),
        ("mae", math.nan, "nan"),
        ("callbacks", ["A()", "B()"], "A(), B()"),
        ("callbacks", [], "none"),
        ("mae", None, ""),
    ],
)
def test_what_a_cell_says(column, value, text):
    assert cell_text(column, value) == text


def test_a_table_in_a_page_escapes_its_words():
    learn = fitted()
    learn.fit(1)
    learn.recorder.history[0].name = "<script>alert(1)</script>"
    learn.recorder.history[1].settings["callbacks"] = ["<b>"]
    for html in (runs_table(learn).html(live=False), compare(learn).html(live=False), learn.recorder.history._repr_html_()):
        assert "<script>" not in html and "&lt;script&gt;" in html and "<b>&" not in html.replace("<b>&lt;", "")
    live = compare(learn).html(live=True)
    assert live.count("<script>") == live.count("</script>") == 1


def test_a_history_of_several_runs_has_the_table_of_runs_above_its_epochs():
    learn = fitted()
    one = learn.recorder.history._repr_html_()
    assert "<details>" not in one and one.count("<tr>") == 3
    learn.fit(1, 0.01)
    several = learn.recorder.history._repr_html_()
    table, epochs = several.split("<details>")
    assert table.count('<tr class="run">') == 3 and "best valid_loss" in table and ">lr<" in table
    assert epochs.count("<tr>") == 1 + 3


def test_a_table_as_a_figure_is_the_best_value_of_each_run():
    fig = runs_table(a=fitted(), b=failed(at=0), return_fig=True, sort="run")
    ax = fig.axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"] and ax.get_xlabel() == "best valid_loss"
    assert {text.get_text() for text in ax.texts} >= {"no value"}


def test_a_table_without_values_is_no_figure():
    with pytest.raises(ValueError, match="there are no values to plot yet"):
        runs_table(line_learner(), return_fig=True)


# --- the chart ---


def test_twenty_runs_have_different_looks():
    looks = page.run_looks(map(str, range(24)))
    assert len(set(looks.values())) == 24 and [dash for _, dash in looks.values()] == [""] * 8 + ["dash"] * 8 + ["dot"] * 8
    assert [color for color, _ in looks.values()] == RUN_COLORS * 3


def test_details_begin_with_what_differs():
    a, b = fitted(lr=0.1), fitted(lr=0.2)
    details = compare(a=a, b=b).details
    assert details["b"][0] == ("lr", "0.2", True)
    assert [name for name, _, differs in details["a"] if not differs] == ["wd", "epochs", "callbacks"]
    assert ("status", "interrupted: stopped in epoch 1 at batch 1", False) in compare(a=a, b=failed()).details["b"]


def test_curves_by_metric_and_axis():
    small, large = fitted(3, n=4), fitted(3, n=2)
    found = compare(small=small, large=large, by="epoch")
    assert [list(line.xs) for line in found.lines("valid_loss", "epoch")] == [[1.0, 2.0, 3.0]] * 2
    assert [list(line.xs) for line in found.lines("valid_loss", "step")] == [[3, 7, 11], [1, 3, 5]]
    assert set(found.curves) == {"train_loss", "valid_loss", "mae", "lr", "mom"}
    for metric in found.curves:
        for by in ("step", "epoch", "time"):
            assert all(len(line.xs) == len(line.ys) for line in found.lines(metric, by))
    with pytest.raises(ValueError, match="metric='valid_los' is not a metric of these runs: did you mean 'valid_loss'"):
        compare(small, metric="valid_los")
    with pytest.raises(ValueError, match="by='epochs' should be 'step', 'epoch' or 'time'"):
        compare(small, by="epochs")


def test_runs_without_validation_are_compared_by_their_training_loss():
    learn = line_learner(valid=False)
    learn.fit(2)
    other = fitted()
    assert compare(learn).metric == "train_loss" and compare(learn, other).metric == "valid_loss"
    assert compare(plain=learn, other=other).notes("valid_loss") == ["without valid_loss: plain"]


def test_a_comparison_stays_as_it_was():
    learn = fitted()
    found = compare(learn, fitted())
    before, rows = found.html(live=False), [dict(row) for row in found.rows]
    learn.fit(2)
    learn.recorder.history[0].name = "other"
    assert found.html(live=False) == before and found.rows == rows


def test_a_run_can_be_compared_while_it_trains():
    seen, other = [], fitted()

    def look(cb):
        if cb.train_iter == 3:
            found = compare(cb.learn, other, metric="train_loss")
            seen.append((found.rows, found.lines("train_loss", "epoch"), found.html(live=False)))

    learn = line_learner(metrics=mae)
    learn.fit(3, cbs=cbnb.Callback(after_batch=look))
    rows, lines, _ = seen[0]
    assert "running" in {row["status"] for row in rows} and len(lines[0].xs) in (2, 3)


def test_a_figure_into_given_axes():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert compare(a=fitted(), b=fitted(lr=0.01), ax=ax, by="time") is ax
    assert len(ax.lines) == 2 and ax.get_xlabel() == "seconds" and [text.get_text() for text in ax.get_legend().texts] == ["a", "b"]


def test_the_page_gets_all_metrics_over_steps():
    found = Comparison(runs_of(a=fitted(4), b=failed()), "mae", "time")
    data = page.comparison_data(found)
    assert (data["metric"], data["by"], list(data["knots"])) == ("mae", "time", ["epoch", "time"])
    assert list(data["specs"]) == list(found.curves) and [line["name"] for line in data["specs"]["mae"]["lines"]] == ["a", "b"]
    assert data["table"]["sort"] == dict(column=list(found.rows[0]).index("best mae"), down=False)
    assert [row["name"] for row in data["table"]["rows"]] == [row["run"] for row in found.rows]
    assert all(row["color"].startswith("var(--cbnb-") for row in data["table"]["rows"])
    json.dumps(data, allow_nan=False)


def test_the_output_of_ten_runs_is_small():
    runs = {f"run {i}": fitted(3, 0.01 * (i + 1)) for i in range(10)}
    assert len(compare(runs).html(live=True)) < 75_000 and len(compare(runs).html(live=False)) < 40_000
    assert len(runs_table(runs).html(live=True)) < 25_000


def test_a_chart_of_runs_alone():
    learn = fitted()
    learn.fit(1, 0.01)
    html = charts_html([Comparison(dict(zip(["first", "second"], learn.recorder.history.runs)), "mae", by="epoch").chart()])
    assert "data:image/svg+xml" in html and "<table" not in html
    alt = re.search('alt="([^"]*)"', html)[1]
    assert "mae" in alt and "first" in alt and "second" in alt


def test_learners_of_a_list_have_distinct_names():
    """compare([a, b], c=d) called two learners "learner 1"."""
    a, b, c = (line_learner(4) for _ in range(3))
    for learn in (a, b, c):
        with learn.no_logging():
            learn.fit(1)
    assert list(runs_of([a, b], own=c)) == ["a", "b", "own"]
    assert list(runs_of([a.recorder, b], own=c)) == ["learner 1", "learner 2", "own"]


def test_a_short_run_is_shown_beside_a_long_one():
    """All of it lies in the first tenth of the chart, where high values may leave the range."""
    from cbnb.display.chart import Chart, Line, _robust_limits

    short = Line("a", range(40), [0.88 - 0.02 * i for i in range(40)])
    long = Line("b", range(1000), [0.08 - 0.00007 * i for i in range(1000)])
    lowest, highest = _robust_limits(Chart([short, long]), [(line.xs, line.ys) for line in (short, long)])
    assert highest >= short.ys[4] and lowest <= long.ys[-1]


def test_learners_have_the_names_of_their_variables():
    """compare(baseline, wide) called them "learner 1" and "learner 2"."""
    baseline, wide = fitted(), fitted()
    _hidden = fitted()
    assert list(compare(baseline, wide).looks) == list(runs_of(baseline, wide)) == ["baseline", "wide"]
    assert list(runs_of(baseline, fitted(), _hidden)) == ["baseline", "learner 2", "learner 3"]
    several = [baseline, fitted()]
    assert list(runs_of(several)) == ["learner 1", "learner 2"]
    assert list(runs_of(baseline)) == ["run 0"]


def test_of_two_variables_with_one_learner_the_one_in_the_call_is_its_name():
    """After `for learn in (baseline, wide): learn.fit(1)`, `learn` is the second learner, too."""
    learn = baseline = fitted()
    learn = wide = fitted()
    assert list(compare(baseline, wide).looks) == list(runs_of([baseline, wide])) == ["baseline", "wide"]
    assert list(runs_of(baseline, learn)) == ["baseline", "learn"]


def test_a_run_that_learns_slowly_does_not_leave_the_range():
    """0.88 -> 0.05 beside 0.08 -> 0.003 was cut off; a run that rises above its start still is."""
    from cbnb.display.compare import leaves_range

    fast = [0.08 * 0.97**i + 0.003 for i in range(100)]
    slow = [0.85 * 0.97**i + 0.03 for i in range(100)]
    stalls = [0.9 if i < 60 else 0.05 for i in range(100)]
    assert leaves_range([slow, fast]) == leaves_range([stalls, fast]) == [False, False]
    assert leaves_range([[0.5, *[9.0] * 99], fast]) == [True, False]
