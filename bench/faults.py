"""Does `learn.check()` find what is wrong with a training? Faults are put into healthy trainings, and it is asked about each.

    python bench/faults.py                      a tenth of the faults of each task, drawn at random, and all else: some minutes
    python bench/faults.py --share 1            all of them, more than half an hour
    python bench/faults.py --share 0.25 --unseen               without those for which the checks were mended
    python bench/faults.py --second             the faults and programs of another author: for one half of them nothing was mended
    python bench/faults.py --tasks houses,lstm  only these tasks; --only tasks, healthy or ports for a part
    python bench/faults.py --json FILE          also write what was found
    python bench/faults.py --show FILE...       read such files instead
    python bench/faults.py --watch 1,2          fit the healthy programs with these seeds: what is found in a running fit, and after it
    python bench/faults.py --verify             train all healthy and all faulty programs again, half an hour; with --second, those of that author
    python bench/faults.py --verify --set sixth the same for a later set: in each task that its author named
    python bench/faults.py --set fourth         the faults of a later author, each in one task, ten minutes; --share 1: in all its tasks
    python bench/faults.py --set tenth --later         also fit and diagnose each of them
    python bench/faults.py --second --later     also fit and diagnose each faulty program: what is found in all three

faults/fault_tasks.py has the healthy trainings, faults/mutators.py the faults, and faults/ports.py small programs with documented faults.
faults/second_mutators.py and faults/second_ports.py are those of another author: one half was seen, and the other half judges: keep it unseen.
faults/third_mutators.py to faults/tenth_mutators.py are later sets: bench/README.md says what their authors knew.
A pair of task and fault counts only if the fault harms (faults/harm.py, faults/verified.json). The set was written by somebody who had not
seen the checks, only the table of codes in their specification, and it was stored before the first time that `learn.check()` saw it.

A fault is **named** if a finding of level error or warning has one of its codes, **first** if the first finding that is no note has,
and **flagged** if there is any error or warning. A healthy training with an error or a warning is a false alarm. Two rule sets of the
literature, with their published limits, read the signals of a short training of the same programs: 60 updates and a validation.
"""

import argparse
import contextlib
import io
import json
import random
import sys
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_suffix("")
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

import harm
import lr_tasks
import torch
from eighth_mutators import MUTATORS as EIGHTH
from fault_tasks import TASKS, Training, make_task
from fifth_mutators import MUTATORS as FIFTH
from fourth_mutators import MUTATORS as FOURTH
from mutators import MUTATORS
from ninth_mutators import MUTATORS as NINTH
from ports import PORTS
from second_mutators import MUTATORS as SECOND
from second_mutators import STORED as SECOND_STORED
from second_mutators import numbers
from second_ports import PORTS as SECOND_PORTS
from seventh_mutators import MUTATORS as SEVENTH
from sixth_mutators import MUTATORS as SIXTH
from tenth_mutators import MUTATORS as TENTH
from third_mutators import MUTATORS as THIRD
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cbnb.insight.layer_faults import LayerWatch
from cbnb.insight.small_trainings import LIMIT

SEEN = 0.15  # of the pairs of task and fault: the checks were mended for what they missed among these
UPDATES = 60  # of the short training for the rules of the literature
ALIASES = dict(
    pair.split("=")
    for pair in """
    nonfinite=D1 input-scale=D2 constant-input=D3 column-scales=D4 integer-input=D5 channels=D6 targets-scale=D7
    constant-target=D8 imbalance=D9 sorted-batches=D10 label-range=D11 leak-rows=D12 leak-feature=D14 shift=D15
    augmented-validation=D16 heavy-augmentation=D17 mislabelled=D18 odd-batch=D19 duplicates=D20 pads=D21 ignores-input=M1
    batch-mixing=M2 no-gradient=M4 unused=M5 zero-gradient=M6 symmetric=M7 init-scale=M8 dead-relu=M9 saturated=M10
    linear-linear=M11 output-activation=M12 width=M13 dropout=M14 vanishing=M16 exploding=M17 train-eval=M18 capacity=M19
    initial-loss=L1 softmax-twice=L2 missing-logsoftmax=L3 softmax-one=L4 wrong-loss=L5 broadcast=L6 sum=L7 negative=L8
    weighted-mean=L9 not-representative=L10 metric-range=L11 regulariser=L12 missing-params=O1 stale-params=O2 rate-range=O3
    eps=O4 betas=O4 decay=O5 schedule-steps=O6 too-short=O7 batch-size=O8 precision=O9 overfit-one-batch=T1 inputs-zeroed=T2
    shuffled-labels=T3 same-twice=T5 nan=R1 not-learning=R3 mode=R13
""".split()
)  # name in the specification -> code of a finding

