"""What charts cost: messages and bytes of an update, milliseconds in the kernel, and how fast a page draws a million steps.

    python bench/charts.py              about a minute
    python bench/charts.py --no-page    without Chromium

The first part runs in a real Jupyter kernel, as `notebook.py` does: a live chart of two lines, and the dashboard of a fit. The second part
opens Chromium and calls the charts' own code: it draws two lines of a million points, and then moves the crosshair.
"""

import argparse
import base64
import json
import re
import statistics
import sys
from pathlib import Path

from notebook import ROOT, SETUP, Kernel, size

LIMITS = dict(bytes=1000, ms=0.2, draw=500, frame=50)
LIVE = """
from time import thread_time
from cbnb.display.chart import Line
from cbnb.display.live_chart import LiveChart
from cbnb.display import dashboard, live_chart

def updates(n, steps):
    "Milliseconds in the kernel of each of `n` updates of so many steps"
    live, found = LiveChart([Line('train, each batch', [], []), Line('train, smoothed', [], [])]), []
    for i in range(n):
        xs, start = range(i*steps, (i + 1)*steps), thread_time()
        for name in live.points: live.add(name, xs, [1/(1 + x % 7) for x in xs])
        live.flush(most=16)
        found.append(1e3*(thread_time() - start))
    live.close()
    return found
"""
DASHBOARD = """
draws, alone, sends = [], [], []
def ms(f, *args):
    start = thread_time()
    f(*args)
    return 1e3*(thread_time() - start)

def timed(draw):
    def progress(self, at):
        draws.append(ms(draw, self, at))
        if len(alone) >= 120: return
        # the same in a row: an update of 50 new steps, and the message of it
        widget, sent, messages = self.growing.chart.widget, self.growing.sent, []
        send = widget.send
        widget.send = lambda *message: (messages.append(message), send(*message))
        for _ in range(40):
            sent |= {name: max(n - 50, 0) for name, n in sent.items() if name != 'valid'}
            alone.append(ms(draw, self, at))
        del widget.send
        sends.extend(ms(send, *messages[-1]) for _ in range(40))
    return progress
dashboard.Dashboard.progress = timed(dashboard.Dashboard.progress)
live_chart.LiveChart.here = property(lambda self: True, lambda self, value: None)      # as if a page drew it
task.train = list(task.train)*20                                                       # 900 batches
set_display('widgets')
ours(2)
"""
PAGE = """async ([plain, live, css, spec, lines]) => {
  const box = () => { const el = document.body.appendChild(document.createElement('div')); el.style.width = '1100px'; return el }
  const frame = act => new Promise(done => { let start; requestAnimationFrame(() => start = performance.now()); act(); requestAnimationFrame(() => { document.body.getBoundingClientRect(); done(performance.now() - start) }) })
  const nth = values => values.sort((a, b) => a - b)[Math.floor(0.9*values.length)]
  const hover = async plot => {
    const found = []
    for (let k = 1; k <= 30; k++) found.push(await frame(() => plot.dispatchEvent(new PointerEvent('pointermove', { clientX: 100 + 20*k, clientY: 100, bubbles: true }))))
    return nth(found)
  }
  const { mount } = await import(plain), el = box(), start = performance.now()
  mount(el, { css, charts: [spec] })
  const drawn = performance.now() - start, moved = await hover(el.querySelector('.plot'))
  el.remove()
  // a fit of a million steps, in 2,000 messages
  const slot = box(), heard = {}, state = { slot: 'x', spec: lines, history: null }
  slot.className = 'cbnb-slot-x'
  const model = { get: name => state[name], send() {}, on: (name, f) => (heard[name] ??= []).push(f), off() {} }
  ;(await import(live)).default(css).initialize({ model })
  const each = []
  for (let s = 0; s < 2000; s++) {
    const n = 500, bytes = new Float32Array(4*n)
    for (let i = 0; i < n; i++) { const x = s*n + i; bytes[i] = bytes[2*n + i] = x; bytes[n + i] = 1/(1 + x/1e5) + Math.random()/10; bytes[3*n + i] = 1/(1 + x/1e5) }
    const before = performance.now()
    for (const f of heard['msg:custom']) f({ s, n: [n, n] }, [new DataView(bytes.buffer)])
    each.push(performance.now() - before)
  }
  const redrawn = await frame(() => {})
  return { drawn, moved, message: nth(each), redrawn, live: await hover(slot.querySelector('.plot')) }
}"""


