"""Steps: the same in a learner and by hand, several losses and optimizers, evaluation with and without a loss, FTRL."""

import copy
import math
import pickle
import types
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cbnb
from cbnb.basics.optimizers import MultiOptimizer, get_hyper, hyper_key, known_hypers
from cbnb.callbacks.ftrl import FTRL
from cbnb.callbacks.model_loss import ModelLossStep
from cbnb.callbacks.steps import ClipStep, ClosureStep, EvalStep, MultiLossStep, TrainStep
from cbnb.step import PredictStep
from cbnb.undo import UndoStack
from helpers import Line, ab, exact, line_batches, line_learner, noting, same_bits, seed

X, Y = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([[5.0], [7.0], [9.0], [11.0]])
SGD = torch.optim.SGD


def sgd(model, **kwargs):
    return SGD(model.parameters(), **(dict(lr=0.1) | kwargs))


def zero_line():
    net = nn.Linear(1, 1)
    for p in net.parameters():
        nn.init.zeros_(p)
    return net


class Parts(nn.Module):
    """p = (wide + deep)*x; the losses are e + wide**2/2 and 3*e."""

    def __init__(self):
        super().__init__()
        self.wide, self.deep = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
        self.calls = 0

    def forward(self, x, y):
        self.calls += 1
        e = ((self.wide + self.deep) * x - y).square().mean()
        return e + self.wide**2 / 2, 3 * e


def own_learner(net, step, batches, **kwargs):
    """With an optimizer from its step, if that has one."""
    dls = cbnb.DataLoaders(batches, batches, device="cpu")
    learn = cbnb.Learner(dls, net, train_step=step, **kwargs).remove_cb(cbnb.ProgressCallback)
    learn.logger = lambda row: None
    return learn


PARTS_BATCH = torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [5.0]])


def parts_step(opt=lambda p: SGD([p], lr=0.1), **kwargs):
    net = Parts()
    return net, MultiLossStep(net, [opt(net.wide), opt(net.deep)], **kwargs)


def parts_learner(n=3, **kwargs):
    net, step = parts_step(**kwargs.pop("step", {}))
    dls = cbnb.DataLoaders([PARTS_BATCH] * n, [PARTS_BATCH], device="cpu")
    return cbnb.Learner(dls, net, train_step=step, **kwargs).remove_cb(cbnb.ProgressCallback)


def weights(net):
    return [round(p.item(), 6) for p in net.parameters()]


class Opaque:
    """A function of the batch that does everything."""

    def __init__(self, model, returns=lambda loss: loss):
        self.model, self.opt, self.returns = model, sgd(model), returns

    def __call__(self, x, y):
        loss = (self.model(x) - y).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return self.returns(loss)


# --- by hand ---


@pytest.mark.parametrize("loss_scale", [1, 2, 1024.0, 3, torch.tensor(7.0)])
@pytest.mark.parametrize("whole", [False, True, "list"])
def test_mindspore_numbers_by_hand(loss_scale, whole):
    net = zero_line()
    step = TrainStep(net, nn.MSELoss(), sgd(net, lr=0.005, momentum=0.9), loss_scale)
    batch = dict(zip((False, True, "list"), ((X, Y), ((X, Y),), ([X, Y],))))[whole]
    losses = [step(*batch) for _ in range(3)]
    assert not any(loss.requires_grad for loss in losses)
    assert [loss.item() for loss in losses] == pytest.approx([69.0, 58.071091, 40.654315], abs=1e-5)
    assert all(p.grad is None for p in net.parameters())


def test_mindspore_numbers_in_a_learner():
    net = zero_line()
    step = TrainStep(net, nn.MSELoss(), sgd(net, lr=0.005, momentum=0.9), loss_scale=1000.0)
    learn = own_learner(net, step, [(X, Y)] * 3)
    assert learn.opt is step.opt and learn.loss_func is step.loss_func and learn.lr == 0.005
    learn.fit(1)
    assert list(learn.recorder.history[0].raw_losses) == pytest.approx([69.0, 58.071091, 40.654315], abs=1e-5)
    assert learn.recorder.history[0].hyper("lr") == [0.005] * 3


@pytest.mark.parametrize("loss_scale", [0, 0.0, -1, math.nan, math.inf])
@pytest.mark.parametrize("make", [TrainStep, ClipStep])
def test_sens_is_a_positive_number(make, loss_scale):
    with pytest.raises(ValueError, match="loss_scale="):
        make(nn.Linear(1, 1), nn.MSELoss(), None, loss_scale)
    with pytest.raises(TypeError, match="leave out the quotes"):
        make(nn.Linear(1, 1), nn.MSELoss(), None, "1")


def test_only_what_the_optimizer_holds_is_touched():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    net[0].bias.grad = torch.full((3,), 5.0)
    net[1].bias.grad = torch.full((1,), 5.0)  # left behind: not of this batch
    first = [p.clone() for p in net[0].parameters()]
    other = copy.deepcopy(net)
    x, y = torch.randn(8, 2), torch.randn(8, 1)
    TrainStep(net, nn.MSELoss(), sgd(net[1]))(x, y)
    nn.MSELoss()(other(x), y).backward(inputs=[other[1].weight])
    assert all(torch.equal(p, q) for p, q in zip(net[0].parameters(), first))
    assert net[0].weight.grad is None and torch.equal(net[0].bias.grad, torch.full((3,), 5.0))
    assert net[1].weight.grad is None and net[1].bias.grad is None
    unused = nn.Parameter(torch.ones(1))
    for held in ([unused], [unused, net[1].weight]):  # it may hold what this loss does not depend on
        TrainStep(net, nn.MSELoss(), SGD(held, lr=0.0))(x, y)
    assert torch.allclose(net[1].weight, other[1].weight - 0.1 * other[1].weight.grad)


def test_training_mode_is_set_each_time():
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    step = TrainStep(net, nn.MSELoss(), sgd(net, lr=0.001))
    for _ in range(2):
        net.eval()
        step(X, Y)
        assert all(m.training for m in net.modules())


def test_it_trains_where_gradients_are_switched_off():
    net = zero_line()
    with torch.no_grad():
        TrainStep(net, nn.MSELoss(), sgd(net, lr=0.005))(X, Y)
    assert net.weight.item() != 0


def test_a_vector_loss_takes_the_gradient_of_the_sum():
    for loss_scale in (1, 16):
        net, summed = zero_line(), zero_line()
        found = TrainStep(net, nn.MSELoss(reduction="none"), sgd(net, lr=0.001), loss_scale)(X, Y)
        TrainStep(summed, nn.MSELoss(reduction="sum"), sgd(summed, lr=0.001))(X, Y)
        assert found.flatten().tolist() == [25, 49, 81, 121] and same_bits(net, summed)
    net = zero_line()
    learn = own_learner(net, TrainStep(net, nn.MSELoss(reduction="none"), sgd(net, lr=0.001)), [(X, Y)] * 2)
    learn.fit(1)
    assert learn.recorder.history[0].raw_losses[0] == 69  # comparable with validation


def test_several_inputs_and_several_targets():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def forward(self, a, b):
            return self.w * (a + b)

    net = Two()
    assert TrainStep(net, nn.MSELoss(), sgd(net))(X, X, Y).item() == 69
    one = zero_line()
    both = TrainStep(one, lambda pred, y1, y2: (pred - y1).abs().mean() + (pred - y2).abs().mean(), sgd(one), n_inp=1)
    assert both(X, Y, Y).item() == 16


@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_a_model_that_returns_the_loss(tmp_path):
    net = zero_line()

    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.drop = net, nn.Dropout(0.5)

        def forward(self, *batch):
            return (self.backbone(batch[0]) - batch[-1]).square().mean()

    step = TrainStep(wrapped := WithLoss(), None, sgd(net, lr=0.005, momentum=0.9))
    assert [step(X, Y).item(), step(X, X, Y).item()] == pytest.approx([69, 58.071091])
    learn = cbnb.Learner(cbnb.DataLoaders([(X, Y)], [(X, Y)], device="cpu"), net, nn.MSELoss(), train_step=step, metrics=mae, path=tmp_path)
    wrapped.eval()
    with learn.no_logging():
        learn.fit(1)
    assert learn.recorder.history[0].raw_losses[0] == pytest.approx(40.654315)
    assert wrapped.drop.training and list(torch.load(learn.save("saved"), weights_only=True)["model"]) == ["weight", "bias"]
    both = own_learner(wrapped, TrainStep(wrapped, None, sgd(net, lr=0.0)), [(X, Y)])
    both.fit(1)
    row = both.recorder.history[0].epochs[0]
    assert row["valid_loss"] == pytest.approx(row["train_loss"])  # without a loss_func, the step's own


def test_frozen_parameters_are_said():
    net = zero_line().requires_grad_(False)
    with pytest.raises(ValueError, match="all parameters of the optimizer are frozen"):
        TrainStep(net, nn.MSELoss(), SGD(net.parameters(), lr=0.1))(X, Y)
    net, step = parts_step()
    net.requires_grad_(False)
    with pytest.raises(ValueError, match="are frozen"):
        step(PARTS_BATCH)


def test_what_a_step_lacks_is_said():
    with pytest.raises(TypeError, match="without a learner, TrainStep needs a model and an optimizer"):
        TrainStep()(X, Y)
    with pytest.raises(TypeError, match="without a learner, EvalStep needs a model"):
        EvalStep()(X, Y)
    net = zero_line()
    with pytest.raises(ValueError, match="no targets"):
        TrainStep(net, nn.MSELoss(), sgd(net))(X)
    with pytest.raises(TypeError, match="returned a float"):
        TrainStep(net, lambda p, y: 1.0, sgd(net))(X, Y)


