"""Callbacks in MindSpore's style: an independent table of what they are told, and what goes wrong."""

import copy
import pickle
import re
import subprocess
import sys
import time
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.steps import EvalStep, MultiLossStep
from cbnb.dialects import mindspore as ms
from cbnb.dialects.mindspore_callbacks import shown_loss
from cbnb.dialects.mindspore_context import as_output
from cbnb.dialects.mindspore_metrics import ErrorMetric, as_tensor, feed
from helpers import line_batches

# ---------------------------------------------------------------- an oracle of 40 lines

PLACES = ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
EVENTS = [f"on_{phase}_{place}" for phase in ("train", "eval") for place in PLACES]
E, B, BV = 3, 3, 2
STATIC = set(
    """epoch_num batch_num cur_step_num loss_fn optimizer train_network train_dataset parallel_mode list_callback network device_number
    mode dataset_sink_mode train_dataset_element last_save_ckpt_step latest_ckpt_file loss_scale_mananger initial_step""".split()
)
ALONE = set("batch_num cur_step_num list_callback network mode dataset_sink_mode eval_network valid_dataset".split())


def loss_after(steps: int) -> float:
    """Each step of SGD at 0.1 takes a fifth of the way that is left: the loss is 13, 8.32, ..."""
    return 13 * 0.64**steps


class Oracle:
    """MindSpore's loop as its specification has it, written down without any of the library's code."""

    def __init__(self, kind: str, stop: str | None):
        self.kind, self.stop, self.rows, self.keys = kind, stop, [], set()
        self.epoch = self.out = None
        self.trained = 0  # steps
        if kind == "eval":
            self.keys = set(ALONE)
            self.evaluate(alone=True)
        else:
            self.keys = set(STATIC)
            self.train(0 if kind == "train" else 1 if kind == "fit" else 2)

    def event(self, name: str, step: int, n: int, flags: list, which: int, metrics: float | None = None) -> None:
        keys = self.keys | ({"net_outputs"} if self.out is not None else set())
        mode = name.split("_")[1]
        seen = flags[which]
        if name == self.stop:
            flags[which], self.stop = True, None  # asked once, and a later callback sees it
        self.rows.append((name, self.epoch, step, n, mode, self.out, metrics, frozenset(keys), seen, flags[which]))

    def train(self, every: int) -> None:
        flags = [False, False]
        self.event("on_train_begin", 0, B, flags, 0)
        for self.epoch in range(1, E + 1):
            self.keys |= {"cur_epoch_num"}
            self.event("on_train_epoch_begin", self.trained, B, flags, 0)
            for _ in range(B):
                step = self.trained + 1
                self.event("on_train_step_begin", step, B, flags, 0)
                self.out, self.trained = ("scalar", loss_after(self.trained)), step
                self.event("on_train_step_end", step, B, flags, 0)
                if flags[0]:
                    break
            metrics, out = None, self.out
            if every and self.epoch % every == 0:
                metrics = self.evaluate(alone=False)
                self.out = out
            self.event("on_train_epoch_end", self.trained, B, flags, 0, metrics)
            self.keys -= {"metrics", "eval_results"}
            if flags[0]:
                break
        self.event("on_train_end", self.trained, B, flags, 0)

    def evaluate(self, alone: bool) -> float:
        flags, self.keys = [False], self.keys | {"eval_network", "valid_dataset"}
        self.event("on_eval_begin", 0, BV, flags, 0)
        self.event("on_eval_epoch_begin", 0, BV, flags, 0)
        for step in range(1, BV + 1):
            self.keys |= {"eval_dataset_element"}
            self.event("on_eval_step_begin", step, BV, flags, 0)
            self.out = ("tuple", loss_after(self.trained))
            self.event("on_eval_step_end", step, BV, flags, 0)
            if flags[0]:
                break
        self.event("on_eval_epoch_end", step, BV, flags, 0)
        self.keys |= {"metrics"} if alone else {"metrics", "eval_results"}
        self.event("on_eval_end", step, BV, flags, 0, loss_after(self.trained))
        return loss_after(self.trained)


class Witness(ms.Callback):
    """Writes down what it is told; asks to stop in the first call of one method."""

    def __init__(self, stop=None, **how):
        self.stop, self.how, self.rows = stop, how, []

    def at(self, name, run_context):
        p = run_context.original_args()
        before = run_context.get_stop_requested()
        if name == self.stop:
            run_context.request_stop(**self.how)
            self.stop = None
        out = p.get("net_outputs")
        if out is not None:
            out = ("tuple", float(out[0])) if isinstance(out, tuple) else ("scalar", float(out))
        metrics = p.metrics["loss"] if "metrics" in p else None
        keys = frozenset(k for k in p if k not in ("metrics_partial",))
        self.rows.append(
            (
                name,
                p.get("cur_epoch_num"),
                p.cur_step_num,
                p.batch_num,
                p.mode,
                out,
                metrics,
                keys,
                before,
                run_context.get_stop_requested(),
            )
        )


for name in EVENTS:
    setattr(Witness, name, lambda self, run_context, name=name: self.at(name, run_context))


def zero_line() -> nn.Linear:
    net = nn.Linear(1, 1)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    return net


def batches(n: int) -> list:
    return [(x[:, None], y[:, None]) for x, y in line_batches(n)]


def learner(n=B, n_valid=BV, **kwargs) -> cbnb.Learner:
    loaders = [batches(n)] + ([batches(n_valid)] if n_valid else [])
    settings = dict(opt_func=torch.optim.SGD, lr=0.1, metrics=[ms.Loss()]) | kwargs
    learn = cbnb.Learner(cbnb.DataLoaders(*loaders, device="cpu"), settings.pop("model", None) or zero_line(), nn.MSELoss(), **settings)
    learn.logger = lambda row: None
    return learn.remove_cb(cbnb.ProgressCallback)


def model_of(net=None, **kwargs) -> ms.Model:
    net = net or zero_line()
    return ms.Model(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1), **kwargs)


def run(kind: str, cbs) -> None:
    if kind == "eval":
        learner().validate(cbs=cbs)
    else:
        learner(n_valid=0 if kind == "train" else BV).fit(E, cbs=cbs, valid_every=2 if kind == "fit2" else 1)


def run_model(kind: str, cbs) -> None:
    model = model_of(metrics={"loss"})
    if kind == "eval":
        model.eval(batches(BV), cbs)
    elif kind == "train":
        model.train(E, batches(B), cbs)
    else:
        model.fit(E, batches(B), batches(BV), 2 if kind == "fit2" else 1, cbs)


def same(row, expected) -> bool:
    close = lambda a, b: a is b is None or abs(a - b) < 1e-4
    outs = [r[5] or (None, None) for r in (row, expected)]
    numbers = close(outs[0][1], outs[1][1]) and close(row[6], expected[6])
    return numbers and outs[0][0] == outs[1][0] and row[:5] + row[7:] == expected[:5] + expected[7:]


@pytest.mark.parametrize("kind", ["train", "fit", "fit2", "eval"])
@pytest.mark.parametrize("stop", [None, *EVENTS])
def test_all_52_scenarios(kind, stop):
    expected = Oracle(kind, stop).rows
    for runner in (run, run_model):
        witness = Witness(stop)
        runner(kind, [witness])
        assert [row[0] for row in witness.rows] == [row[0] for row in expected]
        for row, wanted in zip(witness.rows, expected):
            assert same(row, wanted), f"{row}\n{wanted}\n{row[7] ^ wanted[7]}"


def test_the_oracle_counts_as_the_specification_does():
    steps = lambda kind, stop: sum(row[0] == "on_train_step_end" for row in Oracle(kind, stop).rows)
    assert [steps("fit", name) for name in EVENTS[:6]] == [1, 1, 1, 1, 3, 9]
    assert [steps("fit", name) for name in EVENTS[6:]] == [9] * 6
    assert [sum(row[0] == "on_eval_step_end" for row in Oracle("eval", name).rows) for name in EVENTS[6:]] == [1, 1, 1, 1, 2, 2]
    assert len(Oracle("train", None).rows) == 2 + 3 * 2 + 9 * 2


