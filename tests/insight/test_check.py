"""`learn.check()`: each fault is found where it is, its nearest healthy neighbor is not, and the learner stays as it was.

The programs are loops of torch with one fault each. `CASES` has, for a code, a training with the fault and healthy ones that look like it.
"""

import copy
import json
import math
import re
from datetime import date, timedelta
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import cbnb
from cbnb.callbacks.function_steps import UpdateStep
from cbnb.callbacks.schedulers import TorchScheduler
from cbnb.insight.findings import FAULTS, Finding, Findings
from cbnb.insight.texts import TEXTS
from cbnb.step import Step
from cbnb.toy import digits_learner
from helpers import line_learner
from left_behind import everything, same

X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
NUMBERS = X[:, :2].sum(1, keepdim=True) + 0.1 * torch.randn(300, 1, generator=torch.Generator().manual_seed(1))
CLASSES = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
COUNTS = torch.poisson(X[:, :1].exp(), generator=torch.Generator().manual_seed(2)).clamp(max=4)
BINARY = (X[:, :1] + X[:, 1:2] > 0).float()
HELD = torch.randn(300, 6, generator=torch.Generator().manual_seed(3))
HELD_OUT = HELD, (HELD[:, 0] > 0).long() + (HELD[:, 1] > 0).long()


def mlp(n=3, act=nn.ReLU, *more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, n), *more)


def learner(x=X, y=CLASSES, model=None, loss=None, valid=None, lr=3e-3, opt_func=torch.optim.Adam, **options):
    options = dict(shuffle=True) | options
    train = DataLoader(TensorDataset(x, y), 32, **options)
    held = None if valid is None else DataLoader(TensorDataset(*valid), 64)
    return cbnb.Learner(
        cbnb.DataLoaders(train, held, device="cpu"),
        mlp() if model is None else model,
        loss or nn.CrossEntropyLoss(),
        lr=lr,
        opt_func=opt_func,
    )


def regression(y=NUMBERS, model=None, **more):
    return learner(y=y, model=mlp(1) if model is None else model, loss=nn.MSELoss(), **more)


class StartsLate(torch.optim.Adam):
    """Adam whose first updates change nothing, as those of RAdam and SOAP."""

    n = 0

    def step(self, closure=None):
        self.n += 1
        return super().step(closure) if self.n > 5 else None


def decoupled(params, lr):
    """An optimizer that is not called AdamW, and decays weights as it does."""
    opt = type("Decays", (torch.optim.AdamW,), {})(params, lr, weight_decay=0.1)
    for group in opt.param_groups:
        group["weight_decouple"] = True
    return opt


def zero_last(model):
    for p in model[-1].parameters():
        p.zero_()


class CosineHead(nn.Module):
    """Cross entropy of cosines, with a scale and a margin, as in ArcFace."""

    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))

    def forward(self, pred, target):
        cosines = F.linear(F.normalize(pred), F.normalize(self.centers))
        return F.cross_entropy(30 * (cosines - 0.3 * F.one_hot(target, 3)), target)


class Duel:
    """The training step of a generator and a critic."""

    def __init__(self):
        self.made, self.critic = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        self.opts = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (self.made, self.critic)]

    def train(self, x, y):
        made = self.made(x)
        loss = (self.critic(made) - self.critic(x)).mean()
        loss.backward()
        for opt in self.opts:
            opt.step()
            opt.zero_grad()
        return loss, made


class Halves:
    """The training step of one network whose last layer has an optimizer of its own."""

    def __init__(self, of_body=True):
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 3))
        self.opts = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (self.net[:3], self.net[3])[1 - of_body :]]

    def train(self, x, y):
        pred = self.net(x)
        loss = F.cross_entropy(pred, y)
        loss.backward()
        for opt in self.opts:
            opt.step()
            opt.zero_grad()
        return loss, pred


def duel():
    step = Duel()
    nets = nn.ModuleDict(dict(made=step.made, critic=step.critic))
    return cbnb.Learner(learner().dls, nets, train_step=UpdateStep(step.train))


def rare():
    """43 of 1,500 items belong to class 1."""
    torch.manual_seed(1)
    x = torch.randn(2000, 8)
    y = (x[:, 0] + x[:, 1] * x[:, 2] / 2 + torch.randn(2000) / 2 > 2.3).long()
    return learner(x[:1500], y[:1500], nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), valid=(x[1500:], y[1500:]))


def with_nan():
    x = X.clone()
    x[7, 2] = float("nan")
    return learner(x)


def changed(model, change):
    with torch.no_grad():
        change(model)
    return model


