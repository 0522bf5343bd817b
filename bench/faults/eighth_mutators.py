"""An eighth set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The brief was to write faults that are as frequent in practice as one can judge, in the shares in which beginners and practitioners make them:
those of forum threads and of the published taxonomies of faults in deep learning. The common kinds come several times in different code, and
about one in seven ends with an error message. Nothing was chosen for being new, hard or easy.

The codes are those of the table, D1 to A12, and X1: a batch fails, and the error message of the program is the finding. The first one is the
closest, and the others are those that a fair judge would accept. A preparation of the inputs that the program applies wherever it reads data
also reaches the inputs of the test part, as in `everywhere`. Its targets are never touched.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import mutators
import torch
from fault_tasks import LSTM, Training, similarity
from fifth_mutators import MATRICES, Trained, cut, everywhere, inputs, last, made, modules, replace, targets, whole
from fourth_mutators import Apply
from lr_tasks import mlp
from mutators import Change, Mutator
from seventh_mutators import end, few
from sixth_mutators import before_last, bend, fill, in_file_order, rescore
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, MultiStepLR, OneCycleLR

from cbnb import CancelStepException, CancelTrainException, EarlyStopping, GradientClip, Step, TorchScheduler

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def first(t: Training) -> Any:
    return modules(t, MATRICES)[0]


def with_column(t: Training, make: Callable[[Tensor], Tensor]) -> None:
    """One more column of inputs, made from the table."""
    everywhere(t, lambda x: torch.cat([x, make(x)[:, None]], 1))
    old = first(t)
    replace(t, old, nn.Linear(old.in_features + 1, old.out_features))


def loop(t: Training, step: Step) -> None:
    """A loop of training that is written by hand."""
    t.ready.append(lambda learn: setattr(learn, "train_step", step))


def on(t: Training, **events: Callable[[Any], Any]) -> None:
    t.cbs.append(Trained(**events))


def plan(t: Training, make: Callable[..., Any], every: str = "update") -> None:
    t.cbs.append(TorchScheduler(make, every))


def stop(kind: type[Exception]) -> Any:
    raise kind


def in_forward(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """The forward of the model begins with this."""
    t.model = nn.Sequential(Apply(change), t.model)


def labels(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """The labels of the training part only."""
    t.train = t.train[0], change(t.train[1].clone())


def rows(t: Training, chosen: Tensor) -> None:
    """Training has only these rows."""
    t.train = t.train[0][chosen].clone(), t.train[1][chosen].clone()


# --- inputs ---


@fault("D4 D2", "houses friedman breast-linear-rmsprop")
def columns_in_their_units(t: Training) -> None:
    """Areas, years, rates and incomes, straight from the file."""
    units = 10 ** torch.linspace(-2, 4, t.train[0].shape[1])
    everywhere(t, lambda x: (x + 2) * units)


@fault("D2", "autoencoder waves")
def not_divided_by_255(t: Training) -> None:
    """`torch.from_numpy(images).float()`, without a division by 255."""
    everywhere(t, lambda x: x * 255)


@fault("D2", "friedman multi_label moons")
def readings_of_the_sensor(t: Training) -> None:
    """Readings around 300, which nobody centred."""
    everywhere(t, lambda x: x * 20 + 300)


@fault("D4 D2", "rare clusters counts")
def income_left_out_of_the_scaler(t: Training) -> None:
    """The list of numeric columns lacks the income, so the scaler leaves it in dollars."""

    def change(x: Tensor) -> Tensor:
        x[:, 0] = 20_000 * x[:, 0] + 60_000
        return x

    everywhere(t, change)


@fault("D4 D2", "houses multi_label shells-mlp-adam")
def time_stamp_as_a_column(t: Training) -> None:
    """The date became the seconds since 1970, and stayed among the inputs."""
    with_column(t, lambda x: 1.6e9 + 1e7 * torch.rand(len(x)))


@fault("D4 D2", "clusters5-residual-adamw friedman breast-linear-rmsprop")
def index_column_kept(t: Training) -> None:
    """`read_csv` without `index_col=0`: the number of the row is the first feature."""
    with_column(t, lambda x: torch.randperm(50_000)[: len(x)].float())


@fault("D2 D3", "digits-deep8-adam autoencoder deep_norm")
def standardised_as_bytes(t: Training) -> None:
    """`(x - 127.5) / 127.5`, where the pixels are between 0 and 1 already: all are about -1."""
    everywhere(t, lambda x: (x - 127.5) / 127.5)


@fault("D5 D3", "digits-deep8-adam digits_conv deep_norm")
def cast_to_bytes_after_scaling(t: Training) -> None:
    """`(image / 255).astype(np.uint8)`: nearly all pixels become zero."""
    everywhere(t, lambda x: x.byte().float())


@fault("D5", "houses moons shells-mlp-adam")
def read_as_whole_numbers(t: Training) -> None:
    """`dtype=int` in the reader cuts the decimals off."""
    everywhere(t, lambda x: x.int().float())


@fault("D15 D2", "clusters5-residual-adamw waves friedman")
def scaler_for_training_only(t: Training) -> None:
    """`fit_transform` for the training part; what comes later is not transformed at all."""

    def raw(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return 4 * pair[0] + 10, pair[1]

    t.valid, t.test = t.valid and raw(t.valid), raw(t.test)


@fault("D15 D2", "digits_conv autoencoder deep_norm")
def normalize_missing_in_the_validation_transform(t: Training) -> None:
    """`Normalize` stands in the transform of training only."""
    mean, std = t.train[0].mean(), t.train[0].std() / 2
    t.train = (t.train[0] - mean) / std, t.train[1]


@fault("D1 R1", "houses rare table-embed-sgd")
def empty_cells(t: Training) -> None:
    """Some cells of a column are empty, and `read_csv` makes nan of them."""

    def change(x: Tensor) -> Tensor:
        x[::40, -1] = torch.nan
        return x

    inputs(t, change)


@fault("D1 R1", "autoencoder digits_conv counts")
def log_of_zero(t: Training) -> None:
    """The inputs are skewed, so the program takes their logarithm; some are zero."""
    everywhere(t, lambda x: x.clamp(min=0).log())


@fault("D2 D4", "rare friedman counts")
def minus_999_for_missing(t: Training) -> None:
    """Missing values are coded as -999, in one row of ten."""

    def change(x: Tensor) -> Tensor:
        return torch.where(torch.rand(x.shape) < 0.1 / x.shape[1] ** 0.5, torch.tensor(-999.0), x)

    everywhere(t, change)


@fault("D3", "friedman counts multi_label")
def merge_without_matches(t: Training) -> None:
    """The keys of two tables differ in type: no row matches, and `fillna(0)` fills half of the columns."""

    def change(x: Tensor) -> Tensor:
        x[:, : x.shape[1] // 2] = 0
        return x

    everywhere(t, change)


@fault("D3 D20 M1", "digits_conv waves")
def same_file_each_time(t: Training) -> None:
    """`self.files[0]` instead of `self.files[i]` in `__getitem__`."""
    inputs(t, lambda x: x[:1].expand_as(x).clone())


@fault("D6 M2", "adding-recurrent-sgd")
def reshape_for_a_transpose(t: Training) -> None:
    """`reshape` to swap the dimensions of time and features, which scrambles both."""
    everywhere(t, lambda x: x.transpose(1, 2).reshape(x.shape))


# --- augmentation ---


@fault("D17", "digits_conv digits-deep8-adam waves")
def strong_noise(t: Training) -> None:
    """Noise is added to make the model robust: more of it than signal."""
    t.augment = lambda x: x + 2.5 * torch.randn_like(x)


@fault("D17 D18", "segmentation")
def image_flipped_without_its_mask(t: Training) -> None:
    """The random transform is called for the image, and not for the mask."""
    t.augment = lambda x: x.flip(-1) if torch.rand(()) < 0.5 else x


@fault("D16", "digits_conv digits-deep8-adam", where="report")
def one_transform_for_both(t: Training) -> None:
    """The random transform is passed to the dataset of validation too."""

    def change(x: Tensor) -> Tensor:
        return x.roll(int(torch.randint(-3, 4, ())), -1) + 0.5 * torch.randn_like(x)

    t.augment = t.valid_augment = change


# --- targets ---


@fault("D7", "houses adding-recurrent-sgd recommender")
def prices_in_dollars(t: Training) -> None:
    targets(t, lambda y: 1e5 * y)
    rescore(t, lambda out: out / 1e5)


@fault("D7 L1", "houses friedman adding-recurrent-sgd")
def year_as_target(t: Training) -> None:
    """The year is predicted as it is: some 2000."""
    targets(t, lambda y: y + 2000)
    rescore(t, lambda out: out - 2000)


@fault("D18 A7", "clusters lstm deep_norm")
def careless_labels(t: Training) -> None:
    """Half of the labels come from a crowd that clicked at random."""
    labels(t, lambda y: torch.where(torch.rand(y.shape) < 0.55, torch.randint(int(y.max()) + 1, y.shape), y))


@fault("D18 T3 A2 R3", "deep_norm waves table-embed-sgd next_symbol")
def labels_listed_in_another_order(t: Training) -> None:
    """`os.listdir` gives the images in one order, and the table has the labels in another one."""
    targets(t, lambda y: y[torch.randperm(len(y))])


@fault("D18 T3 A2 R3", "houses segmentation transformer")
def inputs_shuffled_alone(t: Training) -> None:
    """`np.random.shuffle(x)`, and not the targets."""
    inputs(t, lambda x: x[torch.randperm(len(x))])


@fault("D18 T3 A2 R3", "clusters5-residual-adamw friedman recommender")
def header_read_as_a_row(t: Training) -> None:
    """One of two files has a header: targets are off by one row."""
    targets(t, lambda y: y.roll(1, 0))


@fault("D18 T3 A2 R3", "counts shells-mlp-adam breast-linear-rmsprop")
def sorted_apart(t: Training) -> None:
    """Inputs and targets are sorted, each on its own, before they are saved."""

    def change(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = part
        return x[x[:, 0].argsort()], y[y.flatten().argsort()].flip(0) if y.dim() > 1 else y[y.argsort()]

    t.train, t.valid = change(t.train), t.valid and change(t.valid)


@fault("D18 T3 A2 R3", "contrastive")
def pairs_torn_apart(t: Training) -> None:
    """Only one of the two files of a pair is shuffled."""

    def change(x: Tensor) -> Tensor:
        x[:, 1] = x[torch.randperm(len(x)), 1]
        return x

    inputs(t, change)


@fault("D8 A5", "rare moons table-embed-sgd")
def comparison_with_a_string(t: Training) -> None:
    """`df.label == '1'` where the labels are numbers: no row is positive."""
    targets(t, torch.zeros_like)


@fault("D8 A5", "clusters lstm")
def folder_as_class(t: Training) -> None:
    """`ImageFolder` was pointed at one folder too high: a single class."""
    targets(t, torch.zeros_like)


@fault("D9 A5", "clusters digits-deep8-adam waves")
def hardly_any_of_the_other_classes(t: Training) -> None:
    """The data were collected as they came: nearly all of them are of one class."""
    y = t.train[1]
    rows(t, (y == 0) | (torch.rand(len(y)) < 0.04))


@fault("D11 L8", "moons multi_label table-embed-sgd")
def labels_one_and_two(t: Training) -> None:
    """The labels of the file are 1 and 2, for a loss that wants 0 and 1."""
    targets(t, lambda y: y + 1)


@fault("D11 L8", "breast-linear-rmsprop moons rare")
def labels_plus_and_minus_one(t: Training) -> None:
    """The labels of a tutorial for support vector machines: -1 and 1."""
    targets(t, lambda y: 2 * y - 1)


@fault("D10", "digits_conv clusters lstm")
def file_sorted_by_class_not_shuffled(t: Training) -> None:
    """The loader has no `shuffle=True`, and the files are listed class by class."""
    rows(t, t.train[1].argsort(stable=True))
    t.shuffle = False


@fault("D15 D9", "clusters digits_conv lstm")
def first_rows_of_a_sorted_file(t: Training) -> None:
    """`x[:n]` and `x[n:]` of a file that is sorted by class: training lacks the last classes."""
    in_file_order(t, whole(t)[1].flatten().argsort(stable=True))


@fault("D20 M19 A1", "clusters waves lstm")
def the_same_batch_again_and_again(t: Training) -> None:
    """`next(iter(loader))` once before the loop: all updates see the rows of one batch."""
    rows(t, torch.arange(len(t.train[0])) % t.bs)


@fault("M19 A1", "friedman digits_conv clusters5-residual-adamw")
def fifty_rows(t: Training) -> None:
    """There are fifty labelled rows, and many epochs."""
    few(t, 50)
    t.bs, t.epochs = 16, 12 * t.epochs


@fault("A1 A9", "rare counts clusters")
def hundreds_of_epochs(t: Training) -> None:
    """A small table and epochs without end, and the last weights are kept."""
    few(t, 250)
    t.epochs *= 12


# --- leaks ---


@fault("D14 A4", "houses clusters rare")
def target_among_the_inputs(t: Training) -> None:
    """`df.values` still has the column of the target, which is empty in service."""
    for name in ("train", "valid"):
        x, y = getattr(t, name)
        x[:, -1] = y.flatten().float()
    t.test[0][:, -1] = 0


@fault("D14 A4", "counts friedman shells-mlp-adam")
def known_only_afterwards(t: Training) -> None:
    """A column that is filled in after the event, such as the sum paid out; in service it has the default."""
    for name in ("train", "valid"):
        x, y = getattr(t, name)
        y = y.flatten().float()
        x[:, 0] = (y - y.mean()) / y.std() + 0.1 * torch.randn(len(y))
    t.test[0][:, 0] = 0


@fault("D12 A4", "clusters waves houses", where="report")
def training_file_validated(t: Training) -> None:
    """`train=True` copied into the line of validation."""
    few(t, 200)
    t.epochs *= 12
    t.valid = t.train


@fault("D12 D20 A4", "clusters friedman waves", where="report")
def oversampled_then_split(t: Training) -> None:
    """Rows are repeated to have more of them, and then split."""
    x, y = (a[:250].repeat_interleave(5, 0) for a in t.train)
    order = torch.randperm(len(x))
    t.epochs *= 3
    cut(t, x[order], y[order])


# --- evaluation ---


@fault("L11", "clusters digits_conv waves", where="report")
def right_ones_over_the_batch_size(t: Training) -> None:
    """The number of right answers is divided by the batch size of training."""
    t.metric = lambda out, y: (out.argmax(1) == y).sum() / t.bs


@fault("L11 A5", "breast-linear-rmsprop table-embed-sgd", where="report")
def argmax_of_one_output(t: Training) -> None:
    """`argmax(1)` of a single output: class 0 for all."""
    t.metric = lambda out, y: (out.argmax(1)[:, None] == y).float().mean()


@fault("L6 L11", "breast-linear-rmsprop rare table-embed-sgd", where="report")
def a_column_compared_with_a_row(t: Training) -> None:
    """The accuracy compares (n, 1) with (n,): all pairs."""
    t.metric = lambda out, y: ((out > 0) == (y[:, 0] > 0.5)).float().mean()


@fault("L11 L9 D21", "tagger", where="report")
def pads_in_the_accuracy(t: Training) -> None:
    """The accuracy is a mean over all places, pads and all."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().mean()


