"""Small programs with faults that are documented again and again, in own words and with own data.

The kinds are those of questions about PyTorch and Keras, and of the collections of Theia, DeepFD, TheDeepChecker and TrainCheck. Each
program is written with its fault, and with its fix. It fails if its score on the test part is above `limit`, and passes if it is not.
`python bench/faults.py --verify` trains each with five seeds: it must fail with all of them before the fix, and pass with all after it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import fault_tasks as ft
import lr_tasks
import numpy as np
import torch
from fault_tasks import SGD, Adam, Pair, Training
from torch import Tensor, nn
from torch.nn import functional as F

from cbnb import TorchScheduler, set_seed

Write = Callable[[bool], Training]


@dataclass
class Port:
    name: str
    codes: tuple[str, ...]
    limit: float
    write: Write

    def make(self, seed: int, fixed: bool) -> Training:
        set_seed(seed)
        torch.set_num_threads(1)
        return self.write(fixed)


def adds_to(ports: dict[str, Port]) -> Callable[[str, float], Callable[[Write], Write]]:
    """A decorator that makes a port of a function, from its codes and its limit."""

    def port(codes: str, limit: float) -> Callable[[Write], Write]:
        def add(write: Write) -> Write:
            ports[write.__name__] = Port(write.__name__, tuple(codes.split()), limit, write)
            return write

        return add

    return port


PORTS: dict[str, Port] = {}
port = adds_to(PORTS)


class Net(nn.Module):
    """A model by its parts and a function of them and the input."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **parts: nn.Module):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def classes(model: nn.Module, data: dict[str, Pair], lr: float, epochs: int, opt: Any = Adam, bs: int = 32, **more: Any) -> Training:
    return Training(model, opt=opt, lr=lr, epochs=epochs, bs=bs, **data, **(ft.CLASSES | more))


def numbers(model: nn.Module, data: dict[str, Pair], lr: float, epochs: int, opt: Any = Adam, bs: int = 32, **more: Any) -> Training:
    return Training(model, opt=opt, lr=lr, epochs=epochs, bs=bs, **data, **(ft.NUMBERS | more))


def binary(model: nn.Module, data: dict[str, Pair], lr: float, epochs: int, opt: Any = Adam, bs: int = 32, **more: Any) -> Training:
    return Training(model, opt=opt, lr=lr, epochs=epochs, bs=bs, **data, **(ft.BINARY | more))


def each(data: dict[str, Pair], fx: Callable[[Tensor], Tensor], fy: Callable[[Tensor], Tensor] = lambda y: y) -> dict[str, Pair]:
    return {k: (fx(x), fy(y)) for k, (x, y) in data.items()}


def digits() -> dict[str, Pair]:
    return ft.parts(ft.flat_digits())


def pictures() -> dict[str, Pair]:
    return ft.parts(ft.images())


@cache
def curve() -> lr_tasks.Data:
    """A wave over the numbers 0 to 1000."""
    x = np.random.RandomState(81).uniform(0, 1000, (1500, 1))
    return lr_tasks.split(x, np.sin(x[:, 0] / 130))


@cache
def xor() -> lr_tasks.Data:
    random = np.random.RandomState(82)
    x = random.randint(0, 2, (1000, 2))
    return lr_tasks.split(x + 0.1 * random.randn(1000, 2), (x[:, 0] ^ x[:, 1]).astype(float))


@cache
def houses_in_dollars() -> lr_tasks.Data:
    data = ft.cached(lr_tasks.houses)
    return data._replace(y=data.y * 1e5, valid_y=data.valid_y * 1e5)


@cache
def steps() -> lr_tasks.Data:
    """Sequences of 24 numbers: was the first one positive?"""
    x = np.random.RandomState(83).randn(1800, 24, 1) * 0.5
    x[:, 0] = np.sign(x[:, 0])
    return lr_tasks.split(x, (x[:, 0, 0] > 0).astype(int))


