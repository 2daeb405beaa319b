"""Optional members of a wrong type: left out, unless the update would mean something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pushkit.a2a import StatusUpdate, decode_update
from pushkit.errors import UnrecognisedBodyError

_MESSAGE: dict[str, Any] = {
    "messageId": "m",
    "role": "agent",
    "parts": [{"text": "hi", "metadata": {}, "filename": "a", "mediaType": "text/plain"}],
    "contextId": "c",
    "taskId": "t",
    "referenceTaskIds": ["u"],
    "extensions": ["https://example.com/x"],
    "metadata": {},
}
_ARTIFACT: dict[str, Any] = {
    "artifactId": "a",
    "name": "n",
    "description": "d",
    "parts": [{"url": "https://example.com/f", "mediaType": "text/plain"}],
    "extensions": ["https://example.com/x"],
    "metadata": {},
}
_STATUS = {"state": "completed", "timestamp": "2026-01-02T03:04:05Z", "message": _MESSAGE}
_TASK = {
    "id": "t",
    "contextId": "c",
    "status": _STATUS,
    "artifacts": [_ARTIFACT],
    "history": [_MESSAGE],
    "metadata": {},
}
_EVENT = {"taskId": "t", "contextId": "c", "metadata": {}}
_FILE = {"bytes": "QQ==", "mimeType": "text/plain", "name": "f"}
_OLD_PARTS: list[dict[str, Any]] = [{"text": "hi", "metadata": {}}, {"file": _FILE, "metadata": {}}]


def _old(value: Any, discriminator: str) -> Any:
    """Return an object of 1.0 with the parts of an earlier version."""
    if isinstance(value, list):
        return [_old(each, discriminator) for each in value]
    if not isinstance(value, dict):
        return value
    changed = {name: _old(each, discriminator) for name, each in value.items()}
    if "parts" in value:
        kinds: list[dict[str, Any]] = [{discriminator: "text"}, {discriminator: "file"}]
        changed["parts"] = [kinds[0] | _OLD_PARTS[0], kinds[1] | _OLD_PARTS[1]]
    return changed


DOCUMENTS: dict[str, Any] = {
    "1.0 task": {"task": _TASK},
    "1.0 message": {"message": _MESSAGE},
    "1.0 status": {"statusUpdate": _EVENT | {"status": _STATUS, "final": True}},
    "1.0 artifact": {
        "artifactUpdate": _EVENT | {"artifact": _ARTIFACT, "append": True, "lastChunk": True}
    },
    "0.3 task": _old({"kind": "task"} | _TASK, "kind"),
    "0.3 message": _old({"kind": "message"} | _MESSAGE, "kind"),
    "0.3 status": _old(
        {"kind": "status-update", "status": _STATUS, "final": True} | _EVENT, "kind"
    ),
    "0.3 artifact": _old(
        {"kind": "artifact-update", "artifact": _ARTIFACT, "append": True, "lastChunk": True}
        | _EVENT,
        "kind",
    ),
    "0.1 task": _old(
        {
            "id": "t",
            "sessionId": "c",
            "status": {
                "state": "completed",
                "timestamp": "2026-01-02T03:04:05Z",
                "message": {"role": "agent", "parts": [], "metadata": {}},
            },
            "history": [{"role": "agent", "parts": [], "metadata": {}}],
            "artifacts": [{"name": "n", "description": "d", "parts": [], "metadata": {}}],
            "metadata": {},
        },
        "type",
    ),
    "0.1 status": {"id": "t", "status": {"state": "completed"}, "final": True, "metadata": {}},
    "0.1 artifact": {
        "id": "t",
        "artifact": {"name": "n", "parts": [], "index": 0, "append": True, "lastChunk": True},
        "metadata": {},
    },
    "AgentVault status": {
        "taskId": "t",
        "state": "COMPLETED",
        "timestamp": "2026-01-02T03:04:05Z",
        "message": "done",
    },
    "AgentVault message": {
        "taskId": "t",
        "message": {
            "role": "assistant",
            "parts": [{"type": "text", "content": "hi", "mediaType": "a/b", "metadata": {}}],
            "metadata": {},
        },
    },
    "AgentVault artifact": {
        "taskId": "t",
        "artifact": {"id": "a", "type": "file", "url": "u", "mediaType": "a/b", "metadata": {}},
    },
}
# Without these, an update would be about something else, or say something else.
MEANING = {
    *("task", "statusUpdate", "artifactUpdate", "status", "artifact", "state", "final"),
    *("id", "taskId", "artifactId", "index", "append", "lastChunk"),
    *("parts", "text", "url", "file", "bytes"),
}
# Without it, nothing says that the document is of AgentVault.
SHAPE = [("AgentVault status", ("state",)), ("AgentVault message", ("message",))]
# Of a part: with any other value it is a part of unknown kind.
DISCRIMINATORS = {"kind", "type", "content"}


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each member, and of each item of a list."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for step, child in steps:
        yield (*path, step)
        if isinstance(child, dict | list):
            yield from places(child, *path, step)


def can_be_left_out(name: str, step: Any) -> bool:
    is_subject = step == "message" and name.endswith("message")
    return isinstance(step, str) and step not in MEANING and not is_subject


CASES = [
    pytest.param(name, path, id=f"{name}, {'.'.join(map(str, path))}")
    for name, document in DOCUMENTS.items()
    for path in places(document)
    if path[-1] not in DISCRIMINATORS or (name == "AgentVault artifact" and path[-1] == "type")
]


@pytest.mark.parametrize(("name", "path"), CASES)
def test_a_member_of_a_wrong_type_is_left_out_unless_it_changes_the_meaning(
    name: str, path: tuple[Any, ...]
) -> None:
    document = json.loads(json.dumps(DOCUMENTS[name]))
    whole = decode_update(json.dumps(document).encode())
    *steps, last = path
    place = document
    for step in steps:
        place = place[step]
    place[last] = "wrong" if isinstance(place[last], dict) else {"wrong": 1}

    if not any(can_be_left_out(name, step) for step in path):
        with pytest.raises(UnrecognisedBodyError) as refusal:
            decode_update(json.dumps(document).encode())
        where = f"{'.'.join(map(str, path))}: expected"
        assert str(refusal.value).startswith("no notification" if (name, path) in SHAPE else where)
        assert "wrong" not in f"{refusal.value} {refusal.value.__cause__}"
        return
    update = decode_update(json.dumps(document).encode())

    assert (update.task_id, update.state) == (whole.task_id, whole.state)
    assert whole.left_out == ()
    (left_out,) = update.left_out
    assert "expected" in left_out
    assert "wrong" not in left_out


@pytest.mark.parametrize(
    ("said", "time"),
    [
        pytest.param(1764244371, "2025-11-27T11:52:51+00:00", id="seconds"),
        pytest.param(1764244371.25, "2025-11-27T11:52:51.250+00:00", id="fraction"),
        pytest.param(10**11 - 1, "5138-11-16T09:46:39+00:00", id="last seconds"),
        pytest.param(10**11, "1973-03-03T09:46:40+00:00", id="first milliseconds"),
        pytest.param(1764244371250, "2025-11-27T11:52:51.250+00:00", id="milliseconds"),
        pytest.param(0, "1970-01-01T00:00:00+00:00", id="zero"),
        pytest.param(-1, "1969-12-31T23:59:59+00:00", id="before 1970"),
        pytest.param(10**400, None, id="no time"),
        pytest.param(1e300, None, id="no time, a fraction"),
        pytest.param(True, None, id="flag"),
        pytest.param([2025, 11, 27], None, id="list"),
        pytest.param("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+00:00", id="Z"),
        pytest.param("2026-01-02t03:04:05z", "2026-01-02T03:04:05+00:00", id="lower case"),
        pytest.param("2026-01-02T03:04:05+00:00", "2026-01-02T03:04:05+00:00", id="offset"),
        pytest.param("2026-01-02T03:04:05.5-02:00", "2026-01-02T05:04:05.500+00:00", id="west"),
        pytest.param("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456+00:00", id="ns"),
        pytest.param("2026-01-02T03:04:05.1", "2026-01-02T03:04:05.100+00:00", id="no offset"),
        pytest.param("2026-02-30T03:04:05Z", None, id="no such day"),
        pytest.param("9999-12-31T23:59:59-10:00", None, id="out of range"),
        pytest.param("yesterday", None, id="no timestamp"),
        pytest.param("\uff12026-01-02T03:04:05Z", None, id="other digits"),
    ],
)
@pytest.mark.parametrize("name", ["1.0 status", "0.3 status", "0.1 status", "AgentVault status"])
def test_a_time_is_a_timestamp_or_a_number_of_seconds_or_milliseconds(
    name: str, said: Any, time: str | None
) -> None:
    document = json.loads(json.dumps(DOCUMENTS[name]))
    event = document.get("statusUpdate", document)
    event.get("status", event)["timestamp"] = said

    update = decode_update(json.dumps(document).encode())

    assert isinstance(update, StatusUpdate)
    assert update.status.timestamp == (time and datetime.fromisoformat(time))
    assert bool(update.left_out) == (time is None)


def test_many_members_of_a_wrong_type_are_named_within_a_limit() -> None:
    message = _MESSAGE | {"extensions": ["x"] * 40}
    history = [message | {"extensions": [*["x"] * n, 1]} for n in range(40)]
    body = json.dumps({"task": _TASK | {"history": history}}).encode()

    assert len(decode_update(body).left_out) == 16
