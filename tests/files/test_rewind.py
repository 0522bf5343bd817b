"""`learn.rewind()` takes back a fit, whatever the fit has done: everything is as before it, bit for bit."""

import copy
import gc
import itertools
import statistics
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import cbnb.all as cbnb
from cbnb.basics.random_state import rng_state
from cbnb.files import rewind
from cbnb.files.rewind import RestorePoint, RestorePoints, point_size
from cbnb.files.state import loaders_of
from helpers import Line, ab, line_batches, line_learner


def differs(a, b, where=""):
    """Where two values differ in a bit, empty if they do not; the time of an epoch may."""
    if isinstance(a, torch.Tensor):
        same = isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(torch.nan_to_num(a, 77), torch.nan_to_num(b, 77))
        return "" if same else where
    if isinstance(a, np.ndarray):
        return "" if np.array_equal(a, b) else where
    if isinstance(a, dict):
        if list(a) != list(b):
            return f"{where}: {list(a)} and {list(b)}"
        return next((found for k in a if k not in ("time", "start") and (found := differs(a[k], b[k], f"{where}.{k}"))), "")
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)}"
        return next((found for i, (x, y) in enumerate(zip(a, b)) if (found := differs(x, y, f"{where}[{i}]"))), "")
    return "" if a == b or a != a and b != b else f"{where}: {a!r} and {b!r}"


def group_of(group):
    return {k: [id(p) for p in v] if k == "params" else copy.deepcopy(v) for k, v in group.items()}


def opt_of(opt):
    if opt is None:
        return None
    return dict(
        id=id(opt),
        groups=[(id(group), group_of(group)) for group in opt.param_groups],
        state=[(id(p), {k: copy.deepcopy(v) for k, v in s.items()}) for p, s in opt.state.items()],
    )


def everything(learn):
    """All that a fit may change: values, and which objects they are."""
    model = learn.model
    return dict(
        attributes={k: id(v) for k, v in sorted(vars(learn).items()) if k != "restore_points"},
        lr=copy.deepcopy(learn.lr),
        modules=[(name, id(m), m.training) for name, m in model.named_modules()],
        tensors=[(name, id(t), t.detach().clone()) for name, t in (*model.named_parameters(), *model.named_buffers())],
        trained=[(p.requires_grad, p.grad is None) for p in model.parameters()],
        opt=opt_of(learn.opt),
        cbs=[(id(cb), copy.deepcopy(cb.state_dict())) for cb in learn.cbs],
        history=learn.recorder.history.to_dict(),
        runs=[id(run) for run in learn.recorder.history.runs],
        random=copy.deepcopy(rng_state(loaders_of(learn))),
    )


def values(learn):
    """What a fit has led to; two learners that did the same have it in common."""
    return dict(
        tensors={name: t.clone() for name, t in learn.model.state_dict().items()},
        opt=copy.deepcopy(learn.opt.state_dict()),
        history=learn.recorder.history.to_dict(),
        random=rng_state(loaders_of(learn)),
    )


class Do(cbnb.Callback):
    """Does something once, in batch 1 of epoch 1."""

    order = 20

    def __init__(self, what):
        self.what = what

    def after_batch(self):
        if self.learn.training and (self.learn.epoch, self.learn.iter) == (1, 1):
            self.what(self.learn)


def interrupt(learn):
    raise KeyboardInterrupt


def fail(learn):
    raise ValueError("a bad batch")


def cancel(learn):
    raise cbnb.CancelFitException


def diverge(learn):
    for group in learn.opt.param_groups:
        group["lr"] = 1e30


def add_group(learn):
    learn.more = nn.Parameter(torch.ones(3))
    learn.opt.add_param_group(dict(params=[learn.more], lr=3.0))


def remove_group(learn):
    learn.opt.param_groups.pop(0)


def shrink_group(learn):
    learn.opt.param_groups[0]["params"].pop()
    learn.opt.param_groups[0]["new"] = 1
    learn.freeze()