Row = dict[str, Any]


# --- asking ---


@contextlib.contextmanager
def counted_updates(model: nn.Module) -> Iterator[list[int]]:
    """A list with one item for each update of the parameters of a model."""
    ids: set[int] = {id(p) for p in model.parameters()}
    found: list[int] = []

    def count(opt: Any, *_: Any) -> None:
        if any(id(p) in ids for group in opt.param_groups for p in group["params"]):
            found.append(1)

    hook = register_optimizer_step_pre_hook(count)
    try:
        yield found
    finally:
        hook.remove()


def ask(build: Callable[[], Training], fast: bool = False) -> Row:
    """What the check says about a program: codes with their levels, in order, the updates of its small trainings, and its processor time, which other programs of the machine do not change."""
    try:
        learn = build().learner()
    except Exception as error:
        return dict(refused=f"{type(error).__name__}: {str(error)[:80]}")
    quiet = contextlib.redirect_stdout(io.StringIO())
    with warnings.catch_warnings(), quiet, contextlib.redirect_stderr(io.StringIO()), counted_updates(learn.model) as updates:
        warnings.simplefilter("ignore")
        began = time.process_time()
        try:
            found = [(finding.code, finding.level) for finding in learn.check(fast=fast)]
        except Exception as error:
            return dict(crashed=f"{type(error).__name__}: {str(error)[:120]}", found=[], seconds=time.process_time() - began)
    return dict(found=found, seconds=time.process_time() - began, updates=len(updates))


def ask_later(build: Callable[[], Training]) -> list[tuple[str, str]]:
    """What a fit with `LayerWatch` and `learn.diagnose()` after it say."""
    training = build()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            learn = training.learner().add_cb(LayerWatch(share=1e6))
            training.fit(learn)
            return [(f.code, f.level) for f in (*learn.findings, *learn.diagnose())]
        except Exception:  # a fit that raises says what is wrong itself, and names no code
            return []


def judge(kind: str, task: str, fault: str, codes: Iterable[str], build: Callable[[], Training], later: bool = False) -> Row:
    row = dict(kind=kind, task=task, fault=fault, codes=list(codes), check=ask(build), fast=ask(build, fast=True))
    if later and "refused" not in row["check"]:
        row["later"] = dict(found=[*row["check"]["found"], *ask_later(build)])
    if "refused" not in row["check"]:
        signals = Signals(build())
        row |= dict(umlaut=dict(found=umlaut(signals)), debugger=dict(found=debugger(signals)))
    return row


def faulty(task: str, fault: str, mutators: dict[str, Any] = MUTATORS) -> Training:
    t = make_task(task, 0)
    mutators[fault].change(t)
    return t


def second_programs(only: str, later: bool) -> Iterable[Row]:
    if only in ("", "ports"):
        for port in SECOND_PORTS.values():
            yield judge("port", "", port.name, [*port.codes, *numbers(port.codes)], lambda port=port: port.make(0, False), later)
            yield judge("fixed", port.name, "", (), lambda port=port: port.make(0, True), later)
    if only in ("", "tasks"):
        for task, name in harm.harmful(SECOND, SECOND_STORED):
            codes = SECOND[name].codes  # names for the rules of the literature, numbers for ours
            yield judge("fault", task, name, [*codes, *numbers(codes)], lambda task=task, name=name: faulty(task, name, SECOND), later)