@pytest.mark.parametrize("nth", [2, 3, 4])
def test_stop_in_a_later_step(nth):
    class Stop:
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == nth:
                run_context.request_stop()

    learner().fit(E, cbs=[Stop(), witness := Witness()])
    names = [row[0] for row in witness.rows]
    assert names.count("on_train_step_end") == nth and names.count("on_eval_step_end") == BV * -(-nth // B)
    assert witness.rows[-1][8] and names[-2:] == ["on_train_epoch_end", "on_train_end"]


def test_stop_without_evaluation_and_stop_of_training_from_evaluation():
    learn = learner()
    learn.fit(E, cbs=(witness := Witness("on_train_step_end", validate=False)))
    assert [row[0] for row in witness.rows][-3:] == ["on_train_step_end", "on_train_epoch_end", "on_train_end"]
    assert learn.valid_every == 1
    for name in EVENTS[6:]:
        learn.fit(E, cbs=(witness := Witness(name, training=True)))
        assert [row[0] for row in witness.rows][-2:] == ["on_train_epoch_end", "on_train_end"] and witness.rows[-1][1] == 1
    learn.fit(E, cbs=(witness := Witness()))  # nothing stays
    assert sum(row[0] == "on_eval_step_end" for row in witness.rows) == E * BV


def test_metrics_of_a_stopped_evaluation_are_marked():
    partial = []

    class Stop(ms.Callback):
        def on_eval_step_end(self, run_context):
            if run_context.original_args().cur_epoch_num == 1:
                run_context.request_stop()

        def on_eval_end(self, run_context):
            p = run_context.original_args()
            partial.append((p.metrics_partial, "metrics_partial" in p))

        on_train_epoch_end = on_eval_end

    learner().fit(2, cbs=Stop())
    assert partial == [(True, True)] * 2 + [(False, False)] * 2


# ---------------------------------------------------------------- the context


def test_missing_names_copies_and_pickles():
    p = ms.Params(a=1, net=nn.Linear(1, 1), out=as_output((torch.tensor(1.0), torch.ones(2))))
    assert not hasattr(p, "b") and getattr(p, "b", 3) == 3 and p.get("b") is None and p.pop("b", 4) == 4
    for kind in (KeyError, AttributeError, ms.MissingName):
        for read in (lambda: p.b, lambda: p["b"], lambda: delattr(p, "b")):
            with pytest.raises(kind, match="'b'"):
                read()
    for again in (copy.deepcopy(p), pickle.loads(pickle.dumps(p)), copy.copy(p)):
        assert type(again) is ms.Params and again.a == 1 and again.out[1].asnumpy().tolist() == [1, 1]
    p.get = 3
    assert p.get("a") == 1 and p["get"] == 3


def test_the_whole_context_is_copied_and_outputs_are_numbers():
    kept = []

    class Keep(ms.Callback):
        def on_train_step_end(self, run_context):
            p = run_context.original_args()
            kept.append(copy.deepcopy(p))
            out = p.net_outputs
            assert not out.requires_grad and out.asnumpy().shape == () and out < 100 and 100 > out
            assert f"{out:8.7f}" == f"{float(out):8.7f}" and str(out) == f"{out}" == str(out.asnumpy())
            assert isinstance(p.train_dataset_element, list) and len(p.train_dataset_element) == 2

        def on_eval_step_end(self, run_context):
            kept.append(copy.deepcopy(run_context.original_args()))
            loss, pred, label = run_context.original_args().net_outputs
            assert torch.allclose(((pred - label) ** 2).mean(), loss) and pred.asnumpy().shape == label.asnumpy().shape

    learn = learner()
    learn.fit(1, cbs=Keep())
    assert len(kept) == B + BV and kept[0].network is not learn.model and kept[0].network.weight != kept[2].network.weight
    assert [round(float(p.net_outputs), 4) for p in kept[:B]] == [round(loss_after(k), 4) for k in range(B)]


def test_names_of_ones_own_last_until_the_end_of_the_call():
    seen = []

    class First(ms.Callback):
        def on_train_begin(self, run_context):
            p = run_context.original_args()
            seen.append("mine" in p)
            p.mine = 1

        def on_train_step_begin(self, run_context):
            run_context.original_args().cur_step_num += 100  # informative only

    class Second:
        def on_eval_end(self, run_context):
            seen.append(run_context.original_args().mine)

        def on_train_end(self, run_context):
            seen.append((run_context.original_args()["mine"], run_context.original_args().cur_step_num))

    learn, cbs = learner(), (First(), Second())
    for _ in range(2):
        learn.fit(1, cbs=cbs)
    assert seen == [False, 1, (1, B + 100)] * 2


def test_the_list_holds_the_users_callbacks_only_and_in_order():
    calls = []

    class Named(ms.Callback):
        def __init__(self, name):
            self.name = name

        def on_train_begin(self, run_context):
            calls.append(self.name)
            assert [cb.name for cb in run_context.original_args().list_callback] == ["a", "b"]

    class Native(cbnb.Callback):
        def before_fit(self):
            calls.append("native")

    a, b = Named("a"), Named("b")
    learn = learner()
    for given in ([a, Native(), b], (a, Native, b), (cb for cb in (a, Native(), b))):
        calls.clear()
        learn.fit(1, cbs=given)
        assert calls == ["native", "a", "b"]
    assert all(cb not in learn.cbs for cb in (a, b))


def test_objects_without_a_base_class_classes_and_removal():
    calls = []

    class Duck:
        def on_train_step_end(self, run_context):
            calls.append(run_context.original_args().cur_step_num)
            learn.remove_cb(self)

    learn = learner(cbs=Duck)
    learn.fit(1)
    assert calls == [1] and not hasattr(learn, "duck")


def test_several_losses_and_steps_of_ones_own():
    wide, deep = (nn.Parameter(torch.tensor(v)) for v in (1.0, 2.0))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.deep = wide, deep

        def forward(self, x, y):
            e = ((self.wide + self.deep) * x - y).square().mean()
            return e + self.wide**2 / 2, 3 * e

    seen = []

    class See(ms.Callback):
        def on_train_step_end(self, run_context):
            p = run_context.original_args()
            seen.append(([float(v) for v in p.net_outputs], p.optimizer))

    net, opts = Net(), [torch.optim.SGD([v], lr=0.1) for v in (wide, deep)]
    data = [(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 5.0]))]
    learn = cbnb.Learner(cbnb.DataLoaders(data, device="cpu"), net, train_step=MultiLossStep(net, opts), default_cbs=False)
    learn.fit(1, cbs=[See(), ms.LossMonitor()])
    assert seen == [([1.5, 3.0], opts)] and round(wide.item(), 4) == 0.6 and round(deep.item(), 4) == 1.1

    learn = learner(eval_step=EvalStep(None, nn.MSELoss()))
    outs = []
    learn.validate(cbs=ms.LambdaCallback(on_eval_step_end=lambda context: outs.append(context.original_args().net_outputs)))
    assert [len(out) for out in outs] == [3, 3] and outs[0][0] == 13


def test_a_nan_in_one_of_several_losses_is_found_before_the_update():
    net = zero_line()
    opts = [torch.optim.SGD([p], lr=0.1) for p in net.parameters()]

    def losses(pred, y):
        return (pred - y).square().mean(), (pred - y).square().mean() * (float("nan") if net.weight.item() > 0.3 else 1)

    learn = learner(model=net, metrics=None, opt_func=torch.optim.AdamW, lr=1e-3, train_step=MultiLossStep(net, opts, losses=losses))
    with pytest.raises(ValueError, match="In epoch: 1 step: 2, loss is NAN or INF"):
        learn.fit(1, cbs=[ms.LossMonitor(0), witness := Witness()])
    assert 0.3 < net.weight.item() < 0.5 and [row[0] for row in witness.rows].count("on_train_step_end") == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_nothing(bad):
    class Poison(ms.Callback):
        def on_train_step_begin(self, run_context):
            if run_context.original_args().cur_step_num == 5:
                run_context.original_args().train_dataset_element[1].fill_(bad)

    learn = learner()
    with pytest.raises(ValueError) as caught:
        learn.fit(2, cbs=[witness := Witness(), ms.LossMonitor(), Poison()])
    assert (
        str(caught.value)
        == "In epoch: 2 step: 2, loss is NAN or INF, training process cannot continue, terminating training. Lower the learning rate, or look for such values in the data."
    )
    assert witness.rows[-1][0] == "on_train_step_begin" and torch.isfinite(learn.model.weight).all()
    assert round(learn.model.bias.item(), 4) == round(3 * (1 - 0.8**4), 4)


# ---------------------------------------------------------------- entering, leaving, failing


class Managed(Witness):
    log: list = []

    def __init__(self, name, fails_in=None, error=ArithmeticError("boom"), exit_fails=False, **kwargs):
        super().__init__()
        self.name, self.fails_in, self.error, self.exit_fails = name, fails_in, error, exit_fails

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append((f"exit {self.name}", kind and kind.__name__))
        if self.exit_fails:
            raise OSError(f"exit of {self.name}")
        return True

    def at(self, name, run_context):
        super().at(name, run_context)
        if name == self.fails_in:
            raise self.error


@pytest.fixture
def log():
    Managed.log = []
    return Managed.log


def test_entered_once_in_order_and_left_in_reverse(log):
    learner().fit(2, cbs=[Managed("a"), Managed("b")])
    assert log == ["enter a", "enter b", ("exit b", None), ("exit a", None)]
    learner().validate(cbs=[Managed("c")])
    assert log[4:] == ["enter c", ("exit c", None)]


@pytest.mark.parametrize("where", EVENTS)
@pytest.mark.parametrize("error, kind", [(ArithmeticError("boom"), "ArithmeticError"), (KeyboardInterrupt(), "FitInterrupted")])
def test_an_exception_anywhere(log, where, error, kind):
    learn, cbs = learner(), [Managed("a"), Managed("b", where, error), Managed("c")]
    with pytest.raises(type(error)):
        learn.fit(2, cbs=cbs)
    assert log[3:] == [(f"exit {name}", kind) for name in "cba"]
    names = [[row[0] for row in cb.rows] for cb in cbs]
    assert names[0] == names[1] and names[0][-1] == where and names[2] == names[0][:-1]  # no further event
    assert not learn.running
    learn.fit(1, cbs=(after := Witness()))
    assert [row[2] for row in after.rows if row[0] == "on_train_step_end"] == [1, 2, 3]


def test_an_interrupt_alone_in_validate(log):
    with pytest.raises(KeyboardInterrupt):
        learner().validate(cbs=[Managed("a", "on_eval_step_end", KeyboardInterrupt())])
    assert log == ["enter a", ("exit a", "FitInterrupted")]


def test_each_is_left_even_if_another_fails(log):
    with pytest.raises(ArithmeticError) as caught:
        learner().fit(1, cbs=[Managed("a"), Managed("b", "on_eval_end", exit_fails=True), Managed("c", exit_fails=True)])
    assert log[3:] == [(f"exit {name}", "ArithmeticError") for name in "cba"]
    assert any("exit of c" in note for note in caught.value.__notes__)
    with pytest.raises(OSError, match="exit of b"):
        learner().fit(1, cbs=[Managed("a"), Managed("b", exit_fails=True)])
    assert log[-1] == ("exit a", None)


def test_enter_that_fails_and_enter_that_returns_something_else(log):
    class Fails(ms.Callback):
        def __enter__(self):
            raise OSError("no")

        def __exit__(self, *err):
            log.append("never")

    with pytest.raises(OSError, match="no"):
        learner().fit(1, cbs=[Managed("a"), Fails(), Managed("c")])
    assert log == ["enter a", ("exit a", "OSError")]

    class Other(Witness):
        def __enter__(self):
            return 7

    with pytest.warns(UserWarning, match="returned 7"):
        learner().fit(1, cbs=(other := Other()))
    assert other.rows


def test_a_native_stop_ends_the_dialect_too():
    class Native(cbnb.Callback):
        def after_batch(self):
            if self.training and self.train_iter == 2:
                raise cbnb.CancelFitException

    learner().fit(2, cbs=[witness := Witness(), Native()])
    names = [row[0] for row in witness.rows]
    assert names[-2:] == ["on_train_step_begin", "on_train_end"]


def test_batches_that_a_native_callback_skips_are_no_steps():
    class Skip(cbnb.Callback):
        def before_batch(self):
            if self.training and self.train_iter == 1:
                raise cbnb.CancelBatchException

        def after_pred(self):
            if self.training and self.train_iter == 2:
                raise cbnb.CancelBatchException

    learner().fit(1, cbs=[witness := Witness(), ms.LossMonitor(), Skip])
    steps = [(row[0], row[2]) for row in witness.rows if "train_step" in row[0]]
    assert steps == [("on_train_step_begin", 1), ("on_train_step_end", 1), ("on_train_step_begin", 2)]


def test_validate_in_the_middle_of_a_fit_is_a_call_of_its_own():
    class Native(cbnb.Callback):
        def after_batch(self):
            if self.training and self.train_iter == 2:
                self.learn.validate(cbs=inner)

    inner, outer = Witness(), Witness()
    learner(n_valid=BV).fit(1, cbs=[outer, Native])
    for row, wanted in zip(inner.rows, Oracle("eval", None).rows, strict=True):
        assert row[:5] == wanted[:5] and row[7] == wanted[7]
    assert [row[0] for row in outer.rows] == [row[0] for row in Oracle("fit", None).rows][: len(outer.rows) - 1] + ["on_train_end"]


