"""Registers and changes subscriptions, as scripts: in one transaction with their deliveries."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, TypeAlias

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
from pushkit.delivery.gathering import PlaceInQueue, make_way
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.queues import Queues
from pushkit.delivery.snapshots import Registered, hold
from pushkit.errors import InvalidPushConfigError, TooManyConfigsError, TooManySubscriptionsError
from pushkit.events import ALERTS_OWNER, ALERTS_TASK, SubscriptionChange
from pushkit.outbox import changes
from pushkit.outbox import store as outbox
from pushkit.outbox.model import new_delivery_id
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.queue.leases import reschedule
from pushkit.queue.rules import released
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.quota import Quota
from pushkit.storage.script import Script, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import (
    OUTBOX,
    DisabledBy,
    Filter,
    Profile,
    Subscription,
    SubscriptionKey,
    SubscriptionState,
)

_MAX_ID_BYTES = 512  # the longest that receivers accept


class Registrar:
    """Registers clients' subscriptions."""

    def __init__(self, database: Database, options: SenderOptions, vault: Vault) -> None:
        self._database = database  # supplies the time
        # Of one owner for one task. Concurrent calls may exceed it by one each.
        self._max_configs_per_task = options.max_configs_per_task
        self._vault = vault  # seals tokens and credentials
        self._quota = Quota(
            options.max_subscriptions_per_owner, subscriptions.count_of_owner_in_all
        )
        self._max_backlog = options.max_backlog_per_subscription
        self._backlogs = Quota(options.max_backlog_per_owner, subscriptions.backlog_of_owner)

    def put(
        self,
        key: SubscriptionKey,
        config: PushConfig,
        *,
        version: WireVersion,
        origin: str,
        profile: Profile,
        wanted: Filter,
        snapshot: bytes | None = None,
    ) -> Script[Registered]:
        """Register or change a subscription; unfinished deliveries move to its new destination.

        `snapshot` is the body of its next delivery, which is held (`pushkit.delivery.snapshots`).

        Raises:
            InvalidPushConfigError: There is no room for the snapshot.
            TooManyConfigsError: The owner has `max_configs_per_task` for this task already.
            TooManySubscriptionsError: The owner has used up its quota.
        """
        now = yield from self._database.now()
        found = yield from subscriptions.of_owner(
            tenant=key.tenant, task_id=key.task_id, owner=key.owner, config_id=key.config_id
        )
        # Locked: others may have changed or removed it after it was read.
        locked = yield from subscriptions.lock_all([each.id for each in found])
        before = next((each for each in locked.values() if not each.withdrawn), None)
        if before is None:
            yield from self._check_quota(key, now)
        subscription = yield from subscriptions.put(
            key,
            config,
            version=version,
            origin=origin,
            profile=profile,
            vault=self._vault,
            wanted=wanted,
            now=now,
        )
        if subscription.revision == 0:
            self._quota.add(key.owner, 1)
            # Receivers order updates by `seq` within a task and config: a lower one looks late.
            # Until `put`, others might set the config, get updates and remove it.
            subscription = yield from subscriptions.continue_seq(subscription)
        else:
            if before is None or before.origin != origin:  # None: another client has just set it
                yield from outbox.move(subscription.id, origin)
            queues = yield from OUTBOX.lock([subscription.id])
            if before is not None and before.wanted.min_interval != wanted.min_interval:
                yield from outbox.hurry(queues[subscription.id], to_micros(now))
            yield from reschedule(OUTBOX, [*queues.values()], to_micros(now))
            yield from self._database.wake()
        held = None
        if snapshot is not None:
            yield from self._check_backlog(subscription, now)
            held = yield from hold(subscription.id, snapshot, self._vault, now)
            subscription = replace(subscription, last_seq=held.seq)
        return replace(subscription, replaced=before is not None), before, held

    def _check_backlog(self, subscription: Subscription, now: datetime) -> Script[None]:
        """Check that a snapshot may be added, as `notify()` checks it for an update."""
        owner, most = subscription.key.owner, self._max_backlog
        backlog = yield from outbox.backlog(subscription.id, most)
        if backlog >= most or (yield from self._backlogs.left(owner, now)) <= 0:
            raise InvalidPushConfigError(
                f"owner {owner!r} has too many unfinished deliveries for a snapshot: register"
                " without one, or wait until your webhook has taken some"
            )
        self._backlogs.add(owner, 1)

    def _check_quota(self, key: SubscriptionKey, now: datetime) -> Script[None]:
        """Check that a subscription may be added."""
        most = self._max_configs_per_task
        number = yield from subscriptions.count_of_owner(key, most)
        if number >= most:
            raise TooManyConfigsError(
                f"task {key.task_id!r} has {number} push configs of this owner,"
                f" expected at most {most}: delete one first"
            )
        if (yield from self._quota.left(key.owner, now)) <= 0:
            raise TooManySubscriptionsError(
                f"owner {key.owner!r} has {self._quota.limit} subscriptions already, the maximum:"
                " remove some first"
            )


def checked_key(tenant: str, task_id: str, owner: str, config_id: str) -> SubscriptionKey:
    """Return the key of a subscription, whoever asks for it.

    Raises:
        InvalidPushConfigError: An id cannot be sent, or is reserved for alerts.
    """
    if (task_id == ALERTS_TASK) != (owner == ALERTS_OWNER):
        reason = f"{ALERTS_TASK} and {ALERTS_OWNER} are reserved for the operator's alerts"
        raise InvalidPushConfigError(f"task_id, owner: {reason}")
    return SubscriptionKey(
        tenant=tenant,
        task_id=_checked_id("task_id", task_id),
        owner=owner,
        config_id=_checked_id("id", config_id),
    )


