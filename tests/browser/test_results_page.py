"""A person who looks into the errors of a model, with the mouse and with the keyboard, and a day later."""

from pathlib import Path

from lab import Lab
from notebook_page import NotebookPage, axe_violations_in

SETUP = """
from cbnb.all import *
from cbnb.toy import digits_learner, wave_learner

learn = digits_learner()
learn.fit_one_cycle(2)
interp = learn.interpret()
matrix = interp.confusion_matrix()
actual, predicted, often = interp.most_confused()[0]
wave = wave_learner()
"""
CELLS = [SETUP, "interp", "learn.show_results()", "wave.interpret()"]
CARDS = ".cbnb-mounted .card"  # of the form that answers; the still one is hidden


def cards(page: NotebookPage) -> int:
    return page.output(1).locator(CARDS).count()


def status(page: NotebookPage) -> str:
    return page.output(1).locator("[role=status]").inner_text()


def test_items_behind_a_cell_of_the_matrix(lab: Lab):
    with lab.open(lab.write("results.ipynb", CELLS), size=(1300, 1300)) as page:
        page.run_all()
        assert page.errors() == []
        buttons = page.output(1).locator(".cbnb-matrix button")
        buttons.first.wait_for()
        # the numbers are those of the kernel
        shown = [int(text.replace(",", "")) for text in buttons.all_inner_texts()]
        assert shown == page.value("[int(n) for row in matrix for n in row if n]")
        assert "200 of 360 items are in this page" in status(page)
        # a click on the most frequent error
        name = page.value("f'actual {actual}, predicted {predicted}: {often} item' + 's'*(often > 1)")
        cell = page.output(1).locator(f'.cbnb-matrix button[aria-label="{name}"]')
        cell.click()
        often = page.value("often")
        assert cards(page) == often == page.output(1).locator(f"{CARDS}.wrong").count()
        assert cell.get_attribute("aria-pressed") == "true" and status(page) == name
        # by class and by loss
        page.output(1).get_by_role("button", name="all items").click()
        page.output(1).get_by_label("right or wrong").select_option("wrong")
        n_wrong = page.value("int(matrix.sum() - matrix.diag().sum())")
        assert status(page) == f"all items: {n_wrong} items"
        page.output(1).get_by_label("order").select_option("low")
        lowest = page.value("min(interp.losses[interp.decoded != interp.targets].tolist())")
        assert f"loss {lowest:.4g}" in page.output(1).locator(CARDS).first.inner_text()
        # the keyboard: one stop for the matrix, and arrows within it
        buttons.first.focus()
        page.tab.keyboard.press("ArrowDown")
        page.tab.keyboard.press("Enter")
        label = page.tab.evaluate("document.activeElement.getAttribute('aria-label')")
        assert label.startswith("actual ") and not label.startswith("actual 0") and status(page).startswith(label.partition(":")[0])
        assert page.output(1).locator('.cbnb-matrix button[tabindex="0"]').count() == 1
        for theme in ("light", "dark"):
            page.set_theme(theme)
            assert [axe_violations_in(page, cell) for cell in (1, 2, 3)] == [[], [], []]


def test_the_page_needs_no_kernel_and_is_there_a_day_later(lab: Lab):
    path = lab.write("results_later.ipynb", CELLS)
    with lab.open(path, size=(1000, 1200)) as page:
        page.run_all()
        page.save()
        page.reopen()
        page.tab.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        output = page.output(1)
        output.locator(".cbnb-matrix:visible").first.wait_for()
        if output.locator(".cbnb-matrix button").count():  # trusted, so the script has run
            output.locator(".cbnb-matrix button").first.click()
            assert status(page).startswith("actual ")
        assert output.locator("img").count() > 5


def saved(lab: Lab, name: str) -> tuple[Path, list[int]]:
    """A notebook that was run and saved, and the numbers of its matrix."""
    path = lab.write(f"{name}.ipynb", CELLS)
    with lab.open(path, size=(1000, 1200)) as page:
        page.run_all()
        assert page.errors() == []
        numbers = page.value("[int(n) for row in matrix for n in row if n]")
        page.save()
    return lab.notebooks / f"{name}.ipynb", numbers


def test_a_notebook_that_is_not_trusted_shows_matrix_and_items(lab: Lab):
    path, numbers = saved(lab, "results_strange")
    with lab.open(lab.untrusted(path.name), size=(1000, 1200)) as page:
        matrix = page.output(1).locator("table").first
        matrix.wait_for()
        assert matrix.locator("button").count() == 0  # no script has run
        assert shown(matrix.locator("td").all_inner_texts()) == numbers
        for cell in (1, 2):
            assert page.output(cell).locator("img").count() > 5
            assert page.output(cell).locator("img").first.evaluate("image => image.naturalWidth") > 0
        page.output(3).scroll_into_view_if_needed()
        page.output(3).locator("img, table").first.wait_for()
        assert not page.errors()


def test_a_page_made_by_nbconvert_answers_or_shows_the_still_form(lab: Lab):
    path, numbers = saved(lab, "results_converted")
    address = lab.to_html(path.name)
    for scripts in (True, False):
        context = lab.browser.new_context(java_script_enabled=scripts)
        tab, errors = context.new_page(), []
        tab.on("pageerror", lambda error, errors=errors: errors.append(error))
        tab.goto(address)
        matrix = tab.locator("table:visible").first
        matrix.wait_for()
        if scripts:
            tab.locator(".cbnb-matrix button").first.click()
            assert tab.locator("[role=status]").first.inner_text().startswith("actual ")
        else:
            assert shown(matrix.locator("td").all_inner_texts()) == numbers
        assert tab.locator("img:visible").count() > 5 and not errors
        context.close()


def shown(texts: list[str]) -> list[int]:
    """The numbers of the cells that are not empty."""
    return [int(text.replace(",", "")) for text in texts if text.strip().replace(",", "").isdigit()]