# --- clipping ---


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
@pytest.mark.parametrize("kind, want", [("global", (0.05547, 0.083205)), ("tensor", (0.1, 0.1)), ("value", (0.1, 0.1))])
def test_clipping_is_of_unscaled_gradients(kind, want, loss_scale):
    net = Line()
    step = ClipStep(net, nn.MSELoss(), sgd(net), loss_scale=loss_scale, kind=kind, value=1.0)
    step(line_batches()[0])
    assert (net.a.item(), net.b.item()) == pytest.approx(want, abs=1e-6)
    learn = line_learner(train_step=ClipStep(kind=kind, loss_scale=loss_scale), n=1)
    learn.fit(1)
    assert ab(learn) == pytest.approx(want, abs=1e-6)


def test_clipping_can_be_disabled_and_is_checked():
    net = Line()
    ClipStep(net, nn.MSELoss(), sgd(net), enabled=False)(line_batches()[0])
    assert (net.a.item(), net.b.item()) == pytest.approx((0.4, 0.6))
    for wrong in (dict(kind="norm"), dict(value=0), dict(value=-1)):
        with pytest.raises(ValueError, match="=".join(map(str, *wrong.items())) if "kind" not in wrong else "norm"):
            ClipStep(net, nn.MSELoss(), sgd(net), **wrong)


# --- several losses ---


@pytest.mark.parametrize("loss_scale", [1.0, 1000.0])
def test_each_loss_moves_its_own_part_from_the_old_weights(loss_scale):
    net, step = parts_step(loss_scale=loss_scale)
    losses = step(*PARTS_BATCH)
    assert isinstance(losses, tuple) and losses == (1.5, 3.0) and net.calls == 1
    assert not any(loss.requires_grad for loss in losses)
    assert (net.wide.item(), net.deep.item()) == pytest.approx((0.6, 1.1), abs=1e-6)
    assert net.wide.grad is None and net.deep.grad is None


def test_several_losses_in_a_learner():
    net, step = parts_step()
    by_hand = [step(PARTS_BATCH) for _ in range(3)]
    seen = []
    note = cbnb.Callback(after_batch=lambda self: seen.append((self.learn.training, self.learn.step_result, self.learn.outputs)))
    learn = parts_learner(cbs=note)
    learn.fit(1)
    assert [result for training, result, _ in seen if training] == by_hand and weights(learn.model) == weights(net)
    assert [outputs[:2] for *_, outputs in seen] == [result for _, result, _ in seen]
    assert list(learn.recorder.history[0].raw_losses) == pytest.approx([sum(losses).item() for losses in by_hand])
    assert learn.recorder.history[0].epochs[0]["valid_loss"] == pytest.approx(sum(net(*PARTS_BATCH)).item())
    assert learn.model.calls == 4


def test_losses_may_come_from_a_function_of_the_prediction():
    class Predicts(Parts):
        def forward(self, x):
            return (self.wide + self.deep) * x

    net = Predicts()
    e = nn.MSELoss()
    step = MultiLossStep(net, [SGD([net.wide], 0.1), SGD([net.deep], 0.1)], lambda pred, y: (e(pred, y) + net.wide**2 / 2, 3 * e(pred, y)))
    dls = cbnb.DataLoaders([PARTS_BATCH], [PARTS_BATCH], device="cpu")
    mae = cbnb.AvgMetric(lambda pred, y: (pred - y).abs().mean(), "mae")
    learn = cbnb.Learner(dls, net, train_step=step, metrics=mae).remove_cb(cbnb.ProgressCallback)
    learn.logger = lambda row: None
    learn.fit(1)
    assert weights(net) == pytest.approx([0.6, 1.1])
    pred = 1.7 * PARTS_BATCH[0]
    assert learn.recorder.history[0].epochs[0]["mae"] == pytest.approx((pred - PARTS_BATCH[1]).abs().mean().item())
    assert torch.allclose(learn.get_preds()[0], pred)


def test_predictions_may_follow_the_losses():
    class Both(Parts):
        def forward(self, x, y):
            return *super().forward(x, y), (self.wide + self.deep) * x

    net = Both()
    step = MultiLossStep(net, [SGD([net.wide], 0.1), SGD([net.deep], 0.1)])
    dls = cbnb.DataLoaders([PARTS_BATCH], [PARTS_BATCH], device="cpu")
    learn = cbnb.Learner(dls, net, train_step=step, default_cbs=False)
    learn.fit(1)
    preds, targets = learn.get_preds()
    assert torch.allclose(preds, 1.7 * PARTS_BATCH[0]) and torch.equal(targets, PARTS_BATCH[1])


def test_a_frozen_part_stays_and_the_other_learns():
    learn = parts_learner()
    learn.freeze_to(1)
    learn.fit(1)
    assert learn.model.wide.item() == 1 and learn.model.deep.item() != 2
    learn.unfreeze()
    learn.fit(1)
    assert learn.model.wide.item() != 1
    learn.model.wide.requires_grad_(False)
    learn.fit(1)


def test_a_callback_may_scale_the_sum_of_the_losses():
    for loss_scale in (1.0, 8.0):
        halve = cbnb.Callback(before_backward=lambda self: self.learn.loss_grad.div_(2))
        learn = parts_learner(n=1, step=dict(loss_scale=loss_scale), cbs=halve)
        learn.fit(1)
        assert weights(learn.model) == pytest.approx([0.8, 1.55]) and learn.recorder.history[0].raw_losses[0] == 4.5


class Accumulate(cbnb.Callback):
    """An update each two batches, by the mean of their gradients."""

    def before_backward(self):
        self.learn.loss_grad.div_(2)

    def after_backward(self):
        if self.learn.iter % 2 == 0:
            raise cbnb.CancelBatchException


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_accumulated_gradients_are_not_scaled_twice(loss_scale):
    def trained(step):
        learn = line_learner(4, valid=False, train_step=step, cbs=Accumulate())
        learn.fit(1)
        return ab(learn)

    assert trained(TrainStep(loss_scale=loss_scale)) == pytest.approx((0.72, 1.08), abs=1e-6) == trained(None)
    learn = parts_learner(n=2, step=dict(loss_scale=loss_scale), cbs=Accumulate())
    learn.fit(1)
    assert weights(learn.model) == pytest.approx([0.6, 1.1], abs=1e-6)


def test_wrong_numbers_of_losses_are_sentences():
    net = zero_line()
    opts = [SGD([net.weight], 0.1), SGD([net.bias], 0.1)]
    with pytest.raises(ValueError, match="2 optimizers need 2 losses, but got a Tensor"):
        MultiLossStep(net, opts, nn.MSELoss())(X, Y)
    with pytest.raises(ValueError, match="but got a tuple of 1"):
        MultiLossStep(net, opts, lambda p, y: (p.mean(),))(X, Y)
    with pytest.raises(ValueError, match="loss 1 depends on no parameter of its optimizer"):
        MultiLossStep(net, opts, lambda p, y: (p.mean(), torch.tensor(1.0)))(X, Y)
    with pytest.raises(ValueError, match="same parameter"):
        MultiLossStep(net, [opts[0], opts[0]])


# --- events ---

STEPS = dict(
    train=lambda net: TrainStep(net, nn.MSELoss(), sgd(net), loss_scale=4.0),
    clip=lambda net: ClipStep(net, nn.MSELoss(), sgd(net)),
    multi=lambda net: MultiLossStep(net, [SGD([net.a], 0.1), SGD([net.b], 0.1)], lambda p, y: (nn.L1Loss()(p, y), nn.MSELoss()(p, y))),
    closure=lambda net: ClosureStep(net, nn.MSELoss(), torch.optim.LBFGS(net.parameters(), lr=0.1)),
    call=lambda net: cbnb.UpdateStep(Opaque(net)),
    call_many=lambda net: cbnb.UpdateStep(Opaque(net, lambda loss: dict(loss=loss, fake=loss.item()))),
)


def steps_learner(kind, **kwargs):
    net = Line()
    kwargs = dict(opt_func=torch.optim.AdamW) | kwargs
    return line_learner(model=net, train_step=STEPS[kind](net), **kwargs)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("cancel", [None, "before_batch", "after_pred", "after_loss", "before_step"])
def test_events_are_those_of_the_default(kind, cancel):
    error = dict(before_step=cbnb.CancelStepException).get(cancel, cbnb.CancelBatchException)

    def refuse(self):
        if self.learn.iter == 1:
            raise error

    def transcript(learn):
        seen = []
        learn.add_cbs([noting(seen), cbnb.Callback(**({cancel: refuse} if cancel else {}))])
        learn.fit(2)
        learn.validate()
        return seen

    assert transcript(steps_learner(kind)) == transcript(line_learner())


@pytest.mark.parametrize("kind", STEPS)
def test_a_sweep_leaves_no_trace(kind):
    def state(learn):
        opt = [(k, exact(v) if isinstance(v, torch.Tensor) else repr(v)) for s in learn.opt.state.values() for k, v in s.items()]
        params = list(learn.model.parameters())
        return [exact(p) for p in params], opt, get_hyper(learn.opt, "lr"), [p.grad for p in params]

    learn = steps_learner(kind)
    step, opt, inner = learn.train_step, learn.opt, vars(learn.train_step).get("func")
    learn.fit(1)
    before = state(learn)
    found = learn.lr_find(num_it=10, show_plot=False, stop_div=False, trials=True)
    assert len(found.lrs) == 10
    assert learn.train_step is step and learn.opt is opt and vars(step).get("func") is inner and str(state(learn)) == str(before)
    if inner:
        assert inner.model is learn.model and inner.opt is opt
    else:
        assert step.model is learn.model and step.opt is opt
    alone = steps_learner(kind)
    alone.fit(1)
    alone.fit(1)
    learn.fit(1)
    assert same_bits(learn.model, alone.model)


