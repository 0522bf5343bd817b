"""However a set is cut, its numbers are those of the whole; and what is written down is read back. Hypothesis chooses the cases."""

import csv
import io
import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.basics.nested import find_bs, map_tensors
from cbnb.files.position import batches_from
from cbnb.history import History
from helpers import exact, seed

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(max_examples=12, derandomize=True, deadline=None, database=None)
N, CLASSES = 24, 3
WEIGHTS = torch.tensor([0.3, 1.0, 4.0])


def items():
    g = torch.Generator().manual_seed(5)
    x = torch.randn(N, 4, generator=g)
    return x, torch.randint(CLASSES, (N,), generator=g)


def padded(y):
    """The same targets, some of which are to be ignored, but none at the beginning of a part."""
    return torch.where(torch.arange(N) % 3 == 1, -100, y)


def one_hot(y):
    return F.one_hot(y, CLASSES).float()


# a loss, and what it needs as a target
LOSSES = dict(
    cross_entropy=(nn.CrossEntropyLoss(), lambda y: y),
    with_class_weights=(nn.CrossEntropyLoss(WEIGHTS), lambda y: y),
    with_padding=(nn.CrossEntropyLoss(), padded),
    weights_and_padding=(partial(F.cross_entropy, weight=WEIGHTS, ignore_index=-100), padded),
    smoothed=(nn.CrossEntropyLoss(label_smoothing=0.1), lambda y: y),
    nll=(nn.NLLLoss(WEIGHTS), lambda y: y),
    summed=(nn.CrossEntropyLoss(reduction="sum"), lambda y: y),
    mse=(nn.MSELoss(), one_hot),
    bce=(nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), one_hot),
    huber=(F.huber_loss, one_hot),
    kl=(nn.KLDivLoss(reduction="batchmean"), lambda y: one_hot(y) * 0.8 + 0.1),
    multi_margin=(nn.MultiMarginLoss(), lambda y: y),
)


@st.composite
def cuts(draw):
    """Sizes of batches that make up the set."""
    sizes = []
    while sum(sizes) < N:
        sizes.append(draw(st.integers(1, min(9, N - sum(sizes)))))
    return sizes


def accuracy_of(pred, y):
    known = y != -100
    return (pred.argmax(1) == y)[known].float().mean().item()


def net():
    seed(3)
    return nn.Linear(4, CLASSES)


def learner(name, sizes, **kwargs):
    loss_func, target = LOSSES[name]
    x, y = items()
    batches = list(zip(x.split(sizes), target(y).split(sizes)))
    dls = cbnb.DataLoaders(batches, batches, device="cpu")
    learn = cbnb.Learner(dls, net(), loss_func, torch.optim.SGD, lr=0.1, **kwargs).remove_cb(cbnb.ProgressCallback)
    learn.logger = lambda row: None
    return learn


def whole(name):
    loss_func, target = LOSSES[name]
    x, y = items()
    return loss_func, x, target(y)


