"""How findings look in a notebook: escaped text, a link to the page of errors, and a figure where there is something to look at."""

import math
import re
from dataclasses import replace
from html import unescape
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cbnb.all import DataLoaders, Learner
from cbnb.insight import findings as module
from cbnb.insight.check import figure_of
from cbnb.insight.diagnose import figure_of_predictions
from cbnb.insight.evidence import Evidence, Layer, LossCall
from cbnb.insight.finding_figures import Figure, figure_svg, figure_text
from cbnb.insight.findings import FAULTS, Finding, Findings

BARS = Figure("bars", "Gradient norm by layer", ("0", "2"), ((1e-6, 2.0),), (0,))
LINES = Figure("lines", "Loss by epoch", ("training", "validation"), ((3.0, 1.0, 0.5), (3.0, 2.0, 2.5)), (1,), (4, 5, 6), "epoch")
SURE = Figure("calibration", "Right by probability", ("right", "calibrated"), ((0.95,), (0.5,)))


def found(code="M16", where="0", figure=None):
    return Finding(code, "warning", where, "gradient 1e-6", "more", "it is small", "mend it", figure=figure)


def html(*found):
    return Findings(found)._repr_html_()


def labels(text):
    return [unescape(label) for label in re.findall(r'<svg [^>]*role="img" aria-label="(.*?)"', text)]


def test_text_of_findings_and_figures_is_escaped():
    nasty = "<script>\"'&"
    bars = Figure("bars", nasty, (nasty, "b"), ((1.0, 2.0),), (0,))
    lines = Figure("lines", nasty, (nasty, "b"), ((1.0, 2.0), (1.0, 3.0)), (0,), xlabel=nasty)
    for figure in (bars, lines, Figure("calibration", nasty, (nasty, nasty), ((0.5,), (0.5,)))):
        shown = html(found(where=nasty, figure=figure))
        assert "<script" not in shown and "&lt;script&gt;" in shown and nasty not in shown
        assert labels(shown) == [figure_text(figure)]


def test_a_finding_with_a_figure_shows_it_and_others_none():
    assert "<svg" not in html(found())
    shown = html(found(figure=BARS))
    assert shown.count("<svg ") == 1 and labels(shown) == ["Gradient norm by layer: 0: 1e-6 (marked); 2: 2"]


def test_an_effect_lends_its_figure_to_the_cause_and_equal_figures_are_shown_once():
    cause, first, second = (Finding(code, "warning", "x", "1", "2", "why", "fix") for code in ("A1", "A9", "A6"))
    with_figures = [replace(f, figure=figure) for f, figure in ((first, LINES), (second, SURE))]
    assert labels(html(cause, *with_figures)) == [figure_text(LINES), figure_text(SURE)]
    assert len(labels(html(replace(cause, figure=LINES), *with_figures))) == 2


def test_the_figure_changes_neither_equality_nor_text_nor_plain_data():
    plain, drawn = found(), found(figure=BARS)
    assert plain == drawn and hash(plain) == hash(drawn) and repr(plain) == repr(drawn) and str(plain) == str(drawn)
    assert Findings([plain]).rows() == Findings([drawn]).rows() and "figure" not in Findings([drawn]).rows()[0]
    assert repr(Findings([plain])) == repr(Findings([drawn]))


@pytest.mark.parametrize("page, link", [("https://x.org/errors.html", True), ("nbs/how_to/errors.ipynb", False), (None, False)])
def test_a_code_links_to_the_page_of_errors_if_it_has_an_address(monkeypatch, page, link):
    monkeypatch.setattr(module, "errors_page", lambda: page)
    assert ('<a href="https://x.org/errors.html#m16-vanishing">M16 vanishing</a>' in html(found())) == link
    assert ("<a " in html(found())) == link


def test_alternative_text_has_the_numbers():
    assert figure_text(LINES) == "Loss by epoch: training: 3 to 0.5; validation: 3 to 2.5; best at epoch 5: 2"
    assert figure_text(SURE) == "Right by probability: probability 95%: 50% right"
    assert figure_text(Figure("bars", "Shares", ("a", "b"), ((0.996, 0.004),), percent=True)) == "Shares: a: 99.6%; b: 0.4%"


NUMBERS = [(math.nan, 1.0), (math.inf, 1.0), (0.0, 0.0), (-1.0, -2.0), (1e-30, 1e30), (5.0, 5.0), (1.0,)]


@pytest.mark.parametrize("values", NUMBERS, ids=str)
def test_figures_of_strange_numbers_stay_inside(values):
    names = tuple("abc"[: len(values)])
    figures = [Figure("bars", "t", names, (values,), (0,)), Figure("lines", "t", ("a", "b"), (values, values), (0,), limit=1.0)]
    for svg in map(figure_svg, figures):
        drawn = re.sub(r'aria-label=".*?"|>[^<]*<', "><", svg)
        assert not re.search(r"nan|inf", drawn)
        assert all(-10 <= float(x) <= 260 for x in re.findall(r' (?:x|cx)="(.*?)"', drawn))


def test_many_bars_are_thinned_with_the_marked_one():
    many = Figure("bars", "t", tuple(f"layer{i}" for i in range(50)), (tuple(float(i + 1) for i in range(50)),), (23,))
    svg = figure_svg(many)
    assert all(f">layer{i}<" in svg for i in (0, 23, 49)) and "and 44 others" in svg and svg.count(">layer") == 6
    assert "layer30" in figure_text(many)


