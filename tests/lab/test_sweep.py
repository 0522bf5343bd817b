"""Sweeps: what a run computes, what is undone, which runs end early, and how a killed sweep goes on."""

import json
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cbnb.all as cbnb
from cbnb.lab import sweep_runs
from cbnb.lab.book import LabBook
from cbnb.lab.sweep_runs import Grid, Space
from cbnb.toy import line_learner, wave_learner
from helpers import packed_texts

MARKUP = "<script>alert(1)</script>"
GRID = dict(lr=[0.0003, 0.001, 0.003, 0.01, 0.03, 0.1], wd=[0.0, 0.01, 0.1, 0.3, 1.0])
ONE_CYCLE = dict(lr_max=GRID["lr"], wd=GRID["wd"])


@pytest.fixture
def lab(tmp_path):
    book = LabBook(tmp_path / "runs", every=0)
    yield book
    book.close()


def test_thirty_runs_end_within_two_fifths_of_the_batches_and_find_a_run_as_good():
    """bench/sweeps.py has more grids, and more orders of this one."""
    whole, pruned = (wave_learner().sweep(ONE_CYCLE, 9, prune=prune, method="fit_one_cycle") for prune in (False, True))
    assert len(whole) == len(pruned) == 30 and [row["epochs"] for row in whole.rows] == [9] * 30
    assert pruned.n_batches <= 0.4 * whole.n_batches
    assert pruned.best_value <= 1.02 * whole.best_value
    for short, point in zip(pruned.runs, pruned.points, strict=True):  # a run that was ended is the beginning of the whole one
        full = whole.runs[whole.points.index(point)]
        assert list(short.raw_losses) == list(full.raw_losses)[: short.n_steps]


def test_a_run_is_what_a_loop_by_hand_computes():
    learn = wave_learner()
    model, found = learn.model, learn.sweep(dict(lr=[0.01]), 3, seed=5)
    cbnb.set_seed(5)
    opt, losses = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), []
    for _ in range(3):
        for x, y in learn.dls.train:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
    assert list(found.runs[0].raw_losses) == losses


def test_each_run_is_undone_and_the_sweep_is_the_same_again():
    learn = wave_learner()
    learn.fit(2)
    before = {name: value.clone() for name, value in learn.model.state_dict().items()}
    moments = json.dumps(learn.opt.state_dict(), default=lambda t: t.tolist())
    state, runs = torch.get_rng_state(), list(learn.recorder.history)
    found = learn.sweep(dict(lr=[0.01, 0.1], reset_opt=[True, False]), 2)
    assert all(torch.equal(before[name], value) for name, value in learn.model.state_dict().items())
    assert json.dumps(learn.opt.state_dict(), default=lambda t: t.tolist()) == moments
    assert torch.equal(torch.get_rng_state(), state) and list(learn.recorder.history) == runs
    assert [point.called for point in learn.runs] == ["fit(2)"]  # its fits leave no restore points
    torch.manual_seed(123)
    again = learn.sweep(dict(lr=[0.01, 0.1], reset_opt=[True, False]), 2)
    assert [{**row, "time": 0} for row in again.rows] == [{**row, "time": 0} for row in found.rows]
    assert found.learner() is learn and learn.validate()[0] == pytest.approx(found.best_value, rel=1e-6)


def test_settings_of_the_model_go_to_make():
    def make(width):
        return cbnb.Learner(dls, nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1)), nn.MSELoss())

    learn = wave_learner()
    dls, state = learn.dls, torch.get_rng_state()
    found = learn.sweep(dict(width=[2, 32], lr=(0.001, 0.1, "log")), 3, n=5, make=make, method="fit")
    assert len(found) == 5 and torch.equal(torch.get_rng_state(), state) and learn.n_trained() == 0
    best = found.learner()
    assert best.model[0].out_features == found.best["width"]
    assert best.validate()[0] == pytest.approx(found.best_value, rel=1e-6)


