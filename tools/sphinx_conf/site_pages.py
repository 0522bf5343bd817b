"""What tools/docs.py knows of each page and a theme can use: its one-line description, its notebook."""

import html
import json
from pathlib import Path

PAGES = "site_pages"  # the configuration value: a JSON file


def add_context(app, name: str, template: str, context: dict, doctree: object) -> None:
    """The description for search engines and previews, and the link below which the notebook can be downloaded."""
    page = app.site_pages.get(name, {})
    about = page.get("about") or context["site_description"]
    context["metatags"] = f"{context.get('metatags') or ''}<meta name='description' content='{html.escape(about)}'>\n"
    context["notebook_link"] = f"notebooks/{page['notebook']}" if page.get("notebook") else ""
    context["notebook_file"] = page.get("notebook", "").rpartition("/")[2]


def read_pages(app) -> None:
    path = Path(app.config[PAGES])
    app.site_pages = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def setup(app) -> dict[str, bool]:
    app.add_config_value(PAGES, "", "", types=frozenset({str}))
    app.connect("builder-inited", read_pages)
    app.connect("html-page-context", add_context)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
