"""Faults of real programs, each as a function that spoils a healthy training, where it can be spoilt that way.

A mutator returns False where its fault makes no sense. Each names the codes that count as naming the fault. `where` says what the
fault harms: "model" the trained model, "report" only the number that validation reports. The validation data are spoilt along with the
training data where one line of a program would spoil both, such as a function that reads the files; the test data never are.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fault_tasks import Pair, Training
from torch import Tensor, nn
from torch.nn import functional as F

from cbnb import GradientClip, Learner, TorchScheduler

Change = Callable[[Training], bool | None]
MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)
BENT = (nn.ReLU, nn.Tanh, nn.GELU)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass
class Mutator:
    name: str
    codes: tuple[str, ...]
    change: Change
    where: str
    tasks: tuple[str, ...] = ()  # to which it was meant to apply; empty: wherever it makes sense


MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, where: str = "model", tasks: str = "", found: dict[str, Mutator] = MUTATORS) -> Callable[[Change], Change]:
    """Add a function to a set of mutators."""

    def add(change: Change) -> Change:
        found[change.__name__] = Mutator(change.__name__, tuple(dict.fromkeys(codes.split())), change, where, tuple(tasks.split()))
        return change

    return add


# --- helpers ---


class Program(nn.Module):
    """A model whose forward does something to the input or the output."""

    def __init__(
        self, model: nn.Module, after: Callable[[Tensor], Tensor] = lambda out: out, before: Callable[[Tensor], Tensor] = lambda x: x
    ):
        super().__init__()
        self.model, self.after, self.before = model, after, before

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.model(self.before(x)))


def named(model: nn.Module, kinds: Any) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kinds) and name]


def of(model: nn.Module, kinds: Any) -> list[Any]:
    return [module for _, module in named(model, kinds)]


def put(t: Training, name: str, new: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(t.model.get_submodule(parent), last, new)


def after(t: Training, f: Callable[[Tensor], Tensor]) -> None:
    t.model = Program(t.model, f)


def known(t: Training, f: Callable[[Pair], Pair]) -> None:
    """Change the data that the program knows."""
    t.train, t.valid = f(t.train), f(t.valid) if t.valid else None


def table(t: Training) -> bool:
    return t.train[0].is_floating_point() and t.train[0].dim() == 2 and not t.categories


def floats(t: Training) -> bool:
    return t.train[0].is_floating_point() and not t.categories


def plain_classes(t: Training) -> bool:
    return t.kind == "classes" and t.train[1].dim() == 1


def one_number(t: Training) -> bool:
    return t.kind == "numbers" and t.train[1].dim() == 2 and t.train[1].shape[1] == 1


def n_classes(t: Training) -> int:
    return int(t.train[1].max()) + 1


def sgd(t: Training) -> bool:
    return "SGD" in str(t.opt)


# --- data ---


@fault("nonfinite")
def missing_values(t: Training) -> bool | None:
    """An empty cell here and there becomes nan."""
    if not floats(t):
        return False
    x = t.train[0].flatten(1)
    x[5::150, 1 % x.shape[1]] = float("nan")


@fault("nonfinite")
def log_of_zero(t: Training) -> bool | None:
    """The target is log(count) and some counts are zero."""
    if t.kind != "numbers":
        return False
    t.train[1][3::40] = float("-inf")


@fault("input-scale column-scales")
def raw_units(t: Training) -> bool | None:
    """Nobody standardised: every column in its own large unit. The test data come in these units too."""
    if not table(t) or t.kind == "other":
        return False
    shift, scale = (torch.rand(2, t.train[0].shape[1]) * torch.tensor([[3000.0], [2000.0]])).unbind(0)
    for name in ("train", "valid", "test"):
        if pair := getattr(t, name):
            setattr(t, name, (pair[0] * (scale + 50) + shift, pair[1]))


@fault("column-scales input-scale")
def one_huge_column(t: Training) -> bool | None:
    """A time stamp in seconds, or an income in cents, among standardised columns."""
    if not table(t) or t.kind == "other":
        return False
    for pair in (t.train, t.valid, t.test):
        if pair:
            pair[0][:, 0] = pair[0][:, 0] * 3e5 + 1e6


@fault("input-scale")
def pixels_to_255(t: Training) -> bool | None:
    """`/ 255` was forgotten."""
    if t.train[0].dim() != 4:
        return False
    for name in ("train", "valid", "test"):
        pair = getattr(t, name)
        setattr(t, name, ((pair[0] * 255).round(), pair[1]))


@fault("constant-input")
def same_item_always(t: Training) -> bool | None:
    """The reader's index is not used: each item has the first item's inputs."""
    known(t, lambda pair: (pair[0][:1].expand_as(pair[0]).clone(), pair[1]))


@fault("constant-input")
def half_the_columns_empty(t: Training) -> bool | None:
    """A join that found no match filled half of the columns with zero."""
    if not table(t) or t.kind == "other" or t.train[0].shape[1] < 4:
        return False
    known(t, lambda pair: (torch.cat([torch.zeros_like(pair[0][:, ::2]), pair[0][:, 1::2]], 1), pair[1]))


@fault("constant-input")
def unknown_words(t: Training) -> bool | None:
    """The vocabulary was built from other text: all words have the number of the unknown word."""
    if t.train[0].is_floating_point() or t.categories:
        return False
    known(t, lambda pair: (torch.where(pair[0] > 0, 1, 0), pair[1]))


@fault("inputs-zeroed shuffled-labels mislabelled")
def labels_of_other_items(t: Training) -> bool | None:
    """Inputs were shuffled, and targets not."""
    if t.kind == "other":
        return False
    t.train = t.train[0], t.train[1][torch.randperm(len(t.train[1]))]


@fault("inputs-zeroed shuffled-labels mislabelled")
def labels_one_row_late(t: Training) -> bool | None:
    """A header line was counted: each item has its neighbour's target."""
    if t.kind == "other":
        return False
    known(t, lambda pair: (pair[0], pair[1].roll(1, 0)))


