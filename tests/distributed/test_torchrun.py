"""The scripts of the guide about several processes, started from a shell by torchrun and by accelerate."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate", reason='training in several processes needs accelerate: pip install "cbnb[distributed]"')

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "nbs/guides/several_processes.ipynb"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
]
LIMIT = 240  # seconds; on two idle cores a run takes six


@dataclass
class Done:
    status: int
    said: str
    folder: Path

    @property
    def rows(self) -> list[list[str]]:
        """The table of epochs, without the times."""
        return [line.split()[:-1] for line in self.said.splitlines() if re.match(r" +\d", line)]

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return torch.load(self.folder / "models/final.pth", weights_only=True)["model"]


def write_scripts(folder: Path) -> None:
    """The files that the guide writes."""
    cells = ["".join(c["source"]) for c in json.loads(GUIDE.read_text(encoding="utf-8"))["cells"]]
    for first, _, code in (cell.partition("\n") for cell in cells if cell.startswith("%%writefile")):
        (folder / first.split()[1]).write_text(code, encoding="utf-8")


def in_group(group: int) -> list[str]:
    """The processes of a group that still live."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,command="], capture_output=True, text=True).stdout.splitlines()
    return [line for line in listed if line.split()[0] == str(group) and not line.split()[1].startswith("Z")]


def run(folder: Path, *command: str) -> Done:
    """Run Python with these arguments; all that it has started must end with it, within the limit."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said = process.communicate(timeout=LIMIT)[0]
        until = time.monotonic() + 10
        while (left := in_group(process.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, said
    finally:
        if in_group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    return Done(process.returncode, said, folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Done:
    """The training in one process."""
    write_scripts(folder := tmp_path_factory.mktemp("alone"))
    done = run(folder, "train.py")
    assert done.status == 0 and len(done.rows) == 3, done.said
    return done


def assert_same_rows(done: Done, alone: Done) -> None:
    """The tables agree; two processes add in another order, so the last digit may differ."""
    assert [row[0] for row in done.rows] == [row[0] for row in alone.rows]
    for row, other in zip(done.rows, alone.rows, strict=True):
        assert list(map(float, row)) == pytest.approx(list(map(float, other)), abs=1e-6)


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_the_script_trains_in_two_processes_as_in_one(tmp_path, alone, launcher):
    write_scripts(tmp_path)
    done = run(tmp_path, *launcher, "train.py")
    assert done.status == 0, done.said
    assert_same_rows(done, alone)  # once, not by each process
    assert all(torch.allclose(done.weights[name], weights, atol=1e-5) for name, weights in alone.weights.items())


def test_a_killed_process_ends_the_job_which_then_goes_on(tmp_path, alone):
    write_scripts(tmp_path)
    done = run(tmp_path, *TORCHRUN, "killed.py")
    assert done.status != 0 and re.search(r"rank +: 1 .*\n +exitcode +: -9", done.said), done.said
    again = run(tmp_path, *TORCHRUN, "train.py")
    assert again.status == 0 and "continuing at epoch 1" in again.said, again.said
    assert_same_rows(again, alone)
    assert all(torch.allclose(again.weights[name], weights, atol=1e-5) for name, weights in alone.weights.items())


def test_an_error_of_one_process_is_shown(tmp_path):
    write_scripts(tmp_path)
    (tmp_path / "fails.py").write_text(
        "from train import *\n"
        "def fail(cb):\n"
        "    if os.environ['RANK'] == '1' and cb.train_iter == 3: raise ValueError('a label is missing')\n"
        "learn = new_learner(cbs=Callback(after_batch=fail))\n"
        "with learn.distributed(): learn.fit(1)\n"
    )
    done = run(tmp_path, *TORCHRUN, "fails.py")
    assert done.status != 0 and "ValueError: a label is missing" in done.said, done.said