MORE_SETS = {
    "third": THIRD,
    "fourth": FOURTH,
    "fifth": FIFTH,
    "sixth": SIXTH,
    "seventh": SEVENTH,
    "eighth": EIGHTH,
    "ninth": NINTH,
    "tenth": TENTH,
}


def programs_of_set(name: str, args: argparse.Namespace) -> Iterable[Row]:
    """The pairs of a later set; with a `--share` below 1, one of each fault, drawn at random."""
    mutators = MORE_SETS[name]
    tasks = defaultdict(list)
    for task, fault in harm.harmful(mutators, FOLDER / f"{name}_verified.json"):
        tasks[fault].append(task)
    for fault, of_fault in tasks.items():
        for task in of_fault if args.share == 1 else random.Random(fault).sample(of_fault, 1):
            yield judge(
                "fault", task, fault, mutators[fault].codes, lambda task=task, fault=fault: faulty(task, fault, mutators), args.later
            )


def is_judge(fault: str) -> bool:
    """Whether a fault of the second set belongs to the half that nobody looked at while the checks were mended for the other half."""
    return zlib.crc32(fault.encode()) % 2 == 1


def programs(args: argparse.Namespace, stored: dict[str, Any]) -> Iterable[Row]:
    tasks = args.tasks.split(",") if args.tasks else [name for name in TASKS if name in stored]
    if args.only in ("", "healthy"):
        for task in tasks if args.tasks else dict.fromkeys((*TASKS, *lr_tasks.TASKS)):
            yield judge("healthy", task, "", (), lambda task=task: make_task(task, 0))
    if args.only in ("", "ports"):
        for port in PORTS.values():
            if harm.port_holds(stored, port.name):
                yield judge("port", "", port.name, port.codes, lambda port=port: port.make(0, False))
                yield judge("fixed", port.name, "", (), lambda port=port: port.make(0, True))
    if args.only in ("", "tasks"):
        for task in tasks:
            names = [name for name in stored[task] if name in MUTATORS and harm.harms(stored, task, name)]
            draw = lambda share, names=names, task=task: random.Random(task).sample(names, round(share * len(names)))
            names = [name for name in draw(args.share) if not args.unseen or name not in draw(SEEN)]
            for name in names:
                yield judge("fault", task, name, MUTATORS[name].codes, lambda task=task, name=name: faulty(task, name))


def watch(seeds: Iterable[int], tasks: Sequence[str]) -> None:
    """Findings of `learn.findings`, with `LayerWatch` at as many batches as it takes, and of `learn.diagnose()`, in healthy fits."""
    ports = {} if tasks else {name: lambda seed, port=port: port.make(seed, True) for name, port in PORTS.items()}
    makes = {name: partial(make_task, name) for name in tasks or dict.fromkeys((*TASKS, *lr_tasks.TASKS))} | ports
    n, alarms = 0, {"learn.findings": 0, "learn.diagnose()": 0}
    for seed in seeds:
        for name, make in makes.items():
            training = make(seed)
            learn = training.learner().add_cb(LayerWatch(share=1e6))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                training.fit(learn)
                stages = {"learn.findings": learn.findings, "learn.diagnose()": learn.diagnose()}
            n += 1
            for stage, found in stages.items():
                said = [(f.code, f.where, f.measured) for f in found if f.level != "note"]
                alarms[stage] += bool(said)
                if said:
                    print(f"    {stage} {name}, seed {seed}: {said}", flush=True)
    print(f"Healthy fits, {n}; with an error or a warning: " + ", ".join(f"{stage} {k} ({k / n:.1%})" for stage, k in alarms.items()))


# --- the rules of the literature ---


