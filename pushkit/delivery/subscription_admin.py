"""`SubscriptionAdmin`: the subscriptions of all owners, for operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from pushkit.delivery.admin import Admin
from pushkit.delivery.registrar import Found, change_subscriptions, send_tests
from pushkit.delivery.reporting import report_changed
from pushkit.events import SubscriptionChange
from pushkit.outbox.inspection import (
    SUBSCRIPTIONS,
    SubscriptionFilter,
    of_unnamed_tenant,
    states_of,
)
from pushkit.outbox.states import DeliveryState
from pushkit.storage.paging import Page, added, chosen_ids, in_batches
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Subscription
from pushkit.subscriptions.store import by_ids

Wanted: TypeAlias = Sequence[str] | SubscriptionFilter

# Few, because each of them may cancel or bring back a whole backlog.
_BATCH = 10


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


class SubscriptionAdmin(Admin):
    """The subscriptions of all owners, for operators, selected by id or by filter."""

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
        script = SUBSCRIPTIONS.find(wanted or SubscriptionFilter(), after=after, limit=limit)
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
        wanted = of_unnamed_tenant(wanted or SubscriptionFilter())
        return await self._database.read(SUBSCRIPTIONS.browse(wanted, before=before, limit=limit))

    async def show(self, subscription_id: str) -> SubscriptionReport | None:
        """Return one subscription and the states of its deliveries; None if there is none."""
        return await self._database.read(self._show(subscription_id))

    def _show(self, subscription_id: str) -> Script[SubscriptionReport | None]:
        found = yield from by_ids([subscription_id])
        if not found:
            return None
        deliveries = yield from states_of(subscription_id)
        subscription = found[subscription_id].subscription
        return SubscriptionReport(subscription=subscription, deliveries=deliveries)

    async def pause(self, wanted: Wanted) -> Changed:
        """Stop attempting deliveries until `resume`; updates are still stored."""
        return await self._change(SubscriptionChange.PAUSED, wanted)

    async def resume(self, wanted: Wanted) -> Changed:
        """Attempt deliveries again, in order."""
        return await self._change(SubscriptionChange.RESUMED, wanted)

    async def disable(self, wanted: Wanted) -> Changed:
        """Stop notifying the webhooks, and cancel unfinished deliveries."""
        return await self._change(SubscriptionChange.DISABLED, wanted)

    async def enable(self, wanted: Wanted, *, resend: bool = False) -> Changed:
        """Enable subscriptions that a 410, failures, an operator or a client disabled.

        With `resend`, the deliveries that were cancelled with them come back, with their ids and
        `seq`, ahead of pending ones.
        """
        return await self._change(SubscriptionChange.ENABLED, wanted, resend=resend)

    async def remove(self, wanted: Wanted) -> Changed:
        """Remove subscriptions for good, and cancel their unfinished deliveries."""
        return await self._change(SubscriptionChange.REMOVED, wanted)

    async def test(self, wanted: Wanted) -> Changed:
        """Send a test notification to each that is neither disabled nor withdrawn."""
        test = functools.partial(send_tests, self._database, self._vault)
        return await self._apply(test, wanted, lambda each: each.active and not each.withdrawn)

    async def _change(
        self, change: SubscriptionChange, wanted: Wanted, *, resend: bool = False
    ) -> Changed:
        apply = functools.partial(change_subscriptions, self._database, change, resend=resend)
        # To bring back a backlog takes several times as long as to cancel it.
        size = 1 if resend else _BATCH
        return await self._apply(apply, wanted, _CHANGES[change], change, size)

    async def _apply(
        self,
        script: Callable[[Sequence[str]], Script[Found]],
        wanted: Wanted,
        is_changed: Callable[[Subscription], bool],
        change: SubscriptionChange | None = None,  # what is reported
        size: int = _BATCH,
    ) -> Changed:
        result = Changed(ids=())
        chosen = chosen_ids(self._database, SUBSCRIPTIONS, wanted, size=size)
        async with aclosing(in_batches(self._database, chosen, script)) as batches:
            async for ids, found in batches:
                self._wake(ids)
                changed = [each for each in found.subscriptions if is_changed(each)]
                if change is not None:
                    report_changed(self._events, change, changed, self._clock())
                there = [each.id for each in found.subscriptions]
                done = tuple(each.id for each in changed)
                this = Changed(
                    ids=done,
                    unchanged=tuple(each for each in there if each not in done),
                    missing=tuple(each for each in ids if each not in there),
                    deliveries=tuple(found.deliveries),
                )
                result = added(result, this)
        return result


# Whether each change changes a subscription.
_CHANGES: Mapping[SubscriptionChange, Callable[[Subscription], bool]] = {
    SubscriptionChange.PAUSED: lambda each: not each.paused,
    SubscriptionChange.RESUMED: lambda each: each.paused,
    SubscriptionChange.DISABLED: lambda each: each.active,
    SubscriptionChange.ENABLED: lambda each: not each.active,
    SubscriptionChange.REMOVED: lambda _: True,
}
