"""Write what a person asks `?` for into the docstrings of cbnb/: parameters, what is returned, what is raised, and an example.

    python tools/docstrings.py          all exported modules, in place; `make export` does it after nbdev

In a notebook, a parameter has its comment beside it, an error its message where it is raised, and the example is in the cells below.
`?`, Shift-Tab and an editor show docstrings only. So the export copies all three there. A parameter without a comment has the one of the
same method of a base class. Nothing but docstrings is changed, and a second run changes nothing.
"""

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from nbdev.doclinks import patch_name

from notebooks import LIB, ROOT, is_exported, notebook_paths, read

_COMMON = {"learn": "the learner"}  # what parameters of this name mean, if nothing else is said
_WIDTH, _LONGEST_VALUE = 100, 30
_WRITTEN = re.compile(r"\n\n(Args|Returns|Raises|Example):\n.*", re.DOTALL)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
Examples = Mapping[str, str]  # qualified name of a definition -> lines that use it


class Module:
    """An exported module, as far as docstrings need it."""

    def __init__(self, path: Path, root: Path = LIB):
        self.root, self.path, self.source = root, path, path.read_text(encoding="utf-8")
        self.comments, self.tree = _comments(self.source), ast.parse(self.source)

    def constructor(self, node: ast.ClassDef) -> "tuple[Module, _Function] | None":
        """The `__init__` of a class, its own or an inherited one, and the module it is in."""
        return next(self.methods(node, "__init__"), None)

    def methods(self, node: ast.ClassDef, name: str) -> "Iterator[tuple[Module, _Function]]":
        """The method of a class, then those of its bases, each with the module it is in."""
        yield from ((self, part) for part in node.body if isinstance(part, _Function) and part.name == name)
        for module, base in filter(None, (self.find(ast.unparse(base)) for base in node.bases)):
            yield from module.methods(base, name)

    def find(self, name: str) -> "tuple[Module, ast.ClassDef] | None":
        """A class of this package, and its module."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self, node
            if isinstance(node, ast.ImportFrom) and node.level and any((alias.asname or alias.name) == name for alias in node.names):
                path = self.path.parents[node.level - 1].joinpath(*(node.module or "__init__").split(".")).with_suffix(".py")
                return module_at(path, self.root).find(next(alias.name for alias in node.names if (alias.asname or alias.name) == name))
        return None


@cache
def module_at(path: Path, root: Path) -> Module:
    """A module that others import from: read once."""
    return Module(path, root)


def with_docs(module: Module, examples: Examples = MappingProxyType({})) -> str:
    """The source with complete docstrings: those of public functions, of public classes, and of the public methods of all classes."""
    lines = module.source.splitlines(keepends=True)
    for node, owner in sorted(
        _shown(module.tree, examples), key=lambda found: -found[0].lineno
    ):  # from the end: numbers of lines stay true
        doc = node.body[0].value
        summary, more = _WRITTEN.sub("", inspect.cleandoc(doc.value)), list(_sections(node, owner, module))
        if example := examples.get(_qualname(node, owner)):
            more += ["", "Example:", *(f"    {line}".rstrip() for line in example.splitlines())]
        if more and doc.lineno > node.lineno:
            text = "\n".join([summary, *more, ""]).replace("\\", "\\\\").replace('"""', r"\"\"\"")
            lines[doc.lineno - 1 : doc.end_lineno] = [textwrap.indent(f'"""{text}"""\n', " " * doc.col_offset)]
    return "".join(lines)


def _qualname(node: ast.ClassDef | _Function, owner: ast.ClassDef | None) -> str:
    """As in `__qualname__`; a patched method is one of its class."""
    if owner:
        return f"{owner.name}.{node.name}"
    name = patch_name(node)
    return name if isinstance(name, str) else name[0]


def _comments(source: str) -> dict[int, str]:
    """Number of a line -> the comment at its end, with the lines of comment right below it that go on with it."""
    found: dict[int, str] = {}
    start = last = 0  # the line of the comment that may go on, and its last line so far
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("#").strip()
            alone = not token.line[: token.start[1]].strip()
            if alone and start and line == last + 1:
                found[start] += " " + text
            else:
                found[line], start = text, 0 if alone else line
            last = line
    return found


def _shown(module: ast.Module, examples: Examples) -> Iterator[tuple[ast.ClassDef | _Function, ast.ClassDef | None]]:
    """All that has a docstring and a name without underscore, methods with their classes; also the functions behind properties.

    A private class can be a base of a public one, so the methods of all classes count.
    """
    for node in module.body:
        if isinstance(node, ast.ClassDef | _Function):
            methods = [(f, node) for f in node.body if isinstance(f, _Function)] if isinstance(node, ast.ClassDef) else []
            for part, owner in ((node, None), *methods):
                if (part.name[0] != "_" or part.name in examples) and ast.get_docstring(part, clean=False):
                    yield part, owner


