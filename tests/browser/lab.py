"""A JupyterLab or a Notebook 7 of the tests' own, and Chromium to open its notebooks in.

    with Lab(folder) as lab:
        notebook = lab.write("fit.ipynb", ["from cbnb.all import *", "..."])
        with lab.open(notebook) as page:
            page.run_all()
            page.wait_for_text("train_loss")

The server listens on 127.0.0.1 only, wants a token, and keeps settings, kernels' connection files, workspaces and IPython profile in
`folder`: it reads nothing of the user's and leaves nothing behind elsewhere. Its kernels import cbnb from this checkout. What a
person does with an open notebook is in `notebook_page.py`.

Chromium is what CHROMIUM names (a path, or a command), or else what is found on PATH. It looks up no outside host.
"""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

import forked
from notebook_page import NotebookPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_FLAGS = (
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",  # containers have little of it
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
SERVER_OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--expose-app-in-browser",  # as window.jupyterapp, which NotebookPage speaks to
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--LanguageServerManager.autodetect=False",  # it would ask npm
)
SETTINGS = {"apputils-extension/notification": {"checkForUpdates": False, "fetchNews": "false", "doNotDisturbMode": True}}
# A user's or the test run's own settings (such as MPLBACKEND=agg) are not for the server.
NOT_INHERITED = ("JUPYTER", "JPY", "IPYTHON", "PYTHON", "MPL", "CBNB_")


def find_chromium() -> str | None:
    """The path of Chromium, if there is one."""
    commands = [os.environ["CHROMIUM"]] if os.environ.get("CHROMIUM") else COMMANDS
    return next(filter(None, map(shutil.which, commands)), None)


def what_is_missing() -> str | None:
    """Why no browser can be driven here, with the remedy; None if one can."""
    if not importlib.util.find_spec("playwright"):
        return "playwright is not installed (pip install playwright)"
    if not find_chromium():
        wanted = os.environ.get("CHROMIUM")
        found = f"no Chromium at CHROMIUM={wanted}" if wanted else "no Chromium found"
        return f"{found} (apt-get install chromium, or set CHROMIUM=/path)"
    return None


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A headless Chromium with an empty profile.

    As long as it lives, this thread counts as running an event loop: code that starts its own, such as nbclient, fails inside.
    """
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="chromium") as folder, sync_playwright() as playwright:
        env = os.environ | {f"XDG_{kind}_HOME": folder for kind in ("CONFIG", "CACHE")}  # crash reports and the like
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS, env=env)
        try:
            yield browser
        finally:
            browser.close()


def free_port() -> int:
    """A port below those that the system gives to others in the meantime, such as the kernels of other tests."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


