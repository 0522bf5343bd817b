"""Does `lr_find` tell the truth after training? Find, train, find again, for many seeds.

    python bench/lr_after_training.py                 two to three minutes
    python bench/lr_after_training.py --seeds 4
    python bench/lr_after_training.py digits noise
    python bench/lr_after_training.py --press         press "fit one cycle" in the picker of a trained model: is it worse then?
    python bench/lr_after_training.py --few           small tables: is the rate as good as the best of five?
    python bench/lr_after_training.py --few --sweep   the same with lr_find(trials=False)

A task is swept, trained for some epochs of one cycle with the rate found, and swept again. What the second sweep says is right
if it is a rate within a factor of 5 of the fresh network's, or a refusal that is true: one that calls no noise a divergence.
For labels that are pure noise, the fresh network's
sweep should be refused. Ends with status 1 if it is otherwise; pure noise may get a rate in a tenth of the seeds, because the
loss of a fresh network on it may really fall.

`--press`: breast cancer, wine, digits and moons are trained for 6 epochs of one cycle at 1e-2. Then the picker of a new sweep starts
its fit. The validation loss must not be above that from before; what it would be with a plain `fit_one_cycle` is printed beside it.
`--few`: wine, breast cancer, diabetes and moons, fresh, for 6 epochs at the rate of `lr_find`, with the best weights and with the last
ones. The validation loss should be at most 10% above that of the best of five rates, which end in the same way. A refusal counts as right.
"""

import argparse
import contextlib
import io
import math
import sys
import warnings
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


def small(name: str, bs: int = 16) -> Learner:
    """A small table, 70% of it for training."""
    from sklearn import datasets

    if name == "moons":
        x, y = datasets.make_moons(200, noise=0.2, random_state=0)
    else:
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    numbers = name == "diabetes"
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None] if numbers else torch.tensor(y)
    shuffled, n = torch.randperm(len(x)), int(0.7 * len(x))
    parts = (TensorDataset(x[rows], y[rows]) for rows in (shuffled[:n], shuffled[n:]))
    dls = DataLoaders.from_datasets(*parts, bs=bs, device="cpu")
    n_out = 1 if numbers else int(y.max()) + 1
    learn = Learner(dls, mlp(x.shape[1], 64, n_out), nn.MSELoss() if numbers else nn.CrossEntropyLoss())
    learn.logger = lambda row: None
    return learn.remove_cb(ProgressCallback)


SMALL = ("wine", "breast_cancer", "diabetes", "moons")
PRESSED: dict[str, Callable[[], Learner]] = {name: (lambda name=name: small(name)) for name in SMALL if name != "diabetes"} | {
    "digits": digits_mlp
}


def press(make: Callable[[], Learner], seed: int) -> tuple[float | None, float, float, float]:
    """The rate of the sweep of a trained model; the validation loss before a fit, after it, and after a click on the picker's button."""
    torch.manual_seed(seed)
    learn = make()
    with learn.no_logging(), contextlib.redirect_stdout(io.StringIO()):
        learn.fit_one_cycle(6, 1e-2)
        found = learn.lr_find(show_plot=False)
        before = learn.validate()[0]
        picker = found.widget()
        learn.fit_one_cycle(picker.epochs.value, picker.lr)
        plain = learn.validate()[0]
        learn.rewind()
        picker.start_fit()
    return found.lr, before, plain, learn.validate()[0]


def report_press(name: str, n_seeds: int) -> bool:
    found = [press(PRESSED[name], seed) for seed in range(n_seeds)]
    refused = sum(lr is None for lr, *_ in found)
    plain, worst = sum(p > b for _, b, p, _ in found), max(p / b for _, b, p, _ in found)
    worse = sum(after > before for _, before, _, after in found)
    better = sum(after < before for _, before, _, after in found)
    words = f"{worse} of {n_seeds} worse by the button, {better} better; {plain} worse by a plain fit, at worst {worst:.1f} times the loss"
    print(f"{name:22}{words}; {refused} sweeps refused", flush=True)
    return not worse


RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def few(name: str, seed: int, only_sweep: bool, n_epoch: int = 6) -> tuple[float | None, dict[bool, tuple[float, float]]]:
    """The rate of a sweep; with the best weights and with the last ones, the loss at this rate and at the best of five."""

    def loss(rate: float | None, keep_best: bool) -> tuple[float | None, float]:
        torch.manual_seed(seed)
        learn = small(name)
        with learn.no_logging(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rate = learn.lr_find(n_epoch=n_epoch, trials=False if only_sweep else None, show_plot=False).lr if rate is None else rate
            if rate is None:
                return None, math.nan
            learn.fit_one_cycle(n_epoch, rate, keep_best=keep_best)
        return rate, learn.validate()[0]

    found = {keep: (loss(None, keep)[1], min(loss(rate, keep)[1] for rate in RATES)) for keep in (True, False)}
    return loss(None, True)[0], found


def report_few(name: str, n_seeds: int, only_sweep: bool) -> list[bool]:
    found = [few(name, seed, only_sweep) for seed in range(n_seeds)]
    refused = sum(lr is None for lr, _ in found)
    right = {keep: [lr is None or of[keep][0] <= 1.1 * of[keep][1] for lr, of in found] for keep in (True, False)}
    words = ", ".join(f"{sum(right[keep])} with the {'best' if keep else 'last'} weights" for keep in (True, False))
    print(f"{name:22}of {n_seeds} within 10% of the best of five rates: {words}; {refused} refused", flush=True)
    return right[True]


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
    parser.add_argument("--press", action="store_true", help="press the button of the picker after training")
    parser.add_argument("--few", action="store_true", help="compare with five rates on small tables")
    parser.add_argument("--sweep", action="store_true", help="with --few: let lr_find make no whole fits")
    parser.add_argument("--seeds", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.press:
        held = [report_press(name, args.seeds) for name in PRESSED]
        sys.exit(not all(held))
    if args.few:
        right = [each for name in SMALL for each in report_few(name, args.seeds, args.sweep)]
        print(f"{sum(right)} of {len(right)} with the best weights")
        sys.exit(sum(right) < 0.85 * len(right))
    chosen = [name for name in TASKS if not args.words or any(word in name for word in args.words)]
    passed = [report(name, args.seeds) for name in chosen]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
