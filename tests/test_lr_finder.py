"""The sweep itself, the suggestions, and the refusals. That it puts everything back is in test_undo.py."""

import math
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from helpers import RaiseIn, line_batches, line_learner, noting, seed


def sweep(learn, **kwargs):
    return learn.lr_find(show_plot=False, **kwargs)


def regression(n=64, bs=8, **kwargs):
    seed()
    x = torch.randn(n, 4)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * torch.randn(n, 1)
    dls = cbnb.DataLoaders(DataLoader(TensorDataset(x, y), bs, shuffle=True), device="cpu")
    return line_learner(dls=dls, model=nn.Linear(4, 1), **kwargs)


def test_both_ends_are_tried():
    """D25: end_lr was never reached."""
    found = sweep(regression(), start_lr=1e-5, end_lr=1e-1, num_it=50, stop_div=False)
    assert len(found.lrs) == len(found.losses) == len(found.raw_losses) == 50
    assert found.lrs[0] == 1e-5 and found.lrs[-1] == pytest.approx(1e-1)
    ratios = [b / a for a, b in zip(found.lrs, found.lrs[1:])]
    assert ratios == pytest.approx([ratios[0]] * 49)


def test_the_rates_are_those_of_the_steps():
    seen = []
    learn = regression()
    found = sweep(
        learn,
        num_it=30,
        stop_div=False,
        end_lr=0.1,
        cbs=cbnb.Callback(before_step=lambda self: seen.append(self.learn.opt.param_groups[0]["lr"])),
    )
    assert seen == found.lrs


