"""The moving average of the weights: its numbers, when it is in the model, and that training does not notice it."""

import copy
import math

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.averaging import EMA, Averaged, move_average, warm_decay
from helpers import CANCELS, RUN_EVENTS, ab, line_learner
from resumed import whole_and_resumed
from test_precision import net_learner, weights


class Follows(cbnb.Callback):
    """Computes the average in the plainest way, and notes the weights of each batch."""

    order = 65

    def __init__(self, decay, warmup=True):
        self.decay, self.warmup = decay, warmup

    def before_fit(self):
        self.state, self.t, self.skipped = copy.deepcopy(self.learn.model.state_dict()), 0, False
        self.starts, self.validated = [], []

    def after_cancel_step(self):
        self.skipped = True

    def after_step(self):
        skipped, self.skipped = self.skipped, False
        if skipped:
            return
        self.t += 1
        d = warm_decay(self.decay, self.t) if self.warmup else self.decay
        for name, value in self.learn.model.state_dict().items():
            if value.is_floating_point():
                self.state[name] = self.state[name] * d + value * (1 - d)

    def before_batch(self):
        (self.starts if self.learn.training else self.validated).append(weights(self.learn))


def floats(state):
    return [v for v in state.values() if v.is_floating_point()]


def same(xs, ys):
    return all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(xs, ys, strict=True))


def equal(xs, ys):
    return all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_the_numbers(decay, warmup):
    learn, follows = net_learner(cbs=EMA(decay, warmup)), Follows(decay, warmup)
    learn.fit(3, cbs=follows)
    assert same(floats(learn.model.state_dict()), floats(follows.state))
    assert learn.ema.n_updates == 18 and learn.ema.means == [] and learn.ema.weights is None


def test_training_does_not_notice():
    plain, learn = net_learner(), net_learner(cbs=EMA(0.9, apply=False))
    one, other = Follows(0.9), Follows(0.9)
    plain.fit(3, cbs=one)
    learn.fit(3, cbs=other)
    assert all(equal(a, b) for a, b in zip(one.starts, other.starts, strict=True))
    assert equal(weights(plain), weights(learn))
    assert not equal(one.validated[-1], other.validated[-1])
    with learn.ema.swapped():
        assert same(floats(learn.model.state_dict()), floats(other.state))
    assert equal(weights(plain), weights(learn))


def test_updates_that_count():
    class Cancels(cbnb.Callback):
        def before_step(self):
            if self.learn.train_iter in (1, 4):
                raise cbnb.CancelStepException()

    def n_updates(*cbs):
        learn = line_learner(n=6, cbs=[EMA(0.5), *cbs])
        learn.fit(1)
        return learn.ema.n_updates

    assert n_updates() == 6 and n_updates(Cancels) == 4
    assert n_updates(cbnb.GradientAccumulation(24)) == 2 and n_updates(cbnb.GradientAccumulation(32)) == 2


def test_validation_in_the_middle_of_an_epoch():
    plain, learn = net_learner(), net_learner(cbs=EMA(0.5, apply=False))
    looks = []

    def look(cb):
        before = weights(cb.learn)
        looks.append(cb.learn.validate()[0])
        assert equal(before, weights(cb.learn))

    plain.fit(2)
    learn.fit(2, cbs=cbnb.Callback(after_step=look))
    assert equal(weights(plain)[:2], weights(learn)[:2])
    learn.fit(1, cbs=cbnb.Callback(after_validate=lambda cb: cb.purpose == "fit" and cb.learn.get_preds()))


class Stop(Exception):
    pass


@pytest.mark.parametrize("event", RUN_EVENTS)
def test_the_model_after_an_error_or_interrupt(event):
    for what in (Stop, KeyboardInterrupt):

        def act(cb, what=what):
            if cb.epoch == 1 or event in ("before_fit", "after_fit", "after_cancel_fit"):
                raise what

        learn = net_learner(cbs=EMA(0.9))
        follows, cbs = Follows(0.9), [cbnb.Callback(**{event: act})]
        if event.startswith("after_cancel"):
            name = event.removeprefix("after_cancel_")
            cancel = CANCELS[name]

            def leave(cb, cancel=cancel):
                if cb.epoch == 1 or event == "after_cancel_fit" and cb.train_iter > 3:
                    raise cancel()

            cbs.append(cbnb.Callback(**{f"before_{name}" if name != "fit" else "before_batch": leave}))
        with pytest.raises((Stop, KeyboardInterrupt)):
            learn.fit(2, cbs=[follows, *cbs])
        assert learn.ema.weights is None and learn.ema.live is None
        late = event == "after_step" or event == "after_cancel_step"
        if not late and hasattr(follows, "state"):  # the update of this batch may or may not be in
            assert same(floats(learn.model.state_dict()), floats(follows.state))
        assert all(math.isfinite(v.sum()) for v in floats(learn.model.state_dict()))


@pytest.mark.parametrize("cancel", ["batch", "validate", "epoch"])
def test_a_cancelled_validation(cancel):
    def leave(cb):
        if not cb.training:
            raise CANCELS[cancel]()

    plain, learn = net_learner(), net_learner(cbs=EMA(0.9, apply=False))
    one, other = Follows(0.9), Follows(0.9)
    plain.fit(3, cbs=[one, cbnb.Callback(before_batch=leave)])
    learn.fit(3, cbs=[other, cbnb.Callback(before_batch=leave)])
    assert all(equal(a, b) for a, b in zip(one.starts, other.starts, strict=True))
    assert equal(weights(plain), weights(learn))


