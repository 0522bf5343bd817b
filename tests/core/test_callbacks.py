"""How a callback reads and writes, when it is called, and how it gets in and out."""

import copy
import dataclasses
import functools
import html
import inspect
import pathlib
import pickle
import types
import warnings

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb import callback as base
from cbnb import events
from cbnb.basics import settings as configured
from cbnb.basics.arguments import hinted, nearest, unknown_argument
from cbnb.callback_list import class_of, made_by
from cbnb.callbacks import twins
from cbnb.display.loop import loop_lines
from cbnb.hints import check_method
from helpers import EVENTS, IN_BATCH, RUN_EVENTS, Line, RaiseIn, ab, line_learner, listener, noting


def test_reading_goes_to_the_learner_and_no_further():
    """One hop, never to the model (D18)."""
    learn = line_learner(cbs=cbnb.Callback(), default_cbs=False)
    cb = learn.callback
    assert cb.lr == 0.1 and cb.model is learn.model and cb.validate.__self__ is learn
    assert cb.x is learn.x
    with pytest.raises(AttributeError, match=r"Callback has no attribute 'a'.*self\.learn\.model\.a"):
        cb.a
    with pytest.raises(AttributeError, match="no attribute 'a'"):
        learn.a
    assert not hasattr(cb, "a") and not hasattr(learn, "b") and not hasattr(cb, "__nothing__")
    assert "a" not in dir(learn) and "lr" in dir(cb) and "train_eval" in dir(learn)


def test_a_lonely_callback_says_so():
    with pytest.raises(AttributeError, match="not attached to a learner"):
        cbnb.Callback().loss


def test_writing_stays_on_the_callback():
    class Writes(cbnb.Callback):
        def before_batch(self):
            self.mine = self.iter

    learn = line_learner(cbs=Writes)
    learn.fit(1)
    assert learn.writes.mine == 0 and not hasattr(learn, "mine")


class Hides(cbnb.Callback):
    def before_batch(self):
        self.loss = 0.0  # here

    def after_batch(self):
        self.loss += 1


def test_shadowing_warns_once_at_the_line_that_does_it():
    """D20: the warning pointed into the library, and came with each assignment."""
    learn = line_learner(4, cbs=Hides)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(3)
    assert len(seen) == 1
    lines, first = inspect.getsourcelines(Hides.before_batch)
    assert seen[0].filename == __file__ and seen[0].lineno == first + next(i for i, line in enumerate(lines) if "# here" in line)
    text = str(seen[0].message)
    assert "You are shadowing an attribute (loss) that exists in the learner" in text and "`self.learn.loss`" in text and "Hides" in text
    assert learn.hides.loss == 1.0


def test_what_has_been_assigned_once_can_still_switch_a_callback_off():
    class Counts(cbnb.Callback):
        def __init__(self):
            self.run, self.n = True, 0

        def before_batch(self):
            self.n += 1
            if self.n == 3:
                self.run = False

    learn = line_learner(5, cbs=Counts)
    learn.fit(1)
    assert learn.counts.n == 3
    learn.counts.run = True
    learn.fit(1)
    assert learn.counts.n == 3 + 5 + 1  # those of validation, too


def test_names_set_before_the_learner_was_known_warn_when_the_callback_is_added():
    """D20: values made in __init__ or in the class hid the learner's for ever, and nobody said so."""

    class InInit(cbnb.Callback):
        def __init__(self):
            self.loss = 3.0

    class InClass(cbnb.Callback):
        epoch = 7

    learn = line_learner()
    for cls, name in ((InInit, "loss"), (InClass, "epoch")):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            learn.add_cb(cls)  # the line
        assert len(seen) == 1 and f"({name})" in str(seen[0].message) and seen[0].filename == __file__
        assert "learn.add_cb(cls)" in open(__file__).read().splitlines()[seen[0].lineno - 1]


def test_no_warning_for_names_of_the_model_or_its_own():
    """D20: a model with a parameter `a` made every callback's `a` a warning."""

    class Quiet(cbnb.Callback):
        def before_fit(self):
            self.a, self.weight, self.anything = 1, 2, 3
            self.order, self.run_valid = 5, False
            self.learn.lr = self.learn.lr

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn = line_learner(cbs=Quiet)
        learn.fit(1)
    assert (learn.quiet.a, ab(learn)[0]) == (1, pytest.approx(0.72))


def test_a_property_that_fails_shows_its_own_error():
    """D19: the error was about the learner lacking the property."""

    class Broken(cbnb.Callback):
        @property
        def ratio(self):
            return self.learn.no_such_thing

    learn = line_learner(cbs=Broken)
    with pytest.raises(AttributeError, match="no_such_thing"):
        learn.broken.ratio

    class WithProperty(cbnb.Learner):
        @property
        def special(self):
            return self.model.no_such_layer

    learn = WithProperty(line_learner().dls, Line(), nn.MSELoss(), cbs=cbnb.Callback)
    for owner in (learn, learn.callback):
        with pytest.raises(AttributeError, match="no_such_layer"):
            owner.special
    assert not hasattr(learn.callback, "special")


def test_event_methods_of_the_model_or_the_learner_are_never_called():
    """D18: a model with a method `before_batch` had it called by every callback."""
    called = []

    class Talkative(Line):
        def before_batch(self):
            called.append("model")

    class TalkativeLearner(cbnb.Learner):
        def after_batch(self):
            called.append("learner")

    learn = TalkativeLearner(line_learner().dls, Talkative(), nn.MSELoss(), cbs=cbnb.Callback)
    learn.fit(1)
    learn.callback("before_batch"), learn.callback("hello")
    assert learn.callback.after_batch() is None and learn.callback.method("after_batch") is None
    assert called == []


def test_calling_a_callback():
    class Has(cbnb.Callback):
        def call_me(self):
            return f"maybe {self.who}"

    cb = Has(after_fit=lambda self: self.learn.who)
    assert cb("before_fit") is None
    cb.learn = types.SimpleNamespace(who="you")
    assert cb("call_me") == "maybe you" and cb("after_fit") == "you" and cb("before_epoch") is None
    cb.run = False
    assert cb("call_me") is None


