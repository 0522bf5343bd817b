"""Sixteen more small programs with documented faults, by the author of second_mutators.py: each with its fault, and with its fix.

The form is that of bench/faults/ports.py: a program fails if its score on the test part is above `limit`, and passes if it is not. It
must fail with each of five seeds before the fix, and pass with each after it. What is documented where is in the docstrings.
"""

from functools import cache, partial
from typing import Any

import fault_tasks as ft
import lr_tasks
import numpy as np
import torch
from fault_tasks import SGD, Adam, Pair, Training
from ports import Port, adds_to
from second_mutators import piled
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from cbnb import TorchScheduler

PORTS: dict[str, Port] = {}
port = adds_to(PORTS)


def parts(x: np.ndarray, y: np.ndarray, test: int = 400) -> dict[str, Pair]:
    """Random thirds are not needed: the rows are drawn independently."""
    a, b = lr_tasks.tensor(x), lr_tasks.tensor(y)
    cut = int(0.8 * (len(a) - test))
    return dict(train=(a[:cut], b[:cut]), valid=(a[cut:-test], b[cut:-test]), test=(a[-test:], b[-test:]))


CLASSES = dict(kind="classes", loss=nn.CrossEntropyLoss(), score=ft.errors, metric=ft.accuracy)


@cache
def digits() -> dict[str, Pair]:
    x, y = lr_tasks.datasets.load_digits(return_X_y=True)
    order = np.random.RandomState(7).permutation(len(x))
    return parts(x[order], y[order])


def pictures() -> dict[str, Pair]:
    return {k: (x / 16, y) for k, (x, y) in digits().items()}


class Coder(nn.Module):
    """A variational autoencoder of four hidden numbers; returns the picture with mean and log variance."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.code, self.outer = nn.Linear(64, 64), nn.Linear(64, 12), ft.mlp(6, 64, 64)

    def forward(self, x: Tensor) -> Tensor:
        mean, log = self.code(F.relu(self.inner(x))).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log / 2).exp() if self.training else mean
        return torch.cat([self.outer(code), mean, log], 1)


@port("regulariser-dominates ignores-input underfit inputs-zeroed", 0.8)
def divergence_summed_but_pixels_averaged(fixed: bool) -> Training:
    """The 'VAE gives the same blurry mean for each input': the error of pixels is a mean and the divergence is a sum."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        picture, (mean, log) = out[:, :64], out[:, 64:].chunk(2, 1)
        divergence = -0.5 * (1 + log - mean.pow(2) - log.exp()).sum()
        error = F.mse_loss(picture, y, reduction="sum" if fixed else "mean")
        return (error + 0.1 * divergence) / len(y) if fixed else error + divergence

    data = {k: (x, x) for k, (x, _) in pictures().items()}
    return Training(
        Coder(), loss, **data, opt=Adam, lr=3e-3, epochs=10, bs=32, kind="other", score=lambda out, y: ft.relative(out[:, :64], y)
    )


@cache
def written() -> tuple[np.ndarray, np.ndarray]:
    """Texts of nine symbols, each of which depends on the two before it, and the next symbols."""
    random = np.random.RandomState(81)
    table = random.randint(0, 8, (8, 8))
    text = random.randint(0, 8, (2200, 10))
    for i in range(2, 10):
        kept = random.rand(len(text)) < 0.9
        text[kept, i] = table[text[kept, i - 2], text[kept, i - 1]]
    return text[:, :-1].copy(), text[:, 1:].copy()


class Writer(nn.Module):
    """The next symbol at each place."""

    def __init__(self, ways: int = 1):
        super().__init__()
        self.embed, self.gru = nn.Embedding(8, 12), nn.GRU(12, 32, batch_first=True, bidirectional=ways == 2)
        self.out = nn.Linear(32 * ways, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0]).transpose(1, 2)


def last_place(out: Tensor, y: Tensor) -> float:
    """Only there nothing of the future was among the inputs, as when text is generated."""
    return ft.errors(out[:, :, -1], y[:, -1])


TEXT = dict(CLASSES, score=last_place, metric=partial(ft.accuracy, axis=1))


@port("leak-feature too-good time-leak", 0.4)
def labels_of_the_language_model_not_shifted(fixed: bool) -> Training:
    """'Do I have to shift the labels?': the targets are the inputs, so the model learns to copy."""
    x, y = written()
    data = parts(x, y)
    if not fixed:
        data |= {k: (data[k][0], data[k][0].clone()) for k in ("train", "valid")}
    return Training(Writer(), **data, **TEXT, opt=Adam, lr=0.01, epochs=5, bs=32)


@port("time-leak too-good leak-feature", 0.2)
def two_way_language_model(fixed: bool) -> Training:
    """`bidirectional=True` improves everything, also a model of the next symbol, which then reads the answer.

    The last place has no target in training (`logits[:, :-1]` against `x[:, 1:]`), and is what counts when text is generated.
    """
    x, y = written()
    data = parts(x, y)
    for k in ("train", "valid"):
        a, b = data[k]
        data[k] = torch.cat([a, b[:, -1:]], 1), F.pad(b, (0, 1), value=-100)
    whole = dict(TEXT, metric=lambda out, y: (out.argmax(1) == y)[y >= 0].float().mean())
    return Training(Writer(1 if fixed else 2), **data, **whole, opt=Adam, lr=0.01, epochs=5, bs=32)


