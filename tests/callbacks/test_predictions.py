"""Predictions: of everything, in memory or on disk, inside of anything."""

import argparse
import csv
import dataclasses
import pickle
import signal
import threading
import warnings
import weakref
import zipfile
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import cbnb
from cbnb.basics.nested import find_bs, map_tensors
from cbnb.callbacks.predictions import (
    FetchPredsCallback,
    OfOneRun,
    SavedBatches,
    activation_of,
    decodes_of,
    forget_batches,
    in_order,
    item_losses,
    joined,
    save_batch,
    unreduced,
)
from helpers import RUN_EVENTS, Line, RaiseIn, ab, line_batches, line_learner


def in_time(f, seconds=60):
    """Run `f` in a thread, so that a hang is a failure and not the end of the tests."""
    result = []

    def work():
        try:
            result.append((True, f()))
        except BaseException as e:
            result.append((False, e))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    done, value = result[0]
    if not done:
        raise value
    return value


# runs inside of runs


class CSVLog(cbnb.Callback):
    """Someone's own logger: a new file for each fit, a line for each epoch. It knows nothing of purposes."""

    order = 70

    def __init__(self, path):
        self.path_to = path

    def before_fit(self):
        self.path_to.write_text("epoch,valid_loss\n")

    def after_epoch(self):
        with self.path_to.open("a") as f:
            csv.writer(f).writerow([self.learn.epoch, self.learn.recorder.history[-1].epochs[-1]["valid_loss"]])


class Inner(cbnb.Callback):
    """Evaluates in each occurrence of an event; once only inside of itself."""

    def __init__(self, host, what, order=0):
        super().__init__(**{host: lambda self: self.evaluate()})
        self.what, self.order, self.inside, self.n = what, order, False, 0

    def evaluate(self):
        if self.inside or self.learn.purpose == "lr_find":
            return
        self.inside = True
        try:
            self.n += 1
            self.what(self.learn)
        finally:
            self.inside = False


OTHER = line_batches(3)
WITHIN = {
    "validate": lambda learn: learn.validate(),
    "get_preds": lambda learn: learn.get_preds(dl=OTHER),
    "predict": lambda learn: learn.predict(torch.tensor(1.0)),
    "validate in get_preds": lambda learn: learn.get_preds(cbs=Inner("after_batch", lambda learn: learn.validate(dl=OTHER))),
    "get_preds in validate": lambda learn: learn.validate(cbs=Inner("after_pred", lambda learn: learn.get_preds())),
    "predict in get_preds in validate": lambda learn: learn.validate(
        cbs=Inner("before_validate", lambda learn: learn.get_preds(cbs=Inner("after_batch", WITHIN["predict"])))
    ),
    "fetch in validate": lambda learn: learn.validate(cbs=FetchPredsCallback(dl=OTHER)),
}


def full_learner(tmp_path, cbs=()):
    """With trackers, a logger and fetchers attached."""
    tmp_path.mkdir(exist_ok=True)
    learn = line_learner(3, metrics=mae, path=tmp_path)
    learn.add_cbs([cbnb.EarlyStopping(patience=5), cbnb.SaveModel(fname="best"), cbnb.ReduceLROnPlateau(patience=5)])
    learn.add_cbs([CSVLog(tmp_path / "log.csv"), FetchPredsCallback(), cbnb.callbacks.predictions.GatherPredsCallback(with_loss=True)])
    return learn.add_cbs(cbs)


def mae(pred, y):
    return (pred - y).abs().mean()


def outcome(learn, tmp_path):
    run = learn.recorder.history[-1]
    rows = [{k: v for k, v in row.items() if k != "time"} for row in run.epochs]
    trackers = [(cb.best, cb.best_epoch, cb.values) for cb in learn.cbs if isinstance(cb, cbnb.Tracker)]
    files = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    gathered = [t.tolist() for t in learn.gather_preds.all_tensors()]
    fetched = [t.tolist() for t in learn.fetch_preds.preds]
    log = (tmp_path / "log.csv").read_text()
    counts = learn.train_iter, learn.epoch, len(learn.recorder.history), run.status, list(run.raw_losses)
    return ab(learn), rows, trackers, files, gathered, fetched, log, counts


@pytest.fixture(scope="module")
def plain_outcome(tmp_path_factory):
    """Of a fit without an evaluation inside."""
    folder = tmp_path_factory.mktemp("plain")
    plain = full_learner(folder)
    in_time(lambda: plain.fit(2))
    return outcome(plain, folder)


@pytest.mark.parametrize("kind", WITHIN)
@pytest.mark.parametrize("host", [e for e in RUN_EVENTS if not e.startswith("after_cancel")])
def test_evaluation_inside_a_fit_touches_nothing(kind, host, tmp_path, plain_outcome):
    """D01, D02, D12, D13, D16: it hung, lost the rest of the epoch, wiped the history, or wrote files."""
    inner = Inner(host, WITHIN[kind])
    learn = full_learner(tmp_path / "nested", [inner])
    in_time(lambda: learn.fit(2))
    assert inner.n > 0 and outcome(learn, tmp_path / "nested") == plain_outcome


@pytest.mark.parametrize("kind", WITHIN)
@pytest.mark.parametrize("outer", ["validate", "get_preds"])
@pytest.mark.parametrize("host", ["before_validate", "before_batch", "after_pred", "after_batch", "after_validate"])
def test_evaluation_inside_an_evaluation(outer, kind, host):
    def run(learn):
        return in_time(lambda: getattr(learn, outer)(dl=OTHER))

    plain, inner = run(line_learner(3, metrics=mae)), Inner(host, WITHIN[kind])
    found = run(line_learner(3, metrics=mae, cbs=[inner, FetchPredsCallback()]))
    assert inner.n > 0
    if outer == "validate":
        assert found == plain
    else:
        assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_a_fetcher_and_then_validate():
    """D01: that hung for ever."""
    learn = line_learner(3)
    learn.add_cb(FetchPredsCallback(with_input=True, with_decoded=True))
    in_time(lambda: learn.fit(1))
    assert len(learn.fetch_preds.preds) == 4
    learn.fetch_preds.preds = None
    with learn.removed_cbs(FetchPredsCallback):
        expected = learn.validate()
    assert in_time(learn.validate) == expected
    assert [len(part) for part in learn.fetch_preds.preds] == [8] * 4


