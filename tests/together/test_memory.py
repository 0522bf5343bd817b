"""Nothing of a batch outlives a run that failed: not in the learner, not in its callbacks, not in the traceback."""

import gc
import re
import signal
import sys
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.basics import failures
from cbnb.callbacks.hooks import ActivationStats
from cbnb.step import Step
from helpers import line_learner, live

PLACES = ("forward", "loss", "backward", "callback", "loader", "validation")


def out_of_memory():
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


class Breaks:
    """Raises in one place, in the third batch; what it raises is kept nowhere else."""

    def __init__(self, where=None, make=out_of_memory):
        self.where, self.make, self.learn = where, make, None

    def at(self, place):
        if place == self.where and (place == "loader" or self.learn.iter == 2 and self.learn.training == (place != "validation")):
            self.make_it()

    def make_it(self):
        if self.make is signal.SIGINT:
            signal.raise_signal(signal.SIGINT)
        else:
            raise self.make()


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, breaks):
        ctx.breaks = breaks
        ctx.save_for_backward(x.clone())
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (mine,) = ctx.saved_tensors
        ctx.breaks.at("backward")
        return grad, None


class Net(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.inner, self.out, self.norm = nn.Linear(8, 16), nn.Linear(16, 3), nn.BatchNorm1d(16)
        self.breaks = breaks

    def forward(self, x):
        hidden = self.norm(self.inner(x)).relu()
        self.breaks.at("forward" if self.training else "validation")
        return BadBackward.apply(self.out(hidden), self.breaks)


class Items(torch.utils.data.Dataset):
    def __init__(self, breaks):
        self.breaks = breaks

    def __len__(self):
        return 40

    def __getitem__(self, i):
        item = torch.full((8,), float(i))
        if i == 11:
            self.breaks.at("loader")
        return item, torch.tensor(i % 3)


class BreaksToo(cbnb.Callback):
    order = 30

    def __init__(self, breaks):
        self.breaks = breaks

    def after_pred(self):
        mine = self.learn.pred * 2
        self.breaks.at("callback")
        del mine


def no_difference(pred, y):
    return 0.0


class Named(Step):
    def loss(self, learn):
        super().loss(learn)
        self.set_loss(learn, dict(loss=learn.loss_grad, half=learn.loss_grad / 2))


EXTRAS = {
    "plain": lambda: dict(),
    "accumulation": lambda: dict(cbs=cbnb.GradientAccumulation(16)),
    "mixup": lambda: dict(cbs=cbnb.MixUp(0.4)),
    "clip": lambda: dict(cbs=cbnb.GradientClip(1.0)),
    "hooks": lambda: dict(cbs=ActivationStats()),
    "metrics": lambda: dict(metrics=[cbnb.accuracy, cbnb.AccumMetric(no_difference)]),
    "training metrics": lambda: dict(metrics=cbnb.AccumMetric(no_difference), cbs=cbnb.Recorder(train_metrics=True)),
    "named losses": lambda: dict(train_step=Named()),
}


def make(breaks, **kwargs):
    def loss(pred, y):
        found = nn.functional.cross_entropy(pred, y, reduction=getattr(loss, "reduction", "mean"))
        if breaks.learn.training:
            breaks.at("loss")
        return found

    loss.reduction = "mean"
    dls = cbnb.DataLoaders(*(torch.utils.data.DataLoader(Items(breaks), 4) for _ in range(2)), device="cpu")
    cbs = [BreaksToo(breaks), *(c for c in [kwargs.pop("cbs", None)] if c)]
    breaks.learn = cbnb.Learner(dls, Net(breaks), loss, torch.optim.SGD, cbs=cbs, **kwargs)
    breaks.learn.keep_restore_points = 0  # they are copies of the weights
    return breaks.learn


def of_the_learner(learn):
    """What it may hold: weights, buffers, the optimizer's state; numbers of the history are tensors without dimensions."""
    opt = [v for s in (learn.opt.state.values() if learn.opt else ()) for v in s.values()]
    return {id(t) for t in [*learn.model.parameters(), *learn.model.buffers(), *opt]}


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """What earlier tests have left is not looked at again by each `gc.collect` and `live` of this file."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def no_gc():
    """No garbage collection, and `live` looks only at what comes from here on."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def left_by(learn, before):
    """Shapes of tensors that are new, but for numbers, and for the histograms that ActivationStats keeps on purpose."""
    known = {id(t) for t in before} | of_the_learner(learn)
    return [tuple(t.shape) for t in live(known) if t.ndim and t.shape[-1] != 45]


def quiet(learn):
    learn.remove_cb(cbnb.ProgressCallback)
    return learn.no_logging()


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("where", PLACES)
def test_out_of_memory_leaves_no_batch(where, extra, no_gc):
    learn = make(breaks := Breaks(where), **EXTRAS[extra]())
    before = live()
    with quiet(learn):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            learn.fit(1)
        assert left_by(learn, before) == []
        assert all(p.grad is None for p in learn.model.parameters()) and learn.pred is None and learn.xb == (None,)
        breaks.where = None
        learn.fit(1)
    assert str(caught.value).startswith("CUDA out of memory")


@pytest.mark.parametrize("where", PLACES)
def test_another_error_keeps_its_variables_until_the_next_run(where, no_gc, monkeypatch):
    """As %debug needs them."""
    learn, other = make(Breaks(where, lambda: ValueError("a bug"))), line_learner()
    before = [*live(), *other.model.parameters()]
    with quiet(learn), pytest.raises(ValueError, match="^a bug") as caught:
        learn.fit(1)
    assert learn.pred is None and all(p.grad is None for p in learn.model.parameters())
    if where != "loader":
        assert (4, 8) in left_by(learn, before)
        monkeypatch.setattr(sys, "last_value", ValueError("mine"), raising=False)
        other.validate()
        assert (4, 8) in left_by(learn, before)
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    other.validate()
    assert left_by(learn, before) == []
    shown = traceback.format_exception(caught.value)
    assert any("self.make_it()" in line for line in shown) and any("learn.fit(1)" in line for line in shown)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_leaves_no_batch(where, extra, no_gc):
    learn = make(breaks := Breaks(where, signal.SIGINT), **EXTRAS[extra]())
    before = live()
    with quiet(learn):
        with pytest.raises(cbnb.FitInterrupted) as caught:
            learn.fit(1)
        assert left_by(learn, before) == []
        breaks.where = None
        learn.fit(1)
    assert "learn is usable" in str(caught.value)


CALLS = {
    "validate": lambda learn: learn.validate(),
    "get_preds": lambda learn: learn.get_preds(),
    "lr_find": lambda learn: learn.lr_find(show=False),
}


@pytest.mark.parametrize("error", [out_of_memory, signal.SIGINT, lambda: ValueError("a bug")], ids=["oom", "ctrl-c", "a bug"])
@pytest.mark.parametrize("call", CALLS)
def test_other_runs_leave_no_batch_either(call, error, no_gc, monkeypatch):
    where = "forward" if call == "lr_find" else "validation"
    learn, other = make(Breaks(where, error), metrics=cbnb.AccumMetric(no_difference)), line_learner()
    before = live()
    with quiet(learn), pytest.raises(BaseException) as caught:
        CALLS[call](learn)
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    other.validate()
    gone = [t for t in left_by(learn, before) if t != ()]
    assert gone == [] and caught.value is not None


def test_the_note_names_batch_and_place():
    learn = make(Breaks("forward"))
    with quiet(learn), pytest.raises(torch.OutOfMemoryError) as caught:
        learn.fit(1)
    assert caught.value.__notes__[-2:] == [
        "in epoch 0, training batch 2",
        "the batch had 4 items: tensor 4x8, tensor 4. Its memory has been freed, so you can fit again with a smaller batch",
    ]


def test_an_error_of_the_loader_gets_no_note_about_a_batch():
    learn = make(Breaks("loader", MemoryError))
    with quiet(learn), pytest.raises(MemoryError) as caught:
        learn.fit(1)
    assert not any("the batch had" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "error, is_one",
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9.07 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_an_out_of_memory_error_is(error, is_one):
    wrapped, group = KeyError("mine"), ExceptionGroup("several", [ValueError(), error])
    wrapped.__cause__ = error
    assert [failures.is_out_of_memory(e) for e in (error, wrapped, group)] == [is_one] * 3


def test_errors_that_were_raised_from_others_are_followed(no_gc):
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x):
            hidden = x + 1
            try:
                self.fails(hidden * 2)
            except RuntimeError as e:
                raise ValueError("in my layer") from e

        def fails(self, mine):
            raise out_of_memory()

    learn = make(Breaks())
    learn.model = Wraps()
    before = live()
    with quiet(learn), pytest.raises(ValueError, match="in my layer") as caught:
        learn.fit(1)
    assert left_by(learn, before) == [] and caught.value.__cause__ is not None


def test_an_error_that_was_handled_before_the_fit_is_left_alone():
    def mine():
        value = 7
        raise KeyError(value)

    learn = make(Breaks("forward"))
    with quiet(learn), pytest.raises(torch.OutOfMemoryError) as caught:
        try:
            mine()
        except KeyError:
            learn.fit(1)
    earlier = caught.value.__context__
    assert earlier.__traceback__.tb_next.tb_frame.f_locals["value"] == 7


def test_an_error_that_was_raised_from_that_of_a_run_is_released_too(no_gc, monkeypatch):
    learn, other = make(Breaks("forward", lambda: ValueError("a bug"))), line_learner()
    before = [*live(), *other.model.parameters()]
    with quiet(learn), pytest.raises(KeyError) as caught:
        try:
            learn.fit(1)
        except ValueError as e:
            raise KeyError("mine") from e
    assert (4, 8) in left_by(learn, before)
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    other.validate()
    assert left_by(learn, before) == []


def test_a_callback_that_catches_an_error_of_a_nested_run_goes_on():
    learn = make(Breaks("validation"))

    class Tries(cbnb.Callback):
        def after_train(self):
            try:
                self.learn.validate()
            except torch.OutOfMemoryError:
                self.learn.dls = cbnb.DataLoaders(self.learn.dls.train, device="cpu")

    with quiet(learn):
        learn.fit(1, cbs=Tries())
    assert learn.recorder.history[-1].status == "done"


# in IPython

CODE = """
import sys; sys.path[:0] = [{tests!r}, {tests!r} + "/.."]
import gc; gc.disable()
from test_memory import *
learn = make(Breaks("forward", lambda: {error}))
before = live()
done = None
learn.fit(1)
"""


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError('CUDA out of memory')", "ValueError('a bug')"])
def test_what_ipython_keeps_of_an_error(error):
    shell_of = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    from IPython.utils.capture import capture_output

    shell = shell_of()
    kept = {name: vars(sys).get(name) for name in ("last_type", "last_value", "last_traceback", "last_exc")}
    was = gc.isenabled()
    try:
        with capture_output() as shown:
            result = shell.run_cell(CODE.format(tests=str(Path(__file__).parent), error=error))
        learn, before = shell.user_ns["learn"], shell.user_ns["before"]
        assert sys.last_traceback is not None and type(result.error_in_exec).__name__ in error
        text = re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)
        assert "self.breaks.at(" in text
        if "bug" in error:
            assert (4, 8) in left_by(learn, before)
            frames = [frame for frame, _ in traceback.walk_tb(sys.last_traceback)]
            assert any(isinstance(f.f_locals.get("hidden"), torch.Tensor) for f in frames)  # as for %debug
            frames = None
            with capture_output():
                shell.run_cell("learn.model.breaks.where = None; learn.fit(1)")
        assert left_by(learn, before) == []
    finally:
        vars(sys).update(kept)
        if was:
            gc.enable()


def test_a_kernel_has_its_memory_back():
    nbclient = pytest.importorskip("nbclient")
    from nbformat.v4 import new_code_cell, new_notebook

    import notebooks

    cells = [CODE.format(tests=str(Path(__file__).parent), error="out_of_memory()"), "left_by(learn, before)"]
    cells += ["learn.model.breaks.where = None; learn.fit(1); learn.recorder.history[-1].status"]
    nb = new_notebook(cells=[new_code_cell(source) for source in cells])
    with notebooks.clean_kernels():
        nbclient.NotebookClient(nb, timeout=120, kernel_name="python3", allow_errors=True).execute()
    [error] = [o for o in nb.cells[0].outputs if o.output_type == "error"]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(error.traceback))
    assert error.ename == "OutOfMemoryError" and "Net.forward(self, x)" in text and "_all_batches(" not in text
    results = [[o["data"]["text/plain"] for o in c.outputs if o.output_type == "execute_result"] for c in nb.cells[1:]]
    assert results == [["[]"], ["'done'"]]
