// Items behind the cells of a confusion matrix, filtered by class and by loss. Needs no kernel.
// data: {classes, cells, ids, items: [{h, a, p, w, l}], before, after, style, picture, total, note, inPage}

const STEP = 24    // so many items at a time

function make(tag, props = {}, ...children) {
    const node = document.createElement(tag)
    for (const [name, value] of Object.entries(props)) {
        if (name in node && !name.includes('-')) node[name] = value
        else node.setAttribute(name, value)
    }
    node.append(...children)
    return node
}

const count = (n, word) => `${n.toLocaleString('en')} ${word}${n === 1 ? '' : 's'}`

function number(value) {
    if (value >= 1e38) return 'not finite'
    return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(Number(value.toPrecision(4))) : value.toExponential(2)
}

export function mount(element, data) {
    const state = { actual: null, predicted: null, which: 'all', order: 'high', least: 0, shown: STEP }
    const losses = data.items.map(item => item.l).filter(loss => loss !== null).sort((a, b) => a - b)
    const buttons = []

    // -- what is chosen

    function cellIs(item) {
        return (state.actual === null || item.a === state.actual) && (state.predicted === null || item.p === state.predicted)
    }
    function chosen() {
        const least = losses.length && state.least ? losses[Math.min(losses.length - 1, Math.floor(state.least / 100 * losses.length))] : -Infinity
        const found = data.items.filter(item => cellIs(item) && (item.l === null || item.l >= least)
            && (state.which === 'all' || item.w === (state.which === 'wrong')))
        const sign = { high: -1, low: 1 }[state.order]
        return sign && losses.length ? found.sort((a, b) => sign * (a.l - b.l)) : found.sort((a, b) => a.n - b.n)
    }
    function inAll() {    // how many items of the whole set are behind what is chosen
        if (!data.classes || state.which !== 'all' || state.least) return null
        if (state.actual === null && state.predicted === null) return data.total
        if (state.actual !== null && state.predicted !== null && state.actual in data.counts) return data.counts[state.actual][state.predicted] ?? 0
        return null
    }
    function said(found) {
        const name = i => data.classes[i]
        const which = [state.actual !== null && `actual ${name(state.actual)}`, state.predicted !== null && `predicted ${name(state.predicted)}`]
        const what = which.filter(Boolean).join(', ') || 'all items'
        const all = inAll(), cut = all !== null && all > found.length
        return `${what}: ${cut ? `${found.length} of ${count(all, 'item')} ${found.length === 1 ? 'is' : 'are'} in this page` : count(found.length, 'item')}`
    }

    // -- the parts of the page

    const status = make('div', { className: 'status', 'role': 'status', 'aria-live': 'polite' })
    const home = make('div', { className: 'cbnb-items' })
    const more = make('button', { type: 'button', className: 'more', onclick: () => { state.shown += STEP; draw() } })

    function draw() {
        const found = chosen()
        status.textContent = said(found)
        home.innerHTML = found.length ? data.before + found.slice(0, state.shown).map(item => item.h).join('') + data.after : ''
        more.hidden = found.length <= state.shown
        more.textContent = `show more: ${found.length - state.shown} left`
        for (const [button, i, j] of buttons) {
            const on = state.actual === i && state.predicted === j
            if (String(on) !== button.getAttribute('aria-pressed')) button.setAttribute('aria-pressed', on)
        }
        actual.value = state.actual ?? ''
        predicted.value = state.predicted ?? ''
        reset.disabled = state.actual === null && state.predicted === null && state.which === 'all' && !state.least
    }
    function set(changes) {
        Object.assign(state, { shown: STEP }, changes)
        draw()
    }
    function choice(label, options, onchange) {
        const select = make('select', { 'aria-label': label }, ...options.map(([value, text]) => make('option', { value, textContent: text })))
        select.onchange = () => onchange(select.value)
        return select
    }
    const number_or_null = value => value === '' ? null : Number(value)
    const names = (data.classes ?? []).map((name, i) => [i, name])
    const actual = choice('actual class', [['', 'any actual class'], ...names], value => set({ actual: number_or_null(value) }))
    const predicted = choice('predicted class', [['', 'any prediction'], ...names], value => set({ predicted: number_or_null(value) }))
    const which = choice('right or wrong', [['all', 'right and wrong'], ['wrong', '✗ wrong only'], ['right', '✓ right only']], value => set({ which: value }))
    const order = choice('order', [['high', 'highest loss first'], ['low', 'lowest loss first'], ['none', 'in the order of the set']], value => set({ order: value }))
    const least = make('input', { type: 'range', min: 0, max: 99, value: 0, 'aria-label': 'loss at least' })
    const leastText = make('span', { className: 'quiet', textContent: 'any' })
    least.oninput = () => {
        const value = losses[Math.min(losses.length - 1, Math.floor(least.value / 100 * losses.length))]
        leastText.textContent = Number(least.value) ? number(value) : 'any'
        least.setAttribute('aria-valuetext', leastText.textContent)
        set({ least: Number(least.value) })
    }
    const reset = make('button', { type: 'button', textContent: 'all items' })
    reset.onclick = () => {
        least.value = 0
        leastText.textContent = 'any'
        which.value = 'all'
        set({ actual: null, predicted: null, which: 'all', least: 0 })
    }

    // -- the matrix: a table of buttons, of which one can be reached by the tab key, and the others by the arrow keys

    function cellButton(i, j, [n, fill, ink]) {
        const button = make('button', {
            type: 'button', textContent: n.toLocaleString('en'), tabIndex: -1, 'aria-pressed': 'false',
            'aria-label': `actual ${data.classes[i]}, predicted ${data.classes[j]}: ${count(n, 'item')}`,
            title: `${data.classes[i]} → ${data.classes[j]}`,
        })
        button.style.background = fill
        button.style.color = ink
        button.onclick = () => {
            const on = state.actual === i && state.predicted === j
            set({ actual: on ? null : i, predicted: on ? null : j })
            reach(button)
        }
        buttons.push([button, i, j])
        return button
    }
    function reach(button) {
        for (const [other] of buttons) other.tabIndex = other === button ? 0 : -1
    }
    const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }
    function move(event) {
        if (!(event.key in MOVES)) return
        const [down, right] = MOVES[event.key], places = data.ids
        const here = buttons.find(([button]) => button === event.target)
        if (!here) return
        event.preventDefault()
        let i = places.indexOf(here[1]) + down, j = places.indexOf(here[2]) + right
        for (; i >= 0 && j >= 0 && i < places.length && j < places.length; i += down, j += right) {
            const next = buttons.find(([, a, p]) => a === places[i] && p === places[j])
            if (next) { reach(next[0]); next[0].focus(); return }
        }
    }
    function matrix() {
        const head = make('tr', {}, make('td'), ...data.ids.map(i => make('th', { scope: 'col', textContent: data.classes[i], title: data.classes[i] })))
        const rows = data.cells.map((row, r) => make('tr', {}, make('th', { scope: 'row', textContent: data.classes[data.ids[r]], title: data.classes[data.ids[r]] }),
            ...row.map((cell, c) => cell ? make('td', {}, cellButton(data.ids[r], data.ids[c], cell)) : make('td'))))
        const table = make('table', { onkeydown: move }, make('caption', { textContent: 'Rows: actual, columns: predicted. A cell shows its items.' }),
            make('thead', {}, head), make('tbody', {}, ...rows))
        if (buttons.length) buttons[0][0].tabIndex = 0
        return make('div', { className: 'cbnb-matrix' }, table)
    }

    const controls = [...(data.classes ? [actual, predicted] : []), ...(data.items.some(item => item.w !== null) ? [which] : []),
        ...(losses.length > 1 ? [order, make('label', { className: 'least' }, 'loss at least ', least, leastText)] : []), reset]
    const side = make('div', { className: 'side' })
    if (data.cells) side.append(matrix())
    if (data.picture) side.insertAdjacentHTML('beforeend', data.picture)
    const list = make('div', { className: 'list' }, make('div', { className: 'controls' }, ...controls), status, home, more)
    const root = make('div', { className: 'cbnb-results' }, side, list)
    if (data.note) root.append(make('div', { className: 'note', textContent: data.note }))
    root.onkeydown = event => event.stopPropagation()    // keys are not JupyterLab's commands
    // nor those of Notebook 7, which takes its keys earlier, except on an element with this attribute
    root.addEventListener('focusin', event => { event.target.dataset.lmSuppressShortcuts = '' })
    element.insertAdjacentHTML('beforeend', data.style)
    if (data.summary) element.append(make('div', { className: 'cbnb-results summary', textContent: data.summary }))
    element.append(root)
    draw()
}
