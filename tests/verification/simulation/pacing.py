"""Checks of pace and concurrency: when senders may post to webhooks, and receivers call back.

Each check is excused by certain faults, or by an instruction of an owner or operator.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import inf

from pushkit.storage.script import to_micros
from tests.verification.simulation.disk import Disk, shown_state
from tests.verification.simulation.loop import Process
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.webhook import Arrival
from tests.verification.simulation.world import EPOCH, World

__all__ = ["Pacing"]

_SETTLED = 0.5  # seconds after which a received answer is settled
_FIRST_WAIT = 0.8  # seconds: the shortest wait of the schedule, and its jitter
_SAME = 500_000  # microseconds within which no delivery is attempted twice
_TRIES = 8  # attempts in the schedule
_LONGEST = 60.0  # seconds: no lease is longer
_IN_A_ROW = 5  # failures that open a destination's breaker
_FAILURES_FROM = 500  # the status from which an answer is a failure of the destination
_OPEN_FOR = 29.8  # seconds that a breaker is open at least
_HURRYING = frozenset(
    {"subscribe", "redrive", "resend", "retry_now", "enable", "resume", "recover"}
)
_UNDER_WAY = 10.0  # seconds that an attempt may take
# The errors that end a delivery at once; others do when the schedule is used up.
_FOR_GOOD = frozenset(
    {
        *("rejected", "conflict", "gone", "too_large", "unsupported_media_type", "unprocessable"),
        *("address_refused", "destination_refused", "subscription_missing", "too_old"),
    }
)


class Pacing:
    """The checks of one world."""

    def __init__(
        self,
        world: World,
        outbox: Disk | PostgresServer,  # the senders' database
        inboxes: Mapping[str, Disk | PostgresServer],  # the receivers' databases, by receiver
        *,
        slots: int,  # the most attempts that a process makes at once
    ) -> None:
        self._world = world
        self._slots = slots
        self._outbox = outbox
        self._inboxes = inboxes
        self._arrivals: dict[tuple[str, str], list[Arrival]] = defaultdict(list)
        self._of_delivery: dict[str, list[Arrival]] = defaultdict(list)
        self._of_subscription: dict[str, list[Arrival]] = defaultdict(list)
        self._of_process: dict[Process, list[tuple[str, Arrival]]] = defaultdict(list)
        self._hurries: list[float] = []
        self._revivals: list[float] = []

    def step(self, kind: str) -> None:
        """Note a step of the scenario: after some, deliveries are attempted before their time."""
        if kind in _HURRYING:
            self._hurries.append(self._world.loop.time())

    def moved(self, table: str, before: str | None, after: str | None) -> None:
        """Note a delivery that is brought back: it may have been cancelled during an attempt."""
        if (table, before, after) == ("pushkit_deliveries", "cancelled", "pending"):
            self._revivals.append(self._world.loop.time())

    # --- senders --------------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """Check a request that reached a webhook."""
        if "elsewhere" in arrival.path:
            self._world.violated(f"followed a redirect: {arrival.delivery_id}")
        self._check_alone(arrival)
        rows = self._outbox.select(
            f"SELECT d.*, {shown_state('d')} AS shown, s.id AS known, s.active"
            " FROM pushkit_deliveries d"
            " LEFT JOIN pushkit_subscriptions s ON s.id = d.subscription_id WHERE d.id = ?",
            arrival.delivery_id,
        )
        if not rows:
            return
        row = rows[0]
        self._check_one_at_a_time(row, arrival)
        self._check_share(row, arrival)
        if row["shown"] == "in_flight":  # otherwise its worker lost it during the request
            self._check_wanted(row)
        earlier = self._arrivals[row["owner"], arrival.host]
        for before in earlier[-20:]:
            self._check_wait(before, arrival)
        self._check_breaker(earlier[-20:], arrival)
        earlier.append(arrival)

    def _check_one_at_a_time(self, row: sqlite3.Row, arrival: Arrival) -> None:
        """One request of a subscription is in progress at a time, whatever the outbox says."""
        known = self._of_subscription[row["subscription_id"]]
        known[:] = [each for each in known if each.is_under_way]
        for other in known:
            if other.delivery_id != arrival.delivery_id and not (
                other.after_babble
                or self._was_withdrawn(other.delivery_id)
                or row["state"] == "cancelled"
                or self._goes_out_beside(arrival)
                or self._goes_out_beside(other)
                or self._world.had_trouble("freeze", other.at, arrival.at)
                or self._world.had_trouble("clock", other.at - _LONGEST, arrival.at)
            ):
                self._world.violated(
                    f"two at once of a subscription: {row['id']} {other.delivery_id}"
                )
        known.append(arrival)

    def _goes_out_beside(self, arrival: Arrival) -> bool:
        """Return whether a delivery cancelled during its attempt was brought back, and sent again.

        The outcome of the abandoned attempt is unknown, so the new one does not wait for it.
        """
        begun = arrival.at - _UNDER_WAY
        return any(moment >= begun for moment in self._revivals) and bool(
            self._outbox.select(
                "SELECT 1 FROM pushkit_deliveries WHERE id = ? AND redriven_at IS NOT NULL",
                arrival.delivery_id,
            )
        )

    def _was_withdrawn(self, delivery_id: str) -> bool:
        """Return whether a delivery was cancelled or deleted, so that nothing waits for it."""
        rows = self._outbox.select("SELECT state FROM pushkit_deliveries WHERE id = ?", delivery_id)
        return not rows or rows[0]["state"] == "cancelled"

    def _check_share(self, row: sqlite3.Row, arrival: Arrival) -> None:
        """One owner never has more than three quarters of a process's slots, withdrawn or not."""
        if arrival.process is None:
            return
        known = self._of_process[arrival.process]
        known[:] = [each for each in known if each[1].is_under_way]
        known.append((row["owner"], arrival))
        taken = Counter(owner for owner, _ in known)[row["owner"]]
        if taken > self._slots - self._slots // 4:
            self._world.violated(f"{row['owner']} has {taken} of {self._slots} slots")

    def _check_wanted(self, row: sqlite3.Row) -> None:
        """Nothing is sent for a removed or disabled subscription."""
        if row["known"] is None or not row["active"]:
            self._world.violated(f"sent for a removed subscription: {row['id']}")

    def _check_alone(self, arrival: Arrival) -> None:
        """A process makes one attempt of a delivery at a time."""
        process = arrival.process
        for last in self._of_delivery[arrival.delivery_id]:
            if (
                process is not None
                and last.process is process
                and last.at > process.thawed_at  # a frozen process does not know of time-outs
                and last.answered_at is None
                and last.is_open()
                and not last.after_babble
                and not self._world.had_trouble("clock", last.at - 60, arrival.at)
                and not self._goes_out_beside(last)
            ):
                self._world.violated(f"two attempts of one process at once: {arrival.delivery_id}")
        self._of_delivery[arrival.delivery_id].append(arrival)

    def _check_wait(self, before: Arrival, arrival: Arrival) -> None:
        """A failed delivery waits for its retry, a whole destination for `Retry-After`."""
        heard = before.answered_at
        if heard is None or not before.is_heard() or before.status in (None, 410):
            return
        waited = arrival.at - heard
        is_same = before.delivery_id == arrival.delivery_id
        too_early = (is_same and not before.is_taken and waited < _FIRST_WAIT) or (
            _SETTLED < waited < before.asked_for - 0.2
        )
        if too_early and not self._is_excused(before, arrival):
            whom = "the same" if is_same else "another"
            self._world.violated(
                f"{whom} delivery came {waited:.3f} s after {before.status}: {arrival.delivery_id}"
            )

    def _check_breaker(self, earlier: Sequence[Arrival], arrival: Arrival) -> None:
        """A destination that failed five times in a row waits, and then gets one request at a time.

        Answers are counted only where it is certain that the sender counted them, too: it counts
        no failure while the destination waits because it asked to.
        """
        failures: list[Arrival] = []
        ended = -inf
        for each in sorted(earlier, key=lambda each: each.answered_at or inf):
            if each.answered_at is None:
                if each.after_babble or not each.is_under_way:
                    return  # it ended, for the sender, and nobody knows when
            elif each.drips:
                return  # it counts once its body has timed out
            elif self._may_be_lost(each, each.answered_at):
                return  # nobody knows whether it counted
            elif (each.status or 0) < _FAILURES_FROM or each.may_wait or each.after_babble:
                failures.clear()
                ended = max(ended, each.answered_at + each.may_wait)
            elif each.is_heard() and each.answered_at > ended + _SETTLED:
                failures.append(each)
        if len(failures) < _IN_A_ROW or self._is_excused(failures[0], arrival):
            return
        opened = failures[_IN_A_ROW - 1].answered_at or 0.0
        # Failures before these, of which it is not certain that they counted, may have opened it
        # with the first of these.
        earliest = failures[0].answered_at or 0.0
        if opened + _SETTLED < arrival.at < earliest + _OPEN_FOR:
            self._world.violated(f"came while its breaker was open: {arrival.delivery_id}")
        for each in earlier:
            # Workers know others' requests by leases, which end when deliveries are withdrawn.
            is_known = each.process is arrival.process or not self._was_withdrawn(each.delivery_id)
            if arrival.at > opened + _OPEN_FOR and each.is_under_way and is_known:
                self._world.violated(f"came beside another on probation: {arrival.delivery_id}")
                break

    def _may_be_lost(self, arrival: Arrival, answered_at: float) -> bool:
        """Return whether an answer may not have counted for its destination.

        So it is if its process ended, or its delivery was withdrawn, before it was settled.
        """
        whom = arrival.process.name if arrival.process else ""
        settled_by = answered_at + _SETTLED
        if self._world.had_trouble("death", answered_at, settled_by, whom=whom):
            return True
        rows = self._outbox.select(
            "SELECT state, redrives, finished_at FROM pushkit_deliveries WHERE id = ?",
            arrival.delivery_id,
        )
        if not rows:
            return True
        [row] = rows
        settled = to_micros(EPOCH + timedelta(seconds=settled_by))
        return row["state"] == "cancelled" and bool(
            row["redrives"] > 0 or row["finished_at"] < settled
        )

    def _is_excused(self, before: Arrival, arrival: Arrival) -> bool:
        begin, end, had_trouble = before.at - 2, arrival.at, self._world.had_trouble
        whom = before.process.name if before.process else ""
        return (
            had_trouble("death", begin, end, whom=whom)
            or had_trouble("freeze", begin - 15, end)
            or had_trouble("disk", begin, end)
            or had_trouble("blip", begin, end)
            or had_trouble("clock", begin - 30, end)
            or had_trouble("network", begin - 15, end, whom=arrival.host.partition(".")[0])
            or any(begin <= moment <= end for moment in self._hurries)
        )

    # --- receivers ------------------------------------------------------------------------------

    def calls_back(self, receiver: str, notification_id: int) -> None:
        """Check that the notifications of a task are called back one at a time, in order."""
        older = self._inboxes[receiver].select(
            "SELECT a.delivery_id AS called, b.delivery_id FROM pushkit_inbox a"
            " JOIN pushkit_inbox b ON b.sender = a.sender AND b.task_id = a.task_id AND b.id < a.id"
            f" WHERE a.id = ? AND {shown_state('a', 'pushkit_inbox')} = 'in_progress'"
            " AND b.state = 'pending'",
            notification_id,
        )
        for row in older:
            self._world.violated(f"called back {row['called']} before {row['delivery_id']}")

    # --- at the end -----------------------------------------------------------------------------

    def check_end(self, deaths: Mapping[str, int]) -> None:
        """Check that updates and attempts are stored once, and only requests count as attempts.

        So do deaths of workers with the first delivery of a queue, from the second in a row on.
        """
        rows = self._outbox.select(
            "SELECT d.*, (SELECT COUNT(*) FROM pushkit_attempts a WHERE a.delivery_id = d.id)"
            " + CASE WHEN d.first_attempt IS NULL THEN 0 ELSE 1 END AS logged, b.body"
            " FROM pushkit_deliveries d JOIN pushkit_bodies b ON b.id = d.id"
        )
        bodies = Counter(
            (row["subscription_id"], bytes(row["body"])) for row in rows if b"marker" in row["body"]
        )
        for (subscription, body), number in bodies.items():
            if number > 1:
                self._world.violated(f"stored {number} times for {subscription}: {body[-60:]!r}")
        logged: dict[tuple[str | int | None, ...], list[int]] = defaultdict(list)
        for row in self._outbox.select("SELECT * FROM pushkit_attempts"):
            one = tuple(
                row[name] for name in ("delivery_id", "error", "status", "duration", "wait")
            )
            if any(abs(row["started_at"] - at) < _SAME for at in logged[one]):
                self._world.violated(f"an attempt is in the log twice: {one[0]} {one[1] or ''}")
            logged[one].append(row["started_at"])
        for row in rows:
            what = f"{row['id']} {row['attempts']} of {row['logged']} {row['last_error']}"
            if row["attempts"] > row["logged"] + deaths.get(row["subscription_id"], 0):
                self._world.violated(f"more attempts than requests: {what}")
            if (
                row["state"] == "dead"
                and row["last_error"] not in _FOR_GOOD
                and row["attempts"] < _TRIES
            ):
                self._world.violated(f"dead before its schedule was used up: {what}")
