"""Speech without alignment: CTC over outputs and targets of different lengths, and label smoothing over the frames that count."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(3)
    x, frames = torch.randn(46, 20, 5, generator=g), torch.randint(12, 21, (46,), generator=g)
    y, letters = torch.randint(1, 6, (46, 6), generator=g), torch.randint(2, 6, (46,), generator=g)
    train, valid = (tuple(t[part] for t in (x, frames, y, letters)) for part in (slice(0, 30), slice(30, 46)))
    return loader(*train, shuffle=True), loader(*valid)


def net():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 7))


def smoothed_ctc(pred, frames, y, letters):
    log_probs = pred.log_softmax(2)
    counts = torch.arange(pred.shape[1])[None] < frames[:, None]
    smoothing = -(log_probs.mean(2) * counts).sum(1) / frames
    return 0.9 * F.ctc_loss(log_probs.transpose(0, 1), y, frames, letters) + 0.1 * smoothing.mean()


class TestCTC(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, *y in train:
                loss = smoothed_ctc(model(x), *y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(x))
            model.eval()
            with torch.no_grad():
                x, *y = (torch.cat(t) for t in zip(*valid))
                hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=smoothed_ctc(model(x), *y).item()))
            hand.losses += losses
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*loaders(), device="cpu", n_inp=1), net(), smoothed_ctc, lr=1e-2, path=path)
