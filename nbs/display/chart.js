// The charts of cbnb in a page, behind `page.js` in one module. `KINDS.charts` draws charts whose data is complete.
// `live_chart.js` follows it where a chart grows while a cell runs.
// Everything that a mouse does happens here, so it works while the kernel is busy, and without one.

// ---- points

// Points of one line, ascending in x. It grows by doubling.
class Points {
  n = 0
  constructor(x, y) {
    this.x = x ?? new Float64Array(1024); this.y = y ?? new Float32Array(1024)
    if (x) this.n = x.length
  }
  add(xs, ys) {
    const need = this.n + xs.length
    for (const k of ['x', 'y']) if (need > this[k].length) { const more = new this[k].constructor(2 * need); more.set(this[k].subarray(0, this.n)); this[k] = more }
    this.x.set(xs, this.n); this.y.set(ys, this.n); this.n = need
  }
  has(x) { const i = this.first(x); return i < this.n && this.x[i] === x }
  // whether there is a point at each whole number between the first and the last
  whole() { return this.n && this.x[this.n - 1] - this.x[0] + 1 === this.n }
  // the first with this x or more
  first(x) { let a = 0, b = this.n; while (a < b) { const m = (a + b) >> 1; this.x[m] < x ? a = m + 1 : b = m } return a }
  // index of the nearest point, or of the latest of a line that holds its values; -1: none
  at(x, holds) {
    if (!this.n || x < this.x[0] - 0.5 * this.gap(0) || !holds && x > this.x[this.n - 1] + 0.5 * this.gap(this.n - 2)) return -1
    const i = this.first(x)
    if (holds) return i < this.n && this.x[i] <= x ? i : i - 1
    return i && (i === this.n || x - this.x[i - 1] < this.x[i] - x) ? i - 1 : i
  }
  gap(i) { return this.n > 1 ? this.x[Math.max(i, 0) + 1] - this.x[Math.max(i, 0)] : 1 }
}

// The mean with weights that fall by `beta` a step, freed of the bias of its start. `k`: steps in one value.
function smoothed(source, beta, k) {
  const out = new Points(source.x.slice(0, source.n), new Float32Array(source.n)), keep = beta ** k
  let sum = 0, weight = 0
  for (let i = 0; i < source.n; i++) {
    const y = source.y[i]
    if (Number.isFinite(y)) { sum = keep * sum + (1 - keep) * y; weight = keep * weight + (1 - keep) }
    out.y[i] = weight ? sum / weight : NaN
  }
  return out
}

const LEFT = 52, TOP = 20, NARROW = 560           // pixels: least room for labels, room for marks of events; below this width names stand below
const GLYPHS = { interrupted: '■', stopped: '■', failed: '✕', lr: '×', paused: '‖', resumed: '↻', restart: '↻', best: '★', finding: '!', note: '•' }

// ---- one chart

