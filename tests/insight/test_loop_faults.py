"""What the batches of a fit do beside the model: each finding, its nearest healthy neighbor, and nothing left behind."""

import pytest
import torch
from torch import nn

from cbnb import (
    Callback,
    CancelBatchException,
    CancelStepException,
    CancelTrainException,
    DataLoaders,
    GradientAccumulation,
    Learner,
    MixUp,
    ShortEpoch,
    Step,
)
from cbnb.insight.loop_faults import has_modes
from cbnb.toy import wave_learner


class Own(Callback):
    run_valid, run_in = False, ("fit",)


class Forgets(Step):
    def zero_grad(self, learn):
        pass


class ZeroesBefore(Forgets):
    def backward(self, learn):
        learn.opt.zero_grad()
        super().backward(learn)


class ZeroesInPlace(Step):
    def zero_grad(self, learn):
        learn.opt.zero_grad(set_to_none=False)


class Skips(Own):
    def __init__(self, which, event):
        self.which = which
        setattr(self, event, self.skip)

    def skip(self):
        if self.which(self.learn.train_iter):
            raise CancelBatchException


class UpdatesItself(Own):
    def before_step(self):
        self.learn.opt.step()
        raise CancelStepException


class Ends(Own):
    def __init__(self, share):
        self.share = share

    def after_batch(self):
        if self.iter + 1 >= self.share * self.n_iter:
            raise CancelTrainException


class Anew(Own):
    def __init__(self, every):
        self.every = every

    def before_batch(self):
        if self.train_iter % self.every == 0:
            self.learn.create_opt()


class Mixes(Own):
    def __init__(self, targets):
        self.targets = targets

    def before_batch(self):
        order = torch.arange(len(self.x)).roll(1)
        self.learn.xb = (0.6 * self.x + 0.4 * self.x[order],)
        if self.targets:
            self.learn.yb = (0.6 * self.y + 0.4 * self.y[order],)


class Mode(Own):
    def before_train(self):
        self.learn.model.eval()

    def before_validate(self):
        self.learn.model.train()


class Evaluates(Own):
    def before_batch(self):
        self.learn.model.train()

    def after_batch(self):
        self.learn.model.eval()  # and computes something there


class GoesBack(Own):
    def __init__(self, to):
        self.to = to

    def before_epoch(self):
        if self.epoch == self.to:
            self.state = {k: v.clone() for k, v in self.learn.model.state_dict().items()}
        elif self.epoch > self.to:
            self.learn.model.load_state_dict(self.state)


def dropping(p=0.1):
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(p), nn.Linear(16, 1))


def found(learn=None, *, n=3, **kwargs):
    learn = learn or wave_learner(lr=0.003, **kwargs)
    with learn.no_bar(), learn.no_logging(), torch.random.fork_rng():
        learn.fit(n)
    assert not any(p._backward_hooks for p in learn.model.parameters())
    return [(f.code, f.where) for f in learn.findings]


FAULTS = {
    "gradients are never zeroed": (dict(train_step=Forgets()), ("R4", "the gradients")),
    "updates that end": (dict(cbs=Skips(lambda i: i > 3, "after_loss")), ("O7", "the updates")),
    "no update from the first batch on": (dict(cbs=Skips(lambda i: True, "after_loss")), ("R7", "all parameters")),
    "gradients that are dropped": (dict(cbs=Skips(lambda i: i % 4, "after_loss")), ("O7", "the updates")),
    "epochs cut short": (dict(cbs=Ends(0.3)), ("O7", "the epochs")),
    "an optimizer for each batch": (dict(cbs=Anew(1)), ("O2", "learn.opt")),
    "weights that go back": (dict(cbs=GoesBack(0)), ("R3", "the weights")),
    "the wrong modes": (dict(cbs=Mode(), model=dropping()), ("R13", "the model")),
}
HEALTHY = {
    "gradients zeroed before the backward pass": dict(train_step=ZeroesBefore()),
    "gradients zeroed in place": dict(train_step=ZeroesInPlace()),
    "some batches skipped": dict(cbs=Skips(lambda i: i % 4 == 0, "after_loss")),
    "batches left out before they have a loss": dict(cbs=Skips(lambda i: i % 4, "after_pred")),
    "accumulation": dict(cbs=GradientAccumulation(400)),
    "a callback that updates": dict(cbs=UpdatesItself()),
    "epochs that end a little early": dict(cbs=Ends(0.8)),
    "epochs that are short on purpose": dict(cbs=ShortEpoch(0.3)),
    "an optimizer made once more": dict(cbs=Anew(50)),
    "weights of an earlier epoch": dict(cbs=GoesBack(1)),
    "a model that is evaluated after each batch": dict(cbs=Evaluates(), model=dropping()),
    "modes without effect": dict(cbs=Mode(), model=dropping(0.0)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name):
    kwargs, expected = FAULTS[name]
    assert expected in found(**kwargs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HEALTHY)
def test_nearest_healthy_neighbor(name):
    assert found(**HEALTHY[name]) == []


def of_columns(*cbs):
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    data = torch.utils.data.TensorDataset(x, x @ torch.randn(6, 1))
    dls = DataLoaders.from_datasets(data, bs=40, num_workers=0)
    return Learner(dls, nn.Linear(6, 1), nn.MSELoss(), lr=0.01, cbs=cbs)


def test_inputs_mixed_without_their_targets():
    assert found(of_columns(Mixes(False))) == [("D17", "Mixes")]
    assert found(of_columns(Mixes(True))) == []
    assert found(of_columns(MixUp())) == []


def test_modes_of_layers():
    assert has_modes(nn.LSTM(2, 2, 2, dropout=0.1)) and not has_modes(nn.LSTM(2, 2))
    assert has_modes(nn.BatchNorm1d(2)) and not has_modes(nn.BatchNorm1d(2, track_running_stats=False))
    assert has_modes(nn.MultiheadAttention(4, 2, dropout=0.1)) and not has_modes(nn.MultiheadAttention(4, 2))
    assert has_modes(nn.Sequential(CallsDropout())) and not has_modes(Plain())


class Plain(nn.Module):
    def forward(self, x):
        return 2 * x


class CallsDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


def test_a_model_without_parameters_to_train_and_a_fit_of_steps():
    learn = wave_learner(lr=0.003)
    with learn.no_bar(), learn.no_logging():
        learn.fit("30 steps")
    assert learn.findings.codes == []
