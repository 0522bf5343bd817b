"""Files: whole or not there, and running nobody's code."""

import copy
import datetime
import errno
import fcntl
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cbnb
import processes
from cbnb.callbacks.predictions import SavedBatches, forget_batches, save_batch
from cbnb.dialects import mindspore as ms
from cbnb.files.atomic import write_whole
from cbnb.files.saving import opt_classes
from helpers import Line, ab, exact, line_batches, line_learner, same_bits


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
    with pytest.warns(UserWarning, match="none of the 2 weights"):
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


@pytest.mark.parametrize("error, seen", [(ValueError("no room"), TypeError), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_a_failing_save_keeps_the_old_file(tmp_path, error, seen):
    """Whatever an object raises as it is written, the words say which one it was; the cause is kept."""
    learn = line_learner(path=tmp_path, model=Spoilt())
    learn.fit(1)
    file = learn.save("best")
    old = file.read_bytes()
    learn.fit(1)
    learn.model.error = error
    with pytest.raises(seen) as caught:
        learn.save("best")
    assert error in (caught.value, caught.value.__cause__)
    assert file.read_bytes() == old and files(tmp_path) == ["models/best.pth"]
    with pytest.raises(seen):
        learn.save("new")
    assert files(tmp_path) == ["models/best.pth"]


def test_write_whole_leaves_no_drafts(tmp_path):
    def half(draft):
        draft.write_bytes(b"half")
        raise OSError("disk full")

    file = tmp_path / "deep" / "er" / "x.bin"
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, half)
    assert files(tmp_path) == []
    assert write_whole(file, lambda draft: draft.write_bytes(b"whole")) == file and file.read_bytes() == b"whole"
    with pytest.raises(OSError):
        write_whole(file, half)
    assert file.read_bytes() == b"whole" and files(tmp_path) == ["deep/er/x.bin"]


def test_a_file_written_whole_can_be_read_by_whom_an_ordinary_file_can(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "whole", lambda draft: draft.write_bytes(b""))
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
    with pytest.raises(ValueError, match="run any code.*trust=True.*cbnb"):
        cbnb.load_learner(tmp_path / "export.pkl")
    assert not (tmp_path / "broken into").exists()


def test_what_is_no_learner_is_not_loaded_as_one(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.save("weights")
    with pytest.raises(TypeError, match="weights.pth contains a.*, not a learner: .* To use the weights"):
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
    assert learn.metrics[0] is metric and metric.batches
    assert not cbnb.load_learner(tmp_path / "export.pkl", trust=True).metrics[0].batches


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
    learn.fit(2, cbs=cbnb.TorchScheduler(make))
    fresh = line_learner(**settings)
    plain = fresh.save("plain")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.load("model")
        assert len(fresh.opt.state) == 2 and "initial_lr" not in fresh.opt.param_groups[0]
        fresh.create_opt()
        fresh.save("plain")
        fresh.fit(2, cbs=[cbnb.TorchScheduler(make), cbnb.Callback(before_train=lambda cb: cb.learn.load(plain))])  # its keys stay


# files that can be read again, and what happens if they cannot


def net(*sizes):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))


def net_learner(tmp_path, model=None, **kwargs):
    dls = cbnb.DataLoaders([(torch.ones(4, 6), torch.ones(4, 2))] * 2, [(torch.ones(4, 6), torch.ones(4, 2))], device="cpu")
    return line_learner(dls=dls, model=net(6, 2) if model is None else model, path=tmp_path, **kwargs)


def weights(model):
    return copy.deepcopy(model.state_dict())


def is_as(model, before):
    return all(exact(v) == exact(before[k]) for k, v in model.state_dict().items())


def test_a_name_that_does_not_fit_or_a_wrong_shape_loads_nothing(tmp_path):
    """Layers before the one that did not fit had the new weights already."""
    learn = net_learner(tmp_path, net(6, 4, 2), opt_func=torch.optim.Adam)
    learn.fit(1)
    before, opt = weights(learn.model), copy.deepcopy(learn.opt.state_dict())
    shape, names = net_learner(tmp_path, net(6, 4, 3)).save("shape"), net_learner(tmp_path, net(6, 4, 2, 1)).save("names")
    for file, strict, words in ((shape, True, "size mismatch for 1.weight"), (shape, False, "size mismatch"), (names, True, "2.bias")):
        with pytest.raises(RuntimeError, match=words) as e:
            learn.load(file, strict=strict)
        assert f"nothing was loaded from {file}" in e.value.__notes__
        assert is_as(learn.model, before) and same_opt(learn.opt.state_dict(), opt)
    fresh = net_learner(tmp_path, net(6, 4, 2), opt_func=torch.optim.Adam)
    learn.save("whole")
    state = torch.load(tmp_path / "models/whole.pth")
    state["model"]["1.bias"] = torch.ones(3)
    torch.save(state, tmp_path / "models/whole.pth")
    with pytest.raises(RuntimeError, match="1.bias"):
        fresh.load("whole")
    assert fresh.opt is None


def same_opt(a, b):
    return repr(a) == repr(b)


class Refuses(Line):
    """Its last part does not accept what is in the file."""

    class Part(nn.Module):
        def get_extra_state(self):
            return 1

        def set_extra_state(self, state):
            if state == 2:
                raise ZeroDivisionError("no such state")

    def __init__(self):
        super().__init__()
        self.part = self.Part()


def test_a_model_that_refuses_a_state_in_the_middle_keeps_its_own(tmp_path):
    learn = line_learner(path=tmp_path, model=Refuses())
    file = learn.save("a")
    state = torch.load(file)
    state["part._extra_state"], state["a"] = 2, torch.tensor(7.0)
    torch.save(state, file)
    with pytest.raises(ZeroDivisionError):
        learn.load("a")
    assert learn.model.a.item() == 0


