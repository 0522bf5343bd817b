"""bfloat16 on sentences of unequal lengths: accuracy and loss leave out the padding."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner, MixedPrecision, accuracy
from program import Hand, Program, loader, mean

PAD = -100


def loaders():
    g = torch.Generator().manual_seed(3)
    x = torch.randint(9, (61, 6), generator=g)
    y = ((x + x.roll(1, 1)) % 4).masked_fill(torch.arange(6) >= torch.randint(1, 7, (61, 1), generator=g), PAD)
    return loader(x[:44], y[:44], shuffle=True), loader(x[44:], y[44:])


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.hidden, self.out = nn.Embedding(9, 16), nn.Linear(96, 96), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.hidden(self.emb(x).flatten(1)).relu().unflatten(1, (6, 16))).transpose(1, 2)


def half():
    return torch.autocast("cpu", torch.bfloat16)


class TestHalfPrecision(Program):
    def by_hand(self):
        (train, valid), model, loss_func = loaders(), Reader(), nn.CrossEntropyLoss(ignore_index=PAD)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, counts = [], []
            for x, y in train:
                with half():
                    pred = model(x)
                assert pred.dtype == torch.bfloat16
                loss = loss_func(pred.float(), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), counts.append((y != PAD).sum())
            model.eval()
            with torch.no_grad(), half():
                pred, y = (torch.cat(t) for t in zip(*((model(x).float(), y) for x, y in valid)))
            hand.losses += losses
            row = dict(train_loss=mean(losses, counts), valid_loss=F.cross_entropy(pred, y, ignore_index=PAD).item())
            hand.rows.append(row | dict(accuracy=(pred.argmax(1) == y)[y != PAD].float().mean().item()))
        return hand

    def learner(self, path):
        dls, cbs = DataLoaders(*loaders(), device="cpu"), MixedPrecision("bf16")
        return Learner(dls, Reader(), nn.CrossEntropyLoss(ignore_index=PAD), lr=1e-2, metrics=accuracy, cbs=cbs, path=path)

    def validated(self, learn):
        learn.to_bf16()
        return super().validated(learn)
