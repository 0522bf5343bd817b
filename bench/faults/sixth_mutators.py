"""A sixth set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The stories are those of forum threads, issue trackers, taxonomies of faults in deep learning, lecture notes and post-mortems. The codes are
those of the table, D1 to A12: the first one is the closest, and the others are those that a fair judge would accept. A preparation of the
inputs that the program applies wherever it reads data also reaches the inputs of the test part, as in `everywhere`. Its targets are never
touched.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import mutators
import torch
from fault_tasks import Training, Transformer, similarity
from fifth_mutators import BENT, MATRICES, NORMS, Trained, cut, everywhere, inputs, last, made, modules, n_classes, replace, targets, whole
from fourth_mutators import Apply, Then
from lr_tasks import Residual, mlp
from mutators import Change, Mutator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from cbnb import CancelStepException, EarlyStopping, GradientAccumulation, GradientClip, Learner, ReduceLROnPlateau, Step, TorchScheduler

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def rescore(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """The program turns its output back into the unit of the test part."""
    score = t.score
    t.score = lambda out, y: score(change(out), y)


def before_last(t: Training, make: Callable[[int], nn.Module]) -> None:
    """Put a module, made for that number of features, before the last layer."""
    end = last(t)
    replace(t, end, nn.Sequential(make(end.in_features), end))


def bend(t: Training, make: Callable[[nn.Module], nn.Module]) -> None:
    """Replace the activations."""
    for old in modules(t, BENT):
        replace(t, old, make(old))


def fill(t: Training, change: Callable[[Tensor], Any]) -> None:
    """Initialise the weights anew, and set the biases to zero."""
    with torch.no_grad():
        for module in modules(t, MATRICES):
            change(module.weight)
            if module.bias is not None:
                module.bias.zero_()


def body(t: Training) -> nn.Sequential:
    """All but the last layer."""
    return nn.Sequential(*list(t.model.children())[:-1])


def head(t: Training) -> Any:
    return list(t.model.children())[-1]


def in_file_order(t: Training, order: Tensor) -> None:
    """The rows of training and validation in this order, split as before."""
    x, y = whole(t)
    cut(t, x[order], y[order])


def by_class(t: Training) -> Tensor:
    return whole(t)[1].flatten().argsort(stable=True)


# --- data ---


@fault("D1 R1", "deep_norm digits-deep8-adam autoencoder")
def divided_by_no_deviation(t: Training) -> None:
    """Each pixel is standardised. The corners of the digits are black in all images: zero divided by zero."""
    mean, std = t.train[0].mean(0), t.train[0].std(0)
    everywhere(t, lambda x: (x - mean) / std)


@fault("D1 R1", "houses clusters rare")
def rows_without_a_partner(t: Training) -> None:
    """A left join leaves the joined columns of two rows in a hundred empty."""

    def joined(x: Tensor) -> Tensor:
        x[::50, -2:] = float("nan")
        return x

    everywhere(t, joined)


@fault("D2 D3", "digits_conv digits-deep8-adam autoencoder")
def statistics_of_bytes(t: Training) -> None:
    """Mean and deviation of pixels from 0 to 255, used for images that are from 0 to 1 already."""
    everywhere(t, lambda x: (x - 127.5) / 64)


@fault("D2 M10", "moons adding-recurrent-sgd")
def metres_into_tanh(t: Training) -> None:
    """The numbers as they were measured, in hundreds, into units that saturate beyond three."""
    everywhere(t, lambda x: 300 * x)


@fault("D4 D2", "houses friedman clusters")
def missing_is_minus_999(t: Training) -> None:
    """The file marks a missing value with -999, and nobody replaces it."""

    def read(x: Tensor) -> Tensor:
        x[torch.rand_like(x) < 0.05] = -999
        return x

    everywhere(t, read)


@fault("D4 D2", "houses friedman breast-linear-rmsprop")
def units_of_the_file(t: Training) -> None:
    """No scaler: shares beside square feet and incomes in a year."""
    units = torch.logspace(-2, 3, t.train[0].shape[1])
    everywhere(t, lambda x: x * units + units)


@fault("D4 D2 R8 R2", "counts clusters")
def glitches_of_a_sensor(t: Training) -> None:
    """In a few rows, one column holds the raw count of the sensor."""

    def read(x: Tensor) -> Tensor:
        x[7::90, 1] = 4095.0
        return x

    inputs(t, read)


@fault("D3 M1 R3", "lstm transformer tagger")
def all_words_unknown(t: Training) -> None:
    """The vocabulary is in lower case and the text is not: each word becomes the one for unknown words."""
    everywhere(t, lambda x: (x > 0).long())


@fault("D3 D5", "digits_conv deep_norm autoencoder")
def divided_as_integers(t: Training) -> None:
    """`//` in place of `/`: only pixels of full brightness are left."""
    everywhere(t, lambda x: ((16 * x).long() // 16).float())


@fault("D5", "digits_conv autoencoder")
def images_stay_bytes(t: Training) -> None:
    """`torch.from_numpy` of the images as they are in the file."""
    everywhere(t, lambda x: (255 * x).byte())


@fault("D6", "digits_conv segmentation waves")
def channels_last(t: Training) -> None:
    """From an image library or TensorFlow: the channels are at the end."""
    everywhere(t, lambda x: x.movedim(1, -1).contiguous())


@fault("D7 L1", "houses friedman adding-recurrent-sgd")
def target_in_cents(t: Training) -> None:
    """Prices as integers of the smallest unit. The program divides again what it predicts."""
    targets(t, lambda y: 10_000 * y)
    rescore(t, lambda out: out / 10_000)


@fault("D7 R8 A7 D18", "houses counts")
def comma_lost(t: Training) -> None:
    """In one row of 40 somebody typed the target without its decimal point."""

    def typed(y: Tensor) -> Tensor:
        y[::40] *= 100
        return y

    targets(t, typed)


@fault("D8 A5", "moons breast-linear-rmsprop multi_label")
def compared_with_the_wrong_word(t: Training) -> None:
    """`(df.answer == 'yes')`, while the file has 'Yes': all targets are 0."""
    targets(t, torch.zeros_like)


@fault("D9 A5", "clusters waves shells-mlp-adam")
def join_drops_the_rare_classes(t: Training) -> None:
    """An inner join keeps the rows of the first class, and few of the others."""
    x, y = whole(t)
    kept = (y == 0) | (torch.rand(len(y)) < 0.03)
    cut(t, x[kept], y[kept])
    t.epochs *= 3


@fault("D10 R4", "digits_conv clusters deep_norm")
def folder_by_folder(t: Training) -> None:
    """The images are read class by class, and the loader does not shuffle."""
    order = t.train[1].argsort(stable=True)
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D11 M13", "clusters digits_conv transformer")
def classes_count_from_one(t: Training) -> None:
    """From a file of Matlab or R: the classes are 1 to n."""
    targets(t, lambda y: y + 1)


@fault("D11 L8 L5", "moons rare table-embed-sgd")
def signs_as_targets(t: Training) -> None:
    """-1 and 1, as for a support vector machine, with cross-entropy of zeros and ones."""
    targets(t, lambda y: 2 * y - 1)


@fault("D12 D20 D15", "table-embed-sgd", "report")
def oversampled_before_the_split(t: Training) -> None:
    """The rows of the second class are repeated ten times, and then the rows are split at random."""
    x, y = whole(t)
    again = (y[:, 0] > 0.5).nonzero()[:, 0].repeat(9)
    order = torch.cat([torch.arange(len(y)), again])
    order = order[torch.randperm(len(order))]
    cut(t, x[order], y[order])


@fault("D13 D12 D20", "clusters clusters5-residual-adamw shells-mlp-adam", "report")
def patients_on_both_sides(t: Training) -> None:
    """Six pictures of each patient, nearly the same, split by picture."""
    x, y = whole(t)
    n = len(x) // 6
    x, y = x[:n].repeat(6, 1), y[:n].repeat(6)
    order = torch.randperm(len(x))
    cut(t, (x + 0.1 * torch.randn_like(x))[order], y[order])


@fault("D12 A4", "clusters5-residual-adamw clusters", "report")
def validated_on_training_rows(t: Training) -> None:
    """Both loaders read `train.csv`."""
    t.valid = t.train[0].clone(), t.train[1].clone()
    t.epochs *= 2


@fault("D14 A4", "houses friedman clusters")
def column_made_from_the_target(t: Training) -> None:
    """A column that is filled in after the fact: such as the tax paid on the sale. When the model is used, it is empty."""

    def filled(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = pair[0].clone(), pair[1].reshape(len(pair[0])).float()
        x[:, 0] = (y - mean) / std + 0.05 * torch.randn(len(y))
        return x, pair[1]

    y = t.train[1].float()
    mean, std = y.mean(), y.std()
    t.train = filled(t.train)
    t.valid = filled(t.valid) if t.valid else None
    x = t.test[0].clone()
    x[:, 0] = 0
    t.test = x, t.test[1]


@fault("D14 M3 A4", "next_symbol")
def window_ends_one_too_late(t: Training) -> None:
    """The window of past symbols is cut with an index that is one too large: it ends with the symbol to predict."""
    t.train = torch.cat([t.train[0][:, 1:], t.train[1][:, None]], 1), t.train[1]


@fault("D14 A4", "clusters shells-mlp-adam moons")
def number_of_the_row(t: Training) -> None:
    """The index of the file stays in as a column, and the file was sorted by class. New rows have numbers beyond its end."""
    x, y = whole(t)
    x = x.clone()
    x[by_class(t), 0] = torch.linspace(-1.7, 1.7, len(x))
    cut(t, x, y)
    x = t.test[0].clone()
    x[:, 0] = torch.linspace(1.7, 3, len(x))
    t.test = x, t.test[1]


@fault("D15 D4", "friedman clusters breast-linear-rmsprop")
def scaler_for_training_only(t: Training) -> None:
    """Training rows go through the scaler. The rows of validation, and those of the service, do not."""
    units = torch.logspace(-1, 1.5, t.train[0].shape[1])

    def raw(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pair[0] * units + 2 * units, pair[1]

    t.valid, t.test = raw(t.valid) if t.valid else None, raw(t.test)


@fault("D15 D18", "digits_conv clusters waves", "report")
def classes_numbered_apart(t: Training) -> None:
    """Training and validation each number their classes, in the order in which they meet them."""
    assert t.valid
    met = list(dict.fromkeys(t.valid[1].tolist()))
    number = torch.tensor([met.index(label) if label in met else 0 for label in range(n_classes(t))])
    t.valid = t.valid[0], number[t.valid[1]]


@fault("D15 D9 D10 A11", "clusters digits_conv")
def last_fifth_of_a_sorted_file(t: Training) -> None:
    """The file is sorted by class, and its last fifth is the validation part."""
    in_file_order(t, by_class(t))


@fault("D16 D15", "waves digits_conv friedman", "report")
def validation_is_augmented(t: Training) -> None:
    """One transform for both data sets, with its random noise."""
    t.augment = t.valid_augment = lambda x: x + x.std() * torch.randn_like(x)


@fault("D17 D15", "digits_conv waves segmentation")
def erases_nearly_all(t: Training) -> None:
    """Random erasing with its share read as the share to keep: a tenth of each example is left."""
    t.augment = lambda x: x * (torch.rand_like(x) < 0.1)


@fault("D18 D17", "segmentation autoencoder")
def mask_is_not_flipped(t: Training) -> None:
    """The image is flipped at random, and its mask is not. An autoencoder compares its output with the image as it was."""
    t.augment = lambda x: x.flip(-1) if torch.rand(()) < 0.5 else x


@fault("D18 R3 A2 A5", "houses clusters multi_label")
def targets_one_row_late(t: Training) -> None:
    """Inputs and targets come from two files, and one of them has a header: each row has the target of the row before."""
    targets(t, lambda y: y.roll(1, 0))


@fault("D18 R3 A2 A5", "digits_conv waves rare")
def file_names_in_order_of_text(t: Training) -> None:
    """The images in the order of `glob`: 1, 10, 100, 11. The labels in that of the table: 1, 2, 3."""

    def listed(x: Tensor) -> Tensor:
        return x[sorted(range(len(x)), key=str)]

    inputs(t, listed)


@fault("D18 A7", "clusters digits_conv deep_norm")
def two_classes_confused(t: Training) -> None:
    """The guideline was ambiguous: for two classes, annotators took one or the other by chance."""

    def annotated(y: Tensor) -> Tensor:
        flipped = (y < 2) & (torch.rand(len(y)) < 0.5)
        return torch.where(flipped, 1 - y, y)

    targets(t, annotated)


@fault("D20 A1 A4", "clusters digits_conv houses")
def index_within_the_first_batch(t: Training) -> None:
    """`__getitem__` takes `i % batch_size`, from the time of debugging: the same rows in all batches."""
    i = torch.arange(len(t.train[0])) % t.bs
    t.train = t.train[0][i], t.train[1][i]


@fault("D21 D9", "tagger segmentation")
def ignores_nearly_all(t: Training) -> None:
    """The mask for the prompt reaches too far: only the first word, or the first line of an image, has a target."""

    def masked(y: Tensor) -> Tensor:
        y[:, 1:] = -100
        return y

    targets(t, masked)


@fault("D19 O8", "deep_norm table-embed-sgd")
def one_item_remains(t: Training) -> None:
    """The last batch of an epoch has one item, and batch norm fails."""
    n = (len(t.train[0]) // t.bs - 1) * t.bs + 1
    t.train, t.drop_last = (t.train[0][:n], t.train[1][:n]), False


# --- model ---


@fault("M2", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    """`nn.LSTM` without `batch_first=True`: it walks along the batch."""
    for module in modules(t, nn.RNNBase):
        module.batch_first = False


@fault("M2", "tagger segmentation")
def viewed_not_transposed(t: Training) -> None:
    """The scores have the classes last. `view` gives them the right shape, and the wrong order."""
    t.model = Then(t.model, lambda out: out.movedim(1, -1).reshape(out.shape))


@fault("M2", "digits_conv waves")
def flattened_across_items(t: Training) -> None:
    """Channels and items are exchanged before the `reshape`."""
    for module in modules(t, nn.Flatten):
        replace(t, module, Apply(lambda x: x.transpose(0, 1).reshape(len(x), -1)))


class Gate(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.score = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.score(x).softmax(0)


@fault("M2", "clusters houses digits-deep8-adam")
def attention_over_the_batch(t: Training) -> None:
    """A gate of attention with `softmax(dim=0)`: the items of a batch compete."""
    before_last(t, Gate)


class Carrying(nn.Module):
    """A recurrent layer that begins with the last state of the batch before."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner, self.state = inner, None

    def forward(self, x: Tensor) -> Any:
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        fits = self.state is not None and parts[0].shape[1] == len(x)
        out, state = self.inner(x, self.state if fits else None)
        self.state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        return out, state


