"""One JupyterLab and one Chromium for all browser tests but those of Notebook 7, and a word when there is none.

Without Chromium or Playwright nothing in this folder is collected, and the summary says so in one line. With CBNB_REQUIRE_BROWSER=1,
as `.ci/run` sets it, all are collected, and each that is skipped counts as failed.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kernels import kernel_params, kernel_versions
from lab import Lab, chromium, what_is_missing

MISSING, REQUIRED = what_is_missing(), os.environ.get("CBNB_REQUIRE_BROWSER", "0") not in ("", "0")
collect_ignore_glob = ["test_*.py"] if MISSING and not REQUIRED else []


def pytest_terminal_summary(terminalreporter) -> None:
    if MISSING and not REQUIRED:
        terminalreporter.write_line(f"browser tests skipped: {MISSING}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skipped test is a failed one where browsers are required."""
    report = yield
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, reason = "failed", report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"{reason.removeprefix('Skipped: ')}; with CBNB_REQUIRE_BROWSER nothing may be skipped"
    return report


@pytest.fixture(scope="session")
def server(request, tmp_path_factory) -> Iterator[Lab]:
    """A JupyterLab with a kernel for every version of ipykernel; the installed one is the default. With the parameter "notebook", Notebook 7."""
    if MISSING:
        pytest.skip(MISSING)
    app = getattr(request, "param", "lab")
    with Lab(tmp_path_factory.mktemp(app), kernel_versions(), app=app) as running:
        yield running


_opened = ExitStack()  # the browser


@pytest.fixture(scope="module")
def lab(server) -> Lab:
    """The same with a browser, which stays for the next file with such tests."""
    if not server.browser:
        server.browser = _opened.enter_context(chromium())
        _opened.callback(setattr, server, "browser", None)
        _opened.callback(server.close_page)
    return server


def app_of(item: pytest.Item | None) -> str | None:
    """In which application a test opens its notebooks."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("server", "lab") if "lab" in getattr(item, "fixturenames", ()) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    """Close the browser before other tests: while it lives, code that runs an event loop of its own cannot."""
    if app_of(nextitem) != app_of(item):
        _opened.close()


@pytest.fixture(params=kernel_params())
def kernel(request) -> str:
    """The name of a kernel: the test runs with each version of ipykernel."""
    return request.param
