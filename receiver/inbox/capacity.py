"""The capacity of the inbox: how many notifications may be unfinished, by sender and in all."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pushkit.errors import InboundError
from pushkit.queue.tables import UNFINISHED
from pushkit.storage.quota import Quota
from pushkit.storage.script import Script, count


class SenderBacklogFullError(InboundError, code="backlog_full", status=429):
    """Too many notifications of this sender are unfinished; it should retry later."""


class InboxFullError(InboundError, code="inbox_full", status=503):
    """Too many notifications are unfinished; every sender should retry later."""


class Capacity:
    """Quotas of unfinished notifications, for each sender and for all together."""

    def __init__(
        self,
        *,
        per_sender: int,
        in_all: int,
        command: str,  # shows an operator what is unfinished
    ) -> None:
        self._command = command
        self._of_sender = Quota[str | None](per_sender, _count)
        self._of_all = Quota[str | None](in_all, _count)
        # By sender, or None for all: how many more may be accepted, by the last `count`. It cannot
        # grow without bound: only trusted senders are counted.
        self._left: dict[str | None, int] = {}

    def count(self, senders: Iterable[str], now: datetime) -> Script[None]:
        """Count the unfinished notifications of these senders and of all, if that is due."""
        for sender in senders:
            self._left[sender] = yield from self._of_sender.left(sender, now)
        self._left[None] = yield from self._of_all.left(None, now)

    def take(self, sender: str) -> None:
        """Count one more notification of a sender, after `count`.

        Raises:
            SenderBacklogFullError: The sender has no capacity left.
            InboxFullError: The inbox has none left.
        """
        left = self._left
        if left[sender] <= 0:
            raise SenderBacklogFullError(
                f"{self._of_sender.limit - left[sender]} notifications of sender {sender!r}"
                f" are unfinished, at most {self._of_sender.limit} may be: see `{self._command}`"
            )
        if left[None] <= 0:
            raise InboxFullError(
                f"{self._of_all.limit - left[None]} notifications are unfinished, at most"
                f" {self._of_all.limit} may be: see `{self._command}`"
            )
        left[sender] -= 1
        left[None] -= 1
        self._of_sender.add(sender, 1)
        self._of_all.add(None, 1)


def _count(sender: str | None, limit: int) -> Script[int]:
    rows = f"pushkit_inbox WHERE {UNFINISHED}"
    if sender is None:
        return count(rows, limit=limit)
    return count(f"{rows} AND sender = $1", sender, limit=limit)