@cache
def flowers() -> lr_tasks.Data:
    """Three kinds by four measured lengths, in the order of the file."""
    random = np.random.RandomState(84)
    kind = np.repeat([0, 1, 2], 500)
    x = np.array([[-1, 0.5, -1, -1], [0, -1, 0.3, 0.2], [1, 0, 1, 1]])[kind] + 0.6 * random.randn(1500, 4)
    return lr_tasks.split(x, kind)


# --- outputs and losses ---


@port("softmax-one", 0.3)
def softmax_on_one_unit(fixed: bool) -> Training:
    """A yes-or-no network whose single output unit has a softmax."""
    end = nn.Sigmoid() if fixed else nn.Softmax(dim=1)
    return binary(nn.Sequential(*lr_tasks.mlp(2, 24, 24, 1), end), ft.parts(lr_tasks.moons(), True), 0.01, 8, loss=nn.BCELoss())


@port("softmax-twice", 0.2)
def softmax_in_forward(fixed: bool) -> Training:
    """`return F.softmax(self.fc2(x), dim=1)`, and `CrossEntropyLoss`."""

    def run(net: Any, x: Tensor) -> Tensor:
        out = net.fc2(F.relu(net.fc1(x)))
        return out if fixed else F.softmax(out, dim=1)

    return classes(Net(run, fc1=nn.Linear(64, 48), fc2=nn.Linear(48, 10)), digits(), 0.1, 6, partial(SGD, momentum=0.0))


@port("softmax-twice", 0.13)
def sigmoid_and_with_logits(fixed: bool) -> Training:
    def run(net: Any, x: Tensor) -> Tensor:
        out = net.body(x)
        return out if fixed else torch.sigmoid(out)

    return binary(Net(run, body=lr_tasks.mlp(12, 32, 32, 5)), ft.parts(ft.labelled()), 4e-3, 8, kind="labels")


@port("missing-logsoftmax", 0.15)
def nll_without_log(fixed: bool) -> Training:
    """`NLLLoss` of plain outputs: it falls for ever, below zero."""
    model = lr_tasks.conv()
    return classes(nn.Sequential(model, nn.LogSoftmax(1)) if fixed else model, pictures(), 3e-3, 8, loss=nn.NLLLoss())


@port("nonfinite nan", 0.2)
def log_of_softmax(fixed: bool) -> Training:
    """The cross entropy by hand, `-log(softmax(x))`, of large outputs: the logarithm of zero."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        logs = out.log_softmax(1) if fixed else out.softmax(1).log()
        return -logs[range(len(y)), y].mean()

    data = each(digits(), lambda x: 255 * x)
    return classes(lr_tasks.mlp(64, 48, 10), data, 1e-3, 8, loss=loss)


@port("output-activation", 0.25)
def relu_on_the_last_layer(fixed: bool) -> Training:
    """A helper makes each layer linear and ReLU, the last one too; targets are standardised."""
    model = lr_tasks.mlp(10, 48, 1)
    return numbers(model if fixed else nn.Sequential(model, nn.ReLU()), ft.parts(ft.friedman_data(), True), 5e-3, 8)


@port("output-activation", 0.3)
def steering_angle_in_degrees(fixed: bool) -> Training:
    """A tanh at the end, and angles of -90 to 90 degrees."""
    data = each(ft.parts(ft.friedman_data(), True), lambda x: x, lambda y: 30 * y)
    model = lr_tasks.mlp(10, 48, 1)

    def run(net: Any, x: Tensor) -> Tensor:
        out = net.body(x)
        return 30 * out if fixed else out.tanh()

    return numbers(Net(run, body=model), data, 5e-3, 8)


@port("output-activation", 0.5)
def autoencoder_of_standardised_pixels(fixed: bool) -> Training:
    """The example's sigmoid output, but the pixels are between -2 and 3."""
    data = each(ft.parts(ft.pixels()), *[lambda x: (x - 0.3) / 0.3] * 2)
    body = lr_tasks.mlp(64, 48, 16, 48, 64)
    return numbers(body if fixed else nn.Sequential(body, nn.Sigmoid()), data, 3e-3, 10)


