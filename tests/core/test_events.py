"""Which events fire, in which order, and what each of the seven cancels skips."""

import inspect

import pytest
import torch

import cbnb.all as cbnb
from cbnb.display.loop import loop_lines
from cbnb.events import EVENTS as LIBRARY_EVENTS
from helpers import CANCELS, EVENTS, IN_BATCH, RUN_EVENTS, TRAIN_ONLY, RaiseIn, line_learner, listener, noting

TRAIN_BATCH = "before_batch after_pred after_loss before_backward after_backward before_step after_step after_batch".split()
VALID_BATCH = "before_batch after_pred after_loss after_batch".split()
VALIDATION = ["before_validate", *VALID_BATCH, "after_validate"]
EPOCH = ["before_epoch", "before_train", *TRAIN_BATCH * 2, "after_train", *VALIDATION, "after_epoch"]


class Raised(Exception):
    """A level is to be cancelled."""


class Escaped(Exception):
    """A cancel that no level around it could honour."""


class Reference:
    """The rule of cancelling, written without the library.

    `plan` says in which event (and phase, for those of a batch) which level is cancelled, once each.
    `first` and `last` are what a listener before, and one after, the one who cancels gets to see.
    """

    def __init__(self, plan=(), nest_at=None):
        self.plan, self.nest_at, self.phase = dict(plan), nest_at, None
        self.first, self.last = [], []

    def fire(self, name):
        self.first.append(name)
        if self.nest_at == name:
            self.nest_at = None
            self.nested()
        key = (name, self.phase if name in IN_BATCH or self.phase == "nested" else None)
        if key in self.plan:
            raise Raised(self.plan.pop(key), name)
        self.last.append(name)

    def level(self, name, body=lambda: None):
        try:
            self.fire(f"before_{name}")
            body()
        except Raised as raised:
            if raised.args[0] != name:
                raise
            self.fire(f"after_cancel_{name}")
        self.fire(f"after_{name}")

    def batches(self, n):
        for _ in range(n):
            self.level("batch", self.batch)

    def batch(self):
        self.fire("after_pred")
        self.fire("after_loss")
        if self.phase == "train":
            self.level("backward")
            self.level("step")

    def train(self):
        self.phase = "train"
        self.level("train", lambda: self.batches(2))

    def validate(self, phase="validate"):
        self.phase = phase
        self.level("validate", lambda: self.batches(1))

    def nested(self):
        """Of the levels around it, an evaluation can cancel the epoch and the fit; it has a batch of its own."""
        outer = self.phase
        try:
            self.validate("nested")
        except Raised as raised:
            if raised.args[0] not in ("fit", "epoch"):
                raise Escaped(*raised.args) from raised
            raise
        finally:
            self.phase = outer

    def fit(self, n_epoch=2):
        def epochs():
            for _ in range(n_epoch):
                self.level("epoch", lambda: (self.train(), self.validate()))

        return self.run(lambda: self.level("fit", epochs))

    def validate_alone(self):
        return self.run(lambda: self.level("fit", lambda: self.level("epoch", self.validate)))

    def run(self, body):
        """What escapes: None, or the level whose cancel nobody caught and the event it came from."""
        try:
            body()
        except (Raised, Escaped) as escaped:
            return escaped.args


def plan_for(name, level, phase):
    key = (name, phase if name in IN_BATCH or phase == "nested" else None)
    lead = name.removeprefix("after_cancel_")
    return {key: level} | ({(f"before_{lead}", key[1]): lead} if lead != name else {})


def phases_of(name):
    return ("train", "validate") if name in IN_BATCH - TRAIN_ONLY else ("train",)


def transcript(run, *cbs, **kwargs):
    seen = []
    learn = line_learner(cbs=[*cbs, noting(seen)], **kwargs)
    seen.clear()
    run(learn)
    return seen


