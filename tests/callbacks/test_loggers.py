"""Loggers: what a fit writes is what the service's own reader reads back, however the fit ends, and nothing else is written."""

import contextlib
import json
import math
import pickle
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import cbnb.all as cbnb
from cbnb.callbacks.loggers import JSONLLogger, Logger, MLflowLogger, TensorBoardLogger, WandbLogger, batch_rows
from cbnb.toy import in_processes
from helpers import RaiseIn, line_learner
from processes import python

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No network, no telemetry, no lines on the screen."""
    quiet = dict(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false", MLFLOW_DISABLE_TELEMETRY="true")
    for name, value in quiet.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def odd_metric(name="mae, mean"):
    return cbnb.AvgMetric(lambda out, y: (out - y).abs().mean(), name=name)


class Listed(Logger):
    """Keeps what it gets; `fails` is raised by the method of that name."""

    def __init__(self, every=None, artifacts=False, fails=None):
        super().__init__(every, artifacts)
        self.fails, self.calls, self.attached = fails, [], []

    def start(self, settings):
        self.rows = []
        self.calls.append(("start", self.run_id, settings))
        self.run_id = self.run_id or f"run {len(self.calls)}"
        self.check("start")

    def log(self, values, step):
        self.check("log")
        self.rows.append((step, values))

    def note(self, text, step):
        self.check("note")
        self.calls.append(("note", text, step))

    def attach(self, figure, folders):
        self.attached.append((type(figure).__name__, [folder.name for folder in folders]))

    def finish(self, status):
        self.calls.append(("finish", status))
        self.check("finish")

    def check(self, name):
        if self.fails == name:
            raise OSError(f"no connection in {name}")

    @property
    def ends(self):
        return [call[1] for call in self.calls if call[0] == "finish"]

    @property
    def starts(self):
        return [call[1] for call in self.calls if call[0] == "start"]


def table(run) -> list[tuple[int, dict]]:
    """The rows of the table of a run, as they should have been sent."""
    return [(row["step"], {k: row[k] for k in run.metric_names if row[k] is not None}) for row in run.epochs if row["complete"]]


# --- the base class ---


def test_rows_are_those_of_the_table_with_all_digits(tmp_path):
    learn = line_learner(3, cbs=Listed, path=tmp_path, metrics=odd_metric())
    learn.fit(3, valid_every=2)
    assert learn.listed.rows == table(learn.recorder.last()) and len(learn.listed.rows) == 3
    assert list(learn.listed.rows[1][1]) == learn.recorder.metric_names
    assert "valid_loss" not in learn.listed.rows[0][1]  # it was not validated


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_each_batch_that_is_logged_is_logged_once(tmp_path, every):
    learn = line_learner(5, cbs=Listed(every=every), path=tmp_path)
    learn.listed.seconds = 0.0  # after each batch
    learn.fit(3)
    run, batches = learn.recorder.last(), [row for row in learn.listed.rows if "loss" in row[1]]
    expected = [(i, {"loss": run.raw_losses[i - 1], "lr": run.steps["lr"][i - 1]}) for i in range(every, 16, every)]
    assert batches == expected and [row for row in learn.listed.rows if "epoch" in row[1]] == table(run)
    steps = [step for step, _ in learn.listed.rows]
    assert steps == sorted(steps)


@pytest.mark.parametrize("every", [None, 0])
def test_without_every_no_event_of_a_batch_is_handled(tmp_path, every):
    learn = line_learner(cbs=Listed(every=every), path=tmp_path)
    learn.fit(1)
    assert len(learn.listed.rows) == 1 and not learn.listed.wants("after_batch", True, "fit")
    assert not Listed(every=1).wants("after_batch", False, "fit")


def test_batches_that_were_not_waited_for_come_with_the_next_ones():
    learn = line_learner(4)
    learn.fit(1)
    run = learn.recorder.last()
    assert batch_rows(run, 0, 1, wait=False) == batch_rows(run, 0, 1) and batch_rows(run, 4, 1) == []
    run.hypers["lr"] = run.hypers["lr"][:3]  # the rate of the last batch is still on its way
    assert [step for _, step in batch_rows(run, 0, 1, wait=False)] == [1, 2, 3]
    assert [(step, list(values)) for values, step in batch_rows(run, 2, 1)] == [(3, ["loss", "lr"]), (4, ["loss"])]
    with pytest.raises(ValueError, match="every=-1"):
        Listed(every=-1)


def test_only_fits_are_logged_and_a_recorder_is_needed(tmp_path):
    learn = line_learner(8, cbs=Listed(every=1), path=tmp_path)
    learn.fit(1)
    n = len(learn.listed.rows)
    learn.lr_find(num_it=5, show_plot=False)
    learn.validate()
    learn.get_preds()
    assert len(learn.listed.rows) == n == 9 and learn.listed.starts == [None] and learn.listed.ends == ["done"]
    learn.fit(1)
    assert len(learn.listed.rows) == n and learn.listed.starts == [None, None] and learn.listed.rows[0][0] == 1
    with pytest.raises(ValueError, match="Listed sends the values of the Recorder, but this learner has no Recorder"):
        line_learner(cbs=Listed, default_cbs=False, path=tmp_path).fit(1)


def test_a_validation_within_a_fit_sends_nothing(tmp_path):
    class ValidatesTwice(cbnb.Callback):
        run_in = ("fit",)

        def after_train(self):
            self.learn.validate()

    learn = line_learner(cbs=[Listed(every=1), ValidatesTwice], path=tmp_path)
    learn.fit(2)
    assert [step for step, _ in learn.listed.rows] == [1, 2, 2, 3, 4, 4]


ENDS = [
    (KeyboardInterrupt(), "interrupted", "interrupted: stopped in epoch 1 at batch 1"),
    (ZeroDivisionError("no"), "failed", "failed: ZeroDivisionError: no"),
    (cbnb.CancelFitException("enough"), "cancelled", "stopped: RaiseIn"),
]


@pytest.mark.parametrize("error,status,text", ENDS)
def test_a_fit_that_ends_early_has_its_status_and_no_half_row(tmp_path, error, status, text):
    """The rows: all batches that were trained, and the whole epochs."""
    learn = line_learner(3, cbs=Listed(every=1), path=tmp_path)
    stop = RaiseIn("after_batch", error, order=70, when=lambda learn: learn.epoch == 1 and learn.iter == 1)
    with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError):
        learn.fit(3, cbs=stop)
    assert [(step, *list(row)[:1]) for step, row in learn.listed.rows] == [
        (1, "loss"), (2, "loss"), (3, "loss"), (3, "epoch"), (4, "loss"), (5, "loss"),
    ]  # fmt: skip
    assert learn.listed.ends == [status] == [learn.recorder.last().status]
    notes = [call for call in learn.listed.calls if call[0] == "note"]
    assert len(notes) == 1 and notes[0][1].startswith(text) and notes[0][2] == 5
    assert learn.listed.service is None and not learn.listed.opened
    learn.fit(1)
    assert learn.listed.ends == [status, "done"]


def test_events_of_the_run_are_notes(tmp_path):
    def change(cb):
        if cb.train_iter == 2:
            cb.recorder.last().note("lr", "lr × 0.5", cb.train_iter)

    learn = line_learner(2, cbs=[Listed, cbnb.Callback(before_batch=change)], path=tmp_path)
    learn.fit(2, valid_every=5)
    assert [call for call in learn.listed.calls if call[0] == "note"] == [("note", "lr: lr × 0.5", 3)]
    assert learn.listed.notes == ["step 3, lr: lr × 0.5"]


@pytest.mark.parametrize("where", ["log", "note", "finish"])
def test_a_service_that_fails_gives_one_warning_and_the_fit_goes_on(tmp_path, where):
    learn = line_learner(cbs=Listed(fails=where), path=tmp_path)
    learn.add_cb(cbnb.Callback(before_train=lambda cb: cb.recorder.last().note("lr", "by hand")))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        learn.fit(3)
    assert [str(w.message) for w in said] == [
        f"Listed failed (OSError: no connection in {where}): the fit continues, and the next rows are sent together with these"
    ]
    assert learn.recorder.last().status == "done" and learn.listed.ends == ["done"]
    assert said[0].filename == __file__


def test_rows_that_could_not_be_sent_are_sent_later(tmp_path):
    learn = line_learner(cbs=Listed(every=1, fails="log"), path=tmp_path)

    def mend(cb):
        cb.learn.listed.fails = None if cb.epoch == 1 else cb.learn.listed.fails

    learn.add_cb(cbnb.Callback(before_epoch=mend))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learn.fit(2)
    assert [step for step, _ in learn.listed.rows] == [1, 2, 2, 3, 4, 4]


def test_a_service_that_cannot_start_ends_the_fit_before_its_first_batch(tmp_path):
    learn = line_learner(cbs=Listed(fails="start"), path=tmp_path)
    weights = [p.clone() for p in learn.model.parameters()]
    with pytest.raises(OSError, match="no connection in start"):
        learn.fit(1)
    assert len(learn.recorder.history) == 0 and learn.listed.ends == []
    assert all((p == w).all() for p, w in zip(learn.model.parameters(), weights))


def test_settings_are_those_of_the_run(tmp_path):
    torch.manual_seed(5)
    learn = line_learner(cbs=Listed(every=3), path=tmp_path)
    learn.fit(2, lr=0.05)
    _, _, settings = learn.listed.calls[0]
    assert settings == learn.recorder.last().settings and (settings["lr"], settings["n_epoch"], settings["seed"]) == (0.05, 2, 5)
    assert "Listed(every=3)" in settings["callbacks"]


def test_the_figure_and_the_checkpoints_are_attached_if_asked_for(tmp_path):
    learn = line_learner(cbs=[Listed(artifacts=True), cbnb.Checkpoint], path=tmp_path)
    learn.fit(2)
    assert learn.listed.attached == [("Figure", ["00002_epoch_2"])]
    from matplotlib import pyplot

    assert not pyplot.get_fignums()
    learn = line_learner(cbs=[Listed, cbnb.Checkpoint], path=tmp_path / "b")
    learn.fit(1)
    assert learn.listed.attached == []


def test_a_logger_can_be_pickled_and_leaves_nothing_behind(tmp_path):
    learn = line_learner(cbs=[Listed(every=1), JSONLLogger, TensorBoardLogger], path=tmp_path)
    before = {name: value for name, value in vars(learn).items() if name not in ("epoch",)}
    learn.fit(1)
    assert set(vars(learn)) >= set(before) and learn.undo is None
    for cb in (learn.listed, learn.jsonl_logger, learn.tensor_board_logger):
        cb.learn = None
        assert pickle.loads(pickle.dumps(cb)).run_id == cb.run_id


def test_a_method_that_is_missing_is_named():
    class Partial(Logger):
        def start(self, settings): ...

    with pytest.raises(NotImplementedError, match="Partial has no method log: define log"):
        line_learner(cbs=Partial).fit(1)


# --- a fit that is resumed ---


def killed_at(epoch):
    return RaiseIn("after_epoch", ZeroDivisionError, order=70, when=lambda learn: learn.epoch == epoch)


def resumed(make, path, pause=0, **checkpoint):
    """A fit of 4 epochs that dies at the end of the third, and goes on in a new learner, after `pause` seconds; its logger."""
    with contextlib.chdir(path):
        learn = line_learner(4, cbs=make())
        with contextlib.suppress(ZeroDivisionError):
            learn.fit(4, cbs=[cbnb.Checkpoint(**checkpoint), killed_at(2)], resume=True)
        first = next(cb for cb in learn.cbs if isinstance(cb, Logger)).run_id
        time.sleep(pause)
        learn = line_learner(4, cbs=make())
        learn.fit(4, cbs=cbnb.Checkpoint(**checkpoint), resume=True)
        logger = next(cb for cb in learn.cbs if isinstance(cb, Logger))
        assert logger.run_id == first
        return learn, logger


@pytest.mark.parametrize("due", [dict(every_epochs=2), dict(every_steps=7)])
def test_a_resumed_fit_goes_on_in_its_run(tmp_path, due):
    """From the end of an epoch, and from the middle of one: rows that the checkpoint does not know are written again, once."""
    learn, logger = resumed(lambda: JSONLLogger(every=1), tmp_path, **due)
    with contextlib.chdir(tmp_path):
        lines = logger.read_log()
    run = learn.recorder.last()
    assert [(line["step"], line["loss"]) for line in lines if "loss" in line] == [(i + 1, x) for i, x in enumerate(run.raw_losses)]
    assert [line["epoch"] for line in lines if "epoch" in line] == [0, 1, 2, 3] and len({line["run"] for line in lines}) == 1
    assert [line["finish"] for line in lines if "finish" in line] == ["done"]
    assert [line["note"].split(":")[0] for line in lines if "note" in line] == ["resumed"]


def test_a_fit_that_finds_no_checkpoint_begins_a_run(tmp_path):
    with contextlib.chdir(tmp_path):
        learn = line_learner(cbs=Listed(every=1))
        learn.fit(2, resume=True)
    assert learn.listed.ends == ["done"] and [step for step, _ in learn.listed.rows] == [1, 2, 2, 3, 4, 4]


def test_of_several_processes_the_first_one_logs(tmp_path):
    pytest.importorskip("accelerate", reason='training in several processes needs accelerate: pip install "cbnb[distributed]"')
    program = f"""