// `spec` is what `Chart.spec()` of display/chart returns; `lines[i].points` are `Points`.
class Chart {
  constructor(el, spec, { send = null, others = null, signal = null } = {}) {
    Object.assign(this, { spec, send, others, signal, hidden: new Set(), range: null, cursor: null, near: null, pointer: null, brush: null, frame: 0, W: 0, left: LEFT })
    this.beta = spec.smoothing ?? null
    this.build(el)
    this.size = new ResizeObserver(() => this.redraw()); this.size.observe(this.plot)
    signal?.addEventListener('abort', () => this.end())
    this.listen(); this.names(); this.draw()
  }
  end() { this.size.disconnect(); cancelAnimationFrame(this.frame); this.root.remove() }
  redraw() { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.draw() }) }

  // -- structure
  build(el) {
    const { spec } = this
    this.root = keepsKeys(html('div', { class: 'cbnb-lc', style: spec.width ? `max-width:${+spec.width}px` : null }))
    const head = this.root.appendChild(html('div', { class: 'head' }))
    this.title = head.appendChild(html('b', {}, spec.title))
    this.where = head.appendChild(html('span', { class: 'where' }))
    this.tools = head.appendChild(html('span', { class: 'tools' }))
    this.plot = this.root.appendChild(html('div', { class: 'plot', tabindex: 0, role: 'application', 'aria-roledescription': 'chart' }))
    this.list = this.plot.appendChild(html('div', { class: 'names' }))
    this.detail = this.root.appendChild(html('div', { class: 'detail', hidden: '' }))
    this.said = this.root.appendChild(html('div', { class: 'said', 'aria-live': 'polite' }))
    this.table = this.root.appendChild(html('div', { class: 'rows', hidden: '', tabindex: 0, role: 'region', 'aria-label': `${spec.title || 'chart'} as a table` }))
    this.controls()
    el.append(this.root)
  }
  controls() {
    const { spec, tools } = this, button = (text, title, act) => {
      const b = tools.appendChild(html('button', { type: 'button', title }, text)); b.onclick = () => { act(b); this.redraw() }; return b
    }
    this.reset = button('whole range', 'double click, or key 0', () => { this.range = null })
    this.reset.hidden = true
    if (spec.tools.includes('overlay')) this.toggle('overlay runs', 'each run begins at step 0', () => spec.overlay, v => { spec.overlay = v; this.range = null; this.names() })
    if (spec.tools.includes('smooth')) {
      const label = tools.appendChild(html('label', { title: 'weight of the past; 0.98 looks back about 50 steps' }, 'smoothing '))
      const slider = label.appendChild(html('input', { type: 'range', min: 0, max: 0.999, step: 0.001, value: this.beta }))
      const out = label.appendChild(html('output', {}, trim(this.beta.toFixed(3))))
      slider.oninput = () => { this.beta = +slider.value; out.textContent = trim(this.beta.toFixed(3)); this.smooth(); this.redraw() }
    }
    if (spec.tools.includes('log_x')) this.toggle('log x', 'logarithmic steps', () => spec.log_x, v => { spec.log_x = v; this.range = null })
    if (spec.tools.includes('log_y')) this.toggle('log y', 'logarithmic values', () => spec.log_y, v => { spec.log_y = v })
    this.toggle('table', 'the values as a table', () => !this.table.hidden, v => { this.table.hidden = !v })
  }
  toggle(text, title, get, set) {
    const b = this.tools.appendChild(html('button', { type: 'button', title, 'aria-pressed': !!get() }, text))
    b.onclick = () => { set(!get()); b.setAttribute('aria-pressed', !!get()); this.redraw() }
  }
  // Exact if all steps are there, else about right until Python has answered
  smooth() {
    for (const line of this.spec.lines) if (line.source) {
      const { source } = line, raw = this.spec.lines[source.of]?.points, recorded = this.beta == this.spec.smoothing, all = raw?.whole()
      line.points = recorded ? line.recorded : smoothed(all ? raw : source, this.beta, all ? 1 : source.k)
      line.about = !recorded && !all && source.k > 1
    }
  }

  steps() { return this.shown().filter(line => line.kind !== 'dots' && line.points.n) }
  // The values beside a step are those of this step, so the crosshair stands at the nearest step that is here
  snap(x) {
    if (x === null || !this.spec.whole || this.spec.overlay) return x
    let best = null
    for (const { points: p, held } of this.steps()) {
      if (held) return x
      const i = p.first(x)
      for (const k of [i - 1, i]) if (k >= 0 && k < p.n && (best === null || Math.abs(p.x[k] - x) < Math.abs(best - x))) best = p.x[k]
    }
    return best ?? x
  }

  // -- what is shown: lines of one group share a name
  group(line) { return this.spec.overlay ? this.spec.runs[line.run]?.name ?? line.name : line.name }
  color(line) { return safe(this.spec.overlay && this.spec.runs[line.run] ? this.spec.runs[line.run].color : line.color) }
  shift(line) { return this.spec.overlay && this.spec.runs[line.run] ? this.spec.runs[line.run].start : 0 }
  lines() { return this.spec.lines.filter(line => !(this.spec.overlay && line.kind === 'faint')) }
  shown() { return this.lines().filter(line => !this.hidden.has(this.group(line))) }
  groups() {
    const found = new Map()
    for (const line of this.lines()) { const name = this.group(line); found.has(name) ? found.get(name).push(line) : found.set(name, [line]) }
    return [...found]
  }
  fx(v) { return this.spec.log_x ? Math.log10(v) : v }
  fy(v) { return this.spec.log_y ? Math.log10(v) : v }
  back(v) { return this.spec.log_x ? 10 ** v : v }
  format(x) { return (FORMATS[this.spec.x_format] ?? number)(x) }
  value(line, x) {
    const { points: p } = line, i = x === null ? p.n - 1 : p.at(x + this.shift(line), line.kind === 'dots' || line.held)
    return i < 0 ? null : p.y[i]
  }
  // the line of a group that has a value there, and the value
  find(lines, x) {
    if (x === null) { const line = lines[lines.length - 1]; return [line, this.value(line, null)] }
    for (let i = lines.length - 1; i >= 0; i--) { const v = this.value(lines[i], x); if (v !== null) return [lines[i], v] }
    return [null, null]
  }
  valueOf(lines, x) { return this.find(lines, x)[1] }
  // "≈" before a value that may be another in Python: of a neighboring step, or of means
  text(lines, x) {
    const [line, v] = this.find(lines, x), at = x === null || !line ? null : x + this.shift(line)
    const near = at !== null && this.spec.whole && !line.held && (line.some || line.kind !== 'dots') && !line.points.has(Math.round(at))
    return (near || line?.about ? '≈ ' : '') + number(v)
  }

  // -- scales
  extent() {
    let lo = Infinity, hi = -Infinity
    for (const line of this.spec.lines) {
      const p = line.points, by = this.shift(line), a = this.spec.log_x ? p.first(by + 1e-30) : 0
      if (a < p.n) { lo = Math.min(lo, this.fx(p.x[a] - by)); hi = Math.max(hi, this.fx(p.x[p.n - 1] - by)) }
    }
    for (const m of this.spec.marks) if (m.x > 0 || !this.spec.log_x) { lo = Math.min(lo, this.fx(m.x)); hi = Math.max(hi, this.fx(m.x)) }
    if (this.spec.x_range && !this.spec.overlay) [lo, hi] = this.spec.x_range.map(v => this.fx(v))
    if (lo === Infinity) return [0, 1]
    return lo < hi ? [lo, hi] : [lo - 0.5, hi + 0.5]
  }
  // Spikes of faint lines, and those of the first tenth if the chart is `robust`, may leave the picture.
  heights(x0, x1) {
    const { spec } = this, fixed = spec.y_range
    if (fixed && !this.range && !spec.overlay && !this.hidden.size && !(spec.log_y && fixed[0] <= 0) && !spec.log_y === !spec.logs) return fixed.map(v => this.fy(v))
    let lo = Infinity, hi = -Infinity, first = -Infinity
    const early = spec.robust && !this.range && !spec.log_y ? x0 + 0.1 * (x1 - x0) : x0
    const shown = this.shown(), near = shown.filter(line => !line.beyond)
    for (const line of near.length ? near : shown) {
      const p = line.points, by = this.shift(line), a = Math.max(0, p.first(this.back(x0) + by) - 1), b = Math.min(p.n, p.first(this.back(x1) + by) + 1)
      const stride = line.kind === 'faint' ? Math.ceil((b - a) / 3000) : 1, some = []
      let most = -Infinity
      for (let i = a; i < b; i += stride) {
        const v = p.y[i]
        if (!Number.isFinite(v) || spec.log_y && v <= 0) continue
        lo = Math.min(lo, this.fy(v))
        if (this.fx(p.x[i] - by) < early && 10 * i < p.n && line.kind !== 'dots') { first = Math.max(first, v); continue }
        if (line.kind === 'faint') some.push(v); else most = Math.max(most, v)
      }
      if (some.length) { some.sort((p, q) => p - q); most = some[some.length - 1 - Math.floor(some.length / 100)] }
      if (most > -Infinity) hi = Math.max(hi, this.fy(most))
    }
    for (const m of spec.marks) if (Number.isFinite(this.fy(m.y)) && !this.range) { lo = Math.min(lo, this.fy(m.y)); hi = Math.max(hi, this.fy(m.y)) }
    if (lo === Infinity) return [0, 1]
    hi = Math.max(hi, lo)
    // the first tenth may take as much room as the rest
    if (first > hi) hi = Math.min(first, hi > lo ? lo + 2 * (hi - lo) : first)
    const pad = (hi - lo || Math.abs(lo) || 1) * 0.06
    return [lo - pad, hi + pad]
  }
  // At most four points for each column of pixels: first, lowest, highest and last
  outline(line, s) {
    const p = line.points, by = this.shift(line), a = Math.max(0, p.first(this.back(s.x0) + by) - 1), b = Math.min(p.n, p.first(this.back(s.x1) + by) + 1)
    const dense = b - a > 3 * (s.right - this.left)
    let path = '', pen = 'M', i = a
    const to = k => {
      const x = s.px(p.x[k] - by), y = s.py(p.y[k])
      if (!Number.isFinite(x) || !Number.isFinite(y)) { pen = 'M'; return }
      path += `${pen}${x.toFixed(1)},${Math.max(-1e4, Math.min(1e4, y)).toFixed(1)}`; pen = 'L'
    }
    while (i < b) {
      if (!dense) { to(i++); continue }
      const column = Math.floor(s.px(p.x[i] - by))
      let min = i, max = i, j = i
      for (; j < b && Math.floor(s.px(p.x[j] - by)) === column; j++) { if (p.y[j] < p.y[min]) min = j; if (p.y[j] > p.y[max]) max = j }
      for (const k of [...new Set([i, min, max, j - 1])].sort((p, q) => p - q)) to(k)
      i = Math.max(j, i + 1)
    }
    return path
  }

  // -- drawing
  draw() {
    const W = this.W = this.plot.clientWidth, { spec } = this
    if (W < 80) return
    const narrow = W <= NARROW, h = (narrow ? 200 : spec.height) + TOP - 8, gap = this.gap = narrow || !this.groups().length ? 14 : Math.min(Math.max(130, 7 * Math.max(...spec.lines.map(line => line.name.length)) + 90), Math.max(260, 0.4 * W))
    const right = W - gap, [x0, x1] = this.range ?? this.extent(), [y0, y1] = this.heights(x0, x1)
    const px = v => this.left + (this.fx(v) - x0) / (x1 - x0) * (right - this.left), py = v => TOP + (y1 - this.fy(v)) / (y1 - y0) * (h - TOP)
    const ys = shortLabels(spec.log_y ? logTicks(y0, y1, 5) : linearTicks(y0, y1, Math.max(3, h / 40)))
    this.left = Math.max(LEFT, ...ys.map(([, text]) => 12 + 6.8 * text.length))
    const s = this.scale = { x0, x1, y0, y1, ys, right, h, px, py, narrow, inverse: p => this.back(x0 + (p - this.left) / (right - this.left) * (x1 - x0)) }
    const epochs = spec.log_x || spec.overlay ? [] : spec.epochs
    const bottom = h + (epochs.length ? 40 : 24)
    const g = this.g = svg('svg', { height: bottom, viewBox: `0 0 ${W} ${bottom}`, 'aria-hidden': 'true' })
    const clip = `cbnb-clip-${Math.random().toString(36).slice(2)}`
    g.appendChild(svg('clipPath', { id: clip })).append(svg('rect', { x: this.left - 4, y: TOP - 4, width: right - this.left + 8, height: h - TOP + 4 }))
    this.axes(g, s, epochs)
    const curves = g.appendChild(svg('g', { 'clip-path': `url(#${clip})` }))
    if (spec.band && (spec.band[0] > 0 || !spec.log_x)) { const [a, b] = spec.band.map(px); curves.append(svg('rect', { class: 'band', x: a, y: TOP, width: Math.max(b - a, 0), height: h - TOP })) }
    if (!spec.overlay) for (const x of spec.borders) if (Number.isFinite(px(x))) curves.append(svg('path', { class: 'border', d: `M${px(x)},${TOP}V${h}` }))
    for (const line of this.shown()) this.curve(curves, line, s)
    if (!spec.overlay) this.marks(g, curves, s)
    if (!this.shown().some(line => line.points.n)) g.append(svg('text', { class: 'none', x: (this.left + right) / 2, y: (TOP + h) / 2, 'text-anchor': 'middle' }, 'no values yet'))
    if (this.brush) g.append(svg('rect', { class: 'brush', x: Math.min(...this.brush), y: TOP, width: Math.abs(this.brush[1] - this.brush[0]), height: h - TOP }))
    this.crosshair(g, curves, s, epochs)
    g.append(svg('rect', { class: spec.picks ? 'hit picks' : 'hit', x: this.left, y: 0, width: Math.max(right - this.left, 0), height: h }))
    this.plot.querySelector('svg')?.remove(); this.plot.prepend(g)
    globalThis.cbnbLive?.get(spec.asks)?.want(this)    // steps that are not here, see live_chart.js
    this.place(s); this.reset.hidden = !this.range; this.title.textContent = spec.title
    if (!this.table.hidden) this.fill()
  }
  axes(g, s, epochs) {
    const { spec } = this, many = Math.max(2, Math.floor((s.right - this.left) / 90)), { x0, x1, h, right } = s
    const flag = this.flagAt(s)
    yTicks(g, s.ys, s.py, this.left, s.right)
    for (const [v, text, strong] of spec.log_x ? logTicks(x0, x1, many) : linearTicks(x0, x1, many, spec.whole)) {
      const x = Math.round(s.px(v)) + 0.5
      if (spec.log_x && strong) g.append(svg('path', { class: 'grid', d: `M${x},${TOP}V${h}` }))
      g.append(svg('path', { class: 'base', d: `M${x},${h}v4` }))
      if (text && Math.abs(x - flag.x) > flag.half + 3.4 * text.length + 4) g.append(svg('text', { x, y: h + 17, 'text-anchor': 'middle' }, text))
    }
    g.append(svg('path', { class: 'base', d: `M${this.left},${h + 0.5}H${right}` }))
    if (spec.x_label === 'step' || epochs.length) g.append(svg('text', { class: 'axis', x: this.left - 8, y: h + 17, 'text-anchor': 'end' }, spec.x_label))
    else if (spec.x_label) g.append(svg('text', { class: 'axis', x: s.narrow ? right : right + 12, y: s.narrow ? h - 6 : h + 17, 'text-anchor': s.narrow ? 'end' : 'start' }, spec.x_label))
    if (spec.y_label) g.append(svg('text', { class: 'axis', x: this.left - 8, y: 10, 'text-anchor': 'start' }, spec.y_label))
    if (!epochs.length) return
    const inside = epochs.filter(([x]) => this.fx(x) >= x0 - 1e-9 && this.fx(x) <= x1 + 1e-9), every = inside.length <= many ? 1 : niceStep(inside.length / many)
    // many fits of few epochs have many epochs of the same number
    const labeled = inside.filter(([, n]) => n % every === 0), stride = Math.max(1, Math.ceil(labeled.length / many))
    for (let i = 0; i < labeled.length; i += stride) {
      const [x, n] = labeled[i], at = Math.round(s.px(x)) + 0.5
      g.append(svg('path', { class: 'grid', d: `M${at},${TOP}V${h}` }), svg('text', { x: at, y: h + 34, 'text-anchor': 'middle' }, String(n)))
    }
    g.append(svg('text', { class: 'axis', x: this.left - 8, y: h + 34, 'text-anchor': 'end' }, 'epoch'))
  }
  curve(curves, line, s) {
    const path = this.outline(line, s), color = this.color(line), dim = this.near && this.near !== this.group(line) ? ' dim' : '', p = line.points
    if (line.kind === 'line') curves.append(svg('path', { class: 'halo', d: path }))
    curves.append(svg('path', { class: `${line.kind}${line.dash ? ' ' + line.dash : ''}${dim}`, d: path, style: `stroke:${color}` }))
    if (line.kind === 'dots' && 11 * p.n < s.right - this.left || p.n === 1) for (let i = 0; i < p.n; i++) this.dot(curves, line, s, i, dim)
  }
  dot(curves, line, s, i, dim = '') {
    const x = s.px(line.points.x[i] - this.shift(line)), y = s.py(line.points.y[i])
    if (Number.isFinite(x) && Number.isFinite(y)) curves.append(svg('circle', { class: `dot${dim}`, cx: x, cy: y, r: 4, style: `fill:${this.color(line)}` }))
  }
  // Pixels that names should not cover: those of the curves, and of the dashed line at a strong mark
  drawn(s) {
    const found = [], { spec } = this
    for (const line of this.shown()) if (line.kind !== 'faint' && line.points.n <= 2000) for (let i = 0; i < line.points.n; i++) found.push([s.px(line.points.x[i] - this.shift(line)), s.py(line.points.y[i])])
    for (const m of spec.marks) if (m.strong) for (let y = TOP; y < s.h; y += 8) found.push([s.px(m.x), y])
    return found
  }
  // Suggestions have a point and a name, events a line from the top
  marks(g, curves, s) {
    const taken = [], inside = x => this.fx(x) >= s.x0 - 1e-9 && this.fx(x) <= s.x1 + 1e-9
    const drawn = this.spec.marks.length ? this.drawn(s) : []
    for (const m of [...this.spec.marks].sort((a, b) => !!b.strong - !!a.strong)) {
      if (!inside(m.x) || !Number.isFinite(s.py(m.y))) continue
      const x = s.px(m.x), y = Math.min(Math.max(s.py(m.y), TOP), s.h), color = m.faint ? 'var(--cbnb-quiet)' : safe(m.color), wide = 6.6 * m.name.length + 14
      if (m.strong) curves.append(svg('path', { class: 'strong', d: `M${x},${TOP}V${s.h}`, style: `stroke:${color}` }))
      curves.append(svg('circle', { class: 'dot', cx: x, cy: y, r: m.strong ? 5.5 : 4.5, style: `fill:${color}` }))
      const cost = ([left, dy]) => {
        const a = left ? x - wide : x, b = a + wide, at = y + dy
        return (a < this.left || b > s.right || at < TOP + 4 || at > s.h - 4) * 99 + taken.filter(([c, d, e]) => c < b && a < d && Math.abs(e - at) < 15).length * 50 + drawn.some(([c, d]) => a < c && c < b && Math.abs(d - at) < 9) * 20 + Math.abs(dy) / 20
      }
      const [left, dy] = [-12, 14, -28, 30, -44, 46, -60, 62, -76, 78].flatMap(dy => [[false, dy], [true, dy]]).reduce((best, place) => cost(place) < cost(best) ? place : best)
      taken.push([left ? x - wide : x, (left ? x - wide : x) + wide, y + dy])
      g.append(svg('text', { class: `mark${m.strong ? ' strong' : ''}${m.faint ? ' quiet' : ''}`, x: left ? x - 9 : x + 9, y: y + dy + 4, 'text-anchor': left ? 'end' : 'start' }, m.name))
    }
    // signs that would cover each other share one, with their number
    const piles = []
    for (const e of this.spec.events.filter(e => inside(e.x)).sort((a, b) => a.x - b.x)) {
      const x = s.px(e.x), spot = g.appendChild(svg('g', { class: `event ${e.kind}` })), pile = piles[piles.length - 1]
      spot.append(svg('path', { d: `M${x},${TOP - 2}V${s.h}` }))
      if (x - pile?.x < 17) pile.events.push(e)
      else piles.push({ x, spot, events: [e] })
    }
    for (const { x, spot, events } of piles) spot.append(svg('circle', { cx: x, cy: TOP - 9, r: 8 }), svg('text', { x, y: TOP - 5, 'text-anchor': 'middle' }, events[1] ? events.length : GLYPHS[events[0].kind] ?? '•'), svg('title', {}, events.map(e => e.text).join('; ')))
  }
  flagAt(s) {
    const x = this.snap(this.cursor) ?? this.spec.chosen
    if (x == null || !(s.px(x) >= this.left - 1 && s.px(x) <= s.right + 1)) return { x: -1e4, half: 0 }
    const text = this.format(this.spec.whole ? Math.round(x) : x)
    return { x: Math.round(s.px(x)) + 0.5, half: 3.4 * text.length + 7, text, value: x }
  }
  crosshair(g, curves, s, epochs) {
    const { spec } = this, flag = this.flagAt(s)
    if (spec.chosen != null && !spec.overlay && Number.isFinite(s.px(spec.chosen))) curves.append(svg('path', { class: 'chosen', d: `M${s.px(spec.chosen)},${TOP}V${s.h}` }))
    this.where.textContent = ''
    this.tell()
    if (!flag.half) return
    const box = g.appendChild(svg('g', { class: this.cursor === null ? 'flag fixed' : 'flag' }))
    if (this.cursor !== null) box.append(svg('path', { class: 'cursor', d: `M${flag.x},${TOP}V${s.h}` }))
    for (const line of this.shown()) {
      const i = line.points.at(flag.value + this.shift(line), line.kind === 'dots' || line.held)
      if (i >= 0 && line.kind !== 'faint') this.dot(curves, line, s, i)
    }
    box.append(svg('rect', { x: flag.x - flag.half, y: s.h + 4, width: 2 * flag.half, height: 18, rx: 3 }), svg('text', { x: flag.x, y: s.h + 17, 'text-anchor': 'middle' }, flag.text))
    this.where.textContent = this.placeWords(flag.value, epochs)
  }
  placeWords(x, epochs = this.spec.epochs) {
    const words = [`${this.cursor === null && this.spec.chosen != null ? 'chosen: ' : ''}${this.spec.x_label} ${this.format(this.spec.whole ? Math.round(x) : x)}${this.cursor !== null && x !== this.cursor ? `, nearest of the ${this.steps()[0].points.n} here` : ''}`]
    const next = epochs.find(([end]) => end >= x)
    if (next) words.push(`epoch ${next[1]}`)
    const reach = this.scale ? 8 / (this.scale.right - this.left) * (this.scale.x1 - this.scale.x0) : 0
    for (const e of this.spec.events) if (Math.abs(this.fx(e.x) - this.fx(x)) <= reach) words.push(e.text)
    return words.join(', ')
  }
  // The settings of the run whose line is nearest to the mouse
  tell() {
    const about = this.near && this.spec.details?.[this.near]
    this.detail.hidden = !about
    if (!about) return
    this.detail.replaceChildren(html('b', {}, this.near))
    for (const [name, value, differs] of about) {
      const item = this.detail.appendChild(html('span', {}, `${name} `)); item.append(html(differs ? 'b' : 'i', {}, value))
    }
  }
  nearest(x, y) {
    if (!this.spec.details && !this.spec.overlay) return null
    let best = null, least = 24
    for (const line of this.shown()) {
      const v = this.value(line, x), away = v === null ? Infinity : Math.abs(this.scale.py(v) - y)
      if (away < least) { least = away; best = this.group(line) }
    }
    return best
  }

  // -- names at the ends of their lines, pushed apart
  names() {
    this.list.replaceChildren(...this.groups().map(([name, lines]) => {
      const line = lines.find(l => l.kind === 'line') ?? lines[0], about = this.spec.details?.[name]
      const b = html('button', { type: 'button', class: `${line.kind}${line.dash ? ' ' + line.dash : ''}`, title: `show or hide${about ? '; ' + about.map(([k, v]) => `${k} ${v}`).join(', ') : ''}` })
      b.append(html('i', { style: `color:${this.color(line)}` }), html('em', {}, name), html('b'))
      b.onclick = () => { this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name); this.emit('names', { hidden: [...this.hidden] }); this.redraw() }
      b.onpointerenter = () => { if (this.spec.details || this.spec.overlay) this.approach(name) }
      b.onpointerleave = () => this.approach(null)
      return b
    }))
  }
  place(s) {
    const x = this.snap(this.cursor) ?? this.spec.chosen ?? null, groups = this.groups(), spots = groups.map(([name, lines], i) => {
      const last = this.valueOf(lines, null), y = last === null || !Number.isFinite(last) || this.hidden.has(name) ? s.h : Math.min(Math.max(s.py(last), TOP + 8), s.h - 4)
      return { i, y: Number.isFinite(y) ? y : s.h }
    }).sort((a, b) => a.y - b.y)
    const each = Math.min(19, (s.h - TOP + 12) / Math.max(spots.length, 1))
    for (let k = 1; k < spots.length; k++) spots[k].y = Math.max(spots[k].y, spots[k - 1].y + each)
    let below = s.h
    for (const spot of spots.reverse()) { spot.y = Math.min(spot.y, below); below = spot.y - each }
    this.list.style.width = s.narrow ? '' : `${this.gap - 12}px`
    for (const { i, y } of spots) {
      const [name, lines] = groups[i], b = this.list.children[i]
      if (!b) continue
      b.style.top = `${y - 9}px`; b.lastChild.textContent = lines.every(l => !l.points.n) ? '' : this.text(lines, x)
      b.setAttribute('aria-pressed', !this.hidden.has(name)); b.classList.toggle('near', this.near === name)
    }
    const keys = `Arrow keys read values, plus and minus zoom, 0 shows the whole range${this.spec.picks ? ', Enter chooses' : ''}.`
    this.plot.setAttribute('aria-label', `${this.spec.title || 'chart'}: ${this.words(null)}. ${keys}`)
  }
  words(x) {
    const values = this.groups().filter(([name]) => !this.hidden.has(name)).map(([name, lines]) => `${name} ${this.text(lines, x)}`).join(', ')
    return x === null ? values : `${this.placeWords(x)}: ${values}`
  }
  fill() {
    const [x0, x1] = this.range ?? this.extent(), groups = this.groups(), table = html('table'), n = 20
    const row = (cells, tag) => { const tr = table.appendChild(html('tr')); cells.forEach(c => tr.append(html(tag, tag === 'th' ? { scope: 'col' } : {}, c))) }
    row([this.spec.x_label || 'x', ...groups.map(([name]) => name)], 'th')
    const seen = new Set()
    for (let k = 0; k <= n; k++) {
      let x = this.back(x0 + (x1 - x0) * k / n)
      if (this.spec.whole) x = this.snap(Math.round(x))
      if (seen.has(x)) continue
      seen.add(x); row([this.format(x), ...groups.map(([, lines]) => this.text(lines, x))], 'td')
    }
    this.table.replaceChildren(table)
  }

  // -- what you do
  point(x, y = null) {
    // a step is a whole number: what the flag says is what the values are of
    this.cursor = x !== null && this.spec.whole ? Math.round(x) : x
    this.approach(x === null || y === null ? null : this.nearest(x, y)); this.redraw()
    this.others?.(this, x)
  }
  approach(name) {
    if (name === this.near) return
    this.near = name; this.emit('near', { name }); this.redraw()
  }
  emit(what, detail) { this.root.dispatchEvent(new CustomEvent(`cbnb-${what}`, { detail, bubbles: true })) }
  zoom(x0, x1) {
    const [lo, hi] = this.extent()
    x0 = Math.max(x0, lo); x1 = Math.min(x1, hi)
    this.range = x0 <= lo && x1 >= hi || x1 - x0 < (hi - lo) * 1e-7 ? null : [x0, x1]; this.redraw()
  }
  zoomAt(x, by) { const [x0, x1] = this.range ?? this.extent(); this.zoom(x - (x - x0) * by, x + (x1 - x) * by) }
  choose(x, done) {
    this.spec.chosen = x; this.redraw()
    const now = performance.now()
    clearTimeout(this.later)
    const tell = () => { this.told = performance.now(); this.send?.({ type: 'pick', x, done }); this.emit('pick', { x, done }) }
    // ten messages a second while it is dragged, and one at the end
    if (done || now - (this.told ?? 0) > 100) tell(); else this.later = setTimeout(tell, 100)
  }
  listen() {
    const { plot, spec } = this, options = { signal: this.signal ?? undefined }
    const on = (type, f, more) => plot.addEventListener(type, f, { ...options, ...more })
    const at = e => Math.min(Math.max(e.clientX - plot.getBoundingClientRect().left, this.left), this.scale.right)
    const down = e => e.clientY - plot.getBoundingClientRect().top
    let dragging = false
    on('pointermove', e => {
      if (!this.scale) return
      if (e.target.closest?.('.names')) { if (!dragging && !this.brush) return }
      const x = this.scale.inverse(at(e))
      if (this.brush) this.brush[1] = at(e)
      if (dragging) this.choose(x, false)
      this.point(x, down(e))
    })
    on('pointerleave', () => this.point(null))
    on('pointerdown', e => {
      if (e.button || !e.target.closest?.('.hit')) return
      plot.setPointerCapture(e.pointerId); plot.focus({ preventScroll: true })
      if (spec.picks && !e.shiftKey) { dragging = true; this.choose(this.scale.inverse(at(e)), false) } else this.brush = [at(e), at(e)]
    })
    on('pointerup', e => {
      if (dragging) { dragging = false; this.choose(this.scale.inverse(at(e)), true); return }
      if (!this.brush) return
      const [a, b] = this.brush.map(p => this.fx(this.scale.inverse(p))), far = Math.abs(this.brush[1] - this.brush[0]) > 4
      this.brush = null
      if (far) this.zoom(Math.min(a, b), Math.max(a, b)); else this.redraw()
    })
    on('pointercancel', () => { this.brush = null; dragging = false; this.redraw() })
    on('dblclick', e => { if (!e.target.closest?.('.names')) { this.range = null; this.redraw() } })
    // Only once the chart has the focus, or with Ctrl: if you scroll past it, the page scrolls
    on('wheel', e => {
      if (!this.scale || !e.ctrlKey && !plot.contains(document.activeElement)) return
      e.preventDefault(); this.zoomAt(this.fx(this.scale.inverse(at(e))), 1.0016 ** e.deltaY)
    }, { passive: false })
    on('keydown', e => this.key(e))
    on('blur', () => this.point(null))
  }
  key(e) {
    if (e.target !== this.plot || e.altKey || e.metaKey || e.ctrlKey) return
    const [x0, x1] = this.range ?? this.extent(), here = this.fx(this.cursor ?? this.spec.chosen ?? this.back(x1))
    const step = this.spec.whole && !this.spec.log_x ? Math.max(1, Math.round((x1 - x0) / 200)) : (x1 - x0) / 200
    const to = { ArrowLeft: here - step * (e.shiftKey ? 10 : 1), ArrowRight: here + step * (e.shiftKey ? 10 : 1), Home: x0, End: x1 }[e.key]
    if (to !== undefined) { this.point(this.back(Math.min(Math.max(to, x0), x1))); this.said.textContent = this.words(this.snap(this.cursor)) }
    else if ('+=-'.includes(e.key)) this.zoomAt(here, e.key === '-' ? 1.5 : 1 / 1.5)
    else if (e.key === '0') { this.range = null; this.redraw() }
    else if (e.key === 'Enter' && this.spec.picks) this.choose(this.back(here), true)
    else if (e.key === 'Escape' && this.cursor !== null) this.point(null)
    else return
    // JupyterLab would take the keys as commands: 0 0 restarts the kernel
    e.preventDefault(); e.stopPropagation()
  }
}

