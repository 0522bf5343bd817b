"""A tenth set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The brief was to write faults that are as frequent in practice as one can judge, in the shares in which beginners and practitioners make them:
those of forum threads and of the published taxonomies of faults in deep learning. So the common kinds (inputs that are not scaled, a wrong
loss or activation, a hopeless rate, too few epochs, gradients that are not zeroed, frozen layers, labels that do not belong to their inputs,
mistakes in the evaluation, leaks) come several times, in different code. About one fault in eight ends with an error message; its code is X1,
as the message is the finding. Nothing was chosen to be new, hard or easy.

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
from fourth_mutators import Apply
from lr_tasks import mlp
from mutators import Change, Mutator
from seventh_mutators import drawn, end, few, judged, numbered
from sixth_mutators import before_last, bend, body, fill, in_file_order, rescore
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR, StepLR

from cbnb import Callback, CancelTrainException, EarlyStopping, Step, TorchScheduler

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def line(t: Training, **events: Callable[[Any], Any]) -> None:
    """A line in the loop of training."""
    t.cbs.append(Trained(**events))


def loop(t: Training, **methods: Callable[..., Any]) -> None:
    """The program writes these parts of the loop itself."""
    own = type("Own", (Step,), methods)
    t.ready.append(lambda learn: setattr(learn, "train_step", own()))


def plan(t: Training, make: Callable[..., Any], every: str = "update") -> None:
    t.cbs.append(TorchScheduler(make, every=every))


def measured(t: Training, metric: Callable[[Tensor, Tensor], Tensor] | None) -> None:
    """The metric belongs to the form of the output."""
    t.metric = t.honest = metric


def rounded(out: Tensor, y: Tensor) -> Tensor:
    return (out.reshape(y.shape).round() == y).float().mean()


def column(t: Training, at: int | slice | Sequence[int], change: Callable[[Tensor], Tensor]) -> None:
    """Change columns of the inputs, wherever the program reads data."""

    def changed(x: Tensor) -> Tensor:
        x[:, at] = change(x[:, at])
        return x

    everywhere(t, changed)


def service(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """What the program does, or leaves out, in validation and in service only."""
    if t.valid:
        t.valid = change(t.valid[0].clone()), t.valid[1]
    t.test = change(t.test[0].clone()), t.test[1]


def kept(t: Training, rows: Callable[[Tensor], Tensor]) -> None:
    """The program has only these rows, by their targets."""

    def of(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        chosen = rows(part[1].flatten())
        return part[0][chosen].clone(), part[1][chosen].clone()

    t.train, t.valid = of(t.train), of(t.valid) if t.valid else None


def wrapped(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """The forward of the model begins with this."""
    t.model = nn.Sequential(Apply(change), t.model)


class Untracked(nn.Module):
    """Layers under `torch.no_grad()`."""

    def __init__(self, layers: nn.Module):
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.layers(x)


class Listed(nn.Module):
    """Layers in a list of Python."""

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__()
        self.layers, self.out = list(layers[:-1]), layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


# --- inputs that are not scaled ---


@fault("D2 M8 L1", "autoencoder")
def pixels_up_to_255(t: Training) -> None:
    """`torch.from_numpy(image).float()`: nobody divides by 255."""
    everywhere(t, lambda x: x * 255)


@fault("D2", "houses friedman counts")
def features_in_their_units(t: Training) -> None:
    """The table goes into the network as it stands in the file, in euros and square metres."""
    everywhere(t, lambda x: 800 * x + 3000)


@fault("D2", "clusters5-residual-adamw shells-mlp-adam")
def scaler_made_but_not_used(t: Training) -> None:
    """`scaler.fit(x)`, and then the raw `x` goes into the dataset."""
    everywhere(t, lambda x: 60 * x + 250)


@fault("D2", "multi_label breast-linear-rmsprop clusters")
def percentages(t: Training) -> None:
    """Shares are given as 0 to 100, and used so."""
    everywhere(t, lambda x: 50 + 18 * x)


@fault("D2 M8", "moons shells-mlp-adam waves")
def tiny_readings(t: Training) -> None:
    """A sensor that gives volts, of which only the last digits move."""
    everywhere(t, lambda x: x * 1e-4)


@fault("D2 M8", "waves adding-recurrent-sgd moons")
def raw_amplitudes(t: Training) -> None:
    """The samples of 16 bits as numbers up to 32767."""
    everywhere(t, lambda x: x * 9000)


@fault("D15 D2 M18", "digits-deep8-adam digits_conv deep_norm")
def bytes_shifted_as_floats(t: Training) -> None:
    """Mean 0.5 and deviation 0.5, made for 0 to 1, on training images of 0 to 255; validation goes through `ToTensor` before."""
    t.train = (255 * t.train[0] - 0.5) / 0.5, t.train[1]
    service(t, lambda x: (x - 0.5) / 0.5)


@fault("D4 D2", "houses friedman rare")
def time_as_seconds(t: Training) -> None:
    """One column is a date, as seconds since 1970."""
    column(t, 1, lambda x: 1.7e9 + 3e7 * x)


@fault("D4 D2", "clusters5-residual-adamw counts multi_label")
def columns_of_all_scales(t: Training) -> None:
    """Ages, incomes and ratios side by side, from 0.001 to 10000."""
    everywhere(t, lambda x: x * 10.0 ** torch.linspace(-3, 4, x.shape[1]))


@fault("D4 D2", "friedman breast-linear-rmsprop clusters")
def divided_by_the_maximum_of_all(t: Training) -> None:
    """`x / x.max()` over the whole table: one column of large numbers presses all others to zero."""
    column(t, 0, lambda x: 5000 * x)
    most = t.train[0].abs().max()
    everywhere(t, lambda x: x / most)


# --- other faults of the data ---


@fault("D1 R1", "houses rare table-embed-sgd")
def empty_cells(t: Training) -> None:
    """`pandas.read_csv` makes nan of empty cells, and nobody fills them."""

    def emptied(x: Tensor) -> Tensor:
        x[torch.rand(len(x)) < 0.03, -1] = float("nan")
        return x

    everywhere(t, emptied)


@fault("D1 R1", "digits-deep8-adam waves breast-linear-rmsprop")
def logarithm_of_zero(t: Training) -> None:
    """`np.log(x)` of amounts, some of which are zero."""
    everywhere(t, lambda x: x.clamp(min=0).log())


@fault("D1 R1", "friedman counts adding-recurrent-sgd recommender")
def targets_missing(t: Training) -> None:
    """A few targets are nan, since the join found no row."""

    def missing(y: Tensor) -> Tensor:
        y[torch.randperm(len(y))[: len(y) // 40]] = float("nan")
        return y

    targets(t, missing)


@fault("D3 A2", "clusters friedman digits_conv")
def features_lost_in_a_join(t: Training) -> None:
    """The keys of two tables differ in type, so that the columns of the second are filled with zeros."""
    everywhere(t, lambda x: torch.cat([x[..., : x.shape[-1] // 4], 0 * x[..., x.shape[-1] // 4 :]], -1))


@fault("D7 R1 A2 L1", "houses friedman recommender")
def prices_in_cents(t: Training) -> None:
    """The target goes into the mean squared error in its own unit."""
    targets(t, lambda y: 20000 * y)
    rescore(t, lambda out: out / 20000)


@fault("D7 R1 R2 L1", "adding-recurrent-sgd houses")
def target_of_thousands(t: Training) -> None:
    """A target around 3000 with a deviation of hundreds, neither centred nor scaled."""
    targets(t, lambda y: 3000 + 400 * y)
    rescore(t, lambda out: (out - 3000) / 400)


@fault("D8 A5", "rare breast-linear-rmsprop moons table-embed-sgd")
def label_compared_with_wrong_text(t: Training) -> None:
    """`df.label == 'yes'`, and the file says 'Yes': all labels are 0."""
    targets(t, torch.zeros_like)


@fault("D9 A5", "transformer waves shells-mlp-adam")
def nearly_all_of_one_class(t: Training) -> None:
    """One class has most of the rows in the collected data, and nothing balances it."""
    kept(t, lambda y: (y == 0) | drawn(y, 0.04))


@fault("D9 A11 A5", "digits_conv digits-deep8-adam deep_norm")
def few_photos_of_some_classes(t: Training) -> None:
    """Four of the classes have only a few images."""
    kept(t, lambda y: (y > 3) | drawn(y, 0.03))


@fault("D10 R4", "clusters digits-deep8-adam lstm")
def folders_one_after_another(t: Training) -> None:
    """The files are read folder by folder, one for each class, and the loader has no `shuffle=True`."""
    order = t.train[1].flatten().argsort(stable=True)
    t.train = t.train[0][order], t.train[1][order]
    t.shuffle = False


@fault("D10", "houses friedman moons")
def sorted_by_target(t: Training) -> None:
    """The query ends with ORDER BY, and the batches follow the file."""
    order = t.train[1].flatten().argsort(descending=True, stable=True)
    t.train = t.train[0][order], t.train[1][order]
    t.shuffle = False


@fault("D15 D9 D10", "clusters digits_conv friedman")
def split_without_shuffling(t: Training) -> None:
    """`train_test_split(shuffle=False)` of a sorted file: the last part is the validation set."""
    y = whole(t)[1]
    in_file_order(t, y.flatten(1).float().mean(1).argsort() if y.dim() > 2 else y.flatten().argsort(stable=True))


@fault("D15 D13", "houses shells-mlp-adam counts")
def trained_on_one_region(t: Training) -> None:
    """The rows are in order of a feature, and training takes the first half of them, validation the last part."""
    in_file_order(t, whole(t)[0][:, 2].argsort())
    few(t, len(t.train[0]) // 2)


@fault("D15 M18", "clusters friedman multi_label")
def validation_not_scaled(t: Training) -> None:
    """The scaler transforms the training rows only."""
    service(t, lambda x: 12 * x + 30)


@fault("D15 M18", "digits_conv deep_norm segmentation")
def service_reads_other_pixels(t: Training) -> None:
    """OpenCV reads 0 to 255 in validation and service, while the training set has 0 to 1."""
    service(t, lambda x: x * 255)


@fault("D15 A1", "lstm recommender tagger")
def encoder_fitted_again(t: Training) -> None:
    """`LabelEncoder().fit_transform` once for training and once for validation: the numbers of the words differ."""
    x = torch.cat([whole(t)[0], t.test[0]])
    words = [column.max() for column in x.T] if t.categories else [x.max()] * x.shape[1]
    new = [torch.cat([torch.tensor([0]), torch.randperm(int(n)) + 1]) for n in words]
    service(t, lambda x: torch.stack([new[i if t.categories else 0][column] for i, column in enumerate(x.T)], 1))


@fault("D18 R3 A2", "clusters transformer next_symbol")
def rows_shuffled_without_labels(t: Training) -> None:
    """`np.random.shuffle(x)`, and `y` stays as it was."""
    inputs(t, lambda x: x[torch.randperm(len(x))])


@fault("D18 R3 A2", "waves digits_conv breast-linear-rmsprop")
def images_listed_in_another_order(t: Training) -> None:
    """`os.listdir` gives 1, 10, 100, 2, ..., and the table of labels is in order of the numbers."""
    inputs(t, lambda x: x[torch.tensor(sorted(range(len(x)), key=str))])


@fault("D18 R3 A2", "friedman multi_label recommender")
def rows_dropped_from_inputs_only(t: Training) -> None:
    """`x.dropna()` drops a few rows, `y` keeps them: from there on each row has the target of an earlier one."""

    def dropped(x: Tensor) -> Tensor:
        stay = torch.ones(len(x), dtype=torch.bool)
        stay[len(x) // 20 : len(x) // 20 + 7] = False
        return torch.cat([x[stay], x[-7:]])

    inputs(t, dropped)


@fault("D18 A7", "clusters digits_conv lstm")
def labels_by_a_hasty_crowd(t: Training) -> None:
    """Half of the labels are guessed."""

    def guessed(y: Tensor) -> Tensor:
        wrong = drawn(y, 0.55)
        y[wrong] = torch.randint(0, int(y.max()) + 1, (int(wrong.sum()),))
        return y

    targets(t, guessed)


@fault("D18 D15 A1", "transformer digits-deep8-adam")
def class_numbers_permuted(t: Training) -> None:
    """The training labels are numbered in the order of `set(labels)`, those of validation and service in that of the sorted list."""
    t.train = t.train[0], (t.train[1] + 1) % n_classes(t)


@fault("D20 A1 M19", "clusters houses tagger")
def the_same_rows_again_and_again(t: Training) -> None:
    """An upsampling by `np.random.choice` from a handful of rows makes the data set look large."""
    chosen = torch.randint(0, 25, (len(t.train[0]),))
    t.train = t.train[0][chosen], t.train[1][chosen]


@fault("D21 A5", "segmentation tagger")
def first_class_ignored(t: Training) -> None:
    """`ignore_index=0`, since 0 was the padding in another project; here it is a class."""
    targets(t, lambda y: y.clamp(min=0))
    t.loss = nn.CrossEntropyLoss(ignore_index=0)


@fault("D17 A2", "digits_conv segmentation")
def augmented_beyond_recognition(t: Training) -> None:
    """Flips, quarter turns and noise, copied from a project with photos from above."""

    def change(x: Tensor) -> Tensor:
        x = x.rot90(int(torch.randint(0, 4, ())), (-2, -1))
        return (x.flip(-1) if torch.rand(()) < 0.5 else x) + 0.8 * torch.randn(x.shape)

    t.augment = change


@fault("D17 A2", "deep_norm contrastive waves")
def noise_as_large_as_the_signal(t: Training) -> None:
    """Gaussian noise as augmentation, of a deviation for pixels of 0 to 255."""
    t.augment = lambda x: x + 5 * torch.randn(x.shape)


# --- leaks ---


@fault("D14 A4", "houses clusters5-residual-adamw rare")
def target_left_among_the_features(t: Training) -> None:
    """`x = df.drop(columns='id')`: the target's column stays, which is empty in service."""
    for part in (t.train, t.valid):
        if part:
            part[0][:, 1] = part[1].flatten().float()
    t.test[0][:, 1] = 0


