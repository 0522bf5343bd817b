"""A ninth set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The brief was to write faults that are as frequent in practice as one can judge, in the shares in which beginners and practitioners make them:
those of forum threads and of the published taxonomies of faults in deep learning. So the common kinds (inputs that are not scaled, a wrong
loss or activation, a hopeless rate, too few epochs, gradients that are not zeroed, frozen layers, mistakes in the evaluation) come several
times, in different code. About one fault in seven ends with an error message; its code is X1, as the message is the finding. Nothing was
chosen to be new, hard or easy.

The codes are those of the table, D1 to A12, and X1: the first one is the closest, and the others are those that a fair judge would accept.
"No code fits" marks a fault for which the table has no code: those given are the nearest. A preparation of the inputs that the program
applies wherever it reads data also reaches the inputs of the test part, as in `everywhere`. Its targets are never touched.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mutators
import torch
from fault_tasks import Training
from fifth_mutators import Trained, cut, everywhere, inputs, last, made, modules, n_classes, replace, targets, whole
from fourth_mutators import Apply, Then
from lr_tasks import mlp
from mutators import Change, Mutator
from seventh_mutators import drawn, end, few, judged, numbered, one_hot
from sixth_mutators import before_last, bend, fill, rescore
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR

from cbnb import (
    Callback,
    CancelStepException,
    CancelTrainException,
    EarlyStopping,
    GradientClip,
    Learner,
    ReduceLROnPlateau,
    Step,
    TorchScheduler,
)

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def on(t: Training, **events: Callable[[Any], Any]) -> None:
    """A line in the loop of training."""
    t.cbs.append(Trained(**events))


def stepped(t: Training, step: type[Step]) -> None:
    """The program has its own loop."""

    def assign(learn: Learner) -> None:
        learn.train_step = step()

    t.ready.append(assign)


def scheduled(t: Training, make: Callable[..., Any], every: str = "update") -> None:
    t.cbs.append(TorchScheduler(make, every=every))


def judge(t: Training, metric: Callable[[Tensor, Tensor], Tensor] | None) -> None:
    """The output has changed its form, so the metric is written for that form."""
    t.metric = t.honest = metric


def first_linear(t: Training) -> Any:
    return modules(t, nn.Linear)[0]


def weights(t: Training) -> list[Tensor]:
    return [p for p in t.model.parameters() if p.dim() > 1]


def columns(t: Training, at: Sequence[int] | slice, change: Callable[[Tensor], Tensor]) -> None:
    """Change some columns, wherever the program reads data."""

    def changed(x: Tensor) -> Tensor:
        x[:, at] = change(x[:, at])
        return x

    everywhere(t, changed)


def served(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """What the program does, or leaves out, in validation and in service only."""
    if t.valid:
        t.valid = change(t.valid[0].clone()), t.valid[1]
    t.test = change(t.test[0].clone()), t.test[1]


def normal(std: float) -> Callable[[Tensor], Any]:
    return partial(nn.init.normal_, std=std)


# --- data: the scale of the inputs ---


@fault("D2 M8 L1", "autoencoder waves")
def to_float_without_dividing(t: Training) -> None:
    """`torch.from_numpy(images).float()`, and the division by 255 is left out; the sound has whole numbers of eight bits too."""
    everywhere(t, lambda x: (x * 255).round())


@fault("D2 D4 L1", "shells-mlp-adam clusters5-residual-adamw clusters")
def no_standardisation(t: Training) -> None:
    """The columns of the file as they are: hundreds, with means far from zero."""
    everywhere(t, lambda x: 400 + 150 * x)


@fault("D2", "moons shells-mlp-adam multi_label")
def kelvin(t: Training) -> None:
    """Temperatures around 300 with a deviation of one or so, not centred."""
    everywhere(t, lambda x: 300 + x)


@fault("D4 D2", "houses friedman breast-linear-rmsprop")
def dollars_beside_years(t: Training) -> None:
    """Income in dollars beside numbers around one."""
    columns(t, [0], lambda x: 40000 + 15000 * x)


@fault("D4 D2", "shells-mlp-adam rare multi_label")
def unix_time(t: Training) -> None:
    """Two columns are seconds since 1970, and nobody has scaled them."""
    columns(t, [1, 2], lambda x: 1.6e9 + 2e6 * x)


@fault("D4 D2 D14", "clusters breast-linear-rmsprop rare")
def customer_number(t: Training) -> None:
    """The number of the customer is left in the table, as its last column: `df.drop` was forgotten."""
    old = first_linear(t)
    replace(t, old, nn.Linear(old.in_features + 1, old.out_features))
    everywhere(t, lambda x: torch.cat([x, torch.randint(100_000, 999_999, (len(x), 1)).float()], 1))


@fault("D4 D2 D1", "houses breast-linear-rmsprop clusters5-residual-adamw")
def missing_is_minus_999(t: Training) -> None:
    """`fillna(-999)`: four in a hundred cells."""
    everywhere(t, lambda x: torch.where(torch.rand_like(x) < 0.04, torch.tensor(-999.0), x))


@fault("D1 R1", "contrastive rare multi_label")
def empty_cells(t: Training) -> None:
    """The table has empty cells, one in two hundred, and `read_csv` makes nan of them."""
    everywhere(t, lambda x: torch.where(torch.rand_like(x) < 0.005, torch.tensor(float("nan")), x))


@fault("D1 R1", "friedman counts shells-mlp-adam")
def logarithm_of_a_skewed_column(t: Training) -> None:
    """`np.log` of columns, some of whose values are zero or less."""
    columns(t, [0, 1], torch.log)


@fault("D3 D2 M1 A5", "digits_conv deep_norm digits-deep8-adam")
def floor_division(t: Training) -> None:
    """`images // 255`: nearly all pixels become zero."""
    everywhere(t, lambda x: (x * 250).floor() // 255)


@fault("D5 D3", "moons houses autoencoder")
def cast_to_int(t: Training) -> None:
    """`astype(int)`, to save memory, after the columns were standardised; later `.float()` for the layer."""
    everywhere(t, lambda x: x.int().float())


@fault("D15 D2 A1", "friedman clusters5-residual-adamw clusters")
def scaler_for_training_only(t: Training) -> None:
    """`scaler.fit_transform(x_train)`; the other parts go into the model as the file has them."""
    served(t, lambda x: 4 + 3 * x)


@fault("D15", "friedman shells-mlp-adam waves")
def only_part_of_the_range(t: Training) -> None:
    """The training rows come from one region: those with the lower values of the first column."""
    x, y = t.train
    order = x.flatten(1)[:, :4].sum(1).argsort()[: len(x) // 3]
    t.train = x[order].clone(), y[order].clone()


# --- data: targets ---


@fault("D7 L1", "houses adding-recurrent-sgd recommender")
def price_in_dollars(t: Training) -> None:
    """The target is in dollars, around 200 000, and goes into the squared error as it is."""
    targets(t, lambda y: 100_000 * y)
    rescore(t, lambda out: out / 100_000)


@fault("D7 L1", "autoencoder recommender friedman")
def target_in_percent_of_bytes(t: Training) -> None:
    """Inputs are scaled, targets from 0 to 255 are not."""
    targets(t, lambda y: 255 * y)
    rescore(t, lambda out: out / 255)


@fault("D7 L1", "houses adding-recurrent-sgd friedman")
def year_of_construction(t: Training) -> None:
    """The target is a year."""
    targets(t, lambda y: 1980 + 10 * y)
    rescore(t, lambda out: (out - 1980) / 10)


@fault("D8 A5", "multi_label breast-linear-rmsprop transformer")
def comparison_with_a_space(t: Training) -> None:
    """`(df.label == 'yes')` where the file has 'yes ' : all labels are zero."""
    targets(t, torch.zeros_like)


@fault("T3 D18 A2", "adding-recurrent-sgd rare recommender")
def only_inputs_shuffled(t: Training) -> None:
    """`np.random.shuffle(x)`, and not y."""
    inputs(t, lambda x: x[torch.randperm(len(x))])


@fault("T3 D18 A2", "digits_conv lstm friedman")
def one_header_line(t: Training) -> None:
    """The file of labels has a header that counts as a row: each label belongs to the item before it."""
    targets(t, lambda y: y.roll(1, 0))


@fault("T3 D18 A2", "segmentation next_symbol table-embed-sgd")
def names_sorted_as_text(t: Training) -> None:
    """`sorted(glob('*.png'))` gives 1, 10, 100, 11 ...; the labels are in the order of the numbers."""
    targets(t, lambda y: y[torch.tensor(sorted(range(len(y)), key=str))])


@fault("D15 D18 T3", "deep_norm waves tagger")
def encoder_fitted_twice(t: Training) -> None:
    """`LabelEncoder().fit_transform` of each part in order of appearance: training calls the classes by other numbers."""
    turned = torch.arange(n_classes(t)).roll(1)
    t.train = t.train[0], torch.where(t.train[1] < 0, t.train[1], turned[t.train[1].clamp(min=0)])


@fault("D18 A7", "deep_norm lstm clusters5-residual-adamw")
def careless_labels(t: Training) -> None:
    """Three in five labels are guesses of workers who were paid by the item."""
    targets(t, lambda y: torch.where(drawn(y, 0.6), torch.randint_like(y, n_classes(t)), y))


@fault("D9 A5 D15", "clusters5-residual-adamw lstm deep_norm")
def two_classes_nearly_absent(t: Training) -> None:
    """Of two of the classes there are four examples each."""
    x, y = t.train
    kept = (y > 1) | (torch.arange(len(y)) < 0)
    for label in (0, 1):
        kept[(y == label).nonzero()[:4, 0]] = True
    t.train = x[kept].clone(), y[kept].clone()


@fault("D21 O7 A3", "tagger")
def scribbles(t: Training) -> None:
    """Only one place in sixty has a label; all others are marked as to be ignored."""
    t.train = t.train[0], torch.where(torch.rand(t.train[1].shape) < 1 / 60, t.train[1], torch.tensor(-100))


# --- data: order and split ---


@fault("D10", "digits_conv shells-mlp-adam waves")
def folder_by_folder(t: Training) -> None:
    """The images are listed class by class, and the loader does not shuffle."""
    order = t.train[1].argsort(stable=True)
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D10", "friedman deep_norm houses")
def sorted_table_without_shuffle(t: Training) -> None:
    """A table that is sorted by the target, as a report has it, and `shuffle=False`, to be reproducible."""
    order = t.train[1].flatten().argsort(descending=True, stable=True)
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D15 D10 D9", "digits_conv deep_norm clusters")
def last_fifth_of_a_sorted_file(t: Training) -> None:
    """`x[:n], x[n:]` of a file that is sorted by class: the last classes are in the validation part alone."""
    x, y = whole(t)
    order = y.argsort(stable=True)
    cut(t, x[order], y[order])


@fault("D12 D20 A4", "shells-mlp-adam deep_norm waves", where="report")
def validated_on_training_rows(t: Training) -> None:
    """Both loaders are made from the same `Subset`; there are 120 rows, learnt by heart."""
    few(t, 120)
    t.valid, t.epochs = (t.train[0].clone(), t.train[1].clone()), 40


@fault("D12 D20", "clusters waves clusters5-residual-adamw", where="report")
def oversampled_before_the_split(t: Training) -> None:
    """Copies of the rows are made first, to have more of them, and then `train_test_split`: most validation rows have a twin."""
    x, y = whole(t)
    x, y = x[:150].repeat(6, *[1] * (x.dim() - 1)), y[:150].repeat(6)
    order = torch.randperm(len(x))
    cut(t, x[order], y[order])
    t.epochs = 12


@fault("D13 D12 D20", "waves breast-linear-rmsprop deep_norm", where="report")
def ten_visits_of_each_patient(t: Training) -> None:
    """Ten rows of each patient, alike but for noise, split at random."""
    x, y = whole(t)
    x, y = x[:90].repeat_interleave(10, 0), y[:90].repeat_interleave(10, 0)
    order = torch.randperm(len(x))
    cut(t, (x + 0.05 * torch.randn_like(x))[order], y[order])
    t.epochs = max(12, t.epochs)


@fault("D14 A4", "houses rare friedman clusters")
def column_filled_in_afterwards(t: Training) -> None:
    """A column is written when the outcome is known. In service it is empty."""

    def filled(x: Tensor, y: Tensor) -> Tensor:
        x = x.clone()
        x[:, 0] = y.flatten().float() + 0.05 * torch.randn(len(y))
        return x

    t.train = filled(*t.train), t.train[1]
    if t.valid:
        t.valid = filled(*t.valid), t.valid[1]
    t.test = torch.cat([torch.zeros(len(t.test[0]), 1), t.test[0][:, 1:]], 1), t.test[1]


@fault("D14 M3 A4", "next_symbol")
def window_contains_the_answer(t: Training) -> None:
    """The slice of the text is off by one: the last input is the target."""
    t.train = torch.cat([t.train[0][:, 1:], t.train[1][:, None]], 1), t.train[1]


@fault("D16 D15", "digits_conv deep_norm clusters", where="report")
def same_transform_for_both(t: Training) -> None:
    """One `transform`, with noise and erasing, for training and validation."""
    t.augment = t.valid_augment = lambda x: (x + 0.3 * torch.randn_like(x)) * (torch.rand_like(x) > 0.3)


@fault("D17", "digits_conv deep_norm digits-deep8-adam")
def strong_augmentation(t: Training) -> None:
    """Each option of the library, at full strength: noise, erasing, brightness, inversion."""

    def change(x: Tensor) -> Tensor:
        x = x * (0.2 + 3 * torch.rand(1)) + 1.0 * torch.randn_like(x)
        x = x * (torch.rand_like(x) > 0.6)
        return -x if torch.rand(1) < 0.5 else x

    t.augment = change


@fault("D17 D18 T3", "segmentation")
def mask_not_flipped(t: Training) -> None:
    """The image is flipped or turned at random, and its mask is not."""

    def change(x: Tensor) -> Tensor:
        return x.rot90(int(torch.randint(4, (1,))), (-2, -1))

    t.augment = change


@fault("D6 M2 T3", "clusters waves shells-mlp-adam")
def reshaped_instead_of_transposed(t: Training) -> None:
    """The array has the items in its last dimension; `reshape(n, -1)` gives the right shape, and mixes the items."""
    everywhere(t, lambda x: x.flatten(1).T.reshape(x.shape).clone())


# --- model ---


@fault("M1 T2", "waves moons breast-linear-rmsprop")
def random_input_left_from_a_test(t: Training) -> None:
    """`x = torch.randn(x.shape)` in the forward, from when the shapes were tried out."""
    t.model = nn.Sequential(Apply(torch.randn_like), t.model)


@fault("M2", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    """The recurrent layer takes the batch for the time."""
    for module in modules(t, (nn.LSTM, nn.GRU)):
        module.batch_first = False


@fault("M2 L3", "shells-mlp-adam")
def softmax_over_the_batch(t: Training) -> None:
    """`nn.Softmax(dim=0)`, then the logarithm and NLLLoss."""
    end(t, lambda out: out.softmax(0))
    t.loss = lambda out, y: F.nll_loss((out + 1e-9).log(), y)


@fault("M11 A2", "moons friedman")
def layers_without_activations(t: Training) -> None:
    """One linear layer after the other: PyTorch's have no activation of their own."""
    bend(t, lambda old: nn.Identity())