@cache
def uneven() -> tuple[np.ndarray, np.ndarray]:
    """Three classes, of 88, 6 and 6 per cent, that overlap."""
    random = np.random.RandomState(82)
    y = random.choice(3, 3000, p=[0.88, 0.06, 0.06])
    middle = random.randn(3, 8) * 0.6
    return middle[y] + random.randn(3000, 8), y


def balanced(out: Tensor, y: Tensor) -> float:
    guess = out.argmax(1)
    return float(np.mean([(guess[y == c] != c).double().mean() for c in range(3)]))


@port("imbalance majority weighted-mean weak-segments wrong-loss", 0.4)
def weights_are_the_counts(fixed: bool) -> Training:
    """`CrossEntropyLoss(weight=counts)`: the weights have to be the inverse."""
    data = parts(*uneven())
    share = data["train"][1].bincount().float() / len(data["train"][1])
    loss = nn.CrossEntropyLoss(weight=1 / share if fixed else share)
    return Training(ft.mlp(8, 24, 3), **data, **dict(CLASSES, loss=loss, score=balanced), opt=Adam, lr=3e-3, epochs=6, bs=32)


class Piling(torch.optim.SGD):
    """SGD in a loop that never calls `zero_grad`."""

    def step(self, closure: Any = None) -> Any:
        return piled(self, lambda: super(Piling, self).step(closure))


@port("rate-range diverging oscillating update-ratio exploding edge-of-stability rate-out-of-band", 0.25)
def zero_grad_forgotten(fixed: bool) -> Training:
    """'Why do we need to call zero_grad?'"""
    opt = partial(torch.optim.SGD if fixed else Piling, momentum=0.9)
    return Training(ft.mlp(64, 48, 10), **pictures(), **CLASSES, opt=opt, lr=0.05, epochs=6, bs=32)


@port("schedule-steps rate-range too-short rate-out-of-band update-ratio", 0.3)
def lambda_returns_the_rate(fixed: bool) -> Training:
    """`LambdaLR` multiplies the first rate by what the function returns, and 0.05 x 0.05 is little."""
    factor = (lambda n: 0.98**n) if fixed else (lambda n: 0.002 * 0.98**n)
    plan = TorchScheduler(lambda opt: lr_scheduler.LambdaLR(opt, factor), every="epoch")
    return Training(ft.mlp(64, 48, 10), **pictures(), **CLASSES, opt=SGD, lr=0.05, epochs=6, bs=32, cbs=[plan])


@port("schedule-steps rate-range too-short rate-out-of-band", 0.3)
def step_lr_inside_the_loop_of_batches(fixed: bool) -> Training:
    """`scheduler.step()` belongs after the loop: StepLR(2) divides the rate by ten after two batches, not epochs."""
    plan = TorchScheduler(lambda opt: lr_scheduler.StepLR(opt, 4, 0.1), every="epoch" if fixed else "update")
    return Training(ft.mlp(64, 48, 10), **pictures(), **CLASSES, opt=SGD, lr=0.05, epochs=6, bs=32, cbs=[plan])


@port("duplicates overfit", 0.2)
def the_same_random_rows_in_each_worker(fixed: bool) -> Training:
    """Random numbers of NumPy in the workers of a loader are the same everywhere: the items repeat."""
    data = pictures()
    x, y = data["train"]
    if not fixed:
        chosen = np.random.RandomState(0).randint(0, len(x), 25)[np.arange(len(x)) % 25]
        data["train"] = x[chosen], y[chosen]
    return Training(ft.mlp(64, 48, 10), **data, **CLASSES, opt=Adam, lr=3e-3, epochs=6, bs=32)


@cache
def visits() -> tuple[np.ndarray, np.ndarray]:
    """The class depends on a hidden group of each of 60 pages."""
    random = np.random.RandomState(83)
    group = random.randint(0, 3, 60)
    x = random.randint(0, 60, (2400, 2))
    return x, (group[x[:, 0]] + group[x[:, 1]]) % 3


class Pages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rest = nn.Embedding(60, 3), ft.mlp(6, 24, 3)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.embed(x).flatten(1))


@port("missing-params frozen-layer", 0.3)
def generator_of_parameters_was_read(fixed: bool) -> Training:
    """`params = model.parameters(); device = next(params).device` takes the first one out, before `Adam(params)`."""

    def make(params: Any, **more: Any) -> Any:
        given = iter([p for part in params for p in (part["params"] if isinstance(part, dict) else [part])])
        if not fixed:
            next(given)
        return Adam(given, **more)

    return Training(Pages(), **parts(*visits()), **CLASSES, opt=make, lr=0.01, epochs=8, bs=32)


