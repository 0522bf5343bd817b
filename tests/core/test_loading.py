"""Loading: batches by index are torch's own batches, in its order and with its random states, whatever people pass."""

import contextlib
import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import types
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.datapipes.iter import IterableWrapper

import cbnb
import resumed
from cbnb.basics import nested, workers
from cbnb.basics.loaders import TensorBatches, TensorLoader, batches_of, can_index, first_batch, holds_tensors, independent_loader
from cbnb.basics.nested import CopiesAhead, OnDevice
from cbnb.basics.random_state import rng_state, set_rng_state
from cbnb.basics.workers import WorkerLoader, decide, held, make_loader, state_of_data
from cbnb.files.position import batches_from, draws, start_workers
from helpers import seed

N = 37


def tensors(n=N):
    g = torch.Generator().manual_seed(5)
    return torch.randn(n, 3, 2, generator=g), torch.arange(n)


def states(*generators):
    """The state of every generator, to be compared."""
    numpy = np.random.get_state()
    return (
        random.getstate(),
        torch.get_rng_state().tolist(),
        (numpy[0], numpy[1].tolist(), *numpy[2:]),
        [g.get_state().tolist() for g in generators],
    )


def same(a, b):
    """Equal type, structure, bits, dtype and strides."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.stride() == b.stride() and a.shape == b.shape and a.device == b.device
        assert torch.equal(a, b) or (a.isnan() == b.isnan()).all() and torch.equal(a.nan_to_num(), b.nan_to_num())
        assert a.requires_grad == b.requires_grad
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, two in zip(a, b):
            same(one, two)
    else:
        assert a == b


def both(make, use, **kwargs):
    """`use(iterate, loader)` with torch's loader, with ours, and with torch's as the learner iterates it."""
    results = []
    for cls, iterate in (DataLoader, iter), (TensorLoader, iter), (DataLoader, lambda dl: iter(batches_of(dl))):
        seed(11)
        made = make()
        args = made if isinstance(made, dict) else dict(dataset=made)
        dl = cls(**args | kwargs)
        found = use(iterate, dl)
        generators = {id(g): g for g in (dl.generator, getattr(dl.sampler, "generator", None)) if g is not None}.values()
        results.append((found, states(*generators)))
    for found, state in results[1:]:
        same(results[0][0], found)
        assert results[0][1] == state
    return results[0][0]


def epochs(iterate, dl, n=3):
    """Whole epochs, with a number drawn after each batch and each epoch, as a model with dropout would."""
    found = []
    for _ in range(n):
        for batch in iterate(dl):
            found.append((batch, torch.rand(()), random.random(), np.random.random()))
        found.append(torch.rand(()))
    return found


def gen(n=3):
    return torch.Generator().manual_seed(n)


# how a loader is made; whether batches are indexed
LOADERS = {
    "in order": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8), True),
    "shuffled": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, shuffle=True), True),
    "drop_last": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, shuffle=True, drop_last=True), True),
    "one by one": (lambda: dict(dataset=TensorDataset(*tensors()), shuffle=True), True),
    "larger than the set": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=100, shuffle=True), True),
    "generator": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, shuffle=True, generator=gen()), True),
    "the global generator": (
        lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, shuffle=True, generator=torch.default_generator),
        True,
    ),
    "sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=SubsetRandomSampler(range(3, 30))), True),
    "sampler with a generator": (
        lambda: dict(
            dataset=TensorDataset(*tensors()), batch_size=8, sampler=RandomSampler(range(N), True, 50, generator=gen(9)), generator=gen()
        ),
        True,
    ),
    "weighted": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=WeightedRandomSampler(torch.rand(N), 60)), True),
    "a list as sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=[3, 1, 4, 1, 5]), True),
    "numpy as sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=np.random.permutation(N)), True),
    "a tensor as sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=torch.randperm(N)), True),
    "negative numbers": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=4, sampler=[0, -1, 5, 6, 7, 8, 1, 2]), True),
    "masks": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=2, sampler=[True, True, 1, 2]), True),
    "lazy sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=Lazy()), True),
    "batch sampler": (
        lambda: dict(dataset=TensorDataset(*tensors()), batch_sampler=BatchSampler(RandomSampler(range(N)), 5, False)),
        True,
    ),
    "lists as batch sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_sampler=[[1, 2], [3], [0, -1]]), True),
    "tensors as batch sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_sampler=torch.arange(12).view(3, 4)), True),
    "tuples as batch sampler": (lambda: dict(dataset=TensorDataset(*tensors()), batch_sampler=[(1, 2), (3,)]), True),
    "distributed": (
        lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, sampler=DistributedSampler(range(N), num_replicas=2, rank=1)),
        True,
    ),
    "subset": (lambda: dict(dataset=Subset(TensorDataset(*tensors()), list(range(30, 3, -1))), batch_size=8, shuffle=True), True),
    "subset by tensor": (lambda: dict(dataset=Subset(TensorDataset(*tensors()), torch.randperm(N)[:20]), batch_size=8, shuffle=True), True),
    "subset by numpy": (
        lambda: dict(dataset=Subset(TensorDataset(*tensors()), np.random.permutation(N)[:20]), batch_size=8, shuffle=True),
        True,
    ),
    "subset from the end": (lambda: dict(dataset=Subset(TensorDataset(*tensors()), [-1, -2, 3]), batch_size=2, shuffle=True), True),
    "split of a split": (
        lambda: dict(dataset=random_split(random_split(TensorDataset(*tensors()), [30, 7])[0], [0.5, 0.5])[1], batch_size=4, shuffle=True),
        True,
    ),
    "subset by mask": (lambda: dict(dataset=Subset(TensorDataset(*tensors()), torch.ones(N, dtype=torch.bool)), batch_size=4), True),
    "one tensor": (lambda: dict(dataset=TensorDataset(tensors()[0]), batch_size=8), True),
    "four tensors": (lambda: dict(dataset=TensorDataset(*tensors(), *tensors()), batch_size=8, shuffle=True), True),
    "odd types": (
        lambda: dict(
            dataset=TensorDataset(
                torch.rand(N) > 0.5, torch.rand(N, 2).half(), torch.rand(N, 2).bfloat16(), torch.rand(N, 1, dtype=torch.cfloat)
            ),
            batch_size=8,
        ),
        True,
    ),
    "nothing in an item": (lambda: dict(dataset=TensorDataset(torch.zeros(N, 0)), batch_size=8), True),
    "parameters": (lambda: dict(dataset=TensorDataset(nn.Parameter(tensors()[0])), batch_size=8), True),
    "requires grad": (lambda: dict(dataset=TensorDataset(tensors()[0].requires_grad_(), tensors()[1]), batch_size=8), True),
    "transposed": (lambda: dict(dataset=TensorDataset(torch.rand(4, N).T), batch_size=8), True),
    "every second row": (lambda: dict(dataset=TensorDataset(torch.rand(2 * N, 3)[::2]), batch_size=8), True),
    "expanded": (lambda: dict(dataset=TensorDataset(torch.rand(1, 3).expand(N, 3)), batch_size=8), True),
    "channels last": (
        lambda: dict(dataset=TensorDataset(torch.rand(N, 3, 4, 5).to(memory_format=torch.channels_last)), batch_size=8, shuffle=True),
        True,
    ),
    "one channel": (lambda: dict(dataset=TensorDataset(torch.rand(N, 1, 4, 5), torch.rand(N, 4, 1, 1)), batch_size=8, shuffle=True), True),
    "subclass with names": (lambda: dict(dataset=Named(*tensors()), batch_size=8, shuffle=True), True),
    "subclass with items": (lambda: dict(dataset=Noisy(*tensors()), batch_size=8, shuffle=True), False),
    "subclass with batches": (lambda: dict(dataset=Doubled(*tensors()), batch_size=8, shuffle=True), False),
    "subset of such": (lambda: dict(dataset=Subset(Noisy(*tensors()), range(20)), batch_size=8, shuffle=True), False),
    "own subset": (lambda: dict(dataset=Shifted(TensorDataset(*tensors()), range(20)), batch_size=8, shuffle=True), False),
    "concatenated": (
        lambda: dict(dataset=ConcatDataset([TensorDataset(*tensors()), TensorDataset(*tensors())]), batch_size=8, shuffle=True),
        False,
    ),
    "stacked": (lambda: dict(dataset=StackDataset(image=tensors()[0], label=tensors()[1]), batch_size=8, shuffle=True), False),
    "like hugging face": (lambda: dict(dataset=Rows(), batch_size=8, shuffle=True), False),
    "items of dicts": (lambda: dict(dataset=[dict(x=i, y=float(i)) for i in range(N)], batch_size=8, shuffle=True), False),
    "numpy items": (lambda: dict(dataset=list(np.random.rand(N, 3)), batch_size=8, shuffle=True), False),
    "named tuples": (lambda: dict(dataset=[Pair(torch.rand(2), i) for i in range(N)], batch_size=8, shuffle=True), False),
    "stream": (lambda: dict(dataset=Stream(), batch_size=8), False),
    "collate_fn": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=8, shuffle=True, collate_fn=list), False),
    "single items": (lambda: dict(dataset=TensorDataset(*tensors()), batch_size=None, shuffle=True), False),
}


class Lazy:
    """A sampler that draws from the global generators, item by item."""

    def __iter__(self):
        for _ in range(N):
            yield (int(torch.randint(N, ())) + random.randrange(N) + np.random.randint(N)) % N

    def __len__(self):
        return N


class Named(TensorDataset):
    classes = ["small", "large"]


class Noisy(TensorDataset):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + torch.rand(()) + random.random() + np.random.random(), y


class Doubled(TensorDataset):
    def __getitems__(self, chosen):
        return [tuple(2 * t for t in self[i]) for i in chosen]


class Shifted(Subset):
    def __getitem__(self, i):
        return self.dataset[self.indices[i] + 1]

    def __getitems__(self, chosen):
        return [self[i] for i in chosen]


class Rows(Dataset):
    """As Hugging Face's datasets give their rows."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return dict(ids=torch.tensor([i, i + 1]), label=i)

    def __getitems__(self, chosen):
        return [self[i] for i in chosen]


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(N):
            yield torch.rand(2)


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize("name", LOADERS)
def test_batches_order_and_random_states_are_torchs(name):
    make, indexed = LOADERS[name]
    found = both(make, epochs)
    assert len(found) > 3
    assert can_index(TensorLoader(**make())) == indexed


