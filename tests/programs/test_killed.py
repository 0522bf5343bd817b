"""Programs in a process of their own, which is killed in the middle of an epoch, and goes on in another process."""

import importlib
import signal
import subprocess
from pathlib import Path

import pytest

import cbnb.all as cbnb
import processes
from program import same_losses, same_rows, same_weights

HERE = Path(__file__).parent
CHILD = """
import importlib, os, pathlib, signal, sys
import torch
torch.set_num_threads(1)      # as the tests: sums over several threads differ in the last bit
sys.path[:0] = sys.argv[1:3]
from cbnb.all import Checkpoint
from resumed import Fails

class Killed(Fails):
    def after_step(self):
        if self.learn.train_iter == self.at: os.kill(os.getpid(), signal.SIGKILL)

program = getattr(importlib.import_module(sys.argv[3]), sys.argv[4])()
program.fit(program.new_learner(pathlib.Path(sys.argv[5])), cbs=[Checkpoint(every_steps=2), Killed(program.fails_at)], resume=True)
"""


@pytest.mark.parametrize("name", ["language_model.TestLanguageModel", "gan.TestGAN", "accumulation.TestAccumulation"])
def test_a_killed_fit_goes_on_as_if_nothing_had_happened(name, tmp_path, capsys):
    module, kind = f"test_{name}".split(".")
    (tmp_path / "child.py").write_text(CHILD)
    command = [*processes.python(), tmp_path / "child.py", HERE, HERE.parent, module, kind, tmp_path]
    child = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert child.returncode == -signal.SIGKILL, child.stderr
    program = getattr(importlib.import_module(module), kind)()
    learn = program.new_learner(tmp_path, 1)
    program.fit(learn, cbs=[cbnb.Checkpoint(every_steps=2)], resume=True)
    assert "continuing at epoch" in capsys.readouterr().out
    whole = program.trained(tmp_path / "whole")
    assert learn.recorder.losses == whole.recorder.losses
    same_weights(program.modules(learn), program.modules(whole), 0)
    same_losses(learn, program.hand(), program.losses)
    same_weights(program.modules(learn), program.hand().modules, program.weights)
    same_rows(learn, program.hand(), program.rows)