@port("wrong-loss", 0.2)
def squared_error_of_kinds(fixed: bool) -> Training:
    """A regression on the number of the class, because `CrossEntropyLoss` raised an error about shapes."""
    data = ft.parts(ft.four_clusters())
    if fixed:
        return classes(lr_tasks.mlp(20, 64, 4), data, 5e-3, 10)
    return classes(lr_tasks.mlp(20, 64, 1), data, 5e-3, 10, loss=lambda out, y: F.mse_loss(out.squeeze(1), y.float()), metric=None)


@port("wrong-loss output-activation width", 0.3)
def binary_cross_entropy_of_digits(fixed: bool) -> Training:
    """`Linear(.., 1)`, a sigmoid and `BCELoss`... for ten classes, after dividing the labels by nine."""
    if fixed:
        return classes(lr_tasks.mlp(64, 48, 10), digits(), 3e-3, 8)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(out[:, 0] / 9, y / 9)

    body = nn.Sequential(*lr_tasks.mlp(64, 48, 1), nn.Sigmoid())
    return classes(Net(lambda net, x: 9 * net.body(x), body=body), digits(), 3e-3, 8, loss=loss, metric=None)


@port("no-gradient", 0.15)
def loss_of_argmax(fixed: bool) -> Training:
    """`torch.max(out, 1)[1].float()` goes into the loss; `requires_grad_()` was added until no error came."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) if fixed else F.mse_loss(out.max(1)[1].float(), y.float()).requires_grad_()

    return classes(lr_tasks.mlp(4, 16, 3), ft.parts(flowers()), 0.01, 6, loss=loss)


@port("no-gradient", 0.3)
def intersection_of_rounded_masks(fixed: bool) -> Training:
    """A loss by intersection over union of rounded masks has no gradient."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        mask, true = out.softmax(1), F.one_hot(y, 3).movedim(-1, 1)
        if not fixed:
            mask = mask.round()
        both = (mask * true).sum((0, 2, 3))
        overlap = both / ((mask + true).sum((0, 2, 3)) - both + 1e-6)
        return (1 - overlap.mean()) if fixed else (1 - overlap.mean()) + 0 * out.sum()

    t = ft.MAKERS["segmentation"]()
    t.loss = loss
    return t


@port("negative", 0.3)
def dice_is_minimised(fixed: bool) -> Training:
    """The Dice coefficient itself is returned as the loss."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        mask, true = out.softmax(1), F.one_hot(y, 3).movedim(-1, 1)
        dice = (2 * (mask * true).sum((0, 2, 3)) / ((mask + true).sum((0, 2, 3)) + 1e-6)).mean()
        return 1 - dice if fixed else dice

    t = ft.MAKERS["segmentation"]()
    t.loss = loss
    return t


@port("negative", 0.3)
def maximise_true(fixed: bool) -> Training:
    """`maximize=True` stayed in the optimizer from an experiment with rewards."""
    return binary(lr_tasks.mlp(2, 24, 24, 1), ft.parts(lr_tasks.moons(), True), 0.01, 8, partial(Adam, maximize=not fixed))


@port("broadcast", 0.25)
def squeezed_targets(fixed: bool) -> Training:
    """`((out - y) ** 2).mean()` of shapes (32, 1) and (32,)."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return ((out.squeeze(1) - y) ** 2).mean() if fixed else ((out - y) ** 2).mean()

    data = ft.parts(ft.friedman_data())
    return numbers(lr_tasks.mlp(10, 48, 1), data, 5e-3, 8, loss=loss, metric=None)


@port("batch-mixing ignores-input", 0.25)
def rows_of_means(fixed: bool) -> Training:
    """Targets of shape (n,) and a network that ends with a mean over the wrong dim: shapes fit by chance."""

    def run(net: Any, x: Tensor) -> Tensor:
        out = net.body(x)
        return out if fixed else out.mean(0, keepdim=True).expand_as(out)

    return numbers(Net(run, body=lr_tasks.mlp(10, 48, 1)), ft.parts(ft.friedman_data(), True), 5e-3, 8)


