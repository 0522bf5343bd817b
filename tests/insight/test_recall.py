"""Faults that the first checks of `learn.check()` missed, each beside its nearest healthy neighbor. The programs are loops of torch."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from cbnb.insight.evidence import Evidence, LossCall
from cbnb.insight.small_trainings import wanted_loss
from test_check import BINARY, CLASSES, NUMBERS, Net, X, learner, mlp, regression

ROWS = torch.randn(512, 6, generator=torch.Generator().manual_seed(4))
KINDS = (ROWS[:, 0] > 0).long() + (ROWS[:, 1] > 0).long()


class Listed(nn.Module):
    """Layers in a list, or in a `ModuleList`."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.layers = nn.Linear(6, 32), kind([nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)])

    def forward(self, x):
        h = self.first(x).relu()
        for layer in self.layers:
            h = layer(h)
        return h


class Body(nn.Module):
    """A body, changed on the way to the head."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.change = nn.Linear(6, 32), nn.Linear(32, 3), change

    def forward(self, x):
        return self.head(self.change(self.body(x)).relu())


class OverItems(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out = nn.GRU(3, 16, batch_first=batch_first), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.rnn(x.reshape(-1, 2, 3))[0][:, -1])


class Augmented(TensorDataset):
    kept = 0.1

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x * (torch.rand(6) < self.kept), y


class Mild(Augmented):
    kept = 0.9


def frozen(trained):
    model = mlp()
    for m in model[:3]:
        m.requires_grad_(False)
    if trained:
        with torch.no_grad():
            model[0].weight.add_(0.1 * torch.randn(32, 6))
            model[2].weight.add_(0.1 * torch.randn(32, 32))
    return learner(model=model)


def normed(change=lambda m: None):
    norm = nn.BatchNorm1d(6)
    change(norm)
    return learner(model=nn.Sequential(norm, mlp()))


class EvalNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.net = nn.BatchNorm1d(6), mlp()

    def forward(self, x):
        self.norm.eval()
        return self.net(self.norm(x))


def scheduled(make, **more):
    learn = learner(ROWS, KINDS)
    learn.add_cb(cbnb.TorchScheduler(make, **more))
    return learn


def measured(metric):
    learn = learner()
    learn.metrics = metric
    return learn


def right(pred, y):
    return (pred.argmax(1) == y).float().mean()


def accuracy(pred, y):
    return (pred.argmax(1) != y).float().mean()


def augmented(cls):
    learn = learner()
    learn.dls = cbnb.DataLoaders(DataLoader(cls(X, CLASSES), 32, shuffle=True), device="cpu")
    return learn


def penalized(factor):
    model = mlp()
    return learner(ROWS, KINDS, model, lambda p, y: F.cross_entropy(p, y) + factor * sum(w.abs().sum() for w in model.parameters()))


def soft(sign):
    def loss(pred, y):
        share = (pred.softmax(1) * F.one_hot(y, 3)).sum(1).mean()
        return 1 - share if sign else share

    return learner(loss=loss)


def words(x):
    model = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 3))
    return learner(x, x[:, 0] % 3, model)


WORDS = torch.randint(1, 20, (300, 5), generator=torch.Generator().manual_seed(2))
TABLE = torch.cat([ROWS, torch.zeros(512, 4)], 1)
COPIES = X[:20].repeat(15, 1)
ORDER = NUMBERS.flatten().argsort()
COUNTS = (NUMBERS + 1).exp().round()
PREPARED = dict(
    D1=(
        lambda: learner(model=Body(lambda h: h + 0 * (h - h.detach()).pow(2).sum(1, keepdim=True).sqrt())),
        lambda: learner(model=Body(lambda h: h + 0 * ((h - h.detach()).pow(2).sum(1, keepdim=True) + 1e-8).sqrt())),
    ),
    D3=(
        lambda: learner(TABLE, KINDS, nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))),
        lambda: learner(torch.cat([ROWS, torch.ones(512, 1)], 1), KINDS, nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 3))),
    ),
    D9=(
        lambda: learner(y=(X[:, :1] > 1).float(), model=mlp(1), loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.004))),
        lambda: learner(y=(X[:, :1] > 1).float(), model=mlp(1), loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0))),
    ),
    D14=(lambda: learner(torch.cat([X[:, :5], CLASSES[:, None].float()], 1)), lambda: learner(torch.cat([X[:, :5], BINARY], 1))),
    D15=(
        lambda: regression(NUMBERS[ORDER[:200]], x=X[ORDER[:200]], valid=(X[ORDER[200:]], NUMBERS[ORDER[200:]])),
        lambda: regression(NUMBERS[:200], x=X[:200], valid=(X[200:], NUMBERS[200:])),
    ),
    D17=(lambda: augmented(Augmented), lambda: augmented(Mild)),
    D20=(lambda: learner(COPIES, CLASSES), lambda: learner(X, CLASSES)),
    M2=(lambda: learner(model=OverItems(False)), lambda: learner(model=OverItems(True))),
    M4=(lambda: learner(model=Body(torch.detach)), lambda: learner(model=Body(torch.clone))),
    M12=(
        lambda: regression(NUMBERS[:, :1].abs().repeat(1, 4), model=mlp(4, nn.ReLU, nn.Linear(4, 4), nn.ReLU())),
        lambda: regression(NUMBERS.abs(), mlp(1, nn.ReLU, nn.Softplus())),
    ),
    M14=(
        lambda: learner(model=mlp(3, nn.ReLU, nn.Dropout(0.2))),
        lambda: learner(model=nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))),
    ),
    M18=(lambda: learner(model=EvalNorm()), normed),
    L5=(
        lambda: learner(y=COUNTS, model=Net(mlp(1), torch.exp), loss=nn.PoissonNLLLoss()),
        lambda: learner(y=COUNTS, model=mlp(1), loss=nn.PoissonNLLLoss()),
    ),
    L6=(
        lambda: learner(y=NUMBERS[:, 0], model=mlp(1), loss=lambda p, y: ((p - y) ** 2).mean()),
        lambda: learner(y=NUMBERS[:, 0], model=mlp(1), loss=lambda p, y: ((p[:, 0] - y) ** 2).mean()),
    ),
    L8=(lambda: soft(False), lambda: soft(True)),
    L11=(lambda: measured(accuracy), lambda: measured([right, cbnb.accuracy])),
    L12=(lambda: penalized(0.1), lambda: penalized(1e-4)),
    O1=(lambda: learner(model=Listed(list)), lambda: learner(model=Listed(nn.ModuleList))),
    O3=(lambda: clipped(1e-5), lambda: clipped(1.0)),
    O6=(
        lambda: scheduled(lambda opt: ExponentialLR(opt, 0.4)),
        lambda: scheduled(lambda opt: CosineAnnealingLR(opt, 100)),
    ),
    O8=(lambda: whole(), lambda: learner(ROWS, KINDS)),
    D18=(lambda: learner(ROWS, KINDS.roll(1)), lambda: learner(ROWS, KINDS)),
)


def clipped(norm):
    learn = learner(opt_func=partial(torch.optim.SGD, momentum=0.9), lr=0.03)
    learn.add_cb(cbnb.GradientClip(norm))
    return learn


def whole():
    learn = learner(ROWS, KINDS)
    learn.dls = cbnb.DataLoaders(DataLoader(TensorDataset(ROWS, KINDS), 512, shuffle=True), device="cpu")
    return learn


def loud(found):
    return [f.code for f in found if f.level != "note"]


@pytest.mark.parametrize("code", PREPARED)
def test_a_fault_is_named(code):
    found = PREPARED[code][0]().check()
    assert code in loud(found) and not found.skipped, found


@pytest.mark.parametrize("code", PREPARED)
def test_its_healthy_neighbor_is_quiet(code):
    found = PREPARED[code][1]().check()
    assert found.ok and not found.skipped, found


def swapped():
    return learner(ROWS, KINDS[torch.randperm(512, generator=torch.Generator().manual_seed(1))])


def easy():
    return learner(X[:200], CLASSES[:200], valid=(X[CLASSES == 0], CLASSES[CLASSES == 0]))


def ninths(y):
    """Labels as shares of the largest one."""
    return learner(y=y, model=mlp(1, nn.ReLU, nn.Sigmoid()), loss=lambda p, y: F.binary_cross_entropy(p[:, 0], y / 2))


def with_groups(rate):
    """Another rate for the first layer."""
    learn = learner()
    learn.opt = torch.optim.Adam([dict(params=learn.model[0].parameters(), lr=rate), dict(params=learn.model[2:].parameters())], lr=3e-3)
    return learn


@pytest.mark.parametrize(
    "code, make",
    [
        ("D3", lambda: words(torch.ones(300, 5).long().where(WORDS > 4, 0))),
        ("D3", lambda: words(WORDS[:1].repeat(300, 1))),
        ("D18", swapped),
        ("D15", easy),
        ("D10", lambda: regression(NUMBERS[ORDER], x=X[ORDER], shuffle=False)),
        ("L5", lambda: ninths(CLASSES)),
        ("O3", lambda: with_groups(0.0)),
        ("O3", lambda: learner(lr=1e-6, loss=lambda p, y: 100 * F.cross_entropy(p, y))),
        ("M4", lambda: frozen(False)),
        ("M18", lambda: normed(lambda m: setattr(m, "momentum", 0.0))),
        ("L8", lambda: learner(y=BINARY, model=mlp(1), loss=nn.BCEWithLogitsLoss(), opt_func=partial(torch.optim.Adam, maximize=True))),
    ],
)
def test_other_forms_of_a_fault_are_named(code, make):
    assert code in loud(make().check())


@pytest.mark.parametrize(
    "make",
    [
        lambda: words(WORDS),
        lambda: frozen(True),
        normed,
        lambda: regression(shuffle=False),
        lambda: with_groups(1e-4),
        lambda: learner(lr=0.03, model=mlp(3, nn.Tanh)),
    ],
)
def test_other_neighbors_are_quiet(make):
    found = make().check()
    assert found.ok and not found.skipped, found


class Remembers(nn.Module):
    """A recurrent model that begins a batch where the last one ended."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out, self.h = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 3), None

    def forward(self, x):
        h, self.h = self.h if self.h is not None and self.h.shape[1] == len(x) else None, None
        out, h = self.rnn(x.reshape(-1, 2, 3), h)
        self.h = h.detach()
        return self.out(out[:, -1])


