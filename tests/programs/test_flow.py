"""A normalizing flow: batches without targets, and a loss that takes only the prediction, which is a tuple."""

import math

import torch
from torch import nn

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    x = 2 * torch.randn(63, 4, generator=torch.Generator().manual_seed(3)) + 1
    return loader(x[:44], shuffle=True), loader(x[44:])


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, x):
        log_det = torch.zeros(len(x))
        for net in self.nets:
            a, b = x.chunk(2, 1)
            shift, scale = net(a).chunk(2, 1)
            scale = scale.tanh()
            x, log_det = torch.cat([b * scale.exp() + shift, a], 1), log_det + scale.sum(1)
        return x, log_det


def nll(out):
    z, log_det = out
    return (0.5 * z.square().sum(1) + z.shape[1] / 2 * math.log(2 * math.pi) - log_det).mean()


class TestFlow(Program):
    def by_hand(self):
        (train, valid), model = loaders(), Flow()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            losses, sizes = [], []
            for (x,) in train:
                loss = nll(model(x))
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(x))
            with torch.no_grad():
                found = [(nll(model(x)).item(), len(x)) for (x,) in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*loaders(), device="cpu"), Flow(), nll, lr=1e-2, path=path)

    def test_each_item_has_its_loss(self, tmp_path):
        learn = self.trained(tmp_path)
        *_, losses = learn.get_preds(with_loss=True)
        (x,), model = learn.dls.valid.dataset.tensors, learn.model.eval()
        with torch.no_grad():
            assert torch.allclose(losses, torch.stack([nll(model(x[i : i + 1])) for i in range(len(x))]))
        assert not learn.check().codes
