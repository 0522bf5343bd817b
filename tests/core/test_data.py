"""Batches of every shape, loaders of every kind: the numbers are those of one pass over all items."""

import math
import random
import types
import warnings
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

import cbnb
from cbnb.basics import processes
from cbnb.basics.loaders import as_loader, first_batch, independent_loader, n_batches
from cbnb.basics.nested import find_bs, first_tensor, is_empty, rebuild, to_detach
from cbnb.basics.random_state import rng_state, save_rng, set_seed
from cbnb.data import default_device, split_batch
from helpers import Line, ab, exact, line_batches, line_learner, noting, same_bits, seed


def on_cpu(*loaders, **kwargs):
    return cbnb.DataLoaders(*loaders, device="cpu", **kwargs)


def mae(pred, y):
    return (pred - y).abs().mean()


class TwoIn(nn.Module):
    """Takes two inputs, by place or by name."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 1), nn.Linear(2, 1)

    def forward(self, u, v):
        return self.one(u) + self.two(v)


class TwoOut(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)

    def forward(self, u):
        out = self.body(u)
        return out[:, :1], out[:, 1:]


class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = TwoIn()

    def forward(self, d):
        return self.inner(d["u"], d["v"])


SIZES = [7, 7, 7, 2]
Pair = namedtuple("Pair", "x y")
Three = namedtuple("Three", "u v y")
Nested = namedtuple("Nested", "inputs label")


def items():
    seed(3)
    n = sum(SIZES)
    u, v = torch.randn(n, 3, dtype=torch.float64), torch.randn(n, 2, dtype=torch.float64)
    return u, v, u.sum(1, keepdim=True) - v[:, :1] + 2, v.sum(1, keepdim=True)


def batched(make):
    return [make(*parts) for parts in zip(*(t.split(SIZES) for t in items()))]


def two_losses(pred, y, z):
    return nn.functional.mse_loss(pred[0], y) + 2 * nn.functional.mse_loss(pred[1], z)


def two_maes(pred, y, z):
    return mae(pred[0], y) + mae(pred[1], z)


def u_v_y(model):
    return lambda u, v, y, z: (model(u, v), (y,))


# how a batch is made; the model; what DataLoaders is told; what the batch means
SHAPES = {
    "two inputs": (lambda u, v, y, z: (u, v, y), TwoIn, {}, u_v_y),
    "a list": (lambda u, v, y, z: [u, v, y], TwoIn, {}, u_v_y),
    "named tuple": (lambda u, v, y, z: Three(u, v, y), TwoIn, {}, u_v_y),
    "a dict and a target": (lambda u, v, y, z: (dict(u=u, v=v), y), TakesDict, {}, lambda m: lambda u, v, y, z: (m(dict(u=u, v=v)), (y,))),
    "named tuple of a dict": (
        lambda u, v, y, z: Nested(dict(u=u, v=v), y),
        TakesDict,
        {},
        lambda m: lambda u, v, y, z: (m(dict(u=u, v=v)), (y,)),
    ),
    "a dict with targets": (lambda u, v, y, z: dict(u=u, v=v, label=y), TwoIn, dict(targets="label"), u_v_y),
    "an ordered dict with targets": (lambda u, v, y, z: OrderedDict(label=y, u=u, v=v), TwoIn, dict(targets=("label",)), u_v_y),
    "two targets": (lambda u, v, y, z: (u, y, z), TwoOut, dict(n_inp=1), lambda m: lambda u, v, y, z: (m(u), (y, z))),
    "two targets of a dict": (
        lambda u, v, y, z: dict(u=u, a=y, b=z),
        TwoOut,
        dict(targets=("a", "b")),
        lambda m: lambda u, v, y, z: (m(u), (y, z)),
    ),
}


def loader_of(kind, batches):
    return {
        "list": lambda: batches,
        "tuple": lambda: tuple(batches),
        "function": lambda: lambda: (b for b in batches),
        "Batches": lambda: cbnb.Batches(lambda: iter(batches), n_iter=len(batches)),
        "DataLoader": lambda: DataLoader(batches, batch_size=None),
        "without length": lambda: DataLoader(Stream(batches), batch_size=None),
        "class with getitem": lambda: ByIndex(batches),
    }[kind]()


class Stream(IterableDataset):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class ByIndex:
    def __init__(self, batches):
        self.batches = batches

    def __getitem__(self, i):
        return self.batches[i]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["list", "tuple", "function", "Batches", "DataLoader", "without length", "class with getitem"])
def test_numbers_are_those_of_one_pass(shape, kind):
    """Weighted by items, also with a ragged last batch; and training is what a plain loop does."""
    make, model_class, told, meaning = SHAPES[shape]
    batches = batched(make)
    two = model_class is TwoOut
    loss_func, metric = (two_losses, two_maes) if two else (nn.MSELoss(), mae)
    seed()
    model = model_class().double()
    learn = line_learner(
        dls=on_cpu(loader_of(kind, batches), loader_of(kind, batches), **told), model=model, loss_func=loss_func, metrics=metric
    )
    pred, targets = meaning(model)(*items())
    expected = [loss_func(pred, *targets).item(), metric(pred, *targets).item()]
    assert learn.validate() == [pytest.approx(e, abs=1e-6) for e in expected]
    # training, by hand
    seed()
    twin = model_class().double()
    opt = torch.optim.SGD(twin.parameters(), lr=0.1)
    raw = []
    for _ in range(2):
        for parts in zip(*(t.split(SIZES) for t in items())):
            pred, targets = meaning(twin)(*parts)
            loss = loss_func(pred, *targets)
            loss.backward(), opt.step(), opt.zero_grad()
            raw.append(loss.item())
    learn.fit(2)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))
    assert list(learn.recorder.history[0].raw_losses) == raw
    pred, targets = meaning(model)(*items())
    assert learn.recorder.values[-1][1:] == [pytest.approx(f(pred, *targets).item(), abs=1e-6) for f in (loss_func, metric)]


def test_ragged_batches_weigh_by_items():
    """16 items with loss 25 and 8 with loss 1 are 17 on average, not 13."""
    x = torch.zeros(24)
    dls = on_cpu(line_batches(), [(x[:16], x[:16] + 5), (x[16:], x[16:] + 1)])
    assert line_learner(dls=dls, metrics=mae).validate() == [pytest.approx(17), pytest.approx((16 * 5 + 8) / 24)]


@pytest.mark.parametrize("n_items", [1, 2, 3])
def test_a_last_batch_of_one_item(n_items):
    x = torch.arange(4.0 + n_items)
    data = TensorDataset(x, 3 * x)
    dls = cbnb.DataLoaders.from_datasets(data, data, bs=4, val_bs=4, shuffle=False, device="cpu")
    learn = line_learner(dls=dls, metrics=mae, lr=1e-3)
    learn.fit(1)
    a, b = ab(learn)
    assert learn.recorder.values[0][1:] == [
        pytest.approx(f.item(), rel=1e-5) for f in (((a * x + b - 3 * x) ** 2).mean(), mae(a * x + b, 3 * x))
    ]


@pytest.mark.filterwarnings("ignore:Callback was on another learner")
def test_x_and_y():
    seen = []
    look = cbnb.Callback(before_batch=lambda self: seen.append((self.x, self.y, self.xb, self.yb)))
    batches = batched(lambda u, v, y, z: (u, v, y))
    line_learner(dls=on_cpu(batches), model=TwoIn().double(), cbs=look).fit(1)
    x, y, xb, yb = seen[0]
    assert isinstance(x, tuple) and len(x) == 2 and torch.equal(y, batches[0][2]) and (len(xb), len(yb)) == (2, 1)
    seen.clear()
    line_learner(cbs=look).fit(1)
    assert torch.equal(seen[0][0], line_batches()[0][0]) and torch.equal(seen[0][1], line_batches()[0][1])
    learn = line_learner()
    for name in ("x", "y"):
        with pytest.raises(AttributeError):
            setattr(learn, name, 1)


def test_a_callback_may_replace_the_batch():
    class Shift(cbnb.Callback):
        def before_batch(self):
            self.learn.xb, self.learn.yb = (self.x,), (self.y + 1,)

    learn = line_learner(cbs=Shift)
    learn.fit(20)
    assert ab(learn) == (pytest.approx(2, abs=1e-3), pytest.approx(4, abs=1e-3))


def test_loaders_without_length_train_as_long_as_they_last():
    """D35: they were unusable."""
    calls = []

    def batches():
        calls.append(1)
        yield from line_batches(3)

    seen = []
    learn = line_learner(dls=on_cpu(batches, batches), cbs=noting(seen))
    learn.fit(2)
    assert len(calls) == 4 and learn.n_iter is None and seen.count("after_step") == 6
    assert learn.recorder.iters == [3, 6] and "?" in repr(learn.dls)


def test_loaders_may_be_replaced_between_fits():
    learn = line_learner(valid=False)
    learn.fit(1)
    learn.dls = on_cpu(line_batches(3), line_batches(1))
    learn.fit(1)
    assert learn.recorder.metric_names == ["epoch", "train_loss", "valid_loss", "time"]
    learn.dls = line_batches(1)
    learn.fit(1)
    assert [run.n_steps for run in learn.recorder.history] == [2, 3, 1]


class Seen(Exception):
    """The model was called."""


@pytest.mark.parametrize(
    "call",
    [
        lambda learn: learn.fit(1),
        lambda learn: learn.validate(),
        lambda learn: learn.get_preds(),
        lambda learn: learn.get_preds(inner=True),
        lambda learn: learn.lr_find(show_plot=False),
        lambda learn: learn.summary(),
    ],
)
def test_the_model_its_batch_and_the_loss_meet_on_the_device_of_the_loaders(call):
    """`meta` stands in for a GPU: tensors there have a shape, and no numbers."""
    seen = []

    class Noting(nn.Linear):
        def forward(self, x):
            seen.extend([x.device.type, self.weight.device.type, loss_func.weight.device.type])
            raise Seen

    loss_func = nn.CrossEntropyLoss(weight=torch.ones(2))
    batches = [(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="meta"), Noting(3, 2), loss_func)
    with pytest.raises(Seen):
        call(learn)
    assert seen == ["meta"] * 3


@pytest.mark.parametrize(
    "batch, why", [((), "has no tensor with one row"), (["a", "b"], "has no tensor with one row"), ((torch.tensor(1.0),), "is a scalar")]
)
def test_how_many_items_are_in_a_batch(batch, why):
    assert find_bs((torch.zeros(3, 4), torch.zeros(5))) == find_bs(dict(x=torch.zeros(3))) == find_bs([["a", torch.zeros(3)]]) == 3
    with pytest.raises(ValueError, match=why):
        find_bs(batch)


def test_batches_that_are_not_tensors_alone():
    """Names, numbers and None pass through."""

    class Labelled(Line):
        def forward(self, d):
            assert d["name"] == ["a", "b"] and d["nothing"] is None
            return super().forward(d["x"])

    batches = [(dict(x=torch.ones(2), name=["a", "b"], nothing=None), torch.ones(2))] * 2
    line_learner(dls=on_cpu(batches, batches), model=Labelled()).fit(1)


# Loaders that are none, or do not keep their word


class Miscounted:
    """A loader with a wrong length."""

    def __init__(self, said, batches):
        self.said, self.batches = said, batches

    def __len__(self):
        return self.said

    def __iter__(self):
        return iter(self.batches)


def miscounts(caught):
    return [str(w.message) for w in caught if "has a length of" in str(w.message)]


def test_a_dataset_that_ends_early_is_told_once():
    """A StopIteration in a dataset ended each epoch after 2 of 16 batches, and the run was `done`."""
    x = torch.randn(64)

    class Ends(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, i):
            if i == 9:
                raise StopIteration
            return x[i], x[i]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn = line_learner(dls=on_cpu(DataLoader(Ends(), 4)))
        learn.fit(2)
        learn.fit(1)
    [said] = miscounts(caught)
    assert "the training loader has a length of 16, but gave 2 batches" in said and "StopIteration" in said
    assert all(w.filename == __file__ for w in caught)


@pytest.mark.parametrize("said, n", [(2, 4), (4, 2), (1, 2)])
def test_a_wrong_length_is_told_for_each_loader_and_leaves_the_schedule_within_its_epoch(said, n):
    """A loader of 4 batches with a length of 2 sent `pct_train` beyond the end of the fit."""
    seen = []
    look = cbnb.Callback(after_batch=lambda self: seen.append(self.pct_train) if self.training else None)
    learn = line_learner(dls=on_cpu(Miscounted(said, line_batches(n)), Miscounted(said, line_batches(n))), cbs=look)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learn.fit_one_cycle(2)
    assert [text.split()[1] for text in miscounts(caught)] == ["training", "validation"]
    assert len(seen) == 2 * n and all((i // n) / 2 < pct <= (i // n + 1) / 2 for i, pct in enumerate(seen)) and seen == sorted(seen)


def test_an_epoch_that_was_cancelled_is_not_miscounted():
    class Short(cbnb.Callback):
        def after_batch(self):
            if self.training and self.iter == 1:
                raise cbnb.CancelTrainException

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line_learner(4, cbs=Short()).fit(2)
    assert miscounts(caught) == []


def test_a_short_epoch_of_a_loader_with_more_batches_than_its_length():
    with pytest.warns(UserWarning, match="has a length of 2"):
        learn = line_learner(dls=on_cpu(Miscounted(2, line_batches(4))), cbs=cbnb.ShortEpoch(1.0))
        learn.fit(1)
    assert learn.train_iter == 4


SET = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))


@pytest.mark.parametrize(
    "wrong",
    [SET, Stream([1, 2]), SET.tensors[0], SET.tensors[0].numpy(), SET.tensors, list(SET.tensors[:1]) + [torch.arange(8)]],
    ids=["dataset", "stream", "tensor", "array", "columns", "a list of columns"],
)
def test_items_in_place_of_a_loader_are_refused_with_the_remedy(wrong):
    """They were accepted, and the model was trained with items in place of batches."""
    for use in (
        lambda: on_cpu(wrong),
        lambda: on_cpu(line_batches(), wrong),
        lambda: cbnb.Learner(wrong, Line(), nn.MSELoss()),
        lambda: line_learner().validate(dl=wrong),
        lambda: line_learner().get_preds(dl=wrong),
    ):
        with pytest.raises(TypeError, match="DataLoader"):
            use()


@pytest.mark.parametrize("data", [TensorDataset(torch.zeros(4, 1)), [torch.zeros(1)], torch.zeros(4, 1), line_batches()])
def test_data_in_place_of_the_number_of_a_loader_is_told_so(data):
    """The error was about `<=`."""
    learn = line_learner()
    for use in (learn.validate, learn.get_preds):
        with pytest.raises(TypeError, match="pass dl="):
            use(data)


def test_a_dataset_with_an_attribute_train_is_no_loader():
    """Those of torchvision have one, and were taken for `DataLoaders`."""

    class Digits(Dataset):
        train = True

        def __getitem__(self, i):
            return 0

    with pytest.raises(TypeError, match="a Digits is a dataset"):
        cbnb.Learner(Digits(), Line(), nn.MSELoss())


def test_tensors_of_one_kind_are_batches_without_targets():
    for batches in (torch.randn(8, 3).split(4), [torch.ones(2, 5), torch.ones(2, 7)]):
        assert on_cpu(batches).train is batches


def test_a_batch_without_items_counts_for_nothing():
    """It made the losses and the metrics of functions nan, and moved the weights by the optimizer's momentum."""
    some, none = line_batches(2), (torch.zeros(0), torch.zeros(0))
    results = []
    for batches in (some, [none, some[0], none, some[1], none]):
        learn = line_learner(dls=on_cpu(batches, batches), metrics=[mae, cbnb.MAE()], opt_func=torch.optim.AdamW)
        learn.fit(2)
        results.append((learn, learn.validate(), learn.recorder.values, list(learn.recorder.last().raw_losses)))
    (one, *found), (other, *same) = results
    assert found == same and all(math.isfinite(v) for v in found[0])
    assert same_bits(one.model, other.model)


