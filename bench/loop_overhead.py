"""What cbnb costs on top of a training loop written by hand: time a batch, memory a batch, and import time.

    python bench/loop_overhead.py                        all of it, about four minutes
    python bench/loop_overhead.py --quick                less exact, about one minute
    python bench/loop_overhead.py --json results.json    keep every measurement, too
    python bench/loop_overhead.py --watches              only what the watches of a fit cost, with recorded batches: half a minute

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
import tempfile
import time
import tracemalloc
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
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

import cbnb
from cbnb.insight import loop_faults, loss_faults

LR, LR_MAX = 1e-3, 1e-2
HEAVY = "IPython ipywidgets matplotlib pandas scipy sklearn tqdm accelerate torchvision torchmetrics tensorboard wandb mlflow".split()
ABOUT_NOTHING = 0.1  # microseconds: what a difference of zero comes out as, given the noise


class Loader:
    """A list of batches that notes the time whenever the first of them is asked for, so that nothing has to be added to the loops measured."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]], on_epoch: Callable[[int], None] = lambda n: None):
        self.batches, self.on_epoch, self.starts = list(batches), on_epoch, []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.starts.append((time.process_time(), time.perf_counter()))
        self.on_epoch(len(self.starts))
        yield from self.batches


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


def valid_loss(task: Task, model: nn.Module) -> float:
    """As people compute it at the end of an epoch."""
    model.eval()
    total, count = torch.tensor(0.0), 0
    with torch.no_grad():
        for x, y in task.valid:
            total, count = total + task.loss_func(model(x), y) * len(x), count + len(x)
    return (total / count).item()


def bare(
    task: Task, epochs: int, one_cycle: bool = False, opt_func: Callable[..., Optimizer] = partial(torch.optim.Adam, fused=True)
) -> nn.Module:
    """The loop people write by hand; with the form of the optimizer that a learner chooses, so that the loops are compared."""
    model, loss_func = task.model(), task.loss_func
    opt = opt_func(model.parameters(), lr=LR)
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
        valid_loss(task, model)
    return model


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


def ours(
    task: Task,
    epochs: int,
    one_cycle: bool = False,
    default_cbs: bool = True,
    cb: type | None = None,
    n_cbs: int = 0,
    opt_func: Callable[..., Optimizer] = torch.optim.Adam,
) -> nn.Module:
    dls = cbnb.DataLoaders(task.train, task.valid, device="cpu")
    cbs = [cb(i) for i in range(n_cbs)] if cb else None
    learn = cbnb.Learner(dls, task.model(), task.loss_func, opt_func, lr=LR, default_cbs=default_cbs, cbs=cbs)
    if one_cycle:
        learn.fit_one_cycle(epochs, LR_MAX)
    else:
        learn.fit(epochs)
    return learn.model


class FakeTerminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@dataclass
class Contestant:
    train: Callable[[Task, int], Any]
    against: str = "bare loop"  # the contestant it is compared with
    terminal: bool = False  # is the output a terminal? Then a bar is drawn, and for that to happen it trains longer
    task: Callable[[], Task] = digits

    def cost(self, epochs: int) -> tuple[float, float]:
        """Microseconds a batch, of CPU time and of wall time; the first epoch, which warms up, is left out."""
        task, epochs = self.task(), epochs * (5 if self.terminal else 1)
        gc.collect()
        with open(os.devnull, "wb") as sink, (FakeTerminal if self.terminal else io.TextIOWrapper)(sink) as out, redirect_stdout(out):
            self.train(task, epochs + 2)
        starts = task.train.starts
        if len(starts) != epochs + 2:
            raise RuntimeError(f"{len(starts)} epochs instead of {epochs + 2}")
        return tuple((end - start) / (epochs * task.n_batches) * 1e6 for start, end in zip(starts[1], starts[-1]))


CONTESTANTS = {
    "bare loop": Contestant(bare),
    "bare loop, SGD": Contestant(partial(bare, opt_func=torch.optim.SGD)),
    "bare loop, OneCycleLR": Contestant(partial(bare, one_cycle=True)),
    "no callbacks": Contestant(partial(ours, default_cbs=False)),
    "default": Contestant(ours),
    "default, terminal": Contestant(ours, terminal=True),
    "SGD": Contestant(partial(ours, opt_func=torch.optim.SGD), against="bare loop, SGD"),
    "one-cycle": Contestant(partial(ours, one_cycle=True), against="bare loop, OneCycleLR"),
    "10 no-op callbacks": Contestant(partial(ours, default_cbs=False, cb=NoOp, n_cbs=10), against="no callbacks"),
    "100 no-op callbacks": Contestant(partial(ours, default_cbs=False, cb=NoOp, n_cbs=100), against="no callbacks"),
    "100 not per batch": Contestant(partial(ours, default_cbs=False, cb=NotPerBatch, n_cbs=100), against="no callbacks"),
}

