"""Control callbacks among each other and with the rest: whatever happens in a fit, and whoever else is there."""

import math
import pickle
import warnings
from datetime import datetime, time
from functools import partial, wraps

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

import cbnb
from cbnb.callbacks.stopping import all_finite, explain_nan, first_bad_layer, next_time
from helpers import CANCELS, Line, RaiseIn, ab, line_batches, line_learner, noting, same_bits, seed

ALL = {
    "clip": lambda: cbnb.GradientClip(),
    "accumulate": lambda: cbnb.GradientAccumulation(32),
    "freeze": lambda: cbnb.BnFreeze(),
    "nan": lambda: cbnb.TerminateOnNaN(check_grads=True),
    "stop": lambda: cbnb.StopAfter(steps=6),
    "short": lambda: cbnb.ShortEpoch(0.5),
    "skip": lambda: cbnb.callbacks.stopping.SkipToEpoch(1),
    "collect": lambda: cbnb.callbacks.predictions.CollectData(),
    "schedule": lambda: cbnb.TorchScheduler(partial(torch_schedulers.StepLR, step_size=2)),
}


def batches_of(*sizes):
    x = torch.tensor([-1.0, 1.0]).repeat(sum(sizes) // 2)
    return list(zip(x.split(sizes), (2 * x + 3).split(sizes)))


def learner(sizes=(16,) * 4, cbs=(), valid=False, **kwargs):
    batches = batches_of(*sizes)
    dls = cbnb.DataLoaders(batches, *([batches[:2]] if valid else []), device="cpu")
    return line_learner(dls=dls, cbs=list(cbs), **kwargs)


def way(n):
    """Where the line is after so many steps at a rate of 0.1."""
    return pytest.approx((2 * (1 - 0.8**n), 3 * (1 - 0.8**n)), abs=1e-6)


def no_grads(learn):
    return all(p.grad is None for p in learn.model.parameters())


# clipping


def test_clip_numbers_and_tensors_of_all_groups():
    """The optimizer's parameters count, in all its groups, and only those."""
    learn = learner([16], cbs=[cbnb.GradientClip()], splitter=lambda m: [[m.a], [m.b]])
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.05547, 0.083205), abs=1e-6)
    one = learner([16], cbs=[cbnb.GradientClip()], splitter=lambda m: [[m.a]])
    one.fit(1)
    assert ab(one) == (pytest.approx(0.1), 0.0)  # of b nobody asks


def test_clip_norm_is_what_torch_says():
    seed()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(8, 3), 100 * torch.randn(8, 1)
    for kind, norm_type in [("global", 2.0), ("global", math.inf), ("tensor", 1.0), ("value", 2.0)]:
        seen = []
        after = cbnb.Callback(before_step=lambda self: seen.extend(p.grad.clone() for p in net.parameters()))
        after.order = 12
        dls = cbnb.DataLoaders([(x, y)], device="cpu")
        learn = line_learner(dls=dls, model=net, cbs=[cbnb.GradientClip(0.5, norm_type, kind), after], lr=0.0)
        learn.fit(1)
        if kind == "value":
            assert max(g.abs().max() for g in seen) == 0.5 and learn.gradient_clip.norm is None
        elif kind == "tensor":
            assert all(torch.linalg.vector_norm(g, 1) < 0.5001 for g in seen) and len(learn.gradient_clip.norm) == 4
        else:
            assert torch.cat([g.flatten() for g in seen]).norm(norm_type) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("kind, norm_type", [("global", 2.0), ("tensor", 2.0), ("tensor", 1.0), ("global", math.inf)])
def test_the_norm_of_each_update_is_recorded(kind, norm_type):
    by_hand = []

    class ByHand(cbnb.Callback):
        order = 10

        def before_step(self):
            grads = torch.cat([p.grad.flatten() for p in self.model.parameters()])
            by_hand.append(torch.linalg.vector_norm(grads, norm_type).item())

    cbs = [ByHand(), cbnb.GradientClip(0.5, norm_type, kind, log=True)]
    learn = learner(cbs=cbs, valid=True)
    learn.fit(2)
    assert learn.recorder.last().steps["grad_norm"] == pytest.approx(by_hand, rel=1e-5) and len(by_hand) == 8
    learn.lr_find(show_plot=False)
    without = learner(cbs=[cbnb.GradientClip(0.5, norm_type, kind)], valid=True)
    without.fit(2)
    assert ab(without) == ab(learn) and "grad_norm" not in without.recorder.last().steps


# accumulation


@pytest.mark.parametrize(
    "n_acc, sizes, steps", [(32, [16] * 4, 2), (64, [16] * 4, 1), (48, [16] * 4, 2), (32, [20] * 4, 2), (32, [20, 20, 20, 4], 2)]
)
def test_accumulation_loses_nothing_and_leaks_nothing(n_acc, sizes, steps):
    """D29: overshoot was not normalised, and what was left over leaked into the next fit."""
    learn = learner(sizes, cbs=[cbnb.GradientAccumulation(n_acc)])
    for fits in (1, 2, 3):
        learn.fit(1)
        assert ab(learn) == way(fits * steps) and no_grads(learn)
    learn = learner(sizes, cbs=[cbnb.GradientAccumulation(n_acc)], valid=True)
    learn.fit(3)  # V02: validation was counted, too
    assert ab(learn) == way(3 * steps)
    assert learn.recorder.history[0].n_steps == 3 * len(sizes) and learn.recorder.history[0].raw_losses[0] == 13.0


def test_equal_batches_give_exactly_what_the_large_batch_gives():
    large, small = learner([64] * 3), learner([16] * 12, cbs=[cbnb.GradientAccumulation(64)])
    for learn in (large, small):
        learn.opt_func = partial(torch.optim.Adam, betas=(0.9, 0.99))
        learn.fit(2)
    assert same_bits(large.model, small.model)


@pytest.mark.parametrize("length", [None, 3, 5])
@pytest.mark.filterwarnings("ignore:the training loader has a length")
def test_accumulation_without_a_length_or_with_a_wrong_one(length):
    batches = batches_of(*[16] * 4)
    steps = []
    learn = line_learner(dls=cbnb.DataLoaders(cbnb.Batches(lambda: iter(batches), length), device="cpu"))
    count = cbnb.Callback(after_step=lambda self: steps.append(self.learn.iter))
    with learn.no_logging():
        learn.fit(2, cbs=[cbnb.GradientAccumulation(48), count])
    assert len(steps) == 4 and ab(learn) == way(4) and no_grads(learn)


def test_a_phase_cut_short_steps_what_it_has():
    learn = learner(cbs=[cbnb.GradientAccumulation(64), cbnb.StopAfter(steps=3)])
    learn.fit(2)
    assert ab(learn) == way(1) and no_grads(learn)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, cbnb.CancelFitException, cbnb.CancelEpochException])
@pytest.mark.parametrize("event", "before_batch after_pred after_loss before_backward after_backward before_step after_batch".split())
@pytest.mark.parametrize("order", [0, 20])
def test_nothing_is_left_however_a_fit_ends(error, event, order):
    """At the third of four batches, with the gradients of two in the sum."""
    if event == "before_step" and order == 20:
        pytest.skip("nobody after the accumulation hears of a step that does not take place")
    learn = learner(cbs=[cbnb.GradientAccumulation(64), cbnb.GradientClip(1e6), cbnb.TerminateOnNaN()])
    try:
        learn.fit(1, cbs=RaiseIn(event, error, order, when=lambda learn: learn.iter == 2))
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert ab(learn) == (0, 0) and no_grads(learn)
    learn.fit(1)
    assert ab(learn) == way(1)


def test_a_cancelled_epoch_is_not_carried_into_the_next():
    learn = learner(cbs=[cbnb.GradientAccumulation(64), RaiseIn("after_batch", CANCELS["epoch"], when=lambda learn: learn.iter == 2)])
    learn.fit(2)
    assert ab(learn) == way(1)


@pytest.mark.parametrize("level, steps", [("step", 1), ("backward", 1), ("batch", 1)])
def test_others_cancel_parts_of_a_batch(level, steps):
    """One of four batches is left out; the update uses the mean of those that are in the sum."""
    learn = learner(cbs=[cbnb.GradientAccumulation(64), RaiseIn(f"before_{level}", CANCELS[level], when=lambda learn: learn.iter == 1)])
    learn.fit(1)
    assert ab(learn) == way(steps) and no_grads(learn)


