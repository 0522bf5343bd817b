"""Does a long fit stay as quick as it began, and what do a plot of it and a sweep cost?

    python bench/long_fit.py                    a fit of a million batches: five minutes
    python bench/long_fit.py --batches 100000   a shorter one

Speed and memory are those of the first and the last tenth of the fit. A tenth is the median of its hundredths, in CPU time.
"""

import argparse
import gc
import io
import statistics
import time
from collections.abc import Iterator
from contextlib import redirect_stdout

import matplotlib
import matplotlib.pyplot as plt
import psutil
import torch
from torch import Tensor

import cbnb.all as cbnb
from loop_overhead import LR, digits, median, verdict

matplotlib.use("agg")


class Endless:
    """The same batches again and again, `n` in an epoch; notes time and memory a thousand times on the way"""

    def __init__(self, batches: list[tuple[Tensor, Tensor]], n: int):
        self.batches, self.n, self.marks = batches, n, []

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        every, process = max(self.n // 1000, 1), psutil.Process()
        for i in range(self.n):
            if i % every == 0:
                self.marks.append((time.process_time(), process.memory_info().rss))
            yield self.batches[i % len(self.batches)]


def long_fit(n: int) -> tuple[cbnb.Learner, Endless]:
    task = digits()
    data = Endless(task.train.batches, n)
    learn = cbnb.Learner(cbnb.DataLoaders(data, device="cpu"), task.model(), task.loss_func, lr=LR)
    learn.keep_restore_points = 0
    with redirect_stdout(io.StringIO()):
        learn.fit_one_cycle(1, 1e-2)
    return learn, data


def tenth(marks: list[tuple[float, int]], last: bool) -> float:
    """Seconds between two marks of the first or the last tenth of a fit, the median"""
    n = len(marks) // 10
    part = marks[-n:] if last else marks[n // 10 : n]  # the very first ones warm up
    return statistics.median(b[0] - a[0] for a, b in zip(part, part[1:]))


def bare_steps(n: int, **form: bool) -> float:
    """CPU seconds of so many steps of a loop by hand, and of a copy of the model and the optimizer's state"""
    task = digits()
    model = task.model()
    opt = torch.optim.AdamW(model.parameters(), lr=LR, **form)
    model.train()
    start = time.process_time()
    for i in range(n):
        x, y = task.train.batches[i % len(task.train)]
        loss = task.loss_func(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
    [p.clone() for p in model.parameters()], [t.clone() for state in opt.state.values() for t in state.values()]
    return time.process_time() - start


def sweep(n: int) -> float:
    """CPU seconds of `lr_find` over so many steps, without its figure"""
    task = digits()
    learn = cbnb.Learner(cbnb.DataLoaders(task.train, task.valid, device="cpu"), task.model(), task.loss_func)
    learn.create_opt()
    with redirect_stdout(io.StringIO()):
        start = time.process_time()
        learn.lr_find(num_it=n, stop_div=False, show_plot=False)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1_000_000, help="in the long fit (default: a million)")
    n = parser.parse_args().batches
    torch.set_num_threads(1)
    long_fit(1000)
    gc.collect()
    learn, data = long_fit(n)
    speed = tenth(data.marks, last=True) / tenth(data.marks, last=False)
    grown = (data.marks[-1][1] - data.marks[len(data.marks) // 10][1]) / (0.9 * n)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        learn.recorder.plot_losses()
        times.append(time.perf_counter() - start)
        plt.close("all")
    sweep(100), bare_steps(100)
    trios = [(sweep(100), bare_steps(100), bare_steps(100, fused=True)) for _ in range(30)]
    found, written, fused = (statistics.median(column) * 1e3 for column in zip(*trios))
    print(f"a sweep of 100 steps: {found:.1f} ms; by hand {written:.1f} ms, and with a fused optimizer {fused:.1f} ms\n")
    verdict(f"speed, last tenth of {n:,} batches", (speed, 0.0), 1.05, "x the first")
    verdict("memory, without what the history keeps", (grown - 24, 0.0), 8, "bytes a batch")
    verdict("plot_losses() of all", (statistics.median(times), 0.0), 0.3, "s")
    verdict("lr_find of 100 steps", median(s / b for s, b, _ in trios), 1.1, "x 100 steps by hand and a copy")
    verdict("the same with a fused optimizer by hand", median(s / b for s, _, b in trios), 1.3, "x")


if __name__ == "__main__":
    main()
