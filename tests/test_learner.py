"""The learner's own promises that no other file of tests is about."""

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
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
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches[:1], device="cpu"), both.net, train_step=both.train_on, eval_step=both.evaluate)
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
            seen.append((torch.is_grad_enabled(), self.training))
            return super().forward(x)

    learn = line_learner(model=Noting())
    text = learn.summary()
    assert seen == [(False, False)] and learn.model.training and "2 parameters, 2 of them trainable" in text
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
