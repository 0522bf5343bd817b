"""Is everything that is made from the notebooks as they say? Exports into a copy, compares, changes nothing.

python tools/check.py
"""

import difflib
import shutil
import sys
import tempfile
from pathlib import Path

from export import export, files_in, modules_in
from notebooks import INDEX, LIB, NBS, ROOT, is_exported, notebook_paths, read, show
from readme import Readme

_SHOWN_LINES = 20
PLAIN = f"{LIB.name}/ is as `nbdev_export` alone leaves it, without parameters in the docstrings: `make export` writes these, too"


def copy_files(source: Path, target: Path) -> None:
    """Copy what a checkout holds in `source`, without exported modules: one whose notebook is gone must not survive in the copy."""
    for relative, content in files_in(source).items():
        if not is_exported(source / relative):
            path = target / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def fresh_copy(folder: Path) -> dict[Path, bytes]:
    """A project in `folder` with the same notebooks, exported and cleaned from scratch; returns the modules without their last steps."""
    shutil.copy(ROOT / "settings.ini", folder)
    copy_files(NBS, folder / NBS.name)
    copy_files(LIB, folder / LIB.name)
    return export(folder)


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
