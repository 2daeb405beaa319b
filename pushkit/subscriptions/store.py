"""The subscriptions table, as scripts (see `pushkit.storage.script`).

They return subscriptions without token and credentials, except in a `StoredSubscription`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from pushkit.a2a import Authentication, PushConfig, TaskState, UpdateKind, WireVersion
from pushkit.queue.tables import QUEUE, queue_of
from pushkit.secrets.vault import CREDENTIALS, TOKEN, Vault
from pushkit.storage.script import (
    Row,
    Script,
    Statement,
    count,
    from_micros,
    moment_or_none,
    padded,
    rows_of_places,
    run_for_ids,
    to_micros,
)
from pushkit.subscriptions.model import (
    EVERYTHING,
    OUTBOX,
    DisabledBy,
    Filter,
    Profile,
    Recipient,
    StoredSubscription,
    Subscription,
    SubscriptionKey,
)

_T = TypeVar("_T")
_MICROSECOND = timedelta(microseconds=1)

_OF_OWNER = "tenant = $1 AND task_id = $2 AND owner = $3 AND removed_at IS NULL"
_BY_KEY = f"{_OF_OWNER} AND config_id = $4"


def put(
    key: SubscriptionKey,
    config: PushConfig,
    *,
    version: WireVersion,
    origin: str,
    profile: Profile,
    vault: Vault,
    now: datetime,
    wanted: Filter = EVERYTHING,
) -> Script[Subscription]:
    """Create a subscription, or change the one of this key, which keeps its id and `seq`."""
    token, credentials = seal_secrets(vault, key, config)
    rows = yield Statement(
        "INSERT INTO pushkit_subscriptions (tenant, task_id, owner, config_id, id, version,"
        " url, origin, token, schemes, credentials, profile, filter,"
        " created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $14)"
        " ON CONFLICT (tenant, task_id, owner, config_id) WHERE removed_at IS NULL"
        " DO UPDATE SET"
        " version = excluded.version, url = excluded.url, origin = excluded.origin,"
        " token = excluded.token, schemes = excluded.schemes,"
        " credentials = excluded.credentials, profile = excluded.profile,"
        " filter = excluded.filter, failing_since = NULL, active = 1,"
        " disabled_by = NULL, disabled_at = NULL,"
        " revision = pushkit_subscriptions.revision + 1,"
        " updated_at = excluded.updated_at RETURNING *",
        (
            *key,
            _new_id(now),
            version.value,
            config.url,
            origin,
            token,
            json.dumps(config.authentication.schemes if config.authentication else []),
            credentials,
            profile.value,
            _filter_column(wanted),
            to_micros(now),
        ),
    )
    return read_subscription(rows[0])


def continue_seq(subscription: Subscription) -> Script[Subscription]:
    """Let a subscription that `put` just added continue the `seq` of removed ones of its key.

    Reads every delivery of the task. Until the transaction ends, no delivery of the key can be
    added: the removed ones are gone, and others that add a new one wait for this one.
    """
    rows = yield Statement(
        "SELECT COALESCE(MAX(seq), 0) AS seq FROM pushkit_deliveries"
        " WHERE tenant = $1 AND task_id = $2 AND owner = $3 AND config_id = $4",
        subscription.key,
    )
    last_seq = int(rows[0]["seq"])
    if last_seq <= subscription.last_seq:
        return subscription
    yield Statement(
        "UPDATE pushkit_subscriptions SET last_seq = $1 WHERE id = $2",
        (last_seq, subscription.id),
    )
    return replace(subscription, last_seq=last_seq)


def remove(key: SubscriptionKey) -> Script[str | None]:
    """Remove a subscription and return its id, or None if there was none."""
    rows = yield Statement(f"DELETE FROM pushkit_subscriptions WHERE {_BY_KEY} RETURNING id", key)
    return str(rows[0]["id"]) if rows else None


def of_task(*, tenant: str, task_id: str) -> Script[list[str]]:
    """Return ids of a task's subscriptions, also withdrawn ones; reads all subscriptions."""
    rows = yield Statement(
        "SELECT id FROM pushkit_subscriptions WHERE tenant = $1 AND task_id = $2",
        (tenant, task_id),
    )
    return [str(row["id"]) for row in rows]


