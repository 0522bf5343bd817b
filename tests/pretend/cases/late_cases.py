"""What is read late, since nothing waits for the GPU, is what the CPU reads at once: the pretend GPU computes the same numbers."""

import contextlib
import io

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.lr.finder import LATE

DEVICES = "cpu", "cuda"


def batches(device, n=12, bad=None):
    torch.manual_seed(1)
    data = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(n)]
    if bad is not None:
        data[bad][0][5, 2] = float("nan")
    return [(x.to(device), y.to(device)) for x, y in data]


def learner(device, bad=None, **settings):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    dls = cbnb.DataLoaders(batches(device, bad=bad), batches(device, 3), device=device)
    return cbnb.Learner(dls, net, **dict(loss_func=nn.CrossEntropyLoss(), opt_func=torch.optim.SGD, lr=0.1) | settings)


def sweep(device, bad=None, cbs=None, seen=None, **settings):
    learn = learner(device, bad, cbs=cbs)
    with contextlib.redirect_stdout(io.StringIO()):
        found = learn.lr_find(show_plot=False, cbs=[] if seen is None else [seen], **settings)
    return found


@pytest.mark.parametrize(
    "settings", [{}, dict(num_it=30), dict(start_lr=1, end_lr=1e8, num_it=60), dict(start_lr=1e6, end_lr=1e30, stop_div=False)], ids=str
)
@pytest.mark.parametrize("accumulates", [False, True])
def test_a_sweep_is_cut_where_the_cpu_stops(settings, accumulates):
    make = (lambda: [cbnb.GradientAccumulation(16)]) if accumulates else list
    on_cpu, late = (sweep(device, cbs=make(), **settings) for device in DEVICES)
    for name in ("lrs", "losses", "raw_losses", "n_batches", "reason"):
        a, b = getattr(on_cpu, name), getattr(late, name)
        assert repr(a) == repr(b), name  # nan equals nan
    n = len(late.lrs) - (late.raw_losses[-1] != late.raw_losses[-1])  # at nan, the weights may have moved on
    assert on_cpu.update_norms[:n] == late.update_norms[:n] and len(late.update_norms) == len(late.lrs)


def test_a_diverged_sweep_trains_four_batches_more():
    counts = []
    for device in DEVICES:
        seen = []
        found = sweep(device, end_lr=1e4, seen=cbnb.Callback(after_batch=lambda cb, seen=seen: seen.append(cb.train_iter)))
        counts.append((len(found.lrs), len(seen)))
    (updates, on_cpu), (late_updates, late) = counts
    assert on_cpu == updates == late_updates < 100 and late == on_cpu + LATE


def test_the_bad_item_is_named_though_other_batches_came_after_it():
    on_cpu, late = (sweep(device, bad=5) for device in DEVICES)
    assert "the inputs of item 5 of batch 5 are nan or infinite" in on_cpu.reason and late.reason == on_cpu.reason


def test_a_loss_that_raises_ends_a_sweep_at_the_same_update():
    """It raises in the forty-third training batch, and not with the weights that are put back."""

    def strict(pred, y):
        calls.append(1)
        if len(calls) == 43:
            raise ValueError("the loss is too high")
        return nn.functional.cross_entropy(pred, y)

    found = []
    for device in DEVICES:
        learn, calls = learner(device, loss_func=strict, lr=1e-3), []
        with contextlib.redirect_stdout(io.StringIO()):
            found.append(learn.lr_find(start_lr=1e-2, end_lr=1, num_it=60, show_plot=False))
    on_cpu, late = found
    assert repr(on_cpu.raw_losses) == repr(late.raw_losses) and len(late.lrs) == 43 and late.raw_losses[-1] != late.raw_losses[-1]


def rows(device, **settings):
    learn = learner(device, **settings)
    with contextlib.redirect_stdout(io.StringIO()):
        learn.fit(2)
    return learn.recorder.history[-1]


@pytest.mark.parametrize("loss", ["mean", "weighted", "parts"])
def test_the_row_of_an_epoch_is_that_of_the_cpu(loss):
    def make(device):
        weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], device=device))
        parts = lambda pred, y: dict(loss=nn.functional.cross_entropy(pred, y), size=pred.pow(2).mean())  # noqa: E731
        return dict(mean=nn.CrossEntropyLoss(), weighted=weighted, parts=parts)[loss]

    runs = [rows(device, loss_func=make(device)) for device in DEVICES]
    drop = lambda run: [{k: v for k, v in row.items() if k != "time"} for row in run.epochs]  # noqa: E731
    assert drop(runs[0]) == drop(runs[1]) and list(runs[0].raw_losses) == list(runs[1].raw_losses)


def test_the_training_loss_can_be_read_before_the_validation():
    logs = []
    for device in DEVICES:
        learn, seen = learner(device), []
        with contextlib.redirect_stdout(io.StringIO()):
            learn.fit(2, cbs=cbnb.Callback(before_validate=lambda cb, seen=seen: seen.append(cb.learn.recorder.log[:2])))
        logs.append(seen)
    assert logs[0] == logs[1] and None not in logs[0][0]


def test_training_losses_of_nan_are_told_once_and_validation_is_not_blamed():
    told = []
    for device in DEVICES:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            learner(device, bad=5).fit(2)
        told.append([line for line in out.getvalue().splitlines() if "since step" in line or "validation loss" in line])
    assert told[0] == told[1] and len(told[0]) == 1


def test_an_epoch_without_validation_has_its_row():
    epochs = []
    for device in DEVICES:
        learn = learner(device)
        learn.dls = cbnb.DataLoaders(batches(device), device=device)
        with contextlib.redirect_stdout(io.StringIO()):
            learn.fit(2)
        epochs.append([row["train_loss"] for row in learn.recorder.history[-1].epochs])
    assert epochs[0] == epochs[1] and len(epochs[0]) == 2
