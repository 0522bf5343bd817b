"""A profile on a GPU: times on the device, and parts that make the CPU wait for it."""

import pytest
import torch
from torch import nn

import cbnb

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
N = 20


def learner(size=64, **kwargs):
    torch.manual_seed(0)
    x, y = torch.randn(N * 256, size), torch.randn(N * 256, 1)
    batches = list(zip(x.split(256), y.split(256)))
    net = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 1))
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches[:4], device="cuda"), net, nn.MSELoss(), **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


def test_times_on_the_device():
    p = learner(2048).profile()  # kernels that take longer than their launch
    by_name = {row.name: row for row in p.chosen(phase="train") if row.device is not None}
    assert {"to device", "forward", "loss", "backward", "optimizer step"} <= set(by_name)
    assert by_name["backward"].device > by_name["loss"].device > 0
    assert 0 < sum(row.device for row in p.rows if row.device is not None) < 1.05 * p.wall
    assert sum(row.seconds for row in p.rows) == pytest.approx(p.wall)
    assert "on device" in repr(p)


def test_a_callback_that_waits_is_found():
    class Prints(cbnb.Callback):
        run_valid = False

        def after_batch(self):
            self.learn.loss.item()

    p = learner(cbs=Prints).profile()
    waits = {row.name: row.syncs for row in p.chosen(phase="train")}
    assert waits["Prints.after_batch"] == N and not waits["forward"] and not waits["backward"]
    assert "Prints.after_batch makes the CPU wait for the device 1 times a training batch" in "\n".join(p.findings)


def test_default_callbacks_do_not_wait_in_training():
    p = learner(metrics=cbnb.MAE()).profile()
    assert not [row.name for row in p.chosen(phase="train") if row.syncs and row.name.endswith("_batch")]


def test_everything_is_as_before():
    learn = learner()
    learn.fit(1)
    mode, state = torch.cuda.get_sync_debug_mode(), torch.cuda.get_rng_state()
    weights = {name: t.clone() for name, t in learn.model.state_dict().items()}
    learn.profile()
    assert torch.cuda.get_sync_debug_mode() == mode and torch.equal(torch.cuda.get_rng_state(), state)
    assert all(torch.equal(weights[name], t) for name, t in learn.model.state_dict().items())
    assert type(learn) is cbnb.Learner


def test_without_times_of_the_device():
    p = learner().profile(device=False)
    assert all(row.device is None for row in p.rows)
