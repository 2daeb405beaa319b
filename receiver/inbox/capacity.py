"""How much may lie unfinished in the inbox: of one sender, and of all of them together."""

from __future__ import annotations

from collections.abc import Iterable
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

    def count(self, senders: Iterable[str], now: datetime) -> Script[None]:
        """Count what is unfinished of these and of all, where that is due."""
        for holder in (*senders, None):
            counted_at, _ = self._found.get(holder, (None, 0))
            if counted_at is None or not timedelta(0) <= now - counted_at < _COUNT_AGE:
                most = self._in_all if holder is None else self._per_sender
                self._found[holder] = (now, (yield from _count(holder, most)))

    def take(self, sender: str) -> None:
        """Take up the place of one more notification, once it was counted.

        Raises:
            BacklogFullError: There is none for this sender.
            InboxFullError: There is none for anybody.
        """
        counted_at, used = self._found[sender]
        if used >= self._per_sender:
            raise BacklogFullError(
                f"{used} notifications of sender {sender!r} are unfinished, at most"
                f" {self._per_sender} may be: see `receiver inbox stats`"
            )
        all_counted_at, in_all = self._found[None]
        if in_all >= self._in_all:
            raise InboxFullError(
                f"{in_all} notifications are unfinished, at most {self._in_all} may be:"
                " see `receiver inbox stats`"
            )
        self._found[sender] = (counted_at, used + 1)
        self._found[None] = (all_counted_at, in_all + 1)


def _count(sender: str | None, limit: int) -> Script[int]:
    of_sender, values = ("", ()) if sender is None else (" AND sender = $2", (sender,))
    rows = yield Statement(
        "SELECT COUNT(*) AS found FROM (SELECT 1 FROM pushkit_inbox"
        f" WHERE {_UNFINISHED}{of_sender} LIMIT CAST($1 AS BIGINT)) unfinished",
        (limit, *values),
    )
    return int(rows[0]["found"])
