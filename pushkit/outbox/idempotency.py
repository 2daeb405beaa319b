"""Idempotency keys, as scripts (see `pushkit.storage.script`): the same key stores nothing twice.

The caller chooses the key, unique within a task. It is remembered as long as the deliveries that
were stored with it, also those of subscriptions that have ended since.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

from pushkit.a2a import TaskUpdate
from pushkit.errors import IdempotencyConflictError, InvalidUpdateError
from pushkit.record import record
from pushkit.storage.script import Script, run_for_rows

_KIND: Final = "json-1:"  # older digests have no prefix: they are of `repr()`, in its key order


def update_digest(update: TaskUpdate) -> str:
    """Return a digest that is the same for equal updates, whatever the order of their members.

    It is of the update, not of a body: a 0.3 body is the task at that time, and differs when the
    same update is repeated.

    Raises:
        InvalidUpdateError: The update holds a value that JSON cannot represent.
    """
    try:
        text = json.dumps(update, default=_plain, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidUpdateError("the update holds a value that JSON cannot represent") from exc
    return _KIND + hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """Return a value that JSON cannot represent as one that it can."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
    raise TypeError(type(value).__name__)


@record(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A key, and the update that it stands for."""

    key: str
    update_sha256: str  # see `update_digest`
    # Whether nothing can have been stored with it yet, so that no query is needed.
    is_new: bool = False

    @classmethod
    def of(cls, key: str, update: TaskUpdate) -> Self:
        """Return a key for an update. Raises as `update_digest`."""
        return cls(key=key, update_sha256=update_digest(update))

    def check(self, enqueued: Iterable[StoredDelivery]) -> None:
        """Check that the deliveries stored with the key are of this update.

        Raises:
            IdempotencyConflictError: The key was used with another update.
        """
        stored = (each.update_sha256 or "" for each in enqueued)
        # Digests of another kind cannot be compared: then the key alone counts.
        if any(each.startswith(_KIND) and each != self.update_sha256 for each in stored):
            raise IdempotencyConflictError(
                f"idempotency key {self.key!r} was used before with another payload:"
                " use a new key for a new update"
            )


class TaskKey(NamedTuple):
    """An idempotency key with its task, within which it is unique."""

    tenant: str
    task_id: str
    key: str


class StoredDelivery(NamedTuple):
    """A delivery that was stored with a key."""

    id: str  # the delivery id
    subscription_id: str
    owner: str
    config_id: str
    update_sha256: str | None  # the digest of its update; None if an old version stored it


def find_enqueued(keys: Sequence[TaskKey]) -> Script[dict[TaskKey, list[StoredDelivery]]]:
    """Return the deliveries that were stored with some keys; keys without any are left out."""
    found: dict[TaskKey, list[StoredDelivery]] = {}
    if not keys:
        return found
    rows = yield from run_for_rows(
        "SELECT DISTINCT d.tenant, d.task_id, d.idempotency_key, d.id, d.subscription_id,"
        " d.owner, d.config_id, d.update_sha256 FROM (VALUES $rows)"
        " v CROSS JOIN pushkit_deliveries d WHERE d.tenant = v.column1"
        " AND d.task_id = v.column2 AND d.idempotency_key = v.column3",
        keys,
    )
    for tenant, task_id, key, *enqueued in rows:
        found.setdefault(TaskKey(tenant, task_id, key), []).append(StoredDelivery(*enqueued))
    return found
