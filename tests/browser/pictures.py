"""The pictures of what cbnb shows, from a real page: nbs/images/gallery/, and the two of the quick start, dashboard.png and picker.png.

    python tests/browser/pictures.py            all of them
    python tests/browser/pictures.py --folder X  into another folder, to look at them

Each part is taken wide and narrow, light and dark. Look at them afterwards.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tools", "tests/browser")]
from lab import Lab, chromium, what_is_missing
from notebook_page import NotebookPage
from notebooks import NBS, ROOT

GALLERY = NBS / "images" / "gallery"
HELD = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from helpers import Held
from waves import Slowly
"""
FIT = """
learn.fit_one_cycle(5, found.lr, cbs=[Slowly(), Held('fit.seen', lambda learn: learn.epoch == 3 and learn.train_iter > 170)])
"""
# name -> (code, selector of the part to take, what to do with the mouse)
OUTPUT = ".jp-OutputArea-output"
AFTER = {
    "losses": ("learn.recorder.plot_losses()", ".cbnb-charts", "hover"),
    "rates": ("learn.recorder.plot_lr(show_moms=True)", ".cbnb-charts", "hover"),
    "metrics": ("learn.recorder.plot_metrics()", ".cbnb-charts", ""),
    "results": ("learn.show_results()", OUTPUT, ""),
    "interpret": ("learn.interpret()", OUTPUT, "matrix"),
    "one_cycle": ("OneCycle(0.01).plot()", OUTPUT, ""),
    "compare": ("compare(*several)", OUTPUT, "near"),
}
SEVERAL = """
from cbnb.display.compare import compare
def fitted(lr):
    torch.manual_seed(0)
    net = nn.Sequential(conv(1, 8), nn.MaxPool2d(2), conv(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    learn = Learner(dls, net, nn.CrossEntropyLoss(), metrics=accuracy, lr=lr)
    with learn.no_logging(), learn.no_bar(): learn.fit_one_cycle(4, lr)
    return learn
several = [fitted(lr) for lr in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)]
"""
SIZES = {"wide": (1250, 1400), "narrow": (690, 1400)}


def quick_start() -> list[str]:
    """The code of the quick start, up to the learner."""
    cells = [cell.source for cell in nbformat.read(NBS / "index.ipynb", as_version=4).cells if cell.cell_type == "code"]
    return cells[: next(i for i, source in enumerate(cells) if "lr_find" in source)]


def both_themes(page: NotebookPage, part, folder: Path, name: str, act=lambda: None) -> None:
    """A picture of a part of the page, light and dark."""
    for theme in ("light", "dark"):
        page.set_theme(theme)
        act()
        page.tab.wait_for_timeout(600)
        page.screenshot(folder / f"{name}_{theme}.png", of=part)
    page.set_theme("light")


def mouse(page: NotebookPage, part, what: str):
    """Puts the mouse where there is something to see."""

    def act() -> None:
        if what in ("hover", "near"):
            box = part.locator(".plot").first.bounding_box()
            page.tab.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * (0.5 if what == "hover" else 0.62))
        if what == "matrix":
            buttons = part.locator("td button")
            wrong = [i for i in range(buttons.count()) if buttons.nth(i).inner_text() in ("1", "2", "3")]
            cell = buttons.nth(wrong[0] if wrong else 0)
            if cell.get_attribute("aria-pressed") == "false":  # a second click would take the choice back
                cell.click()

    return act


def take_fit(page: NotebookPage, lab: Lab, folder: Path, size: str) -> None:
    """The picker, the dashboard in mid-fit, and what is left of it."""
    page.run_cell(1)
    picker = page.output(1).locator(".cbnb-picker")
    picker.wait_for()
    page.tab.wait_for_timeout(1500)
    both_themes(page, picker, folder, f"picker_{size}")
    page.run_cell(2, wait=False)
    dashboard = page.output(2).locator(".cbnb-dashboard")
    dashboard.locator("td", has_text="00:").nth(2).wait_for()
    page.tab.wait_for_timeout(4000)  # until the fit is held
    both_themes(page, dashboard, folder, f"dashboard_{size}")
    lab.touch("fit")
    page.wait_until_idle()
    page.tab.wait_for_timeout(1000)
    both_themes(page, page.output(2), folder, f"fit_{size}")


def take_plots(page: NotebookPage, folder: Path, size: str) -> None:
    """Everything that is shown after a fit."""
    for cell, (name, (_, selector, what)) in enumerate(AFTER.items(), 4):
        page.run_cell(cell, timeout=120)
        output = page.output(cell)
        part = output.locator(selector).first
        part.wait_for()
        page.tab.wait_for_timeout(800)
        part.scroll_into_view_if_needed()
        both_themes(page, part, folder, f"{name}_{size}", mouse(page, part, what))


def main() -> None:
    if why := what_is_missing():
        sys.exit(why)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=GALLERY)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    start = "\n".join([HELD, *quick_start()])
    cells = [start, "found = learn.lr_find(n_epoch=5)", FIT, SEVERAL, *(code for code, _, _ in AFTER.values())]
    with tempfile.TemporaryDirectory() as place, chromium() as browser, Lab(Path(place) / "lab", browser=browser) as lab:
        for size, pixels in SIZES.items():
            (lab.notebooks / "fit.seen").unlink(missing_ok=True)
            with lab.open(lab.write(f"pictures_{size}.ipynb", cells), size=pixels) as page:
                page.run_cell(0, timeout=120)
                take_fit(page, lab, folder, size)
                page.run_cell(3, timeout=300)
                take_plots(page, folder, size)
    if folder == GALLERY:
        for name in ("dashboard", "picker"):
            shutil.copy(GALLERY / f"{name}_wide_light.png", NBS / "images" / f"{name}.png")


if __name__ == "__main__":
    main()
