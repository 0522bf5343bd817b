"""Segmentation with class weights, and a pixel label that means "unknown"."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, accuracy
from program import Hand, Program, loader, mean

WEIGHTS, UNKNOWN = torch.tensor([0.2, 1.0, 4.0]), 255


def loaders():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(49, 1, 8, 8, generator=g)
    y = torch.bucketize(x[:, 0] + 0.3 * torch.randn(49, 8, 8, generator=g), torch.tensor([0.8, 1.6]))
    y[torch.rand(y.shape, generator=g) < torch.rand(49, 1, 1, generator=g) * 0.9] = UNKNOWN
    return loader(x[:30], y[:30], bs=4, shuffle=True), loader(x[30:], y[30:], bs=4)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, 2), nn.Conv2d(5, 3, 1)

    def forward(self, x):
        return self.out(torch.cat([x, self.up(self.down(x))], 1))


class TestSegmentation(Program):
    def by_hand(self):
        (train, valid), model = loaders(), UNet()
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
        hand = Hand(model)

        def loss_and_weight(pred, y):
            known = y != UNKNOWN
            return F.cross_entropy(pred, y, WEIGHTS, ignore_index=UNKNOWN), WEIGHTS[y[known]].sum().item()

        for _ in range(self.n_epoch):
            model.train()
            losses, weights = [], []
            for x, y in train:
                loss, weight = loss_and_weight(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), weights.append(weight)
            model.eval()
            total = weight = correct = n = 0
            with torch.no_grad():
                for x, y in valid:
                    pred, known = model(x), y != UNKNOWN
                    loss, its_weight = loss_and_weight(pred, y)
                    total, weight = total + loss.item() * its_weight, weight + its_weight
                    correct += (pred.argmax(1) == y)[known].sum().item()
                    n += known.sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, weights), valid_loss=total / weight, accuracy=correct / n))
        return hand

    def learner(self, path):
        loss_func = nn.CrossEntropyLoss(WEIGHTS, ignore_index=UNKNOWN)
        opt_func = partial(torch.optim.SGD, momentum=0.9)
        return Learner(DataLoaders(*loaders(), device="cpu"), UNet(), loss_func, opt_func, lr=0.05, metrics=accuracy, path=path)