from cbnb.callbacks.loggers import JSONLLogger, TensorBoardLogger
from cbnb.toy import line_learner
learn = line_learner(4, cbs=[JSONLLogger(every=1), TensorBoardLogger], path={str(tmp_path)!r})
with learn.distributed(): learn.fit(2)
"""
    in_processes(program, 2, meet=True)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 2, 3, 4, 4] and len({line["run"] for line in lines}) == 1
    [folder] = (tmp_path / "runs").iterdir()
    assert len(list(folder.iterdir())) == 1


# --- JSON lines ---


def test_json_lines_have_the_numbers_of_the_table(tmp_path):
    learn = line_learner(cbs=JSONLLogger("logs/a.jsonl"), path=tmp_path, metrics=odd_metric())
    learn.fit(2)
    start, *rows, end = map(json.loads, (tmp_path / "logs" / "a.jsonl").read_text().splitlines())
    assert start["settings"] == learn.recorder.last().settings and end["finish"] == "done"
    assert [(row["step"], {k: v for k, v in row.items() if k not in ("run", "step")}) for row in rows] == table(learn.recorder.last())
    learn.fit(1)
    assert len(learn.jsonl_logger.read_log()) == 3  # a new file
    learn.jsonl_logger.append = True
    learn.fit(1)
    assert len({line["run"] for line in learn.jsonl_logger.read_log()}) == 2


def test_json_lines_survive_a_killed_process(tmp_path):
    """The rows of whole epochs are there; a line that was cut off does not spoil the next."""
    code = f"""
