"""A lab book in odd places: copied and lost learners, fits taken back, folders that are only read, files that are no lab book, odd names."""

import copy
import csv
import gc
import json
import math
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import warnings
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import cbnb.all as cbnb
from cbnb.lab import store
from cbnb.lab.book import LabBook, LabRun
from cbnb.lab.command import main
from cbnb.toy import line_learner, wave_learner


def hooks():
    return cbnb.Learner.around_fits, cbnb.Learner.on_first_epoch, cbnb.Learner.batch_filters, type(line_learner().runs).on_take_back


# --- which book keeps a fit


def test_a_book_of_a_learner_ends_with_the_learner(tmp_path):
    before = hooks()
    learn = line_learner(cbs=LabBook(tmp_path))
    learn.fit(1)
    model, book = weakref.ref(learn.model), weakref.ref(learn.lab_book)
    del learn
    gc.collect()  # the learner
    gc.collect()  # the book
    assert model() is None and book() is None and hooks() == before


@pytest.mark.parametrize("own_first", [True, False])
def test_a_fit_is_kept_once_though_two_books_have_the_file(tmp_path, own_first: bool):
    books = [] if own_first else [LabBook(tmp_path)]
    learn = line_learner(cbs=LabBook(tmp_path, tags="own"))
    books += [LabBook(tmp_path)] if own_first else []
    learn.fit(1)
    line_learner().fit(1)
    assert [run.tags for run in books[0].runs] == ["own", ""]
    for book in (*books, learn.lab_book):
        book.close()


def test_the_book_of_all_learners_goes_on_as_a_callback_of_a_fit(lab):
    line_learner().fit(1)
    learn = line_learner()
    learn.fit(1, cbs=lab)
    other = line_learner(cbs=lab)
    other.fit(1)
    other.remove_cb(lab)
    line_learner().fit(1)
    assert len(lab) == 4


def test_a_copied_learner_keeps_its_fits(tmp_path):
    learn = line_learner(cbs=LabBook(tmp_path))
    again = copy.deepcopy(learn)
    again.fit(1)
    learn.fit(1)
    assert again.lab_book.learn is again and learn.lab_book.learn is learn and len(learn.lab_book) == 2
    state = learn.lab_book.__getstate__() | dict(_learn=None)
    book = LabBook.__new__(LabBook)
    book.__setstate__(pickle.loads(pickle.dumps(state)))
    assert book.learn is None and len(book) == 2


# --- fits that are taken back


def test_a_fit_that_was_taken_back_says_so(lab, capsys):
    learn = line_learner()
    for _ in range(3):
        learn.fit(1)
    learn.rewind(2)
    assert [run.status for run in lab.runs] == ["done", "done, taken back", "done, taken back"]
    assert "taken back" in repr(lab[3]) and lab.rows()[0]["status"] == "done, taken back"
    assert "taken back" in str(cbnb.compare(lab[1], lab[3]))
    learn.fit(1)
    learn.runs.take_back(1, redo=True)
    assert lab[4].status == "done, taken back"
    learn.runs.redo()
    assert lab[4].status == "done" and lab[2].status == "done, taken back"
    capsys.readouterr()
    main(["runs", "list", "--folder", str(lab.folder)])
    assert capsys.readouterr().out.count("taken back") == 2


def test_a_rewind_changes_no_record_of_a_book_that_was_made_again(lab):
    learn = line_learner()
    learn.fit(1)
    shutil.rmtree(lab.folder)
    line_learner().fit(1)
    learn.rewind()
    assert [run.status for run in lab.runs] == ["done"]
    shutil.rmtree(lab.folder)
    learn = line_learner()
    learn.fit(1)
    lab.file.rename(lab.folder / "away")
    with pytest.warns(UserWarning, match="could not be written"):
        learn.rewind()
    (lab.folder / "away").rename(lab.file)
    assert learn.n_trained() == 0


# --- folders that can only be read


READS = """
import os, sqlite3, sys
import cbnb.all as cbnb
os.setgid(65534); os.setuid(65534)
lab = cbnb.LabBook(sys.argv[1])
print(lab[1].status, len(lab[1].run.raw_losses), len(lab.rows()))
try: lab[1].name = 'x'
except PermissionError as e: print(e)
"""


