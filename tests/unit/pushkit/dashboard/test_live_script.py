"""The script of live pages, by Node in place of a browser."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import pushkit.webui

SCRIPT = Path(pushkit.webui.__file__).parent / "static" / "live.js"
# What the script calls, and what it has called. Time passes at once.
BROWSER = """
const did = [];
const [script, answer, happens] = process.argv.slice(1);
class EventSource {
  static CLOSED = 2;
  constructor() { did.push("listen"); EventSource.newest = this; this.listeners = {}; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
}
const main = { dataset: { live: "/live" }, replaceChildren: () => did.push("show") };
const document = {
  hidden: false,
  activeElement: null,
  addEventListener: () => {},
  querySelector: (what) => (what.startsWith("main ") ? null : main),
};
const page = { querySelector: () => ({ childNodes: [] }) };
Object.assign(globalThis, {
  document,
  EventSource,
  window: { EventSource, getSelection: () => "" },
  location: { pathname: "/", search: "", reload: () => did.push("reload") },
  DOMParser: class { parseFromString() { return page; } },
  fetch: () => {
    did.push("ask");
    const found = JSON.parse(answer); // null: it takes for ever
    return new Promise((come) => { if (found) come({ text: async () => "", ...found }); });
  },
  setTimeout: (then) => then(),
});
require(script);
const { newest } = EventSource;
eval(happens);
setImmediate(() => console.log(JSON.stringify(did)));
"""
CLOSED = "newest.readyState = EventSource.CLOSED; newest.listeners.error()"
CHANGED = "newest.listeners.changed();"


async def did(answer: dict[str, bool] | None, happens: str) -> list[str]:
    """Return what the script did, given the answers for its page, and what happens."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: it is in Debian (apt-get install nodejs)")
    arguments = (str(SCRIPT), json.dumps(answer), happens)
    process = await asyncio.create_subprocess_exec(
        node, "-e", BROWSER, *arguments, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return list(json.loads(said))


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        pytest.param({"ok": False}, [], id="of a proxy"),
        pytest.param({"ok": True}, ["show", "show"], id="too many pages"),
        pytest.param({"ok": True, "redirected": True}, ["reload"], id="login"),
    ],
)
async def test_a_page_whose_stream_is_refused_listens_again_or_leads_to_the_login(
    answer: dict[str, bool], then: list[str]
) -> None:
    assert await did(answer, CLOSED) == ["listen", "listen", "ask", *then]


async def test_a_page_that_takes_long_is_not_asked_for_again_meanwhile() -> None:
    assert await did(None, CHANGED * 3) == ["listen", "ask"]


async def test_a_page_that_was_shown_is_asked_for_again() -> None:
    again = f"{CHANGED} setImmediate(() => {{ {CHANGED} }})"
    assert await did({"ok": False}, again) == ["listen", "ask", "ask"]
