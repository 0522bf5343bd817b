"""What a run must put back, however it ends: learning rate sweeps, errors, interrupts, nested runs."""

import contextlib
import os
import random
import signal
import types
from array import array

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from cbnb.dialects import mindspore
from cbnb.undo import UndoStack
from helpers import IN_BATCH, RUN_EVENTS, RaiseIn, ab, exact, line_batches, line_learner, listener, noting, same_bits, seed

SILENT = types.MappingProxyType(dict(show_plot=False))


class Net(nn.Module):
    """Everything whose state could be forgotten: batch norm, dropout, a frozen part, a part in evaluation mode, a plain counter."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.fixed = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long), persistent=False)
        self.n_calls = 0
        for p in self.fixed.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.n_calls += 1
        return self.head(self.fixed(self.body(x)))


class Count(cbnb.Callback):
    """A callback with a memory, that takes part in everything."""

    def __init__(self):
        self.n, self.noted, self.mean = 0, [], {"loss": None}

    def after_batch(self):
        self.n += 1
        self.noted.append(random.random())
        np.random.rand()
        self.mean["loss"] = self.learn.loss
        self.extra = True


def net_learner(bs: int = 4, own_generator: bool = False, opt_func=torch.optim.AdamW, **kwargs) -> cbnb.Learner:
    seed()
    data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    generator = torch.Generator().manual_seed(5) if own_generator else None
    dls = cbnb.DataLoaders(DataLoader(data, bs, shuffle=True, generator=generator), DataLoader(data, bs), device="cpu")
    learn = cbnb.Learner(dls, Net(), nn.MSELoss(), opt_func, lr=1e-2, **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


def state_of(learn: cbnb.Learner) -> object:
    """Everything reachable from a learner, and the random generators, as something that compares bit for bit."""
    seen: dict[int, tuple[int, object]] = {}  # with the object, so that its id is not used again meanwhile
    generators = random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2:], exact(torch.get_rng_state())
    return frozen(learn, seen), generators


def frozen(value, seen):
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, range, slice)):
        return type(value).__name__, repr(value)
    if id(value) in seen:
        return "again", seen[id(value)][0]
    if isinstance(value, (tuple, frozenset)):
        return type(value).__name__, [frozen(v, seen) for v in value]
    seen[id(value)] = len(seen), value
    if isinstance(value, torch.Tensor):
        # a parameter must stay the same object, or the optimizer would lose it
        grad = None if value.grad_fn is not None or value.grad is None else exact(value.grad)
        return exact(value), value.requires_grad, grad, id(value) if isinstance(value, nn.Parameter) else None
    if isinstance(value, torch.Generator):
        return exact(value.get_state())
    if isinstance(value, (array, np.ndarray)):
        return type(value).__name__, value.tobytes()
    if isinstance(value, dict):
        return [(frozen(k, seen), frozen(v, seen)) for k, v in value.items()]
    if isinstance(value, (list, set)):
        return type(value).__name__, [frozen(v, seen) for v in value]
    if isinstance(value, types.MethodType):
        return value.__func__.__qualname__, frozen(value.__self__, seen)
    if hasattr(value, "__dict__") and not isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        # what is ready to be used again: lists of methods; the shapes of the first batch, in words
        ready = {"CallbackList": ("table", "_tables", "version"), "DataLoaders": ("_shapes",)}.get(type(value).__name__, ())
        mine = {
            k: v for k, v in sorted(vars(value).items()) if k not in ready and not k.startswith(("__", "_optimizer_step", "_zero_grad"))
        }
        return type(value).__qualname__, id(value) if isinstance(value, (nn.Module, cbnb.Callback)) else None, frozen(mine, seen)
    return type(value).__qualname__, id(value)


def differences(a, b, path=""):
    """Where two states differ, for the message of a failing test."""
    if a == b:
        return []
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{path}/{i}")]
    return [f"{path}: {str(a)[:150]} != {str(b)[:150]}"]


def experienced(**kwargs) -> cbnb.Learner:
    """A learner with a history, an optimizer with state, gradients left over, and modes of its own."""
    learn = net_learner(cbs=Count(), **kwargs)
    learn.fit(1)
    learn.model.train()
    learn.model.fixed.eval()
    learn.model.head(torch.ones(1, 4)).sum().backward()
    return learn


def test_state_notices_what_it_should():
    """The tests below would prove nothing if the comparison were blind."""
    changes = [
        lambda learn: learn.model.head.weight.data.add_(1e-7),
        lambda learn: learn.model.fixed.train(),
        lambda learn: learn.model.body[1].running_mean.add_(1),
        lambda learn: learn.model.head.weight.grad.add_(1),
        lambda learn: setattr(learn.model, "n_calls", 0),
        lambda learn: learn.opt.state[learn.model.head.weight]["exp_avg"].add_(1),
        lambda learn: learn.opt.param_groups[0].update(lr=1),
        lambda learn: random.random(),
        lambda learn: np.random.rand(),
        lambda learn: torch.rand(1),
        lambda learn: setattr(learn.count, "n", 0),
        lambda learn: learn.count.noted.append(1),
        lambda learn: learn.recorder.history[-1].epochs.append({}),
        lambda learn: learn.recorder.history[-1].raw_losses.append(1),
        lambda learn: setattr(learn, "epoch", 7),
        lambda learn: learn.dls.train.generator.manual_seed(3),
        lambda learn: learn.remove_cb(Count),
        lambda learn: setattr(learn.model.head, "weight", nn.Parameter(learn.model.head.weight.data)),
    ]
    for i, change in enumerate(changes):
        learn = experienced(own_generator=True)
        before = state_of(learn)
        assert state_of(learn) == before
        change(learn)
        assert state_of(learn) != before, i


def without_result(state_before, learn):
    """A finished sweep leaves its result, and nothing else."""
    learn.__dict__.pop("lr_finder_result", None)
    return differences(state_before, state_of(learn))


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("opt_func", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("settings", [dict(num_it=20), dict(end_lr=1e6), dict(start_lr=1e5, end_lr=1e8)])
def test_lr_find_changes_nothing(own_generator, opt_func, settings):
    learn = experienced(own_generator=own_generator, opt_func=opt_func)
    before = state_of(learn)
    learn.lr_find(**settings, **SILENT)
    assert not without_result(before, learn)


def test_lr_find_before_the_first_fit_changes_nothing():
    """Not even the optimizer is there afterwards."""
    learn = net_learner(cbs=Count())
    before = state_of(learn)
    learn.lr_find(num_it=20, **SILENT)
    assert not without_result(before, learn) and learn.opt is None


def watch_files(tmp_path, monkeypatch):
    """Have all files made there; to be called after a first fit, since torch makes a folder of its own then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