@pytest.mark.parametrize("name", [name for name, (_, indexed) in LOADERS.items() if indexed])
def test_most_of_them_ask_for_no_single_item(name, monkeypatch):
    """In the usual cases no item is read alone."""
    alone = {
        "negative numbers", "masks", "tensors as batch sampler", "tuples as batch sampler", "lists as batch sampler", "subset from the end",
        "subset by mask", "parameters", "transposed", "every second row", "expanded", "channels last", "a tensor as sampler",
    }  # fmt: skip
    dl = TensorLoader(**LOADERS[name][0]())
    fetched = []
    it = iter(dl)
    fetch = it._dataset_fetcher.fetch
    monkeypatch.setattr(it._dataset_fetcher, "fetch", lambda chosen: fetched.append(chosen) or fetch(chosen))
    list(it)
    assert bool(fetched) == (name in alone)


@pytest.mark.parametrize(
    "name", ["shuffled", "generator", "the global generator", "sampler with a generator", "lazy sampler", "split of a split"]
)
def test_part_of_an_epoch(name):
    def use(iterate, dl):
        first = list(itertools.islice(iterate(dl), 2))
        return [first, next(iter(iterate(dl))), torch.rand(()), epochs(iterate, dl, 1), list(itertools.islice(iterate(dl), 0))]

    both(LOADERS[name][0], use)


