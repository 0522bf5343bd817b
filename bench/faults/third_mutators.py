"""A third set of faults, each a function that spoils a healthy `Training` of fault_tasks.py.

Its author wrote it before reading the code of the checks, and then improved the checks without looking at the results for this set.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import lr_tasks
import mutators
import torch
from fault_tasks import Training
from mutators import Change, Mutator
from second_mutators import After, targets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from cbnb import EMA, Callback, EarlyStopping, TorchScheduler

UNRELATED = "D18 A7 T3 T2"  # inputs and labels do not belong together
HIGH = "O3 A10 R2 R4 R5 R9"
LOW = "O3 A10 R5 R9 O7 A3 O6"
UNTRAINED = "M4 M5 O1 R7"

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


def inputs(t: Training, f: Callable[[Tensor], Tensor], known: bool = True, test: bool = True) -> None:
    if known:
        t.train = f(t.train[0]), t.train[1]
        t.valid = t.valid and (f(t.valid[0]), t.valid[1])
    if test:
        t.test = f(t.test[0]), t.test[1]


def scheduled(t: Training, make: Callable[[Any], Any], every: str = "update") -> None:
    t.cbs.append(TorchScheduler(make, every=every))


# --- data ---


@fault(UNRELATED + " A1", "clusters digits_conv houses waves")
def labels_from_the_end(t: Training) -> None:
    """The label file of training is read from its end."""
    t.train = t.train[0], t.train[1].flip(0)


@fault("D15 D18 A7 T3", "clusters digits_conv waves shells-mlp-adam", "report")
def validation_has_other_class_numbers(t: Training) -> None:
    """Classes are numbered in the order in which they come, in each file on its own."""
    n = int(t.train[1].max()) + 1
    t.valid = t.valid[0], (t.valid[1] + n // 2) % n


@fault("T3 D18 A7 D15", "clusters digits_conv houses", "report")
def only_validation_labels_misaligned(t: Training) -> None:
    t.valid = t.valid[0], t.valid[1].roll(1, 0)


@fault("D15", "houses clusters rare waves", "report")
def validation_columns_in_another_order(t: Training) -> None:
    t.valid = t.valid[0].flip(-1), t.valid[1]


@fault("D3 D2 M9 D5", "clusters houses multi_label friedman")
def clipped_to_unit_range(t: Training) -> None:
    """`clip(0, 1)`, meant for pictures, on standardised numbers."""
    inputs(t, lambda x: x.clamp(0, 1))


@fault("D14 D15 D12", "clusters houses multi_label")
def row_number_of_a_sorted_file(t: Training) -> None:
    """The data were sorted by the label when the rows were numbered, and the number is a column."""
    for part in ("train", "valid"):
        x, y = getattr(t, part)
        key = y.reshape(len(y), -1)[:, 0].double() + 1e-6 * torch.rand(len(y), generator=torch.Generator().manual_seed(1))
        x = x.clone()
        x[:, 0] = key.argsort().argsort().float() / len(x)
        setattr(t, part, (x, y))
    x = t.test[0].clone()
    x[:, 0] = torch.rand(len(x), generator=torch.Generator().manual_seed(2))
    t.test = x, t.test[1]


@fault("D7 D8 L5 D18", "friedman houses shells-mlp-adam")
def targets_cut_to_whole_numbers(t: Training) -> bool | None:
    """An array of whole numbers was made for the targets, so that most are 0."""
    if t.kind != "numbers":
        return False
    targets(t, lambda y: (y / 2).trunc())


@fault("D17 D18 A7 D16", "clusters digits_conv waves friedman")
def mixed_with_others(t: Training) -> None:
    """Mixup of the inputs, and the labels stay."""
    pool = t.train[0]
    t.augment = lambda x: 0.35 * x + 0.65 * pool[torch.randint(len(pool), ())]


@fault("D15 A1 T3", "tagger next_symbol lstm")
def words_of_training_one_off(t: Training) -> None:
    """The file for training was coded with a vocabulary that has one more word at its beginning."""
    x, top = t.train[0], int(t.train[0].max())
    low = 0 if int((x == 0).sum()) < len(x) // 20 else 1
    t.train = torch.where(x >= low, (x - low + 1) % (top - low + 1) + low, x), t.train[1]


@fault("D1 R1 D3", "friedman counts")
def constant_column_divided_by_its_deviation(t: Training) -> None:
    inputs(t, lambda x: torch.cat([x[:, :-1], x[:, -1:] * float("nan")], 1))


@fault("D20 A1 M19 D3", "digits_conv clusters lstm")
def each_row_read_as_its_first(t: Training) -> None:
    """An index is divided where it should be taken modulo: few items come, many times."""
    i = torch.arange(len(t.train[0])) // 32
    t.train = t.train[0][i], t.train[1][i]


# --- model ---


@fault(UNTRAINED, "lstm tagger recommender next_symbol transformer")
def embeddings_frozen(t: Training) -> None:
    for m in t.model.modules():
        if isinstance(m, nn.Embedding):
            nn.init.normal_(m.weight, std=0.01)
            m.weight.requires_grad_(False)


@fault("T5 O1 O2 M5 M4 D16", "clusters houses multi_label friedman")
def layer_made_in_forward(t: Training) -> None:
    """A projection is created each time that the model is called."""
    n = t.train[0].shape[-1]

    class Own(nn.Module):
        def __init__(self, net: nn.Module):
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(nn.Linear(n, n)(x))

    t.model = Own(t.model)


@fault("M12", "clusters digits_conv lstm waves")
def tanh_on_logits(t: Training) -> None:
    t.model = After(t.model, torch.tanh)


@fault("M12 M18", "houses recommender adding-recurrent-sgd")
def norm_on_the_answer(t: Training) -> None:
    t.model = nn.Sequential(t.model, nn.BatchNorm1d(1, affine=False))


@fault("L1 M8 O3", "clusters lstm waves transformer")
def logits_times_80(t: Training) -> None:
    """Divided by a temperature of 0.0125, which was meant for similarities."""
    t.model = After(t.model, lambda out: out * 80)


@fault("M5 M6 O1 R7", "friedman transformer deep_norm")
def blocks_skipped(t: Training) -> None:
    """`x + 0 * block(x)`: a factor that was meant to be trained is a plain zero."""
    blocks = [m for m in t.model.modules() if isinstance(m, lr_tasks.Residual | nn.TransformerEncoderLayer | nn.BatchNorm1d)]
    for m in blocks:
        m.register_forward_hook(lambda _, args, out: args[0] + 0 * out)


@fault("M2 L2 L1 T2", "clusters houses multi_label digits_conv")
def sorted_inside(t: Training) -> None:
    """`sort` without a dimension sorts... the wrong one: each column over the batch."""
    before = t.model

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = before

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.sort(0).values)

    t.model = Own()


# --- loss and metric ---


@fault("M2 L1 L10 L2 L3", "clusters waves lstm digits_conv")
def log_softmax_over_the_batch(t: Training) -> None:
    t.loss = lambda out, y: -F.log_softmax(out, 0)[torch.arange(len(y)), y].mean()


@fault("L6", "houses friedman counts")
def own_loss_of_a_column_and_a_row(t: Training) -> None:
    targets(t, lambda y: y[:, 0])
    t.metric = None
    t.loss = lambda out, y: (out - y).abs().mean()


@fault("L8 L3 L5", "clusters digits_conv waves")
def divergence_of_probabilities(t: Training) -> None:
    """`kl_div` wants logs of probabilities and gets probabilities."""
    n = int(t.train[1].max()) + 1
    t.loss = lambda out, y: F.kl_div(out.softmax(1), F.one_hot(y, n).float(), reduction="batchmean")


@fault("L10 L7 R10 O8 L9", "clusters houses tagger digits_conv")
def loss_of_the_first_item(t: Training) -> None:
    """`out[0]`, which was once a tuple's first element."""
    loss = t.loss
    t.loss = lambda out, y: loss(out[:1], y[:1])