def read_only(monkeypatch):
    """SQLite as it is in a folder that cannot be written."""
    connect = sqlite3.connect

    def refuses(path, *args, **kwargs):
        db = connect(path, *args, **kwargs)
        if "mode=rw" in str(path):
            db.close()
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise error
        return db

    monkeypatch.setattr(sqlite3, "connect", refuses)


def test_a_folder_that_can_only_be_read(lab, monkeypatch, capsys):
    line_learner().fit(2)
    lab.close()
    read_only(monkeypatch)
    book = LabBook(lab.folder)
    assert len(book) == 1 and book[1].history["epoch"] == [0, 1] and "done" in book._repr_html_()
    for change in (lambda: setattr(book[1], "name", "x"), lambda: book.delete(1, confirm=True)):
        with pytest.raises(PermissionError, match=r"runs\.sqlite cannot be written, only read: copy its folder"):
            change()
    with pytest.warns(UserWarning, match="cannot be written, only read"):
        line_learner().fit(1)
    book.close()
    main(["runs", "list", "--folder", str(lab.folder)])
    assert "done" in capsys.readouterr().out
    (lab.folder / "runs.sqlite-wal").write_bytes(b"rows")
    with pytest.raises(PermissionError, match="copy the folder"):
        len(book)


@pytest.mark.skipif(not hasattr(os, "setuid") or os.geteuid() != 0, reason="only root becomes another user")
def test_as_a_user_who_may_not_write(lab):
    line_learner().fit(1)
    lab.close()
    folder = lab.folder
    for each in (folder, *folder.parents):
        if each.stat().st_uid == 0 and str(each).startswith("/tmp/"):
            each.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", READS, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("done 2") and "only read: copy its folder" in done.stdout


# --- files that are no lab book


def foreign(file) -> None:
    with sqlite3.connect(file) as db:
        db.executescript("CREATE TABLE cats(name); PRAGMA user_version=1")
    db.close()


def damaged(file) -> None:
    store.create(file)
    data = file.read_bytes()
    file.write_bytes(data[:100] + b"\xff" * 4000)


FILES = dict(
    empty=(lambda file: file.write_bytes(b""), "it is empty"),
    text=(lambda file: file.write_text("no lab book " * 100), "not a database"),
    foreign=(foreign, "it has other tables"),
    damaged=(damaged, "malformed"),
)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_lab_book_is_left_as_it_is(tmp_path, kind: str):
    make, words = FILES[kind]
    before, file = hooks(), tmp_path / "runs.sqlite"
    make(file)
    data = file.read_bytes()
    with pytest.raises(ValueError, match=words) as error:
        LabBook(tmp_path)
    assert str(file) in str(error.value) and "pass LabBook another folder" in str(error.value)
    with pytest.raises(SystemExit, match="pass LabBook another folder"):
        main(["runs", "list", "--folder", str(tmp_path)])
    assert hooks() == before and file.read_bytes() == data and os.listdir(tmp_path) == ["runs.sqlite"]


def test_a_folder_in_place_of_the_file(tmp_path):
    (tmp_path / "runs.sqlite").mkdir()
    with pytest.raises(sqlite3.OperationalError, match="could not be opened as a lab book"):
        LabBook(tmp_path)


# --- names, tags and columns


def test_control_characters_are_shown_as_escapes(lab, capsys):
    odd = "a\x1b[2J\x9b31m\x07\rb\u202e"
    learn = wave_learner(metrics=None)
    learn.fit(1)
    lab[1].name, lab[1].tags, lab[1].note = odd, odd, odd + "\nsecond line"
    lab.close()
    folder = ["--folder", str(lab.folder)]
    capsys.readouterr()
    for command in (
        ["list"],
        ["list", "--json"],
        ["show", "1", "--sources"],
        ["compare", "1"],
        ["export", "1"],
        ["export", "1", "--csv", "epochs"],
    ):
        main(["runs", *command, *folder])
        out = capsys.readouterr().out
        assert not controls(out), command
    main(["runs", "show", "1", *folder])
    assert "a\\u001b[2J\\u009b31m\\u0007" in capsys.readouterr().out
    assert not controls(repr(lab[1])) and "\n" not in lab[1].label
    assert not controls(lab._repr_html_().replace("\n", ""))