@fault("mislabelled shuffled-labels inputs-zeroed")
def half_the_labels_wrong(t: Training) -> bool | None:
    if not plain_classes(t):
        return False
    y = t.train[1]
    wrong = torch.rand(len(y)) < 0.6
    y[wrong] = torch.randint(0, n_classes(t), (int(wrong.sum()),))


@fault("label-range width")
def labels_from_one(t: Training) -> bool | None:
    """The file counts classes from 1."""
    if not plain_classes(t):
        return False
    known(t, lambda pair: (pair[0], pair[1] + 1))


@fault("label-range wrong-loss")
def labels_minus_one_and_one(t: Training) -> bool | None:
    """Labels of -1 and 1, as for a support vector machine, with binary cross entropy."""
    if t.kind not in ("binary", "labels"):
        return False
    known(t, lambda pair: (pair[0], 2 * pair[1] - 1))


@fault("label-range wrong-loss")
def labels_zero_and_255(t: Training) -> bool | None:
    """A mask read from a picture has the values 0 and 255; or "yes" became 2."""
    if t.kind not in ("binary", "labels"):
        return False
    known(t, lambda pair: (pair[0], 255 * pair[1]))


@fault("constant-target")
def one_class_only(t: Training) -> bool | None:
    """A comparison with the wrong name gives False for all rows."""
    if t.kind == "other" or t.kind == "counts":
        return False
    known(t, lambda pair: (pair[0], torch.where(pair[1] == -100, pair[1], torch.zeros_like(pair[1]))))


@fault("targets-scale")
def targets_in_cents(t: Training) -> bool | None:
    """Targets in a small unit, far from zero. The score is that of the outputs in the old unit."""
    if not one_number(t):
        return False
    score = t.score
    known(t, lambda pair: (pair[0], 2e4 * pair[1] + 1e5))
    t.score = lambda out, y: score((out - 1e5) / 2e4, y)


@fault("leak-rows", "report")
def validation_rows_in_training(t: Training) -> bool | None:
    """Over-sampled or augmented before the split: the validation rows are in the training data, several times."""
    if not t.valid or t.kind == "other":
        return False
    t.train = torch.cat([t.train[0], *[t.valid[0]] * 3]), torch.cat([t.train[1], *[t.valid[1]] * 3])
    t.epochs *= 4