SWEEP_EVENTS = [name for name in RUN_EVENTS if name not in ("before_validate", "after_cancel_validate", "after_validate")]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError, SystemExit])
def test_lr_find_puts_everything_back_after_an_error_in_any_event_of_any_step(error, tmp_path, monkeypatch):
    """D05: nothing was put back, and files stayed behind."""
    learn = experienced(own_generator=True)
    watch_files(tmp_path, monkeypatch)
    before = state_of(learn)
    steps = (0, 1, 2, 7, 12, 19) if error in (ValueError, KeyboardInterrupt) else (0, 7)
    for name in SWEEP_EVENTS:
        for step in steps:
            if step and (name == "before_fit" or name not in IN_BATCH and step % 2):
                continue  # once a sweep, and once in two batches
            raiser = RaiseIn(name, error, order=70, when=lambda learn: learn.train_iter >= step)
            with pytest.raises(error):
                learn.lr_find(end_lr=0.1, num_it=22, stop_div=False, cbs=raiser, **SILENT)
            assert state_of(learn) == before, (name, step, differences(before, state_of(learn)))
    assert list(tmp_path.iterdir()) == []
    learn.fit(1)


@pytest.mark.parametrize("order", [-1000, 55])
def test_lr_find_puts_everything_back_whatever_the_order_of_the_culprit(order):
    learn = experienced()
    before = state_of(learn)
    for name in SWEEP_EVENTS:
        raiser = RaiseIn(name, KeyboardInterrupt, order=order, when=lambda learn: learn.train_iter >= 3 or name in ("before_fit",))
        try:
            learn.lr_find(num_it=8, cbs=raiser, **SILENT)
        except KeyboardInterrupt:
            pass
        else:
            learn.__dict__.pop("lr_finder_result")
        assert state_of(learn) == before, (name, differences(before, state_of(learn)))


def test_lr_find_puts_back_what_fails_outside_of_callbacks():
    """An error in the model, the loss, the loader or the optimizer."""
    learn = experienced()
    before = state_of(learn)

    def failing_loss(pred, y):
        if learn.train_iter == 2:
            raise ZeroDivisionError("in the loss")
        return nn.functional.mse_loss(pred, y)

    usual = learn.loss_func
    learn.loss_func = failing_loss
    with pytest.raises(ZeroDivisionError, match="in the loss"):
        learn.lr_find(**SILENT)
    learn.loss_func = usual
    assert not differences(before, state_of(learn))


