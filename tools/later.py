"""Write into each class what later cells and pages add to it.

`@patch` adds a method to a class of an earlier cell or page. At run time that is a method as any other, but mypy, pyright and editors read
the class statement only. So the export moves the methods that the same module adds into the class. For those of other modules, it writes
`if TYPE_CHECKING: lr_find = finder.lr_find`. Type checkers then know the method with its own signature and docstring, and "go to definition"
leads to its page. Nothing of this block runs.
"""

import ast
import io
import re
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from docstrings import LINE, Module, module_at
from notebooks import Function, exported_modules


def write_later(root: Path) -> None:
    """Write what later cells and pages add into the classes of all exported modules in `root`."""
    modules = [module_at(path, root) for path in exported_modules(root)]
    found: dict[Module, dict[str, list[tuple[Module, ast.stmt]]]] = defaultdict(lambda: defaultdict(list))
    for module in modules:
        for name, node in _additions(module):
            if (place := module.find(name)) and isinstance(place[1], ast.ClassDef):
                if place[0] is not module or not isinstance(node, Function):
                    found[place[0]][place[1].name].append((module, node))
        module.path.write_text(with_methods(module.path.read_text(encoding="utf-8")), encoding="utf-8")
    for module, classes in found.items():
        module.path.write_text(with_later(module, classes), encoding="utf-8")


def with_methods(source: str) -> str:
    """The source with each method that it patches into a class of its own inside this class."""
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    moved: dict[str, list[str]] = defaultdict(list)
    for node in tree.body:
        if isinstance(node, Function) and _is_patch(node) and (owner := classes.get(_class_of(node))):
            first = node.decorator_list[0].lineno
            while lines[first - 2][:1] == "#" and lines[first - 2][:4] != "# %%":  # what is said above it
                first -= 1
            moved[owner.name] += ["\n", *_as_method(node, owner, tree, lines, first)]
            last = node.end_lineno
            while last < len(lines) and not lines[last].strip():
                last += 1
            lines[first - 1 : last] = [""] * (last - first + 1)
    for name, methods in moved.items():
        last, body = classes[name].end_lineno, classes[name].body[0]
        if body.lineno == classes[name].lineno:  # all in one line
            lines[last - 1] = f"{lines[last - 1][: body.col_offset].rstrip()}\n    {lines[last - 1][body.col_offset :]}"
        lines[last - 1] += "".join(methods)
    if not moved:
        return source
    text = re.sub(r"(# %% .*\n\n*)+(?=# %%|\Z)", "", "".join(lines)).rstrip() + "\n"  # without cells of which nothing is left
    return re.sub(r"^from \.+basics\.patch import (.*)\n", lambda match: _used(match, text), text, flags=re.MULTILINE)


def _used(statement: re.Match, source: str) -> str:
    """The import without the names that the module does not use any more."""
    names = [name for name in statement[1].split(", ") if re.search(rf"\b{name}\b", source.replace(statement[0], ""))]
    return statement[0].replace(statement[1], ", ".join(names)) if names else ""


def _is_patch(function: Function) -> bool:
    return any(ast.unparse(decorator) == "patch" for decorator in function.decorator_list)


def _class_of(function: Function) -> str:
    """The class to which a patch adds the function."""
    return ast.unparse((*function.args.posonlyargs, *function.args.args)[0].annotation)


def _as_method(node: Function, owner: ast.ClassDef, tree: ast.Module, lines: list[str], first: int) -> list[str]:
    """The lines of a patch from `first` on as those of a method: without `patch` and the annotation of `self`, and with indents."""
    own, edits = (*node.args.posonlyargs, *node.args.args)[0], []
    edits.append((own, own.arg))
    late = {owner.name} | {name for part in tree.body if part.lineno > owner.lineno for name in _bound(part)}
    args = [a.annotation for a in (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg) if a and a is not own]
    for annotation in filter(None, (*args, node.returns)):
        if late & {part.id for part in ast.walk(annotation) if isinstance(part, ast.Name)}:  # not there yet when the class is made
            edits.append((annotation, repr(ast.unparse(annotation))))
    edits += [(d, "property") for d in node.decorator_list if ast.unparse(d) == "as_property"]
    done = dict(enumerate(lines[first - 1 : node.end_lineno], first))
    for part, text in sorted(edits, key=lambda edit: (-edit[0].lineno, -edit[0].col_offset)):
        line = done[part.lineno].encode()
        done[part.lineno] = (line[: part.col_offset] + text.encode() + line[part.end_col_offset :]).decode()
    kept = {line + first - 1 for line in _in_strings("".join(lines[first - 1 : node.end_lineno]))}
    if ast.get_docstring(node, clean=False):
        kept -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return [line if i in kept or not line.strip() else f"    {line}" for i, line in done.items() if line.strip() != "@patch"]


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))


