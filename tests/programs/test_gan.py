"""A GAN with two optimizers, whose generator is trained in every third batch only."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, UpdateStep
from program import Hand, Program, loader, mean

N_CRITIC = 3


def loaders():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(5)) * 0.5 + 1
    return loader(x[:44], shuffle=True), loader(x[44:])


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.disc = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


class TestGAN(Program):
    """A step that has its own optimizers, as one carries it over from a loop."""

    def by_hand(self):
        (train, valid), model = loaders(), GAN()
        gen_opt = torch.optim.Adam(model.gen.parameters(), 1e-2, betas=(0.5, 0.9))
        disc_opt = torch.optim.Adam(model.disc.parameters(), 2e-2, betas=(0.5, 0.9))
        hand, turn = Hand(model), 0
        for _ in range(self.n_epoch):
            losses, sizes = [], []
            for (real,) in train:
                fake = model.gen(torch.randn(len(real), 2)).detach()
                loss = F.softplus(-model.disc(real)).mean() + F.softplus(model.disc(fake)).mean()
                disc_opt.zero_grad()
                loss.backward()
                disc_opt.step()
                turn += 1
                if turn % N_CRITIC == 0:
                    gen_opt.zero_grad()
                    F.softplus(-model.disc(model.gen(torch.randn(len(real), 2)))).mean().backward()
                    gen_opt.step()
                losses.append(loss.item()), sizes.append(len(real))
            total = 0
            with torch.no_grad():
                for (real,) in valid:
                    total += F.softplus(-model.disc(real)).sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / 16))
        return hand

    def learner(self, path):
        model = GAN()

        class Adversarial:
            def __init__(self):
                self.turn = 0
                self.gen_opt = torch.optim.Adam(model.gen.parameters(), 1e-2, betas=(0.5, 0.9))
                self.disc_opt = torch.optim.Adam(model.disc.parameters(), 2e-2, betas=(0.5, 0.9))
                self.opts = [self.gen_opt, self.disc_opt]

            def train(self, real):
                fake = model.gen(torch.randn(len(real), 2)).detach()
                loss = F.softplus(-model.disc(real)).mean() + F.softplus(model.disc(fake)).mean()
                self.disc_opt.zero_grad()
                loss.backward()
                self.disc_opt.step()
                self.turn += 1
                if self.turn % N_CRITIC == 0:
                    self.gen_opt.zero_grad()
                    F.softplus(-model.disc(model.gen(torch.randn(len(real), 2)))).mean().backward()
                    self.gen_opt.step()
                return loss

        def evaluate(real):
            return F.softplus(-model.disc(real)).mean(), real

        dls = DataLoaders(*loaders(), device="cpu", n_inp=1)
        return Learner(dls, model, train_step=UpdateStep(Adversarial().train), eval_step=evaluate, path=path)
