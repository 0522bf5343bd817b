// The table of a lab book: columns that sort, a filter, pages of rows, small curves, and marks for `compare`. It stands behind `page.js`.

class Book {
  page = 0; all = false; width = 0; marked = new Set(); found = []; orders = {}
  constructor(el, data) {
    this.data = data
    this.sort = data.sort
    this.root = el.appendChild(keepsKeys(html('div', { class: 'cbnb-runs cbnb-book' })))
    const bar = this.root.appendChild(html('div', { class: 'bar' })), label = bar.appendChild(html('label', {}, 'filter '))
    this.input = label.appendChild(html('input', { type: 'search', placeholder: 'words, status=done, lr>0.001', spellcheck: 'false' }))
    this.input.oninput = () => { this.page = 0; this.select() }
    const button = (text, act) => { const b = bar.appendChild(html('button', { type: 'button' }, text)); b.onclick = act; return b }
    this.more = button('all columns', () => { this.all = !this.all; this.draw() })
    this.before = button('‹ previous', () => { this.page--; this.fill() })
    this.after = button('next ›', () => { this.page++; this.fill() })
    this.said = bar.appendChild(html('span', { role: 'status' }))
    const box = this.root.appendChild(html('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'runs of the lab book' }))
    this.table = box.appendChild(html('table'))
    this.box = box
    this.call = this.root.appendChild(html('div')).appendChild(html('code'))
    this.n = data.columns[0].values.length
    // as in `compare`, the best of each column 'best ...' is bold
    const best = ({ values, down }) => values.filter(v => typeof v === 'number').reduce((a, b) => a === null || (down ? b > a : b < a) ? b : a, null)
    this.best = data.columns.map(c => c.name.startsWith('best ') ? best(c) : null)
    this.select(); this.draw()
    new ResizeObserver(() => { if (Math.abs(box.clientWidth - this.width) > 1) this.draw() }).observe(box)
  }
  // a condition, such as `lr>0.001`, or a word that stands somewhere in the row
  test(word) {
    const [, name, sign, value] = word.match(/^(.+?)(<=|>=|=|<|>)(.+)$/) ?? []
    const column = name && this.data.columns.find(c => c.name.replaceAll(' ', '_').toLowerCase() === name)
    if (!column) return i => this.words(i).includes(word)
    const than = Number(value), isNumber = column.format !== 'text' && !Number.isNaN(than)
    return i => {
      const v = column.values[i]
      if (v == null) return false
      if (sign === '=') return isNumber ? v === than : String(v).toLowerCase() === value
      const order = isNumber ? v - than : String(v).toLowerCase() < value ? -1 : String(v).toLowerCase() > value ? 1 : 0
      return sign[0] === '<' ? order < 0 || sign[1] && order === 0 : order > 0 || sign[1] && order === 0
    }
  }
  words(i) {
    this.texts ??= []
    return this.texts[i] ??= this.data.columns.map(c => c.values[i]).filter(v => typeof v === 'string').join(' ').toLowerCase()
  }
  select() {
    const tests = this.input.value.toLowerCase().split(/\s+/).filter(word => word).map(word => this.test(word))
    this.found = this.order().filter(i => tests.every(is => is(i)))
    if (this.body) this.fill()
  }
  // all rows in the order of a column: sorted once, so that a key pressed in the filter sorts nothing
  order() {
    const { column, down } = this.sort
    return this.orders[`${column} ${down}`] ??= this.sorted(this.data.columns[column], down ? -1 : 1)
  }
  sorted({ values, format }, sign) {
    const texts = new Intl.Collator('en', { numeric: true })
    const order = (a, b) => typeof a === 'number' && typeof b === 'number' ? a - b : texts.compare(a, b)
    // runs without a value come last, in both directions; among numbers, a text is 'nan'
    const lacks = i => values[i] == null || format !== 'text' && typeof values[i] === 'string'
    return Array.from(values, (_, i) => i).sort((a, b) => lacks(a) - lacks(b) || (lacks(a) ? 0 : sign * order(values[a], values[b])) || a - b)
  }
  draw() {
    this.more.setAttribute('aria-pressed', this.all)
    this.width = this.box.clientWidth
    // a very narrow page has room for a value only without the curve and the status
    const narrow = !this.all && this.width && this.width < 420
    this.table.classList.toggle('narrow', narrow)
    this.shown = this.data.columns.map((c, i) => i).filter(i => this.all || this.data.columns[i].shown && !(narrow && this.data.columns[i].name === 'status' && i !== this.sort.column))
    this.drawTable()
    // the columns for which there is no room are left out from the right, the one that sorts last of all
    while (!this.all && this.width && this.shown.length > 3 && this.table.offsetWidth > this.width) {
      const fits = ([, th]) => th.offsetLeft + th.offsetWidth <= this.width, n = Math.max(3, Math.min(this.heads.filter(fits).length, this.shown.length - 1))
      const kept = this.shown.slice(0, n), { column } = this.sort
      if (this.shown.includes(column) && !kept.includes(column)) kept.splice(-1, 1, column)
      if (kept.length === this.shown.length) break
      this.shown = kept
      this.drawTable()
    }
    const hidden = this.data.columns.filter((c, i) => !this.shown.includes(i)).map(c => c.name)
    this.more.title = hidden.length ? `also ${hidden.join(', ')}` : ''
  }
  drawTable() {
    const row = html('tr')
    this.heads = this.shown.map(i => {
      const c = this.data.columns[i], th = row.appendChild(html('th', { scope: 'col', class: c.format === 'text' ? null : 'number' }))
      const b = th.appendChild(html('button', { type: 'button', title: `sort by ${c.name}` }))
      b.append(html('span', {}, c.name), html('i', { 'aria-hidden': 'true' }))
      b.onclick = () => { this.sort = { column: i, down: this.sort.column === i ? !this.sort.down : c.down }; this.page = 0; this.select() }
      if (!i) row.append(html('td', {}, 'compare'), html('td', { class: 'curve' }, 'training loss'))
      return [i, th]
    })
    const head = html('thead')
    head.append(row)
    this.body = html('tbody')
    this.table.replaceChildren(head, this.body)
    this.fill()
  }
  fill() {
    const { size, columns } = this.data, pages = Math.max(1, Math.ceil(this.found.length / size))
    this.page = Math.min(Math.max(this.page, 0), pages - 1)
    for (const [i, th] of this.heads) {
      const is = i === this.sort.column
      if (is) th.setAttribute('aria-sort', this.sort.down ? 'descending' : 'ascending'); else th.removeAttribute('aria-sort')
      th.querySelector('i').textContent = is ? this.sort.down ? '▼' : '▲' : ''
    }
    this.before.disabled = this.page === 0
    this.after.disabled = this.page === pages - 1
    this.said.textContent = `${FORMATS.count(this.found.length)} of ${FORMATS.count(this.n)} runs` + (pages > 1 ? `, page ${this.page + 1} of ${pages}` : '')
    this.body.replaceChildren(...this.found.slice(this.page * size, (this.page + 1) * size).map(at => this.row(at)))
    const ids = [...this.marked].sort((a, b) => a - b)
    this.call.textContent = ids.length ? `compare(${ids.map(id => `${this.data.of}[${id}]`).join(', ')})` : ''
  }
  row(at) {
    const { columns } = this.data, tr = html('tr'), id = columns[0].values[at]
    const mark = html('input', { type: 'checkbox', 'aria-label': `compare run ${id}`, checked: this.marked.has(id) ? '' : null })
    mark.onchange = () => { mark.checked ? this.marked.add(id) : this.marked.delete(id); this.fill(); this.body.querySelector(`[aria-label="compare run ${id}"]`).focus() }
    for (const i of this.shown) {
      const c = columns[i], v = c.values[at], text = v == null ? '' : c.format === 'text' || typeof v === 'string' ? String(v) : c.format === 'id' ? v : FORMATS[c.format](v)
      const cell = tr.appendChild(html(i ? 'td' : 'th', { class: c.format === 'text' ? null : 'number', scope: i ? null : 'row', title: c.format === 'text' && text.length > 30 ? text : null }))
      cell.append(typeof v === 'number' && v === this.best[i] ? html('b', {}, text) : text)
      if (c.name === 'status') cell.dataset.status = text
      if (!i) { tr.appendChild(html('td')).append(mark); tr.append(this.curve(at)) }
    }
    return tr
  }
  curve(at) {
    const cell = html('td', { class: 'curve' }), points = this.data.curves[at]
    if (points.length > 1) {
      const picture = cell.appendChild(svg('svg', { viewBox: `0 0 ${points.length - 1} 1`, preserveAspectRatio: 'none', 'aria-hidden': 'true' }))
      picture.append(svg('path', { d: [...points].map((c, x) => `${x ? 'L' : 'M'}${x},${(93 - (c.charCodeAt(0) - 35 - (c > '\\'))) / 93}`).join('') }))
    }
    return cell
  }
}

KINDS.book = (el, data) => new Book(el, data)