def test_there_are_24_events():
    assert LIBRARY_EVENTS == EVENTS and len(EVENTS) == 24
    assert all(getattr(cbnb.event, name) == name for name in EVENTS)
    with pytest.raises(AttributeError, match="after_batch"):
        cbnb.event.after_bacth


def test_transcript_of_one_epoch():
    assert transcript(lambda learn: learn.fit(1)) == ["before_fit", *EPOCH, "after_fit"]


def test_transcript_of_two_epochs_is_54_events():
    seen = transcript(lambda learn: learn.fit(2))
    assert seen == ["before_fit", *EPOCH, *EPOCH, "after_fit"] and len(seen) == 54


@pytest.mark.parametrize("default_cbs", [True, False])
def test_default_callbacks_make_no_difference_to_events_or_training(default_cbs):
    """D43: without default callbacks, nothing was trained."""
    seen = []
    learn = line_learner(cbs=noting(seen), default_cbs=default_cbs)
    assert seen == ["after_create"]
    learn.fit(1)
    assert seen == ["after_create", "before_fit", *EPOCH, "after_fit"]
    assert learn.model.a.item() == pytest.approx(0.72)


@pytest.mark.parametrize("run", [lambda learn: learn.validate(), lambda learn: learn.get_preds()])
def test_transcript_of_an_evaluation(run):
    assert transcript(run) == ["before_fit", "before_epoch", *VALIDATION, "after_epoch", "after_fit"]


@pytest.mark.parametrize("run", [lambda learn: learn.validate(), lambda learn: learn.get_preds()])
def test_transcript_of_an_evaluation_within_a_fit(run):
    """Only the events of validation: the others would say that a new fit begins (D12)."""
    once = InFirstBatch(lambda cb: run(cb.learn))
    seen = transcript(lambda learn: learn.fit(1), once)
    assert seen[3 : 3 + len(VALIDATION)] == VALIDATION
    assert seen[:3] + seen[3 + len(VALIDATION) :] == ["before_fit", *EPOCH, "after_fit"]


class InFirstBatch(cbnb.Callback):
    """Does something in the first training batch."""

    def __init__(self, what):
        self.what, self.did = what, False

    def before_batch(self):
        if self.training and not self.did:
            self.did = True
            self.what(self)


@pytest.mark.filterwarnings("ignore:the first batch had no targets")
def test_batches_without_targets_have_no_backward():
    learn = line_learner(dls=cbnb.DataLoaders([torch.ones(4)] * 2, device="cpu"), default_cbs=False)
    seen = []
    learn.add_cb(noting(seen))
    learn.fit(1)
    assert seen == ["before_fit", "before_epoch", "before_train", *VALID_BATCH * 2, "after_train", "after_epoch", "after_fit"]


BEGIN = ["before_fit", "before_epoch", "before_train"]
REST_OF_TRAINING = [*TRAIN_BATCH, "after_train"]
END = [*VALIDATION, "after_epoch", *EPOCH, "after_fit"]
TWO_BATCHES = [*BEGIN, *TRAIN_BATCH * 2]
MEASURED = [  # what a listener in last place sees, when the cancel is raised once, in the first epoch
    ("batch", "before_batch", [*BEGIN, "after_cancel_batch", "after_batch", *REST_OF_TRAINING, *END]),
    ("batch", "before_step", [*BEGIN, *TRAIN_BATCH[:5], "after_cancel_batch", "after_batch", *REST_OF_TRAINING, *END]),
    (
        "backward",
        "before_backward",
        [*BEGIN, *TRAIN_BATCH[:3], "after_cancel_backward", "after_backward", *TRAIN_BATCH[5:], *REST_OF_TRAINING, *END],
    ),
    ("step", "before_step", [*BEGIN, *TRAIN_BATCH[:5], "after_cancel_step", "after_step", "after_batch", *REST_OF_TRAINING, *END]),
    ("train", "before_train", [*BEGIN[:2], "after_cancel_train", "after_train", *END]),
    ("train", "after_batch", [*BEGIN, *TRAIN_BATCH[:7], "after_cancel_train", "after_train", *END]),
    (
        "validate",
        "before_validate",
        [*TWO_BATCHES, "after_train", "after_cancel_validate", "after_validate", "after_epoch", *EPOCH, "after_fit"],
    ),
    ("epoch", "before_train", [*BEGIN[:2], "after_cancel_epoch", "after_epoch", *EPOCH, "after_fit"]),
    ("epoch", "before_validate", [*TWO_BATCHES, "after_train", "after_cancel_epoch", "after_epoch", *EPOCH, "after_fit"]),
    ("fit", "before_fit", ["after_cancel_fit", "after_fit"]),
    ("fit", "before_batch", [*BEGIN, "after_cancel_fit", "after_fit"]),
    ("fit", "after_train", [*TWO_BATCHES, "after_cancel_fit", "after_fit"]),
    ("fit", "after_epoch", [*TWO_BATCHES, "after_train", *VALIDATION, "after_cancel_fit", "after_fit"]),
]


