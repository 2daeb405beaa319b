"""The table of docs/versions.md: what a version cannot say, found out and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    Authentication,
    DataPart,
    Message,
    MessageUpdate,
    Part,
    PushConfig,
    RawPart,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UnknownPart,
    WireVersion,
    decode_update,
    encode_update,
    format_push_config,
    parse_push_config,
    parse_update,
)
from pushkit.errors import InvalidUpdateError
from tests.contract.pages import table

COLUMNS = [WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0, WireVersion.AGENTVAULT_0_2]
URL = "https://client.example/hook"


UPDATES, CONFIGS = (
    {name: cells for name, *cells in table("versions.md", f"| {title} | in 0.1 |")}
    for title in ("neutral", "config")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """An update that says something, and how to find what became of it."""

    update: TaskUpdate
    find: Callable[[Any], Any]


MESSAGE = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="hi"),))
STATUS = TaskStatus(state=TaskState.WORKING)
TASK = Task(id="t", context_id="c", status=STATUS)
ARTIFACT = Artifact(artifact_id="a", name="n", parts=(TextPart(text="hi"),))


def status(**changes: Any) -> StatusUpdate:
    return StatusUpdate(task_id="t", context_id="c", status=STATUS, **changes)


def in_state(state: TaskState) -> Probe:
    update = StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=state))
    return Probe(update=update, find=lambda found: found.state)


def said(find: Callable[[Message], Any], **changes: Any) -> Probe:
    message = replace(MESSAGE, **changes)
    update = replace(status(), status=replace(STATUS, message=message))
    return Probe(update=update, find=lambda found: find(found.status.message))


def of_task(find: Callable[[Task], Any], **changes: Any) -> Probe:
    def find_in(found: TaskUpdate) -> Any:
        # Of a whole task, AgentVault gets the status.
        return find(found.task) if isinstance(found, TaskSnapshot) else None

    return Probe(update=TaskSnapshot(task=replace(TASK, **changes)), find=find_in)


def produced(find: Callable[[Artifact], Any], *parts: Part, **changes: Any) -> Probe:
    artifact = replace(ARTIFACT, parts=parts or ARTIFACT.parts, **changes)
    update = ArtifactUpdate(task_id="t", context_id="c", artifact=artifact)
    return Probe(update=update, find=lambda found: find(found.artifact))


def part(attribute: str, one: Part) -> Probe:
    return produced(lambda found: getattr(found.parts[0], attribute), one)


RAW = UnknownPart(extra={"x": 1})
META = {"k": "v"}

PROBES: dict[str, Probe] = {
    "members that another version kept in `extra` and `envelope_extra`": Probe(
        update=replace(status(extra={"x": 1}), envelope_extra={"y": 1}),
        find=lambda found: (found.extra, found.envelope_extra),
    ),
    "state `rejected`": in_state(TaskState.REJECTED),
    "state `auth-required`": in_state(TaskState.AUTH_REQUIRED),
    "state `unknown`": in_state(TaskState.UNKNOWN),
    "role `unspecified` of a status message": said(lambda m: m.role, role=Role.UNSPECIFIED),
    "role `unspecified` of a message": Probe(
        update=MessageUpdate(message=replace(MESSAGE, task_id="t", role=Role.UNSPECIFIED)),
        find=lambda found: found.message.role,
    ),
    "id of a message": said(lambda m: m.message_id),
    "context and task of a status message": said(
        lambda m: (m.context_id, m.task_id), context_id="c", task_id="t"
    ),
    "extensions and references of a message": said(
        lambda m: (m.extensions, m.reference_task_ids), extensions=("e",), reference_task_ids=("r",)
    ),
    "metadata of a status message": said(lambda m: m.metadata, metadata=META),
    "parts of a status message": said(
        lambda m: m.parts, parts=(TextPart(text="a"), DataPart(data={}), TextPart(text="b"))
    ),
    "context of a task": of_task(lambda task: task.context_id),
    "context of a status or artifact": Probe(update=status(), find=lambda found: found.context_id),
    "a task without context": Probe(
        update=TaskSnapshot(task=replace(TASK, context_id=None)),
        find=lambda found: found.context_id or "none",
    ),
    "a status or artifact without context": Probe(
        update=replace(status(), context_id=None), find=lambda found: found.context_id or "none"
    ),
    "artifacts, history and metadata of a task": of_task(
        lambda task: (
            [[one.parts for one in each] for each in (task.artifacts, task.history)],
            task.metadata,
        ),
        artifacts=(ARTIFACT,),
        history=(MESSAGE,),
        metadata=META,
    ),
    "id of an artifact": produced(lambda artifact: artifact.artifact_id),
    "an artifact without id": produced(
        lambda artifact: artifact.artifact_id or "none", artifact_id=""
    ),
    "name of an artifact": produced(lambda artifact: artifact.name),
    "an artifact without name": produced(lambda artifact: artifact.name or "none", name=None),
    "description and extensions of an artifact": produced(
        lambda artifact: (artifact.description, artifact.extensions),
        description="d",
        extensions=("e",),
    ),
    "metadata of an artifact": produced(lambda artifact: artifact.metadata, metadata=META),
    "metadata of a status or artifact update": Probe(
        update=status(metadata=META), find=lambda found: found.metadata
    ),
    "generation of a task": Probe(update=status(generation=7), find=lambda found: found.generation),
    "an update of an unknown kind, read in 1.0": Probe(
        update=parse_update({"messageUpdate": {"taskId": "t"}}), find=lambda found: found.name
    ),
    "metadata of an artifact's part": part("metadata", TextPart(text="x", metadata=META)),
    "`append` and `last_chunk`": Probe(
        update=ArtifactUpdate(
            task_id="t", context_id="c", artifact=ARTIFACT, append=True, last_chunk=True
        ),
        find=lambda found: (found.append, found.last_chunk),
    ),
    "`final`": Probe(update=status(final=True), find=lambda found: found.final),
    "media type of a text or data part": part(
        "media_type", TextPart(text="x", media_type="text/x")
    ),
    "file name of an artifact's text or data part": part(
        "filename", TextPart(text="x", filename="x.txt")
    ),
    "data that is no object": part("data", DataPart(data=[1])),
    "a string as an artifact's data": produced(lambda artifact: artifact.parts, DataPart(data="s")),
    "bytes of an artifact": produced(lambda artifact: artifact.parts, RawPart(raw=b"x")),
    "several parts of an artifact": produced(
        lambda artifact: artifact.parts, TextPart(text="a"), TextPart(text="b")
    ),
    "a part of unknown shape, beside others": produced(
        lambda artifact: artifact.parts[1:], TextPart(text="a"), RAW
    ),
    "nothing but parts of unknown shape": produced(lambda artifact: artifact.parts or "none", RAW),
    "a message update": Probe(
        update=MessageUpdate(message=replace(MESSAGE, task_id="t")),
        find=lambda found: found.message.parts,
    ),
    "a message update without a task": Probe(
        update=MessageUpdate(message=MESSAGE), find=lambda found: found.message.parts
    ),
}

AUTHENTICATION = Authentication(schemes=("Bearer",), credentials="cred")
CONFIG_PROBES: dict[str, tuple[PushConfig, Callable[[PushConfig], Any]]] = {
    "`id`": (PushConfig(url=URL, id="i"), lambda config: config.id),
    "`token`": (PushConfig(url=URL, token="k"), lambda config: config.token),
    "`task_id`": (PushConfig(url=URL, task_id="t"), lambda config: config.task_id),
    "`tenant`": (PushConfig(url=URL, tenant="acme"), lambda config: config.tenant),
    "one authentication scheme, with credentials": (
        PushConfig(url=URL, authentication=AUTHENTICATION),
        lambda config: config.authentication,
    ),
    "several authentication schemes": (
        PushConfig(url=URL, authentication=replace(AUTHENTICATION, schemes=("Bearer", "Basic"))),
        lambda config: config.authentication,
    ),
    "authentication without a scheme": (
        PushConfig(url=URL, authentication=Authentication()),
        lambda config: config.authentication,
    ),
}


def says_nothing(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(says_nothing(item) for item in value)
    return value is None or value is False or value in ("", {})


def outcome(said: Any, found: Any) -> str:
    if found == said:
        return "kept"
    return "dropped" if says_nothing(found) else "as"


def test_every_row_has_a_probe() -> None:
    assert list(UPDATES) == list(PROBES)
    assert list(CONFIGS) == list(CONFIG_PROBES)


@pytest.mark.parametrize("version", COLUMNS)
@pytest.mark.parametrize("row", PROBES)
def test_an_update_loses_what_the_page_says(row: str, version: WireVersion) -> None:
    probe = PROBES[row]
    try:
        found = decode_update(encode_update(probe.update, version))
    except InvalidUpdateError:
        actual = "refused"
    else:
        assert found.origin is version
        actual = outcome(probe.find(probe.update), probe.find(found))
    assert UPDATES[row][COLUMNS.index(version)].split()[0] == actual


@pytest.mark.parametrize("version", COLUMNS)
@pytest.mark.parametrize("row", CONFIG_PROBES)
def test_a_config_loses_what_the_page_says(row: str, version: WireVersion) -> None:
    config, find = CONFIG_PROBES[row]
    found = parse_push_config(format_push_config(config, version), version)
    actual = outcome(find(config), find(found))
    assert CONFIGS[row][COLUMNS.index(version)].split()[0] == actual
