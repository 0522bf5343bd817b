"""Runs in several processes, started by test_sharded.py: each case named on the command line puts a number or a text into a file.

torchrun --nproc-per-node=2 tests/sharded_cases.py FOLDER NAME...
"""

import copy
import gc
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from cbnb.basics.optimizers import MultiOptimizer
from cbnb.basics.processes import wait_for_processes
from cbnb.callback import Callback
from cbnb.callbacks.averaging import EMA
from cbnb.callbacks.gradients import GradientAccumulation, GradientClip
from cbnb.callbacks.precision import MixedPrecision
from cbnb.callbacks.save_model import SaveModel
from cbnb.data import DataLoaders
from cbnb.distributed.data_parallel import Distributed  # noqa: F401  adds `learn.distributed`
from cbnb.distributed.sharded import ShardedModels, full_state, is_sharded, sharded_state
from cbnb.events import CancelBatchException, CancelFitException
from cbnb.learner import Learner
from cbnb.recorder import Recorder
from cbnb.step import Step
from cbnb.toy import digits_learner, mae

torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK, N = dist.get_rank(), dist.get_world_size()
FOLDER = Path(sys.argv[1])
BATCH, BATCHES = 12, 10  # items that divide by 2 and by 3


class Shards(Callback):
    """Sharded models for the length of each fit, and in validation whole weights, for loaders of any length."""

    order, run_in, no_state = -9, ("fit", "lr_find"), ("sharded", "options")

    def __init__(self, **options):
        self.options = options

    def before_fit(self):
        self.learn.undo.set(self, "sharded", ShardedModels(self.learn, **self.options))

    def before_validate(self):
        self.learn.undo.enter_context(whole := Leaves(self.sharded.gathered()))
        self.leave = whole.leave

    def after_validate(self):
        self.leave()


class Leaves:
    """A block that may end early."""

    def __init__(self, block):
        self.block = block

    def __enter__(self):
        self.block.__enter__()
        self.entered = True
        return self

    def leave(self, *args):
        if self.entered:
            self.entered = False
            self.block.__exit__(None, None, None)

    def __exit__(self, *args):
        self.leave()


class Transformer(nn.Module):
    """Two layers, and a batch norm layer if asked for; its input and output layer may share their weight."""

    def __init__(self, norm=False):
        super().__init__()
        self.inp, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()

    def forward(self, x):
        return self.head(self.norm(self.layers(self.inp(x))[:, 0]))


def learner(split=True, model=None, dtype=torch.float64, **kwargs):
    """Learns a sum; each process has its rows of each batch, or all of them."""
    make = torch.Generator().manual_seed(0)
    x = torch.randn(BATCHES * BATCH, 5, 6, generator=make).to(dtype)
    y = 0.1 * x.sum((1, 2))[:, None]
    part = (lambda t: t.chunk(N)[RANK]) if split else lambda t: t
    train = [(part(a), part(b)) for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True)]
    torch.manual_seed(0)
    net = (model or Transformer)().to(dtype)
    valid = [(x[:20], y[:20])]
    learn = Learner(
        DataLoaders(train, valid, device="cpu"), net, nn.MSELoss(), **dict(lr=1e-2, cbs=Recorder, default_cbs=False, metrics=mae) | kwargs
    )
    learn.logger = lambda row: None
    return learn


def distance(a, b):
    """The largest difference of two learners, in weights, buffers and the state of the optimizer."""
    pairs = [*zip(a.model.state_dict().values(), b.model.state_dict().values(), strict=True)]
    pairs += zip(a.model.parameters(), b.model.parameters(), strict=True)
    states = [[v for g in x.opt.param_groups for p in g["params"] for v in x.opt.state[p].values()] for x in (a, b)]
    pairs += [(p, q) for p, q in zip(*states, strict=True) if isinstance(p, torch.Tensor)]
    return max((p.double() - q.double()).abs().max().item() for p, q in pairs)


def both(cbs=lambda n: [], options=None, n_epoch=2, **kwargs):
    """The distance of a sharded learner from one that sees whole batches; `cbs` is called with the number of processes."""
    alone, sharded = learner(split=False, **kwargs), learner(**kwargs)
    alone.fit(n_epoch, cbs=cbs(1))
    sharded.fit(n_epoch, cbs=[Shards(**dict(least=1) | (options or {})), *cbs(N)])
    return distance(alone, sharded)


def sgd(momentum=0.9):
    return lambda params, **kwargs: torch.optim.SGD(params, momentum=momentum, **kwargs)


