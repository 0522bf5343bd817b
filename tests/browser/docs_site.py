"""The built documentation, behind a server of this machine. It is built from the stored outputs; unchanged pages come from the last build."""

import fcntl
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lab import ROOT

OUT, WORK = ROOT / "_docs", ROOT / "_proc"


def build() -> Path:
    """Build the site. Of the processes of a test run one builds, and the others find everything done."""
    WORK.mkdir(exist_ok=True)
    run, done = os.environ.get("PYTEST_XDIST_TESTRUNUID"), WORK / "docs.done"
    with open(WORK / "docs.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if run and done.exists() and done.read_text() == run:
            return OUT
        built = subprocess.run([sys.executable, ROOT / "tools" / "docs.py"], capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
        assert "WARNING" not in built.stderr, built.stderr
        done.write_text(run or "")
    return OUT


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address below which `folder` is to be found."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