class Net(nn.Module):
    """A network and a function of its output."""

    def __init__(self, net, f):
        super().__init__()
        self.net, self.f = net, f

    def forward(self, x):
        return self.f(self.net(x))


class Residual(nn.Module):
    """A pre-norm block whose last layer begins with zeros."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.act, self.last = nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        return x + self.last(self.act(self.first(self.norm(x))))


class Tied(nn.Module):
    """A bag of words whose output layer is the embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.hidden = nn.Embedding(20, 16), nn.Linear(16, 16)

    def forward(self, x):
        return F.linear(self.hidden(self.embedding(x).mean(1)).tanh(), self.embedding.weight)


class Sign(nn.Module):
    """A model that sees one bit of an item."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 3)

    def forward(self, x):
        return self.out(x[:, :1])


class Jitter(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.1 * torch.randn(6), y


def tokens():
    x = torch.randint(0, 20, (300, 5), generator=torch.Generator().manual_seed(2))
    return learner(x, x[:, 0], Tied())


def augmented(transformed):
    learn = learner()
    learn.dls = cbnb.DataLoaders(learn.dls.train, DataLoader((Jitter if transformed else TensorDataset)(*HELD_OUT), 64))
    return learn


def with_opt(model, params):
    learn = learner(model=model)
    learn.opt = torch.optim.Adam(params, lr=3e-3)
    return learn


def seq_first():
    """A recurrent network whose items come second: what looks like mixing is its work."""

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn, self.out = nn.GRU(3, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.out(self.rnn(x.reshape(-1, 2, 3).transpose(0, 1))[0][1])

    return learner(model=Last())


SORTED = CLASSES.argsort()
SPARSE = (X > 1.2).float()
HOT = F.one_hot(X.argmax(1), 6).float()
PREPARED = dict(
    D1=(with_nan, [lambda: learner()]),
    D2=(
        lambda: learner(X * 300 + 4000),
        [lambda: learner(SPARSE), lambda: learner(HOT), lambda: learner(5 * X), lambda: learner(0.1 * X)],
    ),
    D3=(lambda: learner(X[:1].repeat(300, 1)), [lambda: learner(HOT)]),
    D4=(lambda: learner(X * torch.tensor([1, 1, 1, 1, 1, 1e6])), [lambda: learner(torch.cat([X[:, :5], SPARSE[:, :1] * 5000], 1) / 50)]),
    D5=(lambda: learner((X * 10).long()), [tokens]),
    D6=(
        lambda: learner(torch.randn(300, 8, 8, 3), model=nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))),
        [lambda: learner(torch.randn(300, 3, 8, 8), model=nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)))],
    ),
    D7=(lambda: regression(1000 * NUMBERS + 5000), [lambda: regression(1000 + 100 * NUMBERS, Net(mlp(1), lambda p: 1000 + 100 * p))]),
    D8=(lambda: learner(y=torch.ones(300).long()), [lambda: learner()]),
    D9=(lambda: learner(y=(X[:, 0] > 2).long()), [lambda: learner()]),
    D10=(
        lambda: learner(X[SORTED], CLASSES[SORTED], shuffle=False),
        [lambda: learner(X[SORTED], CLASSES[SORTED]), lambda: learner(shuffle=False)],
    ),
    D11=(lambda: learner(y=CLASSES + 1), [lambda: learner(y=CLASSES.where(X[:, 0] < 1, -100))]),
    D12=(lambda: learner(valid=(X[:100], CLASSES[:100])), [lambda: learner(X[:200], CLASSES[:200], valid=(X[200:], CLASSES[200:]))]),
    D15=(
        lambda: learner(X[:200], CLASSES[:200], valid=(X[200:] * 20 + 30, CLASSES[200:])),
        [lambda: learner(X[:200], CLASSES[:200], valid=(X[200:], CLASSES[200:]))],
    ),
    D16=(lambda: augmented(True), [lambda: augmented(False)]),
    D19=(
        lambda: learner(X[:257], CLASSES[:257], nn.Sequential(nn.BatchNorm1d(6), mlp())),
        [
            lambda: learner(X[:257], CLASSES[:257], nn.Sequential(nn.BatchNorm1d(6), mlp()), drop_last=True),
            lambda: learner(X[:257], CLASSES[:257]),
            lambda: images(28, 257),
        ],
    ),
    D20=(lambda: learner(X[:20].repeat(15, 2), CLASSES[:20].repeat(15), nn.Linear(12, 3)), [lambda: learner(SPARSE)]),
    D21=(lambda: learner(y=torch.where(torch.arange(300) % 20 == 0, CLASSES, -100)), [lambda: learner(y=CLASSES.where(X[:, 0] < 1, -100))]),
    M1=(
        lambda: learner(model=Net(mlp(), lambda p: p * 0)),
        [lambda: learner(0.1 * X), lambda: learner(model=changed(mlp(), zero_last)), line_learner],
    ),
    M2=(
        lambda: learner(model=Net(mlp(), lambda p: 10 * p.softmax(0))),
        [seq_first, lambda: learner(model=nn.Sequential(nn.BatchNorm1d(6), mlp()))],
    ),
    M4=(lambda: learner(model=Net(mlp(), torch.Tensor.detach)), [lambda: learner()]),
    M7=(
        lambda: learner(model=changed(mlp(), lambda m: [nn.init.constant_(m[i].weight, 0.1) for i in (0, 2)])),
        [
            lambda: learner(model=nn.Sequential(nn.Linear(6, 32), Residual(), Residual(), nn.Linear(32, 3))),
            lambda: learner(model=changed(mlp(), lambda m: nn.init.constant_(m[0].weight, 0.1))),  # the next layer tells the units apart
        ],
    ),
    M8=(lambda: learner(model=changed(mlp(), lambda m: m[2].weight.mul_(60))), [lambda: learner(0.1 * X)]),
    M9=(lambda: learner(model=changed(mlp(), lambda m: m[0].bias.sub_(40))), [lambda: learner(SPARSE)]),
    M10=(lambda: learner(model=changed(mlp(3, nn.Tanh), lambda m: m[2].weight.mul_(100))), [lambda: learner(model=mlp(3, nn.Tanh))]),
    M11=(
        lambda: learner(model=mlp(3, nn.Identity)),
        [
            lambda: learner(
                model=nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4), nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
            ),
            lambda: learner(model=nn.Sequential(nn.Linear(6, 32), Residual(), nn.Linear(32, 3))),
            tokens,
        ],
    ),
    M12=(lambda: learner(model=mlp(3, nn.ReLU, nn.ReLU())), [lambda: regression(NUMBERS.abs(), mlp(1, nn.ReLU, nn.Softplus()))]),
    M13=(lambda: learner(model=mlp(6)), [lambda: learner()]),
    M14=(
        lambda: learner(model=mlp(3, nn.ReLU, nn.Dropout(0.95))),
        [lambda: learner(model=nn.Sequential(mlp(32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 3)))],
    ),
    M16=(
        lambda: learner(
            model=nn.Sequential(nn.Linear(6, 8), *[m for _ in range(8) for m in (nn.Sigmoid(), nn.Linear(8, 8))], nn.Linear(8, 3))
        ),
        [lambda: learner(model=mlp(3, nn.Tanh))],
    ),
    M17=(lambda: regression(1e5 * NUMBERS), [lambda: regression()]),
    L1=(
        lambda: learner(model=changed(mlp(), lambda m: m[4].weight.mul_(100))),
        [lambda: learner(), tokens, lambda: learner(model=mlp(16), loss=CosineHead())],
    ),
    L2=(
        lambda: learner(model=mlp(3, nn.ReLU, nn.Softmax(1))),
        [
            lambda: learner(model=mlp(3, nn.ReLU, nn.LogSoftmax(1)), loss=nn.NLLLoss()),
            lambda: learner(y=BINARY, model=mlp(1, nn.ReLU, nn.Sigmoid()), loss=nn.BCELoss()),
            lambda: learner(y=BINARY, model=mlp(1), loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor([5.0]))),
        ],
    ),
    L3=(lambda: learner(loss=nn.NLLLoss()), [lambda: learner(model=mlp(3, nn.ReLU, nn.LogSoftmax(1)), loss=nn.NLLLoss())]),
    L4=(lambda: learner(y=torch.zeros(300).long(), model=mlp(1)), [lambda: learner(y=BINARY, model=mlp(1), loss=nn.BCEWithLogitsLoss())]),
    L5=(
        lambda: learner(loss=lambda p, y: F.mse_loss(p[:, 0], y.float())),
        [lambda: regression(1 + (2 * NUMBERS).round().clamp(0, 4)), lambda: learner(y=COUNTS, model=mlp(1), loss=nn.PoissonNLLLoss())],
    ),
    L6=(lambda: regression(NUMBERS[:, 0]), [lambda: regression()]),
    L7=(
        lambda: learner(loss=nn.CrossEntropyLoss(reduction="sum")),
        [lambda: learner(loss=lambda p, y: F.cross_entropy(p, y, reduction="sum") / len(y))],
    ),
    L8=(lambda: learner(loss=lambda p, y: -F.cross_entropy(p, y)), [lambda: learner()]),
    O1=(lambda: with_opt(net := mlp(), net[:3].parameters()), [lambda: with_opt(net := mlp(), net.parameters())]),
    O2=(lambda: with_opt(mlp(), mlp().parameters()), [lambda: with_opt(net := mlp(), net.parameters())]),
    O3=(lambda: learner(lr=30.0), [lambda: learner(lr=0.5, opt_func=torch.optim.SGD), lambda: learner(opt_func=StartsLate)]),
    O4=(lambda: learner(opt_func=lambda p, lr: torch.optim.Adam(p, lr, eps=1.0)), [lambda: learner()]),
    O5=(
        lambda: learner(opt_func=lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=30.0)),
        [lambda: learner(opt_func=torch.optim.AdamW), lambda: learner(opt_func=decoupled)],
    ),
    O8=(lambda: learner(X[:40], CLASSES[:40]), [lambda: learner(), lambda: learner(X[:100], CLASSES[:100])]),
    O9=(lambda: learner(X.half(), model=mlp().half()), [lambda: learner()]),
    T1=(lambda: learner(X.sign(), torch.arange(300) % 3, Sign()), [lambda: learner()]),
    T5=(
        lambda: learner(model=Net(mlp(), lambda p: F.dropout(p, 0.5))),
        [lambda: learner(model=nn.Sequential(mlp(32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 3)))],
    ),
)


def strange_norm(momentum):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(), nn.Linear(32, 3))


class Steps(nn.Module):
    """Predicts each step of a sequence: from all steps, or from those up to it."""

    def __init__(self, causal):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.out, self.causal = nn.Embedding(20, 16), nn.Linear(16, 20), causal

    def forward(self, x):
        e = self.embedding(x)
        n = torch.arange(1, x.shape[1] + 1)[None, :, None]
        return self.out(e.cumsum(1) / n if self.causal else e.mean(1, keepdim=True).expand_as(e)).transpose(1, 2)


def sequences(causal):
    x = torch.randint(0, 20, (300, 6), generator=torch.Generator().manual_seed(2))
    return learner(x, x.roll(1, 1), Steps(causal))


def images(size, n=300):
    """Images with batch norm, whose statistics are over the pixels, too."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        *[nn.BatchNorm2d(4)] * (n < 300),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2, 1),
        nn.ReLU(),
    )
    return learner(
        torch.randn(n, 1, size, size), CLASSES[:n], model=nn.Sequential(net, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    )


def with_penalty(factor):
    net = mlp()
    return learner(model=net, loss=lambda p, y: F.cross_entropy(p, y) + factor * sum(w.square().sum() for w in net.parameters()))


def masked(p, y):
    kept = (y > 0).float()
    return (F.cross_entropy(p, y, reduction="none") * kept).sum() / kept.sum()


def strong(x):
    """A training set with random transforms, and a plain one for validation."""

    class Augmented(TensorDataset):
        def __getitem__(self, i):
            x, y = super().__getitem__(i)
            return x * scale + 0.01 * torch.randn(6), y

    scale = x
    learn = learner()
    learn.dls = cbnb.DataLoaders(
        DataLoader(Augmented(X, CLASSES), 32, shuffle=True), DataLoader(TensorDataset(*HELD_OUT), 64), device="cpu"
    )
    return learn


def measured(metric, **more):
    learn = learner(**more)
    learn.metrics = [metric]
    return learn


def first_output(p, y):
    return (p[:, :1].argmax(1) == y).float().mean()


def number_right(p, y):
    return (p.argmax(1) == y).float().sum()


def unrelated(p, y):
    unrelated.n += 1
    return torch.tensor(unrelated.n % 2 + 0.5)


unrelated.n = 0


def scheduled(steps):
    learn = learner()
    learn.add_cb(TorchScheduler(lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, 0.01, total_steps=steps)))
    return learn


