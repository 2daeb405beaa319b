// Keeps a page with data-live fresh: when the server sends an event, the page is fetched and its
// <main> replaced. Not while the user types, selects, presses, or has a box ticked. Pages work
// without this script, too.
"use strict";
(() => {
  const main = document.querySelector("main[data-live]");
  if (!main || !window.EventSource) return;

  // A link that is replaced between press and release is not followed.
  let pressedAt = 0;
  document.addEventListener("pointerdown", () => { pressedAt = Date.now(); });

  const busy = () =>
    Date.now() - pressedAt < 1000 ||
    (document.activeElement && document.activeElement.closest("main form")) ||
    String(window.getSelection()) !== "" ||
    document.querySelector("main input:checked, main details[open]") !== null;

  // One at a time: a page that takes long is not asked for again meanwhile.
  let asking = false;
  const refresh = async () => {
    if (asking || document.hidden || busy()) return;
    asking = true;
    try {
      await show(await fetch(location.pathname + location.search, { credentials: "same-origin" }));
    } finally {
      asking = false;
    }
  };

  const show = async (answer) => {
    if (answer.redirected) location.reload(); // to the login: the session is over
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main");
    if (!fresh || busy()) return;
    document.querySelector("main").replaceChildren(...fresh.childNodes);
    const footer = page.querySelector("footer");
    if (footer) document.querySelector("footer").replaceChildren(...footer.childNodes);
  };

  // A browser reconnects by itself, but not after an answer that is no stream: a proxy's, while the
  // server restarts, or the login.
  const closed = () => {
    if (source.readyState !== EventSource.CLOSED) return;
    source = null;
    setTimeout(listen, 5000);
    refresh().catch(() => {});
  };

  // Only while the page is visible: a browser has few connections to one server.
  let source = null;
  const listen = () => {
    if (document.hidden && source) {
      source.close();
      source = null;
    } else if (!document.hidden && !source) {
      source = new EventSource(main.dataset.live);
      source.addEventListener("changed", () => refresh().catch(() => {}));
      source.addEventListener("error", closed);
    }
  };
  document.addEventListener("visibilitychange", listen);
  listen();
})();

// The box with data-all ticks all boxes of its table.
document.addEventListener("change", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || !box.hasAttribute("data-all")) return;
  for (const each of box.closest("form").querySelectorAll("input[name=id]")) each.checked = box.checked;
});