class Signals:
    """What a short training shows: inputs, targets, losses, gradients, weights and outputs of layers."""

    def __init__(self, t: Training):
        self.t, self.losses, self.layers = t, [], []
        self.grads: dict[str, list[Tensor]] = defaultdict(list)
        self.ratios: list[float] = []
        self.shares: dict[str, list[Tensor]] = defaultdict(list)
        self.error = self.valid = self.train_score = None
        torch.manual_seed(0)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            try:
                self.learn = t.learner()
                self.first = {name: p.detach().clone() for name, p in t.model.named_parameters()}
                self.batch = next(iter(self.learn.dls.train))
                self.listen()
                self.train()
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"

    def listen(self) -> None:
        """Record which layers run, in order, and the outputs of activations."""

        def heard(name: str, layer: nn.Module) -> Callable[..., None]:
            def hook(_: nn.Module, inputs: Any, out: Any) -> None:
                if len(self.losses) == 0:
                    self.layers.append(layer)
                if isinstance(out, Tensor) and isinstance(layer, nn.ReLU | nn.Tanh | nn.Sigmoid) and len(self.losses) % 10 == 0:
                    self.shares[name].append(out.detach().flatten(1))

            return hook

        self.hooks = [m.register_forward_hook(heard(n, m)) for n, m in self.t.model.named_modules() if not list(m.children())]

    def train(self) -> None:
        learn, model = self.learn, self.t.model
        learn.create_opt()
        model.train()
        while len(self.losses) < UPDATES:
            for x, y in learn.dls.train:
                if len(self.losses) >= UPDATES:
                    break
                loss = learn.loss_func(self.output(x), y)
                learn.opt.zero_grad()
                loss.backward()
                if len(self.losses) % 10 == 0:
                    for name, p in model.named_parameters():
                        if p.grad is not None:
                            self.grads[name].append(p.grad.detach().clone())
                before = [p.detach().clone() for p in model.parameters()]
                learn.opt.step()
                for p, old in zip(model.parameters(), before):
                    self.ratios.append(float((p.detach() - old).abs().mean() / (old.abs().mean() + 1e-12)))
                self.losses.append(float(loss))
        for hook in self.hooks:
            hook.remove()
        model.eval()
        with torch.no_grad():
            self.out = self.output(self.batch[0])
            if self.t.valid and self.t.metric:
                measure = lambda pair: float(self.t.metric(self.output(pair[0][:128]), pair[1][:128]))
                self.valid, self.train_score = measure(self.t.valid), measure(self.t.train)

    def output(self, x: Tensor) -> Tensor:
        return self.t.model(x)

    def bad(self) -> bool:
        return not np.isfinite(self.losses).all()

    def falling(self) -> bool:
        ends = np.array_split(np.array(self.losses), 4)
        return bool(ends[-1].mean() < 0.99 * ends[0].mean())


Said = list[tuple[str, str]]


def reporter() -> tuple[Said, Callable[[Any, str], None]]:
    """A list of warnings, and a function that adds a code to it if a condition holds."""
    said: Said = []

    def say(wrong: Any, code: str) -> None:
        if wrong:
            said.append((code, "warning"))

    return said, say


