"""What is shown outside of notebooks, and the parts of what is shown inside. The notebook itself is in test_kernel.py."""

import os
import pty
import re
import subprocess
import sys
import termios
from contextlib import nullcontext
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import cbnb
import processes
from cbnb.display.figures import COLORS, NAMED_COLORS
from cbnb.display.progress import (
    DISPLAYS,
    LogDisplay,
    NotebookDisplay,
    Progress,
    TerminalDisplay,
    as_cell,
    as_html,
    as_line,
    bar_html,
    best_row,
    best_words,
    changes,
    fit_page,
    live_table,
    losses_chart,
    run_events,
    shortened,
)
from helpers import Line, RaiseIn, line_batches, line_learner, svg_of

HERE = Path(__file__).resolve().parents[1]
SCRIPT = f"""
import sys
import termios
sys.path[:0] = [{str(HERE.parent)!r}, {str(HERE)!r}]
from helpers import *
learn = line_learner(progress=True, metrics=cbnb.AvgMetric(lambda p, y: (p - y).abs().mean(), name="mae"))
learn.progress.every = 0.
"""
ROWS = """epoch  train_loss  valid_loss         mae   time
    0   10.660000    5.324800    1.920000  00:00
    1    4.366336    2.181038    1.228800  00:00
""".splitlines()


def same_rows(lines):
    """The table, with the numbers as they are up to rounding."""
    assert len(lines) == len(ROWS)
    for got, expected in zip(lines, ROWS):
        assert len(got) == len(expected)
        for a, b in zip(got.split(), expected.split(), strict=True):
            assert a == b or float(a) == pytest.approx(float(b), abs=2e-6)


def in_pipe(source: str) -> subprocess.CompletedProcess:
    return subprocess.run([*processes.python(), "-c", SCRIPT + source], capture_output=True, text=True, timeout=100)


