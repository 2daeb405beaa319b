"""What workers do with deliveries, as scripts: claim under a lease, settle, take over.

Only heads are claimed (see `pushkit.outbox.heads`), by a fair share (`pushkit.outbox.shares`), past
those that nobody may have now (`pushkit.outbox.parking`).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pushkit.outbox.attempts import fold, is_folded
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.heads import pass_heads_on
from pushkit.outbox.model import Claim, Delivery, Result
from pushkit.outbox.parking import (
    PARKING,
    Turns,
    due_heads,
    end_turns,
    first_heads,
    park,
    take_turns,
)
from pushkit.outbox.rows import DELIVERY, delivery_of
from pushkit.outbox.shares import Head, InFlight, Owner, Places, left_behind, share_out
from pushkit.outbox.states import (
    CHAINED,
    CLAIMED,
    LOST,
    SETTLED,
    SETTLING,
    UNFINISHED,
    DeliveryState,
)
from pushkit.record import field, record
from pushkit.scheduling.retry import after_fruitless_claims
from pushkit.storage.script import (
    Row,
    Rows,
    Script,
    SqlValue,
    Statement,
    among,
    chunks,
    moment_or_none,
    padded,
    to_micros,
)

# Bodies in a chain wait in memory: long ones wait in the outbox.
CHAINED_BYTES = 2**15
_AT_ONCE = 8  # of a line
_NEVER = 2**31 - 1
_EVER = 2**63 - 1
_A_FEW, _MANY = 16, 256
# Of all that was in flight when a process died, one at most was to blame: the others, and what
# waits behind them, must not pay for it with minutes.
_LONGEST_AFTER_A_DEATH = timedelta(seconds=30)


_START = ("", "", "")


def _alone(name: str) -> Script[None]:  # noqa: ARG001  # the interface
    """Wait for nobody: there is one transaction at a time."""
    yield from ()


@record(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a claim took, and what it saw."""

    deliveries: Sequence[Delivery] = ()  # what it took
    some_wait: bool = True  # whether something may be due that got no slot, for lack of one
    # The owners (with their tenants) who wait, because they have their share already.
    held_back: frozenset[Owner] = frozenset()
    # The origins at which something is due that has to wait for what is under way there.
    crowded: frozenset[str] = frozenset()
    # How many attempts other workers have under way, by origin.
    others: Counter[str] = field(default_factory=Counter)


class Passed(NamedTuple):
    """What settling came to."""

    are_ours: Sequence[bool]  # for each that was settled, whether its row was still this worker's
    taken: Sequence[Delivery]  # what follows, in flight already
    # The subscriptions of which something else is left, which waits for a claim.
    passed_on: frozenset[str]
    # Those whose chain may not go on: it is paused, its destination fails or waits, an older one
    # was redriven meanwhile, or not all of it was this worker's any more.
    stopped: frozenset[str]


