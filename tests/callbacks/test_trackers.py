"""Trackers: what they watch, when they act, and what is kept however a fit ends."""

import math
import operator
import os
import signal
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import cbnb
import cbnb.names.fastai as names
from cbnb.basics.text import LOWER, lower_is_better
from cbnb.callbacks.trackers import RateFactor, as_comparison, direction, sets_lr
from cbnb.files.saving import read_note
from helpers import CANCELS, RaiseIn, ab, line_batches, line_learner, same_bits

LOSSES = [5, 4, 3, 3.5, 3.4, 2]
NAN = math.nan


class Forced(cbnb.Callback):
    """Validation losses as told, one for each epoch."""

    def __init__(self, losses):
        self.losses = losses

    def after_loss(self):
        if not self.training:
            self.learn.loss = torch.tensor(float(self.losses[self.epoch]), dtype=torch.float64)


class Weights(cbnb.Callback):
    """The weights at the end of each epoch."""

    def before_fit(self):
        self.seen = []

    def after_epoch(self):
        self.seen.append(ab(self.learn))


def forced_learner(losses=LOSSES, **kwargs):
    learn = line_learner(3, **kwargs)
    return learn.add_cb(Forced(losses))


def fit(learn, n=None, **kwargs):
    with learn.no_logging():
        learn.fit(len(learn.forced.losses) if n is None else n, **kwargs)


@pytest.mark.parametrize("losses, patience, epochs", [(LOSSES, 1, 4), (LOSSES, 2, 5), (LOSSES, 3, 6), ([2] * 9, 3, 4), ([NAN] * 9, 3, 3)])
def test_early_stopping_counts(losses, patience, epochs, capsys):
    learn, stop = forced_learner(losses), cbnb.EarlyStopping(patience=patience)
    fit(learn, cbs=stop)
    run = learn.recorder.history[-1]
    early = epochs < len(losses)
    assert len(run.epochs) == epochs and run.status == ("cancelled" if early else "done")
    assert stop.stopped_epoch == (epochs - 1 if early else None)
    assert ("stopped after" in capsys.readouterr().out) == early
    fit(learn, cbs=stop)  # the count begins anew
    assert len(learn.recorder.history[-1].epochs) == epochs


def test_names_tell_which_way_is_better():
    for name in ("valid_loss", "error_rate", "train_mse", "MeanAbsoluteError", "valid_rmse", "perplexity", "my_loss_2"):
        assert lower_is_better(name), name
    for name in ("accuracy", "f1", "valid_auc", "roc_auc_score", "dice", "r2_score", "ndcg", "MulticlassAccuracy"):
        assert not lower_is_better(name), name


@pytest.mark.parametrize("use", ["EarlyStopping", "SaveModel", "ReduceLROnPlateau", "Checkpoint"])
def test_a_name_that_does_not_say_which_way_is_better_is_noted_once(use, tmp_path):
    """Higher values counted as better, and nothing said so. One function decides it for all of these."""
    name = f"mystery{use.lower()}"
    learn = forced_learner([3, 2], metrics=lambda_named(name), path=tmp_path)
    with pytest.warns(
        UserWarning, match=f"'{name}' does not say .* higher values count as better. If lower is better, call LOWER.add"
    ) as seen:
        for _ in range(2):
            if use == "Checkpoint":
                fit(learn.add_cb(cb := cbnb.Checkpoint(monitor=name)))
                assert cb.best() is not None
            else:
                fit(learn, cbs=getattr(cbnb, use)(monitor=name))
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cbnb.EarlyStopping(f"other{name}", comp="min")
        LOWER.add(name := f"named{name}")
        assert cbnb.Tracker(name).improves(1.0)
    LOWER.discard(name)


@pytest.mark.parametrize(
    "comp, best",
    [
        (None, 2),
        ("min", 2),
        (min, 2),
        (np.less, 2),
        (torch.lt, 2),
        (operator.lt, 2),
        (lambda new, old: new < old, 2),
        ("max", 5),
        (np.greater, 5),
        (torch.gt, 5),
        (operator.ge, 5),
        (lambda new, old: old < new, 5),
    ],
)
def test_any_comparison(comp, best):
    """D28: any function but one was taken for "greater is better"."""
    tracker = cbnb.Tracker(comp=comp)
    fit(forced_learner(), cbs=tracker)
    assert tracker.best == best
    tracker = cbnb.Tracker(comp=comp, min_delta=0.6)
    fit(forced_learner([3, 2.5, 3.5, 2.3]), cbs=tracker)
    assert tracker.best == (2.3 if best == 2 else 3)


def test_comparisons_are_checked():
    assert direction(as_comparison(lambda a, b: False, "x")) == 0
    for comp in ("less", 3):
        with pytest.raises(ValueError, match="'min', 'max', or a function"):
            cbnb.Tracker(comp=comp)
    for wrong in (dict(patience=0), dict(patience=-1), dict(min_delta=-1), dict(comp=lambda a, b: False, min_delta=1)):
        with pytest.raises(ValueError, match="|".join(wrong)):
            cbnb.EarlyStopping(**wrong)
    for wrong in (dict(patience=1.5), dict(patience=True), dict(monitor=None), dict(min_delta="1")):
        with pytest.raises(TypeError):
            cbnb.EarlyStopping(**wrong)


@pytest.mark.parametrize("cls", [cbnb.Tracker, cbnb.EarlyStopping, cbnb.ReduceLROnPlateau, cbnb.SaveModel])
def test_names_are_checked_before_the_first_batch(cls):
    """D28: a wrong name was an IndexError after the first epoch."""

    def mae(pred, y):
        return (pred - y).abs().mean()

    def refused(learn, monitor):
        before = ab(learn)
        with pytest.raises(ValueError, match=f"{cls.__name__} .*{monitor}") as e:
            learn.fit(1, cbs=cls(monitor))
        assert ab(learn) == before and not learn.recorder.history.runs
        return str(e.value)

    assert "the choices are train_loss, valid_loss, mae" in refused(line_learner(metrics=mae), "vaild_loss")
    for monitor in ("time", "epoch"):
        assert "watch train_loss, valid_loss or mae" in refused(line_learner(metrics=mae), monitor)
    assert "no validation data" in refused(line_learner(valid=False), "valid_loss")
    alone = line_learner(cbs=cbnb.Recorder(valid_metrics=False))
    assert "valid_metrics=False" in refused(alone, "valid_loss")
    with pytest.raises(ValueError, match="call learn.add_cb.Recorder"):
        line_learner(default_cbs=False, progress=True).fit(1, cbs=cls())
    both = line_learner(metrics=mae, cbs=cbnb.Recorder(train_metrics=True))
    for monitor in ("train_mae", "valid_mae", "train_loss", "valid_loss"):
        tracker = cbnb.Tracker(monitor)
        both.fit(1, cbs=tracker)
        assert tracker.best == both.recorder.history[-1].epochs[-1][monitor]