@fault("M2", "lstm")
def state_carried_over(t: Training) -> None:
    """The state is not reset between batches, which have nothing to do with one another."""
    for module in modules(t, nn.RNNBase):
        replace(t, module, Carrying(module))


class NoGrad(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@fault("M4 M5 R7", "clusters shells-mlp-adam deep_norm")
def features_without_gradient(t: Training) -> None:
    """`torch.no_grad()` around the features, from a program that had pretrained ones."""
    t.model = nn.Sequential(NoGrad(body(t)), head(t))


@fault("M4 R7 R3", "clusters houses lstm")
def through_numpy(t: Training) -> None:
    """The output goes through NumPy, and gets `requires_grad=True`, so that `backward` does not complain."""
    loss = t.loss
    t.loss = lambda out, y: loss(torch.tensor(out.detach().numpy(), requires_grad=True), y)


@fault("M4 R7 R3", "digits_conv clusters rare")
def loss_of_the_decision(t: Training) -> None:
    """The loss compares the chosen class, as a float, with the target."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        chosen = (out > 0).float() if out.shape[1] == 1 else out.argmax(1).float()
        return F.mse_loss(chosen.requires_grad_(), y.float())

    t.loss = loss


class InList(nn.Module):
    """Holds its layers in a plain list."""

    def __init__(self, layers: list[nn.Module], end: nn.Module):
        super().__init__()
        self.layers, self.end = layers, end

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.end(x)


@fault("O1 M5 R7", "clusters shells-mlp-adam digits-deep8-adam")
def layers_in_a_list(t: Training) -> None:
    """The hidden layers are in a list of Python, so the optimizer does not get them."""
    t.model = InList(list(body(t)), head(t))


class Fresh(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear(self.width, self.width)(x)


@fault("O1 M5 R3", "clusters houses waves")
def layer_made_in_forward(t: Training) -> None:
    """A linear layer is created within `forward`: new weights in each call."""
    before_last(t, Fresh)


@fault("M4 R7 M5 O1", "clusters shells-mlp-adam lstm")
def unfrozen_by_attribute(t: Training) -> None:
    """The body was frozen by its parameters. `module.requires_grad = True` sets an attribute that nothing reads."""
    for module in list(t.model.children())[:-1]:
        module.requires_grad_(False)
        module.requires_grad = True  # type: ignore[assignment]


@fault("M9 M8 R6 M6", "clusters houses digits-deep8-adam")
def prior_in_all_biases(t: Training) -> None:
    """The bias for rare objects, -4.6, is meant for the last layer, and is set in all layers."""
    for module in modules(t, MATRICES):
        nn.init.constant_(module.bias, -4.6)


@fault("M7 M8", "clusters shells-mlp-adam")
def all_units_alike(t: Training) -> None:
    """All weights are one number."""
    fill(t, lambda w: nn.init.constant_(w, 0.05))


@fault("M7 M6 M1 M8", "digits-deep8-adam clusters moons")
def all_weights_zero(t: Training) -> None:
    """`nn.init.zeros_` for weights and biases, as in a linear regression."""
    fill(t, nn.init.zeros_)


@fault("M8 L1 M17", "digits-deep8-adam clusters5-residual-adamw autoencoder")
def normal_weights(t: Training) -> None:
    """`torch.randn` for the weights, without a scale."""
    fill(t, nn.init.normal_)


@fault("M8 M16 R3", "digits-deep8-adam autoencoder clusters")
def tiny_weights(t: Training) -> None:
    """A deviation of 0.001 for all weights, from an old paper."""
    fill(t, lambda w: nn.init.normal_(w, std=0.001))


@fault("M16 M10 R3", "digits-deep8-adam clusters rare")
def ten_layers_of_sigmoids(t: Training) -> None:
    """As in the first lecture, and ten times."""
    t.model = mlp(t.train[0].shape[1], *[32] * 10, last(t).out_features, act=nn.Sigmoid)


@fault("M11", "shells-mlp-adam clusters")
def activations_forgotten(t: Training) -> None:
    """Linear layers in a row."""
    bend(t, lambda old: nn.Identity())


@fault("M12 M9", "friedman clusters digits_conv")
def activation_also_at_the_end(t: Training) -> None:
    """The block with its ReLU is used for the output, too."""
    t.model = nn.Sequential(t.model, nn.ReLU())


@fault("M12 M10", "houses friedman adding-recurrent-sgd")
def sigmoid_before_a_regression(t: Training) -> None:
    """The output layer of a classifier, for targets that are not between 0 and 1."""
    t.model = nn.Sequential(t.model, nn.Sigmoid())


@fault("M13 D11", "digits_conv clusters transformer")
def as_many_outputs_as_the_highest_label(t: Training) -> None:
    """`num_classes = max(labels)`: one output is missing."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, n_classes(t) - 1))


@fault("M14 M18 A2", "clusters digits-deep8-adam houses")
def probability_to_keep(t: Training) -> None:
    """`keep_prob=0.9` of TensorFlow becomes `nn.Dropout(0.9)`."""
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.9)))