import os, signal, sys
sys.path.insert(0, 'tests')
import cbnb.all as cbnb
from cbnb.callbacks.loggers import JSONLLogger
from helpers import line_learner
def die(cb):
    if cb.epoch == 2: os.kill(os.getpid(), signal.SIGKILL)
line_learner(cbs=[JSONLLogger, cbnb.Callback(after_batch=die)], path={str(tmp_path)!r}).fit(4)
"""
    subprocess.run([*python(), "-c", code], cwd=ROOT, capture_output=True)
    learn = line_learner(cbs=JSONLLogger(append=True), path=tmp_path)
    with open(tmp_path / "history.jsonl", "a") as f:
        f.write('{"run": "a')
    learn.fit(1)
    assert [line["epoch"] for line in learn.jsonl_logger.read_log() if "epoch" in line] == [0, 1, 0]


def test_json_has_no_nan(tmp_path):
    learn = line_learner(cbs=JSONLLogger(every=1), path=tmp_path, lr=1e30)
    with contextlib.redirect_stdout(None):
        learn.fit(2)
    text = (tmp_path / "history.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert [line["loss"] for line in learn.jsonl_logger.read_log() if "loss" in line][-1] is None


def test_json_lines_of_a_block_are_those_of_single_rows(tmp_path):
    """A name may have every character, also those that end a line, and a block with nan has null for it."""
    name = 'a"}, {"run": "b\n'
    learn = line_learner(40, cbs=JSONLLogger(every=1), path=tmp_path, metrics=odd_metric(name))
    learn.add_cb(cbnb.Callback(after_loss=lambda cb: setattr(cb.learn, "loss", cb.loss * (math.nan if cb.iter == 7 else 1))))
    learn.fit(2)
    run, lines = learn.recorder.last(), learn.jsonl_logger.read_log()[1:-1]
    rows = [({"loss": a, "lr": b}, i) for i, (a, b) in enumerate(zip(run.raw_losses, run.steps["lr"]), start=1)]
    rows = sorted(rows + [(values, step) for step, values in table(run)], key=lambda row: row[1])
    run_id = learn.jsonl_logger.run_id
    expected = [{"run": run_id, "step": step} | {k: v if math.isfinite(v) else None for k, v in row.items()} for row, step in rows]
    assert lines == expected and [line["step"] for line in lines if line.get("loss", 0) is None][0] == 8


@pytest.mark.parametrize("error,status,text", ENDS)
def test_files_have_every_batch_of_a_fit_that_ends_early(tmp_path, error, status, text):
    learn = line_learner(150, cbs=[JSONLLogger(every=1), TensorBoardLogger(every=1)], path=tmp_path)
    stop = RaiseIn("after_batch", error, order=70, when=lambda learn: learn.epoch == 1 and learn.iter == 49)
    with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError):
        learn.fit(3, cbs=stop)
    learn.lr_find(num_it=5, show_plot=False)
    learn.validate()
    *rows, end = learn.jsonl_logger.read_log()
    losses = learn.recorder.last().raw_losses
    assert [(row["step"], row["loss"]) for row in rows if "loss" in row] == list(enumerate(losses, start=1)) and len(losses) == 200
    assert [row["step"] for row in rows if "epoch" in row] == [150] and end["finish"] == status
    found = tensorboard(learn.tensor_board_logger.run_folder)
    assert [(e.step, e.value) for e in found.Scalars("loss")] == list(enumerate(losses, start=1))
    assert [e.step for e in found.Scalars("epoch")] == [150]


# --- TensorBoard ---


def tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0}).Reload()


def texts(found, name) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in found.Tensors(f"{name}/text_summary")]


def test_tensorboard_reads_the_table_back(tmp_path):
    learn = line_learner(3, cbs=TensorBoardLogger(every=2), path=tmp_path, metrics=odd_metric())
    learn.fit(3)
    learn.lr_find(num_it=3, show_plot=False)
    learn.validate()
    [folder] = (tmp_path / "runs").iterdir()
    found, run = tensorboard(folder), learn.recorder.last()
    assert sorted(found.Tags()["scalars"]) == sorted(["loss", "lr", "epoch", "train_loss", "valid_loss", "mae__mean", "time"])
    for name, tag in (("train_loss", "train_loss"), ("valid_loss", "valid_loss"), ("mae, mean", "mae__mean")):
        assert [e.value for e in found.Scalars(tag)] == pytest.approx(run[name], rel=1e-6)
        assert [e.step for e in found.Scalars(tag)] == [3, 6, 9]
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(i, pytest.approx(run.raw_losses[i - 1])) for i in (2, 4, 6, 8)]
    assert [e.value for e in found.Scalars("lr")] == pytest.approx([0.1] * 4)
    assert "| optimizer | SGD |" in texts(found, "settings")[0]


@pytest.mark.parametrize("in_blocks", [True, False])
def test_tensorboard_reads_blocks_of_rows_among_the_events_of_its_writer(tmp_path, in_blocks):
    """Steps of one to three bytes; with and without the file of the writer, which is not public."""

    def adds(cb):
        writer = cb.learn.tensor_board_logger.service
        writer.add_scalar("mine", cb.epoch, cb.train_iter)
        if not in_blocks:
            vars(writer.file_writer.event_writer).pop("_general_file_writer", None)

    learn = line_learner(9000, cbs=[TensorBoardLogger(every=1), cbnb.Callback(before_epoch=adds)], path=tmp_path, lr=1e-4)
    learn.fit(2)
    found, run = tensorboard(learn.tensor_board_logger.run_folder), learn.recorder.last()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == list(enumerate(run.raw_losses, start=1))
    assert {e.value for e in found.Scalars("lr")} == {torch.tensor(1e-4).item()} and len(found.Scalars("lr")) == 18000
    assert [(e.step, e.value) for e in found.Scalars("mine")] == [(0, 0), (9000, 1)]
    assert [e.value for e in found.Scalars("valid_loss")] == pytest.approx(run["valid_loss"], rel=1e-6)
    times = [e.wall_time for e in found.Scalars("loss")]
    assert times == sorted(times)


def test_tensorboard_has_a_folder_for_each_fit_and_says_how_it_ended(tmp_path):
    from tensorboard.plugins.hparams import metadata

    learn = line_learner(cbs=TensorBoardLogger("tb", artifacts=True), path=tmp_path)
    learn.fit(1)
    first = learn.tensor_board_logger.run_folder
    with pytest.raises(ZeroDivisionError):
        learn.fit(2, cbs=RaiseIn("after_batch", ZeroDivisionError("no"), when=lambda learn: learn.epoch == 1))
    second = learn.tensor_board_logger.run_folder
    assert sorted((tmp_path / "tb").iterdir()) == sorted([first, second])
    done, failed = tensorboard(first), tensorboard(second)
    assert len(failed.Scalars("epoch")) == 1 and texts(failed, "events") == ["failed: ZeroDivisionError: no"]
    assert len(done.Images("losses")) == 1
    for found, status in ((done, 1), (failed, 2)):
        data = found.PluginTagToContent("hparams")
        assert metadata.parse_session_end_info_plugin_data(data["_hparams_/session_end_info"]).status == status
        hparams = metadata.parse_session_start_info_plugin_data(data["_hparams_/session_start_info"]).hparams
        assert hparams["lr"].number_value == 0.1 and hparams["loss"].string_value == "MSELoss"


def test_tensorboard_hides_what_a_killed_fit_had_written_since_its_checkpoint(tmp_path):
    learn, logger = resumed(lambda: TensorBoardLogger(every=1), tmp_path, pause=1, every_epochs=2)
    # TensorBoard reads the files by name: second, machine, process, and a number in the process, where 10 comes before 9
    [folder] = (tmp_path / "runs").iterdir()
    found = tensorboard(folder)
    assert [e.step for e in found.Scalars("loss")] == list(range(1, 17))
    assert [e.step for e in found.Scalars("valid_loss")] == [4, 8, 12, 16]
    assert len(texts(found, "settings")) == 1


def test_tensorboard_shows_nan(tmp_path):
    learn = line_learner(cbs=TensorBoardLogger(), path=tmp_path, lr=1e30)
    with contextlib.redirect_stdout(None):
        learn.fit(2)
    assert math.isnan(tensorboard(learn.tensor_board_logger.run_folder).Scalars("train_loss")[-1].value)


# --- Weights & Biases ---


def wandb_records(file: Path) -> list:
    """The records of an offline run, once they are written: blocks of 32 KiB of parts with a checksum, a length and a kind."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = _records_so_far(file)
        if found and found[-1].WhichOneof("record_type") == "exit":
            break
        time.sleep(0.1)  # another process writes them
    return found


