"""The optimizers of `pytorch_optimizer`: each trains through the learner as by hand, and goes on from a file."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import Callback, DataLoaders, Learner
from cbnb.callbacks.steps import ClosureStep
from cbnb.step import Step
from helpers import exact
from program import Hand, same_losses, same_weights

others = pytest.importorskip("pytorch_optimizer")

# what these need beside parameters and a rate, or why they are left out
SPECIAL = dict(
    kron="NumPy's random state",
    alig="has no rate",
    bsam="closure",
    lbfgs="closure",
    adahessian="the graph of the gradients",
    sophiah="the graph of the gradients",
    muon="groups",
    adago="groups",
    adamuon="groups",
    distributedmuon="several processes",
    muonclip="the model",
    normuon="groups",
    ranger21="the number of updates",
    spectralsphere="matrices",
    adalomo="the model",
    adammini="the model",
    lomo="the model",
    demo="another package",
    magma="a state_dict without param_groups",
    a2grad="has no rate",
    asgd="sets its rate itself",
)
TORCHS = {name for name in others.get_supported_optimizers() if others.load_optimizer(name).__module__.startswith("torch.")}
NOT_IN_FILES = {"adashift", "conda", "scalableshampoo", "scion", "scionlight"}  # their states have objects of their own
PLAIN = sorted(set(others.get_supported_optimizers()) - set(SPECIAL) - TORCHS)


def batches():
    x = torch.randn(24, 4, generator=torch.Generator().manual_seed(3))
    return list(zip(x.split(6), x.sin().sum(1, keepdim=True).split(6)))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def trained_by_hand(make, with_closure=False, create_graph=False, groups=lambda m: [list(m.parameters())]):
    """Two epochs of four batches."""
    model = net()
    opt, hand = make([dict(params=g) for g in groups(model)], lr=1e-2), Hand(model)
    for _ in range(2):
        model.train()
        for x, y in batches():
            seen = []

            def closure():
                opt.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward(create_graph=create_graph)
                seen.append(loss.item())
                return loss

            closure()
            opt.step(*[closure] * with_closure)
            opt.zero_grad()
            hand.losses.append(seen[0])
    return hand


def learner(make, **kwargs):
    dls = DataLoaders(batches(), batches(), device="cpu")
    return Learner(dls, net(), F.mse_loss, make, **(dict(lr=1e-2) | kwargs))


def same_as_by_hand(hand, learn):
    with learn.no_bar(), learn.no_logging():
        learn.fit(2)
    same_losses(learn, hand, 0)
    same_weights(learn.model, hand.modules, 0)


@pytest.mark.parametrize("name", PLAIN)
def test_an_optimizer_trains_as_by_hand(name, tmp_path):
    """In one fit, and in two with a file between them."""
    make = others.load_optimizer(name)
    torch.manual_seed(1)
    whole = trained_by_hand(make)
    torch.manual_seed(1)
    same_as_by_hand(whole, learner(make))
    torch.manual_seed(1)
    first, second = (learner(make, path=tmp_path) for _ in range(2))
    with first.no_bar(), first.no_logging():
        first.fit(1)
    if name in NOT_IN_FILES:
        with pytest.raises(TypeError, match="so nothing was written"):
            first.save("half", with_opt=True)
        return
    first.save("half", with_opt=True)
    second.load("half", with_opt=True)
    with second.no_bar(), second.no_logging():
        second.fit(1)
    assert [exact(p) for p in second.model.parameters()] == [exact(p) for p in whole.modules.parameters()]


CLOSURES = {
    "BSAM": partial(others.load_optimizer("bsam"), num_data=24),
    "LBFGS": partial(others.load_optimizer("lbfgs"), max_iter=3),
    "SAM": partial(others.SAM, base_optimizer=torch.optim.SGD, momentum=0.9),
}


@pytest.mark.parametrize("name", CLOSURES)
def test_an_optimizer_with_a_closure_trains_as_by_hand(name):
    torch.manual_seed(1)
    hand = trained_by_hand(CLOSURES[name], with_closure=True)
    torch.manual_seed(1)
    same_as_by_hand(hand, learner(CLOSURES[name], train_step=ClosureStep()))


class SecondOrder(Step):
    """Keeps the graph of the gradients."""

    def backward(self, learn):
        learn.loss_grad.backward(create_graph=True)


@pytest.mark.parametrize("name", ["adahessian", "sophiah"])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_an_optimizer_of_second_order_trains_as_by_hand(name):
    make = others.load_optimizer(name)
    torch.manual_seed(1)
    hand = trained_by_hand(make, create_graph=True)
    torch.manual_seed(1)
    same_as_by_hand(hand, learner(make, train_step=SecondOrder()))


def by_shape(model):
    return [[p for p in model.parameters() if (p.ndim > 1) is matrix] for matrix in (True, False)]


RATES = [2e-2, 3e-3]


def for_matrices(name):
    def make(groups, lr):
        settings = [dict(use_muon=True, lr=RATES[0]), dict(use_muon=False, lr=RATES[1])]
        return others.load_optimizer(name)([g | own for g, own in zip(groups, settings)])

    return make


@pytest.mark.parametrize("name", ["muon", "adamuon", "adago", "normuon"])
def test_an_optimizer_for_matrices_trains_as_by_hand(name):
    hand = trained_by_hand(for_matrices(name), groups=by_shape)
    same_as_by_hand(hand, learner(for_matrices(name), lr=RATES, splitter=by_shape))


def muon(groups, lr):
    """Its second group has a rate of its own, `adamw_lr`."""
    return others.load_optimizer("muon")([g | dict(use_muon=i == 0) for i, g in enumerate(groups)], lr=lr, adamw_lr=3e-3)


def test_groups_with_rates_of_their_own_keep_them(capsys):
    """They were overwritten with the rate of the learner, and nothing said so."""
    hand = trained_by_hand(muon, groups=by_shape)
    learn = learner(muon, splitter=by_shape)
    same_as_by_hand(hand, learn)
    assert "rates of its own, so learn.lr is [0.01, 0.003] now and not 0.01" in capsys.readouterr().out
    rates = []
    with learn.no_logging():
        learn.fit(1, reset_opt=True, cbs=Callback(before_train=lambda self: rates.extend(g["lr"] for g in self.opt.param_groups)))
    assert rates == learn.lr == [0.01, 0.003] and "own" not in capsys.readouterr().out


def lookahead(groups, lr):
    return others.Lookahead(torch.optim.SGD(groups, lr=lr, momentum=0.9), k=3)


def ranger(groups, lr):
    return others.load_optimizer("ranger21")(groups, lr=lr, num_iterations=8)


@pytest.mark.parametrize("make", [lookahead, ranger])
def test_a_function_that_makes_an_optimizer_trains_as_by_hand(make):
    same_as_by_hand(trained_by_hand(make), learner(make))
