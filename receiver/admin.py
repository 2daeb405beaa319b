"""`InboxAdmin`: the inbox for operators: inspection, redrive, purge and retention."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.options import Age, Number, checked
from pushkit.progress import advance
from pushkit.record import record
from pushkit.storage.database import Database, read_now
from pushkit.storage.opening import open_location
from pushkit.storage.paging import MOST_COUNTED, Page, chosen_ids, in_batches
from pushkit.storage.script import Script, to_micros
from receiver.inbox import inspection, mailboxes
from receiver.inbox import retention as deletion
from receiver.inbox.inspection import (
    NOTIFICATIONS,
    CallbackTrouble,
    InboxFilter,
    InboxGap,
    InboxQueue,
    InboxStats,
    NotificationReport,
    NotificationSummary,
)
from receiver.inbox.mailboxes import MailboxChange, MailboxState
from receiver.inbox.model import InboxStatus
from receiver.inbox.retention import InboxRetention, Position
from receiver.inbox.schema import RECEIVER_MIGRATIONS
from receiver.registrations import forget_registrations

if TYPE_CHECKING:
    from pushkit.telemetry.metrics import Gauges

_BATCH = 100
# Between two batches, so that other transactions get their turn.
_PAUSE = timedelta(milliseconds=20)


def open_inbox(location: str | Path, *, clock: Callable[[], datetime] = utc_now) -> Database:
    """Return a receiver's database, not yet open. Raises ConfigError: its driver is missing."""
    known = RECEIVER_MIGRATIONS
    return open_location(location, component="inbox", migrations=known, clock=clock)


@record(frozen=True, slots=True, kw_only=True)
class Redriven:
    """The result of a redrive."""

    ids: tuple[int, ...]  # the notifications that will be called back again
    skipped: int  # how many were neither dead letters nor unmatched