def in_terminal(source: str, columns: int = 100) -> str:
    """Everything that a program writes to its terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, columns))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
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


@pytest.mark.parametrize("columns", [40, 70, 160])
def test_a_bar_fits_its_terminal(columns):
    """At 70 columns "loss 0." was cut, and the time left was lost."""
    at = "Progress('fit', 2, 5, 18, 45, share=0.48, left=2.3, rate=10432.1, loss=0.1234)"
    shown = f"from cbnb.display.progress import Progress, TerminalDisplay\nbar = TerminalDisplay(); bar.start([]); bar.progress({at}); bar.finish('', True)"
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

    class Seen(LogDisplay):
        live = True

        def progress(self, at):
            said.append((at.share, at.words()))

    monkeypatch.setitem(DISPLAYS, "lines", Seen)
    learn = line_learner(progress=True, dls=cbnb.DataLoaders(lambda: iter(line_batches()), lambda: iter(line_batches()), device="cpu"))
    learn.progress.every = 0.0
    learn.fit(1)
    assert said and {share for share, text in said if "validation" not in text} == {None}  # after the epoch, its length is known
    assert "batch 1" in said[0][1] and "loss" in said[0][1] and not any("of None" in text for _, text in said)


@pytest.mark.parametrize("valid", [True, False])
def test_the_first_epoch_tells_the_length_of_a_loader(valid, monkeypatch):
    """The bar stayed empty in all epochs, and no time was left."""
    seen = []

    class Seen(LogDisplay):
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


def best_of(page):
    """The row that is marked, by words too; the cells of the epoch are headings of their rows."""
    (row,) = re.findall("<tr class=best>(.*?)</tr>", page)
    assert row.startswith('<th scope=row><span role=img aria-label="best epoch">★</span> ')
    return re.findall("<b>(.*?)</b>", row)


def test_a_saved_table_keeps_every_epoch_and_marks_the_best():
    """Of more than 60 epochs it said '... 21 more' for ever, and the best could be one of them."""
    page = fit_page(NAMES, long_table(), "done")
    assert page["text/html"].count("<tr") == 81 and "more" not in page["text/html"]
    assert "max-height" in page["text/html"] and 'tabindex="0" role="region" aria-label="all 80 epochs"' in page["text/html"]  # it scrolls
    assert best_of(page["text/html"]) == ["21", "1.000000", "0.125000", "00:01"]
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
    page = as_html(NAMES, long_table(), most=8)
    assert page.count("<td colspan=4") == 2


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

    learn.fit(4, cbs=[cbnb.display.steering.Steering(), cbnb.Callback(before_batch=move)])
    word = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"stopped in epoch 2 at batch 2 after \d\d:\d\d; planned lr × 0.5 from step 3, × 1 from step 6", word)
    learn.fit(1, cbs=cbnb.display.steering.Steering())
    assert "planned lr" not in capsys.readouterr().out


def test_a_page_that_strips_style_and_scripts_shows_the_picture_and_the_table():
    """A page that strips style and SVG showed 'train, each batchtrain, smoothedvalid loss 0024'."""
    learn = line_learner(4)
    learn.fit(3)
    rows = [list(map(str, range(3)))] * 3
    page = fit_page(["epoch", "a", "b"], rows, "done", learn.recorder.last())["text/html"]
    stripped = re.sub(r"<(style|script|svg)>.*?</\1>| (class|style)=(\"[^\"]*\"|[\w-]+)", "", page, flags=re.S)
    assert stripped.count("<img") == 1 and 'alt="train, each batch from' in stripped
    assert re.sub(r"<[^>]*>", " ", stripped).split() == ["epoch", "a", "b", *"012" * 3, "done"]


def test_steps_count_from_0_and_validation_stands_at_the_last_one():
    learn = line_learner(4)
    learn.fit(2)
    run = learn.recorder.last()
    assert [step for step, _ in run.points("valid_loss")] == [3, 7] and run.ends() == [(3, 0), (7, 1)]
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


@pytest.mark.parametrize(
    "value, text",
    [
        (0.001, "0.001000"),
        (-0.001, "-0.001000"),
        (0.000999, "9.990e-04"),
        (999999.5, "999999.500000"),
        (1e6, "1.000e+06"),
        (-1e6, "-1.000e+06"),
    ]
    + [(inf, "inf"), (-inf, "-inf"), (10**6, "1000000"), (True, "True")],
)
def test_a_cell_has_digits_or_an_exponent(value, text):
    assert as_cell(value) == text


@pytest.mark.parametrize(
    "values, names, line",
    [
        ([3], ["epoch"], "    3"),
        ([3], ["mae"], "         3"),
        ([3, "00:01"], ["epoch", "time"], "    3  00:01"),
        ([3, 4, 5], ["epoch", "mae", "a longer name"], "    3           4              5"),
        ([3, None], ["epoch", "mae"], "    3"),
        (["... 3 more"], ["epoch", "mae"], "  ... 3 more"),
    ],
)
def test_a_line_has_the_widths_of_its_headings(values, names, line):
    assert as_line(values, names) == line


@pytest.mark.parametrize(
    "losses, best",
    [
        ([], None),
        ([0.5], None),
        ([0.5, 0.4], 1),
        ([0.4, 0.5], 0),
        ([None, 0.5], 1),
        ([nan, None, 3], 2),
        ([-inf, 2, 1.0], 2),
        ([nan, "-"], None),
    ],
)
def test_the_best_row_is_the_first_with_the_lowest_finite_loss(losses, best):
    names, rows = ["epoch", "valid_loss"], [[10 + i, loss] for i, loss in enumerate(losses)]
    assert best_row(names, rows) == best
    assert best_words(names, rows) == ("" if best is None else f"lowest valid_loss: {as_cell(losses[best])}, in epoch {10 + best}")


@pytest.mark.parametrize(
    "n, most, keep, expected",
    [
        (8, 8, 3, [*range(8)]),
        (9, 8, None, [0, "... 2 more", *range(3, 9)]),
        (20, 8, None, [0, "... 13 more", *range(14, 20)]),
        (20, 8, 0, [0, "... 13 more", *range(14, 20)]),
        (20, 8, 1, [0, 1, "... 14 more", *range(16, 20)]),
        (20, 8, 10, [0, "... 9 more", 10, "... 5 more", *range(16, 20)]),
        (20, 8, 13, [0, "... 12 more", 13, "... 2 more", *range(16, 20)]),
        (20, 8, 14, [0, "... 13 more", *range(14, 20)]),
        (30, 15, 2, [0, 1, 2, "... 16 more", *range(19, 30)]),
        (30, 15, 3, [0, 1, 2, 3, "... 17 more", *range(21, 30)]),
        (30, 15, 18, [0, 1, 2, "... 15 more", 18, "... 2 more", *range(21, 30)]),
        (7, 5, 3, [0, "... 2 more", 3, "... 2 more", 6]),
    ],
)
def test_which_rows_a_shortened_table_keeps(n, most, keep, expected):
    assert [row[0] for row in shortened([[i] for i in range(n)], most, keep)] == expected


def bare(page):
    """The page without the looks of its elements."""
    return re.sub(r' style="[^"]*"', "", page)


def test_a_table_as_html():
    rows = [[i, 2.5] for i in range(8)]
    cells = "<tr><th scope=row>{}</th><td>2.500000</td></tr>"
    head = "<thead><tr><th scope=col>a</th><th scope=col>&lt;</th></tr></thead>"
    table = '<div><div class="cbnb-epochs"><table aria-label="losses and metrics of each epoch">{}<tbody>{}</tbody></table></div><p>below</p></div>'
    more = "<tr><td colspan=2>... 4 more</td></tr>"
    first = "".join(map(cells.format, range(8)))
    assert bare(as_html(["a", "<"], rows, "<p>below</p>")) == table.format(head, first)
    some = cells.format(0) + more + "".join(map(cells.format, (5, 6, 7)))
    assert bare(as_html(["a", "<"], rows, "<p>below</p>", most=5)) == table.format(head, some)
    assert as_html([], [], "<p>below</p>") == "<div><p>below</p></div>"
    assert bare(as_html(["a"], [["x"]])).count("<tr><th scope=row>x</th></tr>") == 1  # the only column, and not all of them


def test_a_cell_tells_how_it_differs_from_the_epoch_before():
    """A loss should fall; of a metric nobody knows; an epoch without validation is passed over, and what looks equal is equal."""
    names = ["epoch", "train_loss", "valid_loss", "the Loss of b", "accuracy", "time"]
    rows = [[0, 1.0, 0.5, 3, 0.5, "00:01"], [1, 0.5, None, 3.0, 0.25, "00:02"], [2, 0.75, 0.25, nan, 0.75, "00:01"]]
    rows += [[3, 0.7500001, 0.5, 2, 0.75, ""]]
    expected = [[""] * 6, ["", "better", "", "", "down", ""], ["", "worse", "better", "", "up", ""]]
    assert changes(names, rows) == [*expected, ["", "", "worse", "better", "", ""]]
    page = as_html(names, rows)
    assert "<td class=better>0.500000</td>" in page and "<td class=down>0.250000</td>" in page
    assert re.sub("<[^>]*>", " ", page).split()[9:15] == "0 1.000000 0.500000 3 0.500000 00:01".split()  # a copied table has no arrows
    shown = as_html(names, [*rows, *([i, 1.0, 1.0, 1.0, 1.0, ""] for i in range(4, 12)), [12, 0.5, 2.0, 1.0, 1.0, ""]], most=5)
    assert "<th scope=row>12</th><td class=better>0.500000</td><td class=worse>" in shown  # of the row above it, shown or not


@pytest.mark.parametrize("n", [14, 15])
def test_a_table_that_is_higher_than_the_chart_scrolls(n):
    assert ("overflow:auto" in as_html(NAMES, long_table(n))) == (n == 15)


def test_a_table_of_a_fit_under_way():
    assert live_table([], [], "below") == "<div>below</div>"
    page = bare(live_table(NAMES, long_table(12, best=4), "below"))
    assert best_of(page) == ["4", "1.000000", "0.125000", "00:01"] and page.endswith("</table></div>below</div>")
    firsts = re.findall(r"<tr[^>]*><t.*?>(?:<span.*?</span> <b>)?(.*?)<", page)[1:]
    assert firsts == ["0", "... 3 more", "4", "... 3 more", "8", "9", "10", "11"]
    assert "<b>" not in live_table(NAMES, long_table(1)) and page.count("<th scope=col>") == 4


AT = Progress("fit", 1, 3, 2, 4, left=61.0, rate=1234.6, loss=0.5)


@pytest.mark.parametrize(
    "at, most, words",
    [
        (AT, inf, "1 of 3 epochs, batch 2 of 4, loss 0.5000, 1,235 samples/s, 01:01 left"),
        (AT, 69, "1 of 3 epochs, batch 2 of 4, loss 0.5000, 1,235 samples/s, 01:01 left"),
        (AT, 68, "1 of 3 epochs, batch 2 of 4, loss 0.5000, 01:01 left"),
        (AT, 51, "1 of 3 epochs, loss 0.5000, 01:01 left"),
        (AT, 37, "1 of 3 epochs, 01:01 left"),
        (AT, 1, "1 of 3 epochs, 01:01 left"),
        (
            Progress("fit", 0, 1, 7, None, training=False, loss=0.0, left=0.0, rate=0.0),
            inf,
            "0 of 1 epochs, batch 7 of validation, loss 0.0000, 00:00 left",
        ),
        (Progress("fit", 0, 1, 7, 9), inf, "0 of 1 epochs, batch 7 of 9"),
        (Progress("validate", 0, 1, 2, 4, loss=1.0, left=60.0), inf, "validate: batch 2 of 4, loss 1.0000, 01:00 left"),
        (Progress("find_batch_size", 0, 1, 0, None, stage="64 items"), inf, "find_batch_size: 64 items"),
        (Progress("lr_find", 0, 1, 5, 100, lr=0.01234), inf, "lr_find: 5 of 100 updates, lr 0.012"),
        (Progress("lr_find", 0, 1, 5, None, lr=0.01234, stage="second run"), inf, "lr_find, second run: 5 updates, lr 0.012"),
    ],
)
def test_progress_in_words(at, most, words):
    assert at.words(most) == words


@pytest.mark.parametrize("share, width", [(0.0, "0"), (0.256, "26"), (1.0, "100"), (1.7, "100"), (None, None)])
def test_how_wide_a_bar_is(share, width):
    page = bar_html(share, "a < b")
    assert re.findall(r"width:(\d+)%;height:100%", page) == ([width] if width else []) and "<span" in page and ">a &lt; b</span>" in page


def drawn(page):
    """The words of the picture, and its lines: color and number of points."""
    svg = svg_of(page)
    curves = re.search("<g fill.*?</g>", svg)[0]
    paths = re.findall('<path d="(.*?)" stroke="(.*?)"', curves)
    return re.findall(">([^<]+)</text>", svg), [(color, 1 + d.count("L")) for d, color in paths]


def test_the_losses_of_a_fit_as_a_chart():
    """Of 4 steps: 13, 8.32, 5.3248, 3.4079 by hand, of which validation is 2.181."""
    learn = line_learner(4)
    learn.fit(1)
    words, lines = drawn(losses_chart(learn.recorder.last()))
    assert words[:8] == ["5", "10", "0", "1", "2", "3", "step", "epoch"]
    assert words[8:] == ["0", "train, each batch", "3.408", "train, smoothed", "7.433", "valid", "2.181"]
    assert lines[:3] == [(COLORS["raw"], 4), (COLORS["train"], 4), (COLORS["valid"], 1)]
    without = line_learner(4, valid=False)
    without.fit(1)
    assert "valid" not in drawn(losses_chart(without.recorder.last()))[0]
    short = line_learner(3)
    short.fit(1)
    assert losses_chart(short.recorder.last()) == ""


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_a_chart_has_the_losses_that_a_step_returns_by_name():
    learn = cbnb.Learner(
        cbnb.DataLoaders(line_batches(4), device="cpu"),
        Line(),
        train_step=cbnb.UpdateStep(lambda x, y: dict(loss=41.0, low=1.0, high=40.0)),
    )
    with learn.no_logging():
        learn.fit(1)
    words, lines = drawn(losses_chart(learn.recorder.last()))
    assert words[:5] == ["0", "10", "20", "30", "40"]  # the lowest is 1, the highest 41
    assert words[12:] == ["train, each batch", "41", "train, smoothed", "41", "low", "1", "high", "40"]
    assert lines == [(color, 4) for color in (COLORS["raw"], COLORS["train"], *NAMED_COLORS[:2])]


def test_what_happened_to_a_run_is_marked_in_its_chart():
    learn = line_learner(4, cbs=cbnb.display.steering.Steering())

    def move(cb):
        if cb.learn.train_iter == 3:
            cb.learn.steering.scale_lr(0.5)

    learn.fit(3, cbs=cbnb.Callback(before_batch=move))
    run = learn.recorder.last()
    assert [(event.x, event.kind) for event in run_events(run)] == [(3, "lr"), (11, "best")]
    assert run_events(run)[1].text.startswith("lowest valid_loss: 0.")
    one = line_learner(4)
    one.fit(1)
    assert run_events(one.recorder.last()) == []  # of one epoch none is the best


def test_what_a_fit_leaves_as_text():
    learn = line_learner(4)
    learn.fit(1)
    run, names, rows = learn.recorder.last(), ["epoch", "valid_loss"], [[0, 1.0], [1, 0.5]]
    lines = ["epoch  valid_loss", "    0    1.000000", "    1    0.500000", "lowest valid_loss: 0.500000, in epoch 1"]
    page = fit_page(names, rows, "done <1>", run)
    assert page["text/plain"].splitlines() == [*lines, "loss █▅▃▁ 13 to 7.433", "done <1>"]
    assert "<p>done &lt;1&gt;; lowest valid_loss: 0.500000, in epoch 1</p>" in page["text/html"] and "<img" in page["text/html"]
    assert best_of(page["text/html"]) == ["1", "0.500000"]
    page = fit_page(names, rows[:1], "done")
    assert page["text/plain"].splitlines() == [*lines[:2], "done"] and "<p>done</p>" in page["text/html"] and "<b>" not in page["text/html"]
    assert "<img" not in page["text/html"] and fit_page(names, rows, "done", run, "MINE")["text/html"].count("MINE") == 1
    short = line_learner(3)
    short.fit(1)
    assert "loss" not in fit_page(["epoch"], [[0]], "done", short.recorder.last())["text/plain"]
    many = fit_page(NAMES, long_table(61), "done")["text/plain"].splitlines()
    assert len(many) == 1 + 60 + 2 and [line for line in many if "more" in line] == ["  ... 2 more"]


class Clock:
    """Stands in for the module `time`: a second passes before each batch."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def tick(self, cb):
        self.now += 1


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("cbnb.display.progress.time", clock)
    return clock


