"""What a plot shows, and where: a chart in a page that runs scripts, else a figure. The charts are in test_run_charts.py, and their use
in browser/test_plots_page.py and browser/test_chart_page.py."""

import json
import sys

import pytest
import torch
from matplotlib.figure import Figure

import cbnb
from cbnb.basics.text import escape
from cbnb.display import figures
from cbnb.display.page_script import Html
from cbnb.metrics import AvgMetric
from helpers import line_learner, packed_texts


def evil(pred, y):
    return (pred - y).abs().mean()


def fitted(*epochs: int, **kwargs) -> cbnb.Learner:
    learn = line_learner(n=4, **kwargs)
    with learn.no_logging():
        for n in epochs or (3, 2):
            learn.fit(n, lr=0.02)
    return learn


def data_of(page: Html) -> list[dict]:
    """The charts in the data of a page."""
    return json.loads(packed_texts(page.html)[1])["charts"]


@pytest.fixture
def in_page(monkeypatch):
    """In a notebook whose page runs scripts: what was displayed, as (bundle, arguments)."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, **kwargs: shown.append((data, kwargs)))
    monkeypatch.setattr(figures, "shell", lambda: True)
    monkeypatch.setattr("cbnb.display.page_script.shell", lambda: True)
    monkeypatch.setattr("IPython.core.pylabtools.select_figure_formats", lambda shell, kinds: None)
    monkeypatch.setattr(figures, "display_mode", lambda: "widgets")
    for name in ("figures.runs_scripts", "page_script.runs_scripts", "chart.runs_scripts"):
        monkeypatch.setattr(f"cbnb.display.{name}", lambda: True)
    return shown


def test_a_plot_is_one_output_shown_once(in_page):
    """With a picture, the script, and words where neither is shown."""
    learn = fitted(metrics=AvgMetric(evil, "mae"))
    for plot in (learn.recorder.plot_losses, learn.recorder.plot_lr, learn.recorder.plot_metrics):
        in_page.clear()
        assert plot() is None
        [(bundle, kwargs)] = in_page
        assert sorted(bundle) == ["text/html", "text/plain"] and kwargs == dict(raw=True)
        assert bundle["text/html"].count("<img") == 1 == bundle["text/html"].count("<script>")
        assert f'alt="{escape(bundle["text/plain"])}"' in bundle["text/html"]
    assert "mae from" in in_page[0][0]["text/plain"]


def test_a_plot_needs_no_widgets(in_page, monkeypatch):
    for name in ("ipywidgets", "anywidget"):
        monkeypatch.setitem(sys.modules, name, None)
    fitted().recorder.plot_losses()
    assert in_page and isinstance(fitted().recorder.plot_losses(widget=True), Html)


def test_a_plot_is_returned_where_it_is_asked_for():
    learn = fitted(
        metrics=[AvgMetric(evil, "mae"), AvgMetric(evil, "other")], opt_func=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)
    )
    losses, both, metrics = (
        learn.recorder.plot_losses(widget=True),
        learn.recorder.plot_lr(True, widget=True),
        learn.recorder.plot_metrics(widget=True),
    )
    assert [[chart["title"] for chart in data_of(page)] for page in (losses, both, metrics)] == [
        ["Losses"], ["Learning rate", "Momentum"], ["mae", "other"],
    ]  # fmt: skip
    assert losses._repr_html_() == losses.html and repr(losses) == losses.text and losses.text.startswith("losses over 20 training steps")
    assert repr(both).count("; ") == 1 and len(learn.recorder.plot_metrics(widget=True).html) < 100_000
    with pytest.raises(ValueError, match="no momentum"):
        fitted(opt_func=torch.optim.Adagrad).recorder.plot_lr(show_moms=True, widget=True)
    with pytest.raises(ValueError, match="no metrics were recorded"):
        fitted().recorder.plot_metrics(widget=True)


def test_skips_reach_the_chart():
    learn = fitted(3, 2, metrics=AvgMetric(evil, "mae"))
    (losses,), (rates,), (metrics,) = (
        data_of(plot(*skips, widget=True))
        for plot, skips in [
            (learn.recorder.plot_losses, (3, 2)),
            (learn.recorder.plot_lr, (False, 3, 2)),
            (learn.recorder.plot_metrics, (2, 1)),
        ]
    )
    assert (
        [line["x"] for line in losses["lines"] if line.get("kind") == "faint"]
        == [[3, 1, 9], [12, 1, 6]]
        == [line["x"] for line in rates["lines"]]
    )
    assert [line["x"] for line in metrics["lines"]] == [dict(d=[11]), dict(d=[15])]


def test_the_smoothing_is_that_of_the_recorder():
    learn = fitted()
    for beta in (0.98, 0.5):
        learn.recorder.beta = beta
        assert data_of(learn.recorder.plot_losses(widget=True))[0]["smoothing"] == beta


def test_names_of_metrics_are_text():
    names = ["<b>mae</b>", "<script>alert(1)</script>"]
    page = fitted(metrics=[AvgMetric(evil, name) for name in names]).recorder.plot_metrics(widget=True)
    assert "<b>mae" not in page.html and page.html.count("<script>") == 1 and "&lt;script&gt;alert" in page.html
    assert [chart["title"] for chart in data_of(page)] == names


@pytest.mark.parametrize(
    "widget, return_fig, ax, mode, scripts, found",
    [
        (None, None, None, "widgets", True, True),
        (None, None, None, "plain", True, True),  # also where there are no widgets
        (None, None, None, "plain", False, False),
        (None, None, None, "terminal", True, False),
        (None, None, None, "lines", True, False),
        (True, None, None, "lines", False, True),
        (True, False, None, "lines", False, True),
        (False, None, None, "widgets", True, False),
        (None, True, None, "widgets", True, False),
        (None, False, "axes", "widgets", True, False),
    ],
)
def test_where_a_chart_takes_the_place_of_a_figure(widget, return_fig, ax, mode, scripts, found, monkeypatch):
    monkeypatch.setattr(figures, "display_mode", lambda: mode)
    monkeypatch.setattr(figures, "runs_scripts", lambda: scripts)
    assert figures.answers_mouse(widget, return_fig, ax) is found


@pytest.mark.parametrize("return_fig, ax", [(True, None), (None, "axes"), (True, "axes")])
def test_a_chart_where_a_figure_is_wanted_is_refused(return_fig, ax):
    with pytest.raises(ValueError, match="widget=True shows a widget, but .* asks? for a figure"):
        figures.answers_mouse(True, return_fig, ax)


def test_a_figure_where_one_is_wanted():
    learn = fitted()
    assert learn.recorder.plot_losses() is None and learn.recorder.plot_losses(widget=False) is None
    assert isinstance(learn.recorder.plot_losses(return_fig=True), Figure)
    own = Figure().subplots()
    assert learn.recorder.plot_losses(ax=own) is own
    with pytest.raises(ValueError, match="widget=True shows a widget"):
        learn.recorder.plot_lr(widget=True, return_fig=True)


def test_a_figure_where_a_page_could_be(in_page):
    """A chart only if nothing else was asked for."""
    learn = fitted()
    assert isinstance(learn.recorder.plot_losses(return_fig=True), Figure) and in_page == []
    assert learn.recorder.plot_losses(widget=False) is None
    [(bundle, _)] = in_page
    assert sorted(bundle) == ["image/png", "text/plain"]


def test_the_smoothed_line_of_a_figure_breaks_between_two_fits():
    """The smoothing begins anew with each fit, so the step from one fit to the next is no change of the loss."""
    [ax] = fitted(3, 2).recorder.plot_losses(return_fig=True).axes
    found = {line.get_label(): torch.as_tensor(line.get_ydata()).isnan().nonzero().flatten().tolist() for line in ax.lines}
    assert found["train, smoothed"] == [12] and found["train, each batch"] == [] == found["valid"]


def test_a_plot_of_a_diverged_fit():
    learn = line_learner(n=4)
    with learn.no_logging():
        learn.fit(2, lr=1e30)
    page = learn.recorder.plot_losses(widget=True)
    assert data_of(page)[0]["lines"] and "nan" not in page.text


def test_a_plot_in_mid_fit_has_the_steps_so_far():
    learn, pages = line_learner(n=4), []
    with learn.no_logging():
        learn.fit(2, cbs=cbnb.Callback(after_epoch=lambda self: pages.append(self.recorder.plot_losses(widget=True))))
    assert [data_of(page)[0]["lines"][0]["x"] for page in pages] == [[0, 1, 4], [0, 1, 8]]
