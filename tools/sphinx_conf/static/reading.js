// What is wider or higher than its place can be scrolled with the keyboard, too: it takes the focus, and has a name.
function makeScrollable() {
  const named = { PRE: 'code', TABLE: 'table' };
  for (const part of document.querySelectorAll('article pre, article .cell_output, article .table-wrapper, article .output, article .output *')) {
    if (part.hasAttribute('tabindex') || (part.scrollWidth <= part.clientWidth && part.scrollHeight <= part.clientHeight)) continue;
    const { overflowX, overflowY } = getComputedStyle(part);
    if (![overflowX, overflowY].some(way => way === 'auto' || way === 'scroll') || part.querySelector('a, button, input, select')) continue;
    part.tabIndex = 0;
    if (!part.hasAttribute('role')) part.setAttribute('role', 'group');
    if (!part.hasAttribute('aria-label')) part.setAttribute('aria-label', `${named[part.tagName] ?? (part.querySelector('table') ? 'table' : 'output')}, can be scrolled`);
  }
}

// versions.json, at the root of the site, lists the versions that are there; with one of them there is nothing to choose.
async function offerVersions() {
  const label = document.querySelector('.versions');
  const select = label?.querySelector('select');
  if (!select || !location.protocol.startsWith('http')) return;
  const here = new URL(document.documentElement.dataset.content_root, document.baseURI);
  const root = select.dataset.version === 'stable' ? here : new URL('../', here);
  const answer = await fetch(new URL('versions.json', root)).catch(() => null);
  const versions = answer?.ok ? await answer.json() : [];
  select.append(...versions.map(({ name, place }) => new Option(name, new URL(place + select.dataset.page, root), false, name === select.dataset.version)));
  select.addEventListener('change', () => location.assign(select.value));
  label.hidden = versions.length < 2;
}

addEventListener('load', () => {
  offerVersions();
  // on a page with a base, such as that for wrong addresses, a link to a part of the page would lead away
  if (document.querySelector('base')) for (const link of document.querySelectorAll('a[href^="#"]')) link.href = location.pathname + link.getAttribute('href');
  document.querySelector('.sidebar-drawer')?.setAttribute('aria-label', 'All pages');
  document.querySelector('.toc-drawer')?.setAttribute('aria-label', 'On this page');
  makeScrollable();
});
addEventListener('resize', makeScrollable);
