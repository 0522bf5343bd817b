// The page of `learn.watch`: asks for the state of the fit each second, and draws its losses, the small charts of its other values, and its table. It stands behind `page.js` and `chart.js`.

class Watched {
  seen = null; gone = 0
  constructor(el, { steer }) {
    this.title = el.appendChild(html('h1'))
    this.said = el.appendChild(html('p', { role: 'status' }))
    this.bar = el.appendChild(html('progress', { max: 1, value: 0, 'aria-label': 'share of the fit' }))
    if (steer) {
      const bar = el.appendChild(html('div', { class: 'steer' }))
      this.pause = bar.appendChild(html('button', { type: 'button' }, 'Pause'))
      this.stop = bar.appendChild(html('button', { type: 'button' }, 'Stop'))
      this.pause.onclick = () => this.send(this.state?.paused ? 'resume' : 'pause')
      this.stop.onclick = () => this.send('stop')
    }
    this.fit = el.appendChild(html('div', { class: 'cbnb-fit' }))
    const main = this.fit.appendChild(html('div', { class: 'cbnb-main' }))
    this.main = main.appendChild(html('div')); this.smalls = new SmallCharts(main)
    this.side = this.fit.appendChild(html('div', { class: 'cbnb-side' }))
    this.ask()
  }
  async ask() {
    let state = null
    try {
      const answer = await fetch('data')
      if (answer.ok) state = await answer.json()
    } catch (e) { console.debug(e) }
    this.gone = state ? 0 : this.gone + 1
    if (this.gone > 2) {
      this.said.textContent = 'the program that trains does not answer: it has ended, or the watch is closed'
      if (this.stop) this.stop.disabled = this.pause.disabled = true
    }
    if (state) this.draw(state)
    if (this.gone < 30) setTimeout(() => this.ask(), 1000)
  }
  async send(what) {
    const answer = await fetch(what, { method: 'POST' })
    if (!answer.ok) this.said.textContent = await answer.text()
    else this.draw(await (await fetch('data')).json())
  }
  draw(state) {
    this.state = state
    document.title = this.title.textContent = state.name
    this.said.textContent = state.words
    this.bar.value = state.share ?? 0
    if (this.stop) {
      this.stop.disabled = this.pause.disabled = !state.running
      this.pause.textContent = state.paused ? 'Resume' : 'Pause'
    }
    if (this.seen === state.version || this.main.matches(':hover')) return      // a reader points at a value
    this.seen = state.version
    this.main.replaceChildren()
    if (state.chart) KINDS.charts(this.main, { charts: [state.chart], columns: 1 })
    this.smalls.set(state.small.map(withPoints))
    this.side.replaceChildren(...state.rows.length ? [epochTable(state.names, state.rows.map((row, i) => [i, row.split('\t')]), state.best)] : [])
  }
}

KINDS.watch = (el, data) => new Watched(el, data)