def test_a_sweep_before_the_first_fit_leaves_a_given_optimizer_as_it_was():
    net = Line()
    opt = SGD(net.parameters(), lr=0.1, momentum=0.9)
    line_learner(model=net, opt_func=opt).lr_find(num_it=10, show_plot=False)
    assert not opt.state and opt.param_groups[0]["lr"] == 0.1


@pytest.mark.filterwarnings("ignore:train_step updates the weights itself")
@pytest.mark.filterwarnings("ignore:opt_func is not used")
def test_a_sweep_restores_what_a_function_refers_to():
    one, other = Line(), Line()
    opts = sgd(one, momentum=0.9), sgd(other, momentum=0.9)

    def both(x, y):
        losses = []
        for net, opt in zip((one, other), opts):
            opt.zero_grad()
            losses.append((net(x) - y).square().mean())
            losses[-1].backward()
            opt.step()
        return tuple(losses)

    learn = line_learner(model=one, train_step=cbnb.UpdateStep(both, opts[0]), loss_func=None)  # of the other it knows nothing
    learn.fit(1)
    before = exact(other.a), len(opts[1].state), exact(opts[1].state[other.a]["momentum_buffer"])
    learn.lr_find(num_it=10, show_plot=False)
    assert before == (exact(other.a), len(opts[1].state), exact(opts[1].state[other.a]["momentum_buffer"]))


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_in_the_middle_restores(kind, error):
    def fail(self):
        if self.learn.train_iter == 3:
            raise error

    learn = steps_learner(kind)
    rates = get_hyper(learn.opt, "lr")
    with pytest.raises(error):
        learn.fit_one_cycle(3, 0.03, cbs=cbnb.Callback(before_batch=fail))
    assert get_hyper(learn.opt, "lr") == rates and not learn.running and learn.recorder.history[0].n_steps == 3
    learn.fit(1)
    assert learn.recorder.history[1].hyper("lr") == [0.1] * 2


@pytest.mark.parametrize("kind", STEPS)
def test_saving_and_exporting(kind, tmp_path):
    learn = steps_learner(kind, path=tmp_path)
    learn.fit(1)
    file = learn.save("here")
    assert set(torch.load(file, weights_only=True)["model"]) == {"a", "b"}
    other = steps_learner(kind, path=tmp_path).load("here")
    assert same_bits(other.model, learn.model)
    learn.fit(1)
    other.fit(1)
    assert same_bits(other.model, learn.model)


def test_an_exported_learner_trains_on(tmp_path):
    learn = steps_learner("clip", path=tmp_path)
    learn.fit(1)
    loaded = cbnb.load_learner(learn.export(), trust=True)
    loaded.dls = line_batches()
    before = ab(loaded)
    loaded.fit(1)
    assert before == ab(learn) != ab(loaded) and loaded.opt is loaded.train_step.opt
    again = pickle.loads(pickle.dumps(learn.train_step))
    again(line_batches()[0])
    assert again.model is not learn.model and again.opt.param_groups[0]["params"][0] is again.model.a
    parts = copy.deepcopy(parts_step()[1])
    parts(PARTS_BATCH)
    assert weights(parts.model) == pytest.approx([0.6, 1.1])


@pytest.mark.parametrize("kind", STEPS)
def test_validation_inside_a_batch_changes_nothing(kind):
    def check(self):
        if self.learn.training:
            self.learn.validate()

    learn, alone = steps_learner(kind), steps_learner(kind)
    for name in ("before_batch", "after_pred", "after_loss", "before_backward", "before_step", "after_batch"):
        learn.fit(1, cbs=cbnb.Callback(**{name: check}))
        alone.fit(1)
    assert same_bits(learn.model, alone.model)
    assert [list(r.raw_losses) for r in learn.recorder.history.runs] == [list(r.raw_losses) for r in alone.recorder.history.runs]


# --- in a learner ---


def test_two_optimizers_are_scheduled_recorded_and_put_back():
    learn = parts_learner(step=dict(opt=lambda p: torch.optim.Adam([p], lr=0.05)))
    assert learn.lr == 0.05
    learn.fit_one_cycle(2, [0.01, 0.02])
    run = learn.recorder.history[0]
    assert max(run.hyper("lr")) == pytest.approx(0.02, rel=0.1) and len(run.hyper("mom")) == 6
    assert get_hyper(learn.opt, "lr") == [0.05, 0.05] and get_hyper(learn.opt, "mom") == [0.9, 0.9]
    learn.fit(1, lr=slice(0.001, 0.1))
    assert learn.recorder.history[1].hyper("lr") == [0.1] * 3
    rates = []
    net = Parts()
    step = MultiLossStep(net, [FTRL([net.wide], lr=0.3), torch.optim.Adam([net.deep], lr=0.01)])
    note = cbnb.Callback(before_step=lambda self: rates.append(get_hyper(self.learn.opt, "lr")))
    learn = cbnb.Learner(cbnb.DataLoaders([PARTS_BATCH] * 2, device="cpu"), net, train_step=step, cbs=note, default_cbs=False)
    assert learn.lr == [0.3, 0.01]
    learn.fit(1)
    assert rates == [[0.3, 0.01]] * 2
    learn.fit_one_cycle(1, [0.3, 0.01])
    assert get_hyper(learn.opt, "lr") == [0.3, 0.01]


def test_optimizers_and_losses_of_a_step_are_taken_between_runs_only():
    learn = line_learner()
    learn.fit(1)
    mine = TrainStep(learn.model, nn.L1Loss(), sgd(learn.model, lr=0.5))
    swap = cbnb.Callback(before_train=lambda self: setattr(self.learn, "train_step", mine))
    with pytest.raises(RuntimeError, match="between runs"):
        learn.fit(1, cbs=swap)
    assert type(learn.train_step) is cbnb.step.Step
    learn.train_step = mine
    assert learn.opt is mine.opt and learn.loss_func is mine.loss_func and learn.lr == 0.5
    learn.fit(1)


def test_a_step_swapped_for_a_run_is_put_back():
    learn = line_learner(n=1)
    cb = cbnb.Callback(before_fit=lambda self: self.learn.undo.set(self.learn, "train_step", ClipStep()))
    step = learn.train_step
    learn.fit(1, cbs=cb)
    assert ab(learn) == pytest.approx((0.05547, 0.083205), abs=1e-6) and learn.train_step is step
    with UndoStack() as undo:
        undo.set(learn, "dls", [(X, Y)])
    assert len(learn.dls) == 2


def test_an_optimizer_given_twice_is_noticed():
    net = Line()
    with pytest.warns(UserWarning, match="opt_func is not used"):
        line_learner(model=net, train_step=TrainStep(net, nn.MSELoss(), sgd(net)), opt_func=torch.optim.RMSprop)
    with pytest.raises(ValueError, match="lr=0.5 differs from the learning rate 0.1 of the optimizer"):
        line_learner(model=net, train_step=TrainStep(net, nn.MSELoss(), sgd(net)), lr=0.5, opt_func=torch.optim.AdamW)


def test_an_optimizer_that_holds_a_part_is_left_alone(capsys):
    net = Line()
    learn = line_learner(model=net, opt_func=SGD([net.b], lr=0.1))
    learn.fit(1)
    learn.fit(1)
    assert "new optimizer" not in capsys.readouterr().out and net.a.item() == 0 and net.b.item() > 0
    learn.model = Line()
    with pytest.raises(ValueError, match="holds no parameter of learn.model"):
        learn.fit(1)


def test_an_optimizer_of_another_model_is_refused_in_the_first_fit():
    learn = line_learner(opt_func=SGD(Line().parameters(), lr=0.1))
    for _ in range(2):
        with pytest.raises(ValueError, match="holds no parameter of learn.model"):
            learn.fit(1)