def _sections(node: ast.ClassDef | _Function, owner: ast.ClassDef | None, module: Module) -> Iterator[str]:
    """Args, Returns and Raises, as lines."""
    found: dict[str, Iterable[str]] = {}
    if isinstance(node, _Function):
        same = list(module.methods(owner, node.name)) if owner else [(module, node)]
        is_base = bool(owner) and owner.name[0] == "_"  # bare names would say nothing there
        found = dict(Args=_parameters(same, bare=not is_base), Returns=_returned(node, module.comments), Raises=_raised(node))
    elif made := list(module.methods(node, "__init__")):
        found = dict(Args=_parameters(made), Raises=_raised(made[0][1]) if made[0][1] in node.body else ())
    else:
        found = dict(Args=_fields(node, module.comments))
    for title, entries in found.items():
        if entries := list(entries):
            yield from ("", f"{title}:", *(line for entry in entries for line in _wrapped(entry)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="        ", break_long_words=False)


def _parameters(same: list[tuple[Module, _Function]], bare: bool = True) -> Iterator[str]:
    """Each parameter of the first function, with what is said about it there, or in the methods it overrides.

    Parameters of which nothing is said are named if they are wanted `bare`.
    """
    about: dict[str, str] = {}
    for module, function in same:
        for name, line in _named(function):
            if line > function.lineno and line in module.comments:
                about.setdefault(name.lstrip("*"), module.comments[line])
    for name, _ in _named(same[0][1]):
        text = about.get(name.lstrip("*")) or _COMMON.get(name)
        if text or bare:
            yield f"{name}: {text}" if text else name


def _named(function: _Function) -> Iterator[tuple[str, int]]:
    """The parameters, but for `self`, each with the line that its comment is in."""
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    if plain and plain[0].arg in ("self", "cls"):
        del plain[0]
    named = [(p, p.arg) for p in plain]
    named += [(a.vararg, f"*{a.vararg.arg}")] if a.vararg else []
    named += [(p, p.arg) for p in a.kwonlyargs]
    named += [(a.kwarg, f"**{a.kwarg.arg}")] if a.kwarg else []
    yield from ((name, _last_line(p, a)) for p, name in named)


def _last_line(p: ast.arg, a: ast.arguments) -> int:
    """Where the comment of a parameter stands: at the end of its default."""
    positional = [*a.posonlyargs, *a.args]
    defaults = dict(zip(positional[len(positional) - len(a.defaults) :], a.defaults)) | dict(zip(a.kwonlyargs, a.kw_defaults))
    return (defaults.get(p) or p).end_lineno


def _fields(node: ast.ClassDef, comments: dict[int, str]) -> Iterator[str]:
    """The fields of a dataclass or a named tuple."""
    if any("dataclass" in ast.unparse(d) for d in node.decorator_list) or any("NamedTuple" in ast.unparse(b) for b in node.bases):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                about = comments.get(field.end_lineno)
                yield f"{field.target.id}: {about}" if about else field.target.id


def _returned(function: _Function, comments: dict[int, str]) -> Iterator[str]:
    """The comment after the type of what is returned, unless the body is in the same line."""
    line = function.returns.end_lineno if function.returns else 0
    if line in comments and line < function.body[0].lineno:
        yield comments[line]


def _raised(function: _Function) -> Iterator[str]:
    """The errors that the function itself raises, with their messages, each once."""
    seen = set()
    for node in _own_nodes(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind = ast.unparse(node.exc.func)
            words = _words(node.exc.args[0])
            if kind[0].isupper() and words and (kind, words) not in seen:
                seen.add((kind, words))
                yield f"{kind}: {words}"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and not in one within it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, _Function | ast.Lambda):
            yield child
            yield from _own_nodes(child)


def _words(message: ast.expr) -> str:
    """A message as a reader knows it before it is raised: short values by their names, others as dots."""
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.BinOp) and isinstance(message.op, ast.Add):
        return _words(message.left) + _words(message.right)
    if not isinstance(message, ast.JoinedStr):
        return ""
    return "".join(part.value if isinstance(part, ast.Constant) else _value(part.value) for part in message.values)


def _value(value: ast.expr) -> str:
    text = ast.unparse(value).removeprefix("self.").removesuffix(".__name__")
    return f"{{{text}}}" if re.fullmatch(rf"[\w.]{{1,{_LONGEST_VALUE}}}|type\(\w+\)", text) else "..."


def write_docs(folder: Path) -> None:
    """Complete the docstrings of all exported modules in a folder."""
    examples = _examples()
    for path in sorted(folder.rglob("*.py")):
        if is_exported(path) and path.name[0] != "_":
            module = Module(path, folder)
            done = with_docs(module, examples.get(".".join((LIB.name, *path.relative_to(folder).with_suffix("").parts)), {}))
            if _code(done) != _code(module.source):
                sys.exit(f"{path}: the code would not be the same")
            if done != module.source:
                path.write_text(done, encoding="utf-8")


def _examples() -> dict[str, Examples]:
    """The examples of the reference: module -> qualified name -> lines."""
    sys.path.insert(0, str(ROOT))  # the names are those of this checkout, installed or not
    from docs_reference import Reference

    reference, found = Reference({path: read(path) for path in notebook_paths()}), defaultdict(dict)
    for (module, name), item in reference.by_code.items():
        found[module][name] = reference.example(item)
    return found


def _code(source: str) -> str:
    """The module without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | _Function) and ast.get_docstring(node, clean=False):
            node.body[0].value.value = ""
    return ast.dump(tree)


if __name__ == "__main__":
    write_docs(LIB)
