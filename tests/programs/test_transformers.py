"""Models of Transformers with random weights, which return the loss themselves: one class for a text, and one for each token."""

import pytest
import torch
from torch.utils.data import DataLoader

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, mean

transformers = pytest.importorskip("transformers")

SIZES = dict(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=8, num_labels=3
)


def texts(n, per_token):
    g = torch.Generator().manual_seed(n)
    for _ in range(n):
        ids = torch.randint(1, 20, (int(torch.randint(2, 8, (), generator=g)),), generator=g)
        yield ids, ids % 3 if per_token else ids.sum() % 3


def collate(batch):
    ids, labels = zip(*batch)
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    if labels[0].ndim:
        labels = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    else:
        labels = torch.stack(labels)
    return dict(input_ids=padded, attention_mask=(padded > 0).long(), labels=labels)


class OfTransformers(Program):
    per_token: bool
    weights = losses = 0.0

    def loaders(self):
        train, valid = list(texts(44, self.per_token)), list(texts(21, self.per_token))
        return DataLoader(train, 8, shuffle=True, collate_fn=collate), DataLoader(valid, 8, collate_fn=collate)

    def model(self):
        config = transformers.BertConfig(**SIZES)
        return (transformers.BertForTokenClassification if self.per_token else transformers.BertForSequenceClassification)(config)

    def by_hand(self):
        (train, valid), model = self.loaders(), self.model()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for batch in train:
                loss = model(**batch).loss
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append((batch["labels"] >= 0).sum())
            model.eval()
            with torch.no_grad():
                found = [(model(**batch).loss.item(), (batch["labels"] >= 0).sum()) for batch in valid]
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=mean(*zip(*found))))
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*self.loaders(), device="cpu"), self.model(), lr=1e-2, path=path)


class TestSequenceClassification(OfTransformers):
    per_token = False


class TestTokenClassification(OfTransformers):
    """A mean over tokens: the padding of -100 does not count."""

    per_token = True
