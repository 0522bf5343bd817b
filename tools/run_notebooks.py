"""Run notebooks top to bottom in real kernels. An error in one fails the run, and so does text that a reader sees and a cell no longer prints.

python tools/run_notebooks.py                    all notebooks, two at a time
python tools/run_notebooks.py nbs/04_learner.ipynb
python tools/run_notebooks.py --save             keep the new outputs, cleaned, in the notebooks
"""

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import nbformat

from forked import forked_kernels
from notebooks import ROOT, CellFailed, clean_kernels, execute, notebook_paths, show, without_widgets
from outputs import differences, keep_times

_SHOWN = 10


def save(path: Path, source: str, nb: nbformat.NotebookNode) -> bool:
    """Store the outputs of `nb` at `path` as a reader without a kernel should see them; True if the file changed.

    `source` is the file's text when the run started: a notebook that somebody edited meanwhile is left as it is.
    """
    from nbdev.clean import nbdev_clean

    if path.read_text(encoding="utf-8") != source:
        print(f"  {show(path)} was edited during the run: its outputs are not saved")
        return False
    keep_times(nbformat.reads(source, as_version=4), nb)
    nbformat.write(without_widgets(nb), path)
    nbdev_clean(str(path))
    return path.read_text(encoding="utf-8") != source


class Stale(Exception):
    """A notebook shows text that its cells no longer print."""

    def __init__(self, path: Path, found: list[str]):
        self.note = f"STALE: {len(found)} lines are not as stored"
        more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        super().__init__("\n  ".join([f"{show(path)}: look at what changed, and store it with --save", *found[:_SHOWN], *more]))


def run(path: Path, keep: bool, kernel: str) -> str:
    """Run a notebook, and store its outputs or compare them with those that are stored; returns what to say of it."""
    source, start = path.read_text(encoding="utf-8"), time.monotonic()
    ran = execute(path, kernel)
    seconds = f"{time.monotonic() - start:5.1f} s"
    if keep:
        return f"{seconds}  outputs changed" if save(path, source, ran) else seconds
    if found := differences(nbformat.reads(source, as_version=4), ran):
        raise Stale(path, found)
    return seconds


def run_all(paths: list[Path], workers: int, keep: bool) -> list[Exception]:
    """Run `paths`, the last ones first, print a line for each as it ends, and return the failures.

    The guides at the end take longest: should they begin last, a core would have nothing to do meanwhile.
    """
    failures, width = [], max(len(show(path)) for path in paths)
    folder = tempfile.TemporaryDirectory(prefix="nb")
    with clean_kernels(workers), folder as name, forked_kernels(Path(name)) as kernel, ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(run, path, keep, kernel): path for path in reversed(paths)}
        for job in as_completed(jobs):
            try:
                note = job.result()
            except (CellFailed, Stale) as failure:
                failures.append(failure)
                note = failure.note
            print(f"  {show(jobs[job]):{width}}  {note}", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks (all of them if none is named)")
    parser.add_argument("--workers", type=int, default=2, help="notebooks at a time")
    parser.add_argument("--save", action="store_true", help="store the outputs in the notebooks")
    args = parser.parse_args()

    if missing := [str(path) for path in args.paths if not path.is_file()]:
        parser.error(f"there is no {', '.join(missing)}")
    paths = [path.resolve() for path in args.paths] or notebook_paths()
    os.chdir(ROOT)  # nbdev looks for its settings from here
    start = time.monotonic()
    failures = run_all(paths, args.workers, args.save)
    for failure in failures:
        print(f"\n{'-' * 80}\n{failure}", file=sys.stderr)
    passed = f"{len(paths) - len(failures)} of {len(paths)} notebooks ran, {time.monotonic() - start:.0f} s"
    print(f"\n{passed}" if failures else passed)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
