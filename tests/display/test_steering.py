"""Stopping, pausing and slowing down a fit, from inside of it."""

from types import SimpleNamespace

import pytest

import cbnb
from helpers import RaiseIn, ab, line_learner


def steered(n=3, **kwargs):
    steering = cbnb.display.steering.Steering()
    return line_learner(n, cbs=steering, **kwargs), steering


def at_batch(i, do):
    """A callback that acts in the i-th training batch of a fit."""

    def before_batch(self):
        if self.learn.training and self.learn.train_iter == i:
            do()

    return cbnb.Callback(before_batch=before_batch)


def test_a_fit_stops_after_the_batch_in_which_it_is_asked_to():
    learn, steering = steered()
    learn.fit(2, cbs=at_batch(1, steering.stop))
    assert learn.recorder.history[0].n_steps == 2 and learn.recorder.history[0].status == "cancelled"
    learn.fit(1)  # the next one is not stopped
    assert learn.recorder.history[1].status == "done" and not steering.stopping


def test_a_pause_lasts_until_it_is_ended():
    learn, steering = steered()
    calls = []

    def go_on_at_the_third():
        calls.append(learn.recorder.history[0].n_steps)
        if len(calls) == 3:
            steering.resume()

    steering.while_paused = go_on_at_the_third
    learn.fit(1, cbs=at_batch(1, steering.pause))
    assert calls == [2, 2, 2] and learn.recorder.history[0].n_steps == 3 and steering.seconds_paused > 0
    learn.fit(1)
    assert len(calls) == 3 and steering.seconds_paused == 0


def test_pauses_are_added_up(monkeypatch):
    """On a clock that shows 1, 3.5, 10, 11."""
    learn, steering = steered()
    clock = iter([1.0, 3.5, 10.0, 11.0])
    monkeypatch.setattr("cbnb.display.steering.time", SimpleNamespace(perf_counter=lambda: next(clock), sleep=lambda seconds: None))
    steering.while_paused = steering.resume
    assert steering.seconds_paused == 0
    learn.fit(1, cbs=[at_batch(0, steering.pause), at_batch(2, steering.pause)])
    assert steering.seconds_paused == 2.5 + 1


def test_a_paused_fit_can_be_stopped_and_the_next_one_is_not_paused():
    learn, steering = steered()
    steering.while_paused = steering.stop
    learn.fit(1, cbs=at_batch(0, steering.pause))
    assert learn.recorder.history[0].n_steps == 1 and steering.paused
    learn.fit(1)
    assert learn.recorder.history[1].n_steps == 3 and not steering.paused


def test_rates_are_scaled_in_training_batches_and_put_back_after_each():
    """A step of half the rate goes half as far: a tenth of the way, then a tenth of the rest, then as planned."""
    learn, steering = steered()
    rates = []
    watch = cbnb.Callback(
        before_step=lambda self: rates.append(self.learn.opt.param_groups[0]["lr"]), before_epoch=lambda self: rates.append("epoch")
    )
    watch.order = 70
    validating = cbnb.Callback(after_batch=lambda self: None if self.learn.training else rates.append(self.learn.opt.param_groups[0]["lr"]))
    learn.fit(2, cbs=[watch, validating, at_batch(0, lambda: steering.scale_lr(0.5)), at_batch(4, lambda: steering.scale_lr(1))])
    assert rates == ["epoch", 0.05, 0.05, 0.05, 0.1, "epoch", 0.05, 0.1, 0.1, 0.1]
    assert learn.opt.param_groups[0]["lr"] == 0.1
    rest = 0.9**4 * 0.8**2
    assert ab(learn) == pytest.approx((2 * (1 - rest), 3 * (1 - rest)))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, cbnb.CancelFitException])
def test_the_planned_rate_is_back_however_a_fit_ends(error):
    learn, steering = steered()
    cbs = [at_batch(1, lambda: steering.scale_lr(0.5)), RaiseIn("before_step", error, when=lambda learn: learn.train_iter == 1)]
    try:
        learn.fit(1, cbs=cbs)
    except (ZeroDivisionError, KeyboardInterrupt):
        pass
    assert learn.opt.param_groups[0]["lr"] == 0.1
    learn.fit(1, lr=0.2)
    assert steering.lr_scale == 1 and learn.recorder.lrs[-3:] == [0.2] * 3


