"""Every scheduler of torch, stepped for each batch, for each update and for each epoch."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler as torchs
from torch.optim.swa_utils import SWALR

from cbnb.all import Checkpoint, DataLoaders, GradientAccumulation, Learner, TorchScheduler
from program import Hand, same_losses, same_rows, same_weights
from resumed import Fails, PowerFailed

N_EPOCH, N_BATCHES, WINDOW = 4, 6, 3

SCHEDULERS = dict(
    LambdaLR=lambda opt: torchs.LambdaLR(opt, lambda n: 1 / (1 + n)),
    MultiplicativeLR=lambda opt: torchs.MultiplicativeLR(opt, lambda n: 0.9),
    StepLR=lambda opt: torchs.StepLR(opt, 2, 0.5),
    MultiStepLR=lambda opt: torchs.MultiStepLR(opt, [1, 3, 9], 0.5),
    ConstantLR=lambda opt: torchs.ConstantLR(opt, 0.1, 3),
    LinearLR=lambda opt: torchs.LinearLR(opt, 0.1, total_iters=3),
    ExponentialLR=lambda opt: torchs.ExponentialLR(opt, 0.9),
    PolynomialLR=lambda opt: torchs.PolynomialLR(opt, 10, 2),
    CosineAnnealingLR=lambda opt: torchs.CosineAnnealingLR(opt, 10, 1e-3),
    CosineAnnealingWarmRestarts=lambda opt: torchs.CosineAnnealingWarmRestarts(opt, 2, 2),
    CyclicLR=lambda opt: torchs.CyclicLR(opt, 0.01, 0.2, 2, 3),
    OneCycleLR=lambda opt: torchs.OneCycleLR(opt, 0.2, 40),
    SWALR=lambda opt: SWALR(opt, 0.02, 3),
    SequentialLR=lambda opt: torchs.SequentialLR(opt, [torchs.LinearLR(opt, 0.1, total_iters=2), torchs.ExponentialLR(opt, 0.9)], [2]),
    ChainedScheduler=lambda opt: torchs.ChainedScheduler([torchs.ConstantLR(opt, 0.1, 2), torchs.ExponentialLR(opt, 0.9)]),
)
if (
    "anneal_func" in SWALR(torch.optim.SGD([torch.zeros(1)], 0.1), 0.02).state_dict()
):  # torch 2.4: a function, which no checkpoint can store
    del SCHEDULERS["SWALR"]


def test_these_are_all_schedulers():
    there = {name for name, cls in vars(torchs).items() if isinstance(cls, type) and issubclass(cls, torchs.LRScheduler)}
    assert there - set(SCHEDULERS) == {"LRScheduler", "_LRScheduler", "ReduceLROnPlateau"}


def batches():
    x = torch.randn(N_BATCHES * 4, 5, generator=torch.Generator().manual_seed(3))
    return list(zip(x.split(4), x.sin().sum(1, keepdim=True).split(4)))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))


def momentum(params, lr):
    return torch.optim.SGD(params, lr=lr, momentum=0.9, fused=True)


def by_hand(make, every, window=1):
    """Losses, rows and weights; and the rate of each batch."""
    model, data, rates = net(), batches(), []
    opt, hand = momentum(model.parameters(), 0.1), Hand(model)
    sched = make(opt)
    for _ in range(N_EPOCH):
        for i, (x, y) in enumerate(data):
            rates.append(opt.param_groups[0]["lr"])
            loss = F.mse_loss(model(x), y)
            (loss / window).backward()
            hand.losses.append(loss.item())
            if (i + 1) % window == 0:
                opt.step()
                opt.zero_grad()
                if every == "update":
                    sched.step()
            if every == "batch":
                sched.step()
        with torch.no_grad():
            valid_loss = sum(F.mse_loss(model(x), y).item() for x, y in data) / N_BATCHES
        hand.rows.append(dict(valid_loss=valid_loss))
        if every == "epoch":
            sched.step(*[valid_loss] * isinstance(sched, torchs.ReduceLROnPlateau))
    return hand, rates


def learner(path, *cbs):
    dls = DataLoaders(batches(), batches(), device="cpu")
    return Learner(dls, net(), F.mse_loss, momentum, lr=0.1, cbs=cbs, path=path)


def fit(learn, **kwargs):
    with learn.no_bar(), learn.no_logging():
        learn.fit(N_EPOCH, **kwargs)


def check(make_learner, hand, rates, tolerance=0.0):
    """The fit, and one that fails and is resumed, are those by hand."""
    whole, broken, resumed = make_learner(), make_learner(), make_learner()
    fit(whole)
    with pytest.raises(PowerFailed):
        fit(broken, cbs=[Checkpoint(every_steps=2), Fails(8)], resume=True)
    fit(resumed, resume=True)
    for learn in (whole, resumed):
        assert learn.recorder.last().hyper("lr") == rates
        same_losses(learn, hand, tolerance)
        same_rows(learn, hand, 1e-6)
        same_weights(learn.model, hand.modules, tolerance)


@pytest.mark.parametrize("every", ["batch", "epoch"])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_sets_the_rates_of_the_loop(name, every, tmp_path):
    make = SCHEDULERS[name]
    check(lambda: learner(tmp_path, TorchScheduler(make, every=every)), *by_hand(make, every))


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_scheduler_can_count_updates(name, tmp_path):
    make = SCHEDULERS[name]

    def new():
        return learner(tmp_path, TorchScheduler(make, every="update"), GradientAccumulation(WINDOW * 4))

    check(new, *by_hand(make, "update", WINDOW), 1e-6)


def test_plateau_follows_the_validation_loss(tmp_path):
    make = lambda opt: torchs.ReduceLROnPlateau(opt, patience=0, threshold=10.0, threshold_mode="abs")
    check(lambda: learner(tmp_path, TorchScheduler(make, monitor="valid_loss")), *by_hand(make, "epoch"))


@pytest.mark.parametrize(
    "make, every, said",
    [
        (lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, 0.1), "update", 1),
        (lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.1), "update", 1),
        (lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, 0.1), "epoch", 0),
        (lambda opt: torch.optim.lr_scheduler.StepLR(opt, 16, 0.1), "update", 0),
        (lambda opt, n: torch.optim.lr_scheduler.CosineAnnealingLR(opt, n // 3), "update", 0),
    ],
)
def test_a_decay_of_epochs_in_updates_is_heard(make, every, said):
    """The rate went from 1e-3 to 1e-11 in the first of three epochs, silently."""
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    batches = list(zip(x.split(8), x.sum(1, keepdim=True).split(8)))
    learn = Learner(DataLoaders(batches, device="cpu"), nn.Linear(2, 1), nn.MSELoss(), lr=1e-3, cbs=TorchScheduler(make, every=every))
    with warnings.catch_warnings(record=True) as seen, learn.no_logging():
        warnings.simplefilter("always")
        learn.fit(3, valid_every=[])
    heard = [str(w.message) for w in seen if "steps after each update" in str(w.message)]
    assert len(heard) == said
    assert not said or "8 times in this epoch" in heard[0] and "from 0.001 to 1e-11" in heard[0] and "every='epoch'" in heard[0]
