"""Lines of the notebooks that use a definition: for its docstring those that run alone, for the site the most telling ones."""

import ast
import builtins
import re
import symtable
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nbdev.doclinks import patch_name
from nbformat import NotebookNode

from notebooks import LIB, Function, default_module, directives, is_hidden, parsed, without_directives

LINES, SHORT, SEARCHED_CELLS = 6, 5, 4  # of an example on the site, and in a docstring
PAGES_OF_EXAMPLES = ("how_to", "tutorials", "guides")  # searched before the other notebooks
IMPORTS = {"torch": "import torch", "nn": "from torch import nn"}  # what an example may add to `from cbnb.all import *`
_TOYS = f"from {LIB.name}.toy import"
_NO_EXAMPLE = {"export", "hide_input"}

# Their short cells need more than they say, call something else of this name, or are about another one. A test runs all other examples, and sees whether the name runs.
NOT_ALONE = {
    ("cbnb.callbacks.compile", "Compile.report"),
    ("cbnb.callbacks.mixup", "Mix.mix"),
    ("cbnb.data", "DataLoaders.cuda"),
    ("cbnb.display.schedules", "Sched.plot"),
    ("cbnb.files.checkpoints", "Learner.resuming"),
    ("cbnb.loop", "Loop.note_place"),
    ("cbnb.loop", "Loop.run_as"),
    ("cbnb.lr.finder", "LRFind.plot"),
    ("cbnb.metrics", "Metric.set_indexes"),
    ("cbnb.recorder", "Recorder.look_for_nan"),
}


@dataclass(frozen=True)
class Place:
    """Where a definition is."""

    path: Path
    cell: int


class Examples:
    """The definitions of the notebooks, and the cells that may use them."""

    def __init__(self, notebooks: Mapping[Path, NotebookNode]):
        self.shown = {
            path: {n: without_directives(c.source) for n, c in enumerate(nb.cells) if is_example(c)} for path, nb in notebooks.items()
        }
        self.defined: dict[tuple[str, str], Place] = {}  # (module, qualified name) -> where; methods and private names, too
        for module, place, source in exported_cells(notebooks):
            for name in _definitions(source):
                self.defined.setdefault((module, name), place)

    def of(self, code: tuple[str, str], *names: str, elsewhere: bool = True) -> Iterator[str]:
        """Lines that use the definition, under one of these names: of the cells after it, of the others of its notebook, or of `elsewhere`.

        Errors say how a name is not used, so an example that shows one comes last.
        """
        is_method, plain = "." in code[1], sorted({name.rpartition(".")[2] for name in (code[1], *names)})
        for read in (without_errors, str):
            yield from filter(None, (using(read(source), name, is_method) for source in self._searched(code, elsewhere) for name in plain))

    def alone(self, code: tuple[str, str], public: Set[str], toys: Set[str]) -> str:
        """Lines of its own notebook that use the definition and need `from cbnb.all import *` only; empty if there are none."""
        if ".dialects." in code[0] or code in NOT_ALONE:
            return ""
        found = (with_imports(source, public, toys) for source in self.of(code, elsewhere=False) if _shows(source, code[1]))
        shows_use = (source for source in found if code[1] == "raises" or "with raises(" not in source)
        return next((source for source in shows_use if 0 < len(source.splitlines()) <= SHORT + source.startswith(_TOYS)), "")

    def _searched(self, code: tuple[str, str], elsewhere: bool) -> Iterator[str]:
        """The cells that may hold an example, the most likely first."""
        place = self.defined.get(code)
        if place:
            cells = self.shown[place.path]
            after = [source for number, source in cells.items() if number > place.cell]
            before = [source for number, source in cells.items() if number < place.cell]
            yield from (*after[:SEARCHED_CELLS], *before, *after[SEARCHED_CELLS:])
        others = [path for path in self.shown if elsewhere and not (place and path == place.path)]
        for path in sorted(others, key=lambda path: path.parent.name not in PAGES_OF_EXAMPLES):
            yield from self.shown[path].values()


