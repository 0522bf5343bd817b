"""A fourth set of faults, by an author who has not read the checks, only the specification's table of codes and the healthy trainings.

The codes are those of the table, D1 to A12, and the first one is the closest. A preparation of the inputs that the program applies wherever
it reads data also reaches the inputs of the test part, as in `everywhere`. Its targets are never touched.
"""

import copy
from collections.abc import Callable
from functools import partial

import mutators
import torch
from fault_tasks import Training, mae
from mutators import Change, Mutator
from torch import Tensor, nn
from torch.nn import functional as F

from cbnb import Callback, EarlyStopping, GradientClip, TorchScheduler

MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def everywhere(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """Change the inputs of all three parts, as a preparation does that the program uses in service too."""
    recorded(t, lambda x, y: (change(x), y))
    t.test = change(t.test[0].clone()), t.test[1]


def recorded(t: Training, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """Change what the program has on disk: inputs and targets of training and validation, each part by itself."""
    t.train = change(*(a.clone() for a in t.train))
    if t.valid:
        t.valid = change(*(a.clone() for a in t.valid))


def targets(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    recorded(t, lambda x, y: (x, change(y)))


class Then(nn.Module):
    """A module, and a function of its output."""

    def __init__(self, body: nn.Module, change: Callable[[Tensor], Tensor]):
        super().__init__()
        self.body, self.change = body, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.body(x))


class Apply(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]):
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


ACTIVATIONS = nn.ReLU, nn.Tanh, nn.GELU


def replaced(model: nn.Module, kinds: tuple[type, ...], make: Callable[[nn.Module], nn.Module]) -> bool:
    """Replace the modules of these kinds; whether there was one."""
    found = False
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, kinds):
                setattr(parent, name, make(child))
                found = True
    return found


def inserted(t: Training, at: int, *layers: nn.Module) -> None:
    model = list(t.model)
    t.model = nn.Sequential(*model[:at], *layers, *model[at:])


