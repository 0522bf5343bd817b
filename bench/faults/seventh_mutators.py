"""A seventh set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The brief was to write faults that are as frequent in practice as one can judge, in the shares in which beginners and practitioners make them:
those of forum threads and of the published taxonomies of faults in deep learning. So the common kinds (inputs that are not scaled, a wrong
loss or activation, a hopeless rate, too few epochs) come several times, in different code, and some faults are of the kind that ends with an
error message. Nothing was chosen to be new, hard or easy.

The codes are those of the table, D1 to A12: the first one is the closest, and the others are those that a fair judge would accept. A preparation
of the inputs that the program applies wherever it reads data also reaches the inputs of the test part, as in `everywhere`. Its targets are
never touched.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import mutators
import torch
from fault_tasks import LSTM, Tagger, Training
from fifth_mutators import cut, everywhere, inputs, last, made, modules, n_classes, replace, targets, whole
from fourth_mutators import Apply, Then
from lr_tasks import conv, mlp
from mutators import Change, Mutator
from sixth_mutators import before_last, bend, body, fill, in_file_order, rescore
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from cbnb import Callback, CancelStepException, CancelTrainException, EarlyStopping, Learner, Step, TorchScheduler

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def few(t: Training, n: int, valid: int = 0) -> None:
    """The program has only so many rows."""
    t.train = t.train[0][:n].clone(), t.train[1][:n].clone()
    if valid and t.valid:
        t.valid = t.valid[0][:valid].clone(), t.valid[1][:valid].clone()


def drawn(y: Tensor, share: float) -> Tensor:
    """Rows drawn at random."""
    return torch.rand(len(y)) < share


def end(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """The forward of the model ends with this."""
    t.model = Then(t.model, change)


def judged(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """The loss of the changed output. The model, and what is read off it, stay as they are."""
    old = t.loss
    t.loss = lambda out, y: old(change(out), y)


def one_hot(out: Tensor, y: Tensor) -> Tensor:
    return F.one_hot(y, out.shape[1]).float()


def numbered(t: Training) -> None:
    """One output instead of one for each class."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, 1))


def add(t: Training, **events: Callable[[Any], Any]) -> None:
    """What a line of the training loop does, as a callback of training."""

    class Line(Callback):
        order, run_valid, run_in = 5, False, ("fit",)

    t.cbs.append(Line(**events))


def scheduled(t: Training, make: Callable[..., Any], **more: Any) -> None:
    t.cbs.append(TorchScheduler(make, **more))


def without_norms(t: Training) -> None:
    """The network for images has no batch norms, which would hide the scale of the inputs. With inputs from 0 to 1 it learns, too."""
    if t.train[0].dim() == 4:
        t.model = conv()


# --- data: the scale of the inputs ---


@fault("D2 M8 L1", "autoencoder digits_conv")
def pixels_as_bytes(t: Training) -> None:
    """The pixels go into the network from 0 to 255, as the image files have them."""
    without_norms(t)
    everywhere(t, lambda x: (x * 255).round())


@fault("D4 D2", "houses")
def census_columns(t: Training) -> None:
    """The table goes in as it was downloaded: incomes in dollars, ages in years, numbers of people, degrees north and east."""
    everywhere(t, lambda x: x * torch.tensor([20000.0, 17, 2, 900, 3, 3]) + torch.tensor([34000.0, 30, 5, 500, 36, -120]))


@fault("D4 D2", "clusters friedman counts")
def sensors_in_own_units(t: Training) -> None:
    """Volts, pascals and degrees side by side: no column was scaled."""
    n = t.train[0].shape[1]
    everywhere(t, lambda x: x * 10 ** torch.linspace(-2, 4, n))


@fault("D4 D2", "shells-mlp-adam counts multi_label")
def year_column(t: Training) -> None:
    """One column is a year, another one an amount of money, and the rest is standardised."""

    def raw(x: Tensor) -> Tensor:
        x[:, 0], x[:, 1] = 2000 + 10 * x[:, 0], 50000 + 20000 * x[:, 1]
        return x

    everywhere(t, raw)


@fault("D2", "moons multi_label friedman")
def grams_for_kilos(t: Training) -> None:
    """The preparation forgets to divide: all inputs are a thousand times larger than usual."""
    everywhere(t, lambda x: x * 1000)


@fault("D2", "friedman moons clusters5-residual-adamw")
def kelvin(t: Training) -> None:
    """All inputs are temperatures in kelvin, near 300: they are not centred."""
    everywhere(t, lambda x: 293 + 10 * x)


@fault("D2 L1 M8", "autoencoder digits_conv")
def constants_of_imagenet_on_bytes(t: Training) -> None:
    """`Normalize(0.485, 0.229)` is applied to pixels from 0 to 255, without `ToTensor` before it."""
    without_norms(t)
    everywhere(t, lambda x: (x * 255 - 0.485) / 0.229)


