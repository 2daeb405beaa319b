"""`SubscriptionAdmin`: the subscriptions of all owners, for operators."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from pushkit.arguments import check_list
from pushkit.clock import utc_now
from pushkit.delivery.registrar import Found, SubscriptionChanges
from pushkit.delivery.reporting import report_changed
from pushkit.events.listeners import Listeners
from pushkit.events.sender import SubscriptionChange
from pushkit.outbox.inspection import states_of
from pushkit.outbox.states import DeliveryState
from pushkit.progress import advance
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.paging import Page
from pushkit.storage.script import Script
from pushkit.subscriptions import inspection
from pushkit.subscriptions.inspection import SubscriptionFilter
from pushkit.subscriptions.model import Subscription

Wanted: TypeAlias = Sequence[str] | SubscriptionFilter

_log = logging.getLogger("pushkit.delivery")

# Few, because each of them may cancel or bring back a whole backlog.
_BATCH = 10
# Between two batches, so that other transactions get their turn.
_PAUSE = timedelta(milliseconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionReport:
    """One subscription, and the numbers of its newest 4,000 deliveries by state."""

    subscription: Subscription
    deliveries: dict[DeliveryState, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The result of changing subscriptions."""

    ids: tuple[str, ...]  # those that were changed
    unchanged: tuple[str, ...] = ()  # those that were in the wanted state already
    missing: tuple[str, ...] = ()  # ids without a subscription
    deliveries: tuple[str, ...] = ()  # the deliveries that were added, or brought back

    def __add__(self, other: Changed) -> Changed:
        return Changed(
            ids=self.ids + other.ids,
            unchanged=self.unchanged + other.unchanged,
            missing=self.missing + other.missing,
            deliveries=self.deliveries + other.deliveries,
        )


class SubscriptionAdmin:
    """The subscriptions of all owners, for operators. All methods are safe while workers run.

    Subscriptions are selected by id or by filter, and changed in small transactions.

    Args:
        database: The outbox, open (see `open_outbox`).
        wake: Called when deliveries become due, to wake a worker in this process.
        vault: Seals test notifications, if bodies are sealed, and opens secrets to mask them.
        events: Where each changed subscription is emitted.
        clock: The time of those events.
    """

    def __init__(
        self,
        database: Database,
        *,
        wake: Callable[[], None] = lambda: None,
        vault: Vault | None = None,
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self._database = database
        self._wake = wake
        self._vault = vault or Vault()
        self._changes = SubscriptionChanges(database=database, vault=self._vault)

    async def find(
        self,
        wanted: SubscriptionFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Subscription]:
        """Return a page of subscriptions without tokens and credentials, oldest first.

        Withdrawn ones only if the filter names them. `after` is the last id of the previous page.
        """
        script = inspection.find(wanted or SubscriptionFilter(), after=after, limit=limit)
        return await self._database.read(script)

    async def browse(
        self,
        wanted: SubscriptionFilter | None = None,
        *,
        before: str | None = None,
        limit: int = 50,
    ) -> Page[Subscription]:
        """Return a page of subscriptions, newest first, in the same time for any number of them.

        Withdrawn ones only if the filter names them. A filter with a task and no tenant means the
        tenant without a name. `before` is `Page.before` of the previous page.
        """
        script = inspection.browse(wanted or SubscriptionFilter(), before=before, limit=limit)
        return await self._database.read(script)

    async def show(self, subscription_id: str) -> SubscriptionReport | None:
        """Return one subscription and the states of its deliveries; None if there is none."""
        return await self._database.read(self._show(subscription_id))

    def _show(self, subscription_id: str) -> Script[SubscriptionReport | None]:
        subscription = yield from inspection.show(subscription_id)
        if subscription is None:
            return None
        deliveries = yield from states_of(subscription_id)
        return SubscriptionReport(subscription=subscription, deliveries=deliveries)

    async def pause(self, wanted: Wanted) -> Changed:
        """Stop attempting deliveries until `resume`; updates are still stored."""
        return await self._change(
            SubscriptionChange.PAUSED, wanted, self._changes.pause, lambda each: not each.paused
        )

    async def resume(self, wanted: Wanted) -> Changed:
        """Attempt deliveries again, in order."""
        return await self._change(
            SubscriptionChange.RESUMED, wanted, self._changes.resume, lambda each: each.paused
        )

    async def disable(self, wanted: Wanted) -> Changed:
        """Stop notifying the webhooks, and cancel unfinished deliveries."""
        return await self._change(
            SubscriptionChange.DISABLED, wanted, self._changes.disable, lambda each: each.active
        )

    async def enable(self, wanted: Wanted, *, resend: bool = False) -> Changed:
        """Enable subscriptions that a 410, failures, an operator or a client disabled.

        With `resend`, the deliveries that were cancelled with them come back, with their ids and
        `seq`, ahead of pending ones.
        """
        enable = functools.partial(self._changes.enable, resend=resend)
        return await self._change(
            SubscriptionChange.ENABLED,
            wanted,
            enable,
            lambda each: not each.active,
            # To bring back a backlog takes several times as long as to cancel it.
            most=1 if resend else _BATCH,
        )

    async def test(self, wanted: Wanted) -> Changed:
        """Send a test notification to each that is neither disabled nor withdrawn."""
        return await self._change(
            None, wanted, self._changes.test, lambda each: each.active and not each.withdrawn
        )

    async def remove(self, wanted: Wanted) -> Changed:
        """Remove subscriptions for good, and cancel their unfinished deliveries."""
        remove = self._changes.remove
        return await self._change(SubscriptionChange.REMOVED, wanted, remove, lambda _: True)

    async def _change(
        self,
        change: SubscriptionChange | None,  # None if the subscription itself is not changed
        wanted: Wanted,
        script: Callable[[Sequence[str]], Script[Found]],
        changes: Callable[[Subscription], bool],  # whether the script changes this subscription
        *,
        most: int = _BATCH,
    ) -> Changed:
        """Run a script in small transactions, and emit the changes."""
        result = Changed(ids=())
        async for ids in self._pages(wanted, most):
            found, deliveries = await self._database.write(script(ids))
            self._wake()
            advance(len(ids))
            changed = [each for each in found if changes(each)]
            if change is not None:
                report_changed(self._events, change, changed, self._clock())
            there = {each.id for each in found}
            result += Changed(
                ids=tuple(each.id for each in changed),
                unchanged=tuple(each.id for each in found if not changes(each)),
                missing=tuple(each for each in ids if each not in there),
                deliveries=tuple(deliveries),
            )
        return result

    async def _pages(self, wanted: Wanted, most: int) -> AsyncIterator[Sequence[str]]:
        if isinstance(wanted, SubscriptionFilter):
            after: str | None = None
            while page := await self.find(wanted, after=after, limit=most):
                yield [found.id for found in page]
                after = page[-1].id
                await asyncio.sleep(_PAUSE.total_seconds())
            return
        check_list("wanted", wanted)
        ids = list(dict.fromkeys(wanted))
        for start in range(0, len(ids), most):
            yield ids[start : start + most]
            await asyncio.sleep(_PAUSE.total_seconds())
