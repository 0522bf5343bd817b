"""Mixed precision and channels last: what is computed in half, what stays in float32, and what a cancel or an error leaves."""

import copy
import enum
import math
import warnings

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import cbnb.all as cbnb
from cbnb.callbacks import precision
from cbnb.callbacks.model_loss import ModelLossStep
from cbnb.callbacks.precision import ChannelsLast, MixedPrecision, autocast_state, check_autocast, restore_autocast, to_float
from cbnb.callbacks.steps import ClipStep, ClosureStep, EvalStep, MultiLossStep, TrainStep
from cbnb.step import Step
from helpers import CANCELS, IN_BATCH, RUN_EVENTS, Line, ab, line_batches, line_learner
from resumed import PowerFailed, fails_before, whole_and_resumed

BF16, FP16 = torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def autocast_is_as_before():
    state = autocast_state("cpu")
    yield
    assert autocast_state("cpu") == state


class Overflow(cbnb.Callback):
    """Infinite gradients in some batches of a fit."""

    order = 9

    def __init__(self, at):
        self.at = set(at)

    def before_backward(self):
        if self.learn.train_iter in self.at:
            self.learn.loss_grad = self.learn.loss_grad * math.inf


def net_learner(seed=0, n=6, **kwargs):
    """A small net with a batch norm layer, whose products are in half precision under autocast."""
    torch.manual_seed(seed)
    x = torch.randn(n * 8, 3)
    y = x.sum(1, keepdim=True).sin()
    batches = list(zip(x.split(8), y.split(8)))
    model = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    settings = dict(loss_func=nn.MSELoss(), lr=0.01) | kwargs
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches[:2], device="cpu"), settings.pop("model", model), **settings)
    return learn.remove_cb(cbnb.ProgressCallback)


def weights(learn):
    return [t.detach().clone() for t in learn.model.state_dict().values()]


# --- autocast ---


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_what_is_in_half_and_what_is_not(mode):
    learn, seen = net_learner(cbs=MixedPrecision(mode)), []
    learn.model[0].register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    kinds = []

    class Note(cbnb.Callback):
        def after_pred(self):
            kinds.append(("pred", self.learn.pred.dtype))

        def after_loss(self):
            kinds.append(("loss", self.learn.loss.dtype))
            kinds.append(("autocast", torch.is_autocast_enabled("cpu")))

        def before_step(self):
            kinds.extend(("grad", p.grad.dtype) for p in self.learn.model.parameters())

    learn.fit(1, cbs=Note)
    preds, targets = learn.get_preds()
    assert set(seen) == {precision.AMP_MODES[mode]}
    assert set(kinds) == {(name, torch.float32) for name in ("pred", "loss", "grad")} | {("autocast", False)}
    assert preds.dtype == targets.dtype == torch.float32
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}
    assert {s.dtype for v in learn.opt.state.values() for s in v.values()} == {torch.float32}


def test_loss_functions_in_half_give_a_float32_loss():
    learn = net_learner(loss_func=lambda pred, y: (pred.bfloat16() - y.bfloat16()).pow(2).mean()).to_bf16()
    learn.fit(1)
    assert all(math.isfinite(v) for v in learn.recorder.last().raw_losses)


class Stop(Exception):
    pass


def raising(event, what):
    def act(cb):
        raise what

    return cbnb.Callback(**{event: act})


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("event", RUN_EVENTS)
def test_autocast_is_as_before_after_errors_and_interrupts(event, mode):
    """And after Ctrl-C, in each of the events; the cancelled levels' events are reached by cancelling."""
    reach = {f"after_cancel_{name}": (name, cancel) for name, cancel in CANCELS.items()}
    for what in (Stop(), KeyboardInterrupt()):
        learn = line_learner(cbs=MixedPrecision(mode))
        cbs = [raising(event, what)]
        if event in reach:
            name, cancel = reach[event]
            cbs.append(raising(f"before_{name}", cancel()))
        with pytest.raises((Stop, KeyboardInterrupt)):
            learn.fit(1, cbs=cbs)
        assert not torch.is_autocast_enabled("cpu")
        for step in (learn.train_step, learn.eval_step):
            assert not {"predict", "loss", "backward"} & set(vars(step))
        before = ab(learn)
        learn.fit(1)
        assert ab(learn) != before


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("event", sorted(IN_BATCH | {"before_fit", "before_epoch", "before_train", "before_validate", "after_epoch"}))
def test_autocast_is_as_before_after_cancels(event, mode):
    for cancel in CANCELS.values():
        learn = line_learner(cbs=MixedPrecision(mode))
        cbs = [raising(event, cancel())]
        if event.startswith("after_cancel"):
            name = event.removeprefix("after_cancel_")
            cbs.append(raising(f"before_{name}", CANCELS[name]()))
        try:
            learn.fit(1, cbs=cbs)
        except RuntimeError as e:
            assert "Cancel" in str(e)
        assert not torch.is_autocast_enabled("cpu") and "predict" not in vars(learn.train_step)


