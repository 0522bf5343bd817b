"""Plots with controls, driven from Python as a person drives them in a notebook."""

import builtins
import html
import math
import re

import pytest
import torch
from matplotlib.figure import Figure

import cbnb.all as cbnb
from cbnb import widgets
from cbnb.chart import number
from cbnb.metrics import AvgMetric, Smoother
from helpers import line_learner


def evil(pred, y):
    return (pred - y).abs().mean()


def fitted(*epochs: int, **kwargs) -> cbnb.Learner:
    learn = line_learner(n=4, **kwargs)
    with learn.no_logging():
        for n in epochs or (3, 2):
            learn.fit(n, lr=0.02)
    return learn


def legends(view) -> list[dict[str, str]]:
    """What the legend of each chart says: name -> value at the step that is read."""
    found = []
    for legend in re.findall(r'<div class="legend">(.*?)</div>', view.chart.value):
        head, *words = re.findall(r'data-t="(.*?)"', legend)
        found.append({"at": head, **{html.unescape(name).strip(): value for name, value in zip(words[::2], words[1::2])}})
    return found


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.98, 0.999])
@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1000])
def test_smoothing_is_that_of_the_recorder(n, beta):
    values = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    expected = list(map(Smoother(beta).add, values.tolist()))
    assert widgets.smoothed(values, beta).tolist() == pytest.approx(expected, rel=1e-10)


def test_losses_at_a_step():
    learn = fitted()
    view = learn.recorder.plot_losses(widget=True)
    first, second = learn.recorder.history.runs
    assert view.step.value == 19 and view.smoothing.value == 0.98
    last = {"at": "step 19", "train, each batch": number(second.raw_losses[-1]), "train, smoothed": number(second.losses[-1])}
    assert legends(view) == [last | {"valid": number(second.epochs[-1]["valid_loss"])}]
    view.step.value = 5
    smooth = Smoother(0.98)
    values = [smooth.add(loss) for loss in first.raw_losses]
    assert legends(view)[0]["train, smoothed"] == number(values[5])
    assert legends(view)[0]["valid"] == number(first.epochs[0]["valid_loss"])
    view.smoothing.value = 0.5
    smooth = Smoother(0.5)
    values = [smooth.add(loss) for loss in first.raw_losses]
    assert legends(view)[0]["train, smoothed"] == number(values[5])
    view.smoothing.value = 0.0
    assert "train, smoothed" not in legends(view)[0] and legends(view)[0]["train, each batch"] == number(first.raw_losses[5])


def test_runs_are_chosen_and_compared():
    learn = fitted()
    first, second = learn.recorder.history.runs
    view = learn.recorder.plot_losses(widget=True)
    view.runs[1].value = False
    assert legends(view)[0]["at"] == "step 11"  # where the last validation of the first run is drawn
    assert legends(view)[0]["valid"] == number(first.epochs[-1]["valid_loss"])
    view.runs[1].value = view.overlay.value = True
    view.step.value = 7
    valid = [number(run.epochs[1]["valid_loss"]) for run in (first, second)]
    assert legends(view)[0]["run 0"] == f"{number(first.losses[7])} · valid {valid[0]}"
    assert legends(view)[0]["run 1"] == f"{number(second.losses[7])} · valid {valid[1]}"
    view.runs[0].value = view.runs[1].value = False
    assert "no values yet" in view.chart.value


def test_skips_and_logarithmic_axes():
    view = fitted().recorder.plot_losses(skip_start=3, skip_end=2, widget=True)
    assert view.skip_start.value == 3 and legends(view)[0]["at"] == "step 17"
    view.step.value = 0
    assert legends(view)[0]["at"] == "step 3"
    view.skip_start.value = 10
    assert legends(view)[0]["at"] == "step 10"
    view.log_x.value = view.log_y.value = True
    assert legends(view)[0]["at"] == "step 10" and "nan" not in view.chart.value.split("</style>")[1]


def test_lr_and_momentum():
    learn = line_learner(n=4, opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))
    with learn.no_logging():
        learn.fit_one_cycle(4, lr_max=0.01)
    view = learn.recorder.plot_lr(widget=True)
    view.step.value = 4
    assert legends(view) == [{"at": "step 4", "learning rate": "0.01"}]
    view.momentum.value = True
    assert legends(view)[1] == {"at": "step 4", "momentum": "0.85"}
    assert fitted(opt_func=torch.optim.Adagrad).recorder.plot_lr(widget=True).momentum is None
    with pytest.raises(ValueError, match="no momentum"):
        fitted(opt_func=torch.optim.Adagrad).recorder.plot_lr(show_moms=True, widget=True)


