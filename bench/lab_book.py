"""What a lab book costs: for each batch, for a whole fit, and for the table of 10,000 runs.

    python bench/lab_book.py            about a minute
    python bench/lab_book.py --quick    less exact, some seconds

The step of the first line computes nothing, as in loggers.py, and its losses have all their digits, so a batch takes a few microseconds. The
time of a batch is that of the whole fit, divided by the batches: it includes the start of the record and its last write. The second line
trains a small network on digits for some seconds. Fits with and without a lab book take turns.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from unittest import mock

import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.lab import table
from cbnb.lab.store import opened, transaction
from cbnb.toy import digits_learner
from loggers import Varied
from loop_overhead import Loader

MICROSECONDS, SHARE, SECONDS = 5.0, 0.01, 1.0  # the limits: of a batch, of a fit, of the table


def hollow(n_epoch: int) -> Callable[[], tuple[float, float]]:
    """A fit whose step computes nothing."""
    batches = [(torch.zeros(16, 1), torch.zeros(16, 1))] * 2000

    def fit() -> tuple[float, float]:
        learn = cbnb.Learner(
            cbnb.DataLoaders(Loader(batches), device="cpu"), nn.Linear(1, 1), nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.1,
            train_step=Varied(), default_cbs=False, cbs=[cbnb.TrainEvalCallback, cbnb.Recorder],
        )  # fmt: skip
        return timed(learn, n_epoch)

    return fit


def digits(n_epoch: int) -> Callable[[], tuple[float, float]]:
    """A fit of a small network."""
    return lambda: timed(digits_learner(), n_epoch)


def timed(learn: cbnb.Learner, n_epoch: int) -> tuple[float, float]:
    """Seconds of CPU time, and seconds."""
    learn.logger, learn.keep_restore_points = lambda row: None, 0
    began = time.process_time(), time.perf_counter()
    learn.fit(n_epoch)
    return time.process_time() - began[0], time.perf_counter() - began[1]


def compared(fit: Callable[[], tuple[float, float]], folder: str, rounds: int) -> tuple[float, float, float, float]:
    """Medians of the CPU time and the time without a lab book, and of what a lab book adds in the same round."""
    without, more = [], []
    for i in range(rounds + 1):
        pair = {}
        for kept in (False, True) if i % 2 else (True, False):
            book = cbnb.LabBook(folder) if kept else None
            pair[kept] = fit()
            if book is not None:
                book.close()
        if i:  # the first round imports
            without.append(pair[False])
            more.append([with_book - plain for with_book, plain in zip(pair[True], pair[False])])
    cpu, took = (statistics.median(values) for values in zip(*without))
    more_cpu, more_took = (statistics.median(values) for values in zip(*more))
    return cpu, took, more_cpu, more_took


def table_of(n: int, folder: str) -> tuple[float, int]:
    """Seconds of CPU time to show a lab book with `n` runs in a notebook, the least of three times, and the characters of the page."""
    book = cbnb.LabBook(folder)
    timed(digits_learner(), 2)
    book.close()
    columns = "status, started, ended, epochs, steps, summary"
    settings = book[1].settings
    with opened(book.file) as db, transaction(db):
        for i in range(n - len(book)):
            db.execute(
                f"INSERT INTO runs({columns}, settings) SELECT {columns}, ? FROM runs WHERE id=1",
                (json.dumps(settings | dict(lr=i / 1e5)),),
            )
    with mock.patch.object(table, "runs_scripts", lambda: True):  # as in a notebook
        seconds = []
        for _ in range(3):
            began = time.process_time()
            page = book._repr_html_()
            seconds.append(time.process_time() - began)
    return min(seconds), len(page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    n_epoch, rounds = (20, 3) if quick else (50, 9)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu, took, more_cpu, more_took = compared(hollow(n_epoch), f"{path}/hollow", rounds)
        each = 1e6 / (2000 * n_epoch)
        print(
            f"a batch of {2000 * n_epoch:,}: {cpu * each:.2f} µs of CPU time without a lab book, {more_cpu * each:+.2f} with it"
            f" (time: {took * each:.2f}, {more_took * each:+.2f})" + "    over the limit" * (more_cpu * each > MICROSECONDS)
        )
        n_epoch = 60 if quick else 150
        cpu, took, more_cpu, more_took = compared(digits(n_epoch), f"{path}/digits", rounds)
        print(
            f"a fit of {took:.1f} s: {more_cpu:+.3f} s of CPU time with a lab book, {more_cpu / cpu:+.1%}"
            f" (time: {more_took:+.3f} s, {more_took / took:+.1%})" + "    over the limit" * (more_cpu / cpu > SHARE)
        )
        seconds, n = table_of(10_000, f"{path}/table")
        print(f"the table of 10,000 runs: {seconds:.2f} s of CPU time, {n / 1e6:.2f} MB" + "    over the limit" * (seconds > SECONDS))
        size = os.path.getsize(f"{path}/digits/runs.sqlite") / (rounds + 1)
        print(f"the record of the fit of digits: {size / 1e3:.0f} KB")


if __name__ == "__main__":
    main()
