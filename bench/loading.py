"""What loading costs: tensors in memory, one batch after the other, without a model.

    python bench/loading.py             some seconds
    python bench/loading.py --quick     less exact

CPU time of an epoch of scikit-learn's digits (1,440 items of 64 numbers, batches of 32), shuffled, for each way to load it. The ways take
turns, forwards and backwards, and each is compared with torch's `DataLoader` over a `TensorDataset` in the same round.
"""

import argparse
import time
from collections.abc import Iterable

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Subset, TensorDataset

import cbnb
from cbnb.basics.loaders import batches_of
from loop_overhead import median, quartiles, verdict

ITEMS, BATCH, LIMIT = 1440, 32, 0.15
TORCH = "torch's DataLoader"


def ways(data: TensorDataset) -> dict[str, Iterable]:
    """Loaders of the same batches."""
    part = Subset(data, torch.randperm(ITEMS).tolist())
    dls = cbnb.DataLoaders.from_datasets(data, part, bs=BATCH, val_bs=BATCH, device="cpu")
    theirs = DataLoader(data, BATCH, shuffle=True)
    return {
        TORCH: theirs,
        "the same, in a fit": Fit(theirs),
        "cbnb, from_datasets": dls.train,
        "cbnb, a Subset, in order": dls.valid,
        "a list of batches": list(theirs),
    }


class Fit:
    """A loader as the learner iterates it."""

    def __init__(self, dl: DataLoader):
        self.dl = dl

    def __iter__(self):
        return iter(batches_of(self.dl))


def cost(loader: Iterable) -> float:
    """Microseconds of CPU time a batch."""
    start, n = time.process_time(), 0
    for _ in loader:
        n += 1
    return (time.process_time() - start) / n * 1e6


def race(loaders: dict[str, Iterable], rounds: int) -> dict[str, list[float]]:
    """Each way's cost in each round; the first round warms up."""
    costs = {name: [] for name in loaders}
    for i in range(rounds + 1):
        for name in list(loaders)[:: 1 if i % 2 else -1]:
            found = cost(loaders[name])
            if i:
                costs[name].append(found)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less exact")
    args = parser.parse_args()
    torch.set_num_threads(1)
    digits = load_digits()
    x, y = torch.tensor(digits.data[:ITEMS], dtype=torch.float32), torch.tensor(digits.target[:ITEMS])
    costs = race(ways(TensorDataset(x, y)), 40 if args.quick else 300)
    print(f"{'':28} {'us a batch':>10} {'x':>6}   half of the rounds")
    for name, found in costs.items():
        low, middle, high = quartiles(a / b for a, b in zip(found, costs[TORCH]))
        print(f"{name:28} {median(found)[0]:10.1f} {middle:6.3f}   {low:.3f} to {high:.3f}")
    ratio = median(a / b for a, b in zip(costs["cbnb, from_datasets"], costs[TORCH]))
    verdict("from_datasets, x torch's DataLoader", ratio, LIMIT, "")


if __name__ == "__main__":
    main()
