"""The picture of the losses in JupyterLab: one, redrawn in its place while the cell runs."""

from notebook_page import wait_until

SETUP = """
from cbnb.all import *
from helpers import *

learn = line_learner(20, progress=True, cbs=[ShowGraph, Held("picture.seen", lambda learn: learn.train_iter > 20, seconds=0.25)])
"""


def picture(page):
    return page.output(1).locator("img:not(.cbnb-still)")


def test_one_picture_is_redrawn_while_the_cell_runs(lab, tmp_path):
    with lab.open(lab.write("graph.ipynb", [SETUP, "learn.fit(30)", "learn.validate()"])) as page:
        page.run_all(wait=False)
        wait_until(lambda: picture(page).count() == 1, 60)
        first = picture(page).get_attribute("src")
        wait_until(lambda: picture(page).get_attribute("src") != first, 100)  # a slow figure keeps the next one waiting
        assert page.is_running(1)
        wait_until(lambda: picture(page).count() == 1)  # while JupyterLab replaces the picture, there may be none or two
        lab.touch("picture")
        page.wait_until_idle()
        assert picture(page).count() == 1
        [text] = [output["data"]["text/plain"] for output in page.outputs(1) if "image/png" in output.get("data", {})]
        assert text.startswith("losses over 600 training batches; train, smoothed from")
        assert page.output(2).locator("img").count() == 0
        assert page.errors() == [] and page.console_errors() == []
        page.set_theme("dark")
        page.screenshot(tmp_path / "graph.png", of=1)
