"""The errors that A2A specifies for these methods, in JSON-RPC and in HTTP+JSON.

A2A 1.0 §3.3.2, §9.5 and §11.6, 0.3 §8, 0.1 §8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import PushkitError

_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
ERROR_DOMAIN = "a2a-protocol.org"


@dataclass(frozen=True, slots=True)
class _Entry:
    code: int
    title: str
    status: int
    grpc_status: str
    reason: str


class ErrorKind(Enum):
    """The specified errors: JSON-RPC code, title, HTTP status, gRPC status, reason."""

    PARSE = _Entry(-32700, "Invalid JSON payload", 400, "INVALID_ARGUMENT", "INVALID_REQUEST")
    REQUEST = _Entry(
        -32600, "Request payload validation error", 400, "INVALID_ARGUMENT", "INVALID_REQUEST"
    )
    CALLER = _Entry(-32600, "Not authenticated", 401, "UNAUTHENTICATED", "UNAUTHENTICATED")
    METHOD = _Entry(-32601, "Method not found", 404, "NOT_FOUND", "METHOD_NOT_FOUND")
    PARAMS = _Entry(-32602, "Invalid parameters", 400, "INVALID_ARGUMENT", "INVALID_PARAMS")
    INTERNAL = _Entry(-32603, "Internal error", 500, "INTERNAL", "INTERNAL_ERROR")
    TASK = _Entry(-32001, "Task not found", 404, "NOT_FOUND", "TASK_NOT_FOUND")
    PUSH = _Entry(
        -32003,
        "Push Notification is not supported",
        400,
        "FAILED_PRECONDITION",
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    )
    VERSION = _Entry(
        -32009, "Version not supported", 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"
    )


class ApiError(PushkitError):
    """A call is refused; the message tells the client what was expected."""

    code = "push_config_api"

    def __init__(
        self,
        kind: ErrorKind,
        detail: str = "",  # what was found and expected, in addition to the title
        *,
        status: int | None = None,  # the HTTP status, if it is not that of the kind
        # The allowed HTTP methods, if the method is refused.
        allow: tuple[str, ...] = (),
    ) -> None:
        self.kind = kind
        self.allow = allow
        self.status: int = status or kind.value.status
        super().__init__(f"{kind.value.title}: {detail}" if detail else kind.value.title)


def api_error(error: PushkitError | None) -> ApiError:
    """Return the answer to a client's own error, or to a fault that is not the client's (None)."""
    return ApiError(ErrorKind.PARAMS, str(error)) if error else ApiError(ErrorKind.INTERNAL)


def json_rpc_refusal(
    error: ApiError, version: WireVersion = WireVersion.V1_0, request_id: JsonValue = None
) -> JsonObject:
    """Return a JSON-RPC answer; in 1.0, its error has `ErrorInfo` as data (§9.5).

    By default it is that to a request whose version and id could not be read.
    """
    members: JsonObject = {"code": error.kind.value.code, "message": str(error)}
    if version is WireVersion.V1_0:
        members["data"] = [_error_info(error)]
    return {"jsonrpc": "2.0", "id": request_id, "error": members}


def http_error(error: ApiError) -> JsonObject:
    """Return the body of an HTTP+JSON error: a `google.rpc.Status` (1.0 §11.6)."""
    return {
        "error": {
            "code": error.status,
            "status": error.kind.value.grpc_status,
            "message": str(error),
            "details": [_error_info(error)],
        }
    }


def _error_info(error: ApiError) -> JsonValue:
    reason = error.kind.value.reason
    return {"@type": _ERROR_INFO, "reason": reason, "domain": ERROR_DOMAIN, "metadata": {}}
