"""Notebook 7 is JupyterLab with another page around the notebook: the tests of what people do most, run there, too.

With the installed ipykernel only: what another version changes, JupyterLab shows.
"""

import pytest

from kernels import INSTALLED
from test_chart_page import (
    test_values_under_the_mouse_while_a_cell_runs_and_a_click_that_python_hears as test_values_under_the_mouse,
)
from test_chart_page import test_zoom_names_axes_smoothing_keys_and_table_need_no_kernel as test_charts_need_no_kernel
from test_dashboard_page import test_pause_holds_the_fit_and_the_slider_slows_down_what_follows as test_pause_and_slider
from test_dashboard_page import test_the_keyboard_reaches_every_control as test_keyboard
from test_dashboard_page import test_who_closes_the_page_and_comes_back_finds_the_whole_curve_and_the_controls as test_reopening

pytestmark = pytest.mark.parametrize("server", ["notebook"], indirect=True, scope="session")

__all__ = [
    "test_charts_need_no_kernel",
    "test_keyboard",
    "test_pause_and_slider",
    "test_reopening",
]
__all__ += ["test_values_under_the_mouse"]


@pytest.fixture
def kernel() -> str:
    return INSTALLED
