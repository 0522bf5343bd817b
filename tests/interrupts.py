"""Ctrl-C at every line, and at random moments: what is left of a learner, of its files and of the process.

`pytest tests/together/test_interrupts.py` does a short run of both. By hand:

    python tests/interrupts.py                     5,000 real signals at random moments, over all calls, models of 1 kB and 8 MB
    python tests/interrupts.py --n 300 --call save
    python tests/interrupts.py --each opcode       one signal at each instruction of the package (or: --each line)
"""

import argparse
import contextlib
import inspect
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.insight import small_trainings
from cbnb.insight.layer_faults import LayerWatch
from left_behind import everything, same

PACKAGE = str(Path(cbnb.__file__).parent)
WATCHED = (PACKAGE, contextlib.__file__, str(Path(torch.autograd.__file__).parent / "grad_mode.py"), torch.overrides.__file__)
WIDE = 1000  # with two layers of this width a model has 8 MB


class Marks(cbnb.Callback):
    """Registers an undo for what it changes, as callbacks should."""

    def before_fit(self):
        self.learn.undo.set(self.learn.model, "mark", True)


def make(width: int, folder: str) -> cbnb.Learner:
    """A learner with an optimizer, a history, a metric, and a file."""
    torch.manual_seed(0)
    x = torch.randn(12, 6)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 2))
    dls = cbnb.DataLoaders(DataLoader(data, 4, shuffle=True), DataLoader(data, 4), device="cpu")
    learn = cbnb.Learner(dls, model, nn.CrossEntropyLoss(), metrics=cbnb.accuracy, path=folder, default_cbs=True)
    learn.remove_cb(cbnb.ProgressCallback)
    with learn.no_logging():
        learn.fit(1)
    learn.save("whole")
    return learn


def check(learn: cbnb.Learner) -> object:
    """All parts of a check, with small trainings that are smaller still."""
    usual, small_trainings.UPDATES = small_trainings.UPDATES, dict.fromkeys(small_trainings.UPDATES, 4)
    try:
        return learn.check()
    finally:
        small_trainings.UPDATES = usual


# for each call: what it is, and whether it may change the weights
CALLS: dict[str, tuple[Callable[[cbnb.Learner], object], bool]] = {
    "fit": (lambda learn: learn.fit(1, lr=0.01, cbs=Marks), True),
    "watched": (lambda learn: learn.fit(3, lr=0.01, cbs=LayerWatch(share=1e6)), True),
    "fit_one_cycle": (lambda learn: learn.fit_one_cycle(1, 0.01, cbs=[Marks, cbnb.SaveModel(fname="best")]), True),
    "lr_find": (lambda learn: learn.lr_find(num_it=4, show_plot=False, cbs=Marks), False),
    "validate": (lambda learn: learn.validate(cbs=Marks), False),
    "get_preds": (lambda learn: learn.get_preds(with_loss=True, with_input=True), False),
    "predict": (lambda learn: learn.predict(torch.ones(6)), False),
    "save": (lambda learn: learn.save("whole"), False),
    "load": (lambda learn: learn.load("whole"), True),
    "export": (lambda learn: learn.export("whole.pkl"), False),
    "summary": (lambda learn: learn.summary(), False),
    "check": (check, False),
    "diagnose": (lambda learn: learn.diagnose(), False),
}
HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
WITHOUT_TRACE = "check", "diagnose"  # they leave random states, optimizer, gradients and loaders alone, too


def weights(learn: cbnb.Learner) -> list[torch.Tensor]:
    return [t.clone() for t in learn.model.state_dict().values()]


def look(learn: cbnb.Learner, with_weights: bool) -> dict[str, object]:
    """What an interrupted call must leave as it was."""
    hooks = [len(getattr(m, name)) for m in learn.model.modules() for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
    found = dict(
        grad_mode=torch.is_grad_enabled(),
        function_modes=list(map(id, torch.overrides._get_current_function_mode_stack())),
        handlers=[signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)],
        callbacks=[id(cb) for cb in learn.cbs],
        shown=[name for name in vars(learn) if isinstance(vars(learn)[name], cbnb.Callback)],
        logger=learn.logger,
        reduction=learn.loss_func.reduction,
        hooks=hooks,
        rates=[(g["lr"], g["betas"], g["weight_decay"]) for g in learn.opt.param_groups],
        n_batches=len(learn.dls.train),
        running=learn.undo,
        purpose=learn.purpose,
        mark=hasattr(learn.model, "mark"),
        gradients=any(p.grad is not None for p in learn.model.parameters()),
        unfinished=[run.status for run in learn.recorder.history.runs if run.status == "running"],
        drafts=[p.name for p in Path(learn.path).rglob("*") if p.name.startswith(".")],
    )
    if with_weights:
        found["weights"] = weights(learn)
        found["modes"] = [m.training for m in learn.model.modules()]
    return found