# ---------------------------------------------------------------- old names


class PrintInfo(ms.Callback):
    def step_end(self, run_context):
        print("step_num: ", run_context.original_args().cur_step_num)


@pytest.mark.parametrize("kind, lines", [("train", 9), ("fit", 15), ("eval", 2)])
@pytest.mark.parametrize("runner", [run, run_model])
def test_old_names_work_everywhere_with_one_warning(kind, lines, runner, capsys):
    class Old:
        def begin(self, run_context):
            print("begin")

        def epoch_begin(self, run_context):
            pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner(kind, [PrintInfo()])
    assert [w.category for w in caught] == [DeprecationWarning] and "PrintInfo.step_end" in str(caught[0].message)
    assert caught[0].filename == __file__
    out = capsys.readouterr().out.splitlines()
    assert len(out) == lines and out[:2] == ["step_num:  1", "step_num:  2"]
    with pytest.warns(DeprecationWarning, match="Old.begin, Old.epoch_begin, PrintInfo.step_end"):
        runner(kind, [Old(), PrintInfo()])


def test_new_names_hide_old_ones_unless_they_pass_them_on(capsys):
    class Both(PrintInfo):
        def on_train_step_end(self, run_context):
            print("new")

        def on_eval_step_end(self, run_context):
            super().on_eval_step_end(run_context)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner(n=1, n_valid=1).fit(1, cbs=Both())
    assert capsys.readouterr().out.splitlines() == ["new", "step_num:  1"]


# ---------------------------------------------------------------- what they print


@pytest.mark.parametrize("name", EVENTS)
def test_a_new_name_of_the_base_class_calls_the_old_one(name):
    """As `super().on_train_end(run_context)` of a subclass does."""

    class Old(ms.Callback):
        pass

    setattr(Old, name.split("_", 2)[2], lambda self, context: told.append(context))
    told = []
    getattr(Old(), name)("context")
    assert told == ["context"]


def test_loss_monitor_prints_as_mindspore_does(capsys):
    model = model_of(metrics={"loss"})
    model.fit(2, batches(3), batches(2), 2, ms.LossMonitor(2))
    first, second, third = (model.learn.recorder.history[0].raw_losses[i] for i in (1, 3, 5))
    value = model.learn.recorder.history[0].epochs[1]["loss"]
    assert capsys.readouterr().out.splitlines() == [
        f"epoch: 1 step: 2, loss is {first}",
        f"epoch: 2 step: 1, loss is {second}",
        f"epoch: 2 step: 3, loss is {third}",
        f"Eval result: epoch 2, metrics: {{'loss': {value}}}",
    ]
    model_of(metrics={"loss"}).eval(batches(2), ms.LossMonitor())
    assert capsys.readouterr().out == "epoch: 1 step: 1, loss is 13.0\nepoch: 1 step: 2, loss is 13.0\n"
    for wrong, kind in ((-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError)):
        with pytest.raises(kind):
            ms.LossMonitor(wrong)


def test_a_subclass_of_loss_monitor_stays_quiet_in_evaluation_within_a_fit(capsys):
    class Mine(ms.LossMonitor):
        pass

    learner(metrics=None).fit(1, cbs=Mine())
    assert len(capsys.readouterr().out.splitlines()) == B


def test_time_monitor_times_the_training_and_counts_real_steps(capsys):
    class Slow(ms.Callback):
        def on_train_step_begin(self, run_context):
            time.sleep(0.02)

        def on_eval_step_begin(self, run_context):
            time.sleep(0.001)

        def on_train_step_end(self, run_context):
            run_context.request_stop()

    learner().fit(1, cbs=[ms.TimeMonitor(data_size=7, data_time=True), Slow(), ms.LossMonitor()])
    lines = capsys.readouterr().out.splitlines()
    starts = ("epoch: 1 step: 1", "Eval epoch time: ", "Train epoch time: ", "Eval result: ")
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    total, per_step, waited = (float(part.split(" ms")[0]) for part in lines[2].split(": ")[1:])
    assert total == per_step >= 20 and waited < total and lines[2].endswith(" ms)")
    for wrong in (1, "yes"):
        with pytest.raises(TypeError):
            ms.TimeMonitor(data_time=wrong)


