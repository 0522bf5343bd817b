"""Errors: they stay what they are and say where they happened; and bad input is answered with a sentence."""

import copy
import inspect
import io
import json
import pickle
import re
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import cbnb
from cbnb.basics import failures
from cbnb.basics.arguments import as_choice
from cbnb.basics.failures import errors_page, explained
from cbnb.basics.metric_functions import MetricWarning
from cbnb.basics.text import short_repr, with_article
from helpers import IN_BATCH, RUN_EVENTS, TRAIN_ONLY, Line, RaiseIn, ab, line_batches, line_learner, noting


class Structured(Exception):
    """Cannot be made from its `args`."""

    def __init__(self, code, *, detail):
        super().__init__(code)
        self.code, self.detail = code, detail


def errors():
    return [
        AssertionError(),
        ValueError("text", 2),
        StopIteration(),
        KeyError("k"),
        Structured(3, detail=[1]),
        AttributeError("name"),
        GeneratorExit(),
        MemoryError(),
    ]


@pytest.mark.parametrize("name", RUN_EVENTS)
def test_an_error_stays_what_it_is_and_says_where_it_was(name):
    """D07: errors without arguments became an IndexError, others were flattened; D05, D06: the learner was left half way."""
    for error in errors():
        for phase in ("train", "validate") if name in IN_BATCH - TRAIN_ONLY else ("train",):
            args, state = error.args, dict(vars(error))
            seen = []
            epoch = 0 if name in ("before_fit", "after_cancel_fit") else 1
            raiser = RaiseIn(
                name,
                error,
                phase=phase,
                when=lambda learn: learn.epoch == epoch and (name not in IN_BATCH or learn.iter == (phase == "train")),
            )
            learn = line_learner(4, cbs=noting(seen, -1000))
            listed = learn.cbs
            with pytest.raises(type(error)) as caught:
                learn.fit(2, lr=0.3, cbs=raiser)
            assert caught.value is error and error.args == args and {k: v for k, v in vars(error).items() if k != "__notes__"} == state
            where = f"epoch {epoch}"
            if name in IN_BATCH:
                where += ", training batch 1" if phase == "train" else ", validation batch 0"
            if isinstance(error, Exception):
                assert f"in RaiseIn.{name}, {where}" in error.__notes__, error.__notes__
                assert len(error.__notes__) == 1
            assert seen[-1] == name  # no after_ events for an error
            assert learn.cbs == listed and not learn.running and learn.opt.param_groups[0]["lr"] == 0.1 and learn.pred is None
            error.__dict__.pop("__notes__", None)
        error.__traceback__ = None
    learn.fit(1)
    assert learn.recorder.history[-1].status == "done" and seen[-1] == "after_fit"


def test_the_last_frame_is_the_line_that_failed():
    learn = line_learner(cbs=cbnb.Callback(before_step=lambda self: 1 / 0))
    with pytest.raises(ZeroDivisionError) as caught:
        learn.fit(1)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == __file__ and "1 / 0" in last.line


def test_errors_of_the_model_loss_and_loader_say_which_batch():
    def loss(pred, y):
        if learn.iter == 2:
            raise ZeroDivisionError("in the loss")
        return nn.functional.mse_loss(pred, y)

    learn = line_learner(4, loss_func=loss)
    with pytest.raises(ZeroDivisionError, match="in the loss") as caught:
        learn.fit(1)
    assert caught.value.__notes__ == ["in epoch 0, training batch 2"]

    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            if i == 5:
                raise OSError("cannot read item 5")
            return torch.tensor(float(i)), torch.tensor(1.0)

    learn = line_learner(dls=cbnb.DataLoaders(DataLoader(Data(), 2), device="cpu"))
    with pytest.raises(OSError, match="cannot read item 5") as caught:
        learn.fit(1)
    assert "in epoch 0, training batch 2" in caught.value.__notes__