class Lab:
    """A JupyterLab that runs within a `with` block; `browser` may be given later, but before the first `open`."""

    def __init__(
        self,
        folder: Path,
        versions: dict[str, str] | None = None,  # name of a kernel -> what comes first on its PYTHONPATH; the first is the default
        browser: "Browser | None" = None,
        app: str = "lab",  # or "notebook": Notebook 7, which has the parts of JupyterLab and a page of its own
    ):
        self.folder, self.browser, self.versions, self.app = Path(folder), browser, versions or {"installed": ""}, app
        self.notebooks, self.log = self.folder / "notebooks", self.folder / "server.log"
        self.kept: NotebookPage | None = None  # a tab without a notebook, for the next test
        self.token, self.port = secrets.token_hex(16), free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.notebooks.mkdir(parents=True)
        self._write_settings()
        self._until_the_end = ExitStack()
        self._write_kernels()
        module = {"lab": "jupyterlab", "notebook": "notebook"}[self.app]
        command = [sys.executable, "-m", module, *SERVER_OPTIONS, f"--port={self.port}", f"--ServerApp.root_dir={self.notebooks}"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def write(self, name: str, cells: Sequence[str], kernel: str | None = None) -> str:
        """A notebook with these code cells; returns its name, for `open`. What an earlier one waited for is not there any more."""
        for path in self.notebooks.glob("*.seen"):
            path.unlink()
        return self._save(name, new_notebook(cells=[new_code_cell(source) for source in cells]), kernel)

    def touch(self, name: str) -> None:
        """Write the empty file that a callback `Held(f"{name}.seen")` of a notebook waits for."""
        (self.notebooks / f"{name}.seen").touch()

    def copy(self, path: Path, kernel: str | None = None) -> str:
        """A copy of a notebook without its outputs; returns its name, for `open`."""
        nb = nbformat.read(path, as_version=4)
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nb.metadata.pop("widgets", None)
        images = path.parent / "images"  # what its text shows
        if images.is_dir():
            shutil.copytree(images, self.notebooks / "images", dirs_exist_ok=True)
        return self._save(path.name, nb, kernel)

    def untrusted(self, notebook: str) -> str:
        """A copy of a saved notebook as if it came from elsewhere: its signature is unknown. Returns its name, for `open`."""
        nb = nbformat.read(self.notebooks / notebook, as_version=4)
        for cell in nb.cells:
            cell.metadata.pop("trusted", None)
        nb.metadata["changed"] = "elsewhere"
        nbformat.write(nb, self.notebooks / f"untrusted_{notebook}")
        return f"untrusted_{notebook}"

    def to_html(self, notebook: str) -> str:
        """The address of the page that nbconvert makes of a saved notebook."""
        command = [sys.executable, "-m", "nbconvert", "--to", "html", notebook]
        said = subprocess.run(command, cwd=self.notebooks, check=True, capture_output=True, text=True).stderr
        assert "is not able to be represented" not in said
        return (self.notebooks / notebook).with_suffix(".html").as_uri()

    @contextmanager
    def open(self, notebook: str, size: tuple[int, int] = (1200, 900), scale: float = 1, fresh: bool = False) -> Iterator[NotebookPage]:
        """The notebook in a browser, its kernel ready; afterwards it is closed and the kernel ended.

        A JupyterLab that an earlier test has left as it was is used again unless `fresh` is set: a page that fetches nothing anew.

        An exception inside gets a note that names a folder with a screenshot, what the page's console said and the server's log.
        """
        folder = {"lab": "lab/tree", "notebook": "notebooks"}[self.app]
        where = f"{self.url}/{folder}/{notebook}", self.notebooks / notebook
        usual = self.app == "lab" and scale == 1 and not fresh
        if not usual:
            self.close_page()
        page, self.kept = self.kept, None
        begin = partial(page.show, *where, size) if page else None
        page = page or NotebookPage(self.browser, where[0], self.token, where[1], size, scale)
        try:
            (begin or page.open)()
            yield page
            if usual and page.leave():
                self.kept = page
        except BaseException as error:
            error.add_note(f"What the page showed: {self._keep_traces(page)}")
            raise
        finally:
            if self.kept is not page:
                page.close()
            self.end_kernels()

    def close_page(self) -> None:
        """Close the tab that is kept for the next notebook."""
        if self.kept:
            self.kept.close()
        self.kept = None

    def request(self, path: str, method: str = "GET") -> object:
        """Ask the server's own interface."""
        request = urllib.request.Request(f"{self.url}/api/{path}", method=method, headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=20) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def end_kernels(self) -> None:
        """Shut down the kernels of all notebooks."""
        for session in self.request("sessions"):
            self.request(f"sessions/{session['id']}", "DELETE")

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        private = {f"JUPYTER_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
        private |= {f"JUPYTERLAB_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("SETTINGS", "WORKSPACES")}
        private |= {"IPYTHONDIR": str(self.folder / "ipython"), "JUPYTER_PLATFORM_DIRS": "1", "JUPYTER_TOKEN": self.token}
        return inherited | private

    def _write_settings(self) -> None:
        for name, settings in SETTINGS.items():
            path = self.folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(settings))

    def _write_kernels(self) -> None:
        """A kernelspec per version: this checkout, the words of the tests' helpers, and one thread, as in the other tests.

        Kernels of the default version are forked, where that works: each starts three seconds earlier.
        """
        for name, first in self.versions.items():
            env = {"PYTHONPATH": os.pathsep.join(filter(None, [first, str(ROOT), str(TESTS)])), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "ipykernel_launcher"]
            if not first and sys.platform == "linux":
                server = forked.server(self.folder / "forks", forked.KERNEL, MPLBACKEND=forked.BACKEND, **env)
                command = [*self._until_the_end.enter_context(server), "kernel"]
            spec = {
                "argv": [*command, "-f", "{connection_file}"],
                "display_name": f"ipykernel {name}",
                "language": "python",
                "interrupt_mode": "signal",
                "metadata": {"debugger": False},
                "env": env,
            }
            folder = self.folder / "data" / "kernels" / name
            folder.mkdir(parents=True)
            (folder / "kernel.json").write_text(json.dumps(spec))

    def _save(self, name: str, nb: nbformat.NotebookNode, kernel: str | None) -> str:
        kernel = kernel or next(iter(self.versions))
        nb.metadata["kernelspec"] = {"name": kernel, "display_name": f"ipykernel {kernel}", "language": "python"}
        nbformat.write(nb, self.notebooks / name)
        return name

    def _wait_until_it_answers(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with suppress(OSError):
                self.request("status")
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"JupyterLab does not answer; it said:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def _keep_traces(self, page: NotebookPage) -> Path:
        folder = self.folder / "failures" / Path(page.path).stem
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "console.txt").write_text("\n".join(page.console) + "\n")
        shutil.copy(self.log, folder)
        with suppress(Exception):  # the page may be gone, and that is not what failed first
            page.screenshot(folder / "page.png")
        return folder

    def _stop(self) -> None:
        """SIGTERM makes the server end its kernels first."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._until_the_end.close()
