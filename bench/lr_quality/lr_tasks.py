"""The tasks of the benchmark: data, model, optimizer, batch size, loss and length of the run. Nothing is fetched.

The data come from scikit-learn or are drawn here; all of it is the same in each run. The models are ordinary modules of
PyTorch. `TASKS` at the end is the list; "deep" and "fine-tuning" in a name say what a task is about besides its data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn


class Data(NamedTuple):
    x: Tensor
    y: Tensor
    valid_x: Tensor
    valid_y: Tensor


# --- data ---


def tensor(values: np.ndarray) -> Tensor:
    whole = np.asarray(values).dtype.kind in "iu"
    return torch.tensor(values, dtype=torch.long if whole else torch.float32)


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(0)) / (values.std(0) + 1e-8)


def split(x: np.ndarray, y: np.ndarray, valid: int = 600) -> Data:
    """In a fixed random order: at most 30% for validation, and `valid` at most."""
    order = np.random.RandomState(0).permutation(len(x))
    n = min(valid, int(0.3 * len(x)))
    return Data(tensor(x[order[n:]]), tensor(y[order[n:]]), tensor(x[order[:n]]), tensor(y[order[:n]]))


@cache
def digits(noise: float = 0.0, raw: bool = False, autoencode: bool = False, images: bool = False, half: int | None = None) -> Data:
    """Digits of 8 x 8 pixels; `noise`: share of wrong labels in training; `half`: only the labels 0 to 4 (0) or 5 to 9 (1)."""
    x, y = datasets.load_digits(return_X_y=True)
    if half is not None:
        chosen = y // 5 == half
        x, y = x[chosen], y[chosen] - 5 * half
    x = x if raw else x / 16
    data = split(x.reshape(-1, 1, 8, 8) if images else x, x if autoencode else y, valid=500)
    if noise:
        random = np.random.RandomState(5)
        wrong = tensor(random.rand(len(data.y))) < noise
        data.y[wrong] = tensor(random.randint(0, 10, len(data.y)))[wrong]
    return data


def wine() -> Data:
    x, y = datasets.load_wine(return_X_y=True)
    return split(standard(x), y)


def breast() -> Data:
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return split(standard(x), y.astype(float))


def diabetes(raw: bool = False) -> Data:
    x, y = datasets.load_diabetes(return_X_y=True)
    return split(standard(x), y if raw else standard(y))


def houses(raw: bool = False) -> Data:
    """Skewed and correlated inputs; a target that is capped, with more noise where it is high."""
    random = np.random.RandomState(21)
    income, age = np.exp(0.5 * random.randn(3000) + 1), random.uniform(1, 60, 3000)
    rooms, people = 2 + 0.7 * income + random.gamma(2, 0.6, 3000), np.exp(0.7 * random.randn(3000) + 6)
    north, east = random.uniform(0, 10, 3000), random.uniform(0, 10, 3000)
    hill = 1.5 * np.exp(-((north - 3) ** 2 + (east - 6) ** 2) / 3)
    price = 0.5 * income + 0.1 * np.sqrt(age) + hill + 0.2 * rooms
    price = np.minimum(price * (1 + 0.2 * random.randn(3000)), 6)
    x = np.stack([income, age, rooms, people, north, east], 1)
    return split(x / [1, 10, 1, 300, 1, 1] if raw else standard(x), price)


def friedman(raw: bool = False, turned: bool = False) -> Data:
    x, y = datasets.make_friedman1(2500, n_features=10, noise=1.0, random_state=3)
    return split(x if raw else standard(x), y if raw else standard(-y if turned else y))


def moons() -> Data:
    x, y = datasets.make_moons(2000, noise=0.25, random_state=1)
    flipped = np.random.RandomState(2).rand(2000) < 0.1
    return split(standard(x), np.where(flipped, 1 - y, y).astype(float))


def spirals() -> Data:
    random = np.random.RandomState(6)
    turn, arm = np.sqrt(random.rand(2000)) * 3 * np.pi, random.randint(0, 2, 2000)
    sign = (1 - 2 * arm) * turn / 6
    x = np.stack([sign * np.cos(turn), sign * np.sin(turn)], 1) + 0.05 * random.randn(2000, 2)
    return split(x, arm)


def clusters(classes: int, seed: int) -> Data:
    x, y = datasets.make_classification(
        3000, 20, n_informative=10, n_redundant=4, n_classes=classes, flip_y=0.1, class_sep=1.3, random_state=seed
    )
    return split(standard(x), y)


def rare() -> Data:
    """One in seventeen belongs to the second class."""
    x, y = datasets.make_classification(4000, 30, n_informative=8, weights=[0.94], flip_y=0.02, random_state=4)
    return split(standard(x), y.astype(float))


def shells() -> Data:
    x, y = datasets.make_gaussian_quantiles(n_samples=2500, n_features=5, n_classes=4, random_state=8)
    return split(x, y)


def table() -> Data:
    """Three columns of categories, as whole numbers, and five of numbers of different scale."""
    random = np.random.RandomState(15)
    codes = [random.randint(0, n, 4000) for n in (5, 12, 30)]
    numbers = random.randn(4000, 5) * [1, 3, 0.2, 10, 1]
    effects = sum(weight * random.randn(n)[code] for weight, n, code in zip((1, 1, 0.7), (5, 12, 30), codes))
    score = effects + numbers[:, 0] - 0.4 * numbers[:, 1] * (codes[0] == 2) + np.sin(numbers[:, 3])
    x = np.concatenate([np.stack(codes, 1), numbers], 1)
    return split(x, (score + 0.5 * random.randn(4000) > 0).astype(float))


def ratings() -> Data:
    """Users (150) and films (100) and the rating, 1 to 5."""
    random = np.random.RandomState(14)
    users, films = 0.6 * random.randn(150, 4), 0.6 * random.randn(100, 4)
    u, f = random.randint(0, 150, 6000), random.randint(0, 100, 6000)
    score = 3.4 + 0.4 * random.randn(150)[u] + 0.5 * random.randn(100)[f] + (users[u] * films[f]).sum(1)
    return split(np.stack([u, f], 1), np.clip(np.round(score + 0.5 * random.randn(6000)), 1, 5), valid=900)


SYMBOLS = 12


def sentences(n: int = 5000, context: int = 4, seed: int = 13) -> Data:
    """The next of twelve symbols after `context` others; each depends on the two before it."""
    random = np.random.RandomState(seed)
    chances = random.dirichlet(np.full(SYMBOLS, 0.2), (SYMBOLS, SYMBOLS)).cumsum(-1)
    text = [0, 1]
    for draw in random.rand(n + context):
        text.append(min(int((chances[text[-2], text[-1]] < draw).sum()), SYMBOLS - 1))
    rows = np.lib.stride_tricks.sliding_window_view(np.array(text[2:]), context + 1)
    return split(rows[:, :-1].copy(), rows[:, -1].copy(), valid=1000)


def majority() -> Data:
    """Which of five symbols is the most frequent of twelve?"""
    random = np.random.RandomState(12)
    x = np.stack([random.choice(5, 12, p=random.dirichlet(np.full(5, 1.5))) for _ in range(4000)])
    return split(x, np.array([np.bincount(row, minlength=5).argmax() for row in x]))


def adding() -> Data:
    """The sum of two of eight numbers, those that are marked."""
    random = np.random.RandomState(9)
    marks = np.argsort(random.rand(4000, 8), 1) < 2
    x = np.stack([random.rand(4000, 8), marks], -1)
    return split(x, (x[:, :, 0] * marks).sum(1))


def recall() -> Data:
    """The first of six symbols."""
    x = np.random.RandomState(10).randint(0, 5, (4000, 6))
    return split(x, x[:, 0])


def waves() -> Data:
    """Noisy waves of 32 points, in four shapes and any phase."""
    random = np.random.RandomState(16)
    shape, phase = random.randint(0, 4, 3000), random.rand(3000, 1)
    at = 2 * np.pi * (np.arange(32) / 16 * (1 + random.rand(3000, 1)) + phase)
    sine = np.sin(at)
    shapes = np.stack([sine, np.sign(sine), np.arcsin(sine), at % (2 * np.pi) - np.pi], 1)
    return split((standard(shapes[np.arange(3000), shape]) + 0.6 * random.randn(3000, 32))[:, None], shape)


# --- models ---


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU, norm: type[nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in zip(widths, widths[1:-1]):
        layers += [nn.Linear(wide, narrow), *([norm(narrow)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


class OneHot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(x, SYMBOLS).float()


class Residual(nn.Module):
    """The input plus what a small network makes of it."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Recurrent(nn.Module):
    """A gated unit over symbols or rows of numbers; the answer is read off its last state."""

    def __init__(self, symbols: int, inputs: int, width: int, outputs: int):
        super().__init__()
        self.embed = nn.Embedding(symbols, inputs) if symbols else nn.Identity()
        self.gates, self.new = nn.Linear(inputs + width, 2 * width), nn.Linear(inputs + width, width)
        self.width, self.out = width, nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        state = x.new_zeros(x.shape[0], self.width)
        for row in x.unbind(1):
            keep, reset = self.gates(torch.cat([row, state], 1)).sigmoid().chunk(2, 1)
            state = keep * state + (1 - keep) * self.new(torch.cat([row, reset * state], 1)).tanh()
        return self.out(state)