def test_a_wrapped_model_is_the_one_that_is_called():
    calls = []

    class Adapter(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            calls.append(self.training)
            return self.model(x)

    net = Line()
    wrap = cbnb.Callback(before_fit=lambda self: self.learn.undo.set(self.learn, "model", Adapter(net)))
    learn = own_learner(net, TrainStep(net, nn.MSELoss(), sgd(net)), line_batches(), eval_step=EvalStep(net, nn.MSELoss()))
    learn.fit(1, cbs=wrap)
    assert calls == [True, True, False, False]


@pytest.mark.parametrize("step, words", [(3, "=3 is not a step"), (cbnb.step.Step, "is the class Step"), (TrainStep, r"TrainStep\(...\)")])
def test_what_is_no_step_is_refused(step, words):
    with pytest.raises(TypeError, match=words):
        line_learner(train_step=step)


# --- functions ---


def test_two_networks_in_turn():
    """Each of the two has an optimizer; the function says what they lost."""
    gen, critic = nn.Linear(1, 1), nn.Linear(1, 1)

    class Gan:
        def __init__(self):
            self.opts = dict(gen=sgd(gen, lr=0.01), critic=sgd(critic, lr=0.02))
            self.turns = []

        def step(self, x):
            fake = gen(x)
            made = dict(critic=lambda: critic(fake.detach()).mean() - critic(x).mean(), gen=lambda: -critic(fake).mean())
            losses = {}
            for name, loss in made.items():
                losses[name] = loss()
                self.opts[name].zero_grad()
                losses[name].backward()
                self.opts[name].step()
                self.turns.append(name)
            return losses | dict(loss=sum(losses.values()))

    gan = Gan()
    learn = cbnb.Learner(cbnb.DataLoaders([(X,)] * 3, device="cpu"), nn.ModuleList([gen, critic]), train_step=cbnb.UpdateStep(gan.step))
    learn.remove_cb(cbnb.ProgressCallback).logger = lambda row: None
    assert [o.param_groups[0]["lr"] for o in learn.opt.optimizers] == learn.lr == [0.01, 0.02]
    sums = []
    learn.fit(1, cbs=cbnb.Callback(after_batch=lambda self: sums.append(sum(v.item() for v in self.learn.loss_parts.values()))))
    assert gan.turns == ["critic", "gen"] * 3
    assert list(learn.recorder.history[0].raw_losses) == pytest.approx(sums, abs=1e-6)
    assert learn.recorder.history[0].hyper("lr") == [0.02] * 3


@pytest.mark.parametrize("out", [None, "loss", (), {}])
def test_a_training_function_without_a_loss_is_told(out):
    with pytest.raises(TypeError, match="train_step returned"):
        line_learner(train_step=lambda x, y: out).fit(1)


@pytest.mark.filterwarnings("ignore:train_step updates the weights without learn.opt")
def test_dict_batches_are_passed_by_name():
    seen = []

    def step(y, x):
        seen.append((x.shape, y.shape))
        return torch.tensor(0.0)

    dls = cbnb.DataLoaders([dict(x=X, y=Y)], targets="y", device="cpu")
    cbnb.Learner(dls, zero_line(), train_step=cbnb.UpdateStep(step), default_cbs=False).fit(1)
    assert seen == [((4, 1), (4, 1))]


def mae(pred, y, *more):
    return (pred - y).abs().mean()


EVAL = {  # what it returns, and whether that has a loss
    "two labels": (lambda net: lambda x, y: (net(x), y, y * 2), False),
    "a loss": (lambda net: lambda x, y: ((net(x) - y).square().mean(), net(x), y), True),
    "a loss that is a Python number": (lambda net: lambda x, y: ((net(x) - y).square().mean().item(), net(x), y), True),
    "a loss and two labels": (lambda net: lambda x, y: ((net(x) - y).square().mean(), net(x), y, y), True),
    "EvalStep": (lambda net: EvalStep(net, nn.MSELoss()), True),
    "EvalStep without a loss": (lambda net: EvalStep(net), False),
    "EvalStep of the learner's": (lambda net: EvalStep(loss_func=nn.MSELoss(reduction="none")), True),
}


@pytest.mark.parametrize("kind", EVAL)
def test_evaluation_of_any_kind(kind):
    make, has_loss = EVAL[kind]
    batches = list(zip(torch.arange(10.0)[:, None].split(4), torch.ones(10, 1).split(4)))  # ragged
    net = zero_line()
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="cpu"), net, nn.MSELoss(), lr=0.001, eval_step=make(net), metrics=mae)
    learn.remove_cb(cbnb.ProgressCallback).logger = lambda row: None
    outputs = []
    learn.fit(1, cbs=cbnb.Callback(after_batch=lambda self: None if self.learn.training else outputs.append(self.learn.outputs)))
    x, y = torch.cat([b[0] for b in batches]), torch.ones(10, 1)
    wanted = nn.MSELoss()(net(x), y).item() if has_loss else None, mae(net(x), y).item()
    row = learn.recorder.history[0].epochs[0]
    for loss, metric in ((row["valid_loss"], row["mae"]), learn.validate()):
        assert (loss is None if not has_loss else loss == pytest.approx(wanted[0])) and metric == pytest.approx(wanted[1])
    assert [torch.as_tensor(o[0]).ndim == 0 for o in outputs] == [has_loss] * 3 and torch.equal(outputs[0][int(has_loss) + 1], y[:4])
    assert torch.allclose(learn.get_preds()[0], net(x)) and len(learn.get_preds()[0]) == 10
    assert "None" in str(row) or has_loss


@pytest.mark.parametrize("name", ["before_batch", "after_pred"])
def test_cancelled_batches_are_left_out_without_a_loss_too(name):
    def refuse(self):
        if self.learn.purpose == "fit" and not self.learn.training and self.learn.iter == 0:
            raise cbnb.CancelBatchException

    def nested(self):
        if self.learn.purpose == "fit":
            self.learn.validate(dl=[(X, Y)])

    batches = [(X, Y), (X, Y + 1)]
    for cbs in ([], [cbnb.Callback(after_cancel_batch=nested)]):
        net = zero_line()
        learn = own_learner(net, None, batches, loss_func=nn.MSELoss(), lr=0.0, eval_step=lambda x, y: (net(x), y), metrics=mae)
        learn.fit(1, cbs=[cbnb.Callback(**{name: refuse}), *([] if name == "before_batch" else cbs)])
        assert learn.recorder.history[0].epochs[0]["mae"] == 9 and learn.recorder.history[0].epochs[0]["valid_loss"] is None


def test_batches_without_targets_are_still_not_measured():
    net = zero_line()
    learn = cbnb.Learner(cbnb.DataLoaders([(X, Y)], [(X,)], device="cpu"), net, nn.MSELoss(), metrics=mae).remove_cb(cbnb.ProgressCallback)
    assert learn.validate() == [None, None]


def test_evaluation_puts_each_mode_back():
    net = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1).eval(), nn.Linear(1, 1))
    modes = [m.training for m in net.modules()]
    step = EvalStep(net, nn.MSELoss())
    loss, pred, y = step(X, Y)
    assert not pred.requires_grad and y is Y and [m.training for m in net.modules()] == modes
    with pytest.raises(RuntimeError):
        step(torch.ones(4, 7), Y)
    assert [m.training for m in net.modules()] == modes
    assert list(step.state_dict()) == list(net.state_dict())
    train = TrainStep(net, nn.MSELoss(), sgd(net))
    other = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1), nn.Linear(1, 1))
    EvalStep(other).load_state_dict(train.state_dict())
    assert same_bits(net, other)


def test_evaluation_with_another_model():
    """Such as an average of the weights."""
    net, average = Line(), Line()
    nn.init.constant_(average.b, 3.0)
    learn = line_learner(model=net, eval_step=EvalStep(average, nn.MSELoss()))
    learn.fit(1)
    assert learn.recorder.history[0].epochs[0]["valid_loss"] == 4 and average.training


@pytest.mark.filterwarnings("ignore:train_step updates the weights without learn.opt")
def test_a_function_may_need_no_loss_anywhere():
    def step(x, y):
        return dict(loss=torch.tensor(3.0), fake=2.0)

    learn = line_learner(train_step=cbnb.UpdateStep(step), loss_func=None, eval_step=PredictStep(), metrics=mae)
    learn.logger = lambda row: None
    learn.fit(1)
    row = learn.recorder.history[0].epochs[0]
    assert row["train_loss"] == 3 and row["fake"] == 2 and row["valid_loss"] is None and row["mae"] == 3


def test_closures_train_where_a_plain_step_cannot():
    learn = line_learner(train_step=ClosureStep(), opt_func=torch.optim.LBFGS, lr=1.0)
    learn.fit(2)
    assert ab(learn) == pytest.approx((2, 3), abs=1e-3) and learn.recorder.history[0].raw_losses[0] == 13
    net = Line()
    step = ClosureStep(net, nn.MSELoss(), torch.optim.LBFGS(net.parameters(), lr=1.0), loss_scale=64.0)
    assert step(line_batches()[0]).item() == 13 and step(line_batches()[0]).item() < 1e-3


def test_control_callbacks_work_with_steps():
    gradients = pytest.importorskip("cbnb.callbacks.gradients")
    if not hasattr(gradients, "GradientClip") or not hasattr(gradients, "GradientAccumulation"):
        pytest.skip("not there yet")
    for step in (None, TrainStep(loss_scale=512.0)):
        learn = line_learner(4, valid=False, train_step=step, cbs=gradients.GradientAccumulation(16))
        learn.fit(1)
        assert ab(learn) == pytest.approx((0.72, 1.08), abs=1e-6)
        learn = line_learner(1, valid=False, train_step=step, cbs=gradients.GradientClip(1.0))
        learn.fit(1)
        assert ab(learn) == pytest.approx((0.05547, 0.083205), abs=1e-6)


# --- several optimizers as one ---


def two_opts():
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    return a, b, c, MultiOptimizer([torch.optim.Adam([dict(params=[a]), dict(params=[b], lr=0.5)], lr=0.1), SGD([c], lr=0.2, momentum=0.9)])


def test_state_and_groups_are_live():
    a, b, c, opt = two_opts()
    (a + b + c).sum().backward()
    opt.step()
    assert len(opt.state) == 3 and set(opt.state) == {a, b, c} and opt.state[c] is opt.optimizers[1].state[c]
    assert nn.Parameter(torch.ones(2)) not in opt.state
    with pytest.raises(KeyError):
        opt.state[torch.ones(2)]
    opt.state.clear()
    assert not opt.optimizers[0].state
    opt.param_groups[2]["lr"] = 7.0
    assert opt.optimizers[1].param_groups[0]["lr"] == 7.0 and get_hyper(opt, "lr") == [0.1, 0.5, 7.0]
    assert hyper_key(opt, "mom") is None and known_hypers(opt)[0] == "wd" and "lr" in opt.defaults
    with pytest.raises(TypeError, match="belongs to one of the optimizers"):
        opt.add_param_group(dict(params=[torch.ones(1)]))


