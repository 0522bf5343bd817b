"""Looking inside a model, drawing losses, mixing items: what is seen, and that nothing stays behind however a run ends."""

import copy
import io
import math
import warnings

import pytest
import torch
from matplotlib import pyplot
from torch import nn

import cbnb
from cbnb.callbacks.hooks import Hook, Rows, find_layers, rebinned, summarized
from cbnb.display.look import COLORS, sparkline
from cbnb.display.show_graph import grown, run_figure
from helpers import Line, RaiseIn, ab, line_batches, line_learner, same_bits, seed

ENDS = {"done": None, "error": RuntimeError("no"), "interrupt": KeyboardInterrupt(), "cancel": cbnb.CancelFitException()}


def n_hooks(model) -> int:
    return sum(len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules())


def quiet(row) -> None:
    pass


def net_learner(n: int = 5, model=None, **kwargs) -> cbnb.Learner:
    seed()
    x = torch.randn(n * 4, 3)
    batches = list(zip(x.split(4), x.sum(1, keepdim=True).split(4)))
    model = model or nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches[:2], device="cpu"), model, nn.MSELoss(), lr=0.01, **kwargs)
    learn.logger = quiet
    return learn.remove_cb(cbnb.ProgressCallback)


class Seen(cbnb.HookCallback):
    """Notes for each call of the hook where in the run it was."""

    def before_fit(self):
        super().before_fit()
        self.seen = []

    def hook(self, m, inp, out):
        self.seen.append((self.training, self.epoch, self.iter))
        return out


def run_to(learn, end, event, **kwargs) -> None:
    error = copy.copy(ENDS[end])
    cbs = [] if error is None else [RaiseIn(event, error, **kwargs)]
    try:
        learn.fit(2, cbs=cbs)
        assert end in ("done", "cancel")
    except (RuntimeError, cbnb.FitInterrupted):
        assert end in ("error", "interrupt")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "event, phase", [("before_fit", "train"), ("after_pred", "train"), ("after_pred", "validate"), ("after_epoch", "train")]
)
@pytest.mark.parametrize("every", [None, 2])
def test_no_hook_is_left_however_the_fit_ends(end, event, phase, every):
    for order in (-30, 70):  # the callback that raises comes before it, or after it
        learn = net_learner(cbs=[Seen(every=every), cbnb.ActivationStats(every=every)])
        run_to(learn, end, event, order=order, phase=phase)
        assert n_hooks(learn.model) == 0
        learn.fit(1)
        assert n_hooks(learn.model) == 0 and len(learn.activation_stats.steps) == (5 if every is None else 3)


@pytest.mark.parametrize("order", [-20, -10, 0, 60])
def test_every_kth_batch_is_seen_alone_whatever_the_order(order):
    learn = net_learner()
    cb = Seen("0", every=2)
    cb.order = order
    learn.fit(2, cbs=cb)
    assert cb.seen == [(True, 0, 0), (True, 0, 2), (True, 0, 4), (True, 1, 1), (True, 1, 3)]  # batches 0, 2, 4, 6, 8


def test_all_batches_of_the_fit_are_seen_but_no_others():
    learn = net_learner()
    cb = Seen("0")

    def inside(self):
        self.learn.validate()
        self.learn.get_preds()

    others = cbnb.Callback(after_pred=inside, after_epoch=inside)
    others.run_in = ("fit",)
    learn.fit(1, cbs=[cb, others])
    assert cb.seen == [(True, 0, i) for i in range(5)] + [(False, 0, i) for i in range(2)]
    learn.add_cb(cb)
    learn.validate()
    learn.get_preds()
    assert len(cb.seen) == 7 and cb.hooks.stored[0].shape == (4, 4)


def test_hooks_follow_the_switches_of_their_callback():
    """With run_valid off, or run switched off within the fit, the hooks went on."""
    learn, cb = net_learner(), Seen("0")
    cb.run_valid = False
    learn.fit(1, cbs=cb)
    assert cb.seen == [(True, 0, i) for i in range(5)]

    def off(self):
        if self.epoch == 0 and self.iter == 2:
            cb.run = False

    learn.fit(1, cbs=[cb, cbnb.Callback(after_batch=off)])
    assert cb.seen == [(True, 0, i) for i in range(3)]


def test_layers_that_run_now_and_then_have_gaps_also_in_what_was_put_aside():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.n = nn.Linear(3, 1), nn.Linear(3, 1), 0

        def forward(self, x):
            self.n += 1
            return self.a(x) if self.n % 3 else self.a(x) + self.b(x)

    learn = net_learner(300, Sometimes(), cbs=cbnb.ActivationStats(with_hist=False))
    learn.fit(1)
    stats = learn.activation_stats
    means = {name: torch.tensor(stats.layer_stats(name)[0]) for name in "ab"}
    assert len(stats.steps) == 300 and not means["a"].isnan().any()
    assert means["b"].isfinite().nonzero().flatten().tolist() == list(range(2, 300, 3))


def test_functions_are_given_for_the_hook_and_for_events_and_keep_the_callbacks_own():
    found = []
    cb = cbnb.HookCallback(
        every=4,
        hook=lambda self, m, inp, out: found.append((self.iter, type(m).__name__, inp[0].requires_grad)),
        before_fit=lambda self: found.append("begins"),
        after_fit=lambda self: found.append("ends"),
        before_batch=lambda self: found.append(n_hooks(self.model)),
    )
    learn = net_learner()
    learn.fit(1, cbs=cb)
    two = [(0, "Linear", False)] * 2
    assert found == ["begins", 2, *two, 0, 0, 0, 2, *[(4, "Linear", False)] * 2, 0, 0, "ends"]


@pytest.mark.filterwarnings("ignore:Full backward hook")  # torch's, about the first layer
def test_gradients_are_seen_with_is_forward_false():
    norms = []
    learn = line_learner(metrics=None)
    cb = cbnb.HookCallback("", is_forward=False, hook=lambda self, m, grads, out: norms.append(out[0].sum().item()))
    learn.fit(1, cbs=cb)  # the model itself is called ''
    assert norms[0] == pytest.approx(2 * (0 - 3))  # of the mean squared error of pred = 0, whose targets have mean 3


