"""Distillation: the loss holds a teacher, and a projection that is trained with the student."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, GradientClip, Learner, accuracy
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(4)
    x, y = torch.randn(61, 6, generator=g), torch.randint(3, (61,), generator=g)
    return loader(x[:40], y[:40], shuffle=True), loader(x[40:], y[40:])


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3)

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden), hidden, x


class Distillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Dropout(0.5)).requires_grad_(False).eval()
        self.projection, self.norm = nn.Linear(5, 9), nn.BatchNorm1d(9)

    def forward(self, out, y):
        logits, hidden, x = out
        wanted = self.teacher(x)
        return F.cross_entropy(logits, y) + F.mse_loss(self.norm(self.projection(hidden)), wanted)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()  # always
        return self


class TestDistillation(Program):
    def by_hand(self):
        (train, valid), model, loss_func = loaders(), Student(), Distillation()
        params = [p for p in [*model.parameters(), *loss_func.parameters()] if p.requires_grad]
        opt = torch.optim.AdamW(params, lr=1e-2, fused=True)
        hand = Hand([model, loss_func])
        for _ in range(self.n_epoch):
            model.train(), loss_func.train()
            losses, sizes = [], []
            for x, y in train:
                loss = loss_func(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(y))
            model.eval(), loss_func.eval()
            total = correct = 0
            with torch.no_grad():
                for x, y in valid:
                    out = model(x)
                    total += loss_func(out, y).item() * len(y)
                    correct += (out[0].argmax(1) == y).sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / 21, accuracy=correct / 21))
        return hand

    def learner(self, path):
        def student_accuracy(out, y):
            return accuracy(out[0], y)

        student_accuracy.__name__ = "accuracy"
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, Student(), Distillation(), lr=1e-2, cbs=GradientClip(0.5), metrics=student_accuracy, path=path)

    def modules(self, learn):
        return [learn.model, learn.loss_func]