def two_opts(groups, lr):
    first, *others = [p for g in groups for p in g["params"]] if isinstance(groups[0], dict) else list(groups)
    return MultiOptimizer([torch.optim.AdamW([first], lr=lr), torch.optim.SGD(others, lr=lr, momentum=0.9)])


class Notes(Callback):
    """What was held in the fit."""

    def before_train(self):
        params = list(self.learn.model.parameters())
        self.kinds = all(map(is_sharded, params))
        self.whole, self.mine = sum(p.numel() for p in params), sum(p.to_local().numel() for p in params)

    def after_train(self):
        local = [
            v.to_local().numel() for s in self.learn.opt.state.values() for v in s.values() if isinstance(v, torch.Tensor) and is_sharded(v)
        ]
        self.state = sum(local)


def held():
    learn = learner()
    learn.fit(1, cbs=[Shards(least=1), notes := Notes()])
    everyone = [None] * N
    dist.all_gather_object(everyone, (notes.mine, notes.state))
    return dict(sharded=notes.kinds, whole=notes.whole, weights=[m for m, _ in everyone], state=[s for _, s in everyone])


def traces(m):
    """What a module has, apart from the values of its tensors."""
    things = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(m).items() if k not in ("_parameters", "training")}
    return type(m), things, {k: id(p) for k, p in m._parameters.items()}


def put_back():
    learn = learner(model=lambda: Transformer(norm=True))
    learn.create_opt()
    seen = []
    hook = learn.model.head.register_forward_hook(lambda *_: seen.append(type(_[0]).__name__))
    before, opt = [traces(m) for m in learn.model.modules()], learn.opt
    held = [p for g in opt.param_groups for p in g["params"]]
    for _ in range(2):
        learn.fit(1, cbs=Shards(least=1))
    assert seen and set(seen[:5]) <= {"FSDPLinear", "Linear"}
    assert [traces(m) for m in learn.model.modules()] == before
    assert learn.opt is opt and all(p is q for p, q in zip(held, [p for g in opt.param_groups for p in g["params"]], strict=True))
    assert set(opt.state) == set(held) and not any(is_sharded(v) for s in opt.state.values() for v in s.values())
    hook.remove()
    learn.model(torch.zeros(2, 5, 6, dtype=torch.float64))
    gc.collect()
    return "ok"


def cancels():
    """Batches and steps that are left out, in all processes, do not disturb the others."""

    class Leaves(Callback):
        def after_pred(self):
            if self.learn.training and self.learn.train_iter in (2, 3):
                raise CancelBatchException()

    return both(lambda n: [Leaves()])


def checkpoint():
    """A state from N processes continues in one process, and one from a plain learner in N."""
    parts = []

    class Saves(Callback):
        def after_epoch(self):
            if self.learn.epoch == 0:
                parts.append(copy.deepcopy(full_state(self.learn.state_dict(), on_cpu=True)))
                raise CancelFitException()

    through, broken = learner(split=False), learner()
    through.fit(2)
    broken.fit(2, cbs=[Saves(), Shards(least=1)])
    torch.save(parts[0]["models"], FOLDER / f"models{N}.{RANK}.pt")
    assert not any(is_sharded(v) for s in parts[0]["opts"] for p in s["state"].values() for v in p.values())

    class Loads(Callback):
        order = 70

        def before_fit(self):
            state = {**copy.deepcopy(parts[0]), "callbacks": []}
            self.learn.load_state_dict(sharded_state(self.learn, state))
            self.learn.epoch = 1

    plain, again = learner(split=False), learner()
    plain.fit(2, cbs=Loads())
    again.fit(2, cbs=[Loads(), Shards(least=1)])
    return [distance(through, plain), distance(through, again)]


def ends():
    """Both processes raise: the values are put back."""

    class Raises(Callback):
        def after_pred(self):
            if self.learn.training and self.learn.train_iter == 3:
                raise OSError("no disk space")

    learn = learner()
    try:
        learn.fit(1, cbs=[Shards(least=1), Raises()])
    except OSError as e:
        noted = getattr(e, "__notes__", [])
    alone = learner(split=False)

    class Stops(Callback):
        def after_batch(self):
            if self.learn.train_iter == 3:
                raise CancelFitException()

    alone.fit(1, cbs=Stops())
    return [any("lost" in n for n in noted), distance(alone, learn), type(learn.model).__name__]


