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
from pushkit.outbox import store as outbox
from pushkit.queue.rules import Queue
from pushkit.storage.script import Script

_MOST_BYTES: Final = 2**16  # of gathered chunks: each one that joins reads and writes all of it
_MICROSECOND: Final = timedelta(microseconds=1)
_UNDER_WAY: Final = ("submitted", "working")

Join: TypeAlias = Callable[[str, bytes], bytes | None]
"""Returns the body that stands for the stored one of an id and the new one; None if none does."""
Joined: TypeAlias = "Callable[[JsonObject, JsonObject], JsonObject | None]"


class Place(NamedTuple):
    """Where an update goes in its queue."""

    body: bytes
    not_before: int  # when it may be sent; microseconds
    may_be_joined: bool = False  # as long as no worker has it
    replaces: str | None = None  # the delivery that it stands for
    hurries: bool = False  # whether what waits in the queue to be joined goes earlier


def place(
    queue: Queue, body: bytes, join: Join | None, *, interval: timedelta, now: int
) -> Script[Place]:
    """Return where an update goes in a queue whose row is held; only reads.

    Args:
        queue: The queue; its new deliveries are written.
        body: The update's.
        join: Joins it with the newest delivery; None if such an update is never gathered.
        interval: The subscription's.
        now: The time.
    """
    if join is None:
        return Place(body, now, hurries=queue.due_at is not None or bool(queue.paused))
    micros = interval // _MICROSECOND
    newest = yield from outbox.newest(queue, since=now - micros)
    joined = None if newest is None or newest.body is None else join(newest.id, newest.body)
    if newest is None or joined is None:
        is_waiting = newest is not None and newest.is_waiting
        return Place(body, now, may_be_joined=True, hurries=is_waiting)
    if newest.is_waiting:
        # Later than that it is only if the clock was set back.
        moment = min(newest.not_before, now + micros)
        is_late = moment < newest.not_before
        return Place(joined, moment, may_be_joined=True, replaces=newest.id, hurries=is_late)
    sent_at = now if newest.finished_at is None else min(now, newest.finished_at)
    return Place(body, sent_at + micros, may_be_joined=True)


def make_way(queue: Queue, to: Place, *, now: int) -> Script[Queue]:
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


def joined_of(update: AnyUpdate, version: WireVersion) -> Joined | None:
    """Return how the bodies of such updates are joined; None if they never are."""
    if version is WireVersion.V1_0 and update.kind is UpdateKind.ARTIFACT_UPDATE:
        return joined_chunks
    return joined_tasks if version is WireVersion.V0_3 else None


def joined_body(joined: Joined, stored: bytes, body: bytes, *, most_bytes: int) -> bytes | None:
    """Return one body for two, if they can be joined within the length of the longest body."""
    length = len(stored) + len(body)
    if joined is joined_chunks and length > min(_MOST_BYTES, most_bytes):
        return None
    document, new = read_json_object(stored), read_json_object(body)
    found = joined(document, new)
    return None if found is None else body if found is new else write_json(found, foreign=False)


def joined_tasks(stored: JsonObject, new: JsonObject) -> JsonObject | None:
    """Return the newer of two whole tasks of 0.3, if it says all that the older one says.

    Whole tasks are cumulative; but one that cannot be sent whole is sent without its artifacts.
    """
    was, now = _member(stored, "status"), _member(new, "status")
    is_same = all(was.get(name) == now.get(name) for name in ("state", "message"))
    lists = ("artifacts", "history")
    is_whole = all(len(_list(new, name)) >= len(_list(stored, name)) for name in lists)
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
    artifact["parts"] = [*_list(artifact, "parts"), *_list(chunk, "parts")]
    _update_metadata(artifact, chunk)
    _update_metadata(was, now)
    if now.get("lastChunk"):
        was["lastChunk"] = True
    return stored


_JOINED: Final = frozenset({"artifact", "append", "lastChunk", "parts", "metadata"})


def _adds_nothing(stored: JsonObject, new: JsonObject) -> bool:
    """Return whether the members of a chunk, but for those that are joined, are said already."""
    return all(
        name in _JOINED or (name in stored and stored[name] == said) for name, said in new.items()
    )


def _update_metadata(stored: JsonObject, new: JsonObject) -> None:
    if metadata := _member(stored, "metadata") | _member(new, "metadata"):
        stored["metadata"] = metadata


def _member(document: JsonObject, name: str) -> JsonObject:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _list(document: JsonObject, name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []
