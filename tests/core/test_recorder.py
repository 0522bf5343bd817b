"""What is written down of a fit, and what it costs."""

import contextlib
import csv
import io
import json
import math
import os
import signal
import sys
import threading
import weakref
from array import array
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cbnb
from cbnb import recorder
from cbnb.basics import arguments, text
from cbnb.basics.buffers import ScalarBuffer
from cbnb.callbacks.more_metrics import AvgLoss, AvgSmoothLoss
from cbnb.display.figures import COLORS, RULE_COLORS, RUN_COLORS
from cbnb.display.look import PALETTE, RUN_SHADES
from helpers import Line, RaiseIn, ab, line_batches, line_learner, seed


def mae(pred, y):
    return (pred - y).abs().mean()


def bias(pred, y):
    return (pred - y).mean()


def test_fixture_a():
    learn = line_learner()
    learn.fit(1)
    assert ab(learn) == (pytest.approx(0.72, abs=1e-6), pytest.approx(1.08, abs=1e-6))
    assert learn.recorder.losses == pytest.approx([13.0, 10.63636], abs=1e-5)
    assert learn.recorder.values == [[pytest.approx((13 + 8.32) / 2), pytest.approx(5.3248, abs=1e-5)]]
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", "time"]
    assert learn.recorder.lrs == [0.1, 0.1] and learn.recorder.iters == [2]
    assert learn.smooth_loss.item() == pytest.approx(10.63636, abs=1e-5) and learn.final_record == learn.recorder.values[0]
    epoch, train_loss, valid_loss, time = learn.recorder.log
    assert (epoch, [train_loss, valid_loss]) == (0, learn.recorder.values[0]) and time == "00:00"
    assert list(learn.recorder.history[0].raw_losses) == pytest.approx([13.0, 8.32])


@pytest.mark.parametrize(
    "train, valid, names",
    [
        (False, True, ["train_loss", "valid_loss", "mae", "bias"]),
        (True, True, ["train_loss", "train_mae", "train_bias", "valid_loss", "valid_mae", "valid_bias"]),
        (True, False, ["train_loss", "mae", "bias"]),
        (False, False, ["train_loss"]),
    ],
)
@pytest.mark.parametrize("add_time", [True, False])
def test_columns_and_values_belong_together(train, valid, names, add_time):
    """D11: names without values."""
    learn = line_learner(metrics=[mae, bias], cbs=cbnb.Recorder(add_time=add_time, train_metrics=train, valid_metrics=valid))
    learn.fit(2)
    assert learn.recorder.metric_names == ["epoch", *names, *(["time"] if add_time else [])]
    row = learn.recorder.values[0]
    assert len(row) == len(names) == len(learn.final_record) and all(isinstance(v, float) for v in row)
    by_name = dict(zip(names, row))
    if valid:  # at x=1 the error is 3.2, at x=-1 it is 0.64
        assert by_name["valid_mae" if train else "mae"] == pytest.approx((3.2 + 0.64) / 2)
        assert by_name["valid_bias" if train else "bias"] == pytest.approx(-1.92)
    if train:  # the mean of both batches, each before its step
        assert by_name["train_bias" if valid else "bias"] == pytest.approx(-(3 + 2.4) / 2)
    assert len(learn.recorder.log) == len(names) + 1 + add_time


def test_without_validation():
    """D35: a missing loader was an IndexError after the first training phase."""
    learn = line_learner(valid=False, metrics=mae)
    learn.fit(2)
    assert learn.recorder.metric_names == ["epoch", "train_loss", "time"]
    assert learn.recorder.values[0] == [pytest.approx((13 + 8.32) / 2)]
    learn = cbnb.Learner(line_batches(), line_learner().model, nn.MSELoss(), torch.optim.SGD, lr=0.1)
    learn.fit(1)
    assert ab(learn)[0] == pytest.approx(0.72)


@pytest.mark.parametrize(
    "every, validated", [(1, [0, 1, 2, 3, 4]), (2, [1, 3]), (5, [4]), (9, []), ([0, 4], [0, 4]), ((2,), [2]), ([], [])]
)
def test_valid_every(every, validated):
    learn = line_learner(metrics=mae)
    learn.fit(5, valid_every=every)
    rows = learn.recorder.history[0].epochs
    assert [row["epoch"] for row in rows if row["valid_loss"] is not None] == validated
    assert [row["epoch"] for row in rows if row["mae"] is not None] == validated
    assert len(rows) == 5 and all(len(values) == 3 for values in learn.recorder.values)


def test_start_epoch():
    """D14: rows of skipped epochs were empty, which broke trackers and plots."""
    seen = []
    learn = line_learner(cbs=cbnb.Callback(before_epoch=lambda self: seen.append((self.learn.epoch, self.learn.pct_train))))
    learn.fit(4, start_epoch=1)
    assert [row["epoch"] for row in learn.recorder.history[0].epochs] == [1, 2, 3] and learn.recorder.history[0].status == "done"
    assert seen[0] == (1, 0.25) and learn.recorder.iters == [2, 4, 6]
    assert [row["epoch"] for row in learn.recorder.history.rows("steps")] == [1, 1, 2, 2, 3, 3]
    assert not any(None in values for values in learn.recorder.values)
    learn.fit(2, start_epoch=2)
    assert learn.recorder.history[1].epochs == [] and learn.recorder.history[1].n_steps == 0


@pytest.mark.parametrize(
    "name, cancel, train, valid",
    [
        ("before_train", cbnb.CancelTrainException, False, True),
        ("after_batch", cbnb.CancelTrainException, True, True),
        ("before_validate", cbnb.CancelValidException, True, False),
        ("before_epoch", cbnb.CancelEpochException, False, False),
        ("before_train", cbnb.CancelEpochException, False, False),
        ("before_validate", cbnb.CancelEpochException, True, False),
        ("after_train", cbnb.CancelEpochException, True, False),
    ],
)
@pytest.mark.parametrize("order", [-50, 0, 70])
@pytest.mark.parametrize("which_epoch", [0, 1])
def test_cancelled_phases_leave_gaps_not_shifts(name, cancel, train, valid, order, which_epoch):
    """D08: columns moved against their names; D09: the row before was recorded again, or there was an AttributeError."""
    cb = RaiseIn(name, cancel, order, when=lambda learn: learn.epoch == which_epoch)
    learn = line_learner(4, metrics=mae, cbs=cb)
    learn.fit(3)
    run = learn.recorder.history[0]
    assert [row["epoch"] for row in run.epochs] == [0, 1, 2] and len(learn.recorder.values) == 3
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", "mae", "time"]
    row = run.epochs[which_epoch]
    assert (row["train_loss"] is not None) == train
    if order < 50 or name != "before_validate" or cancel is cbnb.CancelEpochException:
        assert (row["valid_loss"] is not None, row["mae"] is not None) == (valid, valid)
    others = [run.epochs[i] for i in range(3) if i != which_epoch]
    assert all(None not in (row["train_loss"], row["valid_loss"], row["mae"]) for row in others)
    assert run.n_steps == run.epochs[-1]["step"] and all(len(values) == 3 for values in learn.recorder.values)


@pytest.mark.parametrize("cancel", [cbnb.CancelTrainException, cbnb.CancelEpochException, cbnb.CancelFitException])
@pytest.mark.parametrize("order", [-50, 0, 49, 50, 70])
@pytest.mark.parametrize("event", ["after_batch", "before_step"])
def test_a_batch_whose_update_is_done_is_recorded_whoever_cancels_after_it(cancel, order, event):
    """A callback with an order below 50 that cancelled in `after_batch` lost the batch."""
    learn = line_learner(4, metrics=mae)
    learn.fit(1, cbs=RaiseIn(event, cancel, order, when=lambda learn: learn.iter == 2))
    run, n = learn.recorder.last(), 3 if event == "after_batch" else 2
    assert run.n_steps == learn.train_iter == n == len(run.raw_losses) == len(learn.recorder.lrs)
    assert len(set(run.raw_losses)) == n and run.epochs[0]["step"] == n


def test_a_batch_is_recorded_once_if_a_nested_run_is_cancelled_after_it():
    learn = line_learner(4)
    inner = cbnb.Callback(after_batch=lambda self: _cancel_fit() if self.learn.purpose == "validate" else None)
    learn.fit(1, cbs=[cbnb.Callback(after_batch=lambda self: self.learn.validate() if self.purpose == "fit" else None), inner])
    assert learn.recorder.last().n_steps == learn.train_iter == 1


def _cancel_fit():
    raise cbnb.CancelFitException


@pytest.mark.parametrize("phase", ["train", "validate"])
@pytest.mark.parametrize("name", ["before_batch", "after_pred"])
def test_a_batch_cancelled_before_its_loss_is_not_counted(name, phase):
    """D10: the loss of the batch before was counted again, or 0.0 in the first."""
    batches = line_batches(3)
    dls = cbnb.DataLoaders(batches, [batches[0], (batches[1][0], batches[1][1] + 5)], device="cpu")
    for index in (0, 1):
        learn = line_learner(
            dls=dls,
            metrics=[mae],
            cbs=[
                cbnb.Recorder(train_metrics=True),
                RaiseIn(name, cbnb.CancelBatchException, phase=phase, when=lambda learn: learn.iter == index),
            ],
        )
        learn.fit(1)
        row = learn.recorder.history[0].epochs[0]
        if phase == "train":
            assert list(learn.recorder.history[0].raw_losses) == pytest.approx([13, 8.32])
            assert row["train_mae"] == pytest.approx((3 + 2.4) / 2)
        else:
            a, b = ab(learn)
            rest = [abs(a * x + b - (2 * x + 3 + 5 * (1 - index))) for x in (-1, 1)]
            assert row["valid_mae"] == pytest.approx(sum(rest) / 2)
            assert row["valid_loss"] == pytest.approx(sum(r**2 for r in rest) / 2)


