"""Four folds with a new learner each. The predictions of the held-out parts, put together, are those of the loops by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner
from helpers import seed
from program import loader

K = 4


def items():
    g = torch.Generator().manual_seed(5)
    x = torch.randn(67, 4, generator=g)
    return x, x.sin().sum(1) + x[:, 0] * x[:, 1]


def net():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))


def folds():
    x, y = items()
    number = torch.arange(67) % K
    for fold in range(K):
        out = number == fold
        yield out, loader(x[~out], y[~out], shuffle=True), loader(x[out], y[out])


def by_hand():
    held_out, losses = torch.zeros(67), []
    for out, train, valid in folds():
        model = net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        for _ in range(3):
            for x, y in train:
                F.mse_loss(model(x), y).backward()
                opt.step()
                opt.zero_grad()
            with torch.no_grad():  # after each epoch, as the learner does: an iterator of a loader draws a random number
                pred, y = (torch.cat(t) for t in zip(*((model(x), y) for x, y in valid)))
        losses.append(F.mse_loss(pred, y).item())
        held_out[out] = pred  # of the last epoch: get_preds() draws nothing
    return held_out, losses


def test_predictions_of_the_held_out_parts_are_those_of_the_loops(tmp_path):
    seed(0)
    expected, by_fold = by_hand()
    seed(0)
    held_out, losses = torch.zeros(67), []
    for out, train, valid in folds():
        learn = Learner(DataLoaders(train, valid, device="cpu"), net(), nn.MSELoss(), lr=1e-2, path=tmp_path)
        learn.logger = lambda row: None
        learn.fit(3)
        held_out[out], _ = learn.get_preds()
        losses.append(learn.recorder.history["valid_loss"][-1])
    assert torch.equal(held_out, expected)
    assert all(abs(a - b) < 1e-6 for a, b in zip(losses, by_fold)) and len(losses) == K
    assert abs(F.mse_loss(held_out, items()[1]).item() - sum(n * loss for n, loss in zip((17, 17, 17, 16), by_fold)) / 67) < 1e-6
