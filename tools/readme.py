"""README.md from the first notebook, with the outputs stored in it: python tools/readme.py [--check]

Hidden cells are left out, figures become files in nbs/images/, links to notebooks lead into nbs/. The figure of the loop is written
there, too.
"""

import argparse
import base64
import re
import sys
from pathlib import Path

from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cbnb.display.loop import loop_svg
from notebooks import INDEX, NBS, ROOT, SKIP_FLAGS, directives, is_hidden, read, show, without_directives

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
        if cell.cell_type != "code" or is_hidden(cell) or marks & (SKIP_FLAGS | {"export", "exporti"}):
            return []
        code = "" if "echo: false" in marks else fenced(without_directives(cell.source), "python")
        outputs = [] if "output: false" in marks else [self.output(output) for output in cell.outputs]
        return [code, *outputs]

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

    def differences(self) -> list[str]:
        """What on disk is not as it should be."""
        wanted = {README: self.text.encode(), LOOP: loop_file(), **self.images}
        wrong = [show(path) for path, content in wanted.items() if not path.exists() or path.read_bytes() != content]
        return wrong + [show(path) for path in old_images() if path not in self.images]

    def write(self) -> None:
        for path in old_images():
            path.unlink()
        for path, content in self.images.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        LOOP.write_bytes(loop_file())
        README.write_text(self.text, encoding="utf-8")


def loop_file() -> bytes:
    return f"{loop_svg()}\n".encode()


def old_images() -> list[Path]:
    return sorted(IMAGES.glob(IMAGE_NAME.format("*")))


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if README.md is not up to date")
    args = parser.parse_args()

    if not INDEX.exists():
        sys.exit(f"{show(INDEX)} is missing: README.md is made from it")
    readme = Readme(read(INDEX))
    if not args.check:
        readme.write()
        return 0
    wrong = readme.differences()
    if wrong:
        print(f"{', '.join(wrong)} not as {show(INDEX)} says: run `make export` and commit", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