@pytest.mark.parametrize("level, name, expected", MEASURED, ids=[f"{level}-in-{name}" for level, name, _ in MEASURED])
def test_measured_sequences(level, name, expected):
    seen = transcript(lambda learn: learn.fit(2), RaiseIn(name, CANCELS[level]))
    assert seen == expected
    reference = Reference(plan_for(name, level, "train"))
    assert reference.fit() is None and reference.last == expected


@pytest.mark.parametrize("level", CANCELS)
@pytest.mark.parametrize("name", RUN_EVENTS)
def test_cancel_from_every_event(level, name):
    """Honoured as the rule says; where no such level is running, an error names cancel and event (D03)."""
    for phase in phases_of(name):
        for order in (-50, 0, 70):
            reference = Reference(plan_for(name, level, phase))
            escaped = reference.fit()
            first, last = [], []
            raiser = RaiseIn(name, CANCELS[level], order, phase=phase)
            learn = line_learner(cbs=[noting(first, -1000), raiser, noting(last, 1000)])
            first.clear(), last.clear()
            if escaped is None:
                learn.fit(2)
            else:
                with pytest.raises(RuntimeError, match=rf"{CANCELS[level].__name__} was raised in {name}\b"):
                    learn.fit(2)
            assert raiser.done
            assert (first, last) == (reference.first, reference.last), (phase, order)
            first.clear()
            learn.fit(1)
            assert first == ["before_fit", *EPOCH, "after_fit"]


@pytest.mark.parametrize("level", CANCELS)
def test_cancel_in_after_create(level):
    with pytest.raises(RuntimeError, match=rf"{CANCELS[level].__name__} was raised in after_create\b"):
        line_learner(cbs=cbnb.Callback(after_create=lambda self: raise_(CANCELS[level])))


def raise_(error):
    raise error


EVALUATION_EVENTS = [
    name for name in RUN_EVENTS if name not in TRAIN_ONLY and name not in ("before_train", "after_cancel_train", "after_train")
]


@pytest.mark.parametrize("level", CANCELS)
@pytest.mark.parametrize("run", ["validate", "get_preds"])
def test_cancel_in_an_evaluation(level, run):
    """CancelEpoch and CancelFit are honoured here, too; they used to escape (D03)."""
    for name in EVALUATION_EVENTS:
        reference = Reference(plan_for(name, level, "validate"))
        escaped = reference.validate_alone()
        first, last = [], []
        learn = line_learner(cbs=[noting(first, -1000), RaiseIn(name, CANCELS[level], phase="validate"), noting(last, 1000)])
        first.clear(), last.clear()
        if escaped is None:
            evaluate_cancelled(learn, run, level)
        else:
            with pytest.raises(RuntimeError, match=rf"{CANCELS[level].__name__} was raised in {name}\b"):
                getattr(learn, run)()
        assert (first, last) == (reference.first, reference.last), name
        assert not learn.running and learn.validate() is not None


