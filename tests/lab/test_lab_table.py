"""The table of a lab book as text, as HTML without scripts and as data of a page, and the lab book in a terminal."""

import json
import linecache
import math
import runpy
import subprocess
import sys

import pytest

import cbnb.all as cbnb
from cbnb.lab.book import LabBook
from cbnb.lab.command import main
from cbnb.lab.table import book_html, curve_text, table_data, table_lines
from cbnb.toy import wave_learner
from helpers import packed_texts

MARKUP = "<script>alert(1)</script>\"&'"


@pytest.fixture
def lab(tmp_path):
    book = LabBook(tmp_path / "runs")
    for lr in (0.003, 0.01):
        wave_learner().fit(2, lr)
    wave_learner().fit(1, 0.01, cbs=cbnb.GradientClip(1.0))
    book.close()
    return book


def test_markup_is_shown_as_text(lab):
    lab[1].name, lab[2].note, lab[3].tags = MARKUP, MARKUP, MARKUP
    curves = [run.summary["curve"] for run in reversed(lab.runs)]
    still, live = (book_html(lab.rows(), curves, live) for live in (False, True))
    for page in (still, live, lab._repr_html_(), lab[1]._repr_html_(), lab[2]._repr_html_(), lab[3]._repr_html_()):
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert MARKUP in json.loads(packed_texts(live)[1])["columns"][1]["values"]  # `book.js` shows it by textContent


def test_columns_and_values_of_the_page(lab):
    rows = lab.rows()
    data = table_data(rows, [run.summary["curve"] for run in reversed(lab.runs)])
    by_name = {column["name"]: column for column in data["columns"]}
    assert by_name["id"]["values"] == [3, 2, 1] and by_name["lr"]["values"] == [0.01, 0.01, 0.003]
    assert by_name["callbacks"]["shown"] and by_name["n_epoch"]["shown"] and not by_name["optimizer"]["shown"]
    assert [len(curve) for curve in data["curves"]] == [24, 24, 24]
    assert all(35 <= ord(c) <= 126 for curve in data["curves"] for c in curve)
    assert curve_text([1.0, 1.0]) == "##" and curve_text([]) == ""
    assert len(table_lines(rows, 2)) == 4 and table_lines(rows, 2)[-1] == "... and 1 older run"
    assert max(map(len, table_lines(rows, 2, width=30))) <= 30


def test_a_book_of_ten_thousand_runs(lab):
    """Not a test of the time: that is in bench/lab_book.py. The page has all of them, and the saved notebook twenty."""
    row = lab.rows()[0]
    rows = [row | dict(id=i, lr=i / 1e4) for i in range(10_000)]
    page = book_html(rows, [[2.0, 1.0]] * 10_000, live=True)
    assert page.count("<tr>") == 21 and len(json.loads(packed_texts(page)[1])["curves"]) == 10_000
    assert len(page) < 1_000_000


def test_an_empty_book(tmp_path):
    book = LabBook(tmp_path)
    book.close()
    assert "no runs yet" in book._repr_html_()


