"""The tests of `tests/gpu`, and those of the pretend GPU itself, in a process of their own: torch cannot take back what it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretend.torch_internals import runs_here

ROOT = Path(__file__).parents[2]
GPU, CASES = ROOT / "tests/gpu", ROOT / "tests/pretend/cases"
FILES = [
    *(CASES / f"{name}_cases.py" for name in ("device", "budget", "late")),
    *(GPU / f"test_{name}.py" for name in ("training", "loading", "precision", "profile")),
]
# large shapes, processes of their own, and times of kernels; the rest of `tests/gpu` needs Triton, graphs or NCCL
TOO_MUCH = (
    "more_memory or whose_memory or busy or far_ahead or leaves_the_random or times_on_the_device or Adagrad or EMA-ChannelsLast or widgets"
)


@pytest.mark.skipif(runs_here() is not None, reason=str(runs_here()))
def test_on_the_pretend_gpu(tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "pretend.plugin",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        f"not ({TOO_MUCH})",
    ]
    run = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inner'}", *map(str, FILES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout[-6000:] + run.stderr[-2000:]
