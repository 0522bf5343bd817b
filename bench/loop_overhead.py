"""What cbnb costs on top of a training loop written by hand: time a batch, memory a batch, and import time.

    python bench/loop_overhead.py                        all of it, about five minutes
    python bench/loop_overhead.py --quick                less exact, about one minute
    python bench/loop_overhead.py --json results.json    keep every measurement, too

The model is so small (64-32-10, batches of 32 digits) that a batch takes some 150 microseconds: whatever the library adds
shows. All contestants take turns in one process, forwards and then backwards, and each is compared with the hand-written
loop of the same round, so that a machine that slows down for a while slows both. CPU time counts; wall time is shown beside it.
"""

import argparse
import gc
import io
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import cbnb

LR, LR_MAX = 1e-3, 1e-2
HEAVY = "IPython ipywidgets matplotlib pandas scipy sklearn tqdm accelerate torchvision torchmetrics tensorboard wandb mlflow".split()
ABOUT_NOTHING = 0.03  # microseconds: what a difference of zero comes out as


class Loader:
    """A list of batches that notes the time whenever an epoch begins, so that nothing has to be added to the loops measured."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]], on_epoch: Callable[[int], None] = lambda n: None):
        self.batches, self.on_epoch, self.starts = list(batches), on_epoch, []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.starts.append((time.process_time(), time.perf_counter()))
        self.on_epoch(len(self.starts))
        return iter(self.batches)


@dataclass
class Task:
    """What everybody trains: data, model and loss. An epoch has 45 batches of training and 6 of validation."""

    train: Loader
    valid: Loader

    def model(self) -> nn.Module:
        torch.manual_seed(42)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    loss_func = nn.CrossEntropyLoss()

    @property
    def n_batches(self) -> int:
        return len(self.train) + len(self.valid)


def digits(on_epoch: Callable[[int], None] = lambda n: None) -> Task:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    return Task(Loader(zip(x[:1440].split(32), y[:1440].split(32)), on_epoch), Loader(zip(x[1440:].split(64), y[1440:].split(64))))


# The contestants: each takes a task and a number of epochs, and trains.


def bare(task: Task, epochs: int, one_cycle: bool = False) -> None:
    """The loop people write by hand."""
    model, loss_func = task.model(), task.loss_func
    opt = torch.optim.Adam(model.parameters(), lr=LR)
    scheduler = OneCycleLR(opt, LR_MAX, total_steps=epochs * len(task.train)) if one_cycle else None
    for _ in range(epochs):
        model.train()
        for x, y in task.train:
            loss = loss_func(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            if scheduler:
                scheduler.step()
        model.eval()
        total, count = torch.tensor(0.0), 0
        with torch.no_grad():
            for x, y in task.valid:
                total, count = total + loss_func(model(x), y) * len(x), count + len(x)
        (total / count).item()


class NoOp(cbnb.Callback):
    def __init__(self, number: int):  # with other settings each, lest one replace the other
        self.number = number

    def after_batch(self) -> None:
        pass


class NotPerBatch(cbnb.Callback):
    def __init__(self, number: int):
        self.number = number

    def before_epoch(self) -> None:
        pass


def ours(task: Task, epochs: int, one_cycle: bool = False, default_cbs: bool = True, cb: type | None = None, n_cbs: int = 0) -> None:
    dls = cbnb.DataLoaders(task.train, task.valid, device="cpu")
    cbs = [cb(i) for i in range(n_cbs)] if cb else None
    learn = cbnb.Learner(dls, task.model(), task.loss_func, torch.optim.Adam, lr=LR, default_cbs=default_cbs, cbs=cbs)
    if one_cycle:
        learn.fit_one_cycle(epochs, LR_MAX)
    else:
        learn.fit(epochs)


class FakeTerminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@dataclass
class Contestant:
    train: Callable[[Task, int], None]
    against: str = "bare loop"  # the contestant it is compared with
    terminal: bool = False  # is the output a terminal, so that a bar is drawn

    def cost(self, epochs: int) -> tuple[float, float]:
        """Microseconds a batch, of CPU time and of wall time; the first epoch, which warms up, is left out."""
        task = digits()
        gc.collect()
        with open(os.devnull, "wb") as sink, (FakeTerminal if self.terminal else io.TextIOWrapper)(sink) as out, redirect_stdout(out):
            self.train(task, epochs + 2)
        starts = task.train.starts
        if len(starts) != epochs + 2:
            raise RuntimeError(f"{len(starts)} epochs instead of {epochs + 2}")
        return tuple((end - start) / (epochs * task.n_batches) * 1e6 for start, end in zip(starts[1], starts[-1]))


CONTESTANTS = {
    "bare loop": Contestant(bare),
    "bare loop, OneCycleLR": Contestant(partial(bare, one_cycle=True)),
    "no callbacks": Contestant(partial(ours, default_cbs=False)),
    "default": Contestant(ours),
    "default, terminal": Contestant(ours, terminal=True),
    "one-cycle": Contestant(partial(ours, one_cycle=True), against="bare loop, OneCycleLR"),
    "10 no-op callbacks": Contestant(partial(ours, default_cbs=False, cb=NoOp, n_cbs=10), against="no callbacks"),
    "100 no-op callbacks": Contestant(partial(ours, default_cbs=False, cb=NoOp, n_cbs=100), against="no callbacks"),
    "100 not per batch": Contestant(partial(ours, default_cbs=False, cb=NotPerBatch, n_cbs=100), against="no callbacks"),
}

Costs = dict[str, list[tuple[float, float]]]  # contestant -> for each round (CPU, wall) in microseconds a batch


def race(contestants: dict[str, Contestant], rounds: int, epochs: int) -> Costs:
    costs: Costs = {name: [] for name in contestants}
    for contestant in contestants.values():
        contestant.cost(2)
    for i in range(rounds):
        for name in list(contestants)[:: 1 if i % 2 == 0 else -1]:
            costs[name].append(contestants[name].cost(epochs))
        print(f"\rround {i + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return costs


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def ratios(costs: Costs, name: str) -> tuple[float, float, float]:
    """Quartiles of the CPU time as a multiple of what it is compared with, round by round."""
    return quartiles(mine[0] / theirs[0] for mine, theirs in zip(costs[name], costs[CONTESTANTS[name].against]))


def per_callback(costs: Costs, name: str, n: int) -> float:
    return statistics.median((mine[0] - theirs[0]) / n for mine, theirs in zip(costs[name], costs["no callbacks"]))
