"""Whether a lab book is complete after programs that were killed: 200 fits from three programs at once, 20 of them killed at random moments.

    python bench/lab_book_killed.py                 three minutes
    python bench/lab_book_killed.py --seed 3        other moments
    python bench/lab_book_killed.py --sweeps        sweeps of 24 runs, killed ten times and continued: two minutes

Each fit runs in a process of its own, which the program that started it kills with SIGKILL at a random moment after a random batch. The fit
counts its batches, with the time of each, in memory that survives it. So it is known which batches had ended when it was killed. Another
process then reads the lab book. It compares each record, number by number, with the same fit made again without a lab book, and opens and
compares the runs.

A sweep is killed at random moments, too, once in one process and once with two processes. The same call then continues it. Each combination of settings
must have exactly one finished run at the end, and the table must be that of a sweep that was left alone.
"""

import argparse
import contextlib
import io
import mmap
import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cbnb.all as cbnb
from cbnb.lab.sweep_runs import Sweep
from cbnb.toy import wave_learner

EVERY, N_EPOCH, PER_EPOCH, PAUSE = 0.2, 8, 32, 0.002  # seconds between two writes; epochs; batches in each; seconds that a batch waits
STEPS = N_EPOCH * PER_EPOCH
CELL = struct.Struct("d")


def rate(number: int) -> float:
    """The rate of a fit, which tells it from the others."""
    return 0.001 + number / 1e5


def train(number: int, ended: mmap.mmap | None) -> cbnb.Learner:
    """Make the fit with this number. Note when each of its batches has ended."""

    def after_batch(cb: cbnb.Callback) -> None:
        if ended is not None and cb.training:
            CELL.pack_into(ended, CELL.size * cb.train_iter, time.time())
            time.sleep(PAUSE)

    learn = wave_learner(n=PER_EPOCH)
    learn.fit(N_EPOCH, lr=rate(number), cbs=cbnb.Callback(after_batch=after_batch))
    return learn


