"""Weights of the classes are a setting of yours: a checkpoint of other weights is refused, and never replaces them."""

import functools

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.files.checkpoints import _check_alike
from cbnb.files.state import described

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = X.argmax(1)


def learner(path, loss_func):
    cbnb.set_seed(0)
    data = torch.utils.data.TensorDataset(X, Y if not isinstance(loss_func, nn.BCEWithLogitsLoss) else nn.functional.one_hot(Y).float())
    dls = cbnb.DataLoaders.from_datasets(data, data, bs=10, device="cpu")
    return cbnb.Learner(dls, nn.Linear(3, 3), loss_func, path=path, cbs=cbnb.Checkpoint()).remove_cb(cbnb.ProgressCallback)


def weighted(w):
    return nn.CrossEntropyLoss(weight=torch.tensor(w))


def positive(w):
    return nn.BCEWithLogitsLoss(pos_weight=torch.tensor(w))


@pytest.mark.parametrize("make, name", [(weighted, "weight"), (positive, "pos_weight")])
def test_a_fit_with_other_class_weights_is_another_fit(make, name, tmp_path):
    """They were replaced by those of the checkpoint, and nothing said so."""
    learner(tmp_path, make([1.0, 1.0, 1.0])).fit(2)
    with pytest.raises(ValueError, match=rf"{name}=\[1, 1, 1\].*{name}=\[1, 9, 1\]"):
        learner(tmp_path, make([1.0, 9.0, 1.0])).fit(2, resume=True)
    learn = learner(tmp_path, make([1.0, 9.0, 1.0]))
    learn.fit(3, resume=cbnb.Resume(allow=["loss", "n_epoch"]))
    assert getattr(learn.loss_func, name).tolist() == [1, 9, 1]
    with torch.no_grad():
        by_hand = learn.loss_func(learn.model(X), learn.dls.train.dataset.tensors[1])
    assert learn.validate()[0] == pytest.approx(by_hand.item(), rel=1e-5)
    same = learner(tmp_path / "same", make([1.0, 9.0, 1.0]))
    same.fit(2)
    again = learner(tmp_path / "same", make([1.0, 9.0, 1.0]))
    again.fit(2, resume=True)
    assert torch.equal(same.model.weight, again.model.weight)


def test_many_weights_are_compared_by_a_checksum(tmp_path):
    one, other = torch.ones(100), torch.ones(100)
    other[57] = 2
    texts = []
    for weight in (one, other):
        learn = learner(tmp_path, nn.CrossEntropyLoss(weight=weight))
        learn.create_opt()
        with learn.run_as("fit"):
            texts.append(described(learn)["loss_weights"])
    assert texts[0] != texts[1] and all("...] of 100, checksum" in text and len(text) < 200 for text in texts)


class Holds(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.ce = weighted(w)

    def forward(self, pred, y):
        return self.ce(pred, y)


class Sub(nn.CrossEntropyLoss):
    pass


@pytest.mark.parametrize(
    "make",
    [Holds, lambda w: Sub(weight=torch.tensor(w)), lambda w: functools.partial(weighted(w))],
    ids=["a module that holds it", "a subclass", "a partial"],
)
def test_weights_within_a_loss_of_ones_own(make, tmp_path):
    learner(tmp_path, make([1.0, 1.0, 1.0])).fit(2)
    with pytest.raises(ValueError, match=r"weight=\[1, 1, 1\].*weight=\[1, 9, 1\]"):
        learner(tmp_path, make([1.0, 9.0, 1.0])).fit(2, resume=True)
    learn = learner(tmp_path, make([1.0, 9.0, 1.0]))
    learn.fit(2, resume=cbnb.Resume(allow=["loss"]))
    by_hand = nn.functional.cross_entropy(learn.model(X), Y, weight=torch.tensor([1.0, 9.0, 1.0]))
    assert learn.validate()[0] == pytest.approx(by_hand.item(), rel=0.05)  # a mean over two batches, as no weight is known
    assert learn.loss_func(learn.model(X), Y).item() == pytest.approx(by_hand.item(), rel=1e-6)


def test_a_checkpoint_of_before_weights_were_compared_goes_on(tmp_path):
    learn = learner(tmp_path, weighted([1.0, 2.0, 3.0]))
    learn.fit(1)
    assert (
        _check_alike(tmp_path, {k: v for k, v in described_of(learn).items() if k != "loss_weights"}, described_of(learn), set()) == set()
    )


def described_of(learn):
    with learn.run_as("fit"):
        return described(learn)
