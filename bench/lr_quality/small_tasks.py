"""Small tasks, with 14 to 400 rows of training: tables of scikit-learn and synthetic ones, by family in two halves.

The half `choose` is for choices, the half `judge` only for judging. It has the four tables of FAULTS N30. No family is in both. Of each task, the
validation rows are 30% of what a user has. Where there are more rows (`test`), a learner has never seen them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import nn
from torch.utils.data import TensorDataset

from cbnb.all import DataLoaders, Learner, ProgressCallback

Rows = tuple[np.ndarray, np.ndarray]


@dataclass
class Small:
    """A task. `n`: rows of training and validation together; the others are for tests."""

    name: str
    rows: Callable[[], Rows]
    model: Callable[[], nn.Module]
    n: int
    bs: int = 16
    opt: Any = torch.optim.AdamW
    half: str = "choose"

    def split(self, seed: int) -> list[TensorDataset]:
        """Training, validation and test rows, drawn with the seed."""
        x, y = (torch.tensor(part) for part in _rows(self.rows))
        order, n_train = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed)), int(0.7 * self.n)
        ends = ((0, n_train), (n_train, self.n), (self.n, self.n + 1000))
        return [TensorDataset(x[order[a:b]], y[order[a:b]]) for a, b in ends]

    def learner(self, seed: int) -> tuple[Learner, TensorDataset]:
        """A fresh learner, and the test rows."""
        torch.manual_seed(seed)
        train, valid, test = self.split(seed)
        dls = DataLoaders.from_datasets(train, valid, bs=self.bs, device="cpu")
        loss = nn.MSELoss() if train[0][1].is_floating_point() else nn.CrossEntropyLoss()
        learn = Learner(dls, self.model(), loss, opt_func=self.opt)
        learn.logger = lambda row: None
        return learn.remove_cb(ProgressCallback), test


@cache
def _rows(rows: Callable[[], Rows]) -> Rows:
    """Standard inputs; classes as whole numbers, other targets standard."""
    x, y = rows()
    x = ((x - x.mean(0)) / (x.std(0) + 1e-8)).astype(np.float32)
    if np.asarray(y).dtype.kind in "iu":
        return x, y.astype(np.int64)
    y = y.reshape(len(y), -1)
    return x, ((y - y.mean(0)) / y.std(0)).astype(np.float32)


def loaded(name: str) -> Rows:
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return x, y.astype(int) if name not in ("diabetes", "linnerud") else y


def circles() -> Rows:
    return datasets.make_circles(1500, noise=0.15, factor=0.5, random_state=1)


def moons() -> Rows:
    return datasets.make_moons(200, noise=0.2, random_state=0)


def blobs() -> Rows:
    return datasets.make_blobs(1500, 6, centers=4, cluster_std=4.0, random_state=2)


def hastie() -> Rows:
    x, y = datasets.make_hastie_10_2(1500, random_state=3)
    return x, (y > 0).astype(int)


def xor() -> Rows:
    random = np.random.RandomState(4)
    x = random.randn(1500, 4)
    return x, ((x[:, 0] * x[:, 1] > 0) ^ (random.rand(1500) < 0.05)).astype(int)


def clusters(classes: int) -> Rows:
    return datasets.make_classification(1500, 12, n_informative=6, n_classes=classes, flip_y=0.1, random_state=5)


def quantiles() -> Rows:
    return datasets.make_gaussian_quantiles(n_samples=1500, n_features=5, n_classes=3, random_state=6)


def parity() -> Rows:
    random = np.random.RandomState(7)
    x = random.randint(0, 2, (1500, 6))
    return x + 0.1 * random.randn(1500, 6), x[:, :3].sum(1) % 2


def spirals() -> Rows:
    random = np.random.RandomState(8)
    turn, arm = np.sqrt(random.rand(1500)) * 2 * np.pi, random.randint(0, 2, 1500)
    sign = (1 - 2 * arm) * turn
    return np.stack([sign * np.cos(turn), sign * np.sin(turn)], 1) + 0.3 * random.randn(1500, 2), arm


def friedman(kind: int) -> Rows:
    return getattr(datasets, f"make_friedman{kind}")(1500, noise=(1.0, 100.0, 0.1)[kind - 1], random_state=9)


def sparse() -> Rows:
    return datasets.make_sparse_uncorrelated(1500, 10, random_state=10)


def roll() -> Rows:
    return datasets.make_swiss_roll(1500, noise=0.5, random_state=11)


def s_curve() -> Rows:
    return datasets.make_s_curve(1500, noise=0.1, random_state=12)


def linear() -> Rows:
    return datasets.make_regression(1500, 15, n_informative=5, noise=30.0, random_state=13)


def sine() -> Rows:
    random = np.random.RandomState(14)
    x = random.uniform(-2, 2, (1500, 1))
    return x, np.sin(3 * x[:, 0]) + 0.2 * random.randn(1500)


def mlp(*widths: int, norm: bool = False, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, narrow in zip(widths, widths[1:-1]):
        layers += [nn.Linear(wide, narrow), *([nn.BatchNorm1d(narrow)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def conv() -> nn.Module:
    first = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def sgd(params: Any, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr, momentum=0.9)


adam, judge = torch.optim.Adam, dict(half="judge")
load = {name: partial(loaded, name) for name in ("iris", "digits", "wine", "breast_cancer", "diabetes", "linnerud")}
TASKS = [
    Small("iris", load["iris"], partial(mlp, 4, 32, 3), 150),
    Small("iris-sgd", load["iris"], partial(mlp, 4, 16, 16, 3), 90, bs=8, opt=sgd),
    Small("digits", load["digits"], partial(mlp, 64, 64, 10), 300),
    Small("digits-norm-sgd", load["digits"], partial(mlp, 64, 48, 48, 10, norm=True), 570, bs=32, opt=sgd),
    Small("digits-conv", load["digits"], conv, 400),
    Small("friedman1", partial(friedman, 1), partial(mlp, 10, 64, 1), 140),
    Small("friedman2-sgd", partial(friedman, 2), partial(mlp, 4, 48, 1), 400, opt=sgd),
    Small("friedman3-tanh", partial(friedman, 3), partial(mlp, 4, 32, 32, 1, act=nn.Tanh), 280, opt=adam),
    Small("circles", circles, partial(mlp, 2, 64, 2), 170),
    Small("circles-norm", circles, partial(mlp, 2, 32, 32, 2, norm=True), 430, bs=32, opt=adam),
    Small("blobs", blobs, partial(mlp, 6, 64, 4), 70, bs=8),
    Small("hastie", hastie, partial(mlp, 10, 64, 2), 570, bs=32),
    Small("roll", roll, partial(mlp, 3, 64, 64, 1), 350),
    Small("sparse", sparse, partial(mlp, 10, 64, 1), 85),
    Small("xor-sgd", xor, partial(mlp, 4, 48, 2), 115, opt=sgd),
    Small("wine", load["wine"], partial(mlp, 13, 64, 3), 178, **judge),
    Small("breast_cancer", load["breast_cancer"], partial(mlp, 30, 64, 2), 569, **judge),
    Small("diabetes", load["diabetes"], partial(mlp, 10, 64, 1), 442, **judge),
    Small("moons", moons, partial(mlp, 2, 64, 2), 200, **judge),
    Small("clusters2", partial(clusters, 2), partial(mlp, 12, 64, 2), 60, bs=8, **judge),
    Small("clusters3-sgd", partial(clusters, 3), partial(mlp, 12, 48, 3), 300, opt=sgd, **judge),
    Small("quantiles", quantiles, partial(mlp, 5, 64, 3), 430, bs=32, **judge),
    Small("parity", parity, partial(mlp, 6, 32, 32, 2), 290, opt=adam, **judge),
    Small("spirals-norm", spirals, partial(mlp, 2, 64, 64, 2, norm=True), 570, bs=32, **judge),
    Small("sine", sine, partial(mlp, 1, 64, 1), 45, bs=8, **judge),
    Small("sine-sgd", sine, partial(mlp, 1, 32, 32, 1, act=nn.Tanh), 200, opt=sgd, **judge),
    Small("s_curve", s_curve, partial(mlp, 3, 64, 1), 215, **judge),
    Small("linear", linear, partial(mlp, 15, 64, 1), 30, bs=4, **judge),
    Small("linear-sgd", linear, partial(mlp, 15, 1), 140, opt=sgd, **judge),
    Small("linnerud", load["linnerud"], partial(mlp, 3, 16, 3), 20, bs=4, **judge),
]