def test_a_second_fit_begins_anew_with_the_model_at_hand():
    learn = net_learner()
    stats = cbnb.ActivationStats()
    learn.fit(2, cbs=stats)
    assert len(stats.stats) == 10 and len(stats.stats[0]) == 2
    learn.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
    learn.fit(1, cbs=stats)
    assert len(stats.stats) == 5 and list(stats.layers) == ["0", "2", "3"]
    other = net_learner(n=3)
    other.fit(1, cbs=stats)
    assert stats.steps == [0, 1, 2] and stats.layers["0"] is other.model[0]
    named = cbnb.ActivationStats(modules=learn.model[0])
    with pytest.raises(ValueError, match="the model has no layer Linear"):
        other.fit(1, cbs=named)


def test_statistics_are_those_of_the_outputs_and_stay():
    kept = []
    learn = net_learner(cbs=[stats := cbnb.ActivationStats(modules=nn.ReLU)])
    learn.fit(2, cbs=cbnb.HookCallback("1", hook=lambda self, m, inp, out: kept.append(out.clone()) if self.training else None))
    means, stds, nears = stats.layer_stats("1")
    assert means == pytest.approx([out.mean().item() for out in kept])
    assert stds == pytest.approx([out.std(correction=0).item() for out in kept])
    assert nears == pytest.approx([(out.abs() <= 0.05).float().mean().item() for out in kept])
    limits = stats.limits(0)
    by_hand = torch.stack([torch.histc(out.clamp(*limits), 40, *limits) for out in kept], 1)
    counts = stats.hist(0).expm1()
    assert torch.allclose(counts.sum(0), by_hand.sum(0)) and counts.shape == (40, 10)
    assert (counts.cumsum(0) - by_hand.cumsum(0)).abs().max() < 5  # a value is at most a bin away from its own
    before = stats.stats
    learn.validate()
    learn.get_preds()
    learn.lr_find(show_plot=False, num_it=10)
    assert stats.stats == before


@pytest.mark.parametrize("what", ["get_preds", "summary"])
def test_what_runs_inside_a_fit_does_not_disturb_the_statistics(what):
    plain, disturbed = net_learner(), net_learner()
    plain.fit(1, cbs=(one := cbnb.ActivationStats()))
    inside = cbnb.Callback(after_pred=lambda self: getattr(self.learn, what)() if self.training else None)
    inside.run_in = ("fit",)
    disturbed.fit(1, cbs=[other := cbnb.ActivationStats(), inside])
    assert one.stats == other.stats


def test_training_is_not_changed_by_looking():
    plain, watched = net_learner(), net_learner(cbs=[cbnb.ActivationStats(), cbnb.ActivationStats(every=2)])
    plain.fit(2)
    watched.fit(2)
    assert same_bits(plain.model, watched.model)


class Odd(nn.Module):
    """A recurrent layer, one that is never run, one that gives out nan, and one that gives out a dict."""

    def __init__(self):
        super().__init__()
        self.rnn, self.idle, self.bad, self.named = nn.LSTM(3, 2), nn.Linear(1, 1), nn.Linear(3, 1), Named()

    def forward(self, x):
        out, _ = self.rnn(x)
        self.bad(x / 0)
        return self.named(out)["out"]


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return {"out": (x * self.w).sum(1, keepdim=True), "n": torch.tensor(3), "empty": torch.zeros(0)}


def test_layers_of_any_kind():
    learn = net_learner(model=Odd(), cbs=[stats := cbnb.ActivationStats()])
    learn.fit(1)
    assert list(stats.layers) == ["rnn", "idle", "bad", "named"]
    assert torch.allclose(stats.hist("rnn").expm1().sum(0), torch.tensor(4 * 2 + 2 + 2.0))
    assert torch.allclose(stats.hist("named").expm1().sum(0), torch.tensor(4.0))
    for name in ("idle", "bad"):
        assert all(map(math.isnan, stats.layer_stats(name)[0])) and not stats.hist(name).any()
    assert len(stats.color_dim(return_fig=True).axes) == 4
    stats.plot_layer_stats(return_fig=True)


def test_figures_before_anything_ran_and_after_one_batch():
    stats = cbnb.ActivationStats()
    for ask in (stats.color_dim, stats.plot_layer_stats, lambda: stats.hist(0)):
        with pytest.raises(ValueError, match="recorded yet"):
            ask()
    learn = net_learner(n=1)
    learn.fit(1, cbs=stats)
    image = stats.color_dim(0, return_fig=True).axes[0].images[0]
    assert image.get_array().shape == (40, 1)
    stats.plot_layer_stats(return_fig=True).savefig(io.BytesIO())
    learn.fit(1, cbs=(bare := cbnb.ActivationStats(with_hist=False)))
    assert len(bare.stats) == 1
    with pytest.raises(ValueError, match="with_hist=True"):
        bare.color_dim()


def test_nothing_waits_for_the_device():
    rows = Rows()  # meta tensors have no values: whoever reads one gets an error
    rows.extend([summarized((torch.empty(8, 3, device="meta"), torch.empty(2, device="meta"))), None] * 3)
    assert rows.chunks[0].shape == (6, 45)


def test_no_value_is_lost_between_ranges():
    seed()
    counts, lows = torch.rand(20, 40) * 100, torch.randn(20)
    for limits in ((-1, 1), (-9, 9), (5, 6), (-0.001, 0.001)):
        there = rebinned(counts, lows, lows + torch.rand(20), limits)
        assert torch.allclose(there.sum(1), counts.sum(1)) and there.min() > -1e-3


def test_a_model_is_copied_and_saved_in_the_middle_of_a_fit():
    copies = []

    def save(self):
        file = io.BytesIO()
        torch.save(self.model, file)
        copies.append(copy.deepcopy(self.model))
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))

    learn = net_learner(cbs=[stats := cbnb.ActivationStats()])
    learn.fit(1, cbs=cbnb.Callback(after_train=save))
    before = stats.stats
    for model in copies:
        model(torch.randn(4, 3))
    assert stats.stats == before and len(copies) == 2


def test_a_learner_with_statistics_is_exported(tmp_path):
    learn = net_learner(cbs=cbnb.ActivationStats(), path=tmp_path)
    learn.fit(1)
    loaded = cbnb.load_learner(learn.export(), trust=True)
    assert loaded.activation_stats.stats == learn.activation_stats.stats


def test_a_callback_is_removed_in_the_middle_of_a_fit():
    learn = net_learner(cbs=[stats := cbnb.ActivationStats()])
    learn.fit(1, cbs=cbnb.Callback(after_batch=lambda self: self.learn.remove_cb(stats) if self.learn.train_iter == 3 else None))
    assert n_hooks(learn.model) == 0 and len(stats.steps) in (2, 3)


