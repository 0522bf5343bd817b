"""Plots with controls, driven from Python as a person drives them in a notebook."""

import builtins
import html
import math
import re

import pytest
import torch
from matplotlib.figure import Figure

import cbnb
from cbnb.basics.text import number
from cbnb.display import plots as widgets
from cbnb.display.chart import Line, Mark, chart
from cbnb.display.figures import COLORS, RUN_COLORS
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
    monkeypatch.setattr("cbnb.display.figures.display_mode", lambda: "widgets")
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
    stop = cbnb.Callback(
        after_step=lambda self: cbnb.display.steering.Steering.stop(self.learn.steering) if self.learn.train_iter == 5 else None
    )
    with learn.no_logging():
        learn.fit(3, cbs=[cbnb.display.steering.Steering(), stop])
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


# --- the parts ---


@pytest.mark.parametrize(
    "value, low, high",
    [(1e-3, -6, 1), (3e-3, math.log10(3e-3) - 174 * 0.02, math.log10(3e-3) + 177 * 0.02), (1e-8, -8, 1), (100, -6, 2)],
)
def test_a_slider_by_factors_has_its_value_at_a_step(value, low, high):
    control = widgets.log_slider("lr", "tip", value, -6, 1)
    assert (control.min, control.max) == pytest.approx((low, high)) and control.value == pytest.approx(value)
    assert (control.base, control.step, control.readout_format, control.description, control.tooltip) == (10, 0.02, ".3g", "lr", "tip")


def test_sliders_and_checkboxes():
    control = widgets.slider("IntSlider", "a", "tip", 3, min=1, max=5)
    assert (type(control).__name__, control.value, control.min, control.max, control.continuous_update) == ("IntSlider", 3, 1, 5, True)
    assert widgets.slider("IntSlider", "a", "tip", 3, quick=False).continuous_update is False
    box = widgets.checkbox("a", "tip")
    assert (box.description, box.tooltip, box.value, box.indent) == ("a", "tip", False, False) and widgets.checkbox("a", "tip", True).value


class Doubles(widgets.View):
    """Twice what its slider says; counts how often it is drawn."""

    def __init__(self, *more):
        self.n, self.control = 0, widgets.slider("IntSlider", "a", "tip", 3, max=50)
        super().__init__([self.control, None], *more)

    def draw(self):
        self.n += 1
        self.words.append(f"it is {2 * self.control.value}")
        if self.control.value == 13:
            raise ValueError("<13>")
        return f"<b>{2 * self.control.value}</b>"

    def picture(self):
        return "figure", "text"


def test_a_view_is_drawn_when_a_control_moves():
    view = Doubles([None], [other := widgets.checkbox("b", "tip")])
    assert view.chart.value == "<b>6</b>" and view.controls == [view.control, other] and view.n == 1
    assert [box.children for box in view.box.children[1:]] == [(view.control,), (other,)] and view.box.children[0] is view.chart
    view.control.value = 4
    other.value = True
    assert view.chart.value == "<b>8</b>" and view.n == 3 and view.words == ["it is 8"]
    with pytest.raises(ValueError):
        view.control.value = 13
    assert view.chart.value == '<div role="alert">This plot could not be drawn: <b>ValueError</b>: &lt;13&gt;</div>'
    for method in ("draw", "picture"):
        with pytest.raises(NotImplementedError):
            getattr(widgets.View, method)(view)


def test_where_there_are_no_widgets_a_figure_is_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(widgets, "show", lambda *args: shown.append(args))
    monkeypatch.setattr(widgets, "show_with_picture", lambda box, *args: shown.append(box))
    monkeypatch.setattr(widgets, "png_bundle", lambda *args: args)
    monkeypatch.setattr(widgets, "png_metadata", lambda *args: args)
    view = Doubles()
    for mode in ("plain", "widgets"):
        monkeypatch.setattr(widgets, "display_mode", lambda: mode)
        view._ipython_display_()
        assert view.given(None) is None and view.given(True) is view
    assert shown == [("figure", "text")] * 2 + [view.box] * 2