class Forgetful(nn.Module):
    """Calls the activation and drops what it returns."""

    def __init__(self, f: Callable[[Tensor], Tensor]):
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        self.f(x)
        return x


@fault("M11 A2", "multi_label counts waves")
def result_of_relu_dropped(t: Training) -> None:
    """`F.relu(x)` on a line of its own."""
    bend(t, lambda old: Forgetful(F.relu))


@fault("M12 M9", "friedman shells-mlp-adam digits_conv")
def relu_after_every_layer(t: Training) -> None:
    """The last one too."""
    t.model = Then(t.model, F.relu)


@fault("M12 D7", "recommender adding-recurrent-sgd")
def tanh_for_a_price(t: Training) -> None:
    """The output ends with tanh, and the target does not."""
    end(t, torch.tanh)


@fault("M12 D7", "houses adding-recurrent-sgd recommender")
def sigmoid_for_a_number(t: Training) -> None:
    """The head of a classifier, kept for a regression."""
    t.model = nn.Sequential(t.model, nn.Sigmoid())


@fault("M12 L5 L2", "multi_label")
def softmax_for_labels_that_hold_together(t: Training) -> None:
    """`softmax` and BCELoss, where several labels may be true."""
    end(t, lambda out: out.softmax(1))
    t.loss = nn.BCELoss()
    judge(t, lambda out, y: ((out > 0.5) == (y > 0.5)).float().mean())