def test_a_batch_that_a_callback_has_emptied_does_not_reach_the_validation_loss():
    class Drop(cbnb.Callback):
        def before_batch(self):
            if self.iter == 1:
                self.learn.xb, self.learn.yb = (self.x[:0],), (self.y[:0],)

    learn = line_learner(dls=on_cpu(line_batches(), line_batches()), metrics=[mae])
    assert learn.validate(cbs=Drop()) == learn.validate(dl=line_batches()[:1])


def test_images_without_a_box_are_no_empty_batch():
    assert not is_empty((torch.ones(4, 3, 8, 8), torch.zeros(0, 4))) and is_empty([torch.zeros(0, 3), torch.zeros(0)])


# Objects as batches


class Graphs:
    """Several graphs in one object that moves itself; the library finds no tensor in it."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device):
        return Graphs(self.x.to(device), self.y.to(device))

    @property
    def num_graphs(self):
        return len(self.y)


class OfGraphs(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, graphs):
        return self.inner(graphs.x).reshape(len(graphs.y), -1, 1).mean(1)


def test_objects_move_themselves():
    """Batches of graphs stayed on the CPU."""
    graphs = Graphs(torch.ones(6, 2), torch.ones(3, 1))
    moved = cbnb.to_device({"graphs": graphs, "more": [graphs]}, "meta")
    assert moved["graphs"].x.device.type == moved["more"][0].y.device.type == "meta"
    assert cbnb.to_device(int, "meta") is int and cbnb.to_device("to", "meta") == "to"


def test_a_packed_sequence_moves_as_torch_moves_it():
    """Its batch sizes must stay on the CPU: moving it was a ValueError."""
    packed = pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    moved, y = cbnb.to_device((packed, torch.zeros(2)), "meta")
    assert type(moved) is PackedSequence and moved.data.device.type == y.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu"
    assert cbnb.basics.nested.find_bs((packed, torch.zeros(2))) == 2


def test_objects_say_how_many_items_they_hold():
    """The library found no tensor in them, and a validation ended with an error."""
    nested = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(2, 2)], layout=torch.jagged)
    sized = type("Sized", (), dict(to=lambda self, device: self, __len__=lambda self: 5))()
    dgl = type("Dgl", (), dict(to=lambda self, device: self, batch_size=7))()
    assert [cbnb.basics.nested.find_bs(b) for b in (Graphs(None, [1, 2]), nested, sized, dgl, ("a name", sized))] == [2, 2, 5, 7, 5]
    silent = type("Silent", (), dict(to=lambda self, device: self))()
    assert cbnb.basics.nested.find_bs((silent, torch.ones(4))) == 4
    with pytest.raises(ValueError, match="a Silent has no length: add a property `num_graphs`"):
        cbnb.basics.nested.find_bs(silent)


def test_a_learner_trains_on_graphs():
    """As they are, with the targets by name; averages are over graphs."""
    x, y = torch.randn(20, 2), torch.randn(10, 1)
    batches = [Graphs(x[:12], y[:6]), Graphs(x[12:], y[6:])]
    learn = line_learner(dls=on_cpu(batches, batches, targets="y"), model=OfGraphs(), metrics=[mae])
    learn.fit(2)
    pred = x.reshape(10, 2, 2).mean(1) @ learn.model.inner.weight.T + learn.model.inner.bias
    assert learn.validate() == [pytest.approx(nn.functional.mse_loss(pred, y).item()), pytest.approx(mae(pred, y).item())]


def test_a_display_does_without_the_number_of_items():
    """It asked each batch for it, and an object that does not say ended the fit."""
    silent = type("Silent", (), dict(to=lambda self, device: self, x=torch.ones(4)))
    learn = line_learner(dls=on_cpu([silent()] * 3), model=nn.Linear(4, 1), train_step=lambda b: None, progress=True)
    learn.train_step = cbnb.UpdateStep(lambda b: learn.model(b.x).sum().detach())
    shown = []
    look = cbnb.Callback(after_batch=lambda self: shown.append(self.learn.progress._progress(math.inf)))
    look.order = 100
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.fit(1, cbs=look)
    assert len(shown) == 3 and shown[-1].rate is None


def test_dataclasses_are_split_by_field_names():
    """`targets` was ignored, and the model was given the whole batch."""

    @dataclass
    class Batch:
        u: torch.Tensor
        v: torch.Tensor
        label: torch.Tensor

    batches = batched(lambda u, v, y, z: Batch(u, v, y))
    learn = line_learner(dls=on_cpu(batches, batches, targets="label"), model=TwoIn().double())
    learn.fit(1)
    u, v, y, _ = items()
    assert learn.validate() == [pytest.approx(nn.functional.mse_loss(learn.model(u, v), y).item())]
    with pytest.raises(KeyError, match="the batch has no entry 'labl' for the target. Its entries are u, v, label"):
        split_batch(batches[0], targets=("labl",))


# What people look up on their loaders


class Noisy(Dataset):
    """Draws from all three generators."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((3,), random.random() + np.random.rand()) + torch.rand(()), torch.zeros(1)