def test_wrong_arguments_are_refused_with_a_sentence():
    for make, words in (
        (lambda: cbnb.HookCallback(), "has no hook"),
        (lambda: cbnb.ActivationStats(every=0), "every=0 should be 1 or more"),
        (lambda: cbnb.ActivationStats(bins=1.5), "bins=1.5 should be a whole number"),
        (lambda: cbnb.ActivationStats(near_zero=-1), "near_zero=-1 should be"),
        (lambda: cbnb.HookCallback(hook=print, after_bacth=print), "did you mean 'after_batch'"),
        (lambda: find_layers(nn.ReLU(), "head"), "the model has no layer 'head'"),
        (lambda: cbnb.MixUp(-1), "alpha=-1 should be"),
        (lambda: cbnb.CutMix("1"), "leave out the quotes"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            make()


# --- ShowGraph ---


def test_outside_of_notebooks_a_line_at_the_end(capsys):
    learn = net_learner(cbs=cbnb.ShowGraph)
    learn.fit(2)
    assert capsys.readouterr().out.startswith("loss ")
    learn.validate()
    learn.get_preds()
    learn.lr_find(show_plot=False, num_it=10)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("end", ENDS)
def test_the_last_state_is_drawn_however_the_fit_ends(end, monkeypatch):
    shown = fake_display(monkeypatch)
    learn = net_learner(cbs=cbnb.ShowGraph)
    with cbnb.display_as("plain"):
        run_to(learn, end, "after_batch", order=70, when=lambda learn: learn.train_iter == 7)
    assert {len(bundle) for bundle in shown} == {2}
    steps = 10 if end == "done" else 7
    assert shown[-1]["text/plain"].startswith(f"losses over {steps} training batches; train, smoothed from")


def fake_display(monkeypatch) -> list:
    """What would be shown in a notebook, first or as an update."""
    display = pytest.importorskip("IPython.display")
    shown = []

    class Handle:
        def update(self, bundle, **kwargs):
            shown.append(bundle)

    def show(bundle, **kwargs):
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr(display, "display", show)
    return shown


def test_without_validation_with_metrics_and_from_a_later_epoch(monkeypatch):
    from matplotlib import pyplot

    before = pyplot.get_fignums()
    shown = fake_display(monkeypatch)
    with cbnb.display_as("plain"):
        learn = line_learner(valid=False, cbs=cbnb.ShowGraph)
        learn.fit(1)
        assert "valid: no values" in shown[-1]["text/plain"]
        learn = line_learner(metrics=lambda_metric, cbs=[cbnb.ShowGraph, cbnb.Recorder(train_metrics=True)])
        learn.fit(3, start_epoch=1)
        loss = learn.recorder.last().epochs[-1]["valid_loss"]
        assert f"lowest {loss:.4g}"[:10] in shown[-1]["text/plain"] and learn.show_graph.total == 4
    assert pyplot.get_fignums() == before


def lambda_metric(pred, y):
    return torch.tensor(1000.0)


def test_a_picture_that_fails_does_not_stop_the_training(monkeypatch):
    monkeypatch.setattr("cbnb.display.show_graph.run_figure", lambda *args: 1 / 0)
    learn = line_learner(cbs=cbnb.ShowGraph)
    with cbnb.display_as("plain"), pytest.warns(UserWarning, match="ShowGraph could not show the losses.*ZeroDivisionError") as caught:
        learn.fit(3)
    assert len(caught) == 1 and learn.recorder.last().status == "done" and learn.undo is None


# --- MixUp and CutMix ---


def picture_learner(loss_func, targets, **kwargs) -> cbnb.Learner:
    seed()
    x = torch.rand(24, 1, 6, 6)
    batches = list(zip(x.split(8), targets.split(8)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches[:1], device="cpu"), model, loss_func, lr=0.01, **kwargs)
    learn.logger = quiet
    return learn.remove_cb(cbnb.ProgressCallback)


CLASSES = torch.arange(24) % 3


@pytest.mark.parametrize("mix", [cbnb.MixUp, cbnb.CutMix])
def test_the_mixed_loss_is_cross_entropy_with_mixed_targets(mix):
    losses = []

    def check(self):
        own, theirs = (nn.functional.one_hot(y, 3) for y in (self.first, self.learn.cut_or_up.partners[0]))
        lam = self.learn.cut_or_up.lam
        soft = nn.functional.cross_entropy(self.pred, lam * own + (1 - lam) * theirs)
        losses.append((soft.item(), self.loss.item(), self.loss_grad.item()))

    before = cbnb.Callback(before_batch=lambda self: setattr(self.learn.checker, "first", self.yb[0]))
    before.order, checker = -20, cbnb.Callback(after_loss=check)
    for cb in (before, checker):
        cb.run_valid = False
    learn = picture_learner(nn.CrossEntropyLoss(), CLASSES, cbs=[cb := mix(), before])
    learn.cut_or_up, learn.checker = cb, checker
    learn.fit(3, cbs=checker)
    assert len(losses) == 9
    for soft, loss, loss_grad in losses:
        assert loss == loss_grad == pytest.approx(soft, rel=1e-5)
    assert list(learn.recorder.last().raw_losses) == pytest.approx([loss for _, loss, _ in losses])


@pytest.mark.parametrize("mix", [cbnb.MixUp, cbnb.CutMix])
@pytest.mark.parametrize(
    "loss_func, targets",
    [(nn.CrossEntropyLoss(), CLASSES), (nn.MSELoss(), torch.rand(24, 3)), (lambda p, y: (p - y).abs().mean(), torch.rand(24, 3))],
)
def test_any_loss_with_training_metrics_and_untouched_validation(mix, loss_func, targets):
    def error(pred, y):
        return ((pred.argmax(1) if y.ndim == 1 else pred) - y).float().abs().mean()

    learn = picture_learner(loss_func, targets, metrics=error, cbs=[cbnb.Recorder(train_metrics=True), mix])
    learn.fit(2)
    loss, metric = learn.recorder.last().epochs[-1]["valid_loss"], learn.recorder.last().epochs[-1]["valid_error"]
    learn.remove_cb(mix)
    assert learn.loss_func is loss_func and learn.validate() == pytest.approx([loss, metric], abs=1e-6)
    assert learn.recorder.last().epochs[-1]["train_error"] is not None


@pytest.mark.filterwarnings("ignore:MixUp was on another learner")
def test_mixing_is_repeatable_and_seen_by_lr_find():
    def losses(cbs):
        learn = picture_learner(nn.CrossEntropyLoss(), CLASSES, cbs=cbs)
        found = learn.lr_find(show_plot=False, num_it=20)
        torch.manual_seed(4)
        learn.fit(1)
        return list(found.losses), list(learn.recorder.last().raw_losses)

    again = cbnb.MixUp()  # what it has drawn and not used is not used in the next fit
    assert losses(cbnb.MixUp) == losses(again) == losses(again)
    assert losses(cbnb.MixUp)[0] != losses(None)[0]


def test_predictions_inside_a_mixed_fit_are_those_of_the_plain_items():
    seen = []

    def inside(self):
        probs, targets = self.learn.get_preds()
        seen.append((probs.sum(1), targets, self.learn.validate()))

    learn = picture_learner(nn.CrossEntropyLoss(), CLASSES, cbs=cbnb.MixUp)
    inside = cbnb.Callback(after_train=inside)
    inside.run_in = ("fit",)
    learn.fit(1, cbs=inside)
    [(sums, targets, [loss])] = seen
    assert torch.allclose(sums, torch.ones(8)) and torch.equal(targets, CLASSES[:8])
    assert loss == pytest.approx(learn.recorder.last().epochs[0]["valid_loss"])


@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_a_callback_that_scales_the_loss_leaves_the_recorded_one():
    scale = cbnb.Callback(after_loss=lambda self: self.learn.loss_grad.mul_(128.0) if self.training else None)
    plain, scaled = (picture_learner(nn.CrossEntropyLoss(), CLASSES, opt_func=torch.optim.SGD, cbs=cbnb.MixUp) for _ in range(2))
    for learn, cbs in ((plain, None), (scaled, scale)):
        torch.manual_seed(1)
        learn.fit(1, lr=0.0, cbs=cbs)
    assert list(plain.recorder.last().raw_losses) == list(scaled.recorder.last().raw_losses)


def test_several_inputs_dicts_and_no_targets():
    x, y = torch.rand(4, 2), torch.rand(4, 2)

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, a, b):
            return (a + b) * self.w

    for dls in (cbnb.DataLoaders([(x, y, x + y)], n_inp=2), cbnb.DataLoaders([dict(a=x, b=y, t=x + y)], targets="t")):
        learn = cbnb.Learner(dls, Sum(), nn.MSELoss(), lr=0.0, default_cbs=False)
        losses = []
        watch = cbnb.Callback(after_batch=lambda self: losses.append(self.pred))
        torch.manual_seed(0)
        learn.fit(1, cbs=[mix := cbnb.MixUp(1.0), watch])
        torch.manual_seed(0)
        order, total = torch.randperm(4), x + y
        assert torch.allclose(losses[0], mix.lam * total + (1 - mix.lam) * total[order])


def test_a_mixed_fit_that_fails_leaves_nothing_behind():
    loss_func = nn.MSELoss()
    learn = line_learner(loss_func=loss_func, cbs=cbnb.MixUp)
    run_to(learn, "error", "after_loss", order=5)
    assert learn.loss_func is loss_func and learn.undo is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(1)
    assert len(line_batches()) == 2 and learn.recorder.last().n_steps == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: cbnb.TrainStep(loss_scale=8.0),
        lambda: cbnb.callbacks.steps.ClipStep(value=1e9),
        lambda: SumStep(None, nn.MSELoss(reduction="none")),
    ],
)
def test_mixing_with_a_step_of_ones_own(make):
    """The loss of the partners was not scaled as that of the items was."""

    def run(step):
        seed(1)
        learn = line_learner(6, train_step=step, cbs=cbnb.MixUp(1.0))
        learn.fit(1)
        return [*learn.recorder.history[-1].raw_losses, learn.model.a.item(), learn.model.b.item()]

    torch.testing.assert_close(run(None), run(make()), rtol=2e-5, atol=1e-6)


