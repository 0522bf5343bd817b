"""The best weights of a fit: parameters and buffers of the network, and a parameter of the loss, as of the best validation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import Callback, DataLoaders, Learner, accuracy
from program import Hand, Program, loader, mean

RISE = 3.0  # the rate grows by this factor from epoch to epoch, so that the fit gets worse in the end


def loaders():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(100, 6, generator=g)
    y = (x @ torch.randn(6, 3, generator=g) + 0.5 * torch.randn(100, 3, generator=g)).argmax(1)
    return loader(x[:64], y[:64], shuffle=True), loader(x[64:], y[64:])


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Tempered(nn.Module):
    """Cross-entropy with a temperature that is trained."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, pred, y):
        return F.cross_entropy(pred * self.scale, y)


def rate(epoch):
    return 1e-2 * RISE**epoch


class KeepsBest(Program):
    advised = frozenset(["O6"])
    n_epoch = 6
    fails_at = 35
    column, better = "", min

    def by_hand(self):
        (train, valid), model, loss_func = loaders(), net(), Tempered()
        opt = torch.optim.AdamW([*model.parameters(), *loss_func.parameters()], lr=1e-2, fused=True)
        hand, kept = Hand([model, loss_func]), None
        for epoch in range(self.n_epoch):
            opt.param_groups[0]["lr"] = rate(epoch)
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = loss_func(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item()), sizes.append(len(y))
            model.eval()
            found, correct, n = [], 0, []
            with torch.no_grad():
                for x, y in valid:
                    pred = model(x)
                    found.append(loss_func(pred, y).item()), n.append(len(y))
                    correct += (pred.argmax(1) == y).sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(found, n), accuracy=correct / sum(n)))
            value = hand.rows[-1][self.column]
            if kept is None or type(self).better(value, kept[0]) != kept[0]:
                kept = value, copy.deepcopy([model, loss_func]), epoch
        assert kept[2] < self.n_epoch - 1  # the last epoch is not the best
        hand.modules, self.__class__.best_epoch = kept[1], kept[2]
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, net(), Tempered(), lr=1e-2, metrics=accuracy, path=path)

    def fit(self, learn, cbs=(), **kwargs):
        rise = Callback(before_epoch=lambda cb: cb.opt.param_groups[0].update(lr=rate(cb.epoch)))
        learn.fit(self.n_epoch, cbs=[rise, *cbs], keep_best=self.keep_best, **kwargs)

    def modules(self, learn):
        return [learn.model, learn.loss_func]

    def last_row(self):
        return self.hand().rows[self.best_epoch]

    def test_the_history_marks_the_best_epoch(self, tmp_path):
        best = self.hand().rows[self.best_epoch]
        run = self.trained(tmp_path).recorder.last()
        assert run.best["epoch"] == self.best_epoch and run.best[self.column] == pytest.approx(best[self.column], abs=1e-6)


class TestLoss(KeepsBest):
    column, better, keep_best = "valid_loss", min, True


class TestMetric(KeepsBest):
    column, better, keep_best = "accuracy", max, ("accuracy", "max")
