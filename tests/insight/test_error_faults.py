"""An error of the first batch is named as the fault that it comes from, with its message. Beside it is the nearest program that runs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import cbnb
from test_check import BINARY, CLASSES, NUMBERS, Net, X, learner, mlp
from test_recall import loud, scheduled

G = torch.Generator().manual_seed(8)
IMAGES = torch.rand(300, 1, 8, 8, generator=G)
WORDS = torch.randint(8, (300, 6), generator=G)


def binary(y=BINARY, model=None, loss=None):
    return learner(y=y, model=model or mlp(1), loss=loss or nn.BCEWithLogitsLoss())


def pictures(x=IMAGES, inputs=1, flat=1):
    torch.manual_seed(0)
    conv = nn.Conv2d(inputs, 2, 3)
    return learner(x, model=nn.Sequential(conv, nn.ReLU(), nn.Flatten(flat), nn.Linear(72, 3)))


def pooled(size):
    layers = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2, 3)
    return learner(IMAGES[..., :size, :size], model=nn.Sequential(*layers))


def text(rows, x=WORDS):
    return learner(x, model=nn.Sequential(nn.Embedding(rows, 4), nn.Flatten(), nn.Linear(24, 3)))


def reshaped(n):
    return learner(model=nn.Sequential(nn.Linear(6, 32), Net(nn.ReLU(), lambda h: h.reshape(-1, n)), nn.Linear(n, 3)))


class In(nn.Module):
    """Changes its hidden values in place or in a copy, after they were used."""

    def __init__(self, in_place):
        super().__init__()
        self.first, self.last, self.in_place = nn.Linear(6, 8), nn.Linear(8, 3), in_place

    def forward(self, x):
        h = self.first(x).sigmoid()
        return self.last(h.add_(1) if self.in_place else h + 1)


class Items(Dataset):
    def __init__(self, missing, width=6):
        self.missing, self.width = missing, width

    def __len__(self):
        return 100

    def __getitem__(self, i):
        if i == self.missing:
            raise KeyError("picture")
        return X[i, : 6 if i % 7 else self.width], CLASSES[i]


def reads(missing=-1, width=6):
    return cbnb.Learner(cbnb.DataLoaders(DataLoader(Items(missing, width), 20, shuffle=True), device="cpu"), mlp(), nn.CrossEntropyLoss())


CASES = {
    "D5 double": (lambda: learner(X.double()), learner),
    "D5 of all": (lambda: learner(X.double()), lambda: learner(X.double(), model=mlp().double())),
    "D5 words": (lambda: text(8, WORDS.float()), lambda: text(8)),
    "D5 targets": (lambda: binary(BINARY.double(), mlp(1), nn.HuberLoss()), lambda: binary(NUMBERS, mlp(1), nn.HuberLoss())),
    "D6 axis": (lambda: pictures(IMAGES[:, 0]), pictures),
    "D6 number": (lambda: pictures(inputs=3), lambda: pictures(IMAGES.expand(-1, 3, -1, -1), inputs=3)),
    "D6 flat": (lambda: pictures(IMAGES.flatten(1)), pictures),
    "D11 one-hot": (lambda: learner(y=F.one_hot(CLASSES)), lambda: learner(y=F.one_hot(CLASSES).float())),
    "D11 column": (lambda: learner(y=CLASSES[:, None]), learner),
    "D11 float": (lambda: learner(y=CLASSES.float()), learner),
    "D11 whole": (lambda: binary(BINARY.long()), binary),
    "L3 sigmoid": (lambda: binary(loss=nn.BCELoss()), lambda: binary(loss=nn.BCELoss(), model=Net(mlp(1), torch.sigmoid))),
    "L5 numbers": (lambda: learner(loss=nn.MSELoss()), learner),
    "L5 scale": (lambda: learner(y=NUMBERS[:, 0]), lambda: binary(NUMBERS, mlp(1), nn.MSELoss())),
    "L6 shapes": (lambda: binary(BINARY[:, 0]), binary),
    "M2 items": (lambda: reshaped(16), lambda: reshaped(32)),
    "M13 features": (lambda: learner(model=mlp(3)[1:]), lambda: learner(model=mlp(3))),
    "M13 flatten": (lambda: pictures(flat=2), pictures),
    "M13 reshape": (lambda: reshaped(40), lambda: reshaped(32)),
    "M13 short": (lambda: learner(model=mlp(2)), lambda: learner(model=mlp(3))),
    "M13 outputs": (lambda: binary(NUMBERS.repeat(1, 3), mlp(2), nn.MSELoss()), lambda: binary(NUMBERS.repeat(1, 3), mlp(3), nn.MSELoss())),
    "M20 small": (lambda: pooled(6), lambda: pooled(8)),
    "X1 rows": (lambda: text(6), lambda: text(8)),
    "X1 in place": (lambda: learner(model=In(True)), lambda: learner(model=In(False))),
    "X1 reading": (lambda: reads(37), reads),
    "X1 sizes": (lambda: reads(width=5), reads),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_named_as_its_fault(case):
    found = CASES[case][0]().check(fast=True)
    assert loud(found)[0] == case.split()[0] and found[0].level == "error" and not found.skipped, found


@pytest.mark.parametrize("case", CASES)
def test_its_neighbor_runs_and_is_quiet(case):
    learn = CASES[case][1]()
    found = learn.check(fast=True)
    assert not found.errors and case.split()[0] not in loud(found) and not found.skipped, found


def test_a_finding_has_the_message_of_the_error():
    found = learner(X.double()).check(fast=True)
    assert "float64" in found[0].measured and "must have the same dtype" in found[0].why and found[0].fix == "x = x.float()"
    (fails,) = reads(37).check()
    assert fails.where == "item 37 of the dataset" and "KeyError" in fails.measured
    assert "nn.Flatten()" in CASES["M13 flatten"][0]().check(fast=True)[0].fix


def plateau(mode):
    learn = learner()
    return learn.add_cb(cbnb.TorchScheduler(lambda opt: ReduceLROnPlateau(opt, mode=mode), monitor="valid_loss"))


def batches_of(n):
    learn = learner()
    learn.dls = cbnb.DataLoaders(DataLoader(learn.dls.train.dataset, n, shuffle=True), device="cpu")
    return learn


PLANS = {
    "O6 ends": (
        lambda: scheduled(lambda opt: OneCycleLR(opt, 0.01, total_steps=5)),
        lambda: scheduled(lambda opt: OneCycleLR(opt, 0.01, total_steps=30)),
    ),
    "O6 mode": (lambda: plateau("max"), lambda: plateau("min")),
    "O8 one": (lambda: batches_of(1), lambda: batches_of(4)),
    "D5 words": (
        lambda: learner(
            WORDS, model=nn.Sequential(Net(nn.Identity(), lambda x: x[..., None].float()), nn.Linear(1, 4), nn.Flatten(), nn.Linear(24, 3))
        ),
        lambda: text(8),
    ),
    "D20 one batch": (lambda: text_of(WORDS[:30].repeat(10, 1)), lambda: text_of(WORDS)),
}


def text_of(x):
    return learner(x, x[:, 0] % 3, nn.Sequential(nn.Embedding(8, 8), nn.Flatten(), nn.Linear(48, 3)))


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_that_cannot_work_is_named(case):
    wrong, right = (make().check(fast=True) for make in PLANS[case])
    assert case.split()[0] in loud(wrong) and not wrong.skipped, wrong
    assert case.split()[0] not in loud(right) and not right.skipped, right


class Recurrent(nn.Module):
    """`start(x, state)` makes the first state of a batch from the last one of the batch before."""

    def __init__(self, start):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head, self.start, self.state = nn.RNN(6, 4, batch_first=True), nn.Linear(4, 3), start, None

    def forward(self, x):
        out, self.state = self.rnn(x[:, None], self.start(x, self.state))
        return self.head(out[:, -1])


def kept(x, state):
    return None if state is None or state.shape[1] != len(x) else state


STARTS = {
    "a second batch (the first one again)": (kept, lambda x, state: None if kept(x, state) is None else state.detach()),
    "the last batch, of 12 items": (lambda x, state: torch.zeros(1, 32, 4), lambda x, state: torch.zeros(1, len(x), 4)),
}


@pytest.mark.parametrize("where", STARTS)
@pytest.mark.parametrize("fast", [False, True])
def test_an_error_after_the_first_batch_is_found_before_the_fit(where, fast):
    wrong, right = (learner(model=Recurrent(start)).check(fast=fast) for start in STARTS[where])
    assert [(f.code, f.where) for f in wrong.errors] == [("X1", where)]
    assert not right.errors and not right.skipped


def test_a_callback_may_prepare_each_batch():
    class Detach(cbnb.Callback):
        def before_batch(self):
            if self.model.state is not None:
                self.model.state = self.model.state.detach()

    prepared = learner(model=Recurrent(kept))
    prepared.add_cb(Detach())
    assert not prepared.check(fast=True).errors
    prepared.fit(1)


def test_a_function_may_prepare_each_batch():
    def detach(cb):
        if cb.model.state is not None:
            cb.model.state = cb.model.state.detach()

    prepared = learner(model=Recurrent(kept))
    prepared.add_cb(cbnb.Callback(before_batch=detach))
    assert not prepared.check(fast=True).errors
    prepared.fit(1)


def test_the_last_batch_is_that_of_the_sampler():
    start = STARTS["the last batch, of 12 items"][0]
    whole = learner(model=Recurrent(start), shuffle=False, sampler=SubsetRandomSampler(range(288)))  # nine batches of 32
    assert not whole.check(fast=True).errors
    whole.fit(1)


@pytest.mark.parametrize("cb", [cbnb.GradientAccumulation(64), cbnb.ShortEpoch(0.5)])
def test_a_scheduler_may_step_less_often_than_batches_come(cb):
    steps = len(learner().dls.train) // 2
    planned = learner()
    planned.add_cbs([cbnb.TorchScheduler(lambda opt: OneCycleLR(opt, 0.01, total_steps=steps)), cb])
    assert "O6" not in loud(planned.check(fast=True))
    planned.fit(1)


def test_what_a_norm_standardizes_is_no_identifier():
    counts = torch.randint(40, (300, 6), generator=G)
    assert "D5" not in loud(learner(counts, model=Standardized()).check(fast=True))


class Standardized(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x):
        return super().forward(x.float())


class Unreadable(TensorDataset):
    def __getitem__(self, i):
        if i == 3:
            raise KeyError("no such image")
        return super().__getitem__(i)


def test_items_of_validation_that_cannot_be_read():
    learn = learner(valid=(X[:64], CLASSES[:64]))
    data = Unreadable(X[:64], CLASSES[:64])
    learn.dls = cbnb.DataLoaders(learn.dls.train, DataLoader(data, 64), device="cpu")
    (found,) = learn.check()
    assert found.code == "X1" and found.where == "the validation set, item 3 of the dataset" and "no such image" in found.why


def test_an_error_of_reading_can_be_skipped():
    learn = learner()
    learn.dls = cbnb.DataLoaders(DataLoader(Unreadable(X, CLASSES), 32), device="cpu")
    assert learn.check().codes == ["X1"] and learn.check(skip="X1").codes == []


class Listed(nn.Module):
    """Its layers are in a list, so it has no parameters."""

    def __init__(self, kind):
        super().__init__()
        self.layers = kind([nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_model_without_parameters_is_a_finding():
    [found] = learner(model=Listed(list)).check()
    assert found.code == "X1" and "it has no parameters at all" in found.why and "nn.ModuleList" in found.fix
    assert "X1" not in learner(model=Listed(nn.ModuleList)).check().codes


@pytest.mark.parametrize("keep", [lambda loss: loss, torch.Tensor.detach])
def test_a_step_that_keeps_the_graph_of_the_batch_before(keep):
    class Total(cbnb.Step):
        total = 0.0

        def backward(self, learn):
            (self.total + learn.loss_grad).backward()
            self.total = self.total + keep(learn.loss_grad)

    learn = learner()
    learn.train_step = Total()
    assert ("X1" in learn.check().codes) == (keep is not torch.Tensor.detach)
    assert not vars(learn.train_step).get("total", 0.0)  # nothing is left behind