def test_functions_as_events():
    """They are bound, come before methods of the same name, and may be partials."""
    said = []

    class Own(cbnb.Callback):
        def before_fit(self):
            said.append("method")

    own = Own(
        before_fit=lambda self: said.append(type(self).__name__),
        after_fit=functools.partial(lambda word, self: said.append(word), "done"),
        before_epoch=None,
    )
    line_learner(cbs=own).fit(1)
    assert said == ["Own", "done"]


@pytest.mark.parametrize(
    "class_name, name",
    [
        ("CSVLogger", "csv_logger"),
        ("LRFinder", "lr_finder"),
        ("MCDropoutCallback", "mc_dropout"),
        ("ReduceLROnPlateau", "reduce_lr_on_plateau"),
        ("EMACallback", "ema"),
        ("HTTPServerCallback", "http_server"),
        ("TerminateOnNaNCallback", "terminate_on_na_n"),
        ("FooCallbackCallback", "foo_callback"),
        ("CallbackFoo", "callback_foo"),
    ],
)
def test_names(class_name, name):
    cb = type(class_name, (cbnb.Callback,), {})()
    learn = line_learner(cbs=cb)
    assert cb.name == name and getattr(learn, name) is cb and str(cb) == class_name and repr(cb) == f"{class_name}()"


@pytest.mark.parametrize("off", ["run_train", "run_valid"])
def test_switches_hold_for_all_events_of_a_batch(off):
    """D21: after_cancel_step came through."""
    seen = []
    cb = listener(lambda cb, name: seen.append((name, cb.learn.training)), **{off: False})
    learn = line_learner(cbs=[RaiseIn("before_step", cbnb.CancelStepException), cb])
    seen.clear()
    learn.fit(2)
    training = off == "run_valid"
    assert {t for name, t in seen if name in IN_BATCH} == {training}
    assert (("after_cancel_step", True) in seen) == training
    others = {name for name, _ in seen if name not in IN_BATCH}
    assert others == {name for name in RUN_EVENTS if name not in IN_BATCH and "cancel" not in name}


def test_an_attribute_called_training_does_not_defeat_the_switches():
    """D21."""
    seen = []

    class Mine(cbnb.Callback):
        run_train = False
        training = False

        def before_batch(self):
            seen.append(self.learn.training)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line_learner(cbs=Mine).fit(1)
    assert seen == [False]


@pytest.mark.parametrize(
    "purpose, run",
    [
        ("fit", lambda learn: learn.fit(1)),
        ("validate", lambda learn: learn.validate()),
        ("preds", lambda learn: learn.get_preds()),
        ("lr_find", lambda learn: learn.lr_find(num_it=10, show_plot=False)),
    ],
)
def test_run_in(purpose, run):
    wanted, unwanted = [], []
    others = tuple({"fit", "validate", "preds", "lr_find"} - {purpose})
    learn = line_learner(cbs=[noting(wanted, run_in=(purpose,)), noting(unwanted, run_in=others)])
    wanted.clear(), unwanted.clear()
    run(learn)
    assert wanted[0] == "before_fit" and wanted[-1] == "after_fit" and unwanted == []


def test_switches_may_change_in_the_middle_of_a_run():
    seen = []
    cb = noting(seen)

    class Switch(cbnb.Callback):
        def after_loss(self):
            if self.training:
                cb.run_train = self.learn.iter == 1

    learn = line_learner(3, valid=False, cbs=[cb, Switch])
    seen.clear()
    learn.fit(1)
    rest = "before_backward after_backward before_step after_step after_batch".split()
    # off from the first after_loss on, where the switch comes before it; on after the second; off again in the third
    assert seen[3:-3] == ["before_batch", "after_pred", *rest, "before_batch", "after_pred"]


def test_order_is_stable_and_may_change_at_run_time():
    said = []

    def speaker(word, order=0):
        cb = cbnb.Callback(before_batch=lambda self: said.append(word), after_pred=lambda self: said.append(word.upper()))
        cb.order = order
        return cb

    first, second, third = speaker("a", 5), speaker("b", 5), speaker("c", -0.5)
    learn = line_learner(1, valid=False, cbs=[first, second, third])
    learn.fit(1)
    assert said == ["c", "a", "b", "C", "A", "B"]
    assert [cb for cb in learn.ordered_cbs("before_batch") if cb in (first, second, third)] == [third, first, second]
    said.clear()
    learn.fit(1, cbs=cbnb.Callback(before_batch=lambda self: setattr(third, "order", 9)))
    assert said == ["c", "a", "b", "A", "B", "C"]


def test_callbacks_added_and_removed_during_an_event():
    """D17: one removed by an earlier one was still called, with no learner."""
    said = []

    class Later(cbnb.Callback):
        order = 5

        def before_batch(self):
            said.append(("later", self.learn.iter))

    class Newcomer(cbnb.Callback):
        order = 7

        def before_batch(self):
            said.append(("newcomer before_batch", self.learn.iter))

        def after_pred(self):
            said.append(("newcomer after_pred", self.learn.iter))

    class Changes(cbnb.Callback):
        def before_batch(self):
            if self.learn.training and self.learn.iter == 1:
                self.learn.remove_cb(Later)
                self.learn.add_cb(Newcomer)

    learn = line_learner(3, valid=False, cbs=[Later, Changes])
    learn.fit(1)
    assert said == [("later", 0), ("newcomer after_pred", 1), ("newcomer before_batch", 2), ("newcomer after_pred", 2)]


class Keeper(cbnb.Callback):
    def __init__(self, file="1"):
        self.file = file


class SpecialKeeper(Keeper):
    pass


def test_two_callbacks_of_one_class():
    """D17: removing one of them took the name from the other."""
    one, two, three = Keeper("1"), Keeper("2"), Keeper("3")
    learn = line_learner(cbs=[one, two, three])
    assert (learn.keeper, learn.keeper_2, learn.keeper_3) == (one, two, three)
    learn.remove_cb(two)
    assert (learn.keeper, learn.keeper_3) == (one, three) and not hasattr(learn, "keeper_2") and two.learn is None
    learn.remove_cb(one)
    assert not hasattr(learn, "keeper") and learn.keeper_3 is three
    learn.add_cb(one)
    assert learn.keeper is one


