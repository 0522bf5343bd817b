"""What makes more rates good? The width of the band for other schedules, averaged weights and weight decay, and optimizers that need no rate.

    python bench/lr_width.py                        from stored measurements, some seconds
    python bench/lr_width.py --collect              measure again, some minutes (names of tasks: only these)
    python bench/lr_width.py --collect --lengths 5  also runs of five times the length

The tasks are 20 of those of lr_quality.py, by family of data in two halves: choose on the first, judge on the second. Each is trained with eight
rates around the best one, 1/3 of a decade apart, as `fit_one_cycle` does it, and with one thing changed. The limit of the band is that of
`fit_one_cycle` for all: 10% above its best loss, or one standard deviation between seeds if that is more.

- Width: decades of rates around the best one that end within this limit.
- Sensitivity (Wortsman et al., 2023): how far the loss is above the best one, on average over a decade around the best rate, in percent of the
  way from the loss before training to the best one.
- Best loss: at the best rate, in percent above that of `fit_one_cycle`.

Prodigy, D-Adaptation and Schedule-Free are asked for with their packages (`pip install prodigyopt dadaptation schedulefree`), which nothing else
needs. The first two run at their own rate of 1, with the schedule of `fit_one_cycle`; Schedule-Free at its own rate, and at a tenth and ten times of it. Their cost is the time of
an update beside that of AdamW (a network of 64-256-256-10, batches of 64), and the numbers that they keep for each weight.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).with_name("lr_quality")
sys.path[:0] = [str(Path(__file__).parent), str(FOLDER)]

from lr_tasks import TASKS, Task
from lr_training import GRID, Lanes, batch_order, fresh_model, loss_of, one_cycle, pretrained, start_from, train

from cbnb.callbacks.averaging import move_average, warm_decay
from cbnb.callbacks.more_schedules import SchedNo, combine_scheds
from cbnb.schedule import SchedCos

STORED = FOLDER / "width.npz"
SEEDS = {1: range(400, 403), 5: range(420, 422)}  # by length, in multiples of the steps
HALVES = dict(
    choose="""shells-mlp-sgd table-embed-adamw diabetes-mlp-adam friedman-mlp-rmsprop moons-tanh-adamw digits-mlpbn-sgd digits-noisy-mlp-adamw
        digits-deep8-adam digits-conv-sgd tune-digits-mlp-adam""".split(),
    judge="""rare-mlp-adam wine-mlpbn-adamw breast-mlp-adam houses-mlp-sgd spirals-mlpbn-adamw clusters8-mlp-sgd clusters2-layernorm-rmsprop
        waves-conv-sgd waves-mlp-gelu-adamw sentences-mlp-adam""".split(),
)
BASE = "one cycle"


def flat(share: float) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """A warm-up of 25%, then the highest rate, then a cosine over the last `share`."""
    shares = [0.25, 0.75 - share, share] if share else [0.25, 0.75]
    ends = [SchedCos(1.0, 1e-5)] if share else []
    low = [SchedCos(0.85, 0.95)] if share else []
    return combine_scheds(shares, [SchedCos(1 / 25, 1.0), SchedNo(1.0, 1.0), *ends]), combine_scheds(
        shares, [SchedCos(0.95, 0.85), SchedNo(0.85, 0.85), *low]
    )


# name -> schedules, weight decay (None: the optimizer's own), and the name of the same run with averaged weights
CHANGES: dict[str, tuple[Any, float | None, str]] = {
    BASE: (one_cycle(), None, "averaged weights (EMA)"),
    "warm-up 5%": (one_cycle(0.05), None, ""),
    "warm-up 10%": (one_cycle(0.10), None, ""),
    "warm-up 40%": (one_cycle(0.40), None, ""),
    "not annealed": (flat(0), None, "not annealed, EMA"),
    "annealed in the last quarter": (flat(0.25), None, ""),
    "weight decay 0": (one_cycle(), 0.0, ""),
    "weight decay 0.01": (one_cycle(), 0.01, ""),
    "weight decay 0.1": (one_cycle(), 0.1, ""),
}


def rates_of(task: Task, times: int) -> list[float]:
    """Eight rates of the grid, around the best one of the stored measurements."""
    with np.load(FOLDER / "recorded.npz") as known:
        losses = known[f"{task.name}/run{times}/valid"].astype(float)
    tame = np.where(np.isfinite(losses), np.minimum(losses, 1e6), 1e6)
    first = min(max(int(tame.mean(0).argmin()) - 4, 0), len(GRID) - 8)
    return GRID[first : first + 8]


def changed(task: Task, change: str, seeds: Sequence[int], rates: Sequence[float], steps: int) -> dict[str, np.ndarray]:
    """The validation losses of a run with one change; and, where it has a name, with the weights averaged over a tenth of it."""
    scheds, decay, averaged = CHANGES[change]
    lanes = Lanes(task, seeds, len(rates), steps)
    if decay is not None:
        lanes.opt.param_groups[0]["weight_decay"] = decay
    weights = [*lanes.params.values(), *(b for b in lanes.buffers.values() if b.is_floating_point())]
    means = [w.detach().clone() for w in weights]

    def look(done: int) -> None:
        if averaged:
            move_average(means, [w.detach() for w in weights], warm_decay(1 - 10 / steps, done))

    train(lanes, rates, steps, look, scheds)
    found = {change: lanes.validate()}
    if averaged:
        with torch.no_grad():
            for weight, mean in zip(weights, means):
                weight.copy_(mean)
        found[averaged] = lanes.validate()
    return found


# --- optimizers that need no rate ---


def adamw(params: Any, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, rate, weight_decay=0.0)


def prodigy(params: Any, rate: float) -> torch.optim.Optimizer:
    from prodigyopt import Prodigy

    return Prodigy(params, lr=rate)


def d_adaptation(params: Any, rate: float) -> torch.optim.Optimizer:
    from dadaptation import DAdaptAdam

    return DAdaptAdam(params, lr=rate, log_every=0)


def schedule_free(params: Any, rate: float, warmup: int = 0) -> torch.optim.Optimizer:
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(params, lr=rate, warmup_steps=warmup)


NO_RATE: dict[str, tuple[Callable[..., Any], float]] = {"Prodigy": (prodigy, 1.0), "D-Adaptation": (d_adaptation, 1.0)}
FREE_RATES = (0.00025, 0.0025, 0.025)  # the second is that of its package


def plain_run(task: Task, make: Callable[..., Any], rate: float, seed: int, steps: int, free: bool = False) -> float:
    """The validation loss after a plain loop; `free`: without a schedule, but a warm-up of 5%."""
    data, model = task.data(), fresh_model(task, seed)
    if task.pretrain:
        start_from(model, pretrained(task))
    opt = make(model.parameters(), rate, steps // 20) if free else make(model.parameters(), rate)
    lr, _ = one_cycle()
    model.train()
    if free:
        opt.train()
    for i, rows in enumerate(torch.from_numpy(batch_order(len(data.x), task.bs, steps, seed))):
        if not free:
            opt.param_groups[0]["lr"] = rate * lr(i / steps)
        loss = loss_of(task.loss, model(data.x[rows]), data.y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if free:
        opt.eval()
        with torch.no_grad():  # batch norm has seen other weights: fifty batches with these, as its authors say
            for rows in torch.from_numpy(batch_order(len(data.x), task.bs, min(steps, 50), seed)):
                model(data.x[rows])
    model.eval()
    with torch.no_grad():
        return float(loss_of(task.loss, model(data.valid_x), data.valid_y))


def cost(make: Callable[..., Any], n: int = 60) -> tuple[float, float]:
    """Seconds of an update of the processor, the least of `n`, and the numbers kept for each weight."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    x, y, opt, times = torch.randn(64, 64), torch.randint(10, (64,)), make(model.parameters(), 1e-3), []
    if hasattr(opt, "train"):
        opt.train()
    for _ in range(n):
        start = time.process_time()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
        times.append(time.process_time() - start)
    kept = sum(v.numel() for state in opt.state.values() for v in state.values() if isinstance(v, torch.Tensor))
    return min(times), kept / sum(p.numel() for p in model.parameters())