def test_in_a_terminal(lab, capsys):
    folder, before = str(lab.folder), cbnb.Learner.around_fits
    done = subprocess.run([sys.executable, "-m", "cbnb", "runs", "list", "--folder", folder, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [3, 2, 1]
    main(["runs", "list", "--folder", folder, "-n", "1"])
    assert capsys.readouterr().out.splitlines()[-1] == "... and 2 older runs"
    main(["runs", "show", "1", "--folder", folder])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["#1:", "2", "of"] and ["lr", "0.003"] in lines and ["settings"] in lines and ["environment"] in lines
    [head] = [i for i, line in enumerate(lines) if line[:3] == ["epoch", "train_loss", "valid_loss"]]
    assert [line[0] for line in lines[head + 1 : head + 3]] == ["0", "1"]
    main(["runs", "show", "1", "--folder", folder, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == "done" and shown["settings"]["lr"] == 0.003 and "sources" not in shown
    assert [row["valid_loss"] for row in shown["epochs"]] == [row["valid_loss"] for row in lab[1].run.epochs]
    main(["runs", "show", "1", "--folder", folder, "--csv"])
    shown = capsys.readouterr().out
    main(["runs", "export", "1", "--folder", folder, "--csv", "epochs"])
    assert shown == capsys.readouterr().out and shown.count("\n") == 3
    main(["runs", "compare", "1", "2", "--folder", folder])
    assert "#1" in capsys.readouterr().out
    main(["runs", "export", "2", "--folder", folder])
    history = cbnb.History.from_json(capsys.readouterr().out)
    assert list(history[0].raw_losses) == list(lab[2].run.raw_losses)
    with pytest.raises(SystemExit, match="there is no run 99"):
        main(["runs", "compare", "99", "--folder", folder])
    with pytest.raises(SystemExit, match="no lab book in"):
        main(["runs", "list", "--folder", folder + "x"])
    assert cbnb.Learner.around_fits == before  # a book that is only read keeps no fits


def test_a_run_in_a_terminal_says_what_went_wrong(tmp_path, capsys):
    book = LabBook(tmp_path / "runs")
    with pytest.raises(ZeroDivisionError):
        wave_learner().fit(2, cbs=cbnb.Callback(after_epoch=lambda cb: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        wave_learner().fit(2, cbs=cbnb.Callback(before_epoch=lambda cb: 1 / 0))
    wave_learner().fit(2, lr=1e30)
    book.close()
    folder = ["--folder", str(book.folder)]
    capsys.readouterr()
    said = []
    for number in "123":
        main(["runs", "show", number, *folder])
        said.append(capsys.readouterr().out)
    assert "failed" in said[0].splitlines()[0] and "failed: ZeroDivisionError" in said[0]
    assert "no epoch has ended" in said[1]
    assert "Fix: " in said[2] and "nan" in said[2]
    main(["runs", "show", "3", *folder, "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["epochs"][-1]["train_loss"] is None and any(event["kind"] == "finding" for event in shown["events"])


def test_the_source_that_differs_between_two_runs(tmp_path, capsys):
    book = LabBook(tmp_path / "runs")
    for text in ("(pred - y).abs().mean()", "(pred - y).square().mean()  # <b>"):
        (tmp_path / "losses.py").write_text(f"def off(pred, y):\n    return {text}\n")
        space = runpy.run_path(str(tmp_path / "losses.py"))
        learn = wave_learner(loss_func=space["off"], batch_weight=lambda pred, y: len(y))
        learn.fit(1)
        linecache.clearcache()
    book.close()
    found = cbnb.compare(book[1], book[2])
    lines = found.source_diffs["loss off"].splitlines()
    assert lines[:2] == ["--- #1", "+++ #2"] and lines[-2:] == [
        "-    return (pred - y).abs().mean()",
        "+    return (pred - y).square().mean()  # <b>",
    ]
    assert "source that differs: loss off" in repr(found)
    for live in (False, True):
        assert "mean()  # &lt;b&gt;" in found.html(live) and "# <b>" not in found.html(live).partition("<details class")[2]
    main(["runs", "compare", "1", "2", "--folder", str(book.folder)])
    assert "+    return (pred - y).square().mean()  # <b>" in capsys.readouterr().out


def test_a_run_of_only_nan_says_so(tmp_path):
    book = LabBook(tmp_path)
    wave_learner().fit(1)
    wave_learner().fit(2, lr=1e30)
    book.close()
    curves = [run.summary["curve"] for run in reversed(book.runs)]
    data = table_data(book.rows(), curves)
    by_name = {column["name"]: column for column in data["columns"]}
    assert by_name["best valid_loss"]["values"][0] == by_name["train_loss"]["values"][0] == "nan"
    assert by_name["best valid_loss"]["format"] == "number" and by_name["best valid_loss"]["values"][1] > 0
    assert "nan" in table_lines(book.rows())[1] and ">nan<" in book_html(book.rows(), curves, live=False)
    assert book[2].best("valid_loss") is None and book.best("valid_loss").id == 1 and math.isnan(book[2].row()["train_loss"])


def test_the_table_without_scripts_has_one_line_for_each_run(lab):
    lab[1].note, lab[2].note = "words\n" * 30, "a" * 100
    page = book_html(lab.rows(), [run.summary["curve"] for run in reversed(lab.runs)], live=False)
    cells = page.split("<td ")[1:]
    assert all("white-space:pre" in cell for cell in cells) and "words words" in page and "a" * 37 + "...<" in page
    assert page.index("training loss") < page.index(">status<")


def test_a_sweep_sorts_its_table_as_it_says(lab):
    rows = lab.rows()
    for down in (False, True):
        data = table_data(rows, [[]] * 3, sort="lr", down=down)
        assert data["columns"][data["sort"]["column"]]["name"] == "lr" and data["sort"]["down"] == down
