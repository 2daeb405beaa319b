"""The log of notifications that no callback wants: one line, and one for each lost callback.

A receiver that wants some states is sent the others, too: that is no fault. It is one if a callback
had notifications of this kind and state before, under this process or an earlier one, and none
wants them now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import TypeAlias

from pushkit.a2a import TaskState, UpdateKind, decode_update
from pushkit.errors import InboundError, StorageError
from pushkit.storage.database import Database
from pushkit.storage.location import with_database
from receiver.inbox.model import Notification
from receiver.inbox.store import last_wanted
from receiver.request import LARGE_BODY

_log = logging.getLogger("receiver")

_Kind: TypeAlias = "tuple[UpdateKind, TaskState | None]"

_READ_BACK = 100  # how many of the newest finished notifications are looked at


class UnmatchedLog:
    """Logs which notifications no callback wants."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wanted: set[_Kind] = set()  # that a callback had
        self._has_read = False  # whether those of earlier processes are known
        self._logged: set[_Kind | None] = set()  # None stands for all that nobody wanted before

    def note_wanted(self, notification: Notification) -> None:
        """Note that a callback gets a notification."""
        self._wanted.add((notification.kind, notification.state))

    async def note_unwanted(self, notification: Notification) -> None:
        """Log that no callback wants a notification, unless that has been said."""
        if not self._has_read:
            self._has_read = True
            with contextlib.suppress(StorageError):
                script = last_wanted(_READ_BACK, max_bytes=LARGE_BODY)
                bodies = await self._database.read(script)
                self._wanted |= await asyncio.to_thread(_kinds_of, bodies)
        kind = notification.kind, notification.state
        is_lost = kind in self._wanted
        cause = kind if is_lost else None
        if cause in self._logged:
            return
        self._logged.add(cause)
        _log.log(
            logging.WARNING if is_lost else logging.INFO,
            "no callback wants notification %d, kind=%s state=%s%s: it is done; it and further ones"
            " are listed by `%s`",
            notification.id,
            *kind,
            ", though one had such before" if is_lost else "",
            with_database("receiver inbox list --unmatched", self._database.location),
            extra={"code": "unmatched", "sender": notification.sender},
        )


def _kinds_of(bodies: Sequence[bytes]) -> set[_Kind]:
    kinds: set[_Kind] = set()
    for body in bodies:
        with contextlib.suppress(InboundError):  # another version accepted it
            update = decode_update(body)
            kinds.add((update.kind, update.state))
    return kinds