def test_removing_by_class_removes_subclasses_and_nothing_else():
    learn = line_learner(cbs=[Keeper("1"), SpecialKeeper("2"), Hides])
    learn.remove_cb(Keeper)
    assert [type(cb) for cb in learn.cbs] == [cbnb.TrainEvalCallback, cbnb.Recorder, Hides] and hasattr(learn, "recorder")


def test_removing_one_that_is_not_in_changes_nothing():
    """D17: it deleted the name of the member."""
    mine = Keeper()
    learn = line_learner(cbs=mine)
    learn.remove_cb(Keeper()).remove_cb(SpecialKeeper)
    assert learn.keeper is mine and mine in learn.cbs


def test_temporary_callbacks_by_class_leave_permanent_ones_alone():
    """D17: all instances of the class were removed at the end of the fit."""
    mine = Keeper("mine")
    learn = line_learner(cbs=mine)
    with learn.added_cbs([Keeper, SpecialKeeper("x")]):
        assert len(learn.cbs) == 5 and learn.keeper is mine
    assert learn.cbs == (learn.train_eval, learn.recorder, mine) and learn.keeper is mine
    learn.fit(1, cbs=Keeper)
    assert learn.keeper is mine


def test_a_temporary_recorder_leaves_the_permanent_one():
    """D17: the learner was left without a recorder attribute."""
    learn = line_learner()
    mine = learn.recorder
    rows, second = [], cbnb.Recorder(train_metrics=True, add_time=False)
    learn.logger = rows.append
    with pytest.warns(UserWarning, match="second Recorder only records"):
        learn.fit(1, cbs=second)
    assert learn.recorder is mine and mine in learn.cbs
    assert len(rows) == 1 == len(second.history[0].epochs)  # each row was shown twice, the second time under the headings of the first
    learn.fit(1)
    assert len(mine.history) == 2


@pytest.mark.parametrize("settings", [{}, dict(add_time=False)])
def test_a_temporary_callback_with_the_settings_of_a_permanent_one_is_one_more(settings):
    learn = line_learner(cbs=cbnb.Recorder(**settings))
    mine = learn.recorder
    with pytest.warns(UserWarning, match="second Recorder only records"):
        learn.fit(1, cbs=cbnb.Recorder(**settings))
    assert learn.recorder is mine and learn.cbs.count(mine) == 1 and len(learn.cbs) == 2


def test_a_generator_of_callbacks_is_read_once():
    """D17: it was exhausted on entry, so that the callbacks stayed for ever."""
    learn = line_learner()
    before = learn.cbs
    learn.fit(1, cbs=(cb for cb in [Keeper("1"), Keeper("2")]))
    with learn.added_cbs(cb for cb in [Keeper("1")]):
        assert len(learn.cbs) == len(before) + 1
    with learn.removed_cbs(cb for cb in [before[1]]):
        assert learn.cbs == before[:1]
    assert learn.cbs == before


def test_temporary_callbacks_that_are_permanent_already_stay():
    mine = Keeper()
    learn = line_learner(cbs=mine)
    learn.fit(1, cbs=mine)
    assert learn.keeper is mine and learn.cbs.count(mine) == 1
    with learn.added_cbs([mine, mine]):
        assert learn.cbs.count(mine) == 1
    assert learn.keeper is mine


def test_an_instance_given_twice_is_removed_whole():
    """D17: it stayed in the list without a learner."""
    cb = Keeper()
    learn = line_learner()
    learn.fit(1, cbs=[cb, cb])
    assert cb not in learn.cbs and cb.learn is None
    learn.add_cb(cb).add_cb(cb).remove_cb(cb)
    assert cb not in learn.cbs and cb.learn is None


def test_added_cbs_after_an_error():
    learn = line_learner()
    before = learn.cbs
    with pytest.raises(KeyError):
        with learn.added_cbs([Keeper("1"), Keeper("2")]):
            raise KeyError
    assert learn.cbs == before
    with pytest.raises(TypeError):  # the second is no callback: the first must not stay
        learn.fit(1, cbs=[Keeper("1"), 3])
    assert learn.cbs == before and not learn.running
    with pytest.raises(TypeError):
        with learn.added_cbs([Keeper("1"), 3]):
            pass
    assert learn.cbs == before


def test_removed_callbacks_come_back_as_they_were():
    """D17: a class gave a fresh instance, and the order among equals changed."""
    one, two, three = Keeper("1"), Keeper("2"), Keeper("3")
    learn = line_learner(cbs=[one, two, three])
    two.state = "kept"
    with learn.removed_cbs(two) as same:
        assert same is learn and two not in learn.cbs and not hasattr(learn, "keeper_2")
    assert learn.cbs[2:] == (one, two, three) and learn.keeper_2 is two and two.state == "kept"
    with pytest.raises(KeyError):
        with learn.removed_cbs(Keeper):
            assert len(learn.cbs) == 2
            raise KeyError
    assert learn.cbs[2:] == (one, two, three) and learn.keeper is one
    with learn.removed_cbs([Keeper("not in"), SpecialKeeper]):
        pass
    assert learn.cbs[2:] == (one, two, three)


def test_removed_callbacks_come_back_to_their_place_among_changes():
    one, two, new = Keeper("1"), Keeper("2"), Keeper("new")
    learn = line_learner(cbs=[one, two])
    with learn.removed_cbs([one]):
        learn.add_cb(new)
    assert len(learn.cbs) == 5 and {id(cb) for cb in learn.callbacks.names.values()} == {id(cb) for cb in learn.cbs}
    for cb in (new, one, two):
        learn.remove_cb(cb)
    assert len(learn.cbs) == 2


