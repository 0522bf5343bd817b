// Predictions for the same items after each epoch, with a slider over the epochs. It stands behind `page.js`.
// data: {kind, css, images, before, after, epochs: [{said, cards}]}; Python has escaped the texts

KINDS.samples = (el, data) => {
  const root = el.appendChild(keepsKeys(html('div', { class: 'cbnb-items' }))), last = data.epochs.length - 1
  const bar = root.appendChild(html('div', { class: 'bar' })), home = html('div')
  const slider = html('input', { type: 'range', min: 0, max: last, value: last, 'aria-label': 'epoch' })
  if (last) bar.append(slider)
  const said = bar.appendChild(html('span', { role: 'status' }))
  root.append(home)
  const draw = () => {
    const { said: text, cards } = data.epochs[+slider.value]
    said.textContent = text
    slider.setAttribute('aria-valuetext', text)
    home.innerHTML = (data.before + cards.join('') + data.after).replace(/src="#(\d+)"/g, (_, i) => `src="${data.images[i]}"`)
  }
  slider.addEventListener('input', draw)
  draw()
}
