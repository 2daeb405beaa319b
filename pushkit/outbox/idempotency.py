"""Idempotency keys, as scripts (see `pushkit.storage.script`): the same key stores nothing twice.

A key is the caller's own, unique within a task. It is remembered as long as the deliveries that it
made, those of subscriptions that have ended since included.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

from pushkit.a2a import TaskUpdate
from pushkit.errors import IdempotencyConflictError, InvalidUpdateError
from pushkit.record import record
from pushkit.storage.script import Script, Statement, chunks, padded, rows_of_places

_KIND: Final = "json-1:"  # before it, 64 digits without a prefix: of `repr()`, in its order of keys


def update_digest(update: TaskUpdate) -> str:
    """Return what is the same for equal updates, whatever the order of their members.

    Of the update and not of a body: the 0.3 body is the task as it is just then, and another one
    where the same update is repeated.

    Raises:
        InvalidUpdateError: It holds something that no JSON says.
    """
    try:
        said = json.dumps(update, default=_plain, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidUpdateError("the update holds a value that JSON cannot represent") from exc
    return _KIND + hashlib.sha256(said.encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """Return what JSON has no form for as something that it has one for."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    raise TypeError(type(value).__name__)


@record(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A key, and the update that it stands for."""

    key: str  # the caller's own
    update_sha256: str  # tells two updates apart: see `update_digest`
    # Whether nothing can have been stored with it yet, so that nobody need look.
    is_new: bool = False

    @classmethod
    def of(cls, key: str, update: TaskUpdate) -> Self:
        """Return a key for an update. Raises as `update_digest`."""
        return cls(key=key, update_sha256=update_digest(update))

    def check(self, enqueued: Iterable[Enqueued]) -> None:
        """Hold that what a key made was made of this update.

        Raises:
            IdempotencyConflictError: The key was used with another update.
        """
        stored = (each.update_sha256 or "" for each in enqueued)
        # Of a digest of another kind, or none, nothing follows: then the key alone counts.
        if any(each.startswith(_KIND) and each != self.update_sha256 for each in stored):
            raise IdempotencyConflictError(
                f"idempotency key {self.key!r} was used before with another payload:"
                " use a new key for a new update"
            )


class TaskKey(NamedTuple):
    """What an idempotency key is unique within: its task."""

    tenant: str
    task_id: str
    key: str


class Enqueued(NamedTuple):
    """A delivery that a key made.

    Attributes:
        id: The delivery id.
        subscription_id: The subscription.
        owner: Whose that is.
        config_id: Its config id.
        update_sha256: The update that it was made of; None from before that was stored.
    """

    id: str
    subscription_id: str
    owner: str
    config_id: str
    update_sha256: str | None


def find_enqueued(keys: Sequence[TaskKey]) -> Script[dict[TaskKey, list[Enqueued]]]:
    """Return the deliveries that some keys made already; a key that made none is left out."""
    found: dict[TaskKey, list[Enqueued]] = {}
    for each in chunks(keys):
        filled = padded(each)
        rows = yield Statement(
            "SELECT DISTINCT d.tenant, d.task_id, d.idempotency_key, d.id, d.subscription_id,"
            f" d.owner, d.config_id, d.update_sha256 FROM (VALUES {rows_of_places(len(filled), 3)})"
            " v CROSS JOIN pushkit_deliveries d WHERE d.tenant = v.column1"
            " AND d.task_id = v.column2 AND d.idempotency_key = v.column3",
            tuple(itertools.chain.from_iterable(filled)),
        )
        for row in rows:
            made = found.setdefault(
                TaskKey(row["tenant"], row["task_id"], row["idempotency_key"]), []
            )
            made.append(
                Enqueued(
                    row["id"],
                    row["subscription_id"],
                    row["owner"],
                    row["config_id"],
                    row["update_sha256"],
                )
            )
    return found
