"""What a user meets who resumes: the page's training, displays, new settings, clocks, and signals."""

import collections
import copy
import json
import os
import signal
import subprocess
import threading
import warnings
from pathlib import Path

import pytest
import torch

import cbnb
import processes
from cbnb.basics.nested import put_state, state_of
from cbnb.callbacks.stopping import StopAfter
from cbnb.dialects import mindspore
from cbnb.display.front_end import display_as
from cbnb.files.checkpoints import read_manifest
from cbnb.toy import line_learner, raises, wave_learner

NOTEBOOK = Path(__file__).parents[2] / "nbs/tutorials/resume.ipynb"


def script(folder):
    """The script that the tutorial writes."""
    cells = ["".join(c["source"]) for c in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]]
    code = next(c for c in cells if c.startswith("%%writefile train.py")).partition("\n")[2]
    (folder / "train.py").write_text(code, encoding="utf-8")


def run(folder, signal_name=""):
    env = os.environ | dict(FOLDER="out", SIGNAL=signal_name, OMP_NUM_THREADS="1")
    return subprocess.run([*processes.python(), "train.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def rows(process):
    """The lines of the table, without the times."""
    return [line.rpartition("  ")[0] for line in process.stdout.splitlines()[2:]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of the training in one piece."""
    script(folder := tmp_path_factory.mktemp("whole"))
    return rows(run(folder))


@pytest.mark.parametrize("name, batch", [("SIGKILL", 4), ("SIGTERM", 13)])
def test_the_training_of_the_tutorial_ends_with_the_same_numbers(tmp_path, whole, name, batch):
    """With the callbacks that every learner has, the display among them."""
    script(tmp_path)
    assert run(tmp_path, name).returncode == -getattr(signal, name)
    again = run(tmp_path)
    assert again.stdout.splitlines()[0].startswith(f"continuing at epoch 2, batch {batch}, from out/"), again.stderr
    assert rows(again) == whole and len(whole) == 5


@pytest.mark.parametrize("mode", ["plain", "terminal", "lines"])
def test_every_display_can_be_in_a_checkpoint_and_none_is(tmp_path, mode, capsys):
    found = []

    class TakesState(cbnb.Callback):
        order = 99

        def after_batch(self):
            found.append(copy.deepcopy(self.learn.state_dict()["callbacks"]))

    with display_as(mode):
        line_learner(default_cbs=True, cbs=TakesState, quiet=False, path=tmp_path).fit(1)
    assert all(s["state"] == {} for states in found for s in states if s["cb"] == "ProgressCallback") and len(found) == 3


def test_objects_that_refer_to_each_other_have_a_state():
    class Part:
        def __init__(self, whole):
            self.whole, self.n = whole, 1

    class Whole:
        def __init__(self):
            self.part = Part(self)

    Part.__module__ = Whole.__module__ = "cbnb.example"
    whole, other = Whole(), Whole()
    whole.part.n = 7
    put_state(other, state_of(whole))
    assert other.part.n == 7 and other.part.whole is other


def test_new_settings_hold_and_what_was_learnt_is_kept():
    """A patience of 3 was restored into `EarlyStopping(patience=10)`."""
    old = wave_learner(cbs=cbnb.EarlyStopping(patience=3))
    old.fit(2)
    new = wave_learner(cbs=cbnb.EarlyStopping(patience=10))
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert new.early_stopping.patience == 10 and new.early_stopping.best == old.early_stopping.best


def test_a_state_that_does_not_fit_leaves_no_optimizer():
    old = wave_learner()
    old.fit(1)
    state, new = copy.deepcopy(old.state_dict()), line_learner()
    with pytest.raises(ValueError, match="nothing was changed"):
        new.load_state_dict(state)
    assert new.opt is None
    fresh = wave_learner()
    fresh.load_state_dict(state)
    assert fresh.opt.state_dict()["param_groups"] == old.opt.state_dict()["param_groups"]


@pytest.mark.filterwarnings("ignore:You are shadowing an attribute")
def test_an_argument_that_a_callback_changes_is_state():
    class Count(cbnb.Callback):
        def __init__(self, n=0, log=(), scale=torch.ones(2)):
            self.n, self.log, self.scale = n, list(log), scale.clone()

        def after_batch(self):
            self.n += 1
            self.log.append(self.n)
            self.scale *= 2

    old, new = (line_learner(cbs=Count(log=[0])) for _ in range(2))
    old.fit(1)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert new.count.n == 3 and new.count.log == [0, 1, 2, 3] and new.count.scale.tolist() == [8, 8]


def test_the_clock_of_another_process_is_not_restored():
    """`perf_counter` counts from another moment after a restart of the machine."""
    learn = line_learner(cbs=StopAfter(seconds=900))
    learn.fit(1)
    assert not {"until", "end"} & learn.stop_after.state_dict().keys()


def test_a_changed_fit_is_asked_about(tmp_path):
    line_learner(path=tmp_path).fit(2, resume=True)
    with raises(ValueError, "n_epoch was 2, and is 3"):
        line_learner(path=tmp_path).fit(3, resume=True)


class FailAt(cbnb.Callback):
    def __init__(self, at):
        self.at = at

    def before_batch(self):
        if self.training and self.train_iter == self.at:
            raise ArithmeticError


def spore_learner(path, *more, **kwargs):
    """With callbacks of MindSpore, two files of a network kept."""
    config = mindspore.CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2, **kwargs)
    cbs = [
        mindspore.ModelCheckpoint("K", path / "ckpt", config),
        mindspore.LossMonitor(4),
        mindspore.History(),
        mindspore.EarlyStopping(patience=9),
    ]
    return wave_learner(n=5, path=path, cbs=[*cbs, *more])


@pytest.mark.parametrize("at, every_steps", [(8, 3), (13, 4), (11, None), (7, 1)])
def test_callbacks_of_mindspore_go_on_as_if_nothing_had_happened(tmp_path, capsys, at, every_steps):
    """They handled the batch after the checkpoint had been made, and counted from zero afterwards."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole = spore_learner(tmp_path / "a")
    whole.fit(4)
    printed = [line for line in capsys.readouterr().out.splitlines() if "epoch:" in line]
    broken = spore_learner(tmp_path / "b", FailAt(at), checkpoint := cbnb.Checkpoint(every_steps))
    with pytest.raises(ArithmeticError):
        broken.fit(4, resume=True)
    done = read_manifest(checkpoint.saved()[-1])["step"]
    capsys.readouterr()
    resumed = spore_learner(tmp_path / "b", cbnb.Checkpoint(every_steps))
    resumed.fit(4, resume=True)
    again = [line for line in capsys.readouterr().out.splitlines() if "epoch:" in line]
    assert again == printed[done // 4 :] and len(printed) == 5
    assert sorted(p.name for p in (tmp_path / "b/ckpt").iterdir()) == ["K-4_3.ckpt", "K-4_5.ckpt"]
    one, other = (next(cb for cb in learn.callbacks if isinstance(cb, mindspore.History)) for learn in (resumed, whole))
    assert one.history == other.history and one.epoch == other.epoch
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))


def test_new_settings_of_callbacks_of_mindspore_hold(tmp_path):
    old, new = (line_learner(cbs=mindspore.EarlyStopping(patience=n)) for n in (3, 10))
    old.fit(1)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert new.early_stopping.patience == 10 and new.early_stopping.best == old.early_stopping.best


def test_files_of_mindspore_that_are_written_in_a_thread(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    threads = set(threading.enumerate())
    for name, in_thread in dict(a=False, b=True).items():
        spore_learner(tmp_path / name, async_save=in_thread).fit(2)
    for file in ("K-2_3.ckpt", "K-2_5.ckpt"):
        one, other = (mindspore.load_checkpoint(tmp_path / name / "ckpt" / file) for name in "ab")
        assert one.keys() == other.keys() and all(one[k].equal(other[k]) for k in one)
    assert len(list((tmp_path / "b/ckpt").iterdir())) == 2
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)  # it ends with its file, a moment after the fit has waited for the file
    assert set(threading.enumerate()) <= threads


def test_an_error_in_the_thread_ends_the_fit(tmp_path):
    (tmp_path / "ckpt").write_bytes(b"")
    with pytest.raises(OSError):
        spore_learner(tmp_path, async_save=True).fit(1)


def test_what_a_checkpoint_cannot_store_is_said_when_the_fit_begins(tmp_path):
    class Window:
        pass

    class Watches(cbnb.Callback):
        def before_fit(self):
            self.window, self.out, self.words = Window(), open(tmp_path / "log", "w"), collections.Counter("abba")

        def after_fit(self):
            self.out.close()

    class Silent(Watches):
        no_state = ("window", "out")

    class Knows(Watches):
        def state_dict(self):
            return {"words": self.words}

    with pytest.warns(UserWarning, match="Watches: checkpoints do not store window, out. If a resumed fit needs them"):
        line_learner(path=tmp_path / "a", cbs=Watches).fit(1, resume=True)
    for cb in (Silent, Knows):
        with warnings.catch_warnings(action="error"):
            line_learner(path=tmp_path / cb.__name__, cbs=cb).fit(1, resume=True)


def test_counters_and_dicts_with_defaults_keep_their_kind(tmp_path):
    class Counts(cbnb.Callback):
        def before_fit(self):
            self.words, self.found = collections.Counter(), collections.defaultdict(list)

        def after_batch(self):
            self.words["batch"] += 1
            self.found[self.epoch].append(self.words["batch"])

    with pytest.raises(ArithmeticError):
        line_learner(path=tmp_path, valid=False, cbs=[Counts, FailAt(5)]).fit(4, resume=True)
    learn = line_learner(path=tmp_path, valid=False, cbs=Counts)
    learn.fit(4, resume=True)
    assert learn.counts.words == collections.Counter(batch=8) and learn.counts.found == {n: [2 * n + 1, 2 * n + 2] for n in range(4)}
    assert type(learn.counts.words) is collections.Counter and type(learn.counts.found) is collections.defaultdict


@pytest.mark.parametrize("steps", [40, 64])
def test_a_fit_that_ended_at_a_limit_continues_with_the_next_batch(tmp_path, steps):
    """One limit lies in the second epoch, the other at its end."""

    def fitted(cbs=None, **kwargs):
        cbnb.set_seed(3)
        learn = wave_learner(**kwargs)
        with learn.no_logging():
            learn.fit(4, cbs=cbs, resume="path" in kwargs)
        return learn

    assert fitted(StopAfter(steps=steps), path=tmp_path).recorder.last().n_steps == steps
    loaded = []
    counts = cbnb.Callback(before_batch=lambda self: loaded.append(self.train_iter) if self.training else None)
    learn, whole = fitted(counts, path=tmp_path), fitted()
    assert loaded[0] == steps
    assert all(map(torch.equal, learn.model.parameters(), whole.model.parameters()))
    assert learn.recorder.history["train_loss"] == whole.recorder.history["train_loss"]
    assert learn.recorder.last().n_steps == whole.recorder.last().n_steps == 128


def test_a_limit_in_the_last_epoch_leaves_the_rest_of_it(tmp_path):
    def fitted(**kwargs):
        cbnb.set_seed(3)
        learn = wave_learner(path=tmp_path, cbs=cbnb.Checkpoint(keep=1))
        with learn.no_logging():
            learn.fit(1, **kwargs)
        return learn

    assert fitted(cbs=StopAfter(steps=10)).recorder.last().n_steps == 10
    assert fitted(resume=True).recorder.last().n_steps == 32
