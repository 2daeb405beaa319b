"""A page of headless Chromium, over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

DEADLINE = 30.0
CHROMIUM = shutil.which("chromium") or "chromium"
DESK, PHONE = 1280, 390  # the widths that are looked at


@dataclass
class Tab:
    """One page of Chromium, over its DevTools protocol."""

    socket: aiohttp.ClientWebSocketResponse
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        number = next(self._numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            answer = await self.socket.receive_json(timeout=DEADLINE)
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    async def run(self, script: str) -> Any:
        """Return the value of a script, or of its promise."""
        found = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise AssertionError(f"{script[:80]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def text(self) -> str:
        """Return the text of the page."""
        return str(await self.run("document.body ? document.body.innerText : ''"))

    async def until(self, condition: str) -> None:
        """Wait until a condition of the page is true."""
        deadline = time.monotonic() + DEADLINE
        while not await self.run(condition):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {DEADLINE} s: {condition}\n{await self.text()}")
            await asyncio.sleep(0.1)

    async def sees(self, text: str) -> None:
        """Wait until the page contains a text."""
        said = json.dumps(text.casefold())
        await self.until(
            f"!!document.body && document.body.innerText.toLowerCase().includes({said})"
        )

    async def open(self, url: str, text: str) -> None:
        """Go to a page, and wait until it contains a text."""
        await self.call("Page.navigate", url=url)
        await self.sees(text)

    async def click(self, text: str, *, within: str = "a, button, summary") -> None:
        """Click the element with this text."""
        place = await self.run(
            f"""(() => {{
              const found = [...document.querySelectorAll({json.dumps(within)})]
                .find((each) => each.innerText.includes({json.dumps(text)}));
              if (!found) return null;
              found.scrollIntoView({{ block: "center" }});
              const box = found.getClientRects()[0];
              return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }};
            }})()"""
        )
        if place is None:
            raise AssertionError(f"there is nothing {text!r} to press:\n{await self.text()}")
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place
            )

    async def press(self, key: str, code: int) -> None:
        """Press a key."""
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                **(more if kind == "keyDown" else {}),
            )

    async def type(self, text: str) -> None:
        """Type into the focused element."""
        await self.call("Input.insertText", text=text)

    async def show(self, *, dark: bool = False, phone: bool = False) -> None:
        """Show the page in light or in the dark, as wide as a desk's screen or a phone's."""
        width, height = (PHONE, 844) if phone else (DESK, 820)
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    async def picture(self, path: Path, *, dark: bool = False, phone: bool = False) -> None:
        """Take a picture of the page from its top."""
        width = PHONE if phone else DESK
        await self.show(dark=dark, phone=phone)
        await asyncio.sleep(0.3)
        whole = int(await self.run("document.documentElement.scrollHeight"))
        wide = int(await self.run("document.documentElement.scrollWidth"))
        assert wide <= width, f"{path.name}: the page is {wide} wide, the screen {width}"
        clip = {"x": 0, "y": 0, "width": width, "height": min(whole, 1800), "scale": 1}
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))
        await self.call("Emulation.clearDeviceMetricsOverride")


@contextlib.asynccontextmanager
async def browser(program: str = CHROMIUM) -> AsyncIterator[Tab]:
    """Run Chromium with one empty page."""
    # Its processes may still write there when it has ended.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    [page] = [each for each in await answer.json() if each["type"] == "page"]
                address = page["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
            await process.wait()


async def _port(file: Path) -> int:
    for _ in range(300):
        with contextlib.suppress(FileNotFoundError, IndexError):
            return int((await asyncio.to_thread(file.read_text)).splitlines()[0])
        await asyncio.sleep(0.1)
    raise AssertionError("Chromium does not start")
