"""Peers as processes, and what they say."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.eventually import DEADLINE
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
    async with asyncio.timeout(PATIENCE):
        while True:
            if process.returncode is not None:
                _, errors = await process.communicate()
                last = errors.decode(errors="replace").strip().splitlines()[-1:]
                raise MismatchError(f"the peer ended by itself: {''.join(last)[:200]}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


async def line_of(peer: asyncio.subprocess.Process) -> dict[str, Any]:
    """Return the next line of JSON that a peer writes."""
    assert peer.stdout is not None
    async with asyncio.timeout(PATIENCE):
        said: dict[str, Any] = json.loads(await peer.stdout.readline())
    return said