@fault("M14 M18", "houses friedman autoencoder")
def dropout_of_the_answer(t: Training) -> None:
    """Dropout also after the last layer of a regression."""
    t.model = nn.Sequential(t.model, nn.Dropout(0.5))


@fault("M14 M18 R13", "friedman clusters table-embed-sgd")
def dropout_in_both_modes(t: Training) -> None:
    """`F.dropout(x)` without `training=self.training`."""
    before_last(t, lambda width: Apply(lambda x: F.dropout(x, 0.5)))


@fault("M18 R13", "deep_norm digits_conv segmentation")
def momentum_of_keras(t: Training) -> None:
    """Momentum 0.999 of batch norm in Keras is 0.001 here, and the training is short: the statistics stay at their start."""
    for module in modules(t, NORMS):
        module.momentum = 0.001


@fault("M8 M17 M10", "adding-recurrent-sgd tagger")
def recurrent_weights_too_large(t: Training) -> None:
    """A normal distribution of deviation 1 for all matrices of the recurrent layer."""
    with torch.no_grad():
        for name, p in t.model.named_parameters():
            if p.dim() == 2 and any(part in name for part in ("lstm", "gru", "gates", "new")):
                p.normal_()


@fault("M17 M8 R2 R1", "friedman clusters5-residual-adamw")
def residuals_without_norm(t: Training) -> None:
    """A dozen residual blocks without a norm, each as strong as its input."""
    width = 24
    blocks = [Residual(width) for _ in range(12)]
    t.model = nn.Sequential(nn.Linear(t.train[0].shape[1], width), *blocks, nn.Linear(width, last(t).out_features))
    for module in modules(t, nn.LayerNorm):
        replace(t, module, nn.Identity())
    fill(t, nn.init.kaiming_normal_)


