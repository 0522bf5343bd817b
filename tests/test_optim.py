"""fastai's names on a torch optimizer: what callbacks read of `opt.hypers` and do with `opt.set_hyper`, for the length of a fit."""

import copy
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.optim import Hypers, Optimizers, as_python, needs_closure, set_hyper, write_hyper
from helpers import line_learner


def two_groups(model):
    return [[model.a], [model.b]]


class At(cbnb.Callback):
    """Calls `what(callback)` in one event."""

    def __init__(self, event, what):
        super().__init__(**{event: what})


def in_fit(what, event="after_backward", **kwargs):
    """The value of `what(callback)` in the last batch of a fit."""
    seen = []
    learn = line_learner(1, opt_func=torch.optim.AdamW, splitter=two_groups, **kwargs)
    learn.fit(1, lr=[0.1, 0.2], cbs=At(event, lambda cb: seen.append(what(cb))))
    return seen[-1], learn


def test_callbacks_read_hypers_of_the_optimizer():
    """`self.opt.hypers[-1]['lr']`, as trackers of experiments log it, in every event of a fit."""
    for event in ("before_fit", "after_batch", "after_fit"):
        (rates, names), learn = in_fit(lambda cb: ([h["lr"] for h in cb.opt.hypers], set(cb.opt.hypers[0])), event)
        assert rates == [0.1, 0.2] and {"lr", "mom", "sqr_mom", "wd", "eps"} <= names
    assert type(learn.opt) is torch.optim.AdamW and not hasattr(learn.opt, "hypers")


def test_hypers_and_set_hyper_change_the_groups():
    """Assigning to `hypers`, `set_hyper` and `set_hypers` all change `param_groups`, and the fit's end puts the rate back."""

    def change(cb):
        cb.opt.hypers[0]["lr"] = 0.5
        cb.opt.set_hyper("mom", 0.8)
        cb.opt.set_hypers(wd=[0.0, 0.3], sqr_mom=0.99)
        for h in cb.opt.hypers:
            h["lr"] = max(h["lr"] / 2, 0.15)
        return [(g["lr"], g["betas"], g["weight_decay"]) for g in cb.opt.param_groups]

    found, learn = in_fit(change)
    assert found == [(0.25, (0.8, 0.99), 0.0), (0.15, (0.8, 0.99), 0.3)]
    assert [g["betas"] for g in learn.opt.param_groups] == [(0.9, 0.999)] * 2
    rates, _ = in_fit(lambda cb: cb.opt.set_hyper("lr", slice(1e-4, 1e-2)) or [g["lr"] for g in cb.opt.param_groups])
    assert all(map(math.isclose, rates, (1e-4, 1e-2)))


def test_unknown_hypers_and_too_few_values_are_refused():
    """A misspelt name and a list of the wrong length raise; nothing is left out in silence."""
    learn = line_learner(1, splitter=two_groups)
    learn.fit(1)
    with pytest.raises(ValueError, match="lr has 3 values, but the optimizer has 2 parameter groups"):
        set_hyper(learn.opt, "lr", [1.0, 2.0, 3.0])
    for wrong in (lambda o: o.set_hyper("lrr", 1), lambda o: o.hypers[0].update(lrr=1)):
        with pytest.raises((ValueError, KeyError), match="lrr"):
            line_learner(1).fit(1, cbs=At("after_batch", lambda cb: wrong(cb.opt)))


def test_parameters_and_freezing_by_fastais_names():
    """`all_params(with_grad=True)` is how fastai clips; `freeze_to`, `freeze` and `unfreeze` work on groups."""

    def found(cb):
        params = cb.opt.all_params(with_grad=True)
        assert [p for p, *_ in params] == [cb.model.a, cb.model.b] and params[1][1] is cb.opt.param_groups[1]
        assert params[1][3]["lr"] == 0.2 and params[0][2] == {}
        cb.opt.freeze()
        frozen = [p.requires_grad for p in cb.model.parameters()]
        cb.opt.unfreeze()
        return frozen, len(cb.opt.all_params(0)), len(cb.opt.all_params(slice(1, None)))

    assert in_fit(found)[0] == ([False, True], 1, 1)