@fault("sorted-batches")
def sorted_without_shuffle(t: Training) -> bool | None:
    """Folders are read one class after the other, and the loader does not shuffle."""
    if t.kind == "other" or t.kind == "labels":
        return False
    key = t.train[1].float().flatten(1).sum(1) if t.train[1].dim() > 1 else t.train[1]
    order = key.argsort(stable=True)
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("shift label-range width")
def split_of_sorted_data(t: Training) -> bool | None:
    """The last fifth of a sorted file is the validation part."""
    if not t.valid or not (plain_classes(t) or t.kind in ("binary", "numbers") and t.train[1].shape[1:] == (1,)):
        return False
    x, y = (torch.cat(pair) for pair in zip(t.train, t.valid))
    order, n = y.flatten().argsort(stable=True), len(t.train[0])
    t.train, t.valid = (x[order[:n]], y[order[:n]]), (x[order[n:]], y[order[n:]])


@fault("shift input-scale", "report")
def validation_not_scaled(t: Training) -> bool | None:
    """Only the training data were standardised."""
    if not t.valid or not table(t) or t.kind == "other":
        return False
    t.valid = t.valid[0] * 6 + 9, t.valid[1]


@fault("shift leak-rows", "report")
def validation_of_easy_rows(t: Training) -> bool | None:
    """The validation part has one class only."""
    if not t.valid or not plain_classes(t):
        return False
    kept = t.valid[1] == 0
    t.valid = t.valid[0][kept], t.valid[1][kept]


@fault("leak-feature")
def target_among_inputs(t: Training) -> bool | None:
    """A column that is known only afterwards; it is empty where the model is used."""
    if not table(t) or t.train[1].dim() > 2 or t.train[1].shape[1:] not in ((), (1,)) or t.kind == "other":
        return False
    for pair in (t.train, t.valid):
        if pair:
            pair[0][:, 0] = pair[1].flatten().float() + 0.01 * torch.randn(len(pair[1]))
    t.test[0][:, 0] = 0


@fault("duplicates mislabelled")
def copies_with_other_labels(t: Training) -> bool | None:
    """Most rows are copies of a few, by a wrong join, and have different labels."""
    if not floats(t) or t.kind == "other":
        return False
    many = torch.rand(len(t.train[0])) < 0.85
    t.train[0][many] = t.train[0][:15][torch.randint(0, 15, (int(many.sum()),))]


@fault("heavy-augmentation")
def drowned_in_noise(t: Training) -> bool | None:
    """An augmentation whose strength was meant for bytes."""
    if not floats(t) or t.kind == "other":
        return False
    t.augment = lambda x: x + 12 * x.std() * torch.randn_like(x)


@fault("heavy-augmentation")
def erased(t: Training) -> bool | None:
    """Random erasing that keeps a tenth."""
    if not floats(t) or t.kind == "other":
        return False
    t.augment = lambda x: x * (torch.rand_like(x) < 0.1)


@fault("augmented-validation", "report")
def validation_augmented(t: Training) -> bool | None:
    """Training and validation share one data set, and so its random transform."""
    if not floats(t) or not t.valid or t.kind == "other":
        return False
    t.augment = t.valid_augment = lambda x: x * (torch.rand_like(x) < 0.6)


@fault("channels")
def channels_last(t: Training) -> bool | None:
    """Pictures of height x width x channel; the first layer was changed until it ran."""
    if t.train[0].dim() != 4 or t.train[1].dim() > 1:
        return False
    name, first = named(t.model, nn.Conv2d)[0]
    n = t.train[0].shape[2]
    put(t, name, nn.Conv2d(n, first.out_channels, (3, 2), padding=(1, 4)))
    for part in ("train", "valid", "test"):
        pair = getattr(t, part)
        setattr(t, part, (pair[0].permute(0, 2, 3, 1).contiguous(), pair[1]))


@fault("integer-input")
def bytes_into_layers(t: Training) -> bool | None:
    if t.train[0].dim() != 4:
        return False
    known(t, lambda pair: ((pair[0] * 255).byte(), pair[1]))


