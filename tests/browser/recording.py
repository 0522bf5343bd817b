"""The moving pictures of the README, nbs/images/dashboard.gif and dashboard-dark.gif: a fit in JupyterLab, recorded while it is steered.

    python tests/browser/recording.py               record it; Chromium is needed, and a machine that is not too busy
    python tests/browser/recording.py --dark        record it in JupyterLab's dark theme
    python tests/browser/recording.py --file X.gif  into another file, to look at it

The fit is that of the quick start, slowed down so that a person can follow. The first frame shows it half done, because that is what a
reader sees who has switched off moving pictures.
"""

import argparse
import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image, ImageDraw

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("tools", "tests/browser", "")]
from cbnb.display.look import PALETTE
from lab import Lab, chromium, what_is_missing
from notebooks import NBS, ROOT
from pictures import quick_start

GIF = NBS / "images" / "dashboard.gif"
DARK = GIF.with_stem("dashboard-dark")
LIMIT = 600_000  # bytes
WIDTH = 900  # pixels
PAGE = (1250, 900)  # so that the chart and the table are side by side
EVERY = 0.15  # seconds between two frames
FRAMES, LAST = 40, 12  # how many are taken while it trains, and for how many more the end stays
COLORS = 128
FIT = "learn.fit_one_cycle(5, 0.01)"
SLOWLY = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from waves import Slowly
learn.add_cb(Slowly({{seconds}}))
"""
HIDDEN = ".jp-cell-toolbar, .jp-Collapser, .jp-Notebook-footer { display: none !important }"
POINTER = [(0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12)]


def shot(page, box: dict, mouse: tuple[float, float] | None) -> Image.Image:
    """What is in a part of the page now, with the pointer, which a page does not draw."""
    image = Image.open(io.BytesIO(page.tab.screenshot(clip=box))).convert("RGB")
    if mouse:
        points = [(mouse[0] - box["x"] + x, mouse[1] - box["y"] + y) for x, y in POINTER]
        ImageDraw.Draw(image).polygon(points, fill="white", outline="black")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)


def way_of_the_mouse(start: tuple[float, float], end: tuple[float, float], n: int) -> list[tuple[float, float]]:
    """Places on a line, slower at both ends."""
    shares = [(i / (n - 1)) ** 2 * (3 - 2 * i / (n - 1)) for i in range(n)]
    return [(start[0] + s * (end[0] - start[0]), start[1] + s * (end[1] - start[1])) for s in shares]


def recorded(lab: Lab, seconds: float, theme: str) -> list[Image.Image]:
    """The frames of a fit that is steered: the learning rate is lowered, and then it ends."""
    cells = ["\n".join([*quick_start(), SLOWLY.format(seconds=seconds)]), FIT]
    with lab.open(lab.write("recording.ipynb", cells), size=PAGE) as page:
        page.set_theme(theme)
        page.run_cell(0, timeout=120)
        page.run_cell(1, wait=False)
        output = page.output(1)
        output.locator(".cbnb-dashboard").wait_for()
        output.locator("td", has_text="00:").nth(1).wait_for(timeout=120_000)
        output.scroll_into_view_if_needed()
        page.tab.add_style_tag(content=HIDDEN)
        box = page.cell(1).bounding_box()
        box["height"] -= 6  # without the edge of the cell
        slider = output.locator(".cbnb-scale .noUi-handle").first.bounding_box()
        handle = (slider["x"] + slider["width"] / 2, slider["y"] + slider["height"] / 2)
        away = (handle[0] + 160, handle[1] + 150)
        aim = (handle[0] - 20, handle[1])
        moves = [None] * 4 + way_of_the_mouse(away, handle, 5) + ["down"] + way_of_the_mouse(handle, aim, 3) + ["up"]
        moves += way_of_the_mouse(aim, away, 5) + [None] * FRAMES
        frames, mouse = [], None
        for move in moves[:FRAMES]:
            begun = time.monotonic()
            if not output.locator(".cbnb-dashboard").count():
                break
            if move in ("down", "up"):
                getattr(page.tab.mouse, move)()
            elif move:
                mouse = move
                page.tab.mouse.move(*mouse)
            frames.append(shot(page, box, mouse))
            time.sleep(max(0, EVERY - (time.monotonic() - begun)))
        page.wait_until_idle(timeout=120)
        page.tab.wait_for_timeout(1000)
        return [*frames, shot(page, box, None)]


def write_gif(frames: list[Image.Image], path: Path, theme: str) -> None:
    """One palette for all frames, so that what does not change needs no bytes."""
    sheet = Image.new("RGB", (WIDTH, 3 * frames[0].height))
    for i, frame in enumerate((frames[0], frames[len(frames) // 2], frames[-1])):
        sheet.paste(frame, (0, i * frame.height))
    for i, name in enumerate(("train", "valid", "raw", "quiet")):  # thin lines, which few pixels have
        sheet.paste(getattr(PALETTE[name], theme), (i * 100, 0, i * 100 + 100, 100))
    palette = sheet.quantize(COLORS, dither=Image.Dither.NONE)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [round(1000 * EVERY)] * (len(frames) - 1) + [round(1000 * EVERY * LAST)]
    drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=durations, loop=0, optimize=False, disposal=1)


def main() -> None:
    if why := what_is_missing():
        sys.exit(why)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--dark", action="store_true", help="in the dark theme")
    parser.add_argument("--seconds", type=float, default=0.02, help="how much longer a batch lasts")
    args = parser.parse_args()
    theme = "dark" if args.dark else "light"
    path = args.file or (DARK if args.dark else GIF)
    with tempfile.TemporaryDirectory() as place, chromium() as browser, Lab(Path(place) / "lab", browser=browser) as lab:
        frames = recorded(lab, args.seconds, theme)
    write_gif(frames, path, theme)
    size = path.stat().st_size
    print(f"{path.name}: {len(frames)} frames of {frames[0].width} x {frames[0].height}, {size / 1000:.0f} kB")
    if size > LIMIT:
        sys.exit(f"that is more than {LIMIT / 1000:.0f} kB: take fewer colors or frames")


if __name__ == "__main__":
    main()