LOADERS = {
    "one batch": lambda: line_batches(1),
    "three batches": lambda: line_batches(3),
    "without length": lambda: lambda: iter(line_batches(3)),
    "many batches": lambda: line_batches(150),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_as_many_updates_as_asked_for(kind):
    seen = []
    learn = line_learner(dls=cbnb.DataLoaders(LOADERS[kind](), line_batches(1), device="cpu"))
    learn.add_cb(noting(seen, run_in=("lr_find",)))
    found = sweep(learn, num_it=100, end_lr=0.1, stop_div=False)
    assert len(found.lrs) == 100 == seen.count("after_step") and "before_validate" not in seen


class Accumulate(cbnb.Callback):
    """An update in every n batches, the cancelled ones keeping their gradients."""

    def __init__(self, n):
        self.n, self.count = n, 0

    def before_fit(self):
        self.count = 0

    def before_step(self):
        self.count += 1
        if self.count % self.n:
            raise cbnb.CancelBatchException


@pytest.mark.parametrize("n_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("order", [0, 70])
def test_updates_are_counted_not_batches(n_batches, order):
    updates = []
    cb = Accumulate(4)
    cb.order = order
    learn = line_learner(n_batches, cbs=[cb, cbnb.Callback(after_step=lambda self: updates.append(self.learn.opt.param_groups[0]["lr"]))])
    found = sweep(learn, num_it=20, end_lr=0.01, stop_div=False)
    assert len(found.lrs) == len(updates) == 20 and found.lrs == updates and found.n_batches == 80


def test_the_loss_of_an_update_is_the_mean_of_its_batches():
    learn = line_learner(4, cbs=Accumulate(4))
    learn.loss_func = lambda pred, y: ((pred - y) ** 2).mean() * 0 + pred.sum() * 0 + learn.iter
    found = sweep(learn, num_it=5, stop_div=False)
    assert found.raw_losses == pytest.approx([1.5] * 5)


def test_a_skipped_step_adds_no_point():
    """As mixed precision does when gradients overflow."""

    class Skips(cbnb.Callback):
        def before_step(self):
            self.skip = self.learn.train_iter % 3 == 1
            if self.skip:
                raise cbnb.CancelStepException

    updates = []

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            updates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    learn = line_learner(cbs=Skips, opt_func=Counting)
    found = sweep(learn, num_it=20, end_lr=0.01, stop_div=False)
    assert found.lrs == updates and len(updates) == 20


def test_nan_stops_at_once():
    """D25: the sweep went on to the end."""
    seen = []
    learn = regression(cbs=noting(seen, -1000, run_in=("lr_find",)))
    usual = nn.functional.mse_loss
    learn.loss_func = lambda pred, y: usual(pred, y) * (float("nan") if learn.train_iter >= 30 else 1)
    found = sweep(learn)
    assert seen.count("after_batch") == 31 and len(found.lrs) in (30, 31)
    assert all(math.isfinite(loss) for loss in found.losses[:30])


def test_infinity_stops_at_once():
    learn = regression()
    usual = nn.functional.mse_loss
    learn.loss_func = lambda pred, y: usual(pred, y) + (float("inf") if learn.train_iter >= 30 else 0)
    assert sweep(learn).n_batches == 31


def test_divergence_stops():
    learn = regression(bs=64, opt_func=torch.optim.SGD)
    found = sweep(learn, end_lr=100)
    assert len(found.lrs) < 100 and found.losses[-1] > 3 * min(found.losses) and found.lr is not None
    assert len(sweep(learn, end_lr=100, stop_div=False).lrs) > len(found.lrs)


@pytest.mark.parametrize("shift", [-5.0, -1000.0])
def test_negative_losses_do_not_stop_it(shift):
    """D25: they did so at the first batch."""
    learn = regression()
    usual = nn.functional.mse_loss
    plain = sweep(learn, end_lr=0.05)
    learn.loss_func = lambda pred, y: usual(pred, y) + shift
    assert len(plain.lrs) == len(sweep(learn, end_lr=0.05).lrs) == 100
    learn.opt_func = torch.optim.SGD
    assert 30 < len(sweep(learn, end_lr=100).lrs) < 100  # and do, when they rise


@pytest.mark.parametrize("start, end", [([1e-6, 1e-5], [1e-1, 1.0]), (slice(1e-6, 1e-5), slice(1e-1, 1.0)), (1e-5, [1e-1, 1.0])])
def test_rates_per_group(start, end):
    """D25: lists were not accepted."""
    seen = []
    x = torch.linspace(-1, 1, 8)[:, None]
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    learn = line_learner(dls=cbnb.DataLoaders([(x, 2 * x)] * 2, device="cpu"), model=model, splitter=lambda m: list(m))
    found = sweep(
        learn,
        start_lr=start,
        end_lr=end,
        num_it=20,
        stop_div=False,
        cbs=cbnb.Callback(before_step=lambda self: seen.append([g["lr"] for g in self.learn.opt.param_groups])),
    )
    assert len(seen) == 20 and seen[-1] == pytest.approx([0.1, 1.0]) and found.lrs == [lrs[-1] for lrs in seen]
    assert seen[0] == pytest.approx([1e-6, 1e-5] if start != 1e-5 else [1e-5, 1e-5])


@pytest.mark.parametrize(
    "settings, words",
    [
        (dict(start_lr=1, end_lr=0.1), "from 1 to 0.1"),
        (dict(start_lr=0), "from 0 to 10"),
        (dict(start_lr=-1), "start_lr=-1"),
        (dict(start_lr="small"), "start_lr='small' is not a number"),
        (dict(num_it=1), "num_it=1"),
        (dict(num_it="many"), "num_it='many'"),
        (dict(suggest_funcs="vally"), "no rule 'vally'; there are valley"),
        (dict(start_lr=[1e-6, 1e-5]), "start_lr has 2 values.*1 parameter group"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        sweep(regression(), **settings)


def constant(value):
    return lambda pred, y: pred.sum() * 0 + value


def flat(pred, y):
    return pred.sum() * 0 + 1 + 0.01 * math.sin(pred.numel() * 37)


REFUSALS = {
    "nan from the start": (lambda: sweep(line_learner(loss_func=constant(float("nan")))), "not a number from the start"),
    "infinite from the start": (lambda: sweep(line_learner(loss_func=constant(float("inf")))), "not a number from the start"),
    "too few": (lambda: sweep(regression(), num_it=6), "6 points are too few.*num_it"),
    "still too few": (lambda: sweep(regression(), num_it=9), "9 points are too few.*num_it"),
    "too high from the start": (
        lambda: sweep(regression(opt_func=torch.optim.SGD), start_lr=1e2, end_lr=1e6),
        "diverged after .*start_lr=1e.02 is too high",
    ),
    "flat": (lambda: sweep(line_learner(loss_func=flat)), "flat from 1e-07 to 10"),
    "rates too low": (lambda: sweep(regression(), start_lr=1e-12, end_lr=1e-9), "flat from 1e-12 to 1e-09"),
    "rises only": (
        lambda: cbnb.LRFind([10.0**i for i in range(-10, 10)], [1 + 0.1 * i for i in range(20)], [], 20),
        "only rises.*start_lr=1e-10",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_say_why(case):
    """D25: short and diverging runs crashed, flat ones gave a number all the same."""
    run, words = REFUSALS[case]
    found = run()
    assert found.lr is None and found.rule is None and found.suggestions == {}
    with pytest.raises(ValueError, match="made no suggestion: "):
        valley, steep = found
    assert re.search(words, found.reason), found.reason
    assert found.reason in repr(found) and repr(found).startswith("LRFind(no suggestion")
    assert re.search("No suggestion", found.plot(return_fig=True).axes[0].get_title())
    with pytest.raises(AttributeError, match="valley made no suggestion"):
        found.valley


def test_reasons_differ():
    reasons = [run().reason for run, _ in REFUSALS.values()]
    assert len(set(reasons)) == len(reasons) - 1  # a loss that is no number is one reason


@pytest.mark.parametrize("num_it", range(2, 31))
def test_short_sweeps_suggest_or_refuse(num_it):
    """D25: IndexError, and slide needed 16 points."""
    found = sweep(regression(opt_func=torch.optim.Adam), num_it=num_it)
    assert (found.lr is None) == (found.suggestions == {}) and found.reason
    assert all(1e-8 < lr < 10 for lr in found.suggestions.values())
    if num_it < 10:
        assert found.lr is None


def test_a_rule_that_cannot_say_anything_is_left_out():
    lrs, losses = [10 ** (i / 4 - 5) for i in range(20)], [20.0 - i for i in range(20)]
    found = cbnb.LRFind(lrs, losses, losses, 20)
    assert (
        found.lr is not None and list(found.suggestions) == ["valley", "minimum", "steep"] and "needs 16 points" in found.refusals["slide"]
    )
    with pytest.raises(AttributeError, match="slide made no suggestion"):
        found.slide


def curve():
    """The reference curve of the specification."""
    lrs = [1e-7 * 1e8 ** (i / 100) for i in range(100)]
    losses = [2 - math.tanh((i - 50) / 10) if i < 80 else 2 - math.tanh(3) + 0.2 * (i - 80) for i in range(100)]
    return lrs, losses


@pytest.mark.parametrize("rule, expected", [("valley", 2.75423e-4), ("slide", 1.31826e-6), ("minimum", 2.51189e-2), ("steep", 8.31764e-4)])
def test_rules_in_numbers(rule, expected):
    lrs, losses = curve()
    lr, point = getattr(cbnb, rule)(lrs[10:95], losses[10:95], 100)
    assert lr == pytest.approx(expected, rel=1e-5) and lrs[0] < point[0] < lrs[-1]
    found = cbnb.LRFind(lrs, losses, losses, 100)
    assert found.suggestions[rule] == pytest.approx(expected, rel=1e-5) == getattr(found, rule)


@pytest.mark.parametrize(
    "losses, index", [([3, 2, 1], 0), ([5, 4, 6, 3, 2, 7, 1], 2), ([4, 3, 2, 1, 5, 0.5], 1), ([1, 3, 2], 0), (list(range(20, 0, -1)), 8)]
)
def test_valley_in_small(losses, index):
    assert cbnb.valley([float(i) for i in range(len(losses))], losses, 100)[0] == index


def test_suggestions_asked_for():
    learn = regression(opt_func=torch.optim.Adam)
    assert list(sweep(learn).suggestions) == ["valley", "slide", "minimum", "steep"]
    assert list(sweep(learn, suggest_funcs="valley").suggestions) == ["valley"]
    found = sweep(learn, suggest_funcs=("steep", cbnb.valley))
    assert list(found.suggestions) == ["steep", "valley"] and list(found) == list(found.suggestions.values())

    def mine(lrs, losses, num_it):
        return 0.125, (lrs[0], losses[0])

    found = sweep(learn, suggest_funcs=mine)
    assert found.suggestions == {"mine": 0.125} and found.mine == 0.125 and "mine" in dir(found)
    found = sweep(learn, suggest_funcs=None)
    assert found.suggestions == {} and found.lr is not None


def test_the_figure_is_returned():
    """D25: return_fig had no effect."""
    from matplotlib.figure import Figure

    found = sweep(regression())
    assert isinstance(found.fig, Figure)
    axes = found.fig.axes[0]
    assert axes.get_xscale() == "log" and len(axes.lines[0].get_xdata()) > 80
    assert {"valley", "slide", "minimum", "steep"} <= {
        word for text in axes.get_legend().get_texts() for word in text.get_text().replace(":", " ").split()
    }
    learn = regression()
    learn.lr_find(show_plot=False)
    assert isinstance(learn.recorder.plot(return_fig=True), Figure)


def test_outside_of_notebooks_nothing_is_shown(capsys):
    regression().lr_find()
    assert capsys.readouterr().out == ""


def test_it_sweeps_what_the_user_replaced():
    called = []

    class Mine(cbnb.Step):
        def step(self, learn):
            called.append(learn.opt.param_groups[0]["lr"])
            super().step(learn)

    found = sweep(line_learner(train_step=Mine()), num_it=20, stop_div=False)
    assert called == found.lrs


@pytest.mark.parametrize("opt_func", [torch.optim.AdamW, torch.optim.SGD])
def test_the_suggestion_trains(opt_func):
    """Within a factor of two of the best rate of a grid, on a small regression."""

    def loss_after(lr):
        learn = regression(128, 16, opt_func=opt_func)
        try:
            learn.fit(15, lr)
        except RuntimeError:
            return math.inf
        last = learn.validate(0)[0]
        return last if math.isfinite(last) else math.inf

    lr = sweep(regression(128, 16, opt_func=opt_func)).lr
    assert loss_after(lr) < 2 * min(loss_after(10**-e) for e in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)) + 0.05 * loss_after(1e-9)


def test_as_a_callback_of_a_fit():
    """LRFinder in fit(cbs=...) puts everything back as well, and leaves the curve on the callback."""
    learn = line_learner(10)
    before = [p.clone() for p in learn.model.parameters()]
    finder = cbnb.LRFinder(num_it=25, stop_div=False)
    learn.fit(5, cbs=finder)
    assert all(torch.equal(a, b) for a, b in zip(before, learn.model.parameters()))
    assert len(finder.lrs) == 25 and finder.lrs[-1] == pytest.approx(10) and finder not in learn.cbs


def test_an_interrupted_sweep_says_so():
    learn = regression()
    with pytest.raises(cbnb.FitInterrupted, match="learn is usable"):
        sweep(learn, cbs=RaiseIn("after_loss", KeyboardInterrupt, when=lambda learn: learn.train_iter == 20))
    assert not hasattr(learn, "lr_finder_result")
    with pytest.raises(ValueError, match="no sweep to plot: call learn.lr_find"):
        learn.recorder.plot()


@pytest.mark.parametrize(
    "name, cancel",
    [
        ("before_step", cbnb.CancelStepException),
        ("before_step", cbnb.CancelBatchException),
        ("before_batch", cbnb.CancelBatchException),
        ("before_train", cbnb.CancelTrainException),
    ],
)
def test_a_sweep_without_any_update_ends(name, cancel):
    """Soon, and it says why."""
    seen = []

    def refuse(self):
        raise cancel

    found = sweep(line_learner(cbs=[cbnb.Callback(**{name: refuse}), noting(seen, -1000, run_in=("lr_find",))]), num_it=12)
    assert found.lrs == [] and found.lr is None and "no update" in found.reason
    assert seen.count("before_batch") + seen.count("before_epoch") < 5000


def test_state_of_the_step_and_the_model_beside_its_tensors_is_put_back():
    """A step may own an optimizer, and a model a list; an expanded buffer cannot be written in place."""

    class Two(cbnb.Step):
        def __init__(self, model):
            self.other, self.n = torch.optim.Adam(model.parameters(), lr=1e-4), 0

        def step(self, learn):
            self.n += 1
            learn.model.seen.append(self.n)
            self.other.step()
            learn.opt.step()

    learn = line_learner()
    learn.model.seen = seen = []
    learn.model.register_buffer("scale", torch.ones(1).expand(3))
    learn.train_step = step = Two(learn.model)
    learn.fit(1)
    averages = {p: s["exp_avg"].clone() for p, s in step.other.state.items()}
    other, n, noted = step.other, step.n, list(seen)
    learn.lr_find(num_it=10, show_plot=False)
    assert step.other is other and step.n == n and learn.model.seen is seen == noted
    assert all(torch.equal(s["exp_avg"], averages[p]) for p, s in step.other.state.items())


def test_lazy_layers_are_asked_for_a_batch_first():
    batch = (torch.ones(4, 2), torch.ones(4, 1))
    learn = cbnb.Learner(cbnb.DataLoaders([batch]), torch.nn.LazyLinear(1), torch.nn.MSELoss())
    with pytest.raises(ValueError, match="lazy layers.*pass one batch"):
        learn.lr_find()
    learn.model(batch[0])
    learn.lr_find(num_it=10, show_plot=False)