@fault("D15 D2", "rare counts houses")
def scaled_in_training_only(t: Training) -> None:
    """`scaler.fit_transform` for the training table, and no `transform` for the validation table nor in service."""
    n = t.train[0].shape[1]
    scale, shift = torch.linspace(0.5, 40, n), torch.linspace(0, 100, n)
    assert t.valid
    t.valid = t.valid[0] * scale + shift, t.valid[1]
    t.test = t.test[0] * scale + shift, t.test[1]


# --- data: values ---


@fault("D1 R1", "houses friedman clusters")
def cells_missing(t: Training) -> None:
    """The table has empty cells, which pandas reads as nan, and nobody filled them."""
    inputs(t, lambda x: x.masked_fill(torch.rand_like(x) < 0.02, float("nan")))


@fault("D1 R1", "counts multi_label houses")
def log_of_zero(t: Training) -> None:
    """A skewed column is replaced by its logarithm, and some of its values are zero."""

    def log(x: Tensor) -> Tensor:
        x[:, 0] = (x[:, 0] + 1).clamp(min=0).log()
        return x

    everywhere(t, log)


@fault("D4 D2", "houses counts friedman")
def missing_as_minus_999(t: Training) -> None:
    """The data base writes -999 where a sensor failed, and so does the tensor."""
    everywhere(t, lambda x: x.masked_fill(torch.rand_like(x) < 0.05, -999.0))


@fault("D7 L1 R3", "houses friedman adding-recurrent-sgd")
def prices_in_dollars(t: Training) -> None:
    """The target is a price in dollars, some hundred thousands, and goes into the loss as it is."""
    targets(t, lambda y: 100000 * y + 200000)
    rescore(t, lambda out: (out - 200000) / 100000)


@fault("D5", "waves digits_conv")
def double_from_numpy(t: Training) -> None:
    """`torch.from_numpy` of a table makes doubles: expected Float but found Double."""
    everywhere(t, lambda x: x.double())


@fault("D6", "digits_conv segmentation")
def no_channel(t: Training) -> None:
    """Grey images without an axis for the channel: the convolution takes the batch for channels."""
    everywhere(t, lambda x: x[:, 0])


class Numbers(nn.Module):
    """The numbers of the words themselves, in place of an embedding."""

    def __init__(self, width: int):
        super().__init__()
        self.wide = nn.Linear(1, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x[..., None].float())


@fault("D5 A2 D2", "next_symbol tagger lstm")
def words_as_numbers(t: Training) -> None:
    """The numbers of the words in the vocabulary go into a linear layer, as if word 12 was twice word 6."""
    t.model.embed = Numbers(t.model.embed.embedding_dim)


@fault("D6 M2 D18", "digits_conv waves")
def matlab_axes(t: Training) -> None:
    """The `.mat` file has the images along the last axis, and the program reshapes them instead of permuting."""
    everywhere(t, lambda x: x.movedim(0, -1).contiguous().reshape(x.shape))


@fault("M19 A1 D19", "digits_conv waves transformer")
def fifty_photos(t: Training) -> None:
    """All the data there are: fifty examples that somebody labelled by hand."""
    few(t, 50)
    t.bs, t.epochs = 10, 20


# --- data: labels ---


@fault("D18 R3", "lstm digits_conv houses")
def shuffled_apart(t: Training) -> None:
    """`np.random.shuffle(X); np.random.shuffle(y)`."""
    targets(t, lambda y: y[torch.randperm(len(y))])


@fault("D18 R3", "digits_conv segmentation deep_norm")
def names_sorted_as_text(t: Training) -> None:
    """The images are listed with `sorted(os.listdir())`, so 10.png comes before 2.png, and the labels come from a table in order of the numbers."""
    x, y = whole(t)
    order = sorted(range(len(x)), key=str)
    cut(t, x[order], y)


@fault("D18 A7 A1", "digits_conv deep_norm clusters")
def labelled_by_crowd(t: Training) -> None:
    """The labels were bought: four of ten are wrong."""
    n = n_classes(t)
    targets(t, lambda y: torch.where(drawn(y, 0.4), torch.randint(0, n, y.shape), y))


@fault("D11", "lstm digits-deep8-adam shells-mlp-adam")
def labels_from_one(t: Training) -> None:
    """The classes are numbered from 1 in the file: target out of bounds."""
    targets(t, lambda y: y + 1)


@fault("D11 L5", "waves digits_conv")
def one_hot_for_cross_entropy(t: Training) -> None:
    """`to_categorical` as in Keras: the targets are rows of zeros and ones, of whole numbers, for `CrossEntropyLoss`."""
    n = n_classes(t)
    targets(t, lambda y: F.one_hot(y, n))


@fault("D11 L5", "clusters5-residual-adamw deep_norm")
def labels_as_floats(t: Training) -> None:
    """The labels come out of pandas as floats, and `CrossEntropyLoss` expects whole numbers: expected Long but found Float."""
    targets(t, lambda y: y.float())


@fault("D11 L5 L8", "rare breast-linear-rmsprop table-embed-sgd", "report")
def labels_one_and_two(t: Training) -> None:
    """A binary target that is coded 1 and 2, with `BCEWithLogitsLoss`."""
    targets(t, lambda y: y + 1)


