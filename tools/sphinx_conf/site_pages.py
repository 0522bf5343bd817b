"""What tools/docs.py knows of the pages and a theme can use: descriptions, notebooks, and the order of the side bar."""

import html
import itertools
import json
import re
from functools import cache
from pathlib import Path

from sphinx.search.en import SearchEnglish

PAGES = "site_pages"  # the configuration value: a JSON file


def add_context(app, name: str, template: str, context: dict, doctree: object) -> None:
    """The description for search engines and previews, and the link below which the notebook can be downloaded."""
    page = app.site_pages["pages"].get(name, {})
    about = page.get("about") or context["site_description"]
    context["metatags"] = f"{context.get('metatags') or ''}<meta name='description' content='{html.escape(about)}'>\n"
    if name == "404":
        context["pageurl"] = None  # it has no address of its own
    context["notebook_link"] = f"notebooks/{page['notebook']}" if page.get("notebook") else ""
    context["notebook_file"] = page.get("notebook", "").rpartition("/")[2]
    context.pop("toctree", None)  # Sphinx copies all entries of all pages for each of them, and furo parses them: most of a build


def add_side_bar(app, name: str, template: str, context: dict, doctree: object) -> None:
    context["furo_navigation_tree"] = side_bar(app, name)


def side_bar(app, name: str) -> str:
    """All pages as nested lists, as furo makes it of the toctree of Sphinx; the way to the page `name` is marked."""
    boxes = itertools.count(1)

    def is_above(page: list) -> bool:
        return page[0] == name or any(map(is_above, page[2]))

    def listed(pages: list, level: int) -> str:
        items = []
        for target, title, below in pages:
            here = " current" if is_above([target, title, below]) else ""
            address = "#" if target == name else app.builder.get_relative_uri(name, target)
            link = f'<a class="reference internal{here if target == name else ""}" href="{address}">{title}</a>'
            kinds = f"toctree-l{level}{here}{' has-children' if below else ''}{' current-page' if target == name else ''}"
            items.append(f'<li class="{kinds}">{link}{folded(title, here, below, level) if below else ""}</li>')
        current = ' class="current"' if any(map(is_above, pages)) else ""
        return f"<ul{current}>{''.join(items)}</ul>"

    def folded(title: str, here: str, below: list, level: int) -> str:
        box = f"toctree-checkbox-{next(boxes)}"
        about = f'aria-label="Toggle navigation of {html.escape(plain(title))}"'
        checked = ' checked=""' if here else ""
        box_of = f'<input {about}{checked} class="toctree-checkbox" id="{box}" name="{box}" role="switch" type="checkbox"/>'
        icon = '<span class="icon"><svg><use href="#svg-arrow-right"></use></svg></span>'
        return f'{box_of}<label for="{box}">{icon}</label>{listed(below, level + 1)}'

    return listed(app.site_pages["tree"], 1)


def plain(title: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", title))


class English(SearchEnglish):
    """Stems each word once: a build meets each some ten times."""

    def __init__(self, options: dict[str, str]):
        super().__init__(options)
        self.stem = cache(super().stem)


def load_later(app, doctree) -> None:
    """Of two pictures for two themes a page loads the one that it shows."""
    for image in doctree.findall(lambda node: node.tagname == "image" and {"only-light", "only-dark"} & set(node["classes"])):
        image["loading"] = "lazy"


def read_pages(app) -> None:
    path = Path(app.config[PAGES])
    app.site_pages = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"pages": {}, "tree": []}


def setup(app) -> dict[str, bool]:
    app.add_config_value(PAGES, "", "", types=frozenset({str}))
    app.connect("builder-inited", read_pages)
    app.connect("doctree-read", load_later)
    app.connect("html-page-context", add_context, priority=400)  # before furo makes its side bar of the toctree
    app.connect("html-page-context", add_side_bar, priority=600)
    app.add_search_language(English)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
