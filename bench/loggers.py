"""What a logger costs that logs each batch (`every=1`): in the loop, and in all, with the rows sent at the end of the epoch.

    python bench/loggers.py             TensorBoard and JSON lines, about one minute; W&B (offline) and MLflow if they are installed
    python bench/loggers.py --quick     less exact, some seconds

The step computes nothing, as in callbacks.py, so that a batch takes a few microseconds; its losses and rates are other numbers in each batch.
In the loop, a logger looks at the clock. The rows are those of the recorder, and are sent at the end of the epoch: that is where a service
costs what it costs, per row. CPU time is that of the process, with the threads of the services; time is what the epoch takes longer.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
import warnings

import torch
from torch import nn

import cbnb.all as cbnb
from callbacks import Hollow
from cbnb.callbacks.loggers import JSONLLogger, Logger, MLflowLogger, TensorBoardLogger, WandbLogger
from loop_overhead import Loader

LIMIT = 5.0  # microseconds a batch, in all
BATCHES = 2000


class Varied(Hollow):
    """Trains nothing; losses and rates have all their digits, as those of a training have."""

    def __init__(self):
        super().__init__()
        self.losses, self.rates = list(torch.rand(BATCHES)), torch.rand(BATCHES, dtype=torch.float64).tolist()

    def loss(self, learn: cbnb.Learner) -> None:
        learn.loss = learn.loss_grad = self.losses[learn.iter]

    def step(self, learn: cbnb.Learner) -> None:
        learn.opt.param_groups[0]["lr"] = self.rates[learn.iter]


class Nowhere(Logger):
    """Gets rows, and drops them."""

    def start(self, settings):
        pass

    def log(self, values, step):
        pass

    def log_rows(self, rows):
        pass

    def finish(self, status):
        pass


class Timed(cbnb.Callback):
    """CPU time of the batches of an epoch, CPU time and time of the epoch."""

    order, run_in = 1000, ("fit",)

    def before_train(self):
        self.began = time.process_time(), time.perf_counter()

    def after_train(self):
        self.loop = time.process_time() - self.began[0]

    def after_epoch(self):
        self.found = self.loop, time.process_time() - self.began[0], time.perf_counter() - self.began[1]


def measured(logger: Logger | None, path: str) -> list[float]:
    """Microseconds a batch: CPU time in the loop, CPU time in all, and time."""
    batches = [(torch.zeros(16, 1), torch.zeros(16, 1))] * BATCHES
    learn = cbnb.Learner(
        cbnb.DataLoaders(Loader(batches), device="cpu"), nn.Linear(1, 1), nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.1,
        train_step=Varied(), path=path, default_cbs=False, cbs=[cbnb.TrainEvalCallback, cbnb.Recorder, *([logger] if logger else []), (timed := Timed())],
    )  # fmt: skip
    learn.logger = lambda row: None
    learn.fit(1)
    return [seconds / BATCHES * 1e6 for seconds in timed.found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    rounds = 3 if parser.parse_args().quick else 21
    os.environ |= dict(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false", MLFLOW_DISABLE_TELEMETRY="true")
    makers = {
        "none": lambda: None,
        "base class": lambda: Nowhere(every=1),
        "JSONLLogger": lambda: JSONLLogger(every=1),
        "TensorBoardLogger": lambda: TensorBoardLogger(every=1),
        "WandbLogger": lambda: WandbLogger("bench", every=1),
        "MLflowLogger": lambda: MLflowLogger(every=1),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in makers}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(rounds + 1):
            for name, make in list(makers.items())[:: 1 if i % 2 else -1]:
                with contextlib.suppress(ImportError):
                    here = measured(make(), path)
                    found[name] += [here] * (i > 0)  # the first round imports
    base = [statistics.median(values) for values in zip(*found["none"])]
    print(f"without a logger, a batch takes {base[1]:.2f} µs of CPU time, and {base[2]:.2f} µs\n")
    print(f"{'every=1, µs a batch':20}{'in the loop':>14}{'CPU, in all':>14}{'ratio':>8}{'half of the rounds':>22}{'time':>10}")
    for name, rows in found.items():
        if rows:
            loop, cpu, took = (statistics.median(values) - zero for values, zero in zip(zip(*rows), base))
            low, _, high = statistics.quantiles([row[1] - zero[1] for row, zero in zip(rows, found["none"])], n=4)
            print(
                f"{name:20}{loop:14.2f}{cpu:14.2f}{1 + cpu / base[1]:8.2f}{f'{low:.1f} to {high:.1f}':>22}{took:10.2f}"
                + "    over the limit" * (cpu > LIMIT)
            )


if __name__ == "__main__":
    main()
