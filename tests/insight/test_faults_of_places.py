"""Faults of places, targets and callbacks, each beside its nearest healthy neighbor: `learn.check()` names one, and is quiet about the other."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from left_behind import everything, same
from test_check import BINARY, CLASSES, NUMBERS, Net, X, learner, mlp, regression
from test_recall import loud

G = torch.Generator().manual_seed(7)
WORDS = torch.randint(1, 20, (400, 10), generator=G)
LENGTHS = torch.randint(4, 11, (400, 1), generator=G)
TEXTS = WORDS.where(torch.arange(10) < LENGTHS, 0)
MOST = TEXTS.eq(1).sum(1).clamp(max=1)


class Text(nn.Module):
    """The mean of the words that a mask keeps."""

    def __init__(self, keep, pool=lambda h, kept: (h * kept).sum(1) / kept.sum(1).clamp(min=1)):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out, self.keep, self.pool = nn.Embedding(20, 16), nn.Linear(16, 2), keep, pool

    def forward(self, x):
        return self.out(self.pool(self.embed(x), self.keep(x)[..., None].float()).relu())


def text(keep, x=TEXTS, y=MOST):
    return learner(x, y, Text(keep))


def tags(y=None, after=lambda p: p.transpose(1, 2), loss=None, x=WORDS, **more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 5))
    return learner(x, WORDS % 5 if y is None else y, Net(model, after), loss, **more)


def pictures(turn):
    x = torch.randn(200, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] + 0.3 * torch.arange(8) > 1).long()
    torch.manual_seed(0)
    return learner(x, turn(y), nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)))


def aligned(kept):
    return tags((WORDS % 5).where(kept, -100))


def called(**events):
    learn = learner()
    learn.add_cb(cbnb.Callback(**events))
    return learn


def zero(cb):
    for p in cb.model.parameters():
        p.grad.zero_()


def halve(cb):
    for p in cb.model.parameters():
        p.grad.mul_(0.5)


def mix(cb):
    x = cb.learn.xb[0]
    cb.learn.xb = (0.4 * x + 0.6 * x.roll(1, 0),)


def blur(cb):
    cb.learn.xb = (cb.learn.xb[0] + 0.1 * torch.randn_like(cb.learn.xb[0]),)


def dropped(p):
    return learner(model=mlp(3, lambda: Net(nn.ReLU(), lambda h: F.dropout(h, p, h.requires_grad and torch.is_grad_enabled()))))


def normed(*layers):
    torch.manual_seed(0)
    return learner(model=nn.Sequential(nn.Linear(6, 32), *layers, nn.Linear(32, 3)))


def encoded(noise):
    """A column that is nearly the target, beside one that is a good feature."""
    g = torch.Generator().manual_seed(2)
    y = NUMBERS + 0.5 * torch.randn(300, 1, generator=g)
    return regression(y, x=torch.cat([X[:, 1:], y + noise * torch.randn(300, 1, generator=g)], 1))


def unknown(at):
    return regression(NUMBERS.where(at, 0.0))


def frozen_recurrent(trained):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn, self.out = nn.GRU(3, 16, batch_first=True), nn.Linear(16, 3)
            with torch.no_grad():
                for p in self.rnn.parameters() if trained else ():
                    p.add_(0.3 * torch.randn_like(p))
            self.rnn.requires_grad_(False)

        def forward(self, x):
            return self.out(self.rnn(x.reshape(-1, 2, 3))[0][:, -1])

    return learner(model=Model())


class Unused(nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.other = mlp(), nn.Linear(6, width)

    def forward(self, x):
        return self.net(x)


class Sliced(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.net, self.n = mlp(), n

    def forward(self, x):
        return self.net(x * (torch.arange(6) < self.n))


WEIGHTS = dict(few=torch.tensor([1.0, 0.0, 1.0]), even=torch.tensor([1.0, 0.5, 1.0]))
CASES = {
    "M1 mask": (lambda: text(lambda x: x == 0), lambda: text(lambda x: x > 0)),
    "M1 slice": (lambda: learner(model=Sliced(2)), lambda: learner(model=Sliced(6))),
    "D3 cut": (
        lambda: text(lambda x: x > 0, WORDS.where(torch.arange(10) < 3, 0), WORDS[:, 0] % 2),
        lambda: text(lambda x: x > 0, WORDS.where(torch.arange(10) < LENGTHS - 3, 0), WORDS[:, 0] % 2),
    ),
    "D21 places": (lambda: aligned(torch.arange(10) < 1), lambda: aligned(torch.rand(400, 10, generator=G) < 0.2)),
    "M2 loss": (
        lambda: tags(loss=lambda p, y: F.cross_entropy(p.reshape(-1, 5), y.flatten())),
        lambda: tags(loss=lambda p, y: F.cross_entropy(p.transpose(1, 2).reshape(-1, 5), y.flatten())),
    ),
    "D18 turned": (lambda: pictures(lambda y: y.transpose(1, 2).contiguous()), lambda: pictures(lambda y: y)),
    "D18 shifted": (lambda: tags((WORDS % 5).roll(2, 1)), tags),
    "O3 zeroed": (lambda: called(after_backward=zero), lambda: called(after_backward=halve)),
    "D17 mixed": (lambda: called(before_batch=mix), lambda: called(before_batch=blur)),
    "M18 mode": (lambda: called(before_batch=lambda cb: cb.model.eval()), lambda: called(before_batch=lambda cb: cb.model.train())),
    "M14 function": (lambda: dropped(0.9), lambda: dropped(0.2)),
    "M14 norm": (
        lambda: normed(nn.Dropout(0.5), nn.BatchNorm1d(32), nn.ReLU()),
        lambda: normed(nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5)),
    ),
    "M18 momentum": (lambda: normed(nn.BatchNorm1d(32, momentum=0.99), nn.ReLU()), lambda: normed(nn.BatchNorm1d(32), nn.ReLU())),
    "M12 bounded": (
        lambda: learner(model=Net(mlp(), F.normalize)),
        lambda: learner(model=Net(mlp(), lambda h: 20 * F.normalize(h))),
    ),
    "M12 range": (
        lambda: regression(5 * NUMBERS, Net(mlp(1), lambda h: 0.5 * h.tanh())),
        lambda: regression(NUMBERS, Net(mlp(1), lambda h: 8 * h.tanh())),
    ),
    "D14 encoding": (lambda: encoded(0.3), lambda: encoded(3.0)),
    "D9 weights": (
        lambda: learner(loss=nn.CrossEntropyLoss(weight=WEIGHTS["few"])),
        lambda: learner(loss=nn.CrossEntropyLoss(weight=WEIGHTS["even"])),
    ),
    "D7 cut": (lambda: regression(NUMBERS.clamp(max=0)), lambda: regression(NUMBERS.clamp(max=3))),
    "A7 unknown": (lambda: unknown(torch.rand(300, 1, generator=G) > 0.4), lambda: unknown(NUMBERS > 0)),
    "L5 hinge": (
        lambda: learner(y=BINARY, model=mlp(1), loss=lambda p, y: (1 - p * y).clamp(min=0).mean()),
        lambda: learner(y=BINARY, model=mlp(1), loss=lambda p, y: (1 - p * (2 * y - 1)).clamp(min=0).mean()),
    ),
    "L5 smoothing": (
        lambda: learner(loss=nn.CrossEntropyLoss(label_smoothing=0.9)),
        lambda: learner(loss=nn.CrossEntropyLoss(label_smoothing=0.1)),
    ),
    "M4 recurrent": (lambda: frozen_recurrent(False), lambda: frozen_recurrent(True)),
    "M5 unused": (lambda: learner(model=Unused(400)), lambda: learner(model=Unused(8))),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_named(case):
    found = CASES[case][0]().check()
    assert case.split()[0] in loud(found) and not found.skipped, found


@pytest.mark.parametrize("case", CASES)
def test_its_healthy_neighbor_is_quiet(case):
    found = CASES[case][1]().check()
    assert case.split()[0] not in loud(found) and not found.skipped, found


def test_few_items_of_a_batch_norm():
    def of(bs):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
        train = DataLoader(TensorDataset(X, CLASSES), bs, shuffle=True)
        return cbnb.Learner(cbnb.DataLoaders(train, device="cpu"), model, nn.CrossEntropyLoss(), lr=3e-3).check()

    assert "D19" in loud(of(2)) and "D19" not in loud(of(16))


def test_a_metric_of_ignored_targets():
    def of(metric):
        learn = aligned(torch.rand(400, 10, generator=torch.Generator().manual_seed(3)) < 0.6)
        learn.metrics = metric
        return loud(learn.check())

    assert "L11" in of(lambda p, y: (p.argmax(1) == y).float().mean())
    assert "L11" not in of(lambda p, y: (p.argmax(1) == y)[y >= 0].float().mean())


class Adds(cbnb.Callback):
    """Adds up gradients in an attribute, and counts in another one."""

    def __init__(self):
        self.total, self.n = {}, 0

    def after_backward(self):
        self.n += 1
        for name, p in self.learn.model.named_parameters():
            self.total[name] = self.total.get(name, 0) + p.grad.clone()


def test_what_own_callbacks_do_in_a_check_is_undone():
    learn = learner()
    adds = Adds()
    learn.add_cb(adds)
    learn.create_opt()
    before = everything(learn)
    assert learn.check().ok and same(before, everything(learn)) and not adds.total and adds.n == 0


def test_a_callback_of_fits_only_is_not_called_by_a_check():
    class Fails(cbnb.Callback):
        run_in = ("fit",)

        def before_batch(self):
            raise RuntimeError

    learn = learner()
    learn.add_cb(Fails())
    assert learn.check().ok


def test_a_callback_that_fails_is_reported_and_nothing_remains():
    learn = called(before_batch=lambda cb: 1 / 0)
    learn.create_opt()
    before = everything(learn)
    found = learn.check()
    assert any("ZeroDivisionError" in text for text in found.skipped) and same(before, everything(learn))


def test_large_targets_around_zero():
    assert "D7" in loud(regression(1e5 * NUMBERS).check()) and "D7" not in loud(regression(NUMBERS).check())


def test_a_recurrent_layer_is_new_until_it_is_trained():
    from cbnb.insight.model_faults import is_new

    rnn = nn.LSTM(8, 16)
    assert is_new(rnn)
    with torch.no_grad():
        rnn.weight_ih_l0.add_(1)
    assert not is_new(rnn)


def test_a_callback_that_prepares_inputs_is_no_fault_and_may_change_them_in_place():
    raw = [(5 + 3 * X[i : i + 32], CLASSES[i : i + 32]) for i in range(0, 256, 32)]
    before = [x.clone() for x, _ in raw]
    in_place = cbnb.Callback(before_batch=lambda cb: cb.xb[0].sub_(5).div_(3))
    another = cbnb.Callback(before_batch=lambda cb: setattr(cb.learn, "xb", ((cb.xb[0] - 5) / 3,)))
    for cb in (in_place, another):
        torch.manual_seed(0)
        learn = cbnb.Learner(cbnb.DataLoaders(raw), mlp(), nn.CrossEntropyLoss(), lr=0.01, cbs=cb)
        found = learn.check()
        assert not found.skipped and not any("Callback" in str(f) for f in found)
        assert all(torch.equal(x, old) for (x, _), old in zip(raw, before))


def test_a_callback_of_yours_is_not_blamed_for_mixup():
    from cbnb.callbacks.mixup import MixUp

    learn = called(before_batch=lambda cb: None)
    learn.add_cb(MixUp(1.0))
    assert "D17" not in loud(learn.check())


def test_callbacks_that_are_switched_off_stay_so_in_a_check():
    class OfFits(cbnb.Callback):
        run_in = ("fit",)

    learn = called(before_batch=lambda cb: None)
    learn.add_cb(off := OfFits())
    off.run = False
    assert learn.check().ok and not off.run
    learn.fit(1)
    assert off.run


def test_a_check_prints_nothing(capsys):
    assert called(before_batch=lambda cb: 1 / 0).check().skipped
    assert not capsys.readouterr().out
