"""A training with everything that a checkpoint has to keep; run as a program, it may be killed at any moment and started again."""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cbnb.all import (
    Checkpoint,
    DataLoaders,
    EarlyStopping,
    GradientAccumulation,
    Learner,
    MixUp,
    SaveModel,
    accuracy,
)


def net():
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))


def data(num_workers):
    torch.manual_seed(1)
    x = torch.randn(400, 20)
    y = (x[:, :4] + 0.5 * torch.randn(400, 4)).argmax(1)
    train = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=16, shuffle=True, num_workers=num_workers)
    return DataLoaders(train, DataLoader(TensorDataset(x[320:], y[320:]), batch_size=40), device="cpu")


def learner(path, num_workers=2, every_steps=7, **kwargs):
    torch.manual_seed(0)
    cbs = [
        GradientAccumulation(3),
        MixUp(0.4),
        EarlyStopping(patience=9),
        SaveModel(fname="best", with_opt=True),
        Checkpoint(every_steps=every_steps, **kwargs),
    ]
    return Learner(data(num_workers), net(), nn.CrossEntropyLoss(), path=path, cbs=cbs, metrics=accuracy)


def outcome(learn):
    """Everything that must be equal, with hashes of the tensors; of a table of epochs all but the time."""
    import hashlib

    def digest(values):
        whole = b"".join(t.detach().contiguous().numpy().tobytes() for t in values)
        return hashlib.sha256(whole).hexdigest()

    states = [v for p in learn.model.parameters() for v in learn.opt.state[p].values()]
    run = learn.recorder.history[-1]
    return {
        "weights": digest(learn.model.state_dict().values()),
        "optimizer": digest(states),
        "steps": dict(run.steps),
        "epochs": [{k: v for k, v in row.items() if k != "time"} for row in run.epochs],
        "status": run.status,
        "random": torch.rand(3).tolist(),
    }


def main(path, num_workers):
    learn = learner(path, int(num_workers))
    with learn.no_bar():
        learn.fit_one_cycle(4, 1e-2, resume=True)
    draft = Path(path, "outcome.part")
    draft.write_text(json.dumps(outcome(learn)))
    draft.rename(Path(path, "outcome.json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
