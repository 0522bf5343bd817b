"""mypy knows what a user calls: in tests/typing the marked lines are errors and no others; the quick start and the tutorials have none.

The pages of the core named here pass it in its strict form, read as they are, without stubs.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks import INDEX, LIB, NBS, ROOT, read, without_directives

CALLS = ROOT / "tests" / "typing" / "calls.py"
STRICT = [
    "loop",
    "events",
    "callback",
    "undo",
    "learner",
    "optim",
    "history",
    "recorder",
    "metrics",
    "schedule",
    "step",
    "data",
    "snapshot",
    "hints",
]
PAGES = [INDEX, *sorted((NBS / "tutorials").glob("*.ipynb"))]


def checked(*paths: Path, cache: Path, root: Path = ROOT, more: tuple[str, ...] = ()) -> str:
    """What mypy says."""
    flags = [
        *more,
        "--ignore-missing-imports",
        "--follow-imports=silent",
        "--no-error-summary",
        "--hide-error-context",
        f"--cache-dir={cache}",
    ]
    done = subprocess.run([sys.executable, "-m", "mypy", *flags, *map(str, paths)], cwd=root, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout


def as_script(notebook: Path) -> str:
    """The code of a notebook that a type checker can read."""
    cells = [
        cell.source
        for cell in read(notebook).cells
        if cell.cell_type == "code" and not cell.source.startswith(("#| hide\n", "%%writefile"))
    ]
    return "\n".join(map(without_directives, cells))


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> list[tuple[str, int, str]]:
    """(file, line, message) of each error in the calls and the pages."""
    folder = tmp_path_factory.mktemp("typing")
    scripts = [folder / f"{page.stem}_page.py" for page in PAGES]
    for page, script in zip(PAGES, scripts):
        script.write_text(as_script(page), encoding="utf-8")
    found = re.findall(r"^(.+?):(\d+): error: (.*?)  \[", checked(CALLS, *scripts, cache=folder / "cache"), re.MULTILINE)
    return [(Path(name).name, int(line), message) for name, line, message in found]


def test_wrong_calls_are_errors_and_no_others(said):
    marked = [
        (i, match[1])
        for i, line in enumerate(CALLS.read_text(encoding="utf-8").splitlines(), 1)
        if (match := re.search(r"# error: (.*)", line))
    ]
    assert len(marked) == 6 and [(line, message) for name, line, message in said if name == CALLS.name] == marked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_is_right(said, page):
    assert [(line, message) for name, line, message in said if name == f"{page.stem}_page.py"] == []


def test_the_core_is_typed_strictly(tmp_path):
    shutil.copytree(LIB, tmp_path / LIB.name, ignore=shutil.ignore_patterns("*.pyi", "__pycache__"))
    modules = [tmp_path / LIB.name / f"{name}.py" for name in STRICT]
    assert checked(*modules, cache=tmp_path / "cache", root=tmp_path, more=("--strict",)) == ""
