"""SAM: an update with two passes, in a step that does it all by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, UpdateStep
from program import Hand, Program, loader, mean

RHO = 0.05


def loaders():
    g = torch.Generator().manual_seed(9)
    x = torch.randn(61, 6, generator=g)
    y = x.sin().sum(1, keepdim=True)
    return loader(x[:44], y[:44], shuffle=True), loader(x[44:], y[44:])


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def sam_update(model, opt, loss_func, x, y):
    """Climb to the worst point nearby, and descend with the gradient there."""
    loss = loss_func(model(x), y)
    loss.backward()
    params = list(model.parameters())
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    steps = [p.grad * (RHO / (norm + 1e-12)) for p in params]
    with torch.no_grad():
        torch._foreach_add_(params, steps)
    opt.zero_grad()
    loss_func(model(x), y).backward()
    with torch.no_grad():
        torch._foreach_sub_(params, steps)
    opt.step()
    opt.zero_grad()
    return loss.detach()


class TestSAM(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, y in train:
                losses.append(sam_update(model, opt, F.mse_loss, x, y).item()), sizes.append(len(y))
            model.eval()
            with torch.no_grad():
                found = [(F.mse_loss(model(x), y).item(), len(y)) for x, y in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        model = net()
        opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)

        def step(x, y):
            return sam_update(model, opt, F.mse_loss, x, y)

        return Learner(DataLoaders(*loaders(), device="cpu"), model, F.mse_loss, opt, train_step=UpdateStep(step, opt), path=path)
