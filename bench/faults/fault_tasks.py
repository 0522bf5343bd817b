"""Small healthy trainings of many kinds. A mutator (mutators.py) spoils one of them.

Each has three parts of data: training and validation, which the program knows, and test, which it never sees and no mutator touches.
`score` is computed on the test part: 0 is perfect, and 1 about what a constant guess reaches. It is a share of errors, one minus the
area under the ROC curve times two, or a squared error relative to the variance.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[1] / "lr_quality"))
import lr_tasks
from lr_tasks import Data, mlp

from cbnb import DataLoaders, Learner, accuracy, set_seed

Pair = tuple[Tensor, Tensor]
WORST = 2.0  # score of a training that crashes or ends with nan
SIZE = 1300  # rows of training and validation


# --- scores and metrics ---


def errors(out: Tensor, y: Tensor) -> float:
    """Share of wrong classes; dim 1 has the classes, or the output is one number, to be rounded. Targets of -100 are not counted."""
    if out.dim() == y.dim() + 1 and out.shape[1] > 1:
        guess = out.argmax(1)
    else:
        guess = out.reshape(y.shape).round()
    return float((guess != y)[y >= 0].double().mean())


def misranked(out: Tensor, y: Tensor) -> float:
    """1: no better than chance. For several labels, the mean over them."""
    rows = out.reshape(len(y), -1).double().nan_to_num(), y.reshape(len(y), -1)
    return float(np.mean([2 - 2 * roc_auc_score(b, a) for a, b in zip(rows[0].T, rows[1].T)]))


def relative(out: Tensor, y: Tensor) -> float:
    return float((out.reshape(y.shape) - y).pow(2).mean() / y.var(0).mean())


def mae(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).abs().mean()


def hits(out: Tensor, y: Tensor) -> Tensor:
    """Accuracy of logits of zeros and ones."""
    return ((out > 0) == (y > 0.5)).float().mean()


# --- a training ---


class Items(Dataset):
    """Rows, each changed by a function when it is read."""

    def __init__(self, pair: Pair, change: Callable[[Tensor], Tensor]):
        self.x, self.y = pair
        self.change = change

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Pair:
        return self.change(self.x[i]), self.y[i]


@dataclass
class Training:
    """All that a program of training decides."""

    model: nn.Module
    loss: Callable[..., Tensor]
    train: Pair
    valid: Pair | None
    test: Pair
    opt: Callable[..., torch.optim.Optimizer]
    lr: float
    epochs: int
    bs: int
    kind: str  # classes, binary, labels, numbers, or other
    score: Callable[[Tensor, Tensor], float]
    metric: Callable[..., Any] | None = None
    shuffle: bool = True
    drop_last: bool = True
    augment: Callable[[Tensor], Tensor] | None = None
    valid_augment: Callable[[Tensor], Tensor] | None = None
    cbs: list[Any] = field(default_factory=list)
    ready: list[Callable[[Learner], Any]] = field(default_factory=list)  # what the program does between `Learner` and `fit`
    categories: int = 0  # first columns that hold categories as numbers
    honest: Callable[..., Any] | None = None  # the metric of the healthy program

    def __post_init__(self) -> None:
        self.honest = self.metric

    def learner(self) -> Learner:
        parts = [(self.train, self.augment)] + ([(self.valid, self.valid_augment)] if self.valid else [])
        sets = [Items(pair, change) if change else TensorDataset(*pair) for pair, change in parts]
        dls = DataLoaders.from_datasets(*sets, bs=self.bs, shuffle=self.shuffle, drop_last=self.drop_last, val_bs=128, num_workers=0)
        learn = Learner(dls, self.model, self.loss, opt_func=self.opt, lr=self.lr, metrics=self.metric, cbs=self.cbs)
        for act in self.ready:
            act(learn)
        return learn

    def fit(self, learn: Learner) -> None:
        with learn.no_bar(), learn.no_logging():
            learn.fit(self.epochs)

    def outputs(self) -> Pair:
        """Of the trained model, for the test part."""
        self.model.eval()
        with torch.no_grad():
            out = self.model(self.test[0])
        return (out[0] if isinstance(out, tuple) else out), self.test[1]


# --- tasks ---

Make = Callable[[], Training]
MAKERS: dict[str, Make] = {}


def task(make: Make) -> Make:
    MAKERS[make.__name__] = make
    return make


def make_task(name: str, seed: int) -> Training:
    set_seed(seed)
    torch.set_num_threads(1)
    return MAKERS[name]() if name in MAKERS else from_lr_task(name)


@cache
def cached(make: Callable[[], Data]) -> Data:
    return make()


def parts(data: Data, column: bool = False, n: int = SIZE) -> dict[str, Pair]:
    """`column`: targets as one column. The training part has four fifths of the rows."""
    x, y, test_y = data.x[:n], data.y[:n], data.valid_y
    if column:
        y, test_y = y[:, None].float(), test_y[:, None].float()
    cut = int(0.8 * len(x))
    pairs = dict(train=(x[:cut], y[:cut]), valid=(x[cut:], y[cut:]), test=(data.valid_x[:500], test_y[:500]))
    return {k: (a.clone(), b.clone()) for k, (a, b) in pairs.items()}


SGD = partial(torch.optim.SGD, momentum=0.9)
Adam, AdamW, RMSprop = torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
CLASSES = dict(kind="classes", loss=nn.CrossEntropyLoss(), score=errors, metric=accuracy)
NUMBERS = dict(kind="numbers", loss=nn.MSELoss(), score=relative, metric=mae)
BINARY = dict(kind="binary", loss=nn.BCEWithLogitsLoss(), score=misranked, metric=hits)


@task
def houses() -> Training:
    return Training(mlp(6, 32, 32, 1), **parts(cached(lr_tasks.houses), True), **NUMBERS, opt=Adam, lr=3e-3, epochs=8, bs=32)


@cache
def four_clusters() -> Data:
    return lr_tasks.clusters(4, 51)


@task
def clusters() -> Training:
    return Training(mlp(20, 48, 24, 4), **parts(four_clusters()), **CLASSES, opt=SGD, lr=0.03, epochs=8, bs=32)


@cache
def labelled() -> Data:
    """Five labels of twelve numbers, which may hold together."""
    random = np.random.RandomState(71)
    x, weights = random.randn(2000, 12), random.randn(2, 12, 5)
    y = x @ weights[0] + 2 * np.abs(x) @ weights[1] / 2
    return lr_tasks.split(x, (y > y.mean(0)).astype(float))


@task
def multi_label() -> Training:
    whole = dict(BINARY, kind="labels")
    return Training(mlp(12, 40, 40, 5), **parts(labelled()), **whole, opt=AdamW, lr=4e-3, epochs=8, bs=32)


@task
def rare() -> Training:
    whole = dict(BINARY, loss=nn.BCEWithLogitsLoss(pos_weight=torch.tensor(6.0)))
    return Training(mlp(30, 32, 16, 1), **parts(cached(lr_tasks.rare), True, 2400), **whole, opt=Adam, lr=2e-3, epochs=5, bs=32)


@cache
def images() -> Data:
    return lr_tasks.digits(images=True)


@task
def digits_conv() -> Training:
    return Training(lr_tasks.conv(norm=True), **parts(images()), **CLASSES, opt=SGD, lr=0.03, epochs=4, bs=32)


@task
def waves() -> Training:
    model = nn.Sequential(
        *(nn.Conv1d(1, 12, 5, stride=2), nn.GELU(), nn.Conv1d(12, 16, 5, stride=2), nn.GroupNorm(4, 16), nn.GELU()),
        *(nn.Flatten(), nn.Linear(80, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4)),
    )
    return Training(model, **parts(cached(lr_tasks.waves), n=1600), **CLASSES, opt=RMSprop, lr=1e-3, epochs=6, bs=32)


@cache
def padded() -> Data:
    """Which of the symbols 1 to 4 is the most frequent? Six to twelve of them, then zeros."""
    random = np.random.RandomState(72)
    x = np.stack([random.choice(4, 12, p=random.dirichlet(np.full(4, 1.2))) + 1 for _ in range(2600)])
    x[np.arange(12) >= random.randint(6, 13, (len(x), 1))] = 0
    return lr_tasks.split(x, np.array([np.bincount(row, minlength=5)[1:].argmax() for row in x]))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(5, 12, padding_idx=0), nn.LSTM(12, 24, batch_first=True)
        self.out = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x))
        last = (x > 0).sum(1).sub(1).clamp(min=0)
        return self.out(states[torch.arange(len(x)), last])


@task
def lstm() -> Training:
    return Training(LSTM(), **parts(padded(), n=1600), **CLASSES, opt=Adam, lr=8e-3, epochs=6, bs=32)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(5, 24), nn.Parameter(0.02 * torch.randn(12, 24))
        block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        pads = x == 0
        states = self.blocks(self.embed(x) + self.places, src_key_padding_mask=pads & ~pads.all(1, keepdim=True))
        kept = (~pads)[..., None]
        return self.out(self.norm((states * kept).sum(1) / kept.sum(1).clamp(min=1)))


@task
def transformer() -> Training:
    return Training(Transformer(), **parts(padded(), n=1600), **CLASSES, opt=AdamW, lr=2e-3, epochs=6, bs=32)


@cache
def tagged() -> Data:
    """A tag of each of ten words, from the word and its neighbours; -100 at the pads (word 0)."""
    random = np.random.RandomState(73)
    x = random.randint(1, 21, (1500, 10))
    x[np.arange(10) >= random.randint(4, 11, (len(x), 1))] = 0
    before = np.roll(x, 1, 1)
    before[:, 0] = 0
    y = np.where(before > 10, x % 3, 3 + x % 2)
    return lr_tasks.split(x, np.where(x == 0, -100, y))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(21, 16, padding_idx=0), nn.GRU(16, 20, batch_first=True, bidirectional=True)
        self.out = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0]).transpose(1, 2)


@task
def tagger() -> Training:
    whole = dict(CLASSES, loss=nn.CrossEntropyLoss(ignore_index=-100), metric=partial(accuracy, axis=1))
    return Training(Tagger(), **parts(tagged(), n=1000), **whole, opt=Adam, lr=0.01, epochs=6, bs=32)


@cache
def pixels() -> Data:
    return lr_tasks.digits(autoencode=True)


@task
def autoencoder() -> Training:
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 12), nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 64))
    return Training(model, **parts(pixels()), **NUMBERS, opt=Adam, lr=3e-3, epochs=10, bs=32)


@cache
def shapes() -> Data:
    """Noisy pictures of a bright disc (1) and a dark square (2) on a ground (0); the class of each pixel."""
    random, n = np.random.RandomState(74), 700
    down, right = np.mgrid[:12, :12]
    x, y = 0.5 * random.randn(n, 1, 12, 12), np.zeros((n, 12, 12), int)
    for i in range(n):
        (a, b), (c, d) = random.randint(2, 10, 2), random.randint(1, 7, 2)
        y[i][(down - a) ** 2 + (right - b) ** 2 < 6] = 1
        y[i, c : c + 4, d : d + 4] = 2
    return lr_tasks.split(x + (y == 1)[:, None] * 1.2 - (y == 2)[:, None] * 1.2, y, valid=200)


@task
def segmentation() -> Training:
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        nn.Conv2d(12, 3, 1),
    )
    whole = dict(CLASSES, metric=partial(accuracy, axis=1))
    return Training(model, **parts(shapes()), **whole, opt=Adam, lr=5e-3, epochs=8, bs=16)


class Recommender(nn.Module):
    """A rating from a vector and a bias of each user and each film."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(150, 8), nn.Embedding(100, 8)
        self.mix = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 1))
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return 3.4 + self.mix(torch.cat([self.users(x[:, 0]), self.films(x[:, 1])], 1))


