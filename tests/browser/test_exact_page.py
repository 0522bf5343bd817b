"""Each value beside a step is that of the step: in the chart of a finished fit, with and without its kernel, in zoom, with other smoothing."""

import random
import re

import pytest

from lab import Lab
from notebook_page import NotebookPage, wait_until
from test_chart_page import number, plot, point, values

SETUP = """
from cbnb.all import *
from waves import *

learn = wave_learner(n={n})
"""
RAW, SMOOTH = "train, each batch", "train, smoothed"


# What is read at some shares of the width: the words of the place, and the value of each name; once it is exact, if Python is asked
HOVER = """async ([cell, shares, exact, part]) => {
    const chart = document.querySelectorAll('.jp-Notebook .jp-Cell')[cell].querySelector(part), found = []
    const frame = () => new Promise(done => requestAnimationFrame(done)), where = () => chart.querySelector('.where').textContent
    for (const share of shares) {
        const box = chart.querySelector('.hit').getBoundingClientRect()
        const place = { clientX: box.x + share * box.width, clientY: box.y + 0.4 * box.height, bubbles: true }
        chart.querySelector('.hit').dispatchEvent(new PointerEvent('pointermove', place))
        for (let i = 0; i < 600; i++) { await frame(); if (i > 1 && !(exact && where().includes('nearest'))) break }
        found.push([where(), Object.fromEntries([...chart.querySelectorAll('.names button')].map(b => [b.querySelector('em').textContent, b.lastChild.textContent]))])
    }
    chart.querySelector('.plot').dispatchEvent(new PointerEvent('pointerleave'))
    return found
}"""


def hovered(
    page: NotebookPage, cell: int, shares: list[float], exact: bool, chart: str = ".cbnb-lc"
) -> list[tuple[str, int, dict[str, str]]]:
    """What the chart says of its place, the step, and the values."""
    found = page.tab.evaluate(HOVER, [cell, shares, exact, chart])
    return [(said, int(re.match(r"step ([\d,]+?)(?:,(?!\d{3})|$)", said)[1].replace(",", "")), shown) for said, shown in found]


def press(page: NotebookPage, cell: int, name: str) -> None:
    page.output(cell).locator(".tools button", has_text=name).click()


@pytest.mark.parametrize("n, epochs", [(100, 10), (2000, 10)])
def test_a_finished_fit_shows_the_exact_value_of_each_step(lab: Lab, n: int, epochs: int):
    """1,000 and 20,000 batches: the output has 200 of them, and the kernel the others."""
    cells = [SETUP.format(n=n), f"learn.fit({epochs})", "run = learn.recorder.last()"]
    with lab.open(lab.write(f"exact_{n}.ipynb", cells)) as page:
        page.run_all(timeout=120)
        raw, smooth = page.value("list(run.raw_losses)"), page.value("list(run.losses)")
        valid = page.value("run['valid_loss']")
        plot(page, 1)
        assert len(raw) == n * epochs
        last = values(page, 1)
        assert last == {RAW: number(raw[-1]), SMOOTH: number(smooth[-1]), "valid": number(valid[-1])}
        assert f"{valid[-1]:.6f}" in page.text(1)
        rng = random.Random(1)
        shares = [rng.uniform(0.001, 0.999) for _ in range(50)]
        for share, (said, step, shown) in zip(shares, hovered(page, 1, shares, exact=True)):
            assert "nearest" not in said and abs(step - share * (len(raw) - 1)) <= len(raw) / 400  # a pixel or two
            assert (shown[RAW], shown[SMOOTH]) == (number(raw[step]), number(smooth[step]))
            assert shown["valid"] == (number(valid[(step + 1) // n - 1]) if step + 1 >= n else "–")
        # zoom: each step of the range is drawn
        width = 300 / len(raw)
        point(page, 1, 0.5)
        page.tab.mouse.down()
        point(page, 1, 0.5 + width if width > 0.01 else 0.51)
        page.tab.mouse.up()
        wait_until(lambda: page.output(1).locator("svg path.faint").first.get_attribute("d").count("L") >= 199)
        # another weight, as the recorder would have smoothed with it
        press(page, 1, "whole range")
        page.output(1).locator(".tools input").evaluate("(e) => { e.value = 0.979; e.dispatchEvent(new Event('input')) }")
        mean = weight = 0.0
        for value in raw:
            mean, weight = 0.979 * mean + 0.021 * value, 0.979 * weight + 0.021
        page.tab.mouse.move(1, 1)
        wait_until(lambda: values(page, 1)[SMOOTH] == number(mean / weight))
        assert not page.console_errors()


def test_without_its_kernel_a_chart_shows_the_steps_that_it_has(lab: Lab):
    cells = [SETUP.format(n=500), "learn.fit(2)", "run = learn.recorder.last()"]
    with lab.open(lab.write("kept.ipynb", cells)) as page:
        page.run_all(timeout=60)
        raw, smooth = page.value("list(run.raw_losses)"), page.value("list(run.losses)")
        plot(page, 1)
        page.save()
    with lab.open("kept.ipynb") as page:  # another kernel, which knows nothing of the fit
        plot(page, 1)
        rng = random.Random(2)
        found = hovered(page, 1, [rng.uniform(0.001, 0.999) for _ in range(20)], exact=False)
        for _, step, shown in found:
            assert (shown[RAW], shown[SMOOTH]) == (number(raw[step]), number(smooth[step]))
        assert any(re.search(r"nearest of the (1\d\d|20\d)\b", said) for said, _, _ in found)
        page.tab.mouse.move(1, 1)
        page.output(1).locator(".tools input").evaluate("(e) => { e.value = 0.9; e.dispatchEvent(new Event('input')) }")
        wait_until(lambda: values(page, 1)[SMOOTH].startswith("≈ "))
        page.output(1).locator(".tools input").evaluate("(e) => { e.value = 0.98; e.dispatchEvent(new Event('input')) }")
        wait_until(lambda: values(page, 1)[SMOOTH] == number(smooth[-1]))
        assert not page.errors()


def test_a_notebook_that_is_saved_in_the_middle_of_a_fit_keeps_the_rows_so_far(lab: Lab):
    """Opened without its kernel, and as nbconvert writes it; meanwhile the page shows the panel alone, and after the fit its own output."""
    with lab.open(lab.write("middle.ipynb", [SETUP.format(n=20), "learn.fit(10**4, cbs=Slowly())"])) as page:
        page.run_cell(0)
        page.run_cell(1, wait=False)
        so_far = page.output(1).locator("[class^=cbnb-so-far]")
        wait_until(lambda: so_far.locator("tr").count() > 3)
        assert so_far.is_hidden() and page.output(1).locator(".cbnb-stop").is_visible()
        page.save()
        page.tab.click(".cbnb-stop")
        page.wait_until_idle()
        page.wait_for_text("stopped in epoch", 1)
        assert so_far.count() == 0 and page.output(1).locator(".cbnb-rewind button").is_visible()
    with lab.open("middle.ipynb") as page:
        so_far = page.output(1).locator("[class^=cbnb-so-far]")
        so_far.wait_for()
        assert so_far.locator("tr").count() >= 3 and "a fit that was running when this was stored" in so_far.inner_text()
        assert so_far.locator("img").evaluate("image => image.naturalWidth") > 500
        assert not page.errors()
    tab = lab.browser.new_page()
    tab.goto(lab.to_html("middle.ipynb"))
    tab.locator("[class^=cbnb-so-far] tr").nth(2).wait_for()
    assert "waiting for the first batch" not in tab.locator("body").inner_text()
    tab.close()