@fault("L10 L11", "multi_label breast-linear-rmsprop", "report")
def metric_rounds_logits(t: Training) -> None:
    t.metric = lambda out, y: (out.round() == y).float().mean()


# --- optimizer and plan ---


@fault("O6 " + LOW, "houses waves lstm clusters")
def lambda_is_zero(t: Training) -> None:
    """A whole-number division: the factor is 1 at first and 0 from then on."""
    scheduled(t, lambda opt: lr_scheduler.LambdaLR(opt, lambda n: 1 - min(1, n) // 1))


@fault("O6 " + HIGH, "houses waves lstm clusters")
def lambda_grows(t: Training) -> None:
    scheduled(t, lambda opt: lr_scheduler.LambdaLR(opt, lambda n: 1.05**n))


@fault("O6 " + HIGH, "houses tagger transformer multi_label")
def one_cycle_to_one(t: Training) -> None:
    """`max_lr=1.0` of a page about SGD, with Adam."""
    scheduled(t, lambda opt: lr_scheduler.OneCycleLR(opt, 1.0, total_steps=10000))


@fault(LOW + " R7", "clusters digits_conv lstm houses")
def body_at_a_rate_of_nothing(t: Training) -> None:
    """Fine-tuning's small rate for the body of a model that starts from nothing."""
    opt = t.opt

    def make(params: Any, lr: float, **more: Any) -> Any:
        ps = list(params)
        flat = [p for g in ps for p in g["params"]] if isinstance(ps[0], dict) else ps
        made = opt([dict(params=flat[:-2]), dict(params=flat[-2:])], lr=lr, **more)
        make_small(made)
        return made

    def make_small(made: Any) -> None:
        step = made.step

        def own(*args: Any, **kw: Any) -> Any:
            body = made.param_groups[0]
            was, body["lr"] = body["lr"], body["lr"] * 1e-5
            try:
                return step(*args, **kw)
            finally:
                body["lr"] = was

        made.step = own

    t.opt = make


@fault("O5 L12", "houses lstm tagger multi_label")
def decay_in_adam(t: Training) -> None:
    t.opt = partial(torch.optim.Adam, weight_decay=0.3)


@fault(LOW + " M16", "clusters digits_conv moons friedman")
def gradients_clamped_in_hooks(t: Training) -> None:
    for p in t.model.parameters():
        p.register_hook(lambda g: g.clamp(-1e-6, 1e-6))


@fault("L8 R2 O3", "clusters houses digits_conv tagger")
def optimizer_maximises(t: Training) -> None:
    t.opt = partial(t.opt, maximize=True)


@fault(LOW + " " + UNTRAINED, "clusters lstm houses digits_conv")
def steps_each_hundredth_batch(t: Training) -> None:
    base, more = (t.opt.func, t.opt.keywords) if isinstance(t.opt, partial) else (t.opt, {})

    class Own(base):  # type: ignore[misc, valid-type]
        n = 0

        def step(self, closure: Any = None) -> Any:
            self.n += 1
            return super().step(closure) if self.n % 100 == 0 else None

    t.opt = partial(Own, **more)


@fault("O7 A3", "clusters houses lstm digits_conv")
def stopped_too_soon(t: Training) -> None:
    """The smallest change that counts is far above what the loss can do in an epoch."""
    t.cbs.append(EarlyStopping(min_delta=0.5, patience=1))


@fault("A9 A3 O7", "clusters houses lstm")
def worst_epoch_restored(t: Training) -> None:
    t.cbs.append(EarlyStopping(comp="max", patience=2, restore=True))


@fault("R8 R2 R4 R3 O2 A3", "clusters lstm houses")
def model_reset_each_epoch(t: Training) -> None:
    class Reset(Callback):
        def before_epoch(self) -> None:
            for m in self.learn.model.modules():
                if hasattr(m, "reset_parameters"):
                    m.reset_parameters()

    t.cbs.append(Reset())


@fault("M18 O6 A3 O7", "clusters houses lstm")
def average_too_slow(t: Training) -> None:
    """Averaged weights with a memory of 100,000 updates."""
    t.cbs.append(EMA(0.99999, warmup=False))