def test_there_must_be_something_to_steer():
    learn, steering = steered()
    for call, what in ((steering.stop, "stop"), (steering.pause, "pause"), (cbnb.display.steering.Steering().stop, "stop")):
        with pytest.raises(RuntimeError, match=f"nothing to {what}"):
            call()
    assert not steering.stopping and not steering.paused
    for by in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="by="):
            steering.scale_lr(by)
    assert steering.lr_scale == 1


def scaled(factors, n=9):
    """A fit of a learner in which a new factor is set in the batch of each key."""
    learn, steering = steered(n)
    learn.fit(1, cbs=[at_batch(i, lambda by=by: steering.scale_lr(by)) for i, by in factors.items()])
    return learn, steering


def test_each_change_of_the_rate_is_noted_with_its_step_and_the_way_back_too():
    learn, steering = scaled({1: 2, 2: 2, 4: 0.5, 6: 1, 7: 1})
    assert steering.changes == [(1, 2), (4, 0.5), (6, 1)]
    assert learn.recorder.lrs == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.05, 0.05, 0.1, 0.1, 0.1])
    assert steering.said() == "planned lr × 2 from step 1, × 0.5 from step 4, × 1 from step 6"
    learn.fit(1)
    assert steering.changes == [] and steering.said() == ""


def test_of_more_than_four_changes_the_ones_in_the_middle_are_counted():
    all_four = "planned lr × 2 from step 1, × 3 from step 2, × 4 from step 3, × 5 from step 4"
    assert scaled({1: 2, 2: 3, 3: 4, 4: 5})[1].said() == all_four
    assert (
        scaled({1: 2, 2: 3, 3: 4, 4: 5, 5: 6})[1].said() == "planned lr × 2 from step 1, × 3 from step 2, 2 more changes, × 6 from step 5"
    )


def test_what_others_do_to_the_rate_once_it_is_as_planned_stays():
    """The factor holds in the first batch only; from the fourth on, somebody halves the rate each time."""
    learn, steering = steered(5)

    def halve(cb):
        if cb.learn.train_iter > 2:
            cb.learn.opt.param_groups[0]["lr"] /= 2

    late = cbnb.Callback(before_batch=halve)
    learn.fit(1, cbs=[at_batch(0, lambda: steering.scale_lr(4)), at_batch(1, lambda: steering.scale_lr(1)), late])
    assert learn.recorder.lrs == pytest.approx([0.4, 0.1, 0.1, 0.05, 0.025])


def test_a_pause_looks_often_enough_for_an_end():
    learn, steering = steered()
    slept = []
    clock = SimpleNamespace(perf_counter=lambda: 0.0, sleep=slept.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cbnb.display.steering.time", clock)
        steering.while_paused = lambda: steering.resume() if slept else None
        learn.fit(1, cbs=at_batch(0, steering.pause))
    assert len(slept) == 2 and max(slept) <= 0.1


def test_a_pause_without_anything_to_do_meanwhile_ends_by_itself():
    learn, steering = steered()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cbnb.display.steering.time", SimpleNamespace(perf_counter=lambda: 0.0, sleep=lambda seconds: steering.resume()))
        learn.fit(1, cbs=at_batch(0, steering.pause))
    assert learn.recorder.last().n_steps == 3


def test_a_slider_that_is_dragged_leaves_one_mark(monkeypatch):
    """Changes of the factor in quick succession share one mark. A change after a second has its own mark."""
    now = [100.0]
    monkeypatch.setattr("cbnb.display.steering.time", SimpleNamespace(perf_counter=lambda: now[0]))
    factors = {2: 0.9, 3: 0.8, 5: 0.7, 8: 0.5, 9: 0.4, 11: 2.0}

    def move(cb):
        now[0] += 0.6
        if cb.learn.train_iter in factors:
            cb.learn.steering.scale_lr(factors[cb.learn.train_iter])

    learn, _ = steered(12)
    learn.fit(1, cbs=cbnb.Callback(before_batch=move))
    events = [(event["step"], event["text"]) for event in learn.recorder.last().events]
    assert events == [(3, "lr × 0.8"), (5, "lr × 0.7"), (9, "lr × 0.4"), (11, "lr × 2")]
    assert len(learn.recorder.lrs) == 12 and learn.recorder.lrs[9] == pytest.approx(0.4 * learn.recorder.lrs[0])
