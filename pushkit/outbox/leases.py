"""Claims, as scripts: a worker leases deliveries that are due, and gets back those of dead workers.

Only heads are claimed (`pushkit.outbox.heads`), by a fair share (`pushkit.outbox.shares`); heads
whose destination waits are skipped (`pushkit.outbox.parking`). An attempt's result is stored, and
the head passed on, by `pushkit.outbox.settling`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.model import DELIVERY, Claim, Delivery, delivery_of
from pushkit.outbox.parking import (
    ParkedHeads,
    due_heads,
    first_heads,
    offer_parked_heads,
    park,
    recall_parked,
    reschedule,
)
from pushkit.outbox.shares import Head, InFlight, Owner, SlotLimits, share_out, what_blocks
from pushkit.outbox.states import CLAIMED, LOST
from pushkit.record import field, record
from pushkit.scheduling.retry import after_fruitless_claims
from pushkit.storage.script import (
    Row,
    Rows,
    Script,
    Statement,
    moment_or_none,
    run_for_ids,
    to_micros,
)

_EVER = 2**63 - 1
_A_FEW, _MANY = 16, 256
# One delivery at most made the process die: the others that it had in flight, and what waits behind
# them, must not be delayed by minutes.
_LONGEST_AFTER_A_DEATH = timedelta(seconds=30)
_START = ("", "", "")


def _alone() -> Script[None]:
    """Hold nothing: there is one transaction at a time."""
    yield from ()


@record(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """The deliveries that a claim leased, and what else is due."""

    deliveries: Sequence[Delivery] = ()  # the leased ones
    some_wait: bool = True  # whether something may be due that got no slot, for lack of one
    # The owners (with their tenants) with something due, who have their share of the slots already.
    waiting_owners: frozenset[Owner] = frozenset()
    # The origins with something due, which have as many attempts in flight as they may.
    full_origins: frozenset[str] = frozenset()
    # How many attempts other workers have in flight, by origin.
    others: Counter[str] = field(default_factory=Counter)


@record(frozen=False, slots=True)
class Leases:
    """Scripts by which workers claim deliveries, and release those of dead workers."""

    hold_parking: Callable[[], Script[object]] = _alone  # as in `parking`, for several processes
    window: int = 16  # how many due heads a claim reads, besides two for every slot
    destinations: int = 32  # of how many destinations it reads the first head, if there are more
    # Where the last claim stopped reading destinations and owners: the next one continues there.
    _last_destination: DestinationKey = _START
    _last_owner: Owner = _START[:2]

    def claim(
        self,
        claim: Claim,
        limits: SlotLimits,
        *,
        now: datetime,
        held: Mapping[DestinationKey, int] | None = None,
        used: Callable[[Owner], float] = lambda _: 0,
        live: Sequence[str] = (),
    ) -> Script[ClaimResult]:
        """Lease heads that are due, in the order of `share_out`.

        Args:
            limits: How many at most. (Workers on PostgreSQL that claim in the same moment may
                exceed the limit of an origin together.)
            held: How many slots each destination holds at the worker. The rows do not show
                deliveries that were cancelled in flight, whose owner could take one slot more.
            used: How much each owner used the worker's slots recently (see `RecentUse.of`).
            live: What the worker has in progress. If these leases have ended, the clock was set
                forward: they begin anew.
        """
        moment = to_micros(now)
        load = yield from _read_load(claim.worker, moment, held or {})
        if load.has_expired:
            yield from run_for_ids(
                "UPDATE pushkit_deliveries SET lease_until = $2 WHERE id IN ($ids)"
                " AND lease_worker = $1 AND lease_until <= $3 AND state = 'in_flight'",
                live,
                *(claim.worker, to_micros(claim.until), moment),
            )
            yield from self._release_expired(now)
            load = yield from _read_load(claim.worker, moment, held or {})
        if limits.slots < 1:
            return ClaimResult()
        in_flight, parked = load.in_flight, ParkedHeads()
        if load.has_parked:
            yield from self.hold_parking()
            parked = yield from offer_parked_heads(
                moment, in_flight, limits, most=self.destinations
            )
        size = self.window + 2 * limits.slots
        window = yield from due_heads(moment, size)
        is_full = len(window) == size
        if is_full:
            window += yield from self._heads_beyond(window, moment, is_parking=load.has_parked)
        heads = [*parked.heads, *window]
        chosen = share_out(heads, in_flight, limits, moment, used=used)
        deliveries = yield from _lease([head.id for head in chosen], claim)
        yield from reschedule(parked)
        waiting_owners, full_origins = what_blocks(
            set(heads).difference(chosen), in_flight, limits, moment
        )
        return ClaimResult(
            deliveries=deliveries,
            some_wait=is_full or len(chosen) == limits.slots,
            waiting_owners=waiting_owners,
            full_origins=full_origins,
            others=load.others,
        )

    def _heads_beyond(
        self, window: Sequence[Head], now: int, *, is_parking: bool
    ) -> Script[list[Head]]:
        """Return the first due head of each of several destinations, besides those in the window.

        If there are more destinations than it reads, the heads of those that wait are parked.
        """
        firsts = yield from first_heads(self._last_destination, self.destinations)
        if self._last_destination != _START and len(firsts) < self.destinations:
            firsts += yield from first_heads(_START, self.destinations - len(firsts))
        is_all = len(firsts) < self.destinations
        self._last_destination = _START if is_all else firsts[-1].destination
        if not is_all:
            firsts += yield from self._heads_of_next_owners(self.destinations // 2)
        found = {head.id: head for head in firsts if head.not_before <= now}
        if not is_all:
            seen_once = dict.fromkeys([*window, *found.values()])
            waiting = [head for head in seen_once if head.until > now]
            if waiting and not is_parking:
                yield from self.hold_parking()
            yield from park(waiting, now)
        seen = {head.id for head in window}
        return [head for head in found.values() if head.id not in seen]

    def _heads_of_next_owners(self, limit: int) -> Script[list[Head]]:
        """Return the first heads of the owners that were read longest ago."""
        firsts = yield from first_heads(self._last_owner, limit)
        if self._last_owner != _START[:2] and len(firsts) < limit:
            firsts += yield from first_heads(_START[:2], limit - len(firsts))
        if firsts:
            self._last_owner = firsts[-1].destination[:2]
        return firsts

    def next_due(self, now: datetime) -> Script[datetime | None]:
        """Return when the next claim may find something; None if nothing is unfinished.

        Never too late, whatever the backlog: it is the moment of the first head of a destination
        that does not wait, the end of the first wait with heads behind it, or of the first lease.
        """
        rows = yield Statement(
            "SELECT MIN(due) AS due FROM (SELECT MIN(again_at) AS due FROM pushkit_parked"
            " UNION ALL SELECT MIN(lease_until) FROM pushkit_deliveries"
            " WHERE state = 'in_flight') moments"
        )
        heads = yield from self._next_heads(to_micros(now))
        moments = [max(head.not_before, head.until) for head in heads]
        if rows[0]["due"] is not None:
            moments.append(rows[0]["due"])
        return moment_or_none(min(moments, default=None))

    def _next_heads(self, now: int) -> Script[list[Head]]:
        """Return heads, among them the first that a claim may lease if no origin is full."""
        for size in (_A_FEW, _MANY):
            heads = yield from due_heads(_EVER, size, lock=False)
            if len(heads) < size or any(head.until <= now for head in heads):
                return heads
        firsts = yield from first_heads(_START, self.destinations)
        if len(firsts) < self.destinations:
            return firsts
        return [heads[0]._replace(until=0)]  # the next claims park the heads that wait

    def after_setback(self, now: datetime) -> Script[None]:
        """Let waits that were set in the future begin now, after the clock was set back.

        Deliveries that were never tried are due at once.
        """
        moment = (to_micros(now),)
        yield Statement(
            "UPDATE pushkit_destinations SET until = $1 + until - set_at, set_at = $1"
            " WHERE set_at > $1",
            moment,
        )
        never_tried = "attempts = 0 AND fruitless_claims = 0"
        late = f"state = 'pending' AND not_before > $1 AND ({never_tried} OR scheduled_at > $1)"
        heads: list[Row] = []
        for head in (1, 2):  # each has an index
            heads += yield Statement(
                f"SELECT 1 FROM pushkit_deliveries WHERE head = {head} AND {late} LIMIT 1", moment
            )
        if heads:
            yield Statement(
                f"UPDATE pushkit_deliveries SET not_before = $1 + CASE WHEN {never_tried} THEN 0"
                " ELSE not_before - scheduled_at END, scheduled_at = $1 WHERE id IN (SELECT id"
                f" FROM pushkit_deliveries WHERE {late} FOR UPDATE SKIP LOCKED)",
                moment,
            )
        yield from self.hold_parking()
        yield from recall_parked(*moment)

    def working(self) -> Script[list[str]]:
        """Return the names of the workers that have deliveries in flight."""
        rows = yield Statement(
            "SELECT DISTINCT lease_worker FROM pushkit_deliveries WHERE state = 'in_flight'"
        )
        return [str(row["lease_worker"]) for row in rows]

    def release_worker(self, worker: str, now: datetime) -> Script[None]:
        """Release the deliveries of a dead worker before their leases end."""
        lost = yield Statement(
            "SELECT id, fruitless_claims FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_worker = $1 ORDER BY id FOR UPDATE",
            (worker,),
        )
        yield from _release(lost, "worker_died", now)

    def _release_expired(self, now: datetime) -> Script[None]:
        lost = yield Statement(
            "SELECT id, fruitless_claims FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_until <= $1 FOR UPDATE SKIP LOCKED",
            (to_micros(now),),
        )
        yield from _release(lost, "lease_expired", now)


class _Load(NamedTuple):
    """The attempts in flight when a claim begins."""

    in_flight: InFlight
    others: Counter[str]  # how much of it other workers have, by origin
    has_expired: bool  # whether a lease has ended
    has_parked: bool  # whether a destination with parked heads is to be read again


def _read_load(worker: str, now: int, held: Mapping[DestinationKey, int]) -> Script[_Load]:
    """Read the load, in one statement: every claim begins with it."""
    rows = yield Statement(
        # A chain counts as one attempt; that of a paused subscription has no head.
        "SELECT tenant, owner, origin, lease_worker, MIN(lease_until) AS until,"
        " COUNT(DISTINCT subscription_id) AS number"
        " FROM pushkit_deliveries WHERE state = 'in_flight'"
        " GROUP BY tenant, owner, origin, lease_worker"
        " UNION ALL SELECT tenant, owner, origin, NULL, NULL, 0 FROM"
        " (SELECT * FROM pushkit_parked WHERE again_at <= $1 LIMIT 1) parked",
        (now,),
    )
    in_flight, others, mine = InFlight(), Counter[str](), dict(held)
    leased = [row for row in rows if row["until"] is not None]
    for row in leased:
        destination = (row["tenant"], row["owner"], row["origin"])
        if row["lease_worker"] == worker:
            mine[destination] = max(mine.get(destination, 0), row["number"])
        else:
            in_flight.add(destination, row["number"], is_mine=False)
            others[destination[2]] += row["number"]
    for destination, number in mine.items():
        in_flight.add(destination, number)
    return _Load(
        in_flight,
        others,
        has_expired=any(row["until"] <= now for row in leased),
        has_parked=len(rows) > len(leased),
    )


def _lease(ids: Sequence[str], claim: Claim) -> Script[list[Delivery]]:
    rows = yield from run_for_ids(
        CLAIMED.where(
            "id IN (SELECT id FROM pushkit_deliveries WHERE id IN ($ids) AND head > 0"
            f" AND state = 'pending' FOR UPDATE SKIP LOCKED) RETURNING {DELIVERY}"
        ),
        ids,
        *(claim.worker, to_micros(claim.until)),
    )
    claimed = {row["id"]: delivery_of(row) for row in rows}
    # Another worker may have read the same head, and leased it first.
    return [claimed[each] for each in ids if each in claimed]


def _release(lost: Rows, error: str, now: datetime) -> Script[None]:
    """Make lost deliveries pending again: due at once, then after longer and longer waits."""
    alike: dict[int, list[str]] = {}
    for row in lost:
        alike.setdefault(row["fruitless_claims"], []).append(row["id"])
    for claims, ids in alike.items():
        # The first time any other delivery may have ended the process.
        wait = min(after_fruitless_claims(claims - 1), _LONGEST_AFTER_A_DEATH)
        again_at = to_micros(now + wait) if wait else None
        yield from run_for_ids(LOST.where("id IN ($ids)"), ids, error, again_at, to_micros(now))