class SumStep(cbnb.TrainStep):
    """A vector loss, of which the mean is taken."""

    def loss(self, learn):
        super().loss(learn)
        learn.loss_grad = learn.loss_grad / 8


@pytest.mark.parametrize(
    "make",
    [
        lambda model, opt: lambda x, y: ((model(x) - y) ** 2).mean(),
        lambda model, opt: cbnb.callbacks.steps.ClosureStep(model, nn.MSELoss(), opt),
        lambda model, opt: cbnb.MultiLossStep(model, [opt], losses=lambda pred, y: (((pred - y) ** 2).mean(),)),
        lambda model, opt: cbnb.MultiLossStep(lambda x, y: (((model(x) - y) ** 2).mean(),), [opt]),
    ],
)
@pytest.mark.parametrize("with_loss", [True, False])
def test_losses_that_cannot_be_mixed_are_refused(make, with_loss):
    model = Line()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    learn = line_learner(
        model=model, lr=1e-3, opt_func=torch.optim.AdamW, train_step=make(model, opt), loss_func=nn.MSELoss() if with_loss else None
    )
    with pytest.raises(ValueError, match="loss"):
        learn.fit(1, cbs=cbnb.MixUp)
    assert ab(learn) == (0, 0)


@pytest.mark.parametrize("alpha", [0, -1, math.nan])
def test_weights_that_would_mix_nothing_are_refused(alpha):
    for mix in (cbnb.MixUp, cbnb.CutMix):
        with pytest.raises(ValueError, match="alpha="):
            mix(alpha)


def test_two_that_mix_are_refused_together():
    """The loss of the second one knew nothing of the first one's partners, and came out wrong, silently."""
    x, y = torch.rand(4, 1, 2, 2), torch.rand(4, 1)
    learn = line_learner(dls=cbnb.DataLoaders([(x, y)], device="cpu"), model=nn.Sequential(nn.Flatten(), nn.Linear(4, 1)))
    with pytest.raises(ValueError, match="MixUp and CutMix.*would both mix the inputs"):
        learn.fit(1, cbs=[cbnb.MixUp, cbnb.CutMix])
    off = cbnb.CutMix()
    off.run = False
    learn.fit(1, cbs=[cbnb.MixUp, off])


def test_what_a_cancelled_phase_has_found_is_not_counted_as_a_later_batch():
    stats = cbnb.ActivationStats()

    def stop(cb):
        if cb.epoch == 0 and cb.iter == 1:
            raise cbnb.CancelTrainException

    def leave_out(cb):
        if cb.epoch == 1 and cb.iter == 0:
            raise cbnb.CancelBatchException

    learn = line_learner(3, valid=False, model=nn.Linear(8, 8), cbs=stats)
    learn.fit(2, cbs=cbnb.Callback(after_pred=stop, before_batch=leave_out))
    assert stats.steps == [0, 2, 3]


