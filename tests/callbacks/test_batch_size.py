"""find_batch_size leaves no trace and finds what fits; an out-of-memory error says which batch would have fitted."""

import copy
import gc
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import cbnb.all as cbnb
from cbnb.basics.random_state import rng_state
from cbnb.callbacks import batch_size
from cbnb.callbacks.batch_size import BatchSizes, Memory, Try, asked_for, memory_advice
from cbnb.callbacks.compile import Compile
from cbnb.display.progress import LogDisplay
from helpers import line_learner, live, same_bits, seed

GB = 10**9


def out_of_memory():
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10 GiB")


class Net(nn.Module):
    """Dropout and batch norm; memory ends at `most` items."""

    def __init__(self, most=10**9):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.most, self.seen = most, []

    def forward(self, x):
        self.seen.append(len(x))
        out = self.layers(x)
        if len(x) > self.most:
            raise out_of_memory()
        return out


def learner(n=300, most=10**9, net=None, **kwargs):
    seed()
    x = torch.randn(n, 4)
    ds = TensorDataset(x, x.sum(1, keepdim=True))
    dls = kwargs.pop("dls", None) or cbnb.DataLoaders(DataLoader(ds, 16, shuffle=True), DataLoader(ds, 32), device="cpu")
    return cbnb.Learner(dls, net or Net(most), nn.MSELoss(), **kwargs).remove_cb(cbnb.ProgressCallback)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(batch_size._Watch, "most", 3)


# --- what it finds ---


def sizes(found):
    return [t.bs for t in found.tries]


def test_all_items_of_a_small_dataset():
    found = learner(100).find_batch_size()
    assert found.bs == 100 and sizes(found) == [8, 16, 32, 64, 100] and "all items of the dataset" in found.why


def test_max_bounds_it():
    found = learner().find_batch_size(max=50)
    assert found.bs == 50 and found.why == "max=50"
    assert learner(20).find_batch_size(max=50).bs == 20


@pytest.mark.parametrize("most", [1, 2, 5, 8, 9, 31, 63, 64, 65, 100, 255])
def test_the_size_fits_with_headroom(most):
    net = Net(most)
    net.layers = nn.Linear(4, 1)  # batch norm needs two items
    found = learner(net=net).find_batch_size()
    assert 0.5 * most <= found.bs <= max(0.9 * most, 1)
    assert all(t.fits == (t.bs <= most) for t in found.tries) and ("headroom" in found.why) == (most > 1)


def test_not_even_one_item_fits():
    net = Net(0)
    net.layers = nn.Linear(4, 1)
    learn = learner(net=net)
    with pytest.raises(torch.OutOfMemoryError, match="not even a batch of one item"):
        learn.find_batch_size()
    assert learn.opt is None


def test_seconds_bound_it():
    found = learner().find_batch_size(seconds=1e-9)
    assert len(found.tries) == 1 and "longer than seconds=1e-09" in found.why


def test_the_cpu_is_not_filled(monkeypatch):
    memory = itertools.chain([1 * GB], itertools.count(2 * GB, GB))

    def memory_of(device):
        return Memory(1 * GB, next(memory), 5 * GB)

    monkeypatch.setattr(batch_size, "memory_of", memory_of)
    found = learner().find_batch_size()
    assert all(t.fits for t in found.tries) and "of 5 GB" in found.why and found.bs < 300


def test_without_numbers_time_decides(monkeypatch):
    monkeypatch.setattr(batch_size, "memory_of", lambda device: None)
    found = learner().find_batch_size()
    assert found.bs == 300 and all(t.memory is None for t in found.tries)
    found.plot()
    assert "memory" in repr(found)


def test_enough_is_the_smallest_fast_size():
    tries = [Try(8, 1.0, None), Try(16, 1.0, None), Try(32, 1.9, None), Try(64, 3.8, None), Try(128, 1.0, None, fits=False)]
    found = BatchSizes(64, "x", tries)
    assert found.enough == 16 or found.enough == 32
    assert [t.speed for t in found.tries] == [8, 16, 32 / 1.9, 64 / 3.8, 0]