# --- losses ---


@fault("L2", "digits_conv clusters")
def softmax_layer_and_cross_entropy(t: Training) -> None:
    """The model ends with `nn.Softmax(dim=1)`, and the loss is `CrossEntropyLoss`."""
    t.model = nn.Sequential(t.model, nn.Softmax(dim=1))


@fault("L2", "digits-deep8-adam shells-mlp-adam")
def probabilities_returned(t: Training) -> None:
    """The forward returns `F.softmax`, as the answer should be probabilities."""
    end(t, lambda out: F.softmax(out, 1))


@fault("L2", "moons multi_label rare")
def sigmoid_and_bce_with_logits(t: Training) -> None:
    t.model = nn.Sequential(t.model, nn.Sigmoid())


@fault("L3", "clusters next_symbol digits_conv")
def nll_of_raw_scores(t: Training) -> None:
    """`NLLLoss` on the output of the last linear layer."""
    t.loss = nn.NLLLoss()


@fault("L3", "shells-mlp-adam deep_norm clusters")
def nll_of_probabilities(t: Training) -> None:
    """`NLLLoss` on the output of softmax."""
    t.model, t.loss = nn.Sequential(t.model, nn.Softmax(1)), nn.NLLLoss()


@fault("L4 M6 M4", "moons rare breast-linear-rmsprop")
def cross_entropy_of_one_output(t: Training) -> None:
    """A binary problem, one output, and `CrossEntropyLoss`."""
    t.loss = nn.CrossEntropyLoss()


