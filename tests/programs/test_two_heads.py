"""A tagger with two heads, for words and for whole sentences of unequal lengths. Both losses ignore the padding, which is that of the words."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import AccumMetric, DataLoaders, Learner, metric_on
from program import Hand, Program, loader, mean

PAD = -100


def loaders():
    g = torch.Generator().manual_seed(6)
    x = torch.randint(1, 9, (61, 5), generator=g)
    padding = torch.arange(5) >= torch.randint(1, 6, (61, 1), generator=g)
    kind, after = (x % 3).masked_fill(padding, PAD), (x.roll(1, 1) % 2).masked_fill(padding, PAD)
    x = x.masked_fill(padding, 0)
    return loader(x[:44], kind[:44], after[:44], shuffle=True), loader(x[44:], kind[44:], after[44:])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(9, 8), nn.Conv1d(5, 5, 3, padding=1), nn.ReLU())
        self.kind, self.after = nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        h = self.body(x)
        return self.kind(h), self.after(h)


def loss_func(pred, kind, after):
    parts = [F.cross_entropy(p.flatten(0, 1), y.flatten(), ignore_index=PAD) for p, y in zip(pred, (kind, after))]
    return dict(loss=parts[0] + 0.5 * parts[1], kind=parts[0], after=parts[1])


def words(pred, kind, after):
    return (kind != PAD).sum()


def hits(pred, y):
    return (pred.argmax(-1) == y)[y != PAD].float().mean()


class TestTwoHeads(Program):
    def by_hand(self):
        (train, valid), model = loaders(), TwoHeads()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            parts, counts = [], []
            for x, *y in train:
                out = loss_func(model(x), *y)
                out["loss"].backward()
                opt.step()
                opt.zero_grad()
                parts.append([v.item() for v in out.values()]), counts.append((y[0] != PAD).sum())
            model.eval()
            with torch.no_grad():
                x, *y = (torch.cat(t) for t in zip(*valid))
                pred = model(x)
                whole = [v.item() for v in loss_func(pred, *y).values()]
            hand.losses += [p[0] for p in parts]
            hand.rows.append(
                dict(zip(["train_loss", "kind", "after"], (mean(column, counts) for column in zip(*parts))))
                | dict(zip(["valid_loss", "valid_kind", "valid_after"], whole))
                | {"hits": hits(pred[0], y[0]).item(), "hits_1": hits(pred[1], y[1]).item()}
            )
        return hand

    def learner(self, path):
        metrics = [
            metric_on(AccumMetric(hits, flatten=False), 0, 2),
            metric_on(AccumMetric(hits, flatten=False), 1, 3, name="hits_1"),
        ]
        dls = DataLoaders(*loaders(), device="cpu", n_inp=1)
        return Learner(dls, TwoHeads(), loss_func, lr=1e-2, metrics=metrics, batch_weight=words, path=path)
