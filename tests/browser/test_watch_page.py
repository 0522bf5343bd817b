"""A person who watches a fit from another page: what it shows, Pause and Stop from there, and a stranger's page that can do neither."""

import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab import Lab
from notebook_page import axe_violations, wait_until

PROGRAM = """
import sys, time
import cbnb.all as cbnb
from cbnb.toy import wave_learner
learn = wave_learner(cbs=cbnb.Callback(after_batch=lambda cb: time.sleep(0.005)))
learn.watch(steer='steer' in sys.argv)
print('begins', flush=True)
learn.fit(1000)
print('ended', len(learn.recorder.last().epochs) < 1000, flush=True)
"""


@contextmanager
def training(*args: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """A program that trains, as one that was started with `nohup`, and the address that it prints."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *args], stdout=subprocess.PIPE, text=True) as program:
        try:
            lines = iter(program.stdout.readline, "begins\n")
            [address] = [word for line in lines for word in line.split() if word.startswith("http://127.0.0.1:")]
            yield program, address
        finally:
            program.kill()


@contextmanager
def strangers_page(address: str) -> Iterator[str]:
    """The address of a page of another origin that tries to stop the fit."""
    text = f"<title>waits</title><script>fetch('{address}stop', {{method: 'POST', mode: 'no-cors'}}).finally(() => document.title = 'asked')</script>"

    class Stranger(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_): ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def browser(lab: Lab):
    """Not one of its own: a thread has one Playwright."""
    return lab.browser


def n_rows(page) -> int:
    return page.locator("tbody tr").count()


def test_a_fit_is_watched_paused_and_stopped(browser):
    with training("steer") as (program, address):
        page = browser.new_page(viewport=dict(width=1200, height=900))
        page.goto(address)
        page.locator("svg").first.wait_for()
        wait_until(lambda: n_rows(page) >= 2)
        assert page.evaluate("document.querySelector('progress').value") > 0
        # a small chart stays open while the fit goes on
        rate = page.get_by_role("group", name="other values").get_by_role("button", name="learning rate")
        rate.click()
        wait_until(lambda: n_rows(page) >= 4 and re.search(r"\d:\d\d left", page.get_by_role("status").first.inner_text()))
        assert rate.get_attribute("aria-pressed") == "true" and page.locator(".cbnb-smalls svg").count() > 2
        # a stranger's page, and one without the token
        with strangers_page(address) as elsewhere:
            other = browser.new_page()
            other.goto(elsewhere)
            other.wait_for_function("document.title === 'asked'")
            untold = page.request.get(address.rsplit("/", 2)[0] + "/")
            assert untold.status == 404 and untold.body() == b""
            other.close()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").wait_for()
        wait_until(lambda: "paused" in page.get_by_role("status").first.inner_text())
        for scheme in "light", "dark":
            page.emulate_media(color_scheme=scheme)
            assert axe_violations(page, "main") == []
        page.set_viewport_size(dict(width=420, height=900))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Resume").click()
        before = n_rows(page)
        wait_until(lambda: n_rows(page) > before)
        # a page that was closed is opened again
        page.close()
        page = browser.new_page()
        page.goto(address)
        wait_until(lambda: n_rows(page) > before)
        page.get_by_role("button", name="Stop").click()
        assert program.stdout.readline() == "ended True\n" and program.wait() == 0
        wait_until(lambda: "does not answer" in page.get_by_role("status").first.inner_text())
        page.close()


def test_a_page_that_may_not_steer_has_no_buttons(browser):
    with training() as (program, address):
        page = browser.new_page()
        page.goto(address)
        wait_until(lambda: n_rows(page) >= 1)
        assert page.get_by_role("button", name="Stop").count() == page.get_by_role("button", name="Pause").count() == 0
        refused = page.evaluate("fetch('stop', {method: 'POST'}).then(answer => answer.status)")
        before = n_rows(page)
        assert refused == 403
        wait_until(lambda: n_rows(page) > before)
        assert program.poll() is None
        page.close()


def test_a_cell_that_runs_is_stopped_from_a_second_page(lab: Lab):
    cells = [
        "import time\nfrom cbnb.all import *\nfrom cbnb.toy import wave_learner\n"
        "learn = wave_learner(cbs=Callback(after_batch=lambda cb: time.sleep(0.005)))\nprint(learn.watch(steer=True).url)",
        "learn.fit(1000)",
    ]
    with lab.open(lab.write("watched.ipynb", cells), size=(1200, 900)) as page:
        page.run_cell(0)
        address = page.output(0).inner_text().split("http://")[-1].split()[0]
        page.run_cell(1, wait=False)
        second = page.context.new_page()
        second.goto(f"http://{address}")
        wait_until(lambda: n_rows(second) >= 2)
        second.get_by_role("button", name="Stop").click()
        page.wait_until_idle()
        assert page.value("(learn.running, len(learn.recorder.last().epochs) < 1000)") == (False, True)
        second.close()
