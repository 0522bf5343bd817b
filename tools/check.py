"""Is everything that is made from the notebooks as they say? Exports into a copy, compares, changes nothing.

python tools/check.py
"""

import difflib
import shutil
import sys
import tempfile
from pathlib import Path

from export import changed, export, files_in, modules_in
from notebooks import INDEX, LIB, NBS, ROOT, exported_modules, is_committed, is_exported, notebook_paths, read, show
from readme import Readme

_SHOWN_LINES = 20
PLAIN = f"{LIB.name}/ is as `nbdev_export` alone leaves it, without parameters in the docstrings: `make export` writes these, too"


def _left_out(folder: str, names: list[str]) -> list[str]:
    """What a checkout does not hold, and exported modules: one whose notebook is gone must not survive in the copy."""
    return [name for name in names if not is_committed(Path(name)) or is_exported(Path(folder, name))]


def fresh_copy(folder: Path) -> dict[Path, bytes]:
    """A project in `folder` with the same notebooks, exported and cleaned from scratch; returns the modules without their last steps."""
    shutil.copy(ROOT / "settings.ini", folder)
    for source in (NBS, LIB):
        shutil.copytree(source, folder / source.name, ignore=_left_out)
    return export(folder)


def compare(name: Path, here: bytes | None, wanted: bytes | None) -> str:
    """One file's difference in words: what is committed against what the notebooks give."""
    if wanted is None:
        return f"{name}: no notebook makes this file any more"
    if here is None:
        return f"{name}: missing"
    texts = [content.decode(errors="replace").splitlines() for content in (here, wanted)]
    lines = list(difflib.unified_diff(*texts, "is", "should be", n=1, lineterm=""))
    more = [f"... {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
    return "\n    ".join([f"{name}: differs", *(line[:160] for line in lines[:_SHOWN_LINES]), *more])


def differences(here: Path, fresh: Path) -> list[str]:
    """Every file in `here` that is not as in `fresh`, in words."""
    is_now, wanted = files_in(here), files_in(fresh)
    return [compare(here.relative_to(ROOT) / name, is_now.get(name), wanted.get(name)) for name in changed(is_now, wanted)]


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
        failed = report("export", f"{len(exported_modules())} modules", export_differences(LIB, copy / LIB.name, plain))
        failed |= report("clean", f"{len(notebook_paths())} notebooks", differences(NBS, copy / NBS.name))
    stale = Readme(read(INDEX)).differences() if INDEX.exists() else [f"{show(INDEX)}: missing"]
    failed |= report("readme", show(INDEX), stale)
    if failed:
        print(
            f"Run `make export`, look at what changed, and commit it. An edit of {LIB.name}/ itself is lost then: make it in the notebook."
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