def _records_so_far(file: Path) -> list:
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, found, part = file.read_bytes(), 7, [], b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(part))
            part = b""
    return found


def wandb_run(file: Path) -> dict:
    records = wandb_records(file)
    rows, summary, config, notes, status = [], {}, {}, [], None
    for record in records:
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item})
        if kind == "summary":
            summary |= {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.summary.update}
        if kind == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            notes.append(record.run.notes)
        if kind == "exit":
            status = record.exit.exit_code
    return dict(rows=rows, summary=summary, config=config, notes=notes[-1], status=status, records=records)


def wandb_files(path) -> list[Path]:
    return sorted(path.glob("wandb/offline-run-*/*.wandb"))  # by time


def test_wandb_reads_the_table_back(tmp_path):
    learn = line_learner(3, cbs=WandbLogger("lines", every=3, name="wide"), path=tmp_path, metrics=odd_metric())
    learn.fit(2)
    learn.lr_find(num_it=3, show_plot=False)
    learn.validate()
    [file] = wandb_files(tmp_path)
    found, run = wandb_run(file), learn.recorder.last()
    rows = [{k: v for k, v in row.items() if k[:1] != "_"} for row in found["rows"]]
    expected = [dict(row) | dict(loss=run.raw_losses[step - 1], lr=0.1) for step, row in table(run)]
    assert rows == expected and [row["_step"] for row in found["rows"]] == [3, 6]
    assert found["config"]["optimizer"] == "SGD" and found["config"]["lr"] == 0.1 and found["status"] == 0
    assert found["summary"]["status"] == "done"
    import wandb

    assert wandb.run is None


