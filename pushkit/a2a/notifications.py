"""Notifications of A2A 0.1, 0.3 and 1.0: which object is one, and what surrounds it.

In 0.1 (§6, §7.2) its members distinguish a task, a status and an artifact. The payload of a push is
"convention-based" (§9.4): the task object of the first samples (`id`, `sessionId`), or a status
(`taskId`); pushkit writes both names of the task's id. 0.3 (§6, §7.2, §9.5) has a `kind`, and 1.0 a
`StreamResponse` (§4.3.3) in ProtoJSON around the object.

A kind that no version has (of a later version, or an extension) is not refused: its sender would
give up. In 0.3's shape it has an unknown `kind`; in 1.0's it is the one object with a `taskId`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pushkit.a2a.kinds import COUNT, TEXT, is_index, one
from pushkit.a2a.members import ARTIFACT_UPDATE, MESSAGE, STATUS_UPDATE, TASK, Tables
from pushkit.a2a.table import (
    AmbiguousError,
    Dialect,
    Member,
    MismatchError,
    Need,
    Reading,
    Table,
    Writer,
    Writing,
)
from pushkit.a2a.updates import (
    KNOWN_KINDS,
    ArtifactUpdate,
    MessageUpdate,
    TaskSnapshot,
    TaskUpdate,
    UnknownUpdate,
    UpdateKind,
    WireVersion,
)
from pushkit.bounded_json import JsonObject, JsonValue

TABLES: dict[UpdateKind, Tables] = {
    UpdateKind.TASK: TASK,
    UpdateKind.MESSAGE: MESSAGE,
    UpdateKind.STATUS_UPDATE: STATUS_UPDATE,
    UpdateKind.ARTIFACT_UPDATE: ARTIFACT_UPDATE,
}
PLACES = {
    UpdateKind.TASK: "task",
    UpdateKind.MESSAGE: "message",
    UpdateKind.STATUS_UPDATE: "statusUpdate",
    UpdateKind.ARTIFACT_UPDATE: "artifactUpdate",
}
"""The members of 1.0's `StreamResponse`, by what they hold."""


def _update(
    kind: UpdateKind, found: Any, origin: WireVersion, rest: JsonObject | None = None
) -> TaskUpdate:
    """Return the update for an object that was read; a status or artifact update is one already."""
    if kind is UpdateKind.TASK:
        return TaskSnapshot(task=found, origin=origin, envelope_extra=rest or {})
    if kind is UpdateKind.MESSAGE:
        return MessageUpdate(message=found, origin=origin, envelope_extra=rest or {})
    update: TaskUpdate = replace(found, envelope_extra=rest) if rest else found
    return update


def _writers(version: WireVersion) -> dict[UpdateKind, Writer]:
    """Return the writers of a version in which the object alone is the notification."""
    return {
        UpdateKind.TASK: lambda update, writing: TASK[version].write(update.task, writing),
        UpdateKind.MESSAGE: lambda update, writing: MESSAGE[version].write(update.message, writing),
        UpdateKind.STATUS_UPDATE: STATUS_UPDATE[version].write,
        UpdateKind.ARTIFACT_UPDATE: ARTIFACT_UPDATE[version].write,
        UpdateKind.UNKNOWN: write_unknown,
    }


# --- kinds that no version has -------------------------------------------------------------------


def unknown_member(document: Mapping[str, JsonValue]) -> str | None:
    """Return the name of the one object in a document that has a `taskId`; None if not one has."""
    named = [
        name
        for name, node in document.items()
        if isinstance(node, dict) and ("taskId" in node or "task_id" in node)
    ]
    return named[0] if len(named) == 1 else None


def _unknown(need: Need) -> Table:
    return Table(
        dict,
        Member("task_id", "taskId", TEXT, need, strict=True),
        Member("context_id", "contextId", TEXT),
        Member("generation", "generation", COUNT),
        extra="",
    )


_UNKNOWN_0_3, _UNKNOWN_1_0 = _unknown(Need.NOBODY), _unknown(Need.BOTH)


def write_unknown(update: UnknownUpdate, writing: Writing) -> JsonObject:
    """Return all of it. Raises MismatchError: it was read in another version."""
    if not writing.keep:
        raise MismatchError("no known version has this kind: only the one that it was read in has")
    writing.foreign = True
    return dict(update.extra)


# --- 0.1 -----------------------------------------------------------------------------------------


def _read_0_1(document: JsonObject, reading: Reading) -> TaskUpdate:
    _check_one_task(document)
    if document.get("artifact") is not None:
        return _with_flags(ARTIFACT_UPDATE[WireVersion.V0_1].read(document, reading))
    is_status = "final" in document or document.get("id") is None
    kind = UpdateKind.STATUS_UPDATE if is_status else UpdateKind.TASK
    found = TABLES[kind][WireVersion.V0_1].read(document, reading)
    return _update(kind, found, WireVersion.V0_1)


