"""Servers that import an application and then fork: each process is one of its own."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from pushkit import KeyRing
from pushkit.keys.jwks import jwks_document
from tests.eventually import DEADLINE

# Made before the fork, opened behind it; each says its names while the other one is still there.
APPLICATION = """
import asyncio, os, sys
from datetime import UTC, datetime
from pushkit import KeyRing, PushSender
from receiver import Receiver, TrustedSender

sender = PushSender(issuer="https://agent.example.com", keys=KeyRing.create(datetime.now(UTC)),
                    database="outbox.db")
receiver = Receiver(url="https://client.example.com/hooks", database="inbox.db",
                    senders=[TrustedSender(name="agent", issuer="https://agent.example.com",
                                           jwks_file="jwks.json")])

async def main():
    async with receiver:
        await sender.open()
        await sender.worker.run_once()
        await receiver.dispatcher.pump.run_once()
        sys.stdout.write(f"{sender.worker.name} {receiver.dispatcher.name}\\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, os.read, 0, 1)
        await sender.close()

os.fork()
asyncio.run(main())
"""


async def test_processes_that_fork_from_one_that_made_sender_and_receiver_work_side_by_side(
    tmp_path: Path,
) -> None:
    now = datetime.now(UTC)
    (tmp_path / "jwks.json").write_bytes(jwks_document(KeyRing.create(now), now))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", APPLICATION),
        cwd=tmp_path,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE):
            first, second = [(await process.stdout.readline()).split() for _ in range(2)]
    finally:
        await process.communicate(b"\n\n")

    assert len({*first, *second}) == 4