def test_an_error_in_model_or_loss():
    def fail(pred, y):
        raise Stop

    learn = line_learner(loss_func=fail, cbs=MixedPrecision("bf16"))
    with pytest.raises(Stop):
        learn.fit(1)
    learn = line_learner(model=nn.Linear(3, 1), cbs=MixedPrecision("bf16"))
    with pytest.raises(RuntimeError):
        learn.fit(1)


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("what", [KeyboardInterrupt, Stop])
def test_an_interrupt_in_the_forward_or_backward_pass(what, mode):
    def interrupt(*args):
        raise what

    for hook in ("register_forward_hook", "register_full_backward_hook"):
        learn = net_learner(cbs=MixedPrecision(mode))
        handle = getattr(learn.model[2], hook)(interrupt)
        with pytest.raises(what):
            learn.fit(1)
        assert not torch.is_autocast_enabled("cpu") and not {"predict", "backward"} & set(vars(learn.train_step))
        handle.remove()
        learn.fit(1)


def test_an_interrupt_in_the_middle_of_entering():
    state = autocast_state("cpu")
    for _ in range(3):
        torch.autocast("cpu", BF16, cache_enabled=False).__enter__()
    torch.autocast_increment_nesting()
    restore_autocast("cpu", state)
    assert autocast_state("cpu") == state


def test_a_block_around_the_fit_stays_as_it_is():
    with torch.autocast("cpu", BF16):
        learn = net_learner().to_bf16()
        learn.fit(1)
        assert torch.is_autocast_enabled("cpu")


def test_nested_runs_and_predict():
    learn = net_learner().to_bf16()
    dtypes = []
    learn.model[0].register_forward_hook(lambda m, args, out: dtypes.append(out.dtype))
    learn.fit(1, cbs=cbnb.Callback(after_step=lambda cb: cb.learn.validate()))
    learn.validate()
    assert set(dtypes) == {BF16}
    dtypes.clear()
    learn.get_preds(inner=True)
    assert set(dtypes) == {BF16} and not torch.is_autocast_enabled("cpu") and "predict" not in vars(learn.eval_step)


def test_a_step_that_is_replaced_in_the_fit():
    learn, dtypes = net_learner().to_fp16(), []
    learn.model[0].register_forward_hook(lambda m, args, out: dtypes.append(out.dtype))

    def replace(cb):
        if cb.epoch == 1:
            cb.learn.train_step = TrainStep()

    learn.fit(3, cbs=cbnb.Callback(before_epoch=replace))
    assert set(dtypes) == {FP16} and learn.mixed_precision.updated == 18 and "backward" not in vars(learn.train_step)


def test_the_callback_added_and_removed_in_the_middle_of_a_fit():
    learn = net_learner()

    def switch(cb):
        cb.learn.to_bf16() if cb.epoch == 0 else cb.learn.to_fp32()

    learn.fit(2, cbs=cbnb.Callback(after_epoch=switch))
    assert "predict" not in vars(learn.train_step)
    learn.fit(2, cbs=cbnb.Callback(after_epoch=lambda cb: cb.epoch or cb.learn.to_fp16()))
    assert learn.mixed_precision.updated == 6 and "backward" not in vars(learn.train_step)


def test_unknown_devices_and_modes():
    with pytest.raises(ValueError, match="no autocast"):
        check_autocast("meta", BF16)
    with pytest.raises(ValueError, match="'bf16' or 'fp16'"):
        MixedPrecision("fp32")
    with pytest.raises(ValueError, match="init_scale"):
        MixedPrecision(init_scale=0)
    with pytest.raises(TypeError, match="loss_scale"):
        line_learner().to_fp16(loss_scale=2)