def drawn(loader):
    return random.random(), np.random.rand(), torch.rand(()).item(), [exact(x) for x, _ in loader]


@pytest.mark.parametrize(
    "look", [lambda learn: learn.summary(), lambda learn: learn.dls.one_batch(), lambda learn: learn.predict(torch.ones(3))]
)
def test_looking_at_data_draws_no_random_numbers(look):
    """`summary` moved the loader's own generator on, and those of Python and NumPy."""
    found = []
    for does_look in (False, True):
        seed()
        loader = DataLoader(Noisy(), 4, shuffle=True, generator=torch.Generator().manual_seed(0))
        learn = line_learner(dls=on_cpu(loader), model=nn.Sequential(nn.Linear(3, 1), nn.Dropout()))
        if does_look:
            look(learn)
        found.append(drawn(loader))
    assert found[0] == found[1]


def test_one_batch_is_the_first_of_the_next_epoch():
    loader = DataLoader(Noisy(), 4, shuffle=True)
    dls = on_cpu(loader)
    x, y = dls.one_batch()
    assert x.shape == (4, 3) and torch.equal(x, next(iter(loader))[0])
    with pytest.raises(ValueError, match="gave no batches"):
        on_cpu([]).one_batch()


def test_what_loaders_know():
    """Names of fastai."""
    train = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
    train.classes = ["cat", "dog"]
    valid = TensorDataset(*train.tensors)
    dls = cbnb.DataLoaders.from_dsets(train, valid, bs=4, device="cpu")
    assert dls.train_ds is train and dls.valid_ds is valid and dls.bs == 4
    assert dls.vocab == ["cat", "dog"] and dls.c == 2
    train.c = 5
    assert dls.c == 5
    assert [len(x) for (x,) in dls.test_dl(TensorDataset(torch.ones(10, 3)))] == [8, 2]
    assert [len(x) for x in dls.test_dl(torch.ones(10, 3), bs=5)] == [5, 5]
    for name in ("bs", "train_ds", "valid_ds", "vocab", "c"):
        with pytest.raises(AttributeError, match="loader"):
            getattr(on_cpu(line_batches()), name)


