// A one-cycle schedule whose points can be dragged, and the call that trains with it. It needs no kernel.
// It stands behind `page.js` in one module. Every change is an event `cbnb-cycle` that bubbles, so that a widget can hear it;
// an event `cbnb-cycle-set` on the root sets the schedule from outside.

const clamp = (v, lo, hi) => Math.min(Math.max(v, lo), hi)

const sized = (v, digits) => +v.toPrecision(digits)

// ---- the schedule

const halfCosine = (a, b, x) => a + (b - a) * (1 - Math.cos(Math.PI * x)) / 2

export function valueAt(x, pct, [start, top, end]) {
  if (pct > 0 && (x < pct || pct >= 1)) return halfCosine(start, top, Math.min(x / pct, 1))
  return halfCosine(top, end, Math.min((x - pct) / (1 - pct), 1))
}

export const rates = c => [c.lr_max / c.div, c.lr_max, c.lr_max / c.div_final]

export function callOf(c, n_epoch = null) {
  const parts = [n_epoch ?? 'n_epoch', `lr_max=${plain(c.lr_max)}`, `pct_start=${plain(c.pct_start) === '0' ? 0 : plain(c.pct_start)}`, `div=${plain(c.div)}`]
  if (c.div_final !== 1e5) parts.push(`div_final=${plain(c.div_final)}`)
  if (c.moms) parts.push(`moms=(${c.moms.join(', ')})`)
  return `learn.fit_one_cycle(${parts.join(', ')})`
}

const FIELDS = {
  lr_max: ['the highest learning rate', [1e-9, 1e3]], pct_start: ['share of the training that warms up', [0, 1]],
  div: ['it begins at lr_max/div', [1, 1e6]], div_final: ['it ends at lr_max/div_final', [1, 1e9]],
}
const checked = c => Object.assign({}, c, Object.fromEntries(Object.entries(FIELDS).map(([k, [, [lo, hi]]]) => [k, clamp(+c[k], lo, hi)])))

// ---- the picture

const LEFT = 58, RIGHT = 22, TOP = 14, HIGH = 200, LOW = 84, BETWEEN = 34, POINTS = 240
const HANDLES = ['start', 'top', 'end']