@fault("D14 A4", "friedman multi_label")
def feature_known_only_afterwards(t: Training) -> None:
    """A column that is filled in after the outcome, such as the treatment, nearly tells it."""
    for part in (t.train, t.valid):
        if part:
            y = part[1].reshape(len(part[0]), -1)[:, 0]
            part[0][:, 0] = 2 * y - y.mean() + 0.1 * torch.randn(len(y))
    t.test[0][:, 0] = torch.randn(len(t.test[0]))


@fault("D12", "clusters shells-mlp-adam", where="report")
def validated_on_the_training_rows(t: Training) -> None:
    """Both loaders get the same dataset."""
    few(t, 200)
    t.epochs = 40
    t.valid = t.train


@fault("D12 D20", "clusters houses", where="report")
def upsampled_before_the_split(t: Training) -> None:
    """Rows are copied until there are enough, and then the copies are split at random."""
    x, y = whole(t)
    chosen = torch.randint(0, 200, (800,))
    cut(t, x[chosen], y[chosen])
    t.epochs = 30


@fault("D13 D12 D20", "shells-mlp-adam clusters5-residual-adamw friedman", where="report")
def frames_of_one_video(t: Training) -> None:
    """Each patient has eight nearly equal recordings, which a random split spreads over both parts."""
    x, y = whole(t)
    x, y = x[:110].repeat(8, 1), y[:110].repeat(8, *[1] * (y.dim() - 1))
    order = torch.randperm(len(x))
    cut(t, x[order] + 0.03 * torch.randn(x.shape), y[order])
    t.epochs = 30


