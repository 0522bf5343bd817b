"""A person who looks at a sweep: points at a line, chooses runs along an axis, and shows all again."""

from lab import Lab
from notebook_page import axe_violations_in, wait_until

CELLS = [
    "from cbnb.all import *\nfrom cbnb.toy import wave_learner\nlearn = wave_learner()",
    "learn.sweep(dict(lr=[0.0003, 0.001, 0.01, 0.03], wd=[0., 0.1]), 3, prune=False)",
]


def test_runs_are_named_and_chosen(lab: Lab):
    with lab.open(lab.write("sweep.ipynb", CELLS), size=(1200, 1000)) as page:
        page.run_all()
        out = page.output(1)
        figure = out.locator(".cbnb-parallel")
        figure.wait_for()
        said, lines = figure.get_by_role("status"), figure.locator("[data-run]")
        assert lines.count() == 8 and "point at a line" in said.inner_text()
        picture = figure.locator("svg").bounding_box()
        view = [float(v) for v in figure.locator("svg").get_attribute("viewBox").split()]

        def at(x: float, y: float) -> tuple[float, float]:
            """Where a place of the picture is in the tab."""
            return picture["x"] + x * picture["width"] / view[2], picture["y"] + y * picture["height"] / view[3]

        axes = figure.evaluate(
            "root => [...root.querySelectorAll('path')].map(p => p.getAttribute('d').match(/^M([\\d.]+),([\\d.]+)v([\\d.]+)$/))"
            ".filter(Boolean).map(found => found.slice(1).map(Number))"
        )
        (first, top, height), (second, *_) = axes[:2]
        bottom = top + height
        # the best rate is at the top of the first axis: along the upper third of it are the runs with the two highest rates
        page.tab.mouse.move(*at(first, top - 2))
        page.tab.mouse.down()
        page.tab.mouse.move(*at(first, top + (bottom - top) / 3), steps=4)
        page.tab.mouse.up()
        wait_until(lambda: figure.locator("[data-run].out").count() == 4)
        page.tab.mouse.move(*at((first + second) / 2, bottom + 12))
        wait_until(lambda: "4 of 8 runs" in said.inner_text())
        assert axe_violations_in(page, 1) == []
        page.tab.mouse.click(*at(first, (top + bottom) / 2))
        wait_until(lambda: figure.locator("[data-run].out").count() == 0)
        # a line near the pointer is named with its settings
        page.tab.mouse.move(*at(first + 1, top))
        wait_until(lambda: "lr" in said.inner_text() and figure.locator("[data-run].near").count() == 1)
