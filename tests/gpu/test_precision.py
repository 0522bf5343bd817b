"""Mixed precision, channels last and moving averages on a GPU; skipped without one."""

import copy

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.averaging import EMA
from cbnb.callbacks.precision import ChannelsLast, MixedPrecision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODES = ["bf16", "fp16"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 4)
    )


def learner(n=8, **kwargs):
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(n, 32, 8, 8, 8, generator=gen).cuda()  # there already, since a copy would wait
    data = list(zip(x, x.mean((3, 4))[..., :4].argmax(-1)))
    settings = dict(loss_func=nn.CrossEntropyLoss(), lr=1e-3, metrics=cbnb.accuracy) | kwargs
    learn = cbnb.Learner(cbnb.DataLoaders(data, data[:2], device="cuda"), net(), **settings)
    return learn.remove_cb(cbnb.ProgressCallback)


def weights(learn):
    return [t.detach().clone() for t in learn.model.state_dict().values()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("more", [[], [ChannelsLast], [EMA(0.9)], [EMA(0.9), ChannelsLast], [cbnb.GradientAccumulation(64)]], ids=str)
def test_it_learns_as_in_float32(mode, more):
    plain, half = learner(), learner(cbs=[MixedPrecision(mode), *copy.deepcopy(more)])
    dtypes = []
    half.model[0].register_forward_hook(lambda m, args, out: dtypes.append(out.dtype))
    plain.fit(3)
    half.fit(3)
    assert set(dtypes) == {torch.bfloat16 if mode == "bf16" else torch.float16}
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}
    assert half.recorder.last().raw_losses[0] == pytest.approx(plain.recorder.last().raw_losses[0], rel=2e-2)
    assert half.recorder.values[-1][0] < half.recorder.values[0][0]
    assert half.get_preds()[0].dtype == torch.float32


@pytest.mark.parametrize("fused", [True, False])
def test_a_skipped_update(fused):
    def overflow(cb):
        if cb.train_iter == 2:
            cb.learn.loss_grad = cb.learn.loss_grad * float("inf")

    opt = lambda groups, lr: torch.optim.AdamW(groups, lr, fused=fused)  # noqa: E731
    learn = learner(opt_func=opt, cbs=[MixedPrecision("fp16", init_scale=1024), cbnb.Callback(before_backward=overflow)])
    learn.fit_one_cycle(1, 1e-3)
    lrs = learn.recorder.lrs
    assert lrs[2] == lrs[3] and learn.mixed_precision.skipped == 1 and learn.mixed_precision.scale == 512
    assert all(bool(w.isfinite().all()) for w in weights(learn))


def test_bf16_never_waits_for_the_device():
    """And neither does an average, nor channels last. fp16 has to: a schedule must know whether there was an update."""
    learn = learner(cbs=[MixedPrecision("bf16"), ChannelsLast, EMA(0.9)])
    learn.fit(1)

    def waits(mode):
        return lambda cb: torch.cuda.set_sync_debug_mode(mode)

    try:
        learn.fit(1, cbs=cbnb.Callback(before_train=waits("error"), after_train=waits("default")))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("mode", MODES)
def test_resume_is_exact(mode, tmp_path):
    def make(where, *more):
        cbs = [MixedPrecision(mode, init_scale=1024, growth_interval=3), EMA(0.9), ChannelsLast]
        return learner(cbs=[*cbs, cbnb.Checkpoint(every_steps=1, path=tmp_path / where), *more], path=tmp_path)

    def fail(cb):
        if cb.train_iter == 11:
            raise InterruptedError

    was = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        whole = make("whole")
        whole.fit(2)
        with pytest.raises(InterruptedError):
            make("half", cbnb.Callback(before_batch=fail)).fit(2)
        learn = make("half")
        learn.fit(2, resume=True)
        assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(learn)))
        assert whole.mixed_precision.scale == learn.mixed_precision.scale
    finally:
        torch.backends.cudnn.deterministic = was


def test_memory_of_activations_in_half():
    def peak(*cbs):
        learn = learner(n=2, cbs=list(cbs))
        learn.fit(1)
        torch.cuda.reset_peak_memory_stats()
        learn.fit(1)
        return torch.cuda.max_memory_allocated()

    assert peak(MixedPrecision("bf16")) < 1.1 * peak()


def test_autocast_is_off_after_an_error():
    def fail(pred, y):
        raise InterruptedError

    learn = learner(loss_func=fail, cbs=MixedPrecision("fp16"))
    with pytest.raises(InterruptedError):
        learn.fit(1)
    assert not torch.is_autocast_enabled("cuda")