// ---- charts with all their data

// Python leaves out what is empty
const BLANK = { title: '', x_label: '', y_label: '', tools: [], lines: [], marks: [], events: [], borders: [], epochs: [], runs: [] }

function withPoints(data) {
  const spec = { ...BLANK, ...data }
  for (const line of spec.lines) {
    line.kind ??= 'line'
    line.points = line.recorded = new Points(xsOf(line.x), floatsOf(line.y))
    if (line.source) { const { x, y, k = 1, of } = line.source; line.source = Object.assign(x ? new Points(xsOf(x), floatsOf(y)) : new Points(), { k, of }) }
  }
  spec.epochs = endsOf(spec.epochs)
  return spec
}

// Return [last step, number] of each epoch. Epochs of equal length come as [first step, steps between, first number, count]
const endsOf = ends => ends.length === 4 && !ends[0].length ? Array.from({ length: ends[3] }, (_, i) => [ends[0] + i * ends[1], ends[2] + i]) : ends

// ---- the table of epochs, with the same styles as in display/progress. All values are texts, as the table shows them.

const isNumber = text => text && Number.isFinite(+text)
function look(name, before, text) {
  if (/^(epoch|time)$/.test(name) || !isNumber(before) || !isNumber(text) || +before === +text) return null
  const up = +text > +before
  return /loss/i.test(name) ? up ? 'w' : 'b' : up ? 'up' : 'down'
}