def test_every_backward_cancelled_means_there_is_no_sum():
    """Who makes the gradients alone gets the steps, as without accumulation."""

    class Own(cbnb.Callback):
        def before_backward(self):
            self.learn.loss_grad.backward()
            raise cbnb.CancelBackwardException

    learn = learner([16] * 2, cbs=[cbnb.GradientAccumulation(64), Own])
    learn.fit(1)
    assert ab(learn) == way(2)


@pytest.mark.parametrize("with_length", [True, False])
def test_lr_find_counts_updates(with_length):
    updates, batches = [], batches_of(*[16] * 5)
    dls = cbnb.DataLoaders(batches if with_length else cbnb.Batches(lambda: iter(batches)), device="cpu")
    learn = line_learner(dls=dls, cbs=[cbnb.GradientAccumulation(32), cbnb.GradientClip()])
    note = cbnb.Callback(after_step=lambda self: updates.append(self.learn.opt.param_groups[0]["lr"]))
    learn.add_cb(note)
    found = learn.lr_find(num_it=20, end_lr=0.01, stop_div=False)
    assert found.lrs == updates and len(updates) == 20 and ab(learn) == (0, 0) and no_grads(learn)
    learn.remove_cb(note).fit(1)
    assert no_grads(learn) and ab(learn) != (0, 0)


def test_clipping_sees_the_whole_gradient():
    norms = []
    clip = cbnb.GradientClip(1.0)
    learn = learner(cbs=[cbnb.GradientAccumulation(64), clip, cbnb.Callback(after_step=lambda self: norms.append(clip.norm.item()))])
    learn.fit(1)
    assert norms == [pytest.approx(52**0.5)] and ab(learn) == pytest.approx((0.05547, 0.083205), abs=1e-6)


def test_two_groups_frozen_and_ragged():
    cbs = [cbnb.GradientAccumulation(30), cbnb.GradientClip(1e3)]
    learn = learner([20, 10, 2], cbs=cbs, splitter=lambda m: [[m.a], [m.b]], lr=[0.0, 0.1])
    learn.model.a.requires_grad_(False)
    learn.fit(1)
    assert ab(learn) == (0, pytest.approx(3 * (1 - 0.8**2)))


# nan


def net(*middle):
    seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), *middle, nn.Linear(8, 1))


def data(n=6, bad=None, target=False):
    g = torch.Generator().manual_seed(2)
    x, y = torch.rand(n * 8, 4, generator=g), torch.rand(n * 8, 1, generator=g)
    if bad is not None:
        (y if target else x)[8 * bad + 3] = math.nan
    return list(zip(x.split(8), y.split(8)))


def net_learner(batches, cbs=(), valid=None, **kwargs):
    dls = cbnb.DataLoaders(batches, *([valid] if valid else []), device="cpu")
    return line_learner(dls=dls, model=net(), cbs=list(cbs), **kwargs)


@pytest.mark.parametrize("bad", [0, 1, 5])
@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("check_grads", [False, True])
def test_the_weights_are_those_before_the_bad_batch(bad, target, check_grads, capsys):
    guard = cbnb.TerminateOnNaN(check_grads)
    learn, good = net_learner(data(bad=bad, target=target), [guard]), net_learner(data()[:bad] or data()[:1])
    learn.fit(1)
    random_state = torch.get_rng_state()
    good.model = net()
    if bad:
        good.fit(1)
    assert same_bits(learn.model, good.model) and no_grads(learn)
    assert f"epoch 0, training batch {bad}" in guard.reason and guard.reason in capsys.readouterr().out
    assert ("All outputs are finite. The targets hold" if target else "First bad output: layer 0 (Linear). The inputs hold") in guard.reason
    assert "in 1" not in guard.reason and "in item 3 of 8" in guard.reason
    assert learn.nan_batch[target][0][3].isnan().any() and learn.recorder.history[0].n_steps == bad
    if bad == 1:  # looking again draws no random numbers
        good.model = net()
        torch.manual_seed(1)
        net()
        for x, _ in data()[:2]:
            good.model(x)
        assert torch.equal(torch.get_rng_state(), random_state)


def test_a_fit_after_a_stopped_one_is_fresh():
    learn = net_learner(data(bad=2), [cbnb.TerminateOnNaN])
    learn.fit(1)
    assert learn.terminate_on_nan.reason and learn.nan_batch and learn.terminate_on_nan.averages is None
    learn.dls = data()
    learn.fit(1)
    assert learn.terminate_on_nan.reason is None and learn.nan_batch is None


def test_a_bad_validation_loss_stops_the_fit(capsys):
    learn = net_learner(data(), [cbnb.TerminateOnNaN], valid=data(bad=1))
    learn.fit(5)
    assert learn.recorder.history[0].status == "cancelled" and learn.recorder.history[0].n_steps == 6 == learn.model[1].num_batches_tracked
    assert "epoch 0, validation batch 1" in learn.terminate_on_nan.reason
    assert "before the update" not in capsys.readouterr().out


@pytest.mark.parametrize("nested", [False, True])
def test_validation_and_predictions_run_on(nested):
    """D27: the exception escaped from validate, and get_preds with losses failed."""
    learn, seen = net_learner(data(), [cbnb.TerminateOnNaN], valid=data(bad=1)), {}

    def look(*args):
        seen["values"] = learn.validate()
        seen["preds"] = learn.get_preds(with_loss=True)
        seen["vector"] = learn.loss_func.reduction = "none"
        learn.validate()
        learn.loss_func.reduction = "mean"

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if nested:
            learn.fit(1, cbs=cbnb.Callback(after_train=look))
        else:
            look()
    assert math.isnan(seen["values"][0]) and len(seen["preds"][0]) == 48
    assert seen["preds"][2].isnan().sum() == 1
    for run, n in (("validate", 2), ("get_preds", 1)):  # one in each run
        assert len([w for w in warned if f" in {run}, batch 1." in str(w.message)]) == n
    if nested:  # then the validation of the fit itself stopped it
        assert "validation batch 1" in learn.terminate_on_nan.reason
    else:
        assert learn.terminate_on_nan.reason is None and learn.nan_batch is None


def test_a_layer_that_cannot_be_run_again_does_not_hide_the_nan():
    class Once(nn.Module):
        def forward(self, x):
            assert not hasattr(self, "done"), "only once"
            self.done = True
            return x * math.nan

    learn = line_learner(1, model=nn.Sequential(Line(), Once()), cbs=cbnb.TerminateOnNaN)
    learn.fit(1)
    assert "only once" in learn.terminate_on_nan.reason


def test_nested_outputs_and_dict_batches():
    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(1, 1), nn.Linear(1, 1)

        def forward(self, x):
            return {"a": self.one(x), "b": (self.other(x) / 0, "text")}

    batch = {"x": torch.ones(4, 1), "y": torch.ones(4, 1)}
    dls = cbnb.DataLoaders([batch], targets="y", device="cpu")
    learn = line_learner(dls=dls, model=Twins(), loss_func=lambda pred, y: (pred["a"] - pred["b"][0] - y).sum(), cbs=cbnb.TerminateOnNaN)
    learn.fit(1)
    assert "First bad output: the model itself (Twins)." in learn.terminate_on_nan.reason


def test_clip_accumulate_and_guard_together(capsys):
    """A bad batch in the second sum: the weights are those after the first, and clipping has not spread the nan."""
    cbs = [cbnb.GradientClip(1.0), cbnb.TerminateOnNaN(), cbnb.GradientAccumulation(32)]
    learn = learner([16] * 6, cbs=cbs)
    learn.loss_func = lambda pred, y: nn.functional.mse_loss(pred, y) * (math.nan if learn.train_iter == 3 else 1)
    learn.fit(2)
    assert ab(learn) == pytest.approx((0.05547, 0.083205), abs=1e-6) and no_grads(learn)
    assert "training batch 3. All outputs are finite. So it comes from the loss function." in capsys.readouterr().out


def test_lr_find_may_diverge():
    learn = line_learner(4, cbs=[cbnb.TerminateOnNaN])
    assert len(learn.lr_find(num_it=30, end_lr=1e30, stop_div=False).lrs) > 5


def test_explain_nan_changes_nothing():
    learn, states = net_learner(data()), []

    def look(cb):
        for _ in range(2):
            states.append((pickle.dumps(learn.model.state_dict()), torch.get_rng_state().tolist(), id(learn.pred)))
            explain_nan(learn)
        raise cbnb.CancelFitException

    learn.fit(1, cbs=cbnb.Callback(after_loss=look))
    assert states[0] == states[1]