def test_a_widget_that_is_shown_twice_hides_its_pictures_once(monkeypatch):
    shown, at_exit = [], []
    monkeypatch.setattr("IPython.display.display", lambda data, **kwargs: shown.append((data, kwargs)))
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr(widgets, "_alive", {})
    view = Doubles()
    monkeypatch.setattr(widgets, "shell", lambda: None)
    widgets.show_with_picture(view.box, {"text/plain": "p"}, {})
    assert shown == [] and not widgets._alive
    monkeypatch.setattr(widgets, "shell", lambda: True)
    for box in (view.box, view.box, Doubles().box):
        widgets.show_with_picture(box, {"text/plain": "p"}, {"image/png": {}})
    assert (
        len(shown) == 6
        and all(kwargs["raw"] for _, kwargs in shown)
        and shown[1] == ({"text/plain": "p"}, dict(raw=True, metadata={"image/png": {}}))
    )
    model = dict(version_major=2, version_minor=0, model_id=view.box.model_id)
    assert shown[0][0] == {"application/vnd.jupyter.widget-view+json": model, "text/plain": ""}
    assert len(view.box.children) == 3 and view.box.children[-1].layout.display == "none"
    assert len(widgets._alive) == 2 and len(at_exit) == 1
    at_exit[0]()
    assert view.box.comm is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_smoothing_ends_where_values_are_not_finite(bad):
    values = torch.tensor([4.0, 2.0, bad, 1.0])
    found = widgets.smoothed(values, 0.5)
    assert found[:2].tolist() == pytest.approx([4, 8 / 3]) and found[2:].isnan().all()
    assert widgets.smoothed(values[2:], 0.5).tolist()[1] == 1 and widgets.smoothed(values, 0.0)[3] == 1
    assert widgets.smoothed(values[:2], 0.0).dtype is torch.float64


@pytest.mark.parametrize("block", [1, 3, 4])
def test_smoothing_does_not_depend_on_the_block(block):
    values = torch.rand(10, generator=torch.Generator().manual_seed(0))
    assert widgets.smoothed(values, 0.9, block).tolist() == pytest.approx(widgets.smoothed(values, 0.9).tolist())


# --- runs ---


def view_of(*epochs, skip_start=0, skip_end=0, compare=False, hide=()):
    view = fitted(*epochs).recorder.plot_losses(skip_start=skip_start, skip_end=skip_end, widget=True)
    for i in hide:
        view.runs[i].value = False
    view.overlay.value = compare
    return view


@pytest.mark.parametrize(
    "skips, compare, spans",
    [
        ((0, 0), False, [(0, 12), (0, 8)]),
        ((3, 2), False, [(3, 12), (0, 6)]),
        ((3, 2), True, [(3, 10), (3, 6)]),
        ((15, 0), False, [(12, 12), (3, 8)]),
        ((0, 10), False, [(0, 10), (0, 0)]),
        ((0, 10), True, [(0, 2), (0, 0)]),
    ],
)
def test_what_skips_leave_of_a_run(skips, compare, spans):
    view = view_of(3, 2, skip_start=skips[0], skip_end=skips[1], compare=compare)
    assert [(span.start, span.stop) for span in map(view.span, range(2))] == spans


def column(view):
    return lambda i: torch.arange(view.sizes[i], dtype=torch.float64) + 100 * i


def plain(lines):
    return [(line.name, list(line.xs), [None if y != y else float(y) for y in line.ys]) for line in lines]


