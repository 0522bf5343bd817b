// A chart that grows while a cell runs. This stands behind `chart.js` in one module:
// the default export is an anywidget module (anywidget.dev/en/afm).

// Without its kernel a page shows the chart, and no one hears of a click
const tell = (model, message) => { try { model.send(message) } catch (e) { console.debug('cbnb: no kernel', e) } }

const floatsAt = (view, at, n) => new Float32Array(view.buffer.slice(view.byteOffset + at, view.byteOffset + at + 4 * n))    // may lie unaligned

// Indices of about `n` points with the same outline: the lowest and the highest of each few, as in display/live_chart
function outer(p, n) {
  const size = Math.ceil(2 * p.n / n), found = []
  for (let a = 0; a < p.n; a += size) {
    let low = a, high = a
    for (let i = a; i < Math.min(a + size, p.n); i++) { if (!(p.y[i] >= p.y[low])) low = i; if (!(p.y[i] <= p.y[high])) high = i }
    found.push(...new Set([Math.min(low, high), Math.max(low, high)]))
  }
  return found
}

// One for each model, however many views there are. Messages are counted, so a gap is noticed, and the whole asked for once.
class Store {
  seen = 0; asked = false; views = new Set()
  constructor(spec) { this.take(spec) }
  take(spec) {
    const before = this.spec
    const { lines = [] } = before ?? {}
    for (const name in before) delete before[name]    // charts hold the object; what it says no more is not set any more
    this.spec = Object.assign(before ?? {}, BLANK, spec)
    this.spec.lines = spec.lines.map((line, i) => ({ kind: 'line', ...line, points: lines[i]?.points ?? new Points() }))
    this.before = this.spec.lines
    for (const view of this.views) { view.names(); view.redraw() }
  }
  load(view) {
    const n = this.spec.lines.length, counts = this.spec.lines.map((_, i) => view.byteLength ? view.getUint32(4 * (i + 1), true) : 0)
    this.seen = view.byteLength ? view.getUint32(0, true) : 0; this.asked = false
    for (const line of this.spec.lines) line.points = line.recorded = new Points()
    this.add(view, counts, 4 * (n + 1))
  }
  add(view, counts, at = 0) {
    let xs
    counts.forEach((count, i) => {
      const n = Math.abs(count)
      // a negative number: the steps of the line before
      if (count >= 0) { xs = floatsAt(view, at, n); at += 4 * n }
      this.spec.lines[i].points.add(xs, floatsAt(view, at, n)); at += 4 * n
    })
    // lines over the same steps keep the same steps
    let before = null, places
    for (const line of this.spec.lines) {
      const p = line.points
      if (p.n <= 16000) continue
      if (!before || before.n !== p.n || before.x.some((x, i) => i < p.n && x !== p.x[i])) { before = p; places = outer(p, 8000) }
      line.points = line.recorded = new Points(Float64Array.from(places, i => p.x[i]), Float32Array.from(places, i => p.y[i]))
    }
    for (const view of this.views) view.redraw()
  }
  heard(message, [view], model) {
    if (message.s === this.seen) { this.seen++; this.add(view, message.n) }
    else if (message.s > this.seen && !this.asked) { this.asked = true; tell(model, { type: 'lost' }) }
  }
  set(layout) { Object.assign(this.spec, layout); for (const view of this.views) view.redraw() }
  // epochs that have ended, after the first `at`
  grow({ at, more }) { this.spec.epochs = [...this.spec.epochs.slice(0, at), ...endsOf(more)]; for (const view of this.views) view.redraw() }
  view(el, model, signal) {
    const view = new Chart(el, this.spec, { send: message => tell(model, message), signal })
    this.views.add(view); signal?.addEventListener('abort', () => this.views.delete(view))
    return view
  }
}

// ---- steps that a page does not have. Python has them all, and answers while its kernel runs. The charts of a finished fit ask, too.

// Add points that may lie between others, or replace others
function merge(p, xs, ys) {
  const x = new Float64Array(p.n + xs.length), y = new Float32Array(x.length)
  let i = 0, j = 0, k = 0
  for (; i < p.n || j < xs.length; k++) {
    const old = i < p.n ? p.x[i] : Infinity, now = j < xs.length ? xs[j] : Infinity
    if (old === now) i++
    if (now <= old) { x[k] = now; y[k] = ys[j++] } else { x[k] = old; y[k] = p.y[i++] }
  }
  Object.assign(p, { x, y, n: k })
}

