// A chart that grows while a cell runs. This stands behind `chart.js` in one module:
// the default export is an anywidget module (anywidget.dev/en/afm).

const floatsAt = (view, at, n) => new Float32Array(view.buffer.slice(view.byteOffset + at, view.byteOffset + at + 4 * n))    // may lie unaligned

// Without its kernel a page shows the chart, and no one hears of a click
const tell = (model, message) => { try { model.send(message) } catch (e) { console.debug('cbnb: no kernel', e) } }

// About `n` points with the same outline: the lowest and the highest of each few, as in display/live_chart
function thinned(p, n) {
  const out = new Points(), size = Math.ceil(2 * p.n / n), xs = [], ys = []
  for (let a = 0; a < p.n; a += size) {
    let low = a, high = a
    for (let i = a; i < Math.min(a + size, p.n); i++) { if (!(p.y[i] >= p.y[low])) low = i; if (!(p.y[i] <= p.y[high])) high = i }
    for (const i of low < high ? [low, high] : low > high ? [high, low] : [low]) { xs.push(p.x[i]); ys.push(p.y[i]) }
  }
  out.add(xs, ys)
  return out
}

// One for each model, however many views there are. Messages are counted, so a gap is noticed, and the whole asked for once.
class Store {
  seen = 0; asked = false; views = new Set()
  constructor(spec) { this.take(spec) }
  take(spec) {
    const before = this.spec
    this.spec = Object.assign(before ?? {}, spec)
    this.spec.lines = spec.lines.map((line, i) => ({ ...line, points: before?.lines?.[i]?.points ?? new Points() }))
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
    counts.forEach((n, i) => {
      const line = this.spec.lines[i]
      line.points.add(floatsAt(view, at, n), floatsAt(view, at + 4 * n, n)); at += 8 * n
      if (line.points.n > 16000) line.points = line.recorded = thinned(line.points, 8000)
    })
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
  rows = new Map(); names = []; n = 0; best = null; at = null
  take({ at, table } = {}) {
    this.at = at ?? this.at
    if (!table) return
    if (table.names) { this.names = table.names; this.rows.clear() }
    this.n = table.n; this.best = table.best
    for (const [place, texts] of table.rows) this.rows.set(place, texts.split('\t'))
  }
  // indices of the first, the best and the latest rows, eight at most, as in display/progress
  places() {
    const { n, best } = this, inside = best >= 1 && best < n - 6, all = n <= 8
    const found = [...Array(all ? n : inside ? 4 : 6)].map((_, i, { length }) => n - length + i)
    return (all ? found : [0, ...(inside ? [best] : []), ...found]).filter(place => this.rows.has(place))
  }
  show(slot, { at, table } = { at: this.at, table: this.n }) {
    const to = name => slot.closest('.cbnb-dashboard')?.querySelector(`.cbnb-${name} .widget-html-content`)
    if (at) to('status')?.replaceChildren(statusOf(at))
    if (table) to('table')?.replaceChildren(epochTable(this.names, this.places().map(place => [place, this.rows.get(place)]), this.best, place => this.rows.get(place)))
  }
}

// The chart needs no output of its own: it moves into each element of this class, over the picture that is there.
function moveIn(store, model, name) {
  const found = document.getElementsByClassName(name), homes = new Map()       // `found` is live: to look at it costs nothing
  const leave = (el, { home, gone }) => { gone.abort(); home.remove(); el.classList.remove('cbnb-moved-in'); homes.delete(el) }
  const beside = new Beside(), say = news => { beside.take(news); for (const el of found) beside.show(el, news) }
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
      // Python shows something else until a page has said that it can draw
      tell(model, { type: 'here' })
      return moveIn(store, model, `cbnb-slot-${model.get('slot')}`)
    },
    render({ model, el, signal }) { store.view(el, model, signal) },
  }
}
