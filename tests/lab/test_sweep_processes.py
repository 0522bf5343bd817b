"""Sweeps in several processes: the runs are those of one process, and no error, kill or interrupt leaves a process behind."""

import _thread
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.lab.book import LabBook
from cbnb.toy import wave_learner

SPACE = dict(lr=[0.001, 0.003, 0.01, 0.03, 0.1], wd=[0.0, 0.1])


def by_settings(found):
    return {(row["lr"], row["wd"]): (run, row) for run, row in zip(found.runs, found.rows)}


def test_the_runs_are_those_of_one_process_and_the_learner_is_untouched(tmp_path):
    """Bit for bit, as one thread computes each run."""
    learn, book = wave_learner(), LabBook(tmp_path / "runs", every=0)
    learn.fit(1)
    before = {name: value.clone() for name, value in learn.model.state_dict().items()}
    state, history, threads = torch.get_rng_state(), list(learn.recorder.history), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = learn.sweep(SPACE, 3, prune=False, n_process=2, name="several")
        alone = learn.sweep(SPACE, 3, prune=False, name="one")
    finally:
        torch.set_num_threads(threads)
        book.close()
    assert all(torch.equal(before[name], value) for name, value in learn.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and list(learn.recorder.history) == history
    several, one = by_settings(found), by_settings(alone)
    assert several.keys() == one.keys() and len(found) == 10
    for key, (run, row) in several.items():
        assert list(run.raw_losses) == list(one[key][0].raw_losses)
        assert {**row, "id": 0, "time": 0} == {**one[key][1], "id": 0, "time": 0}
    assert found.best == alone.best
    # each run is in the lab book, and the same call fits nothing again
    kept = [run for run in book.runs if run.settings.get("sweep") == "several"]
    assert len(kept) == 10 and {run.status for run in kept} == {"done"}
    book.open()
    again = learn.sweep(SPACE, 3, prune=False, n_process=2, name="several")
    book.close()
    assert again.best == found.best and len(book.runs) == 21
    # the weights of the best run are there, in both
    for sweep in found, again:
        assert sweep.learner().validate()[0] == pytest.approx(sweep.best_value, rel=1e-6)
        learn.model.load_state_dict(before)


def test_pruned_runs_are_the_beginnings_of_whole_ones():
    whole = by_settings(wave_learner().sweep(SPACE, 9, prune=False))
    found = wave_learner().sweep(SPACE, 9, n_process=2)
    assert len(found) == 10 and found.n_batches < sum(run.n_steps for run, _ in whole.values())
    for key, (run, row) in by_settings(found).items():
        losses = list(whole[key][0].raw_losses)
        assert list(run.raw_losses) == pytest.approx(losses[: run.n_steps], rel=1e-5)
        assert row["status"] == ("done" if run.n_steps == len(losses) else "pruned")


def test_optuna_in_two_processes():
    pytest.importorskip("optuna")
    found = wave_learner().sweep(dict(lr=(0.001, 0.1, "log")), 2, n=4, engine="optuna", n_process=2)
    assert len(found) == 4 and len({row["lr"] for row in found.rows}) == 4


class Ends(nn.Module):
    """Ends its process if it is wide."""

    def __init__(self, width, how):
        super().__init__()
        if width > 4:
            how()
        self.layers = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


def raises_error():
    raise ArithmeticError("too wide")


@pytest.mark.parametrize(
    "how, error, said",
    [(raises_error, ArithmeticError, "too wide"), (lambda: os.kill(os.getpid(), signal.SIGKILL), RuntimeError, "was ended by SIGKILL")],
    ids=["an error", "killed"],
)
def test_a_run_that_fails_ends_the_sweep_and_its_processes(how, error, said, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()

    def make(width):
        (pids / str(os.getpid())).touch()
        return wave_learner(model=Ends(width, how))

    with pytest.raises(error, match=said):
        wave_learner().sweep(dict(width=[2, 3, 4, 8]), 50, make=make, n_process=2)
    assert [pid for pid in pids.iterdir() if Path("/proc", pid.name).exists()] == []


def test_an_interrupt_ends_the_processes_and_returns_what_was_found(tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()

    class Slow(cbnb.Callback):
        def after_epoch(self):
            (pids / str(os.getpid())).touch()

    class Interrupts(threading.Thread):
        def run(self):
            while not over.is_set():
                if len(list(pids.iterdir())) == 2:
                    return _thread.interrupt_main()
                over.wait(0.05)

    over = threading.Event()
    thread = Interrupts()
    thread.start()
    try:
        found = wave_learner().sweep(dict(lr=[0.001, 0.01, 0.1]), 100_000, prune=False, cbs=Slow(), n_process=2)
    finally:
        over.set()
        thread.join()
    assert found.why == "by hand" and len(found) == 0
    assert [pid for pid in pids.iterdir() if Path("/proc", pid.name).exists()] == []


def test_a_caught_error_ends_its_run_only():
    class Bad(cbnb.Callback):
        def after_loss(self):
            if self.learn.opt.param_groups[0]["lr"] == 0.01 and self.learn.train_iter == 40:
                raise OSError("no more files")

    learn = wave_learner()
    before = {name: value.clone() for name, value in learn.model.state_dict().items()}
    found = learn.sweep(dict(lr=[0.003, 0.01, 0.03]), 3, prune=False, cbs=Bad(), catch=OSError)
    assert {row["lr"]: row["status"] for row in found.rows} == {0.003: "done", 0.01: "failed", 0.03: "done"}
    assert found.best == dict(lr=0.03) and "the first error: OSError: no more files" in repr(found)
    assert all(torch.equal(before[name], value) for name, value in learn.model.state_dict().items())
    with pytest.raises(OSError, match="no more files"):
        learn.sweep(dict(lr=[0.003, 0.01, 0.03]), 3, prune=False, cbs=Bad(), catch=ValueError)


def test_a_lab_book_that_keeps_weights_keeps_those_of_the_processes(tmp_path):
    book = LabBook(tmp_path / "runs", every=0, weights="best last")
    try:
        wave_learner().sweep(dict(lr=[0.01, 0.03]), 2, prune=False, n_process=2)
    finally:
        book.close()
    assert len(book) == 2 and all(set(run.weights) == {"best", "last"} for run in book.runs)