def test_gradients_of_a_first_layer_are_seen_without_a_warning():
    """Torch says in each backward pass that the inputs of the model have no gradients, as they never have."""
    learn = net_learner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters = list(warnings.filters)
        learn.fit(1, cbs=cbnb.HookCallback(is_forward=False, hook=lambda self, m, grads, out: None))
        assert warnings.filters == filters


@pytest.mark.parametrize("args", [3, 4])
def test_a_hook_function_may_have_fastais_three_arguments_or_the_callback_first(args):
    """fastai calls f(module, input, output); with four parameters f gets the callback before these."""
    seen = []
    hook = (lambda m, i, o: seen.append(o)) if args == 3 else (lambda cb, m, i, o: seen.append(cb))
    cb = cbnb.HookCallback(hook=hook)
    line_learner(1, model=nn.Linear(1, 1), dls=[(torch.ones(4, 1), torch.ones(4, 1))]).fit(1, cbs=cb)
    assert len(seen) == 1 and (seen[0] is cb if args == 4 else seen[0].shape == (4, 1))


def test_a_hook_of_other_arguments_is_refused_when_it_is_made():
    """Two parameters, also of a method, are a TypeError at construction that shows the signature; not one in the first batch."""
    with pytest.raises(TypeError, match=r"<lambda>\(m, i\) should take \(module, input, output\)"):
        cbnb.HookCallback(hook=lambda m, i: None)

    class Short(cbnb.HookCallback):
        def hook(self, m, out):
            pass

    with pytest.raises(TypeError, match=r"Short.hook\(self, m, out\) should take \(self, module, input, output\)"):
        Short()


def test_remove_end_is_understood():
    """fastai's `remove_end=True` is what happens here anyway, and False names the other way."""
    assert isinstance(cbnb.HookCallback(hook=lambda m, i, o: None, remove_end=True), cbnb.HookCallback)
    with pytest.raises(TypeError, match="removed when the fit ends.*Hooks"):
        cbnb.HookCallback(hook=lambda m, i, o: None, remove_end=False)


# --- Hooks by themselves ---


def test_a_hook_keeps_the_latest_output_until_it_is_removed():
    layer, x = nn.Linear(2, 1), torch.ones(3, 2)
    with cbnb.hook_output(layer) as hook:
        assert hook.stored is None
        out = layer(x)
        assert torch.equal(hook.stored, out) and not hook.stored.requires_grad and out.requires_grad
        layer(2 * x)
        assert not torch.equal(hook.stored, out)
    stored = hook.stored
    layer(3 * x)
    hook.remove()  # again
    assert hook.stored is stored and n_hooks(layer) == 0
    with cbnb.hook_output(layer, detach=False) as hook:
        assert layer(x) is hook.stored


def test_a_hook_sees_gradients_with_grad():
    """Of the mean of three outputs, each a third."""
    layer = nn.Linear(2, 1)
    with cbnb.hook_output(layer, grad=True) as hook, cbnb.hook_outputs([layer], grad=True) as hooks:
        layer(torch.ones(3, 2, requires_grad=True)).mean().backward()
    assert torch.allclose(hook.stored[0], torch.full((3, 1), 1 / 3)) and torch.equal(hooks.stored[0][0], hook.stored[0])


class Somewhere(torch.Tensor):
    """Counts how often it is brought to the CPU."""

    brought = 0

    def cpu(self):
        type(self).brought += 1
        return super().cpu()


@pytest.mark.parametrize("cpu, detach, n", [(True, True, 2), (False, True, 0), (True, False, 0)])
def test_inputs_and_outputs_are_brought_to_the_cpu_if_asked_for(cpu, detach, n, monkeypatch):
    monkeypatch.setattr(Somewhere, "brought", 0)
    given, layer = [], nn.ReLU()
    x = torch.ones(2, requires_grad=True)
    with Hook(layer, lambda m, inp, out: given.append((inp[0].requires_grad, out.requires_grad)), True, detach, cpu):
        layer(x.as_subclass(Somewhere))
    assert given == [(not detach, not detach)] and Somewhere.brought == n
    with cbnb.hook_output(layer, cpu=cpu, detach=detach), cbnb.hook_outputs([layer], cpu=cpu, detach=detach):
        layer(x.as_subclass(Somewhere))
    assert Somewhere.brought == 3 * n


def test_a_hook_may_pass_over_some():
    seen, wanted = [], [True, False, True]
    layer = nn.ReLU()
    with Hook(layer, lambda m, inp, out: seen.append(out.item()), when=lambda: wanted.pop(0)):
        for value in (1.0, 2.0, 3.0):
            assert layer(torch.tensor(value)) == value
    assert seen == [1, 3]


def test_several_hooks_are_one_sequence():
    layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with cbnb.hook_outputs([layers[0], layers[2]]) as hooks:
        assert hooks.stored == [None, None] and len(hooks) == 2 == n_hooks(layers)
        out = layers(torch.ones(4, 2))
        assert [t.shape for t in hooks.stored] == [(4, 3), (4, 1)] and torch.equal(hooks[1].stored, out) and list(hooks)[0] is hooks[0]
    assert n_hooks(layers) == 0


def test_of_several_hooks_rather_none_than_some():
    layer = nn.Linear(2, 1)
    with pytest.raises(TypeError, match="'no module' cannot be hooked: pass a module"):
        cbnb.hook_outputs([layer, "no module"])
    assert n_hooks(layer) == 0


@pytest.mark.parametrize(
    "which, paramless, names",
    [
        (None, False, ["0", "2.0"]), (None, True, ["0", "1", "2.0"]), ("2", False, ["2"]), (["2.0", "0"], False, ["0", "2.0"]), (nn.ReLU, False, ["1"]),
        ((nn.ReLU, "2"), False, ["1", "2"]), ("", False, [""]), (nn.Linear, False, ["0", "2.0"]),
    ],
)  # fmt: skip
def test_which_layers_are_meant(which, paramless, names):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1)))
    found = find_layers(model, which, paramless)
    assert list(found) == names and all(found[name] is model.get_submodule(name) for name in names)
    assert find_layers(model, model[2]) == {"2": model[2]} and find_layers(model, [model[1], model[2]]) == {"1": model[1], "2": model[2]}


@pytest.mark.parametrize(
    "which, said",
    [
        (nn.Tanh, "of the class Tanh, which you passed in modules: pass a class of its layers: Linear, ReLU$"),
        ("x", "'x', which you passed in modules: pass '0', '1' or '2'$"),
        (["0", "x"], "'x', which .*: pass '0', '1' or '2'$"),
        (0, "0, which .*: did you mean '0'?"),
    ],
)
def test_layers_that_are_not_there_are_named_with_those_that_are(which, said):
    with pytest.raises(ValueError, match="^the model has no layer " + said):
        find_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), which)


