"""Several processes train what one process would: see `distributed_cases.py` for the trainings."""

import ast
import json
import math
import shutil
import signal
import time

import pytest

pytest.importorskip("accelerate")

import distributed_cases
import processes
from cbnb.basics.processes import read_shards

SCRIPT = str(processes.TESTS / "distributed_cases.py")
ONE_RECORDS_LESS = ("accidents",)  # the process that cancels in `after_batch` has not recorded that batch
ALIKE_ONLY = ("fp16", "refusals")  # where an overflow begins depends on the size of a batch
EVERYWHERE = [name for name in distributed_cases.CASES if name != "interrupt"]  # one process has no other to tell
FOUR = ["plain", "few_items", "accumulation", "clip", "multi_loss", "ema", "predictions", "between_epochs", "save_best"]
TOLERANCE = dict(bf16=1e-4, sharded_bf16=1e-4, lr_find=3e-4)


def results(folder, n, names, timeout=400):
    """What each process has found, by case"""
    (folder / "out").mkdir()
    processes.run_all(n, SCRIPT, str(folder / "out"), *names, timeout=timeout)
    return [json.loads((folder / "out" / f"result_{rank}.json").read_text()) for rank in range(n)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results with 1, 2 and 4 processes; each number of processes is started once"""
    known = {}

    def get(n):
        if n not in known:
            known[n] = results(tmp_path_factory.mktemp(f"of_{n}"), n, EVERYWHERE if n < 4 else FOUR)
        return known[n]

    return get


def difference(a, b, path="", tolerance=1e-6) -> str:
    """Where two results differ, in words"""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next(filter(None, (difference(a[k], b[k], f"{path}.{k}", tolerance) for k in a)), "")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next(filter(None, (difference(x, y, f"{path}[{i}]", tolerance) for i, (x, y) in enumerate(zip(a, b)))), "")
    if isinstance(a, float | int) and isinstance(b, float | int):
        alike = math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) or (a != a and b != b)
        return "" if alike else f"{path}: {a} and {b}"
    return "" if a == b else f"{path}: {a!r} and {b!r}"


def check(name: str, one: dict, several: list[dict]) -> None:
    for rank, result in enumerate(several):
        assert "error" not in result[name], f"process {rank}: {result[name]['error']}"
        expected = several[0][name] if name in ALIKE_ONLY else one[name]
        if name in ONE_RECORDS_LESS and rank < len(several) - 1:  # the others have recorded the batch
            assert result[name].keys() == expected.keys()
            for level, (n_steps, *rest) in expected.items():
                assert result[name][level][0] - n_steps in (0, 1) and result[name][level][1:] == rest, level
            continue
        assert not (wrong := difference(expected, result[name], tolerance=TOLERANCE.get(name, 1e-6))), f"process {rank}: {wrong}"


@pytest.mark.parametrize("name", EVERYWHERE)
def test_two_processes_train_what_one_would(found, name):
    one, two = found(1)[0], found(2)
    if name.startswith("sharded") and not processes.CAN_SHARD:
        pytest.skip("this torch cannot shard")
    assert "error" not in one[name], one[name]["error"]
    check(name, one, two)


@pytest.mark.parametrize("name", FOUR)
def test_four_processes_train_what_one_would(found, name):
    check(name, found(1)[0], found(4))


def test_an_overflow_skips_the_same_updates_and_they_do_not_advance_the_schedule(found):
    for result in found(2):
        fp16 = result["fp16"]
        assert fp16["skipped"] > 3 and fp16["lrs"][0] == fp16["lrs"][1]


def test_what_cannot_be_trained_together_is_refused(found):
    for result in found(2):
        dealt, closure = result["refusals"]["said"]
        assert "has a DistributedSampler" in dealt and "evaluates the loss several times in a step" in closure


def test_all_hear_of_an_interrupt(tmp_path):
    first, second = (result["interrupt"] for result in results(tmp_path, 2, ["interrupt"]))
    assert first == second == dict(said="at 3; learn is usable", status="interrupted", n_steps=4, after=11)


ROWS = """
import os, torch
import cbnb.all as cbnb
from cbnb.toy import line_learner

torch.distributed.init_process_group("gloo")

def rows(cancel, order):
    def last_process(cb):
        if cb.epoch == 1 and int(os.environ["RANK"]) == 1: raise cancel
    callback = cbnb.Callback(before_epoch=last_process)
    callback.order = order
    learn = line_learner(n=32, bs=8, cbs=callback)
    with learn.distributed(quiet=False), learn.no_logging(): learn.fit(3)
    return [(row["epoch"], row["complete"]) for row in learn.recorder.last().epochs]

print([rows(cancel, order) for cancel in (cbnb.CancelEpochException, cbnb.CancelFitException) for order in (0, 60)])
torch.distributed.destroy_process_group()
"""


def test_only_a_cancel_before_the_recorder_begins_its_row_makes_histories_differ():
    """A callback with the order 0 runs before the recorder, and one with 60 after it"""
    first, second = (ast.literal_eval(said) for said in processes.run_all(2, "-c", ROWS, timeout=120))
    three = [(0, True), (1, True), (2, True)]
    assert first[:2] == second[:2] == [three, three]
    assert first[3] == second[3] == [(0, True), (1, False)]
    assert first[2] == [(0, True), (1, False)] and second[2] == [(0, True)]


# --- trouble: each of these processes must end within ten seconds of the first failure ---

TROUBLE = """
import os, signal, sys, time, torch
import cbnb.all as cbnb
import distributed_cases as cases

how, where = sys.argv[1], sys.argv[2]

def fail(cb):
    if cases.RANK != 1 or cb.epoch != 1 or where == 'after_batch' and cb.iter != 2: return
    print('now', time.time(), flush=True)
    if how == 'raise': raise ValueError('no more')
    if how == 'kill': os.kill(os.getpid(), signal.SIGKILL)
    if how == 'exit': os._exit(3)

within = where == 'forward'      # of sharded layers, while the other process exchanges weights
learn = cases.learner(cbs=[] if within else cbnb.Callback(**{where: fail}))
if within: learn.model[1].register_forward_hook(lambda *_: fail(learn))
with learn.distributed(quiet=False, sharded=within):
    learn.logger = lambda row: None
    learn.fit(50)
"""


@pytest.mark.parametrize(
    ("how", "where"),  # each with each would be nine starts of two processes
    [
        ("raise", "after_batch"),
        ("raise", "after_epoch"),
        ("raise", "forward"),
        ("kill", "after_batch"),
        ("kill", "before_validate"),
        ("exit", "after_epoch"),
    ],
)
def test_a_failure_ends_all(how, where):
    if where == "forward" and not processes.CAN_SHARD:
        pytest.skip("this torch cannot shard")
    begun = time.time()
    first, second = processes.run(2, "-c", TROUBLE, how, where, timeout=120)
    failed = float(second.out.split("now ")[1].split()[0])
    assert first.returncode == 1 and second.returncode == {"raise": 1, "kill": -signal.SIGKILL, "exit": 3}[how]
    assert begun + max(first.seconds, second.seconds) - failed < 10 + 5  # and what starting them took, at most
    if how == "raise":
        assert "process 1 failed first: ValueError: no more" in first.err and "ValueError: no more" in second.err
    else:
        assert "another process" in first.err or "Connection" in first.err


# --- weights that differ ---

DRIFT = """
import sys, torch
import cbnb.all as cbnb
import distributed_cases as cases
from cbnb.insight.layer_faults import LayerWatch

def move(cb):
    if sys.argv[1] == 'moves' and cases.RANK == 1 and cb.training and cb.train_iter == 3:
        with torch.no_grad(): cb.model[2].weight[0, 0] += 0.1

learn = cases.learner(cbs=[LayerWatch(), cbnb.Callback(after_step=move)])
with learn.distributed(quiet=False):
    learn.logger = lambda row: None
    learn.fit(2)
print('found', [(f.code, f.level, f.where.removeprefix('module.'), f.measured) for f in learn.findings])
"""


@pytest.mark.parametrize("what, found", [("moves", ("R12", "error")), ("stays", None)])
def test_weights_that_differ_between_processes_are_found(what, found):
    """One process changes a weight by itself. The exchange of gradients keeps the difference."""
    for process in processes.run(2, "-c", DRIFT, what, timeout=120):
        assert process.returncode == 0, process.err
        said = [line for line in process.out.splitlines() if line.startswith("found")]
        assert said == [f"found {[(*found, '2.weight', '1 parameter differs between 2 processes')] if found else []}"]


# --- exact resume ---

FIT = """
import json, os, signal, sys
from pathlib import Path
import cbnb.all as cbnb
import distributed_cases as cases

folder, kill_at, resume, how, n_epoch = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == 'resume', sys.argv[4], 3

def kill(cb):
    if cases.RANK == 1 and cb.training and cb.train_iter == kill_at: os.kill(os.getpid(), signal.SIGKILL)

keep = cbnb.Checkpoint(every_steps=5, every_epochs=1, path=folder/'checkpoints', background='background' in how)
cbs = [keep, cbnb.EMA(0.9), cbnb.Recorder(train_metrics=True), cbnb.Callback(after_batch=kill)]
model = cases.net()
model.insert(1, cases.nn.Dropout(0.2))          # each process drops its own units
learn = cases.learner(cases.digits(bs=12 * cases.N), model=model, cbs=cbs, path=folder)      # batches of 12 in each process
with learn.distributed(sharded='sharded' in how):
    learn.logger = lambda row: None
    learn.fit_one_cycle(n_epoch, resume=resume)
(folder/f'result_{cases.RANK}.json').write_text(json.dumps(cases.outcome(learn)))
"""


def fit(folder, n, kill_at=-1, resume="begin", how="whole"):
    folder.mkdir(exist_ok=True)
    ended = processes.run(n, "-c", FIT, str(folder), str(kill_at), resume, how, timeout=150)
    if kill_at >= 0:
        return [e.returncode for e in ended]
    assert all(e.returncode == 0 for e in ended), ended[0].err + ended[-1].err
    return [json.loads((folder / f"result_{rank}.json").read_text()) for rank in range(n)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a fit of two processes, one of which was killed in the second epoch"""
    folder = tmp_path_factory.mktemp("killed") / "half"
    assert -signal.SIGKILL in fit(folder, 2, kill_at=18)
    return folder


def test_a_fit_whose_process_was_killed_ends_with_the_same_numbers(tmp_path, killed):
    whole = fit(tmp_path / "whole", 2)
    shutil.copytree(killed, tmp_path / "half")
    assert fit(tmp_path / "half", 2, resume="resume") == whole


def test_another_number_of_processes_goes_on(tmp_path, killed):
    # A checkpoint is due after 15 steps. The processes agree on it before the next one, so 16 steps are in it: 5 of 11 in the second epoch
    shutil.copytree(killed, tmp_path / "two")
    [one] = fit(tmp_path / "two", 1, resume="resume")
    assert [row["epoch"] for row in one["epochs"]] == [0, 1, 2]
    # 10 of the 21 batches of the second epoch were done in 5 steps of two processes; the other 11 are one step each
    assert [row["step"] for row in one["epochs"]] == [11, 11 + 5 + 11, 11 + 5 + 11 + 21]


@pytest.mark.skipif(not processes.CAN_SHARD, reason="this torch cannot shard")
def test_each_process_writes_its_part_of_a_checkpoint(tmp_path):
    """Parts of two processes go on in one process and in two, and parts that threads wrote are read, too"""
    half, plain = tmp_path / "half", tmp_path / "plain"
    assert -signal.SIGKILL in fit(half, 2, kill_at=18, how="sharded")
    (path,) = half.glob("checkpoints/*/*_epoch_1_batch_5")
    sizes = [f.stat().st_size for f in path.glob("shard-*.safetensors")]
    assert len(sizes) == 2 and sizes[0] == pytest.approx(sizes[1], rel=0.1)
    assert sum(t.numel() for t in read_shards(path)) == 4 * (64 * 32 + 32 + 32 * 10 + 10)  # weights, two averages of AdamW, EMA
    shutil.copytree(half, plain)
    [one] = fit(plain, 1, resume="resume")
    assert [row["step"] for row in one["epochs"]] == [11, 11 + 5 + 11, 11 + 5 + 11 + 21]
    two = fit(half, 2, resume="resume", how="sharded in the background")
    assert two == fit(tmp_path / "whole", 2, how="sharded")
    assert not list(half.glob("checkpoints/*/.*"))
    [end] = fit(half, 1, resume="resume")  # it is finished
    assert end["weights"] == two[0]["weights"]
