"""Mixed images with class weights and smoothed labels, random shifts of the images, and a rate for each part of the network."""

from functools import partial

import torch
from torch import nn
from torch.distributions import Beta
from torch.utils.data import DataLoader, Dataset

from cbnb.all import DataLoaders, Learner, MixUp, SklearnMetric, accuracy
from program import Hand, Program, mean

WEIGHTS, RATES = torch.tensor([0.5, 1.0, 3.0]), [1e-3, 1e-2, 3e-2]


class Images(Dataset):
    def __init__(self, n, seed, shifted):
        g = torch.Generator().manual_seed(seed)
        self.x, self.shifted = torch.rand(n, 1, 6, 6, generator=g), shifted
        self.y = torch.bucketize(self.x.mean((1, 2, 3)), torch.tensor([0.47, 0.52]))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        by = torch.randint(-1, 2, (2,)).tolist() if self.shifted else (0, 0)
        return self.x[i].roll(by, (1, 2)), self.y[i]


def loaders():
    return DataLoader(Images(36, 1, True), 8, shuffle=True), DataLoader(Images(20, 2, False), 8)


def net():
    body = [nn.Sequential(nn.Conv2d(i, o, 3), nn.BatchNorm2d(o), nn.ReLU()) for i, o in ((1, 4), (4, 8))]
    return nn.Sequential(*body, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)))


def splitter(model):
    return [list(part.parameters()) for part in model]


LOSS = nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1)


class TestMixUp(Program):
    def by_hand(self):
        from sklearn.metrics import f1_score

        (train, valid), model = loaders(), net()
        groups = [dict(params=params, lr=lr) for params, lr in zip(splitter(model), RATES)]
        opt = torch.optim.SGD(groups, momentum=0.9, fused=True)
        hand, shares = Hand(model), []
        for _ in range(self.n_epoch):
            model.train()
            losses, weights = [], []
            for x, y in train:
                order = torch.randperm(len(x))
                shares = shares or Beta(*torch.tensor([0.4, 0.4], dtype=torch.float64)).sample((100,)).tolist()
                share = shares.pop()
                pred = model(x.lerp(x[order], 1 - share))
                loss = LOSS(pred, y[order]).lerp(LOSS(pred, y), share)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), weights.append(WEIGHTS[y].sum().item())
            model.eval()
            with torch.no_grad():
                found = [(model(x), y) for x, y in valid]
            pred, y = (torch.cat(parts) for parts in zip(*found))
            right, f1 = (pred.argmax(1) == y).float().mean().item(), f1_score(y, pred.argmax(1), average="macro")
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, weights), valid_loss=LOSS(pred, y).item(), accuracy=right, f1_score=f1))
        return hand

    def learner(self, path):
        opt_func, metrics = partial(torch.optim.SGD, momentum=0.9), [accuracy, SklearnMetric("f1_score", average="macro")]
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, net(), LOSS, opt_func, lr=RATES, splitter=splitter, metrics=metrics, cbs=MixUp(), path=path)