// The charts of one model, and what they have asked for
class Asks {
  charts = new Map()
  constructor(model) { this.model = model }
  // the range whose steps a chart needs: all for another smoothing, those around the mouse, or those that are shown
  range(chart) {
    const { spec, scale: { x0, x1 }, cursor } = chart, lines = chart.steps(), about = spec.lines.find(line => line.about)
    if (!lines.length || !spec.whole || spec.overlay) return null
    if (about) return [about.points.x[0] - about.source.k, 1e15]
    if (cursor !== null && chart.snap(cursor) !== cursor) { const from = 256 * Math.floor(cursor / 256); return [from, from + 255] }
    const a = Math.ceil(x0), b = Math.floor(x1), few = ({ points: p }) => p.first(b + 1) - p.first(a) < Math.min(b - a + 1, 1000)
    return chart.range && !spec.log_x && lines.every(few) ? [a, b] : null
  }
  // One question at a time. The same one again after three seconds, as the fit may have gone on
  want(chart) {
    const range = this.range(chart), now = performance.now(), beta = chart.spec.lines.some(line => line.source) ? chart.beta : null
    if (!this.charts.has(chart)) this.charts.set(chart, { asked: new Map(), until: 0 })
    const mine = this.charts.get(chart), key = `${range} ${beta}`
    if (!range || now < mine.until || now < mine.asked.get(key)) return
    mine.asked.set(key, now + 3000); mine.until = now + 1000
    tell(this.model, { type: 'steps', range, beta })
  }
  heard({ steps, beta }, view) {
    for (const [chart, mine] of this.charts) {
      if (!chart.root.isConnected) { this.charts.delete(chart); continue }
      let at = 0
      steps.forEach((n, i) => {
        if (n < 0) return
        const line = chart.spec.lines[i], xs = floatsAt(view, at, n), ys = floatsAt(view, at + 4 * n, n)
        at += 8 * n
        if (!line.source || beta == chart.spec.smoothing) merge(line.recorded, xs, ys)
        else if (beta === chart.beta && !line.about) merge(line.points, xs, ys)
        else if (beta === chart.beta) { line.points = new Points(Float64Array.from(xs), ys); line.about = false }
      })
      mine.until = 0; chart.redraw()
    }
  }
}

// ---- bars, numbers and table beside the chart of a fit. The messages to the chart contain their values, and display/dashboard writes the same HTML.

function statusOf([epochs, nEpoch, batches, n, training, share, left, perSecond, loss, lr, mom, scale, word]) {
  const box = html('div', { class: 'cbnb-bars' }), now = html('div', { class: 'cbnb-now' })
  const bar = (name, part, words) => {
    const width = 100 * Math.min(part ?? 0, 1)
    box.append(html('i', { role: 'progressbar', 'aria-label': name, 'aria-valuenow': width.toFixed(0), style: `--w:${width.toFixed(1)}%` }), html('span', {}, words.filter(w => w).join(' · ')))
  }
  const say = (text, name) => { const span = now.appendChild(html('span')); if (name) span.append(html('b', {}, name)); span.append(text) }
  bar('epochs', share, [`${epochs} of ${nEpoch} epochs`, left != null && `${FORMATS.time(left)} left`, word])
  bar('batches', n && batches / n, [`batch ${batches}${n ? ` of ${n}` : ''}`, !training && 'validation', perSecond && `${FORMATS.count(perSecond)} samples/s`])
  for (const [name, v, how] of [['loss', loss, number], ['lr', lr, rate], ['momentum', mom, number]]) if (v != null) say(typeof v === 'string' ? v : how(v), name)
  if (scale) say(`planned lr × ${scale}`)
  box.append(now)
  return box
}

