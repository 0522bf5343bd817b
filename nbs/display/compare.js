// Runs side by side: choosers of metric and x axis, the chart, notes, and a table that sorts.
// It stands behind `page.js`, and behind `chart.js` unless there is only the table, without `specs`.

// the place of a step on an axis that is given by some of its points: [batches done, place]
function placeOf(step, knots) {
  let i = 1
  while (i < knots.length - 1 && knots[i][0] < step + 1) i++
  if (knots.length < 2) return knots[0][1]
  const [a, x0] = knots[i - 1], [b, x1] = knots[i]
  return b === a ? x1 : x0 + (x1 - x0) * (step + 1 - a) / (b - a)
}

class Runs {
  hidden = new Set(); near = null; chart = null
  constructor(el, data) {
    Object.assign(this, { data, metric: data.metric, by: data.by, sort: { ...data.table.sort } })
    this.root = el.appendChild(keepsKeys(html('div', { class: 'cbnb-runs' })))
    if (data.specs) this.controls()
    this.tableIn(this.root)
    if (data.specs) this.chartAgain()
  }
  // -- the chart
  controls() {
    const { data } = this, bar = this.root.appendChild(html('div', { class: 'bar' }))
    const select = (label, values, now, act) => {
      const box = bar.appendChild(html('label', {}, `${label} `)), list = box.appendChild(html('select'))
      for (const value of values) list.append(html('option', { value, selected: value === now ? '' : null }, value))
      list.onchange = () => { act(list.value); this.chartAgain() }
    }
    select('metric', Object.keys(data.specs), this.metric, v => { this.metric = v })
    select('over', ['step', ...Object.keys(data.knots)], this.by, v => { this.by = v })
    const shown = bar.appendChild(html('span', { role: 'group', 'aria-label': 'runs shown' }, 'runs '))
    for (const [text, keep] of [['all', () => true], ['none', () => false]]) {
      const b = shown.appendChild(html('button', { type: 'button' }, text))
      b.onclick = () => { this.hidden = new Set(this.names().filter(name => !keep(name))); this.follow() }
    }
    this.place = this.root.appendChild(html('div'))
    this.notes = this.root.appendChild(html('ul', { class: 'notes' }))
    this.place.addEventListener('cbnb-names', () => { this.hidden = new Set(this.chart.hidden); this.mark() })
    this.place.addEventListener('cbnb-near', e => { this.near = e.detail.name; this.mark() })
  }
  names() { return this.data.table.rows.map(row => row.name) }
  spec() {
    const { data, by } = this, spec = { ...data.specs[this.metric], details: data.details }
    const knots = data.knots[by]
    spec.lines = spec.lines.map(line => ({ ...line, x: knots ? xsOf(line.x).map(step => placeOf(step, knots[line.name])) : line.x }))
    if (knots) Object.assign(spec, { x_label: data.labels[by], x_format: by, whole: false })
    return spec
  }
  chartAgain() {
    this.chart?.end(); this.place.replaceChildren();
    [this.chart] = KINDS.charts(this.place, { charts: [this.spec()], columns: 1 })
    this.notes.replaceChildren(...this.data.notes[this.metric].map(text => html('li', {}, text)))
    this.follow()
  }
  follow() {
    if (this.chart) { this.chart.hidden = new Set(this.hidden); this.chart.redraw() }
    this.mark()
  }

  // -- the table
  tableIn(root) {
    const { heads } = this.data.table
    const box = root.appendChild(html('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'table of runs' }))
    this.table = box.appendChild(html('table'))
    const row = this.table.appendChild(html('thead')).appendChild(html('tr'))
    this.heads = heads.map((head, i) => {
      const th = row.appendChild(html('th', { scope: 'col', class: head.number ? 'number' : null }))
      const b = th.appendChild(html('button', { type: 'button', title: `sort by ${head.text}` }))
      b.append(html('span', {}, head.text), html('i', { 'aria-hidden': 'true' }))
      b.onclick = () => { this.sort = { column: i, down: this.sort.column === i ? !this.sort.down : head.down }; this.fill() }
      return th
    })
    this.body = this.table.appendChild(html('tbody'))
    this.fill()
  }
  sorted() {
    const { column, down } = this.sort, rows = [...this.data.table.rows]
    if (column == null) return rows
    const key = row => row.keys[column]
    const order = (a, b) => typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true })
    // what is not there comes last, in both directions
    return rows.sort((a, b) => (key(a) == null) - (key(b) == null) || (key(a) == null ? 0 : (down ? -1 : 1) * order(key(a), key(b))))
  }
  fill() {
    const { heads } = this.data.table, { column, down } = this.sort
    this.heads.forEach((th, i) => {
      if (i === column) th.setAttribute('aria-sort', down ? 'descending' : 'ascending'); else th.removeAttribute('aria-sort')
      th.querySelector('i').textContent = i === column ? down ? '▼' : '▲' : ''
    })
    this.body.replaceChildren(...this.sorted().map(row => {
      const tr = html('tr')
      tr.run = row.name
      row.cells.forEach((text, i) => {
        const best = row.best.includes(i), cell = tr.appendChild(html(i ? 'td' : 'th', { class: heads[i].number ? 'number' : null, scope: i ? null : 'row' }))
        if (i || !this.data.specs) { cell.append(best ? html('b', {}, text) : text); return }
        const b = cell.appendChild(html('button', { type: 'button', title: `show or hide ${text} in the chart` }))
        b.append(html('i', { class: row.dash, style: `color:${row.color}` }), html('span', {}, text))
        b.onclick = () => { this.hidden.has(row.name) ? this.hidden.delete(row.name) : this.hidden.add(row.name); this.follow() }
      })
      if (this.data.specs) {
        tr.onpointerenter = () => { this.near = row.name; if (this.chart) { this.chart.near = row.name; this.chart.redraw() } this.mark() }
        tr.onpointerleave = () => { this.near = null; if (this.chart) { this.chart.near = null; this.chart.redraw() } this.mark() }
      }
      return tr
    }))
    this.mark()
  }
  mark() {
    for (const tr of this.body.rows) {
      tr.className = this.near === tr.run ? 'near' : ''
      tr.querySelector('th > button')?.setAttribute('aria-pressed', !this.hidden.has(tr.run))
    }
  }
}

KINDS.runs = (el, data) => new Runs(el, data)
