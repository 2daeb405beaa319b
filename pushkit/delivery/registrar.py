"""Registering a subscription, as a script: a transaction with its deliveries."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pushkit.a2a import PushConfig, WireVersion
from pushkit.delivery.limits import Quota
from pushkit.errors import TooManyConfigsError, TooManySubscriptionsError
from pushkit.outbox.store import OutboxStore
from pushkit.record import field, record
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Filter, Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.store import SubscriptionStore


@record(frozen=True, slots=True, kw_only=True)
class Registrar:
    """Registers subscriptions, and changes them."""

    database: Database  # whose clock counts
    # The most configs of one owner for one task. Callers that register at the same moment may go
    # over it by as many as they are.
    max_configs_per_task: int
    vault: Vault  # seals tokens and credentials
    quota: Quota[str]  # how many more subscriptions an owner may have
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)
    outbox: OutboxStore = field(default_factory=OutboxStore)

    def put(
        self,
        key: SubscriptionKey,
        config: PushConfig,
        *,
        version: WireVersion,
        origin: str,
        profile: Profile,
        wanted: Filter,
    ) -> Script[tuple[Subscription, Subscription | None]]:
        """Register a subscription or change it; what is unfinished moves to its destination.

        Returns:
            The subscription, and what it was before, if it was there.

        Raises:
            TooManyConfigsError: The owner has no room for another one for this task.
            TooManySubscriptionsError: The owner has no room for another one at all.
        """
        now = yield from self.database.now()
        before = yield from self._find_or_check_room(key, now)
        # Receivers know notifications by task and config: lower numbers would be late to them.
        last_seq = 0 if before else (yield from self.subscriptions.last_seq(key))
        subscription = yield from self.subscriptions.put(
            key,
            config,
            version=version,
            origin=origin,
            profile=profile,
            vault=self.vault,
            wanted=wanted,
            now=now,
            last_seq=last_seq,
        )
        yield from self.outbox.move(subscription.id, origin)
        return replace(subscription, replaced=before is not None), before

    def _find_or_check_room(
        self, key: SubscriptionKey, now: datetime
    ) -> Script[Subscription | None]:
        """Return the subscription of a key, or hold that there is room for a new one."""
        found = yield from self.subscriptions.of_owner(
            tenant=key.tenant, task_id=key.task_id, owner=key.owner
        )
        for each in found:
            if each.key == key:
                return each
        if len(found) >= self.max_configs_per_task:
            raise TooManyConfigsError(
                f"task {key.task_id!r} has {len(found)} push configs of this owner already,"
                f" expected at most {self.max_configs_per_task}: delete one first"
            )
        if (yield from self.quota.left(key.owner, now)) <= 0:
            raise TooManySubscriptionsError(
                f"owner {key.owner!r} has {self.quota.limit} subscriptions, which is the most"
                " (max_subscriptions_per_owner): remove some first"
            )
        self.quota.add(key.owner, 1)
        return None