def test_the_texts():
    found = BatchSizes(56, "64 items fit & 72 do not", [Try(64, 0.5, 3 * 10**6), Try(72, float("inf"), None, fits=False)])
    assert "out of memory" in repr(found) and "128" in repr(found) and "3 MB" in repr(found)
    assert "&amp;" in found._repr_html_()
    assert found.plot(return_fig=True) is not None


# --- no trace ---


def state_of(learn):
    return dict(
        model={k: v.clone() for k, v in learn.model.state_dict().items()},
        opt=copy.deepcopy(learn.opt.state_dict()) if learn.opt else None,
        grads=[None if p.grad is None else p.grad.clone() for p in learn.model.parameters()],
        modes=[m.training for m in learn.model.modules()],
        rng=str(rng_state()),
        runs=len(learn.recorder.history),
        cbs=list(learn.cbs),
        dls=id(learn.dls),
        lr=learn.lr,
        loop=[learn.purpose, learn.epoch, learn.train_iter, learn.n_epoch, learn.iter, learn.undo],
    )


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return a == b


class Rude(cbnb.Callback):
    """Draws random numbers, counts, and would log."""

    def __init__(self):
        self.n = 0

    def after_batch(self):
        self.n += 1
        random.random(), np.random.rand(), torch.rand(1)


def searches(learn):
    return learn.find_batch_size(max=64)


def breaks(learn):
    def fail(cb):
        if len(cb.learn.x) == 32:
            raise ValueError("a bug")

    with learn.added_cbs(cbnb.Callback(after_pred=fail)), pytest.raises(ValueError, match="a bug") as caught:
        learn.find_batch_size()
    assert any("find_batch_size" in note for note in caught.value.__notes__)


def stops(learn):
    def press(cb):
        if len(cb.learn.x) == 32:
            raise KeyboardInterrupt

    with learn.added_cbs(cbnb.Callback(after_pred=press)), pytest.raises(cbnb.FitInterrupted, match="find_batch_size stopped"):
        learn.find_batch_size()


def runs_out(learn):
    learn.model.most = 40
    found = learn.find_batch_size()
    learn.model.most = 10**9
    return found


@pytest.mark.parametrize("trained", [False, True], ids=["new", "trained"])
@pytest.mark.parametrize("search", [searches, breaks, stops, runs_out], ids=lambda f: f.__name__)
def test_no_trace(search, trained):
    learn = learner(cbs=[Rude(), cbnb.GradientAccumulation(64), cbnb.GradientClip(0.1)])
    if trained:
        learn.fit(1)
        learn.model.layers[0].weight.grad = torch.ones(8, 4)
    before, n = state_of(learn), learn.rude.n
    search(learn)
    after = state_of(learn)
    assert [k for k in before if not equal(before[k], after[k])] == []
    assert learn.rude.n == n


def test_the_next_fit_is_as_without():
    plain, searched = learner(), learner()
    seed(4)
    plain.fit(2)
    searched.find_batch_size(max=64)
    seed(4)
    searched.fit(2)
    assert same_bits(plain.model, searched.model)


def test_a_failed_try_keeps_no_memory():
    net = Net(40)
    gc.collect()
    gc.disable()
    try:
        learn = learner(net=net)
        before = live()  # those of other tests, too; held here, so that no new tensor gets the id of an old one
        known = {id(o) for o in before}
        learn.find_batch_size()
        left = [tuple(o.shape) for o in live(known) if o.ndim == 2 and len(o) in (64, 48, 44, 42)]
    finally:
        gc.enable()
    assert left == []


def test_recorders_and_trackers_notice_nothing(tmp_path):
    learn = learner(cbs=[cbnb.SaveModel(), cbnb.CSVLogger(tmp_path / "log.csv")], path=tmp_path)
    learn.find_batch_size(max=32)
    assert not list(tmp_path.rglob("*")) and not learn.recorder.history.runs


def test_accumulation_takes_no_part():
    learn = learner(cbs=cbnb.GradientAccumulation(10**6))
    found = learn.find_batch_size(max=64)
    assert found.bs == 64 and any(isinstance(cb, cbnb.GradientAccumulation) for cb in learn.cbs)