def add_callbacks(learn):
    learn.add_cbs([cbnb.GradientClip(1.0), cbnb.TerminateOnNaN])


def remove_callbacks(learn):
    learn.remove_cb(cbnb.GradientAccumulation)


def replace_model(learn):
    learn.model = copy.deepcopy(learn.model)
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=0.1)


def replace_layer(learn):
    learn.model[0] = nn.Linear(20, 32)
    learn.model.append(nn.Linear(4, 4))


def replace_opt(learn):
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=0.1)
    learn.opt_func, learn.lr, learn.loss_func = torch.optim.SGD, 7.0, nn.NLLLoss()


def load_other(learn):
    learn.model.load_state_dict({k: torch.zeros_like(v) for k, v in learn.model.state_dict().items()})
    learn.opt.load_state_dict(learn.opt.state_dict())


def forget_history(learn):
    del learn.recorder.history.runs[0]
    learn.lr_mult = 3


DEEDS = [
    lambda learn: None,
    interrupt,
    fail,
    cancel,
    diverge,
    add_group,
    remove_group,
    shrink_group,
    add_callbacks,
    remove_callbacks,
    replace_model,
    replace_layer,
    replace_opt,
    load_other,
]
NAMES = [deed.__name__.strip("<>") for deed in DEEDS]


def groups(model):
    return [list(model[0].parameters()), [p for m in model[1:] for p in m.parameters()]]


def net():
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))


def data():
    torch.manual_seed(1)
    x = torch.randn(400, 20)
    y = (x[:, :4] + 0.5 * torch.randn(400, 4)).argmax(1)
    train = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=16, shuffle=True)
    return cbnb.DataLoaders(train, DataLoader(TensorDataset(x[320:], y[320:]), batch_size=40), device="cpu")


def learner(path, **kwargs):
    """Dropout, batch norm, shuffling, accumulation, MixUp, trackers, two parameter groups."""
    torch.manual_seed(0)
    cbs = [cbnb.GradientAccumulation(48), cbnb.MixUp(0.4), cbnb.EarlyStopping(patience=9), cbnb.SaveModel(with_opt=True)]
    settings = dict(path=path, cbs=cbs, metrics=cbnb.accuracy, splitter=groups) | kwargs
    return cbnb.Learner(data(), net(), nn.CrossEntropyLoss(), **settings)