@pytest.mark.parametrize(
    "name", ["shuffled", "generator", "the global generator", "sampler with a generator", "lazy sampler", "split of a split"]
)
def test_two_iterations_at_a_time(name):
    def use(iterate, dl):
        one, two = iterate(dl), iterate(dl)
        found = [next(one), next(two), next(two), torch.rand(()), next(one)]
        inner = [(a, list(itertools.islice(iterate(dl), 1))) for a in iterate(dl)]
        return [found, inner, list(one), list(two)]

    both(LOADERS[name][0], use)


def test_distributed_sampler_with_set_epoch():
    def use(iterate, dl):
        found = []
        for epoch in range(3):
            dl.sampler.set_epoch(epoch)
            found.append(list(iterate(dl)))
        return found

    found = both(LOADERS["distributed"][0], use)
    assert not torch.equal(found[0][0][1], found[1][0][1])


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_errors_are_torchs_and_the_iteration_may_go_on():
    def use(iterate, dl):
        it, found = iterate(dl), []
        while True:
            try:
                found.append(next(it))
            except StopIteration:
                return found
            except Exception as e:
                found.append((type(e).__name__, str(e)))

    for chosen in [0, 99, 2], [0, "a name", 2], [0, 2.5, 1], [1, 2**70], [-99, 0]:
        found = both(lambda chosen=chosen: dict(dataset=TensorDataset(*tensors()), sampler=chosen), use)
        assert any(type(each) is tuple for each in found)
    both(lambda: dict(dataset=TensorDataset(*tensors()), batch_sampler=[[1], [], [2]]), use)


def test_what_is_changed_between_and_within_epochs_is_seen():
    def use(iterate, dl):
        x, y = dl.dataset.tensors
        found = [list(iterate(dl))]
        x += 1
        found.append(list(iterate(dl)))
        it = iterate(dl)
        found.append(next(it))
        dl.dataset.tensors = (x.double(), y, y)
        found.append(list(it))
        dl.dataset.tensors = [x, y]
        found.append(list(iterate(dl)))
        return found

    both(LOADERS["shuffled"][0], use)

    def grows(iterate, dl):
        dl.dataset.indices.append(0)
        return [list(iterate(dl)), len(dl)]

    both(LOADERS["subset"][0], grows)


def test_a_batch_is_a_copy():
    x, y = tensors()
    before = x.clone()
    for xb, _ in TensorLoader(TensorDataset(x, y), batch_size=8):
        xb.zero_()
    assert torch.equal(x, before)


def test_gradients_reach_the_data():
    def use(iterate, dl):
        x = dl.dataset.tensors[0]
        sum((xb**2).sum() for xb, _ in iterate(dl)).backward()
        return x.grad

    both(lambda: dict(dataset=TensorDataset(tensors()[0].requires_grad_(), tensors()[1]), batch_size=8, shuffle=True), use)


def test_a_registered_way_to_stack_tensors_is_kept(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map=None: torch.stack(batch).float() + 0.5)
    both(LOADERS["shuffled"][0], epochs)


def test_methods_given_to_one_dataset_or_class_later_are_kept(monkeypatch):
    data = TensorDataset(*tensors())
    data.__getitems__ = lambda chosen: [(torch.tensor(i),) for i in chosen]
    assert not holds_tensors(data)
    both(lambda: dict(dataset=data, batch_size=3), epochs)
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, i: (torch.tensor(i),))
    assert not holds_tensors(TensorDataset(*tensors()))
    both(LOADERS["shuffled"][0], epochs)


def test_it_is_a_data_loader():
    data = TensorDataset(*tensors())
    dl, torchs = (cls(data, batch_size=8, shuffle=True, drop_last=True) for cls in (TensorLoader, DataLoader))
    assert isinstance(dl, DataLoader) and type(dl).__iter__ is DataLoader.__iter__
    for name in (
        "dataset",
        "batch_size",
        "num_workers",
        "collate_fn",
        "pin_memory",
        "drop_last",
        "timeout",
        "generator",
        "persistent_workers",
    ):
        assert getattr(dl, name) == getattr(torchs, name)
    assert len(dl) == len(torchs) == 4 and len(iter(dl)) == 4
    assert type(dl.sampler) is RandomSampler and type(dl.batch_sampler) is BatchSampler
    with pytest.raises(ValueError, match="batch_size attribute should not be set after TensorLoader"):
        dl.batch_size = 3
    for other in (copy.copy(dl), copy.deepcopy(dl), pickle.loads(pickle.dumps(dl))):
        seed(2)
        mine = list(dl)
        seed(2)
        same(mine, list(other))
        assert type(other) is TensorLoader


def test_workers_load_as_ever():
    def use(iterate, dl):
        return [batch for _ in range(2) for batch in iterate(dl)]

    both(LOADERS["shuffled"][0], use, num_workers=1)