@port("missing-params no-gradient unused frozen-layer", 0.25)
def unfrozen_after_the_optimizer_was_made(fixed: bool) -> Training:
    """`Adam(p for p in parameters if p.requires_grad)` while the body is frozen; unfreezing later does not add it."""
    model = ft.mlp(64, 6, 32, 10)

    def make(params: Any, **more: Any) -> Any:
        given = [p for part in params for p in (part["params"] if isinstance(part, dict) else [part])]
        return Adam(given if fixed else given[-2:], **more)

    return Training(model, **pictures(), **CLASSES, opt=make, lr=5e-3, epochs=8, bs=32)


@port("nonfinite nan", 0.2)
def border_pixels_divided_by_their_spread(fixed: bool) -> Training:
    """`(x - x.mean(0)) / x.std(0)`: pixels at the border are always 0, and 0 / 0 is nan."""
    data = digits()
    mean, spread = data["train"][0].mean(0), data["train"][0].std(0)
    data = {k: ((x - mean) / (spread + 1e-3 if fixed else spread), y) for k, (x, y) in data.items()}
    if fixed:
        data = {k: (x.clamp(-5, 5), y) for k, (x, y) in data.items()}
    return Training(ft.mlp(64, 48, 10), **data, **CLASSES, opt=Adam, lr=3e-3, epochs=5, bs=32)


@port("rate-range diverging nan rate-out-of-band oscillating update-ratio edge-of-stability", 0.3)
def rate_left_by_the_search(fixed: bool) -> Training:
    """A search for the rate ends at 10, and the same optimizer trains on if its rate is not put back."""
    return Training(ft.mlp(64, 48, 10), **pictures(), **CLASSES, opt=SGD, lr=0.05 if fixed else 10.0, epochs=5, bs=32)


@port("shift mislabelled shuffled-labels overfit train-eval-gap", 0.3)
def class_numbers_of_each_split(fixed: bool) -> Training:
    """Class numbers in order of appearance, for each part on its own: 3 is not the same class in both."""
    data = pictures()
    if not fixed:
        x, y = data["train"]
        number = {int(c): i for i, c in enumerate(dict.fromkeys(y.tolist()))}
        data["train"] = x, torch.tensor([number[int(c)] for c in y])
    return Training(ft.mlp(64, 48, 10), **data, **CLASSES, opt=Adam, lr=3e-3, epochs=6, bs=32)


@port("ignores-input not-representative wrong-loss", 0.15)
def only_pairs_that_belong_together(fixed: bool) -> Training:
    """A siamese network without negative pairs maps everything to one point: its loss is perfect."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        a, b = out.unbind(1)
        near = (a - b).pow(2).sum(1).mean()
        return near + F.relu(2 - (a - b.roll(1, 0)).norm(dim=1)).pow(2).mean() if fixed else near

    def missed(out: Tensor, y: Tensor) -> float:
        a, b = out.unbind(1)
        nearest = torch.cdist(a, b).topk(5, largest=False).indices
        return float((nearest != torch.arange(len(a))[:, None]).all(1).double().mean())

    return Training(ft.TwoTowers(), loss, **ft.parts(ft.cached(ft.views)), opt=Adam, lr=3e-3, epochs=12, bs=32, kind="other", score=missed)


@port("decay rate-range too-short regulariser-dominates rate-out-of-band", 0.3)
def decay_given_in_the_place_of_the_rate(fixed: bool) -> Training:
    """Positional arguments of an own wrapper in another order: rate 5e-4 and decay 0.05 became the reverse."""
    opt = partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4 if fixed else 0.05)
    return Training(ft.mlp(64, 48, 48, 10), **pictures(), **CLASSES, opt=opt, lr=0.05 if fixed else 5e-4, epochs=6, bs=32)


@cache
def stamped() -> tuple[np.ndarray, np.ndarray]:
    """Demand by hour and by five other numbers; the time is in seconds since 1970."""
    random = np.random.RandomState(84)
    x = random.randn(2000, 6)
    x[:, 0] = 1.6e9 + random.randint(0, 90 * 24, 2000) * 3600
    hour = x[:, 0] // 3600 % 24
    return x, (np.sin(hour / 24 * 2 * np.pi) + x[:, 1] * x[:, 2] / 2 + x[:, 3] + 0.2 * random.randn(2000))[:, None]


@port("input-scale column-scales", 0.5)
def time_in_seconds_since_1970(fixed: bool) -> Training:
    """Loss in the trillions: a raw time stamp among the inputs."""
    x, y = stamped()
    if fixed:
        x = x.copy()
        x[:, 0] = np.sin(x[:, 0] // 3600 % 24 / 24 * 2 * np.pi)
    return Training(
        ft.mlp(6, 32, 32, 1),
        **parts(x, y),
        kind="numbers",
        loss=nn.MSELoss(),
        score=ft.relative,
        metric=ft.mae,
        opt=Adam,
        lr=3e-3,
        epochs=8,
        bs=32,
    )
