"""Sender and receiver in several processes and event loops: each has to have its own.

Servers import an application and then fork; programs call `asyncio.run` more than once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pushkit import KeyRing, PushSender
from pushkit.errors import ConfigError
from pushkit.keys.jwks import jwks_document
from receiver import Receiver, TrustedSender
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
        await receiver.dispatcher.run_once()
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


# Opened before the fork: the forked process cannot use them, and leaves the parent's alone.
OPENED = """
import asyncio, os, sys
from datetime import UTC, datetime
from pushkit import KeyRing, PushSender
from pushkit.errors import ConfigError
from pushkit.webhook import WebhookRequest
from receiver import Receiver, TaskPolicy, TrustedSender
from receiver.testing import SigningAgent

agent = SigningAgent(webhook_url="https://client.example.com/a2a/push")
sender = PushSender(issuer=agent.issuer, keys=KeyRing.create(datetime.now(UTC)),
                    database="outbox.db")
receiver = Receiver(url="https://client.example.com", database="inbox.db",
                    senders=[TrustedSender(name="agent", issuer=agent.issuer, tokens=[agent.token],
                                           keys=[agent.key.to_verification_key()],
                                           tasks=TaskPolicy.ANY)])

async def post():
    request = agent.draft("task-1").request()
    async with asyncio.timeout(10):
        verdict = await receiver.receive(
            WebhookRequest(target="/a2a/push", headers=request.headers, body=request.body))
    return verdict.status

async def restart(part):
    async with asyncio.timeout(10):
        try:
            await part.start()
        except ConfigError as exc:
            sys.stdout.write(f"{exc}\\n")
        await part.close()

loop = asyncio.new_event_loop()
for part in (sender, receiver):
    loop.run_until_complete(part.start())
child = os.fork()
if child == 0:
    assert loop.run_until_complete(post()) == 503
    for part in (sender, receiver):
        loop.run_until_complete(restart(part))
        asyncio.run(restart(part))
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert loop.run_until_complete(post()) == 202
for part in (sender, receiver):
    assert not loop.run_until_complete(part.unready())
    loop.run_until_complete(part.close())
"""


async def test_a_process_that_forks_from_one_that_opened_them_is_told_and_may_close_them(
    tmp_path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OPENED), cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(DEADLINE):
            written, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert written.decode().count("was opened before this process was forked") == 4
    assert process.returncode == 0


def made(part: str, folder: Path) -> PushSender | Receiver:
    ring = KeyRing.create(datetime.now(UTC))
    issuer = "https://agent.example.com"
    if part == "sender":
        return PushSender(issuer=issuer, keys=ring, database=folder / "outbox.db")
    (folder / "jwks.json").write_bytes(jwks_document(ring, datetime.now(UTC)))
    trusted = TrustedSender(name="agent", issuer=issuer, jwks_file=folder / "jwks.json")
    return Receiver(url="https://client.example.com", senders=[trusted], database=folder / "in.db")


@pytest.mark.parametrize("part", ["sender", "receiver"])
def test_what_was_opened_in_a_loop_that_has_ended_is_closed_in_another(
    tmp_path: Path, part: str
) -> None:
    opened = made(part, tmp_path)
    before = set(threading.enumerate())
    asyncio.run(opened.start())
    asyncio.run(opened.close())
    assert set(threading.enumerate()) - before == set()  # of another test's, some may end meanwhile


@pytest.mark.parametrize("part", ["sender", "receiver"])
def test_what_was_opened_in_a_loop_that_runs_is_closed_there_alone(
    tmp_path: Path, part: str
) -> None:
    opened = made(part, tmp_path)

    async def close() -> None:
        async with asyncio.timeout(DEADLINE):
            await opened.close()

    async def run() -> None:
        async with opened:
            with pytest.raises(ConfigError, match="opened in another event loop"):
                await asyncio.to_thread(asyncio.run, close())
            assert not await opened.unready()

    asyncio.run(run())
