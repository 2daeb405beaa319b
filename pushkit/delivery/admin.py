"""`OutboxAdmin`: inspect the outbox, send again, cancel, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from pushkit.arguments import check_list
from pushkit.clock import utc_now
from pushkit.delivery.again import Again, Redriven, Retried
from pushkit.delivery.answers import BreakerPolicy
from pushkit.errors import ConfigError
from pushkit.events.listeners import Listeners
from pushkit.events.sender import OutboxChange, OutboxChanged
from pushkit.options import Age, Number, checked
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.browsing import (
    DestinationStanding,
    Finished,
    OutboxFigures,
    browse_deliveries,
    browse_destinations,
    finished_since,
    outbox_figures,
)
from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import (
    DeliveryFilter,
    DeliveryReport,
    DeliverySummary,
    Inspection,
    OutboxStats,
    QueueStanding,
)
from pushkit.outbox.retention import Purge, Retention
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.progress import advance
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database, read_now
from pushkit.storage.paging import Page
from pushkit.storage.script import Script, chunks
from pushkit.subscriptions.queues import OUTBOX
from pushkit.subscriptions.store import SubscriptionStore

D = TypeVar("D", Redriven, Retried)

_log = logging.getLogger("pushkit.delivery")

_BATCH = 200
_BREAKER = BreakerPolicy()
# Between two batches, so that other transactions get their turn.
_PAUSE = timedelta(milliseconds=20)


class Erased(NamedTuple):
    """How much of a task was erased."""

    subscriptions: int
    deliveries: int


class OutboxAdmin:
    """The outbox, for operators. All methods are safe while workers run.

    Changes are made in small transactions, one after another, so that deliveries continue.

    Args:
        database: The outbox, open (see `open_outbox`).
        wake: Called when deliveries become due, to wake a worker in this process.
        vault: Opens sealed bodies.
        breaker: The workers' policy: when a destination gets one delivery at a time.
        events: Where changes are emitted, one event for each call.
        clock: The time of those events.
    """

    def __init__(
        self,
        database: Database,
        *,
        wake: Callable[[], None] = lambda: None,
        vault: Vault | None = None,
        breaker: BreakerPolicy = _BREAKER,
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self.breaker = breaker
        self._database = database
        self.location: str = database.location  # of the outbox, as commands name it
        self._wake = wake
        self._inspection = Inspection(vault)
        self._dead_letters = DeadLetters()
        self._again = Again(database=database, probes_from=breaker.failures)
        self._purge = Purge()
        self._outbox = OutboxStore()
        self._subscriptions = SubscriptionStore()

    # --- inspecting ----------------------------------------------------------------------------

    async def find(
        self, wanted: DeliveryFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> list[DeliverySummary]:
        """Return a page of deliveries without their bodies, oldest first.

        `after` is the last id of the previous page.
        """
        script = self._inspection.find(wanted or DeliveryFilter(), after=after, limit=limit)
        return await self._database.read(script)

    async def browse(
        self, wanted: DeliveryFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> Page[DeliverySummary]:
        """Return a page of deliveries without their bodies, newest first.

        It takes the same time for any number of deliveries, so the page may end before it is full
        (`Page.is_cut`). A filter with a task and no tenant means the tenant without a name.
        `before` is `Page.before` of the previous page.
        """
        script = browse_deliveries(wanted or DeliveryFilter(), before=before, limit=limit)
        return await self._database.read(script)

    async def figures(self, *, within: timedelta = timedelta(hours=1)) -> OutboxFigures:
        """Return the figures of the outbox's health, in the same time for any number of them."""
        look = functools.partial(outbox_figures, within=within)
        return await read_now(self._database, look)

    async def finished(self, *, within: timedelta = timedelta(hours=1)) -> list[Finished]:
        """Return recently finished deliveries, newest first; only the newest if there are many."""
        return await read_now(self._database, lambda now: finished_since(now - within))

    async def destinations(
        self, *, after: DestinationKey | None = None, limit: int = 50
    ) -> list[DestinationStanding]:
        """Return a page of destinations that wait or fail, by tenant, owner and origin."""
        look = functools.partial(browse_destinations, after=after, limit=limit)
        return await read_now(self._database, look)

    async def queues(self, *, after: str | None = None, limit: int = 100) -> list[QueueStanding]:
        """Return a page of the queues that a worker leases, or that are due, now or later, by id.

        Those of paused subscriptions only while they are leased. `after` is the last id of the
        previous page.
        """
        look = functools.partial(self._inspection.queues, after=after, limit=limit)
        return await read_now(self._database, look)

    async def attempts_of(self, ids: Sequence[str]) -> dict[str, list[LoggedAttempt]]:
        """Return the attempts of some deliveries, by id."""
        return await self._database.read(self._inspection.attempts_of(ids))

    async def show(self, delivery_id: str) -> DeliveryReport | None:
        """Return one delivery with its body and every attempt; None if there is none."""
        return await self._database.read(self._inspection.show(delivery_id))

    async def stats(self) -> OutboxStats:
        """Return the outbox in numbers."""
        return await self._database.read(self._inspection.stats())

    # --- sending again -------------------------------------------------------------------------

    async def redrive(
        self, wanted: Sequence[str] | DeliveryFilter, *, dry_run: bool = False
    ) -> Redriven:
        """Redrive dead letters, by id or by filter; with `dry_run`, only return which ones.

        They keep id and `seq`, start with no attempts and a new age, and go ahead of pending
        deliveries. A webhook may get one again that it has, if its answer was lost.
        """
        redrive = self._again.would_redrive if dry_run else self._again.redrive
        return await self._send(
            OutboxChange.REDRIVEN,
            self._chosen(wanted, DeliveryState.DEAD),
            lambda ids: redrive(ids, (DeliveryState.DEAD,)),
            Redriven(),
            dry_run=dry_run,
        )

    async def resend(
        self, wanted: Sequence[str] | DeliveryFilter, *, from_seq: int = 1, dry_run: bool = False
    ) -> Redriven:
        """Send delivered or cancelled ones again; with `dry_run`, only return which ones.

        This is for a receiver that lost its data (others know the ids, and do nothing), and for
        deliveries that were cancelled by mistake, or with a subscription that is enabled again.

        Args:
            wanted: Ids, or a filter: it selects delivered ones, unless its `state` is `CANCELLED`.
                Superseded deliveries are selected only by id, or by `cancelled_by`.
            from_seq: With a filter, the first `seq` of each subscription.
            dry_run: Change nothing.

        Raises:
            ConfigError: The filter is for another state.
        """
        states: Sequence[DeliveryState] = (DeliveryState.DELIVERED, DeliveryState.CANCELLED)
        state = DeliveryState.DELIVERED
        if isinstance(wanted, DeliveryFilter):
            state = wanted.state or state
            if state not in states:
                raise ConfigError(f"resend: found state {state}, expected delivered or cancelled")
            states = (state,)
        redrive = self._again.would_redrive if dry_run else self._again.redrive
        return await self._send(
            OutboxChange.RESENT,
            self._chosen(wanted, state, from_seq),
            lambda ids: redrive(ids, states),
            Redriven(),
            dry_run=dry_run,
        )

    async def retry_now(
        self, wanted: Sequence[str] | DeliveryFilter, *, dry_run: bool = False
    ) -> Retried:
        """Attempt pending deliveries now; with `dry_run`, only return which ones.

        A destination that waits (`Retry-After`, or after failures in a row) gets one delivery; the
        others follow once it is answered. Subscriptions stay paused, and in order. A filter selects
        the first one of each subscription; deliveries given by id wait for those before them.
        """
        chosen = replace(wanted, next_only=True) if isinstance(wanted, DeliveryFilter) else wanted
        return await self._send(
            OutboxChange.RETRIED,
            self._chosen(chosen, DeliveryState.PENDING),
            self._again.would_retry if dry_run else self._again.retry,
            Retried(),
            dry_run=dry_run,
        )

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """Cancel pending deliveries, and return them; running attempts continue."""
        check_list("ids", ids)
        cancelled: list[str] = []
        with self._counting(OutboxChange.CANCELLED) as count:
            for batch in chunks(ids):
                done = await self._database.write(self._cancel_script(batch))
                count(len(done))
                cancelled += done
                advance(len(batch))
        return cancelled

    async def states(self, ids: Sequence[str]) -> dict[str, DeliveryState]:
        """Return the states of deliveries by id; unknown ids are left out."""
        check_list("ids", ids)
        found = await self._database.read(self._dead_letters.standings(ids))
        return {delivery_id: each.state for delivery_id, each in found.items()}

    # --- cleaning up ---------------------------------------------------------------------------

    @checked
    async def purge(
        self,
        *,
        older_than: Age | None = None,
        states: Sequence[DeliveryState] = (DeliveryState.DELIVERED, DeliveryState.CANCELLED),
        per_task: Number | None = None,
    ) -> int:
        """Delete finished deliveries with their attempts; return how many.

        Args:
            older_than: Delete those that finished longer ago than this, and are in `states`.
            states: Delivered, cancelled, dead.
            per_task: Keep this many finished deliveries of each task, the newest, in any state.

        Raises:
            ConfigError: Neither `older_than` nor `per_task` is given, or one is out of range.
        """
        if older_than is None and per_task is None:
            raise ConfigError("purge: expected older_than or per_task, found neither")
        purged = 0
        with self._counting(OutboxChange.PURGED) as count:
            if older_than is not None and states:
                now = await self._database.read(self._database.now())
                purged += await self._purge_finished(states, now - older_than, count)
            if per_task is not None:
                purged += await self._purge_tasks(per_task, count)
        return purged

    async def retain(self, retention: Retention) -> int:
        """Delete deliveries whose retention is over; return how many.

        Subscriptions that were withdrawn at their task's end are deleted after their last delivery;
        so are those that have been disabled for as long as dead letters are kept.
        """
        purged, disabled_before = 0, None
        if retention.delivered is not None or retention.per_task is not None:
            purged += await self.purge(older_than=retention.delivered, per_task=retention.per_task)
        if retention.dead is not None:
            purged += await self.purge(older_than=retention.dead, states=(DeliveryState.DEAD,))
            disabled_before = await self._database.read(self._database.now()) - retention.dead
        forgettable = functools.partial(
            self._subscriptions.forgettable, disabled_before=disabled_before, limit=_BATCH
        )
        while ids := await self._database.read(forgettable()):
            await self._database.write(self._subscriptions.forget(ids))
            await asyncio.sleep(_PAUSE.total_seconds())
        return purged

    async def erase(self, task_id: str, *, tenant: str = "") -> Erased:
        """Erase all data of a task; return how much there was.

        First its subscriptions are removed and its unfinished deliveries cancelled, then deliveries
        and attempts are deleted. A running attempt ends, and stores nothing.
        """
        known = await self._database.read(
            self._subscriptions.of_task(tenant=tenant, task_id=task_id)
        )
        subscriptions = await self._database.write(self._remove_script(tenant, task_id, known))
        excess = await self._database.read(self._purge.excess_of_task(tenant, task_id, keep=0))
        if excess is None:
            return Erased(subscriptions, 0)
        deliveries = 0
        with self._counting(OutboxChange.ERASED) as count:
            while ids := await self._database.read(self._purge.ids_of(excess, limit=_BATCH)):
                deliveries += await self._delete(ids, count)
        return Erased(subscriptions, deliveries)

    # --- in batches ----------------------------------------------------------------------------

    async def _chosen(
        self, wanted: Sequence[str] | DeliveryFilter, state: DeliveryState, from_seq: int = 1
    ) -> AsyncIterator[Sequence[str]]:
        if not isinstance(wanted, DeliveryFilter):
            check_list("wanted", wanted)
            for batch in chunks(list(dict.fromkeys(wanted))):
                yield batch
            return
        chosen = replace(wanted, state=state)
        after: str | None = None
        while page := await self.find(chosen, after=after, limit=_BATCH):
            yield [each.id for each in page if each.seq >= from_seq and _is_selected(each, chosen)]
            after = page[-1].id

    @contextlib.contextmanager
    def _counting(self, change: OutboxChange) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts changed deliveries; emit the event at the end, or error."""
        counted: list[int] = []
        try:
            yield counted.append
        finally:
            done = sum(counted)
            if done and self._events.wants(OutboxChanged.usual_level):
                self._events.emit(OutboxChanged(at=self._clock(), change=change, count=done))

    async def _send(
        self,
        change: OutboxChange,
        pages: AsyncIterator[Sequence[str]],
        script: Callable[[Sequence[str]], Script[D]],
        result: D,  # what the results of all pages are added to
        *,
        dry_run: bool,
    ) -> D:
        """Send page by page, or only read what would be sent."""
        with self._counting(change) as count:
            async for page in pages:
                if dry_run:
                    result += await self._database.read(script(page))
                    continue
                done = await self._database.write(script(page))
                count(len(done.ids))
                result += done
                self._wake()
                advance(len(page))
                await asyncio.sleep(_PAUSE.total_seconds())
        return result

    async def _purge_finished(
        self, states: Sequence[DeliveryState], moment: datetime, count: Callable[[int], None]
    ) -> int:
        purged, since = 0, 0
        while found := await self._database.read(
            self._purge.finished_between(states, since, moment, limit=_BATCH)
        ):
            purged += await self._delete([delivery_id for _, delivery_id in found], count)
            since = found[-1][0]  # those of other states, which stay, are read once
        return purged

    async def _purge_tasks(self, per_task: int, count: Callable[[int], None]) -> int:
        purged, last, few = 0, ("", ""), list[str]()
        while crowded := await self._database.read(
            self._purge.crowded_tasks(per_task, after=last, limit=_BATCH)
        ):
            for last in crowded:
                excess = await self._database.read(self._purge.excess_of_task(*last, keep=per_task))
                if excess is None:
                    continue  # redriven or deleted meanwhile
                find = functools.partial(self._purge.ids_of, excess, limit=_BATCH)
                while len(ids := await self._database.read(find())) == _BATCH:
                    purged += await self._delete(ids, count)
                few += ids  # of several tasks in one transaction
                if len(few) >= _BATCH:
                    purged += await self._delete(few, count)
                    few = []
        return purged + await self._delete(few, count)

    async def _delete(self, ids: Sequence[str], count: Callable[[int], None]) -> int:
        found = await self._database.write(self._purge.delete(ids))
        count(found)
        advance(len(ids))
        await asyncio.sleep(_PAUSE.total_seconds())
        return found

    # --- scripts -------------------------------------------------------------------------------

    def _cancel_script(self, ids: Sequence[str]) -> Script[list[str]]:
        by_subscription = yield from self._dead_letters.subscriptions_of(ids)
        cancelled: list[str] = []
        for subscription_id, found in by_subscription.items():
            subscription = yield from self._subscriptions.lock(subscription_id)
            now = yield from self._database.now()
            if subscription is None:
                continue
            queues = yield from OUTBOX.lock([subscription_id])
            cancelled += yield from self._dead_letters.cancel(queues[subscription_id], found, now)
            unfinished = yield from self._outbox.has_unfinished(subscription_id)
            if subscription.ended and not unfinished:
                yield from self._subscriptions.withdraw([subscription_id], now)
        yield from self._database.wake()
        return cancelled

    def _remove_script(self, tenant: str, task_id: str, known: Sequence[str]) -> Script[int]:
        """Remove a task's subscriptions, and cancel their deliveries; return their number."""
        now = yield from self._database.now()
        ids = yield from self._subscriptions.erase_task(tenant=tenant, task_id=task_id, known=known)
        for subscription_id in ids:
            yield from self._outbox.cancel_subscription(subscription_id, now, CancelledBy.REMOVED)
        return len(ids)


def _is_selected(found: DeliverySummary, wanted: DeliveryFilter) -> bool:
    """Return whether a filter selects a delivery: a superseded one only if it names that."""
    # Earlier versions stored only the error, not `cancelled_by`.
    return wanted.cancelled_by is CancelledBy.SUPERSEDED or (
        found.cancelled_by is not CancelledBy.SUPERSEDED
        and found.last_error != CancelledBy.SUPERSEDED
    )