def test_saved_state_fits_the_same_optimizers_only():
    a, b, c, opt = two_opts()
    (a + b + c).sum().backward()
    opt.step()
    saved = copy.deepcopy(opt.state_dict())
    a2, b2, c2, other = two_opts()
    other.load_state_dict(saved)
    assert torch.equal(other.state[c2]["momentum_buffer"], opt.state[c]["momentum_buffer"])
    assert torch.equal(other.state[b2]["exp_avg"], opt.state[b]["exp_avg"]) and other.state_dict()["param_groups"] == saved["param_groups"]
    wrong = MultiOptimizer([SGD([dict(params=[a2]), dict(params=[b2])], lr=1.0), SGD([c2], lr=1.0)])
    with pytest.raises(ValueError, match="not that of SGD"):
        wrong.load_state_dict(saved)
    with pytest.raises(ValueError, match="3 parameter groups .*, but this one has 1"):
        MultiOptimizer([SGD([a2, b2, c2], lr=1.0)]).load_state_dict(saved)
    assert get_hyper(wrong, "lr") == [1.0] * 3
    for again in (pickle.loads(pickle.dumps(opt)), copy.deepcopy(opt)):
        assert len(again.state) == 3 and get_hyper(again, "lr") == [0.1, 0.5, 0.2]


def test_torch_schedulers_accept_them():
    a, b, c, opt = two_opts()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    (a + b + c).sum().backward()
    opt.step()
    scheduler.step()
    assert get_hyper(opt, "lr") == [0.05, 0.25, 0.1]


# --- FTRL ---


def textbook(gradients, lr, l1, l2, accum, w=0.0):
    """Algorithm 1 of McMahan et al., for one weight, with sqrt(n) for beta + sqrt(n)."""
    n, z, path = accum, 0.0, []
    for g in gradients:
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / lr
        z += g - sigma * w
        n += g * g
        w = 0.0 if abs(z) <= l1 else -(z - math.copysign(l1, z)) / (math.sqrt(n) / lr + l2)
        path.append(w)
    return path


@pytest.mark.parametrize("lr, l1, l2", [(0.1, 0, 0), (0.1, 1, 0), (0.05, 0.3, 2.0), (1.0, 0.0, 0.5)])
def test_ftrl_is_that_of_the_textbook(lr, l1, l2):
    seed()
    gradients = torch.randn(30, 4, dtype=torch.float64)
    w = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    opt, path = FTRL([w], lr, l1, l2), []
    for i, g in enumerate(gradients):
        w.grad = g.clone() if i % 2 else g.clone().to_sparse()
        opt.step()
        path.append(w.detach().clone())
    for column, found in zip(gradients.T.tolist(), torch.stack(path).T.tolist()):
        assert found == pytest.approx(textbook(column, lr, l1, l2, 0.1), abs=1e-12)


def test_ftrl_from_one():
    w = nn.Parameter(torch.tensor([1.0]))
    opt = FTRL([w], lr=0.1, l1=1.0)
    w.grad = torch.tensor([4.0])
    opt.step()
    assert w.item() == pytest.approx(0.796578, abs=1e-6) == textbook([4.0], 0.1, 1.0, 0.0, 0.1, 1.0)[0]


def test_ftrl_is_saved_and_goes_on():
    def run(opt, w, gradients):
        for g in gradients:
            w.grad = torch.tensor([g])
            opt.step()

    w = nn.Parameter(torch.zeros(1))
    opt = FTRL([w], 0.1, 0.1)
    run(opt, w, [1.0, -2.0])
    v = nn.Parameter(w.detach().clone())
    other = FTRL([v], 0.1, 0.1)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    run(opt, w, [0.5, 3.0])
    run(other, v, [0.5, 3.0])
    assert torch.equal(w, v)
    opt.param_groups[0]["lr"] = 0.0
    run(opt, w, [1.0])
    assert torch.equal(w, v)


@pytest.mark.parametrize("wrong", [dict(lr=-1.0), dict(l1=-1.0), dict(l2=math.nan), dict(initial_accum=0), dict(lr_power=0.5)])
def test_ftrl_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        FTRL([nn.Parameter(torch.zeros(1))], **wrong)


