"""Is training with cbnb quicker than the loop you would have written?

    python bench/training.py                     all sizes, and every other library that is installed: some minutes
    python bench/training.py --quick             less exact, about two minutes
    python bench/training.py --sizes mlp,cnn     only these
    python bench/training.py --json FILE         keep every measurement, too

Each size is trained by a loop as people write it, by the same loop with a fused optimizer, by the least that a loop with
callbacks can cost (`floor`), by cbnb, and by the libraries in `peers.py` that are installed. All take turns in one process,
with the same weights at the start and the same batches, and must end with the same loss. CPU time counts, as in
`loop_overhead.py`, where the way of measuring is described.

The last table is a quick start with data loading and a schedule: DataLoader, AdamW and OneCycleLR by hand, against
`DataLoaders.from_datasets` and `fit_one_cycle`. There, all is counted from the first line to the last.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import cbnb
import peers
from loop_overhead import LR, LR_MAX, Contestant, Costs, Loader, bare, digits, median, ours, quartiles, race, times, valid_loss, verdict

Fused = partial(AdamW, fused=True)


# The sizes: tiny, where all fixed costs show; and two that are still small, but no toys.


@dataclass
class Size:
    """What everybody trains"""

    train: Loader
    valid: Loader
    net: Callable[[], nn.Module]
    loss_func = nn.CrossEntropyLoss()

    def model(self) -> nn.Module:
        torch.manual_seed(42)
        return self.net()

    @property
    def n_batches(self) -> int:
        return len(self.train) + len(self.valid)


def mlp() -> Size:
    task = digits()
    return Size(task.train, task.valid, lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def cnn() -> Size:
    def images(batches: Loader) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x.view(-1, 1, 8, 8), y) for x, y in batches.batches)

    task = digits()
    return Size(Loader(images(task.train)), Loader(images(task.valid)), small_cnn)


class SmallTransformer(nn.Module):
    """Two layers of width 64, which read the rows of an image as words"""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.place = nn.Linear(8, 64), nn.Parameter(torch.zeros(8, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.rows(x) + self.place).mean(1))


def transformer() -> Size:
    def rows(batches: Loader) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x.view(-1, 8, 8), y) for x, y in batches.batches)

    task = digits()
    return Size(Loader(rows(task.train)), Loader(rows(task.valid)), SmallTransformer)


SIZES = dict(mlp=mlp, cnn=cnn, transformer=transformer)
LOSSES: dict[str, float] = {}  # contestant -> the loss on the validation set after its latest training


def noting(name: str, train: Callable[[Size, int], nn.Module]) -> Callable[[Size, int], None]:
    """Train, and note the loss at the end."""

    def noted(task: Size, epochs: int) -> None:
        LOSSES[name] = valid_loss(task, train(task, epochs))

    return noted


# Who trains, besides the loop by hand and the learner of `loop_overhead.py`


EVENTS = "before_batch after_pred after_loss before_backward after_backward before_step after_step after_batch".split()


def floor(task: Size, epochs: int) -> nn.Module:
    """The least that a loop with callbacks costs: eight lists of functions, of which one has a function that keeps the loss."""
    model, loss_func, losses = task.model(), task.loss_func, []
    opt = Fused(model.parameters(), lr=LR)
    before_batch, after_pred, after_loss, before_backward, after_backward, before_step, after_step, after_batch = [[] for _ in EVENTS]
    after_batch.append(lambda: losses.append(loss.detach()))

    def fire(handlers: list[Callable[[], None]]) -> None:
        for handler in handlers:
            handler()

    for _ in range(epochs):
        model.train()
        for x, y in task.train:
            fire(before_batch)
            pred = model(x)
            fire(after_pred)
            loss = loss_func(pred, y)
            fire(after_loss)
            fire(before_backward)
            loss.backward()
            fire(after_backward)
            fire(before_step)
            opt.step()
            fire(after_step)
            opt.zero_grad()
            fire(after_batch)
        valid_loss(task, model)
    return model


LOOP, FUSED, CYCLE, PLAIN = "loop, AdamW", "loop, fused AdamW", "loop, fused AdamW, OneCycleLR", "loop, SGD"


def contestants(task: Callable[[], Size]) -> dict[str, Contestant]:
    table = {
        LOOP: (partial(bare, opt_func=AdamW), LOOP),
        FUSED: (partial(bare, opt_func=Fused), LOOP),
        "floor": (floor, FUSED),
        "cbnb": (partial(ours, opt_func=AdamW), LOOP),
        "cbnb, again": (partial(ours, opt_func=AdamW), FUSED),
        CYCLE: (partial(bare, opt_func=Fused, one_cycle=True), LOOP),
        "cbnb, one-cycle": (partial(ours, opt_func=AdamW, one_cycle=True), CYCLE),
        PLAIN: (partial(bare, opt_func=SGD), PLAIN),
        "cbnb, SGD": (partial(ours, opt_func=SGD), PLAIN),
        **{name: (partial(peers.PEERS[name], lr=LR), LOOP) for name in peers.installed()},
    }
    return {name: Contestant(noting(name, train), against, task=task) for name, (train, against) in table.items()}


LIMITS = {  # of the project, for the sizes that it names
    "mlp": {"cbnb": 0.75, "cbnb, again": 1.04, "cbnb, one-cycle": 1.05, "cbnb, SGD": 1.04},
    "cnn": {"cbnb": 0.92, "cbnb, again": 1.04, "cbnb, one-cycle": 1.05, "cbnb, SGD": 1.04},
}


# The quick start, with all that belongs to it


def sets() -> tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    return TensorDataset(x[:1440], y[:1440]), TensorDataset(x[1440:], y[1440:])


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def quick_start_by_hand(epochs: int) -> None:
    train_ds, valid_ds = sets()
    train, valid = DataLoader(train_ds, 32, shuffle=True), DataLoader(valid_ds, 64)
    model, loss_func = net(), nn.CrossEntropyLoss()
    opt = AdamW(model.parameters(), lr=LR_MAX)
    scheduler = OneCycleLR(opt, LR_MAX, total_steps=epochs * len(train))
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            loss = loss_func(model(x), y)
            loss.backward()
            opt.step()
            scheduler.step()
            opt.zero_grad()
        model.eval()
        total, right = 0.0, 0
        with torch.no_grad():
            for x, y in valid:
                pred = model(x)
                total += loss_func(pred, y).item() * len(x)
                right += (pred.argmax(1) == y).sum().item()
        print(epoch, loss.item(), total / len(valid_ds), right / len(valid_ds))


def accuracy(pred: Tensor, y: Tensor) -> Tensor:
    return (pred.argmax(1) == y).float().mean()


def quick_start(epochs: int) -> None:
    train_ds, valid_ds = sets()
    dls = cbnb.DataLoaders.from_datasets(train_ds, valid_ds, bs=32)
    learn = cbnb.Learner(dls, net(), nn.CrossEntropyLoss(), metrics=accuracy)
    learn.fit_one_cycle(epochs, LR_MAX)


def cpu_time(f: Callable[[int], None], epochs: int) -> float:
    torch.manual_seed(42)
    start = time.process_time()
    with open(os.devnull, "w") as sink, redirect_stdout(sink):
        f(epochs)
    return time.process_time() - start


def race_quick_starts(rounds: int, epochs: int) -> tuple[float, float]:
    """Print both times; returns the ratio and its uncertainty"""
    cpu_time(quick_start_by_hand, 2), cpu_time(quick_start, 2)
    pairs = []
    for i in range(rounds):
        order = (quick_start_by_hand, quick_start)[:: 1 if i % 2 == 0 else -1]
        taken = {f: cpu_time(f, epochs) for f in order}
        pairs.append((taken[quick_start_by_hand], taken[quick_start]))
    theirs, mine = (statistics.median(column) for column in zip(*pairs))
    print(f"\nA quick start of {epochs} epochs, from the first line to the last: by hand {theirs:.2f} s, cbnb {mine:.2f} s of CPU time")
    return median(m / t for t, m in pairs)


# The report


def show(size: str, table: dict[str, Contestant], costs: Costs) -> None:
    print(f"\n{size:32}{'us a batch':>12}{'x':>8}   half of the rounds   loss    compared with")
    for name, contestant in table.items():
        cpu = statistics.median(c for c, _ in costs[name])
        low, middle, high = quartiles(mine[0] / theirs[0] for mine, theirs in zip(costs[name], costs[contestant.against]))
        print(f"{name:32}{cpu:12.1f}{middle:8.3f}   {low:.3f} to {high:.3f}     {LOSSES[name]:.4f}    {contestant.against}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less exact, about two minutes")
    parser.add_argument("--rounds", type=int, help="how often each contestant trains")
    parser.add_argument("--epochs", type=int, default=6, help="for how long (default: 6)")
    parser.add_argument("--sizes", default=",".join(SIZES), help="which, with commas between (default: all)")
    parser.add_argument("--json", metavar="FILE", help="where to save all measurements")
    args = parser.parse_args()
    args.rounds = args.rounds or (6 if args.quick else 30)
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)  # the tensors are too small to share; and threads that wait would be counted
    if missing := peers.missing():
        print(f"not installed, and left out: {', '.join(missing)}", file=sys.stderr)
    verdicts, measured = [], {}
    for size in args.sizes.split(","):
        table = contestants(SIZES[size])
        measured[size] = costs = race(table, args.rounds, args.epochs)
        show(size, table, costs)
        for name, limit in LIMITS.get(size, {}).items():
            against = table[name].against
            verdicts.append(verdict(f"{size}: {name}", times(costs, name, against), limit, f"x {against}"))
    ratio = race_quick_starts(args.rounds, 20)
    verdicts.append(verdict("quick start", ratio, 0.6, "x by hand"))
    if args.json:
        versions = dict(python=sys.version.split()[0], torch=torch.__version__, cbnb=cbnb.__version__)
        with open(args.json, "w") as file:
            json.dump(dict(versions=versions, costs=measured, losses=LOSSES, verdicts=verdicts), file, indent=1)


if __name__ == "__main__":
    main()
