"""Counts with an exposure, and the losses of their items: a loss function of your own has no `reduction`, so each item is computed alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cbnb.all import DataLoaders, Learner
from program import Hand, Program, loader, mean


def loaders():
    g = torch.Generator().manual_seed(13)
    x, exposure = torch.randn(71, 4, generator=g), torch.rand(71, generator=g) + 0.5
    y = torch.poisson(exposure * (x.sum(1) / 2).exp(), generator=g)
    return loader(x[:45], y[:45], exposure[:45], shuffle=True), loader(x[45:], y[45:], exposure[45:])


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def count_loss(pred, y, exposure):
    return F.poisson_nll_loss(pred + exposure.log(), y, full=True)


class TestCounts(Program):
    def by_hand(self):
        (train, valid), model = loaders(), net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        hand = Hand(model)
        for _ in range(self.n_epoch):
            model.train()
            losses, sizes = [], []
            for x, *y in train:
                loss = count_loss(model(x), *y)
                loss.backward()
                opt.step()
                opt.zero_grad()
                losses.append(loss.item()), sizes.append(len(x))
            model.eval()
            with torch.no_grad():
                x, *y = (torch.cat(t) for t in zip(*valid))
                hand.rows.append(dict(train_loss=mean(losses, sizes), valid_loss=count_loss(model(x), *y).item()))
            hand.losses += losses
        return hand

    def learner(self, path):
        return Learner(DataLoaders(*loaders(), n_inp=1, device="cpu"), net(), count_loss, lr=1e-2, path=path)

    def test_the_losses_of_items_are_those_of_the_loop(self, tmp_path):
        learn = self.trained(tmp_path)
        *_, found = learn.get_preds(with_loss=True)
        model = self.hand().modules.eval()
        with torch.no_grad():
            x, *y = (torch.cat(t) for t in zip(*loaders()[1]))
            pred = model(x)
            by_hand = torch.stack([count_loss(pred[i : i + 1], *(t[i : i + 1] for t in y)) for i in range(len(x))])
        assert (found - by_hand).abs().max() < 1e-6
        assert learn.interpret().mean_loss() == pytest.approx(self.last_row()["valid_loss"], rel=1e-6)


# --- other losses without `reduction`: the losses of items, and their mean by weight, which is the loss of the set ---

WORDS = torch.randint(0, 4, (26, 5), generator=torch.Generator().manual_seed(2))
WORDS[torch.arange(5) >= torch.randint(0, 6, (26, 1), generator=torch.Generator().manual_seed(3))] = -100
WORDS[0] = -100  # a text that is padding as a whole
COSTS = torch.tensor([1.0, 2.0, 5.0, 20.0])
VALUES = torch.rand(26, 5, 4, generator=torch.Generator().manual_seed(4))


def costs_of_words(pred, y):
    return F.cross_entropy(pred.transpose(1, 2), y, weight=COSTS)


def token_mean(pred, y):
    kept = y >= 0
    return (F.cross_entropy(pred.transpose(1, 2), y.clamp_min(0), reduction="none") * kept).sum() / kept.sum()


def n_tokens(pred, y):
    return (y >= 0).sum()


def of_two(pred, y):
    return F.mse_loss(pred, y) + F.poisson_nll_loss(pred, y)


def with_parts(pred, y):
    fit, size = (pred - y).abs().mean(), pred.square().mean()
    return dict(loss=fit + 0.1 * size, fit=fit, size=size)


def added(pred, y):
    return F.l1_loss(pred, y, reduction="sum")


class Focal(nn.Module):
    def forward(self, pred, y):
        loss = F.cross_entropy(pred.transpose(1, 2), y.clamp_min(0), reduction="none")
        return ((1 - (-loss).exp()) ** 2 * loss).mean()


CASES = [(costs_of_words, WORDS, None), (token_mean, WORDS, n_tokens), (of_two, VALUES, None), (with_parts, VALUES, None)]
CASES += [(Focal(), WORDS, None), (lambda pred, y, **kwargs: of_two(pred, y), VALUES, None), (added, VALUES, None)]


@pytest.mark.parametrize("loss_func, y, batch_weight", CASES)
def test_the_losses_of_items_have_the_mean_of_the_set(loss_func, y, batch_weight):
    x, model = torch.randn(26, 5, 3, generator=torch.Generator().manual_seed(5)), nn.Linear(3, 4)
    data = loader(x, y)
    learn = Learner(DataLoaders(data, data, device="cpu"), model, loss_func, batch_weight=batch_weight)

    def by_hand(part):
        loss = loss_func(model(x[part]), y[part])
        return (loss["loss"] if isinstance(loss, dict) else loss).item()

    with torch.no_grad():
        items = torch.tensor([by_hand(slice(i, i + 1)) for i in range(len(x))]).nan_to_num(0.0)
        whole = by_hand(slice(len(x)))
    *_, found = learn.get_preds(with_loss=True)
    assert (found - items).abs().max() < 1e-5
    if loss_func is added:
        assert found.sum().item() == pytest.approx(whole, rel=1e-6)
    else:
        assert learn.interpret().mean_loss() == pytest.approx(whole, rel=1e-6)
        assert learn.validate()[0] == pytest.approx(whole, rel=1e-6)


def dice(pred, y):
    share = pred.sigmoid()
    return 1 - (2 * (share * y).sum() + 1) / (share.sum() + y.sum() + 1)


def contrast(pred, y):
    return F.cross_entropy(pred.flatten(1) @ pred.flatten(1).T, torch.arange(len(pred)))


@pytest.mark.parametrize("loss_func", [dice, contrast])
def test_a_loss_that_is_no_mean_over_items_says_so(loss_func):
    x, model = torch.randn(26, 5, 3), nn.Linear(3, 4)
    data = loader(x, VALUES.round())
    learn = Learner(DataLoaders(data, data, device="cpu"), model, loss_func)
    with pytest.warns(
        UserWarning,
        match=f"{loss_func.__name__} was called with one item at a time, but the mean of these losses is not the loss of the batch",
    ):
        *_, found = learn.get_preds(with_loss=True)
    with torch.no_grad():
        items = torch.stack([loss_func(model(x[i : i + 1]), VALUES[i : i + 1].round()) for i in range(len(x))])
    assert (found - items).abs().max() < 1e-5


def test_boxes_of_images_are_cut_into_images_and_a_batch_that_cannot_be_cut_is_refused():
    boxes = [dict(box=torch.rand(n, 4), label=torch.arange(n) % 2) for n in (1, 3, 2, 2, 4)]

    def boxes_loss(pred, y):
        return torch.stack([F.l1_loss(p.expand(len(t["box"]), 4), t["box"]) for p, t in zip(pred, y)]).mean()

    batches = [(torch.rand(2, 3), boxes[:2]), (torch.rand(3, 3), boxes[2:])]
    learn = Learner(DataLoaders(batches, batches, device="cpu"), nn.Linear(3, 4), boxes_loss)
    *_, found = learn.get_preds(with_loss=True)
    with torch.no_grad():
        pred = torch.cat([learn.model(x) for x, _ in batches])
        items = torch.stack([(p - t["box"]).abs().mean() for p, t in zip(pred, boxes)])
    assert (found - items).abs().max() < 1e-6

    def turned(pred, y):
        return F.l1_loss(pred, y.T)

    batches = [(torch.rand(2, 3), torch.rand(2, 4))]
    learn = Learner(DataLoaders(batches, batches, device="cpu"), nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (4, 1)), Turn()), turned)
    with pytest.raises(
        TypeError, match=r"turned cannot give a loss .* a tensor of shape \(2, 4\) does not have one row for each of 4 items"
    ):
        learn.get_preds(with_loss=True)


class Turn(nn.Module):
    def forward(self, x):
        return x.squeeze(2).T