@fault("M7 M6 R7", "digits-deep8-adam shells-mlp-adam segmentation")
def zeros(t: Training) -> None:
    """`nn.init.zeros_` for all weights."""
    fill(t, nn.init.zeros_)


@fault("M7 M8", "moons digits-deep8-adam friedman")
def constant_weights(t: Training) -> None:
    """All weights begin at 0.05."""
    fill(t, lambda w: nn.init.constant_(w, 0.05))


@fault("M8 L1 M17", "contrastive autoencoder counts")
def randn_weights(t: Training) -> None:
    """`torch.randn(n_in, n_out)`, as in a tutorial with numpy."""
    fill(t, normal(1.0))


@fault("M8 M16 R3", "moons digits-deep8-adam autoencoder")
def tiny_weights(t: Training) -> None:
    """`normal_(0, 1e-3)` for every layer."""
    fill(t, normal(1e-3))


@fault("M16 M10 R3", "digits-deep8-adam clusters moons")
def ten_layers_of_sigmoid(t: Training) -> None:
    """Deeper is better, and the activation is that of the lecture notes."""
    wide, out = first_linear(t).in_features, last(t).out_features
    t.model = mlp(wide, *[32] * 10, out, act=nn.Sigmoid)


@fault("M16 R3 M19", "clusters friedman multi_label")
def thirty_layers(t: Training) -> None:
    """Thirty linear layers with ReLU, neither normalised nor with shortcuts."""
    t.model = mlp(first_linear(t).in_features, *[24] * 30, last(t).out_features)