@pytest.mark.parametrize(
    "class_name",
    ["FitCallback", "ModelCallback", "XCallback", "YCallback", "LossCallback", "DlsCallback", "TrainingCallback", "LrFindCallback"],
)
def test_names_that_the_learner_needs_are_refused(class_name):
    """D17: learn.fit or learn.model was replaced."""
    learn = line_learner()
    fit, model = learn.fit, learn.model
    cls = type(class_name, (cbnb.Callback,), {})
    for add in (lambda: learn.add_cb(cls), lambda: learn.fit(1, cbs=cls()), lambda: line_learner(cbs=cls)):
        with pytest.raises(ValueError, match=rf"{class_name}.*the learner already has: give it another name"):
            add()
    assert learn.fit == fit and learn.model is model and len(learn.cbs) == 2


def test_an_instance_on_two_learners_belongs_to_the_last():
    """D17: it stayed in both lists; then the first lost it without a word."""
    cb = Keeper()
    one = line_learner(cbs=cb)
    with pytest.warns(UserWarning, match=r"Keeper was a callback of another learner.*create one for each") as warned:
        two = line_learner(cbs=cb)
    assert len(warned) == 1
    assert cb not in one.cbs and cb in two.cbs and cb.learn is two and not hasattr(one, "keeper")


@pytest.mark.parametrize("wrong", [3, "Recorder", nn.Linear, object(), lambda self: None])
def test_what_is_no_callback(wrong):
    with pytest.raises(
        TypeError, match="is not a callback.*instance or a subclass of Callback|function, not a callback.*Callback.after_batch=f"
    ):
        line_learner().add_cb(wrong)
    with pytest.raises(TypeError, match="not a callback"):
        line_learner(cbs=[wrong])


# Re-running cells


class Tally(cbnb.Callback):
    """Has settings and a memory."""

    def __init__(self, every=2):
        self.every, self.n = every, 0

    def after_step(self):
        self.n += 1
        if self.n % self.every == 0:
            self.learn.model.a.data += 0.1


def test_a_cell_that_adds_and_fits_may_be_run_again(capsys):
    """A twice-added callback ran twice, and one that was used before did not start fresh."""
    learn, fresh = line_learner(), line_learner()
    for _ in range(3):
        learn.model.load_state_dict(Line().state_dict())
        fresh.model.load_state_dict(Line().state_dict())
        learn.add_cb(Tally(every=2))
        learn.fit(1)
        fresh.fit(1, cbs=Tally(every=2))
        assert [type(cb) for cb in learn.cbs].count(Tally) == 1 and learn.tally.n == 2
        assert ab(learn) == ab(fresh)
    assert capsys.readouterr().out.count("replaced") == 2
    learn.add_cb(Tally(every=3))
    assert [cb.every for cb in learn.cbs if isinstance(cb, Tally)] == [2, 3] and learn.tally_2.every == 3


def test_a_replaced_callback_keeps_its_place_and_name():
    learn = line_learner(cbs=[Keeper("1"), Keeper("2"), Hides])
    new = Keeper("1")
    learn.add_cb(new)
    assert [type(cb).__name__ for cb in learn.cbs[2:]] == ["Keeper", "Keeper", "Hides"]
    assert learn.cbs[2] is new and learn.keeper is new and learn.keeper_2.file == "2"


CELL = """
class Double(Callback):
    def __init__(self, factor=1): self.factor = factor
    def after_loss(self):
        if self.learn.training: self.learn.loss_grad = {factor} * self.factor * self.loss_grad

def distance(pred, y): return {scale} * (pred - y).abs().mean()
def loss_of_mine(pred, y): return {scale} * ((pred - y) ** 2).mean()
"""


def run_cell(space, **values):
    exec(CELL.format(**values), space)


def test_a_class_defined_again_is_the_same_class(capsys):
    """Looking up goes by qualified name: the old instance is found by the new class."""
    space = {"Callback": cbnb.Callback, "__name__": "__main__"}
    run_cell(space, factor=2, scale=1)
    learn = line_learner(cbs=space["Double"](), metrics=space["distance"], loss_func=space["loss_of_mine"])
    learn.fit(1)
    assert ab(learn)[0] == pytest.approx(2 * (1 - 0.6**2))
    old = learn.double
    run_cell(space, factor=1, scale=2)
    learn.add_cb(space["Double"]())  # the same settings: the new one takes its place
    assert len(learn.cbs) == 3 and learn.double is not old and type(learn.double) is space["Double"]
    learn.metrics, learn.loss_func = space["distance"], space["loss_of_mine"]
    learn.model.load_state_dict(Line().state_dict())
    learn.fit(1)
    assert ab(learn)[0] == pytest.approx(2 * (1 - 0.6**2))  # now the loss is doubled instead
    assert learn.recorder.values[-1][1:] == [pytest.approx(2 * v) for v in ((2 - 1.28) ** 2 + (3 - 1.92) ** 2, max(0.72, 1.08))]
    run_cell(space, factor=3, scale=3)
    learn.remove_cb(space["Double"])
    assert [type(cb).__name__ for cb in learn.cbs] == ["TrainEvalCallback", "Recorder"]
    with learn.removed_cbs(space["Double"]):
        pass


def test_a_subclass_is_found_by_its_base_defined_again():
    space = {"Callback": cbnb.Callback, "__name__": "__main__"}
    run_cell(space, factor=2, scale=1)
    learn = line_learner(cbs=type("Mine", (space["Double"],), {})())
    run_cell(space, factor=3, scale=1)
    learn.remove_cb(space["Double"])
    assert len(learn.cbs) == 2


def test_callbacks_of_lambdas_are_told_apart_by_what_they_do():
    learn = line_learner()
    for _ in range(3):
        learn.add_cb(cbnb.Callback(after_fit=lambda self: 1))
        learn.add_cb(cbnb.Callback(after_fit=lambda self: 2))
        learn.add_cb(cbnb.Callback(after_epoch=lambda self: 1))
    assert len(learn.cbs) == 2 + 3