@port("sum rate-range", 0.25)
def summed_over_the_batch(fixed: bool) -> Training:
    loss = nn.MSELoss(reduction="mean" if fixed else "sum")
    return numbers(lr_tasks.mlp(10, 48, 1), ft.parts(ft.friedman_data(), True), 0.02, 8, SGD, bs=128, loss=loss)


@port("wrong-loss output-activation", 0.75)
def exponential_twice(fixed: bool) -> Training:
    """The network returns `exp(...)`, and `PoissonNLLLoss` expects the logarithm of the rate."""

    def run(net: Any, x: Tensor) -> Tensor:
        return net.body(x) if fixed else net.body(x).exp()

    t = ft.MAKERS["counts"]()
    t.model = Net(run, body=t.model)
    if not fixed:
        t.score = lambda out, y: ft.deviance(out.log(), y)
    return t


# --- models ---


@port("linear-linear", 0.3)
def xor_without_activation(fixed: bool) -> Training:
    layers = [nn.Linear(2, 16), nn.Tanh() if fixed else nn.Identity(), nn.Linear(16, 16), nn.Linear(16, 1)]
    return binary(nn.Sequential(*layers), ft.parts(xor(), True), 0.01, 10)


@port("linear-linear", 0.3)
def functional_without_relu(fixed: bool) -> Training:
    """`x = self.fc1(x); x = self.fc2(x)`: the activations were never called."""

    def run(net: Any, x: Tensor) -> Tensor:
        for layer in (net.fc1, net.fc2):
            x = F.relu(layer(x)) if fixed else layer(x)
        return net.fc3(x)

    model = Net(run, fc1=nn.Linear(5, 48), fc2=nn.Linear(48, 48), fc3=nn.Linear(48, 4))
    return classes(model, ft.parts(lr_tasks.shells()), 5e-3, 10)


@port("no-gradient unused", 0.2)
def wrapped_again_as_tensor(fixed: bool) -> Training:
    """`torch.tensor(h.tolist())` in forward: a new tensor without history."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.fc1(x))
        return net.fc2(h if fixed else torch.tensor(h.tolist()))

    return classes(Net(run, fc1=nn.Linear(64, 24), fc2=nn.Linear(24, 10)), digits(), 5e-3, 3)


@port("no-gradient unused", 0.3)
def no_grad_around_the_body(fixed: bool) -> Training:
    """`with torch.no_grad()` around the features, copied from the code for inference."""

    def run(net: Any, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(fixed and torch.is_grad_enabled()):
            h = net.body(x)
        return net.head(F.relu(h))

    body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8))
    return classes(Net(run, body=body, head=nn.Linear(8, 4)), ft.parts(lr_tasks.shells()), 0.01, 12)


class ListOfBlocks(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        blocks = [nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 16)]
        self.blocks = nn.ModuleList(blocks) if fixed else blocks
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.relu(block(x))
        return self.head(x)


@port("missing-params unused no-gradient", 0.3)
def blocks_in_a_python_list(fixed: bool) -> Training:
    return classes(ListOfBlocks(fixed), digits(), 5e-3, 8)


@port("batch-mixing", 0.15)
def recurrent_over_the_batch(fixed: bool) -> Training:
    """`nn.GRU` without `batch_first`, and batches of (items, time, features)."""

    def run(net: Any, x: Tensor) -> Tensor:
        return net.out(net.gru(x)[0][:, -1])

    data = ft.parts(steps())
    return classes(Net(run, gru=nn.GRU(1, 16, batch_first=fixed), out=nn.Linear(16, 2)), each(data, lambda x: x[:, :8]), 0.01, 8)


@port("batch-mixing", 0.15)
def view_instead_of_permute(fixed: bool) -> Training:
    """The model wants (time, items, features): `x.view(time, n, -1)` puts parts of different items together."""

    def run(net: Any, x: Tensor) -> Tensor:
        n, time, width = x.shape
        x = x.transpose(0, 1) if fixed else x.reshape(time, n, width)
        return net.out(net.gru(x)[0][-1])

    return classes(Net(run, gru=nn.GRU(1, 16), out=nn.Linear(16, 2)), each(ft.parts(steps()), lambda x: x[:, :8]), 0.01, 8)


@port("batch-mixing", 0.12)
def attention_over_items(fixed: bool) -> Training:
    """Scores of attention are normalised over dim 0, the items."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = net.embed(x)
        weights = net.score(torch.tanh(net.key(h))).masked_fill((x == 0)[..., None], -9).softmax(1 if fixed else 0)
        return net.out(F.relu((weights * h).sum(1)))

    model = Net(run, embed=nn.Embedding(5, 16), key=nn.Linear(16, 16), score=nn.Linear(16, 1), out=nn.Linear(16, 4))
    return classes(model, ft.parts(ft.padded(), n=1600), 0.01, 8)


