"""Callbacks written for fastai v1: order, state, flags, counters and numbers of version 1.0.61, and its defects V01 to V13 mended."""

import copy
import functools
import gc
import inspect
import math
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.dialects import fastai_v1 as v1
from cbnb.dialects.fastai_v1_schedules import diverges
from helpers import Line, ab, line_batches, line_learner, noting, same_bits

TRAIN_BATCH = "batch_begin loss_begin backward_begin backward_end step_end batch_end".split()
VALID_BATCH = "batch_begin loss_begin batch_end".split()


def slots_of_an_epoch(n_train: int, n_valid: int) -> list[str]:
    return ["epoch_begin", *TRAIN_BATCH * n_train, *VALID_BATCH * n_valid, "epoch_end"]


class Notes(v1.Callback):
    """Writes down every slot, with what `what(state)` makes of its keywords."""

    def __init__(self, what=lambda state: None, *slots):
        self.seen = []
        for slot in slots or v1.SLOTS:
            setattr(self, slot, functools.partial(self.note, slot[3:], what))

    def note(self, slot, what, **state):
        self.seen.append((slot, what(state)))

    @property
    def slots(self):
        return [slot for slot, _ in self.seen]


class Answers(v1.Callback):
    """Returns flags from one slot."""

    def __init__(self, slot, when=lambda state: True, **flags):
        setattr(self, slot, lambda **state: flags if when(state) else None)


def fitted(*cbs, n_epoch=1, n=2, **kwargs):
    learn = line_learner(n, cbs=list(cbs), **kwargs)
    learn.fit(n_epoch)
    return learn


def near(values, wanted, tolerance=1e-4):
    return len(values) == len(wanted) and all(abs(v - w) < tolerance for v, w in zip(values, wanted))


# --- order, state, counters ---


def test_base_run():
    notes = Notes()
    learn = fitted(notes)
    assert near(ab(learn), (0.72, 1.08))
    assert notes.slots == ["train_begin", *slots_of_an_epoch(2, 1), "train_end"] and len(notes.slots) == 19


def test_counters():
    notes = Notes(lambda s: (s["epoch"], s["iteration"], s["num_batch"]))
    fitted(notes, n_epoch=2)
    counts = {slot: [c for s, c in notes.seen if s == slot] for slot in ("batch_begin", "batch_end", "epoch_end", "train_end")}
    assert counts["batch_begin"] == counts["batch_end"] == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 2, 0), (1, 3, 1), (1, 4, 2)]
    assert counts["epoch_end"] == [(0, 2, 2), (1, 4, 2)] and counts["train_end"] == [(2, 4, 2)]


def test_entries_of_the_state():
    notes = Notes(set)
    fitted(notes)
    first = {}
    for slot, keys in notes.seen:
        first.setdefault(slot, keys)
    begin = {"epoch", "iteration", "num_batch", "skip_validate", "n_epochs", "pbar", "metrics"}
    assert first["train_begin"] == begin | {"metrics_names"}
    assert first["epoch_begin"] == begin | {"stop_training"}
    batch = first["epoch_begin"] | {"last_input", "last_target", "train", "stop_epoch", "skip_step", "skip_zero", "skip_bwd"}
    assert first["batch_begin"] == batch and first["loss_begin"] == batch | {"last_output"}
    assert first["backward_begin"] == first["batch_end"] == batch | {"last_output", "last_loss", "smooth_loss"}
    assert first["epoch_end"] == first["batch_end"] | {"last_metrics"} and first["train_end"] == first["epoch_end"] | {"exception"}


def test_values_of_the_state():
    losses, smooth, metrics = [], [], []

    class Values(v1.Callback):
        def on_train_begin(self, n_epochs, metrics, metrics_names, pbar, **kwargs):
            assert n_epochs == 2 and metrics_names == ["mean_error"] and len(metrics) == 1
            pbar.write("hello")

        def on_backward_begin(self, last_loss, smooth_loss, last_output, train, **kwargs):
            assert train and last_loss.requires_grad and not smooth_loss.requires_grad and last_output.shape == (8,)

        def on_batch_end(self, last_loss, smooth_loss, train, **kwargs):
            assert not last_loss.requires_grad
            losses.append(last_loss.item())
            smooth.append(smooth_loss.item())

        def on_epoch_end(self, last_metrics, **kwargs):
            metrics.append(last_metrics)

    def mean_error(out, y):
        return (out - y).mean()

    fitted(Values(), n_epoch=2, metrics=mean_error)
    raw = [13 * 0.64**i for i in range(5)]
    assert near(losses, [raw[0], raw[1], raw[2], raw[2], raw[3], raw[4]])
    v, w, wanted = 0.0, 0.0, []
    for loss in raw[:4]:
        v, w = 0.98 * v + 0.02 * loss, 0.98 * w + 0.02
        wanted.append(v / w)
    assert near(smooth, [wanted[0], wanted[1], wanted[1], wanted[2], wanted[3], wanted[3]])  # validation never changes it
    assert near(metrics[0], (5.3248, 1.08 - 3)) and near(metrics[1], (raw[4], -3 * 0.8**4))


def test_smooth_loss_begins_anew():
    notes = Notes(lambda s: float(s["smooth_loss"]), "on_step_end")
    learn = line_learner(cbs=notes)
    learn.fit(1)
    learn.fit(1)
    assert near([value for _, value in notes.seen], [13, 10.6364, 5.3248, 4.3566], 1e-3)


def test_last_metrics_without_validation():
    notes = Notes(lambda s: s["last_metrics"], "on_epoch_end")
    fitted(notes, valid=False)
    learn = line_learner(cbs=notes)
    learn.fit(2, valid_every=2)
    assert [m[0] is None for _, m in notes.seen] == [True, True, False] and notes.seen[0][1] == [None]


@pytest.mark.parametrize("default_cbs", [True, False])
def test_last_metrics_do_not_need_a_recorder(default_cbs):
    notes = Notes(lambda s: s["last_metrics"], "on_epoch_end")
    learn = line_learner(cbs=notes, metrics=lambda out, y: (out - y).mean(), progress=True, default_cbs=default_cbs)
    with learn.no_logging():
        learn.fit(1)
    assert near(notes.seen[0][1], (5.3248, -1.92))


# --- what is returned ---

FLAGS = [
    (Answers("on_backward_end", skip_step=True), (0, 0)),
    (Answers("on_batch_begin", skip_step=True), (0, 0)),
    (Answers("on_step_end", skip_zero=True), (1.12, 1.68)),
    (Answers("on_batch_begin", skip_zero=True), (1.12, 1.68)),
    (Answers("on_batch_end", stop_epoch=True), (0.4, 0.6)),
    (Answers("on_batch_begin", stop_epoch=True), (0.4, 0.6)),
    (Answers("on_batch_end", stop_training=True), (0.72, 1.08)),
]


@pytest.mark.parametrize("cb, weights", FLAGS)
def test_flags(cb, weights):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn = fitted(cb)
    assert near(ab(learn), weights)


def test_a_skipped_step_may_keep_its_gradients():
    """The second update is that of both batches: twice a fifth of the way to (2, 3). The slots are called as if there had been two."""
    notes = Notes()
    learn = fitted(Answers("on_backward_end", lambda s: s["num_batch"] == 0, skip_step=True, skip_zero=True), notes)
    assert near(ab(learn), (0.8, 1.2)) and notes.slots == ["train_begin", *slots_of_an_epoch(2, 1), "train_end"]


def test_a_step_that_was_cancelled_before_v1_has_no_slots():
    class Cancels(cbnb.Callback):
        def before_step(self):
            if self.learn.iter == 0:
                raise cbnb.CancelStepException()

    notes = Notes()
    learn = fitted(Cancels(), notes)
    once = [name for name in TRAIN_BATCH if name not in ("backward_end", "step_end")]
    assert notes.slots == ["train_begin", "epoch_begin", *once, *TRAIN_BATCH, *VALID_BATCH, "epoch_end", "train_end"]
    assert near(ab(learn), (0.4, 0.6))


@pytest.mark.parametrize("first", [0, 1])
def test_what_was_cancelled_before_v1_does_not_end_for_it(first):
    class Cancels(cbnb.Callback):
        def before_batch(self):
            if self.learn.training and self.learn.iter == first:
                raise cbnb.CancelBatchException()

        def before_train(self):
            if self.learn.epoch == first:
                raise cbnb.CancelEpochException()

    notes = Notes()
    fitted(Cancels(), notes, n_epoch=2)
    assert notes.slots == ["train_begin", *slots_of_an_epoch(1, 1), "train_end"]


def test_a_loss_that_is_returned_is_one_number():
    def scaled(to):
        class Scales(v1.Callback):
            def on_backward_begin(self, last_loss, **kwargs):
                return {"last_loss": to(last_loss)}

        return fitted(Scales())

    assert near(ab(scaled(lambda loss: 2 * loss.reshape(1))), (1.28, 1.92))
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        scaled(lambda loss: torch.stack([loss, loss]))


def test_skip_zero_leaves_gradients_for_the_next_batch_of_the_fit():
    seen = []
    look = cbnb.Callback(after_step=lambda self: seen.append([p.grad.item() for p in self.learn.model.parameters()]))
    learn = fitted(Answers("on_step_end", skip_zero=True), look)
    assert near(seen[-1], (-7.2, -10.8)) and near(ab(learn), (1.12, 1.68))
    assert all(p.grad is None for p in learn.model.parameters())  # none outlives a fit


def test_last_loss_is_propagated_and_reported():
    class Double(v1.Callback):
        def on_backward_begin(self, last_loss, **kwargs):
            return {"last_loss": 2 * last_loss}

    notes = Notes(lambda s: s["last_loss"].item(), "on_batch_end")
    learn = fitted(Double(), notes)
    assert near(ab(learn), (1.28, 1.92)) and near(learn.recorder.losses, (13.0, 8.79798))
    assert near([loss for _, loss in notes.seen], (26, 2 * 13 * 0.36, 13 * 0.36**2))


def test_last_output_goes_to_the_loss():
    class OneMore(v1.Callback):
        def on_loss_begin(self, last_output, **kwargs):
            return {"last_output": last_output + 1}

    learn = fitted(OneMore())
    assert near(ab(learn), (0.72, 0.72)) and near(learn.recorder.val_losses, [3.2768])


def test_input_and_target_are_replaced():
    class Turn(v1.Callback):
        def on_batch_begin(self, last_input, last_target, **kwargs):
            return {"last_input": -last_input, "last_target": [last_target + 1]}

    assert near(ab(fitted(Turn())), (-0.72, 1.44))


def test_later_callbacks_see_and_override():
    seen = []

    class Later(v1.Callback):
        _order = 1

        def on_backward_end(self, skip_step, **kwargs):
            seen.append(skip_step)
            return {"skip_step": False}

    assert near(ab(fitted(Later(), Answers("on_backward_end", skip_step=True))), (0.72, 1.08)) and seen == [True, True]


