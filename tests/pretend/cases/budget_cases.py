"""The table of waits on the page about slow training: what is written there is what the pretend GPU counts."""

import json
from pathlib import Path

import pytest
from waits import waits_of

import cbnb.all as cbnb

PAGE = Path(__file__).parents[3] / "nbs/how_to/why_is_it_slow.ipynb"


def rows() -> dict[str, list[float]]:
    """The table: code -> waits for each training batch, validation batch and epoch."""
    cells = ["".join(cell["source"]) for cell in json.loads(PAGE.read_text())["cells"]]
    (text,) = [cell for cell in cells if "| waits for each" in cell]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {code.strip(" `"): [float(number) for number in numbers] for code, *numbers in lines}


def do(learn: cbnb.Learner, n: int, call: str = "learn.fit(n)") -> None:
    eval(call, dict(learn=learn, n=n))


@pytest.mark.parametrize("code", rows())
def test_the_page_has_the_number_of_waits(gpu, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if code.startswith("learn."):
        found = waits_of(gpu, lambda learn, n: do(learn, n, code))
    else:
        found = waits_of(gpu, settings=lambda: eval(f"dict({code})", vars(cbnb)))
    stacks = "\n".join(f"{n} x {stack}" for stack, n in found["stacks"].most_common())
    assert [found["batch"], found["valid_batch"], found["epoch"]] == rows()[code], stacks