@fault("D18 D15 D11", "transformer waves shells-mlp-adam")
def encoder_for_each_file(t: Training) -> None:
    """`LabelEncoder().fit_transform` in each script: training numbers the classes in another order than evaluation and service."""
    n = n_classes(t)
    t.train = t.train[0], (t.train[1] + 1) % n


@fault("D9 A5 A11", "clusters waves shells-mlp-adam")
def hardly_any_defects(t: Training) -> None:
    """Of one class there are ten examples, of the others hundreds; in service it is as frequent as they are."""

    def thinned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = (y != 1) | ((y == 1).cumsum(0) <= 10)
        return x[kept], y[kept]

    t.train = thinned(*t.train)


@fault("D9 A5", "clusters digits_conv digits-deep8-adam")
def mostly_one_class(t: Training) -> None:
    """Nine tenths of what was collected are of the class that is easy to collect."""

    def thinned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = (y == 0) | (torch.arange(len(y)) % 30 == 0)
        return x[kept], y[kept]

    t.train = thinned(*t.train)
    t.epochs *= 3


@fault("D14 A4", "clusters houses friedman")
def column_from_the_future(t: Training) -> None:
    """A column is filled in after the outcome is known, so it gives the target; in service it is still empty."""

    def with_target(x: Tensor, y: Tensor) -> Tensor:
        x = x.clone()
        x[:, 0] = y.reshape(len(y)).float()
        return x

    assert t.valid
    t.train, t.valid = (with_target(*t.train), t.train[1]), (with_target(*t.valid), t.valid[1])
    t.test[0][:, 0] = 0


@fault("D14 M3 A4", "next_symbol")
def target_not_shifted(t: Training) -> None:
    """The language model gets as its target the word that it has just read: nobody shifted the labels by one."""
    t.train = t.train[0], t.train[0][:, -1].clone()


# --- data: order, parts, augmentation ---


@fault("D10 R4", "lstm digits_conv waves")
def folder_by_folder(t: Training) -> None:
    """The loader reads one class folder after the other: `shuffle=False`."""
    order = t.train[1].argsort(stable=True)
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D10 R4", "houses friedman rare")
def sorted_table(t: Training) -> None:
    """The table is sorted by the target, and the loader does not shuffle."""
    order = t.train[1].flatten().argsort()
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D15 D9 D10", "digits_conv deep_norm")
def last_fifth_for_validation(t: Training) -> None:
    """The data are sorted by class, and the last fifth of the file is kept for validation: training never sees the last classes."""
    in_file_order(t, whole(t)[1].argsort(stable=True))


@fault("D15", "digits_conv digits-deep8-adam waves")
def other_scanner(t: Training) -> None:
    """Training has white digits on black, and the pictures of validation and of service are black on white."""
    change = (lambda x: 1 - x) if t.train[0].shape[-1] != 32 else (lambda x: -2 * x)
    assert t.valid
    t.valid, t.test = (change(t.valid[0]), t.valid[1]), (change(t.test[0]), t.test[1])


@fault("D12 D20 A1", "clusters clusters5-residual-adamw shells-mlp-adam", "report")
def validated_on_training_rows(t: Training) -> None:
    """The validation loader is made from the training set, by a copied line."""
    few(t, 200)
    t.valid, t.epochs = t.train, 40


@fault("D12 D20 D9", "shells-mlp-adam clusters", "report")
def oversampled_before_split(t: Training) -> None:
    """The rows of the rarest class are repeated until it is as frequent as the others, and then the table is split."""
    x, y = (a[:300] for a in whole(t))
    rows = (y == 1).nonzero().flatten()[:8]
    chosen = torch.cat([(y != 1).nonzero().flatten(), rows.repeat(10)])
    chosen = chosen[torch.randperm(len(chosen))]
    cut(t, x[chosen], y[chosen])
    t.epochs = 40


@fault("D12 A4", "clusters clusters5-residual-adamw shells-mlp-adam", "report")
def model_kept_over_folds(t: Training) -> None:
    """Cross-validation with one model that is never made anew: in the last fold it has trained on what it is validated with."""
    few(t, 200, 60)
    assert t.valid
    x, y = torch.cat([t.train[0], t.valid[0]]), torch.cat([t.train[1], t.valid[1]])

    def earlier_folds(learn: Learner) -> None:
        opt = t.opt(t.model.parameters(), lr=t.lr)
        for _ in range(30):
            for rows in torch.randperm(len(x)).split(t.bs):
                opt.zero_grad()
                t.loss(t.model(x[rows]), y[rows]).backward()
                opt.step()

    t.ready.append(earlier_folds)


def turned(x: Tensor) -> Tensor:
    """An image, turned by quarters and mirrored at random."""
    x = torch.rot90(x, int(torch.randint(4, ())), (-2, -1))
    return x.flip(-1) if torch.rand(()) < 0.5 else x