def test_stop_epoch_and_stop_training():
    notes = Notes()
    learn = fitted(Answers("on_batch_end", lambda s: s["train"], stop_epoch=True), notes, n_epoch=2)
    assert notes.slots == ["train_begin", *slots_of_an_epoch(1, 1) * 2, "train_end"]
    assert learn.recorder.nb_batches == [1, 1]
    for n_epoch in (5, 2, 1):
        notes = Notes()
        learn = fitted(Answers("on_loss_begin", stop_training=True), notes, n_epoch=n_epoch)
        assert notes.slots == ["train_begin", *slots_of_an_epoch(2, 1), "train_end"]
        assert learn.recorder.last().status == ("done" if n_epoch == 1 else "cancelled")


def test_skip_validate_holds_for_the_fit():
    notes = Notes(lambda s: s["last_metrics"], "on_epoch_end")
    cb = Answers("on_epoch_begin", lambda s: s["epoch"] == 1, skip_validate=True)
    learn = line_learner(cbs=[cb, notes])
    learn.fit(3)
    assert [m != [None] for _, m in notes.seen] == [True, False, False]
    assert [loss is None for loss in learn.recorder.val_losses] == [False, True, True]
    learn.fit(1)
    assert learn.recorder.val_losses[0] is not None


def test_native_callbacks_get_their_events_when_v1_stops():
    seen = []
    cbs = [Answers("on_batch_end", lambda s: s["train"], stop_epoch=True, stop_training=True), noting(seen, order=100)]
    learn = fitted(*cbs, n_epoch=3)
    assert seen.count("after_batch") == 2 and seen.count("after_epoch") == 1 and seen[-2:] == ["after_cancel_fit", "after_fit"]
    assert learn.recorder.last().status == "cancelled"


def test_no_cancel_at_the_end_of_the_last_epoch():
    seen = []
    learn = fitted(Answers("on_epoch_end", stop_training=True), noting(seen))
    assert "after_cancel_fit" not in seen and learn.recorder.last().status == "done"


# --- order, exceptions, life on a learner ---


def test_order_is_stable_and_metrics_come_first():
    calls = []

    def one(name, order):
        cb = v1.Callback()
        cb._order, cb.on_epoch_end = order, lambda last_metrics, **kw: calls.append((name, len(last_metrics)))
        return cb

    fitted(one("b", 0), one("c", 0), one("d", 5), one("a", -5), metrics=[lambda out, y: (out - y).mean()])
    assert calls == [("a", 2), ("b", 2), ("c", 2), ("d", 2)]


def test_any_object_will_do():
    class Plain:
        n = 0

        def on_batch_end(self, train):
            self.n += train

    cb = Plain()
    learn = fitted(cb)
    assert cb.n == 2 and learn.plain is cb
    learn.remove_cb(cb)
    assert not hasattr(learn, "plain") and len(learn.cbs) == 2


def test_the_same_object_in_a_second_fit_and_added_once():
    cb = Notes()
    learn = line_learner()
    learn.fit(1, cbs=cb)
    learn.fit(1, cbs=[cb])
    assert len(cb.seen) == 38 and not hasattr(learn, "notes")
    learn.add_cb(cb).add_cb(cb)
    assert [c.name for c in learn.cbs] == ["train_eval", "recorder", "notes"]
    learn.fit(1)
    assert len(cb.seen) == 57


def test_a_rerun_cell_replaces(capsys):
    class Notes(v1.LearnerCallback):
        def __init__(self, learn, every):
            super().__init__(learn)
            self.every = every

    learn = line_learner()
    learn.add_cbs([Notes(learn, 1), Notes(learn, 1), Notes(learn, 2)])
    assert list(learn.callbacks.names)[2:] == ["notes", "notes_2"] and "replaced" in capsys.readouterr().out
    learn.add_cb(functools.partial(Notes, every=3)).add_cb(functools.partial(Notes, every=3))
    assert len(learn.cbs) == 5


def test_callback_fns():
    made = []

    class Made(v1.LearnerCallback):
        def __init__(self, learn, n=1):
            super().__init__(learn)
            self.n = n
            made.append(self)

    fns = [Made, functools.partial(Made, n=2)]
    learn = line_learner(cbs=fns)
    assert not made
    learn.fit(1)
    learn.fit(1)
    assert [cb.n for cb in made] == [1, 2, 1, 2] and learn.made is made[2] and learn.made_2 is made[3]
    assert learn.made.learn is learn
    learn.remove_cbs(fns)
    assert not hasattr(learn, "made") and not hasattr(learn, "made_2") and len(learn.cbs) == 2
    learn.fit(1, cbs=functools.partial(Made, n=5))
    assert made[-1].n == 5 and learn.made is made[-1], "to be read after the fit"
    learn.add_cb(Made)
    learn.fit(1)
    assert len(learn.remove_cb(Made).cbs) == 2


def test_a_plain_class_is_made_without_a_learner():
    class Bare(v1.Callback):
        def __init__(self):
            self.n = 0

        def on_batch_end(self, **kwargs):
            self.n += 1

    learn = line_learner(cbs=Bare)
    learn.fit(1)
    assert learn.bare.n == 3


def test_learner_callback_reads_from_the_learner():
    class Reader(v1.LearnerCallback):
        def __init__(self, learn):
            super().__init__(learn)
            self.big, self.small, self.secret = 1, 2, 3
            self.exclude.append("secret")
            self.not_min.append("big")

        def on_epoch_end(self, **kwargs):
            self.recorder_seen, self.lr = self.recorder, 5

    learn = line_learner()
    cb = Reader(learn)
    assert cb.get_state() == {"small": 2} and cb.get_state(minimal=False) == {"small": 2, "big": 1}
    learn.fit(1, cbs=cb)
    assert cb.recorder_seen is learn.recorder and cb.model is learn.model and learn.lr == 0.1 and cb.lr == 5
    with pytest.raises(AttributeError, match="nothing_such"):
        cb.nothing_such
    with pytest.raises(AttributeError, match="'a'"):
        cb.a  # not from the model


def test_what_a_learner_callback_does_not_take_from_its_learner():
    learn = line_learner()
    cb = v1.LearnerCallback(learn)
    learn.__own__, learn.mine = 1, 2
    assert cb.mine == 2 and not hasattr(cb, "__own__") and cb.cb_name == "learner_callback"
    with pytest.raises(AttributeError, match="'nothing'") as error:
        cb.nothing
    assert "super" not in str(error.value)
    with pytest.warns(UserWarning, match="model") as warned:
        cb.model = 3
    assert warned[0].filename == __file__ and vars(cb)["model"] == 3


def test_names_keep_their_ending():
    assert v1.ReduceLROnPlateauCallback(line_learner()).cb_name == "reduce_lr_on_plateau_callback"
    learn = fitted(v1.ReduceLROnPlateauCallback)
    assert isinstance(learn.reduce_lr_on_plateau_callback, v1.ReduceLROnPlateauCallback)


def test_what_v1_reads_of_a_learner():
    class Reads(v1.LearnerCallback):
        def on_batch_begin(self, train, **kwargs):
            if train:
                self.learn.opt.lr = 0.05

        def on_train_end(self, **kwargs):
            learn = self.learn
            self.opt_class, self.values = type(learn.opt).__name__, (learn.opt.lr, learn.opt.mom, learn.opt.wd)
            self.loaders, self.path_of = (learn.data.train_dl, learn.data.valid_dl), learn.data.path
            self.others = list(learn.callbacks)

    other, mean = v1.Callback(), lambda out, y: (out - y).abs().mean()
    learn = fitted(other, Reads, n_epoch=2, metrics=cbnb.AvgMetric(mean, name="mae"))
    reads, recorder = learn.reads, learn.recorder
    assert reads.opt_class == "SGD" and reads.values == (0.05, 0, 0) and reads.loaders == (learn.dls.train, learn.dls.valid)
    assert reads.path_of == learn.path and other in reads.others and reads in reads.others
    assert recorder.lrs == [0.05] * 4 and recorder.moms == [0] * 4 and recorder.nb_batches == [2, 2]
    assert len(recorder.losses) == 4 and len(recorder.val_losses) == 2 and [len(m) for m in recorder.metrics] == [1, 1]
    assert recorder.names == ["epoch", "train_loss", "valid_loss", "mae", "time"]
    assert type(learn.opt) is torch.optim.SGD and learn.opt.param_groups[0]["lr"] == 0.1


def test_callbacks_that_come_and_go_in_mid_fit():
    come = Notes()

    class Swap(v1.LearnerCallback):
        def on_epoch_end(self, epoch, **kwargs):
            self.learn.add_cb(come) if epoch == 0 else self.learn.remove_cb(come)

    learn = fitted(Swap, n_epoch=3)
    assert come.slots == slots_of_an_epoch(2, 1)[:-1] + ["epoch_end"] and len(learn.cbs) == 3


@pytest.mark.parametrize("at, epoch", [("before_fit", 0), ("before_epoch", 0), ("before_train", 1), ("after_batch", 1), ("after_epoch", 1)])
def test_a_native_callback_adds_the_first_one_during_a_fit(at, epoch):
    """It is called from the epoch that begins next, with the counters of the fit."""
    late, jumps = Notes(lambda s: (s["epoch"], s["iteration"])), []
    late.jump_to_epoch = jumps.append
    adds = cbnb.Callback(
        **{at: lambda cb: None if late in [getattr(c, "wraps", None) for c in cb.learn.cbs] else cb.learn.add_cb(late) and None}
    )
    learn = line_learner(cbs=[adds])
    learn.fit(3, start_epoch=0)
    assert late.slots == ["train_begin", *slots_of_an_epoch(2, 1) * (3 - epoch), "train_end"]
    assert late.seen[1] == ("epoch_begin", (epoch, 2 * epoch)) and late.seen[-1] == ("train_end", (3, 6)) and not jumps
    assert len(learn.cbs) == len(line_learner().cbs) + 2


def test_a_callback_that_is_added_later_in_a_resumed_fit_does_not_jump():
    late, jumps = Notes(), []
    late.jump_to_epoch = jumps.append
    adds = cbnb.Callback(after_epoch=lambda cb: cb.learn.add_cb(late) if cb.learn.epoch == 1 else None)
    line_learner(cbs=[adds]).fit(3, start_epoch=1)
    assert late.slots == ["train_begin", *slots_of_an_epoch(2, 1), "train_end"] and not jumps


def test_data_of_your_own_stays():
    learn = line_learner()
    learn.data = mine = [1]
    learn.fit(1, cbs=Notes())
    learn.add_cb(Notes())
    assert learn.data is mine
    learn.remove_cb(Notes)
    assert learn.data is mine

    class WithData(cbnb.Learner):
        data = "of the class"

    other = WithData(learn.dls, learn.model, nn.MSELoss(), cbs=Notes())
    assert other.data == "of the class" and "data" not in vars(other)


def test_the_leader_may_leave():
    class Leaves(v1.LearnerCallback):
        def on_epoch_begin(self, **kwargs):
            self.learn.remove_cb(self)

    notes = Notes()
    learn = line_learner()
    learn.add_cbs([Leaves(learn), notes])
    learn.fit(2)
    assert notes.slots == ["train_begin", *slots_of_an_epoch(2, 1) * 2, "train_end"]


