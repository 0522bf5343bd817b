"""Files: whole or not there, and running nobody's code."""

import os
import pickle
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.checkpoint import write_whole
from helpers import Line, ab, line_batches, line_learner, same_bits


def adam_learner(tmp_path, **kwargs):
    return line_learner(path=tmp_path, opt_func=torch.optim.Adam, **kwargs)


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_save_and_load(tmp_path):
    learn = adam_learner(tmp_path)
    learn.fit(2)
    file = learn.save("one")
    assert file == tmp_path / "models" / "one.pth" and files(tmp_path) == ["models/one.pth"]
    at_save = ab(learn)
    learn.fit(1)
    after = ab(learn)
    other = adam_learner(tmp_path)
    assert other.load("one") is other and ab(other) == at_save
    assert other.opt.state_dict()["state"][0]["step"] == 4
    other.fit(1)  # goes on as the first one did
    assert ab(other) == after


def test_saving_without_an_optimizer(tmp_path):
    learn = adam_learner(tmp_path)
    learn.fit(1)
    learn.save("weights", with_opt=False)
    assert set(torch.load(tmp_path / "models/weights.pth", weights_only=True)) == {"a", "b"}
    with pytest.warns(UserWarning, match="weights has no optimizer state") as seen:
        learn.load("weights")
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.load("weights", with_opt=False)
        adam_learner(tmp_path).load("weights")


def test_an_optimizer_that_does_not_fit_is_left_out_with_a_warning(tmp_path):
    learn = adam_learner(tmp_path)
    learn.fit(1)
    learn.save("one")
    other = adam_learner(tmp_path, splitter=lambda m: [[m.a], [m.b]])
    with pytest.warns(UserWarning, match="the optimizer was not loaded") as seen:
        other.load("one")
    assert seen[0].filename == __file__ and ab(other) == ab(learn)
    other.fit(1)


def test_names_with_folders_and_dots(tmp_path):
    """D42: folders in the name were not made."""
    learn = line_learner(path=tmp_path)
    for name, file in (("a/b/best", "models/a/b/best.pth"), ("v1.0", "models/v1.0.pth"), ("x.pth", "models/x.pth")):
        assert learn.save(name) == tmp_path / file
        learn.load(name)
    assert learn.save(tmp_path / "elsewhere" / "y") == tmp_path / "elsewhere" / "y.pth"
    learn.path, learn.model_dir = tmp_path / "new", "m"
    assert learn.save("z") == tmp_path / "new/m/z.pth"


def test_strictness(tmp_path):
    line_learner(path=tmp_path).save("line")
    other = line_learner(path=tmp_path, model=nn.Linear(1, 1))
    before = other.model.weight.clone()
    with pytest.raises(RuntimeError, match="weight"):
        other.load("line")
    other.load("line", strict=False)
    assert torch.equal(before, other.model.weight)
    with pytest.raises(FileNotFoundError, match="nothing.pth"):
        other.load("nothing")


class CannotBePickled:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


class Spoilt(Line):
    """Its state becomes impossible to write."""

    error = None

    def get_extra_state(self):
        return CannotBePickled(self.error) if self.error else None

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize("error", [ValueError("no room"), KeyboardInterrupt()])
def test_a_failing_save_keeps_the_old_file(tmp_path, error):
    learn = line_learner(path=tmp_path, model=Spoilt())
    learn.fit(1)
    file = learn.save("best")
    old = file.read_bytes()
    learn.fit(1)
    learn.model.error = error
    with pytest.raises(type(error)):
        learn.save("best")
    assert file.read_bytes() == old and files(tmp_path) == ["models/best.pth"]
    with pytest.raises(type(error)):
        learn.save("new")
    assert files(tmp_path) == ["models/best.pth"]


def test_write_whole_leaves_no_drafts(tmp_path):
    def half(f):
        f.write(b"half")
        raise OSError("disk full")

    file = tmp_path / "deep" / "er" / "x.bin"
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, half)
    assert files(tmp_path) == []
    assert write_whole(file, lambda f: f.write(b"whole")) == file and file.read_bytes() == b"whole"
    with pytest.raises(OSError):
        write_whole(file, half)
    assert file.read_bytes() == b"whole" and files(tmp_path) == ["deep/er/x.bin"]


def test_a_file_written_whole_can_be_read_by_whom_an_ordinary_file_can(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "whole", lambda f: f.write(b""))
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("plain", "whole")}
    assert modes["whole"] == modes["plain"]


class Payload:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_loading_weights_runs_no_code(tmp_path):
    learn = line_learner(path=tmp_path)
    (tmp_path / "models").mkdir()
    torch.save({"a": torch.zeros(()), "b": Payload(tmp_path / "broken into")}, tmp_path / "models" / "bad.pth")
    before = ab(learn)
    with pytest.raises(pickle.UnpicklingError):
        learn.load("bad")
    assert not (tmp_path / "broken into").exists() and ab(learn) == before


def test_loading_a_learner_needs_trust(tmp_path):
    torch.save(Payload(tmp_path / "broken into"), tmp_path / "export.pkl")
    with pytest.raises(ValueError, match="run any code.*trust=True.*Learner.load"):
        cbnb.load_learner(tmp_path / "export.pkl")
    assert not (tmp_path / "broken into").exists()