def test_loaders_may_be_moved_when_a_learner_has_them():
    """The batches stayed where they had been when the learner was made."""
    learn = line_learner()
    places = []
    learn.add_cb(cbnb.Callback(before_batch=lambda self: places.append(self.x.device.type) if self.training else None))
    learn.fit(1)
    assert learn.dls.to("meta") is learn.dls and learn.dls.device.type == "meta"
    learn.to_dls_device()
    learn.training = True
    learn.one_batch(0, line_batches()[0])
    assert learn.dls.cpu().device.type == "cpu"
    assert places == ["cpu", "cpu", "meta"]


def test_batches_of_a_test_loader_have_no_targets():
    learn = line_learner(dls=cbnb.DataLoaders.from_datasets(TensorDataset(torch.randn(8), torch.randn(8)), bs=4, device="cpu"))
    preds, targets = learn.get_preds(dl=learn.dls.test_dl(torch.randn(6)))
    assert preds.shape == (6,) and targets is None


# Predictions


def shuffled(n=10, bs=4, **kwargs):
    x = torch.arange(float(n))
    return DataLoader(TensorDataset(x, 2 * x), bs, shuffle=True, **kwargs)


def test_preds_are_in_the_order_of_the_items():
    """D35: torch loaders failed; drop_last lost the rest."""
    x = torch.arange(10.0)
    learn = line_learner(dls=on_cpu(shuffled(), shuffled(drop_last=True)))
    learn.model.a.data.fill_(3.0)
    for preds, targets in (learn.get_preds(), learn.get_preds(0), learn.get_preds(dl=shuffled())):
        assert torch.equal(preds, 3 * x) and torch.equal(targets, 2 * x)
    seed()
    preds, targets = learn.get_preds(0, reorder=False)
    assert not torch.equal(preds, 3 * x) and torch.equal(preds.sort().values, 3 * x) and torch.equal(preds / 3, targets / 2)


