"""What checkpoints cost: a batch after which none is due, and one of 200 MB that is written while the fit goes on.

python bench/checkpoints.py             two minutes; --quick for a fifth of it
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.step import Step

MB = 1_000_000


class Still(Step):
    """Trains nothing, so that a batch takes a microsecond."""

    def __init__(self):
        super().__init__()
        self.known = torch.zeros(()), torch.zeros(())

    def predict(self, learn):
        learn.pred = self.known[0]

    def loss(self, learn):
        learn.loss = learn.loss_grad = self.known[1]

    def backward(self, learn): ...

    def step(self, learn): ...

    def zero_grad(self, learn): ...


def still_learner(n, path):
    batch = torch.zeros(1), torch.zeros(1)
    dls = cbnb.DataLoaders([batch] * n, device="cpu")
    cbs = [cbnb.Callback(after_batch=lambda self: None)]  # another one that handles the event, as the recorder does
    return cbnb.Learner(dls, nn.Linear(1, 1), nn.MSELoss(), train_step=Still(), path=path, default_cbs=False, cbs=cbs)


def seconds_of_phase(learn):
    """The time of all batches."""
    times = []

    class Clock(cbnb.Callback):
        order = -1000

        def before_train(self):
            times.append(time.perf_counter())

        def after_train(self):
            times.append(time.perf_counter())

    with contextlib.redirect_stdout(io.StringIO()):
        learn.fit(1, cbs=Clock())
    return times[1] - times[0]


def not_due(n, rounds, path, **every):
    """Microseconds that a `Checkpoint` adds to a batch: of the quickest rounds, and the middle half of all."""
    pairs = []
    for _ in range(rounds):
        without = seconds_of_phase(still_learner(n, path))
        pairs.append((without, seconds_of_phase(still_learner(n, path).add_cb(cbnb.Checkpoint(**every)))))
    quickest = min(b for _, b in pairs) - min(a for a, _ in pairs)
    return quickest / n * 1e6, statistics.quantiles([(b - a) / n * 1e6 for a, b in pairs], n=4)


class Works(cbnb.Callback):
    """Stands for a device that does the work: the batch takes some time, in which the processor is free."""

    def __init__(self, seconds):
        self.seconds = seconds

    def after_step(self):
        time.sleep(self.seconds)


def large_learner(n_mb, path, n_batches):
    width = round((n_mb * MB / 4) ** 0.5)
    batch = torch.zeros(1, width), torch.zeros(1, width)
    model = nn.Linear(width, width, bias=False)
    dls = cbnb.DataLoaders([batch] * n_batches, device="cpu")
    return cbnb.Learner(dls, model, nn.MSELoss(), train_step=Still(), path=path, default_cbs=False)


class Waits(cbnb.Callback):
    """How long each save keeps the fit from its next batch."""

    def __init__(self, every):
        self.every, self.seconds = every, []

    def before_batch(self):
        if self.learn.train_iter % self.every == 0 and self.learn.train_iter:
            self.seconds.append(time.perf_counter() - self.begun)

    order = 999

    def after_batch(self):
        self.begun = time.perf_counter()


def delays(n_mb, saves, busy, background):
    """Seconds that each save delays the fit, the first one (which allocates its copies) apart."""
    every, pause = 10, 0.3
    with tempfile.TemporaryDirectory() as path, contextlib.redirect_stdout(io.StringIO()):
        waits = Waits(every)
        learn = large_learner(n_mb, path, every * saves + 1)
        learn.fit(1, cbs=[cbnb.Checkpoint(every_steps=every, keep=1, background=background), Works(pause if busy else 0), waits])
    return waits.seconds


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--quick", action="store_true")
    quick = args.parse_args().quick
    n, rounds = (20_000, 5) if quick else (100_000, 15)
    print("| a `Checkpoint` that is not due | us a batch, quickest rounds | half of the rounds | limit |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as path:
        for words, every in (("by epochs", {}), ("by steps", dict(every_steps=10**9)), ("by time", dict(every_seconds=10**6))):
            best, (low, _, high) = not_due(n, rounds, Path(path), **every)
            print(f"| {words} | {best:.2f} | {low:.2f} to {high:.2f} | 1 |", flush=True)
    saves, n_mb = (3, 200) if quick else (6, 200)
    print(f"\n| a save of {n_mb} MB delays the fit by | seconds | of a save in the foreground | limit |\n|---|---|---|---|")
    front = statistics.median(delays(n_mb, saves, True, False))
    print(f"| in the foreground | {front:.3f} | | |", flush=True)
    first, *others = delays(n_mb, saves, True, True)
    back = statistics.median(others)
    print(f"| in the background | {back:.3f} | {back / front:.1%} | 5% |")
    print(f"| its first one, which needs the memory | {first:.3f} | {first / front:.1%} | |")


if __name__ == "__main__":
    main()