class Attention(nn.Module):
    """One block of attention with two heads over a few symbols; the answer is read off the last place."""

    def __init__(self, context: int = 4, width: int = 24):
        super().__init__()
        self.embed, self.place = nn.Embedding(SYMBOLS, width), nn.Parameter(0.02 * torch.randn(context, width))
        self.norm, self.qkv, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.after, self.out = Residual(width), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, SYMBOLS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.mix((weights @ v).transpose(1, 2).flatten(2))
        return self.out(self.after(x)[:, -1])


class Factors(nn.Module):
    """A rating from a vector and a bias for each user and each film, between 0.5 and 5.5."""

    def __init__(self, width: int):
        super().__init__()
        self.users, self.films = nn.Embedding(150, width + 1), nn.Embedding(100, width + 1)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        u, f = self.users(x[:, 0]), self.films(x[:, 1])
        return 0.5 + 5 * ((u[:, 1:] * f[:, 1:]).sum(1) + u[:, 0] + f[:, 0]).sigmoid()


class Tabular(nn.Module):
    """Embeddings of three columns of categories beside five of numbers."""

    def __init__(self, *widths: int):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(n, min(8, n // 2)) for n in (5, 12, 30))
        self.norm, self.rest = nn.BatchNorm1d(5), mlp(2 + 6 + 8 + 5, *widths, 1, norm=nn.BatchNorm1d)

    def forward(self, x: Tensor) -> Tensor:
        codes = [embed(x[:, i].long()) for i, embed in enumerate(self.embeds)]
        return self.rest(torch.cat([*codes, self.norm(x[:, 3:])], 1))


def conv(outputs: int = 10, width: int = 6, norm: bool = False) -> nn.Sequential:
    """Two convolutions for the digits as images."""
    first = [nn.Conv2d(1, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(width, 2 * width, 3, padding=1), *([nn.BatchNorm2d(2 * width)] if norm else []), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * width, outputs))


def conv_wave() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv1d(8, 12, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 4))


def words(*widths: int) -> nn.Sequential:
    """A network over the four symbols before, each as twelve zeros and ones."""
    return nn.Sequential(OneHot(), nn.Flatten(), *mlp(4 * SYMBOLS, *widths, SYMBOLS))


def residual(inputs: int, width: int, blocks: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), *(Residual(width) for _ in range(blocks)), nn.LayerNorm(width), nn.Linear(width, outputs)
    )