def test_to_float_keeps_the_rest():
    value = dict(a=[torch.ones(1, dtype=BF16), "text"], b=torch.ones(1, dtype=torch.float64))
    found = to_float(value)
    assert found["a"][0].dtype == torch.float32 and found["a"][1] == "text" and found["b"] is value["b"]


class AMPMode(str, enum.Enum):  # noqa: UP042
    """As in fastai."""

    FP16 = "fp16"
    BF16 = "bf16"


def test_modes_of_fastai():
    assert [MixedPrecision(mode).amp_mode for mode in AMPMode] == ["fp16", "bf16"]
    line_learner(cbs=MixedPrecision(AMPMode.BF16)).fit(1)


# --- the loss scale ---


@pytest.mark.parametrize("event", ["after_backward", "before_step"])
@pytest.mark.parametrize("order", [-100, 0, 9, 11, 100])
def test_no_callback_sees_scaled_gradients(event, order):
    def seen(**kwargs):
        found = []
        note = cbnb.Callback(**{event: lambda cb: found.extend((cb.model.a.grad.item(), cb.model.b.grad.item(), cb.loss_grad.item()))})
        note.order = order
        line_learner(n=3, **kwargs).fit(1, cbs=note)
        return found

    assert seen(cbs=MixedPrecision("fp16")) == seen()
    sums = cbnb.GradientAccumulation(24)
    assert seen(cbs=[MixedPrecision("fp16"), sums]) == pytest.approx(seen(cbs=cbnb.GradientAccumulation(24)))


def test_a_skipped_update():
    learn = line_learner(n=4, cbs=[MixedPrecision("fp16"), Overflow([1])])
    skips = []
    learn.fit(1, cbs=cbnb.Callback(after_cancel_step=lambda cb: skips.append(cb.train_iter)))
    assert skips == [1] and ab(learn) == pytest.approx((2 * (1 - 0.8**3), 3 * (1 - 0.8**3)))
    scaling = learn.mixed_precision
    assert (scaling.skipped, scaling.updated, scaling.scale, scaling.scaler) == (1, 3, 2**15, None)


def test_the_scale_grows():
    learn = line_learner(n=4, cbs=MixedPrecision("fp16", init_scale=4, growth_interval=2, growth_factor=3))
    learn.fit(1)
    assert learn.mixed_precision.scale == 36


def one_cycle(*cbs, n=10):
    learn = line_learner(n=n, cbs=cbs)
    learn.fit_one_cycle(1, 0.1)
    return learn.recorder.lrs


def test_schedules_go_by_real_updates():
    plan = one_cycle()
    assert one_cycle(MixedPrecision("fp16")) == plan
    assert one_cycle(MixedPrecision("fp16"), Overflow([0, 1, 5])) == [plan[0]] * 2 + plan[:4] + plan[3:7]


def test_schedules_with_accumulation():
    plan, sums = one_cycle(), cbnb.GradientAccumulation(16)
    assert one_cycle(MixedPrecision("fp16"), sums, Overflow([2])) == plan[:4] + plan[2:8]


def test_schedules_over_several_epochs():
    learn = line_learner(n=3, cbs=[MixedPrecision("fp16"), Overflow([1])])
    learn.fit_one_cycle(3, 0.1)
    plan = line_learner(n=3)
    plan.fit_one_cycle(3, 0.1)
    assert learn.recorder.lrs == pytest.approx([*plan.recorder.lrs[:2], *plan.recorder.lrs[1:8]])


def test_torch_schedulers_go_by_real_updates():
    make = cbnb.TorchScheduler(lambda opt: StepLR(opt, 2, 0.5))
    learn = line_learner(n=6, cbs=[MixedPrecision("fp16"), Overflow([1, 2]), make])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(1)
    assert learn.recorder.lrs == [0.1, 0.1, 0.1, 0.1, 0.05, 0.05]


def test_an_overflow_in_the_rest_of_a_sum():
    """The items left over at the end of an epoch make an update of their own."""
    learn = line_learner(n=3, cbs=[MixedPrecision("fp16"), cbnb.GradientAccumulation(16), Overflow([2])])
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.4, 0.6)) and learn.mixed_precision.skipped == 1
    from cbnb.basics.loaders import Batches

    data = line_batches(3)
    learn = line_learner(dls=cbnb.DataLoaders(Batches(lambda: iter(data)), device="cpu"))
    learn.fit(1, cbs=[MixedPrecision("fp16"), cbnb.GradientAccumulation(16), Overflow([2])])
    assert ab(learn) == pytest.approx((0.4, 0.6)) and learn.model.a.grad is None