@task
def recommender() -> Training:
    return Training(
        Recommender(), **parts(cached(lr_tasks.ratings), True, 5000), **NUMBERS, opt=AdamW, lr=3e-3, epochs=6, bs=64, categories=2
    )


@cache
def views() -> Data:
    """Two noisy views, through different functions, of four hidden numbers."""
    random = np.random.RandomState(75)
    hidden = random.randn(1800, 4)
    x = np.stack([np.tanh(hidden @ random.randn(4, 16)) + 0.1 * random.randn(1800, 16) for _ in range(2)], 1)
    return lr_tasks.split(x, np.arange(len(x)), valid=200)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = mlp(16, 48, 12), mlp(16, 48, 12)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.left(x[:, 0]), self.right(x[:, 1])], 1)


def similarity(out: Tensor) -> Tensor:
    a, b = F.normalize(out, dim=-1).unbind(1)
    return a @ b.T


def contrast(out: Tensor, y: Tensor) -> Tensor:
    """Each view has to find its other view among those of the batch."""
    return F.cross_entropy(similarity(out) / 0.2, torch.arange(len(y)))


def missed(out: Tensor, y: Tensor) -> float:
    return float((similarity(out).argmax(1) != torch.arange(len(y))).double().mean())


@task
def contrastive() -> Training:
    return Training(TwoTowers(), contrast, **parts(views()), opt=Adam, lr=3e-3, epochs=8, bs=32, kind="other", score=missed)