def test_a_batch_cancelled_after_its_loss_is_counted():
    learn = line_learner(cbs=RaiseIn("before_backward", cbnb.CancelBatchException))
    learn.fit(1)
    assert len(learn.recorder.losses) == len(learn.recorder.lrs) == 2


def test_a_second_fit_appends_a_run():
    learn = line_learner()
    learn.fit(2), learn.fit(1, lr=0.05)
    history = learn.recorder.history
    assert [(run.number, run.status, run.n_steps, len(run.epochs)) for run in history] == [(0, "done", 4, 2), (1, "done", 2, 1)]
    assert learn.recorder.lrs == [0.05, 0.05] and history[0].hyper("lr") == [0.1] * 4
    assert learn.recorder.losses[0] == pytest.approx(history[1].raw_losses[0])  # smoothing starts anew
    assert [(row["run"], row["epoch"]) for row in history.rows()] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    "error, status", [(ValueError, "failed"), (KeyboardInterrupt, "interrupted"), (cbnb.CancelFitException, "cancelled")]
)
def test_status(error, status):
    learn = line_learner(4, cbs=RaiseIn("after_step", error, when=lambda learn: learn.train_iter == 5))
    try:
        learn.fit(3)
    except (ValueError, KeyboardInterrupt):
        pass
    run = learn.recorder.history[0]
    assert run.status == status and [(row["epoch"], row["complete"]) for row in run.epochs] == [(0, True), (1, False)]
    assert run.epochs[1]["valid_loss"] is None and run.n_steps == run.epochs[1]["step"] == 5
    first = run.epochs[0]["step"]
    assert run.epochs[1]["train_loss"] == pytest.approx(sum(run.raw_losses[first:]) / (run.n_steps - first))


def test_the_column_of_the_best_epoch_is_kept_in_a_file():
    learn = line_learner()
    learn.fit(1)
    learn.recorder.last().watched = "accuracy", 1
    again = cbnb.History.from_json(learn.recorder.history.to_json())
    assert again.runs[0].watched == ("accuracy", 1)


def test_to_dict_json_and_csv_round_trip(tmp_path):
    seed()
    learn = line_learner(3, metrics=[mae], opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))
    learn.fit_one_cycle(2, 0.03), learn.fit(1, valid_every=2)
    history = learn.recorder.history
    plain = history.to_dict()
    assert json.loads(history.to_json(tmp_path / "h.json")) == plain == json.loads((tmp_path / "h.json").read_text())
    steps = plain["runs"][0]["steps"]
    assert steps["smooth_loss"] == list(history[0].losses) and steps["lr"] == history[0].hyper("lr") and len(steps["mom"]) == 6
    for what in ("epochs", "steps"):
        text = history.to_csv(tmp_path / "h.csv", what)
        assert text == (tmp_path / "h.csv").read_text()
        read = list(csv.DictReader(io.StringIO(text)))
        written = list(history.rows(what))
        assert len(read) == len(written) == (3 if what == "epochs" else 9)
        for got, row in zip(read, written):
            for k, v in row.items():
                assert got[k] == "" if v is None else got[k] == str(v) if isinstance(v, bool) else float(got[k]) == v
    with pytest.raises(ValueError, match="what='batches' should be 'epochs' or 'steps'"):
        list(history.rows("batches"))
    assert json.loads(line_learner().recorder.history.to_json()) == {"runs": []} and line_learner().recorder.history.to_csv() == "\n"


def test_history_files_of_a_partial_run_hold_every_step(tmp_path):
    learn = line_learner(4, cbs=RaiseIn("after_step", KeyboardInterrupt, when=lambda learn: learn.train_iter == 6))
    with pytest.raises(KeyboardInterrupt):
        learn.fit(3)
    rows = list(csv.DictReader(io.StringIO(learn.recorder.history.to_csv(what="steps"))))
    assert [row["epoch"] for row in rows] == ["0"] * 4 + ["1"] * 2


def test_nan_losses():
    def sometimes(pred, y):
        return nn.functional.mse_loss(pred, y) * (float("nan") if learn.training and learn.iter == 1 else 1)

    learn = line_learner(3, loss_func=sometimes)
    learn.fit(1)
    raw = list(learn.recorder.history[0].raw_losses)
    assert raw[0] == pytest.approx(13) and math.isnan(raw[1]) and math.isnan(raw[2])
    assert all(math.isnan(v) for v in learn.recorder.values[0])
    assert json.loads(learn.recorder.history.to_json())["runs"][0]["status"] == "done"


def test_nothing_recorded_yet():
    learn = line_learner()
    for name in ("losses", "lrs", "values", "hps", "iters", "metric_names"):
        with pytest.raises(AttributeError, match="recorded yet"):
            getattr(learn.recorder, name)
    learn.validate()
    assert len(learn.recorder.history) == 0 and learn.recorder.history.to_dict() == {"runs": []}


def test_settings_may_change_between_fits():
    learn = line_learner(metrics=mae)
    learn.fit(1)
    learn.recorder.train_metrics, learn.recorder.add_time = True, False
    learn.fit(1)
    assert learn.recorder.metric_names == ["epoch", "train_loss", "train_mae", "valid_loss", "valid_mae"]
    assert learn.recorder.history[0].metric_names == ["epoch", "train_loss", "valid_loss", "mae", "time"]


def test_metrics_of_the_same_name_get_columns_of_their_own():
    learn = line_learner(metrics=[cbnb.AvgMetric(mae), cbnb.AvgMetric(bias, name="mae")])
    learn.fit(1)
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", "mae", "mae_2", "time"]
    assert learn.recorder.values[0][2:] == [pytest.approx(1.92), pytest.approx(-1.92)]


def test_validate_without_a_recorder_gives_none():
    """A record from before was returned."""
    learn = line_learner()
    learn.fit(1)
    with learn.removed_cbs(cbnb.Recorder):
        assert learn.validate() is None
    assert learn.validate() == [pytest.approx(5.3248)]


def bytes_held(value):
    """What a record needs in memory, counting a tensor by itself as half a kilobyte."""
    if isinstance(value, torch.Tensor):
        return 500 + value.nbytes
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(bytes_held, value.values()))
    if isinstance(value, (list, tuple)):
        return sys.getsizeof(value) + sum(map(bytes_held, value))
    if isinstance(value, array) or not hasattr(value, "__dict__"):
        return sys.getsizeof(value)
    return bytes_held(vars(value))


@pytest.mark.parametrize("n, rate", [(20_000, 1e-4), (4_000, torch.tensor(1e-4))], ids=["plain", "a tensor as rate"])
def test_memory_of_a_long_run(n, rate):
    """Also in the middle of an epoch, except for the few values that wait to be stacked."""
    during, batch = [], line_batches(1)[0]
    look = cbnb.Callback(after_train=lambda self: during.append(bytes_held(self.learn.recorder.history[0])))
    look.order = -1000
    dls = cbnb.DataLoaders([batch] * n, device="cpu")
    learn = line_learner(dls=dls, cbs=look, opt_func=lambda groups, lr: torch.optim.Adam(groups, lr=rate, foreach=False), lr=1e-4)
    learn.fit(1)
    run = learn.recorder.history[0]
    assert during[0] <= 40 * n + 2 * 256 * 600
    assert run.n_steps == n == len(learn.recorder.losses) == len(learn.recorder.lrs)
    assert bytes_held(run) <= 40 * n


WAITS = ("item", "cpu", "tolist", "numpy", "__float__", "__bool__", "__int__", "__index__", "__repr__", "__format__")


@pytest.fixture
def waits(monkeypatch):
    """Counts the calls that would wait for a device."""
    counts = dict.fromkeys(WAITS, 0)
    for name in WAITS:

        def counted(self, *args, _name=name, _original=getattr(torch.Tensor, name), **kwargs):
            counts[_name] += 1
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return counts


FITS = {
    "fit": lambda learn: learn.fit(2),
    "fit_one_cycle": lambda learn: learn.fit_one_cycle(2),
    "fit_flat_cos": lambda learn: learn.fit_flat_cos(2),
    "with metrics of training": lambda learn: (setattr(learn.recorder, "train_metrics", True), learn.fit(2)),
}


@pytest.mark.parametrize("kind", FITS)
def test_nothing_waits_for_the_device_in_a_batch(waits, kind):
    """300 training and 100 validation batches an epoch, with the default callbacks and metrics."""
    batches = line_batches(1) * 300
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches[:100], device="cpu"), metrics=[mae, bias], lr=1e-3, progress=True)
    bool(torch.tensor(1.0)), float(torch.tensor(1.0))
    assert sum(waits.values()) >= 2  # the counters work
    waits.update(dict.fromkeys(WAITS, 0))
    FITS[kind](learn)
    assert sum(waits.values()) <= 2 * 20, waits
    assert len(learn.recorder.losses) == 600