class Taught(nn.Module):
    """Its teacher begins as a copy."""

    def __init__(self, copied):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.teacher = mlp(), mlp().requires_grad_(False)
        if not copied:
            self.teacher[0].reset_parameters()

    def forward(self, x):
        return self.model(x) + 0 * self.teacher(x)


class Tied(nn.Module):
    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embedding.weight)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(F.layer_norm(self.embedding(x).sum(1), (32,)))


class Pairs(DataLoader):
    """The model takes the target, too."""

    def __iter__(self):
        return ((x, y, y) for x, y in super().__iter__())


class Forced(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = mlp()

    def forward(self, x, y):
        return self.layers(x)


@pytest.mark.parametrize(
    "code, wrong, right",
    [
        ("T5", lambda: learner(model=Net(mlp(), lambda h: F.dropout(h, 0.1))), lambda: learner(model=Remembers())),
        ("M4", lambda: learner(model=Taught(False)), lambda: learner(model=Taught(True))),
        ("L1", lambda: learner(WORDS, WORDS[:, 0], Tied(False)), lambda: learner(WORDS, WORDS[:, 0], Tied(True))),
    ],
)
def test_what_looks_like_a_fault_and_is_meant(code, wrong, right):
    assert code in loud(wrong().check(skip="D18")) and code not in loud(right().check(skip="D18"))


def test_a_loader_that_changes_its_batches_is_asked_for_them():
    train = Pairs(TensorDataset(X, CLASSES), 32, shuffle=True)
    found = cbnb.Learner(cbnb.DataLoaders(train, device="cpu"), Forced(), nn.CrossEntropyLoss()).check()
    assert found.ok and found.about == "1 batch", found


def test_smoothed_labels_leave_a_loss_above_zero():
    """For 4 classes and 0.4, a perfect prediction has the shares 0.7, 0.1, 0.1, 0.1, and a loss of 0.94."""
    e = Evidence(learner(), calls=[LossCall("cross_entropy", torch.zeros(2, 4), torch.zeros(2).long(), dict(label_smoothing=0.4))])
    e.learn.yb = (torch.zeros(2).long(),)
    lowest = -(0.7 * math.log(0.7) + 3 * 0.1 * math.log(0.1))
    assert wanted_loss(e, 2.0) == pytest.approx(lowest + 0.7 * (2 - lowest))


def test_rates_that_change_hardly_anything():
    """Adam moves each weight by the rate, and the weights of the model are about 0.1."""
    assert "O3" in loud(learner(lr=5e-6).check()) and "O3" not in loud(learner(lr=1e-4).check(n_epoch=300))


def test_rare_labels_are_not_taken_for_shuffled_ones():
    """After 60 updates, a model of rare labels is hardly better than a guess."""
    g = torch.Generator().manual_seed(3)
    rare = (ROWS[:, :1] + 0.5 * torch.randn(512, 1, generator=g) > 1.9).float()
    made = lambda y: learner(ROWS, y, mlp(1), nn.BCEWithLogitsLoss(), valid=(ROWS[:256] + 0.01, rare[:256]))
    assert "T3" not in loud(made(rare).check(labels=True)) and "T3" in loud(made(rare.roll(100, 0)).check(labels=True))


def test_labels_of_an_own_loss_are_no_classes():
    """Item numbers as targets of a contrastive loss, whose own targets are places in the batch."""

    def contrast(pred, y):
        return F.cross_entropy(F.normalize(pred) @ F.normalize(pred).T / 0.2, torch.arange(len(y)))

    assert "D11" not in learner(y=torch.arange(300), loss=contrast).check().codes
