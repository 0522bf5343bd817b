"""The table of epochs in a file: each row as it happens, whole whatever ends the process, and no file spoilt."""

import csv
import errno
import os
import signal
import subprocess
import sys
import types
import warnings

import pytest

import cbnb.all as cbnb
from cbnb.callbacks import csv_logger
from helpers import RaiseIn, line_learner
from processes import python


def logged(learn) -> list[dict[str, str]]:
    with open(learn.csv_logger.file, newline="") as f:
        return list(csv.DictReader(f))


def test_rows_are_those_of_the_recorder_with_all_digits(tmp_path):
    """Every number in the file is the recorder's to the last bit, and a metric with a comma in its name has one column."""
    metric = cbnb.AvgMetric(lambda out, y: (out - y).abs().mean(), name="mae, mean")
    learn = line_learner(cbs=cbnb.CSVLogger("logs/a.csv"), path=tmp_path, metrics=metric)
    learn.fit(3, valid_every=2)
    rows = logged(learn)
    assert learn.csv_logger.file == tmp_path / "logs" / "a.csv" and list(rows[0]) == learn.recorder.metric_names
    values = [[float(v) if v else None for k, v in row.items() if k not in ("epoch", "time")] for row in rows]
    assert values == learn.recorder.values and values[0][1:] == [None, None] and [row["epoch"] for row in rows] == ["0", "1", "2"]


def test_each_row_is_in_the_file_when_its_epoch_ends(tmp_path):
    """Another reader sees the rows during the fit."""
    seen = []
    note = cbnb.Callback(after_epoch=lambda cb: seen.append(len(logged(cb.learn))))
    note.order = 70
    line_learner(cbs=[cbnb.CSVLogger, note], path=tmp_path).fit(3)
    assert seen == [1, 2, 3]


def test_a_killed_process_leaves_its_rows(tmp_path):
    """SIGKILL in the middle of the third epoch: two rows are there, and a fit with append=True goes on below them."""
    code = f"""
import os, signal, sys
sys.path.insert(0, 'tests')
import cbnb.all as cbnb
from cbnb.callbacks import csv_logger
from helpers import line_learner
def die(cb):
    if cb.epoch == 2: os.kill(os.getpid(), signal.SIGKILL)
line_learner(cbs=[cbnb.CSVLogger, cbnb.Callback(after_batch=die)], path={str(tmp_path)!r}).fit(4)
"""
    assert subprocess.run([*python(), "-c", code], capture_output=True).returncode == -signal.SIGKILL
    learn = line_learner(cbs=cbnb.CSVLogger(append=True), path=tmp_path)
    learn.fit(1)
    assert [row["epoch"] for row in logged(learn)] == ["0", "1", "0"]


def test_append_and_start_epoch_go_on_and_a_new_fit_begins_anew(tmp_path):
    """`start_epoch` above 0 goes on with the file of the epochs before, though append is False."""
    learn = line_learner(cbs=cbnb.CSVLogger, path=tmp_path)
    learn.fit(2)
    learn.fit(3, start_epoch=2)
    assert [row["epoch"] for row in logged(learn)] == ["0", "1", "2"]
    learn.fit(1)
    assert [row["epoch"] for row in logged(learn)] == ["0"]
    learn.add_cb(cbnb.CSVLogger(append=True)).remove_cb(learn.csv_logger)
    learn.fit(1)
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 3


def test_a_row_that_was_cut_off_does_not_spoil_the_next(tmp_path):
    """A file whose last line has no end gets one, so that the next row is a row of its own."""
    learn = line_learner(cbs=cbnb.CSVLogger(append=True), path=tmp_path)
    learn.fit(1)
    file = learn.csv_logger.file
    file.write_text(file.read_text() + "1,0.5")
    learn.fit(1)
    lines = file.read_text().splitlines()
    assert len(lines) == 4 and lines[2] == "1,0.5" and lines[3].startswith("0,")


