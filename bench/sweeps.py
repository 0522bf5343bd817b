"""What pruning saves in a sweep, and whether it finds a run as good as the whole grid has.

    python bench/sweeps.py              ten minutes: 7 tasks, 3 seeds, constant rate and one cycle, 30 runs each
    python bench/sweeps.py wave digits  only these tasks
    python bench/sweeps.py --noise      also each sweep with two orders of the batches: what the best settings are worth in the other order
    python bench/sweeps.py --optuna     also 30 runs that Optuna chooses, with its own pruners beside ours

Each sweep is made without pruning. The rule is then asked about its rows, in 20 orders of the runs: a run that is ended is the beginning of the whole one, so this is what `learn.sweep` does. For each task, the sweep with pruning is also made once, and compared.
"""

import argparse
import contextlib
import io
import math
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "lr_quality"))  # small_tasks

from small_tasks import TASKS

from cbnb.all import Learner
from cbnb.lab.sweep_runs import Grid, Space, Sweep, key_of
from cbnb.toy import digits_learner, wave_learner

RATES, DECAYS = [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1], [0.0, 0.01, 0.1, 0.3, 1.0]
METHODS = dict(fit="lr", fit_one_cycle="lr_max")
ORDERS, MOST, NEAR = 20, 0.4, 1.02  # orders of the runs; limits: batches of the whole grid, loss of its best run


def small(name: str, seed: int) -> Learner:
    [task] = [task for task in TASKS if task.name == name]
    return task.learner(seed)[0]


MAKERS: dict[str, Callable[[int], Learner]] = dict(wave=lambda seed: wave_learner(seed=seed), digits=lambda seed: digits_learner(seed=seed))
MAKERS |= {name: partial(small, name) for name in ("moons", "circles", "wine", "diabetes", "breast_cancer")}


def space_of(method: str) -> dict[str, Any]:
    return {METHODS[method]: RATES, "wd": DECAYS}


def swept(make: Callable[[int], Learner], method: str, n_epoch: int, seed: int, **settings: Any) -> Sweep:
    space = settings.pop("space", space_of(method))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(seed).sweep(space, n_epoch, method=method, seed=seed, **settings)


def pruned(curves: dict[tuple, list[float]], space: dict[str, Any], n_epoch: int, seed: int) -> tuple[float, float, tuple]:
    """The share of the epochs of all runs, the lowest loss at the end of a run, and the settings of this run."""
    rule, epochs, ended = Grid(Space(space), None, seed, True), 0, []
    for i in range(len(rule)):
        key = key_of(rule.point(i))
        for epoch, loss in enumerate(curves[key], 1):
            epochs += 1
            if rule.falls_behind(i, epoch, n_epoch, loss):
                break
        else:
            ended.append((curves[key][-1], key))
    return epochs / (len(rule) * n_epoch), *min(ended)


def curves_of(found: Sweep) -> dict[tuple, list[float]]:
    return {key_of(point): [found.score(row) for row in run.epochs] for point, run in zip(found.points, found.runs)}


def judged(found: Sweep, space: dict[str, Any], n_epoch: int) -> list[tuple[float, float]]:
    """For each order: the share of the epochs, and the lowest loss as a multiple of the lowest of all runs."""
    results = [pruned(curves_of(found), space, n_epoch, order) for order in range(ORDERS)]
    return [(share, best / found.best_value) for share, best, _ in results]


def line(name: str, results: list[tuple[float, float]]) -> None:
    shares, ratios = map(sorted, zip(*results))
    n = len(results)
    print(
        f"{name:26}{statistics.mean(shares):7.0%}{shares[-1]:7.0%}{sum(s <= MOST for s in shares) / n:9.0%}{sum(r <= NEAR for r in ratios) / n:9.0%}"
        f"{statistics.median(ratios) - 1:9.1%}{ratios[int(0.9 * n)] - 1:9.1%}",
        flush=True,
    )


def with_noise(names: list[str], epochs: int, seeds: int) -> None:
    """The settings that were best with one order of the batches, trained with another: those of the whole grid, and those that the rule finds."""
    grid, rule = [], []
    for name in names:
        for method in METHODS:
            for seed in range(seeds):
                runs = []
                for order_of_batches in (seed, seed + 100):
                    found = swept(lambda _, seed=seed: MAKERS[name](seed), method, epochs, order_of_batches, prune=False)
                    runs.append(curves_of(found))
                for here, there in (runs, runs[::-1]):
                    lowest = min(curve[-1] for curve in there.values())
                    grid.append((1.0, there[min(here, key=lambda point: here[point][-1])][-1] / lowest))
                    for order in range(ORDERS):
                        share, _, chosen = pruned(here, space_of(method), epochs, order)
                        rule.append((share, there[chosen][-1] / lowest))
    line("other order, whole grid", grid)
    line("other order, our rule", rule)


def with_optuna(names: list[str], seeds: int) -> None:
    """30 runs that Optuna chooses from a range, ended by our rule and by two of its pruners, beside the same number of whole runs."""
    import optuna

    pruners = {
        "our rule": lambda: True,
        "SuccessiveHalvingPruner": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        "MedianPruner": lambda: optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
    }
    space, results = dict(lr_max=(1e-4, 0.1, "log"), wd=(0.0, 0.3)), {name: [] for name in pruners}
    for name in names:
        for seed in range(seeds):
            ways: dict[str, Any] = {way: make() for way, make in pruners.items()}
            made = {
                way: swept(MAKERS[name], "fit_one_cycle", 9, seed, space=space, n=30, engine="optuna", prune=prune)
                for way, prune in (ways | dict(whole=False)).items()
            }
            whole = made.pop("whole")
            for way, found in made.items():
                results[way].append((found.n_batches / whole.n_batches, found.best_value / whole.best_value))
    for way, each in results.items():
        line(f"Optuna, {way}", each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="; ".join(MAKERS))
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--optuna", action="store_true")
    args = parser.parse_args()
    names = args.tasks or list(MAKERS)
    print(f"{'':26}{'batches':>7}{'most':>7}{'<= 40%':>9}{'<= 2%':>9}{'median':>9}{'90%':>9}")
    total = []
    for name in names:
        for method in METHODS:
            results = []
            for seed in range(args.seeds):
                whole = swept(MAKERS[name], method, args.epochs, seed, prune=False)
                results += judged(whole, space_of(method), args.epochs)
                if seed == 0:  # the rule, asked about the rows, is what a sweep does
                    found = swept(MAKERS[name], method, args.epochs, seed)
                    share, best, _ = pruned(curves_of(whole), space_of(method), args.epochs, seed)
                    assert found.best_value == best and math.isclose(found.n_batches, share * whole.n_batches), (name, method)
            line(f"{name}, {method}", results)
            total += results
    line("all", total)
    if args.noise:
        with_noise(names, args.epochs, args.seeds)
    if args.optuna:
        with_optuna(names, args.seeds)


if __name__ == "__main__":
    main()
