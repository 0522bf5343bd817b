"""Write what a person asks `?` for into the docstrings of cbnb/: parameters, what is returned, what is raised.

    python tools/docstrings.py          all exported modules, in place; `make export` does it after nbdev

In a notebook, a parameter has its comment beside it, and an error its message where it is raised. `?`, Shift-Tab and an editor show
docstrings only. So the export copies both there. Nothing but docstrings is changed, and a second run changes nothing.
"""

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from notebooks import LIB, is_exported

_WIDTH, _LONGEST_VALUE = 100, 30
_WRITTEN = re.compile(r"\n\n(Args|Returns|Raises):\n.*", re.DOTALL)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """An exported module, as far as docstrings need it."""

    def __init__(self, path: Path, root: Path = LIB):
        self.root, self.path, self.source = root, path, path.read_text(encoding="utf-8")
        self.comments, self.tree = _comments(self.source), ast.parse(self.source)

    def constructor(self, node: ast.ClassDef) -> "tuple[Module, _Function] | None":
        """The `__init__` of a class, its own or an inherited one, and the module it is in."""
        if own := next((f for f in node.body if isinstance(f, _Function) and f.name == "__init__"), None):
            return self, own
        bases = filter(None, (self.find(ast.unparse(base)) for base in node.bases))
        return next(filter(None, (module.constructor(base) for module, base in bases)), None)

    def find(self, name: str) -> "tuple[Module, ast.ClassDef] | None":
        """A class of this package, and its module."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self, node
            if isinstance(node, ast.ImportFrom) and node.level and any((alias.asname or alias.name) == name for alias in node.names):
                path = self.path.parents[node.level - 1].joinpath(*(node.module or "__init__").split(".")).with_suffix(".py")
                return Module(path, self.root).find(next(alias.name for alias in node.names if (alias.asname or alias.name) == name))
        return None


def with_docs(module: Module) -> str:
    """The source with complete docstrings: those of public functions, of public classes and of their public methods."""
    lines = module.source.splitlines(keepends=True)
    for node in sorted(_public(module.tree), key=lambda node: -node.lineno):  # from the end: numbers of lines stay true
        doc = node.body[0].value
        summary, more = _WRITTEN.sub("", inspect.cleandoc(doc.value)), list(_sections(node, module))
        if more and doc.lineno > node.lineno:
            text = "\n".join([summary, *more, ""]).replace("\\", "\\\\")
            lines[doc.lineno - 1 : doc.end_lineno] = [textwrap.indent(f'"""{text}"""\n', " " * doc.col_offset)]
    return "".join(lines)


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


def _public(module: ast.Module) -> Iterator[ast.ClassDef | _Function]:
    """All that has a docstring and a name without underscore, methods included."""
    for node in module.body:
        if isinstance(node, ast.ClassDef | _Function) and node.name[0] != "_":
            methods = [f for f in node.body if isinstance(f, _Function) and f.name[0] != "_"] if isinstance(node, ast.ClassDef) else []
            yield from (part for part in (node, *methods) if ast.get_docstring(part, clean=False))


def _sections(node: ast.ClassDef | _Function, module: Module) -> Iterator[str]:
    """Args, Returns and Raises, as lines."""
    found: dict[str, Iterable[str]] = {}
    if isinstance(node, _Function):
        found = dict(Args=_parameters(node, module.comments), Returns=_returned(node, module.comments), Raises=_raised(node))
    elif made := module.constructor(node):
        found = dict(Args=_parameters(made[1], made[0].comments), Raises=_raised(made[1]) if made[1] in node.body else ())
    else:
        found = dict(Args=_fields(node, module.comments))
    for title, entries in found.items():
        if entries := list(entries):
            yield from ("", f"{title}:", *(line for entry in entries for line in _wrapped(entry)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="        ", break_long_words=False)


def _parameters(function: _Function, comments: dict[int, str]) -> Iterator[str]:
    """Each parameter, with what is said about it; none if nothing is said about any."""
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    if plain and plain[0].arg in ("self", "cls"):
        del plain[0]
    named = [(p, p.arg) for p in plain]
    named += [(a.vararg, f"*{a.vararg.arg}")] if a.vararg else []
    named += [(p, p.arg) for p in a.kwonlyargs]
    named += [(a.kwarg, f"**{a.kwarg.arg}")] if a.kwarg else []
    for p, name in named:
        line = _last_line(p, a)
        about = comments.get(line) if line > function.lineno else None
        yield f"{name}: {about}" if about else name


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
    """The comment after the type of what is returned, unless that is in the line of the name."""
    line = function.returns.end_lineno if function.returns else 0
    if line > function.lineno and line in comments:
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
    for path in sorted(folder.rglob("*.py")):
        if is_exported(path) and path.name[0] != "_":
            module = Module(path)
            done = with_docs(module)
            if _code(done) != _code(module.source):
                sys.exit(f"{path}: the code would not be the same")
            if done != module.source:
                path.write_text(done, encoding="utf-8")


def _code(source: str) -> str:
    """The module without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | _Function) and ast.get_docstring(node, clean=False):
            node.body[0].value.value = ""
    return ast.dump(tree)


if __name__ == "__main__":
    write_docs(LIB)
