"""Schedules before they run: equal to what a fit records, and nothing is touched. Dragging with the mouse is in tests/browser."""

import copy
import json
import math
import random

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.optim import lr_scheduler

import cbnb
import cbnb.display.schedules as schedules
from cbnb import OneCycle, ParamScheduler, SchedCos, SchedExp, SchedLin, TorchScheduler, combine_scheds
from cbnb.display.chart import charts_html
from cbnb.display.schedules import OneCycleView, SchedulePlan, cycle_page, is_scheduler, plot_schedule, schedule_charts, schedule_plan
from helpers import line_learner


def two_groups(**kwargs):
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.linspace(-1, 1, 40)[:, None]
    batches = list(zip(x.split(8), x.split(8)))
    return cbnb.Learner(
        cbnb.DataLoaders(batches, batches[:1], device="cpu"),
        net,
        nn.MSELoss(),
        splitter=lambda m: [m[0].parameters(), m[2].parameters()],
        default_cbs=False,
        cbs=[cbnb.TrainEvalCallback, cbnb.Recorder],
        **kwargs,
    )


class Seen(cbnb.Callback):
    """Notes rate and momentum of all groups."""

    order, run_valid = 70, False

    def __init__(self):
        self.lrs, self.momenta = [], []

    def before_batch(self):
        groups = self.learn.opt.param_groups
        self.lrs.append([float(g["lr"]) for g in groups])
        self.momenta.append([float(g["betas"][0] if "betas" in g else g.get("momentum", 0)) for g in groups])


FITS = [
    ("fit", (3,), {}),
    ("fit", (2,), dict(lr=slice(1e-3, 1e-2), wd=0.1)),
    ("fit_one_cycle", (3,), {}),
    ("fit_one_cycle", (4, 0.1), dict(pct_start=0.4, div=10, div_final=1e3, moms=(0.9, 0.8, 0.9))),
    ("fit_one_cycle", (3, [1e-3, 1e-2]), dict(start_epoch=1)),
    ("fit_flat_cos", (4,), dict(lr=0.1)),
    ("fit_sgdr", (2, 1), dict(lr_max=slice(1e-3, 1e-1))),
    ("fine_tune", (2,), dict(base_lr=0.05, freeze_epochs=2)),
]


@pytest.mark.parametrize("method, args, kwargs", FITS, ids=[f"{m}{i}" for i, (m, *_) in enumerate(FITS)])
@pytest.mark.parametrize("opt", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)], ids=["adamw", "sgd"])
def test_a_plan_has_the_values_of_the_fit(method, args, kwargs, opt):
    learn = two_groups(opt_func=opt)
    plan = learn.planned_schedule(*args, method=method, **kwargs)
    assert learn.opt is None and len(learn.recorder.history) == 0
    seen = Seen()
    learn.add_cb(seen)
    getattr(learn, method)(*args, **kwargs)
    assert plan.values["lr"] == [list(group) for group in zip(*seen.lrs)]
    assert plan.values["mom"] == [list(group) for group in zip(*seen.momenta)]
    recorded = [lr for run in learn.recorder.history for lr in run.hyper("lr")]
    assert plan.values["lr"][-1] == recorded and plan.n_steps == len(recorded)
    starts = [0]
    for run in learn.recorder.history:
        starts.append(starts[-1] + run.n_steps)
    assert plan.borders == starts[1:-1]
    assert plan.epochs == [(start + step, epoch) for start, run in zip(starts, learn.recorder.history) for step, epoch in run.ends()]


def test_a_plan_of_a_learner_that_has_trained():
    learn = two_groups()
    learn.fit(1)
    with learn.added_cbs(ParamScheduler({"wd": SchedLin(0.0, 0.1)})):
        plan = learn.planned_schedule(2, lr_max=0.3)
        learn.add_cb(seen := Seen())
        learn.fit_one_cycle(2, 0.3)
    assert plan.values["lr"] == [list(group) for group in zip(*seen.lrs)]
    assert plan.values["wd"][0] == pytest.approx([0.1 * i / 10 for i in range(10)])


