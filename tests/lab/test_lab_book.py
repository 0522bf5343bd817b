"""A lab book: what is kept of fits, from several processes at once, some of them killed, and what a fit owes to it: nothing."""

import json
import math
import os
import random
import sqlite3
import stat
import threading
import warnings
from pathlib import Path

import pytest
import torch

import cbnb.all as cbnb
import left_behind
import processes
from cbnb.history import Run
from cbnb.lab import store
from cbnb.lab.book import LabBook
from cbnb.toy import line_learner, wave_learner


def hooks():
    return cbnb.Learner.around_fits, cbnb.Learner.on_first_epoch, cbnb.Learner.batch_filters


def same_numbers(a: Run, b: Run) -> None:
    """Each number of two runs, bit for bit; nan equals nan."""
    one, other = (json.dumps(run.to_dict() | dict(name=None), sort_keys=True) for run in (a, b))
    assert one == other
    assert {name: type(v) for row in a.epochs for name, v in row.items()} == {name: type(v) for row in b.epochs for name, v in row.items()}


FITS = dict(
    plain=lambda learn: learn.fit(3),
    schedule=lambda learn: learn.fit_one_cycle(3),
    diverges=lambda learn: learn.fit(3, lr=1e30),
    in_the_middle=lambda learn: learn.fit(3, valid_every="10 steps"),
    updates=lambda learn: learn.fit("70 updates"),
)


@pytest.mark.parametrize("every", [0.0, 1e9])
@pytest.mark.parametrize("fit", FITS)
def test_the_numbers_are_those_of_the_history(tmp_path, fit: str, every: float):
    book, learn = LabBook(tmp_path, every), wave_learner()
    FITS[fit](learn)
    book.close()
    same_numbers(book[1].run, learn.recorder.last())
    db = sqlite3.connect(book.file)
    assert db.execute("SELECT count(*) FROM steps WHERE name = 'loss'").fetchone() == (1,)
    assert db.execute("PRAGMA foreign_key_check").fetchall() == [] and db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_parts_of_a_loss_and_several_groups(lab):
    net = wave_learner().model

    def step(x, y):
        loss = (net(x) - y).pow(2).mean()
        return dict(loss=loss, other=loss.detach() * 2)

    learn = wave_learner(model=net, train_step=step, loss_func=None, metrics=None)
    learn.fit(2)
    run = learn.recorder.last()
    assert run.named
    same_numbers(lab[1].run, run)


def test_logged_values_and_the_watched_column(lab, tmp_path):
    learn = wave_learner()
    learn.fit(2, cbs=[cbnb.GradientClip(1.0, log=True), cbnb.SaveModel(monitor="mae", fname=str(tmp_path / "model"))])
    run = learn.recorder.last()
    assert [*run.logged] == ["grad_norm"] and not run.named and run.watched == ("mae", -1)
    same_numbers(lab[1].run, run)


def test_how_fits_end(lab):
    def cancel(cb):
        raise cbnb.CancelFitException

    def stop(cb):
        raise KeyboardInterrupt

    def fail(cb):
        raise ZeroDivisionError("in the middle")

    learn = wave_learner()
    for cb, error in ((stop, KeyboardInterrupt), (fail, ZeroDivisionError)):
        later = lambda c, cb=cb: cb(c) if c.epoch == 1 and c.iter == 3 else None
        with pytest.raises(error):
            learn.fit(3, cbs=cbnb.Callback(after_batch=later))
    learn.fit(5, cbs=cbnb.Callback(after_epoch=cancel))
    assert [run.status for run in lab.runs] == ["interrupted", "failed", "cancelled"]
    for run, own in zip(lab.runs, learn.recorder.history):
        same_numbers(run.run, own)
    assert "in the middle" in lab[2].run.events[-1]["text"]


def test_only_fits_are_kept_and_nothing_is_left(tmp_path):
    before, learn = hooks(), wave_learner()
    learn.fit(1)
    state = left_behind.everything(learn)
    book = LabBook(tmp_path)
    learn.lr_find(num_it=10)
    learn.validate()
    learn.get_preds()
    learn.profile(n_batch=3)
    learn.check()
    assert len(book) == 0 and book
    learn.fit(1)
    learn.rewind()
    book.close()
    assert hooks() == before and len(book) == 1
    learn.fit(1)
    learn.rewind()
    assert len(book) == 1 and not book.entries
    after = left_behind.everything(learn)
    for name in ("hooks", "callbacks", "attributes", "torch", "process", "history"):
        assert left_behind.same(state[name], after[name]), name


def test_a_fit_with_a_book_is_the_same_fit(tmp_path):
    plain, kept = wave_learner(), wave_learner()
    plain.fit(2)
    book = LabBook(tmp_path, every=0)
    kept.fit(2)
    book.close()
    assert list(plain.recorder.last().raw_losses) == list(kept.recorder.last().raw_losses)
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), kept.model.parameters()))
    assert plain.recorder.last().settings == kept.recorder.last().settings


