"""How a notebook reads, in figures: for orientation, no quotas.

    python tools/reading.py                     a line for each notebook, and sums: the core, each room, all; then the package, and
                                                what a first reading of the numbered pages takes: each up to "In detail"
    python tools/reading.py nbs/0*.ipynb        of these

Words are those of Markdown cells. Lines are those of code that are not empty. A cell is exported if it has `#| export`; an example
is a code cell that readers see, and an exported cell with a definition is followed by one if that is the next cell of code.
"""

import argparse
import ast
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from notebooks import LIB, NBS, directives, exported_modules, is_hidden, notebook_paths, parsed, read, show, without_directives

_WORD = re.compile(r"[^\W\d_][\w'-]*")
LAST_OF_THE_HOUR = 11  # the number of the last page of the core that a newcomer reads: later ones are looked up
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_HEAD = f"{'':44} {'words':>6} {'exported':>8} {'median':>6} {'p95':>4} {'> 25':>5} {'asserts':>7} {'followed':>8}"


@dataclass
class Figures:
    """What is counted of notebooks."""

    words: int = 0
    exported: list[int] = field(default_factory=list)  # lines of each exported cell, with its docstrings
    code: int = 0  # lines of these cells without docstrings
    docs: int = 0  # lines of their docstrings
    asserts: int = 0
    defining: int = 0  # exported cells with a function or class
    followed: int = 0  # those of them with an example right after

    def __str__(self) -> str:
        if not self.exported:
            return f"{self.words:6,} {'-':>8} {'':6} {'':4} {'':5} {self.asserts:7}"
        lines, cells = sum(self.exported), len(self.exported)
        p95 = statistics.quantiles(self.exported, n=20, method="inclusive")[-1] if cells > 1 else self.exported[0]
        large = sum(n > 25 for n in self.exported) / cells
        share = f"{self.followed / self.defining:8.0%}" if self.defining else ""
        return (
            f"{self.words:6,} {lines:8,} {statistics.median(self.exported):6.0f} {p95:4.0f} {large:5.0%} "
            f"{100 * self.asserts / lines:7.1f} {share}"
        )


def figures(*paths: Path, to_detail: bool = False) -> Figures:
    """The figures of notebooks together; with `to_detail`, of what comes before the heading "In detail" of each."""
    found = Figures()
    for path in paths:
        cells = read(path).cells
        if to_detail:
            cells = list(itertools.takewhile(lambda cell: not cell.source.startswith("## In detail"), cells))
        _count(cells, found)
    return found


def _count(cells: list[NotebookNode], found: Figures) -> None:
    """Add the figures of a notebook."""
    texts = (re.sub(r"```.*?```", "", cell.source, flags=re.DOTALL) for cell in cells if cell.cell_type == "markdown")
    found.words += sum(len(_WORD.findall(text)) for text in texts)
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    for cell, after in zip(code, [*code[1:], None]):
        tree = parsed(without_directives(cell.source))
        if "export" not in directives(cell):
            found.asserts += sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
            continue
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body):
            continue
        n_code, n_docs = _without_docstrings(without_directives(cell.source))
        found.exported.append(sum(bool(line.strip()) for line in without_directives(cell.source).splitlines()))
        found.code, found.docs = found.code + n_code, found.docs + n_docs
        if any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body):
            found.defining += 1
            found.followed += after is not None and "export" not in directives(after) and not is_hidden(after)


def group(path: Path) -> str:
    """Which sum a notebook belongs to: the core (pages with a number), a room, or the pages beside the core."""
    if path.parent != NBS:
        return f"{show(path.parent).removeprefix('nbs/')}/"
    return "core" if path.name[0].isdigit() else "index and roof"


def table(paths: list[Path]) -> list[str]:
    """The lines of the table: the notebooks, then the sums of the core, of each room, and of all."""
    groups = defaultdict(list)
    for path in paths:
        groups[group(path)].append(path)
    sums = [*sorted(groups.items(), key=lambda each: each[0] != "core"), ("all", paths)]
    each = [(show(path).removeprefix("nbs/"), [path]) for path in paths]
    return [_HEAD, *itertools.starmap(_row, each), "", *itertools.starmap(_row, sums)]


def _row(name: str, paths: list[Path]) -> str:
    return f"{name:44} {figures(*paths)}"


def _without_docstrings(source: str) -> tuple[int, int]:
    """The lines of code of a source, which are neither empty nor comments nor docstrings, and the lines of its docstrings."""
    tree = ast.parse(source)
    docs = [n.body[0] for n in ast.walk(tree) if isinstance(n, _DOCUMENTED) and ast.get_docstring(n, clean=False) is not None]
    said = {line for doc in docs for line in range(doc.lineno, doc.end_lineno + 1)}
    code = [i for i, line in enumerate(source.splitlines(), 1) if line.strip() and line.strip()[0] != "#" and i not in said]
    return len(code), len(said)


def package(modules: Iterable[Path], core: set[str]) -> str:
    """Lines of code and of docstrings, classes, and rungs: classes that nothing but one other class of their file uses, as its base."""
    code, docs, classes, heirs, used = Counter(), 0, 0, {}, Counter()
    for path in modules:
        source = path.read_text(encoding="utf-8")
        tree, (n, said) = ast.parse(source), _without_docstrings(source)
        docs += said
        code.update({"package": n, "core": n * (path.stem in core and path.parent == LIB)})
        used.update(n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute))
        used.update(alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names)
        defined = [n for n in tree.body if isinstance(n, ast.ClassDef)]
        classes += len(defined)
        heirs |= {c.name: sum(c.name in map(ast.unparse, other.bases) for other in defined) for c in defined}
    rungs = sum(n == 1 == used[name] for name, n in heirs.items())
    return f"lines of code: core {code['core']:,}, package {code['package']:,}; docstrings {docs:,}; {classes} classes, {rungs} rungs"


def first_reading(paths: list[Path]) -> str:
    """How much a first reading of pages is: words, and lines of exported code and of its docstrings."""
    found = figures(*paths, to_detail=True)
    return f"first reading of {len(paths)} pages: {found.words:,} words, {found.code:,} lines of code, {found.docs:,} of docstrings"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks (all of them if none is named)")
    chosen = [path.resolve() for path in parser.parse_args().paths]
    print(*table(chosen or notebook_paths()), sep="\n")
    if not chosen:
        core = [path for path in notebook_paths() if group(path) == "core"]
        print(package(exported_modules(), {path.stem.partition("_")[2] for path in core}))
        print(first_reading([path for path in core if int(path.name[:2]) <= LAST_OF_THE_HOUR]))