def test_wandb_has_a_run_for_each_fit_with_status_notes_and_files(tmp_path):
    learn = line_learner(cbs=[WandbLogger("lines", artifacts=True), cbnb.Checkpoint], path=tmp_path)
    learn.fit(1)
    time.sleep(1)  # names of folders have the second
    with pytest.raises(ZeroDivisionError):
        learn.fit(2, cbs=RaiseIn("after_batch", ZeroDivisionError, when=lambda learn: learn.epoch == 1))
    done, failed = map(wandb_run, wandb_files(tmp_path))
    assert (done["status"], failed["status"]) == (0, 1) and failed["summary"]["status"] == "failed"
    assert failed["notes"] == "step 2, failed: ZeroDivisionError"
    assert len([row for row in failed["rows"] if "epoch" in row]) == 1
    assert any(key.startswith("losses") for row in done["rows"] for key in row)
    assert any(record.request.WhichOneof("request_type") == "log_artifact" for record in done["records"]) or any(
        record.WhichOneof("record_type") == "artifact" for record in done["records"]
    )


def test_wandb_goes_on_in_its_run(tmp_path):
    learn, logger = resumed(lambda: WandbLogger("lines"), tmp_path, every_epochs=2)
    files = wandb_files(tmp_path)
    assert {file.stem for file in files} == {f"run-{logger.run_id}"}
    first, second = map(wandb_run, files)
    assert [row["epoch"] for row in first["rows"]] == [0, 1, 2] and [row["epoch"] for row in second["rows"]] == [2, 3]


