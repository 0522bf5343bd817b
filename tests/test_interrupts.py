"""Ctrl-C at any moment leaves learner, files and process as they were; `python tests/interrupts.py` does the same at length."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.learner import layer_rows, noting_gradients
from cbnb.undo import UndoStack, interrupts_act, interrupts_wait
from helpers import Line, line_learner
from interrupts import CALLS, At, at_each, at_random

PLACES = 60  # of some 3,000 in each call


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("twice", [False, True])
def test_an_interrupt_at_any_line_leaves_everything_as_it_was(name: str, twice: bool):
    """Grad mode, handlers, callbacks, logger, reduction, hooks, rates, files; the next calls work; it is a KeyboardInterrupt."""
    results = list(at_each(name, "line", places=PLACES, twice=twice))
    assert len(results) >= 20
    assert [(where, wrong) for where, wrong in results if wrong] == []


@pytest.mark.parametrize("name", ["fit", "predict", "save"])
def test_real_signals_at_random_moments_leave_everything_as_it_was(name: str):
    found = at_random(name, width=4, n=8, seed=1)
    assert found.pop("interrupted") + found.pop("too late", 0) >= 8
    assert not found


def press():
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def handler():
    """Puts the handler of SIGINT back that a test has replaced."""
    old = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, old)


def test_a_process_that_ignores_ctrl_c_goes_on_to_ignore_it(handler, tmp_path):
    """As `python train.py &` in a script does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    learn = line_learner(path=tmp_path, cbs=[cbnb.SaveModel(), cbnb.Callback(after_step=lambda cb: press())])
    learn.fit(2)
    assert learn.recorder.history[-1].status == "done"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_of_the_users_own_is_called_and_the_fit_goes_on(handler):
    """At once where the loop runs, afterwards where something is being put back."""
    seen = []

    def mine(signum, frame):
        seen.append(("press", learn.running))

    signal.signal(signal.SIGINT, mine)

    def press_while_undoing(cb):
        cb.learn.undo.callback(seen.append, "undone")
        cb.learn.undo.callback(press)

    learn = line_learner(cbs=cbnb.Callback(before_fit=press_while_undoing, after_train=lambda cb: press()))
    learn.fit(2)
    assert seen == [("press", True), ("press", True), "undone", ("press", False)]
    assert learn.recorder.history[-1].status == "done" and signal.getsignal(signal.SIGINT) is mine


def test_a_handler_that_is_set_within_a_fit_stays(handler):
    mine = lambda signum, frame: None
    line_learner(cbs=cbnb.Callback(after_epoch=lambda cb: signal.signal(signal.SIGINT, mine))).fit(1)
    assert signal.getsignal(signal.SIGINT) is mine


def test_an_interrupt_that_a_callback_catches_does_not_make_the_fit_deaf():
    caught = []

    def long_work(cb):
        try:
            press()
        except KeyboardInterrupt:
            caught.append(cb.learn.train_iter)

    line_learner(4, cbs=cbnb.Callback(after_step=long_work)).fit(1)
    assert caught == [0, 1, 2, 3]


def test_a_run_within_a_run_is_interrupted_as_one():
    """The inner run ends, then the outer one; both are put back."""
    seen = []

    def inside(cb):
        if cb.learn.purpose == "validate":
            cb.learn.undo.callback(seen.append, "inner")
            press()

    validate = cbnb.Callback(after_train=lambda cb: cb.learn.validate(cbs=cbnb.Callback(before_validate=inside)))
    outer = cbnb.Callback(before_fit=lambda cb: cb.learn.undo.callback(seen.append, "outer"))
    learn = line_learner(cbs=[validate, outer])
    with pytest.raises(cbnb.FitInterrupted):
        learn.fit(2)
    assert seen == ["inner", "outer"] and not learn.running
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_of_an_error_is_not_lost():
    """Ctrl-C while an error is being cleared away: it is raised, and the error is its context."""
    with pytest.raises(KeyboardInterrupt) as caught, interrupts_wait(), UndoStack() as undo:
        undo.callback(press)
        raise ValueError("mine")
    assert isinstance(caught.value.__context__, ValueError)


def test_the_third_ctrl_c_gets_out_of_an_undoing_that_hangs():
    presses = []

    def hang():
        while len(presses) < 10:
            presses.append(1)
            press()

    with pytest.raises(KeyboardInterrupt), interrupts_wait(), UndoStack() as undo:
        undo.callback(hang)
    assert len(presses) == 3


def test_without_a_guard_nothing_is_changed():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook
    with interrupts_act():
        assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook)
    with interrupts_wait(), interrupts_wait():
        pass
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), sys.unraisablehook)