def differences(before: dict, after: dict) -> list[str]:
    def same(a, b) -> bool:
        if a and isinstance(a, list) and isinstance(a[0], torch.Tensor):
            return all(map(torch.equal, a, b))
        return a == b

    return [f"{name}: {after[name]!r}"[:120] for name in before if not same(before[name], after[name])]


def finite(learn: cbnb.Learner) -> bool:
    return all(t.isfinite().all() for t in weights(learn))


def interrupted(learn: cbnb.Learner, name: str, run: Callable[[Callable[[], object]], BaseException | None]) -> list[str]:
    """What is wrong after `run` has let an interrupt into a call; an empty list is good news."""
    call, changes_weights = CALLS[name]
    without_trace = name in WITHOUT_TRACE
    before, all_of_it = look(learn, not changes_weights), everything(learn) if without_trace else {}
    raised = run(lambda: call(learn))
    wrong = differences(before, look(learn, not changes_weights))
    if without_trace:
        wrong += [f"left behind: {k}" for k, v in everything(learn).items() if not same(v, all_of_it[k])]
    if raised is not None and not isinstance(raised, KeyboardInterrupt):
        wrong.append(f"ended as {raised!r}"[:200])
    try:  # the next calls work, and the file is whole
        with learn.no_logging():
            call(learn)
            learn.fit(1)
            learn.load("whole")
    except BaseException as e:
        wrong.append(f"afterwards {e!r}"[:200])
    if not finite(learn):
        wrong.append("weights are not finite")
    return wrong


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# --- one signal at each line or instruction ---


class At:
    """Sends SIGINT at the i-th line or instruction of the watched files; counts them if `i` is None."""

    def __init__(self, kind: str, i: int | None = None, twice: bool = False):
        self.kind, self.i, self.n, self.where, self.twice = kind, i, 0, "", twice
        self.times: dict[tuple, list[int]] = {}  # line or instruction -> the first and the last time it was reached

    def __call__(self, f: Callable[[], object]) -> BaseException | None:
        sys.settrace(self.trace)
        try:
            f()
        except BaseException as e:
            return e
        finally:
            sys.settrace(None)
        return None

    def trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        frame.f_trace_opcodes = self.kind == "opcode"
        return self.trace_inside(frame, "line", arg)

    def trace_inside(self, frame, event, arg):
        code = frame.f_code
        if event == "return" and (code.co_flags & inspect.CO_GENERATOR or code.co_filename == contextlib.__file__):
            return self.trace_inside  # a signal acts before, in the frame itself, whose generator can then be closed
        if event in ("line", "opcode", "return") and self.is_there(frame):
            del frame, arg  # the traceback would hold them, with the values of a call that has ended
            signal.raise_signal(signal.SIGINT)
        return self.trace_inside

    def is_there(self, frame) -> bool:
        self.n += 1
        if self.i is None:
            times = self.times.setdefault((frame.f_code, frame.f_lasti if self.kind == "opcode" else frame.f_lineno), [self.n])
            times[1:] = [self.n]
        elif self.n == self.i or self.twice and self.n == self.i + 5:
            self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            if not self.twice or self.n != self.i:
                sys.settrace(None)
                frame.f_trace = None
            return True
        return False