def state(learn):
    opt = learn.opt.state_dict() if learn.opt else None
    grads = [p.requires_grad for p in learn.model.parameters()]
    own = {k: v for k, v in vars(learn).items() if k not in ("callbacks", "recorder", "model", "dls", "opt")}
    return copy.deepcopy((learn.model.state_dict(), opt, grads, [str(cb) for cb in learn.cbs])), {k: id(v) for k, v in own.items()}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("method, args, kwargs", FITS)
def test_nothing_is_touched(method, args, kwargs, trained, capsys):
    learn = two_groups(metrics=cbnb.MAE())
    if trained:
        learn.logger = lambda row: None
        learn.fit(1)
        learn.freeze()
    heard = []
    learn.add_cb(cbnb.Callback(before_fit=lambda cb: heard.append("fit"), before_batch=lambda cb: heard.append("batch")))
    before, random_state = state(learn), (random.getstate(), torch.get_rng_state())
    learn.planned_schedule(*args, method=method, **kwargs)
    after = state(learn)
    assert before[1] == after[1] and heard == [] and before[0][2:] == after[0][2:]
    for a, b in zip(before[0][0].values(), after[0][0].values()):
        assert torch.equal(a, b)
    assert str(before[0][1]) == str(after[0][1])
    assert random_state[0] == random.getstate() and torch.equal(random_state[1], torch.get_rng_state())
    assert capsys.readouterr().out == "" and not learn.running


def test_schedulers_of_torch():
    learn = line_learner(n=5, lr=0.1)
    for every in ("batch", "epoch"):
        cb = TorchScheduler(lambda opt: lr_scheduler.ExponentialLR(opt, 0.7), every)
        plan = learn.planned_schedule(3, method="fit", cbs=cb, start_epoch=1)
        with learn.no_logging():
            learn.fit(3, cbs=cb, start_epoch=1)
        assert plan.values["lr"] == [list(learn.recorder.lrs)] and cb.scheduler is None
    steps = TorchScheduler(lambda opt, n: lr_scheduler.OneCycleLR(opt, 0.5, total_steps=n + 1))
    plan = learn.planned_schedule(2, method="fit", cbs=steps)
    learn.logger = lambda row: None
    learn.fit(2, cbs=steps)
    assert plan.values["lr"] == [list(learn.recorder.lrs)]
    with pytest.raises(ValueError, match="would both set the learning rate"):
        learn.planned_schedule(2, cbs=steps)


def test_a_scheduler_of_torch_alone():
    step = TorchScheduler(lambda opt: lr_scheduler.StepLR(opt, 3, gamma=0.1), "epoch")
    assert schedule_plan(step, 7, lr=1).values["lr"] == [pytest.approx([1] * 3 + [0.1] * 3 + [0.01])]
    fig = step.plot(5, lr=0.5, return_fig=True)
    assert list(fig.axes[0].lines[0].get_ydata()) == pytest.approx([0.5] * 3 + [0.05] * 2)
    plateau = TorchScheduler(lambda opt: lr_scheduler.ReduceLROnPlateau(opt), monitor="valid_loss")
    with pytest.raises(ValueError, match="depends on valid_loss, which is not known"):
        plateau.plot()
    learn = line_learner(n=4, lr=0.1)
    assert learn.planned_schedule(2, method="fit", cbs=plateau).values["lr"] == [[0.1] * 8]  # as if it never acts