def erase_task(*, tenant: str, task_id: str, known: Sequence[str]) -> Script[list[str]]:
    """Delete every subscription to a task, whoever owns it; return their ids, in id order.

    `known` is from `of_task`, which would take long beside other transactions.
    """
    rows = yield Statement(
        "SELECT id FROM pushkit_subscriptions"
        " WHERE tenant = $1 AND task_id = $2 AND removed_at IS NULL",
        (tenant, task_id),
    )
    ids = list((yield from lock_all([*known, *(row["id"] for row in rows)])))
    yield from run_for_ids("DELETE FROM pushkit_subscriptions WHERE id IN ($ids)", ids)
    return ids


def forgettable(*, disabled_before: datetime | None, limit: int) -> Script[list[str]]:
    """Return ids of subscriptions that get nothing, and have no delivery left to send again.

    They are withdrawn, or were disabled before a time: the end of their task is not noted.
    """
    before = 0 if disabled_before is None else to_micros(disabled_before)
    rows = yield Statement(
        "SELECT s.id FROM pushkit_subscriptions s"
        " WHERE (s.removed_at IS NOT NULL OR (s.active = 0 AND s.disabled_at < $1))"
        " AND NOT EXISTS (SELECT 1 FROM pushkit_deliveries d WHERE d.subscription_id = s.id)"
        " ORDER BY s.id LIMIT CAST($2 AS BIGINT)",
        (before, limit),
    )
    return [str(row["id"]) for row in rows]


def forget(ids: Sequence[str]) -> Script[int]:
    """Delete withdrawn or disabled subscriptions, secrets and all; return how many."""
    forgotten = 0
    for subscription_id in ids:
        rows = yield Statement(
            "DELETE FROM pushkit_subscriptions"
            " WHERE id = $1 AND (removed_at IS NOT NULL OR active = 0) RETURNING id",
            (subscription_id,),
        )
        forgotten += len(rows)
    return forgotten


def of_owner(
    *, tenant: str, task_id: str, owner: str, config_id: str | None = None
) -> Script[list[Subscription]]:
    """Return one owner's subscriptions to a task, oldest first; or the one with a config id."""
    named = () if config_id is None else (config_id,)
    rows = yield Statement(
        f"SELECT * FROM pushkit_subscriptions WHERE {_BY_KEY if named else _OF_OWNER}"
        " ORDER BY created_at, id",
        (tenant, task_id, owner, *named),
    )
    return [read_subscription(row) for row in rows]


def newest(key: SubscriptionKey) -> Script[Subscription | None]:
    """Return the subscription of a key, or the last that was withdrawn and still has deliveries."""
    rows = yield Statement(f"SELECT * FROM pushkit_subscriptions WHERE {_BY_KEY}", key)
    if not rows:  # reads deliveries of the task
        rows = yield Statement(
            "SELECT * FROM pushkit_subscriptions WHERE id IN (SELECT subscription_id"
            " FROM pushkit_deliveries WHERE tenant = $1 AND task_id = $2 AND owner = $3"
            " AND config_id = $4 LIMIT 10000) ORDER BY id DESC LIMIT 1",
            key,
        )
    return read_subscription(rows[0]) if rows else None


def count_of_owner(key: SubscriptionKey, limit: int) -> Script[int]:
    """Return how many subscriptions the owner of a key has to its task, at most `limit`."""
    rows = f"pushkit_subscriptions WHERE {_OF_OWNER}"
    return count(rows, *key[:3], limit=limit)


def count_of_owner_in_all(owner: str, limit: int) -> Script[int]:
    """Return how many subscriptions an owner has, at most `limit`.

    Quotas count by the owner's name alone: a client that chooses the tenant would otherwise have
    the quota again in each.
    """
    rows = "pushkit_subscriptions WHERE owner = $1 AND removed_at IS NULL"
    return count(rows, owner, limit=limit)