// `rows`: [index, texts], ascending. A row of its own counts the omitted rows. `above(index)` returns the texts of an omitted row
export function epochTable(names, rows, best, above) {
  const table = html('table', { 'aria-label': 'losses and metrics of each epoch' })
  const head = table.appendChild(html('thead')).appendChild(html('tr')), body = table.appendChild(html('tbody'))
  for (const name of names) head.append(html('th', { scope: 'col' }, name))
  let next = 0, latest = []
  for (const [place, texts] of rows) {
    if (place > next) latest = [...above(place - 1) ?? []]
    if (place > next) body.appendChild(html('tr')).append(html('td', { colspan: names.length, style: 'text-align:left' }, `... ${place - next} more`))
    const tr = body.appendChild(html('tr', { class: place === best ? 'best' : null }))
    texts.forEach((text, i) => {
      const cell = tr.appendChild(html(i ? 'td' : 'th', i ? { class: look(names[i], latest[i], text) } : { scope: 'row' }))
      if (place === best && !i) cell.append(html('span', { role: 'img', 'aria-label': 'best epoch' }, '★'), ' ')
      cell.append(place === best ? html('b', {}, text) : text)
      if (isNumber(text)) latest[i] = text
    })
    next = place + 1
  }
  const n = rows.length, box = keepsKeys(html('div', { class: 'cbnb-epochs' }))
  if (n > 14) make(box, { class: 'cbnb-epochs long', style: 'max-height:300px;overflow:auto', tabindex: 0, role: 'region', 'aria-label': `all ${n} epochs` })
  box.append(table)
  return box
}

