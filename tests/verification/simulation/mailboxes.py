"""The promises about mailboxes: what clients fetch from a receiver, handle and settle.

Each update that a receiver accepted is handled by a client to its end; the updates of a task in
order, and by one client at a time; and none again once an ack of it was answered. A client that
lost its lease, or an update that comes again, is only excused by a fault because of which the
client was not heard for so long: it was frozen, cut off, or died, or its service was away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import Final

from receiver import Notification
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.ledger import Call
from tests.verification.simulation.loop import Process
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.world import World

__all__ = ["MAILBOX_LEASE", "MAILBOX_TRIES", "Handling", "MailboxPromises"]

MAILBOX_LEASE: Final = timedelta(seconds=10)
MAILBOX_TRIES: Final = 20  # attempts in the schedule of a mailbox
# Seconds until a client is heard again after its service was away: a request that the network
# swallowed times out, and the longest pause before the next one, with its jitter.
_RECOVERY: Final = 45.0 + 36.0
# Faults because of which a service may not answer, for all receivers.
_OF_DATABASES: Final = frozenset({"disk", "upgrade"})
_OF_SERVICES: Final = frozenset({"death", "stop", "freeze"})
_LEASE: Final = MAILBOX_LEASE.total_seconds()
_LOST: Final = (404, 409)  # `unknown_receipt`, `lease_lost`
_OF_NETWORKS: Final = frozenset({"network", "names"})

_BODY = "SELECT body FROM pushkit_inbox WHERE id = ? AND delivery_id = ?"
_OLDER = (
    "SELECT i.delivery_id FROM pushkit_inbox i LEFT JOIN pushkit_mailbox m"
    " ON m.notification_id = i.id WHERE i.sender = ? AND i.task_id = ? AND i.id < ?"
    " AND i.state <> 'dead' AND (m.state IS NULL OR m.state = 'pending')"
)
_UNHANDLED = (
    "SELECT m.id, i.delivery_id, i.task_id, m.state, m.attempts, m.last_error FROM pushkit_mailbox"
    " m LEFT JOIN pushkit_inbox i ON i.id = m.notification_id WHERE m.state = 'pending' LIMIT 3"
)
_LEASED = (
    "SELECT id, due_at, lease_worker FROM pushkit_mailbox_queues"
    " WHERE due_at IS NOT NULL OR lease_worker IS NOT NULL LIMIT 3"
)
_FINISHED = (
    "SELECT i.delivery_id, m.state, m.attempts FROM pushkit_inbox i LEFT JOIN pushkit_mailbox m"
    " ON m.notification_id = i.id WHERE i.state = 'done'"
)


@dataclass(slots=True)
class Handling(Call):
    """A client that was inside of a notification: between fetching it and its ack."""

    notification: Notification | None = None
    delivery_id: str = ""
    is_acked: bool = False  # whether its ack was answered by 200
    not_before: float = 0.0  # when it may come again, if its nack was answered by 200


class MailboxPromises:
    """The checks of one world.

    Args:
        calls: All handlings, by receiver, `mailbox` and delivery, among the calls of callbacks.
        served_at: Returns when a program of a receiver began to answer, each time.
    """

    def __init__(
        self,
        world: World,
        inboxes: Mapping[str, Disk | PostgresServer],  # the receivers' databases, by receiver
        calls: Mapping[tuple[str, str, str], list[Call]],
        served_at: Callable[[str], Sequence[float]] = lambda _: (),
    ) -> None:
        self._world = world
        self._inboxes = inboxes
        self._calls = calls
        self._served_at = served_at
        self._of_tasks: dict[tuple[str, str, str], list[Handling]] = defaultdict(list)

    def begin(self, receiver: str, notification: Notification, process: Process) -> Handling:
        """Check a client that begins to handle a notification."""
        now, delivery_id = self._world.loop.time(), notification.delivery_id
        handling = Handling(
            *(process, now, notification.sender), notification=notification, delivery_id=delivery_id
        )
        calls = self._calls[receiver, "mailbox", delivery_id]
        for before in calls:
            if before.sender == notification.sender:
                assert isinstance(before, Handling)
                self._check_repetition(receiver, before)
        task = (receiver, notification.sender, notification.task_id or delivery_id)
        for other in self._of_tasks[task]:
            self._check_alone(receiver, other, delivery_id)
        self._check_order(receiver, notification)
        bodies = self._inboxes[receiver].select(_BODY, notification.id, delivery_id)
        if not bodies or bytes(bodies[0]["body"]) != notification.body:
            self._world.violated(f"handed out, but not as the inbox has it: {delivery_id}")
        self._of_tasks[task].append(handling)
        calls.append(handling)
        return handling

    def settled(
        self, receiver: str, handling: Handling, verb: str, status: int, asked_at: float
    ) -> None:
        """Check the answer to an ack, a nack or a renewal.

        Without a fault, nothing but an ack or a nack of its client ends a lease. A receipt of a
        lease that has ended may also be unknown: the inbox forgets what is done.

        Args:
            receiver: Whose mailbox it is.
            handling: The client's.
            verb: `ack`, `nack` or `renew`.
            status: The status of the answer.
            asked_at: When it was asked for; for a nack, when it may come again.
        """
        self._world.note(f"mailbox: {verb} of {handling.delivery_id} was answered {status}")
        if status == 200:
            handling.is_acked |= verb == "ack"
            if verb == "nack":
                handling.not_before = asked_at
            self._check_receipt(receiver, handling, verb, asked_at)
        elif status not in _LOST:
            self._world.violated(f"{verb} of {handling.delivery_id} was answered {status}")
        elif not (self._is_over(handling, verb) or self._may_have_ended(receiver, handling)):
            self._world.violated(f"a client lost its lease: {handling.delivery_id}")

    def _is_over(self, handling: Handling, verb: str) -> bool:
        """Return whether its client may have ended the lease itself, and not have heard of it.

        A renewal may cross an ack or a nack. A nack is asked for again if its commit is said to
        have failed, which may have succeeded.
        """
        if verb == "renew":
            return handling.failed or handling.ended is not None
        now = self._world.loop.time()
        return verb == "nack" and self._world.had_trouble("blip", handling.begun, now)

    def _check_receipt(self, receiver: str, handling: Handling, verb: str, asked_at: float) -> None:
        """A client that lost its lease can no longer settle anything, whatever happened.

        Only an ack is for ever: before another answer is heard, the lease may have ended.
        """
        calls = self._calls[receiver, "mailbox", handling.delivery_id]
        for later in calls[calls.index(handling) + 1 :]:
            # A client frozen between its last check and the first line of its loop is the late one.
            was_late = self._world.had_trouble(
                "freeze", later.begun - _LEASE, later.begun, whom=later.process.name
            )
            is_lost = verb == "ack" or later.begun < asked_at
            if later.sender == handling.sender and is_lost and not was_late:
                self._world.violated(
                    f"{verb} under a lease that {later.process.name} has: {handling.delivery_id}"
                )

    def _check_repetition(self, receiver: str, before: Handling) -> None:
        """A notification is handled again only after a nack, or if a fault explains it."""
        if self._world.loop.time() < before.not_before:
            self._world.violated(f"handled again before it was due: {before.delivery_id}")
        if before.failed or before.ended is None:
            return  # its client died, or is inside of the task still: see `_check_alone`
        if before.is_acked:
            self._world.violated(f"handled again after its ack was answered: {before.delivery_id}")
            return
        has_died = self._world.had_trouble(
            "death", before.ended, self._world.loop.time(), whom=before.process.name
        )
        if not has_died and not self._may_have_ended(receiver, before):
            self._world.violated(f"handled again: {before.delivery_id}")

    def _check_alone(self, receiver: str, other: Handling, delivery_id: str) -> None:
        """One client is inside of a task at a time."""
        is_inside = other.ended is None and not other.failed and other.process.alive
        if is_inside and not self._may_have_ended(receiver, other):
            self._world.violated(f"two clients inside of one task: {delivery_id}")

    def _check_order(self, receiver: str, notification: Notification) -> None:
        """What came earlier in the same task was acked, or given up."""
        if not notification.task_id:
            return
        for row in self._inboxes[receiver].select(
            _OLDER, notification.sender, notification.task_id, notification.id
        ):
            self._world.violated(
                f"handled {notification.delivery_id} before {row['delivery_id']}: order of a task"
            )

    def _may_have_ended(self, receiver: str, handling: Handling) -> bool:
        """Return whether a fault explains that a lease ended before its client settled it."""
        now, client = self._world.loop.time(), handling.process.name
        services = (receiver, receiver.replace("recv", "twin"))
        hosts = (receiver, client.partition(".")[0])
        for each in self._world.troubles:
            unit, until = each.whom.partition(".")[0], each.end
            if each.kind in _OF_SERVICES and unit in services:
                served = (at for at in self._served_at(unit) if at >= each.begin)
                until = max(until, next(served, inf) if each.kind != "freeze" else until)
            elif not (
                (each.kind in _OF_NETWORKS and each.whom in hosts)
                or (each.kind == "freeze" and each.whom == client)
                or each.kind in _OF_DATABASES
            ):
                continue
            if each.begin <= now and until + _RECOVERY >= handling.begun:
                return True
        return False

    # --- at the end -----------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Return whether no mailbox has anything left to hand out."""
        return not any(self._left())

    def _left(self) -> Iterator[str]:
        for receiver, inbox in self._inboxes.items():
            for row in inbox.select(_UNHANDLED):
                yield f"{receiver}: left in its mailbox: {dict(row)}"
            for row in inbox.select(_LEASED):
                yield f"{receiver}: its mailbox has nothing left: {dict(row)}"

    def is_dead(self, receiver: str, delivery_id: str) -> bool:
        """Return whether a notification is a dead letter of a mailbox."""
        return bool(
            self._inboxes[receiver].select(
                "SELECT 1 FROM pushkit_mailbox m JOIN pushkit_inbox i ON i.id = m.notification_id"
                " WHERE m.state = 'dead' AND i.delivery_id = ?",
                delivery_id,
            )
        )

    def check_end(self) -> None:
        """Check that mailboxes are empty, and all that was in them was handled, or given up."""
        for left in self._left():
            self._world.violated(left)
        for receiver, inbox in self._inboxes.items():
            for row in inbox.select(_FINISHED):
                delivery_id = row["delivery_id"]
                calls = self._calls[receiver, "mailbox", delivery_id]
                if row["state"] is None:
                    self._world.violated(f"{receiver}: not kept in its mailbox: {delivery_id}")
                elif row["state"] == "done" and not any(each.ended for each in calls):
                    self._world.violated(f"{receiver}: acked, but not handled: {delivery_id}")
                elif row["state"] == "dead" and row["attempts"] < MAILBOX_TRIES:
                    self._world.violated(f"{receiver}: given up too early: {dict(row)}")