def test_clear_state_forgets_momentum():
    """After `clear_state` in mid-fit the averages begin anew."""
    steps = []

    def forget(cb):
        steps.append(cb.opt.state[cb.model.a]["step"].item())
        cb.opt.clear_state()

    line_learner(3, opt_func=torch.optim.Adam).fit(1, cbs=At("after_step", forget))
    assert steps == [1, 1, 1]


def test_the_lent_names_are_gone_after_an_error():
    """The optimizer's class is its own again however the fit ends, and a copy or a file made meanwhile has the plain class."""
    copies = []

    def fail(cb):
        copies.extend([copy.deepcopy(cb.opt), pickle.loads(pickle.dumps(cb.opt))])
        raise ZeroDivisionError

    learn = line_learner(1)
    with pytest.raises(ZeroDivisionError):
        learn.fit(1, cbs=At("after_batch", fail))
    assert [type(o) for o in (learn.opt, *copies)] == [torch.optim.SGD] * 3


def test_several_optimizers_have_the_names_too():
    """`MultiOptimizer`-like objects get `hypers` over all their groups."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    both = cbnb.Optimizers([torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(model, (0.1, 0.2))])
    seen = []
    batches = [(torch.ones(4, 1), torch.ones(4, 1))]
    cbnb.Learner(batches, model, nn.MSELoss(), both).fit(1, cbs=At("after_batch", lambda cb: seen.extend(h["lr"] for h in cb.opt.hypers)))
    assert seen == [0.1, 0.2]


def test_fit_sgdr_takes_keywords_in_fastais_order():
    """The fifth argument of `fit_sgdr` is the callbacks, as in fastai; it was the weight decay."""
    seen = []
    line_learner(1).fit_sgdr(1, 1, 0.1, 2, At("after_batch", seen.append))
    assert len(seen) == 2


def test_an_unknown_hyper_parameter_is_named_with_those_there_are():
    """KeyError: 'lrr' and no more."""
    seen = []

    def ask(self):
        hypers = self.learn.opt.hypers[0]
        assert "lrr" not in hypers and hypers.get("lrr") is None
        for use in (lambda: hypers["lrr"], lambda: hypers.__setitem__("lrr", 1)):
            with pytest.raises(KeyError, match="SGD has no hyper-parameter 'lrr'; it has .*lr, mom"):
                use()
            seen.append(use)

    line_learner().fit(1, cbs=cbnb.Callback(before_fit=ask))
    assert len(seen) == 2
def test_the_first_of_three_betas_is_written_and_the_others_stay():
    """Some optimizers, such as Adan, have three."""
    group = dict(betas=(0.9, 0.8, 0.7))
    write_hyper([group], "betas", 0, 0.5)
    assert group["betas"] == (0.5, 0.8, 0.7)


def test_numbers_of_numpy_in_a_list_become_those_of_python():
    numbers = as_python([np.float32(0.5), 0.25, np.array([1, 2])])
    assert numbers == [0.5, 0.25, [1, 2]] and type(numbers[0]) is float


def test_a_step_whose_arguments_cannot_be_found_out_is_called_without_a_closure():
    """Python knows the arguments of `dict` as little as those of some compiled functions."""
    p = [nn.Parameter(torch.zeros(1))]
    assert needs_closure(torch.optim.LBFGS(p)) and not needs_closure(torch.optim.SGD(p))
    assert not needs_closure(SimpleNamespace(step=dict))


def test_unfreezing_within_a_fit_trains_the_first_group_too():
    def unfrozen(cb):
        cb.opt.freeze()
        frozen = cb.learn.model.a.requires_grad, cb.learn.model.b.requires_grad
        cb.opt.unfreeze()
        return frozen, (cb.learn.model.a.requires_grad, cb.learn.model.b.requires_grad)

    assert in_fit(unfrozen)[0] == ((False, True), (True, True))


def test_hypers_know_how_many_they_are():
    hypers = Hypers(torch.optim.AdamW([nn.Parameter(torch.zeros(1))]), 0)
    assert len(hypers) == len(set(hypers)) > 3


def test_several_optimizers_take_a_state_for_a_parameter_that_has_none_yet():
    one, two, stray = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    both = Optimizers([torch.optim.Adam([one]), torch.optim.Adam([two])])
    both.state[two] = {"step": 1}
    assert both.optimizers[1].state[two] == {"step": 1} and not both.optimizers[0].state
    with pytest.raises(KeyError):
        both.state[stray]