class Cycle {
  constructor(el, data) {
    Object.assign(this, { data, cycle: checked(data.cycle), first: checked(data.cycle), log: false, held: null, cursor: null, span: null, frame: 0 })
    this.build(el)
    this.size = new ResizeObserver(() => this.redraw()); this.size.observe(this.plot)
    this.root.addEventListener('cbnb-cycle-set', e => { this.cycle = checked({ ...this.cycle, ...e.detail }); this.draw() })
    this.draw()
  }
  redraw() { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.draw() }) }

  build(el) {
    const { data } = this
    this.root = el.appendChild(keepsKeys(html('div', { class: 'cbnb-lc cbnb-cycle', 'data-slot': data.slot })))
    const head = this.root.appendChild(html('div', { class: 'head' }))
    head.append(html('b', {}, 'One cycle'))
    this.where = head.appendChild(html('span', { class: 'where' }))
    const tools = head.appendChild(html('span', { class: 'tools' }))
    this.back = tools.appendChild(html('button', { type: 'button', title: 'the schedule as it was at first' }, 'reset'))
    this.back.onclick = () => this.change(this.first, true)
    const log = tools.appendChild(html('button', { type: 'button', title: 'logarithmic learning rate', 'aria-pressed': 'false' }, 'log y'))
    log.onclick = () => { this.log = !this.log; log.setAttribute('aria-pressed', this.log); this.draw() }
    this.plot = this.root.appendChild(html('div', { class: 'plot' }))
    this.svg = this.plot.appendChild(svg('svg', { role: 'group', 'aria-label': 'the schedule, with points to drag' }))
    this.back_layer = this.svg.appendChild(svg('g', { 'aria-hidden': 'true' }))
    this.handles = Object.fromEntries(HANDLES.map(name => [name, this.handle(name)]))
    this.form = this.root.appendChild(html('div', { class: 'fields' }))
    this.inputs = Object.fromEntries(Object.entries(FIELDS).map(([name, [tip]]) => [name, this.field(name, tip)]))
    const row = this.root.appendChild(html('div', { class: 'call' }))
    this.code = row.appendChild(html('code', { tabindex: 0, 'aria-label': 'the call that trains with this schedule' }))
    const copy = row.appendChild(html('button', { type: 'button', title: 'copy the call' }, 'copy'))
    this.said = row.appendChild(html('span', { class: 'copied', role: 'status' }))
    copy.onclick = () => this.copy()
    this.plot.addEventListener('pointermove', e => { if (!this.held) this.look(e) })
    this.plot.addEventListener('pointerleave', () => { this.cursor = null; this.redraw() })
  }
  handle(name) {
    const g = this.svg.appendChild(svg('g', { class: 'handle', tabindex: 0, role: 'slider', 'data-point': name }))
    g.append(svg('circle', { class: 'reach', r: 16 }), svg('circle', { class: 'knob', r: 6.5 }), svg('text', {}))
    g.addEventListener('pointerdown', e => {
      if (e.button) return
      e.preventDefault(); g.focus({ preventScroll: true }); g.setPointerCapture(e.pointerId)
      // the axis stays as it is until the point is let go, so that the point stays under the mouse
      const scale = this.scale, box = this.svg.getBoundingClientRect()
      this.held = { name, dx: e.clientX - box.left - scale.px(this.at(name)), dy: e.clientY - box.top - scale.py(this.rate(name)) }
      this.span = scale.span
    })
    g.addEventListener('pointermove', e => { if (this.held?.name === name) this.drag(e, false) })
    g.addEventListener('pointerup', e => { if (this.held?.name === name) { this.drag(e, true); this.let() } })
    g.addEventListener('pointercancel', () => this.let())
    g.addEventListener('keydown', e => this.key(e, name))
    return g
  }
  field(name, tip) {
    const label = this.form.appendChild(html('label', { title: tip }, `${name} `))
    const input = label.appendChild(html('input', { type: 'text', inputmode: 'decimal', size: 7, autocomplete: 'off' }))
    input.onchange = () => {
      const v = Number(input.value), [lo, hi] = FIELDS[name][1], good = input.value.trim() !== '' && v >= lo && v <= hi
      input.setAttribute('aria-invalid', !good)
      this.said.textContent = good ? '' : `${name} should be a number from ${plain(lo)} to ${plain(hi)}`
      if (good) this.change({ [name]: v }, true)
    }
    input.onkeydown = e => { e.stopPropagation(); if (e.key === 'Enter') input.onchange() }
    return input
  }

  // -- what the points mean
  at(name) { return { start: 0, top: this.cycle.pct_start, end: 1 }[name] }
  rate(name) { return rates(this.cycle)[HANDLES.indexOf(name)] }
  // A point at this rate and this place. The top takes the others along, as `div` and `div_final` are factors.
  moved(name, rate, x) {
    const { lr_max } = this.cycle
    if (name === 'top') return { lr_max: sized(rate, 2), pct_start: sized(Math.round(clamp(x, 0, 1) * 100) / 100, 2) }
    const by = sized(Math.max(lr_max / rate, 1), 2)
    return name === 'start' ? { div: Math.min(by, 1000) } : { div_final: Math.min(by, 1e5) }
  }
  drag(e, done) {
    const { name, dx, dy } = this.held, box = this.svg.getBoundingClientRect(), s = this.scale
    const rate = s.rate(clamp(e.clientY - box.top - dy, TOP, TOP + HIGH)), x = s.share(e.clientX - box.left - dx)
    this.change(this.moved(name, Math.max(rate, this.span[1] * 1e-9), x), done)
  }
  let() { this.held = this.span = null; this.draw() }
  key(e, name) {
    if (e.altKey || e.ctrlKey || e.metaKey) return
    const [dx, dy] = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0], PageUp: [0, 5], PageDown: [0, -5] }[e.key] ?? [0, 0]
    if (!dx && !dy) return
    // JupyterLab would take the keys as commands
    e.preventDefault(); e.stopPropagation()
    if (dx && name !== 'top') return
    const more = e.shiftKey ? 5 : 1, old = this.rate(name)
    let rate = old * 1.1 ** (dy * more)
    if (dy && sized(rate, 2) === sized(old, 2)) rate = old * 1.2 ** (dy * more)
    this.change(this.moved(name, dy ? rate : old, this.at(name) + 0.01 * dx * more), true)
  }
  change(part, done) {
    this.cycle = checked({ ...this.cycle, ...part })
    this.redraw()
    const { lr_max, pct_start, div, div_final } = this.cycle
    this.root.dispatchEvent(new CustomEvent('cbnb-cycle', { detail: { cycle: { lr_max, pct_start, div, div_final }, done }, bubbles: true }))
  }
  look(e) {
    const x = this.scale.share(e.clientX - this.svg.getBoundingClientRect().left)
    this.cursor = x < 0 || x > 1 ? null : x
    this.redraw()
  }
  async copy() {
    const text = this.code.textContent
    try { await navigator.clipboard.writeText(text) }
    catch {
      const range = document.createRange(); range.selectNodeContents(this.code)
      getSelection().removeAllRanges(); getSelection().addRange(range); document.execCommand('copy')
    }
    this.said.textContent = 'copied'
    clearTimeout(this.later); this.later = setTimeout(() => { this.said.textContent = '' }, 2000)
  }

  // -- drawing
  share(x) { return this.data.steps ? `step ${FORMATS.count(x * this.data.steps.n)}` : `${Math.round(100 * x)}%` }
  draw() {
    const W = this.plot.clientWidth, c = this.cycle
    if (W < 120) return
    const lrs = rates(c), right = W - RIGHT, moms = c.moms ?? this.data.moms
    const span = this.span ?? (this.log ? [Math.min(...lrs) / 3, lrs[1] * 3] : [0, lrs[1] * 1.18])
    const fy = v => this.log ? Math.log10(v) : v, [y0, y1] = span.map(fy)
    const s = this.scale = {
      span, px: x => LEFT + x * (right - LEFT), share: p => (p - LEFT) / (right - LEFT),
      py: v => clamp(TOP + (y1 - fy(v)) / (y1 - y0) * HIGH, TOP - 8, TOP + HIGH),
      rate: p => { const v = y1 - (p - TOP) / HIGH * (y1 - y0); return this.log ? 10 ** v : v },
    }
    const g = this.back_layer, bottom = TOP + HIGH, m0 = bottom + BETWEEN, m1 = m0 + LOW, xs = this.stops()
    const height = (moms ? m1 : bottom) + 40
    make(this.svg, { height, viewBox: `0 0 ${W} ${height}` }); g.replaceChildren()
    this.frameOf(g, right, bottom, this.log ? logTicks(y0, y1, 5) : linearTicks(...span, 5), s.py)
    g.append(svg('path', { class: 'line', style: 'stroke:var(--cbnb-lr)', d: this.path(xs, x => s.py(valueAt(x, c.pct_start, lrs)), s) }))
    g.append(svg('text', { x: LEFT, y: TOP - 2, class: 'mark' }, 'learning rate'))
    if (moms) {
      const low = Math.min(...moms), high = Math.max(...moms), pad = (high - low || 0.1) * 0.15
      const py = v => m0 + (high + pad - v) / (high - low + 2 * pad) * LOW
      this.frameOf(g, right, m1, linearTicks(low, high, 3), py)
      g.append(svg('path', { class: 'line', style: 'stroke:var(--cbnb-mom)', d: this.path(xs, x => py(valueAt(x, c.pct_start, moms)), s) }))
      g.append(svg('text', { x: LEFT, y: m0 - 4, class: 'mark' }, 'momentum'))
    }
    this.below(g, s, right, moms ? m1 : bottom)
    if (this.cursor !== null) this.readAt(g, s, moms ? m1 : bottom, lrs, moms)
    else this.where.textContent = 'drag the points, or move them with the arrow keys'
    HANDLES.forEach((name, i) => this.place(name, lrs[i], s, right))
    const call = callOf(c, this.data.steps?.n_epoch)
    this.code.textContent = call
    for (const name in this.inputs) if (document.activeElement !== this.inputs[name]) this.inputs[name].value = plain(c[name]) === 'NaN' ? '' : c[name] ? plain(c[name]) : '0'
    this.back.hidden = Object.keys(FIELDS).every(k => c[k] === this.first[k])
  }
  stops() {      // even steps, and the top itself
    const xs = Array.from({ length: POINTS + 1 }, (_, i) => i / POINTS)
    return [...xs, this.cycle.pct_start].sort((a, b) => a - b)
  }
  path(xs, y, s) { return xs.map((x, i) => `${i ? 'L' : 'M'}${s.px(x).toFixed(1)},${y(x).toFixed(1)}`).join('') }
  frameOf(g, right, bottom, ticks, py) {
    yTicks(g, ticks, py, LEFT, right)
    g.append(svg('path', { class: 'base', d: `M${LEFT},${bottom + 0.5}H${right}` }))
  }
  below(g, s, right, bottom) {
    const { steps } = this.data, n = Math.max(2, Math.floor((right - LEFT) / 90))
    const marks = steps ? linearTicks(0, steps.n, n, true).map(([v, text]) => [v / steps.n, text]) : linearTicks(0, 1, n).map(([v]) => [v, `${Math.round(100 * v)}%`])
    for (const [x, label] of marks) g.append(svg('text', { x: s.px(x), y: bottom + 17, 'text-anchor': 'middle' }, label))
    g.append(svg('text', { x: LEFT, y: bottom + 34 }, steps ? 'steps' : 'share done'))
  }
  readAt(g, s, bottom, lrs, moms) {
    const x = this.cursor, px = Math.round(s.px(x)) + 0.5
    g.append(svg('path', { class: 'cursor', d: `M${px},${TOP}V${bottom}` }))
    const words = [`${this.share(x)}: learning rate ${plain(valueAt(x, this.cycle.pct_start, lrs), 2)}`]
    if (moms) words.push(`momentum ${plain(valueAt(x, this.cycle.pct_start, moms), 3)}`)
    this.where.textContent = words.join(', ')
  }
  place(name, rate, s, right) {
    const g = this.handles[name], x = s.px(this.at(name)), y = s.py(rate), text = g.lastChild
    g.setAttribute('transform', `translate(${x.toFixed(1)},${y.toFixed(1)})`)
    const left = name === 'end' || name === 'top' && x > right - 110
    make(text, { x: left ? -12 : 12, y: { start: -24, top: -8, end: -12 }[name], 'text-anchor': left ? 'end' : 'start' }, `${name} ${plain(rate, 2)}`)
    const words = name === 'top' ? `${plain(rate, 2)} at ${this.share(this.cycle.pct_start)}` : plain(rate, 2)
    make(g, { 'aria-label': `${name} of the cycle, learning rate`, 'aria-valuenow': rate.toFixed(12), 'aria-valuemin': 0, 'aria-valuemax': FIELDS.lr_max[1][1], 'aria-valuetext': words })
  }
}

// `data`: { css, cycle: { lr_max, pct_start, div, div_final, moms }, moms, steps: { n, n_epoch } or null, slot }
KINDS.cycle = (el, data) => new Cycle(el, data)
