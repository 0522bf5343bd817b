"""Trainings of many kinds, each of which ends the same whether or not it was interrupted in the middle of an epoch."""

import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import cbnb.all as cbnb
from cbnb.callbacks.steps import MultiLossStep
from cbnb.dialects import fastai_v1 as v1
from cbnb.dialects import mindspore as ms
from training import outcome

N_ITEMS, BATCH = 24, 4  # so an epoch has 6 batches


class PowerFailed(Exception):
    pass


class Fails(cbnb.Callback):
    """Ends the fit in the middle of its batch number `at`, after its update."""

    order, run_valid, no_state = 2000, False, ("at",)

    def __init__(self, at):
        self.at = at

    def after_step(self):
        if self.learn.train_iter == self.at:
            raise PowerFailed


def fails_before(at):
    """A callback that ends the fit before its training batch number `at`."""

    def fail(cb):
        if cb.train_iter == at:
            raise PowerFailed

    return cbnb.Callback(before_batch=fail)


def whole_and_resumed(make, at, n_epoch=2, lr=0.01):
    """A learner after a one-cycle fit, and one that continued such a fit after a failure; `make(folder, *callbacks)` makes them."""
    whole = make("whole")
    whole.fit_one_cycle(n_epoch, lr)
    try:
        make("half", fails_before(at)).fit_one_cycle(n_epoch, lr)
    except PowerFailed:
        learn = make("half")
        learn.fit_one_cycle(n_epoch, lr, resume=True)
        return whole, learn
    raise AssertionError(f"the fit has no training batch {at}")


