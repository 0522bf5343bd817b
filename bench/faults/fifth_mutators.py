"""A fifth set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The stories are those of forum threads, issues, lecture notes and post-mortems. The codes are those of the table, D1 to A12, and the first one
is the closest. "No code fits" marks a fault for which the table has no code: those given are the nearest. A preparation of the inputs that the
program applies wherever it reads data also reaches the inputs of the test part, as in `everywhere`. Its targets are never touched.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import mutators
import torch
from fault_tasks import Training, similarity
from fourth_mutators import Apply, Then
from lr_tasks import mlp
from mutators import Change, Mutator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils.data import TensorDataset, WeightedRandomSampler

from cbnb import (
    EMA,
    Callback,
    CancelBatchException,
    CancelStepException,
    CancelTrainException,
    DataLoaders,
    EarlyStopping,
    Learner,
    Metric,
    ReduceLROnPlateau,
    Step,
    TorchScheduler,
)

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---

BENT = (nn.ReLU, nn.Tanh, nn.GELU)
MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def everywhere(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """Change the inputs of all three parts."""
    inputs(t, change)
    t.test = change(t.test[0].clone()), t.test[1]


def inputs(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    t.train = change(t.train[0].clone()), t.train[1]
    if t.valid:
        t.valid = change(t.valid[0].clone()), t.valid[1]


def targets(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    t.train = t.train[0], change(t.train[1].clone())
    if t.valid:
        t.valid = t.valid[0], change(t.valid[1].clone())


def whole(t: Training) -> tuple[Tensor, Tensor]:
    """The rows of training and validation, as the file has them."""
    if not t.valid:
        return t.train
    return torch.cat([t.train[0], t.valid[0]]), torch.cat([t.train[1], t.valid[1]])


def cut(t: Training, x: Tensor, y: Tensor) -> None:
    """Split such rows as before: by the share that training has."""
    share = 1.0 if t.valid is None else len(t.train[0]) / (len(t.train[0]) + len(t.valid[0]))
    n = round(share * len(x))
    t.train = x[:n].clone(), y[:n].clone()
    if t.valid:
        t.valid = x[n:].clone(), y[n:].clone()


def modules(t: Training, kinds: Any) -> list[Any]:
    return [module for module in t.model.modules() if isinstance(module, kinds)]


def last(t: Training) -> Any:
    return modules(t, MATRICES)[-1]


def replace(t: Training, old: nn.Module, new: nn.Module) -> None:
    for parent in list(t.model.modules()):
        for name, child in list(parent.named_children()):
            if child is old:
                setattr(parent, name, new)


def n_classes(t: Training) -> int:
    return int(t.train[1].max()) + 1


def made(t: Training, params: Iterable[Any]) -> None:
    """The program makes its optimizer itself."""
    t.opt = t.opt(list(params), lr=t.lr)  # type: ignore[assignment]


class Trained(Callback):
    """Acts in training only."""

    run_valid, run_in = False, ("fit",)


# --- inputs ---


@fault("D2 M8", "digits_conv digits-deep8-adam deep_norm")
def divided_by_255_twice(t: Training) -> None:
    """`ToTensor` has scaled the images to 0..1, and the dataset divides by 255 once more."""
    everywhere(t, lambda x: x / 255)


@fault("D2 M8 L1", "waves digits-deep8-adam segmentation")
def raw_samples(t: Training) -> None:
    """The sound as it comes out of the file, 16 bits, or pixels from 0 to 255: only turned into floats."""
    everywhere(t, lambda x: (x * (8000 if x.shape[-1] == 32 else 255)).round())


@fault("A2 D4", "houses clusters breast-linear-rmsprop")  # no code fits
def standardised_by_row(t: Training) -> None:
    """`x.mean(1)` where `x.mean(0)` was meant: each item is standardised over its columns."""
    everywhere(t, lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


@fault("D4 D2", "houses clusters friedman")
def one_mean_for_all_columns(t: Training) -> None:
    """`(x - x.mean()) / x.std()` of a whole table, whose columns have units from grams to tons."""
    units = 10 ** torch.linspace(-1, 3, t.train[0].shape[1])[torch.randperm(t.train[0].shape[1])]
    raw = t.train[0] * units
    everywhere(t, lambda x: (x * units - raw.mean()) / raw.std())


@fault("D4 D2", "houses rare breast-linear-rmsprop")
def missing_is_minus_999(t: Training) -> None:
    """The sensor writes -999 where it has no value, and nobody told `read_csv`."""

    def change(x: Tensor) -> Tensor:
        x[:, 1:3][torch.rand(len(x), 2) < 0.04] = -999.0
        return x

    everywhere(t, change)


@fault("D1 R1", "clusters friedman breast-linear-rmsprop")
def divided_by_a_std_of_zero(t: Training) -> None:
    """One column never changes, and standardising it divides zero by zero."""

    def change(x: Tensor) -> Tensor:
        x[:, 2] = 3.0
        x[:, 2] = (x[:, 2] - 3.0) / x[:, 2].std()
        return x

    everywhere(t, change)


@fault("D3 D4", "houses clusters friedman")
def min_max_with_an_outlier(t: Training) -> None:
    """`MinMaxScaler`, and in most columns one absurd value that squeezes all others into a thousandth of the range."""
    low, high = t.train[0].amin(0), t.train[0].amax(0)
    high = torch.where(torch.arange(len(high)) % 4 < 3, high + 4000, high)

    def change(x: Tensor) -> Tensor:
        return (x - low) / (high - low)

    everywhere(t, change)
    odd = torch.arange(len(high)) % 4 < 3
    t.train[0][7, odd] = 1.0


@fault("D14 A4 D15", "houses rare breast-linear-rmsprop")
def label_among_the_features(t: Training) -> None:
    """`df.drop(columns=target)` was forgotten; in service that column is not known, and is filled with the mean."""
    mean, std = t.train[1].mean(), t.train[1].std()
    t.train, t.valid, t.test = ((x.clone(), y) for x, y in (t.train, t.valid, t.test))  # type: ignore[misc]
    for x, y in (t.train, t.valid):  # type: ignore[misc]
        x[:, -1] = (y[:, 0] - mean) / std
    t.test[0][:, -1] = 0.0


@fault("D14 M3", "next_symbol")
def window_holds_the_answer(t: Training) -> None:
    """An off-by-one of the slices: the last symbol of each window is the one to predict."""
    t.train = torch.cat([t.train[0][:, 1:], t.train[1][:, None]], 1), t.train[1]


@fault("D6 A2", "adding-recurrent-sgd")  # no code fits
def reshaped_where_transposed(t: Training) -> None:
    """The array has channels first, and `reshape` gives the shape that the model wants; `transpose` was meant."""
    everywhere(t, lambda x: x.transpose(1, 2).reshape(x.shape))


@fault("D21 A2", "lstm transformer")  # no code fits
def pad_is_a_word(t: Training) -> None:
    """The collate function pads with the id of the first word of the vocabulary."""
    everywhere(t, lambda x: torch.where(x == 0, 1, x))


@fault("T5 D16 D2", "digits_conv deep_norm digits-deep8-adam")
def normalised_in_place(t: Training) -> None:
    """`__getitem__` writes `img -= mean; img /= std` into the array that holds the data, so each epoch normalises again."""
    mean, std = float(t.train[0].mean()), float(t.train[0].std())
    t.augment = t.valid_augment = lambda x: x.sub_(mean).div_(std)
    t.test = (t.test[0] - mean) / std, t.test[1]


@fault("D5 D2 A2", "recommender tagger")  # no code fits
def ids_as_numbers(t: Training) -> None:
    """Ids go into the network as numbers, as if film 40 were twice film 20."""
    if t.categories:
        t.model = nn.Sequential(Apply(lambda x: x.float()), mlp(2, 48, 24, 1))
    else:
        t.model.embed = nn.Sequential(Apply(lambda x: x[..., None].float()), nn.Linear(1, 16))


# --- augmentation and loaders ---


@fault("D17", "digits_conv waves")
def crops_of_imagenet(t: Training) -> None:
    """`RandomResizedCrop` with its default scale, from 8% of the picture on, for tiny pictures."""

    def crop(x: Tensor) -> Tensor:
        share, size = float(torch.empty(()).uniform_(0.08, 1)), x.shape[-1]
        wide = max(2, round(size * (share**0.5 if x.dim() == 3 else share)))
        at = torch.randint(size - wide + 1, (2,)).tolist()
        if x.dim() == 3:
            part = x[None, :, at[0] : at[0] + wide, at[1] : at[1] + wide]
            return F.interpolate(part, size=x.shape[1:], mode="bilinear", align_corners=False)[0]
        return F.interpolate(x[None, :, at[0] : at[0] + wide], size=size, mode="linear", align_corners=False)[0]

    t.augment = crop


@fault("D18 D17 T3", "segmentation tagger")  # no code fits
def augmented_without_its_target(t: Training) -> None:
    """The image is flipped and its mask is not; a word is deleted and its tag is not."""

    def flip(x: Tensor) -> Tensor:
        return x.flip([d for d in (1, 2) if torch.rand(()) < 0.5])

    def delete(x: Tensor) -> Tensor:
        n, x = int((x > 0).sum()), x.clone()
        for _ in range(2):
            at = int(torch.randint(n, ()))
            x = torch.cat([x[:at], x[at + 1 :], x.new_zeros(1)])
        return x

    t.augment = flip if t.train[0].is_floating_point() else delete


@fault("D16", "digits_conv waves", "report")
def validation_is_augmented(t: Training) -> None:
    """One pipeline of transforms, shifts and random erasing, for the whole folder, which is split afterwards."""

    def change(x: Tensor) -> Tensor:
        x = x.roll(int(torch.randint(-2, 3, ())), -1).clone()
        at = int(torch.randint(x.shape[-1] * 3 // 5, ()))
        x[..., at : at + x.shape[-1] * 2 // 5] = 0
        return x

    t.augment = t.valid_augment = change


@fault("D10", "clusters digits_conv deep_norm")
def sorted_and_not_shuffled(t: Training) -> None:
    """The folders are read class by class, and `shuffle=True` was lost when a sampler was tried."""
    order = t.train[1].argsort(stable=True)
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D15 A11", "clusters deep_norm houses")
def split_without_shuffling(t: Training) -> None:
    """`x[:n], x[n:]` of a file that is sorted by the target: training has never seen what validation holds."""
    x, y = whole(t)
    order = y.flatten().argsort(stable=True)
    cut(t, x[order], y[order])


def sampled(t: Training, make: Callable[[], Any]) -> None:
    """Loaders with a sampler for training."""

    def act(learn: Learner) -> None:
        sets = [TensorDataset(*pair) for pair in (t.train, t.valid) if pair]
        learn.dls = DataLoaders.from_datasets(*sets, bs=t.bs, val_bs=128, drop_last=t.drop_last, num_workers=0, sampler=make())

    t.ready.append(act)


@fault("D20 M19 A1", "clusters digits_conv deep_norm")
def class_weights_for_the_sampler(t: Training) -> None:
    """`WeightedRandomSampler(class_weights, len(ds))` wants a weight for each item: it draws the first few items only."""
    weights = 1 / torch.bincount(t.train[1]).float()
    sampled(t, lambda: WeightedRandomSampler(weights.tolist(), len(t.train[0])))


@fault("M19 A1 O7", "clusters waves tagger")
def slice_of_debugging(t: Training) -> None:
    """`train = train[:64]  # debug` is still there."""
    t.train = t.train[0][:64], t.train[1][:64]


@fault("D20 D18", "clusters digits_conv shells-mlp-adam")
def same_item_in_two_classes(t: Training) -> None:
    """A scraper found many pictures for two search words, so they lie in two folders."""
    x, y = t.train
    chosen = torch.rand(len(y)) < 0.6
    other = (y[chosen] + torch.randint(1, 3, (int(chosen.sum()),))) % n_classes(t)
    t.train = torch.cat([x, x[chosen], x[chosen]]), torch.cat([y, other, other])


@fault("D13 D12 A4", "clusters shells-mlp-adam clusters5-residual-adamw", "report")
def augmented_before_the_split(t: Training) -> None:
    """Eight versions of each item were written to disk, with some noise, and then all files were split at random."""
    x, y = whole(t)
    x = torch.cat([x + 0.05 * torch.randn_like(x) for _ in range(8)])
    order = torch.randperm(len(x))
    cut(t, x[order], y.repeat(8)[order])


@fault("D12 A4", "recommender clusters5-residual-adamw digits-deep8-adam", "report")
def validates_on_the_training_set(t: Training) -> None:
    """`valid_ds = Items(train_files)`, copied from the line above."""
    t.valid = t.train[0].clone(), t.train[1].clone()


@fault("D15", "houses clusters multi_label", "report")
def other_order_of_columns(t: Training) -> None:
    """The features are chosen by a `set` of names, whose order differs between the script of training and that of validation."""
    order = torch.randperm(t.train[0].shape[1])
    t.valid = t.valid[0][:, order], t.valid[1]  # type: ignore[index]


@fault("D15 A7", "clusters digits_conv deep_norm", "report")  # no code fits
def other_order_of_folders(t: Training) -> None:
    """Classes are numbered as `os.listdir` returns them, which is another order for the folder of validation."""
    order = torch.randperm(n_classes(t))
    t.valid = t.valid[0], order[t.valid[1]]  # type: ignore[index]


@fault("A8", "houses clusters digits_conv", "report")  # no code fits
def eight_items_for_validation(t: Training) -> None:
    """`valid[:8]`, since validation took so long."""
    t.valid = t.valid[0][:8], t.valid[1][:8]  # type: ignore[index]


# --- targets ---


@fault("T3 D18 A7", "houses clusters digits_conv")
def dropna_of_the_inputs_only(t: Training) -> None:
    """Rows with gaps are dropped from the inputs and not from the targets: from the first gap on they do not belong together."""
    x, y = whole(t)
    keep = torch.ones(len(x), dtype=torch.bool)
    keep[torch.linspace(len(x) // 4, len(x) - 1, 12).long()] = False
    x = x[keep]
    cut(t, x, y[: len(x)])


@fault("D11 L8 L5", "rare moons breast-linear-rmsprop")
def labels_of_an_svm(t: Training) -> None:
    """The labels are -1 and 1, as an SVM wants them, and the loss wants 0 and 1."""
    targets(t, lambda y: 2 * y - 1)


@fault("D8 A5", "rare moons table-embed-sgd")
def yes_is_not_equal_to_Yes(t: Training) -> None:  # noqa: N802
    """`(df.answer == "yes")` is never true, since the file says "Yes"."""
    targets(t, torch.zeros_like)


@fault("D18 A7", "clusters digits_conv waves")
def annotators_confuse_two_classes(t: Training) -> None:
    """Most annotators did not know the difference between two of the classes, and chose the one that comes first in the menu."""
    targets(t, lambda y: torch.where((y == 2) & (torch.rand(y.shape) < 0.65), 1, y))


@fault("D7", "houses friedman adding-recurrent-sgd")
def prices_in_dollars(t: Training) -> None:
    """Nobody scaled the target: it is in dollars, and the network starts at zero."""
    score = t.score
    targets(t, lambda y: 1e5 * (y + 2))
    t.score = lambda out, y: score(out / 1e5 - 2, y)


@fault("D18 L5", "friedman adding-recurrent-sgd houses")  # no code fits
def whole_numbers_as_targets(t: Training) -> None:
    """`LongTensor(y)`, as in the last project, which was a classification: the digits after the point are gone."""
    targets(t, lambda y: y.long().float())


@fault("R8 D7 D18", "houses adding-recurrent-sgd recommender")  # no code fits
def decimal_points_lost(t: Training) -> None:
    """Some files were written with a comma for the decimal point: one price in forty is a hundred times too high."""
    targets(t, lambda y: torch.where(torch.rand(y.shape) < 0.025, 100 * y, y))


@fault("T3 A7", "next_symbol tagger")  # no code fits
def labels_shifted_twice(t: Training) -> None:
    """The dataset shifts the labels by one, and so does the model: it learns the symbol after the next."""
    if t.valid is None:
        t.train = torch.cat([t.train[0][:, :1], t.train[0][:, :-1]], 1), t.train[1]
    else:
        targets(t, lambda y: torch.cat([y[:, 1:], torch.full_like(y[:, :1], -100)], 1))


@fault("L5", "multi_label")
def cross_entropy_for_several_labels(t: Training) -> None:
    """Several labels may hold together, and the loss is that of exclusive classes."""
    t.loss = nn.CrossEntropyLoss()


# --- models ---


@fault("L2", "clusters digits_conv breast-linear-rmsprop")
def probabilities_into_the_loss(t: Training) -> None:
    """The model ends with a softmax or a sigmoid, as in Keras, and the loss has its own."""
    if t.kind == "classes":
        t.model = Then(t.model, lambda out: out.softmax(1))
    else:
        t.model = Then(t.model, torch.sigmoid)
        t.metric = lambda out, y: ((out > 0.5) == (y > 0.5)).float().mean()


@fault("M2 L3", "clusters digits_conv waves")
def log_softmax_over_the_batch(t: Training) -> None:
    """`F.log_softmax(x, dim=0)`: the warning about the missing `dim` is gone."""
    t.model, t.loss = Then(t.model, lambda out: F.log_softmax(out, dim=0)), nn.NLLLoss()


@fault("M2", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    """The recurrent layer takes the items of the batch for the steps of time. All shapes fit."""
    for layer in modules(t, (nn.LSTM, nn.GRU)):
        layer.batch_first = False


class ReadsTheEnd(nn.Module):
    def __init__(self, old: Any):
        super().__init__()
        self.embed, self.lstm, self.out = old.embed, old.lstm, old.out

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0][:, -1])


@fault("D21 A2", "lstm")  # no code fits
def reads_the_state_of_the_last_pad(t: Training) -> None:
    """`out[:, -1]` of sequences that are padded on the right."""
    t.model = ReadsTheEnd(t.model)


class UpsideDown(nn.Module):
    def __init__(self, old: Any):
        super().__init__()
        self.old = old

    def forward(self, x: Tensor) -> Tensor:
        old, kept = self.old, x != 0
        states = old.blocks(old.embed(x) + old.places, src_key_padding_mask=kept)
        return old.out(old.norm((states * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)))


@fault("R1 M1 A2", "transformer")  # no code fits
def mask_is_upside_down(t: Training) -> None:
    """True for the words, as in other libraries, where PyTorch wants True for the pads."""
    t.model = UpsideDown(t.model)


@fault("M12", "friedman clusters segmentation")
def relu_after_the_last_layer(t: Training) -> None:
    """A loop adds linear, ReLU, linear, ReLU, and also one after the last layer."""
    t.model = nn.Sequential(t.model, nn.ReLU())


@fault("M12 M6", "autoencoder breast-linear-rmsprop")
def clamps_what_it_trains(t: Training) -> None:
    """`out.clamp(0, 1)` inside of forward, since pixels and probabilities lie there: no gradient from outside."""
    t.model = Then(t.model, lambda out: out.clamp(0, 1))
    if t.kind == "binary":
        t.loss, t.metric = nn.BCELoss(), lambda out, y: ((out > 0.5) == (y > 0.5)).float().mean()


@fault("M11", "houses shells-mlp-adam moons")
def no_activations(t: Training) -> None:
    """The layers are defined in `__init__`, and forward calls one after the other."""
    for layer in modules(t, BENT):
        replace(t, layer, nn.Identity())


@fault("M7 M6", "clusters houses waves")
def all_weights_zero(t: Training) -> None:
    """`nn.init.constant_(m.weight, 0)` for all layers, where the biases were meant."""
    for layer in modules(t, MATRICES):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)


@fault("M8 L1 M17", "houses friedman digits-deep8-adam")
def weights_from_rand(t: Training) -> None:
    """A layer of one's own with `nn.Parameter(torch.rand(n_out, n_in))`: all are positive, and their mean is one half."""
    for layer in modules(t, nn.Linear):
        with torch.no_grad():
            layer.weight.copy_(torch.rand_like(layer.weight))


