"""Faults that raise nothing and leave hardly a trace in one batch, each beside its nearest healthy neighbor: `learn.check()` names one, and is quiet about the other."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR
from torch.utils.data import DataLoader, Subset

import cbnb
from cbnb.insight.small_trainings import _judge_lower, _Trial
from test_check import BINARY, COUNTS, NUMBERS, Net, Steps, X, learner, mlp, regression
from test_recall import loud, scheduled

MANY = torch.randn(2000, 6, generator=torch.Generator().manual_seed(5))
SUMS = MANY[:, :2].sum(1, keepdim=True)
WORDS = torch.randint(1, 20, (300, 6), generator=torch.Generator().manual_seed(2))
NEXT = F.pad(WORDS[:, 1:], (0, 1), value=-100)


def outside_the_sample(value=math.inf, loss=None):
    """A target among 2000 that is not a number: `check` looks at 512 items."""
    y = SUMS.clone()
    y[1234] = value
    return learner(MANY, y, mlp(1), loss or nn.MSELoss())


def finite_only(p, y):
    return F.mse_loss(p[y.isfinite()], y[y.isfinite()])


def part(has_it):
    """Of a dataset with such an item, the half that has it or the other one."""
    learn = outside_the_sample()
    half = Subset(learn.dls.train.dataset, range(1000, 2000) if has_it else range(1000))
    learn.dls = cbnb.DataLoaders(DataLoader(half, 32, shuffle=True), device="cpu")
    return learn


def lost(share):
    """Hardly any items of one of three labels are left."""
    kinds = (MANY[:, 0] > 0).long() + (MANY[:, 1] > 0).long()
    keep = (kinds < 2) | (torch.arange(2000) % round(1 / share) == 0)
    return learner(MANY[keep], kinds[keep])


def few_rows(n):
    return learner(MANY[:n].repeat(500 // n + 1, 2), (MANY[:n, 0] > 0).long().repeat(500 // n + 1), nn.Linear(12, 3))


def tagged(ignored, y=WORDS % 3):
    """A label for each word."""
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 3))
    return learner(WORDS, y, Net(model, lambda p: p.transpose(1, 2)), nn.CrossEntropyLoss(ignore_index=ignored))


def padded():
    """Labels 1 and 2, and 0 for the pads at the end of a text."""
    at_end = torch.arange(6) >= 3 + WORDS[:, :1] % 4
    return tagged(0, (1 + WORDS % 2).masked_fill(at_end, 0))


class Heads(nn.Module):
    """Two heads, of which one is for predictions."""

    def __init__(self, predicts):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.first, self.second, self.predicts = mlp(16), nn.Linear(16, 3), nn.Linear(16, 3), predicts

    def forward(self, x):
        return (self.first if self.training else getattr(self, self.predicts))(self.net(x))


class Table(nn.Module):
    """An embedding, read as numbers or as parameters."""

    def __init__(self, read):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out, self.read = nn.Embedding(20, 8), nn.Linear(48, 3), read

    def forward(self, x):
        return self.out(self.read(self.table.weight)[x].flatten(1))


def several(loss):
    y = torch.cat([X[:, :1] > 0, X[:, 1:2] > 0, X[:, 2:3] > 0], 1).float()
    return learner(y=y, loss=loss)


def measured(metric, **more):
    learn = learner(**more)
    learn.metrics = metric
    return learn


def all_pairs(p, y):
    return ((p > 0) == (y[:, 0] > 0.5)).float().mean()


def each_its_own(p, y):
    return ((p > 0) == (y > 0.5)).float().mean()


def hits(p, y):
    return (p.argmax(1) == y).sum() / 32


def share_of_hits(p, y):
    return (p.argmax(1) == y).sum() / len(y)


def distance(p, y):
    return (p - y).abs().mean()


def rates(n, shape):
    """A schedule that is made for a number of updates; an epoch has 16."""
    return scheduled(lambda opt: LambdaLR(opt, lambda i: shape(i / n)))


def deep(lr):
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (nn.Linear(32, 32), nn.ReLU())]
    return learner(model=nn.Sequential(nn.Linear(6, 32), nn.ReLU(), *layers, nn.Linear(32, 3)), lr=lr)


def breaks(how):
    def forward(p):
        if how == "raises":
            raise RuntimeError("no such expert: 7")
        return p

    return learner(model=Net(mlp(), forward))


binary = partial(measured, y=BINARY, model=mlp(1), loss=nn.BCEWithLogitsLoss())
CASES = [
    ("D1", outside_the_sample, partial(outside_the_sample, loss=finite_only)),
    ("D1", lambda: part(True), lambda: part(False)),
    ("D7", lambda: regression(NUMBERS + 1000), lambda: regression(NUMBERS + 1000, Net(mlp(1), lambda p: p + 1000))),
    ("D9", lambda: lost(0.01), lambda: lost(0.2)),
    ("D20", lambda: few_rows(40), lambda: few_rows(400)),
    ("D21", lambda: tagged(0), lambda: tagged(-100)),
    ("D21", lambda: learner(loss=nn.CrossEntropyLoss(ignore_index=0)), lambda: learner(loss=nn.CrossEntropyLoss(ignore_index=5))),
    ("D21", lambda: tagged(1), padded),
    ("M3", lambda: learner(WORDS, NEXT, Steps(False)), lambda: learner(WORDS, NEXT, Steps(True))),
    ("M3", lambda: learner(WORDS, NEXT, Steps(False)), lambda: learner(WORDS, WORDS.flip(1), Steps(False))),
    ("M4", lambda: regression(model=Net(mlp(1), torch.round)), lambda: regression(model=Net(mlp(1), torch.sinh))),
    ("M5", lambda: learner(model=Heads("second")), lambda: learner(model=Heads("first"))),
    ("M4", lambda: learner(WORDS, WORDS[:, 0] % 3, Table(torch.detach)), lambda: learner(WORDS, WORDS[:, 0] % 3, Table(torch.clone))),
    ("L5", lambda: several(lambda p, y: F.cross_entropy(p, y.argmax(1))), lambda: several(nn.BCEWithLogitsLoss())),
    (
        "L5",
        lambda: learner(y=COUNTS, model=mlp(1), loss=nn.PoissonNLLLoss(log_input=False)),
        lambda: learner(y=COUNTS, model=mlp(1, nn.ReLU, nn.Softplus()), loss=nn.PoissonNLLLoss(log_input=False)),
    ),
    ("L11", lambda: binary(all_pairs), lambda: binary(each_its_own)),
    ("L11", lambda: measured(hits), lambda: measured(share_of_hits)),
    ("L11", lambda: measured(hits), lambda: regression_with(distance)),
    ("O6", lambda: scheduled(lambda opt: ExponentialLR(opt, 0.8)), lambda: scheduled(lambda opt: CosineAnnealingLR(opt, 16))),
    ("O6", lambda: rates(16, lambda t: max(0.0, 1 - t)), lambda: rates(48, lambda t: max(0.0, 1 - t))),
    ("X1", lambda: breaks("raises"), lambda: breaks("passes")),
]


def regression_with(metric):
    """Targets that are all above the predictions of a new model."""
    learn = regression(NUMBERS + 20)
    learn.metrics = metric
    return learn


@pytest.mark.parametrize("code, wrong, right", CASES)
def test_the_fault_is_named_and_its_neighbor_is_not(code, wrong, right):
    found, healthy = (make().check(skip="D18") for make in (wrong, right))
    assert code in loud(found) and not found.skipped, found
    assert code not in loud(healthy) and not healthy.skipped, healthy


def test_a_rate_that_is_too_high_is_compared_with_a_tenth_of_it():
    """At 0.1, Adam moves weights of about 0.1 by a large part of their size, and the loss does not diverge."""
    high, low = (deep(lr).check(skip="D18") for lr in (0.1, 0.02))
    assert [f.measured.endswith("at a tenth of the rate") for f in high if f.code == "O3"] == [True] and "O3" not in low.codes


def test_a_rate_at_which_nothing_is_learned_or_the_loss_rises_first():
    """Beside a trial at a tenth of the rate that ends only a little lower."""

    def judged(own, lower):
        trials = (_Trial([1.0, *losses], 1, [0.05], [0.05], {}) for losses in (own, lower))
        return [f.code for f in _judge_lower(*trials, "lr=1")]

    assert judged([1.1, 0.98], [0.95, 0.85]) == ["O3"] and judged([1.1, 0.93], [0.95, 0.85]) == []
    assert judged([5.0, 0.4], [0.7, 0.35]) == ["O3"] and judged([3.0, 0.4], [0.7, 0.35]) == []
    assert judged([5.0, 0.4], [2.5, 0.35]) == []  # it rises at a tenth of the rate, too


def test_a_rate_that_hardly_changes_new_weights():
    low, usual = (regression(NUMBERS, lr=lr, opt_func=torch.optim.SGD).check() for lr in (0.001, 0.01))
    (found,) = [f for f in low if f.code == "O3"]
    assert found.measured.startswith("30 updates change weights by 0.00") and "O3" not in usual.codes
