"""A second set of faults, each a function that spoils a healthy `Training` of fault_tasks.py, as people make them.

Their author had seen neither the checks and their tests nor the code of the first set, only the names of its faults, and the tables of
codes in the specification, with signals and limits. `MUTATORS[name]` has `change`, `codes`, `where`, and `tasks`, to which the fault was meant to apply. The targets of the test
part stay as they are. Its inputs change only where the program itself would treat them so at prediction: a wrong scale in a preprocessing
function harms only by what the model learned. `NUMBERS` has the number of each code.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lr_tasks
import mutators
import torch
from fault_tasks import LSTM, Pair, Tagger, Training, Transformer
from mutators import BENT, NORMS, Change, Mutator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from cbnb import GradientClip, TorchScheduler

NUMBERS = {
    **{"nonfinite": "D1", "input-scale": "D2", "constant-input": "D3", "column-scales": "D4", "integer-input": "D5"},
    **{"targets-scale": "D7", "constant-target": "D8", "imbalance": "D9", "sorted-batches": "D10", "label-range": "D11"},
    **{"leak-rows": "D12", "leak-group": "D13", "leak-feature": "D14", "shift": "D15", "augmented-validation": "D16"},
    **{"heavy-augmentation": "D17", "mislabelled": "D18 A7", "tiny-batch": "D19", "duplicates": "D20", "pads-ignored": "D21"},
    **{"ignores-input": "M1", "batch-mixing": "M2", "time-leak": "M3", "no-gradient": "M4", "unused": "M5", "zero-gradient": "M6"},
    **{"symmetric": "M7", "init-scale": "M8", "dead-relu": "M9", "saturated": "M10", "linear-linear": "M11"},
    **{"output-activation": "M12", "width": "M13", "dropout": "M14", "vanishing": "M16", "exploding": "M17", "train-eval-gap": "M18"},
    **{"capacity": "M19", "receptive-field": "M20", "initial-loss": "L1", "softmax-twice": "L2", "missing-logsoftmax": "L3"},
    **{"softmax-one": "L4", "wrong-loss": "L5", "broadcast": "L6", "sum": "L7", "negative": "L8", "weighted-mean": "L9"},
    **{"not-representative": "L10", "metric-range": "L11", "regulariser-dominates": "L12", "missing-params": "O1"},
    **{"stale-params": "O2", "rate-range": "O3", "eps-betas": "O4", "decay": "O5", "schedule-steps": "O6", "too-short": "O7 A3"},
    **{"batch-size": "O8", "overfit-one-batch": "T1", "inputs-zeroed": "T2", "shuffled-labels": "T3", "same-twice": "T5"},
    **{"nan": "R1", "diverging": "R2", "not-learning": "R3", "oscillating": "R4", "update-ratio": "R5", "dying": "R6"},
    **{"frozen-layer": "R7", "spikes": "R8", "edge-of-stability": "R9", "gradient-noise": "R10", "mode": "R13"},
    **{"overfit": "A1", "underfit": "A2", "too-good": "A4", "majority": "A5", "rate-out-of-band": "A10", "weak-segments": "A11"},
}
# Several codes that name the same: misfit of inputs and labels; a rate that is too high; one that is too low
UNRELATED = "mislabelled shuffled-labels inputs-zeroed"
HIGH = "rate-range rate-out-of-band diverging oscillating update-ratio edge-of-stability"
LOW = "rate-range rate-out-of-band update-ratio edge-of-stability too-short"
UNTRAINED = "no-gradient unused missing-params frozen-layer"


MUTATORS: dict[str, Mutator] = {}


def fault(codes: str, tasks: str, where: str = "model") -> Callable[[Change], Change]:
    assert set(codes.split()) <= set(NUMBERS), set(codes.split()) - set(NUMBERS)
    return mutators.fault(codes, where, tasks, MUTATORS)


# --- helpers ---


def inputs(t: Training, change: Callable[[Tensor], Tensor], everywhere: bool = True) -> None:
    """Of training and validation, and where the program would prepare them too, of test."""
    t.train = change(t.train[0]), t.train[1]
    if t.valid:
        t.valid = change(t.valid[0]), t.valid[1]
    if everywhere:
        t.test = change(t.test[0]), t.test[1]


def targets(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    t.train = t.train[0], change(t.train[1])
    if t.valid:
        t.valid = t.valid[0], change(t.valid[1])


def both(t: Training, change: Callable[[Pair], Pair]) -> None:
    """The same mistake in both files of the program."""
    t.train = change(t.train)
    if t.valid:
        t.valid = change(t.valid)


def spot(model: nn.Module, kinds: Any, last: bool = True) -> tuple[nn.Module, str]:
    """Parent and name of the last (or first) layer of some kinds."""
    found = [name for name, child in model.named_modules() if isinstance(child, kinds)]
    path, _, name = found[-1 if last else 0].rpartition(".")
    return model.get_submodule(path), name


def put(model: nn.Module, kinds: Any, new: Callable[[nn.Module], nn.Module], last: bool = True) -> None:
    parent, name = spot(model, kinds, last)
    setattr(parent, name, new(getattr(parent, name)))


class After(nn.Module):
    """A model and something done to its output."""

    def __init__(self, model: nn.Module, act: Callable[[Tensor], Tensor]):
        super().__init__()
        self.net, self.act = model, act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.net(x))


def optimizer(t: Training, **more: Any) -> None:
    """The same class with other options."""
    t.opt = partial(t.opt, **more)


def subclass(t: Training, step: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """An optimizer whose step does something else, too."""
    base, more = (t.opt.func, t.opt.keywords) if isinstance(t.opt, partial) else (t.opt, {})

    class Own(base):  # type: ignore[misc, valid-type]
        def step(self, closure: Any = None) -> Any:
            return step(self, super().step)

    t.opt = partial(Own, **more)


# --- data: values ---


@fault("input-scale", "digits-deep8-adam autoencoder waves friedman lstm")
def multiplied_by_255_again(t: Training) -> bool | None:
    """`x * 255` was meant for a picture to be shown, and stayed in the function that prepares the inputs."""
    if not t.train[0].is_floating_point():
        return False
    inputs(t, lambda x: x * 255)


@fault("input-scale column-scales", "houses friedman clusters counts multi_label")
def date_as_seconds(t: Training) -> None:
    """One column holds days since the epoch in seconds."""

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 1] = 1.6e9 + 86400 * (100 * x[:, 1]).round()
        return x

    inputs(t, change)


@fault("input-scale column-scales", "houses clusters multi_label shells-mlp-adam breast-linear-rmsprop")
def unknown_is_minus_999(t: Training) -> None:
    """Of the cells, 3% are unknown, and the file says so with -999."""

    def change(x: Tensor) -> Tensor:
        return x.masked_fill(torch.rand(x.shape, generator=torch.Generator().manual_seed(len(x))) < 0.03, -999.0)

    inputs(t, change)


@fault("nonfinite nan", "friedman moons counts adding-recurrent-sgd segmentation")
def three_nan_cells(t: Training) -> None:
    x = t.train[0].clone()
    for row in (len(x) // 5, len(x) // 2, len(x) - 40):
        x[row].view(-1)[1] = float("nan")
    t.train = x, t.train[1]


@fault("nonfinite nan", "houses counts adding-recurrent-sgd")
def two_infinite_targets(t: Training) -> None:
    """A ratio whose denominator was zero in two rows."""
    y = t.train[1].clone()
    y[[30, len(y) // 2]] = float("inf")
    t.train = t.train[0], y


@fault("targets-scale spikes mislabelled exploding", "houses recommender counts adding-recurrent-sgd")
def lost_decimal_points(t: Training) -> None:
    """One target in a hundred was typed without its decimal point."""

    def change(y: Tensor) -> Tensor:
        y = y.clone()
        y[::100] *= 1000
        return y

    targets(t, change)


@fault("targets-scale initial-loss", "houses friedman adding-recurrent-sgd recommender")
def target_is_a_year(t: Training) -> None:
    """The targets lie around 2000, with the same spread as before."""
    targets(t, lambda y: y + 2000)
    score = t.score
    t.score = lambda out, y: score(out - 2000, y)


@fault(
    "targets-scale constant-target rate-range rate-out-of-band update-ratio initial-loss init-scale not-learning",
    "houses friedman adding-recurrent-sgd autoencoder",
)
def target_in_millions(t: Training) -> None:
    targets(t, lambda y: y / 1e6)
    score = t.score
    t.score = lambda out, y: score(out * 1e6, y)


@fault("input-scale constant-input integer-input inputs-zeroed", "digits_conv deep_norm clusters waves moons")
def bytes_after_scaling(t: Training) -> None:
    """The scaled numbers go through an array of bytes: 0.7 becomes 0, and -1.2 becomes 255."""
    inputs(t, lambda x: (x.trunc().long() % 256).float())


@fault("constant-input ignores-input inputs-zeroed unused zero-gradient", "recommender next_symbol table-embed-sgd lstm tagger")
def numbers_of_kinds_scaled(t: Training) -> None:
    """The scaler for all columns also took the ids, which become 0 when they are read as whole numbers."""

    def change(x: Tensor, n: int = t.categories or t.train[0].shape[1]) -> Tensor:
        top = t.train[0][:, :n].amax(0) + 1
        return torch.cat([(x[:, :n] / top).long().to(x.dtype), x[:, n:]], 1)

    change_now = [change(pair[0]) for pair in (t.train, t.valid or t.train, t.test)]
    t.train, t.test = (change_now[0], t.train[1]), (change_now[2], t.test[1])
    if t.valid:
        t.valid = change_now[1], t.valid[1]


@fault("constant-input shift", "friedman houses moons shells-mlp-adam table-embed-sgd")
def a_join_without_matches(t: Training) -> None:
    """An informative column was filled with zeros in the file for training, but not where the model is used."""
    column = dict(friedman=3, houses=0, moons=1).get(
        t.train[0].shape[1] == 10 and "friedman" or t.train[0].shape[1] == 6 and "houses" or "moons", 1
    )
    column = 3 if t.categories else column

    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, column] = 0
        return x

    inputs(t, change, everywhere=False)


@fault("duplicates overfit capacity", "clusters waves friedman digits_conv multi_label lstm")
def seeded_in_each_item(t: Training) -> None:
    """A seed that is set where an item is read: the same 40 rows come again and again."""
    chosen = torch.arange(len(t.train[0])) % 40
    t.train = t.train[0][chosen], t.train[1][chosen]


@fault(
    "input-scale shift heavy-augmentation augmented-validation diverging same-twice", "digits_conv autoencoder deep_norm waves segmentation"
)
def scaled_in_place_at_each_reading(t: Training) -> None:
    """`x *= 2; x -= 1` changes the stored row, which is read again in the next epoch."""

    def scale(x: Tensor) -> Tensor:
        return x.mul_(2).sub_(1)

    t.train, t.valid = (t.train[0].clone(), t.train[1]), (t.valid[0].clone(), t.valid[1])
    t.augment = t.valid_augment = scale
    t.test = t.test[0] * 2 - 1, t.test[1]


# --- data: what belongs to what ---


@fault(UNRELATED, "waves digits_conv multi_label tagger friedman")
def label_file_lacks_a_row(t: Training) -> None:
    """A broken item was left out of the inputs, early in the file, but not out of the labels."""

    def change(pair: Pair) -> Pair:
        x, y = pair
        cut = len(x) // 10
        return torch.cat([x[:cut], x[cut + 1 :]]), y[:-1]

    both(t, change)


@fault(UNRELATED, "segmentation lstm breast-linear-rmsprop clusters counts")
def names_sorted_as_text(t: Training) -> None:
    """The inputs were read in the order of `sorted(names)`: 1, 10, 100, 1000, 101, and the targets in that of numbers."""

    def change(pair: Pair) -> Pair:
        return pair[0][sorted(range(len(pair[0])), key=str)], pair[1]

    both(t, change)


@fault(UNRELATED, "houses next_symbol transformer moons recommender")
def only_the_inputs_sorted(t: Training) -> None:
    def change(pair: Pair) -> Pair:
        x = pair[0]
        return x[x.reshape(len(x), -1)[:, 0].argsort()], pair[1]

    both(t, change)


@fault(UNRELATED, "contrastive autoencoder")
def pairs_read_by_two_loaders(t: Training) -> None:
    """Two loaders with shuffle=True, one for each half of a pair."""

    def change(pair: Pair) -> Pair:
        x, y = pair
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
        if y.dim() == 2:
            return x, y[order]
        return torch.stack([x[:, 0], x[order, 1]], 1), y

    both(t, change)


@fault("leak-feature time-leak too-good", "next_symbol")
def not_shifted(t: Training) -> None:
    """The target is the last symbol of the inputs, in place of the one after it."""
    t.train = t.train[0], t.train[0][:, -1].clone()


@fault("leak-feature too-good shift", "clusters counts breast-linear-rmsprop friedman shells-mlp-adam")
def mean_target_of_each_id(t: Training) -> None:
    """A column was encoded by the mean target of an id that is nearly always unique; new ids get the mean of all."""
    mean = t.train[1].float().mean()

    def change(x: Tensor, y: Tensor | None) -> Tensor:
        x = x.clone()
        x[:, 0] = mean if y is None else y.float().reshape(-1)
        return x

    t.test = change(t.test[0], None), t.test[1]
    t.train = change(*t.train), t.train[1]
    t.valid = change(t.valid[0], None), t.valid[1]


@fault("imbalance majority shift", "clusters waves shells-mlp-adam digits_conv")
def a_class_nearly_lost(t: Training) -> None:
    """A filter removed almost all items of the first half of the classes, in training and validation."""

    def change(pair: Pair) -> Pair:
        x, y = pair
        most = int(y.max()) // 2
        keep = (y > most) | (torch.arange(len(y)) % 40 == 0)
        return x[keep], y[keep]

    both(t, change)


@fault("sorted-batches oscillating train-eval-gap", "digits_conv waves deep_norm clusters lstm")
def each_batch_of_one_class(t: Training) -> None:
    """A sampler that fills each batch from one folder."""
    y = t.train[1]
    blocks = y.argsort(stable=True)[: len(y) // t.bs * t.bs].view(-1, t.bs)
    order = blocks[torch.randperm(len(blocks), generator=torch.Generator().manual_seed(3))].reshape(-1)
    t.train, t.shuffle = (t.train[0][order], y[order]), False


@fault("heavy-augmentation mislabelled shuffled-labels", "digits_conv segmentation tagger moons contrastive")
def augmented_beyond_the_label(t: Training) -> None:
    """Digits turned any way, a picture flipped without its mask, words in random order, points mirrored, one view of two mixed up."""
    x = t.train[0]
    if x.dim() == 4 and t.train[1].dim() == 1:
        t.augment = lambda row: torch.rot90(row, int(torch.randint(4, ())), (1, 2)).flip(2 if torch.rand(()) < 0.5 else ())
    elif x.dim() == 4:
        t.augment = lambda row: row.flip((1, 2)) if torch.rand(()) < 0.75 else row
    elif not x.is_floating_point():
        t.augment = lambda row: row[torch.randperm(len(row))]
    elif x.dim() == 3:
        t.augment = lambda row: torch.stack([row[0], row[1][torch.randperm(16)]])
    else:
        t.augment = lambda row: row * (2 * torch.randint(0, 2, row.shape) - 1)


# --- data: validation ---


@fault("shift", "clusters houses breast-linear-rmsprop waves segmentation", "report")
def validation_from_another_device(t: Training) -> None:
    """Another offset and half the gain."""
    t.valid = t.valid[0] * 0.5 + 1.0, t.valid[1]


@fault("leak-rows leak-group duplicates too-good", "houses clusters shells-mlp-adam friedman waves deep_norm", "report")
def augmented_before_the_split(t: Training) -> None:
    """Copies with a little noise were added first, so that each item of validation has a sibling in training. Trained for long."""
    x, y = t.train
    n = len(t.valid[0])
    t.valid = x[:n] + 0.01 * torch.randn(x[:n].shape, generator=torch.Generator().manual_seed(1)), y[:n]
    t.epochs *= 5


@fault("leak-rows duplicates too-good shift", "rare breast-linear-rmsprop table-embed-sgd", "report")
def oversampled_before_the_split(t: Training) -> None:
    """The rare class was repeated before the split: both parts have the same rows of it, and validation is all of that class but a few."""
    x, y = t.train
    rows = (y[:, 0] == (1 if y.mean() < 0.5 else 0)).nonzero()[:, 0]
    many = rows[torch.arange(len(y)) % len(rows)]
    t.train = torch.cat([x, x[many]]), torch.cat([y, y[many]])
    t.valid = torch.cat([t.valid[0], x[many]]), torch.cat([t.valid[1], y[many]])


@fault("broadcast metric-range not-representative", "rare breast-linear-rmsprop table-embed-sgd", "report")
def metric_of_all_pairs(t: Training) -> None:
    """The metric compares a column with a row."""
    t.metric = lambda out, y: ((out > 0) == (y[:, 0] > 0.5)).float().mean()


@fault("metric-range not-representative softmax-one", "breast-linear-rmsprop rare table-embed-sgd", "report")
def metric_takes_argmax_of_one(t: Training) -> None:
    t.metric = lambda out, y: (out.argmax(1) == y[:, 0]).float().mean()


@fault("metric-range not-representative", "multi_label breast-linear-rmsprop rare clusters", "report")
def metric_counts_hits(t: Training) -> None:
    """Hits are summed and divided by a fixed batch size of 32."""
    t.metric = lambda out, y: ((out.argmax(1) == y) if t.kind == "classes" else ((out > 0) == (y > 0.5))).sum() / 32


# --- sequences and masks ---


@fault("pads-ignored weak-segments wrong-loss label-range", "tagger segmentation waves clusters")
def ignored_label_is_a_class(t: Training) -> None:
    """`ignore_index=0`, as 0 was the pad of another project; here it is the first class."""
    targets(t, lambda y: y.clamp(min=0))
    t.loss = nn.CrossEntropyLoss(ignore_index=0)


class LastPlace(LSTM):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(x))[0][:, -1])


class Unmasked(Transformer):
    def forward(self, x: Tensor) -> Tensor:
        places = self.places.repeat(x.shape[1] // len(self.places), 1)
        return self.out(self.norm(self.blocks(self.embed(x) + places).mean(1)))


@fault("pads-ignored vanishing ignores-input not-learning", "lstm transformer")
def pads_read_as_words(t: Training) -> None:
    """Everything is padded to 60 places, and the model takes the pads for words: the last state is that of a pad."""
    t.model = LastPlace() if isinstance(t.model, LSTM) else Unmasked()
    inputs(t, lambda x: F.pad(x, (0, 48)))


class Inverted(Transformer):
    def forward(self, x: Tensor) -> Tensor:
        kept = x == 0
        kept[:, 0] |= ~kept.any(1)
        states = self.blocks(self.embed(x) + self.places, src_key_padding_mask=~kept)[..., :]
        return self.out(self.norm((states * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)))


class PadsCounted(LSTM):
    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x))
        return self.out(states[torch.arange(len(x)), (x == 0).sum(1).sub(1).clamp(min=0)])


@fault("pads-ignored ignores-input inputs-zeroed not-learning unused", "transformer lstm")
def mask_upside_down(t: Training) -> None:
    """True means 'ignore' in one library and 'keep' in another."""
    t.model = PadsCounted() if isinstance(t.model, LSTM) else Inverted()


@fault("batch-mixing", "lstm tagger")
def batch_first_forgotten(t: Training) -> None:
    (t.model.lstm if isinstance(t.model, LSTM) else t.model.gru).batch_first = False


class Reread(nn.Module):
    """Reshapes the input of a model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.net = model

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.reshape(x.shape[0], x.shape[2], x.shape[1]).transpose(1, 2).contiguous())


