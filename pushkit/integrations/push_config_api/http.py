"""The API as requests and answers, independent of a web framework.

The HTTP+JSON routes of A2A 1.0 (§11.3) are `/tasks/{id}/pushNotificationConfigs` and
`/tasks/{id}/pushNotificationConfigs/{id}`, each also with a tenant as its first segment. Where the
API is mounted, it answers JSON-RPC.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue, read_json
from pushkit.delivery.sender import PushSender
from pushkit.errors import MalformedJsonError, PushkitError
from pushkit.integrations.push_config_api.configs import (
    METHODS,
    SNAPSHOT_EXTENSION,
    Configs,
    TaskCheck,
    TaskOf,
    check_version,
    number,
    optional_text,
)
from pushkit.integrations.push_config_api.errors import (
    ApiError,
    ErrorKind,
    http_error,
    json_rpc_refusal,
)
from pushkit.options import Count, checked
from pushkit.subscriptions.filters import FILTER_EXTENSION, FilterChoice
from pushkit.subscriptions.model import EVERYTHING

_JSON = "application/json"
_A2A_JSON = "application/a2a+json"
# A browser posts without a media type, or a form's, for any web page; for these it asks before.
_MEDIA_TYPES = (_JSON, _A2A_JSON)

EXTENSIONS: Final[Sequence[JsonObject]] = [
    {"uri": uri, "description": description, "required": False}
    for uri, description in (
        (FILTER_EXTENSION, "a push config says which updates it wants"),
        (
            SNAPSHOT_EXTENSION,
            "a push config asks for the task as it stands, ahead of its updates",
        ),
        (
            "urn:pushkit:recover:v1",
            "notifications of a push config are sent again, by `seq` or time",
        ),
        (
            "urn:pushkit:delivery-state:v1",
            "how far the notifications of a push config are, and enabling it again",
        ),
    )
]
"""All extensions of push configs, as members of a card's `capabilities.extensions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request to the API."""

    owner: str | None  # the client; None if it is not authenticated
    method: str  # the HTTP method
    # The path below the mount point, undecoded; None if a segment is partly the mount's.
    path: str | None = "/"
    query: Mapping[str, JsonValue] = field(default_factory=dict)  # the query's parameters
    content_type: str = ""  # the header, or empty
    version: str | None = None  # the `A2A-Version` header, if there is one
    # The body; None if it is longer than `PushConfigApi.max_body_bytes`.
    body: bytes | None = field(default=b"", repr=False)


