"""A sine with noise to fit, as slowly as a person needs to watch it; for the cells of notebooks."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import cbnb.all as cbnb


def mae(pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (pred - y).abs().mean()


def wave_learner(n: int = 40, metrics: Sequence = (mae,), lr: float = 1e-2, n_valid: int = 5) -> cbnb.Learner:
    """`n` batches of 64 samples an epoch."""
    torch.manual_seed(0)
    x = torch.rand(64 * n, 1) * 6 - 3
    batches = list(zip(x.split(64), (x.sin() + 0.1 * torch.randn_like(x)).split(64)))
    model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
    dls = cbnb.DataLoaders(batches, batches[:n_valid], device="cpu")
    return cbnb.Learner(dls, model, nn.MSELoss(), lr=lr, metrics=list(metrics))


class Slowly(cbnb.Callback):
    """Makes a batch last longer; writes a dot for each of training to a file, and keeps the lr scale of the dashboard at each."""

    run_in = ("fit", "validate", "lr_find")

    def __init__(self, seconds: float = 0.01, path: str = "dots"):
        self.seconds, self.file, self.scales = seconds, open(path, "wb", buffering=0), []

    def before_batch(self):
        time.sleep(self.seconds)
        if self.learn.training:
            self.file.write(b".")
            self.scales.append(self.learn.steering.lr_scale if hasattr(self.learn, "steering") else None)


def count_dots(path: Path) -> int:
    """How many batches have been trained, without asking the kernel."""
    return path.stat().st_size
