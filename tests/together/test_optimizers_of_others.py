"""Every optimizer of `pytorch_optimizer`, beside a loop written by hand. All of them begin their bases with `ABC`."""

import inspect
import random
import warnings
from abc import ABC
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.callbacks.steps import ClosureStep
from cbnb.step import Step

po = pytest.importorskip("pytorch_optimizer")
T = TypeVar("T")


class WithABC(ABC, torch.optim.SGD):
    pass


class WithGeneric(Generic[T], torch.optim.SGD):
    pass


class NoSlots:
    __slots__ = ()


class WithSlots(NoSlots, torch.optim.SGD):
    pass


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batches():
    torch.manual_seed(1)
    random.seed(1), np.random.seed(1)
    xs = [torch.randn(5, 3) for _ in range(4)]
    return [(x, x.sum(1, keepdim=True)) for x in xs]


def hand_loop(make, n_epoch=2, closure=False, create_graph=False):
    model, data = net(), batches()
    opt = make([dict(params=list(model.parameters()))], lr=0.01)
    for _ in range(n_epoch):
        for x, y in data:

            @torch.enable_grad()
            def evaluate(x=x, y=y):
                opt.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward(create_graph=create_graph)
                return loss

            if closure != "alone":
                evaluate()
            opt.step(evaluate) if closure else opt.step()
            opt.zero_grad()
    return model


def learnt(make, n_epoch=2, step=None, cbs=None):
    model, data = net(), batches()
    learn = cbnb.Learner(cbnb.DataLoaders(data, data), model, nn.functional.mse_loss, make, lr=0.01, train_step=step, cbs=cbs)
    learn.fit(n_epoch)
    return model


def assert_equal(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


class SecondOrder(Step):
    def backward(self, learn):
        learn.loss_grad.backward(create_graph=True)


def no_muon(cls):
    return lambda groups, lr: cls([g | dict(use_muon=False, lr=lr) for g in groups], lr=lr)


def around_adam(cls):
    return lambda groups, lr: cls(torch.optim.AdamW(groups, lr=lr))


NOT_HERE = {  # why a class does not take part
    "AdaLOMO": "updates in backward, and its step raises",
    "LOMO": "updates in backward, and its step raises",
    "DeMo": "needs einops",
    "Kron": "draws from the random state of NumPy",
    "DistributedMuon": "needs several processes",
    "SafeFP16Optimizer": "has no param_groups",
    "ScheduleFreeWrapper": "needs its method train()",
    "SpectralSphere": "takes matrices only",
    "GSAM": "needs a schedule of its own",
    "WSAM": "takes the model",
    "AdamMini": "takes the model",
    "PCGrad": "computes the gradients of several losses itself",
    "LBFGS": "torch's",
}
SPECIAL = {name: no_muon(getattr(po, name)) for name in ("AdaGO", "AdaMuon", "Muon", "MuonClip", "NorMuon")}
SPECIAL |= {name: around_adam(getattr(po, name)) for name in ("Lookahead", "OrthoGrad", "Magma", "TRAC")}
SPECIAL |= dict(Ranger21=partial(po.Ranger21, num_iterations=10), GrokFastAdamW=partial(po.GrokFastAdamW, normalize_lr=False))
SAMS = {name: partial(getattr(po, name), base_optimizer=torch.optim.SGD) for name in ("SAM", "LookSAM", "FriendlySAM")}
# the learner sets the rate of each group to its own, so rates that a constructor changes are passed as they are above
CLOSED = {"BSAM": partial(po.BSAM, num_data=20), "AliG": po.AliG}
NAMES = [
    name
    for name, cls in vars(po).items()
    if inspect.isclass(cls)
    and issubclass(cls, torch.optim.Optimizer)
    and cls.__module__[:5] != "torch"
    and name not in NOT_HERE | SAMS | CLOSED
]


@pytest.mark.filterwarnings("ignore")
def test_every_optimizer_trains_as_in_a_loop_written_by_hand():
    assert len(NAMES) > 100
    differ = []
    for name in NAMES:
        make, second = SPECIAL.get(name, getattr(po, name)), name in ("AdaHessian", "SophiaH")
        by_hand = hand_loop(make, create_graph=second)
        trained = learnt(make, step=SecondOrder() if second else None)
        if not all(map(torch.equal, by_hand.parameters(), trained.parameters())):
            differ.append(name)
    assert differ == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SAMS, *CLOSED])
def test_optimizers_with_a_closure_train_as_in_a_loop_written_by_hand(name):
    """SAM moves the weights before it evaluates the closure, so its first evaluation is a new one."""
    make = (SAMS | CLOSED)[name]
    assert_equal(hand_loop(make, closure=True), learnt(make, step=ClosureStep()))


@pytest.mark.parametrize("cls", [WithABC, WithGeneric, WithSlots])
def test_the_class_of_an_optimizer_is_never_changed(cls):
    seen = []

    class Names(cbnb.Callback):
        def after_step(self):
            seen.append((type(self.opt), self.opt.hypers[-1]["lr"], len(self.opt.hypers)))
            self.opt.set_hyper("lr", 0.02)

    model = learnt(cls, 1, cbs=Names)
    assert seen[0] == (cls, 0.01, 1) and seen[1] == (cls, 0.02, 1)
    assert len(list(model.parameters())) == 4


@pytest.mark.parametrize("cls", [WithABC, WithGeneric, WithSlots])
def test_callbacks_of_other_libraries_work_with_such_an_optimizer(cls):
    """fastai v1 assigns `opt.lr`, which needs a property."""
    seen = []

    class V1:
        def __init__(self, learn):
            self.learn = learn

        def on_train_begin(self, **kwargs):
            self.learn.opt.lr = 0.02

        def on_step_end(self, **kwargs):
            seen.append(self.learn.opt.lr)

    learn_with = []

    def make(groups, lr):
        learn_with.append(cls(groups, lr=lr))
        return learn_with[-1]

    learnt(make, 1, cbs=V1)
    assert seen[:1] == [0.02] and type(learn_with[0]) is cls


def test_a_name_of_the_optimizer_itself_stays():
    class Own(torch.optim.SGD):
        def freeze(self):
            return "mine"

    seen = []
    learnt(Own, 1, cbs=cbnb.Callback(after_step=lambda cb: seen.append(cb.opt.freeze())))
    assert seen[0] == "mine"


def test_a_class_with_groups_as_a_property_is_not_taken_for_an_optimizer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as e:
            learnt(po.Lookahead)
    assert "property" not in str(e.value)


@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_that_needs_a_closure_or_has_no_usual_state_says_what_to_do(tmp_path):
    with pytest.raises(Exception, match="closure") as e:
        learnt(po.AliG)
    assert any("train_step=ClosureStep()" in note for note in e.value.__notes__)
    data = batches()
    learn = cbnb.Learner(cbnb.DataLoaders(data), net(), nn.functional.mse_loss, SPECIAL["Magma"], path=tmp_path)
    learn.fit(1)
    with pytest.raises(TypeError, match="state_dict.. of Magma has no 'param_groups', so nothing was written"):
        learn.save("magma", with_opt=True)
    learn.save("magma", with_opt=False)
    with pytest.raises(TypeError, match="Magma has no .param_groups., so its state cannot be saved"):
        learn.state_dict()