class Seen(LogDisplay):
    """Keeps what it is told."""

    live, last = True, None

    def __init__(self):
        Seen.last, self.told = self, []

    def start(self, names, run=None):
        super().start(names, run)
        self.told.append(("start", list(names), run))

    def progress(self, at):
        self.told.append(at)

    def row(self, values):
        self.told.append(("row", values[0]))

    def finish(self, word, as_planned):
        self.told.append((word, as_planned))

    def reached(self, *names):
        return [tuple(getattr(at, name) for name in names) for at in self.told if isinstance(at, Progress)]


@pytest.fixture
def seen(monkeypatch):
    monkeypatch.setattr("cbnb.display.progress.display_mode", lambda: "lines")
    monkeypatch.setitem(DISPLAYS, "lines", Seen)
    return Seen


def ticking(clock, **kwargs):
    return line_learner(4, progress=True, cbs=cbnb.Callback(before_batch=clock.tick), **kwargs)


def test_the_display_starts_after_what_callbacks_do_before_the_fit_and_before_the_first_checks(clock, seen):
    learn, told = ticking(clock), []
    late = cbnb.Callback(before_fit=lambda cb: told.append(list(seen.last.told)))
    late.order = 1000
    learn.on_first_epoch = (*learn.on_first_epoch[:1], lambda learn: told.append(list(seen.last.told)), *learn.on_first_epoch[1:])
    learn.fit(1, cbs=late)
    assert told[0] == [] and [name for name, *_ in told[1]] == ["start"] and [t for t in seen.last.told if t[0] == "start"] == told[1]

    late.before_fit = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        learn.fit(1, cbs=late)
    assert [name for name, *_ in seen.last.told] == ["start", "failed in epoch 0: ZeroDivisionError"]


