"""How good are suggested learning rates? cbnb's, the classical rules', and those of other libraries where they are installed.

    python bench/lr_quality.py                         from stored measurements, less than a minute
    python bench/lr_quality.py --json FILE --figure FILE
    python bench/lr_quality.py --given FOLDER          other tasks as well: ground_truth.json, data5.npz and data/*.npz
    python bench/lr_quality.py --live wine-mlp-sgd     train the trials, and the run itself, instead of looking them up
    python bench/lr_quality.py --collect               measure everything again, about half an hour (--quick: to try it out)
    python bench/lr_quality.py --collect wine-mlp-sgd --data FILE
    python bench/lr_quality.py --kept                  what it changes to keep the best weights of a run, from stored measurements
    python bench/lr_quality.py --collect-kept          measure that again, about half an hour; names of tasks: only these
    python bench/lr_quality.py --ask                   ask the other libraries again (all of them must be installed)

A task is a data set, a model, an optimizer, a batch size and a length of training (lr_quality/lr_tasks.py). Its truth is the
validation loss after one cycle of training with each of 21 rates, for a short run and for one five times as long. A rate is
in band if the loss that it leads to is at most 10% above the best one, or one standard deviation between seeds if that is
more. Its regret is how far above the best one the loss is. Each rule sees the same 16 sweeps of each task.
"""

import argparse
import contextlib
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np

FOLDER = Path(__file__).with_suffix("")
sys.path.insert(0, str(FOLDER))  # lr_tasks and lr_training

from cbnb.basics.buffers import Smoother
from cbnb.lr.finder import diverged, for_few_items
from cbnb.lr.rules import Rate, minimum, recommend_rate, slide, steep, valley
from cbnb.lr.trials import Trial, choose, next_rate, plan_trials

RECORDED = FOLDER / "recorded.npz"
OTHERS = FOLDER / "others.npz"  # what other libraries suggest for the sweeps in `RECORDED`
LENGTHS = (1, 5)  # of the runs, in multiples of a task's steps
KEPT = FOLDER / "kept.npz"  # the same tasks, of each run the last weights and the best ones
N_TRIALS = 4
SHORT_TRIAL = 40  # updates: four of them and a sweep of 100 cost 260 at most
N_RESAMPLES = 2000
FEW_ROWS = 400  # of training
GRID = np.linspace(-5, 5 / 3, 21)  # log10 of the rates of the truth


# --- what was measured ---


class Truth:
    """What a rate leads to: the validation loss at the end of a run, between the rates of the grid by interpolation."""

    def __init__(self, losses: np.ndarray, start: float):
        """`losses`: of each seed and rate; `start`: before training."""
        self.each = np.where(np.isfinite(losses), np.minimum(losses, 2 * start), 2 * start)
        self.losses, self.start = self.each.mean(0), start
        at = int(self.losses.argmin())
        self.best, self.best_rate = float(self.losses[at]), 10 ** GRID[at]
        self.limit = max(1.1 * self.best, self.best + self.each[:, at].std(ddof=1))
        nothing_learnt = self.each > start - 0.05 * (start - self.best)
        self.diverged = np.where(np.arange(len(GRID)) >= at, nothing_learnt, False).mean(0)

    def loss(self, log_rate: np.ndarray) -> np.ndarray:
        return np.interp(log_rate, GRID, self.losses)

    def in_band(self, log_rate: np.ndarray) -> np.ndarray:
        return (self.loss(log_rate) <= self.limit) & (log_rate <= GRID[-1])  # nan, a failure, is not

    def regret(self, log_rate: np.ndarray) -> np.ndarray:
        return np.maximum(self.loss(log_rate) / self.best - 1, 0)

    def divergence(self, log_rate: np.ndarray) -> np.ndarray:
        return np.interp(log_rate, GRID, self.diverged, right=1)

    def ceiling(self) -> float:
        """How often the best rate by one half of the seeds is in the band of the other half."""
        halves = self.each[::2], self.each[1::2]
        found = [Truth(b, self.start).in_band(GRID[a.mean(0).argmin()]) for a, b in (halves, halves[::-1]) if len(b) > 1]
        return float(np.mean(found)) if found else math.nan


