"""Loading: batches by index are torch's own batches, in its order and with its random states, whatever people pass."""

import contextlib
import copy
import itertools
import pickle
import random
from collections import namedtuple

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

import cbnb
from cbnb.basics.device_copies import CopiesAhead, OnDevice
from cbnb.basics.loaders import first_batch, independent_loader
from cbnb.basics.position import batches_from
from cbnb.basics.random_state import rng_state, set_rng_state
from cbnb.basics.tensor_batches import TensorBatches, TensorLoader, batches_of, can_index, holds_tensors
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
    import cbnb.basics.tensor_batches as module

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

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
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
    assert learn._split == learn.dls.split
    learn.dls.to("meta")
    learn.to_dls_device()
    assert type(learn._split) is OnDevice and learn._split.then == learn.dls.split
    (xb,), (yb,) = learn._split(batches[0])
    assert xb.device.type == yb.device.type == "meta"
    pickle.dumps(learn._split.device)
