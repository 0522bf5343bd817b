"""Accumulated gradients: windows of five batches, the last of which is ragged, and a token mean over texts of unequal lengths."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, GradientAccumulation, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(9)
    x = torch.randint(7, (61, 5), generator=g)
    y = (x + x.roll(1, 1)) % 7
    y[torch.arange(5) >= torch.randint(1, 6, (61, 1), generator=g)] = -100
    return loader(x[:45], y[:45], bs=4, shuffle=True), loader(x[45:], y[45:], bs=4)


def net():
    return nn.Sequential(nn.Embedding(7, 8), nn.Flatten(), nn.Linear(40, 35), nn.Unflatten(1, (7, 5)))


class TestAccumulation(Program):
    """The gradient of a window is that of one large batch."""

    fails_at, weights = 16, 1e-6

    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.SGD(model.parameters(), 0.2)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            batches, losses, tokens = list(train), [], []
            for i in range(0, len(batches), 5):
                with torch.no_grad():
                    losses += [F.cross_entropy(model(x), y).item() for x, y in batches[i : i + 5]]
                tokens += [(y >= 0).sum() for _, y in batches[i : i + 5]]
                x, y = (torch.cat(parts) for parts in zip(*batches[i : i + 5]))
                F.cross_entropy(model(x), y).backward()
                opt.step()
                opt.zero_grad()
            model.eval()
            with torch.no_grad():
                x, y = (torch.cat(parts) for parts in zip(*valid))
                valid_loss = F.cross_entropy(model(x), y).item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, tokens), valid_loss=valid_loss))
        return hand

    losses = 1e-6

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, net(), F.cross_entropy, torch.optim.SGD, lr=0.2, cbs=GradientAccumulation(20), path=path)


@pytest.mark.parametrize("n_acc, said", [(4, 1), (1, 0), (8, 0), (12, 0)])
def test_batches_in_place_of_items_are_heard(n_acc, said):
    """`GradientAccumulation(4)` is four items, and was silent with batches of eight."""
    x = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
    batches = list(zip(x.split(8), x.sum(1, keepdim=True).split(8)))
    learn = Learner(DataLoaders(batches, device="cpu"), nn.Linear(2, 1), nn.MSELoss(), cbs=GradientAccumulation(n_acc))
    with warnings.catch_warnings(record=True) as seen, learn.no_logging():
        warnings.simplefilter("always")
        learn.fit(2, valid_every=[])
    heard = [str(w.message) for w in seen if "counts items" in str(w.message)]
    assert len(heard) == said
    assert not said or heard[0].endswith("to update once in 4 batches, pass GradientAccumulation(32)")
