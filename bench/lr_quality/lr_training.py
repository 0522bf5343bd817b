"""Trains the benchmark's tasks: the truth, the trials and the sweeps. Many small trainings run side by side.

A lane is one training: a seed (weights and order of the batches) and a rate. The weights of all lanes are stacked, the
model runs on the stack with `torch.func.vmap`, and the sum of the losses is differentiated, so lanes cannot influence one
another. The optimizers are PyTorch's own. Their updates are proportional to the rate, so they run with a rate of one, and
the update of each lane is multiplied by the rate of the lane.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from lr_tasks import Task
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from cbnb.schedule import combined_cos

GRID = [10 ** (-5 + k / 3) for k in range(21)]  # the rates of the truth: 1e-5 to 46
# Seeds, other ones for each purpose: of the truth at each length (in multiples of the task's steps), of trials, of sweeps
TRUTH = {1: range(0, 6), 5: range(20, 24), 20: range(40, 42)}
TRIALS, SWEEPS = range(100, 106), range(200, 216)
START_LR, END_LR, SWEEP_STEPS = 1e-7, 10.0, 100  # the sweep, as `lr_find` makes it
KEPT = {1: range(300, 303), 5: range(320, 322)}  # seeds of the runs of which the best weights are kept
HALVES, MOST_LOOKS = (slice(0, None, 2), slice(1, None, 2)), 40  # of the validation rows, which are in a random order; validations of a run
SHORT_TRIAL = 40  # updates of a trial if four of them and a sweep may cost 260 in all

OPTIMIZERS = dict(
    sgd=lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.9),
    adam=lambda params: torch.optim.Adam(params, lr=1.0),
    adamw=lambda params: torch.optim.AdamW(params, lr=1.0),
    rmsprop=lambda params: torch.optim.RMSprop(params, lr=1.0, momentum=0.9),  # `fit_one_cycle` gives it one
)


def loss_of(kind: str, out: Tensor, y: Tensor) -> Tensor:
    """Mean loss of one lane."""
    if kind == "ce":
        return F.cross_entropy(out, y)
    out = out.reshape(y.shape)
    return F.mse_loss(out, y) if kind == "mse" else F.binary_cross_entropy_with_logits(out, y)


def batch_order(n: int, bs: int, steps: int, seed: int) -> np.ndarray:
    """Rows of each batch, epoch after epoch in a new order; a last batch that is not full is dropped."""
    random, rows = np.random.RandomState(70_000 + seed), []
    while len(rows) < steps:
        rows += list(random.permutation(n)[: n // bs * bs].reshape(-1, bs))
    return np.stack(rows[:steps])


def fresh_model(task: Task, seed: int) -> nn.Module:
    torch.manual_seed(1000 + seed)
    return task.model()


class Lanes:
    """Trainings of one task, side by side: each seed with each rate."""

    def __init__(self, task: Task, seeds: Sequence[int], n_rates: int, steps: int):
        self.task, self.data, self.n_rates, self.shape = task, task.data(), n_rates, (len(seeds), n_rates)
        models = [fresh_model(task, seed) for seed in seeds]
        if task.pretrain:
            for model in models:
                start_from(model, pretrained(task))
        self.skeleton = models[0]
        with torch.no_grad():
            params, buffers = stack_module_state(models)
            self.params = {k: v.detach().repeat_interleave(n_rates, 0).requires_grad_() for k, v in params.items()}
            self.buffers = {k: v.repeat_interleave(n_rates, 0) for k, v in buffers.items()}
        self.order = torch.from_numpy(np.stack([batch_order(len(self.data.x), task.bs, steps, seed) for seed in seeds]))
        self.opt = OPTIMIZERS[task.opt](self.params.values())

    def losses(self, x: Tensor, y: Tensor, train: bool, shared: bool = False) -> Tensor:
        """Of each lane; `shared`: all see the same rows."""

        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss_of(self.task.loss, functional_call(self.skeleton, (params, buffers), (x,)), y)

        self.skeleton.train(train)
        inside = None if shared else 0
        return vmap(one, in_dims=(0, 0, inside, inside))(self.params, self.buffers, x, y)

    def step(self, i: int, rates: Tensor, mom: float | None = None) -> tuple[Tensor, Tensor]:
        """One update; losses before it, and norms of the update."""
        rows = self.order[:, i]
        x, y = (t[rows].repeat_interleave(self.n_rates, 0) for t in (self.data.x, self.data.y))
        losses = self.losses(x, y, train=True)
        self.opt.zero_grad()
        losses.sum().backward()
        if mom is not None:
            set_momentum(self.opt.param_groups[0], mom)
        return losses.detach(), self._update(rates)

    @torch.no_grad()
    def _update(self, rates: Tensor) -> Tensor:
        before = [p.clone() for p in self.params.values()]
        self.opt.step()
        squares = torch.zeros(len(rates))
        for p, old in zip(self.params.values(), before):
            change = (p - old) * rates.view(-1, *[1] * (p.dim() - 1))
            p.copy_(old + change)
            squares += change.flatten(1).square().sum(1)
        return squares.sqrt()

    @torch.no_grad()
    def validate(self, rows: slice = slice(None)) -> np.ndarray:
        """Validation loss of each seed and rate, on all rows or some."""
        x, y = self.data.valid_x[rows], self.data.valid_y[rows]
        parts = [len(part) * self.losses(part, labels, train=False, shared=True) for part, labels in zip(x.split(200), y.split(200))]
        return (torch.stack(parts).sum(0) / len(x)).view(self.shape).numpy()

    @torch.no_grad()
    def weight_norm(self) -> np.ndarray:
        return torch.stack([p.flatten(1).square().sum(1) for p in self.params.values()]).sum(0).sqrt().numpy()


def set_momentum(group: dict, mom: float) -> None:
    if "betas" in group:
        group["betas"] = (mom, group["betas"][1])
    elif group.get("momentum"):
        group["momentum"] = mom


# --- fine-tuning ---

_PRETRAINED: dict[str, dict[str, Tensor]] = {}


def pretrained(task: Task) -> dict[str, Tensor]:
    """Weights after 400 updates on the other data, with Adam."""
    if task.name not in _PRETRAINED:
        source = Task(task.name, task.pretrain, task.model, "adam", 64, task.loss, 400)
        lanes = Lanes(source, [777], 1, 400)
        train(lanes, [1e-2], 400)
        _PRETRAINED[task.name] = {k: v[0].detach() for k, v in {**lanes.params, **lanes.buffers}.items()}
    return _PRETRAINED[task.name]


def start_from(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy `weights`, but keep the last layer fresh."""
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    kept = {k: v for k, v in weights.items() if not k.startswith(last + ".")}
    model.load_state_dict(kept, strict=False)