def test_a_value_is_found_by_name():
    """D08: after a cancelled phase the columns had moved."""
    tracker, learn = cbnb.Tracker(), line_learner(metrics=lambda_named("mae"))
    learn.fit(3, cbs=[tracker, RaiseIn("before_train", cbnb.CancelTrainException, when=lambda learn: learn.epoch == 1)])
    assert tracker.values == [(row["epoch"], row["valid_loss"]) for row in learn.recorder.history[-1].epochs]


def lambda_named(name):
    def f(pred, y):
        return (pred - y).abs().mean()

    f.__name__ = name
    return f


def test_epochs_without_a_value_do_not_count():
    stop = cbnb.EarlyStopping(patience=2)
    learn = forced_learner([5, 9, 6, 9, 7, 9, 1])
    fit(learn, cbs=stop, valid_every=[0, 2, 4])
    assert stop.values == [(0, 5), (2, 6), (4, 7)] and stop.stopped_epoch == 4
    with pytest.warns(UserWarning, match="gets no valid_loss") as seen:
        fit(learn, 2, cbs=cbnb.EarlyStopping(), valid_every=5)
    assert seen[0].filename == __file__ and len(learn.recorder.history[-1].epochs) == 2


@pytest.mark.parametrize("level, event", [("validate", "before_validate"), ("epoch", "before_epoch"), ("epoch", "before_validate")])
def test_cancelled_phases_do_not_count(level, event):
    """D08, D09: they crashed the trackers, or were taken for no improvement."""
    cancel = RaiseIn(event, CANCELS[level], when=lambda learn: learn.epoch == 1, phase="validate")
    stop = cbnb.EarlyStopping()
    learn = forced_learner([5, 9, 4, 3])
    fit(learn, cbs=[cancel, stop, cbnb.ReduceLROnPlateau()])
    assert cancel.done and stop.values == [(0, 5), (2, 4), (3, 3)] and stop.stopped_epoch is None


def test_an_epoch_without_a_value_has_no_new_best():
    news = []
    tracker = cbnb.Tracker()
    after = cbnb.Callback(after_epoch=lambda self: news.append(tracker.new_best))
    after.order = 70
    fit(forced_learner([3, 2, 1]), cbs=[tracker, after], valid_every=[0, 2])
    assert news == [True, False, True] and tracker.values == [(0, 3), (2, 1)]


def test_ctrl_c_waits_until_the_best_value_and_its_weights_are_both_kept(monkeypatch):
    """It comes when the weights of epoch 1 are about to be copied."""
    copied = []

    def interrupting(state):
        copied.append(state)
        if len(copied) == 2:
            signal.raise_signal(signal.SIGINT)
        return {part: {name: value.clone() for name, value in each.items()} for part, each in state.items()}

    monkeypatch.setattr("cbnb.callbacks.trackers.copy.deepcopy", interrupting)
    learn, stop, weights = forced_learner([3, 2, 9]), cbnb.EarlyStopping(restore=True), Weights()
    weights.order = 50
    with pytest.raises(KeyboardInterrupt):
        fit(learn, cbs=[stop, weights])
    assert (stop.best, stop.best_epoch) == (2, 1) and ab(learn) == weights.seen[1]


def test_start_epoch():
    """D14: the rows of skipped epochs were empty."""
    stop, learn = cbnb.EarlyStopping(), forced_learner()
    fit(learn, start_epoch=3, cbs=stop)
    assert stop.values == [(3, 3.5), (4, 3.4), (5, 2)]


def test_reset_on_fit():
    for reset, best in ((True, 5), (False, 3)):
        tracker = cbnb.Tracker(reset_on_fit=reset)
        fit(forced_learner([4, 3]), cbs=tracker)
        fit(forced_learner([6, 5]), cbs=tracker)
        assert tracker.best == best and tracker.wait == (0 if reset else 2)


def test_other_runs_are_not_tracked(tmp_path):
    """D13: under `validate` they read a wrong column, and the best file was overwritten."""
    learn = forced_learner(path=tmp_path)
    learn.add_cbs([cbnb.EarlyStopping(), cbnb.ReduceLROnPlateau(), cbnb.SaveModel()])
    fit(learn, 4)
    file = tmp_path / "models/model.pth"
    before = [vars(cb) | {} for cb in learn.cbs if isinstance(cb, cbnb.Tracker)], file.stat()
    learn.validate(), learn.get_preds(), learn.lr_find(num_it=10, show_plot=False)
    assert before == ([vars(cb) for cb in learn.cbs if isinstance(cb, cbnb.Tracker)], file.stat())


def names_of(ax) -> list[str]:
    """The names beside the curves, or in a legend of matplotlib's."""
    texts = ax.get_legend().get_texts() if ax.get_legend() else ax.texts
    return [text.get_text() for text in texts if text.get_text() not in "—●"]


def test_plot():
    stop, learn = cbnb.EarlyStopping(patience=2), forced_learner()
    with pytest.raises(ValueError, match="first run a fit"):
        stop.plot()
    fit(learn, cbs=stop)
    (ax,) = stop.plot(return_fig=True).axes
    assert ax.get_xlabel() == "epoch" and ax.get_ylabel() == "valid_loss"
    assert [name.split("  ")[0] for name in names_of(ax)] == ["valid_loss", "best: 3", "stopped"]


# the learning rate

PLATEAU = [3, 2, 2, 2, 2, 2, 1]  # two epochs without improvement in 3, and again in 5


