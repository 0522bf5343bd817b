"""Meta-learning: the loss of a task is that of weights which an inner loop has adapted, so it contains gradients of the parameters."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, mean


def tasks(n, seed):
    g = torch.Generator().manual_seed(seed)
    slope, x = 3 * torch.rand(n, 1, 1, generator=g), torch.rand(n, 10, 1, generator=g)
    y = slope * x + torch.rand(n, 1, 1, generator=g)
    return [(x[i, :5], y[i, :5], x[i, 5:], y[i, 5:]) for i in range(n)]


def loaders():
    return DataLoader(tasks(27, 1), 4, shuffle=True), DataLoader(tasks(10, 2), 4)


def net():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def adapted(model, x, y):
    """The parameters after two steps on one task."""
    params = dict(model.named_parameters())
    for _ in range(2):
        loss = F.mse_loss(functional_call(model, params, (x,)), y)
        grads = torch.autograd.grad(loss, params.values(), create_graph=model.training)
        params = {name: p - 0.1 * grad for (name, p), grad in zip(params.items(), grads)}
    return params


def meta_loss(model, *batch):
    with torch.enable_grad():  # in validation, too
        losses = [F.mse_loss(functional_call(model, adapted(model, x, y), (query,)), wanted) for x, y, query, wanted in zip(*batch)]
    return torch.stack(losses).mean()


class TestMetaLearning(Program):
    """The learner updates the weights with the gradients of the function's loss, which computes gradients itself."""

    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for batch in train:
                loss = meta_loss(model, *batch)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(batch[0]))
            model.eval()
            found = [(meta_loss(model, *batch).item(), len(batch[0])) for batch in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        model = net()

        def step(*batch):
            return meta_loss(model, *batch)

        return Learner(DataLoaders(*loaders(), device="cpu"), model, lr=1e-2, train_step=step, path=path)