@pytest.mark.parametrize("own_generator", [False, True])
def test_lr_find_does_not_change_the_fit_that_follows(own_generator):
    """With dropout, batch norm and shuffling."""
    alone, after = net_learner(own_generator=own_generator), None
    alone.fit(2)
    end_alone = torch.rand(1), random.random(), np.random.rand()
    after = net_learner(own_generator=own_generator)
    after.lr_find(num_it=30, **SILENT)
    after.fit(2)
    assert same_bits(alone.model, after.model)
    assert (torch.rand(1), random.random(), np.random.rand()) == end_alone
    assert alone.recorder.losses == after.recorder.losses and alone.recorder.values == after.recorder.values


class Meddles(cbnb.Callback):
    """Does to a learner what callbacks may do, and leaves it to others to undo."""

    def after_batch(self):
        learn = self.learn
        learn.extra = learn.train_iter
        learn.lr, learn.metrics, learn.wd, learn.n_epoch = 9.0, [], 0.5, 1000
        learn.model.extra = True
        learn.model.fixed.train()
        learn.model.head.requires_grad_(False)
        learn.model.fixed.requires_grad_(True)
        learn.opt.param_groups[0]["betas"] = (0.1, 0.2)
        learn.count.order = -3
        learn.count.n = -1
        if learn.train_iter == 2:
            learn.add_cb(cbnb.Callback(after_loss=lambda cb: None))
            learn.remove_cb(cbnb.Recorder)
            learn.model.body.append(nn.Identity())


@pytest.mark.filterwarnings("ignore:learn.lr is the rate of the next fit")
@pytest.mark.filterwarnings("ignore:You are shadowing")
@pytest.mark.filterwarnings("ignore:learn.lr was assigned during a fit")
def test_lr_find_puts_back_what_callbacks_did_to_the_learner():
    learn = experienced()
    before = state_of(learn)
    learn.lr_find(num_it=8, stop_div=False, cbs=Meddles, **SILENT)
    assert not without_result(before, learn)
    with pytest.raises(ValueError):
        learn.lr_find(
            num_it=8, stop_div=False, cbs=[Meddles, RaiseIn("after_loss", ValueError, when=lambda learn: learn.train_iter == 4)], **SILENT
        )
    assert not without_result(before, learn)
    learn.fit(1)


def test_lr_find_in_the_middle_does_not_change_the_fit_that_follows():
    learners = [net_learner(own_generator=True) for _ in range(2)]
    for learn, sweep in zip(learners, (False, True)):
        seed(1)
        learn.fit_one_cycle(2, 0.05)
        if sweep:
            learn.lr_find(num_it=30, **SILENT)
        learn.fit(1)
    assert same_bits(learners[0].model, learners[1].model)


def test_lr_find_leaves_no_files(tmp_path, monkeypatch):
    """D25: a sweep needed a disk that can be written to."""
    experienced()
    watch_files(tmp_path, monkeypatch)
    net_learner(path=tmp_path).lr_find(num_it=20, **SILENT)
    assert list(tmp_path.iterdir()) == []


def test_observers_see_nothing_of_lr_find_and_work_afterwards():
    seen = []
    learn = line_learner(cbs=noting(seen, run_in=("fit",)))
    seen.clear()
    learn.lr_find(num_it=20, **SILENT)
    assert seen == [] and len(learn.recorder.history) == 0
    learn.fit(1)
    assert len(seen) == 28


def swap_logger(self):
    self.learn.undo.set(self.learn, "logger", lambda row: None)


@pytest.mark.parametrize("order", [-50, 0, 70])
@pytest.mark.parametrize("name", RUN_EVENTS)
def test_interrupt_in_any_event(name, order):
    """D05: the partial epoch is kept, temporary things go, the next fit works."""
    seen = []
    raiser = RaiseIn(name, KeyboardInterrupt, order, when=lambda learn: name.endswith("_fit") or learn.epoch == 1 and learn.train_iter > 4)
    if name not in IN_BATCH:
        raiser.when = lambda learn: name.endswith("_fit") or learn.epoch == 1
    learn = line_learner(4, cbs=noting(seen, -1000))
    learn.fit(1)
    listed, seen[:] = learn.cbs, []
    with pytest.raises(cbnb.FitInterrupted) as caught:
        learn.fit(3, lr=0.01, cbs=[raiser, cbnb.Callback(before_fit=swap_logger)])
    assert isinstance(caught.value, KeyboardInterrupt) and raiser.done
    lines = caught.value._render_traceback_()
    assert len(lines) == 1 and "\n" not in lines[0] and "\x1b" not in lines[0] and "learn is usable" in lines[0]
    assert learn.cbs == listed and learn.logger is print and not learn.running
    assert learn.opt.param_groups[0]["lr"] == 0.1
    assert learn.pred is None and learn.loss is None and learn.loss_grad is None
    if name not in ("after_fit", "after_cancel_fit"):
        assert seen[-2:] == ["after_cancel_fit", "after_fit"] and seen.count("after_fit") == 1
    run = learn.recorder.history[-1]
    if name not in ("before_fit", "after_cancel_fit") or order > 50:  # else the recorder has not heard of this fit
        assert run.status == "interrupted" and len(learn.recorder.history) == 2
        assert sum(row["step"] is not None for row in run.epochs) == len(run.epochs)
        assert run.n_steps == (run.epochs[-1]["step"] if run.epochs else 0)
        assert all(row["complete"] for row in run.epochs[:-1])
    learn.fit(1)
    assert learn.recorder.history[-1].status == "done" and learn.recorder.history[-1].n_steps == 4


