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
from pushkit.delivery.registered import Found, Registered
from pushkit.delivery.reporting import report_changed
from pushkit.errors import SealedSecretError
from pushkit.events.listeners import Listeners
from pushkit.events.sender import SubscriptionChange
from pushkit.outbox.inspection import Inspection
from pushkit.outbox.states import DeliveryState
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.paging import Page
from pushkit.storage.script import Script
from pushkit.subscriptions.inspection import SubscriptionFilter, SubscriptionInspection
from pushkit.subscriptions.model import Subscription
from pushkit.subscriptions.secrets import open_subscription
from pushkit.subscriptions.store import SubscriptionStore

Wanted: TypeAlias = Sequence[str] | SubscriptionFilter

_log = logging.getLogger("pushkit.delivery")

# Few: with each of them a whole backlog may be cancelled, or come back.
_BATCH = 10
# Between two batches: whoever waits for the database goes first.
_PAUSE = timedelta(milliseconds=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionReport:
    """One subscription, and how many of its newest 4,000 deliveries are in which state."""

    subscription: Subscription
    deliveries: dict[DeliveryState, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What became of a wish to change subscriptions."""

    ids: tuple[str, ...]  # those that were changed
    unchanged: tuple[str, ...] = ()  # those that were that way already
    missing: tuple[str, ...] = ()  # ids that there are none of
    deliveries: tuple[str, ...] = ()  # the deliveries that it made, or that are pending again

    def __add__(self, other: Changed) -> Changed:
        return Changed(
            ids=self.ids + other.ids,
            unchanged=self.unchanged + other.unchanged,
            missing=self.missing + other.missing,
            deliveries=self.deliveries + other.deliveries,
        )


class SubscriptionAdmin:
    """All subscriptions, whoever owns them. Everything here is safe beside running workers.

    What is changed is chosen by id or by filter, and changed in small transactions.
    """

    def __init__(
        self,
        database: Database,  # where outbox and subscriptions live, open (see `open_outbox`)
        *,
        # Called when there is work again, for a worker in this process.
        wake: Callable[[], None] = lambda: None,
        # Seals test notifications, where bodies are sealed, and opens secrets to hide them.
        vault: Vault | None = None,
        events: Listeners | None = None,  # who hears of each subscription that is changed
        clock: Callable[[], datetime] = utc_now,  # for events
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self._database = database
        self._wake = wake
        self._inspection = SubscriptionInspection()
        self._deliveries = Inspection()
        self._vault = vault or Vault()
        self._registered = Registered(database=database, vault=self._vault)

    async def find(
        self,
        wanted: SubscriptionFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Subscription]:
        """Return a page of subscriptions without tokens and credentials, oldest first.

        All but withdrawn ones, unless asked for. `after` is the last id of the page before.
        """
        script = self._inspection.find(wanted or SubscriptionFilter(), after=after, limit=limit)
        return await self._database.read(script)

    async def browse(
        self,
        wanted: SubscriptionFilter | None = None,
        *,
        before: str | None = None,
        limit: int = 50,
    ) -> Page[Subscription]:
        """Return a page of subscriptions, newest first, in the same time of any number of them.

        All but withdrawn ones, unless asked for. A task without a tenant is one of the tenant
        without a name. `before` is `Page.before` of the page before.
        """
        script = self._inspection.browse(wanted or SubscriptionFilter(), before=before, limit=limit)
        return await self._database.read(script)

    async def without_secrets(self, subscription_id: str, text: bytes) -> bytes | None:
        """Return a text without the token and the credentials of a subscription.

        None where they cannot be opened here, or the subscription is gone: who knows what is in it?
        """
        found = await self._database.read(SubscriptionStore().by_ids([subscription_id]))
        if subscription_id not in found:
            return None
        try:
            config = open_subscription(self._vault, found[subscription_id]).config
        except SealedSecretError:
            return None
        credentials = config.authentication.credentials if config.authentication else None
        for secret in (config.token, credentials):
            if secret:
                text = text.replace(secret.encode(), b"***")
        return text

    async def show(self, subscription_id: str) -> SubscriptionReport | None:
        """Return one subscription and what its deliveries came to; None if there is none."""
        return await self._database.read(self._show(subscription_id))

    def _show(self, subscription_id: str) -> Script[SubscriptionReport | None]:
        subscription = yield from self._inspection.show(subscription_id)
        if subscription is None:
            return None
        deliveries = yield from self._deliveries.states_of(subscription_id)
        return SubscriptionReport(subscription=subscription, deliveries=deliveries)

    async def pause(self, wanted: Wanted) -> Changed:
        """Keep deliveries back until `resume`; updates are stored meanwhile."""
        return await self._change(
            SubscriptionChange.PAUSED, wanted, self._registered.pause, lambda each: not each.paused
        )

    async def resume(self, wanted: Wanted) -> Changed:
        """Deliver what was kept back, in order, and what comes."""
        return await self._change(
            SubscriptionChange.RESUMED, wanted, self._registered.resume, lambda each: each.paused
        )

    async def disable(self, wanted: Wanted) -> Changed:
        """Send nothing any more, and cancel what is unfinished."""
        return await self._change(
            SubscriptionChange.DISABLED, wanted, self._registered.disable, lambda each: each.active
        )

    async def enable(self, wanted: Wanted, *, resend: bool = False) -> Changed:
        """Revive what was disabled, by 410, by failures or by somebody.

        With `resend`, what was cancelled with it comes back: ids and `seq` kept, ahead of what is
        pending.
        """
        enable = functools.partial(self._registered.enable, resend=resend)
        return await self._change(
            SubscriptionChange.ENABLED, wanted, enable, lambda each: not each.active
        )

    async def test(self, wanted: Wanted) -> Changed:
        """Send a test notification; one that is disabled or withdrawn gets none."""
        return await self._change(
            None, wanted, self._registered.test, lambda each: each.active and not each.withdrawn
        )

    async def remove(self, wanted: Wanted) -> Changed:
        """Remove subscriptions, and cancel what is unfinished of them for good."""
        remove = self._registered.remove
        return await self._change(SubscriptionChange.REMOVED, wanted, remove, lambda _: True)

    async def _change(
        self,
        change: SubscriptionChange | None,  # None: it changes nothing of the subscription itself
        wanted: Wanted,
        script: Callable[[Sequence[str]], Script[Found]],
        changes: Callable[[Subscription], bool],  # whether it does, as the subscription was before
    ) -> Changed:
        """Do it in small transactions, and tell of those that were changed."""
        came_to = Changed(ids=())
        async for ids in self._pages(wanted):
            found, deliveries = await self._database.write(script(ids))
            self._wake()
            changed = [each for each in found if changes(each)]
            if change is not None:
                report_changed(self._events, change, changed, self._clock())
            there = {each.id for each in found}
            came_to += Changed(
                ids=tuple(each.id for each in changed),
                unchanged=tuple(each.id for each in found if not changes(each)),
                missing=tuple(each for each in ids if each not in there),
                deliveries=tuple(deliveries),
            )
        return came_to

    async def _pages(self, wanted: Wanted) -> AsyncIterator[list[str]]:
        if isinstance(wanted, SubscriptionFilter):
            after: str | None = None
            while page := await self.find(wanted, after=after, limit=_BATCH):
                yield [found.id for found in page]
                after = page[-1].id
                await asyncio.sleep(_PAUSE.total_seconds())
            return
        check_list("wanted", wanted)
        ids = list(dict.fromkeys(wanted))
        for start in range(0, len(ids), _BATCH):
            yield ids[start : start + _BATCH]
            await asyncio.sleep(_PAUSE.total_seconds())
