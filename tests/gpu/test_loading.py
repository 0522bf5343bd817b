"""Loading on a GPU: batches by index, pinned memory, and copies that overlap with the computing."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from cbnb.basics.loaders import TensorLoader
from cbnb.basics.nested import CopiesAhead, OnDevice, on_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
N, SIZE = 300, (3, 32, 32)


def data(device="cpu"):
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, *SIZE, generator=g).to(device), torch.randint(0, 10, (N,), generator=g).to(device))


def equal(a, b):
    return len(a) == len(b) and all(
        torch.equal(one.cpu(), two.cpu()) and one.device == two.device for p, q in zip(a, b) for one, two in zip(p, q)
    )


@pytest.mark.parametrize("pin", [False, True])
def test_pinned_batches_by_index(pin):
    found = []
    for cls in (DataLoader, TensorLoader):
        torch.manual_seed(3)
        found.append(list(cls(data(), 32, shuffle=True, pin_memory=pin)))
    assert equal(*found)
    assert all(t.is_pinned() == pin for batch in found[1] for t in batch)


def test_tensors_on_the_gpu_are_indexed_there():
    found = []
    for cls in (DataLoader, TensorLoader):
        torch.manual_seed(3)
        found.append(list(cls(data("cuda"), 32, shuffle=True)))
    assert equal(*found) and found[1][0][0].is_cuda


def test_a_number_that_is_too_large_breaks_no_kernel():
    for sampler in ([0, N], [-N - 1]):
        with pytest.raises(IndexError):
            list(TensorLoader(data("cuda"), 2, sampler=sampler))
    assert torch.equal(list(TensorLoader(data("cuda"), 2, sampler=[0, -1]))[0][1].cpu(), data().tensors[1][[0, -1]])
    torch.cuda.synchronize()


@pytest.mark.parametrize("pinned", [False, True])
def test_copies_are_exact_while_the_gpu_is_busy(pinned):
    """Many large batches, freed and changed as soon as they may be, beside long kernels."""
    load, w = CopiesAhead("cuda", tuple), torch.randn(2048, 2048, device="cuda")
    sums, expected = [], []
    for i in range(50):
        batch = (torch.full((256, *SIZE), float(i)), torch.full((256,), i))
        batch = tuple(t.pin_memory() for t in batch) if pinned else batch
        xb, yb = load(batch)
        del batch
        for _ in range(5):
            w = torch.tanh(w @ w)
        sums += [xb.double().sum(), yb.sum()]
        xb.zero_()
        del xb, yb
        expected += [float(i) * 256 * 3 * 32 * 32, i * 256]
    assert [s.item() for s in sums] == expected


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(learn):
    torch.manual_seed(1)
    with learn.no_bar(), learn.no_logging():
        learn.fit(2)
    return [p.detach().cpu() for p in learn.model.parameters()]


def test_a_fit_has_the_weights_of_one_without_a_second_stream(monkeypatch):
    weights = []
    for make in (on_device, OnDevice):
        monkeypatch.setattr(cbnb.data, "on_device", make)
        dls = cbnb.DataLoaders.from_datasets(data(), data(), bs=32, device="cuda")
        assert all(dl.pin_memory for dl in dls.loaders)
        weights.append(trained(cbnb.Learner(dls, net(), nn.CrossEntropyLoss())))
    for a, b in zip(*weights):
        torch.testing.assert_close(a, b)


def test_loading_never_waits_for_the_gpu():
    dls = cbnb.DataLoaders.from_datasets(data(), data(), bs=32, device="cuda")
    learn = cbnb.Learner(dls, net(), nn.CrossEntropyLoss())
    trained(learn)
    before = torch.cuda.get_sync_debug_mode()

    class NoSync(cbnb.Callback):
        def before_train(self):
            torch.cuda.set_sync_debug_mode("error")

        def after_train(self):
            torch.cuda.set_sync_debug_mode(before)

    try:
        with learn.no_bar(), learn.no_logging():
            learn.fit(1, cbs=NoSync())
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_memory_stays_bounded_when_python_is_far_ahead():
    load, w = CopiesAhead("cuda", tuple), torch.randn(8192, 8192, device="cuda")
    batch = (torch.zeros(1024, *SIZE).pin_memory(),)  # 12 MB
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(40):
        (xb,) = load(batch)
        w @ w
        del xb
    assert torch.cuda.max_memory_allocated() - before < 5 * batch[0].nbytes + 3 * w.nbytes
    torch.cuda.synchronize()


def test_data_on_the_gpu_are_not_pinned():
    dls = cbnb.DataLoaders.from_datasets(data("cuda"), bs=32, device="cuda")
    assert not dls.train.pin_memory and len(list(dls.train)) == 10


def test_a_learner_on_the_gpu_can_be_copied():
    dls = cbnb.DataLoaders.from_datasets(data(), bs=32, device="cuda")
    learn = cbnb.Learner(dls, net(), nn.CrossEntropyLoss())
    trained(learn)
    assert type(copy.deepcopy(learn).split_batch) is CopiesAhead
