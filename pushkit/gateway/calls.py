"""The calls of A2A that a gateway must understand, and those that it makes itself.

A2A 0.3 §7 and §3.5.3, 1.0 §9.4 (JSON-RPC) and §11.3 (HTTP+JSON). All other requests are passed on.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from pushkit.a2a import Task, TaskSnapshot, TaskUpdate, WireVersion, parse_update
from pushkit.a2a.push_config import (
    INLINE_MEMBERS,
    SENDS,
    STREAMS,
    configuration_of,
    has_inline_config,
    without_inline_config,
)
from pushkit.bounded_json import JsonObject, JsonValue, read_json
from pushkit.errors import MalformedJsonError, UnrecognisedBodyError
from pushkit.integrations.push_config_api.configs import METHODS

V0_3, V1_0 = WireVersion.V0_3, WireVersion.V1_0


class Binding(StrEnum):
    """How calls of A2A are written."""

    JSON_RPC = "JSONRPC"
    HTTP_JSON = "HTTP+JSON"


class Act(StrEnum):
    """What a call does."""

    SEND = "send"  # a message, for one answer
    STREAM = "stream"  # a message, for a stream of events
    CONFIGS = "configs"  # a method of push configs
    CARD = "card"  # the card for callers who are known


class Place(NamedTuple):
    """Where and how the agent is asked about a task."""

    version: WireVersion
    binding: Binding
    path: str  # of the JSON-RPC endpoint; of HTTP+JSON, what precedes `/tasks`
    tenant: str = ""  # of the task


@dataclass(slots=True, kw_only=True)
class ClientCall:
    """A call of a client that is not simply passed on."""

    act: Act
    place: Place
    params: JsonObject = field(repr=False)
    id: JsonValue = None  # of the JSON-RPC request
    changes_config: bool = False

    @property
    def task_id(self) -> str:
        """The task that a message goes on with; empty if it begins one."""
        message = self.params.get("message")
        if not isinstance(message, dict):
            return ""
        found = message.get("taskId", message.get("task_id"))
        return found if isinstance(found, str) else ""

    @property
    def answers_early(self) -> bool:
        """Whether the client wants an answer before the task ends."""
        configuration = configuration_of(self.params)
        if self.place.version is V1_0:
            return any(configuration.get(name) is True for name in _EARLY)
        return configuration.get("blocking") is False

    @property
    def history_length(self) -> int | None:
        """How much history the client wants in the answer."""
        length = configuration_of(self.params).get("historyLength")
        return length if isinstance(length, int) and not isinstance(length, bool) else None


class MalformedCallError(MalformedJsonError):
    """A body that the agent might read otherwise than the gateway does: it is not passed on."""


_EARLY: Final = ("returnImmediately", "return_immediately")
_METHODS: Final = {
    **{name: (Act.SEND, version) for version, name in SENDS.items()},
    **{name: (Act.STREAM, version) for version, name in STREAMS.items()},
    **{name: (Act.CONFIGS, V0_3 if "/" in name else V1_0) for name in METHODS},
    "agent/getAuthenticatedExtendedCard": (Act.CARD, V0_3),
    "GetExtendedAgentCard": (Act.CARD, V1_0),
}
_GET_TASK: Final = {V0_3: "tasks/get", V1_0: "GetTask"}
_SUBSCRIBE: Final = {V0_3: "tasks/resubscribe", V1_0: "SubscribeToTask"}
# What may precede the first brace for parsers that find out themselves how JSON is encoded, as
# `json.loads` does: white space, byte order marks, the zeros of UTF-16 and UTF-32.
_AHEAD_OF_JSON: Final = b" \t\n\v\f\r\0\xef\xbb\xbf\xfe\xff"
_SENDING_PATH: Final = re.compile(r"(?P<base>.*)/message:(?P<act>send|stream)", re.DOTALL)
_CONFIGS_PATH: Final = re.compile(
    r"(?P<base>.*?)/tasks/[^/]+/pushNotificationConfigs(/[^/]+)*", re.DOTALL
)
_CARD_PATH: Final = re.compile(r"(?P<base>.*)/extendedAgentCard", re.DOTALL)
# Whatever slashes and dots are in between, also encoded within the id of a task; in linear time.
_LIKE_CONFIGS: Final = re.compile(r"(?>.*?/tasks/).+/pushnotificationconfigs(/.*)?", re.DOTALL)


def read_call(method: str, path: str, body: bytes) -> ClientCall | None:
    """Return the call that a request makes; None for what is passed on.

    Args:
        method: The HTTP method.
        path: The path, undecoded, without its query.
        body: The body.

    Raises:
        MalformedCallError: Its JSON or its path can be read in two ways, or it holds several calls.
    """
    decoded = unquote(path)
    if configs := _CONFIGS_PATH.fullmatch(decoded):
        place = _rest_place(configs["base"])
        return ClientCall(act=Act.CONFIGS, place=place, params={}, changes_config=method == "POST")
    # Some routers do not tell capitals, or leave out what follows a semicolon.
    lenient = re.sub(r";[^/]*", "", decoded).lower()
    if _LIKE_CONFIGS.fullmatch(lenient):
        raise MalformedCallError("expected the path of a config as A2A spells it")
    if method == "GET" and (card := _CARD_PATH.fullmatch(decoded)):
        return ClientCall(act=Act.CARD, place=_rest_place(card["base"]), params={})
    if method != "POST" or body.lstrip(_AHEAD_OF_JSON)[:1] not in (b"{", b"["):
        return None
    try:
        document = read_json(body)
    except MalformedJsonError as exc:
        raise MalformedCallError(str(exc)) from exc
    if isinstance(document, list):
        raise MalformedCallError("expected one call, found a batch, which A2A does not have")
    if not isinstance(document, dict):
        return None
    if sending := _SENDING_PATH.fullmatch(decoded):
        # The tenant is the last segment of what precedes, for some agents; it stays in the path.
        _check_message(document)
        place = _rest_place(sending["base"], _tenant(document, V1_0))
        return ClientCall(act=Act(sending["act"]), place=place, params=document)
    if _SENDING_PATH.fullmatch(posixpath.normpath(lenient)) and has_inline_config(document):
        raise MalformedCallError("expected the path of a message as A2A spells it")
    return _json_rpc_call(document, path)


def _rest_place(base: str, tenant: str = "") -> Place:
    return Place(V1_0, Binding.HTTP_JSON, quote(base, safe="/:@"), tenant)


def leads_elsewhere(name: str) -> bool:
    """Return whether a path that names this may be another one for servers that resolve dots.

    Many decode a slash before they do, some take a backslash for one.
    """
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", name))


def _check_message(params: JsonObject) -> None:
    _check_names(params, {"configuration"})
    _check_names(configuration_of(params), INLINE_MEMBERS)


def _check_names(members: JsonObject, names: Set[str]) -> None:
    """Check that nothing else is such a member for parsers that fold letters, as Go's and .NET's.

    Raises:
        MalformedCallError: Something is.
    """
    folded = {each.casefold() for each in names}
    if any(each.casefold() in folded and each not in names for each in members):
        raise MalformedCallError("expected the members of a call as A2A spells them")


def _json_rpc_call(document: JsonObject, path: str) -> ClientCall | None:
    if any(isinstance(each, str) and each in _METHODS for each in document.values()):
        _check_names(document, {"method", "params"})
    name, params = document.get("method"), document.get("params")
    if not isinstance(name, str) or name not in _METHODS:
        return None
    act, version = _METHODS[name]
    if act is not Act.CONFIGS:  # whose params nobody but the gateway reads
        if not isinstance(params, dict | None):
            return None
        _check_message(params or {})
    params = params if isinstance(params, dict) else {}
    return ClientCall(
        act=act,
        place=Place(version, Binding.JSON_RPC, path, _tenant(params, version)),
        params=params,
        id=document.get("id"),
        # One that is enabled again is watched again, too.
        changes_config=name.endswith("/set") or name.startswith(("Create", "Enable")),
    )


def _tenant(params: JsonObject, version: WireVersion) -> str:
    tenant = params.get("tenant") if version is V1_0 else None
    return tenant if isinstance(tenant, str) else ""


class OwnRequest(NamedTuple):
    """A request of the gateway to the agent."""

    method: str
    path: str
    body: bytes


def message_request(call: ClientCall, query: str, *, streams: bool) -> OwnRequest:
    """Return a client's message without its push config: as a stream, or for one answer."""
    params = without_inline_config(call.params, *(("blocking", *_EARLY) if streams else ()))
    place = call.place
    if place.binding is Binding.HTTP_JSON:
        act = Act.STREAM if streams else call.act
        return OwnRequest("POST", f"{place.path}/message:{act}{query}", _json(params))
    method = (STREAMS if streams else SENDS)[place.version]
    return OwnRequest("POST", place.path + query, _rpc(method, params, call.id))