@fault("M14 A2", "clusters autoencoder shells-mlp-adam")
def keep_probability(t: Training) -> None:
    """`nn.Dropout(0.9)` after each activation: in the other library the number is the share that is kept."""
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.9)))


@fault("M14", "counts recommender")
def dropout_on_the_output(t: Training) -> None:
    """The last line of the list of layers is a dropout."""
    t.model = nn.Sequential(t.model, nn.Dropout(0.5))


@fault("T5 M14 M18 R13", "digits-deep8-adam waves houses")
def functional_dropout(t: Training) -> None:
    """`F.dropout(x, 0.5)` in the forward: it is on in evaluation too, as `training` is not passed."""
    bend(t, lambda old: nn.Sequential(old, Apply(lambda x: F.dropout(x, 0.5))))


@fault("M18 R13", "deep_norm")
def momentum_of_the_other_library(t: Training) -> None:
    """Batch norm with momentum=0.99, which is 0.01 there, beside batches of four: the last batch decides."""
    for norm in modules(t, (nn.BatchNorm1d, nn.BatchNorm2d)):
        norm.momentum = 0.99
    t.bs = 4


@fault("M18 R13", "digits_conv deep_norm")
def statistics_too_slow(t: Training) -> None:
    """Batch norm with momentum=1e-4: the running statistics are still those of the start."""
    for norm in modules(t, (nn.BatchNorm1d, nn.BatchNorm2d)):
        norm.momentum = 1e-4


@fault("M19 A2", "digits-deep8-adam autoencoder clusters")
def two_hidden_units(t: Training) -> None:
    """One narrow hidden layer."""
    t.model = mlp(first_linear(t).in_features, 2, last(t).out_features)


@fault("M19 M11 A2", "moons shells-mlp-adam multi_label")
def logistic_regression(t: Training) -> None:
    """A single linear layer, for a border that is not straight."""
    t.model = nn.Linear(first_linear(t).in_features, last(t).out_features)


@fault("M19 A1 O7", "digits_conv transformer")
def forty_rows(t: Training) -> None:
    """The sample of forty rows, from the trial, is still what is trained on, many times."""
    few(t, 40)
    t.bs, t.epochs = 8, 4 * t.epochs


@fault("A1 A9 M19", "friedman counts shells-mlp-adam")
def far_too_many_epochs(t: Training) -> None:
    """100 rows, wide layers and 80 epochs, and the last weights are kept."""
    few(t, 100)
    t.model, t.epochs = mlp(first_linear(t).in_features, 256, 128, last(t).out_features), 80
    t.opt, t.lr, t.bs = torch.optim.Adam, 3e-3, 16


@fault("M20 M19 A2", "digits_conv")
def pooled_at_once(t: Training) -> None:
    """Global pooling right after the first convolution."""
    t.model = nn.Sequential(*list(t.model)[:3], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10))


