"""What is done with subscriptions that are there, as scripts: each with its deliveries."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pushkit.a2a import (
    Message,
    MessageUpdate,
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
from pushkit.delivery.queues import Queues
from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.heads import hold_back, mark_oldest
from pushkit.outbox.model import new_delivery_id
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.record import field, record
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.subscriptions.model import DisabledBy, Recipient, Subscription, SubscriptionState
from pushkit.subscriptions.store import SubscriptionStore


class Choice(NamedTuple):
    """An owner's subscriptions to a task, or the one of a config id."""

    tenant: str
    task_id: str
    owner: str
    config_id: str | None


Chosen: TypeAlias = Choice | Sequence[str]  # or their own ids


_GETS_NOTHING = {SubscriptionState.DISABLED, SubscriptionState.WITHDRAWN}


class Found(NamedTuple):
    """Subscriptions as they were, and the deliveries that were made or are pending again."""

    subscriptions: list[Subscription]
    deliveries: Sequence[str] = ()


@record(frozen=True, slots=True, kw_only=True)
class Registered:
    """Pauses, disables, tests and removes; returns subscriptions as they were before."""

    database: Database  # whose clock counts, and whose workers are woken
    vault: Vault = field(default_factory=Vault)  # seals bodies, where that is asked for
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)
    outbox: OutboxStore = field(default_factory=OutboxStore)
    dead_letters: DeadLetters = field(default_factory=DeadLetters)

    def pause(self, chosen: Chosen) -> Script[Found]:
        """Offer no more of the chosen subscriptions."""
        found = yield from self._hold(chosen)
        now = yield from self.database.now()
        for subscription in found:
            yield from self.subscriptions.set_paused(subscription.id, now, paused=True)
            yield from hold_back(subscription.id)
        return Found(found)

    def resume(self, chosen: Chosen) -> Script[Found]:
        """Offer the chosen subscriptions again, each from its oldest."""
        found = yield from self._hold(chosen)
        now = yield from self.database.now()
        for subscription in found:
            yield from self.subscriptions.set_paused(subscription.id, now, paused=False)
            yield from mark_oldest(subscription.id)
        yield from self.database.wake()
        return Found(found)

    def disable(self, chosen: Chosen) -> Script[Found]:
        """Stop the chosen subscriptions, and cancel what is unfinished."""
        found = yield from self._hold(chosen)
        now = yield from self.database.now()
        for subscription in found:
            if subscription.active:
                yield from self.subscriptions.disable(subscription.id, now, DisabledBy.OPERATOR)
                yield from self.outbox.cancel_subscription(
                    subscription.id, now, CancelledBy.DISABLED
                )
            if subscription.ended:
                yield from self.subscriptions.withdraw([subscription.id], now)
        return Found(found)

    def enable(self, chosen: Chosen, *, resend: bool) -> Script[Found]:
        """Revive the chosen subscriptions that are disabled.

        Args:
            resend: Bring back what was cancelled when they were disabled.
        """
        found = yield from self._hold(chosen)
        now = yield from self.database.now()
        again: list[str] = []
        for subscription in found:
            if subscription.active:
                continue
            yield from self.subscriptions.enable(subscription.id, now)
            if resend and subscription.disabled_at is not None:
                cancelled = yield from self.dead_letters.cancelled_with(
                    subscription.id, subscription.disabled_at
                )
                again += yield from self.dead_letters.revive(
                    subscription.id,
                    cancelled,
                    states=(DeliveryState.CANCELLED,),
                    origin=subscription.origin,
                    now=now,
                )
        yield from self.database.wake()
        return Found(found, again)

    def test(self, chosen: Chosen, snapshot: Task | None = None) -> Script[Found]:
        """Enqueue a test notification for those that are neither disabled nor withdrawn."""
        found = yield from self._hold(chosen)
        now = yield from self.database.now()
        ids = []
        for subscription in found:
            if subscription.state in _GETS_NOTHING:
                continue
            recipient = Recipient.of(subscription)
            update = _test_update(recipient.task_id, recipient.version, snapshot)
            body = push_body(update, recipient.version, now=now)
            queues = Queues(self.outbox, self.subscriptions)
            yield from queues.open([recipient])
            [queue] = queues.of_task(recipient.tenant, recipient.task_id)
            ids.append(new_delivery_id(now))
            queues.add(queue, ids[-1], self.vault.seal_body(ids[-1], body), now=now)
            yield from queues.write(now)
        yield from self.database.wake()
        return Found(found, ids)

    def remove(self, chosen: Chosen) -> Script[Found]:
        """Remove the chosen subscriptions and cancel what is unfinished (A2A 1.0 §3.1.10)."""
        found = yield from self._hold(chosen)
        now = yield from self.database.now()
        for subscription in found:
            if subscription.withdrawn:
                yield from self.subscriptions.forget([subscription.id])
            else:
                yield from self.subscriptions.remove(subscription.key)
            yield from self.outbox.cancel_subscription(subscription.id, now, CancelledBy.REMOVED)
        return Found(found)

    def _hold(self, chosen: Chosen) -> Script[list[Subscription]]:
        """Return the chosen subscriptions, their rows held in id order."""
        if not isinstance(chosen, Choice):
            return list((yield from self.subscriptions.lock_all(chosen)).values())
        found = yield from self.subscriptions.of_owner(
            tenant=chosen.tenant, task_id=chosen.task_id, owner=chosen.owner
        )
        held = yield from self.subscriptions.lock_all([each.id for each in found])
        return [each for each in held.values() if chosen.config_id in {None, each.key.config_id}]


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
