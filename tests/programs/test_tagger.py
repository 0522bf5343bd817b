"""A tagger with packed sequences, whose loss ignores the padding."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

from cbnb.all import DataLoaders, Learner, accuracy
from program import Hand, Program, mean

TAGS, PAD = 3, -100


def sentences(n):
    g = torch.Generator().manual_seed(n)
    words = [torch.randint(1, 12, (int(torch.randint(1, 9, (), generator=g)),), generator=g) for _ in range(n)]
    return [(w, (w + w.roll(1)) % TAGS) for w in words]


def collate(batch):
    words, tags = zip(*batch)
    lengths = torch.tensor([len(w) for w in words])
    return pad_sequence(words, batch_first=True), lengths, pad_sequence(tags, batch_first=True, padding_value=PAD)


def loaders():
    return (
        DataLoader(sentences(44), 8, shuffle=True, collate_fn=collate),
        DataLoader(sentences(21), 8, collate_fn=collate),
    )


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True, bidirectional=True), nn.Linear(16, TAGS)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.emb(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.out(out).transpose(1, 2)  # (batch, tag, position), as nn.CrossEntropyLoss wants it


class TestTagger(Program):
    def by_hand(self):
        (train, valid), model, loss_func = loaders(), Tagger(), nn.CrossEntropyLoss(ignore_index=PAD)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for words, lengths, tags in train:
                loss = loss_func(model(words, lengths), tags)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append((tags != PAD).sum())
            model.eval()
            total = correct = n = 0
            with torch.no_grad():
                for words, lengths, tags in valid:
                    pred, known = model(words, lengths), tags != PAD
                    total += loss_func(pred, tags).item() * known.sum().item()
                    correct += (pred.argmax(1) == tags)[known].sum().item()
                    n += known.sum().item()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / n, accuracy=correct / n))
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(), device="cpu", n_inp=2)
        loss_func = nn.CrossEntropyLoss(ignore_index=PAD)
        return Learner(dls, Tagger(), loss_func, lr=1e-2, metrics=accuracy, path=path)