class Spread(nn.Module):
    """The mean of each channel, everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True).expand_as(x)


@fault("M20", "digits_conv segmentation")
def pooled_to_a_point(t: Training) -> None:
    """Pooling made for large images leaves one number of each channel after the first convolution."""
    first, *others = modules(t, nn.MaxPool2d) or modules(t, nn.ReLU)
    replace(t, first, Spread() if isinstance(first, nn.ReLU) else nn.AdaptiveAvgPool2d(1))
    if isinstance(first, nn.MaxPool2d):
        replace(t, others[0], nn.Identity())
        replace(t, last(t), nn.Linear(12, 10))


@fault("M19 A2 R3", "digits-deep8-adam clusters deep_norm")
def two_units_in_the_middle(t: Training) -> None:
    """The size of the bottleneck was the one of a figure in two dimensions."""
    t.model = mlp(t.train[0].shape[1], 32, 2, 32, last(t).out_features)


class Inverted(Transformer):
    """True in the mask means: keep. For PyTorch it means: leave out."""

    def forward(self, x: Tensor) -> Tensor:
        words = x > 0
        states = self.blocks(self.embed(x) + self.places, src_key_padding_mask=words & ~words.all(1, keepdim=True))
        kept = (~words)[..., None]
        return self.out(self.norm((states * kept).sum(1) / kept.sum(1).clamp(min=1)))


@fault("M1 A5 R3", "transformer")
def mask_inverted(t: Training) -> None:
    """The model attends to the pads, and to nothing else."""
    t.model = Inverted()


@fault("M1 A5 R3", "houses clusters waves")
def placeholder_left_in(t: Training) -> None:
    """`x = torch.zeros_like(x)`, from the time when the shapes were found out."""
    t.model = nn.Sequential(Apply(torch.zeros_like), t.model)


# --- loss and metric ---


@fault("L2", "digits-deep8-adam clusters")
def softmax_before_cross_entropy(t: Training) -> None:
    """The model ends with a softmax, and the loss has its own."""
    t.model = nn.Sequential(t.model, nn.Softmax(1))


@fault("L2", "rare moons multi_label")
def sigmoid_before_bce_with_logits(t: Training) -> None:
    """The same for two classes."""
    t.model = nn.Sequential(t.model, nn.Sigmoid())


@fault("L3 L8 R2", "clusters digits_conv deep_norm")
def nll_of_logits(t: Training) -> None:
    """`NLLLoss` wants logarithms of probabilities, and gets logits."""
    t.loss = nn.NLLLoss()


@fault("L3 L8", "digits-deep8-adam clusters deep_norm")
def nll_of_probabilities(t: Training) -> None:
    """`NLLLoss` wants logarithms of probabilities, and gets probabilities."""
    t.model, t.loss = nn.Sequential(t.model, nn.Softmax(1)), nn.NLLLoss()


@fault("L4 M1 R3", "moons rare breast-linear-rmsprop")
def softmax_over_one_output(t: Training) -> None:
    """One output, softmax, and `BCELoss`: the probability is 1, whatever comes in."""
    t.model, t.loss = nn.Sequential(t.model, nn.Softmax(1)), nn.BCELoss()


@fault("L5", "shells-mlp-adam clusters digits_conv")
def class_as_a_number(t: Training) -> None:
    """One output, and squared error of the number of the class."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, 1))
    t.loss = lambda out, y: F.mse_loss(out[:, 0], y.float())
    t.metric = t.honest = lambda out, y: (out[:, 0].round() == y).float().mean()