def test_with_compiled_code(capsys):
    compile = Compile(backend="eager")
    found = learner(net=nn.Linear(4, 1), cbs=compile).find_batch_size(max=64)  # the other net counts
    assert found.bs == 64 and compile.report().failed is None and len(compile.report().compilations) <= 3
    assert "compiled" not in capsys.readouterr().out


# --- data ---


class Pairs(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return dict(x=torch.full((4,), float(i)), y=torch.zeros(1))


def test_items_are_joined_as_the_loader_does():
    joined = []

    def collate(items):
        joined.append(len(items))
        return torch.stack([item["x"] for item in items]), torch.stack([item["y"] for item in items])

    dls = cbnb.DataLoaders(DataLoader(Pairs(), 4, collate_fn=collate), device="cpu")
    assert learner(dls=dls).find_batch_size().bs == 40
    assert joined == [8, 8, 16, 32, 40]


def test_batches_of_dicts():
    class Takes(Net):
        def forward(self, x):
            return super().forward(x)

    dls = cbnb.DataLoaders(DataLoader(Pairs(), 4), targets="y", device="cpu")
    assert learner(net=Takes(), dls=dls).find_batch_size().bs == 40


class Stream(IterableDataset):
    def __iter__(self):
        yield from [(torch.ones(4), torch.ones(1))] * 40


@pytest.mark.parametrize("make", [lambda: [(torch.ones(4, 4), torch.ones(4, 1))], lambda: DataLoader(Stream(), 4)], ids=["list", "stream"])
def test_data_that_cannot_be_indexed_is_refused(make):
    learn = learner(dls=cbnb.DataLoaders(make(), device="cpu"))
    with pytest.raises(
        ValueError, match="find_batch_size makes batches of other sizes from the training dataset, which needs __len__ and __getitem__, but"
    ):
        learn.find_batch_size()


def test_not_within_a_fit():
    learn = learner(cbs=cbnb.Callback(after_batch=lambda cb: cb.learn.find_batch_size()))
    with pytest.raises(RuntimeError, match="find_batch_size after the run"):
        learn.fit(1)


@pytest.mark.parametrize("kwargs", [dict(start=0), dict(max=0), dict(start=2.5)])
def test_wrong_arguments(kwargs):
    with pytest.raises((ValueError, TypeError), match=next(iter(kwargs))):
        learner().find_batch_size(**kwargs)


def test_own_steps():
    net = Net()
    learn = learner(net=net, train_step=lambda x, y: nn.functional.mse_loss(net(x), y))
    assert learn.find_batch_size(max=32).bs == 32


# --- advice in an error ---


@pytest.mark.parametrize(
    "text, n",
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has", 2 * 2**30),
        ("CUDA out of memory. Tried to allocate 512.00 KiB.", 2**19),
        ("MPS backend out of memory (MPS allocated: 9.07 GB, max allowed: 9.07 GB). Tried to allocate 256 bytes on shared pool.", 256),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes. Error code 12", 4000),
        ("out of memory", None),
    ],
)
def test_bytes_that_were_asked_for(text, n):
    assert asked_for(RuntimeError(text)) == n


def test_advice_by_hand():
    # 64 items took 8 GB and wanted 2 more: 10 GB; there are 10 in all, 2 of them for weights and gradients
    said = memory_advice(64, Memory(9 * GB, 9 * GB, GB), 2 * GB, (GB, 2 * GB))
    assert "needed at least 10 GB beside 2 GB" in said and "8 GB were free" in said
    assert "at most 40 items" in said and "in proportion" in said and "GradientAccumulation(64)" in said


def test_advice_if_memory_is_in_pieces():
    assert "expandable_segments" in memory_advice(64, Memory(2 * GB, 2 * GB, 8 * GB), GB, (GB, GB))


def test_advice_if_nothing_fits():
    assert "not even one item" in memory_advice(2, Memory(9 * GB, 9 * GB, 0), 9 * GB, (GB, 8 * GB))


def notes_of(learn, error=torch.OutOfMemoryError):
    with pytest.raises(error) as caught:
        learn.fit(1)
    return caught.value.__notes__


