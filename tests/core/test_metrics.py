"""Metrics of all kinds, in training and validation, over chosen outputs, and over several processes."""

import copy
import functools
import inspect
import math
import os
import subprocess
import sys
import warnings
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics
import torch
import torchmetrics
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import MeanAbsoluteError, MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC, MulticlassF1Score

import cbnb
from cbnb import metrics
from cbnb.basics import arguments, processes
from cbnb.basics.buffers import Smoother
from cbnb.basics.metric_functions import name_of, noting, one_number, view_for_metric
from cbnb.basics.text import distinct
from cbnb.callbacks import accum_metric, more_metrics
from cbnb.callbacks.more_metrics import MSE, Accuracy, AvgLoss, AvgSmoothLoss, ErrorMetric, UpdateMetric
from cbnb.callbacks.sklearn_metrics import takes_of
from cbnb.metrics import RunningMean, as_metrics
from cbnb.step import Step
from helpers import line_learner, seed
from processes import python

SIZES = (16, 16, 5)


pytestmark = pytest.mark.filterwarnings("ignore:the learning rate is 0")  # of `classifier`, whose phases see the same weights


def mae(pred, y):
    return (pred - y).abs().mean()


def ragged(classes: int = 3, sizes=SIZES) -> list:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(n, 4, generator=g), torch.randint(0, classes, (n,), generator=g)) for n in sizes]


def whole(batches: list) -> tuple:
    return tuple(torch.cat(column) for column in zip(*batches))


