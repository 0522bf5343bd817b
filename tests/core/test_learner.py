"""The learner's own promises that no other file of tests is about."""

import copy
import types
import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import cbnb
from cbnb import events as base
from cbnb.basics.arguments import as_count
from cbnb.basics.losses import as_loss, pred_of, split_result
from cbnb.basics.optimizers import checked_lr
from cbnb.callback_list import as_list, is_a
from cbnb.callbacks.model_loss import ModelLossStep, computes_loss
from cbnb.insight.first_batch import depends_on
from cbnb.length import as_valid_every
from cbnb.step import as_step
from helpers import Line, ab, line_batches, line_learner


@pytest.mark.parametrize("event", ["after_loss", "before_backward"])
@pytest.mark.parametrize("function", [False, True])
def test_a_gradient_loss_that_is_scaled_in_place_leaves_the_loss(event, function):
    """The step is four times as long, and the recorded loss is that of the data: 13 at the beginning."""
    scale = cbnb.Callback(**{event: lambda self: self.learn.loss_grad.mul_(4) if self.learn.training else None})
    model = Line()
    step = dict(train_step=lambda x, y: nn.functional.mse_loss(model(x), y)) if function else {}
    learn = line_learner(1, valid=False, model=model, lr=0.025, **step)
    learn.fit(1, cbs=scale)
    assert learn.recorder.history[0].raw_losses[0] == 13 and ab(learn) == pytest.approx((0.4, 0.6))