def test_a_line_over_all_runs_or_one_each():
    view = view_of(3, 2, 1, skip_start=3, skip_end=1)
    numbers = [*range(3, 12), *range(100, 108), *range(200, 203)]
    (line,) = lines = view.over_steps(column(view), "n", "red", faint=True)
    assert plain(lines) == [("n", list(range(3, 23)), numbers)] and (line.color, line.faint, line.held) == ("red", True, False)
    assert not view.over_steps(column(view), "n", "red")[0].faint
    view.runs[1].value = False  # a gap
    assert plain(view.over_steps(column(view), "n", "red")) == [("n", list(range(3, 23)), [*numbers[:9], *[None] * 8, *numbers[17:]])]
    view.runs[0].value = False
    assert plain(view.over_steps(column(view), "n", "red")) == [("n", [20, 21, 22], [200, 201, 202])]
    view.overlay.value = True
    view.runs[1].value = True
    lines = view.over_steps(column(view), "n", "red", faint=True)
    assert plain(lines) == [("run 1", [3, 4, 5, 6], [103, 104, 105, 106])]  # of the third nothing is left
    (line,) = lines
    assert (line.color, line.held, line.faint, line.dash) == (RUN_COLORS[1], True, False, False)
    view.runs[1].value = False
    assert view.over_steps(column(view), "n", "red") == []
    view.runs[2].value = view.overlay.value = False
    assert view.over_steps(column(view), "n", "red") == [] == view.over_epochs("valid_loss", "valid", "red")


def test_a_value_of_each_epoch_stands_at_its_last_step():
    view = view_of(3, 2, skip_start=4, skip_end=1)
    values = [[row["valid_loss"] for row in run.epochs] for run in view.all_runs]
    (line,) = lines = view.over_epochs("valid_loss", "valid", "red")
    assert plain(lines) == [("valid", [7, 11, 15], [*values[0][1:], values[1][0]])] and (line.color, line.dots, line.of) == (
        "red",
        True,
        "",
    )
    view.overlay.value = True
    lines = view.over_epochs("valid_loss", "valid", "red")
    assert plain(lines) == [("valid", [7], values[0][1:2])]  # of both runs the last is left out, and 4 steps at the start
    assert [(line.of, line.color, line.dots) for line in lines] == [("run 0", RUN_COLORS[0], True)]
    view.skip_start.value = 0
    lines = view.over_epochs("valid_loss", "", "red")
    assert plain(lines) == [("run 0", [3, 7], values[0][:2]), ("run 1", [3], values[1][:1])] and {line.of for line in lines} == {""}
    assert view.over_epochs("f1", "", "red") == []


@pytest.mark.parametrize("compare", [False, True])
@pytest.mark.parametrize(
    "third, log_y, limits, beyond",
    [
        ([4, 50, 500, 1000], False, (0.55, 10.45), [2]),
        ([4, 50, 500, 1000], True, (1, 10), [2]),
        ([4, 181, 1, 1], False, None, []),  # 20 times as far as is usual
        ([4, 181.1, 1, 1], False, (0.55, 10.45), [2]),
        ([50.75, 200, 1, 1], False, None, []),  # four times as far as its start
        ([50.7, 200, 1, 1], False, (0.55, 10.45), [2]),
        ([math.nan, 4, math.inf, 1000], False, (0.55, 10.45), [2]),
        ([math.nan] * 4, False, None, []),
        ([4, 1000, -9, 0], True, (1, 10), [2]),  # what is not above 0 is not drawn
    ],
)
def test_limits_that_no_diverged_run_decides(compare, third, log_y, limits, beyond):
    view = view_of(1, 1, 1, compare=compare)
    values = [torch.tensor(ys, dtype=torch.float64) for ys in ([10, 8, 6, 4], [4, 3, 2, 1], third)]
    found, far = view.limits(view.over_steps(values.__getitem__, "loss", "red"), log_y)
    assert far == beyond and found == (limits and pytest.approx(limits))


