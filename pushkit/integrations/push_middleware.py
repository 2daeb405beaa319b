"""ASGI: push configs in front of an agent whose framework has none.

    app = PushMiddleware(agent, push=push, task_exists=task_exists)

It answers the push-config methods of A2A at the agent's own JSON-RPC endpoint, keeps the config
that comes with a message until the task has an id (`register_inline_config`), serves the public
keys, and says in the agent's card that it pushes, and with which extensions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sized
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final

from pushkit.a2a import WireVersion
from pushkit.a2a.push_config import (
    SENDS,
    STREAMS,
    has_inline_config,
    without_inline_config,
)
from pushkit.bounded_json import JsonObject, read_json
from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH
from pushkit.delivery.sender import PushSender
from pushkit.errors import MalformedJsonError
from pushkit.integrations.asgi import JwksApp, answer
from pushkit.integrations.client_configs import wiring_of
from pushkit.integrations.push_config_api import (
    OwnerOfScope,
    PushConfigApi,
    PushConfigAsgi,
    TaskCheck,
    TaskOf,
)
from pushkit.integrations.push_config_api.configs import InlineConfig, named_by
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind, json_rpc_refusal
from pushkit.keys.jwks import JWKS_PATH
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.filters import GATHERED_EVERY, FilterChoice, filter_chooser
from pushkit.subscriptions.model import EVERYTHING
from pushkit.webui.asgi import Message, Receive, Send, path_within, read_body

_log: Final = logging.getLogger("pushkit.integrations")

_SENDING: Final = {name: version for each in (SENDS, STREAMS) for version, name in each.items()}

_INLINE: Final[ContextVar[InlineConfig | None]] = ContextVar("pushkit_inline_config", default=None)


async def register_inline_config(task_id: str) -> None:
    """Register the config that came with the current message, if any, before its task begins.

    For the hook of a framework, in the context of the request.

    Raises:
        PushkitError: It is refused; `PushMiddleware` tells the client, whatever the agent answers.
    """
    inline = _INLINE.get()
    if inline is not None:
        await inline.register(task_id)


class PushMiddleware:
    """An ASGI application around an agent's.

    Args:
        app: The agent.
        push: Stores the configs, and delivers.
        task_exists: As for `PushConfigApi`: whether a caller may follow a task.
        owner: Returns the client of a request, given its ASGI scope; None to answer with 401. By
            default all clients are one.
        max_body_bytes: The length of the longest request.
        filter: Which updates clients get: a `Filter` for all, or a function that returns the filter
            of an owner when it sets a config.
        min_interval: At most one post of a stream's chunks in this time; None to post each.
        snapshot: As for `PushConfigApi`: with it, clients that set a config by its method can ask
            for the task as it stands. One that comes with a message has no need of it.
    """

    def __init__(
        self,
        app: Any,
        *,
        push: PushSender,
        task_exists: TaskCheck | None,
        owner: OwnerOfScope = lambda _scope: "",
        max_body_bytes: int = 16 * 1024 * 1024,
        filter: FilterChoice = EVERYTHING,  # noqa: A002  # as `PushSender.subscribe`
        min_interval: timedelta | None = GATHERED_EVERY,
        snapshot: TaskOf | None = None,
    ) -> None:
        self._app = app
        self._owner = owner
        self._max_body_bytes = max_body_bytes
        self._api = PushConfigApi(
            push,
            task_exists=task_exists,
            filter=filter_chooser(filter, min_interval),
            snapshot=snapshot,
        )
        self._config_methods = PushConfigAsgi(self._api, owner=owner)
        self._keys = JwksApp(push)
        wiring_of(push).has_sender = True  # `push.notify`, for all that can be seen from here
        self._faults = RepeatedLog(_log)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = path_within(scope) if scope["type"] == "http" else None
        if path == JWKS_PATH:
            await self._keys(scope, receive, send)
        elif path in (CARD_PATH, LEGACY_CARD_PATH) and scope["method"] == "GET":
            await self._app(scope, receive, _with_push(send, self._api.extensions))
        elif path is not None and scope["method"] == "POST":
            await self._post(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _post(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await read_body(receive, self._max_body_bytes)
        if body is None:
            await answer(send, 413, {}, b"")
            return
        request = _object_of(body)
        method, params, inline = str(request.get("method")), request.get("params"), None
        params = params if isinstance(params, dict) else {}
        if PushConfigApi.serves(method):
            at_root = {**scope, "path": "/", "raw_path": b"/", "root_path": ""}
            await self._config_methods(at_root, _replayed(body, receive), send)
            return
        if method in _SENDING:
            try:
                inline = await self._inline_of(scope, params, _SENDING[method])
            except ApiError as exc:
                await _refuse(send, request, exc)
                return
        if inline is None:
            await self._app(scope, _replayed(body, receive), send)
            return
        request["params"] = without_inline_config(params)  # frameworks drop or refuse the config
        body = json.dumps(request).encode()
        shorter = {**scope, "headers": _with_length(scope["headers"], body)}
        before = _INLINE.set(inline)
        try:
            await self._app(shorter, _replayed(body, receive), _unless_refused(inline, send))
        except Exception:
            if inline.refusal is None:
                raise
        finally:
            _INLINE.reset(before)
        if inline.refusal is not None:
            await _refuse(send, request, inline.refusal)
        elif not inline.is_registered:
            lost = "a push config that came with a message is lost: expected a hook of the agent's"
            self._faults.log(
                "lost", logging.ERROR, "%s framework to call register_inline_config", lost
            )

    async def _inline_of(
        self, scope: Message, params: JsonObject, version: WireVersion
    ) -> InlineConfig | None:
        """Return the config of a message, if it has one. Raises ApiError: it is refused."""
        types = [each for name, each in scope["headers"] if name.lower() == b"content-type"]
        is_json = any(b"json" in each.partition(b";")[0].lower() for each in types)
        if not is_json and has_inline_config(params):
            # A browser posts other types for any web page, without asking before.
            raise ApiError(ErrorKind.REQUEST, "expected application/json", status=415)
        return await self._api.configs.inline(params, version, lambda: named_by(self._owner, scope))


def _unless_refused(inline: InlineConfig, send: Send) -> Send:
    """Return what sends an answer from its first body on, and nothing of it after a refusal."""
    held: list[Message] = []

    async def send_on(message: Message) -> None:
        held.append(message)
        if message["type"] != "http.response.start" and inline.refusal is None:
            for each in held:
                await send(each)
            held.clear()

    return send_on


def _with_push(send: Send, extensions: list[JsonObject]) -> Send:
    """Return what sends a card that says that the agent pushes, and with which extensions."""
    start: Message = {}
    body = bytearray()

    async def send_card(message: Message) -> None:
        start.update(message if message["type"] == "http.response.start" else {})
        body.extend(message.get("body", b""))
        if message["type"] == "http.response.start" or message.get("more_body"):
            return
        card = _object_of(bytes(body))
        if isinstance(capabilities := card.get("capabilities"), dict):
            capabilities["pushNotifications"] = True
            declared = capabilities.get("extensions")
            known = declared if isinstance(declared, list) else []
            more = [each for each in extensions if each not in known]
            capabilities["extensions"] = [*known, *more]
            body[:] = json.dumps(card, ensure_ascii=False).encode()
        await send({**start, "headers": _with_length(start["headers"], body)})
        await send({"type": "http.response.body", "body": bytes(body)})

    return send_card


def _with_length(headers: Iterable[tuple[bytes, bytes]], body: Sized) -> list[tuple[bytes, bytes]]:
    kept = [header for header in headers if header[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


def _object_of(body: bytes) -> JsonObject:
    """Return a JSON object; an empty one for anything else, which is for the agent to refuse."""
    try:
        document = read_json(body)
    except MalformedJsonError:
        return {}
    return document if isinstance(document, dict) else {}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what receives a request's body again, and then what follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again


async def _refuse(send: Send, request: JsonObject, error: ApiError) -> None:
    told = json_rpc_refusal(error, _SENDING[str(request["method"])], request.get("id"))
    status = error.status if error.kind in (ErrorKind.CALLER, ErrorKind.REQUEST) else 200
    await answer(send, status, {"Content-Type": "application/json"}, json.dumps(told).encode())
