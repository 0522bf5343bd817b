"""Write what a person asks `?` for into the docstrings of cbnb/: parameters, what is returned, what is raised, and an example.

`make export` does it after nbdev. In a notebook, a parameter has its comment beside it, an error its message where it is raised, and the
example is in the cells below. `?`, Shift-Tab and an editor show docstrings only. So the export moves the comments there, and copies the
messages and the example, for all that users reach: the names that they import, and the methods of these classes. Each parameter is then
described once in the module; other functions keep their comments. An example is copied if it runs alone after `from cbnb.all import *`,
and to the first of the names that it shows.
A parameter without a comment has the one of the same method of a base class. The code of the module stays as it is.
"""

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType

from docs_reference import NAMES
from examples import Examples, qualnames
from notebooks import LIB, NBS, Function, exported_modules, read

_COMMON = {"learn": "the learner"}  # what parameters of this name mean, if nothing else is said
_WIDTH, _LONGEST_VALUE = 120, 30
LINE = 140  # how long the line of a signature may be
_SAY_NOTHING = ("NotImplementedError", "AssertionError")
STARS = ("all", "dialects.fastai_v1", "dialects.fastai_v2", "dialects.mindspore", "names.fastai")  # users write `from cbnb.x import *`


class Module:
    """An exported module, as far as docstrings need it."""

    def __init__(self, path: Path, root: Path = LIB):
        self.root, self.path, self.source = root, path, path.read_text(encoding="utf-8")
        self.comments, self.columns = _comments(self.source)
        self.tree = ast.parse(self.source)

    def methods(self, node: ast.ClassDef, name: str) -> "Iterator[tuple[Module, Function]]":
        """The method of a class, then those of its bases, each with the module it is in."""
        yield from ((self, part) for part in node.body if isinstance(part, Function) and part.name == name)
        for module, base in filter(None, (self.find(ast.unparse(base)) for base in node.bases)):
            yield from module.methods(base, name)

    def find(self, name: str) -> "tuple[Module, ast.ClassDef | Function] | None":
        """A class or function of this package, and its module."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef | Function) and node.name == name:
                return self, node
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(f"{LIB.name}.")):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return module_at(self._path_of(node), self.root).find(alias.name)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Name):
                return self.find(node.value.id)
        return None

    def _path_of(self, node: ast.ImportFrom) -> Path:
        parts = (node.module or "__init__").split(".")
        start = self.path.parents[node.level - 1] if node.level else self.root.parent
        path = start.joinpath(*parts)
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def names(self) -> list[str]:
        """What `from module import *` brings."""
        found = (node.value for node in self.tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        return list(ast.literal_eval(next(found, ast.List([]))))


@cache
def module_at(path: Path, root: Path) -> Module:
    """A module, read once: before its comments have moved."""
    return Module(path, root)


class Reached(dict):
    """Module -> the qualified names of the functions, classes and methods in it that users reach."""

    def __init__(self, root: Path, modules: Iterable[Module]):
        self.root = root
        for name in STARS:
            for found in module_at(root.joinpath(*name.split(".")).with_suffix(".py"), root).names():
                self.add(name, found)
        for dotted in NAMES:
            module, _, name = dotted.rpartition(".")
            self.add(module or "all", name)
        for module in modules:
            for node in module.tree.body:
                name = _qualname(node, None) if isinstance(node, Function) else ""
                if "." in name and (owner := module.find(name.rpartition(".")[0])) and f"{owner[1].name}." in self.get(owner[0].path, ()):
                    self.setdefault(module.path, set()).add(name)

    def add(self, module: str, name: str) -> None:
        path = self.root.joinpath(*module.split(".")).with_suffix(".py")
        if path.exists() and (found := module_at(path, self.root).find(name)):
            self.setdefault(found[0].path, set()).add(found[1].name)
            if isinstance(found[1], ast.ClassDef):
                self._add_methods(*found)

    def _add_methods(self, module: Module, node: ast.ClassDef) -> None:
        """Those of the class and of its bases; `Learner.` says that methods of other modules belong to it, too."""
        methods = {f"{node.name}.{part.name}" for part in node.body if isinstance(part, Function)}
        self.setdefault(module.path, set()).update(methods, {f"{node.name}."})
        for found in filter(None, (module.find(ast.unparse(base)) for base in node.bases)):
            self._add_methods(*found)


def with_docs(module: Module, examples: Mapping[str, str] = MappingProxyType({}), reached: Set[str] | None = None) -> str:
    """The source with complete docstrings of all that is `reached`, or of all that is public; their parameters have no comments any more."""
    changes: list[tuple[int, int, list[str]]] = []  # the first and the last line, and those instead of them
    for node, owner in _shown(module.tree):
        name = _qualname(node, owner)
        if reached is not None and name not in reached:
            continue
        doc, more = node.body[0].value, list(_sections(node, owner, module))
        made = node if isinstance(node, Function) else next((f for f in node.body if getattr(f, "name", "") == "__init__"), None)
        if doc.lineno > node.lineno:
            if any(line.startswith(("Args:", "Returns:")) for line in more):
                changes += [_signature(made, module)] if made else _bare_fields(node, module)
            if (example := examples.get(name)) and not _is_property(node):
                more += ["Example:", *(f"    {line}".rstrip() for line in example.splitlines())]
            if more:
                text = "\n".join([inspect.cleandoc(doc.value), "", *more, ""]).replace("\\", "\\\\").replace('"""', r"\"\"\"")
                text = textwrap.indent(f'"""{text}"""\n', " " * doc.col_offset)
                changes.append((doc.lineno, doc.end_lineno, text.splitlines(keepends=True)))
    lines = module.source.splitlines(keepends=True)
    for first, last, instead in sorted(changes, key=lambda change: -change[0]):
        lines[first - 1 : last] = instead
    return "".join(lines)


