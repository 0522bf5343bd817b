"""`learn.log`: your own values in the history, as a loop written by hand computes them"""

import copy
import json
import sqlite3

import pytest
import torch

import cbnb.all as cbnb
from cbnb.history import History
from cbnb.toy import line_learner, wave_learner


def norm(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()]).norm()


class LogNorm(cbnb.Callback):
    def after_backward(self):
        self.learn.log(norm=norm(self.model))


def by_hand(learn, n_epoch):
    "The gradient norms of a plain loop"
    model, found = copy.deepcopy(learn.model), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_epoch):
        for x, y in learn.dls.train:
            learn.loss_func(model(x), y).backward()
            found.append(norm(model).item())
            opt.step()
            opt.zero_grad()
    return found


def test_the_values_are_those_of_a_plain_loop():
    learn = line_learner(cbs=LogNorm)
    expected = by_hand(learn, 3)
    learn.fit(3)
    run = learn.recorder.history[-1]
    assert run.steps["norm"] == expected
    assert run["norm"] == pytest.approx([sum(expected[i : i + 2]) / 2 for i in (0, 2, 4)], rel=1e-12)
    assert [row[2] for row in run.values] == run["valid_loss"]  # the columns of the table: train_loss, norm, valid_loss


@pytest.mark.parametrize("event", ["before_batch", "after_pred", "after_loss", "before_step", "after_step", "after_batch"])
@pytest.mark.parametrize("order", [0, 90])
def test_a_value_belongs_to_the_batch_in_which_it_was_logged(event, order):
    def note(cb):
        if cb.training:
            cb.learn.log(i=cb.iter + 10 * cb.epoch)

    cb = cbnb.Callback(**{event: note})
    cb.order = order
    learn = line_learner(cbs=cb)
    learn.fit(2)
    assert learn.recorder.history[-1].steps["i"] == [0, 1, 10, 11]
    assert learn.recorder.history[-1]["i"] == [0.5, 10.5]


@pytest.mark.parametrize("order", [0, 90])
def test_a_value_between_phases_belongs_to_the_last_step_and_to_its_row(order):
    cb = cbnb.Callback(after_epoch=lambda cb: cb.learn.log(end=cb.epoch))
    cb.order = order
    learn = line_learner(cbs=cb)
    learn.fit(2)
    run = learn.recorder.history[-1]
    assert [v for v in run.steps["end"] if v == v] == [0, 1] and run.steps["end"][1::2] == [0, 1]
    assert run["end"] == [0, 1]


def test_python_numbers_are_kept_exactly_and_kinds_may_change():
    values = [0.1, torch.tensor(0.25), 3, torch.tensor([7]), True, torch.tensor(0.1, dtype=torch.float64)]
    learn = line_learner(cbs=cbnb.Callback(after_batch=lambda cb: cb.training and cb.learn.log(v=values[cb.train_iter - 1])))
    learn.fit(3)
    assert learn.recorder.history[-1].steps["v"] == [0.1, 0.25, 3, 7, 1, 0.1]


def test_a_logged_tensor_is_not_changed_later():
    t = torch.zeros(())
    learn = line_learner(cbs=cbnb.Callback(before_batch=lambda cb: cb.training and (t.add_(1), cb.learn.log(t=t))))
    learn.fit(2)
    assert learn.recorder.history[-1].steps["t"] == [1, 2, 3, 4]


def test_other_runs_and_the_batch_tried_before_a_fit_leave_no_trace():
    def loss(pred, y):
        learn.log(scale=pred.abs().max())
        return (pred - y).square().mean()

    learn = wave_learner(loss_func=loss)
    learn.lr_find()
    learn.validate()
    learn.get_preds()
    assert not len(learn.recorder.history)
    learn.fit(1)
    run = learn.recorder.history[-1]
    assert run.logged["scale"].steps == list(range(run.n_steps))
    with pytest.raises(RuntimeError, match="no fit is running"):
        learn.log(scale=1)


def test_names_that_are_taken_get_a_number():
    learn = line_learner(cbs=cbnb.Callback(after_batch=lambda cb: cb.training and cb.learn.log(loss=5, train_loss=6)))
    learn.fit(1)
    run = learn.recorder.history[-1]
    assert run.steps["loss_2"] == [5, 5] and run["train_loss_2"] == [6]