@dataclass
class Sweep:
    """What a sweep recorded. `lrs`, `losses` and `updates` end where `lr_find` stops, and `smooth` where the other libraries do."""

    all_lrs: list[float]
    all_losses: list[float]  # of the batches
    all_updates: list[float]  # norms
    weight_norm: float
    smooth: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        smoother, smooth = Smoother(0.98), []
        for n, loss in enumerate(self.all_losses, 1):
            smooth.append(smoother.add(loss))
            if not math.isfinite(loss) or diverged(smooth, self.all_losses[:n]):
                break
        self.lrs, self.losses, self.updates = self.all_lrs[:n], self.all_losses[:n], self.all_updates[:n]
        high = (i for i in range(n) if not smooth[i] <= 4 * min(smooth[: i + 1]))
        self.smooth = smooth[: next(high, n) + 1]

    def middle(self) -> tuple[list[float], list[float], int]:
        """What the classical rules look at: the smoothed curve without its first tenth and its last five points."""
        return self.all_lrs[10 : len(self.smooth) - 5], self.smooth[10:-5], len(self.all_lrs)


@dataclass
class Outcomes:
    """What runs of one length gave, for each seed and rate; `few`: validation loss on four batches; `start`: before training."""

    few: np.ndarray
    train: np.ndarray
    start: np.ndarray

    def trial(self, rate: float, seed: int) -> Trial:
        row = seed % len(self.few)
        values = [np.interp(math.log10(rate), GRID, self._tame(losses[row])) for losses in (self.train, self.few)]
        return Trial(rate, *map(float, values))

    def _tame(self, losses: np.ndarray) -> np.ndarray:
        limit = 3 * self.start.mean()  # above it all is lost, and one could not interpolate
        return np.where(np.isfinite(losses), np.minimum(losses, limit), limit)


@dataclass
class Recorded:
    """A task, and all that was measured on it."""

    name: str
    opt: str
    steps: int
    truths: dict[int, Truth]  # length of the run, in multiples of the steps -> what a rate leads to
    sweeps: list[Sweep]
    tables: dict[int, Outcomes]  # updates -> what trials that long gave
    groups: set[str]
    epoch_size: tuple[float, float] | None = None  # updates and items of an epoch; None: not known

    def trial_steps(self, share: float) -> int:
        """The length of trials, of those that were measured, that is nearest to a number of updates."""
        return min(self.tables, key=lambda steps: abs(math.log(steps / share)))


def read_own(path: Path = RECORDED) -> list[Recorded]:
    """The tasks of this benchmark, as far as they are in the file."""
    from lr_tasks import TASKS
    from lr_training import END_LR, START_LR, SWEEP_STEPS

    arrays = np.load(path)
    names = {key.split("/")[0] for key in arrays.files}
    lrs = np.geomspace(START_LR, END_LR, SWEEP_STEPS)
    return [own_task(task, arrays, lrs) for task in TASKS.values() if task.name in names]


def own_task(task: Any, arrays: Any, lrs: np.ndarray) -> Recorded:
    def get(run: str, key: str) -> np.ndarray:
        return arrays[f"{task.name}/{run}/{key}"].astype(float)

    runs = {key.split("/")[1] for key in arrays.files if key.startswith(f"{task.name}/")}
    start = get("run1", "start").mean()
    truths = {int(run[3:]): Truth(get(run, "valid"), start) for run in runs if run.startswith("run")}
    lengths = {run: int(run[5:]) for run in runs if run.startswith("trial")} | {"run1": task.steps}
    tables = {n: Outcomes(get(run, "few"), get(run, "train"), get(run, "start")) for run, n in lengths.items()}
    sweeps = [Sweep(list(lrs), list(a), list(b), c) for a, b, c in zip(*(get("sweep", key) for key in ("loss", "update", "weights")))]
    groups = {"new kinds" if task.new else "kinds tuned on", *task.tags}
    n = len(task.data().x)
    return Recorded(task.name, task.opt, task.steps, truths, sweeps, tables, groups, (math.ceil(n / task.bs), n))


def read_given(folder: Path) -> list[Recorded]:
    """Tasks that others have measured."""
    about = json.loads((folder / "ground_truth.json").read_text())
    longer = np.load(folder / "data5.npz") if (folder / "data5.npz").exists() else {}
    files = {name: folder / "data" / f"{name}.npz" for name in about}
    return [given_task(name, about[name], np.load(file), longer) for name, file in files.items() if file.exists()]


