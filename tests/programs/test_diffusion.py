"""A diffusion model: the step draws the times and the noise. In validation, they come from a generator of their own."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, loader, mean

T = 10
ALPHAS = torch.linspace(0.99, 0.5, T).cumprod(0)


def loaders():
    x = torch.randn(61, 2, generator=torch.Generator().manual_seed(2)).sin()
    return loader(x[:44], shuffle=True), loader(x[44:])


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.net = nn.Embedding(T, 4), nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


def denoising_loss(model, x, generator=None):
    t = torch.randint(T, (len(x),), generator=generator)
    noise = torch.randn(x.shape, generator=generator)
    a = ALPHAS[t][:, None]
    return F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)


class TestDiffusion(Program):
    def by_hand(self):
        (train, valid), model = loaders(), Denoiser()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for (x,) in train:
                loss = denoising_loss(model, x)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(x))
            model.eval()
            with torch.no_grad():
                found = [(denoising_loss(model, x, torch.Generator().manual_seed(1)).item(), len(x)) for (x,) in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        model = Denoiser()
        return Learner(
            DataLoaders(*loaders(), device="cpu", n_inp=1),
            model,
            lr=1e-2,
            train_step=lambda x: denoising_loss(model, x),
            eval_step=lambda x: (denoising_loss(model, x, torch.Generator().manual_seed(1)), x),
            path=path,
        )