def program(folder: str, numbers: list[int], killed: set[int], seed: int) -> None:
    """One of the programs: one fit after another, each in a process of its own. Print when each was killed, and its batches."""
    cbnb.LabBook(folder, every=EVERY)
    for number in numbers:
        ended = mmap.mmap(-1, CELL.size * (STEPS + 2))
        if (process := os.fork()) == 0:
            train(number, ended)
            os._exit(0)
        if number in killed:
            moment = random.Random(f"{seed} {number}")
            batch = moment.randrange(1, STEPS - PER_EPOCH // 2)
            while not CELL.unpack_from(ended, CELL.size * batch)[0]:
                time.sleep(0.001)
            time.sleep(moment.uniform(0, 2 * PAUSE))
            at = time.time()
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        assert status == (signal.SIGKILL if number in killed else 0), (number, status)
        if number in killed:
            times = [t for (t,) in CELL.iter_unpack(ended[:]) if t]
            print("killed", number, at, *times, flush=True)


def check(folder: str, n: int, deaths: dict[int, list[float]]) -> None:
    """Compare the records with the same fits made again, and print what was found."""
    book = cbnb.LabBook(folder)
    book.close()
    began = time.perf_counter()
    runs = book.runs
    table = book._repr_html_()
    took = time.perf_counter() - began
    by_number = {round((run.settings["lr"] - rate(0)) * 1e5): run for run in runs}
    assert len(runs) == len(by_number) == n, (len(runs), len(by_number))
    late, damaged = [], []
    for number, run in by_number.items():
        own, again = run.run, train(number, None).recorder.last()
        losses = list(own.raw_losses)
        whole = len(losses) == own.n_steps == run.steps and losses == list(again.raw_losses)[: len(losses)]
        rows = [row for row in own.epochs if row["complete"]]
        same = all(row["valid_loss"] == other["valid_loss"] for row, other in zip(rows, again.epochs))
        if number not in deaths:
            whole &= run.status == "done" and len(losses) == STEPS and len(rows) == N_EPOCH
        else:
            at, *times = deaths[number]
            whole &= run.status == "killed" and len(losses) <= len(times)
            missing = times[len(losses) :]
            late.append(at - missing[0] if missing else 0.0)  # how old the oldest batch is that is not in the record
        if not (whole and same):
            damaged.append(number)
    with sqlite3.connect(book.file) as db:
        [answer] = db.execute("PRAGMA integrity_check").fetchone()
    compared = cbnb.compare(*[by_number[number] for number in sorted(deaths)][:4], runs[-1])
    late.sort()
    print(f"{len(runs)} records of {n} fits, {len(deaths)} killed: {len(damaged)} damaged {damaged or ''}; integrity check: {answer}")
    print(
        f"a killed record lacks the batches of the last {late[len(late) // 2]:.2f} s (median), {late[-1]:.2f} s at most; a write every {EVERY} s"
    )
    print(f"opened in another process: {took:.2f} s for {len(runs)} runs, {len(table):,} characters; compared: {compared}")
    if damaged or answer != "ok":
        sys.exit("a record is damaged")


def swept(n_process: int, pause: float) -> Sweep:
    """A sweep of 24 runs. In several processes, the order in which rows arrive decides which runs are pruned, so no run is."""
    space = dict(lr=[0.0003, 0.001, 0.003, 0.01, 0.03, 0.1], wd=[0.0, 0.01, 0.1, 1.0])
    wait = cbnb.Callback(after_batch=lambda cb: time.sleep(pause))
    return wave_learner(n=PER_EPOCH).sweep(space, 5, name="killed", prune=n_process == 1, n_process=n_process, cbs=wait)


def rows_of(found: Sweep) -> list[tuple]:
    """The settings, the status and the value of each run."""
    return sorted((row["lr"], row["wd"], row["status"], row["epochs"], row["valid_loss"]) for row in found.rows)


def sweep_killed(folder: str, n_process: int, kills: int, seed: int) -> None:
    """Kill a sweep again and again, let it end, and compare."""
    moment, deaths, seconds = random.Random(f"{seed} {n_process}"), 0, (0.3, 2.0) if n_process == 1 else (4.0, 9.0)
    with contextlib.redirect_stdout(io.StringIO()):
        alone = swept(n_process, 0.0)  # this also imports what a fit needs
    ended = False
    while not ended:
        if (process := os.fork()) == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            cbnb.LabBook(folder, every=EVERY)
            swept(n_process, PAUSE if deaths < kills else 0.0)
            os._exit(0)
        until = time.monotonic() + (moment.uniform(*seconds) if deaths < kills else 1000)
        while not (ended := os.waitpid(process, os.WNOHANG)[0] > 0) and time.monotonic() < until:
            time.sleep(0.01)
        if not ended:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            deaths += 1
    book = cbnb.LabBook(folder)
    book.close()
    finished = [(run.settings["lr"], run.settings["wd"]) for run in book.runs if run.status in ("done", "pruned")]
    n = len(book)
    with contextlib.redirect_stdout(io.StringIO()):
        book.open()
        found = swept(n_process, 0.0)  # all its runs are in the lab book
        book.close()
    repeated, lost = len(finished) - len(set(finished)), len(found) - len(set(finished))
    same = rows_of(found) == rows_of(alone) and found.best == alone.best and found.best_value == alone.best_value
    print(
        f"a sweep in {n_process} process{'es' * (n_process > 1)}, killed {deaths} times: {len(finished)} of {len(found)} runs have ended, {n - len(finished)} were killed;"
        f" {repeated} repeated, {lost} lost, {len(book) - n} more when called again; {'the same as' if same else 'NOT THE SAME AS'} a sweep left alone"
    )
    if repeated or lost or len(book) > n or not same:
        sys.exit("the sweep is not as it should be")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--killed", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sweeps", action="store_true")
    parser.add_argument("--program", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    killed = set(random.Random(args.seed).sample(range(args.fits), args.killed))
    if args.program:
        folder, first = args.program
        return program(folder, list(range(int(first), args.fits, 3)), killed, args.seed)
    if not hasattr(os, "fork"):
        sys.exit("this needs fork, which Windows does not have")
    with tempfile.TemporaryDirectory() as path:
        folder = str(Path(path) / "runs")
        if args.sweeps:
            for n_process in (1, 2):
                sweep_killed(f"{folder}{n_process}", n_process, 10, args.seed)
            return
        command = [sys.executable, __file__, f"--fits={args.fits}", f"--killed={args.killed}", f"--seed={args.seed}", "--program", folder]
        began = time.perf_counter()
        programs = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(3)]
        printed = [p.communicate()[0] for p in programs]
        assert not any(p.returncode for p in programs), [p.returncode for p in programs]
        lines = [line.split()[1:] for text in printed for line in text.splitlines() if line.startswith("killed")]
        print(f"three programs: {time.perf_counter() - began:.0f} s")
        check(folder, args.fits, {int(number): [float(t) for t in times] for number, *times in lines})


if __name__ == "__main__":
    main()
