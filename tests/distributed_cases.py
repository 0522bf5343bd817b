"""Trainings that give the same numbers in one process and in several: `python distributed_cases.py CASE ...` prints them as JSON.

With `torch.distributed` variables in the environment, batches have 24 items divided by the number of processes; alone they have 24. One
result is a dict of numbers and lists, which the tests compare. A case that fails has its traceback as its result.
"""

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import cbnb.all as cbnb
from cbnb.callbacks.steps import ClosureStep, MultiLossStep, TrainStep
from cbnb.display.steering import Steering

N, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
BS = 24  # items in a step of all processes
CASES: dict[str, Callable[[Path], dict]] = {}


def case(f):
    CASES[f.__name__] = f
    return f


def digits(n: int = 251, valid: int = 101, bs: int | None = None) -> cbnb.DataLoaders:
    """Pictures and their digits; the last step is ragged: 251 = 10 x 24 + 11 items"""
    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(data.target)
    train, test = TensorDataset(x[:n], y[:n]), TensorDataset(x[n : n + valid], y[n : n + valid])
    return cbnb.DataLoaders.from_datasets(train, test, bs=(bs or BS) // N, val_bs=(bs or BS) // N, num_workers=0, device="cpu")


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def learner(dls=None, model=None, cbs=None, **kwargs) -> cbnb.Learner:
    own_opt = "train_step" in kwargs and not {"lr", "opt_func"} & kwargs.keys()
    settings = dict(loss_func=nn.CrossEntropyLoss(), metrics=cbnb.accuracy) | ({} if own_opt else dict(lr=1e-2)) | kwargs
    learn = cbnb.Learner(dls or digits(), model or net(), cbs=cbs, **settings)
    torch.manual_seed(1)  # of the order
    return learn.remove_cb(cbnb.ProgressCallback)


def fitted(learn: cbnb.Learner, *args, method: str = "fit", sharded: bool = False, **kwargs) -> dict:
    """Fit with the other processes, and tell what came out"""
    with warnings.catch_warnings(), learn.distributed(sharded=sharded):
        warnings.simplefilter("error", UserWarning)
        learn.logger = lambda row: None
        getattr(learn, method)(*args, **kwargs)
    return outcome(learn)


def outcome(learn: cbnb.Learner) -> dict:
    run = learn.recorder.last()
    epochs = [{k: v for k, v in row.items() if k != "time"} for row in run.epochs]
    weights = [p.detach().flatten().tolist() for p in learn.model.parameters()]
    return dict(
        weights=sum(weights, []), losses=list(run.raw_losses), epochs=epochs, lrs=list(run.hyper("lr")), runs=len(learn.recorder.history)
    )


class Tempered(nn.Module):
    """A loss with a temperature and a bias for each class, which are trained"""

    def __init__(self):
        super().__init__()
        self.temperature, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(10))

    def forward(self, pred, y):
        return nn.functional.cross_entropy(pred * self.temperature + self.bias, y)


@case
def parameters_of_the_loss(folder):
    learn = learner(loss_func=Tempered())
    found = fitted(learn, 2)
    found["weights"] += [p for part in learn.loss_func.parameters() for p in part.detach().flatten().tolist()]
    return found


@case
def plain(folder):
    f1 = cbnb.SklearnMetric(f1_score, average="macro")
    return fitted(learner(metrics=[cbnb.accuracy, f1], cbs=cbnb.Recorder(train_metrics=True)), 2)


@case
def torchmetrics(folder):
    from torchmetrics.classification import MulticlassAccuracy

    return fitted(learner(metrics=MulticlassAccuracy(10, average="micro")), 1)


@case
def sharded(folder):
    """Each process holds a part of the weights; the last step and the validation are ragged"""
    return fitted(learner(digits(valid=BS + 1), cbs=cbnb.Recorder(train_metrics=True)), 2, sharded=True)


