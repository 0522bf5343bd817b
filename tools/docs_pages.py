"""The pages of the site, from the notebooks.

Exported definitions turn into reference entries with a table of their parameters and the source folded below, names in backticks become
links, hidden cells go, widgets go.
"""

import ast
import base64
import copy
import io
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from PIL import Image

from docs_api import documented, entry
from docs_nav import AT_ROOT, contents, page_name, plain, project, sections
from docs_reference import Reference, label
from notebooks import INDEX, LIB, SETTINGS, Function, default_module, directives, is_hidden, parsed, without_directives, without_widgets

HIDES_INPUT = {"echo: false", "hide_input"}
INSTANCES = {"learn": "Learner", "recorder": "Recorder", "learn.recorder": "Recorder", "dls": "DataLoaders"}
_ROLE = re.compile(r"\{py:obj\}`([^`<]*?) ?(?:<[^>]*>)?`")  # a name as a link
_PICTURE = re.compile(r'<picture><source [^>]*srcset="([^"]+)">(!\[[^]]*\])(\([^)]+\))</picture>')
_LIGHT = re.compile(r"(!\[[^]]*\])(\((\S+)_light\.png\))")
_NAME = re.compile(r"(?<![`\w}\[])`([A-Za-z_][\w.]*)(\(\))?`(?!`)")


class Site:
    """The notebooks as pages, and what the names in backticks stand for."""

    def __init__(self, notebooks: dict[Path, NotebookNode]):
        self.notebooks = notebooks
        self.reference = Reference(notebooks)
        self.sections = [*sections(notebooks, self.reference.page()), project()]
        self.entries: dict[str, tuple[str, str]] = {}  # each way to write a name -> its module and full name
        for place in self.reference.places:
            for written in spellings(*place):
                self.entries.setdefault(written, place)
        self.own = {(module, name): self.at(module, name) for module, name in self.reference.places}
        self.public = {item.name: item.target for item in self.reference.by_code.values() if not isinstance(item.found, property)}
        self.imported = {module: imported_names(nb, module) for nb in notebooks.values() if (module := default_module(nb))}

    def target(self, written: str, module: str | None = None, called: bool = False) -> str | None:
        """What a name in backticks on the page of `module` stands for: the module's own, then the learner's, then the public one.

        A plain word, such as `figure`, is nobody's name elsewhere unless it is `called`.
        """
        if module and (module, written) in self.own:
            return self.own[module, written]
        for prefix in ("Learner.", ""):
            if found := self.public.get(f"{prefix}{written}"):
                return found
        if module and (found := self.imported.get(module, {}).get(written)):
            return self.own.get((found, written))
        if re.fullmatch("[a-z]+", written) and not called:
            return None
        return self.at(*self.entries[written]) if written in self.entries else None

    def at(self, module: str, name: str) -> str:
        """Where the entry of a definition is: in the reference, if it is public."""
        item = self.reference.by_code.get((module, name))
        return item.target if item else f"{module}.{name}"

    def link(self, markdown: str, module: str | None = None) -> str:
        """`markdown` with links to the reference for names in backticks, except in headings, links and code."""

        def to_entry(match: re.Match) -> str:
            target = self.target(match[1], module, called=bool(match[2]))
            return f"{{py:obj}}`{match[1]}{match[2] or ''} <{target}>`" if target else match[0]

        lines, in_code = [], False
        for line in markdown.splitlines():
            if line.lstrip().startswith(("```", "~~~")):
                in_code = not in_code
            lines.append(line if in_code or line.startswith("#") else _NAME.sub(to_entry, line))
        return "\n".join(lines)

    def page(self, path: Path) -> NotebookNode:
        """The notebook at `path` as Sphinx gets it."""
        nb = copy.deepcopy(self.notebooks[path])
        module = default_module(nb)
        nb.cells = [new for cell in nb.cells for new in self.cells(cell, module)]
        if path == INDEX:
            nb.cells.append(new_markdown_cell(contents(self.sections)))
        describe_images(nb)
        for number, cell in enumerate(nb.cells):
            cell["id"] = f"cell-{number}"  # new cells get random ones, and a page must come out the same each time
        return without_widgets(nb)

    def cells(self, cell: NotebookNode, module: str | None) -> list[NotebookNode]:
        """What one cell becomes on the page: nothing, itself, or entries and source."""
        if cell.cell_type == "markdown":
            cell.source = without_synonyms(to_pages(self.link(cell.source, module)))
            return [cell]
        if cell.cell_type != "code" or is_hidden(cell):
            return []
        marks = set(directives(cell))
        cell.source = without_directives(cell.source)
        if "export" not in marks:
            add_tags(cell, ["remove-input"] * bool(marks & HIDES_INPUT))
            return [cell] if cell.source else []
        statements = ast.parse(cell.source).body
        if all(isinstance(node, ast.Import | ast.ImportFrom) for node in statements):
            return []
        if any(isinstance(node, Function | ast.ClassDef) for node in statements):  # tables and constants are read in the open
            add_tags(cell, ["hide-input"])
        return [*(new_markdown_cell(self.entry(module, name)) for name in documented(cell.source)), cell]

    def entry(self, module: str, name: str) -> str:
        """A definition on the page of its notebook; links lead to the reference if it is there, too."""
        item = self.reference.by_code.get((module, name))
        text = entry(module, name, lambda markdown: self.link(markdown, module), indexed=item is None)
        return f"({label(module, name)})=\n{text}" if item else text


