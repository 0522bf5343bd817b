"""Counts of claims for policies of different duration: columns and duration as inputs, a Poisson loss, and a sampler that draws claims more often."""

import torch
from sklearn.metrics import mean_poisson_deviance
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from cbnb.all import DataLoaders, Learner, SklearnMetric
from program import Hand, Program, mean


def items():
    g = torch.Generator().manual_seed(0)
    x, years = torch.randn(90, 4, generator=g), torch.rand(90, generator=g) + 0.1
    claims = torch.poisson(years * torch.exp(0.5 * x[:, 0]), generator=g)
    return [TensorDataset(x[part], years[part], claims[part]) for part in (slice(60), slice(60, None))]


def sampler(train):
    return WeightedRandomSampler(torch.where(train.tensors[2] > 0, 4.0, 1.0), 50)


class Rate(nn.Module):
    """The logarithm of the expected count."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, years):
        return self.net(x).squeeze(1) + years.log()


def deviance(y_true, y_pred):
    return mean_poisson_deviance(y_true, torch.as_tensor(y_pred).exp())


class TestClaims(Program):
    def by_hand(self):
        train, valid = items()
        train, valid, model, loss_func = DataLoader(train, 16, sampler=sampler(train)), DataLoader(valid, 32), Rate(), nn.PoissonNLLLoss()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, counts = [], []
            for x, years, y in train:
                loss = loss_func(model(x, years), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), counts.append(len(y))
            model.eval()
            with torch.no_grad():
                pred, y = (torch.cat(parts) for parts in zip(*((model(x, years), y) for x, years, y in valid)))
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, counts), valid_loss=loss_func(pred, y).item(), deviance=deviance(y, pred)))
        return hand

    def learner(self, path):
        train, valid = items()
        dls = DataLoaders.from_datasets(train, valid, bs=16, sampler=sampler(train), num_workers=0, device="cpu")
        metric = SklearnMetric(deviance, takes="values")
        return Learner(dls, Rate(), nn.PoissonNLLLoss(), lr=1e-2, wd=0.1, metrics=metric, path=path)
