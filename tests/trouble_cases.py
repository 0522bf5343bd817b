"""One process does what the others do not, in each place of a fit: `python trouble_cases.py FOLDER HOW ...`, in several processes.

The group of processes outlives all cases. For each, a process writes how its fit ended, after how many steps, and with which weights.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb.all as cbnb
from cbnb.display.steering import Steering
from helpers import CANCELS

N, RANK = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
SHARDED, ACCUMULATES = "sharded" in sys.argv, "accumulates" in sys.argv
LIMIT = 150  # seconds without a finished case: every thread writes where it hangs

TRAINING = "before_batch after_pred after_loss before_backward after_backward before_step after_step after_batch".split()
BETWEEN = "before_epoch before_train after_train before_validate after_validate after_epoch".split()
EVERYWHERE = ["before_fit", *BETWEEN, *TRAINING, "valid_batch", "after_fit"]
CASES = dict(  # how -> where
    error=EVERYWHERE,
    fit=[*BETWEEN, *TRAINING, "valid_batch"],
    epoch=[*BETWEEN[:-1], *TRAINING, "valid_batch"],
    train=TRAINING,
    validate=["valid_batch", "valid_loss"],
    batch=TRAINING[:-1],
    backward=["before_backward"],
    step=["before_step"],
    alone=["after_batch", "before_batch", "after_train", "after_epoch", "valid_batch"],  # validate() in one process
    interrupt=[*BETWEEN, *TRAINING, "valid_batch"],
    stop=[*TRAINING, "valid_batch"],
)
HOWS = list(CASES)
ENDS = dict(kill=-signal.SIGKILL, exit=3)  # how -> exit status; such a process is started for each place
ENDS_AT = "before_epoch before_train before_batch after_pred after_loss before_backward before_step after_batch".split()
ENDS_AT += ["after_train", "before_validate", "valid_batch", "after_epoch"]
AFTER_THE_EXCHANGE = ("after_backward", "before_step")  # where a cancel in one process would part the weights


def expected(how: str, where: str) -> str:
    """The beginning of what the last process says."""
    if how == "error":
        return "ValueError: mine"
    if how == "interrupt":
        return "FitInterrupted: stopped in epoch 0"
    if how == "alone":
        return "RuntimeError: the processes have come to different places, where each waits for the others"
    if how in ("fit", "epoch", "train", "batch", "step") and where in AFTER_THE_EXCHANGE:
        return "RuntimeError: a callback cancelled an update in one process"
    return "ended"


def wrong(how: str, where: str, found: list[dict], strict: bool = True) -> str:
    """What is not as it should be in the results of all processes; `strict`: as expected, otherwise alike at least"""
    *others, last = [each[f"{how} {where}"] for each in found]
    if strict and not last["said"].startswith(expected(how, where)):
        return f"the last process says {last['said']}"
    failed = last["said"].startswith("ValueError: mine")
    for other in others:
        if failed != ("mine" in other["said"]) or (last["said"] == "ended") != (other["said"] == "ended"):
            return f"the last process says {last['said']}, another {other['said']}"
        if failed and not other["said"].startswith("OtherFailed: process"):
            return f"another process says {other['said']}"
        if last["said"] == "ended" and other["weights"] != last["weights"]:
            return f"the weights are {other['weights']} and {last['weights']}"
        if last["said"] == "ended" and abs(other["n_steps"] - last["n_steps"]) > 1:
            return f"{other['n_steps']} and {last['n_steps']} steps"  # a process that leaves in `after_batch` does not record that batch
    return ""


def trouble(how: str, cb) -> None:
    if how == "error":
        raise ValueError("mine")
    if how in CANCELS:
        raise CANCELS[how]
    if how == "alone":
        cb.learn.validate()
    if how == "interrupt":
        os.kill(os.getpid(), 2)
    if how == "stop":
        cb.learn.steering.stop()
    if how in ("kill", "exit"):
        print("now", time.time(), file=sys.__stdout__, flush=True)  # `sys.stdout` is quiet
        os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else os._exit(3)


def fit(how: str, where: str) -> dict:
    torch.manual_seed(0)
    x = torch.randn(96, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    train, valid = (DataLoader(data, 8 // N, shuffle=shuffle) for shuffle in (True, False))
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)) if not SHARDED else nn.Linear(4, 1)
    cbs = [Steering(), *[cbnb.GradientAccumulation(16)] * ACCUMULATES]
    learn = cbnb.Learner(cbnb.DataLoaders(train, valid, device="cpu"), model, nn.MSELoss(), lr=1e-3, cbs=cbs)
    learn.remove_cb(cbnb.ProgressCallback)
    name = dict(valid_batch="after_batch", valid_loss="after_loss").get(where, where)
    one = 0 if how in ("stop", "alone") else N - 1
    done = []

    def act(cb) -> None:
        in_batch = name in TRAINING
        if RANK != one or done or in_batch and (cb.training == where.startswith("valid") or cb.iter != 2 or cb.epoch):
            return
        done.append(True)
        trouble(how, cb)

    found = dict(said="ended")
    try:
        with learn.distributed(sharded=SHARDED):
            learn.logger = lambda row: None
            learn.fit(2, cbs=cbnb.Callback(**{name: act}))
    except (Exception, KeyboardInterrupt) as e:
        found["said"] = f"{type(e).__name__}: {e}"
    run = learn.recorder.history.runs and learn.recorder.last()
    weights = [] if SHARDED and not found["said"] == "ended" else [round(p.sum().item(), 6) for p in learn.model.parameters()]
    return found | dict(n_steps=run.n_steps if run else 0, epochs=len(run.epochs) if run else 0, weights=weights)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    folder, *hows = sys.argv[1:]
    if hows[0] in ENDS:
        print(json.dumps(fit(*hows[:2])))
        sys.exit("the process has not ended" if RANK == N - 1 else 1)
    found = {}
    for how in (how for how in hows if how in CASES):
        for where in CASES[how]:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            if "-v" in hows:
                print(RANK, how, where, file=sys.stderr, flush=True)
            found[f"{how} {where}"] = fit(how, where)
            if "-v" in hows:
                print(RANK, found[f"{how} {where}"], file=sys.stderr, flush=True)
    faulthandler.cancel_dump_traceback_later()
    Path(folder, f"trouble_{RANK}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
