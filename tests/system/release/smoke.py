"""Tries an installed distribution: its imports, its commands, one delivery.

Uses what is installed, and nothing of this tree:

    python -I smoke.py           # the distribution by itself
    python -I smoke.py --extras  # every module, with every extra
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import socket
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

import pushkit
import receiver
from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.keys.jwks import parse_jwks
from receiver import Notification, Receiver, TrustedSender


def import_everything() -> None:
    """Import each module of both packages."""
    for package in (pushkit, receiver):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def call_the_commands(folder: Path) -> None:
    """Call both commands, as a shell finds them."""
    scripts = Path(sys.executable).parent
    for command in (
        ["pushkit", "--version"],
        ["receiver", "--version"],
        ["receiver", "serve", "--help"],
        ["pushkit", "keys", "new", str(folder / "keys.json")],
    ):
        subprocess.run([scripts / command[0], *command[1:]], check=True, stdout=subprocess.DEVNULL)  # noqa: S603  # ours


async def deliver_one(folder: Path) -> None:
    """Notify, sign, post, verify, call back."""
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    trusted = TrustedSender(
        name="agent",
        issuer="https://agent.example.com",
        keys=parse_jwks(sender.jwks().body).keys,
    )
    ours = Receiver(url=f"http://127.0.0.1:{port}", senders=[trusted], database=folder / "inbox.db")
    called: asyncio.Queue[Notification] = asyncio.Queue()

    @ours.on_status("completed")
    async def completed(notification: Notification) -> None:
        await called.put(notification)

    runner = web.AppRunner(ours.app())
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        expected = await ours.expect(version="1.0")
        async with sender:
            await sender.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
            status = TaskStatus(state=TaskState.COMPLETED)
            await sender.notify(StatusUpdate(task_id="task-1", context_id="c", status=status))
            notification = await asyncio.wait_for(called.get(), 60)
        if (notification.sender, notification.seq) != ("agent", 1):
            raise SystemExit(f"expected the first of the agent, found {notification!r}")
    finally:
        await runner.cleanup()


def main() -> None:
    """Try it."""
    if str(Path(pushkit.__file__)).startswith(os.environ.get("NOT_FROM", "\0")):
        raise SystemExit(f"{pushkit.__file__} is the source tree, not what was installed")
    if "--extras" in sys.argv:
        import_everything()
    with tempfile.TemporaryDirectory() as folder:
        call_the_commands(Path(folder))
        asyncio.run(deliver_one(Path(folder)))
    print(f"ok: {pushkit.__version__} on {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