def test_settings_hold_when_callbacks_change_what_they_were_given():
    """They are compared as they were when the callback was added."""

    class Collects(cbnb.Callback):
        def __init__(self, into, rate):
            self.into, self.rate = into, rate

        def after_batch(self):
            self.into.append(1)
            self.rate += 1

    learn = line_learner()
    for _ in range(3):
        learn.add_cb(Collects([], torch.tensor(1.0)))
        learn.fit(1)
    assert [type(cb) for cb in learn.cbs].count(Collects) == 1


def test_show_training_loop(capsys):
    learn = line_learner(cbs=[Hides, noting([])])
    learn.show_training_loop()
    out = capsys.readouterr().out
    assert all(name in out for name in EVENTS if name != "after_create")
    assert "before_batch  <- Hides, Callback" in out and "before_epoch  <- Recorder, Callback" in out
    order = [
        out.index(name) for name in ("before_backward", "loss_grad.backward", "after_backward", "opt.step", "after_step", "opt.zero_grad")
    ]
    assert order == sorted(order)


def test_a_setter_is_asked_each_time():
    """A descriptor that keeps its value under its own name was passed over from the second assignment on."""

    class Positive:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, obj, cls=None):
            return self if obj is None else obj.__dict__[self.name]

        def __set__(self, obj, value):
            if value <= 0:
                raise ValueError(f"{self.name}={value} should be above 0")
            obj.__dict__[self.name] = value

    class Decaying(cbnb.Callback):
        rate = Positive()

        def __init__(self):
            self.rate = 1

    class More(Decaying):
        pass

    for cb in (Decaying(), More()):
        with pytest.raises(ValueError, match="rate=-1"):
            cb.rate = -1
        cb.rate = 2
        assert cb.rate == 2


# What is shown of a callback, and of a learner


def test_a_repr_has_the_settings_and_the_printed_name_has_not():
    """Both were the bare name of the class."""
    learn = line_learner(cbs=[cbnb.EarlyStopping(patience=3), cbnb.GradientClip])
    assert repr(learn.early_stopping) == "EarlyStopping(monitor='valid_loss', patience=3)"
    learn.early_stopping.patience = 5
    assert repr(learn.early_stopping) == "EarlyStopping(monitor='valid_loss', patience=5)"
    assert f"{learn.gradient_clip}" == "GradientClip" and repr(learn.gradient_clip) == "GradientClip(max_norm=1.0)"
    assert repr(cbnb.SaveModel(fname="a/b.pth", comp=max)) == "SaveModel(monitor='valid_loss', comp=max, fname='a/b')"


def test_a_repr_is_short_and_has_no_address():
    class Holds(cbnb.Callback):
        def __init__(self, tensor, func=None, many=(), net=None):
            self.tensor, self.func, self.many, self.net = tensor, func, many, net

    text = repr(Holds(torch.ones(30, 2), lambda: 3, list(range(1000)), nn.Linear(2, 2)))
    assert "tensor=Tensor 30x2, func=<lambda>" in text and "net=Linear" in text and "0x" not in text.replace("30x2", "") and len(text) < 150
    assert "0x" not in repr(Holds([object()]))


def test_a_learner_shows_what_it_trains_with():
    """A line at the prompt, and a table in a notebook."""
    learn = line_learner(metrics=cbnb.accuracy, wd=0.5)
    assert repr(learn) == "Learner(Line, 2 parameters, SGD, cpu; 0 epochs trained)"
    page = learn._repr_html_()
    for text in (
        "Line, 2 parameters",
        "MSELoss",
        "SGD",
        "lr=0.1",
        "wd=0.5",
        "accuracy",
        html.escape(repr(learn.dls)),
        "TrainEvalCallback()",
        "0 epochs",
    ):
        assert text in page
    learn.metrics = None
    learn.fit(2)
    assert repr(learn) == "Learner(Line, 2 parameters, SGD, cpu; 2 epochs trained)"
    page = learn._repr_html_()
    assert "2 epochs, train_loss " in page and ", valid_loss " in page and "metrics" not in page
    assert "Line" in repr(cbnb.Learner(learn.dls, Line(), nn.MSELoss(), default_cbs=False))


def test_completion_offers_what_a_person_may_call():
    """`learn.recorder.<TAB>` offered 135 names, those of the learner among them."""
    learn = line_learner()
    learn.fit(1)
    names = set(dir(learn.recorder))
    assert {"plot_losses", "plot_lr", "plot_metrics", "values", "losses", "history", "log", "metric_names"} < names and len(names) < 35
    assert not names & {"fit", "before_fit", "model"} and all(hasattr(learn.recorder, n) for n in names if n != "min_grad_lr")
    names = set(dir(learn))
    assert {"fit", "lr_find", "recorder", "train_eval", "model"} < names
    assert not [n for n in names if n.startswith("_")] and "to_dls_device" not in names


def test_the_callbacks_of_a_learner_are_a_tuple():
    """A list that is made anew at each reading would take another callback in silence, and no event would reach it"""
    learn = line_learner(cbs=cbnb.GradientClip())
    assert learn.cbs == (learn.train_eval, learn.recorder, learn.gradient_clip)
    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'append'"):
        learn.cbs.append(cbnb.Callback())
    with pytest.raises(AttributeError, match="no setter"):
        learn.cbs = [cbnb.Callback()]


# Callbacks written for another library


def test_an_event_with_an_argument_is_refused_when_the_class_is_made():
    """It failed in the first fit: missing 1 required positional argument: 'learn'."""
    words = r"Old.before_fit\(self, learn\) would fail, because events are called without arguments: remove learn, and read the learner from self.learn"
    with pytest.raises(TypeError, match=words):

        class Old(cbnb.Callback):
            def before_fit(self, learn):
                pass

    with pytest.raises(TypeError, match=r"after_loss\(self, loss\)"):
        cbnb.Callback(after_loss=lambda self, loss: None)

    class Fine(cbnb.Callback):
        def before_fit(self, learn=None, *args, **kwargs):
            self.seen = True

        @staticmethod
        def after_fit():
            pass

    learn = line_learner(cbs=Fine)
    learn.fit(1)
    assert learn.fine.seen