number_right.__name__ = "accuracy"
LEAKING = torch.cat([X, CLASSES[:, None] + 0.01 * X[:, :1]], 1)
DAYS = [date(2024, 1, 1) + timedelta(i) for i in range(400)]
PREPARED |= dict(
    D14=(
        lambda: learner(LEAKING, model=nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 3))),
        [
            lambda: regression(),
            lambda: learner(torch.cat([HOT, X], 1), model=nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))),
        ],
    ),
    D17=(lambda: strong(5.0), [lambda: strong(1.0)]),
    M18=(lambda: learner(5 * X + 30, model=strange_norm(1e-5)), [lambda: learner(5 * X + 30, model=strange_norm(0.1))]),
    M19=(lambda: learner(X[:40], CLASSES[:40], nn.Sequential(nn.Linear(6, 7000), nn.ReLU(), nn.Linear(7000, 3))), [lambda: learner()]),
    M20=(lambda: images(2), [lambda: images(28)]),
    L9=(lambda: learner(loss=masked), [lambda: learner(loss=lambda p, y: 2 * F.cross_entropy(p, y))]),
    L10=(lambda: measured(unrelated), [lambda: measured(cbnb.accuracy)]),
    L11=(
        lambda: measured(number_right),
        [lambda: measured(cbnb.accuracy), lambda: measured(cbnb.accuracy, y=torch.zeros(300).long() + (X[:, 0] > 2).long())],
    ),
    L12=(lambda: with_penalty(10.0), [lambda: with_penalty(1e-4), lambda: learner(loss=lambda p, y: 50 * F.cross_entropy(p, y))]),
)
ASKED = dict(
    D13=(
        lambda: (learner(), dict(groups=(range(300), range(290, 320)))),
        [lambda: (learner(), dict(groups=(range(300), range(300, 320))))],
    ),
    D13_later=(
        lambda: (learner(), dict(groups=(DAYS[100:], DAYS[:100]))),
        [lambda: (learner(), dict(groups=(DAYS[:300], DAYS[300:])))],
    ),
    M3=(lambda: (sequences(False), dict(causal=True)), [lambda: (sequences(True), dict(causal=True)), lambda: (sequences(False), {})]),
    O6=(lambda: (scheduled(1000), dict(n_epoch=3)), [lambda: (scheduled(30), dict(n_epoch=3)), lambda: (scheduled(1000), {})]),
    O7=(lambda: (learner(), dict(n_epoch=0.1)), [lambda: (learner(), dict(n_epoch=20))]),
    T3=(
        lambda: (learner(y=CLASSES.flip(0)), dict(labels=True)),
        [lambda: (learner(), dict(labels=True)), lambda: (regression(), dict(labels=True))],
    ),
)
HEALTHY = [(code, i) for code, (_, neighbors) in PREPARED.items() for i in range(len(neighbors))]