def test_mixed_with_native_callbacks_nothing_stays():
    seen, notes = [], Notes()
    before = set(vars(fitted()))
    learn = line_learner()
    learn.fit(1, cbs=[noting(seen), notes, v1.OneCycleScheduler(learn, 0.1)])
    assert len(notes.slots) == 19 and seen.count("after_batch") == 3
    assert set(vars(learn)) - before == {"one_cycle_scheduler"}, "shown since it was made"
    learn.remove_cb("one_cycle_scheduler")
    assert set(vars(learn)) == before and [cb.name for cb in learn.cbs] == ["train_eval", "recorder"]


def test_an_error_in_a_slot():
    cb, ends = v1.Callback(), Notes(lambda s: s["exception"], "on_train_end")
    cb.on_batch_end = lambda **state: 1 / 0
    cb.on_train_end = lambda **state: 1 / 0
    learn = line_learner(cbs=[cb, ends])
    with pytest.raises(ZeroDivisionError) as e:
        learn.fit(1)
    assert ends.seen == [("train_end", e.value)]
    notes = "\n".join(e.value.__notes__)
    assert "in Callback.on_batch_end" in notes and "epoch 0, training batch 0" in notes and "while undoing" in notes
    learn.remove_cb(cb).fit(1)
    assert ends.seen[-1] == ("train_end", False)


# --- CallbackHandler by itself ---


def test_handler_by_itself():
    notes = Notes()
    handler = v1.CallbackHandler([notes], metrics=[lambda out, y: (out - y).abs().mean()])
    assert handler.state_dict == dict(epoch=0, iteration=0, num_batch=0, skip_validate=False) and handler.skip_validate is False
    handler.on_train_begin(1)
    handler.on_epoch_begin()
    x = torch.ones(2)
    assert handler.on_batch_begin(x, x) == (x, x) and handler.on_loss_begin(x) is x
    loss, skip = handler.on_backward_begin(torch.tensor(2.0))
    assert loss == 2 and not skip and not handler.on_backward_end() and not handler.on_step_end() and not handler.on_batch_end(loss)
    handler.on_batch_begin(x, x, train=False)
    handler.on_loss_begin(3 * x)
    handler.on_batch_end(loss)
    assert handler.state_dict["iteration"] == 1
    assert not handler.on_epoch_end(0.5)
    assert handler.state_dict["last_metrics"] == [0.5, 2.0] and handler.state_dict["epoch"] == 1
    handler.on_train_end()
    assert notes.slots == ["train_begin", "epoch_begin", *TRAIN_BATCH, *VALID_BATCH, "epoch_end", "train_end"]


def test_what_a_handler_returns():
    x, other = torch.ones(2), torch.zeros(2)
    flags = dict(
        on_backward_begin="skip_bwd",
        on_backward_end="skip_step",
        on_step_end="skip_zero",
        on_batch_end="stop_epoch",
        on_epoch_end="stop_training",
    )
    cbs = [Answers(slot, **{flag: True}) for slot, flag in flags.items()]
    cbs += [Answers("on_batch_begin", last_input=other, last_target=x), Answers("on_loss_begin", last_output=other)]
    for with_flags in (True, False):
        handler = v1.CallbackHandler(cbs if with_flags else [])
        handler.on_train_begin(1)
        handler.on_epoch_begin()
        assert handler.on_batch_begin(x, other) == ((other, x) if with_flags else (x, other))
        assert handler.on_loss_begin(x) is (other if with_flags else x)
        assert handler.on_backward_begin(torch.tensor(2.0)) == (2, with_flags)
        assert [handler.on_backward_end(), handler.on_step_end(), handler.on_batch_end(None)] == [with_flags] * 3
        assert handler.on_epoch_end(None) is with_flags and handler.state_dict["stop_training"] is with_flags


def test_metrics_are_not_told_of_what_only_training_has():
    notes = Notes()
    handler = v1.CallbackHandler(metrics=notes)
    handler.on_train_begin(1)
    handler.on_epoch_begin()
    for train in (True, False):
        handler.on_batch_begin(None, None, train)
        handler.on_loss_begin(None)
        if train:
            handler.on_backward_begin(torch.tensor(1.0)), handler.on_backward_end(), handler.on_step_end()
        handler.on_batch_end(None)
    handler.on_epoch_end(None)
    assert notes.slots == ["train_begin", "epoch_begin", "batch_begin", "batch_end"]  # no validation loss, no metrics
    handler.on_epoch_end(0.5)
    handler.on_train_end()
    assert notes.slots[4:] == ["epoch_end", "train_end"]


def test_an_object_without_an_order_has_that_of_the_base_class():
    class Plain:
        def on_epoch_end(self, last_metrics):
            return {"last_metrics": [*last_metrics, "plain"]}

    early, late, plain = v1.Callback(), v1.Callback(), Plain()
    early._order, late._order = -0.5, 0.5
    for cb, word in ((early, "early"), (late, "late")):
        cb.on_epoch_end = lambda last_metrics, word=word, **kwargs: {"last_metrics": [*last_metrics, word]}
    handler = v1.CallbackHandler([late, plain, early])
    assert handler.callbacks == [early, plain, late]
    handler.on_train_begin(1)
    handler.on_epoch_begin()
    handler.measured(0.5)
    assert handler.ask_early(0) == [0.5, "early"] and handler.ask_early(0.5) == [0.5, "early", "early", "plain"]
    handler.on_epoch_end(0.5)
    assert handler.state_dict["last_metrics"] == [0.5, "early", "early", "plain", "late"]  # the others follow
    handler.on_epoch_end(0.25)
    assert handler.state_dict["last_metrics"] == [0.25, "early", "plain", "late"]


def test_a_line_or_a_row_of_a_table_is_written(capsys):
    pbars = []

    class Keeps(v1.Callback):
        def on_train_begin(self, pbar, **kwargs):
            pbars.append(pbar)

    with (learn := line_learner()).no_logging():
        learn.fit(1, cbs=Keeps())
    pbars[0].write("ab")
    pbars[0].write(["a", 1], table=True)
    assert capsys.readouterr().out == "ab\na\t1\n"


# --- validate, get_preds, lr_find ---


def test_native_lr_find_puts_v1_callbacks_back():
    class Counts(v1.LearnerCallback):
        n, smoothed = 0, None

        def on_batch_end(self, smooth_loss, **kwargs):
            self.n += 1
            self.smoothed = smooth_loss

    class Once(v1.Callback):
        run_in = ("fit",)
        n = 0

        def on_batch_end(self, **kwargs):
            self.n += 1

    learn = line_learner(8, cbs=[counts := Counts(None), once := Once()])
    learn.fit(1)
    n = counts.n
    assert n == once.n == 9
    found = learn.lr_find(num_it=20, show_plot=False)
    assert len(found.lrs) > 3 and learn.counts is counts and counts.n == once.n == n


def test_clipping_and_accumulation_take_part_in_lr_find():
    learn = line_learner(8, loss_func=nn.MSELoss(reduction="sum"), cbs=functools.partial(v1.AccumulateScheduler, n_step=2))
    found = learn.lr_find(num_it=20, show_plot=False, stop_div=False, end_lr=0.01)
    assert len(found.lrs) == 20 and found.n_batches == 40


def test_validate_inside_a_fit_disturbs_nobody():
    class Looks(v1.LearnerCallback):
        def on_step_end(self, **kwargs):
            self.learn.validate()

    notes = Notes()
    learn = fitted(Looks, notes)
    inner = VALID_BATCH
    batch = [*TRAIN_BATCH[:-1], *inner, "batch_end"]
    assert sorted(notes.slots) == sorted(["train_begin", "epoch_begin", *batch * 2, *VALID_BATCH, "epoch_end", "train_end"])
    assert near(ab(learn), (0.72, 1.08))


# --- defects ---


@pytest.mark.parametrize("slot", ["on_batch_begin", "on_loss_begin", "on_backward_begin"])
def test_V01_skip_bwd_moves_nothing(slot):
    def opt_func(groups, lr):
        return torch.optim.SGD(groups, lr, momentum=0.9, weight_decay=0.1)

    notes = Notes()
    once = Answers(slot, lambda s: s["num_batch"] == 1, skip_bwd=True)
    learn = line_learner(3, cbs=[once, notes, after := Notes(lambda s: ab(learn), "on_step_end")], opt_func=opt_func)
    learn.fit(1)
    weights = [w for _, w in after.seen]
    assert weights[0] == weights[1] != weights[2] and notes.slots.count("backward_end") == notes.slots.count("step_end") == 3


def test_V01_a_callback_may_go_backward_itself():
    class Backward(v1.Callback):
        def on_backward_begin(self, last_loss, **kwargs):
            last_loss.backward()
            return {"skip_bwd": True}

    assert near(ab(fitted(Backward())), (0.72, 1.08))


def accumulated(n, bs=8, opt_func=torch.optim.SGD, valid=True, n_epoch=1, **kwargs):
    batches = line_batches(n, bs)
    dls = cbnb.DataLoaders(batches, *([batches] if valid else []), device="cpu")
    learn = line_learner(dls=dls, loss_func=nn.MSELoss(reduction="sum"), opt_func=opt_func)
    learn.fit(n_epoch, cbs=v1.AccumulateScheduler(learn, **kwargs))
    return ab(learn)


def test_V02_accumulation():
    assert near(accumulated(4, 16, n_step=4), (0.4, 0.6))
    assert near(accumulated(3, n_step=2), (0.72, 1.08)), "validation counted among the samples"
    assert near(accumulated(4, n_step=2, valid=False), (0.72, 1.08)), "NaN: the leftover was divided by 0"
    assert near(accumulated(3, n_step=2, drop_last=True), (0.4, 0.6))

    def opt_func(groups, lr):
        return torch.optim.SGD(groups, lr, momentum=0.9)

    plain = line_learner(2, opt_func=opt_func)
    plain.fit(2)
    assert near(accumulated(4, n_step=2, opt_func=opt_func, n_epoch=2), ab(plain)), "a step with zero gradients"


def test_V02_a_mean_loss_warns():
    with pytest.warns(UserWarning, match="sum"):
        fitted(functools.partial(v1.AccumulateScheduler, n_step=2))


def test_V03_learner_callbacks_leave_and_do_not_hang():
    class Stays(v1.LearnerCallback):
        pass

    learn = line_learner()
    cb = Stays(learn)
    assert learn.stays is cb
    learn.fit(1, cbs=cb)
    assert learn.stays is cb and cb not in learn.cbs and not hasattr(learn, "one_cycle_scheduler")
    learn.add_cb(cb)
    assert learn.stays is cb
    learn.remove_cb(cb)
    assert not hasattr(learn, "stays"), "v1 kept it for ever"
    del learn
    gc.collect()
    assert cb.model is cb.learn.model, "the weak reference was gone"


def test_V03_a_forgotten_constructor():
    class Forgets(v1.LearnerCallback):
        def __init__(self, learn, n):
            self.n = n
            self.not_min.append("n")

        def on_batch_begin(self, **kwargs):
            self.rate = self.opt.lr

    learn = line_learner()
    with pytest.raises(AttributeError, match=r"super\(\).__init__\(learn\)"):
        Forgets(learn, 1).model
    cb = Forgets(learn, 1)
    learn.fit(1, cbs=cb)
    assert cb.rate == 0.1 and cb.get_state() == {"rate": 0.1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), None])
