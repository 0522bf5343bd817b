"""One validation batch is tried before the first epoch: mistakes come early, and nothing else changes."""

import copy
import random
import warnings

import numpy as np
import pytest
import sklearn.metrics
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassF1Score

import cbnb.all as cbnb
from cbnb.callbacks.sanity_check import sample_batch
from cbnb.step import Step
from helpers import line_learner


def mae(pred, y):
    return (pred - y).abs().mean()


def digits(n: int = 40, classes: int = 3, bs: int = 8, seed: int = 0) -> list:
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 4, generator=g), torch.arange(n) % classes
    return list(zip(x.split(bs), y.split(bs)))


def learner(metrics, *, model=None, classes: int = 3, **kwargs) -> cbnb.Learner:
    dls = kwargs.pop("dls", None) or cbnb.DataLoaders(digits(classes=classes), digits(classes=classes), device="cpu")
    loss = kwargs.pop("loss_func", nn.CrossEntropyLoss())
    return cbnb.Learner(dls, model or nn.Linear(4, classes), loss, metrics=metrics, **kwargs).remove_cb(cbnb.ProgressCallback)


class Trained(cbnb.Callback):
    """Counts batches of training."""

    run_valid = False

    def before_fit(self):
        self.n = 0

    def after_batch(self):
        self.n += 1


class Broken:
    def reset(self): ...
    def update(self, pred, y): ...
    def compute(self):
        return torch.zeros(3)