def given_task(name: str, about: dict[str, Any], arrays: Any, longer: Any) -> Recorded:
    start = arrays["init_val"].astype(float)
    truths = {1: Truth(arrays["gt_val"].astype(float), start.mean())}
    if name in longer:
        truths[5] = Truth(longer[name].astype(float), start.mean())
    tables = {about["steps"]: Outcomes(arrays["gt_vs"].astype(float), arrays["gt_tail"].astype(float), start)}
    for steps in (40, 80):
        losses = arrays[f"tr{steps}_train"].astype(float)
        before = np.nanmedian(losses[:, :, :2], axis=(1, 2))
        tables[steps] = Outcomes(arrays[f"tr{steps}_vs"].astype(float), losses[:, :, -(steps // 4) :].mean(2), before)
    kept = [arrays[f"rt_std_{key}"].astype(float) for key in ("pre", "unorm", "pnorm")]
    sweeps = [Sweep(list(arrays["rt_std_lrs"]), list(a), list(b), c[0]) for a, b, c in zip(*kept)]
    return Recorded(name, about["opt"], about["steps"], truths, sweeps, tables, set())


# --- the contestants: each gives a rate for a sweep of a task and a planned number of updates, or fails ---

Contestant = Callable[[Recorded, int, int], float]  # task, number of the sweep, planned updates -> rate


def from_sweep(task: Recorded, j: int, planned: int) -> float:
    rate = rate_of_sweep(task, j, planned)
    if rate.doubt:  # `lr_find` gives none
        raise ValueError(rate.doubt)
    return rate.lr


def rate_of_sweep(task: Recorded, j: int, planned: int) -> Rate:
    sweep = task.sweeps[j]
    rate = recommend_rate(sweep.lrs, sweep.losses, sweep.updates, sweep.weight_norm, planned, len(sweep.all_lrs))
    return for_few_items(rate, planned, task.epoch_size)


def from_trials(task: Recorded, j: int, planned: int, steps: int, train: Callable[[float], Trial] | None = None) -> float:
    """After trials of so many updates, looked up unless there is a function that trains one."""
    plan = plan_trials(rate_of_sweep(task, j, planned).lr, N_TRIALS * steps, planned)
    train = train or (lambda rate: task.tables[plan.steps].trial(rate, j))
    trials: list[Trial] = []
    while (rate := next_rate(plan, trials)) is not None:
        trials.append(train(rate))
    return choose(plan, trials, float(task.tables[plan.steps].start.mean())).lr


def trials_short(task: Recorded, j: int, planned: int) -> float:
    return from_trials(task, j, planned, SHORT_TRIAL)


def trials_fifth(task: Recorded, j: int, planned: int) -> float:
    return from_trials(task, j, planned, task.trial_steps(planned / 5))


def costs(tasks: Sequence[Recorded], times: int, share: float | None = 0.2) -> float:
    """Updates of a sweep and its trials, as a share of the run that they are for, on average; `share`: of the run, for each trial; None: `SHORT_TRIAL`."""
    found = []
    for task in tasks:
        planned = times * task.steps
        steps = SHORT_TRIAL if share is None else task.trial_steps(planned * share)
        for j, sweep in enumerate(task.sweeps):
            seen: list[float] = []
            from_trials(task, j, planned, steps, lambda rate: seen.append(rate) or task.tables[steps].trial(rate, j))
            found.append((len(sweep.lrs) + steps * len(seen)) / planned)
    return float(np.mean(found))


def classical(rule: Callable[..., Any]) -> Contestant:
    return lambda task, j, planned: rule(*task.sweeps[j].middle())[0]


class BestConstant:
    """For each optimizer the rate of the grid that is in band on most of the other tasks with it."""

    def __init__(self, tasks: Sequence[Recorded]):
        self.tasks = tasks
        self.rate = cache(self._rate)

    def _rate(self, name: str, opt: str) -> float:
        truths = [truth for t in self.tasks if t.opt == opt and t.name != name for truth in t.truths.values()]
        shares = np.mean([truth.in_band(GRID) for truth in truths], 0)
        return 10 ** GRID[shares.argmax()]

    def __call__(self, task: Recorded, j: int, planned: int) -> float:
        return self.rate(task.name, task.opt)


def fastai_rules() -> dict[str, Contestant]:
    import torch
    from fastai.callback import schedule

    def ask(rule: Callable[..., Any]) -> Contestant:
        def suggested(task: Recorded, j: int, planned: int) -> float:
            lrs, losses, n = task.sweeps[j].middle()
            return float(rule(torch.tensor(lrs), torch.tensor(losses), n)[0])

        return suggested

    return {f"fastai {name}": ask(getattr(schedule, name)) for name in ("valley", "slide", "minimum", "steep")}


def lightning_rules() -> dict[str, Contestant]:
    try:
        from lightning.pytorch.tuner.lr_finder import _LRFinder
    except ImportError:
        from pytorch_lightning.tuner.lr_finder import _LRFinder

    def suggested(task: Recorded, j: int, planned: int) -> float:
        sweep = task.sweeps[j]
        finder = _LRFinder("exponential", sweep.all_lrs[0], sweep.all_lrs[-1], len(sweep.all_lrs))
        finder.results = dict(lr=sweep.all_lrs[: len(sweep.smooth)], loss=sweep.smooth)
        return finder.suggestion()

    return {"Lightning": suggested}


def torch_lr_finder_rules() -> dict[str, Contestant]:
    import torch
    from torch_lr_finder import LRFinder

    model = torch.nn.Linear(1, 1)

    def suggested(task: Recorded, j: int, planned: int) -> float:
        sweep = task.sweeps[j]
        smooth = smoothed_and_stopped(sweep.all_losses)
        finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=sweep.lrs[0]), torch.nn.MSELoss())
        finder.history = dict(lr=sweep.all_lrs[: len(smooth)], loss=smooth)
        with contextlib.redirect_stdout(io.StringIO()):
            return finder.plot(suggest_lr=True, ax=Mock())[1]

    return {"torch-lr-finder": suggested}


def smoothed_and_stopped(losses: Sequence[float], keep: float = 0.95, factor: float = 5) -> list[float]:
    """The curve as torch-lr-finder would have recorded it: lightly smoothed, until the loss is five times its best."""
    smooth: list[float] = []
    for loss in losses:
        smooth.append(loss if not smooth else (1 - keep) * loss + keep * smooth[-1])
        if not smooth[-1] <= factor * min(smooth):
            break
    return smooth


LIBRARIES = {"fastai": fastai_rules, "pytorch-lightning": lightning_rules, "torch-lr-finder": torch_lr_finder_rules}
VALLEY, MINIMUM = "valley", "minimum/10"


def our_contestants(tasks: Sequence[Recorded]) -> dict[str, Contestant]:
    return {
        "cbnb, one sweep": from_sweep,
        "cbnb, trials, 260 batches": trials_short,
        "cbnb, trials, 1 training": trials_fifth,
        "best constant per optimizer": BestConstant(tasks),
        MINIMUM: classical(minimum),
        VALLEY: classical(valley),
        "slide": classical(slide),
        "steep": classical(steep),
    }


def other_contestants(tasks: Sequence[Recorded], path: Path | None) -> tuple[dict[str, Contestant], list[str]]:
    """The rules of other libraries, and a remark on each: asked now if it is installed; otherwise from the file, if all tasks are in it."""
    stored = np.load(path) if path and path.exists() else {}
    found: dict[str, Contestant] = {}
    remarks = []
    for library, rules in LIBRARIES.items():
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                found |= rules()
            remarks.append(f"{library} {version(library)} is installed, and asked")
        except ImportError:
            if f"{library}/version" in stored and all(f"{library}/{task.name}" in stored for task in tasks):
                found |= {str(name): from_store(stored, library, row) for row, name in enumerate(stored[f"{library}/rules"])}
                remarks.append(f"{library} is not installed: these are stored suggestions of version {stored[f'{library}/version']}")
            else:
                remarks.append(f"{library} is not installed, and left out")
    return found, remarks


def from_store(stored: Any, library: str, row: int) -> Contestant:
    rates = cache(lambda name: 10 ** stored[f"{library}/{name}"][row].astype(float))
    return lambda task, j, planned: rates(task.name)[j]


def ask_others(tasks: Sequence[Recorded], path: Path = OTHERS) -> None:
    """Store what the other libraries suggest."""
    arrays: dict[str, Any] = {}
    for library, rules in LIBRARIES.items():
        asked = rules()
        logs = np.stack([suggestions(rule, tasks, 1) for rule in asked.values()], 1).astype(np.float32)
        arrays |= {f"{library}/version": version(library), f"{library}/rules": list(asked)}
        arrays |= {f"{library}/{task.name}": rows for task, rows in zip(tasks, logs)}
    np.savez_compressed(path, **arrays)


def suggestions(contestant: Contestant, tasks: Sequence[Recorded], times: int) -> np.ndarray:
    """The logarithm of the rate for each task and sweep; nan where there is none."""
    return np.array([[log_rate(contestant, task, j, times * task.steps) for j in range(len(task.sweeps))] for task in tasks])


def log_rate(contestant: Contestant, task: Recorded, j: int, planned: int) -> float:
    try:
        rate = contestant(task, j, planned)
    except (ValueError, IndexError, RuntimeError):  # a refusal, or a curve too short
        return math.nan
    return math.log10(rate) if rate is not None and 0 < rate < math.inf else math.nan


# --- the score ---


@dataclass
class Score:
    """How a contestant did, with a row for each task and a column for each length; nan where the truth is not known."""

    in_band: np.ndarray
    regrets: list[float]  # of all suggestions, pooled
    diverged: np.ndarray
    failed: float
    spread: float  # standard deviation between sweeps, of log10 of the rate; the median over the tasks


def score(contestant: Contestant, tasks: Sequence[Recorded], lengths: Sequence[int] = LENGTHS) -> Score:
    in_band, bad = np.full((2, len(tasks), len(lengths)), math.nan)
    regrets: list[float] = []
    logs = {times: suggestions(contestant, tasks, times) for times in lengths}
    for (i, task), (column, times) in ((row, col) for row in enumerate(tasks) for col in enumerate(lengths)):
        if truth := task.truths.get(times):
            mine = logs[times][i]
            in_band[i, column] = truth.in_band(mine).mean()
            made = mine[np.isfinite(mine)]
            bad[i, column] = truth.divergence(made).sum() / len(mine)
            regrets += list(truth.regret(made))
    first = logs[lengths[0]]
    spread = np.nanmedian([np.nanstd(row) for row in first if np.isfinite(row).any()]) if np.isfinite(first).any() else math.nan
    return Score(in_band, regrets, bad, float(np.isnan(first).mean()), float(spread))


def mean_of_lengths(in_band: np.ndarray) -> float:
    return float(np.nanmean(in_band, 0).mean())


def interval(in_band: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Where 95% of the means lie if the tasks are drawn again and again, from these."""
    rows = np.random.RandomState(seed).randint(0, len(in_band), (N_RESAMPLES, len(in_band)))
    means = np.nanmean(in_band[rows], 1).mean(1)
    return tuple(float(q) for q in np.nanquantile(means, [0.025, 0.975]))


def summary(mine: Score, others: dict[str, Score]) -> dict[str, Any]:
    """The numbers of a row of the table; shares from 0 to 1."""
    row = dict(
        in_band=[float(share) for share in np.nanmean(mine.in_band, 0)],
        mean=mean_of_lengths(mine.in_band),
        interval=interval(mine.in_band),
        regret=float(np.median(mine.regrets)) if mine.regrets else math.nan,
        regret_90=float(np.quantile(mine.regrets, 0.9)) if mine.regrets else math.nan,
        diverged=mean_of_lengths(mine.diverged),
        failed=mine.failed,
        spread=mine.spread,
    )
    for name, other in others.items():
        difference = mine.in_band - other.in_band
        row[f"minus {name}"] = [mean_of_lengths(difference), *interval(difference)]
    return row


def ceiling(tasks: Sequence[Recorded]) -> float:
    return float(np.nanmean([truth.ceiling() for task in tasks for times, truth in task.truths.items() if times in LENGTHS]))


def results(tasks: Sequence[Recorded], stored: Path | None = OTHERS) -> dict[str, Any]:
    """All that the table and the figure show; `stored`: what libraries that are not installed suggest for these sweeps."""
    others, remarks = other_contestants(tasks, stored)
    asked, same = without_twins(our_contestants(tasks), others, tasks)
    scores = {name: score(contestant, tasks) for name, contestant in asked.items()}
    table = {name: summary(mine, {k: scores[k] for k in (VALLEY, MINIMUM) if k != name}) for name, mine in scores.items()}
    parts = {}
    for group in sorted({group for task in tasks for group in task.groups}):
        members = [i for i, task in enumerate(tasks) if group in task.groups]
        shares = {name: scores[name].in_band[members] for name in scores}
        known = {name: [*np.nanmean(share, 0).tolist(), mean_of_lengths(share)] for name, share in shares.items()}
        less = {k: v - shares[MINIMUM] for k, v in shares.items() if k != MINIMUM}
        parts[group] = dict(tasks=len(members), rules=known, less_minimum={k: [mean_of_lengths(v), *interval(v)] for k, v in less.items()})
    known = [sum(times in task.truths for task in tasks) for times in LENGTHS]
    longest = longer_runs(tasks, asked)
    return dict(
        tasks=known, sweeps=len(tasks[0].sweeps), ceiling=ceiling(tasks), rules=table, groups=parts, longest=longest, remarks=remarks + same
    )


def without_twins(
    ours: dict[str, Contestant], others: dict[str, Contestant], tasks: Sequence[Recorded]
) -> tuple[dict[str, Contestant], list[str]]:
    """All contestants, less those of others that suggest the very same as one of ours; and a remark on each of them."""
    mine = {name: suggestions(ours[name], tasks, 1) for name in (MINIMUM, VALLEY, "slide", "steep")}
    kept, remarks = dict(ours), []
    for name, contestant in others.items():
        logs = suggestions(contestant, tasks, 1)
        twins = [twin for twin, known in mine.items() if np.allclose(logs, known, atol=1e-4, equal_nan=True)]
        if twins:
            remarks.append(f"{name} suggests the same as {twins[0]}: one row for both")
        else:
            kept[name] = contestant
    return kept, remarks


def longer_runs(tasks: Sequence[Recorded], asked: dict[str, Contestant]) -> dict[str, Any]:
    """Runs twenty times as long, which few tasks have."""
    few = [task for task in tasks if 20 in task.truths]
    names = [name for name in asked if name != "cbnb, trials, 1 training"] if few else []  # no trials that long were recorded
    scores = {name: score(asked[name], few, [20]) for name in names}
    return dict(
        tasks=len(few), rules={k: dict(in_band=mean_of_lengths(v.in_band), regret=float(np.median(v.regrets))) for k, v in scores.items()}
    )


# --- the best weights of a run ---

ENDS = dict(last="last weights", kept="best weights", other="best by one half, judged by the other")


def read_kept(own: Sequence[Recorded], path: Path = KEPT) -> dict[str, list[Recorded]]:
    """The tasks in the file, once for each of `ENDS`: the truth is what a rate leads to if the run ends so."""
    arrays = np.load(path)

    def truths(task: Recorded, end: str) -> dict[int, Truth]:
        runs = {times: f"{task.name}/run{times}" for times in LENGTHS}
        return {n: Truth(arrays[f"{run}/{end}"].astype(float), float(arrays[f"{run}/start"].mean())) for n, run in runs.items()}

    known = {key.split("/")[0] for key in arrays.files}
    there = [task for task in own if task.name in known]
    return {end: [replace(task, truths=truths(task, end)) for task in there] for end in ENDS}


def kept_results(own: Sequence[Recorded], path: Path = KEPT, stored: Path | None = OTHERS) -> dict[str, Any]:
    """For each rule and end: the shares in band, their interval, and the difference to the last weights, task by task."""
    ends = read_kept(own, path)
    tasks = ends["last"]
    others, _ = other_contestants(tasks, stored)
    asked, _ = without_twins(our_contestants(own), others, tasks)
    rows: dict[str, Any] = {}
    shares = {name: {end: score(rule, known).in_band for end, known in ends.items()} for name, rule in asked.items()}
    few = np.array([task.epoch_size[1] <= FEW_ROWS for task in tasks])
    groups = {
        "": few >= 0,
        f"at most {FEW_ROWS} rows": few,
        "more rows": ~few,
        "new kinds": np.array(["new kinds" in t.groups for t in tasks]),
    }
    for name, by_end in shares.items():
        for end, in_band in by_end.items():
            less = in_band - by_end["last"]
            rows[f"{name}/{end}"] = {
                group: [
                    *in_band[of].mean(0),
                    mean_of_lengths(in_band[of]),
                    *interval(in_band[of]),
                    mean_of_lengths(less[of]),
                    *interval(less[of]),
                ]
                for group, of in groups.items()
                if of.any()
            }
    return dict(tasks={group: int(of.sum()) for group, of in groups.items()}, rules=rows)


def show_kept(found: dict[str, Any]) -> None:
    for group, n in found["tasks"].items():
        print(f"\n{group or 'all'}: {n} tasks\n{'':34}{'1x':>5}{'5x':>6}{'mean':>6}  {'95%':12}less the last weights")
        for name, row in found["rules"].items():
            if n and not (group and not name.startswith("cbnb")):
                short, long, mean, low, high, *less = (100 * x for x in row[group])
                change = "" if name.endswith("/last") else "{:+.0f} [{:+.0f}, {:+.0f}]".format(*less)
                print(f"{name:34}{short:4.0f}%{long:5.0f}%{mean:5.0f}%  {f'{low:.0f} to {high:.0f}':12}{change}".rstrip())


# --- what is shown ---


def percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share < 10 else f"{share:.0f}x"


def difference(row: dict[str, Any], other: str) -> str:
    if f"minus {other}" not in row:
        return ""
    return "{:+.0f} [{:+.0f}, {:+.0f}]".format(*(100 * value for value in row[f"minus {other}"]))


def table_lines(found: dict[str, Any]) -> list[str]:
    head = f"{'in band':29}{'1x':>5}{'5x':>6}{'mean':>6}  {'95%':10}{'regret':>7}{'its 90%':>9}{'diverge':>9}{'fail':>6}{'spread':>8}"
    lines = [f"{head}   {'- valley':17}- minimum/10"]
    for name, row in found["rules"].items():
        low, high = (100 * x for x in row["interval"])
        shares = f"{percent(row['in_band'][0]):>5}{percent(row['in_band'][1]):>6}{percent(row['mean']):>6}  {f'{low:.0f} to {high:.0f}':10}"
        rest = f"{100 * row['regret']:6.1f}%{percent(row['regret_90']):>9}{100 * row['diverged']:8.1f}%{percent(row['failed']):>6}{row['spread']:8.2f}"
        lines.append(f"{name:29}{shares}{rest}   {difference(row, VALLEY):17}{difference(row, MINIMUM)}".rstrip())
    return lines


def as_markdown(found: dict[str, Any]) -> str:
    """The table for a page: without what only a terminal has room for."""
    head = ["", "in band, short run", "long run", "mean (95%)", "regret", "diverges", "spread", "less valley", "less minimum/10"]
    lines = [" | ".join(head), "|".join([":---", *["---:"] * (len(head) - 1)])]
    for name, row in found["rules"].items():
        low, high = (f"{100 * share:.0f}" for share in row["interval"])
        shares = [*map(percent, row["in_band"]), f"{percent(row['mean'])} ({low}\u00a0to\u00a0{high})"]
        rest = [f"{100 * row['regret']:.1f}%", f"{100 * row['diverged']:.1f}%", f"{row['spread']:.2f}"]
        paired = [difference(row, other).replace(", ", ",\u00a0") for other in (VALLEY, MINIMUM)]
        lines.append(" | ".join([name, *shares, *rest, *paired]))
    return "\n".join(f"| {line} |" for line in lines)


def show(title: str, found: dict[str, Any]) -> None:
    short, long = found["tasks"]
    print(f"\n{title}: {short} tasks, {long} of them also with five times the steps; {found['sweeps']} sweeps each")
    print("\n".join(table_lines(found)))
    print(f"{'noise ceiling':29}{'':11}{percent(found['ceiling']):>6}  the best rate by one half of the seeds, judged by the other half")
    names = [name for name in found["rules"] if name.startswith("cbnb") or name in (VALLEY, MINIMUM)]
    for group, part in found["groups"].items():
        shares = [f"{name.removeprefix('cbnb, ')} " + "/".join(percent(x) for x in part["rules"][name][:2]) for name in names]
        print(f"  {group}, {part['tasks']} tasks: {'; '.join(shares)}")
    if found["longest"]["tasks"]:
        shares = [
            f"{name.removeprefix('cbnb, ')} {percent(found['longest']['rules'][name]['in_band'])}"
            for name in names
            if name in found["longest"]["rules"]
        ]
        print(f"  twenty times the steps, {found['longest']['tasks']} tasks: {'; '.join(shares)}")
    print("\n".join(f"  {remark}" for remark in found["remarks"]))


def draw(found: dict[str, Any]) -> Any:
    """For each rule: in band, with its interval, and at each length; and the regret."""
    from cbnb.display.figures import COLORS, figure

    names = list(found["rules"])[::-1]
    with figure(size=(8.6, 1.4 + 0.36 * len(names)), cols=2) as (fig, [left, right]):
        for y, name in enumerate(names):
            row, color = found["rules"][name], COLORS["train" if name.startswith("cbnb") else "text"]
            bar = dict(color=color, lw=5, alpha=0.3, solid_capstyle="round")
            short, long = (100 * share for share in row["in_band"])
            middle, worst = (min(max(100 * row[key], 0.5), 2000) for key in ("regret", "regret_90"))
            left.plot([100 * share for share in row["interval"]], [y, y], **bar)
            left.plot(100 * row["mean"], y, "o", color=color, ms=7)
            left.plot([short, long], [y - 0.32] * 2, color=color, lw=0.8)
            left.plot(short, y - 0.32, "o", color=color, ms=4, mfc="white")
            left.plot(long, y - 0.32, "o", color=color, ms=4)
            right.plot([middle, worst], [y, y], **bar)
            right.plot(middle, y, "o", color=color, ms=7)
        left.axvline(100 * found["ceiling"], color=COLORS["mark"], lw=1, ls=":", label="noise ceiling")
        text = dict(color=COLORS["text"], ls="none", marker="o")
        left.plot([], [], ms=7, label="mean of both, and its 95%", **text)
        left.plot([], [], ms=4, mfc="white", label="short run", **text)
        left.plot([], [], ms=4, label="long run", **text)
        fig.legend(loc="outside lower center", ncols=4, fontsize=9)
        left.set(xlim=(-2, 102), xlabel="% of the suggestions", title="In band")
        right.set(xscale="log", xlabel="% above the best loss", title="Regret, median to worst tenth")
        right.set(xticks=[1, 10, 100, 1000], xticklabels=["1", "10", "100", "1000"])
        right.minorticks_off()
        for ax, labels in ((left, names), (right, [])):
            ax.set(ylim=(-0.7, len(names) - 0.4), yticks=range(len(names)), yticklabels=labels or [""] * len(names))
            ax.grid(axis="y", visible=False)
        return fig


# --- with real training ---


def live(task: Recorded, n_sweeps: int = 2) -> None:
    """For a few sweeps, train what the table looks up: each trial at its very rate, and then the run itself."""
    import torch
    from lr_tasks import TASKS
    from lr_training import run

    torch.set_num_threads(1)

    def train(rate: float, steps: int, seed: int) -> dict[str, np.ndarray]:
        return run(TASKS[task.name], [seed], [rate], steps)

    for times in LENGTHS:
        planned, truth = times * task.steps, task.truths[times]
        for name, steps in (("one sweep", 0), ("trials, 260 batches", SHORT_TRIAL), ("trials, 1 training", task.trial_steps(planned / 5))):
            for j in range(n_sweeps):

                def one_trial(rate: float) -> Trial:
                    found = train(rate, steps, 500 + j)
                    return Trial(rate, float(found["train"][0, 0]), float(found["few"][0, 0]))

                rate = from_trials(task, j, planned, steps, one_trial) if steps else from_sweep(task, j, planned)
                loss = float(train(rate, planned, 600 + j)["valid"][0, 0])
                looked_up = float(truth.loss(np.array(math.log10(rate))))
                word = "in band" if loss <= truth.limit else "not in band"
                print(
                    f"{task.name}, {planned} updates, {name}: rate {rate:.2g}, loss {loss:.4g} (table: {looked_up:.4g}), best {truth.best:.4g}: {word}"
                )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--given", metavar="FOLDER", type=Path, help="also score tasks that others have measured")
    parser.add_argument("--json", metavar="FILE", help="where to save all numbers")
    parser.add_argument("--figure", metavar="FILE", help="where to save the figure, a PNG")
    parser.add_argument("--live", metavar="TASK", nargs="+", help="train, for these tasks, what the table looks up")
    parser.add_argument("--collect", metavar="TASK", nargs="*", help="measure these tasks again, or all of them")
    parser.add_argument("--kept", action="store_true", help="compare the last weights of a run with its best ones")
    parser.add_argument("--collect-kept", metavar="TASK", nargs="*", help="measure that again, for these tasks or all of them")
    parser.add_argument("--quick", action="store_true", help="with --collect: a tenth of the updates, to try it out")
    parser.add_argument("--ask", action="store_true", help="store what the other libraries suggest")
    parser.add_argument("--data", metavar="FILE", type=Path, default=RECORDED, help="the stored measurements")
    return parser.parse_args()


def collect(names: Iterable[str], path: Path, quick: bool, kept: bool = False) -> None:
    from lr_tasks import TASKS
    from lr_training import collect as measure
    from lr_training import collect_into, collect_kept

    names = list(names) or list(TASKS)
    if unknown := [name for name in names if name not in TASKS]:
        sys.exit(f"there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    if quick and path in (RECORDED, KEPT):
        sys.exit("--quick measures too little to be kept: say where with --data FILE")
    collect_into(path, [TASKS[name] for name in names], quick, collect_kept if kept else measure)


def main() -> None:
    args = arguments()
    if args.collect is not None:
        return collect(args.collect, args.data, args.quick)
    if args.collect_kept is not None:
        return collect(args.collect_kept, KEPT if args.data == RECORDED else args.data, args.quick, kept=True)
    own = read_own(args.data)
    if args.kept:
        return show_kept(kept_results(own))
    if args.ask:
        return ask_others(own)
    if args.live:
        for task in own:
            if task.name in args.live:
                live(task)
        return
    sets = {"Own tasks": own}
    if args.given:
        given = read_given(args.given)
        sets |= {"Given tasks": given, "All tasks": given + own}
    stored = OTHERS if args.data == RECORDED else None
    found = {title: results(tasks, stored) for title, tasks in sets.items()}
    for title, result in found.items():
        show(title, result)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))
    if args.figure:
        import matplotlib

        matplotlib.use("Agg")
        draw(list(found.values())[-1]).savefig(args.figure, dpi=144, facecolor="white")


if __name__ == "__main__":
    main()