def test_parts_of_preds():
    x = torch.arange(10.0)
    learn = line_learner(dls=on_cpu(shuffled(), shuffled()))
    inputs, preds, targets, decoded, losses = learn.get_preds(with_input=True, with_decoded=True, with_loss=True)
    assert torch.equal(inputs, x) and torch.equal(decoded, preds) and losses == pytest.approx((2 * x) ** 2)
    assert not preds.requires_grad and not losses.requires_grad
    assert learn.loss_func.reduction == "mean"
    (preds, targets), expected = learn.get_preds(dl=[x[:4], x[4:]]), torch.zeros(10)
    assert torch.equal(preds, expected) and targets is None


class OwnLoss(nn.CrossEntropyLoss):
    """A loss that knows what the model's output means to it."""

    def activation(self, pred):
        return pred + 1

    def decodes(self, pred):
        return pred.argmax(1)


@pytest.mark.parametrize(
    "loss_func, activation",
    [(nn.CrossEntropyLoss(), lambda p: p.softmax(1)), (nn.functional.cross_entropy, lambda p: p.softmax(1)), (OwnLoss(), lambda p: p + 1)],
)
def test_activation_belongs_to_the_loss(loss_func, activation):
    seed()
    x, y = torch.randn(6, 3), torch.tensor([0, 1] * 3)
    model = nn.Linear(3, 2)
    learn = line_learner(dls=on_cpu([(x, y)], [(x[:4], y[:4]), (x[4:], y[4:])]), model=model, loss_func=loss_func)
    raw = model(x).detach()
    assert torch.allclose(learn.get_preds()[0], activation(raw)) and torch.equal(learn.get_preds(act=lambda p: p * 0)[0], raw * 0)
    preds, _, decoded, losses = learn.get_preds(with_decoded=True, with_loss=True)
    assert torch.equal(decoded, raw.argmax(1)) and torch.allclose(losses, nn.functional.cross_entropy(raw, y, reduction="none"))
    decision, probs = learn.predict(x[0])
    assert decision == raw[0].argmax() and torch.allclose(probs, activation(raw)[0], atol=1e-6)


def test_several_outputs_in_preds():
    u, v, y, z = items()
    seed()
    model = TwoOut().double()
    learn = line_learner(
        dls=on_cpu(batched(lambda u, v, y, z: (u, y, z)), batched(lambda u, v, y, z: (u, y, z)), n_inp=1), model=model, loss_func=two_losses
    )
    preds, targets = learn.get_preds()
    assert all(torch.allclose(a, b) for a, b in zip((*preds, *targets), (*model(u), y, z)))


def test_predictions_of_lists_of_things():
    """Names and boxes are one per item: they are listed, not concatenated."""
    boxes = [dict(boxes=torch.ones(n, 4)) for n in (3, 1, 2, 1)]
    batches = [(torch.ones(2, 1), ["a", "b"], boxes[:2]), (torch.ones(2, 1), ["c", "d"], boxes[2:])]
    dls = cbnb.DataLoaders(batches, batches, n_inp=1, device="cpu")
    learn = cbnb.Learner(dls, torch.nn.Linear(1, 1), lambda pred, *y: pred.mean(), default_cbs=False)
    pred, (names, found) = learn.get_preds()
    assert pred.shape == (4, 1) and names == ["a", "b", "c", "d"] and [len(f["boxes"]) for f in found] == [3, 1, 2, 1]


# The parts, one by one

T, U = torch.zeros(3, 2), torch.ones(4)


@dataclass(frozen=True)
class Couple:
    a: object
    b: object = None


def test_a_container_is_refilled_with_its_kind():
    new = dict(a=3)
    assert rebuild(dict(a=1, b=2), new) is new
    fixed = rebuild(types.MappingProxyType(dict(a=1)), new)
    assert type(fixed) is types.MappingProxyType and dict(fixed) == new
    for container in (UserDict(a=1, b=2), OrderedDict(a=1, b=2)):
        changed = rebuild(container, new)
        assert type(changed) is type(container) and dict(changed) == dict(a=3, b=2) and container["a"] == 1
    pair = Couple(1, 2)
    assert rebuild(pair, dict(a=3, c=4)) == Couple(3, 2) and pair == Couple(1, 2) and not hasattr(rebuild(pair, dict(c=4)), "c")


@pytest.mark.parametrize(
    "batch, first, n",
    [
        (T, T, 3),
        ((U, T), U, 4),
        (["a", [T]], T, 3),
        (dict(a=1, b=U), U, 4),
        (Couple("x", U), U, 4),
        (namedtuple("N", "a b")(T, U), T, 3),
        (("a",), None, None),
        ((), None, None),
        (3, None, None),
    ],
)
def test_the_first_tensor_and_how_many_items(batch, first, n):
    assert first_tensor(batch) is first
    if n is None:
        with pytest.raises(ValueError, match="has no tensor with one row"):
            find_bs(batch)
    else:
        assert find_bs(batch) == n


class Moves:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def to(self, device):
        return self


def test_an_object_tells_how_many_items_it_holds_or_is_named():
    assert find_bs(Moves(num_graphs=5)) == 5 and find_bs((Moves(batch_size=2), T)) == 2 and find_bs(Moves(num_graphs=5, batch_size=2)) == 5
    assert find_bs((Moves(), U)) == 4 and find_bs(type("Sized", (Moves,), {"__len__": lambda self: 7})()) == 7
    assert find_bs(Moves(num_graphs="many", batch_size=2)) == 2
    with pytest.raises(ValueError, match="a Moves has no length: add a property `num_graphs`"):
        find_bs(Moves())
    with pytest.raises(ValueError, match="its first tensor is a scalar"):
        find_bs((torch.tensor(1.0), U))