@pytest.mark.parametrize("opt_func", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_reduced_rate(opt_func):
    """D26: it had no effect on torch's optimizers."""
    reduce, learn = cbnb.ReduceLROnPlateau(patience=2, factor=4), forced_learner(PLATEAU, opt_func=opt_func)
    fit(learn, cbs=reduce)
    assert learn.recorder.lrs == pytest.approx([0.1] * 12 + [0.025] * 6 + [0.00625] * 3) and reduce.reductions == [3, 5]
    assert learn.opt.param_groups[0]["lr"] == 0.1 and learn.lr == 0.1
    fit(learn, 2, cbs=reduce)
    assert set(learn.recorder.lrs) == {0.1} and reduce.reductions == []


def test_groups_and_min_lr():
    rates = []
    note = cbnb.Callback(before_epoch=lambda self: rates.append([g["lr"] for g in self.opt.param_groups]))
    learn = forced_learner(PLATEAU, splitter=lambda m: [[m.a], [m.b]], lr=slice(0.01, 0.1))
    fit(learn, cbs=[cbnb.ReduceLROnPlateau(patience=1, min_lr=0.005), note])
    assert rates[:2] == [pytest.approx([0.01, 0.1])] * 2 and rates[3] == pytest.approx([0.005, 0.01])
    assert rates[4:] == [pytest.approx([0.005, 0.005])] * 3
    low = cbnb.ReduceLROnPlateau(min_lr=0.5)  # it is below already: that is no reason to raise it
    fit(learn, cbs=low)
    assert set(learn.recorder.lrs) == {0.1} and low.reductions == []
    once = cbnb.ReduceLROnPlateau(min_lr=0.01)  # 0.1/10 is not quite 0.01
    fit(learn, cbs=once)
    assert once.reductions == [2]


def test_tensor_rates():
    learn = forced_learner(PLATEAU, opt_func=lambda params, lr: torch.optim.Adam(params, lr=torch.tensor(lr)))
    tensor = fit(learn, 1) or learn.opt.param_groups[0]["lr"]
    constant = cbnb.TorchScheduler(lambda opt: torch.optim.lr_scheduler.MultiplicativeLR(opt, lambda i: 1.0))
    for extra in ([], [cbnb.ParamScheduler({"lr": lambda pct: 0.1})], [constant]):
        fit(learn, cbs=[cbnb.ReduceLROnPlateau(patience=2, factor=4), *extra])
        assert learn.recorder.lrs == pytest.approx([0.1] * 12 + [0.025] * 6 + [0.00625] * 3)
        assert learn.opt.param_groups[0]["lr"] is tensor and tensor.item() == pytest.approx(0.1)


class Torch(cbnb.Callback):
    """Steps a scheduler of torch after each epoch, or each batch."""

    def __init__(self, make, every="epoch", order=63):
        self.make, self.every, self.order = make, every, order

    def before_fit(self):
        self.of_torch = self.make(self.opt)

    def after_batch(self):
        if self.training and self.every == "batch":
            self.of_torch.step()

    def after_epoch(self):
        if self.every == "epoch":
            self.of_torch.step()


SCHEDULES = {
    "one cycle": lambda: cbnb.OneCycle(0.1),
    "own": lambda: cbnb.ParamScheduler({"lr": cbnb.SchedLin(0.1, 0.01)}),
    "from the last rate": lambda: Torch(lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)),
    "from the last rate, each batch": lambda: Torch(lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.9), "batch"),
    "from the first rate": lambda: Torch(lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda i: 1 / (i + 1)), "batch"),
    "cosine": lambda: Torch(lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 7), order=0),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_on_top_of_a_schedule(kind):
    """D26: it had no effect, and said nothing."""

    def lrs(*cbs):
        learn = forced_learner(PLATEAU)
        fit(learn, cbs=[SCHEDULES[kind](), *cbs])
        return np.array(learn.recorder.lrs)

    expected = lrs() * np.repeat([1, 1, 1, 1, 0.1, 0.1, 0.01], 3)
    assert lrs(cbnb.ReduceLROnPlateau(patience=2)) == pytest.approx(expected)
    early = cbnb.ReduceLROnPlateau(patience=2)
    learn = forced_learner(PLATEAU)  # whichever was added first
    fit(learn, cbs=[early, SCHEDULES[kind]()])
    assert learn.recorder.lrs == pytest.approx(expected)


class EachBatch(cbnb.Callback):
    """Steps a scheduler of torch, which computes each rate from the last one, in an event of the batch."""

    def __init__(self, event, order):
        self.order = order
        setattr(self, event, self.step_it)

    def before_fit(self):
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.99)

    def step_it(self):
        if self.training:
            self.scheduler.step()


@pytest.mark.parametrize(
    "event, order", [("after_step", 0), ("after_step", 70), ("after_batch", 0), ("after_batch", 70), ("after_backward", 0)]
)
@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
def test_a_scheduler_never_sees_the_factor(event, order, tensor):
    def used(*cbs):
        seen, each = [], EachBatch(event, order)
        note = cbnb.Callback(before_step=lambda self: seen.append(float(self.opt.param_groups[0]["lr"])))
        opt_func = (lambda params, lr: torch.optim.Adam(params, lr=torch.tensor(lr, dtype=torch.float64))) if tensor else torch.optim.SGD
        fit(forced_learner(PLATEAU, opt_func=opt_func), cbs=[each, note, *cbs])
        assert type(each.scheduler) is torch.optim.lr_scheduler.ExponentialLR
        return np.array(seen)

    expected = used() * np.repeat([1, 1, 1, 1, 0.1, 0.1, 0.01], 3)
    assert used(cbnb.ReduceLROnPlateau(patience=2)) == pytest.approx(expected)


def test_the_state_of_a_scheduler_can_be_saved_while_the_rate_is_reduced():
    states = []
    note = cbnb.Callback(after_epoch=lambda self: states.append(self.learn.each_batch.scheduler.state_dict()))
    fit(forced_learner(PLATEAU), cbs=[EachBatch("after_step", 0), note, cbnb.ReduceLROnPlateau()])
    assert states[-1].keys() == states[0].keys() and states[-1]["last_epoch"] == 21


@pytest.mark.parametrize("order", [0, 63])
def test_two_that_reduce_the_rate_of_one_schedule(order):
    def lrs(*cbs):
        learn = forced_learner(PLATEAU)
        fit(learn, cbs=[EachBatch("after_batch", order), *cbs])
        return np.array(learn.recorder.lrs)

    pair = [cbnb.ReduceLROnPlateau(patience=2, factor=2), cbnb.ReduceLROnPlateau(patience=4, factor=4)]
    assert lrs(*pair) == pytest.approx(lrs() * np.repeat([1, 1, 1, 1, 1 / 2, 1 / 2, 1 / 16], 3))
    assert [cb.reductions for cb in pair] == [[3, 5], [5]] and all(cb._rates is None for cb in pair)


@pytest.mark.parametrize("first", [True, False])
def test_together_with_steering(first):
    learn, slow = forced_learner(PLATEAU), cbnb.Callback(before_epoch=lambda self: self.learn.steering.scale_lr(0.5))
    pair = [cbnb.display.steering.Steering(), cbnb.ReduceLROnPlateau(patience=2)]
    fit(learn, cbs=[*(pair if first else pair[::-1]), slow, SCHEDULES["own"]()])
    ours = np.array(learn.recorder.lrs)
    plain = forced_learner(PLATEAU)
    fit(plain, cbs=SCHEDULES["own"]())
    assert ours == pytest.approx(np.array(plain.recorder.lrs) * 0.5 * np.repeat([1, 1, 1, 1, 0.1, 0.1, 0.01], 3))


def test_batches_that_are_cut_short():
    """The factor is not applied twice if a batch ends without its last event."""
    late = cbnb.Callback(before_batch=lambda self: _cancel_train(self))
    late.order = 70
    learn, reduce = forced_learner(PLATEAU), cbnb.ReduceLROnPlateau(patience=2)
    fit(learn, cbs=[SCHEDULES["from the last rate"](), reduce, late])
    kept = list(learn.recorder.lrs)
    assert kept == pytest.approx(np.repeat([0.1 * 0.9**i * s for i, s in enumerate([1, 1, 1, 1, 0.1, 0.1, 0.01])], 2))


