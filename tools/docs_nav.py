"""The sections of the site, by purpose, and the pages that list what is in each."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from notebooks import INDEX, NBS, ROOT, SETTINGS, room

SAID = tomllib.loads(Path(__file__).with_name("site.toml").read_text(encoding="utf-8"))
BY_PART = ("how_to/", "tutorials/", "guides/", "moving/")  # whose parts the search knows by their words
ALSO: dict[str, list[str]] = SAID["also"]  # what a page is searched by
AT_ROOT = {f"project/{Path(name).stem.lower()}": ROOT / name for name in SAID["project"]}  # pages that are files beside the notebooks


@dataclass
class Page:
    """A page of the site: a notebook, or a list of what is below it."""

    name: str  # on the site, without an ending
    title: str
    about: str = ""  # one line
    below: list["Page"] = field(default_factory=list)
    groups: dict[str, list["Page"]] = field(default_factory=dict)  # the same pages under headings, if they have some

    def walk(self) -> Iterator["Page"]:
        yield self
        for page in self.below:
            yield from page.walk()


def page_name(relative: Path) -> Path:
    """Where the notebook at `relative` is on the site: without the number and the ending."""
    return relative.with_name(re.sub(r"^\d+[a-z]*_", "", relative.name)).with_suffix("")


def title_and_about(nb: NotebookNode) -> tuple[str, str]:
    """The heading of a notebook, and the line with `>` below it."""
    first = nb.cells[0].source.splitlines() if nb.cells else []
    title = next((line[2:].strip() for line in first if line.startswith("# ")), "")
    return title, next((line[1:].strip() for line in first if line.startswith(">")), "")


def sections(notebooks: dict[Path, NotebookNode], reference: Page | None = None) -> list[Page]:
    """What the side bar shows, from the top."""
    rooms: dict[str, list[Page]] = {}
    for path, nb in notebooks.items():
        if path != INDEX:
            title, about = title_and_about(nb)
            name = page_name(path.relative_to(NBS)).as_posix()
            rooms.setdefault("roof" if path.stem in SETTINGS["roof"].split() else room(path), []).append(Page(name, title or name, about))
    how_to = _questions(rooms.pop("how_to", []))
    top = [
        Page("tutorials/index", "Tutorials", "Longer pages to follow from the top", rooms.pop("tutorials", [])),
        Page("how_to/index", "How-to", "One question a page, the answer first", sum(how_to.values(), []), how_to),
        Page("guides/index", "Guides", "Background, measured", rooms.pop("guides", [])),
        *([reference] if reference else []),
    ]
    moving, roof = rooms.pop("moving", []), rooms.pop("roof", [])
    known = [name for name in SAID["rooms"] if name in rooms]
    below = [_room(name, rooms[name]) for name in [*known, *sorted(rooms.keys() - known)]]
    about = "The library, notebook by notebook, with its code"
    top.append(Page("how_it_works/index", "How it works", about, [*below, *roof]))
    top.append(Page("moving/index", "Moving from ...", "The same training in your library and in cbnb", moving))
    return [page for page in top if page.below]


def project() -> Page:
    """The files at the root of the repository that are pages, too."""
    below = [
        Page(name, path.read_text(encoding="utf-8").partition("\n")[0][2:], SAID["project"][path.name]) for name, path in AT_ROOT.items()
    ]
    return Page("project/index", "The project", "How to work on cbnb, and what has changed", below)


def _room(name: str, pages: list[Page]) -> Page:
    title, about = SAID["rooms"].get(name, (name.capitalize(), ""))
    return Page(f"how_it_works/{name}", title, about, pages)


def _questions(pages: list[Page]) -> dict[str, list[Page]]:
    stems = {page.name.rpartition("/")[2]: page for page in pages}
    groups = {title: [stems.pop(name) for name in names if name in stems] for title, names in SAID["questions"].items()}
    groups["More"] = list(stems.values())
    return {title: found for title, found in groups.items() if found}


def rank(page: Page) -> float:
    return next((value for start, value in SAID["ranks"].items() if page.name.startswith(start)), 1.0)


def listing(page: Page) -> str:
    """The text of a page that only lists the pages below it."""
    lines = [f"# {page.title}", "", f"> {page.about}", ""]
    for title, pages in (page.groups or {"": page.below}).items():
        lines += [f"## {title}", ""] * bool(title)
        lines += [f"- {{doc}}`{_label(below.title)} </{below.name}>`{f': {below.about}' if below.about else ''}" for below in pages]
        lines += [""]
    return "\n".join([*lines, toctree(below.name for below in page.below), ""])


def contents(pages: Iterable[Page]) -> str:
    """The table of contents of the whole site, for its first page."""
    return toctree([f"{SETTINGS['title']} at a glance <self>", *(page.name for page in pages)], absolute=False)


def toctree(names: Iterable[str], absolute: bool = True) -> str:
    return "\n".join(["```{toctree}", ":hidden:", "", *(f"/{name}" if absolute else name for name in names), "```"])


def plain(markdown: str) -> str:
    """The words of a line, without links and marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("**", "")


def _label(title: str) -> str:
    return title.replace("`", "").replace("<", "\\<")
