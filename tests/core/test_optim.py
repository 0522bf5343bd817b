"""fastai's names on a torch optimizer: what callbacks read of `opt.hypers` and do with `opt.set_hyper`, for the length of a fit."""

import copy
import functools
import math
import pickle
import warnings
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import cbnb.all as cbnb
from cbnb.basics.arguments import as_positive, as_python
from cbnb.basics.fused import fuse, is_fused, update
from cbnb.basics.optimizers import (
    Hypers,
    MultiOptimizer,
    add_fastai_names,
    copied_hypers,
    freeze_groups,
    get_hyper,
    hyper_key,
    known_hypers,
    needs_closure,
    norm_params,
    save_hypers,
    set_hyper,
    shares_params,
    spread_lrs,
    state_keys,
    write_hyper,
)
from cbnb.dialects.fastai_v1_loop import lend_names, with_names
from cbnb.optim import belongs_to, make_opt, param_groups
from helpers import ab, line_learner


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
    both = cbnb.MultiOptimizer([torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(model, (0.1, 0.2))])
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
            with pytest.raises(KeyError, match="SGD has no hyper-parameter 'lrr'; its hyper-parameters are .*lr, mom"):
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
    both = MultiOptimizer([torch.optim.Adam([one]), torch.optim.Adam([two])])
    both.state[two] = {"step": 1}
    assert both.optimizers[1].state[two] == {"step": 1} and not both.optimizers[0].state
    with pytest.raises(KeyError):
        both.state[stray]


# --- hyper-parameters ---


def groups(*settings):
    """Param groups without an optimizer around them."""
    return SimpleNamespace(param_groups=[dict(params=[], **group) for group in settings])


def test_common_names_stand_for_the_first_key_that_all_groups_have():
    both = groups(dict(momentum=0.9, betas=(0.8, 0.7)), dict(betas=(0.6, 0.5)))
    assert hyper_key(both, "mom") == ("betas", 0) and hyper_key(both, "sqr_mom") == ("betas", 1)
    assert hyper_key(groups(dict(momentum=0.9, betas=(0.8, 0.7), alpha=0.5)), "mom") == ("momentum", None)
    assert hyper_key(groups(dict(alpha=0.5, betas=(0.8, 0.7))), "sqr_mom") == ("alpha", None)
    asgd = torch.optim.ASGD(torch.nn.Linear(1, 1).parameters())  # its alpha is an exponent of its rate
    assert hyper_key(asgd, "sqr_mom") is None and "alpha" in known_hypers(asgd)
    assert hyper_key(groups(dict(weight_decay=0.1)), "wd") == ("weight_decay", None)
    assert hyper_key(groups({}), "params") is hyper_key(groups(dict(lr=1), {}), "lr") is None


def test_known_hypers_are_numbers_that_all_groups_have():
    several = groups(
        dict(lr=1, eps=torch.tensor(0.1), momentum=0, alpha=1, weight_decay=0, nesterov=False, name="x", own=3),
        dict(lr=1, eps=2, momentum=0, alpha=1, weight_decay=0),
    )
    assert known_hypers(several) == ["mom", "sqr_mom", "wd", "lr", "eps"]


def test_a_hyper_is_read_and_written_group_by_group():
    adam = groups(dict(lr=0.1, betas=(0.8, 0.7)), dict(lr=0.2, betas=(0.6, 0.5)))
    assert get_hyper(adam, "lr") == [0.1, 0.2] and get_hyper(adam, "mom") == [0.8, 0.6] and get_hyper(adam, "sqr_mom") == [0.7, 0.5]
    set_hyper(adam, "sqr_mom", (0.1, 0.2))
    set_hyper(adam, "lr", np.array([0.3, 0.4]))
    assert [g["betas"] for g in adam.param_groups] == [(0.8, 0.1), (0.6, 0.2)] and get_hyper(adam, "lr") == [0.3, 0.4]
    assert [type(g["lr"]) for g in adam.param_groups] == [float, float]
    for use in (lambda: get_hyper(adam, "lrr"), lambda: set_hyper(adam, "lrr", 1.0)):
        with pytest.raises(ValueError, match="SimpleNamespace has no hyper-parameter 'lrr'; its hyper-parameters are lr, mom, sqr_mom"):
            use()
    with pytest.raises(ValueError, match="lr has 2 values, but the optimizer has 1 parameter group: "):
        set_hyper(groups(dict(lr=1)), "lr", [1.0, 2.0])


