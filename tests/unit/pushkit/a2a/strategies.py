"""Small objects; Hypothesis strategies: neutral updates, and the members of documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Part,
    RawPart,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UrlPart,
    WireVersion,
    decode_update,
    encode_update,
)
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidUpdateError

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
AGENTVAULT = WireVersion.AGENTVAULT_0_2
VECTORS = Path(__file__).parents[3] / "vectors"


STATUS = TaskStatus(state=TaskState.WORKING)
MESSAGE = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="hi"),))
ARTIFACT = Artifact(artifact_id="a", parts=(TextPart(text="hi"),))


def body(document: object) -> bytes:
    return json.dumps(document).encode()


slow_to_draw = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

# --- neutral updates ---------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.text("abcXYZ019-é", min_size=1, max_size=6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values: st.SearchStrategy[JsonValue] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
objects: st.SearchStrategy[Mapping[str, JsonValue]] = st.dictionaries(names, values, max_size=2)
timestamps = st.none() | st.datetimes(timezones=st.just(UTC))


def parts(version: WireVersion) -> st.SearchStrategy[Part]:
    # 0.1 and 0.3 have no media type or name for text and data.
    everywhere = {"media_type": st.none() | names, "filename": st.none() | names}
    of_content = {} if version in (V0_1, V0_3) else everywhere
    data = values.filter(lambda value: value is not None) if version is AGENTVAULT else values
    return st.one_of(
        st.builds(TextPart, text=texts, metadata=objects, **of_content),
        st.builds(DataPart, data=data, metadata=objects, **of_content),
        st.builds(RawPart, raw=st.binary(max_size=5), metadata=objects, **everywhere),
        st.builds(UrlPart, url=texts, metadata=objects, **everywhere),
    )


def messages(version: WireVersion) -> st.SearchStrategy[Message]:
    members: dict[str, Any] = {
        "role": st.sampled_from([Role.USER, Role.AGENT]),
        "parts": tuples(parts(version), min_size=1),
        "metadata": objects,
    }
    if version is V0_1:
        return st.builds(Message, message_id=st.just(""), **members)
    if version is AGENTVAULT:
        return st.builds(Message, message_id=st.just(""), task_id=names, **members)
    return st.builds(
        Message,
        message_id=names,
        context_id=st.none() | names,
        task_id=st.none() | names,
        reference_task_ids=tuples(names),
        extensions=tuples(texts),
        **members,
    )


def tuples(items: st.SearchStrategy[Any], min_size: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=min_size, max_size=2).map(tuple)


def artifacts(version: WireVersion) -> st.SearchStrategy[Artifact]:
    members: dict[str, Any] = {
        "parts": tuples(parts(version), min_size=1),
        "name": st.none() | names,
        "description": st.none() | names,
        "metadata": objects,
    }
    if version is V0_1:
        return st.builds(Artifact, artifact_id=st.integers(-3, 2**40).map(str), **members)
    return st.builds(Artifact, artifact_id=names, extensions=tuples(texts), **members)


def statuses(version: WireVersion) -> st.SearchStrategy[TaskStatus]:
    states = set(TaskState)
    if version is V0_1:  # which has no name for these
        states -= {TaskState.REJECTED, TaskState.AUTH_REQUIRED}
    return st.builds(
        TaskStatus,
        state=st.sampled_from(sorted(states)),
        message=st.none() | messages(version),
        timestamp=timestamps,
    )


def snapshots(version: WireVersion) -> st.SearchStrategy[TaskSnapshot]:
    tasks = st.builds(
        Task,
        id=names,
        status=statuses(version),
        context_id=names if version is V0_3 else st.none() | names,
        artifacts=tuples(artifacts(version)),
        history=tuples(messages(version)),
        metadata=objects,
    )
    return st.builds(TaskSnapshot, task=tasks)


def updates(version: WireVersion) -> st.SearchStrategy[TaskUpdate]:
    of_event: dict[str, Any] = {"task_id": names, "metadata": objects}
    if version is not V0_1:
        of_event["context_id"] = names
    sent = st.one_of(
        snapshots(version),
        st.builds(
            StatusUpdate,
            status=statuses(version),
            final=st.none() if version is V1_0 else st.booleans(),
            **of_event,
        ),
        st.builds(
            ArtifactUpdate,
            artifact=artifacts(version),
            append=st.booleans(),
            last_chunk=st.booleans(),
            **of_event,
        ),
    )
    if version is V0_1:
        return sent
    return sent | st.builds(MessageUpdate, message=messages(version))


# --- wire documents ----------------------------------------------------------------------------

unknown = st.dictionaries(names.map("x-{}".format), values, max_size=2)
moments = st.sampled_from(
    [
        None,
        "",
        "soon",
        "2026-01-01T00:00:00Z",
        "2026-01-01t00:00:00.5z",
        "2026-01-01T00:00:00.000000000+00:00",
        "2026-01-01T00:00:00.123456789-11:30",
        "2026-01-01 00:00:00.1234",
        "2016-12-31T23:59:60Z",
        "0001-01-01T00:00:00+14:00",
    ]
)
# Present and empty, or with a value.
optional_text = st.sampled_from([None, "", "some"])
optional_list = st.sampled_from([None, [], ["some"]])
optional_object = st.none() | objects
base64s = st.sampled_from(["", "QQ==", "QQ", "_-8", "/+8="])


def wire(
    required: Mapping[str, st.SearchStrategy[Any]], optional: Mapping[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    known = st.fixed_dictionaries(dict(required), optional=dict(optional))
    return st.builds(lambda members, others: members | others, known, unknown)


def members_of_nobody(value: Any, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the unknown members of a document, each with its place."""
    if not isinstance(value, dict | list):
        return
    for step, child in value.items() if isinstance(value, dict) else enumerate(value):
        if str(step).startswith("x-"):
            yield (*path, step), child
        else:
            yield from members_of_nobody(child, *path, step)


def check_a_round_trip(document: Mapping[str, Any], version: WireVersion) -> None:
    """Check that known members come back with equal values, and unknown ones unchanged."""
    update = decode_update(json.dumps(document).encode())
    assert update.origin is version
    try:
        written = encode_update(update, version)
    except InvalidUpdateError as refusal:
        # A role, or a state of AgentVault, that has no name that is known.
        member = str(refusal).removesuffix(": expected a value that is not empty")
        assert member.endswith(("role", "state"))
        return
    assert decode_update(written) == replace(update, left_out=())
    assert dict(members_of_nobody(json.loads(written))) == dict(members_of_nobody(document))


def without_nulls(value: Any) -> Any:
    """Return a document without the members that are null."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(item) for name, item in value.items() if item is not None}
