"""Repeatedly kill a mailbox's service and its clients with SIGKILL, and check what clients had.

python -m tests.verification.soak.mailbox_crash --kills 200 [--database postgresql://… --services 2]
    [--clients 3] [--seed 7]

Whenever the kills come:

- every update that the sender's `notify()` acknowledged is handled by a client to the end,
- the updates of a task are handled in order, and never two at once,
- none is handled twice, unless the client that had it was killed: it may have been inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from pushkit import PushSender
from pushkit.storage.database import Database
from receiver.inbox.mailboxes import mailbox_states
from tests.eventually import eventually
from tests.verification.soak import killing
from tests.verification.soak.call_log import CallLog
from tests.verification.soak.mailbox_process import fetch, serve
from tests.verification.soak.receiver_crash import Killer, Place, pid_of, stands_still
from tests.verification.soak.webhook_process import start

_PATIENCE = 3.0  # seconds for a call, after a start


class MailboxKiller(Killer):
    """Runs services and clients of a mailbox, kills them, runs them again."""

    def __init__(
        self,
        folder: Path,
        *,
        database: str | None = None,
        seed: int = 0,
        services: int = 1,
        clients: int = 3,
        tasks: int = 50,
    ) -> None:
        super().__init__(
            folder, database=database, seed=seed, receivers=services + clients, tasks=tasks
        )
        self._services = services
        self.log = CallLog(callbacks=("mailbox",))

    def _is_service(self, place: Place) -> bool:
        return place.number < self._services

    async def _lives(self, place: Place, left: Iterator[int], inbox: Database) -> None:
        for _ in left:
            self._start(place)
            before, pid = self.log.begun.total(), pid_of(place)
            if self._random.random() < 0.8:  # else while it starts
                of_all = self._is_service(place)
                with contextlib.suppress(TimeoutError):  # what it needs may be dead, too
                    await eventually(
                        lambda: self.log.begun.total() > before if of_all else self.log.begun[pid],  # noqa: B023
                        within=_PATIENCE,
                    )
            await asyncio.sleep(self._random.uniform(0, 0.3))
            await self._kill(place, inbox)
            self._count_kill(0 if self._is_service(place) else self.log.begun[pid])

    def _process(self, place: Place) -> ForkServerProcess:
        return start(self._settings(place), serve if self._is_service(place) else fetch)

    async def _stop(self, place: Place, inbox: Database) -> None:
        del inbox  # what a client holds, its own log says
        pid = pid_of(place)
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: stands_still(pid))
        self._read_lines()
        held = self.log.last_begun(pid)
        if held is not None:
            self.log.kill(pid)
            self.log.excuse({held: ()})
            self.log.count_broken_off(pid)
            self.report.in_hand_at_kills += 1

    async def _count_unfinished(self, sender: PushSender, inbox: Database) -> int:
        in_mailboxes = await inbox.read(mailbox_states())
        left = sum(each.pending + each.dead for each in in_mailboxes)
        return left + await super()._count_unfinished(sender, inbox)


if __name__ == "__main__":
    logging.getLogger("pushkit").setLevel(logging.CRITICAL)  # every kill fails many attempts
    sys.exit(killing.run(__doc__, MailboxKiller, services=1, clients=3))