def evaluate_cancelled(learn, run, level):
    """Predictions that were cancelled before the first batch are none, which may be said with an error."""
    try:
        getattr(learn, run)()
    except ValueError as e:
        assert run == "get_preds"
        assert ("cancelled every batch" if level == "batch" else "cancelled the run before its first batch") in str(e)


@pytest.mark.parametrize("level", CANCELS)
def test_cancel_in_an_evaluation_within_a_fit(level):
    """Epoch and fit of the outer run are cancelled; anything else that is not the evaluation's own is an error (D03)."""
    for host in ("before_fit", "before_train", "after_step", "after_train", "after_epoch"):
        for name in ("before_validate", "after_cancel_validate", "after_validate", *(IN_BATCH - TRAIN_ONLY)):
            reference = Reference(plan_for(name, level, "nested"), nest_at=host)
            escaped = reference.fit()
            first = []
            raiser = RaiseIn(name, CANCELS[level], phase="validate")
            learn = line_learner(cbs=[noting(first, -1000), NestIn(host, raiser)])
            first.clear()
            if escaped is None:
                learn.fit(2)
            else:
                with pytest.raises(RuntimeError, match=rf"{CANCELS[level].__name__} was raised in {name}\b"):
                    learn.fit(2)
            assert raiser.done and first == reference.first, (host, name)
            assert not learn.running and raiser not in learn.cbs and learn.purpose == "fit"


class NestIn(cbnb.Callback):
    """Validates once, from an event, with another callback."""

    def __init__(self, host, cb):
        super().__init__(**{host: lambda self: self.validate_once()})
        self.other, self.did = cb, False

    def validate_once(self):
        if not self.did:
            self.did = True
            self.learn.validate(cbs=self.other)


def test_cancel_from_outside_an_event():
    """A model may cancel, too; the message then cannot name an event."""

    class Tired(type(line_learner().model)):
        def forward(self, x):
            raise cbnb.CancelStepException()

    with pytest.raises(RuntimeError, match="CancelStepException was raised outside an event"):
        line_learner(model=Tired()).fit(1)


def test_a_cancel_in_the_action_of_its_level_is_honoured():
    class Reluctant(torch.optim.SGD):
        def step(self, closure=None):
            raise cbnb.CancelStepException()

    seen = transcript(lambda learn: learn.fit(1), opt_func=Reluctant)
    assert seen.count("after_cancel_step") == 2 and seen.count("after_step") == 2


@pytest.mark.parametrize("level, leftover", [("step", False), ("batch", True)])
def test_gradients_after_a_cancel(level, leftover):
    """A cancelled step has its gradients zeroed; a cancelled batch keeps them for the next one."""
    grads = []
    look = cbnb.Callback(before_batch=lambda self: grads.append(self.learn.model.a.grad) if self.training else None)
    learn = line_learner(cbs=[RaiseIn("before_step", CANCELS[level]), look])
    learn.fit(1)
    assert (grads[1] is not None) == leftover
    # after one cancelled batch the kept gradient is added: twice the way in one step
    assert learn.model.a.item() == pytest.approx(0.8 if leftover else 0.4)


def test_a_cancelled_backward_still_steps():
    learn = line_learner(cbs=RaiseIn("before_backward", cbnb.CancelBackwardException))
    learn.fit(1)
    assert learn.model.a.item() == pytest.approx(0.4)


def test_counters():
    """train_iter and pct_train have advanced when callbacks get after_batch; validation leaves them alone."""
    before, after, ends = [], [], []

    def look(into):
        return lambda self: into.append((self.learn.train_iter, self.learn.pct_train)) if self.learn.training else None

    cbs = cbnb.Callback(before_batch=look(before)), cbnb.Callback(after_batch=look(after))
    learn = line_learner(3, cbs=[*cbs, cbnb.Callback(after_fit=lambda self: ends.append((self.learn.train_iter, self.learn.pct_train)))])
    learn.fit(2)
    sixths = [pytest.approx(i / 6) for i in range(7)]
    assert before == [(i, sixths[i]) for i in range(6)] and after == [(i, sixths[i]) for i in range(1, 7)]
    assert ends == [(6, sixths[6])]