def test_the_note_of_a_device_with_numbers(monkeypatch):
    monkeypatch.setattr(batch_size, "memory_of", lambda device: Memory(9 * GB, 9 * GB, GB))
    learn = learner(most=10)
    learn.dls.device = torch.device("meta")
    notes = notes_of(learn)
    assert any("the batch had 16 items" in note for note in notes)
    assert "the batch needed at least 11.1 GB" in notes[-1] and "items would fit" in notes[-1]


def test_no_numbers_no_note():
    assert notes_of(learner(most=10))[-1].startswith("the batch had 16 items")


def test_the_note_of_the_cpu(monkeypatch):
    class Huge(Net):
        def forward(self, x):
            return super().forward(x) + torch.zeros(len(x), 10**13)[:, :1]

    monkeypatch.setattr(batch_size, "free_memory", lambda: 3e14)
    notes = notes_of(learner(net=Huge()), RuntimeError)
    assert "at most 7 items would fit" in notes[-1]  # 16*3e14/6.4e14 = 7.5


def test_a_failure_of_the_advice_does_not_hide_the_error(monkeypatch):
    def fails(device):
        raise OSError("no such device")

    monkeypatch.setattr(batch_size, "memory_of", fails)
    learn = learner(most=10)
    learn.dls.device = torch.device("meta")
    assert notes_of(learn)


def test_other_errors_get_no_advice():
    learn = line_learner(cbs=cbnb.Callback(after_pred=lambda cb: 1 / 0))
    with pytest.raises(ZeroDivisionError) as caught:
        learn.fit(1)
    assert not any("memory" in note for note in caught.value.__notes__)


def test_a_system_that_does_not_tell_the_peak_has_no_memory_to_report(monkeypatch):
    monkeypatch.setattr(batch_size.Path, "read_text", lambda path: "VmRSS:\t  100 kB\n")
    assert batch_size.memory_of("cpu") is None


# --- what it shows, and a click on Stop ---


class Shown(LogDisplay):
    """Notes what it is told, and is stopped while it tries batches of 64 items."""

    def __init__(self, at="64 of"):
        self.words, self.at, self.finished = [], at, 0

    def progress(self, at):
        self.words.append(at.words())
        self.stopped = self.at in at.stage

    def finish(self, word, as_planned):
        self.finished += 1


@pytest.mark.parametrize("at", ["64 of 300 items, reading item 0", "64 of 300 items, batch 1"])
def test_a_stopped_search_has_the_sizes_so_far(monkeypatch, at):
    shown = Shown(at)
    monkeypatch.setattr(batch_size, "_display_of", lambda learn: shown)
    monkeypatch.setattr(batch_size.BatchSizeSearch, "draw_at", property(lambda self: 0, lambda self, value: None), raising=False)
    learn = learner()
    before = copy.deepcopy(learn.model.state_dict())
    found = learn.find_batch_size()
    assert sizes(found) == [8, 16, 32] and found.bs == 32 and found.why == "you stopped the search" and shown.finished == 1
    assert all(torch.equal(a, b) for a, b in zip(before.values(), learn.model.state_dict().values())) and not learn.running
    assert "find_batch_size: 16 of 300 items, batch 2" in shown.words and "find_batch_size: 32 of 300 items, reading item 31" in shown.words


def test_a_search_that_is_stopped_before_the_first_size_is_an_interrupt(monkeypatch):
    monkeypatch.setattr(batch_size, "_display_of", lambda learn: Shown("reading item 3"))
    monkeypatch.setattr(batch_size.BatchSizeSearch, "draw_at", property(lambda self: 0, lambda self, value: None), raising=False)
    with pytest.raises(cbnb.FitInterrupted, match="find_batch_size stopped; learn is usable"):
        learner().find_batch_size()


def test_ctrl_c_while_items_are_read_ends_the_search_as_in_a_batch():
    class Items(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            raise KeyboardInterrupt

    learn = line_learner(dls=cbnb.DataLoaders(DataLoader(Items(), batch_size=2), device="cpu"))
    with pytest.raises(cbnb.FitInterrupted, match="find_batch_size stopped; learn is usable"):
        learn.find_batch_size()
