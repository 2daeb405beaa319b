// What the theme leaves to be done for keyboards and screen readers.
document.querySelector('[data-md-component="search"]')?.setAttribute('aria-label', 'Search')

// What may scroll can have the focus. The theme wraps tables, and takes the focus of code away, later than this runs.
function reachable() {
  for (const region of document.querySelectorAll('pre > code:not([tabindex]), .md-typeset__scrollwrap:not([tabindex])')) {
    region.tabIndex = 0
  }
}
reachable()
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true, attributeFilter: ['tabindex'] })
