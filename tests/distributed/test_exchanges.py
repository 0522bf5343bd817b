"""How often processes exchange something. torch's profiler notes each message of gloo."""

import json

import pytest

pytest.importorskip("accelerate")

from processes import run_all

COUNT = """
import json
from collections import Counter
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cbnb.all as cbnb

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
n = 2

class Net(nn.Module):
    def __init__(self, buffers=0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        for i in range(buffers): self.register_buffer(f"b{i}", torch.zeros(3))
    def forward(self, x): return self.layers(x)

def learner(batches, buffers=0, valid=False, **kwargs):
    x = torch.randn(8 * batches * n, 4)
    dl = lambda: DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8)
    dls = cbnb.DataLoaders(dl(), *[dl()] * valid, device="cpu")
    return cbnb.Learner(dls, Net(buffers), nn.MSELoss(), lr=1e-3, **kwargs).remove_cb(cbnb.ProgressCallback)

def messages(f):
    with torch.autograd.profiler.profile() as noted: f()
    return Counter(e.name.removeprefix("gloo:") for e in noted.function_events if e.name.startswith("gloo:"))

def fit(learn, n_epoch=1, **how):
    with learn.no_logging(), learn.distributed(**how): learn.fit(n_epoch)

found = {}
"""

CASES = dict(
    batches="""
# one message for each further batch, with the gradients in it
some, more = (messages(lambda: fit(learn)) for learn in map(learner, (4, 14)))
found["more"] = {k: more[k] - some[k] for k in more if more[k] != some[k]}
""",
    accumulation="""
# 12 batches of 16 items, an update with each 4 batches
once, twice = (messages(lambda: fit(learner(k, cbs=cbnb.GradientAccumulation(64)))) for k in (12, 24))
found["reduces"] = twice["all_reduce"] - once["all_reduce"]
""",
    buffers="""
# a validation, with no buffer and with 100
few, many = (messages(lambda: fit(learner(4, buffers, valid=True))) for buffers in (1, 100))
found["few"], found["many"] = few, many
""",
    reused="""
learn = learner(4)
first, second, third = (messages(lambda: fit(learn)) for _ in range(3))
found["fewer"] = sum(first.values()) - sum(second.values())
found["settled"] = second == third
for p in learn.model.layers[0].parameters(): p.requires_grad_(False)
found["frozen"] = sum(messages(lambda: fit(learn)).values()) > sum(second.values())
""",
    corrections="""
# the mean over 3 outputs: an item has the weight 3, which the first batch finds out
import tempfile
from cbnb.files.checkpoints import Checkpoint, Resume
folder = [tempfile.mkdtemp()]
torch.distributed.broadcast_object_list(folder)

def outputs(n_epoch, resume):
    torch.manual_seed(0)
    x = torch.randn(72, 4)
    dl = DataLoader(TensorDataset(x, x[:, :3]), 8, shuffle=True)
    learn = cbnb.Learner(cbnb.DataLoaders(dl, device="cpu"), nn.Linear(4, 3), nn.MSELoss(), opt_func=torch.optim.SGD, lr=1e-1)
    learn.remove_cb(cbnb.ProgressCallback).add_cb(Checkpoint(path=folder[0] + "/" + resume))
    calls, planned, change = [], [], torch._foreach_mul_
    torch._foreach_mul_ = lambda *args: calls.append(1) or change(*args)
    look = cbnb.Callback(after_batch=lambda cb: planned.append(cb.learn.data_parallel.per_item))
    try:
        with learn.no_logging(), learn.distributed():
            learn.fit(n_epoch, cbs=look, resume=Resume(allow="n_epoch") if resume == "parts" and n_epoch > 1 else False)
    finally: torch._foreach_mul_ = change
    return len(calls), planned[-1], [p.tolist() for p in learn.model.parameters()]

found["corrected"], found["per_item"], whole = outputs(3, "whole")
outputs(1, "parts")
found["corrected_again"], _, parts = outputs(3, "parts")
found["resumed"] = whole == parts
""",
)


@pytest.fixture(scope="module")
def found():
    program = COUNT + "".join(CASES.values()) + "print(json.dumps(found))\ntorch.distributed.destroy_process_group()\n"
    first, second = (json.loads(said.splitlines()[-1]) for said in run_all(2, "-c", program, timeout=200))
    assert first == second
    return first


def test_a_batch_has_one_message_which_carries_the_gradients(found):
    assert found["more"] == {"all_reduce": 10}  # ten batches more


def test_gradients_that_are_summed_are_averaged_once_for_each_update(found):
    """Of 12 batches more, each exchanges its loss, and every fourth its gradients."""
    assert found["reduces"] == 12 + 3


def test_buffers_travel_together(found):
    """A fit with a validation has as many messages with 100 buffers as with one."""
    assert found["few"] == found["many"]


def test_the_next_fit_uses_the_same_wrapper(found):
    """To make torch's wrapper takes five messages. Frozen parameters need a new one."""
    assert found["fewer"] >= 4 and found["settled"] and found["frozen"]


def test_gradients_are_corrected_only_until_the_weight_of_an_item_is_known(found):
    """A mean over 3 outputs corrects the gradients of the first batch. A resumed fit knows the weight from its checkpoint."""
    assert found["corrected"] == 1 and found["per_item"] == 3
    assert found["corrected_again"] == 0 and found["resumed"]


ALONE = """
import sys
import torch
from torch import nn
import cbnb.all as cbnb
from cbnb.distributed.data_parallel import _connections
from cbnb.toy import wave_learner

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
learn = wave_learner()
learn.remove_cb(cbnb.ProgressCallback)

def fit(cbs=()):
    with learn.no_logging(), learn.distributed(): learn.fit(1, cbs=cbs)

def kept(): return _connections[learn].wrapped

fit()
first = kept()
assert first is not None
if rank == 0:                                     # a backward pass of one process alone exchanges nothing
    learn.model(torch.zeros(2, 1)).sum().backward()
learn.model.zero_grad()
fit()
assert kept() is first

def cancel(cb):
    if cb.training and cb.iter == 1 and rank == 1: raise cbnb.CancelFitException()
fit(cbnb.Callback(after_pred=cancel))             # the backward pass that torch's wrapper waits for is made up for
assert kept() is first
if rank == 0: learn.model(torch.zeros(2, 1)).sum().backward()

if rank == 1: learn.model.to(torch.float64).to(torch.float32)     # one process needs a new wrapper: all make one
fit()
assert kept() is not first
second = kept()

def fail(cb):
    if cb.iter == 1: raise ValueError("mine")
try: fit(cbnb.Callback(after_pred=fail))
except Exception: pass
assert kept() is None
fit()
sums = [None, None]
torch.distributed.all_gather_object(sums, [p.sum().item() for p in learn.model.parameters()])
assert sums[0] == sums[1], sums
del learn, first, second
import gc; gc.collect()
assert not len(_connections)
torch.distributed.destroy_process_group()
"""


def test_a_wrapper_that_is_kept_does_not_wait_between_fits():
    run_all(2, "-c", ALONE, timeout=120)
