"""How many files, and calls, an update passes: to its row, to its result, and at the receiver.

    python benchmarks/passes.py

It lists the modules of `pushkit` and `receiver` whose functions are called for the second update of
a task, in the event loop and in the threads of the database; the first one fills what is known per
subscription or token. The receiver is asked as `receiver serve` is: from the bytes of a request to
the bytes of its 202. Lines that make the classes and tables of a module do not count.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from aiohttp import web

import pushkit
from pushkit import Algorithm, KeyRing, PushSender
from pushkit.a2a import StatusUpdate, TaskState, TaskStatus

HOUSE = str(Path(pushkit.__file__).parent.parent)
ROOMS = tuple(f"{HOUSE}/{name}/" for name in ("pushkit", "receiver"))


class Passed:
    """The files of ours that code runs in, while it is `on`, and its calls."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls = 0
        self.on = False

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        """Take one call down, as `sys.setprofile` requires."""
        name = frame.f_code.co_filename
        if self.on and event == "call" and name.startswith(ROOMS):
            self.calls += 1
            self.files.add(name[len(HOUSE) + 1 :])

    def taken(self) -> tuple[int, list[str]]:
        """Return the number of calls, and the files, since the last time."""
        calls, files = self.calls, sorted(self.files)
        self.calls, self.files = 0, set()
        return calls, files


async def sent(passed: Passed) -> tuple[tuple[int, list[str]], tuple[int, list[str]]]:
    """Return the calls and files to the row of an update, and from there to its result."""
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


class Wire(asyncio.Transport):
    """A transport that notes when an answer is written."""

    def __init__(self, passed: Passed) -> None:
        super().__init__()
        self._passed = passed
        self.answers: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: all is written at once."""

    def write(self, data: Any) -> None:
        """Stop counting: the answer is on its way."""
        self._passed.on = False
        self.answers.append(bytes(data))


async def received(passed: Passed) -> tuple[int, list[str]]:
    """Return the calls and files from the bytes of a request to those of its 202."""
    from receiver import Receiver, TaskPolicy, TrustedSender
    from receiver.limits import ConnectionLimits
    from receiver.serving.connection import HttpConnection
    from receiver.serving.server import HttpServer
    from receiver.testing import SigningAgent

    url, path, issuer = "https://client.example.com", "/a2a/push", "https://agent.example.com"
    now = datetime.now(UTC)
    ring = KeyRing.create(now, Algorithm.ES256)
    key = ring.signing_key(now)
    agent = SigningAgent(webhook_url=url + path, issuer=issuer, key=key)
    sender = TrustedSender(
        name="agent", issuer=issuer, keys=[key.to_verification_key()], tasks=TaskPolicy.BIND
    )
    with tempfile.TemporaryDirectory() as folder:
        receiver = Receiver(url=url, senders=[sender], database=f"{folder}/inbox.db")
        called = asyncio.Event()

        @receiver.on_update
        async def _(_: object) -> None:
            called.set()

        async with receiver:
            server = HttpServer(
                receiver.handler.handle,
                limits=ConnectionLimits(),
                is_proxy=receiver.handler.peers.is_proxy,
                max_head_bytes=16384,
                refuse=receiver.handler.refuse,
            )
            connection, wire = HttpConnection(server, "127.0.0.1"), Wire(passed)
            connection.connection_made(wire)
            token = (await receiver.expect()).config.token or ""
            for seq in (1, 2):
                request = replace(agent.draft("task", seq), token=token).request()
                lines = [f"POST {path} HTTP/1.1", "Host: client.example.com"]
                lines += [f"{name}: {value}" for name, value in request.headers]
                lines += [f"Content-Length: {len(request.body)}", "", ""]
                called.clear()
                passed.taken()
                passed.on = True
                connection.data_received("\r\n".join(lines).encode() + request.body)
                await called.wait()
                await asyncio.sleep(0.2)
            assert all(answer.startswith(b"HTTP/1.1 202") for answer in wire.answers)  # noqa: S101
            connection.connection_lost(None)
    return passed.taken()


def main() -> None:
    """Print all three."""
    passed = Passed()
    threading.setprofile(passed)
    sys.setprofile(passed)
    stored, settled = asyncio.run(sent(passed))
    answered = asyncio.run(received(passed))
    sys.setprofile(None)
    for what, (calls, files) in (
        ("notify() to its row", stored),
        ("handed over to settled", settled),
        ("a request to its 202", answered),
    ):
        print(f"{what}: {calls} calls in {len(files)} files", *files, sep="\n  ")


if __name__ == "__main__":
    main()