def test_a_callback_that_is_lent_for_a_fit_leaves_its_learner_with_a_warning():
    """`a` lost its callback without a word."""
    clip = cbnb.GradientClip(1.0)
    a = line_learner(cbs=clip)
    with pytest.warns(UserWarning, match="GradientClip was a callback of another learner") as warned:
        line_learner().fit(1, cbs=clip)
    assert warned[0].filename == __file__ and clip not in a.cbs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            a.fit(1, cbs=clip)
        a.add_cb(clip).add_cb(clip).remove_cb(clip)


def test_a_callback_may_ask_for_the_parameters():
    """As those of fastai do: "Look has no attribute 'parameters'"."""

    class Look(cbnb.Callback):
        def before_step(self):
            self.found = list(self.parameters())

    learn = line_learner(cbs=Look)
    learn.fit(1)
    assert [id(p) for p in learn.look.found] == [id(p) for p in learn.model.parameters()]


# What is said, and the parts that say it

LOOP = """
before_fit
  for epoch in range(n_epoch):
    before_epoch
      before_train
        for xb, yb in dls.train:
          before_batch
            pred = model(*xb)
            after_pred
            loss_grad = loss_func(pred, *yb)
            after_loss
            before_backward
              loss_grad.backward()
            after_cancel_backward  (only if cancelled)
            after_backward
            before_step
              opt.step()
            after_cancel_step  (only if cancelled)
            after_step
            opt.zero_grad()
          after_cancel_batch  (only if cancelled)
          after_batch
      after_cancel_train  (only if cancelled)
      after_train
      before_validate
        for xb, yb in dls.valid:
          before_batch
            pred = model(*xb)
            after_pred
            loss_grad = loss_func(pred, *yb)
            after_loss
          after_cancel_batch  (only if cancelled)
          after_batch
      after_cancel_validate  (only if cancelled)
      after_validate
    after_cancel_epoch  (only if cancelled)
    after_epoch
after_cancel_fit  (only if cancelled)
after_fit
"""


def test_the_printed_loop(capsys):
    learn = line_learner(default_cbs=False, cbs=Hides)
    learn.show_training_loop()
    out = capsys.readouterr().out
    assert out.count("  <- Hides") == 4 and "          before_batch  <- Hides\n            pred" in out
    assert out.replace("  <- TrainEvalCallback", "").replace("  <- Hides", "") == LOOP.lstrip()
    assert list(loop_lines(events.STEP, lambda event: ["A", "B"] if event == "after_step" else [], 1)) == [
        "  before_step",
        "    opt.step()",
        "  after_cancel_step  (only if cancelled)",
        "  after_step  <- A, B",
    ]
    assert next(loop_lines(events.STEP)) == "before_step"


@pytest.mark.parametrize(
    "name, words",
    [
        ("after_bach", "; did you mean 'after_batch'?"),
        ("zzz", "; the events are after_create, before_fit, "),
        ("epoch_end", "; did you mean 'after_epoch'?"),
        ("on_train_begin", "; did you mean 'before_fit'?"),
        ("on_train_batch_end", "; did you mean 'after_batch'?"),
        ("on_train_epoch_end", "; did you mean 'after_epoch'?"),
        ("on_train_epoch_start", "; did you mean 'before_train'?"),
        ("on_validation_end", "; did you mean 'after_validate'?"),
        ("on_eval_begin", "; did you mean 'before_validate'?"),
        ("on_test_end", "; the events are "),
        ("on_init_start", "; the events are "),
        ("on_sanity_check_start", "; the events are "),
        ("pred_begin", "; the events are "),
        ("on_loss_begin", "; the events are "),
    ],
)
def test_an_unknown_event_is_told_with_one_that_is_like_it(name, words):
    with pytest.raises(AttributeError, match=f"no event is called '{name}'{words.replace('?', '.')}"):
        getattr(cbnb.event, name)
    assert cbnb.event.after_fit == "after_fit"


def test_the_known_name_that_is_most_like_another():
    assert nearest("moniter", ["comp", "monitor", "moni"]) == "monitor"
    assert nearest("ab", ["abcd", "xy"]) == "abcd" and nearest("ab", ["abcd"], cutoff=0.7) is None and nearest("ab", ["abcde"]) is None


@pytest.mark.parametrize(
    "name, known, words",
    [
        ("epochs", ["n_epoch", "lr"], "did you mean n_epoch=?"),
        ("max_lr", ["end_lr", "lr"], "did you mean lr=?"),
        ("device", ["lr"], "pass it to the loaders, as in DataLoaders(train, valid, device=...)"),
        ("device", ["device_", "device"], "did you mean device=?"),
        ("validation_data", ["lr"], "pass it to the loaders, as in DataLoaders(train, valid)"),
        ("patience", ["lr"], "add the callback EarlyStopping"),
        ("callback_fns", ["cbs"], "pass the classes and partials as cbs="),
        ("optimizer", ["opt_func", "optimized"], "did you mean opt_func=?"),
        ("momentums", ["lr", "momentum"], "did you mean momentum=?"),
        ("zzz", ["lr", "wd"], "its arguments are lr, wd"),
    ],
)
def test_an_unknown_argument_is_told_with_the_one_that_is_meant(name, known, words):
    assert unknown_argument("fit", name, known).startswith(f"fit has no argument {name!r}: {words}")


def test_a_hint_names_the_function_or_the_class_and_leaves_other_errors_alone():
    class Made:
        @hinted
        def __init__(self, size=1):
            pass

        @hinted
        def grow(self, size=1):
            return len(size)

    with pytest.raises(TypeError, match="^Made has no argument 'sise': did you mean size=") as caught:
        Made(sise=2)
    assert caught.value.__cause__ is None
    with pytest.raises(TypeError, match="^grow has no argument 'zzz': its arguments are size$"):
        Made().grow(zzz=2)
    with pytest.raises(TypeError, match="has no len"):
        Made().grow(size=2)
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but 3 were given"):
        Made().grow(1, 2)
    assert Made().grow("abc") == 3 and Made.grow.__name__ == "grow"


def inner(n):
    return lambda x, y=n: n + x


class Slotted:
    __slots__ = ("a",)