def exported_cells(notebooks: Mapping[Path, NotebookNode]) -> Iterator[tuple[str, Place, str]]:
    """The module, the place and the source of each cell that goes into a module."""
    for path, nb in notebooks.items():
        module = default_module(nb)
        for number, cell in enumerate(nb.cells):
            if module and "export" in directives(cell):
                yield module, Place(path, number), cell.source


def is_example(cell: NotebookNode) -> bool:
    """True for code that is for the reader of a page, and not for the module."""
    return cell.cell_type == "code" and not is_hidden(cell) and not _NO_EXAMPLE & set(directives(cell))


@cache  # a cell is searched for hundreds of names
def without_errors(source: str) -> str:
    """`source` without the statements that show an error."""
    lines = source.splitlines()
    for node in reversed(parsed(source).body):
        if isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("raises("):
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).strip("\n")


def using(source: str, name: str, is_method: bool) -> str:
    """The statements of `source` that call `name`, if they are few lines; a `.` comes before a method."""
    before = r"\." if is_method else r"(?<![\w.])"
    pattern = re.compile(rf"{before}{re.escape(name)}\b")
    if not pattern.search(source) or not (statements := parsed(source).body):
        return ""
    lines = source.splitlines()
    if len(lines) <= LINES:
        return source
    shown = [node for node in statements if not isinstance(node, ast.Import | ast.ImportFrom)]
    texts = ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in shown]
    first = next((i for i, text in enumerate(texts) if pattern.search(text) and text.count("\n") < LINES), None)
    if first is None:
        return ""
    chosen = [texts[first]]
    for text in texts[first + 1 :]:  # and what is checked of it
        if not text.startswith(("assert", "print", "close", "learn")) or sum(len(t.splitlines()) for t in [*chosen, text]) > LINES:
            break
        chosen.append(text)
    return "\n".join(chosen)


def _shows(source: str, name: str) -> bool:
    """Whether a statement uses the name, rather than only a definition or an import. To extend a class is to use it, and to raise an error."""
    word = re.compile(rf"\b{name.rpartition('.')[2]}\b")

    def used(node: ast.stmt) -> list[ast.AST]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            return []
        raised: list[ast.AST] = [part for part in ast.walk(node) if isinstance(part, ast.Raise)]
        return raised if isinstance(node, ast.FunctionDef) else [*node.bases, *raised] if isinstance(node, ast.ClassDef) else [node]

    return any(word.search(ast.unparse(part)) for node in ast.parse(source).body for part in used(node))


def with_imports(source: str, public: Set[str], toys: Set[str]) -> str:
    """`source` with the imports that it needs besides those of `public` names; empty if imports are not all that it needs."""
    needed = free_names(source) - public - set(dir(builtins))
    if not needed <= toys | set(IMPORTS):
        return ""
    imports = [IMPORTS[name] for name in IMPORTS if name in needed]
    imports += [f"from {LIB.name}.toy import {', '.join(sorted(needed & toys))}"] if needed & toys else []
    return "\n".join([*imports, *filter(str.strip, source.splitlines())])


def free_names(source: str) -> set[str]:
    """The names that a script uses and does not make itself before it ends."""
    top = symtable.symtable(source, "example", "exec")
    made = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    return {s.get_name() for table in _tables(top) for s in table.get_symbols() if s.is_global() and s.is_referenced()} - made


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _definitions(source: str) -> Iterator[str]:
    """The functions, the classes and the methods of a cell, private ones included."""
    for node in ast.parse(source).body:
        if isinstance(node, Function | ast.ClassDef):
            yield from qualnames(node)
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, Function))


def qualnames(node: ast.ClassDef | Function) -> list[str]:
    """The names of a definition: a patched method is one of each of its classes."""
    names = patch_name(node)
    return [names] if isinstance(names, str) else names
