"""The documentation site in _docs/, from the notebooks, with Sphinx; nothing is fetched.

    python tools/docs.py            with the outputs stored in the notebooks; a warning is an error
    python tools/docs.py --clean    start from nothing
    python tools/docs.py --dev      into _docs/dev/, beside the stable version; a select in the side bar leads from one to the other

The outputs in the notebooks are those of a run: `make test` compares them, and `make outputs` stores new ones.

Each notebook becomes a page: exported definitions turn into reference entries with a table of their parameters and the
source folded below (open for `#| exports`), names in backticks become links, hidden cells go, widgets go.
"""

import argparse
import ast
import base64
import contextlib
import copy
import html
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from PIL import Image

from docs_api import documented, entry, first_sentence
from docs_nav import ALSO, BY_PART, Page, contents, listing, page_name, rank, sections
from docs_reference import Reference
from notebooks import (
    INDEX,
    LIB,
    NBS,
    ROOT,
    SETTINGS,
    default_module,
    directives,
    is_hidden,
    notebook_paths,
    read,
    show,
    without_directives,
    without_widgets,
)

WORK = ROOT / "_proc"
HTML = WORK / "site" / "html"  # copied to OUT when it is right; a folder deep, because myst-nb writes beside it
OUT = ROOT / SETTINGS["doc_path"]
DEV = "dev"  # the folder of the version that is being written, and its name
ADDRESS = SETTINGS["doc_host"] + SETTINGS["doc_baseurl"]  # of the site, when it is published
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
INSTANCES = {"learn": "Learner", "recorder": "Recorder", "learn.recorder": "Recorder", "dls": "DataLoaders"}
_ROLE = re.compile(r"\{py:obj\}`([^`<]*?) ?(?:<[^>]*>)?`")  # a name as a link
_PICTURE = re.compile(r'<picture><source [^>]*srcset="([^"]+)">(!\[[^]]*\])(\([^)]+\))</picture>')
_LIGHT = re.compile(r"(!\[[^]]*\])(\((\S+)_light\.png\))")
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)
_NAME = re.compile(r"(?<![`\w}\[])`([A-Za-z_][\w.]*)(\(\))?`(?!`)")


# --- the pages ---


class Site:
    """The notebooks as pages, and what the names in backticks stand for."""

    def __init__(self, notebooks: dict[Path, NotebookNode]):
        self.notebooks = notebooks
        self.reference = Reference(notebooks)
        self.sections = sections(notebooks, self.reference.page())
        self.entries: dict[str, tuple[str, str]] = {}  # each way to write a name -> its module and full name
        for nb in notebooks.values():
            module = default_module(nb)
            for cell in nb.cells:
                if module and {"export", "exports"} & set(directives(cell)) and not is_hidden(cell):
                    self._add_names(module, documented(cell.source))
        self.own = {(module, name): self.at(module, name) for module, name in self.reference.places}
        self.public = {item.name: item.target for item in self.reference.by_code.values() if not isinstance(item.found, property)}
        self.imported = {module: imported_names(nb, module) for nb in notebooks.values() if (module := default_module(nb))}

    def _add_names(self, module: str, names: Iterable[str]) -> None:
        for name in names:
            short_module = module.removeprefix(f"{LIB.name}.")
            for written in (name, f"{module}.{name}", f"{short_module}.{name}"):
                self.entries.setdefault(written, (module, name))
            owner, _, method = name.rpartition(".")
            for instance, kind in INSTANCES.items():
                if owner == kind:
                    self.entries.setdefault(f"{instance}.{method}", (module, name))

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
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), *(TAGS[mark] for mark in TAGS if mark in marks)]
        if not marks & EXPORTS:
            return [cell] if cell.source else []
        if only_imports(cell.source):
            return []
        names = list(documented(cell.source)) if "exporti" not in marks else []
        if defines(cell.source) and "exports" not in marks:
            cell.metadata["tags"].append("hide-input")
        return [*(new_markdown_cell(self.entry(module, name)) for name in names), cell]

    def entry(self, module: str, name: str) -> str:
        """A definition on the page of its notebook; links lead to the reference if it is there, too."""
        item = self.reference.by_code.get((module, name))
        text = entry(module, name, lambda markdown: self.link(markdown, module), indexed=item is None)
        return f"({self.reference.places[module, name].label(module, name)})=\n{text}" if item else text


