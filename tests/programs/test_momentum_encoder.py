"""Contrastive learning with a queue: a step of one's own, with a buffer, a second encoder that follows the first, and a learned temperature."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, Step
from program import Hand, Program, loader, mean

WIDTH, PLACES = 4, 24


class Queue(nn.Module):
    """Compares each item with its key and with the keys of earlier batches"""

    def __init__(self):
        super().__init__()
        self.log_scale = nn.Parameter(torch.ones(()))
        self.register_buffer("keys", F.normalize(torch.randn(PLACES, WIDTH), dim=1))
        self.register_buffer("next", torch.zeros((), dtype=torch.long))

    def forward(self, a, key):
        logits = torch.cat([(a * key).sum(1, keepdim=True), a @ self.keys.clone().T], 1) * self.log_scale.exp()
        return F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long)), (logits.argmax(1) == 0).float().mean()

    def add(self, key):
        self.keys[(self.next + torch.arange(len(key))) % PLACES] = key
        self.next += len(key)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, WIDTH))

    def forward(self, x):
        return F.normalize(super().forward(x), dim=1)


@torch.no_grad()
def follow(encoder, model):
    for a, b in zip(encoder.parameters(), model.parameters()):
        a.lerp_(b, 0.1)


class Contrast(Step):
    def __init__(self, model):
        self.queue, self.encoder = Queue(), copy.deepcopy(model).requires_grad_(False)

    def loss(self, learn):
        with torch.no_grad():
            key = self.encoder(learn.yb[0])
        learn.loss_grad, share = self.queue(learn.pred, key)
        learn.loss, learn.loss_parts = learn.loss_grad.detach(), dict(share=share)
        if learn.training:
            self.queue.add(key)

    def step(self, learn):
        super().step(learn)
        follow(self.encoder, learn.model)


def loaders():
    a = torch.randn(45, 6, generator=torch.Generator().manual_seed(5))
    b = a + 0.1
    return loader(a, b, shuffle=True), loader(a[:20], b[:20])


class TestMomentumEncoder(Program):
    """The columns of a part are weighted as the loss is, and here both are means of items."""

    warned = frozenset({"D12"})  # the validation items are training items

    def by_hand(self):
        (train, valid), model = loaders(), Net()
        queue, encoder = Queue(), copy.deepcopy(model).requires_grad_(False)
        opt = torch.optim.AdamW([*model.parameters(), *queue.parameters()], lr=1e-2, fused=True)
        hand = Hand([model, queue, encoder])
        for _ in range(self.n_epoch):
            model.train()
            found = []
            for a, b in train:
                key = encoder(b)
                loss, share = queue(model(a), key)
                queue.add(key)
                loss.backward()
                opt.step()
                opt.zero_grad()
                follow(encoder, model)
                found.append((loss.item(), share, len(a)))
            model.eval()
            losses, shares, sizes = zip(*found)
            row = dict(train_loss=mean(losses, sizes), share=mean(shares, sizes))
            with torch.no_grad():
                losses_, shares, sizes = zip(*[(*queue(model(a), encoder(b)), len(a)) for a, b in valid])
            hand.rows.append(row | dict(valid_loss=mean(losses_, sizes), valid_share=mean(shares, sizes)))
            hand.losses += losses
        return hand

    def learner(self, path):
        model = Net()
        return Learner(DataLoaders(*loaders(), device="cpu"), model, lr=1e-2, train_step=Contrast(model), path=path)

    def modules(self, learn):
        step = learn.train_step
        return [learn.model, step.queue, step.encoder]

    def validated(self, learn):
        return dict(zip(["valid_loss", "valid_share"], learn.validate()))
