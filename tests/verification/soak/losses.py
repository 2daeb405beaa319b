"""An inbox that is lost while its receiver is killed, and what its agent is asked for after that.

The inbox is a SQLite file. A copy that was made a few kills before takes its place, as an operator
restores a backup. Then `receiver inbox recover` asks the agent, again and again until it has
succeeded: the agent's process that answers is killed all the time. It shares the outbox with the
sender that accepts the updates.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.eventually import DEADLINE
from tests.forked import forked
from tests.verification.soak.call_log import CallLog
from tests.verification.soak.webhook_process import reserved_port

__all__ = ["Losses"]

_HAD = (
    "SELECT c.callback, i.delivery_id FROM pushkit_callbacks c"
    " JOIN pushkit_inbox i ON i.id = c.notification_id WHERE c.done = 1"
)
_LIFE = 0.5  # seconds: the longest life of an agent's process, right after a loss


class Losses:
    """Copies an inbox, puts a former copy in its place, and has sent again what it lacks then.

    Args:
        folder: With the outbox and the agent's keys.
        inbox: Its path.
        chance: Decides how old a copy gets, and how long an agent's process lives.

    Attributes:
        agent: Where the agent answers.
        number: How many losses there were.
        broken_off: How many commands failed, as the agent was killed.
    """

    def __init__(self, folder: Path, inbox: str, *, chance: random.Random) -> None:
        self._folder = folder
        self._inbox = inbox
        self._copy = folder / "inbox-copy.db"
        self._chance = chance
        self._recovering: asyncio.Task[None] | None = None
        self._life = _LIFE
        self.agent = ""
        self.number = 0
        self.broken_off = 0

    def copy(self) -> None:
        """Copy the inbox, or keep the former copy."""
        if not self._copy.exists() or self._chance.random() < 0.3:
            _copy(self._inbox, str(self._copy))

    def lose(self, log: CallLog) -> None:
        """Put the copy in the inbox's place, and begin to recover; no receiver may run."""
        _copy(str(self._copy), self._inbox)
        with contextlib.closing(sqlite3.connect(self._copy)) as copy:
            log.lose(set(copy.execute(_HAD)))
        self.number += 1
        self._life = _LIFE
        self._recovering = asyncio.create_task(self._recover(self._recovering))

    async def recovered(self) -> None:
        """Wait until the agent was asked for everything that was lost; from then on it lives.

        Raises:
            RuntimeError: The agent cannot be asked.
        """
        if self._recovering is not None:
            await self._recovering
        self._life = math.inf

    async def _recover(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            command = await _start(
                *("receiver.cli", "inbox", "recover", "--database", self._inbox),
                *("--sender", "agent", "--agent", self.agent),
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await command.communicate()
            if command.returncode == 0:
                return
            self.broken_off += 1
            self._life *= 1.5  # a busy machine asks slowly
        raise RuntimeError(f"the inbox was not recovered in time: {said.decode()}")

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Let the agent answer, in one process after another, each of which is killed."""
        with reserved_port() as port:
            self.agent = f"http://127.0.0.1:{port}/"
            living = asyncio.create_task(self._live(port))
            yield
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)

    async def _live(self, port: int) -> None:
        while True:
            agent = await _start(
                *(
                    "tests.verification.soak.agent_process",
                    "--database",
                    f"{self._folder}/outbox.db",
                ),
                *("--keys", f"{self._folder}/keys.json", "--api", str(port)),
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert agent.stdout is not None
            try:
                await agent.stdout.readline()  # it is up
                life = self._life
                await asyncio.sleep(self._chance.uniform(0, life) if life < math.inf else life)
            finally:
                agent.kill()
                await agent.wait()


async def _start(module: str, *arguments: str, stderr: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *forked(module), *arguments, stdout=asyncio.subprocess.PIPE, stderr=stderr
    )


def _copy(one: str, other: str) -> None:
    """Copy a database in one transaction: others may have both open."""
    with (
        contextlib.closing(sqlite3.connect(one, timeout=DEADLINE)) as source,
        contextlib.closing(sqlite3.connect(other, timeout=DEADLINE)) as target,
    ):
        source.backup(target)