SAME = dict(
    numbers=lambda: [1, 2.5, None, "a", b"a", slice(1, 2)],
    nested=lambda: dict(a=[1, (2, {3, 4})], b=dict(c=1)),
    tensor=lambda: torch.arange(3.0),
    function=lambda: inner(1),
    partial=lambda: functools.partial(inner, 1, y=2),
    method=lambda: Keeper("a").method,
    object=lambda: Keeper(["a"]),
    type=lambda: Keeper,
    code=lambda: inner.__code__,
    later=lambda: lambda: undefined_yet,  # noqa: F821
)
OTHER = dict(
    numbers=lambda: [1, 2.5, None, "a", b"a", slice(1, 3)],
    nested=lambda: dict(a=[1, (2, {3, 5})], b=dict(c=1)),
    tensor=lambda: torch.arange(3.0) + 1,
    function=lambda: inner(2),
    partial=lambda: functools.partial(inner, 1, y=3),
    method=lambda: Keeper("a").__init__,
    object=lambda: Keeper(["b"]),
    type=lambda: SpecialKeeper,
    code=lambda: run_cell.__code__,
    later=lambda: lambda: defined_otherwise,  # noqa: F821
)


@pytest.mark.parametrize("kind", SAME)
def test_settings_are_compared_by_what_they_hold(kind):
    one, again, other = configured.comparable(SAME[kind]()), configured.comparable(SAME[kind]()), configured.comparable(OTHER[kind]())
    assert one == again and one != other


def test_what_cannot_be_looked_into_is_equal_to_itself_only():
    big, slotted, deep = torch.zeros(5000), Slotted(), [[[[[[1]]]]]]
    for value in (big, slotted, deep, (i for i in ())):
        assert configured.comparable(value) == configured.comparable(value)
    assert configured.comparable(torch.zeros(5000)) != configured.comparable(big) and configured.comparable(
        torch.zeros(4999)
    ) == configured.comparable(torch.zeros(4999))
    assert configured.comparable(Slotted()) != configured.comparable(slotted)
    assert configured.comparable([[[[[1]]]]]) != configured.comparable([[[[[1]]]]]) and configured.comparable(
        [[[[1]]]]
    ) == configured.comparable([[[[1]]]])
    assert configured.comparable(inner(inner(inner(1)))) == configured.comparable(inner(inner(inner(1)))) and configured.comparable(
        [1]
    ) != configured.comparable((1,))


@pytest.mark.parametrize(
    "value, text",
    [
        (len, "len"),
        (Keeper, "Keeper"),
        (inner, "inner"),
        (torch.zeros(2, 3), "Tensor 2x3"),
        (pathlib.PurePosixPath("a/b"), "'a/b'"),
        (nn.ReLU(), "ReLU"),
        ("a", "'a'"),
        (1.5, "1.5"),
        (None, "None"),
        ((1, "b"), "(1, 'b')"),
        ({"a": 1}, "{'a': 1}"),
        (object(), "object"),
    ],
)
def test_a_brief_text(value, text):
    assert configured.brief(value) == text


def test_a_repr_shows_the_first_argument_and_what_is_not_the_default():
    class Shown(cbnb.Callback):
        def __init__(self, first=1, second=2, third=None, lost=4):
            self.first, self.second, self.third = first, second, third

    assert repr(Shown()) == "Shown(first=1)" and repr(Shown(1, 3)) == "Shown(first=1, second=3)"
    assert repr(Shown(2, second=2.0, third=torch.ones(2))) == "Shown(first=2, third=Tensor 2)" and repr(cbnb.Callback()) == "Callback()"


def test_names_that_a_callback_brings_along():
    class Early(cbnb.Callback):
        level, _hidden = 1, 2
        after_fit = None

        def __init__(self):
            self.own, self._secret = 1, 2

        def helper(self):
            pass

        @property
        def found(self):
            pass

    assert twins.early_names(Early()) == ["level", "own"]


def test_callbacks_are_found_by_class_name_and_what_they_stand_for():
    class Stands(cbnb.Callback):
        def __init__(self, wraps, factory=None):
            self.wraps, self.factory = wraps, factory

    theirs, factory = types.SimpleNamespace(a=1), functools.partial(types.SimpleNamespace, a=1)
    plain, made, one = Stands(theirs), Stands(types.SimpleNamespace(a=2), factory), Keeper("1")
    learn = line_learner(default_cbs=False, cbs=[plain, made, one])
    find = learn.callbacks.find
    assert find("keeper") == find(one) == find(Keeper) == [one] and find("nobody") == find(Keeper("1")) == []
    assert find(theirs) == find(plain) == [plain] and find(factory) == [made] and find(types.SimpleNamespace) == [plain, made]
    assert made_by(plain) is theirs and made_by(made) is factory and base.wrapped(plain) is theirs and base.wrapped(one) is one
    assert class_of(factory) is class_of(theirs) is class_of(types.SimpleNamespace) is types.SimpleNamespace
    assert list(learn.callbacks) == [learn.train_eval, theirs, made.wraps, one] and learn.stands is theirs
    learn.remove_cb(theirs).remove_cb(factory).remove_cb("keeper")
    assert [type(cb) for cb in learn.cbs] == [cbnb.TrainEvalCallback] and not hasattr(learn, "keeper")


def test_an_object_that_is_shown_gives_way_to_a_callback_and_leaves_when_it_is_removed():
    learn, callbacks = line_learner(), line_learner().callbacks
    callbacks, one, two = learn.callbacks, Line(), Keeper("2")
    for name in ("model", "fit", "recorder"):  # these are taken
        callbacks.show(name, one)
    assert learn.model is not one and callable(learn.fit) and isinstance(learn.recorder, cbnb.Recorder)
    callbacks.show("mine", one), callbacks.show("keeper", one), callbacks.show("other", two)
    assert learn.mine is learn.keeper is one and learn.other is two
    learn.add_cb(two)
    assert learn.keeper is two and not hasattr(learn, "keeper_2")
    callbacks.remove(Line)
    assert not hasattr(learn, "mine") and learn.keeper is two and learn.other is two
    callbacks.remove("other")
    assert not hasattr(learn, "other") and learn.keeper is two
    callbacks.show("mine", one)
    callbacks.remove(one)
    assert not hasattr(learn, "mine")


