"""Learning rates and momenta over a fit."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.schedule import OneCycle
from helpers import line_batches, line_learner


def momentum_sgd(groups, lr):
    return torch.optim.SGD(groups, lr=lr, momentum=0.5)


def cosine(start, end, pos):
    return start + (end - start) * (1 - math.cos(math.pi * pos)) / 2


def one_cycle(pct, lr, moms=(0.95, 0.85, 0.95), div=25.0, div_final=1e5, pct_start=0.25):
    """Learning rate and momentum, written down from the definition."""
    if pct < pct_start:
        return cosine(lr / div, lr, pct / pct_start), cosine(moms[0], moms[1], pct / pct_start)
    rest = (pct - pct_start) / (1 - pct_start)
    return cosine(lr, lr / div_final, rest), cosine(moms[1], moms[2], rest)


def test_one_cycle_in_numbers():
    """4 epochs of 5 batches: the first is at lr/25, the sixth at the top, the last at 19/20 of the way."""
    learn = line_learner(5, opt_func=momentum_sgd)
    learn.fit_one_cycle(4, 0.1)
    expected = [one_cycle(i / 20, 0.1) for i in range(20)]
    assert learn.recorder.lrs == pytest.approx([lr for lr, _ in expected], abs=1e-6)
    assert learn.recorder.hps["mom"] == pytest.approx([mom for _, mom in expected], abs=1e-6)
    # some of them by hand
    assert learn.recorder.lrs[:6] == pytest.approx([0.004, 0.01316718, 0.03716718, 0.06683282, 0.09083282, 0.1], abs=1e-6)
    assert learn.recorder.lrs[19] == pytest.approx(0.1 * (1e-5 + (1 - 1e-5) * (1 + math.cos(math.pi * 14 / 15)) / 2), abs=1e-6)
    assert learn.recorder.hps["mom"][5] == pytest.approx(0.85, abs=1e-6)


def test_one_cycle_settings():
    learn = line_learner(5, opt_func=torch.optim.Adam)
    settings = dict(div=10.0, div_final=100.0, pct_start=0.5, moms=(0.9, 0.8, 0.7))
    learn.fit_one_cycle(2, 0.2, **settings)
    expected = [one_cycle(i / 10, 0.2, **settings) for i in range(10)]
    assert learn.recorder.lrs == pytest.approx([lr for lr, _ in expected]) and learn.recorder.hps["mom"] == pytest.approx(
        [m for _, m in expected]
    )
    learn.moms = (0.5, 0.4, 0.5)
    learn.fit_one_cycle(1)
    assert learn.recorder.hps["mom"][0] == 0.5 and learn.recorder.lrs[0] == pytest.approx(learn.lr / 25)
    for wrong in (dict(pct_start=1.5), dict(div=0), dict(moms=(0.9, 0.8))):
        with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("s")):
            learn.fit_one_cycle(1, 0.1, **wrong)


GROUPS = 3


def grouped_learner(**kwargs):
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    x = torch.linspace(-1, 1, 8)[:, None]
    dls = cbnb.DataLoaders([(x, 2 * x)] * 4, device="cpu")
    return line_learner(dls=dls, model=model, splitter=lambda m: list(m), **kwargs)


def watch_groups():
    seen = []
    cb = cbnb.Callback(before_step=lambda self: seen.append([g["lr"] for g in self.learn.opt.param_groups]))
    return seen, cb


@pytest.mark.parametrize("fit", ["fit_one_cycle", "fit_flat_cos", "fit_sgdr", "fit"])
@pytest.mark.parametrize(
    "lr, tops",
    [
        (slice(1e-3, 1e-1), [1e-3, 1e-2, 1e-1]),
        (slice(1e-1), [1e-2, 1e-2, 1e-1]),
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]),
        (np.array([0.1, 0.2, 0.3]), [0.1, 0.2, 0.3]),
        (0.5, [0.5] * 3),
    ],
)
def test_rates_of_groups(fit, lr, tops):
    seen, cb = watch_groups()
    learn = grouped_learner(cbs=cb)
    getattr(learn, fit)(*((2, 1, lr) if fit == "fit_sgdr" else (2, lr)))
    assert [max(lrs) for lrs in zip(*seen)] == pytest.approx(tops)
    shares = [[lr / top for lr, top in zip(lrs, tops)] for lrs in seen]
    assert all(share == pytest.approx([share[0]] * 3) for share in shares)


@pytest.mark.parametrize("fit", ["fit_one_cycle", "fit_flat_cos"])
@pytest.mark.parametrize("start_epoch", [1, 3])
def test_a_schedule_goes_on_from_start_epoch(fit, start_epoch):
    """D23: fit_flat_cos began anew."""
    whole, rest = (line_learner(5, opt_func=momentum_sgd) for _ in range(2))
    getattr(whole, fit)(4, 0.1)
    getattr(rest, fit)(4, 0.1, start_epoch=start_epoch)
    assert rest.recorder.lrs == pytest.approx(whole.recorder.lrs[5 * start_epoch :]) and len(rest.recorder.lrs) == 5 * (4 - start_epoch)
    assert rest.recorder.hps["mom"] == pytest.approx(whole.recorder.hps["mom"][5 * start_epoch :])


def test_sgdr_goes_on_from_start_epoch():
    whole, rest = line_learner(5), line_learner(5)
    whole.fit_sgdr(2, 1, 0.1)
    rest.fit_sgdr(2, 1, 0.1, start_epoch=2)
    assert rest.recorder.lrs == pytest.approx(whole.recorder.lrs[10:])


def test_flat_cos_in_numbers():
    learn = line_learner(5)
    learn.fit_flat_cos(4, 0.1, pct_start=0.5)
    expected = [0.1 if i < 10 else cosine(0.1, 1e-6, (i - 10) / 10) for i in range(20)]
    assert learn.recorder.lrs == pytest.approx(expected)


@pytest.mark.parametrize("mult, lengths", [(2, [1, 2, 4]), (1, [1, 1, 1]), (3, [1, 3, 9])])
def test_sgdr_in_numbers(mult, lengths):
    """D24: cycles of equal length divided by zero."""
    learn = line_learner(5)
    learn.fit_sgdr(3, 1, 0.1, cycle_mult=mult)
    expected = [cosine(0.1, 0, i / (5 * n)) for n in lengths for i in range(5 * n)]
    assert learn.recorder.lrs == pytest.approx(expected, abs=1e-9) and len(learn.recorder.values) == sum(lengths)


NAMES = "Adadelta Adagrad Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD Adafactor".split()
OPTIMIZERS = [name for name in NAMES if hasattr(torch.optim, name)]  # torch 2.4 has no Adafactor


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_torch_optimizer_takes_one_cycle(name):
    learn = line_learner(5, opt_func=getattr(torch.optim, name))
    learn.fit_one_cycle(2, 0.05)
    assert learn.recorder.lrs == pytest.approx([one_cycle(i / 10, 0.05)[0] for i in range(10)])
    has_mom = any(key in learn.opt.param_groups[0] for key in ("momentum", "betas"))
    assert ("mom" in learn.recorder.hps) == has_mom
    if has_mom:
        assert learn.recorder.hps["mom"] == pytest.approx([one_cycle(i / 10, 0.05)[1] for i in range(10)])
    assert learn.model.a.item() != 0


def test_momentum_that_an_optimizer_lacks_is_refused_when_asked_for():
    with pytest.raises(ValueError, match="Adagrad has no hyper-parameter 'mom'; its hyper-parameters are"):
        line_learner(opt_func=torch.optim.Adagrad).fit_one_cycle(1, 0.1, moms=(0.9, 0.8, 0.9))


def test_capturable_learning_rates_stay_the_same_tensor():
    learn = line_learner(5, opt_func=lambda groups, lr: torch.optim.Adam(groups, lr=torch.tensor(lr), capturable=False, foreach=False))
    learn.create_opt()
    tensor = learn.opt.param_groups[0]["lr"]
    learn.fit_one_cycle(2, 0.05)
    assert learn.opt.param_groups[0]["lr"] is tensor and tensor.item() == pytest.approx(0.1)
    assert learn.recorder.lrs == pytest.approx([one_cycle(i / 10, 0.05)[0] for i in range(10)])


def test_annealers():
    for sched, values in (
        (cbnb.SchedLin(0, 2), [0, 0.5, 1, 2]),
        (cbnb.SchedCos(0, 2), [0, 1 - math.cos(math.pi / 4), 1, 2]),
        (cbnb.SchedNo(3, 9), [3, 3, 3, 3]),
        (cbnb.SchedExp(1, 16), [1, 2, 4, 16]),
        (cbnb.SchedPoly(0, 2, 2), [0, 0.125, 0.5, 2]),
    ):
        assert [sched(pos) for pos in (0, 0.25, 0.5, 1)] == pytest.approx(values), sched
    assert cbnb.SchedLin([0, 1], [2, 3])(0.5) == [1, 2] and cbnb.SchedExp(1, [1, 100])(0.5) == pytest.approx([1, 10])
    for start, end in ((0, 1), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"from {start} to {end}"):
            cbnb.SchedExp(start, end)(0.5)


def test_combined_schedules_in_numbers():
    both = cbnb.combine_scheds([0.3, 0.7], [cbnb.SchedCos(0.3, 0.6), cbnb.SchedCos(0.6, 0.2)])
    assert [both(p) for p in (0, 0.15, 0.3, 0.5, 0.65, 1)] == pytest.approx([0.3, 0.45, 0.6, 0.524698, 0.4, 0.2], abs=1e-6)
    cos = cbnb.combined_cos(0.3, 0.3, 0.6, 0.2)
    assert [cos(i / 20) for i in range(21)] == pytest.approx([both(i / 20) for i in range(21)])


@pytest.mark.parametrize(
    "pcts", [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1] * 10, [1 / 3] * 3, [0.5, 0.5, 0], [1.0, 0.0], [0.0, 1.0], [0.2, 0.0, 0.8]]
)
def test_shares_that_add_up_to_one(pcts):
    """D22: the sum had to be exactly 1.0, and a last share of 0 gave NaN at the end."""
    values = list(range(len(pcts)))
    sched = cbnb.combine_scheds(pcts, [cbnb.SchedNo(v, v) for v in values])
    got = [sched(i / 1000) for i in range(1001)]
    assert got == sorted(got) and not any(math.isnan(v) for v in got)
    for v, share in zip(values, pcts):
        assert abs(got.count(v) - 1000 * share) <= 1.001
    ramps = cbnb.combine_scheds(pcts, [cbnb.SchedLin(v, v + 1) for v in values])
    assert ramps(1.0) == max(v for v, share in zip(values, pcts) if share) + 1
    assert ramps(-1e-12) == pytest.approx(ramps(0)) and ramps(1 + 1e-12) == ramps(1)


@pytest.mark.parametrize(
    "pcts, n, words",
    [
        ([0.5, 0.4], 2, "add up to 1, but add up to 0.9"),
        ([1.5, -0.5], 2, "0 or more"),
        ([0.5, 0.5], 1, "2 shares for 1 schedule:"),
        ([], 0, "add up to 1"),
    ],
)
def test_shares_that_do_not(pcts, n, words):
    """D22: no message, or an error in the middle of the fit."""
    with pytest.raises(ValueError, match=words):
        cbnb.combine_scheds(pcts, [cbnb.SchedNo(1, 1)] * n)


def test_two_schedulers_are_both_recorded():
    """D40: only the last one's history was kept."""
    learn = line_learner(5, opt_func=momentum_sgd)
    learn.fit(2, cbs=[cbnb.ParamScheduler({"lr": cbnb.SchedLin(0, 1)}), cbnb.ParamScheduler({"wd": cbnb.SchedLin(1, 0)})])
    assert learn.recorder.lrs == pytest.approx([i / 10 for i in range(10)])
    assert learn.recorder.hps["wd"] == pytest.approx([1 - i / 10 for i in range(10)])
    assert learn.opt.param_groups[0]["weight_decay"] == 0 and learn.opt.param_groups[0]["lr"] == 0.1
    assert learn.recorder.hps.keys() == {"lr", "mom", "wd"}


