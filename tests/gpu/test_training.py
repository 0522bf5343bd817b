"""Training on a GPU: nothing waits for it within an epoch, and the numbers are those of a loop by hand."""

import io
import subprocess
import sys
import tempfile
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
    monkeypatch.setattr(cbnb.ProgressCallback, "every", 0.0)  # a display draws as often as it may
    monkeypatch.setattr(progress.LogDisplay, "patience", lambda self, seconds: 0.0)
    shown = progress.make_display(display)
    learn = cbnb.Learner(cbnb.DataLoaders(batches(300), batches(20)), net(), nn.CrossEntropyLoss(), cbs=NoWaiting)
    monkeypatch.setattr(progress, "make_display", lambda mode: shown)
    with redirect_stdout(io.StringIO()):
        getattr(learn, way)(2)
    assert learn.recorder.last().n_steps == 600 and is_fused(learn.opt)


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
    assert list(learn.recorder.last().raw_losses) == pytest.approx(losses, rel=1e-6)


def test_a_fit_takes_no_more_memory_than_a_loop_by_hand():
    def by_hand():
        model = net().cuda()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for x, y in data:
            pred = model(x)  # held until the next one, as learn.pred is
            loss = nn.functional.cross_entropy(pred, y)
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
    assert peak(ours) <= peak(by_hand) * 1.01 + 2 * 512 * 256  # and up to 256 losses and their weights, of 512 bytes each


def loader(n=64):
    torch.manual_seed(1)
    ds = torch.utils.data.TensorDataset(torch.randn(n, 16), torch.randint(0, 4, (n,)))
    return torch.utils.data.DataLoader(ds, 16, shuffle=True)


def learner_on(device, opt_func=torch.optim.AdamW):
    learn = cbnb.Learner(cbnb.DataLoaders(loader(), device=device), net(), nn.CrossEntropyLoss(), opt_func=opt_func, lr=1e-2)
    return learn.remove_cb(cbnb.ProgressCallback)


def weights(learn):
    return [p.detach().cpu() for p in learn.model.parameters()]


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("first, then", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_learner_moves_to_another_device_with_its_optimizer(first, then, name):
    """Two fits on two devices are two fits on one, up to rounding. No dropout, since devices draw other numbers."""
    opt_func = getattr(torch.optim, name)
    moved, stayed = learner_on(first, opt_func), learner_on("cpu", opt_func)
    for learn, device in (moved, then), (stayed, "cpu"):
        learn.model[2].p = 0.0
        torch.manual_seed(3)
        with learn.no_logging():
            learn.fit(2)
            learn.dls.to(device)
            learn.fit(2)
    for a, b in zip(weights(moved), weights(stayed)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_search_leaves_the_random_numbers_of_the_gpu_alone():
    """Also if the GPU was not used before: a new process shows that."""
    script = """
import sys, torch, cbnb.all as cbnb
from tests.gpu.test_training import learner_on, weights
def fitted(look):
    torch.manual_seed(5)
    learn = learner_on('cuda')
    if look: learn.lr_find(show_plot=False)
    with learn.no_logging(): learn.fit(2, 1e-2)
    return weights(learn)
torch.manual_seed(5)
torch.save(fitted(sys.argv[1] == 'look'), sys.argv[2])
"""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for look in ("look", "plain"):
            path = f"{folder}/{look}.pt"
            subprocess.run([sys.executable, "-c", script, look, path], check=True, capture_output=True)
            found.append(torch.load(path))
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_batch_sizes_are_searched_without_an_index_of_the_device():
    assert learner_on("cuda").find_batch_size(max=32).bs >= 16
