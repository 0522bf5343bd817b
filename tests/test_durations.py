"""Fits, validations and schedules that count steps or updates, compared with loops written by hand."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.basics.durations import Duration, as_duration
from helpers import ab, line_batches, line_learner, noting
from resumed import PowerFailed, fails_before

X = torch.linspace(-1, 1, 40).reshape(-1, 1)
Y = 2 * X + 3 + torch.sin(9 * X)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))


def train_loader(bs=4):
    """Ten batches."""
    return DataLoader(TensorDataset(X, Y), bs, shuffle=True)


def learner(train=None, valid=None, **kwargs):
    dls = cbnb.DataLoaders(train_loader() if train is None else train, [(X, Y)] if valid is None else valid, device="cpu")
    settings = dict(loss_func=nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.1) | kwargs
    return cbnb.Learner(dls, net(), **settings).remove_cb(cbnb.ProgressCallback)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def steps_of(train):
    """Endless batches of one epoch after another."""
    for epoch in itertools.count():
        for batch in train:
            yield epoch, batch


def by_hand(n, train=None, lr=lambda i: 0.1, each=lambda i, model: None):
    """The model after `n` steps of a plain loop; `each` is called after each step."""
    train, model = train_loader() if train is None else train, net()
    opt = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(5)
    for i, (_, (x, y)) in zip(range(n), steps_of(train)):
        opt.param_groups[0]["lr"] = lr(i)
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        opt.zero_grad()
        each(i, model)
    return model


def fitted(learn, length, method="fit", **kwargs):
    torch.manual_seed(5)
    getattr(learn, method)(length, **kwargs)
    return learn


@pytest.mark.parametrize("text", ["500 steps", "500 step", "500steps", " 500 Batches ", "5_00 steps", "500 iterations"])
def test_a_duration_is_a_number_and_a_unit(text):
    assert as_duration(text) == Duration(500, "step")


@pytest.mark.parametrize("wrong, kind", [("steps of 3", ValueError), ("500", ValueError), ("3 minutes", ValueError), ("0 steps", ValueError),
                                         ("1.5 epochs", ValueError), ("", ValueError), (0, ValueError), (2.0, TypeError), (None, TypeError),
                                         (True, TypeError)])  # fmt: skip
def test_a_duration_that_cannot_be_read_is_an_error(wrong, kind):
    with pytest.raises(kind, match="valid_every="):
        as_duration(wrong, "valid_every")


@pytest.mark.parametrize("n", [4, 10, 23])
def test_a_fit_of_n_steps_has_the_weights_of_a_loop_of_n_steps(n):
    learn = fitted(learner(), f"{n} steps", valid_every=99)
    assert torch.equal(weights(learn.model), weights(by_hand(n)))
    run = learn.recorder.last()
    assert (learn.train_iter, learn.train_updates, run.n_steps, learn.pct_train) == (n, n, n, 1)
    assert run.status == "done" and run.n_epoch == learn.n_epoch == -(-n // 10)
    assert [row["step"] for row in run.epochs] == [*range(10, n, 10), n] and all(row["complete"] for row in run.epochs)


def test_the_last_epoch_of_a_fit_of_steps_has_all_its_events():
    seen, learn = [], line_learner(4)
    learn.fit("6 steps", cbs=noting(seen))
    whole = []
    line_learner(2).fit(1, cbs=noting(whole))
    last = seen[len(seen) - 1 - seen[::-1].index("before_epoch") :]
    assert last == whole[whole.index("before_epoch") :]  # an epoch of two batches, with its validation
    assert len(learn.recorder.history["valid_loss"]) == 2 and None not in learn.recorder.history["valid_loss"]


def test_the_schedule_of_a_fit_of_steps_spans_its_steps():
    sched = cbnb.SchedCos(0.1, 0.0)
    learn = fitted(learner(), "23 steps", cbs=cbnb.ParamScheduler({"lr": sched}), valid_every=99)
    assert learn.recorder.lrs == [sched(i / 23) for i in range(23)]
    assert torch.equal(weights(learn.model), weights(by_hand(23, lr=lambda i: sched(i / 23))))


@pytest.mark.parametrize("fit", [dict(method="fit_one_cycle"), dict(method="fit_flat_cos"), dict(method="fit_sgdr", cycle_len="23 steps")])
def test_all_training_methods_take_steps(fit):
    learn = fitted(learner(), 1 if "cycle_len" in fit else "23 steps", **fit)
    assert learn.train_iter == 23 and len(learn.recorder.lrs) == 23
    assert learn.recorder.lrs[-1] < 0.1 * max(learn.recorder.lrs)


def test_fine_tune_takes_steps():
    learn = learner(splitter=lambda m: [m[0], m[2]])
    learn.fine_tune("12 steps", freeze_epochs="5 steps")
    assert [run.n_steps for run in learn.recorder.history] == [5, 12]


def stream(n=10):
    return cbnb.Batches(lambda: iter(list(zip(X.split(4), Y.split(4)))[:n]))


def test_a_fit_of_steps_goes_over_a_stream_as_often_as_needed():
    sched = cbnb.SchedLin(0.1, 0.0)
    learn = fitted(learner(stream()), "23 steps", cbs=cbnb.ParamScheduler({"lr": sched}), valid_every=99)
    assert torch.equal(weights(learn.model), weights(by_hand(23, stream(), lambda i: sched(i / 23))))
    assert learn.recorder.iters == [10, 20, 23] and learn.n_epoch == 3 and learn.recorder.last().status == "done"
    assert learn.recorder.lrs == [sched(i / 23) for i in range(23)]


def test_a_fit_ends_after_its_step_without_another_batch_from_the_loader():
    taken = []

    def batches():
        for batch in line_batches(8):
            taken.append(1)
            yield batch

    line_learner(dls=cbnb.DataLoaders(cbnb.Batches(batches), device="cpu")).fit("5 steps")
    assert len(taken) == 5


def test_a_fit_of_updates_counts_the_updates_of_accumulated_gradients():
    learn = line_learner(10, cbs=cbnb.GradientAccumulation(32))  # updates after batches 4, 8, 10, 14, 18, 20
    learn.fit("5 updates")
    assert (learn.train_updates, learn.train_iter, learn.pct_train) == (5, 18, 1)
    assert learn.recorder.iters == [10, 18] and learn.recorder.last().status == "done"


def test_a_fit_that_would_not_end_is_an_error():
    never = cbnb.Callback(before_step=lambda self: (_ for _ in ()).throw(cbnb.CancelStepException()))
    with pytest.raises(RuntimeError, match="made no update, so this fit of 5 updates would not end"):
        line_learner(2, cbs=never).fit("5 updates")
    with pytest.raises(ValueError, match="start_epoch=1 counts epochs"):
        line_learner(2).fit("5 steps", start_epoch=1)


def test_cancelled_updates_do_not_count():
    def skip(self):
        if self.train_iter == 1:
            raise cbnb.CancelStepException
        if self.train_iter == 2:
            raise cbnb.CancelBatchException

    learn = line_learner(5, cbs=cbnb.Callback(before_step=skip))
    learn.fit(1)
    assert (learn.train_iter, learn.train_updates) == (5, 3)


def test_skipped_updates_of_fp16_do_not_count():
    from test_precision import Overflow

    learn = line_learner(5, cbs=[cbnb.MixedPrecision("fp16"), Overflow([0, 2])])
    learn.fit(1)
    assert learn.mixed_precision.skipped == 2 and learn.train_updates == 3


def test_a_function_as_a_step_counts_the_calls_of_its_optimizer():
    class Inner:
        def __init__(self):
            self.model = nn.Linear(1, 1)
            self.opt = torch.optim.SGD(self.model.parameters(), 0.1)

        def train(self, x, y):
            for _ in range(3):
                loss = nn.functional.mse_loss(self.model(x), y)
                loss.backward()
                self.opt.step()
                self.opt.zero_grad()
            return loss.detach()

    inner = Inner()
    learn = cbnb.Learner(cbnb.DataLoaders(stream(), device="cpu"), inner.model, train_step=inner.train).remove_cb(cbnb.ProgressCallback)
    learn.fit(1)
    assert (learn.train_iter, learn.train_updates) == (10, 30)


def test_n20_torch_scheduler_follows_the_updates_of_accumulated_gradients():
    make = lambda opt: torch_schedulers.LambdaLR(opt, lambda i: (i + 1) / 10)  # noqa: E731
    learn = line_learner(12, lr=1.0, cbs=cbnb.GradientAccumulation(32))
    learn.fit(1, cbs=cbnb.TorchScheduler(make))
    assert learn.recorder.lrs[3::4] == pytest.approx([0.1, 0.2, 0.3])
    learn.fit(1, cbs=cbnb.TorchScheduler(make, every="batch"))
    assert learn.recorder.lrs[3::4] == pytest.approx([0.4, 0.8, 1.2])


@pytest.mark.parametrize("length, n", [(2, 6), ("17 steps", 5), ("4 updates", 4)])
def test_a_scheduler_gets_the_number_of_updates(length, n):
    """Ten batches an epoch: updates after 4, 8 and 10 batches."""
    got = []

    def make(opt, n_steps):
        got.append(n_steps)
        return torch_schedulers.OneCycleLR(opt, 0.1, total_steps=n_steps)

    learn = line_learner(10, cbs=cbnb.GradientAccumulation(32))
    learn.fit(length, cbs=cbnb.TorchScheduler(make))
    assert got == [n] == [learn.train_updates]


@pytest.mark.parametrize("length", ["23 steps", "23 updates"])
@pytest.mark.parametrize("of_stream", [False, True])
@pytest.mark.parametrize("at", [0, 3, 10, 14, 21, 22])
def test_a_fit_of_steps_that_is_killed_continues_exactly(tmp_path, length, of_stream, at):
    def fit(folder, *cbs, **kwargs):
        made = [cbnb.Checkpoint(every_steps=4), *cbs]
        learn = learner(stream() if of_stream else None, path=tmp_path / folder, cbs=made)
        return learn, lambda: fitted(learn, length, "fit_one_cycle", lr_max=0.02, **kwargs)

    whole, run = fit("whole")
    run()
    with pytest.raises(PowerFailed):
        fit("half", fails_before(at))[1]()
    learn, run = fit("half", resume=True)
    run()
    assert torch.equal(weights(learn.model), weights(whole.model))
    assert learn.recorder.lrs == whole.recorder.lrs and learn.recorder.iters == whole.recorder.iters
    assert (learn.train_iter, learn.train_updates, learn.n_epoch) == (23, 23, 3)
    again = fit("half", resume=True)
    again[1]()  # this fit is finished
    assert torch.equal(weights(again[0].model), weights(whole.model)) and again[0].recorder.last().n_steps == 23


def test_a_plan_of_a_fit_of_steps_has_its_steps():
    plan = learner().planned_schedule("23 steps", 0.02)
    learn = fitted(learner(), "23 steps", "fit_one_cycle", lr_max=0.02)
    assert plan.values["lr"][0] == learn.recorder.lrs and plan.n_steps == 23


def test_the_line_moves_by_hand():
    learn = line_learner(2, lr=0.1)
    learn.fit("3 steps")
    assert ab(learn) == pytest.approx((2 * (1 - 0.8**3), 3 * (1 - 0.8**3)))