def test_interrupt_in_mid_epoch_is_in_the_history():
    learn = line_learner(4, cbs=RaiseIn("after_backward", KeyboardInterrupt, when=lambda learn: learn.train_iter == 6))
    with pytest.raises(cbnb.FitInterrupted, match="stopped in epoch 1 at batch 2"):
        learn.fit(3)
    run = learn.recorder.history[-1]
    assert [(row["epoch"], row["step"], row["complete"]) for row in run.epochs] == [(0, 4, True), (1, 6, False)]
    assert run.epochs[1]["train_loss"] == pytest.approx(sum(run.raw_losses[4:]) / 2) and run.epochs[1]["valid_loss"] is None
    assert learn.recorder.iters == [4, 6] and run.n_steps == 6


def test_interrupt_before_the_first_batch():
    """No batch is named, neither None nor one of the fit before."""
    learn = line_learner(4)
    for _ in range(2):
        with pytest.raises(cbnb.FitInterrupted) as caught:
            learn.fit(1, cbs=RaiseIn("before_fit", KeyboardInterrupt, 55))
        assert "stopped in epoch 0" in str(caught.value) and "batch" not in str(caught.value) and "usable" in str(caught.value)
        learn.fit(1)


@pytest.mark.parametrize(
    "event, phase, batch",
    [("after_train", "train", ""), ("before_epoch", "train", ""), ("before_train", "train", ""), ("before_batch", "train", " at batch 0")]
    + [
        ("after_validate", "valid", ""),
        ("after_epoch", "valid", ""),
        ("after_cancel_epoch", "train", ""),
        ("after_loss", "valid", " at validation batch 0"),
    ],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, cbnb.CancelFitException])
def test_a_batch_is_only_named_where_there_is_one(error, event, phase, batch):
    """After an epoch, it was the last batch of the validation."""
    said = []
    learn = line_learner(cbs=listener(lambda cb, name: name == "after_cancel_fit" and said.append(cb.learn.stopped_where())))
    learn.add_cb(RaiseIn(event, error, when=lambda learn: learn.epoch == 1, phase="validate" if phase == "valid" else phase))
    try:
        learn.fit(3)
    except cbnb.FitInterrupted as e:
        assert str(e) == f"{said[0]}; learn is usable"
    assert said == [f"stopped in epoch 1{batch}"]


def test_a_validation_within_a_batch_leaves_its_name():

    def look(cb):
        cb.learn.validate()
        if cb.learn.iter == 1:
            interrupt()

    with pytest.raises(cbnb.FitInterrupted, match="stopped in epoch 0 at batch 1"):
        line_learner().fit(1, cbs=cbnb.Callback(before_step=look))


def test_a_second_interrupt_during_the_ending_still_undoes_everything():
    stubborn = listener(lambda cb, name: interrupt() if name in ("before_step", "after_cancel_fit", "after_fit") else None)
    learn = line_learner()
    with pytest.raises(KeyboardInterrupt):
        learn.fit(1, lr=0.5, cbs=stubborn)
    assert stubborn not in learn.cbs and not learn.running
    learn.fit(1)
    assert learn.opt.param_groups[0]["lr"] == 0.1


def interrupt():
    raise KeyboardInterrupt


def fails(message):
    raise OSError(message)


def test_an_error_while_undoing_does_not_hide_the_first_one():
    done = []

    def register(self):
        self.learn.undo.callback(done.append, "first")
        self.learn.undo.callback(fails, "in undo")
        self.learn.undo.callback(done.append, "last")

    learn = line_learner()
    with pytest.raises(ValueError, match="the one that matters") as caught:
        learn.fit(1, lr=0.5, cbs=[cbnb.Callback(before_fit=register), RaiseIn("after_step", ValueError("the one that matters"))])
    assert done == ["last", "first"] and any("in undo" in note for note in caught.value.__notes__)
    assert not learn.running and learn.opt.param_groups[0]["lr"] == 0.1 and len(learn.cbs) == 2


