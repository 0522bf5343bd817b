"""Three quantiles of a table with a weight for each row. The loss is the weighted mean of the pinball losses, the metric a weighted share."""

import torch
from torch import nn

from cbnb.all import AccumMetric, DataLoaders, Learner
from program import Hand, Program, loader, mean

LEVELS = torch.tensor([0.1, 0.5, 0.9])


def loaders():
    g = torch.Generator().manual_seed(12)
    x = torch.randn(101, 5, generator=g)
    y = x.sum(1) + x[:, 0].exp() * torch.randn(101, generator=g)
    w = torch.rand(101, generator=g) ** 3
    return loader(x[:70], y[:70], w[:70], shuffle=True), loader(x[70:], y[70:], w[70:])


def net():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))


def pinball(pred, y, w):
    off = y[:, None] - pred
    return (torch.maximum(LEVELS * off, (LEVELS - 1) * off).mean(1) * w).sum() / w.sum()


def inside(pred, y, w):
    return (((pred[:, 0] <= y) & (y <= pred[:, 2])) * w).sum() / w.sum()


class TestQuantiles(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, weights = [], []
            for x, y, w in train:
                loss = pinball(model(x), y, w)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), weights.append(w.sum())
            model.eval()
            with torch.no_grad():
                x, y, w = (torch.cat(t) for t in zip(*valid))
                pred = model(x)
            hand.losses += losses
            hand.rows.append(
                dict(train_loss=mean(losses, weights), valid_loss=pinball(pred, y, w).item(), inside=inside(pred, y, w).item())
            )
        return hand

    def learner(self, path):
        dls, metric = DataLoaders(*loaders(), device="cpu", n_inp=1), AccumMetric(inside, flatten=False)
        return Learner(dls, net(), pinball, lr=1e-2, metrics=metric, batch_weight=lambda pred, y, w: w.sum(), path=path)