# --- what is recorded ---


Scheds = tuple[Callable[[float], float], Callable[[float], float]]  # of the rate, as a share of the highest, and of the momentum


def one_cycle(warmup: float = 0.25) -> Scheds:
    return combined_cos(warmup, 1 / 25, 1.0, 1e-5), combined_cos(warmup, 0.95, 0.85, 0.95)


def train(
    lanes: Lanes, rates: Sequence[float], steps: int, look: Callable[[int], None] = lambda done: None, scheds: Scheds | None = None
) -> np.ndarray:
    """One cycle, as `fit_one_cycle` does it; the mean training loss over the last quarter, for each seed and rate. `look` is called after each update."""
    lr, mom = scheds or one_cycle()
    each = torch.tensor(rates, dtype=torch.float32).repeat(lanes.shape[0])
    quarter, tail = max(steps // 4, 1), torch.zeros(len(each))
    for i in range(steps):
        losses, _ = lanes.step(i, each * lr(i / steps), mom(i / steps))
        if i >= steps - quarter:
            tail += losses / quarter
        look(i + 1)
    return tail.view(lanes.shape).numpy()


def few(task: Task) -> slice:
    """Which rows of the validation data a trial looks at: four batches."""
    return slice(4 * task.bs)


def run(task: Task, seeds: Sequence[int], rates: Sequence[float], steps: int) -> dict[str, np.ndarray]:
    """Losses after one cycle: `valid`, `few` (the same on four batches) and `train`, each with a row for each seed."""
    lanes = Lanes(task, seeds, len(rates), steps)
    start = lanes.validate(few(task))
    tail = train(lanes, rates, steps)
    return dict(valid=lanes.validate(), few=lanes.validate(few(task)), train=tail, start=start[:, 0])


def run_kept(task: Task, seeds: Sequence[int], rates: Sequence[float], steps: int) -> dict[str, np.ndarray]:
    """Validation losses of a run that is validated at the end of each epoch, and at most `MOST_LOOKS` times; a row for each seed.

    `last`: of the last weights. `kept`: of the best ones. `other`: of those that are best on one half of the rows, judged by the other half.
    """
    lanes, looks = Lanes(task, seeds, len(rates), steps), []
    start = lanes.validate()[:, 0]
    every = max(len(lanes.data.x) // task.bs, math.ceil(steps / MOST_LOOKS))

    def look(done: int) -> None:
        if done % every == 0 or done == steps:
            looks.append([lanes.validate(rows) for rows in HALVES])

    train(lanes, rates, steps, look)
    first, second = np.where(np.isfinite(found := np.array(looks)), found, np.inf).swapaxes(0, 1)
    sizes = [len(lanes.data.valid_x[rows]) for rows in HALVES]
    whole = (sizes[0] * first + sizes[1] * second) / sum(sizes)
    other = [judged_at(first, second), judged_at(second, first)]
    return dict(last=whole[-1], kept=judged_at(whole, whole), other=(sizes[1] * other[0] + sizes[0] * other[1]) / sum(sizes), start=start)


def judged_at(chosen_by: np.ndarray, judged_by: np.ndarray) -> np.ndarray:
    """The values of one array where the other is lowest, along the first axis."""
    return np.take_along_axis(judged_by, chosen_by.argmin(0)[None], 0)[0]


def sweep(task: Task, seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Rates that grow by equal factors: the loss before each update, its norm, and the norm of the weights at the start."""
    lanes = Lanes(task, seeds, 1, SWEEP_STEPS)
    norm = lanes.weight_norm()
    losses, norms = [], []
    for i in range(SWEEP_STEPS):
        rate = START_LR * (END_LR / START_LR) ** (i / (SWEEP_STEPS - 1))
        loss, size = lanes.step(i, torch.full((len(seeds),), rate))
        losses.append(loss)
        norms.append(size)
    return dict(loss=torch.stack(losses, 1).numpy(), update=torch.stack(norms, 1).numpy(), weights=norm)


def collect(task: Task, quick: bool = False) -> dict[str, np.ndarray]:
    """Everything that the benchmark needs to know about a task; `quick`: a tenth of the updates and two seeds, to try it out."""
    share, n_seeds = (10, 2) if quick else (1, None)
    runs = {f"run{times}": (seeds, times * task.steps // share) for times, seeds in TRUTH.items() if times < 20 or task.long}
    runs |= {f"trial{steps}": (TRIALS, steps) for steps in (SHORT_TRIAL, task.steps // 5)}
    found = {f"sweep/{name}": values for name, values in sweep(task, SWEEPS).items()}
    for name, (seeds, steps) in runs.items():
        found |= {f"{name}/{key}": values for key, values in run(task, seeds[:n_seeds], GRID, steps).items()}
    return {name: values.astype(np.float32) for name, values in found.items()}


def collect_kept(task: Task, quick: bool = False) -> dict[str, np.ndarray]:
    """What the best weights of its runs are worth, beside the last ones."""
    found = {}
    for times, seeds in KEPT.items():
        values = run_kept(task, seeds[:2] if quick else seeds, GRID, times * task.steps // (10 if quick else 1))
        found |= {f"run{times}/{key}": value.astype(np.float32) for key, value in values.items()}
    return found


def collect_into(
    path: Path, tasks: Iterable[Task], quick: bool = False, measure: Callable[[Task, bool], dict[str, np.ndarray]] = collect
) -> None:
    """Add what is known about `tasks` to the file, after each of them, so that it can be interrupted."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # rates far too low and far too high make such numbers, and they are slow
    known = dict(np.load(path)) if path.exists() else {}
    for task in tasks:
        start = time.perf_counter()
        found = measure(task, quick)
        known |= {f"{task.name}/{name}": values for name, values in found.items()}
        np.savez_compressed(path, **known)
        losses = [found.get(f"run{times}/valid", found.get(f"run{times}/last")) for times in (1, 5)]
        best = [GRID[int(np.nanargmin(values.mean(0)))] for values in losses]
        print(f"{task.name:28} {time.perf_counter() - start:5.0f} s   best rate {best[0]:.2g}, of the longer run {best[1]:.2g}", flush=True)
