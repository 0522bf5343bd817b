"""What tools/docs.py knows of the pages and a theme can use: descriptions, notebooks, and the order of the side bar."""

import html
import json
from functools import cache
from pathlib import Path

from sphinx.search.en import SearchEnglish

PAGES = "site_pages"  # the configuration value: a JSON file


def add_context(app, name: str, template: str, context: dict, doctree: object) -> None:
    """The description for search engines and previews, the link below which the notebook can be downloaded, and the pages of the side bar."""
    page = app.site_pages["pages"].get(name, {})
    about = page.get("about") or context["site_description"]
    context["metatags"] = f"{context.get('metatags') or ''}<meta name='description' content='{html.escape(about)}'>\n"
    if name == "404":
        context["pageurl"] = None  # it has no address of its own
    context["notebook_link"] = f"notebooks/{page['notebook']}" if page.get("notebook") else ""
    context["notebook_file"] = page.get("notebook", "").rpartition("/")[2]
    context["tree"], context["way"] = app.site_pages["tree"], way_to(name, app.site_pages["tree"])
    context.pop("toctree", None)  # Sphinx copies all entries of all pages for each of them, and furo parses them: most of a build


def way_to(name: str, pages: list) -> list[str]:
    """The names of the pages above a page, from the top, and its own."""
    for target, _, below in pages:
        if target == name:
            return [name]
        if way := way_to(name, below):
            return [target, *way]
    return []


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
    app.add_search_language(English)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
