// What is wider than its place can be scrolled with the keyboard, too: it takes the focus, and has a name.
function makeScrollable() {
  for (const part of document.querySelectorAll('article pre, article .cell_output, article .table-wrapper, article .output')) {
    const scrolls = part.scrollWidth > part.clientWidth + 1 || (part.scrollHeight > part.clientHeight + 1 && getComputedStyle(part).overflowY !== 'visible');
    if (scrolls && !part.hasAttribute('tabindex')) {
      part.tabIndex = 0;
      part.setAttribute('role', 'group');
      part.setAttribute('aria-label', part.matches('pre') ? 'code, scrollable' : part.matches('.table-wrapper') ? 'table, scrollable' : 'output, scrollable');
    }
  }
}
addEventListener('load', makeScrollable);
addEventListener('resize', makeScrollable);