@fault("M16 M10", "digits-deep8-adam houses clusters")
def sigmoids_between_the_layers(t: Training) -> None:
    """As in the textbook of 1995."""
    for layer in modules(t, BENT):
        replace(t, layer, nn.Sigmoid())


@fault("M14 M18", "waves friedman clusters")
def keep_probability_of_tensorflow(t: Training) -> None:
    """Ported from TensorFlow 1, where 0.9 is the share that is kept."""
    for layer in modules(t, nn.Dropout):
        layer.p = 0.9
    if not modules(t, nn.Dropout):
        for layer in modules(t, BENT):
            replace(t, layer, nn.Sequential(layer, nn.Dropout(0.9)))


@fault("T5 M14", "clusters friedman digits_conv")
def functional_dropout_never_ends(t: Training) -> None:
    """`F.dropout(x, 0.5)` in forward, without `training=self.training`: also at prediction."""
    layer = last(t)
    replace(t, layer, nn.Sequential(Apply(lambda x: F.dropout(x, 0.5)), layer))


@fault("M18", "digits_conv deep_norm segmentation")
def momentum_of_keras_batch_norm(t: Training) -> None:
    """`momentum=0.99` as in Keras, which means the opposite here: the statistics are those of the last batch."""
    for layer in modules(t, NORMS):
        layer.momentum = 0.99


