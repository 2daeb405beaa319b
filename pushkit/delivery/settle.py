"""Writes down what attempts came to, and what follows from it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta

from pushkit.delivery.route import Routes
from pushkit.delivery.side_effects import SideEffects, is_all_well
from pushkit.delivery.slots import Claimed, DeliverySlots, read_subscriptions
from pushkit.events.sender import DeliveryEvent
from pushkit.outbox.attempts import AttemptLog, is_folded
from pushkit.outbox.destinations import DestinationKey, DestinationStore, destination_of
from pushkit.outbox.model import Delivery, Result
from pushkit.outbox.settling import settle
from pushkit.outbox.states import Outcome
from pushkit.record import record
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Script, alone
from pushkit.subscriptions.model import Current
from pushkit.subscriptions.store import SubscriptionStore


def _line_of(attempted: Sequence[Claimed]) -> str:
    """Return whose line some deliveries are."""
    return attempted[0].delivery.subscription_id


def _by_destination(attempted: Sequence[Claimed]) -> DestinationKey:
    return destination_of(attempted[0].delivery)


@record(frozen=False, slots=True)
class Settled:
    """What followed from attempts of a line."""

    at: datetime  # when, by the database's clock
    # Of each, whether this worker still had it: if not, it was somebody else's to settle.
    are_ours: Sequence[bool]
    events: list[DeliveryEvent] = field(default_factory=list)  # what to tell of what followed
    # The next deliveries of its line, in flight already, which have its slot.
    following: Sequence[Claimed] = ()
    some_wait: bool = False  # whether the next one waits for a claim
    may_go_on: bool = False  # whether its chain may: what stands behind it in flight already


@record(frozen=True, slots=True, kw_only=True)
class Settler:
    """Settles deliveries, and takes what comes next in their lines."""

    database: Database  # where outbox and subscriptions live
    worker: str
    clock: Callable[[], datetime]  # the worker's, aware, in UTC
    side_effects: SideEffects  # what attempts mean for destinations and subscriptions
    slots: DeliverySlots | None = None  # the worker's; None if nothing may follow into them
    routes: Routes | None = None  # the worker's, too
    lease: timedelta = timedelta(minutes=1)  # for how long what follows is taken
    attempts: AttemptLog = field(default_factory=AttemptLog)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)
    destinations: DestinationStore = field(default_factory=DestinationStore)

    def settle(self, attempted: Sequence[Claimed]) -> Awaitable[Settled]:
        """Settle deliveries of one line, in order and in one transaction.

        Raises:
            StorageError: The database refused; nothing was settled.
        """
        # Behind one that did not arrive nothing of its line is begun.
        if attempted[-1].result.outcome is Outcome.DELIVERED:
            return self.database.write_together(self.script, attempted)
        # Failures count one after another: the breaker opens with the last of them.
        return self.database.write_patiently(lambda: alone(self.script, attempted))

    def script(
        self, lines: Sequence[Sequence[Claimed]], /, *, wait: bool = True
    ) -> Script[list[Settled | Deferred]]:
        """Settle deliveries of several lines, those of each in order.

        The rows of their subscriptions are held first, in id order. Destinations come last, in
        order: their rows are the ones that many settle at once.

        Args:
            wait: Whether to wait for subscriptions that somebody holds, or to defer what is
                theirs.
        """
        asked = {_line_of(line) for line in lines}
        current = yield from self.subscriptions.lock_current(list(asked), wait=wait)
        missing = [] if wait else asked.difference(current)
        held = (yield from self.subscriptions.existing(list(missing))) if missing else ()
        since = time.perf_counter()
        now = yield from self.database.now()
        mine = sorted((line for line in lines if _line_of(line) not in held), key=_by_destination)
        settled = yield from self._settle(mine, current, now, since)
        return [DEFERRED if _line_of(line) in held else settled[id(line)] for line in lines]

    def _settle(
        self,
        lines: Sequence[Sequence[Claimed]],
        current: Mapping[str, Current],
        now: datetime,
        since: float,
    ) -> Script[dict[int, Settled]]:
        """Settle what is held; return what followed, by the identity of each line's attempts."""
        ahead = now - self.clock()
        attempted = [each for line in lines for each in line]
        deliveries = [each.delivery for each in attempted]
        folded = [is_folded(each.delivery, each.result) for each in attempted]
        results = [
            each.result if folds else _as_settled(each, current, now, ahead)
            for each, folds in zip(attempted, folded, strict=True)
        ]
        passed = yield from settle(
            list(zip(deliveries, results, strict=True)),
            self.worker,
            now,
            following=self._may_follow,
            until=now + self.lease,
            ahead=ahead,
        )
        held = []
        for delivery, result, folds, is_ours in zip(
            deliveries, results, folded, passed.are_ours, strict=True
        ):
            if result.started_at is None or (folds and is_ours):
                continue
            if is_ours:
                held.append((delivery.id, result))
            else:
                yield from self.attempts.record_late(delivery, result)
        yield from self.attempts.record(held)
        failing = yield from self.destinations.failing(deliveries)
        following = yield from self._routed(passed.claimed, current, since)
        settled: dict[int, Settled] = {}
        ends = 0
        for line in lines:
            begins, ends = ends, ends + len(line)
            name, last = _line_of(line), results[ends - 1]
            of_line = settled[id(line)] = Settled(now, passed.are_ours[begins:ends])
            for delivery, result, is_ours in zip(
                deliveries[begins:ends], results[begins:ends], of_line.are_ours, strict=True
            ):
                if not is_ours or result.outcome is Outcome.NOT_BEGUN:
                    continue
                # The first that was answered ends the row of failures.
                failures = failing.pop(destination_of(delivery), 0) if failing else 0
                if failures or not is_all_well(current.get(name), result):
                    of_line.events += yield from self.side_effects.of(
                        delivery, current.get(name), result, now, failures
                    )
            if not of_line.are_ours[-1]:
                continue
            of_line.some_wait = name in passed.passed_on
            if last.outcome is not Outcome.NOT_BEGUN:
                of_line.following = following.get(name, ())
                of_line.may_go_on = name not in passed.stopped and not _has_changed(
                    line[-1], current.get(name)
                )
        return settled

    def _may_follow(self, delivery: Delivery, result: Result) -> bool:
        """Say whether the next of a line may go at once: behind one that arrived, in its slot."""
        return (
            self.slots is not None
            and result.outcome is Outcome.DELIVERED
            and self.slots.may_follow(destination_of(delivery))
        )

    def _routed(
        self, taken: Sequence[Delivery], current: Mapping[str, Current], since: float
    ) -> Script[dict[str, list[Claimed]]]:
        """Return what was taken with where it goes, by subscription."""
        if self.routes is None or not taken:
            return {}
        routed: dict[str, list[Claimed]] = {}
        for each in taken:
            line = each.subscription_id
            to = self.routes.known(line, current[line].revision) if line in current else None
            routed.setdefault(line, []).append(Claimed(each, to, since))
        claimed = itertools.chain.from_iterable(routed.values())
        yield from read_subscriptions([each for each in claimed if each.to is None])
        return routed


def _as_settled(
    attempted: Claimed, current: Mapping[str, Current], now: datetime, ahead: timedelta
) -> Result:
    result = _by_clock_of_database(attempted.result, ahead)
    subscription = current.get(attempted.delivery.subscription_id)
    if result.outcome is Outcome.GONE and _has_moved(attempted.url, subscription):
        # The old URL is gone, the client's new one is not.
        return replace(result, outcome=Outcome.RETRY, retry_at=now)
    return result


def _has_moved(asked: str | None, current: Current | None) -> bool:
    return bool(asked and current and current.url != asked)


def _has_changed(attempted: Claimed, current: Current | None) -> bool:
    """Say whether what a chain knows of its subscription is out of date."""
    to = attempted.to
    return to is None or current is None or to.subscription.revision != current.revision


def _by_clock_of_database(result: Result, ahead: timedelta) -> Result:
    """Return a result whose moments are by the database's clock, so much ahead of this worker's."""
    return replace(
        result,
        started_at=result.started_at + ahead if result.started_at else None,
        retry_at=result.retry_at + ahead if result.retry_at else None,
        hold_until=result.hold_until + ahead if result.hold_until else None,
    )