@fault("M1 R1 D21 M2", "transformer")
def mask_the_other_way_round(t: Training) -> None:
    """True means "ignore" in `src_key_padding_mask`, and the program marks the words."""
    blocks = t.model.get_submodule("blocks")
    old = blocks.forward
    blocks.forward = lambda x, src_key_padding_mask: old(x, src_key_padding_mask=~src_key_padding_mask)  # type: ignore[assignment]


# --- loss ---


@fault("L2", "shells-mlp-adam clusters digits_conv")
def softmax_layer_at_the_end(t: Training) -> None:
    """The model ends with `nn.Softmax(dim=1)`, and the loss is CrossEntropyLoss."""
    t.model = nn.Sequential(t.model, nn.Softmax(dim=1))


@fault("L2", "rare multi_label")
def sigmoid_layer_at_the_end(t: Training) -> None:
    """The model ends with `nn.Sigmoid()`, and the loss is BCEWithLogitsLoss."""
    t.model = nn.Sequential(t.model, nn.Sigmoid())
    judge(t, lambda out, y: ((out > 0.5) == (y > 0.5)).float().mean())


@fault("L2 M12", "clusters waves")
def sigmoid_before_cross_entropy(t: Training) -> None:
    """The output of a binary model, kept for several classes."""
    end(t, torch.sigmoid)


@fault("L2", "clusters digits_conv")
def probabilities_into_cross_entropy(t: Training) -> None:
    """`probs = F.softmax(out, 1); loss = F.cross_entropy(probs, y)` in the loop."""
    judged(t, lambda out: out.softmax(1).clamp(1e-6, 1))


@fault("L3 L8 R2", "clusters digits_conv next_symbol")
def nll_of_scores(t: Training) -> None:
    """NLLLoss of the scores: the logarithm of the softmax is missing."""
    t.loss = nn.NLLLoss()


@fault("L3 L8", "deep_norm clusters")
def nll_of_probabilities(t: Training) -> None:
    """The model returns `softmax` and the loss is NLLLoss, as in a tutorial whose model returned `log_softmax`."""
    end(t, lambda out: out.softmax(1))
    t.loss = nn.NLLLoss()


@fault("L4 L5 M6", "rare breast-linear-rmsprop table-embed-sgd")
def cross_entropy_of_one_output(t: Training) -> None:
    """CrossEntropyLoss with a single output: the loss is zero for any weights."""
    t.loss = nn.CrossEntropyLoss()


@fault("L4 M12 M6", "moons breast-linear-rmsprop rare")
def softmax_of_one_output(t: Training) -> None:
    """`softmax(dim=1)` of one column: always 1."""
    end(t, lambda out: out.softmax(1))
    if t.kind == "binary":
        t.loss = nn.BCELoss()
        judge(t, lambda out, y: ((out > 0.5) == (y > 0.5)).float().mean())


def rounded(out: Tensor, y: Tensor) -> Tensor:
    return (out.reshape(y.shape).round() == y).float().mean()


@fault("L5 M13", "waves shells-mlp-adam lstm")
def regression_of_class_numbers(t: Training) -> None:
    """One output, the squared error to the number of the class, and rounding."""
    numbered(t)
    t.loss = lambda out, y: F.mse_loss(out[:, 0], y.float())
    judge(t, rounded)


@fault("L5 D11 L8", "clusters shells-mlp-adam clusters5-residual-adamw")
def binary_loss_for_class_numbers(t: Training) -> None:
    """BCEWithLogitsLoss with one output, and targets 0, 1, 2, 3."""
    numbered(t)
    t.loss = lambda out, y: F.binary_cross_entropy_with_logits(out, y[:, None].float())
    judge(t, rounded)


@fault("L5 L2", "clusters digits_conv")
def squared_error_of_probabilities(t: Training) -> None:
    """MSELoss between softmax and one-hot targets."""
    t.loss = lambda out, y: F.mse_loss(out.softmax(1), one_hot(out, y))


@fault("L5 M4", "houses friedman")
def cross_entropy_for_a_number(t: Training) -> None:
    """The loop of a classifier: CrossEntropyLoss of one output and a price."""
    t.loss = nn.CrossEntropyLoss()


@fault("L6", "friedman adding-recurrent-sgd counts")
def squeezed_output(t: Training) -> None:
    """The model returns `out.squeeze()`, the targets have one column, and `((out - y) ** 2).mean()` compares each with each."""
    end(t, lambda out: out.squeeze(1))
    t.loss = lambda out, y: ((out - y) ** 2).mean()


@fault("L6 X1", "recommender friedman houses")
def flat_targets(t: Training) -> None:
    """`y = df['price'].values`, of shape (n,), against outputs of shape (n, 1)."""
    targets(t, lambda y: y[:, 0])
    t.honest = lambda out, y: (out - y.reshape(out.shape)).abs().mean()


@fault("L7 O3", "clusters digits_conv moons")
def summed_over_the_batch(t: Training) -> None:
    """`reduction='sum'`, with the rate of the mean."""
    name = type(t.loss)
    t.loss = name(reduction="sum")  # type: ignore[call-arg]


@fault("L8 R2", "clusters5-residual-adamw next_symbol tagger")
def likelihood_without_a_minus(t: Training) -> None:
    """`loss = log_softmax(out)[range(n), y].mean()`: the optimizer makes it smaller."""
    old = t.loss
    t.loss = lambda out, y: -old(out, y)