def at_each(
    name: str, kind: str, width: int = 4, places: int | None = None, twice: bool = False, ends: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """One interrupted call after the other, at each place, or so many spread over all: where it was, and what is wrong afterwards.

    With `ends`, a line that is reached again and again counts the first and the last time only.
    """
    with tempfile.TemporaryDirectory() as folder, quiet():
        learn = make(width, folder)
        count = At(kind)
        interrupted(learn, name, count)
        chosen = sorted(set().union(*count.times.values())) if ends else range(1, count.n + 1)
        for i in chosen[:: max(len(chosen) // places, 1) if places else 1]:
            at = At(kind, i, twice)
            wrong = interrupted(learn, name, at)
            yield at.where, wrong
            if wrong:
                for number, handler in HANDLERS.items():  # the next place is judged on its own
                    signal.signal(number, handler)
                learn = make(width, folder)


# --- real signals at random moments ---


class Sender:
    """A process that sends SIGINT to this one after a delay, or several in turn, and then counts up a number in a shared file."""

    def __init__(self, folder: str):
        self.asked, self.path = 0, Path(folder) / ".answers"
        self.path.write_bytes(bytes(1))
        code = (
            "import os, signal, sys, time\n"
            "for i, line in enumerate(sys.stdin, 1):\n"
            "    for delay in map(float, line.split()):\n"
            "        time.sleep(delay)\n"
            f"        os.kill({os.getpid()}, signal.SIGINT)\n"
            f"    open({str(self.path)!r}, 'ab').write(b'.')\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True, start_new_session=True)

    def send(self, *delays: float) -> None:
        self.asked += 1
        self.process.stdin.write(" ".join(map(str, delays)) + "\n")
        self.process.stdin.flush()

    def wait(self) -> None:
        """Until all signals have been sent; may be interrupted, and called again."""
        while self.path.stat().st_size <= self.asked:
            time.sleep(0.001)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def at_random(name: str, width: int, n: int, seed: int) -> Counter:
    """Counts of how `n` interrupted calls ended; the keys other than 'interrupted' and 'too late' are faults."""
    found, rng = Counter(), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other, quiet():
        learn, sender = make(width, folder), Sender(other)
        took = min(duration(lambda: CALLS[name][0](learn)) for _ in range(5))  # one slow call may not make all signals late
        while found["interrupted"] < n and found["too late"] < 10 * n:

            def run(call: Callable[[], object]) -> BaseException | None:
                """The signals may come after the call: they are then waited for, in here."""
                delays = [rng.uniform(0, 1.1 * took)] + [rng.uniform(0, 0.002)] * (rng.random() < 0.2)
                raised, late = None, False
                try:  # two signals at the most, so one of the two outer levels gets the second
                    try:
                        try:
                            sender.send(*delays)
                            call()
                            late = True
                        except BaseException as e:
                            raised = e
                        sender.wait()
                    except KeyboardInterrupt:
                        sender.wait()
                except KeyboardInterrupt:
                    sender.wait()
                found["too late" if late else "interrupted"] += 1
                return raised

            for fault in interrupted(learn, name, run):
                found[fault] += 1
                learn = make(width, folder)
        sender.close()
    return found


def duration(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def in_a_process(name: str, width: int, n: int, seed: int) -> Counter:
    """As `at_random`, in a process of its own: an abort is a fault, too."""
    args = [sys.executable, __file__, "--inside", "--call", name, "--width", str(width), "--n", str(n), "--seed", str(seed)]
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        return Counter({f"the process ended with {done.returncode}: {done.stderr[-300:]}": 1})
    return Counter(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5000, help="signals in all")
    parser.add_argument("--call", choices=CALLS, help="only this call")
    parser.add_argument("--each", choices=["line", "opcode"], help="one signal at each place instead")
    parser.add_argument("--twice", action="store_true", help="with --each: a second one a little later")
    parser.add_argument(
        "--ends", action="store_true", help="with --each: of a place that is reached again and again, the first and the last time"
    )
    parser.add_argument("--width", type=int, help="of the model's layers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background with SIGINT ignored
    names = [args.call] if args.call else list(CALLS)
    if args.inside:
        found = at_random(args.call, args.width, args.n, args.seed)
        print(json.dumps(found))
        return 0
    faults = 0
    for i, name in enumerate(names):
        if args.each:
            results = list(at_each(name, args.each, twice=args.twice, ends=args.ends))
            wrong = [(where, w) for where, w in results if w]
            print(f"{name:14} {len(results):6} places, {len(wrong)} wrong", *wrong[:20], sep="\n    ", flush=True)
            faults += len(wrong)
            continue
        for width in [args.width] if args.width else [4, WIDE]:
            n = args.n // len(names) // (1 if args.width else 2)
            found = in_a_process(name, width, n, args.seed + i)
            good = {key: found.pop(key, 0) for key in ("interrupted", "too late")}
            print(
                f"{name:14} width {width:5}: {good['interrupted']} interrupted, {good['too late']} too late, faults: {dict(found) or 'none'}",
                flush=True,
            )
            faults += sum(found.values())
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