def test_several_errors_while_undoing():
    """Each is undone, even if others fail; a fit that went well then reports the failure."""
    done = []

    def register(self):
        for i in range(4):
            self.learn.undo.callback(done.append, i)
            self.learn.undo.callback(fails, f"undo {i}")

    learn = line_learner()
    with pytest.raises(OSError, match="undo"):
        learn.fit(1, lr=0.5, cbs=cbnb.Callback(before_fit=register))
    assert done == [3, 2, 1, 0] and not learn.running and learn.opt.param_groups[0]["lr"] == 0.1
    with pytest.raises(cbnb.FitInterrupted):
        learn.fit(1, cbs=[cbnb.Callback(before_fit=register), RaiseIn("after_step", KeyboardInterrupt)])
    assert not learn.running
    learn.fit(1)


def test_undo_set_puts_back_values_and_absences():
    learn = line_learner()
    learn.note = "mine"

    def change(self):
        self.learn.undo.set(self.learn, "note", "for now")
        self.learn.undo.set(self.learn, "note", "for now, again")
        self.learn.undo.set(self.learn.model, "new", 1)
        self.learn.undo.set(self.learn.model, "forward", lambda x: self.learn.model.a * x)

    learn.fit(1, cbs=cbnb.Callback(before_fit=change))
    assert learn.note == "mine" and not hasattr(learn.model, "new") and "forward" not in vars(learn.model)
    assert learn.model.b.item() == 0 and learn.model.a.item() > 0  # the swapped forward was used


def test_hooks_and_swaps_end_with_the_fit_after_an_outer_cancel():
    """D04: cancels of outer levels skip the inner after events; undo does not depend on them."""

    class Wraps(cbnb.Callback):
        def before_batch(self):
            handle = self.learn.model.register_forward_hook(lambda *args: None)
            self.learn.undo.callback(handle.remove)

    for error in (cbnb.CancelEpochException, cbnb.CancelFitException, ValueError, KeyboardInterrupt):
        learn = line_learner(cbs=[Wraps, RaiseIn("after_loss", error)])
        try:
            learn.fit(1)
        except (ValueError, KeyboardInterrupt):
            pass
        assert not learn.model._forward_hooks


def test_run_false_holds_for_one_run():
    """It ends after an error, too (D05)."""
    seen = []
    cb = noting(seen)
    learn = line_learner(cbs=cb)
    seen.clear()
    cb.run = False
    learn.fit(1)
    assert seen == [] and cb.run
    cb.run = False
    with pytest.raises(ValueError):
        learn.fit(1, cbs=RaiseIn("after_loss", ValueError))
    assert seen == [] and cb.run
    learn.fit(1)
    assert len(seen) == 28


def history_of(learn):
    return [
        (run.status, list(run.raw_losses), [{k: v for k, v in row.items() if k != "time"} for row in run.epochs])
        for run in learn.recorder.history
    ]


NESTED = {
    "validate": lambda learn: learn.validate(),
    "validate on another loader": lambda learn: learn.validate(dl=line_batches(3)),
    "validate on the training loader": lambda learn: learn.validate(0),
    "get_preds": lambda learn: learn.get_preds(),
    "get_preds with everything": lambda learn: learn.get_preds(0, with_input=True, with_loss=True, with_decoded=True),
    "validate in get_preds": lambda learn: learn.get_preds(cbs=cbnb.Callback(after_pred=inner_validate)),
    "get_preds in validate": lambda learn: learn.validate(cbs=cbnb.Callback(before_validate=inner_preds)),
    "validate in validate": lambda learn: learn.validate(cbs=cbnb.Callback(after_batch=inner_validate)),
}


def inner_preds(self):
    if self.learn.purpose == "validate":
        self.learn.get_preds()


def inner_validate(self):
    if not hasattr(self, "inside"):
        self.inside = True
        self.learn.validate()
        del self.inside


class Nest(cbnb.Callback):
    """Evaluates in every occurrence of an event, and notes the loop's state around it."""

    def __init__(self, host, what):
        super().__init__(**{host: lambda self: self.evaluate()})
        self.what, self.inside, self.n, self.changed = what, False, 0, []

    def evaluate(self):
        if self.inside:
            return
        self.inside, learn = True, self.learn
        names = "dl n_iter iter epoch train_iter pct_train training n_epoch xb yb pred loss loss_grad purpose".split()
        before = {name: getattr(learn, name) for name in names}, [m.training for m in learn.model.modules()]
        self.what(learn)
        after = {name: getattr(learn, name) for name in names}, [m.training for m in learn.model.modules()]
        self.changed += [name for name in names if before[0][name] is not after[0][name]] + ["modes"] * (before[1] != after[1])
        self.inside, self.n = False, self.n + 1