def test_of_a_profile_only_a_sentence_stays(clock, monkeypatch):
    sent = []
    monkeypatch.setattr("cbnb.display.progress.display_mode", lambda: "plain")
    monkeypatch.setattr(NotebookDisplay, "send", lambda self, bundle: sent.append(bundle))
    learn = ticking(clock)
    learn.profile()
    assert sent[-1]["text/plain"].startswith("measured and taken back: 1 epoch, 4 batches in") and "<table" not in sent[-1]["text/html"]
    learn.fit(1)
    assert "<table" in sent[-1]["text/html"] and "done: 1 epoch" in sent[-1]["text/plain"]


def test_how_far_a_fit_is(clock, seen):
    """Four batches an epoch and one of validation, each of 8 items and of a second."""
    learn = ticking(clock, opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.5))
    learn.fit(2)
    told = seen.last.told
    assert told[0] == ("start", ["epoch", "train_loss", "valid_loss", "time"], learn.recorder.last())
    where = [(epoch, True, i, 4) for epoch in (0,) for i in (1, 2, 3, 4)] + [(0, False, 1, 1)]
    where += [(1, *rest) for _, *rest in where]
    assert seen.last.reached("epochs", "training", "batches", "n_batches") == where
    done = [(1, 8), (2, 8), (3, 8), (4, 8), (4, 8), (5, 8), (6, 8), (7, 8), (8, 8), (8, 8)]
    assert seen.last.reached("share") == [(k / n,) for k, n in done]
    # nothing after a single batch; until the first validation one of its batches counts as a third of a training batch
    left = [None, 6 + 2 / 3, 5 + 2 / 3, 4 + 2 / 3, 5, 4, 3, 2, 1, 0]
    assert [seconds for (seconds,) in seen.last.reached("left")] == pytest.approx(left)
    assert [rate for (rate,) in seen.last.reached("rate")] == pytest.approx([8, 8, 8, 8, None, 8, 8, 8, 8, None])
    assert seen.last.reached("lr", "mom", "n_epoch", "purpose") == [(pytest.approx(0.1), 0.5, 2, "fit")] * 10
    losses = list(learn.recorder.losses)
    assert [loss for (loss,) in seen.last.reached("loss")] == [*losses[:4], losses[3], *losses[4:], losses[7]]
    assert told[6] == ("row", 0) and told[-2:] == [("row", 1), ("done: 2 epochs, 8 batches in 00:10", True)]


