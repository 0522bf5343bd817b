"""Checkpoints: a fit that is killed goes on as if nothing had happened, and no damage is read without a word.

With CBNB_KILLS=50 in the environment, fifty trainings are killed at random moments, and fifty saves of a large state.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import pytest

import training
from cbnb.callbacks import checkpoint_files as files

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
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            out, _ = process.communicate(timeout=kill_after or 300)
        except subprocess.TimeoutExpired:
            process.kill()
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
    return [path for path in Path(folder).rglob("*") if path.name.startswith(".")]


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
    assert "continuing at epoch" in out and "passed over" not in out
    check_same(tmp_path, whole[0], out)
    assert drafts_in(tmp_path) == [] and len(files.checkpoints(tmp_path / "models/checkpoints/fit_0")) == 3


def test_a_finished_fit_is_not_run_again(whole, tmp_path):
    assert in_fork(training.main, tmp_path, 2)[0] == 0
    check_same(tmp_path, whole[0])
    (tmp_path / "outcome.json").unlink()
    status, out = in_fork(training.main, tmp_path, 2)
    assert status == 0 and "this fit is finished, loaded its end" in out
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