class Spends(ms.Callback):
    """So many seconds pass at the beginning of each step."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def on_train_step_begin(self, run_context):
        self.clock.now += self.seconds

    on_eval_step_begin = on_train_step_begin


@pytest.mark.parametrize("data_time", [False, True])
def test_times_of_epochs_and_steps(monkeypatch, capsys, data_time):
    """Three steps of training and two of evaluation, each 5 ms for the batch and 20 ms of work."""
    clock = types.SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("cbnb.dialects.mindspore_callbacks.time", clock)
    timer = ms.TimeMonitor(data_time=data_time)
    learner().fit(2, cbs=[Spends(clock, 0.005), timer, Spends(clock, 0.02)], valid_every=2)
    data = " (data time: 5.000 ms)" if data_time else ""
    train, evaluation = (
        f"Train epoch time: 75.000 ms, per step time: 25.000 ms{data}",
        f"Eval epoch time: 50.000 ms, per step time: 25.000 ms{data}",
    )
    assert capsys.readouterr().out.splitlines() == [train, evaluation, train]
    learner(n_valid=0).fit(1, cbs=[ms.TimeMonitor(), Spends(clock, 0.1)])
    assert capsys.readouterr().out == "Train epoch time: 300.000 ms, per step time: 100.000 ms\n"


def test_lines_of_monitors_are_written_at_once(monkeypatch):
    """A log file has each when it is printed."""
    written = []
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(write=written.append, flush=lambda: written.append("flushed")))
    learner().fit(1, cbs=[ms.TimeMonitor(), ms.LossMonitor(), ms.EarlyStopping(baseline=0.0)])
    assert [text for text in written if text == "\n"] == ["\n"] * (3 + 2 + 1 + 1) and written.count("flushed") == 7


@pytest.mark.parametrize(
    "outputs, shown",
    [(3, 3), (torch.tensor(1.5), 1.5), (torch.tensor([1.0, 2.0]), 1.5), ((torch.tensor([1, 2]), 9), 1.5), ([2.5], 2.5)],
)
def test_the_loss_that_is_shown(outputs, shown):
    found = shown_loss(outputs)
    assert found == shown and isinstance(found, float if isinstance(shown, float) else int)


def test_the_first_of_several_losses_is_shown_as_it_prints_itself():
    first = torch.tensor(1.5)
    assert shown_loss((first, 9)) is first


# ---------------------------------------------------------------- files


def files(folder) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_checkpoints_names_retention_and_reuse(tmp_path):
    saver = ms.ModelCheckpoint("K", str(tmp_path), ms.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2))
    for foreign in ("K-9_9.ckpt", "K-best.ckpt"):
        (tmp_path / foreign).write_bytes(b"")
    told = []

    class Told(ms.Callback):
        def on_train_step_end(self, run_context):
            p = run_context.original_args()
            told.append((p.last_save_ckpt_step, p.latest_ckpt_file and p.latest_ckpt_file.rsplit("/")[-1]))

    learn = learner()
    learn.fit(2, cbs=[saver, Told()])
    assert files(tmp_path) == ["K-2_1.ckpt", "K-2_3.ckpt", "K-9_9.ckpt", "K-best.ckpt"]
    assert told == [(None, None), (2, "K-1_2.ckpt"), (2, "K-1_2.ckpt"), (4, "K-2_1.ckpt"), (4, "K-2_1.ckpt"), (6, "K-2_3.ckpt")]
    assert saver.latest_ckpt_file_name == str(tmp_path / "K-2_3.ckpt")
    state = ms.load_checkpoint(saver.latest_ckpt_file_name)
    assert list(state) == ["weight", "bias"] and ms.load_param_into_net(net := zero_line(), state) == ([], [])
    assert net.weight.equal(learn.model.weight)
    learn.fit(3, cbs=saver)
    assert files(tmp_path) == ["K-3_2.ckpt", "K-3_3.ckpt", "K-9_9.ckpt", "K-best.ckpt"]
    assert ms.ModelCheckpoint("K", tmp_path).prefix == "K_1" and ms.ModelCheckpoint("J", tmp_path).prefix == "J"


def test_checkpoints_of_two_a_function_and_more_to_save(tmp_path):
    two = [ms.ModelCheckpoint("K", tmp_path / "a", ms.CheckpointConfig(save_checkpoint_steps=9)) for _ in range(2)]
    named = ms.ModelCheckpoint(
        lambda p: f"step{p.cur_step_num}",
        lambda p: tmp_path / "b",
        ms.CheckpointConfig(keep_checkpoint_max=2, append_info=["epoch_num", "step_num", {"lr": 0.1}]),
    )
    other = zero_line()
    own = ms.ModelCheckpoint("own", tmp_path / "c", ms.CheckpointConfig(save_checkpoint_steps=3, saved_network=other))
    learner().fit(1, cbs=[*two, named, own])
    assert files(tmp_path / "a") == ["K-1_3.ckpt", "K_1-1_3.ckpt"] and files(tmp_path / "b") == ["step2.ckpt", "step3.ckpt"]
    state = ms.load_checkpoint(tmp_path / "b" / "step3.ckpt")
    assert {k: state[k] for k in ("epoch_num", "step_num", "lr")} == dict(epoch_num=1, step_num=3, lr=0.1)
    assert ms.load_param_into_net(zero_line(), state) == ([], ["epoch_num", "step_num", "lr"])
    assert ms.load_checkpoint(tmp_path / "c" / "own-1_3.ckpt")["weight"].item() == 0


def test_checkpoint_at_an_exception_after_a_stop_and_by_time(tmp_path, monkeypatch):
    config = ms.CheckpointConfig(save_checkpoint_steps=9, exception_save=True)
    with pytest.raises(ArithmeticError):
        learner().fit(2, cbs=[ms.ModelCheckpoint("K", tmp_path, config), Managed("b", "on_eval_end")])
    assert files(tmp_path) == ["K-1_3_breakpoint.ckpt"]
    learner().fit(2, cbs=[ms.ModelCheckpoint("L", tmp_path, ms.CheckpointConfig(save_checkpoint_steps=9)), Witness("on_train_begin")])
    assert files(tmp_path)[1:] == ["L-1_1.ckpt"]

    class Clock:
        now = 0.0

    class Tick(ms.Callback):
        def on_train_step_begin(self, run_context):
            Clock.now += 40

    clock = type("clock", (), dict(monotonic=lambda: Clock.now, time=lambda: Clock.now, perf_counter=time.perf_counter))
    monkeypatch.setattr("cbnb.dialects.mindspore_callbacks.time", clock)
    config = ms.CheckpointConfig(save_checkpoint_seconds=100, keep_checkpoint_per_n_minutes=5)
    learner(n=6).fit(2, cbs=[Tick(), saver := ms.ModelCheckpoint("M", tmp_path, config)])
    assert [n for n in files(tmp_path) if n[0] == "M"] == ["M-1_3.ckpt", "M-2_3.ckpt", "M-2_6.ckpt"]  # after 2, 6, 8 minutes
    assert saver.latest_ckpt_file_name.endswith("M-2_6.ckpt")


@pytest.mark.parametrize(
    "where, saved", [("on_train_begin", []), (None, ["K-1_3.ckpt"]), ("on_train_epoch_end", ["K-1_3_breakpoint.ckpt"])]
)
def test_at_an_exception_a_step_is_saved_if_there_was_one(tmp_path, where, saved):
    class Fails(ms.Callback):
        pass

    def fail(self, run_context):
        raise ArithmeticError

    if where:
        setattr(Fails, where, fail)
    config = ms.CheckpointConfig(save_checkpoint_steps=9, exception_save=True)
    try:
        learner().fit(1, cbs=[ms.ModelCheckpoint("K", tmp_path, config), Fails()])
    except ArithmeticError:
        assert where
    assert files(tmp_path) == saved


def test_prefixes_of_files_that_are_there(tmp_path):
    for name in ("a*[?]-1_1.ckpt", "a*[?]_1-1_1.ckpt", "a-b-1_1.ckpt"):
        (tmp_path / name).write_bytes(b"")
    assert [ms.ModelCheckpoint(name, tmp_path).prefix for name in ("a*[?]", "a*", "a", "a-b")] == ["a*[?]_2", "a*", "a_1", "a-b_1"]
    assert ms.ModelCheckpoint("new", tmp_path).latest_ckpt_file_name == ""


def test_three_of_one_name_take_turns(tmp_path):
    three = [ms.ModelCheckpoint("K", tmp_path) for _ in range(3)]
    learner(n=1).fit(1, cbs=[*three, ms.ModelCheckpoint(lambda p: "own", tmp_path)])
    assert files(tmp_path) == ["K-1_1.ckpt", "K_1-1_1.ckpt", "K_2-1_1.ckpt", "own.ckpt"]


def test_a_file_that_is_written_again_is_kept(tmp_path):
    learner().fit(2, cbs=ms.ModelCheckpoint(lambda p: "same", tmp_path, ms.CheckpointConfig(keep_checkpoint_max=2)))
    assert files(tmp_path) == ["same.ckpt"]


def test_to_keep_no_checkpoint_is_to_keep_one(tmp_path):
    """It was refused; MindSpore keeps one."""
    saver = ms.ModelCheckpoint("K", tmp_path, ms.CheckpointConfig(keep_checkpoint_max=0))
    learner(n=3).fit(2, cbs=saver)
    assert files(tmp_path) == ["K-2_3.ckpt"]
    for nothing in (0, None):
        config = ms.CheckpointConfig(keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=nothing)
        assert list(config.get_checkpoint_policy().values())[2:4] == [1, None]


def test_numbers_of_numpy_can_be_saved_along(tmp_path):
    ms.save_checkpoint({"a": torch.ones(1)}, tmp_path / "a", append_dict={"lr": np.float32(0.5)})
    assert ms.load_checkpoint(tmp_path / "a.ckpt")["lr"] == 0.5


def test_policies_are_explicit():
    policy = lambda **kwargs: list(ms.CheckpointConfig(**kwargs).get_checkpoint_policy().values())[:4]
    assert policy() == [1, None, 5, None]
    assert policy(save_checkpoint_steps=0, save_checkpoint_seconds=100) == [None, 100, 5, None]
    assert policy(save_checkpoint_seconds=100, keep_checkpoint_per_n_minutes=5) == [None, 100, None, 5]
    assert policy(keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=5) == [1, None, None, 5]
    wrong = [
        dict(save_checkpoint_steps=1, save_checkpoint_seconds=1),
        dict(keep_checkpoint_max=1, keep_checkpoint_per_n_minutes=1),
        dict(save_checkpoint_steps=0),
        dict(save_checkpoint_steps=0, save_checkpoint_seconds=0, keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=0),
        dict(save_checkpoint_steps=-1),
        dict(format="safetensors"),
        dict(enc_key=b"x"),
        dict(append_info=["lr"]),
    ]
    for kwargs in wrong:
        with pytest.raises(ValueError):
            ms.CheckpointConfig(**kwargs)
    with pytest.raises(TypeError):
        ms.CheckpointConfig(save_checkpoint_steps=1.5)
    for args, kind, words in (
        (("a/b",), ValueError, "prefix='a/b'"),
        (("",), ValueError, "prefix=''"),
        ((3,), TypeError, "prefix=3"),
        (("a", 3), TypeError, "directory=3 should be"),
        (("a", None, 3), TypeError, "config=3 should be"),
    ):
        with pytest.raises(kind, match=words):
            ms.ModelCheckpoint(*args)


def test_saving_and_loading_by_hand(tmp_path):
    net = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    assert ms.save_checkpoint(net, tmp_path / "net") is None and files(tmp_path) == ["net.ckpt"]
    assert list(torch.load(tmp_path / "net.ckpt", weights_only=True)) == list(net.state_dict())
    other = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    state = ms.load_checkpoint(str(tmp_path / "net.ckpt"), filter_prefix="1.") | {"foreign": torch.ones(1)}
    missing, unused = ms.load_param_into_net(other, state)
    assert missing[0] == "1.weight" and "2.bias" in missing and unused == ["foreign"] and other[0].weight.equal(net[0].weight)
    before = other[0].weight.clone()
    with pytest.raises(RuntimeError, match="0.bias"):
        ms.load_param_into_net(other, {"0.weight": torch.ones(2, 1), "0.bias": torch.ones(3)})
    assert other[0].weight.equal(before)
    ms.save_checkpoint([dict(name="a", data=as_output(torch.ones(1)))], tmp_path / "list.ckpt")
    assert ms.load_checkpoint(tmp_path / "list.ckpt")["a"] == 1
    (tmp_path / "other.ckpt").write_text("no")
    for name in ("none.ckpt", "other.ckpt"):
        with pytest.raises(ValueError):
            ms.load_checkpoint(tmp_path / name)


def test_train_network_saves_under_the_bare_names(tmp_path):
    class Save(ms.Callback):
        def on_train_end(self, run_context):
            assert model.learn.save_callback is self
            ms.save_checkpoint(run_context.original_args().train_network, tmp_path / self.name)

    saver, net = Save(), zero_line()
    saver.name = "plain"
    model = model_of(net)
    model.train(1, batches(1), saver)
    saver.name, step = "cell", ms.TrainOneStepCell(ms.WithLossCell(net, nn.MSELoss()), torch.optim.SGD(net.parameters(), lr=0.1))
    model = ms.Model(step)
    model.train(1, batches(1), [saver])
    for name in ("plain", "cell"):
        assert list(ms.load_checkpoint(tmp_path / f"{name}.ckpt")) == ["weight", "bias"]


# ---------------------------------------------------------------- the others


def test_learning_rate_scheduler_and_history():
    rates = []
    learn, record = learner(), ms.History()

    def halve(lr, step):
        rates.append((lr, step))
        return lr / 2

    learn.fit(1, cbs=[ms.LearningRateScheduler(halve), record])
    assert rates == [(0.1, 1), (0.05, 2), (0.025, 3)] and learn.opt.param_groups[0]["lr"] == 0.1
    learn.fit(3, cbs=record, valid_every=2)
    assert record.epoch == dict(epoch=[1, 2, 3]) and {len(v) for v in record.history.values()} == {3}
    assert record.history["eval_loss"][0] is None and record.history["eval_loss"][1] > 0


@pytest.mark.parametrize("patience, epochs", [(0, 4), (1, 4), (2, 5), (9, 6)])
def test_early_stopping(patience, epochs, capsys):
    losses = [5, 4, 3, 3.5, 3.4, 2]
    weights = []

    class Forced(ms.Callback):
        def on_eval_end(self, run_context):
            p = run_context.original_args()
            p.eval_results["eval_loss"] = losses[p.cur_epoch_num - 1]
            weights.append(p.network.weight.item())

    learn = learner()
    learn.fit(6, cbs=[Forced(), ms.EarlyStopping(patience=patience, restore_best_weights=True)])
    assert len(weights) == epochs and learn.model.weight.item() == weights[5 if epochs == 6 else 2]
    assert capsys.readouterr().out == ("" if epochs == 6 else f"Epoch {epochs:05d}: early stopping\n")
    with pytest.raises(ValueError, match="f1.*eval_loss"):
        learn.fit(1, cbs=ms.EarlyStopping("f1"))


@pytest.mark.parametrize(
    "settings, epochs",
    [
        (dict(mode="max"), 2),
        (dict(monitor="my_acc"), 2),
        (dict(monitor="my_acc", mode="min"), 4),
        (dict(min_delta=1), 2),  # better by as much is no better
        (dict(min_delta=-1), 2),
        (dict(min_delta=0.9), 4),
        (dict(baseline=5), 1),
        (dict(baseline=5.1), 4),
        (dict(baseline=5.5, mode="max"), 1),
        (dict(monitor="loss"), 6),
        (dict(monitor="loss", mode="max"), 2),
        (dict(monitor="loss", mode="max", patience=4), 5),
    ],
)
def test_when_training_stops_early(settings, epochs):
    class Forced(ms.Callback):
        def on_eval_end(self, run_context):
            p = run_context.original_args()
            p.eval_results[settings.get("monitor", "eval_loss")] = [5, 4, 3, 3.5, 3.4, 2][p.cur_epoch_num - 1]

    learn = learner()
    for _ in range(2):  # the second begins anew
        learn.fit(
            6,
            cbs=[Forced(), stop := ms.EarlyStopping(**settings)]
            if settings.get("monitor") != "loss"
            else (stop := ms.EarlyStopping(**settings)),
        )
        assert len(learn.recorder.last().epochs) == epochs and stop.stopped_epoch == (epochs if epochs < 6 else None)


def test_an_improvement_is_said(capsys):
    learner().fit(2, cbs=ms.EarlyStopping(verbose=True, baseline=4.0))
    values = [13 * 0.64 ** (3 * epoch) for epoch in (1, 2)]
    assert capsys.readouterr().out.splitlines() == [
        f"Epoch {epoch:05d}: eval_loss improved to {value:.5f}" for epoch, value in enumerate(values, 1)
    ]
    for wrong in (dict(mode="low"), dict(patience=-1)):
        with pytest.raises(ValueError):
            ms.EarlyStopping(**wrong)


def test_an_epoch_without_evaluation_is_not_waited_for():
    learn = learner()
    learn.fit(6, cbs=ms.EarlyStopping(mode="max"), valid_every=2)
    assert len(learn.recorder.last().epochs) == 4


@pytest.mark.parametrize(
    "cls, args, in_fit",
    [
        (ms.LossMonitor, [0], 0),
        (ms.EarlyStopping, [], 0),
        (ms.History, [], 0),
        (ms.LearningRateScheduler, [lambda lr, step: lr], 0),
        (ms.ModelCheckpoint, ["K", "none", ms.CheckpointConfig(save_checkpoint_seconds=10**6)], 0),
        (ms.TimeMonitor, [], 1),
        (ms.LambdaCallback, [], 1),
    ],
)
def test_who_is_told_of_the_evaluation_in_a_fit(cls, args, in_fit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []

    class Mine(cls):
        def on_eval_end(self, run_context):
            calls.append(1)

    learn, cb = learner(), Mine(*args)
    learn.fit(1, cbs=cb)
    assert len(calls) == in_fit
    learn.validate(cbs=cb)
    assert len(calls) == in_fit + 1


def test_what_history_keeps_of_outputs():
    learn, record = learner(), ms.History()
    learn.fit(2, cbs=record)
    assert record.history["net_output"] == pytest.approx([13 * 0.64**2, 13 * 0.64**5]) and isinstance(
        record.history["net_output"][0], float
    )


def test_lambdas_of_evaluation_are_called_within_a_fit():
    calls = []
    cb = ms.LambdaCallback(**{name: (lambda context, name=name: calls.append(name)) for name in EVENTS})
    learner().fit(E, cbs=cb)
    assert calls == [row[0] for row in Oracle("fit", None).rows]


# ---------------------------------------------------------------- metrics and Model


def test_metrics_average_as_mindspore_does_or_exactly():
    pred, y = torch.zeros(2, 2), torch.ones(2, 2)
    assert ms.MAE()(pred, y) == 2 and ms.MAE("elements")(pred, y) == 1 and ms.MSE()([[0.0, 0.0]], [[1.0, 2.0]]) == 5
    for metric, inputs, kind in (
        (ms.MAE(), (1, 2, 3), ValueError),
        (ms.MAE(), (1.0, 2.0), TypeError),
        (ms.Loss(), (pred,), ValueError),
        (ms.Loss(), (1.0, 2.0), ValueError),
        (ms.MAE().set_indexes([0, 3]), (pred, y), IndexError),
    ):
        with pytest.raises(kind):
            metric.update(*inputs)
    for metric in (ms.MAE(), ms.MSE(), ms.Loss(), ms.Accuracy()):
        with pytest.raises(RuntimeError):
            metric.eval()
    metric = ms.MAE()
    assert metric.set_indexes([1, 0]) is metric and metric.set_indexes([])(pred, y) == 2
    for wrong in ((0, 1), 1.0, "01", None):
        with pytest.raises(ValueError):
            metric.set_indexes(wrong)


def test_metrics_of_the_dialect_in_a_learner_and_with_a_ragged_last_batch():
    x, y = torch.zeros(10, 1), torch.arange(10.0)[:, None]
    data = list(zip(x.split(4), y.split(4)))
    metrics = [ms.MAE(), ms.MSE("elements"), ms.Loss(), ms.Loss("items")]
    learn = cbnb.Learner(cbnb.DataLoaders(data, data, device="cpu"), zero_line(), nn.L1Loss(), metrics=metrics)
    found = learn.validate()
    assert found == pytest.approx([4.5, 4.5, 28.5, (1.5 + 5.5 + 8.5) / 3, 4.5])
    again = learn.validate()
    assert again == found and [m.value for m in metrics] == [None] * 4  # those of a fit are not touched


def test_model_with_an_evaluation_network():
    net = zero_line()

    class Eval(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = net

        def forward(self, x, y):
            pred = self.network(x)
            return pred, (pred - y).square().mean(), y, y + 1

    seen = []
    see = ms.LambdaCallback(on_eval_end=lambda context: seen.append(dict(context.original_args().get("eval_results", {}))))
    metrics = {"mae": ms.MAE(), "loss": ms.Loss()}
    model = model_of(net, metrics=metrics, eval_network=Eval(), eval_indexes=[1, 0, 2])
    model.fit(1, batches(3), batches(2), callbacks=see)
    assert seen[0] == pytest.approx({"mae": 1.536, "loss": loss_after(3), "eval_loss": loss_after(3)}, abs=1e-5)
    picked = {"one": ms.MAE().set_indexes([0, 2]), "two": ms.MAE().set_indexes([0, 3])}
    model = model_of(net, metrics=picked, eval_network=Eval())
    model.fit(1, batches(3), batches(2), callbacks=see)
    assert set(seen[1]) == {"one", "two"} and seen[1]["two"] - seen[1]["one"] == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="needs 2 inputs .* but got 4"):
        model_of(net, metrics={"mae"}, eval_network=Eval()).eval(batches(2))


def test_model_whose_network_gives_the_loss():
    net = zero_line()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    model = ms.Model(ms.WithLossCell(net, nn.MSELoss()), optimizer=opt)
    history = model.train(2, batches(3), witness := Witness())
    assert [round(v, 4) for v in history[0].raw_losses] == [round(loss_after(k), 4) for k in range(6)]
    assert [row[5][0] for row in witness.rows if row[0] == "on_train_step_end"] == ["scalar"] * 6


def test_model_keeps_the_rates_of_groups_and_parameters_outside_the_optimizer():
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    opt = torch.optim.SGD([dict(params=[net[1].weight], lr=0.1), dict(params=[net[1].bias], lr=0.01)])
    before, rates = net[0].weight.clone(), []
    note = ms.LambdaCallback(on_train_step_end=lambda c: rates.append([g["lr"] for g in c.original_args().optimizer.param_groups]))
    ms.Model(net, nn.MSELoss(), opt).train(1, batches(2), note)
    assert net[0].weight.equal(before) and rates == [[0.1, 0.01]] * 2


def test_model_says_what_is_wrong_at_once():
    calls = []
    note = ms.LambdaCallback(on_train_begin=calls.append, on_eval_begin=calls.append)
    net = zero_line()
    wrong = [
        (lambda: model_of().train(0, batches(1), note), ValueError),
        (lambda: model_of().train(1.5, batches(1), note), TypeError),
        (lambda: model_of().train(2, batches(1), note, initial_epoch=2), ValueError),
        (lambda: model_of().train(1, batches(1), note, sink_size=0), ValueError),
        (lambda: model_of().train(1, [], note), ValueError),
        (lambda: model_of().train(1, batches(1), [note, print]), TypeError),
        (lambda: model_of().train(1, batches(1), 7), TypeError),
        (lambda: model_of().fit(1, batches(1), batches(1), callbacks=note), ValueError),
        (lambda: model_of(metrics={"mse"}).fit(1, batches(1), batches(1), 0, note), ValueError),
        (lambda: model_of(metrics={"mse"}).fit(1, batches(1), batches(1), "2", note), TypeError),
        (lambda: model_of(metrics={"mse"}).fit(1, batches(1), batches(1), [0], note), ValueError),
        (lambda: model_of().eval(batches(1), note), ValueError),
        (lambda: model_of(metrics=["mse"]), TypeError),
        (lambda: model_of(metrics={"none"}), KeyError),
        (lambda: model_of(eval_indexes=[0, 1]), ValueError),
        (lambda: model_of(eval_indexes=(0, 1, 2)), ValueError),
        (lambda: model_of(amp_level="O2"), ValueError),
        (lambda: ms.Model(net, metrics={"mse"}), ValueError),
        (lambda: ms.Model(net, nn.MSELoss()).train(1, batches(1), note), ValueError),
        (lambda: ms.Model(net, nn.MSELoss(), 3), TypeError),
    ]
    for call, kind in wrong:
        with pytest.raises(kind):
            call()
    assert calls == []
    with pytest.raises(ValueError, match="should return two elements, but got 3"):
        model_of().train(1, [(torch.ones(1, 1),) * 3], witness := Witness())
    assert [row[0] for row in witness.rows] == ["on_train_begin", "on_train_epoch_begin"]


def test_model_epochs_and_frequencies():
    def evaluated(**kwargs):
        model_of(metrics={"loss"}).fit(4, batches(2), batches(1), callbacks=(witness := Witness()), **kwargs)
        return [row[1] for row in witness.rows if row[0] == "on_eval_end"]

    assert evaluated(valid_frequency=2) == [2, 4] and evaluated(valid_frequency=[1, 3]) == [1, 3] and evaluated(valid_frequency=[]) == []
    assert evaluated(valid_frequency=2, initial_epoch=2) == [4]
    nums = []
    note = ms.LambdaCallback(
        on_train_step_end=lambda c: nums.append([c.original_args()[k] for k in ("epoch_num", "cur_epoch_num", "cur_step_num")])
    )
    model_of().train(4, batches(1), note, initial_epoch=2)
    assert nums == [[2, 3, 1], [2, 4, 2]]


def test_model_evaluates_inside_a_fit():
    model, found = model_of(metrics={"loss"}), []

    class Evaluate(ms.Callback):
        def on_train_epoch_end(self, run_context):
            found.append(model.eval(batches(1))["loss"])

    model.train(2, torch.utils.data.DataLoader([(torch.tensor([v]), torch.tensor([2 * v + 3])) for v in (-1.0, 1.0)], 2), [Evaluate()])
    assert [round(v, 4) for v in found] == [round(loss_after(k), 4) for k in (1, 2)]


def test_the_package_does_not_import_the_dialect():
    code = "import sys, cbnb, cbnb.all; print([m for m in sys.modules if 'mindspore' in m or 'fastai_v1' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_names_are_in_one_place():
    names = """Callback RunContext LossMonitor TimeMonitor ModelCheckpoint CheckpointConfig LearningRateScheduler EarlyStopping History
    LambdaCallback save_checkpoint load_checkpoint load_param_into_net Metric MAE MSE Loss Accuracy Model WithLossCell TrainOneStepCell
    WithEvalCell rearrange_inputs""".split()
    assert all(name in ms.__all__ and hasattr(ms, name) for name in names)


# ---------------------------------------------------------------- a second look


def test_objects_with_begin_and_end_only_with_slots_and_with_half_a_context_manager():
    calls = []

    class Slots:
        __slots__ = ("name",)

        def __init__(self, name):
            self.name = name

        def begin(self, run_context):
            calls.append((self.name, run_context.original_args().mode))

    class Enter(Slots):
        def __enter__(self):
            calls.append("enter")

    class Exit(Slots):
        def __exit__(self, *err):
            calls.append("exit")

    with pytest.warns(DeprecationWarning):
        learner(cbs=[Slots(1), Slots(2)]).fit(1)  # two, though of one class: what is in slots counts
    assert calls == [(1, "train"), (2, "train"), (1, "eval"), (2, "eval")]
    calls.clear()
    with pytest.warns(DeprecationWarning):
        learner(n_valid=0).fit(1, cbs=[Enter(1), Exit(2)])
    assert calls == ["enter", (1, "train"), (2, "train"), "exit"]
    for strange in (range(3).count, type("Timer", (), dict(begin=lambda self: None))(), (2).bit_length):
        with pytest.raises(TypeError, match="not a callback"):
            learner().fit(1, cbs=[strange])


def test_a_number_is_rounded():
    one = as_output(torch.tensor(1.2345))
    assert round(one, 2) == 1.23 and round(one) == 1


def test_a_loss_monitor_with_a_beginning_of_its_own_prints_in_a_second_run(capsys):
    class Mine(ms.LossMonitor):
        def on_train_begin(self, run_context):
            pass

    learn, monitor = learner(n_valid=0), Mine(2)
    for _ in range(2):
        learn.fit(1, cbs=monitor)
    assert [line[:16] for line in capsys.readouterr().out.splitlines()] == ["epoch: 1 step: 2"] * 2


def test_model_with_a_vector_of_losses(capsys):
    net, outs = zero_line(), []
    note = ms.LambdaCallback(on_train_step_end=lambda c: outs.append(c.original_args().net_outputs))
    model = ms.Model(net, nn.L1Loss(reduction="none"), torch.optim.SGD(net.parameters(), lr=0.1))
    n = len(batches(1)[0][0])
    model.train(1, batches(1), [note, ms.LossMonitor()])
    assert outs[0].shape == (n, 1) and capsys.readouterr().out == f"epoch: 1 step: 1, loss is {outs[0].mean().item()}\n"
    assert net.bias.item() == pytest.approx(0.1 * n)  # of the sum


def test_a_nan_in_a_train_one_step_cell_is_found_before_the_update():
    net = zero_line()
    step = ms.TrainOneStepCell(ms.WithLossCell(net, nn.MSELoss()), torch.optim.SGD(net.parameters(), lr=0.1 / 8), sens=8.0)
    data = batches(2) + [(torch.ones(2, 1), torch.full((2, 1), float("nan")))]
    with pytest.raises(ValueError, match="In epoch: 1 step: 3, loss is NAN or INF"):
        ms.Model(step).train(1, data, [ms.LossMonitor(0), witness := Witness()])
    assert [round(row[5][1], 4) for row in witness.rows if row[0] == "on_train_step_end"] == [13, 8.32] and net.bias.isfinite().all()


def test_a_train_one_step_cell_with_a_step_of_its_own():
    class Clip(ms.TrainOneStepCell):
        def forward(self, *inputs):
            loss = self.network(*inputs)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(self.network.parameters(), 1.0)
            self.optimizer.step()
            return loss

    net, names = zero_line(), []
    note = ms.LambdaCallback(on_train_end=lambda c: names.extend(c.original_args().train_network.state_dict()))
    ms.Model(Clip(ms.WithLossCell(net, nn.MSELoss()), torch.optim.SGD(net.parameters(), lr=0.1))).train(1, batches(2), note)
    assert names == ["weight", "bias"] and net.bias.item() == pytest.approx(0.2)


def test_metrics_of_ones_own_get_arrays_by_asnumpy():
    class Own(ms.Metric):
        def __init__(self):
            super().__init__()
            self.clear()

        def clear(self):
            self.total, self.rows = 0.0, 0

        def update(self, *inputs):
            pred, y = inputs[0].asnumpy(), self._convert_data(inputs[1])
            self.total += abs(y - pred).sum()
            self.rows += len(y)

        def eval(self):
            return self.total / self.rows

    expected = model_of(metrics={"mae"}).eval(batches(2))["mae"]
    assert model_of(metrics={"own": Own()}).eval(batches(2)) == {"own": pytest.approx(expected)}
    assert learner(metrics=[Own()]).validate()[1] == pytest.approx(expected)
    assert Own()._convert_data([1.0, 2.0]).tolist() == [1, 2]


def test_accuracy_is_not_rounded_to_float32():
    accuracy = ms.Accuracy()
    accuracy.update(torch.tensor([[0.2, 0.5], [0.3, 0.1], [0.9, 0.6]]), torch.tensor([1, 0, 1]))
    assert accuracy.eval() == 2 / 3


def test_a_loss_monitor_whose_step_end_is_overridden(capsys):
    class Mine(ms.LossMonitor):
        def step_end(self, run_context):
            super().step_end(run_context)
            print("mine", run_context.original_args().cur_step_num)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner(metrics=None).fit(1, cbs=[Mine(2), ms.LossMonitor(9)])
    assert [line[:16] for line in capsys.readouterr().out.splitlines()] == ["mine 1", "epoch: 1 step: 2", "mine 2", "mine 3"]


def test_a_metric_that_gives_several_numbers_is_named():
    class Recall(ms.Metric):
        clear = update = lambda self, *inputs: None

        def eval(self):
            return [0.5, 1.0]

    for call in (lambda: model_of(metrics={"recall": Recall()}).eval(batches(1)), lambda: learner(metrics=[Recall()]).validate()):
        with pytest.raises(TypeError, match="metric 'recall' gave .0.5, 1.0.: its eval should return one number"):
            call()


@pytest.mark.parametrize("sens, weight", [(None, 0.45), (1.0, 0.45), (10.0, 4.5)])
def test_sens_multiplies_the_gradients_as_in_mindspore(sens, weight):
    """One step of SGD at 0.01 with sens=10 moves ten times as far, by hand and in a Model; the loss is the plain one."""
    data = torch.tensor([[1.0], [2], [3], [4]]), torch.tensor([[5.0], [7], [9], [11]])
    for by_model in (False, True):
        net, losses = zero_line(), []
        step = ms.TrainOneStepCell(ms.WithLossCell(net, nn.MSELoss()), torch.optim.SGD(net.parameters(), lr=0.01), sens)
        note = ms.LambdaCallback(on_train_step_end=lambda c: losses.append(float(c.original_args().net_outputs)))
        if by_model:
            ms.Model(step).train(1, [data], note)
        else:
            losses.append(float(step(*data)))
        assert net.weight.item() == pytest.approx(weight) and losses == pytest.approx([69.0])


def test_sens_and_an_optimizer_that_divides_by_it():
    """With an optimizer that divides by the same number, as MindSpore's do with loss_scale, nothing is scaled twice."""

    class Divides(torch.optim.SGD):
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.grad /= 10
            super().step()

    net = zero_line()
    step = ms.TrainOneStepCell(ms.WithLossCell(net, nn.MSELoss()), Divides(net.parameters(), lr=0.01), 10.0)
    step(torch.tensor([[1.0], [2], [3], [4]]), torch.tensor([[5.0], [7], [9], [11]]))
    assert net.weight.item() == pytest.approx(0.45)
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="sens="):
            ms.TrainOneStepCell(net, torch.optim.SGD(net.parameters(), lr=0.1), wrong)