def test_of_two_runs_the_lower_one_is_usual():
    view = view_of(1, 1)
    far = [torch.tensor(ys, dtype=torch.float64) for ys in ([2.0, 1, 1, 1], [2.0, 90, 90, 90])]
    lines = view.over_steps(far.__getitem__, "loss", "red")
    assert view.limits(lines) == (pytest.approx((0.95, 2.05)), [1])
    view.runs[0].value = False
    assert view.limits(view.over_steps(far.__getitem__, "loss", "red")) == (None, [])
    view.runs[0].value = True
    flat = [torch.ones(4), torch.tensor([1.0, 9, 9, 9])]
    assert view.limits(view.over_steps(flat.__getitem__, "loss", "red")) == (None, [])  # there is no telling how far is far


def test_the_chart_of_losses():
    view = view_of(3, 2)
    raw, smooth = (torch.cat(parts).tolist() for parts in (view.raw, [widgets.smoothed(raw, 0.98) for raw in view.raw]))
    valid = [row["valid_loss"] for run in view.all_runs for row in run.epochs]
    lines = [
        Line("train, each batch", range(20), torch.cat(view.raw), COLORS["raw"], faint=True),
        Line("train, smoothed", range(20), torch.tensor(smooth, dtype=torch.float64), COLORS["train"]),
        Line("valid", [3, 7, 11, 15, 19], valid, COLORS["valid"], dots=True),
    ]
    text = f"Losses over 20 steps; at step 19: train, each batch {number(raw[-1])}, train, smoothed {number(smooth[-1])}, valid {number(valid[-1])}"
    how = dict(borders=[12], xlabel="step", ylabel="loss", title="Losses", cursor=19, size=(960, 310), text=text, hover=True)
    ends = [(3, 0), (7, 1), (11, 2), (15, 0), (19, 1)]
    assert view.words == [text] and view.chart.value == chart(lines, epochs=ends, **how)
    view.log_x.value = view.log_y.value = True
    assert view.chart.value == chart(lines, log_x=True, log_y=True, **how)
    view.log_x.value = view.log_y.value = False
    view.smoothing.value = 0.0
    assert [legend.split(" at ")[0] for legend in view.words[0].split("; ")] == [
        "Losses over 20 steps",
        "at step 19: train, each batch " + text.split("batch ")[1].split(", ")[0] + f", valid {number(valid[-1])}",
    ]
    view.overlay.value = True
    assert 'class="border"' not in view.chart.value
    assert view.words[0].startswith(
        f"Losses over 20 steps; at step 11: run 0 {number(view.raw[0][11].item())}, run 1 {number(view.raw[1][7].item())}, run 0 valid"
    )


def test_a_chart_is_drawn_once_for_each_change(monkeypatch):
    view, drawn = view_of(3, 2), []
    draw = view.draw
    view.draw = lambda: drawn.append(1) or draw()
    for change in ("overlay", "log_y", "log_x"):
        getattr(view, change).value = True
    view.runs[0].value = False
    assert len(drawn) == 4 and view.moving is False


@pytest.mark.parametrize("many, quick", [(20, True), (19, False)])
def test_of_many_steps_a_chart_follows_when_a_slider_is_let_go(monkeypatch, many, quick):
    monkeypatch.setattr(widgets, "MANY", many)
    view = view_of(3, 2)
    assert [control.continuous_update for control in (view.skip_start, view.step, view.smoothing)] == [quick] * 3
    assert (view.skip_start.min, view.skip_start.max, view.skip_start.value) == (0, 19, 0)
    assert (view.smoothing.min, view.smoothing.max, view.smoothing.step, view.smoothing.readout_format) == (0, 0.999, 0.001, ".3f")


