"""Contrastive learning without labels: two views of each item, and a loss of the whole batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, mean


class Views(Dataset):
    def __init__(self, n, noise):
        self.x, self.noise = torch.randn(n, 6, generator=torch.Generator().manual_seed(n)), noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if not self.noise:
            return self.x[i], self.x[i].roll(1)
        return self.x[i] + self.noise * torch.randn(6), self.x[i] + self.noise * torch.randn(6)


def loaders():
    return DataLoader(Views(45, 0.3), 8, shuffle=True, drop_last=True), DataLoader(Views(20, 0), 8)


def net():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def info_nce(a, b, temperature=0.2):
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    logits = a @ b.T / temperature
    numbers = torch.arange(len(a))
    return (F.cross_entropy(logits, numbers) + F.cross_entropy(logits.T, numbers)) / 2


class TestContrastive(Program):
    """The function that trains evaluates too."""

    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses = []
            for a, b in train:
                loss = info_nce(model(a), model(b))
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                found = [(info_nce(model(a), model(b)).item(), len(a)) for a, b in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, [8] * len(losses)), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        model = net()

        def step(a, b):
            return info_nce(model(a), model(b))

        return Learner(DataLoaders(*loaders(), device="cpu"), model, lr=1e-2, train_step=step, path=path)