@fault("R7 M4", "clusters digits_conv lstm")
def frozen_and_random(t: Training) -> None:
    """`load_state_dict(..., strict=False)` has matched no name, and then all but the head is frozen."""
    t.model.requires_grad_(False)
    last(t).requires_grad_(True)


class Listed(nn.Module):
    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.hidden, self.out = layers[:-1], layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x)
        return self.out(x)


@fault("O1 R7 M4", "digits-deep8-adam clusters shells-mlp-adam")
def layers_in_a_list(t: Training) -> None:
    """A Python list instead of a `ModuleList`: the optimizer knows the last layer only."""
    t.model = Listed(list(t.model))  # type: ignore[call-overload]


@fault("M19 A2", "digits-deep8-adam deep_norm transformer")  # no code fits
def one_layer_many_times(t: Training) -> None:
    """`[layer] * n` repeats one object, so that all layers share their weights."""
    if hasattr(t.model, "blocks"):
        t.model.blocks.layers[1] = t.model.blocks.layers[0]
        return
    first: dict[str, nn.Module] = {}
    for layer in list(t.model)[1:]:  # type: ignore[call-overload]
        replace(t, layer, first.setdefault(repr(layer), layer))


@fault("M20 A2", "digits_conv")
def stem_of_a_large_network(t: Training) -> None:
    """Strides and pools for pictures of 224 pixels: these are one pixel wide before the last convolution."""
    first, second = modules(t, nn.Conv2d)
    first.stride = second.stride = (2, 2)
    replace(t, modules(t, nn.MaxPool2d)[1], nn.Identity())
    replace(t, last(t), nn.Linear(second.out_channels, 10))