def classifier(metrics, classes: int = 3, **kwargs) -> cbnb.Learner:
    seed()
    dls, model = cbnb.DataLoaders(ragged(classes), ragged(classes), device="cpu"), nn.Linear(4, classes)
    learn = cbnb.Learner(dls, model, nn.CrossEntropyLoss(), torch.optim.SGD, lr=0.0, metrics=metrics, **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


class Own(cbnb.Metric):
    """Largest error; its list is emptied, not replaced."""

    def __init__(self):
        self.errors = []

    def reset(self):
        self.errors.clear()

    def accumulate(self, learn):
        self.errors.append((learn.pred - learn.y).abs().max().detach())

    @property
    def value(self):
        return torch.stack(self.errors).max() if self.errors else None


def test_every_kind_equals_one_pass_in_training_and_validation():
    """A learning rate of 0, so that both phases see the same weights."""
    metrics = [
        cbnb.accuracy,
        Accuracy(),
        cbnb.SklearnMetric(f1_score, average="macro"),
        cbnb.SklearnMetric("roc_auc_score", "probabilities", multi_class="ovr"),
        MulticlassF1Score(3),
        MetricCollection({"f1": MulticlassF1Score(3), "auc": MulticlassAUROC(3)}, prefix="t_"),
        AvgLoss(),
    ]
    learn = classifier(metrics, cbs=cbnb.Recorder(train_metrics=True))
    learn.fit(2)
    x, y = whole(ragged())
    with torch.no_grad():
        pred = learn.model(x)
    acc, f1 = (pred.argmax(1) == y).float().mean().item(), f1_score(y, pred.argmax(1), average="macro")
    auc = roc_auc_score(y, pred.softmax(1), multi_class="ovr")
    want = dict(
        accuracy=acc, accuracy_2=acc, f1_score=f1, roc_auc_score=auc, multiclass_f1_score=f1, t_auc=auc, t_f1=f1,
        loss=nn.functional.cross_entropy(pred, y).item(),
    )  # fmt: skip
    for row in learn.recorder.history[0].epochs:
        for name, value in want.items():
            for phase in ("train", "valid"):
                column = f"{phase}_{name}" if name != "loss" else f"{phase}_loss_2"
                column = f"{phase}_{name[:-2]}_2" if name == "accuracy_2" else column
                assert row[column] == pytest.approx(value, abs=1e-6), column
    columns = [m.name for m in learn.metrics]
    assert columns[5:7] == ["t_auc", "t_f1"]


def test_the_two_phases_share_nothing():
    own = Own()
    learn = line_learner(metrics=[own, MeanAbsoluteError()], cbs=cbnb.Recorder(train_metrics=True))
    learn.fit(1)
    row = learn.recorder.history[0].epochs[0]
    train, valid = row["train_own"], row["valid_own"]
    assert train == 5 and valid == pytest.approx(3.2, abs=1e-5)  # of 2x+3 against 0, then two steps of a fifth
    assert row["train_mean_absolute_error"] > row["valid_mean_absolute_error"]


def test_device_is_set_once_a_phase_and_compute_called_once(monkeypatch):
    calls = []
    metric = MulticlassF1Score(3)
    for name in ("to", "compute"):
        old = getattr(metric, name)
        monkeypatch.setattr(metric, name, lambda *a, name=name, old=old: calls.append(name) or old(*a))
    classifier(metric, sanity_check=False).fit(2)
    assert calls == ["to", "compute"] * 2


def test_accumulated_training_metric_is_computed_once_an_epoch():
    calls = []

    def count(pred, targ):
        calls.append(len(pred))
        return 1.0

    metric = cbnb.AccumMetric(count, dim_argmax=1)
    classifier(metric, cbs=cbnb.Recorder(train_metrics=True), sanity_check=False).fit(2)
    assert calls == [37] * 4  # training, validation, and again


def test_a_function_of_scikit_learn_gets_the_targets_first():
    """The prediction came first unless you said `invert_arg=True`: R2 was that of another question."""
    g = torch.Generator().manual_seed(0)
    pred, y = torch.randn(2, 40, generator=g)
    want = sklearn.metrics.r2_score(y, pred)
    assert want != pytest.approx(sklearn.metrics.r2_score(pred, y))
    for func in (sklearn.metrics.r2_score, functools.partial(sklearn.metrics.r2_score, force_finite=True)):
        assert cbnb.AccumMetric(func, to_np=True)(pred, y) == pytest.approx(want)
    swapped = cbnb.AccumMetric(sklearn.metrics.r2_score, to_np=True, invert_arg=False)
    assert swapped(pred, y) == pytest.approx(sklearn.metrics.r2_score(pred, y))
    assert cbnb.AccumMetric(lambda p, t: (p - t).sum())(pred, y) == pytest.approx((pred - y).sum().item())


def test_several_values_are_refused_with_a_hint():
    with pytest.raises(TypeError, match="multiclass_f1_score.*shape \\(3,\\).*average='macro'"):
        classifier(MulticlassF1Score(3, average=None)).fit(1)


# Chosen outputs


Pair = namedtuple("Pair", "first second")


@dataclass
class Heads:
    first: torch.Tensor
    second: torch.Tensor


def outputs_of(pred, *yb) -> SimpleNamespace:
    first = pred if isinstance(pred, (tuple, list)) else (pred,)
    return SimpleNamespace(pred=pred, yb=yb, xb=(yb[0],), outputs=(*first, *yb), loss=None, iter=0)


def value(metric, learn) -> float:
    metric.reset()
    metric.accumulate(view_for_metric(metric, learn))
    return float(metric.value)


ONE, TWO, Y = torch.full((4, 1), 1.0), torch.full((4, 1), 2.0), torch.full((4, 1), 7.0)


@pytest.mark.parametrize("kind", [mae, cbnb.MAE(), MeanAbsoluteError(), cbnb.SklearnMetric("mean_absolute_error", "values"), Own()])
def test_chosen_outputs_work_for_all_kinds(kind):
    """Two outputs and a target; the first of what is chosen is compared with the second."""
    both = outputs_of((ONE, TWO), Y)
    named = [outputs_of(p, Y) for p in (Pair(ONE, TWO), Heads(ONE, TWO), dict(first=ONE, second=TWO))]
    assert value(cbnb.metric_on(kind, 0, 2), both) == 6 and value(cbnb.metric_on(kind, 1, 2), both) == 5
    assert value(cbnb.metric_on(kind, 1, -1), both) == 5 and value(cbnb.metric_on(kind, 0, 1), both) == 1
    assert all(value(cbnb.metric_on(kind, "second", -1), learn) == 5 for learn in named)
    assert all(value(cbnb.metric_on(kind, (0, "first"), 1), learn) == 6 for learn in named[1:])
    two = [cbnb.metric_on(kind, 0, 2, name="a"), cbnb.metric_on(kind, 1, 2, name="b")]  # of the same object
    for m in two:
        m.reset()
    for _ in range(2):
        for m in two:
            m.accumulate(view_for_metric(m, both))
    assert [(m.name, float(m.value)) for m in two] == [("a", 6), ("b", 5)]
    if isinstance(kind, cbnb.Metric):
        assert not kind.chosen_outputs and value(copy.copy(kind).set_indexes([0, 2]), both) == 6


def test_indexes_over_a_learner_with_two_outputs():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x + self.w, x + 2

    x = torch.arange(5.0)[:, None]
    batches = [(x[:3], x[:3], x[:3] * 2), (x[3:], x[3:], x[3:] * 2)]
    dls = cbnb.DataLoaders(batches, batches, n_inp=1, device="cpu")
    metrics = [cbnb.MAE().set_indexes([1, 2]), cbnb.metric_on(cbnb.MAE(), 1, 3, name="second"), cbnb.metric_on(mae, 0, 3)]
    learn = cbnb.Learner(dls, TwoHeads(), lambda p, a, b: p[0].sum() * 0, torch.optim.SGD, metrics=metrics)
    learn.remove_cb(cbnb.ProgressCallback)
    assert learn.validate()[1:] == pytest.approx([2, (2 + 1 + 0 + 1 + 2) / 5, (0 + 1 + 2 + 3 + 4) / 5])
    learn.metrics = cbnb.metric_on(mae, 0, 4)
    with pytest.raises(IndexError, match="'mae' reads output 4, but learn.outputs has 0 .tensor 3x1., 1 .tensor 3x1., 2"):
        learn.validate()
    learn.metrics = cbnb.MAE()
    with pytest.raises(TypeError, match="compares one prediction and one target.*on\\(metric, 0, -1\\)"):
        learn.validate()


WRONG = {
    "a name that is not there": (("third", 1), KeyError, "'mae' reads 'third', but learn.outputs has 0 .dict with 'first', 'second'., 1"),
    "a part that is not there": (((0, "third"), 1), KeyError, "reads 'third' of output 0, but learn.outputs has 0 .dict with 'first'"),
    "a part of a tensor": (((1, "first"), 1), KeyError, "reads 'first' of output 1"),
    "a name that is there twice": (("first", "first"), KeyError, r"2 outputs have this name.*\(0, 'first'\)"),
    "a fraction": ((0.5, 1), TypeError, "chosen by 0.5"),
    "a truth value": ((True, 1), TypeError, "chosen by True"),
    "a path without a number": ((("first", 0), 1), TypeError, "chosen by"),
    "nothing": ((), TypeError, "needs the outputs to compare"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_choices_say_what_there_is(case):
    which, error, message = WRONG[case]
    target = dict(first=Y) if "twice" in case else Y
    with pytest.raises(error, match=message):
        value(cbnb.metric_on(mae, *which), outputs_of(dict(first=ONE, second=TWO), target))
    for bad in ("01", 0, None):
        with pytest.raises(TypeError, match="should be a list"):
            cbnb.MAE().set_indexes(bad)


def test_a_loss_among_the_outputs():
    """An evaluation step of one's own may return (loss, pred, y)."""
    learn = outputs_of((torch.tensor(3.0), ONE), Y)
    assert value(AvgLoss().set_indexes([0]), learn) == 3
    with pytest.raises(ValueError, match="the step computes no loss"):
        value(AvgLoss(), learn)


def test_dict_targets_reach_functions():
    def label_mae(pred, y):
        return mae(pred, y["label"])

    metric = cbnb.AvgMetric(label_mae)
    for n, size in ((3, 1.0), (1, 5.0)):
        batch = outputs_of(torch.zeros(n), {"name": ["a"] * n, "label": torch.full((n,), size)})
        metric.accumulate(batch)
    assert metric.value == 2


WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}


class Waits(TorchDispatchMode):
    """Counts operations for which a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func.overloadpacket.__name__ in WAITING
        return func(*args, **(kwargs or {}))


def test_no_batch_waits_for_the_device():
    metrics = as_metrics([
        cbnb.accuracy, Accuracy(), AvgLoss(), cbnb.SklearnMetric(f1_score), cbnb.AccumMetric(f1_score, activation="softmax"),
        cbnb.SklearnMetric(roc_auc_score, "probabilities"), cbnb.metric_on(cbnb.accuracy, 0, 1), MulticlassF1Score(3, validate_args=False),
    ])  # fmt: skip
    for m in metrics:
        m.reset()
        with Waits() as waits:
            for x, y in ragged():
                learn = outputs_of(x[:, :3], y)
                learn.loss = x.mean()
                m.accumulate(view_for_metric(m, learn))
        assert waits.n == 0, m
    with Waits() as waits:
        x.sum().item()
    assert waits.n == 1


# Constructors


def test_averages_are_explicit():
    learn = outputs_of(torch.zeros(2, 2), torch.ones(2, 2))
    assert value(cbnb.MAE(), learn) == value(MSE(), learn) == 1
    assert value(cbnb.MAE("rows"), learn) == value(MSE(average="rows"), learn) == 2
    with pytest.raises(ValueError, match="average='batch' should be 'elements' or 'rows'"):
        cbnb.MAE("batch")
    with pytest.raises(ValueError, match="MAE compares element by element.*\\(4, 1\\).*\\(4,\\)"):
        value(cbnb.MAE(), outputs_of(ONE, Y[:, 0]))


def test_a_missing_scikit_learn_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ImportError, match=r"f1_score needs scikit-learn.*cbnb\[metrics\]"):
        cbnb.SklearnMetric("f1_score")


def test_nothing_to_say_without_batches():
    for m in as_metrics([mae, cbnb.MAE(), cbnb.SklearnMetric(f1_score), BinaryAUROC(), Accuracy(), AvgLoss()]):
        m.reset()
        assert m.value is None, m


def test_scikit_learn_gets_what_it_takes():
    """An area under a curve of labels is a number, too, and wrong."""
    g = torch.Generator().manual_seed(0)
    two, y = torch.randn(40, 2, generator=g), torch.randint(0, 2, (40,), generator=g)
    one, probs = two[:, 1] - two[:, 0], two.softmax(1)[:, 1]
    for name in ("roc_auc_score", "average_precision_score", "brier_score_loss", "log_loss"):
        want = pytest.approx(getattr(sklearn.metrics, name)(y, probs), abs=1e-6)
        for pred, targ in ((two, y), (one, y), (one[:, None], y), (one[:, None], y[:, None].float())):
            assert cbnb.SklearnMetric(name)(pred, targ) == want, name
        assert cbnb.SklearnMetric(name)(two.half(), y) == pytest.approx(want.expected, abs=1e-3), name
    for name in ("r2_score", "mean_squared_error", "max_error"):
        assert cbnb.SklearnMetric(name)(one, probs) == pytest.approx(getattr(sklearn.metrics, name)(probs, one)), name
    for name in ("f1_score", "cohen_kappa_score", "balanced_accuracy_score"):
        assert cbnb.SklearnMetric(name)(two, y) == pytest.approx(getattr(sklearn.metrics, name)(y, two.argmax(1))), name
    for name in sklearn.metrics.__all__:
        if inspect.isfunction(f := getattr(sklearn.metrics, name)):
            assert takes_of(f) in ("labels", "probabilities", "values")
    words, tags = torch.randn(5, 7, 3, generator=g), torch.randint(0, 3, (5, 7), generator=g)
    want = (words.argmax(-1) == tags).float().mean().item()
    assert cbnb.SklearnMetric("accuracy_score", axis=-1)(words, tags) == pytest.approx(want)
    with pytest.raises(ValueError, match="only works with takes='labels'"):
        cbnb.SklearnMetric("roc_auc_score", thresh=0.5)


def test_a_function_of_scikit_learn_is_computed_over_all_items():
    """It was called as f(pred, y) on each batch and averaged: -2.8 in place of 0.49."""
    x = torch.randn(37, 4)
    t = x.sum(1, keepdim=True) + torch.randn(37, 1)
    batches = list(zip(x.split(16), t.split(16)))
    r2 = sklearn.metrics.r2_score
    learn = line_learner(
        dls=cbnb.DataLoaders(batches, batches, device="cpu"), model=nn.Linear(4, 1), metrics=[r2, cbnb.metric_on(r2, 0, 1)]
    )
    learn.fit(2)
    want = pytest.approx(r2(t, learn.model(x).detach()))
    assert learn.recorder.values[-1][2:] == [want, want] and learn.validate()[1:] == [want, want]
    assert learn.recorder.metric_names[3:5] == ["r2_score", "r2_score_2"]


def test_a_partial_of_scikit_learn_is_computed_over_all_items():
    learn = classifier(functools.partial(f1_score, average="macro"))
    x, y = whole(ragged())
    assert learn.validate()[1] == pytest.approx(f1_score(y, learn.model(x).argmax(1), average="macro"))


def test_what_scikit_learn_makes_of_its_functions_is_refused():
    """A scorer is called with an estimator; `AvgMetric` would give the targets second."""
    with pytest.raises(TypeError, match="which takes an estimator"):
        classifier(sklearn.metrics.make_scorer(f1_score, average="macro"))
    with pytest.raises(TypeError, match=r"use SklearnMetric\(f1_score, average='macro'\)"):
        cbnb.AvgMetric(functools.partial(f1_score, average="macro"))
    with pytest.raises(TypeError, match=r"use SklearnMetric\(fbeta_score, beta=...\)"):
        cbnb.AvgMetric(sklearn.metrics.fbeta_score)


def test_a_function_of_ones_own_that_wraps_one_of_scikit_learn_is_ones_own():
    """`functools.wraps` gives it the module of what is inside."""

    @functools.wraps(f1_score)
    def f1(pred, y):
        return f1_score(y, pred.argmax(1), average="macro")

    [metric] = as_metrics(f1)
    assert type(metric) is cbnb.AvgMetric and metric.name == "f1_score"


def test_the_mean_of_nothing_counts_for_nothing():
    """A function metric of an empty batch is nan, and made the average nan."""
    mean = RunningMean()
    mean.add(torch.tensor(math.nan), 0)
    assert mean.value is None
    mean.add(2.0, 3), mean.add(math.nan, 0)
    assert mean.value == mean.everywhere == 2
    mean.add(math.nan, 1)
    assert math.isnan(mean.value)


@pytest.mark.parametrize("make", [cbnb.SklearnMetric, cbnb.AccumMetric])
def test_a_misspelt_argument_is_found_at_once(make):
    with pytest.raises(TypeError, match="f1_score has no argument 'averag': did you mean 'average'"):
        make(f1_score, averag="macro")


def test_errors_of_small_numbers_are_not_small():
    """Bytes do not wrap around, and a sum of half precision does not overflow."""

    def bytes_of(v):
        return torch.tensor([v], dtype=torch.uint8)

    assert value(cbnb.MAE(), outputs_of(bytes_of(5), bytes_of(7))) == 2
    many = torch.ones(70_000).half()
    assert value(MSE(), outputs_of(many, 0 * many)) == 1


def test_a_copy_has_a_mean_of_its_own():
    class Held(cbnb.Metric):
        def __init__(self):
            self.mean = RunningMean()

        def reset(self):
            self.mean.reset()

    held = Held()
    held.mean.add(1.0, 2)
    copy.copy(held).reset()
    assert held.mean.value == 1


def test_targets_have_the_names_that_the_loaders_were_told():
    x = torch.arange(6.0)[:, None]
    batches = [dict(x=a, near=a + 1, far=a + 3) for a in x.split(4)]
    dls = cbnb.DataLoaders(batches, batches, targets=("near", "far"), device="cpu")
    metrics = [cbnb.metric_on(cbnb.MAE(), 0, "near"), cbnb.metric_on(mae, 0, "far", name="far")]

    class Same(nn.Module):
        def forward(self, x):
            return x

    learn = cbnb.Learner(dls, Same(), lambda p, near, far: mae(p, near), metrics=metrics).remove_cb(cbnb.ProgressCallback)
    assert learn.validate()[1:] == [1, 3]


def test_a_function_that_fails_says_what_it_was_given():
    learn = classifier(lambda pred, y: pred.logits)
    with pytest.raises(Exception) as caught:
        learn.validate()
    assert "metric '<lambda>' was given tensor 16x3, tensor 16" in caught.value.__notes__


# Several processes

WORKER = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score
import cbnb
from cbnb.basics.processes import gather_over_processes, sum_over_processes
from test_metrics import classifier, metrics_for_processes, part

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
assert sum_over_processes(rank, 1) == [1, 2] and gather_over_processes("ab"[rank]) == ["a", "b"]
for mode in ("validate", "one sees nothing", "train"):
    learn = classifier(metrics_for_processes(), cbs=cbnb.Recorder(train_metrics=mode == "train"))
    mine = part(rank, mode)
    if mode == "train":
        learn.dls = cbnb.DataLoaders(mine, mine, device="cpu")
        learn.fit(1)
        row = learn.recorder.history[0].epochs[0]
        found = [row["valid_loss"]] + [row[name] for name in row if name.startswith("train_") and name != "train_loss"]
    else:
        found = learn.validate(dl=mine)
    print(f"found: {mode}:", *found)
if rank == 0:                             # an error in one process must not wait for the other
    learn.add_cb(cbnb.Callback(after_loss=lambda self: 1/0))
    try: learn.fit(1)
    except ZeroDivisionError: print("came out")
dist.barrier()
dist.destroy_process_group()
"""


def metrics_for_processes() -> list:
    return [
        cbnb.accuracy,
        Accuracy(),
        cbnb.SklearnMetric(f1_score, average="macro"),
        cbnb.SklearnMetric(roc_auc_score, "probabilities", multi_class="ovr"),
        AvgLoss(),
        MulticlassF1Score(3),
        MulticlassAUROC(3),
    ]


def part(rank: int, mode: str) -> list:
    """Two batches and one; or all and nothing."""
    batches = ragged()
    if mode == "one sees nothing":
        return [] if rank else batches
    return batches[2:] if rank else batches[:2]


def said_by(n: int, program: str, *args: str) -> list[str]:
    """What `n` processes of a program print; their numbers are its first arguments."""
    here = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [here.parents[1], here.parent, here])), "OMP_NUM_THREADS": "1"}
    command = [*python(), "-c", program]
    started = [subprocess.Popen([*command, str(rank), *args], env=env, text=True, stdout=-1, stderr=-1) for rank in range(n)]
    try:
        said = [p.communicate(timeout=120) for p in started]
    finally:
        for p in started:
            p.kill()
    for p, (_, err) in zip(started, said):
        assert p.returncode == 0, err
    return [out for out, _ in said]