def test_wandb_logs_into_a_run_that_is_open(tmp_path):
    import wandb

    with wandb.init(project="mine", dir=str(tmp_path), settings=wandb.Settings(console="off")) as run:
        learn = line_learner(cbs=WandbLogger(reuse=True), path=tmp_path)
        learn.fit(1)
        learn.fit(1)
        run.log({"mine": 1})
    [file] = wandb_files(tmp_path)
    rows = wandb_run(file)["rows"]
    assert [row.get("epoch") for row in rows] == [0, 0, None] and rows[-1]["mine"] == 1
    with pytest.raises(ValueError, match="needs an open run: call wandb.init"):
        learn.fit(1)


def test_wandb_reads_the_event_files_of_tensorboard(tmp_path):
    """The way for a row for each batch, which the page describes; in a process of its own, because wandb changes tensorboard in it."""
    program = f"""
import wandb
from cbnb.callbacks.loggers import TensorBoardLogger
from cbnb.toy import line_learner
with wandb.init(project='waves', dir={str(tmp_path)!r}, sync_tensorboard=True, settings=wandb.Settings(console='off')):
    learn = line_learner(40, cbs=TensorBoardLogger(every=1), path={str(tmp_path)!r})
    learn.fit(2)
learn.recorder.history.to_json({str(tmp_path / "history.json")!r})
"""
    subprocess.run([*python(), "-c", program], cwd=ROOT, check=True)
    [file] = wandb_files(tmp_path)
    rows, run = wandb_run(file)["rows"], cbnb.History.from_json(tmp_path / "history.json")[0]
    assert [row["global_step"] for row in rows] == list(range(1, 81))
    assert [row["loss"] for row in rows] == pytest.approx(list(run.raw_losses), rel=1e-6)
    assert [row["valid_loss"] for row in rows if "valid_loss" in row] == pytest.approx(run["valid_loss"], rel=1e-6)


