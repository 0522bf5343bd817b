"""Out of memory on a real GPU: the advice holds, and the search finds a size that trains."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.callbacks import batch_size

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

N = 2**20  # numbers in the output of a hidden layer for one item: 4 MB


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(())), nn.Linear(8, 1)

    def forward(self, x):
        wide = self.a * x[:, :1].expand(-1, N)
        for _ in range(8):
            wide = (wide * self.a).sin()
        return self.b(x) + wide.mean(1, keepdim=True)


def learner(bs=16):
    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    ds = TensorDataset(x, x[:, :1])
    learn = cbnb.Learner(cbnb.DataLoaders(DataLoader(ds, bs, shuffle=True), device="cuda"), Wide(), nn.MSELoss(), default_cbs=False)
    return learn


@pytest.fixture
def two_gigabytes():
    """Leave about so much for a test."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(free - 2 * 2**30, 0), dtype=torch.uint8, device="cuda")
    yield
    del ballast
    torch.cuda.empty_cache()


def test_memory_of_a_gpu():
    before = batch_size.memory_of("cuda")
    t = torch.ones(2**24, device="cuda")
    now = batch_size.memory_of("cuda")
    assert now.used - before.used >= t.nbytes and now.peak >= now.used and now.free > 0


def test_the_size_trains_and_a_much_larger_one_does_not(two_gigabytes):
    found = learner().find_batch_size()
    assert any(not t.fits for t in found.tries) and all(t.memory > 0 for t in found.tries if t.fits)
    learn = learner(found.bs)
    learn.fit(1, cbs=cbnb.StopAfter(steps=3, validate=False))
    with pytest.raises(torch.OutOfMemoryError):
        learner(4 * found.bs).fit(1)


def test_memory_grows_in_proportion(two_gigabytes):
    tries = [t for t in learner().find_batch_size(max=16).tries if t.fits]
    assert tries[-1].memory / tries[-2].memory == pytest.approx(2, rel=0.2)


def test_the_advice_of_an_error_holds(two_gigabytes):
    with pytest.raises(torch.OutOfMemoryError) as caught:
        learner(1024).fit(1)
    note = next(note for note in caught.value.__notes__ if "items would fit" in note)
    most = int(re.search(r"at most (\d+) items", note)[1])
    fits = learner().find_batch_size().bs
    assert fits / 4 < most < 1024


def test_nothing_is_left(two_gigabytes):
    learn = learner()
    learn.model.cuda()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    learn.find_batch_size()
    assert torch.cuda.memory_allocated() - before < 2**20