@fault("pads")
def nearly_all_ignored(t: Training) -> bool | None:
    """The mask of the pads is the wrong way round: words are ignored and pads are not."""
    if t.train[1].min() != -100:
        return False
    known(t, lambda pair: (pair[0], torch.where(pair[1] == -100, 0, -100)))


@fault("pads imbalance")
def pads_counted(t: Training) -> bool | None:
    """Sequences are padded to a great length, and the pads count as a class."""
    if t.train[1].min() != -100:
        return False
    known(t, lambda pair: (F.pad(pair[0], (0, 90)), F.pad(pair[1].clamp(min=0), (0, 90))))
    t.loss = nn.CrossEntropyLoss()


@fault("imbalance shift")
def classes_nearly_lost(t: Training) -> bool | None:
    """A filter removed nearly all rows that are not of the first class."""
    if not plain_classes(t):
        return False
    kept = (t.train[1] == 0) | (torch.rand(len(t.train[1])) < 0.02)
    copies = torch.arange(len(kept))[kept].repeat(4)[: len(kept)]
    t.train = t.train[0][copies], t.train[1][copies]


# --- model ---


@fault("linear-linear")
def no_activation(t: Training) -> bool | None:
    names = [name for name, _ in named(t.model, BENT)]
    for name in names:
        put(t, name, nn.Identity())
    return bool(names)


@fault("softmax-twice")
def softmax_before_cross_entropy(t: Training) -> bool | None:
    if t.kind != "classes":
        return False
    after(t, lambda out: out.softmax(1))


@fault("softmax-twice")
def softmax_layer_before_cross_entropy(t: Training) -> bool | None:
    if t.kind != "classes":
        return False
    t.model = nn.Sequential(t.model, nn.Softmax(dim=1))


@fault("softmax-twice batch-mixing")
def softmax_over_items(t: Training) -> bool | None:
    if t.kind != "classes":
        return False
    after(t, lambda out: out.softmax(0))


@fault("softmax-twice")
def sigmoid_twice(t: Training) -> bool | None:
    if t.kind not in ("binary", "labels"):
        return False
    t.model = nn.Sequential(t.model, nn.Sigmoid())


@fault("softmax-twice output-activation wrong-loss")
def softmax_for_labels(t: Training) -> bool | None:
    """Several labels, but the outputs share one sum."""
    if t.kind != "labels":
        return False
    after(t, lambda out: out.softmax(1))


@fault("output-activation")
def relu_at_the_end(t: Training) -> bool | None:
    if t.kind == "other":
        return False
    after(t, torch.relu)


@fault("output-activation")
def sigmoid_on_numbers(t: Training) -> bool | None:
    if not one_number(t):
        return False
    t.model = nn.Sequential(t.model, nn.Sigmoid())


@fault("output-activation")
def tanh_on_numbers(t: Training) -> bool | None:
    if t.kind != "numbers":
        return False
    after(t, torch.tanh)


@fault("softmax-one output-activation")
def softmax_over_one(t: Training) -> bool | None:
    if t.kind != "binary":
        return False
    after(t, lambda out: out.softmax(1))
    t.loss = nn.BCELoss()


@fault("missing-logsoftmax")
def nll_of_logits(t: Training) -> bool | None:
    if t.kind != "classes":
        return False
    t.loss = nn.NLLLoss()


@fault("missing-logsoftmax")
def nll_of_probabilities(t: Training) -> bool | None:
    if t.kind != "classes":
        return False
    after(t, lambda out: out.softmax(1))
    t.loss = nn.NLLLoss()


@fault("no-gradient unused missing-params")
def detached_in_the_middle(t: Training) -> bool | None:
    """`.detach()`, `.data` or a way through NumPy cuts the first layers off."""
    layers = named(t.model, (*MATRICES, *NORMS))
    if len(layers) < 3:
        return False
    name, module = layers[-2]
    put(t, name, nn.Sequential(Program(module, before=lambda x: x.data)))


