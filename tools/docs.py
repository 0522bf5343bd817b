"""The documentation site in _docs/, from the notebooks, with Sphinx; nothing is fetched.

    python tools/docs.py            run notebooks that changed, then build; a warning is an error
    python tools/docs.py --stored   use the outputs in the notebooks, run nothing
    python tools/docs.py --clean    start from nothing

Each notebook becomes a page: exported definitions turn into reference entries with a table of their parameters and the
source folded below (open for `#| exports`), names in backticks become links, hidden cells go, widgets become plain HTML.
"""

import argparse
import ast
import copy
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from docs_api import documented, entry
from notebooks import (
    INDEX,
    LIB,
    NBS,
    ROOT,
    SETTINGS,
    CellFailed,
    clean_kernels,
    default_module,
    directives,
    execute,
    is_hidden,
    notebook_paths,
    read,
    room,
    show,
    without_directives,
)
from static_widgets import freeze

WORK = ROOT / "_proc"
HTML = WORK / "site" / "html"  # copied to OUT when it is right; a folder deep, because myst-nb writes beside it
OUT = ROOT / SETTINGS["doc_path"]
CONF = Path(__file__).parent / "sphinx_conf"
IMAGES = {".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp"}

EXPORTS = {"export", "exports", "exporti"}
# what a directive says to nbdev -> the tag that says it to myst-nb
TAGS = {
    "echo: false": "remove-input",
    "hide_input": "remove-input",
    "output: false": "remove-output",
    "hide_output": "remove-output",
    "collapse_output": "hide-output",
    "code-fold: true": "hide-input",
}
CAPTIONS = {"core": "The core", "lr": "Learning rate"}  # of a room in the side bar; otherwise its name
INSTANCES = {"learn": "Learner", "recorder": "Recorder", "learn.recorder": "Recorder", "dls": "DataLoaders"}
_NAME = re.compile(r"(?<![`\w}\[])`([A-Za-z_][\w.]*)(\(\))?`(?!`)")


def page_name(relative: Path) -> Path:
    """Where the notebook at `relative` is on the site: without the number and the ending."""
    return relative.with_name(re.sub(r"^\d+[a-z]*_", "", relative.name)).with_suffix("")


# --- the outputs ---


def code_hash(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def run(path: Path, library: str) -> NotebookNode:
    """The notebook with fresh outputs; those of an earlier run if neither its code nor the library's changed since."""
    nb = read(path)
    code = "\0".join(cell.source for cell in nb.cells if cell.cell_type == "code")
    key = hashlib.sha256(f"{library}{show(path)}\0{code}".encode()).hexdigest()[:24]
    kept = WORK / "runs" / f"{key}.ipynb"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        ran = execute(path)
        nbformat.write(ran, kept)
    ran = read(kept)
    for cell, done in zip(nb.cells, ran.cells):
        if cell.cell_type == "code":
            cell.outputs = done.outputs
    nb.metadata["widgets"] = ran.metadata.get("widgets", {})
    return nb


def run_all(paths: list[Path], workers: int) -> dict[Path, NotebookNode]:
    library = code_hash(LIB.rglob("*.py"))
    with clean_kernels(workers), ThreadPoolExecutor(workers) as pool:
        return dict(zip(paths, pool.map(lambda path: run(path, library), paths)))


# --- the pages ---


class Site:
    """The notebooks as pages, and what the names in backticks stand for."""

    def __init__(self, notebooks: dict[Path, NotebookNode]):
        self.notebooks = notebooks
        self.entries: dict[str, tuple[str, str]] = {}  # each way to write a name -> its module and full name
        for nb in notebooks.values():
            module = default_module(nb)
            for cell in nb.cells:
                if module and {"export", "exports"} & set(directives(cell)) and not is_hidden(cell):
                    self._add_names(module, documented(cell.source))
                    self._add_inherited(module, cell.source)

    def _add_names(self, module: str, names: Iterable[str]) -> None:
        for name in names:
            short_module = module.removeprefix(f"{LIB.name}.")
            for written in (name, f"{module}.{name}", f"{short_module}.{name}"):
                self.entries.setdefault(written, (module, name))
            owner, _, method = name.rpartition(".")
            for instance, kind in INSTANCES.items():
                if owner == kind:
                    self.entries.setdefault(f"{instance}.{method}", (module, name))

    def _add_inherited(self, module: str, source: str) -> None:
        """The names of a class that is composed of others: `Learner.fit` and `learn.fit` are found at `Fits.fit`."""
        for node in ast.parse(source).body:
            for base in map(ast.unparse, node.bases if isinstance(node, ast.ClassDef) else ()):
                for name, (place, full) in list(self.entries.items()):
                    if place == module and name.startswith(f"{base}."):
                        owners = [node.name, *(instance for instance, kind in INSTANCES.items() if kind == node.name)]
                        for owner in owners:
                            self.entries.setdefault(f"{owner}{name.removeprefix(base)}", (module, full))

    def link(self, markdown: str) -> str:
        """`markdown` with links to the reference for names in backticks, except in headings, links and code."""

        def to_entry(match: re.Match) -> str:
            module, name = self.entries.get(match[1], (None, None))
            return f"{{py:obj}}`{match[1]}{match[2] or ''} <{module}.{name}>`" if module else match[0]

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
            nb.cells.append(new_markdown_cell(contents(self.notebooks)))
        for number, cell in enumerate(nb.cells):
            cell["id"] = f"cell-{number}"  # new cells get random ones, and a page must come out the same each time
        return freeze(nb)

    def cells(self, cell: NotebookNode, module: str | None) -> list[NotebookNode]:
        """What one cell becomes on the page: nothing, itself, or entries and source."""
        if cell.cell_type == "markdown":
            cell.source = to_pages(self.link(cell.source))
            return [cell]
        if cell.cell_type != "code" or is_hidden(cell):
            return []
        marks = set(directives(cell))
        cell.source = without_directives(cell.source)
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), *(TAGS[mark] for mark in TAGS if mark in marks)]
        if not marks & EXPORTS:
            return [cell] if cell.source else []
        if only_imports(cell.source):
            return []
        names = list(documented(cell.source)) if "exporti" not in marks else []
        if defines(cell.source) and "exports" not in marks:
            cell.metadata["tags"].append("hide-input")
        return [*(new_markdown_cell(entry(module, name, self.link)) for name in names), cell]