@record(frozen=False, slots=True)
class Leases:
    """Scripts by which workers take deliveries, and give them back."""

    exclusively: Callable[[str], Script[None]] = _alone  # see `Database.exclusively`
    window: int = 16  # how many heads that are due a claim looks at, beside two for every slot
    destinations: int = 32  # at the first heads of how many destinations, where there are more
    _looked_to: DestinationKey = _START
    _looked_to_owner: Owner = _START[:2]

    def claim(
        self,
        claim: Claim,
        *,
        limit: int,
        reserved: int = 0,
        per_origin: int,
        now: datetime,
        one_at_a_time_from: int = _NEVER,
        held: Mapping[DestinationKey, int] | None = None,
        used: Callable[[Owner], float] = lambda _: 0,
    ) -> Script[Taken]:
        """Take heads that are due, under a lease, in the order of `share_out`.

        Args:
            limit: How many at most: the worker's free slots.
            reserved: How many of them only owners get that hold none.
            per_origin: How many of one destination may be in flight, over all owners and workers.
                A slow webhook of many tasks would otherwise take every slot there is. (Workers on
                PostgreSQL that claim in the same moment may go over it together.)
            one_at_a_time_from: From so many failures in a row on, a destination is given one
                delivery at a time.
            held: How many slots each destination holds at the worker. What was paused or removed
                under way is not told from the rows, and would let its owner take one slot more.
            used: How much each owner had of the worker's slots of late (see `RecentUse.of`).
        """
        moment = to_micros(now)
        present = yield from _look_around(claim.worker, moment, held or {})
        if present.has_expired:
            yield from self._take_back_expired(now)
            present = yield from _look_around(claim.worker, moment, held or {})
        if limit < 1:
            return Taken()
        places = Places(
            slots=limit, reserved=reserved, per_origin=per_origin, probes_from=one_at_a_time_from
        )
        in_flight, turns = present.in_flight, Turns()
        if present.has_turns:
            yield from self.exclusively(PARKING)
            turns = yield from take_turns(moment, in_flight, places, most=self.destinations)
        window = yield from due_heads(moment, self.window + 2 * limit)
        is_full = len(window) == self.window + 2 * limit
        if is_full:
            window += yield from self._look_further(window, moment, is_parking=present.has_turns)
        heads = [*turns.heads, *window]
        chosen = share_out(heads, in_flight, places, moment, used=used)
        deliveries = yield from _take([head.id for head in chosen], claim)
        yield from end_turns(turns)
        left = set(heads).difference(chosen)
        waiting, crowded = left_behind(left, in_flight, places, moment)
        return Taken(
            deliveries=deliveries,
            some_wait=is_full or len(chosen) == limit,
            held_back=waiting,
            crowded=crowded,
            others=present.others,
        )

    def _look_further(
        self, window: Sequence[Head], now: int, *, is_parking: bool
    ) -> Script[list[Head]]:
        """Return the first head of other destinations, whatever is in the way.

        Where there are more destinations than one looks at, those that wait are put aside.
        """
        firsts = yield from first_heads(self._looked_to, self.destinations)
        if self._looked_to != _START and len(firsts) < self.destinations:
            firsts += yield from first_heads(_START, self.destinations - len(firsts))
        is_all = len(firsts) < self.destinations
        self._looked_to = _START if is_all else firsts[-1].destination
        if not is_all:
            firsts += yield from self._next_owners(self.destinations // 2)
        found = {head.id: head for head in firsts if head.not_before <= now}
        if not is_all:
            seen_once = dict.fromkeys([*window, *found.values()])
            waiting = [head for head in seen_once if head.until > now]
            if waiting and not is_parking:
                yield from self.exclusively(PARKING)
            yield from park(waiting, now)
        seen = {head.id for head in window}
        return [head for head in found.values() if head.id not in seen]

    def _next_owners(self, limit: int) -> Script[list[Head]]:
        """Return heads of the owners at whom nobody has looked for longest."""
        firsts = yield from first_heads(self._looked_to_owner, limit)
        if self._looked_to_owner != _START[:2] and len(firsts) < limit:
            firsts += yield from first_heads(_START[:2], limit - len(firsts))
        if firsts:
            self._looked_to_owner = firsts[-1].destination[:2]
        return firsts

    def after_setback(self, now: datetime) -> Script[None]:
        """Let what was never tried wait no longer, where the clock was set back since it came."""
        moment = to_micros(now)
        never_tried = "state = 'pending' AND not_before > $1 AND attempts = 0"
        never_tried += " AND fruitless_claims = 0"
        heads = yield Statement(
            f"SELECT 1 FROM pushkit_deliveries WHERE head = 1 AND {never_tried} LIMIT 1", (moment,)
        )
        if heads:
            yield Statement(
                "UPDATE pushkit_deliveries SET not_before = $1 WHERE id IN (SELECT id"
                f" FROM pushkit_deliveries WHERE {never_tried} FOR UPDATE SKIP LOCKED)",
                (moment,),
            )

    def next_due(self, now: datetime) -> Script[datetime | None]:
        """Return when the next claim may find something; None if nothing is unfinished.

        Never late, whatever the backlog: the first head of a destination that does not wait, the
        end of the first wait that has heads behind it, or of the first lease.
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
        """Return heads of which one is the first that a claim may take, where nothing is full."""
        for size in (_A_FEW, _MANY):
            heads = yield from due_heads(_EVER, size, hold=False)
            if len(heads) < size or any(head.until <= now for head in heads):
                return heads
        firsts = yield from first_heads(_START, self.destinations)
        if len(firsts) < self.destinations:
            return firsts
        return [heads[0]._replace(until=0)]  # what waits is put aside by the next claims

    def settle(
        self,
        # Deliveries as they were claimed, the rows of their subscriptions held; and what became of
        # each. A destination's wait is not this method's business.
        settled: Sequence[tuple[Delivery, Result]],
        worker: str,
        now: datetime,
        *,
        # Says whether the next of a line may be taken by the same worker at once: if it is due, and
        # goes to the same destination, which neither fails nor waits.
        following: Callable[[Delivery, Result], bool] = lambda *_: False,
        until: datetime | None = None,  # until when what follows is taken
        # How far the clock of the database is ahead of the worker's, by which an attempt that is
        # folded began.
        ahead: timedelta = timedelta(0),
    ) -> Script[Passed]:
        """Write down what attempts came to; pass the mark of the oldest on.

        A row is lost to a cancellation, or to another claim after the lease ended. Its result is
        then dropped: the canceller or the other claim decides. The number of the claim, which is
        never reset, tells two claims of one worker apart.

        An attempt that is folded into its delivery's row (`is_folded`) is written down here.
        """
        moment = to_micros(now)
        found = yield from _write_down(settled, worker, moment, ahead)
        behind = _behind(settled, found)
        stopped = behind.lost | (yield from _go_on(behind.chained, moment))
        wanted = [
            (each.next_id, each.delivery.origin)
            for each in behind.waiting
            if until is not None and following(each.delivery, each.result)
        ]
        taken: list[Delivery] = []
        if wanted and until is not None:
            claim = Claim(worker=worker, until=until)
            taken = yield from _take_next(wanted, claim, now)
            taken += yield from _take_behind(taken, claim, now)
        left = behind.left.union(each.delivery.subscription_id for each in behind.waiting)
        passed_on = sorted(left.difference(each.subscription_id for each in taken))
        if passed_on:
            yield from pass_heads_on(passed_on)
        are_ours = [(delivery.id, delivery.claims) in found for delivery, _ in settled]
        return Passed(are_ours, taken, frozenset(passed_on), frozenset(stopped))

    def working(self) -> Script[list[str]]:
        """Return the names of the workers that have rows in flight."""
        rows = yield Statement(
            "SELECT DISTINCT lease_worker FROM pushkit_deliveries WHERE state = 'in_flight'"
        )
        return [str(row["lease_worker"]) for row in rows]

    def take_over(self, worker: str, now: datetime) -> Script[None]:
        """Give a dead worker's rows back, before their leases end."""
        lost = yield Statement(
            "SELECT id, fruitless_claims FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_worker = $1 ORDER BY id FOR UPDATE",
            (worker,),
        )
        yield from _give_back(lost, "worker_died", now)

    def _take_back_expired(self, now: datetime) -> Script[None]:
        lost = yield Statement(
            "SELECT id, fruitless_claims FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_until <= $1 FOR UPDATE SKIP LOCKED",
            (to_micros(now),),
        )
        yield from _give_back(lost, "lease_expired", now)


class _Present(NamedTuple):
    in_flight: InFlight
    others: Counter[str]  # by origin, of other workers
    has_expired: bool
    has_turns: bool


def _look_around(worker: str, now: int, held: Mapping[DestinationKey, int]) -> Script[_Present]:
    """Return what is in flight, whether of that a lease has ended, and whether something is parked.

    In one statement, as every claim begins with it.
    """
    rows = yield Statement(
        # Of a chain one is under way; that of a line that was paused has no mark.
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
    return _Present(
        in_flight,
        others,
        has_expired=any(row["until"] <= now for row in leased),
        has_turns=len(rows) > len(leased),
    )


def _take(ids: Sequence[str], claim: Claim) -> Script[list[Delivery]]:
    claimed: dict[str, Delivery] = {}
    for clause, values in among(ids, after=2):
        rows = yield Statement(
            CLAIMED.where(
                f"id IN (SELECT id FROM pushkit_deliveries WHERE id {clause} AND head > 0"
                f" AND state = 'pending' FOR UPDATE SKIP LOCKED) RETURNING {DELIVERY}"
            ),
            (claim.worker, to_micros(claim.until), *values),
        )
        claimed |= {row["id"]: delivery_of(row) for row in rows}
    # Another worker may have had the same one in view, and been quicker.
    return [claimed[each] for each in ids if each in claimed]


def _take_next(
    wanted: Sequence[tuple[str, str]], claim: Claim, now: datetime
) -> Script[list[Delivery]]:
    """Take those deliveries (each with the origin that it must go to) that may go now."""
    return (yield from _take_places(_taking_next, wanted, claim, now))


def _take_behind(heads: Sequence[Delivery], claim: Claim, now: datetime) -> Script[list[Delivery]]:
    """Take what stands behind some that were just taken, and may go when those have arrived."""
    # Those of a line are alike.
    places = [
        (each.subscription_id, each.seq, each.origin)
        for each in heads
        if len(each.body) <= CHAINED_BYTES
    ]
    taken = yield from _take_places(_taking_behind, places, claim, now)
    return sorted(taken, key=lambda each: (each.subscription_id, each.seq))


def _take_places(
    taking: Callable[[int], str],  # the statement, for so many places
    places: Sequence[tuple[SqlValue, ...]],
    claim: Claim,
    now: datetime,
) -> Script[list[Delivery]]:
    taken: list[Delivery] = []
    for some in chunks(places):
        filled = padded(some)
        values = (claim.worker, to_micros(claim.until), to_micros(now))
        rows = yield Statement(
            taking(len(filled)), (*values, *itertools.chain.from_iterable(filled))
        )
        taken += map(delivery_of, rows)
    return taken


@functools.cache
def _taking_behind(number: int) -> str:
    lines = " OR ".join(
        f"(subscription_id = ${n} AND seq > ${n + 1} AND seq < ${n + 1} + {_AT_ONCE}"
        f" AND NOT EXISTS (SELECT 1 FROM pushkit_deliveries b WHERE b.subscription_id = ${n}"
        f" AND b.seq > ${n + 1} AND b.seq <= pushkit_deliveries.seq AND b.{UNFINISHED}"
        f" AND (b.attempts > 0 OR b.not_before > $3 OR b.origin <> ${n + 2}"
        # What a dead worker's lease still holds is not overtaken.
        " OR b.state = 'in_flight')))"
        for n in range(4, 4 + 3 * number, 3)
    )
    return CHAINED.where(f"({lines}) RETURNING {DELIVERY}")


_IS_PAUSED = (
    "EXISTS (SELECT 1 FROM pushkit_subscriptions s"
    " WHERE s.id = pushkit_deliveries.subscription_id AND s.paused = 1)"
)
_FAILS_OR_WAITS = (
    "EXISTS (SELECT 1 FROM pushkit_destinations h WHERE h.tenant = pushkit_deliveries.tenant"
    " AND h.owner = pushkit_deliveries.owner AND h.origin = pushkit_deliveries.origin"
    " AND (h.failures > 0 OR h.until > {now}))"
)


def _go_on(chained: Mapping[str, Row], now: int) -> Script[set[str]]:
    """Mark what is in flight already as the oldest of its line; return the lines that must stop.

    Args:
        chained: By line, what is next of it, and what of its chain.
    """
    stopped = {line for line, row in chained.items() if row["next_id"] != row["chained_id"]}
    for clause, values in among([row["chained_id"] for row in chained.values()], after=1):
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET head ="
            f" CASE WHEN {_IS_PAUSED} THEN 0 ELSE 1 END WHERE id {clause} AND {UNFINISHED}"
            f" RETURNING subscription_id, head, {_FAILS_OR_WAITS.format(now='$1')} AS waits",
            (now, *values),
        )
        stopped |= {row["subscription_id"] for row in rows if row["waits"] or not row["head"]}
    return stopped


@functools.cache
def _taking_next(number: int) -> str:
    ids = range(4, 4 + 2 * number, 2)
    origins = " ".join(f"WHEN ${n} THEN ${n + 1}" for n in ids)
    return CLAIMED.where(
        f"id IN ({', '.join(f'${n}' for n in ids)}) AND origin = CASE id {origins} END"
        f" AND not_before <= $3 AND attempts = 0 AND NOT {_IS_PAUSED}"
        f" AND NOT {_FAILS_OR_WAITS.format(now='$3')} RETURNING {DELIVERY}"
    )


def _give_back(lost: Rows, error: str, now: datetime) -> Script[None]:
    """Let what nobody settled be claimed again: at once, then later and later."""
    alike: dict[int, list[str]] = {}
    for row in lost:
        alike.setdefault(row["fruitless_claims"], []).append(row["id"])
    for claims, ids in alike.items():
        # The first time it may have been any other delivery that ended the process.
        wait = min(after_fruitless_claims(claims - 1), _LONGEST_AFTER_A_DEATH)
        again_at = to_micros(now + wait) if wait else None
        for clause, values in among(ids, after=2):
            yield Statement(LOST.where(f"id {clause}"), (error, again_at, *values))


class _Waiting(NamedTuple):
    """What is next of a line, and what was settled last of that."""

    next_id: str
    delivery: Delivery
    result: Result


@record(frozen=False, slots=True)
class _Behind:
    """What stands behind what was settled."""

    lost: set[str]  # the lines of which not all was this worker's any more
    left: set[str]  # the lines of which something else is the oldest, or the same again
    # Where that is in flight already: by line, what is next of it, and what of its chain.
    chained: dict[str, Row] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)


