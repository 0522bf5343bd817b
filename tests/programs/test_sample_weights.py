"""A weight for each item, which the loader yields beside the target. The loss is the weighted mean."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(61, 6, generator=g)
    y, w = x.sin().sum(1), torch.rand(61, generator=g) ** 3
    return loader(x[:44], y[:44], w[:44], shuffle=True), loader(x[44:], y[44:], w[44:])


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def weighted_mse(pred, y, w):
    return (F.mse_loss(pred, y, reduction="none") * w).sum() / w.sum()


class TestSampleWeights(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, weights = [], []
            for x, y, w in train:
                loss = weighted_mse(model(x), y, w)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), weights.append(w.sum())
            model.eval()
            with torch.no_grad():
                pred, y, w = (torch.cat(t) for t in zip(*((model(x), y, w) for x, y, w in valid)))
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, weights), valid_loss=weighted_mse(pred, y, w).item()))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu", n_inp=1)
        return Learner(dls, net(), weighted_mse, lr=1e-2, batch_weight=lambda pred, y, w: w.sum(), path=path)
