"""Predictions, decisions and the overview of errors, by the kind of the loss, whether it is a module, a function or a partial."""

import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cbnb.all as cbnb
from helpers import seed

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
CLASS = X[:, :3].argmax(1)
IS_POSITIVE = (X[:, :1] > 0).float()


class Smooth(nn.CrossEntropyLoss):
    """A subclass, as people write it."""

    def forward(self, pred, y):
        return 0.9 * super().forward(pred, y) - 0.1 * pred.log_softmax(1).mean()


def softmax(scores):
    return scores.exp() / scores.exp().sum(1, keepdim=True)


def largest(probs):
    return torch.tensor([max(range(3), key=row.__getitem__) for row in probs.tolist()])


def above_half(probs):
    return probs > 0.5


def sigmoid(scores):
    return 1 / (1 + (-scores).exp())


def unchanged(values):
    return values


CASES = {
    "module": (nn.CrossEntropyLoss(), CLASS, softmax, largest, "classes"),
    "function": (F.cross_entropy, CLASS, softmax, largest, "classes"),
    "partial": (functools.partial(F.cross_entropy, label_smoothing=0.1), CLASS, softmax, largest, "classes"),
    "partial of a partial": (
        functools.partial(functools.partial(F.cross_entropy, label_smoothing=0.1), ignore_index=9),
        CLASS,
        softmax,
        largest,
        "classes",
    ),
    "subclass": (Smooth(), CLASS, softmax, largest, "classes"),
    "log-probabilities": (nn.NLLLoss(), CLASS, torch.exp, largest, "classes"),
    "partial of nll_loss": (functools.partial(F.nll_loss, ignore_index=9), CLASS, torch.exp, largest, "classes"),
    "logits": (nn.BCEWithLogitsLoss(), IS_POSITIVE, sigmoid, above_half, "classes"),
    "partial with pos_weight": (
        functools.partial(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor(2.0)),
        IS_POSITIVE,
        sigmoid,
        above_half,
        "classes",
    ),
    "probabilities": (nn.BCELoss(), IS_POSITIVE, unchanged, above_half, "classes"),
    "numbers": (functools.partial(F.smooth_l1_loss, beta=0.5), X[:, :1], unchanged, unchanged, "values"),
}


@pytest.mark.parametrize("name", CASES)
def test_predictions_and_decisions_are_those_of_a_loop(name):
    loss_func, y, act, decide, task = CASES[name]
    seed(0)
    model = nn.Sequential(nn.Linear(4, 1 if y.ndim > 1 else 3))
    if "log-prob" in name or "nll" in name:
        model.append(nn.LogSoftmax(1))
    if name == "probabilities":
        model.append(nn.Sigmoid())
    data = torch.utils.data.TensorDataset(X, y)
    learn = cbnb.Learner(cbnb.DataLoaders.from_dsets(data, data, bs=16), model, loss_func, lr=1e-2)
    with learn.no_logging():
        learn.fit(2)
    with torch.no_grad():
        want = act(model(X))
    preds, targets, decisions = learn.get_preds(with_decoded=True)
    assert torch.allclose(preds, want, atol=1e-6) and torch.equal(targets, y)
    assert torch.equal(decisions, decide(want))
    decision, prob = learn.predict(X[7])
    assert torch.allclose(decision.double(), decide(want)[7].double(), atol=1e-6) and torch.allclose(prob, want[7], atol=1e-6)
    found = learn.interpret()
    assert found.task == task
    if task == "classes":
        right = decide(want) if y.ndim == 1 else decide(want).long().flatten()
        wrong = {(int(a), int(b)) for a, b in zip(y.flatten().long(), right) if a != b}
        assert {(int(a), int(b)) for a, b, _ in found.most_confused()} == wrong


