"""Averages of the weights: an exponential one in every step, and SWA over the last epochs with its own rate."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from cbnb.all import EMA, Callback, DataLoaders, Learner, TorchScheduler, accuracy
from program import Hand, Program, loader, mean

DECAY, SWA_START = 0.9, 1


def loaders():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(61, 6, generator=g)
    y = (x @ torch.randn(6, 3, generator=g)).argmax(1)
    return loader(x[:44], y[:44], shuffle=True), loader(x[44:], y[44:])


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def validated(model, valid):
    model.eval()
    total = correct = 0
    with torch.no_grad():
        for x, y in valid:
            pred = model(x)
            total += F.cross_entropy(pred, y, reduction="sum").item()
            correct += (pred.argmax(1) == y).sum().item()
    return dict(valid_loss=total / 17, accuracy=correct / 17)


class TestEMA(Program):
    """The average is validated, and is the model that you keep."""

    def by_hand(self):
        (train, valid), model = loaders(), net()
        average = copy.deepcopy(model)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(average)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                with torch.no_grad():
                    for a, p in zip(average.state_dict().values(), model.state_dict().values()):
                        a.lerp_(p, 1 - DECAY) if a.is_floating_point() else a.copy_(p)
                losses.append(loss.item()), sizes.append(len(y))
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes)) | validated(average, valid))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        cbs = EMA(DECAY, warmup=False)
        return Learner(dls, net(), F.cross_entropy, lr=1e-2, metrics=accuracy, cbs=cbs, path=path)


class SWA(Callback):
    """Averages the weights at the end of the last epochs, and computes the statistics of batch norm for the average."""

    def before_fit(self):
        self.average = AveragedModel(self.model)

    def after_train(self):
        if self.epoch >= SWA_START:
            self.average.update_parameters(self.model)

    def after_fit(self):
        update_bn(self.dls.train, self.average)
        self.model.load_state_dict(self.average.module.state_dict())


class TestSWA(Program):
    """torch's own classes, in a callback of three methods."""

    def by_hand(self):
        (train, valid), model = loaders(), net()
        average = AveragedModel(model)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        sched = SWALR(opt, swa_lr=0.02, anneal_epochs=2)
        hand = Hand(model)
        for epoch in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item()), sizes.append(len(y))
            if epoch >= SWA_START:
                average.update_parameters(model)
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes)) | validated(model, valid))
            sched.step()
        update_bn(train, average)
        model.load_state_dict(average.module.state_dict())
        return hand

    def learner(self, path):
        cbs = [SWA, TorchScheduler(lambda opt: SWALR(opt, swa_lr=0.02, anneal_epochs=2), every="epoch")]
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, net(), F.cross_entropy, torch.optim.SGD, lr=0.1, metrics=accuracy, cbs=cbs, path=path)

    @pytest.mark.skipif(
        "anneal_func" in SWALR(torch.optim.SGD([torch.zeros(1)], 0.1), 0.02).state_dict(),
        reason="torch 2.4: the state of SWALR has a function, which no checkpoint can store",
    )
    def test_a_resumed_fit_is_the_loop(self, tmp_path):
        super().test_a_resumed_fit_is_the_loop(tmp_path)

    def last_row(self):
        return validated(self.hand().modules, loaders()[1])
