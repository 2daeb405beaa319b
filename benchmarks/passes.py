"""How many files an update passes: from `notify()` to its row, and from there to its result.

    python benchmarks/passes.py

It lists the modules of `pushkit` whose functions are called for the second update of a task, in
the event loop and in the threads of the database; the first one fills what is known per
subscription. Lines that make the classes and tables of a module do not count.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from aiohttp import web

import pushkit
from pushkit import KeyRing, PushSender
from pushkit.a2a import StatusUpdate, TaskState, TaskStatus

HOUSE = str(Path(pushkit.__file__).parent)


class Passed:
    """The files of pushkit that code runs in, while it is `on`."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Take one call down, as `sys.setprofile` requires."""
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(HOUSE):
            self.files.add(name[len(HOUSE) + 1 :])

    def taken(self) -> list[str]:
        """Return the files since the last call."""
        files, self.files = sorted(self.files), set()
        return files


async def measure(passed: Passed) -> tuple[list[str], list[str]]:
    """Return the files of both ways."""
    arrived = asyncio.Event()

    async def hook(_: web.Request) -> web.Response:
        arrived.set()
        return web.Response(status=202)

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with tempfile.TemporaryDirectory() as folder:
        async with PushSender(
            issuer="https://agent.example.com",
            keys=KeyRing.create(datetime.now(UTC)),
            database=f"{folder}/outbox.db",
            allow=["127.0.0.1:*"],
        ) as push:
            update = StatusUpdate(
                task_id="task", context_id="c", status=TaskStatus(state=TaskState.WORKING)
            )
            await push.subscribe("task", {"url": f"http://127.0.0.1:{port}/hook"}, version="1.0")
            for on in (False, True):
                arrived.clear()
                passed.taken()
                passed.on = on
                await push.notify(update)
                stored = passed.taken()
                await arrived.wait()
                await asyncio.sleep(0.5)  # settled after 4 ms
            passed.on = False
            assert (await push.deliveries("task"))[-1].state == "delivered"  # noqa: S101
    await runner.cleanup()
    return stored, passed.taken()


def main() -> None:
    """Print both."""
    passed = Passed()
    threading.setprofile(passed)
    sys.setprofile(passed)
    stored, settled = asyncio.run(measure(passed))
    sys.setprofile(None)
    for what, files in (("notify() to its row", stored), ("handed over to settled", settled)):
        print(f"{what}: {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