def test_optimizers_with_ones_own_can_be_loaded_again_and_again(tmp_path):
    """Once loaded, torch writes down a default that FTRL's groups do not have."""
    model = Line()
    opt = cbnb.MultiOptimizer([torch.optim.Adam([model.a]), FTRL([model.b])])
    learn = line_learner(model=model, lr=1e-3, opt_func=opt, path=tmp_path)
    learn.fit(1)
    learn.save("both")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            learn.load("both")
            learn.fit(1)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda model, opt: cbnb.TrainStep(model, nn.MSELoss, opt), "loss_func is the class MSELoss: pass an instance"),
        (lambda model, opt: cbnb.TrainStep(Line, nn.MSELoss(), opt), "model is the class Line: pass an instance"),
        (lambda model, opt: cbnb.callbacks.steps.ClipStep(model, nn.MSELoss(), torch.optim.SGD), "opt is the class SGD: pass an instance"),
        (lambda model, opt: cbnb.TrainStep(model, nn.MSELoss(), [opt]), "is not an optimizer: pass one, such as"),
        (lambda model, opt: cbnb.EvalStep(model, nn.MSELoss), "loss_func is the class MSELoss: pass an instance"),
    ],
)
def test_classes_in_place_of_objects_are_told(make, words):
    model = Line()
    with pytest.raises(TypeError, match=words):
        make(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_several_losses_of_a_prediction_need_no_targets_to_predict():
    """Without targets the losses were called all the same."""
    model = Line()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    step = MultiLossStep(model, [opt], losses=lambda pred, y: (((pred - y) ** 2).mean(),))
    learn = line_learner(model=model, lr=1e-3, opt_func=torch.optim.AdamW, loss_func=None, train_step=step)
    learn.fit(1)
    x = torch.tensor([-1.0, 1.0])
    pred, targets = learn.get_preds(dl=[(x,)])
    assert torch.equal(pred, model(x).detach()) and targets is None
    assert learn.validate(dl=[(x,)]) == [None]
    with pytest.raises(ValueError, match="no targets"):
        step((x,))


class Adapter(nn.Module):
    """A network and what belongs to the training or evaluation of it, with layers of its own."""

    def __init__(self, net, returns):
        super().__init__()
        self.net, self.norm, self.returns, self.seen = net, nn.BatchNorm1d(1), returns, []

    def forward(self, x, y):
        self.seen.append((self.training, self.norm.training, self.net.training))
        return self.returns(self.norm(self.net(x)), y)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_without_training_puts_the_modes_of_a_wrapper_back(fails):
    net = zero_line()
    wrapped = Adapter(net, lambda pred, y: (pred - y).square().mean())
    learn = own_learner(net, TrainStep(wrapped, opt=sgd(net)), [(X, Y)])
    learn.fit(1)
    for mode in (True, False):
        wrapped.train(mode), wrapped.norm.train(not mode)
        if fails:
            wrapped.returns = lambda pred, y: 1 / 0
        for run in (learn.validate, learn.get_preds):
            try:
                run()
            except ZeroDivisionError:
                assert fails
            assert [m.training for m in (wrapped, wrapped.norm, net)] == [mode, not mode, mode]
            assert wrapped.seen[-1] == (False,) * 3


def test_a_module_that_evaluates_is_in_evaluation_mode():
    """Otherwise its own layers would drop units, and learn from the validation set."""
    net = zero_line()
    wrapped = Adapter(net, lambda pred, y: (pred, y))
    learn = own_learner(net, None, [(X, Y)], loss_func=nn.MSELoss(), eval_step=wrapped, metrics=mae)
    learn.fit(1)
    learn.validate()
    assert wrapped.seen == [(False,) * 3] * 2 and wrapped.training and wrapped.norm.training
    assert wrapped.norm.running_mean == 0 and wrapped.norm.num_batches_tracked == 0
    wrapped.returns = lambda pred, y: 1 / 0
    with pytest.raises(ZeroDivisionError):
        learn.validate()
    assert wrapped.training and wrapped.norm.training


def test_an_optimizer_of_another_model_is_told():
    """A model that was made anew, and the optimizer was not, would be trained in vain."""
    net = zero_line()
    learn = own_learner(net, TrainStep(net, nn.MSELoss(), sgd(net)), [(X, Y)])
    learn.fit(1)
    learn.model = zero_line()
    with pytest.raises(ValueError, match="holds no parameter of learn.model"):
        learn.fit(1)
    for step in (TrainStep(loss_func=nn.MSELoss(), opt=sgd(zero_line())), ClipStep(net, nn.MSELoss(), sgd(zero_line()))):
        with pytest.raises(ValueError, match="holds no parameter of learn.model"):
            own_learner(net, step, [(X, Y)]).fit(1)


def test_predictions_of_a_model_that_gives_none():
    learn = parts_learner()
    with pytest.raises(ValueError, match="no batch has a prediction"):
        learn.get_preds()


@pytest.mark.parametrize("loss_scale", [1.0, 64.0])
def test_a_closure_returns_what_its_gradients_are_of(loss_scale):
    """Or a line search would compare a slope with something else's values."""
    found = []

    class Search(torch.optim.SGD):
        def step(self, closure):
            found.append([closure().item() for _ in range(2)])

    net = zero_line()
    for reduction in ("none", "sum"):
        loss = ClosureStep(net, nn.MSELoss(reduction=reduction), Search(net.parameters()), loss_scale)(X, Y)
        assert loss.sum() == 276
    assert found == [[276.0] * 2] * 2


# A function that only returns the loss, and a model that computes its own


def line_with(train_step=None, **kwargs):
    learn = line_learner(**kwargs)
    learn.train_step = (lambda x, y: nn.functional.mse_loss(learn.model(x), y)) if train_step is None else train_step(learn)
    return learn


def test_a_train_step_that_only_returns_the_loss_trains():
    """It trained nothing, and nobody was told."""
    learn = line_with()
    learn.fit(1)
    assert ab(learn) == (pytest.approx(0.72), pytest.approx(1.08))
    assert learn.recorder.last().raw_losses[0] == 13 and learn.recorder.values[0][1] == pytest.approx(5.3248)
    learn.lr_find(num_it=5, show_plot=False)
    learn.fit(1)
    assert ab(learn) == (pytest.approx(1.1808), pytest.approx(1.7712))


def test_callbacks_work_on_a_loss_that_a_function_returned():
    learn = line_with()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(1, cbs=cbnb.GradientClip(1e-3, kind="value"))
    assert ab(learn) == (pytest.approx(2e-4), pytest.approx(2e-4))
    learn = line_with()
    learn.fit(1, cbs=cbnb.GradientAccumulation(16))
    assert ab(learn) == (pytest.approx(0.4), pytest.approx(0.6))
    learn = line_with(lambda learn: lambda x, y: dict(one=learn.model(x).mean() * 0, loss=nn.functional.mse_loss(learn.model(x), y)))
    learn.fit(1, cbs=cbnb.Callback(after_loss=lambda self: setattr(self.learn, "loss_grad", 2 * self.loss_grad)))
    assert ab(learn) == (pytest.approx(1.28), pytest.approx(1.92))


def trains_by_itself(learn, detached):
    opt = torch.optim.SGD(learn.model.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = nn.functional.mse_loss(learn.model(x), y)
        loss.backward()
        opt.step()
        return loss.detach() if detached else loss

    return step


def trains_without_an_optimizer(learn, detached):
    def step(x, y):
        loss = nn.functional.mse_loss(learn.model(x), y)
        grads = torch.autograd.grad(loss, [learn.model.a, learn.model.b])
        for p, g in zip((learn.model.a, learn.model.b), grads):
            p.data.sub_(0.1 * g)
        return loss.detach() if detached else loss

    return step


@pytest.mark.filterwarnings("ignore:train_step updates the weights without learn.opt")
@pytest.mark.parametrize("kind", [trains_by_itself, trains_without_an_optimizer])
@pytest.mark.parametrize("detached", [True, False])
def test_a_train_step_that_has_trained_is_not_trained_twice(kind, detached):
    learn = line_with(lambda learn: kind(learn, detached), lr=0.7)
    with pytest.raises(ValueError, match=r"step updates the weights itself.*pass train_step=UpdateStep\(step\)"):
        learn.fit(1)
    learn = line_with(lambda learn: cbnb.UpdateStep(kind(learn, detached)), lr=0.7)
    learn.fit(1)
    assert ab(learn) == (pytest.approx(0.72), pytest.approx(1.08))


@pytest.mark.filterwarnings("ignore:train_step updates the weights without learn.opt")
def test_a_train_step_on_another_model_is_left_alone():
    """Its loss has a graph, which does not lead to the learner's model."""
    other = Line()
    opt = torch.optim.SGD(other.parameters(), lr=0.1)

    def step(x, y):
        opt.zero_grad()
        loss = nn.functional.mse_loss(other(x), y)
        loss.backward()
        opt.step()
        return loss

    learn = line_learner(train_step=cbnb.UpdateStep(step), valid=False)
    learn.fit(1)
    assert (other.a.item(), other.b.item()) == (pytest.approx(0.72), pytest.approx(1.08)) and ab(learn) == (0, 0)


def test_a_train_step_that_detaches_its_loss_is_an_error():
    learn = line_with(lambda learn: lambda x, y: nn.functional.mse_loss(learn.model(x), y).detach())
    with pytest.raises(
        ValueError,
        match="does not depend on the weights that learn.opt trains.*Otherwise compute the loss from learn.model, without detach",
    ):
        learn.fit(1)
    assert ab(learn) == (0, 0)


class Labelled(nn.Module):
    """As in transformers: takes labels, returns loss and logits."""

    def __init__(self, form="dict"):
        super().__init__()
        self.body, self.form = nn.Linear(3, 2), form

    def forward(self, ids, labels=None):
        logits = self.body(ids)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        if self.form == "dict":
            return dict(loss=loss, logits=logits, hidden_states=(ids,))
        if self.form == "object":
            return types.SimpleNamespace(loss=loss, logits=logits)
        return (logits,) if loss is None else (loss, logits)


def labelled_loaders(**kwargs):
    torch.manual_seed(0)
    x = torch.randn(16, 3)
    rows = [dict(ids=v, labels=(v.sum() > 0).long()) for v in x]
    return cbnb.DataLoaders.from_datasets(rows, rows, bs=8, shuffle=False, device="cpu", **kwargs)


@pytest.mark.parametrize("form", ["dict", "object", "tuple"])
@pytest.mark.parametrize("targets", [(), "labels"])
def test_a_model_that_computes_its_loss_needs_no_loss_func(form, targets):
    """It was refused: loss_func is missing."""
    torch.manual_seed(1)
    learn = cbnb.Learner(labelled_loaders(targets=targets), Labelled(form), lr=0.1, metrics=cbnb.accuracy, opt_func=torch.optim.SGD)
    plain_model, loss = copy.deepcopy(learn.model.body), nn.CrossEntropyLoss()
    learn.fit(2)
    opt = torch.optim.SGD(plain_model.parameters(), lr=0.1)
    for batch in [*learn.dls.train] * 2:
        opt.zero_grad()
        loss(plain_model(batch["ids"]), batch["labels"]).backward()
        opt.step()
    assert torch.allclose(learn.model.body.weight, plain_model.weight)
    rows = learn.dls.train.dataset
    x, y = torch.stack([r["ids"] for r in rows]), torch.stack([r["labels"] for r in rows])
    expected = [loss(plain_model(x), y).item(), (plain_model(x).argmax(1) == y).float().mean().item()]
    assert learn.validate() == pytest.approx(expected) == learn.recorder.values[-1][1:]
    preds, targs = learn.get_preds()
    assert torch.allclose(preds, plain_model(x), atol=1e-6) and torch.equal(targs, y)
    assert torch.allclose(learn.predict(dict(ids=x[0]))[1], plain_model(x[0]), atol=1e-6)
    learn.lr_find(num_it=5, show_plot=False)


def test_a_function_that_trains_a_model_with_labels_is_validated_by_its_loss():
    model = Labelled()
    learn = cbnb.Learner(labelled_loaders(), model, train_step=lambda batch: model(**batch)["loss"], lr=0.1)
    learn.fit(2)
    losses = [row[1] for row in learn.recorder.values]
    assert losses[1] < losses[0]


def test_a_model_that_returns_no_loss_is_told_so():
    with pytest.raises(ValueError, match=r"loss_func is missing.*pass train_step=ModelLossStep\(\)"):
        cbnb.Learner(labelled_loaders(), nn.Linear(3, 2))
    dls = cbnb.DataLoaders([dict(ids=torch.ones(2, 3))], device="cpu")
    with pytest.raises(ValueError, match="Labelled returned no loss: pass it the labels by name"):
        cbnb.Learner(dls, Labelled()).fit(1)


def test_metrics_on_a_dict_name_the_part_to_choose():
    class Dict(nn.Linear):
        def forward(self, x):
            return dict(logits=super().forward(x))

    def loss(pred, y):
        return nn.functional.cross_entropy(pred["logits"], y)

    dls = labelled_loaders(targets="labels")
    dls = cbnb.DataLoaders([(b["ids"], b["labels"]) for b in dls.train], [(b["ids"], b["labels"]) for b in dls.valid], device="cpu")
    with pytest.raises(AttributeError) as caught:
        cbnb.Learner(dls, Dict(3, 2), loss, metrics=cbnb.accuracy).fit(1)
    assert any("on(metric, 'logits', -1)" in note for note in caught.value.__notes__)
    learn = cbnb.Learner(dls, Dict(3, 2), loss, metrics=cbnb.metric_on(cbnb.accuracy, "logits", 1))
    learn.fit(1)
    assert 0 <= learn.recorder.values[0][2] <= 1


# --- what a function of the batch may keep from the learner ---


@pytest.mark.parametrize("which", ["total", "accuracy"])
def test_the_loss_in_a_dict_is_what_is_trained(which):
    """All numbers were added up: an accuracy went into train_loss, and the terms of a loss counted twice."""
    net = Line()

    def step(x, y):
        loss = (net(x) - y).square().mean()
        return dict(loss=loss, half=loss / 2, other=loss / 2) if which == "total" else dict(accuracy=0.5, loss=loss)

    learn = line_learner(model=net, loss_func=None, train_step=step, valid=False)
    learn.fit(1)
    ref = line_learner(valid=False)
    ref.fit(1)
    assert ab(learn) == ab(ref) and list(learn.recorder.last().raw_losses) == list(ref.recorder.last().raw_losses)
    others = ["half", "other"] if which == "total" else ["accuracy"]
    assert learn.recorder.last().metric_names == ["epoch", "train_loss", *others, "time"]


def keeping(net, opt):
    """A function with an optimizer that nobody else can see."""

    def step(x, y):
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


@pytest.mark.filterwarnings("ignore:opt_func is not used")
def test_a_sweep_of_a_rate_that_nobody_uses_is_refused():
    """It recommended a rate."""
    net = Line()
    learn = line_learner(model=net, train_step=cbnb.UpdateStep(keeping(net, sgd(net))))
    with pytest.raises(ValueError, match="updates the weights with an optimizer of its own, so lr_find cannot change the rate"):
        learn.lr_find(num_it=4)
    assert ab(learn) == (0, 0)
    opt = sgd(net)
    known = line_learner(model=net, train_step=cbnb.UpdateStep(keeping(net, opt), opt))
    assert len(known.lr_find(num_it=4, show_plot=False).lrs) == 4 and not opt._optimizer_step_post_hooks


def test_trials_of_a_step_with_its_own_optimizer():
    """The first run of the trials makes no update, only a validation."""
    torch.manual_seed(0)
    x, y = torch.rand(20, 3), torch.rand(20, 1)
    data = torch.utils.data.TensorDataset(x, y)
    net = torch.nn.Linear(3, 1)
    opt = sgd(net)
    dls = cbnb.DataLoaders.from_datasets(data, data, bs=4, device="cpu")
    learn = cbnb.Learner(dls, net, train_step=cbnb.UpdateStep(keeping(net, opt), opt))
    learn.remove_cb(cbnb.ProgressCallback)
    assert len(learn.lr_find(trials=True, show_plot=False).trials) > 0


def test_a_fit_whose_rates_have_no_effect_says_so_once():
    net = Line()
    learn = line_learner(model=net, train_step=cbnb.UpdateStep(keeping(net, sgd(net))))
    with pytest.warns(UserWarning, match="without learn.opt, so the rates of this learner had no effect") as warned:
        learn.fit(1, 0.5)
        learn.fit(1)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert not learn.opt._optimizer_step_post_hooks


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["given", "several", "late", "stopped", "learn"])
def test_an_optimizer_that_the_learner_knows_is_no_reason_to_warn(kind):
    """Also if the function steps it not in each batch, or the fit ends before it does."""
    net, calls = Line(), []
    opt = MultiOptimizer([SGD([net.a], lr=0.1), SGD([net.b], lr=0.1)]) if kind == "several" else sgd(net)

    def step(x, y):
        loss = (net(x) - y).square().mean()
        loss.backward()
        calls.append(1)
        if kind == "stopped":
            raise ArithmeticError
        if kind != "late" or len(calls) == 2:
            for part in getattr(learn.opt, "optimizers", [learn.opt]):
                part.step()
                part.zero_grad()
        return loss

    learn = line_learner(model=net, train_step=cbnb.UpdateStep(step), **({} if kind in ("learn", "stopped") else dict(opt_func=opt)))
    if kind == "stopped":
        with pytest.raises(ArithmeticError):
            learn.fit(1)
    else:
        learn.fit(1)
        learn.fit(1)
        assert ab(learn) != (0, 0)


@pytest.mark.parametrize("kind", ["function", "model"])
def test_mixing_is_refused_where_the_step_has_its_own_loss(kind):
    """After a first fit it was not: the inputs were mixed, and the targets were not."""
    net = Line()
    step = ModelLossStep() if kind == "model" else lambda x, y: (net(x) - y).square().mean()
    if kind == "model":
        net = Parts()
        net.forward = lambda x, y: ((net.wide * x - y).square().mean(), net.wide * x)
    learn = line_learner(model=net, train_step=step, valid=False)  # it has a loss_func, too
    learn.fit(1)
    with pytest.raises(ValueError, match="and mix the items in the dataset or in the step"):
        learn.fit(1, cbs=cbnb.MixUp())


def test_a_fit_that_is_tried_again_after_an_error_warns_too():
    """It looked for an exception, and took the one that was being handled around the fit for its own."""
    net = Line()
    learn = line_learner(model=net, train_step=cbnb.UpdateStep(keeping(net, sgd(net))))
    try:
        raise MemoryError
    except MemoryError:
        with pytest.warns(UserWarning, match="rates of this learner had no effect"):
            learn.fit(1, 0.5)


# --- the parts, one by one ---


class Modes(Line):
    """Notes in which mode it is called, and whether gradients are recorded."""

    def __init__(self):
        super().__init__()
        self.seen, self.drop = [], nn.Dropout(0.5)

    def forward(self, x):
        self.seen.append((self.training, self.drop.training, torch.is_grad_enabled()))
        return super().forward(x)


def test_a_step_called_by_hand_sees_to_the_mode():
    """Training leaves the model in training mode; evaluation leaves each module as it was, also after an error."""
    x, y = line_batches()[0]
    net = Modes()
    net.eval()
    assert TrainStep(net, nn.MSELoss(), sgd(net))(x, y) == 13 and net.training
    net.drop.eval()
    evaluate = cbnb.EvalStep(net, nn.MSELoss())
    loss, pred, target = evaluate((x, y))
    assert (loss.item(), target) == (pytest.approx(8.32), y) and not pred.requires_grad and net.training and not net.drop.training
    assert net.seen == [(True, True, True), (False, False, False)]
    with pytest.raises(TypeError):
        evaluate(x, y, y)
    assert net.training and not net.drop.training
    (pred,) = cbnb.EvalStep(net, nn.MSELoss())(x)
    assert pred.shape == x.shape and cbnb.EvalStep(net)(x, y)[0].shape == x.shape


def test_a_batch_may_be_given_whole_or_by_its_elements():
    class Sum(Line):
        def forward(self, x, z=0):
            return super().forward(x) + z

    x, y = line_batches()[0]
    net = Sum()
    step = cbnb.EvalStep(net, lambda pred, y: (pred - y).mean())
    for batch in ([(x, y)], [[x, y]], [x, y]):
        assert step(*batch)[0] == -3
    assert step(x, torch.ones(8), y)[0] == -2 and len(step([x, torch.ones(8), y])) == 3
    two = cbnb.EvalStep(net, lambda pred, y, z: (pred - y - z).mean(), n_inp=1)
    assert two(x, y, y)[0] == -6 and len(two(x, y, y)) == 4
    trains = TrainStep(net, lambda pred, y, z: (pred - y - z).mean(), sgd(net), n_inp=1)
    assert trains(x, y, y) == -6


def test_several_losses_may_be_vectors():
    """The gradient is that of the sum, and what is reported is the mean."""

    class Vectors(Parts):
        def forward(self, x, y):
            e = ((self.wide + self.deep) * x - y).square()
            return e, 3 * e

    net = Vectors()
    step = MultiLossStep(net, [SGD([net.wide], lr=0.01), SGD([net.deep], lr=0.01)])
    one, two = step(*PARTS_BATCH)
    assert one.shape == two.shape == (2, 1) and one.flatten().tolist() == [1, 1] and two.flatten().tolist() == [3, 3]
    assert weights(net) == pytest.approx([1 - 0.01 * 2 * (1 + 2), 2 - 0.01 * 6 * (1 + 2)])
    net = Vectors()
    learn = own_learner(net, MultiLossStep(net, [SGD([net.wide], lr=0.01), SGD([net.deep], lr=0.01)]), [PARTS_BATCH])
    learn.fit(1)
    assert learn.recorder.last().raw_losses[0] == 4


@pytest.mark.parametrize(
    "found, n, words",
    [
        ((1, 2, 3), 2, None),
        ([1, 2], 2, None),
        ((1,), 2, "2 optimizers need 2 losses, but got a tuple of 1"),
        ([], 1, "1 optimizer needs 1 loss, but got a list of 0"),
        (3.0, 1, "but got a float"),
    ],
)
def test_losses_are_counted(found, n, words):
    from cbnb.callbacks.steps import n_losses

    if words is None:
        assert n_losses(found, n) == tuple(found)
    else:
        with pytest.raises(ValueError, match=words):
            n_losses(found, n)


@pytest.mark.parametrize("by_function", [True, False])
def test_losses_with_names_have_columns(by_function):
    """By hand as without names: e = 1, the losses 1.5 and 3; in validation after it, too."""

    class Named(Parts):
        def forward(self, x, y=None):
            if by_function:
                return (self.wide + self.deep) * x
            wide, deep = super().forward(x, y)[:2]
            return dict(wide=wide, deep=deep), x

    net, e = Named(), nn.MSELoss()
    losses = (lambda pred, y: dict(wide=e(pred, y) + net.wide**2 / 2, deep=3 * e(pred, y))) if by_function else None
    step = MultiLossStep(net, [SGD([net.wide], 0.1), SGD([net.deep], 0.1)], losses)
    learn = own_learner(net, step, [PARTS_BATCH])
    learn.fit(1)
    run = learn.recorder.last()
    assert weights(net) == pytest.approx([0.6, 1.1])
    assert run.metric_names[:4] == ["epoch", "train_loss", "wide", "deep"] and list(run.raw_losses) == [4.5]
    assert (run.steps["wide"], run.steps["deep"], run["wide"]) == ([1.5], [3], [1.5])
    assert [v.item() for v in step(*PARTS_BATCH).values()] != [1.5, 3]  # called by hand


def test_names_are_as_many_as_optimizers():
    net = Parts()
    step = MultiLossStep(lambda x, y: dict(a=net.wide * x.sum()), [SGD([net.wide], 0.1), SGD([net.deep], 0.1)])
    with pytest.raises(ValueError, match="2 optimizers need 2 losses, but got a dict of 1"):
        step(*PARTS_BATCH)


def test_predictions_that_follow_the_losses_are_one_or_several():
    class Predicts(Parts):
        def forward(self, x, y):
            return (*super().forward(x, y), *[x] * self.n)

    x, y = PARTS_BATCH
    for n in (0, 1, 2):
        net = Predicts()
        net.n, seen = n, []
        note = cbnb.Callback(after_pred=lambda cb: seen.append(cb.learn.pred))
        learn = own_learner(net, MultiLossStep(net, [SGD([net.wide], 0.1), SGD([net.deep], 0.1)]), [PARTS_BATCH], cbs=note)
        learn.fit(1)
        assert seen[0] is (None if n == 0 else x) if n < 2 else isinstance(seen[0], tuple) and len(seen[0]) == 2


def test_a_closure_uses_the_gradients_that_are_there_first():
    """Each further call computes them anew; what callbacks see is of the first."""
    calls, seen = [], []

    class Counting(Line):
        def forward(self, x):
            calls.append(torch.is_grad_enabled())
            return super().forward(x)

    class Search(torch.optim.SGD):
        def step(self, closure):
            with torch.enable_grad():
                seen.extend(closure().item() for _ in range(3))
            super().step()

    note = cbnb.Callback(after_step=lambda cb: seen.append((cb.learn.loss.item(), len(calls))))
    learn = line_learner(1, valid=False, model=Counting(), opt_func=Search, train_step=ClosureStep(), cbs=note)
    learn.fit(1)
    assert seen == [13, 13, 13, (13, 3)] and ab(learn) == pytest.approx((0.4, 0.6))


def test_ftrl_evaluates_a_closure_with_gradients():
    w = nn.Parameter(torch.zeros(1))
    opt = FTRL([w], lr=0.1)

    def closure():
        opt.zero_grad()
        loss = (w - 1).square().sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 1 and w.item() > 0 and opt.step() is None


@pytest.mark.parametrize(
    "settings, want",
    [
        (dict(lr_power=-1.0), 2 / 41),
        (dict(lr_power=0.0), 2 / 10),
        (dict(lr_power=0.0, l1=0.5), 1.5 / 10),
        (dict(lr_power=0.0, l2=5.0), 2 / 15),
        (dict(lr_power=0.0, l1=2.0), 0),
        (dict(lr_power=-1.0, initial_accum=1.0), 2 / 50),
    ],
)
def test_one_step_of_ftrl_by_hand(settings, want):
    """z = -2 and n = 0.1 + 4; the weight is (|z| - l1)/(n**-lr_power/lr + l2)."""
    w, still, frozen = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    opt = FTRL([dict(params=[w, still]), dict(params=[frozen], lr=0.0)], lr=0.1, **settings)
    w.grad, frozen.grad = torch.tensor([-2.0]), torch.tensor([-2.0])
    opt.step()
    assert w.item() == pytest.approx(want) and still.item() == frozen.item() == 0 and set(opt.state) <= {w, still}


def test_new_gradients_are_divided_and_older_ones_stay():
    from cbnb.callbacks.steps import unscaled

    old, none = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    for loss_scale in (1, 4):
        old.grad, none.grad = torch.ones(1), None
        with unscaled([old, none], loss_scale):
            (loss_scale * 3 * (old + none)).sum().backward(inputs=[old])
        assert old.grad.item() == 4 and none.grad is None


def test_what_a_loss_is_for_is_found_or_refused():
    from cbnb.callbacks.steps import trainable, with_params

    a, b, frozen = (torch.ones(1, requires_grad=on) for on in (True, True, False))
    opts = [SGD([a, frozen], 0.1), SGD([frozen], 0.1), SGD([b], 0.1)]
    losses = [a * 2, torch.ones(1), b * 2]
    assert [(loss is losses[i], params[0] is p) for (loss, params), i, p in zip(with_params(losses, opts), (0, 2), (a, b))] == [
        (True, True)
    ] * 2
    assert trainable(opts[0]) == [a] and trainable(opts[1]) == []
    with pytest.raises(ValueError, match="loss 2 depends on no parameter of its optimizer"):
        with_params([a * 2, torch.ones(1), torch.ones(1)], opts)


def test_the_state_of_a_step_is_that_of_its_model():
    net, other = Line(), Line()
    with torch.no_grad():
        net.a.add_(5)
    state = TrainStep(net, nn.MSELoss(), sgd(net)).state_dict()
    assert set(state) == {"a", "b"}
    TrainStep(other, nn.MSELoss(), sgd(other)).load_state_dict(state)
    assert other.a.item() == 5


def test_a_loss_of_several_is_mixed_by_nobody():
    """A second call of the loss in one batch, as of mixed targets, is refused; the next batch is a new one."""
    learn = parts_learner(cbs=cbnb.Callback(after_loss=lambda cb: cb.learn.train_step.loss(cb.learn) if cb.learn.training else None))
    with pytest.raises(ValueError, match="a callback has called the step again"):
        learn.fit(1)
    learn = parts_learner(2, cbs=cbnb.Callback(before_backward=lambda cb: (_ for _ in ()).throw(cbnb.CancelBatchException())))
    learn.fit(1)
    assert weights(learn.model) == [1, 2]


# --- a penalty in each evaluation of a closure ---


def curve_data():
    torch.manual_seed(0)
    x = torch.randn(12, 2)
    return [(x, (x**3).sum(1, keepdim=True))]


def curve_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def penalty(model):
    return 0.05 * sum(p.square().sum() for p in model.parameters())


def add(cb, value):
    cb.learn.loss_grad = cb.learn.loss_grad + value


def add_in_place(cb, value):
    cb.learn.loss_grad.add_(value)


def scale_pred(cb):
    cb.learn.pred = cb.learn.pred * 0.5


PENALTIES = dict(
    after_loss=(lambda cb: add(cb, penalty(cb.learn.model)), lambda m, x, y: F.mse_loss(m(x), y) + penalty(m)),
    before_backward=(lambda cb: add_in_place(cb, penalty(cb.learn.model)), lambda m, x, y: F.mse_loss(m(x), y) + penalty(m)),
    after_pred=(scale_pred, lambda m, x, y: F.mse_loss(m(x) * 0.5, y)),
)


@pytest.mark.parametrize("event", PENALTIES)
def test_what_a_callback_does_to_the_loss_is_in_each_evaluation_of_a_closure(event):
    change, loss = PENALTIES[event]
    model, net = curve_net(), curve_net()
    opt = torch.optim.LBFGS(net.parameters(), lr=0.5)
    for x, y in curve_data() * 3:

        def closure(x=x, y=y):
            opt.zero_grad()
            value = loss(net, x, y)
            value.backward()
            return value

        opt.step(closure)
    cb = cbnb.Callback(**{event: lambda cb: change(cb) if cb.training else None})
    learn = cbnb.Learner(cbnb.DataLoaders(curve_data(), None), model, F.mse_loss, torch.optim.LBFGS, 0.5, train_step=ClosureStep(), cbs=cb)
    learn.fit(3)
    assert all(map(torch.equal, model.parameters(), net.parameters()))


def test_callbacks_that_only_look_see_the_first_evaluation():
    seen = []
    learn = cbnb.Learner(
        cbnb.DataLoaders(curve_data(), None),
        curve_net(),
        F.mse_loss,
        torch.optim.LBFGS,
        0.5,
        train_step=ClosureStep(),
        cbs=cbnb.Callback(after_loss=lambda cb: seen.append(cb.loss.item())),
    )
    learn.fit(3)
    assert len(seen) == 3 and learn.train_step.made == ()


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_needs_gradients_in_validation_is_told_how_to_get_them():
    def loss_func(pred, y):
        return torch.autograd.grad(pred.sum(), learn.x, create_graph=True)[0].square().mean()

    def wants_gradients(cb):
        for x in cb.learn.xb:
            x.requires_grad_()

    learn = line_learner(loss_func=loss_func, cbs=cbnb.Callback(before_batch=wants_gradients))
    with pytest.raises(RuntimeError) as caught:
        learn.validate()
    assert any("torch.enable_grad()" in note for note in caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:opt_func is not used")
def test_a_function_that_steps_with_gradients_of_its_own_is_not_stepped_again():
    model = Line()
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def train(x, y):
        loss = nn.functional.mse_loss(model(x), y)
        for p, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            p.grad = grad
        opt.step()
        opt.zero_grad()
        return loss

    learn = line_learner(n=1, valid=False, model=model, loss_func=None, train_step=cbnb.UpdateStep(train, opt))
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.4, 0.6))