@pytest.mark.parametrize(
    "train",
    [
        lambda learn, mine: learn.fit(1, cbs=[mine, cbnb.ParamScheduler({"lr": cbnb.SchedExp(1, 0.1), "wd": cbnb.SchedNo(1, 1)})]),
        lambda learn, mine: learn.fit_one_cycle(1, cbs=mine),
        lambda learn, mine: learn.fit_flat_cos(1, cbs=mine),
    ],
)
def test_two_schedulers_of_one_hyper_parameter_are_refused(train):
    """The second would set each rate anew, and the first would have no effect."""
    learn, mine = line_learner(), cbnb.ParamScheduler({"lr": cbnb.SchedLin(1, 0)})
    with pytest.raises(ValueError, match="ParamScheduler .*would both set lr: leave one of them out"):
        train(learn, mine)
    mine.run = False
    train(learn, mine)


def test_unknown_hyper_parameters_are_refused():
    """D40: they were added to the optimizer silently."""
    learn = line_learner()
    with pytest.raises(ValueError, match="SGD has no hyper-parameter 'momentun'; its hyper-parameters are .*mom"):
        learn.fit(1, cbs=cbnb.ParamScheduler({"momentun": cbnb.SchedNo(1, 1)}))
    assert "momentun" not in learn.opt.param_groups[0]


