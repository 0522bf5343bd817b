"""Faults that are frequent in practice, each beside its nearest healthy neighbor."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from cbnb import Callback, GradientAccumulation, ReduceLROnPlateau
from cbnb.callbacks.interpret import Predictions
from cbnb.history import Run
from cbnb.insight.fit_faults import growing_rate
from cbnb.insight.prediction_faults import mixed_pair, renumbered
from test_check import BINARY, CLASSES, HELD_OUT, NUMBERS, Net, X, learner, mlp, regression

IMAGES = torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
WIDE = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
PIXELS = (IMAGES[:, 0] > 0).long()
MANY = torch.randint(0, 6, (300,), generator=torch.Generator().manual_seed(0))


class Fresh(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.first, self.last, self.made = nn.Linear(6, 16), nn.Linear(16, 3), made

    def forward(self, x):
        x = self.first(x).relu()
        return self.last((nn.Linear(16, 16) if self.made else self.first.weight.new_ones(16).mul)(x))


class Carries(nn.Module):
    def __init__(self, state):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out, self.keep, self.state = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 3), state, None

    def forward(self, x):
        fits = self.keep and self.state is not None and self.state[0].shape[1] == len(x)
        out, state = self.rnn(x[..., None], self.state if fits else None)
        self.state = tuple(s.detach() for s in state)
        return self.out(out[:, -1])


class Flips(TensorDataset):
    def __init__(self, both):
        super().__init__(IMAGES, PIXELS)
        self.both = both

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        flip = torch.rand(()) < 0.5
        return (x.flip(-1) if flip else x), (y.flip(-1) if flip and self.both else y)


def flipping(both):
    learn = learner(IMAGES, PIXELS, nn.Conv2d(1, 2, 3, padding=1))
    learn.dls = cbnb.DataLoaders(DataLoader(Flips(both), 32, shuffle=True), device="cpu")
    return learn


def dropping(always):
    drop = (lambda x: F.dropout(x, 0.3)) if always else nn.Dropout(0.3)
    return learner(model=nn.Sequential(nn.Linear(6, 32), nn.ReLU(), Net(nn.Identity(), drop), nn.Linear(32, 3)))


def twice_dropped(p, n, **more):
    torch.manual_seed(0)
    layers = [m for n_in in (6, 80) for m in (nn.Linear(n_in, 80), nn.ReLU(), nn.Dropout(p))]
    return learner(model=nn.Sequential(*layers, nn.Linear(80, n)), **more)


def convolutions(pool):
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), Net(nn.Identity(), pool), nn.Conv2d(8, 2, 3, padding=1))
    return learner(IMAGES, PIXELS, net)


def waist(n):
    return learner(
        WIDE, MANY, nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, n), nn.ReLU(), nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, 6))
    )


class Gated(nn.Module):
    """A narrow layer beside a wide path, as in squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.first, self.gate, self.last = (
            nn.Linear(40, 32),
            nn.Sequential(nn.Linear(32, 2), nn.ReLU(), nn.Linear(2, 32), nn.Sigmoid()),
            nn.Linear(32, 6),
        )

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(x * self.gate(x))


def with_callbacks(*cbs, **more):
    learn = learner(**more)
    for cb in cbs:
        learn.add_cb(cb)
    return learn


def softmax_of_labels(act):
    y = torch.cat([BINARY, 1 - BINARY, (X[:, 2:3] > 0).float()], 1)
    return learner(y=y, model=Net(mlp(3), act), loss=nn.BCELoss())


def of_one_site(one):
    kept = X[:, 2] < 0 if one else X[:, 2] > -9
    return learner(X[kept], CLASSES[kept], valid=HELD_OUT)


SERIES = torch.randn(600, 8, generator=torch.Generator().manual_seed(5)).cumsum(1)


def of_one_region(one):
    """The training items have sums below the median: no column alone is far off."""
    order = (SERIES[:400] - SERIES[:400].mean(0)).sum(1).argsort()[:200] if one else torch.arange(200)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    y = (SERIES[:, 0] > 0).long()
    return learner(SERIES[order], y[order], net, valid=(SERIES[400:], y[400:]))


def of_patients(both):
    """Several rows of each patient, alike but for noise, which is larger than the values of the last columns, as at the border of an image."""
    torch_rng = torch.Generator().manual_seed(6)
    x = torch.cat([torch.randn(50, 8, generator=torch_rng), torch.zeros(50, 12)], 1).repeat(10, 1)
    x, patient = x + 0.1 * torch.randn(500, 20, generator=torch_rng), torch.arange(500) % 50
    order = torch.randperm(500, generator=torch_rng)
    held = torch.arange(500) % 5 == 0 if both else patient[order] < 10
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    train, valid = order[~held], order[held]
    return learner(x[train], y[train], net, valid=(x[valid], y[valid]))