@fault("M6 M4 M5", "clusters shells-mlp-adam moons")
def step_as_activation(t: Training) -> None:
    """`(x > 0).float()` as the activation of a "spiking" network: no gradient comes through."""
    for layer in modules(t, BENT):
        replace(t, layer, Apply(lambda x: (x > 0).float()))


class OwnReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return (ctx.saved_tensors[0] > 0).float()


@fault("T4 T1 A2", "clusters houses moons")
def backward_without_the_chain_rule(t: Training) -> None:
    """An activation of one's own returns its derivative, and forgets to multiply by `grad_output`."""
    for layer in modules(t, BENT):
        replace(t, layer, Apply(OwnReLU.apply))


# --- losses ---


@fault("L3 L8", "clusters digits_conv segmentation")
def nll_of_logits(t: Training) -> None:
    """`NLLLoss` of what comes out of the last layer."""
    t.loss = nn.NLLLoss()


@fault("L5 M13", "clusters digits_conv deep_norm")
def regresses_the_class_number(t: Training) -> None:
    """One output and a squared error: class 9 is nine times as far as class 1."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, 1))
    t.loss = lambda out, y: F.mse_loss(out.squeeze(1), y.float())
    t.metric = t.honest = lambda out, y: (out.squeeze(1).round() == y).float().mean()


@fault("L7 O3", "clusters digits_conv friedman")
def sum_of_losses(t: Training) -> None:
    """`reduction="sum"`, as the code of the paper has it, whose rate was smaller."""
    t.loss = copy.copy(t.loss)  # that of the task serves other trainings too
    t.loss.reduction = "sum"  # type: ignore[attr-defined]


@fault("L8", "segmentation clusters waves")
def minimises_what_should_be_large(t: Training) -> None:
    """Returns the Dice coefficient or the likelihood, where one minus it was meant."""

    def dice(out: Tensor, y: Tensor) -> Tensor:
        guess, true = out.softmax(1), F.one_hot(y, 3).permute(0, 3, 1, 2)
        return ((2 * (guess * true).sum((0, 2, 3)) + 1) / ((guess + true).sum((0, 2, 3)) + 1)).mean()

    t.loss = dice if t.train[1].dim() > 1 else lambda out, y: out.softmax(1).gather(1, y[:, None]).mean()


@fault("M4 R3 R7", "clusters houses lstm")
def loss_made_to_require_a_gradient(t: Training) -> None:
    """Backward complained that nothing requires a gradient, and somebody's answer was `torch.tensor(loss, requires_grad=True)`."""
    loss = t.loss
    t.loss = lambda out, y: torch.tensor(loss(out, y).item(), requires_grad=True)