@pytest.mark.parametrize("name", LOSSES)
@few
@given(cuts())
def test_the_loss_of_a_set_is_that_of_the_whole(name, sizes):
    loss_func, x, y = whole(name)
    learn = learner(name, sizes)
    with torch.no_grad():
        assert learn.validate()[0] == pytest.approx(loss_func(learn.model(x), y).item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@few
@given(cuts())
def test_an_accumulated_update_is_that_of_the_whole(name, sizes):
    loss_func, x, y = whole(name)
    learn, model = learner(name, sizes, cbs=cbnb.GradientAccumulation(N)), net()
    learn.fit(1, lr=0.01)
    opt = torch.optim.SGD(model.parameters(), 0.01)
    loss_func(model(x), y).backward()
    opt.step()
    for a, b in zip(learn.model.parameters(), model.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@few
@given(cuts())
def test_metrics_of_a_set_are_those_of_the_whole(sizes):
    learn = learner("with_padding", sizes, metrics=[cbnb.accuracy, cbnb.AccumMetric(accuracy_of)])
    _, x, y = whole("with_padding")
    with torch.no_grad():
        expected = accuracy_of(learn.model(x), y)
    assert learn.validate()[1:] == pytest.approx([expected, expected], abs=1e-6)


@pytest.mark.parametrize("name", ["with_class_weights", "with_padding", "mse"])
@few
@given(cuts(), st.integers(1, 4))
def test_losses_of_several_processes_are_those_of_the_whole(name, sizes, n_processes):
    """The sums and weights of each process are added."""
    loss_func, x, y = whole(name)
    learn, numbers, sums = learner(name, sizes), torch.arange(N), []
    for process in range(n_processes):
        total = weight = 0.0
        for at in numbers[process::n_processes].split(sizes[0]):
            learn.xb, learn.yb, learn.pred = (x[at],), (y[at],), learn.model(x[at]).detach()
            learn.loss = loss_func(learn.pred, *learn.yb)
            if w := float(learn.train_step.batch_weight(learn)):
                total, weight = total + learn.loss.item() * w, weight + w
        sums.append((total, weight))
    total, weight = map(sum, zip(*sums))
    expected = loss_func(learn.model(x).detach(), y).item()
    assert total / weight == pytest.approx(expected, rel=1e-5)


# --- schedules ---

schedules = st.sampled_from([cbnb.SchedLin, cbnb.SchedCos, cbnb.SchedExp, cbnb.SchedNo])
rates = st.floats(1e-6, 10)


@few
@given(schedules, rates, rates)
def test_a_schedule_begins_and_ends_where_it_should(kind, start, end):
    sched = kind(start, end)
    assert sched(0.0) == pytest.approx(start) and sched(1.0) == pytest.approx(start if kind is cbnb.SchedNo else end)
    low, high = sorted((start, end))
    assert all(low * 0.999 <= sched(i / 20) <= high * 1.001 for i in range(21))


@few
@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=4), st.floats(0, 1), rates, rates)
def test_a_combined_schedule_is_its_parts(shares, at, start, end):
    shares = [s / sum(shares) for s in shares]
    parts = [cbnb.SchedLin(start + i, end + i) for i in range(len(shares))]
    whole = cbnb.combine_scheds(shares, parts)
    i = next(i for i in range(len(shares)) if at <= sum(shares[: i + 1]) + 1e-9 or i == len(shares) - 1)
    within = (at - sum(shares[:i])) / shares[i]
    if 1e-6 < within < 1 - 1e-6:
        assert whole(at) == pytest.approx(parts[i](within), rel=1e-6)


# --- files of the history ---


@few
@given(st.lists(st.floats(-1e6, 1e6, width=32) | st.just(float("nan")) | st.just(float("inf")), min_size=1, max_size=6))
def test_a_history_survives_json_and_csv(losses):
    data = [(torch.zeros(1, 1), torch.tensor([value])) for value in losses]
    dls = cbnb.DataLoaders(data, data[:1], device="cpu")
    learn = cbnb.Learner(dls, nn.Linear(1, 1), lambda pred, y: pred.sum() * 0 + y.sum(), torch.optim.SGD, lr=0.1)
    learn = learn.remove_cb(cbnb.ProgressCallback)
    learn.logger = lambda row: None
    learn.fit(2)
    history = learn.recorder.history
    read = History.from_json(history.to_json())
    assert [exact(torch.tensor(list(run.raw_losses))) for run in read] == [exact(torch.tensor(list(run.raw_losses))) for run in history]
    assert json.dumps(read.to_dict()) == json.dumps(history.to_dict())
    rows = list(csv.DictReader(io.StringIO(history.to_csv())))
    assert [int(row["epoch"]) for row in rows] == [0, 1]


# --- nested batches ---

leaves = st.integers(1, 3).map(lambda n: torch.arange(4.0 * n).reshape(4, n)) | st.text(max_size=3) | st.none()
nested = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@few
@given(nested)
def test_a_nested_batch_is_rebuilt(batch):
    assert same(map_tensors(lambda t: t - 1, map_tensors(lambda t: t + 1, batch)), batch)
    tensors = []
    map_tensors(lambda t: tensors.append(t) or t, batch)
    if tensors:
        assert find_bs(batch) == 4


# --- positions in an epoch ---


@few
@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 8), st.booleans(), st.booleans())
def test_an_epoch_goes_on_from_any_position(n, bs, skip, shuffle, drop_last):
    numbers = torch.arange(n)
    if drop_last and n < bs:
        return
    dl = DataLoader(TensorDataset(numbers), bs, shuffle=shuffle, drop_last=drop_last)
    skip = min(skip, len(dl))
    seed(2)
    whole = [batch[0].tolist() for batch in dl]
    seed(2)
    assert [batch[0].tolist() for batch in batches_from(dl, skip)] == whole[skip:]