@pytest.mark.parametrize(
    "kwargs, flags", [({}, (False, False)), (dict(detach=False), (True, True)), (dict(include_paramless=True), (False, False))]
)
def test_a_hook_callback_passes_its_settings_on(kwargs, flags):
    seen = []
    cb = cbnb.HookCallback(
        hook=lambda m, inp, out: seen.append((type(m).__name__, inp[0].requires_grad or m.training and out.requires_grad)), **kwargs
    )
    cb.run_valid = False
    net_learner(1).fit(1, cbs=cb)
    layers = ["Linear", "ReLU", "Linear"] if "include_paramless" in kwargs else ["Linear"] * 2
    assert seen == [(name, flags[0]) for name in layers]


def test_functions_for_events_may_be_left_out():
    cb = cbnb.HookCallback(hook=lambda m, i, o: None, after_fit=None)
    net_learner(1).fit(1, cbs=cb)
    assert list(cb.layers) == ["0", "2"] and not cb.hooked


# --- Statistics ---


@pytest.mark.parametrize("bins", [0, 4])
def test_what_is_kept_of_an_output(bins):
    """Of 0, 0.05, 1 and 3: between 0 and 3 three fall into the first half."""
    kept = summarized(
        dict(a=torch.tensor([[0.0, 3.0]]), b=(torch.tensor([0.05]), torch.tensor([7])), c=[torch.tensor([1.0]).double()]), 0.05, bins
    )
    values = [0, 0.05, 1, 3]
    mean = sum(values) / 4
    std = (sum((v - mean) ** 2 for v in values) / 4) ** 0.5
    assert kept.tolist() == pytest.approx([mean, std, 0.5, 0, 3, *([2, 1, 0, 1] if bins else [])])
    assert summarized(torch.tensor([1]), 0.05, bins) is summarized(torch.zeros(0), 0.05, bins) is None
    assert len(summarized(torch.ones(3))) == 45 and summarized(torch.ones(3), 0.05, 4).tolist() == [1, 0, 0, 1, 1, 3, 0, 0, 0]
    half = summarized(torch.tensor([60000.0, 60000.0]).half(), 0.05, 2)
    assert half.dtype == torch.float32 and half.tolist() == [60000, 0, 0, 60000, 60000, 2, 0]


@pytest.mark.parametrize(
    "counts, low, high, limits, there",
    [
        ([2.0, 4.0], 0.0, 2.0, (0.0, 4.0), [6.0, 0.0]),
        ([2.0, 4.0], 0.0, 2.0, (0.5, 1.5), [2.0, 4.0]),  # what is outside is counted at the border
        ([2.0, 4.0], 0.0, 2.0, (-2.0, 2.0), [0.0, 6.0]),
        ([2.0, 4.0, 6.0], 0.0, 3.0, (0.0, 1.5), [1.0, 1.0, 10.0]),
        ([6.0, 0.0, 0.0], 1.0, 1.0, (0.0, 3.0), [0.0, 6.0, 0.0]),  # of one value
    ],
)
def test_histograms_over_a_common_range(counts, low, high, limits, there):
    one = rebinned(torch.tensor([counts]), torch.tensor([low]), torch.tensor([high]), limits)
    assert one.tolist() == [pytest.approx(there, abs=1e-5)] and one.dtype == torch.float32


def test_rows_have_gaps_as_wide_as_the_others():
    rows = Rows()
    assert rows.read().shape == (0, 1)
    rows.extend([None, None])
    assert rows.read().shape == (2, 1) and rows.read().isnan().all()
    rows.extend([torch.tensor([1.0, 2.0]), None])
    table = rows.read()
    assert table.shape == (4, 2) and table.isnan().tolist() == [[True] * 2] * 2 + [[False] * 2, [True] * 2] and table[2].tolist() == [1, 2]
    assert len(rows.chunks) == 1 and rows.read().shape == (4, 2)


class Says(nn.Module):
    """Gives out the values that it is told, one row a batch."""

    def __init__(self, rows):
        super().__init__()
        self.w, self.rows, self.n = nn.Parameter(torch.zeros(())), rows, 0

    def forward(self, x):
        self.n += 1
        return torch.tensor(self.rows[(self.n - 1) % len(self.rows)]) + 0 * self.w


def told(rows, **kwargs) -> cbnb.ActivationStats:
    """Statistics of a model with the one layer '', one batch for each row."""
    stats = cbnb.ActivationStats(**{"modules": ""} | kwargs)
    learn = line_learner(
        dls=[(torch.zeros(1), torch.zeros(1))] * len(rows), model=Says(rows), loss_func=lambda pred, y: pred.sum(), cbs=stats
    )
    with learn.no_logging():
        learn.fit(1)
    return stats


@pytest.mark.parametrize(
    "rows, limits",
    [
        ([[0.0, 10.0]], (0, 10)),
        ([[0.12, 9.9]] * 3, (0, 10)),
        ([[4.0, 4.0]], (2, 6)),  # one value: half of it to both sides
        ([[-4.0, -4.0]], (-6, -2)),
        ([[0.0, 0.0]], (0, 1)),
        ([[math.nan, 1.0]], (0, 1)),
        ([[math.nan, 1.0], [0.0, 10.0]], (0, 10)),
        ([[0.0] * 999 + [1000.0]], (0, 160)),  # five deviations of 31.6 from the mean of 1
        ([[0.0] * 999 + [-1000.0]], (-160, 0)),
        ([[0.0, 1.0]] * 99 + [[0.0, 50.0]], (0, 1)),  # one batch of a hundred does not count
        ([[0.0, 1.0]] * 99 + [[-50.0, 1.0]], (0, 1)),
    ],
)
def test_the_range_that_holds_almost_all_outputs(rows, limits):
    assert told(rows).limits(0) == pytest.approx(limits)


def test_histograms_of_a_layer():
    """Rows of a table for each bin, the lowest first; a column for each batch."""
    stats = told([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [math.nan, 1.0, 2.0]], bins=2)
    assert stats.hist(0, (0, 1)).expm1().tolist() == [pytest.approx([1, 3, 0]), pytest.approx([2, 0, 0])]
    assert stats.hist("").shape == (2, 3) == stats.hist(-1).shape
    for limits in ((1, 0), (1, 1)):
        with pytest.raises(ValueError, match=rf"limits=\({limits[0]}, {limits[1]}\) should be \(low, high\)"):
            stats.hist(0, limits)
    with pytest.raises(ValueError, match="no histograms were recorded: pass ActivationStats"):
        told([[1.0]], with_hist=False).hist(0)