def test_for_one_learner_and_for_one_fit(tmp_path):
    before = hooks()
    one = wave_learner(cbs=LabBook(tmp_path / "one"))
    other = wave_learner()
    for learn in (one, other):
        learn.fit(1)
    assert len(one.lab_book) == 1
    assert "LabBook" not in str(one.recorder.last().settings["callbacks"])
    other.fit(1, cbs=(fit_only := LabBook(tmp_path / "two")))
    assert len(fit_only) == 1
    other.fit(1)
    assert len(fit_only) == 1 and len(one.lab_book) == 1
    one.remove_cb(LabBook)
    assert hooks() == before


def test_a_cell_that_runs_again_keeps_each_fit_once(tmp_path):
    before = hooks()
    LabBook(tmp_path)
    book = LabBook(tmp_path)
    line_learner().fit(1)
    assert len(book) == 1
    book.close()
    assert hooks() == before


def test_a_learner_in_a_learner_and_fits_in_threads(lab):
    def inside(cb):
        if cb.epoch == 0:
            line_learner().fit(1)

    wave_learner().fit(2, cbs=cbnb.Callback(after_epoch=inside))
    assert sorted(run.settings["n_epoch"] for run in lab.runs) == [1, 2]
    learners = [wave_learner(seed=i) for i in range(4)]
    threads = [threading.Thread(target=learn.fit, args=(2,)) for learn in learners]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    kept = {tuple(run.run.raw_losses) for run in lab.runs[2:]}
    assert kept == {tuple(learn.recorder.last().raw_losses) for learn in learners}


PROGRAM_OF_FITS = """
import os, random, signal, sys
from cbnb.all import *
from cbnb.toy import line_learner
folder, first, n, killed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
lab = LabBook(folder, every=0)
for i in range(first, first + n):
    if (pid := os.fork()) == 0:
        at = random.Random(i).randrange(1, 20)
        def after(cb):
            if i < first + killed and cb.train_iter == at: os.kill(os.getpid(), signal.SIGKILL)
        line_learner(n=4).fit(6, lr=0.01 + i/1e5, cbs=Callback(before_batch=after))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert (status == signal.SIGKILL) == (i < first + killed), status
"""


def at_once(folder: Path, each: int, killed: int) -> LabBook:
    """Three processes fit at once; some fits are killed at random moments."""
    program = folder / "fits.py"
    program.write_text(PROGRAM_OF_FITS)
    started = [p for i in range(3) for p in processes.start(1, str(program), str(folder / "runs"), str(i * each), str(each), str(killed))]
    for ended in processes.wait(started, timeout=500):
        assert ended.returncode == 0, ended.err
    book = LabBook(folder / "runs")
    book.close()
    return book


def check_all(book: LabBook, n: int, killed: int) -> None:
    runs = book.runs
    assert len(runs) == len({run.settings["lr"] for run in runs}) == n
    assert sorted(run.status for run in runs) == ["done"] * (n - killed) + ["killed"] * killed
    for run in runs:
        own = run.run
        number = round((run.settings["lr"] - 0.01) * 1e5)
        if run.status == "done":
            assert own.n_steps == 24 and len(own.epochs) == 6
        else:  # all batches that had ended, and the epochs before
            assert own.n_steps == random.Random(number).randrange(1, 20)
            assert len(own.epochs) in (own.n_steps // 4, (own.n_steps - 1) // 4)
        again = line_learner(n=4)
        again.fit(6, lr=run.settings["lr"])
        assert list(own.raw_losses) == list(again.recorder.last().raw_losses)[: own.n_steps]
    with sqlite3.connect(book.file) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fits_of_three_processes_at_once_some_killed(tmp_path):
    check_all(at_once(tmp_path, 10, 2), 30, 6)


def test_a_full_disk_is_said_once(lab, monkeypatch):
    connect, full = store.connect, [True]

    def limited(*args):
        db = connect(*args)
        if full:
            db.execute("PRAGMA max_page_count=1")  # no page more than there are
        return db

    monkeypatch.setattr("cbnb.lab.book.connect", limited)
    learn = wave_learner(n=1000)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(2)
        learn.fit(1)
        assert [("full" in str(w.message), w.filename) for w in seen] == [(True, __file__)]
        assert [run.status for run in learn.recorder.history] == ["done", "done"]
        full.clear()
        learn.fit(1)
    assert len(seen) == 1 and not lab.unwritten
    numbers = sorted((run.run for run in lab.runs), key=lambda run: run.number)
    for kept, run in zip(numbers, learn.recorder.history, strict=True):
        same_numbers(kept, run)


def test_a_locked_file_delays_the_rows(lab):
    locks = sqlite3.connect(lab.file, isolation_level=None)

    def lock(cb):
        if cb.epoch == 0:
            locks.execute("BEGIN IMMEDIATE")
        if cb.epoch == 2:
            locks.execute("ROLLBACK")

    lab.every = 0.0
    learn = line_learner()
    with pytest.warns(UserWarning, match="locked"):
        learn.fit(4, cbs=cbnb.Callback(after_epoch=lock))
    same_numbers(lab[1].run, learn.recorder.last())


def test_a_folder_that_cannot_be_written(tmp_path):
    before = hooks()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="choose another folder for the lab book"):
        LabBook(tmp_path / "file" / "runs")
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() != 0:
        with pytest.raises(OSError, match="choose another folder for the lab book"):
            LabBook(folder)
    (tmp_path / "runs.sqlite").write_text("no lab book")
    with pytest.raises(ValueError, match="is not a lab book"):
        LabBook(tmp_path)
    assert hooks() == before