@fault("no-gradient unused")
def all_but_the_head_frozen(t: Training) -> bool | None:
    """A body without pretraining is frozen, as in an example of fine-tuning."""
    last = of(t.model, MATRICES)[-1]
    t.model.requires_grad_(False)
    last.requires_grad_()
    return len(of(t.model, MATRICES)) > 1


@fault("symmetric zero-gradient")
def zero_init(t: Training) -> bool | None:
    for p in t.model.parameters():
        nn.init.zeros_(p)


@fault("symmetric")
def constant_init(t: Training) -> bool | None:
    for layer in of(t.model, MATRICES):
        nn.init.constant_(layer.weight, 0.1)


@fault("init-scale initial-loss exploding saturated")
def giant_init(t: Training) -> bool | None:
    """`normal_()` without a standard deviation."""
    for layer in of(t.model, MATRICES):
        nn.init.normal_(layer.weight, std=2)


@fault("init-scale vanishing zero-gradient ignores-input")
def tiny_init(t: Training) -> bool | None:
    for layer in of(t.model, MATRICES):
        nn.init.normal_(layer.weight, std=1e-4)


@fault("dead-relu zero-gradient ignores-input no-gradient")
def dead_relu(t: Training) -> bool | None:
    """A bias far below zero in front of each ReLU."""
    layers = list(t.model.modules())
    pairs = [(a, b) for a, b in zip(layers, layers[1:]) if isinstance(b, nn.ReLU) and hasattr(a, "bias") and a.bias is not None]
    for layer, _ in pairs:
        nn.init.constant_(layer.bias, -12.0)
    return bool(pairs)


@fault("vanishing saturated")
def deep_sigmoid(t: Training) -> bool | None:
    """Sigmoids where the network has ReLUs, and weights as small as their usual example has them."""
    bent = named(t.model, BENT)
    if len(bent) < 2:
        return False
    for name, _ in bent:
        put(t, name, nn.Sigmoid())
    for layer in of(t.model, MATRICES):
        nn.init.normal_(layer.weight, std=0.02)


@fault("dropout")
def dropout_95(t: Training) -> bool | None:
    """`Dropout(0.95)` meant: keep 95%."""
    bent = named(t.model, BENT)
    for name, module in bent:
        put(t, name, nn.Sequential(module, nn.Dropout(0.95)))
    return bool(bent)


@fault("dropout")
def dropout_on_the_answer(t: Training) -> bool | None:
    """Dropout after the last layer."""
    if t.kind == "other":
        return False
    t.model = nn.Sequential(t.model, nn.Dropout(0.7))


@fault("train-eval mode")
def norm_never_updated(t: Training) -> bool | None:
    """`momentum=0`, from a library in which momentum means the share to keep."""
    norms = of(t.model, NORMS)
    for norm in norms:
        norm.momentum = 0.0
    return bool(norms)


@fault("train-eval mode")
def norm_statistics_of_other_data(t: Training) -> bool | None:
    """Running averages come from a checkpoint of another model and hardly move."""
    norms = of(t.model, NORMS)
    for norm in norms:
        norm.momentum = 1e-4
        norm.running_mean.normal_(0, 3)
        norm.running_var.fill_(9)
    return bool(norms)


@fault("odd-batch batch-size")
def batches_of_one(t: Training) -> bool | None:
    norms = of(t.model, NORMS)
    t.bs, t.epochs = 1, 1
    return bool(norms)


@fault("batch-mixing")
def reshaped_over_items(t: Training) -> bool | None:
    """`reshape` where a transpose was meant: rows and columns are mixed."""
    if t.kind == "other" or t.train[0].dim() != 2 or not floats(t):
        return False
    t.model = Program(t.model, before=lambda x: x.T.reshape(x.shape))


@fault("batch-mixing")
def batch_is_time(t: Training) -> bool | None:
    """`batch_first` was forgotten: the recurrent layer, or attention, runs over the items."""
    layers = of(t.model, (nn.LSTM, nn.GRU, nn.MultiheadAttention))
    for layer in layers:
        layer.batch_first = False
    if of(t.model, nn.TransformerEncoderLayer):
        t.model.__dict__["forward"] = partial(without_mask, t.model)
    return bool(layers)


