"""The capacity of the inbox: how many notifications may be unfinished, by sender and in all."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from pushkit.errors import InboundError
from pushkit.storage.script import Script, count
from receiver.inbox.schema import UNFINISHED

_COUNT_AGE: Final = timedelta(seconds=1)
_RETRY_AFTER: Final = timedelta(seconds=10)


class BacklogFullError(InboundError, code="backlog_full", status=429):
    """Too many notifications of this sender are unfinished; it should retry later."""

    retry_after = _RETRY_AFTER


class InboxFullError(InboundError, code="inbox_full", status=503):
    """Too many notifications are unfinished; every sender should retry later."""

    retry_after = _RETRY_AFTER


class Capacity:
    """Counts unfinished notifications, at most once a second, and no further than to the limits.

    Between two counts it adds what this process accepts. Other processes may exceed a limit by as
    much as they accept within a second.

    Args:
        per_sender: How many notifications of one sender may be unfinished.
        in_all: How many of all senders.
    """

    def __init__(self, *, per_sender: int, in_all: int) -> None:
        self._per_sender = per_sender
        self._in_all = in_all
        # By sender, or None for all: when they were counted, and how many are unfinished. It cannot
        # grow without bound: only trusted senders are counted.
        self._found: dict[str | None, tuple[datetime, int]] = {}

    def count(self, senders: Iterable[str], now: datetime) -> Script[None]:
        """Count the unfinished notifications of these senders and of all, if that is due."""
        for holder in (*senders, None):
            counted_at, _ = self._found.get(holder, (None, 0))
            if counted_at is None or not timedelta(0) <= now - counted_at < _COUNT_AGE:
                most = self._in_all if holder is None else self._per_sender
                self._found[holder] = (now, (yield from _count(holder, most)))

    def take(self, sender: str) -> None:
        """Count one more notification of a sender, after `count`.

        Raises:
            BacklogFullError: The sender has no capacity left.
            InboxFullError: The inbox has none left.
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
    rows = f"SELECT 1 FROM pushkit_inbox WHERE {UNFINISHED}{of_sender}"
    return count(f"({rows} LIMIT CAST($1 AS BIGINT)) unfinished", limit, *values)
