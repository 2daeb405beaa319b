"""Gathering: neighbouring chunks of an artifact, and whole tasks that say the same, become one.

A subscription gathers if its filter has a `min_interval`. An update that can be gathered is placed
by what the newest delivery of its queue is:

| the newest delivery | then the new one |
|---|---|
| was never in a worker's memory, and says the same or begins it | replaces it, with both contents |
| was, at most an interval ago | waits until an interval has passed |
| anything else | goes at once, and so does the newest one, if it waits |

- What replaces has a new id, its own `seq`, and the time at which the replaced one would have gone.
  Its bytes are frozen as it is stored, before its first attempt; the replaced one is superseded.
- Only the newest delivery is looked at: nothing is gathered over what stands between.
- Everything is in stored rows, in the transaction that holds the queue's row: a crash loses
  nothing, and nothing is begun meanwhile. `waits` says that a delivery was never in a memory: not
  even a worker that died can have sent it, whatever is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from pushkit.a2a import AnyUpdate, UpdateKind, WireVersion
from pushkit.bounded_json import JsonObject, read_json_object, write_json
from pushkit.errors import MalformedJsonError, SealedSecretError
from pushkit.outbox import store as outbox
from pushkit.queue.rules import Queue
from pushkit.secrets.vault import Vault
from pushkit.storage.script import Script

_MOST_BYTES: Final = 2**16  # of gathered chunks: each one that joins reads and writes all of it
_MICROSECOND: Final = timedelta(microseconds=1)
_UNDER_WAY: Final = ("submitted", "working")

Join: TypeAlias = Callable[[str, bytes], bytes | None]
"""Returns the body that stands for the stored one of an id and the new one; None if none does."""


class PlaceInQueue(NamedTuple):
    """Where an update goes in its queue."""

    body: bytes
    not_before: int  # when it may be sent; microseconds, 0 for now
    may_be_joined: bool = False  # as long as no worker has it
    replaces: str | None = None  # the delivery that it stands for
    hurries: bool = False  # whether what waits in the queue to be joined goes earlier


def place(
    queue: Queue, body: bytes, join: Join | None, *, interval: timedelta, now: int
) -> Script[PlaceInQueue]:
    """Return where an update goes in a queue whose row is held; only reads.

    Args:
        queue: The queue; its new deliveries are written.
        body: The update's.
        join: Joins it with the newest delivery; None if such an update is never gathered.
        interval: The subscription's.
        now: The time.
    """
    if join is None:
        return PlaceInQueue(body, now, hurries=queue.due_at is not None or bool(queue.paused))
    micros = interval // _MICROSECOND
    newest = yield from outbox.newest(queue, since=now - micros)
    joined = None if newest is None or newest.body is None else join(newest.id, newest.body)
    if newest is None or joined is None:
        is_waiting = newest is not None and bool(newest.is_waiting)
        return PlaceInQueue(body, now, may_be_joined=True, hurries=is_waiting)
    if newest.is_waiting:
        # Later than that it is only if the clock was set back.
        moment = min(newest.not_before, now + micros)
        is_late = moment < newest.not_before
        return PlaceInQueue(joined, moment, may_be_joined=True, replaces=newest.id, hurries=is_late)
    sent_at = now if newest.finished_at is None else min(now, newest.finished_at)
    return PlaceInQueue(body, sent_at + micros, may_be_joined=True)


def make_way(queue: Queue, to: PlaceInQueue, *, now: int) -> Script[Queue]:
    """Change the newest delivery as a place asks for; return the queue, which is to be written."""
    hurries = to.hurries
    if to.replaces is not None:
        yield from outbox.supersede_one(to.replaces, now)
    elif hurries:
        hurries = yield from outbox.hurry(queue, now)
    if hurries and queue.due_at is not None:
        return queue._replace(due_at=min(queue.due_at, to.not_before))
    return queue


# --- what can be joined ------------------------------------------------------------------------


def joining(
    update: AnyUpdate, version: WireVersion, body: bytes, vault: Vault, *, most_bytes: int
) -> Join | None:
    """Return how an update's body is joined; None if such an update is never gathered."""
    if version is WireVersion.V1_0 and update.kind is UpdateKind.ARTIFACT_UPDATE:
        joined, most = joined_chunks, min(_MOST_BYTES, most_bytes)
    elif version is WireVersion.V0_3 and update.state in {None, *_UNDER_WAY}:
        # Whatever the snapshot says: it may have been read before the task's state changed.
        joined, most = joined_tasks, 2 * most_bytes  # which are not added to one another
    else:
        return None

    def join(delivery_id: str, stored: bytes) -> bytes | None:
        if len(stored) + len(body) > most:
            return None
        try:
            document = read_json_object(vault.open_body(delivery_id, bytes(stored)))
            new = read_json_object(body)
        except (SealedSecretError, MalformedJsonError):  # by a key that this process has not
            return None
        found = joined(document, new)
        return None if found is None else body if found is new else write_json(found, foreign=False)

    return join


def joined_tasks(stored: JsonObject, new: JsonObject) -> JsonObject | None:
    """Return the newer of two whole tasks of 0.3, if it says all that the older one says.

    Whole tasks are cumulative; but one that cannot be sent whole is sent without its artifacts. The
    message of the older status may be in the history: some agents stream words as messages.
    """
    was, now = _member(stored, "status"), _member(new, "status")
    message = was.get("message")
    is_said = message == now.get("message") or message in _member(new, "history", list)
    is_same = is_said and was.get("state") == now.get("state")
    is_whole = all(
        len(_member(new, name, list)) >= len(_member(stored, name, list))
        for name in ("artifacts", "history")
    )
    return new if is_same and is_whole and now.get("state") in _UNDER_WAY else None


def joined_chunks(stored: JsonObject, new: JsonObject) -> JsonObject | None:
    """Return two neighbouring chunks of one artifact of 1.0 as one.

    A chunk that does not append begins the artifact anew, so it stands for both. Otherwise the
    result is what a client makes of both: the parts of both, and of metadata the newer values.
    """
    was, now = _member(stored, "artifactUpdate"), _member(new, "artifactUpdate")
    artifact, chunk = _member(was, "artifact"), _member(now, "artifact")
    if not artifact or not chunk or artifact.get("artifactId") != chunk.get("artifactId"):
        return None
    if not now.get("append"):
        return new
    is_plain = len(stored) == len(new) == 1 and not was.get("lastChunk")
    if not (is_plain and _adds_nothing(artifact, chunk) and _adds_nothing(was, now)):
        return None
    artifact["parts"] = _member(artifact, "parts", list) + _member(chunk, "parts", list)
    for older, newer in (artifact, chunk), (was, now):
        if metadata := _member(older, "metadata") | _member(newer, "metadata"):
            older["metadata"] = metadata
    if now.get("lastChunk"):
        was["lastChunk"] = True
    return stored


_JOINED: Final = frozenset({"artifact", "append", "lastChunk", "parts", "metadata"})


def _adds_nothing(stored: JsonObject, new: JsonObject) -> bool:
    """Return whether the members of a chunk, but for those that are joined, are said already."""
    return all(
        name in _JOINED or (name in stored and stored[name] == said) for name, said in new.items()
    )


def _member(document: JsonObject, name: str, kind: type[Any] = dict) -> Any:
    value = document.get(name)
    return value if isinstance(value, kind) else kind()