def test_metrics_shipped():
    """Exact on ragged batches; AvgSmoothLoss corrects its start; D36: zero is a value."""
    learn = line_learner()
    avg, smooth = AvgLoss(), AvgSmoothLoss()
    for m in (avg, smooth):
        m.reset()
    for n, loss in ((16, 25.0), (8, 1.0)):
        learn.loss, learn.yb = torch.tensor(loss), (torch.zeros(n),)
        avg.accumulate(learn)
    assert float(avg.value) == 17
    values = []
    for loss in (1.0, 2.0, 3.0):
        learn.loss = torch.tensor(loss)
        smooth.accumulate(learn)
        values.append(float(smooth.value))
    assert values == pytest.approx([1.0, 1.505051, 2.013467], abs=1e-5)
    pred, y = torch.tensor([[0.9, 0.2, 0.4], [0.1, 0.8, 0.6]]), torch.tensor([0, 1, 1])

    def share(p, t):
        return (p == t).float().mean()

    assert cbnb.AccumMetric(share, dim_argmax=0)(pred, y).item() == 1.0
    assert cbnb.AccumMetric(share, thresh=0.0)(torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0, 1, 1])).item() == 1.0
    empty = cbnb.AccumMetric(share)
    assert empty.value is None and AvgLoss().value is None


def test_a_metric_over_all_predictions_is_not_a_mean_of_batches():
    def spread(pred, y):
        return (pred.max() - pred.min()).item()

    x = torch.arange(10.0)
    dls = cbnb.DataLoaders([(x, x)], [(x[:4], x[:4]), (x[4:8], x[4:8]), (x[8:], x[8:])], device="cpu")
    learn = line_learner(dls=dls, metrics=[cbnb.AccumMetric(spread), cbnb.ValueMetric(lambda: 7.0, "seven")])
    learn.model.a.data.fill_(1.0)
    assert learn.validate()[1:] == [9.0, 7.0]


class Torchmetric:
    """The shape of a torchmetrics metric."""

    def reset(self):
        self.total, self.n = 0.0, 0

    def update(self, pred, y):
        self.total, self.n = self.total + (pred - y).abs().sum(), self.n + len(y)

    def compute(self):
        return self.total / self.n


def test_update_compute_metrics_need_no_wrapper():
    learn = line_learner(metrics=[Torchmetric(), mae])
    learn.fit(1)
    row = learn.recorder.history[0].epochs[0]
    assert row["torchmetric"] == pytest.approx(row["mae"])


def test_device_losses_of_64_bits_keep_their_bits():
    batches = [(x.double(), y.double()) for x, y in line_batches()]
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches[:1], device="cpu"), model=line_learner().model.double())
    third = torch.tensor(1 / 3, dtype=torch.float64)
    learn.loss_func = lambda pred, y: nn.functional.mse_loss(pred, y) * 0 + third
    learn.fit(1)
    assert list(learn.recorder.history[0].raw_losses) == [1 / 3, 1 / 3] and learn.recorder.values[0][1] == 1 / 3


def test_metrics_called_like_columns_get_a_number():
    """The columns of the table are never overwritten."""

    def time(pred, y):
        return 7.0

    def valid_loss(pred, y):
        return 8.0

    learn = line_learner(metrics=[time, valid_loss, AvgLoss()])
    learn.recorder.train_metrics = True
    learn.fit(1)
    names = learn.recorder.metric_names
    assert len(set(names)) == len(names) == 1 + 4 + 4 + 1
    row = dict(zip(names[1:-1], learn.recorder.values[-1]))
    assert row["valid_time"] == 7 and row["valid_valid_loss"] == 8 and row["train_loss"] == pytest.approx((13 + 8.32) / 2)


def test_one_batch_before_any_fit():
    """D44, with all default callbacks."""
    learn = cbnb.Learner(cbnb.DataLoaders(line_batches(1)), Line(), torch.nn.MSELoss())
    learn.one_batch(0, line_batches(1)[0])
    assert learn.loss == 13 and learn.train_iter == 0


@pytest.mark.parametrize("order", [-20, 0, 49, 51, 100])
def test_log_is_the_row_of_this_epoch_for_every_order(order):
    """It was that of the epoch before, or of the fit before, for orders below the Recorder's."""
    seen = []
    look = cbnb.Callback(after_epoch=lambda self: seen.append((self.epoch, list(self.recorder.log))))
    look.order = order
    learn = line_learner(metrics=mae, cbs=look)
    learn.fit(2), learn.fit(2)
    for (epoch, log), row in zip(seen, [row for run in learn.recorder.history for row in run.epochs], strict=True):
        assert log[:4] == [epoch, row["train_loss"], row["valid_loss"], row["mae"]]
        assert len(log) == (5 if order > 50 else 4)  # the time is known when the row is written
    assert learn.recorder.log[:-1] == [1, *learn.recorder.values[-1]]


def test_log_grows_within_an_epoch():
    seen = []

    def look(self):
        seen.append([value is not None for value in self.recorder.log])

    learn = line_learner()
    late = cbnb.Callback(before_train=look, after_train=look, after_validate=look)
    late.order = 51
    learn.fit(1, cbs=late)
    assert seen == [[True, False, False], [True, True, False], [True, True, True]]


class StepsTorchScheduler(cbnb.Callback):
    def __init__(self, event):
        super().__init__(**{event: lambda self: self.scheduler.step()})

    def before_fit(self):
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.5)


@pytest.mark.parametrize("event", ["after_step", "after_batch", "before_batch"])
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
def test_the_rates_are_those_of_the_steps(event):
    """Stepped after the step, a scheduler of torch made the record hold the next rate."""
    learn, used = line_learner(4, valid=False, cbs=StepsTorchScheduler(event)), []
    learn.add_cb(cbnb.Callback(before_step=lambda self: used.append(self.opt.param_groups[0]["lr"])))
    learn.fit(1)
    assert learn.recorder.lrs == used and len(set(used)) == 4


@pytest.mark.parametrize("name", ["after_pred", "after_loss", "before_backward", "before_step", "after_step", "the step"])
@pytest.mark.parametrize("cancel", [cbnb.CancelBatchException, cbnb.CancelTrainException])
@pytest.mark.parametrize("order", [-5, 99])
def test_a_rate_for_each_loss_whatever_is_cancelled(name, cancel, order):
    if name == "the step":
        name, cancel = "before_step", cbnb.CancelStepException
    raises = RaiseIn(name, cancel, order, when=lambda learn: learn.train_iter == 2)
    learn, used = line_learner(4, cbs=[raises, StepsTorchScheduler("after_batch")]), []
    learn.add_cb(cbnb.Callback(before_batch=lambda self: used.append(self.opt.param_groups[0]["lr"])))
    learn.fit(2)
    run = learn.recorder.last()
    assert len(run.hyper("lr")) == len(run.raw_losses) == run.n_steps
    assert set(run.hyper("lr")) <= set(used) and sorted(run.hyper("lr"), reverse=True) == run.hyper("lr")
    assert len(set(run.hyper("lr"))) == run.n_steps  # each rate was used once


def test_the_rate_is_that_of_before_step_whoever_else_changes_it():
    """The recorder reads it there in every batch, and once: what a later callback does in `before_step` is seen in the next batch."""
    learn = line_learner(3, valid=False, cbs=(late := cbnb.Callback(before_step=lambda self: self.opt.param_groups[-1].update(lr=0.5))))
    late.order = 51
    learn.fit(1)
    assert learn.recorder.lrs == [0.1, 0.5, 0.5] and learn.recorder.history[-1].n_steps == 3


def test_only_whole_epochs_are_counted():
    """Of a run that was cut short it said one epoch too many."""
    learn = line_learner(4, cbs=RaiseIn("after_step", ValueError, when=lambda learn: learn.train_iter == 5))
    with pytest.raises(ValueError):
        learn.fit(6)
    assert repr(learn.recorder.last()) == "Run(0: 1 of 6 epochs and 1 step, 5 steps in all, failed)"
    learn.fit(1)
    assert repr(learn.recorder.last()) == "Run(1: 1 of 1 epoch, 4 steps, done)"


@pytest.mark.parametrize("name", ["LastLog", "Start", "Last", "Row", "History", "Shown"])
def test_attributes_of_the_library_give_no_warning(name, recwarn):
    """A callback called Log, before the learner had a `log` of its own, made the library warn of its own line."""
    learn = line_learner(progress=True, cbs=type(name, (cbnb.Callback,), {}))
    learn.progress.every = 0.0
    learn.fit(2)
    learn.add_cb(cbnb.Recorder(beta=0.5))
    assert [str(w.message) for w in recwarn if "shadowing" in str(w.message)] == []


def test_json_is_strict():
    """NaN is no JSON: browsers and strict parsers refuse it."""
    learn = line_learner(loss_func=lambda p, y: p.sum() * math.nan, metrics=lambda p, y: torch.tensor(math.inf))
    learn.fit(1)

    def refuse(word):
        raise ValueError(word)

    plain = json.loads(learn.recorder.history.to_json(), parse_constant=refuse)["runs"][0]
    assert plain["steps"]["loss"] == [None, None] and plain["epochs"][0]["valid_loss"] is None
    assert all(math.isnan(loss) for loss in learn.recorder.history.to_dict()["runs"][0]["steps"]["loss"])