def test_how_far_a_later_epoch_is(clock, seen):
    """Time is that of the epochs that are run."""
    learn = ticking(clock, valid=False)
    learn.fit(3, start_epoch=2)
    assert seen.last.reached("epochs", "share") == [(2, pytest.approx((8 + k) / 12)) for k in (1, 2, 3, 4)]
    assert [left for (left,) in seen.last.reached("left")] == pytest.approx([None, 2, 1, 0])
    assert seen.last.told[-1] == ("done: 1 epoch, 4 batches in 00:04", True)


def test_a_pause_is_not_worked(clock, seen):
    """A second a batch, and after the third a pause of 100 s."""
    learn = ticking(clock, valid=False)

    def pause(cb):
        if cb.learn.train_iter == 3:
            clock.now += 100
            cb.learn.steering.seconds_paused += 100

    held = cbnb.Callback(after_batch=pause)
    held.order = 62
    learn.fit(2, cbs=[cbnb.display.steering.Steering(), held])
    assert [left for (left,) in seen.last.reached("left")] == pytest.approx([None, 6, 5, 4, 3, 2, 1, 0])
    assert [rate for (rate,) in seen.last.reached("rate")] == pytest.approx([8] * 8)


def is_first(learn):
    return learn.train_iter == 0 and learn.training


TIME_LEFT = {  # seconds of a batch, batches of training and validation, arguments of `fit`; the old estimate's error in brackets
    "even": (lambda learn: 1, 20, 4, dict(n_epoch=10)),
    "first batch slow": (lambda learn: 1 + 20 * is_first(learn), 20, 4, dict(n_epoch=10)),  # (+75%)
    "start-up and compiling": (lambda learn: 1 + 30 * (learn.iter == 0 and learn.epoch == 0), 20, 4, dict(n_epoch=20)),  # (+190%)
    "much validation": (lambda learn: 1, 20, 15, dict(n_epoch=10)),
    "validation is fast": (lambda learn: 1 if learn.training else 0.3, 30, 6, dict(n_epoch=3)),
    "validates every third epoch": (lambda learn: 1, 20, 15, dict(n_epoch=15, valid_every=3)),
    "validates some epochs": (lambda learn: 1, 20, 15, dict(n_epoch=20, valid_every=[0, 1, 2, 18])),  # (+25%)
    "resumed": (lambda learn: 1 + 10 * is_first(learn), 20, 4, dict(n_epoch=20, start_epoch=10)),
    "epochs of different length": (lambda learn: 1, (20, 24, 18, 22, 16) * 2, 4, dict(n_epoch=10)),
    "workers start in each epoch": (lambda learn: 1 + 5 * (learn.iter == 0), 20, 4, dict(n_epoch=12)),
    "a slow machine": (lambda learn: 1 if learn.epoch == 0 else 2, 20, 4, dict(n_epoch=10)),  # (-30%)
    "no validation": (lambda learn: 1, 20, 0, dict(n_epoch=10)),
    "one batch an epoch": (lambda learn: 1 + 10 * is_first(learn), 1, 1, dict(n_epoch=50)),
    "a single epoch": (lambda learn: 1 + 20 * is_first(learn), 200, 0, dict(n_epoch=1)),
}