@pytest.mark.parametrize(
    "batch, empty",
    [
        (T, False),
        ((T[:0], U[:0]), True),
        ([T[:0], U], False),
        (T[:0], True),
        ((), False),
        (3, False),
        (dict(a=U[:0]), True),
        ((Moves(num_graphs=0),), True),
        ((Moves(num_graphs=2),), False),
        (("a", U[:0]), True),
    ],
)
def test_a_batch_is_empty_if_nothing_in_it_holds_an_item(batch, empty):
    assert is_empty(batch) == empty


def test_inputs_and_targets():
    assert split_batch((1, 2, 3)) == ((1, 2), (3,)) and split_batch([1]) == ((1,), ()) and split_batch((1, 2)) == ((1,), (2,))
    assert (
        split_batch((1, 2, 3), 1) == ((1,), (2, 3))
        and split_batch((1, 2), 2) == ((1, 2), ())
        and split_batch(dict(a=1)) == ((dict(a=1),), ())
    )
    assert split_batch(dict(a=1, b=2, c=3), targets=("c", "a")) == (dict(b=2), (3, 1)) and split_batch(3, targets=("a",)) == ((3,), ())
    assert split_batch(Couple(1, 2), targets=("b",)) == (dict(a=1), (2,)) and split_batch(T, targets=("data",)) == ((T,), ())
    moves = Moves(y=1)
    assert split_batch(moves, targets=("y",)) == ((moves,), (1,))
    with pytest.raises(KeyError, match="a Moves, has no attribute 'z' for the target"):
        split_batch(moves, targets=("y", "z"))
    with pytest.raises(KeyError, match="no entry 'z' for the target. Its entries are a, b"):
        split_batch(dict(a=1, b=2), targets=("a", "z"))
    assert on_cpu([(1, 2)]).split([1, 2]) == ((1,), (2,)) and on_cpu([(1, 2)], n_inp=2).split((1, 2)) == ((1, 2), ())


def test_a_batch_is_detached_and_copied_to_the_cpu_if_asked():
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    for cpu in (True, False):
        (found,), other = to_detach(((y,), "a"), cpu=cpu)
        assert not found.requires_grad and torch.equal(found, y) and other == "a"
    meta = torch.ones(2, device="meta")
    assert to_detach([meta], cpu=False)[0].device.type == "meta"


def test_a_loader_in_the_middle_of_an_iteration_is_left_alone():
    """Torch keeps the iterator of a loader whose workers persist; a second iteration would begin it anew."""
    loader, other = DataLoader([1, 2]), types.SimpleNamespace(_iterator=object())
    assert independent_loader(loader) is loader and independent_loader(other) is other and independent_loader([1]) == [1]
    loader._iterator = running = types.SimpleNamespace(_tasks_outstanding=1)
    copied = independent_loader(loader)
    assert copied is not loader and copied._iterator is None and loader._iterator is running and copied.dataset is loader.dataset
    running._tasks_outstanding = 0
    assert independent_loader(loader) is loader


def test_loaders_of_datasets():
    data = TensorDataset(torch.arange(20.0))
    dls = cbnb.DataLoaders.from_datasets(data, data, data, bs=4, device="cpu", path="here", n_inp=1, targets="a", drop_last=True)
    assert [dl.batch_size for dl in dls] == [4, 8, 8] and [len(dl) for dl in dls] == [5, 3, 3]  # each item is validated
    assert [type(dl.sampler).__name__ for dl in dls] == ["RandomSampler", "SequentialSampler", "SequentialSampler"]
    assert (dls.path, dls.n_inp, dls.targets) == ("here", 1, ("a",)) and repr(
        dls
    ) == "DataLoaders(5 batches of 4, 3 batches of 8, 3 batches of 8; cpu)"
    ordered = cbnb.DataLoaders.from_datasets(data, None, data, shuffle=False, val_bs=3)
    assert [dl.batch_size for dl in ordered] == [64, 3] and type(ordered.train.sampler).__name__ == "SequentialSampler"
    assert [dl.num_workers for dl in ordered] == [0, 0]


def test_a_sampler_is_for_training_only():
    data, sampler = TensorDataset(torch.arange(20.0)), WeightedRandomSampler([1.0] * 20, 7)
    dls = cbnb.DataLoaders.from_datasets(data, data, bs=4, sampler=sampler, device="cpu")
    assert dls.train.sampler is sampler and [len(x) for (x,) in dls.valid] == [8, 8, 4]


def test_a_table_is_no_dataset():
    class DataFrame:
        iloc, ndim = None, 2

    with pytest.raises(TypeError, match="a DataFrame is a table.*TensorDataset"):
        cbnb.DataLoaders.from_datasets(DataFrame())
    with pytest.raises(TypeError, match="a DataFrame is a table"):
        on_cpu([T]).test_dl(DataFrame())


def digits(n, **kwargs):
    return DataLoader(TensorDataset(torch.zeros(n, 1, 8, 8), torch.zeros(n, dtype=torch.int64)), 64, **kwargs)


def test_loaders_in_a_line_of_text():
    dls = on_cpu(digits(1280), digits(320))
    assert repr(dls) == "DataLoaders(20 and 5 batches of 64; cpu)"
    dls.one_batch()
    assert repr(dls) == "DataLoaders(20 and 5 batches of 64; xb 64x1x8x8 float32, yb 64 int64; cpu)"
    dls.split((torch.zeros(2), torch.zeros(2)))  # the first batch stays
    assert "xb 64x1x8x8 float32" in repr(dls)


@pytest.mark.parametrize(
    "loaders, text",
    [
        ([digits(64)], "1 batch of 64"),
        ([digits(64), [T], digits(128)], "1 batch of 64, 1 batch, 2 batches of 64"),
        ([[T], [T, T], [T] * 3], "1, 2 and 3 batches"),
        ([[T] * 2000, lambda: iter([T])], "2,000 and ? batches"),
        ([lambda: iter([T])], "? batches"),
        ([digits(128, drop_last=True), DataLoader(Stream([T]), 64)], "2 and ? batches of 64"),
    ],
)
def test_batches_are_counted_in_words(loaders, text):
    assert repr(on_cpu(*loaders)) == f"DataLoaders({text}; cpu)"