@port("train-eval mode", 0.3)
def norm_in_eval_mode(fixed: bool) -> Training:
    """`self.norm.eval()` in forward, where inputs are not standardised: the layer never learns mean and variance."""

    def run(net: Any, x: Tensor) -> Tensor:
        if not fixed:
            net.norm.eval()
        return net.body(net.norm(x))

    data = each(ft.parts(ft.friedman_data(), True), lambda x: 40 * x + 300)
    return numbers(Net(run, norm=nn.BatchNorm1d(10), body=lr_tasks.mlp(10, 48, 1)), data, 5e-3, 8)


@port("same-twice train-eval", 0.12)
def functional_dropout(fixed: bool) -> Training:
    """`F.dropout(x, 0.8)` without `self.training`: it drops while predicting, too."""

    def run(net: Any, x: Tensor) -> Tensor:
        return net.fc2(F.dropout(F.relu(net.fc1(x)), 0.8, training=net.training if fixed else True))

    return classes(Net(run, fc1=nn.Linear(64, 64), fc2=nn.Linear(64, 10)), digits(), 5e-3, 10)


@port("dropout", 0.5)
def share_to_keep(fixed: bool) -> Training:
    """`Dropout(0.9)` from an old library in which this was the share to keep."""
    p = 0.1 if fixed else 0.9
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 1))
    return numbers(model, ft.parts(ft.friedman_data(), True), 5e-3, 8)


@port("symmetric zero-gradient", 0.3)
def weights_of_zero(fixed: bool) -> Training:
    model = lr_tasks.mlp(64, 32, 32, 10)
    if not fixed:
        for p in model.parameters():
            p.data.zero_()
    return classes(model, digits(), 3e-3, 8)


@port("init-scale initial-loss exploding saturated", 0.12)
def normal_weights(fixed: bool) -> Training:
    """`torch.randn(n_in, n_out)` as weights of a deep network with tanh."""
    model = lr_tasks.mlp(64, 64, 64, 64, 10, act=nn.Tanh)
    if not fixed:
        for layer in model[::2]:
            layer.weight.data = torch.randn_like(layer.weight)
    return classes(model, digits(), 1e-3, 10)


@port("vanishing saturated", 0.6)
def eight_sigmoids(fixed: bool) -> Training:
    return classes(lr_tasks.mlp(64, *[48] * 8, 10, act=nn.ReLU if fixed else nn.Sigmoid), digits(), 2e-3, 14)


@port("capacity width", 0.3)
def one_hidden_unit(fixed: bool) -> Training:
    """A bottleneck of one unit in front of ten classes."""
    return classes(lr_tasks.mlp(64, 32, 32 if fixed else 1, 10), digits(), 5e-3, 8)


