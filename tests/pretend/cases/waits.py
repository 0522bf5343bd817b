"""How often the host waits for the GPU, a training batch, a validation batch, an epoch and a fit, for each part of the library."""

import contextlib
import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import cbnb.all as cbnb

SIZES = [(1, 4, 2), (1, 8, 2), (1, 4, 4), (2, 4, 2)]  # epochs, training batches, validation batches


def batches(n: int) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(8, 6, device="cuda"), torch.randint(0, 3, (8,), device="cuda")) for _ in range(n)]


def learner(n: int, n_valid: int, **settings: Any) -> cbnb.Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return cbnb.Learner(cbnb.DataLoaders(batches(n), batches(n_valid)), net, nn.CrossEntropyLoss(), lr=1e-3, **settings)


def count(gpu: Any, do: Callable[[cbnb.Learner, int], Any], settings: dict[str, Any], epochs: int, n: int, n_valid: int) -> Counter[str]:
    """Return the waits of a second fit, by the lines that wait: the first one has those of starting up."""
    learn = learner(n, n_valid, **settings)
    with contextlib.redirect_stdout(io.StringIO()):
        do(learn, epochs)
        gpu.log.clear()
        do(learn, epochs)
    return Counter(" <- ".join(stack[:-4:-1]) for _, _, _, stack in gpu.waits())


def fit(learn: cbnb.Learner, n: int) -> None:
    learn.fit(n)


def waits_of(gpu: Any, do: Callable[[cbnb.Learner, int], Any] = fit, settings: Callable[[], dict[str, Any]] = dict) -> dict[str, Any]:
    """Return the waits for each training batch, validation batch, epoch and fit, and the stacks of all."""
    counts = [count(gpu, do, settings(), *sizes) for sizes in SIZES]
    base, more, valid, epochs = (sum(c.values()) for c in counts)
    batch, valid_batch, epoch = (more - base) / 4, (valid - base) / 2, epochs - base
    return dict(batch=batch, valid_batch=valid_batch, epoch=epoch - 4 * batch - 2 * valid_batch, fit=base - epoch, stacks=counts[-1])
