"""Checkpoints: a fit that is killed goes on as if nothing had happened, and no damage is read without a word.

With CBNB_KILLS=50 in the environment, fifty trainings are killed at random moments, and fifty saves of a large state.
"""

import contextlib
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_notebook
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
import notebooks
import resumed
import training
from cbnb.files import atomic
from cbnb.files import checkpoints as files
from helpers import ab, line_learner
from test_kernel import Kernel

KILLS = int(os.environ.get("CBNB_KILLS", 0))
PROGRAM = Path(training.__file__)


def in_fork(f, *args, seconds=300.0):
    """The status of a process that calls `f`, minus the signal that has ended it, and its output; a fork has all modules at once."""
    with tempfile.TemporaryFile("w+") as out:
        sys.stdout.flush(), sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a fork of a process with threads may wait forever; these have none that matter
            pid = os.fork()
        if not pid:
            code = 1
            try:
                os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
                f(*args)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        end = time.monotonic() + seconds
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        out.seek(0)
        return os.waitstatus_to_exitcode(ended[1]), out.read()


# --- killed at any moment, and started again ---


def train(folder, *dies_in, kill_after=None):
    """The exit status of a training in a process of its own, and what it wrote."""
    command = [sys.executable, str(PROGRAM), str(folder), "2", *map(str, dies_in)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        try:
            out, _ = process.communicate(timeout=kill_after or 300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a worker of torch's loader that has just begun waits for ever
            out, _ = process.communicate()
    return process.returncode, out


def outcome_in(folder):
    return json.loads((folder / "outcome.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an uninterrupted training arrives at, and how long it takes."""
    folder, begun = tmp_path_factory.mktemp("whole"), time.perf_counter()
    status, out = train(folder)
    assert status == 0, out
    return outcome_in(folder), time.perf_counter() - begun


def check_same(folder, whole, out=""):
    got = outcome_in(folder)
    assert {name for name in whole if got[name] != whole[name]} == set(), out
    for batches in got["items"].values():  # each item once, also in the epochs that were interrupted
        assert sorted(sum(batches, [])) == list(range(training.N_ITEMS))


def drafts_in(folder):
    return [path for path in Path(folder).rglob(".*") if path.name.endswith(".part")]


def test_killed_again_and_again_and_nothing_is_lost(whole, tmp_path):
    """Mid-epoch, in a save (before a file is complete, before it has its name, while an old one is removed), between epochs."""
    moments = [
        ("after_batch", 5),
        ("fsync", 6),
        ("rename", 3),
        ("before_validate", 1),
        ("rmtree", 3),
        ("after_epoch", 1),
        ("after_step", 6),
    ]
    for what, k in moments:
        status, out = in_fork(training.main, tmp_path, 2, what, k)
        assert status == -signal.SIGKILL, (what, out)
    status, out = train(tmp_path)
    assert status == 0, out
    assert "continuing at epoch" in out and "skipped a checkpoint: " not in out
    check_same(tmp_path, whole[0], out)
    assert drafts_in(tmp_path) == [] and len(files.checkpoints(tmp_path / "models/checkpoints/fit_0")) == 3


def test_a_finished_fit_is_not_run_again(whole, tmp_path):
    assert in_fork(training.main, tmp_path, 2)[0] == 0
    check_same(tmp_path, whole[0])
    (tmp_path / "outcome.json").unlink()
    status, out = in_fork(training.main, tmp_path, 2)
    assert status == 0 and "this fit is finished, so its last state was loaded" in out
    check_same(tmp_path, whole[0], out)


@pytest.mark.skipif(not KILLS, reason="CBNB_KILLS=50 runs it")
@pytest.mark.parametrize("i", range(KILLS))
def test_killed_at_random_moments(whole, tmp_path, i):
    wanted, seconds = whole
    rng, killed, last = random.Random(i), 0, ""
    while not (tmp_path / "outcome.json").exists():
        status, last = train(tmp_path, kill_after=rng.uniform(0.3, 1) * seconds if killed < 2 else None)
        assert status in (0, -signal.SIGKILL), last
        killed += status < 0
    print(f"killed {killed} times")
    check_same(tmp_path, wanted, last)


# --- many kinds of trainings ---


@pytest.mark.parametrize("name", [name for name in resumed.DATA if name != "augmented in persistent workers"])
def test_the_order_of_the_data(tmp_path, name):
    got, whole = resumed.interrupted_and_whole(lambda path: resumed.make(path, resumed.DATA[name]()), tmp_path)
    assert got == whole


def test_workers_whose_random_numbers_cannot_be_stored(tmp_path):
    """You are told before it matters; of data without random numbers nothing is said."""
    make = resumed.DATA["augmented in persistent workers"]
    with pytest.warns(UserWarning, match="to resume exactly, pass persistent_workers=False") as seen:
        learn = resumed.make(tmp_path, make())
        learn.fit(1, cbs=cbnb.Checkpoint())
    assert [w.filename for w in seen] == [__file__]
    resumed.stop_workers(learn)


@pytest.mark.parametrize("name", resumed.SETTINGS)
@pytest.mark.filterwarnings("ignore:Using a target size", "ignore:train_step updates the weights")
def test_what_callbacks_steps_and_metrics_know(tmp_path, name):
    got, whole = resumed.interrupted_and_whole(resumed.SETTINGS[name], tmp_path, at=resumed.AT.get(name, (11, 17)))
    assert got == whole


@pytest.mark.parametrize("name", resumed.FITS)
def test_schedules(tmp_path, name):
    got, whole = resumed.interrupted_and_whole(resumed.make, tmp_path, resumed.FITS[name])
    assert got == whole


def test_written_in_the_background(tmp_path):
    got, whole = resumed.interrupted_and_whole(resumed.make, tmp_path, every=1, background=True)
    assert got == whole


def test_callbacks_store_nothing_of_the_moment(tmp_path):
    """Times of this machine and its windows are no state, and no file has an address of the memory."""
    learn = resumed.make(tmp_path, cbs=[cbnb.StopAfter(seconds=9e9), cbnb.TerminateOnNaN()]).add_cb(cbnb.ProgressCallback)
    seen = {}

    def look(self):
        if self.learn.train_iter == 8:
            seen.update({type(cb).__name__: cb.state_dict() for cb in self.learn.cbs})

    learn.fit(2, cbs=cbnb.Callback(after_step=look))
    assert seen["ProgressCallback"] == {}
    assert seen["TerminateOnNaN"].keys() & {"averages", "warned_in"} == set()
    assert seen["StopAfter"].keys() & {"until", "end"} == set()


# --- a save that is killed ---


def big(n, number):
    """A state by which you see whether it is of one save or a mixture of two."""
    return dict(number=number, weights=torch.full((n,), float(number)), again=torch.full((n,), float(number)))


def check_big(path, least=1):
    state = files.read_checkpoint(path)
    assert state["number"] >= least
    assert state["weights"].eq(state["number"]).all() and state["again"].eq(state["number"]).all()
    return state["number"]


class At:
    """Dies at the k-th line of the pages that write; counts them if `k` is None."""

    watched = (files.__file__, atomic.__file__, tempfile.__file__, shutil.__file__)

    def __init__(self, k=None):
        self.k, self.n = k, 0

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(self.watched):
            return None
        self.n += 1
        if self.n == self.k:
            training.die()
        return self


def save_and_prune(folder, number, n=50_000):
    files.write_checkpoint(folder, "x", big(n, number))
    for old in files.checkpoints(folder)[:-2]:
        files.remove_checkpoint(old)


def save_traced(folder, number, k):
    at = At(k)
    sys.settrace(at)
    try:
        save_and_prune(folder, number)
    finally:
        sys.settrace(None)
    print(at.n)


def test_killed_at_any_line_of_a_save(tmp_path):
    """The one before or the new one is whole, and the next save leaves nothing else."""
    base = tmp_path / "base"
    for number in (1, 2, 3):
        save_and_prune(base, number)
    shutil.copytree(base, tmp_path / "counted")
    status, out = in_fork(save_traced, tmp_path / "counted", 4, None)
    n_lines = int(out)
    assert status == 0 and n_lines > 100
    found = set()
    for k in range(1, n_lines + 1, 1 if KILLS else 7):
        folder = tmp_path / "killed"
        shutil.copytree(base, folder)
        assert in_fork(save_traced, folder, 4, k)[0] == -signal.SIGKILL
        whole = [check_big(path) for path in files.checkpoints(folder)]
        assert whole in ([2, 3], [2, 3, 4], [3, 4])
        found.add(tuple(whole))
        save_and_prune(folder, 5)
        assert sorted(os.listdir(folder)) == [path.name for path in files.checkpoints(folder)]
        assert [check_big(path) for path in files.checkpoints(folder)][-1] == 5
        shutil.rmtree(folder)
    assert found == {(2, 3), (2, 3, 4), (3, 4)}


def save_forever(folder, n):
    number = max((check_big(path) for path in files.checkpoints(folder)), default=0)
    while True:
        number += 1
        save_and_prune(folder, number, n)


def test_killed_while_a_large_state_is_written(tmp_path):
    """Also in the middle of the file with the tensors, 200 MB with CBNB_KILLS."""
    n, rng = 25_000_000 if KILLS else 1_000_000, random.Random(0)
    begun = time.perf_counter()
    save_and_prune(tmp_path, 1, n)
    seconds, newest, mid_write = time.perf_counter() - begun, 1, 0
    for _ in range(KILLS or 6):
        status, out = in_fork(save_forever, tmp_path, n, seconds=rng.uniform(0.05, 3) * seconds)
        assert status == -signal.SIGKILL, out
        mid_write += bool(drafts_in(tmp_path))
        now = max(check_big(path) for path in files.checkpoints(tmp_path))
        assert now >= newest
        newest = now
    save_and_prune(tmp_path, newest + 1, n)
    assert drafts_in(tmp_path) == [] and sorted(os.listdir(tmp_path)) == [path.name for path in files.checkpoints(tmp_path)]
    print(f"{mid_write} of {KILLS or 6} kills left a draft; {newest} saves were whole")


def test_two_processes_write_to_one_folder(tmp_path):
    """Also if one of them is killed: none removes what the other one writes."""

    def several(numbers):
        for number in numbers:
            files.write_checkpoint(tmp_path, "x", big(20_000, number))

    def two():
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                several(range(2, 30, 2))
                os._exit(0)
            os._exit(1)
        several(range(1, 30, 2))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    status, out = in_fork(two)
    assert status == 0, out
    found = files.checkpoints(tmp_path)
    assert sorted(check_big(path) for path in found) == list(range(1, 30))
    assert len({path.name.partition("_")[0] for path in found}) == 29 and drafts_in(tmp_path) == []


def test_a_draft_of_another_process_stays_until_that_is_dead(tmp_path):
    def hold():
        with atomic.draft_of(tmp_path / "checkpoint") as draft:
            draft.mkdir(exist_ok=True)
            (draft / "tensors.pt").write_text("half")
            (tmp_path / "held").touch()
            time.sleep(60)

    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            hold()
        os._exit(0)
    try:
        while not (tmp_path / "held").exists():
            assert os.waitpid(pid, os.WNOHANG)[0] == 0  # it lives
            time.sleep(0.01)
        files.write_checkpoint(tmp_path, "x", big(10, 1))
        assert len(drafts_in(tmp_path)) == 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    files.write_checkpoint(tmp_path, "x", big(10, 2))
    assert drafts_in(tmp_path) == []


def test_the_folder_for_temporary_files_may_be_on_another_disk(tmp_path, monkeypatch):
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=other) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        save_and_prune(tmp_path, 1)
        assert check_big(files.checkpoints(tmp_path)[0]) == 1 and os.listdir(folder) == []


class Compared(torch.Tensor):
    """A tensor with an `__eq__` of its own, so without a hash."""

    def __eq__(self, other):
        return super().__eq__(other)


def test_a_tensor_subclass_without_a_hash_is_stored(tmp_path):
    t = torch.arange(3.0).as_subclass(Compared)
    path = files.write_checkpoint(tmp_path, "a", {"t": t, "again": t, "copy": t.clone()})
    state = files.read_checkpoint(path)
    assert state["t"].tolist() == [0, 1, 2] and state["t"] is state["again"] and state["t"] is not state["copy"]


# --- damage ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the checkpoints of a fit that failed in its third epoch."""
    folder = tmp_path_factory.mktemp("saved")
    with contextlib.suppress(resumed.PowerFailed), contextlib.redirect_stdout(None):
        resumed.make(folder).fit(3, cbs=[cbnb.Checkpoint(every_steps=4), resumed.Fails(17)])
    return folder


def copied(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    return files.checkpoints(folder / "models/checkpoints/fit_0")


def check_refused(path, words, why=""):
    with pytest.raises(ValueError, match=re.escape(str(path))) as e:
        files.read_checkpoint(path)
    assert words in str(e.value) and why in str(e.value)
    versions = "install the versions that wrote it, or use another checkpoint"
    advice = (
        versions
        if "cannot be read" in words
        else "Use another checkpoint, or delete this folder"
        if path.is_dir()
        else "there is no such folder"
    )
    assert advice in str(e.value)


def resume(folder, **kwargs):
    learn = resumed.make(folder)
    learn.fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=True, **kwargs)
    return learn


def test_a_flipped_byte_anywhere_is_refused(saved, tmp_path):
    path, rng = copied(saved, tmp_path)[-1], random.Random(0)
    names = sorted(os.listdir(path))
    assert names == ["manifest.json", "state.json", "tensors.pt"]
    for i in range(200):
        file = path / names[i % 3]
        data = file.read_bytes()
        place = rng.randrange(len(data))
        changed = bytearray(data)
        changed[place] ^= rng.choice([1, 2, 4, 8, 16, 32, 64, 128])
        file.write_bytes(changed)
        check_refused(path, "is a damaged checkpoint: ", names[i % 3])
        file.write_bytes(data)
    files.read_checkpoint(path)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.pt"])
def test_a_file_that_is_cut_empty_missing_or_another_is_refused(saved, tmp_path, name):
    path, rng = copied(saved, tmp_path)[-1], random.Random(0)
    file = path / name
    data = file.read_bytes()
    for size in {0, 1, len(data) - 1, *(rng.randrange(len(data)) for _ in range(17))}:
        file.write_bytes(data[:size])
        check_refused(path, "is a damaged checkpoint: ", name)
    for other in (b"just a text\n", b"{}", b"[]", b"null", b'{"content": {}}', b'{"content": [], "sha256": ""}', data + b" ", b"\xff\xfe"):
        file.write_bytes(other)
        check_refused(path, "is a damaged checkpoint: ", name)
    missing = "is not a complete checkpoint: " if name == "manifest.json" else "is a damaged checkpoint: "
    file.unlink()
    check_refused(path, missing, name)
    file.mkdir()
    check_refused(path, missing, name)


def test_resume_falls_back_to_the_one_before(saved, tmp_path):
    paths = copied(saved, tmp_path)
    (paths[-1] / "tensors.pt").write_bytes(b"")
    (paths[-2] / "state.json").unlink()
    with pytest.warns(UserWarning, match="resume skipped a checkpoint: ") as seen:
        learn = resume(tmp_path / "copy")
    passed = [str(w.message) for w in seen if "resume skipped a checkpoint: " in str(w.message)]
    assert len(passed) == 2 and str(paths[-1]) in passed[0] and str(paths[-2]) in passed[1]
    assert learn.epoch == 2 and learn.recorder.history[-1].n_steps == 18
    paths = copied(saved, tmp_path)
    for path in paths:
        (path / "tensors.pt").write_bytes(b"")
    with pytest.warns(UserWarning, match="resume skipped a checkpoint: "):
        learn = resume(tmp_path / "copy")
    assert learn.recorder.history[-1].n_steps == 18
    with pytest.raises(FileNotFoundError, match="there is no checkpoint in"):  # asked for by its path
        resumed.make(tmp_path / "copy").fit(3, resume=paths[0])


def with_true_sums(path):
    """A manifest that fits to the files as they are now."""
    content = json.loads((path / "manifest.json").read_text())["content"]
    content["files"] = files._file_sums(path)
    (path / "manifest.json").write_bytes(files._canonical(content))


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol 4")
def test_a_malicious_pickle_is_not_run(saved, tmp_path):
    path, ran = copied(saved, tmp_path)[-1], tmp_path / "ran"
    for write in (
        lambda file: torch.save([Evil(ran)], file),
        lambda file: file.write_bytes(pickle.dumps(Evil(ran))),
        lambda file: torch.save([Evil(ran)], file, _use_new_zipfile_serialization=False),
    ):
        write(path / "tensors.pt")
        with_true_sums(path)
        check_refused(path, "is a damaged checkpoint: ", "tensors.pt has objects other than tensors")
        assert not ran.exists()


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        '{"!tensor": 99}', '{"!tensor": "os"}', '{"!eval": "1"}', '{"!dtype": "load"}', '{"!dtype": "__builtins__"}', '{"!device": "nowhere"}',
        '{"!array": "x", "of": {"!tensor": 0}}', '{"!held": 3}', '{"!dict": 3}', '{"!dict": [[[], 1]]}', '{"!bytes": "zz"}', '{"!float": "import os"}',
        NESTED, "", "[1", '{"!path": 3}', '{"!deque": [1, "x"]}',
    ],
)  # fmt: skip
def test_a_hostile_state_is_refused(saved, tmp_path, text):
    path = copied(saved, tmp_path)[-1]
    (path / "state.json").write_text(text)
    with_true_sums(path)
    check_refused(path, words="cannot be read with cbnb")


@pytest.mark.parametrize("text", ["[]", "{}", "3", "null", '{"batch": 1}', '{"batch": 0, "models": 3}', '"text"'])
def test_a_state_of_something_else_is_refused(saved, tmp_path, text):
    """Its sums are right, so somebody has made it."""
    path = copied(saved, tmp_path)[-1]
    (path / "state.json").write_text(text)
    with_true_sums(path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        resumed.make(tmp_path / "copy").fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=path)


def test_a_newer_format_is_said(saved, tmp_path):
    path = copied(saved, tmp_path)[-1]
    content = json.loads((path / "manifest.json").read_text())["content"] | dict(format=files.FORMAT + 1)
    (path / "manifest.json").write_bytes(files._canonical(content))
    with pytest.raises(ValueError, match="update cbnb, because a newer version wrote it"):
        files.read_checkpoint(path)


# --- another fit ---


def other_net():
    return nn.Sequential(nn.Linear(3, 9), nn.BatchNorm1d(9), nn.Dropout(0.5), nn.Linear(9, 1))


def other_names():
    return nn.Sequential(OrderedDict(a=nn.Linear(3, 8), b=nn.BatchNorm1d(8), c=nn.Dropout(0.5), d=nn.Linear(8, 1)))


CHANGES = {
    "n_epoch": (lambda path: resumed.make(path), dict(n_epoch=4)),
    "data": (lambda path: resumed.make(path, DataLoader(TensorDataset(*resumed.items()), 6, shuffle=True)), {}),
    "model": (lambda path: resumed.make(path, model=other_net()), {}),
    "optimizer": (lambda path: resumed.make(path), dict(lr=0.02)),
    "loss": (lambda path: resumed.make(path, loss_func=nn.L1Loss()), {}),
    "schedule": (lambda path: resumed.make(path), dict(cbs=[cbnb.ParamScheduler({"lr": cbnb.SchedCos(0.01, 0.0)})])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_fit_is_refused_by_name(saved, tmp_path, name):
    make, given = CHANGES[name]
    newest = copied(saved, tmp_path)[-1]
    learn = make(tmp_path / "copy")
    before = {k: v.clone() for k, v in learn.model.state_dict().items()}
    given = dict(n_epoch=3) | given
    cbs = [cbnb.Checkpoint(every_steps=4), *given.pop("cbs", ())]
    with pytest.raises(ValueError) as e:
        learn.fit(**given, cbs=cbs, resume=True)
    text = str(e.value)
    assert str(newest) in text and "belongs to another fit" in text
    assert f"{name} was " in text and f"begin anew, delete {newest.parent}, or keep it and pass cbs=Checkpoint(path=" in text
    # the weights of other layers cannot be loaded, and other batches have no such place
    assert ("resume=Resume(allow=" in text) == (name not in ("model", "data"))
    assert all(torch.equal(before[k], v) for k, v in learn.model.state_dict().items())


def test_a_fit_that_was_refused_leaves_no_run_and_the_next_one_continues(saved, tmp_path):
    copied(saved, tmp_path)
    learn = resumed.make(tmp_path / "copy")
    with pytest.raises(ValueError, match="n_epoch was 3, and is 4"):
        learn.fit(4, cbs=cbnb.Checkpoint(every_steps=4), resume=True)
    assert len(learn.recorder.history) == 0
    learn.fit(4, cbs=cbnb.Checkpoint(every_steps=4), resume=cbnb.Resume(allow="n_epoch"))
    assert [row["epoch"] for row in learn.recorder.history[-1].epochs] == [0, 1, 2, 3]
    assert [f.name for f in (tmp_path / "copy/models/checkpoints").iterdir()] == ["fit_0"]


def test_another_architecture_and_missing_names_are_refused_even_if_allowed(saved, tmp_path):
    """The file is named, and nothing is changed."""
    newest = copied(saved, tmp_path)[-1]
    for model, words in (other_net(), "shape"), (other_names(), "this module also has"):
        learn = resumed.make(tmp_path / "copy", model=model)
        before = [p.clone() for p in learn.model.parameters()]
        with pytest.raises(ValueError, match=words) as e:
            learn.fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=cbnb.Resume(allow="model"))
        assert str(newest) in str(e.value)
        assert all(map(torch.equal, before, learn.model.parameters()))


@pytest.mark.parametrize("name", ["n_epoch", "optimizer", "loss", "schedule"])
def test_what_is_allowed_goes_on(saved, tmp_path, name):
    make, given = CHANGES[name]
    copied(saved, tmp_path)
    learn, given = make(tmp_path / "copy"), dict(n_epoch=3) | given
    cbs = [cbnb.Checkpoint(every_steps=4), *given.pop("cbs", ())]
    learn.fit(**given, cbs=cbs, resume=cbnb.Resume(allow=name))
    run = learn.recorder.history[-1]
    assert run.n_steps == 6 * given["n_epoch"] and len(run.epochs) == given["n_epoch"] and run.status == "done"
    if name == "optimizer":
        assert run.steps["lr"][-1] == 0.02 and run.steps["lr"][0] == 0.01


def test_other_data_only_after_a_whole_epoch(saved, tmp_path):
    make, _ = CHANGES["data"]
    copied(saved, tmp_path)
    words = r"saved in the middle of an epoch, so it can only be continued with the data of that fit\. There is no checkpoint from the end"
    with pytest.raises(ValueError, match=words):
        make(tmp_path / "copy").fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=cbnb.Resume(allow="data"))
    with pytest.raises(resumed.PowerFailed):
        resumed.make(tmp_path / "ends").fit(3, cbs=[cbnb.Checkpoint(), resumed.Fails(14)])
    learn = make(tmp_path / "ends")
    learn.fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=cbnb.Resume(allow="data"))
    assert learn.recorder.history[-1].n_steps == 12 + 4
    with pytest.raises(resumed.PowerFailed):
        resumed.make(tmp_path / "both").fit(3, cbs=[cbnb.Checkpoint(every_steps=13, every_epochs=1), resumed.Fails(14)])
    with pytest.raises(ValueError, match="_epoch_2'") as caught:
        make(tmp_path / "both").fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=cbnb.Resume(allow="data"))
    path = re.search(r"resume=Resume\('(.*)', allow=\['data'\]\)$", str(caught.value))[1]
    learn = make(tmp_path / "both")
    learn.fit(3, cbs=cbnb.Checkpoint(every_steps=4), resume=cbnb.Resume(path, allow=["data"]))  # what the error says
    assert learn.recorder.history[-1].n_steps == 12 + 4