@fault("L6", "houses friedman adding-recurrent-sgd")
def flat_targets(t: Training) -> None:
    """Outputs of (n, 1) and targets of (n): the difference is a square."""
    targets(t, lambda y: y[:, 0])


@fault("L12 O5", "clusters houses digits-deep8-adam")
def penalty_of_all_weights(t: Training) -> None:
    """The sum of all absolute weights is added to the loss, times 0.1, which was right for a mean."""
    loss, model = t.loss, t.model
    t.loss = lambda out, y: loss(out, y) + 0.1 * sum(p.abs().sum() for p in model.parameters())


@fault("L5 A5", "moons breast-linear-rmsprop rare")
def half_of_the_cross_entropy(t: Training) -> None:
    """`-(y * log(p)).mean()`: the term of the zeros is missing."""
    t.loss = lambda out, y: -(y * F.logsigmoid(out)).mean()


@fault("M12 L2", "counts")
def exp_twice(t: Training) -> None:
    """The model ends with `exp`, so that rates are positive, and `PoissonNLLLoss` takes logarithms unless told otherwise."""
    t.model = Then(t.model, lambda out: out.clamp(max=4).exp())


@fault("T1 A2", "contrastive")  # no code fits
def temperature_multiplied(t: Training) -> None:
    """`logits = similarity * temperature`, and the temperature is 0.07."""
    t.loss = lambda out, y: F.cross_entropy(similarity(out) * 0.07, torch.arange(len(y)))