def _cancel_train(cb):
    if cb.training and cb.iter == 2:
        raise cbnb.CancelTrainException()


def test_an_overwritten_rate_is_noticed():
    stubborn = cbnb.Callback(before_batch=lambda self: self.opt.param_groups[0].update(lr=0.1))
    with pytest.warns(UserWarning, match="other code has raised it to 0.1"):
        fit(forced_learner(PLATEAU), cbs=[cbnb.ReduceLROnPlateau(), stubborn])
    for wrong in (dict(factor=1), dict(factor=0.1), dict(factor=-2), dict(min_lr=-1), dict(patience=0)):
        with pytest.raises(ValueError, match="|".join(wrong)):
            cbnb.ReduceLROnPlateau(**wrong)


def test_a_rate_that_stays_as_it_was_reduced_is_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reduce = cbnb.ReduceLROnPlateau()
        fit(forced_learner(PLATEAU), cbs=reduce)
    assert reduce.reductions


# the best weights

ENDINGS = {
    "completion": (lambda: [], None),
    "early stop": (lambda: [cbnb.EarlyStopping(patience=1)], None),
    "cancel": (lambda: [RaiseIn("after_step", cbnb.CancelFitException, when=lambda learn: learn.epoch == 4)], None),
    "interrupt": (lambda: [RaiseIn("after_step", KeyboardInterrupt, when=lambda learn: learn.epoch == 4)], cbnb.FitInterrupted),
    "interrupt in validation": (
        lambda: [RaiseIn("after_pred", KeyboardInterrupt, when=lambda learn: learn.epoch == 4, phase="validate")],
        cbnb.FitInterrupted,
    ),
    "exception": (lambda: [RaiseIn("after_step", ValueError, when=lambda learn: learn.epoch == 4)], ValueError),
    "exception late": (lambda: [RaiseIn("after_epoch", ValueError, order=99, when=lambda learn: learn.epoch == 4)], ValueError),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("how", ["SaveModel", "EarlyStopping", "keep_best"])
@pytest.mark.filterwarnings("ignore:the learner already has EarlyStopping")
def test_the_best_is_kept_however_the_run_ends(ending, how, tmp_path):
    make, error = ENDINGS[ending]
    learn, weights = forced_learner([5, 4, 3, 3.5, 3.4, 3.3], path=tmp_path), Weights()
    makes = dict(SaveModel=lambda: cbnb.SaveModel(fname="runs/best"), EarlyStopping=lambda: cbnb.EarlyStopping(patience=9, restore=True))
    [keep] = [makes[how]()] if how in makes else learn.keeping_best(True)
    try:
        fit(learn, cbs=[*make(), weights, keep])
        assert error is None
    except (cbnb.FitInterrupted, ValueError) as e:
        assert isinstance(e, error)
    assert keep.best == 3 and ab(learn) == weights.seen[2] and len(weights.seen) >= 3
    assert learn.recorder.last().best == learn.recorder.last().epochs[2]
    if how == "SaveModel":
        assert keep.last_saved_path == tmp_path / "models/runs/best.pth"  # D42
        other = line_learner(path=tmp_path).load("runs/best")
        assert same_bits(other.model, learn.model)
    fit(learn, 1)  # usable
    assert keep not in learn.cbs


@pytest.mark.parametrize("method", ["fit", "fit_one_cycle", "fit_flat_cos"])
def test_every_way_of_fitting_keeps_the_best(method):
    learn, weights = forced_learner([5, 4, 3, 3.5]), Weights()
    getattr(learn, method)(4, keep_best=True, cbs=weights)
    assert ab(learn) == weights.seen[2] and not [cb for cb in learn.cbs if isinstance(cb, cbnb.Tracker)]
    learn.fit_sgdr(2, 2, keep_best=("valid_loss", "max"), cbs=(weights := Weights()), cycle_mult=1)
    assert ab(learn) == weights.seen[0]


@pytest.mark.filterwarnings("ignore:freezing has no effect")
def test_fine_tuning_keeps_the_best_of_both_phases(capsys):
    learn, first, second = forced_learner([2, 1, 3]), Weights(), Weights()
    learn.fine_tune(2, freeze_epochs=3, keep_best=True, freeze_cbs=first, cbs=second)
    assert ab(learn) == first.seen[1] != second.seen[1]
    assert learn.recorder.history[0].best["valid_loss"] == 1 and learn.recorder.last().best is None  # as good, and not better
    assert "weights are those of epoch 1 of run 0, with valid_loss 1" in capsys.readouterr().out


def test_the_best_of_a_validation_in_the_middle_of_an_epoch():
    learn, kept = line_learner(3, lr=0.3), {}
    learn.fit(
        3,
        valid_every="2 steps",
        keep_best=True,
        cbs=cbnb.Callback(after_validate=lambda cb: kept.update({cb.learn.train_iter: ab(cb.learn)})),
    )
    rows = learn.recorder.last().epochs
    best = min((row for row in rows if row["valid_loss"] is not None), key=lambda row: row["valid_loss"])
    assert learn.recorder.last().best is best and ab(learn) == kept[best["step"]]


def test_a_fit_that_kept_the_best_is_undone_and_done_again():
    learn = forced_learner([5, 3, 4])
    before = ab(learn)
    learn.fit(3, keep_best=True)
    after = ab(learn)
    learn.rewind()
    assert ab(learn) == before
    learn.fit(3, keep_best=True)
    assert ab(learn) == after


def test_the_history_marks_the_best_and_keeps_the_mark_in_a_file():
    learn = forced_learner([5, 3, 4])
    learn.fit(3, keep_best=True)
    run = learn.recorder.last()
    assert run.best == run.epochs[1] == cbnb.History.from_json(learn.recorder.history.to_json())[0].best
    assert [event["kind"] for event in run.events] == ["best"] and "<td>best</td>" in run._repr_html_()
    learn.fit(3)
    assert learn.recorder.last().best is None


def test_a_copy_is_made_only_at_a_new_best(monkeypatch):
    copies, keep = [], cbnb.Tracker.keep
    monkeypatch.setattr(cbnb.Tracker, "keep", lambda self, *args: copies.append(self.learn.epoch) or keep(self, *args))
    learn = forced_learner([5, 6, 3, 4, 2])
    fit(learn, keep_best=True)
    assert copies == [0, 2, 4]
    fit(learn)
    assert copies == [0, 2, 4]


def test_buffers_and_the_optimizer(tmp_path):
    def net():
        return nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))

    batches = [(x[:, None], y[:, None]) for x, y in line_batches(3)]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="cpu"), net(), nn.MSELoss(), torch.optim.Adam, lr=0.1, path=tmp_path)
    learn.add_cb(Forced(LOSSES[:5]))
    fit(learn, cbs=cbnb.SaveModel(with_opt=True))
    assert learn.model[1].num_batches_tracked == 9
    assert learn.opt.state_dict()["state"][0]["step"] == 9 and learn.opt.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("losses", [[NAN, NAN], [math.inf] * 2])
