"""Ctrl-C at any moment leaves learner, files and process as they were; `python tests/interrupts.py` does the same at length."""

import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.function_steps import LossStep
from cbnb.display.summary import layer_rows
from cbnb.undo import UndoStack, interrupts_act, interrupts_wait
from helpers import Line, line_learner
from interrupts import CALLS, At, at_each, at_random, interrupted, make, quiet

PLACES = 30  # of some 3,000 in each call


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.filterwarnings("ignore:Exception ignored in")
def test_an_interrupt_at_any_line_leaves_everything_as_it_was(name: str, twice: bool):
    """Grad mode, handlers, callbacks, logger, reduction, hooks, rates, files; the next calls work; it is a KeyboardInterrupt."""
    results = list(at_each(name, "line", places=PLACES, twice=twice))
    assert len(results) >= 20
    assert [(where, wrong) for where, wrong in results if wrong] == []


def test_an_interrupt_as_a_run_is_set_up_or_ends_leaves_everything_as_it_was(tmp_path):
    """At every line of the function that each run goes through."""
    learn, count = make(4, str(tmp_path)), At("line")
    with quiet():
        assert interrupted(learn, "validate", count) == []
        places = [i for (code, _), times in count.times.items() if code.co_name == "run_as" for i in times]
        assert len(places) >= 20
        assert [wrong for i in sorted(places) if (wrong := interrupted(learn, "validate", At("line", i)))] == []


class FunctionLoss:
    """A loss of the user's own, which calls one of torch: its call is observed in a function mode."""

    reduction = "mean"

    def __call__(self, pred, y):
        return nn.functional.cross_entropy(pred, y)


@pytest.mark.parametrize("name", ["fit", "validate"])
def test_an_interrupt_as_a_loss_is_observed_leaves_no_function_mode(name: str, tmp_path):
    """Nor does it take away a mode that was active before the run, such as a default device."""
    learn, count = make(4, str(tmp_path)), At("line")
    learn.loss_func = FunctionLoss()
    with quiet(), torch.device("cpu"):
        assert interrupted(learn, name, count) == []
        observing = [i for (code, _), times in count.times.items() if code.co_filename == torch.overrides.__file__ for i in times]
        assert len(observing) >= 20
        assert [wrong for i in sorted(observing)[:: 3 if name == "fit" else 1] if (wrong := interrupted(learn, name, At("line", i)))] == []


def test_a_mode_that_a_callback_enters_is_left_before_the_modes_are_restored():
    class Enters(cbnb.Callback):
        def before_fit(self):
            self.learn.undo.enter_context(torch.device("cpu"))

        def after_batch(self):
            raise KeyboardInterrupt

    with torch.device("cpu"):
        before = torch.overrides._get_current_function_mode_stack()
        with pytest.raises(KeyboardInterrupt) as stopped:
            line_learner(cbs=Enters()).fit(1)
        assert torch.overrides._get_current_function_mode_stack() == before
    assert not any("another error" in note for note in getattr(stopped.value, "__notes__", ()))


@pytest.mark.parametrize("name", ["fit", "predict", "save"])
def test_real_signals_at_random_moments_leave_everything_as_it_was(name: str):
    found = at_random(name, width=4, n=8, seed=1)
    interrupted, late = found.pop("interrupted", 0), found.pop("too late", 0)
    assert not found and interrupted + late >= 8
    if not interrupted:
        pytest.skip("all signals came after the call")


def press():
    signal.raise_signal(signal.SIGINT)


class PressAsUndoingBegins:
    """Presses once, before the i-th undo stack of a call begins to undo; counts them if `i` is None."""

    def __init__(self, monkeypatch, i: int | None = None):
        self.monkeypatch, self.i, self.n = monkeypatch, i, 0

    def __call__(self, f) -> BaseException | None:
        undo = UndoStack.__exit__

        def press_first(stack, *exc):
            self.n += 1
            if self.n == self.i:
                press()
            return undo(stack, *exc)

        with self.monkeypatch.context() as patched:
            patched.setattr(UndoStack, "__exit__", press_first)
            try:
                f()
            except BaseException as e:
                return e
        return None


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_as_undoing_begins_waits_until_all_is_undone(name: str, monkeypatch, tmp_path):
    with quiet():
        learn, count = make(4, str(tmp_path)), PressAsUndoingBegins(monkeypatch)
        assert interrupted(learn, name, count) == []
        for i in range(1, count.n + 1):
            assert interrupted(learn, name, PressAsUndoingBegins(monkeypatch, i)) == [], i


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


# Blocks in which Ctrl-C waits, and blocks in which it acts, by themselves


@pytest.fixture
def seen(handler):
    """What has happened, in order; SIGINT calls a handler of the user's own."""
    seen = []
    signal.signal(signal.SIGINT, lambda signum, frame: seen.append(signum))
    return seen


INT = signal.SIGINT


def test_in_a_waiting_block_signals_are_one_signal_at_its_end(seen):
    with interrupts_wait():
        with interrupts_wait():
            press(), press()
        seen.append("inner")
    assert seen == ["inner", INT]