@fault("D21 D9", "tagger", "report")
def pads_are_a_class(t: Training) -> None:
    """The tags of the pads are 0 and not -100: they are learnt, and count as hits."""
    targets(t, lambda y: torch.where(y == -100, 0, y))


# --- metrics ---


@fault("L11 A5", "breast-linear-rmsprop table-embed-sgd rare", "report")
def argmax_of_one_output(t: Training) -> None:
    """`out.argmax(1)` of a model with one output is always 0."""
    t.metric = lambda out, y: (out.argmax(1) == y[:, 0]).float().mean()


@fault("L6 L11", "breast-linear-rmsprop table-embed-sgd moons", "report")
def accuracy_of_a_square(t: Training) -> None:
    """`(out.squeeze() > 0) == y`, where y is a column: each guess is compared with all targets."""
    t.metric = lambda out, y: ((out.squeeze(1) > 0) == (y > 0.5)).float().mean()


@fault("L11", "clusters deep_norm lstm", "report")
def hits_by_batches(t: Training) -> None:
    """The number of hits, divided by the number of batches instead of items: an accuracy of 26."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().sum()


class LastBatch(Metric):
    def reset(self) -> None:
        self.found = 0.0

    def accumulate(self, learn: Any) -> None:
        self.found = float((learn.pred.argmax(1) == learn.y).float().mean())

    @property
    def value(self) -> float:
        return self.found


@fault("L9 L11", "clusters lstm deep_norm", "report")  # no code fits
def accuracy_of_the_last_batch(t: Training) -> None:
    """The line that prints the accuracy stands behind the loop, so that it is that of the last batch, which is small."""
    t.metric = LastBatch()  # type: ignore[assignment]


class NeverReset(Metric):
    def __init__(self) -> None:
        self.hits, self.n = 0, 0

    def reset(self) -> None:
        pass

    def accumulate(self, learn: Any) -> None:
        self.hits += int((learn.pred.argmax(1) == learn.y).sum())
        self.n += len(learn.y)

    @property
    def value(self) -> float | None:
        return self.hits / self.n if self.n else None


@fault("L10 L11", "lstm digits_conv transformer", "report")  # no code fits
def metric_never_reset(t: Training) -> None:
    """`metric.reset()` is missing: the accuracy is the mean over all epochs so far."""
    t.metric = NeverReset()  # type: ignore[assignment]


@fault("L11 L10", "multi_label breast-linear-rmsprop table-embed-sgd", "report")  # no code fits
def half_as_the_threshold_of_logits(t: Training) -> None:
    """`out > 0.5`, as if these were probabilities."""
    t.metric = lambda out, y: ((out > 0.5) == (y > 0.5)).float().mean()


# --- optimizers ---


@fault("O1 R7", "lstm segmentation contrastive")
def only_a_part_in_the_optimizer(t: Training) -> None:
    """`Adam(model.head.parameters())` of an earlier trial; or of the first of two networks."""
    part = t.model.left if hasattr(t.model, "left") else last(t)
    made(t, part.parameters())


@fault("O2 O1 R7", "recommender lstm table-embed-sgd")
def tables_replaced_after_the_optimizer(t: Training) -> None:
    """`model.embed.weight = nn.Parameter(vectors)` comes after the line that makes the optimizer."""
    made(t, t.model.parameters())
    for table in modules(t, nn.Embedding):
        table.weight = nn.Parameter(torch.randn_like(table.weight))


@fault("O3 A10 R2", "transformer houses digits-deep8-adam")
def rate_of_sgd_for_adam(t: Training) -> None:
    """SGD is replaced by Adam, and 0.1 stays."""
    t.lr = 0.1


@fault("O3 A10 R3", "transformer lstm deep_norm")
def rate_of_finetuning(t: Training) -> None:
    """2e-5, from a script that tunes a language model; this one starts from nothing."""
    t.lr = 2e-5


@fault("O5 L12", "houses autoencoder lstm")
def decay_of_one_in_adam(t: Training) -> None:
    """The weight decay of somebody's AdamW, handed to Adam, where it is added to the gradients."""
    t.opt = partial(torch.optim.Adam, weight_decay=1.0)


