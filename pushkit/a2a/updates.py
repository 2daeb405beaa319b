"""The neutral updates of a task, independent of the A2A version, and the objects in them.

Every object keeps unknown members in `extra`. They are written back when an update is encoded in
the version that it was decoded from (`origin`), and dropped in any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from pushkit.bounded_json import JsonValue
from pushkit.errors import UnsupportedVersionError
from pushkit.record import field, record


class _Name(StrEnum):
    """A name that is looked up for every update, with the hash of its text."""

    # An enum's own `__hash__` hashes its name, and is slow: it runs in Python.
    __hash__ = str.__hash__


class WireVersion(_Name):
    """A version of the A2A wire format; patch releases of a version share one format."""

    V0_1 = "0.1"
    V0_3 = "0.3"
    V1_0 = "1.0"
    AGENTVAULT_0_2 = "agentvault-0.2"
    """AgentVault's profile 0.2, which is not a version of A2A itself."""

    @classmethod
    def parse(cls, text: str) -> WireVersion:
        """Read a version as agents declare it: `0.2.5`, `0.3`, `1`, `1.0.1`, `agentvault-0.2`.

        Raises:
            UnsupportedVersionError: Not a version that pushkit supports.
        """
        profile, dash, plain = text.strip().lower().rpartition("-")
        numbers = _VERSION.fullmatch(plain)
        family = (profile + dash, numbers["major"], numbers["minor"] or "0") if numbers else None
        version = _FAMILIES.get(family) if family else None
        if version is None:
            raise UnsupportedVersionError(
                f"A2A version {text[:20]!r} is not supported;"
                " supported are 0.1, 0.2, 0.3 and 1.0, and agentvault-0.2"
            )
        return version

    @property
    def content_type(self) -> str:
        """The media type of a notification's body (A2A 1.0.1 §4.3.3)."""
        return "application/a2a+json" if self is WireVersion.V1_0 else "application/json"


_LONGEST_VERSION = 16  # characters
_VERSION = re.compile(r"(?P<major>\d{1,3})(?:\.(?P<minor>\d{1,3}))?(?:\.\d{1,5})?", re.ASCII)
# A2A 0.2 and 0.3 have the same `Task`; 0.3 added members only outside of notifications.
_FAMILIES = {
    ("", "0", "1"): WireVersion.V0_1,
    ("", "0", "2"): WireVersion.V0_3,
    ("", "0", "3"): WireVersion.V0_3,
    ("", "1", "0"): WireVersion.V1_0,
    ("agentvault-", "0", "2"): WireVersion.AGENTVAULT_0_2,
}


class TaskState(_Name):
    """The states of a task, under their 0.3 names."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"
    REJECTED = "rejected"
    AUTH_REQUIRED = "auth-required"
    UNKNOWN = "unknown"

    @property
    def terminal(self) -> bool:
        """Whether the task has ended and will not change again."""
        return self in _TERMINAL

    @property
    def interrupted(self) -> bool:
        """Whether the task waits for its client."""
        return self in _INTERRUPTED


_TERMINAL = frozenset(
    {TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED, TaskState.REJECTED}
)
_INTERRUPTED = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
_FINAL = _TERMINAL | _INTERRUPTED


class Role(_Name):
    """Who wrote a message."""

    USER = "user"
    AGENT = "agent"
    UNSPECIFIED = "unspecified"


class UpdateKind(_Name):
    """The four things a notification can carry, under their 0.3 names, and what is newer."""

    TASK = "task"
    STATUS_UPDATE = "status-update"
    ARTIFACT_UPDATE = "artifact-update"
    MESSAGE = "message"
    UNKNOWN = "unknown"
    """A kind that no known version has: a later version's, or an extension's."""


KNOWN_KINDS = tuple(kind for kind in UpdateKind if kind is not UpdateKind.UNKNOWN)
"""The kinds that the known versions have."""


# --- parts -------------------------------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class _PartMembers:
    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class TextPart(_PartMembers):
    """Text."""

    text: str


@record(frozen=True, slots=True, kw_only=True)
class RawPart(_PartMembers):
    """A file by its bytes."""

    raw: bytes


@record(frozen=True, slots=True, kw_only=True)
class UrlPart(_PartMembers):
    """A file by its URL, as received: check it before you fetch it."""

    url: str


@record(frozen=True, slots=True, kw_only=True)
class DataPart(_PartMembers):
    """Structured data; in 1.0 any JSON value, in 0.3 an object."""

    data: JsonValue

    @property
    def schema_name(self) -> str | None:
        """The schema that the data declares, as `mimeType: application/json;schema=<name>`.

        It is in the part's metadata, as the extension says (v1 §2), or in the media type itself.
        """
        for declared in (self.metadata.get("mimeType"), self.media_type):
            found = _WITH_SCHEMA.fullmatch(declared) if isinstance(declared, str) else None
            if found is not None:
                return found["quoted"] or found["plain"]
        return None


_WITH_SCHEMA = re.compile(
    r"\s*application/json\s*;\s*schema=(?:\"(?P<quoted>[^\"\\]{1,256})\"|(?P<plain>[^\s;\"]{1,256}))\s*",
    re.ASCII | re.IGNORECASE,
)


@record(frozen=True, slots=True, kw_only=True)
class UnknownPart(_PartMembers):
    """A part whose content no known version describes; the content is in `extra`."""


Part: TypeAlias = TextPart | RawPart | UrlPart | DataPart | UnknownPart


class _WithParts:
    """An object that has parts, or brings them."""

    __slots__ = ()

    if TYPE_CHECKING:  # a dataclass would take a property for the default of its field

        @property
        def parts(self) -> tuple[Part, ...]: ...

    def text(self) -> str:
        """Return the text of its text parts, joined by line feeds; empty if it has none."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    def data_values(self) -> list[JsonValue]:
        """Return the values of its data parts, in order."""
        return [part.data for part in self.parts if isinstance(part, DataPart)]


