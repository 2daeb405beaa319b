"""The A2A wire, in every version, to and from one neutral update."""

from pushkit.a2a.agentvault import AuthScheme, parse_auth_schemes
from pushkit.a2a.codec import (
    decode_update,
    encode_update,
    needs_snapshot,
    parse_update,
    push_body,
)
from pushkit.a2a.config import Authentication, PushConfig
from pushkit.a2a.config_wire import format_push_config, parse_push_config
from pushkit.a2a.inline import parse_inline_config
from pushkit.a2a.native import AnyUpdate, NativeUpdate
from pushkit.a2a.updates import (
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
    UnknownPart,
    UpdateKind,
    UrlPart,
    WireVersion,
)

__all__ = [
    "AnyUpdate",
    "Artifact",
    "ArtifactUpdate",
    "AuthScheme",
    "Authentication",
    "DataPart",
    "Message",
    "MessageUpdate",
    "NativeUpdate",
    "Part",
    "PushConfig",
    "RawPart",
    "Role",
    "StatusUpdate",
    "Task",
    "TaskSnapshot",
    "TaskState",
    "TaskStatus",
    "TaskUpdate",
    "TextPart",
    "UnknownPart",
    "UpdateKind",
    "UrlPart",
    "WireVersion",
    "decode_update",
    "encode_update",
    "format_push_config",
    "needs_snapshot",
    "parse_auth_schemes",
    "parse_inline_config",
    "parse_push_config",
    "parse_update",
    "push_body",
]