def test_a_rate_that_is_a_tensor_stays_the_same_object():
    rate = torch.tensor(0.1)
    opt = groups(dict(lr=rate))
    set_hyper(opt, "lr", 0.5)
    assert opt.param_groups[0]["lr"] is rate and rate == 0.5
    kept = torch.tensor([1.0])
    assert as_python(kept) is kept and as_python((np.float64(1), "x")) == [1.0, "x"] and as_python("x") == "x"


def test_hypers_are_put_back_with_those_that_came_and_went():
    rate, noted = torch.tensor(0.1), torch.tensor(7.0)
    opt = groups(dict(lr=rate, eps=1.0, wd=noted), dict(lr=2.0))
    parameters = opt.param_groups[0]["params"]
    copies, restore = copied_hypers(opt), save_hypers(opt)
    first, second = opt.param_groups
    rate.fill_(5.0)
    first.update(added=1, wd=3.0)
    del first["eps"]
    second["lr"] = 9.0
    restore()
    assert (
        first["lr"] is rate and rate == pytest.approx(0.1) and first["wd"] == 7 and first["eps"] == 1 and second == dict(params=[], lr=2.0)
    )
    assert "added" not in first and first["params"] is parameters
    assert copies[0]["lr"] == pytest.approx(0.1) and copies[0].keys() == {"lr", "eps", "wd"} and copies[1] == dict(lr=2.0)