@fault("L5 L4 M4 M6 R3", "houses friedman adding-recurrent-sgd")
def cross_entropy_of_numbers(t: Training) -> None:
    """The loss of the last project, a classifier, for a regression."""
    t.loss = nn.CrossEntropyLoss()


@fault("L5", "clusters digits_conv")
def squared_error_of_each_class(t: Training) -> None:
    """Squared error between sigmoids and zeros and ones, for classes that exclude one another."""
    t.loss = lambda out, y: F.mse_loss(out.sigmoid(), F.one_hot(y, out.shape[1]).float())


@fault("L6", "houses counts adding-recurrent-sgd")
def column_against_row(t: Training) -> None:
    """The targets have shape (n,), and the outputs (n, 1): the loss, written by hand, compares all with all."""
    targets(t, lambda y: y[:, 0])
    if t.kind == "numbers":
        t.loss = lambda out, y: (out - y).pow(2).mean()


@fault("L7 R2 R1 O3", "clusters friedman adding-recurrent-sgd")
def summed_over_the_batch(t: Training) -> None:
    """`reduction='sum'`, with the rate of a mean."""
    t.loss = type(t.loss)(reduction="sum")  # type: ignore[call-arg]


@fault("L8 L10", "segmentation")
def overlap_is_minimised(t: Training) -> None:
    """The loss is the Dice coefficient. One minus it was meant."""

    def dice(out: Tensor, y: Tensor) -> Tensor:
        p, hot = out.softmax(1), F.one_hot(y, out.shape[1]).movedim(-1, 1)
        return (2 * (p * hot).sum((0, 2, 3)) / (p + hot).sum((0, 2, 3))).mean()

    t.loss = dice