def test_what_is_written_into_values_stays():
    """It was lost, for the list was computed anew. What was measured is in the history."""
    learn = line_learner()
    learn.fit(1)
    learn.recorder.values[-1][0] = 5.0
    assert learn.recorder.values[-1][0] == 5.0 == learn.final_record[0]
    assert learn.recorder.history[0].epochs[0]["train_loss"] == pytest.approx((13 + 8.32) / 2)


def test_the_colours_can_be_seen_on_white_and_on_black():
    """Figures stand on a white card. A page takes the shade that suits its theme."""

    def light(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), parts))

    def contrast(a, b):
        low, high = sorted([light(a), light(b)])
        return (high + 0.05) / (low + 0.05)

    for name, (for_light, for_dark) in [*PALETTE.items(), *enumerate(RUN_SHADES)]:
        if name != "page":
            assert contrast(for_light, "#ffffff") >= 3 and contrast(for_dark, "#111111") >= 3, name
    assert {*COLORS.values(), *RUN_COLORS, *RULE_COLORS.values()} <= {for_light for for_light, _ in [*PALETTE.values(), *RUN_SHADES]}
    assert len(set(RUN_COLORS)) == 8 and len(set(RULE_COLORS.values())) == 5


def critic_and_generator(valid=True, **kwargs):
    """A function that trains two networks, one of them in every other batch."""
    seed()
    net = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 4)])
    critic, generator = net
    opts = [torch.optim.SGD(part.parameters(), lr=0.01) for part in net]
    seen = []

    def step(x):
        def update(opt, loss):
            loss.backward(), opt.step(), opt.zero_grad()
            return loss

        found = {"critic": update(opts[0], critic(x).mean() - critic(generator(x)).mean())}
        if len(seen) % 2:
            found["generator"] = update(opts[1], -critic(generator(x)).mean())
        seen.append({name: loss.item() for name, loss in found.items()})
        return found | {"loss": sum(found.values()), "images": x}

    step.opts = opts
    dls = cbnb.DataLoaders([(x,) for x in torch.randn(16, 4).split(2)], device="cpu")
    learn = cbnb.Learner(dls, net, train_step=cbnb.UpdateStep(step), **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback), seen


def test_several_losses_of_a_step_have_a_column_each(capsys):
    """Table and chart showed their sum alone."""
    learn, seen = critic_and_generator()
    for n in range(2):
        learn.fit(2)
        assert learn.recorder.metric_names == ["epoch", "train_loss", "critic", "generator", "time"]
        here = seen[16 * n :]
        for epoch, (total, critic, generator) in enumerate(learn.recorder.values):
            part = here[8 * epoch : 8 * (epoch + 1)]
            assert total == pytest.approx(fmean(sum(found.values()) for found in part), abs=1e-6)
            assert critic == pytest.approx(fmean(found["critic"] for found in part), abs=1e-6)
            assert generator == pytest.approx(fmean(f["generator"] for f in part if "generator" in f), abs=1e-6)
    assert len(learn.recorder.log) == 5 and [len(row) for row in learn.recorder.values] == [3, 3]
    steps = list(learn.recorder.history.rows("steps"))
    assert [row["critic"] for row in steps] == pytest.approx([found["critic"] for found in seen])
    assert [math.isnan(row["generator"]) for row in steps] == ["generator" not in found for found in seen]
    assert json.loads(learn.recorder.history.to_json())["runs"][0]["steps"]["generator"][0] is None


def test_several_losses_of_a_step_have_a_curve_each():
    from cbnb.display.progress import losses_chart

    learn, _ = critic_and_generator()
    learn.fit(2)
    fig = learn.recorder.plot_losses(return_fig=True, widget=False)
    labels = [line.get_label() for line in fig.axes[0].lines]
    assert labels[:4] == ["train, each batch", "train, smoothed", "critic", "generator"]
    assert len({line.get_color() for line in fig.axes[0].lines[:4]}) == 4
    page = losses_chart(learn.recorder.last())
    assert "critic" in page and "generator" in page and "nan" not in page


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_losses_by_names_that_are_taken_or_come_late():
    """A heading is never used twice, and a name of the second epoch is recorded without a column."""
    n = [0]

    def step(x, y):
        n[0] += 1
        return {"loss": torch.tensor(7.0), "valid_loss": torch.tensor(1.0), "lr": 2.0, 3: torch.tensor(4.0)} | (
            {"late": torch.tensor(5.0)} if n[0] > 2 else {}
        )

    learn = line_learner(train_step=cbnb.UpdateStep(step))
    learn.fit(2)
    run = learn.recorder.last()
    assert run.metric_names == ["epoch", "train_loss", "valid_loss_2", "lr_2", "3", "valid_loss", "time"]
    assert run.epochs[1]["valid_loss_2"] == 1 and run.epochs[1]["lr_2"] == 2 and run.epochs[1]["3"] == 4
    assert "late" not in run.epochs[1] and list(run.named["late"].series.read()) == [5, 5]


def test_a_log_says_the_headings_that_come_with_the_first_batch(capsys):
    learn, _ = critic_and_generator()
    learn.add_cb(cbnb.ProgressCallback)
    with cbnb.display_as("lines"):
        learn.fit(2)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["epoch", "train_loss", "critic", "generator", "time"]
    assert len(lines) == 3 and [len(line) for line in lines[1:]] == [5, 5]


def test_a_validation_that_fails_inside_a_fit_leaves_no_phase_behind():
    """The fit goes on, and its own validation still uses the learner's metrics, not copies as inside of another run."""
    metric = cbnb.AvgMetric(mae)

    class TryToValidate(cbnb.Callback):
        def after_step(self):
            with pytest.raises(ZeroDivisionError):
                self.learn.validate(cbs=RaiseIn("after_pred", ZeroDivisionError, phase="validate"))

    learn = line_learner(metrics=metric, cbs=TryToValidate)
    learn.fit(1)
    assert learn.recorder.phases == []
    assert learn.recorder.history[0].epochs[0]["mae"] == pytest.approx(float(metric.value))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, cbnb.CancelFitException, None])
def test_no_phase_and_no_running_status_is_left_however_a_fit_ends(error):
    learn = line_learner(metrics=mae, cbs=RaiseIn("after_pred", error, phase="validate") if error else None)
    try:
        learn.fit(1)
    except (KeyboardInterrupt, ZeroDivisionError):
        pass
    assert learn.recorder.phases == [] and learn.recorder.history[0].status != "running"


# Scalars on another device


class Elsewhere(torch.Tensor):
    """On the CPU, but says it is not."""

    device = property(lambda self: torch.device("cuda"))


def elsewhere(*values):
    return [torch.tensor(v).as_subclass(Elsewhere) for v in values]


def test_numbers_follow_the_tensors_of_a_device_without_streams():
    series = ScalarBuffer("d")
    series.chunks.append(torch.tensor([1.0, 2.0]))  # as on a Mac, where chunks stay on the device until they are read
    for _ in range(256):
        series.append(3)
    assert [*series.read()[:3]] == [1, 2, 3]


def test_scalars_of_a_device_are_brought_over_when_they_are_read(waits):
    """A chunk at a time, in their order, also if later ones are on the CPU."""
    series = ScalarBuffer()
    for t in (*elsewhere(*range(300)), *map(torch.tensor, range(300, 600))):
        series.append(t.float())
    assert len(series) == 600 and sum(waits.values()) == 0 and not series.numbers
    assert list(series.read()) == list(range(600)) and len(series) == 600
    n = sum(waits.values())
    assert list(series.read()) == list(range(600)) and sum(waits.values()) == n > 0  # nothing new
    series.append(torch.tensor(600.0))
    del series[2:600]
    assert list(series.read()) == [0, 1, 600] and len(series) == 3


def test_scalars_on_the_cpu_are_numbers_as_soon_as_there_are_256():
    series = ScalarBuffer()
    for i in range(512):
        series.append(torch.tensor(float(i)))
    assert list(series.numbers) == list(range(512)) and not series.chunks and not series.waiting and series.numbers.typecode == "f"
    series.append(torch.tensor(1 / 3, dtype=torch.float64))
    assert series.read()[-1] == 1 / 3 and series.numbers.typecode == "d"


def test_the_losses_of_a_long_validation_do_not_pile_up():
    losses = []
    note = cbnb.Callback(after_loss=lambda self: losses.append(weakref.ref(self.learn.loss)))
    note.run_in = ("validate",)
    learn = line_learner(
        cbs=[note, alive := cbnb.Callback(after_validate=lambda self: found.append(sum(ref() is not None for ref in losses)))]
    )
    alive.run_in, alive.order, found = ("validate",), -99, []
    learn.validate(dl=line_batches(1) * 550)
    assert len(losses) == 550 and found[0] <= 270


# The value of a phase


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_validation_loss_is_a_mean_over_items(reduction):
    """Squares 1 and 9, and four times 4, of a model that says 0; also if the loss has one number for each item."""
    batches = [(torch.ones(2), torch.tensor([1.0, 3.0])), (torch.ones(4), torch.full((4,), 2.0))]
    dls = cbnb.DataLoaders(batches, batches, device="cpu")
    learn = line_learner(dls=dls, loss_func=lambda pred, y: nn.functional.mse_loss(pred, y, reduction=reduction))
    assert learn.validate() == [pytest.approx((1 + 9 + 4 * 4) / 6)]