def test_the_optimizer_of_the_context_has_mindspores_names():
    """`learning_rate`, `global_step`, `parameters` and `get_parameters()` are read and the rate is set, unchanged code of monitors."""

    class Warmup(ms.Callback):
        def __init__(self):
            self.rows = []

        def on_train_step_begin(self, run_context):
            opt = run_context.original_args().optimizer
            opt.learning_rate.set_data(torch.tensor(0.1 * (int(opt.global_step.asnumpy()[0]) + 1)))

        def on_train_step_end(self, run_context):
            p = run_context.original_args()
            opt = p.optimizer
            assert [id(q) for q in opt.get_parameters()] == [id(q) for q in opt.parameters] == [id(q) for q in p.network.parameters()]
            self.rows.append((round(float(opt.learning_rate.asnumpy()), 4), int(opt.global_step), f"{opt.get_lr().value():.1f}"))

    learn = learner(n_valid=1)
    learn.fit(1, cbs=(cb := Warmup()))
    assert cb.rows == [(0.1, 1, "0.1"), (0.2, 2, "0.2"), (0.3, 3, "0.3")] and learn.recorder.lrs == pytest.approx([0.1, 0.2, 0.3])
    assert type(learn.opt) is torch.optim.SGD and not hasattr(learn.opt, "learning_rate") and learn.opt.param_groups[0]["lr"] == 0.1