def test_in_an_acting_block_each_signal_acts_at_once(seen):
    with interrupts_wait():
        with interrupts_act():
            press(), press(), seen.append("inside")
        press(), seen.append("outside")
    assert seen == [INT, INT, "inside", "outside", INT]


def test_what_has_waited_acts_as_an_acting_block_begins():
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        press()
        reached.append("waiting")
        with interrupts_act():
            reached.append("acting")
    assert reached == ["waiting"]


def test_a_block_that_is_lifted_is_as_it_was_outside(seen):
    with interrupts_wait() as outer, outer.lifted():
        press(), seen.append("outermost")
        with interrupts_wait() as inner, inner.lifted():
            press(), seen.append("in an acting block")
    with interrupts_wait(), interrupts_wait() as inner, inner.lifted():
        press(), seen.append("in a waiting block")
    assert seen == [INT, "outermost", INT, "in an acting block", "in a waiting block", INT]


def test_an_interrupt_that_is_being_raised_is_not_raised_twice():
    with pytest.raises(KeyboardInterrupt, match="mine"), interrupts_wait():
        press()
        raise KeyboardInterrupt("mine")


def test_blocks_in_another_thread_leave_signals_to_the_main_one(seen):
    def elsewhere():
        with interrupts_act():
            entered.set()
            done.wait(10)
        with interrupts_wait() as waiting, waiting.lifted():
            seen.append("thread")

    entered, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=elsewhere)
    with interrupts_wait():
        thread.start()
        entered.wait(10)
        press()
        seen.append("main")
        done.set()
        thread.join()
    assert seen == ["main", "thread", INT]
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen[-1] == "thread" and signal.getsignal(signal.SIGINT) is before


def test_only_handlers_that_can_be_stood_in_for_are_replaced(handler):
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        for interrupt in (signal.SIG_DFL, signal.SIG_IGN):
            for terminate in (signal.SIG_IGN, signal.SIG_DFL):
                signal.signal(signal.SIGINT, interrupt), signal.signal(signal.SIGTERM, terminate)
                with interrupts_wait():
                    inside = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
                    assert inside[0] is interrupt and (inside[1] is terminate) == (terminate is signal.SIG_IGN)
                assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (interrupt, terminate)
    finally:
        signal.signal(signal.SIGTERM, terminated)


