"""What each callback costs in a batch, beyond the work on tensors that is its purpose.

    python bench/callbacks.py             all of them, about one minute
    python bench/callbacks.py --quick     less exact, some seconds
    python bench/callbacks.py clip nan    those with such a word in their name

The loop trains nothing here: its step keeps the same prediction, loss and gradients for ever, so that a batch takes a few microseconds
and a difference of a tenth of one can be seen. Each callback is compared, in the same round, with the same loop whose step does the
callback's work on tensors by hand. CPU time of training batches; medians over rounds that take turns forwards and backwards.
"""

import argparse
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributions import Beta
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import StepLR

import cbnb
from cbnb.basics.optimizers import total_norm
from cbnb.callbacks.mixup import window
from cbnb.insight.layer_faults import LayerWatch
from loop_overhead import Loader, median, verdict

LIMIT = 2.0  # microseconds a batch
ITEMS, BATCHES, EPOCHS = 16, 1000, 3


class Hollow(cbnb.step.Step):
    """A step that does nothing; `work(learn)` is done in place of the optimizer's part."""

    size = (1,)  # of an item

    def __init__(self, work: Callable[[cbnb.Learner], object] | None = None):
        self.work = work
        self.known_pred, self.known_loss = torch.zeros(ITEMS, 1), torch.zeros(())

    def predict(self, learn: cbnb.Learner) -> None:
        learn.pred = self.known_pred

    def loss(self, learn: cbnb.Learner) -> None:
        learn.loss = learn.loss_grad = self.known_loss

    def backward(self, learn: cbnb.Learner) -> None:
        pass

    def step(self, learn: cbnb.Learner) -> None:
        if self.work:
            self.work(learn)

    def zero_grad(self, learn: cbnb.Learner) -> None:
        pass


class Gradients(cbnb.Callback):
    """All ones, for those who look at gradients; a fit begins without any."""

    def before_train(self):
        for p in self.learn.model.parameters():
            p.grad = torch.ones_like(p)


class Pictures(Hollow):
    size = (1, 8, 8)


class Forward(Hollow):
    """The model runs, for those who look into it."""

    def predict(self, learn: cbnb.Learner) -> None:
        learn.pred = learn.model(*learn.xb)


# The work by hand


def params(learn: cbnb.Learner) -> list[nn.Parameter]:
    return [p for group in learn.opt.param_groups for p in group["params"]]


def clip(learn: cbnb.Learner) -> None:
    learn.held = clip_grad_norm_(params(learn), 1.0)


def clip_each(learn: cbnb.Learner) -> None:
    learn.held = [clip_grad_norm_(p, 1.0) for p in params(learn)]


def share(learn: cbnb.Learner) -> torch.Tensor:
    return learn.loss_grad * (learn.yb[0].shape[0] / (4 * ITEMS))


def look_at_loss(learn: cbnb.Learner) -> float:
    return learn.loss.item()


def look_at_grads(learn: cbnb.Learner) -> tuple[float, float]:
    return look_at_loss(learn), total_norm([p.grad for p in params(learn)]).item()


def copy_all(learn: cbnb.Learner) -> tuple:
    return cbnb.data.to_detach((learn.xb, learn.yb, learn.pred, learn.loss))


def copy_at_layers() -> Callable[[cbnb.Learner], None]:
    return hooked(lambda layer, inp, out: (inp[0].detach(), out.detach()))


SUMS = torch.zeros(45)


class Summarized(cbnb.ActivationStats):
    """Summing up takes some 60 microseconds a layer, and would hide what else is done: here the sums are known."""

    def hook(self, layer: nn.Module, inp: tuple, out: torch.Tensor) -> None:
        self.found[layer] = SUMS


def keep_rows() -> Callable[[cbnb.Learner], None]:
    rows = []

    def look(layer: nn.Module, inp: tuple, out: torch.Tensor) -> None:
        rows.append(SUMS)
        if len(rows) == 512:
            torch.stack(rows[::2]), torch.stack(rows[1::2])
            rows.clear()

    return hooked(look)


def hooked(look: Callable[..., object]) -> Callable[[cbnb.Learner], None]:
    """Work that is done in the layers of the model, from the second batch on."""
    handles = []

    def hook(layer: nn.Module, inp: tuple, out: torch.Tensor) -> None:
        look(layer, inp, out)

    def work(learn: cbnb.Learner) -> None:
        if not handles:
            handles.extend(layer.register_forward_hook(hook) for layer in learn.model)

    return work


def mix_losses(learn: cbnb.Learner, lam: float) -> None:
    learn.held_losses = torch.lerp(learn.loss, learn.loss, lam), torch.lerp(learn.loss_grad, learn.loss_grad, lam)


def mix_up() -> Callable[[cbnb.Learner], None]:
    weights = Beta(*torch.tensor([0.4, 0.4], dtype=torch.float64), validate_args=False)

    def work(learn: cbnb.Learner) -> None:
        (x,), (y,), lam = learn.xb, learn.yb, weights.sample().item()
        order = torch.randperm(x.shape[0], device=x.device)
        learn.held = torch.lerp(x, x[order], 1 - lam), y[order]
        mix_losses(learn, lam)

    return work


def cut_mix() -> Callable[[cbnb.Learner], None]:
    weights = Beta(*torch.tensor([1.0, 1.0], dtype=torch.float64), validate_args=False)

    def work(learn: cbnb.Learner) -> None:
        (x,), (y,), lam = learn.xb, learn.yb, weights.sample().item()
        order = torch.randperm(x.shape[0], device=x.device)
        rows, columns, real = window(*x.shape[-2:], 1 - lam, torch.rand(2).tolist())
        x = x.clone()
        x[..., rows, columns] = x[order, ..., rows, columns]
        learn.held = x, y[order]
        mix_losses(learn, 1 - real)

    return work


