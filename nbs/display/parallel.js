// Parallel coordinates of a sweep: the line under the pointer is named, and a drag along an axis shows only the lines that cross it there. It stands behind `page.js`.

class Parallel {
  ranges = new Map(); all = []
  constructor(el, data) {
    this.data = data
    this.root = el.appendChild(html('div', { class: 'cbnb-parallel', tabindex: 0, role: 'region', 'aria-label': 'parallel coordinates of the runs' }))
    this.root.innerHTML = data.svg                    // Python has escaped its texts
    this.picture = this.root.firstElementChild
    this.said = this.root.appendChild(html('p', { role: 'status' }))
    this.lines = new Map([...this.picture.querySelectorAll('[data-run]')].map(line => [Number(line.dataset.run), line]))
    this.picture.addEventListener('pointermove', e => this.dragged ? this.drag(e) : this.point(e))
    this.picture.addEventListener('pointerdown', e => this.begin(e))
    this.picture.addEventListener('pointerup', () => this.end())
    this.picture.addEventListener('pointerleave', () => { if (!this.dragged) this.name(null) })
    this.whole = { xs: data.xs, view: this.picture.getAttribute('viewBox'), parts: [...this.picture.querySelectorAll('path, text')].map(part => [part, part.getAttribute('d'), Number(part.getAttribute('x')), Number(part.getAttribute('y'))]) }
    new ResizeObserver(() => this.fit(this.root.clientWidth)).observe(this.root)
    this.draw()
  }
  // In a narrow page the axes move together, and the labels keep their size. Each x of the picture is that of an axis, or near it
  fit(room) {
    const { xs, view, parts } = this.whole, [, , w, h] = view.split(' ').map(Number), side = xs[0]
    const width = Math.min(w, Math.max(room, 2 * side + 76 * (xs.length - 1)))
    if (!room || width === this.fitted) return
    this.fitted = width
    this.data.xs = xs.map((x, i) => side + i * (width - 2 * side) / Math.max(xs.length - 1, 1))
    const moved = x => { const i = xs.map((at, k) => [Math.abs(at - x), k]).sort((a, b) => a[0] - b[0])[0][1]; return this.data.xs[i] + x - xs[i] }
    const step = Math.min(130, (width - 102) / 2), ofKey = x => { const i = Math.floor((x - side) / 130); return width < w ? 2 + i * step + x - side - 130 * i : x }
    for (const [part, d, x, y] of parts) {
      if (d) part.setAttribute('d', d.replace(/([ML])(-?[\d.]+),([\d.]+)/g, (_, letter, at, down) => `${letter}${(down < 20 ? ofKey : moved)(Number(at)).toFixed(1)},${down}`))
      else part.setAttribute('x', (y < 20 ? ofKey : moved)(x).toFixed(1))
    }
    this.picture.setAttribute('viewBox', `0 0 ${width} ${h}`)
    this.picture.setAttribute('width', width)          // width and height are the shape of the picture
    this.picture.style.minWidth = `${Math.min(width, 700)}px`
    this.draw()
  }
  // the place of the pointer in the units of the picture
  at(e) {
    const box = this.picture.getBoundingClientRect(), [, , w, h] = this.picture.getAttribute('viewBox').split(' ').map(Number)
    return [(e.clientX - box.left) * w / box.width, (e.clientY - box.top) * h / box.height]
  }
  y(place) { const { top, height } = this.data; return top + height * (1 - place) }
  axis(x) {
    const near = this.data.xs.map((at, i) => [Math.abs(at - x), i]).sort((a, b) => a[0] - b[0])[0]
    return near[0] < 14 ? near[1] : null
  }
  passes(run) { return [...this.ranges].every(([i, [low, high]]) => { const v = this.data.places[run][i]; return v != null && v >= low && v <= high }) }
  point(e) {
    const [x, y] = this.at(e), { xs } = this.data, i = Math.max(1, xs.findIndex(at => at >= x)), share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    this.picture.style.cursor = this.axis(x) === null ? '' : 'ns-resize'
    let best = null, nearest = 12
    for (const run of this.lines.keys()) {
      const [a, b] = [this.data.places[run][i - 1], this.data.places[run][i]]
      if (a == null || b == null || !this.passes(run)) continue
      const away = Math.abs(this.y(a + (b - a) * share) - y)
      if (away < nearest) { nearest = away; best = run }
    }
    this.name(best)
  }
  name(run) {
    for (const [of, line] of this.lines) line.classList.toggle('near', of === run)
    if (run !== null) this.lines.get(run).parentNode.append(this.lines.get(run))
    const n = [...this.lines.keys()].filter(of => this.passes(of)).length
    this.said.textContent = run !== null ? this.data.texts[run] : this.ranges.size ? `${n} of ${this.lines.size} runs; click an axis to show all again`
      : 'point at a line for its run, drag along an axis to choose runs'
  }
  begin(e) {
    const [x, y] = this.at(e), i = this.axis(x)
    if (i === null) return
    e.preventDefault()
    this.picture.setPointerCapture(e.pointerId)
    this.dragged = [i, y]
    this.ranges.delete(i)
    this.draw()
  }
  drag(e) {
    const [i, from] = this.dragged, { top, height } = this.data, places = [from, this.at(e)[1]].map(y => 1 - (y - top) / height)
    if (Math.abs(places[0] - places[1]) * height > 3) this.ranges.set(i, [Math.min(...places), Math.max(...places)])
    this.draw()
  }
  end() { this.dragged = null; this.draw() }
  draw() {
    for (const [run, line] of this.lines) line.classList.toggle('out', !this.passes(run))
    for (const box of this.picture.querySelectorAll('rect.chosen')) box.remove()
    for (const [i, [low, high]] of this.ranges)
      this.picture.append(svg('rect', { class: 'chosen', x: this.data.xs[i] - 5, y: this.y(high), width: 10, height: this.y(low) - this.y(high) }))
    this.name(null)
  }
}

KINDS.parallel = (el, data) => new Parallel(el, data)