def test_groups_and_several_optimizers_have_mindspores_names():
    """Different rates are a list, assigning sets all; each of several optimizers has the names, and a copy has the plain class."""
    seen = []

    def look(c):
        opts = c.original_args().optimizer
        for opt in opts if isinstance(opts, list) else [opts]:
            rates = opt.learning_rate
            seen.append([round(float(lr), 4) for lr in rates] if isinstance(rates, list) else round(float(rates), 4))
            opt.learning_rate = 0.5
            assert [g["lr"] for g in opt.param_groups] == [0.5] * len(opt.param_groups)
            assert type(copy.deepcopy(opt)) is type(pickle.loads(pickle.dumps(opt))) is torch.optim.SGD

    note = ms.LambdaCallback(on_train_step_end=look)
    learner(1, splitter=lambda m: [[m.weight], [m.bias]]).fit(1, [0.1, 0.2], cbs=note)
    net = zero_line()
    both = cbnb.MultiOptimizer([torch.optim.SGD([p], lr=lr) for p, lr in zip(net.parameters(), (0.1, 0.3))])
    learner(1, model=net, opt_func=both, lr=[0.1, 0.3], splitter=lambda m: [[m.weight], [m.bias]]).fit(1, cbs=note)
    assert seen == [[0.1, 0.2], 0.1, 0.3]


def test_amp_level_says_what_there_is():
    """The message names the only level and a recipe; the recipe works."""
    with pytest.raises(ValueError, match="amp_level='O2': the only level here is 'O0'.*MixedPrecision"):
        model_of(amp_level="O2")

    class Half(nn.Linear):
        @torch.autocast("cpu", torch.bfloat16)
        def forward(self, x):
            out = super().forward(x)
            kinds.append(out.dtype)
            return out.float()  # some losses of torch 2.4 want equal types

    kinds, net = [], Half(1, 1)
    model_of(net).train(1, batches(1))
    assert set(kinds) == {torch.bfloat16} and net.weight.dtype == torch.float32


def test_a_callback_that_leaves_the_model_in_eval_mode_spoils_no_training_batch():
    """Each training batch is trained in training mode, though a callback evaluated the network and did not switch back."""
    modes = []

    class Looks(ms.Callback):
        def on_train_step_begin(self, run_context):
            modes.append(run_context.original_args().network.training)

        def on_train_step_end(self, run_context):
            run_context.original_args().train_network.eval()

    class Net(nn.Linear):
        def forward(self, x):
            seen.append(self.training)
            return super().forward(x)

    seen = []
    with pytest.warns(UserWarning, match="called model.eval"):
        learner(n_valid=0, model=Net(1, 1)).fit(2, cbs=Looks())
    assert seen == [True] * 2 * B and len(modes) == 2 * B


