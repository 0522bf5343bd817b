"""LBFGS, which evaluates the loss several times in an update, with a penalty on the weights."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import Callback, DataLoaders, Learner
from cbnb.callbacks.steps import ClosureStep
from program import Hand, Program, loader, mean

PENALTY = 0.05
LBFGS = partial(torch.optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe")


def loaders():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(61, 6, generator=g)
    y = x.sin().sum(1, keepdim=True)
    return loader(x[:44], y[:44], bs=22, shuffle=True), loader(x[44:], y[44:])


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def penalty(model):
    return PENALTY * sum(p.square().sum() for p in model.parameters())


class Penalty(Callback):
    run_valid = False

    def after_loss(self):
        self.learn.loss_grad = self.learn.loss_grad + penalty(self.model)


class TestLBFGS(Program):
    """The penalty comes from a callback. The recorded loss is that of the loss function."""

    fails_at = 3

    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = LBFGS(model.parameters(), lr=0.5)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            losses, sizes = [], []
            for x, y in train:
                seen = []

                def closure():
                    opt.zero_grad()
                    loss = F.mse_loss(model(x), y)
                    seen.append(loss.item())
                    loss = loss + penalty(model)
                    loss.backward()
                    return loss

                opt.step(closure)
                losses.append(seen[0]), sizes.append(len(y))
            with torch.no_grad():
                found = [(F.mse_loss(model(x), y).item(), len(y)) for x, y in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, net(), F.mse_loss, LBFGS, lr=0.5, train_step=ClosureStep(), cbs=Penalty, path=path)