@pytest.mark.parametrize(
    "batch, told, text",
    [
        ((T, U), {}, "xb 3x2 float32, yb 4 float32"),
        ((T, T, U), {}, "xb (3x2 float32, 3x2 float32), yb 4 float32"),
        ((T, U, U), dict(n_inp=1), "xb 3x2 float32, yb (4 float32, 4 float32)"),
        (dict(a=T, b=U), dict(targets="b"), "xb {a 3x2 float32}, yb 4 float32"),
        (Pair(Pair(T, ["a"]), torch.tensor(1)), {}, "xb {x 3x2 float32, y list}, yb scalar int64"),
        (T, {}, "xb 3x2 float32"),
    ],
)
def test_shapes_are_known_from_batches_that_were_split(batch, told, text):
    class Once:
        def __iter__(self):
            raise AssertionError("no batch is loaded for a display")

        def __len__(self):
            return 1

    dls = on_cpu(Once(), **told)
    assert repr(dls) == "DataLoaders(1 batch; cpu)" and "<p>cpu</p>" in dls._repr_html_()
    dls.split(batch)
    assert repr(dls) == f"DataLoaders(1 batch; {text}; cpu)" and f"<p>{text}; cpu</p>" in dls._repr_html_()


def test_a_fit_makes_the_shapes_known():
    learn = line_learner()
    assert repr(learn.dls) == "DataLoaders(2 and 1 batches; cpu)"
    learn.fit(1)
    assert repr(learn.dls) == "DataLoaders(2 and 1 batches; xb 8 float32, yb 8 float32; cpu)"


def test_one_batch_does_without_the_shapes_if_a_target_is_missing():
    dls = on_cpu([dict(a=T)], targets="b")
    assert dls.one_batch()["a"] is T and repr(dls) == "DataLoaders(1 batch; cpu)"


def test_loaders_as_a_table():
    dls = on_cpu(digits(1280), [T], lambda: iter([T]))
    rows = ["<td>train</td><td>20</td><td>64</td><td>TensorDataset, 1,280 items</td>", "<td>valid</td><td>1</td><td>?</td><td>list</td>"]
    rows += ["<td>2</td><td>?</td><td>?</td><td>Batches</td>"]
    found = dls._repr_html_()
    assert all(f"<tr>{row}</tr>" in found for row in rows) and found.count("<tr>") == 4
    assert "style" not in found and "color" not in found  # the front end's own, light or dark


def test_text_in_the_table_is_escaped():
    named = type("<b>Set</b>", (Dataset,), {"__len__": lambda self: 1, "__getitem__": lambda self, i: {"<i>": T}})
    dls = on_cpu(DataLoader(named()))
    dls.one_batch()
    found = dls._repr_html_()
    assert "<b>" not in found and "<i>" not in found and "&lt;b&gt;Set" in found and "&lt;i&gt; 1x3x2 float32" in found


def test_loaders_by_index():
    one, two, three = [T], [U], [T, T]
    dls = on_cpu(one, two, three)
    assert [dls[i] for i in (-3, -1, 0, 1, 2)] == [one, three, one, two, three] and len(dls) == 3
    for i in (-4, 3):
        with pytest.raises(IndexError, match=f"there is no loader {i}: there are 3"):
            dls[i]
    assert dls.train is one and dls.valid is two and on_cpu(one).valid is None and on_cpu(one, None, three).valid is three
    assert (
        on_cpu(one, targets=["a", "b"]).targets == ("a", "b") and on_cpu(one, targets="ab").targets == ("ab",) and on_cpu(one).targets == ()
    )


def test_a_loader_over_items_is_like_that_for_validation():
    collate = lambda items: torch.tensor(items)
    train = DataLoader([1, 2], 2)
    dls = on_cpu(train, DataLoader([1, 2, 3, 4], 4, collate_fn=collate))
    found = dls.test_dl(list(range(10)))
    assert [len(b) for b in found] == [4, 4, 2] and found.collate_fn is collate and torch.cat(list(found)).tolist() == list(range(10))
    other = dls.test_dl([1, 2, 3], bs=3, collate_fn=len)
    assert list(other) == [3] and on_cpu(train).test_dl([1, 2, 3]).batch_size == 2
    assert on_cpu([T]).test_dl([1, 2, 3]).batch_size == 64


@pytest.mark.parametrize("new", [True, False], ids=["torch.accelerator", "before 2.6"])
def test_the_machine_has_an_accelerator_or_none(monkeypatch, new):
    has = dict(cuda=False, mps=False, xpu=False)
    kind = lambda: next((kind for kind, there in has.items() if there), None)
    for name, module in dict(cuda=torch.cuda, mps=torch.backends.mps, xpu=torch.xpu).items():
        monkeypatch.setattr(module, "is_available", lambda name=name: has[name])
    if new:
        stands_in = types.SimpleNamespace(is_available=lambda: kind() is not None, current_accelerator=lambda: torch.device(kind()))
        monkeypatch.setattr(torch, "accelerator", stands_in, raising=False)
    else:
        monkeypatch.delattr(torch, "accelerator", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.xpu, "current_device", lambda: 1)
    assert default_device() == torch.device("cpu") == cbnb.DataLoaders([T]).device
    has["mps"] = True
    assert default_device() == torch.device("mps")
    has.update(mps=False, xpu=True)
    assert default_device() == torch.device("xpu", 1)
    has["cuda"] = True
    assert default_device() == torch.device("cuda", 3) == cbnb.DataLoaders([T]).device
    dls = on_cpu([T])
    assert dls.cuda() is dls and dls.device == torch.device("cuda", 3) and dls.cpu().device == torch.device("cpu")
    with pytest.raises(ValueError, match="device='cuda:4' is not available"):
        dls.to("cuda:4")


@pytest.mark.parametrize(
    "backend, kind",
    [("gloo", "cpu"), ("mpi", "cpu"), ("cpu:gloo,cuda:nccl", "cpu"), ("nccl", "cuda"), ("xccl", "xpu"), ("hccl", "npu")],
)
def test_processes_exchange_sums_on_the_device_of_their_backend(monkeypatch, backend, kind):
    there = types.SimpleNamespace(type=kind)  # not each torch knows each name
    monkeypatch.setattr(processes.dist, "get_backend", lambda: backend)
    monkeypatch.setattr(processes, "process_device", lambda: there)
    assert processes._shared_device().type == kind


