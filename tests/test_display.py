"""What is shown outside of notebooks, and the parts of what is shown inside. The notebook itself is in test_kernel.py."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import cbnb.all as cbnb
from cbnb.display import DISPLAYS, Lines, as_cell, as_html, as_line, bar_html
from helpers import RaiseIn, line_batches, line_learner

HERE = Path(__file__).resolve().parent
SCRIPT = f"""
import sys
import termios
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE)!r}]
from helpers import *
learn = line_learner(progress=True, metrics=cbnb.AvgMetric(lambda p, y: (p - y).abs().mean(), name="mae"))
learn.progress.every = 0.
"""
ROWS = """epoch  train_loss  valid_loss         mae   time
    0   10.636363    5.324800    1.920000  00:00
    1    7.433084    2.181038    1.228800  00:00
""".splitlines()


def same_rows(lines):
    """The table, with the numbers as they are up to rounding."""
    assert len(lines) == len(ROWS)
    for got, expected in zip(lines, ROWS):
        assert len(got) == len(expected)
        for a, b in zip(got.split(), expected.split(), strict=True):
            assert a == b or float(a) == pytest.approx(float(b), abs=2e-6)


def in_pipe(source: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", SCRIPT + source], capture_output=True, text=True, timeout=100)


def in_terminal(source: str) -> str:
    """Everything that a program writes to its terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 100))
    env = os.environ | {"TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", SCRIPT + source], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    return seen.decode()