@pytest.mark.parametrize("i, said", [(1, "no layer 1: only one layer was recorded, so pass 0"), (-2, "no layer -2"), ("x", "no layer 'x'")])
def test_a_layer_that_is_not_there(i, said):
    with pytest.raises(IndexError, match=said):
        told([[1.0]]).layer_stats(i)


def test_statistics_by_name_and_by_number():
    stats = told([[0.0, 1.0], [2.0, 2.0]], near_zero=1.0)
    assert stats.layer_stats(0) == stats.layer_stats("") == stats.layer_stats(-1) == ([0.5, 2], [0.5, 0], [1, 0])
    assert stats.stats == [[dict(mean=0.5, std=0.5, near_zero=1)], [dict(mean=2, std=0, near_zero=0)]]


def test_statistics_of_many_batches_are_put_together(monkeypatch):
    """A stack of 256 at a time; the rest when it is read."""
    stats = told([[float(i), float(i)] for i in range(600)], with_hist=False)
    assert [len(chunk) for chunk in stats.rows[""].chunks] == [256, 256] and len(stats.waiting) == 88
    assert stats.layer_stats(0)[0] == list(range(600)) and stats.steps == list(range(600)) and not stats.waiting


def test_every_kth_batch_has_statistics():
    stats = told([[float(i)] for i in range(7)], every=3)
    assert stats.steps == [0, 3, 6] and stats.layer_stats(0)[0] == [0, 3, 6]


def layers_learner(n: int, **kwargs) -> cbnb.ActivationStats:
    """Statistics of `n` layers over three batches."""
    seed()
    model, stats = nn.Sequential(*(nn.Linear(2, 2) for _ in range(n))), cbnb.ActivationStats(**kwargs)
    learn = line_learner(dls=[(torch.randn(4, 2), torch.zeros(4, 2))] * 3, model=model, lr=1e-30, cbs=stats)  # no weight changes
    with learn.no_logging():
        learn.fit(1)
    return stats


@pytest.mark.parametrize(
    "n, rows, cols, size",
    [(1, 1, 1, (7.4, 3.2)), (2, 1, 2, (6.2, 2.4)), (4, 2, 3, (9.3, 4.8)), (9, 3, 3, (9.3, 7.2)), (10, 3, 4, (12.4, 7.2))],
)
def test_the_colour_map_of_layers(n, rows, cols, size):
    stats = layers_learner(n, bins=5)
    fig = stats.color_dim(return_fig=True)
    axes = [ax for ax in fig.axes if ax.get_title("left")]
    grid = axes[0].get_subplotspec().get_topmost_subplotspec().get_gridspec()
    assert list(fig.get_size_inches()) == pytest.approx(size) and (grid.nrows, grid.ncols) == (rows, cols)
    assert [ax.get_title("left") for ax in axes] == [f"{i} Linear" for i in range(n)] and len(fig.axes) == n + (n == 1)
    assert [ax.get_ylabel() for ax in axes] == ["output" if i % cols == 0 else "" for i in range(n)]
    assert [ax.get_xlabel() for ax in axes] == ["step" if i + cols >= n else "" for i in range(n)]
    for i, ax in enumerate(axes):
        [image] = ax.images
        assert (image.get_array() == stats.hist(i).numpy()).all() and image.get_extent() == pytest.approx([0, 3, *stats.limits(i)])
        assert image.origin == "lower" and ax.get_aspect() == "auto" and not ax.xaxis.get_gridlines()[0].get_visible()
    assert n > 1 or fig.axes[-1].get_ylabel() == "log(1 + count)"


def test_the_colour_map_of_one_layer_over_a_given_range(monkeypatch):
    shown = []
    monkeypatch.setattr("cbnb.callbacks.hooks.show", lambda fig, text, return_fig: shown.append((text, return_fig)) or fig)
    stats = layers_learner(3, every=2)
    image = stats.color_dim("1", (-1, 2)).axes[0].images[0]
    assert image.get_extent() == [0, 4, -1, 2] and (image.get_array() == stats.hist(1, (-1, 2)).numpy()).all()  # batches 0 and 2
    stats.color_dim()
    assert shown == [
        ("color map of the outputs of 1 Linear over 2 batches", None),
        ("color map of the outputs of 0 Linear, 1 Linear, 2 Linear over 2 batches", None),
    ]


@pytest.mark.parametrize("n", [1, 3])
def test_the_figure_of_layer_statistics(n, monkeypatch):
    shown = []
    monkeypatch.setattr("cbnb.callbacks.hooks.show", lambda fig, text, return_fig: shown.append((text, return_fig)) or fig)
    stats = layers_learner(n, near_zero=0.25)
    fig = stats.plot_layer_stats()
    assert [ax.get_title("left") for ax in fig.axes] == ["mean", "standard deviation", "share within 0.25 of 0"] and list(
        fig.get_size_inches()
    ) == [9, 2.7]
    for k, ax in enumerate(fig.axes):
        assert ax.get_xlabel() == "step" and [list(line.get_ydata()) for line in ax.lines] == [stats.layer_stats(i)[k] for i in range(n)]
        assert all(list(line.get_xdata()) == [0, 1, 2] and line.get_marker() == "." and line.get_linewidth() == 1.3 for line in ax.lines)
    assert fig.axes[2].get_ylim() == (-0.03, 1.03) and not any(ax.texts for ax in fig.axes[:2])
    names = [f"{i} Linear  {stats.layer_stats(i)[2][-1]:.4g}" for i in range(n)] if n > 1 else []
    assert [text.get_text() for text in fig.axes[2].texts if text.get_text() != "—"] == names
    title = fig.get_suptitle()
    assert (
        title == ("0 Linear" if n == 1 else "")
        and shown[0][0].startswith("3 batches; 0 Linear, std from")
        and shown[0][0].count("Linear") == n
    )
    colors = [line.get_color() for line in fig.axes[0].lines]
    import matplotlib

    plasma = matplotlib.colormaps["plasma"]
    assert colors == ([COLORS["train"]] if n == 1 else [plasma(0.36), plasma(0.6), plasma(0.84)])
    assert [len(ax.lines) for ax in stats.plot_layer_stats("0", True).axes] == [1] * 3 and shown[1][1] is True