@fault("L4 M6", "table-embed-sgd rare moons")
def softmax_over_a_single_output(t: Training) -> None:
    """A softmax over the only output: one for all rows."""
    t.model, t.loss = nn.Sequential(t.model, nn.Softmax(dim=1)), nn.BCELoss()


@fault("L5", "digits-deep8-adam clusters shells-mlp-adam")
def number_of_the_class_regressed(t: Training) -> None:
    """One output and `MSELoss` for the number of the class."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, 1))
    t.loss = lambda out, y: F.mse_loss(out[:, 0], y.float())
    t.metric = t.honest = lambda out, y: (out[:, 0].round() == y).float().mean()


@fault("L5", "clusters digits_conv shells-mlp-adam")
def squared_error_of_probabilities(t: Training) -> None:
    """`MSELoss` between softmax and one-hot targets."""
    t.loss = lambda out, y: F.mse_loss(out.softmax(1), F.one_hot(y, out.shape[1]).float())


@fault("L5", "multi_label")
def cross_entropy_for_several_labels(t: Training) -> None:
    """Labels that hold together, and the cross-entropy of exclusive classes."""
    t.loss = nn.CrossEntropyLoss()


@fault("X1 L6", "houses friedman adding-recurrent-sgd")
def targets_without_their_column(t: Training) -> None:
    """Output (n, 1), target (n,): the library refuses what PyTorch broadcasts with a warning."""
    targets(t, lambda y: y[:, 0])


@fault("L6", "recommender houses counts")
def output_squeezed(t: Training) -> None:
    """The forward squeezes the output, the targets are a column, and the loss is written by hand."""
    end(t, lambda out: out.squeeze(1))
    if t.kind == "numbers":
        t.loss = lambda out, y: torch.sqrt(((out - y) ** 2).mean())


@fault("L7 O3", "clusters digits_conv moons")
def summed_loss(t: Training) -> None:
    """`reduction='sum'`, with the rate that was good for a mean."""
    loss_of_items = dict(classes=nn.CrossEntropyLoss, binary=nn.BCEWithLogitsLoss, numbers=nn.SmoothL1Loss)[t.kind]
    t.loss = loss_of_items(reduction="sum")


@fault("L8", "houses clusters5-residual-adamw contrastive breast-linear-rmsprop")
def sign_of_the_loss(t: Training) -> None:
    """The loss is turned into a reward, and minimised."""
    old = t.loss
    t.loss = lambda out, y: -old(out, y)


@fault("M4 R3 R7 M5", "rare friedman lstm")
def loss_wrapped_in_a_new_tensor(t: Training) -> None:
    """`torch.tensor(loss.item(), requires_grad=True)` silences the error message, and no gradient gets through."""
    old = t.loss

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(old(out, y).item(), requires_grad=True)

    t.loss = loss


@fault("L12 O5", "clusters multi_label digits_conv")
def penalty_of_absolute_weights(t: Training) -> None:
    """An L1 penalty, summed over all weights, with a factor that was never tuned."""
    old = t.loss
    t.loss = lambda out, y: old(out, y) + 0.05 * sum(p.abs().sum() for p in t.model.parameters())


@fault("L12 O5", "counts shells-mlp-adam friedman")
def penalty_of_squared_weights(t: Training) -> None:
    """An L2 penalty of the sum, while the loss is a mean."""
    old = t.loss
    t.loss = lambda out, y: old(out, y) + 0.3 * sum(p.pow(2).sum() for p in t.model.parameters())


@fault("D21 D11", "tagger")
def class_zero_ignored(t: Training) -> None:
    """`ignore_index=0`, as pads are zeros among the words; among the tags zero is a class."""
    t.loss = lambda out, y: F.cross_entropy(out, y.where(y > 0, torch.tensor(-100)))


@fault("L5 D8 D11", "contrastive")
def target_zero_for_all_pairs(t: Training) -> None:
    """The label of each pair is zero, as in a program where the positive one comes first."""
    t.loss = lambda out, y: F.cross_entropy(similarity(out) / 0.2, torch.zeros_like(y))


# --- models ---


@fault("M11 A2", "moons shells-mlp-adam multi_label")
def activations_forgotten(t: Training) -> None:
    """Linear layers only."""
    bend(t, lambda old: nn.Identity())


@fault("M11 A2", "counts clusters friedman")
def activation_without_assignment(t: Training) -> None:
    """`F.relu(x)` on a line of its own: the result is thrown away."""

    def call(x: Tensor) -> Tensor:
        F.relu(x)
        return x

    bend(t, lambda old: Apply(call))


@fault("M12", "friedman counts")
def relu_on_a_number_below_zero(t: Training) -> None:
    """The last layer has the ReLU of all layers, and targets are negative, too."""
    t.model = nn.Sequential(t.model, nn.ReLU())


@fault("M12", "clusters shells-mlp-adam transformer")
def relu_on_logits(t: Training) -> None:
    """A loop adds a ReLU after each layer, the last one included."""
    end(t, F.relu)


@fault("M12", "houses adding-recurrent-sgd friedman")
def sigmoid_on_a_regression(t: Training) -> None:
    end(t, torch.sigmoid)


@fault("M12", "houses recommender friedman")
def tanh_on_a_regression(t: Training) -> None:
    end(t, torch.tanh)


@fault("M10 M16", "digits-deep8-adam clusters autoencoder")
def sigmoids_inside(t: Training) -> None:
    """Sigmoids in all hidden layers, as in an old book."""
    bend(t, lambda old: nn.Sigmoid())


@fault("M10 M16", "clusters digits-deep8-adam houses")
def softmax_inside(t: Training) -> None:
    """Softmax as the activation of hidden layers."""
    bend(t, lambda old: nn.Softmax(dim=1))


@fault("M7 M6", "clusters houses digits_conv")
def weights_of_zeros(t: Training) -> None:
    fill(t, lambda weight: weight.zero_())


@fault("M7", "multi_label shells-mlp-adam moons")
def weights_of_a_constant(t: Training) -> None:
    """`nn.init.constant_(weight, 0.1)`."""
    fill(t, lambda weight: weight.fill_(0.1))


@fault("M8 M17 L1", "clusters digits-deep8-adam autoencoder")
def unit_normal_weights(t: Training) -> None:
    """`torch.randn` for the weights, with no factor."""
    fill(t, lambda weight: weight.normal_())


@fault("M14", "houses lstm digits_conv")
def keep_probability(t: Training) -> None:
    """0.9 was the share to keep in the old program."""
    before_last(t, lambda width: nn.Dropout(0.95))


@fault("M14 T5 M18", "clusters houses friedman")
def functional_dropout(t: Training) -> None:
    """`F.dropout(x, 0.5)` without `training=self.training`."""
    before_last(t, lambda width: Apply(lambda x: F.dropout(x, 0.5)))


@fault("M14", "recommender friedman counts")
def dropout_of_the_output(t: Training) -> None:
    """A dropout after each layer, the last one included."""
    t.model = nn.Sequential(t.model, nn.Dropout(0.5))


@fault("M2 L2", "digits_conv tagger")
def softmax_over_the_batch(t: Training) -> None:
    """`softmax(dim=0)`: over the batch."""
    end(t, lambda out: out.softmax(0))


@fault("M2", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    """The recurrent layer takes the batch as time."""
    for layer in modules(t, nn.RNNBase):
        layer.batch_first = False


@fault("M2 D6", "digits_conv waves")
def flattened_across_the_batch(t: Training) -> None:
    """A permutation before the flattening puts channels first, and the reshape mixes items."""
    flat = modules(t, nn.Flatten)[0]
    replace(t, flat, Apply(lambda x: x.transpose(0, 1).reshape(len(x), -1)))


class FirstState(LSTM):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0][:, 0])


@fault("M1 A2", "lstm")
def state_of_the_first_word(t: Training) -> None:
    """`out[:, 0]` instead of `out[:, -1]`."""
    t.model = FirstState()


@fault("R1 M1 D21", "transformer")
def mask_upside_down(t: Training) -> None:
    """The mask has ones at words; `src_key_padding_mask` wants them at pads."""
    blocks: Any = t.model.blocks
    old = blocks.forward
    blocks.forward = lambda x, src_key_padding_mask: old(x, src_key_padding_mask=~src_key_padding_mask)


@fault("M1 D3", "houses digits_conv counts")
def input_overwritten(t: Training) -> None:
    """A buffer of zeros is made in the forward, and never filled."""
    in_forward(t, torch.zeros_like)


class Listed(nn.Module):
    """Hidden layers in a list of Python."""

    def __init__(self, hidden: list[nn.Module], out: nn.Module):
        super().__init__()
        self.hidden, self.out = hidden, out

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x)
        return self.out(x)


@fault("O1 R7", "clusters digits-deep8-adam clusters5-residual-adamw")
def layers_in_a_list(t: Training) -> None:
    """`self.layers = [...]` instead of `nn.ModuleList`: the optimizer doesn't get them."""
    *hidden, out = t.model.children()
    t.model = Listed(hidden, out)