@fault("D17", "digits_conv segmentation")
def flips_of_digits(t: Training) -> None:
    """`RandomHorizontalFlip`, `RandomVerticalFlip` and `RandomRotation(180)`, copied from a tutorial about satellites; labels stay as they are."""
    t.augment = turned


@fault("D16", "digits_conv deep_norm digits-deep8-adam", "report")
def one_transform_for_both(t: Training) -> None:
    """The same `transform`, with random erasing and noise, is given to the training and to the validation set."""

    def change(x: Tensor) -> Tensor:
        x = x + 0.4 * torch.randn_like(x)
        return torch.where(torch.rand_like(x) < 0.3, 0.0, x)

    t.augment = t.valid_augment = change


# --- model: activations and outputs ---


@fault("M11 A2", "moons shells-mlp-adam multi_label")
def no_activations(t: Training) -> None:
    """A stack of linear layers, and no activation between them."""
    bend(t, lambda old: nn.Identity())


@fault("M12 L1", "shells-mlp-adam clusters deep_norm")
def relu_on_the_logits(t: Training) -> None:
    """The last layer is followed by a ReLU, like all the others."""
    end(t, F.relu)


@fault("M12 A2", "friedman houses")
def relu_on_a_standardised_target(t: Training) -> None:
    """The last layer of a regression is followed by a ReLU, and half of the targets are negative."""
    if t.train[1].min() >= 0:
        mean, std = t.train[1].mean(), t.train[1].std()
        targets(t, lambda y: (y - mean) / std)
        rescore(t, lambda out: out * std + mean)
    end(t, F.relu)


@fault("M12", "houses adding-recurrent-sgd recommender")
def sigmoid_on_a_regression(t: Training) -> None:
    """The regression ends with a sigmoid, and the targets go up to 5."""
    end(t, torch.sigmoid)


@fault("M12", "houses friedman recommender")
def tanh_on_a_regression(t: Training) -> None:
    """The regression ends with a tanh, and the targets are not between -1 and 1."""
    end(t, torch.tanh)


@fault("M12 L2", "clusters shells-mlp-adam waves")
def sigmoid_before_cross_entropy(t: Training) -> None:
    """The classifier ends with a sigmoid, and `CrossEntropyLoss` takes its outputs for logits."""
    end(t, torch.sigmoid)


@fault("M16 M10", "digits-deep8-adam")
def sigmoids_in_a_deep_net(t: Training) -> None:
    """All eight hidden layers have a sigmoid."""
    bend(t, lambda old: nn.Sigmoid())


@fault("M10 M16 A2", "houses clusters multi_label")
def softmax_between_layers(t: Training) -> None:
    """Each hidden layer is followed by `nn.Softmax(dim=1)`, as the last one is in the tutorial."""
    bend(t, lambda old: nn.Softmax(dim=1))


@fault("M16 M10", "clusters waves friedman")
def sigmoid_for_relu(t: Training) -> None:
    """The hidden layers have sigmoids, as in the old textbook, and the rest of the plan is meant for ReLU."""
    bend(t, lambda old: nn.Sigmoid())


# --- model: layers and sizes ---


@fault("M19 A2", "clusters5-residual-adamw shells-mlp-adam deep_norm")
def two_hidden_units(t: Training) -> None:
    """A layer in the middle has two units."""
    before_last(t, lambda n: nn.Sequential(nn.Linear(n, 2), nn.ReLU(), nn.Linear(2, n), nn.ReLU()))


@fault("M16 R3", "moons clusters shells-mlp-adam")
def twenty_plain_layers(t: Training) -> None:
    """More layers should be better: twenty, without norms and skips."""
    n, out = t.train[0].shape[1], last(t).out_features
    t.model = mlp(n, *[32] * 20, out)


@fault("M13", "tagger digits_conv shells-mlp-adam")
def an_output_short(t: Training) -> None:
    """The last layer has an output less than there are classes."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, old.out_features - 1))


@fault("M2 M20 M13", "digits_conv waves")
def flattened_to_wrong_size(t: Training) -> None:
    """`x.view(-1, 12)` where the features are more than 12: expected input batch size to match target batch size."""
    old = last(t) if t.train[0].dim() == 4 else modules(t, nn.Linear)[0]
    at = [m is old for m in t.model].index(True)
    t.model = nn.Sequential(*t.model[: at - 1], Apply(lambda x: x.reshape(-1, 12)), nn.Linear(12, old.out_features), *t.model[at + 1 :])


@fault("M13 M20", "clusters digits_conv lstm")
def features_miscounted(t: Training) -> None:
    """The last linear layer expects another number of features than come: mat1 and mat2 shapes cannot be multiplied."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features * 2, old.out_features))


@fault("M5 M11 A2", "moons shells-mlp-adam counts")
def hidden_layer_not_called(t: Training) -> None:
    """`forward` overwrites the result: the hidden layers are defined, but only the last layer reads the input."""

    class Net(nn.Module):
        def __init__(self, hidden: nn.Module, n: int, out: int):
            super().__init__()
            self.hidden, self.out = hidden, nn.Linear(n, out)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x)

    t.model = Net(body(t), t.train[0].shape[1], last(t).out_features)