def test_controls_of_one_run_and_of_one_step():
    view = fitted(2).recorder.plot_losses(skip_start=99, widget=True)
    assert view.runs == [] and view.overlay is None and view.chosen() == [0] and not view.compares() and view.skip_start.value == 7
    learn = line_learner(n=1)
    with learn.no_logging():
        learn.fit(1)
    view = learn.recorder.plot_losses(widget=True)
    assert (view.step.min, view.step.max, view.step.value) == (0, 1, 0) and legends(view)[0]["at"] == "step 0"
    several = view_of(3, 2)
    assert [box.description for box in several.runs] == ["run 0 (3 epochs)", "run 1 (2 epochs)"] and all(box.value for box in several.runs)
    assert several.runs[0].tooltip == "show or hide this run: 3 of 3 epochs, 12 steps, done"


def test_the_figure_has_what_the_skips_leave():
    view = view_of(3, 2, skip_start=3, skip_end=2)
    fig, text = view.picture()
    assert text == view.words[0] and list(fig.axes[0].lines[0].get_xdata()) == list(range(3, 18))


@pytest.mark.parametrize("show_moms", [False, True])
def test_the_charts_of_rates(show_moms):
    learn = line_learner(n=4, opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9))
    with learn.no_logging():
        learn.fit_one_cycle(2, lr_max=0.01)
    view = learn.recorder.plot_lr(show_moms=show_moms, skip_start=1, skip_end=2, widget=True)
    assert view.with_moms() is show_moms and not view.log_y.value
    lrs, moms = ([torch.tensor(run.hyper(name), dtype=torch.float64) for run in learn.recorder.history.runs] for name in ("lr", "mom"))
    rates = Line("learning rate", range(1, 6), lrs[0][1:6], COLORS["lr"])
    how = dict(xlabel="step", cursor=5, hover=True, epochs=[(3, 0)])
    text = f"Learning rate over 8 steps; at step 5: learning rate {number(lrs[0][5].item())}"
    pages = [chart([rates], title="Learning rate", size=(960, 260), text=text, **how)]
    if show_moms:
        text = f"Momentum over 8 steps; at step 5: momentum {number(moms[0][5].item())}"
        pages.append(
            chart([Line("momentum", range(1, 6), moms[0][1:6], COLORS["mom"])], title="Momentum", size=(960, 220), text=text, **how)
        )
    assert view.chart.value == "".join(pages)
    fig, text = view.picture()
    assert text == "; ".join(view.words) and len(view.words) == 1 + show_moms and len(fig.axes[0].lines[0].get_xdata()) == 5
    view.log_y.value = True
    assert view.chart.value != pages[0] and "Learning rate" in view.chart.value


def test_a_run_without_momentum_has_a_gap():
    learn = line_learner(n=4)
    with learn.no_logging():
        learn.fit(1)
        learn.opt = torch.optim.Adagrad(learn.model.parameters(), lr=0.1)
        learn.fit(1)
    view = learn.recorder.plot_lr(widget=True)
    assert [len(column) for column in view.moms] == [4, 4] and view.moms[1].isnan().all()


@pytest.mark.parametrize(
    "skips, first, left_out",
    [((0, 0), 0, 0), ((2, 1), 8, 4), ((1, 2), 4, 8), ((4, 0), 16, 0), ((5, 0), 0, 0), ((0, 4), 0, 16), ((0, 5), 0, 0)],
)
def test_skips_of_metrics_are_epochs(skips, first, left_out):
    """Epochs of 4 steps, three in the first run and two in the second."""
    learn = fitted(metrics=AvgMetric(evil, "mae"))
    view = learn.recorder.plot_metrics(*skips, widget=True)
    assert (view.skip_start.value, view.skip_end) == (first, left_out)


