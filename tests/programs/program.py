"""A training program in two versions: a loop by hand in plain PyTorch, and the same training as a user of the library writes it.

Both versions start from the same seed and take the same batches in the same order. They must end with the same weights, the same loss of
each training batch, and the same row for each epoch. So must a learner that loads the saved weights, and one that resumes after a failure.

A loop by hand names the form of torch's optimizers that the learner chooses: `fused=True`, which rounds differently.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from helpers import seed
from resumed import Fails, PowerFailed


@dataclass
class Hand:
    """What a loop by hand ends with."""

    modules: nn.Module | Sequence[nn.Module]  # all that was trained
    losses: list[float] = field(default_factory=list)  # one for each training batch
    rows: list[dict[str, float]] = field(default_factory=list)  # one for each epoch, with the learner's names of the columns


class Program:
    """The two versions, and the tests of all programs. A tolerance is absolute below 1 and relative above; 0 means the same bits."""

    n_epoch = 3
    fails_at = 7  # number of the training batch after whose update the fit fails, in the test of resuming
    weights = losses = 0.0  # tolerances
    rows = 1e-6
    warned: frozenset[str] = frozenset()  # codes of what `check` is right to warn of
    advised: frozenset[str] = frozenset()  # the same of `diagnose`: the fit is short, or its rate low or rising

    def by_hand(self) -> Hand:
        raise NotImplementedError

    def learner(self, path: Path) -> cbnb.Learner:
        raise NotImplementedError

    def fit(self, learn: cbnb.Learner, **kwargs: Any) -> None:
        learn.fit(self.n_epoch, **kwargs)

    def modules(self, learn: cbnb.Learner) -> Any:
        """What corresponds to `Hand.modules`."""
        return learn.model

    def validated(self, learn: cbnb.Learner) -> dict[str, float]:
        """The columns of a validation outside a fit."""
        return dict(zip(["valid_loss", *(metric.name for metric in learn.metrics)], learn.validate()))

    def last_row(self) -> dict[str, float]:
        """What the model that the loop ends with has on the validation set."""
        return self.hand().rows[-1]

    @classmethod
    @functools.cache
    def hand(cls) -> Hand:
        seed(0)
        return cls().by_hand()

    def trained(self, path: Path) -> cbnb.Learner:
        learn = self.new_learner(path)
        self.fit(learn)
        return learn

    def new_learner(self, path: Path, n: int = 0) -> cbnb.Learner:
        seed(n)
        learn = self.learner(path).remove_cb(cbnb.ProgressCallback)
        learn.logger = lambda row: None
        return learn

    # --- the tests ---

    def test_a_fit_its_table_and_saved_weights_are_those_of_the_loop(self, tmp_path):
        """One test, for all three look at the end of the same fit."""
        learn = self.trained(tmp_path)
        same_losses(learn, self.hand(), self.losses)
        same_weights(self.modules(learn), self.hand().modules, self.weights)
        same_rows(learn, self.hand(), self.rows)
        wrong = [f for f in [*learn.findings, *learn.diagnose()] if f.level != "note" and f.code not in self.advised]
        assert not wrong, wrong
        learn.save("saved")
        other = self.new_learner(tmp_path, 1)
        other.load("saved")
        same_weights(self.modules(other), self.hand().modules, self.weights)
        last, found = self.last_row(), self.validated(other)
        same_numbers(found, {name: last[name] for name in found if name in last}, self.rows)

    def test_a_check_finds_nothing_wrong(self, tmp_path):
        found = self.new_learner(tmp_path).check()
        assert {f.code for f in found if f.level != "note"} == self.warned, found

    def test_a_resumed_fit_is_the_loop(self, tmp_path):
        with pytest.raises(PowerFailed):
            self.fit(self.new_learner(tmp_path), cbs=[cbnb.Checkpoint(every_steps=2), Fails(self.fails_at)], resume=True)
        learn = self.new_learner(tmp_path, 1)
        self.fit(learn, cbs=[cbnb.Checkpoint(every_steps=2)], resume=True)
        same_losses(learn, self.hand(), self.losses)
        same_weights(self.modules(learn), self.hand().modules, self.weights)
        same_rows(learn, self.hand(), self.rows)


# --- comparisons ---


def same_losses(learn: cbnb.Learner, hand: Hand, tolerance: float) -> None:
    found = [loss for run in learn.recorder.history for loss in run.raw_losses]
    assert len(found) == len(hand.losses) > 0
    for i, (a, b) in enumerate(zip(found, hand.losses)):
        assert is_same(a, b, tolerance), f"the loss of batch {i} is {a!r}, and {b!r} by hand"


def same_weights(found: Any, by_hand: Any, tolerance: float) -> None:
    found, by_hand = states(found), states(by_hand)
    assert found.keys() == by_hand.keys() and found
    for name, a in found.items():
        off = (a.double() - by_hand[name].double()).abs().max().item() if a.numel() else 0.0
        assert torch.equal(a, by_hand[name]) or off <= tolerance, f"{name} is off by {off}"


def states(modules: Any) -> dict[str, Tensor]:
    modules = [modules] if isinstance(modules, nn.Module) else modules
    return {f"{i}.{name}": t for i, m in enumerate(modules) for name, t in m.state_dict().items()}


def same_rows(learn: cbnb.Learner, hand: Hand, tolerance: float) -> None:
    found = [row for run in learn.recorder.history for row in run.epochs]
    assert len(found) == len(hand.rows) > 0
    for i, (row, by_hand) in enumerate(zip(found, hand.rows)):
        same_numbers(row, by_hand, tolerance, f"epoch {i}: ")


def same_numbers(found: dict, by_hand: dict, tolerance: float, where: str = "") -> None:
    for name, b in by_hand.items():
        assert is_same(found[name], b, tolerance), f"{where}{name} is {found[name]!r}, and {b!r} by hand"


def is_same(a: float | None, b: float | None, tolerance: float) -> bool:
    return a == b or a is not None and b is not None and abs(a - b) <= tolerance * max(1, abs(b))


# --- for the loops by hand ---


def mean(values: Sequence[float], counts: Sequence[float]) -> float:
    """The mean of the values, each of which stands for so many items."""
    return sum(float(getattr(v, "detach", lambda: v)()) * float(n) for v, n in zip(values, counts)) / float(sum(counts))


def loader(*tensors: Tensor, bs: int = 8, shuffle: bool = False, **kwargs: Any) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), bs, shuffle=shuffle, **kwargs)