def controls(text: str) -> set[str]:
    return {c for c in text if c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")}


def test_tags_are_words(tmp_path):
    book = LabBook(tmp_path / "runs", tags=["baseline", "small"])
    line_learner().fit(1)
    book.close()
    run = book[1]
    assert run.tags == "baseline small"
    run.tags = ("a", "b")
    assert book[1].tags == run.tags == "a b"
    run.tags = None
    assert book[1].tags == "" and LabBook(tmp_path / "none", tags=None).close() is None
    for wrong in (["two words"], [3], 3):
        with pytest.raises((ValueError, TypeError), match="tags"):
            run.tags = wrong


def test_none_is_no_name(lab):
    line_learner().fit(1)
    run = lab[1]
    run.name, run.note = "first", "text"
    run.name = run.note = None
    assert (lab[1].name, lab[1].note, lab[1].label, run.name) == ("", "", "#1", "")
    run.name = "half \ud800"
    assert lab[1].name == "half ?"
    run.name, run.note = 3, Path("a")
    assert (lab[1].name, lab[1].note) == ("3", "a")
    with pytest.raises(TypeError, match="should be a string"):
        run.name = ["a"]


def first(name: str):
    def metric(pred, y):
        return (pred - y).abs().mean()

    metric.__name__ = name
    return metric


COLUMNS = [
    "id",
    "name",
    "status",
    "started",
    "ended",
    "best valid_loss",
    "best mae",
    "train_loss",
    "valid_loss",
    "mae",
    "other",
]


def test_the_columns_have_one_order_whatever_the_runs_have(lab):
    wave_learner(metrics=[first("mae"), first("other")]).fit(1)
    wave_learner(metrics=[first("mae")]).fit(1, cbs=cbnb.GradientClip(1.0))
    names = list(lab.rows()[0])
    assert names[: len(COLUMNS)] == COLUMNS and names[-4:] == ["tags", "note", "commit", "clean"]
    assert names[len(COLUMNS) :][:3] == ["epochs", "steps", "time"] and names.index("lr") > names.index("time")
    assert all(list(row) == names for row in lab.rows())
    assert set(lab[1].row()) <= set(names)


@pytest.mark.parametrize("name", ["name", "status", "epochs", "tags", "id", "lr"])
def test_a_metric_may_have_the_name_of_a_column(lab, name: str):
    wave_learner(metrics=[first(name)]).fit(1)
    row = lab.rows()[0]
    assert row["id"] == 1 and row["status"] == "done" and row["epochs"] == 1 and row["tags"] == ""
    assert row["lr" if name == "lr" else f"last {name}"] > 0 and lab[1].row() == row and lab._repr_html_()


def test_what_users_of_other_trackers_look_for(lab):
    for lr in (0.01, 0.02):
        wave_learner().fit(1, lr)
    assert [row["lr"] for row in cbnb.compare(lab).rows] == sorted([0.01, 0.02], key=lambda lr: lab.runs[lr > 0.01].best())
    for found, said in (
        (lambda: lab.log(loss=1.0), "a lab book has no attribute 'log': learn.log"),
        (lambda: lab.finish(), "a lab book has no attribute 'finish': lab.close"),
        (lambda: lab[1].config, "a run of the lab book has no attribute 'config': use lab.1..settings"),
        (lambda: lab[1].metrics, "best\\('valid_loss'\\)"),
        (lambda: lab.nothing, "a lab book has no attribute 'nothing'$"),
        (lambda: lab.run, "a lab book has no attribute 'run': lab.runs is the list of all runs, and lab\\[17\\] is run 17"),
        (lambda: lab.foldr, "did you mean 'folder'"),
        (lambda: lab[1].wieghts, "did you mean 'weights'"),
    ):
        with pytest.raises(AttributeError, match=said):
            found()
    with pytest.raises(TypeError, match="use lab.runs, the list of all runs"):
        lab[:3]
    assert copy.copy(lab[1]).id == pickle.loads(pickle.dumps(lab[1])).id == 1


def test_a_run_is_found_by_its_name_and_by_its_learner(lab):
    first, second = wave_learner(), wave_learner()
    for learn in (first, second, first):
        learn.fit(1)
    assert (lab[first].id, lab[second].id) == (3, 2)
    lab[1].name = lab[second].name = "base line"
    assert lab["base line"].id == 2  # the latest of them
    for which, said in (
        ("base lin", "did you mean 'base line'"),
        ("x", "its names are 'base line'"),
        (wave_learner(), "begin after the line lab = LabBook"),
    ):
        with pytest.raises(KeyError, match=said):
            lab[which]
    lab.delete("base line", confirm=True)
    assert [run.id for run in lab] == [1, 3]
    with pytest.raises(KeyError, match="last fit of this learner was deleted"):
        lab[second]


def test_settings_of_your_own_are_written_and_nothing_else_is_assigned(lab):
    learn = wave_learner()
    seen = []

    def assign(cb):
        if cb.epoch == 1:
            lab[-1].name = "while it runs"
            with pytest.raises(ValueError, match="run 1 is still running") as e:
                lab[-1].settings["crops"] = 4
            seen.append(e)

    learn.fit(2, cbs=cbnb.Callback(before_epoch=assign))
    run = lab["while it runs"]
    assert len(seen) == 1 and "crops" not in run.settings
    run.settings["crops"], run.settings["kind"] = 4, torch.float16
    run.settings.update(flips=True)
    run.settings |= dict(seed=7)
    assert run.settings.setdefault("crops", 9) == 4 and run.settings.pop("flips") is True
    kept = lab[1].settings
    assert kept == {**run.settings, "kind": "torch.float16"} and kept["seed"] == 7 and kept["n_epoch"] == 2
    assert lab.rows()[0]["crops"] == lab[1].run.settings["crops"] == 4
    copied = pickle.loads(pickle.dumps(run.settings))
    copied["crops"] = 5
    assert lab[1].settings["crops"] == 5
    for name in ("notes", "settings", "status", "wieghts"):
        with pytest.raises(AttributeError):
            setattr(lab[1], name, "x")


def test_a_value_whose_name_does_not_say_what_is_better_has_no_best(lab):
    """As `grad_norm`: to show a table is no reason to warn."""
    for lr in (0.01, 0.02):
        wave_learner().fit(1, lr, cbs=cbnb.GradientClip(math.inf, log=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row, shown = lab.rows()[0], [lab._repr_html_(), repr(lab[1]), repr(cbnb.compare(lab[1], lab[2]))]
    assert row["grad_norm"] > 0 and "best grad_norm" not in row and "best valid_loss" in row
    assert not any("best grad_norm" in text for text in shown)
    assert "best grad_norm" not in cbnb.compare(lab[1], lab[2], metric="grad_norm").rows[0]


def test_a_data_frame(lab, tmp_path):
    pytest.importorskip("pandas")
    wave_learner().fit(1)
    wave_learner().fit(1)
    frame = lab.to_dataframe()
    assert list(frame.columns) == list(lab.rows()[0]) and list(frame["id"]) == [2, 1]
    frame.to_csv(tmp_path / "runs.csv", index=False)
    with open(tmp_path / "runs.csv", newline="") as f:
        assert next(csv.reader(f)) == list(lab.rows()[0])


def test_a_run_is_read_without_a_date(lab):
    line_learner().fit(1)
    with sqlite3.connect(lab.file) as db:
        db.execute("UPDATE runs SET started=NULL, summary=NULL")
    db.close()
    run: LabRun = lab[1]
    assert run.started is None and lab.rows()[0]["started"] is None and lab._repr_html_()
    main(["runs", "show", "1", "--folder", str(lab.folder)])


# --- the learner of a run


def net():
    return torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def own_loss(pred, y):
    return (pred - y).abs().mean()


LEARNERS = dict(
    plain=dict(),
    function=dict(loss_func=F.mse_loss),
    partial=dict(loss_func=partial(F.smooth_l1_loss, beta=0.5)),
    arguments=dict(loss_func=torch.nn.HuberLoss(delta=2.0), opt_func=partial(torch.optim.SGD, momentum=0.8, nesterov=True), wd=0.1),
    metric=dict(metrics=cbnb.AvgMetric(F.l1_loss)),
)


@pytest.mark.parametrize("kind", LEARNERS)
def test_the_learner_of_a_run_trains_as_the_run_did(lab, kind: str):
    given = dict(metrics=None) | LEARNERS[kind]
    learn = wave_learner(**given)
    learn.fit(2, 0.02)
    book = LabBook(lab.folder)  # as in a new kernel
    cbnb.set_seed(0)
    same = wave_learner()
    again = book[1].learner(model=same.model, dls=learn.dls, **({} if kind != "metric" else dict(metrics=LEARNERS[kind]["metrics"])))
    again.logger = lambda row: None
    assert again.lr == 0.02 and type(again.loss_func) is type(learn.loss_func)
    again.fit(2)
    book.close()
    assert list(again.recorder.last().raw_losses) == list(learn.recorder.last().raw_losses)
    assert book[1].settings == book[2].settings


def test_what_a_record_cannot_make_is_named(lab):
    wave_learner(loss_func=own_loss, metrics=[first("other")], batch_weight=lambda pred, y: len(y)).fit(1)
    run, dls = lab[1], wave_learner().dls
    with pytest.raises(
        ValueError,
        match=r"lab\[1\].learner needs model=..., dls=..., loss_func=..., metrics=..., batch_weight=...: .*the source of loss own_loss",
    ) as error:
        run.learner()
    assert "trust" not in str(error.value)
    own = dict(loss_func=own_loss, metrics=None, batch_weight=None)
    with pytest.raises(ValueError, match="needs dls=...: a lab book does not keep the data"):
        run.learner(net, **own)
    assert run.learner(net, dls, **own, lr=0.5).lr == 0.5
    learn = wave_learner(loss_func=torch.nn.MSELoss(), metrics=None)
    learn.loss_func = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0]))
    learn.fit(1)
    with pytest.raises(ValueError, match="needs loss_func=...: loss_func with tensors"):
        lab[2].learner(net, dls)