@fault("O1 R7", "deep_norm recommender digits_conv")
def optimizer_of_the_last_layer(t: Training) -> None:
    """`model.fc.parameters()`, copied from a program for transfer learning."""
    made(t, last(t).parameters())


@fault("O2 O1 R7", "clusters houses")
def head_replaced_after_the_optimizer(t: Training) -> None:
    """The head is replaced one line below the optimizer."""
    made(t, t.model.parameters())
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, old.out_features))


@fault("X1 O2 O1 R7", "moons next_symbol rare")
def optimizer_of_an_earlier_model(t: Training) -> None:
    """A cell of the notebook makes the model anew, and the cell of the optimizer isn't run again: a fit refuses."""
    made(t, t.model.parameters())
    t.model = copy.deepcopy(t.model)


@fault("M4 R7", "digits_conv waves tagger")
def random_backbone_frozen(t: Training) -> None:
    """`requires_grad = False` for all but the head, and the weights below were never loaded."""
    for p in t.model.parameters():
        p.requires_grad_(False)
    for p in last(t).parameters():
        p.requires_grad_(True)


@fault("M4 R7 M5", "segmentation digits-deep8-adam clusters5-residual-adamw")
def detached_features(t: Training) -> None:
    """`features.detach()` before the head."""
    head = last(t)
    replace(t, head, nn.Sequential(Apply(lambda x: x.detach()), head))


