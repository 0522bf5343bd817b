"""A tagger with padding 0, whose loss is a function that flattens, and whose metrics are means over words and over sentences."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from cbnb.all import DataLoaders, Learner, accuracy
from program import Hand, Program, mean

TAGS = 5  # tag 0 is padding


def sentences(n):
    g = torch.Generator().manual_seed(n)
    words = [torch.randint(1, 9, (int(torch.randint(1, 5, (), generator=g)),), generator=g) for _ in range(n)]
    return [(w, w % 3 + 1) for w in words]


def collate(batch):
    return tuple(pad_sequence(part, batch_first=True) for part in zip(*batch))


def loaders():
    return DataLoader(sentences(44), 8, shuffle=True, collate_fn=collate), DataLoader(sentences(30), 7, collate_fn=collate)


def net():
    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, TAGS))


def flat_loss(pred, tags):
    return F.cross_entropy(pred.flatten(0, 1), tags.flatten(), ignore_index=0)


def all_right(pred, tags):
    return ((pred.argmax(-1) == tags) | (tags == 0)).all(1).float().mean()


def words_right(pred, tags):
    return (pred.argmax(-1) == tags)[tags != 0].float().mean()


class TestFlatTagger(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for words, tags in train:
                loss = flat_loss(model(words), tags)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append((tags != 0).sum())
            model.eval()
            total = right = n = whole = 0
            with torch.no_grad():
                for words, tags in (pair for batch in valid for pair in zip(*batch)):
                    words, tags = words[tags != 0], tags[tags != 0]
                    pred = model(words[None])
                    total += F.cross_entropy(pred[0], tags, reduction="sum").item()
                    hits = pred[0].argmax(-1) == tags
                    right, n, whole = right + hits.sum().item(), n + len(tags), whole + bool(hits.all())
            row = dict(train_loss=mean(losses, sizes), valid_loss=total / n)
            hand.losses += losses
            hand.rows.append(row | dict(accuracy=right / n, words_right=right / n, all_right=whole / len(valid.dataset)))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu")
        return Learner(dls, net(), flat_loss, lr=1e-2, metrics=[accuracy, words_right, all_right], path=path)