def test_V04_on_train_end_gets_the_exception(error):
    ends = Notes(lambda s: s["exception"], "on_train_end")

    class Raises(v1.Callback):
        def on_step_end(self, iteration, **kwargs):
            if error is not None and iteration == 1:
                raise error

    learn = line_learner(cbs=[Raises(), ends])
    if error is None:
        learn.fit(1)
    else:
        with pytest.raises(type(error)):
            learn.fit(1)
    ((_, told),) = ends.seen
    assert told is False if error is None else isinstance(told, type(error))
    assert type(learn.opt) is torch.optim.SGD and len(learn.cbs) == 4


LRS = """.004 .0104308 .028 .052 .076 .0935692 .1 .0987464 .0950485 .0890916 .0811746 .0716943 .0611262 .0500002 .0388742 .0283061
    .0188258 .0109088 .00495194 .001254"""


def momentum_sgd(groups, lr):
    return torch.optim.SGD(groups, lr, momentum=0.9)


def test_one_cycle_values():
    class Last(v1.LearnerCallback):
        def on_train_end(self, **kwargs):
            self.values = self.opt.lr, self.opt.mom

    learn = line_learner(5, cbs=Last, opt_func=momentum_sgd)
    v1.fit_one_cycle(learn, 4, 0.1)
    assert near(learn.recorder.lrs, [float(lr) for lr in LRS.split()], 1e-6)
    assert near(learn.recorder.moms[:7:6], (0.95, 0.85)) and near(learn.last.values, (4e-7, 0.95), 1e-8)
    v1.fit_one_cycle(learn, 4, 0.1, start_epoch=2)
    assert near(learn.recorder.lrs, [float(lr) for lr in LRS.split()[10:]], 1e-6)
    assert [row["epoch"] for row in learn.recorder.last().epochs] == [2, 3] and learn.recorder.last().status == "done"


def test_native_start_epoch_makes_v1_jump():
    jumps = []

    class Jumps(v1.Callback):
        def jump_to_epoch(self, epoch):
            jumps.append(epoch)

        def on_epoch_begin(self, epoch, **kwargs):
            jumps.append(epoch)

    learn = line_learner(5, opt_func=momentum_sgd)
    learn.fit(4, cbs=[Jumps(), v1.OneCycleScheduler(learn, 0.1)], start_epoch=3)
    assert near(learn.recorder.lrs, [float(lr) for lr in LRS.split()[15:]], 1e-6) and jumps == [3, 3]


def test_a_returned_epoch_resumes():
    notes = Notes(lambda s: (s["epoch"], s["iteration"]), "on_epoch_begin", "on_epoch_end")
    learn = fitted(Answers("on_train_begin", epoch=2), notes, n_epoch=4)
    assert [c for _, c in notes.seen] == [(2, 0), (2, 2), (3, 2), (3, 4)] and len(learn.recorder.nb_batches) == 2
    for wrong in (2, -1, 0.5):
        with pytest.raises(TypeError if wrong == 0.5 else ValueError, match=f"epoch={wrong}: it should be a whole number from 0 to 1"):
            fitted(Answers("on_train_begin", epoch=wrong))
    notes = Notes()
    fitted(Answers("on_train_begin", epoch=1), notes)
    assert notes.slots == ["train_begin", "train_end"]


def test_V05_no_batch_beyond_a_short_cycle():
    notes = Notes()
    learn = line_learner(5, cbs=notes, opt_func=momentum_sgd)
    v1.fit_one_cycle(learn, 4, 0.1, tot_epochs=2)
    assert learn.recorder.nb_batches == [5, 5] and notes.slots.count("epoch_end") == 2


def test_V06_lr_find_leaves_nothing_behind(tmp_path):
    learn = line_learner(8, path=tmp_path)
    (tmp_path / "models").mkdir()
    mine = tmp_path / "models" / "tmp.pth"
    mine.write_text("mine")
    learn.fit(1)
    model, opt, names = copy.deepcopy(learn.model), learn.opt, set(vars(learn))
    v1.lr_find(learn, 1e-6, 1, num_it=30, stop_div=False)
    assert same_bits(model, learn.model) and learn.opt is opt and opt.param_groups[0]["lr"] == 0.1
    assert mine.read_text() == "mine" and len(list(mine.parent.iterdir())) == 1
    assert set(vars(learn)) - names == {"lr_finder_result"}
    lrs = learn.recorder.lrs
    assert len(lrs) == 30 and math.isclose(lrs[0], 1e-6) and math.isclose(lrs[-1], 1), "end_lr was never used"
    assert learn.recorder.val_losses == [None] * 4


@pytest.mark.parametrize(
    "losses, limit",
    [([1], 4), ([3, 1], 4), ([2, 0], 6), ([-1, -2], 4), ([10, -1], 32), ([-2], 4)],  # four times the best, or as far above it
)
def test_V06_when_losses_diverge(losses, limit):
    assert not diverges([*map(float, losses), limit]) and diverges([*map(float, losses), limit + 0.1])


def test_V06_a_sweep_prints_one_line_and_counts_training_alone(capsys):
    class Looks(v1.LearnerCallback):
        def on_step_end(self, **kwargs):
            self.learn.validate()

    learn = line_learner(8, progress=True, cbs=Looks)
    v1.lr_find(learn, 1e-6, 1e-3, num_it=12, stop_div=False)
    assert capsys.readouterr().out == "lr_find is done: learn.recorder.plot() shows it\n"
    assert len(learn.recorder.lrs) == len(learn.lr_finder_result.losses) == 12
    raw = learn.lr_finder_result.raw_losses
    assert sorted(raw, reverse=True) == list(raw) and raw[0] == 13


@pytest.mark.parametrize("make", [lambda learn: v1.OneCycleScheduler(learn, 0.1), lambda learn: phases(learn, 2, 2, start_epoch=1)])
def test_a_schedule_needs_to_know_how_long_an_epoch_is(make):
    learn = line_learner(dls=cbnb.DataLoaders(lambda: iter(line_batches(2)), device="cpu"), opt_func=momentum_sgd)
    with pytest.raises(ValueError, match=r"wrap the loader in Batches\(lambda: loader, n_iter=...\)"):
        learn.fit(2, cbs=make(learn))


def test_V06_negative_losses():
    learn = line_learner(8, loss_func=lambda out, y: nn.functional.mse_loss(out, y) - 100)
    v1.lr_find(learn, end_lr=0.1, num_it=50)
    assert len(learn.recorder.lrs) == 50


def test_V06_divergence_and_nan_stop():
    learn = line_learner(8)
    v1.lr_find(learn, 1e-3, 1e4, num_it=100)
    assert 3 < len(learn.recorder.lrs) < 100
    learn = line_learner(8)
    learn.model.a.data.fill_(math.nan)
    v1.lr_find(learn)
    assert len(learn.recorder.lrs) == 1


def test_V07_validate_and_get_preds_call_all_slots():
    notes = Notes(lambda s: s.get("train"))
    learn = line_learner(cbs=[notes, v1.ShowGraph])
    loss = learn.validate()
    whole = ["train_begin", "epoch_begin", *VALID_BATCH, "epoch_end", "train_end"]
    assert notes.slots == whole and near(loss, [13])
    notes.seen.clear()
    learn.get_preds()
    assert notes.slots == whole and notes.seen[2][1] is False


def test_V07_validate_gives_last_metrics():
    notes = Notes(lambda s: s["last_metrics"], "on_epoch_end")
    learn = line_learner(cbs=notes)
    learn.validate()
    assert near(notes.seen[0][1], [13])


def test_V08_documented_names_work():
    learn = fitted(Answers("on_batch_end", lambda s: s["train"], end_epoch=True, end_training=True), n_epoch=3)
    assert learn.recorder.nb_batches == [1]


@pytest.mark.parametrize("answer", [True, [("stop_epoch", True)], "stop_epoch"])
def test_V09_wrong_answers_say_what_to_return(answer):
    class Wrong(v1.Callback):
        def on_batch_end(self, **kwargs):
            return answer

    with pytest.raises(TypeError, match=r"Wrong\.on_batch_end returned .*return None, or a dict"):
        fitted(Wrong())


def test_V09_unknown_entries_are_named():
    with pytest.raises(ValueError, match=r"Answers\.on_epoch_begin returned the key 'stop_now'"):
        fitted(Answers("on_epoch_begin", stop_now=True))


def test_V09_stop_training_from_on_train_begin():
    notes = Notes()
    fitted(Answers("on_train_begin", stop_training=True), notes, n_epoch=3)
    assert notes.slots == ["train_begin", "train_end"]


def three_valid(*cbs):
    batches = line_batches(3)
    learn = line_learner(dls=cbnb.DataLoaders(batches, batches, device="cpu"), cbs=list(cbs))
    learn.fit(2)
    return learn


def test_V10_stop_epoch_leaves_validation_whole():
    class Short(v1.Callback):
        def on_batch_end(self, num_batch, **kwargs):
            if num_batch >= 1:
                return {"stop_epoch": True}

    notes = Notes(lambda s: s["train"], "on_batch_end")
    with pytest.warns(UserWarning, match="Short returned stop_epoch for a validation batch") as seen:
        learn = three_valid(Short(), notes)
    assert [train for _, train in notes.seen] == [True, True, False, False, False] * 2 and len(seen) == 1
    assert learn.recorder.nb_batches == [2, 2]


@pytest.mark.parametrize("by", ["name", "key"])
def test_V10_a_callback_that_asks_for_train_may_end_validation(by):
    class Named(v1.Callback):
        def on_batch_end(self, train, **kwargs):
            return None if train else {"stop_epoch": True}

    class Keyed(v1.Callback):
        def on_batch_end(self, **kwargs):
            return None if kwargs["train"] else {"stop_epoch": True}

    notes = Notes(lambda s: s["train"], "on_batch_end")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        three_valid(Named() if by == "name" else Keyed(), notes)
    assert [train for _, train in notes.seen] == [True, True, True, False] * 2


def test_V11_the_smoothed_loss_says_so():
    assert "smoothed" in inspect.getdoc(type(line_learner().recorder).losses).lower()


