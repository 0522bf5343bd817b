"""`learn.diagnose()`: each finding on a training that has the fault, and not on its nearest healthy neighbour."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from cbnb.all import Callback, CancelFitException, DataLoaders, Learner, SaveModel, accuracy
from cbnb.insight.diagnose import _can_compare, _check_first, beside_regression
from cbnb.insight.findings import Finding, Findings
from cbnb.insight.fit_faults import Curves, late_fall, rise_after_best


def loaders(x, y, n, bs=20, shuffle=True):
    train, valid = TensorDataset(x[:n], y[:n]), TensorDataset(x[n:], y[n:])
    return DataLoaders(DataLoader(train, bs, shuffle=shuffle), DataLoader(valid, 100), device="cpu")


def noisy(n_valid=400, noise=0.6, seed=0):
    """Two classes that one of ten columns tells apart, with noise; 100 training items."""
    torch.manual_seed(seed)
    x = torch.randn(100 + n_valid, 10)
    y = (x[:, 0] + noise * torch.randn(len(x)) > 0).long()
    return x, y, loaders(x, y, 100)


def learner(dls, model=None, loss=None, **kwargs):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    return Learner(dls, model, loss or nn.CrossEntropyLoss(), **kwargs)


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.print", lambda *a, **k: None)


def levels(findings):
    return {f.code: f.level for f in findings}


def test_an_overfitted_model():
    learn = learner(noisy()[2], lr=0.02)
    learn.fit(25)
    found = learn.diagnose()
    assert levels(found)["A1"] == "warning" and found[0].code == "A1" and "A9" in found.codes
    best = learn.recorder.history[-1]["valid_loss"]
    assert f"since epoch {best.index(min(best))}" == found[0].where and not found.ok


def test_a_rate_outside_the_band_of_lr_find():
    learn = learner(noisy()[2])
    low, high = learn.lr_find(show_plot=False).band
    learn.fit(2, lr=1.5 * high)
    assert next(f for f in learn.diagnose() if f.code == "A10").where == f"lr={1.5 * high:.2g}"
    learn.fit(2, lr=1.5 * high)
    assert "A10" in learn.diagnose(run=0).codes and "A10" not in learn.diagnose().codes  # the second fit does not follow the sweep
    other = learner(noisy()[2])
    low, high = other.lr_find(show_plot=False).band
    other.fit_one_cycle(2, 0.9 * high)
    assert "A10" not in other.diagnose().codes


def test_an_overfitted_model_whose_best_weights_were_kept():
    learn = learner(noisy()[2], lr=0.02)
    learn.fit(25, cbs=SaveModel())
    found = levels(learn.diagnose())
    assert found["A1"] == "note" and "A9" not in found


def test_the_last_weights_of_save_model_are_not_the_best():
    learn = learner(noisy()[2], lr=0.02)
    learn.fit(25, cbs=SaveModel(at_end=True))
    assert levels(learn.diagnose())["A1"] == "warning"


def test_a_linear_model_does_not_overfit():
    learn = learner(noisy()[2], nn.Linear(10, 2), lr=0.02)
    learn.fit(25)
    assert "A1" not in learn.diagnose().codes


def test_a_fit_that_is_too_short():
    x = torch.randn(600, 10, generator=torch.Generator().manual_seed(0))
    dls = loaders(x, x @ torch.ones(10, 1), 400)
    learn = learner(dls, nn.Linear(10, 1), nn.MSELoss(), lr=0.001)
    learn.fit(6)
    (short,) = [f for f in learn.diagnose() if f.code == "A3"]
    assert short.fix.startswith("learn.check()   # first")  # the model has learned nearly nothing, which may have another reason
    learn.fit(3, lr=0.01)
    (short,) = [f for f in learn.diagnose() if f.code == "A3"]
    assert short.fix.startswith("learn.fit_one_cycle(6)")
    learn = learner(dls, nn.Linear(10, 1), nn.MSELoss(), lr=0.05)
    learn.fit(20)
    assert "A3" not in learn.diagnose().codes


def test_labels_that_do_not_belong_to_their_inputs():
    x, y, _ = noisy()
    learn = learner(loaders(x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))], 100), lr=0.001)
    learn.fit(3)
    assert levels(learn.diagnose())["A2"] == "warning"
    learn = learner(loaders(x, y, 100), lr=0.01)
    learn.fit(3)
    assert "A2" not in learn.diagnose().codes


def test_values_that_are_not_learned():
    x = torch.randn(400, 10, generator=torch.Generator().manual_seed(0))
    shuffled = x.sum(1, keepdim=True)[torch.randperm(400, generator=torch.Generator().manual_seed(1))]
    for y, said in ((shuffled, True), (x.sum(1, keepdim=True), False)):
        learn = learner(loaders(x, y, 200), nn.Linear(10, 1), nn.MSELoss(), lr=0.01)
        learn.fit(5)
        assert ("A2" in learn.diagnose().codes) is said


def test_logits_of_an_unknown_loss_are_not_judged_as_values():
    x, y, _ = noisy()
    dls = loaders(x, y.float(), 100)
    learn = learner(dls, nn.Linear(10, 1), lambda p, t: nn.functional.binary_cross_entropy_with_logits(p.squeeze(1), t), lr=0.05)
    learn.fit(20)
    assert learn.diagnose().ok


def test_a_model_that_says_one_class():
    torch.manual_seed(0)
    y = (torch.arange(600) % 8 == 0).long()
    x = torch.randn(600, 10) + 0.3 * y[:, None]
    learn = learner(loaders(x, y, 300), nn.Linear(10, 2), lr=0.001)
    learn.fit(3)
    assert "A5" in learn.diagnose().codes or "A2" in learn.diagnose().codes
    learn = learner(loaders(x + 3 * y[:, None], y, 300), lr=0.01)
    learn.fit(10)
    assert not {"A2", "A5"} & set(learn.diagnose().codes)


def test_a_rare_label_that_is_never_predicted():
    torch.manual_seed(0)
    x = torch.randn(600, 10)
    y = torch.stack([x[:, 0] > 0, (torch.arange(600) % 10 == 0)], 1).float()
    learn = learner(loaders(x, y, 300), nn.Linear(10, 2), nn.BCEWithLogitsLoss(), lr=0.05)
    learn.fit(10)
    found = {f.code: f for f in learn.diagnose()}
    assert found["A5"].where == "1"


def test_wrong_labels_are_found():
    torch.manual_seed(0)
    x = torch.randn(900, 10)
    y = (x[:, 0] > 0).long()
    wrong = list(range(300, 900, 60))
    y[wrong] = 1 - y[wrong]
    x[wrong, 0] *= 3 / x[wrong, 0].abs()  # far from the border
    learn = learner(loaders(x, y, 300), nn.Linear(10, 2), lr=0.1)
    learn.fit(20)
    found = {f.code: f for f in learn.diagnose()}["A7"]
    listed = eval(found.fix.removeprefix("learn.interpret(numbers=").removesuffix(") shows them"))
    assert set(listed) <= {i - 300 for i in wrong} and len(listed) >= 6


def test_parts_that_you_name():
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    y = x.sum(1, keepdim=True)
    place = ["north" if i % 4 == 0 else "south" for i in range(400)]
    y[::4] = 2 * torch.randn(100, 1)
    learn = learner(loaders(x, y, 200), nn.Linear(10, 1), nn.MSELoss(), lr=0.05)
    learn.fit(10)
    found = {f.code: f for f in learn.diagnose(slices={"place": place[200:]})}
    assert found["A11"].where == "place = north"
    with pytest.raises(ValueError, match=r"slices\['place'\] has 3 values, but the validation set has 200 items"):
        learn.diagnose(slices={"place": [1, 2, 3]})


def test_validation_that_is_easier_than_training():
    torch.manual_seed(0)
    x = torch.randn(600, 10)
    y = x.sum(1, keepdim=True) + torch.cat([torch.randn(400, 1), 0.2 * torch.randn(200, 1)])
    for model, said in ((nn.Linear(10, 1), True), (nn.Sequential(nn.Dropout(0.01), nn.Linear(10, 1)), False)):
        learn = learner(loaders(x, y, 400), model, nn.MSELoss(), lr=0.05)
        learn.fit(20)
        assert ("A4" in learn.diagnose().codes) is said


class Stream(IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(0)
        for _ in range(120):
            x = torch.randn(10, generator=g)
            yield x, (x[0] > 0).long()


@pytest.mark.parametrize("valid", ["none", "stream", "dict", "empty"])
def test_any_validation_set(valid):
    x, y, dls = noisy()

    class Dicts(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, i):
            return {"x": x[i], "y": y[i]}

    learn = learner(dls, lr=0.01)
    if valid == "none":
        learn.dls = DataLoaders(dls.train, device="cpu")
        learn.fit(2)
        assert "there is no validation set" in learn.diagnose().skipped[0]
    if valid == "stream":
        learn.dls = DataLoaders(dls.train, DataLoader(Stream(), 30), device="cpu")
        learn.fit(2)
        learn.diagnose()
    if valid == "dict":

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.Linear(10, 2)

            def forward(self, x):
                return self.l(x)

        learn = learner(DataLoaders(DataLoader(Dicts(), 20), DataLoader(Dicts(), 20), device="cpu", targets="y"), Net(), lr=0.01)
        learn.fit(2)
        assert not learn.diagnose().skipped
    if valid == "empty":
        learn.fit(1)
        learn.dls = DataLoaders(dls.train, DataLoader(TensorDataset(x[:0], y[:0]), 30), device="cpu")
        learn.diagnose()


def test_the_learner_stays_as_it_is():
    learn = learner(noisy()[2], lr=0.01, metrics=accuracy)
    learn.fit(3)
    weights = {k: v.clone() for k, v in learn.model.state_dict().items()}
    state, rows = torch.get_rng_state(), list(learn.recorder.history.rows("steps"))
    pred, mode = learn.pred, learn.model.training
    first = learn.diagnose().rows()
    assert torch.equal(state, torch.get_rng_state()) and rows == list(learn.recorder.history.rows("steps"))
    assert all(torch.equal(v, weights[k]) for k, v in learn.model.state_dict().items())
    assert learn.pred is pred and learn.model.training is mode and learn.diagnose().rows() == first


def test_what_cannot_be_diagnosed():
    learn = learner(noisy()[2], lr=0.01)
    with pytest.raises(RuntimeError, match="there is no fit to diagnose"):
        learn.diagnose()

    class InFit(Callback):
        def after_batch(self):
            self.learn.diagnose()

    with pytest.raises(RuntimeError, match="this learner is running"):
        learn.fit(1, cbs=InFit())
    with pytest.raises(ValueError, match="skip='too-long' is not the name or code of a fault"):
        learn.diagnose(skip="too-long")


def test_an_older_run():
    learn = learner(noisy()[2], lr=0.02)
    learn.fit(25)
    learn.fit(1, lr=1e-6)
    assert "A1" not in learn.diagnose().codes and "A1" in learn.diagnose(run=0).codes
    assert "A1" not in learn.diagnose(run=0, skip="overfitting").codes


def test_curves_with_values_that_are_not_finite():
    nan = float("nan")
    assert rise_after_best(Curves([0, 1], [1.0, nan], [1.0, nan])) == 0
    assert late_fall(Curves([0, 1, 2], [1.0, nan, nan], [1.0, nan, nan])) == 0


def test_a_model_of_double_precision():
    x, y, _ = noisy()
    learn = learner(loaders(x.double(), y, 100), nn.Linear(10, 2).double(), lr=0.1)
    learn.fit(2)
    assert not learn.diagnose().skipped


def test_fewer_outputs_than_classes():
    """As in ordinal regression: the outputs are no scores of classes. The class without an output may come late."""
    x = torch.randn(300, 10)
    y = torch.bucketize(x[:, 0].contiguous(), torch.tensor([-1.0, 0.0, 1.0]))

    def loss_func(p, y):
        return nn.functional.binary_cross_entropy_with_logits(p, (torch.arange(3) < y[:, None]).float())

    learn = learner(loaders(x, y, 200), nn.Linear(10, 3), loss_func, lr=0.1)
    learn.fit(2)
    assert not learn.diagnose().skipped and learn.interpret().found.task == "other"
    late = y[200:].sort().indices + 200
    learn.dls = DataLoaders(learn.dls.train, DataLoader(TensorDataset(x[late], y[late]), 20), device="cpu")
    with pytest.raises(ValueError, match="go up to 3, but the model predicts only the classes 0 to 2.*task='other'"):
        learn.interpret()
    assert learn.diagnose().skipped and len(learn.interpret(task="other")) == 100


def far_apart():
    """Two classes that two of ten columns tell apart, 600 training items."""
    torch.manual_seed(0)
    x = torch.randn(1000, 10)
    return loaders(x, (x[:, 0] * x[:, 1] > 0).long(), 600, bs=30)


def fitted(lr, n=6, **kwargs):
    learn = learner(far_apart(), lr=lr, **kwargs)
    learn.fit(n)
    return learn, {f.code: f.level for f in learn.diagnose()}


def test_a_rate_that_is_too_high_or_too_low_at_the_end():
    learn, found = fitted(1.0, 4)
    before = [p.clone() for p in learn.model.parameters()]
    assert found["O3"] == "warning"
    learn.diagnose()
    assert all(torch.equal(a, b) for a, b in zip(before, learn.model.parameters()))
    assert fitted(0.001)[1]["O3"] == "warning"
    assert "O3" not in fitted(0.01)[1]


def test_a_fit_that_is_too_short_is_a_warning_if_much_is_left():
    assert fitted(0.01, 3)[1]["A3"] == "warning"
    assert fitted(0.01, 6)[1]["A3"] == "note"


def numbers(y_of, n):
    torch.manual_seed(0)
    x = torch.randn(n + 400, 10)
    return loaders(x, y_of(x), n)


def regressor(dls, **kwargs):
    torch.manual_seed(0)
    return learner(dls, nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1)), nn.MSELoss(), **kwargs)


def test_items_known_by_heart_without_a_rise_of_the_validation_loss():
    """60 items are too few to learn a product, and enough for a sum: its validation loss is 100 times the training loss, and small."""
    for y_of, said in ((lambda x: x[:, :1] * x[:, 1:2] + x[:, 2:3], True), (lambda x: x[:, :3].sum(1, keepdim=True), False)):
        learn = regressor(numbers(y_of, 60), lr=0.01)
        learn.fit(30)
        run = learn.recorder.history[-1]
        train, valid = (run[name][-1] for name in ("train_loss", "valid_loss"))
        assert valid > 20 * train
        found = [f for f in learn.diagnose() if f.code == "A1"]
        assert [(f.level, f.where) for f in found] == [("warning", "epoch 29")] * said, found


class LoadsEpoch(Callback):
    """Loads the weights of an epoch after the fit."""

    def __init__(self, epoch):
        self.of = epoch

    def after_epoch(self):
        if self.epoch == self.of:
            self.weights = copy.deepcopy(self.learn.model.state_dict())

    def after_fit(self):
        self.learn.model.load_state_dict(self.weights)


def of_weights(learn):
    return [f.level for f in learn.diagnose() if f.code == "A9" and f.where == "the weights"]


def test_weights_of_an_earlier_epoch():
    learn = learner(far_apart(), lr=0.01)
    learn.fit(6, cbs=LoadsEpoch(0))
    assert of_weights(learn) == ["warning"]
    learn = learner(far_apart(), lr=0.01)
    learn.fit(6)
    assert of_weights(learn) == []


def test_weights_of_a_better_epoch_that_you_load():
    learn = learner(noisy()[2], lr=0.02)
    learn.fit(25, cbs=LoadsEpoch(2))
    losses = learn.recorder.history[-1]["valid_loss"]
    assert losses[2] == min(losses) < losses[-1] / 2
    assert of_weights(learn) == [] and "M18" not in learn.diagnose().codes  # the training loss is higher than at the end, too


class StopsWithBest(LoadsEpoch):
    """Ends the fit after 10 epochs, and loads the weights of an epoch."""

    def after_epoch(self):
        super().after_epoch()
        if self.epoch == 9:
            raise CancelFitException


def test_a_stopped_fit_with_the_weights_of_its_best_epoch():
    learn = learner(noisy()[2], lr=0.02)
    learn.fit(25, cbs=StopsWithBest(2))
    losses = learn.recorder.history[-1]["valid_loss"]
    assert learn.recorder.history[-1].status == "cancelled" and losses[2] == min(losses) < losses[-1]
    assert not {"A9", "M18"} & {*learn.diagnose().codes}


def test_a_finding_of_the_check_is_a_cause_only_if_it_hinders_the_training():
    short = Finding("A3", "warning", "the last epoch of 5", "it fell by 20%", "at most 5%", "why", "more epochs")
    causes = {code: Finding(code, "warning", "somewhere", "", "", "why", "mend it") for code in ("D4", "T1", "D12", "L11")}
    pointed = {code for code, f in causes.items() if "first" in _check_first(short, 0.8, Findings([f]), None).fix}
    assert pointed == {"D4", "T1"}


def clusters(drawn, spread):
    """Four classes of 250 items; a share of the labels is drawn at random."""
    torch.manual_seed(0)
    y = torch.arange(1000) % 4
    x = spread * torch.randn(1000, 10)
    x[torch.arange(1000), y] += 2
    return loaders(x, torch.where(torch.rand(1000) < drawn, torch.randint(0, 4, (1000,)), y), 600, bs=50)


def test_labels_that_look_drawn_at_random():
    """About as many errors in both: because half of the labels are random, and because the classes overlap."""
    wrong = []
    for drawn, spread, said in ((0.5, 0.3, True), (0.0, 1.6, False)):
        learn = learner(clusters(drawn, spread), nn.Linear(10, 4), lr=0.05, metrics=accuracy)
        learn.fit(6)
        wrong.append(1 - learn.recorder.history[-1]["accuracy"][-1])
        assert ("D18" in levels(learn.diagnose())) is said
    assert all(0.3 < share < 0.45 for share in wrong), wrong


def test_one_epoch_whose_loss_still_falls():
    """The model has learned most of it in the epoch, and the loss still falls by a large part; at a higher rate it is as low as the noise lets it be."""
    for lr, said in ((0.002, True), (0.01, False)):
        learn = regressor(numbers(lambda x: x[:, :3].sum(1, keepdim=True) + 0.3 * torch.randn(len(x), 1), 2000), lr=lr)
        learn.fit(1)
        found = [f for f in learn.diagnose() if f.code == "A3"]
        assert [(f.level, f.where) for f in found] == [("warning", "the last 33 of 100 batches")] * said, found


def bent(model, epochs=12, **kwargs):
    """A fit to a number that is the sum of an input and the square of another."""
    torch.manual_seed(0)
    x = torch.randn(600, 10)
    learn = learner(loaders(x, x[:, :1] + x[:, 1:2].square(), 400), model, nn.MSELoss(), **kwargs)
    learn.fit(epochs)
    return [f for f in learn.diagnose() if f.level != "note"]


def hidden():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 1))


def test_a_model_beside_a_regression():
    assert "A2" in [f.code for f in bent(nn.Linear(10, 1), lr=0.01)]
    assert "A2" not in [f.code for f in bent(hidden(), 20, lr=0.01)]


@pytest.mark.parametrize("epochs", [1, 20])
def test_more_updates(epochs):
    torch.manual_seed(0)
    x = torch.randn(600, 10)
    learn = learner(loaders(x, x[:, :1] + x[:, 1:2], 400), hidden(), nn.MSELoss(), lr=0.003)
    learn.fit(epochs)
    assert [f.where for f in learn.diagnose() if f.code == "A3" and "more updates" in f.measured] == ["1 epoch"][: epochs == 1]


@pytest.mark.parametrize("share, found", [(0.6, True), (0.0, False)])
def test_labels_drawn_at_random(share, found):
    torch.manual_seed(0)
    x = torch.randn(1200, 10)
    y = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    y = torch.where(torch.rand(1200) < share, torch.randint(0, 4, (1200,)), y)
    learn = learner(loaders(x, y, 700), nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4)), lr=0.01)
    learn.fit(8)
    assert ("D18" in [f.code for f in learn.diagnose() if f.level != "note"]) == found


def test_several_likely_classes_are_no_random_labels():
    """One of two classes at random: the true one is the second most likely where the model is wrong."""
    torch.manual_seed(0)
    x = torch.randn(2000, 8)
    learn = learner(
        loaders(x, x[:, :4].argmax(1) * 2 + torch.randint(0, 2, (2000,)), 1200),
        nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)),
        lr=3e-3,
    )
    learn.fit(8)
    assert "D18" not in [f.code for f in learn.diagnose() if f.level != "note"]


def test_the_epochs_of_earlier_fits_count():
    torch.manual_seed(0)
    x = torch.randn(600, 10)
    learn = learner(loaders(x, x[:, :1] + x[:, 1:2], 400), hidden(), nn.MSELoss(), lr=0.003)
    learn.fit(2)
    learn.fit(1)
    assert not [f for f in learn.diagnose() if "more updates lower" in f.measured]


def test_one_advice_to_train_longer():
    torch.manual_seed(0)
    x = torch.randn(600, 6)
    learn = learner(loaders(x, x[:, :1].clone(), 400, bs=32), nn.Linear(6, 1), nn.MSELoss(), lr=0.01)
    learn.fit(2)
    assert learn.diagnose().codes.count("A3") == 1


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        functools.partial(nn.functional.cross_entropy, weight=torch.ones(2)),
        nn.CrossEntropyLoss(weight=torch.ones(2)),
        "sampler",
    ],
)
def test_weights_of_items_are_not_compared(loss):
    x = torch.zeros(100, 4)
    learn = learner(loaders(x, x[:, 0], 50), nn.Linear(4, 2), nn.CrossEntropyLoss() if loss == "sampler" else loss)
    if loss == "sampler":
        train = DataLoader(learn.dls.train.dataset, 10, sampler=WeightedRandomSampler(torch.ones(50), 50))
        learn = learner(DataLoaders(train, learn.dls.valid), nn.Linear(4, 2), nn.CrossEntropyLoss())
    assert _can_compare(learn) == isinstance(loss, nn.MSELoss)


def test_large_items_are_not_compared_with_a_regression():
    """A few of them are read, and no more."""

    class Images(torch.utils.data.Dataset):
        read = 0

        def __len__(self):
            return 200

        def __getitem__(self, i):
            self.read += 1
            return torch.zeros(3, 40, 40), i % 2

    images = Images()
    learn = learner(DataLoaders(DataLoader(images, 50), device="cpu"), nn.Sequential(nn.Flatten(), nn.Linear(4800, 2)))
    assert not list(beside_regression(learn, None)) and images.read < 50


def test_inputs_of_half_precision():
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    net = nn.Sequential(Widened(), nn.Linear(6, 2))
    learn = learner(loaders(x.half(), (x[:, 0] > 0).long(), 150), net, lr=0.01)
    learn.fit(1)
    learn.diagnose()


class Widened(nn.Module):
    def forward(self, x):
        return x.float()


@pytest.mark.parametrize("slices, words", [(3, "slices=3 should be a dict"), ({"place": None}, r"slices\['place'\]=None should be a list")])
def test_wrong_slices_are_named(slices, words):
    fitted = learner(noisy()[2])
    fitted.fit(1)
    with pytest.raises(TypeError, match=words):
        fitted.diagnose(slices=slices)


def test_values_of_slices_may_be_tuples():
    fitted = learner(noisy()[2])
    fitted.fit(1)
    n = len(fitted.dls.valid.dataset)
    fitted.diagnose(slices={"w": [("a", i % 2) for i in range(n)]})
    with pytest.raises(TypeError, match="should be a list with one value"):
        fitted.diagnose(slices={"w": [["a"]] * n})