def _checked_id(name: str, value: str) -> str:
    # `isprintable` comes first: `encode` fails for a lone surrogate, which is not printable.
    if not value or not value.isprintable() or len(value.encode()) > _MAX_ID_BYTES:
        raise InvalidPushConfigError(
            f"{name}: found {len(value)} characters,"
            f" expected 1 to {_MAX_ID_BYTES} bytes of printable characters"
        )
    return value


class Choice(NamedTuple):
    """Selects an owner's subscriptions to a task, or the one with a config id."""

    tenant: str
    task_id: str
    owner: str
    config_id: str | None


Chosen: TypeAlias = Choice | Sequence[str]  # or subscription ids

_GETS_NOTHING = {SubscriptionState.DISABLED, SubscriptionState.WITHDRAWN}


class Found(NamedTuple):
    """Subscriptions as they were before a change, and deliveries that it added or brought back."""

    subscriptions: list[Subscription]
    deliveries: Sequence[str] = ()


def change_subscriptions(
    database: Database,
    change: SubscriptionChange,
    chosen: Chosen,
    *,
    resend: bool = False,
    disabled_by: Collection[DisabledBy] | None = None,
) -> Script[Found]:
    """Change the chosen subscriptions; return them as they were before.

    With `disabled_by`, only those that one of these disabled.

    - `PAUSED`: what their workers have not begun waits.
    - `RESUMED`: each goes on with the first delivery of its queue.
    - `DISABLED`: their unfinished deliveries are cancelled.
    - `ENABLED`: with `resend`, the deliveries that were cancelled with them come back.
    - `REMOVED`: their unfinished deliveries are cancelled (A2A 1.0 §3.1.10).
    """
    found, now = yield from _lock(database, chosen)
    if disabled_by is not None:
        found = [each for each in found if each.disabled_by in disabled_by]
    again: list[str] = []
    for each in found:
        match change:
            case SubscriptionChange.PAUSED | SubscriptionChange.RESUMED:
                paused = change is SubscriptionChange.PAUSED
                yield from subscriptions.set_paused(each.id, now, paused=paused)
            case SubscriptionChange.DISABLED:
                yield from _disable(each, now)
            case SubscriptionChange.ENABLED if not each.active:
                again += yield from _enable(each, now, resend=resend)
            case SubscriptionChange.REMOVED:
                yield from _remove(each, now)
    if change in _OF_PAUSES:
        queues = yield from OUTBOX.lock([each.id for each in found])
        yield from reschedule(OUTBOX, [*queues.values()], to_micros(now))
    if change in _WAKING:
        yield from database.wake()
    return Found(found, again)


def send_tests(
    database: Database, vault: Vault, chosen: Chosen, snapshot: Task | None = None
) -> Script[Found]:
    """Enqueue a test notification for each that is neither disabled nor withdrawn."""
    found, now = yield from _lock(database, chosen)
    wanting = [each.id for each in found if each.state not in _GETS_NOTHING]
    recipients = yield from subscriptions.lock_current(wanting)
    ids = []
    for recipient in recipients.values():
        update = _test_update(recipient.task_id, recipient.version, snapshot)
        body = push_body(update, recipient.version, now=now)
        queues = Queues([recipient])
        [queue] = queues.of_task((recipient.tenant, recipient.task_id))
        to = PlaceInQueue(body, to_micros(now), hurries=True)
        queue.row = yield from make_way(queue.row, to, now=to_micros(now))
        ids.append(new_delivery_id(now))
        queues.add(queue, ids[-1], vault.seal_body(ids[-1], body), now=now)
        yield from queues.write()
    yield from database.wake()
    return Found(found, ids)


def _lock(database: Database, chosen: Chosen) -> Script[tuple[list[Subscription], datetime]]:
    """Lock the chosen subscriptions in id order; return them, and the time."""
    if isinstance(chosen, Choice):
        found = yield from subscriptions.of_owner(**chosen._asdict())
        chosen = [each.id for each in found]
    locked = yield from subscriptions.lock_all(chosen)
    return list(locked.values()), (yield from database.now())


_OF_PAUSES = {SubscriptionChange.PAUSED, SubscriptionChange.RESUMED}
_WAKING = {SubscriptionChange.RESUMED, SubscriptionChange.ENABLED}


def _disable(subscription: Subscription, now: datetime) -> Script[None]:
    if subscription.active:
        yield from subscriptions.disable(subscription.id, now, DisabledBy.OPERATOR)
        yield from outbox.cancel_subscription(subscription.id, now, CancelledBy.DISABLED)
        queues = yield from OUTBOX.lock([subscription.id])
        yield from OUTBOX.write([released(queue, None) for queue in queues.values()])
    if subscription.ended:
        yield from subscriptions.withdraw([subscription.id], now)


def _enable(subscription: Subscription, now: datetime, *, resend: bool) -> Script[list[str]]:
    yield from subscriptions.enable(subscription.id, now)
    if not resend or subscription.disabled_at is None:
        return []
    cancelled = yield from changes.cancelled_with(subscription.id, subscription.disabled_at)
    queue = (yield from OUTBOX.lock([subscription.id]))[subscription.id]
    states = (DeliveryState.CANCELLED,)
    return (yield from changes.redrive(queue, cancelled, states=states, now=now))


def _remove(subscription: Subscription, now: datetime) -> Script[None]:
    if subscription.withdrawn:
        yield from subscriptions.forget([subscription.id])
    else:
        yield from subscriptions.remove(subscription.key)
    yield from outbox.cancel_subscription(subscription.id, now, CancelledBy.REMOVED)


def _test_update(task_id: str, version: WireVersion, snapshot: Task | None) -> TaskUpdate:
    """Return a test notification: a message, or a task for versions without messages."""
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
