"""Fits, validations and schedules that count steps or updates, compared with loops written by hand."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.basics.arguments import Duration, as_duration
from cbnb.toy import mae
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
    settings = dict(loss_func=nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.05) | kwargs
    return cbnb.Learner(dls, net(), **settings).remove_cb(cbnb.ProgressCallback)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def steps_of(train):
    """Endless batches of one epoch after another."""
    for epoch in itertools.count():
        for batch in train:
            yield epoch, batch


def by_hand(n, train=None, lr=lambda i: 0.05, each=lambda i, model: None):
    """The model after `n` steps of a plain loop; `each` is called after each step."""
    train, model = train_loader() if train is None else train, net()
    opt = torch.optim.SGD(model.parameters(), 0.05)
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
                                         ("1.5 epochs", ValueError), ("", ValueError), ("steps", ValueError), ("updates", ValueError), ("epochs", ValueError), (0, ValueError), (2.0, TypeError), (None, TypeError),
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
    learn = cbnb.Learner(cbnb.DataLoaders(stream(), device="cpu"), inner.model, train_step=cbnb.UpdateStep(inner.train)).remove_cb(
        cbnb.ProgressCallback
    )
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


# validation every n steps


def valid_by_hand(n, every, lr=lambda i: 0.05, train=None):
    """The rows of a loop that validates every `every` steps: step, mean training loss since the last row, validation loss."""
    rows, losses, train, model = [], [], train_loader() if train is None else train, net()
    opt = torch.optim.SGD(model.parameters(), 0.05)
    torch.manual_seed(5)
    for i, (epoch, (x, y)) in zip(range(n), steps_of(train)):
        opt.param_groups[0]["lr"] = lr(i)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        losses.append(loss.item())
        opt.step()
        opt.zero_grad()
        if (i + 1) % every == 0:
            model.eval()
            with torch.no_grad():
                rows.append((i + 1, epoch, nn.functional.mse_loss(model(X), Y).item()))
            model.train()
    return model, rows


def valid_rows(learn):
    return [(row["step"], row["epoch"], row["valid_loss"]) for row in learn.recorder.last().epochs if row["valid_loss"] is not None]


@pytest.mark.parametrize("every", [3, 5, 10, 11, 20])
@pytest.mark.parametrize("length", [2, "17 steps"])
@pytest.mark.filterwarnings("ignore:valid_every=.20 steps. is longer")
def test_validation_every_n_steps_has_the_numbers_of_a_loop_written_by_hand(every, length):
    n = 20 if length == 2 else 17
    learn = fitted(learner(), length, valid_every=f"{every} steps")
    model, rows = valid_by_hand(n, every)
    assert torch.equal(weights(learn.model), weights(model))
    assert sum(valid_rows(learn), ()) == pytest.approx(sum(rows, ()))
    run = learn.recorder.last()
    assert [row["step"] for row in run.epochs if row["complete"]] == [10, n]  # each epoch has a row at its end
    assert run.status == "done" and run["step"] == sorted({*range(every, n + 1, every), 10, n})
    assert run.metric_names == ["step", "train_loss", "valid_loss", "time"]
    assert [step + 1 for step, _ in run.points("valid_loss")] == [row[0] for row in rows]


def test_the_events_of_a_validation_in_mid_epoch_are_inside_the_training_phase():
    seen = []
    line_learner(3).fit(1, valid_every="2 steps", cbs=noting(seen))
    plain = []
    line_learner(3).fit(1, valid_every=[], cbs=noting(plain))
    inner = "before_validate before_batch after_pred after_loss after_batch after_validate".split()
    second = [i for i, name in enumerate(plain) if name == "after_batch"][1] + 1
    assert seen == plain[:second] + inner + plain[second:]


def test_the_state_of_the_training_phase_is_restored():
    found = []

    class Look(cbnb.Callback):
        order, run_valid = 1e10, False

        def after_batch(self):
            found.append(
                (self.iter, self.n_iter, self.training, self.model.training, self.dl is self.dls.train, self.mid_epoch, len(self.xb[0]))
            )

    batches = line_batches(5)
    dls = cbnb.DataLoaders(batches, [tuple(torch.cat(part) for part in zip(*batches))], device="cpu")
    line_learner(dls=dls, cbs=Look).fit(1, valid_every="2 steps")
    assert found == [(i, 5, True, True, True, False, 8) for i in range(5)]


def test_a_frozen_batch_norm_stays_in_eval_mode_after_a_validation_in_mid_epoch():
    norm = nn.BatchNorm1d(1).requires_grad_(False)
    modes = []
    model = nn.Sequential(norm, nn.Linear(1, 1))
    learn = cbnb.Learner(cbnb.DataLoaders(train_loader(), [(X, Y)], device="cpu"), model, nn.MSELoss(), cbs=cbnb.BnFreeze)
    learn.remove_cb(cbnb.ProgressCallback)
    learn.fit(1, valid_every="3 steps", cbs=cbnb.Callback(after_pred=lambda cb: modes.append((cb.training, norm.training))))
    assert set(modes) == {(True, False), (False, False)} and norm.num_batches_tracked == 0


def test_validation_every_n_updates():
    learn = line_learner(10, cbs=cbnb.GradientAccumulation(32))  # updates after batches 4, 8, 10, 14, 18, 20
    learn.fit(2, valid_every="2 updates")
    assert [row[0] for row in valid_rows(learn)] == [8, 14, 20]


def test_a_stream_is_validated_every_n_steps():
    learn = fitted(learner(stream()), "25 steps", valid_every="5 steps")
    model, rows = valid_by_hand(25, 5, train=stream())
    assert torch.equal(weights(learn.model), weights(model)) and sum(valid_rows(learn), ()) == pytest.approx(sum(rows, ()))
    run = learn.recorder.last()
    assert run["step"] == [5, 10, 15, 20, 25]  # no second row where an epoch ends with a validation
    assert [row["step"] for row in run.epochs if row["complete"]] == [10, 20, 25]
    assert run.status == "done" and len(run.values) == len(run.epochs)


def test_an_interval_that_is_longer_than_the_fit_is_said():
    with pytest.warns(UserWarning, match="valid_every='50 steps' is longer than this fit of 4 steps"):
        line_learner(2).fit(2, valid_every="50 steps")


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.filterwarnings("ignore:the learning rate is 0")
def test_early_stopping_counts_validations(patience, capsys):
    learn = learner(lr=0.0)
    learn.fit(5, valid_every="3 steps", cbs=(stop := cbnb.EarlyStopping(patience=patience)))
    assert learn.train_iter == 3 * (patience + 1) and stop.stopped_step == learn.train_iter
    run = learn.recorder.last()
    assert run.status == "cancelled" and run["step"] == [3 * (i + 1) for i in range(patience + 1)]
    assert f"stopped after step {learn.train_iter}: valid_loss was best at step 3" in capsys.readouterr().out
    assert [step for step, _ in stop.values] == run["step"]
    stop.plot(return_fig=True)


def test_reduce_lr_on_plateau_counts_validations():
    learn = learner(lr=1e-12)
    learn.fit(1, valid_every="2 steps", cbs=(reduce := cbnb.ReduceLROnPlateau(patience=2, min_delta=9)))
    assert reduce.reductions == [6, 10]
    assert learn.recorder.lrs == pytest.approx([1e-12] * 6 + [1e-13] * 4)


def test_save_model_loads_the_best_validation(tmp_path, capsys):
    kept = {}

    def keep(cb):
        kept[cb.train_iter] = weights(cb.model).clone()

    learn = learner(path=tmp_path, lr=0.3)
    fitted(learn, 2, valid_every="3 steps", cbs=[cbnb.SaveModel(), cbnb.Callback(after_validate=keep)])
    best, step = min((row["valid_loss"], row["step"]) for row in learn.recorder.last().epochs if row["valid_loss"] is not None)
    assert torch.equal(weights(learn.model), kept[step])
    assert f"weights are those of step {step}, with valid_loss {best:.6g}" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:model_step_16 has no optimizer state")
def test_save_model_every_n_steps(tmp_path):
    learn = learner(path=tmp_path)
    fitted(learn, 2, cbs=cbnb.SaveModel(every="8 steps"))
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["model_step_16.pth", "model_step_8.pth"]
    learn.load("model_step_16")
    assert torch.equal(weights(learn.model), weights(by_hand(16)))
    with pytest.raises(ValueError, match="already says when to save: leave out"):
        cbnb.SaveModel(every="8 steps", at_end=True)


def test_ema_is_validated_in_mid_epoch_and_training_goes_on_with_the_weights():
    learn = fitted(learner(cbs=cbnb.EMA(0.5, warmup=False, apply=False)), 2, valid_every="3 steps")
    assert torch.equal(weights(learn.model), weights(by_hand(20)))
    model, averages = net(), []
    mean = weights(model).clone()

    def follow(i, model):
        mean.mul_(0.5).add_(0.5 * weights(model))
        if (i + 1) % 3 == 0:
            averages.append(mean.clone())

    by_hand(20, each=follow)
    assert len(valid_rows(learn)) == 6
    for (_, _, loss), average in zip(valid_rows(learn), averages):
        torch.nn.utils.vector_to_parameters(average, model.parameters())
        assert nn.functional.mse_loss(model.eval()(X), Y).item() == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("of_stream", [False, True])
@pytest.mark.parametrize("save", [3, 4])
@pytest.mark.parametrize("at", [5, 6, 7, 10, 17])
def test_a_fit_that_is_killed_around_a_validation_in_mid_epoch_continues_exactly(tmp_path, of_stream, save, at):
    def fit(folder, *cbs, **kwargs):
        made = [cbnb.Checkpoint(every_steps=save), cbnb.CSVLogger(), tracker := cbnb.ReduceLROnPlateau(patience=2, min_delta=0.3), *cbs]
        learn = learner(stream() if of_stream else None, path=tmp_path / folder, cbs=made)
        return learn, tracker, lambda: fitted(learn, "23 steps", valid_every="3 steps", **kwargs)

    whole, watched, run = fit("whole")
    run()
    with pytest.raises(PowerFailed):
        fit("half", fails_before(at))[2]()
    learn, tracker, run = fit("half", resume=True)
    run()
    assert torch.equal(weights(learn.model), weights(whole.model)) and learn.recorder.lrs == whole.recorder.lrs
    without_time = [[{k: v for k, v in row.items() if k != "time"} for row in each.recorder.last().epochs] for each in (learn, whole)]
    assert without_time[0] == without_time[1] and learn.recorder.last().status == "done"
    assert tracker.values == watched.values and tracker.reductions == watched.reductions
    tables = [[line.rsplit(",", 1)[0] for line in (tmp_path / name / "history.csv").read_text().splitlines()] for name in ("half", "whole")]
    assert tables[0] == tables[1] and tables[0][0] == "step,train_loss,valid_loss" and len(tables[0]) == len(without_time[0]) + 1


def test_rows_in_mid_epoch_survive_the_round_trip_through_json():
    learn = fitted(learner(), 2, valid_every="3 steps")
    run = learn.recorder.last()
    again = type(learn.recorder.history).from_json(learn.recorder.history.to_json())[0]
    assert again.epochs == run.epochs and again.values == run.values and again.extent() == "2 of 2 epochs, 20 steps"
    assert [row["epoch"] for row in learn.recorder.history.rows("steps")] == [0] * 10 + [1] * 10
    assert "step" in learn.recorder.history._repr_html_()
    assert repr(learn).endswith("2 epochs trained)")


def test_an_interrupt_in_a_validation_in_mid_epoch_leaves_the_learner_usable():
    def stop(cb):
        if cb.mid_epoch:
            raise KeyboardInterrupt

    learn = learner()
    with pytest.raises(cbnb.FitInterrupted):
        learn.fit(2, valid_every="3 steps", cbs=cbnb.Callback(before_validate=stop))
    run = learn.recorder.last()
    assert run.status == "interrupted" and run["step"] == [3] and not run.epochs[0]["complete"] and not learn.mid_epoch
    learn.fit(1)
    assert learn.recorder.last().status == "done"


def test_train_metrics_are_those_since_the_last_row():
    means = []
    learn = learner(cbs=cbnb.Recorder(train_metrics=True), metrics=mae)
    note = cbnb.Callback(after_pred=lambda cb: means.append((cb.pred - cb.y).abs().mean().item()) if cb.training else None)
    fitted(learn, 1, valid_every="4 steps", cbs=note)
    rows = learn.recorder.last().epochs
    assert [row["step"] for row in rows] == [4, 8, 10]
    wanted = [sum(means[a:b]) / (b - a) for a, b in ((0, 4), (4, 8), (8, 10))]
    assert [row["train_mae"] for row in rows] == pytest.approx(wanted)


def test_torch_plateau_gets_the_value_of_each_validation():
    class Plateau(torch_schedulers.ReduceLROnPlateau):
        def step(self, metrics):
            got.append(metrics)

    got = []
    learn = fitted(learner(), 2, valid_every="3 steps", cbs=cbnb.TorchScheduler(Plateau, monitor="valid_loss"))
    assert got == [row[2] for row in valid_rows(learn)] and len(got) == 6


# several validation sets


def named_sets(**kwargs):
    dls = cbnb.DataLoaders(train_loader(), dict(val=[(X, Y)], ood=[(X + 2, Y), (X + 3, Y)]), device="cpu")
    settings = dict(loss_func=nn.MSELoss(), opt_func=torch.optim.SGD, lr=0.05, metrics=mae) | kwargs
    return cbnb.Learner(dls, net(), **settings).remove_cb(cbnb.ProgressCallback)


@pytest.mark.parametrize("every", [1, "5 steps"])
def test_several_validation_sets_have_columns_with_their_names(every):
    learn = fitted(named_sets(), 2, valid_every=every)
    assert learn.recorder.metric_names[1:] == ["train_loss", "valid_loss", "mae", "ood_loss", "ood_mae", "time"]
    row, model = learn.recorder.last().epochs[-1], learn.model.eval()
    with torch.no_grad():
        assert row["valid_loss"] == pytest.approx(nn.functional.mse_loss(model(X), Y).item())
        far, target = model(torch.cat([X + 2, X + 3])), torch.cat([Y, Y])
        assert row["ood_loss"] == pytest.approx(nn.functional.mse_loss(far, target).item())
        assert row["ood_mae"] == pytest.approx((far - target).abs().mean().item())
    assert learn.validate("ood") == pytest.approx([row["ood_loss"], row["ood_mae"]])
    assert learn.validate("val") == learn.validate() == pytest.approx([row["valid_loss"], row["mae"]])
    assert len(learn.recorder.last().epochs) == (2 if every == 1 else 4)
    with pytest.raises(KeyError, match="the loaders are train, val, ood"):
        learn.validate("test")


def test_the_weights_do_not_depend_on_the_validation_sets():
    assert torch.equal(weights(fitted(named_sets(), 2, valid_every="3 steps").model), weights(by_hand(20)))


def test_a_tracker_watches_a_named_set():
    tracker = cbnb.Tracker("ood_loss")
    learn = fitted(named_sets(), 2, valid_every="4 steps", cbs=tracker)
    assert [value for _, value in tracker.values] == [row["ood_loss"] for row in learn.recorder.last().epochs if row["ood_loss"]]
    assert [step for step, _ in tracker.values] == [4, 8, 12, 16, 20]


def test_named_sets_are_made_from_datasets():
    ds = TensorDataset(X, Y)
    dls = cbnb.DataLoaders.from_datasets(ds, dict(val=ds, ood=ds), bs=8, device="cpu")
    assert list(dls.valid_sets) == ["val", "ood"] and dls.valid is dls["val"] is dls[1] and dls["ood"] is dls[2]
    with pytest.raises(ValueError, match="'train' cannot be the name of a validation set"):
        cbnb.DataLoaders(ds, dict(train=ds), device="cpu")