PROGRAM = """
import os, signal, sys
from cbnb.all import *
from cbnb.toy import wave_learner
lab = LabBook(sys.argv[1], every=0)
n = 0
def kill(cb):
    global n
    n += 1
    if n == 9: os.kill(os.getpid(), signal.SIGKILL)
wave_learner().sweep(dict(lr=[0.001, 0.003, 0.01, 0.03]), 4, prune=False, name='killed', cbs=Callback(after_epoch=kill))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_sweep_goes_on_without_a_repeated_run(tmp_path, lab):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(lab.folder)], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert [run.status for run in lab.runs] == ["done", "done", "killed"]
    trained = []
    sweep = dict(lr=[0.001, 0.003, 0.01, 0.03])
    learn = wave_learner()
    found = learn.sweep(
        sweep, 4, prune=False, name="killed", cbs=cbnb.Callback(before_fit=lambda cb: trained.append(cb.learn.opt.param_groups[0]["lr"]))
    )
    assert len(trained) == 2 and [run.status for run in lab.runs] == ["done", "done", "killed", "done", "done"]
    whole = wave_learner().sweep(sweep, 4, prune=False, name="other")
    assert [row["valid_loss"] for row in found.rows] == [row["valid_loss"] for row in whole.rows]
    assert found.learner().validate()[0] == pytest.approx(whole.best_value, rel=1e-6)  # also if the best run was before the kill
    once_more = wave_learner().sweep(sweep, 4, prune=False, name="killed")
    assert len(lab) == 9 and once_more.rows == found.rows and once_more.states is not None
    assert len(wave_learner().sweep(sweep, 3, n=1, name="killed")) == 1 and len(lab) == 10  # of another length


def test_pruned_runs_of_the_lab_book_count_for_the_later_ones(lab):
    whole = wave_learner().sweep(GRID, 9, n=12, name="whole")
    wave_learner().sweep(GRID, 9, n=12, name="parts", budget=sum(row["steps"] for row in whole.rows[:5]))
    n = len(lab)
    parts = wave_learner().sweep(GRID, 9, n=12, name="parts")
    assert len(lab) == n + 7 and "pruned" in {row["status"] for row in whole.rows[:5]}
    assert [{**row, "time": 0} for row in parts.rows] == [{**row, "time": 0} for row in whole.rows]
    assert lab[-1].settings["sweep"] == "parts"


def test_the_lab_book_says_pruned_as_the_sweep_does(lab):
    found = wave_learner().sweep(GRID, 9, n=5)
    assert [run.status for run in lab.runs] == [row["status"] for row in found.rows] and "pruned" in {run.status for run in lab.runs}


def test_the_cell_of_a_sweep_has_its_sentence_once(monkeypatch):
    """The output of the running sweep ends with it, and the table of the last line of the same cell leaves it out."""
    cell = SimpleNamespace(execution_count=3)
    monkeypatch.setattr(sweep_runs, "shell", lambda: cell)
    found = line_learner(n=4).sweep(dict(lr=[0.1, 0.01]), 1)
    sentence = found._words()
    assert sentence not in found._repr_html_()
    cell.execution_count = 4
    assert sentence in found._repr_html_()


def test_ctrl_c_returns_what_was_found():
    def stop(cb):
        if cb.recorder.last().settings["lr"] == 0.1 and cb.epoch == 1:
            raise KeyboardInterrupt

    learn = line_learner(n=8)
    found = learn.sweep(dict(lr=[0.1]), 3, cbs=cbnb.Callback(before_epoch=stop))
    assert found.why == "by hand" and found.rows[0]["status"] == "interrupted" and not learn.running
    assert learn.model.a == 0 and "ended early: by hand" in repr(found)
    with pytest.raises(ValueError, match="so there is no best run: 1 run .1 interrupted.*by hand$"):
        found.best


def test_a_budget_ends_the_sweep_between_two_runs():
    found = wave_learner().sweep(dict(lr=[0.001, 0.01, 0.1]), 2, budget=100, prune=False)
    assert found.n_batches == 128 and found.why == "budget=100"  # 32 batches an epoch


def test_a_diverged_run_is_a_row_and_never_the_best(capsys):
    found = line_learner(n=8).sweep(dict(lr=[0.01, 1e30]), 3, prune=False)
    assert found.best == dict(lr=0.01) and "the loss is" not in capsys.readouterr().out
    assert "nan" in repr(found) or "inf" in repr(found) or "–" in repr(found)
    json.loads(packed_texts(found.html(live=True))[1])


def test_a_metric_is_maximized():
    learn = wave_learner(metrics=lambda pred, y: -(pred - y).abs().mean())
    learn.metrics[0].name = "score"
    found = learn.sweep(dict(lr=[0.001, 0.03]), 2, monitor="score")
    assert found.best == dict(lr=0.03) and found.best_value == max(row["score"] for row in found.rows)


def test_markup_is_shown_as_text():
    found = wave_learner().sweep(dict(valid_every=[1, 2], lr=[0.01]), 2, name=MARKUP)
    found.rows[0]["lr"] = MARKUP
    for live in (False, True):
        assert "<script>alert" not in found.html(live)
    figure = json.loads(packed_texts(found.html(live=True))[1])
    assert "<script>" not in figure["svg"] and "&lt;script&gt"[:8] in figure["svg"]


def test_what_cannot_be_swept_is_said_before_the_first_run():
    learn = wave_learner()
    with pytest.raises(ValueError, match="did you mean lr="):
        learn.sweep(dict(lrr=[0.1]), 2)
    with pytest.raises(ValueError, match="pass n_epoch"):
        learn.sweep(dict(lr=[0.1]))
    with pytest.raises(ValueError, match="pass the number of runs, such as n=20"):
        learn.sweep(dict(lr=(0.1, 1.0)), 2)
    with pytest.raises(ValueError, match="several values that the table would show as"):
        Space(dict(loss=[nn.MSELoss(), nn.MSELoss()]))
    with pytest.raises(ValueError, match="has no values"):
        Space(dict(lr=[]))
    with pytest.raises(ValueError, match="'optuna'"):
        learn.sweep(dict(lr=[0.1]), 2, engine="ray")
    with pytest.raises(ValueError, match="sweep cannot watch 'some_loss'; the choices are "):
        learn.sweep(dict(lr=[0.1]), 2, monitor="some_loss")
    assert learn.n_trained() == 0


def test_whole_ranges_and_the_order_of_a_grid():
    space = Space(dict(width=(8, 64), lr=(1e-4, 1e-1, "log"), p=(0.0, 0.5)))
    points = Grid(space, 50, 3, True).points
    assert points == Grid(space, 50, 3, True).points
    assert all(isinstance(p["width"], int) and 8 <= p["width"] <= 64 and 1e-4 <= p["lr"] <= 1e-1 and 0 <= p["p"] <= 0.5 for p in points)
    assert sum(p["lr"] < 10**-2.5 for p in points) in range(15, 36)  # half of a range of rates is below its geometric mean


def test_the_first_runs_are_far_from_each_other_and_the_next_ones_near_the_best():
    space = dict(lr=(1e-4, 1e-1, "log"), opt=["adam", "sgd"], width=[16, 64, 256])
    grid = Grid(Space(space), 40, 0, True)
    points = [grid.point(i) for i in range(5)]
    assert {p["opt"] for p in points} == {"adam", "sgd"} and {p["width"] for p in points} == {16, 64, 256}
    for i, p in enumerate(points):
        grid.falls_behind(i, 3, 9, abs(math.log(p["lr"] / 1e-2)))
    best = min(points, key=lambda p: abs(math.log(p["lr"] / 1e-2)))
    near = grid.point(5)
    assert near["opt"] == best["opt"] and near["width"] == best["width"] and grid.point(5) == near
    everything = Grid(Space(dict(lr=[0.1, 0.2], wd=[0.0, 0.1])), None, 0, True)
    assert len({tuple(everything.point(i).items()) for i in range(4)}) == 4


def test_optuna_chooses_prunes_and_goes_on(lab):
    optuna = pytest.importorskip("optuna")
    space = dict(lr=(1e-4, 1e-1, "log"), wd=[0.0, 0.1])
    whole = wave_learner().sweep(space, 9, n=12, engine="optuna", name="whole")
    assert "pruned" in {row["status"] for row in whole.rows} and whole.best_value < 0.05
    wave_learner().sweep(space, 9, n=12, engine="optuna", name="parts", budget=sum(row["steps"] for row in whole.rows[:5]))
    n = len(lab)
    parts = wave_learner().sweep(space, 9, n=12, engine="optuna", name="parts")
    assert [{**row, "time": 0} for row in parts.rows] == [{**row, "time": 0} for row in whole.rows]
    assert len(lab) == n + len(whole) - 5
    found = wave_learner().sweep(space, 3, n=3, engine="optuna", prune=optuna.pruners.MedianPruner(n_startup_trials=1))
    assert len(found) == 3
    few = wave_learner().sweep(dict(wd=[0.0, 0.1]), 1, n=5, engine="optuna")  # of two settings
    assert len(few) + few.n_repeated == 5 and "of settings left out" in repr(few)


@pytest.mark.parametrize("recorder", [cbnb.Recorder, lambda: cbnb.Recorder()])
def test_a_recorder_may_come_with_the_call(recorder):
    """A learner without a recorder was refused, although the sweep had one among its callbacks."""
    learn = line_learner(default_cbs=False)
    learn.remove_cb(learn.recorder)
    with pytest.raises(ValueError, match=r"pass cbs=Recorder\(\) to sweep"):
        learn.sweep(dict(lr=[0.1]), 1)
    found = learn.sweep(dict(lr=[0.1, 0.2]), 1, cbs=recorder if isinstance(recorder, type) else recorder())
    assert found.best == dict(lr=0.2) and len(found.rows) == 2 and not hasattr(learn, "recorder")


def test_the_number_of_epochs_of_a_run_may_change_after_its_first_rung():
    halving = sweep_runs.Halving(10)
    assert [halving.falls_behind(3, 9, value) for value in (3.0, 2.0, 1.0, 2.5)] == [False, False, False, True]


def test_an_epoch_without_validation_is_not_compared():
    """It had no score, which ended every run but the first at the first comparison."""
    found = wave_learner().sweep(dict(lr=[0.01, 0.011], valid_every=[4]), 8)
    assert [row["status"] for row in found.rows] == ["done", "done"]


def test_a_sweep_watches_a_column_that_a_callback_logs():
    class LogScore(cbnb.Callback):
        def after_batch(self):
            if self.training:
                self.learn.log(score=1.0)

    assert [row["score"] for row in line_learner().sweep(dict(lr=[0.1, 0.01]), 2, monitor="score", cbs=LogScore).rows] == [1.0, 1.0]


def test_a_method_with_any_keywords_is_swept():
    class Mine(cbnb.Learner):
        def my_fit(self, n_epoch, lr=0.1, **kw):
            return self.fit(n_epoch, lr, **kw)

    one = line_learner()
    learn = Mine(one.dls, one.model, one.loss_func)
    assert len(learn.sweep(dict(lr=[0.1, 0.01]), 1, method="my_fit")) == 2


def test_two_numbers_and_a_word_are_a_list_unless_the_word_is_near_log():
    assert Space(dict(size=(1, 2, "auto"))).values == dict(size=[1, 2, "auto"])
    with pytest.raises(ValueError, match="a range should be"):
        Space(dict(lr=(1, 2, "Log")))