def _behind(
    settled: Sequence[tuple[Delivery, Result]], found: Mapping[tuple[str, int], Row]
) -> _Behind:
    """Say what is next of each line; `found` has the rows that were settled, by id and claim."""
    held, lost, again = set[str](), set[str](), set[str]()
    for delivery, result in settled:
        is_ours = (delivery.id, delivery.claims) in found
        (held if is_ours else lost).add(delivery.subscription_id)
        # It is the oldest again, unless an older one was redriven meanwhile.
        if is_ours and result.outcome in _AGAIN:
            again.add(delivery.subscription_id)
    behind = _Behind(lost, held & (lost | again))
    for line, (delivery, result) in _ends(settled).items():
        if line in behind.left or line not in held:
            continue
        row = found[delivery.id, delivery.claims]
        if row["chained_id"] is not None:
            behind.chained[line] = row
        elif row["next_id"] is not None:
            behind.waiting.append(_Waiting(row["next_id"], delivery, result))
    return behind


def _ends(
    settled: Sequence[tuple[Delivery, Result]],
) -> dict[str, tuple[Delivery, Result]]:
    """Return what is settled last of each line."""
    return {each[0].subscription_id: each for each in settled}


def _write_down(
    settled: Sequence[tuple[Delivery, Result]], worker: str, now: int, ahead: timedelta
) -> Script[dict[tuple[str, int], Row]]:
    """Settle rows; return those that were still this worker's, by id and claim.

    The end of a line comes after the rest of it, and finds what is next.
    """
    ends = _ends(settled)
    alike: dict[tuple[SqlValue, ...], list[tuple[SqlValue, SqlValue]]] = {}
    for delivery, result in settled:
        ends_it = ends[delivery.subscription_id][0] is delivery
        folds, state = is_folded(delivery, result), SETTLED[result.outcome]
        columns = (
            str(state),  # what is a string and more is slow to bind
            result.status,
            result.error,
            to_micros(result.retry_at) if result.retry_at else None,
            None if state is DeliveryState.PENDING else now,
            int(result.started_at is not None),
        )
        last: SqlValue = delivery.claims
        if folds:
            last = fold(result, ahead)
        alike.setdefault((ends_it, folds, *columns), []).append((delivery.id, last))
    found: dict[tuple[str, int], Row] = {}
    for (is_end, folded, *those_columns), those in sorted(
        alike.items(), key=lambda of: bool(of[0][0])
    ):
        for some in chunks(those):
            values = padded(some)
            rows = yield Statement(
                _settling(len(values), folds=bool(folded), is_end=bool(is_end)),
                (*those_columns, worker, *itertools.chain.from_iterable(values)),
            )
            found |= {(row["id"], row["claims"]): row for row in rows}
    return found