def task_request(place: Place, task_id: str, history_length: int | None = None) -> OwnRequest:
    """Return a request for a task."""
    if place.binding is Binding.HTTP_JSON:
        query = "" if history_length is None else f"?historyLength={history_length}"
        return OwnRequest("GET", f"{place.path}/tasks/{quote(task_id, safe='')}{query}", b"")
    params: JsonObject = _named(place, task_id)
    if history_length is not None:
        params["historyLength"] = history_length
    return OwnRequest("POST", place.path, _rpc(_GET_TASK[place.version], params))


def subscribe_request(place: Place, task_id: str) -> OwnRequest:
    """Return a request for the stream of a task that is under way."""
    if place.binding is Binding.HTTP_JSON:
        path = f"{place.path}/tasks/{quote(task_id, safe='')}:subscribe"
        return OwnRequest("GET", path, b"")
    return OwnRequest("POST", place.path, _rpc(_SUBSCRIBE[place.version], _named(place, task_id)))


def _named(place: Place, task_id: str) -> JsonObject:
    named: JsonObject = {"id": task_id}
    return named | {"tenant": place.tenant} if place.tenant else named


def _rpc(method: str, params: Mapping[str, Any], request_id: JsonValue = "pushkit") -> bytes:
    return _json({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


# --- answers ------------------------------------------------------------------------------------


class Answered(NamedTuple):
    """An answer of the agent, or one event of a stream."""

    result: JsonObject | None  # None for an error
    code: int | None = None  # of a JSON-RPC error


def read_answer(body: bytes, binding: Binding) -> Answered:
    """Read an answer. Raises MalformedJsonError: it is no answer of A2A."""
    document = read_json(body)
    if not isinstance(document, dict):
        raise MalformedJsonError("expected an object")
    if binding is Binding.HTTP_JSON:
        return Answered(None if "error" in document else document)
    result, error = document.get("result"), document.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        return Answered(None, code if isinstance(code, int) else None)
    if not isinstance(result, dict):
        raise MalformedJsonError("expected a result or an error")
    return Answered(result)


def read_update(result: JsonObject, version: WireVersion) -> TaskUpdate:
    """Read an event, or the answer to a message. Raises UnrecognisedBodyError."""
    try:
        return parse_update(result)
    except UnrecognisedBodyError:
        return TaskSnapshot(task=read_task(result, version))


def read_task(result: JsonObject, version: WireVersion) -> Task:
    """Read a whole task, in the version that was asked for or as another. Raises as above."""
    try:
        found = parse_update({"task": result} if version is V1_0 else result, version)
    except UnrecognisedBodyError:
        found = parse_update(result if version is V1_0 else {"task": result})
    if not isinstance(found, TaskSnapshot):
        raise UnrecognisedBodyError(f"expected a task, found a {found.kind.value}")
    return found.task


def message_answer(call: ClientCall, task: JsonObject) -> bytes:
    """Return the answer to a client's message: a task, as the agent wrote it."""
    result: JsonObject = {"task": task} if call.place.version is V1_0 else task
    if call.place.binding is Binding.HTTP_JSON:
        return _json(result)
    return _json({"jsonrpc": "2.0", "id": call.id, "result": result})