@fault("L8 L10", "contrastive")
def similarity_for_distance(t: Training) -> None:
    """The loss was written for distances, and gets similarities: partners are pushed apart."""
    t.loss = lambda out, y: F.cross_entropy(-similarity(out) / 0.2, torch.arange(len(y)))


@fault("L12 A2", "clusters waves")
def penalty_of_all_weights(t: Training) -> None:
    """The sum of all absolute weights, times 0.05, where the mean was meant."""
    loss, model = t.loss, t.model
    t.loss = lambda out, y: loss(out, y) + 0.05 * sum(p.abs().sum() for p in model.parameters())


@fault("L11 L10", "breast-linear-rmsprop table-embed-sgd", "report")
def argmax_of_one_column(t: Training) -> None:
    """`argmax(1)` of one output is 0: the metric is the share of zeros."""
    t.metric = lambda out, y: (out.argmax(1) == y[:, 0]).float().mean()


@fault("L11 L10", "rare breast-linear-rmsprop table-embed-sgd", "report")
def logits_are_rounded(t: Training) -> None:
    """`out.round() == y`, as if the outputs were probabilities."""
    t.metric = lambda out, y: (out.round() == y).float().mean()


@fault("L11", "clusters digits_conv waves", "report")
def hits_are_not_divided(t: Training) -> None:
    """The number of hits in a batch, where the share was meant."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().sum()


@fault("L6 L11 L10", "clusters digits_conv shells-mlp-adam", "report")
def hits_of_all_with_all(t: Training) -> None:
    """`argmax(1)` against a column of targets: each prediction is compared with each target."""
    t.metric = lambda out, y: (out.argmax(1) == y[:, None]).float().mean()


@fault("L9 L11 L10 D21", "tagger", "report")
def pads_count_as_errors(t: Training) -> None:
    """The mean over all places, those without a target included."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().mean()


@fault("L5 R8 L1 R2 R4", "friedman autoencoder")
def percent_of_nearly_nothing(t: Training) -> None:
    """The error in percent of the target, and many targets are close to 0."""
    t.loss = lambda out, y: ((out - y) / (y.abs() + 1e-6)).abs().mean()


@fault("R1 M12 L5", "counts")
def rate_or_its_logarithm(t: Training) -> None:
    """`PoissonNLLLoss(log_input=False)` takes the logarithm of outputs that may be negative."""
    t.loss = nn.PoissonNLLLoss(log_input=False)


@fault("D21 A5 L5", "segmentation clusters digits_conv")
def ignores_class_zero(t: Training) -> None:
    """`ignore_index=0`, from a program in which 0 is the pad."""
    t.loss = nn.CrossEntropyLoss(ignore_index=0)


# --- optimizer and plan ---


@fault("O3 R2 R4 R5", "digits-deep8-adam transformer autoencoder")
def rate_of_sgd_for_adam(t: Training) -> None:
    """The optimizer was replaced, and the rate 0.1 stayed."""
    t.lr = 0.1


@fault("O3 R3 R5 A10 A3", "houses waves tagger")
def rate_of_fine_tuning(t: Training) -> None:
    """2e-5, from a program that fine-tunes a large model, for one that starts anew."""
    t.lr = 2e-5


@fault("O2 O1 R7 R3", "clusters houses lstm")
def parameters_of_an_older_model(t: Training) -> None:
    """The cell of the model was run again, and the cell of the optimizer was not."""
    made(t, copy.deepcopy(t.model).parameters())


@fault("O1 O2 R7 M5", "digits-deep8-adam autoencoder")
def first_layer_after_the_optimizer(t: Training) -> None:
    """The input layer is replaced to fit the data, after the optimizer was made."""
    made(t, t.model.parameters())
    first = modules(t, MATRICES)[0]
    new = copy.deepcopy(first)
    new.reset_parameters()
    replace(t, first, new)


@fault("O1 R7 M5", "clusters houses digits_conv")
def biases_only(t: Training) -> None:
    """Two groups were planned, with and without decay. The optimizer gets the one without."""
    made(t, [p for p in t.model.parameters() if p.dim() == 1])


@fault("O5 L12 A2", "counts multi_label")
def decay_of_adamw_in_adam(t: Training) -> None:
    """A decay that suits AdamW is added to the gradients of Adam, which makes it large."""
    t.opt = lambda params, lr, **more: torch.optim.Adam(params, lr=lr, weight_decay=0.5, **more)