@pytest.mark.parametrize("opt", [{}, {"state": {}}, {"state": {}, "param_groups": [3]}, [], {"state": [], "hypers": []}])
def test_a_malformed_optimizer_state_loads_nothing(opt, tmp_path):
    """It was a KeyError, after the weights had been loaded."""
    learn = line_learner(path=tmp_path)
    learn.fit(1)
    file, before = learn.save("a"), ab(learn)
    torch.save({"model": {"a": torch.tensor(7.0), "b": torch.tensor(7.0)}, "opt": opt}, file)
    with pytest.raises(ValueError, match=r"a.pth is malformed \(a .*\), so nothing was loaded: .*with_opt=False"):
        learn.load("a")
    assert ab(learn) == before
    assert ab(learn.load("a", with_opt=False)) == (7, 7)


@pytest.mark.parametrize("slots", [{0: 3}, {0: {"exp_avg": torch.zeros(())}}], ids=["a number", "without its step"])
def test_an_optimizer_that_takes_half_of_a_state_is_as_it_was(slots, tmp_path):
    """The weights were loaded, and the optimizer could not make a step any more: KeyError in every fit."""
    learn = line_learner(path=tmp_path, opt_func=torch.optim.AdamW)
    learn.fit(1)
    file, before, state = learn.save("a"), ab(learn), copy.deepcopy(learn.opt.state_dict())
    saved = torch.load(file)
    torch.save({"model": {"a": torch.tensor(7.0), "b": torch.tensor(7.0)}, "opt": saved["opt"] | {"state": slots}}, file)
    with pytest.raises(ValueError, match="the state of the optimizer is malformed .*, so nothing was loaded: .*with_opt=False"):
        learn.load("a")
    assert ab(learn) == before
    assert learn.opt.state_dict() == state
    learn.fit(1)


def test_an_optimizer_of_another_kind_is_said_side_by_side(tmp_path):
    """The settings that differ were one set, in another order each time, and did not say whose they are."""
    line_learner(path=tmp_path, opt_func=torch.optim.Adagrad).fit(1, cbs=cbnb.SaveModel(with_opt=True))
    with pytest.warns(UserWarning, match="not loaded: it is that of Adagrad, and this learner has SGD$"):
        line_learner(path=tmp_path, opt_func=torch.optim.SGD).load("model")
    state = torch.load(file := tmp_path / "models" / "model.pth")
    del state["opt"]["opt_class"]  # a file of an earlier version
    torch.save(state, file)
    with pytest.warns(
        UserWarning,
        match="of another kind: only the file has (.*, )?initial_accumulator_value, lr_decay; only this one has (.*, )?momentum, nesterov$",
    ):
        line_learner(path=tmp_path, opt_func=torch.optim.SGD).load("model")


@pytest.mark.parametrize("other", [torch.optim.Adamax, torch.optim.AdamW])
def test_the_state_of_an_optimizer_with_the_same_settings_is_not_loaded_either(tmp_path, other):
    line_learner(path=tmp_path, opt_func=torch.optim.Adam).fit(1, cbs=cbnb.SaveModel(with_opt=True))
    learn = line_learner(path=tmp_path, opt_func=other, wd=0.1)
    with pytest.warns(UserWarning, match=f"not loaded: it is that of Adam, and this learner has {other.__name__}$"):
        learn.load("model")
    learn.fit(1)


def test_a_file_with_something_else_is_refused(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.save("a")
    torch.save(torch.ones(3), file)
    with pytest.raises(ValueError, match="a.pth contains a Tensor, not the state of a model"):
        learn.load("a")


def test_no_damage_goes_unnoticed(tmp_path):
    """A flipped bit became a weight of 1e36; truncated files named neither themselves nor the cause."""
    learn = net_learner(tmp_path, opt_func=torch.optim.Adam)
    learn.fit(1)
    file = learn.save("a")
    whole, before = file.read_bytes(), weights(learn.model)
    learn.fit(1)
    after, rand = weights(learn.model), random.Random(0)
    damaged = [b"", b"hello", b"a text file\n" * 99, whole[:900], whole[:-1], whole[:50] + whole[60:]]
    damaged += [whole[: len(whole) * i // 20] for i in range(20)]
    at = whole.find(before["0.weight"].numpy().tobytes())
    flips = [at + 3, *(rand.randrange(len(whole)) for _ in range(199))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1 << rand.randrange(8)]) + whole[i + 1 :] for i in flips]
    refused = 0
    for content in damaged:
        file.write_bytes(content)
        try:
            learn.load("a")
        except Exception as e:
            refused += 1
            assert type(e) is ValueError and f"{file} is damaged, or was not written by Learner.save" in str(e)
            assert is_as(learn.model, after)
        else:  # padding, or a copy of what is elsewhere in the archive
            assert is_as(learn.model, before)
            file.write_bytes(whole)
            learn.model.load_state_dict(after)
    assert refused >= 50


def test_damage_is_found_before_loading_in_all_readers(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.export()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    with pytest.raises(ValueError, match="export.pkl is damaged, or was not written by Learner.export"):
        cbnb.load_learner(file, trust=True)
    batch = save_batch(tmp_path, 0, torch.ones(50))
    content = bytearray(batch.read_bytes())
    content[content.find(torch.ones(50).numpy().tobytes()) + 3] ^= 64
    batch.write_bytes(content)
    with pytest.raises(ValueError, match="000000.pt is damaged"):
        SavedBatches(tmp_path).load()


def test_files_of_old_torch_are_read(tmp_path):
    learn = line_learner(path=tmp_path)
    file = tmp_path / "models/a.pth"
    file.parent.mkdir()
    state = {"a": torch.tensor(7.0), "b": torch.tensor(8.0)}
    torch.save(state, file, _use_new_zipfile_serialization=False)
    assert ab(learn.load("a")) == (7, 8)


@pytest.mark.skipif(not hasattr(torch.serialization, "set_crc32_options"), reason="this torch always writes checksums")
def test_files_without_checksums_are_read(tmp_path):
    learn = line_learner(path=tmp_path)
    get, set_ = torch.serialization.get_crc32_options, torch.serialization.set_crc32_options
    was = get()
    set_(False)
    try:
        learn.save("a", with_opt=False)
    finally:
        set_(was)
    assert ab(line_learner(path=tmp_path).load("a")) == ab(learn)


def test_numbers_of_numpy_from_a_schedule_can_be_loaded(tmp_path):
    """The file was refused after the last epoch, and the best weights were not put back."""
    learn = line_learner(path=tmp_path, opt_func=torch.optim.Adam)
    learn.fit(2, cbs=[cbnb.ParamScheduler({"lr": lambda pct: 1e-2 * np.cos(pct)}), cbnb.SaveModel(with_opt=True)])
    line_learner(path=tmp_path, opt_func=torch.optim.Adam).load("model")


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.array(0.5), np.int64(1)])
def test_schedules_write_numbers_of_python(value):
    learn = line_learner()
    types = set()

    def note(cb):
        types.add(type(cb.learn.opt.param_groups[0]["lr"]))

    learn.fit(1, cbs=[cbnb.ParamScheduler({"lr": lambda pct: value}), cbnb.Callback(after_batch=note)])
    assert types == {type(value.tolist())}


