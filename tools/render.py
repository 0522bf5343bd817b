"""Run a notebook and leave it as one HTML page that needs nothing else: python tools/render.py NOTEBOOK FOLDER

Figures are inside the page, widgets are shown as they were at the end, and there is no script and nothing to fetch.
"""

import argparse
import base64
import mimetypes
import os
import re
import sys
import time
from pathlib import Path

from bs4 import BeautifulSoup
from nbformat import NotebookNode

from notebooks import CellFailed, clean_kernels, execute, is_hidden, show, without_directives, without_widgets
from outputs import printed

STYLE = """
body.jp-Notebook main { max-width: 60rem; margin: 0 auto; }
.jp-RenderedHTMLCommon table { margin-left: 0; }
.jp-RenderedHTMLCommon h1 + blockquote { margin: 0 0 1.5em; padding: 0; border: 0; font-size: 115%; color: #666; }
.jp-InputArea-editor { overflow-x: auto; }
.jp-OutputArea-output img { max-width: 100%; }
"""
# What makes a browser fetch something by itself. Links that a reader may click are not among them.
_FETCHED = ("img", "iframe", "source", "video", "audio", "embed", "link")
_LOCAL = re.compile(r"^(?!\w+:|/)")  # an address beside the notebook
_OUTSIDE_CSS = re.compile(r"@import[^;]*;|url\(\s*['\"]?(?:https?:)?//[^)]*\)")


def reader_view(nb: NotebookNode) -> NotebookNode:
    """`nb` without hidden cells and `#|` lines, without widgets (changed in place)."""
    nb.cells = [cell for cell in nb.cells if not is_hidden(cell)]
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.source = without_directives(cell.source)
        else:
            cell.source = cell.source.replace("](files/", "](./files/")  # nbconvert takes a leading `files/` away
    return without_widgets(nb)


def _inside(picture: Path) -> str:
    """A picture as an address that holds its bytes."""
    kind = mimetypes.guess_type(picture.name)[0]
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


def to_html(nb: NotebookNode, title: str, folder: Path, to_folder: str) -> str:
    """`nb`, which lies in `folder`, as a page without scripts, with its pictures; links to other files begin with `to_folder`."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="lab", embed_images=True, exclude_input_prompt=True, exclude_output_prompt=True)
    page = BeautifulSoup(exporter.from_notebook_node(nb)[0], "html.parser")
    page.title.string = title
    for script in page.find_all("script"):
        script.decompose()
    for tag in page.find_all(_FETCHED):
        if re.match(r"(https?:)?//", tag.get("src") or tag.get("href") or ""):
            tag.decompose()
    for sheet in page.find_all("style"):
        sheet.string = _OUTSIDE_CSS.sub("", sheet.get_text())
    for tag in page.find_all(src=_LOCAL) + page.find_all(srcset=_LOCAL):
        name = "src" if tag.has_attr("src") else "srcset"
        tag[name] = _inside(folder / tag[name])
    for link in page.find_all("a", href=re.compile(r"^(?!\w+:|/|#)")):
        link["href"] = f"{to_folder}/{link['href']}"
    page.head.append(BeautifulSoup(f"<style>{STYLE}</style>", "html.parser"))
    return str(page)


def last_line_with(word: str, nb: NotebookNode) -> str | None:
    """The last line of text output with `word` and a number, so not the heading of a table."""
    lines = [line.strip() for cell in nb.cells for line in printed(cell) if word in line.lower() and re.search(r"\d", line)]
    return lines[-1] if lines else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()

    start = time.monotonic()
    try:
        with clean_kernels():
            nb = execute(args.notebook.resolve())
    except CellFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    result = last_line_with("accuracy", nb)
    title = next((line[2:] for cell in nb.cells for line in cell.source.splitlines() if line.startswith("# ")), args.notebook.stem)
    args.folder.mkdir(parents=True, exist_ok=True)
    page = args.folder.resolve() / f"{args.notebook.stem}.html"
    folder = args.notebook.resolve().parent
    page.write_text(to_html(reader_view(nb), title, folder, os.path.relpath(folder, page.parent)), encoding="utf-8")
    if result:
        print(result)
    print(f"{show(page)}: the notebook with its figures, {page.stat().st_size // 1024} KiB, made in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