def describe_images(nb: NotebookNode) -> None:
    """An alternative text for the images of each cell: what the figure says of itself, or else the sentence before the cell.

    Charts are marked, because they are shown on a dark ground on dark pages.
    """
    before = ""
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            before = cell.source
            continue
        texts = [
            output.data.get("text/plain", "")
            for output in cell.get("outputs", [])
            if any(kind.startswith("image/") for kind in output.get("data", {}))
        ]
        if texts:
            own = "; ".join(text for text in texts if text and not text.startswith("<"))
            sentences = [line for line in before.splitlines() if line.strip() and line[0].isalpha()]
            said = plain(_ROLE.sub(r"\1", sentences[-1])) if sentences else ""
            found = own or f"Figure: {said}"
            about = {"alt": re.sub(r"\s+", " ", found)[:600]}
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
            with contextlib.suppress(SyntaxError):
                for node in ast.walk(ast.parse(cell.source)):
                    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(LIB.name):
                        found |= {name.asname or name.name: node.module for name in node.names}
    return found


def only_imports(source: str) -> bool:
    return all(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.parse(source).body)


def defines(source: str) -> bool:
    """True if the cell has functions or classes, whose source is folded; tables and constants are read in the open."""
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in ast.parse(source).body)


def to_pages(markdown: str) -> str:
    """Links between notebooks as links between pages, and pictures for both themes; files at the root of the repository are not on the site."""
    markdown = re.sub(r"\]\(\.\./(\w+(?:\.md)?)\)", rf"]({SETTINGS['git_url']}/blob/{SETTINGS['branch']}/\1)", markdown)
    markdown = _PICTURE.sub(r"\2\3{.only-light}\2(\1){.only-dark}", markdown)
    markdown = _LIGHT.sub(r"\1\2{.only-light}\1(\3_dark.png){.only-dark}", markdown)

    def renamed(match: re.Match) -> str:
        return f"]({page_name(Path(match[1]))}.ipynb"

    return re.sub(r"\]\(((?!\w+:)[^)#]+\.ipynb)", renamed, markdown)


def without_synonyms(markdown: str) -> str:
    """The search knows what a page is also called; on the page itself, custom.css hides it."""
    return re.sub(r"^Also called:.*$", r":::{container} also-called\n\g<0>\n:::", markdown, flags=re.M)


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
    for page in (page for section in site.sections for page in section.walk() if page.below):
        files[Path(f"{page.name}.md")] = listing(page).encode()
    for name, text in site.reference.files(site.link):
        files[Path(f"{name}.md")] = text.encode()
    for path in NBS.rglob("*"):
        if path.suffix in IMAGES:
            files[path.relative_to(NBS)] = path.read_bytes()
    for target, content in files.items():
        write_if_changed(folder / target, content)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder) not in files:
            path.unlink()


def write_about(site: Site) -> None:
    """What the theme and the search know of the pages, and the notebooks to download."""
    pages = about_pages(site)
    names = {item.target: first_sentence(item.found) for item in site.reference.by_code.values()}
    data = "".join(f"const {name} = {json.dumps(table)};\n" for name, table in (("PAGES", pages), ("ABOUT", names)))
    start = ["index", f"{SETTINGS['title']} at a glance", []]
    tree = [start, *map(nested, site.sections)]
    places = "".join(f"<url><loc>{ADDRESS}/{name}.html</loc></url>\n" for name in sorted(pages))
    sitemap = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{places}</urlset>\n'
    write_if_changed(WORK / "extra" / "sitemap.xml", sitemap.encode())
    write_if_changed(WORK / "pages.json", json.dumps({"pages": pages, "tree": tree}, indent=1).encode())
    write_if_changed(WORK / "search.js", (data + (CONF / "search_rank.js").read_text(encoding="utf-8")).encode())
    for path in site.notebooks:
        write_if_changed(WORK / "extra" / "notebooks" / path.relative_to(NBS), path.read_bytes())


def nested(page: Page) -> list:
    """A page and those below it, for the side bar; titles are HTML."""
    return [page.name, re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(page.title)), [nested(below) for below in page.below]]


