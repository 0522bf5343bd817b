"""What cbnb costs on a GPU: time a batch and peak memory, against a loop by hand.

    python bench/gpu.py                 a small CNN and a small transformer, in float32 and bf16, with and without torch.compile
    python bench/gpu.py --quick         fewer rounds, and nothing compiled

Both loops take turns in one process. Elapsed time counts, from the first batch of an epoch to the end of its last, when the GPU
has done all its work. The loop by hand has a fused AdamW and autocast where cbnb has them, and keeps no losses.
"""

import argparse
import contextlib
import gc
import io
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

import cbnb.all as cbnb
from cbnb.callbacks.compile import Compile
from cbnb.callbacks.precision import MixedPrecision


class Words(nn.Module):
    """A transformer encoder over 256 words"""

    def __init__(self, width: int = 512, depth: int = 6):
        super().__init__()
        self.words = nn.Embedding(1000, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
        self.layers, self.head = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x)).mean(1))


def cnn() -> nn.Module:
    def block(n_in: int, n_out: int) -> list[nn.Module]:
        return [nn.Conv2d(n_in, n_out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]

    return nn.Sequential(*block(3, 64), *block(64, 128), *block(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))


def images(n: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(0, 1000, (128,), device="cuda")) for _ in range(n)]


def texts(n: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randint(0, 1000, (32, 256), device="cuda"), torch.randint(0, 1000, (32,), device="cuda")) for _ in range(n)]


class Clocked:
    """Batches; notes when each epoch begins and when its last batch is done"""

    def __init__(self, batches: list[tuple[Tensor, Tensor]]):
        self.batches, self.seconds = batches, []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterable[tuple[Tensor, Tensor]]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        yield from self.batches
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)


def by_hand(model: nn.Module, batches: Clocked, epochs: int, bf16: bool, compiled: bool) -> None:
    model, loss_func = model.cuda(), nn.CrossEntropyLoss()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if compiled:
        model.compile()
    model.train()
    for _ in range(epochs):
        for x, y in batches:
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                loss = loss_func(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()


def ours(model: nn.Module, batches: Clocked, epochs: int, bf16: bool, compiled: bool) -> None:
    cbs = [*([MixedPrecision("bf16")] if bf16 else []), *([Compile()] if compiled else [])]
    learn = cbnb.Learner(cbnb.DataLoaders(batches), model, nn.CrossEntropyLoss(), lr=1e-4, cbs=cbs)
    with contextlib.redirect_stdout(io.StringIO()):
        learn.fit(epochs)


def cost(train: Callable[..., None], make: Callable[[], nn.Module], data: list, epochs: int) -> tuple[float, float]:
    """Microseconds a batch in the quickest epoch after the first, and the peak of memory in MB"""
    gc.collect()  # a learner refers to itself, and would be freed during the next measurement
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, batches = torch.cuda.memory_allocated(), Clocked(data)
    torch.manual_seed(0)
    train(make(), batches, epochs + 1)
    return min(batches.seconds[1:]) / len(data) * 1e6, (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and nothing compiled")
    quick = parser.parse_args().quick
    if not torch.cuda.is_available():
        return print("there is no GPU here, so there is nothing to measure")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(f"{'':36}{'by hand, us':>12}{'cbnb, us':>12}{'x':>8}   half of the rounds   {'memory, x':>10}")
    for name, make, data in (("CNN, 128 images of 64x64", cnn, images(50)), ("transformer, 32 texts of 256 words", Words, texts(50))):
        for bf16 in False, True:
            for compiled in (False,) if quick else (False, True):
                trains = [partial(f, bf16=bf16, compiled=compiled) for f in (by_hand, ours)]
                pairs = [[cost(f, make, data, epochs=3) for f in trains] for _ in range(3 if quick else 9)]
                theirs, mine = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
                low, middle, high = statistics.quantiles((m[0] / t[0] for t, m in pairs), n=4)
                memory = statistics.median(m[1] / t[1] for t, m in pairs)
                words = f"{name}{', bf16' if bf16 else ''}{', compiled' if compiled else ''}"
                print(f"{words:36}{theirs:12.1f}{mine:12.1f}{middle:8.3f}   {low:.3f} to {high:.3f}     {memory:8.3f}")


if __name__ == "__main__":
    main()