OWN_WORKER = """
import sys
import torch, torch.distributed as dist
import cbnb
from test_metrics import Merging, Share, classifier, ragged

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=3)
for n_seeing in (2, 3):
    mine = ragged()[rank : rank + 1] if rank < n_seeing else []
    if rank == n_seeing - 1: mine = ragged()[rank:]
    print(f"found: {n_seeing}:", *classifier(Merging()).validate(dl=mine))
    try: classifier(Share()).validate(dl=mine)
    except TypeError as e: print("refused", e)
dist.barrier()
dist.destroy_process_group()
"""


class Share:
    """Somebody's own metric, which knows nothing of other processes."""

    def __init__(self):
        self.hits = []

    def reset(self):
        self.hits = []

    def update(self, pred, y):
        self.hits.append(pred.argmax(1) == y)

    def compute(self):
        return torch.cat(self.hits).float().mean()


class Merging(Share):
    def merge_state(self, other):
        self.hits += other.hits


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> list[str]:
    """What they print; started once, for most of the time is their start."""
    return said_by(2, WORKER, str(tmp_path_factory.mktemp("two") / "meet"))


@pytest.fixture(scope="module")
def three_processes(tmp_path_factory) -> list[str]:
    return said_by(3, OWN_WORKER, str(tmp_path_factory.mktemp("three") / "meet"))


def found_in(out: str, case: object) -> list[float]:
    [line] = [line for line in out.splitlines() if line.startswith(f"found: {case}: ")]
    return list(map(float, line.rpartition(": ")[2].split()))


@pytest.mark.parametrize("n_seeing", [2, 3])
def test_metrics_of_ones_own_over_three_processes(n_seeing, three_processes):
    """One that can be merged is exact; another is refused in all processes, and none waits for ever."""
    want = classifier(Merging()).validate(dl=ragged())
    for out in three_processes:
        assert found_in(out, n_seeing) == pytest.approx(want, abs=1e-6)
        refused = [line for line in out.splitlines() if line.startswith("refused metric 'share'")]
        assert len(refused) == 2 and all("merge_state" in line for line in refused)


@pytest.mark.parametrize("mode", ["validate", "one sees nothing", "train"])
def test_two_processes_agree_with_one_pass(mode, two_processes):
    want = classifier(metrics_for_processes()).validate(dl=ragged())
    for out in two_processes:
        assert found_in(out, mode) == pytest.approx(want, abs=1e-6)


def test_an_error_in_one_process_does_not_wait_for_the_other(two_processes):
    assert "came out" in two_processes[0]


def test_a_function_may_be_appended_to_the_metrics():
    learn = classifier([cbnb.accuracy])
    learn.metrics.append(cbnb.error_rate)
    learn.fit(1)
    assert learn.recorder.metric_names[-3:] == ["accuracy", "error_rate", "time"]
    learn.metrics.append(lambda pred, y: 0.25)
    assert learn.validate()[-1] == 0.25


class Emptied:
    """No subclass of ours, and `reset` empties its list in place."""

    name = "emptied"

    def __init__(self):
        self.seen = []

    def reset(self):
        self.seen.clear()

    def accumulate(self, learn):
        self.seen.append(len(learn.y))

    @property
    def value(self):
        return sum(self.seen)


