"""A language model with truncated backpropagation: the hidden state is a plain attribute of the model, and chunks have several lengths."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import Callback, DataLoaders, Learner, accuracy
from program import Hand, Program, mean

VOCAB, ROWS, BPTT = 11, 4, 6


def chunks(n):
    """Consecutive pieces of `ROWS` texts, the last of which is shorter."""
    text = torch.randint(VOCAB, (ROWS, n), generator=torch.Generator().manual_seed(n)).cumsum(1) % VOCAB
    return [(text[:, i : min(i + BPTT, n - 1)], text[:, i + 1 : i + BPTT + 1]) for i in range(0, n - 1, BPTT)]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(VOCAB, 8), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, VOCAB)
        self.h = None

    def forward(self, x):
        out, h = self.rnn(self.emb(x), self.h)
        self.h = tuple(t.detach() for t in h)
        return self.out(out)


def token_loss(pred, y):
    return F.cross_entropy(pred.flatten(0, 1), y.flatten())


class Forget(Callback):
    """Begins each text with no memory."""

    def before_train(self):
        self.model.h = None

    def before_validate(self):
        self.model.h = None


class TestLanguageModel(Program):
    fails_at = 10

    def by_hand(self):
        train, valid, model = chunks(40), chunks(28), LM()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            model.h, losses, sizes = None, [], []
            for x, y in train:
                loss = token_loss(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(y.numel())
            model.eval()
            model.h, total, correct, n = None, 0, 0, 0
            with torch.no_grad():
                for x, y in valid:
                    pred = model(x)
                    total += F.cross_entropy(pred.flatten(0, 1), y.flatten(), reduction="sum").item()
                    correct += (pred.argmax(-1) == y).sum().item()
                    n += y.numel()
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=total / n, accuracy=correct / n))
        return hand

    def learner(self, path):
        dls = DataLoaders(chunks(40), chunks(28), device="cpu")
        return Learner(dls, LM(), token_loss, lr=1e-2, metrics=accuracy, cbs=Forget, path=path)
