"""`OutboxAdmin`: inspect the outbox, send again, cancel, clean up."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from pushkit.clock import utc_now
from pushkit.delivery.answers import BreakerPolicy
from pushkit.errors import ConfigError
from pushkit.events import Listeners, OutboxChange, OutboxChanged
from pushkit.options import Age, Number, check_list, checked
from pushkit.outbox import changes, destinations, inspection, retention, stats
from pushkit.outbox import store as outbox
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.changes import Requeued, Retried
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import (
    DELIVERIES,
    NOT_SUPERSEDED,
    DeliveryFilter,
    DeliveryReport,
    DeliverySummary,
    OutboxQueue,
    of_unnamed_tenant,
)
from pushkit.outbox.retention import Retention
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.outbox.stats import FailingDestination, Finished, OutboxStats
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database, read_now
from pushkit.storage.paging import MOST_COUNTED, Page, added, chosen_ids, in_batches
from pushkit.storage.script import Script, chunks
from pushkit.subscriptions import store as subscriptions

D = TypeVar("D", Requeued, Retried)

_log = logging.getLogger("pushkit.delivery")

_BATCH = 200
_MOST_FORGOTTEN = 20_000  # destinations, at a time
_BREAKER = BreakerPolicy()
_RESENDABLE = (DeliveryState.DELIVERED, DeliveryState.CANCELLED)


class Erased(NamedTuple):
    """How much of a task was erased."""

    subscriptions: int
    deliveries: int


class Admin:
    """A sender's database, for operators. All methods are safe while workers run.

    Changes are made in small transactions, one after another, so that deliveries continue.

    Args:
        database: The outbox, open (see `open_outbox`).
        wake: Called when deliveries become due, to wake a worker in this process, with the ids of
            the subscriptions that were changed: it looks at these again.
        vault: Opens sealed bodies and answers, and seals test notifications.
        breaker: The workers' policy: when a destination gets one delivery at a time.
        events: Where changes are emitted.
        clock: The time of those events.
    """

    def __init__(
        self,
        database: Database,
        *,
        wake: Callable[[Collection[str]], None] = lambda _: None,
        vault: Vault | None = None,
        breaker: BreakerPolicy = _BREAKER,
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._wake = wake
        self._vault = vault or Vault()
        self.breaker = breaker
        self.location: str = database.location  # of the outbox, as commands name it
        self._events = events or Listeners(_log)
        self._clock = clock


class OutboxAdmin(Admin):
    """The outbox, for operators: inspect, send again, cancel, clean up."""

    # --- inspecting ----------------------------------------------------------------------------

    async def find(
        self, wanted: DeliveryFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> list[DeliverySummary]:
        """Return a page of deliveries without their bodies, oldest first.

        `after` is the last id of the previous page.
        """
        script = DELIVERIES.find(wanted or DeliveryFilter(), after=after, limit=limit)
        return await self._database.read(script)

    async def browse(
        self, wanted: DeliveryFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> Page[DeliverySummary]:
        """Return a page of deliveries without their bodies, newest first.

        It takes the same time for any number of deliveries, so the page may end before it is full
        (`Page.is_cut`). A filter with a task and no tenant means the tenant without a name.
        `before` is `Page.before` of the previous page.
        """
        wanted = of_unnamed_tenant(wanted or DeliveryFilter())
        return await self._database.read(DELIVERIES.browse(wanted, before=before, limit=limit))

    async def stats(
        self, *, within: timedelta = timedelta(hours=1), at_most: int = MOST_COUNTED
    ) -> OutboxStats:
        """Return the outbox in numbers; each counts up to `at_most` deliveries.

        `within` is how recently those finished that are returned one by one.
        """
        return await read_now(self._database, stats.outbox_stats, within=within, at_most=at_most)

    async def finished(self, *, within: timedelta = timedelta(hours=1)) -> list[Finished]:
        """Return recently finished deliveries, newest first; only the newest if there are many."""
        return await read_now(self._database, lambda now: stats.finished_since(now - within))

    async def destinations(
        self, *, after: DestinationKey | None = None, limit: int = 50
    ) -> list[FailingDestination]:
        """Return a page of destinations that wait or fail, by tenant, owner and origin."""
        return await read_now(self._database, stats.browse_destinations, after=after, limit=limit)

    async def queues(self, *, after: str | None = None, limit: int = 100) -> list[OutboxQueue]:
        """Return a page of the queues that a worker leases, or that are due, now or later, by id.

        Those of paused subscriptions only while they are leased. `after` is the last id of the
        previous page.
        """
        return await read_now(self._database, inspection.queues, after=after, limit=limit)

    async def attempts_of(self, ids: Sequence[str]) -> dict[str, list[LoggedAttempt]]:
        """Return the attempts of some deliveries, by id."""
        return await self._database.read(inspection.attempts_of(ids, self._vault))

    async def show(self, delivery_id: str) -> DeliveryReport | None:
        """Return one delivery with its body and every attempt; None if there is none."""
        return await self._database.read(inspection.show(delivery_id, self._vault))

    # --- sending again -------------------------------------------------------------------------

    async def redrive(
        self, wanted: Sequence[str] | DeliveryFilter, *, dry_run: bool = False
    ) -> Requeued:
        """Redrive dead letters, by id or by filter; with `dry_run`, only return which ones.

        They keep id and `seq`, start with no attempts and a new age, and go ahead of pending
        deliveries. A webhook may get one again that it has, if its answer was lost.
        """
        chosen = self._chosen(wanted, DeliveryState.DEAD)
        send = functools.partial(changes.requeue, states=(DeliveryState.DEAD,))
        return await self._send(OutboxChange.REDRIVEN, chosen, send, Requeued(), dry_run=dry_run)

    async def resend(
        self, wanted: Sequence[str] | DeliveryFilter, *, from_seq: int = 1, dry_run: bool = False
    ) -> Requeued:
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
        states: Sequence[DeliveryState] = _RESENDABLE
        if isinstance(wanted, DeliveryFilter):
            states = (wanted.state or DeliveryState.DELIVERED,)
            if states[0] not in _RESENDABLE:
                raise ConfigError(
                    f"resend: found state {states[0]}, expected delivered or cancelled"
                )
        chosen = self._chosen(wanted, states[0], from_seq)
        send = functools.partial(changes.requeue, states=states)
        return await self._send(OutboxChange.RESENT, chosen, send, Requeued(), dry_run=dry_run)

    async def retry_now(
        self, wanted: Sequence[str] | DeliveryFilter, *, dry_run: bool = False
    ) -> Retried:
        """Attempt pending deliveries now; with `dry_run`, only return which ones.

        A destination that waits (`Retry-After`, or after failures in a row) gets one delivery; the
        others follow once it is answered. Subscriptions stay paused, and in order. A filter selects
        the first one of each subscription; deliveries given by id wait for those before them.
        """
        if isinstance(wanted, DeliveryFilter):
            wanted = replace(wanted, next_only=True)
        chosen = self._chosen(wanted, DeliveryState.PENDING)
        send = functools.partial(changes.send_now, probes_from=self.breaker.failures)
        return await self._send(OutboxChange.RETRIED, chosen, send, Retried(), dry_run=dry_run)

    async def _send(
        self,
        change: OutboxChange,
        chosen: AsyncGenerator[Sequence[str]],
        script: Callable[..., Script[D]],  # over the database and ids
        result: D,  # what the results of all batches are added to
        *,
        dry_run: bool,
    ) -> D:
        send = functools.partial(script, self._database, dry_run=dry_run)
        with self._counting(change) as count:
            async with aclosing(
                in_batches(self._database, chosen, send, dry_run=dry_run)
            ) as batches:
                async for _, done in batches:
                    if not dry_run:
                        count(len(done.ids))
                        self._wake(())
                    result = added(result, done)
        return result

    async def cancel(self, ids: Sequence[str]) -> list[str]:
        """Cancel pending deliveries, and return them; running attempts continue."""
        check_list("ids", ids)
        cancel = functools.partial(changes.cancel_pending, self._database)
        chosen = self._chosen(ids, DeliveryState.PENDING)
        cancelled: list[str] = []
        with self._counting(OutboxChange.CANCELLED) as count:
            async with aclosing(in_batches(self._database, chosen, cancel)) as batches:
                async for _, done in batches:
                    count(len(done))
                    self._wake(())  # what was behind them may be due
                    cancelled += done
        return cancelled

    async def states(self, ids: Sequence[str]) -> dict[str, DeliveryState]:
        """Return the states of deliveries by id; unknown ids are left out."""
        check_list("ids", ids)
        found = await self._database.read(changes.current_deliveries(ids))
        return {delivery_id: each.state for delivery_id, each in found.items()}

    def _chosen(
        self, wanted: Sequence[str] | DeliveryFilter, state: DeliveryState, from_seq: int = 1
    ) -> AsyncGenerator[Sequence[str]]:
        more = [f"seq >= {int(from_seq)}"] if from_seq > 1 else []
        if isinstance(wanted, DeliveryFilter):
            wanted = replace(wanted, state=state)
            if wanted.cancelled_by != CancelledBy.SUPERSEDED:
                more.append(NOT_SUPERSEDED)
        return chosen_ids(self._database, DELIVERIES, wanted, *more, size=_BATCH)

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
        now = await self._database.read(self._database.now())
        purged = 0
        with self._counting(OutboxChange.PURGED) as count:
            if older_than is not None and states:
                purged += await self._delete(self._finished(states, now - older_than), count)
            if per_task is not None:
                purged += await self._delete(self._excess(per_task), count)
        return purged

    async def retain(self, policy: Retention) -> int:
        """Delete deliveries whose retention is over; return how many.

        Subscriptions that were withdrawn at their task's end are deleted after their last delivery;
        so are those that have been disabled for as long as dead letters are kept. Of destinations
        that work again, or to which nothing is sent any more, failures and waits are forgotten.
        """
        now = await self._database.read(self._database.now())
        purged, disabled_before = 0, None
        if policy.delivered is not None or policy.per_task is not None:
            purged += await self.purge(older_than=policy.delivered, per_task=policy.per_task)
        if policy.dead is not None:
            purged += await self.purge(older_than=policy.dead, states=(DeliveryState.DEAD,))
            disabled_before = now - policy.dead
        forgettable = functools.partial(
            subscriptions.forgettable, disabled_before=disabled_before, limit=_BATCH
        )
        await self._delete(self._left(forgettable), lambda _: None, subscriptions.forget)
        left = await self._database.read(destinations.forgettable(now, limit=_MOST_FORGOTTEN))
        for some in chunks(left):
            await self._database.write(destinations.forget(some, now))
        return purged

    async def erase(self, task_id: str, *, tenant: str = "") -> Erased:
        """Erase all data of a task; return how much there was.

        First its subscriptions are removed and its unfinished deliveries cancelled, then deliveries
        and attempts are deleted. A running attempt ends, and stores nothing.
        """
        known = await self._database.read(subscriptions.of_task(tenant=tenant, task_id=task_id))
        removed = await self._database.write(self._remove_script(tenant, task_id, known))
        excess = await self._database.read(retention.excess_of_task(tenant, task_id, keep=0))
        if excess is None:
            return Erased(removed, 0)
        with self._counting(OutboxChange.ERASED) as count:
            ids = functools.partial(retention.ids_of, excess, limit=_BATCH)
            return Erased(removed, await self._delete(self._left(ids), count))

    async def _delete(
        self,
        chosen: AsyncGenerator[Sequence[str]],
        count: Callable[[int], None],
        script: Callable[[Sequence[str]], Script[int]] = retention.delete,
    ) -> int:
        deleted = 0
        async with aclosing(in_batches(self._database, chosen, script)) as batches:
            async for _, done in batches:
                count(done)
                deleted += done
        return deleted

    async def _left(self, find: Callable[[], Script[list[str]]]) -> AsyncGenerator[Sequence[str]]:
        """Yield the ids that a script finds, until those of all batches are deleted."""
        while ids := await self._database.read(find()):
            yield ids

    async def _finished(
        self, states: Sequence[DeliveryState], before: datetime
    ) -> AsyncGenerator[Sequence[str]]:
        since = 0
        while found := await self._database.read(
            retention.finished_between(states, since, before, limit=_BATCH)
        ):
            yield [delivery_id for _, delivery_id in found]
            since = found[-1][0]  # those of other states, which stay, are read once

    async def _excess(self, per_task: int) -> AsyncGenerator[Sequence[str]]:
        last, few = ("", ""), list[str]()
        while crowded := await self._database.read(
            retention.crowded_tasks(per_task, after=last, limit=_BATCH)
        ):
            for last in crowded:
                excess = await self._database.read(retention.excess_of_task(*last, keep=per_task))
                if excess is None:
                    continue  # redriven or deleted meanwhile
                find = functools.partial(retention.ids_of, excess, limit=_BATCH)
                while len(ids := await self._database.read(find())) == _BATCH:
                    yield ids
                few += ids  # of several tasks in one transaction
                if len(few) >= _BATCH:
                    yield few
                    few = []
        yield few

    @contextmanager
    def _counting(self, change: OutboxChange) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts changed deliveries; emit the event at the end, or error."""
        counted: list[int] = []
        try:
            yield counted.append
        finally:
            done = sum(counted)
            if done and self._events.wants(OutboxChanged.usual_level):
                self._events.emit(OutboxChanged(at=self._clock(), change=change, count=done))

    def _remove_script(self, tenant: str, task_id: str, known: Sequence[str]) -> Script[int]:
        """Remove a task's subscriptions, and cancel their deliveries; return their number."""
        now = yield from self._database.now()
        ids = yield from subscriptions.erase_task(tenant=tenant, task_id=task_id, known=known)
        for subscription_id in ids:
            yield from outbox.cancel_subscription(subscription_id, now, CancelledBy.REMOVED)
        return len(ids)