def try_fit(learn, deed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            learn.fit(3, 0.01, cbs=Do(deed))
        except (KeyboardInterrupt, ValueError, RuntimeError, LookupError):
            pass


@pytest.mark.parametrize("trained", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("deed", DEEDS, ids=NAMES)
def test_whatever_a_fit_has_done_is_taken_back(tmp_path, capsys, deed, trained):
    learn = learner(tmp_path)
    if trained:
        learn.fit_one_cycle(2, 0.01)
    before = everything(learn)
    try_fit(learn, deed)
    assert differs(before, everything(learn))
    learn.rewind()
    assert not differs(before, everything(learn))
    assert "took back fit(3, 0.01, cbs=Do)" in capsys.readouterr().out
    learn.fit_one_cycle(2, 0.01)
    again = learner(tmp_path)
    for _ in range(1 + trained):
        again.fit_one_cycle(2, 0.01)
    assert not differs(values(learn), values(again))


@pytest.mark.parametrize("kind", ["load", "load_state_dict", "freeze", "lr_find", "validate", "lr", "assign", "callbacks"])
def test_what_came_after_the_fit_goes_with_it(tmp_path, kind):
    learn = learner(tmp_path)
    learn.fit(1, 0.01)
    learn.save("one")
    state = copy.deepcopy(learn.state_dict())
    before = everything(learn)
    learn.fit(2, 0.01)
    if kind == "load":
        learn.load("one")
    elif kind == "load_state_dict":
        learn.load_state_dict(state)
    elif kind == "freeze":
        learn.freeze()
    elif kind == "lr_find":
        learn.lr_find(num_it=10, show_plot=False)
    elif kind == "validate":
        learn.validate()
        learn.get_preds()
    elif kind == "lr":
        learn.lr, learn.wd = 3.0, 0.7
    elif kind == "assign":
        learn.model, learn.metrics, learn.new = nn.Linear(20, 4), None, 1
    else:
        learn.add_cb(cbnb.GradientClip(1.0)).remove_cb(cbnb.MixUp)
    learn.rewind()
    assert not differs(before, everything(learn))
    assert not hasattr(learn, "new") and learn.mix_up in learn.cbs


@pytest.mark.parametrize("between", ["freeze", "load", "lr_find", "resume"])
def test_what_was_done_before_the_fit_stays(tmp_path, between):
    learn = learner(tmp_path)
    learn.fit(1, 0.01, cbs=cbnb.Checkpoint())
    learn.save("one")
    learn.fit(1, 0.01)
    if between == "freeze":
        learn.freeze()
    elif between == "load":
        learn.load("one")
    elif between == "lr_find":
        learn.lr_find(num_it=10, show_plot=False)
    before = everything(learn)
    learn.fit(2, 0.01, resume=between == "resume")
    learn.unfreeze()
    learn.rewind()
    assert not differs(before, everything(learn))
    assert learn.n_trained() == 2


def test_a_resumed_fit_is_taken_back(tmp_path):
    learn = learner(tmp_path)
    try_fit(learn, lambda learn: None)
    done = learner(tmp_path, cbs=cbnb.Checkpoint(every_steps=5))
    with pytest.raises(ValueError):
        done.fit(3, 0.01, cbs=Do(fail))
    fresh = learner(tmp_path, cbs=cbnb.Checkpoint(every_steps=5))
    before = everything(fresh)
    fresh.fit(3, 0.01, resume=True)
    assert fresh.recorder.history[0].status == "done"
    fresh.rewind()
    assert not differs(before, everything(fresh)) and fresh.opt is None


def test_a_stopped_fit_has_the_last_validation_loss():
    def press(cb):
        if cb.training and cb.epoch == 2:
            raise KeyboardInterrupt

    learn = line_learner()
    with pytest.raises(KeyboardInterrupt):
        learn.fit(3, cbs=cbnb.Callback(after_loss=press))
    run = learn.recorder.last()
    assert [row.get("valid_loss") is None for row in run.epochs] == [False, False, True]
    assert learn.runs[0].row(1)[5] == f"{run.epochs[1]['valid_loss']:.4g}"


def test_several_fits_at_once():
    learn = line_learner()
    seen = []
    for lr in (0.1, 0.2, 0.3):
        seen.append(everything(learn))
        learn.fit(1, lr)
    assert [p.called for p in learn.runs] == ["fit(1, 0.1)", "fit(1, 0.2)", "fit(1, 0.3)"]
    learn.rewind(2)
    assert not differs(seen[1], everything(learn)) and len(learn.runs) == 1
    learn.rewind()
    assert not differs(seen[0], everything(learn)) and learn.opt is None and len(learn.runs) == 0


def test_only_the_last_points_are_kept():
    learn = line_learner()
    for _ in range(5):
        learn.fit(1)
    assert len(learn.runs) == 3 and [run.number for p in learn.runs for run in p.runs] == [2, 3, 4]
    learn.keep_restore_points = 1
    assert len(learn.runs) == 1 and learn.keep_restore_points == 1
    learn.fit(1)
    assert len(learn.runs) == 1 and learn.runs[0].runs[0].number == 5
    learn.rewind()
    assert learn.n_trained() == 5 and learn.keep_restore_points == 1
    for n in (-1, 1.5, "3", None):
        with pytest.raises((TypeError, ValueError), match="keep_restore_points"):
            learn.keep_restore_points = n


def test_switched_off_a_fit_leaves_no_point():
    learn = line_learner()
    learn.fit(1)
    learn.keep_restore_points = 0
    assert len(learn.runs) == 0
    learn.fit(1)
    assert len(learn.runs) == 0
    with pytest.raises(RuntimeError, match="set learn.keep_restore_points = 3 before the next fit"):
        learn.rewind()
    assert "switched off" in repr(learn.runs)
    learn.keep_restore_points = 2
    learn.fit(1)
    learn.rewind()
    assert learn.n_trained() == 2


def test_errors_say_what_can_be_done():
    learn = line_learner()
    with pytest.raises(RuntimeError, match="there is no fit to take back"):
        learn.rewind()
    learn.fit(1)
    learn.fit(1)
    with pytest.raises(ValueError, match=r"n=5 should be at most 2, the number of fits that can be taken back.*keep_restore_points = 5"):
        learn.rewind(5)
    for n in (0, -1, 1.5, "2"):
        with pytest.raises((TypeError, ValueError), match="n="):
            learn.rewind(n)
    assert len(learn.runs) == 2 and learn.n_trained() == 2
    for purpose in ("fit", "validate", "get_preds", "lr_find"):
        run = getattr(learn, purpose)
        cb = cbnb.Callback(before_batch=lambda cb: learn.rewind())
        with pytest.raises(RuntimeError, match="rewind it when the run has ended"):
            run(1, cbs=cb) if purpose == "fit" else run(cbs=cb)
        assert len(learn.runs) == 2 + (purpose == "fit")
        if purpose == "fit":
            learn.rewind()


def test_a_wrong_argument_leaves_no_point():
    learn = line_learner()
    learn.fit(1)
    after = ab(learn)
    for wrong in (dict(n_epoch="1"), dict(n_epoch=0), dict(n_epoch=1, start_epoch=2), dict(n_epoch=1, valid_every=0), dict(n_epochs=1)):
        with pytest.raises((TypeError, ValueError)):
            learn.fit(**wrong)
    with pytest.raises(TypeError):
        learn.fit_one_cycle()
    assert len(learn.runs) == 1 and ab(learn) == after
    learn.rewind()
    assert ab(learn) == (0, 0)


def test_a_fit_that_fails_before_its_first_event_is_taken_back():
    learn = line_learner(opt_func=torch.optim.Adam)
    learn.fit(1)
    before = everything(learn)
    with pytest.raises((TypeError, ValueError)):
        learn.fit(1, lr="high", reset_opt=True)
    assert [p.status for p in learn.runs] == ["done", "failed"] and learn.runs[1].row(1)[:4] == (
        "",
        "fit(1, lr='high', reset_opt=True)",
        "",
        "failed",
    )
    learn.rewind()
    assert not differs(before, everything(learn))


# what is called, and what is one fit


def test_fine_tune_is_one_fit(tmp_path):
    learn = learner(tmp_path)
    before = everything(learn)
    learn.fine_tune(2, 0.01)
    assert [p.called for p in learn.runs] == ["fine_tune(2, 0.01)"] and len(learn.runs[0].runs) == 2
    assert learn.runs[0].row(1)[:4] == ("0, 1", "fine_tune(2, 0.01)", "3 of 3", "done")
    learn.rewind()
    assert not differs(before, everything(learn)) and learn.opt is None


@pytest.mark.parametrize(
    "name, args, kwargs",
    [
        ("fit_one_cycle", (2, 0.1), {}),
        ("fit_flat_cos", (2,), dict(lr=0.1)),
        ("fit_sgdr", (1, 2), {}),
        ("fine_tune", (1,), dict(freeze_epochs=0)),
    ],
)
def test_each_method_that_trains_leaves_a_point(name, args, kwargs):
    learn = line_learner()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(learn, name)(*args, **kwargs)
    words = [*map(repr, args), *(f"{k}={v}" for k, v in kwargs.items())]
    assert [p.called for p in learn.runs] == [f"{name}({', '.join(words)})"]
    learn.rewind()
    assert learn.opt is None and ab(learn) == (0, 0)


def test_other_runs_leave_no_point():
    learn = line_learner()
    learn.validate()
    learn.get_preds()
    learn.lr_find(num_it=5, show_plot=False)
    assert len(learn.runs) == 0

    class Validates(cbnb.Callback):
        def after_epoch(self):
            self.learn.validate()

    learn.fit(2, cbs=Validates)
    assert len(learn.runs) == 1


# `with` blocks around a fit


def test_a_block_that_has_ended_has_no_part_in_what_is_restored():
    learn = line_learner(progress=True, cbs=cbnb.GradientClip(1.0))
    names = [str(cb) for cb in learn.cbs]
    with learn.no_bar(), learn.no_logging(), learn.no_mbar(), learn.added_cbs(cbnb.TerminateOnNaN):
        learn.fit(1)
    learn.rewind()
    assert [str(cb) for cb in learn.cbs] == names and learn.logger is print and learn.create_mbar
    assert learn.progress in learn.cbs and not hasattr(learn, "terminate_on_nan")


def test_rewound_within_the_same_block():
    learn = line_learner(progress=True)
    names = [str(cb) for cb in learn.cbs]
    with learn.no_bar(), learn.no_logging(), learn.added_cbs(cbnb.GradientClip(1.0)):
        within = [str(cb) for cb in learn.cbs]
        learn.fit(1)
        learn.rewind()
        assert [str(cb) for cb in learn.cbs] == within and learn.logger is not print
    assert [str(cb) for cb in learn.cbs] == names and learn.logger is print


def test_rewound_within_a_later_block():
    learn = line_learner(progress=True)
    names = [str(cb) for cb in learn.cbs]
    learn.fit(1)
    with learn.no_bar(), learn.added_cbs(cbnb.GradientClip(1.0)):
        within = [str(cb) for cb in learn.cbs]
        learn.rewind()
        assert [str(cb) for cb in learn.cbs] == within
    assert [str(cb) for cb in learn.cbs] == names and not learn.callbacks.blocks


# callbacks


class Counts(cbnb.Callback):
    """Attributes of every kind."""

    def __init__(self):
        self.n, self.seen, self.best, self.average = 0, [], {}, torch.zeros(2)

    def after_batch(self):
        self.n += 1
        self.seen.append(self.n)
        self.best[self.n] = self.n
        self.average += 1


def test_attributes_of_callbacks_are_those_from_before():
    learn = line_learner(cbs=Counts)
    learn.fit(1)
    cb, seen = learn.counts, learn.counts.seen
    learn.fit(2)
    cb.late = True
    learn.rewind()
    assert learn.counts is cb and cb.n == 3 and cb.seen is seen == [1, 2, 3] and len(cb.best) == 3
    assert cb.average.tolist() == [3, 3] and not hasattr(cb, "late")


def test_callbacks_for_validation_only_are_restored_too():
    counts = Counts()
    counts.run_in = ("validate",)
    learn = line_learner(cbs=counts)
    learn.fit(1, cbs=cbnb.Callback(after_epoch=lambda cb: learn.validate()))
    assert counts.n
    learn.rewind()
    assert counts.n == 0


class Big(Dataset):
    def __deepcopy__(self, memo):
        raise AssertionError("a data set was copied")


def test_data_of_a_callback_is_not_copied():
    cb = Counts()
    cb.data, cb.loader = Big(), DataLoader([1, 2])
    learn = line_learner(cbs=cb)
    data, loader = cb.data, cb.loader
    learn.fit(1)
    learn.rewind()
    assert cb.data is data and cb.loader is loader and cb.n == 0


def test_a_scheduler_of_torch_goes_back():
    def new():
        return line_learner(cbs=cbnb.TorchScheduler(lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)))

    learn, other = new(), new()
    learn.fit(2)
    learn.fit(2)
    learn.rewind()
    other.fit(2)
    learn.fit(2)
    other.fit(2)
    assert ab(learn) == ab(other) and learn.recorder.lrs == other.recorder.lrs


def test_a_callback_that_failed_to_be_copied_is_no_obstacle():
    cb = Counts()
    cb.stream = (i for i in range(3))
    learn = line_learner(cbs=cb)
    learn.fit(1)
    learn.rewind()
    assert cb.n == 0 and next(cb.stream) == 0


# loaders, optimizers, steps


@pytest.mark.parametrize("workers, persistent", [(0, False), (1, False), (1, True)])
def test_the_same_batches_come_again(workers, persistent):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 1), torch.randn(24, 1))
    own = torch.Generator().manual_seed(3)
    dl = DataLoader(data, 4, shuffle=True, num_workers=workers, persistent_workers=persistent, generator=own)
    learn = line_learner(dls=cbnb.DataLoaders(dl, device="cpu"))
    learn.fit(2)
    first = values(learn)
    learn.rewind()
    learn.fit(2)
    assert not differs(first, values(learn))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam"])