def test_callbacks_of_your_own():
    class Doubles(cbnb.Callback):
        schedules = True

        def before_batch(self):
            for g in self.learn.opt.param_groups:
                g["lr"] *= 2

    class Bigger(OneCycle):
        def before_batch(self):
            super().before_batch()
            self.learn.opt.param_groups[0]["lr"] += 1

    learn = line_learner(n=3, lr=0.1)
    plan = learn.planned_schedule(1, method="fit", cbs=Doubles)
    assert plan.values["lr"] == [pytest.approx([0.2, 0.4, 0.8])]
    assert learn.planned_schedule(1, method="fit", cbs=Bigger(0.1)).values["lr"][0][0] == pytest.approx(1.004)
    assert is_scheduler(Doubles()) and not is_scheduler(cbnb.GradientClip(1.0)) and not is_scheduler(object.__new__(cbnb.Recorder))


def test_a_method_of_your_own():
    class Warm(cbnb.Learner):
        def fit_one_cycle(self, n_epoch, **kwargs):
            self.lr = 0.5
            self.fit(1, lr=1e-4)
            super().fit_one_cycle(n_epoch, **kwargs)

    base = line_learner(n=4, lr=0.1)
    learn = Warm(base.dls, base.model, base.loss_func, torch.optim.SGD, lr=0.1, default_cbs=False)
    plan = learn.planned_schedule(2)
    assert plan.values["lr"][0][:4] == [1e-4] * 4 and max(plan.values["lr"][0][4:]) == 0.5 and plan.borders == [4]
    assert learn.lr == 0.1


def test_an_optimizer_that_was_assigned_or_is_shared():
    learn = line_learner(n=4, lr=0.1)
    learn.opt = torch.optim.SGD(learn.model.parameters(), lr=0.7)
    before = learn.lr
    plan = learn.planned_schedule(1, method="fit")
    assert plan.values["lr"] == [[0.7] * 4] and learn.lr == before and learn.opt.param_groups[0]["lr"] == 0.7
    learn = line_learner(n=4)
    both = cbnb.MultiOptimizer([torch.optim.SGD([p], lr=0.2) for p in learn.model.parameters()])
    learn = cbnb.Learner(learn.dls, learn.model, learn.loss_func, both, lr=0.2, default_cbs=False)
    assert learn.planned_schedule(1, method="fit").values["lr"] == [[0.2] * 4] * 2
    tensor = torch.optim.AdamW(learn.model.parameters(), lr=torch.tensor(0.3), capturable=False, foreach=False)
    learn = cbnb.Learner(learn.dls, learn.model, learn.loss_func, tensor, default_cbs=False)
    learn.planned_schedule(2)
    assert float(tensor.param_groups[0]["lr"]) == pytest.approx(0.3)


def test_what_cannot_be_planned():
    learn = line_learner(n=4)
    with pytest.raises(ValueError, match="method='fit_two_cycles'"):
        learn.plot_schedule(2, method="fit_two_cycles")
    with pytest.raises(ValueError, match="started no fit"):
        learn.plot_schedule(method="unfreeze")
    with pytest.raises(TypeError, match="n_epoch"):
        learn.plot_schedule()
    with pytest.raises(ValueError, match="pct_start=2 should be between 0 and 1"):
        learn.plot_schedule(2, pct_start=2)
    endless = line_learner(n=4)
    endless.dls = cbnb.DataLoaders(cbnb.Batches(lambda: iter(endless.dls.train)), device="cpu")
    with pytest.raises(ValueError, match="how many batches an epoch has"):
        endless.plot_schedule(2, method="fit")
    for wrong in (0.1, "cos", None, cbnb.GradientClip(1.0)):
        with pytest.raises(TypeError, match="is not a schedule"):
            plot_schedule(wrong)


# --- schedules by themselves ---


@pytest.mark.parametrize(
    "what", [SchedCos(0.1, 0.0), combine_scheds([0.5, 0.5], [SchedLin(0, 1), SchedExp(1, 0.1)]), lambda pct: pct**2, {"lr": SchedLin(0, 1)}]
)
def test_a_function_is_called_at_even_steps(what):
    plan = schedule_plan(what, 8)
    [(name, [values])] = plan.values.items()
    sched = what[name] if isinstance(what, dict) else what
    assert values == [sched(i / 8) for i in range(8)] and plan.xs() == [i / 8 for i in range(8)]
    fig = plot_schedule(what, 8, return_fig=True)
    assert list(fig.axes[0].lines[0].get_ydata()) == values
    axes = fig.axes[0]
    assert plot_schedule(what, 8, ax=axes) is axes and plot_schedule(what) is None