# --- measuring ---


def collect(names: Iterable[str], lengths: Iterable[int], path: Path, share: int = 1) -> None:
    """Add to the file what is not yet in it, after each task, so that it can be interrupted; `share`: 10 for a tenth of the updates."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    known = dict(np.load(path)) if path.exists() else {}
    for times in lengths:
        for name in names:
            task, key, start = TASKS[name], f"{name}/run{times}", time.perf_counter()
            seeds, steps, rates = list(SEEDS[times]), times * task.steps // share, rates_of(task, times)
            if f"{key}/rates" not in known:
                found = {"rates": np.array(rates), "start": Lanes(task, seeds, 1, 1).validate()}
                own_decay = 0.01 if task.opt == "adamw" else 0.0
                for change, (_, decay, _) in CHANGES.items():
                    same = decay == own_decay
                    found |= {change: found[BASE]} if same else changed(task, change, seeds, rates, steps)
                known |= {f"{key}/{what}": values.astype(np.float32) for what, values in found.items()}
                np.savez_compressed(path, **known)
            if f"{key}/Prodigy" not in known:
                for what, (make, rate) in NO_RATE.items():
                    losses = [[plain_run(task, make, rate, seed, steps)] for seed in seeds]
                    known[f"{key}/{what}"] = np.array(losses, np.float32)
                losses = [[plain_run(task, schedule_free, rate, seed, steps, free=True) for rate in FREE_RATES] for seed in seeds[:2]]
                known[f"{key}/Schedule-Free"] = np.array(losses, np.float32)
                np.savez_compressed(path, **known)
            print(f"{key:32} {time.perf_counter() - start:5.0f} s", flush=True)
    if "cost/adamw" not in known:
        for what, make in dict(adamw=adamw, Prodigy=prodigy, **{"D-Adaptation": d_adaptation, "Schedule-Free": schedule_free}).items():
            known[f"cost/{what}"] = np.array(cost(make))
        np.savez_compressed(path, **known)


# --- what is shown ---


class Curve:
    """The mean validation loss for each rate, of one task and one change."""

    def __init__(self, losses: np.ndarray, rates: np.ndarray, start: float):
        """`losses`: of each seed and rate; `start`: before training, and what is above it counts as this."""
        self.each = np.minimum(np.where(np.isfinite(losses), losses, start), start)
        self.losses, self.logs, self.start = self.each.mean(0), np.log10(rates), start
        self.at = int(self.losses.argmin())
        self.best = float(self.losses[self.at])
        self.limit = max(1.1 * self.best, self.best + float(self.each[:, self.at].std(ddof=1)))

    def width(self, limit: float) -> float:
        """Decades around the best rate with a loss up to a limit, as far as rates were measured."""
        fine = np.linspace(self.logs[0], self.logs[-1], 701)
        good, at = self._loss(fine) <= limit, int(np.abs(fine - self.logs[self.at]).argmin())
        bad = np.flatnonzero(~good)
        below, above = bad[bad <= at], bad[bad >= at]
        first, last = (below[-1] + 1 if len(below) else 0), (above[0] - 1 if len(above) else len(fine) - 1)
        return max(0, last - first) * float(fine[1] - fine[0])

    def sensitivity(self) -> float:
        """Loss above the best one, on average over a decade around the best rate, as a share of what can be learned."""
        decade = self.logs[self.at] + np.linspace(-0.5, 0.5, 101)
        return float((self._loss(decade).mean() - self.best) / max(self.start - self.best, 1e-12))

    def _loss(self, logs: np.ndarray) -> np.ndarray:
        return np.interp(logs, self.logs, self.losses)


def measured(known: Any, task: str, times: int) -> dict[str, np.ndarray]:
    """Width, sensitivity and the log of the best loss, of each change of a task."""
    key = f"{task}/run{times}"
    rates, start = known[f"{key}/rates"].astype(float), float(known[f"{key}/start"].mean())
    names = [name for change, (_, _, averaged) in CHANGES.items() for name in (change, averaged) if name]
    curves = {name: Curve(known[f"{key}/{name}"].astype(float), rates, start) for name in names}
    limit = curves[BASE].limit
    return {name: np.array([c.width(limit), c.sensitivity(), math.log(c.best / curves[BASE].best)]) for name, c in curves.items()}


def rated(known: Any, task: str, times: int) -> dict[str, np.ndarray]:
    """Whether optimizers without a rate, and a sweep, end in band; and how far from the best loss, as a logarithm."""
    from lr_quality import from_sweep, suggestions

    key = f"{task}/run{times}"
    rates, start = known[f"{key}/rates"].astype(float), float(known[f"{key}/start"].mean())
    base = Curve(known[f"{key}/{BASE}"].astype(float), rates, start)
    ends = {name: known[f"{key}/{name}"].astype(float)[:, 0] for name in NO_RATE}
    free = known[f"{key}/Schedule-Free"].astype(float)
    ends |= {f"Schedule-Free at {rate:g}": free[:, i] for i, rate in enumerate(FREE_RATES)}
    found = {}
    for name, losses in ends.items():
        loss = float(np.minimum(np.where(np.isfinite(losses), losses, start), start).mean())
        found[name] = np.array([loss <= base.limit, math.log(loss / base.best)])
    logs = suggestions(from_sweep, [recorded()[task]], times)[0]
    made = base._loss(logs[np.isfinite(logs)])
    found["one sweep of lr_find"] = np.array([(made <= base.limit).sum() / len(logs), np.log(made / base.best).mean()])
    return found


@cache
def recorded() -> dict[str, Any]:
    from lr_quality import read_own

    return {task.name: task for task in read_own()}


def interval(values: np.ndarray, n: int = 2000) -> tuple[float, float, float]:
    """The mean over tasks, and where 95% of the means lie if the tasks are drawn again."""
    rows = np.random.RandomState(0).randint(0, len(values), (n, len(values)))
    return float(values.mean()), *(float(q) for q in np.quantile(values[rows].mean(1), [0.025, 0.975]))


def results(path: Path = STORED, times: int = 1) -> dict[str, Any]:
    """For each half: the tasks, the rows of the changes (values, differences) and those of the optimizers without a rate."""
    with np.load(path) as file:
        known = dict(file)
    found: dict[str, Any] = {}
    for half, names in HALVES.items():
        tasks = [name for name in names if f"{name}/run{times}/Schedule-Free" in known]
        if not tasks:
            continue
        changes, others = ([measure(known, task, times) for task in tasks] for measure in (measured, rated))
        values = {name: np.array([each[name] for each in changes]) for name in changes[0]}
        found[half] = dict(
            tasks=tasks,
            changes={name: [(interval(v[:, i]), interval((v - values[BASE])[:, i])) for i in range(3)] for name, v in values.items()},
            others={name: [interval(np.array([each[name][i] for each in others])) for i in range(2)] for name in others[0]},
        )
    found["cost"] = {key.split("/")[1]: value for key, value in known.items() if key.startswith("cost/")}
    return found


def as_markdown(part: dict[str, Any]) -> str:
    head = ["", "width of the band, decades", "less one cycle", "sensitivity", "less one cycle", "best loss against one cycle"]
    lines = [" | ".join(head), "|".join([":---", *["---:"] * (len(head) - 1)])]
    for name, [width, sensitivity, best] in part["changes"].items():
        cells = [f"{width[0][0]:.2f}", "{:+.2f} [{:+.2f},\u00a0{:+.2f}]".format(*width[1]) if name != BASE else ""]
        cells += [
            f"{100 * sensitivity[0][0]:.1f}%",
            "{:+.1f} [{:+.1f},\u00a0{:+.1f}]".format(*(100 * x for x in sensitivity[1])) if name != BASE else "",
        ]
        cells += ["{:+.1f}% [{:+.1f},\u00a0{:+.1f}]".format(*(100 * math.expm1(x) for x in best[1])) if name != BASE else ""]
        lines.append(" | ".join([name, *cells]))
    return "\n".join(f"| {line} |" for line in lines)


def others_markdown(part: dict[str, Any], cost: dict[str, np.ndarray]) -> str:
    head = ["", "in band (95%)", "loss against the best rate", "time of an update", "numbers kept for a weight"]
    lines = [" | ".join(head), "|".join([":---", *["---:"] * (len(head) - 1)])]
    for name, [inside, loss] in part["others"].items():
        shares = "{:.0f}% ({:.0f}\u00a0to\u00a0{:.0f})".format(*(100 * x for x in inside))
        mine = cost.get(name.split(" at ")[0], cost["adamw"])
        lines.append(
            " | ".join([name, shares, f"{100 * math.expm1(loss[0]):+.0f}%", f"{mine[0] / cost['adamw'][0]:.1f}", f"{mine[1]:.0f}"])
        )
    return "\n".join(f"| {line} |" for line in lines)


def show(found: dict[str, Any], times: int) -> None:
    for half in HALVES:
        if part := found.get(half):
            print(f"\nThe half to {half}, {times} times the steps: {len(part['tasks'])} tasks: {', '.join(part['tasks'])}")
            print(as_markdown(part).replace("\u00a0", " "))
            if "adamw" in found["cost"]:
                print(others_markdown(part, found["cost"]).replace("\u00a0", " "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collect", metavar="TASK", nargs="*")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1])
    parser.add_argument("--data", type=Path, default=STORED)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    names = [name for pair in zip(*HALVES.values()) for name in pair]
    if args.collect is not None:
        return collect(args.collect or names, args.lengths, args.data, 10 if args.quick else 1)
    for times in args.lengths:
        show(results(args.data, times), times)


if __name__ == "__main__":
    main()