def test_a_run_inside_leaves_the_list_of_somebodys_own_metric_alone():
    learn = classifier(Emptied(), cbs=cbnb.Recorder(train_metrics=True))
    inside = cbnb.Callback(after_batch=lambda self: learn.validate())
    inside.run_in = ("fit",)
    learn.add_cb(inside)
    learn.fit(1)
    row = learn.recorder.history[0].epochs[0]
    assert row["train_emptied"] == row["valid_emptied"] == sum(SIZES)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_probabilities_of_half_precision_sum_to_one(dtype):
    g = torch.Generator().manual_seed(0)
    scores, y = torch.randn(40, 3, generator=g).to(dtype), torch.randint(0, 3, (40,), generator=g)
    want = roc_auc_score(y, scores.float().softmax(1), multi_class="ovr")
    accumulated = cbnb.AccumMetric(roc_auc_score, activation="softmax", to_np=True, invert_arg=True, flatten=False, multi_class="ovr")
    for metric in (cbnb.SklearnMetric("roc_auc_score", multi_class="ovr"), accumulated):
        assert metric(scores, y) == pytest.approx(want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cbnb.SklearnMetric("log_loss")(scores, y) == pytest.approx(sklearn.metrics.log_loss(y, scores.float().softmax(1).numpy()))
    one, is_one = (4 + torch.arange(40) / 40).to(dtype), torch.arange(40) % 3 == 0  # their probabilities are not told apart by halves
    assert cbnb.SklearnMetric("roc_auc_score")(one, is_one.float()) == pytest.approx(roc_auc_score(is_one, one.float()))


def test_an_object_can_be_called_as_scikit_learn_calls():
    class Share:
        def __call__(self, y_true, y_pred):
            return (y_true == y_pred).mean()

    scores, y = torch.eye(3), torch.tensor([0, 1, 1])
    assert cbnb.SklearnMetric(Share(), name="share")(scores, y) == pytest.approx(2 / 3)
    assert cbnb.SklearnMetric(Share()).name == "share"


def test_an_object_passed_twice_counts_once_in_each_column():
    class Seen(cbnb.Metric):
        def reset(self):
            self.n = 0

        def accumulate(self, learn):
            self.n += len(learn.y)

        value = property(lambda self: self.n)

    class Total(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("n", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, pred, y):
            self.n += len(y)

        def compute(self):
            return self.n

    seen, total = Seen(), Total()
    count = cbnb.AccumMetric(lambda pred, y: len(y), name="count")
    learn = classifier([seen, total, count, seen, total, count], cbs=cbnb.Recorder(train_metrics=True))
    for _ in range(2):
        learn.fit(1)
        row = learn.recorder.history[-1].epochs[0]
        assert [
            v for k, v in row.items() if k.removeprefix("train_").removeprefix("valid_").split("_")[0] in ("seen", "total", "count")
        ] == [sum(SIZES)] * 12
    assert learn.metrics[0] is seen and seen.n == sum(SIZES)  # the first is still somebody's own


def test_a_loss_that_is_a_python_number_can_be_chosen():
    learn = classifier([cbnb.metric_on(AvgLoss(), 0)], eval_step=lambda x, y: (0.5, x, y))
    assert learn.validate() == [0.5, 0.5]
    learn = classifier([cbnb.metric_on(AvgLoss(), 1)], eval_step=lambda x, y: (0.5, dict(a=x), y))
    with pytest.raises(TypeError, match="metric 'loss' returned a dict with 'a'"):
        learn.validate()


def test_an_object_without_a_name_has_that_of_its_class():
    class BatchCount:
        def reset(self):
            self.n = 0

        def accumulate(self, learn):
            self.n += 1

        value = property(lambda self: self.n)

    learn = classifier(BatchCount())
    learn.fit(1)
    assert learn.recorder.history[0].epochs[0]["batch_count"] == len(SIZES)
    learn.metrics = cbnb.metric_on(BatchCount(), 7)
    with pytest.raises(IndexError, match="metric 'batch_count' reads output 7"):
        learn.validate()


@pytest.mark.parametrize(
    "metric, note",
    [
        (lambda: cbnb.SklearnMetric("f1_score"), "metric 'f1_score' was given tensor 37, tensor 37"),
        (lambda: cbnb.AccumMetric(lambda pred, y: 1 / 0, name="zero"), "metric 'zero' was given tensor 37x3, tensor 37"),
        (lambda: cbnb.metric_on(MulticlassF1Score(3), 1, 0), "metric 'multiclass_f1_score' was given tensor 16, tensor 16x3"),
    ],
)
def test_whichever_metric_fails_is_named(metric, note):
    with pytest.raises((ValueError, ZeroDivisionError, RuntimeError)) as error:
        classifier([mae, metric()][1:]).validate()
    assert note in error.value.__notes__


def test_what_is_no_number_is_described_in_a_line():
    with pytest.raises(TypeError, match="returned a tuple of tensor 37x3, tensor 37, but it should"):
        classifier(cbnb.AccumMetric(lambda pred, y: (pred, y), name="both")).validate()


@pytest.mark.parametrize(
    "given, kept", [(torch.float64, "float64"), (torch.float32, "float32"), (torch.int64, "int64"), (torch.bfloat16, "float32")]
)
def test_numbers_become_arrays_of_the_same_precision(given, kept):
    """All but bfloat16, which NumPy does not have."""
    seen = []
    metric = cbnb.AccumMetric(lambda pred, y: seen.append((str(pred.dtype), str(y.dtype))) or 0.0, to_np=True, name="seen")
    metric.add(torch.ones(3).to(given), torch.ones(3, dtype=torch.int64))
    assert metric.value == 0 and seen == [(kept, "int64")]


def test_an_array_with_one_number_is_that_number():
    """Processes add up numbers, and numpy makes none of an array with dimensions."""
    learn = classifier(cbnb.AvgMetric(lambda pred, y: np.array([2.5]), "two_and_a_half"))
    assert learn.validate()[1] == 2.5
    assert type(one_number("m", np.array([2.5]))) is float


def graphless_object(seen):
    """`seen` is not an attribute: a metric is copied for each phase."""

    class Graphless:
        def reset(self):
            pass

        def update(self, pred, y):
            seen.append(torch.is_grad_enabled())

        def compute(self):
            return 0.0

    return Graphless()


def graphless_error(seen):
    class GraphlessError(cbnb.MAE):
        def error(self, pred, y):
            seen.append(torch.is_grad_enabled())
            return super().error(pred, y)

    return GraphlessError()


def graphless(seen):
    def func(pred, y):
        seen.append((pred - y).requires_grad)
        return (pred - y).abs().mean()

    return func


@pytest.mark.parametrize("kind", [graphless, graphless_object, graphless_error, lambda seen: cbnb.AccumMetric(graphless(seen))])
def test_metrics_record_no_graph_in_training(kind):
    """Training batches have gradients; a metric that recorded them would keep each batch in memory."""
    seen = []
    learn = line_learner(metrics=kind(seen), cbs=cbnb.Recorder(train_metrics=True))
    learn.fit(1, cbs=cbnb.Callback(after_pred=lambda self: seen.append(None) if self.learn.pred.requires_grad else None))
    flags = [flag for flag in seen if flag is not None]
    assert None in seen and set(flags) == {False} and len(flags) >= 2  # of training and of validation


class Count:
    """A metric that can take in what another one has seen."""

    def __init__(self, n):
        self.n, self.moved_to = n, None

    def to(self, device):
        self.moved_to = device
        return self

    def merge_state(self, other):
        self.n += other.n


def test_what_others_have_seen_is_merged_into_a_copy_on_the_cpu(monkeypatch):
    """Three processes, the second of which has seen nothing; each value is what that process passes on."""
    passed_on = []
    monkeypatch.setattr(processes, "gather_over_processes", lambda mine: passed_on.append(mine) or [mine, None, Count(5)])
    own = Count(2)
    assert processes.merged_metric(own, True).n == 7 and own.n == 2 and own.moved_to is None
    assert passed_on[0] is not own and passed_on[0].moved_to == "cpu" and not hasattr(passed_on[0], "distributed_available_fn")
    assert processes.merged_metric(own, False).n == 5 and passed_on[1] is None


def test_a_merged_torchmetric_does_not_ask_other_processes_again(monkeypatch):
    def gather(mine):
        mine.distributed_available_fn = lambda: True
        return [mine]

    monkeypatch.setattr(processes, "gather_over_processes", gather)
    assert processes.merged_metric(MeanAbsoluteError(), True).distributed_available_fn() is False


@pytest.mark.parametrize(
    "mine, other, agreed", [(1.0, 1.0, True), (1.0, 1 + 1e-6, True), (1.0, 1.1, False), (np.nan, np.nan, True), (np.nan, 1.0, False)]
)
def test_processes_should_find_the_same_number(mine, other, agreed, monkeypatch):
    monkeypatch.setattr(processes, "gather_over_processes", lambda value: [value, other])
    if agreed:
        assert processes.agreed_value("f1", lambda: mine) is mine
    else:
        with pytest.raises(TypeError, match=f"'f1' has different values in the processes, {mine}, {other}"):
            processes.agreed_value("f1", lambda: mine)


@pytest.mark.parametrize("same", [True, False])
def test_an_error_in_all_processes_is_that_error_and_in_one_is_a_disagreement(same, monkeypatch):
    error = ValueError("bad")
    monkeypatch.setattr(processes, "gather_over_processes", lambda mine: [mine, mine if same else 1.0])

    def fail():
        raise error

    with pytest.raises(ValueError if same else TypeError) as caught:
        processes.agreed_value("f1", fail)
    assert caught.value is error if same else caught.value.__cause__ is error


# The parts


@pytest.mark.parametrize(
    "given, number", [(None, None), (True, True), (3, 3), (2.5, 2.5), (torch.tensor([2.0]), 2.0), (np.float32(0.5), 0.5), ("1.5", 1.5)]
)
def test_whatever_holds_one_number_is_that_number(given, number):
    found = arguments.as_number(given)
    assert found == number and type(found) is type(number)


def test_a_mean_is_weighted_and_kept_with_64_bits():
    mean = RunningMean()
    mean.add(torch.tensor(25.0, requires_grad=True), 16), mean.add(torch.tensor(1.0), 8)
    assert mean.value == mean.everywhere == 17 and mean.value.dtype == torch.float64 and not mean.value.requires_grad
    third = torch.tensor(1 / 3, dtype=torch.float64)
    mean.reset(), mean.add(third, 1)
    assert mean.value == third and mean.count == 1


def test_a_mean_over_processes(monkeypatch):
    monkeypatch.setattr(metrics, "sum_over_processes", lambda total, count: [total + 4, count + 1])
    mean = RunningMean()
    mean.add(2.0, 3)
    assert mean.everywhere == 2.5 and mean.value == 2
    monkeypatch.setattr(metrics, "sum_over_processes", lambda total, count: [total, count])
    assert RunningMean().everywhere is None


def test_alone_numbers_are_passed_on_as_they_are():
    t = torch.tensor(2.0)
    found = processes.sum_over_processes(t, 3)
    assert found[0] is t and found[1] == 3 and processes.gather_over_processes("a") == ["a"] and processes.n_processes() == 1


@pytest.mark.parametrize(
    "value, words",
    [
        (None, "returned None, but it should return one number: does it lack a `return`?"),
        (
            torch.zeros(2, 3),
            "returned a tensor of shape (2, 3), but it should return one number: take a mean, or return another single number",
        ),
        (np.zeros(2), "returned an ndarray of shape (2,),"),
        ("words", "returned 'words',"),
        ({"a": 1, "b": 2}, "returned a dict with 'a', 'b',"),
        ([1, 2.5], "returned [1, 2.5],"),
        ([torch.zeros(2), {}], "returned a list of tensor 2, dict,"),
        ((torch.tensor(1.0), Pair(1, 2)), "returned a tuple of tensor scalar, Pair with 'first', 'second',"),
    ],
)
def test_what_is_no_number_is_refused(value, words):
    with pytest.raises(TypeError) as caught:
        one_number("mine", value)
    assert f"metric 'mine' {words}" in str(caught.value)


def test_one_number_is_kept_as_it_is():
    t = torch.tensor([[2.5]])
    assert one_number("m", t).shape == () and one_number("m", t) == 2.5 and one_number("m", 3) == 3 and one_number("m", True) is True


@pytest.mark.parametrize(
    "given, note",
    [
        ((torch.zeros(2, 3), torch.zeros(())), "metric 'm' was given tensor 2x3, tensor scalar"),
        ((), "metric 'm' failed in compute()"),
        (((1, 2), 3), "metric 'm' was given tuple, int: choose a part of it, such as metric_on(metric, 0, -1)"),
        (
            ({"a": 1, "logits": 2}, 3),
            "metric 'm' was given dict with 'a', 'logits', int: choose a part of it, such as metric_on(metric, 'logits', -1)",
        ),
        ((Pair(1, 2),), "metric 'm' was given Pair with 'first', 'second': choose a part of it, such as metric_on(metric, 'first', -1)"),
    ],
)
def test_the_note_of_a_metric_that_failed(given, note):
    error = ValueError()
    with pytest.raises(ValueError), noting("m", *given):
        raise error
    assert error.__notes__ == [note]


def test_the_mean_of_vector_losses_and_of_numbers():
    learn = outputs_of(torch.zeros(2), torch.zeros(2))
    learn.loss = torch.tensor([1.0, 4.0])
    assert value(AvgLoss(), learn) == 2.5 == value(AvgSmoothLoss(), learn)
    learn.loss = 3.0
    assert value(AvgLoss(), learn) == 3
    learn.loss = None
    smooth = AvgSmoothLoss()
    smooth.reset(), smooth.accumulate(learn)
    assert smooth.value is None


def test_smoothing_is_corrected_for_its_start():
    """Of 1, 3 and 5 with a weight of a half: 1, (1 + 2*3)/3, (1 + 2*3 + 4*5)/7."""
    smoother = Smoother(0.5)
    assert smoother.value is None
    assert [smoother.add(x) for x in (1.0, 3.0, 5.0)] == pytest.approx([1, 7 / 3, 27 / 7]) and smoother.value == pytest.approx(27 / 7)
    metric = AvgSmoothLoss(0.5)
    learn = SimpleNamespace(loss=torch.tensor(1.0, requires_grad=True))
    metric.accumulate(learn)
    assert not metric.value.requires_grad
    metric.reset()
    assert metric.value is None and metric.smooth.beta == 0.5


def two_named(pred, targ, alpha=1, *, beta=2):
    return 0.0


@pytest.mark.parametrize(
    "func, kwargs, error",
    [
        (two_named, dict(alpha=1, beta=2), None),
        (two_named, dict(beta=2, alhpa=1), "two_named has no argument 'alhpa': did you mean 'alpha'?"),
        (two_named, dict(x=1), "two_named has no argument 'x': its arguments are pred, targ, alpha, beta"),
        (lambda *args: 0, dict(args=1), "<lambda> has no argument 'args'"),
        (lambda p, **kwargs: 0, dict(x=1), None),
        (dict.update, dict(x=1), None),  # a builtin without a signature
    ],
)
def test_arguments_are_checked_by_name(func, kwargs, error):
    if error is None:
        assert arguments.check_arguments(func, kwargs) is None
    else:
        with pytest.raises(TypeError) as caught:
            arguments.check_arguments(func, kwargs)
        assert str(caught.value).startswith(error)


def kept(**kwargs):
    """What a function gets of scores 0 and 2 for one item, and of 0 and -2 for another."""
    found = []
    metric = cbnb.AccumMetric(lambda pred, targ, **kw: found.append((pred, targ, kw)) or 1.0, name="kept", **kwargs)
    scores = torch.tensor([[0.0, 2.0], [0.0, -2.0]])
    assert metric(scores, torch.tensor([1, 0])) == 1 and metric.value is None
    return found[0]


SIGMOID_2 = 1 / (1 + math.exp(-2))


@pytest.mark.parametrize(
    "kwargs, pred",
    [
        ({}, [[0, 2], [0, -2]]),
        (dict(activation="sigmoid"), [[0.5, SIGMOID_2], [0.5, 1 - SIGMOID_2]]),
        (dict(activation="softmax"), [[1 - SIGMOID_2, SIGMOID_2], [SIGMOID_2, 1 - SIGMOID_2]]),
        (dict(activation="binary"), [SIGMOID_2, 1 - SIGMOID_2]),
        (dict(dim_argmax=1), [1, 0]),
        (dict(dim_argmax=0), [0, 0]),
        (dict(thresh=0.0), [[True, True], [True, False]]),
        (dict(activation="sigmoid", thresh=0.5), [[True, True], [True, False]]),
    ],
)
def test_activation_argmax_and_threshold(kwargs, pred):
    found, targ, _ = kept(**kwargs)
    assert found.tolist() == (
        pytest.approx(pred) if isinstance(pred[0], float) else [pytest.approx(p) for p in pred] if isinstance(pred[0], list) else pred
    )
    assert targ.tolist() == [1, 0]


def test_what_an_accumulated_function_gets():
    assert kept(alpha=3)[2] == dict(alpha=3)
    pred, targ, _ = kept(to_np=True, invert_arg=True)
    assert type(pred) is type(targ) is np.ndarray and pred.tolist() == [1, 0]
    with pytest.raises(ValueError, match="activation='relu' should be 'no', 'sigmoid', 'softmax' or 'binary'"):
        cbnb.AccumMetric(mae, activation="relu")


@pytest.mark.parametrize(
    "pred, targ, flat, shapes",
    [
        ((2, 3), (2, 3), True, ((6,), (6,))),
        ((2, 3), (2, 3), False, ((2, 3), (2, 3))),
        ((2, 1), (2,), True, ((2,), (2,))),
        ((2, 3), (2,), True, ((2, 3), (2,))),
        ((2, 3, 4, 5), (2, 4, 5), True, ((40, 3), (40,))),
        ((2, 3, 4), (2, 4), True, ((8, 3), (8,))),
    ],
)
def test_one_value_for_each_item_and_classes_last(pred, targ, flat, shapes):
    seen = []
    metric = cbnb.AccumMetric(lambda p, t: seen.append((tuple(p.shape), tuple(t.shape))) or 0.0, name="shapes", flatten=flat)
    metric(torch.zeros(pred), torch.zeros(targ))
    assert seen == [shapes]


def test_classes_are_moved_with_their_scores():
    scores = torch.arange(2 * 3 * 4.0).view(2, 3, 4)
    seen = []
    cbnb.AccumMetric(lambda p, t: seen.append(p) or 0.0, name="scores")(scores, torch.zeros(2, 4))
    assert torch.equal(seen[0], torch.stack([scores[i, :, j] for i in range(2) for j in range(4)]))


def test_an_accumulated_metric_over_processes(monkeypatch):
    """Another process has seen one more item."""
    monkeypatch.setattr(accum_metric, "n_processes", lambda: 2)
    monkeypatch.setattr(accum_metric, "gather_over_processes", lambda mine: [mine, (torch.tensor([5.0]), torch.tensor([1.0]))])
    metric = cbnb.AccumMetric(lambda pred, y: (pred - y).sum())
    assert metric.value == 4
    metric.add(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0]))
    assert metric.value == 7
    monkeypatch.setattr(accum_metric, "gather_over_processes", lambda mine: [()] * 3)
    assert metric.value is None