@case
def sharded_accumulation_and_clip(folder):
    cbs = [cbnb.GradientAccumulation(2 * BS), cbnb.GradientClip(0.1)]
    return fitted(learner(cbs=cbs, opt_func=torch.optim.SGD, lr=0.5), 2, method="fit_one_cycle", sharded=True)


@case
def sharded_bf16(folder):
    return fitted(learner(opt_func=torch.optim.SGD).to_bf16(), 2, sharded=True)


@case
def one_cycle(folder):
    return fitted(learner(opt_func=torch.optim.SGD), 2, 0.1, method="fit_one_cycle")


@case
def scheduler_of_torch(folder):
    """It gets the number of steps that there are"""

    def make(opt, n_steps):
        return torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=n_steps)

    return fitted(learner(opt_func=torch.optim.SGD, cbs=cbnb.TorchScheduler(make)), 2)


@case
def steps(folder):
    """The length of the fit and of the intervals between validations are steps of all processes together"""
    return fitted(learner(opt_func=torch.optim.SGD), "7 steps", valid_every="2 steps")


@case
def fine_tune(folder):
    learn = learner(splitter=lambda m: [list(m[0].parameters()), list(m[2].parameters())])
    return fitted(learn, 2, method="fine_tune")


@case
def few_items(folder):
    """One item is left for the last step: a process without items borrows it, and it counts once"""
    return fitted(learner(digits(n=BS + 1, valid=1), cbs=cbnb.Recorder(train_metrics=True)), 2)