def test_a_cancelled_backward_or_batch():
    for event, cancel in ("before_backward", cbnb.CancelBackwardException), ("after_backward", cbnb.CancelBatchException):

        def act(cb, cancel=cancel):
            if cb.train_iter == 1:
                raise cancel()

        learns = [line_learner(n=4, cbs=cbs) for cbs in ([], [MixedPrecision("fp16")])]
        for learn in learns:
            learn.fit(1, cbs=cbnb.Callback(**{event: act}))
        assert ab(learns[0]) == pytest.approx(ab(learns[1]))


def test_a_warning_when_the_scale_is_lost():
    learn = line_learner(n=4, cbs=[MixedPrecision("fp16", init_scale=1), Overflow(range(4))])
    with pytest.warns(UserWarning, match="loss scale fell to 0.5 in epoch 0, training batch 0") as seen:
        learn.fit(1)
    assert len(seen) == 1 and seen[0].filename == __file__ and ab(learn) == (0, 0)


def test_a_line_when_many_updates_were_skipped(capsys):
    learn = line_learner(n=30, cbs=[MixedPrecision("fp16", init_scale=2.0**40), Overflow(range(11))])
    learn.fit(1)
    assert "fp16: 11 of 30 updates were skipped" in capsys.readouterr().out
    line_learner(n=30, cbs=[MixedPrecision("fp16"), Overflow(range(3))]).fit(1)
    assert "fp16" not in capsys.readouterr().out


def test_lr_find_counts_real_updates():
    learn = line_learner(n=4, cbs=[MixedPrecision("fp16"), Overflow([2, 3])])
    before = copy.deepcopy(vars(learn.mixed_precision)["_made_with"])
    found = learn.lr_find(num_it=20, end_lr=0.1, stop_div=False, show_plot=False, trials=False)
    assert len(found.lrs) == 20 and found.n_batches == 22
    scaling = learn.mixed_precision
    assert ab(learn) == (0, 0) and scaling.scaler is None and scaling.skipped == 0 and scaling._made_with == before


def test_sparse_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 2, sparse=True), nn.Flatten(), nn.Linear(4, 1))
    batches = [(torch.randint(10, (8, 2)), torch.randn(8, 1)) for _ in range(4)]
    results = []
    for cbs in ([], [MixedPrecision("fp16", init_scale=1024)]):
        learn = cbnb.Learner(
            cbnb.DataLoaders(batches, device="cpu"), copy.deepcopy(model), nn.MSELoss(), torch.optim.SGD, lr=0.1, cbs=cbs
        ).remove_cb(cbnb.ProgressCallback)
        learn.fit(2, cbs=cbnb.GradientAccumulation(16))
        results.append(torch.cat([p.detach().flatten() for p in learn.model.parameters()]))
    assert torch.allclose(*results, atol=1e-2) and not torch.equal(results[0], torch.zeros_like(results[0]))


# --- steps ---


def two_optimizers():
    net = Line()
    opts = [torch.optim.SGD([p], lr=0.1) for p in net.parameters()]
    return net, opts


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("make", [Step, TrainStep, lambda: TrainStep(loss_scale=4.0), lambda: ClipStep(value=100.0)])
def test_steps_with_one_optimizer(make, mode):
    learn = line_learner(train_step=make(), cbs=MixedPrecision(mode))
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08))


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_several_losses(mode):
    net, opts = two_optimizers()
    losses = lambda pred, y: (nn.functional.mse_loss(pred, y), nn.functional.mse_loss(pred, y))  # noqa: E731
    learn = line_learner(model=net, train_step=MultiLossStep(net, opts, losses), opt_func=torch.optim.AdamW, lr=1e-3)
    learn.add_cb(MixedPrecision(mode)).fit(1, 0.1, cbs=[cbnb.GradientClip(1000.0), Overflow([])])
    assert ab(learn) == pytest.approx((0.72, 1.08))