def test_subclasses_of_loaders_are_left_alone():
    class Twice(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch
                yield batch

    dl = Twice(TensorDataset(*tensors()), batch_size=8)
    assert batches_of(dl) is dl
    assert len(list(batches_of(dl))) == 10
    for other in ([1, 2], (1,), iter([1]), None, Stream()):
        assert batches_of(other) is other


@pytest.mark.parametrize("name", ["shuffled", "generator", "sampler with a generator", "lazy sampler", "subset", "batch sampler"])
@pytest.mark.parametrize("cls", [DataLoader, TensorLoader])
def test_an_epoch_is_continued_in_its_middle(name, cls):
    seed(4)
    dl = cls(**LOADERS[name][0]())
    start = rng_state([dl])
    whole = list(dl)
    after = rng_state([dl])
    for n in range(len(whole) + 1):
        set_rng_state(start, [dl])
        it = batches_from(dl, n)
        assert type(it) is TensorBatches or n == 0
        same(whole[n:], list(it))
        assert str(rng_state([dl])) == str(after)
        assert len(dl) == len(whole) and not isinstance(dl.batch_sampler, list)


def test_skipped_batches_are_not_loaded(monkeypatch):
    import cbnb.basics.loaders as module

    chosen, really = [], module.batch_by_index
    monkeypatch.setattr(module, "batch_by_index", lambda ds, rows: chosen.append(rows) or really(ds, rows))
    dl = TensorLoader(TensorDataset(*tensors()), batch_size=8)
    list(batches_from(dl, 3))
    assert chosen == [list(range(24, 32)), list(range(32, 37))]


def test_a_look_at_the_first_batch_changes_nothing():
    dl = TensorLoader(TensorDataset(*tensors()), batch_size=8, shuffle=True, generator=gen())
    before = states(dl.generator)
    batch = first_batch(dl)
    assert states(dl.generator) == before
    same(batch, next(iter(dl)))
    assert independent_loader(dl) is dl


# --- in a learner ---


def fit_history(dls, **kwargs):
    seed(7)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 1))
    learn = cbnb.Learner(dls, model, lambda p, y: nn.functional.mse_loss(p[:, 0], y.float() / N), **kwargs)
    with learn.no_bar(), learn.no_logging():
        learn.fit(3)
    return learn


class Left(DataLoader):
    """A loader that is iterated as torch does it."""


@pytest.mark.parametrize("cls", [DataLoader, TensorLoader])
def test_a_fit_is_that_with_torchs_loader(cls):
    def loaders(cls):
        data = TensorDataset(*tensors())
        return cbnb.DataLoaders(cls(data, batch_size=8, shuffle=True), cls(data, batch_size=16), device="cpu")

    one, two = fit_history(loaders(Left)), fit_history(loaders(cls))
    state = states()
    fit_history(loaders(Left))
    assert states() == state
    assert one.recorder.history[-1].steps["loss"] == two.recorder.history[-1].steps["loss"]
    for a, b in zip(one.model.state_dict().values(), two.model.state_dict().values()):
        assert torch.equal(a, b)


def test_from_datasets_makes_such_loaders():
    data = TensorDataset(*tensors())
    dls = cbnb.DataLoaders.from_datasets(data, Subset(data, range(5)), bs=8, device="cpu")
    assert all(can_index(dl) and type(dl) is TensorLoader for dl in dls.loaders)
    assert can_index(dls.test_dl(data)) and isinstance(dls.test_dl(data), DataLoader)
    seed(1)
    mine = [list(dl) for dl in dls.loaders]
    seed(1)
    same(mine, [list(DataLoader(data, 8, shuffle=True)), list(DataLoader(dls.valid_ds, 16))])


# --- copies to a GPU, with one that only takes notes ---


@pytest.fixture
def streams(monkeypatch):
    """`torch.cuda` on a machine without it: notes what is done on which stream. The device is `meta`."""
    notes, current = [], ["computing"]

    class Stream:
        def __init__(self, device=None, name="copying"):
            self.name = name

        def wait_stream(self, other):
            notes.append((self.name, "waits for", other.name))

    class Event:
        made = 0

        def __init__(self, blocking=False):
            assert blocking
            Event.made += 1
            self.number = Event.made

        def record(self, stream):
            notes.append((stream.name, "records", self.number))

        def synchronize(self):
            notes.append(("python", "waits for", self.number))

    @contextlib.contextmanager
    def on(stream):
        before, current[0] = current[0], stream.name
        try:
            yield
        finally:
            current[0] = before

    to = torch.Tensor.to

    def noting(t, *args, **kwargs):
        notes.append((current[0], "copies", tuple(t.shape)))
        return to(t, *args, **kwargs)

    monkeypatch.setattr(nested, "module_of", lambda kind: torch.cuda)
    monkeypatch.setattr(nested, "new_event", lambda kind: Event(blocking=True))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(name=current[0]))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, stream: notes.append((stream.name, "uses", tuple(t.shape))))
    monkeypatch.setattr(torch.Tensor, "to", noting)
    return notes


BIG = (64, 3, 32, 32)


def test_a_large_batch_is_copied_on_its_own_stream(streams):
    batch = (torch.zeros(BIG), {"y": torch.zeros(64)})
    xb, yb = CopiesAhead("meta", tuple)(batch)
    assert xb.device.type == yb["y"].device.type == "meta" and xb.shape == BIG
    assert streams == [
        ("computing", "records", 1),
        ("copying", "copies", BIG),
        ("computing", "uses", BIG),
        ("copying", "copies", (64,)),
        ("computing", "uses", (64,)),
        ("computing", "waits for", "copying"),
    ]


