"""A notebook in a browser, and what a person does with it: run, stop, look, drag, save, close, come back.

Cells are numbered from 0 in the order of the notebook, Markdown included. Everything that waits gives up after `timeout` seconds with
an error, so a test needs no timers of its own. `page.tab` is Playwright's page, for whatever is not here.
"""

import ast
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request

TIMEOUT = 30.0  # seconds; much longer than anything takes, so that a busy machine fails no test
PANEL = "const panel = window.jupyterapp.shell.currentWidget, kernel = panel?.sessionContext?.session?.kernel;"
OF_NOTEBOOK_7 = "error: Cannot read properties of undefined (reading 'schema')"
OF_JUPYTERLAB = "widget model not found"  # a page opened again may draw a stored output before the messages that replaced it arrive
NO_SPLASH = "() => !document.querySelector('#jupyterlab-splash')"  # what covers the page while it starts or changes its theme
IS_OPEN = f"""() => {{
    if (!window.jupyterapp) return false;
    {PANEL}
    return !!(kernel && panel.context.isReady && panel.sessionContext.isReady && kernel.connectionStatus === 'connected'
              && panel.content.widgets.length === panel.content.model.cells.length);
}}"""
# Open a notebook and nothing else; what the page counts begins anew.
SHOW = """async path => {
    const { shell, commands } = window.jupyterapp;
    window.unfinished = 0;
    await commands.execute('docmanager:open', { path, factory: 'Notebook' });
    for (const other of [...shell.widgets('main')]) if (other !== shell.currentWidget) other.dispose();
    shell.collapseLeft();
}"""
LEAVE = "() => { for (const widget of [...window.jupyterapp.shell.widgets('main')]) widget.dispose(); }"
# Run a command of JupyterLab's, and count it among the unfinished until it is done.
RUN = f"""([command, cell]) => {{
    {PANEL}
    if (cell !== null) {{ panel.content.activeCellIndex = cell; panel.content.deselectAll(); }}
    window.unfinished = (window.unfinished ?? 0) + 1;
    window.jupyterapp.commands.execute(command).finally(() => {{ window.unfinished -= 1; }});
}}"""
NOTHING_RUNS = """() => !window.unfinished
    && [...document.querySelectorAll('.jp-InputArea-prompt')].every(prompt => !prompt.innerText.includes('[*]'))"""
ASK = f"""([expression, timeout]) => {{
    {PANEL}
    const request = {{ code: '', silent: true, store_history: false, stop_on_error: false, user_expressions: {{ value: expression }} }};
    const late = new Promise(resolve => setTimeout(() => resolve(null), timeout * 1000));
    return Promise.race([kernel.requestExecute(request).done.then(reply => reply.content), late]);
}}"""
OUTPUTS = f"(cell) => {{ {PANEL} return panel.content.model.cells.get(cell).toJSON().outputs ?? []; }}"
SAVE = f"async () => {{ {PANEL} await panel.context.save(); return panel.context.model.dirty; }}"
THEME = "async (name) => { await window.jupyterapp.commands.execute('apputils:change-theme', { theme: name }); }"
HAS_TEXT = """([cell, text]) => {
    const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')].filter((_, i) => cell === null || i === cell);
    return cells.some(c => c.querySelector('.jp-Cell-outputArea')?.innerText.includes(text));
}"""


