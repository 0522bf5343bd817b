"""A lab book in the order in which people do things: stop and resume, delete the folder, run a cell again while the file is locked."""

import json
import shutil
import sqlite3
import warnings
from functools import partial

import pytest

import cbnb.all as cbnb
from cbnb.lab.book import LabBook
from cbnb.lab.command import main
from cbnb.lab.sources import sources_of
from cbnb.toy import line_learner, wave_learner


@pytest.fixture
def lab(tmp_path):
    book = LabBook(tmp_path / "runs")
    yield book
    book.close()


def interrupts(cb):
    if cb.epoch == 2:
        raise KeyboardInterrupt


def test_a_fit_that_goes_on_in_the_same_learner_is_kept(lab, tmp_path):
    learn = wave_learner(cbs=cbnb.Checkpoint(path=tmp_path / "saved"))
    with pytest.raises(KeyboardInterrupt):
        learn.fit(4, cbs=cbnb.Callback(before_epoch=interrupts))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn.fit(4, resume=True)
    assert [run.status for run in lab.runs] == ["interrupted", "done"]
    assert lab[-1].run.to_dict()["epochs"] == learn.recorder.last().to_dict()["epochs"]


def test_a_folder_that_is_deleted_in_a_fit_is_made_again_with_the_whole_run(tmp_path):
    lab = LabBook(tmp_path / "runs", every=0)
    learn = wave_learner()
    learn.fit(1)
    learn.fit(3, cbs=cbnb.Callback(before_epoch=lambda cb: shutil.rmtree(lab.folder) if cb.epoch == 1 else None))
    lab.close()
    assert len(lab) == 1 and lab[-1].status == "done"
    assert list(lab[-1].run.raw_losses) == list(learn.recorder.last().raw_losses)
    assert lab[-1].environment["torch"]  # what was written once is written again


def test_the_ends_that_wait_go_to_the_book_of_the_cell_that_runs_again(tmp_path):
    lab = LabBook(tmp_path / "runs")
    other = sqlite3.connect(lab.file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.warns(UserWarning, match="locked"):
        line_learner().fit(1)
        line_learner().fit(1)
    assert all(entry.learn is None for entry in lab.unwritten)
    again = LabBook(tmp_path / "runs")
    other.execute("ROLLBACK")
    other.close()
    assert len(again) == 0 and len(again.unwritten) == 2
    again.close()
    assert [run.status for run in again.runs] == ["done", "done"] and not again.unwritten


def test_sqlite_and_other_programs_read_a_fit_that_diverged(lab, capsys):
    wave_learner().fit(2, lr=1e30)
    wave_learner().fit(1)
    db = sqlite3.connect(lab.file)
    assert len(db.execute("SELECT json_extract(summary, '$.time') FROM runs").fetchall()) == 2
    db.close()
    capsys.readouterr()
    main(["runs", "list", "--json", "--folder", str(lab.folder)])
    for line in capsys.readouterr().out.splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    "number, error", [(0, KeyError), (2**70, KeyError), ("x", KeyError), ("", KeyError), (0.5, TypeError), (slice(0, 2), TypeError)]
)
def test_numbers_that_no_run_has(lab, number, error):
    line_learner().fit(1)
    with pytest.raises(error, match="lab|no run"):
        lab[number]


def test_values_that_sqlite_does_not_take(lab):
    learn = line_learner()
    learn.fit(1, cbs=cbnb.Callback(after_fit=lambda cb: cb.recorder.last().epochs[-1].update(large=2**70, half="\ud800")))
    assert lab[-1].status == "done" and lab[-1].run.epochs[-1]["large"] == float(2**70)


def scaled(pred, y, factor):
    return factor * (pred - y).square().mean()


def test_the_source_of_a_partial_loss_is_that_of_its_function():
    learn = line_learner()
    learn.loss_func = partial(scaled, factor=2.0)
    assert "factor * (pred - y)" in sources_of(learn)["loss scaled"]


def test_callbacks_can_be_switched_off_in_a_loop_beside_a_lab_book(tmp_path):
    lab = LabBook(tmp_path)
    learn = line_learner(cbs=lab)
    for cb in learn.cbs:
        cb.run = cb.run if hasattr(cb, "run") else False
    learn.fit(1)
    assert len(lab.runs) == 1
    lab.close()


def test_a_lab_book_of_a_class_of_your_own(tmp_path):
    class Mine(LabBook):
        pass

    learn = wave_learner(cbs=Mine(tmp_path))
    with learn.no_bar(), learn.no_logging():
        learn.fit(2)
    assert [run.status for run in LabBook(tmp_path).runs] == ["done"]