def test_python_is_at_most_two_batches_ahead(streams):
    copies = CopiesAhead("meta", tuple)
    for _ in range(4):
        copies((torch.zeros(BIG),))
    waits = [(who, what, n) for who, what, n in streams if "record" in what or who == "python"]
    assert waits == [
        ("computing", "records", 1),
        ("computing", "records", 2),
        ("python", "waits for", 1),
        ("computing", "records", 3),
        ("python", "waits for", 2),
        ("computing", "records", 4),
    ]


def test_what_is_small_or_on_a_device_stays_on_the_computing_stream(streams):
    class Graphs:
        def to(self, device):
            streams.append(("graphs", "move to", str(device)))
            return self

    copies = CopiesAhead("meta", list)
    copies([torch.zeros(3)])
    copies([torch.zeros(BIG, device="meta")])
    copies(["a name", Graphs()])
    assert streams == [("computing", "copies", (3,)), ("computing", "copies", BIG), ("graphs", "move to", "meta")]
    streams.clear()
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    moved = copies([torch.zeros(BIG), torch.zeros(5, device="meta"), packed, torch.eye(3).to_sparse()])
    assert [t.device.type for t in moved[:2]] == ["meta", "meta"] and moved[2].data.device.type == "meta"
    assert ("copying", "copies", BIG) in streams and ("computing", "copies", (5,)) in streams
    assert ("computing", "copies", (5, 2)) in streams and ("computing", "copies", (3, 3)) in streams
    assert sum(who == "copying" and what == "copies" for who, what, _ in streams) == 1


def test_it_can_be_copied_and_pickled(streams):
    copies = CopiesAhead("meta", len)
    copies((torch.zeros(BIG),))
    for other in (copy.deepcopy(copies), pickle.loads(pickle.dumps(copies))):
        assert other.device == torch.device("meta") and other._stream is None
        assert other((torch.zeros(BIG),)) == 1


def test_an_error_in_the_copy_leaves_the_stream(streams, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, stream: 1 / 0)
    copies = CopiesAhead("meta", len)
    with pytest.raises(ZeroDivisionError):
        copies((torch.zeros(BIG),))
    assert torch.cuda.current_stream().name == "computing"


def test_a_learner_copies_only_to_a_device():
    batches = [(torch.zeros(4, 2), torch.zeros(4, 1))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, device="cpu"), nn.Linear(2, 1), nn.MSELoss())
    assert learn.split_batch == learn.dls.split
    learn.dls.to("meta")
    learn.to_dls_device()
    assert type(learn.split_batch) is OnDevice and learn.split_batch.then == learn.dls.split
    (xb,), (yb,) = learn.split_batch(batches[0])
    assert xb.device.type == yb.device.type == "meta"
    pickle.dumps(learn.split_batch.device)


# --- workers ---

fork = pytest.mark.skipif(multiprocessing.get_all_start_methods()[0] != "fork", reason="workers are chosen only where they are forked")


class Tens(Dataset):
    """Deterministic items, with settings to be changed between epochs."""

    def __init__(self, n=10):
        self.n, self.factor, self.sizes, self.part = n, 1, [8], types.SimpleNamespace(shift=torch.zeros(()))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([self.factor * i, self.sizes[0]]) + self.part.shift, float(i)


class Slow(Tens):
    slept = 0.0  # seconds, in all

    def __getitem__(self, i):
        time.sleep(0.003)
        Slow.slept += 0.003
        return super().__getitem__(i)


class Random(Slow):
    def __getitem__(self, i):
        return super().__getitem__(i)[0] + np.random.random()


class OwnRandom(Slow):
    def __init__(self, n):
        super().__init__(n)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, i):
        return super().__getitem__(i)[0] + self.rng.random()


@pytest.fixture
def three_cores(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 3)


@pytest.fixture
def ended():
    """Ends the workers of loaders after a test."""
    made = []
    yield lambda dl: made.append(dl) or dl
    for dl in made:
        dl._iterator = None


def kept(data, ended, **kwargs):
    return ended(WorkerLoader(data, num_workers=2, persistent_workers=True, worker_init_fn=workers._ignore_interrupts, **kwargs))


@pytest.mark.parametrize("item, size, n, cores, expected", [
    (1e-6, 64, 10**6, 8, 0), (3e-5, 64, 10**6, 8, 0), (4e-5, 64, 10**6, 8, 3), (1e-3, 64, 10, 8, 0), (1e-3, 64, 20, 8, 7),
    (1e-3, 64, 20, 2, 1), (1e-3, 64, 20, 64, 8), (1.0, 1, 3, 64, 3), (1e-3, 3, 1000, 64, 3),
])  # fmt: skip
def test_the_decision(item, size, n, cores, expected):
    assert decide(item, size, n, cores).n == expected


@fork
def test_slow_items_get_workers(three_cores, ended):
    dls = cbnb.DataLoaders.from_datasets(Slow(400), Slow(3), bs=20, device="cpu")
    train, valid = map(ended, dls.loaders)
    assert type(train) is WorkerLoader and train.num_workers == train.chosen.n == 2 and train.persistent_workers
    assert type(valid) is TensorLoader and valid.num_workers == 0
    assert repr(dls) == "DataLoaders(20 batches of 20, 1 batch of 40; 2 and 0 workers; cpu)"
    assert "2 workers: a batch takes" in dls._repr_html_() and "0 workers: an epoch takes" in dls._repr_html_()
    assert sorted(torch.cat([y for _, y in train]).tolist()) == list(range(400))
    assert dls.test_dl(Slow(3)).num_workers == 0 and ended(dls.test_dl(Slow(400))).num_workers == 2
    assert dls.test_dl(Slow(400), num_workers=0).num_workers == 0