def test_errors_say_what_to_log():
    for value in (torch.ones(2), "high", None, [1]):
        with pytest.raises(TypeError, match="learn.log needs one number for 'v', not"):
            line_learner(cbs=cbnb.Callback(after_batch=lambda cb, value=value: cb.learn.log(v=value))).fit(1)
    with pytest.raises(TypeError, match="learn.log got an int without a name"):
        line_learner(cbs=cbnb.Callback(after_batch=lambda cb: cb.learn.log(3))).fit(1)
    with pytest.raises(RuntimeError, match="no Recorder"):
        line_learner(cbs=LogNorm).remove_cb(cbnb.Recorder).fit(1)


def test_json_and_state_restore_the_values():
    learn = line_learner(cbs=[LogNorm, cbnb.Callback(after_batch=lambda cb: cb.iter and cb.learn.log(odd=0.1))])
    learn.fit(2)
    history = learn.recorder.history
    again = History.from_json(history.to_json())
    assert json.loads(again.to_json()) == json.loads(history.to_json())
    other = History()
    other.load_state_dict(history.state_dict())
    assert str(other[0].steps["odd"]) == str(history[0].steps["odd"]) and other[0].logged.keys() == {"norm", "odd"}


@pytest.mark.parametrize("killed_at", [2, 3, 5])
def test_a_resumed_fit_has_the_values_of_one_that_was_not_stopped(tmp_path, killed_at):
    whole = line_learner(cbs=LogNorm, n=3)
    whole.fit(3)

    def kill(cb):
        if cb.training and cb.train_iter == killed_at:
            raise ZeroDivisionError

    kill = cbnb.Callback(after_batch=kill)
    kill.order = 99
    with pytest.raises(ZeroDivisionError):
        line_learner(cbs=LogNorm, n=3, path=tmp_path).fit(3, cbs=[cbnb.Checkpoint(every_steps=1), kill], resume=True)
    learn = line_learner(cbs=LogNorm, n=3, path=tmp_path)
    learn.fit(3, cbs=cbnb.Checkpoint(every_steps=1), resume=True)
    a, b = whole.recorder.history[-1], learn.recorder.history[-1]
    assert a.steps["norm"] == b.steps["norm"] and a["norm"] == b["norm"] and a.metric_names == b.metric_names


def test_the_lab_book_and_the_csv_file_have_the_values(tmp_path):
    lab = cbnb.LabBook(tmp_path / "runs")
    try:
        learn = line_learner(cbs=[LogNorm, cbnb.CSVLogger], path=tmp_path)
        learn.fit(2)
        assert lab[-1].history["norm"] == learn.recorder.history[-1]["norm"]
        db = sqlite3.connect(tmp_path / "runs" / "runs.sqlite")
        found = [v for (v,) in db.execute("SELECT value FROM rows WHERE name='norm' ORDER BY epoch")]
        db.close()
        assert found == learn.recorder.history[-1]["norm"]
    finally:
        lab.close()
    assert (tmp_path / "history.csv").read_text().splitlines()[0] == "epoch,train_loss,norm,valid_loss,time"


def test_a_value_of_before_epoch_is_in_the_row_of_its_epoch():
    learn = line_learner(cbs=cbnb.Callback(before_epoch=lambda cb: cb.learn.log(start=10 + cb.epoch)))
    learn.fit(3)
    assert learn.recorder.history[-1]["start"] == [10, 11, 12]


@pytest.mark.parametrize("stop", [cbnb.CancelFitException, KeyboardInterrupt])
def test_a_value_logged_after_a_fit_that_ended_between_epochs_opens_no_row(stop):
    def end(cb):
        if cb.epoch == 2:
            raise stop

    learn = line_learner(cbs=cbnb.Callback(before_epoch=end, after_fit=lambda cb: cb.learn.log(done=7)))
    try:
        learn.fit(4)
    except KeyboardInterrupt:
        pass
    run = learn.recorder.history[-1]
    assert run["epoch"] == [0, 1] and run["done"] == [None, 7]