def backlog_of_owner(owner: str, limit: int) -> Script[int]:
    """Return how many deliveries to an owner are unfinished, at most `limit`, by its name alone.

    It joins the subscriptions: an index of deliveries by owner would cost every delivery.
    """
    return count(
        "pushkit_subscriptions s JOIN pushkit_deliveries d"
        " ON d.subscription_id = s.id AND d.state = 'pending'"
        " WHERE s.owner = $1 AND s.removed_at IS NULL",
        owner,
        limit=limit,
    )


def lock_recipients(
    tasks: Sequence[tuple[str, str]], *, wait: bool = True
) -> Script[list[Recipient]]:
    """Return every owner's active subscriptions to some tasks, and hold their rows.

    They are locked in id order, as everywhere, so that two transactions cannot deadlock. A
    transaction that adds or finishes a delivery holds the subscription's row until it ends.

    Args:
        tasks: Tenant and id of each; at least one.
        wait: Whether to wait for rows that other transactions hold, or to leave them out.
    """
    filled = padded(tasks)
    rows = yield Statement(
        _recipients(len(filled), wait=wait), tuple(itertools.chain.from_iterable(filled))
    )
    return list({row["id"]: _recipient(row) for row in rows}.values())


def count_recipients(tasks: Sequence[tuple[str, str]]) -> Script[dict[tuple[str, str], int]]:
    """Return how many active subscriptions each task has, also those whose rows are held."""
    filled = padded(tasks)
    rows = yield Statement(
        f"SELECT q.tenant, q.task_id, COUNT(DISTINCT q.id) AS found {_from_tasks(len(filled))}"
        " GROUP BY q.tenant, q.task_id",
        tuple(itertools.chain.from_iterable(filled)),
    )
    return {(row["tenant"], row["task_id"]): int(row["found"]) for row in rows}


def lock_all(ids: Sequence[str]) -> Script[dict[str, Subscription]]:
    """Return some subscriptions by id, their rows held; ids that are gone are left out."""
    return (yield from _by_ids(ids, read_subscription, "FOR UPDATE"))


def lock_current(ids: Sequence[str], *, wait: bool = True) -> Script[dict[str, Recipient]]:
    """Return some subscriptions as recipients, by id, as `lock_all` does.

    Args:
        wait: Whether to wait for rows that other transactions hold, or to leave them out too.
    """
    rows = yield from run_for_ids(
        f"{_CURRENT} ORDER BY q.id FOR UPDATE OF q{_skip_locked_unless(wait)}",
        sorted(set(ids)),
    )
    return {row["id"]: _recipient(row) for row in rows}


def read_current(ids: Sequence[str]) -> Script[dict[str, Recipient]]:
    """Return some subscriptions as recipients, by id, without holding their rows."""
    rows = yield from run_for_ids(_CURRENT, sorted(set(ids)))
    return {row["id"]: _recipient(row) for row in rows}


def stored_of_task(*, tenant: str, task_id: str) -> Script[list[StoredSubscription]]:
    """Return every owner's active subscriptions to a task with their secrets, in id order."""
    rows = yield Statement(
        "SELECT * FROM pushkit_subscriptions WHERE tenant = $1 AND task_id = $2 AND active = 1"
        " AND removed_at IS NULL ORDER BY id",
        (tenant, task_id),
    )
    return [_stored_subscription(row) for row in rows]


def by_ids(ids: Sequence[str]) -> Script[dict[str, StoredSubscription]]:
    """Return subscriptions with their secrets by id; ids that are gone are left out."""
    return (yield from _by_ids(ids, _stored_subscription))


def disable(subscription_id: str, now: datetime, by: DisabledBy) -> Script[None]:
    """Disable a subscription, until it is enabled or registered again."""
    yield Statement(
        "UPDATE pushkit_subscriptions SET active = 0, disabled_by = $3, disabled_at = $2,"
        " updated_at = $2 WHERE id = $1",
        (subscription_id, to_micros(now), by.value),
    )