def test_a_warning_of_a_callback_points_to_the_line_of_the_caller_unless_told():
    def warn(name, *level):
        twins.warn_shadow(cb, name, *level)  # inside

    cb = line_learner(cbs=Keeper()).keeper
    lines = open(__file__).read().splitlines()
    for name, level, words in [("lr", [], "# inside"), ("wd", [3], "# outside")]:
        with pytest.warns(UserWarning, match=rf"shadowing an attribute \({name}\)") as seen:
            warn(name, *level)  # outside
        assert lines[seen[0].lineno - 1].endswith(words) and len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("lr")


def test_a_cancel_outside_of_its_level_is_explained():
    cancel = cbnb.CancelValidException()
    assert events.not_honoured(cancel).startswith(
        "CancelValidException was raised outside an event, where no validation phase is running that it could cancel. Raise it in an event from before_validate to after_batch"
    )
    assert events.not_honoured(cancel).endswith("after_batch (of the validation phase).")
    cancel.raised_in = "after_fit"
    assert "raised in after_fit, where" in events.not_honoured(cancel)
    assert events.not_honoured(cbnb.CancelFitException()).endswith("from before_fit to after_epoch.")
    assert cbnb.CancelStepException.events() == ["before_step"]


def test_a_helper_method_may_have_a_name_like_an_event_with_an_underscore():
    class Fine(cbnb.Callback):
        after_bath = 3

        def _after_bacth(self):
            pass

        def on_something(self):
            pass

    for name in ("on_train_begin", "on_epoch_end", "on_batch_begin", "on_train_epoch_end", "on_backward_begin"):
        with pytest.raises(TypeError, match=f"{name} is not an event of this Callback"):
            type("Foreign", (cbnb.Callback,), {name: lambda self: None})
    with pytest.raises(TypeError, match="did you mean 'after_batch'"):
        type("Typo", (cbnb.Callback,), dict(after_bacth=lambda self: None))
    type("Near", (cbnb.Callback,), dict(after_things=lambda self: None))


# The arguments of the constructor


class Configured(cbnb.Callback):
    def __init__(self, first, *rest, second=2, **more):
        super().__init__(**more)
        self.kept = first


class Narrowed(Configured):
    def __init__(self, scale=1.0):
        super().__init__(scale, second=scale)


def test_arguments_are_those_of_the_class_that_was_called():
    made = Configured("a", "b", after_fit=len)
    assert configured.arguments(made) == dict(first="a", rest=("b",), second=2, after_fit=len)
    assert configured.arguments(Narrowed(3)) == dict(scale=3) and configured.arguments(cbnb.Callback()) == {}
    assert repr(made) == "Configured(first='a', rest=('b',), after_fit=len)" and repr(Narrowed()) == "Narrowed()"
    made.second = 5  # from now on the attribute counts
    assert configured.arguments(made)["second"] == 5 and repr(made) == "Configured(first='a', rest=('b',), second=5, after_fit=len)"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda cb: pickle.loads(pickle.dumps(cb))])
def test_a_copy_has_the_arguments(copied):
    made = Configured([1], second=3)
    again = copied(made)
    assert (
        configured.arguments(again) == configured.arguments(made)
        and twins.settings(again) == twins.settings(made)
        and repr(again) == repr(made)
    )


def test_settings_are_the_arguments_and_the_switches():
    class Timed(cbnb.Callback):
        def __init__(self, every=1):
            self.every, self.unlike_any_other = every, object()

    one, again, later = Timed(), Timed(every=1), Timed(2)
    assert twins.settings(one) == twins.settings(again) != twins.settings(later)
    again.order = 5
    assert twins.settings(one) != twins.settings(again)
    again.order, one.every = 0, 2
    assert twins.settings(one) == twins.settings(later) != twins.settings(again)


def test_callbacks_that_cannot_be_compared_stay_both():
    learn = line_learner(default_cbs=False)
    for _ in range(2):
        learn.add_cb(Keeper(torch.zeros(10_000)))
        learn.add_cb(Keeper(torch.zeros(3)))
    assert [type(cb) for cb in learn.cbs].count(Keeper) == 3


def test_a_lambda_of_a_cell_that_has_grown_is_the_same():
    cell = "def make(): return Callback(after_fit=lambda self: [x + 1 for x in self.seen])"
    spaces = [{"Callback": cbnb.Callback, "__name__": "__main__"} for _ in range(3)]
    for space, text in zip(spaces, [cell, "# a line more\n\n" + cell, cell.replace("x + 1", "x + 2")]):
        exec(text, space)
    one, again, other = (twins.settings(space["make"]()) for space in spaces)
    assert one == again != other


def test_dataclasses_and_classes_with_a_constructor_of_objects():
    @dataclasses.dataclass
    class Data(cbnb.Callback):
        rate: float
        names: list = dataclasses.field(default_factory=list)

    class Sized(cbnb.Callback, dict):
        pass

    assert twins.settings(Data(1.0)) == twins.settings(Data(rate=1.0)) != twins.settings(Data(2.0))
    assert twins.settings(Data(1.0, ["a"])) != twins.settings(Data(1.0))
    assert configured.arguments(Sized()) == {} and isinstance(Sized(), dict)
    assert str(inspect.signature(Narrowed)) == "(scale=1.0)"


def own_callbacks(cls=cbnb.Callback):
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("cbnb."):
            yield sub
        yield from own_callbacks(sub)


def test_the_methods_of_our_own_callbacks_have_names_that_are_no_misspelt_events():
    """When the package is imported, they are not looked at: that would take a tenth of the time."""
    found = set(own_callbacks())
    assert {cbnb.Recorder, cbnb.SaveModel, cbnb.Checkpoint, cbnb.MixUp} <= found and len(found) > 40
    for cls in found:
        for name, f in vars(cls).items():
            check_method(name, f, name)