// `columns`: for each column, its texts separated by tabs, or the first of consecutive integers
function fullTable({ names, columns, n, best }) {
  const cells = columns.map(c => c.split ? c.split('\t') : Array.from({ length: n }, (_, i) => `${c + i}`))
  return epochTable(names, cells[0].map((_, i) => [i, cells.map(column => column[i])]), best)
}

// ---- small charts: a button for each, with its curve and its latest value. A click opens one below the buttons.

class SmallCharts {
  buttons = new Map(); open = null; chart = null; specs = []
  constructor(el) {
    const root = el.appendChild(keepsKeys(html('div', { class: 'cbnb-smalls' })))
    this.row = root.appendChild(html('div', { role: 'group', 'aria-label': 'other values' })); this.home = root.appendChild(html('div'))
  }
  // New values keep the buttons, so the focus stays, and the chart that is open
  set(specs) {
    this.specs = specs
    for (const [title, button] of this.buttons) if (!specs.some(spec => spec.title === title)) { button.remove(); this.buttons.delete(title) }
    for (const spec of specs) {
      if (!this.buttons.has(spec.title)) {
        const button = this.row.appendChild(html('button', { type: 'button', 'aria-pressed': 'false' }))
        button.onclick = () => { this.open = this.open === spec.title ? null : spec.title; this.draw() }
        this.buttons.set(spec.title, button)
      }
      this.fill(this.buttons.get(spec.title), spec)
    }
    this.draw()
  }
  fill(button, spec) {
    const line = spec.lines[spec.lines.length - 1], p = line.points, latest = p.n ? p.y[p.n - 1] : null, b = html('b', {}, latest === null ? '' : spec.title === 'learning rate' ? rate(latest) : number(latest))
    const picture = svg('svg', { viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true' })
    const d = outline(p), alone = d.endsWith('h.1')      // one value is a dot
    picture.append(svg('path', { d, fill: 'none', stroke: safe(line.color), 'stroke-width': alone ? 6 : 1.5, 'stroke-linecap': 'round', 'vector-effect': 'non-scaling-stroke', 'stroke-linejoin': 'round' }))
    button.replaceChildren(html('span', { title: spec.title }, spec.title), b, picture)
  }
  draw() {
    const spec = this.specs.find(each => each.title === this.open)
    for (const [title, button] of this.buttons) button.setAttribute('aria-pressed', title === this.open)
    if (this.chart && this.chart.spec.title === spec?.title) { Object.assign(this.chart.spec, spec); this.chart.names(); this.chart.redraw(); return }
    this.chart?.end()
    this.chart = spec ? new Chart(this.home, spec) : null
  }
}

// The path of points within 100 x 24; a gap where a value is not finite
function outline(p) {
  const ys = [...p.y.subarray(0, p.n)], finite = ys.filter(Number.isFinite), lo = Math.min(...finite), room = Math.max(...finite) - lo || 1, x0 = p.x[0], wide = p.x[p.n - 1] - x0 || 1
  let d = '', pen = 'M'
  for (let i = 0; i < p.n; i++) {
    if (!Number.isFinite(ys[i])) { pen = 'M'; continue }
    d += `${pen}${(2 + 96 * (p.x[i] - x0) / wide).toFixed(1)} ${(22 - 20 * (ys[i] - lo) / room).toFixed(1)}`; pen = 'L'
  }
  return finite.length === 1 ? 'M50 12h.1' : d
}

// `data`: { css, charts: specs, columns, table, small }. The table has all epochs of a fit, and replaces a short one. Charts with the same x share a crosshair.
KINDS.charts = (el, data) => {
  const box = el.appendChild(html('div', { class: 'cbnb-charts' })), charts = []
  const follow = (from, x) => { for (const chart of charts) if (chart !== from && chart.spec.x_label === from.spec.x_label) { chart.cursor = x; chart.redraw() } }
  for (const spec of data.charts) {
    const cell = box.appendChild(html('div', data.columns > 1 ? { style: `flex:1 1 ${Math.floor(1000 / data.columns)}px` } : {}))
    charts.push(new Chart(cell, withPoints(spec), { others: data.charts.length > 1 ? follow : null }))
  }
  if (data.table) el.closest('.cbnb-fit').querySelector('.cbnb-side').replaceChildren(fullTable(data.table))
  if (data.small?.length) new SmallCharts(el).set(data.small.map(withPoints))
  return charts
}