class Counting(torch.optim.SGD):
    """Keeps the number of its steps in its groups, as those of pytorch_optimizer do, and goes slower and slower."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] / group["step"])


def test_what_an_optimizer_counts_in_its_groups_outlives_a_fit(tmp_path):
    one, two, loaded = (line_learner(opt_func=Counting, path=tmp_path) for _ in range(3))
    one.fit(2)
    two.fit(1)
    two.save("half")
    two.fit(1, cbs=cbnb.Callback(after_batch=lambda cb: two.save("within")))
    loaded.load("half")
    loaded.fit(1)
    assert ab(one) == ab(two) == ab(loaded)
    assert two.opt.param_groups[0]["step"] == loaded.opt.param_groups[0]["step"] == 4
    assert torch.load(tmp_path / "models/within.pth")["opt"]["param_groups"][0]["step"] == 4


def test_state_in_groups_is_what_no_constructor_takes():
    opt = Counting([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    opt.param_groups[0].update(step=1, initial_lr=0.1, momentum=0.5)
    assert state_keys(opt) == {"step"} and not state_keys(SimpleNamespace(param_groups=[dict(step=1)]))


# --- numbers ---


@pytest.mark.parametrize(
    "value", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), torch.tensor([0.5]), SimpleNamespace(lr=0.5, reason="")]
)
def test_what_is_a_number(value):
    assert as_positive(value) == 0.5 and type(as_positive(value)) is float
    assert as_positive(0) == 0 and type(as_positive(3)) is float


@pytest.mark.parametrize(
    "value, error, words",
    [
        (-0.1, ValueError, "rate=-0.1 should be a finite number, 0 or more"),
        (math.inf, ValueError, "rate=inf should be"),
        (math.nan, ValueError, "rate=nan should be"),
        ("0.1", TypeError, "rate='0.1' is not a number: leave out the quotes"),
        (None, TypeError, "rate=None is not a number: pass one, such as rate=0.001$"),
        (True, TypeError, "rate=True is not a number"),
        (torch.ones(2), TypeError, "is not a number"),
        (np.ones(1), TypeError, "is not a number"),
        (
            SimpleNamespace(lr=None, reason="too few points"),
            ValueError,
            "lr_find recommended no learning rate: too few points. Pass a rate of your own",
        ),
        (SimpleNamespace(lr=0.5), TypeError, "is not a number"),
    ],
)
def test_what_is_none(value, error, words):
    with pytest.raises(error, match=words):
        as_positive(value, "rate")


@pytest.mark.parametrize(
    "lr, n, rates",
    [
        (0.1, 3, [0.1] * 3),
        ((0.1, 0.2), 2, [0.1, 0.2]),
        (torch.tensor([0.25, 0.5]), 2, [0.25, 0.5]),
        (torch.tensor([0.5]), 1, [0.5]),
        (slice(0.1), 3, [0.01, 0.01, 0.1]),
        (slice(0.1), 1, [0.1]),
        (slice(1e-3, 1e-1), 3, [1e-3, 1e-2, 1e-1]),
        (slice(1e-3, 1e-1), 1, [1e-1]),
        (slice(0), 2, [0, 0]),
        (slice(0.25, 1), 2, [0.25, 1]),
        (slice(1, 4), 3, [1, 2, 4]),
    ],
)
def test_rates_are_spread_over_groups(lr, n, rates):
    assert spread_lrs(lr, n) == pytest.approx(rates)


@pytest.mark.parametrize(
    "lr, n, error, words",
    [
        ([0.1, 0.2], 1, ValueError, "lr has 2 values, but the optimizer has 1 parameter group: "),
        ([0.1], 2, ValueError, "lr has 1 value, but the optimizer has 2 parameter groups: "),
        ("0.1", 3, TypeError, "leave out the quotes"),
        (slice(1, 2, 3), 2, ValueError, r"should be slice\(highest\) or slice\(lowest, highest\)"),
        (slice(1, None), 2, ValueError, r"should be slice\(highest\) or slice\(lowest, highest\)"),
        (slice(0, 1), 2, ValueError, "both ends above 0"),
        (slice(1, 0), 2, ValueError, "both ends above 0"),
    ],
)
def test_rates_that_cannot_be_spread(lr, n, error, words):
    with pytest.raises(error, match=words):
        spread_lrs(lr, n)


# --- groups of parameters, and what makes an optimizer ---


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


@pytest.mark.parametrize(
    "splitter, sizes",
    [
        (lambda m: m.parameters(), [6]),
        (lambda m: list(m), [2, 2, 2]),
        (lambda m: [m[0], [], [m[2].weight]], [2, 1]),
        (lambda m: iter([list(m[:2].parameters()), m[2].parameters()]), [4, 2]),
        (lambda m: [m[0], m[2].bias], [2, 1]),
    ],
)
def test_a_splitter_returns_modules_parameters_or_lists_of_them(splitter, sizes):
    assert [len(group) for group in param_groups(net(), splitter)] == sizes


def test_a_model_without_anything_to_train_is_refused():
    frozen = net().requires_grad_(False)
    for model, splitter, words in (
        (frozen, lambda m: m.parameters(), "Sequential has no trainable parameters: all are frozen"),
        (net(), lambda m: [[], []], "the splitter returned no parameters"),
        (nn.ReLU(), lambda m: m.parameters(), "ReLU has no trainable parameters: it has no parameters at all"),
    ):
        with pytest.raises(ValueError, match=words):
            param_groups(model, splitter)
    frozen[2].bias.requires_grad_(True)
    assert len(param_groups(frozen)[0]) == 6


@pytest.mark.parametrize("splitter", [lambda m: [dict(params=m.parameters(), lr=0.1)], lambda m: [m[0], dict(params=m[2].parameters())]])
def test_groups_as_dicts_are_refused_with_the_way_out(splitter):
    with pytest.raises(TypeError, match=r"the splitter returned dicts, .* fit\(lr=\[...\], wd=\[...\]\)"):
        param_groups(net(), splitter)


def test_what_makes_an_optimizer():
    model = net()
    opt = make_opt(torch.optim.SGD, model, 0.5, lambda m: [m[0], m[2]])
    assert (
        [len(g["params"]) for g in opt.param_groups] == [2, 2] and get_hyper(opt, "lr") == [0.5, 0.5] and make_opt(opt, model, 1.0) is opt
    )
    for wrong, words in (
        (3, "opt_func=3 is not an optimizer"),
        (lambda groups, lr: SimpleNamespace(param_groups=[], state={}, step=print), "which is not an optimizer"),
    ):
        with pytest.raises(TypeError, match=words):
            make_opt(wrong, model, 0.1)


def test_to_which_model_an_optimizer_belongs():
    model, other = net(), net()
    whole, part = torch.optim.SGD(model.parameters()), torch.optim.SGD(model[0].parameters())
    both = torch.optim.SGD([*model.parameters(), *other.parameters()])
    assert [belongs_to(opt, model) for opt in (whole, part, both)] == [True, False, False]
    assert belongs_to(part, model, lambda m: [m[0]])
    assert (
        [shares_params(opt, model) for opt in (whole, part, both)] == [True] * 3
        and not shares_params(whole, other)
        and not shares_params(part, model[2])
    )


def test_freezing_keeps_some_counts_from_the_end_and_keeps_momentum():
    model = net()
    opt = torch.optim.Adam([dict(params=list(m.parameters())) for m in model])
    sum(p.sum() for p in model.parameters()).backward()
    opt.step()

    def trained():
        return [all(p.requires_grad for p in m.parameters()) for m in model]

    assert len(opt.state) == 6 and freeze_groups(opt, -1) == 2 and trained() == [False, False, True] and len(opt.state) == 6
    assert [p.grad is None for p in model.parameters()] == [True] * 4 + [False] * 2
    assert freeze_groups(opt, 2, keep=norm_params(model)) == 2 and trained() == [False, True, True]
    assert freeze_groups(opt, 3) == 3 and trained() == [False] * 3
    assert freeze_groups(opt, -3) == freeze_groups(opt, 0) == 0 and trained() == [True] * 3
    for n in (4, -4):
        with pytest.raises(
            ValueError, match=f"cannot freeze to group {n}: the optimizer has 3 parameter groups, so pass a whole number from -3 to 3"
        ):
            freeze_groups(opt, n)
    with pytest.raises(ValueError, match="the optimizer has 1 parameter group, so pass"):
        freeze_groups(torch.optim.SGD(model.parameters()), 2)
    assert norm_params(model) == list(model[1].parameters())


# --- several optimizers ---


def pair():
    one, two = (nn.Parameter(torch.ones(n)) for n in (1, 2))
    return one, two, MultiOptimizer([torch.optim.SGD([one], lr=0.1, momentum=0.9), torch.optim.Adam([two], lr=0.2)])


def test_several_optimizers_act_as_one():
    one, two, both = pair()
    (one.sum() + 2 * two.sum()).backward()
    both.step()
    assert one.item() == pytest.approx(0.9) and two.tolist() == pytest.approx([0.8, 0.8])
    both.zero_grad(set_to_none=False)
    assert one.grad.tolist() == [0] and two.grad.tolist() == [0, 0]
    both.zero_grad()
    assert one.grad is two.grad is None and repr(both) == "MultiOptimizer(SGD, Adam)"
    common = both.defaults
    assert common["lr"] == 0.1 and "maximize" in common and "momentum" not in common and "betas" not in common
    again = pickle.loads(pickle.dumps(both))
    assert [type(opt) for opt in again.optimizers] == [torch.optim.SGD, torch.optim.Adam] and len(again.state) == 2
    assert len(MultiOptimizer(torch.optim.SGD([one])).optimizers) == 1


def test_what_several_optimizers_refuse():
    one, two, both = pair()
    for wrong, error, words in (
        ([], ValueError, "no optimizers"),
        ([3], TypeError, "3 is not an optimizer"),
        ([*both.optimizers, torch.optim.SGD([one])], ValueError, "the same parameter"),
    ):
        with pytest.raises(error, match=words):
            MultiOptimizer(wrong)
    with pytest.raises(TypeError, match="cannot share a closure"):
        both.step(lambda: 0.0)
    with pytest.raises(TypeError, match="each group belongs to one of the optimizers"):
        both.add_param_group(dict(params=[]))


def test_the_state_of_several_optimizers_is_one_mapping():
    one, two, both = pair()
    both.state[one], both.state[two] = dict(step=1), dict(step=2)
    assert both.optimizers[0].state[one] == dict(step=1) and both.optimizers[1].state[two] == dict(step=2)
    assert list(both.state) == [one, two] and len(both.state) == 2 and both.state[two]["step"] == 2
    del both.state[one]
    assert one not in both.state and two in both.state and len(both.state) == 1
    both.state.clear()
    assert not both.state and two not in both.state


def test_the_states_of_several_optimizers_are_saved_under_numbers_that_go_on():
    one, two, both = pair()
    three = nn.Parameter(torch.ones(1))
    both.optimizers[1].add_param_group(dict(params=[three]))
    (one.sum() + two.sum() + three.sum()).backward()
    both.step()
    saved = both.state_dict()
    assert [g["params"] for g in saved["param_groups"]] == [[0], [1], [2]] and list(saved["state"]) == [0, 1, 2]
    new_one, new_two, new = pair()
    new_three = nn.Parameter(torch.ones(1))
    new.optimizers[1].add_param_group(dict(params=[new_three]))
    set_hyper(new, "lr", 7.0)
    new.load_state_dict(copy.deepcopy(saved))
    assert get_hyper(new, "lr") == [0.1, 0.2, 0.2] and new.state[new_one]["momentum_buffer"] == 1
    assert new.state[new_two]["exp_avg"].tolist() == pytest.approx([0.1, 0.1]) and new.state[new_three]["step"] == 1


def test_a_state_of_other_optimizers_is_refused_and_nothing_of_it_loaded():
    one, two, both = pair()
    saved = both.state_dict()
    with pytest.raises(
        ValueError, match=r"the saved optimizer has 2 parameter groups \(with 1 and 1 parameters\), but this one has 1 \(with 1\)"
    ):
        MultiOptimizer([torch.optim.SGD([one])]).load_state_dict(saved)
    turned = MultiOptimizer([torch.optim.SGD([one], lr=5.0, momentum=0.9), torch.optim.SGD([two], lr=5.0)])
    with pytest.raises(ValueError, match="the saved state is not that of SGD: it has no .*momentum"):
        turned.load_state_dict(saved)
    assert get_hyper(turned, "lr") == [5.0, 5.0]


# --- names that are lent ---


def test_hypers_are_a_mapping_that_cannot_become_smaller():
    hypers = Hypers(torch.optim.SGD([dict(params=[torch.zeros(1)]), dict(params=[torch.ones(1)], lr=0.5)], lr=0.25, momentum=0.9), 1)
    assert hypers["lr"] == 0.5 and hypers["mom"] == 0.9 and repr(hypers) == repr(dict(hypers)) and set(hypers) >= {"lr", "mom", "wd"}
    with pytest.raises(TypeError, match="SGD needs its hyper-parameter 'lr'"):
        del hypers["lr"]


class Rate:
    @property
    def rate(self):
        return self.param_groups[0]["lr"]


def test_properties_are_lent_once_and_for_a_while():
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with ExitStack() as outer:
        lend_names(opt, Rate, outer)
        lent = type(opt)
        with ExitStack() as inner:
            lend_names(opt, Rate, inner)
            assert type(opt) is lent is with_names(Rate, torch.optim.SGD)
            assert lent.__name__ == "SGD" and lent.__module__ == torch.optim.SGD.__module__
        assert type(opt) is lent and opt.rate == 0.1
    assert type(opt) is torch.optim.SGD


def test_names_are_lent_for_a_while():
    opt = torch.optim.SGD([nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1), requires_grad=False)], lr=0.1)
    with ExitStack() as outer:
        add_fastai_names(opt, outer)
        with ExitStack() as inner:
            add_fastai_names(opt, inner)
        assert type(opt) is torch.optim.SGD and opt.hypers[0]["lr"] == 0.1
        opt.param_groups[0]["params"][0].grad = torch.ones(1)
        assert [len(opt.all_params(with_grad=grad)) for grad in (False, True)] == [2, 1]
        opt.state[opt.param_groups[0]["params"][0]] = dict(step=3)
        assert opt.all_params(0)[0][2] == dict(step=3)
        opt.clear_state()
        assert not opt.state
        opt.freeze_to(1)
        assert not any(p.requires_grad for p in opt.param_groups[0]["params"])
        opt.unfreeze()
        assert all(p.requires_grad for p in opt.param_groups[0]["params"])
        opt.add_param_group(dict(params=[torch.ones(1)], lr=0.5))
        assert [h["lr"] for h in opt.hypers] == [0.1, 0.5] and opt.hypers[-1]["lr"] == 0.5
    assert not hasattr(opt, "hypers") and not hasattr(opt, "freeze")


def test_all_but_the_last_group_are_frozen():
    opt = torch.optim.SGD([dict(params=[nn.Parameter(torch.zeros(1))]) for _ in range(3)], lr=0.1)
    with ExitStack() as undo:
        add_fastai_names(opt, undo)
        opt.freeze()
    assert [g["params"][0].requires_grad for g in opt.param_groups] == [False, False, True]


# --- the fused form, and a step without what nobody looks at ---


def numbers(*shapes, **kind):
    return [nn.Parameter(torch.ones(shape, **kind)) for shape in shapes]


@pytest.mark.parametrize(
    "cls, settings",
    [
        (torch.optim.AdamW, {}),
        (torch.optim.Adam, dict(amsgrad=True)),
        (torch.optim.SGD, dict(momentum=0.9, nesterov=True)),
        (torch.optim.Adagrad, {}),
    ],
)
def test_a_fit_with_the_fused_form_has_the_numbers_of_a_loop_with_it_and_nearly_those_of_the_plain_one(cls, settings):
    def by_hand(**form):
        learn = line_learner()
        model, opt = learn.model, cls(learn.model.parameters(), lr=0.1, **settings, **form)
        for _ in range(3):
            for x, y in learn.dls.train:
                nn.functional.mse_loss(model(x), y).backward()
                opt.step()
                opt.zero_grad()
        return torch.stack([p.detach().flatten()[0] for p in model.parameters()])

    learn = line_learner(opt_func=partial(cls, **settings), lr=0.1)
    learn.fit(3)
    mine = torch.stack([p.detach().flatten()[0] for p in learn.model.parameters()])
    assert is_fused(learn.opt) and torch.equal(mine, by_hand(fused=True))
    assert torch.allclose(mine, by_hand(), rtol=1e-5)


@pytest.mark.parametrize("form", [dict(fused=False), dict(foreach=True), dict(foreach=False), dict(fused=True), dict(capturable=False)])
def test_a_form_that_was_chosen_stays(form):
    learn = line_learner(opt_func=partial(torch.optim.AdamW, **form))
    learn.fit(1)
    group = learn.opt.param_groups[0]
    assert all(group[name] is value for name, value in form.items())
    assert bool(group["fused"]) == ("fused" in form and form["fused"] or "capturable" in form)


def test_optimizers_that_cannot_be_fused_are_left_alone():
    class Own(torch.optim.AdamW):
        pass

    def fused(opt):
        fuse(opt)
        return is_fused(opt)

    assert fused(torch.optim.Adam(numbers(3))) and not fused(Own(numbers(3)))
    assert not fused(torch.optim.Adam(numbers(3, dtype=torch.complex64)))
    assert not fused(torch.optim.RMSprop(numbers(3))) and not fused(torch.optim.SGD(numbers(3), lr=0.1))
    mixed = torch.optim.Adam([dict(params=numbers(3)), dict(params=numbers(3), foreach=True)])
    assert not fused(mixed) and mixed.param_groups[0]["fused"] is None
    made = torch.optim.AdamW((model := nn.Linear(1, 1)).parameters())
    assert make_opt(made, model, 1e-3) is made and not is_fused(made)


def test_sparse_gradients_are_trained_in_the_plain_form():
    words = nn.Embedding(4, 1, sparse=True)
    opt = make_opt(torch.optim.Adagrad, words, 0.1)
    words(torch.tensor([1])).sum().backward()
    update(opt)
    assert not is_fused(opt) and not torch.equal(words.weight[1], words.weight[0])


def test_a_probe_changes_no_random_numbers_and_leaves_nothing():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    opt = torch.optim.AdamW(numbers(3))
    fuse(opt)
    assert torch.equal(torch.get_rng_state(), before) and not opt.state


def test_update_calls_what_follows_steps():
    """Hooks of the optimizer, hooks of all optimizers, a profiler, and a `step` that was replaced on the object or its class."""
    seen = []
    opt = torch.optim.SGD(numbers(1), lr=0.1)
    handles = [
        opt.register_step_pre_hook(lambda *_: seen.append("before")),
        opt.register_step_post_hook(lambda *_: seen.append("after")),
        register_optimizer_step_pre_hook(lambda *_: seen.append("before all")),
        register_optimizer_step_post_hook(lambda *_: seen.append("after all")),
    ]
    update(opt)
    assert sorted(seen) == ["after", "after all", "before", "before all"]
    for handle in handles:
        handle.remove()
    seen.clear()
    update(opt)
    assert seen == []
    with torch.profiler.profile() as profile:
        update(opt)
    assert any("Optimizer.step#SGD" in e.name for e in profile.events())
    torch.optim.lr_scheduler.StepLR(opt, 1)  # it counts the steps
    update(opt)
    assert opt._opt_called
    opt.step = lambda: seen.append("mine")
    update(opt)
    assert seen == ["mine"]


def test_update_calls_a_step_whose_class_was_changed(monkeypatch):
    seen, own = [], torch.optim.SGD.step

    @functools.wraps(own)
    def step(self, closure=None):
        seen.append("class")
        return own(self, closure)

    opt = torch.optim.SGD(numbers(1), lr=0.1)
    monkeypatch.setattr(torch.optim.SGD, "step", step)
    update(opt)
    assert seen == ["class"]

    class Mine(torch.optim.AdamW):
        def step(self, closure=None):
            seen.append("subclass")
            return super().step(closure)

    update(Mine(numbers(1)))
    assert seen == ["class", "subclass"]


def test_update_computes_no_gradients_and_takes_any_optimizer():
    class Plain:
        """What looks like an optimizer, without torch's class"""

        n = 0

        def step(self):
            self.n += 1

    w = numbers(2)
    (w[0] * 2).sum().backward()
    opt = torch.optim.SGD(w, lr=0.5)
    with torch.enable_grad():
        update(opt)
        assert torch.is_grad_enabled() and w[0].is_leaf and w[0].tolist() == [0, 0]
    plain, calls = Plain(), []
    update(plain)
    update(SimpleNamespace(step=lambda: calls.append(1)))
    assert plain.n == 1 and calls == [1]


