"""Copies the scripts and style sheets of the notebooks' folders into the package, made short: each output of a notebook carries them.

python tools/assets.py
"""

from pathlib import Path

import minify

from notebooks import LIB, NBS

KINDS = {".js": "application/javascript", ".css": "text/css"}


def write_assets(source: Path, target: Path) -> None:
    """Make the files of these kinds in `target` from those of `source`; remove others."""
    wanted = {
        path.relative_to(source): minify.string(KINDS[path.suffix], path.read_text(encoding="utf-8")).encode()
        for path in source.rglob("*")
        if path.suffix in KINDS and not any(part[0] == "." for part in path.relative_to(source).parts)
    }
    for path in target.rglob("*"):
        if path.suffix in KINDS and path.relative_to(target) not in wanted:
            path.unlink()
    for relative, content in wanted.items():
        path = target / relative
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


if __name__ == "__main__":
    write_assets(NBS, LIB)