class NextSymbol(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(lr_tasks.SYMBOLS, 10)
        self.body, self.out = nn.Sequential(nn.Linear(40, 64), nn.ReLU()), nn.Linear(64, lr_tasks.SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(self.embed(x).flatten(1)))


@task
def next_symbol() -> Training:
    data = parts(cached(lr_tasks.sentences), n=2500) | dict(valid=None)
    return Training(NextSymbol(), **data, **CLASSES, opt=AdamW, lr=5e-3, epochs=6, bs=64)


@task
def moons() -> Training:
    data = parts(cached(lr_tasks.moons), True) | dict(valid=None)
    return Training(mlp(2, 24, 24, 1, act=nn.Tanh), **data, **BINARY, opt=SGD, lr=0.1, epochs=8, bs=32)


@cache
def friedman_data() -> Data:
    return lr_tasks.friedman()


@task
def friedman() -> Training:
    model = nn.Sequential(
        *(nn.Linear(10, 32), lr_tasks.Residual(32), lr_tasks.Residual(32), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 1))
    )
    whole = dict(NUMBERS, loss=nn.SmoothL1Loss())
    return Training(model, **parts(friedman_data(), True), **whole, opt=SGD, lr=0.02, epochs=8, bs=32)


@cache
def flat_digits() -> Data:
    return lr_tasks.digits()


