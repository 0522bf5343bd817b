"""Are the printed outputs of a notebook those that its cells print? What a reader sees cannot go stale.

Text is compared, not figures: words and small counts must be equal, other numbers nearly so, for another processor rounds differently. Dates, times, addresses, and
the little curves of a terminal are left out, and what the rule slide suggests: the last digit of a loss moves it to another place of the curve. So are cells with `#| varies`, or with the tag `varies` where the reader should not see a directive: these
show something new each time, or train so fast at the start that another processor finds other losses.
"""

import re
from itertools import zip_longest
from math import isclose

from nbformat import NotebookNode

from notebooks import directives, is_skipped, text_of

TOLERANCE = 0.2  # of a number: another machine trains to other digits
_LEFT_OUT = re.compile(
    r"\b\d{4}-\d\d-\d\d\b|\b\d+:\d\d(:\d\d)?\b"  # dates and times
    r"|\b[\d,.]+ ?(s|ms|us|µs|ns|samples/s|MB|GB)\b"
    r"|\bslide=[\d.e-]+"
    r"|( at)? \b0x[0-9a-f]+\b|[▁▂▃▄▅▆▇█]+|\x1b\[[0-9;]*m"
)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?")


def printed(cell: NotebookNode) -> list[str]:
    """The lines that a cell shows as text."""
    lines = (line for output in cell.get("outputs", []) for line in text_of(output).splitlines())
    return [line.rstrip() for line in lines if line.strip()]


def same(line: str, other: str) -> bool:
    """Would a reader take the one line for the other?"""
    line, other = (_LEFT_OUT.sub("", text) for text in (line, other))
    if _NUMBER.sub("#", line).split() != _NUMBER.sub("#", other).split():
        return False
    pairs = zip(*(_NUMBER.findall(text) for text in (line, other)), strict=True)
    return all(_nearly(a, b) for a, b in pairs)


def _nearly(one: str, other: str) -> bool:
    a, b = (float(text.replace(",", "").rstrip(".")) for text in (one, other))
    counts = one.isdigit() and other.isdigit() and min(a, b) < 100
    return a == b if counts else isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-6)


def keep_times(stored: NotebookNode, ran: NotebookNode) -> None:
    """Give the cells of `ran` that print only other dates, times or addresses the outputs that are stored (changed in place)."""
    for before, now in zip(stored.cells, ran.cells, strict=True):
        if before.cell_type == "code" and _is_text(before) and _is_text(now) and _timeless(before) == _timeless(now):
            now.outputs = before.outputs


def _is_text(cell: NotebookNode) -> bool:
    return all(set(output.get("data", ())) <= {"text/plain"} for output in cell.outputs)


def _timeless(cell: NotebookNode) -> list[str]:
    return [_LEFT_OUT.sub("", line) for line in printed(cell)]


def differences(stored: NotebookNode, ran: NotebookNode) -> list[str]:
    """For each line that differs: the cell, and both versions."""
    found = []
    for number, (before, now) in enumerate(zip(stored.cells, ran.cells), 1):
        marks = {*directives(before), *before.metadata.get("tags", [])}
        if before.cell_type == "code" and not is_skipped(before) and "varies" not in marks:
            for line, other in zip_longest(printed(before), printed(now), fillvalue=""):
                if not same(line, other):
                    found.append(f"cell {number}\n      stored: {line}\n      prints: {other}")
    return found
