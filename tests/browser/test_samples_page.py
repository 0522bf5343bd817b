"""The slider over the epochs of `Samples`, in JupyterLab: with the mouse and with the keyboard, light and dark, and a day later."""

from lab import Lab
from notebook_page import NotebookPage, axe_violations_in

SETUP = """
from cbnb.all import *
from cbnb.toy import digits_learner

learn, samples = digits_learner(n=400), Samples(4)

def samples_said():
    right = [not card.wrong for card in samples.cards[-1]]
    return f'after epoch {samples.epochs[-1]}: {sum(right)} of {len(right)} right'
"""
FIT = "learn.fit(4, cbs=samples)"


def said(page: NotebookPage) -> str:
    return page.output(1).locator(".cbnb-mounted [role=status]").inner_text()


def test_a_slider_goes_through_the_epochs(lab: Lab, tmp_path):
    with lab.open(lab.write("samples.ipynb", [SETUP, FIT]), size=(1100, 900)) as page:
        page.run_all()
        assert page.errors() == []
        slider = page.output(1).locator(".cbnb-mounted input[type=range]")
        slider.wait_for()
        assert said(page) == page.value("samples_said()")
        slider.focus()
        page.tab.keyboard.press("ArrowLeft")
        assert said(page).startswith("after epoch 2: ")
        page.tab.keyboard.press("Home")
        assert said(page).startswith("after epoch 0: ") and slider.get_attribute("aria-valuetext") == said(page)
        box = slider.bounding_box()
        page.tab.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
        assert said(page).startswith("after epoch 3: ")
        images = page.output(1).locator(".cbnb-mounted img")
        assert images.count() == 4 and all(image.evaluate("i => i.complete && i.naturalWidth") for image in images.all())
        for theme in ("light", "dark"):
            page.set_theme(theme)
            assert axe_violations_in(page, 1) == []
            page.screenshot(tmp_path / f"samples_{theme}.png", of=1)
        assert page.console_errors() == []


def test_the_slider_needs_no_kernel(lab: Lab):
    with lab.open(lab.write("samples_later.ipynb", [SETUP, FIT]), size=(1100, 900)) as page:
        page.run_all()
        page.save()
        page.reopen()
        page.tab.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        output = page.output(1)
        output.locator(".cards:visible").first.wait_for()
        if output.locator(".cbnb-mounted").count():  # trusted, so the script has run
            output.locator(".cbnb-mounted input[type=range]").focus()
            page.tab.keyboard.press("Home")
            assert said(page).startswith("after epoch 0: ")
        assert output.locator("img:visible").count() == 4