def query_members(encoded: str) -> dict[str, JsonValue]:
    """Return the parameters of a query.

    A parameter that is given twice is a list, which is refused for every parameter: a proxy may
    have checked the other one of two tenants.
    """
    found = parse_qs(encoded, keep_blank_values=True)
    return {name: list(each) if len(each) > 1 else each[0] for name, each in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """An answer of the API."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class PushConfigApi:
    """Serves the push-config methods of A2A 0.1, 0.3 and 1.0 over JSON-RPC, and 1.0's HTTP+JSON.

    An agent with its own JSON-RPC endpoint passes the requests for which `serves(method)` is true
    to `json_rpc`. Other agents mount `push_config_app` or `PushConfigAsgi`.

    Args:
        sender: Stores the configs, as subscriptions; None to answer every method with "push
            notifications are not supported" (-32003).
        task_exists: Returns whether a task exists that the caller may follow, given the `Caller`
            and the task id; may be a coroutine function. With None, every caller may subscribe to
            every task id, even to that of another client's present or future task.
        max_body_bytes: The length of the longest request.
        filter: Which updates clients get: a `Filter`, or a function that returns an owner's.
        snapshot: Returns a task as a caller sees it, given the `Caller` and the task id; None for
            no such task. A coroutine function. With it, clients can ask for the task as it stands
            as the first notification (`urn:pushkit:push-snapshot:v1`); see `PushSender.subscribe`.

    Raises:
        ConfigError: An argument has a wrong type.
    """

    @checked
    def __init__(
        self,
        sender: PushSender | None,
        *,
        task_exists: TaskCheck | None,
        max_body_bytes: Count = 64 * 1024,
        filter: FilterChoice = EVERYTHING,  # noqa: A002  # as `PushSender.subscribe`
        snapshot: TaskOf | None = None,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self._sender = sender
        self._has_snapshots = snapshot is not None
        self.configs = Configs(sender, task_exists, filter, snapshot)

    @staticmethod
    def serves(method: str) -> bool:
        """Return whether a JSON-RPC method is one of this API."""
        return method in METHODS

    @property
    def extensions(self) -> list[JsonObject]:
        """The extensions that are served, as members of a card's `capabilities.extensions`."""
        return [
            each for each in EXTENSIONS if self._has_snapshots or each["uri"] != SNAPSHOT_EXTENSION
        ]

    async def json_rpc(
        self, body: bytes, *, owner: str, version: str | None = None
    ) -> JsonObject | None:
        """Answer one JSON-RPC request; return None for a notification, which gets no answer.

        The body may have any length. The agent's own authentication determines the owner.
        """
        try:
            if len(body) > self.max_body_bytes:
                raise self.too_long()
            request = _read_request(body)
        except ApiError as error:
            self.report(error, owner)
            return json_rpc_refusal(error)
        method, request_id = str(request["method"]), request.get("id")
        try:
            result = await self.configs.call(
                method, request.get("params"), owner=owner, version=version
            )
            answer: JsonObject = {"jsonrpc": "2.0", "id": request_id, "result": result}
        except ApiError as error:
            self.report(error, owner)
            spoken, _ = METHODS.get(method, (None, None))
            answer = json_rpc_refusal(error, spoken or WireVersion.V1_0, request_id)
        return answer if "id" in request else None

    async def call(
        self, method: str, params: Mapping[str, JsonValue], *, owner: str, version: str | None
    ) -> JsonValue:
        """Return the result of a JSON-RPC method. Raises ApiError if it is refused."""
        return await self.configs.call(method, params, owner=owner, version=version)

    async def handle(self, request: ApiRequest) -> ApiAnswer:
        """Answer a request: HTTP+JSON by its path, JSON-RPC where the API is mounted."""
        try:
            route, owner = _check(request)
            if route is None:
                return await self._answer_json_rpc(request, owner)
            if request.body is None:
                raise self.too_long()
            document = await self._answer_http_json(request, request.body, route, owner)
        except ApiError as error:
            self.report(error, request.owner)
            return _answer(error.status, http_error(error), allow=error.allow)
        return _answer(200, document, media_type=_A2A_JSON)

    async def _answer_json_rpc(self, request: ApiRequest, owner: str) -> ApiAnswer:
        if request.body is None:
            error = self.too_long()
            self.report(error, owner)
            return _answer(error.status, json_rpc_refusal(error))
        document = await self.json_rpc(request.body, owner=owner, version=request.version)
        return ApiAnswer(status=204) if document is None else _answer(200, document)

    async def _answer_http_json(
        self, request: ApiRequest, body: bytes, route: _Route, owner: str
    ) -> JsonObject:
        """Answer a request as its JSON-RPC method. Raises ApiError if it is refused."""
        check_version(request.version, WireVersion.V1_0)
        # A request with two tenants attacks a proxy that checked only the other one.
        tenant = _the_same("tenant", route.tenant, request.query, "the tenant of the path")
        params: JsonObject = {"taskId": route.task_id}
        if request.method == "POST":
            params = _read_object(body, "a TaskPushNotificationConfig", ErrorKind.PARAMS)
            tenant = _the_same("tenant", tenant, params, "the tenant of the path or the query")
            task_id = _the_same("taskId", route.task_id, params, "the task of the path")
            params = {name: value for name, value in params.items() if name != "task_id"}
            params["taskId"] = task_id
            if route.config_id is not None:
                params["id"] = _the_same("id", route.config_id, params, "the config of the path")
        elif route.config_id is None:
            params["pageSize"] = number(request.query, "pageSize")
            params["pageToken"] = optional_text(request.query, "pageToken")
        else:
            params["id"] = route.config_id
        params["tenant"] = tenant
        method = _METHODS[route.kind][request.method]
        found = await self.call(method, params, owner=owner, version=request.version)
        return found if isinstance(found, dict) else {}

    def report(self, error: ApiError, owner: str | None) -> None:
        """Report a refusal to the operator, as `PushSender.report_refusal`.

        Faults of this side have their own line in the log.
        """
        if self._sender is None or error.kind is ErrorKind.INTERNAL:
            return
        cause, code = error.__cause__, error.kind.value.reason.lower()
        if isinstance(cause, PushkitError):
            code, error.reported = cause.code, cause.reported
        self._sender.report_refusal(error, code=code, owner=owner or "")

    def too_long(self) -> ApiError:
        """Return the refusal of a request that is too long, or incomplete."""
        detail = f"expected a complete body of at most {self.max_body_bytes} bytes"
        return ApiError(ErrorKind.REQUEST, detail, status=413)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """The task and the config that a path names."""

    tenant: str
    task_id: str
    config_id: str | None
    kind: str  # the key in `_METHODS`


def _route_of(path: str) -> _Route | None:
    """Return the route of an undecoded path; None if it is not one of this API."""
    match [unquote(each) for each in path.removeprefix("/").split("/")]:
        case ("tasks", task_id, "pushNotificationConfigs", *rest):
            tenant = ""
        case (tenant, *_) if "/" in tenant:  # for whoever decodes the path first, another one's
            return None
        case (tenant, "tasks", task_id, "pushNotificationConfigs", *rest):
            pass
        case _:
            return None
    match rest:
        case ():
            return _Route(tenant=tenant, task_id=task_id, config_id=None, kind="all")
        case (config_id,):
            return _Route(tenant=tenant, task_id=task_id, config_id=config_id, kind="one")
        case (config_id, kind) if kind in _OF_EXTENSIONS:
            return _Route(tenant=tenant, task_id=task_id, config_id=config_id, kind=kind)
    return None


def _check(request: ApiRequest) -> tuple[_Route | None, str]:
    """Check a request; return its route (None for the JSON-RPC endpoint) and its owner."""
    route = _route_of(request.path or "")
    if route is None and request.path != "/":
        raise ApiError(ErrorKind.METHOD, "no such path")
    methods = tuple(_METHODS[route.kind]) if route else ("POST",)
    if request.method not in methods:
        detail = f"expected {', '.join(methods)}"
        raise ApiError(ErrorKind.METHOD, detail, status=405, allow=methods)
    if request.owner is None:
        raise ApiError(ErrorKind.CALLER, "the caller is not known")
    media_type = request.content_type.partition(";")[0].strip().lower()
    if request.method == "POST" and media_type not in _MEDIA_TYPES:
        raise ApiError(ErrorKind.REQUEST, f"expected {_JSON} or {_A2A_JSON}", status=415)
    return route, request.owner


# By what follows the id of a config in the path, and the HTTP method.
_OF_EXTENSIONS = {
    "deliveryState": {"GET": "GetPushDeliveryState"},
    "enable": {"POST": "EnablePushNotifications"},
    "recover": {"POST": "RecoverPushNotifications"},
}
# By what the path names, and the HTTP method.
_METHODS = _OF_EXTENSIONS | {
    "all": {"GET": "ListTaskPushNotificationConfigs", "POST": "CreateTaskPushNotificationConfig"},
    "one": {"GET": "GetTaskPushNotificationConfig", "DELETE": "DeleteTaskPushNotificationConfig"},
}


def _the_same(name: str, known: str, members: Mapping[str, JsonValue], expected: str) -> str:
    """Return the known value, or that of the member; if there are both, they must be equal."""
    value = optional_text(members, name) or ""
    if value and known and value != known:
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected {expected}")
    return known or value


def _read_request(body: bytes) -> JsonObject:
    """Return a JSON-RPC request. Raises ApiError: it is none."""
    document = _read_object(body, "one JSON-RPC request", ErrorKind.REQUEST)
    if document.get("jsonrpc") != "2.0":
        raise ApiError(ErrorKind.REQUEST, 'jsonrpc: expected "2.0"')
    request_id = document.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
        raise ApiError(ErrorKind.REQUEST, "id: expected a string, an integer or null")
    if not isinstance(document.get("method"), str):
        raise ApiError(ErrorKind.REQUEST, "method: expected a string")
    return document


def _read_object(body: bytes, expected: str, otherwise: ErrorKind) -> JsonObject:
    """Return the JSON object in a body. Raises ApiError: not JSON, or `otherwise` for no object."""
    try:
        document = read_json(body)
    except MalformedJsonError as exc:
        raise ApiError(ErrorKind.PARSE, str(exc)) from exc
    if not isinstance(document, dict):
        raise ApiError(otherwise, f"expected {expected}, an object")
    return document


def _answer(
    status: int, document: JsonObject, *, media_type: str = _JSON, allow: Sequence[str] = ()
) -> ApiAnswer:
    headers = {"Content-Type": media_type} | ({"Allow": ", ".join(allow)} if allow else {})
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return ApiAnswer(status=status, headers=headers, body=body)