Costs = dict[str, list[tuple[float, float]]]  # contestant -> for each round (CPU, wall) in microseconds a batch


def race(contestants: dict[str, Contestant], rounds: int, epochs: int) -> Costs:
    """All of them in turn, forwards and then backwards"""
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


def median(values: Iterable[float]) -> tuple[float, float]:
    """The median, and how far off it may well be, judging by the spread and number of the values."""
    values = list(values)
    low, middle, high = quartiles(values)
    return middle, 1.57 * (high - low) / len(values) ** 0.5


def times(costs: Costs, name: str, against: str) -> tuple[float, float]:
    return median(mine[0] / theirs[0] for mine, theirs in zip(costs[name], costs[against]))


def per_callback(costs: Costs, name: str, n: int) -> tuple[float, float]:
    return median((mine[0] - theirs[0]) / n for mine, theirs in zip(costs[name], costs["no callbacks"]))


def memory(train: Callable[[Task, int], Any], repeats: int, epochs: tuple[int, int], resident: bool = False) -> float:
    """Bytes that each epoch of `repeats` times 45 batches leaves behind, our own notes included, in a process of its own

    Counted are the objects of Python, as tracemalloc sees them, tensors included. `resident` counts the pages of the process instead, without
    those of files: what an allocator keeps for itself, and what only C++ knows."""
    torch.set_num_threads(1)
    held = {}

    def look(epoch: int) -> None:
        if epoch not in epochs:
            return
        gc.collect()
        pages = psutil.Process().memory_info()
        held[epoch] = pages.rss - pages.shared if resident else tracemalloc.get_traced_memory()[0]

    task = digits(look)
    task.train.batches *= repeats
    if not resident:
        tracemalloc.start()
    with open(os.devnull, "w") as sink, redirect_stdout(sink):
        train(task, epochs[1])
    return (held[epochs[1]] - held[epochs[0]]) / (epochs[1] - epochs[0])