def wait_until(condition: Callable[[], object], seconds: float = TIMEOUT) -> None:
    """Wait until something is true that is asked again and again, here and not in the page."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {seconds:g} s")
        time.sleep(0.02)


def axe_violations(page: "NotebookPage | Page", selector: str, rules: Sequence[str] = ()) -> list[str]:
    """What keeps somebody from using this part of a page, as axe finds it: rule, element, and what to mend. It checks all rules, or these; JupyterLab has faults of its own."""
    from axe_playwright_python.sync_playwright import Axe

    tab = page.tab if isinstance(page, NotebookPage) else page
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found = Axe().run(tab, selector, options).response
    assert found["passes"], f"there is nothing to check in {selector}"
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def axe_violations_in(page: "NotebookPage", cell: int) -> list[str]:
    """The same for the output of a cell."""
    page.output(cell).evaluate("output => { output.id = 'looked-at' }")
    found = axe_violations(page, "#looked-at")
    page.output(cell).evaluate("output => { output.removeAttribute('id') }")
    return found


class NotebookPage:
    """A notebook that is open in a tab of JupyterLab; made by `Lab.open`."""

    def __init__(self, browser: "Browser", url: str, token: str, path: Path, size: tuple[int, int], scale: float = 1):
        self.url, self.token, self.path = url, token, path
        self.console: list[str] = []  # what the page's console said, with its level: "error: ..."
        self.requests: list[str] = []  # all addresses that the page asked for
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, device_scale_factor=scale)
        self.context.on("request", self._note_request)
        self.context.on("console", self._note_console)
        self.context.on("weberror", lambda error: self.console.append(f"error: {error.error}"))
        self.tab: Page | None = None
        self.first: Page | None = None  # tab

    # -- the tab

    def open(self) -> None:
        """Open the tab and wait until the kernel is connected; it may be busy."""
        self.tab = self.context.new_page()
        self.first = self.first or self.tab
        self.tab.set_default_timeout(TIMEOUT * 1000)
        self.tab.goto(f"{self.url}?reset&token={self.token}")
        self.wait_for(IS_OPEN, else_="the notebook is not open, or its kernel not connected")
        self.tab.evaluate("() => window.jupyterapp.shell.collapseLeft()")  # Notebook 7 has the same shell with two sides
        self.wait_for(NO_SPLASH)

    def show(self, url: str, path: Path, size: tuple[int, int]) -> None:
        """Open another notebook in the JupyterLab of this tab, which is there already: to start it takes eight seconds of a core."""
        self.url, self.path = url, path
        self.console.clear()
        self.requests.clear()
        self.tab.set_viewport_size({"width": size[0], "height": size[1]})
        self.tab.evaluate(SHOW, path.name)
        self.wait_for(IS_OPEN, else_="the notebook is not open, or its kernel not connected")
        self.wait_for(NO_SPLASH)

    def leave(self) -> bool:
        """Close the notebook without saving it; False if the tab was closed, opened again, or is not alone: it is not as a new one."""
        if self.tab is not self.first or self.context.pages != [self.first]:
            return False
        self.tab.evaluate(LEAVE)
        self.tab.mouse.move(0, 0)
        self.context.clear_permissions()
        return True

    def close_tab(self) -> None:
        """Close the tab as a person does who leaves; the kernel goes on."""
        self.tab.close()

    def reopen(self) -> None:
        """Close the tab and open the notebook again, which finds its kernel as it is."""
        self.close_tab()
        self.open()

    def close(self) -> None:
        self.context.close()

    # -- running

    def run_all(self, wait: bool = True, timeout: float = 60) -> None:
        """Run all cells; without `wait` they are only sent off."""
        self._run("notebook:run-all-cells", None, wait, timeout)

    def run_cell(self, cell: int, wait: bool = True, timeout: float = TIMEOUT) -> None:
        """Run one cell."""
        self._run("notebook:run-cell", cell, wait, timeout)

    def wait_until_idle(self, timeout: float = TIMEOUT) -> None:
        """Wait until all cells that were run have run, and the kernel has answered for everything it was sent."""
        self.wait_for(NOTHING_RUNS, timeout=timeout, else_="cells are still running")
        self._ask("None", timeout)

    def is_running(self, cell: int) -> bool:
        """Whether the cell is running or waits for its turn."""
        return "[*]" in self.cell(cell).locator(".jp-InputArea-prompt").inner_text()

    def interrupt(self) -> None:
        """Press the stop button of the toolbar."""
        self.tab.click('[data-command="notebook:interrupt-kernel"]')

    def value(self, expression: str, timeout: float = TIMEOUT) -> object:
        """The value of a Python expression in the kernel, a plain one: numbers, strings, lists. A busy kernel answers when it is idle."""
        answer = self._ask(f"repr(({expression}))", timeout)
        if answer["status"] != "ok":
            raise RuntimeError(f"the kernel did not look at {expression!r}: {answer['status']}")
        found = answer["user_expressions"]["value"]
        if found["status"] != "ok":
            raise RuntimeError(f"{expression!r} raised {found['ename']}: {found['evalue']}")
        return eval(ast.literal_eval(found["data"]["text/plain"]), {"nan": math.nan, "inf": math.inf})

    def wait_until(self, condition: str, timeout: float = TIMEOUT) -> None:
        """Wait until a Python expression is true in the kernel; for what arrives a little later, such as the value of a slider."""
        deadline = time.monotonic() + timeout
        while not self.value(condition, timeout):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {timeout:g} s: {condition}")
            time.sleep(0.05)

    # -- looking

    def cell(self, cell: int) -> "Locator":
        return self.tab.locator(".jp-Notebook .jp-Cell").nth(cell)

    def output(self, cell: int) -> "Locator":
        """The part of the page below the cell."""
        return self.cell(cell).locator(".jp-Cell-outputArea")

    def text(self, cell: int) -> str:
        """What is to be read below the cell."""
        output = self.output(cell)
        return output.inner_text() if output.count() else ""

    def outputs(self, cell: int) -> list[dict]:
        """The cell's outputs as they would be saved."""
        return self.tab.evaluate(OUTPUTS, cell)

    def errors(self) -> list[str]:
        """The tracebacks of all cells, as plain text."""
        n = self.tab.locator(".jp-Notebook .jp-Cell").count()
        failed = [output for cell in range(n) for output in self.outputs(cell) if output["output_type"] == "error"]
        return [re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output["traceback"])) for output in failed]

    def wait_for_text(self, text: str, cell: int | None = None, timeout: float = TIMEOUT) -> None:
        """Wait until the text is to be read below the cell, or below any cell."""
        where = "any cell" if cell is None else f"cell {cell}"
        self.wait_for(HAS_TEXT, [cell, text], timeout, f"no {text!r} below {where}")

    def wait_for(self, condition: str, argument: object = None, timeout: float = TIMEOUT, else_: str = "") -> None:
        """Wait until a JavaScript function returns something true; `else_` says in words what is wrong if it does not."""
        from playwright.sync_api import TimeoutError as TooLate

        try:
            self.tab.wait_for_function(condition, arg=argument, timeout=timeout * 1000)
        except TooLate:
            raise TimeoutError(f"{else_ or 'not true: ' + condition} within {timeout:g} s") from None

    def screenshot(self, path: Path, of: "int | Locator | None" = None) -> Path:
        """A PNG of a cell's output, of a part of the page, or of what the window shows."""
        target = self.output(of) if isinstance(of, int) else of or self.tab
        target.screenshot(path=path)
        return Path(path)

    def set_theme(self, name: str) -> None:
        """'light' or 'dark'."""
        self.tab.evaluate(THEME, {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}[name])
        self.wait_for("light => document.body.dataset.jpThemeLight === light", "true" if name == "light" else "false")
        self.wait_for(NO_SPLASH)

    # -- using controls

    def drag(self, slider: "str | Locator", share: float, steps: int = 8) -> None:
        """Drag the handle of a slider with the mouse to this share of its way, from 0 at the left to 1.

        The kernel hears of it a moment later: ipywidgets holds a new value back until the one before has been dealt with.
        """
        slider = self.tab.locator(slider) if isinstance(slider, str) else slider
        slider.scroll_into_view_if_needed()
        handle, way = slider.locator(".noUi-handle").first.bounding_box(), slider.locator(".noUi-base").first.bounding_box()
        mouse = self.tab.mouse
        mouse.move(handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2)
        mouse.down()
        mouse.move(way["x"] + way["width"] * share, way["y"] + way["height"] / 2, steps=steps)
        mouse.up()

    def save(self) -> nbformat.NotebookNode:
        """Save the notebook, and read the file."""
        assert not self.tab.evaluate(SAVE), "the notebook was not saved"
        return nbformat.read(self.path, as_version=4)

    # -- what it did besides

    def console_errors(self) -> list[str]:
        """Errors in the page's console, and widgets that the page fails to draw.

        Two errors are the page's own: Notebook 7's, which an empty notebook has, too, and JupyterLab's about an output that is gone
        a moment later, which is a fault only if the reader sees it.
        """
        shown = self.tab.get_by_text("Error displaying widget").filter(visible=True).all_inner_texts()
        errors = [line for line in self.console if line.startswith("error: ")]
        return shown + [line for line in errors if line != OF_NOTEBOOK_7 and OF_JUPYTERLAB not in line]

    def outside_requests(self) -> list[str]:
        """Addresses that the page asked for and that are not the server's."""
        return [url for url in self.requests if not url.startswith((self.url[: self.url.index("/", len("http://"))], "data:", "blob:"))]

    def _run(self, command: str, cell: int | None, wait: bool, timeout: float) -> None:
        self.tab.evaluate(RUN, [command, cell])
        if wait:
            self.wait_until_idle(timeout)

    def _ask(self, expression: str, timeout: float) -> dict:
        answer = self.tab.evaluate(ASK, [expression, timeout])
        if answer is None:
            raise TimeoutError(f"the kernel did not answer within {timeout:g} s")
        return answer

    def _note_request(self, request: "Request") -> None:
        self.requests.append(request.url)

    def _note_console(self, message: "ConsoleMessage") -> None:
        self.console.append(f"{message.type}: {message.text}")
