"""Fine-tuning in three fits: a frozen body, all layers with a rate for each group, and larger images from other loaders. The targets are mixed by the loader."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from cbnb.all import DataLoaders, Learner, accuracy
from program import Hand, Program, mean, same_losses, same_rows, same_weights

FITS = (8, (1e-2, 1e-2), True), (8, (1e-4, 1e-3), False), (12, (1e-4, 1e-3), False)  # size of the images, rates, whether the body is frozen


def pasted(items):
    """Paste a corner of another image, and mix the targets accordingly."""
    x, y = default_collate(items)
    share, x, y = 9 / x[0, 0].numel(), x.clone(), F.one_hot(y, 3).float()
    x[:, :, :3, :3] = x.flip(0)[:, :, :3, :3].clone()
    return x, y * (1 - share) + y.flip(0) * share


def images(n, size, seed):
    x = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.mean((2, 3)).argmax(1))


def loaders(size):
    train = DataLoader(images(50, size, 1), 8, shuffle=True, collate_fn=pasted, drop_last=True)
    return train, DataLoader(images(21, size, 2), 8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))

    def forward(self, x):
        return self.head(self.body(x))


def groups(model):
    return [list(model.body.parameters()), list(model.head.parameters())]


class TestLargerImages(Program):
    n_epoch = 1

    def by_hand(self):
        model, loss_func = Net(), nn.CrossEntropyLoss(label_smoothing=0.1)
        opt = torch.optim.AdamW([dict(params=group) for group in groups(model)], lr=1e-3, fused=True)
        hand = Hand(model)
        for size, rates, frozen in FITS:
            train, valid = loaders(size)
            for module in model.body:
                module.requires_grad_(not frozen or isinstance(module, nn.BatchNorm2d))
            for group, rate in zip(opt.param_groups, rates):
                group["lr"] = rate
            model.train()
            losses, counts = [], []
            for x, y in train:
                loss = loss_func(model(x), y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), counts.append(len(y))
            model.eval()
            with torch.no_grad():
                pred, y = (torch.cat(parts) for parts in zip(*((model(x), y) for x, y in valid)))
            row = dict(valid_loss=loss_func(pred, y).item(), accuracy=(pred.argmax(1) == y).float().mean().item())
            hand.losses += losses
            hand.rows.append(dict(train_loss=mean(losses, counts)) | row)
        return hand

    def learner(self, path):
        dls = DataLoaders(*loaders(8), device="cpu")
        return Learner(dls, Net(), nn.CrossEntropyLoss(label_smoothing=0.1), metrics=accuracy, splitter=groups, path=path)

    def fit(self, learn):
        for size, rates, frozen in FITS:
            learn.dls = DataLoaders(*loaders(size), device="cpu")
            learn.freeze() if frozen else learn.unfreeze()
            learn.fit(1, list(rates))

    def new_learner(self, path, n=0):
        learn = super().new_learner(path, n)
        if n:
            learn.dls = DataLoaders(*loaders(12), device="cpu")
        return learn

    def test_a_resumed_fit_is_the_loop(self, tmp_path):
        """The second fit is stopped, and continued in a new learner from a file that `save` wrote after the first."""
        first = self.new_learner(tmp_path)
        first.freeze()
        first.fit(1, list(FITS[0][1]))
        first.save("first")
        state = torch.get_rng_state()
        learn = self.new_learner(tmp_path, 1)
        learn.load("first")
        torch.set_rng_state(state)
        for size, rates, _ in FITS[1:]:
            learn.dls = DataLoaders(*loaders(size), device="cpu")
            learn.unfreeze()
            learn.fit(1, list(rates))
        hand = self.hand()
        same_losses(learn, Hand([], hand.losses[6:]), self.losses)
        same_weights(learn.model, hand.modules, self.weights)
        same_rows(learn, Hand([], [], hand.rows[1:]), self.rows)
