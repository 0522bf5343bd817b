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

addEventListener('load', () => {
  document.querySelector('.sidebar-drawer')?.setAttribute('aria-label', 'All pages');
  document.querySelector('.toc-drawer')?.setAttribute('aria-label', 'On this page');
  makeScrollable();
});
addEventListener('resize', makeScrollable);