@fault("O4", "houses transformer autoencoder")
def epsilon_of_inception(t: Training) -> None:
    """`eps=1.0`, as the documentation of TensorFlow recommends for Inception."""
    t.opt = partial(t.opt, eps=1.0)


@fault("R4 O2 O3", "autoencoder lstm clusters")  # no code fits
def optimizer_made_in_the_loop(t: Training) -> None:
    """`optimizer = Adam(...)` stands inside of the loop over the batches, so that it never has a past."""
    t.cbs.append(Trained(before_batch=lambda cb: cb.learn.create_opt()))


class Sticky(Step):
    def zero_grad(self, learn: Any) -> None:
        pass


@fault("R2 R4 M17", "clusters lstm houses")  # no code fits
def zero_grad_forgotten(t: Training) -> None:
    """Gradients add up over the whole training."""
    t.ready.append(lambda learn: setattr(learn, "train_step", Sticky()))


class EveryEighth(Trained):
    def before_step(self) -> None:
        if (self.iter + 1) % 8:
            raise CancelStepException


@fault("O7 A3", "friedman clusters transformer")  # no code fits
def accumulates_what_it_zeroes(t: Training) -> None:
    """Accumulation over eight batches, and `zero_grad()` is still at the start of each: seven of eight gradients are lost."""
    t.cbs.append(EveryEighth())


class Half(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body.half()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.half()).float()


@fault("O9 R1", "houses digits-deep8-adam autoencoder")
def pure_half_precision(t: Training) -> None:
    """`model.half()` and Adam, whose epsilon of 1e-8 is zero in 16 bits."""
    t.model = Half(t.model)


@fault("R5 O3", "digits-deep8-adam lstm segmentation")
def body_at_a_thousandth(t: Training) -> None:
    """Groups with rates for a pretrained body, which is random here."""
    head = list(last(t).parameters())
    body = [p for p in t.model.parameters() if all(p is not q for q in head)]
    t.opt = t.opt([dict(params=body, lr=t.lr / 1000), dict(params=head)], lr=t.lr)  # type: ignore[assignment]
    t.lr = [t.lr / 1000, t.lr]  # type: ignore[assignment]


# --- schedules and plans ---


@fault("O6 A10", "clusters lstm houses")
def step_lr_after_each_batch(t: Training) -> None:
    """`scheduler.step()` is inside of the inner loop: the rate is divided by ten after three batches, not epochs."""
    t.cbs.append(TorchScheduler(lambda opt: StepLR(opt, 3, 0.1)))


