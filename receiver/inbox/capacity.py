"""How much may lie unfinished in the inbox: of one sender, and of all of them together."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from pushkit.errors import InboundError
from pushkit.storage.script import Script, Statement

_UNFINISHED = "status IN ('received', 'in_progress')"
_COUNT_AGE: Final = timedelta(seconds=1)
_RETRY_AFTER: Final = timedelta(seconds=10)


class BacklogFullError(InboundError, code="backlog_full", status=429):
    """So much of this sender is unfinished that nothing more of it is taken in for now."""

    retry_after = _RETRY_AFTER


class InboxFullError(InboundError, code="inbox_full", status=503):
    """So much is unfinished that nothing more is taken in for now, of anybody."""

    retry_after = _RETRY_AFTER


class Capacity:
    """Counts what is unfinished, at most once a second, and no further than to the limits.

    Between two counts it knows what this process has taken in. What others take in meanwhile may go
    over a limit by as much as they take in within a second.

    Args:
        per_sender: The most of one sender.
        in_all: The most of all.
    """

    def __init__(self, *, per_sender: int, in_all: int) -> None:
        self._per_sender = per_sender
        self._in_all = in_all
        # None stands for all. There are as many senders as are trusted.
        self._found: dict[str | None, tuple[datetime, int]] = {}

    def take(self, sender: str, now: datetime) -> Script[None]:
        """Take up the place of one more notification.

        Raises:
            BacklogFullError: There is none for this sender.
            InboxFullError: There is none for anybody.
        """
        used = yield from self._used(sender, now)
        if used >= self._per_sender:
            raise BacklogFullError(
                f"{used} notifications of sender {sender!r} are unfinished, at most"
                f" {self._per_sender} may be: see `receiver inbox stats`"
            )
        used = yield from self._used(None, now)
        if used >= self._in_all:
            raise InboxFullError(
                f"{used} notifications are unfinished, at most {self._in_all} may be:"
                " see `receiver inbox stats`"
            )
        for holder in (sender, None):
            counted_at, used = self._found[holder]
            self._found[holder] = (counted_at, used + 1)

    def _used(self, sender: str | None, now: datetime) -> Script[int]:
        counted_at, used = self._found.get(sender, (None, 0))
        if counted_at is None or not timedelta(0) <= now - counted_at < _COUNT_AGE:
            used = yield from _count(sender, self._in_all if sender is None else self._per_sender)
            self._found[sender] = (now, used)
        return used


def _count(sender: str | None, limit: int) -> Script[int]:
    of_sender, values = ("", ()) if sender is None else (" AND sender = $2", (sender,))
    rows = yield Statement(
        "SELECT COUNT(*) AS found FROM (SELECT 1 FROM pushkit_inbox"
        f" WHERE {_UNFINISHED}{of_sender} LIMIT CAST($1 AS BIGINT)) unfinished",
        (limit, *values),
    )
    return int(rows[0]["found"])