def _is_property(node: ast.ClassDef | Function) -> bool:
    """True for what is read and not called: it is in the examples of its class."""
    return any("prop" in ast.unparse(decorator) for decorator in node.decorator_list)


def _signature(function: Function, module: Module) -> tuple[int, int, list[str]]:
    """The lines of the signature without the comments that the docstring has, and as few as they then need."""
    first, last = function.lineno, function.body[0].lineno
    lines = module.source.splitlines()
    if not lines[last - 1][: function.body[0].col_offset].strip():
        last -= 1
    about = {line for _, line in _named(function)} | {function.returns.end_lineno if function.returns else 0}
    pieces, kept = [], False
    for number in range(first, last + 1):
        column = module.columns.get(number)
        own = column is not None and number not in about and not (lines[number - 1][:column].strip() == "")
        kept |= own
        pieces.append(lines[number - 1] if own or column is None else lines[number - 1][:column])
    pieces = [piece.rstrip() for piece in pieces if piece.strip()]
    return first, last, [f"{line}\n" for line in (pieces if kept else _filled(pieces, function.col_offset + 8))]


def _filled(pieces: list[str], indent: int) -> list[str]:
    """The lines of a signature, joined where there is room."""
    done = [pieces[0]]
    for piece in map(str.strip, pieces[1:]):
        last = done[-1].rstrip(",") if piece[0] == ")" else done[-1]
        between = "" if last[-1] in "([{" or piece[0] in ")]}" else " "
        if len(last + between + piece) <= LINE:
            done[-1] = last + between + piece
        else:
            done.append(" " * indent + piece)
    return done


def _bare_fields(node: ast.ClassDef, module: Module) -> Iterator[tuple[int, int, list[str]]]:
    """The fields of a dataclass without their comments, and the lines that go on with these."""
    lines = module.source.splitlines()
    fields = {part.end_lineno for part in node.body if isinstance(part, ast.AnnAssign)}
    for line in fields & set(module.comments):
        yield line, line, [lines[line - 1][: module.columns[line]].rstrip() + "\n"]
        more = line + 1
        while more in module.columns and more not in module.comments:
            yield more, more, []
            more += 1


def _qualname(node: ast.ClassDef | Function, owner: ast.ClassDef | None) -> str:
    """As in `__qualname__`; a patched method is one of its class."""
    return f"{owner.name}.{node.name}" if owner else qualnames(node)[0]


def _comments(source: str) -> tuple[dict[int, str], dict[int, int]]:
    """Number of a line -> the comment at its end, with the lines of comment right below it that go on with it; and where each begins."""
    found: dict[int, str] = {}
    columns: dict[int, int] = {}
    start = last = 0  # the line of the comment that may go on, and its last line so far
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("#").strip()
            columns[line] = token.start[1]
            alone = not token.line[: token.start[1]].strip()
            if alone and start and line == last + 1:
                found[start] += " " + text
            else:
                found[line], start = text, 0 if alone else line
            last = line
    return found, columns


def _shown(module: ast.Module) -> Iterator[tuple[ast.ClassDef | Function, ast.ClassDef | None]]:
    """All that has a docstring and a name without underscore, methods with their classes.

    A private class can be a base of a public one, so the methods of all classes count.
    """
    for node in module.body:
        if isinstance(node, ast.ClassDef | Function):
            methods = [(f, node) for f in node.body if isinstance(f, Function)] if isinstance(node, ast.ClassDef) else []
            for part, owner in ((node, None), *methods):
                if part.name[0] != "_" and ast.get_docstring(part, clean=False):
                    yield part, owner


