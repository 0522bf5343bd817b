"""Several tasks, whose weights in the loss are learnt. The parts of the loss are columns of the table."""

import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(61, 6, generator=g)
    kind, size = (x[:, 0] > 0).long(), x.sum(1, keepdim=True)
    return loader(x[:40], kind[:40], size[:40], shuffle=True), loader(x[40:], kind[40:], size[40:])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.kind, self.size = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.body(x)
        return self.kind(hidden), self.size(hidden)


class Weighted(nn.Module):
    """The loss of Kendall et al., with a learnt uncertainty for each task."""

    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.zeros(2))

    def forward(self, pred, kind, size):
        parts = torch.stack([F.cross_entropy(pred[0], kind), F.mse_loss(pred[1], size)])
        return dict(loss=((-self.s).exp() * parts + self.s).sum(), kind=parts[0], size=parts[1])


class TestMultiTask(Program):
    def by_hand(self):
        (train, valid), model, loss_func = loaders(), TwoHeads(), Weighted()
        opt = torch.optim.AdamW([*model.parameters(), *loss_func.parameters()], lr=1e-2, fused=True)
        hand = Hand([model, loss_func])
        for _ in range(self.n_epoch):
            model.train()
            parts, sizes = [], []
            for x, *y in train:
                out = loss_func(model(x), *y)
                out["loss"].backward()
                opt.step()
                opt.zero_grad()
                parts.append([v.item() for v in out.values()]), sizes.append(len(x))
            model.eval()
            with torch.no_grad():
                found = [(len(x), *(v.item() for v in loss_func(model(x), *y).values())) for x, *y in valid]
            hand.losses += [p[0] for p in parts]
            n, *columns = zip(*found)
            hand.rows.append(
                dict(zip(["train_loss", "kind", "size"], (mean(c, sizes) for c in zip(*parts))))
                | dict(zip(["valid_loss", "valid_kind", "valid_size"], (mean(c, n) for c in columns)))
            )
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*loaders(), device="cpu", n_inp=1), TwoHeads(), Weighted(), lr=1e-2, path=path)

    def modules(self, learn):
        return [learn.model, learn.loss_func]