def test_a_rate_written_between_fits_warns_once_and_nothing_else_does(tmp_path):
    learn = line_learner(path=tmp_path, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(1)
        learn.fit(1, 0.02)
        learn.fit_one_cycle(1, 0.3)
        learn.lr = 0.2
        learn.fit(1)
        learn.save("a")
        other = line_learner(path=tmp_path, lr=0.5)
        other.fit(1)
        other.load("a")
        other.fit(1)
        other.rewind()
        other.rewind()
        other.fit(1)
        learn.load_state_dict(other.state_dict())
        learn.fit(1)
        learn.create_opt()
        learn.opt.param_groups[0]["lr"] = 7
        learn.fit(1, 0.1)  # the fit has a rate of its own
        torch.optim.lr_scheduler.StepLR(learn.opt, 1)
        learn.fit(1)
    learn.create_opt()
    learn.opt.param_groups[0]["lr"] = 1e-5
    with pytest.warns(UserWarning, match=r"has the learning rate 1e-05.*uses learn.lr=0.2 instead: set learn.lr = 1e-05"):
        learn.fit(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(1)


# --- freezing, weight decay, and a rate of 0 ---


def gradual(freeze, fit, model, opt_of):
    """Three phases: the head, then all, then the head again."""
    for n in (-1, 0, -1):
        freeze(n)
        fit()
    return [p.detach().clone() for p in model.parameters()], opt_of()


def test_gradual_unfreezing_keeps_the_moments_as_a_loop_that_sets_requires_grad():
    torch.manual_seed(0)
    x = torch.randn(20, 3)
    data = [(x[i : i + 5], x[i : i + 5].sum(1, keepdim=True)) for i in range(0, 20, 5)]
    make = lambda: (torch.manual_seed(1), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))[1]
    body_and_head = lambda m: [m[0], m[2]]
    model = make()
    learn = cbnb.Learner(cbnb.DataLoaders(data), model, nn.MSELoss(), functools.partial(torch.optim.Adam, fused=False), 0.01, body_and_head)
    mine = gradual(learn.freeze_to, lambda: learn.fit(2), model, lambda: learn.opt)[0]
    net = make()
    opt = torch.optim.Adam([dict(params=list(m.parameters())) for m in body_and_head(net)], lr=0.01)

    def loop():
        for x, y in data * 2:
            nn.functional.mse_loss(net(x), y).backward()
            opt.step()
            opt.zero_grad()

    theirs = gradual(lambda n: net[0].requires_grad_(n == 0), loop, net, lambda: opt)[0]
    assert all(map(torch.equal, mine, theirs))
    assert [int(s["step"]) for s in learn.opt.state.values()] == [int(s["step"]) for s in opt.state.values()]


def test_freeze_and_unfreeze_keep_the_moments():
    learn = line_learner(splitter=two_groups, opt_func=torch.optim.Adam)
    learn.fit(1)
    moments = lambda: [state["exp_avg"].item() for state in learn.opt.state.values()]
    before = moments()
    for change in (learn.freeze, lambda: learn.freeze_to(1), learn.unfreeze):
        change()
        assert moments() == before and len(before) == 2 and all(before)


@pytest.mark.parametrize("decays, wd, expected", [((0.1, 0), 0.2, [0.2, 0]), ((0, 0), 0.2, [0.2, 0.2]), ((0.1, 0), [0.3, 0.4], [0.3, 0.4])])
def test_a_weight_decay_leaves_groups_without_one(decays, wd, expected):
    seen = []
    make = lambda groups, lr: torch.optim.AdamW([g | dict(weight_decay=d) for g, d in zip(groups, decays)], lr=lr)
    learn = line_learner(splitter=two_groups, opt_func=make)
    learn.fit(1, wd=wd, cbs=cbnb.Callback(before_fit=lambda cb: seen.extend(get_hyper(cb.opt, "wd"))))
    assert seen == expected and get_hyper(learn.opt, "wd") == list(decays)


def test_a_weight_decay_for_a_wrong_number_of_groups_is_an_error():
    with pytest.raises(ValueError, match="wd has 3 values, but the optimizer has 2 parameter groups"):
        line_learner(splitter=two_groups).fit(1, wd=[0.1, 0, 0])
    with pytest.raises(ValueError, match=r"wd\[1\]=-1"):
        line_learner(splitter=two_groups).fit(1, wd=[0.1, -1])


def test_a_learning_rate_of_0_is_said():
    with pytest.warns(UserWarning, match="the learning rate is 0, so this fit will train nothing"):
        line_learner().fit(1, lr=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        line_learner(splitter=two_groups).fit(1, lr=[0, 0.1])
        line_learner().fit(1, lr=0, cbs=cbnb.Callback(before_batch=lambda cb: cb.opt.set_hyper("lr", 0.1)))
        line_learner().fit(1, lr=0, cbs=cbnb.ParamScheduler({"lr": lambda pct: 0.1}))


def test_arrays_set_a_value_in_each_group_or_one_in_all():
    opt = torch.optim.SGD([dict(params=[p]) for p in nn.Linear(2, 1).parameters()], lr=0.1)
    for value, expected in ((torch.tensor([0.5]), [0.5, 0.5]), (np.array([0.1, 0.2]), [0.1, 0.2])):
        set_hyper(opt, "lr", value)
        assert get_hyper(opt, "lr") == pytest.approx(expected)
    with pytest.raises(ValueError, match="lr has 3 values, but the optimizer has 2 parameter groups"):
        set_hyper(opt, "lr", torch.tensor([0.1, 0.2, 0.3]))
