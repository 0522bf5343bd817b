"""Sharded models on a GPU, in a group of one process; skipped without one."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.precision import MixedPrecision
from cbnb.distributed.sharded import ShardedModels, full_state, is_sharded, sharded_state

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def group():
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Shards(cbnb.Callback):
    order, run_in, no_state = -9, ("fit",), ("sharded",)

    def before_fit(self):
        self.learn.undo.set(self, "sharded", ShardedModels(self.learn, least=100))

    def before_train(self):
        assert all(is_sharded(p) and p.device.type == "cuda" for p in self.learn.model.parameters())
        self.state = full_state(self.learn.state_dict(), on_cpu=True)
        self.learn.load_state_dict(sharded_state(self.learn, self.state))


def learner(**kwargs):
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(10, 32, 16, generator=gen).cuda()
    data = list(zip(x, x.mean(2, keepdim=True)))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    learn = cbnb.Learner(cbnb.DataLoaders(data, data[:2], device="cuda"), net, nn.MSELoss(), lr=1e-2, **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


@pytest.mark.parametrize("cbs", [[], [cbnb.GradientClip(0.1)], [MixedPrecision("bf16")], [MixedPrecision("fp16")]], ids=str)
def test_it_trains_as_without_sharding(cbs):
    plain, sharded = learner(), learner()
    before = list(sharded.model.parameters())
    plain.fit(2, cbs=list(cbs))
    sharded.fit(2, cbs=[Shards, *cbs])
    assert all(p is q for p, q in zip(before, sharded.model.parameters()))
    close = dict(rtol=1e-2, atol=1e-2) if cbs and isinstance(cbs[0], MixedPrecision) else dict(rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plain.model.state_dict(), sharded.model.state_dict(), **close)
    assert sharded.opt.state[before[0]]["exp_avg"].device.type == "cuda"


def test_the_old_weights_take_no_memory_in_the_fit():
    learn = learner()
    learn.model[0] = nn.Linear(16, 32)
    held = list(learn.model.parameters())

    class Looks(cbnb.Callback):
        def before_train(self):
            self.sizes = [p.numel() for p in held]

    learn.fit(1, cbs=[Shards, looks := Looks()])
    assert set(looks.sizes) == {0} and held[0].numel() == 16 * 32