def test_without_a_recorder(lab):
    learn = cbnb.Learner(line_learner().dls, torch.nn.Linear(1, 1), torch.nn.MSELoss(), default_cbs=False)
    learn.dls = [(torch.zeros(2, 1), torch.zeros(2, 1))]
    with pytest.warns(UserWarning, match="has no Recorder: call learn.add_cb"):
        learn.fit(1)
    assert len(lab) == 0


def test_metrics_that_are_not_numbers(lab):
    learn = wave_learner(metrics=None)
    learn.fit(1)
    writer = store.RunWriter(learn.recorder.last(), {})
    learn.recorder.last().epochs[0] |= dict(a=math.nan, b=math.inf, c="words", d=None, e=torch.tensor(2.0), f=3)
    with store.opened(lab.file) as db:
        writer.write(db, 0.0, final=True)
        row = store.read_run(db, writer.id).epochs[0]
    assert math.isnan(row["a"]) and (row["b"], row["c"], row["d"], row["e"], row["f"]) == (math.inf, "words", None, 2.0, 3)
    assert row["complete"] is True and type(row["f"]) is int


def test_delete_and_change(lab):
    for _ in range(3):
        line_learner().fit(1)
    lab[2].name, lab[2].note = "<b>bold</b>", "'; DROP TABLE runs; --"
    assert (lab[2].name, lab[2].note) == ("<b>bold</b>", "'; DROP TABLE runs; --")
    with pytest.raises(ValueError, match="confirm=True"):
        lab.delete(1, 2)
    lab.delete(1, 3, confirm=True)
    assert [run.id for run in lab.runs] == [2]
    with sqlite3.connect(lab.file) as db:
        assert db.execute("SELECT DISTINCT run FROM rows UNION SELECT DISTINCT run FROM steps").fetchall() == [(2,)]
    line_learner().fit(1)
    assert lab[-1].id == 4  # a number is never used again

    def remove(cb):
        if cb.epoch == 0:
            with pytest.raises(ValueError, match="still running"):
                lab.delete(5, confirm=True)
            with sqlite3.connect(lab.file) as db:
                db.execute("PRAGMA foreign_keys=ON")
                db.execute("DELETE FROM runs WHERE id=5")

    line_learner().fit(2, cbs=cbnb.Callback(after_epoch=remove))
    assert [run.id for run in lab.runs] == [2, 4]


PROGRAM = """
from torch import nn
from cbnb.all import *
from cbnb.toy import line_learner
class Net(nn.Module):
    "<script>alert(1)</script>"
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)
    def forward(self, x): return self.lin(x)
lab = LabBook('runs')
line_learner(model=Net()).fit(1)
"""


def test_sources_and_environment_of_a_script(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "tool.py").write_text(f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path('train.py', run_name='__main__')")
    [ended] = processes.run(1, str(tmp_path / "tool.py"))
    assert ended.returncode == 0, ended.err
    book = LabBook(tmp_path / "runs")
    book.close()
    run = book[1]
    assert run.sources["model Net"].startswith("class Net(nn.Module)") and "<script>" in run.sources["model Net"]
    assert run.environment["torch"] == torch.__version__ and Path(run.environment["folder"]) == tmp_path


def test_an_import_stays_light():
    out = processes.run(1, "-c", "import sys; import cbnb.all; print(*sorted({'sqlite3', 'subprocess'} & set(sys.modules)))")
    assert "sqlite3" not in out[0].out.split(), out


DISTRIBUTED = """
import sys, torch.distributed as dist
dist.init_process_group('gloo')
from cbnb.all import *
from cbnb.toy import line_learner
lab = LabBook(sys.argv[1])
line_learner().fit(1)
dist.barrier()
dist.destroy_process_group()
"""


def test_of_several_processes_the_first_one_writes(tmp_path):
    (tmp_path / "fit.py").write_text(DISTRIBUTED)
    for ended in processes.run(2, str(tmp_path / "fit.py"), str(tmp_path / "runs")):
        assert ended.returncode == 0, ended.err
    book = LabBook(tmp_path / "runs")
    book.close()
    assert [run.status for run in book.runs] == ["done"]
