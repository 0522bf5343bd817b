"""Parts of a loss, functions as steps, and what a loop written by hand does at its epochs."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Dataset, IterableDataset, RandomSampler, Subset
from torch.utils.data.distributed import DistributedSampler

import cbnb.all as cbnb
from cbnb.basics.loaders import set_epoch
from cbnb.callbacks.model_loss import ModelLossStep
from cbnb.callbacks.steps import TrainStep
from cbnb.step import PredictStep
from helpers import Line, ab, line_batches, line_learner


def ragged():
    torch.manual_seed(3)
    x, y = torch.randn(20, 3), torch.randint(0, 4, (20,))
    return list(zip(x.split(8), y.split(8)))


def net():
    torch.manual_seed(1)
    return nn.Linear(3, 4)


def terms(pred, y):
    policy, value = F.cross_entropy(pred, y), pred.square().mean()
    return policy + 0.1 * value, policy, value


def by_hand(n_epoch=2):
    model, rows = net(), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_epoch):
        sums = torch.zeros(2, 3, dtype=torch.float64)
        for training in (True, False):
            for x, y in ragged():
                found = terms(model(x), y)
                if training:
                    found[0].backward()
                    opt.step()
                    opt.zero_grad()
                sums[0 if training else 1] += torch.stack(found).detach().double() * len(x) / 20
        rows.append([*sums[0, 1:].tolist(), *sums[1].tolist()])
    return model, rows


KINDS = ["tuple", "dict", "function", "eval_step", "model"]


def parts_learner(kind, **kwargs):
    model, dls = net(), cbnb.DataLoaders(ragged(), ragged(), device="cpu")
    names = ("loss", "policy", "value")

    def named(pred, y):
        return dict(zip(names, terms(pred, y)))

    def step(x, y):
        return named(model(x), y)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x, labels):
            return named(self.net(x), labels) | dict(logits=self.net(x))

    settings = dict(
        tuple=dict(loss_func=terms),
        dict=dict(loss_func=named),
        function=dict(train_step=step),
        eval_step=dict(train_step=step, eval_step=lambda x, y: (*terms(model(x), y), model(x), y)),
        model=dict(model=Whole(), train_step=ModelLossStep()),
    )[kind]
    settings = dict(model=model, opt_func=torch.optim.SGD, lr=0.1, metrics=cbnb.accuracy) | settings
    learn = cbnb.Learner(dls, settings.pop("model"), **settings, **kwargs).remove_cb(cbnb.ProgressCallback)
    learn.logger = lambda row: None
    return learn, model


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_columns_and_the_loss_alone_is_trained(kind):
    learn, model = parts_learner(kind)
    learn.fit(2)
    other, rows = by_hand()
    assert torch.equal(model.weight, other.weight)
    unnamed = ("loss_1", "loss_2")
    names = unnamed if kind == "tuple" else ("policy", "value")
    valid = unnamed if kind in ("tuple", "eval_step") else names
    run = learn.recorder.last()
    assert run.metric_names == ["epoch", "train_loss", *names, "valid_loss", "accuracy", *(f"valid_{n}" for n in valid), "time"]
    for row, wanted in zip(run.epochs, rows):
        found = [row[n] for n in (*names, "valid_loss", *(f"valid_{n}" for n in valid))]
        assert found == pytest.approx(wanted, abs=1e-6)
    assert learn.validate() == pytest.approx(learn.recorder.values[-1][3:])
    assert len(run.steps[names[0]]) == 6 and "accuracy" not in run.steps


@pytest.mark.parametrize("out", ["dict", "loss_func"])
def test_several_numbers_and_no_loss_name_the_fix(out):
    def both(*_):
        return dict(policy=torch.tensor(1.0), reward=torch.tensor(2.0))

    learn = line_learner(**{"train_step" if out == "dict" else "loss_func": both})
    with pytest.raises(TypeError, match="'policy', 'reward', but no entry .loss.: return the total to train with"):
        learn.fit(1)


def test_an_accuracy_beside_the_loss_is_not_added_to_it():
    model = Line()
    learn = line_learner(model=model, loss_func=None, train_step=lambda x, y: (F.mse_loss(model(x), y), 0.5))
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08)) and list(learn.recorder.last().raw_losses) == pytest.approx([13, 8.32])
    assert learn.recorder.history[-1, "loss_1"] == learn.recorder.history[-1, "valid_loss_1"] == [0.5]


def test_parts_are_mixed_as_the_loss():
    learn = line_learner(loss_func=lambda p, y: dict(loss=F.mse_loss(p, y), again=F.mse_loss(p, y)), cbs=cbnb.MixUp(0.4))
    learn.fit(1)
    run = learn.recorder.last()
    assert run.steps["again"] == pytest.approx(list(run.raw_losses))


def test_a_validation_in_some_epochs_adds_its_columns_or_keeps_the_values():
    learn = line_learner(loss_func=lambda p, y: (F.mse_loss(p, y), p.mean()))
    learn.fit(2, valid_every=2)
    run = learn.recorder.last()
    assert run["valid_loss_1"] == [None, pytest.approx(learn.model.b.item())]


# --- functions as steps ---


class Spoiled(Line):
    """Notes its modes."""

    def __init__(self):
        super().__init__()
        self.modes = []

    def forward(self, x):
        self.modes.append((self.training, torch.is_grad_enabled()))
        return super().forward(x)


@pytest.mark.parametrize("first", ["validate", "fit"])
def test_a_function_that_computes_the_loss_evaluates_without_an_update(first):
    model = Spoiled()
    learn = line_learner(model=model, loss_func=None, train_step=lambda x, y: F.mse_loss(model(x), y))
    if first == "validate":
        assert learn.validate() == [13] and ab(learn) == (0, 0) and learn.opt is None
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08)) and learn.recorder.values[0][1] == pytest.approx(5.3248)
    assert learn.validate() == [pytest.approx(5.3248)] and model.modes[-1] == (False, False) and model.training is False
    assert ab(learn) == pytest.approx((0.72, 1.08))


@pytest.mark.filterwarnings("ignore:opt_func is not used")
def test_a_function_that_updates_is_not_called_in_validation_and_the_fit_says_so_once():
    model, calls = Line(), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        calls.append(1)
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        return loss

    learn = line_learner(model=model, loss_func=None, train_step=cbnb.UpdateStep(step, opt))
    assert learn.validate() == [None] and ab(learn) == (0, 0) and not calls
    with pytest.warns(
        UserWarning, match="so validation cannot call it, and there is no valid_loss: pass loss_func=.*PredictStep"
    ) as warned:
        learn.fit(2)
    assert len(warned) == 1 and len(calls) == 4
    learn = line_learner(model=model, loss_func=None, train_step=cbnb.UpdateStep(step, opt), eval_step=PredictStep())
    learn.fit(1)
    assert learn.validate() == [None]


def test_a_dict_of_eval_step_has_loss_columns_and_prediction():
    def evaluate(x, y):
        return dict(loss=F.mse_loss(learn.model(x), y), bias=(learn.model(x) - y).mean(), pred=learn.model(x))

    learn = line_learner(eval_step=evaluate, metrics=cbnb.AvgMetric(lambda p, y: (p - y).abs().max(), "worst"))
    assert learn.validate() == [13, 5, -3]


@pytest.mark.parametrize("base", [cbnb.Step, TrainStep])
def test_a_step_with_its_own_loss_needs_no_loss_func(base):
    class Mine(base):
        def loss(self, learn):
            self.set_loss(learn, (F.mse_loss(learn.pred, learn.y), learn.pred.mean()))

    learn = line_learner(loss_func=None, train_step=Mine())
    learn.fit(1)
    assert ab(learn) == pytest.approx((0.72, 1.08))
    assert learn.recorder.history[-1, "valid_loss_1"] == [pytest.approx(1.08)]


# --- the state of the last fit ---


def test_later_runs_see_the_counters_of_the_end_of_the_fit():
    seen = []
    note = cbnb.Callback(before_batch=lambda self: seen.append((self.learn.purpose, self.pct_train, self.learn.epoch, self.train_iter)))
    note.run_in = ("fit", "validate", "preds")
    learn = line_learner(cbs=note)
    learn.validate()
    learn.fit(3)
    del seen[1:-1]
    learn.validate()
    learn.get_preds()
    assert seen == [("validate", 0, 0, 0), ("fit", 1, 2, 6), ("validate", 1, 2, 6), ("preds", 1, 2, 6)]
    learn.fit(1)
    assert seen[-3:] == [("fit", 0, 0, 0), ("fit", 0.5, 0, 1), ("fit", 1, 0, 2)]


# --- epochs of samplers and datasets ---


class Epochs(Dataset):
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor(float(i)), torch.tensor(0.0)


class OfBatches(BatchSampler):
    def set_epoch(self, epoch):
        self.epoch = epoch


def test_set_epoch_reaches_samplers_and_datasets_at_any_depth():
    data, inner = Epochs(), Epochs()
    both = ConcatDataset([Subset(data, range(8)), Subset(inner, range(4))])
    sampler = OfBatches(DistributedSampler(both, 1, 0), 4, False)
    dl = DataLoader(both, batch_sampler=sampler)
    set_epoch(dl, 5)
    assert data.epochs == inner.epochs == [5] and sampler.epoch == sampler.sampler.epoch == 5
    set_epoch([1, 2], 0)  # a list is a loader, too


def test_a_fit_sets_the_epoch_also_from_the_middle():
    data, orders = Epochs(), []
    dl = DataLoader(data, sampler=DistributedSampler(data, 1, 0, seed=2), batch_size=8)
    learn = line_learner(
        dls=cbnb.DataLoaders(dl, device="cpu"), cbs=cbnb.Callback(before_batch=lambda self: orders.append(self.x.tolist()))
    )
    learn.fit(3)
    assert data.epochs == [0, 1, 2]
    wanted, sampler = [], DistributedSampler(data, 1, 0, seed=2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        wanted.append([float(i) for i in sampler])
    assert orders == wanted and orders[0] != orders[1]
    learn.fit(3, start_epoch=2)
    assert data.epochs == [0, 1, 2, 2] and orders[-1] == wanted[2]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(line_batches())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("reads", [True, False])
def test_pct_train_without_a_length_is_said(reads):
    class Reads(cbnb.Callback):
        def before_batch(self):
            self.seen = self.pct_train if reads else 0

    def stream():
        return cbnb.DataLoaders(DataLoader(Stream(), batch_size=None), device="cpu")

    learn = line_learner(dls=stream())
    learn.fit(1)

    class Other(cbnb.Callback):
        def before_batch(self):
            pass

    if not reads:
        return line_learner(dls=stream(), cbs=Other).fit(1)
    with pytest.warns(
        UserWarning, match=r"Reads.* reads pct_train, but the training loader has no length.*Batches\(lambda: loader, n_iter=...\)"
    ):
        line_learner(dls=stream(), cbs=Reads).fit(1)
    line_learner(cbs=Reads).fit(1)


# --- loaders and items ---


@pytest.mark.parametrize(
    "name, near",
    [
        ("batch_size", "bs"),
        ("val_batch_size", "val_bs"),
        ("valid_bs", "val_bs"),
        ("num_worker", "num_workers"),
        ("colate_fn", "collate_fn"),
    ],
)
def test_from_datasets_knows_other_names_of_its_arguments(name, near):
    with pytest.raises(TypeError, match=f"from_datasets has no argument '{name}': did you mean {near}=?"):
        cbnb.DataLoaders.from_datasets(Epochs(), Epochs(), **{name: 16})


def test_from_datasets_passes_arguments_of_data_loader_on():
    dls = cbnb.DataLoaders.from_datasets(Epochs(), timeout=0, sampler=RandomSampler(Epochs()), shuffle=False, num_workers=0, device="cpu")
    assert isinstance(dls.train.sampler, RandomSampler)


def test_predict_uses_the_collate_function():
    words = dict(a=1.0, b=-1.0)

    def collate(rows):
        return torch.tensor([words[r["text"]] for r in rows]), torch.tensor([r["label"] for r in rows])

    rows = [dict(text="a", label=5.0), dict(text="b", label=1.0)]
    dls = cbnb.DataLoaders.from_datasets(rows, rows, bs=2, collate_fn=collate, device="cpu")
    learn = line_learner(dls=dls)
    learn.fit(1)
    a, b = ab(learn)
    for item in (rows[1], dict(text="b")):
        assert learn.predict(item)[1].item() == pytest.approx(b - a)

    def of_pairs(items):
        x, y = zip(*items)
        return torch.tensor([words[t] for t in x]), torch.tensor(y)

    pairs = [("a", 5.0), ("b", 1.0)]
    learn.dls = cbnb.DataLoaders.from_datasets(pairs, pairs, bs=2, collate_fn=of_pairs, device="cpu")
    assert learn.predict(("b", 1.0))[1].item() == learn.predict("b")[1].item() == pytest.approx(b - a)
