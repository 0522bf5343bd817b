"""The benchmark of suggested learning rates: its truth, its training, and that it can be made again."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from processes import python

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "lr_quality")]

import lr_tasks
import lr_training

import lr_quality
import lr_width

TASKS = lr_tasks.TASKS


def bowl(best: float, start: float = 3.0, seeds: int = 3) -> lr_quality.Truth:
    """Loss 1 at 10**best, and one more for each decade beside it; all seeds are alike."""
    losses = 1 + np.abs(lr_quality.GRID - best)
    return lr_quality.Truth(np.tile(losses, (seeds, 1)), start)


def test_truth_of_a_known_curve():
    truth = bowl(-2.0)
    assert math.isclose(truth.best_rate, 1e-2) and math.isclose(truth.best, 1)
    at = np.array([-2.0, -2.09, -2.11, -1.5, math.nan])
    assert truth.in_band(at).tolist() == [True, True, False, False, False]
    assert np.allclose(truth.regret(at[:4]), [0, 0.09, 0.11, 0.5])
    assert truth.ceiling() == 1


def test_truth_with_runs_that_blow_up():
    losses = np.array([[1.0] * 10 + [math.nan] * 11, [1.0] * 15 + [50.0] * 6])
    truth = lr_quality.Truth(losses, 3.0)
    assert truth.losses[-1] == 6, "a loss is at most twice what it was before training"
    assert np.allclose(truth.divergence(lr_quality.GRID[[0, 12, 20]]), [0, 0.5, 1]) and truth.divergence(np.array(5.0)) == 1


def test_sweep_ends_where_it_diverges():
    losses = [1.0] * 60 + [1e3] * 40
    sweep = lr_quality.Sweep(list(np.geomspace(1e-7, 10, 100)), losses, [1.0] * 100, 1.0)
    assert len(sweep.lrs) == len(sweep.losses) == len(sweep.updates) == 65  # the last five are high
    assert len(sweep.smooth) == 61  # four times the best


def test_width_and_sensitivity_of_a_known_curve():
    """Loss 1 at 0.01, and one more for each decade beside it, from 3 before training: 0.1 more on both sides, and a mean of 0.25 over the decade."""
    logs = np.linspace(-3, -1, 9)
    curve = lr_width.Curve(np.tile(1 + np.abs(logs + 2), (3, 1)), 10**logs, 3.0)
    assert math.isclose(curve.limit, 1.1) and abs(curve.width(1.1) - 0.2) < 0.01 and curve.width(0.9) == 0
    assert abs(curve.sensitivity() - 0.25 / (3 - 1)) < 2e-3


def test_the_width_is_stored_for_all_tasks_and_families_are_in_one_half():
    found = lr_width.results()
    assert [len(found[half]["tasks"]) for half in lr_width.HALVES] == [10, 10]
    families = [{name.removeprefix("tune-").split("-")[0] for name in names} for names in lr_width.HALVES.values()]
    assert not families[0] & {name.rstrip("0123456789") for name in families[1]}
    assert found["judge"]["changes"][lr_width.BASE][0][1] == (0, 0, 0)  # the difference to itself


def test_interval_and_difference():
    same = np.full((20, 2), 0.7)
    assert np.allclose(lr_quality.interval(same), 0.7)
    mixed = np.tile([[0.0], [1.0]], (10, 2))
    low, high = lr_quality.interval(mixed)
    assert 0.2 < low < 0.4 and 0.6 < high < 0.8
    some = np.where(np.arange(20)[:, None] < 5, [[0.5, math.nan]], 0.5)
    assert lr_quality.mean_of_lengths(some) == 0.5


def by_hand(name: str, seed: int, rate: float, steps: int) -> float:
    """The validation loss after one cycle, with nothing of the benchmark but its data, batches and initial weights."""
    task, data = TASKS[name], TASKS[name].data()
    model = lr_training.fresh_model(task, seed)
    kinds = dict(sgd=lambda p: torch.optim.SGD(p, lr=1, momentum=0.9), adam=torch.optim.Adam, adamw=torch.optim.AdamW)
    kinds["rmsprop"] = lambda p: torch.optim.RMSprop(p, momentum=0.9)
    opt = kinds[task.opt](model.parameters())
    for i, rows in enumerate(lr_training.batch_order(len(data.x), task.bs, steps, seed)):
        lr, mom = lr_training.combined_cos(0.25, rate / 25, rate, rate * 1e-5), lr_training.combined_cos(0.25, 0.95, 0.85, 0.95)
        opt.param_groups[0]["lr"] = lr(i / steps)
        lr_training.set_momentum(opt.param_groups[0], mom(i / steps))
        loss = lr_training.loss_of(task.loss, model(data.x[rows]), data.y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        return float(F.cross_entropy(model(data.valid_x), data.valid_y))


@pytest.mark.parametrize("name", ["wine-mlp-sgd", "wine-mlpbn-adamw", "digits-mlp-rmsprop", "sentences-attention-adam"])
def test_lanes_train_like_ordinary_loops(name: str):
    seeds, rates, steps = [3, 4], [1e-3, 1e-2], 12
    found = lr_training.run(TASKS[name], seeds, rates, steps)["valid"]
    expected = [[by_hand(name, seed, rate, steps) for rate in rates] for seed in seeds]
    assert np.allclose(found, expected, rtol=2e-3)


def test_fine_tuning_starts_from_trained_weights():
    task = TASKS["tune-digits-mlp-sgd"]
    lanes = lr_training.Lanes(task, [0, 1], 1, 1)
    weights = lr_training.pretrained(task)
    names = list(weights)
    assert all(torch.equal(lanes.params[name][0], weights[name]) for name in names[:-2])
    assert not torch.equal(lanes.params[names[-1]][0], weights[names[-1]]), "the last layer is fresh"


def test_everything_is_recorded():
    tasks = lr_quality.read_own()
    assert [task.name for task in tasks] == list(TASKS)
    assert all(set(lr_quality.LENGTHS) <= set(task.truths) and len(task.sweeps) == 16 for task in tasks)
    assert lr_quality.RECORDED.stat().st_size < 2e6


def test_collected_anew(tmp_path: Path):
    script, data, numbers = ROOT / "bench" / "lr_quality.py", tmp_path / "data.npz", tmp_path / "numbers.json"
    made = subprocess.run(
        [*python(), script, "--collect", "wine-mlp-sgd", "breast-linear-rmsprop", "--quick", "--data", data],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    shown = subprocess.run([*python(), script, "--data", data, "--json", numbers], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "Own tasks: 2 tasks" in shown.stdout and numbers.exists()
    refused = subprocess.run([*python(), script, "--collect", "vine"], capture_output=True, text=True)
    assert refused.returncode and "there is no task 'vine'" in refused.stderr


def test_same_measurements_again():
    """What is stored comes out again: the sweep of a task, up to rounding."""
    task = next(task for task in lr_quality.read_own() if task.name == "wine-mlp-sgd")
    again = lr_training.sweep(TASKS["wine-mlp-sgd"], lr_training.SWEEPS[:2])
    assert np.allclose(again["loss"][0][:60], task.sweeps[0].all_losses[:60], rtol=1e-3)


@pytest.mark.parametrize("name", ["wine-mlp-sgd", "clusters3-mlp-rmsprop"])
def test_lr_find_recommends_what_the_benchmark_scores(name: str):
    """A real `lr_find` on the same task, with the same planned length: its rates lie among those of the recorded sweeps."""
    task, data = TASKS[name], TASKS[name].data()
    recorded = next(recorded for recorded in lr_quality.read_own() if recorded.name == name)
    scored = lr_quality.suggestions(lr_quality.from_sweep, [recorded], 1)[0]
    kinds = dict(sgd=lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9), rmsprop=torch.optim.RMSprop)
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        train = DataLoader(TensorDataset(data.x, data.y), task.bs, shuffle=True, drop_last=True)
        learn = cbnb.Learner(cbnb.DataLoaders(train, device="cpu"), task.model(), torch.nn.CrossEntropyLoss(), kinds[task.opt])
        found.append(math.log10(learn.lr_find(n_epoch=task.steps / len(train), show_plot=False).lr))
    assert abs(np.mean(found) - scored.mean()) < 3 * scored.std() + 0.05