class TaggerView(Tagger):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0]).reshape(len(x), 5, -1)


@fault("batch-mixing", "tagger adding-recurrent-sgd segmentation")
def reshape_for_transpose(t: Training) -> None:
    """`reshape` to the right shape where axes should be swapped."""
    if isinstance(t.model, Tagger):
        t.model = TaggerView()
    elif t.train[1].dim() == 3:
        t.model = After(t.model, lambda out: out.permute(0, 2, 3, 1).reshape(out.shape))
    else:
        t.model = Reread(t.model)


# --- loss and output ---


@fault("softmax-twice saturated output-activation", "clusters waves digits-deep8-adam lstm transformer digits_conv")
def softmax_inside_the_model(t: Training) -> None:
    t.model = After(t.model, lambda out: out.softmax(1))


@fault("softmax-twice output-activation saturated", "multi_label rare moons breast-linear-rmsprop table-embed-sgd")
def sigmoid_inside_the_model(t: Training) -> None:
    t.model = After(t.model, torch.sigmoid)


@fault("batch-mixing softmax-twice missing-logsoftmax", "clusters digits_conv waves next_symbol shells-mlp-adam deep_norm")
def softmax_over_the_batch(t: Training) -> None:
    """`log_softmax(0)` and the negative log likelihood."""
    t.model, t.loss = After(t.model, lambda out: out.log_softmax(0)), nn.NLLLoss()