def test_what_is_saved_was_validated(tmp_path):
    learn = net_learner(cbs=[EMA(0.9), cbnb.SaveModel(fname="best")], path=tmp_path, lr=0.1)
    learn.fit(6)
    values = [v[1] for v in learn.recorder.values]
    assert learn.validate()[0] == pytest.approx(min(values), rel=1e-5)
    learn = net_learner(cbs=[EMA(0.9), cbnb.EarlyStopping(patience=2, restore=True)], lr=0.1)
    learn.fit(12)
    assert learn.validate()[0] == pytest.approx(min(v[1] for v in learn.recorder.values), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*has no optimizer state")
def test_each_epoch_and_the_end_are_saved(tmp_path):
    learn = net_learner(cbs=[EMA(0.9), cbnb.SaveModel(fname="each", every_epoch=1)], path=tmp_path)
    learn.fit(2)
    value = learn.recorder.values[0][1]
    learn.load("each_0")
    assert learn.validate()[0] == pytest.approx(value, rel=1e-5)
    learn = net_learner(cbs=[EMA(0.9), cbnb.SaveModel(fname="end", at_end=True)], path=tmp_path)
    learn.fit(1)
    after = weights(learn)
    learn.model[0].weight.data.zero_()
    learn.load("end")
    assert equal(after, weights(learn))


@pytest.mark.filterwarnings("ignore:.*has no optimizer state")
def test_epochs_without_validation_are_saved_as_the_others(tmp_path):
    follows, states = Follows(0.9), []
    keep = cbnb.Callback(after_train=lambda cb: states.append(copy.deepcopy(follows.state)))
    learn = net_learner(cbs=[EMA(0.9), cbnb.SaveModel(fname="each", every_epoch=1)], path=tmp_path)
    learn.fit(3, valid_every=2, cbs=[follows, keep])
    for epoch, state in enumerate(states):
        learn.load(f"each_{epoch}")
        assert same(floats(learn.model.state_dict()), floats(state))


@pytest.mark.parametrize("at", [2, 6, 8])
@pytest.mark.parametrize("apply", [True, False])
def test_resume_is_exact(tmp_path, at, apply):
    def make(where, *more):
        checkpoint = cbnb.Checkpoint(every_steps=2, path=tmp_path / where)
        return net_learner(cbs=[EMA(0.9, apply=apply), cbnb.GradientAccumulation(16), checkpoint, *more], path=tmp_path)

    whole, learn = whole_and_resumed(make, at)
    assert equal(weights(whole), weights(learn)) and whole.ema.n_updates == learn.ema.n_updates
    if not apply:
        with whole.ema.swapped(), learn.ema.swapped():
            assert equal(weights(whole), weights(learn))


def test_lr_find_and_rewind_leave_no_trace():
    learn = net_learner(cbs=EMA(0.9, apply=False))
    before = weights(learn)
    learn.lr_find(num_it=20, show_plot=False)
    assert equal(before, weights(learn)) and learn.ema.n_updates == 0
    learn.fit(1)
    middle, n = weights(learn), learn.ema.n_updates
    means = [m.clone() for m in learn.ema.means]
    learn.fit(1)
    learn.rewind()
    assert equal(middle, weights(learn)) and learn.ema.n_updates == n and equal(means, learn.ema.means)


def test_a_second_fit_begins_anew():
    learn = line_learner(cbs=EMA(0.5, warmup=False))
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.46, 0.69))
    learn.fit(1)
    assert learn.ema.n_updates == 2


def test_removed_in_the_middle_of_a_fit():
    learn = net_learner(cbs=EMA(0.9))
    learn.fit(2, cbs=cbnb.Callback(before_validate=lambda cb: cb.learn.remove_cb(EMA)))
    assert not hasattr(learn, "ema")


def test_settings():
    for decay in (1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="decay"):
            EMA(decay)
    with pytest.raises(ValueError, match="2 EMA callbacks"):
        line_learner(cbs=[EMA(0.5), EMA(0.6)]).fit(1)
    with pytest.raises(ValueError, match="lazy"):
        Averaged([nn.LazyLinear(2)])


def test_a_buffer_that_is_replaced():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(1, 1)
            self.register_buffer("mean", torch.zeros(1))

        def forward(self, x):
            self.mean = self.mean * 0.5 + 0.5 * x.square().mean().reshape(1)  # a new tensor
            return self.line(x[:, None])[:, 0]

    learn, follows = line_learner(model=Counts(), cbs=EMA(0.9), valid=False), Follows(0.9)
    learn.fit(2, cbs=follows)
    assert learn.model.mean.item() == pytest.approx(follows.state["mean"].item())


def test_moving_averages_of_several_types():
    means = [torch.zeros(2), torch.zeros(2, dtype=torch.float64)]
    move_average(means, [torch.ones(2), torch.ones(2, dtype=torch.float64)], 0.75)
    assert [m.tolist() for m in means] == [[0.25, 0.25]] * 2
