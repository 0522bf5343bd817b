"""Few labels, and many items without: two loaders side by side, and a teacher in the model that follows the student after each update."""

import copy
from itertools import chain, repeat

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import Callback, DataLoaders, Learner, accuracy
from program import Hand, Program, loader, mean


class Pairs:
    """A batch of the loader of other items with each of the longer loader, as two inputs and a target."""

    def __init__(self, labeled, others):
        self.labeled, self.others = labeled, others

    def __len__(self):
        return len(self.others)

    def __iter__(self):
        for (x, y), (other,) in zip(chain.from_iterable(repeat(self.labeled)), self.others):
            yield x, other, y


def loaders():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(103, 5, generator=g)
    y = (x.sum(1) > 0).long()
    return Pairs(loader(x[:24], y[:24], shuffle=True), loader(x[24:84], bs=12, shuffle=True)), loader(x[84:], y[84:])


class MeanTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x, other=None):
        if other is None:
            return self.student(x)
        with torch.no_grad():
            guess = self.teacher(other).softmax(1)
        return self.student(x), self.student(other), guess

    @torch.no_grad()
    def follow(self):
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.lerp_(s, 0.1)


def loss_func(pred, y):
    if isinstance(pred, torch.Tensor):
        return F.cross_entropy(pred, y)
    scores, other, guess = pred
    labels, agreement = F.cross_entropy(scores, y), F.mse_loss(other.softmax(1), guess)
    return dict(loss=labels + 2 * agreement, agreement=agreement)


class Follow(Callback):
    def after_step(self):
        self.model.follow()


class TestMeanTeacher(Program):
    def by_hand(self):
        (train, valid), model = loaders(), MeanTeacher()
        opt = torch.optim.AdamW(model.student.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, agreements = [], []
            for x, other, y in train:
                found = loss_func(model(x, other), y)
                found["loss"].backward()
                opt.step()
                opt.zero_grad()
                model.follow()
                losses.append(found["loss"].item()), agreements.append(found["agreement"].item())
            model.eval()
            with torch.no_grad():
                pred, y = (torch.cat(parts) for parts in zip(*((model(x), y) for x, y in valid)))
            ones = [1] * len(losses)
            row = dict(valid_loss=F.cross_entropy(pred, y).item(), accuracy=(pred.argmax(1) == y).float().mean().item())
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, ones), agreement=mean(agreements, ones)) | row)
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*loaders(), device="cpu"), MeanTeacher(), loss_func, lr=1e-2, metrics=accuracy, cbs=Follow, path=path)