def test_what_is_no_learner_is_not_loaded_as_one(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.save("weights")
    with pytest.raises(TypeError, match="weights.pth.*Learner"):
        cbnb.load_learner(file, trust=True)


def absolute(pred, y):
    return (pred - y).abs().mean()


class Keeper(cbnb.Callback):
    def __init__(self):
        self.n = 0

    def after_epoch(self):
        self.n += 1


def test_export_and_load_learner(tmp_path):
    learn = adam_learner(tmp_path, cbs=Keeper(), metrics=absolute)
    learn.fit(2)
    opt, dls, listed = learn.opt, learn.dls, learn.cbs
    file = learn.export()
    assert file == tmp_path / "export.pkl" and learn.opt is opt and learn.dls is dls and learn.cbs == listed
    assert len(file.read_bytes()) < 100_000
    loaded = cbnb.load_learner(file, trust=True)
    assert same_bits(loaded.model, learn.model) and loaded.opt is None and len(loaded.dls.train) == 0
    assert [type(cb).__name__ for cb in loaded.cbs] == ["TrainEvalCallback", "Recorder", "Keeper"]
    assert all(cb.learn is loaded for cb in loaded.cbs) and loaded.keeper.n == 2 and loaded.keeper is loaded.cbs[2]
    preds, targets = loaded.get_preds(dl=line_batches(1))
    assert torch.equal(preds, learn.get_preds()[0])
    x = torch.tensor(1.0)
    assert loaded.predict(x)[1] == learn.predict(x)[1]
    with pytest.raises(ValueError, match="training loader is empty"):
        loaded.fit(1)
    loaded.dls = learn.dls
    loaded.fit(1)
    loaded.add_cb(Keeper())
    assert loaded.recorder.history[-1].status == "done" and ab(learn) == (learn.model.a.item(), learn.model.b.item())


def test_an_exported_learner_holds_no_data_that_metrics_have_kept(tmp_path):
    metric = cbnb.AccumMetric(no_difference)
    learn = line_learner(3, metrics=metric, path=tmp_path)
    learn.fit(1)
    learn.export()
    assert learn.metrics[0] is metric and metric.preds
    assert not cbnb.load_learner(tmp_path / "export.pkl", trust=True).metrics[0].preds


def no_difference(pred, y):
    return 0.0


def test_a_failing_export_keeps_the_old_file_and_the_learner(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.fit(1)
    file = learn.export("deep/one.pkl")
    old, opt, dls = file.read_bytes(), learn.opt, learn.dls
    learn.metrics = [cbnb.AvgMetric(lambda pred, y: 0.0)]  # a function without a name cannot be pickled
    with pytest.raises((pickle.PicklingError, AttributeError)):
        learn.export("deep/one.pkl")
    assert file.read_bytes() == old and files(tmp_path) == ["deep/one.pkl"] and learn.opt is opt and learn.dls is dls
    learn.fit(1)


def test_save_and_load_within_a_fit(tmp_path):
    """A callback may save the best and load it at the end."""

    class Best(cbnb.Callback):
        order = 70

        def before_fit(self):
            self.best = float("inf")

        def after_epoch(self):
            loss = self.learn.recorder.values[-1][1]
            if loss < self.best:
                self.best = loss
                self.learn.save("best")

        def after_fit(self):
            self.learn.load("best")

    learn = line_learner(path=tmp_path)
    learn.fit(3, cbs=cbnb.ParamScheduler({"lr": lambda pct: 0.1 if pct < 0.5 else 3.0}))
    assert learn.recorder.values[-1][1] > learn.recorder.values[0][1]
    learn = line_learner(path=tmp_path)
    learn.fit(3, cbs=[Best, cbnb.ParamScheduler({"lr": lambda pct: 0.1 if pct < 0.5 else 3.0})])
    assert learn.validate()[0] == pytest.approx(min(v[1] for v in learn.recorder.values))


@pytest.mark.parametrize(
    "make",
    [
        lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2),
        lambda opt, n: torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=n),
        lambda opt: torch.optim.lr_scheduler.CyclicLR(opt, 0.01, 0.1, 3),
    ],
)
def test_what_a_scheduler_left_in_the_file_is_no_obstacle(make, tmp_path):
    """The optimizer's state was not loaded, as if it came from another kind."""
    settings = dict(path=tmp_path, opt_func=partial(torch.optim.SGD, momentum=0.9), lr=0.1)
    learn = line_learner(cbs=cbnb.SaveModel(with_opt=True), **settings)
    learn.fit(2, cbs=cbnb.Schedule(make))
    fresh = line_learner(**settings)
    plain = fresh.save("plain")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.load("model")
        assert len(fresh.opt.state) == 2 and "initial_lr" not in fresh.opt.param_groups[0]
        fresh.create_opt()
        fresh.save("plain")
        fresh.fit(2, cbs=[cbnb.Schedule(make), cbnb.Callback(before_train=lambda cb: cb.learn.load(plain))])  # its keys stay