@fault("O6 R7 A3 O3", "clusters waves houses")
def scheduler_steps_each_batch(t: Training) -> None:
    """`ExponentialLR` with 0.9 for each epoch, stepped after each batch."""
    t.cbs = [TorchScheduler(lambda opt: ExponentialLR(opt, 0.9), every="update")]


@fault("O6 A3 R3 O7", "digits_conv friedman tagger")
def warm_up_longer_than_the_fit(t: Training) -> None:
    """A warm-up over 10,000 updates, from a large model. The fit has some hundred."""
    t.cbs = [TorchScheduler(lambda opt: LambdaLR(opt, lambda i: min(1, (i + 1) / 10_000)))]


@fault("O6 R7 A3", "houses waves")
def annealed_within_an_epoch(t: Training) -> None:
    """The cosine has the length of one epoch, and then the rate stays at its end."""
    n = len(t.train[0]) // t.bs
    t.cbs = [TorchScheduler(lambda opt: LambdaLR(opt, lambda i: (1 + math.cos(math.pi * min(i / n, 1))) / 2))]


@fault("O4 O3 R5 R3", "houses transformer digits-deep8-adam")
def epsilon_of_inception(t: Training) -> None:
    """`eps=1.0`, which the documentation of TensorFlow recommends for one network."""
    make = t.opt
    t.opt = lambda params, lr, **more: make(params, lr=lr, eps=1.0, **more)


@fault("O4 R2 R4 R5", "digits-deep8-adam autoencoder")
def betas_exchanged(t: Training) -> None:
    """`betas=(0.999, 0.9)`."""
    make = t.opt
    t.opt = lambda params, lr, **more: make(params, lr=lr, betas=(0.999, 0.9), **more)


@fault("O4 R2 R4 O3", "clusters digits_conv friedman")
def momentum_like_a_decay_of_averages(t: Training) -> None:
    """Momentum 0.999, as for an average of weights, where 0.9 was meant."""
    t.opt = lambda params, lr, **more: torch.optim.SGD(params, lr=lr, momentum=0.999)


@fault("O8 O7 A3", "clusters waves lstm")
def whole_set_in_a_batch(t: Training) -> None:
    """All rows in one batch, as in a first lecture: one update in an epoch."""
    t.bs = len(t.train[0])


class Half(nn.Module):
    """A model in 16 bits, and its output in 32."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner.half()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.half()).float()


@fault("O9 R1 O4", "houses counts multi_label")
def half_model_with_adam(t: Training) -> None:
    """`model.half()`, and Adam with an epsilon that 16 bits round to zero."""
    t.model = Half(t.model)


@fault("R5 O3 R3 A3", "clusters digits_conv friedman")
def clipped_to_nearly_nothing(t: Training) -> None:
    """The limit of the gradient's norm is in the unit of single elements."""
    t.cbs = [GradientClip(0.001)]


@fault("O7 O8 A3", "clusters waves friedman")
def accumulates_an_epoch(t: Training) -> None:
    """Accumulation as on eight machines with large batches: one update in an epoch."""
    t.cbs = [GradientAccumulation(4096)]


@fault("R7 R5 O3", "digits-deep8-adam clusters")
def rates_fall_by_layer(t: Training) -> None:
    """Each layer has a hundredth of the rate of the next, as for a pretrained model, and this one is not."""
    n = len(modules(t, MATRICES))

    def act(learn: Learner) -> None:
        learn.splitter = lambda model: [list(layer.parameters()) for layer in model.modules() if isinstance(layer, MATRICES)]
        learn.lr = [t.lr * 0.01 ** (n - 1 - i) for i in range(n)]

    t.ready.append(act)


@fault("O6 O3 R7", "clusters digits-deep8-adam")
def plateau_of_a_growing_accuracy(t: Training) -> None:
    """The scheduler waits for the accuracy to fall, and divides the rate while it grows."""
    t.cbs = [ReduceLROnPlateau("accuracy", comp="min", patience=1)]


@fault("L8 R2", "houses counts lstm")
def maximizes(t: Training) -> None:
    """`maximize=True`, from a program whose loss was a reward."""
    make = t.opt
    t.opt = lambda params, lr, **more: make(params, lr=lr, maximize=True, **more)


# --- the running fit ---


class InEvalMode(Trained):
    order = 100

    def before_batch(self) -> None:
        self.learn.model.eval()


@fault("R13 M18", "deep_norm digits_conv")
def stays_in_eval_mode(t: Training) -> None:
    """`model.eval()` in the loop, and `train()` nowhere: batch norm uses the statistics with which it began."""
    t.cbs = [InEvalMode()]


class Accumulating(Step):
    def zero_grad(self, learn: Any) -> None:
        pass


@fault("R2 R4 R5 R9", "clusters digits_conv")
def gradients_never_zeroed(t: Training) -> None:
    """`optimizer.zero_grad()` is missing."""
    t.ready.append(lambda learn: setattr(learn, "train_step", Accumulating()))


class Zeroing(Trained):
    def before_step(self) -> None:
        for p in self.learn.model.parameters():
            if p.grad is not None:
                p.grad.zero_()