@fault("L12 O5", "houses autoencoder friedman")
def heavy_l2(t: Training) -> None:
    """`loss + 0.5 * sum(w**2)`."""
    old = t.loss
    t.loss = lambda out, y: old(out, y) + 0.5 * sum(w.pow(2).sum() for w in weights(t))


@fault("M4 R7 T1", "adding-recurrent-sgd houses contrastive")
def loss_made_anew(t: Training) -> None:
    """`loss = torch.tensor(loss.item(), requires_grad=True)`, so that the error about the gradient goes away."""
    old = t.loss
    t.loss = lambda out, y: old(out, y).detach().requires_grad_() if out.requires_grad else old(out, y)


@fault("M4 R7 T1", "tagger segmentation table-embed-sgd")
def output_detached(t: Training) -> None:
    """`out = out.detach().requires_grad_()` before the loss."""
    judged(t, lambda out: out.detach().requires_grad_())


@fault("M4 R7 M5", "digits-deep8-adam autoencoder shells-mlp-adam")
def features_without_gradient(t: Training) -> None:
    """`with torch.no_grad(): h = self.features(x)`, as for a pretrained network; this one is new."""

    class Frozen(nn.Module):
        def __init__(self, *layers: nn.Module) -> None:
            super().__init__()
            self.features, self.head = nn.Sequential(*layers[:-1]), layers[-1]

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.features(x)
            return self.head(h)

    t.model = Frozen(*t.model)


# --- optimizer ---


@fault("O1 R7 M4", "adding-recurrent-sgd moons")
def optimizer_of_the_head(t: Training) -> None:
    """`optim.Adam(model.fc.parameters())`: copied from a guide to fine-tuning."""
    made(t, last(t).parameters())


@fault("O2 O1 R7 X1", "waves tagger contrastive")
def model_made_again(t: Training) -> None:
    """The optimizer has the parameters of the first model; the model is made once more before the loop."""
    made(t, copy.deepcopy(t.model).parameters())


class Listed(nn.Module):
    """All hidden layers in a list of Python, which registers none of them."""

    def __init__(self, layers: Sequence[nn.Module], registered: int):
        super().__init__()
        n = len(layers) - registered
        self.layers, self.rest = list(layers[:n]), nn.Sequential(*layers[n:])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.rest(x)


@fault("O1 R7 M4", "digits-deep8-adam multi_label houses")
def plain_list_of_layers(t: Training) -> None:
    """`self.layers = [...]` instead of `nn.ModuleList`; the last layer is an attribute of its own."""
    t.model = Listed(list(t.model), 1)


@fault("M4 R7 O1", "tagger recommender")
def embeddings_and_body_frozen(t: Training) -> None:
    """`requires_grad = False` for all but the last layer, for training in two stages; the second stage never comes."""
    for p in t.model.parameters():
        p.requires_grad_(False)
    for p in last(t).parameters():
        p.requires_grad_(True)


@fault("R7 O1 T1 A2", "lstm rare next_symbol")
def step_forgotten(t: Training) -> None:
    """`zero_grad`, `backward`, and no `optimizer.step()`."""

    class NoStep(Step):
        def step(self, learn: Any) -> None:
            pass

    stepped(t, NoStep)


@fault("O7 A3 R7 A2", "houses contrastive counts segmentation")
def step_after_the_loop(t: Training) -> None:
    """`optimizer.step()` is indented one level too little: one update for each epoch."""

    def skip(cb: Any) -> None:
        if cb.iter + 1 < cb.n_iter:
            raise CancelStepException

    on(t, before_step=skip)


class NotZeroed(Step):
    def zero_grad(self, learn: Any) -> None:
        pass


@fault("O3 R2 R4 R5", "clusters lstm adding-recurrent-sgd")
def zero_grad_forgotten(t: Training) -> None:
    """No code fits. Each step uses the sum of all gradients since the start."""
    stepped(t, NotZeroed)


@fault("O3 R2 R4 R5", "tagger digits-deep8-adam contrastive")
def zero_grad_once_per_epoch(t: Training) -> None:
    """No code fits. `optimizer.zero_grad()` is above the loop over the batches."""
    stepped(t, NotZeroed)
    on(t, before_train=lambda cb: cb.opt.zero_grad())


@fault("M6 R7 M4 T1", "breast-linear-rmsprop lstm counts")
def zeroed_between_backward_and_step(t: Training) -> None:
    """`loss.backward(); optimizer.zero_grad(); optimizer.step()`."""
    on(t, before_step=lambda cb: cb.opt.zero_grad(set_to_none=False))


@fault("O3 A10 R2 R1", "table-embed-sgd adding-recurrent-sgd moons")
def rate_of_three(t: Training) -> None:
    """SGD with a rate of 3, as the loss fell so slowly."""
    t.lr = 3.0


@fault("O3 A10 R2", "transformer digits-deep8-adam")
def adam_at_half(t: Training) -> None:
    """Adam at 0.5: the rate that plain SGD had in the course."""
    t.lr = 0.5


@fault("O3 A10 R2 R4", "multi_label next_symbol")
def default_of_another_library(t: Training) -> None:
    """lr=0.1 for every optimizer."""
    t.lr = 0.1 if t.lr < 0.02 else 1.0
    t.opt = torch.optim.Adam