def test_without_improvement_no_older_file_is_loaded(losses, tmp_path, capsys):
    """D15: the file of another fit was loaded, or the end of the fit failed."""
    learn, save, weights = forced_learner([1, 2], path=tmp_path), cbnb.SaveModel(), Weights()
    fit(learn, cbs=save)
    file = (tmp_path / "models/model.pth").read_bytes()
    for cb in (save, cbnb.SaveModel()):
        learn.forced.losses = losses
        with pytest.warns(UserWarning, match="valid_loss has not improved in this fit, so nothing was saved") as seen:
            fit(learn, cbs=[cb, weights])
        assert seen[0].filename == __file__ and ab(learn) == weights.seen[-1]
        assert (tmp_path / "models/model.pth").read_bytes() == file
    (tmp_path / "models/model.pth").unlink()
    with pytest.warns(UserWarning, match="nothing was saved"):
        fit(learn, cbs=save)
    assert not (tmp_path / "models/model.pth").exists() and "weights are those" in capsys.readouterr().out


def test_the_best_over_several_fits(tmp_path, capsys):
    learn, save, weights = forced_learner([3, 4], path=tmp_path), cbnb.SaveModel(reset_on_fit=False), Weights()
    fit(learn, cbs=[save, weights])
    best = weights.seen[0]
    learn.forced.losses = [5, 6]
    fit(learn, cbs=save)
    assert save.best == 3 and ab(learn) == best and "epoch 0, with valid_loss 3" in capsys.readouterr().out


def test_two_with_the_same_name(tmp_path):
    """Each would have loaded what the other has saved."""
    learn, weights = forced_learner([3, 4, 5], path=tmp_path), Weights()
    with pytest.warns(UserWarning, match="changed or removed after") as seen:
        fit(learn, cbs=[cbnb.SaveModel(), cbnb.SaveModel(comp="max"), weights])
    assert len(seen) == 1 and ab(learn) == weights.seen[2]


def test_an_interrupt_while_the_best_is_saved(tmp_path, monkeypatch):
    """The file and what the tracker knows go together."""
    learn, weights, replace = forced_learner([5, 4, 3], path=tmp_path), Weights(), os.replace

    def slow(source, target):
        if learn.epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    save = cbnb.SaveModel()
    with pytest.raises(cbnb.FitInterrupted), warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is missing
        fit(learn, cbs=[weights, save])
    assert save.best_epoch == 1 and ab(learn) == weights.seen[1] == ab(line_learner(path=tmp_path).load("model"))


def test_ctrl_c_between_the_best_value_and_its_file_waits_for_the_file(tmp_path, monkeypatch):
    """The best is that of epoch 1 when the weights are asked for; the file must not be that of epoch 0."""
    learn, weights = forced_learner([5, 4, 3], path=tmp_path), Weights()
    state_dict, pressed = learn.model.state_dict, []

    def slow(*args, **kwargs):
        if learn.running and learn.epoch == 1 and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        return state_dict(*args, **kwargs)

    monkeypatch.setattr(learn.model, "state_dict", slow)
    save = cbnb.SaveModel()
    with pytest.raises(cbnb.FitInterrupted), warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(learn, cbs=[weights, save])
    assert pressed and save.best_epoch == 1
    assert ab(line_learner(path=tmp_path).load("model")) == weights.seen[1]


def test_each_epoch_and_the_end(tmp_path):
    def names(folder):
        return sorted(p.name for p in (tmp_path / "models" / folder).iterdir())

    learn, weights = line_learner(valid=False, path=tmp_path), Weights()  # nothing is tracked, so nothing is needed
    save = cbnb.SaveModel(fname="all/m.pth", every_epoch=True)
    learn.fit(3, cbs=[save, weights])
    assert names("all") == ["m_0.pth", "m_1.pth", "m_2.pth"] and save.last_saved_path == tmp_path / "models/all/m_2.pth"
    assert ab(learn) == weights.seen[2] and ab(line_learner(path=tmp_path).load("all/m_1")) == weights.seen[1]
    learn.fit(5, start_epoch=1, cbs=cbnb.SaveModel(fname="some/m", every_epoch=2))
    assert names("some") == ["m_2.pth", "m_4.pth"]
    for error in (KeyboardInterrupt, ValueError, None):
        end = cbnb.SaveModel(fname="end/m", at_end=True)
        cbs = [RaiseIn("after_step", error, when=lambda learn: learn.epoch == 1)] if error else []
        with pytest.raises((KeyboardInterrupt, ValueError)) if error else warnings.catch_warnings():
            learn.fit(2, cbs=[end, *cbs])
        assert ab(line_learner(path=tmp_path).load("end/m", with_opt=False)) == ab(learn)
    for wrong in (dict(every_epoch=True, at_end=True), dict(every_epoch=2, at_end=True), dict(every_epoch=0), dict(every_epoch=-1)):
        with pytest.raises(ValueError, match="every_epoch"):
            cbnb.SaveModel(**wrong)


def test_rerunning_the_cell():
    learn = forced_learner()
    for _ in range(3):
        learn.add_cb(cbnb.EarlyStopping(patience=2))
        fit(learn)
    assert [type(cb) for cb in learn.cbs].count(cbnb.EarlyStopping) == 1
    assert [len(run.epochs) for run in learn.recorder.history] == [5, 5, 5]


def test_aliases_and_names():
    assert names.EarlyStoppingCallback is cbnb.EarlyStopping and names.SaveModelCallback is cbnb.SaveModel
    assert names.TrackerCallback is cbnb.Tracker
    assert [cls().name for cls in (cbnb.EarlyStopping, cbnb.ReduceLROnPlateau, cbnb.SaveModel)] == [
        "early_stopping",
        "reduce_lr_on_plateau",
        "save_model",
    ]
    assert [cls.order for cls in (cbnb.Tracker, cbnb.SaveModel, cbnb.EarlyStopping)] == [60, 61, 63]


@pytest.mark.parametrize("monitor, eval_step", [("valid_loss", lambda x, y: (x, y)), ("score", None)])
def test_a_validation_without_the_value_is_told_once(monitor, eval_step):
    """Without a loss, or without targets, the default monitor is a column that stays empty."""
    score = lambda_named("score")
    dls = cbnb.DataLoaders(line_batches(), [b[:1] for b in line_batches()] if eval_step is None else line_batches(), device="cpu")
    learn = line_learner(dls=dls, eval_step=eval_step, metrics=score)
    for cls in (cbnb.EarlyStopping, cbnb.ReduceLROnPlateau):
        with pytest.warns(UserWarning, match=f"{cls.__name__} ignores epoch 0, because its validation gave no {monitor}") as seen:
            learn.fit(3, cbs=cls(monitor))
        assert len(seen) == 1 and seen[0].filename == __file__ and len(learn.recorder.history[-1].epochs) == 3