@fault("O6 A10", "friedman lstm transformer")
def one_cycle_after_each_epoch(t: Training) -> None:
    """`OneCycleLR` with the number of batches, and a step after each epoch: it never leaves the start of its warm-up."""
    steps, rate = t.epochs * (len(t.train[0]) // t.bs), t.lr
    t.cbs.append(TorchScheduler(lambda opt: OneCycleLR(opt, max_lr=rate, total_steps=steps), every="epoch"))


@fault("O6 O3", "transformer tagger deep_norm")
def warm_up_of_the_paper(t: Training) -> None:
    """4000 updates of warm-up, as in "Attention is all you need", in a training of some hundred."""
    t.cbs.append(TorchScheduler(lambda opt: LambdaLR(opt, lambda step: min(1.0, (step + 1) / 4000))))


@fault("O6 A10", "clusters transformer autoencoder")  # no code fits
def plateau_of_the_wrong_mode(t: Training) -> None:
    """`ReduceLROnPlateau(mode="max")` looks at the loss: each fall of it divides the rate by ten."""
    t.cbs.append(ReduceLROnPlateau("valid_loss", comp="max", patience=1))


@fault("A3 O7", "clusters digits_conv autoencoder")
def stops_when_it_improves(t: Training) -> None:
    """Early stopping has the mode for accuracy and watches the loss."""
    t.cbs.append(EarlyStopping("valid_loss", comp="max", patience=1))


@fault("A9", "clusters deep_norm lstm")
def keeps_the_worst_epoch(t: Training) -> None:
    """`if accuracy < best:` was written for the loss; the weights of that epoch are loaded at the end."""
    t.cbs.append(EarlyStopping("accuracy", comp="min", patience=1000, restore=True))


@fault("A1", "recommender shells-mlp-adam clusters5-residual-adamw")
def epochs_of_the_weekend(t: Training) -> None:
    """Ten times the epochs, because nobody was there to stop it."""
    t.epochs *= 10


@fault("O8 O7", "houses lstm clusters")
def whole_set_as_a_batch(t: Training) -> None:
    """All rows fit into memory, so the batch has all of them: one update in each epoch."""
    t.bs = len(t.train[0])


@fault("O7 A3", "houses waves segmentation")
def break_of_debugging(t: Training) -> None:
    """`if i == 2: break` is still in the loop."""

    def stop(cb: Any) -> None:
        if cb.learn.iter >= 2:
            raise CancelTrainException

    t.cbs.append(Trained(after_batch=stop))


@fault("O8 M18 D19", "digits_conv deep_norm segmentation")
def two_items_for_batch_norm(t: Training) -> None:
    """A batch of two, for a small graphics card."""
    t.bs = 2


# --- callbacks and evaluation ---


class StaysInEval(Trained):
    order = 10

    def before_batch(self) -> None:
        if self.epoch > 0:
            self.learn.model.eval()


@fault("R13 M18", "digits_conv deep_norm segmentation")
def train_mode_forgotten(t: Training) -> None:
    """`model.train()` stands before the loop over the epochs, and the first validation switches it off for good."""
    t.cbs.append(StaysInEval())


class StaysInTrain(Callback):
    order = 10

    def before_validate(self) -> None:
        self.learn.model.train()


@fault("R13 T5 M18", "waves friedman deep_norm", "report")
def eval_mode_forgotten(t: Training) -> None:
    """No `model.eval()` before the validation: dropout is on, in a network that has a lot of it."""
    for layer in modules(t, nn.Dropout):
        layer.p = 0.5
    if not modules(t, nn.Dropout):
        layer = last(t)
        replace(t, layer, nn.Sequential(nn.Dropout(0.5), layer))
    t.cbs.append(StaysInTrain())


@fault("A3 O7", "lstm clusters segmentation")  # no code fits
def average_of_a_long_training(t: Training) -> None:
    """An average of the weights with 0.9999, which spans ten thousand updates, in a training of some hundred."""
    t.cbs.append(EMA(0.9999, warmup=False))


class HalfMixUp(Trained):
    def before_batch(self) -> None:
        x, share = self.learn.xb[0], float(torch.rand(()))
        self.learn.xb = (share * x + (1 - share) * x[torch.randperm(len(x))],)


@fault("D17 D18", "digits_conv clusters waves")
def mixes_the_inputs_only(t: Training) -> None:
    """MixUp of one's own: inputs are mixed, and each keeps its own target, even where almost nothing of it is left."""
    t.cbs.append(HalfMixUp())


class SkipsHigh(Trained):
    def after_loss(self) -> None:
        if self.learn.loss > 2:
            raise CancelBatchException


@fault("R3 R7", "digits_conv deep_norm digits-deep8-adam")
def skips_batches_of_high_loss(t: Training) -> None:
    """A guard against spikes drops batches with a loss above 2, of a project with fewer classes: here all begin above it."""
    t.cbs.append(SkipsHigh())


class Normalises(Trained):
    def before_batch(self) -> None:
        self.learn.xb = ((self.learn.xb[0] - 2) / 3,)


@fault("D15 M18", "houses digits_conv waves")
def normalised_in_the_training_loop(t: Training) -> None:
    """The line that normalises is in the loop of training, and neither in that of validation nor in service."""
    everywhere(t, lambda x: 3 * x + 2)
    t.cbs.append(Normalises())


class Dummy(Trained):
    def before_batch(self) -> None:
        with torch.no_grad():
            self.learn.model(torch.zeros_like(self.learn.xb[0]))


@fault("M18", "digits_conv deep_norm segmentation")
def logs_with_an_empty_batch(t: Training) -> None:
    """A logger of shapes calls the model on zeros, in training mode: batch norm takes them into its statistics."""
    t.cbs.append(Dummy())


class MadeAnew(Trained):
    def before_epoch(self) -> None:
        if self.epoch == 0:
            self.first = {k: v.clone() for k, v in self.learn.model.state_dict().items()}
        self.learn.model.load_state_dict(self.first)


@fault("R3 A3", "clusters waves autoencoder")  # no code fits
def weights_loaded_in_each_epoch(t: Training) -> None:
    """`model.load_state_dict(checkpoint)` is inside of the loop over the epochs: each starts from the beginning."""
    t.cbs.append(MadeAnew())


@fault("A4 D12", "recommender clusters5-residual-adamw shells-mlp-adam", "report")  # no code fits
def one_model_for_all_folds(t: Training) -> None:
    """Cross-validation with one model: in this fold it has long been trained on what it is validated on."""
    x, y = whole(t)

    def earlier(learn: Learner) -> None:
        opt = torch.optim.Adam(learn.model.parameters(), 3e-3)
        for _ in range(4 * t.epochs):
            for rows in torch.randperm(len(x)).split(t.bs):
                opt.zero_grad()
                t.loss(learn.model(x[rows]), y[rows]).backward()
                opt.step()

    t.ready.append(earlier)
