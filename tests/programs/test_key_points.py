"""Key points as heat maps, of which some are not visible: two targets, and a loss and a metric that count the visible points only."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import AccumMetric, AvgMetric, DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(41, 1, 6, 6, generator=g)
    at = torch.stack([x.flatten(1).argmax(1), x.flatten(1).argmin(1)], 1)
    maps, visible = F.one_hot(at, 36).view(41, 2, 6, 6).float(), (torch.rand(41, 2, generator=g) > 0.6).float()
    train, valid = ([t[part] for t in (x, maps, visible)] for part in (slice(30), slice(30, None)))
    return loader(*train, bs=4, shuffle=True), loader(*valid, bs=4)


def net():
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1))


def loss_func(pred, maps, visible):
    return (((pred - maps) ** 2).mean((2, 3)) * visible).sum() / visible.sum().clamp(min=1)


def found(pred, maps, visible):
    right = pred.flatten(2).argmax(-1) == maps.flatten(2).argmax(-1)
    return (right * visible).sum() / visible.sum().clamp(min=1)


def n_visible(pred, maps, visible):
    return visible.sum()


class TestKeyPoints(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, counts = [], []
            for x, maps, visible in train:
                loss = loss_func(model(x), maps, visible)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), counts.append(visible.sum())
            model.eval()
            with torch.no_grad():
                whole = [torch.cat(parts) for parts in zip(*((model(x), *y) for x, *y in valid))]
            share = found(*whole).item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, counts), valid_loss=loss_func(*whole).item(), found=share, all_found=share))
        return hand

    def learner(self, path):
        metrics = [AvgMetric(found, batch_weight=n_visible), AccumMetric(found, name="all_found", flatten=False)]
        dls = DataLoaders(*loaders(), n_inp=1, device="cpu")
        return Learner(dls, net(), loss_func, lr=1e-2, metrics=metrics, batch_weight=n_visible, path=path)
