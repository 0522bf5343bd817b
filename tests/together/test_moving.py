"""The pages about other libraries: their code stands there as text, with what it printed. Each block is tested where the library is installed.

In an environment with all of them (fastai, lightning, keras, transformers with accelerate, skorch, pytorch-ignite), run

KERAS_BACKEND=torch python -m pytest tests/together/test_moving.py
"""

import ast
import contextlib
import io
import re

import pytest

from notebooks import NBS, directives, read

NEEDS = {
    "plain_loop": "torch",
    "fastai_v2": "fastai",
    "lightning": "lightning",
    "keras": "keras",
    "hf_trainer": "transformers",
    "skorch": "skorch",
    "ignite": "ignite",
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def parts(page):
    """What the page runs, in order: ('cell', code), ('theirs', code of the other library, lines that it prints)."""
    for cell in read(NBS / "moving" / f"{page}.ipynb").cells:
        if cell.cell_type == "code":
            yield "cell", cell.source, directives(cell)
            continue
        blocks = FENCE.findall(cell.source)
        for i, (language, code) in enumerate(blocks):
            if language == "python":
                prints = blocks[i + 1][1] if blocks[i + 1 : i + 2] and blocks[i + 1][0] == "text" else ""
                yield "theirs", code, prints.splitlines()


def numbers(text):
    return [float(n) for n in NUMBER.findall(text)]


def same(line, wanted, tol=2e-5):
    """Whether two lines differ in their last decimals only."""
    return NUMBER.sub("#", line) == NUMBER.sub("#", wanted) and numbers(line) == pytest.approx(numbers(wanted), abs=tol, rel=tol)


def check_printed(text, wanted):
    """Each of `wanted` is among the lines, in this order; others may be in between, such as warnings of a library."""
    lines = iter(text.splitlines())
    for line in wanted:
        assert any(same(found, line) for found in lines), f"{line!r} is not in {text}"


def test_lines_are_compared_by_their_numbers():
    assert same("loss 0.12345, ok", "loss 0.12346, ok") and not same("loss 0.1235, ok", "loss 0.1239, ok")
    assert not same("loss 0.1", "lose 0.1") and not same("[1, 2]", "[1]")
    check_printed("a 1.0\nnoise\nb 2", ["a 1.00001", "b 2"])
    for wrong in (["b 2", "a 1"], ["c 3"]):
        with pytest.raises(AssertionError, match="is not in"):
            check_printed("a 1.0\nb 2", wrong)


@pytest.mark.parametrize("page", NEEDS)
def test_a_page_compares_our_numbers_with_those_that_it_shows(page):
    shown, compared = [], 0
    for kind, code, more in parts(page):
        tree = ast.parse(code)
        if kind == "theirs":
            shown += numbers(" ".join(more))
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "theirs":
                written = numbers(ast.unparse(node.value))
                assert written and not [n for n in written if n not in shown]
                compared += 1
    assert compared >= 1 or page == "plain_loop"


@pytest.mark.parametrize("page", NEEDS)
def test_the_code_of_other_libraries_prints_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip(NEEDS[page], exc_type=ImportError)
    space = {"__name__": "__main__"}
    for kind, code, more in parts(page):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, f"{page}.ipynb", "exec"), space)
        if kind == "theirs":
            check_printed(printed.getvalue(), more)