class Listed(nn.Module):
    """Layers in a list of Python."""

    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@fault("O1 M4 M5 R7", "clusters digits-deep8-adam friedman")
def layers_in_a_list(t: Training) -> None:
    """The hidden layers are in a list of Python instead of `nn.ModuleList`, so the optimizer does not know them."""
    t.model = nn.Sequential(Listed(list(body(t))), last(t))


@fault("M2", "lstm tagger")
def no_batch_first(t: Training) -> None:
    """`batch_first=True` is missing: the recurrent layer takes the batch for time."""
    if isinstance(t.model, LSTM):
        t.model.lstm = nn.LSTM(12, 24)
    else:
        t.model.gru = nn.GRU(16, 20, bidirectional=True)


@fault("M2", "tagger segmentation")
def classes_by_view(t: Training) -> None:
    """`CrossEntropyLoss` wants the classes in dimension 1, and the program gets there with `view` instead of `permute`."""
    if isinstance(t.model, Tagger):
        end(t, lambda out: out.transpose(1, 2).reshape(out.shape))
    else:
        end(t, lambda out: out.permute(0, 2, 3, 1).reshape(out.shape))


# --- model: initialisation, dropout, norms, gradients ---


@fault("M7", "houses clusters digits-deep8-adam")
def all_zeros(t: Training) -> None:
    """`nn.init.zeros_` for all weights."""
    fill(t, nn.init.zeros_)


@fault("M7 M8", "shells-mlp-adam houses digits-deep8-adam")
def all_ones(t: Training) -> None:
    """`nn.init.constant_(m.weight, 1)` for all weights."""
    fill(t, nn.init.ones_)


@fault("M8 L1 M17", "digits-deep8-adam autoencoder counts")
def normal_of_one(t: Training) -> None:
    """`nn.init.normal_` with its default deviation of 1."""
    fill(t, nn.init.normal_)


@fault("M14", "clusters shells-mlp-adam multi_label")
def dropout_as_share_to_keep(t: Training) -> None:
    """`nn.Dropout(0.9)`, as TensorFlow 1 counted what is kept."""
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.9)))


@fault("M14 M18", "friedman clusters houses")
def dropout_on_the_outputs(t: Training) -> None:
    """The last layer is followed by dropout, as all the others are."""
    t.model = nn.Sequential(t.model, nn.Dropout(0.5))


@fault("M14 M18", "friedman autoencoder")
def dropout_in_a_small_regression(t: Training) -> None:
    """Dropout of one half after each of the few layers of a regression."""
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.5)))


@fault("M18 T5 M14", "clusters digits-deep8-adam counts")
def functional_dropout(t: Training) -> None:
    """`F.dropout(x, 0.5)` without `training=self.training`: the model drops units in evaluation, too."""
    bend(t, lambda old: Then(old, lambda x: F.dropout(x, 0.5)))


@fault("M4 R7", "digits_conv waves deep_norm")
def body_frozen_without_pretraining(t: Training) -> None:
    """The layers below the head are frozen as in a tutorial of transfer learning, but no pretrained weights were loaded."""
    t.model.requires_grad_(False)
    last(t).requires_grad_(True)


@fault("M4 R7", "table-embed-sgd recommender")
def embedding_from_pretrained(t: Training) -> None:
    """`nn.Embedding.from_pretrained(vectors)` freezes; the words were not found in the file, so the vectors are random."""
    for table in modules(t, nn.Embedding):
        table.weight.requires_grad_(False)


@fault("M4 M5 R7", "autoencoder deep_norm friedman")
def detached_in_the_middle(t: Training) -> None:
    """`.detach()`, which once silenced an error, cuts the last layer off from the others."""
    before_last(t, lambda n: Apply(torch.detach))


@fault("M4", "transformer digits_conv waves")
def loss_of_the_argmax(t: Training) -> None:
    """The loss compares `outputs.argmax(1)` with the labels: element 0 of tensors does not require grad."""
    t.loss = lambda out, y: F.mse_loss(out.argmax(1).float(), y.float())


# --- loss and metric ---


@fault("L2", "digits_conv shells-mlp-adam")
def softmax_before_cross_entropy(t: Training) -> None:
    """The model ends with softmax, and `CrossEntropyLoss` applies it again."""
    end(t, lambda out: out.softmax(1))


@fault("L2", "digits-deep8-adam shells-mlp-adam clusters")
def softmax_in_the_head(t: Training) -> None:
    """`self.softmax = nn.Softmax(dim=1)` as in Keras, with `nn.CrossEntropyLoss`."""
    t.model = nn.Sequential(t.model, nn.Softmax(dim=1))


@fault("L2", "moons rare multi_label")
def sigmoid_before_bce_with_logits(t: Training) -> None:
    """The model ends with a sigmoid, and the loss is `BCEWithLogitsLoss`."""
    end(t, torch.sigmoid)


@fault("M2 L2", "deep_norm clusters digits-deep8-adam")
def softmax_over_the_batch(t: Training) -> None:
    """`F.softmax(x, dim=0)`: over the items of the batch instead of the classes."""
    end(t, lambda out: out.softmax(0))


