"""Small things that code for fastai v2 imports: they mean here what they mean there."""

import math

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.dialects import fastai_v2 as v2
from helpers import line_learner


def test_schedule_functions_and_annealer():
    """`sched_cos(start, end, pos)` and the others, for numbers and for groups; `annealer` makes schedules."""
    assert [v2.sched_no(1.0, 3.0, 0.25), v2.sched_lin(1.0, 3.0, 0.25), v2.sched_exp(1.0, 16.0, 0.25)] == [1.0, 1.5, 2.0]
    assert v2.sched_cos(1.0, 3.0, 0.25) == pytest.approx(1 + (1 + math.cos(math.pi * 0.75)))
    assert v2.sched_lin([1.0, 2.0], [3.0, 6.0], 0.5) == [2.0, 4.0]
    half = v2.annealer(lambda start, end, pos: start + pos * (end - start) / 2)(0.0, 4.0)
    learn = line_learner(4)
    learn.fit(1, cbs=cbnb.ParamScheduler({"lr": half}))
    assert learn.recorder.lrs == [0.0, 0.5, 1.0, 1.5]


def test_suggestion_methods_are_the_rules():
    """`SuggestionMethod.Valley` and its sisters are taken by `lr_find`."""
    assert (v2.SuggestionMethod.Slide, v2.SuggestionMethod.Steep) == (cbnb.slide, cbnb.steep)
    found = line_learner(8).lr_find(num_it=40, suggest_funcs=(v2.SuggestionMethod.Valley, v2.SuggestionMethod.Minimum), show_plot=False)
    assert set(found.suggestions) == {"valley", "minimum"}


def test_parameters_are_counted():
    """Numbers, and whether any is trained; a module without parameters has 0."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    assert v2.total_params(net) == (16, True) and v2.total_params(net[1]) == (0, False)
    assert v2.has_params(net) and not v2.has_params(net[1])
    net[0].weight.requires_grad_(False)
    assert v2.total_params(net) == (16, True)
    net[0].bias.requires_grad_(False)
    assert v2.total_params(net) == (16, False)


def test_only_frozen_batch_norm_layers_are_switched():
    """Nested ones too; those that train, those without parameters and other layers keep their mode."""
    frozen, trained, bare = nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm1d(2, affine=False)
    frozen.requires_grad_(False)
    net = nn.Sequential(nn.Sequential(frozen), trained, bare, nn.Dropout())
    assert all(isinstance(m, v2.bn_types) for m in (frozen, trained, bare))
    v2.set_bn_eval(net)
    assert [m.training for m in (frozen, trained, bare, net[3])] == [False, True, True, True]
    v2.set_bn_eval(net, use_eval=False)
    assert frozen.training


def test_reduce_loss_and_replacing_yield():
    """A wrong reduction is named; the attribute is back after an error."""
    loss = torch.tensor([1.0, 3.0])
    assert [v2.reduce_loss(loss).item(), v2.reduce_loss(loss, "sum").item()] == [2, 4] and v2.reduce_loss(loss, "none") is loss
    with pytest.raises(ValueError, match="reduction='avg'"):
        v2.reduce_loss(loss, "avg")
    layer = nn.Dropout(0.5)
    with pytest.raises(ZeroDivisionError):
        with v2.replacing_yield(layer, "p", 0.1):
            assert layer.p == 0.1
            raise ZeroDivisionError
    assert layer.p == 0.5


def test_cast_to_tensor_takes_off_subclasses():
    """The model and the loss get plain tensors with the same memory, in training and validation."""

    class Image(torch.Tensor):
        pass

    x = torch.ones(4, 1).as_subclass(Image)
    kinds = []
    note = cbnb.Callback(before_batch=lambda cb: kinds.append((type(cb.x), type(cb.y), cb.x.data_ptr() == x.data_ptr())))
    note.order = 10
    dls = cbnb.DataLoaders([(x, x)], [(x, x)], device="cpu")
    line_learner(dls=dls, cbs=[v2.CastToTensor, note]).fit(1)
    assert kinds == [(torch.Tensor, torch.Tensor, True)] * 2


class Recurrent(nn.Module):
    """Gives (output, activations of each layer, the same after dropout)."""

    def __init__(self):
        super().__init__()
        self.w, self.calls = nn.Parameter(torch.ones(())), []

    def reset(self):
        self.calls.append("reset")

    def forward(self, x):
        self.calls.append("train" if self.training else "valid")
        h = self.w * x.cumsum(1)
        return h.sum(1), [None, h], [None, 2 * h]


def recurrent_fit(*cbs, n=3, target=6.0):
    batches = [(torch.ones(2, n), torch.full((2,), target))]
    dls = cbnb.DataLoaders(batches, batches, device="cpu")
    learn = cbnb.Learner(dls, Recurrent(), nn.MSELoss(), torch.optim.SGD, lr=0.01, cbs=list(cbs))
    learn.fit(1)
    return learn


def test_recurrent_models_are_reset_and_regularized():
    """alpha adds its mean square after dropout, beta that of the changes; the recorded loss has neither, validation is without."""
    plain = recurrent_fit(*v2.rnn_cbs())
    assert plain.model.calls == ["reset", "reset", "train", "reset", "valid", "reset"] and plain.model.w == 1
    assert plain.rnn.out.shape == (2, 3) and len(v2.rnn_cbs()) == 2 and len(v2.rnn_cbs(beta=1)) == 3
    for how, slope in (
        (dict(alpha=0.5), 0.5 * 4 * 2 * 14 / 3),
        (dict(beta=1.0), 2.0),
        (dict(alpha=0.5, beta=1.0), 0.5 * 4 * 2 * 14 / 3 + 2),
    ):
        learn = recurrent_fit(*v2.rnn_cbs(**how))
        assert learn.model.w.item() == pytest.approx(1 - 0.01 * slope) and learn.recorder.losses[0] == pytest.approx(0, abs=1e-10)
    single = recurrent_fit(*v2.rnn_cbs(beta=1.0), n=1, target=1.0)  # nothing changes in one step
    assert single.model.w == 1
    two = recurrent_fit(*v2.rnn_cbs(beta=1.0), n=2, target=3.0)
    assert two.model.w.item() == pytest.approx(1 - 0.01 * 2)
    for name in ("alpha", "beta"):
        with pytest.raises(ValueError, match=f"{name}=-1"):
            v2.RNNRegularizer(**{name: -1})


def test_a_model_without_reset_is_left_alone():
    learn = line_learner(cbs=v2.ModelResetter)
    learn.fit(1)
    assert learn.recorder.last().status == "done"


def test_an_output_that_is_no_list_is_the_last():
    class Flat(Recurrent):
        def forward(self, x):
            output, (_, h), _ = super().forward(x)
            return [None, output], h, 3 * h

    batches = [(torch.ones(2, 3), torch.full((2,), 6.0))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, device="cpu"), Flat(), nn.MSELoss(), torch.optim.SGD, cbs=v2.RNNCallback)
    learn.fit(1)
    assert learn.rnn.raw_out.tolist() == [[1, 2, 3]] * 2 and learn.rnn.out.tolist() == [[3, 6, 9]] * 2 and learn.recorder.losses[0] == 0


def test_a_metric_by_mk_metric():
    """`mk_metric(f)` is what a learner makes of `f`."""
    assert v2.mk_metric(cbnb.accuracy).name == "accuracy" and isinstance(v2.mk_metric(cbnb.accuracy), cbnb.AvgMetric)