@pytest.mark.parametrize("pred, yb", [((ONE, TWO), (Y,)), (ONE, ()), (ONE, (Y, Y)), ({"a": ONE}, (Y,)), (ONE, ("words",))])
def test_a_metric_of_a_pair_refuses_others(pred, yb):
    for metric in (cbnb.MAE(), Accuracy(), cbnb.AccumMetric(mae)):
        with pytest.raises(TypeError, match=f"metric '{metric.name}' compares one prediction and one target, but got"):
            metric.accumulate(SimpleNamespace(pred=pred, yb=yb))
    assert accum_metric.a_pair("m", SimpleNamespace(pred=(ONE, TWO), yb=())) == (ONE, TWO)


@pytest.mark.parametrize(
    "func, takes",
    [
        (lambda y_true, y_pred: 0, "labels"), (lambda y_true, y_score: 0, "probabilities"), (lambda y_true, y_prob: 0, "probabilities"),
        (lambda y_true, y_proba: 0, "probabilities"), (lambda y_true, pred_decision: 0, "values"), (lambda y: 0, "labels"), (dict.update, "labels"),
        (functools.partial(lambda y_true, y_score, a: 0, a=1), "probabilities"), (sklearn.metrics.hinge_loss, "values"), (sklearn.metrics.log_loss, "probabilities"),
    ],
)  # fmt: skip
def test_what_a_function_takes_is_told_by_its_second_argument(func, takes):
    assert takes_of(func) == takes


def arrays_of(pred, targ, **kwargs):
    """What a function of scikit-learn would get."""
    seen = []

    def func(y_true, y_pred):
        seen.extend([y_true, y_pred])
        return 0.0

    cbnb.SklearnMetric(func, **kwargs)(pred, targ)
    return [array.tolist() for array in seen]


def test_labels_for_scikit_learn():
    y = torch.tensor([1, 0])
    assert arrays_of(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), y) == [[1, 0], [1, 0]]
    assert arrays_of(torch.tensor([0.5, 0.4]), y, thresh=0.5) == [[1, 0], [1, 0]] == arrays_of(torch.tensor([[0.5], [0.4]]), y, thresh=0.5)
    assert arrays_of(torch.tensor([1, 1]), y) == [[1, 0], [1, 1]]  # they are labels
    several = torch.tensor([[1, 0, 1], [0, 0, 1]])
    assert arrays_of(several.float(), several, thresh=0.5) == [several.tolist()] * 2  # several labels of an item stay together
    planes = torch.tensor([[[0, 1]], [[1, 0]]])
    assert arrays_of(planes, planes) == [[0, 1, 1, 0]] * 2
    words = torch.zeros(1, 2, 3)  # an item, two words, three classes
    words[0, 1, 2] = 1.0
    assert arrays_of(words, torch.tensor([[0, 2]]), axis=-1) == [[0, 2]] * 2
    with pytest.raises(ValueError, match="func needs labels, but there is one score for each target"):
        arrays_of(torch.tensor([0.5, 0.4]), y)
    with pytest.raises(ValueError, match="takes='scores' should be 'labels', 'probabilities' or 'values'"):
        cbnb.SklearnMetric(f1_score, "scores")


