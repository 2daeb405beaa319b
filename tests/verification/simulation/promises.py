"""The promises about deliveries and callbacks, checked at every event and at the end.

A repetition is only excused by a fault: the process that knew of the first died or was frozen, the
database could not store it, or a clock was set. The docstring of each check states its promise.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf

from pushkit import NotifyResult, Subscription, TaskState
from pushkit.secrets.sealing import is_sealed
from receiver import Notification
from tests.verification.simulation.coverage import key_of
from tests.verification.simulation.disk import Disk, QueueRow, shown_state
from tests.verification.simulation.fairness import check_fairness
from tests.verification.simulation.gathered import says_all
from tests.verification.simulation.ledger import Call, Instructions, Notice
from tests.verification.simulation.loop import Process
from tests.verification.simulation.mailboxes import MailboxPromises
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.webhook import Arrival
from tests.verification.simulation.world import World

__all__ = ["TRANSITIONS", "Promises"]

_AWAKE = 0.0002  # seconds after which a thawed process may have asked the database
_SETTLING = 2.0  # seconds that settling takes at most without a fault
# Seconds after which a delivery arrives at most that began before its worker knew of a change:
# it looks every quarter of a second.
_STALE = 0.35
_QUANTUM = 8  # the most deliveries of a queue that a claim hands out
_LEASE = 60.0  # seconds that a receiver's lease lasts
_IDLE_TIMEOUT = 10.0  # seconds after which PostgreSQL ends an idle transaction
_UNFINISHED = "SELECT * FROM pushkit_deliveries WHERE state = 'pending' LIMIT 3"
_LEASED = (
    "SELECT id, lease_worker, due_at FROM pushkit_subscriptions"
    " WHERE lease_worker IS NOT NULL OR due_at IS NOT NULL LIMIT 3"
)
_DELIVERY = f"SELECT d.*, {shown_state('d')} AS shown FROM pushkit_deliveries d"
_STORED = (
    f"SELECT d.*, {shown_state('d')} AS shown, b.body, q.lease_worker FROM pushkit_deliveries d"
    " JOIN pushkit_bodies b ON b.id = d.id"
    " LEFT JOIN pushkit_subscriptions q ON q.id = d.subscription_id WHERE d.id = ?"
)
_GIVEN_TWICE = (
    "SELECT task_id, config_id, seq, COUNT(*) AS number FROM pushkit_deliveries"
    " GROUP BY tenant, task_id, owner, config_id, seq HAVING COUNT(*) > 1"
)
_ANSWERS = (
    "SELECT a.delivery_id, a.answer, d.origin FROM pushkit_attempts a"
    " JOIN pushkit_deliveries d ON d.id = a.delivery_id WHERE a.answer IS NOT NULL"
)
_ACCEPTED = (
    "SELECT 1 FROM pushkit_inbox WHERE delivery_id = ?1"
    " UNION ALL SELECT 1 FROM pushkit_forgotten WHERE delivery_id = ?1"
)
_UNCALLED = (
    "SELECT id, delivery_id, task_id, seq, state, attempts, last_error FROM pushkit_inbox"
    " WHERE state = 'pending' LIMIT 3"
)
_HELD = (
    "SELECT id, lease_worker, due_at FROM pushkit_inbox_queues"
    " WHERE lease_worker IS NOT NULL OR due_at IS NOT NULL LIMIT 3"
)
_WITHOUT_QUEUE = (
    "SELECT id, queue_id, delivery_id FROM pushkit_inbox"
    " WHERE queue_id NOT IN (SELECT id FROM pushkit_inbox_queues)"
)
_HOLDER = (
    "SELECT q.lease_worker, i.place, q.sending_to FROM pushkit_inbox i"
    " JOIN pushkit_inbox_queues q ON q.id = i.queue_id WHERE i.id = ?"
)
_AND_THE_NEXT = (
    "SELECT b.body FROM pushkit_deliveries d JOIN pushkit_bodies b ON b.id = d.id"
    " WHERE d.subscription_id = ?1 AND d.seq IN (?2, ?2 + 1) ORDER BY d.seq"
)
# What is handed out together with a delivery, or a notification, though workers died with its queue
# twice in a row.
_BESIDE = (
    "SELECT d.id FROM pushkit_deliveries d JOIN pushkit_subscriptions q ON q.id = d.subscription_id"
    f" WHERE q.id = ? AND d.id <> ? AND q.abandoned > 1 AND {shown_state('d')} = 'in_flight'"
)
_BESIDE_CALLED = (
    "SELECT i.delivery_id AS id FROM pushkit_inbox i JOIN pushkit_inbox_queues q"
    " ON q.id = i.queue_id WHERE q.id = (SELECT queue_id FROM pushkit_inbox WHERE id = ?1)"
    f" AND i.id <> ?1 AND q.abandoned > 1 AND {shown_state('i', 'pushkit_inbox')} = 'in_progress'"
)
# The stored filter of a subscription to everything.
_EVERYTHING = '{"states": null, "kinds": null, "last_chunk_only": false}'
# The codes by which an update may be refused, each with the shape of update that it is for.
_REFUSALS = {
    ("payload_too_large", "big"),
    ("snapshot_required", "bare"),
    ("invalid_update", "unknown"),
}
_MAY_BE_REFUSED = {shape for _, shape in _REFUSALS}
# The errors of deliveries that are dead after one answer, and its status.
_AT_ONCE = {
    "rejected": 400,
    "conflict": 409,
    "gone": 410,
    "too_large": 413,
    "unsupported_media_type": 415,
    "unprocessable": 422,
}
_STATES = frozenset(TaskState)
_REFUSED = {"address_refused", "destination_refused"}
_MISTRUSTED = {"status_401", "status_403", "status_404"}
_LEFT_BEHIND = {"worker_died", "lease_expired"}
_AFTER_REFUSALS = 3
_TRIES = 8  # attempts of a delivery
_UNANSWERED = {"timeout", "transport", "connection_refused", "dns_failure", "tls_failure"}


class Promises:
    """The checks of one world, and the records they need.

    Attributes:
        instructions: What owners and operators asked for.
        notices: All updates.
        moves: How often each change of state happened (see `coverage.key_of`).
        claims: At least how many deliveries were handed to workers.
        deaths: How often a worker died with a queue, after another one had, by subscription.
    """

    def __init__(
        self,
        world: World,
        outbox: Disk | PostgresServer,  # the senders' database
        inboxes: Mapping[str, Disk | PostgresServer],  # the receivers' databases, by receiver
        *,
        timeout: float,  # seconds after which a sender stops waiting for an answer
        coalesces: bool = False,  # whether backlogs are short, and newer statuses replace older
        # Returns the name under which a process claims deliveries, if it is known.
        worker_of: Callable[[Process], str | None] = lambda _: None,
        faulty_hosts: Collection[str] = (),  # hosts that ever had a fault
        # Returns when a receiver's program began to serve; None if receivers have no mailboxes.
        served_at: Callable[[str], Sequence[float]] | None = None,
    ) -> None:
        self.instructions = Instructions(world.loop.time)
        self._coalesces = coalesces
        self._worker_of = worker_of
        self._faulty_hosts = faulty_hosts
        self._newest: dict[str, int] = {}
        # When the first request of each attempt came: a closed connection is retried at once.
        self._begun: dict[tuple[str, int, Process | None], float] = {}
        self._world = world
        self._outbox = outbox
        self.inboxes = inboxes
        self._timeout = timeout
        self.notices: list[Notice] = []
        self.arrivals: dict[str, list[Arrival]] = defaultdict(list)
        self.calls: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
        self.moves: Counter[str] = Counter()
        self.claims = 0
        self.deaths: Counter[str] = Counter()
        # The epochs of queues that an inbox had, and deleted.
        self._epochs: dict[tuple[Disk | PostgresServer, str], int] = {}
        self._lost: dict[str, set[str]] = defaultdict(set)  # what inboxes had, by receiver
        self._joined: list[Subscription] = []
        self.mailboxes: MailboxPromises | None = None
        self._callbacks = ["client", "audit"]
        if served_at is not None:
            self.mailboxes = MailboxPromises(world, inboxes, self.calls, served_at)
            self._callbacks.append("mailbox")

    # --- at every step --------------------------------------------------------------------------

    def wanting(self, task: str) -> set[tuple[str, int]]:
        """Return the subscriptions that want all updates of a task, with their last change."""
        rows = self._outbox.select(
            "SELECT id, updated_at FROM pushkit_subscriptions WHERE task_id = ? AND active = 1"
            " AND removed_at IS NULL AND filter = ?",
            task,
            _EVERYTHING,
        )
        return {(row["id"], row["updated_at"]) for row in rows}

    def acknowledged(
        self, notice: Notice, result: NotifyResult, wanting: set[tuple[str, int]]
    ) -> None:
        """Check that an acknowledged update is stored for each subscription that wants it.

        Args:
            notice: The update.
            result: What `notify()` returned.
            wanting: The result of `wanting()` before `notify()` was called.
        """
        self._world.note(f"acknowledged {notice.marker} {result.ids}")
        reported = {each.subscription_id for each in result.deliveries}
        reported |= {each.subscription_id for each in result.refused}
        forgotten = {name for name, _ in wanting & self.wanting(notice.task)} - reported
        if forgotten:
            self._world.violated(f"acknowledged, but not stored: {notice.marker} for {forgotten}")
        if not self.instructions.is_purged and notice.task not in self.instructions.erased:
            for lost in set(notice.ids) - set(result.ids):
                self._world.violated(f"the same idempotency key made another delivery than {lost}")
        for each in result.refused:
            self._world.secrets.check("a refusal", each.message)
            is_full = each.owner.startswith("mallory") or self._coalesces
            is_full &= each.code == "backlog_full"
            is_full &= not TaskState(notice.shape).terminal if notice.shape in _STATES else True
            if (each.code, notice.shape) not in _REFUSALS and not is_full:
                self._world.violated(
                    f"refused without a reason: {notice.marker}: {each.code}: {each.message}"
                )
        notice.ids = list(result.ids)
        notice.acknowledged_at = self._world.loop.time()

    def joined(self, subscription: Subscription) -> None:
        """Note that a subscription was acknowledged, with a snapshot of its task."""
        self._joined.append(subscription)
        self._world.note(f"joined {subscription.key.task_id} at seq {subscription.last_seq}")

    def _check_snapshots(self) -> None:
        """A snapshot is the first delivery, and every update is in it or has one of its own."""
        if self.instructions.is_purged or self._coalesces:  # which refuses updates to some
            return
        for joined in self._joined:
            rows = self._outbox.select(
                "SELECT d.id, d.seq, b.body FROM pushkit_deliveries d JOIN pushkit_bodies b"
                " ON b.id = d.id WHERE d.subscription_id = ? ORDER BY d.seq",
                joined.id,
            )
            task = joined.key.task_id
            if (task, joined.key.owner) in self.instructions.cancelling:
                continue  # it was disabled or removed for a while, or for good
            if not rows or rows[0]["seq"] != 1 or b'"stored"' not in bytes(rows[0]["body"]):
                self._world.violated(f"does not begin with its snapshot: {joined.id} {task}")
                continue
            gone_at = self._gone_at(joined.id)  # it was disabled: later updates are not for it
            [body] = (bytes(row["body"]) for row in rows if row["seq"] == joined.last_seq)
            ids = {row["id"] for row in rows}
            for notice in self.notices:
                if notice.task != task or notice.acknowledged_at is None:
                    continue
                if notice.acknowledged_at > gone_at:
                    continue
                is_there = f'"{notice.marker}"'.encode() in body or ids.intersection(notice.ids)
                if not is_there and notice.shape not in _MAY_BE_REFUSED:
                    self._world.violated(f"missed by {joined.id}: {notice.marker}")

    def arrived(self, arrival: Arrival) -> None:
        """Check a request that reached a webhook: its body, order, lease, and repetition."""
        rows = self._outbox.select(_STORED, arrival.delivery_id)
        if not rows:
            if not self.instructions.is_purged and arrival.task not in self.instructions.erased:
                self._world.violated(f"sent, but not in the outbox: {arrival.delivery_id}")
            return
        earlier = self.arrivals[arrival.delivery_id]
        for before in earlier:
            self._check_repetition(before, arrival)
        self._check_order(rows[0], arrival.host)
        self._check_first(rows[0], is_first=not earlier)
        self._check_lease(rows[0], arrival)
        if rows[0]["shown"] == "in_flight":
            self._check_alone(
                rows[0]["id"],
                self._outbox.select(_BESIDE, rows[0]["subscription_id"], rows[0]["id"]),
            )
        self._check_silence(rows[0], arrival)
        self._check_destination(rows[0])
        if arrival.body != bytes(rows[0]["body"]):
            self._world.violated(f"another body than was stored: {arrival.delivery_id}")
        earlier.append(arrival)

    def _check_first(self, row: sqlite3.Row, *, is_first: bool) -> None:
        """Deliveries of a subscription arrive for the first time in the order of `seq`."""
        if not is_first or row["id"] in self.instructions.brought_back:
            return
        if row["state"] in ("cancelled", "dead"):  # what comes later waits no more
            return
        newest = self._newest.get(row["subscription_id"], 0)
        if row["seq"] < newest:
            self._world.violated(f"{row['id']} (seq {row['seq']}) came after seq {newest}")
        self._newest[row["subscription_id"]] = max(row["seq"], newest)

    def _check_lease(self, row: sqlite3.Row, arrival: Arrival) -> None:
        """A worker attempts only deliveries whose lease it holds."""
        process = arrival.process
        worker = self._worker_of(process) if process is not None and process.alive else None
        if row["shown"] != "in_flight" or worker in (None, row["lease_worker"]):
            return
        begun = arrival.at - 2 * self._timeout
        # A process that freezes between its last check and the first byte sends it once thawed.
        if process is not None and self._world.had_trouble(
            "freeze", begun, arrival.at, whom=process.name
        ):
            return
        if not self._world.had_trouble("clock", begun, arrival.at):
            self._world.violated(
                f"{row['id']} was sent by {worker}, and {row['lease_worker']} has its lease"
            )

    def _check_alone(self, delivery_id: str, beside: Sequence[sqlite3.Row]) -> None:
        """After two deaths of workers with a queue, in a row, its first job goes alone."""
        if beside:
            ids = [row["id"] for row in beside]
            self._world.violated(f"{delivery_id} goes beside {ids}, though two workers died")

    def _check_silence(self, row: sqlite3.Row, arrival: Arrival) -> None:
        """No attempt begins for a subscription that is paused, disabled or removed."""
        attempt = (row["id"], row["attempts"], arrival.process)
        first = self._begun.setdefault(attempt, arrival.at)
        since = self.instructions.silent_since(row["task_id"], row["owner"])
        if since is None:
            return
        begun = since - self._timeout  # a request on a slow network may have begun before
        host, _, _ = arrival.host.partition(".")
        is_slow = self._world.had_trouble("network", begun, arrival.at, whom=host)
        is_slow |= self._world.had_trouble("freeze", begun, arrival.at)
        is_late = first - since > _STALE + is_slow * (self._timeout + _SETTLING)
        # Operators may resend deliveries of a subscription that was withdrawn as its task ended.
        is_asked_for = row["id"] in self.instructions.brought_back and self._is_withdrawn(row)
        if is_late and not is_asked_for:
            self._world.violated(f"sent after it was paused, disabled or removed: {_brief(row)}")

    def _check_destination(self, row: sqlite3.Row) -> None:
        """An unfinished delivery is stored with the destination of its subscription."""
        moved = self._outbox.select(
            "SELECT s.origin FROM pushkit_subscriptions s JOIN pushkit_deliveries d"
            " ON d.subscription_id = s.id WHERE d.id = ? AND d.origin <> s.origin"
            " AND d.state = 'pending'",
            row["id"],
        )
        if moved:
            self._world.violated(
                f"not moved to {moved[0]['origin']}: {_brief(row)} {row['origin']}"
            )

    def _is_withdrawn(self, row: sqlite3.Row) -> bool:
        withdrawn = "SELECT 1 FROM pushkit_subscriptions WHERE id = ? AND removed_at IS NOT NULL"
        return bool(self._outbox.select(withdrawn, row["subscription_id"]))

    def _check_repetition(self, before: Arrival, arrival: Arrival) -> None:
        """A delivery arrives again only if a fault, or an operator, explains it."""
        process = before.process.name if before.process else ""
        other = arrival.process.name if arrival.process else ""
        known_until = self._written_by(self._outbox, before.answered_at or arrival.at)
        # A process that freezes between its last check and the first byte sends it once thawed.
        begun = before.at - 2 * self._timeout
        if (
            arrival.delivery_id in self.instructions.brought_back
            or before.after_babble  # its sender may have taken another's answer for its own
            or self._world.had_trouble("death", before.at, known_until, whom=process)
            or self._world.had_trouble("clock", begun, known_until)
            or self._world.had_trouble("freeze", begun, known_until, whom=process)
            or self._world.had_trouble("freeze", begun, known_until, whom=other)
            or self._world.had_trouble("disk", before.at, known_until)
            # A process that an upgrade left behind cannot settle any more.
            or self._world.had_trouble("upgrade", begun, known_until)
        ):
            return
        if before.is_taken:
            self._world.violated(f"came again after it was accepted: {arrival.delivery_id}")
        elif (
            before.is_open()
            and not before.answered_at
            and arrival.at - before.at < self._timeout / 2
        ):
            self._world.violated(f"two attempts at once: {arrival.delivery_id}")

    def _written_by(self, database: Disk | PostgresServer, moment: float) -> float:
        """Return until when a process may have tried to store a result of a given moment."""
        until = moment + _SETTLING
        is_postgres = isinstance(database, PostgresServer)
        for each in self._world.troubles:
            if each.begin > until:
                continue
            if each.kind == "blip":  # retried until it is over
                until = max(until, each.end + _SETTLING)
            elif each.kind == "freeze" and is_postgres:  # a frozen transaction may hold the row
                until = max(until, min(each.end, each.begin + _IDLE_TIMEOUT) + _SETTLING)
        return until

    def _check_order(self, row: sqlite3.Row, host: str) -> None:
        """A delivery is attempted only after the one before it in its queue has arrived."""
        if row["shown"] != "in_flight":
            return  # its worker has lost it meanwhile
        before = self._outbox.select(
            f"{_DELIVERY} WHERE subscription_id = ? AND seq < ? AND state = 'pending'",
            row["subscription_id"],
            row["seq"],
        )
        overtaken = [
            each["id"]
            for each in before
            if each["id"] not in self.instructions.brought_back
            and not self._is_settled_soon(each, host)
        ]
        if overtaken and row["id"] not in self.instructions.brought_back:
            self._world.violated(f"{row['id']} (seq {row['seq']}) overtook {overtaken}")

    def _is_settled_soon(self, before: sqlite3.Row, host: str) -> bool:
        """Return whether an earlier delivery arrived, and its worker has yet to settle it."""
        return before["shown"] == "in_flight" and (
            any(each.is_taken or each.after_babble for each in self.arrivals[before["id"]])
            or self._is_shifted(host.partition(".")[0], before["id"])
            # At a receiver, whose answers are not seen, before its subscription was changed.
            or any(inbox.select(_ACCEPTED, before["id"]) for inbox in self.inboxes.values())
            or any(before["id"] in lost for lost in self._lost.values())
        )

    def lose(self, receiver: str, lost: set[str], called: Collection[tuple[str, str, str]]) -> None:
        """Note that an inbox was set back: only what it does not know may be called back again.

        Args:
            receiver: Whose inbox it is.
            lost: The deliveries that it had, and has no more.
            called: Callback, sender and delivery of each call that it still has a record of.
        """
        self._lost[receiver] |= lost
        for (host, callback, delivery_id), calls in self.calls.items():
            for call in calls if host == receiver else ():
                call.is_forgotten |= (callback, call.sender, delivery_id) not in called
        inbox = self.inboxes[receiver]
        self._epochs = {each: epoch for each, epoch in self._epochs.items() if each[0] != inbox}

    def begin_call(
        self, receiver: str, callback: str, notification: Notification, process: Process
    ) -> Call:
        """Check a callback that begins: it was sent, is unaltered, and is no repetition."""
        now, delivery_id = self._world.loop.time(), notification.delivery_id
        calls = self.calls[receiver, callback, delivery_id]
        for before in calls:
            # A subscription that moved to another path has another sender, with its own calls.
            is_its_own = before.sender == notification.sender
            if is_its_own and now - process.thawed_at > _AWAKE:
                self._check_call(receiver, before, delivery_id, now)
        calls.append(call := Call(process, now, notification.sender))
        self._check_holder(receiver, notification, process)
        beside = self.inboxes[receiver].select(_BESIDE_CALLED, notification.id)
        self._check_alone(delivery_id, beside)
        if notification.sender in {"other", "renewed"}:
            if delivery_id not in self.instructions.sent_by_other:
                self._world.violated(f"called back, but forged: {delivery_id}")
            return call
        rows = self._outbox.select(_STORED, delivery_id)
        if rows and bytes(rows[0]["body"]) != notification.body:
            self._world.violated(f"called back with another body: {delivery_id}")
        is_kept = delivery_id.startswith("forged") or (
            not self.instructions.is_purged and notification.task_id not in self.instructions.erased
        )
        if not rows and is_kept:
            self._world.violated(f"called back, but never sent: {delivery_id}")
        return call

    def _check_holder(self, receiver: str, notification: Notification, process: Process) -> None:
        """Only the process that leases the queue of a notification calls back with it."""
        now, worker = self._world.loop.time(), self._worker_of(process)
        if worker is None or not process.alive:
            return
        # A process that freezes between its last check and the call makes it once thawed; a server
        # that loses power forgets what it had said.
        if (
            now - process.thawed_at <= _AWAKE
            or self._world.had_trouble("freeze", now - 2 * self._timeout, now, whom=process.name)
            or self._world.had_trouble("disk", now - _LEASE, now)
        ):
            return
        rows = self.inboxes[receiver].select(_HOLDER, notification.id)
        holder = rows[0]["lease_worker"] if rows else None
        if holder != worker or rows[0]["place"] > rows[0]["sending_to"]:
            what = f"{notification.delivery_id} was called back by {worker}"
            self._world.violated(f"{what}, and {holder} has its lease")

    def _check_call(self, receiver: str, before: Call, delivery_id: str, now: float) -> None:
        """A callback runs once, unless a fault struck during it or before it was settled."""
        if before.failed or before.is_forgotten:
            return
        known_until = self._written_by(self.inboxes[receiver], before.ended or now)
        if (
            self._world.had_trouble("death", before.begun, known_until, whom=before.process.name)
            or self._world.had_trouble("freeze", before.begun, now, whom=before.process.name)
            or self._world.had_trouble("disk", before.begun, known_until)
            or self._world.had_trouble("clock", before.begun - self._timeout, known_until)
            or self._world.had_trouble("upgrade", before.begun, known_until)
        ):
            return
        if before.ended is None:
            self._world.violated(f"called back while called back already: {delivery_id}")
        else:
            self._world.violated(f"called back twice: {delivery_id}")

    def moved(self, table: str, before: str | None, after: str | None, error: str | None) -> None:
        """Check and count a change of state."""
        for fault in ("all", *(self._world.recent_faults() or ("none",))):
            self.moves[key_of((table, before, after), error, fault)] += 1
        if (before, after) not in TRANSITIONS[table]:
            self._world.violated(f"no transition of {table}: {before} -> {after}")

    def queue_changed(
        self,
        before: QueueRow | None,
        after: QueueRow | None,
        process: Process | None,
        *,
        inbox: Disk | PostgresServer | None = None,
    ) -> None:
        """A lease has one holder; its epoch grows whenever it begins or ends; no `seq` goes back.

        What its holder has, up to `sending_to`, never shrinks until the lease ends. An inbox
        deletes no queue under a lease, and one with the same id has a later epoch.

        Args:
            before: The row; None if it is new, in an inbox.
            after: The row; None if it was deleted, in an inbox.
            process: Who changed it.
            inbox: Whose queue it is; None if it is the outbox's.
        """
        if after is None:
            if before is not None and inbox is not None:
                self._epochs[inbox, before.id] = before.epoch
                if before.lease_worker is not None:
                    self._world.violated(f"a queue under a lease was deleted: {before}")
            return
        if before is None:
            earlier = -1 if inbox is None else self._epochs.get((inbox, after.id), -1)
            before = QueueRow(after.id, None, None, None, earlier + 1, 0, 0, 0, None, 0)
        is_same = (before.lease_worker, before.leased_at) == (after.lease_worker, after.leased_at)
        is_free = after.lease_worker is None
        if inbox is None:
            if not is_same and not is_free:
                self.claims += _QUANTUM
            self.claims += max(0, after.sending_to - before.sending_to)
            self.deaths[after.id] += after.abandoned > max(1, before.abandoned)
        if (
            after.epoch < before.epoch + (not is_same)
            or (is_same and not is_free and after.epoch != before.epoch)
            or not (is_same or is_free or before.lease_worker is None)
            or (is_free and after[2:6] != (None, None, after.epoch, 0))
            or (is_same and after.sending_to < before.sending_to)
            or not before.last_seq <= after.last_seq >= after.sending_to
            or not before.settled_to <= after.settled_to <= after.last_seq
            or (after.abandoned > before.abandoned and (is_same or not is_free))
        ):
            self._world.violated(f"no change of a queue's lease: {before} -> {after}")
        worker = self._worker_of(process) if process is not None else None
        is_another = worker is not None and before.lease_worker not in (None, worker)
        if is_another and self._is_settled(before, after):
            self._world.violated(f"{worker} settled what another leases: {before} -> {after}")

    def _is_settled(self, before: QueueRow, after: QueueRow) -> bool:
        """Return whether a result is stored, or a lease given back: only its holder may do that.

        Others end it when it is over, or when nothing is wanted any more.
        """
        is_over = after.due_at is None or after.abandoned > before.abandoned
        is_given_back = after.lease_worker is None and not is_over
        is_wanted = bool(after.active) and after.removed_at is None
        return is_wanted and (is_given_back or after.settled_to > before.settled_to)

    # --- at the end -----------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Return whether every delivery and every notification is finished, and no queue leased."""
        return not any(self._left()) and (self.mailboxes is None or self.mailboxes.is_drained())

    def _left(self) -> Iterator[str]:
        """Yield what is not finished, and what is leased or due though nothing is left of it."""
        for row in self._outbox.select(_UNFINISHED):
            yield f"not drained: {_brief(row)}"
        for row in self._outbox.select(_LEASED):
            yield f"leased or due, and nothing is left of it: {dict(row)}"
        for name, inbox in self.inboxes.items():
            for row in inbox.select(_UNCALLED):
                yield f"{name}: not called back: {dict(row)}"
            for row in inbox.select(_HELD):
                yield f"{name}: leased or due, and nothing is left: {dict(row)}"
            for row in inbox.select(_WITHOUT_QUEUE):
                yield f"{name}: its queue is gone: {dict(row)}"

    def check_end(self, origin_of: Callable[[str], str]) -> None:
        """Check, once everything is over, that outbox, webhooks, callbacks and results agree."""
        for left in self._left():
            self._world.violated(left)
        self._check_snapshots()
        if self.mailboxes is not None:
            self.mailboxes.check_end()
        for row in self._outbox.select(_GIVEN_TWICE):  # also if it was removed and set again
            self._world.violated(f"a config gave one seq to several deliveries: {dict(row)}")
        rows = {row["id"]: row for row in self._outbox.select("SELECT * FROM pushkit_deliveries")}
        for notice in self.notices:
            for lost in set(notice.ids) - set(rows):
                if self.instructions.is_purged or notice.task in self.instructions.erased:
                    continue
                self._world.violated(f"acknowledged, but lost: {notice.marker} {lost}")
        stored = {row["idempotency_key"] for row in rows.values()}
        # Several agents, or one agent repeatedly, may notify the same update.
        maybe_stored = {notice.marker for notice in self.notices if not notice.not_stored}
        for notice in self.notices:
            if notice.marker in stored and notice.marker not in maybe_stored:
                self._world.violated(f"stored, but reported as not stored: {notice.marker}")
        for row in rows.values():
            self._check_state(origin_of(row["origin"]), row)
        for row in self._outbox.select(_ANSWERS):
            host = origin_of(row["origin"])
            if host not in self.inboxes and not self._is_shifted(host, row["delivery_id"]):
                self._check_answer(row["delivery_id"], bytes(row["answer"]))

    def _is_shifted(self, host: str, delivery_id: str) -> bool:
        """Return whether an answer to another request may have been taken for its own.

        A webhook that sends an answer nobody asked for, during a request, answers all later ones
        over that connection too early: maybe before they arrive, if it ends meanwhile.
        """
        ever = (0.0, self._world.loop.time())
        return not self.arrivals[delivery_id] and self._world.had_trouble(
            "babble", *ever, whom=host
        )

    def _check_answer(self, delivery_id: str, answer: bytes) -> None:
        """An answer is stored with the delivery whose request it answered, or sealed for it."""
        if is_sealed(answer):
            return
        said = answer.decode(errors="replace")
        is_its_own = said.startswith(delivery_id) or delivery_id.startswith(said)
        if self.inboxes and said.startswith('{"type":'):
            return  # a receiver refused it, before its subscription was changed
        if not is_its_own and not any(each.after_babble for each in self.arrivals[delivery_id]):
            self._world.violated(f"another's answer: {delivery_id} was answered {said[:40]!r}")

    def _check_state(self, host: str, row: sqlite3.Row) -> None:
        """Instructions, or the answers of webhooks, explain a delivery's state and its reason."""
        statuses = {each.status for each in self.arrivals[row["id"]]}
        if row["state"] == "cancelled" and not self._may_be_cancelled(row):
            self._world.violated(
                f"cancelled without an instruction: {_brief(row)} {row['cancelled_by']}"
            )
        if row["state"] == "dead" and not self._may_be_dead(host, row, statuses):
            self._world.violated(f"dead without a reason for its error: {_brief(row)} {statuses}")
        if host in self.inboxes:
            self._check_called(host, row)
        elif (
            row["state"] == "delivered"
            and not any(
                each.after_babble or (each.status and 200 <= each.status < 300)
                for each in self.arrivals[row["id"]]
            )
            # A receiver may have accepted it before its subscription was changed.
            and not self._is_called_somewhere(row["id"])
            and not self._is_shifted(host, row["id"])
        ):
            self._world.violated(f"delivered, but accepted by no webhook: {_brief(row)} {statuses}")

    def check_fairness(self) -> None:
        """Innocent owners are served in time, however much hostile owners send."""
        check_fairness(
            self._world,
            self._outbox,
            self.notices,
            gathering=self.instructions.gathering,
            first_heard=self._first_heard,
        )

    def _first_heard(self, delivery_id: str) -> float:
        """Return when a delivery first reached its webhook, or its callback; infinity if never."""
        heard = [each.at for each in self.arrivals[delivery_id]]
        heard += [
            call.begun
            for (_, _, called), calls in self.calls.items()
            if called == delivery_id
            for call in calls
        ]
        return min(heard, default=inf)

    def _may_be_cancelled(self, row: sqlite3.Row) -> bool:
        whom = (row["task_id"], row["owner"])
        instructions = self.instructions
        if row["cancelled_by"] == "operator":
            return row["id"] in instructions.may_be_cancelled
        if row["cancelled_by"] == "superseded":
            return self._is_superseded(row)
        is_purged = instructions.is_purged  # with what a webhook was asked
        if row["cancelled_by"] == "disabled" and (
            is_purged or self._gone_at(row["subscription_id"]) < inf
        ):
            return True
        is_wanted = whom in instructions.cancelling or row["task_id"] in instructions.erased
        return row["cancelled_by"] in ("disabled", "removed") and is_wanted

    def _is_superseded(self, row: sqlite3.Row) -> bool:
        """Only a status that says nothing else is replaced, and only by a newer status.

        Or it was gathered with the next one, which says all that it said, and never sent.
        """
        is_gathered = (row["task_id"], row["owner"]) in self.instructions.gathering
        was_sent = row["attempts"] or self.arrivals[row["id"]]
        if is_gathered and not was_sent and self._is_said_by_the_next(row):
            return True
        newer = self._outbox.select(
            "SELECT 1 FROM pushkit_deliveries WHERE subscription_id = ? AND seq > ?"
            " AND status IS NOT NULL",
            row["subscription_id"],
            row["seq"],
        )
        return row["status"] == "bare" and bool(newer or self.instructions.is_purged)

    def _is_said_by_the_next(self, row: sqlite3.Row) -> bool:
        found = self._outbox.select(_AND_THE_NEXT, row["subscription_id"], row["seq"])
        if len(found) < 2:  # it was deleted
            return self.instructions.is_purged
        older, newer = (bytes(each["body"]) for each in found)
        return says_all(newer, older, {each.marker: each.shape for each in self.notices})

    def _gone_at(self, subscription: str) -> float:
        """Return when a webhook first answered 410 to a subscription; infinity if it never did."""
        of_it = self._outbox.select(
            "SELECT id FROM pushkit_deliveries WHERE subscription_id = ?", subscription
        )
        answers = (each for row in of_it for each in self.arrivals[row["id"]])
        gone = (each.answered_at or 0.0 for each in answers if each.status == 410)
        return min(gone, default=inf)

    def _may_be_dead(self, host: str, row: sqlite3.Row, statuses: set[int | None]) -> bool:
        error = row["last_error"] or ""
        if error == "subscription_missing":
            return row["id"] in self.instructions.brought_back  # else removing it cancels it
        if error in _AT_ONCE:
            return host in self.inboxes or _AT_ONCE[error] in statuses
        refusals = self._refusals_of(row)
        if error in _REFUSED:  # refused addresses have a schedule of their own
            is_enough = refusals == _AFTER_REFUSALS
        else:  # and do not count in the schedule of requests
            is_enough = row["attempts"] - refusals == _TRIES
        if not is_enough:
            return False
        if error in _MISTRUSTED and host in self.inboxes:
            # A trusted sender that signs is refused only because of a clock.
            ever = (0.0, self._world.loop.time())
            return self._world.had_trouble("clock", *ever) or self._world.had_trouble(
                "trust", *ever, whom=host
            )
        if error.startswith("status_") or error == "redirect":
            answered = {f"status_{s}" if s and s >= 400 else "redirect" for s in statuses}
            return host in self.inboxes or error in answered
        # From the second death in a row on, each counts as an attempt.
        has_died = error in _LEFT_BEHIND and self.deaths[row["subscription_id"]] > 0
        return has_died or (error in _REFUSED | _UNANSWERED and self._was_faulty(host))

    def _refusals_of(self, row: sqlite3.Row) -> int:
        attempts = self._outbox.select(
            "SELECT error FROM pushkit_attempts WHERE delivery_id = ? AND started_at >= ?",
            row["id"],
            row["redriven_at"] or row["notified_at"],
        )
        return sum(each["error"] in _REFUSED for each in attempts)

    def _was_faulty(self, host: str) -> bool:
        return host in self._faulty_hosts or any(
            each.kind == "death" and each.whom.partition(".")[0] == host
            for each in self._world.troubles
        )

    def _check_called(self, host: str, row: sqlite3.Row) -> None:
        """A notification that a receiver accepted is called back, or is a dead letter there."""
        if any(each.status and 200 <= each.status < 300 for each in self.arrivals[row["id"]]):
            return  # a webhook accepted it before its subscription was changed
        # Another receiver may have accepted it before its subscription moved to this one.
        if row["state"] != "delivered" or self._is_called_somewhere(row["id"]):
            return
        if row["id"] in self._lost[host]:
            return  # what a client asked for anew is checked by `Losses`
        if self.mailboxes is not None and self.mailboxes.is_dead(host, row["id"]):
            return
        found = self.inboxes[host].select(
            "SELECT state FROM pushkit_inbox WHERE delivery_id = ?", row["id"]
        )
        if not found or found[0]["state"] != "dead":
            self._world.violated(f"delivered to {host}, but never called back: {_brief(row)}")

    def _is_called_somewhere(self, delivery_id: str) -> bool:
        return any(self._is_called(receiver, delivery_id) for receiver in self.inboxes)

    def _is_called(self, receiver: str, delivery_id: str) -> bool:
        """Return whether each of a receiver's callbacks has returned for a delivery."""
        return all(
            any(call.ended for call in self.calls[receiver, callback, delivery_id])
            for callback in self._callbacks
        )


TRANSITIONS = {
    "pushkit_deliveries": frozenset(
        {
            (None, "pending"),
            ("pending", "pending"),
            ("pending", "cancelled"),
            ("in_flight", "in_flight"),
            ("in_flight", "delivered"),
            ("in_flight", "dead"),
            ("in_flight", "cancelled"),
            ("dead", "pending"),
            ("delivered", "pending"),
            ("cancelled", "pending"),
            ("delivered", None),
            ("dead", None),
            ("cancelled", None),
        }
    ),
    "pushkit_inbox": frozenset(
        {
            (None, "pending"),
            ("pending", "pending"),
            ("in_progress", "in_progress"),
            ("in_progress", "done"),
            ("in_progress", "dead"),
            ("dead", "pending"),
            ("done", None),
            ("dead", None),
        }
    ),
}


def _brief(row: sqlite3.Row) -> str:
    names = ("id", "task_id", "seq", "state", "attempts", "last_error")
    return " ".join(f"{name}={row[name]}" for name in names)