@pytest.mark.parametrize("kind", NESTED)
def test_nested_evaluation_changes_nothing_of_the_fit(kind):
    """D01, D02, D12: it hung, or the rest of the epoch was not trained, or the record was wiped."""
    plain = line_learner(3, metrics=mae)
    plain.fit(2)
    for host in RUN_EVENTS:
        if host.startswith("after_cancel"):
            continue
        for order in (0, 70):
            nest = Nest(host, NESTED[kind])
            nest.order = order
            learn = line_learner(3, metrics=mae, cbs=nest)
            learn.fit(2)
            assert nest.n > 0 and nest.changed == [], (host, order, nest.changed)
            assert ab(learn) == ab(plain), (host, order)
            assert history_of(learn) == history_of(plain), (host, order)
            assert (learn.train_iter, learn.epoch) == (plain.train_iter, plain.epoch)
            assert learn.final_record == plain.final_record, (host, order)


def mae(pred, y):
    return (pred - y).abs().mean()


@pytest.mark.parametrize("kind", NESTED)
def test_evaluation_outside_a_fit_leaves_no_trace(kind):
    """D12: history and counters were wiped, and the model was left in evaluation mode."""
    learn = experienced(metrics=mae) if "another" not in kind else line_learner(metrics=mae)
    if "another" in kind:
        learn.fit(1)
    learn.remove_cb(Count)
    before, _ = state_of(learn)
    NESTED[kind](learn)
    after, _ = state_of(learn)  # a torch DataLoader draws a random number when an iteration begins
    assert not differences(before, after)


def test_validate_twice_gives_the_same():
    learn = line_learner(metrics=mae)
    learn.fit(1)
    first, second = learn.validate(), learn.validate()
    assert first == second == [pytest.approx(5.3248), pytest.approx(1.92)]
    assert learn.final_record == learn.recorder.values[0]


def test_evaluation_restores_the_mode_of_each_module_after_an_error():
    learn = net_learner()
    learn.model.train()
    learn.model.fixed.eval()
    modes = [m.training for m in learn.model.modules()]
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            learn.validate(cbs=RaiseIn("after_pred", error, phase="validate"))
        with pytest.raises(error):
            learn.get_preds(cbs=RaiseIn("after_pred", error, phase="validate"))
        assert [m.training for m in learn.model.modules()] == modes
        assert not learn.running and learn.logger is print and learn.create_mbar


@pytest.mark.parametrize("start", [lambda learn: learn.fit(1), lambda learn: learn.lr_find(num_it=10, show_plot=False)])
def test_a_fit_within_a_run_is_refused(start):
    learn = line_learner()
    with pytest.raises(RuntimeError, match="already running .epoch 0"):
        learn.fit(1, cbs=cbnb.Callback(after_step=lambda self: start(self.learn)))
    learn.fit(1)


def test_hypers_after_a_fit_are_what_they_were():
    """D40: momentum kept the value at which a schedule ended; D34: a weight decay given to one fit stuck."""
    learn = line_learner(opt_func=torch.optim.AdamW)
    learn.create_opt()
    before = [{k: v for k, v in g.items() if k != "params"} for g in learn.opt.param_groups]
    for fit in (
        lambda: learn.fit(1, lr=0.3, wd=0.5),
        lambda: learn.fit_one_cycle(1, 0.3, wd=0.5),
        lambda: learn.fit_flat_cos(1, 0.3),
        lambda: pytest.raises(ValueError, learn.fit_one_cycle, 1, 0.3, cbs=RaiseIn("after_batch", ValueError)),
        lambda: pytest.raises(KeyboardInterrupt, learn.fit_one_cycle, 1, 0.3, cbs=RaiseIn("after_batch", KeyboardInterrupt)),
    ):
        fit()
        assert [{k: v for k, v in g.items() if k != "params"} for g in learn.opt.param_groups] == before