def test_probabilities_and_values_for_scikit_learn():
    y = torch.tensor([1, 0])
    one, two = torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert arrays_of(one, y, takes="probabilities")[1] == pytest.approx([0.5, SIGMOID_2])
    assert arrays_of(two, y, takes="probabilities")[1] == pytest.approx([0.5, 1 - SIGMOID_2])
    three = arrays_of(torch.zeros(2, 3), y, takes="probabilities")[1]
    assert three == [pytest.approx([1 / 3] * 3)] * 2
    assert arrays_of(one, y, takes="values") == [[1, 0], [0, 2]] and arrays_of(two, torch.zeros(2, 2), takes="values")[1] == two.tolist()
    assert np.shape(arrays_of(torch.zeros(2, 3, 4), torch.zeros(2, 4), takes="probabilities")[1]) == (8, 3)
    assert np.shape(arrays_of(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4), takes="probabilities")[1]) == (8,)


def test_a_function_that_scikit_learn_has_not():
    with pytest.raises(ValueError, match="sklearn.metrics has no function 'f2_score'"):
        cbnb.SklearnMetric("f2_score")
    with pytest.raises(ValueError, match="no function '__name__'"):
        cbnb.SklearnMetric("__name__")


class Total(torchmetrics.Metric):
    """Counts items."""

    def __init__(self):
        super().__init__()
        self.add_state("n", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, pred, y):
        self.n += len(y)

    def compute(self):
        return self.n


class Plain(Share):
    def compute(self):
        return 0.5


@pytest.mark.parametrize(
    "make, n_seen, n, agreed, merged",
    [
        (Plain, 1, 1, False, False), (Plain, 3, 3, True, False), (Merging, 3, 3, True, True), (Merging, 1, 1, False, False),
        (Total, 3, 3, False, False), (Total, 2, 3, False, True), (Total, 1, 1, False, False),
    ],
)  # fmt: skip
def test_which_metrics_are_merged_and_which_have_to_agree(make, n_seen, n, agreed, merged, monkeypatch):
    """A torchmetric exchanges its own sums, unless a process has seen nothing."""
    calls = []
    monkeypatch.setattr(more_metrics, "n_processes", lambda: n)
    monkeypatch.setattr(more_metrics, "sum_over_processes", lambda seen: [n_seen])
    monkeypatch.setattr(more_metrics, "merged_metric", lambda metric, seen: calls.append("merged") or metric)
    monkeypatch.setattr(more_metrics, "agreed_value", lambda name, compute: calls.append("agreed") or compute())
    metric = UpdateMetric(make())
    metric.reset(), metric.accumulate(outputs_of(torch.eye(2), torch.tensor([0, 1])))
    assert metric.value is not None and calls == ["merged"] * merged + ["agreed"] * agreed
    monkeypatch.setattr(more_metrics, "sum_over_processes", lambda seen: [0])
    assert metric.value is None


def test_a_torchmetric_moves_to_the_device_of_the_batch():
    class Placed(Total):
        def to(self, device):
            moved.append(device)
            return self

    moved = []
    metric = UpdateMetric(Placed())
    for _ in range(2):
        metric.reset()
        for pred in ({"a": torch.zeros(2)}, torch.zeros(2)):
            metric.accumulate(outputs_of(pred, torch.zeros(2)))
    assert moved == [torch.device("cpu")] * 2 and metric.value == 4
    metric = UpdateMetric(Placed())
    metric.accumulate(outputs_of("words", [1, 2]))  # no tensor: nowhere to go
    assert len(moved) == 2 and metric.value == 2


@pytest.mark.parametrize(
    "name, made, found", [("mine", None, "mine"), (None, "its", "its"), (None, None, "total"), ("mine", "its", "mine")]
)
def test_the_heading_of_a_foreign_metric(name, made, found):
    total = Total()
    if made:
        total.name = made
    assert UpdateMetric(total, name).name == found
    copied = copy.copy(UpdateMetric(total))
    assert copied.metric is not total and type(copied.metric) is Total


def test_predictions_reach_a_metric_without_a_graph():
    class Graph(Total):
        def update(self, pred, y):
            parts = pred.values() if isinstance(pred, dict) else [pred]
            seen.extend(part.requires_grad for part in parts)

    seen, metric = [], UpdateMetric(Graph())
    pred = torch.zeros(2, requires_grad=True) * 2
    metric.accumulate(outputs_of(pred, Y)), metric.accumulate(outputs_of(dict(a=pred, b=pred), Y))
    assert seen == [False] * 3


class Remote(torch.Tensor):
    """Must not be brought to the CPU in each batch."""

    def cpu(self):
        raise AssertionError("waits for the device")


def test_a_foreign_metric_gets_predictions_on_their_device():
    metric = UpdateMetric(Total())
    for pred in (torch.zeros(2).as_subclass(Remote), dict(a=torch.zeros(2).as_subclass(Remote))):
        metric.accumulate(outputs_of(pred, Y))
    assert metric.value == 8


@pytest.mark.parametrize(
    "given, n",
    [(None, 0), (mae, 1), ([mae, cbnb.MAE()], 2), ((), 0), (cbnb.MAE, 1), ([cbnb.MAE, Total()], 2), (Total(), 1), (iter([mae]), 1)],
)
def test_one_metric_or_several(given, n):
    assert len(as_metrics(given)) == n


@pytest.mark.parametrize("given", ["mae", 3, ["mae"], object()])
def test_what_is_no_metric_is_refused(given):
    with pytest.raises(TypeError, match="is not a metric: pass a function of"):
        as_metrics(given)


def test_a_metric_that_can_be_iterated_is_one():
    class Several(Total):
        def __iter__(self):
            return iter([1, 2])

    class Mine(Own):
        def __iter__(self):
            return iter([1, 2])

    assert len(as_metrics(Several())) == len(as_metrics(Mine())) == 1


def test_the_same_object_twice_is_copied_the_second_time():
    one, total = cbnb.MAE(), Total()
    found = as_metrics([one, total, one, total, cbnb.MAE()])
    assert found[0] is one and found[1].metric is total and found[2] is not one and found[3].metric is not total


def test_the_members_of_a_collection_are_copied():
    f1 = MulticlassF1Score(3)
    [metric] = as_metrics(MetricCollection({"f1": f1}))
    assert metric.name == "f1" and metric.metric is not f1


def test_a_metric_sees_its_outputs_and_the_rest_of_the_learner():
    learn = outputs_of((ONE, TWO), Y)
    assert view_for_metric(mae, learn) is learn is view_for_metric(cbnb.MAE(), learn)
    seen = view_for_metric(cbnb.metric_on(mae, 1, 2), learn)
    assert seen.pred is TWO and seen.y is Y and seen.yb == (Y,) and seen.iter == 0 and seen.outputs is learn.outputs
    assert view_for_metric(cbnb.metric_on(mae, 0, 1, 2), learn).y == (TWO, Y)


@pytest.mark.parametrize("which, found", [(-3, ONE), (2, Y), ((0,), ONE)])
def test_outputs_are_counted_from_both_ends(which, found):
    assert view_for_metric(cbnb.metric_on(mae, which, 2), outputs_of((ONE, TWO), Y)).pred is found


@pytest.mark.parametrize("which", [-4, 3])
def test_an_output_that_is_not_there(which):
    with pytest.raises(
        IndexError,
        match=rf"metric 'mae' reads output {which}, but learn.outputs has 0 \(tensor 4x1\), 1 \(tensor 4x1\), 2 \(tensor 4x1\): choose one of these$",
    ):
        view_for_metric(cbnb.metric_on(mae, which, 0), outputs_of((ONE, TWO), Y))


def test_parts_of_lists_and_names_of_a_prediction():
    learn = outputs_of([ONE, [TWO, {"deep": Y}]], Y)
    assert (
        view_for_metric(cbnb.metric_on(mae, (1, 1, "deep"), (1, 0)), learn).pred is Y
        and view_for_metric(cbnb.metric_on(mae, (1, 0), 0), learn).pred is TWO
    )
    pair = outputs_of(Pair(ONE, TWO), Y)
    assert view_for_metric(cbnb.metric_on(mae, "second", 2), pair).pred is TWO
    with pytest.raises(KeyError, match="'third', but learn.outputs has .*; the prediction has 'first', 'second'"):
        view_for_metric(cbnb.metric_on(mae, "third", 2), pair)


@pytest.mark.parametrize("which", [(), "a", 3, 1.5, {0}, {"a": 1}, [()], [("a", 0)], [(0, True)], [None]])
def test_indexes_that_choose_nothing_are_refused(which):
    if which == ():
        assert cbnb.MAE().set_indexes(which).chosen_outputs == ()
    else:
        with pytest.raises(TypeError, match="should be a list|cannot be chosen by"):
            cbnb.MAE().set_indexes(which)


def test_on_names_a_copy():
    one = cbnb.MAE(name="mine")
    assert (
        cbnb.metric_on(one, 0, 1).name == "mine"
        and cbnb.metric_on(one, 0, 1, name="other").name == "other"
        and one.chosen_outputs == ()
        and one.name == "mine"
    )
    assert cbnb.metric_on(one, (0,), 1).chosen_outputs == (0, 1)
    with pytest.raises(
        TypeError,
        match=r"metric_on takes one metric, and this MetricCollection has 2 metrics: .*metric_on\(m, 0, 1\) for m in collection.values",
    ):
        cbnb.metric_on(MetricCollection([MulticlassF1Score(3), MulticlassAUROC(3)]), 0, 1)


def test_names_that_were_there_get_a_number():
    assert distinct(["a", "b", "a", "a", "b"]) == ["a", "b", "a_2", "a_3", "b_2"] and distinct([]) == []