def test_the_loss_of_ten_thousand_batches_is_as_exact_as_that_of_one():
    """Summed with 32 bits, it would be 0.10000038."""
    learn = line_learner(loss_func=lambda pred, y: pred.sum() * 0 + torch.tensor(0.1))
    assert learn.validate(dl=line_batches(1) * 2_000) == [pytest.approx(0.1, abs=2e-9)]


def test_a_batch_without_items_has_no_loss():
    batches = [(torch.zeros(0), torch.zeros(0)), *line_batches(1)]
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"))
    assert learn.validate() == [13.0]
    assert learn.validate(dl=batches[:1]) == [None]


def test_metrics_of_a_validation_without_a_loss():
    """The step makes predictions alone."""
    learn = line_learner(metrics=bias, eval_step=lambda x, y: (0 * x, y))
    assert learn.validate() == [None, -3.0]


def test_a_validation_batch_without_targets_is_left_out():
    learn = line_learner(metrics=cbnb.ValueMetric(lambda: 7.0, "seven"))
    assert learn.validate(dl=[(x,) for x, _ in line_batches()]) == [None, 7.0]


@pytest.mark.parametrize("which", [0, 1])
def test_a_cancelled_batch_leaves_the_next_one_in(which):
    """Without a loss, a cancelled batch is told from one that needs none."""
    seen = []

    class Seen(cbnb.Metric):
        def reset(self):
            seen.clear()

        def accumulate(self, learn):
            seen.append(learn.iter)

        value = property(lambda self: float(len(seen)))

    skip = RaiseIn("after_pred", cbnb.CancelBatchException, phase="validate", when=lambda learn: learn.iter == which)
    learn = line_learner(3, metrics=Seen(), eval_step=lambda x, y: (0 * x, y), cbs=skip)
    learn.validate(dl=line_batches(3))
    assert seen == [i for i in range(3) if i != which]


class Emptied:
    """Somebody's own metric: a copy would share its list."""

    name = "emptied"

    def __init__(self):
        self.seen = []

    def reset(self):
        self.seen.clear()

    def accumulate(self, learn):
        self.seen.append(len(learn.y))

    @property
    def value(self):
        return sum(self.seen)


@pytest.mark.parametrize("metric, seen", [(Emptied(), 8), (cbnb.AvgMetric(bias, "emptied"), pytest.approx(-1.92))])
def test_a_validation_inside_of_another_has_metrics_of_its_own(metric, seen):
    inside = cbnb.Callback(after_batch=lambda self: None if self.training else found.append(self.learn.validate(dl=line_batches(3))))
    inside.run_in, found = ("fit",), []
    learn = line_learner(metrics=metric, cbs=inside)
    learn.fit(1)
    assert learn.recorder.history[0].epochs[0]["emptied"] == seen == learn.recorder.values[0][2]
    assert found == [[pytest.approx(5.3248), 24 if seen == 8 else seen]] and metric.value == seen


def test_a_copy_of_a_metric_has_seen_nothing():
    emptied, mean = Emptied(), cbnb.AvgMetric(mae)
    emptied.seen.append(3), mean.mean.add(2.0, 1)
    for metric in (emptied, mean):
        assert not recorder.fresh(metric).value and metric.value
        assert recorder.fresh(metric) is not metric


@pytest.mark.parametrize("n, seen", [(1, -3.0), (2, None)])
def test_an_interrupted_epoch_asks_no_other_process(n, seen, monkeypatch):
    """A process that has not stopped would never answer."""
    monkeypatch.setattr(recorder, "n_processes", lambda: n)
    learn = line_learner(
        metrics=bias, cbs=[cbnb.Recorder(train_metrics=True), RaiseIn("before_batch", ValueError, when=lambda learn: learn.iter == 1)]
    )
    with pytest.raises(ValueError):
        learn.fit(1)
    assert learn.recorder.history[0].epochs[0]["train_bias"] == seen and learn.recorder.history[0].epochs[0]["train_loss"] == 13


# A run


def test_the_time_of_an_epoch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(recorder.time, "perf_counter", lambda: now[0])
    learn, logged = line_learner(cbs=cbnb.Callback(after_train=lambda self: now.append(now.pop() + 90 * (self.epoch + 1)))), []
    learn.logger = logged.append
    learn.fit(2)
    assert [row["time"] for row in learn.recorder.history[0].epochs] == [90, 180]
    assert [row[-1] for row in logged[-2:]] == ["01:30", "03:00"] and learn.recorder.log[-1] == "03:00"
    assert [row[:-1] for row in logged[-2:]] == [[epoch, *values] for epoch, values in enumerate(learn.recorder.values)]


@pytest.mark.parametrize(
    "seconds, words",
    [
        (0, "00:00"),
        (59.4, "00:59"),
        (59.6, "01:00"),
        (754, "12:34"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (3725, "1:02:05"),
        (36061, "10:01:01"),
    ],
)
def test_the_words_for_a_time(seconds, words):
    assert text.clock(seconds) == words


def test_the_words_for_a_count():
    assert [text.plural(n, "step") for n in (0, 1, 2, 1000)] == ["0 steps", "1 step", "2 steps", "1,000 steps"]


@pytest.mark.parametrize("name, hint", [("mea", "did you mean 'mae'? (the choices are mae, bias)"), ("xyz", "the choices are mae, bias")])
def test_the_hint_of_a_misspelt_column(name, hint):
    assert arguments.columns_hint(name, ["mae", "bias"]) == hint


def test_ctrl_c_as_a_run_begins_does_not_leave_it_running():
    """It comes when the run is in the history, and what closes it is not yet on the undo stack."""

    class Runs(list):
        def append(self, run):
            super().append(run)
            signal.raise_signal(signal.SIGINT)

    learn = line_learner()
    learn.recorder.history.runs = Runs()
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1)
    assert [run.status for run in learn.recorder.history] == ["interrupted"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_whatever_ends_the_program_interrupts_the_run(error):
    learn = line_learner(cbs=RaiseIn("after_step", error))
    with pytest.raises(error):
        learn.fit(1)
    assert learn.recorder.last().status == "interrupted"


def test_a_callback_moves_the_first_epoch():
    """A callback that goes on from a file knows the epoch only in `before_fit`, after the recorder began."""

    def move(self):
        self.learn.start_epoch = self.learn.epoch = 2

    learn = line_learner(cbs=(cb := cbnb.Callback(before_fit=move)))
    cb.order = 99
    learn.fit(4)
    run = learn.recorder.last()
    assert run.status == "done" and [row["epoch"] for row in run.epochs] == [2, 3]
    assert [row["epoch"] for row in learn.recorder.history.rows("steps")] == [2, 2, 3, 3]


@pytest.mark.parametrize("start, at, status", [(0, 1, "cancelled"), (0, 2, "done"), (1, 1, "cancelled"), (1, 2, "done"), (2, 2, "done")])
def test_a_fit_that_ends_after_a_whole_epoch_is_done_only_if_it_was_the_last(start, at, status):
    stop = RaiseIn("after_epoch", cbnb.CancelFitException, order=99, when=lambda learn: learn.epoch == at)
    learn = line_learner(cbs=stop)
    learn.fit(3, start_epoch=start)
    run = learn.recorder.last()
    assert run.status == status and [row["epoch"] for row in run.epochs] == list(range(start, at + 1))


def test_the_steps_of_an_epoch_that_is_not_over():
    seen = []

    def look(self):
        seen.append([row["epoch"] for row in self.recorder.history.rows("steps") if row["run"] == len(self.recorder.history) - 1])

    learn = line_learner(cbs=(cb := cbnb.Callback(after_train=look)))
    cb.order = 99
    learn.fit(2), learn.fit(4, start_epoch=2)
    assert seen == [[0, 0], [0, 0, 1, 1], [2, 2], [2, 2, 3, 3]]


def test_the_rate_of_a_batch_that_leaves_no_loss_is_forgotten():
    """Its step was cancelled by taking its loss away; the next batches keep their own rates."""
    forget = cbnb.Callback(after_step=lambda self: setattr(self.learn, "loss", None) if self.learn.train_iter == 1 else None)
    learn = line_learner(4, valid=False, cbs=[forget, StepsTorchScheduler("after_batch")])
    learn.fit(1)
    assert learn.recorder.lrs == [0.1, 0.025, 0.0125] and len(learn.recorder.losses) == 3


def test_a_failed_batch_leaves_a_rate_for_each_loss():
    learn = line_learner(
        4, valid=False, cbs=[StepsTorchScheduler("after_batch"), RaiseIn("after_step", ValueError, when=lambda learn: learn.iter == 2)]
    )
    learn.recorder.order = 50
    with pytest.raises(ValueError):
        learn.fit(1)
    run = learn.recorder.last()
    assert list(run.hypers["lr"]) == [0.1, 0.05, 0.025][: run.n_steps] and run.n_steps == len(run.raw_losses)


def test_a_batch_that_is_not_differentiated_has_a_rate_too():
    """Its loss is recorded, and no step comes."""
    skip = cbnb.Callback(after_loss=lambda self: setattr(self.learn, "loss_grad", None) if self.learn.iter == 1 else None)
    late = StepsTorchScheduler("after_batch")
    late.order = 60
    learn = line_learner(4, valid=False, cbs=[skip, cbnb.Callback(after_step=lambda self: None), late])
    learn.fit(1)
    assert learn.recorder.lrs == [0.1, 0.05, 0.025, 0.0125] and len(learn.recorder.losses) == 4


@pytest.mark.parametrize("order, used", [(49, [0.1, 0.05, 0.025]), (50, [0.1, 0.05, 0.025]), (51, [0.1, 0.05, 0.025])])
def test_a_scheduler_before_the_recorder(order, used):
    """Of the same order, whoever was added first is called first."""
    scheduler = StepsTorchScheduler("after_batch")
    scheduler.order = order
    learn = line_learner(3, default_cbs=False, cbs=[scheduler, cbnb.Recorder(), cbnb.TrainEvalCallback()])
    learn.fit(1)
    assert learn.recorder.lrs == used


def test_other_hyper_parameters_can_be_tracked():
    """Each once, and one that the optimizer lacks not at all."""

    class Track(cbnb.Callback):
        order = 51

        def before_fit(self):
            for name in ("wd", "wd", "lr", "eps", "nothing"):
                self.learn.recorder.track(name)

        def after_step(self):
            self.opt.param_groups[-1]["weight_decay"] += 0.5

    learn = line_learner(3, valid=False, lr=0.0, cbs=Track, opt_func=lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.0))
    for _ in range(2):
        learn.fit(1, reset_opt=True)
        hps = learn.recorder.hps
        assert list(hps) == ["lr", "mom", "wd", "eps"] and hps["wd"] == [0.0, 0.5, 1.0]
        assert hps["lr"] == [0.0] * 3 and hps["mom"] == [0.9] * 3 and hps["eps"] == [1e-8] * 3
    assert learn.recorder.moms == [0.9] * 3


