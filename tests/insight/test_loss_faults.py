"""Faults that the losses of a running fit show: each is found once, at a step that does not depend on when one looks, and noise is not one."""

import copy
import math
import random
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cbnb
from cbnb.insight.loss_faults import SHORT, SMALL, LossWatch, findings_of
from helpers import line_learner

X = torch.randn(640, 6, generator=torch.Generator().manual_seed(0))
CLASSES = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def learner(x=X, y=CLASSES, lr=0.1, loss=None, opt_func=torch.optim.SGD, **more):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    learn = cbnb.Learner(cbnb.DataLoaders(loader, device="cpu"), model, loss or nn.CrossEntropyLoss(), lr=lr, opt_func=opt_func, **more)
    learn.remove_cb(cbnb.ProgressCallback)
    learn.logger = lambda row: None
    return learn


def codes(losses, planned=None, guess=lambda: None):
    return [finding.code for _, finding in LossWatch().look(losses, planned, guess)]


FALLING = [1 / (1 + step / 20) for step in range(200)]


@pytest.mark.parametrize(
    "code, losses, healthy",
    [
        ("R1", [*FALLING, *[math.nan] * 10], [*FALLING, math.nan, *[0.1] * 9]),
        ("R2", [*FALLING, *(0.1 * 1.05**i for i in range(80))], [*FALLING, *(0.1 * 1.005**i for i in range(80))]),
        ("R3", [2.3] * 200, [2.3 - 0.002 * i for i in range(200)]),
        ("R4", [1 + 0.45 * math.sin(i / 12) for i in range(400)], [1 + 0.3 * math.sin(i / 12) for i in range(400)]),
        (
            "R8",
            [1.0] * 20 + [0.1 + 2 * (i in (50, 90, 130)) for i in range(180)],
            [1.0] * 20 + [0.1 + 2 * (i in (50, 90)) for i in range(180)],
        ),
    ],
)
def test_each_code_and_its_nearest_neighbor(code, losses, healthy):
    assert codes(losses, len(losses))[:1] == [code] and codes(healthy, len(healthy)) == []


def test_noise_is_no_fault():
    """Lognormal losses and squares of normal ones, as with batches of one item."""
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        found += codes([rng.lognormvariate(0, 1.5) / (1 + i / 300) for i in range(2000)])
        found += codes([rng.gauss(0, 1) ** 2 for i in range(2000)])
        found += codes([rng.gauss(-5, 3) for i in range(2000)])  # negative losses, too
    assert found == []


def test_a_loss_around_zero_has_no_scale():
    """The loss of a policy gradient changes its sign. One that runs away is found all the same."""
    around = [0.05 * math.sin(i / 7) + 0.03 * math.sin(i / 40) for i in range(600)]
    assert "R2" not in codes(around) and "R2" in codes([*around, *(0.1 * 1.05**i for i in range(60))])


def test_the_step_does_not_depend_on_when_one_looks():
    losses = [*FALLING, *(0.1 * 1.05**i for i in range(80))]
    at_once, watch = list(LossWatch().look(losses)), LossWatch()
    assert [each for n in range(0, len(losses) + 1, 3) for each in watch.look(losses[:n])] == at_once


@pytest.mark.parametrize("n_epoch", [2, 4, 8])
def test_a_short_fit_that_diverges_says_so(n_epoch):
    """A fit of fewer than 50 batches was looked at in blocks of ten, and most rises were not seen: 12 to 48 batches here."""
    x, y = X[:96], CLASSES[:96]
    for lr, found in ((20.0, ["R2"]), (0.1, [])):
        learn = learner(x, y)
        learn.dls = cbnb.DataLoaders(DataLoader(TensorDataset(x, y), 16, shuffle=True), device="cpu")
        learn.fit_one_cycle(n_epoch, lr)
        assert learn.findings.codes == found and len(learn.recorder.last().losses) == 6 * n_epoch < SHORT
        if found:
            (event,) = learn.recorder.last().events
            assert "rewind" in event["fix"] and event["step"] < 6 * n_epoch


def test_a_short_fit_at_a_rate_that_is_too_high_has_losses_of_zero_between_large_ones():
    losses = [1.1, 1.0, 0.9, 0.8, 0.4, 9.0, 0.0, 0.0, 0.0, 30.0, 8.0, 12.0]
    for size, found in ((SMALL, ["R2"]), (10, [])):
        assert [finding.code for _, finding in LossWatch(size).look(losses)] == found
    watch = LossWatch(SMALL)
    assert [each for n in range(13) for each in watch.look(losses[:n])] == list(LossWatch(SMALL).look(losses))


def test_noise_of_a_short_fit_is_no_fault():
    """48 losses of batches of 16 items with normal errors, and lognormal ones, that fall or stay."""
    found, rng = [], random.Random(0)
    for _ in range(100):
        found += [*LossWatch(SMALL).look([sum(rng.gauss(0, 1) ** 2 for _ in range(16)) / 16 * (0.02 + 0.9**i) for i in range(48)])]
        found += [*LossWatch(SMALL).look([rng.lognormvariate(0, 0.5) for _ in range(48)])]
    assert found == []


def test_a_fit_without_faults_has_no_findings():
    learn = learner()
    learn.fit(10)
    assert learn.findings.ok and learn.findings.codes == [] and learn.recorder.history[0].events == []