def _sections(node: ast.ClassDef | Function, owner: ast.ClassDef | None, module: Module) -> Iterator[str]:
    """Args, Returns and Raises, as lines."""
    found: dict[str, Iterable[str]] = {}
    if isinstance(node, Function):
        same = list(module.methods(owner, node.name)) if owner else [(module, node)]
        found = dict(Args=_parameters(same), Returns=_returned(node, module.comments), Raises=_raised(node))
    elif made := list(module.methods(node, "__init__")):
        own = made[0][1] in node.body
        events = not own and [name for name, _ in _named(made[0][1])] == ["**events"]  # what every callback takes
        found = dict(Args=() if events else _parameters(made), Raises=_raised(made[0][1]) if own else ())
    else:
        found = dict(Args=_fields(node, module.comments))
    for title, entries in found.items():
        entries = list(entries)
        if title == "Args" and not any(": " in entry for entry in entries):
            continue  # bare names say nothing
        if title == "Returns" and entries and len(entries[0]) < _WIDTH:
            yield f"Returns: {entries[0]}"
        elif entries:
            yield from (f"{title}:", *(line for entry in entries for line in _wrapped(entry)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="        ", break_long_words=False)


def _parameters(same: list[tuple[Module, Function]]) -> Iterator[str]:
    """Each parameter of the first function, with what is said about it there, or in the methods it overrides."""
    about: dict[str, str] = {}
    for module, function in same:
        for name, line in _named(function):
            if line > function.lineno and line in module.comments:
                about.setdefault(name.lstrip("*"), module.comments[line])
    for name, _ in _named(same[0][1]):
        text = about.get(name.lstrip("*")) or _COMMON.get(name)
        yield f"{name}: {text}" if text else name


def _named(function: Function) -> Iterator[tuple[str, int]]:
    """The parameters, but for `self`, each with the line that its comment is in: the one where its default ends."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    defaults = dict(zip(reversed(positional), reversed(a.defaults))) | dict(zip(a.kwonlyargs, a.kw_defaults))
    for stars, parameters in (("", positional), ("*", [a.vararg]), ("", a.kwonlyargs), ("**", [a.kwarg])):
        for p in filter(None, parameters):
            if p.arg not in ("self", "cls"):
                yield f"{stars}{p.arg}", (defaults.get(p) or p).end_lineno


def _fields(node: ast.ClassDef, comments: dict[int, str]) -> Iterator[str]:
    """The fields of a dataclass or a named tuple."""
    if any("dataclass" in ast.unparse(d) for d in node.decorator_list) or any("NamedTuple" in ast.unparse(b) for b in node.bases):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                about = comments.get(field.end_lineno)
                yield f"{field.target.id}: {about}" if about else field.target.id


def _returned(function: Function, comments: dict[int, str]) -> Iterator[str]:
    """The comment after the type of what is returned, unless the body is in the same line."""
    line = function.returns.end_lineno if function.returns else 0
    if line in comments and line < function.body[0].lineno:
        yield comments[line]


def _raised(function: Function) -> Iterator[str]:
    """The errors that the function itself raises, with their messages, each once; those that say nothing before they are raised are left out."""
    seen = set()
    for node in _own_nodes(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind = ast.unparse(node.exc.func)
            words = _words(node.exc.args[0])
            if kind not in _SAY_NOTHING and kind[0].isupper() and re.match(r"\{?\w", words) and (kind, words) not in seen:
                seen.add((kind, words))
                yield f"{kind}: {words}"


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and not in one within it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, Function | ast.Lambda):
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
    text = "".join(part.value if isinstance(part, ast.Constant) else _value(part.value) for part in message.values)
    return text.replace("......", "...")  # two values side by side


def _value(value: ast.expr) -> str:
    text = ast.unparse(value)
    article = re.fullmatch(r"with_article\((.*)\)", text)
    text = (article[1] if article else text).removeprefix("self.").removesuffix(".__name__")
    name = f"{{{text}}}" if re.fullmatch(rf"[\w.]{{1,{_LONGEST_VALUE}}}|type\(\w+\)", text) else "..."
    return f"a {name}" if article else name


def write_docs(root: Path, nbs: Path = NBS) -> None:
    """Complete the docstrings of all exported modules in `root`, which are those of the notebooks in `nbs`."""
    module_at.cache_clear()
    modules = [module_at(path, root) for path in exported_modules(root)]
    reached, examples = Reached(root, modules), Examples({path: read(path) for path in sorted(nbs.rglob("*.ipynb"))})
    public, toys = (set(module_at(root / f"{name}.py", root).names()) for name in ("all", "toy"))
    for module in modules:
        dotted = ".".join((LIB.name, *module.path.relative_to(root).with_suffix("").parts))
        names = reached.get(module.path, set())
        shown = [_qualname(*each) for each in _shown(module.tree)]  # in the order of the module
        found = {name: examples.alone((dotted, name), public, toys) for name in shown if name in names}
        first = {example: name for name, example in reversed(found.items())}
        done = with_docs(module, {name: example for name, example in found.items() if first[example] == name}, names)
        if _code(done) != _code(module.source):
            sys.exit(f"{module.path}: the code would not be the same")
        if done != module.source:
            module.path.write_text(done, encoding="utf-8")


def _code(source: str) -> str:
    """The module without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | Function) and ast.get_docstring(node, clean=False):
            node.body[0].value.value = ""
    return ast.dump(tree)