def test_a_record_runs_no_code(lab, tmp_path, monkeypatch):
    wave_learner(metrics=None).fit(1)
    (tmp_path / "evil.py").write_text("raise SystemExit('code of the file ran')\ndef loss(pred, y): return 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    kept = lab[1].run.recipe
    assert "torch.nn.modules.loss:MSELoss" in kept
    for path in ("evil:loss", "os:system", "torch.nn.functional:math.exp", "torch.nn.functional.evil:loss", "builtins:eval"):
        with sqlite3.connect(lab.file) as db:
            fit = json.loads(db.execute("SELECT fit FROM runs").fetchone()[0])
            fit["recipe"] = kept.replace("torch.nn.modules.loss:MSELoss", path)
            db.execute("UPDATE runs SET fit=?", (json.dumps(fit),))
        db.close()
        with pytest.raises(ValueError, match="needs loss_func=...: .* importing it runs code"):
            lab[1].learner(net, wave_learner().dls)
    with sqlite3.connect(lab.file) as db:
        db.execute("UPDATE runs SET fit=?", (json.dumps({k: v for k, v in fit.items() if k != "recipe"}),))
    db.close()
    with pytest.raises(ValueError, match="needs loss_func=...: this record does not say"):
        lab[1].learner(net, wave_learner().dls)
    assert lab[1].learner(net, wave_learner().dls, loss_func=F.mse_loss).loss_func is F.mse_loss


# --- weights


def test_the_best_and_the_last_weights_are_kept(tmp_path):
    book = LabBook(tmp_path / "runs", weights="best last")
    learn, states = wave_learner(metrics=None), []
    learn.fit(3, 0.02, cbs=cbnb.Callback(after_epoch=lambda cb: states.append(copy.deepcopy(cb.model.state_dict()))))
    learn.fit(2, 3.0, cbs=cbnb.Callback(after_epoch=lambda cb: states.append(copy.deepcopy(cb.model.state_dict()))))  # the loss rises
    learn.fit(3, keep_best=True)
    book.close()
    first = 0
    for run, n in zip(book.runs[:2], (3, 2)):
        losses = run.history["valid_loss"]
        for which, at in (("best", losses.index(min(losses))), ("last", n - 1)):
            model = net()
            run.load_weights(model, which)
            assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), states[first + at].values()))
        first += n
    assert [sorted(path.name for path in run.weights.values()) for run in book.runs[1:2]] == [
        [path.name for path in sorted(book[2].weights.values())]
    ]
    model = net()
    book[3].load_weights(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), learn.model.parameters()))
    assert len(list((book.folder / "weights" / "1").iterdir())) == 2
    folders = list(book[1].weights.values())
    book.delete(1, confirm=True)
    assert not any(path.exists() for path in folders) and book[2].weights


