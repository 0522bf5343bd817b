"""mypy knows what a user calls: every line of tests/typing is right, and those that are marked are errors; so is the quick start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from notebooks import INDEX, ROOT, read

CALLS = ROOT / "tests" / "typing" / "calls.py"


def checked(*paths: Path, cache: Path) -> str:
    """What mypy says."""
    flags = ["--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary", "--hide-error-context", f"--cache-dir={cache}"]
    done = subprocess.run([sys.executable, "-m", "mypy", *flags, *map(str, paths)], cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> list[tuple[str, int, str]]:
    """(file, line, message) of each error in the calls and the quick start."""
    folder = tmp_path_factory.mktemp("typing")
    quick_start = folder / "quick_start.py"
    cells = [cell.source for cell in read(INDEX).cells if cell.cell_type == "code" and not cell.source.startswith("#| hide\n")]
    quick_start.write_text("\n".join(cells), encoding="utf-8")
    found = re.findall(r"^(.+?):(\d+): error: (.*?)  \[", checked(CALLS, quick_start, cache=folder / "cache"), re.MULTILINE)
    return [(Path(name).name, int(line), message) for name, line, message in found]


def test_wrong_calls_are_errors_and_no_others(said):
    marked = [
        (i, match[1])
        for i, line in enumerate(CALLS.read_text(encoding="utf-8").splitlines(), 1)
        if (match := re.search(r"# error: (.*)", line))
    ]
    assert len(marked) == 6 and [(line, message) for name, line, message in said if name == CALLS.name] == marked


def test_the_quick_start_is_right(said):
    assert [message for name, _, message in said if name == "quick_start.py"] == []
