"""What makes a fit faster or better, together with everything else: a table of FEATURES by COMPANIONS.

Each cell of the table trains with the feature beside the companion, and is compared with the companion alone. A feature must not change what
the companion does: the same rates, the same number of updates, and weights that agree within the precision of the feature.

To add a feature, add a line to FEATURES. To add a companion, write a function with its name in COMPANIONS. A pair that cannot
work has a line in REFUSED, with words of the reason that it gives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

import cbnb.all as cbnb
from cbnb.callbacks.averaging import EMA
from cbnb.callbacks.compile import Compile
from cbnb.callbacks.precision import ChannelsLast, MixedPrecision
from cbnb.callbacks.steps import ClosureStep, MultiLossStep
from resumed import PowerFailed, fails_before

N_BATCHES, N_EPOCH = 4, 2


@dataclass
class Feature:
    make: Callable[[], list]  # its callbacks, made anew
    close: float  # how far a weight may be from that without it; 0: not a bit


FEATURES = {
    "bf16": Feature(lambda: [MixedPrecision("bf16")], 2e-2),
    "fp16": Feature(lambda: [MixedPrecision("fp16")], 3e-3),
    "EMA": Feature(lambda: [EMA(0.9, apply=False)], 0),
    "ChannelsLast": Feature(lambda: [ChannelsLast()], 1e-5),
    "Compile": Feature(lambda: [Compile(backend="eager", verbose=False)], 0),
    "Compile('step')": Feature(lambda: [Compile("step", backend="eager", verbose=False)], 0),
    "aot_eager": Feature(lambda: [Compile(backend="aot_eager", verbose=False)], 1e-6),
    "bf16, Compile": Feature(lambda: [MixedPrecision("bf16"), Compile(backend="eager", verbose=False)], 2e-2),
    "EMA, ChannelsLast, Compile('step')": Feature(
        lambda: [EMA(0.9, apply=False), ChannelsLast(), Compile("step", backend="eager", verbose=False)], 1e-5
    ),
    "bf16, EMA, ChannelsLast": Feature(lambda: [MixedPrecision("bf16"), EMA(0.9, apply=False), ChannelsLast()], 2e-2),
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    )


def batches(n: int, seed: int) -> list:
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, 2, 8, 8, generator=gen)
    return list(zip(x, x.mean((2, 3, 4)).mul(20).long().clamp(-1, 1) + 1))


def learner(cbs: Any = (), **kwargs) -> cbnb.Learner:
    dls = cbnb.DataLoaders(batches(N_BATCHES, 0), batches(1, 1), device="cpu")
    settings = dict(loss_func=nn.CrossEntropyLoss(), opt_func=torch.optim.SGD, lr=0.05, metrics=cbnb.accuracy) | kwargs
    model = settings.pop("model", None) or net()
    return cbnb.Learner(dls, model, cbs=list(cbs), **settings).remove_cb(cbnb.ProgressCallback)


class Counts(cbnb.Callback):
    """Real updates of the weights."""

    order, n, cancelled = 100, 0, False

    def after_cancel_step(self):
        self.cancelled = True

    def after_step(self):
        self.n, self.cancelled = self.n + (not self.cancelled), False


def result(learn: cbnb.Learner) -> dict[str, Any]:
    """What a fit has come to."""
    run = learn.recorder.last()
    return dict(
        weights=[t.detach().clone() for t in learn.model.state_dict().values()],
        losses=list(run.raw_losses),
        lrs=run.hyper("lr"),
        updates=learn.counts.n,
        epochs=[row["complete"] for row in run.epochs],
    )


def trained(learn: cbnb.Learner, fit: Callable[[cbnb.Learner], Any] | None = None) -> dict[str, Any]:
    learn.add_cb(Counts())
    fit(learn) if fit else learn.fit(N_EPOCH)
    return result(learn)


# --- the companions: each is called with the callbacks of the feature and a folder, and returns the result ---


def nothing(cbs, folder):
    return trained(learner(cbs))


def one_cycle(cbs, folder):
    return trained(learner(cbs), lambda learn: learn.fit_one_cycle(N_EPOCH, 0.05))


def clip(cbs, folder):
    learn = learner([*cbs, cbnb.GradientClip(0.1)])
    found = trained(learn)
    assert 0.1 < learn.gradient_clip.norm < 100  # that of true gradients
    return found


def accumulation(cbs, folder):
    found = trained(learner([*cbs, cbnb.GradientAccumulation(12)]))
    assert found["updates"] == N_BATCHES * N_EPOCH // 2
    return found


def accumulation_and_clip(cbs, folder):
    return trained(learner([*cbs, cbnb.GradientAccumulation(18), cbnb.GradientClip(0.1)]))


def several_losses(cbs, folder):
    model = net()
    opts = [torch.optim.SGD(part.parameters(), lr=0.05) for part in (model[:4], model[4:])]
    losses = lambda pred, y: (nn.functional.cross_entropy(pred, y),) * 2  # noqa: E731
    step = MultiLossStep(model, opts, losses)
    return trained(learner(cbs, model=model, train_step=step, opt_func=torch.optim.AdamW, lr=1e-3), lambda learn: learn.fit(N_EPOCH, 0.05))


def function_step(cbs, folder):
    learn = learner(cbs)
    learn.train_step = lambda x, y: nn.functional.cross_entropy(learn.model(x), y)
    return trained(learn)


def closure_step(cbs, folder):
    return trained(learner(cbs, train_step=ClosureStep()))


def lr_find(cbs, folder):
    learn = learner(cbs)
    before = [t.detach().clone() for t in learn.model.state_dict().values()]
    found = learn.lr_find(num_it=20, end_lr=0.01, stop_div=False, show_plot=False)
    assert len(found.lrs) == 20
    assert all(torch.equal(a, b) for a, b in zip(before, learn.model.state_dict().values()))
    return trained(learn)


def early_stopping(cbs, folder):
    stop = cbnb.EarlyStopping(min_delta=10.0, patience=1)
    learn = learner([*cbs, stop])
    found = trained(learn, lambda learn: learn.fit(10))
    assert stop.stopped_epoch == 1
    return found


def save_model(cbs, folder):
    learn = learner([*cbs, cbnb.SaveModel()], path=folder)
    found = trained(learn)
    best = min(row[1] for row in learn.recorder.values)
    with learn.removed_cbs(EMA):
        assert learn.validate()[0] == pytest.approx(best, rel=1e-4)  # the weights that were validated
    if any(isinstance(cb, EMA) for cb in cbs):
        found.pop("weights")  # those of the average
    return found


def resume(cbs, folder):
    def make(where, *more):
        return learner([*cbs, cbnb.Checkpoint(every_steps=1, path=folder / where), *more], path=folder).add_cb(Counts())

    whole = make("whole")
    whole.fit_one_cycle(N_EPOCH, 0.05)
    expected = result(whole)
    whole.remove_cbs(cbs)
    first = make("half", fails_before(N_BATCHES + 1))
    with pytest.raises(PowerFailed):
        first.fit_one_cycle(N_EPOCH, 0.05)
    first.remove_cbs(cbs)
    learn = make("half")
    learn.fit_one_cycle(N_EPOCH, 0.05, resume=True)
    found = result(learn)
    assert all(torch.equal(a, b) for a, b in zip(expected["weights"], found["weights"]))
    assert expected["losses"] == found["losses"] and expected["updates"] == found["updates"]
    return found


def rewind(cbs, folder):
    learn = learner(cbs).add_cb(Counts())
    learn.fit(1)
    before = result(learn)
    learn.fit(1)
    learn.rewind()
    after = result(learn)
    assert all(torch.equal(a, b) for a, b in zip(before["weights"], after["weights"])) and before["losses"] == after["losses"]
    return after


def mixup(cbs, folder):
    torch.manual_seed(3)
    return trained(learner([*cbs, cbnb.MixUp()]))


def torch_scheduler(cbs, folder):
    return trained(learner([*cbs, cbnb.TorchScheduler(lambda opt: StepLR(opt, 3, 0.5))]))


def averages(cbs, folder):
    return trained(learner([*cbs, EMA(0.5)]))


def half(cbs, folder):
    return trained(learner([*cbs, MixedPrecision("bf16")]))


def channels_last(cbs, folder):
    return trained(learner([*cbs, ChannelsLast()]))


def validated_in_between(cbs, folder):
    return trained(learner([*cbs, cbnb.Callback(after_step=lambda cb: cb.learn.validate())]))


def two_fits(cbs, folder):
    learn = learner(cbs, opt_func=lambda groups, lr: torch.optim.SGD(groups, lr, momentum=0.9))
    learn.fit(1)
    return trained(learn, lambda learn: learn.fit(1))


COMPANIONS = [
    nothing, one_cycle, clip, accumulation, accumulation_and_clip, several_losses, function_step, closure_step, lr_find,
    early_stopping, save_model, resume, rewind, mixup, torch_scheduler, averages, half, channels_last, validated_in_between,
    two_fits,
]  # fmt: skip

OWN_STEPS = "several_losses", "function_step", "closure_step"
REFUSED = {
    (feature, name): (ValueError, "pass what='model' to compile only the model")
    for feature in FEATURES
    if "'step'" in feature
    for name in OWN_STEPS
} | {
    ("fp16", "closure_step"): (TypeError, "ClosureStep computes gradients by itself"),
}

TWICE = {
    "averages": ("EMA", "bf16, EMA, ChannelsLast", "EMA, ChannelsLast, Compile('step')"),
    "half": ("bf16", "fp16", "bf16, EMA, ChannelsLast", "bf16, Compile"),
    "channels_last": ("ChannelsLast", "bf16, EMA, ChannelsLast", "EMA, ChannelsLast, Compile('step')"),
}
PAIRS = [(name, f) for name in FEATURES for f in COMPANIONS if name not in TWICE.get(f.__name__, ())]

LEAST = {"half": 1e-2}  # a companion that is less exact than the feature

# losses in half precision are those of slightly different weights
LOSS_FACTOR = 10


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a companion comes to without a feature: trained once, since all features are compared with the same fit."""

    @cache
    def of(companion):
        return companion([], tmp_path_factory.mktemp("plain"))

    return of


