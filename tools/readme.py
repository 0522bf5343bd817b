"""README.md from the first notebook, with the outputs stored in it: python tools/readme.py

Hidden cells are left out, figures become files in nbs/images/, links to notebooks lead into nbs/. The figure of the loop is written
there, too.
"""

import base64
import re
import sys
from pathlib import Path

from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cbnb.display.loop import loop_svg
from notebooks import INDEX, NBS, ROOT, directives, is_hidden, read, show, without_directives, write_if_changed

README = ROOT / "README.md"
IMAGES = NBS / "images"
IMAGE_NAME = "readme-{}.png"
LOOP = IMAGES / "loop.svg"
HEADER = f"<!-- Made from {INDEX.relative_to(ROOT)} by `make export`: edit that one. -->"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Readme:
    """The text and the images that belong to it."""

    def __init__(self, nb: NotebookNode):
        self.images: dict[Path, bytes] = {}
        parts = [part for cell in nb.cells for part in self.cell(cell) if part.strip()]
        self.text = "\n\n".join([HEADER, *parts]) + "\n"

    def cell(self, cell: NotebookNode) -> list[str]:
        """The Markdown blocks of one cell."""
        if cell.cell_type == "markdown":
            return [into_nbs(cell.source.strip())]
        marks = set(directives(cell))
        if cell.cell_type != "code" or is_hidden(cell) or "export" in marks:
            return []
        code = "" if "echo: false" in marks else fenced(without_directives(cell.source), "python")
        return [code, *map(self.output, cell.outputs)]

    def output(self, output: NotebookNode) -> str:
        """The best form of one output that a README can show: a figure, a table or text."""
        data = output.get("data", {})
        if output.output_type == "stream":
            return fenced(output.text) if output.name == "stdout" else ""
        if "image/png" in data:
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            return self.image(base64.b64decode(data["image/png"]), alt)
        if "text/markdown" in data:
            return data["text/markdown"]
        if is_plain_table(data.get("text/html", "")):
            return re.sub(r"\n\s*", "\n", without_style(data["text/html"])).strip()
        return fenced(data.get("text/plain", ""))

    def image(self, content: bytes, alt: str) -> str:
        path = IMAGES / IMAGE_NAME.format(len(self.images) + 1)
        self.images[path] = content
        return f"![{re.sub(r'[][]', '', alt)}]({path.relative_to(ROOT)})"

    def files(self) -> dict[Path, bytes]:
        return {README: self.text.encode(), LOOP: f"{loop_svg()}\n".encode(), **self.images}

    def superfluous(self) -> list[Path]:
        """Images of an earlier README."""
        return sorted(path for path in IMAGES.glob(IMAGE_NAME.format("*")) if path not in self.images)

    def differences(self) -> list[str]:
        """What on disk is not as it should be."""
        wrong = [path for path, content in self.files().items() if not path.exists() or path.read_bytes() != content]
        return [show(path) for path in (*wrong, *self.superfluous())]

    def write(self) -> None:
        for path in self.superfluous():
            path.unlink()
        for path, content in self.files().items():
            write_if_changed(path, content)


def fenced(text: str, language: str = "") -> str:
    text = _ANSI.sub("", text).strip("\n")
    return f"```{language}\n{text}\n```" if text.strip() else ""


def into_nbs(markdown: str) -> str:
    """Relative links and images, which are seen from nbs/ in the notebook, as seen from the root."""
    seen = re.sub(r"(\]\()(?!\w+:|[/#]|\.\./)([^)\s]+)", rf"\1{NBS.name}/\2", markdown)
    return seen.replace('srcset="', f'srcset="{NBS.name}/').replace("](../", "](")


def is_plain_table(page: str) -> bool:
    return "<table" in page and not re.search(r"<(svg|img|script|input|button|progress)\b", page)


def without_style(page: str) -> str:
    """`page` without what a README is not allowed to carry."""
    page = re.sub(r"<style.*?</style>", "", page, flags=re.S)
    return re.sub(r"\s(?:style|class|border)=(\"[^\"]*\"|'[^']*')", "", page)


if __name__ == "__main__":
    Readme(read(INDEX)).write()