def test_nothing_of_the_graph_is_kept_after_a_fit():
    """D37: loss_grad and pred kept the last batch alive."""
    learn = line_learner()
    for fit in (
        lambda: learn.fit(1),
        lambda: pytest.raises(ValueError, learn.fit, 1, cbs=RaiseIn("after_loss", ValueError)),
        lambda: pytest.raises(KeyboardInterrupt, learn.fit, 1, cbs=RaiseIn("after_loss", KeyboardInterrupt)),
    ):
        fit()
        held = [getattr(learn, name) for name in ("dl", "pred", "loss", "loss_grad")]
        assert held == [None] * 4 and learn.xb == learn.yb == (None,)
    losses = []
    learn.fit(1, cbs=cbnb.Callback(after_batch=lambda self: losses.append(self.learn.loss)))
    assert all(not loss.requires_grad for loss in losses)


def test_a_second_interrupt_waits_until_all_is_undone():
    """The impatient press Ctrl-C twice; the second one arrives while the first is being dealt with."""
    done = []

    def press(learn):
        os.kill(os.getpid(), signal.SIGINT)
        done.append("pressed")

    class Stops(cbnb.Callback):
        def before_fit(self):
            self.learn.undo.callback(done.append, "undone")
            self.learn.undo.callback(press, self.learn)

        def after_step(self):
            raise KeyboardInterrupt

    learn = line_learner()
    with pytest.raises(KeyboardInterrupt):
        learn.fit_one_cycle(1, cbs=Stops())
    assert done == ["pressed", "undone"] and not learn.running
    assert {type(cb).__name__ for cb in learn.cbs} == {"TrainEvalCallback", "Recorder"}
    assert learn.opt.param_groups[0]["lr"] == 0.1
    learn.fit(1)


# Gradients: none goes from one fit into the next


class NotesNorm(cbnb.Callback):
    def before_fit(self):
        self.norms = []

    def before_step(self):
        self.norms.append(round(float(self.learn.model.a.grad.norm()), 6))


def leaves_gradients(error):
    return RaiseIn("after_backward", error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, cbnb.CancelFitException, cbnb.CancelBatchException])
def test_no_gradients_are_left_however_a_fit_ends(error):
    """A fit that ended between backward and the step left its gradients, and the next one added its own to them."""
    learn, norm = line_learner(1, lr=0.0), NotesNorm()
    learn.fit(1, cbs=norm)
    once = norm.norms
    try:
        learn.fit(1, cbs=leaves_gradients(error))
    except (KeyboardInterrupt, ValueError):
        pass
    assert learn.model.a.grad is None and learn.model.b.grad is None
    learn.fit(1, cbs=norm)
    assert norm.norms == once == [4.0]


def test_a_fit_that_was_stopped_for_nan_gradients_leaves_a_learner_that_trains():
    class OneBad(cbnb.Callback):
        def after_backward(self):
            self.learn.model.a.grad.fill_(float("nan"))

    learn = line_learner(cbs=cbnb.TerminateOnNaN(check_grads=True))
    learn.fit(1, cbs=OneBad())
    assert ab(learn) == (0.0, 0.0)
    learn.fit(1)
    assert ab(learn) == (pytest.approx(0.72), pytest.approx(1.08)) and learn.recorder.last().status == "done"


def test_gradients_from_before_a_fit_are_not_in_its_first_update():
    """Somebody called backward by hand, to look at something."""
    learn = line_learner()
    learn.model(torch.ones(3)).sum().backward()
    learn.fit(1)
    assert ab(learn) == (pytest.approx(0.72), pytest.approx(1.08))


def test_lr_find_puts_gradients_back_and_does_not_use_them():
    plain, learn = line_learner(4), line_learner(4)
    learn.model(torch.ones(3)).sum().backward()
    losses = [one.lr_find(num_it=8, stop_div=False, **SILENT).raw_losses for one in (plain, learn)]
    assert losses[0] == losses[1] and learn.model.a.grad.item() == 3.0
    with pytest.raises(KeyboardInterrupt):
        learn.lr_find(num_it=8, cbs=leaves_gradients(KeyboardInterrupt), **SILENT)
    assert learn.model.a.grad.item() == 3.0


def test_a_step_with_its_own_way_of_zeroing_is_asked_too():
    """Its second optimizer is not the learner's."""

    class Two(cbnb.step.Step):
        def zero_grad(self, learn):
            super().zero_grad(learn)
            extra.grad = None

    extra = nn.Parameter(torch.ones(()))
    learn = line_learner(train_step=Two())

    class Uses(cbnb.Callback):
        def after_loss(self):
            self.learn.loss_grad = self.learn.loss_grad + extra

    with pytest.raises(ValueError):
        learn.fit(1, cbs=[Uses(), leaves_gradients(ValueError)])
    assert extra.grad is None and learn.model.a.grad is None


# The mode of the model


