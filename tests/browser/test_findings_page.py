"""The findings of a check and of a diagnosis in JupyterLab: light and dark, wide and narrow."""

import pytest

from lab import Lab
from notebook_page import axe_violations

SETUP = """
import torch
from torch import nn
from cbnb.insight.finding_figures import Figure
from cbnb.insight.findings import Finding, Findings

bars = Figure('bars', 'Gradient norm by layer', tuple('024'), ((1e-6, 1e-3, 2.),), (0,))
lines = Figure('lines', 'Loss by epoch', ('training', 'validation'), ((3., 1., 0.5), (3., 2., 2.5)), (1,), (0, 1, 2), 'epoch')
sure = Figure('calibration', 'Right by probability', ('right', 'calibrated'), ((0.55, 0.95), (0.5, 0.6)))
fix = 'keep the best epoch with cbs=SaveModel(), then try more data, weight decay (wd=), or a smaller model'
found = [Finding(code, level, 'the layer', 'gradient 1e-6', 'more', 'with such small gradients, the first layers hardly learn', fix, figure)
         for code, level, figure in (('M16', 'error', bars), ('A1', 'warning', lines), ('A6', 'note', sure), ('D20', 'note', None))]
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_findings_are_readable_and_figures_go_below_on_a_narrow_page(lab: Lab, tmp_path, theme):
    with lab.open(lab.write(f"findings_{theme}.ipynb", [SETUP, "Findings(found)"]), size=(1200, 1100)) as page:
        page.run_all()
        page.set_theme(theme)
        part = page.output(1).locator(".cbnb-findings")
        group = part.locator("ol > li").first
        assert part.get_by_role("img").count() == 3 and page.errors() == []
        for width in (1200, 560):
            page.tab.set_viewport_size({"width": width, "height": 1100})
            page.tab.wait_for_timeout(300)
            text, figure = group.locator("p").first.bounding_box(), group.locator("svg").bounding_box()
            assert figure["y"] > text["y"] + text["height"] if width < 700 else figure["x"] > text["x"] + text["width"]
            assert axe_violations(page, ".cbnb-findings") == []
            page.screenshot(tmp_path / f"findings_{theme}_{width}.png", of=1)
        assert page.console_errors() == []