# --- MLflow ---


@pytest.fixture
def mlflow(monkeypatch):
    return pytest.importorskip("mlflow", reason="mlflow-skinny is no requirement of dev: pip install mlflow-skinny alembic")


def mlflow_run(learn):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=learn.m_lflow_logger.store)
    return client, client.get_run(learn.m_lflow_logger.run_id)


def points(client, run, name) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def test_mlflow_reads_the_table_back(tmp_path, mlflow):
    learn = line_learner(3, cbs=MLflowLogger(every=2), path=tmp_path, metrics=odd_metric())
    learn.fit(3)
    client, found = mlflow_run(learn)
    learn.lr_find(num_it=3, show_plot=False)
    learn.validate()
    run = learn.recorder.last()
    for name, there in (("train_loss", "train_loss"), ("valid_loss", "valid_loss"), ("mae, mean", "mae_ mean")):
        assert points(client, found, there) == list(zip([3, 6, 9], run[name]))
    assert points(client, found, "loss") == [(i, run.raw_losses[i - 1]) for i in (2, 4, 6, 8)]
    assert found.data.params["optimizer"] == "SGD" and found.info.status == "FINISHED"
    assert mlflow.active_run() is None
    assert len(client.search_runs([found.info.experiment_id])) == 1


@pytest.mark.parametrize("error,status", [(KeyboardInterrupt(), "KILLED"), (ZeroDivisionError("no"), "FAILED")])
def test_mlflow_knows_how_a_fit_ended(tmp_path, mlflow, error, status):
    learn = line_learner(cbs=[MLflowLogger("digits", artifacts=True), cbnb.Checkpoint], path=tmp_path)
    with pytest.raises(type(error)):
        learn.fit(2, cbs=RaiseIn("after_batch", error, when=lambda learn: learn.epoch == 1))
    client, found = mlflow_run(learn)
    assert found.info.status == status and learn.recorder.last().status in found.data.tags["mlflow.note.content"]
    assert len(points(client, found, "epoch")) == 1
    assert {file.path for file in client.list_artifacts(found.info.run_id)} == {"losses.png", "checkpoints"}


