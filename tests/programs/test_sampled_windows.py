"""A weighted sampler draws rare labels more often, and gradients are accumulated over windows of three batches, the last of which is ragged."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from cbnb.all import AccumMetric, DataLoaders, GradientAccumulation, Learner, accuracy
from program import Hand, Program, loader, mean

WEIGHT = torch.tensor([1.0, 4.0])


def loaders():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(70, 4, generator=g)
    y = (x.sum(1) > 1.2).long()
    sampler = WeightedRandomSampler(torch.where(y[:50] == 1, 5.0, 1.0), 43, generator=g)  # 11 batches, the last one of 3 items
    return DataLoader(TensorDataset(x[:50], y[:50]), 4, sampler=sampler), loader(x[50:], y[50:])


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def recall(pred, y):
    return ((pred.argmax(1) == 1) & (y == 1)).sum() / (y == 1).sum()


class TestSampledWindows(Program):
    """The gradient of a window is that of one batch of 12 items, whose mean counts each item by the weight of its label."""

    fails_at, weights, losses = 13, 1e-6, 1e-6

    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            batches, losses = list(train), []
            assert [len(y) for _, y in batches] == [4] * 10 + [3]
            for i in range(0, len(batches), 3):
                window = batches[i : i + 3]
                with torch.no_grad():
                    losses += [F.cross_entropy(model(x), y, WEIGHT).item() for x, y in window]
                x, y = (torch.cat(parts) for parts in zip(*window))
                F.cross_entropy(model(x), y, WEIGHT).backward()
                opt.step()
                opt.zero_grad()
            model.eval()
            with torch.no_grad():
                x, y = (torch.cat(parts) for parts in zip(*valid))
                pred = model(x)
            hand.losses += losses
            row = dict(train_loss=mean(losses, [WEIGHT[y].sum() for _, y in batches]), valid_loss=F.cross_entropy(pred, y, WEIGHT).item())
            hand.rows.append(row | dict(accuracy=(pred.argmax(1) == y).float().mean().item(), recall=recall(pred, y).item()))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        cbs, metrics = GradientAccumulation(12), [accuracy, AccumMetric(recall)]
        return Learner(
            dls, net(), nn.CrossEntropyLoss(WEIGHT), partial(torch.optim.SGD, momentum=0.9), lr=0.3, cbs=cbs, metrics=metrics, path=path
        )
