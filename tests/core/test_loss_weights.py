"""However a set is cut into batches, windows of accumulation or processes: its losses and weights are those of the whole."""

import json

import pytest
import torch
from torch.nn import functional as F

import cbnb.all as cbnb
from helpers import line_learner
from loss_cases import CASES, CUTS, SHARED, N, X, by_hand, cut, learner, losses, weights

SAME = dict(rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("name", CASES)
def test_the_losses_are_those_of_the_whole(name, size):
    loss, _ = by_hand(CASES[name])
    learn = learner(CASES[name], CUTS[size])
    assert learn.validate() == pytest.approx([loss], **SAME)
    assert losses(learn) == pytest.approx([loss, loss], **SAME)


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("name", CASES)
def test_accumulated_gradients_are_those_of_the_large_batch(name, size):
    _, moved = by_hand(CASES[name])
    learn = learner(CASES[name], CUTS[size], 0.1, cbnb.GradientAccumulation(N))
    learn.fit(1)
    assert weights(learn) == pytest.approx(moved, **SAME)


def test_a_loss_for_each_label_is_validated_as_its_mean():
    x, y = torch.linspace(-1, 1, 20)[:, None], torch.arange(20) % 3
    model = torch.nn.Linear(1, 3)
    dls = cbnb.DataLoaders([(x[:8], y[:8])], [(x[:8], y[:8]), (x[8:], y[8:])], device="cpu")
    learn = cbnb.Learner(dls, model, lambda pred, y: F.cross_entropy(pred, y, reduction="none"))
    assert learn.validate() == pytest.approx([F.cross_entropy(model(x), y).item()], **SAME)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What two processes have found, which are started once"""
    processes = pytest.importorskip("processes")
    pytest.importorskip("accelerate")
    path = tmp_path_factory.mktemp("shared") / "found"
    processes.run_all(2, str(processes.TESTS / "loss_cases.py"), str(path))
    return [json.loads(path.with_name(f"found.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name, size", SHARED)
def test_two_processes_find_the_losses_and_weights_of_the_whole(shared, name, size):
    loss, moved = by_hand(CASES[name])
    sizes = [len(part) for part, *_ in cut((X,), CUTS[size])]
    steps = [sum(sizes[i : i + 2]) for i in range(0, len(sizes), 2)]
    alone = learner(CASES[name], steps, 0.1)
    alone.fit(1)
    for found in (one[f"{name} {size}"] for one in shared):
        assert found["losses"] == pytest.approx([loss, loss], **SAME)
        assert found["accumulated"] == pytest.approx(moved, **SAME)
        assert found["updates"] == pytest.approx(weights(alone), **SAME)


UNREDUCED = [name for name in CASES if name not in ("lambda", "masked", "samples", "sum")]


@pytest.mark.parametrize("name", UNREDUCED)
def test_the_loss_of_an_item_is_that_of_the_item_alone(name):
    case = CASES[name]
    learn = learner(case, 8)
    *_, found = learn.get_preds(with_loss=True)
    net = case.net()
    with torch.no_grad():
        alone = [case.loss_func(net(X[i : i + 1]), *(t[i : i + 1] for t in case.targets)) for i in range(N)]
    assert found.tolist() == pytest.approx(torch.stack(alone).nan_to_num(0.0).tolist(), **SAME)


@pytest.mark.parametrize("name", [name for name in CASES if name != "sum"])
def test_the_mean_loss_of_an_interpretation_is_that_of_validate(name):
    learn = learner(CASES[name], 8)
    interp = learn.interpret()
    assert interp.mean_loss() == pytest.approx(learn.validate()[0], rel=1e-5)


@pytest.mark.parametrize(
    "given, error, words",
    [
        (lambda pred, y: y, ValueError, r"returned a tensor of shape \(8,\): it should return one finite number"),
        (lambda pred, y: -1, ValueError, "returned -1: it should"),
        (lambda pred, y: torch.tensor([-2.5]), ValueError, "returned -2.5: it should"),
        (lambda pred, y: torch.tensor(float("nan")), ValueError, "returned nan: it should"),
        (lambda pred, y: None, TypeError, "returned None: it should"),
        (lambda pred, y: float("nan"), ValueError, "returned nan: it should"),
        (lambda pred, y: "3", TypeError, "returned '3': it should"),
    ],
)
def test_a_weight_that_is_no_number_is_refused_at_the_first_batch(given, error, words):
    learn = line_learner(batch_weight=given)
    with pytest.raises(error, match=words) as raised:
        learn.fit(1)
    assert "training batch 0" in raised.value.__notes__[0]


def test_a_weight_that_is_no_function_is_refused_by_the_learner():
    with pytest.raises(TypeError, match="batch_weight=3 should be a function"):
        line_learner(batch_weight=3)


@pytest.mark.parametrize("weight", [2, 2.5, torch.tensor(3), torch.tensor([3.0])])
def test_a_weight_is_a_number_or_a_tensor_of_one_number(weight):
    learn = line_learner(batch_weight=lambda pred, y: weight)
    same = line_learner()
    learn.fit(1), same.fit(1)
    assert learn.validate() == pytest.approx(same.validate())


def test_a_weight_of_the_prediction_keeps_no_graph():
    grads = []
    learn = line_learner(
        batch_weight=lambda pred, y: pred.exp().sum(),
        cbs=cbnb.Callback(after_batch=lambda cb: grads.append(cb.learn.loss_weight.requires_grad)),
    )
    learn.fit(1)
    assert True not in grads


@pytest.mark.parametrize("observed", [True, False])
def test_a_loss_that_flattens_its_batch_has_one_loss_for_each_item(observed):
    def token_loss(pred, y, reduction="mean"):
        kwargs = dict(reduction=reduction, ignore_index=-100 if observed else 0)
        losses = torch.nn.functional.cross_entropy(pred.flatten(0, 1), y.flatten(), **kwargs)
        return losses if observed else 1 * losses

    x, y = torch.randn(10, 6, 4), torch.randint(1, 4, (10, 6))
    if observed:
        y[3:, 2:] = -100
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="cpu"), torch.nn.Identity(), token_loss)
    *_, found = learn.get_preds(with_loss=True)
    assert found.tolist() == pytest.approx([token_loss(x[i : i + 1], y[i : i + 1]).item() for i in range(10)], **SAME)
    assert learn.interpret().mean_loss() == pytest.approx(learn.validate()[0], **SAME)
