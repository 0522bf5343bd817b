"""The reference by topic: each public name with what it takes, returns and raises, and an example from the notebooks."""

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from docs_api import documented, entry, first_sentence, kind_of, table_row
from docs_nav import SAID, Page, title_and_about
from examples import Examples, Place, exported_cells
from notebooks import LIB

TOPICS: dict[str, dict] = SAID["topics"]
NAMES = [name for topic in TOPICS.values() for name in topic["names"]]  # dotted from `cbnb`, but for those of `cbnb.all`
PUBLIC = {name.rpartition(".")[2] for name in NAMES}  # their own methods are listed once
ROWS = 4  # a topic with fewer names has no table on top


@dataclass
class Item:
    """A public name: how it is written, and where it is defined."""

    module: str
    name: str  # as in the reference, such as `Learner.fit`
    code: tuple[str, str]  # module and name of the definition, such as `cbnb.learner`, `Fits.fit`
    found: object

    @property
    def target(self) -> str:
        return f"{self.module}.{self.name}"


class Reference:
    """The public names, by topic and by definition."""

    def __init__(self, notebooks: dict[Path, NotebookNode]):
        self.notebooks = notebooks
        self.places: dict[tuple[str, str], Place] = {}  # of what has an entry on the page of its notebook
        self.examples = Examples(notebooks)
        for module, place, source in exported_cells(notebooks):
            for name in documented(source):
                self.places.setdefault((module, name), place)
        topics = {topic: [item for name in names for item in self._items(name)] for topic, names in _names().items()}
        self.topics = {topic: items for topic, items in topics.items() if items}
        self.by_code: dict[tuple[str, str], Item] = {}
        for item in itertools.chain(*self.topics.values()):
            self.by_code.setdefault(item.code, item)

    def page(self) -> Page:
        below = [Page(f"reference/{topic}", TOPICS[topic]["title"], TOPICS[topic]["about"]) for topic in self.topics]
        return Page("reference/index", "Reference", "Every public name: what it takes, returns and raises, and an example", below)

    def files(self, link: Callable[[str, str], str]) -> Iterator[tuple[str, str]]:
        """The name and the text of each page; `link` turns backticked names into links, given a module."""
        for topic, items in self.topics.items():
            tops = [item for item in items if "." not in item.name]
            lines = [f"# {TOPICS[topic]['title']}", "", f"> {TOPICS[topic]['about']}", ""]
            if len(tops) >= ROWS:
                lines += [*_table(tops, link), ""]
            for top in tops:
                own = [item for item in items if item.module == top.module and item.name.startswith(f"{top.name}.")]
                groups = _groups(top, own)
                lines += [f"## {top.name}", ""]
                for group, members in groups.items():
                    lines += [f"### {group}", ""] * bool(group)
                    lines += [*_table(members, link, short=True), ""]
                lines += ["### In detail", ""] * (len(groups) > 1)
                lines += [self._entry(item, link) for item in (top, *(item for members in groups.values() for item in members))]
            yield f"reference/{topic}", "\n".join(lines)

    def _entry(self, item: Item, link: Callable[[str, str], str]) -> str:
        place, example = self.places.get(item.code), self.example(item)
        tail = ["", "**Example**", "", "```python", example, "```"] if example else []
        if place:
            title, _ = title_and_about(self.notebooks[place.path])
            tail += ["", f"{{ref}}`Code and how it works: {title} <{label(*item.code)}>`"]
        return entry(item.module, item.name, lambda text: link(text, item.module), tail=tail)

    def example(self, item: Item) -> str:
        """Lines that use the name: of the first cells after its definition, of any cell of its notebook, or of another page."""
        return next(self.examples.of(item.code, item.name), "")

    def _items(self, name: str) -> Iterator[Item]:
        module, found = _resolve(name)
        plain = name.rpartition(".")[2]
        qualname = getattr(found, "__qualname__", plain)
        yield Item(module, plain, (module, qualname), found)
        if inspect.isclass(found):
            for member in sorted(_members(found)):
                stored = inspect.getattr_static(found, member)
                function = _function(stored)
                code = function.__module__, function.__qualname__
                if code[1].rpartition(".")[0] in (plain, found.__name__) or code[1].rpartition(".")[0] not in PUBLIC:
                    yield Item(module, f"{plain}.{member}", code, stored if isinstance(stored, property) else function)


def label(module: str, name: str) -> str:
    """By which pages refer to the code of a definition."""
    return f"code-{module}.{name}"


def _names() -> dict[str, list[str]]:
    """The names of each topic; those that the package does not have are left out."""
    package = importlib.import_module(f"{LIB.name}.all")
    topics = {topic: [*filter(_resolve, about["names"])] for topic, about in TOPICS.items()}
    for name in package.__all__:
        if name not in NAMES:
            module = getattr(getattr(package, name), "__module__", "")
            topics["loggers" if "logger" in module else "more"].append(name)
    return topics


def _resolve(name: str) -> tuple[str, object] | None:
    """The module that defines a name, and what it is."""
    module, _, last = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(f"{LIB.name}.{module or 'all'}"), last)
    except (ImportError, AttributeError):
        return None
    home = getattr(found, "__module__", None) or type(found).__module__
    if getattr(importlib.import_module(home), last, None) is not found:
        home = f"{LIB.name}.{module or 'all'}"
    return home, found


def _members(cls: type) -> Iterator[str]:
    """What is documented of a class: its public methods and properties, but for events, and for those that a base has in the reference."""
    from cbnb.events import EVENTS

    common = {name for base in cls.__mro__[1:] if _has_entry(base) for name in dir(base)}
    for name in dir(cls):
        if name.startswith("_") or name in common or name in EVENTS:
            continue
        function = _function(inspect.getattr_static(cls, name))
        if function and "." in function.__qualname__ and (function.__module__ or "").startswith(LIB.name) and inspect.getdoc(function):
            yield name


def _has_entry(base: type) -> bool:
    """True for a class of the reference, and for those of other packages, which are documented there."""
    return base is not object and (base.__name__ in PUBLIC or not base.__module__.startswith(LIB.name))


def _function(stored: object) -> Callable | None:
    """The function behind a method or property."""
    stored = (stored.fset or stored.fget) if isinstance(stored, property) else getattr(stored, "__func__", stored)
    return stored if inspect.isfunction(stored) else None


def _groups(top: Item, members: list[Item]) -> dict[str, list[Item]]:
    if not members:
        return {}
    if top.name != "Learner":
        return {"": members}
    by_name = {item.name.removeprefix("Learner."): item for item in members}
    groups = {title: [by_name.pop(name) for name in names if name in by_name] for title, names in SAID["learner"].items()}
    return {**groups, "State and others": list(by_name.values())}


def _table(items: list[Item], link: Callable[[str, str], str], short: bool = False) -> list[str]:
    lines = ["| Name | What it does |", "| :-- | :-- |"]
    for item in items:
        call = "()" if kind_of(item.module, item.name, item.found) in ("method", "classmethod", "staticmethod", "function") else ""
        text = item.name.rpartition(".")[2] if short else item.name
        lines.append(table_row(f"{{py:obj}}`{text}{call} <{item.target}>`", link(first_sentence(item.found), item.module)))
    return lines