def test_the_state_of_an_optimizer(name):
    learn = line_learner(opt_func=getattr(torch.optim, name))
    learn.fit(1)
    before = everything(learn)
    learn.fit(1)
    after = values(learn)
    learn.rewind()
    assert not differs(before, everything(learn))
    learn.fit(1)
    assert not differs(after, values(learn))


def test_several_optimizers():
    model = Line()
    opts = [torch.optim.Adam([model.a], lr=0.1), torch.optim.SGD([model.b], lr=0.1, momentum=0.9)]
    learn = line_learner(model=model, opt_func=cbnb.MultiOptimizer(opts))
    learn.fit(1)
    before = everything(learn)
    learn.fit(1, reset_opt=True)
    learn.rewind()
    assert not differs(before, everything(learn))


def test_networks_of_a_step():
    critic = nn.Linear(1, 1)

    def step(x, y):
        with torch.no_grad():
            critic.weight += 1
        return (learn.model(x) - y).pow(2).mean()

    learn = line_learner(train_step=step)
    weight = critic.weight.clone()
    learn.fit(1)
    assert not torch.equal(weight, critic.weight)
    learn.rewind()
    assert torch.equal(weight, critic.weight)


def test_a_learner_without_callbacks():
    learn = line_learner(default_cbs=False)
    learn.fit(1)
    with pytest.raises(KeyboardInterrupt):
        learn.fit(3, cbs=Do(interrupt))
    assert [p.status for p in learn.runs] == ["done", "interrupted"] and learn.runs[0].row(2)[0] == ""
    learn.rewind(2)
    assert ab(learn) == (0, 0) and learn.opt is None