def test_labels_out_of_range_say_which_batch():
    x, y = torch.randn(12, 3), torch.tensor([0, 1] * 6)
    y[9] = 2
    dls = cbnb.DataLoaders(DataLoader(TensorDataset(x, y), 4), device="cpu")
    with pytest.raises(IndexError) as caught:
        cbnb.Learner(dls, nn.Linear(3, 2), nn.CrossEntropyLoss()).fit(1)
    assert any("training batch 2" in note for note in caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_wrong_batches_of_validation_say_so():
    batches = line_batches(1)
    learn = line_learner(dls=cbnb.DataLoaders(batches, [*batches, (torch.ones(3), torch.ones(2))], device="cpu"))
    with pytest.raises(RuntimeError) as caught:
        learn.fit(1)
    assert any("validation batch 1" in note for note in caught.value.__notes__)


# Bad input, and words that its error must contain


def fit(*args, **kwargs):
    return lambda: line_learner().fit(*args, **kwargs)


def learner(**kwargs):
    return lambda: line_learner(**kwargs).fit(1)


def frozen():
    model = Line()
    for p in model.parameters():
        p.requires_grad_(False)
    return model


def nothing(pred, y):
    pass


def vector(pred, y):
    return pred - y


def not_a_tensor(pred, y):
    return 3.0


def on_cpu(*loaders):
    return cbnb.DataLoaders(*loaders, device="cpu")


def misspelt():
    class Typo(cbnb.Callback):
        def after_bacth(self):
            pass


BAD = {
    "empty list": (learner(dls=on_cpu([])), ValueError, "training loader is empty"),
    "loader smaller than a batch": (
        learner(dls=on_cpu(DataLoader(TensorDataset(torch.ones(3), torch.ones(3)), 8, drop_last=True))),
        ValueError,
        "training loader is empty.*drop_last",
    ),
    "empty without length": (learner(dls=on_cpu(cbnb.Batches(lambda: iter([])))), ValueError, "training loader gave no batches"),
    "n_epoch zero": (fit(0), ValueError, "n_epoch=0 should be 1 or more"),
    "n_epoch negative": (fit(-2), ValueError, "n_epoch=-2 should be 1 or more"),
    "n_epoch text": (fit("3"), ValueError, "n_epoch='3'.*'3 steps'"),
    "n_epoch float": (fit(1.5), TypeError, "n_epoch=1.5.*whole number"),
    "n_epoch bool": (fit(True), TypeError, "n_epoch=True.*whole number"),
    "n_epoch None": (fit(None), TypeError, "n_epoch=None.*whole number"),
    "start_epoch negative": (fit(2, start_epoch=-1), ValueError, "start_epoch=-1"),
    "valid_every zero": (fit(2, valid_every=0), ValueError, "valid_every=0"),
    "valid_every text": (fit(2, valid_every="all"), ValueError, "valid_every='all'.*'500 steps'"),
    "valid_every list": (fit(2, valid_every=[0, -1]), ValueError, "valid_every=-1"),
    "lr text": (fit(1, lr="0.1"), TypeError, "lr='0.1' is not a number: leave out the quotes"),
    "lr negative": (fit(1, lr=-1), ValueError, "lr=-1 should be"),
    "lr nan": (fit(1, lr=float("nan")), ValueError, "lr=nan"),
    "lr bool": (fit(1, lr=True), TypeError, "lr=True is not a number"),
    "lr of the learner": (lambda: line_learner(lr="fast"), TypeError, "lr='fast' is not a number"),
    "lr negative of the learner": (lambda: line_learner(lr=-0.1), ValueError, "lr=-0.1"),
    "too many lrs": (fit(1, lr=[0.1, 0.2]), ValueError, "lr has 2 values.*1 parameter group"),
    "lr slice without end": (fit(1, lr=slice(0.1, None)), ValueError, "slice"),
    "wd negative": (fit(1, wd=-1), ValueError, "wd=-1"),
    "wd text": (fit(1, wd="x"), TypeError, "wd='x'"),
    "no trainable parameters": (learner(model=frozen()), ValueError, "Line has no trainable parameters.*frozen"),
    "no parameters": (learner(model=nn.ReLU()), ValueError, "ReLU has no trainable parameters"),
    "vector loss": (learner(loss_func=vector), ValueError, r"shape \(8,\).*mean"),
    "loss without return": (learner(loss_func=nothing), TypeError, "loss_func returned.*None.*not a tensor"),
    "loss that is a number": (learner(loss_func=not_a_tensor), TypeError, "loss_func returned.*3.0.*not a tensor"),
    "no loss": (lambda: line_learner(loss_func=None), ValueError, "loss_func is missing"),
    "metric without return": (learner(metrics=nothing), TypeError, "metric 'nothing' returned None.*return"),
    "metric returning a vector": (learner(metrics=vector), TypeError, r"metric 'vector' returned a tensor of shape \(8,\).*mean"),
    "metric that is none": (learner(metrics=[3]), TypeError, "3 is not a metric"),
    "callback that is none": (fit(1, cbs=nn.Linear), TypeError, "Linear.*is not a callback"),
    "unknown event": (lambda: line_learner()("after_bacth"), ValueError, "no event is called 'after_bacth'; did you mean 'after_batch'"),
    "unknown event in a callback": (lambda: cbnb.Callback(before_bach=print), TypeError, "before_bach.*did you mean 'before_batch'"),
    "misspelt method": (misspelt, TypeError, "Typo.after_bacth is not an event.*did you mean 'after_batch'"),
    "generator as a loader": (
        lambda: on_cpu(b for b in line_batches()),
        TypeError,
        "generator can be iterated only once.*list.*function",
    ),
    "generator as a second loader": (
        lambda: on_cpu(line_batches(), iter(line_batches())),
        TypeError,
        "list_iterator can be iterated only once",
    ),
    "number as a loader": (lambda: on_cpu(3), TypeError, "3 is not a data loader"),
    "generator as the only loader": (
        lambda: line_learner(dls=(b for b in line_batches())),
        TypeError,
        "generator can be iterated only once",
    ),
    "one-cycle without length": (
        lambda: line_learner(dls=on_cpu(lambda: iter(line_batches()))).fit_one_cycle(1),
        ValueError,
        "schedule.*no length.*n_iter",
    ),
    "validation without a loader": (lambda: line_learner(valid=False).validate(), IndexError, "no validation loader"),
    "preds without a loader": (lambda: line_learner(valid=False).get_preds(), IndexError, "no validation loader"),
    "no such loader": (lambda: line_learner().validate(7), IndexError, "no loader 7: there are 2"),
    "optimizer that is none": (learner(opt_func=lambda groups, lr: lr), TypeError, "opt_func returned 0.1, which is not an optimizer"),
    "two learning rates": (
        lambda: line_learner(opt_func=__import__("functools").partial(torch.optim.SGD, lr=0.5), lr=0.1),
        ValueError,
        r"learning rate is given twice, as lr=0.1.*0\.5",
    ),
    "freezing too far": (lambda: grouped_learner().freeze_to(-4), ValueError, "cannot freeze to group -4.*3 parameter groups"),
    "missing target": (
        learner(dls=cbnb.DataLoaders([dict(x=torch.ones(2))], targets="label", device="cpu")),
        KeyError,
        "no entry 'label'.*Its only entry is x: add 'label' to the batch",
    ),
}


def grouped_learner(**kwargs):
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    x = torch.linspace(-1, 1, 8)[:, None]
    return line_learner(dls=on_cpu([(x, 2 * x)] * 2), model=model, splitter=lambda m: [m[0], m[1], m[2]], **kwargs)


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    run, kind, words = BAD[case]
    with pytest.raises(kind, match=f"(?s){words}"):
        run()


def test_bad_input_leaves_a_learner_usable():
    learn = line_learner()
    for wrong in (
        lambda: learn.fit(0),
        lambda: learn.fit(1, lr="0.1"),
        lambda: learn.fit(1, wd=-1),
        lambda: learn.fit(1, cbs=3),
        lambda: learn.lr_find(start_lr=1, end_lr=0.1, show_plot=False),
        lambda: learn.validate(9),
    ):
        with pytest.raises((TypeError, ValueError, IndexError)):
            wrong()
        assert not learn.running and len(learn.cbs) == 2
    learn.fit(1)
    assert ab(learn) == (pytest.approx(0.72), pytest.approx(1.08)) and learn.recorder.history[-1].status == "done"


def test_the_metric_that_fails_is_named_with_its_batch():
    def picky(pred, y):
        raise LookupError("not today")

    with pytest.raises(LookupError) as caught:
        learner(metrics=picky)()
    notes = " ".join(caught.value.__notes__)
    assert "metric 'picky' was given" in notes and "validation batch 0" in notes


# Freezing and optimizers


def test_freezing():
    """D33: freezing one group did nothing and did not say so; an impossible group was accepted."""
    learn = grouped_learner()

    def trained():
        return [all(p.requires_grad for p in m.parameters()) for m in learn.model]

    for n, expected in ((-1, [0, 1, 1]), (-2, [0, 1, 1]), (1, [0, 1, 1]), (0, [1, 1, 1]), (-3, [1, 1, 1]), (2, [0, 1, 1])):
        learn.freeze_to(n)
        assert trained() == [bool(e) for e in expected], n  # batch norm goes on training
    learn.freeze_to(2, train_bn=False)
    assert trained() == [False, False, True]
    with pytest.warns(UserWarning, match="all parameter groups are frozen"):
        learn.freeze_to(3)
    with pytest.warns(UserWarning, match="all parameter groups are frozen"):
        learn.freeze_to(3, train_bn=False)
    with pytest.raises(ValueError, match="no trainable parameters"):
        learn.fit(1)
    learn.unfreeze()
    assert all(trained())
    learn.fit(1)
    with pytest.warns(UserWarning, match="one parameter group.*splitter") as seen:
        line_learner().freeze()
    assert seen[0].filename == __file__


def test_parameters_frozen_before_the_optimizer_was_made_can_be_unfrozen():
    """D33: the optimizer did not know them."""
    learn = grouped_learner()
    for p in learn.model[0].parameters():
        p.requires_grad_(False)
    learn.fit(1)
    before = learn.model[0].weight.clone()
    learn.unfreeze()
    learn.fit(1)
    assert not torch.equal(before, learn.model[0].weight)


def test_frozen_groups_do_not_move():
    learn = grouped_learner()
    learn.freeze()
    before = [p.clone() for m in learn.model for p in m.parameters()]
    learn.fit(1)
    moved = [not torch.equal(a, b) for a, b in zip(before, learn.model.parameters())]
    assert moved[:2] == [False, False] and all(moved[4:])


def test_a_new_model_gets_a_new_optimizer():
    """D33: the optimizer kept the parameters of the old model, and trained nothing."""
    learn = line_learner()
    learn.fit(1)
    old, learn.model = learn.opt, Line()
    learn.fit(1)
    assert learn.opt is not old and ab(learn) == (pytest.approx(0.72), pytest.approx(1.08))


def test_a_part_that_was_replaced_is_trained():
    learn = grouped_learner()
    learn.fit(1)
    learn.model[2] = nn.Linear(2, 1)
    before = learn.model[2].weight.clone()
    learn.fit(1)
    assert not torch.equal(before, learn.model[2].weight)


def test_a_splitter_that_is_assigned_after_a_fit_counts():
    """The optimizer kept its one group: freezing did nothing, and a rate for each group was refused"""
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    learn = cbnb.Learner(cbnb.DataLoaders([(torch.ones(4, 1), torch.ones(4, 1))], device="cpu"), model, nn.MSELoss())
    learn.fit(1)
    learn.splitter = lambda m: [m[0], m[2]]
    learn.fit(1, lr=[0.0, 0.1])
    assert len(learn.opt.param_groups) == 2
    learn.splitter = lambda m: [[m[0].weight], [m[0].bias], m[2]]
    learn.freeze()
    assert [p.requires_grad for p in learn.model.parameters()] == [False, False, True, True]
    with pytest.raises(ValueError, match="should be three numbers"):
        learn.moms = (0.9, 0.8)
        learn.fit_one_cycle(1)


def test_a_layer_that_was_added_is_trained():
    learn = grouped_learner()
    learn.fit(1)
    learn.model.append(nn.Linear(1, 1))
    learn.splitter = lambda m: [m[0], m[1], m[2], m[3]]
    before = learn.model[3].weight.clone()
    learn.fit(1)
    assert not torch.equal(before, learn.model[3].weight)


def test_the_learning_rate_of_a_partial():
    """D34: it overwrote the learner's."""
    partial = __import__("functools").partial
    learn = line_learner(opt_func=partial(torch.optim.SGD, momentum=0.5), lr=0.3)
    learn.fit(1)
    assert learn.lr == 0.3 and learn.opt.param_groups[0]["momentum"] == 0.5 and learn.recorder.lrs == [0.3, 0.3]
    learn = cbnb.Learner(line_learner().dls, Line(), nn.MSELoss(), partial(torch.optim.SGD, lr=0.5))
    learn.fit(1)
    assert learn.lr == 0.5 and learn.recorder.lrs == [0.5, 0.5]


def test_weight_decay_holds_for_one_fit():
    """D34: given to one fit, it stuck."""
    seen = []
    note = cbnb.Callback(before_fit=lambda self: seen.append(self.learn.opt.param_groups[0]["weight_decay"]))
    learn = line_learner(cbs=note, opt_func=torch.optim.AdamW)
    learn.fit(1), learn.fit(1, wd=0.5), learn.fit(1)
    learn.wd = 0.25
    learn.fit(1), learn.fit(1, wd=0), learn.fit_one_cycle(1, 0.1, wd=0.75), learn.fit(1)
    assert seen == [0.01, 0.5, 0.01, 0.25, 0.0, 0.75, 0.25]


def test_before_fit_sees_the_hypers_of_this_fit():
    seen = []
    note = cbnb.Callback(before_fit=lambda self: seen.append(self.learn.opt.param_groups[0]["lr"]))
    learn = line_learner(cbs=note)
    learn.fit(1, lr=0.7), learn.fit(1)
    assert seen == [0.7, 0.1] and learn.lr == 0.1


def test_lrs_of_groups():
    learn = grouped_learner(lr=0.3)
    seen = []
    learn.add_cb(cbnb.Callback(before_fit=lambda self: seen.append([g["lr"] for g in self.learn.opt.param_groups])))
    learn.fit(1, lr=slice(1e-5, 1e-3)), learn.fit(1, lr=slice(0.2)), learn.fit(1, lr=[0.1, 0.2, 0.3]), learn.fit(1)
    assert [pytest.approx(lrs) for lrs in seen] == [[1e-5, 1e-4, 1e-3], [0.02, 0.02, 0.2], [0.1, 0.2, 0.3], [0.3] * 3]
    for lr in (slice(1e-4, 1e-2), [0.1, 0.2, 0.3], torch.tensor([0.1, 0.2, 0.3])):
        learn = grouped_learner(lr=lr)
        learn.fit(1)
        assert learn.recorder.lrs == pytest.approx([0.01, 0.01] if isinstance(lr, slice) else [0.3, 0.3])


def test_an_optimizer_may_be_given():
    model = Line()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    learn = cbnb.Learner(line_learner().dls, model, nn.MSELoss(), opt)
    learn.fit(1)
    assert learn.opt is opt and ab(learn) == (pytest.approx(0.72), pytest.approx(1.08)) and learn.lr == 0.1


def test_the_optimizer_persists_unless_reset():
    learn = line_learner(opt_func=torch.optim.Adam)
    learn.fit(1)
    opt = learn.opt
    learn.fit(1)
    assert learn.opt is opt and opt.state[learn.model.a]["step"] == 4
    learn.fit(1, reset_opt=True)
    assert learn.opt is not opt and learn.opt.state[learn.model.a]["step"] == 2


def test_summary_changes_nothing():
    """D12: it wiped the history, and left the model in evaluation mode."""
    learn = grouped_learner()
    learn.fit(1)
    learn.model.train()
    before = learn.recorder.values, {k: v.clone() for k, v in learn.model.state_dict().items()}
    text = learn.summary()
    assert "Linear" in text and "11 parameters, 11 of them trainable" in text and re.search(r"Linear +8 x 2 +4 +yes", text)
    assert learn.recorder.values == before[0] and all(torch.equal(v, before[1][k]) for k, v in learn.model.state_dict().items())
    assert all(m.training for m in learn.model.modules()) and not learn.running


def test_a_summary_is_text_and_in_a_notebook_a_table():
    """As the last line of a cell it was one escaped line."""
    learn = grouped_learner()
    learn.model.add_module("<b>", torch.nn.Identity())
    summary = learn.summary()
    assert repr(summary) == str(summary) == print_of(summary) and len(summary.splitlines()) > 5
    page = summary._repr_html_()
    assert page.count("<tr>") == 1 + len(summary.rows) and "<td" in page and "11 parameters, 11 of them trainable" in page
    assert "<b>" not in page and "&lt;b&gt;" in page
    assert copy.deepcopy(summary) == summary and copy.deepcopy(summary)._repr_html_() == page


def print_of(value) -> str:
    out = io.StringIO()
    print(value, file=out, end="")
    return out.getvalue()


def test_one_batch_before_any_fit():
    """D44: it failed in the recorder."""
    learn = line_learner()
    learn.one_batch(0, line_batches()[0])
    assert learn.loss.item() == pytest.approx(13) and len(learn.pred) == 8


def test_training_without_targets_is_not_silent():
    learn = cbnb.Learner(cbnb.DataLoaders([(torch.ones(4, 1),)]), torch.nn.Linear(1, 1), torch.nn.MSELoss(), default_cbs=False)
    with pytest.warns(UserWarning, match="no targets, so nothing was learned"):
        learn.fit(1)
    with pytest.warns(UserWarning, match="no targets, so nothing was learned"):
        assert learn.lr_find().lr is None


class Two(torch.nn.Module):
    """Its second input is optional."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(1, 1)

    def forward(self, a, b=0.0):
        return self.net(a + b)


def test_an_input_that_is_taken_for_a_target_is_named():
    one = torch.ones(4, 1)
    learn = cbnb.Learner(cbnb.DataLoaders([(one, one, one)], [(one, one, one)], device="cpu"), Two(), torch.nn.MSELoss())
    learn.get_preds(dl=[(one, one)])  # not known yet
    learn.fit(1)
    with pytest.warns(UserWarning, match=r"have 2 elements, of which the last is used as the target.*n_inp=2"):
        learn.get_preds(dl=[(one, one)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dl in ([(one,)], [(one, one, one)]):
            learn.get_preds(dl=dl)
        learn.validate(dl=[(one, one)])  # batches of this kind are known now
        learn.get_preds(dl=[(one, one)])


def test_an_input_that_is_missing_because_it_is_taken_for_a_target():
    class Both(torch.nn.Module):
        def forward(self, a, b):
            return a + b

    one = torch.ones(4, 1)
    learn = cbnb.Learner(cbnb.DataLoaders([(one, one, one)], device="cpu"), Both(), torch.nn.MSELoss())
    with pytest.raises(TypeError) as e:
        learn.get_preds(dl=[(one, one)])
    assert any("DataLoaders(..., n_inp=2)" in note for note in e.value.__notes__)


def test_the_loss_without_a_graph_names_the_one_that_has_it():
    def backward(cb):
        cb.learn.loss.backward()

    learn = line_learner(cbs=cbnb.Callback(before_backward=backward))
    with pytest.raises(RuntimeError, match="does not require grad") as e:
        learn.fit(1)
    assert "learn.loss is a copy without the graph: call learn.loss_grad.backward()" in e.value.__notes__


def test_entries_of_a_dict_have_the_names_of_parameters():
    one = torch.ones(4, 1)

    class Inner(torch.nn.Linear):
        def forward(self, input):
            return super().forward()  # a mistake inside of the model is not one of the names

    for model, noted in (torch.nn.Linear(1, 1), True), (Inner(1, 1), False):
        name = "x" if noted else "input"
        learn = cbnb.Learner(cbnb.DataLoaders([{name: one, "y": one}], targets="y", device="cpu"), model, torch.nn.MSELoss())
        with pytest.raises(TypeError, match="keyword argument 'x'|missing 1 required") as e:
            learn.fit(1)
        assert noted == any("gets the entries of the batch by name, here x: " in note for note in e.value.__notes__)


def test_a_step_may_find_its_loss_without_targets():
    class OwnLoss(cbnb.step.Step):
        def loss(self, learn):
            learn.loss_grad = learn.pred.square().mean()
            learn.loss = learn.loss_grad.detach()

    learn = cbnb.Learner(
        cbnb.DataLoaders([(torch.ones(4, 1),)] * 3), torch.nn.Linear(1, 1), train_step=OwnLoss(), lr=0.1, default_cbs=False
    )
    before = learn.model.weight.clone()
    learn.fit(1)
    assert not torch.equal(learn.model.weight, before)


def test_schedules_give_as_many_numbers_as_there_are_groups():
    for value, words in (
        ([0.1, 0.2], "2 values for 1 parameter group:"),
        (float("nan"), "returned nan at position 0: return a finite number"),
    ):
        with pytest.raises(ValueError, match=words):
            line_learner().fit(1, cbs=cbnb.ParamScheduler({"lr": lambda pct: value}))


@pytest.mark.parametrize(
    "make, words",
    {
        "no loaders": (lambda: cbnb.Learner(None, Line(), torch.nn.MSELoss()), "dls is None"),
        "two loaders": (
            lambda: cbnb.Learner((torch.utils.data.DataLoader([1]),) * 2, Line(), torch.nn.MSELoss()),
            r"DataLoaders\(train, valid\)",
        ),
        "model class": (lambda: cbnb.Learner(line_batches(1), Line, torch.nn.MSELoss()), "model is the class Line: pass an instance"),
        "loss class": (lambda: cbnb.Learner(line_batches(1), Line(), torch.nn.MSELoss), r"pass nn.MSELoss\(\)"),
        "two moms": (lambda: cbnb.Learner(line_batches(1), Line(), torch.nn.MSELoss(), moms=(0.9, 0.8)), "three numbers"),
        "metric name": (lambda: line_learner(metrics="accuracy"), "'accuracy' is not a metric"),
        "start after the end": (lambda: line_learner().fit(2, start_epoch=3), "start_epoch=3"),
    }.values(),
)
def test_common_slips_have_clear_words(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_cbs_may_be_a_set_and_removed_by_name():
    class Seen(cbnb.Callback):
        pass

    learn = line_learner()
    learn.fit_one_cycle(1, cbs={Seen()})
    learn.add_cb(Seen).remove_cb("seen")
    assert not learn.callbacks.find(Seen)


def test_fine_tune_without_a_frozen_phase():
    learn = line_learner(splitter=lambda m: [[m.a], [m.b]])
    learn.fine_tune(1, freeze_epochs=0)
    assert len(learn.recorder.history) == 1 and learn.model.a.requires_grad


# What helps


def switched_off():
    with torch.no_grad():
        line_learner().fit(1)


def switched_off_for_a_sweep():
    with torch.inference_mode():
        line_learner().lr_find(show_plot=False)


def without_a_loss(call):
    learn = line_learner()
    learn.loss_func = None
    return lambda: call(learn)


def refused():
    """A result of `lr_find` that recommends nothing."""
    return cbnb.lr.finder.LRFind([1e-7, 1e-6], [1.0, 1.0], [1.0, 1.0], 100)


HELP = {
    "gradients off": (switched_off, RuntimeError, "gradients are switched off around this fit.*outside"),
    "gradients off in lr_find": (switched_off_for_a_sweep, RuntimeError, "gradients are switched off around this lr_find"),
    "loss taken away": (
        without_a_loss(lambda learn: learn.fit(1)),
        ValueError,
        "loss_func is missing: assign one, such as learn.loss_func",
    ),
    "loss taken away from validate": (without_a_loss(lambda learn: learn.validate()), ValueError, "loss_func is missing"),
    "LBFGS": (learner(opt_func=torch.optim.LBFGS), TypeError, r"LBFGS evaluates the loss several times.*train_step=ClosureStep\(\)"),
    "epochs": (fit(epochs=3), TypeError, r"^fit has no argument 'epochs': did you mean n_epoch=\?$"),
    "n_epochs": (fit(n_epochs=3), TypeError, r"did you mean n_epoch="),
    "lr of one-cycle": (
        lambda: line_learner().fit_one_cycle(2, lr=0.1),
        TypeError,
        r"fit_one_cycle has no argument 'lr': did you mean lr_max=",
    ),
    "lr of sgdr": (lambda: line_learner().fit_sgdr(1, 2, lr=0.1), TypeError, r"did you mean lr_max="),
    "lr of fine_tune": (
        lambda: grouped_learner().fine_tune(1, nonsense=0.1),
        TypeError,
        r"fit_one_cycle has no argument 'nonsense': its arguments are n_epoch",
    ),
    "max_lr": (lambda: line_learner().fit_flat_cos(1, max_lr=0.1), TypeError, r"did you mean lr="),
    "n_epoch of fine_tune": (
        lambda: line_learner().fine_tune(n_epoch=1),
        TypeError,
        r"fine_tune has no argument 'n_epoch': did you mean epochs=",
    ),
    "misspelt": (lambda: line_learner().lr_find(num_its=10), TypeError, r"did you mean num_it="),
    "misspelt in get_preds": (lambda: line_learner().get_preds(with_losses=True), TypeError, r"did you mean with_loss="),
    "nothing alike": (
        lambda: line_learner().validate(colour="red"),
        TypeError,
        r"validate has no argument 'colour': its arguments are ds_idx, dl, cbs",
    ),
    "device": (
        lambda: cbnb.Learner(line_batches(1), Line(), device="cpu"),
        TypeError,
        r"Learner has no argument 'device'.*DataLoaders\(.*device=",
    ),
    "optimizer": (lambda: cbnb.Learner(line_batches(1), Line(), optimizer=torch.optim.SGD), TypeError, r"did you mean opt_func="),
    "val_loss": (
        lambda: line_learner().fit(1, cbs=cbnb.EarlyStopping(monitor="val_loss")),
        ValueError,
        "cannot watch 'val_loss'; did you mean 'valid_loss'.*the choices are train_loss, valid_loss",
    ),
    "val_loss of a scheduler": (
        lambda: line_learner().fit(1, cbs=cbnb.TorchScheduler(torch.optim.lr_scheduler.ReduceLROnPlateau, monitor="val_loss")),
        ValueError,
        "did you mean 'valid_loss'",
    ),
    "a sweep without a result as rate": (
        lambda: line_learner().fit(1, refused()),
        ValueError,
        "lr_find recommended no learning rate: .*",
    ),
    "the same for a learner": (lambda: line_learner(lr=refused()), ValueError, "lr_find recommended no learning rate"),
    "the same for one-cycle": (lambda: line_learner().fit_one_cycle(1, refused()), ValueError, "lr_find recommended no learning rate"),
    "the data of a fit": (
        lambda: line_learner().fit(torch.ones(4, 1), torch.ones(4, 1)),
        TypeError,
        "should be a number of epochs.*from_datasets",
    ),
    "a loader as n_epoch": (lambda: line_learner().fit([(1, 2)]), TypeError, "n_epoch should be a number of epochs"),
}


@pytest.mark.parametrize("case", HELP)
def test_the_error_says_what_helps(case):
    run, kind, words = HELP[case]
    with pytest.raises(kind, match=f"(?s){words}"):
        run()


def test_the_signatures_stay_visible():
    """To editors, and to `?`: the hints for wrong arguments hide nothing."""
    for method in (cbnb.Learner.__init__, cbnb.Learner.fit, cbnb.Learner.fit_one_cycle, cbnb.Learner.lr_find, cbnb.Learner.get_preds):
        names = list(inspect.signature(method).parameters)
        assert names[0] == "self" and "cbs" in names and method.__doc__ != cbnb.Callback.__doc__
        assert method.__name__ == "__init__" or "\nArgs:\n" in inspect.getdoc(method)  # what its parameters mean


def test_a_type_error_of_the_model_is_no_hint_about_arguments():
    def loss(pred, y):
        raise TypeError("unexpected keyword argument 'epochs'")

    with pytest.raises(TypeError) as caught:
        line_learner(loss_func=loss).fit(n_epoch=1)
    assert caught.value.args == ("unexpected keyword argument 'epochs'",)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        line_learner().fit(lr=0.1)


def test_what_lr_find_returns_is_a_rate():
    """It was an error: LRFind is not a number."""
    found = refused()
    found.lr = 0.25
    learn = line_learner()
    learn.fit(1, found)
    assert learn.recorder.lrs == [0.25] * 2
    learn.fit_one_cycle(1, found)
    assert learn.recorder.lrs[0] == pytest.approx(0.01)
    learn.fit_flat_cos(1, found)
    assert learn.recorder.lrs[0] == 0.25
    learn.lr = found
    learn.fit(1)
    assert learn.recorder.lrs == [0.25] * 2 and line_learner(lr=found).lr == 0.25


@pytest.mark.parametrize("moms", [[0.9, 0.8, 0.9], (0.9, 0.8, 0.9), np.array([0.9, 0.8, 0.9]), torch.tensor([0.9, 0.8, 0.9])])
def test_moms_may_be_an_array(moms):
    learn = line_learner(5, opt_func=torch.optim.Adam)
    learn.fit_one_cycle(4, 0.1, moms=moms)
    own = line_learner(5, opt_func=torch.optim.Adam, moms=moms)
    own.fit_one_cycle(4, 0.1)
    for one in (learn, own):
        assert one.recorder.moms[0] == pytest.approx(0.9) and one.recorder.moms[5] == pytest.approx(0.8)


def dict_loaders(**kwargs):
    return cbnb.DataLoaders([dict(x=torch.ones(4), lengths=[1] * 4, labels=torch.ones(4))], device="cpu", **kwargs)


def test_a_dict_batch_that_was_passed_whole_is_named():
    class Net(Line):
        def forward(self, x, lengths):
            return super().forward(x)

    with pytest.raises(TypeError, match="lengths") as caught:
        line_learner(dls=dict_loaders(), model=Net()).fit(1)
    assert any("a dict with x, lengths, labels" in n and "DataLoaders(..., targets='labels')" in n for n in caught.value.__notes__)
    line_learner(dls=dict_loaders(targets="labels"), model=Net()).fit(1)
    with pytest.raises(ZeroDivisionError) as caught:
        line_learner(cbs=cbnb.Callback(after_pred=lambda self: 1 / 0)).fit(1)
    assert not any("dict" in note for note in caught.value.__notes__)
    x = torch.ones(8, 1)
    learn = line_learner(dls=cbnb.DataLoaders([({"x": x}, x, x)], device="cpu"))
    with pytest.raises(TypeError) as caught:  # two inputs: the model was not given the dict alone
        learn.fit(1)
    assert not any("as one argument" in note for note in caught.value.__notes__)


class Stumbles(cbnb.Callback):
    order = 100

    def __init__(self, where):
        super().__init__(**{where: lambda self: 1 / 0})


@pytest.mark.parametrize(
    "where, call, name",
    [
        ("before_fit", lambda learn, cb: learn.fit(1, cbs=cb), "epoch 0"),
        ("after_pred", lambda learn, cb: learn.fit(1, cbs=cb), "epoch 0, training batch 0"),
        ("before_fit", lambda learn, cb: learn.validate(cbs=cb), "validate"),
        ("after_pred", lambda learn, cb: learn.validate(cbs=cb), "validate, batch 0"),
        ("after_pred", lambda learn, cb: learn.get_preds(cbs=cb), "get_preds, batch 0"),
        ("after_pred", lambda learn, cb: learn.add_cb(cb).predict(torch.tensor(1.0)), "predict, batch 0"),
        ("after_pred", lambda learn, cb: learn.lr_find(show_plot=False, cbs=cb), "lr_find, training batch 0"),
    ],
)
def test_an_error_names_the_run_and_no_batch_where_there_is_none(where, call, name, capsys):
    """It said "epoch 0, validation batch None", and of a prediction "epoch 0, validation batch 0"."""
    learn = line_learner(progress=True)
    with pytest.raises(ZeroDivisionError) as caught:
        call(learn, Stumbles(where))
    assert caught.value.__notes__ == [f"in Stumbles.{where}, {name}"]
    assert f"failed in {name}: ZeroDivisionError" in capsys.readouterr().out
    learn.remove_cb(Stumbles).fit(1)
    assert learn.run_name == "fit"


def test_an_interrupted_sweep_is_called_lr_find():
    """It said "stopped in epoch 3 at batch 1"."""
    stops = RaiseIn("after_backward", KeyboardInterrupt, when=lambda learn: learn.train_iter == 5)
    with pytest.raises(cbnb.FitInterrupted, match="^lr_find stopped after 5 batches; learn is usable$"):
        line_learner().lr_find(show_plot=False, cbs=stops)


@pytest.mark.parametrize("call", [lambda learn: learn.fit(1), lambda learn: learn.validate()], ids=["fit", "validate"])
@pytest.mark.parametrize("event", [None, "after_pred"])
def test_the_frames_of_the_loop_are_marked_as_hidden(call, event):
    """IPython, and pytest, leave out those that have `__tracebackhide__` in their variables."""
    net = Line()
    net.forward = (lambda x: x) if event else lambda x: 1 / 0
    learn = line_learner(model=net, cbs=cbnb.Callback(**({event: lambda cb: 1 / 0} if event else {})))
    with pytest.raises(ZeroDivisionError) as caught:
        call(learn)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__) if frame.f_globals["__name__"].startswith("cbnb.")]
    assert len(frames) >= 8 and all(frame.f_locals.get("__tracebackhide__") is True for frame in frames)


def test_the_frames_of_the_loop_are_hidden_in_ipython():
    """A traceback was 94 lines long, and its last line off the screen."""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    from IPython.utils.capture import capture_output

    shell.user_ns["learn"] = line_learner(model=nn.Linear(7, 2), progress=True)
    with capture_output() as shown:
        result = shell.run_cell("learn.fit_one_cycle(1)")
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.stdout)
    assert isinstance(result.error_in_exec, RuntimeError)
    assert re.search(r"RuntimeError: (addmm: )?mat1 and mat2 shapes cannot be multiplied", text)  # torch 2.15 names the function
    for hidden in ("_guard", "_do_epoch", "_do_train", "_all_batches", "one_batch", "_fit_level", "Step.predict", "hinted"):
        assert f"{hidden}(" not in text, hidden
    assert "learn.fit_one_cycle(1)" in text and "F.linear" in text


# An optimizer that was assigned


def test_an_optimizer_that_was_assigned_keeps_its_rate(capsys):
    """It trained at learn.lr, without a word."""
    learn = line_learner()
    learn.fit(1)
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=0.5)
    learn.fit(1)
    assert learn.recorder.lrs == [0.5] * 2 and learn.lr == 0.5
    assert capsys.readouterr().out.count("learn.opt was assigned: it keeps its own rate, so learn.lr is 0.5 now") == 1
    learn.fit(1, lr=0.2), learn.fit(1)
    assert learn.recorder.lrs == [0.5] * 2 and learn.recorder.history[2].hyper("lr") == [0.2] * 2
    learn.lr = 0.1
    learn.fit(1)
    assert learn.recorder.lrs == [0.1] * 2 and "assigned" not in capsys.readouterr().out


def test_an_optimizer_may_be_assigned_before_the_first_fit():
    learn = line_learner()
    learn.opt = opt = torch.optim.SGD(learn.model.parameters(), lr=0.5)
    learn.fit(1)
    assert learn.opt is opt and learn.recorder.lrs == [0.5] * 2


def test_a_new_opt_func_makes_a_new_optimizer(capsys):
    """It had no effect."""
    learn = line_learner()
    learn.fit(1)
    learn.opt_func = torch.optim.RMSprop
    learn.fit(1)
    opt = learn.opt
    assert type(opt) is torch.optim.RMSprop and learn.recorder.lrs == [0.1] * 2
    assert "learn.opt_func or learn.splitter was assigned: made a new optimizer" in capsys.readouterr().out
    learn.fit(1)
    assert learn.opt is opt and "assigned" not in capsys.readouterr().out
    copied = copy.deepcopy(learn)
    copied.fit(1)
    assert type(copied.opt) is torch.optim.RMSprop and "assigned" not in capsys.readouterr().out


def test_an_exported_learner_holds_no_optimizer(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.fit(1)
    state = vars(cbnb.load_learner(learn.export("e.pkl"), trust=True))
    assert not [k for k, v in state.items() if isinstance(v, torch.optim.Optimizer)] and state["_opt"] is None
    assert learn.opt is not None


@pytest.mark.parametrize("what", ["mse", 3, [nn.MSELoss()]])
def test_a_loss_that_cannot_be_called_is_refused_where_it_is_given(what):
    """The first batch failed: 'str' object is not callable."""
    with pytest.raises(TypeError, match=f"loss_func={re.escape(repr(what))} cannot be called"):
        line_learner(loss_func=what)
    learn = line_learner()
    loss = learn.loss_func
    with pytest.raises(TypeError, match="cannot be called"):
        learn.loss_func = what
    with pytest.raises(TypeError, match=r"loss_func is the class MSELoss: pass nn.MSELoss\(\)"):
        learn.loss_func = nn.MSELoss
    assert learn.loss_func is loss


@pytest.mark.parametrize("name", ["xb", "yb"])
def test_a_batch_assigned_without_its_tuple_is_noted(name):
    """The model was called with each item as an argument of its own, and nothing said why."""

    def assign(self):
        setattr(self.learn, name, torch.ones(8))

    learn = line_learner()
    with pytest.raises((TypeError, RuntimeError)) as e:
        learn.fit(1, cbs=cbnb.Callback(before_batch=assign))
    assert f"learn.{name} is a tensor, but should be a tuple: assign learn.{name} = ({name[0]},)" in e.value.__notes__


def test_a_model_that_computes_its_loss_and_a_loss_func_exclude_each_other():
    """The note sent people to `targets`, where the loss function fails with what the model returns."""

    class Tagger(nn.Linear):
        def forward(self, x, labels=None):
            return dict(loss=super().forward(x).mean())

    batches = [dict(x=torch.ones(2, 1), labels=torch.ones(2, 1))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, device="cpu"), Tagger(1, 1), nn.MSELoss())
    with pytest.raises(TypeError) as e:
        learn.fit(1)
    assert any("without a loss_func it gets the entries by name" in note for note in e.value.__notes__)


@pytest.mark.parametrize(
    "call, name, hint",
    [
        (lambda: cbnb.EarlyStopping("accuracy", mode="max"), "mode", "comp"),
        (lambda: cbnb.EarlyStopping(restore_best_weights=True), "restore_best_weights", "restore"),
        (lambda: cbnb.ReduceLROnPlateau(mode="min"), "mode", "comp"),
        (lambda: cbnb.SaveModel(filepath="best"), "filepath", "fname"),
        (lambda: cbnb.Tracker(metric="accuracy"), "metric", None),
    ],
)
def test_trackers_say_what_their_arguments_are_called(call, name, hint):
    with pytest.raises(TypeError, match=f"has no argument '{name}': " + (f"did you mean {hint}=" if hint else "its arguments are monitor")):
        call()


# --- the page of common errors: the errors of a run that it explains lead to it ---

SAID_OUTSIDE = (
    "did you mean",
    "the learning rate is given twice",
    "recommended no learning rate",
    "pip install",
    "applies a",
    "is not a dataset",
)


def headings(page: Path) -> list[str]:
    sources = ("".join(cell["source"]) for cell in json.loads(page.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "markdown")
    return [line.removeprefix("## ") for source in sources for line in source.splitlines() if line.startswith("## ")]


def test_each_error_on_the_page_of_errors_leads_to_it():
    page = Path(__file__).parents[2] / "nbs/how_to/errors.ipynb"
    assert errors_page() == "nbs/how_to/errors.ipynb"  # settings.ini has no real address
    for heading in headings(page):
        if not heading.startswith(("An error that", "Errors of", "More errors", "Findings of", "See also")):
            error = explained(RuntimeError(heading))
            led = getattr(error, "__notes__", []) == [f"explained in {errors_page()}"]
            assert led is not any(words in heading for words in SAID_OUTSIDE), heading


def test_an_error_of_a_run_leads_to_the_page_once_and_others_do_not():
    learn = line_learner()
    again = cbnb.Callback(after_epoch=lambda self: self.learn.validate(cbs=cbnb.Callback(after_pred=stops)))
    for error, n in (
        (RuntimeError("a tensor does not require grad"), 1),
        (RuntimeError("x"), 0),
        (Structured("forward() takes", detail=0), 0),
    ):
        stops.error = error
        with pytest.raises(type(error)) as caught:
            learn.fit(1, cbs=again)
        assert sum(note.startswith("explained in ") for note in caught.value.__notes__) == n


def stops(self):
    raise stops.error


def test_the_page_of_errors_is_on_the_site_that_the_metadata_names_or_in_a_clone_or_nowhere(monkeypatch):
    def page(**changed):
        with monkeypatch.context() as patch:
            for name, found in changed.items():
                patch.setattr(failures, name, found)
            return errors_page.__wrapped__()

    class Fields:
        def get_all(self, name, default):
            return ["Source, https://a.org", "Documentation, https://b.org/cbnb"]

    assert page(metadata=lambda name: Fields()) == "https://b.org/cbnb/how_to/errors.html"

    def missing(name):
        raise failures.PackageNotFoundError(name)

    assert page(metadata=missing).endswith("errors.ipynb")
    assert page(find_spec=lambda name: None) is None
    with monkeypatch.context() as patch:
        patch.setattr(failures, "errors_page", lambda: None)
        assert not hasattr(explained(RuntimeError("does not require grad")), "__notes__")


# Mistakes that would train silently


def warnings_of(run):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in seen if "Using a target size" not in str(w.message)]


def own_loss(pred, y):
    return ((pred - y) ** 2).mean()


def own_loss_by_torch(pred, y):
    return nn.functional.mse_loss(pred, y)


def flat_loss(pred, y):
    return nn.functional.mse_loss(pred.squeeze(1) if pred.ndim == 2 else pred, y.flatten())


def net_learner(x, y, model, loss_func, **kwargs):
    data = TensorDataset(x, y)
    learn = cbnb.Learner(cbnb.DataLoaders.from_datasets(data, data, bs=4, device="cpu"), model, loss_func, **kwargs)
    learn.logger = lambda row: None
    return learn


X = torch.rand(12, 3)


@pytest.mark.parametrize(
    "loss_func, y, flat, warns",
    [
        (own_loss, X[:, 0], False, True),
        (own_loss, X[:, 0] > 0.5, False, True),
        (own_loss, X[:, :1], True, True),
        (own_loss_by_torch, X[:, 0], False, True),
        (nn.PoissonNLLLoss(), X[:, 0], False, True),
        (own_loss, X[:, :1], False, False),
        (own_loss, X[:, 0], True, False),
        (flat_loss, X[:, 0], False, False),
        (flat_loss, X[:, :1], True, False),
    ],
)
def test_a_loss_that_compares_each_prediction_with_every_target_warns_once_a_fit(loss_func, y, flat, warns):
    net = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)) if flat else nn.Linear(3, 1)
    learn = net_learner(X, y.float(), net, loss_func)
    for _ in range(2):
        said = warnings_of(lambda: learn.fit(2))
        assert len(said) == warns and all("compares each prediction with every target" in text for text in said)
    assert warnings_of(learn.validate) == []


def mae_of_all_pairs(pred, y):
    return (pred - y).abs().mean()


def mape_of_keras(y_true, y_pred):
    return ((y_true - y_pred) / y_true).abs().mean()


def mae_of_rows(pred, y):
    return (pred[:, 0] - y).abs().mean()


@pytest.mark.parametrize(
    "metric, warns",
    [
        (mae_of_all_pairs, True),
        (mape_of_keras, True),
        (cbnb.AvgMetric(lambda pred, y: ((pred > 0) == (y > 0)).float().mean(), "hits"), True),
        (nn.functional.l1_loss, True),
        (mae_of_rows, False),
    ],
)
def test_a_metric_that_compares_each_prediction_with_every_target_warns_once(metric, warns):
    learn = net_learner(X, X[:, 0], nn.Linear(3, 1), flat_loss, metrics=metric)
    name = learn.metrics[0].name
    said = warnings_of(lambda: learn.fit(2))
    assert len(said) == warns and all(
        f"metric {name!r} got predictions of shape (8, 1) and targets of shape (8,), and compares each prediction with every target" in text
        for text in said
    )


def test_a_metric_of_all_pairs_is_heard_before_the_first_batch_is_trained():
    trained = []
    learn = net_learner(X, X[:, 0], nn.Linear(3, 1), flat_loss, metrics=mae_of_all_pairs)
    learn.add_cb(cbnb.Callback(before_backward=lambda self: trained.append(self.training)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MetricWarning)
        with pytest.raises(MetricWarning):
            learn.fit(1)
    assert trained == []


def test_a_metric_of_all_pairs_is_heard_without_the_sanity_check_too():
    learn = net_learner(X, X[:, 0], nn.Linear(3, 1), flat_loss, metrics=mae_of_all_pairs, sanity_check=False)
    assert len(warnings_of(learn.validate)) == 1
    assert len(warnings_of(lambda: learn.fit(1))) == 0
    model = learn.model
    with torch.no_grad():
        pred, y = model(X)[:, 0], X[:, 0]
        parts = [(pred[part, None] - y[part]).abs().mean() for part in (slice(0, 8), slice(8, 12))]
        by_hand = (8 * parts[0] + 4 * parts[1]) / 12
    assert learn.validate()[1] == pytest.approx(float(by_hand))  # the value is the one of the function, only said


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


class Parts(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(3, 2), kind

    def forward(self, x):
        return self.kind(self.layer(x), x)


Y = torch.arange(12) % 2


@pytest.mark.parametrize(
    "loss_func, kind, fix",
    [
        (nn.functional.cross_entropy, Output, "lambda out, y: F.cross_entropy(out.logits, y)"),
        (nn.CrossEntropyLoss(), Output, "lambda out, y: nn.CrossEntropyLoss()(out.logits, y)"),
        (nn.CrossEntropyLoss(), lambda a, b: (a, b), "lambda out, y: nn.CrossEntropyLoss()(out[0], y)"),
        (nn.CrossEntropyLoss(), lambda a, b: dict(aux=b, logits=a), "lambda out, y: nn.CrossEntropyLoss()(out['logits'], y)"),
        (own_loss, lambda a, b: (a[:, 0], b), "lambda out, y: own_loss(out[0], y)"),
        (nn.MSELoss(), lambda a, b: (a[:, 0], b), "lambda out, y: nn.MSELoss()(out[0], y)"),
    ],
)
def test_a_loss_that_gets_a_prediction_of_several_parts_is_told_how_to_take_one(loss_func, kind, fix):
    y = Y if "ross" in fix else Y.float()
    with pytest.raises((TypeError, AttributeError)) as e:
        net_learner(X, y, Parts(kind), loss_func).fit(1)
    [note] = [note for note in e.value.__notes__ if "loss_func=" in note]
    assert fix in note and "was called with a" in note
    fixed = eval(fix, dict(F=nn.functional, nn=nn, own_loss=own_loss))
    net_learner(X, y, Parts(kind), fixed).fit(1)


def test_a_loss_that_takes_all_parts_gets_no_note_for_another_mistake():
    def loss(out, y):
        return nn.functional.cross_entropy(out[0], y[:3])

    with pytest.raises(ValueError) as e:
        net_learner(X, Y, Parts(lambda a, b: (a, b)), loss).fit(1)
    assert not any("loss_func=" in note for note in e.value.__notes__)


def test_the_check_of_a_loss_does_not_change_it():
    runs = []
    for first in (True, False):
        torch.manual_seed(0)
        learn = net_learner(X, X[:, 0], nn.Linear(3, 1), own_loss)
        if not first:
            learn.add_cb(cbnb.Callback(before_train=lambda self: setattr(self.learn, "train_iter", self.train_iter + 1)))  # no check
        warnings_of(lambda: learn.fit(1))
        runs.append(list(learn.recorder.last().raw_losses))
    assert runs[0] == runs[1]


class EndsWith(nn.Module):
    def __init__(self, f, n=2):
        super().__init__()
        self.layer, self.f = nn.Linear(3, n), f

    def forward(self, x):
        return self.f(self.layer(x))


@pytest.mark.parametrize(
    "loss_func, model, words",
    [
        (nn.CrossEntropyLoss(), nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), "layer '1', Softmax"),
        (nn.functional.cross_entropy, nn.Sequential(nn.Sequential(nn.Linear(3, 2)), nn.Sequential(nn.Softmax(1))), "layer '1.0', Softmax"),
        (nn.CrossEntropyLoss(), EndsWith(lambda out: out.softmax(1)), "softmax in EndsWith.forward"),
        (nn.CrossEntropyLoss(), EndsWith(nn.LogSoftmax(1)), None),
        (nn.CrossEntropyLoss(), EndsWith(nn.Sigmoid()), None),
        (nn.CrossEntropyLoss(), nn.Sequential(nn.Linear(3, 2), nn.Softmax(1), nn.Linear(2, 2)), None),
        (nn.NLLLoss(), EndsWith(nn.LogSoftmax(1)), None),
        (nn.BCEWithLogitsLoss(), nn.Sequential(nn.Linear(3, 1), nn.Sigmoid(), nn.Flatten(0)), "layer '1', Sigmoid"),
        (nn.BCEWithLogitsLoss(), EndsWith(nn.Flatten(0), 1), None),
        (nn.BCELoss(), EndsWith(lambda out: out.sigmoid()[:, 0], 1), None),
    ],
)
def test_an_activation_that_the_loss_applies_itself_is_named_once_a_fit(loss_func, model, words):
    y = (X[:, 0] > 0.5).long()
    learn = net_learner(X, y.float() if "BCE" in type(loss_func).__name__ else y, model, loss_func)
    said = warnings_of(lambda: learn.fit(2))
    assert len(said) == (words is not None) and all(words in text for text in said)
    assert warnings_of(learn.validate) == []


@pytest.mark.parametrize("kind", [tuple, list, lambda parts: dict(zip("xyz", parts))])
def test_columns_are_no_dataset(kind):
    x, y = torch.rand(20, 3), torch.rand(20)
    for parts in ((x, y), (x.numpy(), y.numpy()), (x, x, y)):
        with pytest.raises(TypeError, match=r"\(20, 3\) and.*\(20,\).*TensorDataset\(x, y\)"):
            cbnb.DataLoaders.from_datasets(kind(parts), device="cpu")
    with pytest.raises(TypeError, match="TensorDataset"):
        cbnb.DataLoaders.from_datasets(TensorDataset(x, y), (x, y), device="cpu")
    with pytest.raises(TypeError, match="TensorDataset"):
        cbnb.DataLoaders.from_datasets((x, x), device="cpu")
    items = [torch.rand(3) for _ in range(5)], [(x[i], y[i]) for i in range(5)], tuple(zip(x, y)), [torch.rand(n + 1) for n in range(3)]
    for data in items:
        assert len(cbnb.DataLoaders.from_datasets(data, device="cpu").train.dataset) == len(data)


def test_names_of_other_libraries_say_what_to_use():
    from cbnb.hints import ELSEWHERE, RENAMED

    learn = line_learner()
    for name in ELSEWHERE | RENAMED:
        assert not hasattr(learn, name) and not hasattr(type(learn), name) and name not in dir(learn)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'.*learn|callback Compile|CancelFitException"):
            getattr(learn, name)
    from cbnb.distributed.launch import fit_methods

    assert "fit_one_cycle" in fit_methods()  # it reads all attributes of the class
    with pytest.raises(AttributeError, match="raise CancelFitException"):
        learn.stop_training = True  # as in a callback of Keras: nothing would read it
    with pytest.raises(TypeError, match="opt=<class .*SGD'> is not an optimizer: pass one"):
        learn.opt = torch.optim.SGD
    learn.history = 3
    assert learn.history == 3 and "history" in dir(learn)
    assert copy.deepcopy(learn).history == 3

    class Compile(cbnb.Callback):
        def before_fit(self):
            self.found = hasattr(self, "device"), self.compile is self

    learn.add_cb(Compile)
    learn.fit(1)
    assert learn.compile.found == (False, True)


@pytest.mark.parametrize("what", [torch.ones(2), np.ones(2), [torch.ones(2)], 3, dict(x=1)])
def test_a_learner_is_no_model(what):
    with pytest.raises(TypeError, match="learn.model.x.*learn.predict"):
        line_learner()(what)
    line_learner()(["before_train", "before_validate"])


def test_objects_of_other_libraries_are_no_models():
    class Keras:
        def __call__(self, x):
            return x

    Keras.__module__ = "keras.src.models.model"
    with pytest.raises(TypeError, match="Rewrite the Keras model in PyTorch"):
        line_learner(model=Keras())

    class Pipeline:
        def __init__(self):
            self.model = Line()

        def __call__(self, x):
            return self.model(x)

    with pytest.raises(TypeError, match="module inside it is its attribute `model`, a Line"):
        line_learner(model=Pipeline())


def test_an_item_may_come_with_its_target():
    x, y = torch.rand(12, 3), torch.rand(12, 1)
    learn = net_learner(x, y, nn.Linear(3, 1), nn.MSELoss())
    expected = learn.model(x[0])
    for item in (x[0], (x[0],), (x[0], y[0]), learn.dls.train.dataset[0]):
        assert torch.allclose(learn.predict(item)[1], expected)
    assert torch.equal(learn.predict((x[0], y[0]), with_input=True)[0], x[0])


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("look", ["validate", "get_preds", "predict"])
def test_looking_between_fits_does_not_change_the_next(look, default):
    def trained(look):
        torch.manual_seed(0)
        learn = net_learner(X, X[:, :1], nn.Linear(3, 1), nn.MSELoss())
        if not default:
            learn.dls = cbnb.DataLoaders(*(DataLoader(TensorDataset(X, X[:, :1]), 4, shuffle=on) for on in (True, False)), device="cpu")
        for _ in range(2):
            learn.fit(1)
            look(learn)
        return learn.model.weight

    quiet = trained(lambda learn: None)
    args = (X[0],) if look == "predict" else ()
    assert torch.equal(trained(lambda learn: getattr(learn, look)(*args)), quiet)
    assert not torch.equal(trained(lambda learn: learn.validate(0)), quiet)  # the loader shuffles


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.body(x))


def test_the_layer_that_fails_is_named_with_what_it_received():
    """torch says "mat1 and mat2 shapes cannot be multiplied", of a model with a hundred layers."""
    learn = net_learner(X, X[:, 0], nn.Sequential(Inner(), nn.Flatten()), flat_loss)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        learn.fit(1)
    [note] = [note for note in caught.value.__notes__ if "layer" in note]
    assert note == "in layer '0.head', Linear(in_features=5, out_features=2, bias=True), which was called with tensor 8x4"


def test_an_error_outside_of_the_model_names_no_layer():
    learn = net_learner(X, X[:, 0], nn.Linear(3, 1), lambda pred, y: pred @ torch.ones(7))
    with pytest.raises(RuntimeError) as caught:
        learn.fit(1)
    assert not any("in layer" in note for note in caught.value.__notes__)


def test_negative_labels_say_how_to_leave_them_out():
    learn = net_learner(X, torch.full((12,), -1), nn.Linear(3, 2), nn.CrossEntropyLoss())
    with pytest.raises(IndexError, match="Target -1 is out of bounds") as caught:
        learn.fit(1)
    assert any("ignore_index=-1" in note for note in caught.value.__notes__)


def test_a_class_of_metrics_that_needs_arguments_is_named():
    torchmetrics = pytest.importorskip("torchmetrics")
    with pytest.raises(TypeError, match=r"Accuracy is a class that needs arguments .*'task'.*: pass an instance, Accuracy\(...\)"):
        net_learner(X, X[:, 0], nn.Linear(3, 2), nn.CrossEntropyLoss(), metrics=torchmetrics.Accuracy)


def test_an_empty_training_set_is_said():
    empty = torch.utils.data.TensorDataset(X[:0], X[:0, 0])
    with pytest.raises(ValueError, match="the training dataset, a TensorDataset, has no items"):
        cbnb.DataLoaders.from_datasets(empty, empty)


def test_a_lambda_in_a_pickle_says_what_to_write(tmp_path):
    learn = net_learner(X, X[:, 0], nn.Linear(3, 1), lambda pred, y: (pred[:, 0] - y).square().mean(), path=tmp_path)
    with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
        learn.export("a.pkl")
    assert any("export to a file whose name ends in '.cbnb'" in note for note in caught.value.__notes__)
    assert not (tmp_path / "a.pkl").exists()


@pytest.mark.parametrize(
    "mistake, error, said",
    [
        (
            lambda learn: cbnb.DataLoaders.from_datasets(torch.utils.data.random_split(range(9), [6, 3])),
            TypeError,
            "from_datasets(*random_split",
        ),
        (lambda learn: learn.load(learn.model.state_dict()), TypeError, "learn.model.load_state_dict"),
        (lambda learn: cbnb.Learner(learn.dls, learn.model), ValueError, "Learner(dls, model, nn.CrossEntropyLoss())"),
        (lambda learn: learn.fit(1, lr="auto"), TypeError, "pass one, such as lr=0.001"),
        (lambda learn: cbnb.Metric().value, NotImplementedError, "Metric does not define value"),
        (lambda learn: cbnb.DataLoaders([1], device="gpu"), ValueError, "device='gpu' is not a device of PyTorch: pass 'cuda'"),
        (lambda learn: learn.dls.to("gpu:0"), ValueError, "device='gpu:0' is not a device of PyTorch: pass 'cuda'"),
        (lambda learn: setattr(learn, "metric", cbnb.accuracy), AttributeError, "it is learn.metrics"),
        (lambda learn: setattr(learn, "optimizer", torch.optim.SGD), AttributeError, "it is learn.opt_func"),
        (
            lambda learn: cbnb.DataLoaders.from_datasets(TensorDataset(X), TensorDataset(X[:0])),
            ValueError,
            "the validation dataset, a TensorDataset, has no items: check how it is split or filtered, or leave it out",
        ),
        (lambda learn: learn.dls.to([0]), TypeError, "device=[0] is not a device of PyTorch"),
        (lambda learn: cbnb.Learner(learn.dls, torch.optim.SGD, flat_loss), TypeError, "the class SGD: pass an instance of nn.Module"),
        (lambda learn: cbnb.Learner(learn.dls, learn.model, X), TypeError, "cannot be called: pass a function"),
        (lambda learn: cbnb.Learner(learn.dls, learn.model, flat_loss, moms=(0.9, "x", 0.9)), TypeError, "moms[1]='x' is not a number"),
        (lambda learn: cbnb.Learner(learn.dls, learn.model, flat_loss, [torch.optim.SGD]), TypeError, "such as torch.optim.AdamW"),
        (lambda learn: cbnb.Batches([1]), TypeError, "make=[1] should be a function that returns an iterator"),
        (lambda learn: cbnb.DataLoaders({"train": [1]}), TypeError, "is not a loader of batches: pass a DataLoader"),
        (lambda learn: cbnb.DataLoaders.from_datasets([TensorDataset(X)]), TypeError, "pass the dataset itself"),
        (lambda learn: cbnb.DataLoaders.from_datasets(Dataset()), TypeError, "pass a dataset with __getitem__ and __len__"),
        (
            lambda learn: cbnb.DataLoaders.from_datasets(type("Stream", (IterableDataset,), {"__iter__": iter})()),
            ValueError,
            "cannot be shuffled: pass shuffle=False",
        ),
        (lambda learn: cbnb.accuracy(X, X[:, 0], axis=7), ValueError, "have no dimension 7: pass another axis, or leave it out"),
    ],
)
def test_what_to_do_is_said(mistake, error, said):
    with pytest.raises(error, match=re.escape(said)):
        mistake(net_learner(X, X[:, 0], nn.Linear(3, 1), flat_loss))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_accelerator_that_is_not_there_is_said_where_it_is_asked_for():
    with pytest.raises(ValueError, match="device='cuda' is not available to PyTorch .*: pass 'cpu'"):
        cbnb.DataLoaders([1], device="cuda")


def test_an_empty_validation_loader_is_named():
    data = TensorDataset(X, X[:, 0])
    valid = DataLoader(data, 64, drop_last=True)
    learn = cbnb.Learner(cbnb.DataLoaders(DataLoader(data, 4), dict(small=valid), device="cpu"), nn.Linear(3, 1), flat_loss)
    with pytest.warns(UserWarning, match="the validation loader 'small' is empty, .* whether drop_last=True"):
        learn.fit(1)


class Ends(nn.Module):
    """Ends with a function of its prediction."""

    def __init__(self, end):
        super().__init__()
        self.layer, self.end = nn.Linear(3, 2), end

    def forward(self, x):
        return self.end(self.layer(x))


def with_norm():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "model, loss_func, note",
    [
        (lambda: Ends(lambda pred: None), nn.CrossEntropyLoss(), "the model returned None: end the method forward of Ends with `return`"),
        (lambda: Ends(torch.detach), nn.CrossEntropyLoss(), "the prediction has no gradient: look for .* in the forward of Ends"),
        (
            lambda: Ends(torch.clone),
            lambda pred, y: (pred.argmax(1) != y).float().mean(),
            "the prediction has a gradient, and the loss has none",
        ),
        (with_norm, nn.CrossEntropyLoss(), "batch norm cannot train on a batch of one item: .*drop_last=True"),
    ],
)
def test_an_error_of_torch_in_the_first_batches_gets_its_fix(model, loss_func, note):
    """`check` finds the fault or gives the same fix."""
    data = TensorDataset(X, (X[:, 0] > 0).long())
    learn = cbnb.Learner(cbnb.DataLoaders(DataLoader(data, 11), device="cpu"), model(), loss_func)
    with pytest.raises((TypeError, RuntimeError, ValueError)) as caught:
        learn.fit(1)
    assert any(re.match(note, n) for n in caught.value.__notes__)
    if "None" in note:
        assert [re.match(note, f.fix) is not None for f in learn.check() if f.code == "X1"] == [True]


def test_items_with_three_elements_say_how_many_are_inputs():
    data = TensorDataset(X, X, X[:, 0])
    learn = cbnb.Learner(cbnb.DataLoaders.from_datasets(data, data, bs=4), nn.Sequential(nn.Linear(3, 1)), flat_loss)
    with pytest.raises(TypeError, match="positional arguments") as caught:
        learn.fit(1)
    assert any("n_inp=1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("text", ["", None])
def test_a_layer_that_cannot_be_described_hides_no_error(text):
    class Odd(nn.Module):
        def __repr__(self):
            if text is None:
                raise AttributeError("not yet")
            return text

        def forward(self, x):
            raise RuntimeError("original")

    learn = net_learner(X, X[:, 0], nn.Sequential(nn.Linear(3, 1), Odd()), flat_loss)
    with pytest.raises(RuntimeError, match="original") as caught:
        learn.fit(1)
    assert any(note.startswith("in layer '1', Odd") for note in caught.value.__notes__)


@pytest.mark.parametrize("value", [np.zeros(2000), torch.zeros(3), list(range(2000)), "x" * 1000, None, 2])
def test_as_choice_refuses_any_value_in_few_words(value):
    with pytest.raises(ValueError, match=r"^divided=.{1,80} should be False, True or 'train'$"):
        as_choice(value, "divided", False, True, "train")
    assert as_choice(np.str_("train"), "divided", False, True, "train") == "train"


def test_short_repr_has_no_addresses():
    assert short_repr([object()]) == "[<object object>]"

    class Upper:
        def __repr__(self):
            return "<Upper at 0x7F00ABCDEF>, <a at 0x00Fe>"

    assert short_repr(Upper()) == "<Upper>, <a>"


def test_short_repr_names_the_type_if_there_is_no_repr():
    class Odd:
        def __repr__(self):
            raise ZeroDivisionError

    assert short_repr(Odd()) == "<Odd object>" and short_repr([Odd()]) == "<list object>"


def test_articles_follow_the_pronunciation():
    an = "UpdateStep UninitializedBuffer _Unnamed LSTM Adam ndarray Unimplemented Unindexed Unimportant Unidentified".split()
    a = "UNet UniformSampler UserStep OneCycle EuclideanLoss _Pair Graph Uint8Array UniNet Unimodal Unit UnaryOp".split()
    assert [with_article(name) for name in (*an, *a)] == [f"an {name}" for name in an] + [f"a {name}" for name in a]
