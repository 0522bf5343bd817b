"""`learn.profile()` and `learn.profiling()`: exact with a clock of our own, in all kinds of fits, and nothing is left behind."""

import copy
import pickle
import time
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
import interrupts
import notebooks
from cbnb.callbacks import profile as profiles
from cbnb.callbacks.profile import DeviceTimes, Stopwatch
from cbnb.callbacks.steps import ClosureStep
from cbnb.display.profile import Comparison, Profile, Row
from cbnb.learner import Learner
from cbnb.step import Step
from helpers import RUN_EVENTS, Line, line_batches, line_learner
from test_live import SETUP, Kernel
from test_rewind import differs, everything


class Clock:
    """Goes on when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


class SlowLoader:
    """Each batch takes a while, and the first one more."""

    def __init__(self, clock, seconds, n=4, first=0.0, with_length=True):
        self.clock, self.seconds, self.n, self.first, self.with_length = clock, seconds, n, first, with_length

    def __len__(self):
        if not self.with_length:
            raise TypeError("no length")
        return self.n

    def __iter__(self):
        self.clock.sleep(self.first)
        for batch in line_batches(self.n):
            self.clock.sleep(self.seconds)
            yield batch


class SlowModel(Line):
    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x):
        self.clock.sleep(self.seconds)
        return super().forward(x)


def sleeping(clock, seconds, event, **attributes):
    def sleep(cb):
        clock.sleep(seconds)

    cb = cbnb.Callback(**{event: sleep})
    cb.__dict__.update(attributes)
    return cb


def slow_learner(clock, **kwargs):
    """2 ms of waiting, 1 ms of forward, in 4 batches of training and 4 of validation."""
    loader = SlowLoader(clock, 0.002)
    settings = dict(dls=cbnb.DataLoaders(loader, loader, device="cpu"), model=SlowModel(clock, 0.001)) | kwargs
    return line_learner(**settings)


def seconds(p, *names):
    return [round(p[name], 9) if name in p else 0 for name in names]


# what is measured


def test_slow_loader_callback_and_metric_are_found(clock):
    def f1(pred, y, ignore_index=None):  # so that it is not compared with its halves
        clock.sleep(0.003)
        return pred.mean()

    class Slow(cbnb.Callback):
        def after_batch(self):
            clock.sleep(0.005)

    learn = slow_learner(clock, metrics=f1, cbs=Slow)
    p = learn.profile(clock=clock)
    assert seconds(p, "wait for data", "forward", "metric f1", "Slow.after_batch") == [0.016, 0.008, 0.012, 0.040]
    assert sum(row.seconds for row in p.rows) == pytest.approx(p.wall) == pytest.approx(clock.now)
    said = "\n".join(p.findings)
    assert "21% of the time waits for data, 2 ms a training batch" in said
    assert "Slow.after_batch takes 26%, 5 ms a batch: every 50 batches it would take 0.7%" in said
    assert "metric f1 takes 16%, 12 ms in all" in said


def test_training_and_validation_are_apart(clock):
    p = slow_learner(clock).profile(2, clock=clock)
    assert p.batches == dict(train=8, valid=8)
    assert p.seconds("forward", phase="train") == pytest.approx(0.008) == p.seconds("forward", phase="valid")
    row = p.chosen("forward", phase="train")[0]
    assert row.count == 8 and p.per_batch(row) == pytest.approx(0.001)


@pytest.mark.parametrize("event", [e for e in RUN_EVENTS if "cancel" not in e])
def test_each_event_of_a_callback_has_a_row(clock, event):
    learn = line_learner(cbs=sleeping(clock, 0.5, event))
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    found = [row for row in p.rows if row.name == f"sleep, {event}"]
    n = {"train": 2, "valid": 1}
    for row in found:
        calls = n.get(row.phase, 1) if event in ("before_batch", "after_pred", "after_loss", "after_batch") else row.count
        assert row.count == calls and row.seconds == 0.5 * row.count
    assert p.wall == pytest.approx(clock.now) == pytest.approx(sum(row.seconds for row in found)) and found


def test_parts_of_the_step(clock, monkeypatch):
    for i, name in enumerate(("predict", "loss", "backward", "step", "zero_grad"), 1):
        method = getattr(Step, name)
        monkeypatch.setattr(Step, name, lambda self, learn, i=i, method=method: (clock.sleep(i), method(self, learn))[1])
    learn = line_learner(valid=False)
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    assert seconds(p, "forward", "loss", "backward", "optimizer step") == [2, 4, 6, 8]
    assert p["zero_grad"] >= 10


def test_nested_validation_is_not_counted_twice(clock):
    class Validates(cbnb.Callback):
        run_valid = False

        def after_batch(self):
            clock.sleep(1)
            self.learn.validate()
            clock.sleep(1)

    learn = slow_learner(clock, cbs=Validates)
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    assert seconds(p, "Validates.after_batch") == [8]
    assert p.batches == dict(train=4, valid=20)
    assert seconds(p, "forward", "wait for data") == [0.024, 0.048] and p.wall == pytest.approx(8.072)


def test_first_batch_has_a_row_of_its_own(clock):
    class Compiles(SlowModel):
        def forward(self, x):
            if self.training and self.seconds:
                clock.sleep(10 if not hasattr(self, "compiled") else 0)
                self.compiled = True
            return super().forward(x)

    loader = SlowLoader(clock, 0.002, n=10, first=7)
    learn = line_learner(dls=cbnb.DataLoaders(loader, device="cpu"), model=Compiles(clock, 1))
    p = learn.profile(clock=clock)
    assert seconds(p, "first batch", "forward", "start of the loader", "wait for data") == [10, 10, 7, 0.02]
    assert "first batch of training takes 37%, 10 s longer than later ones" in "\n".join(p.findings)
    assert "start of the loader of training takes 26%, 7 s longer" in "\n".join(p.findings)


def test_first_batches_of_nested_validation(clock):
    class Validates(cbnb.Callback):
        run_valid = False

        def after_batch(self):
            self.learn.validate()

    class Compiles(SlowModel):
        seen = ()

        def forward(self, x):
            if self.training not in self.seen:
                self.seen = (*self.seen, self.training)
                clock.sleep(30 if self.training else 50)
            return super().forward(x)

    loader = SlowLoader(clock, 0.0, n=8)
    learn = line_learner(dls=cbnb.DataLoaders(loader, loader, device="cpu"), model=Compiles(clock, 1), cbs=Validates)
    p = learn.profile(clock=clock)
    assert {row.phase: row.seconds for row in p.chosen("first batch")} == dict(train=30, valid=50)
    assert p.seconds("forward", phase="train") == 8 and p.seconds("forward", phase="valid") == 72


def test_a_first_batch_like_the_others_has_none(clock):
    p = slow_learner(clock).profile(clock=clock)
    assert "first batch" not in p and "start of the loader" not in p


def test_what_is_outside_of_the_fit(clock):
    learn = slow_learner(clock)
    with learn.profiling(clock=clock) as p:
        clock.sleep(3)
        learn.fit(1)
        clock.sleep(4)
        learn.validate()
    assert seconds(p, "outside of the fit") == [7] and p.batches == dict(train=4, valid=8)


def test_the_clock_of_the_wall():
    learn = line_learner(n=50)
    begun = time.perf_counter()
    with learn.profiling() as p:
        learn.fit(2)
        middle = time.perf_counter()
    wall = middle - begun
    assert sum(row.seconds for row in p.rows) == pytest.approx(p.wall, rel=1e-9)
    assert p.wall < time.perf_counter() - begun and p.wall > 0.5 * wall
    assert "the profiler" in p and min(row.seconds for row in p.rows) >= 0


def test_part_of_an_epoch(clock):
    learn = slow_learner(clock)
    p = learn.profile(n_batch=3, clock=clock)
    assert p.batches == dict(train=3, valid=3)
    assert learn.profile(n_batch=100, clock=clock).batches == dict(train=4, valid=4)
    with pytest.raises(ValueError, match="n_batch"):
        learn.profile(n_batch=0)


def test_own_cost_is_taken_out():
    class Ticks:
        now = 0.0

        def __call__(self):
            self.now += 1e-3
            return self.now

    p = line_learner(n=20).profile(clock=Ticks())
    assert p.share("the profiler") > 0.5 and min(row.seconds for row in p.rows) >= 0
    assert sum(row.seconds for row in p.rows) == pytest.approx(p.wall)


# all kinds of fits


def trains_alike(make, fit=lambda learn: learn.fit(2), **kwargs):
    """The same fit with and without a profile has the same result; returns the profile."""
    torch.manual_seed(0)
    plain = make()
    fit(plain)
    torch.manual_seed(0)
    learn = make()
    with learn.profiling(**kwargs) as p:
        fit(learn)
    for a, b in zip(plain.model.parameters(), learn.model.parameters()):
        assert torch.equal(a, b)
    assert type(learn) is type(plain) and learn.train_iter == plain.train_iter
    assert p.wall > 0 and sum(row.seconds for row in p.rows) == pytest.approx(p.wall)
    return p


def my_step(x, y):
    return my_step.model(x).sub(y).pow(2).mean()


def test_a_function_as_step(clock):
    def make():
        model = my_step.model = SlowModel(clock, 1)
        return line_learner(model=model, train_step=my_step)

    p = trains_alike(make, clock=clock)
    assert seconds(p, "my_step (train_step)") == [4] and p["forward"] == 2  # and validation


def test_closure_step_is_divided(clock):
    def make():
        return line_learner(model=SlowModel(clock, 1), train_step=ClosureStep(), opt_func=torch.optim.LBFGS, valid=False)

    p = trains_alike(make, clock=clock)
    assert p["forward"] == clock.now / 2 and "optimizer step" not in p  # no time of its own on this clock


def test_lbfgs_without_closure_step_is_refused_as_ever():
    learn = line_learner(opt_func=torch.optim.LBFGS)
    with learn.profiling(), pytest.raises(TypeError, match="ClosureStep"):
        learn.fit(1)


@pytest.mark.filterwarnings("ignore:opt_func is not used")
def test_several_losses_and_optimizers():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Line(), Line()

        def forward(self, x):
            return self.one(x), self.two(x)

    def make():
        model = Two()
        opts = [torch.optim.SGD(m.parameters(), 0.1) for m in (model.one, model.two)]

        def losses(pred, y):
            return tuple((p - y).pow(2).mean() for p in pred)

        return line_learner(model=model, train_step=cbnb.MultiLossStep(model, opts, losses), valid=False)

    p = trains_alike(make)
    assert {"forward", "loss", "backward", "optimizer step"} <= set(p.names())


def test_accumulation_and_clip():
    p = trains_alike(lambda: line_learner(n=5, cbs=[cbnb.GradientAccumulation(16), cbnb.GradientClip(1.0)]))
    steps = sum(row.count for row in p.chosen("optimizer step", phase="train"))
    assert p.batches["train"] == 10 and steps < 10
    assert "GradientAccumulation.before_step" in p


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(valid=False),
        dict(default_cbs=False),
        dict(dls=lambda: iter(line_batches(3))),
        dict(dls=SlowLoader(Clock(), 0, with_length=False)),
        dict(dls=line_batches(3)),
        dict(metrics=[cbnb.MAE(), cbnb.AccumMetric(lambda p, y: (p - y).abs().mean(), name="abs")]),
        dict(cbs=cbnb.ShowGraph),
    ],
)
def test_other_learners(kwargs):
    def make():
        return line_learner(**copy.copy(kwargs))

    trains_alike(make)
    learn = make()
    learn.profile()
    assert learn.opt is None and learn.model.a == 0


def test_one_cycle_and_lr_find_inside(clock):
    learn = line_learner(n=30)
    with learn.profiling() as p:
        learn.lr_find(num_it=20)
        learn.fit_one_cycle(1)
    assert p.batches["train"] >= 50 and len(learn.recorder.history) == 1


def test_train_metrics_and_copies_are_timed(clock):
    def slow(pred, y, ignore_index=None):
        clock.sleep(1)
        return pred.mean()

    class Own:
        name = "own"

        def reset(self):
            self.n = 0

        def accumulate(self, learn):
            clock.sleep(2)

        @property
        def value(self):
            clock.sleep(4)
            return 0.0

    learn = line_learner(metrics=[slow, Own()], cbs=cbnb.Recorder(train_metrics=True))
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    assert p.seconds("metric slow", phase="train") == 2 and p.seconds("metric own", phase="train") == 8
    assert p.seconds("metric slow", phase="valid") == 1 and p.seconds("metric own", phase="valid") == 6
    assert [type(m).__name__ for m in learn.metrics] == ["AvgMetric", "Own"] and type(learn.metrics[1]) is Own


def test_a_step_that_is_replaced_meanwhile(clock):
    class Swaps(cbnb.Callback):
        run_valid = False

        def after_batch(self):
            self.learn.train_step = SlowStep()

    class SlowStep(Step):
        def predict(self, learn):
            clock.sleep(1)
            super().predict(learn)

    learn = line_learner(n=4, cbs=Swaps, valid=False)
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    assert p["forward"] == 3 and type(learn.train_step) is SlowStep


def test_callbacks_that_come_and_go(clock):
    late = sleeping(clock, 1, "after_batch", run_valid=False)

    class Adds(cbnb.Callback):
        def before_train(self):
            self.learn.add_cb(late)

    learn = line_learner(cbs=Adds)
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    assert p["sleep, after_batch"] == 2
    learn.fit(1)
    assert clock.now == 4


def test_foreign_callbacks_have_rows(clock):
    class Foreign:  # as for fastai v1
        def on_batch_end(self, **kwargs):
            clock.sleep(1)

    learn = line_learner(cbs=Foreign())
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
    rows = [row for row in p.rows if row.name.startswith("foreign callbacks, ")]
    assert sum(row.seconds for row in rows) == clock.now > 0 and {row.group for row in rows} == {"callbacks"}


def test_a_learner_class_of_your_own(clock):
    class Mine(Learner):
        def one_batch(self, i, batch):
            clock.sleep(1)
            super().one_batch(i, batch)

    learn = Mine(cbnb.DataLoaders(line_batches(3), device="cpu"), Line(), nn.MSELoss())
    with learn.profiling(clock=clock) as p:
        learn.fit(1)
        assert isinstance(learn, Mine) and repr(learn).startswith("Mine(")
    assert type(learn) is Mine and p["loop"] == 3


def test_saving_and_the_table_have_rows(tmp_path):
    learn = line_learner(progress=True, path=tmp_path, cbs=[cbnb.SaveModel(), cbnb.CSVLogger(), cbnb.Checkpoint()])
    with learn.profiling() as p:
        learn.fit(2)
    groups = {row.group for row in p.rows}
    assert {"saving", "display", "compute"} <= groups and "table of epochs" in p
    assert any(row.name.startswith("SaveModel") for row in p.chosen(group="saving"))


# nothing is left behind


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)


def noisy_learner(**kwargs):
    torch.manual_seed(1)
    x = torch.randn(64, 2)
    dls = cbnb.DataLoaders.from_datasets(TensorDataset(x, x.sum(1, keepdim=True)), TensorDataset(x, x[:, :1]), bs=8, device="cpu")
    return cbnb.Learner(dls, Noise(), nn.MSELoss(), metrics=cbnb.MAE(), **kwargs)


@pytest.mark.parametrize("fitted", [False, True])
def test_profile_leaves_no_trace(fitted, tmp_path):
    learn = noisy_learner(path=tmp_path, cbs=[cbnb.SaveModel(), cbnb.EarlyStopping(patience=1), cbnb.CSVLogger(), cbnb.Checkpoint()])
    if fitted:
        learn.fit(1)
    before, files = everything(learn), sorted(tmp_path.rglob("*"))
    learn.profile(2)
    assert differs(before, everything(learn)) == "" and sorted(tmp_path.rglob("*")) == files
    assert len(learn.runs) == int(fitted)


def test_profile_leaves_checkpoints_of_another_folder_alone(tmp_path):
    learn = line_learner(path=tmp_path, cbs=cbnb.Checkpoint(path=tmp_path / "mine", every_epochs=1))
    learn.fit(3)
    files = sorted(tmp_path.rglob("*"))
    learn.profile(2)
    assert sorted(tmp_path.rglob("*")) == files and learn.cbs[-1].path == tmp_path / "mine"


def hot_path(learn):
    """What the loop calls: classes, handlers, and attributes."""
    table = learn.callbacks.table
    return dict(
        cls=type(learn),
        steps=(type(learn.train_step), type(learn.eval_step)),
        table=id(table),
        tables=type(learn.callbacks._tables),
        handlers={e: [(id(cb), m) for cb, m in table[e]] for e in RUN_EVENTS},
        metrics=[type(m) for m in learn.metrics],
        one_batch=type(learn).one_batch,
        own=sorted(vars(learn)),
        lists=sorted(vars(learn.callbacks)),
    )


class Stops(cbnb.Callback):
    def __init__(self, error):
        self.error = error

    def after_loss(self):
        if self.learn.train_iter == 3:
            raise self.error


@pytest.mark.parametrize(
    "error", [None, ValueError("x"), KeyboardInterrupt(), cbnb.CancelFitException(), cbnb.CancelBatchException(), SystemExit(1)]
)
@pytest.mark.parametrize("how", ["profile", "profiling"])
def test_the_loop_is_as_before_however_it_ends(error, how):
    learn = noisy_learner()
    learn.fit(1)
    before = hot_path(learn)
    quiet = error is None or isinstance(error, cbnb.CancelFitException | cbnb.CancelBatchException)
    kind = cbnb.FitInterrupted if isinstance(error, KeyboardInterrupt) else type(error)
    cbs = Stops(error) if error else None
    p = None
    try:
        if how == "profile":
            learn.profile(cbs=cbs)
        else:
            with learn.profiling() as p:
                learn.fit(1, cbs=cbs)
    except BaseException as e:
        assert type(e) is kind
    else:
        assert quiet
    assert hot_path(learn) == before
    if p is not None:
        assert 4 <= p.batches["train"] <= 8 and p.wall == pytest.approx(sum(row.seconds for row in p.rows))
    learn.fit(1)


def profile_kept(learn):
    with learn.profiling(workers=()):
        learn.fit(1)


@pytest.mark.parametrize("how", ["profile", "profiling"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.filterwarnings("ignore:Exception ignored in")
def test_an_interrupt_at_any_line_leaves_everything_as_it_was(monkeypatch, how, twice):
    call, look = (lambda learn: learn.profile(workers=())) if how == "profile" else profile_kept, interrupts.look

    def look_closely(learn, with_weights):
        classes = [type(o) for o in (learn, learn.train_step, learn.eval_step, learn.callbacks._tables, *learn.metrics)]
        return look(learn, with_weights) | dict(classes=classes, path=learn.path, warnings=warnings.showwarning)

    monkeypatch.setitem(interrupts.CALLS, how, (call, how == "profiling"))
    monkeypatch.setattr(interrupts, "look", look_closely)
    monkeypatch.setattr(profiles, "measuring_cost", lambda clock: (0.0, 0.0))  # many lines
    monkeypatch.setattr(profiles, "_batch_cost", lambda clock: 0.0)
    results = list(interrupts.at_each(how, "line", places=60, twice=twice))
    assert len(results) >= 20
    # the block of `profiling` is ours: between its end and the generator, Python itself may lose an interrupted __exit__ until the
    # traceback is gone
    ours = "contextlib.py" if how == "profiling" else "nowhere"
    assert [(where, wrong) for where, wrong in results if wrong and not where.startswith(ours)] == []


def test_rewinding_after_the_block():
    learn = noisy_learner()
    before = hot_path(learn)
    with learn.profiling():
        learn.fit(1)
        learn.fit(1)
    learn.rewind()
    learn.fit(1)
    learn.rewind(2)
    assert type(learn) is Learner and learn.opt is None
    assert before["own"] == hot_path(learn)["own"] and "one_batch" not in vars(learn)


def test_rewinding_within_the_block():
    learn = noisy_learner()
    with learn.profiling() as p:
        learn.fit(1)
        learn.rewind()
        learn.fit(1)
    assert p.batches["train"] == 16 and type(learn) is Learner and len(learn.recorder.history) == 1


def test_copies_and_files_made_in_the_block_are_plain(tmp_path):
    learn = noisy_learner(path=tmp_path)
    with learn.profiling():
        learn.fit(1)
        twin = copy.deepcopy(learn)
        back = pickle.loads(pickle.dumps(learn))
        learn.export("a.pkl")
    assert type(twin) is Learner and type(back) is Learner
    assert type(cbnb.load_learner(tmp_path / "a.pkl", trust=True)) is Learner
    twin.fit(1)


def test_a_checkpoint_of_a_profiled_fit_continues_without(tmp_path):
    def stop(cb):
        if cb.epoch == 2:
            raise ZeroDivisionError

    def make():
        return noisy_learner(path=tmp_path)

    whole = make()
    torch.manual_seed(3)
    whole.fit(4)
    learn = make()
    torch.manual_seed(3)
    with pytest.raises(ZeroDivisionError), learn.profiling():
        learn.fit(4, cbs=[cbnb.Checkpoint(every_epochs=1), cbnb.Callback(after_epoch=stop)], resume=True)
    learn = make()
    learn.fit(4, cbs=cbnb.Checkpoint(every_epochs=1), resume=True)
    for a, b in zip(whole.model.parameters(), learn.model.parameters()):
        assert torch.equal(a, b)


def test_only_between_runs_and_once():
    learn = line_learner()
    found = []

    def inside(cb):
        for f in (cb.learn.profile, lambda: cb.learn.profiling().__enter__()):
            with pytest.raises(RuntimeError, match="is running"):
                f()
            found.append(f)

    learn.fit(1, cbs=cbnb.Callback(before_train=inside))
    assert len(found) == 2
    with learn.profiling(), pytest.raises(RuntimeError, match="already being profiled"):
        learn.profile()
    assert type(learn) is Learner


def test_no_room_to_take_back(monkeypatch):
    from cbnb.files import rewind

    monkeypatch.setattr(rewind, "point_size", lambda learn: 2**60)
    learn = line_learner()
    with pytest.raises(RuntimeError, match="learn.profiling"):
        learn.profile()
    assert not learn.recorder.history.runs
    with learn.profiling() as p:
        learn.fit(1)
    assert p.batches["train"] == 2


# workers


class Items(torch.utils.data.Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(self.seconds)
        return torch.ones(()), torch.ones(())


def test_workers_are_tried_and_leave_nothing():
    learn = line_learner(dls=cbnb.DataLoaders(DataLoader(Items(0.001), 4, shuffle=True), device="cpu"))
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # fork in a process with threads
        p = learn.profile(n_batch=20, workers=(1,))
    assert torch.equal(torch.get_rng_state(), state)
    assert learn.dls.train.num_workers == 0 and learn.dls.train._iterator is None
    assert p.about["num_workers"] == 0 and list(p.about["workers"]) in ([1], [])


def test_workers_are_not_tried_without_reason(monkeypatch):
    monkeypatch.setattr(profiles, "waiting_with", lambda *args: pytest.fail("tried"))
    fast = line_learner(dls=cbnb.DataLoaders(DataLoader(TensorDataset(*map(torch.cat, zip(*line_batches(4)))), 8), device="cpu"))
    p = Profile([Row("forward", "compute", "train", 1.0, 4), Row("wait for data", "data", "train", 0.1, 4)], dict(train=4, valid=0))
    profiles._try_workers(p, fast.dls.train, (2, 4))
    assert p.about == dict(num_workers=0)
    profiles._try_workers(p, line_batches(2), (2, 4))
    slow = line_learner(dls=cbnb.DataLoaders(DataLoader(Items(0.001), 4), device="cpu"))
    slow.profile(n_batch=5, workers=())


@pytest.mark.parametrize("now, given, tried", [(0, (2, 4), [2, 4]), (2, (2, 4), [0, 4]), (8, (2, 4), [0]), (2, (), []), (0, (), [])])
@pytest.mark.filterwarnings("ignore:This DataLoader will create 8 worker")
def test_which_numbers_of_workers_are_tried(monkeypatch, now, given, tried):
    found = []
    monkeypatch.setattr(profiles, "waiting_with", lambda dl, n, rest: found.append(n) or 1.0)
    p = Profile([Row("wait for data", "data", "train", 4.0, 4)], dict(train=4, valid=0))
    profiles._try_workers(p, DataLoader(Items(0), 4, num_workers=now), given)
    assert found == tried


def test_too_many_workers(monkeypatch):
    dl = DataLoader(TensorDataset(torch.ones(400), torch.ones(400)), 4, num_workers=1, persistent_workers=True)
    wait = profiles.waiting_with(dl, 0, 0.0)
    assert 0 < wait < 1 and dl.num_workers == 1 and dl._iterator is None


def test_workers_that_fail_are_told(monkeypatch):
    def fail(*args):
        raise RuntimeError("cannot pickle")

    monkeypatch.setattr(profiles, "waiting_with", fail)
    learn = line_learner(dls=cbnb.DataLoaders(DataLoader(Items(0.001), 4), device="cpu"))
    p = learn.profile(n_batch=5)
    assert "try 4 (trying it failed: RuntimeError: cannot pickle)" in p.findings[0]


# the device


class Event:
    """On a device on which time goes on when it is told to."""

    now = 0.0

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self, stream=None):
        self.at = Event.now

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return other.at - self.at


def test_device_times_and_waiting(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    class Kernels(Line):
        def forward(self, x):
            Event.now += 20
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=1)
            return super().forward(x)

    learn, show = line_learner(model=Kernels()), warnings.showwarning
    p = learn.profile(device=True)
    row = p.chosen("forward", phase="train")[0]
    assert row.device == pytest.approx(0.04) and row.syncs == 2
    assert modes == ["warn", 0] and warnings.showwarning is show
    assert "on device" in repr(p) and "forward makes the CPU wait for the device 1 times a training batch" in "\n".join(p.findings)


def test_other_devices_have_times_of_the_cpu():
    class Loaders:
        device, train = "mps", ()

    class On:
        dls, opt = Loaders, None

    assert profiles._about(On)["notes"] == ["times of the CPU, since mps has no events to measure with"]
    p = Profile([Row("forward", "compute", "train", 1.0, 1)], about=profiles._about(On))
    assert str(p).splitlines()[0] == "1 s, times of the CPU, since mps has no events to measure with"


def test_nested_device_times_are_divided():
    device, watch = DeviceTimes(lambda: Event(True)), Stopwatch(Clock())

    class loop:
        training = True

    def kernel():
        Event.now += 10

    inner = device.timed(kernel, watch.both("inner", "compute"), loop)

    def call():
        kernel()
        inner()

    outer = device.timed(call, watch.both("outer", "compute"), loop)
    outer()
    device.drain(wait=True)
    assert [watch.parts[name, "train"].device for name in ("inner", "outer")] == pytest.approx([0.01, 0.01])


# in a kernel


@pytest.fixture(scope="module")
def page():
    with notebooks.clean_kernels():
        page = Kernel()
        page.run(SETUP)
        try:
            yield page
        finally:
            page.client.stop_channels()
            page.manager.shutdown_kernel(now=True)


def test_the_dashboard_has_rows(page):
    code = """