def without_mask(model: Any, x: Tensor) -> Tensor:
    return model.out(model.norm(model.blocks(model.embed(x) + model.places).mean(1)))


@fault("batch-mixing")
def normalised_over_items(t: Training) -> bool | None:
    """The outputs are standardised over the batch, in training and after it."""
    if t.kind == "other":
        return False
    after(t, lambda out: (out - out.mean(0)) / (out.std(0) + 1e-5))


@fault("ignores-input zero-gradient unused no-gradient")
def input_not_used(t: Training) -> bool | None:
    """A name is written twice: `h` is overwritten by an empty state."""
    t.model = Program(t.model, before=torch.zeros_like)


@fault("width label-range")
def too_few_outputs(t: Training) -> bool | None:
    if not plain_classes(t):
        return False
    name, last = named(t.model, nn.Linear)[-1]
    put(t, name, nn.Linear(last.in_features, last.out_features - 1))


class Unregistered(nn.Module):
    """Layers in a plain list."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = list(layers)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@fault("missing-params unused no-gradient")
def layers_in_a_list(t: Training) -> bool | None:
    """A Python list instead of a `ModuleList`: its layers are not trained."""
    layers = named(t.model, MATRICES)[:-1]
    for name, module in layers:
        put(t, name, Unregistered(module))
    return bool(layers)


# --- loss and metric ---


@fault("negative")
def wrong_sign(t: Training) -> bool | None:
    loss = t.loss
    t.loss = lambda out, y: -loss(out, y)


@fault("broadcast")
def row_against_column(t: Training) -> bool | None:
    """Targets without their second dimension: the loss compares each output with each target."""
    if not one_number(t):
        return False
    known(t, lambda pair: (pair[0], pair[1][:, 0]))
    t.loss, t.metric = (lambda out, y: (out - y).pow(2).mean()), None


@fault("sum rate-range")
def loss_summed(t: Training) -> bool | None:
    """`reduction="sum"`, and the rate of the mean."""
    if isinstance(t.loss, nn.CrossEntropyLoss | nn.MSELoss | nn.BCEWithLogitsLoss | nn.SmoothL1Loss | nn.PoissonNLLLoss):
        t.loss = copy.copy(t.loss)
        t.loss.reduction = "sum"
        return None
    return False


@fault("wrong-loss")
def squares_of_class_numbers(t: Training) -> bool | None:
    """The class is predicted as a number."""
    if not plain_classes(t) or n_classes(t) < 3:
        return False
    name, last = named(t.model, nn.Linear)[-1]
    put(t, name, nn.Linear(last.in_features, 1))
    t.loss, t.metric = (lambda out, y: F.mse_loss(out[:, 0], y.float())), None


@fault("wrong-loss")
def binary_loss_of_class_numbers(t: Training) -> bool | None:
    """Binary cross entropy of one output for numbers of several classes."""
    if not plain_classes(t) or n_classes(t) < 3:
        return False
    name, last = named(t.model, nn.Linear)[-1]
    put(t, name, nn.Linear(last.in_features, 1))
    t.loss, t.metric = (lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y.float())), None


@fault("no-gradient negative")
def loss_of_decisions(t: Training) -> bool | None:
    """The share of wrong decisions as a loss."""
    if not plain_classes(t):
        return False
    t.loss = lambda out, y: (out.argmax(1) != y).float().mean().requires_grad_()


@fault("imbalance weighted-mean")
def weights_inverted(t: Training) -> bool | None:
    """Weights proportional to the frequency of the classes, instead of their inverse."""
    if t.kind != "binary" or t.train[1].mean() > 0.2:
        return False
    t.loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.004))


@fault("regulariser overfit-one-batch")
def penalty_dominates(t: Training) -> bool | None:
    """A penalty on the sum of all weights that was chosen for a mean."""
    loss, model = t.loss, t.model
    t.loss = lambda out, y: loss(out, y) + 0.1 * sum(p.abs().sum() for p in model.parameters())


@fault("metric-range not-representative", "report")
def accuracy_of_one_output(t: Training) -> bool | None:
    """`argmax` over the single output is always 0."""
    if t.kind != "binary" or not t.valid:
        return False
    t.metric = lambda out, y: (out.argmax(1, keepdim=True) == y).float().mean()


@fault("not-representative metric-range", "report")
def metric_upside_down(t: Training) -> bool | None:
    """Called accuracy, but counts what is wrong."""
    if not t.valid or not plain_classes(t):
        return False

    def accuracy(out: Tensor, y: Tensor) -> Tensor:
        return (out.argmax(1) != y).float().mean()

    t.metric = accuracy


@fault("not-representative metric-range", "report")
def metric_over_wrong_dim(t: Training) -> bool | None:
    if not t.valid or not plain_classes(t):
        return False

    def accuracy(out: Tensor, y: Tensor) -> Tensor:
        return (out.argmax(0)[:, None] == y).float().mean()

    t.metric = accuracy


# --- optimizer and plan ---


@fault("rate-range")
def rate_x30(t: Training) -> None:
    t.lr *= 30


@fault("rate-range")
def rate_x1000(t: Training) -> None:
    t.lr *= 1000


@fault("rate-range")
def rate_1e_6(t: Training) -> None:
    t.lr = 1e-6


@fault("decay")
def huge_decay(t: Training) -> None:
    t.opt = partial(t.opt, weight_decay=2.0 if "AdamW" not in str(t.opt) else 100.0)


@fault("missing-params")
def head_not_in_optimizer(t: Training) -> bool | None:
    """The body's parameters were given to the optimizer, the head's were not."""
    make, head = t.opt, {id(p) for p in of(t.model, MATRICES)[-1].parameters()}
    t.opt = lambda groups, **more: make([p for g in groups for p in g["params"] if id(p) not in head], **more)


@fault("missing-params")
def only_the_last_layer_in_optimizer(t: Training) -> bool | None:
    make, head = t.opt, {id(p) for p in of(t.model, MATRICES)[-1].parameters()}
    t.opt = lambda groups, **more: make([p for g in groups for p in g["params"] if id(p) in head], **more)
    return len(of(t.model, MATRICES)) > 1


@fault("stale-params missing-params")
def replaced_after_the_optimizer(t: Training) -> bool | None:
    """The model is built anew after the optimizer was made."""
    layers = named(t.model, MATRICES)
    if len(layers) < 2:
        return False

    def replace(learn: Learner) -> None:
        learn.create_opt()
        for _, layer in layers:
            layer.weight = nn.Parameter(torch.randn_like(layer.weight) * layer.weight.std())

    t.ready.append(replace)


@fault("eps rate-range")
def huge_eps(t: Training) -> bool | None:
    """Adam with an eps of 1, from a paper on another model."""
    if "Adam" not in str(t.opt):
        return False
    t.opt = partial(t.opt, eps=1.0)


@fault("eps betas")
def betas_swapped(t: Training) -> bool | None:
    if "Adam" not in str(t.opt):
        return False
    t.opt = partial(t.opt, betas=(0.999, 0.9))


@fault("eps betas rate-range")
def momentum_999(t: Training) -> bool | None:
    if not sgd(t):
        return False
    t.opt = partial(t.opt, momentum=0.999)


@fault("rate-range")
def clipped_to_nothing(t: Training) -> bool | None:
    """Gradients are clipped at a norm meant for their single values."""
    if not sgd(t):
        return False
    t.cbs = [GradientClip(1e-3)]


@fault("batch-size too-short")
def one_batch_an_epoch(t: Training) -> None:
    """All data in one batch, and as many epochs as before."""
    t.bs = len(t.train[0])


@fault("schedule-steps")
def schedule_counts_epochs(t: Training) -> None:
    """A decay written for epochs is done after each update."""
    t.cbs = [TorchScheduler(lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.6))]


@fault("precision")
def half_without_scaling(t: Training) -> bool | None:
    """Weights and inputs in half precision, without scaling of the loss."""
    if not floats(t) or t.kind == "other":
        return False
    t.model = Program(t.model.half(), after=lambda out: out.float(), before=lambda x: x.half())