@task
def deep_norm() -> Training:
    model = mlp(64, *[40] * 5, 10, norm=nn.BatchNorm1d)
    return Training(model, **parts(flat_digits()), **CLASSES, opt=AdamW, lr=5e-3, epochs=5, bs=32)


@cache
def counted() -> Data:
    random = np.random.RandomState(76)
    x = random.randn(2000, 8)
    rate = np.exp(0.8 + 0.4 * x[:, 0] - 0.5 * np.abs(x[:, 1]) + 0.6 * x[:, 2] * (x[:, 3] > 0))
    return lr_tasks.split(x, random.poisson(rate.clip(max=12)).astype(float))


def deviance(out: Tensor, y: Tensor) -> float:
    """Of Poisson, relative to that of the mean."""

    def of(rate: Tensor) -> Tensor:
        return (rate - y * rate.clamp(min=1e-9).log()).mean()

    best = of(y.clamp(min=1e-9))
    return float((of(out.reshape(y.shape).exp()) - best) / (of(y.mean().expand_as(y)) - best))


@task
def counts() -> Training:
    whole = dict(kind="counts", loss=nn.PoissonNLLLoss(), score=deviance)
    return Training(mlp(8, 40, 40, 1), **parts(counted(), True), **whole, opt=Adam, lr=3e-3, epochs=8, bs=32)


# --- those of bench/lr_quality ---

FROM_LR = (
    "shells-mlp-adam",
    "breast-linear-rmsprop",
    "adding-recurrent-sgd",
    "clusters5-residual-adamw",
    "digits-deep8-adam",
    "table-embed-sgd",
)


@cache
def best_rates() -> dict[str, float]:
    """Of the stored measurements: half of the peak of one cycle that led to the lowest validation loss."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from lr_quality import read_own

    return {row.name: float(row.truths[1].best_rate) / 2 for row in read_own()}


def from_lr_task(name: str) -> Training:
    old = lr_tasks.TASKS[name]
    data = lr_data(name)
    pairs = dict(train=(data.x.clone(), data.y.clone()), valid=(data.valid_x.clone(), data.valid_y.clone()))
    kind = dict(ce=CLASSES, bce=BINARY, mse=NUMBERS)[old.loss]
    model = old.model()
    if old.loss != "ce" and data.y.dim() == 1 and "factors" not in name:
        pairs = {k: (x, y[:, None]) for k, (x, y) in pairs.items()}
    test = tuple(t[-300:] for t in pairs["valid"])
    pairs["valid"] = tuple(t[: max(len(t) - 300, len(t) // 2)] for t in pairs["valid"])
    opt = dict(sgd=SGD, adam=Adam, adamw=AdamW, rmsprop=partial(RMSprop, momentum=0.9))[old.opt]
    epochs = max(1, round(old.steps / (len(data.x) // old.bs)))
    categories = 3 if name.startswith("table") else 0
    return Training(model, **pairs, test=test, **kind, opt=opt, lr=best_rates()[name], epochs=epochs, bs=old.bs, categories=categories)


@cache
def lr_data(name: str) -> Data:
    return lr_tasks.TASKS[name].data()


TASKS: Sequence[str] = (*MAKERS, *FROM_LR)
