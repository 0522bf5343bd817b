"""An encoder-decoder with teacher forcing, accumulated updates, and a warm-up that counts updates."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from cbnb.all import DataLoaders, GradientAccumulation, Learner, TorchScheduler
from program import Hand, Program

VOCAB, PAD, BEGIN = 9, 0, 1


def pairs(n):
    g = torch.Generator().manual_seed(n)
    texts = [torch.randint(2, VOCAB, (int(torch.randint(1, 6, (), generator=g)),), generator=g) for _ in range(n)]
    return [(t, t.flip(0)) for t in texts]


def collate(batch):
    return tuple(pad_sequence(texts, batch_first=True, padding_value=PAD) for texts in zip(*batch))


def loaders():
    return DataLoader(pairs(48), 8, shuffle=True, collate_fn=collate), DataLoader(pairs(19), 8, collate_fn=collate)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.enc = nn.Embedding(VOCAB, 6, padding_idx=PAD), nn.GRU(6, 10, batch_first=True)
        self.dec, self.out = nn.GRUCell(6, 10), nn.Linear(10, VOCAB)

    def forward(self, source, target):
        h = self.enc(self.emb(source))[1][0]
        word, outputs = torch.full((len(source),), BEGIN), []
        for i in range(target.shape[1]):
            h = self.dec(self.emb(word), h)
            outputs.append(self.out(h))
            word = target[:, i] if self.training and random.random() < 0.6 else outputs[-1].argmax(1)
        return torch.stack(outputs, 2)


def warm_up(n_updates):
    return min(1.0, (n_updates + 1) / 5)


def summed(pred, y):
    """The loss of all tokens, and their number."""
    return F.cross_entropy(pred, y, ignore_index=PAD, reduction="sum", label_smoothing=0.1), (y != PAD).sum()


class TestTranslation(Program):
    """An update takes two batches. Each token counts the same in it, so the loss is divided by the tokens of both."""

    weights = losses = 1e-6
    fails_at = 7

    def by_hand(self):
        (train, valid), model = loaders(), Translator()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        sched = LambdaLR(opt, warm_up)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            total = n = window = 0
            for i, (x, y) in enumerate(train):
                loss, tokens = summed(model(x, y), y)
                loss.backward()
                hand.losses.append((loss / tokens).item())
                total, n, window = total + loss.item(), n + tokens.item(), window + tokens
                if i % 2:
                    for p in model.parameters():
                        p.grad /= window
                    opt.step()
                    opt.zero_grad()
                    sched.step()
                    window = 0
            row = dict(train_loss=total / n)
            model.eval()
            with torch.no_grad():
                found = [summed(model(x, y), y) for x, y in valid]
            total, n = (sum(v.item() for v in values) for values in zip(*found))
            hand.rows.append(row | dict(valid_loss=total / n))
        return hand

    def learner(self, path):
        class Reads(DataLoader):
            """Yields (source, target, target): the model needs the target too."""

            def __iter__(self):
                return ((x, y, y) for x, y in super().__iter__())

        train = Reads(pairs(48), 8, shuffle=True, collate_fn=collate)
        valid = Reads(pairs(19), 8, collate_fn=collate)
        return Learner(
            DataLoaders(train, valid, device="cpu"),
            Translator(),
            nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1),
            lr=1e-2,
            cbs=[GradientAccumulation(16), TorchScheduler(lambda opt: LambdaLR(opt, warm_up), every="update")],
            path=path,
        )