def test_a_rate_that_is_a_tensor_is_copied_before_it_changes():
    class Halve(cbnb.Callback):
        def after_batch(self):
            if self.training:
                self.opt.param_groups[-1]["lr"].mul_(0.5)

    learn = line_learner(3, cbs=Halve, opt_func=lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(0.5), foreach=False), lr=0.5)
    learn.fit(1)
    assert learn.recorder.lrs == [0.5, 0.25, 0.125]


def test_a_function_may_be_appended_to_the_metrics_between_fits():
    learn = line_learner(metrics=[mae])
    learn.metrics.append(bias)
    learn.fit(1)
    assert learn.recorder.metric_names[2:-1] == ["valid_loss", "mae", "bias"]


def test_a_loss_that_is_not_finite_is_told_of_once_in_each_fit(capsys):
    def step(pred, y):
        return (pred - y).square().mean() * (math.nan if learn.training and learn.epoch == 1 and learn.iter == 1 else 1.0)

    learn = line_learner(3, loss_func=step)
    with learn.no_logging():
        learn.fit(3)
        said = capsys.readouterr()
        assert (said.out + said.err).count(
            "the loss is nan since step 4 of this fit (epoch 1, training batch 1): try a lower learning rate"
        ) == 1
        learn.model = Line()
        learn.model.a.data.fill_(math.inf)
        learn.fit(1)
    said = capsys.readouterr()
    assert (said.out + said.err).count("since step 0 of this fit (epoch 0, training batch 0): no update came before it") == 1


def test_what_was_recorded_by_the_names_of_fastai():
    learn = line_learner(3, metrics=mae, opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))
    learn.fit(3, valid_every=[0, 2])
    rec = learn.recorder
    rows = rec.history[0].epochs
    assert rec.nb_batches == [3, 3, 3] and rec.iters == [3, 6, 9] and rec.moms == [0.9] * 9
    assert rec.val_losses == [rows[0]["valid_loss"], None, rows[2]["valid_loss"]] and None not in rec.val_losses[::2]
    assert rec.metrics == [[rows[0]["mae"]], [rows[2]["mae"]]] and rec.names == rec.metric_names
    with pytest.raises(ZeroDivisionError):
        learn.fit(2, cbs=RaiseIn("after_step", ZeroDivisionError, when=lambda learn: learn.train_iter == 4))
    assert rec.nb_batches == [3] and len(rec.val_losses) == 1 and rec.iters == [3, 4]
    learn.metrics = []
    learn.fit(1)
    assert rec.metrics == [] and len(rec.val_losses) == 1


def test_the_smoothed_loss_is_known_after_the_first_batch():
    learn = line_learner(cbs=RaiseIn("before_batch", ValueError))
    with pytest.raises(ValueError):
        learn.fit(1)
    with pytest.raises(AttributeError, match="smooth_loss has no value until the recorder has seen the first training batch"):
        learn.smooth_loss
    learn.fit(1)
    assert learn.smooth_loss.item() == pytest.approx(learn.recorder.losses[-1])


def test_a_run_made_by_hand_begins_with_epoch_0():
    run = recorder.Run(3, [], n_epoch=1)
    run.series.append(torch.tensor(2.0))
    history = cbnb.Recorder().history
    history.runs.append(run)
    assert list(history.rows("steps")) == [dict(run=3, epoch=0, step=0, loss=2.0, smooth_loss=2.0)]


def test_points_and_ends_of_a_run():
    """The first step is 0; an epoch that trained nothing ends nowhere."""
    learn = line_learner(3, cbs=RaiseIn("before_epoch", cbnb.CancelEpochException))
    learn.fit(3, valid_every=2)
    run = learn.recorder.last()
    assert [row["step"] for row in run.epochs] == [0, 3, 6]
    assert run.points("valid_loss") == [(2, run.epochs[1]["valid_loss"])] and run.points("nothing") == []
    assert run.points("epoch") == [(0, 0), (2, 1), (5, 2)] and run.ends() == [(2, 1), (5, 2)]


def test_parts_of_the_loss_have_columns_if_a_later_epoch_is_the_first_validated():
    """Twice the error is a part of the loss, so its columns are twice the columns of the loss."""

    def loss(pred, y):
        error = (pred - y).square().mean()
        return dict(loss=error, double=2 * error)

    learn = line_learner(loss_func=loss, valid=False)
    learn.dls = cbnb.DataLoaders(learn.dls.train, {"iid": line_batches(1), "ood": line_batches(2)})
    learn.fit(3, valid_every=2)
    run = learn.recorder.last()
    sets = ["valid_loss", "ood_loss", "valid_double", "ood_double"]
    assert run.metric_names == ["epoch", "train_loss", "double", *sets, "time"]
    assert [run.epochs[0][name] for name in sets] == [None] * 4
    row = run.epochs[1]
    assert row["valid_double"] == pytest.approx(2 * row["valid_loss"]) and row["ood_double"] == pytest.approx(2 * row["ood_loss"])


@pytest.mark.parametrize(
    "n, words",
    [(4, "1 of 2 epochs, 4 steps"), (7, "1 of 2 epochs and 3 steps, 7 steps in all"), (2, "0 of 2 epochs and 2 steps, 2 steps in all")],
)
def test_how_far_a_run_came(n, words):
    stop = RaiseIn("before_batch", cbnb.CancelFitException, when=lambda learn: learn.train_iter == n)
    learn = line_learner(4, valid=False, cbs=stop)
    learn.fit(2)
    assert learn.recorder.last().extent() == words and repr(learn.recorder.history) == f"Run(0: {words}, cancelled)"


def test_smoothing_of_one_of_several_losses():
    """A weight of 0 for the past; carried on over batches that have none, but not back before the first."""
    loss = recorder.NamedLoss(beta=0.0)
    for step, value in ((1, 3.0), (3, torch.tensor(5.0))):
        loss.append(step, value)
    nan = pytest.approx(math.nan, nan_ok=True)
    assert loss.column(5) == [nan, 3, nan, 5, nan] and loss.column(5, smooth=True) == [nan, 3, 3, 5, 5]
    loss.append(4, 7.0)
    assert list(loss.losses) == [3, 5, 7]  # goes on where it was read


def test_the_table_for_pandas(monkeypatch):
    """Rows of the same keys become a `DataFrame`."""
    learn = line_learner()
    learn.fit(2)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert [(row["epoch"], row["step"]) for row in learn.recorder.history.to_df()] == [(0, 2), (1, 4)]
    assert [row["step"] for row in learn.recorder.history.to_df("steps")] == [0, 1, 2, 3]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"a DataFrame needs pandas: pip install .cbnb\[data\]"):
        learn.recorder.history.to_df()


def test_what_completion_offers_of_a_recorder():
    names = dir(cbnb.Recorder())
    assert {"plot_losses", "history", "log", "losses", "lrs", "values"} <= set(names) and names == sorted(names)
    assert not {"before_fit", "order", "run_in", "learn"} & set(names) and not any(name[0] == "_" for name in names)


def test_a_cancelled_step_has_one_rate():
    """Nobody may change the rate before `after_batch`, so that it is read there alone."""
    used = []

    def cancel(self):
        if self.learn.iter == 1:
            raise cbnb.CancelStepException

    learn = line_learner(
        6, valid=False, cbs=cbnb.Callback(before_step=cancel, after_loss=lambda self: used.append(self.opt.param_groups[0]["lr"]))
    )
    learn.fit_one_cycle(1, 0.1)
    assert learn.recorder.lrs == used and len(set(used)) == 6