# --- the model: activations, start, width ---


@fault("M11 A2", "shells-mlp-adam moons counts")
def activations_never_called(t: Training) -> None:
    """`self.relu` is made in `__init__`, and `forward` does not use it."""
    bend(t, lambda old: nn.Identity())


@fault("M11 M19 A2", "friedman multi_label counts shells-mlp-adam")
def linear_regression_by_mistake(t: Training) -> None:
    """Two linear layers one after the other, as if that were a network."""
    wide, narrow = t.train[0].shape[1], last(t).out_features
    t.model = nn.Sequential(nn.Linear(wide, 64), nn.Linear(64, narrow))


@fault("M12", "friedman autoencoder")
def relu_after_the_last_layer(t: Training) -> None:
    """A loop that adds ReLU after each layer, the last one too."""
    t.model = nn.Sequential(t.model, nn.ReLU())


@fault("M12 A2", "houses adding-recurrent-sgd recommender")
def sigmoid_for_a_regression(t: Training) -> None:
    """The last layer of a classifier kept for a regression."""
    end(t, torch.sigmoid)


@fault("M12 L1", "clusters segmentation")
def relu_on_the_logits(t: Training) -> None:
    """`return F.relu(self.fc3(x))`."""
    end(t, F.relu)


@fault("M12 M10", "digits-deep8-adam shells-mlp-adam")
def tanh_on_the_logits(t: Training) -> None:
    """The scores of the classes stay between -1 and 1."""
    end(t, torch.tanh)