class InboxAdmin:
    """The inbox for operators. Every method is safe while receivers run.

    Changes are made in small transactions, one after another, so that traffic continues.

    Args:
        database: The inbox' database, open (see `open_inbox`).
        wake: Called after a redrive, for a dispatcher in this process.
    """

    def __init__(self, database: Database, *, wake: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self.location: str = database.location  # of the inbox, as commands name it
        self._wake = wake

    # --- inspection ----------------------------------------------------------------------------

    async def find(
        self, wanted: InboxFilter | None = None, *, after: int = 0, limit: int = 100
    ) -> list[NotificationSummary]:
        """Return a page of notifications without their bodies, oldest first.

        `after` is the last id of the page before.
        """
        script = NOTIFICATIONS.find(wanted or InboxFilter(), after=after, limit=limit)
        return await self._database.read(script)

    async def browse(
        self,
        wanted: InboxFilter | None = None,
        *,
        before: str | int | None = None,
        limit: int = 50,
    ) -> Page[NotificationSummary]:
        """Return a page of notifications without their bodies, newest first.

        Its time does not grow with the inbox; for that, a page may be cut before it is full
        (`Page.is_cut`). `before` is `Page.before` of the page before.
        """
        place = None if before is None else int(before)
        script = NOTIFICATIONS.browse(wanted or InboxFilter(), before=place, limit=limit)
        return await self._database.read(script)

    async def show(self, notification_id: int) -> NotificationReport | None:
        """Return one notification with its body and every callback; None if there is none."""
        return await self._database.read(inspection.show(notification_id))

    async def queues(self, *, after: str | None = None, limit: int = 100) -> list[InboxQueue]:
        """Return a page of the queues that a process leases, or that are due, by id.

        `after` is the last id of the page before.
        """
        return await self._database.read(inspection.queues(after=after, limit=limit))

    async def stats(
        self, *, within: timedelta = timedelta(hours=1), at_most: int = MOST_COUNTED
    ) -> InboxStats:
        """Return the inbox in numbers; each counts up to `at_most` notifications.

        `within` is how recently those were accepted that are returned one by one.
        """
        return await read_now(self._database, inspection.stats, within=within, at_most=at_most)

    async def callback_troubles(self) -> list[CallbackTrouble]:
        """Return failing callbacks by error: of waiting notifications and the newest dead ones."""
        return await self._database.read(inspection.callback_troubles())

    async def gaps(self, sender: str, *, task_id: str | None = None) -> list[InboxGap]:
        """Return what the inbox lacks of a sender's updates, to one task or to all."""
        return await self._database.read(inspection.gaps(sender, task_id))

    async def gauges(self) -> Gauges:
        """Return the inbox's metrics: their time does not grow with finished notifications."""
        return await read_now(self._database, inspection.gauges)

    # --- redrive -------------------------------------------------------------------------------

    async def redrive(self, wanted: Sequence[int] | InboxFilter) -> Redriven:
        """Call back again, by id or by filter: dead letters, and notifications no callback wanted.

        A filter selects dead letters, or the unmatched if it says `unmatched`. Attempts and age
        begin anew, and newer notifications of the same task wait. A callback that has succeeded is
        not called again.
        """
        if isinstance(wanted, InboxFilter):
            wanted = replace(wanted, status=None if wanted.unmatched else InboxStatus.DEAD)
        redriven: list[int] = []
        asked = 0
        chosen = chosen_ids(self._database, NOTIFICATIONS, wanted, size=_BATCH)
        async with aclosing(in_batches(self._database, chosen, self._redrive_script)) as batches:
            async for ids, done in batches:
                asked += len(ids)
                redriven += done
                self._wake()
        return Redriven(ids=tuple(redriven), skipped=asked - len(redriven))

    # --- mailboxes -----------------------------------------------------------------------------

    async def mailboxes(self) -> list[MailboxState]:
        """Return how much is in each mailbox that has anything."""
        return await self._database.read(mailboxes.mailbox_states())

    async def change_mailbox(self, name: str, change: MailboxChange) -> int:
        """Redrive or drop what is in a mailbox; return how many there were.

        What is dropped is lost for the client; the inbox keeps it as any done notification.
        """
        script = functools.partial(mailboxes.change_mailbox, self._database, name, change)
        return await self._change(script)

    # --- purge and retention -------------------------------------------------------------------

    @checked
    async def purge(
        self,
        *,
        older_than: Age | None = None,
        statuses: Sequence[InboxStatus] = (InboxStatus.DONE,),
        max_done: Number | None = None,
    ) -> int:
        """Delete finished notifications in batches; return how many. Ids stay remembered.

        Args:
            older_than: Delete those of these statuses that were finished longer ago than this.
            statuses: Done, dead.
            max_done: Delete all that are done, except for the newest so many.

        Raises:
            ConfigError: Neither an age nor a number is given, or one is negative.
        """
        if older_than is None and max_done is None:
            raise ConfigError("purge: expected older_than or max_done, found neither")
        purged = 0
        if older_than is not None:
            before = await self._database.read(self._database.now()) - older_than
            for status in statuses:
                purged += await self._delete_all(status, (to_micros(before), 0))
        if max_done is not None:
            end = await self._database.read(deletion.end_of_excess(max_done))
            if end is not None:
                purged += await self._delete_all(InboxStatus.DONE, end)
        return purged

    async def retain(self, retention: InboxRetention) -> int:
        """Delete rows whose retention is over; return how many notifications that were."""
        purged = 0
        if retention.done is not None or retention.max_done is not None:
            purged += await self.purge(older_than=retention.done, max_done=retention.max_done)
        if retention.dead is not None:
            purged += await self.purge(older_than=retention.dead, statuses=(InboxStatus.DEAD,))
        now = await self._database.read(self._database.now())
        before, silent_since = now - retention.ids, now - retention.sequences
        await self._change(lambda: deletion.forget_ids(before))
        await self._change(lambda: forget_registrations(before))
        await self._change(lambda: deletion.forget_sequences(silent_since))
        return purged

    # --- in batches ----------------------------------------------------------------------------

    def _redrive_script(self, ids: Sequence[int]) -> Script[list[int]]:
        now = yield from self._database.now()
        redriven = yield from inspection.redrive(ids, now)
        yield from self._database.wake()
        return redriven

    async def _delete_all(self, status: InboxStatus, end: Position) -> int:
        async def delete() -> int:
            ids = await self._database.read(deletion.finished_before(status, end, limit=_BATCH))
            return await self._database.write(deletion.delete_finished(ids, status)) if ids else 0

        return await _in_lots(delete)

    async def _change(self, script: Callable[[], Script[int]]) -> int:
        return await _in_lots(lambda: self._database.write(script()))


async def _in_lots(delete: Callable[[], Awaitable[int]]) -> int:
    """Change or delete batches until one is empty, with pauses in between; return how many rows."""
    deleted = 0
    while lot := await delete():
        deleted += lot
        advance(lot)
        await asyncio.sleep(_PAUSE.total_seconds())
    return deleted