# stopping


def test_a_stop_ends_the_epoch_properly():
    seen, tracker = [], []
    learn = learner(cbs=[cbnb.StopAfter(steps=6)], valid=True)
    late = cbnb.Callback(after_epoch=lambda self: tracker.append(self.learn.final_record[-1]))
    late.order = 63  # a tracker's
    learn.add_cbs([noting(seen), late])
    learn.fit(9)
    assert learn.recorder.history[0].n_steps == 6 and len(tracker) == 2 and None not in tracker
    told = [name for name in seen if "cancel" in name or name in ("after_train", "before_validate", "after_validate")]
    assert told[-5:] == ["after_cancel_train", "after_train", "before_validate", "after_validate", "after_cancel_fit"]
    learn.fit(1)  # ends before the limit
    assert learn.stop_after.reason is None and learn.recorder.history[-1].status == "done"
    learn.validate()
    learn.get_preds()


def test_a_stop_at_once():
    learn = learner(cbs=[cbnb.StopAfter(steps=6, validate=False)], valid=True)
    learn.fit(9)
    assert learn.recorder.history[0].n_steps == 6
    assert [row["complete"] for row in learn.recorder.history[0].epochs] == [True, False]


def test_time_that_is_over_during_validation_stops_after_the_epoch():
    learn = learner(cbs=[cbnb.StopAfter(seconds=10**4)], valid=True)
    late = cbnb.Callback(after_validate=lambda self: setattr(self.learn.stop_after, "until", 0))
    with learn.no_logging():
        learn.fit(3, cbs=late)
    assert learn.recorder.history[0].n_steps == 4 and "after 10000 seconds" in learn.stop_after.reason


def test_a_time_of_day(monkeypatch):
    import cbnb.callbacks.stopping as stopping

    learn = learner(cbs=[cbnb.StopAfter(at="18:30")])
    real, ahead = stopping.time.time, [0]
    monkeypatch.setattr(stopping.time, "time", lambda: real() + ahead[0])
    later = cbnb.Callback(before_batch=lambda self: ahead.__setitem__(0, 2 * 86400 if self.learn.train_iter == 2 else 0))
    learn.fit(3, cbs=later)
    assert learn.recorder.history[0].n_steps == 3 and learn.stop_after.reason == "since it is 18:30"


def test_short_epochs_are_recorded_whole():
    """The batch after which an epoch ends used to be missing from the history."""
    learn, seen = learner([16] * 10, cbs=[cbnb.ShortEpoch(0.25)], valid=True), []
    learn.fit(2)
    assert learn.recorder.iters == [3, 6] and all(row["valid_loss"] is not None for row in learn.recorder.history[0].epochs)
    assert len(learn.get_preds()[0]) == 32  # not cut
    learn = learner(cbs=[cbnb.ShortEpoch(1), noting(seen)], valid=True)
    learn.fit(1)
    assert not [name for name in seen if "cancel" in name]
    unknown = line_learner(dls=cbnb.DataLoaders(cbnb.Batches(lambda: iter(line_batches())), device="cpu"))
    with pytest.raises(ValueError, match="but the training loader has no length: wrap it in Batches"):
        unknown.fit(1, cbs=cbnb.ShortEpoch())


def test_skipping_is_what_start_epoch_is():
    one, other, events = learner(valid=True), learner(valid=True), ([], [])
    one.fit(4, cbs=noting(events[0]), start_epoch=2)
    other.fit(4, cbs=[noting(events[1]), cbnb.callbacks.stopping.SkipToEpoch(2)])
    assert events[0] == events[1] and same_bits(one.model, other.model)
    table = [{k: v for k, v in row.items() if k != "time"} for row in one.recorder.history[0].epochs]
    assert table == [{k: v for k, v in row.items() if k != "time"} for row in other.recorder.history[0].epochs]
    other.fit(4, start_epoch=3, cbs=cbnb.callbacks.stopping.SkipToEpoch(1))
    assert len(other.recorder.history[1].epochs) == 1


# batch norm


def test_batch_norm_stays_frozen_through_nested_validation_and_is_let_go():
    """D30: layers without parameters failed, and the model itself was not looked at."""
    bare = nn.BatchNorm1d(1)
    bare.requires_grad_(False)
    model = nn.Sequential(bare, nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1))
    x = torch.rand(8, 1) + 3
    learn = line_learner(dls=cbnb.DataLoaders([(x, x)] * 3, [(x, x)], device="cpu"), model=model, cbs=cbnb.BnFreeze)
    learn.fit(2, cbs=cbnb.Callback(after_batch=lambda self: self.learn.validate() if self.learn.training else None))
    assert bare.running_mean == 0 and model[1].num_batches_tracked == 6
    model.train()
    assert bare.training
    learn.dls = [(x, x)]
    learn.fit(1)
    assert model.training and bare.training and bare.running_mean == 0

    class Norm(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x) * self.scale

    root = Norm(1)
    root.requires_grad_(False)
    root.scale = nn.Parameter(torch.ones(()))
    rooted = line_learner(dls=cbnb.DataLoaders([(x, x)], device="cpu"), model=root, cbs=cbnb.BnFreeze)
    with pytest.warns(UserWarning, match="BnFreeze has no effect"):
        rooted.fit(1)
    assert root.num_batches_tracked == 1  # one of its parameters is trained
    plain = nn.Sequential(nn.BatchNorm1d(1))
    line_learner(dls=cbnb.DataLoaders([(x, x)], device="cpu"), model=plain, cbs=cbnb.BnFreeze).fit(1)
    assert plain[0].num_batches_tracked == 1