@fault("M12 L1 L2", "rare moons multi_label")
def relu_before_sigmoid(t: Training) -> None:
    """`torch.sigmoid(F.relu(self.out(x)))` and `nn.BCELoss`: never below one half."""
    end(t, lambda out: F.relu(out).sigmoid())
    t.loss = nn.BCELoss()


@fault("M10 M16 A2", "digits-deep8-adam autoencoder deep_norm")
def sigmoid_in_each_layer(t: Training) -> None:
    """Sigmoid as the hidden activation of a deep network, without normalisation."""
    bend(t, lambda old: nn.Sigmoid())
    for norm in modules(t, nn.BatchNorm1d):
        replace(t, norm, nn.Identity())


@fault("M16 A2", "clusters shells-mlp-adam moons")
def twelve_plain_layers(t: Training) -> None:
    """Deeper must be better: twelve layers with sigmoid, no normalisation and no shortcuts."""
    t.model = mlp(t.train[0].shape[1], *[32] * 12, last(t).out_features, act=nn.Sigmoid)


@fault("M7 M6", "clusters houses digits_conv waves")
def all_weights_zero(t: Training) -> None:
    """`nn.init.zeros_` on each weight."""
    fill(t, nn.init.zeros_)


@fault("M7 M8", "rare friedman digits-deep8-adam multi_label")
def all_weights_the_same(t: Training) -> None:
    """`nn.init.constant_(m.weight, 0.05)` in `init_weights`."""
    fill(t, lambda weight: nn.init.constant_(weight, 0.05))


@fault("M8 L1 M17", "digits-deep8-adam clusters")
def standard_normal_weights(t: Training) -> None:
    """`m.weight.data.normal_()`: a deviation of 1, whatever the width."""
    fill(t, nn.init.normal_)


@fault("M8 M17 L1", "contrastive counts autoencoder")
def weights_between_zero_and_one(t: Training) -> None:
    """`torch.rand` makes the weights: all are positive."""
    fill(t, nn.init.uniform_)


@fault("M8 M16", "digits-deep8-adam friedman autoencoder")
def tiny_weights(t: Training) -> None:
    """Small random numbers, 0.001 times `randn`, as an old lecture has it."""
    fill(t, lambda weight: nn.init.normal_(weight, std=1e-3))


@fault("M19 A2", "clusters digits-deep8-adam friedman")
def two_hidden_units(t: Training) -> None:
    """A network of two hidden units for a task that needs dozens."""
    t.model = mlp(t.train[0].shape[1], 2, last(t).out_features)