def test_groups_have_lines_of_their_own():
    page = charts_html(schedule_charts(schedule_plan({"lr": SchedLin([0.1, 0.2, 0.1], 0.0)}, 4)))
    assert "groups 0, 2" in page and "group 1" in page
    fig = plot_schedule(SchedLin([0.1, 0.2], 0.0), return_fig=True)
    assert [line.get_label() for line in fig.axes[0].lines] == ["group 0", "group 1"]
    tensors = schedule_plan(lambda pct: torch.tensor([pct, 1.0]), 2)
    assert tensors.values == {"value": [[0.0, 0.5], [1.0, 1.0]]}


def test_two_panels_do_not_fit_into_one_axes():
    both = ParamScheduler({"lr": SchedLin(0, 1), "mom": SchedLin(1, 0)})
    axes = both.plot(4, return_fig=True).axes
    assert len(axes) == 2
    with pytest.raises(ValueError, match=r"2 charts \(Learning rate, Momentum\) do not fit into one `ax`"):
        both.plot(4, ax=axes[0])


def test_a_long_plan_is_drawn_thinned():
    learn = line_learner(n=2)
    plan = SchedulePlan("long", {"lr": [[math.sin(i / 1e4) + 2 for i in range(100_000)]]}, [(99_999, 0)])
    assert len(charts_html(schedule_charts(plan))) < 60_000
    assert learn.plot_schedule(2) is None and isinstance(learn.plot_schedule(2, return_fig=True), Figure)


# --- one cycle ---


def test_the_call_follows_the_controls():
    view = OneCycle(lr_max=3e-3, mom=(0.9, 0.8, 0.9)).plot(widget=True)
    call = "learn.fit_one_cycle(n_epoch, lr_max=0.003, pct_start=0.25, div=25, moms=(0.9, 0.8, 0.9))"
    assert view.call() == call and call in view.chart.value and "top 0.003" in view.chart.value
    view.lr_max.value, view.div.value, view.div_final.value, view.pct_start.value = 0.5, 10, 1e3, 0.5
    assert "start 0.05" in view.chart.value and "end 5e-4" in view.chart.value or "end 0.0005" in view.chart.value
    learn = line_learner(n=10, opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))
    with learn.no_logging():
        eval(view.call(), dict(learn=learn, n_epoch=2))
    assert max(learn.recorder.lrs) == pytest.approx(0.5) and learn.recorder.lrs[0] == pytest.approx(0.05)
    for pct in (0.0, 1.0):
        view.pct_start.value = pct
        assert "nan" not in view.chart.value
    with pytest.raises(ValueError, match="lr_max is not known"):
        OneCycle().plot(widget=True)
    assert OneCycle(lr_max=slice(1e-4, 1e-2)).plot(widget=True).lr_max.value == pytest.approx(1e-2)


def test_the_view_of_a_cycle():
    cycle = OneCycle(0.01, div=10, div_final=1e3, pct_start=0.4, mom=(0.9, 0.8, 0.9))
    view = OneCycleView(cycle, n=5)
    call = "learn.fit_one_cycle(n_epoch, lr_max=0.01, pct_start=0.4, div=10, div_final=1000, moms=(0.9, 0.8, 0.9))"
    words = f"One-cycle schedule, learning rate: start 0.001, top 0.01, end 1e-5; {call}"
    assert view.call() == call and view.words == [words]
    fig, text = view.picture()
    assert text == words and len(fig.axes[0].lines[0].get_xdata()) == 5
    assert (view.lr_max.min, view.lr_max.max, view.div.min, view.div.max) == pytest.approx((-6, 1, 0, 3), abs=0.02)
    assert (view.div_final.min, view.div_final.max) == pytest.approx((0, 8), abs=0.02)
    assert (view.pct_start.min, view.pct_start.max, view.pct_start.step) == (0, 1, 0.01)
    other = OneCycleView(OneCycle(2e-5, div_final=2e5)).call()
    assert other.startswith("learn.fit_one_cycle(n_epoch, lr_max=2e-5, pct_start=0.25, div=25, div_final=2e5")