def evidence():
    """Layers 0 to 4 of a network, of which the second one saturates and the third one is dead."""
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    first, tanh, relu, last = nn.Linear(6, 6), nn.Tanh(), nn.ReLU(), nn.Linear(6, 6)
    layers = [("0", first, x, 100 * x), ("1", tanh, 100 * x, x.sign()), ("2", nn.Tanh(), x, x.tanh()), ("3", relu, x, 0 * x)]
    layers += [("4", nn.ReLU(), x, x.relu()), ("5", last, x, x)]
    learn = SimpleNamespace(model=nn.Sequential(*(module for _, module, *_ in layers)), yb=(x,))
    e = Evidence(learn, layers=[Layer(*layer) for layer in layers], n=16, calls=[LossCall("mse_loss", x, x, {})])
    e.grads = {"0.weight": torch.full((2, 2), 1e-6), "0.bias": torch.ones(2), "5.weight": torch.ones(2, 2)}
    e.losses = {"16 items": [2.0, 2.0], "without inputs": [2.0, 1.9], "own rate": [2.0, 1.0]}
    return e


def test_figures_of_layers():
    e = evidence()
    std = figure_of(found("M8", "0"), e)
    assert std.names == ("input", "0", "5") and std.marks == (1,) and std.values[0][1] == pytest.approx(100 * std.values[0][0])
    dead = figure_of(found("M9", "3"), e)
    assert dead.names == ("3", "4") and dead.values == ((1.0, 0.0),) and dead.marks == (0,) and dead.percent
    flat = figure_of(found("M10", "1"), e)
    assert flat.names == ("1", "2") and flat.values[0][0] > 0.9 and flat.values[0][1] == 0 and flat.marks == (0,)
    for code, where in (("M16", "0"), ("M17", "0"), ("M6", "0.weight")):
        assert figure_of(found(code, where), e) == Figure("bars", "Gradient norm by layer", ("0", "5"), ((pytest.approx(2e-6), 2.0),), (0,))


def test_figures_of_small_trainings():
    e = evidence()
    with_limit, without = figure_of(found("T1", "x"), e), figure_of(found("T2", "x"), e)
    assert with_limit.names == ("16 items", "without inputs") and with_limit.values == ((2.0, 2.0), (2.0, 1.9))
    assert with_limit.limit == pytest.approx(1.4) and without.limit is None


def test_a_figure_that_cannot_be_made_is_left_out():
    assert not any(figure_of(Finding(code, "note", "", "", "", "", ""), Evidence(None)) for code in FAULTS)
    assert not any(figure_of_predictions(Finding(code, "note", "", "", "", "", ""), None) for code in FAULTS)


def learner(x, y, model, valid=None, **more):
    held = DataLoader(TensorDataset(*valid), 64) if valid else None
    return Learner(DataLoaders(DataLoader(TensorDataset(x, y), 32, shuffle=True), held, device="cpu"), model, nn.CrossEntropyLoss(), **more)


def test_check_shows_the_shares_of_labels():
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    f = next(f for f in learner(x, (x[:, 0] > 2).long(), nn.Linear(6, 2), lr=0.01).check(fast=True) if f.code == "D9")
    assert f.figure.names == ("label 0", "label 1") and sum(f.figure.values[0]) == pytest.approx(1) and f.figure.marks == (0,)


def test_diagnose_shows_curves_calibration_and_slices(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(700, 10)
    y = (x[:, 0] + 0.6 * torch.randn(700) > 0).long()
    noisy = ["a", "b"] * 300
    y[101::2] = torch.where(torch.rand(300) < 0.4, 1 - y[101::2], y[101::2])
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2))
    learn = learner(x[:100], y[:100], model, (x[100:], y[100:]), lr=0.02)
    with learn.no_bar(), learn.no_logging():
        learn.fit(25)
    by_code = {f.code: f.figure for f in learn.diagnose(slices={"place": noisy})}
    valid = learn.recorder.history[-1]["valid_loss"]
    curves = by_code["A1"]
    assert curves.values[1] == tuple(valid) and curves.marks == (valid.index(min(valid)),) and curves.xs == tuple(range(25))
    assert by_code.get("A9", curves) == curves
    p, right = by_code["A6"].values
    assert all(0.5 <= v <= 1 for v in p) and all(0 <= v <= 1 for v in right)
    weak = by_code["A11"]
    assert weak.names == ("a", "b") and weak.marks == (1,) and weak.values[0][1] > weak.values[0][0] and weak.title == "Mean loss by place"


def test_diagnose_shows_what_is_predicted_and_what_is_true():
    from cbnb.callbacks.interpret import Predictions

    said, y = torch.tensor([0] * 96 + [1] * 4), torch.tensor([0] * 60 + [1] * 40)
    seen = Predictions("classes", nn.functional.one_hot(said, 2).float(), y, None, "", None, ["cat", "dog"])
    shares = figure_of_predictions(found("A5", "class cat"), seen)
    assert shares.names == ("cat: predicted", "cat: targets", "dog: predicted", "dog: targets")
    assert shares.values[0] == pytest.approx((0.96, 0.6, 0.04, 0.4))