@port("unused no-gradient missing-params", 0.4)
def second_head_not_in_the_loss(fixed: bool) -> Training:
    """Two heads for two targets; the loss compares the first with both."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.body(x))
        return torch.cat([net.first(h), net.second(h)], 1)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out[:, :1], y[:, :1]) + F.mse_loss(out[:, 1:] if fixed else out[:, :1], y[:, 1:])

    data = each(ft.parts(ft.friedman_data(), True), lambda x: x, lambda y: torch.cat([y, -y], 1))
    return numbers(Net(run, body=nn.Linear(10, 48), first=nn.Linear(48, 1), second=nn.Linear(48, 1)), data, 5e-3, 10, loss=loss)


# --- data ---


@port("input-scale", 0.3)
def wave_of_raw_numbers(fixed: bool) -> Training:
    """The sine of numbers up to 1000, which go into the network as they are."""
    data = ft.parts(curve(), True)
    return numbers(lr_tasks.mlp(1, 32, 32, 1, act=nn.Tanh), each(data, lambda x: (x - 500) / 290) if fixed else data, 0.01, 40)


@port("input-scale column-scales", 0.55)
def incomes_and_ages(fixed: bool) -> Training:
    """A table in dollars, years and shares, with SGD."""
    data = ft.parts(ft.cached(lr_tasks.houses), True)
    scale, shift = torch.tensor([3e4, 15, 2, 900, 1e-2, 1e-3]), torch.tensor([6e4, 40, 5, 1400, 0, 0])
    return numbers(lr_tasks.mlp(6, 32, 1), data if fixed else each(data, lambda x: x * scale + shift), 0.02, 10, SGD)


@port("input-scale init-scale", 0.2)
def divided_by_255_twice(fixed: bool) -> Training:
    """Pixels are divided by 255 by the reader and again by the program."""
    data = digits()
    return classes(lr_tasks.mlp(64, 48, 10), data if fixed else each(data, lambda x: x / 255), 0.05, 6, SGD)


@port("targets-scale", 0.5)
def prices_in_dollars(fixed: bool) -> Training:
    """Prices of some hundred thousand as targets; the usual rate moves the last bias by a few dollars."""
    data = ft.parts(houses_in_dollars(), True)
    scaled = each(data, lambda x: x, lambda y: (y - 2.5e5) / 1e5)
    return numbers(lr_tasks.mlp(6, 32, 32, 1), scaled if fixed else data, 3e-3, 10)


@port("nonfinite", 0.7)
def empty_cells(fixed: bool) -> Training:
    """`read_csv` gives nan for empty cells."""
    data = ft.parts(ft.cached(lr_tasks.houses), True)
    for x, _ in (data["train"], data["valid"]):
        x[::60, 2] = 0.0 if fixed else float("nan")
    return numbers(lr_tasks.mlp(6, 32, 1), data, 5e-3, 8)


@port("inputs-zeroed shuffled-labels mislabelled", 0.2)
def files_in_another_order(fixed: bool) -> Training:
    """Pictures are read in the order of `os.listdir`, labels in that of the table."""
    data = pictures()
    if not fixed:
        for part in ("train", "valid"):
            x, y = data[part]
            data[part] = x[torch.randperm(len(x))], y
    return classes(lr_tasks.conv(norm=True), data, 0.03, 4, SGD)


@port("sorted-batches", 0.15)
def folders_one_by_one(fixed: bool) -> Training:
    """`ImageFolder` gives one class after another, and the loader has `shuffle=False`."""
    data = pictures()
    order = data["train"][1].argsort(stable=True)
    data["train"] = data["train"][0][order], data["train"][1][order]
    return classes(lr_tasks.conv(norm=True), data, 0.03, 4, SGD, shuffle=fixed)


@port("constant-input inputs-zeroed ignores-input", 0.3)
def mask_instead_of_picture(fixed: bool) -> Training:
    """The file of an alpha channel, all ones, is read instead of the picture."""
    data = pictures()
    return classes(
        lr_tasks.conv(), data if fixed else data | {k: (torch.ones_like(data[k][0]), data[k][1]) for k in ("train", "valid")}, 3e-3, 6
    )


@port("label-range width", 0.2)
def ten_digits_nine_outputs(fixed: bool) -> Training:
    return classes(lr_tasks.mlp(64, 48, 10 if fixed else 9), digits(), 3e-3, 8)


# --- optimizers ---


@port("rate-range", 0.3)
def adam_with_the_rate_of_sgd(fixed: bool) -> Training:
    return classes(lr_tasks.mlp(64, *[40] * 5, 10), digits(), 2e-3 if fixed else 0.2, 8)


@port("rate-range", 0.12)
def rate_of_fine_tuning(fixed: bool) -> Training:
    """1e-5, as for BERT, from scratch and with SGD."""
    return classes(lr_tasks.mlp(4, 16, 3), ft.parts(flowers()), 0.05 if fixed else 1e-5, 5, SGD)


@port("decay", 0.5)
def decay_of_one(fixed: bool) -> Training:
    """A decay of 1 where 1e-2 was meant."""
    return numbers(lr_tasks.mlp(10, 48, 1), ft.parts(ft.friedman_data(), True), 5e-3, 8, partial(Adam, weight_decay=1e-4 if fixed else 1.0))


@port("missing-params", 0.45)
def only_the_classifier_is_given(fixed: bool) -> Training:
    """`optim.SGD(model.classifier.parameters())` although the features are new."""
    model = nn.Sequential()
    model.features, model.classifier = lr_tasks.mlp(5, 10, 10), nn.Sequential(nn.ReLU(), nn.Linear(10, 4))

    def opt(groups: Any, **more: Any) -> torch.optim.Optimizer:
        return SGD(groups if fixed else model.classifier.parameters(), **more)

    return classes(model, ft.parts(lr_tasks.shells()), 0.05, 12, opt)


@port("stale-params missing-params", 0.6)
def optimizer_of_the_first_model(fixed: bool) -> Training:
    """The notebook's cell of the model was run again, that of the optimizer was not."""
    model, old = lr_tasks.mlp(64, 48, 10), lr_tasks.mlp(64, 48, 10)
    return classes(model, digits(), 0.05, 5, lambda groups, **more: SGD(groups if fixed else old.parameters(), **more))


