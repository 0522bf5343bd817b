"""All small trainings of a check together have at most `LIMIT` updates. bench/faults.py counts those of each of its tasks."""

import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from cbnb.insight.small_trainings import LIMIT
from test_check import X, learner, mlp

BENCH = Path(__file__).parents[2] / "bench"


@contextmanager
def updates_of(model):
    """A list with one item for each update of a parameter of the model."""
    ids, found = {id(p) for p in model.parameters()}, []
    hook = register_optimizer_step_pre_hook(lambda opt, *_: found.extend([1] * any(id(p) in ids for p in opt.param_groups[0]["params"])))
    try:
        yield found
    finally:
        hook.remove()


def n_updates(learn, **options):
    with updates_of(learn.model) as found:
        codes = learn.check(**options).codes
    return len(found), codes


@pytest.fixture
def make_task(monkeypatch):
    for folder in (BENCH / "lr_quality", BENCH / "faults", BENCH):
        monkeypatch.syspath_prepend(str(folder))
    known = set(sys.modules)
    from fault_tasks import make_task

    yield make_task
    for name in set(sys.modules) - known:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "name", ["adding-recurrent-sgd", "contrastive", "shells-mlp-adam", "majority-recurrent-adam", "houses-raw-mlpbn-sgd"]
)
def test_a_check_makes_at_most_150_updates(make_task, name):
    n, _ = n_updates(make_task(name, 0).learner())
    assert 60 <= n <= LIMIT == 150


class Lowers(cbnb.Callback):
    """A callback of the user's own that changes gradients."""

    def before_step(self):
        for p in self.learn.model.parameters():
            p.grad.mul_(0.9)


NOISE = torch.randint(3, (300,), generator=torch.Generator().manual_seed(5))
PROGRAMS = {
    "an own callback": lambda: learner().add_cb(Lowers()),
    "an own callback and a high rate": lambda: learner(lr=0.3).add_cb(Lowers()),
    "labels of noise": lambda: learner(y=NOISE),
    "labels of noise and an own callback": lambda: learner(y=NOISE).add_cb(Lowers()),
    "uneven inputs and a low rate": lambda: learner(x=X * torch.tensor([1.0, 1, 1, 100, 1, 1]), lr=1e-4),
    "no inputs": lambda: learner(model=nn.Sequential(Zeros(), mlp())),
}


class Zeros(nn.Module):
    def forward(self, x):
        return 0 * x


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_several_questions(name):
    assert n_updates(PROGRAMS[name]())[0] <= LIMIT


def test_a_training_without_inputs_ends_when_it_can_no_longer_fall_as_low():
    from cbnb.insight.small_trainings import _stays_above

    falls = [2 * 0.9**i for i in range(75)]
    assert _stays_above([2.0] * 10, falls, 45) and not _stays_above([2.0] * 9, falls, 45)
    assert not _stays_above(falls[:10], falls, 45)  # it falls as fast
    assert not _stays_above([2.0] * 10, [2.0] * 75, 45)  # the other one does not fall


def test_pairs_that_do_not_belong_together_are_found_within_the_limit():
    """A contrastive loss: each first input with each second one of the batch."""

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(2))

        def forward(self, x):
            return F.normalize(self.left(x[:, 0]), dim=-1) @ F.normalize(self.right(x[:, 1]), dim=-1).T

    items = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    for second, wanted in ((-items, False), (-items.flip(0), True)):
        torch.manual_seed(0)
        pairs = TensorDataset(torch.stack([items, second], 1), torch.arange(600.0))
        learn = cbnb.Learner(
            cbnb.DataLoaders(DataLoader(pairs, 32, shuffle=True), device="cpu"),
            Towers(),
            lambda scores, y: F.cross_entropy(5 * scores, torch.arange(len(y))),
            lr=3e-3,
        )
        n, codes = n_updates(learn)
        assert n <= LIMIT and ("D18" in codes) is wanted