@pytest.mark.parametrize("case", TIME_LEFT)
def test_after_a_fifth_of_a_fit_the_time_left_is_right_within_a_tenth(case, clock, seen):
    seconds, train, valid, fit = TIME_LEFT[case]
    lengths = iter(train if isinstance(train, tuple) else ())
    loader = (lambda: iter(line_batches(next(lengths)))) if isinstance(train, tuple) else line_batches(train)
    learn = line_learner(progress=True, dls=cbnb.DataLoaders(loader, *([line_batches(valid)] if valid else []), device="cpu"))
    marks = []
    work = cbnb.Callback(before_batch=lambda cb: setattr(clock, "now", clock.now + seconds(cb.learn)))
    look = cbnb.Callback(after_batch=lambda cb: marks.append((clock.now - 100, seen.last.told[-1].left)))
    look.order = 61
    learn.fit(**fit, cbs=[work, look])
    total = clock.now - 100
    now, left = next(mark for mark in marks if mark[0] >= total / 5)
    assert left == pytest.approx(total - now, rel=0.1)
    assert marks[-1][1] == pytest.approx(0, abs=0.1)


def test_an_epoch_that_is_always_ended_early_counts_as_long_as_it_was(clock, seen):
    """Of 100 batches each epoch trains 10."""

    def end(cb):
        if cb.learn.training and cb.learn.iter == 9:
            raise cbnb.CancelEpochException()

    learn = line_learner(100, progress=True, valid=False, cbs=[cbnb.Callback(before_batch=clock.tick), cbnb.Callback(after_batch=end)])
    learn.fit(10)
    left = {(at.epochs, at.batches): at.left for at in seen.last.told if isinstance(at, Progress)}
    assert left[1, 9] == pytest.approx(91 + 8 * 10) and left[9, 9] == pytest.approx(91)


@pytest.mark.parametrize("shown", ["lines", "nothing"])
def test_where_nothing_is_drawn_no_time_is_measured(shown, clock, seen, monkeypatch):
    monkeypatch.setattr(Seen, "live", shown == "nothing")
    learn, paces = ticking(clock), []
    with learn.no_mbar() if shown == "nothing" else nullcontext():
        learn.fit(1, cbs=cbnb.Callback(after_batch=lambda cb: paces.append(cb.learn.progress.pace)))
    assert paces == [None] * 5


@pytest.mark.filterwarnings("ignore:train_step updates the weights without")
def test_what_is_not_known_is_not_shown(clock, seen):
    """Batches that do not say how many items they have, no momentum, no record."""
    dls = cbnb.DataLoaders([(0.5,)] * 4, device="cpu")
    learn = cbnb.Learner(dls, Line(), train_step=cbnb.UpdateStep(lambda x: 1.0), cbs=cbnb.Callback(before_batch=clock.tick))
    with learn.removed_cbs(cbnb.Recorder):
        learn.fit(1)
    assert seen.last.reached("rate", "loss", "lr", "mom") == [(None,) * 4] * 4 and seen.last.reached("share")[0] == (0.25,)
    assert seen.last.told[0] == ("start", [], None)


@pytest.mark.parametrize("n", [6, None])
def test_how_far_a_validation_is(n, clock, seen):
    batches = line_batches(6)
    learn = ticking(clock, dls=cbnb.DataLoaders(batches, batches if n else lambda: iter(batches), device="cpu"))
    learn.validate()
    # it may be over soon: the first is shown after 5 * 0.25 s
    assert seen.last.reached("purpose", "epochs", "n_epoch", "batches", "n_batches", "training") == [
        ("validate", 0, 1, i, n, False) for i in (2, 3, 4, 5, 6)
    ]
    assert seen.last.reached("share", "left", "rate", "loss") == [
        (i / 6 if n else None, pytest.approx(6 - i) if n else None, None, None) for i in (2, 3, 4, 5, 6)
    ]
    assert seen.last.told[0] == ("start", [], None)
    learn.get_preds()
    assert seen.last.reached("purpose")[0] == ("get_preds",) and seen.last.reached("share")[0] == (2 / 6 if n else None,)


def test_how_far_a_sweep_is(clock, seen):
    learn = ticking(clock)
    found = learn.lr_find(num_it=8, stop_div=False, show_plot=False)
    told = seen.last.reached("purpose", "epochs", "n_epoch", "batches", "n_batches", "share", "lr")
    assert told == [("lr_find", 0, 1, i, 8, i / 8, pytest.approx(found.lrs[i])) for i in range(1, 8)]
    assert seen.last.told[-1][1] is True


def test_a_display_that_takes_long_is_shown_less_often(clock, seen, monkeypatch):
    """Half a second for each: the next follows 50 s after its end. Only the first, which may have loaded something, delays by a second."""
    monkeypatch.setattr(Seen, "progress", lambda self, at: (self.told.append(at), setattr(clock, "now", clock.now + 0.5)))
    ticking(clock, valid=False).fit(30)
    assert [4 * epochs + batches for epochs, batches in seen.last.reached("epochs", "batches")] == [1, 2, 52, 102]