@fault("L3 L8", "lstm digits_conv tagger")
def nll_of_logits(t: Training) -> None:
    """`nn.NLLLoss` on the bare outputs of the last layer; the loss falls without end."""
    t.loss = nn.NLLLoss()


@fault("L3 L8", "clusters digits-deep8-adam shells-mlp-adam")
def nll_of_probabilities(t: Training) -> None:
    """`nn.NLLLoss` after `softmax`, where it wants `log_softmax`."""
    end(t, lambda out: out.softmax(1))
    t.loss = nn.NLLLoss()


@fault("L3 L2 M12", "moons rare breast-linear-rmsprop")
def bce_without_sigmoid(t: Training) -> None:
    """`nn.BCELoss` on the bare output: all elements of input should be between 0 and 1."""
    t.loss = nn.BCELoss()


@fault("L4 L5 M13", "moons rare breast-linear-rmsprop")
def cross_entropy_of_one_output(t: Training) -> None:
    """A binary classifier with one output and `CrossEntropyLoss`: the loss is 0 from the beginning."""
    t.loss = nn.CrossEntropyLoss()


@fault("L4", "moons rare table-embed-sgd")
def softmax_of_one_output(t: Training) -> None:
    """A binary classifier with one output that ends with softmax: it is always 1."""
    end(t, lambda out: out.softmax(1))
    t.loss = nn.BCELoss()


@fault("L5 M13", "clusters digits-deep8-adam shells-mlp-adam")
def regression_on_class_numbers(t: Training) -> None:
    """One output and `MSELoss` against the number of the class, which is then rounded."""
    numbered(t)
    t.loss = lambda out, y: F.mse_loss(out[:, 0], y.float())
    t.metric = t.honest = lambda out, y: (out[:, 0].round() == y).float().mean()


@fault("L5 L2", "clusters digits_conv shells-mlp-adam")
def squared_error_of_softmax(t: Training) -> None:
    """A classifier with softmax and `MSELoss` against rows of zeros and ones."""
    end(t, lambda out: out.softmax(1))
    t.loss = lambda out, y: F.mse_loss(out, one_hot(out, y))


@fault("L5 L2", "multi_label")
def cross_entropy_for_several_labels(t: Training) -> None:
    """Several labels may hold together, and the loss is `CrossEntropyLoss`, for one of them."""
    t.loss = nn.CrossEntropyLoss()


@fault("L6", "houses friedman recommender")
def targets_without_their_column(t: Training) -> None:
    """The outputs are (n, 1) and the targets (n,): the loss compares each with each."""
    targets(t, lambda y: y[:, 0])


@fault("L6", "adding-recurrent-sgd houses")
def outputs_squeezed(t: Training) -> None:
    """`model(x).squeeze()` for the loss, against targets of the shape (n, 1)."""
    judged(t, torch.squeeze)


@fault("L7 O3", "clusters friedman adding-recurrent-sgd")
def sum_for_mean(t: Training) -> None:
    """`reduction="sum"`: the loss and its gradients are as many times larger as the batch has items."""
    old = t.loss
    t.loss = type(old)(reduction="sum")  # type: ignore[call-arg]


@fault("L8", "deep_norm houses")
def minus_forgotten(t: Training) -> None:
    """A loss of own making, the mean log likelihood, without the minus in front."""
    old = t.loss
    t.loss = lambda out, y: -old(out, y)


@fault("L12 O5", "clusters moons waves")
def penalty_too_strong(t: Training) -> None:
    """The sum of all squared weights is added to the loss, with a factor of 0.1."""
    old, model = t.loss, t.model
    t.loss = lambda out, y: old(out, y) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())