def lost():
    """One process raises, and the other waits for its weights."""

    class Raises(Callback):
        def after_pred(self):
            if RANK == N - 1 and self.learn.train_iter == 3:
                raise OSError("no disk space")

    learn, began = learner(), time.time()
    try:
        learn.fit(1, cbs=[Shards(least=1), Raises()])
    except (OSError, RuntimeError) as e:
        noted = " ".join(e.__notes__)
        (FOLDER / f"lost{N}.{RANK}.txt").write_text(repr(e))
    found = [
        "the weights are lost" in noted,
        all(p.isnan().all().item() for p in learn.model.parameters()),
        type(learn.model).__name__,
        time.time() - began,
    ]
    (FOLDER / f"lost{N}.{RANK}.json").write_text(json.dumps(found))
    raise SystemExit(1)


def overflow():
    """A part of the gradients is infinite in one process: all skip the update, and lower the scale."""

    class Spoils(Step):
        def backward(self, learn):
            learn.loss_grad.backward()
            if learn.train_iter == 6 and RANK == N - 1:
                next(learn.model.parameters()).grad.to_local()[0] = torch.inf

    learn = learner(dtype=torch.float32, train_step=Spoils())
    learn.fit(1, cbs=[half := MixedPrecision("fp16", init_scale=64.0), Shards(least=1)])
    return [half.skipped, half.scale, learn.model.inp.weight.isnan().any().item()]


def uneven():
    """The last process has no batch in validation."""
    learn = learner()
    learn.dls = DataLoaders(learn.dls.train, [] if RANK == N - 1 else learn.dls.valid, device="cpu")
    weights = {}

    class Sees(Callback):
        def after_pred(self):
            if not self.learn.training:
                weights["sharded"] = any(map(is_sharded, self.learn.model.parameters()))

        def after_epoch(self):
            weights["after"] = all(map(is_sharded, self.learn.model.parameters()))

    learn.metrics = []
    learn.fit(2, cbs=[Shards(least=1), Sees()])
    return [weights.get("sharded"), weights["after"], len(learn.recorder.history)]


def clip_norm():
    """The noted norm is a plain number after the fit, and that of the whole gradient."""
    alone, sharded = learner(split=False), learner()
    alone.fit(1, cbs=[one := GradientClip(0.1)])
    sharded.fit(1, cbs=[Shards(least=1), many := GradientClip(0.1)])
    return [is_sharded(many.norm), abs(float(one.norm) - float(many.norm))]


def buffers():
    """The means of batch norm layers are those of process 0 in all processes."""
    learn = learner(model=lambda: Transformer(norm=True))
    learn.fit(2, cbs=Shards(least=1))
    means = [None] * N
    dist.all_gather_object(means, learn.model.norm.running_mean)
    return [all(m.equal(means[0]) for m in means), means[0].abs().max().item() > 0]


def policy():
    """bf16 by torch's own policy."""
    seen = []

    class Sees(Callback):
        def after_pred(self):
            seen.append(str(self.learn.model.head.weight.dtype))

        def before_train(self):
            self.learn.model.head.register_forward_hook(lambda m, *_: seen.append(str(m.weight.dtype)))

    learn = learner(dtype=torch.float32)
    learn.loss_func = lambda pred, y: nn.functional.mse_loss(pred.float(), y)
    learn.fit(1, cbs=[Shards(least=1, mp_policy=MixedPrecisionPolicy(torch.bfloat16)), Sees()])
    return [*seen[:2], str(learn.model.head.weight.dtype)]


def files():
    """learn.distributed: a file written in the fit has whole tensors, and can be loaded there."""
    learn = digits_learner(n=700, bs=24, path=FOLDER)
    seen = {}

    class Reads(Callback):
        def after_train(self):
            self.learn.save("here")
            wait_for_processes()
            seen.update(torch.load(self.learn.model_file("here"), weights_only=True))
            before = [p.to_local().clone() for p in self.learn.model.parameters()]
            with torch.no_grad():
                [p.to_local().zero_() for p in self.learn.model.parameters()]
            self.learn.load("here")
            assert all(p.to_local().equal(b) for p, b in zip(self.learn.model.parameters(), before, strict=True))

    with learn.distributed(sharded=True, least=1):
        learn.fit(2, cbs=[Reads(), SaveModel(monitor="valid_loss")])
        parts = {k: v.clone() for k, v in learn.model.state_dict().items()}
    alone = digits_learner(n=700, bs=24 * N, path=FOLDER / "alone")
    alone.fit(2)
    again = digits_learner(seed=1, path=FOLDER)
    again.create_opt()
    again.load("here")
    state = again.opt.state_dict()["state"][0]["exp_avg"]
    return [
        not any(is_sharded(v) for v in seen["model"].values()),
        max((parts[k] - v).abs().max().item() for k, v in seen["model"].items()),
        max((again.model.state_dict()[k] - v).abs().max().item() for k, v in alone.model.state_dict().items()),
        (state - alone.opt.state_dict()["state"][0]["exp_avg"]).abs().max().item(),
    ]


