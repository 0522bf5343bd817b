"""An entry of the reference, as Markdown with a Sphinx directive, from an exported function, class or method."""

import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator

from examples import qualnames
from notebooks import Function

Link = Callable[[str], str]
EMPTY = inspect.Parameter.empty
LONGEST_DEFAULT = 40
_SECTION = re.compile(r"\n+(Args|Returns|Raises|Example):\s")


def documented(source: str) -> Iterator[str]:
    """The dotted names that an exported cell adds to the reference: functions, classes, their own and patched methods.

    A method of a class needs a docstring to be listed; names with a leading underscore are left out.
    """
    for node in ast.parse(source).body:
        if isinstance(node, Function | ast.ClassDef):
            yield from filter(_is_public, qualnames(node))
        if isinstance(node, ast.ClassDef) and _is_public(node.name):
            for method in node.body:
                if isinstance(method, Function) and _is_public(method.name) and ast.get_docstring(method):
                    yield f"{node.name}.{method.name}"


def entry(module: str, name: str, link: Link, indexed: bool = True, tail: Iterable[str] = ()) -> str:
    """The entry for `name` in `module`; `link` turns backticked names in Markdown into links.

    Links lead to it if it is `indexed`. `tail` comes last, such as an example.

    Types are in the table of parameters; if there is nothing to say about any of these, they are in the signature and there is no table.
    """
    found = _find(module, name)
    kind = kind_of(module, name, found)
    function = found.fget if isinstance(found, property) else found
    parameters, returns = _signature(function)
    table = _table(function, parameters, returns, link)
    arguments = f"({', '.join(_argument(parameter, typed=not table) for parameter in parameters)})"
    result = f" -> {_type(returns, linked=True)}" if not table and returns not in (EMPTY, None, "None") else ""
    lines = [
        f"`````{{py:{kind}}} {name}{'' if kind in ('property', 'data') else arguments + result}",
        f":module: {module}",
        *([] if indexed else [":no-index:"]),
        "",
        link(_summary(found)),
        "",
        *table,
        *_errors(found, link),
        *tail,
        "`````",
    ]
    return "\n".join(lines) + "\n"


def _is_public(dotted: str) -> bool:
    return not dotted.split(".")[-1].startswith("_")


def _find(module: str, dotted: str) -> object:
    found = importlib.import_module(module)
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def kind_of(module: str, name: str, found: object) -> str:
    """The word of Sphinx for it: class, method, function, data ..."""
    if "." in name and isinstance(found, property):
        return "property"
    if inspect.isclass(found):
        return "exception" if issubclass(found, BaseException) else "class"
    if "." not in name:
        return "function" if inspect.isroutine(found) else "data"
    owner, method = name.rsplit(".", 1)
    stored = inspect.getattr_static(_find(module, owner), method)
    return {classmethod: "classmethod", staticmethod: "staticmethod"}.get(type(stored), "method")


def _signature(function: object) -> tuple[list[inspect.Parameter], object]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a class written in C, such as most exceptions
        return [], EMPTY
    with contextlib.suppress(NameError, TypeError):  # `"Learner"` is the one of its module: there are several
        signature = inspect.signature(function, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    if inspect.isclass(function) and issubclass(function, BaseException):
        parameters = [parameter for parameter in parameters if parameter.name not in ("args", "kwargs")]
    return parameters, signature.return_annotation


def _argument(parameter: inspect.Parameter, typed: bool) -> str:
    text = str(parameter.replace(annotation=EMPTY, default=EMPTY))
    kind = _type(parameter.annotation, linked=True) if typed else ""
    default = "" if parameter.default is EMPTY else _default(parameter.default)
    if kind:
        return f"{text}: {kind}{' = ' if default else ''}{default}"
    return f"{text}{'=' if default else ''}{default}"


def _default(value: object) -> str:
    """A default as a reader would write it: names for classes and functions, nothing longer than a glance."""
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= LONGEST_DEFAULT and not text.startswith("<") else "..."


def _table(function: object, parameters: list[inspect.Parameter], returns: object, link: Link) -> list[str]:
    """Parameter, type, default, details; columns that would be empty are left out, and the whole table if no detail is given."""
    details = _details(function)
    if not any(details.values()):
        return []
    rows = [
        (_code(p.name), _code(_type(p.annotation)), _code("" if p.default is EMPTY else _default(p.default)), link(details.get(p.name, "")))
        for p in parameters
    ]
    if details.get("return") or returns not in (EMPTY, None, "None"):
        rows.append(("**Returns**", _code(_type(returns)), "", link(details.get("return", ""))))
    head = ("Parameter", "Type", "Default", "Details")
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    return [table_row(*(row[i] for i in used)) for row in (head, [":--"] * len(head), *rows)]


def _details(found: object) -> dict[str, str]:
    """What the docstring says about each parameter, and about `return`."""
    doc = f"{inspect.getdoc(found) or ''}\n"
    entries = re.findall(r"^    \*{0,2}(\w+): (.*(?:\n {8,}.*)*)", _part(doc, "Args"), re.MULTILINE)
    return {name: " ".join(about.split()) for name, about in [*entries, ("return", _part(doc, "Returns"))]}


def _part(doc: str, title: str) -> str:
    """The lines of a section that the export has written."""
    parts = _SECTION.split(doc)
    return dict(zip(parts[1::2], parts[2::2])).get(title, "")


def _summary(found: object) -> str:
    """The docstring without what the export has written into it, which the table shows."""
    return _SECTION.split(inspect.getdoc(found) or "")[0]


def first_sentence(found: object) -> str:
    """The first sentence of the docstring."""
    return re.split(r"(?<=[a-z`)][.:])\s+(?=[A-Z`])", _summary(found).split("\n\n")[0])[0].rstrip(":.")


def _errors(found: object, link: Link) -> list[str]:
    """The errors that the export has found, as a list."""
    entries = re.sub(r"\n {8,}", " ", _part(inspect.getdoc(found) or "", "Raises")).splitlines()
    named = (entry.strip().partition(": ") for entry in entries if entry.strip())
    return ["", "**Raises**", "", *(f"- {link(_code(kind))}: {words}" for kind, _, words in named)] if entries else []


def table_row(*cells: str) -> str:
    escaped = (cell.replace("\n", " ").replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _type(annotation: object, linked: bool = False) -> str:
    """An annotation without the modules its names come from; `linked` keeps ours, for there are several `Callback`s to link to."""
    if annotation is EMPTY:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    start = r"(?<![\w.])(?!cbnb\.)" if linked else r"\b"
    return re.sub(start + r"(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text)
