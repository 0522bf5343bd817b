"""Trials: what they cost, where they try, what they choose, and that nothing of them stays."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.lr.finder import TrialRun
from cbnb.lr.trials import Plan, Trial, choose, horizon, next_rate, overfit_gap, plan_trials
from helpers import RaiseIn, line_batches, line_learner, noting, same_bits, seed
from test_lr_finder import Accumulate, regression, sweep
from test_undo import Count, differences, experienced, net_learner, state_of, without_result

SILENT = dict(show_plot=False)


# --- the plan ---


def test_a_plan_in_numbers():
    plan = plan_trials(0.01, 160, 1000)
    assert plan == Plan(pytest.approx(0.01 * (1000 / 40) ** 0.5), 40, 4, 1000) and plan.cost == 160
    assert plan_trials(0.01, 10_000, 100).steps == 40 and plan_trials(0.01, 0, 100).steps == 1


def climb(plan, best, most=20):
    """The exponents of the rates that are tried, if the loss is lowest at one."""
    trials = []
    while (lr := next_rate(plan, trials)) is not None and len(trials) < most:
        k = round(3 * math.log10(lr / plan.first))
        trials.append(Trial(lr, abs(k - best), None))
    return [round(3 * math.log10(t.lr / plan.first)) for t in trials]


@pytest.mark.parametrize(
    "best, tried", [(0, [0, -1, 1]), (-1, [0, -1, -2, 0][:3]), (1, [0, -1, 1, 2]), (-5, [0, -1, -2, -3]), (5, [0, -1, 1, 2])]
)
def test_where_it_tries(best, tried):
    assert climb(Plan(0.1, 40, 4, 200), best) == tried


def test_it_climbs_away_from_what_blew_up():
    plan = Plan(1.0, 40, 4, 200)
    trials = []
    while (lr := next_rate(plan, trials)) is not None:
        trials.append(Trial(lr, math.nan if lr > 0.3 else 1.0, None))
    assert len(trials) == 4 and choose(plan, trials, 2.0).lr < 0.6


def test_a_choice_in_numbers():
    plan = Plan(0.1, 40, 4, 160)
    trials = [Trial(0.1, 0.5, 0.5), Trial(0.05, 1.0, 1.0), Trial(0.2, 0.51, 0.52), Trial(0.4, 1.0, math.inf)]
    rate = choose(plan, trials, 2.0)
    assert rate.lr == pytest.approx(1.5 * 0.5 * math.sqrt(0.1 * 0.2))  # a run four times as long, half of the rate
    assert rate.low < 1.5 * 0.5 * 0.1 < 1.5 * 0.5 * 0.2 < rate.high and "overfit" not in rate.reason
    overfit = choose(plan, [t._replace(train_loss=t.train_loss - 0.4) for t in trials], 2.0)
    assert overfit.lr == pytest.approx(1.5 * 0.25 * math.sqrt(0.1 * 0.2)) and "overfit" in overfit.reason  # 1/n
    nothing = choose(plan, [Trial(0.1, 3.0, 3.0)], 2.0)
    assert nothing.lr == pytest.approx(0.05) and "no trial of 40 updates got below" in nothing.reason


@pytest.mark.parametrize(
    "losses, words", [([3, 2, 1], "a higher rate may be better still"), ([1, 2, 3], "a lower rate may be better still"), ([2, 1, 3], None)]
)
def test_a_best_trial_at_the_border_is_told(losses, words):
    """It was the best of four trials, and nothing said that it was the outermost."""
    rate = choose(Plan(0.1, 40, 4, 160), [Trial(0.1 * 2**i, loss, loss) for i, loss in enumerate(losses)], 4.0)
    assert ("at the border of what was tried" in rate.reason) == bool(words) and (words or "") in rate.reason


# --- what they cost ---


def counted(learn):
    """Called later: the batches that were trained with, and validated."""
    seen = []
    learn.add_cb(cbnb.Callback(after_batch=lambda cb: seen.append(cb.learn.training)))
    return lambda: (sum(seen), len(seen) - sum(seen))


def with_valid(n=20, **kwargs):
    learn = regression(n * 8, 8, **kwargs)
    learn.dls = cbnb.DataLoaders(learn.dls.train, [(torch.ones(4, 4), torch.ones(4, 1))] * 6, device="cpu")
    return learn


@pytest.mark.parametrize("trials, steps", [(True, 20), (0.1, 10), (0.4, 40), (260, 35), (200, 20)])
def test_the_cost_is_stated_and_kept(trials, steps, capsys):
    learn = with_valid()
    count = counted(learn)
    found = sweep(learn, n_epoch=5, trials=trials, stop_div=False)
    trained, validated = count()
    tries = len(found.trials)
    assert (trained, validated) == (100 + tries * steps, 4 * (tries + 1)) and found.n_batches == trained + validated
    said = capsys.readouterr().out
    assert (
        f"lr_find: a sweep of 100 batches, then at most 4 trials of {steps} and 20 batches of validation: {120 + 4 * steps} in all\n"
        == said
    )
    assert 2 <= tries <= 4 and found.rule == "trials" and found.trial_plan.steps == steps and f"n_batches={found.n_batches}" in repr(found)
    assert trials is True or trials < 1 or found.n_batches <= trials


def test_accumulation_costs_more(capsys):
    """A budget of batches is one of batches."""
    learn = with_valid(cbs=Accumulate(4))
    count = counted(learn)
    found = sweep(learn, n_epoch=80, trials=700, stop_div=False)
    assert found.trial_plan.steps == (700 - 400 - 20) // 4 // 4 and sum(count()) == found.n_batches <= 700
    assert "a sweep of 400 batches, then at most 4 trials of 68 and" in capsys.readouterr().out


def test_a_budget_that_the_sweep_has_used_up(capsys):
    learn = with_valid(cbs=Accumulate(4))
    found = sweep(learn, trials=300, stop_div=False)
    assert found.trials == [] and found.rule == "balanced" and "no trials: of 300 batches, the sweep took 400" in found.reason
    assert "no trials, since the sweep took 400 of 300 batches" in capsys.readouterr().out


@pytest.mark.parametrize("opt_func", [torch.optim.AdamW, torch.optim.SGD])
def test_a_whole_fit_is_the_fit_that_follows(opt_func, capsys):
    """Bit for bit: its loss is that of the best weights of a one-cycle fit with this rate, and the search leaves no trace."""
    learn = with_valid(opt_func=opt_func)
    count = counted(learn)
    found = sweep(learn, n_epoch=4, trials=1.0)
    assert (
        2 <= len(found.trials) <= 5 and found.rule == "trials" and found.trial_plan.steps == found.planned_steps and found.trial_plan.whole
    )
    best = min(found.trials, key=lambda trial: trial.loss)
    assert found.lr == best.lr and f"the best of {len(found.trials)} whole fits of" in found.reason and found.rough == ""
    assert sum(count()) == found.n_batches and "at most 5 whole fits of" in capsys.readouterr().out
    learn.fit_one_cycle(4, found.lr, keep_best=True)
    losses = [loss for _, loss in learn.recorder.last().points("valid_loss")]
    assert min(losses) == best.valid_loss
    assert found.plan_for(400) and found.lr < best.lr  # for another length, the rate is scaled


def default(learn, **kwargs):
    return learn.lr_find(**SILENT, **kwargs)


def test_few_items_get_whole_fits_by_default(capsys, monkeypatch):
    """The rate of a sweep of at most 400 items is right in half of the cases, that of whole fits in nine of ten (bench/lr_small.py)."""
    monkeypatch.setattr("cbnb.lr.finder.QUICK", math.inf)  # however slow this machine is
    learn = with_valid(cbs=Count())
    before, count = state_of(learn), counted(learn)
    found, asked = default(learn, n_epoch=4), sweep(with_valid(), n_epoch=4, trials=1.0)
    assert capsys.readouterr().out.count("lr_find:") == 1  # only where trials were asked for
    assert (found.lr, found.trials, found.rule, found.n_batches) == (asked.lr, asked.trials, "trials", asked.n_batches)
    assert sum(count()) == found.n_batches and not found.rough
    assert "with so few items, fits tell more than a sweep (trials=False: only the sweep)" in found.reason
    assert found.plan_for(40) and "lr_find(n_epoch=40, trials=1.)" in found.rough  # no fit has had this length
    learn.remove_cb(next(cb for cb in learn.cbs if type(cb) is cbnb.Callback))
    assert not without_result(before, learn)


@pytest.mark.parametrize("why", ["more items", "no validation data", "a trained model", "slow", "no loss in validation", "said so"])
def test_no_fits_by_default(why, monkeypatch):
    learn = regression() if why == "no validation data" else with_valid(51 if why == "more items" else 20)
    if why == "a trained model":
        learn.fit_one_cycle(2, 0.01)
    if why == "slow":
        monkeypatch.setattr("cbnb.lr.finder.QUICK", 1e-6)
    if why == "no loss in validation":
        learn = with_valid(eval_step=lambda xb, yb: (None, yb))
    found = default(learn, **(dict(trials=False) if why == "said so" else {}))
    assert found.trials == [] and found.rule == "balanced" and "fits tell more" not in found.reason
    assert bool(found.rough) == (why not in ("more items", "a trained model"))


def test_no_rate_if_each_whole_fit_gets_worse_on_new_data():
    """The sweep sees only the training data, and falls."""
    learn = regression(160, 8)
    learn.dls = cbnb.DataLoaders(learn.dls.train, [(x, -5 * x.sum(1, keepdim=True) - 9 * y) for x, y in learn.dls.train], device="cpu")
    found = default(learn)
    assert default(learn, trials=False).lr is not None and len(found.trials) >= 3
    assert found.lr is None and "no whole fit with a rate around it got below the loss before training" in found.reason


def test_whole_fits_try_the_higher_rate_first():
    plan = Plan(0.1, 40, 5, 40.0)
    assert climb(plan, 0) == [0, 1, -1] and climb(plan, 2) == [0, 1, 2, 3] and climb(plan, -5) == [0, 1, -1, -2, -3]
    trials = [Trial(0.1, 0.5, 0.5), Trial(0.2, 0.51, 0.49), Trial(0.4, 1.0, math.inf)]
    assert choose(plan, trials, 2.0).lr == 0.2 and choose(plan, [t._replace(valid_loss=None) for t in trials], 2.0).lr == 0.1
    assert choose(plan, trials, 0.3).doubt  # no fit got below the loss that it started from


@pytest.mark.parametrize("trials", [1.5, -0.1, 0.0, 0, -3, 1, 120, "True", math.nan, [3]])
def test_bad_trials(trials):
    learn = with_valid()
    count = counted(learn)
    with pytest.raises((ValueError, TypeError), match="trials="):
        sweep(learn, trials=trials)
    assert count() == (0, 0)


def test_no_trials_after_a_refusal(capsys):
    learn = with_valid()
    count = counted(learn)
    found = sweep(learn, start_lr=1e-12, end_lr=1e-9, trials=True)
    assert found.lr is None and found.trials == [] and "flat" in found.reason
    assert count() == (100, 0) and capsys.readouterr().out == ""


# --- what they are ---


def test_a_trial_is_a_short_one_cycle():
    seen = []

    def note(cb):
        group = cb.learn.opt.param_groups[0]
        seen.append((group["lr"], group["momentum"]))

    def sgd(groups, lr):
        return torch.optim.SGD(groups, lr=lr, momentum=0.5)

    learn = with_valid(cbs=cbnb.Callback(before_step=note), opt_func=sgd, moms=(0.9, 0.7, 0.8))
    found = sweep(learn, n_epoch=5, trials=True, end_lr=1.0, stop_div=False)
    trial, seen = found.trials[1], seen[100 + 20 : 100 + 40]
    alone = with_valid(opt_func=sgd, moms=(0.9, 0.7, 0.8))
    alone.fit_one_cycle(1, trial.lr)  # 20 batches, too
    assert [lr for lr, _ in seen] == pytest.approx(list(alone.recorder.lrs), rel=1e-6)
    assert [mom for _, mom in seen] == pytest.approx(list(alone.recorder.hps["mom"]), rel=1e-6)


def test_a_trial_trains_as_a_fit_does():
    learn, alone = with_valid(), with_valid()
    state = torch.get_rng_state()
    found = sweep(learn, n_epoch=5, trials=True, stop_div=False)
    assert torch.equal(torch.get_rng_state(), state)
    for trial in found.trials:
        copy = with_valid()
        torch.set_rng_state(state)  # the same order of the data each time
        copy.fit_one_cycle(1, trial.lr)
        losses = copy.recorder.last().raw_losses
        assert trial.train_loss == pytest.approx(sum(losses[-5:]) / 5, rel=1e-5)
        assert trial.valid_loss == pytest.approx(copy.validate()[0], rel=1e-5)  # six batches that are all alike
    assert found.start_loss == pytest.approx(alone.validate()[0], rel=1e-5)


def test_without_validation_data():
    learn = regression()
    found = sweep(learn, n_epoch=20, trials=True)
    assert all(t.valid_loss is None for t in found.trials) and found.rule == "trials"
    assert found.start_loss == pytest.approx(sum(found.raw_losses[:10]) / 10)


def test_without_length_and_with_three_batches():
    batches = line_batches(3)
    learn = line_learner(dls=cbnb.DataLoaders(lambda: iter(batches), lambda: iter(batches), device="cpu"))
    found = sweep(learn, n_epoch=20, trials=True, end_lr=1.0, stop_div=False)
    assert found.planned_steps == 60 and found.trial_plan.steps == 12 and found.rule == "trials"


def test_groups_keep_their_ratios():
    seen = []
    x = torch.linspace(-1, 1, 8)[:, None]
    seed()
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    learn = line_learner(dls=cbnb.DataLoaders([(x, 2 * x)] * 8, device="cpu"), model=model, splitter=lambda m: list(m))
    note = cbnb.Callback(before_step=lambda self: seen.append([g["lr"] for g in self.learn.opt.param_groups]))
    found = sweep(learn, start_lr=slice(1e-8, 1e-6), end_lr=slice(1e-2, 1.0), trials=0.2, n_epoch=10, cbs=note)
    assert len(found.trials) > 1 and len(seen) > len(found.lrs)
    assert all(high / low == pytest.approx(100) for low, high in seen)
    assert max(lr for _, lr in seen[len(found.lrs) :]) == pytest.approx(max(t.lr for t in found.trials), rel=0.05)
    assert found.lr < 1


def test_what_blows_up_is_no_error():
    learn = with_valid(opt_func=torch.optim.SGD)
    usual = nn.functional.mse_loss

    def cliff(pred, y):
        return usual(pred, y) * (float("nan") if learn.opt.param_groups[0]["lr"] > 0.02 and learn.n_epoch < 100_000 else 1)

    learn.loss_func = cliff
    found = sweep(learn, n_epoch=5, trials=True, end_lr=10)
    assert found.lr is not None and any(t.loss == math.inf for t in found.trials)
    assert any("blew up" in text.get_text() for text in found.plot(return_fig=True).axes[1].texts)


# --- nothing stays ---


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("opt_func", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_trials_change_nothing(own_generator, opt_func):
    learn = experienced(own_generator=own_generator, opt_func=opt_func)
    before = state_of(learn)
    found = learn.lr_find(trials=True, n_epoch=30, **SILENT)
    assert found.lr is None or found.trials
    assert not without_result(before, learn)


def test_trials_before_the_first_fit_change_nothing():
    learn = with_valid(cbs=Count())
    before = state_of(learn)
    assert learn.lr_find(trials=True, **SILENT).rule == "trials"
    assert not without_result(before, learn) and learn.opt is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize(
    "name", ["before_fit", "before_batch", "after_loss", "after_step", "before_validate", "after_validate", "after_epoch", "after_fit"]
)
def test_an_error_in_the_middle_of_a_trial(name, error):
    learn = with_valid(cbs=Count())
    learn.fit(1)
    before = state_of(learn)
    runs = []
    raiser = RaiseIn(
        name, error, order=55, phase="validate" if name.endswith("validate") else "train", when=lambda learn: len(runs) == 4
    )  # the second trial
    count = cbnb.Callback(before_fit=lambda cb: runs.append(1))
    count.order = -99
    with pytest.raises(error):
        learn.lr_find(trials=True, n_epoch=5, cbs=[count, raiser], **SILENT)
    assert raiser.done and len(runs) == 4 and not hasattr(learn, "lr_finder_result")
    assert state_of(learn) == before, differences(before, state_of(learn))
    learn.fit(1)


def test_trials_do_not_change_the_fit_that_follows():
    ends = []
    for trials in (False, True):
        learn = net_learner(own_generator=True)
        if trials:
            learn.lr_find(trials=0.3, n_epoch=20, **SILENT)
        learn.fit(2)
        ends.append((learn, torch.rand(1), random.random(), np.random.rand()))
    assert same_bits(ends[0][0].model, ends[1][0].model) and ends[0][1:] == ends[1][1:]


def test_observers_see_nothing_of_trials():
    seen = []
    learn = with_valid(cbs=noting(seen, run_in=("fit",)))
    seen.clear()
    learn.lr_find(trials=True, **SILENT)
    assert seen == [] and len(learn.recorder.history) == 0


# --- what is shown ---


def test_the_figure_has_the_trials_beside_the_sweep():
    found = sweep(with_valid(), n_epoch=5, trials=True)
    fig = found.plot(return_fig=True)
    curve, trials = fig.axes
    assert trials.get_title("left") == f"Trials of {found.trial_plan.steps} updates" and curve.get_xscale() == trials.get_xscale() == "log"
    assert sorted(t.lr for t in found.trials) == pytest.approx(list(trials.lines[1].get_xdata()))
    assert f"trials: {found.lr:.2g} for 5 epochs (100 updates), measured in {found.n_batches} batches" in fig.get_suptitle()


def test_the_progress_names_the_trial(monkeypatch):
    from cbnb.display.progress import DISPLAYS, LogDisplay

    said = []

    class Told(LogDisplay):
        live = True

        def progress(self, at):
            said.append(at.words())

    monkeypatch.setitem(DISPLAYS, "lines", Told)
    learn = with_valid(progress=True)
    learn.progress.every = 0.0
    learn.add_cb(cbnb.Callback(before_fit=lambda cb: setattr(cb.learn.progress, "next", 0.0)))
    learn.progress.after_batch = lambda: None if not learn.progress.shown.live else learn.progress._draw(0.0)
    learn.cbs_changed()
    sweep(learn, trials=True, n_epoch=5)
    assert any(words.startswith("lr_find: 50 of 100 updates, lr ") for words in said)
    assert any(words.startswith("lr_find, trial 1 of 4: 10 of 20 updates, lr ") for words in said), said[-5:]
    assert any(words.startswith("lr_find, trial 2 of 4: ") for words in said)


# --- each part by itself ---


@pytest.mark.parametrize(
    "budget, planned, settings, steps",
    [
        (163, 1000, {}, 40),
        (10**4, 100, {}, 40),
        (10**4, 104, {}, 41),
        (3, 100, {}, 1),
        (10**4, 1, {}, 1),
        (163, 1000, dict(most=2), 81),
        (10**4, 100, dict(longest=0.25), 25),
    ],
)
def test_trials_are_as_long_as_the_budget_and_the_run_allow(budget, planned, settings, steps):
    plan = plan_trials(0.01, budget, planned, **settings)
    assert (
        plan == Plan(pytest.approx(0.01 * math.sqrt(planned / steps)), steps, settings.get("most", 4), planned)
        and plan.cost == steps * plan.most
    )


@pytest.mark.parametrize(
    "train, valid, loss",
    [
        (1.0, 2.0, 2.0),
        (1.0, None, 1.0),
        (math.nan, None, math.inf),
        (1.0, math.nan, math.inf),
        (1.0, -math.inf, math.inf),
        (math.nan, 3.0, 3.0),
    ],
)
def test_the_validation_counts_if_there_is_one(train, valid, loss):
    assert Trial(0.1, train, valid).loss == loss


def test_neighbours_are_a_third_of_a_decade_apart():
    plan, first = Plan(0.5, 40, 4, 200), Trial(0.5, 1.0, None)
    third = 10 ** (1 / 3)
    assert next_rate(plan, []) == 0.5 and next_rate(plan, [first]) == pytest.approx(0.5 / third)
    below = Trial(0.5 / third, 2.0, None)
    assert next_rate(plan, [first, below]) == pytest.approx(0.5 * third)
    assert next_rate(plan, [first, below, Trial(0.5 * third, 2.0, None)]) is None
    assert next_rate(plan, [first, Trial(0.5 / third, 1.0, None)]) == pytest.approx(0.5 / third**2)  # of two alike the lower one
    assert next_rate(plan._replace(most=2), [first, below]) is None


@pytest.mark.parametrize("train, valid, gap", [(1.0, None, 0), (1.0, 1.0, 0), (1.0, 0.5, 0), (1.0, 2.0, 1 / 4), (4.0, 4.5, 0.5)])
def test_the_gap_is_the_part_of_the_fall_that_is_missing(train, valid, gap):
    """From 5; the greater of the two falls counts."""
    assert overfit_gap(Trial(0.1, train, valid), 5.0) == gap


def test_the_exponent_grows_with_the_gap_up_to_one():
    assert [horizon(gap) for gap in (0.0, 0.1, 1 / 6, 0.5)] == pytest.approx([0.5, 0.8, 1.0, 1.0])


def chosen(*losses, start=2.0, train=None):
    """From trials at 1, 2, 4, ... for a run of four times their length, without what is common to all: half of 1.5 times the rate."""
    trials = [Trial(2.0**i, loss if train is None else train, loss) for i, loss in enumerate(losses)]
    rate = choose(Plan(1.0, 40, 4, 160), trials[::-1], start)
    return [value / 0.75 for value in (rate.low, rate.lr, rate.high)], rate.reason


HALF = 10 ** (1 / 6)  # of the way to the next trial


@pytest.mark.parametrize(
    "losses, low, high",
    [
        ((1.9, 1.0, 1.9), 2, 2),
        ((1.05, 1.0, 1.05), 1, 4),  # 5% of the fall of 1
        ((1.051, 1.0, 1.051), 2, 2),
        ((1.0, 1.9, 1.0), 1, 1),  # not next to the best, and the first of two
        ((1.9, 1.04, 1.03, 1.0, 1.9), 2, 8),
        ((1.0, 1.03, 1.9), 1, 2),
        ((1.9, 1.03, 1.0), 2, 4),
    ],
)
def test_the_choice_is_the_middle_of_those_that_are_about_as_good(losses, low, high):
    rates, reason = chosen(*losses)
    assert rates == pytest.approx([low / HALF, math.sqrt(low * high), high * HALF])
    assert reason.startswith(f"the best of {len(losses)} trials of 40 updates, scaled to a run of ") and "overfit" not in reason


@pytest.mark.parametrize("train, lower", [(0.98, False), (0.968, True)])
def test_trials_that_overfit_already_are_told(train, lower):
    """Of a fall of a little more than 1, two or three hundredths are missing."""
    assert ("; lower than usual, because they overfit already" in chosen(1.9, 1.0, 1.9, train=train)[1]) == lower


@pytest.mark.parametrize("losses", [(2.0, 2.0), (math.nan, 2.5), (2.0, math.nan)])
def test_trials_that_get_nowhere_leave_the_rate_of_the_sweep(losses):
    rate = choose(Plan(1.0, 40, 4, 160), [Trial(2.0**i, loss, loss) for i, loss in enumerate(losses)], 2.0)
    assert (rate.low, rate.lr, rate.high) == (pytest.approx(0.5 / 3.5), 0.5, pytest.approx(0.5 * 3.5))
    assert (
        rate.doubt == "no trial of 40 updates got below the loss before training"
        and rate.reason == f"the rate of the sweep, since {rate.doubt}"
    )


def test_a_trial_notes_the_mean_of_its_last_quarter_and_a_weighted_validation():
    """Losses of 10, 11, 12, ...; four validation items with a loss of 1 and two with 4, of which all are used only if allowed."""
    x = torch.ones(4)
    learn = line_learner(dls=cbnb.DataLoaders([(x, x)] * 10, [(x, x), (x[:2], x[:2]), (x, x)], device="cpu"))
    learn.loss_func = lambda pred, y: pred.sum() * 0 + (10 + learn.train_iter if learn.training else 1 if len(y) == 4 else 4)
    for n_valid, valid in ((0, None), (1, 1.0), (2, 2.0), (9, 16 / 10)):
        run = TrialRun(8, [0.1], n_valid)
        learn._mock_run(run)
        assert (
            run.result() == Trial(0.1, 16.5, valid and pytest.approx(valid)) and run.n_seen == 8 + min(n_valid, 3) and run.stopped == "done"
        )
    only_valid = TrialRun(0, [0.1], 2)
    learn._mock_run(only_valid)
    assert only_valid.result().valid_loss == 2 and only_valid.n_seen == 2 and only_valid.lrs == []
    learn.loss_func = lambda pred, y: pred.sum() * (math.nan if learn.train_iter == 1 else 0)
    broken = TrialRun(8, [0.1], 2)
    learn._mock_run(broken)
    assert (broken.stopped, broken.n_seen) == ("nan", 2)  # there is nothing to validate
    assert math.isnan(broken.result().train_loss) and math.isnan(broken.result().valid_loss)
    learn.loss_func = lambda pred, y: pred.sum() * 0 + 10 + learn.train_iter
    short = TrialRun(2, [0.1])
    learn._mock_run(short)
    assert short.result().train_loss == 11  # of at least one update
    assert TrialRun(2, [0.1, 0.2]).result().lr == 0.2 and math.isnan(TrialRun(2, [0.1]).result().loss) is False


class Ends(cbnb.Callback):
    """Ends the sweep, or trial number `n`, after its update `at`."""

    run_in = "lr_find"

    def __init__(self, n: int, at: int):
        self.n, self.at, self.n_begun = n, at, -1

    def before_fit(self):
        self.n_begun += 1

    def after_batch(self):
        if self.n_begun == self.n and self.learn.training and len(self.learn.lr_finder.lrs) == self.at:
            self.learn.lr_finder.ending = True


def test_a_sweep_that_is_stopped_keeps_its_curve_and_has_no_trials():
    whole, learn = sweep(with_valid(), stop_div=False), with_valid()
    before = [p.clone() for p in learn.model.parameters()]
    found = sweep(learn, trials=True, stop_div=False, cbs=Ends(0, 70))
    assert found.lrs == whole.lrs[: len(found.lrs)] and found.raw_losses == whole.raw_losses[: len(found.lrs)] and len(found.lrs) == 71
    assert found.trials == [] and "the sweep was stopped by hand at" in found.reason
    assert all(map(torch.equal, before, learn.model.parameters()))


@pytest.mark.parametrize("at, n_trials", [(3, 1), (19, 2)])
def test_a_trial_that_is_stopped_does_not_count(at, n_trials):
    """Runs: the sweep, the validation before the trials, the first trial, the second. The second ends early, or in its last update."""
    whole = sweep(with_valid(), n_epoch=5, trials=True, stop_div=False)
    found = sweep(with_valid(), n_epoch=5, trials=True, stop_div=False, cbs=Ends(3, at))
    assert found.trials == whole.trials[:n_trials] and len(whole.trials) > n_trials and found.rule == "trials"


@pytest.mark.parametrize("planned, factor", [(54, 1), (55, 1), (54 * 2.5, 1.5 / 2.5**0.5), (18, 3**0.5)])
def test_the_correction_for_short_trials_grows_with_the_length_of_the_run(planned, factor):
    rate = choose(Plan(0.1, 54, 4, planned), [Trial(0.1, 1.0, 1.0)], start_loss=2.0)
    assert rate.lr == pytest.approx(0.1 * factor, rel=0.02)