def test_metrics_and_their_names():
    names = ["<b>mae</b>", "<script>alert(1)</script>"]
    learn = fitted(metrics=[AvgMetric(evil, name) for name in names])
    view = learn.recorder.plot_metrics(widget=True)
    page = view.chart.value
    assert "<b>mae" not in page and "<script>" not in page and "&lt;script&gt;" in page
    assert [name for legend in legends(view) for name in legend if name != "at"] == names
    assert not any(box.description_allow_html for box in view.metrics)
    view.metrics[0].value = False
    assert [list(legend) for legend in legends(view)] == [["at", names[1]]]
    assert legends(learn.recorder.plot_metrics(skip_start=2, skip_end=1, widget=True))[0]["at"] == "step 15"
    with pytest.raises(ValueError, match="no metrics were recorded"):
        fitted().recorder.plot_metrics(widget=True)


def test_one_cycle_preview():
    view = cbnb.OneCycle(lr_max=3e-3, mom=(0.9, 0.8, 0.9)).plot(widget=True)
    call = "learn.fit_one_cycle(n_epoch, lr_max=0.003, pct_start=0.25, div=25, moms=(0.9, 0.8, 0.9))"
    assert view.call() == call and call in view.chart.value and "top 0.003" in view.chart.value
    view.lr_max.value, view.div.value, view.div_final.value, view.pct_start.value = 0.5, 10, 1e3, 0.5
    assert "start 0.05" in view.chart.value and "end 5e-4" in view.chart.value
    learn = line_learner(n=10, opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))
    with learn.no_logging():
        eval(view.call(), dict(learn=learn, n_epoch=2))
    assert max(learn.recorder.lrs) == pytest.approx(0.5) and learn.recorder.lrs[0] == pytest.approx(0.05)
    for pct in (0.0, 1.0):
        view.pct_start.value = pct
        assert "nan" not in view.chart.value.split("</style>")[1]
    with pytest.raises(ValueError, match="lr_max is not known"):
        cbnb.OneCycle().plot(widget=True)
    assert cbnb.OneCycle(lr_max=slice(1e-4, 1e-2)).plot(widget=True).lr_max.value == pytest.approx(1e-2)


def test_a_diverged_fit_can_be_looked_at():
    learn = line_learner(n=4)
    with learn.no_logging():
        learn.fit(2, lr=1e30)
    assert not math.isfinite(learn.recorder.losses[-1])
    view = learn.recorder.plot_losses(widget=True)
    view.step.value = 0
    assert legends(view)[0]["train, each batch"] == number(learn.recorder.history[0].raw_losses[0])


def test_a_figure_where_one_is_wanted(monkeypatch):
    learn = fitted()
    assert learn.recorder.plot_losses() is None and learn.recorder.plot_losses(widget=False) is None
    assert isinstance(learn.recorder.plot_losses(return_fig=True), Figure)
    assert isinstance(cbnb.OneCycle(0.1).plot(return_fig=True), Figure)
    with pytest.raises(ValueError, match="widget=True does not go with"):
        learn.recorder.plot_lr(widget=True, return_fig=True)

    def without(name, *args):
        if name == "ipywidgets":
            raise ImportError(name)
        return real(name, *args)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install ipywidgets"):
        learn.recorder.plot_losses(widget=True)