@fault("M4 R7 M5", "autoencoder waves shells-mlp-adam contrastive")
def no_grad_in_the_body(t: Training) -> None:
    """`torch.no_grad()` and `.data` in the forward, to save memory."""
    for old in modules(t, MATRICES)[:-1]:
        replace(t, old, nn.Sequential(old, Apply(lambda x: x.data)))


@fault("O1 M5 T5", "clusters houses multi_label")
def layer_made_in_the_forward(t: Training) -> None:
    """`nn.Linear(...)` in the forward: new random weights for each batch."""
    before_last(t, lambda width: Apply(lambda x: nn.Linear(width, width)(x)))


@fault("M19 A2", "clusters houses autoencoder")
def bottleneck_of_two(t: Training) -> None:
    """A hidden layer far too narrow."""
    t.model = mlp(first(t).in_features, 2, last(t).out_features)


@fault("M19 A2", "moons shells-mlp-adam counts")
def no_hidden_layer(t: Training) -> None:
    """Logistic regression for a problem that is not linear."""
    t.model = nn.Linear(first(t).in_features, last(t).out_features)


@fault("R13 M18", "deep_norm digits_conv")
def eval_called_before_the_loop(t: Training) -> None:
    """`model.eval()` in the validation function, and no `model.train()` after it."""
    on(t, before_batch=lambda cb: cb.model.eval())