# --- a disk that is full, a folder that cannot be written ---


def fit_with_little_space(folder):
    """The limit for the size of a file stands for a disk that is full."""
    learn = resumed.make(folder, cbs=[cbnb.Checkpoint(every_steps=4)])

    def fill(self):
        if self.learn.train_iter == 10:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        if self.learn.train_iter == 15:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(3, cbs=cbnb.Callback(after_step=fill))
    words = [str(w.message) for w in seen]
    assert words and all("could not be written" in text and "the fit continues" in text for text in words), words
    run = learn.recorder.history[-1]
    assert run.status == "done" and run.n_steps == 18
    paths = learn.checkpoint.saved()
    print([path.name for path in paths])
    for path in paths:
        files.read_checkpoint(path)


def test_a_full_disk_does_not_end_the_fit(tmp_path):
    status, out = in_fork(fit_with_little_space, tmp_path)
    assert status == 0, out
    names = out.splitlines()[-1]
    assert "epoch_2'" not in names and "epoch_2_batch_4" in names and drafts_in(tmp_path) == []


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("name", ["rename", "fsync", "mkdir"])
def test_a_folder_that_turns_bad_does_not_end_the_fit(tmp_path, monkeypatch, name, background):
    """The checkpoints from before are whole, and a later one is tried."""
    old, calls = getattr(os, name), []

    def fails(path, *args, **kwargs):
        calls.append(path)
        raise OSError(30, "Read-only file system", str(path))

    def turn(self):
        if self.learn.train_iter in (6, 14):
            monkeypatch.setattr(os, name, fails if self.learn.train_iter == 6 else old)

    learn = resumed.make(tmp_path, cbs=[cbnb.Checkpoint(every_steps=4, background=background)])
    with pytest.warns(UserWarning, match="Read-only file system.*the fit continues") as seen:
        learn.fit(3, cbs=cbnb.Callback(after_step=turn))
    assert calls and learn.recorder.history[-1].status == "done"
    assert seen[0].filename == __file__
    kept = learn.checkpoint.saved()
    assert kept[-1].name.endswith("epoch_3") and drafts_in(tmp_path) == []
    for path in kept:
        files.read_checkpoint(path)


