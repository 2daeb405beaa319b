"""Peers as processes, and what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.eventually import DEADLINE, eventually
from tests.verification.interop.environments import PEERS, ROOT

__all__ = ["PATIENCE", "TOKEN", "MismatchError", "end", "line_of", "running"]

PATIENCE = DEADLINE  # seconds
_LAST_REQUEST = 20.0  # seconds that one may take to end
TOKEN = "tok-interop-1"  # of a peer on loopback


class MismatchError(Exception):
    """What arrived is not what was expected."""


@asynccontextmanager
async def running(*command: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a peer until the block ends, from the moment on at which it listens."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PEERS}"},
    )
    try:
        await _listening(process, port)
        yield process
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """Let a peer end, with what it still sends; do nothing if it has."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), _LAST_REQUEST)
    except TimeoutError:  # it waits for a request that never ends
        process.kill()
        await process.wait()


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    async def listens() -> bool:
        if process.returncode is not None:
            _, errors = await process.communicate()
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            raise MismatchError(f"the peer ended by itself: {''.join(last)[:200]}")
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    await eventually(listens)


async def line_of(peer: asyncio.subprocess.Process, start: bytes) -> bytes:
    """Return the next line of a peer that begins so."""
    assert peer.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while line := await peer.stdout.readline():
            if line.startswith(start):
                return line
    raise MismatchError("the peer ended by itself")