MISTAKES = {
    "a vector": (lambda pred, y: (pred.argmax(1) == y).float(), TypeError, "it should return one number"),
    "no return": (lambda pred, y: None, TypeError, "does it lack a `return`"),
    "an attribute": (lambda pred, y: pred.logits.mean(), AttributeError, "logits"),
    "shapes": (cbnb.MAE(), ValueError, "should have the same shape"),
    "the wrong classes": (MulticlassF1Score(7), (ValueError, RuntimeError), "MulticlassF1Score|classes|preds"),
    "a vector of compute": (Broken(), TypeError, "it should return one number"),
    "a vector of all items": (cbnb.AccumMetric(lambda pred, y: y, name="all"), TypeError, "it should return one number"),
    "an average of scikit-learn": (cbnb.SklearnMetric("f1_score"), ValueError, "average='binary'"),
    "an output that is not there": (cbnb.metric_on(mae, 0, 7), IndexError, "reads output 7"),
    "an average of torchmetrics": (MulticlassF1Score(3, average=None), TypeError, "average='macro'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_metric_comes_before_the_first_training_batch(name):
    """It came after a whole epoch of training."""
    metric, kind, words = MISTAKES[name]
    learn = learner(metric, cbs=(trained := Trained()))
    before = copy.deepcopy(learn.model.state_dict())
    with pytest.raises(kind, match=words) as caught:
        learn.fit(2)
    assert trained.n == 0 and all(torch.equal(v, before[k]) for k, v in learn.model.state_dict().items())
    notes = caught.value.__notes__
    assert any("sanity_check=False" in note for note in notes) and any("validation batch 0" in note for note in notes)
    learn.metrics = cbnb.accuracy
    learn.fit(1)  # nothing is lost
    assert trained.n == 5


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_off_by_one_argument(name):
    metric, kind, words = MISTAKES[name]
    learn = learner(metric, cbs=(trained := Trained()), sanity_check=False)
    with pytest.raises(kind, match=words):
        learn.fit(2)
    assert trained.n == 5
    learn = learner(metric)
    learn.sanity_check = False
    with pytest.raises(kind):
        learn.fit(1)


class Moody(nn.Module):
    """Keeps what it has seen in buffers, attributes and lists; its dropout and its noise draw random numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
        self.register_buffer("seen", torch.zeros(()))
        self.h, self.log, self.sizes = torch.zeros(1), [], {}

    def forward(self, x):
        self.seen += 1
        self.log.append(len(x))
        self.sizes[len(x)] = True
        self.h = self.h * 0.5 + x.mean().detach()
        return self.layers(x) + self.h + 0.01 * torch.randn(len(x), 1) + random.random() + np.random.rand()


class Noisy(Dataset):
    """Items are drawn at random each time."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.randn(4) + i, torch.tensor(i % 3)


class Rowing(cbnb.Callback):
    """Each event, with where it comes."""

    def before_fit(self):
        self.told = ["before_fit"]

    def tell(self, name):
        self.told.append((name, self.learn.epoch, self.learn.iter, self.learn.training))

    def before_epoch(self):
        self.tell("before_epoch")

    def before_train(self):
        self.tell("before_train")

    def before_validate(self):
        self.tell("before_validate")

    def after_batch(self):
        self.tell("after_batch")

    def after_fit(self):
        self.tell("after_fit")


def loaders(kind: str) -> cbnb.DataLoaders:
    if kind == "lists":
        return cbnb.DataLoaders(digits(), digits(seed=1), device="cpu")
    if kind == "generator":
        g = torch.Generator().manual_seed(3)
        make = lambda: DataLoader(Noisy(), 8, shuffle=True, generator=g)  # noqa: E731
        return cbnb.DataLoaders(make(), make(), device="cpu")
    data = [torch.cat(column) for column in zip(*digits())]
    if kind == "tensors":
        return cbnb.DataLoaders.from_datasets(TensorDataset(*data), TensorDataset(*data), bs=8, device="cpu")
    if kind == "workers":
        return cbnb.DataLoaders(DataLoader(Noisy(), 8, num_workers=1), DataLoader(Noisy(), 8, shuffle=True, num_workers=1), device="cpu")
    return cbnb.DataLoaders(DataLoader(Noisy(), 8, shuffle=True), DataLoader(Noisy(), 8, shuffle=True), device="cpu")


@pytest.mark.parametrize("kind", ["lists", "generator", "tensors", "workers", "random"])
def test_it_leaves_no_trace(kind):
    """Rows, weights, buffers, attributes, events and the random numbers afterwards are those of a fit without it."""
    found = []
    for check in (True, False):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        calls = []

        def counted(pred, y):
            calls.append(len(y))
            return (pred.argmax(1) == y).float().mean()

        metrics = [cbnb.accuracy, counted, cbnb.SklearnMetric("f1_score", average="macro"), MulticlassF1Score(3)]
        learn = learner(metrics, model=Moody(), dls=loaders(kind), cbs=(told := Rowing()), sanity_check=check)
        learn.fit(2)
        state = {k: v.tolist() for k, v in learn.model.state_dict().items()}
        model = (learn.model.h.item(), learn.model.log, learn.model.sizes, state)
        found.append(
            (learn.recorder.values, learn.recorder.losses, told.told, model, torch.rand(3).tolist(), random.random(), np.random.rand())
        )
        tried = len(calls)
    with_it, without = found
    assert with_it == without
    assert tried > 0


def test_one_batch_is_tried():
    calls = []

    def count(pred, y, ignore_index=-100):  # so that it is not called with halves of batches
        calls.append(len(y))
        return 0.0

    for kwargs, n in ((dict(), 6), (dict(sanity_check=False), 5)):
        calls.clear()
        learner(count, **kwargs).fit(1)
        assert len(calls) == n


class Stream(IterableDataset):
    def __iter__(self):
        yield from ((x, y) for xs, ys in digits() for x, y in zip(xs, ys))


class Loader:
    """Somebody's own; it counts its passes."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(digits())


NOT_TRIED = {
    "a stream": lambda f: learner(f, dls=cbnb.DataLoaders(digits(), DataLoader(Stream(), 8), device="cpu")),
    "a function": lambda f: learner(f, dls=cbnb.DataLoaders(digits(), lambda: iter(digits()), device="cpu")),
    "a loader of somebody's own": lambda f: learner(f, dls=cbnb.DataLoaders(digits(), Loader(), device="cpu")),
    "a callback that changes the batch": lambda f: learner(f, cbs=cbnb.Callback(before_batch=lambda self: None)),
    "a callback that changes the prediction": lambda f: learner(f, cbs=cbnb.Callback(after_pred=lambda self: None)),
    "a function as a step": lambda f: learner(f, eval_step=lambda x, y: (torch.tensor(0.0), x, y)),
    "no recorder": lambda f: learner(f, default_cbs=False),
    "a lazy model": lambda f: learner(f, model=nn.LazyLinear(3)),
}


@pytest.mark.parametrize("name", NOT_TRIED)
def test_which_fits_are_not_tried(name):
    calls = []

    def count(pred, y, ignore_index=-100):  # so that it is not called with halves of batches
        calls.append(len(y))
        return 0.0

    learn = NOT_TRIED[name](count)
    learn.fit(1)
    assert len(calls) == (0 if name.startswith("no ") else 5)
    if name == "a loader of somebody's own":
        assert learn.dls.valid.passes == 1


def test_a_fit_that_does_not_validate_is_not_tried():
    calls = []
    learn = learner(lambda pred, y, ignore_index=-100: calls.append(1) or 0.0)
    for every in (3, [5]):
        learn.fit(2, valid_every=every)
    assert calls == []
    learn.fit(3, start_epoch=2, valid_every=[])
    assert calls == []


def test_forward_hooks_are_not_called_once_more():
    learn, seen = learner(cbnb.accuracy), []
    learn.model.register_forward_hook(lambda m, args, out: seen.append(m.training))
    learn.fit(1)
    assert seen == [True] * 5 + [False] * 5


def test_a_resumed_fit_is_not_tried(tmp_path):
    class Stop(cbnb.Callback):
        def before_batch(self):
            if self.learn.epoch == 1:
                raise KeyboardInterrupt

        run_valid = False

    calls = []

    def count(pred, y, ignore_index=-100):  # so that it is not called with halves of batches
        calls.append(len(y))
        return 0.0

    learn = learner(count, path=tmp_path, cbs=cbnb.Checkpoint())
    with pytest.raises(KeyboardInterrupt):
        learn.fit(2, cbs=Stop())
    assert len(calls) == 6
    calls.clear()
    learner(count, path=tmp_path, cbs=cbnb.Checkpoint()).fit(2, resume=True)
    assert len(calls) == 5


def test_validate_and_lr_find_are_not_tried():
    calls = []
    learn = learner(lambda pred, y, ignore_index=-100: calls.append(1) or 0.0)
    learn.validate()
    assert len(calls) == 5
    learn.lr_find(show_plot=False)
    assert len(calls) == 5


ONE_CLASS = [(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)), (torch.randn(8, 2), torch.ones(8, dtype=torch.long))]


@pytest.mark.parametrize(
    "metric", [sklearn.metrics.log_loss, sklearn.metrics.roc_auc_score, sklearn.metrics.matthews_corrcoef], ids=lambda f: f.__name__
)
def test_a_batch_with_one_class_is_no_mistake(metric, recwarn):
    """The whole set has both."""
    learn = learner(metric, model=nn.Linear(2, 2), dls=cbnb.DataLoaders(ONE_CLASS, ONE_CLASS, device="cpu"))
    learn.fit(1)
    assert learn.recorder.values[0][2] is not None
    assert not [w for w in recwarn if "class" in str(w.message)]


def test_a_step_of_ones_own_keeps_its_counts():
    class Mine(Step):
        n = 0

        def loss(self, learn):
            super().loss(learn)
            self.n += 1

    learn = learner(cbnb.accuracy, eval_step=(step := Mine()))
    learn.fit(1)
    assert step.n == 5


def test_a_metric_that_cannot_be_copied_and_a_value_from_elsewhere_are_left_alone():
    class Held(cbnb.Metric):
        def __copy__(self):
            raise RuntimeError("not to be copied")

        def reset(self):
            self.n = 0

        def accumulate(self, learn):
            self.n += 1

        value = property(lambda self: self.n)

    calls = []
    learn = learner([Held(), cbnb.ValueMetric(lambda: calls.append(1) or 0.0, "calls")])
    learn.fit(1)
    assert learn.recorder.values[0][2:] == [5, 0] and len(calls) == 1


def test_what_the_user_cancels_is_no_mistake():
    class Cancels(Step):
        def predict(self, learn):
            raise cbnb.CancelBatchException

    learn = line_learner(metrics=mae, eval_step=Cancels())
    learn.fit(1)


def test_a_batch_without_an_iterator():
    ten = TensorDataset(torch.arange(10))
    assert sample_batch(DataLoader(ten, 4, shuffle=True))[0].tolist() == [0, 2, 5, 7]  # spread over the set
    assert sample_batch(DataLoader(ten, 40))[0].tolist() == list(range(10))
    assert sample_batch(DataLoader(ten, batch_sampler=[[3, 5], [1]]))[0].tolist() == [3, 1]  # of the first and the last
    assert sample_batch(DataLoader(ten, batch_size=None))[0].item() == 0
    subset = torch.utils.data.SubsetRandomSampler([7, 8, 9])
    assert set(sample_batch(DataLoader(ten, 2, sampler=subset))[0].tolist()) <= {7, 8, 9}
    assert sample_batch(DataLoader(ten, 2, num_workers=1))[0].tolist() == [0, 5]
    assert sample_batch(DataLoader(dict(a=1), 2, sampler=["a"])) is not None
    shapes = [torch.zeros(i // 5) for i in range(10)]
    assert sample_batch(DataLoader(shapes, 4)).shape == (4, 0)  # far items have other shapes: the first batch
    assert sample_batch(DataLoader(Stream(), 2)) is None and sample_batch([]) is None and sample_batch(Loader()) is None


WORDS = torch.randint(1, 9, (32, 6), generator=torch.Generator().manual_seed(0))
PADDED = WORDS.clone()
for i in range(32):
    PADDED[i, 1 + 5 * (i % 8) // 7 :] = 0


def batches(x, y, bs: int = 8) -> cbnb.DataLoaders:
    return cbnb.DataLoaders(list(zip(x.split(bs), y.split(bs))), list(zip(x.split(bs), y.split(bs))), device="cpu")


def words(loss, **kwargs):
    return learner(None, model=nn.Embedding(9, 9), dls=batches(WORDS, PADDED), loss_func=loss, **kwargs)


def items(loss, **kwargs):
    g = torch.Generator().manual_seed(0)
    dls = batches(torch.randn(32, 4, generator=g), torch.arange(32) % 3)
    return learner(None, dls=dls, loss_func=loss, **{"model": nn.Linear(4, 3)} | kwargs)


def token_mean(pred, y):
    return 1 * F.cross_entropy(pred.transpose(1, 2), y, ignore_index=0)


def with_class_weights(pred, y, weight=torch.tensor([1.0, 9.0, 2.0])):
    return F.cross_entropy(pred, y, weight=weight) + 0.1 * pred.square().mean()


def info_nce(pred, y):
    a, b = F.normalize(pred.unflatten(1, (2, -1)), dim=2).unbind(1)
    return -(a @ b.T / 0.5).log_softmax(1).diag().mean()


def of_neighbours(pred, y):
    """Another loss than the mean of its halves, with a value between them. No weight can change this"""
    z = F.normalize(pred, dim=1)
    return -(z @ z.roll(1, 0).T / 0.1).log_softmax(1).diag().mean()


class TokenStep(Step):
    def loss(self, learn):
        self.set_loss(learn, token_mean(learn.model(learn.x), learn.y))


class GivesLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 9)

    def forward(self, x, labels):
        pred = self.words(x)
        return token_mean(pred, labels), pred


def differences(learn, n: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(n):
            learn.fit(1)
    return [str(w.message) for w in said if "is not a mean over items" in str(w.message)]


WARNED = {
    "tokens": lambda: words(token_mean),
    "parts": lambda: words(lambda pred, y: dict(loss=token_mean(pred, y), size=pred.square().mean())),
    "bfloat16": lambda: words(lambda pred, y: token_mean(4 * pred.bfloat16(), y).float(), lr=0.0),
    "a step": lambda: words(None, train_step=TokenStep()),
    "a model": lambda: learner(None, model=GivesLoss(), dls=batches(WORDS, PADDED), loss_func=None),
    "class weights": lambda: items(lambda pred, y: with_class_weights(pred, y)),
    "dropout": lambda: items(with_class_weights, model=nn.Sequential(nn.Linear(4, 3), nn.Dropout())),
    "neighbours": lambda: items(of_neighbours),
    "a root": lambda: items(lambda pred, y: F.mse_loss(pred, F.one_hot(y, 3).float()).sqrt()),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_loss_that_is_no_mean_over_items_is_named_once(name):
    torch.manual_seed(0)  # with other weights, the difference in bfloat16 may be below its rounding
    said = differences(learn := WARNED[name]())
    assert len(said) == 1 and "batch_weight=lambda pred, y" in said[0]
    learn.batch_weight = lambda pred, y: (y != 0).sum()
    learn.compared_loss = None
    assert not differences(learn)


def test_another_loss_is_compared_again():
    learn = words(token_mean)
    assert len(differences(learn)) == 1
    learn.loss_func = lambda pred, y: token_mean(pred, y)
    assert len(differences(learn)) == 1


def test_the_numbers_of_the_warning():
    said = differences(learn := words(token_mean, lr=0.0), 1)[0]
    with torch.no_grad():
        pred = learn.model(WORDS[:8])
        whole, first, last = (token_mean(pred[part], PADDED[part]) for part in (slice(0, 8), slice(4), slice(4, 8)))
    assert f"it is {whole:.6g} for a validation batch of 8 items, and {first:.6g} and {last:.6g}" in said
    assert f"whose mean is {(first + last) / 2:.6g}" in said


def test_losses_that_add_up_are_named():
    (said,) = differences(items(lambda pred, y: (pred - F.one_hot(y, 3)).square().sum()))
    assert "The losses add up" in said and "return the mean over the items" in said


SILENT = {
    "a mean": lambda: items(lambda pred, y: (pred - F.one_hot(y, 3)).square().mean()),
    "a mean with large terms": lambda: items(lambda pred, y: 100 + pred.mean() - 100),
    "a mean with larger terms": lambda: items(lambda pred, y: (1e4 + pred).mean() - 1e4),
    "half precision": lambda: items(lambda pred, y: (pred - F.one_hot(y, 3)).bfloat16().square().mean().float()),
    "a penalty": lambda: items(lambda pred, y: F.cross_entropy(pred, y) + 0.1),
    "observed": lambda: words(lambda pred, y: F.cross_entropy(pred.transpose(1, 2), y, ignore_index=0)),
    "the same padding": lambda: learner(None, model=nn.Embedding(9, 9), dls=batches(WORDS, WORDS), loss_func=token_mean),
    "contrastive": lambda: items(info_nce, model=nn.Linear(4, 16)),
    "random": lambda: items(lambda pred, y: (pred + torch.randn_like(pred)).square().mean()),
    "batch statistics": lambda: items(lambda pred, y: pred.square().mean(), model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
    "statistics of the batch in evaluation": lambda: items(
        lambda pred, y: (pred - F.one_hot(y, 3)).square().mean(),
        model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)),
    ),
    "one item": lambda: learner(None, model=nn.Embedding(9, 9), dls=batches(WORDS, PADDED, 1), loss_func=token_mean),
    "no rows of items": lambda: learner(
        None, model=nn.Embedding(9, 9), dls=batches(WORDS, PADDED), loss_func=lambda pred, y, n=8: token_mean(pred.reshape(n, 6, 9), y)
    ),
    "off": lambda: words(token_mean, sanity_check=False),
    "a given weight": lambda: words(token_mean, batch_weight=lambda pred, y: (y != 0).sum()),
}


@pytest.mark.parametrize("name", SILENT)
def test_which_losses_are_not_named(name):
    torch.manual_seed(0)
    assert not differences(SILENT[name]())


def test_class_weights_are_found_in_a_sorted_set():
    """Its first batch has one class, and the mean over weighted items of one class is the mean."""
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(96, 4, generator=g), torch.arange(96) // 32)
    dls = cbnb.DataLoaders(DataLoader(data, 8, shuffle=True), DataLoader(data, 8), device="cpu")
    said = differences(learner(None, model=nn.Linear(4, 3), dls=dls, loss_func=lambda pred, y: with_class_weights(pred, y)))
    assert len(said) == 1 and "batch_weight=lambda pred, y" in said[0]


@pytest.mark.parametrize("kind", ["list", "batch sampler"])
def test_class_weights_are_found_in_sorted_batches(kind):
    """Each batch has one class: half of the first batch is compared with half of the last one of its size."""
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(100, 4, generator=g), torch.arange(100) // 34)
    numbers = [list(range(i, min(i + 8, 100))) for i in range(0, 100, 8)]  # the last batch has 4 items
    valid = [data[batch] for batch in numbers] if kind == "list" else DataLoader(data, batch_sampler=numbers)
    dls = cbnb.DataLoaders(DataLoader(data, 8, shuffle=True), valid, device="cpu")
    said = differences(learner(None, model=nn.Linear(4, 3), dls=dls, loss_func=lambda pred, y: with_class_weights(pred, y)))
    assert len(said) == 1 and "batch_weight=lambda pred, y" in said[0]


def test_a_loss_of_torch_costs_nothing():
    learn = items(nn.CrossEntropyLoss())
    learn.model.forward = lambda x, forward=learn.model.forward: calls.append(len(x)) or forward(x)
    calls = []
    learn.fit(1)
    assert calls == [8] * 8


class Counted:
    """A loss with a state of its own."""

    def __init__(self):
        self.n = 0

    def __call__(self, pred, y):
        self.n += 1
        return token_mean(pred, y)


def test_the_comparison_leaves_no_trace():
    found = []
    for check in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 9), nn.Dropout(), norm := nn.LayerNorm(9))
        told = []
        events = cbnb.Callback(after_batch=lambda self: told.append(self.training))
        learn = learner(None, model=model, dls=batches(WORDS, PADDED), loss_func=(loss := Counted()), sanity_check=check, cbs=events)
        said = differences(learn)
        found.append((learn.recorder.values, learn.recorder.losses, norm.weight.tolist(), loss.n, len(told), torch.rand(2).tolist()))
        assert len(said) == check
    assert found[0] == found[1]


@pytest.mark.parametrize("weight", [None, -1, torch.tensor(-1.0), torch.tensor(float("nan"))])
def test_a_wrong_batch_weight_is_found_before_the_fit(weight):
    learn = learner(cbnb.accuracy, batch_weight=lambda pred, y: weight, cbs=(seen := Trained()))
    with pytest.raises((TypeError, ValueError), match="batch_weight returned (None|-1|nan)") as raised:
        learn.fit(1)
    assert seen.n == 0 and "sanity_check=False" in raised.value.__notes__[-1]


def test_a_batch_sampler_of_yours_chooses_the_items():
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = DataLoader(data, batch_sampler=BatchSampler([1, 3, 5, 7, 9], 2, False))
    assert sample_batch(loader)[1].tolist() == [1, 5]


def test_a_tried_batch_leaves_no_attribute_for_callbacks_to_read():
    learn = learner(cbnb.accuracy)
    learn.fit(1)
    assert not hasattr(learn, "weight")