def test_a_folder_that_cannot_be_made_is_said_before_the_first_batch(tmp_path):
    (tmp_path / "file").write_text("")
    learn = resumed.make(tmp_path, cbs=[cbnb.Checkpoint(path=tmp_path / "file")])
    with pytest.raises(OSError, match="file"):
        learn.fit(1)
    assert not learn.recorder.history.runs


# --- told to end, stopped, and several fits ---


def fit_and_tell(folder, event, at, background):
    """A fit whose process gets SIGTERM."""
    learn = resumed.make(folder, cbs=[cbnb.MixUp(0.4)])
    resumed.start(0)
    left = [at]

    def tell(self):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    learn.fit(3, cbs=[cbnb.Checkpoint(background=background), cbnb.Callback(**{event: tell})], resume=True)


@pytest.mark.parametrize(
    ("event", "at", "where"),
    [("after_step", 9, "epoch_1_batch_3"), ("before_validate", 2, "epoch_2"), ("before_epoch", 3, "epoch_2_batch_1")],
)
@pytest.mark.parametrize("background", [False, True])
def test_sigterm_saves_and_ends_the_process(tmp_path, event, at, where, background):
    """With the status of the signal, and not one batch is lost."""
    status, out = in_fork(fit_and_tell, tmp_path / "told", event, at, background)
    assert status == -signal.SIGTERM, out
    newest = files.checkpoints(tmp_path / "told/models/checkpoints/fit_0")[-1]
    assert newest.name.endswith(where) and f"got SIGTERM: saved {newest}, and the fit ends" in out
    learn = resumed.make(tmp_path / "told", cbs=[cbnb.MixUp(0.4)])
    resumed.start(5)
    learn.fit(3, cbs=cbnb.Checkpoint(), resume=True)
    got = resumed.everything(learn)
    whole = resumed.make(tmp_path / "whole", cbs=[cbnb.MixUp(0.4)])
    resumed.start(0)
    whole.fit(3)
    assert got == resumed.everything(whole)


