"""The arithmetic of MixUp and CutMix, and what others see of the mixed batches. Fits with them are in test_hooks.py."""

import pytest
import torch
from torch import nn

import cbnb
from cbnb.callbacks.mixup import Mix, window
from helpers import ab, line_learner, seed


@pytest.mark.parametrize(
    "share, at, rows, columns",
    [
        (0.25, (0.5, 0.5), (2, 6), (2, 4)),  # half of 8 rows; half of 6 columns, from 1.5 to 4.5, to even numbers
        (0.25, (0.0, 1.0), (0, 2), (4, 6)),  # cut off at the upper right corner
        (0.25, (1.0, 0.0), (6, 8), (0, 2)),
        (1.0, (0.5, 0.5), (0, 8), (0, 6)),
        (0.0, (0.5, 0.5), (4, 4), (3, 3)),
    ],
)
def test_a_window_has_the_form_of_the_picture_and_says_its_share(share, at, rows, columns):
    (top, bottom), (left, right) = rows, columns
    assert window(8, 6, share, at) == (slice(top, bottom), slice(left, right), (bottom - top) * (right - left) / 48)


def test_weights_come_from_a_symmetric_distribution_with_the_spread_of_alpha():
    """Beta(a, a) has the mean 1/2 and the variance 1/(8a + 4)."""
    seed()
    for mix, alpha in ((cbnb.MixUp(), 0.4), (cbnb.MixUp(0.1), 0.1), (cbnb.CutMix(), 1.0)):
        drawn = torch.tensor([mix.draw() for _ in range(4000)], dtype=torch.float64)
        assert drawn.mean().item() == pytest.approx(0.5, abs=0.03) and drawn.var().item() == pytest.approx(1 / (8 * alpha + 4), rel=0.08)
        assert 0 <= drawn.min() and drawn.max() <= 1


@pytest.mark.parametrize("lam, at, piece", [(0.75, [0.5, 0.5], (2, 6)), (0.0, [0.5, 0.5], (0, 8)), (0.75, [0.0, 0.0], (0, 2))])
def test_cutmix_puts_in_a_piece_of_the_partner_and_keeps_the_share_it_has(lam, at, piece):
    cut, pictures = cbnb.CutMix(), torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    cut.drawn = [lam]
    assert cut.draw() == lam
    cut.at = at
    mixed = cut.mix(pictures, torch.tensor([1, 0]))
    inside = slice(*piece)
    assert (mixed[0, 0, inside, inside] == 1).all() and mixed[0].sum() == (piece[1] - piece[0]) ** 2 and torch.equal(mixed[1], 1 - mixed[0])
    assert cut.lam == 1 - (piece[1] - piece[0]) ** 2 / 64 and pictures[0].max() == 0


def test_inputs_that_cannot_be_mixed_are_refused():
    up, cut = cbnb.MixUp(), cbnb.CutMix()
    with pytest.raises(TypeError, match="MixUp cannot mix inputs of type torch.int64"):
        up.mix(torch.ones(2, dtype=torch.long), torch.tensor([1, 0]))
    cut.draw()
    with pytest.raises(TypeError, match=r"CutMix needs images.*\(2, 64\)"):
        cut.mix(torch.zeros(2, 64), torch.tensor([1, 0]))
    assert cut.mix(torch.zeros(2, 8, 8), torch.tensor([1, 0])).shape == (2, 8, 8)
    with pytest.raises(NotImplementedError):
        Mix(1.0).mix(torch.ones(2), torch.tensor([1, 0]))


class Fixed(cbnb.MixUp):
    """Mixes each item with its neighbour, by a given weight."""

    def __init__(self, lam):
        super().__init__()
        self.weight = lam

    def draw(self):
        return self.weight

    def mix(self, x, order):
        order.copy_(torch.tensor([1, 0]))
        return super().mix(x, order)


@pytest.mark.parametrize("lam, own", [(0.75, True), (0.5, True), (0.25, False)])
def test_metrics_see_the_targets_with_the_greater_share_and_the_step_result(lam, own):
    """Predictions are the mixed inputs; the loss of each target counts as much as its input."""
    seen = []

    class Noting(cbnb.step.Step):
        def loss(self, learn):
            super().loss(learn)
            learn.step_result = (learn.pred, learn.yb[0])

    def note(cb):
        seen.append(
            (
                cb.learn.xb[0].tolist(),
                cb.learn.yb[0].tolist(),
                cb.learn.loss.item(),
                cb.learn.loss_grad.item(),
                cb.learn.step_result[1].tolist(),
            )
        )

    x, y = torch.tensor([0.0, 8.0]), torch.tensor([0.0, 1.0])
    model = nn.Identity()
    model.w = nn.Parameter(torch.ones(1))
    learn = line_learner(
        dls=cbnb.DataLoaders([(x, y)], device="cpu"),
        model=model,
        loss_func=lambda pred, y: (pred * y).sum() + 0 * model.w.sum(),
        train_step=Noting(),
    )
    learn.fit(1, cbs=[Fixed(lam), cbnb.Callback(after_batch=note)])
    mixed = [8 * (1 - lam), 8 * lam]
    loss = lam * mixed[1] + (1 - lam) * mixed[0]
    assert seen == [(mixed, [0, 1] if own else [1, 0], loss, loss, [0, 1])]


def test_batches_without_targets_teach_nothing_and_are_no_error():
    learn = line_learner(dls=cbnb.DataLoaders([(torch.ones(4),)] * 2, device="cpu"))
    with pytest.warns(UserWarning, match="had no targets, so nothing was learned"):
        learn.fit(1, cbs=cbnb.MixUp)
    assert ab(learn) == (0, 0)


def test_before_the_first_batch_nothing_is_mixed():
    assert cbnb.MixUp().lam == 1
