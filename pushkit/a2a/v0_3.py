"""A2A 0.2 and 0.3: a notification is an object with a `kind` (0.3 §6, §7.2, §9.5)."""

from __future__ import annotations

from collections.abc import Mapping

from pushkit.a2a.dialect import without_extra
from pushkit.a2a.objects import ObjectDialect
from pushkit.a2a.typed_parts import AnyPart, KindPart, TypedParts
from pushkit.a2a.updates import (
    ArtifactUpdate,
    MessageUpdate,
    Role,
    StatusUpdate,
    TaskSnapshot,
    TaskState,
    TaskUpdate,
    UpdateKind,
    WireVersion,
)
from pushkit.a2a.wire import (
    ArtifactEventModel,
    MessageModel,
    StatusEventModel,
    TaskModel,
    WireObject,
    checked,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUpdateError, UnrecognisedBodyError

__all__ = ["V0_3"]

_MODELS: Mapping[UpdateKind, type[WireObject]] = {
    UpdateKind.TASK: TaskModel[KindPart],
    UpdateKind.STATUS_UPDATE: StatusEventModel[KindPart],
    UpdateKind.ARTIFACT_UPDATE: ArtifactEventModel[KindPart],
    UpdateKind.MESSAGE: MessageModel[KindPart],
}
_STATE_NAMES = {state: state.value for state in TaskState}
_ROLE_NAMES = {role: role.value for role in (Role.USER, Role.AGENT)}
_STATES: dict[JsonValue, TaskState] = {name: state for state, name in _STATE_NAMES.items()}
_ROLES: dict[JsonValue, Role] = {name: role for role, name in _ROLE_NAMES.items()}


class V0_3(TypedParts, ObjectDialect[AnyPart]):  # noqa: N801  (the version's name)
    """The A2A 0.2 and 0.3 dialect."""

    version = WireVersion.V0_3
    state_names = _STATE_NAMES
    role_names = _ROLE_NAMES
    verbatim = frozenset({"text", "uri", "data", "final"})
    discriminator = "kind"
    kinds = (*(kind.value for kind in UpdateKind), *TypedParts.kinds)

    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read a task, an event or a message; a task may lack its `kind`."""
        kind = document.get("kind", UpdateKind.TASK.value)
        match kind:
            case UpdateKind.TASK.value:
                task = checked(TaskModel[KindPart], document, UnrecognisedBodyError)
                return TaskSnapshot(task=self.read_task(task), origin=self.version)
            case UpdateKind.STATUS_UPDATE.value:
                status = checked(StatusEventModel[KindPart], document, UnrecognisedBodyError)
                return self.read_status_event(status)
            case UpdateKind.ARTIFACT_UPDATE.value:
                artifact = checked(ArtifactEventModel[KindPart], document, UnrecognisedBodyError)
                return self.read_artifact_event(artifact)
            case UpdateKind.MESSAGE.value:
                message = checked(MessageModel[KindPart], document, UnrecognisedBodyError)
                return MessageUpdate(message=self.read_message(message), origin=self.version)
        raise UnrecognisedBodyError(f"kind: expected one of {', '.join(UpdateKind)}")

    def write(self, update: TaskUpdate) -> JsonObject:
        """Write an object with its `kind`."""
        said = update if update.origin is self.version else without_extra(update)
        document = self._write_update(said)
        checked(_MODELS[update.kind], document, InvalidUpdateError, writing=self.version)
        return document

    def _write_update(self, update: TaskUpdate) -> JsonObject:
        match update:
            case TaskSnapshot():
                return self.write_task(update.task)
            case StatusUpdate():
                return self.write_status_event(update)
            case ArtifactUpdate():
                return self.write_artifact_event(update)
            case MessageUpdate():
                return self.write_message(update.message)

    def kind(self, kind: UpdateKind) -> str:
        """Return the `kind` member."""
        return kind.value

    def final(self, update: StatusUpdate) -> bool:
        """Return `final`, derived from the state if the update does not say."""
        if update.final is not None:
            return update.final
        return update.state.terminal or update.state.interrupted

    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state by name."""
        return _STATES.get(name, TaskState.UNKNOWN) if isinstance(name, str) else TaskState.UNKNOWN

    def read_role(self, name: JsonValue) -> Role:
        """Read a role by name."""
        return _ROLES.get(name, Role.UNSPECIFIED) if isinstance(name, str) else Role.UNSPECIFIED
