"""The tools that turn notebooks into a README, a page and a site, on notebooks of a few cells."""

import base64

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import docs
import docs_api
import notebooks
import readme
import render
import static_widgets

TABLE = '<table class="c"><tr><td>1</td></tr></table>'
PIXEL = base64.b64encode(b"a figure").decode()


def ran(source: str, *outputs: dict) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=list(outputs))


def shown(**data: str) -> dict:
    return new_output("display_data", data={kind.replace("_", "/"): content for kind, content in data.items()})


def printed(text: str) -> dict:
    return new_output("stream", name="stdout", text=text)


def test_directives_are_the_leading_lines_only():
    cell = new_code_cell("#| export\n# | eval: false\nx = 1\n#| slow")
    assert notebooks.directives(cell) == ["export", "eval: false"]
    assert notebooks.is_skipped(cell) and not notebooks.is_hidden(cell)
    assert notebooks.is_skipped(new_code_cell("#| slow\nx")) and not notebooks.is_skipped(new_code_cell("#| slow\nx"), frozenset())


def test_every_cell_runs_in_a_kernel_and_a_failure_is_located(tmp_path):
    path = tmp_path / "some.ipynb"
    kept = printed("kept\n")
    cells = [ran("print(6 * 7)"), ran("#| eval: false\n1/0", kept), ran("bool(get_ipython().kernel)")]
    nbformat.write(new_notebook(cells=cells), path)
    with notebooks.clean_kernels():
        outputs = [cell.outputs for cell in notebooks.execute(path).cells]
        assert outputs[0][0].text == "42\n" and outputs[1] == [kept] and outputs[2][0].data == {"text/plain": "True"}
        nbformat.write(new_notebook(cells=[new_markdown_cell("text"), ran("x = 1\nx / 0")]), path)
        with pytest.raises(notebooks.CellFailed, match=r"(?s)some.ipynb, cell 2:.*2 \| x / 0.*ZeroDivisionError"):
            notebooks.execute(path)


def test_readme_shows_figures_tables_and_text():
    page = readme.Readme(
        new_notebook(
            cells=[
                new_markdown_cell("# Title\n\n[more](00_callback.ipynb#top), [web](https://example.org), [here](#below)"),
                ran("#| hide\nsecret = 1"),
                ran("plot()", shown(text_plain="<Figure>", image_png=PIXEL)),
                ran("#| echo: false\ntable", shown(text_plain="text", text_html=f"<style>x</style>{TABLE}")),
                ran("widget", shown(text_plain="epoch 0", text_html="<svg></svg>")),
            ]
        )
    )
    assert "(nbs/00_callback.ipynb#top)" in page.text and "(https://example.org)" in page.text and "(#below)" in page.text
    assert "secret" not in page.text and "```python\ntable" not in page.text
    assert list(page.images.values()) == [b"a figure"] and "![](nbs/images/readme-1.png)" in page.text
    assert "<table><tr><td>1</td></tr></table>" in page.text and "```\nepoch 0\n```" in page.text


def test_page_fetches_nothing():
    outside = '<img src="https://example.org/a.png"><script src="https://example.org/a.js"></script><a href="https://example.org">ok</a>'
    cell = ran("1", shown(text_html=outside), printed("epoch 1\nAccuracy: 0.9\n"))
    nb = new_notebook(cells=[new_markdown_cell("[next](01_data.ipynb)"), cell])
    page = render.to_html(render.reader_view(nb), "title", "../nbs")
    assert "<script" not in page and "a.png" not in page and "url(http" not in page
    assert 'href="https://example.org"' in page and 'href="../nbs/01_data.ipynb"' in page
    assert render.last_line_with("accuracy", nb) == "Accuracy: 0.9"


def test_widgets_become_html():
    state = {
        "box": {"model_name": "VBoxModel", "state": {"children": ["IPY_MODEL_bar", "IPY_MODEL_gone"], "layout": "IPY_MODEL_free"}},
        "bar": {"model_name": "FloatLogSliderModel", "state": {"description": "<lr>", "value": 0.01, "min": -4.0, "max": 0.0, "base": 10.0}},
        "gone": {"model_name": "ButtonModel", "state": {"description": "unseen", "layout": "IPY_MODEL_none"}},
        "none": {"model_name": "LayoutModel", "state": {"display": "none"}},
    }
    view = {"model_id": "box"}
    own = ran("dashboard", new_output("display_data", data={static_widgets.VIEW: view, "text/html": "its own picture"}))
    nb = new_notebook(cells=[ran("box", new_output("display_data", data={static_widgets.VIEW: view, "text/plain": "VBox()"})), own])
    nb.metadata["widgets"] = {static_widgets.STATE: {"state": state}}
    static_widgets.freeze(nb)
    page = nb.cells[0].outputs[0].data["text/html"]
    assert "&lt;lr&gt;" in page and 'value="-2"' in page and "unseen" not in page
    assert nb.cells[1].outputs[0].data == {"text/html": "its own picture"} and "widgets" not in nb.metadata


def test_site_names_entries_and_links():
    source = 'class A:\n    def f(self): "doc"\n    def g(self): pass\n@patch\ndef h(self: Learner): "doc"\ndef _p(): "doc"'
    assert list(docs_api.documented(source)) == ["A", "A.f", "Learner.h"]
    module = new_notebook(cells=[new_code_cell("#| default_exp learner"), new_code_cell("#| export\n" + source)])
    site = docs.Site({notebooks.NBS / "03_learner.ipynb": module})
    assert site.link("`learn.h()` and `other`") == "{py:obj}`learn.h() <cbnb.learner.Learner.h>` and `other`"
    assert site.link("# `A`\n```\n`A`\n```") == "# `A`\n```\n`A`\n```"
    assert docs.to_pages("[a](02a_optim.ipynb#x) [b](../00_callback.ipynb)") == "[a](optim.ipynb#x) [b](../callback.ipynb)"
