"""Notebooks -> cbnb/ and README.md, and clean notebooks. Nothing is done if nothing changed since the last export.

    python tools/export.py

`.exported` holds a digest of all files that go in and come out; the next export compares it. `make test` and the commit hook do
not read it: tools/check.py exports everything into a copy, and compares.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import minify

from notebooks import LIB, NBS, ROOT, is_committed, write_files

STAMP = ROOT / ".exported"
ASSETS = {".js": "application/javascript", ".css": "text/css"}
READ = ("settings.ini", "constraints.txt", "README.md")  # besides the folders


def nbdev(command: str, folder: Path) -> None:
    """Run an nbdev command in the project at `folder`."""
    done = subprocess.run(
        [Path(sys.executable).parent / command], cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")


def export(root: Path) -> dict[Path, bytes]:
    """Export and clean the notebooks of the project at `root`; returns the modules as nbdev alone writes them, without the later steps."""
    from docstrings import write_docs  # here, because nbdev takes a second to import, and often nothing has changed
    from later import write_later

    lib = root / LIB.name
    for path in lib.rglob("*.py"):
        page = re.search(r"File to edit: (.*\.ipynb)", path.read_text(encoding="utf-8")[:500])
        if page and not (path.parent / page[1]).exists():
            path.unlink()
    nbdev("nbdev_export", root)
    plain = modules_in(lib)
    write_docs(lib, root / NBS.name)
    write_later(lib)
    write_assets(root / NBS.name, lib)
    nbdev("nbdev_clean", root)
    return plain


def write_assets(source: Path, target: Path) -> None:
    """Copy the scripts and style sheets in `source`, made short: each output of a notebook carries them."""
    for suffix, kind in ASSETS.items():
        texts = {path.relative_to(source): path.read_text(encoding="utf-8") for path in source.rglob(f"*{suffix}")}
        short = {relative: minify.string(kind, text).encode() for relative, text in texts.items() if is_committed(relative)}
        write_files(target, short, f"*{suffix}")


def paths_in(folder: Path) -> dict[Path, Path]:
    """Relative path -> path of everything a checkout holds in `folder`."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {relative: path for relative, path in found.items() if is_committed(relative)}


def files_in(folder: Path) -> dict[Path, bytes]:
    """Relative path -> content of everything a checkout holds in `folder`."""
    return {relative: path.read_bytes() for relative, path in paths_in(folder).items()}


def modules_in(folder: Path) -> dict[Path, bytes]:
    """The files of `folder` that nbdev writes."""
    return {relative: content for relative, content in files_in(folder).items() if relative.suffix == ".py"}


def digest(root: Path = ROOT) -> str:
    """One number for the names and the contents of all that an export reads and writes."""
    paths = [root / name for name in READ if (root / name).exists()]
    paths += [path for folder in (NBS.name, LIB.name, "tools") for path in paths_in(root / folder).values()]
    total = hashlib.sha256()
    for path in sorted(paths):  # one file at a time: all pages together are large
        total.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def changed(before: dict[Path, bytes], after: dict[Path, bytes]) -> list[Path]:
    """The files that are not the same in both."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def main() -> None:
    if STAMP.exists() and STAMP.read_text() == digest():
        return print("nothing changed since the last export")
    STAMP.unlink(missing_ok=True)
    before = files_in(LIB)
    export(ROOT)
    subprocess.run([sys.executable, Path(__file__).with_name("readme.py")], check=True)  # imports the package that was just written
    STAMP.write_text(digest())
    for name in changed(before, files_in(LIB)):
        print(f"  {LIB.name}/{name}")


if __name__ == "__main__":
    main()
