"""The two pictures of widgets in the docs, from a real page: nbs/images/dashboard.png and picker.png.

    python tools/screenshots.py

They are what the quick start shows in JupyterLab, at twice the size, so that they are sharp on every screen. Look at them afterwards.
"""

import sys
import tempfile
from pathlib import Path

import nbformat

from notebooks import NBS, ROOT

sys.path[:0] = [str(ROOT / "tests" / "browser")]
from lab import Lab, chromium, what_is_missing
from notebook_page import NotebookPage

HELD = """
import sys
sys.path.insert(0, {tests!r})
from helpers import Held
from waves import Slowly
"""
IMAGES = NBS / "images"


def quick_start() -> list[str]:
    """The code of the quick start, up to the learner."""
    cells = [cell.source for cell in nbformat.read(NBS / "index.ipynb", as_version=4).cells if cell.cell_type == "code"]
    return cells[: next(i for i, source in enumerate(cells) if "lr_find" in source)]


def take(page: NotebookPage, lab: Lab, first: int) -> None:
    """Run the cells from `first` on, and take a picture of each when there is the most to be seen."""
    page.run_cell(first)
    picker = page.output(first).locator(".cbnb-picker")
    picker.locator(".cbnb-chart").wait_for()
    page.screenshot(IMAGES / "picker.png", of=picker)
    page.run_cell(first + 1, wait=False)
    dashboard = page.output(first + 1).locator(".cbnb-dashboard")
    dashboard.locator("td", has_text="00:").nth(2).wait_for()
    page.tab.wait_for_timeout(3000)  # until the fit is held
    page.screenshot(IMAGES / "dashboard.png", of=dashboard)
    lab.touch("fit")
    page.wait_until_idle()


def main() -> None:
    if why := what_is_missing():
        sys.exit(why)
    start = "\n".join([HELD.format(tests=str(ROOT / "tests")), *quick_start()])
    fit = "learn.fit_one_cycle(5, found.lr, cbs=[Slowly(), Held('fit.seen', lambda learn: learn.epoch == 3 and learn.train_iter > 170)])"
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, Lab(Path(folder) / "lab", browser=browser) as lab:
        with lab.open(lab.write("pictures.ipynb", [start, "found = learn.lr_find(n_epoch=5)", fit]), size=(960, 2000), scale=2) as page:
            page.run_cell(0)
            take(page, lab, 1)


if __name__ == "__main__":
    main()
