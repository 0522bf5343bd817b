"""Faults of data, models, losses and schedules that raise nothing, each beside its nearest healthy neighbor."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from test_check import BINARY, COUNTS, NUMBERS, Net, learner, mlp, regression
from test_quiet_faults import MANY, NEXT, SUMS, WORDS
from test_recall import loud, scheduled

KINDS = (MANY[:, 0] > 0).long() + (MANY[:, 1] > 0).long()
NOISE = torch.randn(2000, 6, generator=torch.Generator().manual_seed(9))


def split(change=lambda x, y: (x, y), train=lambda x, y: (x, y), y=KINDS, **more):
    """A training and a validation set of 1000 items, of which one is changed."""
    return learner(*train(MANY[:1000], y[:1000]), valid=change(MANY[1000:], y[1000:]), **more)


class Mixed(TensorDataset):
    """Each item is mixed with another one."""

    def __init__(self, share):
        super().__init__(MANY[:1000], KINDS[:1000])
        self.share = share

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return (1 - self.share) * x + self.share * MANY[torch.randint(1000, ())], y


def augmented(share):
    learn = split()
    learn.dls = cbnb.DataLoaders(DataLoader(Mixed(share), 32, shuffle=True), learn.dls.valid, device="cpu")
    return learn


def column(values, width=1):
    """The third column, which tells nothing, replaced."""
    x = MANY.clone()
    x[:, 2 : 2 + width] = values
    return learner(x, KINDS)


def marked(value):
    return column(MANY[:, 2:3].masked_fill(torch.arange(2000)[:, None] % 25 == 0, value))


def outliers(size):
    return learner(MANY, SUMS * torch.where(torch.arange(2000) % 100 == 0, size, 1.0)[:, None], mlp(1), nn.MSELoss())


def shifted_words(targets):
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
    return learner(WORDS, targets, Net(model, lambda p: p.transpose(1, 2)), nn.CrossEntropyLoss(ignore_index=-100))


def tagged(change):
    """A label for each word, from scores of a layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 3))
    x = torch.randint(1, 20, (300, 9), generator=torch.Generator().manual_seed(2))
    return learner(x, x % 3, Net(model, change))


def frozen(start):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(96, 3))
    start(model[0].weight.data)
    model[0].weight.requires_grad_(False)
    return learner(WORDS, WORDS[:, 0] % 3, model)


def pretrained(weight):
    weight.copy_(torch.randn(20, 2) @ torch.randn(2, 16))


def with_layers(*layers, n=3, **more):
    torch.manual_seed(0)
    return learner(model=nn.Sequential(nn.Linear(6, 32), *layers, nn.Linear(32, n)), **more)


def one_unit(n):
    torch.manual_seed(0)
    return learner(model=nn.Sequential(nn.Linear(6, n), nn.ReLU(), nn.Linear(n, 3)))


def by_hand(dim):
    return lambda p, y: -F.log_softmax(p, dim)[torch.arange(len(y)), y].mean()


def divergence(p, y, log):
    return F.kl_div(p.log_softmax(1) if log else p.softmax(1), F.one_hot(y, 3).float(), reduction="batchmean")


def measured(metric):
    learn = learner(y=BINARY, model=mlp(1), loss=nn.BCEWithLogitsLoss())
    learn.metrics = metric
    return learn


def rounded(p, y):
    return (p.round() == y).float().mean()


def over_half(p, y):
    return ((p > 0) == y).float().mean()


def groups(factor):
    def make(params, lr):
        ps = [p for group in params for p in group["params"]]
        return torch.optim.Adam([dict(params=ps[:2], lr=lr * factor), dict(params=ps[2:])], lr=lr)

    return learner(opt_func=make)


PAIRS = torch.randint(0, 40, (1000, 2), generator=torch.Generator().manual_seed(4))


class Ratings(nn.Module):
    """The product of two embeddings."""

    def __init__(self):
        super().__init__()
        self.of = nn.Embedding(40, 8)

    def forward(self, pairs):
        return self.of(pairs).prod(1).sum(1, keepdim=True)


def rated(valid):
    y = PAIRS.sum(1, keepdim=True).sin()
    return learner(PAIRS[:400], y[:400], Ratings(), nn.MSELoss(), valid=(PAIRS[valid], y[valid]))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.conv(x).flatten(1))


def images(dtype):
    return learner((MANY[:, :4].repeat(1, 4).reshape(-1, 1, 4, 4) * 40 + 128).to(dtype), KINDS, Images())


def decayed(opt):
    return learner(opt_func=partial(opt, weight_decay=0.1))


def averaged(decay):
    learn = learner()
    learn.add_cb(cbnb.EMA(decay, warmup=False))
    return learn


def tracked(tracker):
    learn = learner()
    learn.add_cb(tracker)
    return learn


def factor(f):
    return scheduled(lambda opt: LambdaLR(opt, f))