def test_a_bn_freeze_that_finds_nothing_frozen_says_so():
    def learner(**kwargs):
        model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), nn.Linear(1, 1))
        x = torch.rand(8, 1)
        splitter = [list(part.parameters()) for part in model]
        dls = cbnb.DataLoaders([(x, x)], [(x, x)], device="cpu")
        return line_learner(dls=dls, model=model, splitter=lambda model: splitter, cbs=cbnb.BnFreeze, **kwargs)

    learn = learner()
    learn.freeze()
    with pytest.warns(UserWarning, match=r"BnFreeze has no effect.*freeze_to\(-1, train_bn=False\)"):
        learn.fit(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.freeze_to(-1, train_bn=False)
        learn.fit(1)
        learn.unfreeze()
        learn.fit(1)
        learner().fit(1)
    assert learn.model[0][1].num_batches_tracked == 2  # not in the fit with frozen layers


# schedules


@pytest.mark.parametrize("n_acc", [16, 64])
def test_no_warning_about_the_order_of_steps(n_acc):
    one_cycle = cbnb.TorchScheduler(lambda opt, n: torch_schedulers.OneCycleLR(opt, 0.1, total_steps=n))
    learn = learner(cbs=[cbnb.GradientAccumulation(n_acc), one_cycle])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(2)
        learn.fit(3)
        learn.fit(3, start_epoch=1)
    assert len(learn.recorder.lrs) == 8 and "step" not in vars(learn.opt)
    assert set(learn.opt.param_groups[0]) == set(torch.optim.SGD(learn.model.parameters()).param_groups[0])


def test_groups_keep_their_own_rates():
    learn = learner(splitter=lambda m: [[m.a], [m.b]], lr=[0.01, 0.1])
    rates = []
    note = cbnb.Callback(before_step=lambda self: rates.append([g["lr"] for g in self.learn.opt.param_groups]))
    learn.fit(3, cbs=[cbnb.TorchScheduler(lambda opt: torch_schedulers.StepLR(opt, 1, 0.5), every="epoch"), note])
    assert rates[::4] == [[0.01, 0.1], [0.005, 0.05], [0.0025, 0.025]]
    learn.fit(1, cbs=[cbnb.TorchScheduler(lambda opt, n: torch_schedulers.OneCycleLR(opt, [1.0, 2.0], total_steps=n)), note])
    assert rates[-4] == pytest.approx([1 / 25, 2 / 25])


def test_a_plateau_skips_epochs_without_a_value():
    values = []

    class Plateau(torch_schedulers.ReduceLROnPlateau):
        def step(self, metrics):
            values.append(metrics)
            super().step(metrics)

    learn = learner(valid=True)
    learn.fit(6, cbs=cbnb.TorchScheduler(Plateau, monitor="valid_loss"), valid_every=2)
    assert values == [row["valid_loss"] for row in learn.recorder.history[0].epochs if row["valid_loss"] is not None] and len(values) == 3


def test_a_factor_of_the_dashboard_and_a_recursive_scheduler():
    """Each step multiplies the present rate: the factor must neither stay in it nor undo a step."""
    learn = learner(cbs=[cbnb.display.steering.Steering, cbnb.TorchScheduler(lambda opt: torch_schedulers.ExponentialLR(opt, 0.5))])
    halve = cbnb.Callback(before_epoch=lambda self: self.learn.steering.scale_lr(0.1))
    learn.fit(1, cbs=halve)
    assert learn.recorder.lrs == pytest.approx([0.01, 0.005, 0.0025, 0.00125])


def test_schedules_that_cannot_be():
    unknown = line_learner(dls=cbnb.DataLoaders(cbnb.Batches(lambda: iter(line_batches())), device="cpu"))
    step = cbnb.TorchScheduler(lambda opt: torch_schedulers.StepLR(opt, 1))
    unknown.fit(2, cbs=step)  # it need not know the length
    with pytest.raises(ValueError, match="no length"):
        unknown.fit(2, start_epoch=1, cbs=step)
    with pytest.raises(ValueError, match="no length"):
        unknown.fit(2, cbs=cbnb.TorchScheduler(lambda opt, n: torch_schedulers.StepLR(opt, n)))
    plain = line_learner(default_cbs=False)
    with pytest.raises(ValueError, match="Recorder"):
        plain.fit(1, cbs=cbnb.TorchScheduler(torch_schedulers.ReduceLROnPlateau, monitor="valid_loss"))
    with pytest.raises(ValueError, match="would both set the learning rate"):
        learner().fit_one_cycle(1, cbs=step)


# all of them


@pytest.mark.parametrize("name", ALL)
def test_adding_it_again_replaces_it(name, capsys):
    learn = learner(valid=True)
    for _ in range(3):
        learn.add_cb(ALL[name]())
        learn.fit(2)
    assert [type(cb) for cb in learn.cbs].count(type(ALL[name]())) == 1


@pytest.mark.parametrize("name", ALL)
def test_a_second_fit_is_like_one_with_a_fresh_callback(name):
    reused, fresh, cb = learner(valid=True), learner(valid=True), ALL[name]()
    for _ in range(2):
        reused.fit(2, cbs=cb)
        fresh.fit(2, cbs=ALL[name]())
    assert same_bits(reused.model, fresh.model)
    assert list(reused.recorder.history.rows("steps")) == list(fresh.recorder.history.rows("steps"))


def test_all_at_once_with_evaluation_inside(capsys):
    """Validation and predictions inside a fit change nothing of it."""

    def look(cb):
        if cb.learn.training:
            cb.learn.validate()
            cb.learn.get_preds()

    results = []
    for extra in ([], [cbnb.Callback(before_step=look, after_loss=look, after_batch=look)]):
        seed()
        learn = net_learner(data(), [make() for make in ALL.values()], valid=data(2))
        with learn.no_logging():
            learn.fit(4, cbs=extra)
        results.append((learn.model.state_dict(), list(learn.recorder.history.rows("steps")), len(learn.collect_data.data)))
    (a, steps_a, n_a), (b, steps_b, n_b) = results
    assert all(torch.equal(a[k], b[k]) for k in a) and steps_a == steps_b and n_a == n_b > 0


def test_a_learner_with_all_of_them_can_be_exported(tmp_path):
    learn = net_learner(data(), [make() for make in ALL.values()], valid=data(2), path=tmp_path)
    learn.loss_func = nn.MSELoss()
    with learn.no_logging():
        learn.fit(2)
    learn.export()
    again = cbnb.load_learner(tmp_path / "export.pkl", trust=True)
    assert same_bits(learn.model, again.model) and again.torch_scheduler.scheduler is None


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_a_step_that_updates_by_itself_is_out_of_reach(capsys):
    """Clipping and accumulation did nothing, and said nothing; the guard said it had stopped before the update."""
    model = Line()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def own(x, y):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    for cb in (cbnb.GradientClip, cbnb.GradientAccumulation):
        learn = line_learner(3, model=model, train_step=cbnb.UpdateStep(own), cbs=cb)
        with pytest.warns(UserWarning, match=f"{cb.__name__} has .*no effect.*train_step") as seen:
            learn.fit(1)
        here = [str(w.message) for w in seen if w.filename == __file__]
        assert len(here) == len(seen) == 2 and "rates of this learner had no effect" in here[1]
    bad = [(x * float("nan"), y) for x, y in line_batches()]
    line_learner(dls=cbnb.DataLoaders(bad, device="cpu"), model=model, train_step=cbnb.UpdateStep(own), cbs=cbnb.TerminateOnNaN).fit(1)
    assert "stopped after the update: the loss is nan in epoch 0, training batch 0" in capsys.readouterr().out


def test_a_rate_of_an_earlier_scheduler_is_forgotten():
    """Torch's schedulers begin with the `initial_lr` that another has left in the groups."""
    learn = line_learner(lr=0.1)
    learn.create_opt()
    torch_schedulers.LambdaLR(learn.opt, lambda i: 1.0)
    learn.fit(1, lr=0.02, cbs=cbnb.TorchScheduler(lambda opt: torch_schedulers.LambdaLR(opt, lambda i: 0.5**i)))
    assert learn.recorder.history[-1].hyper("lr") == pytest.approx([0.02, 0.01])
    assert learn.opt.param_groups[0]["initial_lr"] == 0.1


def test_a_loss_that_somebody_makes_bad_is_noticed():
    """The guard looked before MixUp and others had changed the loss, and the update made every weight nan."""
    model = nn.Linear(2, 2, bias=False)
    x, y = 200 * torch.eye(2), torch.tensor([0, 1])
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))

    def loss_func(pred, y):  # infinite for a wrong class that gets no probability at all
        return nn.functional.nll_loss(pred.softmax(1).log(), y)

    class Swap(cbnb.MixUp):
        def draw(self):
            return 1 - 1e-9

        def mix(self, x, order):
            order.copy_(torch.tensor([1, 0]))
            return super().mix(x, order)

    def penalty(cb):
        cb.learn.loss_grad = cb.learn.loss_grad + math.inf * model.weight.sum()
        cb.learn.loss = cb.learn.loss_grad.detach()

    before = model.weight.detach().clone()
    for cb in (Swap(), cbnb.Callback(after_loss=penalty)):
        learn = line_learner(dls=cbnb.DataLoaders([(x, y)] * 2, device="cpu"), model=model, loss_func=loss_func, cbs=cbnb.TerminateOnNaN)
        learn.fit(1, cbs=cb)
        assert torch.equal(model.weight, before) and no_grads(learn)
        assert "training batch 0. All outputs are finite. So it comes from the loss" in learn.terminate_on_nan.reason


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_a_function_that_trains_is_not_called_again_to_explain(capsys):
    """It was, which made one more update, and a nan weight was said to be older than the batch."""
    model, calls = Line(), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    step = cbnb.TrainStep(model, nn.MSELoss(), opt)

    def own(x, y):
        calls.append(len(calls))
        return step(x * (math.nan if len(calls) == 2 else 1), y)

    learn = line_learner(4, model=model, lr=1e-3, opt_func=torch.optim.AdamW, train_step=cbnb.UpdateStep(own), cbs=cbnb.TerminateOnNaN)
    learn.fit(1)
    said = capsys.readouterr().out
    assert len(calls) == 2 and "before this batch" not in said
    assert "stopped after the update: the loss is nan in epoch 0, training batch 1. The layer is not known" in said
    assert "a is not finite now" in said


@pytest.mark.parametrize("n_out", [2, 3])
def test_the_layer_is_named_with_an_eval_step_that_is_a_function(n_out):
    """It was called again without the targets, which it had not returned."""
    model = net()

    def evaluate(x, y):
        pred = model(x)
        return (nn.functional.mse_loss(pred, y), pred, y)[:n_out]

    learn = net_learner(data(), valid=data(bad=1), eval_step=evaluate, cbs=[cbnb.TerminateOnNaN])
    learn.model = model
    learn.fit(1)
    assert "validation batch 1. First bad output: layer 0 (Linear). The inputs hold nan" in learn.terminate_on_nan.reason