class Judge(nn.Linear):
    """A model with an evaluation of its own, which is not the learner's model."""

    def evaluate(self, x, y):
        assert not self.training
        return nn.functional.mse_loss(self(x), y), self(x), y


def test_a_mode_that_a_step_switched_is_put_back_wherever_it_was_interrupted():
    """A module that is not the learner's own is switched for the length of a call; at each line of the step."""
    judge = Judge(1, 1)
    x = torch.ones(4, 1)
    learn = cbnb.Learner(cbnb.DataLoaders([(x, x)], [(x, x)], device="cpu"), nn.Linear(1, 1), nn.MSELoss(), eval_step=judge.evaluate)
    count = At("line")
    count(learn.validate)
    places = set()
    for i in range(1, count.n + 1):
        at = At("line", i)
        raised = at(learn.validate)
        if "predict" in at.where:
            places.add(at.where)
            assert isinstance(raised, KeyboardInterrupt)
        assert judge.training, at.where
    assert len(places) > 5


PROGRAM = """
import sys, torch
from torch import nn
import cbnb.all as cbnb
x = torch.ones(8, 1)
learn = cbnb.Learner(cbnb.DataLoaders([(x, x)]*4, device="cpu"), nn.Linear(1, 1), nn.MSELoss(), path=sys.argv[1])
say = cbnb.Callback(after_epoch=lambda cb: print("ready", flush=True))
learn.fit(100_000, cbs=[cbnb.SaveModel(at_end=True), say])
"""


def test_a_terminated_process_has_saved_its_model(tmp_path):
    """A scheduler of a cluster sends SIGTERM: what was to be saved at the end is saved, and the process ends as terminated."""
    env = {**os.environ, "PYTHONPATH": str(Path(cbnb.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None, process.stderr.read()
        process.terminate()
        said = process.communicate(timeout=60)[0]
    assert (tmp_path / "models/model.pth").exists()
    assert "stopped in epoch" in said and "failed" not in said
    assert process.returncode == -signal.SIGTERM


def test_a_forked_process_is_terminated_as_ever():
    """It has inherited the handler, and has nothing to undo."""
    read, write = os.pipe()
    with interrupts_wait():
        pid = os.fork()
        if not pid:
            os.write(write, b"ready")
            time.sleep(60)
            os._exit(0)
        os.read(read, 5)
        os.kill(pid, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
    os.close(read)
    os.close(write)


def test_ctrl_c_while_parameters_are_watched_leaves_no_hook():
    """It comes when the hook is there, and nobody yet knows how to take it off."""

    class Watched:
        requires_grad, hooked = True, False

        def register_hook(self, hook):
            self.hooked = True
            press()
            return self

        def remove(self):
            self.hooked = False

    watched = Watched()
    with pytest.raises(KeyboardInterrupt):
        noting_gradients([watched], list)
    assert not watched.hooked


def test_ctrl_c_while_layers_are_watched_leaves_no_hook():
    class Pressing(nn.Linear):
        def register_forward_hook(self, hook):
            handle = super().register_forward_hook(hook)
            press()
            return handle

    layer = Pressing(1, 1)
    with pytest.raises(KeyboardInterrupt):
        layer_rows(layer, list)
    assert not layer._forward_hooks


def test_ctrl_c_at_the_end_of_a_summary_waits_until_all_modules_train_again():
    class Pressing(Line):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name == "training" and value and self.pressing:
                press()

        pressing = False

    learn = line_learner(model=nn.Sequential(Pressing(), nn.Dropout(0.5)))
    learn.model[0].pressing = True
    with pytest.raises(KeyboardInterrupt):
        learn.summary()
    assert [m.training for m in learn.model.modules()] == [True, True, True]


@pytest.mark.parametrize("name", ["add", "remove"])
def test_ctrl_c_while_callbacks_come_or_go_acts_when_all_have(name, monkeypatch):
    learn = line_learner()
    one, other = cbnb.Callback(before_fit=press), cbnb.Callback(after_fit=press)
    if name == "remove":
        learn.add_cbs([one, other])
    do = getattr(learn.callbacks, name)
    monkeypatch.setattr(learn.callbacks, name, lambda cb: (do(cb), press()))
    with pytest.raises(KeyboardInterrupt):
        getattr(learn, f"{name}_cbs")([one, other])
    assert [cb in learn.cbs for cb in (one, other)] == [name == "add"] * 2


def test_ctrl_c_as_a_run_enters_the_history_closes_that_run():
    """Else it would be shown as running for ever."""

    class Pressing(list):
        def append(self, run):
            super().append(run)
            press()

    learn = line_learner()
    learn.recorder.history.runs = Pressing()
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1)
    assert [run.status for run in learn.recorder.history.runs] == ["interrupted"]
