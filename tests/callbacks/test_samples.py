"""The predictions for the same items after each epoch: those of a loop written by hand, and a fit that is the same with and without them."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from cbnb.all import EMA, Callback, CancelFitException, DataLoaders, Learner, Recorder, Samples, set_seed
from cbnb.callback_list import as_list
from cbnb.callbacks.samples import samples_html
from helpers import seed


class Noisy(Dataset):
    """Images of three classes, moved at random each time that they are fetched."""

    def __init__(self, n: int):
        g = torch.Generator().manual_seed(n)
        self.x, self.y = torch.randn(n, 1, 6, 6, generator=g), torch.randint(0, 3, (n,), generator=g)
        self.x += self.y[:, None, None, None]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        moved = self.x[i] + 0.1 * torch.randn(1, 6, 6) + 0.1 * random.random() + 0.1 * np.random.rand()
        return moved.float(), self.y[i]


def learner(cbs=(), valid=None, bs=16, **kwargs):
    seed()
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3))
    dls = DataLoaders(DataLoader(Noisy(64), 16, shuffle=True), DataLoader(Noisy(40), bs) if valid is None else valid, device="cpu")
    return Learner(dls, net, nn.CrossEntropyLoss(), lr=0.01, default_cbs=False, cbs=[Recorder, *as_list(cbs)], **kwargs)


def state(learn):
    return [copy.deepcopy(learn.model.state_dict()), torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]


def same(one, other):
    return str(one) == str(other) and all(torch.equal(one[0][k], other[0][k]) for k in one[0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("more", [(), (EMA(0.9),)], ids=str)
@pytest.mark.parametrize("bs", [16, 4])
def test_a_fit_is_the_same_with_and_without(bs, more):
    runs = []
    for cbs in ([], [Samples(6)]):
        learn = learner([*cbs, *copy.deepcopy(more)], bs=bs)
        set_seed(1)
        learn.fit(3)
        runs.append((state(learn), learn.recorder.last().raw_losses, learn.recorder.last()["valid_loss"], learn.model.training))
        assert len(learn.recorder.history) == 1
    assert same(runs[0][0], runs[1][0]) and runs[0][1:] == runs[1][1:]


def test_predictions_are_those_of_a_loop_written_by_hand():
    samples, by_hand = Samples(5), []

    class ByHand(Callback):
        order = 70

        @torch.no_grad()
        def after_epoch(self):
            x, y = samples.batch
            model = self.learn.model.eval()
            probs = model(x).softmax(1)
            model.train()
            losses = nn.functional.cross_entropy(probs.log(), y, reduction="none")
            by_hand.append((probs.argmax(1).tolist(), probs.max(1).values.tolist(), losses.tolist(), y.tolist()))

    learn = learner()
    learn.fit(4, cbs=[samples, ByHand])
    assert samples.epochs == [0, 1, 2, 3] and samples.batch is None
    for cards, (classes, sure, losses, y) in zip(samples.cards, by_hand, strict=True):
        assert [int(card.predicted) for card in cards] == classes and [int(card.actual) for card in cards] == y
        assert [card.sure for card in cards] == pytest.approx(sure, abs=1e-6)
        assert [card.loss for card in cards] == pytest.approx(losses, abs=1e-5)
        assert [card.item for card in cards] == [0, 8, 16, 24, 32]
        assert [card.wrong for card in cards] == [a != b for a, b in zip(classes, y)]


def test_the_inputs_stay_the_same_although_the_dataset_moves_them():
    learn = learner(samples := Samples(3))
    learn.fit(2)
    assert samples.cards[0][0].parts is samples.cards[1][0].parts
    learn.fit(1)
    assert len(samples.cards) == 1  # of the last fit


def test_a_stream_gives_its_first_items():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.full((1, 6, 6), float(i)), torch.tensor(i % 3)) for i in range(10)])

    learn = learner(samples := Samples(3), valid=DataLoader(Stream(), 4))
    learn.fit(2)
    assert [len(cards) for cards in samples.cards] == [3, 3]


def test_every_third_epoch_and_the_last():
    learn = learner(samples := Samples(2, every=3))
    learn.fit(8)
    assert samples.epochs == [2, 5, 7]


def test_a_long_fit_keeps_sixty_epochs_at_most():
    learn = learner(samples := Samples(1))
    most = []
    learn.fit(150, cbs=Callback(before_epoch=lambda cb: most.append(len(samples.epochs))))
    assert max(most) < 60 and samples.epochs[-1] == 149
    gaps = {b - a for a, b in zip(samples.epochs[:-1], samples.epochs[1:-1])}
    assert gaps == {4}
    assert all(len(cards) == 1 for cards in samples.cards)


def test_a_failed_prediction_warns_and_the_fit_goes_on():
    def act(pred):
        raise ZeroDivisionError("in act")

    learn = learner()
    with pytest.warns(UserWarning, match="Samples could not predict the items .ZeroDivisionError: in act") as said:
        learn.fit(3, cbs=(samples := Samples(2, act=act)))
    assert len(said) == 1 and learn.recorder.last().status == "done" and samples.cards == []


def test_what_can_be_known_before_the_fit_is_an_error_before_it():
    learn = learner()
    with pytest.raises(ValueError, match="dl='test' should be"):
        learn.fit(1, cbs=Samples(dl="test"))
    with pytest.raises(ValueError, match="every=0"):
        Samples(every=0)
    assert learn.train_iter == 0


def test_a_cancelled_fit_shows_what_there_is(capsys):
    def stop(cb):
        if cb.epoch == 1:
            raise CancelFitException

    learn = learner()
    learn.fit(3, cbs=[Samples(2), Callback(after_train=stop)])
    assert "\nafter epoch 0: 2 of 2 right\n" in capsys.readouterr().out


def test_the_page_holds_each_image_once():
    learn = learner(samples := Samples(4))
    learn.fit(3)
    live = samples_html(samples.epochs, samples.cards, live=True)
    still = samples_html(samples.epochs, samples.cards, live=False)
    assert "<script>" in live and "<script>" not in still
    assert live.count("data:image/png") == still.count("data:image/png") == 4  # the still form; the others are packed
    assert samples._repr_html_() and "Samples" in repr(Samples(3))


def test_dict_batches_and_rows():
    rows = [dict(age=torch.tensor(float(i)), size=torch.tensor(2.0 * i), price=torch.tensor(3.0 * i)) for i in range(12)]

    class Price(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))

        def forward(self, age, size):
            return self.w[0] * age + self.w[1] * size

    dls = DataLoaders(DataLoader(rows, 4), DataLoader(rows, 4), targets="price", device="cpu")
    learn = Learner(dls, Price(), nn.MSELoss(), torch.optim.SGD, lr=0.001, default_cbs=False, cbs=(samples := Samples(3)))
    learn.fit(2)
    assert [card.parts[0].value for card in samples.cards[-1]] == [
        {"age": "0", "size": "0"},
        {"age": "4", "size": "8"},
        {"age": "8", "size": "16"},
    ]
    w = learn.model.w.detach()
    assert [float(card.predicted) for card in samples.cards[-1]] == pytest.approx(
        [float(w[0] * a + w[1] * 2 * a) for a in (0, 4, 8)], rel=1e-3
    )


def test_a_callback_that_ends_the_fit_during_the_prediction_ends_it():
    class Stop(Callback):
        def after_pred(self):
            if self.purpose == "preds":
                raise CancelFitException

    learn = learner([Stop])
    learn.fit(3, cbs=(samples := Samples(2)))
    assert learn.recorder.last().status == "cancelled" and len(learn.recorder.last().epochs) == 1 and not samples.failed