def test_statistics_of_many_steps_are_thinned():
    fig = told([[float(i % 7)] for i in range(600)], with_hist=False).plot_layer_stats(return_fig=True)
    assert len(fig.axes[0].lines[0].get_xdata()) == 400 and fig.axes[0].lines[0].get_marker() == "None"


# --- ShowGraph: what is drawn, and when ---


@pytest.mark.parametrize(
    "bounds, values, found",
    [
        (None, [], None), (None, [math.nan, math.inf], None), (None, [1.0, 2.0], (1, 2)), (None, [1.05, 1.95], (1, 2)), ((1, 2), [1.5], (1, 2)), ((1, 2), [], (1, 2)),
        ((1, 2), [2.5], (1, 2.5)), ((1, 2), [0.9, math.nan], (0.5, 2)), (None, [3.0], (3, 4)), (None, [0.0], (0, 0.2)), (None, [-3.0], (-3, -2)), (None, [0.013, 0.987], (0, 1)),
    ],
)  # fmt: skip
def test_bounds_grow_to_round_numbers(bounds, values, found):
    there = grown(bounds, values)
    assert there == (found if found is None else pytest.approx(found)) and (there is bounds or there != bounds)


def test_a_run_in_a_frame_for_the_whole_of_it():
    """Of twenty steps, the first two may be higher than the frame, and a validation loss may not."""
    learn = line_learner(
        20, lr=1e-4, loss_func=lambda pred, y: (pred - y).square().mean() * (9 if learn.training and learn.iter < 2 else 1)
    )
    with learn.no_logging():
        learn.fit(1)
    run = learn.recorder.last()
    losses = [*list(run.raw_losses)[2:], *list(run.losses)[2:], run.epochs[0]["valid_loss"]]
    fig, bounds = run_figure(run, 60)
    assert bounds == grown(None, losses) and bounds != grown(None, [*losses, run.raw_losses[0]])
    [ax] = fig.axes
    room = 0.03 * (bounds[1] - bounds[0])
    assert ax.get_xlim() == pytest.approx((0, 60.6)) and ax.get_ylim() == pytest.approx((bounds[0] - room, bounds[1] + room))
    assert [line.get_label() for line in ax.lines][:3] == ["train, each batch", "train, smoothed", "valid"]
    fig, same = run_figure(run, None, (-50.0, 90.0))
    assert same == (-50, 90) and fig.axes[0].get_xlim()[1] < 25
    pyplot.close("all")


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("cbnb.display.show_graph.time.perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize("took, n_shown", [(0.0, 4), (0.14, 2), (0.06, 3)])
def test_a_figure_that_takes_long_is_drawn_less_often(took, n_shown, monkeypatch, clock):
    """Twenty times as long as it took, there is no other; an epoch takes a second. The last state is drawn in any case."""
    shown = fake_display(monkeypatch)

    def slow(*args):
        clock[0] += took
        return run_figure(*args)

    monkeypatch.setattr("cbnb.display.show_graph.run_figure", slow)
    learn = line_learner(cbs=[cbnb.ShowGraph, cbnb.Callback(before_epoch=lambda self: clock.append(clock.pop() + 1))])
    with cbnb.display_as("plain"):
        learn.fit(4)
    assert len(shown) == n_shown and shown[-1]["text/plain"].startswith("losses over 8 training batches")


def test_each_figure_takes_the_place_of_the_one_before(monkeypatch):
    display, calls = pytest.importorskip("IPython.display"), []

    class Handle:
        def update(self, bundle, **kwargs):
            calls.append(("update", bundle["text/plain"], kwargs))

    monkeypatch.setattr(
        display, "display", lambda bundle, display_id=None, **kwargs: calls.append((display_id, bundle["text/plain"], kwargs)) or Handle()
    )
    learn = line_learner(cbs=cbnb.ShowGraph)
    for _ in range(2):
        start = len(calls)
        with cbnb.display_as("plain"):
            learn.fit(2)
        assert [how for how, *_ in calls[start:]][:1] == [True] and all(how == "update" for how, *_ in calls[start + 1 :])
        assert all(kwargs["raw"] is True and kwargs["metadata"]["image/png"]["alt"] == text for _, text, kwargs in calls)
        assert len(calls) > start and "valid from" in calls[-1][1]


def test_the_line_at_the_end_says_how_the_losses_went(capsys, monkeypatch):
    learn = line_learner(3, cbs=cbnb.ShowGraph)
    with learn.no_logging():
        learn.fit(1)
    losses = learn.recorder.losses
    line = capsys.readouterr().out
    assert line == f"loss {sparkline(losses)} {losses[0]:.4g} to {losses[-1]:.4g}\n"
    written = []
    monkeypatch.setattr("tqdm.tqdm.write", lambda text, file: written.append((text, file)))
    with cbnb.display_as("terminal"), learn.no_logging():
        learn.fit(1)
    assert written[0][0].startswith("loss ") and len(written) == 1


def test_a_fit_without_a_batch_shows_nothing(capsys, monkeypatch):
    shown = fake_display(monkeypatch)
    for mode in ("plain", "lines"):
        learn = line_learner(cbs=[cbnb.ShowGraph, RaiseIn("before_train", ZeroDivisionError)])
        with cbnb.display_as(mode), pytest.raises(ZeroDivisionError), learn.no_logging():
            learn.fit(1)
    assert not shown and capsys.readouterr().out == ""


def test_a_graph_needs_a_recorder():
    with pytest.raises(ValueError, match=r"ShowGraph draws the values of the Recorder.*add_cb\(Recorder\)"):
        line_learner(default_cbs=False, cbs=cbnb.ShowGraph).fit(1)


def test_the_frame_has_room_for_all_epochs_unless_nobody_knows_how_long_they_are():
    learn = line_learner(3, cbs=cbnb.ShowGraph)
    with learn.no_logging():
        learn.fit(4, start_epoch=1)
        assert learn.show_graph.total == 9
        learn.dls = cbnb.DataLoaders(lambda: iter(line_batches()), device="cpu")
        learn.fit(1)
    assert learn.show_graph.total is None


def test_a_single_batch_is_drawn(monkeypatch):
    shown = fake_display(monkeypatch)
    learn = line_learner(3, cbs=[cbnb.ShowGraph, RaiseIn("before_batch", ZeroDivisionError, when=lambda learn: learn.iter == 1)])
    with cbnb.display_as("plain"), learn.no_logging(), pytest.raises(ZeroDivisionError):
        learn.fit(1)
    assert len(shown) == 1 and shown[0]["text/plain"].startswith("losses over 1 training batch")