def items():
    torch.manual_seed(1)
    x = torch.randn(N_ITEMS, 3)
    return x, (x.sum(1, keepdim=True) > 0).float()


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def make(path, train=None, model=None, **kwargs):
    """A learner; `train` is a loader."""
    x, y = items()
    torch.manual_seed(0)
    model = model or net()
    train = train if train is not None else DataLoader(TensorDataset(x, y), BATCH, shuffle=True)
    kwargs = dict(loss_func=nn.MSELoss(), lr=0.01, path=path) | kwargs
    if kwargs["lr"] is None:
        del kwargs["lr"]  # that of its optimizers
    learn = cbnb.Learner(cbnb.DataLoaders(train, [(x, y)], device="cpu"), model, **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


# --- data ---


class Noisy(Dataset):
    """Each item has noise from all three generators, which workers seed for themselves."""

    def __init__(self):
        self.x, self.y = items()

    def __len__(self):
        return N_ITEMS

    def __getitem__(self, i):
        return self.x[i] + 0.1 * (torch.randn(3) + random.random() + np.random.rand()).float(), self.y[i]


class Stream(IterableDataset):
    """Items that are drawn, and have no number."""

    def __iter__(self):
        for _ in range(N_ITEMS):
            x = torch.randn(3)
            yield x, (x.sum(0, keepdim=True) > 0).float()


class NoLength:
    """Batches of which you do not know how many come, in another order each time."""

    def __iter__(self):
        x, y = items()
        for part in torch.randperm(N_ITEMS).split(BATCH):
            yield x[part], y[part]


def generated():
    yield from NoLength()


class OwnBatches:
    """A batch sampler with a generator of its own, and batches of several sizes."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self):
        return 6

    def __iter__(self):
        numbers = torch.randperm(N_ITEMS, generator=self.generator).tolist()
        for begin, end in zip([0, 4, 9, 12, 14, 20], [4, 9, 12, 14, 20, 24]):
            yield numbers[begin:end]


class Counts:
    """A sampler that counts its epochs, and draws from a `random.Random` of its own."""

    def __init__(self):
        self.epoch, self.own = 0, random.Random(3)

    def __len__(self):
        return N_ITEMS

    def __iter__(self):
        self.epoch += 1
        numbers = list(range(N_ITEMS))
        random.Random(self.epoch).shuffle(numbers)
        self.own.shuffle(numbers)
        return iter(numbers)


def loader(**kwargs):
    return DataLoader(TensorDataset(*items()), BATCH, **kwargs)


def own_generator():
    return loader(shuffle=True, generator=torch.Generator().manual_seed(7))


DATA = {
    "plain": lambda: loader(shuffle=True),
    "workers": lambda: loader(shuffle=True, num_workers=2),
    "persistent workers": lambda: loader(shuffle=True, num_workers=2, persistent_workers=True),
    "own generator": own_generator,
    "own batch sampler": lambda: DataLoader(TensorDataset(*items()), batch_sampler=OwnBatches()),
    "own batch sampler, workers": lambda: DataLoader(TensorDataset(*items()), batch_sampler=OwnBatches(), num_workers=2),
    "own sampler with a state": lambda: loader(sampler=Counts()),
    "own sampler with a state, workers": lambda: loader(sampler=Counts(), num_workers=2),
    "augmented": lambda: DataLoader(Noisy(), BATCH, shuffle=True),
    "augmented in workers": lambda: DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2),
    "augmented in persistent workers": lambda: DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2, persistent_workers=True),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "stream from a worker": lambda: DataLoader(Stream(), BATCH, num_workers=1),
    "no length": NoLength,
    "list": lambda: list(NoLength()),
    "generator function": lambda: cbnb.Batches(generated),
    "generator function with a length": lambda: cbnb.Batches(generated, n_iter=6),
}


# --- callbacks, steps, metrics ---


class CountsV1(v1.Callback):
    def on_train_begin(self, **kwargs):
        self.batches, self.losses = 0, []

    def on_batch_end(self, last_loss, train, epoch, iteration, num_batch, smooth_loss, **kwargs):
        self.batches += train
        self.losses.append((epoch, iteration, num_batch, float(last_loss), float(smooth_loss)))


class CountsMS(ms.Callback):
    def __init__(self):
        super().__init__()
        self.batches, self.losses = 0, []

    def on_train_step_end(self, run_context):
        self.batches += 1
        self.losses.append(float(torch.as_tensor(run_context.original_args().net_outputs)))


class CountsPlain:
    """No base class, recognised by its methods."""

    def __init__(self):
        self.numbers = []

    def on_train_step_end(self, run_context):
        self.numbers.append(run_context.original_args().cur_step_num)


class Two(nn.Module):
    """Two parts, each with a loss of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = net(), net()

    def forward(self, x):
        return torch.stack([self.a(x), self.b(x)])


def losses_of_two(pred, y):
    a, b = pred
    return (a - y).square().mean(), (b - y).abs().mean() + (b - a.detach()).square().mean()


def sum_of_two(pred, y):
    return sum(losses_of_two(pred, y))


def two_losses(path):
    torch.manual_seed(0)
    model = Two()
    opts = [torch.optim.Adam(model.a.parameters(), 0.01), torch.optim.SGD(model.b.parameters(), 0.01, momentum=0.5)]
    return make(path, model=model, train_step=MultiLossStep(model, opts, losses_of_two), lr=None, loss_func=sum_of_two)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen, self.disc = nn.Linear(3, 1), nn.Linear(4, 1)


class HandMade:
    """A step that does everything by hand, with two optimizers and a counter."""

    def __init__(self, model):
        self.model, self.turn = model, 0
        self.gen_opt = torch.optim.Adam(model.gen.parameters(), 0.01)
        self.disc_opt = torch.optim.Adam(model.disc.parameters(), 0.02)

    def __call__(self, x, y):
        self.turn += 1
        fake = self.model.gen(x + 0.1 * torch.randn_like(x))
        judged = nn.functional.softplus(self.model.disc(torch.cat([x, fake.detach()], 1)))
        real = nn.functional.softplus(-self.model.disc(torch.cat([x, y], 1)))
        self.disc_opt.zero_grad()
        (judged + real).mean().backward()
        self.disc_opt.step()
        loss = nn.functional.softplus(-self.model.disc(torch.cat([x, fake], 1))).mean()
        if self.turn % 2:
            self.gen_opt.zero_grad()
            loss.backward()
            self.gen_opt.step()
        return loss.detach()


def gan(path):
    torch.manual_seed(0)
    model = GAN()
    return make(path, model=model, train_step=cbnb.UpdateStep(HandMade(model)), eval_step=lambda x, y: (model.gen(x) - y).square().mean())


def several_schedulers(path):
    cbs = [
        cbnb.TorchScheduler(lambda opt: StepLR(opt, 4, 0.9)),
        cbnb.TorchScheduler(lambda opt: CosineAnnealingLR(opt, 40), every="epoch"),
        cbnb.TorchScheduler(lambda opt: ReduceLROnPlateau(opt, patience=0, threshold=10.0), monitor="valid_loss"),
    ]
    return make(path, cbs=cbs)


def with_torchmetrics(path):
    import torchmetrics

    metrics = [
        torchmetrics.MeanSquaredError(),
        torchmetrics.classification.BinaryAccuracy(),
        cbnb.mae if hasattr(cbnb, "mae") else absolute,
    ]
    learn = make(path, metrics=metrics)
    return learn.remove_cb(cbnb.Recorder).add_cb(cbnb.Recorder(train_metrics=True))


def absolute(pred, y):
    return (pred - y).abs().mean()


def cbs(*made):
    """A learner with such callbacks, made anew for each."""
    return lambda path: make(path, cbs=[cb() for cb in made])


SETTINGS = {
    "two losses": two_losses,
    "two optimizers by hand": gan,
    "torch schedulers": several_schedulers,
    "ReduceLROnPlateau": cbs(lambda: cbnb.ReduceLROnPlateau(min_delta=10.0, factor=3)),
    "ReduceLROnPlateau on a torch schedule": cbs(
        lambda: cbnb.ReduceLROnPlateau(min_delta=10.0, factor=3), lambda: cbnb.TorchScheduler(lambda opt: StepLR(opt, 1, 0.9))
    ),
    "CSVLogger": cbs(lambda: cbnb.CSVLogger()),
    "torchmetrics in training": with_torchmetrics,
    "fastai v1": cbs(CountsV1),
    "MindSpore": cbs(CountsMS, CountsPlain),
    "MixUp": cbs(lambda: cbnb.MixUp(0.4)),
    "GradientClip and TerminateOnNaN": cbs(lambda: cbnb.GradientClip(0.1), lambda: cbnb.TerminateOnNaN(check_grads=True)),
    "accumulation": cbs(lambda: cbnb.GradientAccumulation(10)),
    "EarlyStopping with the best weights": cbs(lambda: cbnb.EarlyStopping(patience=9, restore=True)),
    "SaveModel": cbs(lambda: cbnb.SaveModel(fname="best", with_opt=True)),
    "StopAfter": cbs(lambda: cbnb.StopAfter(steps=16), lambda: cbnb.StopAfter(seconds=1e6)),
    "ShortEpoch": cbs(lambda: cbnb.ShortEpoch(0.67)),
    "lots of settings": lambda path: make(
        path, opt_func=torch.optim.SGD, splitter=lambda m: [list(m[:2].parameters()), list(m[2:].parameters())], wd=0.01
    ),
}
FITS = {
    "one cycle": lambda learn, **kwargs: learn.fit_one_cycle(3, 1e-2, **kwargs),
    "flat cos": lambda learn, **kwargs: learn.fit_flat_cos(3, 1e-2, **kwargs),
    "sgdr": lambda learn, **kwargs: learn.fit_sgdr(2, 1, 1e-2, **kwargs),
    "valid_every": lambda learn, **kwargs: learn.fit(3, valid_every=2, **kwargs),
    "own schedules": lambda learn, cbs, **kwargs: learn.fit(
        3, cbs=[cbnb.ParamScheduler({"lr": cbnb.SchedExp(1e-2, 1e-4), "wd": cbnb.SchedCos(0, 0.1)}), *cbs], **kwargs
    ),
    "ReduceLROnPlateau on one cycle": lambda learn, cbs, **kwargs: learn.fit_one_cycle(
        3, 1e-2, cbs=[cbnb.ReduceLROnPlateau(min_delta=10.0, factor=3), *cbs], **kwargs
    ),
}


AT = {"StopAfter": (11, 13), "ShortEpoch": (6, 10)}  # others fail in the middle of the second and of the third epoch


def three_epochs(learn, **kwargs):
    learn.fit(3, **kwargs)


def everything(learn):
    """The outcome, with what callbacks count."""
    found = outcome(learn)
    for cb in learn.cbs:
        known = cb if not hasattr(cb, "wraps") or "wraps" not in vars(cb) else cb.wraps
        for name in ("batches", "losses", "numbers", "best", "best_epoch", "values", "reductions", "wait", "reason", "turn"):
            if name in vars(known):
                found[f"{type(known).__name__}.{name}"] = vars(known)[name]
    table = Path(learn.path) / "history.csv"
    if table.exists():
        rows = [line.split(",")[:-1] for line in table.read_text().splitlines()]
        found["csv"] = rows
    if hasattr(learn.train_step, "f"):
        found["turn"] = getattr(learn.train_step.f, "turn", None)
    return found


def start(n):
    random.seed(n), np.random.seed(n), torch.manual_seed(n)


def stop_workers(learn):
    """Those that stay; if they are left to the garbage collector, torch waits for seconds."""
    if (kept := getattr(learn.dls.train, "_iterator", None)) is not None:
        kept._shutdown_workers()


def interrupted_and_whole(make, path, fit=three_epochs, at=(11, 17), every=4, **kwargs):
    """What a fit ends with that failed in these batches and was resumed by new learners, and one that did not."""
    learn = make(path / "whole")
    start(0)
    fit(learn, cbs=[])
    whole = everything(learn)
    stop_workers(learn)
    start(0)
    for i, batch in enumerate([*at, None]):
        learn = make(path / "broken")
        start(i)  # for the first time as above
        try:
            fit(learn, cbs=[cbnb.Checkpoint(every_steps=every, **kwargs), *([Fails(batch)] if batch else [])], resume=True)
        except PowerFailed:
            assert batch
        else:
            assert batch is None
        stop_workers(learn)
    return everything(learn), whole