@pytest.mark.parametrize("comp", [operator.lt, np.less, torch.lt])
def test_a_tracker_with_any_comparison_can_be_exported(comp, tmp_path, capsys):
    learn = line_learner(cbs=cbnb.SaveModel(comp=comp), path=tmp_path)
    with learn.no_logging():
        learn.fit(1)
    again = cbnb.load_learner(learn.export(), trust=True).save_model
    assert again.best == learn.save_model.best and again.improves(again.best - 1) and not again.improves(again.best + 1)


def test_the_best_weights_stay_if_they_cannot_be_saved(tmp_path, monkeypatch):
    learn, save, weights, n = forced_learner([3, 2, 1], path=tmp_path), cbnb.Learner.save, Weights(), []

    def full(*args, **kwargs):
        n.append(1)
        if len(n) >= 2:
            raise OSError("the disk is full")
        return save(*args, **kwargs)

    monkeypatch.setattr(cbnb.Learner, "save", full)
    with pytest.warns(UserWarning, match="the weights could not be saved .the disk is full.: the fit continues"):
        fit(learn, cbs=[weights, cbnb.SaveModel()])
    assert len(n) == len(weights.seen) == 3
    learn.load("model", with_opt=False)
    assert ab(learn) == weights.seen[0]


def test_a_fit_that_never_began_leaves_the_file_alone(tmp_path):
    at_end = dict(fname="model", at_end=True)
    learn = forced_learner(path=tmp_path)
    fit(learn, 2, cbs=cbnb.SaveModel(**at_end))
    new = forced_learner(path=tmp_path)
    with pytest.raises(ValueError, match="cannot watch 'typo'"):
        fit(new, 2, cbs=[cbnb.SaveModel(**at_end), cbnb.EarlyStopping("typo")])
    assert ab(new.load("model", with_opt=False)) == ab(learn)


@pytest.mark.parametrize("make", [lambda: cbnb.SaveModel(), lambda: cbnb.SaveModel(at_end=True), lambda: cbnb.EarlyStopping(restore=True)])
def test_one_that_is_removed_in_the_middle_of_a_fit_does_nothing(make, tmp_path):
    cb, weights = make(), Weights()
    remove = cbnb.Callback(before_epoch=lambda self: self.learn.remove_cb(cb) if self.learn.epoch == 1 else None)
    learn = forced_learner([1, 2], path=tmp_path, cbs=cb)
    fit(learn, cbs=[remove, weights])
    assert ab(learn) == weights.seen[1] and cb.learn is None


@pytest.mark.parametrize("cls", [cbnb.Tracker, cbnb.EarlyStopping, cbnb.ReduceLROnPlateau, cbnb.SaveModel])
@pytest.mark.parametrize("monitor", ["train_loss", "valid_loss", "score"])
def test_a_tracker_as_pruners_subclass_it(cls, monitor, tmp_path):
    """They call after_fit of the base class, and look at idx: there was neither."""
    seen = []

    class Prune(cls):
        def after_epoch(self):
            super().after_epoch()
            seen.append((self.recorder.final_record[self.idx], self.recorder.values[-1][self.idx], self.values[-1][1]))

        def after_fit(self):
            super().after_fit()
            seen.append("end")

    learn = forced_learner([3, 2.5], metrics=lambda_named("score"), path=tmp_path)
    fit(learn, cbs=Prune(monitor, lambda new, best: True))
    assert seen.pop() == "end" and len(seen) == 2 and all(a == b == c for a, b, c in seen)


# going on with an earlier fit


def test_going_on_after_a_restart_knows_the_best_so_far(tmp_path, capsys):
    """The best file was overwritten by the first epoch after the restart, whatever its value."""
    weights = Weights()
    fit(forced_learner([3, 2, 4], path=tmp_path), cbs=[cbnb.SaveModel(), weights])
    best, file = weights.seen[1], tmp_path / "models/model.pth"
    content = file.read_bytes()
    learn = forced_learner([9, 9, 9, 2.5, 2.2], path=tmp_path).load("model", with_opt=False)
    save = cbnb.SaveModel()
    capsys.readouterr()
    fit(learn, start_epoch=3, cbs=save)
    out = capsys.readouterr().out
    assert file.read_bytes() == content and ab(learn) == best and (save.best, save.best_epoch) == (2, 1)
    assert f"the best so far is valid_loss 2, of epoch 1, in {file}" in out and "weights are those of epoch 1" in out
    learn.forced.losses = [9, 9, 9, 2.5, 2.2, 1.9]
    fit(learn, start_epoch=5, cbs=[save, weights])  # in the same process, too
    assert (save.best, save.best_epoch) == (1.9, 5) and ab(learn) == weights.seen[-1] == ab(line_learner(path=tmp_path).load("model"))
    learn.forced.losses = [7, 6]
    fit(learn, cbs=save)  # a new fit begins afresh
    assert save.best == 6


@pytest.mark.parametrize("what", ["without a value", "another value", "damaged"])
def test_going_on_with_a_file_of_unknown_value_says_so(what, tmp_path):
    learn, file = forced_learner([5, 4], path=tmp_path), tmp_path / "models/model.pth"
    fit(learn, cbs=cbnb.SaveModel("train_loss"))
    why = f"{file} does not contain its valid_loss"
    if what == "without a value":
        learn.save("model")
    elif what == "damaged":
        file.write_bytes(b"hello")
        why = f"{file} is damaged"
    with pytest.warns(UserWarning, match=f"{why}.*: the first epoch of this fit that has a valid_loss will replace the file") as seen:
        fit(learn, start_epoch=1, cbs=cbnb.SaveModel())
    assert len(seen) == 1 and seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(learn, start_epoch=1, cbs=cbnb.SaveModel(fname="new"))  # nothing there
        fit(learn, cbs=cbnb.SaveModel())  # begins afresh
        fit(learn, start_epoch=1, cbs=[cbnb.SaveModel(fname="model", every_epoch=True), cbnb.SaveModel(fname="end", at_end=True)])


def test_a_file_with_its_value_is_an_ordinary_file(tmp_path):
    learn = forced_learner([5, 4], path=tmp_path)
    for with_opt in (False, True):
        fit(learn, cbs=cbnb.SaveModel(with_opt=with_opt))
        state = torch.load(tmp_path / "models/model.pth")
        assert set(state) == ({"model", "opt"} if with_opt else {"a", "b"})
        line_learner().model.load_state_dict(state["model"] if with_opt else state)
        assert read_note(tmp_path / "models/model.pth") == dict(monitor="valid_loss", best=4, epoch=1, step=6)
    learn.save("plain")
    assert read_note(tmp_path / "models/plain.pth") is None