@fault("missing-logsoftmax negative diverging wrong-loss", "clusters shells-mlp-adam digits_conv next_symbol transformer")
def nll_of_the_last_layer(t: Training) -> None:
    t.loss = nn.NLLLoss()


@fault("wrong-loss width output-activation", "clusters digits-deep8-adam waves shells-mlp-adam")
def class_number_as_a_number(t: Training) -> None:
    """One output and the squared error to the number of the class."""
    put(t.model, nn.Linear, lambda old: nn.Linear(old.in_features, 1))
    t.loss = lambda out, y: F.mse_loss(out[:, 0], y.float())
    t.metric = t.honest = lambda out, y: (out[:, 0].round() == y).float().mean()


@fault("softmax-one wrong-loss zero-gradient width not-learning no-gradient", "moons rare breast-linear-rmsprop table-embed-sgd")
def cross_entropy_of_one_output(t: Training) -> None:
    t.loss = nn.CrossEntropyLoss()


@fault("wrong-loss softmax-twice", "multi_label")
def softmax_for_labels_that_go_together(t: Training) -> None:
    t.loss = lambda out, y: F.cross_entropy(out, y.argmax(1))


@fault("wrong-loss nan nonfinite negative diverging output-activation", "counts")
def poisson_takes_logs_for_rates(t: Training) -> None:
    t.loss = nn.PoissonNLLLoss(log_input=False)