def with_metric(metric):
    learn = learner(y=NUMBERS, model=mlp(1), loss=nn.MSELoss())
    return cbnb.Learner(learn.dls, learn.model, learn.loss_func, lr=3e-3, metrics=metric)


def mean_error(out, y):
    return (out - y).mean()


def difference(out, y):
    return (out - y).mean()


def mean_absolute_error(out, y):
    return (out - y).abs().mean()


CASES = {
    "a layer made in forward": ("O1", lambda: learner(model=Fresh(True)), lambda: learner(model=Fresh(False))),
    "a state of other items": ("M2", lambda: learner(model=Carries(True)), lambda: learner(model=Carries(False))),
    "inputs that are flipped without their targets": ("D17", lambda: flipping(False), lambda: flipping(True)),
    "dropout in evaluation": ("M14", lambda: dropping(True), lambda: dropping(False)),
    "dropout of numbers": (
        "M14",
        lambda: twice_dropped(0.5, 1, y=NUMBERS, loss=nn.MSELoss()),
        lambda: twice_dropped(0.1, 1, y=NUMBERS, loss=nn.MSELoss()),
    ),
    "dropout of classes": (
        "M14",
        lambda: twice_dropped(0.5, 1, y=NUMBERS, loss=nn.MSELoss()),
        lambda: twice_dropped(0.5, 3),
    ),
    "pooled too early": (
        "M20",
        lambda: convolutions(lambda x: x.mean((2, 3), keepdim=True).expand_as(x)),
        lambda: convolutions(lambda x: x),
    ),
    "a waist": ("M19", lambda: waist(2), lambda: waist(16)),
    "a narrow gate": ("M19", lambda: waist(1), lambda: learner(WIDE, MANY, Gated())),
    "channels of signals": (
        "D6",
        lambda: learner(IMAGES[:, 0, :, :3], CLASSES, nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(24, 3))),
        lambda: learner(IMAGES[:, 0, :3], CLASSES, nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(), nn.Linear(24, 3))),
    ),
    "gradients of an epoch": ("O8", lambda: with_callbacks(GradientAccumulation(4096)), lambda: with_callbacks(GradientAccumulation(64))),
    "a plateau of a growing accuracy": (
        "O6",
        lambda: with_callbacks(ReduceLROnPlateau("accuracy", comp="min")),
        lambda: with_callbacks(ReduceLROnPlateau("accuracy")),
    ),
    "a softmax of labels": ("L2", lambda: softmax_of_labels(lambda o: o.softmax(1)), lambda: softmax_of_labels(torch.sigmoid)),
    "no activation": (
        "M11",
        lambda: learner(IMAGES, CLASSES, nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 3))),
        lambda: learner(IMAGES, CLASSES, nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))),
    ),
    "weights of one class": (
        "D9",
        lambda: learner(loss=nn.CrossEntropyLoss(weight=torch.tensor([40.0, 1.0, 1.0]))),
        lambda: learner(loss=nn.CrossEntropyLoss(weight=torch.tensor([3.0, 1.0, 1.0]))),
    ),
    "items of one region": ("D15", lambda: of_one_region(True), lambda: of_one_region(False)),
    "patients in both sets": ("D12", lambda: of_patients(True), lambda: of_patients(False)),
    "patients apart": ("D15", lambda: of_one_region(True), lambda: of_patients(False)),
    "errors that cancel": ("L11", lambda: with_metric(difference), lambda: with_metric(mean_absolute_error)),
    "values beyond those of training": ("D15", lambda: of_one_site(True), lambda: of_one_site(False)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_fault_and_its_healthy_neighbor(name):
    code, faulty, healthy = CASES[name]
    found, other = faulty().check(), healthy().check()
    assert code in [f.code for f in found if f.level != "note"] and not found.skipped, found
    assert code not in [f.code for f in other if f.level != "note"] and not other.skipped, other


def predicted(said, y, n):
    p = F.one_hot(said, n).float() * 0.9 + 0.1 / n
    return Predictions("classes", p / p.sum(1, keepdim=True), y, None, "", None, [str(i) for i in range(n)])


def test_classes_in_another_order():
    y = torch.arange(200) % 4
    (found,) = renumbered(predicted((y + 1) % 4, y, 4))
    assert found.code == "D15" and found.measured.startswith("0% right, and 100%")
    assert not list(renumbered(predicted(y, y, 4)))
    assert not list(renumbered(predicted(torch.zeros_like(y), y, 4)))  # a guess


def test_two_classes_that_are_mixed_up():
    y = torch.arange(240) % 4
    mixed = torch.where(y < 2, torch.arange(240) // 4 % 2, y)
    (found,) = mixed_pair(predicted(mixed, y, 4))
    assert (found.code, found.where) == ("A7", "classes 0 and 1")
    assert not list(mixed_pair(predicted(y, y, 4)))
    assert not list(mixed_pair(predicted(torch.arange(240) // 4 % 4, y, 4)))  # nothing is told apart


def with_rates(rates):
    run = Run(0, ["epoch"], 1)
    run.hypers["lr"] = rates
    for _ in rates:
        run.series.append(1.0)
    return run


def test_a_rate_that_grows_to_the_end():
    assert [f.code for f in growing_rate(with_rates([0.01 * 1.05**i for i in range(100)]))] == ["O6"]
    one_cycle = [*(0.001 * 1.1**i for i in range(30)), *(0.02 * 0.95**i for i in range(70))]
    assert not list(growing_rate(with_rates(one_cycle))) and not list(growing_rate(with_rates([0.1] * 100)))


class FreezesLater(Callback):
    def __init__(self, turns):
        self.turns = turns

    def before_epoch(self):
        if self.epoch:
            self.learn.model[0].requires_grad_(self.turns and self.epoch % 2 == 0)


@pytest.mark.filterwarnings("ignore")
def test_layers_frozen_in_the_fit():
    codes = []
    for turns in (False, True):
        learn = learner()
        learn.add_cb(FreezesLater(turns))
        with learn.no_bar(), learn.no_logging():
            learn.fit(4)
        codes.append(learn.findings.codes)
    assert codes == [["R7"], []]


class Ends(Callback):
    run_valid = False

    def after_batch(self):
        if self.iter == 2:
            raise cbnb.CancelTrainException


@pytest.mark.filterwarnings("ignore")
def test_a_break_in_the_only_epoch():
    learn = learner(valid=(X, CLASSES))
    learn.add_cb(Ends())
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
    assert "O7" in learn.findings.codes


def test_the_neighbors_of_a_regression_are_quiet():
    assert regression(NUMBERS).check().ok


def of_groups(noise):
    """Twenty rows of each of 30 patients; the last six are held out."""
    torch_rng = torch.Generator().manual_seed(0)
    x = torch.randn(30, 12, generator=torch_rng).repeat_interleave(20, 0) + noise * torch.randn(600, 12, generator=torch_rng)
    y, order = (x[:, 0] > 0).long(), torch.randperm(480, generator=torch_rng)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))
    return learner(x[order], y[order], net, valid=(x[480:], y[480:]))


def test_sets_that_are_told_apart():
    """Whole groups held out: a note, without the advice to split at random, which would be a leak."""
    for made, said in ((lambda: of_groups(1.0), True), (lambda: of_patients(False), False)):
        found = [f for f in made().check(fast=True) if "tells them from those of training" in f.measured]
        assert [f.level for f in found] == ["note"] * said, found
        assert not any("split the items at random" in f.fix for f in found)


@pytest.mark.parametrize("metric, level", [(mean_error, "note"), (difference, "warning")])
def test_errors_that_cancel(metric, level):
    found = [f for f in with_metric(metric).check() if f.code == "L11"]
    assert [f.level for f in found] == [level] and "cancel" in found[0].why, found


def money_and_shares(torch_rng, n):
    money = 1000 * torch.randn(n, 3, generator=torch_rng).exp() * (torch.rand(n, 3, generator=torch_rng) < 0.2)
    return torch.cat([torch.rand(n, 5, generator=torch_rng), money], 1)


def letters(torch_rng, n):
    return nn.functional.one_hot(torch.randint(0, 4, (n, 12), generator=torch_rng), 4).float()


@pytest.mark.parametrize("made", [money_and_shares, letters, lambda torch_rng, n: letters(torch_rng, n).flatten(1)])
def test_zeros_and_letters_are_no_near_copies(made):
    x = made(torch.Generator().manual_seed(0), 800)
    net = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 8), nn.ReLU(), nn.Linear(8, 2))
    y = torch.arange(800) % 2
    assert "D12" not in learner(x[:600], y[:600], net, valid=(x[600:], y[600:])).check(fast=True).codes
