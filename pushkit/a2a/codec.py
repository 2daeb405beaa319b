"""The codec: decodes a notification's bytes, and encodes an update for a version.

Few senders name the version of a notification, and its content type is not reliable (the Python SDK
sends 1.0 as `application/json`), so the shape of the body determines the version, unless the body
can be read in the version that its sender states.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from pushkit.a2a.agentvault import AGENTVAULT
from pushkit.a2a.kinds import format_timestamp
from pushkit.a2a.members import MESSAGE
from pushkit.a2a.notifications import PLACES, V0_1, V0_3, V1_0, unknown_member
from pushkit.a2a.table import Dialect, MismatchError, Reading, Writing, json_copy, reading
from pushkit.a2a.updates import (
    KNOWN_KINDS,
    AnyUpdate,
    ArtifactUpdate,
    Message,
    MessageUpdate,
    NativeUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskStatus,
    TaskUpdate,
    UnknownUpdate,
    UpdateKind,
    WireVersion,
)
from pushkit.bounded_json import JsonObject, JsonValue, read_json, write_json
from pushkit.errors import (
    InvalidUpdateError,
    MalformedBodyError,
    MalformedJsonError,
    SnapshotRequiredError,
    UnrecognisedBodyError,
    UnsupportedVersionError,
)
from pushkit.options import check_type

DIALECTS: dict[WireVersion, Dialect] = {
    WireVersion.V0_1: V0_1,
    WireVersion.V0_3: V0_3,
    WireVersion.V1_0: V1_0,
    WireVersion.AGENTVAULT_0_2: AGENTVAULT,
}
_WITHOUT_IDS = (WireVersion.V0_1, WireVersion.AGENTVAULT_0_2)


def decode_update(body: bytes, stated: str | None = None) -> TaskUpdate:
    """Decode the body of a notification of any version; the caller bounds its length.

    Optional members of a wrong type are left out, and named in the update's `left_out`, except
    those that change the meaning. A kind that no version has is read as `UnknownUpdate`.

    Args:
        body: The body.
        stated: The version that its sender states (`A2A-Version`), if any. It is preferred; if the
            body is not of it, the shape determines the version, and `misstated` says so.

    Raises:
        MalformedBodyError: Not JSON within the limits.
        UnrecognisedBodyError: JSON, but not a notification of a known version.
    """
    check_type("body", body, bytes)
    check_type("stated", stated, str | None)
    try:
        document = read_json(body)
    except MalformedJsonError as exc:
        raise MalformedBodyError(str(exc)) from exc
    if not isinstance(document, dict):
        raise UnrecognisedBodyError(f"expected a JSON object; {_KNOWN_SHAPES}")
    try:
        if stated is None:
            return _read(document, _version_by_shape(document))
        return _read_as_stated(document, stated)
    except MismatchError as exc:
        raise UnrecognisedBodyError(str(exc)) from exc


def _read_as_stated(document: JsonObject, stated: str) -> TaskUpdate:
    """Read a notification in the version that is stated, or else in the one of its shape."""
    version = None
    with contextlib.suppress(UnsupportedVersionError):
        version = WireVersion.parse(stated)
    # What has a `kind`, or is a StreamResponse, names its version itself.
    names_itself = "kind" in document or _is_v1_0(document)
    if version not in (None, WireVersion.V1_0) and not names_itself:
        with contextlib.suppress(MismatchError):
            return _read(document, version)
    update = _read(document, _version_by_shape(document))
    return update if update.origin is version else replace(update, misstated=stated)


def parse_update(
    document: Mapping[str, JsonValue], version: WireVersion | None = None
) -> TaskUpdate:
    """Read a notification from parsed JSON, which is copied.

    If no version is given, the shape determines it.

    Raises:
        UnrecognisedBodyError: Not a notification of that version, or of any; or not JSON.
    """
    with reading(UnrecognisedBodyError):
        copy = json_copy(document)
        return _read(copy, version or _version_by_shape(copy))


def _read(document: JsonObject, version: WireVersion) -> TaskUpdate:
    """Read a notification as far as its optional members can be read."""
    tolerant = Reading()
    update = DIALECTS[version].read(document, tolerant)
    return replace(update, left_out=tuple(tolerant.left_out)) if tolerant.left_out else update


def encode_update(
    update: TaskUpdate, version: WireVersion, *, now: datetime | None = None
) -> bytes:
    """Encode an update as compact UTF-8 JSON.

    `now` is the time for AgentVault's events that have none.

    Raises:
        InvalidUpdateError: A member that the version requires is missing, or a value is not JSON.
    """
    writing = Writing(update.origin is version)
    try:
        if update.origin in _WITHOUT_IDS and version not in _WITHOUT_IDS:
            update = _with_ids(update)
        document = DIALECTS[version].writers[update.kind](update, writing)
        if now is not None and version is WireVersion.AGENTVAULT_0_2:
            document.setdefault("timestamp", format_timestamp(now))
        return write_json(document, foreign=writing.foreign)
    except (MismatchError, ValueError) as exc:
        raise InvalidUpdateError(str(exc)) from exc


# The versions in which an update is sent as the whole task: in 0.3 always (§9.5), in 0.1, which has
# notifications of a task or its status (§9.4), for artifacts and messages. Without the whole task,
# `push_body` can write a status in 0.3, but no artifact and no message.
SNAPSHOT_VERSIONS: dict[UpdateKind, frozenset[WireVersion]] = {
    UpdateKind.TASK: frozenset(),
    UpdateKind.STATUS_UPDATE: frozenset({WireVersion.V0_3}),
    UpdateKind.ARTIFACT_UPDATE: frozenset({WireVersion.V0_1, WireVersion.V0_3}),
    UpdateKind.MESSAGE: frozenset({WireVersion.V0_1, WireVersion.V0_3}),
    UpdateKind.UNKNOWN: frozenset({WireVersion.V0_1, WireVersion.V0_3}),
}


def push_body(
    update: AnyUpdate,
    version: WireVersion,
    snapshot: Task | None = None,
    *,
    now: datetime | None = None,
) -> bytes:
    """Encode the notification of an update for a subscription of a version.

    In 1.0 it is the update itself (§4.3.3), in 0.3 the whole task: see `SNAPSHOT_VERSIONS`. For 0.3
    a status alone is enough: a task without history and artifacts, which the client gets by
    `tasks/get`.

    Args:
        update: The update. A `NativeUpdate` is written in its own version without being read.
        version: The version of the subscription.
        snapshot: The task after the update, if the version needs it.
        now: The time for AgentVault's events that have none.

    Raises:
        SnapshotRequiredError: The version sends whole tasks, there is no snapshot, and the update
            has no status.
        InvalidUpdateError: The update cannot be written, or the snapshot is of another task.
    """
    if snapshot is not None and update.task_id not in (None, snapshot.id):
        raise InvalidUpdateError("snapshot: expected the task that the update is about")
    is_whole = version in SNAPSHOT_VERSIONS[update.kind]
    if isinstance(update, NativeUpdate):
        if version is update.version and not is_whole:
            return update.body
        update = update.neutral
    if not is_whole:
        return encode_update(update, version, now=now)
    if snapshot is not None:
        return encode_update(TaskSnapshot(task=snapshot), version)
    if isinstance(update, StatusUpdate):
        task = Task(id=update.task_id, context_id=update.context_id, status=update.status)
        return encode_update(TaskSnapshot(task=task, origin=update.origin), version)
    raise SnapshotRequiredError(
        f"A2A {version} notifications carry the whole task, found {update.kind}: pass snapshot="
    )


# --- ids that 0.1 and AgentVault lack, and 0.3 and 1.0 require -----------------------------------


def _with_ids(update: TaskUpdate) -> TaskUpdate:
    """Return an update with the ids that it lacks.

    A message's id is derived from its content, so that it is the same when the message is sent
    again. A task without a context is its own context.
    """
    match update:
        case TaskSnapshot(task=task):
            history = tuple(_identified(message) for message in task.history)
            context_id, status = task.context_id or task.id, _with_identified(task.status)
            task = replace(task, context_id=context_id, status=status, history=history)
            return replace(update, task=task)
        case StatusUpdate():
            context_id = update.context_id or update.task_id
            return replace(update, context_id=context_id, status=_with_identified(update.status))
        case ArtifactUpdate():
            return replace(update, context_id=update.context_id or update.task_id)
        case MessageUpdate():
            return replace(update, message=_identified(update.message))
        case UnknownUpdate():
            return update


def _with_identified(status: TaskStatus) -> TaskStatus:
    return replace(status, message=_identified(status.message)) if status.message else status


def _identified(message: Message) -> Message:
    if message.message_id:
        return message
    # The copy is pure JSON, whose names can be sorted.
    written = json_copy(MESSAGE[WireVersion.V0_1].write(message, Writing(True)))
    content = json.dumps(written, sort_keys=True)
    return replace(message, message_id=f"msg-{hashlib.sha256(content.encode()).hexdigest()[:32]}")


# --- version by shape --------------------------------------------------------------------------

_V1_0_SPELLINGS = {*PLACES.values(), "status_update", "artifact_update"}
# Top-level members of other formats: AgentVault's `{taskId, message}` is not a StreamResponse.
_NOT_V1_0_MEMBERS = {"kind", "id", "taskId"}

_KNOWN_SHAPES = (
    f"known are A2A 1.0 (exactly one of {', '.join(PLACES.values())}),"
    f" A2A 0.3 (a kind, such as {', '.join(KNOWN_KINDS)}; or a task with id, contextId and status),"
    " A2A 0.1 (id or taskId, and status or artifact),"
    " AgentVault (taskId, and state, message or artifact),"
    " and kinds that no version has (in one object with a taskId)"
)


def _is_v1_0(document: Mapping[str, JsonValue]) -> bool:
    if not _NOT_V1_0_MEMBERS.isdisjoint(document):
        return False
    # In ProtoJSON, null is the same as absent.
    found = [name for name in document if name in _V1_0_SPELLINGS and document[name] is not None]
    return len(found) == 1


def _is_v0_3(document: Mapping[str, JsonValue]) -> bool:
    if "kind" in document:
        return isinstance(document["kind"], str) and document["kind"] != ""
    # A task may lack `kind`. 0.1 calls the context a session, and its status has both ids.
    task = "id" in document and "status" in document and not any(map(document.get, _OF_V0_1))
    return task and ("contextId" in document or "context_id" in document)


_OF_V0_1 = ("sessionId", "taskId")


def _is_agentvault(document: Mapping[str, JsonValue]) -> bool:
    if "taskId" not in document or not _OF_V0_1_OR_V0_3.isdisjoint(document):
        return False
    artifact = document.get("artifact")
    if artifact is not None:
        # An artifact of 0.1 has parts.
        return isinstance(artifact, dict) and "parts" not in artifact
    return isinstance(document.get("state"), str) or isinstance(document.get("message"), dict)


_OF_V0_1_OR_V0_3 = frozenset({"kind", "id", "status"})


def _is_v0_1(document: Mapping[str, JsonValue]) -> bool:
    if "kind" in document or _is_v0_3(document) or _is_agentvault(document):
        return False
    addressed = "id" in document or "taskId" in document
    return addressed and ("status" in document or "artifact" in document)


# Each body that pushkit writes has exactly one of these shapes.
SHAPES: tuple[tuple[WireVersion, Callable[[Mapping[str, JsonValue]], bool]], ...] = (
    (WireVersion.V1_0, _is_v1_0),
    (WireVersion.V0_3, _is_v0_3),
    (WireVersion.AGENTVAULT_0_2, _is_agentvault),
    (WireVersion.V0_1, _is_v0_1),
)


def _version_by_shape(document: Mapping[str, JsonValue]) -> WireVersion:
    for name in _V1_0_SPELLINGS.intersection(document) if "kind" in document else ():
        # A later kind may have a task or a message; the other names are of 1.0 alone.
        is_mixed = document["kind"] in KNOWN_KINDS or name not in ("task", "message")
        if is_mixed and isinstance(document[name], dict):
            raise UnrecognisedBodyError(
                f"kind is a member of A2A 0.3, {name} of A2A 1.0: expected one of the two"
            )
    for version, has_shape in SHAPES:
        if has_shape(document):
            return version
    if unknown_member(document) and not any(map(document.get, _V1_0_SPELLINGS)):
        return WireVersion.V1_0
    raise UnrecognisedBodyError(f"no notification; {_KNOWN_SHAPES}")