@fault("M20 A2", "digits_conv waves")
def pooled_to_a_point(t: Training) -> None:
    """Strides and pooling made for images of 224 pixels leave one place after the first layers."""
    if t.train[0].dim() == 4:
        layers = [nn.Conv2d(1, 6, 3, stride=4, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10)]
    else:
        layers = [nn.Conv1d(1, 12, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(12, 4)]
    t.model = nn.Sequential(*layers)


# --- the model: dropout, normalisation, modes ---


@fault("M14 A2", "clusters multi_label lstm")
def probability_to_keep(t: Training) -> None:
    """`nn.Dropout(0.95)`, by someone who knows it as the share that is kept."""
    before_last(t, lambda n: nn.Dropout(0.95))


@fault("M14 A2 M16", "digits-deep8-adam deep_norm houses")
def dropout_after_each_layer(t: Training) -> None:
    """`Dropout(0.6)` after all activations of a small network."""
    bend(t, lambda old: nn.Sequential(old, nn.Dropout(0.6)))


@fault("M14 A2", "friedman houses counts recommender")
def dropout_on_the_output(t: Training) -> None:
    """`self.drop(self.out(x))`: half of the predictions are zero."""
    t.model = nn.Sequential(t.model, nn.Dropout(0.5))


@fault("T5 M14 M18", "clusters5-residual-adamw digits_conv")
def dropout_also_in_service(t: Training) -> None:
    """`F.dropout(x, 0.6)` in `forward`, without `training=self.training`."""
    before_last(t, lambda n: Apply(lambda x: F.dropout(x, 0.6)))


@fault("M18 R13", "digits_conv deep_norm table-embed-sgd")
def momentum_of_another_library(t: Training) -> None:
    """`momentum=0.99` of TensorFlow means 0.01 in PyTorch; here it is 0.0005, and the running statistics hardly move."""
    for norm in modules(t, (nn.BatchNorm1d, nn.BatchNorm2d)):
        norm.momentum = 0.0005


@fault("R13 M18", "deep_norm table-embed-sgd digits_conv")
def eval_before_training(t: Training) -> None:
    """`model.eval()` at the head of the script: batch norm keeps the statistics with which it was made."""
    line(t, before_batch=lambda cb: cb.model.eval())


@fault("R13 M18 M14", "clusters digits-deep8-adam", where="report")
def validated_in_training_mode(t: Training) -> None:
    """A network with dropout, and no `model.eval()` before the validation."""
    before_last(t, lambda n: nn.Dropout(0.5))
    t.cbs.append(Callback(before_validate=lambda cb: cb.model.train(), before_batch=lambda cb: cb.model.train()))


# --- the model: gradients that do not arrive ---


@fault("M4 R7 O1", "digits-deep8-adam digits_conv clusters5-residual-adamw")
def backbone_frozen_without_pretraining(t: Training) -> None:
    """`requires_grad = False` for all but the last layer, but no weights were loaded."""
    for p in body(t).parameters():
        p.requires_grad_(False)


@fault("M4 R7 M5", "clusters waves friedman")
def features_under_no_grad(t: Training) -> None:
    """The features are computed under `torch.no_grad()`, to save memory."""
    t.model = nn.Sequential(Untracked(body(t)), list(t.model)[-1])


@fault("M4 R7 M5", "shells-mlp-adam houses counts")
def detached_on_the_way(t: Training) -> None:
    """`x = x.detach()` before the last layer, left from debugging."""
    before_last(t, lambda n: Apply(lambda x: x.detach()))


@fault("M4 R7 M5", "recommender")
def data_of_the_embedding(t: Training) -> None:
    """`self.embed(x).data`, against an error about tensors that need a gradient."""
    for table in modules(t, nn.Embedding):
        table.register_forward_hook(lambda module, args, out: out.data)


@fault("O1 M4 M5 R7", "digits-deep8-adam deep_norm autoencoder")
def layers_in_a_python_list(t: Training) -> None:
    """`self.layers = [nn.Linear(...), ...]`: the optimizer never hears of them."""
    t.model = Listed(list(t.model))


@fault("O1 R7", "waves shells-mlp-adam deep_norm contrastive")
def only_the_head_in_the_optimizer(t: Training) -> None:
    """`Adam(model.fc.parameters())`, from a tutorial about transfer."""
    made(t, last(t).parameters())


@fault("O2 O1 R7 R3 X1", "houses clusters segmentation")
def model_made_again(t: Training) -> None:
    """A cell of the notebook makes the model anew, after the cell that makes the optimizer."""
    made(t, t.model.parameters())
    t.model = copy.deepcopy(t.model)


@fault("O2 O1 R7", "digits_conv waves contrastive")
def head_replaced_after_the_optimizer(t: Training) -> None:
    """The last layers get their size when the optimizer exists already."""
    made(t, t.model.parameters())
    for old in modules(t, (nn.Linear, nn.Conv2d))[-2:]:
        replace(t, old, copy.deepcopy(old))


@fault("R7 R3 M4 M6", "clusters houses lstm")
def zero_grad_before_step(t: Training) -> None:
    """`loss.backward(); opt.zero_grad(); opt.step()`."""

    def step(self: Step, learn: Any) -> None:
        learn.opt.zero_grad()
        learn.opt.step()

    loop(t, step=step)


@fault("R7 R3", "digits_conv rare next_symbol")
def step_forgotten(t: Training) -> None:
    """The loop has `loss.backward()` and no `opt.step()`."""
    loop(t, step=lambda self, learn: None)


# --- the model: dimensions ---


@fault("M2", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    """`nn.LSTM(12, 24)` gets (batch, time, features), and takes the rows for time."""
    for rnn in modules(t, (nn.LSTM, nn.GRU)):
        rnn.batch_first = False


@fault("M2 D6", "tagger adding-recurrent-sgd")
def view_instead_of_transpose(t: Training) -> None:
    """`view` where `transpose` is meant: the right shape with the wrong contents."""
    if t.train[0].is_floating_point():
        wrapped(t, lambda x: x.transpose(1, 2).reshape(x.shape))
    else:
        end(t, lambda out: out.transpose(1, 2).reshape(out.shape))


@fault("M2", "clusters shells-mlp-adam")
def reshaped_across_the_batch(t: Training) -> None:
    """`x.view(features, -1).t()`, to get the features in front."""
    before_last(t, lambda n: Apply(lambda x: x.reshape(x.shape[1], -1).t()))


@fault("M2 L2 L3", "digits_conv next_symbol")
def softmax_over_the_batch(t: Training) -> None:
    """`nn.Softmax(dim=0)`, and its logarithm as scores."""
    end(t, lambda out: out.softmax(0))


# --- losses ---


@fault("L2 M12", "clusters digits-deep8-adam")
def softmax_before_cross_entropy(t: Training) -> None:
    """The model ends with `nn.Softmax(dim=1)`, and the loss is `nn.CrossEntropyLoss`."""
    t.model = nn.Sequential(t.model, nn.Softmax(dim=1))


@fault("L2 M12", "shells-mlp-adam digits_conv")
def probabilities_as_logits(t: Training) -> None:
    """`F.cross_entropy(F.softmax(logits, 1), y)` in the loop."""
    judged(t, lambda out: out.softmax(1))


@fault("L2 M12", "multi_label moons rare")
def sigmoid_before_its_loss(t: Training) -> None:
    """`torch.sigmoid` in `forward` and `BCEWithLogitsLoss` outside."""
    end(t, torch.sigmoid)


@fault("L3 L8", "digits_conv shells-mlp-adam clusters5-residual-adamw")
def nll_of_logits(t: Training) -> None:
    """`nn.NLLLoss` on the raw output: the loss falls without end."""
    t.loss = nn.NLLLoss()


@fault("L3 L8", "tagger digits-deep8-adam")
def nll_of_probabilities(t: Training) -> None:
    """Softmax instead of log-softmax before `nn.NLLLoss`."""
    end(t, lambda out: out.softmax(1))
    t.loss = nn.NLLLoss(ignore_index=-100)


@fault("L4 M13", "rare moons breast-linear-rmsprop table-embed-sgd")
def softmax_of_one_output(t: Training) -> None:
    """A classifier of two classes with one output, softmax and `nn.BCELoss`: all predictions are 1."""
    end(t, lambda out: out.softmax(1))
    t.loss = nn.BCELoss()
    measured(t, rounded)


@fault("L4 L5 M13 M6", "moons rare breast-linear-rmsprop")
def cross_entropy_of_one_output(t: Training) -> None:
    """`nn.CrossEntropyLoss` with one output and targets of 0 and 1: the loss is 0 at once."""
    t.loss = nn.CrossEntropyLoss()


@fault("L5 M13", "clusters digits_conv waves")
def class_number_by_regression(t: Training) -> None:
    """One output and `nn.MSELoss` against the number of the class."""
    numbered(t)
    t.loss = lambda out, y: F.mse_loss(out.flatten(), y.float())
    measured(t, rounded)


@fault("L5", "multi_label")
def one_class_of_several_labels(t: Training) -> None:
    """Cross-entropy for rows that have several labels at once, and a softmax at the end."""
    t.loss = lambda out, y: F.cross_entropy(out, y.argmax(1))


@fault("L5 D7", "counts")
def counts_by_squared_error(t: Training) -> None:
    """`nn.MSELoss` on the counts, while the program takes the output for the logarithm."""
    t.loss = nn.MSELoss()


@fault("L6", "houses friedman adding-recurrent-sgd")
def targets_without_their_dimension(t: Training) -> None:
    """Outputs (n, 1) and targets (n,): a squared error written by hand compares each with each."""
    targets(t, lambda y: y.flatten())
    t.loss = lambda out, y: (out - y).square().mean()


@fault("L6 X1", "recommender counts houses")
def output_squeezed(t: Training) -> None:
    """`return self.out(x).squeeze()`, and the targets are a column."""
    end(t, lambda out: out.squeeze())


@fault("L7 O3 R1 R2", "clusters digits_conv adding-recurrent-sgd")
def loss_summed(t: Training) -> None:
    """`reduction='sum'` with the rate for a mean."""
    mean = t.loss
    t.loss = lambda out, y: len(y) * mean(out, y)


@fault("L8 R2", "houses autoencoder contrastive counts")
def loss_maximised(t: Training) -> None:
    """A minus sign too many in the loss."""
    old = t.loss
    t.loss = lambda out, y: -old(out, y)


@fault("L12 A2", "clusters houses rare")
def penalty_larger_than_the_loss(t: Training) -> None:
    """The squares of all weights are added to the loss, with a factor of 1."""
    old, model = t.loss, t.model
    t.loss = lambda out, y: old(out, y) + sum(p.square().sum() for p in model.parameters())


@fault("R1 D1 L3", "houses adding-recurrent-sgd")
def logarithm_of_a_prediction(t: Training) -> None:
    """The squared error of the logarithms of prices, for outputs that can be negative."""
    t.loss = lambda out, y: F.mse_loss(out.log(), y.log())


# --- optimizer and plan ---


@fault("O3 R1 R2 A10", "houses digits-deep8-adam transformer lstm")
def rate_of_one_for_adam(t: Training) -> None:
    """`lr=1` to see whether it goes faster."""
    t.lr = 1.0


@fault("O3 R1 R2 A10", "clusters digits_conv table-embed-sgd")
def rate_of_sgd_far_too_large(t: Training) -> None:
    """`SGD(lr=10, momentum=0.9)`."""
    t.lr = 10.0


@fault("O3 A10 R4", "transformer deep_norm recommender")
def rate_of_sgd_for_adam(t: Training) -> None:
    """The rate 0.3 of an old recipe for SGD stays when the optimizer becomes Adam."""
    t.lr = 0.3


@fault("O3 A10 A2 R5 A3", "rare tagger segmentation contrastive")
def rate_of_fine_tuning(t: Training) -> None:
    """`lr=2e-5`, the rate for a pretrained transformer, from scratch."""
    t.lr = 2e-5


@fault("O3 A10 A2 R5 A3", "clusters moons adding-recurrent-sgd")
def sgd_at_a_rate_for_adam(t: Training) -> None:
    """`SGD(lr=1e-4)` without momentum, since 1e-4 was good for Adam."""
    t.opt, t.lr = torch.optim.SGD, 1e-4


@fault("O3 A10 A2 R5 A3", "autoencoder next_symbol lstm multi_label")
def careful_rate(t: Training) -> None:
    """`lr=1e-6`, to be safe."""
    t.lr = 1e-6


@fault("O4 R5 A2", "houses transformer deep_norm")
def epsilon_of_one(t: Training) -> None:
    """`Adam(eps=1.0)`, once recommended for another network, with the usual rate."""
    t.opt = partial(torch.optim.Adam, eps=1.0)


@fault("O5 A2", "clusters digits_conv table-embed-sgd")
def weight_decay_of_one_half(t: Training) -> None:
    """`weight_decay=0.5` in SGD against overfitting."""
    t.opt = partial(torch.optim.SGD, momentum=0.9, weight_decay=0.5)


@fault("O5 A2", "recommender lstm digits-deep8-adam friedman")
def weight_decay_in_adam(t: Training) -> None:
    """`Adam(weight_decay=0.3)`: the decay joins the gradient."""
    t.opt = partial(torch.optim.Adam, weight_decay=0.3)


@fault("O6 A3", "clusters houses next_symbol")
def step_decay_in_each_batch(t: Training) -> None:
    """`StepLR(opt, 1, gamma=0.5)` steps within the loop over batches."""
    plan(t, lambda opt: StepLR(opt, 1, gamma=0.5))


@fault("O6 A3 O3", "waves multi_label transformer")
def warm_up_longer_than_training(t: Training) -> None:
    """A warm-up of 20000 updates, in a run of some hundreds."""
    plan(t, lambda opt: LambdaLR(opt, lambda i: min(1.0, (i + 1) / 20000)))


@fault("O6 A3", "digits-deep8-adam rare counts")
def milestones_as_batches(t: Training) -> None:
    """`MultiStepLR` with milestones 10, 20 and 30, meant as epochs, counts updates."""
    plan(t, lambda opt: MultiStepLR(opt, [10, 20, 30], gamma=0.1))


@fault("O6 O3 A3", "digits_conv lstm friedman")
def one_cycle_for_another_run(t: Training) -> None:
    """`OneCycleLR(total_steps=100000)`: the run ends in the first steps of the rise."""
    plan(t, lambda opt: OneCycleLR(opt, max_lr=t.lr, total_steps=100000))


@fault("O7 A3", "next_symbol tagger contrastive recommender")
def one_epoch(t: Training) -> None:
    """`epochs = 1`, left from a first try."""
    t.epochs = 1


@fault("O7 A3", "waves autoencoder deep_norm")
def loop_left_after_some_batches(t: Training) -> None:
    """`if i > 4: break`, left from debugging, and two epochs."""
    t.epochs = 2

    def leave(cb: Any) -> None:
        if cb.iter >= 4:
            raise CancelTrainException

    line(t, after_batch=leave)


@fault("O7 R7 A3", "digits_conv friedman contrastive segmentation")
def step_outside_the_inner_loop(t: Training) -> None:
    """`opt.step()` has one indent too few: one update for each epoch."""

    def step(self: Step, learn: Any) -> None:
        if learn.iter == learn.n_iter - 1:
            learn.opt.step()

    loop(t, step=step)


@fault("O7 A3", "multi_label autoencoder houses counts")
def patience_for_a_score(t: Training) -> None:
    """Early stopping waits for a larger value of the loss: it ends after two epochs."""
    t.cbs.append(EarlyStopping("valid_loss", comp="max", patience=1))


@fault("O8 O7 A3", "clusters houses next_symbol rare")
def whole_data_as_one_batch(t: Training) -> None:
    """`batch_size=len(train)`: as many updates as epochs."""
    t.bs = len(t.train[0])


@fault("O8 R10 R4 D19", "digits_conv deep_norm")
def two_items_with_batch_norm(t: Training) -> None:
    """`batch_size=2`, as the memory allows no more, in a network with batch norm, at the old rate."""
    t.bs = 2


@fault("R2 O3 R4 R9", "clusters digits_conv moons")
def zero_grad_forgotten(t: Training) -> None:
    """The loop has no `opt.zero_grad()`. No code fits."""
    loop(t, zero_grad=lambda self, learn: None)


@fault("R2 O3 R4 R9", "houses table-embed-sgd")
def zero_grad_once_in_an_epoch(t: Training) -> None:
    """`opt.zero_grad()` stands before the loop over batches. No code fits."""

    def zero(self: Step, learn: Any) -> None:
        if learn.iter == 0:
            learn.opt.zero_grad()

    loop(t, zero_grad=zero)


# --- fit and choice of the model ---


@fault("A1 M19", "clusters waves")
def large_network_on_few_rows(t: Training) -> None:
    """Sixty rows, a wide network, a hundred epochs, and nothing against overfitting."""
    few(t, 60)
    t.epochs, t.drop_last = 100, False
    if t.train[0].dim() == 2:
        t.model = mlp(t.train[0].shape[1], 256, 256, last(t).out_features)


@fault("A1 D18", "friedman digits-deep8-adam clusters5-residual-adamw")
def noise_learned_by_heart(t: Training) -> None:
    """A third of the targets is wrong, and the run lasts until the network knows them all."""
    few(t, 400)

    def noisy(y: Tensor) -> Tensor:
        wrong = drawn(y, 0.35)
        y[wrong] = y[torch.randperm(len(y))][wrong]
        return y

    targets(t, noisy)
    t.epochs = 80


@fault("A1 M19", "tagger lstm rare")
def hundred_epochs_on_fifty_rows(t: Training) -> None:
    """A small sample for a quick test is forgotten in the script."""
    few(t, 50)
    t.epochs, t.drop_last = 60, False


@fault("A9", "houses clusters5-residual-adamw segmentation")
def first_checkpoint_loaded(t: Training) -> None:
    """The comparison of the losses is upside down, so the file holds the first epoch."""
    kept_state: dict[str, Tensor] = {}

    def store(cb: Any) -> None:
        if not kept_state:
            kept_state.update(copy.deepcopy(cb.model.state_dict()))

    t.cbs.append(Trained(after_epoch=store, after_fit=lambda cb: cb.model.load_state_dict(kept_state)))


# --- evaluation ---


@fault("L11 A5", "breast-linear-rmsprop table-embed-sgd", where="report")
def argmax_of_one_output(t: Training) -> None:
    """`out.argmax(1) == y` for one output: the prediction is always 0."""
    t.metric = lambda out, y: (out.argmax(1) == y.flatten()).float().mean()


@fault("L11", "multi_label rare table-embed-sgd", where="report")
def logits_rounded(t: Training) -> None:
    """`out.round() == y`, without a sigmoid."""
    t.metric = lambda out, y: (out.round() == y).float().mean()


@fault("L11", "clusters digits_conv", where="report")
def hits_divided_by_the_batch_size(t: Training) -> None:
    """The hits of a batch are divided by the size of the training batches."""
    t.metric = lambda out, y: (out.argmax(1) == y).float().sum() / t.bs


@fault("L11 L10 D18", "shells-mlp-adam lstm transformer", where="report")
def predictions_of_a_shuffled_loader(t: Training) -> None:
    """Predictions from a loader that shuffles are compared with the labels in the order of the file."""
    t.metric = lambda out, y: (out.argmax(1) == y[torch.randperm(len(y))]).float().mean()


@fault("L6 L11", "houses friedman recommender", where="report")
def error_of_each_with_each(t: Training) -> None:
    """The mean absolute error of outputs (n, 1) and targets (n,)."""
    t.metric = lambda out, y: (out - y.flatten()).abs().mean()


@fault("L11 L7", "autoencoder adding-recurrent-sgd friedman", where="report")
def errors_summed_up(t: Training) -> None:
    """The metric adds up the errors of the batch, and the table shows the sum as if it were a mean."""
    t.metric = lambda out, y: (out - y).abs().sum()


@fault("D16 D15 D17", "digits_conv deep_norm digits-deep8-adam", where="report")
def one_transform_for_both(t: Training) -> None:
    """The random crop and noise of training are also applied in validation."""

    def change(x: Tensor) -> Tensor:
        x = x.roll(int(torch.randint(-2, 3, ())), -1)
        return x + 0.5 * torch.randn(x.shape)

    t.augment = t.valid_augment = change


@fault("A8 D19", "waves shells-mlp-adam", where="report")
def validated_on_twelve_rows(t: Training) -> None:
    """A validation set of twelve rows."""
    if t.valid:
        t.valid = t.valid[0][:12], t.valid[1][:12]


# --- programs that end with an error message ---


@fault("X1", "digits_conv waves")
def flatten_forgotten(t: Training) -> None:
    """The feature maps go into the linear layer as they are."""
    for flat in modules(t, nn.Flatten):
        replace(t, flat, nn.Identity())


@fault("X1", "clusters counts")
def wrong_number_of_features(t: Training) -> None:
    """The first layer was made for another number of columns."""
    old = modules(t, nn.Linear)[0]
    replace(t, old, nn.Linear(old.in_features + 1, old.out_features))


@fault("X1 M20", "digits_conv")
def size_after_the_convolutions(t: Training) -> None:
    """`nn.Linear(16 * 5 * 5, 10)` of a tutorial for other images."""
    replace(t, last(t), nn.Linear(400, 10))


@fault("X1 D6", "digits_conv segmentation")
def channels_come_last(t: Training) -> None:
    """The images are (height, width, channels), as the reader gives them."""
    everywhere(t, lambda x: x.permute(0, 2, 3, 1).contiguous())


@fault("X1 D11 M13", "clusters segmentation")
def classes_counted_from_one(t: Training) -> None:
    """The labels run from 1 to n, and the model has n outputs."""
    targets(t, lambda y: y + 1)


@fault("X1 D11 M13", "digits_conv transformer")
def one_output_too_few(t: Training) -> None:
    """The last layer has one output less than there are classes."""
    old = last(t)
    replace(t, old, nn.Linear(old.in_features, old.out_features - 1))


@fault("X1 D5", "clusters digits_conv")
def whole_numbers_as_inputs(t: Training) -> None:
    """The images stay bytes, the table stays integers."""
    everywhere(t, lambda x: (x * 16).long() if x.dim() == 2 else (x * 255).to(torch.uint8))


@fault("X1", "houses breast-linear-rmsprop")
def doubles_from_numpy(t: Training) -> None:
    """`torch.from_numpy` makes float64 of the table, and the layers are float32."""
    everywhere(t, lambda x: x.double())


@fault("X1", "shells-mlp-adam digits-deep8-adam")
def class_labels_as_floats(t: Training) -> None:
    """`torch.tensor(labels, dtype=torch.float32)` for a cross-entropy."""
    targets(t, lambda y: y.float())


@fault("X1 L6", "rare moons")
def target_size_differs(t: Training) -> None:
    """`BCEWithLogitsLoss` gets outputs (n, 1) and targets (n,)."""
    targets(t, lambda y: y.flatten())


@fault("X1 D11", "recommender next_symbol")
def vocabulary_too_small(t: Training) -> None:
    """`nn.Embedding(len(vocabulary), ...)`, but the numbers start at 1 and unknown words came in."""
    everywhere(t, lambda x: x + 2)


@fault("X1", "tagger adding-recurrent-sgd")
def transposed_for_nothing(t: Training) -> None:
    """The classes or features are not where the next layer expects them."""
    if t.train[0].is_floating_point():
        wrapped(t, lambda x: x.transpose(1, 2))
    else:
        end(t, lambda out: out.transpose(1, 2))


@fault("X1 D19 O8", "deep_norm table-embed-sgd")
def batch_of_one_in_batch_norm(t: Training) -> None:
    """The last batch has one row, for which batch norm cannot compute a variance."""
    few(t, 10 * t.bs + 1)
    t.drop_last = False


@fault("X1 M4", "clusters houses")
def loss_of_rounded_outputs(t: Training) -> None:
    """The loss is computed from a new tensor, `torch.tensor(out.tolist())`, which knows nothing of the graph."""
    judged(t, lambda out: torch.tensor(out.tolist()))


@fault("X1 L3", "rare breast-linear-rmsprop")
def bce_without_sigmoid(t: Training) -> None:
    """`nn.BCELoss` on raw outputs, which are not between 0 and 1."""
    t.loss = nn.BCELoss()


@fault("X1", "houses lstm")
def losses_added_over_batches(t: Training) -> None:
    """`total = total + loss; total.backward()`: the graph of the first batch is gone in the second."""
    totals: list[Tensor] = []

    def total(cb: Any) -> None:
        totals.append(cb.learn.loss_grad + (totals[-1] if totals else 0))
        cb.learn.loss_grad = totals[-1]

    line(t, after_loss=total)


@fault("X1 L5", "clusters waves")
def squared_error_of_labels(t: Training) -> None:
    """`nn.MSELoss` on four outputs and one label for each row."""
    t.loss = lambda out, y: F.mse_loss(out, y.float())
