"""Faults that a look at the program shows: how the items are drawn, how layers follow each other, how long the rate lasts."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import cbnb
from test_check import X, learner

WIDE = 1000 * torch.randn(300, 6, generator=torch.Generator().manual_seed(0)) ** 3
IDS = torch.randint(0, 40, (400, 4), generator=torch.Generator().manual_seed(0))


class Floats(nn.Module):
    def forward(self, x):
        return x.float() / self.by

    def __init__(self, by):
        super().__init__()
        self.by = by


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(X.shape[1], X.shape[1]) for _ in range(4))
        self.out = nn.Linear(X.shape[1], 2)

    def forward(self, x):
        for layer in self.layers:
            x = x + x * layer(x).sigmoid()
        return self.out(x)


def deep(act):
    n = X.shape[1]
    return nn.Sequential(nn.Linear(n, 16), act(), nn.Linear(16, 16), act(), nn.Linear(16, 2))


def repeated(make):
    n = X.shape[1]
    return nn.Sequential(nn.Sequential(*make(lambda: nn.Sequential(nn.Linear(n, n), nn.ReLU()))), nn.Linear(n, 2))


def of_ids(by=1.0):
    return learner(IDS, (IDS.sum(1) > 78).long(), nn.Sequential(Floats(by), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))


def sampled(weights):
    learn = learner()
    data = learn.dls.train.dataset
    sampler = WeightedRandomSampler(weights(data), len(data))
    learn.dls = cbnb.DataLoaders(DataLoader(data, 32, sampler=sampler), learn.dls.valid, device="cpu")
    return learn


def per_label(data):
    return [0.5, 0.5]


def per_item(data):
    y = torch.stack([y for _, y in data])
    return (1 / y.bincount().float())[y].tolist()


def validated_on(n):
    learn = learner()
    x = torch.randn(400, X.shape[1], generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long()
    sets = TensorDataset(x, y), TensorDataset(x[:n] + 9, y[:n])
    learn.dls = cbnb.DataLoaders(DataLoader(sets[0], 32, shuffle=True), DataLoader(sets[1], 32), device="cpu")
    return learn


class Latest(cbnb.Metric):
    """The accuracy of the last batch."""

    def reset(self):
        self.hits, self.n = 0, 0

    def accumulate(self, learn):
        self.reset()
        self.add(learn)

    def add(self, learn):
        self.hits += int((learn.pred.argmax(1) == learn.y).sum())
        self.n += len(learn.y)

    @property
    def value(self):
        return self.hits / self.n if self.n else None


class All(Latest):
    """The accuracy of all batches."""

    def accumulate(self, learn):
        self.add(learn)


def measured(metric):
    learn = learner()
    learn.metrics = metric()
    return learn


CASES = [
    ("M16", lambda: learner(model=deep(nn.Sigmoid)), lambda: learner(model=deep(nn.Tanh))),
    ("M16", lambda: learner(model=deep(nn.Sigmoid)), lambda: learner(model=Gated())),
    (
        "M19",
        lambda: learner(model=repeated(lambda make: [make()] * 3)),
        lambda: learner(model=repeated(lambda make: [make() for _ in range(3)])),
    ),
    ("D5", of_ids, lambda: of_ids(20.0)),
    ("D20", lambda: sampled(per_label), lambda: sampled(per_item)),
    ("A8", lambda: validated_on(8), lambda: validated_on(40)),
    ("L11", lambda: measured(Latest), lambda: measured(All)),
]


@pytest.mark.parametrize("code, wrong, right", CASES)
def test_the_fault_is_named_and_its_neighbor_is_not(code, wrong, right):
    found, healthy = wrong().check(skip="D18"), right().check(skip="D18")
    assert code in [f.code for f in found if f.level != "note"] and not found.skipped, found
    assert code not in [f.code for f in healthy if f.level != "note"] and not healthy.skipped, healthy