@pytest.mark.parametrize(
    "code, more",
    [
        ("R2", dict(opt_func=partial(torch.optim.SGD, maximize=True))),
        ("R3", dict(lr=1e-7)),
        ("R3", dict(y=CLASSES[torch.randperm(640, generator=torch.Generator().manual_seed(1))])),
    ],
)
def test_faults_of_real_fits(code, more):
    learn = learner(**more)
    learn.fit(10)
    assert learn.findings.codes[0] == code
    assert len(learn.findings) == len({f.code for f in learn.findings})  # each once


def test_findings_go_with_the_history(tmp_path):
    learn = learner(lr=1e-7)
    learn.fit(10)
    assert learn.findings.codes == ["R3"]
    run = learn.recorder.history[0]
    data = cbnb.History.from_json(learn.recorder.history.to_json())[0]
    assert data.events == run.events and findings_of(data).codes == ["R3"]
    assert copy.deepcopy(learn).findings.codes == ["R3"]
    state = learn.recorder.history.state_dict()
    other = cbnb.History()
    other.load_state_dict(state)
    assert findings_of(other[0]).codes == ["R3"]
    learn.rewind()
    assert learn.findings.codes == [] and len(learn.recorder.history) == 0


def test_a_step_that_updates_by_itself_may_have_a_loss_that_does_not_fall():
    learn = learner(lr=1e-7)
    learn.train_step = cbnb.UpdateStep(lambda x, y: nn.functional.cross_entropy(learn.model(x), y).detach())
    learn.fit(10)
    assert learn.findings.codes == []


def test_a_line_in_a_terminal_and_in_the_output_once(capsys):
    from cbnb.display.front_end import display_as

    learn = learner(lr=1e-7)
    learn.logger = print
    learn.add_cb(cbnb.ProgressCallback)
    with display_as("lines"):
        learn.fit(10)
    lines = [line for line in capsys.readouterr().out.splitlines() if "not-learning" in line]
    assert len(lines) == 1 and lines[0].startswith("step 99: not-learning: ") and lines[0].endswith("Fix: learn.check()")


def test_the_page_of_a_fit_has_the_mark_and_the_line(monkeypatch):
    from cbnb.display.chart import still_svg
    from cbnb.display.progress import Chart, fit_page, loss_lines, losses_layout

    learn = learner(lr=1e-7)
    learn.fit(10)
    run = learn.recorder.history[0]
    page = fit_page(["epoch"], [[0]], "done", run)
    assert page["text/html"].count("<p>step 99: not-learning") == 1 and page["text/plain"].count("not-learning") == 1
    svg = still_svg(Chart(loss_lines(run), **losses_layout(run)))
    assert ">!</text>" in svg


def test_targets_of_a_batch_are_not_kept_for_ever():
    from cbnb.insight.loss_faults import _watched

    learn = line_learner()
    learn.fit(60)
    assert len(_watched[learn.recorder.history[-1]].targets) <= 50


def panel_rows(monkeypatch):
    """Show panels without a browser; return a function that finds the lines with buttons in the last panel, and the panels."""
    from cbnb.display import dashboard

    class Hands:
        def __init__(self, *widgets): ...
        def route(self, *widgets): ...
        def close(self): ...
        def __bool__(self):
            return True

        def __call__(self):
            return 0

    panels = []

    class Made(dashboard.Panel):
        def __init__(self, table):
            super().__init__(table)
            self.box._view_count = 1
            panels.append(self)

    monkeypatch.setattr("cbnb.display.progress.display_mode", lambda: "widgets")
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: None)
    monkeypatch.setattr(dashboard, "Pump", Hands)
    monkeypatch.setattr(dashboard, "Panel", Made)
    rows = lambda: [child for child in panels[-1].main.children if "cbnb-found" in child._dom_classes]
    return rows, panels


def test_the_buttons_beside_a_finding(monkeypatch):
    """In the panel of a running fit: a line once, and buttons. "Take back" stops the fit and undoes it."""
    rows, _ = panel_rows(monkeypatch)
    seen = []

    def click(cb):
        for row in rows()[len(seen) :]:
            seen.append([row.children[0].value, *(button.description for button in row.children[1:])])
            row.children[-1].click()

    learn = learner(lr=1e-7)
    before = copy.deepcopy(learn.model.state_dict())
    learn.logger = print
    learn.add_cb(cbnb.ProgressCallback)
    learn.fit(10, cbs=cbnb.Callback(before_batch=click))
    ((line, *buttons),) = seen
    assert line.startswith("step 99: not-learning") and buttons == ["Stop", "Take back"]
    assert len(learn.recorder.history) == 0 and learn.findings.codes == []  # taken back
    assert all(torch.equal(before[k], v) for k, v in learn.model.state_dict().items())


def test_a_third_of_the_rate_at_a_click(monkeypatch):
    """The button moves the slider, and the batches that follow train with a third of the rate."""
    rows, panels = panel_rows(monkeypatch)
    clicked = []

    def click(cb):
        for row in rows()[: 1 - len(clicked)]:
            (button,) = [button for button in row.children[1:] if button.description == "lr / 3"]
            button.click()
            clicked.append((row.children[0].value, cb.train_iter))

    learn = learner(opt_func=partial(torch.optim.SGD, maximize=True))
    learn.logger = print
    learn.add_cb(cbnb.ProgressCallback)
    learn.fit(10, cbs=cbnb.Callback(before_batch=click))
    ((line, at),) = clicked
    rates = list(learn.recorder.history[0].hypers["lr"])
    assert "diverging" in line and panels[-1].scale.value == pytest.approx(1 / 3)
    assert rates[: at - 1] == [0.1] * (at - 1) and rates[at + 1 :] == pytest.approx([0.1 / 3] * (len(rates) - at - 1)) and at < 90
