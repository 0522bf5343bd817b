"""Tell editors and type checkers the methods that a class gets on a later page.

`@patch` adds a method to a class of an earlier page. At run time that is a method as any other, but mypy, pyright and editors read the class
statement only. So the export writes `if TYPE_CHECKING: lr_find = finder.lr_find` into the class. They then know the method with its own
signature and docstring, and "go to definition" leads to its page. A method that the same module adds has its signature there. Nothing of it runs.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from docstrings import Module, module_at
from notebooks import is_exported

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def write_later(root: Path) -> None:
    """Write what later pages add into the classes of all exported modules in `root`."""
    modules = [module_at(path, root) for path in sorted(root.rglob("*.py")) if is_exported(path) and path.name[0] != "_"]
    found: dict[Module, dict[str, list[tuple[Module, ast.stmt]]]] = defaultdict(lambda: defaultdict(list))
    for module in modules:
        for name, node in _additions(module):
            if (place := module.find(name)) and isinstance(place[1], ast.ClassDef):
                found[place[0]][place[1].name].append((module, node))
    for module, classes in found.items():
        module.path.write_text(with_later(module, classes), encoding="utf-8")


def with_later(module: Module, classes: dict[str, list[tuple[Module, ast.stmt]]]) -> str:
    """The source with what is added to its classes."""
    lines, imports = module.path.read_text(encoding="utf-8").splitlines(keepends=True), {}
    nodes = [node for node in ast.parse("".join(lines)).body if isinstance(node, ast.ClassDef) and node.name in classes]
    for node in reversed(nodes):
        known = set(_declared(module, node))
        members = []
        for source, added in classes[node.name]:
            if source is not module:
                *folder, last = source.path.relative_to(source.root).with_suffix("").parts
                imports[f"_in_{last}."] = f"    from .{'.'.join(folder)} import {last} as _in_{last}\n"
            members += [text for name, text in _members(added, "" if source is module else f"_in_{source.path.stem}.") if name not in known]
        if not members:
            continue
        at = node.body[0].end_lineno if ast.get_docstring(node, clean=False) else node.body[0].lineno - 1
        text = "".join(lines[at : node.end_lineno])
        lines[at : node.end_lineno] = ["    if TYPE_CHECKING:      # what the cells below and later pages add: the export writes it\n"]
        lines[at + 1 : at + 1] = [*(f"        {line}\n" for line in members), text]
    if not any("    if TYPE_CHECKING:      # what" in line for line in lines):
        return "".join(lines)
    first = next(node for node in ast.parse("".join(lines)).body if isinstance(node, ast.ClassDef | _Function))
    at = min([first.lineno, *(d.lineno for d in first.decorator_list)]) - 1
    lines = "".join(lines).splitlines(keepends=True)
    imports = [line for used, line in sorted(imports.items()) if any(used in line for line in lines)]
    lines[at:at] = ["from typing import TYPE_CHECKING, Any\n", *(["\nif TYPE_CHECKING:\n"] if imports else ()), *imports, "\n"]
    return "".join(lines)


def _declared(module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The names that a class and its bases have."""
    for part in node.body:
        if isinstance(part, _Function):
            yield part.name
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            yield from (ast.unparse(target) for target in ([part.target] if isinstance(part, ast.AnnAssign) else part.targets))
    for place, base in filter(None, (module.find(ast.unparse(base)) for base in node.bases)):
        yield from _declared(place, base)


def _additions(module: Module) -> Iterator[tuple[str, ast.stmt]]:
    """(class, statement) for each statement that adds a public member to a class."""
    for node in module.tree.body:
        if isinstance(node, _Function) and any(ast.unparse(d) == "patch" for d in node.decorator_list):
            yield ast.unparse((*node.args.posonlyargs, *node.args.args)[0].annotation), node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.attr[0] != "_":
                yield target.value.id, node


def _members(node: ast.stmt, source: str) -> Iterator[tuple[str, str]]:
    """(name, line of the class body) of what a statement adds; `source` is the module that has it, as the class can name it."""
    if isinstance(node, _Function):
        decorators = {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
        if decorators & {"checked_property", "property_of"}:
            yield node.name, f"{node.name}: Any"
            return
        plain = not decorators & {"contextmanager", "as_property"}  # mypy cannot follow these from module to module and back
        yield node.name, f"{node.name} = {source}{node.name}" if source and plain else _signature(node, typed=not source)
    elif isinstance(node, ast.AnnAssign):
        yield node.target.attr, f"{node.target.attr}: {source}{ast.unparse(node.annotation)}"
    else:
        yield node.targets[0].attr, f"{node.targets[0].attr}: Any"


def _signature(function: _Function, typed: bool) -> str:
    """The function without its body; without its types if they are those of another module."""
    args = ast.parse(f"def f({ast.unparse(function.args)}): ...").body[0].args
    args.defaults, args.kw_defaults = [ast.Constant(...) for _ in args.defaults], [d and ast.Constant(...) for d in args.kw_defaults]
    for arg in (*args.args[1:], *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))):
        arg.annotation = arg.annotation if typed else ast.Name("Any")
    args.args[0].annotation = None
    returns = ast.unparse(function.returns) if typed and function.returns else "Any"
    names = [ast.unparse(d).replace("as_property", "property") for d in function.decorator_list]
    decorators = [f"@{name}\n        " for name in names if name == "property" or typed and name != "patch"]
    return f"{''.join(decorators)}def {function.name}({ast.unparse(args)}) -> {returns}: ..."
