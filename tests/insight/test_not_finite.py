"""What is said of a loss, of predictions and of weights that are nan: where it comes from, and nothing that does not follow."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.insight.evidence import not_finite
from cbnb.insight.findings import FAULTS
from helpers import seed

NAN = float("nan")


def learner(x, y=None, **kwargs):
    seed(0)
    y = torch.arange(len(x)) % 3 if y is None else y
    train, valid = DataLoader(TensorDataset(x, y), 20, shuffle=True), DataLoader(TensorDataset(x.nan_to_num(), y), 60)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    return cbnb.Learner(cbnb.DataLoaders(train, valid, device="cpu"), net, nn.CrossEntropyLoss(), lr=0.01, **kwargs).remove_cb(
        cbnb.ProgressCallback
    )


def items(n=200):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_a_loss_that_is_nan_at_once_is_not_blamed_on_the_rate():
    learn = learner(torch.full((200, 4), NAN))
    with learn.no_logging():
        learn.fit(2)
    for found in (learn.findings, learn.diagnose()):
        assert found.codes == ["R1"] and found[0].fix.startswith("learn.check()")
    found = learn.check()
    assert found[0].where.startswith("inputs of all items") and found[1].where.startswith("weights 0.weight")


def test_a_loss_that_becomes_nan_is():
    learn = learner(
        items(), cbs=cbnb.Callback(before_backward=lambda cb: cb.learn.loss_grad.mul_(NAN) if cb.learn.train_iter == 12 else None)
    )
    with learn.no_logging():
        learn.fit(4)
    for found in (learn.findings, learn.diagnose()):
        assert found.codes == ["R1"] and "a third of the learning rate" in found[0].fix


def test_broken_weights_are_named_and_nothing_else_is_measured():
    learn = learner(items())
    with learn.no_logging():
        learn.fit(1)
    with torch.no_grad():
        learn.model[2].bias[1] = NAN
    found = learn.check()
    assert found.codes == ["D1"] and found[0].where == "weights 2.bias" and "since an earlier fit" in found[0].measured
    assert any("weights are nan or inf" in text for text in found.skipped)
    found = learn.diagnose()
    assert found.codes == ["R1"] and found[0].where == "weights 2.bias" and found.skipped
    assert "R1" not in learn.diagnose(skip="R1").codes


def test_rare_bad_items_are_found_although_the_weights_are_broken_already():
    x = items(2000)
    x[1777] = NAN
    learn = learner(x)
    with learn.no_logging():
        learn.fit(2)
    found = learn.check()
    assert {"items 1777", "inputs of items 1777, columns 0, 1, 2, 3"} & {f.where for f in found} and FAULTS[found[0].code] == "nonfinite"


def test_the_best_weights_are_diagnosed_after_a_loss_that_became_nan():
    spoil = cbnb.Callback(before_backward=lambda cb: cb.learn.loss_grad.mul_(NAN) if cb.learn.train_iter == 22 else None)
    learn = learner(items(), cbs=spoil)
    with learn.no_logging():
        learn.fit(4, keep_best=True)
    assert "R1" not in learn.diagnose().codes


def test_a_large_weight_and_a_frozen_mask_of_inf_are_finite():
    learn = learner(items())
    with torch.no_grad():
        learn.model[0].weight[0, 0] = 3e20
    learn.model.register_parameter("mask", nn.Parameter(torch.full((2, 2), -torch.inf), requires_grad=False))
    assert not not_finite(learn.model)
    learn.model.mask.requires_grad_()
    assert not_finite(learn.model) == ["mask"]


def test_weights_broken_later_are_not_blamed_on_an_earlier_fit():
    learn = learner(items())
    with learn.no_logging():
        learn.fit(3)
        learn.fit(3)
    with torch.no_grad():
        learn.model[0].weight[0, 0] = NAN
    assert learn.diagnose().codes == ["R1"] and "R1" not in learn.diagnose(run=0).codes