def test_several_losses_skip_together():
    net, opts = two_optimizers()
    losses = lambda pred, y: (nn.functional.mse_loss(pred, y), nn.functional.mse_loss(pred, y))  # noqa: E731
    learn = line_learner(model=net, train_step=MultiLossStep(net, opts, losses), opt_func=torch.optim.AdamW, lr=1e-3)
    learn.add_cb(MixedPrecision("fp16")).fit(1, 0.1, cbs=Overflow([0]))
    assert ab(learn) == pytest.approx((0.4, 0.6)) and learn.mixed_precision.skipped == 1


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x, labels=None):
        pred = self.line(x[:, None])[:, 0]
        return ((pred - labels) ** 2).mean(), pred


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_a_model_that_returns_its_loss(mode):
    torch.manual_seed(0)
    learn = line_learner(model=WithLoss(), loss_func=None, train_step=ModelLossStep(), cbs=MixedPrecision(mode))
    learn.fit(5)
    assert learn.recorder.values[-1][1] < learn.recorder.values[0][1] / 2
    assert {p.dtype for p in learn.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_a_function_that_returns_the_loss(mode):
    learn = line_learner(cbs=MixedPrecision(mode))
    learn.train_step = lambda x, y: nn.functional.mse_loss(learn.model(x), y)
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08))


def by_itself(learn):
    def step(x, y):
        loss = nn.functional.mse_loss(learn.model(x), y)
        learn.opt.zero_grad()
        loss.backward()
        learn.opt.step()
        return loss

    return cbnb.UpdateStep(step)


def test_a_function_that_updates_by_itself():
    learn = line_learner(cbs=MixedPrecision("bf16"))
    learn.train_step = by_itself(learn)
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08))
    learn.to_fp16()
    with pytest.raises(TypeError, match="computes gradients by itself"):
        learn.fit(1)
    learn = line_learner(cbs=MixedPrecision("fp16"))
    learn.train_step = by_itself(learn)
    with pytest.raises(TypeError, match="computes gradients by itself"):
        learn.fit(1)


class Turns:
    """Two networks in turn, of which each sees what the other has just learnt."""

    def __init__(self):
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(1, 4), nn.Linear(4, 1)
        self.opts = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (self.first, self.second)]

    def __call__(self, x, y):
        losses = []
        for opt in self.opts:
            loss = nn.functional.mse_loss(self.second(self.first(x[:, None]))[:, 0], y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return dict(loss=sum(losses), first=losses[0], second=losses[1])


def test_two_networks_in_turn_see_new_weights():
    turns = Turns()
    model = nn.Sequential(turns.first, turns.second)
    learn = line_learner(
        model=model, loss_func=None, train_step=cbnb.UpdateStep(turns.__call__), valid=False, opt_func=torch.optim.AdamW, lr=1e-3
    )
    learn.to_bf16().fit(3, 0.05)
    other = Turns()
    for x, y in line_batches() * 3:
        with torch.autocast("cpu", BF16, cache_enabled=False):
            other(x, y)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), [*other.first.parameters(), *other.second.parameters()]))


def test_closures():
    learn = line_learner(train_step=ClosureStep(), cbs=MixedPrecision("bf16"))
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08))
    with pytest.raises(TypeError, match="ClosureStep computes gradients by itself"):
        line_learner(train_step=ClosureStep(), cbs=MixedPrecision("fp16")).fit(1)


def test_an_optimizer_besides():
    class Other(Step):
        def __init__(self):
            self.second = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    with pytest.raises(TypeError, match="an optimizer besides learn.opt"):
        line_learner(train_step=Other(), cbs=MixedPrecision("fp16")).fit(1)
    line_learner(train_step=Other(), cbs=MixedPrecision("bf16")).fit(1)


def test_a_backward_of_its_own():
    class Own(Step):
        def backward(self, learn):
            learn.loss_func(learn.model(*learn.xb), *learn.yb).backward()

    learn = line_learner(train_step=Own(), cbs=MixedPrecision("fp16"))
    with pytest.raises(TypeError, match=r"Own\.backward did not differentiate"):
        learn.fit(1)
    assert ab(learn) == (0, 0)


def test_an_eval_step():
    learn, dtypes = net_learner(), []
    learn.model[0].register_forward_hook(lambda m, args, out: dtypes.append(out.dtype))
    learn.eval_step = EvalStep(loss_func=nn.MSELoss())
    learn.to_bf16().validate()
    assert set(dtypes) == {BF16}