def keeps_best():
    """`keep_best` copies the parts of each process, and puts them back."""
    learn, first = digits_learner(bs=24), []
    keep = Callback(after_train=lambda cb: first or first.extend(p.full_tensor().clone() for p in cb.model.parameters()))
    with learn.distributed(sharded=True, least=1):
        learn.fit(3, keep_best=("train_loss", "max"), cbs=keep)  # the first epoch
    same = all(p.equal(q) for p, q in zip(learn.model.parameters(), first, strict=True))
    return [same, learn.recorder.last().best["epoch"]]


def finds():
    """The learning rate finder of `learn.distributed`."""
    learn = digits_learner(bs=24)
    weights = [p.detach().clone() for p in learn.model.parameters()]
    with learn.distributed(sharded=True, least=1):
        found = learn.lr_find(num_it=20, show_plot=False)
    same = all(p.equal(q) for p, q in zip(weights, learn.model.parameters(), strict=True))
    alone = digits_learner(bs=24 * N).lr_find(num_it=20, show_plot=False)
    return [same, max(abs(a - b) for a, b in zip(found.losses, alone.losses, strict=True))]


def norm_layers():
    learn = learner(model=lambda: Transformer(norm=True))
    learn.fit(2, cbs=[EMA(0.9), Shards(least=1)])
    return not any(v.isnan().any() for v in learn.model.state_dict().values())


def clip(kind):
    return lambda n: [GradientClip(0.01 if kind == "value" else 0.1, kind=kind)]


class Weighted(nn.Module):
    """An error with a learnt weight"""

    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, pred, y):
        return ((-self.s).exp() * nn.functional.mse_loss(pred, y) + self.s).sum()


def loss_parameters():
    alone, sharded = learner(split=False), learner()
    alone.loss_func, sharded.loss_func = Weighted(), Weighted()
    alone.fit(2)
    sharded.fit(2, cbs=[Shards(least=1)])
    assert alone.loss_func.s.abs().min() > 0.01
    return max(distance(alone, sharded), (alone.loss_func.s - sharded.loss_func.s).abs().max().item())


CASES = dict(
    loss_parameters=loss_parameters,
    plain=lambda: both(),
    one_group=lambda: both(options=dict(least=1_000_000)),
    classes=lambda: both(options=dict(blocks=[nn.TransformerEncoderLayer])),
    kept=lambda: both(options=dict(reshard_after_forward=False)),
    foreach=lambda: both(opt_func=lambda p, lr: torch.optim.AdamW(p, lr=lr, foreach=True)),
    single=lambda: both(opt_func=lambda p, lr: torch.optim.AdamW(p, lr=lr, foreach=False)),
    fused=lambda: both(opt_func=lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True)),
    sgd=lambda: both(opt_func=sgd(), dtype=torch.float32),
    two_opts=lambda: both(opt_func=two_opts),
    clip=lambda: both(clip("global")),
    clip_tensor=lambda: both(clip("tensor")),
    clip_value=lambda: both(clip("value")),
    clip_norm=clip_norm,
    accumulation=lambda: both(lambda n: [GradientAccumulation(2 * BATCH // n)]),
    bf16=lambda: both(lambda n: [MixedPrecision("bf16")], opt_func=sgd(0.0), dtype=torch.float32),
    overflow=overflow,
    held=held,
    put_back=put_back,
    cancels=cancels,
    checkpoint=checkpoint,
    ends=ends,
    uneven=uneven,
    buffers=buffers,
    policy=policy,
    ema=lambda: both(lambda n: [EMA(0.9)]),
    ema_aside=lambda: both(lambda n: [EMA(0.9, apply=False)]),
    norm_layers=norm_layers,
    finds=finds,
    files=files,
    keeps_best=keeps_best,
    lost=lost,
)

for name in sys.argv[2:]:
    found = CASES[name]()
    if RANK == 0:
        (FOLDER / f"{name}{N}.json").write_text(json.dumps(found))
        print(name, found, flush=True)
dist.destroy_process_group()