# --- rates and optimizers ---


@fault("O3 R2 R4", "houses multi_label deep_norm")
def adam_with_rate_one(t: Training) -> None:
    t.lr = 1.0


@fault("O3 R4 R2", "transformer lstm waves tagger")
def rate_of_sgd_for_adam(t: Training) -> None:
    """The 0.1 of an old recipe for SGD."""
    t.opt, t.lr = torch.optim.Adam, 0.3


@fault("O3 A2 A3", "clusters digits_conv houses")
def rate_of_adam_for_sgd(t: Training) -> None:
    """0.001 and no momentum."""
    t.opt, t.lr = torch.optim.SGD, 1e-3


@fault("O3 O7 A3 A2", "transformer segmentation next_symbol recommender")
def rate_of_fine_tuning(t: Training) -> None:
    """2e-5, as for large pretrained models, from scratch."""
    t.lr = 2e-5


@fault("O3 O7 A3 A2", "counts contrastive breast-linear-rmsprop adding-recurrent-sgd")
def too_many_zeros(t: Training) -> None:
    """1e-6 was typed."""
    t.lr = 1e-6


@fault("O3 R1 R2", "moons adding-recurrent-sgd clusters")
def rate_ten(t: Training) -> None:
    t.lr = 10.0


@fault("O3 R2", "recommender rare counts table-embed-sgd")
def rate_a_hundred_times_too_large(t: Training) -> None:
    """0.3 instead of 0.003."""
    t.lr *= 100