class Beside {
  rows = new Map(); names = []; n = 0; best = null; at = null; small = null
  constructor(store) { this.store = store }
  take({ at, table, small } = {}) {
    this.at = at ?? this.at; this.small = small ?? this.small
    if (!table) return
    if (table.names) { this.names = table.names; this.rows.clear() }
    this.n = table.n; this.best = table.best
    let last = 0     // a row that follows the one before comes without its index
    for (const row of table.rows) { const [place, texts] = Array.isArray(row) ? row : [last + 1, row]; this.rows.set(last = place, texts.split('\t')) }
  }
  // indices of the first, the best and the latest rows, eight at most, as in display/progress
  places() {
    const { n, best } = this, inside = best >= 1 && best < n - 6, all = n <= 8
    const found = [...Array(all ? n : inside ? 4 : 6)].map((_, i, { length }) => n - length + i)
    return (all ? found : [0, ...(inside ? [best] : []), ...found]).filter(place => this.rows.has(place))
  }
  show(slot, { at, table, small } = { at: this.at, table: this.n, small: this.small }) {
    const to = name => slot.closest('.cbnb-dashboard')?.querySelector(`.cbnb-${name} .widget-html-content`)
    if (at) to('status')?.replaceChildren(statusOf(at))
    if (table) to('table')?.replaceChildren(epochTable(this.names, this.places().map(place => [place, this.rows.get(place)]), this.best, place => this.rows.get(place)))
    const home = small && slot.querySelector(':scope > .cbnb-home')
    const { epochs, x_label, x_format, whole, width } = this.store.spec, same = { epochs, x_label, x_format, whole, width, height: 160, tools: ['log_y'] }
    if (home) (home.smalls ??= new SmallCharts(home)).set(structuredClone(small).map(spec => withPoints({ ...same, ...spec })))
  }
}

// The chart needs no output of its own: it moves into each element of this class, over the picture that is there.
function moveIn(store, model, name) {
  const found = document.getElementsByClassName(name), homes = new Map()       // `found` is live: to look at it costs nothing
  const leave = (el, { home, gone }) => { gone.abort(); home.remove(); el.classList.remove('cbnb-moved-in'); homes.delete(el) }
  const beside = new Beside(store), say = news => { beside.take(news); for (const el of found) beside.show(el, news) }
  let frame = 0
  const look = () => {
    frame = 0
    for (const [el, there] of homes) if (!el.isConnected) leave(el, there)
    for (const el of found) {
      // ipywidgets gives the handle of a slider no name
      el.closest('.cbnb-dashboard')?.querySelector('.cbnb-scale .noUi-handle:not([aria-label])')?.setAttribute('aria-label', 'learning rate, times the planned one')
      if (homes.has(el)) continue
      const home = el.appendChild(html('div', { class: 'cbnb-home' })), gone = new AbortController()
      el.classList.add('cbnb-moved-in'); homes.set(el, { home, gone }); store.view(home, model, gone.signal); beside.show(el)
    }
  }
  const watch = new MutationObserver(() => { frame ||= requestAnimationFrame(look) })
  watch.observe(document.body, { childList: true, subtree: true }); look()
  const whole = () => { const { beside } = model.get('spec'); if (beside) say(beside) }
  whole(); model.on('change:spec', whole)
  model.on('msg:custom', message => { if (message.beside) say(message.beside) })
  return () => { watch.disconnect(); cancelAnimationFrame(frame); for (const [el, there] of homes) leave(el, there) }
}

// Keys on the sliders and buttons around a chart are not commands of Notebook 7 either
const keepKeys = ({ target }) => { if (target.closest('.cbnb-dashboard, .cbnb-picker')) target.dataset.lmSuppressShortcuts = '' }

// Called once for each model, so the store is the model's. It must not wait: anywidget gives it two seconds.
// `css` comes from the loader in front of this module, see display/live_chart.
export default css => {
  let store
  return {
    initialize({ model }) {
      addStyle(css)
      document.addEventListener('focusin', keepKeys)    // once for a page, however often it is called
      store = new Store(model.get('spec'))
      const load = () => store.load(model.get('history') ?? new DataView(new ArrayBuffer(0)))
      load()
      model.on('change:history', load)
      model.on('change:spec', () => store.take(model.get('spec')))
      model.on('msg:custom', (message, buffers) => { if (message.set) store.set(message.set); if (message.ends) store.grow(message.ends); if (message.n) store.heard(message, buffers, model) })
      const all = globalThis.cbnbLive ??= new Map(), name = model.get('slot'), asks = new Asks(model)
      all.set(name, asks)
      model.on('msg:custom', (message, [view] = []) => { if (message.steps) asks.heard(message, view) })
      // Python shows something else until a page has said that it can draw
      tell(model, { type: 'here' })
      const leave = moveIn(store, model, `cbnb-slot-${name}`)
      return () => { all.delete(name); leave() }
    },
    render({ model, el, signal }) { store.view(el, model, signal) },
  }
}