def _write_task_0_1(update: TaskSnapshot, writing: Writing) -> JsonObject:
    written: dict[str, Any] = TASK[WireVersion.V0_1].write(update.task, writing)
    if not all(is_index(artifact.artifact_id) for artifact in update.task.artifacts):
        for index, artifact in enumerate(written["artifacts"]):  # so that all differ
            artifact["index"] = index
    return written


def _write_message_0_1(_: MessageUpdate, __: Writing) -> JsonObject:
    raise MismatchError("A2A 0.1 has no notification of a message: send the task, or its status")


def _write_artifact_0_1(update: ArtifactUpdate, writing: Writing) -> JsonObject:
    written = ARTIFACT_UPDATE[WireVersion.V0_1].write(update, writing)
    # The neutral form has these flags in the event, 0.1 in its artifact (§6.7).
    flags = {"append": update.append, "lastChunk": update.last_chunk}
    artifact: Any = written["artifact"]
    artifact |= {name: True for name, is_set in flags.items() if is_set}
    return written


def _with_flags(update: ArtifactUpdate) -> ArtifactUpdate:
    rest = dict(update.artifact.extra)
    append = rest.pop("append", None)
    last_chunk = rest.pop("lastChunk", None) or rest.pop("last_chunk", None)
    if len(rest) == len(update.artifact.extra):
        return update
    artifact = replace(update.artifact, extra=rest)
    return replace(update, artifact=artifact, append=bool(append), last_chunk=bool(last_chunk))


def _check_one_task(document: JsonObject) -> None:
    # Readers could disagree on which of two different ids counts.
    named = [document[name] for name in ("id", "taskId", "task_id") if document.get(name)]
    if any(name != named[0] for name in named):
        raise MismatchError("expected the same task in both", "id and taskId")
    if not named:
        raise MismatchError("expected, but missing", "id")


V0_1 = Dialect(
    read=_read_0_1,
    writers=_writers(WireVersion.V0_1)
    | {
        UpdateKind.TASK: _write_task_0_1,
        UpdateKind.MESSAGE: _write_message_0_1,
        UpdateKind.ARTIFACT_UPDATE: _write_artifact_0_1,
    },
)

# --- 0.3 -----------------------------------------------------------------------------------------


def _read_0_3(document: JsonObject, reading: Reading) -> TaskUpdate:
    kind = document.get("kind", "task")  # a task may lack it
    if not isinstance(kind, str) or not kind:
        raise MismatchError(f"expected a name, such as {', '.join(KNOWN_KINDS)}", "kind")
    if kind not in TABLES:
        known: dict[str, Any] = _UNKNOWN_0_3.read(document, reading)
        return UnknownUpdate(name=kind, extra=document, origin=WireVersion.V0_3, **known)
    found = TABLES[UpdateKind(kind)][WireVersion.V0_3].read(document, reading)
    return _update(UpdateKind(kind), found, WireVersion.V0_3)


V0_3 = Dialect(read=_read_0_3, writers=_writers(WireVersion.V0_3))

# --- 1.0 -----------------------------------------------------------------------------------------


def _of_response(found: dict[Any, Any], rest: JsonObject) -> TaskUpdate:
    if not found and (name := unknown_member(rest)) is not None:
        known: dict[str, Any] = _UNKNOWN_1_0.read(rest[name], Reading())
        return UnknownUpdate(name=name, extra=rest, origin=WireVersion.V1_0, **known)
    if len(found) != 1:
        raise MismatchError(
            "expected exactly one of task, message, statusUpdate and artifactUpdate"
        )
    kind, node = found.popitem()
    said = node.extra.get("kind")  # as 0.3 has it
    if said != kind and isinstance(said, str) and said in TABLES:
        raise AmbiguousError(f"{said} by the kind of A2A 0.3, and {PLACES[kind]} as in A2A 1.0")
    return _update(kind, node, WireVersion.V1_0, rest)


STREAM_RESPONSE = Table(  # §3.2.3
    dict,
    *(
        Member(kind, place, one(TABLES[kind][WireVersion.V1_0]), strict=True)
        for kind, place in PLACES.items()
    ),
    build=_of_response,
    extra="envelope_extra",
)


def _in_response(place: str, write: Writer) -> Writer:
    def write_in_response(update: Any, writing: Writing) -> JsonObject:
        try:
            document: JsonObject = {place: write(update, writing)}
        except MismatchError as exc:
            raise exc.inside(place) from None
        if writing.keep:
            STREAM_RESPONSE.write_extra(document, update, writing)
        return document

    return write_in_response


V1_0 = Dialect(
    read=STREAM_RESPONSE.read,
    writers={
        kind: _in_response(PLACES[kind], write) if kind in PLACES else write
        for kind, write in _writers(WireVersion.V1_0).items()
    },
)