# --- messages, artifacts, tasks ----------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class Message(_WithParts):
    """A message between client and agent."""

    message_id: str
    role: Role
    parts: tuple[Part, ...]
    context_id: str | None = None
    task_id: str | None = None
    reference_task_ids: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class Artifact(_WithParts):
    """An output of a task."""

    artifact_id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    extensions: tuple[str, ...] = ()
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The state of a task; `timestamp` is aware."""

    state: TaskState
    message: Message | None = None
    timestamp: datetime | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


@record(frozen=True, slots=True, kw_only=True)
class Task:
    """A whole task."""

    id: str
    status: TaskStatus
    context_id: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    generation: int | None = None  # how often it has changed: 1, 2, 3…, if the agent counts
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


# --- updates -----------------------------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class _UpdateMembers(_WithParts):
    # The version that the update was decoded from; None if it was made in this process.
    origin: WireVersion | None = None
    # Unknown members beside the update in 1.0's StreamResponse; 0.3 has no such envelope.
    envelope_extra: Mapping[str, JsonValue] = field(default_factory=dict)
    # The optional members that had a wrong type and were left out, by object, with the reason: how
    # it was read, not what it says, so that updates with and without are equal.
    left_out: tuple[str, ...] = field(default=(), compare=False)
    # The version that its sender stated, if the body is of another, or that one is not known.
    misstated: str | None = field(default=None, compare=False)
    kind: ClassVar[UpdateKind]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that it brings.

        Of a status update those of its message, of an artifact update those of the artifact or
        chunk, of a message its own; of a whole task those of its status's message, then those of
        its artifacts. The task's history is not among them.
        """
        raise NotImplementedError

    @property
    def shown_misstated(self) -> str | None:
        """`misstated` as it may be shown: what is longer than a version may be a secret."""
        stated = self.misstated
        if stated is None:
            return None
        return ascii(stated) if len(stated) <= _LONGEST_VERSION else f"{len(stated)} characters"

    @property
    def summary(self) -> str:
        """Its kind and version, which other version was stated, and what was left out."""
        misstated = self.shown_misstated
        stated = "" if misstated is None else f"; its sender states {misstated}"
        left_out = f"; left out: {', '.join(self.left_out)}" if self.left_out else ""
        return f"{self._name} of A2A {self.origin}{stated}{left_out}"

    @property
    def _name(self) -> str:
        return self.kind.value

    @property
    def is_partial(self) -> bool:
        """Whether the update is a chunk of an artifact that is not marked as the last."""
        return False

    @property
    def is_bare(self) -> bool:
        """Whether the update says only that the task is working."""
        return False


@record(frozen=True, slots=True, kw_only=True)
class TaskSnapshot(_UpdateMembers):
    """The whole task as it is now."""

    kind: ClassVar[UpdateKind] = UpdateKind.TASK
    task: Task

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its status's message, then those of its artifacts."""
        message = self.task.status.message
        of_artifacts = (part for artifact in self.task.artifacts for part in artifact.parts)
        return (*(message.parts if message else ()), *of_artifacts)

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self.task.id

    @property
    def context_id(self) -> str | None:
        """The context of the task."""
        return self.task.context_id

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        return self.task.status.state

    @property
    def generation(self) -> int | None:
        """How often the task has changed, if the agent counts."""
        return self.task.generation