def test_going_on_after_load_says_what_is_not_in_the_file(tmp_path, capsys):
    """The numbers differ from those of a fit without a break, and nothing said so."""
    learn = forced_learner([5, 4], path=tmp_path)
    fit(learn)
    file = learn.save("r")
    said = f"continuing at epoch 1 with {file}: random state and data order are not in the file"

    def lines():
        return capsys.readouterr().out.count(said)

    learn.load("r")
    fit(learn, start_epoch=1)
    assert lines() == 1
    fit(learn, start_epoch=1)  # not loaded since
    learn.load("r")
    fit(learn)  # begins afresh
    fit(learn, start_epoch=1, cbs=cbnb.SaveModel())
    fit(learn, start_epoch=1)  # what a fit loads at its end is its own
    assert lines() == 0


# --- what is compared, kept and said ---


@pytest.mark.parametrize(
    "comp, way",
    [
        (operator.lt, -1),
        (operator.gt, 1),
        (operator.le, -1),
        (operator.ge, 1),
        (lambda new, best: abs(new) < abs(best), 0),
        (lambda new, best: abs(new) > abs(best), 0),
        (lambda new, best: abs(new - 1) < abs(best - 1), 0),
        (lambda new, best: True, 0),
        (lambda new, best: False, 0),
    ],
)
def test_which_way_a_comparison_goes(comp, way):
    assert direction(comp) == way


def test_what_a_comparison_returns_becomes_true_or_false():
    """Of NumPy and torch, too; torch's own take no numbers."""
    for comp in (np.less, torch.lt, lambda new, best: [1] * (new < best)):
        better = as_comparison(comp, "x")
        assert better(1.0, 2.0) is True and better(2.0, 1.0) is False
    near = 1 + 2.0**-40
    assert as_comparison(torch.lt, "x")(1.0, near)  # in double precision


@pytest.mark.parametrize(
    "losses, min_delta, best", [([5, 4, 3.5], 0.5, 4), ([5, 4.5], 0.5, 5), ([5, 4.25], 0.5, 4.25), ([NAN, 2, -math.inf], 0.0, 2)]
)
def test_a_new_best_is_better_by_more_than_min_delta(losses, min_delta, best):
    tracker = cbnb.Tracker(min_delta=min_delta)
    fit(forced_learner(losses), cbs=tracker)
    assert tracker.best == best


def test_a_fit_begins_without_news_waiting_or_values():
    seen, tracker = [], cbnb.Tracker(reset_on_fit=False)
    assert (tracker.new_best, tracker.wait, tracker.values, tracker.best, tracker.best_epoch, tracker.idx) == (
        False,
        0,
        [],
        None,
        None,
        None,
    )
    before = cbnb.Callback(before_epoch=lambda self: seen.append((tracker.new_best, tracker.wait, list(tracker.values))))
    learn = forced_learner([2, 1])
    for losses in ([2, 1], [3, 4], [5, 0]):
        learn.forced.losses = losses
        fit(learn, cbs=[tracker, before])
    assert seen[::2] == [(False, 0, [])] * 3
    assert seen[1::2] == [(True, 0, [(0, 2)]), (False, 1, [(0, 3)]), (False, 1, [(0, 5)])]


def test_a_value_that_never_comes_is_told_in_each_fit():
    learn = line_learner(dls=cbnb.DataLoaders(line_batches(), line_batches(), device="cpu"), eval_step=lambda x, y: (x, y))
    tracker = cbnb.Tracker()
    for _ in range(2):
        with pytest.warns(UserWarning, match="Tracker ignores epoch 0, because its validation gave no valid_loss") as seen:
            learn.fit(2, cbs=tracker)
        assert len(seen) == 1


@pytest.mark.parametrize("cbs, valid_every", [([RaiseIn("before_train", CANCELS["epoch"], order=70)], 1), ([], [1])])
def test_an_epoch_that_should_have_no_value_is_no_reason_to_warn(cbs, valid_every):
    tracker = cbnb.Tracker()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(forced_learner([5, 5]), cbs=[tracker, *cbs], valid_every=valid_every)
    assert tracker.values[-1] == (1, 5)