def test_the_handler_of_sigterm_is_yours_again(tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *args: seen.append("mine"))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        resumed.make(tmp_path).fit(1, cbs=cbnb.Checkpoint())
        assert signal.getsignal(signal.SIGTERM) is mine
        learn = resumed.make(tmp_path)
        learn.fit(2, cbs=[cbnb.Checkpoint(), cbnb.Callback(after_step=lambda self: self.learn.train_iter == 2 and signal.raise_signal(15))])
        assert seen == ["mine"] and learn.recorder.history[-1].n_steps == 12  # your handler decides whether the process ends
    finally:
        signal.signal(signal.SIGTERM, before)


def stop(at):
    """Presses the stop button."""
    return cbnb.Callback(after_step=lambda self: self.learn.train_iter == at and signal.raise_signal(signal.SIGINT))


def test_ctrl_c_and_the_cell_again(tmp_path):
    """In the same process, with the same learner."""
    learn, button = resumed.make(tmp_path / "stopped"), stop(8)
    checkpoint = cbnb.Checkpoint(every_steps=4)
    resumed.start(0)
    with pytest.raises(KeyboardInterrupt):
        learn.fit_one_cycle(3, 1e-2, cbs=[checkpoint, button], resume=True)
    learn.fit_one_cycle(3, 1e-2, cbs=checkpoint, resume=True)
    got = resumed.everything(learn)
    whole = resumed.make(tmp_path / "whole")
    resumed.start(0)
    whole.fit_one_cycle(3, 1e-2)
    wanted = resumed.everything(whole)
    assert got == wanted | dict(runs=got["runs"])