def test_python_follows_the_page_and_the_page_python():
    view = OneCycle(0.01).plot(widget=True)
    sent = []
    view.relay.observe(lambda change: sent.append(change["new"]), "cycle")
    view.relay.cycle = dict(lr_max=0.5, pct_start=0.4, div=4, div_final=100)
    assert view.call() == "learn.fit_one_cycle(n_epoch, lr_max=0.5, pct_start=0.4, div=4, div_final=100)"
    assert (view.one_cycle.lr_max, view.cycle().pct_start) == (0.5, 0.4)
    view.pct_start.value = 0.1
    assert sent[-1]["pct_start"] == 0.1


def test_without_anywidget_the_view_is_there(monkeypatch):
    monkeypatch.setattr(schedules, "_relay", lambda: None)
    view = OneCycle(0.01).plot(widget=True)
    view.lr_max.value = 0.1
    assert view.relay is None and "lr_max=0.1" in view.call()
    view.show()  # outside of notebooks nothing is shown


def test_the_page_of_a_cycle(monkeypatch):
    cycle = OneCycle(0.02, pct_start=0.3)
    still = cycle_page(cycle)
    assert "<script" not in still and "<img" in still and "learn.fit_one_cycle(n_epoch, lr_max=0.02, pct_start=0.3, div=25)" in still
    made = []
    monkeypatch.setattr(schedules, "scripted", lambda still, code, data: made.append((code, json.loads(json.dumps(data)))) or still)
    cycle_page(cycle, (160, 5), "here")
    [(code, data)] = made
    assert "cbnb-cycle" in code and data["slot"] == "here" and data["steps"] == dict(n=160, n_epoch=5)
    assert data["cycle"] == dict(lr_max=0.02, div=25, div_final=1e5, pct_start=0.3, moms=None) and data["moms"] == [0.95, 0.85, 0.95]
    monkeypatch.undo()
    monkeypatch.setattr("cbnb.display.page_script.runs_scripts", lambda: True)
    assert len(cycle_page(cycle)) < 30_000


@pytest.mark.parametrize(
    "kwargs, draggable",
    [({}, True), (dict(lr_max=0.2, div=3), True), (dict(wd=0.1), False), (dict(cbs=ParamScheduler({"wd": SchedLin(0, 1)})), False)],
)
def test_a_planned_cycle_can_be_dragged_if_there_is_nothing_else(kwargs, draggable, monkeypatch):
    learn = two_groups()
    pages = []
    for module in ("schedules", "chart"):
        monkeypatch.setattr(f"cbnb.display.{module}.display_html", lambda page, words: pages.append((page, words)))
    learn.plot_schedule(3, **kwargs)
    [(page, words)] = pages
    assert ("One-cycle schedule" in words) == draggable and ("fit_one_cycle(3, " in page) == draggable or not draggable
    learn.plot_schedule(3, lr_max=slice(1e-3, 1e-2))
    assert "One-cycle" not in pages[-1][1]


def test_a_figure_if_one_is_asked_for():
    assert isinstance(OneCycle(0.1).plot(return_fig=True), Figure) and OneCycle(0.1).plot() is None
    assert OneCycle(0.1).plot(widget=False) is None
    axes = OneCycle(0.1).plot(return_fig=True).axes[0]
    assert OneCycle(0.1).plot(ax=axes) is axes
    with pytest.raises(ValueError, match="widget=True shows a widget"):
        OneCycle(0.1).plot(widget=True, return_fig=True)