@pytest.mark.parametrize("pct, n", [(0.07, 100), (0.14, 100), (0.55, 100), (0.3, 10), (0.01, 10), (1, 7)])
def test_a_share_of_an_epoch_is_not_a_batch_too_many(pct, n):
    learn = line_learner(n, cbs=cbnb.ShortEpoch(pct))
    learn.fit(1)
    assert learn.recorder.history[0].n_steps == max(1, round(pct * n))


def test_two_accumulations_are_refused_together():
    """Both scaled the loss: a cell run again with another number made the gradients half as long, silently."""
    learn = line_learner(4, cbs=cbnb.GradientAccumulation(16))
    learn.add_cb(cbnb.GradientAccumulation(32))
    with pytest.raises(ValueError, match="GradientAccumulation.*remove_cb"):
        learn.fit(1)
    learn.gradient_accumulation.run = False
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.4, 0.6)) and no_grads(learn)


class Slope(nn.Module):
    """pred = w*x, so that the gradient of its mean is the mean of x."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.w * x


@pytest.mark.parametrize("with_length", [True, False])
@pytest.mark.parametrize(
    "n_acc, sizes, updates",
    [
        (4, [2, 2, 2, 2], [(1, (1 + 2) / 2), (3, (3 + 4) / 2)]),
        (4, [2, 2, 2], [(1, (1 + 2) / 2), (2, 3)]),  # what is left at the end of an epoch
        (5, [3, 3, 3], [(1, (1 + 2) / 2), (2, 3)]),  # six items are at least five
        (4, [4, 1, 4, 3, 2], [(0, 1), (2, (2 + 3 * 4) / 5), (4, (4 * 3 + 5 * 2) / 5)]),  # each item has the same weight
        (1, [2, 3], [(0, 1), (1, 2)]),
        (9, [2, 3], [(1, (1 * 2 + 2 * 3) / 5)]),
        (3, [2, 1, 1], [(1, (1 * 2 + 2) / 3), (2, 3)]),  # just three items
    ],
)
def test_an_update_has_the_mean_gradient_of_its_items(n_acc, sizes, updates, with_length):
    """In batch i all x are i + 1."""
    batches = [(torch.full((n,), i + 1.0), torch.zeros(n)) for i, n in enumerate(sizes)]
    loader = cbnb.Batches(lambda: iter(batches), len(batches) if with_length else None)
    found = []

    def note(self):
        found.append((self.learn.iter, self.learn.model.w.grad.item()))

    learn = line_learner(
        dls=cbnb.DataLoaders(loader, device="cpu"),
        model=Slope(),
        loss_func=lambda pred, y: pred.mean(),
        cbs=cbnb.GradientAccumulation(n_acc),
    )
    learn.fit(2, cbs=cbnb.Callback(after_step=note))
    assert found == [(i, pytest.approx(mean)) for i, mean in updates * 2]
    assert learn.recorder.history[0].n_steps == 2 * len(sizes)


# Sparse gradients


def embedding_learner(sparse, **kwargs):
    seed()
    model = nn.Sequential(nn.Embedding(9, 2, sparse=sparse), nn.Flatten(), nn.Linear(6, 1))
    x, y = torch.tensor([[1, 1, 2], [3, 1, 8]]), torch.tensor([[5.0], [-3.0]])
    return line_learner(dls=cbnb.DataLoaders([(x, y)] * 3, device="cpu"), model=model, opt_func=torch.optim.SGD, **kwargs)


@pytest.mark.parametrize("kind", ["global", "tensor", "value"])
def test_sparse_gradients_are_clipped_like_dense_ones(kind):
    """torch's own function refuses them: NotImplementedError."""
    dense, sparse = [embedding_learner(s, cbs=cbnb.GradientClip(0.01, kind=kind)) for s in (False, True)]
    for learn in (dense, sparse):
        learn.fit(2)
    for p, q in zip(dense.model.parameters(), sparse.model.parameters()):
        assert torch.allclose(p, q)
    if kind == "global":
        assert sparse.gradient_clip.norm == pytest.approx(dense.gradient_clip.norm)
    assert not torch.equal(sparse.model[0].weight, embedding_learner(True).model[0].weight)


@pytest.mark.parametrize("bad", [None, 1])
def test_sparse_gradients_are_checked_for_nan(bad):
    class Spoils(cbnb.Callback):
        def after_backward(self):
            if self.learn.iter == bad:
                self.learn.model[0].weight.grad._values()[0, 0] = math.nan

    guard = cbnb.TerminateOnNaN(check_grads=True)
    learn = embedding_learner(True, cbs=[guard, Spoils()])
    learn.fit(1)
    assert learn.recorder.last().n_steps == (3 if bad is None else 1)
    assert guard.reason is None if bad is None else "the gradient of 0.weight is not finite in epoch 0, training batch 1" in guard.reason


# A loss that is nan, without a guard


def said_of_nan(text):
    return [line for line in text.splitlines() if line.startswith("the loss is ")]


def test_a_fit_whose_loss_becomes_nan_says_so_once(capsys):
    """It went unnoticed: the run ended as done."""
    learn = net_learner(data(bad=4))
    learn.fit(1)
    [said] = said_of_nan(capsys.readouterr().out)
    assert "nan since step 4 of this fit (epoch 0, training batch 4)" in said and "cbs=TerminateOnNaN()" in said
    assert "try a lower learning rate, or look at that batch" in said
    learn = net_learner(data(n=4))
    loss = learn.loss_func
    learn.loss_func = lambda pred, y: loss(pred, y) * (math.inf if learn.epoch >= 1 and learn.iter >= 2 else 1)
    learn.fit(4)
    [said] = said_of_nan(capsys.readouterr().out)
    assert "inf since step 6 of this fit (epoch 1, training batch 2)" in said
    learn.loss_func = loss
    learn.model = net()
    learn.fit(2)
    assert not said_of_nan(capsys.readouterr().out)


