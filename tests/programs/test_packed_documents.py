"""A small GPT on packed documents: tied weights, a mask for each document, label smoothing without the padding, gradients accumulated by
tokens, a warm-up by updates, an average of the weights, a fit of so many steps, and two validation sets."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from cbnb.all import EMA, DataLoaders, GradientAccumulation, GradientClip, Learner, TorchScheduler, accuracy
from program import Hand, Program, loader

VOCAB, LENGTH, PAD, END = 13, 12, -100, 0
STEPS, EVERY, ITEMS = 17, 5, 16


def packed(n):
    """Texts that contain the ends of documents. What follows an end is not predicted, and some texts are short"""
    g = torch.Generator().manual_seed(n)
    text = torch.randint(3, (n, LENGTH + 1), generator=g).cumsum(1) % (VOCAB - 1) + 1
    text[torch.rand(n, LENGTH + 1, generator=g) < 0.15] = END
    x, y = text[:, :-1], text[:, 1:].clone()
    y[x == END] = PAD
    y[: n // 5, 4:] = PAD
    return TensorDataset(x, y)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.mlp, self.drop = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)), nn.Dropout(0.1)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
        return x + self.drop(self.mlp(x))


class GPT(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb, self.pos, self.block, self.norm = nn.Embedding(VOCAB, d), nn.Embedding(LENGTH, d), Block(d), nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, x):
        document = (x == END).cumsum(1) - (x == END).long()
        mask = (document[:, None] == document[:, :, None]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return self.head(self.norm(self.block(self.emb(x) + self.pos(torch.arange(LENGTH)), mask)))


def token_loss(pred, y, reduction="mean"):
    return F.cross_entropy(pred.flatten(0, 1), y.flatten(), label_smoothing=0.1, ignore_index=PAD, reduction=reduction)


def with_and_without_decay(model):
    return [[p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim < 2]]


def warm_up(update):
    return (update + 1) / 4 if update < 4 else 0.5 * (1 + math.cos(math.pi * (update - 4) / 20))


def loaders():
    return loader(*packed(50).tensors, shuffle=True), loader(*packed(20).tensors), loader(*packed(12).tensors)


class TestPackedDocuments(Program):
    weights, losses, rows, fails_at = 1e-4, 1e-5, 1e-5, 8

    def by_hand(self):
        (train, *sets), model = loaders(), GPT()
        decays, others = with_and_without_decay(model)
        opt = torch.optim.AdamW([dict(params=decays, weight_decay=0.1), dict(params=others, weight_decay=0.0)], lr=1e-2, fused=True)
        schedule, mean = LambdaLR(opt, warm_up), copy.deepcopy(model)
        hand, step, n_updates = Hand(mean), 0, 0
        while step < STEPS:
            items = tokens = row_loss = row_tokens = 0
            for i, (x, y) in enumerate(train):
                model.train()
                loss, n = token_loss(model(x), y, "sum"), (y != PAD).sum().item()
                loss.backward()
                items, tokens, step = items + len(x), tokens + n, step + 1
                row_loss, row_tokens = row_loss + loss.item(), row_tokens + n
                hand.losses.append(loss.item() / n)
                last = step == STEPS
                if items >= ITEMS or i + 1 == len(train) or last:
                    for p in model.parameters():
                        p.grad /= tokens
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    opt.step()
                    opt.zero_grad()
                    schedule.step()
                    items, tokens, n_updates = 0, 0, n_updates + 1
                    decay = min(0.9, (1 + n_updates) / (10 + n_updates))
                    for a, p in zip(mean.parameters(), model.parameters()):
                        a.data.lerp_(p.data, 1 - decay)
                if step % EVERY == 0 or last or i + 1 == len(train):
                    row = dict(train_loss=row_loss / row_tokens)
                    if step % EVERY == 0:
                        for name, dl in zip(("valid_", "far_"), sets):
                            found = validated(mean, dl)
                            row |= {f"{name}loss": found[0], "accuracy" if name == "valid_" else f"{name}accuracy": found[1]}
                    hand.rows.append(row)
                    row_loss = row_tokens = 0
                if last:
                    break
        return hand

    def learner(self, path):
        train, valid, far = loaders()
        cbs = [GradientAccumulation(ITEMS), GradientClip(1.0), EMA(0.9), TorchScheduler(lambda opt: LambdaLR(opt, warm_up), every="update")]
        dls = DataLoaders(train, dict(valid=valid, far=far), device="cpu")
        return Learner(
            dls, GPT(), token_loss, lr=1e-2, wd=[0.1, 0.0], splitter=with_and_without_decay, metrics=accuracy, cbs=cbs, path=path
        )

    def fit(self, learn, **kwargs):
        learn.fit(f"{STEPS} steps", valid_every=f"{EVERY} steps", **kwargs)

    def last_row(self):
        loss, share = validated(self.hand().modules, loaders()[1])
        return dict(valid_loss=loss, accuracy=share)


def validated(model, dl):
    model.eval()
    with torch.no_grad():
        found = [(token_loss(model(x), y, "sum").item(), (model(x).argmax(-1) == y).sum().item(), (y != PAD).sum().item()) for x, y in dl]
    loss, correct, n = map(sum, zip(*found))
    return loss / n, correct / n