# --- resuming ---


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
@pytest.mark.parametrize("at, n_acc", [(3, 1), (4, 16), (3, 24), (8, 24)])
def test_resume_is_exact(tmp_path, mode, at, n_acc):
    def make(where, *more):
        scaling = MixedPrecision(mode, init_scale=4096, growth_interval=3)
        checkpoint = cbnb.Checkpoint(every_steps=1, path=tmp_path / where)
        cbs = [
            scaling,
            cbnb.GradientAccumulation(n_acc),
            cbnb.GradientClip(1.0),
            Overflow([1, 5] if mode == "fp16" else []),
            checkpoint,
            *more,
        ]
        return net_learner(cbs=cbs, path=tmp_path)

    whole, learn = whole_and_resumed(make, at)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(learn)))
    assert list(whole.recorder.last().raw_losses) == list(learn.recorder.last().raw_losses)
    assert whole.recorder.lrs == learn.recorder.lrs
    names = ("scale", "skipped", "updated", "behind", "since")
    assert [getattr(whole.mixed_precision, n) for n in names] == [getattr(learn.mixed_precision, n) for n in names]
    if mode == "fp16" and n_acc == 1:
        assert whole.mixed_precision.skipped == 2


# --- channels last ---


def pictures(**kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(144, 2))
    batches = [(torch.randn(4, 1, 8, 8), torch.randint(2, (4,))) for _ in range(4)]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches[:1], device="cpu"), model, nn.CrossEntropyLoss(), lr=0.01, **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


def strides(learn):
    tensors = [*learn.model.parameters(), *(s for v in learn.opt.state.values() for s in v.values())] if learn.opt else []
    return [t.stride() for t in tensors]


@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_channels_last_changes_no_numbers():
    learn = pictures(cbs=ChannelsLast)
    before, places = weights(learn), [p.stride() for p in learn.model.parameters()]
    seen = []
    learn.model[3].register_forward_hook(lambda m, args, out: seen.append(args[0].is_contiguous(memory_format=torch.channels_last)))
    learn.validate()
    assert seen == [True]
    learn.fit(1, 0.0, wd=0.0)
    assert all(torch.equal(a, b) for a, b in zip(before[:2], weights(learn)[:2]))
    assert [p.stride() for p in learn.model.parameters()] == places and all(seen)


@pytest.mark.parametrize("fused", [False, True])
def test_channels_last_comes_and_goes(fused):
    def opt(groups, lr):
        return torch.optim.AdamW(groups, lr=lr, fused=fused)

    plain, learn = pictures(opt_func=opt), pictures(opt_func=opt)
    for cbs in (None, ChannelsLast(), None):
        plain.fit(1)
        learn.fit(1, cbs=cbs)
        assert strides(plain) == strides(learn)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(weights(plain), weights(learn)))


def test_channels_last_is_undone_after_an_error():
    learn = pictures(cbs=ChannelsLast)
    places = [p.stride() for p in learn.model.parameters()]
    with pytest.raises(Stop):
        learn.fit(1, cbs=raising("after_backward", Stop()))
    assert [p.stride() for p in learn.model.parameters()] == places
    with pytest.raises(ValueError, match="no weights with 4 dimensions"):
        line_learner(cbs=ChannelsLast).fit(1)


@pytest.mark.parametrize("every", [dict(every_steps=1), dict(every_epochs=1)])
def test_channels_last_resumes(tmp_path, every):
    def make(*more):
        return pictures(cbs=[ChannelsLast, cbnb.Checkpoint(path=tmp_path / "it", **every), *more], path=tmp_path)

    def opt(groups, lr):
        return torch.optim.AdamW(groups, lr=lr, fused=True)

    whole = pictures(cbs=ChannelsLast)
    whole.opt_func = opt
    whole.fit(2)
    first = make(fails_before(6))
    first.opt_func = opt
    with pytest.raises(PowerFailed):
        first.fit(2)
    learn = make()
    learn.opt_func = opt
    learn.fit(2, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(learn)))


def test_the_events_of_training():
    """bf16 handles no event of a training batch, so it costs nothing there."""
    learn = line_learner(cbs=MixedPrecision("bf16"))
    assert not [e for e in IN_BATCH if learn.mixed_precision.wants(e, True, "fit")]
    learn.to_fp16()
    assert {e for e in IN_BATCH if learn.mixed_precision.wants(e, True, "fit")} == {"before_batch", "before_step"}