def _in_strings(source: str) -> set[int]:
    """The lines that begin inside a string."""
    return {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))
        for line in range(token.start[0] + 1, token.end[0] + 1)
    }


def with_later(module: Module, classes: dict[str, list[tuple[Module, ast.stmt]]]) -> str:
    """The source with what is added to its classes."""
    lines, imports = module.path.read_text(encoding="utf-8").splitlines(keepends=True), {}
    nodes = [node for node in ast.parse("".join(lines)).body if isinstance(node, ast.ClassDef) and node.name in classes]
    for node in reversed(nodes):
        known = set(_declared(module, node))
        members = []
        for source, added in classes[node.name]:
            *folder, last = source.path.relative_to(source.root).with_suffix("").parts
            imports[f"_in_{last}."] = ".".join(folder)
            members += [text for name, text in _members(added, "" if source is module else f"_in_{source.path.stem}.") if name not in known]
        if not members:
            continue
        at = node.body[0].end_lineno if ast.get_docstring(node, clean=False) else node.body[0].lineno - 1
        text = "".join(lines[at : node.end_lineno])
        lines[at : node.end_lineno] = ["    if TYPE_CHECKING:      # what later pages add: the export writes it\n"]
        lines[at + 1 : at + 1] = [*(f"        {line}\n" for line in members), text]
    if not any("    if TYPE_CHECKING:      # what" in line for line in lines):
        return "".join(lines)
    first = next(node for node in ast.parse("".join(lines)).body if isinstance(node, ast.ClassDef | Function))
    at = min([first.lineno, *(d.lineno for d in first.decorator_list)]) - 1
    lines = "".join(lines).splitlines(keepends=True)
    folders = defaultdict(list)  # of the modules that members name
    for used, folder in sorted(imports.items()):
        if any(used in line for line in lines):
            folders[folder].append(f"{used[4:-1]} as {used[:-1]}")
    there = [line for folder, names in sorted(folders.items()) for line in _import(folder, names)]
    block = ["\n", "if TYPE_CHECKING:\n", *there] if there else []
    lines[at:at] = ["from typing import TYPE_CHECKING, Any\n", *block, "\n"]
    return "".join(lines)


def _import(folder: str, names: list[str]) -> list[str]:
    """The lines that import modules of a folder, as few as there can be."""
    line = f"    from .{folder} import {', '.join(names)}\n"
    if len(line) <= LINE:
        return [line]
    wrapped = textwrap.fill(f"{', '.join(names)})", LINE, initial_indent=" " * 8, subsequent_indent=" " * 8, break_long_words=False)
    return [f"    from .{folder} import (\n", *f"{wrapped}\n".splitlines(keepends=True)]


def _declared(module: Module, node: ast.ClassDef) -> Iterator[str]:
    """The names that a class and its bases have."""
    for part in node.body:
        if isinstance(part, Function):
            yield part.name
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            yield ast.unparse(_target(part))
    for place, base in filter(None, (module.find(ast.unparse(base)) for base in node.bases)):
        yield from _declared(place, base)


def _additions(module: Module) -> Iterator[tuple[str, ast.stmt]]:
    """(class, statement) for each statement that adds a public member to a class."""
    for node in module.tree.body:
        if isinstance(node, Function) and _is_patch(node):
            yield _class_of(node), node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = _target(node)
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.attr[0] != "_":
                yield target.value.id, node


def _members(node: ast.stmt, source: str) -> Iterator[tuple[str, str]]:
    """(name, line of the class body) of what a statement adds; `source` is the module that has it, as the class can name it."""
    if isinstance(node, Function):
        decorators = {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
        if decorators & {"checked_property", "property_of", "as_property"}:
            yield node.name, f"{node.name}: Any"
        else:  # mypy cannot follow a context manager from module to module and back
            yield node.name, _signature(node) if "contextmanager" in decorators else f"{node.name} = {source}{node.name}"
    else:
        kind = f"{source}{ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else "Any"
        yield _target(node).attr, f"{_target(node).attr}: {kind}"


def _target(node: ast.Assign | ast.AnnAssign) -> ast.expr:
    return node.target if isinstance(node, ast.AnnAssign) else node.targets[0]


def _signature(function: Function) -> str:
    """The function without its body, and without its types, which are those of another module."""
    args = ast.parse(f"def f({ast.unparse(function.args)}): ...").body[0].args
    args.defaults, args.kw_defaults = [ast.Constant(...) for _ in args.defaults], [d and ast.Constant(...) for d in args.kw_defaults]
    for arg in (*args.args[1:], *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))):
        arg.annotation = ast.Name("Any")
    args.args[0].annotation = None
    return f"def {function.name}({ast.unparse(args)}) -> Any: ..."