def test_ctrl_c_names_only_checkpoints_of_its_own_fit(tmp_path, capsys):
    line_learner(n=4).fit(2, cbs=cbnb.Checkpoint(path=tmp_path))  # another fit, with the same folder
    for at, said in (2, False), (6, True):
        with pytest.raises(KeyboardInterrupt):
            line_learner(n=4).fit(5, cbs=[cbnb.Checkpoint(path=tmp_path), stop(at)])
        assert ("the same fit with resume=True continues from there" in capsys.readouterr().out) == said


def several_fits(learn, cbs, **kwargs):
    learn.fit_one_cycle(2, 1e-2, cbs=cbs, **kwargs)
    learn.fit(3, 1e-3, cbs=cbs, **kwargs)


def fine_tuned(learn, cbs, **kwargs):
    learn.fine_tune(3, 1e-2, freeze_epochs=1, cbs=cbs, freeze_cbs=cbs, **kwargs)


def in_the_last(fit):
    """Such that failures are in the last of the fits of a function."""

    def run(learn, cbs, **kwargs):
        fails = [cb for cb in cbs if isinstance(cb, resumed.Fails)]
        for cb in fails:
            cb.run = False

        def arm(self):
            for cb in fails:
                cb.run = self.learn.n_epoch == 3

        fit(learn, cbs=[*cbs, cbnb.Callback(before_epoch=arm)], **kwargs)

    return run