def test_mlflow_goes_on_in_its_run(tmp_path, mlflow):
    learn, logger = resumed(lambda: MLflowLogger(every=1), tmp_path, every_epochs=2)
    with contextlib.chdir(tmp_path):
        client, found = mlflow_run(learn)
        steps = [step for step, _ in points(client, found, "loss")]
    assert steps == list(range(1, 17)) and found.info.status == "FINISHED"


# --- without the packages ---


@pytest.mark.parametrize("logger,missing", [(TensorBoardLogger, "tensorboard"), (MLflowLogger, "mlflow"), (WandbLogger, "wandb")])
def test_a_missing_package_is_named_with_the_extra_before_the_first_batch(tmp_path, monkeypatch, logger, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    learn = line_learner(cbs=logger, path=tmp_path)
    with pytest.raises(ImportError, match=rf'{logger.__name__} needs {missing}: pip install "cbnb\[loggers\]"'):
        learn.fit(1)
    assert learn.train_iter == 0 and len(learn.recorder.history) == 0 and not list(tmp_path.iterdir())


def test_nothing_is_written_to_the_current_folder(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    with contextlib.chdir(here):
        learn = line_learner(cbs=[TensorBoardLogger, WandbLogger, JSONLLogger], path=tmp_path / "there")
        learn.fit(1)
    assert not list(here.iterdir()) and {p.name for p in (tmp_path / "there").iterdir()} == {"runs", "wandb", "history.jsonl"}


@pytest.mark.parametrize(
    "kind, name", [(JSONLLogger, "fname"), (TensorBoardLogger, "folder"), (MLflowLogger, "experiment"), (WandbLogger, "project")]
)
def test_a_number_is_no_name(kind, name):
    with pytest.raises(TypeError, match=rf"^{name}=1 should be a string\. To set the interval of logged batches, pass every=1$"):
        kind(1)


@pytest.mark.parametrize(
    "kind, name, hint",
    [(JSONLLogger, "filename", "fname"), (TensorBoardLogger, "log_dir", "folder"), (MLflowLogger, "tracking_uri", "uri")],
)
def test_an_unknown_argument_of_a_logger_has_a_hint(kind, name, hint):
    with pytest.raises(TypeError, match=rf"^{kind.__name__} has no argument '{name}': did you mean {hint}=\?"):
        kind(**{name: "here"})