def test_the_charts_of_metrics():
    learn = fitted(metrics=[AvgMetric(evil, "one"), AvgMetric(evil, "two")])
    view = learn.recorder.plot_metrics(widget=True)
    values = [row["one"] for run in view.all_runs for row in run.epochs]
    how = dict(borders=[12], xlabel="step", cursor=19, hover=True, epochs=[(3, 0), (7, 1), (11, 2), (15, 0), (19, 1)])

    def cell(name, size):
        text = f"{name} over 20 steps; at step 19: {name} {number(values[-1])}"
        line = Line(name, [3, 7, 11, 15, 19], values, COLORS["valid"], dots=True)
        return f'<div style="flex:1 1 {size[0] - 60}px">{chart([line], title=name, size=size, text=text, **how)}</div>'

    page = '<div style="display:flex;flex-wrap:wrap;gap:4px 12px">{}</div>'
    assert view.chart.value == page.format(cell("one", (474, 240)) + cell("two", (474, 240))) and set(view.metrics) <= set(view.controls)
    view.metrics[1].value = False
    assert view.chart.value == page.format(cell("one", (960, 300)))
    view.overlay.value = True
    assert [name for name in legends(view)[0] if name != "at"] == ["run 0", "run 1"]
    view.log_y.value = True
    assert view.picture()[1] == "; ".join(view.words)
    one = fitted(metrics=AvgMetric(evil, "one")).recorder.plot_metrics(widget=True)
    assert one.metrics[0] not in one.controls and one.names == ["one"] and one.log_y in one.controls


def test_the_charts_of_a_schedule():
    cycle = cbnb.OneCycle(0.01, div=10, div_final=1e3, pct_start=0.4, mom=(0.9, 0.8, 0.9))
    view = widgets.OneCycleView(cycle, n=5)
    call = "learn.fit_one_cycle(n_epoch, lr_max=0.01, pct_start=0.4, div=10, div_final=1000, moms=(0.9, 0.8, 0.9))"
    words = f"One-cycle schedule, learning rate: start 0.001, top 0.01, end 1e-5; {call}"
    assert view.call() == call and view.words == [words]
    shown = cbnb.OneCycle(view.lr_max.value, view.div.value, view.div_final.value, 0.4, cycle.mom)  # up to rounding the same
    xs, scheds = [i / 5 for i in range(6)], shown.planned()
    lrs, moms = ([scheds[name](x) for x in xs] for name in ("lr", "mom"))
    marks = [
        Mark("start 0.001", 0, lrs[0], COLORS["lr"]),
        Mark("top 0.01", 0.4, view.lr_max.value, COLORS["lr"]),
        Mark("end 1e-5", 1, lrs[-1], COLORS["lr"]),
    ]
    how = dict(xlabel="share of the training", hover=True)
    first = chart([Line("learning rate", xs, lrs, COLORS["lr"])], marks=marks, title="Learning rate", size=(960, 260), text=words, **how)
    second = chart([Line("momentum", xs, moms, COLORS["mom"])], title="Momentum", size=(960, 210), **how)
    assert view.chart.value.startswith(first + second) and f">{call}</code>" in view.chart.value
    fig, text = view.picture()
    assert text == words and len(fig.axes[0].lines[0].get_xdata()) in (5, 6)
    assert (view.lr_max.min, view.lr_max.max, view.div.min, view.div.max) == pytest.approx((-6, 1, 0, 3), abs=0.02)
    assert (view.div_final.min, view.div_final.max) == pytest.approx((0, 8), abs=0.02)
    assert (view.pct_start.min, view.pct_start.max, view.pct_start.step) == (0, 1, 0.01)
    assert (
        widgets.OneCycleView(cbnb.OneCycle(2e-5, div_final=2e5))
        .call()
        .startswith("learn.fit_one_cycle(n_epoch, lr_max=2e-5, pct_start=0.25, div=25, div_final=2e5")
    )


def test_an_interrupt_while_losses_are_smoothed_leaves_no_stale_curve(monkeypatch):
    learn = line_learner()
    learn.fit(1)
    view = learn.recorder.plot_losses(widget=True)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(widgets, "smoothed", interrupted)
        view.smoothing.value = 0.5
    view.refresh()
    expected = widgets.smoothed(view.raw[0], 0.5)
    assert view.beta == 0.5 and torch.equal(view.smooth[0], expected)