# --- tasks ---


@dataclass
class Task:
    name: str
    data: Callable[[], Data]
    model: Callable[[], nn.Module]
    opt: str  # sgd, adam, adamw or rmsprop, all with momentum
    bs: int  # batch size
    loss: str  # ce, bce or mse
    steps: int  # updates of the short run; the long one has five times as many
    new: bool = False  # of a kind that no constant of cbnb's rules was fitted on
    pretrain: Callable[[], Data] | None = None  # fine-tuning: all but the last layer comes from training on these data
    long: bool = False  # also trained for twenty times the steps
    tags: tuple[str, ...] = ()


def tasks() -> list[Task]:
    batch_norm, tanh = nn.BatchNorm1d, nn.Tanh
    kinds: list[Task] = []

    def add(
        name: str, data: Callable[[], Data], model: Callable[[], nn.Module], opt: str, bs: int, loss: str, steps: int, **more: object
    ) -> None:
        kinds.append(Task(f"{name}-{opt}", data, model, opt, bs, loss, steps, **more))

    add("shells-mlp", shells, partial(mlp, 5, 48, 4), "adam", 64, "ce", 250, long=True)
    add("shells-mlp", shells, partial(mlp, 5, 48, 4), "sgd", 32, "ce", 200)
    add("shells-mlpbn", shells, partial(mlp, 5, 32, 32, 4, norm=batch_norm), "rmsprop", 64, "ce", 300)
    add("table-embed", table, partial(Tabular, 40, 20), "adamw", 64, "bce", 250)
    add("table-embed", table, partial(Tabular, 40, 20), "sgd", 128, "bce", 200)
    add("rare-mlp", rare, partial(mlp, 30, 32, 1), "adam", 32, "bce", 200, long=True)
    add("rare-mlp", rare, partial(mlp, 30, 32, 1), "sgd", 128, "bce", 250)
    add("wine-mlp", wine, partial(mlp, 13, 24, 3), "sgd", 16, "ce", 150)
    add("wine-mlpbn", wine, partial(mlp, 13, 24, 3, norm=batch_norm), "adamw", 16, "ce", 150, long=True)
    add("breast-mlp", breast, partial(mlp, 30, 32, 16, 1), "adam", 32, "bce", 200)
    add("breast-linear", breast, partial(mlp, 30, 1), "rmsprop", 16, "bce", 200)
    add("diabetes-mlp", diabetes, partial(mlp, 10, 64, 1), "adam", 32, "mse", 200, long=True)
    add("diabetes-raw-mlp", partial(diabetes, True), partial(mlp, 10, 64, 1), "adamw", 32, "mse", 300)
    add("houses-mlp", houses, partial(mlp, 6, 64, 32, 1), "sgd", 64, "mse", 250, long=True)
    add("houses-raw-mlp", partial(houses, True), partial(mlp, 6, 64, 32, 1), "adam", 64, "mse", 300)
    add("houses-raw-mlpbn", partial(houses, True), partial(mlp, 6, 48, 1, norm=batch_norm), "sgd", 64, "mse", 250)
    add("friedman-mlp", friedman, partial(mlp, 10, 50, 1), "rmsprop", 64, "mse", 200, long=True)
    add("friedman-tanh", friedman, partial(mlp, 10, 50, 50, 1, act=tanh), "sgd", 64, "mse", 300)
    add("friedman-raw-mlp", partial(friedman, True), partial(mlp, 10, 50, 1), "adam", 64, "mse", 300)
    add("moons-mlp", moons, partial(mlp, 2, 32, 32, 1), "sgd", 64, "bce", 250, long=True)
    add("moons-tanh", moons, partial(mlp, 2, 64, 1, act=tanh), "adamw", 32, "bce", 200)
    add("spirals-mlp", spirals, partial(mlp, 2, 64, 64, 2), "sgd", 64, "ce", 400)
    add("spirals-mlpbn", spirals, partial(mlp, 2, 64, 64, 2, norm=batch_norm), "adamw", 64, "ce", 300)
    add("clusters8-mlp", partial(clusters, 8, 31), partial(mlp, 20, 64, 8), "sgd", 64, "ce", 250, long=True)
    add("clusters3-mlp", partial(clusters, 3, 33), partial(mlp, 20, 48, 3), "rmsprop", 128, "ce", 200)
    add("digits-mlpbn", digits, partial(mlp, 64, 64, 10, norm=batch_norm), "sgd", 64, "ce", 200)
    add("digits-mlp", digits, partial(mlp, 64, 64, 64, 10), "sgd", 32, "ce", 300)
    add("digits-mlp", digits, partial(mlp, 64, 96, 10), "rmsprop", 64, "ce", 200)
    add("digits-raw-mlp", partial(digits, raw=True), partial(mlp, 64, 64, 10), "adam", 64, "ce", 200)
    add("digits-noisy-mlp", partial(digits, 0.3), partial(mlp, 64, 64, 10), "adamw", 32, "ce", 250)
    add("digits-autoencoder", partial(digits, autoencode=True), partial(mlp, 64, 16, 64), "sgd", 32, "mse", 300)
    add("sentences-mlp", sentences, partial(words, 64), "adam", 64, "ce", 250)
    add("sentences-mlp", sentences, partial(words, 48, 48), "rmsprop", 128, "ce", 250)
    add("ratings-factors", ratings, partial(Factors, 8), "sgd", 128, "mse", 300)
    add("ratings-factors", ratings, partial(Factors, 16), "adamw", 64, "mse", 300)
    add("majority-recurrent", majority, partial(Recurrent, 5, 8, 16, 5), "adam", 64, "ce", 250)
    add("adding-recurrent", adding, partial(Recurrent, 0, 2, 16, 1), "sgd", 64, "mse", 300)
    add("recall-recurrent", recall, partial(Recurrent, 5, 8, 16, 5), "adamw", 64, "ce", 300)
    add("digits-deep8", digits, partial(mlp, 64, *[40] * 8, 10), "adam", 64, "ce", 300, tags=("deep",))
    add("digits-deep6-tanh", digits, partial(mlp, 64, *[40] * 6, 10, act=tanh), "sgd", 64, "ce", 300, tags=("deep",))
    add(
        "clusters4-deep6bn",
        partial(clusters, 4, 21),
        partial(mlp, 20, *[40] * 6, 4, norm=batch_norm),
        "adamw",
        64,
        "ce",
        300,
        tags=("deep",),
    )
    low, high = partial(digits, half=0), partial(digits, half=1)
    tuning = dict(tags=("fine-tuning",))
    add("tune-digits-mlp", high, partial(mlp, 64, 64, 32, 5), "adam", 32, "ce", 150, pretrain=low, **tuning)
    add("tune-digits-mlp", high, partial(mlp, 64, 64, 32, 5), "sgd", 32, "ce", 150, pretrain=low, **tuning)
    add("tune-noisy-mlp", partial(digits, 0.3), partial(mlp, 64, 64, 10), "adamw", 32, "ce", 200, pretrain=digits, **tuning)
    add(
        "tune-friedman-mlp",
        friedman,
        partial(mlp, 10, 50, 50, 1),
        "adam",
        64,
        "mse",
        200,
        pretrain=partial(friedman, turned=True),
        **tuning,
    )
    add("tune-sentences-mlp", partial(sentences, 1500), partial(words, 64), "adamw", 32, "ce", 200, pretrain=sentences, **tuning)
    # Kinds on which nothing was fitted: convolutions, attention, residual blocks, layer norm, GELU, other data
    images = partial(digits, images=True)
    add("digits-conv", images, conv, "sgd", 32, "ce", 200, new=True)
    add("digits-convbn", images, partial(conv, norm=True), "adam", 64, "ce", 200, new=True)
    add(
        "tune-digits-conv",
        partial(digits, images=True, half=1),
        partial(conv, 5),
        "adamw",
        32,
        "ce",
        150,
        pretrain=partial(digits, images=True, half=0),
        new=True,
        **tuning,
    )
    add("waves-conv", waves, conv_wave, "adam", 64, "ce", 250, new=True)
    add("waves-conv", waves, conv_wave, "sgd", 32, "ce", 250, new=True)
    add(
        "waves-mlp-gelu",
        lambda: Data(*(t.flatten(1) if t.dim() > 1 else t for t in waves())),
        partial(mlp, 32, 64, 64, 4, act=nn.GELU),
        "adamw",
        64,
        "ce",
        250,
        new=True,
    )
    add("sentences-attention", sentences, Attention, "adamw", 64, "ce", 300, new=True)
    add("sentences-attention", sentences, Attention, "adam", 32, "ce", 250, new=True)
    add("clusters5-residual", partial(clusters, 5, 41), partial(residual, 20, 24, 3, 5), "adamw", 64, "ce", 250, new=True, tags=("deep",))
    add("houses-residual", houses, partial(residual, 6, 24, 4, 1), "sgd", 64, "mse", 250, new=True, tags=("deep",))
    add("clusters2-layernorm", partial(clusters, 2, 42), partial(mlp, 20, 48, 48, 2, norm=nn.LayerNorm), "rmsprop", 64, "ce", 200, new=True)
    add("rare-linear", rare, partial(mlp, 30, 1), "sgd", 16, "bce", 300, new=True, long=True)
    return kinds


TASKS = {task.name: task for task in tasks()}