def middle(t: Training) -> int:
    """Where the layers after the middle activation begin."""
    places = [i for i, m in enumerate(t.model) if isinstance(m, ACTIVATIONS)]
    return places[len(places) // 2] + 1


def matrices(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.dim() > 1]


def with_loss(t: Training, change: Callable[[Tensor, Tensor, Callable[..., Tensor]], Tensor]) -> None:
    old = t.loss
    t.loss = lambda out, y: change(out, y, old)


def classes(t: Training) -> int:
    return int(t.train[1].max()) + 1


# --- data: values ---


@fault("D2 D4", "clusters friedman houses")
def missing_as_minus_999(t: Training) -> None:
    "The export writes missing values of three columns as -999, and no step replaces them."

    def change(x: Tensor) -> Tensor:
        for c in range(3):
            x[torch.rand(len(x)) < 0.04, c] = -999.0
        return x

    everywhere(t, change)


@fault("D2", "clusters friedman counts")
def kelvin(t: Training) -> None:
    "Temperatures come in kelvin: the spread is right, and all values are near 273."
    everywhere(t, lambda x: x + 273)


@fault("D4 D2", "houses multi_label counts")
def one_column_in_millimetres(t: Training) -> None:
    "One column is in millimetres, the others in metres."

    def change(x: Tensor) -> Tensor:
        x[:, 0] *= 3000
        return x

    everywhere(t, change)


@fault("D1 R1", "houses counts rare")
def ratio_with_zero(t: Training) -> None:
    "A new column is a ratio, and its divisor is sometimes zero."

    def change(x: Tensor) -> Tensor:
        x[:, 1] = x[:, 0] / (x[:, 1] * 4).round()
        return x

    everywhere(t, change)


@fault("D3", "houses multi_label counts")
def failed_join(t: Training) -> None:
    "The keys of a join do not match, `fillna(0)` fills half of the columns, and only the offline data are concerned."

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[:, ::2] = 0
        return x, y

    recorded(t, change)


@fault("D3 D20 T2 M1", "clusters digits_conv lstm")
def first_item_always(t: Training) -> None:
    "`__getitem__` returns `self.x[0]`, a left-over of a try."
    recorded(t, lambda x, y: (x[:1].expand_as(x).clone(), y))


@fault("D3 D20 D5", "digits_conv deep_norm digits-deep8-adam")
def bytes_after_scaling(t: Training) -> None:
    "Pixels are divided by their maximum, then stored as `uint8`: all but the brightest become 0."
    everywhere(t, lambda x: x.to(torch.uint8).float())


@fault("D5", "digits_conv deep_norm autoencoder")
def bytes_from_disk(t: Training) -> None:
    "Images stay `uint8`, as they were read."
    recorded(t, lambda x, y: ((x * 16).to(torch.uint8), y))


@fault("D14 A4 D15", "clusters friedman rare")
def target_encoding_with_own_row(t: Training) -> None:
    "A category is encoded by the mean target of its rows, with few rows each: the column is nearly the target."

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[:, 0] = y.reshape(-1).float() + 0.05 * torch.randn(len(x))
        return x, y

    recorded(t, change)


@fault("D7 O3", "houses friedman adding-recurrent-sgd")
def prices_in_dollars(t: Training) -> None:
    "Targets in dollars instead of hundred thousands. The predictions are converted before they are scored."
    old = t.score
    targets(t, lambda y: y * 1e5)
    t.score = lambda out, y: old(out / 1e5, y)


@fault("D8 D9 A5", "multi_label rare moons")
def threshold_above_all(t: Training) -> None:
    "`y = score > 1` for scores between 0 and 1."
    targets(t, lambda y: (y > 1).float())


@fault("D18 A7", "houses counts adding-recurrent-sgd")
def missing_targets_as_zero(t: Training) -> None:
    "`df.fillna(0)` fills the target column too."
    targets(t, lambda y: y * (torch.rand(len(y), 1) > 0.4))


@fault("D18 A7", "clusters waves deep_norm")
def two_numberings(t: Training) -> None:
    "Two label files are joined, and one counts its classes from 1. What is out of range is clamped."
    n = classes(t)
    targets(t, lambda y: torch.where(torch.rand(len(y)) < 0.5, (y + 1).clamp(max=n - 1), y))


@fault("D11 M13", "clusters lstm digits_conv")
def classes_from_one(t: Training) -> None:
    "The labels run from 1 to n, as in MATLAB."
    targets(t, lambda y: y + 1)


# --- data: rows and order ---


@fault("T3 D18 A7", "clusters digits_conv friedman")
def files_sorted_as_text(t: Training) -> None:
    "File names sort as 1, 10, 100, 101; the rows of the label file are in the order of the numbers."
    recorded(t, lambda x, y: (x[sorted(range(len(x)), key=str)], y))


@fault("T3 D18 A7", "segmentation")
def masks_transposed(t: Training) -> None:
    "The masks were saved as width x height. The pictures are square, so nothing complains."
    targets(t, lambda y: y.transpose(1, 2).contiguous())


@fault("D15", "clusters waves deep_norm")
def folder_by_folder_split(t: Training) -> None:
    "The rows are in the order of the class folders, and the last fifth becomes the validation part."
    whole = [torch.cat(pair) for pair in zip(t.train, t.valid or t.train)]
    order, cut = whole[1].argsort(), len(t.train[0])
    t.train, t.valid = (tuple(a[order[part]] for a in whole) for part in (slice(0, cut), slice(cut, None)))


@fault("D10", "clusters waves friedman")
def sorted_and_not_shuffled(t: Training) -> None:
    "The data are sorted by the target, and `shuffle=True` was forgotten."
    order = t.train[1].reshape(-1).argsort()
    t.train, t.shuffle = (t.train[0][order], t.train[1][order]), False


@fault("D20 M19 A1", "clusters digits_conv multi_label")
def index_modulo_48(t: Training) -> None:
    "`i % 48`, to overfit a few items while debugging, stays in `__getitem__`."
    rows = torch.arange(len(t.train[0])) % 48
    t.train = t.train[0][rows], t.train[1][rows]


@fault("D9 A5", "clusters lstm deep_norm")
def collected_as_it_came(t: Training) -> None:
    "Nearly all recorded items are of class 0."

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.where((y == 0) | (torch.rand(len(y)) < 0.04))[0]
        rows = kept[torch.randint(0, len(kept), (len(x),))]
        return x[rows], y[rows]

    recorded(t, change)


@fault("D12 D20 D15", "rare recommender clusters", "report")
def oversampled_before_the_split(t: Training) -> None:
    "The rare class, or each row, is repeated, then the rows are split: copies of training rows validate."
    whole = [torch.cat(pair) for pair in zip(t.train, t.valid or t.train)]
    chosen = whole[1].reshape(-1) > 0.5 if t.kind == "binary" else torch.ones(len(whole[0]), dtype=torch.bool)
    rows = torch.arange(len(whole[0])).repeat_interleave(torch.where(chosen, 10, 1))
    rows = rows[torch.randperm(len(rows))]
    cut = int(0.8 * len(rows))
    t.train, t.valid = (tuple(a[part] for a in whole) for part in (rows[:cut], rows[cut:]))


@fault("D12 A4", "recommender multi_label deep_norm", "report")
def validated_on_training_rows(t: Training) -> None:
    "`valid_ds = Subset(train_ds, ...)`: the rows stay in training."
    n = len(t.valid[0]) if t.valid else 200
    t.valid = t.train[0][:n], t.train[1][:n]


@fault("D15 D8", "clusters waves deep_norm", "report")
def validation_of_one_class(t: Training) -> None:
    "The validation rows come from a file that is sorted by class."
    if t.valid is None:
        return False
    rows = t.valid[1] == 1
    t.valid = t.valid[0][rows], t.valid[1][rows]


@fault("D15 D2", "clusters friedman multi_label")
def scaled_in_training_only(t: Training) -> None:
    "`MinMaxScaler` for the training part; validation and service keep the old scaling."
    x = t.train[0]
    low, high = x.amin(0), x.amax(0)
    t.train = (x - low) / (high - low), t.train[1]


# --- data: words, pads, categories ---


@fault("D3 D20 T2", "next_symbol tagger lstm")
def nearly_all_words_unknown(t: Training) -> None:
    "The vocabulary is cut at a quarter, and all other words become the unknown one."
    keep = int(t.train[0].max()) // 4
    everywhere(t, lambda x: x.clamp(max=keep))


@fault("D3 D21 D20", "lstm transformer tagger")
def truncated_at_three(t: Training) -> None:
    "`max_length=3` from another project; the rest is padding."

    def change(x: Tensor) -> Tensor:
        x[:, 3:] = 0
        return x

    everywhere(t, change)


@fault("D15", "tagger recommender lstm")
def vocabulary_per_part(t: Training) -> None:
    "The encoder is fitted again for the validation part and in service: the same number is another word."
    first = 0 if t.categories else 1  # 0 is the pad

    def recoded(ids: Tensor) -> Tensor:
        return torch.cat([torch.arange(first), first + torch.randperm(int(ids.max()) + 1 - first)])[ids]

    x = t.train[0]
    t.train = torch.stack([recoded(c) for c in x.T], 1) if t.categories else recoded(x), t.train[1]


@fault("D20 M19", "recommender")
def ids_modulo_8(t: Training) -> None:
    "Identifiers are hashed into eight buckets."
    everywhere(t, lambda x: x % 8)


@fault("D21 D9", "tagger segmentation")
def first_tokens_only(t: Training) -> None:
    "Labels are aligned with the first token, and all others get the number to ignore; of a mask, one corner is labelled."

    def change(y: Tensor) -> Tensor:
        kept = y[..., :1].clone() if y.dim() == 2 else y[:, :3, :3].clone()
        y[:] = -100
        if y.dim() == 2:
            y[:, :1] = kept
        else:
            y[:, :3, :3] = kept
        return y

    targets(t, change)


@fault("D21 L9 A5", "clusters digits_conv next_symbol")
def class_0_as_padding(t: Training) -> None:
    "`ignore_index=0`, copied from a translation model: class 0 is never learned."
    t.loss = nn.CrossEntropyLoss(ignore_index=0)


# --- data: augmentation ---


@fault("D17", "digits_conv waves")
def turned_and_mirrored(t: Training) -> None:
    "Turns and mirrors at random, as for aerial pictures, where the direction is the content."

    def change(x: Tensor) -> Tensor:
        dims = [d for d in range(1, x.dim()) if torch.rand(()) < 0.5]
        x = x.flip(dims) if dims else x
        if x.dim() == 3:
            return x.rot90(int(torch.randint(0, 4, ())), (1, 2))
        return -x if torch.rand(()) < 0.5 else x

    t.augment = change


@fault("D17 T3 D18", "segmentation")
def masks_not_mirrored(t: Training) -> None:
    "The transform mirrors the picture and leaves its mask."
    t.augment = lambda x: x.flip([d for d in (1, 2) if torch.rand(()) < 0.5] or [1])


@fault("D15 D2 D17", "digits_conv deep_norm segmentation")
def training_in_255(t: Training) -> None:
    "The training transform ends with values up to 255, that of validation with values up to 1."
    t.augment = lambda x: x * 255


@fault("D17 D18", "clusters digits_conv friedman")
def mixed_without_targets(t: Training) -> None:
    "Mixup with equal shares, and the targets are those of one of the two items."

    def mix(cb: Callback) -> None:
        if cb.training:
            x = cb.learn.xb
            cb.learn.xb = 0.4 * x + 0.6 * x.roll(1, 0) if torch.is_tensor(x) else tuple(0.4 * a + 0.6 * a.roll(1, 0) for a in x)

    t.cbs = [*t.cbs, Callback(before_batch=mix)]


@fault("D16 D15", "clusters waves digits_conv", "report")
def training_transform_in_validation(t: Training) -> None:
    "One transform for both parts, with noise and shifts."
    t.augment = t.valid_augment = lambda x: x.roll(int(torch.randint(-1, 2, ())), -1) + 0.8 * x.std() * torch.randn_like(x)


# --- model: shapes and wiring ---


@fault("M1 T2 T1", "transformer")
def mask_upside_down(t: Training) -> None:
    "True means `look here` in one library and `ignore` in the other: the model sees only the pads."
    old = t.model

    class Inverted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = old

        def forward(self, x: Tensor) -> Tensor:
            m, seen = self.inner, x == 0
            states = m.blocks(m.embed(x) + m.places, src_key_padding_mask=~seen & seen.any(1, keepdim=True))
            kept = seen[..., None]
            return m.out(m.norm((states * kept).sum(1) / kept.sum(1).clamp(min=1)))

    t.model = Inverted()


@fault("M2", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    "A recurrent layer without `batch_first=True`: the items of a batch become the steps of one sequence."
    for m in t.model.modules():
        if isinstance(m, nn.RNNBase):
            m.batch_first = False


@fault("M2 T1 T2 L10", "tagger segmentation")
def reshaped_instead_of_permuted(t: Training) -> None:
    "`out.reshape(-1, n)` with the classes in dim 1: scores of one place are compared with labels of others."
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    t.loss = lambda out, y: loss(out.reshape(-1, out.shape[1]), y.reshape(-1))


@fault("M2 L2", "clusters digits_conv lstm")
def softmax_over_the_batch(t: Training) -> None:
    "`softmax(dim=0)` at the end."
    t.model = Then(t.model, lambda out: out.softmax(0))


@fault("M5 R7", "contrastive recommender tagger")
def copied_line(t: Training) -> None:
    "A copied line keeps its old name, and one part of the model is never used."
    model = t.model

    class Copied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model
            if hasattr(model, "gru"):
                model.out = nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            m = self.inner
            if hasattr(m, "left"):
                return torch.stack([m.left(x[:, 0]), m.left(x[:, 1])], 1)
            if hasattr(m, "users"):
                return 3.4 + m.mix(torch.cat([m.users(x[:, 0]), m.users(x[:, 0])], 1))
            states = m.embed(x)
            m.gru(states)
            return m.out(states).transpose(1, 2)

    t.model = Copied()


@fault("O1 M5 M4 R7", "multi_label deep_norm shells-mlp-adam")
def layers_in_a_plain_list(t: Training) -> None:
    "`self.layers = [...]` instead of `nn.ModuleList`."
    *hidden, last = t.model

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.head = list(hidden), last

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    t.model = Listed()


@fault("M4 M5 R7", "deep_norm multi_label digits-deep8-adam")
def features_as_data(t: Training) -> None:
    "`h = h.data`, to silence a message about in-place changes."
    inserted(t, middle(t), Apply(lambda h: h.data))


@fault("M4 M5 R7", "lstm tagger digits_conv")
def frozen_but_never_loaded(t: Training) -> None:
    "The backbone is frozen as in fine-tuning, and its weights were never loaded."
    last = [m for m in t.model.modules() if isinstance(m, nn.Linear)][-1]
    t.model.requires_grad_(False)
    last.requires_grad_(True)


@fault("M20 M19", "digits_conv waves")
def pooled_to_a_point(t: Training) -> None:
    "A global pooling after the first layer, before the layers that need places."
    two_d = any(isinstance(m, nn.Conv2d) for m in t.model)
    pool = nn.AdaptiveAvgPool2d(1) if two_d else nn.AdaptiveAvgPool1d(1)
    if two_d:
        layers = [nn.Identity() if isinstance(m, nn.MaxPool2d) else m for m in t.model]
        layers[3], layers[-1] = pool, nn.Linear(12, 10)
        t.model = nn.Sequential(*layers)
    else:
        layers = list(t.model)
        layers[2], layers[6] = nn.Conv1d(12, 16, 1), nn.Linear(16, 32)
        t.model = nn.Sequential(*layers[:2], pool, *layers[2:])


@fault("M19 M11", "deep_norm autoencoder digits-deep8-adam")
def one_unit_in_the_middle(t: Training) -> None:
    "A typing error in a list of widths: one layer has a single unit."
    at = middle(t)
    width = next(m.in_features for m in list(t.model)[at:] if isinstance(m, nn.Linear))
    inserted(t, at, nn.Linear(width, 1), nn.Linear(1, width))


@fault("M11", "moons shells-mlp-adam multi_label")
def activation_never_called(t: Training) -> None:
    "The activation is created in `__init__` and not called in `forward`."
    if not replaced(t.model, ACTIVATIONS, lambda _: nn.Identity()):
        return False


@fault("M12 M9", "friedman clusters houses")
def block_with_relu_at_the_end(t: Training) -> None:
    "The last layer is made by the same `block(n_in, n_out)` as the others: normalisation and ReLU after it."
    n = [m for m in t.model.modules() if isinstance(m, nn.Linear)][-1].out_features
    t.model = nn.Sequential(*t.model, nn.BatchNorm1d(n), nn.ReLU())


@fault("M12", "houses recommender adding-recurrent-sgd")
def tanh_on_a_price(t: Training) -> None:
    "`tanh` at the end, copied from a policy network, for targets up to 6."
    t.model = Then(t.model, torch.tanh)


@fault("M1 M6 M4", "houses rare friedman")
def layer_norm_over_one(t: Training) -> None:
    "`LayerNorm` after the last layer, which has one unit: the output is a constant."
    t.model = nn.Sequential(*t.model, nn.LayerNorm(1))


@fault("L4 M12 M1", "rare moons breast-linear-rmsprop")
def softmax_with_one_output(t: Training) -> None:
    "`softmax(dim=1)` over one output, and `BCELoss`."
    t.model, t.loss = Then(t.model, lambda out: out.softmax(1)), nn.BCELoss()


# --- model: initialisation, normalisation, dropout ---


@fault("M7 M6", "clusters autoencoder digits-deep8-adam")
def same_weight_everywhere(t: Training) -> None:
    "`nn.init.constant_(w, 0.02)` in a loop over all weights."
    for w in matrices(t.model):
        nn.init.constant_(w, 0.02)


@fault("M8 L1 M17 M10", "digits-deep8-adam next_symbol clusters5-residual-adamw")
def normal_of_one(t: Training) -> None:
    "`nn.init.normal_(w)` with its default standard deviation of 1, ported from `tf.random_normal`."
    for w in matrices(t.model):
        nn.init.normal_(w)


@fault("M8 M16 M6 M1", "digits-deep8-adam autoencoder multi_label")
def orthogonal_of_a_policy_head(t: Training) -> None:
    "`orthogonal_(w, gain=0.01)`, meant for the last layer of a policy, on all layers."
    for w in matrices(t.model):
        nn.init.orthogonal_(w, gain=0.01)
    for p in t.model.parameters():
        if p.dim() == 1:
            nn.init.zeros_(p)


@fault("M9 M6", "clusters houses multi_label")
def negative_biases(t: Training) -> None:
    "Biases of -5, to make the units sparse."
    for m in list(t.model)[:-1]:
        if isinstance(m, nn.Linear):
            nn.init.constant_(m.bias, -5.0)


@fault("M16 M10", "digits-deep8-adam autoencoder houses")
def sigmoid_in_each_layer(t: Training) -> None:
    "Sigmoid after each layer, as in old lecture notes."
    if not replaced(t.model, ACTIVATIONS, lambda _: nn.Sigmoid()):
        return False


@fault("M18", "deep_norm digits_conv table-embed-sgd")
def momentum_of_keras(t: Training) -> None:
    "`momentum=0.999` of Keras means 0.001 here: the running statistics hardly move."
    for m in t.model.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            m.momentum = 0.001


class Frozen1d(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


class Frozen2d(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


@fault("R13 M18 M8", "deep_norm segmentation table-embed-sgd")
def norms_frozen_from_scratch(t: Training) -> None:
    "Normalisation is kept in evaluation mode, as in detection models, with statistics that never saw data."

    def frozen(m: nn.Module) -> nn.Module:
        new = (Frozen1d if isinstance(m, nn.BatchNorm1d) else Frozen2d)(m.num_features)
        return new.eval()

    if not replaced(t.model, (nn.BatchNorm1d, nn.BatchNorm2d), frozen):
        return False


@fault("M14", "waves friedman multi_label")
def keep_probability(t: Training) -> None:
    "`Dropout(0.9)`, where 0.9 was the share to keep in TensorFlow 1."
    if not replaced(t.model, (nn.Dropout,), lambda _: nn.Dropout(0.9)):
        replaced(t.model, ACTIVATIONS, lambda m: nn.Sequential(m, nn.Dropout(0.9)))


@fault("T5 M18 M14", "clusters multi_label deep_norm")
def dropout_never_off(t: Training) -> None:
    "`F.dropout(x, 0.5)` in `forward`, without `training=self.training`."
    replaced(t.model, ACTIVATIONS, lambda m: Then(m, lambda x: F.dropout(x, 0.5)))


@fault("M14 M18", "houses counts recommender")
def dropout_on_the_prediction(t: Training) -> None:
    "Dropout after each layer, the last one included, of a regression."
    t.model = nn.Sequential(t.model, nn.Dropout(0.5))


@fault("M14 M18", "deep_norm digits_conv")
def dropout_before_each_norm(t: Training) -> None:
    "Dropout between each layer and its normalisation."
    if not replaced(t.model, (nn.BatchNorm1d, nn.BatchNorm2d), lambda m: nn.Sequential(nn.Dropout(0.6), m)):
        return False


# --- loss ---


@fault("L5 M13", "clusters waves lstm")
def class_numbers_as_numbers(t: Training) -> None:
    "One output, and the squared error of the class number."
    parent, name = (t.model, "out") if hasattr(t.model, "out") else (t.model, str(len(t.model) - 1))
    setattr(parent, name, nn.Linear(getattr(parent, name).in_features, 1))
    t.loss = lambda out, y: F.mse_loss(out.squeeze(1), y.float())
    t.metric = t.honest = lambda out, y: (out.squeeze(1).round() == y).float().mean()


@fault("L5", "multi_label")
def one_class_of_several(t: Training) -> None:
    "`CrossEntropyLoss` on rows with several ones: it takes them as probabilities."
    t.loss = nn.CrossEntropyLoss()


@fault("L3 L8", "clusters digits_conv next_symbol")
def nll_on_raw_scores(t: Training) -> None:
    "`NLLLoss`, and the `log_softmax` was lost in a rewrite."
    t.loss = nn.NLLLoss()


@fault("L2", "clusters digits_conv next_symbol")
def probabilities_into_cross_entropy(t: Training) -> None:
    "`forward` returns `F.softmax(x, 1)`, as in Keras, and the loss is `CrossEntropyLoss`."
    t.model = Then(t.model, lambda out: F.softmax(out, 1))


@fault("L8", "counts lstm deep_norm")
def likelihood_without_minus(t: Training) -> None:
    "The log-likelihood is minimised."
    with_loss(t, lambda out, y, old: -old(out, y))


@fault("L7 O3", "friedman moons digits_conv")
def sum_of_the_batch(t: Training) -> None:
    "`reduction='sum'` and a rate for the mean."
    with_loss(t, lambda out, y, old: old(out, y) * len(y))


@fault("L7 O3 A3", "clusters friedman moons")
def divided_by_the_data_set(t: Training) -> None:
    "Each batch's loss is divided by `len(dataset)`, as in a printed mean."
    n = len(t.train[0])
    with_loss(t, lambda out, y, old: old(out, y) / n)


@fault("L6", "houses friedman counts")
def squeezed_predictions(t: Training) -> None:
    "`loss(model(x).squeeze(), y)` with targets of one column."
    with_loss(t, lambda out, y, old: old(out.squeeze(1), y))


@fault("L12 O5", "friedman clusters digits_conv")
def l1_of_all_weights(t: Training) -> None:
    "A penalty that sums over all weights, with a factor for a mean."
    model = t.model
    with_loss(t, lambda out, y, old: old(out, y) + 0.1 * sum(p.abs().sum() for p in model.parameters()))


@fault("M4 M5", "clusters houses transformer")
def loss_made_a_new_tensor(t: Training) -> None:
    "`torch.tensor(loss.item(), requires_grad=True)`, an answer found for `element 0 of tensors does not require grad`."
    with_loss(t, lambda out, y, old: torch.tensor(old(out, y).item(), requires_grad=True))


@fault("R1 L5", "friedman")
def logarithm_of_negative_targets(t: Training) -> None:
    "The squared error of logarithms, from a competition on sales; these targets are below -1 at times."
    t.loss = lambda out, y: F.mse_loss(torch.log1p(out), torch.log1p(y))


@fault("L9 A5", "clusters deep_norm lstm")
def weights_by_whole_division(t: Training) -> None:
    "Class weights `counts.min() // counts`: 1 for the rarest class, 0 for the others."
    counts = torch.bincount(t.train[1])
    t.loss = nn.CrossEntropyLoss(weight=(counts.min() // counts).float())


# --- metrics ---


@fault("D21 L11 L10", "tagger", "report")
def pads_counted_as_errors(t: Training) -> None:
    "The accuracy compares all places, and the pads are never right."
    t.metric = lambda out, y: (out.argmax(1) == y).float().mean()


@fault("L6 L11 L10", "houses friedman recommender", "report")
def error_of_all_pairs(t: Training) -> None:
    "The mean absolute error of a column and a row."
    t.metric = lambda out, y: mae(out, y.squeeze(1))


@fault("L11 L10", "multi_label rare breast-linear-rmsprop", "report")
def probability_above_zero(t: Training) -> None:
    "`(out.sigmoid() > 0) == y`: the threshold is that of logits."
    t.metric = lambda out, y: ((out.sigmoid() > 0) == (y > 0.5)).float().mean()


@fault("L11", "clusters digits_conv lstm", "report")
def correct_items_not_divided(t: Training) -> None:
    "The number of correct items of a batch, averaged over batches."
    t.metric = lambda out, y: (out.argmax(1) == y).float().sum()


# --- optimizer ---


@fault("O3 R2 R4 A10", "lstm transformer tagger")
def rate_of_sgd_for_adam(t: Training) -> None:
    "0.3 from a recipe with SGD."
    t.lr = 0.3


@fault("O3 O7 A3 A10", "clusters transformer digits_conv")
def rate_of_fine_tuning(t: Training) -> None:
    "2e-5, for weights that start at random."
    t.lr = 2e-5


@fault("O5 L12", "houses lstm tagger")
def decay_of_adamw_in_adam(t: Training) -> None:
    "`weight_decay=0.1` is common with AdamW; Adam adds it to the gradient."
    t.opt = partial(torch.optim.Adam, weight_decay=0.1)


@fault("O4 R2", "houses autoencoder counts")
def betas_in_the_wrong_order(t: Training) -> None:
    "`betas=(0.999, 0.9)`."
    t.opt = partial(torch.optim.Adam, betas=(0.999, 0.9))


@fault("O4 O3 A3", "houses autoencoder multi_label")
def epsilon_of_one(t: Training) -> None:
    "`eps=1.0`, from the recipe of Inception."
    t.opt = partial(torch.optim.Adam, eps=1.0)


@fault("O3 O4 R2 R4", "clusters moons digits_conv")
def momentum_with_three_nines(t: Training) -> None:
    "`momentum=0.999`, mistaken for a beta of Adam."
    t.opt = partial(torch.optim.SGD, momentum=0.999)


@fault("O3 A10 A3 O7", "houses clusters digits_conv")
def adadelta_of_keras(t: Training) -> None:
    "`Adadelta(lr=0.001)`, the default of Keras."
    t.opt, t.lr = torch.optim.Adadelta, 1e-3


@fault("O1 O2 R7", "clusters houses lstm")
def optimizer_of_an_older_model(t: Training) -> None:
    "The cell that makes the model is run again, and that of the optimizer is not."
    older, base = copy.deepcopy(t.model), t.opt
    t.opt = lambda params, **settings: base(older.parameters(), **settings)


@fault("O1 R7", "multi_label transformer friedman")
def only_the_group_without_decay(t: Training) -> None:
    "Two groups, with and without decay, and only the second is passed on: biases and normalisation."
    chosen, base = [p for p in t.model.parameters() if p.dim() == 1], t.opt
    t.opt = lambda params, **settings: base(chosen, **settings)


@fault("O3 R2 R4 R8", "clusters friedman moons")
def gradients_never_zeroed(t: Training) -> None:
    "`optimizer.zero_grad()` is missing: each update uses the sum of all gradients so far."
    total: dict[nn.Parameter, Tensor] = {}

    def add(cb: Callback) -> None:
        for p in cb.learn.model.parameters():
            if p.grad is not None:
                total[p] = p.grad.clone() + total.get(p, 0)
                p.grad.copy_(total[p])

    t.cbs = [*t.cbs, Callback(after_backward=add)]


@fault("O3 R5 A3", "clusters digits_conv friedman")
def clipped_at_a_thousandth(t: Training) -> None:
    "Gradients are clipped to a norm of 0.001."
    t.cbs = [*t.cbs, GradientClip(1e-3)]


@fault("O9 O4 R1", "houses multi_label rare")
def all_in_half_precision(t: Training) -> None:
    "`model.half()`, and Adam with its default `eps`, which is 0 in this precision."

    class Half(nn.Module):
        def __init__(self, body: nn.Module):
            super().__init__()
            self.body = body.half()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.half()).float()

    t.model = Half(t.model)


@fault("O9 O3 R1 R2", "clusters friedman moons")
def loss_scaled_and_never_unscaled(t: Training) -> None:
    "`scaler.scale(loss).backward()`, then `optimizer.step()` instead of `scaler.step(optimizer)`."
    with_loss(t, lambda out, y, old: old(out, y) * 65536)


# --- length, schedule, batches, stopping ---


@fault("O6 A3 O3", "clusters houses digits_conv")
def step_schedule_in_batches(t: Training) -> None:
    "`StepLR(opt, 2, 0.1)` was meant in epochs and steps after each batch."
    t.cbs = [*t.cbs, TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, 0.1))]


@fault("O6 A3 O3", "clusters transformer friedman")
def warm_up_that_never_ends(t: Training) -> None:
    "A warm-up of 10,000 updates in a run of a few hundred."
    t.cbs = [*t.cbs, TorchScheduler(lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 10_000)))]


@fault("O7 A3", "lstm tagger autoencoder")
def one_epoch(t: Training) -> None:
    "`epochs = 1`, from the first try."
    t.epochs = 1


@fault("O8 O7 A3", "clusters houses digits_conv")
def epoch_of_one_update(t: Training) -> None:
    "The batch fills the memory of the device, and an epoch is one update."
    t.bs = min(1024, len(t.train[0]))


@fault("O8 D19 M18", "deep_norm table-embed-sgd digits_conv")
def batches_of_two_with_norm(t: Training) -> None:
    "Two items per batch, because the memory is small, and batch normalisation."
    t.bs = 2


@fault("A9 A3 O7", "clusters houses multi_label")
def stopped_by_an_improvement(t: Training) -> None:
    "Early stopping with the direction of the accuracy, on the loss."
    t.cbs = [*t.cbs, EarlyStopping("valid_loss", comp="max", patience=1)]


@fault("A9", "houses clusters tagger")
def worst_epoch_restored(t: Training) -> None:
    "The weights of the epoch with the highest loss are loaded at the end: `>` for `<`."
    t.cbs = [*t.cbs, EarlyStopping("valid_loss", comp="max", patience=1000, restore=True)]


@fault("A1 A9 M19", "clusters multi_label friedman")
def long_on_few_rows(t: Training) -> None:
    "A hundred epochs on the first 100 rows."
    t.train, t.epochs, t.bs = (t.train[0][:100], t.train[1][:100]), 100, 20