def test_V12_terminate_on_nan(capsys):
    learn = fitted(v1.TerminateOnNaN(), n=5, n_epoch=3, lr=1e30)
    assert len(learn.recorder.nb_batches) == 1 and learn.recorder.val_losses == [None]
    assert re.search(r"^the loss is inf in epoch 0 at batch 1: stopped$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("n, batches", [(1, [1]), (3, [3]), (5, [5]), (6, [5, 1])])
def test_a_fit_may_end_after_some_batches(n, batches):
    learn = fitted(v1.StopAfterNBatches(n), n=5, n_epoch=3)
    assert learn.recorder.nb_batches == batches and learn.recorder.val_losses[-1] is None


def test_V13_methods_get_what_they_accept():
    class Few(v1.Callback):
        def on_train_begin(self):
            pass

        def on_batch_end(self, last_loss, *, num_batch=None):
            assert num_batch is not None
            return {"stop_training": True}

        def on_train_end(self, exception):
            assert exception is False

    assert len(fitted(Few(), n_epoch=3).recorder.nb_batches) == 1


# --- the rest ---


def watched(cls, *fits, **kwargs):
    """A learner after fits of so many epochs, in which these values were watched; None: it was not validated."""

    class Told(cls):
        def get_monitor_value(self):
            return values[len(self.learn.recorder.val_losses) - 1]

    learn = line_learner()
    cb = Told(learn, **kwargs)
    for values in fits:
        learn.fit(len(values), cbs=cb)
    return learn.recorder


VALUES = [5, 4, 3, 3.5, 3.2, 3.4, 1, 2]


@pytest.mark.parametrize(
    "values, settings, n",
    [
        (VALUES, {}, 4),
        (VALUES, dict(patience=1), 5),
        (VALUES, dict(patience=2), 6),
        (VALUES, dict(patience=3), 8),
        (VALUES, dict(mode="max"), 2),
        (VALUES, dict(monitor="accuracy"), 2),
        (VALUES, dict(monitor="error_rate"), 4),
        (VALUES, dict(monitor="accuracy", mode="min"), 4),
        (VALUES, dict(min_delta=1), 2),  # better by as much is no better
        (VALUES, dict(min_delta=0.9), 4),
        ([1, 2, 3.5, 4, 9], dict(mode="max", min_delta=1, patience=1), 5),
        ([1, None, 2], {}, 2),
    ],
)
def test_early_stopping(values, settings, n):
    assert len(watched(v1.EarlyStopping, values, **settings).val_losses) == n


def test_early_stopping_begins_anew():
    assert len(watched(v1.EarlyStopping, [1, 2], [None, 3, 2], patience=1).val_losses) == 3
    assert len(watched(v1.EarlyStopping, [1], [3, 2]).val_losses) == 2


def test_rates_fall_on_a_plateau():
    lrs = watched(v1.ReduceLROnPlateau, [3, 3, 3, 2, 2], factor=0.1, min_lr=0.002).lrs
    assert near(lrs[::2], (0.1, 0.1, 0.01, 0.002, 0.002))
    assert near(watched(v1.ReduceLROnPlateau, [3, 3, 3, 3], patience=1).lrs[::2], (0.1, 0.1, 0.1, 0.02))
    assert near(watched(v1.ReduceLROnPlateau, [3, 3, 3], min_lr=0.5).lrs[::2], (0.1, 0.1, 0.1))  # never higher
    assert near(watched(v1.ReduceLROnPlateau, [3, 3, 2.9, 2.5], min_delta=0.3).lrs[::2], (0.1, 0.1, 0.02, 0.004))


@pytest.mark.parametrize(
    "wrong, words", [(dict(mode="low"), "mode='low'"), (dict(patience=-1), "patience"), (dict(min_delta=-1), "min_delta")]
)
def test_wrong_settings_of_trackers(wrong, words):
    with pytest.raises(ValueError, match=words):
        v1.EarlyStopping(line_learner(), **wrong)


@pytest.mark.parametrize("name, key", [("val_loss", "valid_loss"), ("trn_loss", "train_loss"), ("valid_loss", "valid_loss")])
def test_a_tracker_knows_names_of_v1(name, key):
    seen = []

    class Tells(v1.TrackerCallback):
        def on_epoch_end(self, **kwargs):
            seen.append(self.get_monitor_value())

    learn = line_learner()
    cb = Tells(learn, monitor=name)
    learn.fit(2, cbs=cb)
    assert seen == [row[key] for row in learn.recorder.last().epochs]


def test_trackers_warn_about_unknown_names():
    with pytest.warns(UserWarning, match="'accurracy', which is not a column: the columns are epoch"):
        fitted(functools.partial(v1.EarlyStopping, monitor="accurracy"))


def test_save_model_does_not_load_a_file_of_before(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.save("bestmodel")
    learn.fit(1, cbs=v1.SaveModel(learn, monitor="train_loss", mode="max"), valid_every=1)
    assert near(ab(learn), (0.72, 1.08))
    learn.fit(1, cbs=v1.StopAfterNBatches(1))
    learn.fit(1, cbs=[v1.SaveModel(learn), v1.StopAfterNBatches(1)])
    assert ab(learn)[0] > 1, "a file of an earlier fit was loaded"


def test_which_epochs_are_saved(tmp_path):
    """The training loss falls, so that `max` has the first epoch; that is loaded in the end."""
    learn = line_learner(path=tmp_path)
    learn.fit(3, cbs=v1.SaveModel(learn, monitor="train_loss", mode="max", name="best"))
    assert near(ab(learn), (0.72, 1.08)) and [path.stem for path in (tmp_path / "models").iterdir()] == ["best"]
    learn.fit(2, cbs=v1.SaveModel(learn, every="epoch", name="each"))
    assert sorted(path.stem for path in (tmp_path / "models").iterdir()) == ["best", "each_0", "each_1"]
    with pytest.raises(ValueError, match="every='batch'"):
        v1.SaveModel(learn, every="batch")


def test_the_table_in_a_file(tmp_path):
    learn = line_learner(path=tmp_path / "new")
    log = v1.CSVLogger(learn, "log")
    assert log.path == tmp_path / "new" / "log.csv"
    learn.fit(2, cbs=log, valid_every=2)
    head, first, second = log.path.read_text().splitlines()
    assert head == "epoch,train_loss,valid_loss,time" and re.fullmatch(r"0,10\.66\d*,,00:00", first) and second.startswith("1,4.366336")
    learn.fit(1, cbs=v1.CSVLogger(learn, "log", append=True))
    assert log.path.read_text().splitlines()[:3] == [head, first, second] and len(log.path.read_text().splitlines()) == 4
    learn.fit(1, cbs=v1.CSVLogger(learn, "log"))
    assert len(log.path.read_text().splitlines()) == 2
    learn.fit(1, cbs=(other := v1.CSVLogger(learn, "other", append=True)))
    assert other.path.read_text().splitlines()[0] == head


def test_a_graph_is_shown_once_and_then_updated(monkeypatch):
    shown = []
    handle = type("Handle", (), {"update": lambda self, data, **kwargs: shown.append(("update", data["text/plain"], kwargs["raw"]))})()

    def display(data, *, raw, metadata, display_id):
        shown.append(("display", data["text/plain"], raw and display_id))
        return handle

    monkeypatch.setattr(v1, "shell", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    fitted(v1.ShowGraph, n=5, n_epoch=3)
    told = [("losses of 1 epoch", True), ("losses of 2 epochs", True), ("losses of 3 epochs", True)]
    assert shown == [(kind, *rest) for kind, rest in zip(("display", "update", "update"), told)]
    shown.clear()
    assert fitted(v1.ShowGraph, valid=False).show_graph.fig is None and shown == []


def test_show_graph_and_plots():
    learn = fitted(v1.ShowGraph, n=12, n_epoch=2, lr=0.02)
    assert learn.show_graph.fig is not None
    for plot in (learn.recorder.plot_losses, learn.recorder.plot_lr):
        assert plot(return_fig=True) is not None
    v1.lr_find(learn)
    assert learn.recorder.plot(return_fig=True) is not None


def test_resumed_training_loads_what_was_saved(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.fit(3, cbs=v1.SaveModel(learn, every="epoch"))
    weights = ab(learn)
    other = line_learner(path=tmp_path)
    other.fit(3, cbs=v1.SaveModel(other, every="epoch"), start_epoch=2)
    assert near(ab(other), weights)


def test_clip_before_the_step():
    learn = fitted(functools.partial(v1.GradientClipping, clip=1.0), n=1)
    assert math.isclose(math.hypot(*ab(learn)), 0.1, rel_tol=1e-4)
    for clip in (0, None):
        assert near(ab(fitted(functools.partial(v1.GradientClipping, clip=clip), n=1)), (0.4, 0.6))


def test_a_learner_with_v1_callbacks_can_be_copied():
    learn = fitted(Notes(), v1.ShowGraph)
    other = copy.deepcopy(learn)
    assert other.notes is not learn.notes and other.notes is next(cb.wraps for cb in other.cbs if cb.name == "notes")
    assert isinstance(other.model, Line)


def test_nothing_is_imported_without_a_dialect():
    code = "import sys, cbnb.all; print([m for m in sys.modules if m.startswith('cbnb.dialects') and 'detect' not in m])"
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.strip() == "['cbnb.dialects']"


def test_a_class_may_have_a_name_that_the_learner_needs():
    class OneBatch(v1.Callback):
        pass

    class Model(v1.LearnerCallback):
        pass

    learn = fitted(OneBatch(), Model)
    assert isinstance(learn.model, Line) and isinstance(learn.one_batch_callback, OneBatch)
    assert isinstance(learn.model_callback, Model)
    learn.remove_cbs([OneBatch, Model])
    assert isinstance(learn.model, Line) and not hasattr(learn, "model_callback")


@pytest.mark.parametrize("as_class", [False, True])
def test_the_ends_of_a_fit_may_name_what_they_take(as_class):
    class Ends:
        seen = []

        def on_train_end(self, exception=None):
            self.seen.append(exception)

    class Begins:
        seen = []

        def on_train_begin(self, n_epochs, metrics_names):
            self.seen.append((n_epochs, metrics_names))

    fitted(*((Ends, Begins) if as_class else (Ends(), Begins())))
    assert Ends.seen == [False] and Begins.seen == [(1, [])], "taken for MindSpore's"


def test_mindspore_hears_of_the_step_and_the_epoch_that_v1_ends():
    heard = []

    class Spore:
        def on_train_step_end(self, run_context):
            heard.append(run_context.original_args().cur_step_num)

        def on_train_epoch_end(self, run_context):
            heard.append("epoch")

    fitted(Spore(), Answers("on_batch_end", lambda s: s["num_batch"] == 1, stop_epoch=True, stop_training=True), n=4, n_epoch=3)
    assert heard == [1, 2, "epoch"]


def test_a_decorated_method_asks_for_train():
    def decorated(method):
        @functools.wraps(method)
        def wrapper(self, **kwargs):
            return method(self, **kwargs)

        return wrapper

    class Short(v1.Callback):
        @decorated
        def on_batch_end(self, train, **kwargs):
            return None if train else {"stop_epoch": True}

    notes = Notes(lambda s: s["train"], "on_batch_end")
    three_valid(Short(), notes)
    assert [train for _, train in notes.seen] == [True, True, True, False] * 2


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("progress", [True, False])
def test_columns_of_callbacks(valid, progress, capsys):
    class Counts(v1.LearnerCallback):
        _order = -20

        def on_train_begin(self, **kwargs):
            self.recorder.add_metric_names(["n", "time"])

        def on_epoch_end(self, last_metrics, epoch, **kwargs):
            return v1.add_metrics(last_metrics, [torch.tensor(float(epoch)), 7])

    class Sees(v1.LearnerCallback):
        def on_epoch_end(self, last_metrics, **kwargs):
            self.saw = len(last_metrics), len(self.recorder.val_losses)

    metric = cbnb.AvgMetric(lambda out, y: (out - y).mean(), name="off")
    learn = fitted(Sees, Counts, metrics=metric, valid=valid, progress=progress, n_epoch=2)
    recorder = learn.recorder
    own = ["valid_loss", "off"] if valid else ["valid_loss"]
    assert recorder.names == ["epoch", "train_loss", *own, "n", "time_2", "time"]
    assert [row[-2:] for row in recorder.values] == [[0, 7], [1, 7]] and learn.sees.saw == (4 if valid else 3, 2)
    assert [len(m) for m in recorder.metrics] == ([3, 3] if valid else [])
    assert not progress or "time_2" in capsys.readouterr().out
    if valid:
        learn.validate()
    learn.remove_cb(Counts)
    learn.fit(1)
    assert "n" not in recorder.names and not getattr(recorder, "added_names", ())


@pytest.mark.parametrize("order, value", [(-11, 7), (-10, None), (9, None)])
def test_columns_are_filled_by_those_who_come_before_the_recorder(order, value):
    class Late(v1.LearnerCallback):
        _order = order

        def on_train_begin(self, **kwargs):
            self.recorder.add_metric_names("n")

        def on_epoch_end(self, last_metrics, **kwargs):
            return v1.add_metrics(last_metrics, 7)

    assert fitted(Late).recorder.last().epochs[0].get("n") == value


class Holds(v1.LearnerCallback):
    def __init__(self, learn):
        super().__init__(learn)
        self.n, self.handle = 1, lambda: None
        self.exclude.append("handle")


def test_excluded_attributes_are_not_saved_but_copied(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.add_cb(Holds(learn))
    assert copy.deepcopy(learn).holds.handle is learn.holds.handle
    learn.export("learner.pkl")
    other = cbnb.load_learner(tmp_path / "learner.pkl", trust=True)
    assert other.holds.n == 1 and "handle" not in vars(other.holds) and other.holds.learn is other and other.holds.model is other.model
    other.validate(dl=line_batches(1))
    learn.lr_find(num_it=5, show_plot=False)
    assert learn.holds.handle() is None


def test_plot_prints_and_keeps_its_suggestion(capsys):
    learn = line_learner(8)
    v1.lr_find(learn, 1e-3, 10, num_it=60)
    capsys.readouterr()
    learn.recorder.plot(skip_start=2, skip_end=2, suggestion=True, return_fig=True)
    lrs, losses = learn.recorder.lrs[2:-2], list(learn.recorder.losses)[2:-2]
    slopes = [losses[1] - losses[0], *((b - a) / 2 for a, b in zip(losses, losses[2:])), losses[-1] - losses[-2]]
    steepest, lowest = lrs[slopes.index(min(slopes))], lrs[losses.index(min(losses))]
    assert math.isclose(learn.recorder.min_grad_lr, steepest)
    assert capsys.readouterr().out == f"Min numerical gradient: {steepest:.2E}\nMin loss divided by 10: {lowest / 10:.2E}\n"


def test_V03_hiding_the_model_warns(tmp_path):
    class Hides(v1.LearnerCallback):
        def on_batch_end(self, **kwargs):
            self.model, self.n = None, 1

    learn = line_learner(path=tmp_path)
    cb = Hides(learn)
    with pytest.warns(UserWarning, match=r"shadowing an attribute \(model\)") as seen:
        learn.fit(2, cbs=cb)
    assert len(seen) == 1 and seen[0].filename == __file__ and cb.get_state() == {"model": None, "n": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        v1.fit_one_cycle(learn, 1, callbacks=[v1.ShowGraph, v1.CSVLogger, v1.BnFreeze, v1.EarlyStopping])


def test_one_may_ask_whether_the_optimizer_has_momentum():
    class Asks(v1.LearnerCallback):
        def on_train_begin(self, **kwargs):
            self.has = [hasattr(self.opt, name) for name in ("lr", "wd", "beta")]

    assert fitted(Asks).asks.has == [True, True, False]


# --- what people bring along ---


class RMSE(v1.Callback):
    def on_epoch_begin(self, **kwargs):
        self.total, self.count = 0.0, 0

    def on_batch_end(self, last_output, last_target, **kwargs):
        self.total += (last_output - last_target).square().sum()
        self.count += last_target.numel()

    def on_epoch_end(self, last_metrics, **kwargs):
        return v1.add_metrics(last_metrics, (self.total / self.count).sqrt())


def test_add_metrics_takes_a_number_in_a_tensor():
    """A 0-d tensor is one value, as in nearly every metric of v1; lists and vectors are several."""
    assert v1.add_metrics([0.1], torch.tensor(0.5)) == {"last_metrics": [0.1, torch.tensor(0.5)]}
    assert v1.add_metrics([0.1], [1, 2]) == v1.add_metrics([0.1], torch.tensor([1, 2])) == {"last_metrics": [0.1, 1, 2]}


def test_a_callback_is_a_metric():
    """metrics=[RMSE()] computes over the validation set with a column of its own, in fits, in validate and nested in a fit."""

    class Asks(cbnb.Callback):
        def after_batch(self):
            if self.training:
                nested.append(self.learn.validate()[1])

    nested, mae = [], cbnb.AvgMetric(lambda out, y: (out - y).abs().mean(), name="mae")
    learn = line_learner(metrics=[RMSE(), mae])
    learn.fit(2, cbs=Asks)
    assert learn.recorder.names == ["epoch", "train_loss", "valid_loss", "rmse", "mae", "time"]
    assert all(math.isclose(valid**0.5, rmse, rel_tol=1e-5) for _, valid, rmse, _ in learn.recorder.values)
    assert len(nested) == 4 and nested[1] == pytest.approx(learn.recorder.values[0][2])
    assert learn.validate()[1] == pytest.approx(learn.recorder.values[-1][2])
    assert [m.name for m in learn.metrics] == ["rmse", "mae"]


def test_a_metric_callback_is_told_what_v1_tells_it():
    """`on_train_begin` once a fit, `on_epoch_begin` once an epoch, all slots of validation batches with the state, then the ends."""

    class Counts(v1.Callback):
        name = "counted"

        def __init__(self):
            self.calls = []

        def on_train_begin(self, n_epochs, **kwargs):
            self.calls.append(("train_begin", n_epochs))

        def on_epoch_begin(self, epoch, **kwargs):
            self.calls.append(("epoch_begin", epoch))

        def on_batch_begin(self, last_input, train, **kwargs):
            self.calls.append(("batch_begin", train))

        def on_batch_end(self, last_loss, last_input, iteration, **kwargs):
            self.calls.append(("batch_end", iteration, last_loss.ndim))

        def on_epoch_end(self, last_metrics, epoch, **kwargs):
            self.calls.append(("epoch_end", epoch))
            return v1.add_metrics(last_metrics, [7])

        def on_train_end(self, **kwargs):
            self.calls.append(("train_end",))

    learn = line_learner(metrics=(cb := Counts()))
    for _ in range(2):
        cb.calls.clear()
        learn.fit(2)
        epochs = [[("batch_begin", False), ("batch_end", 2 * (i + 1), 0), ("epoch_end", i)] for i in range(2)]
        assert cb.calls == [("train_begin", 2), ("epoch_begin", 0), *epochs[0], ("epoch_begin", 1), *epochs[1], ("train_end",)]
    assert learn.recorder.names[3] == "counted" and learn.recorder.values[-1][2] == 7


def test_metric_callbacks_of_early_v1_and_wrong_ones():
    """An early one sets `self.metric`; several values or none are an error that names the class and what to return."""

    class Early(v1.Callback):
        def on_epoch_end(self, **kwargs):
            self.metric = 3.0

    assert fitted(metrics=Early()).recorder.values[0][2] == 3.0
    for values in ([], [1, 2]):
        wrong = v1.Callback()
        wrong.on_epoch_end = lambda last_metrics, **kwargs: v1.add_metrics(last_metrics, values)
        with pytest.raises(TypeError, match=rf"Callback.on_epoch_end added {len(values)} values.*add_metrics\(last_metrics, value\)"):
            fitted(metrics=wrong)


class Knows(RMSE, v1.LearnerCallback):
    """A metric that keeps its learner."""


def test_a_learner_with_a_metric_callback_is_copied_and_exported(tmp_path):
    """A metric callback that knows its learner does not drag a second learner into a copy of itself."""

    learn = line_learner(path=tmp_path)
    learn.metrics = [Knows(learn)]
    learn.fit(1)
    new = copy.copy(learn.metrics[0])
    assert new.wraps is not learn.metrics[0].wraps and new.wraps.learn is learn
    learn.export("a.pkl")
    other = cbnb.load_learner(tmp_path / "a.pkl", trust=True)
    assert other.validate(dl=line_batches(1))[1] == pytest.approx(learn.validate(dl=line_batches(1))[1])


def test_a_learner_callback_is_on_its_learner_from_the_start_and_after_the_fit():
    """`learn.early_stopping_callback` is there when it is made and can be read when the fit is over."""
    learn = line_learner()
    stop = v1.EarlyStoppingCallback(learn, patience=1)
    assert learn.early_stopping_callback is stop and stop not in learn.cbs
    learn.fit(2, cbs=stop)
    assert learn.early_stopping_callback is stop and stop.best == min(learn.recorder.val_losses)
    learn.fit(1, cbs=functools.partial(v1.EarlyStopping, monitor="train_loss"))
    assert learn.early_stopping_callback.best == learn.recorder.values[0][0]


def test_a_name_that_a_callback_only_shows_is_free():
    """A callback that is not on the learner keeps no other from its name, and neither copies nor files have it."""

    class Tracker(v1.LearnerCallback):
        pass

    class Model(v1.LearnerCallback):
        pass

    learn = line_learner()
    shown, model = Tracker(learn), learn.model
    Model(learn)
    assert learn.tracker is shown and learn.model is model
    assert not hasattr(copy.deepcopy(learn), "tracker")
    native = cbnb.Tracker()
    learn.add_cb(native)
    assert learn.tracker is native
    Tracker(learn)
    assert learn.tracker is native
    learn.remove_cb(native)
    assert not hasattr(learn, "tracker")
    Tracker(learn)
    learn.remove_cb(Tracker)
    assert not hasattr(learn, "tracker")


def test_the_recorder_is_a_base_class():
    """`class SaveBestModel(Recorder)` with slots of its own reads what the learner's recorder has recorded."""

    class SaveBestModel(v1.Recorder):
        def __init__(self, learn, name="best_model"):
            super().__init__(learn)
            self.name, self.best, self.ended = name, None, []

        def on_train_begin(self, **kwargs):
            self.add_metric_names(["twice"])

        def on_epoch_end(self, last_metrics, **kwargs):
            super().on_epoch_end(last_metrics=last_metrics, **kwargs)
            self.best = min(last_metrics[0], self.best or math.inf)
            return v1.add_metrics(last_metrics, 2 * last_metrics[0])

        def on_train_end(self, **kwargs):
            self.ended = [len(self.losses), self.losses[-1].item(), self.val_losses, self.lrs, self.names, self.nb_batches]

    SaveBestModel._order = -11
    learn = fitted(functools.partial(SaveBestModel, name="mine"), n_epoch=2)
    cb, recorder = learn.save_best_model, learn.recorder
    assert isinstance(cb, v1.LearnerCallback) and cb.name == "mine" and cb.best == recorder.val_losses[-1]
    assert cb.ended == [4, pytest.approx(recorder.losses[-1]), recorder.val_losses, recorder.lrs, recorder.names, [2, 2]]
    assert recorder.names[-2] == "twice" and cb.loss_func is learn.loss_func


def test_losses_are_tensors_for_callbacks_of_v1():
    """`recorder.losses[-1].item()`, `.cpu()` and `torch.isnan` work in slots; after the fit the recorder is its own again."""

    class Reads(v1.LearnerCallback):
        def on_batch_end(self, train, **kwargs):
            if train:
                last = self.learn.recorder.losses[-1]
                self.last = last.cpu().item() if not torch.isnan(last) else None

    learn = fitted(Reads)
    assert learn.reads.last == pytest.approx(learn.recorder.losses[-1])
    assert type(learn.recorder) is cbnb.Recorder and isinstance(learn.recorder.losses[-1], float)


def test_keeping_the_learners_own_object_is_no_shadow():
    """`self.opt = self.learn.opt` and `self.metrics = {}`, which v1's own callbacks do, warn of nothing."""

    class OwnOpt(v1.LearnerCallback):
        def on_train_begin(self, **kwargs):
            self.opt, self.model, self.recorder = self.learn.opt, self.learn.model, self.learn.recorder

        def on_epoch_begin(self, **kwargs):
            self.metrics = {}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(OwnOpt)
        learn = line_learner()
        learn.fit(1, cbs=OwnOpt(learn))


def test_plot_shows_the_last_fit_where_there_was_no_sweep(capsys):
    """`recorder.plot()` after a fit draws the losses over its rates, as v1 does; before any fit it says what is missing."""
    learn = line_learner(8)
    with pytest.raises(ValueError, match="nothing to plot: call learn.lr_find.* or learn.fit"):
        learn.recorder.plot()
    learn.fit_one_cycle(2, 0.1)
    fig = learn.recorder.plot(skip_start=2, skip_end=1, return_fig=True)
    assert fig.axes[0].get_title("left") == "Loss over learning rate in the last fit"  # it was called a learning rate finder
    x, y = fig.axes[0].lines[0].get_data()
    assert list(x) == learn.recorder.lrs[2:-1] and list(y) == pytest.approx(learn.recorder.losses[2:-1])
    learn.recorder.plot(2, 2, suggestion=True, return_fig=True)
    assert "Min numerical gradient" in capsys.readouterr().out


def phases(learn, *lengths, **kwargs):
    one = v1.TrainingPhase(lengths[0]).schedule_hp("lr", 0.1).schedule_hp("mom", 0.95)
    two = v1.TrainingPhase(lengths[1]).schedule_hp("lr", 0.1, anneal=v1.annealing_cos).schedule_hp("mom", (0.95, 0.85))
    return v1.GeneralScheduler(learn, [one, two], **kwargs)


def test_flat_then_cosine_by_phases():
    """`GeneralScheduler` with two `TrainingPhase`s gives the rates and momenta worked out by hand, and goes on where it should."""
    learn = line_learner(5, opt_func=momentum_sgd)
    learn.fit(4, cbs=phases(learn, 10, 10))
    want = [0.1] * 10 + [0.05 * (1 + math.cos(math.pi * k / 10)) for k in range(10)]
    assert near(learn.recorder.lrs, want, 1e-9)
    assert near(learn.recorder.moms, [0.95] * 10 + [0.95 - 0.01 * k for k in range(10)], 1e-9)
    resumed = line_learner(5, opt_func=momentum_sgd)
    resumed.fit(4, cbs=phases(resumed, 10, 10, start_epoch=3))
    assert near(resumed.recorder.lrs, want[15:], 1e-9)
    short = line_learner(5, opt_func=momentum_sgd)
    short.fit(4, cbs=phases(short, 3, 4))
    assert short.recorder.nb_batches == [5, 2], "the schedule ends in the second epoch"
    whole = line_learner(5, opt_func=momentum_sgd)
    whole.fit(4, cbs=phases(whole, 5, 5))
    assert whole.recorder.nb_batches == [5, 5] and len(whole.recorder.val_losses) == 2, "and here with it"


def test_phases_with_pairs_lists_and_other_annealings():
    """A pair is a straight line, a list has one value per group, a phase of length 0 is left out, a wrong one refused."""

    def rates(phase, **kwargs):
        learn = line_learner(4, splitter=lambda m: [[m.a], [m.b]], **kwargs)
        seen = []
        note = cbnb.Callback(before_batch=lambda cb: seen.append([g["lr"] for g in cb.opt.param_groups]) if cb.training else None)
        learn.fit(1, cbs=[note, v1.GeneralScheduler(learn, [v1.TrainingPhase(0), phase])])
        return seen

    assert near([hi for _, hi in rates(v1.TrainingPhase(4).schedule_hp("lr", (0.1, 0.3)))], (0.1, 0.15, 0.2, 0.25))
    assert rates(v1.TrainingPhase(4).schedule_hp("lr", [0.1, 0.2])) == [[0.1, 0.2]] * 4
    fading = rates(v1.TrainingPhase(4).schedule_hp("lr", torch.tensor([0.1, 0.2]), v1.annealing_linear))
    assert near(fading[1], (0.075, 0.15)) and near(fading[3], (0.025, 0.05))
    assert v1.annealing_poly(2)(1.0, 0.0, 0.5) == pytest.approx(0.25) and v1.annealing_exp(1.0, 0.01, 0.5) == pytest.approx(0.1)
    for wrong in (lambda: v1.TrainingPhase(1.5), lambda: v1.GeneralScheduler(line_learner(), [v1.TrainingPhase(0)])):
        with pytest.raises((TypeError, ValueError), match="length"):
            wrong()


def test_set_stat_of_the_optimizer():
    """`opt.set_stat` sets a hyper-parameter by v1's names, for all groups or one for each."""

    class Sets(v1.LearnerCallback):
        def on_batch_begin(self, **kwargs):
            self.opt.set_stat("lr", 0.3)
            self.opt.set_stat("momentum", 0.7)
            self.opt.set_stat("wd", [0.01])
            group = self.opt.param_groups[0]
            self.values = group["lr"], group["momentum"], group["weight_decay"]

    assert fitted(Sets, opt_func=momentum_sgd).sets.values == (0.3, 0.7, 0.01)


# --- the learner of v1 ---


def v1_learner(**kwargs):
    batches = line_batches(2)
    dls = cbnb.DataLoaders(batches, batches[:1], device="cpu")
    learn = v1.Learner(dls, Line(), torch.optim.SGD, nn.MSELoss(), **kwargs)
    return learn.remove_cb(cbnb.ProgressCallback)


def test_a_script_of_v1_keeps_its_calls(tmp_path, capsys):
    """callback_fns=, callbacks=, max_lr=, learn.data, purge= and the order of the arguments are those of v1."""
    one, two, three = Notes(), Notes(), Notes()
    made = []

    class Made(v1.LearnerCallback):
        def on_train_begin(self, **kwargs):
            made.append(self.learn.data.train_dl)

    learn = v1_learner(callback_fns=[Made], callbacks=[one], metrics=[RMSE()], path=tmp_path, silent=True)
    assert learn.data.train_dl is learn.dls.train and learn.data.path == tmp_path
    learn.fit(1, 0.1, callbacks=[two])
    assert near(ab(learn), (0.72, 1.08)) and capsys.readouterr().out == ""
    learn.fit_one_cycle(2, max_lr=0.1, callbacks=three)
    assert learn.recorder.lrs[0] == pytest.approx(0.1 / 25) and max(learn.recorder.lrs) == pytest.approx(0.1)
    assert (
        made == [learn.dls.train] * 2
        and (one.slots.count("train_begin"), len(two.slots)) == (2, 19)
        and three.slots.count("epoch_end") == 2
    )
    learn.save("a")
    assert learn.load("a", purge=True) is learn
    learn.lr_find(num_it=10)
    learn.recorder.plot(0, 0, return_fig=True)
    assert learn.recorder.names[3] == "rmse" and learn.validate(learn.data.valid_dl)[1] == pytest.approx(learn.validate()[1])


def test_the_default_rate_of_v1():
    """`fit(1)` trains at 0.003, and the groups before the last one at a tenth of it."""
    learn = v1_learner()
    groups = [[learn.model.a], [learn.model.b]]
    learn = v1.Learner(learn.dls, learn.model, torch.optim.SGD, nn.MSELoss(), layer_groups=groups)
    seen = []
    learn.fit(1, callbacks=cbnb.Callback(after_fit=lambda cb: seen.extend(g["lr"] for g in cb.opt.param_groups)))
    assert near(seen, (0.0003, 0.003), 1e-9)


def test_arguments_of_v1_that_mean_something_else_are_refused():
    """true_wd=False, bn_wd=False and remove_module=True name what to do; unknown ones are refused as by any learner."""
    for wrong, words in ((dict(true_wd=False), "torch.optim.Adam"), (dict(bn_wd=False), "group of their own")):
        with pytest.raises(ValueError, match=words):
            v1_learner(**wrong)
    with pytest.raises(ValueError, match="remove_module=True is not supported: .*removeprefix"):
        v1_learner().load("a", remove_module=True)
    with pytest.raises(TypeError, match="no_such"):
        v1_learner(no_such=1)


def test_other_arguments_of_the_learner_of_v1():
    """add_time, train_bn, metrics for one evaluation, and clip_grad."""
    learn = v1_learner(add_time=False)
    learn.fit(1, 0.1)
    assert learn.recorder.names == ["epoch", "train_loss", "valid_loss"]
    assert len(learn.validate(metrics=[RMSE()])) == 2 and len(learn.validate()) == 1
    learn.clip_grad(0.5)
    learn.fit(1, 0.1)
    assert learn.gradient_clipping.clip == 0.5
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    for train_bn in (True, False):
        learn = v1.Learner(
            [(torch.ones(4, 1), torch.ones(4, 1))], net, torch.optim.SGD, nn.MSELoss(), train_bn=train_bn, layer_groups=[net[0], net[1]]
        )
        learn.freeze()
        assert net[0].weight.requires_grad is train_bn and net[1].weight.requires_grad
        learn.unfreeze()


def test_frozen_batch_norm_keeps_its_statistics():
    frozen, trained, bare = nn.BatchNorm1d(1), nn.BatchNorm1d(1), nn.BatchNorm1d(1, affine=False)
    frozen.requires_grad_(False)
    net = nn.Sequential(frozen, trained, bare, nn.Linear(1, 1))
    x = torch.tensor([[1.0], [3.0]])
    learn = line_learner(dls=cbnb.DataLoaders([(x, x)] * 2, device="cpu"), model=net, cbs=v1.BnFreeze)
    learn.fit(2)
    assert [int(layer.num_batches_tracked) for layer in (frozen, trained, bare)] == [0, 4, 4]


def test_freezing_may_keep_batch_norm_or_not():
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))
    learn = v1.Learner([(torch.ones(4, 1), torch.ones(4, 1))], net, torch.optim.SGD, nn.MSELoss(), layer_groups=[net[0], net[1]])
    for train_bn in (False, None, True):
        learn.freeze_to(1, train_bn)
        assert net[0].weight.requires_grad is (train_bn is not False)


def test_a_recorder_of_v1_comes_before_other_callbacks():
    calls = []

    class Records(v1.Recorder):
        def on_epoch_end(self, **kwargs):
            calls.append("recorder")

    def one(order):
        cb = v1.Callback()
        cb._order, cb.on_epoch_end = order, lambda **kwargs: calls.append(order)
        return cb

    fitted(one(-9), one(0), Records, one(-11))
    assert calls == [-11, "recorder", -9, 0]


def test_a_learner_of_v1_is_copied_and_exported(tmp_path):
    """Groups and silence are no closures, so that the learner can be pickled."""
    learn = v1_learner(silent=True, path=tmp_path)
    learn = v1.Learner(learn.dls, learn.model, torch.optim.SGD, nn.MSELoss(), layer_groups=[learn.model], silent=True, path=tmp_path)
    learn.fit(1)
    learn.export("a.pkl")
    other = cbnb.load_learner(tmp_path / "a.pkl", trust=True)
    assert isinstance(other, v1.Learner) and isinstance(copy.deepcopy(learn), v1.Learner)


class Mine(v1.LearnerCallback):
    """Any callback of v1."""


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: line_learner(callback_fns=[Mine]), r"Learner has no argument 'callback_fns': pass the classes and partials as cbs="),
        (lambda: line_learner(callbacks=[Mine]), "did you mean cbs="),
        (lambda: line_learner().fit(1, callbacks=[Mine]), "did you mean cbs="),
        (lambda: line_learner().fit_one_cycle(1, max_lr=0.1), "did you mean lr_max="),
        (lambda: line_learner().load("a", purge=True), "nothing to purge"),
        (lambda: line_learner(wd_bn_bias=True), "group of their own"),
        (lambda: line_learner(train_bn=False), "freeze_to"),
        (lambda: line_learner(layer_groups=[]), "splitter="),
    ],
)
def test_the_learner_names_what_to_use_for_arguments_of_other_versions(call, words):
    """An argument of fastai v1 or v2 that the learner does not have is an error that says which one does the same."""
    with pytest.raises(TypeError, match=words):
        call()


# --- what old scripts also do ---


class Shown(v1.LearnerCallback):
    """Becomes learn.shown."""


def test_a_new_callback_does_not_replace_what_you_assigned(tmp_path):
    """`learn.shown = 5` stays, also in a copy, and also after an earlier callback was shown there."""
    learn = line_learner()
    Shown(learn)
    learn.shown = 5
    Shown(learn)
    assert learn.shown == 5 and copy.deepcopy(learn).shown == 5
    learn.remove_cb("shown")
    assert learn.shown == 5


def test_a_callback_of_another_class_replaces_a_shown_one_with_a_warning():
    class Other(v1.LearnerCallback):
        """Another class of the same snake name."""

    Other.__name__ = "Shown"
    learn = line_learner()
    first = Shown(learn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Shown(learn)
    assert learn.shown is again is not first, "the same class, as in v1"
    with pytest.warns(UserWarning, match=r"learn\.shown was a Shown, and is now a .*Other: to keep both"):
        other = Other(learn)
    assert learn.shown is other


def test_callback_fns_is_a_list_that_can_be_changed():
    """`learn.callback_fns.append(f)` of a script of v1 adds a factory, and `+=`, `remove` and assignment work."""
    clip, two = functools.partial(v1.GradientClipping, clip=0.5), functools.partial(Shown)
    learn = v1_learner(callback_fns=[Shown], callbacks=[Notes()])
    learn.callback_fns.append(clip)
    assert list(learn.callback_fns) == [Shown, clip]
    learn.fit(1, 0.1)
    assert math.isclose(math.hypot(*ab(learn)), 2 * 0.1 * 0.5, rel_tol=1e-4), "two updates of norm 0.5, by hand"
    learn.callback_fns.remove(Shown)
    learn.callback_fns += [two]
    assert list(learn.callback_fns) == [clip, two] and learn.callback_fns[-1] is two
    learn.callback_fns.insert(0, Shown)
    assert list(learn.callback_fns) == [Shown, clip, two]
    learn.callback_fns = Shown
    assert list(learn.callback_fns) == [Shown] and len([cb for cb in learn.callbacks if isinstance(cb, Notes)]) == 1


class Added(v1.LearnerCallback):
    """Adds a column in the second way of v1."""

    _order = -20

    def on_train_begin(self, **kwargs):
        self.learn.recorder.add_metric_names(["twice", "thrice"])

    def on_epoch_end(self, epoch, **kwargs):
        self.learn.recorder.add_metrics([2 * epoch, 3 * epoch])


def test_values_may_be_added_through_the_recorder():
    def mae(out, y):
        return (out - y).abs().mean()

    learn = fitted(Added, n_epoch=3, metrics=mae)
    assert learn.recorder.names == ["epoch", "train_loss", "valid_loss", "mae", "twice", "thrice", "time"]
    assert [row[1:] for row in learn.recorder.metrics] == [[0, 0], [2, 3], [4, 6]], "mae, then the columns"


def test_values_that_come_after_the_row_are_said():
    class Late(Added):
        _order = 0

    with pytest.warns(UserWarning, match=r"add_metrics\(\[0, 0\]\) was called after the row of the epoch.*_order = -20"):
        learn = fitted(Late)
    assert learn.recorder.names[3:5] == ["twice", "thrice"] and learn.recorder.values[0][-2:] == [None, None]


def test_values_without_a_column_are_an_error():
    class NoColumn(v1.LearnerCallback):
        def on_epoch_end(self, **kwargs):
            self.learn.recorder.add_metrics([1])

    with pytest.raises(ValueError, match=r"add_metrics\(\[1\]\): the table has no column for this value: call recorder.add_metric_names"):
        fitted(NoColumn)


@pytest.mark.parametrize("slot", v1.SLOTS)
def test_a_slot_that_returns_false_changes_nothing(slot):
    cb = v1.Callback()
    setattr(cb, slot, lambda **state: False)
    assert near(ab(fitted(cb)), (0.72, 1.08))


def test_types_and_small_functions_of_v1():
    """A class that imports everything from v1 finds the names of its annotations."""
    names = {}
    exec("from cbnb.dialects.fastai_v1 import *", names)
    exec(
        "class Foreign(LearnerCallback):\n"
        "    def __init__(self, learn, by: Floats = None, of: ListOrItem = None, path: PathOrStr = '.', f: LossFunction = None):\n"
        "        super().__init__(learn)\n"
        "        self.by = listify(ifnone(by, 2.))\n"
        "    def on_backward_begin(self, last_loss: Rank0Tensor, smooth_loss: TensorOrNumber, **kwargs: Any):\n"
        "        return {'last_loss': last_loss*self.by[0]}\n"
        "    def on_epoch_end(self, last_metrics: MetricsList, **kwargs): assert is_listy(last_metrics)\n",
        names | dict(Any=object),
        names,
    )
    assert near(ab(fitted(names["Foreign"])), (1.28, 1.92)), "a doubled loss, as in fixture B of the facts"
    listify = v1.listify
    assert listify() == [] and listify("ab") == ["ab"] and listify((1, 2)) == [1, 2] and listify(torch.tensor(1.0)) == [1]
    assert listify(1, 3) == listify([1], "abc") == [1, 1, 1]
    with pytest.raises(ValueError, match=r"p=\[1, 2\] has 2 items, but q=3 asks for 3: pass 3 items"):
        listify([1, 2], 3)


# --- files that cannot be written ---


def test_rows_that_cannot_be_written_do_not_end_a_fit_of_v1(tmp_path, monkeypatch):
    """The rows wait, one warning is issued, and they are written as soon as there is room."""
    from cbnb.callbacks import csv_logger

    learn, full, write = line_learner(path=tmp_path), [True], v1.append_rows

    def append(file, rows, new):
        if full[0]:
            raise OSError(28, "No space left on device")
        write(file, rows, new)

    monkeypatch.setattr(v1, "append_rows", append)
    room = cbnb.Callback(before_epoch=lambda cb: full.__setitem__(0, cb.epoch < 2))
    with pytest.warns(UserWarning) as seen:
        learn.fit(4, cbs=[functools.partial(v1.CSVLogger), room])
    assert [str(w.message).partition(" (")[2][:23] for w in seen] == ["No space left on device"]
    rows = (tmp_path / "history.csv").read_text().splitlines()
    assert [row.partition(",")[0] for row in rows] == ["epoch", "0", "1", "2", "3"]
    assert csv_logger.append_rows is write


def test_weights_that_cannot_be_saved_do_not_end_a_fit_of_v1(tmp_path, monkeypatch):
    """One warning; the weights loaded at the end are those of the file that was written."""
    learn, save, weights = line_learner(path=tmp_path), cbnb.Learner.save, []

    def fails(self, *args, **kwargs):
        weights.append(ab(self))
        if len(weights) != 2:
            raise OSError(28, "No space left on device")
        return save(self, *args, **kwargs)

    monkeypatch.setattr(cbnb.Learner, "save", fails)
    with pytest.warns(UserWarning, match="the weights could not be saved .*No space left.*the fit continues") as seen:
        learn.fit(4, cbs=functools.partial(v1.SaveModelCallback))
    assert len(seen) == 1 and len(weights) == 4
    assert ab(learn) == weights[1], "epoch 1 is the last that could be saved"
    assert learn.save_model_callback.best == learn.recorder.val_losses[1]


def test_a_folder_that_cannot_be_written_is_an_error_of_v1_before_the_first_epoch(tmp_path):
    (tmp_path / "models").write_text("a file")
    (tmp_path / "history.csv").mkdir()
    for cb in (v1.SaveModelCallback, v1.CSVLogger):
        learn = line_learner(path=tmp_path)
        with pytest.raises(OSError):
            learn.fit(1, cbs=functools.partial(cb))
        assert ab(learn) == (0, 0)


class Sets(v1.LearnerCallback):
    def __init__(self, **hypers):
        super().__init__(None)
        self.hypers = hypers

    def on_train_begin(self, **kwargs):
        for name, value in self.hypers.items():
            setattr(self.opt, name, value)
        if not self.hypers:
            self.opt.beta


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (TypeError, "3 is not a phase", lambda: v1.GeneralScheduler(None, [3])),
        (ValueError, "vals=(1, 2, 3) should be a value, or a tuple of two", lambda: v1.TrainingPhase(3).schedule_hp("lr", (1, 2, 3))),
        (TypeError, "monitor=None should be the heading of a column", lambda: v1.TrackerCallback(None, None)),
        (TypeError, "start_lr='a' is not a number", lambda: v1.LRFinder(None, "a")),
        (TypeError, "lr='x' is not a number: set one", lambda: fitted(Sets(lr="x"))),
        (AttributeError, "SGD has no beta (", lambda: fitted(Sets()).opt),
        (
            ValueError,
            "the key 'stop_epoch', which is not in the state of the loop at this point: return it from on_batch_begin",
            lambda: fitted(Answers("on_train_begin", stop_epoch=True)),
        ),
    ],
)
def test_wrong_values_are_named(kind, words, call):
    with pytest.raises(kind, match=re.escape(words)):
        call()


def test_a_result_of_lr_find_is_a_rate_of_the_optimizer():
    class Sets(v1.LearnerCallback):
        def on_train_begin(self, **kwargs):
            self.learn.opt.lr = SimpleNamespace(lr=0.25, reason="")

        def on_train_end(self, **kwargs):
            self.rate = self.learn.opt.lr

    learn = line_learner()
    learn.fit(1, cbs=(cb := Sets(learn)))
    assert cb.rate == 0.25