FAST = [
    ("D2", lambda: marked(-999.0), lambda: marked(-3.0)),
    ("D2", lambda: learner(MANY.clamp(0, 1), KINDS), lambda: learner(MANY.clamp(min=0), KINDS)),
    ("D2", lambda: learner(MANY * 300, KINDS), lambda: learner(MANY * 30, KINDS)),
    ("D3", lambda: column(0.5), lambda: column((MANY[:, 2:3] > 0).float())),
    ("D7", lambda: outliers(1000.0), lambda: outliers(3.0)),
    ("D7", lambda: regression(NUMBERS / 1e6), lambda: regression(NUMBERS / 10)),
    ("D12", lambda: split(lambda x, y: (MANY[:1000] + 0.01 * NOISE[:1000], KINDS[:1000])), lambda: split(lambda x, y: (x + 0.01 * NOISE[:1000], y))),
    ("D12", lambda: rated(slice(100, 400)), lambda: rated(slice(400, 700))),
    ("D5", lambda: images(torch.uint8), lambda: images(torch.float32)),
    ("O5", lambda: decayed(torch.optim.Adam), lambda: decayed(torch.optim.AdamW)),
    ("D14", lambda: learner(MANY[KINDS.argsort(stable=True)].index_put((torch.arange(2000), torch.tensor(2)), torch.arange(2000) / 2000), KINDS.sort().values), lambda: column(torch.arange(2000)[:, None] / 2000)),
    ("D14", lambda: shifted_words(WORDS), lambda: shifted_words(NEXT)),
    ("D15", lambda: split(lambda x, y: (x, (y + 1) % 3)), lambda: split()),
    ("D15", lambda: split(lambda x, y: (x.flip(1), y)), lambda: split(lambda x, y: (1.2 * x, y))),
    ("D15", lambda: split(lambda x, y: (x * 0.5 + 1, y)), lambda: split(lambda x, y: (x + 0.1, y))),
    ("D17", lambda: augmented(0.7), lambda: augmented(0.2)),
    ("D20", lambda: learner(MANY[:40, :4].repeat(20, 1), KINDS[:40].repeat(20), nn.Linear(4, 3)), lambda: learner(MANY[:, :4], KINDS, nn.Linear(4, 3))),
    ("D21", lambda: learner(loss=lambda p, y: F.cross_entropy(p[:1], y[:1])), lambda: learner(loss=lambda p, y: F.cross_entropy(p, y, reduction="none").topk(16).values.mean())),
    ("M2", lambda: tagged(lambda p: p.reshape(len(p), 3, -1)), lambda: tagged(lambda p: p.transpose(1, 2))),
    ("M2", lambda: learner(loss=by_hand(0)), lambda: learner(loss=by_hand(1))),
    ("M4", lambda: frozen(lambda w: None), lambda: frozen(pretrained)),
    ("M10", lambda: with_layers(nn.Softmax(1)), lambda: with_layers(nn.ReLU())),
    ("M12", lambda: regression(model=Net(mlp(1), lambda p: p.clamp(0, 1))), lambda: regression(model=Net(mlp(1), lambda p: p.clamp(-9, 9)))),
    ("M12", lambda: regression(model=mlp(1, nn.ReLU, nn.Softplus())), lambda: learner(y=COUNTS, model=mlp(1, nn.ReLU, nn.Softplus()), loss=nn.MSELoss())),
    ("M12", lambda: regression(NUMBERS + 5, mlp(1, nn.ReLU, nn.BatchNorm1d(1, affine=False))), lambda: regression(NUMBERS + 5, mlp(1, nn.ReLU, nn.BatchNorm1d(1)))),
    ("M14", lambda: with_layers(nn.ReLU(), nn.Dropout(0.8)), lambda: with_layers(nn.ReLU(), nn.Dropout(0.5))),
    ("M19", lambda: one_unit(1), lambda: one_unit(3)),
    ("L1", lambda: regression(model=Net(mlp(1), lambda p: p + 60)), lambda: regression(model=Net(mlp(1), lambda p: p + 2))),
    ("L3", lambda: learner(loss=partial(divergence, log=False)), lambda: learner(loss=partial(divergence, log=True))),
    ("L11", lambda: measured(rounded), lambda: measured(over_half)),
    ("O6", lambda: factor(lambda i: 0.0 if i else 1.0), lambda: factor(lambda i: 1.0)),
    ("O6", lambda: factor(lambda i: min(1, i / 10_000)), lambda: factor(lambda i: min(1, (i + 1) / 20))),
    ("O6", lambda: factor(lambda i: 1.08**i), lambda: factor(lambda i: 1.08**-i)),
    ("O6", lambda: averaged(0.99999), lambda: averaged(0.99)),
    ("A9", lambda: tracked(cbnb.EarlyStopping(comp="max")), lambda: tracked(cbnb.EarlyStopping("accuracy", comp="max"))),
    ("A9", lambda: tracked(cbnb.SaveModel("accuracy", comp="min")), lambda: tracked(cbnb.SaveModel("valid_loss", comp="min"))),
    ("O7", lambda: tracked(cbnb.EarlyStopping(min_delta=0.5)), lambda: tracked(cbnb.EarlyStopping(min_delta=0.01))),
]  # fmt: skip
TRAINED = [
    ("O3", lambda: groups(1e-5), lambda: groups(0.1)),
    ("O3", lambda: learner(lr=3e-5), lambda: learner(lr=5e-4)),
    ("O3", lambda: scheduled(lambda opt: OneCycleLR(opt, 3.0, total_steps=48)), lambda: scheduled(lambda opt: OneCycleLR(opt, 0.01, total_steps=48))),
    ("D18", lambda: split(train=lambda x, y: (x, y.roll(7))), lambda: split()),
]  # fmt: skip


@pytest.mark.parametrize("code, wrong, right", FAST)
def test_the_first_batches_show_it(code, wrong, right):
    found, healthy = wrong().check(fast=True), right().check(fast=True)
    assert code in loud(found) and not found.skipped, found
    assert code not in loud(healthy) and not healthy.skipped, healthy


@pytest.mark.parametrize("code, wrong, right", TRAINED)
def test_a_small_training_shows_it(code, wrong, right):
    found, healthy = wrong().check(), right().check()
    assert code in loud(found) and not found.skipped, found
    assert code not in loud(healthy) and not healthy.skipped, healthy