def test_a_display_may_want_to_be_shown_less_often(clock, seen, monkeypatch):
    asked = []
    monkeypatch.setattr(Seen, "patience", lambda self, seconds: (asked.append(seconds), 3.0)[1])
    ticking(clock, valid=False).fit(2)
    assert seen.last.reached("epochs", "batches") == [(0, 1), (0, 4), (1, 3)] and asked == [1, 4, 7]


def test_a_display_is_shown_every_quarter_of_a_second(clock, seen):
    learn = line_learner(4, progress=True, valid=False, cbs=cbnb.Callback(before_batch=lambda cb: setattr(clock, "now", clock.now + 0.125)))
    learn.fit(2)
    assert seen.last.reached("epochs", "batches") == [(0, 2), (0, 4), (1, 2), (1, 4)]


def test_a_display_is_polled_as_often_as_it_wants(clock, seen, monkeypatch):
    """Drawn or not; and meanwhile, while the fit is held."""
    polled = []
    monkeypatch.setattr(Seen, "poll_every", 2.0, raising=False)
    monkeypatch.setattr(Seen, "poll", lambda self: polled.append(clock.now - 100))
    learn = ticking(clock, valid=False)
    with learn.no_mbar():
        learn.fit(2)
    assert polled == [2, 4, 6, 8] and seen.last.reached("batches") == []
    steering = cbnb.display.steering.Steering()
    held = cbnb.Callback(before_train=lambda self: seen.last.told.append(self.learn.steering.while_paused == seen.last.poll))
    held.order = 100
    learn.fit(1, cbs=[steering, held])
    assert True in seen.last.told and steering.while_paused is None


@pytest.mark.parametrize(
    "cancel, word, as_planned",
    [
        (cbnb.CancelFitException, r"stopped in epoch 0 at batch 1 after 00:02", False),
        (KeyboardInterrupt, r"stopped in epoch 0 at batch 1 after 00:02", False),
        (SystemExit, r"stopped in epoch 0 at batch 1 after 00:02", False),
        (ZeroDivisionError, r"failed in epoch 0, training batch 1: ZeroDivisionError", False),
        (None, r"done: 1 epoch, 4 batches in 00:05", True),
    ],
)
def test_how_a_fit_ended(clock, seen, cancel, word, as_planned):
    learn = ticking(clock)
    fails = RaiseIn("after_loss", cancel, when=lambda learn: learn.iter == 1)
    with pytest.raises(BaseException) if cancel and cancel is not cbnb.CancelFitException else nullcontext():
        learn.fit(1, cbs=fails if cancel else [])
    assert seen.last.told[-1] == (word, as_planned) and learn.progress.next == inf


def test_a_sweep_that_is_stopped_at_a_bad_loss_ends_as_planned(clock, seen):
    ticking(clock).lr_find(start_lr=1e-3, end_lr=1e3, num_it=40, show_plot=False)
    assert len(seen.last.reached("batches")) < 39 and seen.last.told[-1][1] is True


def test_which_display_is_taken(clock, seen, monkeypatch):
    """Widgets for the table of a fit, or wherever a place is given for them, and a Stop button for other runs."""
    made = []

    class Made(Seen):
        def __init__(self, name):
            super().__init__()
            made.append(name)

    for name in DISPLAYS:
        monkeypatch.setitem(DISPLAYS, name, lambda name=name: Made(name))
    monkeypatch.setattr("cbnb.display.progress.display_mode", lambda: "widgets")
    learn = ticking(clock)
    learn.fit(1), learn.validate()
    with learn.no_mbar():
        learn.fit(1)
    with learn.removed_cbs(cbnb.Recorder):
        learn.fit(1)
    learn.logger = lambda row: None
    learn.fit(1)
    learn.logger = print
    monkeypatch.setattr("cbnb.display.progress.display_mode", lambda: "lines")
    learn.fit(1)
    learn.progress.place = lambda box: None
    learn.fit(1)
    assert made == ["widgets", "stop", "plain", "plain", "plain", "lines", "widgets"]


class Page:
    """Stands in for `display` of IPython: the outputs, and what replaced what."""

    def __init__(self):
        self.outputs = []

    def display(self, bundle, *, raw, display_id=None):
        assert raw and display_id is True
        self.outputs.append([bundle])
        return SimpleNamespace(update=lambda bundle, *, raw: self.outputs[-1].append(bundle))


@pytest.fixture
def page(monkeypatch):
    page = Page()
    monkeypatch.setattr("IPython.display.display", page.display)
    return page