def test_random_states_are_put_back_as_often_as_asked():
    sampler_own, own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    data = TensorDataset(torch.arange(4.0))
    loaders = [DataLoader(data, sampler=torch.utils.data.RandomSampler(data, generator=sampler_own)), DataLoader(data, generator=own), [T]]
    draw = lambda: (
        random.random(),
        np.random.rand(),
        torch.rand(1).item(),
        torch.rand(1, generator=sampler_own).item(),
        torch.rand(1, generator=own).item(),
    )
    restore = save_rng(loaders)
    first = draw()
    for _ in range(2):
        assert draw() != first
        restore()
        assert draw() == first


class RandomItems(Dataset):
    """Items that draw from all three generators."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(1).item()])


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63, np.int64(7)])
def test_one_seed_for_all_generators(seed):
    own = torch.Generator().manual_seed(5)
    before = own.get_state()
    assert set_seed(seed) is None
    first = str(rng_state())
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == (
        random.Random(int(seed)).random(),
        np.random.RandomState(int(seed) % 2**32).rand(),
        torch.rand(1, generator=torch.Generator().manual_seed(int(seed))).item(),
    )
    assert str(rng_state()) != first
    set_seed(seed)
    assert str(rng_state()) == first
    assert torch.equal(own.get_state(), before)  # a generator of your own is yours


def test_a_seed_reaches_the_devices(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    set_seed(3)
    assert seeds == [3]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_seed_reaches_workers(n):
    def two_epochs():
        set_seed(1)
        loader = DataLoader(RandomItems(), batch_size=2, shuffle=True, num_workers=n)
        return torch.cat([batch for _ in range(2) for batch in loader])

    first = two_epochs()
    assert torch.equal(first, two_epochs()) and len(set(first.flatten().tolist())) == 2 * 6 * 3


def test_two_learners_with_one_seed_are_the_same_bit_by_bit():
    def trained(seed):
        set_seed(seed)
        x = torch.randn(32, 3)
        net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 1))
        dls = cbnb.DataLoaders.from_datasets(TensorDataset(x, x.sum(1, keepdim=True)), bs=8, device="cpu")
        cbnb.Learner(dls, net, nn.MSELoss(), default_cbs=False).fit(2)
        return torch.cat([p.flatten() for p in net.parameters()]).detach()

    assert torch.equal(trained(0), trained(0)) and not torch.equal(trained(0), trained(1))


@pytest.mark.parametrize(
    ("wrong", "error", "words"), [(-1, ValueError, "seed=-1"), (1.5, TypeError, "seed=1.5"), (None, TypeError, "seed=None")]
)
def test_a_seed_is_a_whole_number_and_a_wrong_one_changes_nothing(wrong, error, words):
    before = str(rng_state())
    with pytest.raises(error, match=words):
        set_seed(wrong)
    assert str(rng_state()) == before


def test_the_first_batch_of_a_loader():
    assert first_batch([1, 2]) == 1
    with pytest.raises(ValueError, match="the loader gave no batches"):
        first_batch([])


def test_what_is_a_loader_and_how_many_batches_it_has():
    make = lambda: iter([1, 2])
    loader = as_loader(make)
    assert isinstance(loader, cbnb.Batches) and [list(loader) for _ in range(2)] == [[1, 2]] * 2 and n_batches(loader) is None
    assert n_batches(cbnb.Batches(make, 2)) == 2 and n_batches(cbnb.Batches(make, 0)) == 0 and n_batches([1]) == 1
    with pytest.raises(TypeError, match="this loader has no length: pass the number"):
        len(loader)
    both = type("Both", (), {"__call__": lambda self: None, "__getitem__": lambda self, i: [1][i]})()
    assert as_loader(both) is both and as_loader([1]) == [1]
    for wrong, words in [
        (iter([1]), "can be iterated only once"),
        (3, "3 is not a data loader"),
        (SET, "a TensorDataset is a dataset"),
        ((SET, SET), "a tuple of 2 datasets is not a loader of batches: use DataLoaders.from_datasets"),
        ("test", "^'test' is not a loader"),
        (T, "a Tensor is not a loader of batches"),
    ]:
        with pytest.raises(TypeError, match=words):
            as_loader(wrong)
    with pytest.raises(TypeError, match="dls is None: pass DataLoaders"):
        cbnb.Learner(None, Line(), nn.MSELoss())
    with pytest.raises(TypeError, match="a list of loaders is not a loader"):
        cbnb.Learner([DataLoader([1])], Line(), nn.MSELoss())


@pytest.mark.parametrize(
    "columns, refused",
    [
        ((T, U), True),
        ([T, U], True),
        ((T, T), False),
        ((T, T[:2]), False),
        ((torch.zeros(2, 3), torch.zeros(2, 4)), True),
        ([torch.zeros(2, 3), torch.zeros(2, 4)], False),
        ((T, T.long()), True),
        ((T,), False),
        ((T, "a"), False),
    ],
)
def test_columns_are_told_from_batches(columns, refused):
    if refused:
        with pytest.raises(TypeError, match="holds inputs and targets, not batches"):
            as_loader(columns)
    else:
        assert as_loader(columns) is columns


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda b: cbnb.DataLoaders(b, targets=3), TypeError, "targets=3 should be the name of the target"),
        (lambda b: cbnb.DataLoaders(b, n_inp="1"), TypeError, "n_inp='1' should be a whole number"),
        (lambda b: cbnb.DataLoaders(b, {"a": None}), TypeError, "the validation set 'a' is None"),
        (lambda b: cbnb.Learner(cbnb.DataLoaders, nn.Linear(1, 1), nn.MSELoss()), TypeError, "dls is the class DataLoaders"),
        (lambda b: cbnb.DataLoaders(b)["valid"], KeyError, "there is no validation loader"),
    ],
)
def test_arguments_of_loaders_that_cannot_work_are_refused_at_once(make, error, words):
    with pytest.raises(error, match=words):
        make([(torch.ones(2, 1), torch.ones(2, 1))])