@pytest.mark.parametrize("feature, companion", PAIRS, ids=lambda v: getattr(v, "__name__", v))
def test_together(feature, companion, alone, tmp_path):
    cbs, close = FEATURES[feature].make(), max(FEATURES[feature].close, LEAST.get(companion.__name__, 0))
    if (feature, companion.__name__) in REFUSED:
        kind, words = REFUSED[feature, companion.__name__]
        with pytest.raises(kind, match=words):
            companion(cbs, tmp_path)
        return
    expected, found = alone(companion), companion(cbs, tmp_path)
    for name in ("lrs", "updates", "epochs"):
        assert found[name] == expected[name]
    assert found["losses"] == pytest.approx(expected["losses"], abs=LOSS_FACTOR * close)
    for a, b in zip(found.get("weights", ()), expected["weights"]):
        assert torch.allclose(a.float(), b.float(), rtol=0, atol=close), (a - b).abs().max()


@pytest.mark.parametrize("feature", FEATURES)
def test_a_fit_leaves_the_learner_as_it_was(feature):
    learn = learner(FEATURES[feature].make())
    steps = [dict(vars(s)) for s in (learn.train_step, learn.eval_step)]
    strides, kind = [p.stride() for p in learn.model.parameters()], type(learn.model)
    learn.fit(1)
    assert [dict(vars(s)) for s in (learn.train_step, learn.eval_step)] == steps
    assert [p.stride() for p in learn.model.parameters()] == strides and type(learn.model) is kind
    assert not torch.is_autocast_enabled("cpu")