@case
def drop_last(folder):
    dls = digits()
    train = DataLoader(dls.train_ds, batch_size=BS // N, shuffle=True, drop_last=True)
    return fitted(learner(cbnb.DataLoaders(train, dls.valid, device="cpu")), 2)


@case
def workers(folder):
    dls = digits()
    train = DataLoader(dls.train_ds, batch_size=BS // N, shuffle=True, num_workers=1, persistent_workers=True)
    learn = learner(cbnb.DataLoaders(train, dls.valid, device="cpu"))
    found = fitted(learn, 2)
    return found | dict(alone=sum(len(y) for _, y in learn.dls.train))  # the loader is whole again


class Stream(IterableDataset):
    def __init__(self, ds):
        self.ds = ds

    def __iter__(self):
        return iter(self.ds)


@case
def stream(folder):
    """A loader without a sampler: process 0 loads for all"""
    dls = digits(n=BS * 5)
    train = DataLoader(Stream(dls.train_ds), batch_size=BS // N)
    return fitted(learner(cbnb.DataLoaders(train, dls.valid, device="cpu")), 2)


@case
def accumulation(folder):
    return fitted(learner(cbs=cbnb.GradientAccumulation(2 * BS)), 2)


@case
def clip(folder):
    return fitted(learner(cbs=cbnb.GradientClip(0.1), opt_func=torch.optim.SGD, lr=0.5), 2)


@case
def multi_loss(folder):
    model = net()
    opts = [torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.SGD(model[2].parameters(), 0.1)]

    def losses(pred, y):
        loss = nn.functional.cross_entropy(pred, y)
        return loss, 0.5 * loss

    return fitted(learner(model=model, train_step=MultiLossStep(model, opts, losses)), 1)


@case
def a_function(folder):
    """A train_step that returns its losses by name"""
    model = net()

    def step(x, y):
        pred = model(x)
        ce, l2 = nn.functional.cross_entropy(pred, y), 1e-3 * pred.square().mean()
        return dict(loss=ce + l2, ce=ce, l2=l2)

    return fitted(learner(model=model, train_step=step, lr=1e-2, cbs=cbnb.GradientClip(0.5)), 1)


@case
def own_update(folder):
    """A train_step that updates the weights itself"""
    model = net()

    class Own:
        opt = torch.optim.SGD(model.parameters(), 0.1)

        def step(self, x, y):
            self.opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            self.opt.step()
            return loss

    own = Own()
    own.model = model
    return fitted(learner(model=model, train_step=cbnb.UpdateStep(own.step)), 1)


@case
def a_train_step(folder):
    model = net()
    step = TrainStep(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1))
    return fitted(learner(model=model, train_step=step), 1)


@case
def bf16(folder):
    return fitted(learner(opt_func=torch.optim.SGD).to_bf16(), 2)


@case
def fp16(folder):
    """The loss scale overflows at the beginning: the same updates are skipped everywhere"""
    learn = learner(opt_func=torch.optim.SGD, lr=0.1).to_fp16(init_scale=2.0**24, growth_interval=3)
    found = fitted(learn, 2, 0.1, method="fit_one_cycle")
    return found | dict(skipped=learn.mixed_precision.skipped)


@case
def compiled(folder):
    return fitted(learner(cbs=cbnb.Compile(backend="eager")), 1)


class Normed(nn.Module):
    """Batch norm, whose running means are those of the first process in all"""

    def __init__(self):
        super().__init__()
        self.net, self.norm = net(), nn.BatchNorm1d(64)

    def forward(self, x):
        return self.net(self.norm(x))


@case
def batch_norm(folder):
    learn = learner(model=Normed())
    fitted(learn, 1)
    means = learn.model.norm.running_mean
    if N == 1:
        return dict(same=True, counted=int(learn.model.norm.num_batches_tracked))
    each = [torch.empty_like(means) for _ in range(N)]
    torch.distributed.all_gather(each, means)
    return dict(same=all(torch.equal(m, means) for m in each), counted=int(learn.model.norm.num_batches_tracked))


@case
def refusals(folder):
    from torch.utils.data import DistributedSampler

    dls, said = digits(), []
    sampler = DistributedSampler(dls.train_ds, num_replicas=2, rank=RANK)
    parted = cbnb.DataLoaders(DataLoader(dls.train_ds, batch_size=8, sampler=sampler), device="cpu")
    for make in lambda: learner(parted), lambda: learner(opt_func=torch.optim.LBFGS, train_step=ClosureStep(), lr=0.1):
        try:
            fitted(make(), 1)
        except (ValueError, TypeError) as e:
            said.append(str(e).splitlines()[0])
    return dict(said=said)


@case
def ema(folder):
    return fitted(learner(cbs=cbnb.EMA(0.9)), 2)


@case
def lr_find(folder):
    learn = learner()
    before = [p.detach().clone() for p in learn.model.parameters()]
    with learn.distributed():
        found = learn.lr_find(num_it=30, show_plot=False, trials=False)
    same = all(torch.equal(p, old) for p, old in zip(learn.model.parameters(), before))
    return dict(same=same, losses=list(found.losses), lr=found.valley, recommended=found.lr)


@case
def early_stop(folder):
    learn = learner(cbs=cbnb.EarlyStopping("accuracy", min_delta=0.2, patience=1))
    return fitted(learn, 8)


@case
def save_best(folder):
    learn = learner(cbs=cbnb.SaveModel("valid_loss", fname="best"), path=folder)
    found = fitted(learn, 3)
    return found | dict(files=sorted(p.name for p in (folder / "models").iterdir() if not p.name.startswith(".")))


@case
def keep_best(folder):
    learn = learner()
    found = fitted(learn, 4, 0.1, keep_best=("train_loss", "max"))  # the first epoch, so the weights of another one come back
    return found | dict(best=learn.recorder.last().best["epoch"])


@case
def csv(folder):
    found = fitted(learner(cbs=cbnb.CSVLogger(), path=folder), 2)
    if N > 1:
        torch.distributed.barrier()
    return found | dict(lines=(folder / "history.csv").read_text().count("\n"))


@case
def predictions(folder):
    learn = learner()
    with learn.distributed():
        learn.fit(1)
        preds, targs, losses = learn.get_preds(with_loss=True)
        kept, _ = learn.get_preds(save_preds=folder / "preds", with_preds=False)
        if N > 1:
            torch.distributed.barrier()
        found = learn.validate()
        one = learn.predict(learn.dls.valid_ds[0][0])
    files = kept.load().flatten().tolist()
    assert torch.equal(targs, learn.dls.valid_ds.tensors[1])
    return dict(preds=preds.flatten().tolist(), losses=losses.tolist(), found=found, files=files, one=one[1].tolist())


@case
def a_nan(folder):
    """One item makes the loss of one process infinite: all stop before that update"""
    dls = digits()
    dls.train_ds.tensors[0][7] = float("nan")
    learn = learner(dls, cbs=cbnb.TerminateOnNaN())
    with learn.distributed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.logger = lambda row: None
        learn.fit(2)
    return dict(steps=learn.recorder.last().n_steps, finite=all(p.isfinite().all().item() for p in learn.model.parameters()))


@case
def accidents(folder):
    """A cancel, of any level, in the last process alone: all leave together, and the fit goes on as in one process"""
    found = {}
    for level in "train", "validate", "epoch", "fit":
        exception = dict(
            train=cbnb.CancelTrainException,
            validate=cbnb.CancelValidException,
            epoch=cbnb.CancelEpochException,
            fit=cbnb.CancelFitException,
        )[level]

        def cancel(cb, exception=exception, level=level):
            if RANK == N - 1 and cb.epoch == 1 and cb.iter == 2 and cb.training == (level != "validate"):
                raise exception

        learn = learner(cbs=cbnb.Callback(after_batch=cancel))
        with learn.distributed():
            learn.logger = lambda row: None
            learn.fit(3)
        run = learn.recorder.last()
        found[level] = [run.n_steps, run.status, len(run.epochs)]
    return found


@case
def between_epochs(folder):
    """The last process alone ends the fit between two epochs"""

    def cancel(cb):
        if RANK == N - 1 and cb.epoch == 1:
            raise cbnb.CancelFitException

    found = {}
    for name in "before_epoch", "before_train", "after_train", "after_epoch":
        learn = learner(cbs=cbnb.Callback(**{name: cancel}))
        with learn.distributed():
            learn.logger = lambda row: None
            learn.fit(3)
        found[name] = learn.recorder.last().n_steps
    return found


@case
def interrupt(folder):
    """Ctrl-C in the last process: all stop before the same batch, and tell the user"""

    def press(cb):
        if RANK == N - 1 and cb.epoch == 0 and cb.iter == 3 and cb.training:
            os.kill(os.getpid(), 2)

    learn = learner(cbs=cbnb.Callback(after_batch=press))
    pressing = learn.cbs[-1]
    with learn.distributed():
        learn.logger = lambda row: None
        try:
            learn.fit(3)
        except cbnb.FitInterrupted as e:
            said = str(e)
        status, n_steps = learn.recorder.last().status, learn.recorder.last().n_steps
        learn.remove_cb(pressing)
        learn.fit(1)  # it is usable
    return dict(said=said.replace("stopped in epoch 0 at batch", "at"), status=status, n_steps=n_steps, after=learn.recorder.last().n_steps)


@case
def steering(folder):
    """The slider and Stop of the first process"""

    def steer(cb):
        if RANK == 0 and cb.training and cb.train_iter == 3:
            cb.learn.steering.scale_lr(0.5)
        if RANK == 0 and cb.training and cb.train_iter == 6:
            cb.learn.steering.stop()

    learn = learner(cbs=[Steering(), cbnb.Callback(after_batch=steer)])
    return fitted(learn, 3)


def ask(folder: Path, names: list[str]) -> dict[str, dict]:
    found = {}
    for name in names:
        try:
            found[name] = CASES[name](folder)
        except Exception:
            found[name] = dict(error=traceback.format_exc())
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = ask(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
    Path(sys.argv[1], f"result_{RANK}.json").write_text(json.dumps(found))