def test_cancelled_batches_count():
    learn = line_learner(3, cbs=RaiseIn("before_batch", cbnb.CancelBatchException))
    learn.fit(1)
    assert learn.train_iter == 3 and learn.pct_train == pytest.approx(1)


def test_training_flag_and_mode():
    """True from before_train, False from before_validate, for all after TrainEvalCallback."""
    seen = {}
    note = listener(lambda cb, name: seen.setdefault((name, cb.learn.training), cb.learn.model.training))
    line_learner(cbs=note).fit(1)
    assert all(training == mode for (name, training), mode in seen.items() if name not in EVENTS[:3])
    assert ("before_train", True) in seen and ("before_validate", False) in seen and ("after_batch", True) in seen


# One table


def test_the_table_and_the_loop_are_one_thing():
    """Every event of the loop is in the table with a gloss, and every event of the table is in the loop."""
    from cbnb import events

    in_loop = list(dict.fromkeys(events.FIT.events()))
    assert list(EVENTS) == ["after_create", *in_loop] == [name for name in vars(events.Events) if name[0] != "_"]
    assert len(in_loop) == 23 and events.BATCH_EVENTS == IN_BATCH
    for name in EVENTS:
        gloss = getattr(events.Events, name).__doc__
        assert gloss and "\n" not in gloss and (gloss[0].isupper() or gloss[0] == "`") and gloss.endswith("."), name
    assert sorted(vars(events.event)) == sorted(EVENTS)
    printed = [line.split()[0] for line in loop_lines() if line.split()[0] in EVENTS]
    assert list(dict.fromkeys(printed)) == in_loop


def test_the_gloss_of_an_event_is_where_it_is_looked_for():
    """In `Callback?`, on a method that is not overridden, and in completion inside a class."""

    class Mine(cbnb.Callback):
        def before_fit(self):
            pass

    for name in EVENTS:
        gloss = getattr(cbnb.Callback, name).__doc__
        assert f"\n- `{name}`: {gloss}\n" in cbnb.Callback.__doc__ and name in dir(cbnb.Callback)
        assert inspect.getdoc(getattr(Mine(), name)) == gloss  # also of the one that is overridden


def test_an_event_that_is_not_overridden_is_not_defined():
    class Mine(cbnb.Callback):
        def before_fit(self):
            super().before_fit()

    class More(Mine):
        before_fit = None

    cb, learn = Mine(), line_learner()
    learn.add_cbs([cb, More()])
    assert cb.method("before_fit") == cb.before_fit and cb.method("after_fit") is None and cb.after_fit() is None
    assert cb in learn.ordered_cbs("before_fit") and cb not in learn.ordered_cbs("after_fit")
    assert learn.more not in learn.ordered_cbs("before_fit")
    assert all(cb.method(name) is None for cb in learn.cbs for name in ("after_pred", "before_backward"))
    Mine.after_fit = lambda self: None  # patched in later
    assert cb.method("after_fit") is not None
    del Mine.after_fit


def test_a_mixin_with_events_may_stand_on_either_side():
    class Mixin:
        def before_fit(self):
            return "mixin"

        def after_fit(self):
            return "mixin"

    class Left(Mixin, cbnb.Callback):
        pass

    class Right(cbnb.Callback, Mixin):
        def after_fit(self):
            return "own"

    class Below(Right):
        pass

    assert Left()("before_fit") == Right()("before_fit") == Below()("before_fit") == "mixin"
    assert Right()("after_fit") == Below()("after_fit") == "own" and Right().before_epoch() is None
