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
from cbnb.display import (
    DISPLAYS,
    Lines,
    as_cell,
    as_html,
    as_line,
    bar_html,
    best_row,
    fit_page,
    losses_chart,
    shortened,
    valid_points,
)
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


def in_terminal(source: str, columns: int = 100) -> str:
    """Everything that a program writes to its terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, columns))
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
    assert re.fullmatch(r"done: 2 epochs, 4 batches in \d\d:\d\d", lines[-2]) and lines[-1] == "end"
    same_rows(lines[:-2])


@pytest.mark.parametrize("columns", [40, 70, 100, 160])
def test_a_bar_fits_its_terminal(columns):
    """At 70 columns "loss 0." was cut, and the time left was lost."""
    at = "Progress('fit', 2, 5, 18, 45, share=0.48, left=2.3, rate=10432.1, loss=0.1234)"
    shown = f"from cbnb.display import Progress, Terminal\nbar = Terminal(); bar.start([]); bar.progress({at}); bar.finish('', True)"
    bars = [line for line in re.findall(r"[^\r\n]+", in_terminal(shown, columns)) if "of 5 epochs" in line]
    assert bars and all(len(re.sub(r"\x1b\[\d*[A-Za-z]", "", line).rstrip()) <= columns for line in bars)
    assert all(re.search(r"00:02 left *$", line) and (columns < 70 or "loss 0.1234, " in line) for line in bars)
    assert columns < 160 or "10,432 samples/s" in bars[-1] and bars[-1].count("█") > 24  # what is left is the bar's


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
        "1.000e-07",
        "1.235e+08",
        "nan",
        "x",
    ]
    names = ["epoch", "train_loss", "a rather long name", "time"]
    lines = [as_line(names, names), as_line([0, 1.25, None, "00:01"], names), as_line([10, 1.25, 2.5, "10:01"], names)]
    assert len({len(line) for line in lines}) == 1 and lines[1].split() == ["0", "1.250000", "00:01"]


def test_cells_of_a_column_have_equal_digits():
    """A trailing zero was lost, and 0.000867 had three digits above one with four."""
    assert [as_cell(v) for v in (6.59e8, 6.816e8, 0.000867, 3.519e-5)] == ["6.590e+08", "6.816e+08", "8.670e-04", "3.519e-05"]


NAMES = ["epoch", "train_loss", "valid_loss", "time"]


def long_table(n: int = 80, best: int = 21) -> list:
    return [[i, 1.0, 0.125 if i == best else 0.5 + i / 100, "00:01"] for i in range(n)]


def test_a_saved_table_keeps_every_epoch_and_marks_the_best():
    """Of more than 60 epochs it said '... 21 more' for ever, and the best could be one of them."""
    page = fit_page(NAMES, long_table(), "done")
    assert page["text/html"].count("<tr>") == 81 and "more" not in page["text/html"]
    assert "max-height" in page["text/html"]  # it scrolls
    assert re.findall(r"<td><b>(.*?)</b></td>", page["text/html"]) == ["21", "1.000000", "0.125000", "00:01"]
    assert "lowest valid_loss: 0.125000, in epoch 21" in page["text/html"]
    lines = page["text/plain"].splitlines()
    assert lines[-2:] == ["lowest valid_loss: 0.125000, in epoch 21", "done"]
    assert any(line.split()[:1] == ["21"] for line in lines) and [line for line in lines if "more" in line] != []


@pytest.mark.parametrize("n", [6, 8, 9, 20, 80])
def test_a_shortened_table_keeps_the_best_row(n):
    for best in range(n):
        rows = shortened(long_table(n, best), 8, best)
        kept = [row[0] for row in rows if len(row) > 1]
        missing = sum(int(row[0].split()[1]) for row in rows if len(row) == 1)
        assert best in kept and {0, n - 1} <= set(kept) and kept == sorted(kept)
        assert len(kept) + missing == n and len(rows) <= 8


def test_missing_rows_leave_the_widths_of_columns_alone():
    page = as_html(NAMES, shortened(long_table(), 8, 21))
    assert page.count('<td colspan="4"') == 2


def test_the_best_row_is_known_only_by_validation_losses():
    assert best_row(NAMES, [[0, 1.0, None, ""], [1, 1.0, float("nan"), ""]]) is None
    assert best_row(["epoch", "train_loss"], [[0, 1.0], [1, 0.5]]) is None
    assert best_row(NAMES, [[0, 1.0, 0.5, ""], [1, 1.0, 0.5, ""], [2, 1.0, None, ""]]) == 0


def test_what_a_hand_did_to_the_rate_is_said_at_the_end(capsys):
    learn = line_learner(4, progress=True)

    def move(cb):
        if cb.learn.train_iter in (3, 6):
            cb.learn.steering.scale_lr(0.5 if cb.learn.train_iter == 3 else 1.0)
        if cb.learn.train_iter == 10:
            cb.learn.steering.stop()

    learn.fit(4, cbs=[cbnb.Steering(), cbnb.Callback(before_batch=move)])
    word = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"stopped in epoch 2 at batch 2 after \d\d:\d\d; planned lr × 0.5 from step 3, × 1 from step 6", word)
    learn.fit(1, cbs=cbnb.Steering())
    assert "planned lr" not in capsys.readouterr().out


def test_labels_vanish_with_the_style_of_a_chart():
    """A page that strips style and SVG showed 'train, each batchtrain, smoothedvalid loss 0024'."""
    learn = line_learner(4)
    learn.fit(3)
    page = losses_chart(learn.recorder.last())
    bare = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.S)
    assert "train, smoothed" in page and re.sub(r"<[^>]*>", "", bare).strip() == ""


def test_steps_count_from_0_and_validation_stands_at_the_last_one():
    learn = line_learner(4)
    learn.fit(2)
    run = learn.recorder.last()
    assert [step for step, _ in valid_points(run)] == [3, 7] and run.ends() == [(3, 0), (7, 1)]
    fig = learn.recorder.plot_losses(return_fig=True)
    raw, smooth, valid = fig.axes[0].lines
    assert list(valid.get_xdata()) == [3, 7] and raw.get_xdata()[-1] == 7 == smooth.get_xdata()[-1]
    (above,) = fig.axes[0].child_axes
    assert [(tick.get_position()[0], tick.get_text()) for tick in above.get_xticklabels()] == [(3, "0"), (7, "1")]


def test_html_is_escaped():
    nasty = "a<b & <img src=x>\"'"
    for page in (as_html([nasty], [[nasty]]), bar_html(0.5, nasty)):
        assert "<img" not in page and "&lt;img" in page and "a<b" not in page
    assert (
        "width:100%" in bar_html(1.7, "") and "width:50%" in bar_html(0.5, "") and "%" not in re.sub("height:100%", "", bar_html(None, ""))
    )