# what is left and what is shown


def test_the_table_of_what_can_be_taken_back():
    learn = line_learner()
    assert len(learn.runs) == 0 and "there is no fit to take back" in repr(learn.runs) and "no fit" in learn.runs._repr_html_()
    learn.fit(2, cbs=[cbnb.GradientClip(1.0)])
    with pytest.raises(KeyboardInterrupt):
        learn.fit(3, "<b>" and 0.1, cbs=Do(interrupt))
    head, first, second = repr(learn.runs).splitlines()
    assert head.split() == ["fit", "called", "epochs", "status", "train_loss", "valid_loss", "memory", "to", "take", "it", "back"]
    assert first.startswith("0    fit(2, cbs=[GradientClip])") and "2 of 2  done" in first and first.endswith("8 B     learn.rewind(2)")
    assert second.startswith("1    fit(3, 0.1, cbs=Do)") and "1 of 3  interrupted" in second and second.endswith("learn.rewind()")
    page = learn.runs._repr_html_()
    assert page.count("<tr>") == 3 and "interrupted" in page and "learn.rewind(2)" in page


def test_a_call_in_words():
    words = rewind._call_words
    assert words("fit", (1, slice(1e-3)), dict(cbs=None)) == "fit(1, slice(None, 0.001, None), cbs=None)"
    assert (
        words("fit", (1,), dict(cbs=[Counts, Counts()], lr=torch.ones(3), x="y" * 99)) == "fit(1, cbs=[Counts, Counts], lr=Tensor, x=str)"
    )
    point = RestorePoint("fit(1, '<b>')")
    points = RestorePoints(line_learner())
    points.points.append(point)
    assert "&lt;b&gt;" in points._repr_html_() and "no point" in points._repr_html_()