def spellings(module: str, name: str) -> Iterator[str]:
    """The ways to write a name in a text: `Learner.fit`, `cbnb.learner.Learner.fit`, `learner.Learner.fit`, `learn.fit`."""
    yield from (name, f"{module}.{name}", f"{module.removeprefix(f'{LIB.name}.')}.{name}")
    owner, _, method = name.rpartition(".")
    yield from (f"{instance}.{method}" for instance, kind in INSTANCES.items() if owner == kind)


def add_tags(cell: NotebookNode, tags: list[str]) -> None:
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), *tags]


def describe_images(nb: NotebookNode) -> None:
    """An alternative text for the images of each cell: what the figure says of itself, or else the sentence before the cell.

    Charts are marked, because they are shown on a dark ground on dark pages.
    """
    before = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            before = cell.source
            continue
        images = [output for output in cell.get("outputs", []) if any(kind.startswith("image/") for kind in output.get("data", {}))]
        if images:
            texts = (output.data.get("text/plain", "") for output in images)
            own = "; ".join(text for text in texts if text and not text.startswith("<"))
            sentences = [line for line in before.splitlines() if line.strip() and line[0].isalpha()]
            said = plain(_ROLE.sub(r"\1", sentences[-1])) if sentences else ""
            about = {"alt": re.sub(r"\s+", " ", own or f"Figure: {said}")[:600]}
            if all(map(is_chart, cell.outputs)):
                about["classes"] = "chart"
            cell.metadata.setdefault("mystnb", {})["image"] = about


def is_chart(output: NotebookNode) -> bool:
    """False for a figure with photos, digits or a map of colors: one that is not mostly white, or has black areas."""
    if "image/png" not in output.get("data", {}):
        return True
    with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as image:
        counts = image.convert("L").histogram()
    return sum(counts[250:]) > 0.55 * sum(counts) and sum(counts[:40]) < 0.02 * sum(counts)


def imported_names(nb: NotebookNode, module: str) -> dict[str, str]:
    """The names that the cells of `nb` import from this package, and their modules."""
    found = {}
    for cell in nb.cells:
        if cell.cell_type == "code" and "import" in cell.source:
            for node in ast.walk(parsed(cell.source)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LIB.name):
                    found |= {name.asname or name.name: node.module for name in node.names}
    return found


def to_pages(markdown: str) -> str:
    """Links between notebooks as links between pages, and pictures for both themes; of the files at the root, those of `AT_ROOT` are pages."""
    for name, path in AT_ROOT.items():
        markdown = markdown.replace(f"](../{path.name})", f"]({name}.md)")
    markdown = re.sub(r"\]\(\.\./(\w+(?:\.md)?)\)", rf"]({SETTINGS['git_url']}/blob/{SETTINGS['branch']}/\1)", markdown)
    markdown = _PICTURE.sub(r"\2\3{.only-light}\2(\1){.only-dark}", markdown)
    markdown = _LIGHT.sub(r"\1\2{.only-light}\1(\3_dark.png){.only-dark}", markdown)

    def renamed(match: re.Match) -> str:
        return f"]({page_name(Path(match[1]))}.ipynb"

    return re.sub(r"\]\(((?!\w+:)[^)#]+\.ipynb)", renamed, markdown)


def without_synonyms(markdown: str) -> str:
    """The search knows what a page is also called; on the page itself, custom.css hides it."""
    return re.sub(r"^Also called:.*$", r":::{container} also-called\n\g<0>\n:::", markdown, flags=re.M)