def test_a_notebook_has_one_output_that_changes(page):
    shown = NotebookDisplay()
    shown.start(NAMES)
    assert page.outputs == [[{"text/html": page.outputs[0][0]["text/html"], "text/plain": "waiting for the first batch"}]]
    assert bare(page.outputs[0][0]["text/html"]).endswith("</tbody></table></div><p>waiting for the first batch</p></div>")
    at = Progress("fit", 0, 2, 1, 2, share=0.25)
    shown.progress(at)
    shown.row([0, 1.0, 0.5, "00:01"])
    assert len(page.outputs[0]) == 2  # a row is shown with the next update
    shown.progress(at)
    first, second = (bundle["text/html"] for bundle in page.outputs[0][1:])
    assert "0.500000" not in first and "0.500000" in second and page.outputs[0][2]["text/plain"] == "0 of 2 epochs, batch 1 of 2"
    assert second.endswith(bar_html(0.25, "0 of 2 epochs, batch 1 of 2") + "</div>")
    shown.finish("done", True)
    assert page.outputs == [[*page.outputs[0][:3], fit_page(NAMES, [[0, 1.0, 0.5, "00:01"]], "done")]]


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("as_planned", [False, True])
def test_a_notebook_keeps_no_bar_without_a_table(page, drawn, as_planned):
    shown = NotebookDisplay()
    shown.start([])
    assert page.outputs == []
    if drawn:
        shown.progress(Progress("validate", 0, 1, 1, 2))
    shown.finish("stopped", as_planned)
    last = {"text/plain": ""} if as_planned else {"text/plain": "stopped"}
    assert [output[-1] for output in page.outputs] == [last] * (drawn or not as_planned)


@pytest.mark.parametrize("seconds, patience", [(0, 0), (4, 0.5), (16, 2), (1000, 2)])
def test_a_notebook_is_updated_less_often_in_a_long_fit(seconds, patience):
    assert NotebookDisplay().patience(seconds) == patience and LogDisplay().patience(seconds) == TerminalDisplay().patience(seconds) == 0


def test_headings_are_said_again_when_there_are_more(capsys):
    shown, names = LogDisplay(), ["epoch"]
    shown.start(names)
    shown.row([0])
    names.append("mae")
    shown.row([1, 0.5])
    shown.row([2, 0.5])
    shown.finish("done", True)
    assert capsys.readouterr().out.splitlines() == ["epoch", "    0", "epoch         mae", "    1    0.500000", "    2    0.500000"]
    shown.finish("stopped", False)
    LogDisplay().start([])
    assert capsys.readouterr().out == "stopped\n"


def test_parts_of_the_loss_that_the_first_epoch_names_are_under_one_line_of_headings(capsys):
    learn = line_learner(2, valid=False, progress=True)
    learn.train_step = lambda x, y: dict(loss=learn.model(x).sum(), low=2.0)
    learn.fit(2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:1]] == [["epoch", "train_loss", "low", "time"]] and len(lines) == 3


def test_a_bar_in_a_terminal(monkeypatch, capsys):
    bars = []

    class Bar:
        def __init__(self, **settings):
            self.settings, self.n, self.calls = settings, None, []
            bars.append(self)

        def set_description_str(self, text):
            self.calls.append((self.n, text))

        def clear(self):
            self.calls.append("clear")

        def close(self):
            self.calls.append("close")

    monkeypatch.setattr("tqdm.tqdm", Bar)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: SimpleNamespace(columns=84))
    shown = TerminalDisplay()
    shown.start(["epoch"])
    shown.progress(AT)  # 69 characters, where 68 are free
    shown.progress(Progress("fit", 1, 3, 2, 4, share=0.256))
    shown.row([1])
    shown.finish("done", True)
    (bar,) = bars
    assert bar.calls == [(0, AT.words(68)), (26, "1 of 3 epochs, batch 2 of 4"), "clear", "close"]
    assert (bar.settings["total"], bar.settings["leave"], bar.settings["dynamic_ncols"]) == (100, False, True)
    assert capsys.readouterr().out.splitlines() == ["epoch", "    1", "done"]
    shown.start([])
    shown.finish("done", True)
    assert capsys.readouterr().out == "" and len(bars) == 1
    shown.finish("stopped", False)
    assert capsys.readouterr().out == "stopped\n"


@pytest.mark.parametrize("run", [lambda learn: learn.fit(1), lambda learn: learn.lr_find()])
def test_a_progress_callback_that_is_switched_off_shows_nothing(run):
    learn = line_learner()
    learn.add_cb(progress := cbnb.ProgressCallback())
    progress.run = False
    run(learn)
    assert progress.learn is learn and not hasattr(progress, "started")


@pytest.mark.parametrize(
    "kept, best, words", [(None, 2, "lowest valid_loss: 1.000000, in epoch 2"), ("score", 1, "highest score: 9.000000, in epoch 1")]
)
def test_the_table_marks_the_epoch_that_the_fit_keeps(kept, best, words):
    """The star was on the lowest valid_loss, while the sentence below named another epoch."""
    scores, losses = iter([1.0, 9.0, 5.0]), iter([3.0, 2.0, 1.0])
    learn = line_learner(1, metrics=cbnb.ValueMetric(lambda: next(scores), "score"), sanity_check=False)
    learn.eval_step = lambda x, y: (torch.tensor(next(losses)), x, y)
    learn.fit(3, **({"keep_best": (kept, "max")} if kept else {}))
    run = learn.recorder.last()
    names = run.metric_names
    rows = [[row.get(name) for name in names] for row in run.epochs]
    page = fit_page(names, rows, "done", run)
    assert best_row(names, rows, run.watched) == best and words in page["text/html"] and words in page["text/plain"]
    assert re.search(rf"★</span> <b>{best}</b>", page["text/html"])
    assert [event.text for event in run_events(run)][-1].startswith("weights are those" if kept else "lowest valid_loss")