@fault("O3 O7 A3 A10 A2", "digits_conv moons table-embed-sgd")
def adam_rate_for_sgd(t: Training) -> None:
    """SGD at 1e-4, without momentum."""
    t.opt, t.lr = torch.optim.SGD, 1e-4


@fault("O3 O7 A3 A10 A2", "transformer next_symbol counts segmentation")
def rate_for_fine_tuning(t: Training) -> None:
    """2e-5, as the paper has it, for a network that nobody has trained before."""
    t.lr = 2e-5


@fault("O3 A10 O7 A3 A2", "autoencoder recommender contrastive")
def sgd_in_place_of_adam(t: Training) -> None:
    """The optimizer is exchanged, the rate is kept."""
    t.opt = torch.optim.SGD


@fault("O3 A10 A2 R3", "rare clusters5-residual-adamw segmentation")
def one_zero_too_many(t: Training) -> None:
    """`lr=0.00001`."""
    t.lr = 1e-5


@fault("O4 O3 A2", "autoencoder counts tagger")
def epsilon_of_one(t: Training) -> None:
    """`eps=1.0`, from the note in another library about one image network."""
    t.opt = partial(torch.optim.Adam, eps=1.0)


@fault("O5", "transformer next_symbol clusters5-residual-adamw")
def weight_decay_of_five(t: Training) -> None:
    """AdamW with `weight_decay=5`."""
    t.opt = partial(torch.optim.AdamW, weight_decay=5.0)


@fault("O5", "rare adding-recurrent-sgd table-embed-sgd")
def decay_taken_for_decay_of_the_rate(t: Training) -> None:
    """`weight_decay=0.9`, meant to reduce the rate by ten per cent each epoch."""
    t.opt = partial(t.opt, weight_decay=0.9)


@fault("O3 R5 A2 O7", "clusters moons table-embed-sgd")
def clipped_to_nothing(t: Training) -> None:
    """`clip_grad_norm_(parameters, 1e-3)` with SGD."""
    t.cbs.append(GradientClip(1e-3))


@fault("O6 O7", "friedman transformer autoencoder")
def epochs_of_the_scheduler_are_updates(t: Training) -> None:
    """`StepLR(step_size=5)` means epochs; `scheduler.step()` stands in the inner loop."""
    scheduled(t, lambda opt: StepLR(opt, 5, 0.1))


@fault("O6 O7", "contrastive adding-recurrent-sgd recommender")
def exponential_in_the_inner_loop(t: Training) -> None:
    """`ExponentialLR(gamma=0.9)`, stepped after each batch."""
    scheduled(t, lambda opt: ExponentialLR(opt, 0.9))


@fault("O6 O3 O7", "transformer next_symbol contrastive")
def warm_up_of_a_large_model(t: Training) -> None:
    """10 000 updates of warm-up, in a training of a few hundred."""
    scheduled(t, lambda opt: LambdaLR(opt, lambda i: min(1.0, (i + 1) / 10_000)))


@fault("O6 O7", "multi_label adding-recurrent-sgd")
def plateau_of_the_wrong_sign(t: Training) -> None:
    """Reduce on plateau with mode 'max' for a loss: it is cut tenfold as long as the loss falls."""
    t.cbs.append(ReduceLROnPlateau("valid_loss", comp="max", patience=1, factor=50.0))


# --- length and batch ---


@fault("O7 A3", "lstm autoencoder contrastive")
def single_epoch(t: Training) -> None:
    """`epochs = 1`, to try it out."""
    t.epochs = 1


@fault("O7 A3", "contrastive rare transformer segmentation")
def break_left_in(t: Training) -> None:
    """`if i == 4: break`, from debugging."""

    def stop(cb: Any) -> None:
        if cb.iter >= 4:
            raise CancelTrainException

    on(t, before_batch=stop)


@fault("O7 A3", "multi_label adding-recurrent-sgd")
def impatient(t: Training) -> None:
    """Early stopping that wants the loss to fall by 0.5 in each epoch."""
    t.cbs.append(EarlyStopping(min_delta=0.5, patience=1))