@pytest.mark.parametrize("n_failures, tried", [(1, 2), (3, 4)])
def test_the_best_weights_that_could_not_be_written_are_tried_again(tmp_path, monkeypatch, n_failures, tried):
    """The best epoch is the first one, and the disk is full when it ends: the file has its weights, and not those of a later epoch."""
    from cbnb.lab import book as module

    calls, write = [], module.write_checkpoint

    def full_at_first(*args, **kwargs):
        calls.append(args[1])
        if len(calls) <= n_failures:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(module, "write_checkpoint", full_at_first)
    book, states = LabBook(tmp_path / "runs", weights="best"), []

    def spoil(cb):
        if cb.epoch:
            for p in cb.model.parameters():
                p.data += 5

    keep = cbnb.Callback(after_epoch=lambda cb: states.append(copy.deepcopy(cb.model.state_dict())))
    with pytest.warns(UserWarning, match="No space left on device.*The fit continues"):
        wave_learner().fit(3, cbs=[cbnb.Callback(before_validate=spoil), keep])
    book.close()
    losses = book[1].history["valid_loss"]
    assert losses[0] == min(losses) and calls == ["best"] * tried
    model = net()
    book[1].load_weights(model)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), states[0].values()))


@pytest.mark.parametrize("error, tried", [(OSError(5, "Input/output error"), 3), (ValueError("odd"), 1)])
def test_best_weights_that_cannot_be_written_leave_the_last_ones(tmp_path, monkeypatch, error, tried):
    """Only an error of the disk is tried again, as another error would occur again."""
    from cbnb.lab import book as module

    calls, write = [], module.write_checkpoint

    def fails(folder, which, *args, **kwargs):
        calls.append(which)
        if which == "best":
            raise error
        return write(folder, which, *args, **kwargs)

    def spoil(cb):
        if cb.epoch:
            for p in cb.model.parameters():
                p.data += 5

    monkeypatch.setattr(module, "write_checkpoint", fails)
    book = LabBook(tmp_path / "runs", weights="best last")
    with pytest.warns(UserWarning, match="could not be written.*The fit continues"):
        wave_learner().fit(2, cbs=cbnb.Callback(before_validate=spoil))
    book.close()
    assert calls[-1] == "last" and calls.count("best") == tried and list(book[1].weights) == ["last"]