def test_a_validation_batch_cancelled_before_any_fit():
    learn = line_learner(cbs=RaiseIn("after_loss", cbnb.CancelBatchException, order=99, phase="validate"))
    assert learn.validate() == [13.0] and len(learn.recorder.history) == 0


def test_a_loss_that_only_smoothing_makes_infinite_is_not_told_of(capsys):
    """Smoothed losses have 32 bits."""
    big = torch.tensor(1e300, dtype=torch.float64)
    learn = line_learner(model=Line().double(), loss_func=lambda pred, y: pred.sum() * 0 + big)
    with learn.no_logging():
        learn.fit(1)
    said = capsys.readouterr()
    assert (
        learn.recorder.losses[-1] == math.inf
        and list(learn.recorder.last().raw_losses) == [1e300] * 2
        and "since step" not in said.out + said.err
    )


def test_a_whole_epoch_asks_the_other_processes(monkeypatch):
    monkeypatch.setattr(recorder, "n_processes", lambda: 2)
    learn = line_learner(metrics=bias, cbs=cbnb.Recorder(train_metrics=True))
    learn.fit(1)
    assert learn.recorder.history[0].epochs[0]["train_bias"] == pytest.approx(-2.7)


# The history as data


def same(a, b):
    """As `==`, with nan equal to nan."""
    return repr(a) == repr(b)


def odd_fits():
    """Runs with all that a file can get wrong: infinities, 64 bits, several losses, a rate as a tensor, a start in the middle."""
    learn, _ = critic_and_generator()
    learn.fit(2)
    yield learn
    learn = line_learner(metrics=[mae, bias], opt_func=lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(0.1), foreach=False))
    learn.fit(3, start_epoch=1, valid_every=2)
    learn.add_cb(RaiseIn("after_step", KeyboardInterrupt, when=lambda learn: learn.train_iter == 3))
    with pytest.raises(KeyboardInterrupt):
        learn.fit(2)
    yield learn
    values = iter([1.0, math.inf, -math.inf, math.nan, 1 / 3, 1e300, 2.0, 3.0])
    learn = line_learner(4, valid=False, metrics=lambda p, y: math.inf, model=Line().double())
    learn.recorder.train_metrics = True
    learn.loss_func = lambda pred, y: pred.sum() * 0 + torch.tensor(next(values), dtype=torch.float64)
    learn.fit(2)
    yield learn
    yield line_learner()


@pytest.mark.filterwarnings("ignore:the name .* does not say whether lower values are better")
@pytest.mark.parametrize("which", range(4), ids=["several losses", "partial", "not finite", "empty"])
def test_a_history_is_read_back_exactly(which, tmp_path, capsys):
    history = list(odd_fits())[which].recorder.history
    text = history.to_json(tmp_path / "h.json")
    for source in (text, tmp_path / "h.json", str(tmp_path / "h.json")):
        again = cbnb.History.from_json(source)
        assert same(again, history) and same(again.to_dict(), history.to_dict()) and again.to_json() == text
        assert same(list(again.rows()), list(history.rows())) and same(list(again.rows("steps")), list(history.rows("steps")))
        assert again.to_csv() == history.to_csv() and again._repr_html_() == history._repr_html_()
        for a, b in zip(again, history, strict=True):
            assert same(a.raw_losses, b.raw_losses) and same(a.losses, b.losses) and same(a.values, b.values)
            assert a.extent() == b.extent() and same(a.ends(), b.ends()) and [*a.steps] == [*b.steps]
            assert a.columns == b.columns and all(same(a.hyper(name), b.hyper(name)) for name in b.hypers)
            for name, loss in b.named.items():
                assert same(a.named[name].column(b.n_steps, smooth=True), loss.column(b.n_steps, smooth=True))


def test_a_file_holds_what_is_not_finite_as_null():
    *_, learn, _ = odd_fits()
    plain = json.loads(learn.recorder.history.to_json(), parse_constant=lambda word: pytest.fail(word))
    (run,) = plain["runs"]
    assert run["steps"]["loss"] == [1, None, None, None, 1 / 3, 1e300, 2, 3]
    assert run["epochs"][0][run["metric_names"][2]] is None
    assert [["runs", 0, "steps", "loss", 1], "inf"] in plain["not_finite"] and len(plain["not_finite"]) < 12


def test_a_fit_goes_on_with_a_history_from_a_file():
    learn = line_learner(metrics=mae)
    learn.fit(2)
    other = line_learner(metrics=mae)
    other.recorder.history = cbnb.History.from_json(learn.recorder.history.to_json())
    other.fit(1)
    assert [run.number for run in other.recorder.history] == [0, 1] and other.recorder.history["run"] == [0, 0, 1]
    lines = other.recorder.plot_losses(return_fig=True).axes[0].lines
    assert list(lines[0].get_ydata())[:4] == list(learn.recorder.history[0].raw_losses) and len(lines[2].get_xdata()) == 3


@pytest.mark.parametrize("source", ["{}", '{"epochs": []}'])
def test_a_file_of_something_else_is_no_history(source, tmp_path):
    with pytest.raises(ValueError, match="is not a saved History: pass the path of a file that History.to_json wrote"):
        cbnb.History.from_json(source)
    with pytest.raises(FileNotFoundError):
        cbnb.History.from_json(tmp_path / "none.json")


def test_a_history_is_indexed_by_run_and_by_column():
    learn = line_learner(3, metrics=mae)
    learn.fit(2), learn.fit(1), learn.fit(3, valid_every=[2])
    history = learn.recorder.history
    rows = list(history.rows())
    for name in ("run", "epoch", "step", "train_loss", "valid_loss", "mae", "time", "complete"):
        assert history[name] == [row[name] for row in rows] and history[-1, name] == history[-1][name] == history[name][3:]
        assert history[:2, name] == history[name][:3]
    assert history["valid_loss"][3:5] == [None, None] and history[0] is history.runs[0] and history[1:] == history.runs[1:]
    assert history[1] in history and list(history) == history.runs
    with pytest.raises(IndexError):
        history[3]
    with pytest.raises(IndexError):
        history[3, "mae"]


def test_a_column_that_one_run_lacks_is_none_there():
    learn = line_learner()
    learn.fit(1)
    learn.metrics = [mae]
    learn.fit(1)
    history = learn.recorder.history
    assert history["mae"] == [None, pytest.approx(history[1]["mae"][0])]
    with pytest.raises(KeyError, match="the epochs have no column 'mae': the choices are run, epoch"):
        history[0, "mae"]


@pytest.mark.parametrize(
    "look, words",
    [
        (lambda h: h["valid_los"], "the epochs have no column 'valid_los': did you mean 'valid_loss'? (the choices are run, epoch, "),
        (lambda h: h[-1, "trainloss"], "did you mean 'train_loss'?"),
        (lambda h: h[0]["lr"], "the epochs have no column 'lr': history[0].steps['lr'] has a value for each batch of run 0"),
        (lambda h: h[0].steps["mae"], "the steps have no column 'mae': run['mae'] has a value for each epoch"),
        (lambda h: h[0].steps["smoothloss"], "did you mean 'smooth_loss'? (the choices are loss, smooth_loss, lr, mom)"),
        (lambda h: h[0][0], "the epochs have no column 0: the choices are run, epoch"),
        (lambda h: cbnb.History()["mae"], "the epochs have no column 'mae': nothing was recorded yet"),
    ],
)
def test_a_misspelt_column_is_a_key_error_with_the_nearest_name(look, words):
    learn = line_learner(metrics=mae)
    learn.fit(1)
    with pytest.raises(KeyError) as caught:
        look(learn.recorder.history)
    assert words in caught.value.args[0]


def test_the_steps_of_a_run_are_a_mapping():
    learn, seen = critic_and_generator()
    learn.fit(1)
    run = learn.recorder.last()
    assert list(run.steps) == ["loss", "smooth_loss", "critic", "generator", "lr", "mom"] and len(run.steps) == 6
    assert run.steps["critic"] == pytest.approx([found["critic"] for found in seen]) and "wd" not in run.steps
    assert run.steps["smooth_loss"] == list(run.losses) and run.steps.get("wd", 1) == 1
    assert repr(run.steps) == "8 steps of loss, smooth_loss, critic, generator, lr, mom"
    assert run._ipython_key_completions_() == run.columns == learn.recorder.history._ipython_key_completions_()


@pytest.mark.filterwarnings("ignore:the name .* does not say whether lower values are better")
def test_a_history_in_a_notebook_is_a_table():
    """Escaped, without colours of its own, and with the middle of a long one left out."""

    def evil(pred, y):
        return 0.123456

    evil.__name__ = "<script>&"
    learn = line_learner(metrics=evil)
    learn.fit(15), learn.fit(8)
    with pytest.raises(ZeroDivisionError):
        learn.fit(1, cbs=RaiseIn("before_batch", ZeroDivisionError))
    history = learn.recorder.history
    page = history._repr_html_()
    assert (
        "<script>" not in page
        and "<th>&lt;script&gt;&amp;</th>" in page
        and "background" not in page
        and page.count("color") == page.count("color:inherit")
    )
    assert page.count("<tr>") == 1 + 20 and '<td colspan="7" style="text-align:center">... 5 more</td>' in page
    assert page.count("<td>failed</td>") == 1 and "<td>0.1235</td>" in page and "None" not in page and "<td>00:00</td>" in page
    one = history[0]._repr_html_()
    assert one.endswith("<div>Run(0: 15 of 15 epochs, 30 steps, done)</div>") and one.count("<tr>") == 16 and one.count("done") == 2
    assert line_learner().recorder.history._repr_html_() == "History(no runs yet)"


