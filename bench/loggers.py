"""What a logger costs that logs each batch (`every=1`): in the loop, and when the rows are sent at the end of an epoch.

    python bench/loggers.py             TensorBoard and JSON lines, about one minute; W&B (offline) and MLflow if they are installed
    python bench/loggers.py --quick     less exact, some seconds

The step does nothing, as in callbacks.py, so that a batch takes a few microseconds. In the loop, a logger looks at the clock. The rows are
those of the recorder, and are sent at the end of an epoch: that is where a service costs what it costs, per row.
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

LIMIT = 5.0  # microseconds a batch, in the loop
BATCHES = 2000


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
    """CPU time of the batches of an epoch, and of its end."""

    order, run_in = 1000, ("fit",)

    def before_train(self):
        self.began = time.process_time()

    def after_train(self):
        self.batches = time.process_time() - self.began

    def after_epoch(self):
        self.whole = time.process_time() - self.began


def measured(logger: Logger | None, path: str) -> tuple[float, float]:
    """Microseconds a batch: in the loop, and at the end of the epoch."""
    batches = [(torch.zeros(16, 1), torch.zeros(16, 1))] * BATCHES
    learn = cbnb.Learner(
        cbnb.DataLoaders(Loader(batches), device="cpu"), nn.Linear(1, 1), nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.1,
        train_step=Hollow(), path=path, default_cbs=False, cbs=[cbnb.TrainEvalCallback, cbnb.Recorder, *([logger] if logger else []), (timed := Timed())],
    )  # fmt: skip
    learn.logger = lambda row: None
    learn.fit(1)
    return timed.batches / BATCHES * 1e6, (timed.whole - timed.batches) / BATCHES * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    rounds = 3 if parser.parse_args().quick else 11
    os.environ |= dict(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false", MLFLOW_DISABLE_TELEMETRY="true")
    makers = {
        "none": lambda: None,
        "base class": lambda: Nowhere(every=1),
        "JSONLLogger": lambda: JSONLLogger(every=1),
        "TensorBoardLogger": lambda: TensorBoardLogger(every=1),
        "WandbLogger": lambda: WandbLogger("bench", every=1),
        "MLflowLogger": lambda: MLflowLogger(every=1),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in makers}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(rounds + 1):
            for name, make in makers.items():
                with contextlib.suppress(ImportError):
                    here = measured(make(), path)
                    found[name] += [here] * (i > 0)  # the first round imports
    base = [statistics.median(values) for values in zip(*found["none"])]
    print(f"{'every=1':20}{'in the loop':>14}{'ratio':>8}{'sending a row':>16}{'at every=50':>14}    µs a batch")
    for name, rows in found.items():
        if rows:
            loop, end = (statistics.median(values) for values in zip(*rows))
            more, sends = loop - base[0], end - base[1]
            print(
                f"{name:20}{more:14.2f}{loop / base[0]:8.2f}{sends:16.1f}{more + sends / 50:14.2f}" + "    over the limit" * (more > LIMIT)
            )


if __name__ == "__main__":
    main()