def enable(subscription_id: str, now: datetime) -> Script[None]:
    """Enable a subscription, and reset `failing_since`."""
    yield Statement(
        "UPDATE pushkit_subscriptions SET active = 1, disabled_by = NULL, disabled_at = NULL,"
        " failing_since = NULL, updated_at = $2 WHERE id = $1",
        (subscription_id, to_micros(now)),
    )


def set_paused(subscription_id: str, now: datetime, *, paused: bool) -> Script[None]:
    """Pause or resume a subscription, and reset `failing_since`: a pause proves nothing."""
    yield Statement(
        "UPDATE pushkit_subscriptions SET paused = $2, failing_since = NULL, updated_at = $3"
        " WHERE id = $1",
        (subscription_id, int(paused), to_micros(now)),
    )


def set_failing_since(subscription_id: str, since: datetime | None) -> Script[None]:
    """Store since when every attempt failed; None after a success."""
    yield Statement(
        "UPDATE pushkit_subscriptions SET failing_since = $2 WHERE id = $1",
        (subscription_id, None if since is None else to_micros(since)),
    )


def end(ids: Sequence[str]) -> Script[None]:
    """Note that the task has ended: subscriptions are withdrawn once they have finished."""
    yield from run_for_ids("UPDATE pushkit_subscriptions SET ended = 1 WHERE id IN ($ids)", ids)


def withdraw(ids: Sequence[str], now: datetime) -> Script[None]:
    """Withdraw ended subscriptions; their rows are kept for their dead letters.

    None stays paused, or a redriven delivery would wait for ever.
    """
    yield from run_for_ids(
        "UPDATE pushkit_subscriptions SET removed_at = $1, paused = 0"
        " WHERE id IN ($ids) AND removed_at IS NULL",
        ids,
        to_micros(now),
    )


def seal_secrets(
    vault: Vault, key: SubscriptionKey, config: PushConfig
) -> tuple[str | None, str | None]:
    """Return the token and the credentials of a config as its row holds them."""
    authentication, row = config.authentication, (*key, config.url)
    credentials = authentication.credentials if authentication else None
    return (
        vault.seal_text(TOKEN, config.token, row),
        vault.seal_text(CREDENTIALS, credentials, row),
    )


def open_subscription(vault: Vault, stored: StoredSubscription) -> Subscription:
    """Return a subscription with its secrets, for an attempt.

    Raises:
        SealedSecretError: A secret cannot be opened; the message names it and the reason.
    """
    subscription, config = stored.subscription, stored.subscription.config
    row = (*subscription.key, config.url)
    token = vault.open_text(TOKEN, subscription.id, stored.token, row)
    credentials = vault.open_text(CREDENTIALS, subscription.id, stored.credentials, row)
    authentication = config.authentication
    if authentication is not None:
        authentication = replace(authentication, credentials=credentials)
    opened = replace(config, token=token, authentication=authentication)
    return replace(subscription, config=opened)


def _by_ids(ids: Sequence[str], read: Callable[[Row], _T], held: str = "") -> Script[dict[str, _T]]:
    """Return some rows by id in few statements: on PostgreSQL each is a round trip."""
    rows = yield from run_for_ids(
        f"SELECT * FROM pushkit_subscriptions WHERE id IN ($ids) ORDER BY id {held}",
        sorted(set(ids)),
    )
    return {row["id"]: read(row) for row in rows}


def _new_id(now: datetime) -> str:
    """Return an id that sorts after the existing ones: locks are taken in id order.

    Otherwise a transaction that holds a task's subscriptions could wait for a new one, while the
    transaction that holds the new one waits for it.
    """
    return f"sub_{int(now.timestamp() * 1000):012x}{os.urandom(10).hex()}"