@fork
@pytest.mark.parametrize("data, words", [
    (lambda: TensorDataset(torch.zeros(9)), "tensors in memory"),
    (lambda: list(range(99)), "in memory"),
    (lambda: Stream(), "whole stream"),
    (lambda: Tens(), "a batch takes"),
    (lambda: Slow(100), "an epoch takes"),
    (lambda: Random(400), "draw random numbers"),
    (lambda: OwnRandom(400), "draw random numbers"),
    (lambda: Failing(400), "an item raises RuntimeError"),
    (lambda: Dying(400), "does not survive"),
    (lambda: Slow(0), "no items"),
])  # fmt: skip
def test_others_get_none_and_it_is_said_why(data, words, three_cores, monkeypatch):
    monkeypatch.setattr(workers.time, "perf_counter", lambda: Slow.slept)  # on a busy machine a sleep takes longer
    before, children = states(), multiprocessing.active_children()
    data = data()
    was = state_of_data(data)
    dl = make_loader(data, batch_size=20)
    assert dl.num_workers == dl.chosen.n == 0 and words in str(dl.chosen) and str(dl.chosen).startswith("0 workers: ")
    assert states() == before and state_of_data(data) == was and multiprocessing.active_children() == children


class Failing(Slow):
    def __getitem__(self, i):
        raise RuntimeError


class Dying(Slow):
    def __getitem__(self, i):
        os._exit(3)


class Loud(Slow):
    def __getitem__(self, i):
        print("loud")
        sys.stderr.write("louder")
        return super().__getitem__(i)


@fork
def test_the_trial_is_silent_and_touches_nothing(three_cores, capfd, ended):
    dl = ended(make_loader(Loud(400), batch_size=20))
    assert dl.num_workers == 2 and capfd.readouterr() == ("", "")


def test_why_not_on_this_machine(monkeypatch, three_cores):
    assert workers._alone() is None
    monkeypatch.setattr(workers, "cores", lambda: 1)
    assert str(make_loader(Slow(400)).chosen) == "0 workers: there is one core"


SPAWNED = """
import multiprocessing, threading, time
import torch
from cbnb.all import DataLoaders
from cbnb.basics import nested, workers

class Slow:
    lock = None
    def __init__(self, n=200): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        time.sleep(self.n*0.0005 if self.lock is None else 0)
        return torch.tensor([i, 2*i])

class Fast(Slow):
    def __getitem__(self, i): return torch.tensor([i, 2*i])

class Dies(Slow):
    def __getitem__(self, i): return multiprocessing.parent_process() and 1/0 or super().__getitem__(i)

def made(data, **kwargs): return DataLoaders.from_datasets(data, bs=20, device="cpu", **kwargs).train

def main():
    multiprocessing.set_start_method("spawn")
    workers.cores = lambda: 3
    dl = made(Slow())
    print(str(dl.chosen).split(" to load")[0][:25])
    if not dl.num_workers: return
    torch.manual_seed(0)
    with_workers = [b.tolist() for b in dl]
    dl._iterator = None
    torch.manual_seed(0)
    assert with_workers == [b.tolist() for b in made(Fast(), num_workers=0)]
    if "__file__" in globals(): return
    own = made(Slow(4), num_workers=1, collate_fn=lambda items: len(items))
    assert list(own) == [4]
    print(made(Dies()).chosen.why, "|", "cannot be sent to spawned workers (TypeError" in made(locked()).chosen.why)

def locked():
    data = Slow()
    data.lock = threading.Lock()
    return data
"""


@pytest.mark.parametrize("how", ["notebook", "guarded", "unguarded"])
def test_spawned_workers_get_the_classes_of_a_notebook_or_script(how, tmp_path):
    """Code of `python -c` is as that of a notebook: no other process can import it."""
    code = SPAWNED + ('if __name__ == "__main__":\n    main()\n' if how == "guarded" else "main()\n")
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *(["-c", code] if how == "notebook" else [tmp_path / "script.py"])], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    first, *rest = done.stdout.splitlines()
    if how == "unguarded":
        assert first == "0 workers: by spawn, a worker would run this script again"[: len(first)] and not rest
    else:
        assert first.startswith("2 workers: a batch takes")
        assert rest == ["in a worker, an item raises ZeroDivisionError | True"] * (how == "notebook")


