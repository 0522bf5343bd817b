"""What the pretend GPU does and finds. Each mutant leaves out one thing that keeps streams apart, and is found."""

import contextlib
import io

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.basics import buffers, nested
from cbnb.basics.devices import device_rng_state, set_device_rng_state

faulty = pytest.mark.faulty


def test_it_is_a_gpu(gpu):
    t = torch.ones(4, device="cuda")
    assert t.is_cuda and type(t) is torch.Tensor and t.device == torch.device("cuda:0") == cbnb.default_device()
    assert (t + 1).sum().item() == 8 and [what for _, what, *_ in gpu.waits()] == ["_local_scalar_dense"]


def test_a_loop_by_hand_has_the_weights_of_the_cpu_and_waits_for_nothing(gpu):
    weights = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        x, y = torch.randn(32, 8), torch.randint(0, 3, (32,))
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        params = list(net.parameters())
        net.to(device)
        assert all(a is b for a, b in zip(params, net.parameters()))
        opt = torch.optim.AdamW(params, 1e-2)
        x, y = (t.pin_memory().to(device, non_blocking=True) for t in (x, y))
        gpu.log.clear()
        for _ in range(5):
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        assert not gpu.waits()
        weights.append([p.detach().cpu() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*weights))


def test_operations_of_two_devices_are_refused():
    with pytest.raises(RuntimeError, match="found cuda:0 and cpu"):
        nn.Linear(2, 2).cuda()(torch.ones(1, 2))


def test_memory_has_a_limit(gpu):
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(2**33 + 1, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    t = torch.ones(1000, device="cuda")
    assert torch.cuda.memory_allocated() == before + t.nbytes


def test_it_has_random_numbers_of_its_own():
    torch.manual_seed(1)
    state = torch.cuda.get_rng_state()
    a, on_cpu = torch.rand(3, device="cuda"), torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(a, torch.rand(3, device="cuda")) and not torch.equal(on_cpu, torch.rand(3))


def test_the_random_state_of_two_gpus_is_restored_on_one():
    states = []
    for seed in (1, 2):
        torch.cuda.manual_seed(seed)
        states.append(torch.cuda.get_rng_state())
    drawn = torch.rand(3, device="cuda")
    set_device_rng_state(dict(kind="cuda", states=states, mine=1))
    assert torch.equal(drawn, torch.rand(3, device="cuda"))


def test_a_gpu_that_was_not_used_gets_its_seed_back(monkeypatch):
    torch.manual_seed(7)
    drawn = torch.rand(3, device="cuda")
    torch.manual_seed(7)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    state = device_rng_state()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    torch.rand(5, device="cuda")
    set_device_rng_state(state)
    assert state == dict(kind="cuda", seed=7) and torch.equal(drawn, torch.rand(3, device="cuda"))


@faulty
def test_a_race_is_found(gpu):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        t = torch.ones(4).pin_memory().to("cuda", non_blocking=True)
    t.sum()
    assert {text for text, _ in gpu.faults} == {
        "stream 0 reads what stream 1 may not yet have written".replace("stream 1", f"stream {stream.id}"),
        f"stream 0 uses memory of stream {stream.id} without record_stream",
    }


def test_a_copy_to_the_cpu_arrives_when_it_is_waited_for():
    there, event = torch.empty(2, pin_memory=True), torch.cuda.Event()
    there.copy_(torch.ones(2, device="cuda"), non_blocking=True)
    event.record()
    assert there.isnan().all()
    event.synchronize()
    assert there.tolist() == [1, 1]


@pytest.mark.parametrize("mode", ["error", "warn"])
def test_waits_are_reported_as_torch_does(mode):
    torch.cuda.set_sync_debug_mode(mode)
    try:
        with pytest.raises(RuntimeError) if mode == "error" else pytest.warns(UserWarning):
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# -- mutants of the streams of the library


class Reads(cbnb.Callback):
    """Reads the losses as a display does, each batch."""

    order = 3000

    def after_batch(self):
        self.learn.recorder.last().arrived()


def trained():
    torch.manual_seed(0)
    x, y = torch.randn(192, 1, 32, 32), torch.randint(0, 4, (192,))
    dls = cbnb.DataLoaders.from_datasets(torch.utils.data.TensorDataset(x, y), bs=32, device="cuda")
    learn = cbnb.Learner(dls, nn.Sequential(nn.Flatten(), nn.Linear(1024, 4)), nn.CrossEntropyLoss())
    with contextlib.redirect_stdout(io.StringIO()):
        learn.fit(2, 1e-2, cbs=Reads())
    return list(learn.recorder.last().raw_losses)


def found(gpu):
    gpu.check_pinned()
    return {text.split(" ", 2)[2].partition(" stream")[0] if text.startswith("stream") else text for text, _ in gpu.faults}


def test_the_library_as_it_is(gpu):
    assert not any(loss != loss for loss in trained()) and gpu.ops["copy_"] > 12


@faulty
def test_without_waiting_for_the_stream_of_copies(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda self, other: None)
    trained()
    assert "reads what" in found(gpu)


@faulty
def test_without_record_stream(gpu, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, stream: None)
    trained()
    assert "uses memory of" in found(gpu)


@faulty
def test_without_waiting_for_the_event_of_a_copy(gpu, monkeypatch):
    monkeypatch.setattr(buffers.Copy, "is_here", lambda self, wait: True)
    assert any(loss != loss for loss in trained())


@faulty
def test_a_loader_that_fills_one_pinned_buffer_again_and_again(gpu):
    class Refills:
        def __init__(self):
            self.x, self.y = torch.empty(32, 1, 32, 32, pin_memory=True), torch.zeros(32, dtype=torch.long)

        def __len__(self):
            return 4

        def __iter__(self):
            for i in range(4):
                yield self.x.fill_(i), self.y

    assert nested.has_streams("cuda")
    learn = cbnb.Learner(cbnb.DataLoaders(Refills()), nn.Sequential(nn.Flatten(), nn.Linear(1024, 4)), nn.CrossEntropyLoss())
    with contextlib.redirect_stdout(io.StringIO()):
        learn.fit(1)
    assert "pinned memory was changed while a copy from it could be under way" in found(gpu)