def test_a_model_that_is_too_large_gets_no_point(monkeypatch):
    learn = line_learner(opt_func=torch.optim.Adam)
    learn.fit(1)
    monkeypatch.setattr(rewind.RestorePoints, "ask_from", 0)
    monkeypatch.setattr(rewind, "free_memory", lambda: 60.0)
    learn.fit(1)
    assert [p.n_bytes for p in learn.runs] == [8, 0]  # 32 bytes would be more than a quarter of 68
    with pytest.raises(
        RuntimeError,
        match=r"fit\(1\) cannot be taken back, because it left no restore point: a restore point would take 32 B, .* may take 17 B, 25% of the free memory",
    ):
        learn.rewind()
    assert repr(learn.runs).splitlines()[2].rstrip().endswith("no point") and learn.n_trained() == 2
    learn.rewind(2)
    assert learn.opt is None
    monkeypatch.setattr(rewind, "free_memory", lambda: 200.0)
    for _ in range(4):
        learn.fit(1)
    assert [p.n_bytes for p in learn.runs] == [32]  # with the one before it would be 64 of at most 58


def test_what_a_point_needs():
    learn = line_learner(opt_func=torch.optim.Adam, cbs=Counts)
    assert point_size(learn) == 8 + 8
    learn.fit(1)
    assert point_size(learn) == 4 * 8 + 8
    assert rewind.size_words(0) == "0 B" and rewind.size_words(1234) == "1.23 KB" and rewind.size_words(5e12) == "5 TB"
    assert rewind.size_words(999.7) == "1 KB"