def test_cores_are_shared_by_the_processes_of_torchrun(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert workers.cores() == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert workers.cores() == 2


@fork
def test_own_samplers_and_open_files_stay_here(three_cores, tmp_path, ended):
    assert "Lazy may draw" in make_loader(Slow(400), batch_size=20, sampler=Lazy()).chosen.why
    data = Slow(400)
    data.part.files = {"a": [(tmp_path / "f").open("w")]}
    assert make_loader(data, batch_size=20).chosen.why == "workers would share its open TextIOWrapper"
    data.part.files["a"][0].close()
    seed(0)
    weighted = ended(make_loader(Slow(400), batch_size=20, sampler=WeightedRandomSampler(torch.ones(400), 400)))
    assert weighted.num_workers == 2
    assert make_loader(Slow(400), batch_size=20, worker_init_fn=print).num_workers == 0
    for own in (dict(generator=gen()), dict(sampler=RandomSampler(range(400), generator=gen()))):
        assert "ahead of time" in make_loader(Slow(400), batch_size=20, **own).chosen.why


def test_what_you_pass_is_obeyed(monkeypatch, ended):
    monkeypatch.setattr(workers, "choose_workers", lambda dl: 1 / 0)
    dl = make_loader(Slow(400), num_workers=0)
    assert dl.num_workers == 0 and dl.chosen is None
    dl = ended(make_loader(Slow(400), num_workers=1, persistent_workers=True, prefetch_factor=5))
    assert type(dl) is TensorLoader and dl.num_workers == 1 and dl.persistent_workers and dl.prefetch_factor == 5
    assert not make_loader(Slow(400), num_workers=1).persistent_workers
    with pytest.raises(ValueError, match="persistent_workers option needs num_workers > 0"):
        make_loader(Slow(400), persistent_workers=True)


@fork
def test_pinned_if_they_go_from_the_cpu_to_a_gpu(three_cores, monkeypatch, ended):
    assert not make_loader(TensorDataset(torch.zeros(9)), device="cuda").pin_memory  # there is no GPU
    monkeypatch.setattr(workers, "accelerator", lambda: "cuda")
    tensors = TensorDataset(torch.zeros(9))
    assert make_loader(tensors, device="cuda").pin_memory and make_loader(tensors, 0, device="cuda:1").pin_memory
    assert not make_loader(tensors).pin_memory and not make_loader(tensors, device="mps").pin_memory
    assert not make_loader(tensors, device="cuda", pin_memory=False).pin_memory and make_loader(tensors, pin_memory=True).pin_memory
    assert not make_loader(TensorDataset(torch.zeros(9, device="meta")), device="cuda").pin_memory
    assert not make_loader(Stream(), device="cuda").pin_memory and not make_loader(Slow(9), 0, device="cuda").pin_memory
    assert make_loader(Tens(), device="cuda").pin_memory and make_loader(Slow(9), 1, device="cuda").pin_memory
    assert ended(make_loader(Slow(400), batch_size=20, device="cuda")).pin_memory


@pytest.mark.parametrize("settings", [
    {}, dict(shuffle=True), dict(shuffle=True, drop_last=True),
    dict(sampler=WeightedRandomSampler([1.0] * 10, 15)), dict(sampler=DistributedSampler(range(10), 2, 1)),
])  # fmt: skip
def test_the_number_of_workers_changes_no_batch(settings, ended):
    """In every epoch, also after a look at a batch and a broken epoch; and the other random numbers are the same."""

    def use(make):
        seed(6)
        dl, found = make(Tens(), batch_size=4, **settings), []
        for epoch in range(3):
            found += [first_batch(dl), list(dl), torch.rand(())]
            for batch in dl:
                found += [batch, torch.rand(())]
                if epoch == 1:
                    break
        return found

    same(use(DataLoader), use(lambda data, **own: kept(data, ended, **own)))


def test_workers_see_what_was_changed_between_epochs(ended):
    data = Tens()
    dl, plain = kept(data, ended, batch_size=4), DataLoader(data, batch_size=4)
    same(list(plain), list(dl))
    pids = [w.pid for w in dl._iterator._workers]
    same(list(plain), list(dl))
    assert [w.pid for w in dl._iterator._workers] == pids
    for change in (
        lambda: setattr(data, "factor", 3), lambda: data.sizes.__setitem__(0, 9), lambda: data.part.shift.add_(1),
        lambda: setattr(data, "part", types.SimpleNamespace(shift=0)), lambda: setattr(data, "sizes", [1, 2]),
    ):  # fmt: skip
        before = list(plain)
        change()
        same(list(plain), list(dl))
        changed = not all(torch.equal(a[0], b[0]) for a, b in zip(before, plain))
        assert changed
        assert [w.pid for w in dl._iterator._workers] != pids
        pids = [w.pid for w in dl._iterator._workers]
    same(list(plain), list(dl))
    assert [w.pid for w in dl._iterator._workers] == pids


def test_dead_workers_are_replaced_and_interrupts_kill_none(ended):
    dl = kept(Tens(), ended, batch_size=4)
    list(dl)
    for worker in dl._iterator._workers:
        os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.2)
    pids = [w.pid for w in dl._iterator._workers]
    assert len(list(dl)) == 3 and [w.pid for w in dl._iterator._workers] == pids
    dl._iterator._workers[0].terminate()
    with contextlib.suppress(RuntimeError):  # torch may tell of the death at once
        dl._iterator._workers[0].join()
        time.sleep(0.2)
    assert len(list(dl)) == 3 and [w.pid for w in dl._iterator._workers] != pids


def test_such_a_loader_can_be_copied_while_it_has_workers(ended):
    dl = kept(Tens(), ended, batch_size=4)
    list(dl)
    for other in map(ended, (copy.copy(dl), copy.deepcopy(dl), pickle.loads(pickle.dumps(dl)))):
        assert other._iterator is None and len(list(other)) == 3
    seen = [len(list(independent_loader(dl))) for _ in dl]
    assert seen == [3, 3, 3]


@pytest.mark.parametrize("n", [0, 2, 3])
def test_an_epoch_with_workers_is_continued_in_its_middle(n, ended, monkeypatch):
    monkeypatch.setattr(Tens, "__getitem__", Tens.__getitem__)
    seed(4)
    dl = kept(Tens(), ended, batch_size=3, shuffle=True)
    list(dl)
    start = rng_state([dl])
    whole, after = list(dl), rng_state([dl])
    set_rng_state(start, [dl])
    same(whole[n:], list(batches_from(dl, n)))
    assert str(rng_state([dl])) == str(after)
    again = kept(Tens(), ended, batch_size=3, shuffle=True)
    start_workers(again)
    set_rng_state(start, [again])
    same(whole[n:], list(batches_from(again, n)))


def test_a_loader_with_chosen_workers_loads_no_item_here(ended):
    class Never(Tens):
        def __getitem__(self, i):
            assert multiprocessing.parent_process() is not None
            return super().__getitem__(i)

    dl = kept(Never(), ended, batch_size=3)
    assert not draws(dl) and len(list(batches_from(dl, 2))) == 2