def test_a_schedule_may_give_an_array_with_a_rate_for_each_group():
    learn = line_learner(splitter=lambda m: [[m.a], [m.b]])
    seen = []
    note = cbnb.Callback(after_step=lambda cb: seen.append([g["lr"] for g in cb.learn.opt.param_groups]))
    learn.fit(1, cbs=[cbnb.ParamScheduler({"lr": lambda pct: np.array([0.1, 0.2])}), note])
    assert seen == [[0.1, 0.2]] * 2 and type(seen[0][0]) is float


@pytest.mark.parametrize(
    "opt_func",
    [partial(torch.optim.SGD, lr=np.float64(0.1), momentum=np.float32(0.5)), partial(torch.optim.Adam, betas=(np.float64(0.9), 0.99))],
)
def test_an_optimizer_with_numbers_of_numpy_can_be_saved(opt_func, tmp_path):
    learn = line_learner(path=tmp_path, opt_func=opt_func, lr=1e-3)
    learn.fit(1)
    learn.save("a")
    at_save = ab(learn)
    other = line_learner(path=tmp_path, opt_func=opt_func, lr=1e-3).load("a")
    assert ab(other) == at_save and len(other.opt.state) == 2
    for key in "momentum", "betas":
        assert other.opt.param_groups[0].get(key) == learn.opt.param_groups[0].get(key)


class Counts(Line):
    """Keeps something of its own."""

    kept = None

    def get_extra_state(self):
        return self.kept

    def set_extra_state(self, state):
        self.kept = state


def test_extra_state_can_be_loaded_or_is_refused_when_it_is_saved(tmp_path):
    learn = line_learner(path=tmp_path, model=Counts())
    learn.model.kept = {"n": np.int64(3), "mean": [np.float32(0.5), torch.ones(2)]}
    learn.save("a")
    other = line_learner(path=tmp_path, model=Counts()).load("a")
    assert other.model.kept["n"] == 3 and other.model.kept["mean"][0] == 0.5
    old = (tmp_path / "models/a.pth").read_bytes()
    for bad in (np.arange(3), datetime.date(2000, 1, 1), {"deep": [random.Random, 1]}):
        learn.model.kept = bad
        with pytest.raises(
            TypeError, match=r"the model's state\['_extra_state'\].*which learn.load could not read, so nothing was written"
        ):
            learn.save("a")
    assert (tmp_path / "models/a.pth").read_bytes() == old and files(tmp_path) == ["models/a.pth"]
    learn.model.kept = (torch.Size([1]), torch.float32, torch.device("cpu"), OrderedDict(a=1))
    learn.save("a")  # what torch itself allows
    assert other.load("a").model.kept == learn.model.kept


