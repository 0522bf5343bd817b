"""Small data: is the rate of a sweep as good as the best of five, and does a look at validation help?

    python bench/lr_small.py                       six minutes: 30 tasks with 14 to 400 training rows, 6 seeds, 6 epochs
    python bench/lr_small.py --epochs 30 --seeds 3
    python bench/lr_small.py wine moons            only these tasks

The tasks are in lr_quality/small_tasks.py, by family in two halves: choices are made on the first, and judged on the second. A rate is right if the
best epoch of one cycle with it has a validation loss at most 10% above the best of five rates, each with its best epoch. The same is asked of
test rows that no choice has seen, with the weights that validation chose. A refusal counts as right.

`lr_find(trials=1.)` does its whole fits, up to five. "Fits tried": train the fit itself with the rate of the sweep, then with its neighbours, a factor 10^(1/3) apart, the lower one first, as long as
one is better, by the validation loss. The seed is the same, so the last of them is the fit that you would do. "Shorter looks" do this
with a third and a sixth of the epochs, at rates scaled to this length as the sweep's rate would be.
"""

import argparse
import contextlib
import io
import math
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent / "lr_quality"))  # small_tasks

from small_tasks import TASKS, Small

from cbnb.lr.finder import LRFind

RATES, SPACING = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 10 ** (1 / 3)


@contextlib.contextmanager
def quiet():
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def fit(name: str, seed: int, n_epoch: int, rate: float) -> tuple[float, float]:
    """The lowest validation loss of a fit, and the test loss with the weights of that epoch (nan: too few rows)."""
    task = next(task for task in TASKS if task.name == name)
    with quiet():
        learn, test = task.learner(seed)
        learn.fit_one_cycle(n_epoch, rate, keep_best=True)
    losses = [loss for _, loss in learn.recorder.last().points("valid_loss") if math.isfinite(loss)]
    learn.model.eval()
    with torch.no_grad():
        unseen = float(learn.loss_func(learn.model(test.tensors[0]), test.tensors[1])) if len(test) >= 20 else math.nan
    return min(losses, default=math.inf), unseen


def swept(task: Small, seed: int, n_epoch: int, trials: bool | float = False) -> LRFind:
    with quiet():
        return task.learner(seed)[0].lr_find(n_epoch=n_epoch, trials=trials, show_plot=False)


def climb(first: float, most: int, loss: Callable[[float], float]) -> tuple[float, int]:
    """The best of the rates that were tried, and their number."""
    done = {0: loss(first)}
    while True:
        best = min(done, key=lambda k: (done[k], k))
        near = [k for k in (best - 1, best + 1) if k not in done]
        if not near or len(done) >= most:
            return first * SPACING**best, len(done)
        done[near[0]] = loss(first * SPACING ** near[0])


def ways(task: Small, seed: int, n_epoch: int, first: float) -> dict[str, tuple[float, float]]:
    """Each way to choose a rate -> the rate, and its cost beside the sweep as a share of the training."""
    tried = swept(task, seed, n_epoch, 1.0)
    found = {"the sweep's rate": (first, 0.0), "lr_find(trials=1.)": (tried.lr or first, float(len(tried.trials)))}
    for most in (2, 4):
        rate, n = climb(first, most, lambda rate: fit(task.name, seed, n_epoch, rate)[0])
        found[f"up to {most} fits tried"] = rate, float(n)
    for part in (3, 6):
        short = max(n_epoch // part, 1)
        scale = (n_epoch / short) ** 0.5
        rate, n = climb(first, 4, lambda rate: fit(task.name, seed, short, rate * scale)[0])
        found[f"4 looks of 1/{part}"] = rate, n * short / n_epoch
    return found


def judged(task: Small, seed: int, n_epoch: int) -> dict[str, tuple[float, float, float]]:
    """Each way -> right by validation, right on test rows (nan: none), cost."""
    best = [min(each) for each in zip(*(fit(task.name, seed, n_epoch, rate) for rate in RATES))]
    first = swept(task, seed, n_epoch).lr
    if first is None:
        return {}
    found = {}
    for way, (rate, cost) in ways(task, seed, n_epoch, first).items():
        losses = fit(task.name, seed, n_epoch, rate)
        found[way] = *(float(a <= 1.1 * b) if math.isfinite(b) else math.nan for a, b in zip(losses, best)), cost
    return found


def mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def show(title: str, tasks: list[Small], found: dict[str, list[dict]]) -> None:
    tasks = [task for task in tasks if found.get(task.name)]
    if not tasks:
        return
    refused = sum(not each for task in tasks for each in found[task.name])
    print(f"\n{title}: {len(tasks)} tasks, {refused} of {sum(len(found[t.name]) for t in tasks)} sweeps refused")
    names = list(dict.fromkeys(way for task in tasks for each in found[task.name] for way in each))

    def per_task(way: str, i: int) -> list[float]:
        return [mean([each[way][i] if each else 1.0 for each in found[task.name]]) for task in tasks]

    for way in names:
        costs = mean([each[way][2] for task in tasks for each in found[task.name] if each])
        line = f"  {way:22} costs {costs:4.0%} of the training beside the sweep"
        for i, words in enumerate(("by validation", "on unseen rows")):
            gains = [a - b for a, b in zip(per_task(way, i), per_task(names[0], i)) if not math.isnan(a)]
            gain = mean(gains)
            if len(gains) < 2:
                continue
            error = (sum((x - gain) ** 2 for x in gains) / (len(gains) - 1) / len(gains)) ** 0.5
            line += f"; right {words} {mean(per_task(way, i)):4.0%} ({100 * gain:+.0f} give or take {200 * error:.0f})"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these tasks")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [task for task in TASKS if not args.names or task.name in args.names]
    found: dict[str, list[dict]] = {}
    for task in tasks:
        found[task.name] = [judged(task, seed, args.epochs) for seed in range(args.seeds)]
        print(task.name, end=" ", flush=True)
    show("The half for choices", [task for task in tasks if task.half == "choose"], found)
    show("The half for judging", [task for task in tasks if task.half == "judge"], found)
    show("The four tables of N30", [task for task in tasks if task.name in ("wine", "breast_cancer", "diabetes", "moons")], found)


if __name__ == "__main__":
    main()