def test_a_run_without_epochs_is_in_the_table():
    run = recorder.Run(2, ["epoch", "train_loss"], n_epoch=1)
    run.status = "failed"
    assert "<td>2</td><td></td><td></td><td>failed</td>" in run._repr_html_()
    assert run["epoch"] == [] and run.columns == ["run", "epoch", "train_loss"]


# --- losses on their way from a device ---


class Far(torch.Tensor):
    """Stands for a tensor on a GPU."""

    device = property(lambda self: torch.device("cuda"))


class SlowCopy:
    """Stands for a copy from a GPU, which arrives when the test says so."""

    here = 0  # so many have arrived

    def __init__(self, t):
        self.numbers, self.place = t.as_subclass(torch.Tensor), SlowCopy.made
        SlowCopy.made += 1

    def __len__(self):
        return len(self.numbers)

    def is_here(self, wait):
        return wait or self.place < SlowCopy.here


def test_a_display_sees_what_has_arrived_and_waits_for_nothing(monkeypatch):
    monkeypatch.setattr("cbnb.basics.buffers.Copy", SlowCopy)
    monkeypatch.setattr(SlowCopy, "made", 0, raising=False)
    buffer = ScalarBuffer()

    def far(*numbers):
        buffer.chunks.append(torch.tensor(numbers).as_subclass(Far))

    far(1.0, 2.0)
    assert list(buffer.arrived()) == [] and list(buffer.arrived_smoothed()) == [] and len(buffer) == 2
    far(3.0)
    monkeypatch.setattr(SlowCopy, "here", 1)
    assert list(buffer.arrived()) == [1, 2] and len(buffer.arrived_smoothed()) == 2 and len(buffer) == 3
    far(4.0)
    assert list(buffer.read()) == [1, 2, 3, 4] and len(buffer.smoothed()) == 4 == len(buffer)  # this one waits
    assert list(buffer.arrived()) == [1, 2, 3, 4] and buffer.coming == []


def stop_fit(learn, n=3, at=4, raising=KeyboardInterrupt, **settings):
    """A fit that ends early, in its batch number `at`."""
    with contextlib.suppress(KeyboardInterrupt, RuntimeError):
        learn.fit(n, cbs=RaiseIn("after_batch", raising, 100, lambda learn: learn.train_iter == at), **settings)
    return learn.recorder.history[-1]


@pytest.mark.parametrize(
    "raising, kind, words",
    [
        (KeyboardInterrupt, "interrupted", "stopped in epoch 1 at batch 1"),
        (RuntimeError("out of luck\nmore"), "failed", "RuntimeError: out of luck"),
        (cbnb.CancelFitException("enough"), "stopped", "RaiseIn: enough"),
        (cbnb.CancelFitException, "stopped", "RaiseIn: stopped in epoch 1 at batch 1"),
    ],
)
def test_a_run_that_ends_early_notes_the_reason(raising, kind, words):
    run = stop_fit(line_learner(), raising=raising)
    assert run.events == [dict(step=3, kind=kind, text=words)]
    assert run.epochs[-1]["step"] == 4 and not any("event" in name for name in run.columns)


def test_a_run_that_ends_as_planned_has_no_events():
    learn = line_learner()
    learn.fit(2)
    learn.validate()
    assert learn.recorder.history[0].events == []


def test_a_fit_that_is_cancelled_before_it_is_recorded_is_noted_nowhere():
    learn = line_learner()
    cancel = cbnb.Callback(before_fit=lambda cb: stop())
    cancel.order = -9

    def stop():
        raise cbnb.CancelFitException

    learn.fit(1, cbs=cancel)
    assert len(learn.recorder.history) == 0
    learn.fit(1)
    learn.fit(1, cbs=cancel)
    assert len(learn.recorder.history) == 1 and learn.recorder.history[0].events == []


def test_a_cancelled_epoch_is_not_the_end_of_the_run():
    learn = line_learner()
    learn.fit(3, cbs=RaiseIn("before_train", cbnb.CancelEpochException, when=lambda learn: learn.epoch == 1))
    assert learn.recorder.history[0].events == []


def test_a_callback_gives_the_reason_of_its_stop():
    learn = line_learner()
    learn.fit(3, cbs=cbnb.StopAfter(steps=4))
    [event] = learn.recorder.history[0].events
    assert event["kind"] == "stopped" and event["text"].startswith("StopAfter") and "4" in event["text"]


def test_events_are_kept_in_files_and_checkpoints():
    learn = line_learner()
    run = stop_fit(learn)
    run.note("note", "a <b>word</b>", step=2)
    run.note("lr", "lr halved")
    assert [event["step"] for event in run.events] == [3, 2, 3]
    again = cbnb.History.from_json(learn.recorder.history.to_json())
    assert again[0].events == run.events and again[0].events[0] is not run.events[0]
    restored = cbnb.History()
    restored.load_state_dict(learn.recorder.history.state_dict())
    assert restored[0].events == run.events and restored[0].events is not run.events
    restored[0].note("note", "only here")
    assert len(run.events) == 3
    assert "kind" not in learn.recorder.history.to_csv() and "halved" not in learn.recorder.history.to_csv(what="steps")


def test_records_without_events_can_be_read():
    learn = line_learner()
    stop_fit(learn)
    data, state = json.loads(learn.recorder.history.to_json()), learn.recorder.history.state_dict()
    for run in data["runs"] + state["runs"]:
        del run["events"]
    assert cbnb.History.from_json(json.dumps(data))[0].events == []
    restored = cbnb.History()
    restored.load_state_dict(state)
    assert restored[0].events == []


def test_a_resumed_fit_notes_where_it_was_resumed(tmp_path):
    def make():
        return line_learner(path=tmp_path, cbs=cbnb.Checkpoint(every_steps=1))

    run = stop_fit(make(), at=3)
    assert run.events[0]["kind"] == "interrupted"
    learn = make()
    learn.fit(3, resume=True)
    run = learn.recorder.history[-1]
    assert run.events == [dict(step=1, kind="resumed", text="resumed at epoch 0, batch 2")] and run.n_steps == 6


def test_a_validation_loss_that_is_not_finite_is_said_once(capsys):
    """A missing value in the validation set gave rows of nan without a word."""
    bad = [(x.clone(), y) for x, y in line_batches()]
    bad[1][0][3] = float("nan")
    learn = line_learner(dls=cbnb.DataLoaders(line_batches(), bad, device="cpu"))
    learn.fit(2)
    said = capsys.readouterr().out
    assert said.count("the validation loss of epoch 0 is nan, and the training losses of this fit are finite") == 1
    learn = line_learner(lr=1e30)
    learn.fit(2)
    assert "the validation loss" not in capsys.readouterr().out


@pytest.mark.parametrize("ignored", ["one batch", "all"])
def test_a_validation_set_whose_targets_are_all_ignored_is_said_to_be_so(ignored, capsys):
    """It spoke of nan in the inputs. A single batch without targets counts nothing, as in a loop over the whole set."""
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    hidden = torch.full((4,), -100)
    valid = [(x[:4], hidden), (x[4:], hidden if ignored == "all" else y[4:])]
    learn = cbnb.Learner(cbnb.DataLoaders([(x, y)], valid, device="cpu"), model := nn.Linear(3, 2), nn.CrossEntropyLoss(), lr=0.1)
    learn.fit(1)
    said = capsys.readouterr().out
    if ignored == "all":
        assert "no target of the validation set counts in it, because all are ignored (ignore_index)" in said and "nan and inf" not in said
    else:
        assert "the validation loss" not in said
        assert learn.recorder.history["valid_loss"][-1] == pytest.approx(nn.functional.cross_entropy(model(x[4:]), y[4:]).item())


def test_a_long_table_of_a_run_keeps_its_best_epoch():
    run = recorder.Run(0, ["epoch", "valid_loss"], n_epoch=50)
    run.epochs = [{"epoch": i, "valid_loss": abs(i - 20) + 1.0, "step": i, "complete": True} for i in range(50)]
    run.events = [{"kind": "best", "step": 20, "text": "", "row": [20, 20]}]
    page = run._repr_html_()
    assert page.count("<tr>") == 1 + 20 and page.count("<td>best</td>") == 1 and "<td>20</td>" in page


class _Named:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_history_is_read_from_whatever_is_a_path_and_from_a_pipe(tmp_path):
    learn = line_learner()
    learn.fit(1)
    text = learn.recorder.history.to_json()
    (tmp_path / "h.json").write_text(text)
    assert len(cbnb.History.from_json(_Named(tmp_path / "h.json")).runs) == 1
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=[text], daemon=True)
    writer.start()
    assert len(cbnb.History.from_json(pipe).runs) == 1
    with pytest.raises(FileNotFoundError, match="there is no file"):
        cbnb.History.from_json(tmp_path)


def test_the_hint_names_a_run_that_has_the_steps():
    learn = line_learner()
    learn.fit(1)
    learn.fit(1)
    learn.recorder.history[1].steps.run.hypers.pop("mom", None)
    with pytest.raises(KeyError, match=r"history\[0\]\.steps\['mom'\]"):
        learn.recorder.history["mom"]