@fault(
    "sum rate-range rate-out-of-band update-ratio initial-loss too-short not-learning",
    "friedman clusters digits_conv moons adding-recurrent-sgd",
)
def mean_divided_by_the_batch_size(t: Training) -> None:
    """The mean of the loss, divided once more by the number of items, and once more by that of accumulated batches, which is 4."""
    loss = t.loss
    t.loss = lambda out, y: loss(out, y) / len(y) / 4


@fault("zero-gradient no-gradient not-learning unused output-activation frozen-layer", "recommender counts adding-recurrent-sgd houses")
def rounded_in_forward(t: Training) -> None:
    t.model = After(t.model, torch.round)


@fault("output-activation dead-relu zero-gradient saturated", "houses friedman adding-recurrent-sgd counts")
def clamped_to_unit(t: Training) -> None:
    t.model = After(t.model, lambda out: out.clamp(0, 1))


@fault(f"{UNTRAINED} zero-gradient not-learning", "waves breast-linear-rmsprop counts tagger segmentation")
def loss_put_into_a_new_tensor(t: Training) -> None:
    loss = t.loss
    t.loss = lambda out, y: torch.tensor(loss(out, y).item(), requires_grad=True)


# --- model ---


class Silent(nn.Module):
    """A table whose rows are read from `.data`."""

    def __init__(self, table: nn.Embedding):
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.table.weight.data)


