"""`OutboxAdmin`: looking at the outbox, sending again, cancelling, cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from pushkit.arguments import check_age, check_list, check_number
from pushkit.clock import utc_now
from pushkit.delivery.again import Again, Redriven, Retried
from pushkit.delivery.answers import BreakerPolicy
from pushkit.errors import ConfigError
from pushkit.events.listeners import Listeners
from pushkit.events.sender import OutboxChange, OutboxChanged
from pushkit.outbox.attempts import AttemptLog, LoggedAttempt
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
)
from pushkit.outbox.retention import Purge, Retention
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.progress import advance
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database, read_now
from pushkit.storage.paging import Page
from pushkit.storage.script import Script
from pushkit.subscriptions.store import SubscriptionStore

D = TypeVar("D", Redriven, Retried)

_log = logging.getLogger("pushkit.delivery")

_BATCH = 200
_BREAKER = BreakerPolicy()
# Between two batches: whoever waits for the database goes first.
_PAUSE = timedelta(milliseconds=20)


class OutboxAdmin:
    """The outbox for operators. Everything here is safe beside running workers.

    What is changed is changed in small transactions, one after another: traffic goes on.
    """

    def __init__(
        self,
        database: Database,  # where outbox and subscriptions live, open (see `open_outbox`)
        *,
        # Called when there is work again, for a worker in this process.
        wake: Callable[[], None] = lambda: None,
        vault: Vault | None = None,  # opens bodies that are sealed
        # When a destination gets one delivery at a time: what the workers go by.
        breaker: BreakerPolicy = _BREAKER,
        # Who hears of what is changed: once of each call, however much that was.
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,  # for events
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self.breaker = breaker
        self._database = database
        self._wake = wake
        self._inspection = Inspection(vault)
        self._dead_letters = DeadLetters()
        self._again = Again(database=database, probes_from=breaker.failures)
        self._purge = Purge()
        self._outbox = OutboxStore()
        self._subscriptions = SubscriptionStore()

    # --- looking -------------------------------------------------------------------------------

    async def find(
        self, wanted: DeliveryFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> list[DeliverySummary]:
        """Return a page of deliveries without their bodies, oldest first.

        `after` is the last id of the page before.
        """
        script = self._inspection.find(wanted or DeliveryFilter(), after=after, limit=limit)
        return await self._database.read(script)

    async def browse(
        self, wanted: DeliveryFilter | None = None, *, before: str | None = None, limit: int = 50
    ) -> Page[DeliverySummary]:
        """Return a page of deliveries without their bodies, newest first.

        It takes the same time of any number of deliveries, and may therefore end before it is full
        (`Page.is_cut`). A task without a tenant is one of the tenant without a name. `before` is
        `Page.before` of the page before.
        """
        script = browse_deliveries(wanted or DeliveryFilter(), before=before, limit=limit)
        return await self._database.read(script)

    async def figures(self, *, within: timedelta = timedelta(hours=1)) -> OutboxFigures:
        """Return what says whether deliveries flow, in the same time of any number of them."""
        failures = self.breaker.failures
        look = functools.partial(outbox_figures, within=within, failures=failures)
        return await read_now(self._database, look)

    async def finished(self, *, within: timedelta = timedelta(hours=1)) -> list[Finished]:
        """Return what ended lately, newest first; the newest so many, if it is much."""
        return await read_now(self._database, lambda now: finished_since(now - within))

    async def destinations(
        self, *, after: DestinationKey | None = None, limit: int = 50
    ) -> list[DestinationStanding]:
        """Return a page of destinations that have failed, by tenant, owner and origin."""
        return await self._database.read(browse_destinations(after=after, limit=limit))

    async def attempts_of(self, ids: Sequence[str]) -> dict[str, list[LoggedAttempt]]:
        """Return the attempts of some deliveries, by id."""
        return await self._database.read(AttemptLog().of_deliveries(ids))

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
        """Bring dead letters back, by id or by filter; in a dry run say what that would be.

        Id and `seq` stay, attempts and age begin anew, and they go ahead of what is pending. A
        webhook may get what it had already: an answer may have been lost.
        """
        revive = self._again.would_revive if dry_run else self._again.revive
        return await self._send(
            OutboxChange.REDRIVEN,
            self._chosen(wanted, DeliveryState.DEAD),
            lambda ids: revive(ids, (DeliveryState.DEAD,)),
            Redriven(),
            dry_run=dry_run,
        )

    async def resend(
        self, wanted: Sequence[str] | DeliveryFilter, *, from_seq: int = 1, dry_run: bool = False
    ) -> Redriven:
        """Send what was delivered, or cancelled, again; in a dry run say what that would be.

        A receiver that remembers the ids answers, and does nothing: this is for one that lost them,
        and for what was cancelled by mistake or with a subscription that is enabled again. A filter
        means what was delivered unless its `state` is `CANCELLED`, of each subscription `from_seq`
        on. What a newer status superseded is chosen by id, or by `cancelled_by`, alone.

        Raises:
            ConfigError: A filter for another state.
        """
        states: Sequence[DeliveryState] = (DeliveryState.DELIVERED, DeliveryState.CANCELLED)
        state = DeliveryState.DELIVERED
        if isinstance(wanted, DeliveryFilter):
            state = wanted.state or state
            if state not in states:
                raise ConfigError(f"resend: found state {state}, expected delivered or cancelled")
            states = (state,)
        revive = self._again.would_revive if dry_run else self._again.revive
        return await self._send(
            OutboxChange.RESENT,
            self._chosen(wanted, state, from_seq),
            lambda ids: revive(ids, states),
            Redriven(),
            dry_run=dry_run,
        )

    async def retry_now(
        self, wanted: Sequence[str] | DeliveryFilter, *, dry_run: bool = False
    ) -> Retried:
        """Try what is pending now, whenever its turn would be; in a dry run say what that would be.

        A destination that waits (`Retry-After`, or after failures in a row) gets one delivery; once
        that is answered the others follow. Neither a pause nor the order of a subscription is
        lifted: with a filter the next delivery of each subscription is tried, with ids these, once
        it is their turn.
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
        """Cancel pending deliveries; return those that were pending. One in flight goes on."""
        check_list("ids", ids)
        cancelled: list[str] = []
        with self._telling(OutboxChange.CANCELLED) as tell:
            async for batch in _batches(ids):
                done = await self._database.write(self._cancel_script(batch))
                tell(len(done))
                cancelled += done
        return cancelled

    # --- cleaning up ---------------------------------------------------------------------------

    async def purge(
        self,
        *,
        older_than: timedelta | None = None,
        states: Sequence[DeliveryState] = (DeliveryState.DELIVERED, DeliveryState.CANCELLED),
        per_task: int | None = None,
    ) -> int:
        """Delete finished deliveries with their attempts; return how many.

        Args:
            older_than: Those that finished longer ago than this, of these states.
            states: Delivered, cancelled, dead.
            per_task: Of every task, all finished ones but the newest so many.

        Raises:
            ConfigError: Neither an age nor a number is given, or one is out of range.
        """
        if older_than is None and per_task is None:
            raise ConfigError("purge: expected older_than or per_task, found neither")
        check_age("purge: older_than", older_than)
        check_number("purge: per_task", per_task)
        purged = 0
        with self._telling(OutboxChange.PURGED) as tell:
            if older_than is not None and states:
                now = await self._database.read(self._database.now())
                purged += await self._delete_all(
                    lambda: self._purge.finished_before(states, now - older_than, limit=_BATCH),
                    tell,
                )
            if per_task is not None:
                purged += await self._thin_out(per_task, tell)
        return purged

    async def retain(self, retention: Retention) -> int:
        """Delete what a retention does not keep; return how many deliveries that was.

        Subscriptions that were withdrawn at their task's end go with their last delivery.
        """
        purged = 0
        if retention.delivered is not None or retention.per_task is not None:
            purged += await self.purge(older_than=retention.delivered, per_task=retention.per_task)
        if retention.dead is not None:
            purged += await self.purge(older_than=retention.dead, states=(DeliveryState.DEAD,))
        while ids := await self._database.read(self._subscriptions.forgettable(limit=_BATCH)):
            await self._database.write(self._subscriptions.forget(ids))
            await asyncio.sleep(_PAUSE.total_seconds())
        return purged

    async def erase(self, task_id: str, *, tenant: str = "") -> int:
        """Erase everything of one task; return how many deliveries that was.

        Its subscriptions go at once, and with them whatever was to be sent; deliveries and attempts
        follow. An attempt that is under way ends, and leaves nothing behind.
        """
        await self._database.write(self._withdraw_script(tenant, task_id))
        with self._telling(OutboxChange.ERASED) as tell:
            return await self._delete_all(
                lambda: self._purge.finished_of_task(tenant, task_id, keep=0, limit=_BATCH), tell
            )

    # --- in batches ----------------------------------------------------------------------------

    async def _chosen(
        self, wanted: Sequence[str] | DeliveryFilter, state: DeliveryState, from_seq: int = 1
    ) -> AsyncIterator[list[str]]:
        if not isinstance(wanted, DeliveryFilter):
            check_list("wanted", wanted)
            async for batch in _batches(list(dict.fromkeys(wanted))):
                yield batch
            return
        chosen = replace(wanted, state=state)
        after: str | None = None
        while page := await self.find(chosen, after=after, limit=_BATCH):
            yield [found.id for found in page if found.seq >= from_seq and _is_meant(found, chosen)]
            after = page[-1].id

    @contextlib.contextmanager
    def _telling(self, change: OutboxChange) -> Iterator[Callable[[int], None]]:
        """Count what is done within, and tell of it in the end, also where that is an error."""
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count

        try:
            yield add
        finally:
            if done and self._events.wants(OutboxChanged.usual_level):
                self._events.emit(OutboxChanged(at=self._clock(), change=change, count=done))

    async def _send(
        self,
        change: OutboxChange,
        pages: AsyncIterator[list[str]],
        script: Callable[[list[str]], Script[D]],
        came_to: D,
        *,
        dry_run: bool,
    ) -> D:
        """Send page by page, or only read what would be sent."""
        with self._telling(change) as tell:
            async for page in pages:
                if dry_run:
                    came_to += await self._database.read(script(page))
                    continue
                done = await self._database.write(script(page))
                tell(len(done.ids))
                came_to += done
                self._wake()
                advance(len(page))
                await asyncio.sleep(_PAUSE.total_seconds())
        return came_to

    async def _thin_out(self, per_task: int, tell: Callable[[int], None]) -> int:
        purged, last = 0, ("", "")
        while crowded := await self._database.read(
            self._purge.crowded_tasks(per_task, after=last, limit=_BATCH)
        ):
            for tenant, task_id, excess in crowded:
                find = functools.partial(
                    self._purge.finished_of_task, tenant, task_id, keep=per_task, limit=_BATCH
                )
                # What finishes meanwhile is left to the next time: traffic must not keep this up.
                purged += await self._delete_all(find, tell, enough=excess)
                last = tenant, task_id
        return purged

    async def _delete_all(
        self,
        find: Callable[[], Script[list[str]]],
        tell: Callable[[int], None],
        enough: float = math.inf,
    ) -> int:
        deleted = 0
        while deleted < enough and (ids := await self._database.read(find())):
            found = await self._database.write(self._purge.delete(ids))
            tell(found)
            deleted += found
            advance(len(ids))
            await asyncio.sleep(_PAUSE.total_seconds())
        return deleted

    # --- scripts -------------------------------------------------------------------------------

    def _cancel_script(self, ids: Sequence[str]) -> Script[list[str]]:
        by_subscription = yield from self._dead_letters.subscriptions_of(ids)
        cancelled: list[str] = []
        for subscription_id, found in by_subscription.items():
            subscription = yield from self._subscriptions.lock(subscription_id)
            now = yield from self._database.now()
            cancelled += yield from self._dead_letters.cancel(subscription_id, found, now)
            unfinished = yield from self._outbox.has_unfinished(subscription_id)
            if subscription is not None and subscription.ended and not unfinished:
                yield from self._subscriptions.withdraw([subscription_id], now)
        yield from self._database.wake()
        return cancelled

    def _withdraw_script(self, tenant: str, task_id: str) -> Script[None]:
        now = yield from self._database.now()
        ids = yield from self._subscriptions.erase_task(tenant=tenant, task_id=task_id)
        for subscription_id in ids:
            yield from self._outbox.cancel_subscription(subscription_id, now, CancelledBy.REMOVED)


async def _batches(ids: Sequence[str]) -> AsyncIterator[list[str]]:
    for start in range(0, len(ids), _BATCH):
        yield list(ids[start : start + _BATCH])


def _is_meant(found: DeliverySummary, wanted: DeliveryFilter) -> bool:
    """Say whether a filter means it: not what was superseded, unless it says so."""
    by_name = wanted.cancelled_by is CancelledBy.SUPERSEDED
    # Earlier versions noted no more than the error.
    return by_name or (
        found.cancelled_by is not CancelledBy.SUPERSEDED
        and found.last_error != CancelledBy.SUPERSEDED
    )