def scheduler_steps() -> Callable[[cbnb.Learner], None]:
    made = {}

    def work(learn: cbnb.Learner) -> None:
        if not made:
            made["scheduler"] = StepLR(learn.opt, 10**9)
        made["scheduler"].step()

    return work


class Reduced(cbnb.ReduceLROnPlateau):
    """One that has reduced the rate before the first epoch, and so changes what the schedule sets."""

    def before_fit(self) -> None:
        super().before_fit()
        self._rates.by = 0.1


def scheduled() -> list[cbnb.Callback]:
    return [cbnb.Recorder(), cbnb.ParamScheduler({"lr": cbnb.SchedLin(1e-2, 1e-3)})]


@dataclass
class Case:
    make: Callable[[], object]  # makes the callback, or a list of them
    work: Callable[[], Callable[[cbnb.Learner], object]] | None = None  # makes what does its work by hand; None: it has none
    step: type[Hollow] = Hollow
    beside: Callable[[], object] = lambda: None  # makes what is there in both loops


# A further callback is a further line: a name, what makes it, and what does its work on tensors by hand.
CASES = {
    "nothing": Case(lambda: None),
    "GradientClip": Case(cbnb.GradientClip, lambda: clip),
    "GradientClip, each tensor": Case(partial(cbnb.GradientClip, kind="tensor"), lambda: clip_each),
    "GradientClip, values": Case(partial(cbnb.GradientClip, kind="value"), lambda: lambda learn: clip_grad_value_(params(learn), 1.0)),
    "GradientAccumulation": Case(partial(cbnb.GradientAccumulation, 4 * ITEMS), lambda: share),
    "BnFreeze": Case(cbnb.BnFreeze),
    "TerminateOnNaN": Case(cbnb.TerminateOnNaN, lambda: look_at_loss),
    "TerminateOnNaN, gradients": Case(partial(cbnb.TerminateOnNaN, check_grads=True), lambda: look_at_grads),
    "StopAfter, seconds": Case(partial(cbnb.StopAfter, seconds=1e9)),
    "StopAfter, steps": Case(partial(cbnb.StopAfter, steps=10**9)),
    "ShortEpoch": Case(partial(cbnb.ShortEpoch, 1.0)),
    "SkipToEpoch": Case(partial(cbnb.callbacks.stopping.SkipToEpoch, 0)),
    "CollectData": Case(partial(cbnb.callbacks.predictions.CollectData, last=10), lambda: copy_all),
    "EarlyStopping": Case(partial(cbnb.EarlyStopping, "train_loss", patience=99), beside=cbnb.Recorder),
    "ReduceLROnPlateau": Case(partial(cbnb.ReduceLROnPlateau, "train_loss", patience=99), beside=cbnb.Recorder),
    "ReduceLROnPlateau, on a schedule": Case(partial(Reduced, "train_loss", patience=99), beside=scheduled),
    "HookCallback": Case(partial(cbnb.HookCallback, hook=lambda cb, layer, inp, out: out), copy_at_layers, Forward),
    "ActivationStats": Case(Summarized, keep_rows, Forward),
    "MixUp": Case(cbnb.MixUp, mix_up),
    "CutMix": Case(cbnb.CutMix, cut_mix, Pictures),
    "LayerWatch": Case(LayerWatch),
    "TorchScheduler": Case(partial(cbnb.TorchScheduler, partial(StepLR, step_size=10**9)), scheduler_steps),
}


def cost(beside: object, cbs: object, step: Hollow) -> float:
    """Microseconds a batch; the first epoch, which warms up, is left out."""
    loader = Loader([(torch.zeros(ITEMS, *step.size), torch.zeros(ITEMS, 1))] * BATCHES)
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    learn = cbnb.Learner(
        cbnb.DataLoaders(loader, device="cpu"), model, nn.MSELoss(), torch.optim.SGD, default_cbs=False, cbs=beside, train_step=step
    )
    learn.add_cb(Gradients())
    gc.collect()
    with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink):
        learn.fit(EPOCHS + 2, cbs=cbs)
    return (loader.starts[-1][0] - loader.starts[1][0]) / (EPOCHS * BATCHES) * 1e6


def race(names: list[str], rounds: int) -> dict[str, list[list[float]]]:
    """For each name and round, microseconds a batch with the callback, and with its work done by hand."""
    costs = {name: [] for name in names}
    for i in range(rounds + 1):
        for name in names[:: 1 if i % 2 == 0 else -1]:
            case = CASES[name]
            pairs = [(case.make(), case.step()), (None, case.step(case.work() if case.work else None))]
            turn = 1 if i % 2 else -1
            found = [cost(case.beside(), *pair) for pair in pairs[::turn]][::turn]
            if i:  # the first round warms up
                costs[name].append(found)
        print(f"\rround {i} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only callbacks with one of these in their name")
    parser.add_argument("--quick", action="store_true", help="less exact, some seconds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch notices that the scheduler's optimizer is never stepped
    names = [n for n in CASES if not args.words or any(word.lower() in n.lower() for word in args.words)]
    costs = race(names, 5 if args.quick else 15)
    print(f"an empty loop takes {median(by_hand for _, by_hand in costs[names[0]])[0]:.1f} us a batch\n" if names[0] == "nothing" else "")
    for name in names:
        verdict(name, median(mine - by_hand for mine, by_hand in costs[name]), LIMIT, "us a batch")


if __name__ == "__main__":
    main()
