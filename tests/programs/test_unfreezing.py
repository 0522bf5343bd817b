"""Gradual unfreezing: the head, then more and more of the body, with a rate for each layer, and no decay for norms and biases."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, accuracy
from program import Hand, Program, loader, mean
from resumed import Fails


def loaders():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(61, 6, generator=g)
    y = (x @ torch.randn(6, 3, generator=g)).argmax(1)
    return loader(x[:44], y[:44], shuffle=True), loader(x[44:], y[44:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU())
        self.mid = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.mid(self.low(x)))


def layers(model):
    """Six groups: of each part the matrices, and the rest."""
    params = [list(part.parameters()) for part in (model.low, model.mid, model.head)]
    return [[p for p in part if (p.ndim > 1) is matrix] for part in params for matrix in (True, False)]


PARTS = [("low", 1e-3), ("mid", 3e-3), ("head", 1e-2)]
RATES = [rate for _, rate in PARTS for _ in range(2)]
DECAY = [0.1, 0.0] * 3


class TestUnfreezing(Program):
    """Three fits of one epoch each. Adam keeps what it knows of the head."""

    fails_at = 3

    def by_hand(self):
        (train, valid), model = loaders(), Net()
        groups = [dict(params=p, lr=lr, weight_decay=wd) for p, lr, wd in zip(layers(model), RATES, DECAY)]
        opt = torch.optim.AdamW(groups, fused=True)
        hand = Hand(model)
        for n_frozen in (2, 1, 0):
            for i, (name, _) in enumerate(PARTS):
                getattr(model, name).requires_grad_(i >= n_frozen)
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(y))
            model.eval()
            total = correct = 0
            with torch.no_grad():
                for x, y in valid:
                    pred = model(x)
                    total += F.cross_entropy(pred, y, reduction="sum").item()
                    correct += (pred.argmax(1) == y).sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / 17, accuracy=correct / 17))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, Net(), F.cross_entropy, lr=RATES, wd=DECAY, splitter=layers, metrics=accuracy, path=path)

    def fit(self, learn, cbs=(), **kwargs):
        for first in (4, 2, 0):
            learn.freeze_to(first)
            in_this = [cb for cb in cbs if first == 2 or not isinstance(cb, Fails)]  # fails in the second fit
            learn.fit(1, cbs=in_this, **kwargs)


class TestNoDecay(Program):
    """The groups that `opt_func` makes without decay stay so when a fit sets the decay of the others."""

    def by_hand(self):
        (train, valid), model = loaders(), Net()
        params = [[p for p in model.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False)]
        opt = torch.optim.AdamW([dict(params=p, weight_decay=wd) for p, wd in zip(params, (0.1, 0))], lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            opt.param_groups[0]["weight_decay"] = 0.3
            losses, sizes = [], []
            for x, y in train:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(y))
            with torch.no_grad():
                found = [(F.cross_entropy(model(x), y).item(), len(y)) for x, y in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        def by_shape(model):
            return [[p for p in model.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False)]

        def adamw(groups, lr):
            return torch.optim.AdamW([dict(g, weight_decay=wd) for g, wd in zip(groups, (0.1, 0))], lr=lr)

        return Learner(DataLoaders(*loaders(), device="cpu"), Net(), F.cross_entropy, adamw, lr=1e-2, splitter=by_shape, path=path)

    def fit(self, learn, **kwargs):
        learn.fit(self.n_epoch, wd=0.3, **kwargs)
