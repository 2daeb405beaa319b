"""Subscriptions and what hangs on them, as scripts: each a transaction with its deliveries."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime

from pushkit.a2a import (
    Message,
    MessageUpdate,
    PushConfig,
    Role,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    WireVersion,
    push_body,
)
from pushkit.delivery.enqueue import Enqueuer
from pushkit.delivery.limits import Room
from pushkit.errors import TooManyConfigsError, TooManySubscriptionsError
from pushkit.outbox import OutboxStore, hold_back, mark_oldest
from pushkit.storage import Database, Script
from pushkit.subscriptions import (
    Filter,
    Owner,
    Profile,
    Subscription,
    SubscriptionKey,
    SubscriptionStore,
    Vault,
)

__all__ = ["Choice", "Registrar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An owner's subscriptions to a task, or the one of a config id."""

    tenant: str
    task_id: str
    owner: str
    config_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrar:
    """Registers, pauses, tests and removes.

    Attributes:
        database: Whose clock counts, and whose workers are woken.
        enqueuer: Turns a test notification into deliveries.
        max_configs_per_task: The most configs of one owner for one task. Callers that register at
            the same moment may go over it by as many as they are.
        vault: Seals tokens and credentials.
        room: How many more subscriptions an owner may have.
    """

    database: Database
    enqueuer: Enqueuer
    max_configs_per_task: int
    vault: Vault
    room: Room[Owner]
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
    ) -> Script[Subscription]:
        """Register a subscription or change it; what is unfinished moves to its destination.

        Raises:
            TooManyConfigsError: The owner has no room for another one for this task.
            TooManySubscriptionsError: The owner has no room for another one at all.
        """
        now = yield from self.database.now()
        owner = Owner(tenant=key.tenant, name=key.owner)
        yield from self._check_room(key, owner, now)
        subscription = yield from self.subscriptions.put(
            key,
            config,
            version=version,
            origin=origin,
            profile=profile,
            vault=self.vault,
            wanted=wanted,
            now=now,
        )
        yield from self.outbox.move(subscription.id, origin)
        return subscription

    def _check_room(self, key: SubscriptionKey, owner: Owner, now: datetime) -> Script[None]:
        found = yield from self.subscriptions.of_owner(
            tenant=key.tenant, task_id=key.task_id, owner=key.owner
        )
        known = {each.key.config_id for each in found}
        if key.config_id in known:
            return
        if len(known) >= self.max_configs_per_task:
            raise TooManyConfigsError(
                f"task {key.task_id!r} has {len(known)} push configs of this owner already,"
                f" expected at most {self.max_configs_per_task}: delete one first"
            )
        if (yield from self.room.of(owner, now)) <= 0:
            raise TooManySubscriptionsError(
                f"owner {key.owner!r} has {self.room.limit} subscriptions, which is the most"
                " (max_subscriptions_per_owner): remove some first"
            )
        self.room.added(owner, 1)

    def pause(self, choice: Choice) -> Script[int]:
        """Offer no more of the chosen subscriptions; return how many they are."""
        chosen = yield from self._hold(choice)
        now = yield from self.database.now()
        for subscription in chosen:
            yield from self.subscriptions.set_paused(subscription.key, now, paused=True)
            yield from hold_back(subscription.id)
        return len(chosen)

    def resume(self, choice: Choice) -> Script[int]:
        """Offer the chosen subscriptions again, each from its oldest; return how many they are."""
        chosen = yield from self._hold(choice)
        now = yield from self.database.now()
        for subscription in chosen:
            yield from self.subscriptions.set_paused(subscription.key, now, paused=False)
            yield from mark_oldest(subscription.id)
        yield from self.database.wake()
        return len(chosen)

    def test(self, choice: Choice, snapshot: Task | None) -> Script[list[str]]:
        """Enqueue a test notification for the chosen subscriptions; return the delivery ids."""
        chosen = yield from self._hold(choice)
        now = yield from self.database.now()
        ids = []
        for subscription in chosen:
            if subscription.active:
                update = _test_update(choice.task_id, subscription.version, snapshot)
                body = push_body(update, subscription.version, now=now)
                ids.append((yield from self.enqueuer.enqueue_one(subscription, body, now)))
        yield from self.database.wake()
        return ids

    def remove(self, choice: Choice) -> Script[int]:
        """Remove the chosen subscriptions and cancel what is unfinished (A2A 1.0 §3.1.10)."""
        chosen = yield from self._hold(choice)
        now = yield from self.database.now()
        for subscription in chosen:
            yield from self.subscriptions.remove(subscription.key)
            yield from self.outbox.cancel_subscription(subscription.id, now)
        return len(chosen)

    def _hold(self, choice: Choice) -> Script[list[Subscription]]:
        """Return the chosen subscriptions, their rows held in id order."""
        found = yield from self.subscriptions.of_owner(
            tenant=choice.tenant, task_id=choice.task_id, owner=choice.owner
        )
        held = []
        for subscription_id in sorted(each.id for each in found):
            subscription = yield from self.subscriptions.lock(subscription_id)
            if subscription and choice.config_id in {None, subscription.key.config_id}:
                held.append(subscription)
        return held


def _test_update(task_id: str, version: WireVersion, snapshot: Task | None) -> TaskUpdate:
    """Return what a test notification says: a message, or a task where a version has none."""
    if version in (WireVersion.V0_1, WireVersion.V0_3):
        unknown = TaskStatus(state=TaskState.UNKNOWN)
        return TaskSnapshot(task=snapshot or Task(id=task_id, context_id=task_id, status=unknown))
    message = Message(
        message_id=f"test_{secrets.token_hex(8)}",
        role=Role.AGENT,
        parts=(TextPart(text="This is a test notification."),),
        task_id=task_id,
    )
    return MessageUpdate(message=message)