def umlaut(s: Signals) -> Said:
    """Rules as in UMLAUT (Schoop et al. 2021), with its limits."""
    said, say = reporter()
    if not hasattr(s, "batch"):
        return [("crash", "error")]
    x = s.batch[0]
    if x.is_floating_point():
        say(not x.isfinite().all(), "nonfinite")
        say((x.abs() > 1).any(), "input-scale")
    say(x.dim() == 4 and x.dtype == torch.uint8, "integer-input")
    say(x.dim() == 4 and x.shape[2] != x.shape[3], "channels")
    rates = s.t.lr if isinstance(s.t.lr, list) else [s.t.lr]
    say(max(rates) > 0.01 or min(rates) < 1e-7, "rate-range")
    say(s.losses and s.bad(), "nan")
    plain = [
        m for m in s.layers if not isinstance(m, nn.Dropout | nn.Flatten | nn.Identity | nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm)
    ]
    matrices = (nn.Linear, nn.Conv1d, nn.Conv2d)
    say(any(isinstance(a, matrices) and isinstance(b, matrices) for a, b in zip(plain, plain[1:])), "linear-linear")
    say(any(isinstance(m, nn.Dropout) and m.p > 0.5 for m in s.layers), "dropout")
    ends = s.layers[-1:] if s.layers else []
    logits = isinstance(s.t.loss, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss)
    say(logits and isinstance(ends[0], nn.Softmax | nn.Sigmoid) if ends else False, "softmax-twice")
    if s.valid is not None and s.t.kind in ("classes", "binary"):
        say(s.valid > 0.95 or s.valid > s.train_score + 0.05, "leak-rows")
        say(s.train_score > s.valid + 0.1, "overfit")
    say(len(s.losses) == UPDATES and not s.bad() and not s.falling(), "not-learning")
    return said + ([("crash", "error")] if s.error else [])


def debugger(s: Signals) -> Said:
    """Rules as those of SageMaker Debugger, with its default limits."""
    said, say = reporter()
    if not hasattr(s, "batch"):
        return [("crash", "error")]
    x, y = s.batch
    say(x.is_floating_point() and x.dim() == 4 and (x.abs() > 10).any(), "input-scale")
    say(s.losses and s.bad(), "nonfinite")
    say(s.losses and s.bad(), "exploding")
    weights = [p for p in s.first.values() if p.dim() > 1] if hasattr(s, "first") else []
    spread = [float(p.flatten(1).var(1).max() / (p.flatten(1).var(1).min() + 1e-30)) if p.shape[1] > 1 else 1.0 for p in weights]
    say(any(r > 10 for r in spread), "init-scale")
    say(any(float(p.var()) == 0 for p in weights), "symmetric")
    means = [float(g.abs().mean()) for grads in s.grads.values() for g in grads]
    say(means and min(means) < 1e-7, "vanishing")
    say(any(not g.any() for grads in s.grads.values() for g in grads), "zero-gradient")
    changed = [bool((p.detach() != s.first[name]).any()) for name, p in s.t.model.named_parameters()]
    say(s.losses and not all(changed), "missing-params")
    say(s.losses and not all(changed), "no-gradient")
    say(s.ratios and (max(s.ratios) > 10 or min(s.ratios) < 1e-8), "rate-range")
    for name, outs in s.shares.items():
        out, layer = torch.cat(outs), dict(s.t.model.named_modules())[name]
        if isinstance(layer, nn.ReLU):
            say(((out <= 0.01).float().mean(0) > 0.99).float().mean() > 0.5, "dead-relu")
        else:
            end = (out.abs() > 0.9999) if isinstance(layer, nn.Tanh) else (out > 0.9999) | (out < 1e-7)
            say(end.float().mean() > 0.5, "saturated")
    if s.t.kind in ("classes", "binary") and y.numel():
        count = np.unique(s.t.train[1][s.t.train[1] != -100].numpy(), return_counts=True)[1]
        say(len(count) < 2, "constant-target")
        say(len(count) > 1 and count.max() / count.min() > 10, "imbalance")
    if not x.is_floating_point():
        say((x == 0).float().mean() > 0.5, "pads")
    say(len(s.losses) == UPDATES and not s.bad() and not s.falling(), "not-learning")
    if s.valid is not None and s.t.kind in ("classes", "binary"):
        say(s.train_score > s.valid + 0.1, "overfit")
    return said + ([("crash", "error")] if s.error else [])


# --- results ---


def loud(said: Row) -> list[str]:
    return [code for code, level in said.get("found", ()) if level in ("error", "warning")]


def accepted(row: Row) -> set[str]:
    return {ALIASES.get(code, code) for code in row["codes"]} | set(row["codes"])


