"""Boxes and labels: a model that returns a dict, targets in a dict, and a loss of two tasks that returns its parts beside it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cbnb.all import MAE, DataLoaders, Learner, accuracy, metric_on
from program import Hand, Program, mean


class Images(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(n, 1, 6, 6, generator=g)
        self.label, self.box = self.x.mean((1, 2, 3)).gt(0.5).long(), self.x[:, 0].amax(2)[:, :4]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return dict(image=self.x[i], target=dict(label=self.label[i], box=self.box[i]))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.label, self.box = nn.Linear(16, 2), nn.Linear(16, 4)

    def forward(self, image):
        found = self.body(image)
        return dict(label=self.label(found), box=self.box(found))


def loss_func(pred, target):
    label, box = F.cross_entropy(pred["label"], target["label"]), F.l1_loss(pred["box"], target["box"])
    return label + 2 * box, dict(label_loss=label, box_loss=box)


def loaders():
    return DataLoader(Images(36, 1), 8, shuffle=True), DataLoader(Images(20, 2), 8)


class TestDetection(Program):
    def by_hand(self):
        (train, valid), model = loaders(), Detector()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, parts, sizes = [], [], []
            for batch in train:
                loss, its_parts = loss_func(model(batch["image"]), batch["target"])
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), parts.append(its_parts), sizes.append(len(batch["image"]))
            model.eval()
            with torch.no_grad():
                found = [(model(batch["image"]), batch["target"]) for batch in valid]
            pred, target = ({k: torch.cat([pair[i][k] for pair in found]) for k in ("label", "box")} for i in (0, 1))
            total, valid_parts = loss_func(pred, target)
            hand.losses += losses
            hand.rows.append(
                dict(train_loss=mean(losses, sizes), valid_loss=total.item())
                | {name: mean([part[name] for part in parts], sizes) for name in valid_parts}
                | {f"valid_{name}": value.item() for name, value in valid_parts.items()}
                | dict(accuracy=(pred["label"].argmax(1) == target["label"]).float().mean().item())
                | dict(box_mae=(pred["box"] - target["box"]).abs().mean().item())
            )
        return hand

    def learner(self, path):
        metrics = [metric_on(accuracy, (0, "label"), (1, "label")), metric_on(MAE(), (0, "box"), (1, "box"), name="box_mae")]
        return Learner(DataLoaders(*loaders(), targets="target", device="cpu"), Detector(), loss_func, lr=1e-2, metrics=metrics, path=path)
