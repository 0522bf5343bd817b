"""Faults of reading: values that change when they are read, numbers without decimals, columns and pairs that were moved apart. Each beside its nearest healthy neighbor."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import cbnb
from cbnb.callbacks.interpret import Predictions
from cbnb.insight.prediction_faults import majority, mixed_pair
from test_check import Net, learner, mlp

MANY = torch.randn(600, 6, generator=torch.Generator().manual_seed(5))
SUMS = MANY[:, :2].sum(1, keepdim=True)
WORDS = torch.randint(1, 20, (300, 8), generator=torch.Generator().manual_seed(2))
PADDED = WORDS.where(torch.arange(8) < torch.randint(3, 9, (300, 1), generator=torch.Generator().manual_seed(3)), 0)


def said(learn, code):
    return [f.where for f in learn.check() if f.code == code and f.level != "note"]


class Changed(Dataset):
    def __init__(self, change):
        self.x, self.y, self.change = MANY.clone(), SUMS, change

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.change(self.x[i]), self.y[i]


def read(change, numpy=False):
    data = Changed(change)
    if numpy:
        data.x = data.x.numpy()
    dl = DataLoader(data, 32, shuffle=True)
    return cbnb.Learner(cbnb.DataLoaders(dl, device="cpu"), mlp(1), nn.MSELoss(), lr=0.01)


def add_in_place(x):
    x += 0.5
    return x


@pytest.mark.parametrize("numpy", [False, True])
def test_reading_an_item_changes_it(numpy):
    assert said(read(add_in_place, numpy), "D17") == ["items of the training set"]
    assert not said(read(lambda x: x + 0.5, numpy), "D17")


def test_random_transform_that_copies_is_healthy():
    assert not said(read(lambda x: x + 0.1 * torch.randn(6)), "D17")


def test_buffer_that_all_items_share_is_healthy():
    buffer = torch.zeros(6)
    assert not said(read(lambda x: buffer.copy_(x)), "D17")


def test_decimals_cut_off():
    assert said(learner(MANY.int().float(), SUMS, mlp(1), nn.MSELoss()), "D5") == ["inputs"]
    votes = torch.randint(-1, 2, (600, 6), generator=torch.Generator().manual_seed(1)).float()
    for healthy in (MANY, votes, MANY.abs().int().float(), (MANY > 0).float()):
        assert not said(learner(healthy, healthy[:, :1] + healthy[:, 1:2], mlp(1), nn.MSELoss()), "D5")


def test_column_and_targets_sorted_apart():
    """A note: the rows of a time series are in order, too."""

    def noted(*args):
        return [f.where for f in learner(*args).check() if f.code == "D18" and f.level == "note"]

    x, y = MANY[MANY[:, 0].argsort()], SUMS.sort(0).values
    assert noted(x, y, mlp(1), nn.MSELoss()) == ["column 0 and the targets"]
    assert noted(MANY.sort(0).values, SUMS, mlp(1), nn.MSELoss()) == ["the inputs"]
    order = SUMS[:, 0].argsort()
    assert not noted(MANY[order], SUMS[order], mlp(1), nn.MSELoss())


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(2))

    def forward(self, x):
        return F.normalize(self.left(x[:, 0]), dim=-1) @ F.normalize(self.right(x[:, 1]), dim=-1).T


def pairs(torn=False, target=torch.arange):
    hidden = torch.randn(600, 4, generator=torch.Generator().manual_seed(1))
    views = torch.stack([hidden, hidden.flip(1)], 1)
    if torn:
        views[:, 1] = views[torch.randperm(600, generator=torch.Generator().manual_seed(2)), 1]
    return learner(views, torch.arange(600.0), Towers(), lambda p, y: F.cross_entropy(p / 0.2, target(len(y))))


def test_pairs_torn_apart():
    assert said(pairs(torn=True), "D18") == ["the inputs"]
    assert not said(pairs(), "D18")


def test_one_target_for_all_pairs():
    assert said(pairs(target=lambda n: torch.zeros(n).long()), "D8") == ["the loss"]
    assert not said(pairs(), "D8")


class Attention(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.masked, self.embed, self.out = masked, nn.Embedding(20, 16), nn.Linear(16, 3)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.out(self.block(self.embed(x), src_key_padding_mask=self.masked(x)).mean(1))


def test_mask_of_the_wrong_places():
    labels = PADDED.sum(1) % 3
    assert said(learner(PADDED, labels, Attention(lambda x: x != 0)), "D21") == ["the mask of the attention"]
    for healthy in (lambda x: x == 0, lambda x: torch.zeros_like(x).bool(), lambda x: torch.zeros(x.shape).masked_fill(x == 0, -torch.inf)):
        assert not said(learner(PADDED, labels, Attention(healthy)), "D21")


def tagged(loss, y=PADDED % 3):
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 3))
    return learner(PADDED, y, Net(model, lambda p: p.transpose(1, 2)), loss)


def test_label_of_places_without_influence():
    def without(ignored):
        return lambda p, y: F.cross_entropy(p, torch.where(ignored(y), -100, y))

    tags = (PADDED % 3).where(PADDED > 0, -100)
    assert said(tagged(without(lambda y: y == 0), tags), "L5") == ["label 0"]
    assert not said(tagged(without(lambda y: y < 0), tags), "L5")
    assert not said(tagged(without(lambda y: y == 0), (1 + WORDS % 2).where(PADDED > 0, 0)), "L5")  # a pad


def test_activation_of_log_rates():
    y = MANY[:, :1].abs().round()
    assert said(learner(MANY, y, mlp(1, nn.ReLU, nn.ReLU()), nn.PoissonNLLLoss()), "L5") == ["the prediction"]
    assert not said(learner(MANY, y, mlp(1), nn.PoissonNLLLoss()), "L5")


class Plain(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w, self.out = w, nn.Linear(8, 1)

    def forward(self, x):
        return self.out((x @ self.w).relu())


def test_tensor_that_is_no_parameter():
    w = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)) / 3
    assert said(learner(MANY, SUMS, Plain(w.clone().requires_grad_()), nn.MSELoss()), "O1") == ["w"]
    assert not said(learner(MANY, SUMS, Plain(nn.Parameter(w.clone())), nn.MSELoss()), "O1")
    assert not said(learner(MANY, SUMS, Plain(w), nn.MSELoss()), "O1")  # random features
    held = Plain(w.clone().requires_grad_())
    learn = learner(MANY, SUMS, held, nn.MSELoss())
    learn.opt = torch.optim.Adam([*held.parameters(), held.w], 0.01)
    assert not said(learn, "O1")


def test_outputs_for_classes_that_are_not_there():
    kinds = (MANY[:, 0] > 0).long() + (MANY[:, 1] > 0).long()
    assert said(learner(MANY, kinds, mlp(1000)), "M13") == ["the last layer"]
    assert not said(learner(MANY, kinds, mlp(20)), "M13")
    assert not said(learner(MANY, torch.arange(600) * 1000 // 600, mlp(1000)), "M13")


def made(p, y, n):
    return Predictions("classes", F.one_hot(p, n).float(), y, None, "", None, [str(i) for i in range(n)])


def predicted(counts):
    """Codes for predictions with these counts: a row for each class."""
    y = torch.cat([torch.full((sum(row),), i) for i, row in enumerate(counts)])
    p = torch.cat([torch.full((n,), j) for row in counts for j, n in enumerate(row)])
    return [f.code for f in majority(made(p, y, len(counts)))]


def test_class_that_is_never_right():
    assert predicted([[60, 0, 5], [0, 0, 30], [5, 0, 60]]) == ["A5"]
    assert predicted([[60, 0, 5], [0, 6, 24], [5, 0, 60]]) == []
    assert predicted([[30, 5, 30], [10, 0, 20], [35, 0, 30]]) == []  # the others are hardly right either


def test_mixed_pair_among_a_thousand_classes():
    """A look at each of half a million pairs took minutes."""
    y = torch.arange(1000).repeat_interleave(2)
    assert not list(mixed_pair(made(y, y, 1000)))
    mixed = torch.cat([torch.tensor([0, 1]).repeat(100), y[4:]])
    guess = torch.cat([torch.tensor([0, 1, 1, 0]).repeat(50), y[4:]])
    assert [f.where for f in mixed_pair(made(guess, mixed, 1000))] == ["classes 0 and 1"]