def test_the_first_row_after_it_comes_after_the_words(capsys):
    """They are said at the end of the epoch at the latest, and earlier where a display reads the losses."""
    learn = net_learner(data(bad=0))
    learn.fit(2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("the loss is nan since step 0") and "learning rate" not in lines[0]  # none was used yet
    assert "no update came before it, so it is the data, the weights or the loss function" in lines[0]
    learn = net_learner(data(bad=1))
    learn.add_cb(cbnb.ProgressCallback)
    said = []

    class Looks(cbnb.Callback):
        order = 100

        def after_batch(self):
            if self.learn.iter == 3:
                self.learn.progress._progress(0.0)
                said.append(len(said_of_nan(capsys.readouterr().out)))

    learn.fit(1, cbs=Looks())
    assert said == [1] and not said_of_nan(capsys.readouterr().out)


def test_where_a_guard_stops_the_fit_nothing_more_is_said(capsys):
    net_learner(data(bad=3), [cbnb.TerminateOnNaN]).fit(2)
    assert not said_of_nan(capsys.readouterr().out)


def test_looking_for_nan_does_not_read_each_loss(monkeypatch):
    """Only when somebody reads the losses: once an epoch."""
    looks = []
    real = cbnb.Recorder.look_for_nan
    monkeypatch.setattr(cbnb.Recorder, "look_for_nan", lambda self, wait=True: (looks.append(self.learn.train_iter), real(self, wait)))
    net_learner(data(n=50)).fit(2)
    assert set(looks) == {50, 100}


def test_a_function_whose_update_is_left_to_the_learner_is_stopped_before_it():
    batches = data(bad=1)
    learn = net_learner(batches, [cbnb.TerminateOnNaN])
    learn.train_step = lambda x, y: nn.functional.mse_loss(learn.model(x), y)
    learn.fit(1)
    assert all(p.isfinite().all() for p in learn.model.parameters()) and learn.recorder.last().n_steps == 1
    assert "First bad output: layer 0 (Linear). The inputs hold nan" in learn.terminate_on_nan.reason


def test_a_validation_leaves_what_ended_the_fit_before():
    """One looks at the batch, and may validate first."""
    guard = cbnb.TerminateOnNaN()
    learn = line_learner(cbs=[guard, cbnb.Callback(after_loss=lambda cb: cb.learn.loss.fill_(float("nan")) if cb.training else None)])
    with learn.no_logging():
        learn.fit(1)
    reason, batch = guard.reason, learn.nan_batch
    learn.validate()
    assert reason and guard.reason == reason and batch is not None and learn.nan_batch is batch


# --- what is refused, and what is just allowed ---


class NoScheduler:
    """Made like a scheduler of torch, and is none."""

    def __init__(self, opt):
        pass


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: cbnb.GradientClip(kind="norm"), ValueError, "kind='norm' should be"),
        (lambda: cbnb.GradientClip(0), ValueError, "max_norm=0 should be a number above 0"),
        (lambda: cbnb.GradientClip(1.0, 0), ValueError, "norm_type=0 should be a number above 0"),
        (lambda: cbnb.GradientAccumulation(0), ValueError, "n_acc=0"),
        (lambda: cbnb.StopAfter(), ValueError, "StopAfter has no limit"),
        (lambda: cbnb.StopAfter(steps=0), ValueError, "steps=0"),
        (lambda: cbnb.StopAfter(seconds=-1), ValueError, "seconds=-1"),
        (lambda: cbnb.StopAfter(at="noon"), ValueError, "at='noon' should have the form 'HH:MM'"),
        (lambda: cbnb.StopAfter(at=18), TypeError, "at=18 should be a time of day"),
        (lambda: cbnb.ShortEpoch(0), ValueError, "pct=0 should be a finite number above 0"),
        (lambda: cbnb.ShortEpoch(1.01), ValueError, "pct=1.01 should be above 0 and at most 1"),
        (lambda: cbnb.callbacks.stopping.SkipToEpoch(-1), ValueError, "epoch=-1"),
        (lambda: cbnb.callbacks.predictions.CollectData(last=0), ValueError, "last=0"),
        (
            lambda: cbnb.TorchScheduler(torch_schedulers.StepLR(torch.optim.SGD(Line().parameters()), 1)),
            TypeError,
            "returns the scheduler, not a StepLR",
        ),
        (lambda: cbnb.TorchScheduler("StepLR"), TypeError, "returns the scheduler, not 'StepLR'"),
        (lambda: cbnb.TorchScheduler(torch_schedulers.StepLR), TypeError, "missing a required argument: 'step_size'"),
        (lambda: cbnb.TorchScheduler(lambda opt: opt, monitor=3), TypeError, "monitor=3 should be the heading"),
        (lambda: cbnb.SaveModel(every_epoch=np.arange(3), at_end=True), TypeError, r"every_epoch=array\(\[0, 1, 2\]\)"),
        (lambda: cbnb.Tracker(comp=np.ones(3)), ValueError, r"comp=array\(\[1., 1., 1.\]\) should be"),
        (lambda: cbnb.SklearnMetric("x" * 300), ValueError, "no function 'x{56}[.]{3}x{19}'"),
        (lambda: cbnb.callbacks.predictions.SavedBatches(None), TypeError, "folder=None is not the path of a folder"),
        (lambda: cbnb.callbacks.predictions.before_batch_cb(None), TypeError, "f=None is not a function"),
        (lambda: cbnb.TorchScheduler(torch_schedulers.StepLR, "step"), ValueError, "every='step' should be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_the_least_and_the_greatest_settings_are_allowed():
    one = learner(
        cbs=[
            cbnb.GradientClip(math.inf, math.inf),
            cbnb.GradientAccumulation(1),
            cbnb.callbacks.predictions.CollectData(last=1),
            cbnb.ShortEpoch(1),
        ]
    )
    one.fit(1, cbs=[cbnb.StopAfter(steps=1, seconds=10**6), cbnb.callbacks.stopping.SkipToEpoch(0)])
    assert ab(one) == way(1) and len(one.collect_data.data) == 1
    assert one.gradient_clip.norm == 6  # the greatest of 4 and 6


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: cbnb.TorchScheduler(NoScheduler), TypeError, "which is not a scheduler"),
        (lambda: cbnb.TorchScheduler(torch_schedulers.ReduceLROnPlateau), ValueError, "needs a value to watch"),
        (
            lambda: cbnb.TorchScheduler(lambda opt: torch_schedulers.StepLR(opt, 1), monitor="valid_loss"),
            ValueError,
            "StepLR does not watch a value",
        ),
        (
            lambda: cbnb.TorchScheduler(torch_schedulers.ReduceLROnPlateau, monitor="valid_los"),
            ValueError,
            "TorchScheduler cannot watch 'valid_los'",
        ),
        (
            lambda: cbnb.TorchScheduler(torch_schedulers.ReduceLROnPlateau, monitor="time"),
            ValueError,
            "cannot watch 'time', which is neither a loss nor a metric",
        ),
        (
            lambda: cbnb.callbacks.predictions.FetchPredsCallback(ds_idx=9),
            IndexError,
            "there is no loader 9",
        ),
        (lambda: cbnb.callbacks.predictions.MCDropoutCallback, ValueError, "Line has no dropout layers"),
        (
            lambda: cbnb.callbacks.stopping.SkipToEpoch(2),
            ValueError,
            r"SkipToEpoch\(2\) leaves nothing to train, because this fit has only 1 epoch",
        ),
    ],
)
def test_what_cannot_be_is_said_before_the_first_batch(make, error, words):
    learn = learner(valid=True)
    with pytest.raises(error, match=words):
        learn.fit(1, cbs=make())
    assert ab(learn) == (0, 0) and "step" not in vars(learn.opt)


def test_skipping_all_epochs_trains_nothing():
    learn = learner()
    learn.fit(2, cbs=cbnb.callbacks.stopping.SkipToEpoch(2))
    assert ab(learn) == (0, 0)
    with pytest.raises(ValueError, match="has only 2 epochs"):
        learn.fit(2, cbs=cbnb.callbacks.stopping.SkipToEpoch(3))


# --- accumulation: what is counted ---


class SlopeOfTwo(Slope):
    def forward(self, first, x):
        return super().forward(x)


@pytest.mark.parametrize("targets", [True, False])
def test_a_batch_whose_count_is_nothing_counts_as_one(targets):
    """Of boxes in pictures there may be none. Three, none, one and one; five make an update."""
    x = torch.ones(2)
    batches = [(x, x, torch.ones(n)) if targets else (torch.ones(n), x, "no tensor") for n in (3, 0, 1, 1)]
    learn = line_learner(dls=cbnb.DataLoaders(batches, n_inp=2, device="cpu"), model=SlopeOfTwo(), loss_func=lambda pred, y: pred.mean())
    updates = []
    learn.fit(1, cbs=[cbnb.GradientAccumulation(5), cbnb.Callback(after_step=lambda cb: updates.append(cb.learn.iter))])
    assert updates == [2, 3]


def test_targets_that_are_no_tensors_leave_counting_to_the_inputs():
    batches = [(torch.ones(2), "no tensor")] * 4
    learn = line_learner(dls=cbnb.DataLoaders(batches, device="cpu"), model=Slope(), loss_func=lambda pred, y: pred.mean())
    updates = []
    learn.add_cb(cbnb.Callback(after_step=lambda cb: updates.append(cb.learn.iter)))
    learn.fit(1, cbs=cbnb.GradientAccumulation(4))
    assert updates == [1, 3]


def test_gradients_have_their_final_share_from_the_first_batch_on():
    """Three items are planned as two batches of two, so that each counts half: of the means 1 and 2, then 3 and 4."""
    batches = [(torch.full((2,), i + 1.0), torch.zeros(2)) for i in range(4)]
    learn, seen = line_learner(dls=cbnb.DataLoaders(batches, device="cpu"), model=Slope(), loss_func=lambda pred, y: pred.mean()), []
    note = cbnb.Callback(after_backward=lambda cb: seen.append(cb.learn.model.w.grad.item()))
    learn.fit(1, cbs=[cbnb.GradientAccumulation(3), note])
    assert seen == [0.5, 1.5, 1.5, 3.5]


def test_the_last_update_of_an_epoch_belongs_to_its_last_batch():
    """In three batches of 16: the first is cancelled, the second completes a sum of 32, the third is what is left."""
    seen = []
    note = cbnb.Callback(
        after_cancel_batch=lambda cb: seen.append(("cancelled", cb.learn.iter)),
        after_step=lambda cb: seen.append(("update", cb.learn.iter)),
        after_batch=lambda cb: seen.append(("batch", cb.learn.iter)),
    )
    learner([16] * 3, cbs=[cbnb.GradientAccumulation(32), note]).fit(1)
    assert seen == [("cancelled", 0), ("batch", 0), ("update", 1), ("batch", 1), ("update", 2), ("batch", 2)]


