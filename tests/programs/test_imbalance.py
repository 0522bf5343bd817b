"""Rare classes: a sampler that draws them more often, a class weight, and k folds with a learner each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler

from cbnb.all import AccumMetric, DataLoaders, Learner
from program import Hand, Program, mean

K = 3
WEIGHT = torch.tensor([3.0])


def items():
    g = torch.Generator().manual_seed(8)
    x = torch.randn(60, 4, generator=g)
    return TensorDataset(x, (x.sum(1, keepdim=True) > 1.5).float())


def loaders(fold):
    data, numbers = items(), torch.arange(60)
    train, valid = numbers[numbers % K != fold].tolist(), numbers[numbers % K == fold].tolist()
    rare = data.tensors[1][train, 0] == 1
    sampler = WeightedRandomSampler(torch.where(rare, 4.0, 1.0), 40)
    return DataLoader(Subset(data, train), 8, sampler=sampler), DataLoader(Subset(data, valid), 8)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def recall(pred, y):
    return ((pred > 0) & (y == 1)).sum() / (y == 1).sum()


class Fold(Program):
    fold: int

    def by_hand(self):
        (train, valid), model = loaders(self.fold), net()
        loss_func = nn.BCEWithLogitsLoss(pos_weight=WEIGHT)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = loss_func(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(y))
            model.eval()
            with torch.no_grad():
                found = [(model(x), y) for x, y in valid]
                pred, y = (torch.cat(parts) for parts in zip(*found))
                row = dict(valid_loss=loss_func(pred, y).item(), recall=recall(pred, y).item())
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes)) | row)
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(self.fold), device="cpu")
        loss_func = nn.BCEWithLogitsLoss(pos_weight=WEIGHT)
        return Learner(dls, net(), loss_func, lr=1e-2, metrics=AccumMetric(recall), path=path)


class TestFold0(Fold):
    fold = 0


class TestFold1(Fold):
    fold = 1


class TestFold2(Fold):
    advised = frozenset(["O3"])
    fold = 2