def test_accuracy_along_an_axis():
    scores = torch.tensor([[[0.0, 3.0], [1.0, 0.0]]])  # of an item, two classes, two places
    y = torch.tensor([[1, 0]])
    assert cbnb.accuracy(scores, y, axis=1) == 1 and cbnb.error_rate(scores, y, axis=1) == 0
    assert cbnb.accuracy(scores, y, axis=-1) == 1 and cbnb.accuracy(scores, torch.tensor([[0, 0]]), axis=2) == 0.5
    with pytest.raises(ValueError, match=r"\(axis=1\), or classes in dimension 2 \(axis=2\)"):
        cbnb.accuracy(scores, y)
    assert cbnb.error_rate(torch.eye(4), torch.tensor([0, 1, 2, 2])) == 0.25
    assert value(Accuracy(axis=1), outputs_of(scores, torch.tensor([[1, 1]]))) == 0.5
    with pytest.raises(
        ValueError, match=r"scores of shape \(1, 2, 2\) have classes in dimension 0, so targets should be \(2, 2\), not \(1, 2\)"
    ):
        cbnb.accuracy(scores, y, axis=0)


def test_averages_weigh_ragged_batches():
    """Three items with an error of 1, and one with an error of 5; a batch without items counts for nothing."""
    for make, want in ((cbnb.MAE, 2), (MSE, 7), (lambda: cbnb.MAE("rows"), 4), (Accuracy, 0.75)):
        metric = make()
        for n, error in ((3, 1.0), (0, 0.0), (1, 5.0)):
            pred = torch.full((n, 2), error) if want != 0.75 else torch.eye(2)[[1] * n]
            y = torch.zeros(n, 2) if want != 0.75 else torch.full((n,), int(error == 1))
            metric.accumulate(outputs_of(pred, y))
        assert float(metric.value) == want, metric
    assert (cbnb.MAE().name, MSE(name="mine").name, Accuracy().name, Accuracy(name="mine").name) == (
        "mae",
        "mine",
        "accuracy",
        "mine",
    )


def test_a_copy_of_a_metric_keeps_its_own_tensors_and_lists():
    own = Own()
    own.total, own.errors, own.tags, own.other = torch.ones(1), [1], {"a"}, mae
    new = copy.copy(own)
    new.total += 1
    new.errors.append(2), new.tags.add("b")
    assert own.total == 1 and own.errors == [1] and own.tags == {"a"} and new.other is mae and type(new) is Own


def test_the_name_of_a_metric():
    class FirstBestMetric(Own):
        pass

    class Metric(Own):
        pass

    assert FirstBestMetric().name == "first_best" and Metric().name == "metric" and repr(FirstBestMetric()) == "FirstBestMetric(first_best)"
    named = FirstBestMetric()
    named.name = "mine"
    assert named.name == "mine" and name_of(functools.partial(functools.partial(mae, pred=1), y=2)) == "mae"


def test_a_base_metric_does_nothing():
    metric = cbnb.Metric()
    for ask in (metric.reset, lambda: metric.accumulate(None), lambda: metric.value):
        with pytest.raises(NotImplementedError):
            ask()
    with pytest.raises(NotImplementedError):
        ErrorMetric().error(ONE, TWO)


def test_a_value_of_ones_own():
    metric = cbnb.ValueMetric(lambda: 2.5, "mine")
    assert metric.reset() is metric.accumulate(None) is None and metric.value == 2.5 and metric.name == "mine"
    with pytest.raises(TypeError, match="metric 'mine' returned None"):
        cbnb.ValueMetric(lambda: None, "mine").value


def test_scores_of_scikit_learn_go_by_the_loss():
    """A second sigmoid was applied to the probabilities of a model with BCELoss, and a sigmoid to the classes of one-hot targets."""
    torch.manual_seed(0)
    x, classes = torch.randn(40, 5), torch.arange(40) % 3
    one_hot, is_one = torch.eye(3)[classes], (classes == 1).float()[:, None]
    for y, net, loss, names in (
        (one_hot, nn.Linear(5, 3), nn.CrossEntropyLoss(), ["log_loss"]),
        (is_one, nn.Sequential(nn.Linear(5, 1), nn.Sigmoid()), nn.BCELoss(), ["log_loss", "brier_score_loss"]),
    ):
        data = [(x[:16], y[:16]), (x[16:], y[16:])]
        learn = cbnb.Learner(cbnb.DataLoaders(data, data, device="cpu"), net, loss, metrics=[cbnb.SklearnMetric(name) for name in names])
        valid_loss, *found = learn.validate()
        assert found[0] == pytest.approx(valid_loss, rel=1e-5)
        if len(found) == 2:
            assert found[1] == pytest.approx(((net(x) - y) ** 2).mean().item(), rel=1e-5)


# The layout of scores and targets


def sentences(n_classes: int, length: int, last: bool, ignored: int | None = None):
    """Batches of 3, 3 and 1 sentences, whose scores are mostly right; with `ignored`, the ends of the sentences are padding."""
    g = torch.Generator().manual_seed(n_classes + length)
    found = []
    for n in (3, 3, 1):
        y = torch.randint(1, n_classes, (n, length), generator=g)
        scores = torch.randn(n, length, n_classes, generator=g) + 1.5 * nn.functional.one_hot(y, n_classes)
        if ignored is not None:
            y[torch.arange(length) >= torch.randint(1, length + 1, (n, 1), generator=g)] = ignored
        found.append((scores if last else scores.transpose(1, 2), y))
    return found


class Same(nn.Module):
    def forward(self, x):
        return x


def values_of(made, batches, loss_func, **kwargs) -> list:
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="cpu"), Same(), loss_func, metrics=made, **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback).validate()[1:]


def by_token(pred, y):
    """A loss of somebody's own, for classes in the last dimension."""
    return nn.functional.cross_entropy(pred.flatten(0, 1), y.flatten())


def every_metric() -> list:
    return [
        cbnb.accuracy,
        cbnb.error_rate,
        Accuracy(name="object"),
        cbnb.AvgMetric(cbnb.accuracy, name="wrapped"),
        cbnb.SklearnMetric("accuracy_score"),
        cbnb.SklearnMetric("f1_score", average="macro"),
        cbnb.AccumMetric(lambda pred, y: (pred.argmax(-1) == y).float().mean(), name="accumulated"),
        cbnb.AccumMetric(lambda pred, y: (pred.argmax(-1) == y).float().mean(), name="softmax", activation="softmax"),
        cbnb.SklearnMetric("log_loss", labels=list(range(5))),
    ]


def by_hand(batches, last: bool, ignored: int | None = None) -> list:
    """Every token on its own, in a loop."""
    right, rows, labels = 0, [], []
    for scores, y in batches:
        for i in range(len(y)):
            for t in range(y.shape[1]):
                row = scores[i, t] if last else scores[i, :, t]
                if y[i, t] == ignored:
                    continue
                right += int(row.argmax() == y[i, t])
                rows.append(row)
                labels.append(y[i, t])
    rows, labels = torch.stack(rows), torch.stack(labels)
    share = right / len(labels)
    f1 = f1_score(labels, rows.argmax(1), average="macro")
    log_loss = nn.functional.cross_entropy(rows.double(), labels).item()
    return [share, 1 - share, share, share, share, f1, share, share, log_loss]


@pytest.mark.parametrize("length", [4, 7])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("ignored", [None, -100, 0])
def test_every_metric_finds_the_classes_and_leaves_out_what_the_loss_ignores(length, last, ignored):
    batches = sentences(5, length, last, ignored)
    if last:
        loss = by_token if ignored in (None, -100) else nn.CrossEntropyLoss(ignore_index=0)
        kwargs = {} if ignored in (None, -100) else dict(eval_step=Flat())
    else:
        loss, kwargs = nn.CrossEntropyLoss(ignore_index=-100 if ignored is None else ignored), {}
    found = values_of(every_metric(), batches, loss, **kwargs)
    assert found == pytest.approx(by_hand(batches, last, ignored), abs=1e-6)


class Flat(Step):
    """Classes last, with a loss of torch."""

    def loss(self, learn):
        learn.loss_grad = learn.loss = learn.loss_func(learn.pred.flatten(0, 1), learn.y.flatten())


def test_as_many_words_as_classes():
    """The shapes do not say; torch's loss does, unless the step gives it another form of the predictions."""
    first, last = sentences(5, 5, last=False), sentences(5, 5, last=True)
    assert values_of(every_metric(), first, nn.CrossEntropyLoss()) == pytest.approx(by_hand(first, False), abs=1e-6)
    assert values_of(cbnb.accuracy, first, functools.partial(nn.functional.cross_entropy, label_smoothing=0.1)) == pytest.approx(
        by_hand(first, False)[:1]
    )
    ways = [functools.partial(cbnb.accuracy, axis=-1), Accuracy(axis=-1), cbnb.SklearnMetric("accuracy_score", axis=2)]
    ways += [cbnb.AccumMetric(lambda p, y: (p == y).float().mean(), dim_argmax=-1, name="argmax")]
    assert values_of(ways, last, by_token) == pytest.approx(by_hand(last, True)[:1] * 4)
    for metric in every_metric():
        for kwargs in (dict(loss_func=by_token), dict(loss_func=nn.CrossEntropyLoss(), eval_step=Flat())):
            with pytest.raises(ValueError, match=r"in 2 ways: classes in dimension 1 \(axis=1\), or classes in dimension 2 \(axis=2\)"):
                values_of(metric, last, **kwargs)


def test_a_batch_that_could_be_read_in_two_ways_is_read_as_the_one_before():
    batches = [batch for length in (4, 5, 7) for batch in sentences(5, length, last=True)]
    assert values_of([cbnb.accuracy, Accuracy(name="object")], batches, by_token) == pytest.approx(by_hand(batches, True)[:1] * 2)