@functools.cache
def _settling(number: int, *, folds: bool, is_end: bool) -> str:
    """Return what settles so many deliveries that are alike.

    Parameters from `$8` on: the id of each, and its claim; or, of those of a first claim, the
    attempt that is folded into the row. What is the end of its line finds what is next of it.
    """
    firsts = range(8, 8 + 2 * number, 2)
    if folds:
        attempts = " ".join(f"WHEN ${n} THEN ${n + 1}" for n in firsts)
        folded = f", first_attempt = CASE id {attempts} END"
        which = f"claims = 1 AND id IN ({', '.join(f'${n}' for n in firsts)})"
    else:
        # Not `IN (VALUES …)`, whose numbers PostgreSQL would take for texts.
        folded = ""
        which = f"({' OR '.join(f'(id = ${n} AND claims = ${n + 1})' for n in firsts)})"
    return (
        f"{SETTLING}{folded} WHERE lease_worker = $7 AND state = 'in_flight'"
        f" AND {which} RETURNING id, claims{f', {_NEXT_ID}, {_CHAINED_ID}' if is_end else ''}"
    )


_NEXT_ID = (
    "(SELECT n.id FROM pushkit_deliveries n"
    " WHERE n.subscription_id = pushkit_deliveries.subscription_id"
    f" AND n.id <> pushkit_deliveries.id AND n.{UNFINISHED} ORDER BY n.seq LIMIT 1) AS next_id"
)
# What a chain goes on with. An older one may have been redriven meanwhile: it comes right behind.
_CHAINED_ID = (
    "(SELECT CASE c.state WHEN 'in_flight' THEN c.id END FROM pushkit_deliveries c"
    " WHERE c.subscription_id = pushkit_deliveries.subscription_id"
    f" AND c.seq > pushkit_deliveries.seq AND c.{UNFINISHED} ORDER BY c.seq LIMIT 1) AS chained_id"
)

_AGAIN = {outcome for outcome, state in SETTLED.items() if state is DeliveryState.PENDING}