def on_screen(text: str) -> list[str]:
    """The lines that remain on a terminal, which knows the carriage return and the most common escapes."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
        elif part.startswith("\x1b["):
            n = int(part[2:-1] or 1)
            row -= n if part[-1] == "A" else 0
            if part[-1] == "K":
                lines[row] = lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
        while len(lines) <= row:
            lines.append("")
    return [line.rstrip() for line in lines]


def test_a_pipe_gets_one_line_an_epoch():
    stopped = "learn.fit(2, cbs=RaiseIn('after_step', KeyboardInterrupt, when=lambda learn: learn.epoch == 1))"
    done = in_pipe(f"learn.fit(2); learn.validate(); learn.get_preds(); learn.lr_find(num_it=10)\nprint('end')\n{stopped}")
    assert "\r" not in done.stdout and "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    same_rows(lines[:3])
    assert lines[3] == "end" and lines[4] == ROWS[0]
    # and hears of the interrupt
    assert lines[-1].startswith("stopped in epoch 1") and len(lines) in (7, 8)
    assert done.returncode != 0 and "FitInterrupted: stopped in epoch 1 at batch 0; learn is usable" in done.stderr


def test_a_terminal_gets_a_bar_and_in_the_end_the_lines_alone():
    text = in_terminal("learn.fit(2); learn.validate()\nprint('end')")
    assert re.search(r"\r *\d+%.*\d of 2 epochs, batch \d of 2", text)
    lines = [line for line in on_screen(text) if line]
    assert lines[-1] == "end"
    same_rows(lines[:-1])


def test_lines_in_this_process(capsys):
    learn = line_learner(progress=True)
    learn.fit(2), learn.fit(1)
    out = capsys.readouterr().out
    assert out.count("\n") == 5 and out.count("train_loss") == 2 and "\r" not in out


@pytest.mark.parametrize("quiet", ["no_logging", "no_bar", "no_mbar"])
def test_context_helpers(quiet, capsys):
    learn = line_learner(progress=True)
    progress = learn.progress
    with getattr(learn, quiet)() as same:
        assert same is learn
        learn.fit(1)
    out = capsys.readouterr().out
    assert (out == "") == (quiet == "no_logging")
    assert learn.logger is print and learn.create_mbar is True and learn.progress is progress and progress in learn.cbs
    with pytest.raises(KeyError):
        with getattr(learn, quiet)():
            raise KeyError
    assert learn.logger is print and learn.create_mbar is True and learn.progress is progress  # D39: the instance was another one


def test_an_own_logger_gets_the_rows(capsys):
    learn, rows = line_learner(progress=True), []
    learn.logger = rows.append
    learn.fit(2)
    assert [row[0] for row in rows] == [0, 1] and len(rows[0]) == len(learn.recorder.metric_names) and capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_logger_comes_back(error, capsys):
    """D05: it stayed hijacked."""
    learn = line_learner(progress=True)
    for name in ("before_fit", "before_train", "after_step", "after_validate", "after_epoch", "after_fit"):
        for order in (-50, 70):
            with pytest.raises(error):
                learn.fit(1, cbs=RaiseIn(name, error, order))
            assert learn.logger is print
    capsys.readouterr()
    learn.fit(1)
    assert capsys.readouterr().out.count("\n") == 2


def test_an_error_says_where_it_failed(capsys):
    learn = line_learner(progress=True)
    with pytest.raises(ValueError):
        learn.fit(1, cbs=RaiseIn("after_loss", ValueError, when=lambda learn: learn.iter == 1))
    assert "failed in epoch 0, training batch 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, cancel",
    [
        ("before_train", cbnb.CancelTrainException),
        ("before_validate", cbnb.CancelValidException),
        ("before_epoch", cbnb.CancelEpochException),
        ("before_fit", cbnb.CancelFitException),
    ],
)
@pytest.mark.parametrize("order", [-50, 70])
def test_cancelled_phases_are_shown(name, cancel, order, capsys):
    """D39: the progress callback failed when training was cancelled before it began."""
    learn = line_learner(progress=True, cbs=RaiseIn(name, cancel, order))
    learn.progress.every = 0.0
    learn.fit(2)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.split()[:1] in (["0"], ["1"])]) == (0 if name == "before_fit" else 2)


def test_without_a_recorder(capsys):
    """D39: it needed one."""
    learn = line_learner(progress=True, valid=True)
    learn.progress.every = 0.0
    with learn.removed_cbs(cbnb.Recorder):
        learn.fit(1), learn.validate()
    assert "Error" not in capsys.readouterr().out


def test_loaders_without_length_are_shown(monkeypatch):
    said = []

    class Seen(Lines):
        live = True

        def progress(self, at):
            said.append((at.share, at.words()))

    monkeypatch.setitem(DISPLAYS, "lines", Seen)
    learn = line_learner(progress=True, dls=cbnb.DataLoaders(lambda: iter(line_batches()), lambda: iter(line_batches()), device="cpu"))
    learn.progress.every = 0.0
    learn.fit(1)
    assert said and {share for share, _ in said} == {None}
    assert "batch 1" in said[0][1] and "loss" in said[0][1] and not any("of None" in text for _, text in said)


@pytest.mark.parametrize("valid", [True, False])
def test_the_first_epoch_tells_the_length_of_a_loader(valid, monkeypatch):
    """The bar stayed empty in all epochs, and no time was left."""
    seen = []

    class Seen(Lines):
        live = True

        def progress(self, at):
            seen.append((at.epochs, at.training, at.batches, at.n_batches, at.share, at.left is not None))

    monkeypatch.setitem(DISPLAYS, "lines", Seen)
    stream = lambda: iter(line_batches(2))
    learn = line_learner(progress=True, dls=cbnb.DataLoaders(stream, *[stream] * valid, device="cpu"))
    learn.progress._draw = lambda now: learn.progress.shown.progress(learn.progress._progress(now))
    learn.add_cb(cbnb.Callback(after_batch=lambda self: setattr(self.learn.progress, "draw_at", 0.0)))
    monkeypatch.setattr(type(learn.progress), "every", 0.0)
    learn.progress.next = learn.progress.draw_at = 0.0
    learn.fit(2)
    always = [(0, True, 1, None, None, False), (0, True, 2, None, None, False)]
    always += [(0, False, 1, None, 0.5, True), (0, False, 2, None, 0.5, True)] * valid
    always += [(1, True, 1, 2, 0.75, True), (1, True, 2, 2, 1.0, True)]
    always += [(1, False, 1, 2, 1.0, True), (1, False, 2, 2, 1.0, True)] * valid
    assert seen == always
    assert learn.n_iter is None and learn.pct_train == 0.5  # what they promise, and no guess


def test_a_guessed_length_that_is_too_low_is_no_length(monkeypatch):
    n = iter([2, 3])
    learn = line_learner(progress=True, dls=cbnb.DataLoaders(lambda: iter(line_batches(next(n))), device="cpu"))
    seen = []
    look = cbnb.Callback(after_batch=lambda self: seen.append(self.learn.progress._progress(float("inf"))))
    look.order = 100
    learn.fit(2, cbs=look)
    assert [at.n_batches for at in seen] == [None, None, 2, 2, None] and [at.share for at in seen[2:]] == [0.75, 1.0, 1.0]


def test_cells_and_lines():
    assert [as_cell(v) for v in (None, 3, 1.5, 0.0, 1e-7, 123456789.0, float("nan"), "x")] == [
        "",
        "3",
        "1.500000",
        "0.000000",
        "1e-07",
        "1.235e+08",
        "nan",
        "x",
    ]
    names = ["epoch", "train_loss", "a rather long name", "time"]
    lines = [as_line(names, names), as_line([0, 1.25, None, "00:01"], names), as_line([10, 1.25, 2.5, "10:01"], names)]
    assert len({len(line) for line in lines}) == 1 and lines[1].split() == ["0", "1.250000", "00:01"]


def test_html_is_escaped():
    nasty = "a<b & <img src=x>\"'"
    for page in (as_html([nasty], [[nasty]]), bar_html(0.5, nasty)):
        assert "<img" not in page and "&lt;img" in page and "a<b" not in page
    assert (
        "width:100%" in bar_html(1.7, "") and "width:50%" in bar_html(0.5, "") and "%" not in re.sub("height:100%", "", bar_html(None, ""))
    )