def test_any_function_is_a_schedule():
    learn = line_learner(5)
    learn.fit(1, cbs=cbnb.ParamScheduler({"lr": lambda pct: 0.2 if pct < 0.5 else 0.1}))
    assert learn.recorder.lrs == [0.2] * 3 + [0.1] * 2


def test_validation_and_nested_evaluation_do_not_move_a_schedule():
    plain, nested = line_learner(5), line_learner(5, cbs=cbnb.Callback(after_step=lambda self: self.learn.validate()))
    for learn in (plain, nested):
        learn.fit_one_cycle(2, 0.1)
        assert learn.recorder.lrs == pytest.approx([one_cycle(i / 10, 0.1)[0] for i in range(10)])


def test_fine_tune():
    """D41: callbacks of the second phase ran in the first, and base_lr had to be a number."""
    for base_lr in (2e-3, slice(2e-3), np.float64(2e-3)):
        seen, cb = watch_groups()
        learn = grouped_learner()
        trained = []
        frozen = cbnb.Callback(
            before_fit=lambda self: trained.append([all(p.requires_grad for p in m.parameters()) for m in self.learn.model])
        )
        learn.fine_tune(2, base_lr, cbs=cb, freeze_cbs=frozen)
        assert trained == [[False, False, True]] and all(p.requires_grad for p in learn.model.parameters())
        assert [run.n_steps for run in learn.recorder.history] == [4, 8] and len(seen) == 8
        assert [max(lrs) for lrs in zip(*seen)] == pytest.approx([1e-5, 1e-4, 1e-3], rel=0.2)
        first = learn.recorder.history[0].hyper("lr")
        assert first[0] == pytest.approx(2e-3 / 25) and max(first) < 2e-3


