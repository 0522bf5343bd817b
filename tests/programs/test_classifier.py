"""An image classifier: augmentation in the dataset, batch norm, dropout, AdamW, a one-cycle schedule, clipped gradients."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from cbnb.all import DataLoaders, GradientClip, Learner, TorchScheduler, accuracy
from program import Hand, Program, mean


class Images(Dataset):
    def __init__(self, n, augment):
        g = torch.Generator().manual_seed(n)
        self.x, self.y, self.augment = torch.randn(n, 1, 8, 8, generator=g), torch.randint(4, (n,), generator=g), augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i] + self.y[i] / 4
        return (x.flip(-1) if self.augment and torch.rand(()) < 0.5 else x), self.y[i]


def loaders():
    return DataLoader(Images(44, True), 8, shuffle=True), DataLoader(Images(21, False), 8)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 4)
    )


class TestClassifier(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        sched = OneCycleLR(opt, 1e-2, total_steps=self.n_epoch * len(train))
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, y in train:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                losses.append(loss.item()), sizes.append(len(y))
            model.eval()
            total = correct = 0
            with torch.no_grad():
                for x, y in valid:
                    pred = model(x)
                    total += F.cross_entropy(pred, y).item() * len(y)
                    correct += (pred.argmax(1) == y).sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / 21, accuracy=correct / 21))
        return hand

    def learner(self, path):
        n_steps = self.n_epoch * 6
        return Learner(
            DataLoaders(*loaders(), device="cpu"),
            net(),
            nn.CrossEntropyLoss(),
            torch.optim.AdamW,
            lr=1e-2,
            metrics=accuracy,
            path=path,
            cbs=[GradientClip(1.0), TorchScheduler(lambda opt: OneCycleLR(opt, 1e-2, total_steps=n_steps))],
        )
