"""What holds for all tests: one thread, no figure windows, no function mode left, and Ctrl-C that acts. Tests in a browser have a second try."""

import os
import signal
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "agg")

import pytest
import torch
from _pytest.runner import runtestprotocol

torch.set_num_threads(1)

# a shell starts what runs in the background with SIGINT ignored
signal.signal(signal.SIGINT, signal.default_int_handler)

BROWSER = Path(__file__).parent / "browser"
TWICE = "failed at first"


# What takes minutes begins first: should it begin last, a core would have nothing to do meanwhile.
FIRST = "together", "distributed", "pretend", "browser", "package", "display", "lr", "files", "callbacks"
# It needs the documentation that the file before it builds: beside that file its worker would only wait.
WAITS = "test_docs_search.py"


@pytest.fixture(autouse=True)
def no_function_mode_is_left():
    """A function mode of torch that a test leaves would observe the calls of later tests, which would fail in its place."""
    before = torch.overrides._get_current_function_mode_stack()
    yield
    assert torch.overrides._get_current_function_mode_stack() == before


def in_jupyterlab(path: Path) -> bool:
    """Whether a file's tests are in the pages of one JupyterLab."""
    return path.parent.name == BROWSER.name and not path.name.startswith(("test_docs", "test_notebook_7"))


def pytest_collection_modifyitems(items):
    """What is in JupyterLab, the folders as in FIRST, WAITS at the end of its folder: in this order they begin, a file at a time in each worker."""
    folders = {name: i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: (not in_jupyterlab(item.path), folders.get(item.path.parent.name, len(FIRST)), item.path.name == WAITS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With --dist loadfile, what is in JupyterLab counts as one file: its server, forked kernels and page take 20 s of a core to start."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "JupyterLab" if in_jupyterlab(Path(file)) else file

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Run a failed test in a browser once more: on a busy machine a real page may miss a key. The summary lists such tests."""
    if BROWSER not in item.path.parents:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if failed := next((report for report in reports if report.failed), None):
        item.user_properties.append((TWICE, str(failed.longrepr).strip().splitlines()[-1]))
        item._initrequest()  # with fixtures of its own
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("passed", []):
        if first := dict(report.user_properties).get(TWICE):
            terminalreporter.write_line(f"passed in a second try: {report.nodeid}, which had {TWICE}: {first}")
