"""What a gateway does with a request: passes it on, or answers it.

In the order of `handle`: the public keys, the card, push configs, messages, everything else.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

import aiohttp
from aiohttp import web

from pushkit.a2a import PushConfig, Task, WireVersion, parse_inline_config
from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH
from pushkit.delivery.sender import PushSender
from pushkit.errors import (
    CardUnavailableError,
    KeysUnavailableError,
    PushkitError,
    StorageError,
)
from pushkit.gateway.answers import (
    Asked,
    cut,
    decoded,
    head_of,
    json_response,
    not_compressed,
    refusal,
)
from pushkit.gateway.calls import (
    V0_3,
    V1_0,
    Act,
    Binding,
    ClientCall,
    MalformedCallError,
    Place,
    read_call,
)
from pushkit.gateway.card import CardFacts, CardRewriter, facts_of
from pushkit.gateway.identity import Identity
from pushkit.gateway.messages import Sending
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.upstream import (
    EVENT_STREAM,
    TaskRefusedError,
    Upstream,
    UpstreamError,
    card_error,
    credentials_of,
    end_to_end,
)
from pushkit.gateway.watcher import Watcher
from pushkit.integrations.config_errors import config_errors
from pushkit.integrations.push_config_api import Caller, PushConfigApi
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind, json_rpc_error
from pushkit.integrations.push_config_api.http import ApiRequest, query_members
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.filters import GATHERED_EVERY, filter_chooser
from pushkit.subscriptions.model import EVERYTHING

_log: Final = logging.getLogger("pushkit.gateway")

_JWKS_PATH: Final = "/.well-known/jwks.json"


class _Checked(NamedTuple):
    """A call about push configs, while it is checked."""

    asked: Asked
    call: ClientCall


_CHECKED: Final[ContextVar[_Checked]] = ContextVar("pushkit_gateway_call")


class Gateway:
    """Answers requests, in front of an agent.

    Args:
        sender: Stores configs and updates, and delivers; open.
        upstream: The agent; open.
        identity: Names the callers.
        watcher: Watches tasks.
        cards: Makes the gateway's card of the agent's.
        options: Limits.
    """

    def __init__(
        self,
        *,
        sender: PushSender,
        upstream: Upstream,
        identity: Identity,
        watcher: Watcher,
        cards: CardRewriter,
        options: GatewayOptions,
    ) -> None:
        self._sender = sender
        self._upstream = upstream
        self._identity = identity
        self._watcher = watcher
        self._cards = cards
        self._options = options
        self._filter_of = filter_chooser(EVERYTHING, GATHERED_EVERY)
        self._configs = PushConfigApi(
            sender, task_exists=self._may_see, filter=self._filter_of, snapshot=self._task
        )
        self._facts = CardFacts(streams=False, versions=(), rest_bases=(), rpc_path="/")
        self._faults = RepeatedLog(_log)
        self._requests = Counter[str]()
        self._sending = set[asyncio.Task[None]]()

    async def learn(self) -> CardFacts:
        """Read the agent's card.

        Raises:
            CardUnavailableError: It cannot be had, or the gateway cannot serve it.
            UpstreamError: The agent does not answer.
        """
        for path in (CARD_PATH, LEGACY_CARD_PATH):
            status, body = await self._upstream.card(path)
            if status == 200:
                self._facts = facts_of(body, self._upstream.base_path)
                await self._cards.rewritten(body)
                return self._facts
        raise card_error(status)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        try:
            self._check(request)
            body = await self._body(request)
            from_proxy = self._identity.is_proxy(request.remote)
            asked = Asked(request, body, self._fields(request, from_proxy=from_proxy))
            with self._counted(request, from_proxy=from_proxy):
                return await self._answer(asked)
        except MalformedCallError as exc:
            error = ApiError(ErrorKind.PARSE, str(exc))
            answer = {
                "jsonrpc": "2.0",
                "id": None,
                "error": json_rpc_error(error, WireVersion.V1_0),
            }
            return json_response(400, json.dumps(answer).encode())
        except UpstreamError as exc:
            self._faults.log(str(exc), logging.WARNING, "%s", exc)
            return web.Response(status=exc.status, text=f"{exc}\n")

    async def _answer(self, asked: Asked) -> web.StreamResponse:
        request = asked.request
        if request.method in ("GET", "HEAD"):
            if asked.path == _JWKS_PATH:
                return self._jwks(request)
            if asked.path in (CARD_PATH, LEGACY_CARD_PATH):
                return await self._card(asked)
        call = read_call(request.method, asked.path, asked.body)
        if call is None:
            return await self._pass_on(asked)
        if call.place.binding is Binding.HTTP_JSON:
            call.place = self._with_tenant(call.place)
        match call.act:
            case Act.CONFIGS:
                return await self._config(asked, call)
            case Act.CARD:
                return await self._extended_card(asked)
            case _:
                return await self._message(asked, call)

    # --- requests ------------------------------------------------------------------------------

    def _check(self, request: web.BaseRequest) -> None:
        if not request.raw_path.startswith("/") or request.raw_path.startswith("//"):
            raise web.HTTPBadRequest(text="expected a path that begins with one slash\n")
        if request.headers.get("Upgrade") and "websocket" in request.headers["Upgrade"].lower():
            raise web.HTTPNotImplemented(text="the gateway does not speak WebSocket\n")
        if request.content_type.startswith("application/grpc"):
            raise web.HTTPUnsupportedMediaType(text="the gateway does not speak gRPC\n")

    async def _body(self, request: web.BaseRequest) -> bytes:
        body, most = bytearray(), self._options.max_body_bytes
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > most:
                raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(body))
        return bytes(body)

    def _fields(self, request: web.BaseRequest, *, from_proxy: bool) -> list[tuple[str, str]]:
        """Return the fields that go to the agent: end to end, and nobody's forged word."""
        fields = [
            (name, value)
            for name, value in end_to_end(decoded(request.raw_headers))
            if name.lower() not in ("host", "content-length", "expect")
            and self._identity.may_pass(name, from_proxy=from_proxy)
        ]
        if not from_proxy:
            fields += [
                ("X-Forwarded-For", request.remote or "unknown"),
                ("X-Forwarded-Proto", request.scheme),
                ("X-Forwarded-Host", request.host),
            ]
        return fields

    @contextmanager
    def _counted(self, request: web.BaseRequest, *, from_proxy: bool) -> Iterator[None]:
        """Count a request for its caller. Raises HTTPException: there are too many."""
        caller = request.remote or ""
        if from_proxy:  # the proxy says who asks; the last address is its own word
            caller = request.headers.get("X-Forwarded-For", caller).rpartition(",")[2].strip()
        if self._requests.total() >= self._options.max_requests:
            raise web.HTTPServiceUnavailable(text="too many requests at once\n")
        if self._requests[caller] >= self._options.max_requests_per_caller:
            raise web.HTTPTooManyRequests(text="too many requests of this caller at once\n")
        self._requests[caller] += 1
        try:
            yield
        finally:
            self._requests[caller] -= 1
            if not self._requests[caller]:
                del self._requests[caller]

    def _with_tenant(self, place: Place) -> Place:
        """Return a place of HTTP+JSON with the tenant that its path has after the agent's own."""
        base = max(
            (each for each in self._facts.rest_bases if place.path.startswith(each)),
            key=len,
            default="",
        )
        tenant = place.path.removeprefix(base).strip("/")
        return place._replace(tenant=place.tenant or ("" if "/" in tenant else tenant))

    # --- what is passed on -----------------------------------------------------------------------

    async def _pass_on(self, asked: Asked) -> web.StreamResponse:
        request = asked.request
        async with self._upstream.asked(
            request.method,
            request.raw_path,
            asked.fields,
            asked.body,
            streams=EVENT_STREAM in request.headers.get("Accept", ""),
        ) as answer:
            response = head_of(answer)
            await response.prepare(request)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except aiohttp.ClientConnectionResetError:
                return response  # the client is gone
            except (aiohttp.ClientPayloadError, TimeoutError) as exc:
                self._faults.log(str(type(exc)), logging.WARNING, "an answer broke off: %s", exc)
                return cut(request, response)
            return response

    # --- keys and cards --------------------------------------------------------------------------

    def _jwks(self, request: web.BaseRequest) -> web.Response:
        found = self._sender.jwks(request.headers.get("If-None-Match"))
        return web.Response(status=found.status, headers=dict(found.headers), body=found.body)

    async def _card(self, asked: Asked) -> web.Response:
        fields = [
            (name, value)
            for name, value in asked.fields
            if not name.lower().startswith(("if-", "accept", "range"))
        ]
        status, body = await self._upstream.card(asked.path, fields)
        if status != 200:
            return json_response(status, body)
        try:
            self._facts = facts_of(body, self._upstream.base_path)
            body = await self._cards.rewritten(body)
        except CardUnavailableError as exc:
            self._faults.log("card", logging.ERROR, "%s", exc)
            return web.Response(status=502, text="the agent's card cannot be served\n")
        return json_response(200, body)

    async def _extended_card(self, asked: Asked) -> web.Response:
        async with self._upstream.asked(
            asked.request.method, asked.request.raw_path, not_compressed(asked.fields), asked.body
        ) as answer:
            body = await self._upstream.read(answer)
        try:
            document = json.loads(body)
            card = document.get("result")
            if isinstance(card, dict) and not card.get("signatures"):
                body = self._cards.changed(body.decode(), document).encode()
        except (ValueError, AttributeError):
            pass  # an error of the agent's, passed on
        return json_response(answer.status, body)

    # --- push configs ----------------------------------------------------------------------------

    async def _config(self, asked: Asked, call: ClientCall) -> web.Response:
        request = asked.request
        path = "/"
        if call.place.binding is Binding.HTTP_JSON:
            base = call.place.path.removesuffix(f"/{call.place.tenant}")
            path = asked.path.removeprefix(base)
        before = _CHECKED.set(_Checked(asked, call))
        try:
            answer = await self._configs.handle(
                ApiRequest(
                    owner=await self._owner(asked),
                    method=request.method,
                    path=path,
                    query=query_members(request.rel_url.raw_query_string),
                    content_type=request.headers.get("Content-Type", ""),
                    version=request.headers.get("A2A-Version"),
                    body=asked.body if len(asked.body) <= self._configs.max_body_bytes else None,
                )
            )
        finally:
            _CHECKED.reset(before)
        return web.Response(status=answer.status, headers=dict(answer.headers), body=answer.body)

    async def _owner(self, asked: Asked) -> str | None:
        received = decoded(asked.request.raw_headers)
        try:
            return await self._identity.owner_of(received, asked.request.remote)
        except KeysUnavailableError as exc:
            self._faults.log("identity", logging.ERROR, "callers' tokens: %s", exc)
            raise UpstreamError("callers cannot be identified at the moment", 503) from exc

    async def _may_see(self, caller: Caller, task_id: str) -> bool:
        """Return whether the agent shows the caller a task; watch it for a config that is set."""
        asked, call = _CHECKED.get()
        place = self._place(call, caller)
        try:
            task = await self._task(caller, task_id)
        except TaskRefusedError as exc:
            if exc.status == 404:
                return False
            raise ApiError(ErrorKind.CALLER, "the agent refuses it", status=exc.status) from exc
        except UpstreamError as exc:
            self._faults.log(str(exc), logging.WARNING, "%s", exc)
            raise ApiError(ErrorKind.INTERNAL, "the agent did not answer", status=502) from exc
        if call.changes_config and not task.status.state.terminal:
            try:
                await self._watcher.add(place, task_id, self._credentials(asked), known=task)
            except StorageError as exc:
                raise ApiError(ErrorKind.INTERNAL) from exc
        return True

    async def _task(self, caller: Caller, task_id: str) -> Task:
        """Return a task as the agent shows it to the caller.

        Raises:
            TaskRefusedError: The agent does not.
            UpstreamError: The agent did not answer.
        """
        asked, call = _CHECKED.get()
        place = self._place(call, caller)
        task, _ = await self._upstream.task(place, task_id, asked.fields_to_ask_with)
        return task

    def _place(self, call: ClientCall, caller: Caller) -> Place:
        """Return where the agent is asked for the caller, in a version that it speaks."""
        place, spoken = call.place._replace(tenant=caller.tenant), self._facts.versions
        if place.binding is Binding.HTTP_JSON or not spoken or place.version in spoken:
            return place
        return place._replace(version=V1_0 if V1_0 in spoken else V0_3)

    def _credentials(self, asked: Asked) -> list[tuple[str, str]]:
        return credentials_of(asked.fields, self._options.credential_headers)

    # --- messages --------------------------------------------------------------------------------

    async def _message(self, asked: Asked, call: ClientCall) -> web.StreamResponse:
        """Answer a message: with a push config, or for an early answer, by the agent's stream."""
        try:
            config, owner = await self._inline(asked, call)
        except ApiError as exc:
            return refusal(call, exc)
        is_stream = call.act is Act.STREAM
        if config is None and (is_stream or not call.answers_early):
            return await self._pass_on(asked)
        sending = Sending(
            upstream=self._upstream,
            watcher=self._watcher,
            asked=asked,
            call=call,
            streams=is_stream or self._facts.streams,
            credentials=self._credentials(asked),
        )
        if config is not None:
            register = functools.partial(self._subscribe, call, config, owner or "")
            sending.register = register
        # Not of the client's connection: the config is registered even if that breaks.
        task = asyncio.create_task(sending.run(), name="pushkit-gateway-message")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return await sending.answered()

    async def _inline(self, asked: Asked, call: ClientCall) -> tuple[PushConfig | None, str | None]:
        """Return the config of a message, and its owner. Raises ApiError: it is refused."""
        owner = None
        with self._config_errors(""):
            config = parse_inline_config(call.params, call.place.version)
        if config is not None:
            owner = await self._owner(asked)
            if owner is None:
                raise ApiError(ErrorKind.CALLER, "the caller is not known")
            with self._config_errors(owner):
                self._sender.check_url(config.url)
        return config, owner

    @contextmanager
    def _config_errors(self, owner: str) -> Iterator[None]:
        with config_errors(self._sender, owner, self._faults, _api_error):
            yield

    async def _subscribe(
        self, call: ClientCall, config: PushConfig, owner: str, task_id: str
    ) -> None:
        """Register the config of a message. Raises ApiError: it is refused."""
        with self._config_errors(owner):
            await self._sender.subscribe(
                task_id,
                config,
                version=call.place.version,
                owner=owner,
                tenant=call.place.tenant,
                filter=self._filter_of(owner),
            )

    async def finish(self) -> None:
        """Wait for messages whose configs are being registered."""
        if self._sending:
            await asyncio.wait(self._sending)


def _api_error(error: PushkitError | None) -> ApiError:
    return ApiError(ErrorKind.PARAMS, str(error)) if error else ApiError(ErrorKind.INTERNAL)