learn = digits_learner(40)
p = learn.profile(workers=())
print(p.seconds(group='display') > 0, 'table of epochs' in p, p.batches, len(learn.recorder.history), type(learn).__name__)
display(p)
"""
    printed, shown = page.run(code)
    assert printed.splitlines()[-1] == "True True {'train': 40, 'valid': 20} 0 Learner"
    assert any("40 training batches" in m["content"].get("data", {}).get("text/html", "") for m in shown)


# the result


def test_text_html_and_data():
    p = Profile([Row("<img>.after_fit", "callbacks", "", 2.0, 1), Row("forward", "compute", "train", 1.0, 10)], dict(train=10, valid=0))
    assert [row.name for row in p] == ["<img>.after_fit", "forward"] and len(p) == 2
    assert "<img>" not in p._repr_html_() and "&lt;img&gt;" in p._repr_html_()
    lines = str(p).splitlines()
    assert lines[0] == "3 s, 10 training batches" and lines[2].split() == ["<img>.after_fit", "2", "s", "66.7%", "1"]
    assert p.to_dict()["rows"][1]["per_batch"] == 0.1
    assert pickle.loads(pickle.dumps(p)) == p
    with pytest.raises(KeyError, match="the parts are '<img>.after_fit', 'forward'"):
        p["nothing"]


def test_data_frame():
    pytest.importorskip("pandas")
    p = Profile([Row("forward", "compute", "train", 1.0, 10)], dict(train=10, valid=0))
    assert list(p.to_df()["per_batch"]) == [0.1]


def test_empty_profile():
    p = Profile()
    assert repr(p) == p._repr_html_() == "Profile(nothing was measured yet)" and p.findings == [] and p.share("x") == 0
    with pytest.raises(TypeError, match="with learn.profiling"), p:
        pass
    learn = line_learner()
    with learn.profiling(clock=Clock()) as p:
        pass
    assert p.wall == 0 and p.rows == []


def test_comparison():
    a = Profile([Row("forward", "compute", "train", 1.0, 10), Row("old", "callbacks", "train", 0.5, 10)], dict(train=10))
    b = Profile([Row("forward", "compute", "train", 1.0, 20), Row("<new>", "callbacks", "", 0.5, 10)], dict(train=20))
    c = b - a
    assert isinstance(c, Comparison)
    assert [(row[0], *row[2:]) for row in c.rows] == [("forward", 0.1, 0.05), ("old", 0.05, 0), ("<new>", 0, 0.5)]
    words = [line.split()[-1] for line in repr(c).splitlines()]
    assert words == ["change", "+0%", "-50%", "gone", "new"] and "&lt;new&gt;" in c._repr_html_()


def test_figure():
    rows = [Row(f"part {i}", "compute", "train", 1.0 + i, 1) for i in range(30)]
    ax = Profile(rows, dict(train=1)).plot(most=5, return_fig=True).axes[0]
    labels = [t.get_text() for t in ax.get_yticklabels()]
    assert labels[:2] == ["all", "part 29 (train)"] and len(labels) == 6


@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_parts_that_a_callback_has_replaced_on_the_step_are_found(clock, mode):
    """Mixed precision does so for the length of a run; afterwards nothing is left on the step."""
    learn = slow_learner(clock)
    learn.add_cb(cbnb.MixedPrecision(mode))
    p = learn.profile(clock=clock)
    assert seconds(p, "forward", "wait for data", "loop") == [0.008, 0.016, 0]
    assert p.wall == pytest.approx(0.024) and not set(vars(learn.train_step)) & set(profiles.STEP_PARTS)