@fault("L11", "segmentation deep_norm waves", "report")
def hits_by_batches(t: Training) -> None:
    """The accuracy is the number of hits divided by the number of batches."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().sum()


@fault("L11", "breast-linear-rmsprop table-embed-sgd", "report")
def argmax_of_one_output(t: Training) -> None:
    """The accuracy of a binary classifier with one output takes `argmax(1)`, which is always 0."""
    t.metric = lambda out, y: (out.argmax(1) == y[:, 0]).float().mean()


@fault("L6 L11 L10", "breast-linear-rmsprop table-embed-sgd rare", "report")
def accuracy_of_each_with_each(t: Training) -> None:
    """The accuracy compares predictions of the shape (n, 1) with targets of the shape (n,)."""
    t.metric = lambda out, y: ((out > 0).float() == y[:, 0]).float().mean()


# --- optimizer and plan ---


@fault("O3 R2", "clusters digits_conv friedman")
def rate_of_one(t: Training) -> None:
    """`SGD(lr=1.0, momentum=0.9)`."""
    t.lr = 1.0


@fault("O3 R2 R4", "digits-deep8-adam autoencoder deep_norm")
def rate_of_sgd_for_adam(t: Training) -> None:
    """`Adam(lr=0.1)`: the optimizer was exchanged, and the rate of SGD stayed."""
    t.lr = 0.1


@fault("O3 R2 R4", "adding-recurrent-sgd moons table-embed-sgd")
def rate_with_a_digit_lost(t: Training) -> None:
    """The decimal point of the rate is two places off."""
    t.lr *= 100


@fault("O3 O7 A3", "transformer lstm shells-mlp-adam")
def rate_of_fine_tuning(t: Training) -> None:
    """`lr=2e-5`, as everybody fine-tunes with, for a network that begins from scratch."""
    t.lr = 2e-5


@fault("O3 O7 A3", "clusters digits_conv adding-recurrent-sgd")
def careful_rate(t: Training) -> None:
    """`SGD(lr=1e-5)`, because a larger one once gave nan."""
    t.lr = 1e-5


@fault("O3 A3 O7", "houses multi_label digits-deep8-adam")
def default_of_adam_for_sgd(t: Training) -> None:
    """`Adam` became `SGD`, without momentum, and the rate of 0.001 stayed."""
    t.opt, t.lr = torch.optim.SGD, 0.001


@fault("O3 A3 O7", "transformer houses waves")
def adadelta_with_a_rate_of_adam(t: Training) -> None:
    """`Adadelta(lr=0.001)`, whose default is 1."""
    t.opt, t.lr = torch.optim.Adadelta, 0.001


@fault("O5 L12", "digits-deep8-adam autoencoder shells-mlp-adam")
def decay_of_a_tenth(t: Training) -> None:
    """`Adam(weight_decay=0.1)`, a value that is usual for AdamW."""
    t.opt = partial(torch.optim.Adam, weight_decay=0.1)


@fault("O1 R7 M4", "digits_conv waves digits-deep8-adam")
def only_the_head_in_the_optimizer(t: Training) -> None:
    """`optimizer = Adam(model.fc.parameters())`, left from an experiment with transfer learning."""
    made(t, last(t).parameters())


@fault("O2 O1 R7", "clusters digits_conv")
def head_replaced_too_late(t: Training) -> None:
    """The last layer is replaced after the optimizer was made, which goes on training the old one."""
    made(t, t.model.parameters())
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, old.out_features))


@fault("O6 A3", "clusters digits_conv friedman")
def stepped_in_each_batch(t: Training) -> None:
    """`StepLR(step_size=10, gamma=0.1)` is meant for epochs, and steps in each batch."""
    scheduled(t, lambda opt: StepLR(opt, 10, 0.1))


@fault("O6 A3", "lstm transformer waves")
def decayed_in_each_batch(t: Training) -> None:
    """`ExponentialLR(0.9)` steps inside the loop over the batches."""
    scheduled(t, lambda opt: ExponentialLR(opt, 0.9))


@fault("O6", "tagger deep_norm")
def one_cycle_of_epochs(t: Training) -> None:
    """`OneCycleLR(total_steps=epochs)` steps in each batch: tried to step more often than total_steps."""
    scheduled(t, lambda opt: OneCycleLR(opt, t.lr, total_steps=t.epochs))


@fault("O6 A3", "transformer digits-deep8-adam recommender")
def warm_up_of_a_long_run(t: Training) -> None:
    """The rate rises over 10000 updates, as in the paper, and the run ends after some hundred."""
    scheduled(t, lambda opt: LambdaLR(opt, lambda i: (i + 1) / 10000))


@fault("O6 A3", "friedman houses adding-recurrent-sgd")
def plateau_of_rising_loss(t: Training) -> None:
    """`ReduceLROnPlateau(mode="max", patience=0)` watches the loss, which falls: the rate is cut in each epoch."""
    scheduled(t, lambda opt: ReduceLROnPlateau(opt, mode="max", patience=0), monitor="valid_loss")


@fault("O8 O7 A3", "transformer shells-mlp-adam digits_conv")
def whole_set_as_one_batch(t: Training) -> None:
    """No loader: `model(X_train)` once in each epoch."""
    t.bs, t.drop_last = len(t.train[0]), False


@fault("O8 O7 A3", "houses waves recommender")
def largest_batch_that_fits(t: Training) -> None:
    """The batch is as large as the memory allows, and the epochs and the rate stayed."""
    t.bs = len(t.train[0]) // 2


@fault("O8 R4 O3", "clusters digits_conv")
def batches_of_one(t: Training) -> None:
    """Batch size 1, with the rate of batches of 32."""
    t.bs = 1


@fault("D19 O8", "deep_norm table-embed-sgd")
def last_batch_of_one(t: Training) -> None:
    """The number of rows leaves a last batch with one item, and there is a batch norm: expected more than 1 value per channel."""
    few(t, len(t.train[0]) // t.bs * t.bs - t.bs + 1)
    t.drop_last = False


@fault("O9 R1 O4", "clusters autoencoder houses")
def half_precision_throughout(t: Training) -> None:
    """`model.half()` and `x.half()`, to be faster: no copy of the weights in full precision, no scaling."""
    t.model = nn.Sequential(Apply(Tensor.half), t.model.half(), Apply(Tensor.float))
    t.opt = torch.optim.Adam


# --- the running fit ---


@fault("R2 R4 O3 R3 R5 R9", "clusters houses digits_conv")
def no_zero_grad(t: Training) -> None:
    """`optimizer.zero_grad()` is missing: each step uses the sum of all gradients so far."""

    class NoZero(Step):
        def zero_grad(self, learn: Any) -> None:
            pass

    def act(learn: Learner) -> None:
        learn.train_step = NoZero()

    t.ready.append(act)


@fault("R7 R3 M4 M6", "lstm houses digits_conv")
def zero_grad_after_backward(t: Training) -> None:
    """`loss.backward(); optimizer.zero_grad(); optimizer.step()`."""
    add(t, before_step=lambda cb: cb.learn.opt.zero_grad())


def skip_step(cb: Any) -> None:
    raise CancelStepException


@fault("R7 R3 O7", "segmentation houses waves")
def no_optimizer_step(t: Training) -> None:
    """The loop calls `loss.backward()`, and nobody calls `optimizer.step()`."""
    add(t, before_step=skip_step)


@fault("O7 R3 R7 A3", "tagger houses digits_conv")
def step_outside_the_loop(t: Training) -> None:
    """`optimizer.step()` has the wrong indentation: once in each epoch, after the last batch."""

    def before_step(cb: Any) -> None:
        if cb.learn.iter < cb.learn.n_iter - 1:
            raise CancelStepException

    add(t, before_step=before_step)


@fault("R13 M18", "deep_norm table-embed-sgd")
def evaluation_mode_in_training(t: Training) -> None:
    """`model.eval()` before the loop, and never `model.train()`: the batch norms use statistics that nobody measured."""
    add(t, before_train=lambda cb: cb.learn.model.eval())


@fault("R13 M18", "clusters digits-deep8-adam shells-mlp-adam", "report")
def validated_in_training_mode(t: Training) -> None:
    """No `model.eval()` before the validation: dropout is on."""
    before_last(t, lambda n: nn.Dropout(0.6))

    class InTraining(Callback):
        order = 5

        def before_validate(self) -> None:
            self.learn.model.train()

    t.cbs.append(InTraining())


@fault("D20 A1 M19", "lstm digits_conv waves")
def always_the_first_batch(t: Training) -> None:
    """`next(iter(loader))` inside the loop, without shuffling: each step sees the same batch."""
    n = len(t.train[0]) // t.bs
    t.train = t.train[0][: t.bs].repeat(n, *[1] * (t.train[0].dim() - 1)), t.train[1][: t.bs].repeat(n)
    t.shuffle = False


@fault("O7 A3", "houses transformer lstm")
def break_left_from_debugging(t: Training) -> None:
    """`if i == 3: break`, from the day when the loop was written."""

    def before_batch(cb: Any) -> None:
        if cb.learn.iter == 3:
            raise CancelTrainException

    add(t, before_batch=before_batch)


@fault("A3 O7", "clusters5-residual-adamw clusters shells-mlp-adam")
def stops_at_once(t: Training) -> None:
    """Early stopping watches the accuracy with `mode="min"`: it stops as soon as the accuracy rises."""
    t.cbs.append(EarlyStopping("accuracy", comp="min", patience=1))


# --- the finished fit ---


@fault("O7 A3", "digits_conv lstm houses")
def one_epoch(t: Training) -> None:
    """`epochs = 1`, to see whether it runs."""
    t.epochs = 1


@fault("A3 O7", "autoencoder friedman adding-recurrent-sgd")
def two_epochs(t: Training) -> None:
    """Two epochs, as the notebook is slow."""
    t.epochs = 2


@fault("A1", "clusters shells-mlp-adam friedman")
def hundred_epochs_on_small_data(t: Training) -> None:
    """A hundred epochs on two hundred rows, and nobody looks at the validation loss."""
    few(t, 200)
    t.epochs = 100


@fault("A1 M19 A9", "rare clusters counts")
def wide_and_long(t: Training) -> None:
    """A network many times too wide for three hundred rows, trained until the training loss is zero."""
    few(t, 300)
    t.model, t.epochs = mlp(t.train[0].shape[1], 256, 256, last(t).out_features), 60


@fault("A9 A1", "counts houses")
def last_epoch_saved(t: Training) -> None:
    """Training goes on long after the best validation loss, and the weights of the last epoch are those that are saved."""
    few(t, 250)
    t.model, t.epochs = mlp(t.train[0].shape[1], 128, 128, last(t).out_features), 80


@fault("A9 A3", "digits_conv lstm friedman")
def first_checkpoint_loaded(t: Training) -> None:
    """The test loads `checkpoint_0.pt`: the program wrote a file in each epoch, and takes the first one of the folder."""

    class Files(Callback):
        run_in = ("fit",)

        def after_epoch(self) -> None:
            if self.learn.epoch == 0:
                self.first = copy.deepcopy(self.learn.model.state_dict())

        def after_fit(self) -> None:
            self.learn.model.load_state_dict(self.first)

    t.cbs.append(Files())