@fault("O7 A3 D20 M19", "next_symbol recommender table-embed-sgd")
def share_of_the_data(t: Training) -> None:
    """`df.sample(frac=0.03)`, to be quick, and it stays."""
    few(t, max(len(t.train[0]) * 3 // 100, t.bs))


@fault("O8 O7 A3", "houses autoencoder digits-deep8-adam segmentation")
def whole_set_as_a_batch(t: Training) -> None:
    """The data fit into memory: one update for each epoch."""
    t.bs = len(t.train[0])


@fault("O8 O7 A3", "recommender counts friedman waves")
def batch_to_fill_the_gpu(t: Training) -> None:
    """512 items for each update, and neither rate nor epochs are changed."""
    t.bs = min(512, len(t.train[0]))


@fault("O9 R1 O4", "clusters5-residual-adamw multi_label counts")
def half_without_scaling(t: Training) -> None:
    """`model.half()`, and Adam, whose eps of 1e-8 is zero in half precision."""
    model = t.model.half()
    t.model = Then(nn.Sequential(Apply(lambda x: x.half()), model), lambda out: out.float())
    t.opt = torch.optim.Adam


# --- report only ---


@fault("L11 M13", "breast-linear-rmsprop table-embed-sgd", where="report")
def argmax_of_a_single_column(t: Training) -> None:
    """Accuracy by `out.argmax(1)`, which is 0 for one column."""
    t.metric = lambda out, y: (out.argmax(1) == y[:, 0]).float().mean()


@fault("L6 L11", "clusters digits_conv lstm", where="report")
def column_against_row(t: Training) -> None:
    """`(out.argmax(1, keepdim=True) == y).float().mean()` compares each with each."""
    t.metric = lambda out, y: (out.argmax(1, keepdim=True) == y).float().mean()


@fault("L11", "deep_norm transformer clusters5-residual-adamw", where="report")
def divided_by_the_wrong_number(t: Training) -> None:
    """The number of right answers is divided by the batch size of training, but batches of validation are larger."""
    bs = t.bs
    t.metric = lambda out, y: (out.argmax(1) == y).float().sum() / bs


@fault("L10 L11", "houses recommender adding-recurrent-sgd", where="report")
def absolute_value_forgotten(t: Training) -> None:
    """`(out - y).mean()` as the mean error: above and below cancel."""
    t.metric = lambda out, y: (out - y).mean()


@fault("L11 D21", "tagger", where="report")
def pads_counted_as_wrong(t: Training) -> None:
    """The accuracy of tags counts the pads, whose target is -100."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().mean()


@fault("R13 M18", "shells-mlp-adam clusters multi_label", where="report")
def eval_forgotten(t: Training) -> None:
    """No `model.eval()` before the validation, with a dropout of 0.5 after each activation."""
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.5)))
    t.cbs.append(Callback(before_batch=lambda cb: cb.model.train()))


# --- those that end with an error message ---


@fault("X1 D5", "clusters moons")
def doubles_of_numpy(t: Training) -> None:
    """`torch.from_numpy(x)` is of 64 bits, the layers are of 32."""
    everywhere(t, lambda x: x.double())


@fault("X1 D6", "digits_conv segmentation")
def channels_last_image(t: Training) -> None:
    """Images as (height, width, channels)."""
    everywhere(t, lambda x: x.movedim(1, -1))


@fault("X1 M20", "digits_conv waves")
def size_after_flatten(t: Training) -> None:
    """The number of inputs of the linear layer was computed for another image size."""
    old = modules(t, nn.Linear)[0]
    replace(t, old, nn.Linear(old.in_features * 4, old.out_features))


@fault("X1 D11 M13", "digits_conv lstm")
def labels_from_one(t: Training) -> None:
    """The classes of the file are numbered from 1."""
    targets(t, lambda y: y + 1)


@fault("X1 D11 L5", "clusters digits-deep8-adam")
def targets_with_a_column(t: Training) -> None:
    """Targets of shape (n, 1) for CrossEntropyLoss."""
    targets(t, lambda y: y[:, None])


@fault("X1 L5 D5", "lstm clusters5-residual-adamw")
def float_labels(t: Training) -> None:
    """The labels were read as floats."""
    targets(t, lambda y: y.float())


@fault("X1 L6", "breast-linear-rmsprop table-embed-sgd")
def binary_targets_without_a_column(t: Training) -> None:
    """BCEWithLogitsLoss of outputs (n, 1) and targets (n,)."""
    targets(t, lambda y: y[:, 0])


@fault("X1 D11", "tagger")
def ignored_label_is_not_ignored(t: Training) -> None:
    """-100 marks the pads, and the loss was told to ignore -1."""
    t.loss = nn.CrossEntropyLoss(ignore_index=-1)


@fault("X1 D11", "recommender next_symbol")
def vocabulary_too_small(t: Training) -> None:
    """`nn.Embedding(len(vocabulary))`, with a vocabulary of the rows that were seen first."""
    for old in modules(t, nn.Embedding):
        replace(t, old, nn.Embedding(old.num_embeddings - 2, old.embedding_dim))


@fault("X1 D19 O8", "deep_norm table-embed-sgd")
def last_batch_of_one_item(t: Training) -> None:
    """`drop_last=False`, and one row is left over for the last batch: batch norm refuses it."""
    n = len(t.train[0]) // t.bs - 1
    few(t, n * t.bs + 1)
    t.drop_last = False


@fault("X1", "houses contrastive")
def running_loss_backward(t: Training) -> None:
    """`total += loss; total.backward()` in each turn: the graph of the turn before is gone."""

    class Running(Step):
        total: Any = 0.0

        def backward(self, learn: Any) -> None:
            self.total = self.total + learn.loss_grad
            self.total.backward()

    stepped(t, Running)


@fault("X1 M4", "transformer tagger")
def everything_frozen(t: Training) -> None:
    """`requires_grad = False` for all, and the new head was made before that."""
    t.model.requires_grad_(False)


@fault("X1 M4 L10", "waves clusters")
def accuracy_as_loss(t: Training) -> None:
    """`1 - (out.argmax(1) == y).float().mean()` goes to `backward`."""
    t.loss = lambda out, y: 1 - (out.argmax(1) == y).float().mean()


@fault("X1", "moons multi_label")
def changed_in_place(t: Training) -> None:
    """`h = torch.tanh(x); h *= 2` in the forward."""

    def change(x: Tensor) -> Tensor:
        h = torch.tanh(x)
        h *= 2
        return h

    before_last(t, lambda n: Apply(change))


@fault("X1 O1", "moons counts")
def no_layer_registered(t: Training) -> None:
    """All layers are in a list of Python: the optimizer gets no parameter."""
    t.model = Listed(list(t.model), 0)
