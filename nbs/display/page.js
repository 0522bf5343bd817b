// What the scripts of cbnb share: numbers, ticks, elements, and the points of lines. It stands before them in one ES module without imports.

// What `mount` can draw: a function of an element and data, by the `kind` of the data
const KINDS = {}
export function mount(el, data) { addStyle(data.css); return KINDS[data.kind](el, data) }

// ---- numbers, written as in Python: basics/text and display/look

const trim = s => s.includes('.') ? s.replace(/\.?0+$/, '') : s
// `toFixed` and `toExponential` of JavaScript take the larger neighbor of a value that is just between two, Python the even one
function rounded(v, how, decimals) {
  const [digits, power] = v[how](decimals + 30).split('e')
  if (!/50{29}$/.test(digits)) return v[how](decimals)
  const cut = digits.slice(0, -30).replace(/\.$/, '')
  return /[02468]$/.test(cut) ? cut + (power === undefined ? '' : `e${power}`) : v[how](decimals)
}
const fixed = (v, decimals) => rounded(v, 'toFixed', decimals)
const grouped = (v, decimals) => { const [whole, part] = fixed(v, decimals).split('.'); return whole.replace(/\B(?=(\d{3})+$)/g, ',') + (part ? `.${part}` : '') }
const short = (v, decimals) => { const [digits, power] = rounded(v, 'toExponential', decimals).split('e'); return `${trim(digits)}e${+power}` }

export function number(v) {
  if (v == null || Number.isNaN(v)) return '–'
  if (!Number.isFinite(v)) return v > 0 ? 'inf' : '-inf'
  const size = Math.abs(v)
  if (size >= 1e7 || size > 0 && size < 1e-3) return short(v, 3)
  return Number.isInteger(v) ? grouped(v, 0) : trim(grouped(v, Math.max(0, 3 - Math.floor(Math.log10(size)))))
}

export function plain(v, digits = 4) {
  if (!Number.isFinite(v) || !v) return String(v)
  const text = short(v, digits - 1), exponent = +text.split('e')[1]
  return exponent < -4 || exponent >= 4 ? text : trim(fixed(v, Math.max(0, digits - 1 - exponent)))
}
export const rate = v => plain(v, 2)

const FORMATS = { number, rate, count: v => grouped(Math.round(v), 0), epoch: v => trim(v.toFixed(2)), time: v => {
  const s = Math.round(v), two = n => String(n).padStart(2, '0')
  return s < 3600 ? `${two(Math.floor(s / 60))}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`
} }

// ---- ticks: [value, label, has a grid line]; which, and their labels, as in display/axes

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least))
  return [1, 2, 5, 10].map(m => m * power).find(step => step >= least * (1 - 1e-9))
}

const power = v => v === 0 || Math.abs(v) >= 1 && Math.abs(v) < 1e4 ? number(v) : short(v, 3)

// One way of writing for all: as many decimals as the step needs, or exponents
function labels(values, log) {
  if (!values.length) return []
  const sizes = values.map(Math.abs), largest = Math.max(...sizes), steps = values.slice(1).map((v, i) => v - values[i])
  const step = (steps.length ? Math.min(...steps) : largest) || 1, decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9))
  const powers = log && Math.min(...values) < 1e-3 || largest >= 1e7 || largest < 1e-3, texts = values.map(powers ? power : number)
  return !powers && !log && decimals < 7 || new Set(texts).size < texts.length ? values.map(v => grouped(v, decimals)) : texts
}

export function linearTicks(lo, hi, n, whole, log = false) {
  const step = niceStep(Math.max((hi - lo) / n, whole ? 1 : 0, 1e-300)), values = [], first = Math.ceil(lo / step - 1e-9)
  for (let k = first; k <= Math.min(Math.floor(hi / step + 1e-9), first + 2 * n); k++) values.push(k * step || 0)
  const texts = labels(values, log)
  return values.map((v, i) => [v, texts[i], true])
}

// `lo` and `hi` are exponents of ten; labels stand at decades, and at 1, 2 and 5 if there are few
export function logTicks(lo, hi, n) {
  const span = hi - lo, every = Math.max(1, Math.ceil(span / n)), ticks = []
  for (let k = Math.floor(lo); k <= Math.ceil(hi); k++) for (let m = 1; m < 10; m++) {
    const v = +`${m}e${k}`, at = Math.log10(v)
    if (at < lo - 1e-9 || at > hi + 1e-9 || m > 1 && span > 4) continue
    const named = k % every === 0 && (m === 1 || [2, 5].includes(m) && span < n / 3)
    ticks.push([v, named, named || m === 1])
  }
  const named = ticks.filter(([, is]) => is).map(([v]) => v), texts = labels(named, true)
  if (named.length < 3 && span <= 1) return linearTicks(10 ** lo, 10 ** hi, n, false, true)
  return ticks.map(([v, is, strong]) => [v, is ? texts[named.indexOf(v)] : '', strong])
}

// Labels of a y axis: exponents for large values whose labels are long, if they are shorter and distinct
export function shortLabels(ticks) {
  const texts = ticks.map(([, text]) => text), longest = texts => Math.max(...texts.map(text => text.length), 0)
  const powers = ticks.map(([v, text]) => text && Math.abs(v) >= 1e4 ? power(v) : text), named = powers.filter(text => text)
  const better = longest(texts) > 8 && longest(powers) < longest(texts) && new Set(named).size === named.length
  return better ? ticks.map(([v, , strong], i) => [v, powers[i], strong]) : ticks
}

// ---- elements

const XMLNS = 'http://www.w3.org/2000/svg'
function make(node, attrs, text) {
  for (const k in attrs) if (attrs[k] != null) node.setAttribute(k, attrs[k])
  if (text !== undefined) node.textContent = text
  return node
}
const svg = (tag, attrs, text) => make(document.createElementNS(XMLNS, tag), attrs, text)
const html = (tag, attrs, text) => make(document.createElement(tag), attrs, text)
// Notebook 7 runs the commands of keys before an element gets them, except if the element with the focus has this attribute
const keepsKeys = el => { el.addEventListener('focusin', e => { e.target.dataset.lmSuppressShortcuts = '' }); return el }
const safe = color => /^[\w#(),.%\s-]+$/.test(color ?? '') ? color : 'currentColor'

function addStyle(css) {
  const id = `cbnb-style-${css.length}`
  if (!document.getElementById(id)) document.head.append(html('style', { id }, css))
}

// The ticks of a y axis: grid lines from `left` to `right`, with labels at the left
function yTicks(g, ticks, py, left, right) {
  for (const [v, text, strong] of ticks) {
    const y = Math.round(py(v)) + 0.5
    if (strong) g.append(svg('path', { class: 'grid', d: `M${left},${y}H${right}` }))
    if (text) g.append(svg('text', { x: left - 8, y: y + 4, 'text-anchor': 'end' }, text))
  }
}

// ---- points in data: y as base64 of 32-bit floats or as numbers

const bytesOf = text => Uint8Array.from(atob(text), c => c.charCodeAt(0))
const floatsOf = y => Array.isArray(y) ? Float32Array.from(y) : new Float32Array(bytesOf(y).buffer)

// x comes as [first, step, count] if it is even, as differences `d` if it is whole, or as base64
function xsOf(x) {
  if (ArrayBuffer.isView(x)) return x
  if (Array.isArray(x)) return Float64Array.from({ length: x[2] }, (_, i) => x[0] + i * x[1])
  if (!x.d) return Float64Array.from(floatsOf(x))
  let sum = 0
  return Float64Array.from(x.d, step => sum += step)
}
