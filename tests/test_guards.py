"""Ctrl-C at each line of what sets up and puts back a run: the places that test_interrupts.py only samples."""

import tempfile

import pytest

from interrupts import CALLS, At, interrupted, make, quiet

# what begins and ends runs, adds and removes callbacks, and changes a loss function for a while
GUARDED = set(
    """_run _end_run _evaluating _mock_run added_cbs removed_cbs add_cbs remove_cbs add insert remove unreduced item_losses before_fit no_logging
    _for_now summary layer_rows export""".split()
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
