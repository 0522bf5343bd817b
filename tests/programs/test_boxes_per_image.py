"""Detection: images of different sizes, and for each a dict with as many boxes as it has objects."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import cbnb.all as cbnb


class Boxes(nn.Module):
    """A box for each image, from its mean color."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, images: Sequence[Tensor]) -> Tensor:
        return self.head(torch.stack([image.mean((1, 2)) for image in images]))


def loss_of_boxes(pred: Tensor, targets: Sequence[dict[str, Tensor]]) -> Tensor:
    """The mean over images: to the mean box of each."""
    return torch.stack([(p - t["boxes"].mean(0)).square().sum() for p, t in zip(pred, targets)]).mean()


@pytest.mark.parametrize("kind", [tuple, list])
def test_detection_with_a_dict_for_each_image_counts_images(kind):
    """Batches of 2 and 1 images with 1 to 4 boxes: weights, the mean of the training losses and `valid_loss` are those of the loop by hand."""
    random = torch.Generator().manual_seed(0)
    items = [
        (torch.rand(3, 6 + i, 7, generator=random), dict(boxes=torch.rand(n, 4, generator=random))) for i, n in enumerate((1, 3, 2, 2, 4))
    ]

    def collate(items):
        return tuple(map(kind, zip(*items)))

    dls = cbnb.DataLoaders(*(DataLoader(items, 2, collate_fn=collate) for _ in range(2)), device="cpu")
    model = Boxes()
    by_hand = copy.deepcopy(model)
    learn = cbnb.Learner(dls, model, loss_of_boxes, opt_func=torch.optim.SGD)
    with learn.no_logging():
        learn.fit(2, lr=0.1)

    opt, losses = torch.optim.SGD(by_hand.parameters(), 0.1), []
    for _ in range(2):
        counted = []
        for images, targets in dls.train:
            loss = loss_of_boxes(by_hand(images), targets)
            counted.append(loss.item() * len(targets))
            opt.zero_grad()
            loss.backward()
            opt.step()
        losses.append(sum(counted) / len(items))
    with torch.no_grad():
        valid = loss_of_boxes(by_hand([image for image, _ in items]), [target for _, target in items]).item()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), by_hand.parameters()))
    rows = learn.recorder.last().epochs
    assert [row["train_loss"] for row in rows] == pytest.approx(losses, rel=1e-6)
    assert rows[-1]["valid_loss"] == pytest.approx(valid, rel=1e-6) == learn.validate()[0]
