"""The API as requests and answers, without a web framework."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.delivery.sender import PushSender
from pushkit.integrations.push_config_api.configs import Configs, TaskCheck
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind, http_error
from pushkit.integrations.push_config_api.http_json import Route, answer_http_json, route_of
from pushkit.integrations.push_config_api.json_rpc import METHODS, answer_json_rpc, operate, refusal

_JSON = "application/json"
_A2A_JSON = "application/a2a+json"
_MEDIA_TYPES = ("", _JSON, _A2A_JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request to the API."""

    owner: str | None  # who calls; None: nobody that the agent knows
    method: str  # the HTTP method
    # The path below where the API is mounted, decoded, split at its slashes.
    segments: Sequence[str] = ()
    query: Mapping[str, JsonValue] = field(default_factory=dict)  # the query's parameters
    content_type: str = ""  # the header, or empty
    version: str | None = None  # the `A2A-Version` header, if there is one
    # The body; None: it was longer than `PushConfigApi.max_body_bytes`.
    body: bytes | None = field(default=b"", repr=False)


def query_members(encoded: str) -> dict[str, JsonValue]:
    """Return the parameters of a query; one that is given twice as a list, which none of them is.

    Of two tenants, what stands before this API could have looked at the other one.
    """
    found = parse_qs(encoded, keep_blank_values=True)
    return {name: list(said) if len(said) > 1 else said[0] for name, said in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """An answer of the API."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class PushConfigApi:
    """Serves the push-config methods of A2A 0.1, 0.3 and 1.0 over JSON-RPC, and 1.0's HTTP+JSON.

    For an agent with a JSON-RPC endpoint of its own, `serves(method)` says which requests to hand
    over to `json_rpc`. Otherwise mount `push_config_app` or `PushConfigAsgi`.

    Args:
        sender: Where configs become subscriptions; None: every method answers that push
            notifications are not supported (-32003).
        task_exists: Says whether a task exists that the caller may follow, given the `Caller` and
            the task id; may be a coroutine function. None: every caller may subscribe to every
            task id, also to one that somebody else's task has, or will have.
        max_body_bytes: The longest request.
    """

    def __init__(
        self,
        sender: PushSender | None,
        *,
        task_exists: TaskCheck | None,
        max_body_bytes: int = 64 * 1024,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self._configs = Configs(sender, task_exists)

    @staticmethod
    def serves(method: str) -> bool:
        """Say whether a JSON-RPC method is one of this API."""
        return method in METHODS

    async def json_rpc(
        self, body: bytes, *, owner: str, version: str | None = None
    ) -> JsonObject | None:
        """Answer one JSON-RPC request; None: it was a notification, to which there is no answer.

        The body may be of any length. The agent's own authentication names the owner.
        """
        if len(body) > self.max_body_bytes:
            return refusal(self.too_long())
        return await answer_json_rpc(self._configs, owner, body, version)

    async def call(
        self, method: str, params: Mapping[str, JsonValue], *, owner: str, version: str | None
    ) -> JsonValue:
        """Return the result of a JSON-RPC method. Raises ApiError: it is refused."""
        return await operate(self._configs, owner, method, params, version)

    async def handle(self, request: ApiRequest) -> ApiAnswer:
        """Answer a request: HTTP+JSON by its path, JSON-RPC where the API is mounted."""
        try:
            route, owner = _admitted(request)
            if route is None:
                return await self._answer_json_rpc(request, owner)
            if request.body is None:
                raise self.too_long()
            document = await answer_http_json(
                self._configs,
                owner,
                request.method,
                route,
                query=request.query,
                body=request.body,
                version_header=request.version,
            )
        except ApiError as error:
            allow = {"Allow": ", ".join(error.allow)} if error.allow else {}
            headers = {"Content-Type": _JSON} | allow
            return ApiAnswer(status=error.status, headers=headers, body=_bytes(http_error(error)))
        return ApiAnswer(status=200, headers={"Content-Type": _A2A_JSON}, body=_bytes(document))

    async def _answer_json_rpc(self, request: ApiRequest, owner: str) -> ApiAnswer:
        if request.body is None:
            error = self.too_long()
            return ApiAnswer(
                status=error.status, headers={"Content-Type": _JSON}, body=_bytes(refusal(error))
            )
        document = await self.json_rpc(request.body, owner=owner, version=request.version)
        if document is None:
            return ApiAnswer(status=204)
        return ApiAnswer(status=200, headers={"Content-Type": _JSON}, body=_bytes(document))

    def too_long(self) -> ApiError:
        """Return the refusal of a request that is longer than the limit, or broke off."""
        detail = f"expected a whole body, of at most {self.max_body_bytes} bytes"
        return ApiError(ErrorKind.REQUEST, detail, status=413)


def _admitted(request: ApiRequest) -> tuple[Route | None, str]:
    """Return what a request names (None: the JSON-RPC endpoint), and its owner."""
    route = route_of(request.segments)
    if route is None and any(request.segments):
        raise ApiError(ErrorKind.METHOD, "no such path")
    methods = route.methods if route else ("POST",)
    if request.method not in methods:
        detail = f"expected {', '.join(methods)}"
        raise ApiError(ErrorKind.METHOD, detail, status=405, allow=methods)
    if request.owner is None:
        raise ApiError(ErrorKind.CALLER, "the caller is not known")
    media_type = request.content_type.partition(";")[0].strip().lower()
    if request.method == "POST" and media_type not in _MEDIA_TYPES:
        raise ApiError(ErrorKind.REQUEST, f"expected {_JSON} or {_A2A_JSON}", status=415)
    return route, request.owner


def _bytes(document: JsonObject) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
