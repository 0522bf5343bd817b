"""Ctrl-C at each line of what sets up and puts back a run: the places that test_interrupts.py only samples."""

import tempfile

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from interrupts import CALLS, At, interrupted, make, quiet

# what begins and ends runs, adds and removes callbacks, and changes a loss function for a while
GUARDED = set(
    """_run _end_run _evaluating _mock_run added_cbs removed_cbs add_cbs remove_cbs add insert remove unreduced item_losses before_fit no_logging
    _for_now summary layer_rows export _export_pickle _block begin end""".split()
)


class AtGuarded(At):
    """Sends SIGINT at the i-th line of these functions that is reached; a line counts once."""

    def __init__(self, i=None, functions=GUARDED):
        super().__init__("line", i)
        self.seen, self.functions = set(), functions

    def trace(self, frame, event, arg):
        return super().trace(frame, event, arg) if frame.f_code.co_name in self.functions else None

    def count(self, frame):
        place = frame.f_code, frame.f_lineno
        if place not in self.seen:
            self.seen.add(place)
            super().count(frame)


@pytest.mark.parametrize("name", ["fit", "lr_find", "validate", "get_preds", "export", "summary"])
def test_an_interrupt_where_a_run_is_set_up_or_put_back(name):
    with tempfile.TemporaryDirectory() as folder, quiet():
        learn, count = make(4, folder), AtGuarded()
        CALLS[name][0](learn)
        assert interrupted(learn, name, count) == [] and count.n >= 10
        for i in range(1, count.n + 1):
            at = AtGuarded(i)
            assert interrupted(learn, name, at) == [], at.where


def without_some(learn):
    with learn.removed_cbs(learn.cbs[-1:]):
        pass


def test_an_interrupt_while_callbacks_are_taken_out_for_a_while(monkeypatch):
    monkeypatch.setitem(CALLS, "without", (without_some, False))
    with tempfile.TemporaryDirectory() as folder, quiet():
        learn, count = make(4, folder), AtGuarded(None, {"insert", "remove"})
        assert interrupted(learn, "without", count) == [] and count.n >= 10
        for i in range(1, count.n + 1):
            at = AtGuarded(i, {"insert", "remove"})
            assert interrupted(learn, "without", at) == [], at.where


class Judge(nn.Linear):
    """Not a part of the model: the learner switches it only for the length of a call."""

    def evaluate(self, x, y):
        return nn.functional.mse_loss(self(x), y)


def test_an_interrupt_where_the_validation_of_a_fit_switches_a_module_of_a_step():
    x, judge, functions = torch.ones(4, 1), Judge(1, 1), {"_evaluate", "__exit__"}
    learn = cbnb.Learner(cbnb.DataLoaders([(x, x)], [(x, x)], device="cpu"), nn.Linear(1, 1), nn.MSELoss(), eval_step=judge.evaluate)
    with quiet():
        count = AtGuarded(None, functions)
        count(lambda: learn.fit(1))
        for i in range(1, count.n + 1):
            at = AtGuarded(i, functions)
            at(lambda: learn.fit(1))
            assert judge.training, at.where
    assert count.n >= 10