def test_lazy_layers_get_no_point_and_train():
    learn = line_learner(model=nn.LazyLinear(1), dls=cbnb.DataLoaders([(torch.ones(2, 1), torch.ones(2, 1))], device="cpu"))
    learn.model(torch.ones(2, 1))
    learn.fit(1)
    learn.rewind()
    lazy = line_learner(model=nn.LazyLinear(1))
    assert RestorePoints(lazy).take(lazy, "fit(1)").restore is None


def test_a_copy_of_a_learner_has_points_of_its_own(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.fit(1)
    for other in (copy.copy(learn), copy.deepcopy(learn)):
        assert len(other.runs) == 0 and len(learn.runs) == 1
        with pytest.raises(RuntimeError, match="no fit to take back"):
            other.rewind()
    other.fit(1)
    after = ab(learn)
    other.rewind()
    assert ab(learn) == after == ab(other) and len(learn.runs) == 1
    learn.export("all.pkl")
    loaded = cbnb.load_learner(tmp_path / "all.pkl", trust=True)
    assert len(loaded.runs) == 0 and len(learn.runs) == 1


def test_plots_of_a_fit_that_was_taken_back():
    learn = line_learner(n=8)
    learn.fit(2)
    learn.fit(2)
    run, history = learn.recorder.history[1], learn.recorder.history
    table = run._repr_html_()
    learn.rewind()
    assert run._repr_html_() == table and run.n_steps == 16 and len(run.steps["lr"]) == 16
    assert learn.recorder.history is history and len(history) == 1
    assert learn.recorder.plot_losses(return_fig=True) is not None
    learn.fit(1)
    assert run.n_steps == 16 and history[1].n_steps == 8 and history[1].number == 1


def test_points_keep_no_learner_and_no_batch_alive():
    learn = line_learner()
    batch = weakref.ref(learn.dls.train[0][0])
    learn.dls.train.clear() if False else None
    learn.fit(1)
    ref = weakref.ref(learn)
    del learn
    gc.collect()
    assert ref() is None and batch() is None


def test_rewinding_a_fit_takes_its_memory_back():
    learn = line_learner(
        model=nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1)), dls=cbnb.DataLoaders(line_batches(), device="cpu")
    )
    learn.loss_func = lambda pred, y: (pred[:, 0] - y).pow(2).mean()
    learn.fit(1)
    point = weakref.ref(learn.runs[0])
    learn.rewind()
    gc.collect()
    assert point() is None


