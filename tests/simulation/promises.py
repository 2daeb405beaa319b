"""What must hold, checked whenever something happens and at the end.

A repetition is only forgiven with a reason: the process that knew of the first died, the disk would
not take it down, or a clock was set. Each check says which promise it holds.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.simulation.disk import Disk
from tests.simulation.loop import Process
from tests.simulation.postgres import PostgresServer
from tests.simulation.webhook import Arrival
from tests.simulation.world import World

__all__ = ["Call", "Notice", "Promises"]

_SETTLING = 2.0  # seconds that settling takes at most where nothing is wrong
_UNFINISHED = "SELECT * FROM pushkit_deliveries WHERE state IN ('pending', 'in_flight') LIMIT 3"
_UNCALLED = (
    "SELECT id, delivery_id, task_id, seq, status, attempts, last_error FROM pushkit_inbox"
    " WHERE status IN ('received', 'in_progress') LIMIT 3"
)


@dataclass(slots=True)
class Notice:
    """An update that an agent was given.

    Attributes:
        marker: What tells it from all others.
        at: When.
        ids: Its deliveries, once that was acknowledged.
        not_stored: The agent was told that nothing was stored.
    """

    marker: str
    at: float
    ids: list[str] = field(default_factory=list)
    not_stored: bool = False


@dataclass(slots=True)
class Call:
    """A callback that ran.

    Attributes:
        process: Where.
        begun: When it began.
        ended: When it ended well, if it did.
        failed: It raised.
    """

    process: Process
    begun: float
    ended: float | None = None
    failed: bool = False


class Promises:
    """The ledger of a world.

    Args:
        world: Which.
        outbox: Where the deliveries are.
        inboxes: Where the receivers' notifications are, by receiver.
        timeout: Seconds after which a sender does not hear an answer any more.
    """

    def __init__(
        self,
        world: World,
        outbox: Disk | PostgresServer,
        inboxes: Mapping[str, Disk | PostgresServer],
        *,
        timeout: float,
    ) -> None:
        self._world = world
        self._outbox = outbox
        self._inboxes = inboxes
        self._timeout = timeout
        self.notices: list[Notice] = []
        self.arrivals: dict[str, list[Arrival]] = defaultdict(list)
        self.calls: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
        self.brought_back: set[str] = set()
        self.moves: Counter[str] = Counter()

    # --- at every step --------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """Judge a request that reached a webhook."""
        rows = self._outbox.select(
            "SELECT * FROM pushkit_deliveries WHERE id = ?", arrival.delivery_id
        )
        if not rows:
            self._world.violated(f"sent, and not in the outbox: {arrival.delivery_id}")
            return
        earlier = self.arrivals[arrival.delivery_id]
        for before in earlier:
            self._check_repetition(before, arrival)
        self._check_order(rows[0])
        earlier.append(arrival)

    def _check_repetition(self, before: Arrival, arrival: Arrival) -> None:
        """At least once, and no more than once without a reason."""
        process = before.process.name if before.process else ""
        known_until = (before.answered_at or arrival.at) + _SETTLING
        if (
            arrival.delivery_id in self.brought_back
            or self._world.had_trouble("death", before.at, known_until, whom=process)
            or self._world.had_trouble("clock", before.at - 2 * self._timeout, known_until)
            or self._world.had_trouble("freeze", before.at, known_until, whom=process)
            or self._world.had_trouble("disk", before.at, known_until)
        ):
            return
        if before.is_taken:
            self._world.violated(f"came again after it was taken: {arrival.delivery_id}")
        elif (
            before.is_open()
            and not before.answered_at
            and arrival.at - before.at < self._timeout / 2
        ):
            self._world.violated(f"two attempts at once: {arrival.delivery_id}")

    def _check_order(self, row: sqlite3.Row) -> None:
        """An update waits for the one before it, of its subscription."""
        if row["state"] != "in_flight":
            return  # an attempt that is none any more: its worker lost it
        before = self._outbox.select(
            "SELECT id FROM pushkit_deliveries WHERE subscription_id = ? AND seq < ?"
            " AND state IN ('pending', 'in_flight')",
            row["subscription_id"],
            row["seq"],
        )
        overtaken = [each["id"] for each in before if each["id"] not in self.brought_back]
        if overtaken and row["id"] not in self.brought_back:
            self._world.violated(f"{row['id']} (seq {row['seq']}) overtook {overtaken}")

    def begin_call(self, receiver: str, callback: str, delivery_id: str, process: Process) -> Call:
        """Judge a callback that begins."""
        now = self._world.loop.time()
        calls = self.calls[receiver, callback, delivery_id]
        for before in calls:
            self._check_call(before, delivery_id, now)
        if not self._outbox.select("SELECT 1 FROM pushkit_deliveries WHERE id = ?", delivery_id):
            self._world.violated(f"called back, and nobody sent it: {delivery_id}")
        call = Call(process, now)
        calls.append(call)
        return call

    def _check_call(self, before: Call, delivery_id: str, now: float) -> None:
        """Every callback once, but for what was inside it when its process ended."""
        if before.failed:
            return
        known_until = (before.ended or now) + _SETTLING
        if (
            self._world.had_trouble("death", before.begun, known_until, whom=before.process.name)
            or self._world.had_trouble("freeze", before.begun, now, whom=before.process.name)
            or self._world.had_trouble("disk", before.begun, known_until)
            or self._world.had_trouble("clock", before.begun - self._timeout, known_until)
        ):
            return
        if before.ended is None:
            self._world.violated(f"in two callbacks at once: {delivery_id}")
        else:
            self._world.violated(f"called back twice: {delivery_id}")

    def moved(self, before: str | None, after: str, error: str | None) -> None:
        """Judge a change of a delivery's state."""
        self.moves[f"{before} -> {after} ({error or 'ok'})"] += 1
        if (before, after) not in _TRANSITIONS:
            self._world.violated(f"no transition of the table: {before} -> {after}")

    # --- at the end -----------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Say whether nothing is unfinished any more."""
        return not self._outbox.select(_UNFINISHED) and not any(
            inbox.select(_UNCALLED) for inbox in self._inboxes.values()
        )

    def check_end(self, origin_of: Callable[[str], str]) -> None:
        """Hold all accounts against each other, once everything is over."""
        for row in self._outbox.select(_UNFINISHED):
            self._world.violated(f"not drained: {_brief(row)}")
        for name, inbox in self._inboxes.items():
            for row in inbox.select(_UNCALLED):
                self._world.violated(f"{name}: not called back: {dict(row)}")
        rows = {row["id"]: row for row in self._outbox.select("SELECT * FROM pushkit_deliveries")}
        for notice in self.notices:
            for lost in set(notice.ids) - set(rows):
                self._world.violated(f"acknowledged and lost: {notice.marker} {lost}")
        stored = {row["idempotency_key"] for row in rows.values()}
        for notice in self.notices:
            if notice.not_stored and notice.marker in stored:
                self._world.violated(f"said not to be stored, and stored: {notice.marker}")
        for row in rows.values():
            host = origin_of(row["origin"])
            if host in self._inboxes:
                self._check_called(host, row)
            else:
                self._check_state(row)

    def _check_state(self, row: sqlite3.Row) -> None:
        """A delivery's state, and its reason, are what webhooks have seen."""
        statuses = [each.status for each in self.arrivals[row["id"]]]
        if row["state"] == "delivered" and not any(s and 200 <= s < 300 for s in statuses):
            self._world.violated(f"delivered, and no webhook took it: {_brief(row)} {statuses}")
        number = (row["last_error"] or "").removeprefix("status_")
        if row["state"] == "dead" and number.isdigit() and int(number) not in statuses:
            self._world.violated(f"dead of an answer that nobody gave: {_brief(row)} {statuses}")

    def _check_called(self, host: str, row: sqlite3.Row) -> None:
        """What a receiver accepted was called back, unless it became a dead letter there."""
        if row["state"] != "delivered" or all(
            any(call.ended for call in self.calls[host, callback, row["id"]])
            for callback in ("client", "audit")
        ):
            return
        found = self._inboxes[host].select(
            "SELECT status FROM pushkit_inbox WHERE delivery_id = ?", row["id"]
        )
        if not found or found[0]["status"] != "dead":
            self._world.violated(f"delivered to {host}, and never called back: {_brief(row)}")


_TRANSITIONS = frozenset(
    {
        (None, "pending"),
        ("pending", "pending"),
        ("pending", "in_flight"),
        ("pending", "cancelled"),
        ("in_flight", "in_flight"),
        ("in_flight", "pending"),
        ("in_flight", "delivered"),
        ("in_flight", "dead"),
        ("in_flight", "cancelled"),
        ("dead", "pending"),
        ("delivered", "pending"),
        ("cancelled", "pending"),
        ("delivered", "delivered"),
        ("dead", "dead"),
        ("cancelled", "cancelled"),
    }
)


def _brief(row: sqlite3.Row) -> str:
    names = ("id", "task_id", "seq", "state", "attempts", "head", "last_error")
    return " ".join(f"{name}={row[name]}" for name in names)