_RECIPIENT = (
    f"SELECT {QUEUE}, q.task_id, q.config_id, q.version, q.filter, q.url, q.revision, q.active,"
    " q.ended, q.failing_since"
)
_CURRENT = f"{_RECIPIENT} FROM {OUTBOX.joined} WHERE q.id IN ($ids)"


@functools.cache
def _recipients(tasks: int, *, wait: bool) -> str:
    return (
        f"{_RECIPIENT} {_from_tasks(tasks, OUTBOX.joined)}"
        f" ORDER BY q.id FOR UPDATE OF q{_skip_locked_unless(wait)}"
    )


def _from_tasks(tasks: int, joined: str = "pushkit_subscriptions q") -> str:
    # A cross join, from tasks to rows: SQLite would otherwise read all rows for their order.
    return (
        f"FROM (VALUES {rows_of_places(tasks, 2)}) v CROSS JOIN {joined}"
        " WHERE q.tenant = v.column1 AND q.task_id = v.column2"
        " AND q.active = 1 AND q.removed_at IS NULL"
    )


def _skip_locked_unless(wait: bool) -> str:
    return "" if wait else " SKIP LOCKED"


def _filter_column(wanted: Filter) -> str:
    return json.dumps(
        {
            "states": None if wanted.states is None else sorted(wanted.states),
            "kinds": None if wanted.kinds is None else sorted(wanted.kinds),
            "last_chunk_only": wanted.last_chunk_only,
        }
        | ({"min_interval": wanted.min_interval // _MICROSECOND} if wanted.min_interval else {})
    )


# Most subscriptions share a few filters and schemes: each is parsed once.
@functools.lru_cache(maxsize=256)
def _filter(column: str) -> Filter:
    stored = json.loads(column)
    states, kinds, interval = stored["states"], stored["kinds"], stored.get("min_interval")
    return Filter(
        states=None if states is None else frozenset(map(TaskState, states)),
        kinds=None if kinds is None else frozenset(map(UpdateKind, kinds)),
        last_chunk_only=stored["last_chunk_only"],
        min_interval=None if interval is None else interval * _MICROSECOND,
    )


@functools.lru_cache(maxsize=256)
def _schemes(column: str) -> tuple[str, ...]:
    return tuple(json.loads(column))


def _stored_subscription(row: Row) -> StoredSubscription:
    return StoredSubscription(
        subscription=read_subscription(row), token=row["token"], credentials=row["credentials"]
    )


_VERSIONS = {version.value: version for version in WireVersion}


def _recipient(row: Row) -> Recipient:
    *queue, task_id, config_id, version, wanted, url, revision, active, ended, since = row
    sent = (task_id, config_id, _VERSIONS[version], _filter(wanted), url, revision)
    state = (bool(active), bool(ended), moment_or_none(since))
    return Recipient._make((queue_of(queue), *sent, *state))


def read_subscription(row: Row) -> Subscription:
    """Read a whole row, without its secrets."""
    schemes = _schemes(row["schemes"])
    return Subscription(
        id=row["id"],
        key=SubscriptionKey(
            tenant=row["tenant"],
            task_id=row["task_id"],
            owner=row["owner"],
            config_id=row["config_id"],
        ),
        version=_VERSIONS[row["version"]],
        config=PushConfig(
            url=row["url"],
            id=row["config_id"],
            authentication=Authentication(schemes=schemes) if schemes else None,
        ),
        origin=row["origin"],
        profile=Profile(row["profile"]),
        last_seq=row["last_seq"],
        wanted=_filter(row["filter"]),
        active=bool(row["active"]),
        paused=bool(row["paused"]),
        ended=bool(row["ended"]),
        failing_since=moment_or_none(row["failing_since"]),
        created_at=from_micros(row["created_at"]),
        has_token=row["token"] is not None,
        has_credentials=row["credentials"] is not None,
        disabled_by=DisabledBy(row["disabled_by"]) if row["disabled_by"] else None,
        disabled_at=moment_or_none(row["disabled_at"]),
        withdrawn=row["removed_at"] is not None,
        revision=row["revision"],
    )