def test_modules_of_a_step_that_the_model_does_not_hold_are_evaluated_in_eval_mode():
    """For the length of a call: outside of it they are as somebody has left them."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.drop, self.modes = Line(), nn.Dropout(0.5), []
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def train_on(self, x, y):
            self.modes.append(("train", self.drop.training, self.training))
            loss = nn.functional.mse_loss(self.net(x), y)
            loss.backward()
            self.opt.step()
            self.opt.zero_grad()
            return loss

        def evaluate(self, x, y):
            self.modes.append(("eval", self.drop.training, self.training))
            return nn.functional.mse_loss(self.net(x), y), self.net(x), y

    both = Both()
    batches = line_batches(2)
    learn = cbnb.Learner(
        cbnb.DataLoaders(batches, batches[:1], device="cpu"), both.net, train_step=cbnb.UpdateStep(both.train_on), eval_step=both.evaluate
    )
    with learn.no_logging(), learn.no_bar():
        learn.fit(2)
    assert both.modes == [("train", True, True), ("train", True, True), ("eval", False, False)] * 2
    assert both.drop.training and both.training
    both.modes.clear()
    both.drop.training = False
    learn.validate()
    assert both.modes == [("eval", False, False)] and not both.drop.training and both.training


def test_validate_leaves_the_record_of_the_last_fit():
    learn = line_learner()
    learn.fit(1)
    record, other = learn.final_record, [(torch.ones(2), torch.zeros(2))]
    assert learn.validate(dl=other) != record and learn.final_record == record


def test_summary_records_no_graph_and_leaves_no_hook():
    seen = []

    class Noting(Line):
        def forward(self, x):
            seen.append((torch.is_grad_enabled(), self.training, learn.purpose))
            return super().forward(x)

    learn = line_learner(model=Noting())
    text = learn.summary()
    assert (
        seen == [(False, False, "validate")]
        and learn.purpose == "fit"
        and learn.model.training
        and "2 parameters, 2 of them trainable" in text
    )
    assert not any(m._forward_hooks for m in learn.model.modules())
    state = torch.get_rng_state()
    learn.summary()
    assert torch.equal(state, torch.get_rng_state())


def test_summary_of_a_model_with_named_inputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x)

    batches = [dict(x=torch.zeros(4, 3), y=torch.zeros(4, 2))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, targets=("y",), device="cpu"), Named(), nn.MSELoss())
    assert "4x2" in learn.summary().replace(" x ", "x").replace(", ", "x")


def test_summary_of_a_model_that_takes_a_dict():
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, inputs):
            return self.layer(inputs["x"])

    batches = [(dict(x=torch.zeros(4, 3)), torch.zeros(4, 2))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, device="cpu"), Takes(), nn.MSELoss())
    assert "4x2" in learn.summary().replace(" x ", "x").replace(", ", "x")


def test_completion_offers_public_names_only():
    names = dir(line_learner())
    assert {"fit", "lr_find", "opt", "recorder"} <= set(names) and not [name for name in names if name.startswith("_")]


@pytest.mark.parametrize("moms", [(0.9,), (0.9, 0.8), (0.9, 0.8, 0.9, 0.8)])
def test_momenta_are_three(moms):
    with pytest.raises(ValueError, match="three numbers"):
        line_learner(moms=moms)


def test_callbacks_taken_out_for_a_while_come_back_to_their_places():
    learn = line_learner(cbs=[cbnb.GradientClip(1.0), cbnb.MixUp])
    before = learn.cbs
    with learn.removed_cbs([cbnb.GradientClip, cbnb.Recorder]):
        assert [type(cb) for cb in learn.cbs] == [type(cb) for cb in before if not isinstance(cb, (cbnb.GradientClip, cbnb.Recorder))]
        assert not hasattr(learn, "gradient_clip")
    assert learn.cbs == before and learn.gradient_clip is before[[type(cb) for cb in before].index(cbnb.GradientClip)]


RUNS = dict(
    fit=lambda learn: learn.fit(1),
    validate=lambda learn: learn.validate(),
    inner=lambda learn: learn.get_preds(inner=True),
    summary=lambda learn: learn.summary(),
)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_model_is_moved_to_the_device_of_the_loaders_before_the_first_batch(run):
    """Somebody may have moved it elsewhere since the last run."""
    seen = []

    class Noting(Line):
        def to(self, device):
            seen.append(str(device))
            return super().to(device)

        def forward(self, x):
            seen.append("forward")
            return super().forward(x)

    learn = line_learner(model=Noting())
    seen.clear()
    run(learn)
    assert seen[0] == "cpu" and "forward" in seen


# --- what functions and models may return ---

P, Y, N = torch.ones(2), torch.zeros(2), torch.tensor(0.5)


class Terms(NamedTuple):
    total: torch.Tensor
    kl: torch.Tensor
    pred: torch.Tensor | None = None


class Mixed(NamedTuple):
    kl: torch.Tensor
    loss: torch.Tensor


@pytest.mark.parametrize(
    "out, needs_loss, loss, parts, rest",
    [
        (0.5, True, 0.5, {}, []),
        (N, True, N, {}, []),
        (P, True, P, {}, []),  # `as_loss` refuses it in training
        ((1, N, P, Y), True, 1, dict(loss_1=0.5), ["P", "Y"]),
        ((N, P, 2, Y), True, N, dict(loss_2=2), ["P", "Y"]),
        ([N, P], True, N, {}, ["P"]),
        ((N, dict(kl=2, mse=1)), True, N, dict(kl=2, mse=1), []),
        ((N, P, dict(kl=2)), False, N, dict(kl=2), ["P"]),
        (Terms(N, torch.tensor(2.0)), True, N, dict(kl=2), [None]),
        (Terms(N, torch.tensor(2.0), P), True, N, dict(kl=2), ["P"]),
        (Mixed(torch.tensor(2.0), N), True, N, dict(kl=2), {}),
        (dict(loss=N, other=2), True, N, dict(other=2), {}),
        (dict(other=2, loss=N, pred=P), True, N, dict(other=2), dict(pred="P")),
        (dict(mse=N, pred=P), True, N, {}, dict(pred="P")),
        (dict(loss=P, a=1), True, P, dict(a=1), {}),
        (types.SimpleNamespace(loss=N, aux=2.0, logits=P), True, N, dict(aux=2), dict(logits="P")),
        ((N, P, Y), False, N, {}, ["P", "Y"]),
        ((0.5, P), False, 0.5, {}, ["P"]),
        ((P, Y), False, None, {}, ["P", "Y"]),
        ((P, 3), False, None, {}, ["P", 3]),  # without a loss there are no parts: 3 is a target
        (P, False, None, {}, ["P"]),
        (N, False, N, {}, []),
        (dict(accuracy=0.5, f1=1, pred=P), False, None, dict(accuracy=0.5, f1=1), dict(pred="P")),
        (dict(loss=None, logits=P), False, None, {}, dict(logits="P")),
        (None, True, None, {}, [None]),
        ({}, True, None, {}, {}),
        ((P, 3), True, P, dict(loss_1=3), []),
        (("no", 3), True, None, {}, ["no", 3]),
    ],
)
def test_loss_parts_and_predictions_are_told_apart(out, needs_loss, loss, parts, rest):
    found = split_result(out, needs_loss)
    names = {id(P): "P", id(Y): "Y"}
    values = found[2]
    named = {k: names.get(id(v), v) for k, v in values.items()} if isinstance(values, dict) else [names.get(id(v), v) for v in values]
    assert found[0] is loss and {k: v.item() for k, v in found[1].items()} == parts and named == rest


def test_several_numbers_without_a_loss_are_refused_with_the_fix():
    for out in (dict(policy=N, value=N), dict(a=1, b=2, pred=P)):
        with pytest.raises(TypeError, match='but no entry "loss": return the total to train with as "loss", as in dict.loss=total'):
            split_result(out, needs_loss=True)


@pytest.mark.parametrize(
    "out, training, words",
    [
        (None, True, "train_step returned None"),
        ("no", True, "'no'"),
        ({}, True, "train_step"),
        ((), True, "train_step"),
        (None, False, "eval_step returned None"),
        ((), False, "eval_step"),
    ],
)
def test_a_result_without_a_loss_or_a_prediction_is_refused(out, training, words):
    learn = line_learner(**{"train_step" if training else "eval_step": lambda x, y: out})
    with pytest.raises(TypeError, match=words):
        learn.fit(1) if training else learn.validate()


def test_a_training_function_that_returns_a_loss_for_each_item_is_told_to_average():
    with pytest.raises(ValueError, match=r"train_step returned a tensor of shape \(8,\), but training needs one number: take the mean"):
        line_learner(train_step=lambda x, y: y - 1).fit(1)


@pytest.mark.parametrize(
    "rest, pred",
    [
        (dict(logits=P, more=Y), P),
        (dict(one=P), P),
        ({}, None),
    ],
)
def test_the_prediction_among_named_values(rest, pred):
    assert pred_of(rest) is pred and pred_of(dict(a=P, b=Y)) == dict(a=P, b=Y)


def test_a_loss_in_training_is_one_number():
    class Sub(torch.Tensor):
        pass

    one = as_loss(torch.ones(1, 1), True)
    assert one.shape == () and as_loss(P, False) is P and as_loss(N, True) is N
    with pytest.raises(ValueError, match=r"shape \(2,\), but training needs one number"):
        as_loss(P, True)
    for training in (True, False):
        with pytest.raises(TypeError, match=r"a float \(3.0\), not a tensor"):
            as_loss(3.0, training)
    learn = line_learner(1, loss_func=lambda pred, y: nn.functional.mse_loss(pred, y).reshape(1).as_subclass(Sub))
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.4, 0.6))


def test_a_graph_that_branches_is_searched_once():
    """Each node twice as often as the one before: it would take for ever."""
    a, b = torch.ones((), requires_grad=True), torch.ones((), requires_grad=True)
    loss = a
    for _ in range(100):
        loss = loss + loss
    assert depends_on(loss, [a]) and depends_on(loss, [b, a]) and not depends_on(loss, [b]) and not depends_on(loss, [])
    assert not depends_on(loss.detach(), [a])


def test_models_that_compute_their_loss_take_labels():
    class Takes(nn.Module):
        def forward(self, x, labels=None):
            pass

    assert computes_loss(Takes()) and not computes_loss(Line()) and not computes_loss(print) and not computes_loss(None)


def test_what_is_a_step():
    step = ModelLossStep()
    assert as_step(step, "train_step") is step
    parts = dict.fromkeys(("predict", "loss", "backward", "step", "zero_grad"), print)
    for wrong, words in [
        (ModelLossStep, "is the class ModelLossStep: pass an instance"),
        (types.SimpleNamespace(**parts), "has the methods of a step"),
        (3, "train_step=3 is not a step"),
    ]:
        with pytest.raises(TypeError, match=words):
            as_step(wrong, "train_step")
    del parts["step"]
    almost = type("Almost", (), {**parts, "__call__": lambda self, x, y: N})()
    assert as_step(almost, "train_step").func is almost


@pytest.mark.parametrize(
    "batch, words",
    [
        (dict(x=P, label=Y, z=Y), "targets='label'"),
        (dict(x=P, y=Y, target=Y), "targets='target'"),
        (dict(x=P, z=Y), "targets='z'"),
        ({}, None),
        (P, None),
    ],
)
def test_a_model_that_fails_on_a_dict_is_told_how_to_name_its_target(batch, words):
    learn = line_learner(
        dls=cbnb.DataLoaders([(batch, Y)], n_inp=1, device="cpu"), model=type("Fails", (Line,), dict(forward=lambda self, x: 1 / 0))()
    )
    with pytest.raises(ZeroDivisionError) as caught:
        learn.fit(1)
    notes = [note for note in caught.value.__notes__ if "the batch is a dict" in note]
    assert len(notes) == (words is not None) and all(words in note for note in notes)


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_what_a_function_returns_is_the_prediction_and_its_targets():
    """Without targets it keeps those of the batch in training; an evaluation without targets has none."""
    seen, returns = [], []
    note = cbnb.Callback(after_loss=lambda cb: seen.append((cb.training, cb.learn.pred, cb.learn.yb)))
    learn = line_learner(1, train_step=cbnb.UpdateStep(lambda x, y: (N, *returns)), eval_step=lambda x, y: (N, *returns), cbs=note)
    y = line_batches(1)[0][1]
    for returns[:], trained, evaluated in [([P], P, ()), ([P, Y], P, (Y,))]:
        seen.clear()
        learn.fit(1)
        (_, pred, yb), (_, pred_2, yb_2) = seen
        assert pred is trained is pred_2 and yb_2 == evaluated
        assert yb == (Y,) if evaluated else torch.equal(yb[0], y)


# --- the parts of a learner ---


def test_a_step_for_evaluation_stays_when_the_one_for_training_changes():
    mine = lambda x, y: (N, P, Y)
    learn = line_learner(eval_step=mine)
    learn.train_step = lambda x, y: N
    assert learn.eval_step.func is mine
    learn = line_learner(loss_func=None, train_step=lambda x, y: N)
    learn.loss_func = nn.MSELoss()
    before = learn.eval_step
    learn.train_step = lambda x, y: N
    assert type(learn.eval_step) is not type(before)


def test_an_optimizer_is_asked_to_zero_its_gradients_its_own_way():
    class Own(torch.optim.SGD):
        zeroed = 0

        def zero_grad(self, set_to_none=True):
            self.zeroed += 1
            super().zero_grad(set_to_none)

    learn = line_learner(opt_func=Own, valid=False)
    learn.fit(1)
    assert learn.opt.zeroed >= 2 and ab(learn) == pytest.approx((0.72, 1.08))


def test_a_frozen_parameter_is_no_obstacle_to_a_function_that_trains():
    model = Line()
    model.b.requires_grad_(False)
    learn = line_learner(
        1,
        model=model,
        train_step=lambda x, y: nn.functional.mse_loss(model(x), y),
        opt_func=lambda groups, lr: torch.optim.SGD(model.parameters(), lr),
    )
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.4, 0))


def test_a_function_may_train_outside_of_a_run():
    model = Line()
    learn = line_learner(1, model=model, train_step=lambda x, y: nn.functional.mse_loss(model(x), y))
    learn.create_opt()
    learn.training = True
    learn.one_batch(0, line_batches(1)[0])
    assert ab(learn) == pytest.approx((0.4, 0.6)) and not learn.running


@pytest.mark.parametrize(
    "model, words",
    [
        (Line, "model is the class Line: pass an instance, such as Line"),
        (3, "model=3 is not a model"),
        (lambda: Line(), "needs no arguments.*pass what it returns"),
        (lambda width=3, *, deep=False: Line(), "needs no arguments.*pass what it returns"),
    ],
)
def test_what_is_no_model_is_refused(model, words):
    with pytest.raises(TypeError, match=words):
        line_learner(model=model)


def test_a_function_is_a_model_without_parameters():
    assert "function, 0 parameters" in repr(line_learner(model=lambda x: 2 * x + 3))


def test_the_loss_of_the_dataset_is_used_if_none_is_given():
    data = torch.utils.data.TensorDataset(*line_batches(1)[0])
    data.loss_func = nn.L1Loss()
    dls = cbnb.DataLoaders.from_datasets(data, bs=8, device="cpu", path="somewhere")
    learn = cbnb.Learner(dls, Line())
    assert learn.loss_func is data.loss_func and str(learn.path) == "somewhere"
    assert str(cbnb.Learner(dls, Line(), nn.MSELoss(), path="here").path) == "here"
    assert isinstance(cbnb.Learner(dls, Line(), nn.MSELoss()).loss_func, nn.MSELoss)


def test_a_default_callback_that_is_given_is_not_doubled():
    mine = cbnb.Recorder(add_time=False)
    for cbs in (mine, [cbnb.Recorder(add_time=False)], cbnb.Recorder):
        learn = cbnb.Learner([(P, Y)], Line(), nn.MSELoss(), cbs=cbs)
        assert [cb.name for cb in learn.cbs].count("recorder") == 1
    bare = cbnb.Learner([(P, Y)], Line(), nn.MSELoss(), default_cbs=False)
    assert [cb.name for cb in bare.cbs] == ["train_eval"]


def test_an_opt_func_that_a_step_leaves_no_use_for_is_told():
    model = Line()
    step = cbnb.TrainStep(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="opt_func is not used, because train_step has its own optimizer"):
        line_learner(model=model, train_step=step, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn = cbnb.Learner([(P, Y)], model, train_step=step)
    assert learn.lr == 0.1 and learn.opt is step.opt


@pytest.mark.parametrize(
    "given, want", [(None, []), ("ab", ["ab"]), (3, [3]), ([1, 2], [1, 2]), ((1,), [1]), (Line, [Line]), ({1}, [1]), (range(2), [0, 1])]
)
def test_one_or_several_are_a_list(given, want):
    assert as_list(given) == want
    assert as_list(N) == [N] and [v.item() for v in as_list(torch.arange(2))] == [0, 1]


def test_classes_and_objects_are_of_a_kind():
    assert is_a(cbnb.Recorder, cbnb.Callback) and is_a(cbnb.Recorder(), cbnb.Recorder) and not is_a(cbnb.Callback, cbnb.Recorder)
    assert not is_a(cbnb.Callback(), cbnb.Recorder)


def groups_of(*rates):
    return torch.optim.SGD([dict(params=[torch.zeros(1)], lr=lr) for lr in rates], lr=1)


@pytest.mark.parametrize(
    "lr, opt_func, want",
    [
        (0.1, torch.optim.SGD, 0.1),
        (np.array([0.1, 0.2]), torch.optim.SGD, [0.1, 0.2]),
        (slice(1, 2), torch.optim.SGD, slice(1, 2)),
        (1e-3, partial(torch.optim.SGD, lr=0.5), 0.5),
        (0.5, partial(torch.optim.SGD, lr=0.5), 0.5),
        (0.5, partial(torch.optim.SGD, momentum=0.5), 0.5),
        (1e-3, groups_of(0.2, 0.2), 0.2),
        (1e-3, groups_of(0.1, 0.2), [0.1, 0.2]),
        ([0.1, 0.2], groups_of(0.1, 0.2), [0.1, 0.2]),
    ],
)
def test_the_rate_is_that_of_the_learner_or_of_the_optimizer(lr, opt_func, want):
    assert checked_lr(lr, opt_func) == want


def test_two_different_rates_are_refused():
    with pytest.raises(ValueError, match="given twice, as lr=0.1 and as 0.5 in opt_func"):
        checked_lr(0.1, partial(torch.optim.SGD, lr=0.5))


@pytest.mark.parametrize(
    "n, least, error",
    [(0, 1, ValueError), (-1, 0, ValueError), (True, 0, TypeError), (1.0, 0, TypeError), ("1", 0, TypeError), (None, 0, TypeError)],
)
def test_what_is_no_count_is_refused(n, least, error):
    with pytest.raises(error, match=f"n_epoch={n!r} should be"):
        as_count(n, "n_epoch", least)
    assert as_count(1, "n", 1) == 1 and as_count(0, "n", 0) == 0 and as_count(np.int64(3), "n", 1) == 3


def test_epochs_with_a_validation():
    for every, want in [(1, [0, 1, 2, 3, 4]), (2, [1, 3]), ([0, 3], [0, 3]), ([], [])]:
        learn, seen = line_learner(), []
        learn.fit(5, valid_every=every, cbs=cbnb.Callback(before_validate=lambda cb: seen.append(cb.learn.epoch)))
        assert seen == want
    for wrong in (0, "1", [-1], [0.5], 1.5):
        with pytest.raises((ValueError, TypeError), match="valid_every"):
            as_valid_every(wrong)


def test_a_fit_that_begins_later_counts_as_if_it_had_begun_before():
    seen, at = [], dict.fromkeys(("before_fit", "before_train", "after_batch"))
    look = lambda cb: seen.append((cb.learn.epoch, cb.learn.train_iter, cb.learn.pct_train))
    learn = line_learner(2, valid=False)
    learn.fit(4, start_epoch=3, cbs=cbnb.Callback(**dict.fromkeys(at, look)))
    assert seen == [(3, 0, 0.75), (3, 0, 0.75), (3, 1, 0.875), (3, 2, 1.0)]
    learn.fit(4, start_epoch=4)
    assert learn.recorder.history[-1].n_steps == 0
    with pytest.raises(ValueError, match="start_epoch=5 should be at most n_epoch=4"):
        learn.fit(4, start_epoch=5)


def test_progress_begins_anew_in_each_epoch_though_one_was_cut_short():
    def cut(cb):
        if cb.learn.epoch == 0 and cb.learn.training:
            raise cbnb.CancelTrainException

    seen = []
    look = cbnb.Callback(before_train=lambda cb: seen.append(cb.learn.pct_train), before_fit=lambda cb: seen.append(cb.learn.loss.item()))
    look.order = 1
    line_learner(2).fit(2, cbs=[look, cbnb.Callback(after_batch=cut)])
    assert seen == [0, 0, 0.5]


def test_a_recurrent_model_is_reset_before_a_run():
    class Recurrent(Line):
        resets = 0

        def reset(self):
            self.resets += 1

    learn = line_learner(model=Recurrent())
    learn.fit(2)
    learn.validate()
    assert learn.model.resets == 2


def test_after_a_fit_the_learner_holds_no_batch_and_after_an_evaluation_what_it_held():
    learn = line_learner()
    learn.fit(2)
    state = lambda: (
        learn.training,
        learn.purpose,
        learn.xb,
        learn.yb,
        learn.pred,
        learn.epoch,
        learn.train_iter,
        learn.pct_train,
        learn.iter,
    )
    before = state()
    assert before == (False, "fit", (None,), (None,), None, 1, 4, 1.0, 0)
    learn.validate(), learn.get_preds(), learn.summary()
    assert state() == before


def test_where_in_the_loop_it_is():
    seen = {}
    look = cbnb.Callback(
        **{
            name: lambda cb, name=name: seen.setdefault(name, (cb.learn.where(name), cb.learn.where(), cb.learn.stopped_where()))
            for name in ("before_fit", "after_batch", "after_validate", "after_epoch")
        }
    )
    learn = line_learner(2)
    assert learn.where() == "outside a run"
    learn.fit(1, cbs=look)
    assert seen["before_fit"] == ("epoch 0", "epoch 0", "stopped in epoch 0")
    assert seen["after_batch"] == ("epoch 0, training batch 0",) * 2 + ("stopped in epoch 0 at batch 0",)
    assert seen["after_epoch"] == ("epoch 0", "epoch 0", "stopped in epoch 0")
    seen.clear()
    learn.validate(cbs=look)
    assert seen["before_fit"] == ("validate", "validate", "validate stopped")
    assert seen["after_batch"] == ("validate, batch 0",) * 2 + ("validate stopped at batch 0",)


class Stops(cbnb.Callback):
    run_in = ("lr_find",)

    def __init__(self, n):
        self.n = n

    def after_batch(self):
        if self.train_iter == self.n:
            raise KeyboardInterrupt


@pytest.mark.parametrize("n, words", [(1, "lr_find stopped after 1 batch;"), (2, "lr_find stopped after 2 batches;")])
def test_a_sweep_that_was_interrupted_counts_its_batches(n, words):
    with pytest.raises(cbnb.FitInterrupted, match=words):
        line_learner().lr_find(show_plot=False, cbs=Stops(n))


@pytest.mark.parametrize("name", ["validate", "get_preds", "interpret"])
def test_a_run_that_was_interrupted_says_where(name):
    def press(cb):
        if cb.iter == 1:
            raise KeyboardInterrupt

    learn = line_learner(dls=cbnb.DataLoaders(line_batches(3), line_batches(3), device="cpu"))
    learn.add_cb(cbnb.Callback(after_loss=press))
    with pytest.raises(cbnb.FitInterrupted, match=f"^{name} stopped at batch 1; learn is usable$"):
        getattr(learn, name)()
    assert not learn.running and learn.model.training and learn.called is None


@pytest.mark.parametrize("at, words", [(0, "in epoch 0, training batch 0"), (1, "in epoch 0, training batch 1")])
def test_an_error_of_a_loader_names_the_batch_that_it_did_not_give(at, words):
    def batches():
        yield from line_batches(2)[:at]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        line_learner(dls=cbnb.DataLoaders(batches, device="cpu")).fit(1)
    assert caught.value.__notes__ == [words]


@pytest.mark.filterwarnings("error")
def test_an_empty_list_for_validation_is_no_reason_to_warn():
    line_learner(dls=cbnb.DataLoaders(line_batches(1), [], device="cpu")).fit(1)


def test_a_validation_loader_without_batches_is_named():
    few = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(P[:1], P[:1]), batch_size=2, drop_last=True)
    with pytest.warns(UserWarning, match="the validation loader 'valid' is empty"):
        line_learner(dls=cbnb.DataLoaders(line_batches(1), few, device="cpu")).fit(1)


def test_a_first_batch_that_teaches_nothing_says_so_at_once():
    seen = []
    learn = line_learner(dls=cbnb.DataLoaders([(P,), (P,)], device="cpu"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        learn.fit(1, cbs=cbnb.Callback(after_batch=lambda cb: seen.append(len(warned))))
    assert seen == [0, 1] and "the first batch had no targets, so nothing was learned from it" in str(warned[0].message)


class _OwnLoss(cbnb.Step):
    def loss(self, learn):
        learn.loss = learn.pred.mean().detach()


def _skip_first(cb):
    if cb.learn.training and cb.learn.iter == 0:
        raise cbnb.CancelBatchException


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "given", [dict(train_step=_OwnLoss()), dict(loss_func=lambda pred: pred.mean(), cbs=cbnb.Callback(before_batch=_skip_first))]
)
def test_a_batch_without_targets_is_no_fault_with_a_loss_or_cancelled(given):
    line_learner(dls=cbnb.DataLoaders([(P,), (P,)], device="cpu"), **given).fit(1)


def test_a_subclass_may_assign_the_names_of_other_libraries():
    class Mine(cbnb.Learner):
        pass

    mine = Mine(line_learner().dls, line_learner().model, torch.nn.MSELoss())
    mine.criterion = 3
    assert mine.criterion == 3 and mine.__dict__["criterion"] == 3
    with pytest.raises(AttributeError, match=r"it is learn\.metrics"):
        mine.metric
    with pytest.raises(AttributeError, match=r"it is learn\.loss_func"):
        line_learner().criterion = 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        line_learner().fit(1)
        line_learner().fit(1, cbs=cbnb.Callback(before_train=lambda cb: (_ for _ in ()).throw(cbnb.CancelTrainException())))


def test_rows_are_logged_in_a_fit_and_not_in_a_validation():
    learn, rows = line_learner(), []
    learn.logger = rows.append
    log = cbnb.Callback(after_validate=lambda cb: cb.learn.logger("mine"))
    learn.fit(1, cbs=log)
    assert rows[0] == "mine" and len(rows) == 2
    learn.validate(cbs=log)
    assert len(rows) == 2
    with learn.no_logging() as same:
        learn.fit(1, cbs=log)
    assert len(rows) == 2 and same is learn and learn.logger == rows.append


def test_hypers_that_are_set_between_fits_are_saved(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.fit(1, lr=0.5)
    learn.opt.param_groups[0]["lr"] = 7
    assert torch.load(learn.save("a"), weights_only=True)["opt"]["param_groups"][0]["lr"] == 7


def test_the_gradient_mode_is_put_back_however_a_run_ends():
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            learn = line_learner(cbs=cbnb.Callback(after_validate=lambda cb: torch.set_grad_enabled(not grad)))
            learn.validate()
            assert torch.is_grad_enabled() == grad


def test_a_switched_off_callback_is_on_again_after_the_run_and_not_after_one_within():
    cb = cbnb.Callback(before_fit=lambda cb: setattr(cb, "run", False))
    seen = []
    look = cbnb.Callback(after_train=lambda self: (self.learn.validate(), seen.append(cb.run)))
    line_learner(cbs=[cb, look]).fit(1)
    assert seen == [False] and cb.run


def test_a_second_run_is_refused_where_it_would_train_and_named():
    learn = line_learner()
    with pytest.raises(RuntimeError, match=r"already running \(epoch 0, training batch 0\), and cannot start a new fit"):
        learn.fit(1, cbs=cbnb.Callback(after_batch=lambda cb: cb.learn.fit(1)))


def test_a_new_optimizer_has_the_rate_of_the_last_group():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    for lr, want in [([0.1, 0.2], 0.2), (0.3, 0.3), (slice(0.1, 0.4), 0.4)]:
        learn = line_learner(model=model, splitter=lambda m: [m[0], m[1]], lr=lr)
        learn.create_opt()
        assert [g["lr"] for g in learn.opt.param_groups] == [want] * 2


def test_gradients_are_refused_to_be_off_around_a_fit():
    with torch.no_grad(), pytest.raises(RuntimeError, match="gradients are switched off around this fit"):
        line_learner().fit(1)
    assert line_learner().validate()[0] == 13


def test_a_row_of_a_summary_has_shape_count_and_whether_it_trains():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.act = nn.Linear(3, 400), nn.Linear(400, 2), nn.ReLU()
            self.pair = type("Pair", (nn.Module,), dict(forward=lambda self, x: (x, x)))()
            for p in self.body.parameters():
                p.requires_grad_(False)

        def forward(self, x):
            return self.head(self.pair(self.act(self.body(x)))[0])

    model = Two()
    learn = cbnb.Learner([(torch.zeros(4, 3), torch.zeros(4, 2))], model, nn.MSELoss(), default_cbs=False)
    text = learn.summary()
    assert text.rows == [
        ("body Linear", "4 x 400", "1,600", ""),
        ("act ReLU", "4 x 400", "0", ""),
        ("pair Pair", "tuple", "0", ""),
        ("head Linear", "4 x 2", "802", "yes"),
    ]
    assert text.notes == [
        "2,402 parameters, 802 of them trainable",
        "optimizer AdamW (fused), loss MSELoss()",
        "callbacks TrainEvalCallback",
    ]
    lines = text.splitlines()
    assert lines[0] == "layer        output   parameters  trainable" and lines[1] == "body Linear  4 x 400  1,600"
    assert lines[5:] == ["", *text.notes] and repr(text) == str(text)
    page = text._repr_html_()
    assert page.count("<tr>") == 5 and '<td style="text-align:right">802</td><td style="text-align:left">yes</td>' in page
    assert '<th style="text-align:left">layer</th>' in page and "<p>2,402 parameters, 802 of them trainable<br>optimizer" in page


def test_freezing_with_one_group_or_of_all_is_told():
    learn = line_learner()
    with pytest.warns(UserWarning, match="freezing has no effect, because the optimizer has only one parameter group"):
        learn.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.unfreeze()
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    learn = line_learner(model=model, splitter=lambda m: [m[0], m[1]])
    with pytest.warns(UserWarning, match="all parameter groups are frozen now"):
        learn.freeze_to(2, train_bn=False)
    trains = lambda: [p.requires_grad for p in model.parameters()]
    assert trains() == [False] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.freeze_to(1)
        assert trains() == [False, False, True, True]
        learn.unfreeze()
    assert trains() == [True] * 4


def test_models_and_losses_of_steps_are_moved_too():
    """`meta` stands in for a device."""
    parts = [nn.Linear(1, 1) for _ in range(3)]
    losses = [nn.CrossEntropyLoss(weight=torch.ones(2)) for _ in range(3)]
    opt = torch.optim.SGD(parts[1].parameters(), lr=0.1)
    steps = dict(train_step=cbnb.TrainStep(parts[1], losses[1], opt), eval_step=cbnb.EvalStep(parts[2], losses[2]))
    learn = cbnb.Learner(cbnb.DataLoaders([(P, Y)], device="cpu"), parts[0], losses[0], **steps)
    learn.loss_func = losses[0]
    learn.dls.to("meta")
    learn.to_dls_device()
    assert [p.weight.device.type for p in (*parts, *losses)] == ["meta"] * 6
    learn.dls.device = None
    learn.to_dls_device()
    assert parts[0].weight.device.type == "meta"


# The loop that runs is the one that is printed


class Logged(cbnb.step.Step):
    """Notes each part of the step under the words that the printed loop has for it."""

    def __init__(self, seen):
        self.seen = seen


def noting(part, words):
    def method(self, learn):
        self.seen.append(words)
        return getattr(cbnb.step.Step, part)(self, learn)

    return method


for _part, _words in dict(
    predict="pred = model(*xb)",
    loss="loss_grad = loss_func(pred, *yb)",
    backward="loss_grad.backward()",
    step="opt.step()",
    zero_grad="opt.zero_grad()",
).items():
    setattr(Logged, _part, noting(_part, _words))


def planned(level, repeat, cancelled=None):
    """Events and actions of a level in order; of a level that is cancelled at once, the events only."""
    body = [line for part in level.body for line in (planned(part, repeat, cancelled) if isinstance(part, base.Level) else [part])]
    inner = [level.cancelled] if level is cancelled else body
    return [level.before, *inner, level.after] * repeat.get(level.head, 1)


CANCELS = {c.level.name: c for c in base.CancelException.__subclasses__() if c.__module__.startswith("cbnb.")}


@pytest.mark.parametrize("name", [None, *CANCELS])
def test_the_loop_that_runs_is_the_one_that_is_printed(name):
    """Two epochs with two training batches and one validation batch: each event and each part of the step, in the order of the tree."""
    seen, level = [], CANCELS[name].level if name else None

    def note(event):
        def method(cb):
            seen.append(event)
            if level is not None and event == level.before and (name != "batch" or cb.learn.training):
                raise CANCELS[name]

        return method

    learn = line_learner(
        2, cbs=cbnb.Callback(**{event: note(event) for event in base.FIT.events()}), train_step=Logged(seen), eval_step=Logged(seen)
    )
    seen.clear()
    learn.fit(2)
    repeat = {base.EPOCH.head: 2, base.BATCH.head: 2}
    end = len(seen) - seen[::-1].index("after_fit")  # after it, gradients are zeroed once more
    begun = seen.index("before_fit")
    assert seen[begun:end] == planned(base.FIT, repeat, level)


def test_the_table_of_a_learner_is_escaped_and_has_the_last_epoch():
    learn = line_learner(2, metrics=lambda pred, y: (pred - y).abs().mean())
    assert '<td style="text-align:left">0 epochs</td>' in learn._repr_html_()
    learn.fit(1)
    page = learn._repr_html_()
    assert "1 epoch, train_loss 10.66, valid_loss 5.325, &lt;lambda&gt; 1.92" in page and "<lambda>" not in page
    assert "color" not in page  # legible on light and on dark
    learn.recorder.history.runs[-1].epochs[-1]["words"] = [1, "<b>"]
    assert "words [1, &#x27;&lt;b&gt;&#x27;]" in learn._repr_html_()
    learn.loss_func = None
    assert "loss</td>" not in learn._repr_html_()


class Restarts(Line):
    """Its reset is for something else than recurrent state."""

    def __init__(self):
        super().__init__()
        self.state = 0

    def reset(self):
        self.state += 1
        nn.init.constant_(self.a, 7.0)


class Replaces(Line):
    def reset(self):
        self.a = nn.Parameter(torch.zeros(()))


@pytest.mark.parametrize("model", [Restarts, Replaces])
def test_a_reset_that_changes_parameters_does_not_undo_the_training(model):
    plain, learn = line_learner(), line_learner(model=model())
    plain.fit(2)
    with pytest.warns(UserWarning, match="reset\\(\\) changed the parameter a"):
        learn.fit(2)
    with pytest.warns(UserWarning, match="were restored"):
        valid = learn.validate()
    assert torch.equal(learn.model.a, plain.model.a) and valid == plain.validate()


def test_recurrent_state_is_reset_without_a_word():
    class Recurrent(Line):
        h = None

        def reset(self):
            self.h = torch.zeros(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn = line_learner(model=Recurrent())
        learn.fit(1)
    assert learn.model.h == 0


@pytest.mark.parametrize("left_out", [False, True])
def test_unfreezing_reaches_all_groups_and_only_them(left_out):
    """As D33 wants it: a base that you froze is unfrozen, too, unless the splitter leaves it out."""
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    base, head = (copy.deepcopy(m.state_dict()) for m in model)
    splitter = dict(splitter=lambda m: [m[1]]) if left_out else {}
    x = torch.randn(8, 1)
    learn = cbnb.Learner(cbnb.DataLoaders([(x, x)], device="cpu"), model, nn.MSELoss(), lr=0.1, cbs=[], **splitter)
    learn.unfreeze()
    learn.fit(1)
    assert all(torch.equal(base[k], v) for k, v in model[0].state_dict().items()) is left_out
    assert not torch.equal(head["weight"], model[1].weight)
    assert {p.requires_grad for p in model[0].parameters()} == {not left_out}