def test_a_file_that_needs_trust_says_what_it_holds(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.save("a")
    torch.save({"a": np.float64(1), "b": torch.ones(())}, file)
    with pytest.raises(pickle.UnpicklingError, match=r"a.pth contains numpy\..*scalar.*learn.load\(.*weights_only=False\)"):
        learn.load("a")


def test_a_file_saved_within_a_cycle_has_the_momentum_from_between_fits(tmp_path):
    """Each later fit trained with the momentum of the middle of the cycle."""
    learn = line_learner(path=tmp_path, opt_func=torch.optim.Adam)
    learn.fit_one_cycle(4, cbs=cbnb.SaveModel(with_opt=True))
    for other in (learn, line_learner(path=tmp_path, opt_func=torch.optim.Adam)):
        other.load("model")
        assert other.opt.param_groups[0]["betas"] == (0.9, 0.999)
        other.fit(1)
        assert set(other.recorder.last().hyper("mom")) == {0.9}


def test_a_file_is_the_same_in_the_last_callback_of_a_fit_and_after_it(tmp_path):
    learn = line_learner(path=tmp_path, opt_func=partial(torch.optim.SGD, momentum=0.5), lr=0.1)
    learn.fit(1)
    learn.opt.param_groups[0]["momentum"] = 0.6  # by hand: it is kept
    learn.fit_one_cycle(2, 0.3, cbs=cbnb.Callback(after_fit=lambda cb: cb.learn.save("within")))
    learn.save("after")
    within, after = (torch.load(tmp_path / f"models/{name}.pth")["opt"] for name in ("within", "after"))
    assert within["param_groups"] == after["param_groups"] and after["param_groups"][0]["momentum"] == 0.6
    assert repr(within["state"]) == repr(after["state"])


def test_loading_within_a_fit_leaves_its_rates_alone(tmp_path):
    learn = line_learner(path=tmp_path, opt_func=partial(torch.optim.SGD, momentum=0.5), lr=0.1)
    learn.fit(1)
    learn.save("a")
    learn.opt.param_groups[0]["momentum"] = 0.6
    learn.fit(3, lr=0.01, cbs=cbnb.Callback(before_train=lambda cb: cb.learn.load("a")))
    assert set(learn.recorder.lrs) == {0.01} and set(learn.recorder.last().hyper("mom")) == {0.6}


def test_the_optimizer_is_loaded_only_for_the_same_parameters(tmp_path):
    """If groups came in another order, each parameter got the state of another one."""

    def halves(m):
        return [list(m[0].parameters()), list(m[1].parameters())]

    settings = dict(opt_func=torch.optim.Adam)
    a = net_learner(tmp_path, net(6, 6, 6), splitter=halves, loss_func=lambda pred, y: pred.mean(), **settings)
    a.fit(1)
    file = a.save("s")
    b = net_learner(tmp_path, net(6, 6, 6), splitter=lambda m: halves(m)[::-1], **settings)
    with pytest.warns(UserWarning, match="the optimizer was not loaded: in group 0 it has '0.weight' where this optimizer has '1.weight'"):
        b.load("s")
    assert not b.opt.state and same_bits(a.model, b.model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = net_learner(tmp_path, net(6, 6, 6), splitter=halves, **settings).load("s")
    assert torch.equal(a.opt.state[a.model[1].weight]["exp_avg"], c.opt.state[c.model[1].weight]["exp_avg"])
    state = torch.load(file)
    torch.optim.Adam([dict(params=g) for g in halves(a.model)]).load_state_dict(state["opt"])  # torch reads it, too
    del state["opt"]["param_names"]  # a file of an earlier version
    torch.save(state, file)
    assert len(net_learner(tmp_path, net(6, 6, 6), splitter=halves, **settings).load("s").opt.state) == 4


def test_a_model_with_layers_of_unknown_shape_can_be_loaded(tmp_path):
    saved = net_learner(tmp_path)
    saved.save("a", with_opt=False)
    other = net_learner(tmp_path, nn.Sequential(nn.LazyLinear(2)))
    assert same_bits(other.load("a").model, saved.model)


def test_loading_what_fits_says_how_much_that_was(tmp_path):
    """Nothing fitted, nothing was loaded, and nothing was said."""
    learn = net_learner(tmp_path, net(6, 4, 2))
    saved = net_learner(tmp_path, net(6, 4))
    saved.save("part", with_opt=False)
    with pytest.warns(
        UserWarning,
        match=r"2 of the 2 weights in .*part.pth have the name of one of the 4 weights of the model: only in the model: 1.weight, 1.bias",
    ) as seen:
        learn.load("part", strict=False)
    assert len(seen) == 1 and seen[0].filename == __file__ and torch.equal(learn.model[0].weight, saved.model[0].weight)
    line_learner(path=tmp_path).save("line")
    with pytest.warns(
        UserWarning,
        match="none of the 2 weights in .*line.pth have the name of one of the 4 weights of the model, so no weight was loaded: only in the file: a, b",
    ):
        learn.load("line", strict=False)
    learn.save("all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.load("all", strict=False)


@pytest.mark.parametrize("part", [False, True])
def test_compiled_and_plain_models_read_each_others_files(part, tmp_path):
    """The names in the file had the prefix of torch.compile."""

    def compiled():
        model = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))
        if not part:
            return torch.compile(model, backend="eager")
        model[0] = torch.compile(model[0], backend="eager")
        return model

    plain = net_learner(tmp_path, nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)), opt_func=torch.optim.Adam)
    one = net_learner(tmp_path, compiled(), opt_func=torch.optim.Adam)
    one.fit(1)
    one.save("c")
    assert set(torch.load(tmp_path / "models/c.pth")["model"]) == set(plain.model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.load("c")
        plain.fit(1)
        plain.save("p")
        other = net_learner(tmp_path, compiled(), opt_func=torch.optim.Adam).load("p")
        torch.save(one.model.state_dict(), tmp_path / "models/old.pth")  # with prefixes, as it was
        plain.load("old", with_opt=False)
    want = [exact(v) for v in torch.load(tmp_path / "models/p.pth")["model"].values()]
    assert [exact(v) for v in other.model.state_dict().values()] == want
    assert [exact(v) for v in plain.model.state_dict().values()] == [exact(v) for v in one.model.state_dict().values()]
    assert len(other.opt.state) == 4


# writing


IN_A_PROCESS = """
import sys, torch
from pathlib import Path
import cbnb
from torch import nn

learn = cbnb.Learner(cbnb.DataLoaders([(torch.ones(4, 6), torch.ones(4, 2))], device="cpu"), nn.Linear(6, 2), nn.MSELoss(), path=sys.argv[1])
"""


def in_a_process(code, *args):
    return subprocess.run(
        [*processes.python(), "-c", IN_A_PROCESS + textwrap.dedent(code), *map(str, args)], capture_output=True, text=True
    )


@pytest.mark.parametrize("call", ["learn.save('a')", "learn.export()"])
def test_an_interrupt_as_torch_ends_the_file_does_not_end_the_process(call, tmp_path):
    """It was SIGABRT: the writer in C++ found the Python file closed."""
    code = f"""
        def ctrl_c(frame, event, arg):
            if frame.f_code.co_name == '__exit__' and 'serialization' in frame.f_code.co_filename:
                sys.settrace(None)
                raise KeyboardInterrupt
        sys.settrace(ctrl_c)
        try: {call}
        except KeyboardInterrupt: print('interrupted')
        import gc; gc.collect()
        {call}
        print('alive')
        """
    done = in_a_process(code, tmp_path)
    assert (done.stdout.split(), done.returncode) == (["interrupted", "alive"], 0), done.stderr
    assert len(files(tmp_path)) == 1 and not list(tmp_path.rglob("*.part"))


def test_an_interrupt_in_the_middle_of_a_save_is_one_afterwards(tmp_path, monkeypatch):
    """It was a RuntimeError of torch, and the fit had failed instead of being interrupted."""
    save = torch.save

    def slow(state, file):
        signal.raise_signal(signal.SIGINT)
        save(state, file)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("cbnb.files.saving.torch.save", slow)
    learn = line_learner(path=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        learn.save("by hand")
    with pytest.raises(cbnb.FitInterrupted):
        learn.fit(2, cbs=cbnb.SaveModel(every_epoch=True))
    assert learn.recorder.history[-1].status == "interrupted"
    monkeypatch.undo()
    assert files(tmp_path) == ["models/by hand.pth", "models/model_0.pth"]
    learn.load("model_0", with_opt=False)


@pytest.mark.filterwarnings("error")
def test_ctrl_c_while_the_best_weights_are_written_leaves_them_the_best(tmp_path, monkeypatch, capsys):
    """The file and `best` go together, so the end of the interrupted fit finds them."""
    save = torch.save

    def slow(state, file):
        save(state, file)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("cbnb.files.saving.torch.save", slow)
    learn = line_learner(path=tmp_path, cbs=cbnb.SaveModel())
    with pytest.raises(cbnb.FitInterrupted):
        learn.fit(3)
    assert learn.save_model.best == pytest.approx(5.3248) and learn.save_model.best_epoch == 0
    assert "weights are those of epoch 0, with valid_loss 5.3248;" in capsys.readouterr().out


def test_ctrl_c_between_the_weights_and_the_optimizer_waits_until_both_are_loaded(tmp_path, monkeypatch):
    learn = line_learner(path=tmp_path, opt_func=torch.optim.Adam)
    learn.fit(1)
    learn.save("a")
    want = ab(learn)
    learn.fit(2)
    load_state_dict = learn.model.load_state_dict

    def slow(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return load_state_dict(*args, **kwargs)

    monkeypatch.setattr(learn.model, "load_state_dict", slow)
    with pytest.raises(KeyboardInterrupt):
        learn.load("a")
    assert ab(learn) == want and {state["step"].item() for state in learn.opt.state.values()} == {2}


def test_torch_writes_by_path(tmp_path, monkeypatch):
    """An open Python file can be closed before torch's writer has ended it."""
    seen = []
    save = torch.save

    def note(state, file, **kwargs):
        seen.append(file)
        save(state, file, **kwargs)

    monkeypatch.setattr("torch.save", note)
    learn = line_learner(path=tmp_path)
    learn.save("a"), learn.export(), save_batch(tmp_path, 0, torch.ones(1)), ms.save_checkpoint(learn.model, tmp_path / "x")
    assert len(seen) == 4 and all(isinstance(file, Path) for file in seen)


def test_a_killed_save_leaves_a_draft_until_the_next_save(tmp_path):
    """Each killed process left a file as large as the model, for good."""
    code = """
        import os, signal
        import cbnb.files.saving as ck
        save = ck.torch.save
        def killed(state, file):
            save(state, file)
            os.kill(os.getpid(), signal.SIGKILL)
        ck.torch.save = killed
        learn.save('a')
        """
    assert in_a_process(code, tmp_path).returncode == -signal.SIGKILL
    [lock, draft] = files(tmp_path)
    assert draft.startswith("models/.a.pth.") and lock == str(Path(draft).with_name(".lock"))
    learn = line_learner(path=tmp_path)
    learn.save("b"), learn.save("a.pth.x")  # other names
    assert len(files(tmp_path)) == 4
    learn.save("a")
    assert files(tmp_path) == ["models/a.pth", "models/a.pth.x.pth", "models/b.pth"]


def test_drafts_of_batches_are_swept_with_the_batches(tmp_path):
    for name in ("000001.pt", "mine.txt"):
        draft = tmp_path / f".{name}.k1ll3d_p.part"
        draft.mkdir()
        (tmp_path / name).write_bytes(b"")
        (draft / name).write_bytes(b"")
    save_batch(tmp_path, 0, torch.ones(1))
    assert len(files(tmp_path)) == 5
    forget_batches(tmp_path)
    assert files(tmp_path) == [".mine.txt.k1ll3d_p.part/mine.txt", "mine.txt"]


def test_a_draft_that_is_being_written_is_not_swept(tmp_path):
    """Here, by another writer of the same file."""
    file = tmp_path / "a"

    def meanwhile(draft):
        draft.write_bytes(b"slow")
        write_whole(file, lambda other: other.write_bytes(b"quick"))
        assert file.read_bytes() == b"quick" and draft.exists()

    write_whole(file, meanwhile)
    assert file.read_bytes() == b"slow" and files(tmp_path) == ["a"]


def test_a_draft_that_was_swept_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """By another process, before or after the file in it was opened."""
    make, lock, made = tempfile.mkdtemp, fcntl.flock, []

    def mkdtemp(**kwargs):
        made.append(Path(make(**kwargs)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    def flock(f, how):
        lock(f, how)
        if len(made) == 2:
            shutil.rmtree(made[1])

    monkeypatch.setattr("cbnb.files.atomic.tempfile.mkdtemp", mkdtemp)
    monkeypatch.setattr("cbnb.files.atomic.fcntl.flock", flock)
    write_whole(tmp_path / "a", lambda draft: draft.write_bytes(b"x"))
    assert len(made) == 4 and os.listdir(tmp_path) == ["a"]  # one more to see whether the folder can be written


def test_without_locks_drafts_stay_and_files_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr("cbnb.files.atomic.fcntl", None)
    draft = tmp_path / ".a.k1ll3d_p.part"
    draft.mkdir()
    write_whole(tmp_path / "a", lambda draft: draft.write_bytes(b"x"))
    assert sorted(os.listdir(tmp_path)) == [".a.k1ll3d_p.part", "a"]


def test_a_file_has_the_bytes_that_torch_would_write(tmp_path):
    """They do not depend on the name of a draft."""
    learn = line_learner(path=tmp_path)
    learn.fit(1)
    file = learn.save("a")
    content = file.read_bytes()
    assert learn.save("a").read_bytes() == content
    torch.save(torch.load(file), file)
    assert file.read_bytes() == content


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_full_disk_says_so(tmp_path):
    """It was "unexpected pos 832 vs 726", without a name."""
    code = """
        import resource
        learn.save('a')
        old = (Path(sys.argv[1])/'models'/'a.pth').read_bytes()
        learn.model = nn.Linear(6, 20000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))
        try: learn.save('a')
        except OSError as e: print(e, '|', type(e.__cause__).__name__, '|', e.__notes__[0])
        print((Path(sys.argv[1])/'models'/'a.pth').read_bytes() == old)
        """
    done = in_a_process(code, tmp_path)
    file = tmp_path / "models/a.pth"
    assert done.stdout.splitlines() == [
        f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: '{file}' | RuntimeError | {file} was not written, and an earlier file of that name is unchanged",
        "True",
    ], done.stderr
    assert files(tmp_path) == ["models/a.pth"]


def test_an_error_that_is_not_the_disks_stays_as_it_is(tmp_path):
    def fails(draft):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="^a bug") as e:
        write_whole(tmp_path / "a", fails)
    assert e.value.__notes__ == [f"{tmp_path / 'a'} was not written, and an earlier file of that name is unchanged"]


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_followed(there, tmp_path):
    """A file took the place of the link."""
    (tmp_path / "models").mkdir()
    (tmp_path / "big disk").mkdir()
    real, link = tmp_path / "big disk/real.pth", tmp_path / "models/a.pth"
    link.symlink_to("../big disk/real.pth")
    if there:
        real.write_bytes(b"old")
    learn = line_learner(path=tmp_path)
    assert learn.save("a") == link
    assert link.is_symlink() and files(tmp_path) == ["big disk/real.pth", "models/a.pth"]
    assert torch.load(real).keys() == {"a", "b"}
    learn.load("a")


@pytest.mark.parametrize("take", [lambda learn: learn.export(), pickle.dumps, copy.deepcopy, copy.copy])
def test_a_learner_is_not_copied_within_a_fit(take, tmp_path):
    """It was "Can't pickle local object"; and hooks, rates and callbacks of the fit would go along."""
    learn = line_learner(path=tmp_path)
    with pytest.raises(RuntimeError, match="is running .epoch 0.*between fits, or use learn.save in a callback"):
        learn.fit(1, cbs=cbnb.Callback(after_epoch=lambda cb: take(cb.learn)))
    take(learn)
    learn.fit(1)


@pytest.mark.parametrize("value", [lambda: 1, open])
def test_a_note_that_cannot_be_saved_is_a_type_error(value, tmp_path):
    """A function made on the spot failed in pickle, with an AttributeError that does not say where."""
    learn = line_learner(path=tmp_path)
    with pytest.raises(TypeError, match=r"note\['f'\] is .*nothing was written"):
        learn.save("a", note=dict(f=value))
    assert not list(tmp_path.rglob("*.pth"))


def test_a_note_is_read_by_a_name_of_the_package(tmp_path):
    assert cbnb.files.saving.read_note(line_learner(path=tmp_path).save("a", note=dict(epoch=3))) == dict(epoch=3)


def test_an_error_of_the_writer_is_not_hidden_by_what_it_did_to_the_draft(tmp_path):
    def write(draft):
        shutil.rmtree(draft.parent)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        write_whole(tmp_path / "a", write)
    assert files(tmp_path) == []


def test_an_interrupt_that_the_optimizer_raises_stays_one(tmp_path, monkeypatch):
    learn = adam_learner(tmp_path)
    learn.fit(1)
    learn.save("a")
    learn.fit(1)
    weights, opt, state = ab(learn), learn.opt, learn.opt.state
    monkeypatch.setattr(learn.opt, "load_state_dict", lambda state: (_ for _ in ()).throw(KeyboardInterrupt("mine")))
    with pytest.raises(KeyboardInterrupt, match="mine") as caught:
        learn.load("a")
    assert caught.value.__notes__ == [f"nothing was loaded from {tmp_path / 'models/a.pth'}"]
    assert ab(learn) == weights and learn.opt is opt and opt.state is state


def test_where_a_file_is_looked_for(tmp_path):
    learn = line_learner(path=tmp_path, model_dir="m")
    assert (
        learn.model_file("a") == learn.model_file("a.pth") == tmp_path / "m/a.pth"
        and learn.model_file(Path("b/a.v1")) == tmp_path / "m/b/a.v1.pth"
    )
    assert learn.model_file(tmp_path / "x") == tmp_path / "x.pth"


@pytest.mark.parametrize("n, rest", [(5, ""), (6, ", ...")])
def test_names_that_do_not_fit_are_listed_up_to_five(n, rest, tmp_path):
    learn = line_learner(path=tmp_path)
    names = [f"more{i}" for i in range(n)]
    torch.save({**learn.model.state_dict(), **dict.fromkeys(names, torch.ones(1))}, learn.save("a"))
    with pytest.warns(UserWarning) as seen:
        learn.load("a", strict=False, with_opt=False)
    assert (
        str(seen[0].message)
        == f"2 of the {n + 2} weights in {tmp_path / 'models/a.pth'} have the name of one of the 2 weights of the model: only in the file: {', '.join(names[:5])}{rest}"
    )
    torch.save(dict(c=torch.ones(1)), learn.model_file("a"))
    with pytest.warns(
        UserWarning,
        match="^none of the 1 weights in .* have the name of one of the 2 weights of the model, so no weight was loaded: only in the file: c; only in the model: a, b$",
    ):
        learn.load("a", strict=False, with_opt=False)


def test_epochs_are_saved_as_often_as_asked(tmp_path):
    for every, want in [(True, [0, 1, 2, 3]), (2, [0, 2]), (3, [0, 3])]:
        folder = tmp_path / str(every)
        line_learner(path=folder, cbs=cbnb.SaveModel(fname="m.pth", every_epoch=every)).fit(4)
        assert files(folder) == [f"models/m_{i}.pth" for i in want]
    for wrong in (0, -1, 1.5):
        with pytest.raises((ValueError, TypeError), match="every_epoch"):
            cbnb.SaveModel(every_epoch=wrong)
    with pytest.raises(ValueError, match="saves the weights of several epochs"):
        cbnb.SaveModel(every_epoch=2, at_end=True)


def test_the_best_is_not_loaded_from_a_file_that_something_else_wrote(tmp_path):
    learn = line_learner(path=tmp_path, cbs=cbnb.SaveModel())
    touch = cbnb.Callback(after_fit=lambda cb: cb.learn.save("model"))
    with pytest.warns(UserWarning, match="was changed or removed after the best weights were saved"):
        learn.fit(1, cbs=touch)
    gone = cbnb.Callback(after_fit=lambda cb: cb.learn.model_file("model").unlink())
    with pytest.warns(UserWarning, match="was changed or removed after"):
        learn.fit(1, cbs=gone)


def test_a_fit_that_goes_on_takes_the_best_from_the_file(tmp_path, capsys):
    learn = line_learner(path=tmp_path, cbs=cbnb.SaveModel())
    learn.fit(2)
    other = line_learner(path=tmp_path, cbs=cbnb.SaveModel(), lr=1e-6)
    other.load("model", with_opt=False)
    capsys.readouterr()
    other.fit(3, start_epoch=2)
    out = capsys.readouterr().out
    assert f"the best so far is valid_loss {learn.save_model.best:.6g}, of epoch 1, in {tmp_path / 'models/model.pth'}" in out
    assert other.save_model.best < learn.save_model.best and other.save_model.best_epoch == 2
    learn.save("model", with_opt=False)
    with pytest.warns(
        UserWarning, match="does not contain its valid_loss: the first epoch of this fit that has a valid_loss will replace the file"
    ):
        line_learner(path=tmp_path, cbs=cbnb.SaveModel()).fit(3, start_epoch=2)


def test_save_model_goes_on_when_the_disk_is_full_and_keeps_the_best_that_it_could_save(tmp_path, monkeypatch):
    """One warning, the other epochs are trained, and the file, `best` and the model agree at the end."""
    learn, weights, save = line_learner(path=tmp_path, lr=0.05), {}, cbnb.SaveModel()
    real = learn.save

    def full(*args):
        weights[learn.epoch] = ab(learn)
        if learn.epoch in (2, 3):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(learn, "save", full)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(4, cbs=save)
    said = [str(w.message) for w in seen if "could not be saved" in str(w.message)]
    assert len(said) == 1 and "the fit continues" in said[0] and list(weights) == [0, 1, 2, 3]
    assert save.best_epoch == 1 and ab(learn) == weights[1] and save.best == pytest.approx(learn.recorder.history["valid_loss"][1])
    monkeypatch.setattr(learn, "save", lambda *args: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with (
        pytest.warns(UserWarning, match="no weights could be saved in this fit"),
        pytest.warns(UserWarning, match="could not be saved .*the fit"),
    ):
        learn.fit(2, cbs=cbnb.SaveModel(fname="other"))


@pytest.mark.parametrize("how", [{}, {"every_epoch": True}, {"at_end": True}])
def test_save_model_says_before_the_first_batch_that_its_folder_cannot_be_written(tmp_path, how):
    (tmp_path / "models").write_bytes(b"a file")
    learn = line_learner(path=tmp_path, cbs=cbnb.SaveModel(**how))
    with pytest.raises(OSError, match="another folder for the weights, because this one cannot be written"):
        learn.fit(2)
    assert learn.train_iter == 0 and files(tmp_path) == ["models"]


def test_an_existing_history_file_survives_a_failed_write(tmp_path, monkeypatch):
    learn, file = line_learner(), tmp_path / "history"
    learn.fit(1)
    file.write_text("the old one")

    def half(path, text, *args, **kwargs):
        with open(path, "w") as f:
            f.write(text[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(Path, "write_text", half)
        for write in (learn.recorder.history.to_json, learn.recorder.history.to_csv):
            with pytest.raises(OSError, match="No space"):
                write(file)
            assert file.read_text() == "the old one" and files(tmp_path) == ["history"]
    assert learn.recorder.history.to_json(file) == file.read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_pipe_is_written_and_not_replaced(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, lambda path: path.write_bytes(b"text"))
    assert os.read(reader, 9) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_compressed_weights_are_refused_unread(tmp_path):
    """300 KB that unpack to 300 MB took the checker seconds, and 1.5 MB more than a minute."""
    learn = line_learner(path=tmp_path)
    file = learn.save("a", with_opt=False)
    with zipfile.ZipFile(file) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            new.writestr(name, content)
        new.writestr("a/data/99", bytes(10**7))
    with pytest.raises(ValueError, match="it is compressed, which torch.save never does"):
        learn.load("a")


def test_entries_that_share_their_bytes_are_refused(tmp_path):
    """The other way to a file that is larger inside than outside: many names for one stored entry."""
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as new:
        new.writestr("a/data.pkl", bytes(10**5))
        for i in range(9):
            twin = copy.copy(new.filelist[0])
            twin.filename = f"a/data/{i}"
            new.filelist.append(twin)
            new.NameToInfo[twin.filename] = twin
        new._didModify = True
    with pytest.raises(ValueError, match="its entries are larger than the file"):
        cbnb.files.saving.read_file(tmp_path / "a.pth")


def test_load_takes_weights_only_as_fastai_passes_it(tmp_path):
    learn = line_learner(path=tmp_path)
    learn.fit(1)
    at_save, _ = ab(learn), learn.save("a")
    learn.fit(1)
    assert ab(learn.load("a", weights_only=False)) == at_save
    torch.save(dict(learn.model.state_dict(), more=datetime.date(2026, 1, 1)), tmp_path / "models" / "b.pth")
    with pytest.raises(pickle.UnpicklingError, match="could run any code"):
        learn.load("b", strict=False)
    with pytest.warns(UserWarning, match="only in the file: more"):
        learn.load("b", strict=False, with_opt=False, weights_only=False)


def test_what_save_returned_can_be_loaded_and_no_folder_is_doubled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ".", "runs":
        learn = line_learner(path=path)
        for name in "a", "models/a", "models/a.pth", "./models/a.pth":
            assert learn.load(learn.save(name)).path == Path(path) and learn.save(name) == Path(path) / "models" / "a.pth"
    assert not list(tmp_path.glob("**/models/models"))


def test_a_file_with_another_ending_or_in_another_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learn = line_learner(path=".")
    torch.save(learn.model.state_dict(), "plain.pt")
    with pytest.raises(
        FileNotFoundError, match=r"to load plain.pt, pass its absolute path, as in learn.load\(Path\('plain.pt'\).absolute\(\)\)"
    ):
        learn.load("plain")
    learn.load(Path("plain.pt").absolute())
    Path("models").mkdir()
    Path("plain.pt").rename("models/plain.pt")
    with pytest.raises(FileNotFoundError, match=r"to load models.plain.pt, call learn.load\('plain.pt'\)"):
        learn.load("plain")
    learn.load("plain.pt")


def test_weights_are_no_learner_and_say_how_to_load_them(tmp_path):
    learn = line_learner(path=tmp_path)
    file = learn.save("a")
    with pytest.raises(TypeError, match=r"a.pth contains an OrderedDict, .* then call learn.load\("):
        cbnb.load_learner(file)
    with pytest.raises(FileNotFoundError):
        cbnb.load_learner(tmp_path / "b.pth")


def test_a_file_that_cannot_be_written_names_itself_and_a_way_out(tmp_path):
    """It was the name of a draft, `models/.a.pth.il029ii0.part`."""
    learn = line_learner(path=tmp_path)
    (tmp_path / "models/a.pth").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match="choose another name for the file.*: '.*models/a.pth'$"):
        learn.save("a")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="choose another folder for the file.*: '.*file/a.pth'$"):
        learn.save(tmp_path / "file/a")
    with pytest.raises(TypeError, match="file=None should be a path"):
        learn.save(None)


def test_a_name_that_is_missing_comes_with_names_that_can_be_passed(tmp_path):
    """For a file in a folder, the name without the folder loads another file, or none."""
    learn = line_learner(path=tmp_path)
    learn.save("deep/weights")
    for name, near in (
        ("deep/weigths", "did you mean 'deep/weights'"),
        ("deep/a", "pass 'deep/weights'"),
        ("other/a", r"learn.save\('other/a'\)"),
    ):
        with pytest.raises(FileNotFoundError, match=near):
            learn.load(name)
    learn.load("deep/weights")


class MyAdam(torch.optim.Adam):
    """A subclass under another name."""


class OtherAdam(torch.optim.Adam):
    """Another subclass."""


class MyAdamW(torch.optim.AdamW):
    """Not of the kind of Adam, though torch derives AdamW from it."""


class Trusting(torch.optim.Adam):
    """A subclass with a hyper-parameter of its own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for group in self.param_groups:
            group["trust"] = 0.5


class Averaging(torch.optim.Adam):
    """A subclass that keeps one more tensor for each parameter, from its first update on."""

    def step(self, closure=None):
        loss = super().step(closure)
        for p, state in self.state.items():
            if state["step"] == 1:
                state["mean"] = p.detach().clone()
            state["mean"].lerp_(p.detach(), 0.1)
        return loss


class Filling(torch.optim.Adam):
    """A subclass that makes a state of its own."""

    def _init_group(self, *args, **kwargs):
        return super()._init_group(*args, **kwargs)


@pytest.mark.parametrize(
    "saved, mine, why",
    [
        (torch.optim.Adam, Averaging, "it is that of Adam, and this learner has Averaging"),
        (torch.optim.Adam, Filling, "it is that of Adam, and this learner has Filling"),
        (Filling, torch.optim.Adam, None),
        (MyAdam, torch.optim.Adam, None),
        (torch.optim.Adam, MyAdam, None),
        (torch.optim.AdamW, MyAdamW, None),
        (MyAdam, OtherAdam, "it is that of MyAdam, and this learner has OtherAdam"),
        (torch.optim.Adam, MyAdamW, "it is that of Adam, and this learner has MyAdamW"),
        (MyAdamW, torch.optim.Adam, "it is that of MyAdamW, and this learner has Adam"),
        (torch.optim.AdamW, torch.optim.Adam, "it is that of AdamW, and this learner has Adam"),
        (torch.optim.Adamax, MyAdam, "it is that of Adamax, and this learner has MyAdam"),
        (torch.optim.Adam, Trusting, "it is of another kind: only this one has trust"),
        (Trusting, torch.optim.Adam, "it is of another kind: only the file has trust"),
    ],
)
def test_a_subclass_loads_the_state_of_its_base_and_the_reverse(tmp_path, saved, mine, why):
    first = line_learner(path=tmp_path, opt_func=saved)
    first.fit(1)
    first.save("a")
    learn = line_learner(path=tmp_path, opt_func=mine)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.load("a")
    assert [str(w.message) for w in seen] == ([] if why is None else [f"the optimizer was not loaded: {why}"])
    moments = [s["exp_avg"].item() for s in learn.opt.state.values()] if why is None else []
    assert moments == ([s["exp_avg"].item() for s in first.opt.state.values()] if why is None else [])
    learn.fit(1)


def test_torch_may_wrap_the_step_of_a_subclass_before_that_of_its_base():
    """The first optimizer of a class replaces its `step`, so a subclass made first has a `step` of its own name."""
    done = subprocess.run([sys.executable, "-c", WRAPPED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WRAPPED = """
import torch
from cbnb.files.saving import _steps_like

class First(torch.optim.NAdam): pass

First([torch.zeros(1, requires_grad=True)])
assert 'step' in vars(First) and _steps_like(First, 'NAdam')
"""


def test_an_optimizer_of_the_class_of_all_optimizers_has_a_name():
    assert opt_classes(torch.optim.Optimizer([nn.Parameter(torch.zeros(1))], {})) == ["Optimizer"]


def test_any_path_names_a_file(tmp_path):
    class Named:
        def __fspath__(self):
            return "a"

    learn = line_learner(path=tmp_path)
    assert learn.save(Named()) == tmp_path / "models" / "a.pth"
    assert cbnb.SaveModel(fname=Named()).fname == "a"