def test_a_point_costs_little():
    """About 0.3 ms for a small net; a machine that is busy with other things takes longer."""
    learn = cbnb.Learner(cbnb.DataLoaders(line_batches(), device="cpu"), Line(), nn.MSELoss())
    with learn.no_bar(), learn.no_logging():
        learn.fit(1)
        took = []
        for _ in range(50):
            begin = time.perf_counter()
            learn.runs.take(learn, "fit(1)")
            took.append(time.perf_counter() - begin)
    assert statistics.median(took) < 5e-3


def test_rewind_and_fit_again_and_again():
    learn = line_learner(opt_func=torch.optim.Adam)
    learn.fit(1)
    found = []
    for lr, _ in itertools.product((0.1, 0.3), range(2)):
        learn.fit(1, lr)
        found.append(ab(learn))
        learn.rewind()
    assert found[0] == found[1] != found[2] == found[3] and len(learn.runs) == 1


CELL = """
class Counts(cbnb.Callback):
    def __init__(self, by=1): self.by, self.n = by, 0
    def after_batch(self): self.n += self.by
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def forward(self, x): return self.layer(x)
"""


@pytest.mark.parametrize("again", ["callback", "settings", "model", "nothing"])
def test_redo_after_cells_were_run_again(again):
    """The state after the fit comes back, whatever the cell has made meanwhile, and the sentence says what is put aside."""
    cell = {"cbnb": cbnb, "nn": nn, "__name__": "__main__"}
    exec(CELL, cell)
    g = torch.Generator().manual_seed(0)
    batches = list(zip(torch.randn(4, 4, 8, generator=g), torch.randn(4, 4, 1, generator=g)))
    learn = cbnb.Learner(cbnb.DataLoaders(batches, device="cpu"), cell["Net"](), nn.MSELoss(), cbs=cell["Counts"]())
    learn.remove_cb(cbnb.ProgressCallback).fit(1)
    learn.fit(1)
    weights = copy.deepcopy(learn.model.state_dict())
    learn.runs.take_back(1, redo=True)
    exec(CELL, cell)
    if again == "callback":
        learn.add_cb(cell["Counts"]())
    if again == "settings":
        learn.add_cb(cell["Counts"](2))
    if again == "model":
        learn.model = cell["Net"]()
    said = learn.runs.redo()
    assert all(torch.equal(weights[name], value) for name, value in learn.model.state_dict().items()) and learn.counts.n == 8
    assert ("learn.model is the earlier model again" in said) == (again == "model")
    assert ("without those added since: counts" in said) == (again in ("callback", "settings"))
    learn.fit(1)
    assert learn.counts.n == 12 and len(learn.recorder.history) == 3


def test_a_call_that_changes_nothing_costs_no_restore_point():
    learn = line_learner()
    for _ in range(3):
        learn.fit(1)
    held = list(learn.runs.points)
    with pytest.raises((TypeError, ValueError)):
        learn.fit("many")
    assert learn.runs.points == held and len(held) == 3
    learn.fit(1)
    assert learn.runs.points[:2] == held[1:] and len(learn.runs.points) == 3
