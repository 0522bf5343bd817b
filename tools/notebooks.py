"""What every tool in this folder needs: the settings, the notebooks in reading order, their directives, and a kernel to run them in."""

import copy
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path

# jupyter_core warns about its old folder layout unless told that the platform's own one is wanted.
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
_config = ConfigParser()
_config.read(ROOT / "settings.ini", encoding="utf-8")
SETTINGS = _config["DEFAULT"]
NBS = ROOT / SETTINGS["nbs_path"]
LIB = ROOT / SETTINGS["lib_path"]
INDEX = NBS / SETTINGS["readme_nb"]
SKIP_FLAGS = frozenset(SETTINGS["tst_flags"].split())

_DIRECTIVE = re.compile(r"^\s*#\s*\|\s*(.*?)\s*$")
_SKIP_TAG = "skip-execution"  # nbclient leaves cells with this tag alone, outputs included


def reading_order(path: Path) -> tuple:
    """Sort key: the index, then the numbered notebooks, then folders such as tutorials."""
    relative = path.relative_to(NBS)
    return path != INDEX, len(relative.parts), relative.parts


def notebook_paths() -> list[Path]:
    """All notebooks of the project in reading order."""
    found = (path for path in NBS.rglob("*.ipynb") if not any(part[0] in "._" for part in path.relative_to(NBS).parts))
    return sorted(found, key=reading_order)


def read(path: Path) -> NotebookNode:
    """The notebook at `path`, in the current format."""
    return nbformat.read(path, as_version=4)


def show(path: Path) -> str:
    """`path` as a person would type it from the project's root."""
    path = Path(path).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def directives(cell: NotebookNode) -> list[str]:
    """The `#| ...` lines a code cell starts with, without their marker."""
    found = []
    if cell.cell_type == "code":
        for line in filter(str.strip, cell.source.splitlines()):
            match = _DIRECTIVE.match(line)
            if not match:
                break
            found.append(match[1].rstrip(":") if match[1].endswith(":") else match[1])
    return found


def without_directives(source: str) -> str:
    """`source` without its `#| ...` lines."""
    return "\n".join(line for line in source.splitlines() if not _DIRECTIVE.match(line)).strip("\n")


def default_module(nb: NotebookNode) -> str | None:
    """The module that `nb` exports to, dotted: `cbnb.learner`."""
    for cell in nb.cells:
        for directive in directives(cell):
            if directive.startswith("default_exp "):
                return f"{LIB.name}.{directive.split()[1]}"
    return None


def is_hidden(cell: NotebookNode) -> bool:
    """True for a code cell that no reader of a page should see."""
    found = directives(cell)
    return "hide" in found or any(directive.startswith("default_exp") for directive in found)


def is_skipped(cell: NotebookNode, flags: frozenset[str] = SKIP_FLAGS) -> bool:
    """True for a cell that an automatic run leaves out: `eval: false`, a flag such as `slow`, or the export itself."""
    found = set(directives(cell))
    return bool(found & flags) or "eval: false" in found or "nbdev_export(" in cell.source


class CellFailed(Exception):
    """A cell raised, died or took too long; the message shows which one, its code and the traceback."""

    def __init__(self, path: Path, number: int, source: str, traceback: str):
        self.path, self.number = path, number
        lines = "\n".join(f"  {i:>3} | {line}" for i, line in enumerate(source.splitlines(), 1))
        super().__init__(f"{show(path)}, cell {number}:\n{lines}\n\n{traceback.rstrip()}")


@contextmanager
def clean_kernels(workers: int = 1) -> Iterator[None]:
    """Kernels started inside see this checkout's package, no personal IPython profile, and their share of the cores."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        changes = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "IPYTHONDIR": folder,
            "JUPYTER_RUNTIME_DIR": folder,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        }
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def execute(path: Path, flags: frozenset[str] = SKIP_FLAGS, timeout: int = 600) -> NotebookNode:
    """Run the notebook at `path` top to bottom in a fresh kernel and return it with its new outputs.

    Skipped cells keep the outputs they have. Call it inside `clean_kernels`. Raises `CellFailed`.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    nb = read(path)
    run = copy.deepcopy(nb)
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs = cell.outputs if is_skipped(cell, flags) else []
            if is_skipped(cell, flags):
                cell.metadata["tags"] = [*cell.metadata.get("tags", []), _SKIP_TAG]
    config = Config()
    if os.name == "posix":  # sockets in a folder of our own: no port can be taken by a kernel that starts at the same moment
        config.KernelManager.transport = "ipc"
        config.KernelManager.ip = os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], uuid.uuid4().hex[:8])
    current = None

    def remember(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index

    def failed(reason: str) -> CellFailed:
        if current is None:
            return CellFailed(path, 0, "", f"no kernel: {reason}")
        return CellFailed(path, current + 1, run.cells[current].source, reason)

    client = NotebookClient(
        run,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # otherwise the same text comes in more or fewer pieces each time
        on_cell_start=remember,
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
        config=config,
    )
    try:
        client.execute()
    except CellTimeoutError:
        raise failed(f"still running after {timeout} s") from None
    except DeadKernelError:
        raise failed("the kernel died") from None
    except CellExecutionError as error:
        raise failed(_traceback(run.cells[current]) or str(error)) from None
    except RuntimeError as error:
        raise failed(str(error)) from None
    for cell, ran in zip(nb.cells, run.cells):
        if cell.cell_type == "code":
            cell.outputs = ran.outputs
            for output in cell.outputs:  # a wish for a dark box around transparent figures; ours suit any background
                output.get("metadata", {}).pop("needs_background", None)
    if "widgets" in run.metadata:
        nb.metadata["widgets"] = run.metadata["widgets"]
    return nb


def _traceback(cell: NotebookNode) -> str:
    errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", line) for error in errors for line in error.traceback)
