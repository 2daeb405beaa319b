"""An inbox that is lost while its receiver is killed, and what its agent is asked for after that.

The inbox is a SQLite file. A copy that was made a few kills before takes its place, as an operator
restores a backup; then `receiver inbox recover` asks the agent. The agent's process that answers is
killed, too, in the first attempt at some moment, and after the last one at its end: an operator
asks again until the command has succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

from tests.eventually import DEADLINE
from tests.forked import forked
from tests.soak.call_log import CallLog

__all__ = ["Losses"]

_HAD = (
    "SELECT c.callback, i.delivery_id FROM pushkit_callbacks c"
    " JOIN pushkit_inbox i ON i.id = c.notification_id WHERE c.done = 1"
)


class Losses:
    """Copies an inbox, puts a former copy in its place, and has sent again what it lacks then."""

    def __init__(
        self,
        folder: Path,  # with the outbox and the agent's keys
        inbox: str,  # its path
        *,
        chance: random.Random,
    ) -> None:
        self._folder = folder
        self._inbox = inbox
        self._copy = folder / "inbox-copy.db"
        self._chance = chance
        self._recovering: asyncio.Task[None] | None = None
        self.number = 0  # of losses
        self.broken_off = 0  # how many attempts to recover failed, as the agent was killed

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
        self._recovering = asyncio.create_task(self._recover(self._recovering))

    async def recovered(self) -> None:
        """Wait until the agent has been asked for everything that was lost.

        Raises:
            RuntimeError: A process ended by itself.
        """
        if self._recovering is not None:
            await self._recovering

    async def _recover(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        kill_after: float | None = self._chance.uniform(0, 0.5)
        deadline, is_done = time.monotonic() + DEADLINE, False
        while not is_done:
            agent = await _start(
                "tests.soak.agent_process",
                *("--database", f"{self._folder}/outbox.db"),
                *("--keys", f"{self._folder}/keys.json", "--api"),
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert agent.stdout is not None
            words = [(await agent.stdout.readline()).decode().split() for _ in range(2)]
            if len(words[1]) != 2:
                raise RuntimeError(f"the agent said {words}, expected its worker and its URL")
            where = ("--database", self._inbox, "--sender", "agent", "--agent", words[1][1])
            command = await _start(
                *("receiver.cli", "inbox", "recover", *where), stderr=asyncio.subprocess.STDOUT
            )
            asking = asyncio.create_task(command.communicate())
            await asyncio.wait([asking], timeout=kill_after)
            agent.kill()
            await agent.wait()
            said, _ = await asking
            is_done = command.returncode == 0
            self.broken_off += not is_done
            kill_after = None
            if time.monotonic() > deadline:
                raise RuntimeError(f"the inbox cannot be recovered: {said.decode()}")


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