@pytest.mark.parametrize("code", PREPARED)
def test_a_fault_is_found(code):
    found = PREPARED[code][0]().check()
    assert code in found.codes and not found.skipped, found


def test_two_networks_with_optimizers_of_their_own_are_not_two_layers_in_a_row():
    """The last layer of a generator is followed by the first of the critic."""
    assert duel().check().ok


@pytest.mark.parametrize("of_body", [True, False])
def test_two_layers_in_a_row_are_found_in_a_network_with_two_optimizers(of_body):
    step = Halves(of_body)
    found = cbnb.Learner(learner().dls, step.net, train_step=UpdateStep(step.train)).check()
    assert "M11" in found.codes


class ClassToken(nn.Module):
    """Its output does not depend on the input, and differs by dropout once its last layer is not 0."""

    def __init__(self):
        super().__init__()
        self.token, self.dropout, self.head = nn.Parameter(torch.ones(1, 16)), nn.Dropout(0.1), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.dropout(self.token.expand(len(x), -1)))


def test_a_last_layer_of_zeros_hides_no_ignored_input():
    model = ClassToken()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert "M1" in learner(model=model).check().codes


def test_a_last_layer_of_zeros_trains_with_sgd():
    """The first update changes only this layer."""
    found = learner(model=changed(mlp(), zero_last), opt_func=torch.optim.SGD, lr=0.1).check()
    assert "O3" not in found.codes