def test_what_a_fetcher_gets():
    class Noise(cbnb.Callback):
        def after_pred(self):
            self.learn.pred = self.learn.pred + 100

    learn, noise = line_learner(3), Noise()
    fetch = FetchPredsCallback(ds_idx=0, cbs=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none of its arguments hides a name of the learner
        learn.fit(1, cbs=[noise, fetch])
    x = torch.cat([x for x, _ in line_batches(3)])
    assert torch.equal(fetch.preds[0], learn.model(x).detach()) and noise.learn is None
    learn.fit(1, cbs=[noise, again := FetchPredsCallback(dl=OTHER)])
    assert torch.equal(again.preds[0], learn.model(x).detach() + 100)
    assert len(learn.cbs) == 2


def test_a_fetcher_is_usable_after_an_error():
    learn, fetch = line_learner(3), FetchPredsCallback()
    for error in (ValueError, KeyboardInterrupt):
        for run in (lambda cbs: learn.fit(1, cbs=cbs), lambda cbs: learn.validate(cbs=cbs), lambda cbs: learn.get_preds(cbs=cbs)):
            with pytest.raises(error):
                run([fetch, RaiseIn("before_validate", error, order=-50)])
            fetch.preds = None
            learn.fit(1, cbs=fetch)
            assert fetch.preds is not None


def test_one_gatherer_in_several_runs():
    learn, gather = line_learner(3), cbnb.callbacks.predictions.GatherPredsCallback()

    class Twice(cbnb.Callback):
        sizes = []

        def after_batch(self):
            if self.purpose == "fit" and self.training:
                for dl in (OTHER, OTHER[:1]):
                    self.learn.validate(dl=dl, cbs=gather)
                    self.sizes.append(len(gather.all_tensors()[0]))

    learn.fit(1, cbs=Twice)
    assert Twice.sizes == [24, 8] * 3
    learn.validate(cbs=gather)
    assert gather.all_tensors()[1].shape == (8,)


def test_persistent_workers_do_not_end_the_outer_run():
    """Their loader has one iterator, which an inner run would begin anew."""
    x = torch.arange(8.0)
    dl = DataLoader(TensorDataset(x, x), batch_size=2, num_workers=1, persistent_workers=True)
    learn = line_learner(dls=cbnb.DataLoaders(line_batches(), dl, device="cpu"))
    inner = Inner("after_batch", lambda learn: learn.get_preds())
    preds, targets = in_time(lambda: learn.get_preds(cbs=inner), 120)
    assert inner.n == 4 and torch.equal(targets, x)


# get_preds


def test_parts_may_be_left_out():
    learn = line_learner(3)
    preds, targets = learn.get_preds()
    assert learn.get_preds(with_preds=False)[0] is None and torch.equal(learn.get_preds(with_preds=False)[1], targets)
    assert torch.equal(learn.get_preds(with_targs=False)[0], preds) and learn.get_preds(with_targs=False)[1] is None
    inputs, none, none_2, losses = learn.get_preds(with_input=True, with_preds=False, with_targs=False, with_loss=True)
    assert none is none_2 is None and losses.shape == inputs.shape == (8,)
    with pytest.raises(ValueError, match="with_preds=True"):
        learn.get_preds(with_preds=False, with_decoded=True)
    with pytest.raises(ValueError, match="no batches"):
        learn.get_preds(dl=[], with_preds=False)
    with pytest.raises(TypeError, match="with_prds"):
        learn.get_preds(with_prds=False)


@pytest.mark.parametrize("kind", ["subset", "own", "weighted", "some", "own loader"])
@pytest.mark.filterwarnings("ignore:the validation loader has a length")
def test_a_sampler_over_a_part_keeps_to_it(kind):
    x = torch.arange(10.0)
    data, part, everything = TensorDataset(x, 2 * x), [7, 2, 5], list(range(10))

    class Doubled(DataLoader):
        def __iter__(self):
            return (batch for batch in super().__iter__() for _ in range(2))

    loader, expected = dict(
        subset=lambda: (DataLoader(data, 2, sampler=SubsetRandomSampler(part), drop_last=True), sorted(part)),
        own=lambda: (DataLoader(data, 2, sampler=part), sorted(part)),
        weighted=lambda: (DataLoader(data, 2, sampler=WeightedRandomSampler([1.0] * 10, 10)), everything),
        some=lambda: (DataLoader(data, 2, sampler=RandomSampler(data, num_samples=4)), everything),
        **{"own loader": lambda: (Doubled(data, 5), everything[:5] * 2 + everything[5:] * 2)},
    )[kind]()
    preds, targets = line_learner().get_preds(dl=loader)
    assert targets.tolist() == [2.0 * i for i in expected] and len(preds) == len(expected)


def test_what_has_fewer_dimensions_is_joined_over_items():
    """Batches in the second dimension; targets and losses have only one."""
    batches = [(torch.randn(7, n, 1), torch.arange(n)) for n in (3, 2)]
    model = nn.Linear(1, 4)

    def loss(pred, y, reduction="mean"):
        return nn.functional.cross_entropy(pred[-1], y, reduction=reduction)

    learn = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"), model=model, loss_func=loss)
    inputs, preds, targets, losses = learn.get_preds(with_input=True, with_loss=True, concat_dim=1)
    assert inputs.shape == (7, 5, 1) and preds.shape == (7, 5, 4) and losses.shape == (5,)
    assert targets.tolist() == [0, 1, 2, 0, 1]


def test_a_run_begun_before_the_gatherer_has_heard_of_its_own(tmp_path):
    """`predict` has no targets, and would leave its batch in the folder."""
    learn, busy = line_learner(), []

    def predict(self):
        if not busy:
            busy.append(True)
            learn.predict(torch.tensor(1.0))
            busy.append(bool(list(tmp_path.iterdir())))

    early = cbnb.Callback(before_fit=predict)
    early.run_in = ("preds",)
    learn.add_cb(early)
    preds, targets, losses = learn.get_preds(with_loss=True, save_preds=tmp_path)
    assert len(preds) == len(targets) == len(losses) == 8 and busy == [True, False]


def test_inner_leaves_out_the_outer_events():
    seen = []
    note = cbnb.Callback(**{e: (lambda self, e=e: seen.append(e)) for e in RUN_EVENTS})
    line_learner(cbs=note).get_preds(inner=True)
    assert seen == ["before_validate", "before_batch", "after_pred", "after_loss", "after_batch", "after_validate"]


def test_changes_by_later_callbacks_are_seen():
    change = cbnb.Callback(after_pred=lambda self: setattr(self.learn, "pred", self.learn.pred * 0 + 7))
    change.order = 30
    preds, _ = line_learner().get_preds(cbs=change)
    assert preds.tolist() == [7.0] * 8


def test_cancelled_batches_are_left_out():
    skip = RaiseIn("before_batch", cbnb.CancelBatchException, when=lambda learn: learn.iter == 1, phase="validate")
    preds, targets = line_learner().get_preds(dl=OTHER, cbs=skip)
    assert len(preds) == len(targets) == 16
    stop = RaiseIn("before_batch", cbnb.CancelValidException, when=lambda learn: learn.iter == 1, phase="validate")
    assert len(line_learner().get_preds(dl=OTHER, cbs=stop)[0]) == 8


@dataclasses.dataclass
class ModelOutput(OrderedDict):
    """As Hugging Face has it: a dict that is a dataclass, and does not want to be updated."""

    logits: Any = None
    hidden: Any = None
    loss: Any = None

    def __post_init__(self):
        for f in dataclasses.fields(self):
            if getattr(self, f.name) is not None:
                self[f.name] = getattr(self, f.name)

    def update(self, *args, **kwargs):
        raise TypeError("no update")

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclasses.dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    note: str = "kept"
    parts: tuple = ()


Named = namedtuple("Named", "logits extra")
KINDS = {
    "dataclass": lambda p: Frozen(p, parts=(p, [p])),
    "model output": lambda p: ModelOutput(logits=p, hidden=(p, p)),
    "dict": lambda p: {"logits": p, "nested": {"again": p}},
    "named tuple": lambda p: Named(p, {"deep": Frozen(p)}),
}


class Wrap(Line):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        return KINDS[self.kind](super().forward(x))


def logits_of(out):
    return out["logits"] if isinstance(out, dict) else out.logits


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_return_containers(kind, tmp_path):
    learn = line_learner(3, model=Wrap(kind), loss_func=lambda out, y: nn.functional.mse_loss(logits_of(out), y))
    learn.fit(1)
    x = torch.cat([x for x, _ in OTHER])
    out, targets = learn.get_preds(dl=OTHER)
    expected = learn.model(x)
    assert type(out) is type(expected) and torch.equal(logits_of(out), logits_of(expected).detach())
    assert not logits_of(out).requires_grad and logits_of(expected).requires_grad
    if kind == "model output":
        assert out["logits"] is out.logits and out.loss is None and "loss" not in out and len(out.hidden) == 2
        assert torch.equal(out.hidden[1], out.logits)
    if kind == "dataclass":
        assert torch.equal(out.parts[1][0], out.logits) and set(out.note if isinstance(out.note, list) else [out.note]) == {"kept"}
    assert torch.equal(learn.get_preds(dl=OTHER, act=lambda out: logits_of(out) * 2)[0], logits_of(out) * 2)
    _, _, decided = learn.get_preds(dl=OTHER, with_decoded=True)
    assert torch.equal(logits_of(decided), logits_of(out))
    _, one = learn.predict(x[0])
    assert logits_of(one) == logits_of(out)[0]
    saved, _ = learn.get_preds(dl=OTHER, save_preds=tmp_path / "p", with_preds=False)
    read = saved.load()
    assert torch.equal(read[0] if isinstance(read, tuple) else read["logits"], logits_of(out))
    assert find_bs(map_tensors(lambda t: t[:5], expected)) == 5


LOGITS = torch.tensor([[-1.0, 0.0], [1.0, 3.0]])


@pytest.mark.parametrize("loss_func", [nn.BCEWithLogitsLoss(), nn.functional.binary_cross_entropy_with_logits])
def test_probabilities_above_a_half_are_decided_for(loss_func):
    """A logit of 0 is a probability of exactly 0.5."""
    probabilities = activation_of(loss_func)(LOGITS)
    assert torch.equal(probabilities, 1 / (1 + (-LOGITS).exp()))
    assert decodes_of(loss_func)(probabilities).tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize("loss_func", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_the_most_probable_class_is_decided_for(loss_func):
    probabilities = activation_of(loss_func)(LOGITS)
    assert torch.allclose(probabilities.sum(1), torch.ones(2)) and decodes_of(loss_func)(probabilities).tolist() == [1, 1]


def test_other_losses_leave_predictions_as_they_are_unless_they_know_better():
    class Own(nn.MSELoss):
        def activation(self, pred):
            return pred + 1

        def decodes(self, pred):
            return pred + 2

    for loss_func in (nn.MSELoss(), nn.functional.mse_loss):
        assert activation_of(loss_func)(LOGITS) is LOGITS and decodes_of(loss_func)(LOGITS) is LOGITS
    assert torch.equal(activation_of(Own())(LOGITS), LOGITS + 1) and torch.equal(decodes_of(Own())(LOGITS), LOGITS + 2)


def test_ctrl_c_waits_until_the_loss_averages_again():
    loss_func, seen = nn.MSELoss(), []

    def forward(pred, y):
        signal.raise_signal(signal.SIGINT)
        seen.append(loss_func.reduction)
        return nn.functional.mse_loss(pred, y, reduction="none")

    loss_func.forward = forward
    with pytest.raises(KeyboardInterrupt):
        item_losses(loss_func, torch.zeros(2), (torch.ones(2),))
    assert seen == ["none"] and loss_func.reduction == "mean"


def test_callbacks_see_the_item_of_predict_as_they_see_batches():
    """Also those that listen before the others: `predict` has unpacked its batch of one item before."""
    seen = []
    early = cbnb.Callback(before_batch=lambda self: seen.append([x.shape for x in self.learn.xb]))
    early.order = -50
    early.run_in = ("preds",)
    line_learner(cbs=early).predict(torch.tensor(1.0))
    assert seen == [[(1,)]]


def test_lists_with_tensors_of_different_length_hold_one_for_each_item():
    """Boxes: three and five in the images of the first batch, two and two in the second."""
    boxes = [torch.full((n, 4), n) for n in (3, 5, 2, 2)]
    assert [len(b) for b in joined([boxes[:2], boxes[2:]])] == [3, 5, 2, 2]
    columns = joined([[torch.zeros(3, 4), torch.zeros(3)], [torch.zeros(2, 4), torch.zeros(2)]])
    assert [t.shape for t in columns] == [(5, 4), (5,)]


@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_a_gatherer_that_stays_gathers_in_each_run():
    gather = cbnb.callbacks.predictions.GatherPredsCallback()
    learn = line_learner(cbs=gather)
    for n in (1, 2):
        learn.fit(n, lr=0.0 if n == 1 else 0.1)
        weights = ab(learn)
        assert gather.all_tensors()[0].tolist() == pytest.approx([weights[1] - weights[0], weights[1] + weights[0]] * 4, abs=1)
    assert len(gather.preds) == gather.n_batches == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_dropping_ends_with_a_run_that_fails(error):
    """In the validation of a fit: no other module is in training mode there."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    batches = [(x[:, None], y[:, None]) for x, y in OTHER]
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"), model=model)
    with pytest.raises(error):
        learn.fit(1, cbs=[cbnb.MCDropoutCallback, RaiseIn("after_pred", error, phase="validate")])
    assert not any(m.training for m in model.modules())


def test_joining():
    both = joined([ModelOutput(logits=torch.zeros(2), loss=torch.tensor(1.0)), ModelOutput(logits=torch.ones(1), loss=torch.tensor(2.0))])
    assert type(both) is ModelOutput and both.logits.tolist() == [0, 0, 1] and both.loss.tolist() == [1, 2]
    assert joined([torch.zeros(2, 3), torch.ones(2, 1)], 1).shape == (2, 4)
    assert joined([None, None]) is None and joined([1, 2]) == [1, 2]


def classes_learner(loader):
    return line_learner(dls=cbnb.DataLoaders(loader, device="cpu"), model=nn.Linear(3, 2), loss_func=nn.CrossEntropyLoss())


PLANE = TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))


@pytest.mark.parametrize(
    "loader",
    [DataLoader(PLANE, 4), DataLoader(PLANE, 4, shuffle=True), [PLANE[:4]], DataLoader([PLANE[:4], PLANE[4:]], batch_size=None)],
    ids=["loader", "shuffled", "list", "whole batches"],
)
def test_predict_refuses_a_batch(loader):
    """It was taken for one item of another shape, and the answer was nonsense: class 2 of 2."""
    learn = classes_learner(loader)
    assert learn.predict(PLANE[0][0])[1].shape == (2,)
    for several in (PLANE[:3][0], (PLANE[:3][0],)):
        with pytest.raises(
            ValueError,
            match=r"takes one item, .* has the shape \(3,\),.* got the shape \(3, 3\)\. To predict several items, call learn.get_preds",
        ):
            learn.predict(several)
    with pytest.raises(ValueError, match=r"got the shape \(1, 3\): pass it without the dimension of the batch, as in x\[0\]"):
        learn.predict(PLANE[:1][0])
    with pytest.raises(ValueError, match=r"shape \(3,\),.* got the shape \(\)"):
        learn.predict(1.0)


def test_predict_refuses_several_by_name():
    class Two(nn.Module):
        def forward(self, u, v):
            return (u * v).sum(-1, keepdim=True)

    batch = dict(u=torch.ones(4, 3), v=torch.ones(4, 3), y=torch.ones(4, 1))
    learn = line_learner(dls=cbnb.DataLoaders([batch], targets="y", device="cpu"), model=Two())
    assert learn.predict(dict(v=torch.ones(3), u=torch.ones(3)))[0] == 3
    with pytest.raises(ValueError, match=r"input 'v' has the shape \(3,\),.* got the shape \(2, 3\)"):
        learn.predict(dict(u=torch.ones(3), v=torch.ones(2, 3)))


def test_predict_needs_no_training_set():
    """One that cannot be looked into, or is gone, is no reason to refuse."""

    class Gone(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            raise FileNotFoundError

    for loader in (DataLoader(Gone()), lambda: iter([PLANE[:4]]), []):
        assert classes_learner(loader).predict(PLANE[0][0])[1].shape == (2,)


def test_predict_with_names():
    class Named(nn.Module):
        def forward(self, ids, mask):
            return ids.float().sum(1) * mask[:, 0]

    batch = dict(ids=torch.ones(4, 3), mask=torch.ones(4, 1), label=torch.ones(4))
    dls = cbnb.DataLoaders([batch], [batch], targets="label", device="cpu")
    model = Named()
    model.unused = nn.Parameter(torch.zeros(()))
    learn = line_learner(dls=dls, model=model)
    for item in (dict(ids=torch.ones(3), mask=torch.ones(1)), dict(ids=torch.ones(3), mask=torch.ones(1), label=5)):
        assert learn.predict(item)[1] == 3
    assert learn.predict(item, with_input=True)[0] == {k: v for k, v in item.items() if k != "label"}


def test_predict_with_two_inputs():
    class Two(Line):
        def forward(self, x, z):
            return super().forward(x) + z

    x, z, y = torch.ones(4), torch.ones(4), torch.ones(4)
    learn = line_learner(dls=cbnb.DataLoaders([(x, z, y)], [(x, z, y)], device="cpu"), model=Two())
    inner = Inner("after_batch", lambda learn: learn.validate())
    learn.add_cb(inner)
    assert in_time(lambda: learn.predict((torch.tensor(1.0), torch.tensor(4.0))))[1] == 4 and inner.n == 1


# a loss for each item


@pytest.mark.parametrize("loss_func", [nn.MSELoss(), nn.functional.mse_loss, nn.MSELoss(reduction="sum")])
def test_losses_of_items(loss_func):
    learn = line_learner(loss_func=loss_func)
    _, targets, losses = learn.get_preds(with_loss=True)
    assert torch.equal(losses, targets**2)
    with pytest.raises(ValueError), learn.loss_not_reduced():
        assert learn.loss_func(targets, targets * 0).shape == targets.shape
        raise ValueError
    assert learn.loss_func is loss_func and getattr(loss_func, "reduction", "mean") != "none"


def test_losses_that_cannot():
    def mine(pred, y):
        return ((pred - y) ** 2).mean()

    learn = line_learner(loss_func=mine)
    with pytest.raises(TypeError, match="mine cannot"), learn.loss_not_reduced():
        pass
    assert learn.loss_func is mine and not learn.running

    def inside(pred, y, reduction="mean"):
        raise TypeError("a mistake of mine")

    with pytest.raises(TypeError, match="a mistake of mine"):
        item_losses(inside, torch.ones(1), (torch.ones(1),))


# on disk


def test_saved_batches(tmp_path):
    learn, (p, t) = line_learner(3), (tmp_path / "deep" / "p", tmp_path / "t")
    preds, targets = learn.get_preds(dl=OTHER)
    kept = learn.get_preds(dl=OTHER, save_preds=p, save_targs=t)  # kept as well
    assert torch.equal(kept[0], preds) and torch.equal(kept[1], targets)
    assert [f.name for f in sorted(p.iterdir())] == ["000000.pt", "000001.pt", "000002.pt"]
    saved, saved_targets = learn.get_preds(dl=OTHER, save_preds=p, save_targs=t, with_preds=False, with_targs=False)
    for reader, whole in ((saved, preds), (saved_targets, targets), (SavedBatches(str(p)), preds)):
        assert len(reader) == 3 and torch.equal(reader.load(), whole) and torch.equal(reader[-1], whole[16:])
        assert all(torch.equal(a, b) for a, b in zip(reader, whole.split(8), strict=True))
    # fewer batches, again: what was there of the first run is gone, and nothing else
    (p / "notes.pt").write_text("mine")
    learn.get_preds(dl=OTHER[:1], save_preds=p, with_preds=False)
    assert sorted(f.name for f in p.iterdir()) == ["000000.pt", "notes.pt"] and len(SavedBatches(p)) == 1
    with pytest.raises(FileNotFoundError, match="nowhere"):
        SavedBatches(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no batches"):
        SavedBatches(tmp_path / "empty").load()
    with pytest.raises(ValueError, match="same folder"):
        learn.get_preds(save_preds=p, save_targs=str(p))


def test_the_pickle_protocol_of_the_files_can_be_chosen(tmp_path):
    """As in fastai; it was an unexpected keyword."""

    def protocol(path):
        with zipfile.ZipFile(path) as file:
            [name] = [name for name in file.namelist() if name.endswith("data.pkl")]
            return file.read(name)[1]

    learn, want = line_learner(3), line_learner(3).get_preds(dl=OTHER)[0]
    for n in (2, 4):
        saved, _ = learn.get_preds(dl=OTHER, save_preds=tmp_path / str(n), with_preds=False, pickle_protocol=n)
        assert torch.equal(saved.load(), want) and {protocol(path) for path in saved.paths} == {n}
    gather = cbnb.callbacks.predictions.GatherPredsCallback(save_targs=tmp_path / "t", with_targs=False, pickle_protocol=4)
    learn.validate(dl=OTHER, cbs=gather)
    assert {protocol(path) for path in gather.all_tensors()[1].paths} == {4}


def test_what_is_saved_is_what_is_returned(tmp_path):
    """Probabilities, not scores."""
    x = torch.randn(6, 3)
    batches = [(x, torch.zeros(6, dtype=torch.long))]
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"), model=nn.Linear(3, 3), loss_func=nn.CrossEntropyLoss())
    preds, _ = learn.get_preds(save_preds=tmp_path)
    assert torch.allclose(preds.sum(1), torch.ones(6)) and torch.equal(SavedBatches(tmp_path).load(), preds)


def test_files_hold_their_batch_only_and_run_no_code(tmp_path):
    big = torch.zeros(100_000)
    path = save_batch(tmp_path, 0, [big[:4], Frozen(big[:2]), Named(big[:1], None)])
    assert path.stat().st_size < 10_000
    read = torch.load(path, weights_only=True)
    assert len(read[0]) == 4 and read[1]["note"] == "kept" and read[2][1] is None
    save_batch(tmp_path, 1, argparse.Namespace(a=1))  # an object of a class needs trust
    with pytest.raises(pickle.UnpicklingError) as e:
        SavedBatches(tmp_path)[1]
    assert "trust=True" in e.value.__notes__[0] and str(path.parent) in e.value.__notes__[0]
    assert SavedBatches(tmp_path, trust=True)[1].a == 1


def test_memory_stays_flat(tmp_path):
    class Alive(cbnb.Callback):
        def before_validate(self):
            self.seen, self.most = [], 0

        def after_batch(self):
            self.seen.append(weakref.ref(self.learn.pred))
            self.most = max(self.most, sum(r() is not None for r in self.seen))

    learn = line_learner()
    for kept, most in ((True, 20), (False, 2)):
        alive = Alive()
        learn.get_preds(dl=line_batches(20), cbs=alive, act=lambda p: p, with_preds=kept, with_targs=False, save_preds=tmp_path)
        assert alive.most <= most


# helpers


def test_dropout_only_in_its_runs():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 1))
    batches = [(x[:, None], y[:, None]) for x, y in OTHER]
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"), model=model)
    learn.fit(1)
    stats, modes = model[1].running_mean.clone(), [m.training for m in model.modules()]
    for _ in range(2):
        one, two = (learn.get_preds(cbs=cbnb.MCDropoutCallback)[0] for _ in range(2))
        assert not torch.equal(one, two) and torch.equal(learn.get_preds()[0], learn.get_preds()[0])
        with pytest.raises(ValueError):
            learn.get_preds(cbs=[cbnb.MCDropoutCallback, RaiseIn("after_pred", ValueError, phase="validate")])
    assert torch.equal(model[1].running_mean, stats) and [m.training for m in model.modules()] == modes
    learn.fit(2, valid_every=[0], cbs=cbnb.MCDropoutCallback)
    assert all(m.training for m in model.modules())  # the last phase was a training
    with pytest.raises(ValueError, match="no dropout layers"):
        line_learner().get_preds(cbs=cbnb.MCDropoutCallback)


def test_changed_batches():
    double = cbnb.callbacks.predictions.before_batch_cb(lambda cb, xb, yb: ((xb[0] * 2,), yb))
    learn = line_learner()
    learn.fit(1)
    (plain, _), (twice, _) = learn.get_preds(), learn.get_preds(cbs=double)
    b = learn.model.b.item()
    assert torch.allclose(twice - b, 2 * (plain - b))


def test_an_evaluation_of_ones_own():
    learn, gather = line_learner(3), cbnb.callbacks.predictions.GatherPredsCallback()
    learn.fit(1)
    rows = len(learn.recorder.history[-1].epochs)
    with learn.validation_context(cbs=gather) as evaluate:
        evaluate(OTHER)
        first = gather.all_tensors()[0]
        evaluate(OTHER[:1])
    assert len(first) == 24 and len(gather.all_tensors()[0]) == 8
    assert not learn.running and len(learn.recorder.history[-1].epochs) == rows
    assert not learn.to_detach({"a": learn.model(torch.ones(2))})["a"].requires_grad


@pytest.mark.parametrize("n, kind", [(40, list), (48, list), (40, tuple)])
def test_tensors_for_each_item_are_not_taken_for_columns(n, kind, tmp_path):
    """The boxes of each image, as collate functions of detection make them; a tuple is told by its length alone."""

    def boxes(items):
        return torch.stack([x for x, _ in items]), kind(torch.full((int(i) % 3 + 1, 4), i) for _, i in items)

    ds = torch.utils.data.TensorDataset(torch.randn(n), torch.arange(float(n)))
    dl = torch.utils.data.DataLoader(ds, 16, collate_fn=boxes)
    learn = line_learner(loss_func=lambda pred, targs: pred.mean())
    _, targs = learn.get_preds(dl=dl, save_targs=tmp_path)
    assert [t.shape for t in targs] == [(i % 3 + 1, 4) for i in range(n)] and [t[0, 0] for t in targs] == list(range(n))
    assert [t[0, 0] for t in SavedBatches(tmp_path).load()] == list(range(n))


def test_a_loss_that_averages_in_spite_of_reduction_is_called_for_each_item():
    learn = line_learner(loss_func=lambda pred, y, **kwargs: (pred - y).abs().mean())
    pred, y, found = learn.get_preds(with_loss=True)
    assert torch.equal(found, (pred - y).abs())


def test_predict_within_a_fit_whose_callbacks_validate_first():
    class Peek(cbnb.Callback):
        order = -50
        record = found = None

        def after_batch(self):
            if self.purpose == "fit" and self.training and self.iter == 0:
                self.found = self.learn.predict(torch.tensor(1.0))

        def before_validate(self):
            if self.purpose == "preds":
                self.record = self.learn.validate()

    learn, peek = line_learner(), Peek()
    with learn.no_logging():
        learn.fit(1, cbs=peek)
    assert len(peek.record) == 1 and peek.found[1].shape == ()


class Detector(Line):
    """As many boxes for an item as its number says."""

    def forward(self, x):
        return [{"boxes": torch.arange(4.0 * (int(i) + 1)).view(-1, 4)} for i in x]


def test_predicting_several_boxes_for_an_item():
    learn = line_learner(model=Detector(), loss_func=lambda pred, y: torch.zeros(()))
    decision, pred = learn.predict(torch.tensor(2.0))
    assert pred["boxes"].shape == decision["boxes"].shape == (3, 4)
    preds, _ = learn.get_preds(dl=[torch.arange(3.0), torch.arange(2.0)])
    assert [len(p["boxes"]) for p in preds] == [1, 2, 3, 1, 2]


def test_numpy_arrays_are_items():
    learn = line_learner()
    preds, _ = learn.get_preds(dl=list(torch.arange(5.0).split(2)), act=lambda pred: pred.numpy())
    assert len(preds) == 5 and joined(["ab", "cd"]) == ["ab", "cd"]


def test_a_fetcher_refuses_what_can_be_iterated_once():
    with pytest.raises(TypeError, match="a generator can be iterated only once"):
        FetchPredsCallback(dl=(batch for batch in line_batches()))


def test_there_is_no_loss_for_each_item_without_a_loss_func():
    """It said that NoneType has no attribute `reduction`."""

    class Tagger(nn.Linear):
        def forward(self, x, labels=None):
            pred = super().forward(x)
            return dict(loss=(pred - labels).square().mean(), logits=pred)

    batches = [dict(x=torch.ones(2, 1), labels=torch.ones(2, 1))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="cpu"), Tagger(1, 1))
    with pytest.raises(TypeError, match="the learner has no loss_func, and a model or a step computes only one loss for a batch"):
        learn.get_preds(with_loss=True)


# the parts


def test_a_gatherer_of_a_fit_ignores_what_runs_before_its_first_validation():
    """The run inside of the fit is not taken for the one to which it was added."""
    learn, gather, sizes = line_learner(), cbnb.callbacks.predictions.GatherPredsCallback(), []
    inside = cbnb.Callback(
        before_train=lambda self: self.learn.validate(dl=OTHER), before_validate=lambda self: sizes.append(gather.n_batches)
    )
    inside.run_in, inside.order = ("fit",), -5
    learn.fit(2, cbs=[gather, inside])
    assert sizes == [0, 1] and len(gather.all_tensors()[0]) == 8


def test_a_callback_of_one_run_is_at_home_in_each_run_of_its_own():
    class Home(OfOneRun):
        def after_validate(self):
            seen.append((self.purpose, self.at_home()))

    seen, home = [], Home()
    inner = Inner("before_validate", lambda learn: learn.get_preds())
    learn = line_learner(cbs=[home, inner])
    learn.fit(1), learn.validate(), learn.get_preds()
    assert seen == [("preds", False), ("fit", True), ("preds", False), ("validate", True), ("preds", False), ("preds", True)]
    assert not hasattr(home, "learn") or home.learn.undo is None
    with pytest.raises(ZeroDivisionError):
        learn.validate(cbs=RaiseIn("after_pred", ZeroDivisionError, phase="validate"))
    seen.clear(), learn.validate()
    assert seen[-1] == ("validate", True)


class Plain:
    def __call__(self, pred, y):
        return pred.mean()


@pytest.mark.parametrize("loss_func, name", [(print, "print"), (dict.update, "update"), (Plain(), "Plain")])
def test_a_loss_that_takes_no_reduction_is_named(loss_func, name):
    with pytest.raises(TypeError, match=f"{name} cannot give a loss for each item"), unreduced(loss_func):
        pass


def test_the_losses_of_an_item_are_averaged():
    losses = item_losses(
        nn.functional.mse_loss,
        torch.zeros(2, 2, 2, requires_grad=True),
        (torch.tensor([[[1.0, 1.0], [1.0, 3.0]], [[0.0, 0.0], [0.0, 2.0]]]),),
    )
    assert losses.tolist() == [3, 1] and not losses.requires_grad
    with pytest.raises(ValueError, match="with_loss needs targets, but this loader has none"):
        item_losses(nn.MSELoss(), torch.zeros(2), ())


PAIR = namedtuple("PAIR", "a b")
T12, T3 = torch.tensor([1.0, 2.0]), torch.tensor([3.0])


@pytest.mark.parametrize(
    "parts, whole",
    [
        ([T12, T3], [1, 2, 3]),
        ([torch.tensor(1), torch.tensor(2)], [1, 2]),
        ([(T12, T12), (T3, T3)], ([1, 2, 3], [1, 2, 3])),
        ([[T12, T12], [T3, T3]], [[1, 2, 3], [1, 2, 3]]),
        ([PAIR(T12, None), PAIR(T3, None)], PAIR([1, 2, 3], None)),
        ([{"a": T12, "b": (T12,)}, {"a": T3, "b": (T3,)}], {"a": [1, 2, 3], "b": ([1, 2, 3],)}),
        ([["x", "y"], ["z", "u"]], ["x", "y", "z", "u"]),
        ([("x", "y"), ("z",)], ["x", "y", "z"]),
        ([None, 1], [None, 1]),
        ([[T12, T3], [T3, T3]], [[1, 2], [3], [3], [3]]),
        ([[torch.tensor(1.0), T12], [torch.tensor(2.0), T12]], [[1, 2], [1, 2, 1, 2]]),
        ([[1.0, 2.0], [3.0, 4.0]], [1, 2, 3, 4]),
    ],
)
def test_batches_joined(parts, whole):
    def plain(v):
        return (
            v.tolist()
            if isinstance(v, torch.Tensor)
            else v
            if isinstance(v, str)
            else map_plain(v)
            if isinstance(v, (list, tuple, dict))
            else v
        )

    def map_plain(v):
        if isinstance(v, dict):
            return {k: plain(x) for k, x in v.items()}
        return type(v)(*map(plain, v)) if hasattr(v, "_fields") else type(v)(map(plain, v))

    found = joined(parts)
    assert plain(found) == whole and type(found) is (torch.Tensor if isinstance(parts[0], torch.Tensor) else type(whole))


def test_joining_along_another_dimension():
    assert joined([(torch.zeros(2, 3), T12), (torch.zeros(2, 1), T3)], 1)[0].shape == (2, 4)
    assert joined([(torch.zeros(2, 3), T12), (torch.zeros(2, 1), T3)], 1)[1].tolist() == [1, 2, 3]
    assert [t.shape for t in joined([torch.zeros(2, 3), torch.zeros(1, 4)])] == [(3,), (3,), (4,)]  # of different sizes
    assert joined([{"a": (torch.zeros(2, 3),)}] * 2, 1)["a"][0].shape == (2, 6)
    assert joined([torch.zeros(2, 3, 1)] * 2, 2).shape == (2, 3, 2) and joined([(None, None)] * 2) == (None, None)


def test_files_of_batches_are_in_the_order_of_their_numbers(tmp_path):
    for i in (1_000_000, 999_999, 2):
        assert save_batch(tmp_path / "deep", i, torch.tensor([i])).name == f"{i:06d}.pt"
    (tmp_path / "deep" / "00001.pt").write_text("mine")
    saved = SavedBatches(tmp_path / "deep")
    assert [t.item() for t in saved] == [2, 999_999, 1_000_000] and len(saved) == 3 and saved.load().tolist() == [2, 999_999, 1_000_000]
    assert repr(saved) == f"SavedBatches({str(tmp_path / 'deep')!r}: 3 batches)"
    forget_batches(tmp_path / "deep"), forget_batches(tmp_path / "nowhere")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["00001.pt"] and not (tmp_path / "nowhere").exists()


def test_batches_on_disk_are_joined_along_a_dimension(tmp_path):
    for i in range(2):
        save_batch(tmp_path, i, (torch.zeros(2, 3, requires_grad=True), {"a": (T12,)}))
    one, other = SavedBatches(tmp_path).load(1)
    assert one.shape == (2, 6) and not one.requires_grad and other["a"][0].tolist() == [1, 2, 1, 2]


def test_parts_in_their_order():
    learn = line_learner(
        loss_func=nn.BCEWithLogitsLoss(), dls=cbnb.DataLoaders([(T12, torch.ones(2))], [(T12, torch.ones(2))], device="cpu")
    )
    inputs, preds, targets, decided, losses = learn.get_preds(with_input=True, with_decoded=True, with_loss=True)
    assert torch.equal(inputs, T12) and preds.tolist() == [0.5, 0.5] and targets.tolist() == [1, 1] and decided.tolist() == [False, False]
    assert losses.tolist() == pytest.approx([0.6931472] * 2)
    preds, targets, decided = learn.get_preds(with_decoded=True)
    assert preds.tolist() == [0.5, 0.5] and decided.dtype == torch.bool
    assert learn.get_preds(act=lambda pred: pred + 7)[0].tolist() == [7, 7]
    assert learn.get_preds(0)[1].tolist() == [1, 1] and len(learn.get_preds(dl=[T3])) == 2
    preds, targets = learn.get_preds(dl=[T3])
    assert preds.tolist() == [0.5] and targets is None
    inputs, preds, none = learn.get_preds(dl=[T3], with_input=True)
    assert inputs.tolist() == [3] and none is None


def test_no_prediction_is_an_error_of_its_own():
    learn = line_learner(cbs=RaiseIn("before_batch", cbnb.CancelBatchException, phase="validate"))
    with pytest.raises(ValueError, match="no batch has a prediction"):
        learn.get_preds()


def test_in_order_unless_you_say_no():
    data = TensorDataset(torch.arange(40.0), torch.arange(40.0))
    loader = DataLoader(data, 8, shuffle=True, drop_last=True)
    learn = line_learner()
    assert learn.get_preds(dl=loader)[1].tolist() == list(range(40))
    torch.manual_seed(0)
    mixed = learn.get_preds(dl=loader, reorder=False)[1].tolist()
    assert mixed != sorted(mixed) and sorted(mixed) == list(range(40))


def test_which_loaders_are_made_anew():
    data = TensorDataset(torch.arange(10.0))
    plain, cut, mixed = DataLoader(data, 4), DataLoader(data, 4, drop_last=True), DataLoader(data, 4, shuffle=True)
    assert in_order(plain) is plain and in_order([1]) == [1] and in_order(cut) is not cut
    assert [len(batch[0]) for batch in in_order(cut)] == [4, 4, 2] == [len(batch[0]) for batch in in_order(mixed)]
    own = DataLoader(data, batch_sampler=[[1, 0], [3, 2]])
    alone = DataLoader(data, batch_size=None)
    assert in_order(own) is own and in_order(alone) is alone

    def collate(items):
        return len(items)

    again = in_order(DataLoader(data, 3, shuffle=True, collate_fn=collate, timeout=0))
    assert again.batch_size == 3 and list(again) == [3, 3, 3, 1]


def test_predicting_draws_no_random_numbers():
    """It looks at an item of the training set, which may be transformed at random."""

    class Noisy(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.rand(3), 0

    learn = classes_learner(DataLoader(Noisy(), 2))
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    learn.predict(torch.zeros(3))
    assert torch.equal(torch.rand(2), want)


def test_what_predict_returns():
    learn = classes_learner([PLANE[:4]])
    item = PLANE[0][0]
    decision, probabilities = learn.predict(item)
    assert decision.shape == () and decision == probabilities.argmax() and probabilities.sum() == pytest.approx(1)
    given, again, _ = learn.predict(item, with_input=True)
    assert given is item and again == decision
    with pytest.raises(ValueError, match=r"the input has the shape \(3,\)"):
        learn.predict(torch.zeros(2, 3))


def test_an_iterable_dataset_is_not_begun_to_check_an_item():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            raise AssertionError("begun")

        def __getitem__(self, i):
            raise AssertionError("indexed")

    assert classes_learner(DataLoader(Stream(), 2)).predict(torch.zeros(3))[1].shape == (2,)


@pytest.mark.parametrize("reorder", [True, False])
def test_a_fetcher_passes_its_settings_on(reorder):
    learn, seen = line_learner(3), []
    learn.get_preds = lambda *args, **kwargs: seen.append((args, kwargs)) or "found"
    fetch = FetchPredsCallback(0, OTHER, True, True, reorder=reorder)
    learn.fit(2, cbs=fetch)
    assert seen == [((0, OTHER, True, True), dict(reorder=reorder))] * 2 and fetch.preds == "found"
    assert FetchPredsCallback().preds is None


def test_dropping_is_over_when_the_phase_is():
    model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    batches = [(x[:, None], y[:, None]) for x, y in OTHER]
    learn, seen = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"), model=model), []
    look = cbnb.Callback(
        **{
            name: lambda self, name=name: seen.append((name, model[1].training, model[0].training))
            for name in ("after_pred", "after_validate")
        }
    )
    look.run_in, look.order, look.run_train = ("validate",), 99, False
    learn.validate(dl=batches[:1], cbs=[cbnb.MCDropoutCallback, look])
    assert seen == [("after_pred", True, False), ("after_validate", False, False)]


def test_cutting_a_batch_from_the_graph():
    learn, t = line_learner(), torch.ones(2, requires_grad=True) * 2
    for cpu in (True, False):
        [found] = learn.to_detach([t], cpu)
        assert not found.requires_grad and found.data_ptr() == t.data_ptr()


def test_what_was_not_saved_is_not_read(tmp_path):
    """A folder that is not there, since no batch had targets."""
    gather = cbnb.callbacks.predictions.GatherPredsCallback(
        save_preds=tmp_path / "p", save_targs=tmp_path / "t", with_preds=False, with_targs=False
    )
    line_learner().validate(dl=[T12], cbs=gather)
    preds, targets = gather.all_tensors()
    assert len(preds) == 1 and targets is None and preds.trust is False and (preds.load() == 0).all()
    kept = cbnb.callbacks.predictions.GatherPredsCallback(save_preds=tmp_path / "p")
    line_learner().validate(cbs=kept)
    assert isinstance(kept.all_tensors()[0], torch.Tensor) and len(SavedBatches(tmp_path / "p")) == 1
    high = cbnb.callbacks.predictions.GatherPredsCallback(save_preds=tmp_path / "h", with_preds=False, pickle_protocol=4)
    line_learner().validate(cbs=high)
    assert high.all_tensors()[0].trust is True
    low = cbnb.callbacks.predictions.GatherPredsCallback(save_preds=tmp_path / "l", with_preds=False, pickle_protocol=3)
    line_learner().validate(cbs=low)
    assert low.all_tensors()[0].trust is False


def test_a_gatherer_of_validation_sees_no_training_batch():
    gather = cbnb.callbacks.predictions.GatherPredsCallback(with_input=True, with_loss=True)
    learn = line_learner(3)
    learn.fit(1, cbs=gather)
    assert gather.n_batches == 1 and [len(part) for part in (gather.inputs, gather.preds, gather.targets, gather.losses)] == [1] * 4
    inputs, preds, targets, losses = gather.all_tensors()
    assert losses.tolist() == pytest.approx(((preds - targets) ** 2).tolist()) and len(inputs) == 8


@pytest.mark.parametrize(
    "name, call", [("predict", lambda learn: learn.predict(torch.tensor(1.0))), ("get_preds", lambda learn: learn.get_preds())]
)
def test_an_error_says_what_was_called(name, call):
    learn = line_learner(cbs=RaiseIn("after_pred", ZeroDivisionError, phase="validate"))
    with pytest.raises(ZeroDivisionError) as caught:
        call(learn)
    assert any(f", {name}, batch 0" in note for note in caught.value.__notes__), caught.value.__notes__


@pytest.mark.parametrize("data, words", [
    (torch.rand(4, 3).numpy(), "the batch contains values of type ndarray"),
    (torch.rand(4, 3).double(), "convert the data with x.float()"),
])  # fmt: skip
def test_the_error_for_unconverted_inputs_says_how_to_convert_them(data, words):
    batches = [(torch.rand(4, 3), torch.rand(4, 1))]
    learn = cbnb.Learner(cbnb.DataLoaders(batches, device="cpu"), torch.nn.Linear(3, 1), torch.nn.MSELoss())
    with pytest.raises((TypeError, RuntimeError)) as error:
        learn.get_preds(dl=[(data,)])
    assert any(words in note for note in error.value.__notes__)
    with pytest.raises(TypeError, match=r"dl=\[\(x,\)\] without targets"):
        learn.get_preds(dl=torch.rand(4, 3))


def test_fetch_removes_callbacks_that_are_flagged_remove_on_fetch():
    """As in fastai; callbacks of its dialect carry the flag as they are."""

    class Counts(cbnb.Callback):
        n = 0

        def before_validate(self):
            self.n += 1

    class Flagged(Counts):
        remove_on_fetch = True

    learn, both = line_learner(3), [Counts(), Flagged()]
    learn.fit(2, cbs=[FetchPredsCallback(), *both])
    assert [cb.n for cb in both] == [4, 2] and learn.cbs == (learn.train_eval, learn.recorder, *learn.cbs[2:])
    learn.add_cbs([FetchPredsCallback(), *both])
    learn.validate()
    assert [cb.n for cb in both] == [6, 3] and all(cb in learn.cbs for cb in both)


def test_the_arguments_of_gather_preds_have_the_order_of_fastai(tmp_path):
    gather = cbnb.callbacks.predictions.GatherPredsCallback(True, True, tmp_path / "p", tmp_path / "t", False, False, 1, 3)
    assert (gather.concat_dim, gather.pickle_protocol, gather.act) == (1, 3, None)


def test_a_module_without_the_argument_reduction_is_called_for_each_item():
    class Focal(nn.Module):
        def forward(self, pred, y):
            return nn.functional.mse_loss(pred, y) ** 2

    class WithReduction(Focal):
        def forward(self, pred, y, reduction="mean"):
            return nn.functional.mse_loss(pred, y, reduction=reduction)

    data = torch.zeros(2), (torch.ones(2),)
    assert item_losses(Focal(), *data).tolist() == [1, 1]
    assert item_losses(WithReduction(), *data).tolist() == [1, 1]


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_the_loss_of_an_item_is_the_first_value_of_a_loss_with_parts(form):
    def loss(pred, y, reduction="mean"):
        error, size = nn.functional.cross_entropy(pred, y, reduction=reduction), pred.square().mean()
        return dict(loss=error, size=size) if form == "dict" else (error, size)

    x, y = torch.randn(20, 3), torch.randint(0, 4, (20,))
    batches = list(zip(x.split(8), y.split(8)))
    learn = cbnb.Learner(cbnb.DataLoaders(batches, batches, device="cpu"), nn.Linear(3, 4), loss)
    *_, losses = learn.get_preds(with_loss=True)
    with torch.no_grad():
        assert torch.allclose(losses, nn.functional.cross_entropy(learn.model(x), y, reduction="none"))
    assert learn.interpret().mean_loss() == pytest.approx(learn.validate()[0])


class Rows(torch.utils.data.Dataset):
    def __init__(self, labelled):
        self.labelled = labelled

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return dict(x=torch.tensor([float(i), 1.0])) | (dict(label=torch.tensor(i % 2)) if self.labelled else {})


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 2)

    def forward(self, x):
        return self.line(x)


def test_new_items_of_a_dict_need_no_label():
    dls = cbnb.DataLoaders.from_datasets(Rows(True), Rows(True), bs=4, targets="label", device="cpu")
    learn = cbnb.Learner(dls, ByName(), nn.CrossEntropyLoss(), lr=0.1)
    preds, targets = learn.get_preds(dl=dls.test_dl(Rows(False)))
    x = torch.stack([Rows(False)[i]["x"] for i in range(10)])
    assert torch.equal(preds, learn.model(x).softmax(1)) and targets is None
    assert learn.get_preds()[1].tolist() == [0, 1] * 5  # those with labels have them, then as before
    with pytest.raises(ValueError, match="this loader has none"):
        learn.get_preds(dl=dls.test_dl(Rows(False)), with_loss=True)
    learn.dls = cbnb.DataLoaders.from_datasets(Rows(False), bs=4, targets="label", device="cpu")
    with pytest.raises(KeyError, match="no entry 'label'"):
        learn.fit(1)


class Own(nn.Module):
    """A loss with the setting `reduction`, which is not one of torch."""

    reduction = "sum"

    def forward(self, pred, y):
        losses = (pred - y) ** 2
        return losses if self.reduction == "none" else getattr(losses, self.reduction)()


@pytest.mark.parametrize(
    "loss, losses",
    [
        (nn.MSELoss(), [5, 2]),
        (nn.MSELoss(reduction="sum"), [10, 4]),
        (nn.MSELoss(reduction="none"), [5, 2]),
        (Own(), [5, 2]),
        (lambda pred, y: ((pred - y) ** 2).sum(), [10, 4]),
    ],
)
def test_which_losses_of_an_item_are_added_is_what_the_docstring_says(loss, losses):
    pred, y = torch.tensor([[1.0, 3.0], [0.0, 2.0]]), torch.zeros(2, 2)
    assert item_losses(loss, pred, (y,)).tolist() == losses


@pytest.mark.parametrize("item", [None, "a.png", {"x": 1.0}, object(), [], [1.0, 2.0]])
def test_predict_shows_what_is_not_an_item(item):
    with pytest.raises(TypeError, match="predict takes one item.* but got") as e:
        classes_learner(DataLoader(PLANE, 4)).predict(item)
    assert len(str(e.value)) < 300 and " at 0x" not in str(e.value)


@pytest.mark.parametrize("given", [dict(save_preds=True), dict(save_targs=3), dict(act="softmax")])
def test_get_preds_refuses_wrong_arguments_before_the_first_batch(given):
    name = next(iter(given))
    with pytest.raises(TypeError, match=f"{name}={given[name]!r} is not"):
        classes_learner(DataLoader(PLANE, 4)).get_preds(0, **given)