@fork
def test_a_fit_with_workers_is_that_without(three_cores, ended, monkeypatch):
    """Training, validation, predictions in order, a look at a batch, and lr_find in between."""
    monkeypatch.setattr(workers, "decide", lambda *args: workers.Workers(2, "these items are slow, say"))
    found = []
    for n in (0, None):
        dls = cbnb.DataLoaders.from_datasets(Pairs(), Pairs(), bs=20, device="cpu", num_workers=n)
        assert [dl.num_workers for dl in map(ended, dls.loaders)] == ([0, 0] if n == 0 else [2, 2])
        seed(7)
        learn = cbnb.Learner(dls, nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1)), nn.MSELoss())
        with learn.no_bar(), learn.no_logging():
            learn.fit(1)
            dls.one_batch()
            learn.lr_find(num_it=5, show_plot=False, suggest_funcs=())
            learn.fit(2)
            found.append([learn.get_preds(ds_idx=0), [p.detach() for p in learn.model.parameters()], learn.validate()])
    same(*found)


class Pairs(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.tensor([i / 60, 1.0]), torch.tensor([i / 30])


# --- resuming ---


@pytest.mark.parametrize("name", ["tensors by index", "a Subset", "own generator", "persistent workers"])
def test_a_fit_that_was_interrupted_ends_as_one_that_was_not(name, tmp_path):
    def loader():
        data = TensorDataset(*resumed.items())
        if name == "a Subset":
            return TensorLoader(Subset(data, list(range(0, len(data), 2))), 2, shuffle=True)
        if name == "persistent workers":
            kwargs = dict(num_workers=2, persistent_workers=True, worker_init_fn=workers._ignore_interrupts)
            return WorkerLoader(data, resumed.BATCH, shuffle=True, **kwargs)
        return TensorLoader(data, resumed.BATCH, shuffle=True, generator=gen(7) if name == "own generator" else None)

    found, whole = resumed.interrupted_and_whole(lambda path: resumed.make(path, train=loader()), tmp_path)
    assert found == whole


def test_workers_of_a_loader_in_a_cycle_end_quickly(ended):
    """A learner that a re-run cell replaces is in a cycle; torch's own workers would keep the collector for five seconds."""
    dl = WorkerLoader(Tens(), num_workers=2, persistent_workers=True)
    list(dl)
    processes, cycle, in_vain = dl._iterator._workers, [dl], []

    def join(process, timeout=None, join=type(processes[0]).join):
        join(process, timeout)
        in_vain.append(process.is_alive())

    for p in processes:
        p.join = partial(join, p)
    cycle.append(cycle)
    del dl, cycle
    gc.collect()
    assert in_vain and not any(in_vain)
    assert not any(p.is_alive() for p in processes)


def test_a_fit_that_was_stopped_by_hand_goes_on_with_the_same_workers(ended):
    """In a terminal and in Jupyter, Ctrl-C goes to the workers, too."""
    dl = kept(Pairs(), ended, batch_size=4, shuffle=True)
    learn = cbnb.Learner(cbnb.DataLoaders(dl, device="cpu"), nn.Linear(2, 1), nn.MSELoss())

    class Stops(cbnb.Callback):
        def after_batch(self):
            if self.learn.iter == 3:
                for worker in dl._iterator._workers:
                    os.kill(worker.pid, signal.SIGINT)
                time.sleep(0.1)
                raise KeyboardInterrupt

    with learn.no_bar(), learn.no_logging():
        with pytest.raises(cbnb.FitInterrupted):
            learn.fit(1, cbs=Stops())
        pids = [w.pid for w in dl._iterator._workers]
        learn.fit(2)
    assert [w.pid for w in dl._iterator._workers] == pids and learn.train_iter == 30


def test_what_an_object_holds():
    class Box:
        pass

    box, deep = Box(), []
    box.a, box.b, box.self, box.deep = 1, 2, box, deep
    for _ in range(20_000):
        deep.append(deep := [])
    assert list(held(box))[:3] == [box, 1, 2] and len(list(held(box))) == 10_002
    before = state_of_data(box)
    box.a = 2
    assert state_of_data(box) != before


class Seldom(Slow):
    """Few of its items draw random numbers."""

    def __getitem__(self, i):
        return super().__getitem__(i)[0] + (torch.rand(()) if i % 25 == 0 and i else 0)


@fork
def test_some_items_that_draw_are_enough(three_cores):
    assert "draw random numbers" in make_loader(Seldom(400), batch_size=20).chosen.why


@fork
def test_batches_that_do_not_fit_into_shared_memory(three_cores, monkeypatch):
    room = os.statvfs("/dev/shm")
    monkeypatch.setattr(os, "statvfs", lambda path: types.SimpleNamespace(f_bavail=1, f_frsize=room.f_frsize))
    small = make_loader(Slow(400), batch_size=20)
    assert small.num_workers == 0 and "their batches would fill /dev/shm, which has 0 MB" in small.chosen.why


class Graph:
    def __init__(self, x):
        self.x = x


@fork
def test_batches_of_any_kind_are_compared(three_cores, ended):
    for collate in (Graph, lambda items: np.array([float(y) for _, y in items]), lambda items: dict(a="name", b=[items])):
        assert ended(make_loader(Slow(400), batch_size=20, collate_fn=collate)).num_workers == 2


def test_torch_shuffles_a_data_pipe():
    dls = cbnb.DataLoaders.from_datasets(IterableWrapper([*range(8)]), bs=2)
    assert sorted(i for batch in dls.train for i in batch.tolist()) == [*range(8)]