def in_a_fork(f) -> tuple[bytes, int]:
    """What `f` writes to the pipe that it is given, and the signal that ends its process."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            f(lambda text: os.write(write, text))
        finally:
            os._exit(0)
    os.close(write)
    status = os.waitpid(pid, 0)[1]
    with open(read, "rb") as pipe:
        return pipe.read(), os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_a_termination_waits_and_ends_the_process(handler):
    def waiting(write):
        with interrupts_wait():
            signal.raise_signal(signal.SIGTERM)
            write(b"undone")
        write(b" too far")

    def acting(write):
        with interrupts_wait():
            try:
                with interrupts_act():
                    signal.raise_signal(signal.SIGTERM)
                    write(b"too far ")
            except SystemExit as e:
                write(b"%d undone" % e.code)
        write(b" too far")

    assert in_a_fork(waiting) == (b"undone", signal.SIGTERM)
    assert in_a_fork(acting) == (b"143 undone", signal.SIGTERM)


def test_ctrl_c_in_a_finalizer_is_not_lost():
    """Python cannot raise it there: it is sent again when the finalizer has ended."""

    class Pressing:
        def __del__(self):
            press()

    end, reached = time.monotonic() + 20, []
    with pytest.raises(KeyboardInterrupt), interrupts_wait(), interrupts_act():
        Pressing()
        while time.monotonic() < end:
            time.sleep(0.001)
        reached.append("the end of the block")
    assert reached == []


def test_other_errors_in_a_finalizer_go_where_they_went(monkeypatch):
    class Failing:
        def __del__(self):
            raise ArithmeticError

    errors, other = [], lambda unraisable: None
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: errors.append(unraisable.exc_type))
    mine = sys.unraisablehook
    with interrupts_wait(), interrupts_act():
        Failing()
    assert errors == [ArithmeticError] and sys.unraisablehook is mine
    with interrupts_wait():
        sys.unraisablehook = other
    assert sys.unraisablehook is other


class Entering:
    def __init__(self, seen):
        self.seen = seen

    def __enter__(self):
        self.seen.append("in")

    def __exit__(self, *exc):
        self.seen.append("out")


UNDO = dict(
    callback=lambda undo, seen: undo.callback(seen.append, "out"),
    push=lambda undo, seen: undo.push(lambda *exc: seen.append("out")),
    enter_context=lambda undo, seen: undo.enter_context(Entering(seen)),
    __exit__=lambda undo, seen: undo.callback(seen.append, "out"),
)


@pytest.mark.parametrize("name", UNDO)
def test_ctrl_c_as_an_undo_is_registered_waits_until_it_is(name, monkeypatch):
    seen, original = [], getattr(ExitStack, name)

    def pressing(stack, *args, **kwargs):
        press()
        return original(stack, *args, **kwargs)

    monkeypatch.setattr(ExitStack, name, pressing)
    with pytest.raises(KeyboardInterrupt), UndoStack() as undo:
        UNDO[name](undo, seen)
    assert seen[-1:] == ["out"]


def test_ctrl_c_as_a_value_is_set_waits_until_it_is_and_it_is_put_back():
    class Pressing:
        def __init__(self):
            self.values = [1]

        @property
        def value(self):
            return self.values[-1]

        @value.setter
        def value(self, value):
            if value == 2:
                press()
            self.values.append(value)

    obj, reached = Pressing(), []
    with pytest.raises(KeyboardInterrupt), UndoStack() as undo:
        undo.set(obj, "value", 2)
        reached.append(1)
    assert obj.values == [1, 2, 1] and reached == []


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
        if "step.py" in at.where or "trained_modules.py" in at.where:
            places.add(at.where)
            assert isinstance(raised, KeyboardInterrupt)
        assert judge.training, at.where
    assert len(places) > 5 and any("in_eval_mode" in place for place in places)


def test_ctrl_c_as_the_mode_of_a_step_is_put_back_waits_until_it_is(monkeypatch):
    judge, x = Judge(1, 1), torch.ones(4, 1)
    learn = cbnb.Learner(cbnb.DataLoaders([(x, x)], [(x, x)], device="cpu"), nn.Linear(1, 1), nn.MSELoss(), eval_step=judge.evaluate)
    learn.validate()
    learn.training = False
    count = PressAsUndoingBegins(monkeypatch)
    assert count(learn.validate) is None and count.n > 0
    for i in range(1, count.n + 1):
        assert isinstance(PressAsUndoingBegins(monkeypatch, i)(learn.validate), KeyboardInterrupt) and judge.training


def test_ctrl_c_acts_at_once_in_the_function_that_evaluates_and_where_gradients_are_noted():
    judge, x, reached = Judge(1, 1), torch.ones(4, 1), []

    def evaluate(self, x, y):
        press()
        reached.append("evaluate")

    def train(x, y):
        press()
        reached.append("train")

    judge.evaluate = evaluate.__get__(judge)
    for call in (lambda learn: learn.validate(), lambda learn: learn.fit(1)):
        steps = dict(train_step=train, eval_step=judge.evaluate)
        learn = cbnb.Learner(cbnb.DataLoaders([(x, x)], [(x, x)], device="cpu"), nn.Linear(1, 1), nn.MSELoss(), **steps)
        with pytest.raises(KeyboardInterrupt):
            call(learn)
    assert reached == [] and judge.training


@pytest.mark.parametrize("name", ["added_cbs", "removed_cbs"])
@pytest.mark.parametrize("in_a_fit", [False, True])
def test_ctrl_c_acts_at_once_where_callbacks_are_lent_or_taken_out_for_a_while(name, in_a_fit):
    learn, reached = line_learner(), []

    def for_a_while(learn):
        with getattr(learn, name)(cbnb.Recorder if name == "removed_cbs" else cbnb.GradientClip()):
            press()
            reached.append(1)

    before = learn.cbs
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1, cbs=cbnb.Callback(after_epoch=lambda cb: for_a_while(cb.learn))) if in_a_fit else for_a_while(learn)
    assert reached == [] and learn.cbs == before


def test_ctrl_c_acts_at_once_in_the_model_that_is_summarized():
    reached = []

    class Pressing(Line):
        def forward(self, x):
            press()
            reached.append(1)

    with pytest.raises(KeyboardInterrupt):
        line_learner(model=Pressing()).summary()
    assert reached == []


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


IN_THE_BACKGROUND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
import cbnb.all as cbnb
from cbnb.toy import line_learner
learn = line_learner(path=sys.argv[1])
def end(cb):
    if cb.training and cb.train_iter == 5: os.kill(os.getpid(), signal.SIGTERM)
learn.fit(10, cbs=[cbnb.Checkpoint(every_steps=100), cbnb.Callback(after_loss=end)])
print("went on")
"""


def test_a_program_in_the_background_ends_when_its_checkpoint_is_told(tmp_path):
    """`python train.py &` in a script ignores Ctrl-C, and `Checkpoint` has its own handler of SIGTERM: neither signal has that of the run."""
    env = {**os.environ, "PYTHONPATH": str(Path(cbnb.__file__).parents[1])}
    command = [sys.executable, "-c", IN_THE_BACKGROUND, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert "got SIGTERM: saved" in done.stdout and "went on" not in done.stdout


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
        requires_grad, hooked, grad = True, False, None

        def detach(self):
            return torch.zeros(())

        def register_hook(self, hook):
            self.hooked = True
            press()
            return self

        def remove(self):
            self.hooked = False

    watched = Watched()
    opt = types.SimpleNamespace(param_groups=[dict(params=[watched])])
    with pytest.raises(KeyboardInterrupt):
        LossStep(lambda: []).predict(types.SimpleNamespace(training=True, opt=opt, xb=(), yb=()))
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
    one, other = cbnb.Callback(before_fit=lambda cb: press()), cbnb.Callback(after_fit=lambda cb: press())
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