def make_split(path):
    return resumed.make(path, splitter=lambda m: [list(m[:2].parameters()), list(m[2:].parameters())])


@pytest.mark.parametrize("fit", [several_fits, fine_tuned])
def test_the_second_fit_is_interrupted(tmp_path, fit):
    got, whole = resumed.interrupted_and_whole(make_split, tmp_path, in_the_last(fit))
    assert got == whole and whole["runs"] == 2


@contextlib.contextmanager
def new_kernel():
    client = NotebookClient(new_notebook(), timeout=120, kernel_name="python3", allow_errors=True, coalesce_streams=True)
    with client.setup_kernel():
        kernel = Kernel(client)
        try:
            yield kernel
        finally:
            kernel.client.stop_channels()


CELLS = [
    f"""
import sys
sys.path[:0] = [{str(PROGRAM.parent.parent)!r}, {str(PROGRAM.parent)!r}]
import os, signal, torch
torch.set_num_threads(1)
from cbnb.all import *
import resumed, training
class Dies(Callback):
    no_state = ('at',)
    def __init__(self, at): self.at = at
    def after_step(self):
        if self.learn.train_iter == self.at: os.kill(os.getpid(), self.signal)
    signal = 9
""",
    """
resumed.start(0)
learn = resumed.make({folder!r}, cbs=[MixUp(0.4), Checkpoint(every_steps=4)]).add_cb(ProgressCallback)
learn.fit_one_cycle(2, 1e-2, resume=True)
""",
    "learn.fit_one_cycle(3, 1e-2, cbs={dies}, resume=True)",
]


