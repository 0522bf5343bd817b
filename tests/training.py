"""A training with everything that a checkpoint has to keep; run as a program, it may be killed at any moment and started again.

python tests/training.py FOLDER 2                      train, or go on; at the end there is FOLDER/outcome.json
python tests/training.py FOLDER 2 after_batch 13       the same, but it kills itself in its 13th `after_batch`
python tests/training.py FOLDER 2 rename 2             ... in its second call of os.rename; likewise fsync, mkdir, rmtree
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cbnb.all import (
    Callback,
    Checkpoint,
    DataLoaders,
    EarlyStopping,
    GradientAccumulation,
    Learner,
    MixUp,
    SaveModel,
    accuracy,
)

N_ITEMS, BATCH = 320, 16


class Numbered(Dataset):
    """Items whose last column is their number."""

    def __init__(self, x, y, first):
        self.x, self.y, self.first = x, y, first

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.cat([self.x[i], torch.tensor([float(self.first + i)])]), self.y[i]


class Net(nn.Module):
    """Dropout, batch norm, and no look at the number of an item."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x[:, :20])


class Items(Callback):
    """Keeps the numbers of the items that the weights have learnt from, for each epoch."""

    order, run_valid = -50, False  # before MixUp

    def __init__(self):
        self.seen = {}

    def before_batch(self):
        self.seen.setdefault(self.epoch, []).append([int(i) for i in self.x[:, 20]])


class Dies(Callback):
    """Kills its process, as the kernel of the system does when memory runs out, in the k-th call of a method."""

    order = 1000

    def __init__(self, event, k):
        self.left = k
        super().__init__(**{event: Dies.count})

    def count(self):
        self.left -= 1
        if self.left == 0:
            die()

    def state_dict(self):
        return {}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(what, k):
    """Die in the k-th call of a function that writes."""
    module, name = {"rmtree": (shutil, "rmtree"), "fsync": (os, "fsync"), "rename": (os, "rename"), "mkdir": (os, "mkdir")}[what]
    old, left = getattr(module, name), [k]

    def counted(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            die()
        return old(*args, **kwargs)

    setattr(module, name, counted)


def data(num_workers):
    torch.manual_seed(1)
    x = torch.randn(N_ITEMS + 80, 20)
    y = (x[:, :4] + 0.5 * torch.randn(N_ITEMS + 80, 4)).argmax(1)
    train = Numbered(x[:N_ITEMS], y[:N_ITEMS], 0)
    valid = Numbered(x[N_ITEMS:], y[N_ITEMS:], N_ITEMS)
    return DataLoaders(
        DataLoader(train, batch_size=BATCH, shuffle=True, num_workers=num_workers),
        DataLoader(valid, batch_size=40),
        device="cpu",
    )


def learner(path, num_workers=2, cbs=(), every_steps=7, **kwargs):
    torch.manual_seed(0)
    cbs = [
        Items(),
        GradientAccumulation(3 * BATCH),
        MixUp(0.4),
        EarlyStopping(patience=9),
        SaveModel(fname="best", with_opt=True),
        Checkpoint(every_steps=every_steps, **kwargs),
        *cbs,
    ]
    return Learner(data(num_workers), Net(), nn.CrossEntropyLoss(), path=path, cbs=cbs, metrics=accuracy)


def digest(values):
    whole = b"".join(t.detach().contiguous().numpy().tobytes() for t in values if isinstance(t, torch.Tensor))
    return hashlib.sha256(whole).hexdigest()


def outcome(learn):
    """Everything that must be equal, with hashes of the tensors; of a table of epochs all but the time."""
    states = [v for opt_state in learn.opt.state.values() for v in opt_state.values()]
    run = learn.recorder.history[-1]
    items = learn.items.seen if hasattr(learn, "items") else {}
    return {
        "weights": digest(learn.model.state_dict().values()),
        "optimizer": digest(states),
        "rates": [[v for k, v in g.items() if k != "params"] for g in learn.opt.param_groups],
        "steps": dict(run.steps),
        "epochs": [{k: v for k, v in row.items() if k != "time"} for row in run.epochs],
        "status": run.status,
        "runs": len(learn.recorder.history),
        "items": {str(epoch): batches for epoch, batches in items.items()},
        "random": [torch.rand(3).tolist(), random.random(), np.random.rand()],
    }


def main(path, num_workers, what=None, k=0):
    torch.set_num_threads(1)  # with another number, sums are rounded otherwise
    seed = os.getpid() if any(Path(path).glob("models/checkpoints/*/0*")) else 0  # a later process has other numbers, until it goes on
    random.seed(seed), np.random.seed(seed)
    if what and not hasattr(Callback, what):
        die_in(what, int(k))
    dies = [Dies(what, int(k))] if what and hasattr(Callback, what) else []
    learn = learner(path, int(num_workers))
    with learn.no_bar():
        learn.fit_one_cycle(4, 1e-2, cbs=dies, resume=True)
    draft = Path(path, "outcome.part")
    draft.write_text(json.dumps(outcome(learn)))
    draft.rename(Path(path, "outcome.json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
