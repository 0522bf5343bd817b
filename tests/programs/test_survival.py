"""Survival times, some of them censored: Cox's loss compares the items of a batch, and the concordance those of the whole set."""

import torch
from torch import nn

from cbnb.all import AccumMetric, DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(11)
    x = torch.randn(67, 4, generator=g)
    time = (-x.sum(1)).exp() * torch.rand(67, generator=g)
    died = (torch.rand(67, generator=g) < 0.6).float()
    return loader(x[:43], time[:43], died[:43], bs=16, shuffle=True), loader(x[43:], time[43:], died[43:], bs=10)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def cox(risk, time, died):
    """The mean over the deaths of the batch, each of which is compared with all items that lived at least as long."""
    order = time.argsort(descending=True)
    risk, died = risk.squeeze(1)[order], died[order]
    return ((risk.logcumsumexp(0) - risk) * died).sum() / died.sum()


def concordance(risk, time, died):
    """The share of comparable pairs in which the item with the higher risk dies first."""
    comparable = (time[:, None] < time) & (died[:, None] == 1)
    return ((risk[:, None] > risk) & comparable).sum() / comparable.sum()


class TestSurvival(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, deaths = [], []
            for x, time, died in train:
                loss = cox(model(x), time, died)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), deaths.append(died.sum().item())
            model.eval()
            with torch.no_grad():
                found = [(model(x), time, died) for x, time, died in valid]
                valid_loss = mean([cox(*batch).item() for batch in found], [died.sum().item() for *_, died in found])
            risk, time, died = map(torch.cat, zip(*found))
            hand.losses += losses
            row = dict(train_loss=mean(losses, deaths), valid_loss=valid_loss, concordance=concordance(risk.flatten(), time, died).item())
            hand.rows.append(row)
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), n_inp=1, device="cpu")
        metric = AccumMetric(concordance)
        return Learner(dls, net(), cox, lr=1e-2, metrics=metric, path=path, batch_weight=lambda risk, time, died: died.sum())