def test_an_own_loss_of_several_parts_is_scaled_in_each():
    """Two losses of half the weight each have the gradient of one."""

    class Halves(cbnb.step.Step):
        def loss(self, learn):
            super().loss(learn)
            learn.loss_grad = {"one": learn.loss_grad / 2, "other": learn.loss_grad / 2}

        def backward(self, learn):
            (learn.loss_grad["one"] + learn.loss_grad["other"]).backward()

    learn = learner(cbs=[cbnb.GradientAccumulation(32)], train_step=Halves())
    learn.fit(1)
    assert ab(learn) == way(2)


def test_an_update_at_the_end_that_somebody_leaves_out_is_left_out():
    """The third of three batches of 16 is what is left of sums of 32; a callback cancels its update."""

    def skip(cb):
        if cb.learn.iter == 2:
            raise cbnb.CancelBatchException

    late = cbnb.Callback(before_step=skip)
    late.order = 20
    batches = batches_of(16, 16, 16)
    learn = line_learner(dls=cbnb.DataLoaders(cbnb.Batches(lambda: iter(batches)), device="cpu"), cbs=[cbnb.GradientAccumulation(32), late])
    with learn.no_logging():
        learn.fit(1)
    assert ab(learn) == way(1) and no_grads(learn)


# --- nan: what is looked at, and what is said ---


@pytest.mark.parametrize(
    "value, finite",
    [
        (1.5, True),
        (math.inf, False),
        (3, True),
        ("nan", True),
        (None, True),
        (torch.tensor(2), True),
        (torch.tensor([1, 2]), True),
        (torch.tensor(-math.inf), False),
        (torch.tensor([1.0, math.nan]), False),
        (torch.tensor(complex(0, math.nan)), False),
        (torch.tensor([0.0, math.nan]).to_sparse(), False),
        (torch.tensor([0.0, 1.0]).to_sparse(), True),
        ([1.0, (2.0, {"a": math.nan})], False),
        ({"a": [1.0, {"b": torch.ones(2)}]}, True),
    ],
)
def test_what_is_finite(value, finite):
    assert all_finite(value) is finite


def test_looking_for_a_bad_layer_leaves_no_hooks():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    for x, found in ((math.nan, "layer 0 (Linear)"), (1.0, None)):
        assert first_bad_layer(model, lambda: model(torch.tensor([[x]]))) == found
    assert not any(m._forward_hooks for m in model.modules())


def test_where_several_items_are_bad():
    x = torch.ones(5, 2)
    x[1, 0] = x[3, 1] = math.nan
    learn = line_learner(dls=cbnb.DataLoaders([(x, torch.ones(5, 1))], device="cpu"), model=nn.Linear(2, 1), cbs=cbnb.TerminateOnNaN)
    learn.fit(1)
    assert "The inputs hold nan or infinity in 2 of 5 items, first in item 1." in learn.terminate_on_nan.reason


def test_a_bad_value_that_belongs_to_no_item_is_only_named():
    batch = torch.tensor(math.nan), torch.ones(4)
    learn = line_learner(dls=cbnb.DataLoaders([batch], device="cpu"), loss_func=lambda pred, y: pred - y.mean(), cbs=cbnb.TerminateOnNaN)
    learn.fit(1)
    assert learn.terminate_on_nan.reason.endswith("The inputs hold nan or infinity.")


def test_bad_inputs_in_a_row_and_by_name():
    """Of a dict it is not said which items are meant."""
    for xb, words in (((torch.tensor([1.0, 1.0, math.nan]),), " in item 2 of 3."), (dict(x=torch.tensor([1.0, 1.0, math.nan])), ".")):
        batch = (*xb, torch.ones(3)) if isinstance(xb, tuple) else xb | dict(y=torch.ones(3))
        dls = cbnb.DataLoaders([batch], device="cpu") if isinstance(xb, tuple) else cbnb.DataLoaders([batch], targets="y", device="cpu")
        learn = line_learner(dls=dls, cbs=cbnb.TerminateOnNaN)
        learn.fit(1)
        assert learn.terminate_on_nan.reason.endswith(f"First bad output: the model itself (Line). The inputs hold nan or infinity{words}")


def test_the_gradient_that_is_bad_is_named_and_not_the_first_one():
    def spoil(cb):
        cb.learn.model.b.grad.fill_(math.nan)

    learn = line_learner(cbs=cbnb.TerminateOnNaN(check_grads=True))
    learn.fit(1, cbs=cbnb.Callback(after_backward=spoil))
    assert "the gradient of b is not finite" in learn.terminate_on_nan.reason
    frozen = line_learner(cbs=cbnb.TerminateOnNaN(check_grads=True))
    frozen.model.a.requires_grad_(False)
    frozen.fit(1, cbs=cbnb.Callback(after_backward=spoil))
    assert "the gradient of b is not finite" in frozen.terminate_on_nan.reason


def test_weights_that_were_bad_before_are_named(capsys):
    learn = line_learner(cbs=cbnb.TerminateOnNaN)
    with torch.no_grad():
        learn.model.b.fill_(math.inf)
    learn.fit(1)
    assert learn.terminate_on_nan.reason == (
        "the loss is inf in epoch 0, training batch 0. First bad output: the model itself (Line). b was not finite before this batch: "
        "try a lower learning rate, or look at gradients, too, with check_grads=True."
    )
    assert capsys.readouterr().out.splitlines()[0] == f"stopped before the update: {learn.terminate_on_nan.reason}"


def test_a_loss_of_several_numbers_is_said_to_be_not_finite():
    learn = line_learner(loss_func=nn.MSELoss(reduction="none"), cbs=cbnb.TerminateOnNaN)
    with torch.no_grad():
        learn.model.b.fill_(math.nan)
    with pytest.warns(UserWarning, match="the loss is not finite in validate, batch 0"):
        learn.validate()