# ---------------------------------------------------------------- metrics, part by part


def test_a_metric_chooses_once_what_it_gets():
    """Whether its own `update` chooses, or somebody chooses for it."""
    got = []

    class Chooses(ms.Metric):
        def clear(self):
            pass

        @ms.rearrange_inputs
        def update(self, *inputs):
            got.append(inputs)

        def eval(self):
            return 1.0

    class Plain(Chooses):
        def update(self, *inputs):
            got.append(inputs)

    for metric in (Chooses(), Plain()):
        feed(metric, (1, 2, 3))
        feed(metric.set_indexes([2, 0]), (1, 2, 3))
        assert got == [(1, 2, 3), (3, 1)], metric
        got.clear()
    Chooses().set_indexes([2, 0]).update(1, 2, 3), Plain().set_indexes([2, 0]).update(1, 2, 3)
    assert got == [(3, 1), (1, 2, 3)] and Chooses.update.__name__ == "update"


def test_a_metric_called_by_hand_sees_one_batch_alone():
    metric = ms.MAE("elements")
    metric.update([[1.0]], [[9.0]])
    assert metric([[1.0], [2.0]], [[2.0], [4.0]]) == 1.5 and metric.eval() == 1.5
    metric.update([[0.0]], [[3.0]])
    assert metric.eval() == 2


def test_a_metric_of_the_dialect_in_a_learner_says_nothing_before_a_batch():
    metric, learn = ms.MAE(), learner(1, metrics=None)
    assert metric.value is None
    learn.xb, learn.yb, learn.pred = (torch.zeros(1, 1),), (torch.ones(1, 1),), torch.zeros(1, 1, requires_grad=True)
    metric.accumulate(learn)
    new = copy.copy(metric)
    assert metric.value == 1 == new.value
    new.reset()
    assert new.value is None and metric.value == 1


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda v: torch.tensor(v, requires_grad=True)])
def test_lists_arrays_and_tensors_become_tensors(make):
    found = as_tensor(make([1.0, 2.0]), "here")
    assert type(found) is torch.Tensor and found.tolist() == [1, 2] and not found.requires_grad


@pytest.mark.parametrize("value", [1.0, "words", None, {}])
def test_other_inputs_are_refused(value):
    with pytest.raises(TypeError, match=re.escape(f"For 'here', the input {value!r} should be a tensor, or a list or array of numbers.")):
        as_tensor(value, "here")


def test_indexes_of_the_dialect_are_a_list_of_whole_numbers():
    metric = ms.MAE().set_indexes([1, 0])
    assert metric.indexes == [1, 0] and metric.set_indexes([]).indexes is None
    for wrong in ([0, 1.5], ["0"], (0,), {0}):
        with pytest.raises(ValueError, match="should be a list of whole numbers"):
            metric.set_indexes(wrong)


@pytest.mark.parametrize("make, want", [(ms.MAE, 4.5), (lambda: ms.MAE("elements"), 2.25), (ms.MSE, 15), (lambda: ms.MSE("elements"), 7.5)])
def test_errors_are_averaged_over_all_batches(make, want):
    """Rows of errors (1, 2), (0, 0) and (3, 4) and (1, 7): by rows, sums of squares 5, 0, 25 and 50; the targets have another shape."""
    metric = make()
    metric.update(torch.zeros(2, 2, dtype=torch.uint8), torch.tensor([[1, -2], [0, 0]]).view(2, 2, 1))
    metric.update(torch.zeros(2, 2), torch.tensor([[3.0, -4.0], [1.0, 7.0]]))
    assert metric.eval() == pytest.approx({4.5: 18 / 4, 2.25: 18 / 8, 15: 80 / 4, 7.5: 80 / 8}[want])
    metric.clear()
    with pytest.raises(RuntimeError, match=f"For '{type(metric).__name__}.eval', there is nothing to average"):
        metric.eval()


def test_the_base_of_errors_has_none_of_its_own():
    with pytest.raises(NotImplementedError):
        ErrorMetric().update([1.0], [2.0])
    for ask in (ms.Metric().clear, ms.Metric().update, ms.Metric().eval):
        with pytest.raises(NotImplementedError):
            ask()


def test_many_small_errors_add_up():
    """With 32 bits, a hundred million and one would be a hundred million."""
    metric = ms.MAE("elements")
    metric.update(torch.zeros(1), torch.tensor([1e8]))
    for _ in range(1000):
        metric.update(torch.zeros(1), torch.ones(1))
    assert metric.eval() * 1001 == pytest.approx(1e8 + 1000, rel=1e-12)


@pytest.mark.parametrize("average, want", [("batches", 3.0), ("items", 10 / 4)])
def test_losses_of_batches_and_of_items(average, want):
    """Batches of three items and of one; the first is a vector, the second a number of Python."""
    metric = ms.Loss(average)
    metric.update(torch.tensor([1.0, 2.0, 3.0])), metric.update(4.0)
    assert metric.eval() == want
    with pytest.raises(ValueError, match="Loss.update needs 1 input .the loss., but got 2"):
        metric.update(1.0, 2.0)
    with pytest.raises(ValueError, match="should have 0 or 1 dimensions, but its shape is .1, 1."):
        metric.update(torch.zeros(1, 1))
    with pytest.raises(ValueError, match="average='rows' should be 'batches' or 'items'"):
        ms.Loss("rows")
    with pytest.raises(ValueError, match="average='items' should be 'rows' or 'elements'"):
        ms.MAE("items")


def test_the_loss_of_a_learner_knows_how_many_items_there_were():
    loss, learn = ms.Loss("items"), learner(1, metrics=None)
    for n, value in ((3, 1.0), (1, 5.0)):
        learn.xb, learn.yb, learn.loss = (torch.zeros(n, 1),), (torch.zeros(n, 1),), torch.tensor(value)
        loss.accumulate(learn)
    assert loss.eval() == 2
    loss.update(torch.tensor(8.0))  # by hand, a number is one item
    assert loss.eval() == 16 / 5


ROWS = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])


@pytest.mark.parametrize(
    "kind, pred, y, share",
    [
        ("classification", ROWS, [1, 0, 0, 1], 0.5),
        ("classification", ROWS, [[1], [0], [1], [0]], None),
        ("classification", ROWS, [[0, 1], [1, 0], [1, 0], [1, 0]], 0.75),
        ("classification", ROWS.T[None], [[1, 0, 1, 1]], 0.75),
        ("multilabel", [[1, 0], [1, 1], [0, 0]], [[1, 0], [0, 1], [0, 0]], 2 / 3),
        ("multilabel", [[[1, 0]], [[1, 1]]], [[1, 0], [0, 1]], 0.5),
    ],
)
def test_accuracy_of_classes_and_of_labels(kind, pred, y, share):
    metric = ms.Accuracy(kind)
    if share is None:  # a column of class numbers is taken for one-hot rows of one class
        metric.update(pred, y)
        assert metric.eval() == 0.5
        return
    metric.update(pred, y)
    assert metric.eval() == share
    metric.update(pred, y)
    assert metric.eval() == share and metric.total == 2 * share * metric.count / 2
    with pytest.raises(ValueError, match="eval_type='x' should be 'classification' or 'multilabel'"):
        ms.Accuracy("x")


def test_metrics_by_name():
    assert ms.get_metrics(None) == {} and [type(m) for m in ms.get_metrics({"mse", "acc", "loss"}).values()] == [
        ms.Accuracy,
        ms.Loss,
        ms.MSE,
    ]
    given = {"mine": ms.MAE()}
    assert ms.get_metrics(given) == given and ms.get_metrics(given) is not given
    for wrong, error, words in (
        ({"mine": 3}, TypeError, "metric 'mine' is 3: it should be an object with clear, update and eval"),
        (["mae"], TypeError, "should be a set of names, or a dict of metrics"),
        ({"none"}, KeyError, "no metric is called 'none': the choices are mae, MAE, mse"),
    ):
        with pytest.raises(error, match=words):
            ms.get_metrics(wrong)


# ---------------------------------------------------------------- networks and models, part by part


def test_a_wrapped_network_is_saved_under_its_own_names():
    net, other = zero_line(), nn.Linear(1, 1)
    cell = ms.WithLossCell(net, nn.MSELoss())
    assert list(cell.state_dict()) == ["weight", "bias"]
    cell.load_state_dict(other.state_dict())
    assert net.weight.equal(other.weight) and cell(torch.ones(2, 1), other(torch.ones(2, 1))) == 0


@pytest.mark.parametrize("cast, dtype", [(True, torch.float32), (False, torch.float64)])
def test_an_evaluation_cell_gives_loss_prediction_and_label(cast, dtype):
    net = zero_line().double()
    loss, pred, label = ms.WithEvalCell(net, nn.MSELoss(), cast)(torch.ones(2, 1).double(), torch.full((2, 1), 3.0).double())
    assert loss == 9 and pred.dtype == label.dtype == dtype and pred.tolist() == [[0], [0]] and label.tolist() == [[3], [3]]
    with pytest.raises(TypeError, match="add_cast_fp32=1 should be True or False"):
        ms.WithEvalCell(net, nn.MSELoss(), 1)


@pytest.mark.parametrize("indexes", [[0, 1, 2], [-1, 5, 0], None])
def test_where_loss_prediction_and_label_may_be(indexes):
    assert model_of(eval_indexes=indexes).eval_indexes == indexes


@pytest.mark.parametrize("indexes", [[0, 1], [0, 1, 2, 3], (0, 1, 2), [0, 1, 2.0], [0, 1, True], "012"])
def test_where_they_may_not_be(indexes):
    with pytest.raises(ValueError, match="should be a list of three whole numbers"):
        model_of(eval_indexes=indexes)


@pytest.mark.parametrize("name", ["amp_level", "boost_level"])
def test_there_is_one_level(name):
    assert model_of(**{name: "O0"}).learn is None
    with pytest.raises(ValueError, match=f"{name}='O1': the only level here is 'O0'"):
        model_of(**{name: "O1"})


def test_metrics_need_an_evaluation():
    with pytest.raises(ValueError, match="need an evaluation: pass loss_fn"):
        ms.Model(zero_line(), metrics={"mse"})
    assert ms.Model(zero_line(), metrics={"mse"}, eval_network=zero_line()).metrics and ms.Model(zero_line()).metrics == {}


class Outputs(nn.Module):
    """Of an evaluation: what it is told, as a function of the prediction and the label."""

    def __init__(self, net, make):
        super().__init__()
        self.net, self.make, self.modes = net, make, []

    def forward(self, x, y):
        self.modes.append(self.training)
        return self.make(self.net(x), y)


