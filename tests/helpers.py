"""A model small enough to check by hand, learners around it, and the words of the specification."""

import gc
import random
import re
import time
import warnings
import zlib
from collections.abc import Callable, Container
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import torch
from torch import nn

import cbnb.all as cbnb

# written down here once more, so that a change of the library's own list is noticed
EVENTS = tuple(
    """after_create before_fit before_epoch before_train before_batch after_pred after_loss before_backward after_cancel_backward
    after_backward before_step after_cancel_step after_step after_cancel_batch after_batch after_cancel_train after_train
    before_validate after_cancel_validate after_validate after_cancel_epoch after_epoch after_cancel_fit after_fit""".split()
)
RUN_EVENTS = EVENTS[1:]
CANCELS = dict(
    fit=cbnb.CancelFitException,
    epoch=cbnb.CancelEpochException,
    train=cbnb.CancelTrainException,
    validate=cbnb.CancelValidException,
    batch=cbnb.CancelBatchException,
    backward=cbnb.CancelBackwardException,
    step=cbnb.CancelStepException,
)
TRAIN_ONLY = set("before_backward after_cancel_backward after_backward before_step after_cancel_step after_step".split())
IN_BATCH = {"before_batch", "after_pred", "after_loss", "after_cancel_batch", "after_batch"} | TRAIN_ONLY


def packed_texts(page: str) -> list[str]:
    """Return the code and the data in the script of a page, as a browser unpacks them."""
    return [unpacked(text) for text in re.findall(r"text\('([(-~]+)'\)", page)]


def unpacked(text: str) -> str:
    """Return the text that `packed` was called with: groups of five digits, `(` to `~` without `<` and the backslash, are four bytes."""
    digits = [chr(c) for c in range(40, 127) if c not in (60, 92)]
    found = bytearray()
    for i in range(0, len(text), 5):
        group = text[i : i + 5]
        value = 0
        for digit in group.ljust(5, "~"):
            value = 85 * value + digits.index(digit)
        found += value.to_bytes(5, "big")[1 : len(group)]
    return zlib.decompress(found, -15).decode()


def svg_of(page: str) -> str:
    """Return the SVG of the image in a page, with the original double quotes."""
    return unquote(re.search(r'data:image/svg\+xml,([^"]*)"', page)[1]).replace("'", '"')


class Line(nn.Module):
    """pred = a*x + b"""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.a * x + self.b


def line_batches(n: int = 2, bs: int = 8) -> list:
    x = torch.tensor([-1.0, 1.0]).repeat(n * bs // 2)
    return list(zip(x.split(bs), (2 * x + 3).split(bs)))


def line_learner(n: int = 2, valid: bool = True, progress: bool = False, **kwargs) -> cbnb.Learner:
    """In each batch the mean of x is 0 and of x**2 is 1, so that a step takes a fifth of the way to a=2, b=3."""
    batches = line_batches(n)
    dls = cbnb.DataLoaders(batches, *([batches[:1]] if valid else []), device="cpu")
    settings = dict(loss_func=nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.1) | kwargs
    learn = cbnb.Learner(settings.pop("dls", dls), settings.pop("model", None) or Line(), **settings)
    return learn if progress else learn.remove_cb(cbnb.ProgressCallback)


def ab(learn: cbnb.Learner) -> tuple[float, float]:
    return learn.model.a.item(), learn.model.b.item()


def listener(what, order: float = 0, **attributes) -> cbnb.Callback:
    """A callback that calls `what(callback, event)` in every event."""

    def method(name):
        return lambda self: what(self, name)

    cb = cbnb.Callback(**{name: method(name) for name in EVENTS})
    cb.__dict__.update(order=order, **attributes)
    return cb


def noting(seen: list, order: float = 1000, **attributes) -> cbnb.Callback:
    """A callback that appends the name of every event to `seen`."""
    return listener(lambda cb, name: seen.append(name), order, **attributes)


class RaiseIn(cbnb.Callback):
    """Raises, once, when an event fires; `when` may narrow it down. An `after_cancel_` event is brought about first."""

    run_in = ("fit", "validate", "preds", "lr_find")

    def __init__(self, event, error, order=0, when=lambda learn: True, phase="train"):
        super().__init__(**{name: (lambda self, name=name: self.at(name)) for name in RUN_EVENTS})
        self.order, self.event, self.error, self.when, self.wanted_phase = order, event, error, when, phase
        self.phase_now, self.raised, self.done = None, False, False
        level = event.removeprefix("after_cancel_")
        self.lead = CANCELS[level] if level != event else None
        self.lead_event = f"before_{level}"

    def at(self, name):
        if name in ("before_train", "before_validate"):
            self.phase_now = name.removeprefix("before_")
        if self.done or name in IN_BATCH and self.phase_now != self.wanted_phase:
            return
        if self.lead and name == self.lead_event and self.when(self.learn):
            raise self.lead()
        if name == self.event and (self.lead or self.when(self.learn)):
            self.done = True
            raise self.error() if isinstance(self.error, type) else self.error


class Held(cbnb.Callback):
    """Until the file `until` is there, a batch for which `when(learn)` is true takes `seconds`."""

    run_in, order = ("fit", "validate", "preds", "lr_find"), 1000

    def __init__(self, until: str, when: Callable[[cbnb.Learner], bool] = lambda learn: True, seconds: float = 5):
        self.until, self.when, self.seconds = Path(until), when, seconds

    def after_batch(self):
        if self.when(self.learn):
            end = time.monotonic() + self.seconds
            while not self.until.exists() and time.monotonic() < end:
                time.sleep(0.02)


def live(known: Container[int] = ()) -> list[torch.Tensor]:
    """The tensors that exist, except those with these ids."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [o for o in gc.get_objects() if isinstance(o, torch.Tensor) and id(o) not in known]


def seed(n: int = 0) -> None:
    random.seed(n)
    np.random.seed(n)
    torch.manual_seed(n)


def exact(value) -> object:
    """A tensor as something that only equals another tensor with the same bits."""
    return value.dtype, tuple(value.shape), value.detach().cpu().contiguous().numpy().tobytes()


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(exact(one[k]) == exact(other[k]) for k in one)