class Root(nn.Module):
    """The root of two weights: at 0 it is finite, with an infinite slope."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), start))

    def forward(self, x):
        return x * self.w.sqrt()


@pytest.mark.parametrize("start, stops", [(0.0, True), (1e-30, False)])
@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_infinite_gradients_stop_the_fit_and_long_ones_do_not(start, stops):
    """The slope of the root at 1e-30 is 5e14. Times half of 1e20 it is a float, and its square is none."""
    batch = torch.full((2,), 1e20), torch.full((2,), 1e5)
    guard = cbnb.TerminateOnNaN(check_grads=True)
    learn = line_learner(
        dls=cbnb.DataLoaders([batch], device="cpu"), model=Root(start), loss_func=lambda pred, y: (pred + y).mean(), lr=0.0
    )
    learn.fit(1, cbs=guard)
    assert guard.reason == ("the gradient of w is not finite in epoch 0, training batch 0, the loss is 100000.0." if stops else None)
    unchecked = cbnb.TerminateOnNaN()
    learn.fit(1, cbs=unchecked)
    assert unchecked.reason is None


@pytest.mark.filterwarnings("ignore:the loss is nan in validate")
def test_running_averages_are_those_before_the_bad_batch_also_if_it_was_validated_in_between():
    def look(cb):
        if cb.learn.training:
            cb.learn.validate()

    learn = net_learner(data(bad=1), [cbnb.TerminateOnNaN], valid=data(1))
    learn.fit(1, cbs=cbnb.Callback(after_pred=look))
    assert learn.terminate_on_nan.reason and learn.model[1].running_mean.isfinite().all() and learn.model[1].num_batches_tracked == 1


def test_looking_again_makes_no_gradients():
    modes = []

    class Watched(Line):
        def forward(self, x):
            modes.append(torch.is_grad_enabled())
            return super().forward(x) * math.nan

    line_learner(model=Watched(), cbs=cbnb.TerminateOnNaN).fit(1)
    assert modes == [True, False]


# --- when to stop ---


def test_a_time_comes_next_today_or_tomorrow():
    noon = datetime(2030, 5, 17, 12)
    assert next_time("12:00:01", noon) == datetime(2030, 5, 17, 12, 0, 1)
    assert next_time("12:00", noon) == next_time(time(12), noon) == datetime(2030, 5, 18, 12)
    assert next_time(datetime(2030, 5, 17, 12, 1), noon) == datetime(2030, 5, 17, 12, 1)
    with pytest.raises(ValueError, match="at=2030-05-17 12:00:00 is in the past"):
        next_time(noon, noon)


def test_a_moment_that_is_over_when_the_fit_begins_stops_it_after_a_batch():
    stop = cbnb.StopAfter(at=datetime(9000, 1, 1))
    learn = learner(cbs=[stop])
    learn.fit(1)
    assert stop.reason is None
    stop.at = datetime(2020, 1, 1)
    learn.fit(1)
    assert learn.recorder.last().n_steps == 1 and stop.reason == "since it is 2020-01-01 00:00:00"


@pytest.mark.parametrize(
    "steps, validate, n_steps, validated, cancelled",
    [
        (4, True, 4, 1, ["fit"]),
        (4, False, 4, 0, ["fit"]),
        (5, True, 5, 2, ["train", "fit"]),
        (5, False, 5, 1, ["fit"]),
        (12, True, 12, 3, []),
    ],
)
def test_what_a_stop_completes_and_says_once(steps, validate, n_steps, validated, cancelled, capsys):
    """In three epochs of four batches."""
    seen, stop = [], cbnb.StopAfter(steps=steps, validate=validate)
    learn = learner(cbs=[stop, noting(seen)], valid=True)
    with learn.no_logging():
        learn.fit(3)
    assert learn.recorder.last().n_steps == n_steps and seen.count("after_validate") == validated
    assert [name.removeprefix("after_cancel_") for name in seen if "cancel" in name] == cancelled
    said = [line for line in capsys.readouterr().out.splitlines() if "StopAfter" in line]
    assert len(said) == bool(cancelled)
    if cancelled:
        assert stop.reason == f"after {steps} steps" and said[0].endswith(stop.reason)
        assert ("epoch 0" in said[0]) == (steps == 4), said


@pytest.mark.parametrize("short_valid, n_valid", [(True, 1), (False, 2)])
def test_short_epochs_validate_a_share_or_all(short_valid, n_valid):
    seen = []
    note = cbnb.Callback(after_batch=lambda cb: seen.append(cb.learn.training))
    learner(valid=True, cbs=[cbnb.ShortEpoch(0.5, short_valid), note]).fit(1)
    assert (seen.count(True), seen.count(False)) == (2, n_valid)


def test_whole_validations_may_have_no_length():
    batches = batches_of(16, 16)
    learn = line_learner(dls=cbnb.DataLoaders(batches, cbnb.Batches(lambda: iter(batches)), device="cpu"))
    learn.fit(1, cbs=cbnb.ShortEpoch(0.5, short_valid=False))
    assert learn.recorder.last().n_steps == 1
    with pytest.raises(ValueError, match=r"ShortEpoch\(0.5\) .*but the validation loader has no length: .*short_valid=False"):
        learn.fit(1, cbs=cbnb.ShortEpoch(0.5))


# --- collected batches ---


@pytest.mark.parametrize("train, valid, n", [(True, True, 6), (True, False, 4), (False, True, 2)])
def test_batches_of_one_phase_are_collected(train, valid, n):
    collect = cbnb.callbacks.predictions.CollectData(train, valid)
    learner(valid=True, cbs=[collect]).fit(1)
    assert len(collect.data) == n


def test_only_the_last_batches_of_the_run_itself_are_collected():
    """The losses of a fit are 13, then 0.64 times the one before; a validation in between is another run."""
    collect = cbnb.callbacks.predictions.CollectData(last=2)
    learn = learner(valid=True, cbs=[collect])
    learn.fit(1, cbs=cbnb.Callback(before_validate=lambda cb: cb.learn.validate() if len(collect.data) == 2 else None), valid_every=[])
    assert [item.loss.item() for item in collect.data] == pytest.approx([13 * 0.64**2, 13 * 0.64**3])
    assert [t.grad_fn for item in collect.data for t in (item.pred, item.loss, *item.xb, *item.yb)] == [None] * 8
    assert collect.of is None  # the run is over


def test_a_nested_validation_is_not_collected():
    collect = cbnb.callbacks.predictions.CollectData()
    learner(valid=True, cbs=[collect]).fit(1, cbs=cbnb.Callback(before_step=lambda cb: cb.learn.validate()), valid_every=[])
    assert len(collect.data) == 4


# --- schedulers of torch ---


def test_no_warning_if_a_new_optimizer_goes_on_from_an_epoch():
    learn = learner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(2, start_epoch=1, cbs=cbnb.TorchScheduler(lambda opt: torch_schedulers.StepLR(opt, 2)))
    assert learn.recorder.lrs == pytest.approx([0.1 * 0.1 ** (i // 2) for i in range(4, 8)])


def test_warnings_are_shown_as_before_after_a_schedule():
    before = list(warnings.filters)
    learner().fit(2, start_epoch=1, cbs=cbnb.TorchScheduler(lambda opt: torch_schedulers.StepLR(opt, 2)))
    assert list(warnings.filters) == before


class Makes:
    """Methods and functions of one and two arguments, and what they are called with."""

    def __init__(self):
        self.args = []

    def one(self, *args):
        self.args = args
        return torch_schedulers.StepLR(args[0], 1)

    def with_steps(self, opt, n):
        return self.one(opt, n)

    def with_more(self, opt, gamma=0.5):
        return self.one(opt)

    def with_keyword(self, opt, *, gamma=0.5):
        return self.one(opt)


@pytest.mark.parametrize("name, steps", [("one", []), ("with_steps", [8]), ("with_more", []), ("with_keyword", [])])
@pytest.mark.parametrize("every", ["batch", "epoch"])
def test_only_a_function_of_two_is_told_the_number_of_steps(name, steps, every):
    makes = Makes()
    learner().fit(2, cbs=cbnb.TorchScheduler(getattr(makes, name), every))
    assert list(makes.args[1:]) == ([2] if every == "epoch" and steps else steps)
    wrapped = getattr(makes, name)
    learner().fit(2, cbs=cbnb.TorchScheduler(partial(wrapped, n=7) if steps else partial(wrapped), every))
    assert list(makes.args[1:]) == ([7] if steps else [])


def test_a_plateau_is_not_stepped_for_epochs_that_are_skipped():
    values = []

    class Plateau(torch_schedulers.ReduceLROnPlateau):
        def step(self, metrics):
            values.append(metrics)

    learner(valid=True).fit(3, start_epoch=1, cbs=cbnb.TorchScheduler(Plateau, monitor="valid_loss"))
    assert len(values) == 2


def test_a_scheduler_of_ones_own_may_take_the_value():
    values = []

    class Own:
        def __init__(self, opt):
            pass

        def step(self, metrics):
            values.append(metrics)

    learn = learner(valid=True)
    learn.fit(2, cbs=cbnb.TorchScheduler(Own, monitor="train_loss"))
    assert values == [row["train_loss"] for row in learn.recorder.last().epochs]


def test_two_schedules_of_torch_and_one_of_another_hyper_parameter_go_together():
    """The second must not forget the first rate that the first one has noted."""

    def halve(opt):
        return torch_schedulers.LambdaLR(opt, lambda i: 0.5**i)

    class Second(cbnb.TorchScheduler):
        pass

    learn = learner(opt_func=partial(torch.optim.SGD, momentum=0.9))
    other = Second(lambda opt: torch_schedulers.StepLR(opt, 100))
    off = cbnb.ParamScheduler({"lr": cbnb.SchedNo(7.0, 7.0)})
    off.run = False
    learn.fit(1, cbs=[cbnb.TorchScheduler(halve), other, cbnb.ParamScheduler({"mom": cbnb.SchedNo(0.5, 0.5)}), off])
    assert learn.recorder.lrs == pytest.approx([0.1, 0.05, 0.025, 0.0125]) and set(learn.recorder.hps["mom"]) == {0.5}


def test_the_diagnosis_of_a_nan_loss_gives_no_warning_of_torch(capsys):
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            line_learner(loss_func=lambda pred, y: (pred * float("nan")).sum(), cbs=cbnb.TerminateOnNaN()).fit(1)
    finally:
        torch.set_warn_always(False)
    assert "So it comes from the loss function." in capsys.readouterr().out


def test_a_decorator_may_supply_the_arguments_of_a_scheduler_or_pass_them_on():
    def make(opt, n_steps):
        return torch_schedulers.StepLR(opt, n_steps)

    @wraps(make)
    def supplied(opt):
        return make(opt, 1)

    @wraps(lambda opt, a, b: None)
    def filled(*args):
        return make(*args, 1)

    @wraps(make)
    def passed(*args, **kwargs):
        return make(*args, **kwargs)

    for f in (supplied, filled, passed):
        one = learner(cbs=[cbnb.TorchScheduler(f)])
        one.fit(1)
        assert len(one.recorder.lrs) == 4