def test_a_file_with_other_columns_is_refused_before_the_first_batch(tmp_path):
    """The message names the file and both lists of columns; the file stays as it was, and nothing is trained."""
    learn = line_learner(cbs=cbnb.CSVLogger(append=True), path=tmp_path)
    learn.fit(1)
    text, weights = learn.csv_logger.file.read_text(), [p.clone() for p in learn.model.parameters()]
    learn.metrics = cbnb.AvgMetric(lambda out, y: (out - y).abs().mean(), name="mae")
    with pytest.raises(
        ValueError, match="history.csv has the columns .*'valid_loss', 'time'., but this fit .*'mae', 'time'.: .*append=False"
    ):
        learn.fit(1)
    assert learn.csv_logger.file.read_text() == text and all((p == w).all() for p, w in zip(learn.model.parameters(), weights))


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt()])
def test_an_epoch_that_does_not_end_has_no_row_and_the_old_file_stays_till_there_is_one(tmp_path, error):
    """An interrupted first epoch leaves the file of the fit before; only whole epochs are written."""
    learn = line_learner(cbs=cbnb.CSVLogger, path=tmp_path)
    learn.fit(2)
    with pytest.raises(type(error)):
        learn.fit(1, cbs=RaiseIn("after_batch", error))
    assert len(logged(learn)) == 2


def test_only_fits_are_logged_and_a_recorder_is_needed(tmp_path):
    """`validate` and `lr_find` write nothing; without a Recorder the fit says so."""
    learn = line_learner(8, cbs=cbnb.CSVLogger, path=tmp_path)
    learn.validate()
    learn.lr_find(num_it=5, show_plot=False)
    assert not learn.csv_logger.file.exists()
    with pytest.raises(ValueError, match="this learner has no Recorder: call learn.add_cb"):
        line_learner(cbs=cbnb.CSVLogger, default_cbs=False, path=tmp_path).fit(1)


def test_read_log_gives_pandas_the_file(tmp_path, monkeypatch):
    """`read_log` is pandas' reading of the very file; pandas is imported only then."""
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(read_csv=lambda file: ("frame", file)))
    learn = line_learner(cbs=cbnb.CSVLogger, path=tmp_path)
    assert learn.csv_logger.read_log() == ("frame", tmp_path / "history.csv")


def test_a_fit_that_goes_on_after_its_first_epoch_writes_below(tmp_path):
    learn = line_learner(cbs=cbnb.CSVLogger, path=tmp_path)
    learn.fit(1)
    learn.fit(2, start_epoch=1)
    assert [row["epoch"] for row in logged(learn)] == ["0", "1"]


def test_an_empty_file_gets_its_heading_and_folders_are_made(tmp_path):
    learn = line_learner(cbs=cbnb.CSVLogger("a/b/c.csv", append=True), path=tmp_path)
    for _ in range(2):
        learn.fit(1)
        assert logged(learn)[0]["epoch"] == "0" and list(logged(learn)[0]) == learn.recorder.metric_names
        learn.csv_logger.file.write_text("")
    learn.fit(2, start_epoch=1)
    assert [row["epoch"] for row in logged(learn)] == ["1"]


def test_a_line_of_the_file_ends_as_text_does_everywhere(tmp_path):
    learn = line_learner(cbs=cbnb.CSVLogger, path=tmp_path)
    learn.fit(2)
    data = learn.csv_logger.file.read_bytes()
    assert b"\r" not in data and data.endswith(b"\n") and data.count(b"\n") == 3 and b"\n\n" not in data


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_does_not_end_the_fit(tmp_path):
    learn = line_learner(cbs=cbnb.CSVLogger("/dev/full"), path=tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        learn.fit(3)
    assert learn.train_iter == 6
    assert [str(w.message) for w in seen] == [
        "/dev/full could not be written (No space left on device): the fit continues, and the next row is written together with the missing ones. If rows are missing after the fit, take them from learn.recorder.history"
    ]


def test_rows_of_a_full_disk_are_written_later_and_once(tmp_path, monkeypatch):
    """The part of a row that still fitted on the disk is taken back."""
    learn = line_learner(cbs=cbnb.CSVLogger, path=tmp_path)

    def half_full(file, mode="r", **kwargs):
        opened = open(file, mode, **kwargs)
        if mode == "a" and learn.epoch in (1, 2):
            opened.write("1,0.")
            opened.close()
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened

    monkeypatch.setattr(csv_logger, "open", half_full, raising=False)
    with pytest.warns(UserWarning, match="the fit continues"):
        learn.fit(4)
    assert [row["epoch"] for row in logged(learn)] == ["0", "1", "2", "3"]
    assert [float(row["valid_loss"]) for row in logged(learn)] == learn.recorder.history["valid_loss"]


def test_a_file_that_cannot_be_written_is_an_error_before_the_first_batch(tmp_path):
    (tmp_path / "a").write_text("a file")
    for name in ("a/b.csv", tmp_path):
        learn = line_learner(cbs=cbnb.CSVLogger(name), path=tmp_path)
        with pytest.raises(OSError):
            learn.fit(1)
        assert learn.train_iter == 0