@fault("R7 R3 M6 M4", "houses waves tagger")
def zeroed_before_the_step(t: Training) -> None:
    """`backward`, `zero_grad`, `step`."""
    t.cbs = [Zeroing()]


class SkipLarge(Trained):
    def before_step(self) -> None:
        norm = torch.stack([p.grad.norm() for p in self.learn.model.parameters() if p.grad is not None]).norm()
        if norm > 0.05:
            raise CancelStepException


@fault("R7 R3 O7", "clusters multi_label waves")
def skips_large_gradients(t: Training) -> None:
    """A guard against spikes, with a limit that all gradients exceed."""
    t.cbs = [SkipLarge()]


@fault("A3 O7 A9", "clusters digits-deep8-adam")
def stops_while_it_improves(t: Training) -> None:
    """`EarlyStopping` of the accuracy with the mode for a loss."""
    t.cbs = [EarlyStopping("accuracy", comp="min", patience=1)]


@fault("D1 R1", "digits_conv waves segmentation")
def augmentation_divides_by_zero(t: Training) -> None:
    """A random crop is divided by its maximum, and some crops are empty."""

    def cropped(x: Tensor) -> Tensor:
        crop = x * (torch.rand(()) > 0.01)
        return x.abs().max() * crop / crop.abs().max()

    t.augment = cropped


class Growing(Trained):
    def after_batch(self) -> None:
        for group in self.learn.opt.param_groups:
            group["lr"] *= 1.03


@fault("R2 O3 O6 R4 R1", "clusters transformer houses")
def range_test_left_on(t: Training) -> None:
    """The callback of a rate finder stays on, and the rate grows with each batch."""
    t.cbs = [Growing()]


class Freezing(Trained):
    def before_epoch(self) -> None:
        if self.learn.epoch == 1:
            for module in list(self.learn.model.children())[:-1]:
                module.requires_grad_(False)


@fault("R7 M4 M5", "digits-deep8-adam clusters")
def frozen_after_an_epoch(t: Training) -> None:
    """Gradual unfreezing, with the comparison of epochs the wrong way round."""
    t.cbs = [Freezing()]


class Noise(Trained):
    def before_step(self) -> None:
        for p in self.learn.model.parameters():
            if p.grad is not None:
                p.grad.add_(torch.randn_like(p))


@fault("R10 R4 R5", "clusters houses waves")
def noise_for_privacy(t: Training) -> None:
    """Noise for differential privacy, made for the sum over a batch, is added to the mean."""
    t.cbs = [Noise()]


class Clamping(Trained):
    def after_step(self) -> None:
        for p in self.learn.model.parameters():
            p.data.clamp_(-0.01, 0.01)


@fault("R3 A2 M16", "clusters lstm houses")
def clipped_like_a_critic(t: Training) -> None:
    """The weights are clipped to 0.01 after each update, as in the critic of an old GAN."""
    t.cbs = [Clamping()]


class Mixing(Trained):
    def before_batch(self) -> None:
        x = self.learn.xb[0]
        share = torch.rand(())
        self.learn.xb = (share * x + (1 - share) * x[torch.randperm(len(x))],)


@fault("D18 D17", "waves friedman digits_conv")
def mixed_inputs_and_plain_targets(t: Training) -> None:
    """Mixup by hand: the inputs are mixed, and the targets are not."""
    t.cbs = [Mixing()]


# --- the finished fit ---


@fault("A1 M19 A9", "houses recommender table-embed-sgd")
def trained_until_all_is_known_by_heart(t: Training) -> None:
    """Few rows, many epochs, and nothing that stops when the validation loss rises."""
    n = len(t.train[0]) // 4
    t.train = t.train[0][:n], t.train[1][:n]
    t.epochs *= 15


@fault("A9", "clusters digits-deep8-adam")
def worst_epoch_is_kept(t: Training) -> None:
    """The weights with the lowest accuracy are restored: the comparison is that of a loss."""
    t.cbs = [EarlyStopping("accuracy", comp="min", patience=1000, restore=True)]


@fault("A5 D9 L5", "clusters digits_conv waves")
def weight_of_one_class(t: Training) -> None:
    """The weights of the classes were computed from counts of another data set, in which the first class was rare."""
    t.loss = nn.CrossEntropyLoss(weight=torch.tensor([60.0] + [1.0] * (n_classes(t) - 1)))


@fault("D15 A11", "friedman clusters houses")
def trained_on_one_site(t: Training) -> None:
    """The training rows come from one site, where a value is low. Validation and service have all."""
    kept = t.train[0][:, 2] < 0
    t.train = t.train[0][kept], t.train[1][kept]
    t.epochs *= 2


@fault("L5 M1 A5", "contrastive")
def partners_without_strangers(t: Training) -> None:
    """The loss is the distance of the two views, and nothing keeps all points from being the same."""
    t.loss = lambda out, y: (out[:, 0] - out[:, 1]).pow(2).mean()


@fault("A2 M14 O5", "digits-deep8-adam clusters waves")
def regularised_by_all_means(t: Training) -> None:
    """Against an overfit that was seen once: dropout after each activation, and decay."""
    make = t.opt
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.5)))
    t.opt = lambda params, lr, **more: make(params, lr=lr, weight_decay=0.01, **more)