@fault(UNTRAINED, "recommender next_symbol table-embed-sgd")
def tables_read_as_data(t: Training) -> None:
    for module in list(t.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Embedding) and not isinstance(module, Silent):
                setattr(module, name, Silent(child))


@fault(UNTRAINED, "clusters digits_conv lstm tagger autoencoder contrastive")
def all_but_biases_frozen(t: Training) -> None:
    """A filter by name froze the wrong half."""
    for name, value in t.model.named_parameters():
        value.requires_grad_("bias" in name)


class EvalOnly(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.net = model

    def forward(self, x: Tensor) -> Tensor:
        self.net.eval()
        return self.net(x)


@fault("mode train-eval-gap frozen-layer", "table-embed-sgd deep_norm digits_conv segmentation")
def always_in_eval_mode(t: Training) -> None:
    """The inputs have another scale than that with which the norms start."""
    inputs(t, lambda x: x * 10 if not t.categories else x)
    t.model = EvalOnly(t.model)


@fault("train-eval-gap mode", "digits_conv deep_norm segmentation table-embed-sgd")
def momentum_of_norms_from_keras(t: Training) -> None:
    """0.999 is the share that is kept: 0.001 in PyTorch, far too slow for a few hundred updates."""
    for module in t.model.modules():
        if isinstance(module, NORMS):
            module.momentum = 0.001


class Drop(nn.Module):
    """Dropout by the function, which is always on."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.share)


@fault("dropout train-eval-gap mode same-twice", "waves clusters digits-deep8-adam lstm transformer")
def functional_dropout_stays_on(t: Training) -> None:
    put(t.model, nn.Linear, lambda old: nn.Sequential(Drop(0.6), old))


@fault("dropout", "moons counts multi_label houses contrastive")
def keep_share_as_drop_share(t: Training) -> None:
    """Dropout of 0.8 after each activation, where 0.8 should be kept."""
    for module in list(t.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, BENT):
                setattr(module, name, nn.Sequential(child, nn.Dropout(0.8)))


@fault("ignores-input zero-gradient no-gradient not-learning inputs-zeroed", "houses friedman adding-recurrent-sgd moons rare")
def layer_norm_of_one_number(t: Training) -> None:
    put(t.model, nn.Linear, lambda old: nn.Sequential(old, nn.LayerNorm(1)))


class Loud(nn.Module):
    def __init__(self, old: lr_tasks.Residual):
        super().__init__()
        self.old = old

    def forward(self, x: Tensor) -> Tensor:
        return x + 30 * self.old.inner(x)


@fault("init-scale exploding initial-loss saturated vanishing", "friedman clusters5-residual-adamw")
def branches_far_too_loud(t: Training) -> None:
    """The branch of each residual block is scaled by 30, and no norm comes after the blocks."""
    for name, child in list(t.model.named_children()):
        if isinstance(child, lr_tasks.Residual):
            setattr(t.model, name, Loud(child))
        elif isinstance(child, nn.LayerNorm):
            setattr(t.model, name, nn.Identity())


@fault("init-scale exploding initial-loss saturated symmetric", "digits-deep8-adam clusters counts waves multi_label")
def weights_between_0_and_1(t: Training) -> None:
    for module in t.model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.uniform_(module.weight)


@fault("initial-loss init-scale saturated targets-scale", "houses multi_label rare recommender waves")
def bias_of_the_answer_far_off(t: Training) -> None:
    """The bias was set to a mean in another unit; with classes, that of the first one."""

    def change(old: nn.Module) -> nn.Module:
        with torch.no_grad():
            old.bias[0 if t.kind == "classes" else slice(None)] = -60.0 if t.kind in ("binary", "labels") else 60.0
        return old

    put(t.model, nn.Linear, change)


@fault("vanishing saturated zero-gradient init-scale not-learning", "clusters digits-deep8-adam multi_label houses")
def softmax_between_the_layers(t: Training) -> None:
    for module in list(t.model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, BENT):
                setattr(module, name, nn.Softmax(1))


@fault("capacity underfit width linear-linear", "clusters waves digits-deep8-adam tagger deep_norm")
def squeezed_through_one_unit(t: Training) -> None:
    put(t.model, nn.Linear, lambda old: nn.Sequential(nn.Linear(old.in_features, 1), nn.ReLU(), nn.Linear(1, old.out_features)))


@fault("receptive-field capacity underfit", "digits_conv waves")
def pooled_to_one_place(t: Training) -> None:
    """A pool as large as the picture after the first layer."""
    if t.train[0].dim() == 4:
        put(t.model, nn.MaxPool2d, lambda old: nn.Sequential(nn.AvgPool2d(8), nn.Upsample(scale_factor=4)), last=False)
    else:
        put(t.model, nn.GELU, lambda old: nn.Sequential(old, nn.AvgPool1d(14), nn.Upsample(scale_factor=14)), last=False)


class TwoHeads(nn.Module):
    def __init__(self, head: nn.Linear):
        super().__init__()
        self.main, self.other = head, nn.Linear(head.in_features, head.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return (self.main if self.training else self.other)(x)


@fault("unused train-eval-gap missing-params frozen-layer", "clusters houses deep_norm lstm tagger")
def answers_of_the_unused_head(t: Training) -> None:
    """The loss is that of one head; predictions come from another one."""
    put(t.model, nn.Linear, TwoHeads)


# --- optimizer and plan ---


@fault(HIGH, "clusters houses digits_conv lstm transformer waves table-embed-sgd")
def rate_x10(t: Training) -> None:
    t.lr *= 10


@fault(HIGH, "recommender tagger segmentation autoencoder counts contrastive friedman")
def rate_x100(t: Training) -> None:
    t.lr *= 100


@fault(LOW, "moons digits_conv shells-mlp-adam waves lstm friedman")
def rate_a_thirtieth(t: Training) -> None:
    t.lr /= 30


@fault(LOW, "tagger segmentation deep_norm breast-linear-rmsprop clusters5-residual-adamw next_symbol")
def rate_a_hundredth(t: Training) -> None:
    t.lr /= 100


@fault(f"{LOW} decay", "clusters friedman transformer recommender table-embed-sgd")
def rate_and_decay_swapped(t: Training) -> None:
    """The learning rate was given as weight decay, and the weight decay of 1e-5 as rate."""
    optimizer(t, weight_decay=t.lr)
    t.lr = 1e-5


@fault(HIGH, "houses lstm multi_label deep_norm transformer")
def rate_of_another_optimizer(t: Training) -> None:
    """A rate of 0.2, as it is used with plain SGD, and Adam."""
    t.lr = 0.2


@fault("schedule-steps rate-range too-short rate-out-of-band", "clusters waves tagger contrastive digits_conv")
def decayed_each_batch(t: Training) -> None:
    """A factor of 0.9 that was meant for each epoch."""
    t.cbs.append(TorchScheduler(lambda opt: lr_scheduler.ExponentialLR(opt, 0.9), every="update"))


@fault("schedule-steps rate-range too-short rate-out-of-band", "friedman segmentation lstm shells-mlp-adam moons")
def warm_up_longer_than_training(t: Training) -> None:
    t.cbs.append(TorchScheduler(lambda opt: lr_scheduler.LambdaLR(opt, lambda n: min(1, (n + 1) / 10000)), every="update"))


@fault("schedule-steps rate-range too-short rate-out-of-band update-ratio", "houses digits_conv multi_label transformer recommender")
def factor_is_the_rate(t: Training) -> None:
    """`LambdaLR` multiplies, and the function returns the rate itself."""
    rate = t.lr
    t.cbs.append(TorchScheduler(lambda opt: lr_scheduler.LambdaLR(opt, lambda n: rate * 0.99 ** (n // 50)), every="update"))


@fault(f"{LOW} vanishing not-learning", "clusters digits_conv moons friedman adding-recurrent-sgd")
def clipped_to_1e_4(t: Training) -> None:
    t.cbs.append(GradientClip(1e-4))


@fault("decay regulariser-dominates", "houses counts lstm contrastive multi_label tagger")
def decay_of_one_half(t: Training) -> None:
    t.opt = partial(torch.optim.Adam, weight_decay=0.5)


@fault(f"eps-betas {HIGH}", "clusters digits_conv moons friedman")
def momentum_999(t: Training) -> None:
    t.opt = partial(torch.optim.SGD, momentum=0.999)


@fault("batch-size too-short gradient-noise rate-range rate-out-of-band", "houses digits_conv waves tagger lstm")
def four_batches_an_epoch(t: Training) -> None:
    t.bs = len(t.train[0]) // 4


@fault(f"batch-size tiny-batch gradient-noise train-eval-gap {HIGH}", "clusters friedman digits_conv deep_norm")
def two_items_a_batch(t: Training) -> None:
    t.bs = 2


@fault("too-short", "autoencoder shells-mlp-adam contrastive tagger waves lstm")
def one_epoch(t: Training) -> None:
    t.epochs = 1


@fault("missing-params stale-params frozen-layer not-learning", "houses segmentation shells-mlp-adam lstm")
def optimizer_of_a_copy(t: Training) -> None:
    """The optimizer was made from a copy of the model."""
    make = t.opt

    def of_copy(params: Any, **more: Any) -> Any:
        return make(copy.deepcopy(list(params)), **more)

    t.opt = of_copy


@fault("missing-params frozen-layer", "tagger friedman deep_norm autoencoder recommender")
def groups_lack_the_matrices(t: Training) -> None:
    """Of the two groups, with and without decay, only the second one is passed."""
    make = t.opt

    def some(params: Any, **more: Any) -> Any:
        found = [p for part in params for p in (part["params"] if isinstance(part, dict) else [part])]
        return make([p for p in found if p.ndim < 2], **more)

    t.opt = some


def piled(opt: Any, step: Callable[[], Any]) -> Any:
    for group in opt.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                kept = opt.__dict__.setdefault("kept", {})
                kept[p] = kept[p] + p.grad if p in kept else p.grad.clone()
                p.grad.copy_(kept[p])
    return step()


@fault(f"{HIGH} exploding", "clusters houses digits_conv moons lstm")
def gradients_never_zeroed(t: Training) -> None:
    subclass(t, piled)


# --- the pairs ---

STORED = Path(__file__).with_name("second_verified.json")


def numbers(codes: Iterable[str]) -> list[str]:
    """Their numbers in the specification, such as D2."""
    return [number for code in codes for number in NUMBERS[code].split()]