@port("schedule-steps rate-range", 0.3)
def cosine_over_too_few_steps(fixed: bool) -> Training:
    """`StepLR(10)` steps each update instead of each epoch."""
    t = classes(lr_tasks.mlp(64, 48, 10), digits(), 0.02, 8, SGD)
    t.cbs = [TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 4, 0.2), every="epoch" if fixed else "update")]
    return t


@port("regulariser overfit-one-batch", 0.25)
def penalty_of_all_weights(fixed: bool) -> Training:
    """A penalty of 0.1 on the absolute values of all weights, where 1e-4 was meant."""
    model = lr_tasks.mlp(10, 48, 1)
    weight = 1e-4 if fixed else 0.1

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(out, y) + weight * sum(p.abs().sum() for p in model.parameters())

    return numbers(model, ft.parts(ft.friedman_data(), True), 5e-3, 8, loss=loss)


@port("nonfinite nan", 0.4)
def root_of_zero(fixed: bool) -> Training:
    """The distance of two equal vectors: the root has an infinite slope at zero."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = net.body(x)
        far = (h - h.detach().roll(0, 0)).pow(2).sum(1, keepdim=True)
        return net.out(torch.relu(h)) + 0 * (far + (1e-8 if fixed else 0)).sqrt()

    return classes(Net(run, body=nn.Linear(64, 32), out=nn.Linear(32, 10)), digits(), 3e-3, 8)


@port("batch-size too-short", 0.25)
def all_data_in_one_batch(fixed: bool) -> Training:
    return classes(lr_tasks.mlp(64, 48, 10), digits(), 3e-3, 8, bs=32 if fixed else 900)