def test_a_widget_and_its_picture(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **kwargs: shown.append((data, kwargs)))
    monkeypatch.setattr(widgets, "shell", lambda: True)
    monkeypatch.setattr(widgets, "display_mode", lambda: "widgets")
    monkeypatch.setattr("cbnb.plot.display_mode", lambda: "widgets")
    learn = fitted()
    assert learn.recorder.plot_losses() is None
    (view, _), (picture, kwargs) = shown
    model_id = view["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert set(view) == {"application/vnd.jupyter.widget-view+json", "text/plain"} and view["text/plain"] == ""
    assert set(picture) == {"image/png", "text/plain"}
    text = kwargs["metadata"]["image/png"]["alt"]
    assert text == picture["text/plain"] and number(learn.recorder.losses[-1]) in text and "20 steps" in text
    box = widgets._alive[model_id]
    rule = f".jp-OutputArea-child:has(.cbnb-live-{model_id})+.jp-OutputArea-child{{display:none}}"
    assert rule in box.children[-1].value and f"cbnb-live-{model_id}" in box._dom_classes


def test_a_shown_plot_still_answers_after_the_next_fit():
    """Its controls raised IndexError, since it had the live list of runs."""
    learn = fitted(2)
    view = learn.recorder.plot_losses(widget=True)
    with learn.no_logging():
        learn.fit(1)
    view.step.value = 3
    view.log_y.value = True
    assert legends(view)[0]["at"] == "step 3" and len(view.all_runs) == 1


def test_a_plot_drawn_in_mid_fit_keeps_its_steps():
    learn, views = line_learner(n=4), []
    with learn.no_logging():
        learn.fit(2, cbs=cbnb.Callback(after_epoch=lambda self: views.append(self.recorder.plot_losses(widget=True))))
    view = views[0]
    view.refresh()
    assert view.sizes == [4] and view.step.max == 3


def test_a_plot_that_cannot_be_drawn_says_so():
    """A page hides what a handler raises."""
    view = fitted(2).recorder.plot_losses(widget=True)
    view.smooth.clear()
    with pytest.raises(IndexError):
        view.refresh()
    assert "could not be drawn" in view.chart.value and "IndexError" in view.chart.value


def test_a_shorter_run_keeps_its_last_value():
    view = fitted(3, 1).recorder.plot_losses(widget=True)
    view.overlay.value = True
    view.step.value = 11
    short = view.all_runs[1]
    assert legends(view)[0]["run 1"] == f"{number(short.losses[-1])} · valid {number(short.epochs[-1]['valid_loss'])}"


def test_after_a_stop_the_last_validation_is_read():
    learn = line_learner(n=4)
    stop = cbnb.Callback(after_step=lambda self: cbnb.Steering.stop(self.learn.steering) if self.learn.train_iter == 5 else None)
    with learn.no_logging():
        learn.fit(3, cbs=[cbnb.Steering(), stop])
    view = learn.recorder.plot_losses(widget=True)
    run = learn.recorder.history[0]
    assert view.step.value == 5 and run.status == "cancelled"
    assert legends(view)[0]["valid"] == number(run.epochs[0]["valid_loss"])


def test_many_runs_are_told_apart():
    """Five colours were repeated, and each run had two entries."""
    learn = fitted(*[1] * 10)
    view = learn.recorder.plot_losses(widget=True)
    view.overlay.value = True
    assert len({view.color_of(i) for i in range(10)}) == 10 and view.dash_of(10) and not view.dash_of(9)
    assert [name for name in legends(view)[0] if name != "at"] == [f"run {i}" for i in range(10)]
    assert view.runs[3].description == "run 3 (1 epoch)"


@pytest.mark.parametrize("overlay", [True, False])
def test_a_diverged_run_does_not_flatten_the_others(overlay):
    learn = fitted(2, 2)
    with learn.no_logging():
        learn.fit(2, lr=1e6)
    view = learn.recorder.plot_losses(widget=True)
    view.overlay.value = overlay
    limits, beyond = view.limits(drawn_lines(view))
    assert beyond == [2] and limits[1] < 20 and "run 2: beyond the plot" in view.chart.value
    view.runs[2].value = False
    assert view.limits(drawn_lines(view)) == (None, [])


def test_a_first_fit_is_not_taken_for_a_diverged_one():
    """It begins far above a second one that goes on from there, as any first fit does."""
    view = fitted(20, 2).recorder.plot_losses(widget=True)
    first, second = view.raw
    assert first.max() > 20 * second.max() and view.limits(drawn_lines(view)) == (None, [])
    view.overlay.value = True
    assert view.limits(drawn_lines(view)) == (None, [])


def drawn_lines(view):
    return view.over_steps(view.smooth.__getitem__, "train", "black") + view.over_epochs("valid_loss", "valid", "black")


def test_the_step_slider_has_the_steps_of_the_plot():
    """Of runs over each other it said step 764, and the chart step 120."""
    view = fitted(3, 2).recorder.plot_losses(widget=True)
    assert (view.step.min, view.step.max, view.step.value) == (0, 19, 19)
    view.overlay.value = True
    assert (view.step.min, view.step.max, view.step.value) == (0, 11, 11) and legends(view)[0]["at"] == "step 11"
    view.overlay.value = view.runs[0].value = False
    assert (view.step.min, view.step.max, view.step.value) == (12, 19, 12) and legends(view)[0]["at"] == "step 12"
