"""mypy and pyright know what a user calls: in tests/typing the marked lines are errors and no others; the quick start and the tutorials have none.

mypy finds nothing in the whole package, of which pyproject.toml has the core checked strictly. The pages of the core named here pass pyright.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from later import write_later
from notebooks import INDEX, LIB, NBS, ROOT, read, without_directives

CALLS = ROOT / "tests" / "typing" / "calls.py"
FOR_PYRIGHT = "loop events callback callback_list runs undo learner optim step history recorder schedule fit_opt hints".split()
NOT_STRICT = ("fit_opt",)
PAGES = [INDEX, *sorted((NBS / "tutorials").glob("*.ipynb"))]


def checked(*paths: Path) -> str:
    """What mypy says. It keeps in .mypy_cache what it knows of torch, for the next time."""
    flags = ["--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary", "--hide-error-context"]
    done = subprocess.run([sys.executable, "-m", "mypy", *flags, *map(str, paths)], cwd=ROOT, capture_output=True, text=True)
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
    """(file, line, message) of each error in the package, the calls and the pages."""
    folder = tmp_path_factory.mktemp("typing")
    scripts = [folder / f"{page.stem}_page.py" for page in PAGES]
    for page, script in zip(PAGES, scripts):
        script.write_text(as_script(page), encoding="utf-8")
    found = re.findall(r"^(.+?):(\d+): error: (.*?)  \[", checked(LIB, CALLS, *scripts), re.MULTILINE)
    return [(name if name.startswith("cbnb/") else Path(name).name, int(line), message) for name, line, message in found]


def test_the_package_has_no_errors(said):
    assert [error for error in said if error[0].startswith("cbnb/")] == []


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


def test_the_core_is_typed_strictly():
    """`test_the_package_has_no_errors` checks it with these settings."""
    assert not list(LIB.rglob("*.pyi"))
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["overrides"]
    strict = next(override for override in overrides if override.get("disallow_untyped_defs"))
    assert {f"{LIB.name}.{name}" for name in FOR_PYRIGHT} - set(strict["module"]) == {f"{LIB.name}.{name}" for name in NOT_STRICT}
    assert all((ROOT / Path(*name.split("."))).with_suffix(".py").is_file() for name in strict["module"])


def test_pyright_finds_the_same_lines_and_nothing_in_the_core():
    """basedpyright is pyright with its own node."""
    pytest.importorskip("basedpyright")
    files = [CALLS, *(LIB / f"{name}.py" for name in FOR_PYRIGHT)]
    options = ["--outputjson", "--level", "error", "--pythonpath", sys.executable]
    done = subprocess.run([sys.executable, "-m", "basedpyright", *options, *map(str, files)], cwd=ROOT, capture_output=True, text=True)
    found = [(Path(error["file"]).name, error["range"]["start"]["line"] + 1) for error in json.loads(done.stdout)["generalDiagnostics"]]
    lines = CALLS.read_text(encoding="utf-8").splitlines()
    assert found == [(CALLS.name, i) for i, line in enumerate(lines, 1) if "# error: " in line]


def test_a_class_has_what_later_cells_add_and_names_what_later_pages_add(tmp_path):
    (tmp_path / "first.py").write_text(
        "from .basics.patch import as_property, patch\n# %% one\nclass A:\n    'An a'\n    def own(self): ...\n\n# %% two\n"
        "# n: at least 2\n@patch\ndef near(self: A, n: int = 2) -> A:\n    '''Text\n\n    More\n    '''\n    return f\"\"\"\nä {n}\"\"\"\n\n"
        "# %% three\nclass Late: ...\n\n@patch\n@as_property\ndef late(self: A) -> Late: return self.near()      # why\n"
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "second.py").write_text(
        "from ..first import A\n@patch\ndef far(self: A): ...\nA.own = 1\nA.told = 1\nA.named: Thing\n"
        "@patch\n@contextmanager\ndef within(self: A, n: int, *, m: int = 2): ...\n"
        "@patch\n@as_property\ndef size(self: A) -> int: ...\n@patch\n@checked_property\ndef rate(self: A, given: Any) -> None: ...\n"
    )
    for path in tmp_path.rglob("*.py"):
        path.write_text(f"# AUTOGENERATED!\n{path.read_text()}")
    write_later(tmp_path)
    assert (tmp_path / "first.py").read_text().splitlines()[1:] == [
        "# %% one",
        "from typing import TYPE_CHECKING, Any",
        "",
        "if TYPE_CHECKING:",
        "    from .folder import second as _in_second",
        "",
        "class A:",
        "    'An a'",
        "    if TYPE_CHECKING:      # what later pages add: the export writes it",
        "        far = _in_second.far",
        "        told: Any",
        "        named: _in_second.Thing",
        "        def within(self, n: Any, *, m: Any=...) -> Any: ...",
        "        size: Any",
        "        rate: Any",
        "    def own(self): ...",
        "",
        "    # n: at least 2",
        "    def near(self, n: int = 2) -> 'A':",
        "        '''Text",
        "",
        "        More",
        "        '''",
        '        return f"""',
        'ä {n}"""',
        "",
        "    @property",
        "    def late(self) -> 'Late': return self.near()      # why",
        "",
        "# %% three",
        "class Late: ...",
    ]
    assert (tmp_path / "folder" / "second.py").read_text().count("TYPE_CHECKING") == 0