class Accumulating(Step):
    def zero_grad(self, learn: Any) -> None:
        pass


@fault("R2 R4 R9 R5 O3", "houses clusters lstm table-embed-sgd")
def gradients_not_zeroed(t: Training) -> None:
    """No `optimizer.zero_grad()` in the loop."""
    loop(t, Accumulating())


class ZeroedPerEpoch(Step):
    seen = 0

    def zero_grad(self, learn: Any) -> None:
        self.seen += 1
        if self.seen % 30 == 0:
            super().zero_grad(learn)


@fault("R2 R4 R9 R5 O3", "moons digits-deep8-adam tagger")
def zeroed_once_per_epoch(t: Training) -> None:
    """`zero_grad` stands in the outer loop."""
    loop(t, ZeroedPerEpoch())


class ZeroedTooEarly(Step):
    def step(self, learn: Any) -> None:
        for p in learn.model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        super().step(learn)


@fault("R7 R3 M6 M4", "houses waves adding-recurrent-sgd")
def zeroed_between_backward_and_step(t: Training) -> None:
    loop(t, ZeroedTooEarly())


@fault("R7 R3", "recommender transformer next_symbol contrastive")
def no_step(t: Training) -> None:
    """`optimizer.step()` is missing."""
    on(t, before_step=lambda cb: stop(CancelStepException))


@fault("O7 A3 A2", "tagger houses autoencoder")
def break_at_the_end_of_the_body(t: Training) -> None:
    """A `break` from a test is left in the loop: one batch an epoch."""
    on(t, after_batch=lambda cb: stop(CancelTrainException))


@fault("O7 A3 A2", "multi_label clusters5-residual-adamw tagger")
def a_single_epoch(t: Training) -> None:
    t.epochs = 1


@fault("O7 A3 A2", "lstm digits-deep8-adam autoencoder")
def rows_of_a_trial(t: Training) -> None:
    """Two epochs over the first hundred rows, from a trial of the program."""
    few(t, 100)
    t.epochs = 2


@fault("O7 A3 A2", "clusters friedman")
def patience_of_one(t: Training) -> None:
    """`min_delta=0.5`: stops as soon as an epoch is not better by a lot."""
    t.cbs.append(EarlyStopping("valid_loss", min_delta=0.5, patience=1))


@fault("O8 O7 A3", "clusters deep_norm transformer")
def the_whole_table_as_a_batch(t: Training) -> None:
    """The largest batch that fits, with epochs and rate as before."""
    t.bs = 1000


@fault("O5 L12", "clusters moons digits_conv")
def decay_of_sgd(t: Training) -> None:
    """`weight_decay=0.5`."""
    t.opt = partial(torch.optim.SGD, momentum=0.9, weight_decay=0.5)


@fault("O5 L12", "houses transformer contrastive")
def decay_of_adam(t: Training) -> None:
    """`Adam(weight_decay=1)`."""
    t.opt = partial(torch.optim.Adam, weight_decay=1.0)


@fault("O4 R4 R2", "clusters moons friedman")
def momentum_near_one(t: Training) -> None:
    """`momentum=0.999`."""
    t.opt = partial(torch.optim.SGD, momentum=0.999)


@fault("O6 O3 O7", "houses transformer segmentation")
def decayed_with_each_batch(t: Training) -> None:
    """`ExponentialLR(0.9)` is meant for epochs, and stepped in the inner loop."""
    plan(t, lambda opt: ExponentialLR(opt, 0.9))


@fault("O6 O7 A3", "transformer digits-deep8-adam waves")
def warm_up_of_ten_thousand_updates(t: Training) -> None:
    """The warm-up of a paper is longer than the whole training."""
    plan(t, lambda opt: LambdaLR(opt, lambda n: min(1.0, (n + 1) / 10_000)))


@fault("O6 O3 O7", "recommender clusters table-embed-sgd")
def milestones_in_updates(t: Training) -> None:
    """Milestones that count epochs, and a scheduler that is stepped with each update."""
    plan(t, lambda opt: MultiStepLR(opt, [3, 5, 7], gamma=0.1))


@fault("O6 O3", "counts deep_norm moons")
def lambda_returns_the_rate(t: Training) -> None:
    """`LambdaLR` multiplies: the function returns 0.001 as if it were the rate."""
    plan(t, lambda opt: LambdaLR(opt, lambda epoch: 0.001), "epoch")


@fault("O3 R5 A2", "digits_conv friedman adding-recurrent-sgd")
def clipped_to_nothing(t: Training) -> None:
    """`clip_grad_norm_(parameters, 0.001)`."""
    t.cbs.append(GradientClip(1e-3))


