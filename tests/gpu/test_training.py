"""Training on a GPU: nothing waits for it within an epoch, and the numbers are those of a loop by hand."""

import io
from contextlib import redirect_stdout

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.basics.fused import is_fused
from cbnb.display import progress

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def batches(n, bs=32):
    torch.manual_seed(1)
    return [(torch.randn(bs, 16, device="cuda"), torch.randint(0, 4, (bs,), device="cuda")) for _ in range(n)]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))


class NoWaiting(cbnb.Callback):
    """Any operation that waits for the GPU is an error from the second training batch to the last"""

    order = 10**6

    def after_batch(self):
        last = self.learn.iter + 1 >= self.learn.n_iter
        torch.cuda.set_sync_debug_mode("default" if last or not self.learn.training else "error")

    def after_cancel_fit(self):
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(autouse=True)
def waiting_is_allowed_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("display", ["lines", "plain", "widgets"])
@pytest.mark.parametrize("way", ["fit", "fit_one_cycle"])
def test_nothing_waits_for_the_gpu_within_an_epoch(display, way, monkeypatch):
    monkeypatch.setattr(progress._Draws, "every", 0.0)  # a display draws as often as it may
    monkeypatch.setattr(progress.LogDisplay, "patience", lambda self, seconds: 0.0)
    shown = progress.make_display(display)
    learn = cbnb.Learner(cbnb.DataLoaders(batches(300), batches(20)), net(), nn.CrossEntropyLoss(), cbs=NoWaiting)
    monkeypatch.setattr(progress, "make_display", lambda mode: shown)
    with redirect_stdout(io.StringIO()):
        getattr(learn, way)(2)
    assert len(learn.recorder.history["loss"]) == 600 and is_fused(learn.opt)


def test_a_fit_has_the_losses_of_a_loop_by_hand():
    data, model = batches(20), net().cuda()
    opt, losses = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), []
    torch.manual_seed(2)
    model.train()
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    learn = cbnb.Learner(cbnb.DataLoaders(data), net(), nn.CrossEntropyLoss())
    torch.manual_seed(2)
    with learn.no_logging(), learn.no_bar():
        learn.fit(1)
    assert learn.recorder.history["loss"] == pytest.approx(losses, rel=1e-6)


def test_a_fit_takes_no_more_memory_than_a_loop_by_hand():
    def by_hand():
        model = net().cuda()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for x, y in data:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()

    def ours():
        learn = cbnb.Learner(cbnb.DataLoaders(data), net(), nn.CrossEntropyLoss())
        with learn.no_logging(), learn.no_bar():
            learn.fit(1)

    def peak(train):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train()
        return torch.cuda.max_memory_allocated() - before

    data = batches(300, bs=4096)
    peak(by_hand)
    assert peak(ours) <= peak(by_hand) * 1.01 + 512 * 256  # and up to 256 losses of 512 bytes
