"""The first page: its addresses, commands and numbers are those of the project, and its pictures are small enough."""

import re
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
settings = ConfigParser()
settings.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = settings["DEFAULT"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def section(title: str) -> str:
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.M | re.S)[1]


def test_the_clone_line_comes_before_the_demo_and_names_the_address_of_the_settings():
    clone = f"git clone {SETTINGS['git_url']} && cd {SETTINGS['repo']}\nmake demo\n"
    assert clone in section("Install")
    assert f"Python {SETTINGS['min_python']} or newer" in section("Install")
    torch = re.search(r"torch>=([\d.]+)", " ".join(PROJECT["dependencies"]))[1]
    assert f"PyTorch {torch} or newer" in section("Install")


def test_what_is_installed_brings_what_the_quick_start_imports():
    assert "pip install '.[notebook]'" in section("Install")
    names = set(re.findall(r"^(?:from|import) (\w+)", section("Quick start"), re.M)) - {"cbnb"}
    packages = {"sklearn": "scikit-learn"}
    required = re.findall(r"[\w-]+", " ".join([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["notebook"]]))
    assert names and {packages.get(name, name) for name in names} <= set(required)


def test_fourteen_lines_train():
    code = "\n".join(re.findall(r"```python\n(.*?)```", section("Quick start"), re.S)).split("learn.fit_one_cycle")[0]
    assert len([line for line in code.splitlines() if line.strip() and line != "found"]) <= 14


BENCH = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "said, measured",
    [
        ("the cell ended 0.08 s after", r"from the click on Stop to the end of the cell \| 0\.08 s"),
        ("On 58 small tasks", r"Own tasks: 58 tasks"),
        ("In 67% of the cases", r"cbnb, one sweep +\d+% +\d+% +67%"),
        ("reached 37%", r"\n +valley +\d+% +\d+% +37%"),
        ("reached 63%", r"\n +minimum/10 +\d+% +\d+% +63%"),
        ("1.20, 1.01 and 0.99", r"\| cbnb \| loop, fused AdamW \| 1\.20 .*?\| 1\.01 .*?\| 0\.99 "),
        ("0.73, 0.89 and 0.84 times", r"\| cbnb \| loop, AdamW \| 0\.73 .*?\| 0\.89 .*?\| 0\.84 "),
        (
            "seven other libraries took 1.05 to 5.2 times the CPU time",
            r"\| skorch .*?\| 1\.05 .*\n(.*\n)*?\| keras \| loop, AdamW \| 5\.17 ",
        ),
    ],
)
def test_numbers_are_those_measured(said, measured):
    assert said in README.replace("\n", " ") and re.search(measured, BENCH)


def test_evidence_exists():
    reasons = section("Seven reasons to use cbnb, with evidence")
    assert len(re.findall(r"^\d\. \*\*", reasons, re.M)) == 7
    for line in re.findall(r"^\d\. .*", reasons, re.M):
        found = [*re.findall(r"`((?:bench|tests)/[\w.]+)`", line), *re.findall(r"\]\(([^)#]+)", line)]
        assert found and all((ROOT / path).exists() for path in found), line


def test_the_table_gives_each_library_a_mark_and_others_win_somewhere():
    rows = [line.strip("|").split("|") for line in section("How it compares").splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in row] for row in rows]
    assert all(len(row) == len(head) and set(row[1:]) <= {"●", "◐", "–"} for row in rows)
    ours = [row[1] for row in rows]
    assert ours.count("–") >= 4
    for i in range(2, len(head)):
        assert any(row[i] == "●" and row[1] != "●" for row in rows), f"{head[i]} wins nowhere"


@pytest.mark.parametrize("name", ["dashboard.gif", "dashboard-dark.gif"])
def test_the_recording_is_small_and_moves(name):
    path = ROOT / "nbs" / "images" / name
    assert path.stat().st_size <= 600_000
    with Image.open(path) as gif:
        assert gif.width == 900 and gif.n_frames >= 10 and gif.info["loop"] == 0
        first = gif.convert("RGB")
        seconds = []
        for i in range(gif.n_frames):
            gif.seek(i)
            seconds.append(gif.info["duration"] / 1000)
    assert 4 <= sum(seconds) <= 10
    blue = sum(n for n, color in first.getcolors(1 << 24) if color[2] > color[0] + 60)
    assert blue > 1000  # the first frame shows curves and bars: it is all that some readers see


def test_images_say_what_they_show():
    for alt, path in re.findall(r"!\[(.*?)\]\((\S+?)\)", README):
        assert (ROOT / path).exists()
        assert len(alt) > 20