def row(name: str, value: str, limit: object = "") -> None:
    print(f"  {name:58}{value:>18}{str(limit):>10}")


def in_kernel() -> None:
    """Bytes and milliseconds of updates; each number is a median."""
    kernel = Kernel()
    try:
        kernel.run(SETUP + LIVE)
        for steps in (1, 20, 1000):
            printed, sent = kernel.run(f"print('MS', updates(100, {steps})[5:])")
            times = json.loads(printed.partition("MS ")[2])
            sizes = [size(m) for m in sent if m["msg_type"] == "comm_msg" and m.get("buffers")]
            row(f"live chart, {steps} new steps: bytes", f"{statistics.median(sizes):.0f}", LIMITS["bytes"])
            row(f"live chart, {steps} new steps: ms in the kernel", f"{statistics.median(times):.2f}", LIMITS["ms"])
        printed, _ = kernel.run("print('MS', sum(updates(1000, 1000)))")
        row("live chart, 1,000,000 steps in 1,000 updates: s", f"{float(printed.split()[-1]) / 1000:.2f}")
        printed, sent = kernel.run(DASHBOARD + "print('MS', [draws, alone, sends])")
        draws, alone, sends = map(statistics.median, json.loads(printed.partition("MS ")[2]))
        updates = [m for m in sent if m["msg_type"] == "comm_msg" and "beside" in m["content"]["data"].get("content", {})]
        row("dashboard, all in one message: bytes", f"{statistics.median(map(size, updates)):.0f}", LIMITS["bytes"])
        row("dashboard, 50 new steps: ms in the kernel", f"{alone:.2f}", LIMITS["ms"])
        row("dashboard, its message: ms in the kernel", f"{sends:.3f}")
        row("dashboard, between two batches of a fit: ms in the kernel", f"{draws:.2f}")
        row("dashboard: kB to open the panel", f"{sum(size(m) for m in sent if m['msg_type'] == 'comm_open') / 1000:.1f}", 40)
    finally:
        kernel.close()


def spec_of_a_million() -> dict:
    """Two lines of a million points, as a plot sends them."""
    import torch

    from cbnb.display.chart import Chart, Line, chart_spec

    n = 10**6
    raw = 1 / (1 + torch.arange(n) / 1e5) + 0.1 * torch.rand(n, generator=torch.Generator().manual_seed(0))
    smooth = raw.cumsum(0) / torch.arange(1, n + 1)
    return chart_spec(Chart([Line("train, each batch", range(n), raw, faint=True), Line("train, smoothed", range(n), smooth)]))


def address(code: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(code.encode()).decode()


def in_page() -> None:
    """Milliseconds to draw a million steps, and to move the crosshair, in Chromium."""
    sys.path[:0] = [str(ROOT / folder) for folder in (".", "tools", "tests/browser")]
    from cbnb.display.chart import chart_css
    from cbnb.display.page_script import script
    from lab import chromium

    spec = spec_of_a_million()
    lines = spec | {"lines": [line | {"x": [], "y": ""} for line in spec["lines"]]}
    with chromium() as browser:
        tab = browser.new_page()
        tab.set_default_timeout(120_000)
        tab.goto("about:blank")
        found = tab.evaluate(PAGE, [address(script("chart.js")), address(script("chart.js", "live_chart.js")), chart_css(), spec, lines])
    row("page, a plot of 1,000,000 steps: ms to draw", f"{found['drawn']:.0f}", LIMITS["draw"])
    row("page, the same: ms of a frame while the mouse moves", f"{found['moved']:.0f}", LIMITS["frame"])
    row("page, a live chart of 1,000,000 steps: ms of a message", f"{found['message']:.2f}")
    row("page, the same: ms of a frame while the mouse moves", f"{found['live']:.0f}", LIMITS["frame"])


def main() -> None:
    parser = argparse.ArgumentParser(description=re.sub(r"\s+", " ", __doc__.splitlines()[0]))
    parser.add_argument("--no-page", action="store_true", help="without Chromium")
    args = parser.parse_args()
    print(f"  {'':58}{'measured':>18}{'limit':>10}")
    in_kernel()
    if not args.no_page:
        in_page()


if __name__ == "__main__":
    assert Path(ROOT, "cbnb").is_dir()
    main()