@pytest.mark.parametrize("where", ["after_batch", "after_step", "before_batch"])
def test_a_callback_that_forgets_train_spoils_no_further_batch(where):
    """The rest of the epoch was trained in evaluation mode, and nobody was told."""
    modes = []
    noted = cbnb.Callback(after_pred=lambda self: modes.append(self.learn.model.training))

    def look(self):
        if self.learn.training and self.learn.iter == 1 and self.learn.epoch == 0:
            self.learn.model.eval()

    learn = line_learner(4, cbs=noted, valid=False)
    with pytest.warns(UserWarning, match=r"model.eval\(\) in the middle of epoch 0.*switched the modes back") as warned:
        learn.fit(2, cbs=cbnb.Callback(**{where: look}))
    assert len(warned) == 1 and warned[0].filename == __file__
    assert modes == [True, where != "before_batch"] + [True] * 6  # before a batch, it may be meant for that one


def test_a_callback_that_calls_train_in_validation_spoils_no_further_batch():
    modes = []
    noted = cbnb.Callback(after_pred=lambda self: self.learn.training or modes.append(self.learn.model.training))
    dls = cbnb.DataLoaders(line_batches(1), line_batches(3), device="cpu")
    learn = line_learner(dls=dls, cbs=noted)
    with pytest.warns(UserWarning, match=r"a callback, or the model itself, called model.train\(\) in the middle of epoch 0"):
        learn.fit(1, cbs=cbnb.Callback(after_batch=lambda self: self.learn.training or self.learn.iter or self.learn.model.train()))
    assert modes == [False] * 3


@pytest.mark.filterwarnings("error")
def test_modes_that_are_set_on_purpose_stay():
    """Before the phase begins, for the whole model or for a part of it."""
    modes = []

    class Freezes(cbnb.Callback):
        def before_train(self):
            (self.learn.model if self.whole else self.learn.model.fixed).eval()

        def after_pred(self):
            modes.append((self.learn.model.training, self.learn.model.fixed.training))

    for whole, expected in ((False, (True, False)), (True, (False, False))):
        freezes = Freezes()
        freezes.whole = whole
        modes.clear()
        net_learner(cbs=freezes).fit(1)
        assert modes[:2] == [expected] * 2


def test_parts_in_evaluation_mode_stay_so_when_the_model_is_switched_back():
    class Part(cbnb.Callback):
        def before_train(self):
            self.learn.model.fixed.eval()

        def after_batch(self):
            if self.learn.training:
                seen.append((self.learn.model.body[2].training, self.learn.model.fixed.training))
                self.learn.model.eval()

    seen = []
    with pytest.warns(UserWarning, match="switched the modes back"):
        net_learner(cbs=Part()).fit(1)
    assert seen == [(True, False)] * 2


def test_a_mindspore_callback_that_leaves_the_model_in_eval_mode():
    class Looks(mindspore.Callback):
        def on_train_step_end(self, run_context):
            learn.model.eval()

    modes = []
    learn = line_learner(4, valid=False, cbs=[cbnb.Callback(after_pred=lambda self: modes.append(self.learn.model.training)), Looks()])
    with pytest.warns(UserWarning, match="switched the modes back"):
        learn.fit(1)
    assert modes == [True] * 4


@pytest.mark.parametrize("name", ["weight", "running_mean", "layer", "plain", "missing"])
@pytest.mark.parametrize("kind", ["parameter", "module", "number"])
def test_an_attribute_of_a_module_goes_back_to_where_it_was(name, kind):
    model = nn.BatchNorm1d(2)
    model.layer, model.plain = nn.ReLU(), torch.relu
    before = {held: dict(vars(model)[held]) for held in ("_parameters", "_buffers", "_modules")}
    plain = {k for k in vars(model) if k[0] != "_"}
    state = model.state_dict().keys()
    value = dict(parameter=nn.Parameter(torch.ones(2)), module=nn.Tanh(), number=3)[kind]
    with contextlib.suppress(TypeError), UndoStack() as undo:  # torch refuses a number in place of a parameter
        undo.set(model, name, value)
        assert getattr(model, name) is value
    for held, was in before.items():
        now = vars(model)[held]
        assert now.keys() == was.keys() and all(now[k] is was[k] for k in was)
    assert {k for k in vars(model) if k[0] != "_"} == plain and (name != "plain" or model.plain is torch.relu)
    assert model.state_dict().keys() == state


def test_an_attribute_of_a_class_goes_back():
    class Old:
        x = 1

    class New(Old):
        pass

    with UndoStack() as undo:
        undo.set(Old, "x", 2)
        undo.set(New, "x", 3)
        assert (Old.x, New.x) == (2, 3)
    assert Old.x == New.x == 1 and "x" not in vars(New)