def only_imports(source: str) -> bool:
    return all(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.parse(source).body)


def defines(source: str) -> bool:
    """True if the cell has functions or classes, whose source is folded; tables and constants are read in the open."""
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.parse(source).body)


def to_pages(markdown: str) -> str:
    """Links between notebooks as links between pages."""

    def renamed(match: re.Match) -> str:
        return f"]({page_name(Path(match[1]))}.ipynb"

    return re.sub(r"\]\(((?!\w+:)[^)#]+\.ipynb)", renamed, markdown)


def contents(paths: Iterable[Path]) -> str:
    """The table of contents, which furo shows in the side bar."""
    sections = {"Start": [f"{SETTINGS['title']} at a glance <self>"]}
    for path in paths:
        if path != INDEX:
            caption = "Start" if path.stem in SETTINGS["roof"].split() else CAPTIONS.get(room(path), room(path).capitalize())
            sections.setdefault(caption, []).append(str(page_name(path.relative_to(NBS))))
    trees = [toctree(caption, pages) for caption, pages in sections.items()]
    return "\n".join(trees)


def toctree(caption: str, pages: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])


# --- the build ---


def write_if_changed(path: Path, content: bytes) -> None:
    """Sphinx builds what is newer than its page, so files that stay as they are must not be touched."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_sources(site: Site, folder: Path) -> None:
    """What Sphinx reads, in `folder`: the pages and the images; files of pages that are gone are removed."""
    files = {}
    for path in site.notebooks:
        target = page_name(path.relative_to(NBS)).with_suffix(".ipynb")
        if target in files:
            sys.exit(f"two notebooks would become the page {target.with_suffix('')}: rename {show(path)}")
        files[target] = nbformat.writes(site.page(path)).encode()
    for path in NBS.rglob("*"):
        if path.suffix in IMAGES:
            files[path.relative_to(NBS)] = path.read_bytes()
    for target, content in files.items():
        write_if_changed(folder / target, content)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder) not in files:
            path.unlink()


def build(source: Path) -> int:
    """Run Sphinx; replace _docs/ if it has no complaints."""
    options = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-d", WORK / "doctrees", "-c", CONF]
    code = subprocess.call([sys.executable, "-m", "sphinx", *options, source, HTML])
    if code == 0:
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.copytree(HTML, OUT, ignore=shutil.ignore_patterns(".buildinfo*", ".doctrees"))
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stored", action="store_true", help="use the stored outputs")
    parser.add_argument("--clean", action="store_true", help="start from nothing")
    parser.add_argument("--workers", type=int, default=2, help="notebooks at a time")
    args = parser.parse_args()

    if args.clean:
        shutil.rmtree(WORK, ignore_errors=True)
    sys.path.insert(0, str(ROOT))  # entries come from this checkout's package
    paths = notebook_paths()
    try:
        site = Site({path: read(path) for path in paths} if args.stored else run_all(paths, args.workers))
    except CellFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    write_sources(site, WORK / "pages")
    code = build(WORK / "pages")
    if code == 0:
        print(f"{show(OUT / 'index.html')}: {len(paths)} pages, {len(set(site.entries.values()))} entries")
    else:
        print(f"Not published because of the warnings above; as far as it got: {show(HTML / 'index.html')}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
