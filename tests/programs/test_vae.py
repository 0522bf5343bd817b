"""A VAE whose KL term grows over the fit, and whose parts are columns."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import Callback, DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    x = torch.randn(61, 6, generator=torch.Generator().manual_seed(2)).cumsum(1)
    return loader(x[:44], x[:44], shuffle=True), loader(x[44:], x[44:])


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x):
        mu, log_var = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (log_var / 2).exp() if self.training else mu
        return self.dec(z), mu, log_var


class ELBO:
    beta = 0.0

    def __call__(self, out, x):
        pred, mu, log_var = out
        recon = F.mse_loss(pred, x, reduction="none").sum(1).mean()
        kl = 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(1).mean()
        return dict(loss=recon + self.beta * kl, recon=recon, kl=kl)


class Anneal(Callback):
    def before_batch(self):
        self.learn.loss_func.beta = self.pct_train


class TestVAE(Program):
    def by_hand(self):
        (train, valid), model, loss_func = loaders(), VAE(), ELBO()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand, done, n_batches = Hand(model), 0, self.n_epoch * len(train)
        for _ in range(self.n_epoch):
            model.train()
            parts, sizes = [], []
            for x, y in train:
                loss_func.beta = done / n_batches
                found = loss_func(model(x), y)
                found["loss"].backward()
                opt.step()
                opt.zero_grad()
                done += 1
                parts.append([v.item() for v in found.values()]), sizes.append(len(x))
            model.eval()
            loss_func.beta = done / n_batches
            with torch.no_grad():
                found = [(len(x), *(v.item() for v in loss_func(model(x), y).values())) for x, y in valid]
            hand.losses += [p[0] for p in parts]
            n, *columns = zip(*found)
            hand.rows.append(
                dict(zip(["train_loss", "recon", "kl"], (mean(c, sizes) for c in zip(*parts))))
                | dict(zip(["valid_loss", "valid_recon", "valid_kl"], (mean(c, n) for c in columns)))
            )
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*loaders(), device="cpu"), VAE(), ELBO(), lr=1e-2, cbs=Anneal, path=path)

    def validated(self, learn):
        learn.remove_cb(Anneal).loss_func.beta = 1.0  # that of the end; a new learner has not trained
        return super().validated(learn)