@pytest.mark.parametrize("evaluate", [lambda net, x: net(x), lambda net, x: dict(pred=net(x))])
def test_an_evaluation_that_returns_only_predictions_keeps_the_targets_of_the_batch(evaluate):
    learn = line_learner(metrics=mae)
    expected = learn.validate()[1]
    learn.eval_step = lambda x, y: evaluate(learn.model, x)
    assert learn.validate()[1] == expected and learn.get_preds()[1] is not None


def test_a_step_without_a_model_has_no_state():
    """It was AttributeError: 'NoneType' object has no attribute 'state_dict'."""
    step = TrainStep()
    assert step.state_dict() == {}
    step.load_state_dict({})
    with pytest.raises(
        RuntimeError, match=r"TrainStep has no model to load this state into: create it with a model, as in TrainStep\(model\)"
    ):
        step.load_state_dict(Line().state_dict())
    learn = line_learner(train_step=step)
    assert step.state_dict() == {}
    learn.holder = step
    learn.load_state_dict(learn.state_dict())


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: cbnb.TrainStep("net"), "model='net' cannot be called"),
        (lambda: cbnb.TrainStep(nn.Linear(1, 1), "mse"), "loss_func='mse' cannot be called"),
        (lambda: cbnb.UpdateStep(None), "func=None is not a function"),
        (lambda: cbnb.UpdateStep(print, opt="adam"), "'adam' is not an optimizer"),
    ],
)
def test_parts_of_a_step_that_cannot_work_are_refused_at_once(make, words):
    with pytest.raises(TypeError, match=words):
        make()


def test_a_closure_needs_one_optimizer():
    model = nn.Linear(1, 1)
    several = cbnb.MultiOptimizer([torch.optim.SGD(model.parameters(), 0.1)])
    with pytest.raises(TypeError, match="ClosureStep works with one optimizer"):
        line_learner(model=model, train_step=cbnb.callbacks.steps.ClosureStep(opt=several))


def test_a_step_with_other_parameters_gets_a_note_about_the_call():
    learn = line_learner(train_step=lambda batch: batch.mean())
    with pytest.raises(TypeError) as e:
        learn.fit(1)
    assert any("here with 2 values: define it with as many parameters" in note for note in e.value.__notes__)