def test_a_kernel_is_killed_and_the_notebook_is_run_again(tmp_path):
    """The same result as without, and one history; then Ctrl-C in another one, and its cell again."""
    folder = str(tmp_path / "killed")
    with notebooks.clean_kernels():
        with new_kernel() as first:
            first.run(CELLS[0])
            first.run(CELLS[1].format(folder=folder))
            with pytest.raises(Exception, match="died"):
                first.run(CELLS[2].format(dies="Dies(11)"))
        with new_kernel() as again:
            again.run(CELLS[0])
            assert "this fit is finished, so its last state was loaded" in str(again.run(CELLS[1].format(folder=folder)))
            outputs = again.run(CELLS[2].format(dies="None"))
            assert "continuing at epoch 1, batch 2" in str(outputs)
            table = next(o.data["text/plain"] for o in outputs if o.output_type == "display_data")
            assert len([line for line in table.splitlines() if re.match(r" *\d ", line)]) == 3, table
            got = again.value("resumed.everything(learn)")
            for name in ("whole", "stopped"):
                again.run(CELLS[1].format(folder=str(tmp_path / name)))
                if name == "stopped":
                    again.run("Dies.signal = 2\n" + CELLS[2].format(dies="Dies(9)"), fails=True)
                again.run(CELLS[2].format(dies="None"))
                wanted = again.value("resumed.everything(learn)")
                assert got | dict(runs=0) == wanted | dict(runs=0)
            assert got["runs"] == 2


def test_a_fit_does_not_continue_over_another_split(tmp_path):
    """The continued fit would train on items that it validates on; the sizes are the same."""
    data = torch.utils.data.TensorDataset(torch.arange(20.0)[:, None], torch.arange(20.0)[:, None])

    def learner(seed):
        parts = torch.utils.data.random_split(data, [16, 4], torch.Generator().manual_seed(seed))
        dls = cbnb.DataLoaders.from_datasets(*parts, bs=4, device="cpu")
        return cbnb.Learner(dls, torch.nn.Linear(1, 1), torch.nn.MSELoss(), lr=1e-4, path=tmp_path, default_cbs=False, cbs=cbnb.Recorder)

    learner(0).fit(1, resume=True)
    with pytest.raises(
        ValueError,
        match="the data have as many items as before, but other ones: if you split the data at random, call set_seed before the split",
    ):
        learner(1).fit(1, resume=True)
    learner(0).fit(1, resume=True)


def deep(content):
    return b'{"content": ' + b"[" * 200_000


def without(*names):
    return lambda content: files._canonical({k: v for k, v in content.items() if k not in names})