def test_shuffled_labels_of_a_rare_class_are_found():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 8, generator=g)
    y = (x[:, 0] > 1.4).long()
    shuffled = y[:1500][torch.randperm(1500, generator=g)]
    assert 0.05 < y.float().mean() < 0.1
    found = learner(x[:1500], shuffled, nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)), valid=(x[1500:], y[1500:])).check()
    assert any(f.code == "D18" and f.measured.startswith("inputs explain") for f in found)


def test_a_rare_class_is_not_a_wrong_label():
    """With a few items of it, a regression may explain more of the validation set than of the training set."""
    assert "D18" not in {f.code for f in rare().check() if f.level != "note"}


@pytest.mark.parametrize("code, i", HEALTHY)
def test_its_healthy_neighbor_is_not(code, i):
    random_images = code in ("D6", "M20", "D19")  # with labels that do not follow from them
    found = PREPARED[code][1][i]().check(skip=("D18", "M11") if random_images else ())
    assert code not in found.codes and found.ok and not found.skipped, found


@pytest.mark.parametrize("code", ASKED)
def test_a_fault_that_needs_an_argument_is_found(code):
    fault, neighbors = ASKED[code]
    learn, options = fault()
    found = learn.check(**options)
    assert code.partition("_")[0] in found.codes and not found.skipped, found
    for healthy in neighbors:
        learn, options = healthy()
        found = learn.check(**options)
        assert code.partition("_")[0] not in found.codes and not found.skipped, found