@pytest.mark.parametrize("start_epoch, n_epoch, warns", [(0, 3, False), (2, 3, False), (3, 4, True), (0, 2, True)])
def test_a_fit_in_which_no_epoch_is_validated_is_told_before(start_epoch, n_epoch, warns):
    """Only epoch 2 is."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit(forced_learner([5] * 4), n_epoch, start_epoch=start_epoch, valid_every=[2], cbs=cbnb.Tracker())
        fit(forced_learner([5] * 4), n_epoch, start_epoch=start_epoch, valid_every=[2], cbs=cbnb.Tracker("train_loss"))
    assert [str(w.message) for w in seen] == [
        "Tracker gets no valid_loss, because valid_every=[2] validates no epoch of this fit: pass another value, such as valid_every=1",
        f"valid_every=[2] validates no epoch of this fit of {n_epoch} epochs: pass another value, such as valid_every=1, "
        "or valid_every=[] if you do not want to validate",
    ] * warns


@pytest.mark.parametrize(
    "losses, words",
    [
        ([5, 4, 4.5], "stopped after epoch 2: valid_loss was best in epoch 1, with 4"),
        ([NAN] * 2, "stopped after epoch 0: valid_loss was never a finite number"),
    ],
)
def test_an_early_stop_says_when_the_best_was(losses, words, capsys):
    learn = forced_learner([*losses, 1])
    fit(learn, cbs=cbnb.EarlyStopping())
    assert words in capsys.readouterr().out.splitlines()
    (event,) = learn.recorder.last().events
    assert event["kind"] == "stopped" and event["text"] == f"EarlyStopping: {words.partition(': ')[2]}"


def test_stopped_and_restored_in_one_fit_is_forgotten_in_the_next():
    stop, seen = cbnb.EarlyStopping(restore=True), []
    learn = forced_learner([2, 3, 4])
    fit(learn, cbs=stop)
    assert stop.stopped_epoch == 1 and stop._weights is None  # a copy of the weights is large
    learn.forced.losses = [NAN, 1]
    weights = Weights()
    with pytest.warns(UserWarning, match="valid_loss has not improved in this fit: the weights stay as they are at its end") as warned:
        fit(learn, 1, cbs=[stop, weights, cbnb.Callback(before_epoch=lambda self: seen.append(stop.stopped_epoch))])
    assert seen == [None] and ab(learn) == weights.seen[0] and warned[0].filename == __file__
    plain = cbnb.EarlyStopping()
    fit(learn, 2, cbs=[plain, weights])
    assert ab(learn) == weights.seen[-1]


def test_a_plot_without_a_stop_or_a_best_value_of_this_fit():
    from cbnb.display.figures import figure

    learn, tracker = forced_learner([3, 2]), cbnb.Tracker(reset_on_fit=False)
    fit(learn, cbs=tracker)
    (ax,) = tracker.plot(return_fig=True).axes
    assert [name.split("  ")[0] for name in names_of(ax)] == ["valid_loss", "best: 2"]
    lines = [list(zip(*(line.get_xdata(), line.get_ydata()))) for line in ax.lines]
    assert lines == [[(0, 3), (1, 2)], [(1, 2)]] and all(tick == round(tick) for tick in ax.get_xticks())
    learn.forced.losses = [4, 5]
    fit(learn, cbs=tracker)
    with figure() as (fig, [own]):
        assert tracker.plot(ax=own) is own and len(own.lines) == 1 and list(own.lines[0].get_ydata()) == [4, 5]
    stop = cbnb.EarlyStopping()
    fit(learn, cbs=stop)
    (ax,) = stop.plot(return_fig=True).axes
    assert list(ax.lines[2].get_xdata()) == [1, 1] and ax.lines[2].get_label() == "stopped"


# --- the factor of the rate ---


def group_rates(opt):
    return [g["lr"] for g in opt.param_groups]


def two_rates(*lrs):
    return torch.optim.SGD([dict(params=[torch.zeros(1)], lr=lr) for lr in lrs], lr=1.0)


@pytest.mark.parametrize(
    "lr, by, min_lr, lowered",
    [(0.5, 0.5, 0.0, 0.25), (0.5, 0.5, 0.4, 0.4), (0.5, 0.5, 0.75, 0.5), (2, 0.5, 0.0, 1.0), (np.float64(2), 0.25, 1.0, 1.0)],
)
def test_a_rate_is_lowered_down_to_min_lr_and_never_raised(lr, by, min_lr, lowered):
    factor = RateFactor(two_rates(1.0), min_lr)
    assert factor.lowered(lr, by) == lowered and type(factor.lowered(lr, by)) is float
    assert factor.lowered(torch.tensor(float(lr)), by).item() == pytest.approx(lowered)


def test_the_factor_is_applied_once_and_taken_back_once():
    tensor = torch.tensor(2.0)
    opt = two_rates(1.0, tensor)
    factor = RateFactor(opt, 0.0)
    factor.by = 0.5
    factor.on()
    factor.on()
    assert group_rates(opt) == [0.5, 1.0] and opt.param_groups[1]["lr"] is tensor
    factor.by = 0.25
    factor.on()
    assert group_rates(opt) == [0.25, 0.5]
    tensor.fill_(8.0)  # by somebody else
    factor.off()
    assert group_rates(opt) == [1.0, 8.0] and opt.param_groups[1]["lr"] is tensor and factor.planned is None


def test_a_callback_with_a_scheduler_sees_the_planned_rates_and_the_factor_stays_off_if_it_was():
    opt = two_rates(1.0)
    factor, decay = RateFactor(opt, 0.0), cbnb.Callback(after_step=lambda self: self.scheduler.step())
    decay.scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    factor.by = 0.25
    step = factor.wrap(decay, decay.after_step, "after_step", True)
    opt.step()
    step()
    assert group_rates(opt) == [0.5]
    factor.on()
    step()
    assert group_rates(opt) == [0.0625]
    decay.scheduler = None
    with pytest.raises(AttributeError):
        step()
    assert group_rates(opt) == [0.0625]
    other = cbnb.Callback(after_step=print)
    assert factor.wrap(other, other.after_step, "after_step", True) == other.after_step


def test_who_sets_the_rate():
    def holds(**what):
        cb = cbnb.Callback()
        vars(cb).update(what)
        return sets_lr(cb)

    torch_one = torch.optim.lr_scheduler.StepLR(two_rates(1.0), 1)
    assert holds(mine=torch_one) and holds(mine=[3, torch_one]) and holds(mine=(torch_one,)) and holds(scheduler=3)
    assert not holds(mine=3) and not holds(mine=[3]) and not holds(scheduler=None)
    assert sets_lr(cbnb.ParamScheduler({"lr": len})) and not sets_lr(cbnb.ParamScheduler({"mom": len}))


@pytest.mark.parametrize("scheduled, said", [(False, ["0.05", "0.025"]), (True, ["its schedule times 0.5", "its schedule times 0.25"])])
def test_each_reduction_is_said(scheduled, said, capsys):
    cbs = [cbnb.ParamScheduler({"lr": lambda pct: 0.1})] * scheduled
    fit(forced_learner([2, 3, 3, 1]), cbs=[cbnb.ReduceLROnPlateau(factor=2), *cbs])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("after epoch")]
    assert lines == [f"after epoch {i}: no better valid_loss, learning rate now {now}" for i, now in zip((1, 2), said)]


def test_the_highest_min_lr_of_two_holds_for_one_schedule():
    """A hundredth of 0.1 is below 0.02, which one of the two asks for."""
    for pair in ([0.02, 0.0], [0.0, 0.02]):
        learn = forced_learner([2, 3, 3])
        fit(
            learn,
            cbs=[
                cbnb.ParamScheduler({"lr": lambda pct: 0.1}),
                *(cbnb.ReduceLROnPlateau(min_lr=low, comp=comp) for low, comp in zip(pair, ("min", None))),
            ],
        )
        assert learn.recorder.lrs == pytest.approx([0.1] * 6 + [0.02] * 3)


def test_an_epoch_without_a_value_reduces_nothing():
    reduce = cbnb.ReduceLROnPlateau(patience=1)
    fit(forced_learner([2, 3, 3, 3, 1]), cbs=reduce, valid_every=[0, 1, 4])
    assert reduce.reductions == [1] and reduce.wait == 0


def test_an_optimizer_without_a_rate_is_refused():
    class NoRate(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, dict(speed=lr))

        def step(self, closure=None):
            pass

    with pytest.raises(ValueError, match="NoRate has no hyper-parameter 'lr'"):
        line_learner(opt_func=NoRate).fit(1, cbs=cbnb.ReduceLROnPlateau())


def test_a_rate_that_something_else_lowers_further_is_no_reason_to_warn():
    lower = cbnb.Callback(before_epoch=lambda self: self.opt.param_groups[0].update(lr=self.opt.param_groups[0]["lr"] / 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(forced_learner([2, 3, 3, 3]), cbs=[cbnb.ReduceLROnPlateau(), lower])


@pytest.mark.parametrize("make", [lambda: cbnb.EarlyStopping(restore=True), cbnb.SaveModel])
def test_a_fit_that_never_began_says_nothing_about_its_best(make, tmp_path):
    learn = forced_learner(path=tmp_path, cbs=make())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="did you mean 'valid_loss'"):
            fit(learn, cbs=cbnb.Tracker("valid_los"))


def test_a_checkpoint_does_not_say_who_asked_for_a_tracker():
    learn, states = line_learner(), []
    learn.fit(
        1,
        keep_best=True,
        cbs=cbnb.Callback(after_epoch=lambda cb: states.extend(c.state_dict() for c in cb.learn.cbs if type(c) is cbnb.Tracker)),
    )
    assert states and all("asked_by" not in state for state in states)
