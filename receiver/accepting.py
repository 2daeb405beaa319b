"""Steps 7 to 9 of the verification: id, binding and notification, in one transaction."""

from __future__ import annotations

from pushkit.storage import Database, Script
from receiver.credentials import ProvenSecret
from receiver.expected import ExpectedStore
from receiver.inbox import BacklogFullError, Capacity, Inbox, InboxFullError, task_lock
from receiver.limits import Limits
from receiver.replay import ConflictError, Replay, ReplayMemory, Reservation
from receiver.trust import TaskPolicy
from receiver.verification import Verified

__all__ = ["Acceptance"]


class Acceptance:
    """Accepts what is proven, if its id is fresh, its task expected, and there is room.

    Args:
        database: Where inbox and expected tasks live.
        replay: The memory of ids.
        expected: Whose tasks are waited for.
        limits: How much may be unfinished.
    """

    def __init__(
        self, database: Database, replay: ReplayMemory, expected: ExpectedStore, limits: Limits
    ) -> None:
        self._database = database
        self._replay = replay
        self._expected = expected
        self._inbox = Inbox()
        self._capacity = Capacity(
            per_sender=limits.max_backlog_per_sender, in_all=limits.max_backlog
        )

    def accept(self, verified: Verified, reservation: Reservation) -> Script[int | None]:
        """Store a notification; return its id, or None for one that was accepted before.

        Raises:
            InboundError: It is refused, and nothing is stored.
        """
        sender, said = verified.sender, verified.notification
        delivery_id, task_id, secret = reservation.seen.delivery_id, said.task_id, verified.secret
        yield from self._hold(sender.name, task_id, secret, sender.tasks)
        now = yield from self._database.now()
        if (yield from self._replay.remember(reservation, now)) is Replay.DUPLICATE:  # 7
            return None
        yield from self._expected.check(  # 8
            sender.tasks, sender=sender.name, secret=secret, task_id=task_id, now=now
        )
        try:
            yield from self._capacity.take(sender.name, now)  # 9
        except (BacklogFullError, InboxFullError):
            # The memory of ids may be elsewhere, and may have lost what the inbox still has.
            if (yield from self._inbox.has(sender.name, delivery_id, verified.body)):
                return None
            raise
        notification_id = yield from self._inbox.store(
            sender=sender.name,
            delivery_id=delivery_id,
            kid=said.kid or "",
            issued_at=said.issued_at or now,
            task_id=task_id,
            config_id=said.config_id,
            seq=said.seq,
            body=verified.body,
            now=now,
        )
        if notification_id is None:
            # Not in the memory of ids, but still in the inbox: an update is called back once.
            if not (yield from self._inbox.has(sender.name, delivery_id, verified.body)):
                raise ConflictError("this id is in the inbox with another body")
            return None
        yield from self._database.wake()
        return notification_id

    def _hold(
        self, sender: str, task_id: str | None, secret: ProvenSecret | None, tasks: TaskPolicy
    ) -> Script[None]:
        if secret is not None and tasks is TaskPolicy.BIND:
            # Of two tasks that come at once with one token, one binds it.
            yield from self._database.exclusively(f"token {sender} {secret.sha256}")
        if task_id is not None:
            # One at a time: its ids grow in the order of commits, and each `seq` is compared.
            yield from self._database.exclusively(task_lock(sender, task_id))
