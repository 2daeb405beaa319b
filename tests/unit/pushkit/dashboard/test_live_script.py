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
const [script, answer] = process.argv.slice(1);
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
  fetch: async () => ({ text: async () => "", ...JSON.parse(answer) }),
  setTimeout: (then) => then(),
});
require(script);
EventSource.newest.readyState = EventSource.CLOSED;
EventSource.newest.listeners.error();
setImmediate(() => console.log(JSON.stringify(did)));
"""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({"ok": False}, ["listen", "listen"], id="of a proxy"),
        pytest.param({"ok": True}, ["listen", "listen", "show", "show"], id="too many pages"),
        pytest.param({"ok": True, "redirected": True}, ["listen", "listen", "reload"], id="login"),
    ],
)
async def test_a_page_whose_stream_is_refused_listens_again_or_leads_to_the_login(
    answer: dict[str, bool], expected: list[str]
) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: it is in Debian (apt-get install nodejs)")
    process = await asyncio.create_subprocess_exec(
        node, "-e", BROWSER, str(SCRIPT), json.dumps(answer), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert json.loads(said) == expected