@pytest.mark.parametrize("loss_func", [CASES["partial"][0], lambda pred, y: F.cross_entropy(pred, y)], ids=["partial", "lambda"])
def test_the_advice_on_a_second_softmax_says_what_get_preds_does(loss_func):
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    data = torch.utils.data.TensorDataset(X, CLASS)
    learn = cbnb.Learner(cbnb.DataLoaders.from_dsets(data, data, bs=16), model, loss_func, lr=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        [twice] = [f for f in learn.check(fast=True) if f.code == "L2"]
    learn.model[1] = nn.Identity()
    sums = learn.get_preds()[0].sum(1)
    assert ("get_preds applies a softmax" in twice.fix) == bool((sums - 1).abs().max() < 1e-5)


def test_a_loss_of_the_prediction_with_an_option_trains():
    def spread(out, temperature=0.5):
        return (out.logsumexp(1) / temperature).square().mean()

    batches = [(x,) for x in X.split(16)]
    seed(0)
    hand = nn.Linear(4, 3)
    seed(0)
    learn = cbnb.Learner(
        cbnb.DataLoaders(batches, batches, n_inp=1, device="cpu"), nn.Linear(4, 3), spread, opt_func=torch.optim.SGD, lr=0.1
    )
    with learn.no_logging():
        learn.fit(2)
    opt = torch.optim.SGD(hand.parameters(), lr=0.1)
    for _ in range(2):
        for (x,) in batches:
            opt.zero_grad()
            spread(hand(x)).backward()
            opt.step()
    for a, b in zip(hand.parameters(), learn.model.parameters()):
        assert torch.allclose(a, b, atol=1e-7)
    with torch.no_grad():
        total = sum(spread(hand(x)).item() * len(x) for (x,) in batches) / len(X)
    assert learn.validate()[0] == pytest.approx(total, rel=1e-6)


def test_a_metric_that_is_no_mean_is_named_once():
    def rmse(pred, y):
        return (pred - y).square().mean().sqrt()

    def share(pred, y):
        return ((pred > 0) == (y > 0)).float().mean()

    data = torch.utils.data.TensorDataset(X, IS_POSITIVE)
    learn = cbnb.Learner(
        cbnb.DataLoaders.from_dsets(data, data, bs=16),
        nn.Linear(4, 1),
        nn.MSELoss(),
        metrics=[rmse, share, cbnb.AccumMetric(rmse, name="exact")],
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with learn.no_logging():
            learn.fit(2)
        _, _, right, exact = learn.validate()
    assert [str(w.message).split(":")[0] for w in seen] == ["metric 'rmse' is not a mean over items"]
    with torch.no_grad():
        pred = learn.model(X)
        assert exact == pytest.approx(rmse(pred, IS_POSITIVE).item(), rel=1e-6)
        assert right == pytest.approx(share(pred, IS_POSITIVE).item(), rel=1e-6)


def test_comparing_halves_leaves_the_random_state():
    def noisy(pred, y):
        return (pred - y + torch.rand(len(y), 1)).abs().mean()

    def fitted(metric):
        seed(0)
        data = torch.utils.data.TensorDataset(X, IS_POSITIVE)
        dls = cbnb.DataLoaders.from_dsets(data, data, bs=16)
        learn = cbnb.Learner(dls, nn.Sequential(nn.Linear(4, 1), nn.Dropout()), nn.MSELoss(), metrics=metric)
        with learn.no_logging(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learn.fit(2)
        return learn.recorder.values, torch.rand(3).tolist()

    assert fitted(noisy) == fitted(cbnb.AvgMetric(noisy, batch_weight=lambda pred, y: len(y)))


def test_a_loss_of_ones_own_says_that_decisions_are_outputs():
    """`predict` returned logits as the decision, silently, where `interpret` takes the largest."""

    def own(pred, y):
        return F.cross_entropy(pred, y)

    data = torch.utils.data.TensorDataset(X, CLASS)
    learn = cbnb.Learner(cbnb.DataLoaders.from_dsets(data, data, bs=16), nn.Linear(4, 3), own)
    for ask in (lambda: learn.predict(X[0]), lambda: learn.get_preds(with_decoded=True)):
        with pytest.warns(UserWarning, match="own does not say how to decode outputs, so the decoded predictions are the outputs"):
            ask()
    own.activation, own.decodes = lambda p: p.softmax(1), lambda p: p.argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decision, probs = learn.predict(X[0])
        assert decision == learn.model(X[:1]).argmax() and probs.sum().item() == pytest.approx(1)
        learn.get_preds(act=lambda p: p, with_decoded=True)


def shares(batches, dtype=torch.float32):
    """The value of a metric of one's own, a mean over labels that are not ignored, by `AvgMetric`; and by hand over all labels."""

    def share(pred, y):
        return (pred == y)[y != -100].to(dtype).mean()

    metric = cbnb.AvgMetric(share)
    for pred, y in batches:
        scores = F.one_hot(pred.clamp(min=0), 4).float()
        learn = SimpleNamespace(pred=scores, yb=(y,), xb=(), loss_func=nn.CrossEntropyLoss(), eval_step=None)
        metric.func = lambda p, t: share(p.argmax(-1), t)
        metric.accumulate(learn)
    hits = torch.cat([(pred == y)[y != -100].float() for pred, y in batches])
    return float(metric.value), hits.mean().item()


@pytest.mark.parametrize("last", ["all ignored", "one label", "an ignored half"])
def test_a_metric_counts_labels_until_a_batch_shows_more(last):
    g = torch.Generator().manual_seed(0)
    full = [(torch.randint(0, 4, (8, 5), generator=g), torch.randint(0, 4, (8, 5), generator=g)) for _ in range(2)]
    pred, y = torch.randint(0, 4, (8, 5), generator=g), torch.full((8, 5), -100)
    if last == "one label":
        y[0, 0] = pred[0, 0]
    if last == "an ignored half":
        y[:4] = pred[:4]
    found, by_hand = shares([*full, (pred, y)])
    assert found == pytest.approx(by_hand, rel=1e-5)


def test_a_mean_in_bfloat16_is_a_mean():
    def mae(pred, y):
        return (pred - y).abs().mean()

    for i in range(30):
        g = torch.Generator().manual_seed(i)
        pred, y = (torch.randn(64, 1, generator=g).bfloat16() for _ in range(2))
        metric = cbnb.AvgMetric(mae)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            metric.accumulate(SimpleNamespace(pred=pred, yb=(y,), xb=(), loss_func=nn.MSELoss(), eval_step=None))


@pytest.mark.parametrize(
    "call", [lambda learn: learn.predict(X[0]), lambda learn: learn.get_preds(dl=[(X,)])], ids=["predict", "get_preds"]
)
def test_a_loss_whose_target_is_optional_is_not_called_without_one(call):
    data = torch.utils.data.TensorDataset(X, CLASS)
    learn = cbnb.Learner(cbnb.DataLoaders.from_dsets(data, data, bs=16), nn.Linear(4, 3), lambda p, y=None: F.cross_entropy(p, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(call(learn)) >= 2


def test_a_loss_of_scores_in_a_subclass_of_probabilities_gives_scores():
    class OfScores(nn.NLLLoss):
        def forward(self, pred, y):
            return super().forward(pred.log_softmax(1), y)

    data = torch.utils.data.TensorDataset(X, CLASS)
    model = nn.Linear(4, 3)
    learn = cbnb.Learner(cbnb.DataLoaders.from_dsets(data, data, bs=16), model, OfScores())
    assert torch.allclose(learn.get_preds()[0], model(X), atol=1e-6)