def test_weights_that_could_not_be_written_wait_on_the_cpu(tmp_path, monkeypatch):
    """A GPU that is nearly full has no room for a copy. Here all tensors are on the CPU, so the test counts the calls of `cpu`."""
    from cbnb.lab import book as module

    def fails(*args, **kwargs):
        raise OSError(28, "No space left on device")

    copied = []
    monkeypatch.setattr(module, "write_checkpoint", fails)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copied.append(self.shape) or self.clone())
    book = LabBook(tmp_path / "runs", weights="last")
    with pytest.warns(UserWarning, match="No space left on device"):
        (learn := wave_learner()).fit(1)
    book.close()
    assert {p.shape for p in learn.model.parameters()} <= set(copied)


def test_weights_of_a_fit_that_failed_and_of_another_book(tmp_path):
    def fail(cb):
        if cb.epoch == 2:
            raise ZeroDivisionError

    book = LabBook(tmp_path / "runs", weights="best")
    learn = wave_learner()
    with pytest.raises(ZeroDivisionError):
        learn.fit(3, cbs=cbnb.Callback(before_epoch=fail))
    assert list(book[1].weights) == ["best"]
    with pytest.raises(ValueError, match=r"lab\[1\] has no 'last' weights: pass which='best'. LabBook"):
        book[1].load_weights(net(), "last")
    with pytest.raises(ValueError, match="does not fit the model"):
        book[1].load_weights(torch.nn.Linear(1, 1))
    book.file.unlink()
    book.weights = ""
    wave_learner().fit(1)  # number 1 of a new file
    assert book[1].weights == {}
    (book.folder / "weights" / "2").write_text("in the way")
    book.weights = "last"
    with pytest.warns(UserWarning, match="The fit continues"):
        wave_learner().fit(1)
    book.close()
    assert book[2].status == "done"
    with pytest.raises(ValueError, match="should be 'best', 'last' or 'best last'"):
        LabBook(tmp_path / "other", weights="all")