@record(frozen=True, slots=True, kw_only=True)
class StatusUpdate(_UpdateMembers):
    """A task changed its state (`TaskStatusUpdateEvent`).

    `final` is a member of 0.1 to 0.3; when None, it is derived from the state.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.STATUS_UPDATE
    task_id: str
    context_id: str | None = None
    status: TaskStatus
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    generation: int | None = None  # of the task after it; see `Task`
    final: bool | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its status's message."""
        message = self.status.message
        return message.parts if message else ()

    @property
    def state(self) -> TaskState:
        """The state of the task."""
        return self.status.state

    @property
    def is_final(self) -> bool:
        """The value of `final`, or else whether the state is terminal or interrupted."""
        return self.status.state in _FINAL if self.final is None else self.final

    @property
    def is_bare(self) -> bool:
        """Whether the update says only that the task is working."""
        status = self.status
        return status.state is TaskState.WORKING and not (status.message or self.metadata)


@record(frozen=True, slots=True, kw_only=True)
class ArtifactUpdate(_UpdateMembers):
    """A task produced an artifact, or a chunk of one (`TaskArtifactUpdateEvent`)."""

    kind: ClassVar[UpdateKind] = UpdateKind.ARTIFACT_UPDATE
    state: ClassVar[TaskState | None] = None
    task_id: str
    context_id: str | None = None
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    generation: int | None = None  # of the task after it; see `Task`
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its artifact, or chunk."""
        return self.artifact.parts

    @property
    def is_partial(self) -> bool:
        """Whether the update is a chunk of an artifact that is not marked as the last."""
        return not self.last_chunk


@record(frozen=True, slots=True, kw_only=True)
class MessageUpdate(_UpdateMembers):
    """A message of the agent, with or without a task."""

    kind: ClassVar[UpdateKind] = UpdateKind.MESSAGE
    state: ClassVar[TaskState | None] = None
    generation: ClassVar[int | None] = None
    message: Message

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its message."""
        return self.message.parts

    @property
    def task_id(self) -> str | None:
        """The task that the message belongs to, if any."""
        return self.message.task_id

    @property
    def context_id(self) -> str | None:
        """The context that the message belongs to, if any."""
        return self.message.context_id


@record(frozen=True, slots=True, kw_only=True)
class UnknownUpdate(_UpdateMembers):
    """An update of a kind that no known version has; all of it is in `extra`, as it was read.

    It is written only in its own version. `parse_update` makes one.
    """

    kind: ClassVar[UpdateKind] = UpdateKind.UNKNOWN
    state: ClassVar[TaskState | None] = None
    name: str  # its kind, as the sender calls it: `messageUpdate`
    task_id: str | None = None  # the task, if it names one
    context_id: str | None = None
    generation: int | None = None  # of the task after it; see `Task`
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Part, ...]:
        """None that pushkit could read: they are in `extra`."""
        return ()

    @property
    def _name(self) -> str:
        return f"unknown kind {self.name[:40]!a}"


TaskUpdate: TypeAlias = TaskSnapshot | StatusUpdate | ArtifactUpdate | MessageUpdate | UnknownUpdate


# --- updates in an SDK's form --------------------------------------------------------------------


@record(frozen=False, slots=True, kw_only=True, eq=False)
class NativeUpdate:
    """An update in the form of another library; a subclass writes and reads it."""

    kind: UpdateKind
    task_id: str
    context_id: str | None = None
    state: TaskState | None  # of the task, if the update has it
    is_partial: bool = False  # as in the neutral update
    is_bare: bool = False  # as in the neutral update
    version: WireVersion  # the version that the library uses
    _body: bytes | None = field(default=None, init=False, repr=False)
    _neutral: TaskUpdate | None = field(default=None, init=False, repr=False)

    def write(self) -> bytes:
        """Write the update in its own version, as `encode_update` would, with the same errors."""
        raise NotImplementedError

    def read(self) -> TaskUpdate:
        """Make the neutral update; `neutral` calls this once, when it is first needed."""
        raise NotImplementedError

    @property
    def body(self) -> bytes:
        """The bytes in the update's own version. Raises InvalidUpdateError."""
        if self._body is None:
            self._body = self.write()
        return self._body

    @property
    def neutral(self) -> TaskUpdate:
        """The neutral update, for another version. Raises InvalidUpdateError."""
        if self._neutral is None:
            self._neutral = self.read()
        return self._neutral


AnyUpdate: TypeAlias = NativeUpdate | TaskUpdate
