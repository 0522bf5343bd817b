"""Does `lr_find` tell the truth after training? Find, train, find again, for many seeds.

    python bench/lr_after_training.py                 two to three minutes
    python bench/lr_after_training.py --seeds 4
    python bench/lr_after_training.py digits noise

A task is swept, trained for some epochs of one cycle with the rate found, and swept again. What the second sweep says is right
if it is a rate within a factor of 5 of the fresh network's, or a refusal that is true: one that calls no noise a divergence.
For labels that are pure noise, the fresh network's
sweep should be refused. Ends with status 1 if it is otherwise; pure noise may get a rate in a tenth of the seeds, because the
loss of a fresh network on it may really fall.
"""

import argparse
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from cbnb.all import DataLoaders, Learner, ProgressCallback

FACTOR = 5


def conv(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU())


def read_digits() -> tuple[TensorDataset, TensorDataset]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    shuffled = torch.randperm(len(x))
    return tuple(TensorDataset(x[rows], y[rows]) for rows in (shuffled[:1400], shuffled[1400:]))


def learner(train: Any, valid: Any, bs: int, model: nn.Module, **settings: Any) -> Learner:
    dls = DataLoaders.from_datasets(train, valid, bs=bs, device="cpu")
    learn = Learner(dls, model, nn.CrossEntropyLoss(), **settings)
    learn.remove_cb(ProgressCallback)
    return learn


def mlp(n_in: int, n_hidden: int, n_out: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(n_in, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_out))


def digits_conv() -> Learner:
    """The quick start of the README."""
    model = nn.Sequential(
        conv(1, 16), conv(16, 32), nn.MaxPool2d(2), conv(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    return learner(*read_digits(), 32, model)


def digits_mlp() -> Learner:
    return learner(*read_digits(), 32, mlp(64, 64, 10))


def table(bs: int = 16, **settings: Any) -> Learner:
    x = torch.randn(4096, 10)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    return learner(data, data, bs, mlp(10, 20, 2), **settings)


def table_sgd() -> Learner:
    return table(opt_func=torch.optim.SGD)


def noise() -> Learner:
    """Labels that have nothing to do with the inputs."""
    data = TensorDataset(torch.randn(2000, 10), torch.randint(2, (2000,)))
    return learner(data, data, 16, nn.Linear(10, 2))


TASKS: dict[str, Callable[[], Learner]] = {
    "digits, convolutions": digits_conv,
    "digits, MLP": digits_mlp,
    "table, MLP": table,
    "table, MLP, SGD": table_sgd,
    "noise, linear": noise,
}


def before_and_after(make: Callable[[], Learner], seed: int, n_epoch: int = 3) -> tuple[Any, Any]:
    """What the sweeps of the fresh network and of the trained one found."""
    torch.manual_seed(seed)
    learn = make()
    fresh = learn.lr_find(n_epoch=n_epoch, show_plot=False)
    with learn.no_logging():
        learn.fit_one_cycle(n_epoch, fresh.lr or 1e-2)
    return fresh, learn.lr_find(show_plot=False)


def ratio(fresh: Any, again: Any) -> float | None:
    """How far the second rate is from the first, as a factor of 1 or more; None: one of them is a refusal."""
    if fresh.lr is None or again.lr is None:
        return None
    return math.exp(abs(math.log(again.lr / fresh.lr)))


def report(name: str, n_seeds: int) -> bool:
    """Print a line; whether it is as it should be."""
    found = [before_and_after(TASKS[name], seed) for seed in range(n_seeds)]
    if TASKS[name] is noise:
        refused = sum(fresh.lr is None for fresh, _ in found)
        print(f"{name:22}{refused} of {n_seeds} refused before training", flush=True)
        return refused >= 0.9 * n_seeds
    factors = [ratio(*pair) for pair in found]
    rates = sorted(factor for factor in factors if factor is not None)
    false = sum(again.lr is None and ("diverged" in again.reason or "only rises" in again.reason) for _, again in found)
    right = factors.count(None) - false + sum(factor <= FACTOR for factor in rates)
    furthest = f", the furthest by a factor {rates[-1]:.1f}" if rates else ""
    print(f"{name:22}{right} of {n_seeds} right: {len(rates)} rates{furthest}; {factors.count(None)} refusals", flush=True)
    return right == n_seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only tasks with one of these words in their name")
    parser.add_argument("--seeds", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [name for name in TASKS if not args.words or any(word in name for word in args.words)]
    passed = [report(name, args.seeds) for name in chosen]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