def test_targets_that_the_loss_leaves_out_may_be_nan():
    """As in depth maps, where many pixels were not measured."""
    y = NUMBERS.where(X[:, :1] < 0.5, math.nan)
    known = learner(y=y, model=mlp(1), loss=lambda p, y: F.mse_loss(p[y.isfinite()], y[y.isfinite()]))
    assert not {"D1", "D7"} & {*known.check().codes} and "D1" in regression(y).check().codes


def test_a_model_with_few_parameters_need_not_learn_all_by_heart():
    """With fewer parameters than targets, as a linear model of a table has, it cannot: a note says so, and no warning."""
    few, more = PREPARED["T1"][0](), PREPARED["T1"][0]()
    more.model.out = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 3))
    assert [f.level for learn in (few, more) for f in learn.check() if f.code == "T1"] == ["note", "warning"]


def test_masks_of_bytes_are_no_class_numbers():
    """They fail in a binary cross-entropy, and more outputs would not help."""
    failing = learner(torch.randn(40, 1, 4, 4), torch.randint(0, 2, (40, 1, 4, 4)).byte() * 255, nn.Conv2d(1, 1, 1), nn.BCEWithLogitsLoss())
    assert "D11" not in failing.check().codes


def test_a_layer_that_is_called_twice_is_named_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(3, nn.Identity)

        def forward(self, x):
            return self.net(x) + self.net(-x)

    found = learner(model=Twice()).check()
    assert "M11" in found.codes and len({*found}) == len(found)


def test_batches_without_targets_train_nothing():
    found = cbnb.Learner(cbnb.DataLoaders([(X,)], device="cpu"), nn.Linear(6, 6), nn.MSELoss()).check()
    assert [(f.code, f.level) for f in found] == [("M4", "error")]


def test_a_metric_of_one_output_does_not_change():
    found = measured(first_output).check()
    assert "L11" in found.codes and not found.skipped


@pytest.mark.parametrize("fitted", [False, True])
def test_nothing_is_left_behind(fitted):
    torch.manual_seed(3)
    learn = learner(model=nn.Sequential(nn.BatchNorm1d(6), mlp(), nn.Dropout(0.1)), valid=(X[:50], CLASSES[:50]))
    if fitted:
        learn.fit(1)
    before = everything(learn)
    assert learn.check().codes
    assert same(everything(learn), before)


@pytest.mark.parametrize("part", ["collect", "overfit", "rate"])
def test_nothing_is_left_behind_by_an_interrupt(part, monkeypatch):
    learn, n = learner(), [0]
    learn.fit(1)
    before = everything(learn)

    def interrupted(*args):
        n[0] += 1
        if n[0] == at:
            raise KeyboardInterrupt
        return loss(*args)

    from cbnb.insight import evidence, small_trainings

    loss = evidence.compute_loss
    monkeypatch.setattr(evidence, "compute_loss", interrupted)
    monkeypatch.setattr(small_trainings, "compute_loss", interrupted)
    at = 0
    learn.check()
    at, n[0] = dict(collect=1, overfit=20, rate=n[0] - 15)[part], 0  # the training at the rate of the learner is the last one
    with pytest.raises(KeyboardInterrupt):
        learn.check()
    monkeypatch.undo()
    assert same(everything(learn), before)


def test_equal_rows_are_an_error_only_if_their_gradients_are_equal():
    def constant(m):
        for i in (0, 2):
            nn.init.constant_(m[i].weight, 0.1)

    def without_biases(m):
        constant(m)
        for i in (0, 2):
            nn.init.zeros_(m[i].bias)

    levels = [
        [f.level for f in learner(model=changed(mlp(), change)).check(fast=True) if f.code == "M7"] for change in (constant, without_biases)
    ]
    assert levels == [["warning"], ["error"]]


def test_a_frequent_label_of_many():
    """A quarter of the items has one label of 60: a model that always predicts it is not the point."""
    y = torch.randint(60, (6000,), generator=torch.Generator().manual_seed(0))
    y[:1500] = 7
    x = torch.randn(6000, 6, generator=torch.Generator().manual_seed(1))
    (f,) = (f for f in learner(x, y, mlp(60)).check(fast=True) if f.code == "D9")
    assert f.where == "label 7" and "for the median label" in f.measured and "always predicts" not in f.why