def about_pages(site: Site) -> dict[str, dict]:
    """Title, description, section, synonyms, rank in the search, and words of the parts of each page."""
    found = {"index": {"title": SETTINGS["title"], "about": SETTINGS["description"], "section": "Start", "rank": 2.0}}
    for section in site.sections:
        for page in section.walk():
            found[page.name] = {"title": plain(page.title), "about": plain(page.about), "section": section.title, "rank": rank(page)}
    for path, nb in site.notebooks.items():
        page = found[name := page_name(path.relative_to(NBS)).as_posix()]
        page |= {"notebook": path.relative_to(NBS).as_posix(), "also": synonyms(nb)}
        if name.startswith(BY_PART):
            page["parts"] = parts(nb)
    for name, also in ALSO.items():
        if name in found:
            found[name].setdefault("also", []).extend(also)
    return found


def plain(markdown: str) -> str:
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("**", "")


def synonyms(nb: NotebookNode) -> list[str]:
    """What a page says it is also called."""
    for cell in nb.cells[:3]:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("Also called:"):
                return [word.strip() for word in plain(line.removeprefix("Also called:")).rstrip(".").split(",") if word.strip()]
    return []


def parts(nb: NotebookNode) -> dict[str, list[str]]:
    """Of each part of a page, by its heading: its words, and then the names it is searched by. The part above the first heading is ''."""
    words, names, last = {"": {}}, {"": []}, ""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and not is_hidden(cell):
            for line in _FENCE.sub("", cell.source).splitlines():
                if heading := re.match(r"##+ (.+)", line):
                    last = plain(heading[1]).strip()
                    words[last], names[last] = {}, []
                elif not line.startswith(("# ", "Also called:")):
                    words[last] |= dict.fromkeys(re.findall(r"\w+", plain(line).lower()))
                    names[last] += part_names(line)
    return {title: [" ".join(found), *names[title]] for title, found in words.items() if found and title != "See also"}


def part_names(line: str) -> list[str]:
    """What a line says that its part may be searched by: the first column of a table, or words in italics at its beginning."""
    if italics := re.match(r"\*([^*]+)\*", line):
        return [word.strip() for word in plain(italics[1]).rstrip(".").split(",")]
    first = line.split("|")[1].strip() if line.startswith("|") else ""
    return re.findall(r"`([^`]+)`", first) or [name for word in plain(first).split(",") if (name := word.strip("-: "))]


def build(source: Path, dev: bool = False) -> int:
    """Run Sphinx; replace the version in _docs/ if it has no complaints."""
    options = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-d", WORK / "doctrees", "-c", CONF]
    if dev:
        options += ["-A", f"site_version={DEV}", "-D", f"html_title={SETTINGS['title']} {DEV}"]
    code = subprocess.call([sys.executable, "-m", "sphinx", *options, source, HTML])
    if code == 0:
        publish(HTML, OUT, dev)
    return code


def publish(made: Path, out: Path, dev: bool) -> None:
    """Replace one version in `out`: the stable one is at the root, the other one in a folder; versions.json lists what is there."""
    target = out / DEV if dev else out
    for path in target.glob("*"):
        if path != out / DEV:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(made, target, ignore=shutil.ignore_patterns(".buildinfo*", ".doctrees"), dirs_exist_ok=True)
    places = {"stable": "", DEV: f"{DEV}/"}
    versions = [{"name": name, "place": place} for name, place in places.items() if (out / place / "index.html").exists()]
    (out / "versions.json").write_text(json.dumps(versions), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", action="store_true", help="start from nothing")
    parser.add_argument("--dev", action="store_true", help="build the version that is being written, in a folder of its own")
    args = parser.parse_args()

    if args.clean:
        shutil.rmtree(WORK, ignore_errors=True)
    sys.path.insert(0, str(ROOT))  # entries come from this checkout's package
    paths = notebook_paths()
    site = Site({path: read(path) for path in paths})
    write_sources(site, WORK / "pages")
    write_about(site)
    code = build(WORK / "pages", args.dev)
    if code == 0:
        print(f"{show(OUT / (DEV if args.dev else '') / 'index.html')}: {len(paths)} pages, {len(set(site.entries.values()))} entries")
    else:
        print(f"Not published because of the warnings above; as far as it got: {show(HTML / 'index.html')}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
