"""Bodies that mix members of A2A 0.3 and 1.0, as frameworks send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pushkit.a2a import (
    ArtifactUpdate,
    DataPart,
    Part,
    RawPart,
    Role,
    StatusUpdate,
    TaskSnapshot,
    TaskState,
    TextPart,
    UrlPart,
    WireVersion,
    decode_update,
    encode_update,
    parse_update,
)
from pushkit.errors import UnrecognisedBodyError

IDS = {"taskId": "t", "contextId": "c"}
# The contents of a part, as each version says them.
OF_0_3: list[dict[str, Any]] = [
    {"kind": "text", "text": "hi"},
    {"kind": "file", "file": {"uri": "https://x/y", "mimeType": "a/b", "name": "n"}},
    {"kind": "file", "file": {"bytes": "aGk="}},
    {"kind": "data", "data": {"x": 1}},
]
OF_1_0: list[dict[str, Any]] = [
    {"text": "hi"},
    {"url": "https://x/y", "mediaType": "a/b", "filename": "n"},
    {"raw": "aGk="},
    {"data": {"x": 1}},
]
PARTS: tuple[Part, ...] = (
    TextPart(text="hi"),
    UrlPart(url="https://x/y", media_type="a/b", filename="n"),
    RawPart(raw=b"hi"),
    DataPart(data={"x": 1}),
)


def read(document: object) -> Any:
    return decode_update(json.dumps(document).encode())


def artifact(*parts: Any) -> dict[str, Any]:
    return {**IDS, "artifact": {"artifactId": "a", "parts": list(parts)}, "lastChunk": True}


def contents(update: ArtifactUpdate) -> list[tuple[type, Any]]:
    names = ("text", "url", "raw", "data", "media_type", "filename")
    return [
        (type(part), [getattr(part, name, None) for name in names])
        for part in update.artifact.parts
    ]


EXPECTED = contents(read({"artifactUpdate": artifact(*OF_1_0)}))


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"artifactUpdate": artifact(*OF_0_3)}, id="parts of 0.3 in 1.0"),
        pytest.param(
            {"artifactUpdate": {"kind": "artifact-update", **artifact(*OF_0_3)}},
            id="events of 0.3 in 1.0, as fasta2a",
        ),
        pytest.param(
            {"kind": "artifact-update", **artifact(*OF_1_0)}, id="parts of 1.0 in 0.3, as LangGraph"
        ),
        pytest.param(
            {"kind": "artifact-update", **artifact(*OF_0_3[:1], *OF_1_0[1:])}, id="both in 0.3"
        ),
        pytest.param(
            {
                "artifactUpdate": artifact(
                    *(
                        {"kind": kind, **part}
                        for kind, part in zip(("text", "file", "file", "data"), OF_1_0, strict=True)
                    )
                )
            },
            id="both in each part",
        ),
    ],
)
def test_a_mixture_is_read_as_each_version_would_be(document: Any) -> None:
    assert contents(read(document)) == EXPECTED
    assert contents(parse_update(document)) == EXPECTED  # type: ignore[arg-type]


def test_a_status_of_fasta2a_is_read() -> None:
    message = {"kind": "message", "role": "agent", "messageId": "m", "parts": OF_0_3}
    status = {"state": "completed", "message": message}
    event = {"kind": "status-update", **IDS, "status": status, "final": True}
    update = read({"statusUpdate": event})
    assert isinstance(update, StatusUpdate)
    assert (update.origin, update.state, update.is_final) == ("1.0", TaskState.COMPLETED, True)
    assert update.status.message is not None
    assert update.status.message.role is Role.AGENT
    assert len(update.status.message.parts) == len(PARTS)


def test_a_task_of_langgraph_is_read() -> None:
    message = {"role": "ROLE_AGENT", "messageId": "m", "parts": OF_1_0}
    status = {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}
    update = read({"kind": "task", "id": "t", "contextId": "c", "status": status})
    assert isinstance(update, TaskSnapshot)
    assert update.state is TaskState.INPUT_REQUIRED
    assert update.task.status.message is not None
    assert update.task.status.message.parts == PARTS


def test_what_was_mixed_is_written_in_one_version() -> None:
    update = read({"kind": "artifact-update", **artifact(*OF_1_0)})
    written = json.loads(encode_update(update, WireVersion.V0_3))
    assert written["artifact"]["parts"] == OF_0_3
    update = read({"artifactUpdate": artifact(*OF_0_3[1:3])})
    written = json.loads(encode_update(update, WireVersion.V1_0))
    assert written["artifactUpdate"]["artifact"]["parts"] == OF_1_0[1:3]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            {"kind": "status-update", "statusUpdate": {**IDS, "status": {"state": "working"}}},
            id="a kind beside the envelope",
        ),
        pytest.param(
            {"statusUpdate": {"kind": "task", **IDS, "status": {"state": "working"}}},
            id="another kind in the envelope",
        ),
        pytest.param(
            {"artifactUpdate": artifact({"kind": "text", "url": "https://x"})},
            id="another kind than the content",
        ),
        pytest.param(
            {
                "kind": "artifact-update",
                **artifact({"kind": "text", "text": "a", "url": "https://x"}),
            },
            id="a second content in 0.3",
        ),
        pytest.param(
            {"artifactUpdate": artifact({"kind": "file", "file": {"uri": "a"}, "url": "b"})},
            id="two files",
        ),
    ],
)
def test_what_is_ambiguous_is_refused_and_both_versions_are_named(document: Any) -> None:
    with pytest.raises(UnrecognisedBodyError, match=r"A2A 0\.3.*A2A 1\.0"):
        read(document)


@pytest.mark.parametrize("kind", [["text"], {"a": 1}, 7, None, "form"])
def test_a_kind_of_no_version_is_no_contradiction(kind: Any) -> None:
    update = read({"artifactUpdate": artifact({"kind": kind, "text": "hi"})})
    assert isinstance(update.artifact.parts[0], TextPart)
    read({"kind": "artifact-update", **artifact({"kind": kind, "text": "hi"})})