def test_torch_schedulers_work_in_a_callback():
    class Steps(cbnb.Callback):
        def before_fit(self):
            self.sched = torch.optim.lr_scheduler.StepLR(self.learn.opt, step_size=1, gamma=0.5)

        def after_epoch(self):
            self.sched.step()

    learn = line_learner(2, cbs=Steps)
    learn.fit(3)
    assert learn.recorder.lrs == pytest.approx([0.1] * 2 + [0.05] * 2 + [0.025] * 2)
    learn.fit(1)
    assert learn.recorder.lrs == pytest.approx([0.1] * 2)


def test_cancelled_batches_keep_the_schedule_in_time():
    class Skip(cbnb.Callback):
        def before_step(self):
            if self.learn.iter % 2:
                raise cbnb.CancelBatchException

    learn = line_learner(5, cbs=Skip)
    learn.fit_one_cycle(2, 0.1)
    assert learn.recorder.lrs == pytest.approx([one_cycle(i / 10, 0.1)[0] for i in range(10)])


def test_loaders_without_length_but_a_number_of_batches():
    batches = cbnb.Batches(lambda: iter(line_batches(5)), n_iter=5)
    learn = line_learner(dls=cbnb.DataLoaders(batches, device="cpu"))
    learn.fit_one_cycle(2, 0.1)
    assert learn.recorder.lrs == pytest.approx([one_cycle(i / 10, 0.1)[0] for i in range(10)])


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: cbnb.SchedLin("a", 1), TypeError, "start='a' is not a number"),
        (lambda: cbnb.SchedLin([1, 2], [1]), ValueError, r"start=\[1, 2\] and end=\[1\] should have the same number"),
        (lambda: cbnb.ParamScheduler("lr"), TypeError, "scheds='lr' should be a dict"),
        (lambda: cbnb.ParamScheduler({"lr": cbnb.SchedCos}), TypeError, "the schedule of 'lr' is <class"),
        (lambda: cbnb.combine_scheds([1], [3]), TypeError, "scheds.0. is 3: pass a function"),
        (lambda: cbnb.combine_scheds(None, []), TypeError, "pcts=None should be a list"),
    ],
)
def test_a_schedule_is_checked_when_it_is_made(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_schedule_says_how_it_was_made():
    assert repr(cbnb.SchedPoly(0.1, 0.2, 3)) == "SchedPoly(0.1, 0.2, power=3)"
    assert repr(cbnb.SchedCos(0.1, 0.01)) == "SchedCos(0.1, 0.01)"
    assert repr(cbnb.SchedLin([0.1, 0.2], 0)) == "SchedLin([0.1, 0.2], 0)"


def test_schedules_one_after_the_other_say_how_they_were_made():
    both = cbnb.combined_cos(0.25, 0.1, 1.0, 0)
    assert repr(both) == "SchedCombined([0.25, 0.75], [SchedCos(0.1, 1.0), SchedCos(1.0, 0)])"

    def half(pos):
        return pos / 2

    assert repr(cbnb.combine_scheds([1.0, 0.0], [half, half])) == "SchedCombined([1.0], [half])"


def test_a_cycle_may_end_at_its_highest_rate():
    lr = OneCycle(0.4, div=2, div_final=1).planned()["lr"]
    assert [lr(0.0), lr(0.25), lr(1.0)] == pytest.approx([0.2, 0.4, 0.4])


@pytest.mark.parametrize("found, lr_max, warns", [(None, None, True), (None, 0.1, False), (0.2, None, False)])
def test_a_cycle_without_a_rate_after_a_sweep_without_a_suggestion_says_what_it_takes(found, lr_max, warns):
    """Perhaps `lr_max=found.lr` was meant, which is None."""
    learn = line_learner()
    learn.lr_finder_result = SimpleNamespace(lr=found)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit_one_cycle(1, lr_max)
    assert [str(w.message) for w in seen] == [
        "lr_find recommended no learning rate, so lr_max is learn.lr=0.1: to use another one, pass lr_max"
    ] * warns


def test_a_power_may_be_a_fraction():
    """Half of the way, and the square root of a half of the distance."""
    assert cbnb.SchedPoly(1.0, 3.0, 0.5)(0.5) == pytest.approx(1 + 2 * math.sqrt(0.5))


@pytest.mark.parametrize("divisors", [(0, 1), (1, 0), (-1, 1), (1, -1), (0, 0)])
def test_divisors_of_a_cycle_are_above_zero(divisors):
    with pytest.raises(ValueError, match=" above 0"):
        OneCycle(0.4, *divisors)


def test_a_cycle_may_begin_at_its_highest_rate():
    assert OneCycle(0.4, div=1).planned()["lr"](0.0) == pytest.approx(0.4)


# --- each part by itself ---


def test_a_planned_cycle_has_numbers_and_the_usual_momentum():
    scheds = OneCycle(0.4).planned()
    assert [scheds["lr"](pos) for pos in (0.0, 0.25, 1.0)] == pytest.approx([0.4 / 25, 0.4, 0.4 / 1e5])
    assert [scheds["mom"](pos) for pos in (0.0, 0.25, 1.0)] == pytest.approx([0.95, 0.85, 0.95])
    own = OneCycle(0.4, mom=(0.9, 0.5, 0.7)).planned()["mom"]
    assert [own(pos) for pos in (0.0, 0.25, 1.0)] == pytest.approx([0.9, 0.5, 0.7])


@pytest.mark.parametrize("lr_max, top", [(0.4, 0.4), ([0.1, 0.2], 0.2), ((0.1, 0.3), 0.3), (slice(0.5), 0.5), (slice(0.1, 0.4), 0.4)])
def test_the_top_of_a_cycle_is_that_of_the_last_group(lr_max, top):
    assert OneCycle(lr_max).top() == top and OneCycle(lr_max).planned()["lr"](0.25) == pytest.approx(top)


def test_a_cycle_without_a_top_cannot_be_drawn():
    for ask in (OneCycle().top, OneCycle().planned, OneCycle().plot):
        with pytest.raises(ValueError, match="lr_max is not known before training"):
            ask()


def test_a_drawn_cycle_has_its_values_at_equal_steps():
    axes = OneCycle(0.4, pct_start=0.5).plot(4, return_fig=True).axes
    rates, momenta = (list(ax.lines[0].get_ydata()) for ax in axes)
    assert rates == pytest.approx([0.4 / 25, (0.4 + 0.4 / 25) / 2, 0.4, (0.4 + 0.4 / 1e5) / 2]) and momenta == pytest.approx(
        [0.95, 0.9, 0.85, 0.9]
    )
    assert len(OneCycle(0.4).plot(return_fig=True).axes[0].lines[0].get_ydata()) == 200


@pytest.mark.parametrize("pct_start", [-0.01, 1.01])
def test_the_share_that_warms_up_is_a_share(pct_start):
    with pytest.raises(ValueError, match=f"pct_start={pct_start} should be between 0 and 1"):
        OneCycle(0.4, pct_start=pct_start)


@pytest.mark.parametrize("pct_start, first, last", [(0, 0.4, 4e-6), (1, 0.016, 0.4)])
def test_a_cycle_may_warm_up_all_the_time_or_not_at_all(pct_start, first, last):
    lr = OneCycle(0.4, pct_start=pct_start).planned()["lr"]
    assert (lr(0.0), lr(1.0)) == pytest.approx((first, last))


@pytest.mark.parametrize("moms", [(0.9,), (0.9, 0.8, 0.9, 0.8), [0.9, -0.1, 0.9]])
def test_momenta_are_three_numbers(moms):
    with pytest.raises(ValueError, match=r"mom(\[1\])?="):
        OneCycle(0.4, mom=moms)


def test_values_for_groups_are_one_for_each_or_one_for_all():
    """Also an array of NumPy without an axis, and numbers that only look like several."""
    learn = grouped_learner()
    for value in (0.5, np.array(0.5), torch.tensor(0.5), [0.5] * 3, np.array([0.5] * 3)):
        learn.fit(1, cbs=cbnb.ParamScheduler({"lr": lambda pct: value}))
        assert learn.recorder.lrs == pytest.approx([0.5] * 4)
    for value, words in (
        ([0.5] * 2, "the schedule of 'lr' returned 2 values for 3 parameter groups"),
        (math.nan, "returned nan at position 0: return a finite number"),
        ([1, math.nan, 1], "return a finite number"),
    ):
        with pytest.raises(ValueError, match=words):
            learn.fit(1, cbs=cbnb.ParamScheduler({"lr": lambda pct: value}))


def test_groups_may_begin_alike_and_end_apart():
    assert cbnb.SchedLin(0.0, [1.0, 3.0])(0.5) == [0.5, 1.5] and cbnb.SchedLin((0.0, 2.0), 4.0)(0.25) == [1.0, 2.5]
    with pytest.raises(ValueError):
        cbnb.SchedLin([0.0, 1.0], [1.0, 2.0, 3.0])(0.5)


def test_a_schedule_needs_a_length():
    learn = line_learner(dls=cbnb.DataLoaders(cbnb.Batches(lambda: iter(line_batches())), device="cpu"))
    with pytest.raises(ValueError, match="the training loader has no length"):
        learn.fit(1, cbs=cbnb.ParamScheduler({"lr": cbnb.SchedNo(1.0, 1.0)}))


def test_a_schedule_without_a_recorder():
    learn = line_learner(default_cbs=False, progress=True)
    learn.fit(1, cbs=cbnb.ParamScheduler({"lr": cbnb.SchedNo(0.0, 0.0)}))
    assert learn.model.a.item() == 0


@pytest.mark.parametrize("settings", [dict(n_cycles=0), dict(cycle_len=0), dict(cycle_mult=0)])
def test_cycles_are_counted_from_one(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}=0"):
        line_learner().fit_sgdr(**dict(n_cycles=1, cycle_len=1, lr_max=0.1) | settings)


def test_the_shortest_cycles():
    learn = line_learner(2)
    learn.fit_sgdr(1, 1, 0.1, 1)
    assert learn.recorder.lrs == pytest.approx([0.1, 0.05])


def test_fits_take_the_rate_of_the_learner_if_they_are_given_none():
    for fit, first in (("fit_flat_cos", 0.3), ("fit_one_cycle", 0.3 / 25)):
        learn = line_learner(4, lr=0.3)
        getattr(learn, fit)(1)
        assert learn.recorder.lrs[0] == pytest.approx(first)
    learn = line_learner(4, lr=0.3)
    learn.fit_sgdr(1, 1)
    assert learn.recorder.lrs[0] == pytest.approx(0.3)


def test_a_flat_fit_ends_at_a_hundred_thousandth():
    learn = line_learner(100)
    learn.fit_flat_cos(1, 0.1)
    expected = [0.1] * 75 + [cosine(0.1, 1e-6, i / 25) for i in range(25)]
    assert learn.recorder.lrs == pytest.approx(expected)


def test_both_phases_of_fine_tune_in_numbers():
    """Four batches an epoch: the head alone warms up for 99%; then all, from a fifth of the rate, for 30%."""
    learn = grouped_learner()
    learn.fine_tune(5, 0.2, freeze_epochs=2, lr_mult=10, div_final=1e3)
    frozen, whole = (run.hyper("lr") for run in learn.recorder.history)
    assert list(frozen) == pytest.approx([one_cycle(i / 8, 0.2, pct_start=0.99, div_final=1e3)[0] for i in range(8)])
    assert list(whole) == pytest.approx([one_cycle(i / 20, 0.1, pct_start=0.3, div=5.0, div_final=1e3)[0] for i in range(20)])
    seen, cb = watch_groups()
    learn.fine_tune(1, 0.2, freeze_epochs=0, lr_mult=10, cbs=cb)
    assert len(learn.recorder.history) == 3 and [lrs[2] / lrs[0] for lrs in seen] == pytest.approx([10.0] * 4)


def test_layers_are_unfrozen_if_the_first_phase_fails():
    learn = grouped_learner()
    with pytest.raises(ZeroDivisionError):
        learn.fine_tune(1, freeze_cbs=cbnb.Callback(before_batch=lambda cb: 1 / 0))
    assert all(p.requires_grad for p in learn.model.parameters())


def test_settings_of_a_fit_reach_it():
    """Weight decay, a new optimizer, and callbacks."""
    for fit in ("fit_one_cycle", "fit_flat_cos", "fit_sgdr"):
        learn, decays, seen = line_learner(2), [], []
        learn.fit(1)
        old = learn.opt
        note = cbnb.Callback(before_step=lambda cb: decays.append(cb.learn.opt.param_groups[0]["weight_decay"]), after_fit=seen.append)
        args = (1, 1, 0.1) if fit == "fit_sgdr" else (1, 0.1)
        getattr(learn, fit)(*args, wd=0.25, cbs=note)
        assert decays == [0.25, 0.25] and len(seen) == 1 and learn.opt is old
        getattr(learn, fit)(*args, reset_opt=True)
        assert learn.opt is not old


def test_borders_of_combined_schedules():
    """At a border the next one begins; before the start and after the end the values are those there."""
    steps = cbnb.combine_scheds([0.5, 0.25, 0.25], [cbnb.SchedLin(0, 1), cbnb.SchedLin(2, 3), cbnb.SchedLin(4, 5)])
    assert [steps(pos) for pos in (-1.0, 0.0, 0.5, 0.625, 0.75, 1.0, 1.5, 9.0)] == pytest.approx([0, 0, 2, 2.5, 4, 5, 5, 5])
    alone = cbnb.combine_scheds([1.0], [cbnb.SchedLin(0, 1)])
    assert [alone(pos) for pos in (-1.0, 0.25, 1.0, 1.5)] == [0, 0.25, 1, 1]


def test_equal_factors_below_one_and_below_nought():
    assert cbnb.SchedExp(0.5, 0.125)(0.5) == pytest.approx(0.25) and cbnb.SchedExp(-1.0, -4.0)(0.5) == pytest.approx(-2)


def test_a_schedule_may_begin_at_infinity_if_it_is_no_rate():
    class Clipped(torch.optim.SGD):
        def __init__(self, params, lr):
            super().__init__(params, lr)
            for group in self.param_groups:
                group["clip"] = math.inf

    learn = line_learner(opt_func=Clipped)
    learn.fit(1, cbs=cbnb.ParamScheduler({"clip": lambda pct: math.inf if pct < 0.5 else 1.0}))
    with pytest.raises(ValueError, match="the schedule of 'lr' returned inf at position 0"):
        learn.fit(1, cbs=cbnb.ParamScheduler({"lr": lambda pct: math.inf}))


def test_a_schedule_that_is_set_later_is_checked_before_the_fit():
    scheduler = cbnb.ParamScheduler({"lr": cbnb.SchedCos(0.1, 0.01)})
    scheduler.scheds["lr"] = 3
    with pytest.raises(TypeError, match="the schedule of 'lr' is 3: pass a function"):
        line_learner().fit(1, cbs=scheduler)