def test_a_fit_after_a_check_is_the_same_fit():
    """The losses of a fit are equal bit for bit, with and without a check before it."""
    losses = []
    for checked in (False, True):
        torch.manual_seed(5)
        learn = learner()
        if checked:
            learn.check()
        learn.fit(2)
        losses.append(learn.recorder.losses)
    assert losses[0] == losses[1]


def test_dicts_steps_and_streams():
    """Batches may be dicts, the step may be one of yours, and a stream has no items to draw."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, left, right):
            return self.net(torch.cat([left, right], 1))

    items = [dict(left=x[:3] * 500, right=x[3:], label=y) for x, y in zip(X, CLASSES)]
    dls = cbnb.DataLoaders(DataLoader(items, 32, shuffle=True), device="cpu", targets="label")
    found = cbnb.Learner(dls, Both(), nn.CrossEntropyLoss(), lr=3e-3).check()
    assert found.codes[0] == "D2" and found[0].where == "inputs left" and not found.skipped

    class Scaled(Step):
        def loss(self, learn):
            self.set_loss(learn, 3 * F.cross_entropy(learn.pred.softmax(1), learn.y))

    learn = learner(loss=lambda p, y: F.cross_entropy(p, y))
    learn.train_step = Scaled()
    assert "L2" in learn.check(fast=True).codes

    net = mlp()
    opt = torch.optim.Adam(net.parameters(), 3e-3)

    def update(x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward(), opt.step(), opt.zero_grad()
        return loss.detach()

    learn = learner(X * 1000, model=net)
    learn.train_step = cbnb.UpdateStep(update, opt)
    before = copy.deepcopy(net.state_dict())
    found = learn.check()
    assert found.codes[0] == "D2" and not found.errors and "updates the weights itself" in found.skipped[0]
    assert same(net.state_dict(), before) and not opt.state

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X * 1000, CLASSES))

    stream = cbnb.Learner(cbnb.DataLoaders(DataLoader(Stream(), 32), device="cpu"), mlp(), nn.CrossEntropyLoss())
    assert "D2" in stream.check().codes


def test_the_softmax_too_many_is_named():
    """The layer, and a line that removes it. A function in `forward` has no name."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 3)

        def forward(self, x):
            return self.body(x).softmax(1)

    learn = learner(model=nn.Sequential(nn.Linear(6, 3), nn.Sequential(nn.Softmax(1))))
    (found,) = [f for f in learn.check(fast=True) if f.code == "L2"]
    assert found.where == "layer 1.0"
    exec(found.fix, dict(learn=learn, nn=nn))
    assert "L2" not in learn.check(fast=True).codes
    (found,) = [f for f in learner(model=Own()).check(fast=True) if f.code == "L2"]
    assert found.where == "the prediction"


def test_the_headline_counts_what_is_shown():
    """Effects stand below their cause, without a level of their own."""
    made = [Finding(code, level, "", "", "", "", "") for code, level in (("D2", "warning"), ("L1", "warning"), ("M19", "note"))]
    assert repr(Findings(made)).startswith("1 warning, 1 note, 1 effect\n")


def test_gradients_that_vanish_are_the_cause_and_not_the_rate():
    made = [Finding(code, "warning", "", "", "", "", "") for code in ("O3", "T1", "M16")]
    ((cause, *effects),) = Findings(made).groups
    assert cause.code == "M16" and {f.code for f in effects} == {"O3", "T1"}


def test_findings_for_scripts():
    learn = learner(X * 300 + 4000)
    found = learn.check()
    with pytest.raises(ValueError, match="input-scale"):
        found.raise_if_wrong()
    learner().check().raise_if_wrong()
    assert found.rows()[0]["code"] == "D2" and found.rows()[0]["name"] == "input-scale"
    assert "D2" not in learn.check(skip="input-scale").codes and "D2" not in learn.check(skip=["D2"]).codes
    with pytest.raises(ValueError, match="did you mean 'input-scale'"):
        learn.check(skip="input scale")
    with pytest.raises(ValueError, match=r"skip=tensor\(3\) is not the name or code of a fault"):
        learn.check(skip=torch.tensor(3))
    with pytest.raises(TypeError, match=r"groups=\[1, 2\] should be two lists"):
        learn.check(groups=[1, 2])
    with pytest.raises(TypeError, match="n_epoch='a' is not a number"):
        learn.check(n_epoch="a")
    assert all(code in FAULTS for code in PREPARED)


