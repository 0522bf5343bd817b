"""Streams: a training set without length, which draws its items, and a validation set that yields batches of several sizes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from cbnb.all import Batches, DataLoaders, Learner
from program import Hand, Program, mean


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(43):
            x = torch.randn(6)
            yield x, x.sin().sum(0, keepdim=True)


def valid_batches():
    g = torch.Generator().manual_seed(1)
    for n in (5, 1, 9, 3):
        x = torch.randn(n, 6, generator=g)
        yield x, x.sin().sum(1, keepdim=True)


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def mae(pred, y):
    return (pred - y).abs().mean()


class TestStream(Program):
    def by_hand(self):
        train, model = DataLoader(Stream(), 8), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = F.huber_loss(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(y))
            model.eval()
            total = off = n = 0
            with torch.no_grad():
                for x, y in valid_batches():
                    pred = model(x)
                    total += F.huber_loss(pred, y).item() * len(y)
                    off += (pred - y).abs().sum().item()
                    n += len(y)
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / n, mae=off / n))
        return hand

    def learner(self, path):
        dls = DataLoaders(DataLoader(Stream(), 8), Batches(valid_batches), device="cpu")
        return Learner(dls, net(), nn.HuberLoss(), lr=1e-2, metrics=mae, path=path)