def marks(row: Row, who: str) -> tuple[bool, bool, bool]:
    """Named, first, flagged."""
    codes, right = loud(row[who]), accepted(row)
    named = [c in right or ALIASES.get(c) in right for c in codes]  # the rules of the literature say names
    return any(named), named[:1] == [True], bool(codes)


def interval(rows: Sequence[Row], who: str, which: int, by: str = "task") -> tuple[float, float]:
    """95%, by a bootstrap over the tasks (over the programs, for ports)."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        groups[row[by]].append(marks(row, who)[which])
    values, draw = list(groups.values()), np.random.RandomState(0)
    picked = draw.randint(0, len(values), (1000, len(values)))
    sums = np.array([(sum(v), len(v)) for v in values])[picked].sum(1)
    low, high = np.percentile(sums[:, 0] / sums[:, 1], [2.5, 97.5])
    return float(low), float(high)


WHO = dict(
    check="learn.check()",
    later="check, fit and diagnose",
    fast="learn.check(fast=True)",
    umlaut="rules as in UMLAUT",
    debugger="rules as in SageMaker Debugger",
)


def asked(rows: Sequence[Row]) -> list[tuple[str, str]]:
    return [(who, name) for who, name in WHO.items() if all(who in row for row in rows)]


def print_sums(title: str, rows: Sequence[Row], by: str = "task") -> None:
    if not rows:
        return
    print(f"\n{title}: {len(rows)}")
    print(f"{'':34s}{'named':>18s}{'first':>18s}{'flagged':>18s}")
    for who, name in asked(rows):
        cells = []
        for which in range(3):
            low, high = interval(rows, who, which, by)
            cells.append(f"{np.mean([marks(row, who)[which] for row in rows]):4.0%} [{low:3.0%}, {high:4.0%}]")
        print(f"{name:34s}" + "".join(f"{cell:>18s}" for cell in cells))


def print_alarms(title: str, rows: Sequence[Row]) -> None:
    if not rows:
        return
    shares = ", ".join(f"{name} {np.mean([bool(loud(r[who])) for r in rows]):.0%}" for who, name in asked(rows))
    print(f"\n{title}, {len(rows)}; with an error or a warning: {shares}")
    for row in rows:
        if loud(row["check"]):
            print(f"    {row['task']}: {', '.join(loud(row['check']))}")


def print_by_code(rows: Sequence[Row]) -> None:
    print(f"\n{'fault':36s}{'codes':46s}{'tasks':>6s}{'named':>7s}{'first':>7s}{'flagged':>8s}{'UMLAUT':>8s}{'Debugger':>9s}")
    by_fault: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_fault[row["fault"]].append(row)
    for fault, group in by_fault.items():
        named, first, flagged = np.mean([marks(row, "check") for row in group], 0)
        others = [np.mean([marks(row, who)[0] for row in group]) for who in ("umlaut", "debugger")]
        cells = f"{len(group):6d}{named:7.0%}{first:7.0%}{flagged:8.0%}{others[0]:8.0%}{others[1]:9.0%}"
        print(f"{fault:36s}{' '.join(group[0]['codes'])[:44]:46s}{cells}")


def print_times(rows: Sequence[Row]) -> None:
    for who in ("check", "fast"):
        seconds = [row[who]["seconds"] for row in rows if "seconds" in row[who]]
        middle, high = np.percentile(seconds, [50, 95])
        print(f"{WHO[who]}: processor time: median {middle:.2f} s, 95% below {high:.2f} s, longest {max(seconds):.2f} s")
    updates = [row["check"]["updates"] for row in rows if "updates" in row["check"]]
    if updates:
        print(f"learn.check(): updates of its small trainings: median {np.median(updates):.0f}, most {max(updates)}")
        if max(updates) > LIMIT:
            sys.exit(f"a check made {max(updates)} updates: the limit is {LIMIT}")
    for row in rows:
        if "crashed" in row["check"]:
            print(f"    check() itself failed on {row['task']} {row['fault']}: {row['check']['crashed']}")


def show(
    rows: Sequence[Row], stored: dict[str, Any], halves: bool
) -> None:  # stored: {} for other sets than the first; halves: of the second
    refused = [row for row in rows if "refused" in row["check"]]
    rows = [row for row in rows if "refused" not in row["check"]]
    of = {kind: [row for row in rows if row["kind"] == kind] for kind in ("healthy", "fixed", "fault", "port")}
    if stored:
        pairs = [(task, name) for task in TASKS for name in stored.get(task, ()) if name in MUTATORS]
        harmful = sum(harm.harms(stored, *pair) for pair in pairs)
        print(
            f"{len(MUTATORS)} faults on {len({task for task, _ in pairs})} tasks: {len(pairs)} pairs, of which {harmful} harm; the others are left out"
        )
        held = sum(harm.port_holds(stored, name) for name in PORTS)
        print(f"{len(PORTS)} small programs, of which {held} fail with each seed before the fix and pass with each after it")
    for row in refused:
        print(f"    refused by Learner itself: {row['task']} {row['fault']}: {row['check']['refused']}")
    print_alarms("Healthy tasks", of["healthy"])
    print_alarms("Small programs after the fix", of["fixed"])
    print_sums("Faults in tasks", of["fault"])
    print_sums("Small programs", of["port"], by="fault")
    if halves:
        print_sums("Faults in tasks, of the half that judges", [row for row in of["fault"] if is_judge(row["fault"])])
        print_sums("Small programs, of the half that judges", [row for row in of["port"] if is_judge(row["fault"])], by="fault")
    print_by_code(of["fault"])
    print_by_code(of["port"])
    print("\nNot named:")
    for row in of["fault"] + of["port"]:
        if not marks(row, "check")[0]:
            said = ", ".join(f"{code} ({level})" for code, level in row["check"]["found"]) or "nothing"
            print(f"    {row['task']} {row['fault']}: {said}")
    print_times(rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", default="", help="names, with commas")
    parser.add_argument("--share", type=float, default=0.1, help="of the faults of each task")
    parser.add_argument("--unseen", action="store_true", help="leave out the pairs for which the checks were mended")
    parser.add_argument("--second", action="store_true", help="the faults and programs of another author")
    parser.add_argument("--set", choices=MORE_SETS, help="the faults of a later set: with a share below 1, one task for each")
    parser.add_argument("--later", action="store_true", help="with --second or --set: also fit and diagnose")
    parser.add_argument("--only", default="", choices=["", "healthy", "ports", "tasks"])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write what was found")
    parser.add_argument("--show", metavar="FILE", type=Path, nargs="+", help="show what was found earlier")
    parser.add_argument("--watch", metavar="SEEDS", help="with commas: count false alarms in running fits, and after them")
    parser.add_argument("--verify", action="store_true", help="train everything, and store what harms")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.verify:
        if args.set:
            harm.verify_set(MORE_SETS[args.set], FOLDER / f"{args.set}_verified.json")
        elif args.second:
            harm.verify_second(SECOND, SECOND_PORTS, SECOND_STORED)
        else:
            harm.verify()
        return
    if args.watch:
        watch(map(int, args.watch.split(",")), [name for name in args.tasks.split(",") if name])
        return
    stored = json.loads(harm.STORED.read_text())
    if args.show:
        rows = [row for path in args.show for row in json.loads(path.read_text())]
    else:
        rows = []
        asked_about = (
            second_programs(args.only, args.later)
            if args.second
            else programs_of_set(args.set, args)
            if args.set
            else programs(args, stored)
        )
        for row in asked_about:
            rows.append(row)
            if args.json:
                args.json.write_text(json.dumps(rows) + "\n")
    show(rows, {} if args.second or args.set else stored, args.second)


if __name__ == "__main__":
    main()