def test_a_running_learner_is_not_checked():
    said = []

    class Checks(cbnb.Callback):
        def before_fit(self):
            with pytest.raises(RuntimeError, match="is running") as e:
                self.learn.check()
            said.append(e)

    line_learner(cbs=Checks).fit(1)
    assert said


def test_each_finding_leads_to_its_section_on_the_page_of_errors():
    page = Path(__file__).parents[2] / "nbs/how_to/errors.ipynb"
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines()]
    anchors = [line[5:].lower().replace(" ", "-") for line in lines if line.startswith("#### ")]
    assert len(set(anchors)) == len(anchors)
    for code in FAULTS:
        finding = Finding(code, "note", "here", "1", "2", "it is a fault", "mend it")
        assert finding.page.partition("#")[2] in anchors, code
    assert {key.partition(".")[0] for key in TEXTS} <= FAULTS.keys()


def test_a_column_of_nan_is_to_be_left_out_and_not_all_items():
    """As after a division by the standard deviation of a constant column. Of single items, the items are named."""
    column, items = X.clone(), X.clone()
    column[:, 2], items[::3, 2] = math.nan, math.nan
    (of_column,) = [f for f in learner(column).check(fast=True) if f.code == "D1"]
    assert of_column.where == "inputs of all items, column 2" and "leave these columns out" in of_column.fix
    (of_items,) = [f for f in learner(items).check(fast=True) if f.code == "D1"]
    assert of_items.where.startswith("inputs of items ") and "leave these items out" in of_items.fix


def test_what_a_fix_calls_exists():
    """Each `learn.name(` in the fixes is a method of a learner."""
    learn, missing = digits_learner(), []
    for code, text in TEXTS.items():
        for name in re.findall(r"\blearn\.([\w.]+)\(", text.fix):
            try:
                attrgetter(name)(learn)
            except AttributeError:
                missing.append((code, name))
    assert missing == []


def test_a_function_as_a_step_is_trained_on_16_items():
    model, blind = mlp(1), mlp(1)

    def residual(x):  # of a differential equation, which needs gradients of the inputs, and has no targets
        x = x.clone().requires_grad_()
        y = model(x)
        return (torch.autograd.grad(y.sum(), x, create_graph=True)[0] + y).square().mean()

    def loss(x, y):
        return F.mse_loss(blind(torch.zeros_like(x)), y)

    dls = cbnb.DataLoaders(DataLoader(TensorDataset(X), 32), device="cpu")
    found = cbnb.Learner(dls, model, train_step=residual).check()
    assert not found.codes and not found.skipped
    dls = cbnb.DataLoaders(DataLoader(TensorDataset(X, NUMBERS), 32, shuffle=True), device="cpu")
    assert "T1" in cbnb.Learner(dls, blind, train_step=loss).check().codes


def test_labels_among_the_inputs_of_a_model_stay():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(3)

        def forward(self, x, labels=None):
            scores = self.net(x)
            return dict(loss=F.cross_entropy(scores, labels), logits=scores)

    items = [dict(x=x, labels=y) for x, y in zip(X, torch.randint(3, (300,), generator=torch.Generator().manual_seed(0)))]
    found = cbnb.Learner(cbnb.DataLoaders(DataLoader(items, 32, shuffle=True), device="cpu"), Tagger()).check()
    assert "T2" not in found.codes


def test_a_matrix_of_similarities_may_compare_items():
    class Similar(nn.Linear):
        def forward(self, x):
            z = super().forward(x)
            return z @ z.T

    def loss(pred, y):
        return F.mse_loss(pred, y[:, :1] @ y[:, :1].T)

    assert "M2" not in learner(y=X, model=Similar(6, 4), loss=loss).check().codes


def test_a_batch_without_targets_has_no_loss():
    dls = cbnb.DataLoaders(DataLoader(TensorDataset(X), 32, shuffle=True), device="cpu")
    learn = cbnb.Learner(dls, mlp(1), nn.MSELoss())
    assert [f.code for f in learn.check().errors] == ["M4"]
    assert learn.lr_find(show_plot=True).recommended is None


def test_sparse_gradients_are_trained_on_16_items():
    words = torch.arange(300) % 7
    model = nn.Sequential(nn.Embedding(7, 8, sparse=True), nn.Linear(8, 7))
    found = learner(words, (words + 1) % 7, model, opt_func=torch.optim.SGD, lr=1.0).check()
    assert not found.skipped


def test_groups_are_any_two_rows_of_values():
    groups = [[*range(320)], [*range(320, 640)]]
    for given in torch.tensor(groups), map(list, groups), (g for g in groups), [iter(g) for g in groups]:
        learner().check(groups=given)