# --- errors ---


@fault("X1 D5", "houses clusters waves")
def doubles_of_numpy(t: Training) -> None:
    """`torch.from_numpy` gives float64."""
    inputs(t, lambda x: x.double())


@fault("X1 D11 M13", "clusters digits_conv segmentation")
def classes_from_one(t: Training) -> None:
    """The classes of the file begin with 1."""
    targets(t, lambda y: y + 1)


@fault("X1 D11 L5", "shells-mlp-adam lstm waves")
def float_labels(t: Training) -> None:
    """All columns were read as float32, the labels too."""
    targets(t, lambda y: y.float())


@fault("X1 D11 L5", "moons rare multi_label")
def whole_labels_for_a_binary_loss(t: Training) -> None:
    """`BCEWithLogitsLoss` gets int64."""
    targets(t, lambda y: y.long())


@fault("X1 D11 L6", "digits-deep8-adam next_symbol")
def labels_as_a_column(t: Training) -> None:
    """`df[['label']].values`: (n, 1), for a loss that wants (n,)."""
    targets(t, lambda y: y[:, None])


@fault("X1 L6", "rare breast-linear-rmsprop moons")
def binary_targets_without_a_column(t: Training) -> None:
    """Output (n, 1), target (n,), and this loss refuses."""
    targets(t, lambda y: y[:, 0])


@fault("X1", "digits_conv waves")
def flattened_size_guessed(t: Training) -> None:
    """The linear layer is made for images of another size."""
    old = modules(t, nn.Linear)[0]
    replace(t, old, nn.Linear(4 * old.in_features, old.out_features))


@fault("X1", "deep_norm digits-deep8-adam")
def images_not_flattened(t: Training) -> None:
    """A linear layer gets (n, 1, 8, 8)."""
    everywhere(t, lambda x: x.view(len(x), 1, 8, 8))


@fault("X1 D6", "digits_conv segmentation")
def channels_last(t: Training) -> None:
    """The images come as height, width, channels."""
    everywhere(t, lambda x: x.permute(0, 2, 3, 1).contiguous())


@fault("X1", "digits_conv segmentation")
def three_channels_expected(t: Training) -> None:
    """A network for colours, and grey images."""
    old = modules(t, nn.Conv2d)[0]
    replace(t, old, nn.Conv2d(3, old.out_channels, 3, padding=1))


@fault("X1 D11", "next_symbol recommender tagger")
def embedding_one_too_small(t: Training) -> None:
    """`nn.Embedding(max(ids), ...)`, which lacks the last one."""
    old = modules(t, nn.Embedding)[0]
    replace(t, old, nn.Embedding(old.num_embeddings - 1, old.embedding_dim))


@fault("X1 D5", "lstm recommender")
def ids_as_floats(t: Training) -> None:
    """The numbers of words and users are floats in the file."""
    everywhere(t, lambda x: x.float())


class Stateful(LSTM):
    state: Any = None

    def forward(self, x: Tensor) -> Tensor:
        states, state = self.lstm(self.embed(x), self.state if self.training else None)
        if self.training:
            self.state = state
        return self.out(states[:, -1])


@fault("X1", "lstm")
def hidden_state_kept(t: Training) -> None:
    """The state goes from batch to batch, and nobody detaches it: backward a second time."""
    t.model = Stateful()


class FixedBatch(LSTM):
    def forward(self, x: Tensor) -> Tensor:
        start = torch.zeros(1, 32, 24), torch.zeros(1, 32, 24)
        return self.out(self.lstm(self.embed(x), start)[0][:, -1])


@fault("X1", "lstm")
def batch_size_written_into_the_state(t: Training) -> None:
    """The first state is made for 32 items, and the last batch has fewer."""
    t.model, t.drop_last = FixedBatch(), False


@fault("X1 L7", "houses clusters")
def loss_for_each_item(t: Training) -> None:
    """`reduction='none'`, and no mean after it."""
    t.loss = (nn.MSELoss if t.kind == "numbers" else nn.CrossEntropyLoss)(reduction="none")


@fault("X1 M4", "clusters tagger")
def loss_of_the_chosen_class(t: Training) -> None:
    """The loss is computed from `argmax`, which has no gradient."""
    t.loss = lambda out, y: F.mse_loss(out.argmax(1).float(), y.float())


@fault("X1 M4", "friedman autoencoder")
def everything_frozen(t: Training) -> None:
    """The loop that freezes the backbone ran over all parameters."""
    for p in t.model.parameters():
        p.requires_grad_(False)


@fault("X1 L3", "moons multi_label")
def bce_of_raw_scores(t: Training) -> None:
    """`BCELoss` without a sigmoid."""
    t.loss = nn.BCELoss()


@fault("X1 O6", "houses transformer")
def one_cycle_counted_in_epochs(t: Training) -> None:
    """`OneCycleLR(total_steps=epochs)`, stepped with each batch."""
    plan(t, lambda opt: OneCycleLR(opt, max_lr=t.lr, total_steps=t.epochs))