@pytest.mark.parametrize(
    "damage",
    [deep, without("format"), without("of"), without("saved"), without("files"), without("run_id"), lambda content: files._canonical([1])],
    ids=["deep JSON", "no format", "no of", "no saved", "no files", "no run_id", "a list"],
)
def test_resume_passes_over_a_bad_manifest(tmp_path, damage):
    """The fit continues from the checkpoint before it, and its weights are those of a fit that was not interrupted."""
    whole, learn = cbnb_line(tmp_path / "whole"), cbnb_line(tmp_path)
    whole.fit(3)
    learn.fit(2)
    (tmp_path / "checkpoints/fit_0/0²_x").mkdir()
    last = sorted((tmp_path / "checkpoints/fit_0").glob("0000*"))[-1]
    manifest = last / "manifest.json"
    manifest.write_bytes(damage(json.loads(manifest.read_bytes())["content"]))
    learn = cbnb_line(tmp_path)
    with pytest.warns(UserWarning, match="resume skipped a checkpoint: "):
        learn.fit(3, resume=cbnb.Resume(allow="n_epoch"))
    assert ab(learn) == ab(whole)
    assert learn.checkpoint.best() is not None


def cbnb_line(path):
    return line_learner(path=path, cbs=cbnb.Checkpoint(path=path / "checkpoints", keep=9))


class StatefulLoader:
    """The protocol of torchdata's StatefulDataLoader; it notes the batches that it loads. `again`: an ended epoch ends once more after loading."""

    def __init__(self, again=False):
        self._place, self.again, self.loaded = {"epoch": 0, "at": 0, "order": None}, again, []

    def __len__(self):
        return 6

    def state_dict(self):
        return {"place": dict(self._place), "seed": torch.tensor([7])}

    def load_state_dict(self, state):
        assert state["seed"].item() == 7
        self._place = dict(state["place"])
        self.again = self.again and self._place["at"] == 6

    def __iter__(self):
        place = self._place
        if place["at"] == 6:
            self._place = {"epoch": place["epoch"] + 1, "at": 0}
            if self.again:
                self.again = False
                return
            place = self._place
        order = torch.randperm(6, generator=torch.Generator().manual_seed(place["epoch"])).tolist()
        while place["at"] < 6:
            place["at"] += 1
            batch = order[place["at"] - 1]
            self.loaded.append(str(batch))  # not a number, which would be part of the loader's random state
            x = torch.full((2, 1), batch / 3.0)
            yield x, 2 * x + 3


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("stopped_in", [3, 6, 9, 14])
def test_a_loader_that_knows_its_position_continues_there(tmp_path, stopped_in, again):
    """Exactly, and without loading a batch twice: no worker, no network, only the methods `state_dict` and `load_state_dict`."""

    def make(path, again=False):
        dls = cbnb.DataLoaders(StatefulLoader(again), device="cpu")
        return line_learner(dls=dls, path=path, lr=0.05, cbs=cbnb.Checkpoint(every_steps=1, every_epochs=1, path=path / "c", keep=9))

    def stop(cb):
        if cb.learn.train_iter == stopped_in:
            raise ZeroDivisionError

    whole = make(tmp_path / "whole")
    whole.fit(3)
    learn = make(tmp_path)
    stopper = cbnb.Callback(after_batch=stop)
    stopper.order = float("inf")
    with pytest.raises(ZeroDivisionError):
        learn.fit(3, cbs=stopper)
    learn = make(tmp_path, again)
    learn.fit(3, resume=True)
    n = learn.dls.train.loaded
    assert ab(learn) == ab(whole) and whole.dls.train.loaded[-len(n) :] == n and len(n) in (18 - stopped_in, 19 - stopped_in)


def test_a_position_that_cannot_be_stored_is_said_once_and_skipped(tmp_path):
    class Odd(StatefulLoader):
        def state_dict(self):
            return {"lock": object()}

    learn = line_learner(dls=cbnb.DataLoaders(Odd(), device="cpu"), path=tmp_path, cbs=cbnb.Checkpoint(every_steps=2, path=tmp_path / "c"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(2)
    assert sum("position of the training loader cannot be stored" in str(w.message) for w in seen) == 1


def test_a_checkpoint_in_an_epoch_without_the_means_of_the_epoch_says_what_is_lost(tmp_path):
    def fails(cb):
        if cb.train_iter == 4:
            raise RuntimeError("stopped")

    stop = cbnb.Callback(after_loss=fails)
    learn = line_learner(n=6, cbs=[cbnb.Checkpoint(every_steps=3, path=tmp_path), stop])
    with pytest.raises(RuntimeError):
        learn.fit(1)
    path = files.checkpoints(tmp_path / "fit_0")[-1]
    state, manifest = files.read_checkpoint(path), files.read_manifest(path)
    assert state["batch"] == 3
    del next(s for s in state["callbacks"] if s["cb"] == "Recorder")["state"]["train"]  # as an earlier version wrote it
    info = {k: v for k, v in manifest.items() if k not in ("files", "saved", "number", "format")}
    files.remove_checkpoint(path)
    files.write_checkpoint(path.parent, "epoch_0_batch_3", state, **info)
    learn = line_learner(n=6, cbs=cbnb.Checkpoint(every_steps=3, path=tmp_path))
    with pytest.warns(
        UserWarning, match="in epoch 0, the mean of the training loss and the metrics of training include only the batches from 3 on"
    ):
        learn.fit(1, resume=True)
    assert len(learn.recorder.history) == 1
