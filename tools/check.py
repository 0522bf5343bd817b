"""Is everything that is made from the notebooks as they say? Exports into a copy, compares, changes nothing.

python tools/check.py
"""

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from assets import write_assets
from docstrings import write_docs
from notebooks import INDEX, LIB, NBS, ROOT, is_exported, notebook_paths, read, show
from readme import Readme
from stubs import write_stubs

_SHOWN_LINES = 20
PLAIN = f"{LIB.name}/ is as `nbdev_export` alone leaves it, without parameters in the docstrings: `make export` writes these, too"


def is_committed(relative: Path) -> bool:
    """False for caches and for the hidden files that tools leave behind."""
    return "__pycache__" not in relative.parts and not any(part.startswith(".") for part in relative.parts)


def files_in(folder: Path) -> dict[Path, bytes]:
    """Relative path -> content of everything a checkout holds in `folder`."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {relative: path.read_bytes() for relative, path in found.items() if is_committed(relative)}


def nbdev(command: str, folder: Path) -> None:
    """Run an nbdev command in the project at `folder`."""
    done = subprocess.run(
        [Path(sys.executable).parent / command], cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")


def copy_files(source: Path, target: Path) -> None:
    """Copy what a checkout holds in `source`, without exported modules: one whose notebook is gone must not survive in the copy."""
    for relative, content in files_in(source).items():
        if not is_exported(source / relative):
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def modules_in(folder: Path) -> dict[Path, bytes]:
    """The files of `folder` that nbdev writes."""
    return {relative: content for relative, content in files_in(folder).items() if relative.suffix == ".py"}


def fresh_copy(folder: Path) -> dict[Path, bytes]:
    """A project in `folder` with the same notebooks, exported and cleaned from scratch; returns the modules without their last steps."""
    shutil.copy(ROOT / "settings.ini", folder)
    copy_files(NBS, folder / NBS.name)
    copy_files(LIB, folder / LIB.name)
    nbdev("nbdev_export", folder)
    plain = modules_in(folder / LIB.name)
    write_docs(folder / LIB.name)
    write_assets(folder / NBS.name, folder / LIB.name)
    write_stubs(folder / LIB.name)
    nbdev("nbdev_clean", folder)
    return plain


def compare(name: Path, here: bytes | None, wanted: bytes | None) -> str:
    """One file's difference in words: what is committed against what the notebooks give."""
    if wanted is None:
        return f"{name}: no notebook makes this file any more"
    if here is None:
        return f"{name}: missing"
    lines = list(
        difflib.unified_diff(
            here.decode(errors="replace").splitlines(), wanted.decode(errors="replace").splitlines(), "is", "should be", n=1, lineterm=""
        )
    )
    more = [f"... {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
    return "\n    ".join([f"{name}: differs", *(line[:160] for line in lines[:_SHOWN_LINES]), *more])


def differences(here: Path, fresh: Path) -> list[str]:
    """Every file in `here` that is not as in `fresh`, in words."""
    is_now, wanted = files_in(here), files_in(fresh)
    names = sorted(name for name in is_now.keys() | wanted.keys() if is_now.get(name) != wanted.get(name))
    return [compare(here.relative_to(ROOT) / name, is_now.get(name), wanted.get(name)) for name in names]


def export_differences(here: Path, fresh: Path, plain: dict[Path, bytes]) -> list[str]:
    """The same, in one line if `here` has what nbdev alone writes, `plain`."""
    found = differences(here, fresh)
    return [PLAIN] if found and modules_in(here) == plain else found


def report(what: str, count: str, found: list[str]) -> bool:
    print(f"  {what:8} {'ok' if not found else 'DIFFERS'}, {count}")
    for difference in found:
        print(f"    {difference}")
    return bool(found)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        plain = fresh_copy(copy)
        modules = len([path for path in LIB.rglob("*.py") if is_exported(path) and path.name[0] != "_"])
        failed = report("export", f"{modules} modules", export_differences(LIB, copy / LIB.name, plain))
        failed |= report("clean", f"{len(notebook_paths())} notebooks", differences(NBS, copy / NBS.name))
    stale = Readme(read(INDEX)).differences() if INDEX.exists() else [f"{show(INDEX)}: missing"]
    failed |= report("readme", show(INDEX), stale)
    if failed:
        print("Run `make export`, look at what changed, and commit it.")
    return failed


if __name__ == "__main__":
    sys.exit(main())