def test_segmentation_is_scored_pixel_by_pixel():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (5, 4, 3), generator=g)  # as many columns as classes
    scores = torch.randn(5, 3, 4, 3, generator=g)
    y[0, 2:] = 255
    batches = [(scores[:2], y[:2]), (scores[2:], y[2:])]
    kept = y.flatten() != 255
    pred, targ = scores.movedim(1, -1).reshape(-1, 3).argmax(1)[kept], y.flatten()[kept]
    made = [cbnb.accuracy, cbnb.SklearnMetric("jaccard_score", average="macro"), cbnb.SklearnMetric("cohen_kappa_score")]
    want = [(pred == targ).float().mean().item(), sklearn.metrics.jaccard_score(targ, pred, average="macro")]
    want += [sklearn.metrics.cohen_kappa_score(targ, pred)]
    assert values_of(made, batches, nn.CrossEntropyLoss(ignore_index=255)) == pytest.approx(want, abs=1e-6)


def test_a_function_of_ones_own_is_weighted_by_the_targets_that_count():
    batches = sentences(5, 7, True, 0)

    def share(pred, y, ignore_index=-100):
        return (pred.argmax(-1) == y)[y != ignore_index].float().mean()

    def whole(pred, y):
        return (pred.argmax(-1) == y).all(1).float().mean()

    made = [share, cbnb.AvgMetric(whole, batch_weight=lambda pred, y: len(y)), cbnb.AvgMetric(share, "bound")]
    found = values_of(made, batches, nn.CrossEntropyLoss(ignore_index=0), eval_step=Flat())
    right = torch.cat([(scores.argmax(-1) == y).all(1) for scores, y in batches])
    want = by_hand(batches, True, 0)[0]
    assert found == pytest.approx([want, right.float().mean().item(), want])


def test_a_batch_that_is_all_padding_counts_for_nothing():
    batches = sentences(5, 7, True, -100)
    empty = (batches[0][0], torch.full_like(batches[0][1], -100))
    kinds = every_metric()
    assert values_of(kinds, [empty, *batches, empty], by_token) == pytest.approx(by_hand(batches, True, -100), abs=1e-6)
    assert values_of([cbnb.accuracy, Accuracy(name="object")], [empty], by_token) == [None, None]


def test_numbers_that_are_no_classes_are_not_left_out():
    """-100 is a temperature here."""
    y = torch.tensor([-100, 3, 5, 7])
    batches = [(y[:3].float()[:, None], y[:3]), (y[3:].float()[:, None], y[3:])]

    def worst(pred, y):
        return (pred.flatten() - y - 1).abs().mean()

    def lowest(pred, y):
        return y.min().float()

    loss = lambda pred, y: (pred.flatten() - y).square().mean()  # noqa: E731
    found = values_of([worst, cbnb.AccumMetric(lowest), cbnb.SklearnMetric("max_error", name="max")], batches, loss)
    assert found == [1, -100, 0]


def test_one_score_is_no_class():
    """The share of class 0 was shown as the accuracy of a model with one output."""
    for y in (torch.tensor([0, 1, 1]), torch.tensor([0.0, 1.0, 1.0])):
        with pytest.raises(ValueError, match="got one score for each item"):
            cbnb.accuracy(torch.randn(3, 1), y)


def test_functions_of_torchmetrics_are_refused_with_their_class():
    from torchmetrics.functional import structural_similarity_index_measure as ssim
    from torchmetrics.functional.classification import binary_f1_score

    for func, given in ((binary_f1_score, ""), (functools.partial(binary_f1_score, threshold=0.3), "threshold=0.3")):
        for make in (as_metrics, cbnb.AvgMetric):
            with pytest.raises(TypeError) as caught:
                make(func)
            more = ", " * bool(given) + given
            assert f"use torchmetrics.classification.BinaryF1Score({given}), or AccumMetric(binary_f1_score{more})," in str(caught.value)
    with pytest.raises(TypeError, match=r"F1Score\(task=...\), or AccumMetric\(f1_score, task=...\)"):
        as_metrics(torchmetrics.functional.f1_score)
    with pytest.raises(TypeError, match="StructuralSimilarityIndexMeasure"):
        as_metrics(ssim)
    g = torch.Generator().manual_seed(0)
    pred, y = torch.rand(40, generator=g), torch.randint(0, 2, (40,), generator=g)
    batches = [(pred[:25], y[:25]), (pred[25:], y[25:])]
    found = values_of(cbnb.AccumMetric(binary_f1_score), batches, lambda pred, y: (pred - y).abs().mean())
    assert found == pytest.approx([binary_f1_score(pred, y).item()])


def test_an_error_in_compute_names_the_metric():
    class Broken:
        def reset(self): ...
        def update(self, pred, y): ...
        def compute(self):
            return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        classifier(Broken()).validate()
    assert "metric 'broken' failed in compute()" in caught.value.__notes__


def test_log_loss_of_one_class_names_the_argument():
    batches = [(torch.randn(4, 2), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(ValueError) as caught:
        values_of(sklearn.metrics.log_loss, batches, nn.CrossEntropyLoss())
    assert "pass all class numbers, such as SklearnMetric('log_loss', labels=[0, 1])" in caught.value.__notes__


def test_scikit_learn_asks_for_an_average():
    with pytest.raises(ValueError, match="average='binary'") as caught:
        cbnb.SklearnMetric(functools.partial(sklearn.metrics.fbeta_score, beta=2.0))(torch.eye(3), torch.arange(3))
    assert "pass average='macro', as in SklearnMetric('fbeta_score', ..., average='macro')" in caught.value.__notes__
    assert cbnb.SklearnMetric("fbeta_score", beta=2.0, average="macro")(torch.eye(3), torch.arange(3)) == 1
    with pytest.raises(TypeError, match="a scorer of scikit-learn"):
        cbnb.SklearnMetric(sklearn.metrics.get_scorer("accuracy"))


def test_the_layout_of_chosen_outputs_is_not_that_of_the_loss():
    batches = sentences(5, 4, True, -100)

    class Two(nn.Module):
        def forward(self, x):
            return x.transpose(1, 2), x

    learn = cbnb.Learner(
        cbnb.DataLoaders(batches, batches, device="cpu"),
        Two(),
        lambda pred, y: nn.functional.cross_entropy(pred[0], y),
        metrics=[cbnb.metric_on(cbnb.accuracy, 0, -1, name="first"), cbnb.metric_on(cbnb.accuracy, 1, -1, name="second")],
    ).remove_cb(cbnb.ProgressCallback)
    assert learn.validate()[1:] == pytest.approx(by_hand(batches, True, -100)[:1] * 2)
    learn.metrics = cbnb.accuracy
    with pytest.raises(Exception) as caught:
        learn.validate()
    assert "choose a part of it, such as metric_on(metric, 0, -1)" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    "loss_func, scores",
    [(nn.BCEWithLogitsLoss(), torch.tensor([0.1, -0.2, 3.0, -1.0])), (nn.BCELoss(), torch.tensor([0.6, 0.45, 0.9, 0.1]))],
)
def test_labels_of_single_scores_go_by_the_loss(loss_func, scores):
    x, y = scores[:, None], torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    dls = cbnb.DataLoaders([(x, y)], [(x, y)], device="cpu")
    learn = cbnb.Learner(
        dls, nn.Identity(), loss_func, metrics=[cbnb.SklearnMetric("precision_score"), cbnb.SklearnMetric("recall_score", thresh=-1.0)]
    )
    assert learn.validate()[1:] == [0.5, 1.0]


def test_missing_values_are_named_when_scikit_learn_refuses_them():
    metric = cbnb.SklearnMetric("r2_score")
    pred = torch.tensor([[1.0], [math.nan], [2.0]])
    with pytest.raises(ValueError) as error:
        metric(pred, torch.ones(3, 1))
    assert "the predictions of 1 of 3 items are NaN: does the validation set have missing values?" in error.value.__notes__


def test_a_function_that_needs_the_shapes_is_told_of_flatten():
    maps = torch.rand(4, 2, 3, 3)
    per_item = cbnb.AccumMetric(lambda pred, y: (pred - y).abs().mean((1, 2, 3)).max())
    with pytest.raises(IndexError) as e:
        per_item(maps, maps)
    assert any("flatten=False" in note for note in e.value.__notes__)
    assert cbnb.AccumMetric(per_item.func, flatten=False)(maps, maps) == 0


def test_another_function_of_a_metric_is_called_in_its_own_way():
    """The order of the arguments of the first one is not kept."""
    metric = cbnb.AvgMetric(lambda y_true, y_pred: (y_pred - y_true).abs().mean())
    metric.func = lambda pred, y: pred.mean()
    assert line_learner(metrics=metric).validate() == line_learner(metrics=lambda pred, y: pred.mean()).validate()


@pytest.mark.parametrize("names, lacking", [((), "reset"), (("reset",), "accumulate"), (("reset", "accumulate"), "value")])
def test_a_metric_that_lacks_a_part_is_refused_by_the_learner(names, lacking):
    kind = type("Mine", (cbnb.Metric,), {name: lambda self, learn=None: None for name in names})
    with pytest.raises(NotImplementedError, match=f"Mine does not define {lacking}, which every metric needs: add a "):
        line_learner(metrics=kind())


def test_two_metrics_with_the_same_attribute_metric_are_two():
    class On(cbnb.Metric):
        def __init__(self, metric, name):
            self.metric, self._name = metric, name

        def reset(self):
            self.n = 0

        def accumulate(self, learn):
            self.n += 1

        value = property(lambda self: self.n)

    a, b = On(mae, "a"), On(mae, "b")
    assert as_metrics([a, b])[1] is b


def test_a_metric_may_assign_its_reset():
    class Mine(cbnb.Metric):
        def __init__(self):
            self.reset = self.clear

        def clear(self):
            self.n = 0

        def accumulate(self, learn):
            self.n += 1

        value = property(lambda self: self.n)

    mine = Mine()
    assert as_metrics(mine) == [mine]