@pytest.mark.parametrize(
    "make, indexes, want",
    [
        (lambda p, y: ((p - y).square().mean(), p, y), [0, 1, 2], dict(loss=13, mae=3)),
        (lambda p, y: (y, p, (p - y).square().mean()), [2, 1, 0], dict(loss=13, mae=3)),
        (lambda p, y: (y, p, (p - y).square().flatten()), [2, 1, 0], dict(loss=13, mae=3)),  # a loss of each item
        (lambda p, y: (y, p + 1, (p - y).square().mean()), [-1, 1, 0], dict(loss=13, mae=2.0)),
    ],
)
def test_an_evaluation_network_and_where_its_outputs_are(make, indexes, want):
    """Of a model that says 0, of targets 1 and 5: errors of 3 in the mean, and squares of 13."""
    net = zero_line()
    network = Outputs(net, make)
    model = model_of(net, metrics={"loss", "mae"}, eval_network=network, eval_indexes=indexes)
    assert model.eval(batches(2)) == pytest.approx(want) and network.modes == [False] * 2
    assert model.learn.recorder is not None and model.learn.validate(dl=batches(2))[0] == pytest.approx(want["loss"])


@pytest.mark.parametrize("loss", [lambda y: torch.tensor(3), lambda y: torch.zeros(2, 2, 2), lambda y: "words"])
def test_what_is_no_loss_is_not_taken_for_one(loss):
    net = zero_line()
    model = model_of(net, metrics={"mae"}, eval_network=Outputs(net, lambda p, y: (loss(y), p, y)), eval_indexes=[0, 1, 2])
    assert model.eval(batches(1)) == {"mae": pytest.approx(3)} and model.learn.validate(dl=batches(1))[0] is None


def test_a_model_goes_on_with_its_learner_and_other_data():
    model = model_of(metrics={"mae"})
    first = model.train(1, batches(2))
    learn, found = model.learn, model.eval(batches(1))["mae"]
    again = model.fit(2, batches(3), batches(1))
    assert model.learn is learn and again is first and len(first) == 2 and [run.n_steps for run in first] == [2, 6]
    assert first[1].epochs[-1]["mae"] < found and [row["epoch"] for row in first[1].epochs] == [0, 1]
    assert list(first[1].raw_losses) == pytest.approx([loss_after(k) for k in range(2, 8)], abs=1e-4)


def test_a_model_without_an_optimizer_evaluates_but_does_not_train():
    net = zero_line()
    model = ms.Model(net, nn.MSELoss(), metrics={"loss"})
    assert model.eval(batches(1)) == {"loss": pytest.approx(13)}
    with pytest.raises(ValueError, match="optimizer is missing"):
        model.train(1, batches(1))


def test_a_network_that_is_a_training_step_has_its_optimizers():
    class Step(nn.Module):
        def __init__(self, net, *opts):
            super().__init__()
            self.net = net
            for i, opt in enumerate(opts):
                setattr(self, f"opt{i}", opt)

        def forward(self, x, y):
            loss = (self.net(x) - y).square().mean()
            self.net.zero_grad()
            loss.backward()
            for opt in (self.opt0, self.opt1):
                opt.step()
            return loss

    net = zero_line()
    opts = [torch.optim.SGD([p], lr=lr) for p, lr in zip(net.parameters(), (0.1, 0.1))]
    seen = []
    note = ms.LambdaCallback(on_train_step_end=lambda c: seen.append(len(c.original_args().optimizer)))
    history = ms.Model(Step(net, *opts)).train(1, batches(3), note)
    assert list(history[0].raw_losses) == pytest.approx([loss_after(k) for k in range(3)], abs=1e-4) and seen == [2] * 3
    assert ms._joined_optimizers(nn.Linear(1, 1)) is None and len(ms._joined_optimizers(Step(net, *opts)).param_groups) == 2


def test_the_parameters_of_an_optimizer_in_its_groups():
    net = zero_line()
    opt = torch.optim.SGD([dict(params=[net.bias]), dict(params=[net.weight])], lr=0.1)
    assert [[id(p) for p in group] for group in ms._groups_of(opt, net)] == [[id(net.bias)], [id(net.weight)]]


@pytest.mark.parametrize("kwargs", [dict(dataset_sink_mode=True), dict(valid_dataset_sink_mode=True)])
def test_sink_mode_is_answered_with_a_warning(kwargs):
    with pytest.warns(UserWarning, match="dataset_sink_mode=True has no effect here"):
        model_of(metrics={"mae"}).fit(1, batches(1), batches(1), **kwargs)
    with pytest.warns(UserWarning, match="has no effect here"):
        model_of(metrics={"mae"}).eval(batches(1), dataset_sink_mode=True)
    with pytest.warns(UserWarning, match="has no effect here"):
        model_of().train(1, batches(1), dataset_sink_mode=True)


def test_without_sink_mode_there_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = model_of(metrics={"mae"})
        model.train(1, batches(1)), model.fit(1, batches(1), batches(1), sink_size=1), model.eval(batches(1))
    for wrong in (0, -2):
        with pytest.raises(ValueError, match="sink_size="):
            model.train(1, batches(1), sink_size=wrong)


@pytest.mark.parametrize("given, found", [(1, 1), (3, 3), ([1, 3], [0, 2]), ((2,), [1]), ([], [])])
def test_epochs_of_evaluation_are_counted_from_0(given, found):
    assert ms._as_valid_every(given) == found


def test_a_copy_of_a_metric_of_a_model_has_a_metric_of_its_own():
    metric = ms._ModelMetric("mine", ms.MAE(), [0, 1, 2], True)
    new = copy.copy(metric)
    assert (new.name, new.indexes, new.whole, new.seen) == ("mine", [0, 1, 2], True, False) and new.metric is not metric.metric
    metric.metric.update([[1.0]], [[2.0]])
    assert metric.value is None and metric.metric.eval() == 1
    metric.seen = True
    assert metric.value == 1
    metric.reset()
    assert metric.value is None


def test_batches_of_one_column_and_of_three():
    """A network that is the whole step takes what there is; a loss_fn takes two."""

    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))
            self.opt = torch.optim.SGD([self.w], lr=0.1)

        def forward(self, *columns):
            seen.append(len(columns))
            loss = (self.w - 1) ** 2
            self.w.grad = None
            loss.backward()
            self.opt.step()
            return loss

    seen, t = [], torch.ones(2, 1)
    ms.Model(Three()).train(1, [(t, t, t)]), ms.Model(Three()).train(1, [(t,)])
    assert seen == [3, 1]
    for batch, n in (((t,), 1), (t, 1), ([t] * 3, 3)):
        with pytest.raises(ValueError, match=f"'train_dataset' should return two elements, but got {n}"):
            model_of().train(1, [batch])
        with pytest.raises(ValueError, match=f"'valid_dataset' should return two elements, but got {n}"):
            model_of(metrics={"mae"}).eval([batch])
    net = zero_line()
    wide = model_of(net, metrics={"mae"}, eval_network=Evaluates(net))
    assert wide.eval([(torch.zeros(2, 1), torch.ones(2, 1), torch.ones(2, 1))]) == {"mae": 2}


class Evaluates(nn.Module):
    """Takes three columns, and gives a prediction and a label."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y, z):
        return self.net(x), y + z


@pytest.mark.parametrize(
    ("change", "rate"),
    [
        (lambda lr: lr.fill_(0.001), 0.001),
        (lambda lr: lr.copy_(torch.tensor(0.02)), 0.02),
        (lambda lr: lr.__imul__(0.5), 0.05),
        (lambda lr: lr.__setitem__(..., 0.3), 0.3),
        (lambda lr: setattr(lr, "data", torch.tensor(0.4)), 0.4),
        (lambda lr: lr * 0.5 + lr.exp(), 0.1),  # a calculation changes nothing
        (lambda lr: (lr * 0.5).fill_(7), 0.1),
        (lambda lr: (int(lr), float(lr), lr.item()), 0.1),
    ],
    ids=["fill_", "copy_", "*=", "[...]", "data", "a calculation", "its result", "read"],
)
def test_a_rate_that_is_changed_in_place_is_the_rate_of_the_next_update(change, rate):
    """It changed a copy, silently; the loop by hand moves the weights by the new rate."""

    def set_once(run_context):
        if run_context.original_args().cur_step_num == 1:
            change(run_context.original_args().optimizer.learning_rate)

    learn, by_hand = learner(n_valid=1), learner(n_valid=1)
    learn.fit(1, cbs=ms.LambdaCallback(on_train_step_end=set_once))
    assert learn.recorder.lrs == [0.1, rate, rate]
    opt = torch.optim.SGD(by_hand.model.parameters(), 0.1)
    for i, (x, y) in enumerate(by_hand.dls.train):
        opt.param_groups[0]["lr"] = rate if i else 0.1
        opt.zero_grad()
        by_hand.loss_func(by_hand.model(x), y).backward()
        opt.step()
    assert [p.tolist() for p in learn.model.parameters()] == [p.tolist() for p in by_hand.model.parameters()]


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (TypeError, "ckpt_file_name=None should be the path of a file", lambda: ms.load_checkpoint(None)),
        (ValueError, "ckpt_file_name='' should be the path of a file", lambda: ms.save_checkpoint(zero_line(), "")),
        (TypeError, "net=3 should be a network", lambda: ms.load_param_into_net(3, {})),
        (TypeError, "parameter_dict=3 should be a dict of tensors", lambda: ms.load_param_into_net(zero_line(), 3)),
        (TypeError, "baseline='a' should be a number, or None", lambda: ms.EarlyStopping(baseline="a")),
        (TypeError, "eval_network=3 should be a network", lambda: model_of(eval_network=3)),
        (TypeError, "train_dataset is None", lambda: model_of().train(1, None)),
        (TypeError, "valid_dataset is None", lambda: model_of(metrics={"mae"}).eval(None)),
        (ValueError, "MAE.update needs as many labels as predictions", lambda: ms.MAE().update(torch.ones(3), torch.ones(4))),
        (ValueError, "Accuracy.update needs a score for each class", lambda: ms.Accuracy().update(torch.ones(3), torch.ones(3))),
        (TypeError, "optimizer=None should be an optimizer", lambda: ms.TrainOneStepCell(zero_line(), None)),
    ],
)
def test_wrong_arguments_are_named_at_the_call(kind, words, call):
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_any_path_names_a_checkpoint(tmp_path):
    class Named:
        def __fspath__(self):
            return str(tmp_path / "a.ckpt")

    ms.save_checkpoint({"a": torch.ones(1)}, Named())
    assert ms.load_checkpoint(Named())["a"].item() == 1