def kept(name: str, span: tuple[int, int]) -> tuple[float, float, float]:
    """Bytes that a batch and an epoch keep, and bytes of memory that a batch takes from the system, less those of the bare loop"""

    def more(repeats: int, resident: bool = False) -> float:
        epochs = tuple(n // 45 // repeats for n in span)
        ours, bare = (in_new_process(memory, CONTESTANTS[who].train, repeats, epochs, resident) for who in (name, "bare loop"))
        return ours - bare

    short, long = more(1), more(10)
    batch = (long - short) / (9 * 45)
    return batch, short - 45 * batch, more(1, resident=True) / 45


def watch_cost(n_batches: int, rounds: int) -> tuple[float, float]:
    """Microseconds a batch that a fit with an empty step spends in the watch of its losses. An empty pair of clock readings before each is taken off."""
    spent: list[float] = []

    def timed(*args: Any) -> None:
        before = time.thread_time()
        begun = time.thread_time()
        watch(*args)
        spent.append(time.thread_time() - 2 * begun + before)

    def empty(x: Tensor, y: Tensor) -> Tensor:
        return learn.model.weight.sum() * 0 + 1 / (1 + learn.train_iter / 50)

    (watch,), costs = cbnb.Recorder.watchers, []
    batches = [(torch.randn(64, 64), torch.randint(10, (64,))) for _ in range(n_batches)]
    cbnb.Recorder.watchers = (timed,)
    for _ in range(rounds):
        dls = cbnb.DataLoaders(batches, device="cpu")
        learn = cbnb.Learner(dls, nn.Linear(1, 1), nn.CrossEntropyLoss(), train_step=cbnb.LossStep(empty), default_cbs=True)
        spent.clear()
        with redirect_stdout(io.StringIO()):
            learn.fit(2700 // n_batches)
        costs.append(sum(spent) / learn.recorder.history[-1].n_steps * 1e6)
    cbnb.Recorder.watchers = (watch,)
    return median(costs)


class Replay(cbnb.Callback):
    """In a fit, let the same batches, numbers of updates and losses pass again and again, by turns with the watches of a fit and without."""

    order = 1000

    def __init__(self, n_epochs: int, n_batches: int, rounds: int):
        self.n_epochs, self.n_batches, self.rounds = n_epochs, n_batches, rounds
        self.times: dict[bool, list[float]] = {True: [], False: []}

    def after_batch(self) -> None:
        learn = self.learn
        if learn.train_iter > 1 or not learn.training:
            return
        for p in learn.model.parameters():
            p.grad = None
        before = learn.train_updates, learn.train_iter, learn.n_iter, learn.epoch
        learn.n_iter = self.n_batches
        batches = [(torch.zeros(1), torch.zeros(1))] * self.n_batches
        losses = [1 / (1 + i / 50) + 0.01 * (i * 7919 % 100) / 100 for i in range(self.n_epochs * self.n_batches)]
        so_far = [losses[: (epoch + 1) * self.n_batches] for epoch in range(self.n_epochs)]
        gc.disable()
        for turn in range(2 * self.rounds):
            self.pass_by(turn % 2 == 0, batches, so_far, before)
        gc.enable()
        learn.train_updates, learn.train_iter, learn.n_iter, learn.epoch = before
        loop_faults._counts.pop(learn.recorder.history[-1], None)

    def pass_by(self, watched: bool, batches: list[Any], so_far: list[list[float]], at: tuple[int, ...]) -> None:
        learn, run = self.learn, self.learn.recorder.history[-1]
        loop_faults._counts.pop(run, None)
        loss_faults._watched.pop(run, None)
        learn.train_updates, learn.train_iter = at[0], 0
        begun = time.thread_time()
        for epoch, losses in enumerate(so_far):
            learn.epoch = epoch
            for _ in loop_faults.watch_loop(learn, iter(batches)) if watched else iter(batches):
                learn.train_iter += 1
                learn.train_updates += 1
            if watched:
                loss_faults.watch(learn, run, losses)
        self.times[watched].append((time.thread_time() - begun) / len(so_far[-1]) * 1e6)


def watches_cost(n_epochs: int, n_batches: int, rounds: int) -> tuple[float, float, float]:
    """Microseconds of CPU time a batch that both watches of a fit take: the difference of the medians, and the two medians themselves."""
    learn = cbnb.Learner(
        cbnb.DataLoaders([(torch.randn(8, 64), torch.randint(10, (8,)))] * 2, device="cpu"),
        nn.Linear(64, 10),
        nn.CrossEntropyLoss(),
        default_cbs=True,
    )
    replay = Replay(n_epochs, n_batches, rounds)
    with redirect_stdout(io.StringIO()):
        learn.fit(1, cbs=replay)
    with_them, without = (statistics.median(replay.times[watched]) for watched in (True, False))
    return with_them - without, with_them, without


def show_watches(rounds: int) -> None:
    print("microseconds of CPU time a batch: with the watches, without, difference")
    for n_epochs, n_batches in ((10, 10), (3, 45), (20, 45), (3, 1000)):
        cost, with_them, without = watches_cost(n_epochs, n_batches, rounds)
        print(f"{n_epochs:4} epochs of {n_batches:5} batches {with_them:8.2f} {without:8.2f} {cost:8.2f}   {'ok' if cost <= 2 else 'FAIL'}")


def in_new_process(f: Callable[..., Any], *args: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(f, *args).result()


IMPORT = """
import json, sys, time
import torch
cpu, wall, before = time.process_time(), time.perf_counter(), set(sys.modules)
import cbnb
print(json.dumps([1e3*(time.process_time() - cpu), 1e3*(time.perf_counter() - wall), sorted(set(sys.modules) - before)]))
"""


def import_time(processes: int) -> tuple[float, float, list[str]]:
    """Milliseconds (CPU, wall) that `import cbnb` takes after `import torch` for a user, collections of garbage included: median over new processes; and what it loads that is heavy."""
    seen = []
    with tempfile.TemporaryDirectory() as compiled:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}  # as after an installation
        for _ in range(processes + 1):  # the first compiles, and fills the caches of the file system
            run = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, env=env)
            seen.append(json.loads(run.stdout))
    cpu, wall, modules = zip(*seen[1:])
    return statistics.median(cpu), statistics.median(wall), [name for name in HEAVY if name in modules[0]]


def show_costs(contestants: dict[str, Contestant], costs: Costs) -> None:
    print(f"\n{'CPU time a batch':24}{'us':>8}{'wall':>8}{'x':>8}   half of the rounds   compared with")
    for name, contestant in contestants.items():
        cpu, wall = (statistics.median(column) for column in zip(*costs[name]))
        low, middle, high = quartiles(mine[0] / theirs[0] for mine, theirs in zip(costs[name], costs[contestant.against]))
        print(f"{name:24}{cpu:8.1f}{wall:8.1f}{middle:8.3f}   {low:.3f} to {high:.3f}       {contestant.against}")


def verdict(what: str, measured: tuple[float, float], limit: float, unit: str) -> dict[str, Any]:
    """Print whether a value is within its limit, or that its uncertainty does not let one say."""
    value, unsure = measured
    word = "ok" if value + unsure <= limit else "FAIL" if value - unsure > limit else "?"
    print(f"{word:4}  {what:52} {value:8.3f} +-{unsure:6.3f}   at most {limit:g} {unit}")
    return dict(what=what, value=value, unsure=unsure, limit=limit, unit=unit, verdict=word)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less exact, about one minute")
    parser.add_argument("--rounds", type=int, help="how often each contestant trains")
    parser.add_argument("--epochs", type=int, default=10, help="for how long (default: 10)")
    parser.add_argument("--json", metavar="FILE", help="where to save all measurements")
    parser.add_argument("--watches", action="store_true", help="only what the watches of a fit cost")
    args = parser.parse_args()
    args.rounds = args.rounds or (8 if args.quick else 40)
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)  # the tensors are too small to share; and threads that wait would be counted
    if args.watches:
        show_watches(10 * args.rounds)
        return
    costs = race(CONTESTANTS, args.rounds, args.epochs)
    show_costs(CONTESTANTS, costs)

    batch, row, taken = kept("default", (3_000, 12_000) if args.quick else (5_000, 50_000))
    print(
        f"\nmemory less that of the bare loop: {batch:.1f} bytes a batch, {row:.0f} a row of the table; {taken:.0f} a batch taken from the system"
    )
    cpu, wall, heavy = import_time(3 if args.quick else 11)
    print(
        f"import cbnb after import torch: {cpu:.0f} ms of CPU time, {wall:.0f} ms of wall time; heavy modules loaded: {', '.join(heavy) or 'none'}\n"
    )

    def against(name: str) -> tuple[float, float]:
        return times(costs, name, CONTESTANTS[name].against)

    verdicts = [
        verdict("default callbacks", against("default"), 1.04, "x bare loop"),
        verdict("default callbacks with a progress bar", against("default, terminal"), 1.06, "x bare loop"),
        verdict("default callbacks, SGD", against("SGD"), 1.04, "x bare loop"),
        verdict("one-cycle", against("one-cycle"), 1.05, "x bare loop with OneCycleLR"),
        verdict("a further callback with a handler for each batch", per_callback(costs, "100 no-op callbacks", 100), 0.1, "us a batch"),
        verdict(
            "a further callback without one", per_callback(costs, "100 not per batch", 100), ABOUT_NOTHING, "us a batch (about nothing)"
        ),
        verdict("the watch of the losses, with an empty step, 45 batches an epoch", watch_cost(45, max(args.rounds, 8)), 2, "us a batch"),
        verdict("the watch of the losses, with an empty step, 10 batches an epoch", watch_cost(10, max(args.rounds, 8)), 2, "us a batch"),
        verdict("memory, a batch", (batch, 0), 24, "bytes"),
        verdict("memory, a row of the table", (row, 0), 600, "bytes"),
        verdict("memory taken from the system", (taken, 0), 64, "bytes a batch"),
        verdict("import, after torch", (wall, 0), 60, "ms"),
        verdict("heavy modules that import loads", (len(heavy), 0), 0, ""),
    ]
    if args.json:
        versions = dict(python=sys.version.split()[0], torch=torch.__version__, cbnb=cbnb.__version__)
        with open(args.json, "w") as file:
            json.dump(
                dict(versions=versions, costs=costs, memory=dict(batch=batch, row=row, taken=taken), import_ms=wall, verdicts=verdicts),
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
