"""What a gateway does with a request: passes it on, or answers it.

In the order of `handle`: the public keys, the card, push configs, messages, everything else.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import web

from pushkit.a2a import Task
from pushkit.a2a.push_config import has_inline_config
from pushkit.bounded_json import read_json_object
from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH
from pushkit.delivery.sender import PushSender
from pushkit.errors import (
    CardUnavailableError,
    KeysUnavailableError,
    MalformedJsonError,
    StorageError,
)
from pushkit.gateway.calls import (
    V0_3,
    V1_0,
    Act,
    Binding,
    ClientCall,
    MalformedCallError,
    Place,
    leads_elsewhere,
    read_answer,
    read_call,
)
from pushkit.gateway.card import CardFacts, CardRewriter, facts_of
from pushkit.gateway.identity import Identity
from pushkit.gateway.messages import (
    Asked,
    Sending,
    cut,
    end_to_end,
    for_browsers,
    head_of,
    instead,
    not_compressed,
    refusal,
    whole,
)
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.upstream import (
    EVENT_STREAM,
    TaskRefusedError,
    Upstream,
    UpstreamError,
)
from pushkit.gateway.watcher import Watcher, counted
from pushkit.integrations.push_config_api import Caller, PushConfigApi
from pushkit.integrations.push_config_api.errors import (
    ApiError,
    ErrorKind,
    json_rpc_refusal,
)
from pushkit.integrations.push_config_api.http import ApiRequest, query_members
from pushkit.keys.jwks import JWKS_PATH
from pushkit.logs import RepeatedLog, printable
from pushkit.net.connection import unexpected_status
from pushkit.subscriptions.filters import GATHERED_EVERY
from pushkit.subscriptions.model import Filter
from pushkit.webhook import Headers
from pushkit.webui.asgi import path_below

T = TypeVar("T")

_log: Final = logging.getLogger("pushkit.gateway")

_MOST_HELD: Final = 256 * 2**20  # bytes of all bodies at once
# Content codings whose bodies aiohttp decodes, wherever it runs.
_DECODED: Final = ("", "identity", "gzip", "deflate")
# Of JSON; they differ only in text that is not ASCII.
_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii", "iso-8859-1"})
_CHARSET: Final = re.compile(r"charset[\s*]*=[\s\"']*([\w.:-]*)", re.ASCII)
_FINISHED_WITHIN: Final = 5.0  # seconds


@dataclass(slots=True)
class _Checked:
    """A call about push configs, while it is checked."""

    asked: Asked
    call: ClientCall
    place: Place | None = None  # where the agent was asked for the task
    task: Task | None = None  # as the agent showed it
    answer: aiohttp.ClientResponse | None = None  # the agent's, about the task


_CHECKED: Final[ContextVar[_Checked]] = ContextVar("pushkit_gateway_call")


@dataclass(slots=True, kw_only=True, eq=False)
class Gateway:
    """Answers requests, in front of an agent."""

    sender: PushSender  # stores configs and updates, and delivers; open
    upstream: Upstream  # the agent; open
    identity: Identity  # names the callers
    watcher: Watcher  # watches tasks
    cards: CardRewriter  # makes the gateway's card of the agent's
    options: GatewayOptions
    _configs: PushConfigApi = field(init=False)
    _facts: CardFacts = field(init=False)  # since `learn`, which precedes all requests
    _faults: RepeatedLog = field(init=False, default_factory=lambda: RepeatedLog(_log))
    _requests: Counter[str] = field(init=False, default_factory=Counter)
    _held: int = field(init=False, default=0)  # bytes of bodies
    # What is finished even if its client leaves: messages, and calls about push configs.
    _unfinished: set[asyncio.Task[Any]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._configs = PushConfigApi(
            self.sender,
            task_exists=self._may_see,
            filter=Filter(min_interval=GATHERED_EVERY),
            snapshot=self._task,
        )

    async def learn(self) -> CardFacts:
        """Read the agent's card.

        Raises:
            CardUnavailableError: It cannot be had, or the gateway cannot serve it.
            UpstreamError: The agent does not answer.
        """
        for path in (CARD_PATH, LEGACY_CARD_PATH):
            answer, body = await self.upstream.card(path)
            if answer.status == 200:
                self._facts = facts_of(body, self.upstream.base_path)
                self.upstream.root = "" if self._facts.is_bare else "/"
                await self.cards.rewritten(body)
                return self._facts
        found = f"the agent's card: {unexpected_status(answer.status)}"
        if answer.status >= 500:  # of a proxy, perhaps, whose agent is not there yet
            raise UpstreamError(found)
        raise CardUnavailableError(found)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        try:
            self._check(request)
            headers = Headers(request.headers.items())  # a name that is not UTF-8 is nobody's
            with self._counted(request, headers):
                async with self._body(request) as body:
                    asked = Asked(request, headers, body, self._fields(request))
                    return await self._answer(asked)
        except MalformedCallError as exc:
            answer = json_rpc_refusal(ApiError(ErrorKind.PARSE, str(exc)))
            return web.json_response(body=json.dumps(answer).encode(), status=400)
        except UpstreamError as exc:
            self._faults.log(str(exc), logging.WARNING, "%s", exc)
            return web.Response(status=exc.status, text=f"{exc}\n")
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as exc:  # a defect: aiohttp answers 500, or ends what has begun
            path = printable(request.path)
            self._faults.log(type(exc).__name__, logging.ERROR, "%s failed", path, exc_info=exc)
            raise

    async def _answer(self, asked: Asked) -> web.StreamResponse:
        request = asked.request
        if request.method in ("GET", "HEAD"):
            if asked.path == JWKS_PATH:
                return self._jwks(request)
            if asked.path in (CARD_PATH, LEGACY_CARD_PATH):
                return await self._card(asked)
        if request.method == "OPTIONS":  # a browser asks which web pages the agent knows
            return await self._pass_on(asked)
        call = read_call(request.method, asked.path, asked.body)
        if call is None:
            return await self._pass_on(asked)
        try:
            return await self._call(asked, call)
        except ApiError as exc:
            return refusal(call, exc)

    async def _call(self, asked: Asked, call: ClientCall) -> web.StreamResponse:
        """Answer a call at one of the agent's interfaces. Raises ApiError: it is refused."""
        try:
            call.place = self._with_tenant(call)
        except ApiError:
            if call.act is Act.CONFIGS or has_inline_config(call.params):
                raise
            return await self._pass_on(asked)
        if call.act is Act.CARD:
            return await self._extended_card(asked, call.place.binding)
        if call.act is Act.CONFIGS:
            # A config that is stored is watched, too, even if its client leaves in between.
            return await asyncio.shield(self._detached(self._config(asked, call)))
        return await self._message(asked, call)

    # --- requests ------------------------------------------------------------------------------

    def _check(self, request: web.BaseRequest) -> None:
        if not request.raw_path.startswith("/") or request.raw_path.startswith("//"):
            raise web.HTTPBadRequest(text="expected a path that begins with one slash\n")
        if "#" in request.raw_path:  # no part of a request (RFC 9112 §3.2): some servers drop it
            raise web.HTTPBadRequest(text="expected a path without a fragment\n")
        path = unquote(request.raw_path.partition("?")[0]).replace("\\", "/")
        if self.upstream.base_path and ".." in path.split("/"):
            raise web.HTTPBadRequest(text="expected a path below the agent's\n")
        if request.headers.get("Upgrade") and "websocket" in request.headers["Upgrade"].lower():
            raise web.HTTPNotImplemented(text="the gateway does not speak WebSocket\n")
        if request.content_type.startswith("application/grpc"):
            raise web.HTTPUnsupportedMediaType(text="the gateway does not speak gRPC\n")
        media_type = ",".join(request.headers.getall("Content-Type", [])).lower()
        if "json" in media_type and not _CHARSETS.issuperset(_CHARSET.findall(media_type)):
            raise web.HTTPUnsupportedMediaType(text="expected JSON in UTF-8\n")
        codings = request.headers.getall("Content-Encoding", [])
        if len(codings) > 1 or any(each.lower() not in _DECODED for each in codings):
            raise web.HTTPUnsupportedMediaType(
                text="expected gzip or deflate, or no content coding\n"
            )

    @asynccontextmanager
    async def _body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """Yield the body, decoded, which is held.

        Raises:
            HTTPException: It is too long, too slow, or not in the coding that it names.
        """
        body, most = bytearray(), self.options.max_body_bytes
        if request.headers.get("Expect", "").lower() == "100-continue" and request.can_read_body:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # of the answer, which has not begun
        try:
            async with asyncio.timeout(self.options.timeout.total_seconds()):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._held += len(chunk)
                    if len(body) > most:
                        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(body))
                    if self._held > max(_MOST_HELD, most):
                        raise web.HTTPServiceUnavailable(text="too many large requests at once\n")
            yield bytes(body)
        except TimeoutError as exc:
            raise web.HTTPRequestTimeout(text="the body did not come in time\n") from exc
        except web.RequestPayloadError as exc:
            raise web.HTTPBadRequest(text="the body cannot be decoded\n") from exc
        finally:
            self._held -= len(body)

    def _fields(self, request: web.BaseRequest) -> list[tuple[str, str]]:
        """Return the fields that go to the agent: end to end, and nobody's forged word."""
        from_proxy = self.identity.peers.is_proxy(request.remote or "")
        fields = [
            (name, value)
            for name, value in end_to_end(request.raw_headers)
            if name.lower() not in ("host", "content-length", "content-encoding", "expect")
            and self.identity.may_pass(name, from_proxy=from_proxy)
        ]
        if not from_proxy:
            fields += [
                ("X-Forwarded-For", request.remote or "unknown"),
                ("X-Forwarded-Proto", request.scheme),
                ("X-Forwarded-Host", request.host),
            ]
        return fields

    def _counted(self, request: web.BaseRequest, headers: Headers) -> AbstractContextManager[None]:
        """Count a request for its caller. Raises HTTPException: there are too many."""
        caller = self.identity.peers.of(request.remote or "", headers)
        # A stream is read on after its client has left, and a message with a config sent.
        under_way = max(self._requests.total(), self.upstream.streams, len(self._unfinished))
        if under_way >= self.options.max_requests:
            full = "%d requests at once, as many as may be: others are refused (max_requests)"
            self._faults.log("full", logging.WARNING, full, under_way)
            raise web.HTTPServiceUnavailable(text="too many requests at once\n")
        if self._requests[caller] >= self.options.max_requests_per_caller:
            raise web.HTTPTooManyRequests(text="too many requests of this caller at once\n")
        return counted(self._requests, caller)

    def _with_tenant(self, call: ClientCall) -> Place:
        """Return the place of a call, with the tenant that its path has after the agent's own.

        Raises:
            ApiError: The agent's card names no interface there. What answers there about a task
                may be anybody's word, such as a file that a client sent; or the call names two
                tenants.
        """
        place = call.place
        if place.binding is Binding.JSON_RPC:
            if place.path.rstrip("/") in self._facts.rpc_paths:
                return place
        else:
            for base in self._facts.rest_bases:
                tenant = place.path.removeprefix(base)
                if not place.path.startswith(base) or not re.fullmatch(r"(/[^/]+)?", tenant):
                    continue
                tenant = unquote(tenant[1:]) or place.tenant
                if place.tenant and place.tenant != tenant:
                    raise ApiError(ErrorKind.PARAMS, "tenant: expected the tenant of the path")
                return place._replace(path=_path_of(base, tenant), tenant=tenant)
        raise ApiError(ErrorKind.METHOD, "the agent's card names no interface at this path")

    # --- what is passed on -----------------------------------------------------------------------

    async def _pass_on(self, asked: Asked) -> web.StreamResponse:
        request = asked.request
        async with self.upstream.asked(
            request.method,
            request.raw_path,
            asked.body,
            asked.fields,
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
        found = self.sender.jwks(request.headers.get("If-None-Match"))
        return web.Response(status=found.status, headers=found.headers, body=found.body)

    async def _card(self, asked: Asked) -> web.Response:
        fields = [
            (name, value)
            for name, value in asked.fields
            if not name.lower().startswith(("if-", "accept", "range"))
        ]
        answer, body = await self.upstream.card(asked.request.raw_path, fields)
        if answer.status != 200:
            return whole(answer, body)
        try:
            body = await self.cards.rewritten(body)
        except CardUnavailableError as exc:
            self._faults.log("card", logging.ERROR, "%s", exc)
            return web.Response(status=502, text="the agent's card cannot be served\n")
        return instead(answer, body)

    async def _extended_card(self, asked: Asked, binding: Binding) -> web.Response:
        async with self.upstream.asked(
            asked.request.method, asked.request.raw_path, asked.body, not_compressed(asked.fields)
        ) as answer:
            body = await self.upstream.read(answer)
        with suppress(MalformedJsonError):
            # An error of the agent's is passed on, in whatever form.
            card = read_answer(body, binding).result if answer.status == 200 else None
            if card is not None and not card.get("signatures"):
                changed = self.cards.changed(body.decode(), read_json_object(body))
                return instead(answer, changed.encode())
        return whole(answer, body)

    # --- push configs ----------------------------------------------------------------------------

    async def _config(self, asked: Asked, call: ClientCall) -> web.Response:
        request = asked.request
        path: str | None = "/"
        if call.place.binding is Binding.HTTP_JSON:
            base = call.place.path.rpartition("/")[0] if call.place.tenant else call.place.path
            path = path_below(unquote(base), asked.path)
        checked = _Checked(asked, call)
        before = _CHECKED.set(checked)
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
        task, place = checked.task, checked.place
        if task is not None and place is not None and not task.status.state.terminal:
            # Not before the config is stored: its task might end in between, and nobody be told.
            try:
                await self.watcher.add(place, task.id, self._credentials(asked), known=task)
            except StorageError as exc:
                raise UpstreamError("the task cannot be watched at the moment", 503) from exc
        found = web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        if checked.answer is not None:
            found.headers.extend(for_browsers(checked.answer))
        return found

    async def _owner(self, asked: Asked) -> str | None:
        try:
            return await self.identity.owner_of(asked.headers, asked.request.remote or "")
        except KeysUnavailableError as exc:
            self._faults.log("identity", logging.ERROR, "callers' tokens: %s", exc)
            raise UpstreamError("callers cannot be identified at the moment", 503) from exc

    async def _may_see(self, caller: Caller, task_id: str) -> bool:
        """Return whether the agent shows the caller a task."""
        checked = _CHECKED.get()
        place = self._place(checked.call, caller)
        if place.binding is Binding.HTTP_JSON and leads_elsewhere(task_id):
            return False
        try:
            task = await self._task(caller, task_id)
        except TaskRefusedError as exc:
            if exc.status == 404:
                return False
            raise ApiError(ErrorKind.CALLER, "the agent refuses it", status=exc.status) from exc
        except UpstreamError as exc:
            self._faults.log(str(exc), logging.WARNING, "%s", exc)
            raise ApiError(ErrorKind.INTERNAL, "the agent did not answer", status=502) from exc
        if checked.call.changes_config:
            checked.place, checked.task = place, task
        return True

    async def _task(self, caller: Caller, task_id: str) -> Task:
        """Return a task as the agent shows it to the caller.

        Raises:
            TaskRefusedError: The agent does not.
            UpstreamError: The agent did not answer.
        """
        checked = _CHECKED.get()
        place, fields = self._place(checked.call, caller), checked.asked.fields_to_ask_with
        shown = await self.upstream.task(place, task_id, fields)
        checked.answer = shown.answer
        return shown.task

    def _place(self, call: ClientCall, caller: Caller) -> Place:
        """Return where the agent is asked for the caller, in a version that it speaks."""
        place, spoken = call.place._replace(tenant=caller.tenant), self._facts.versions
        if place.binding is Binding.HTTP_JSON:
            if place.tenant != call.place.tenant:
                # Of the query or the body: the agent has its tasks below the tenant's path.
                place = place._replace(path=_path_of(place.path, place.tenant))
            return place
        if not spoken or place.version in spoken:
            return place
        return place._replace(version=V1_0 if V1_0 in spoken else V0_3)

    def _credentials(self, asked: Asked) -> list[tuple[str, str]]:
        """Return the fields in which a caller proves who it is to the agent."""
        wanted = {name.lower() for name in self.options.credential_headers}
        return [field for field in asked.fields if field[0].lower() in wanted]

    # --- messages --------------------------------------------------------------------------------

    async def _message(self, asked: Asked, call: ClientCall) -> web.StreamResponse:
        """Answer a message: with a push config, or for an early answer, by the agent's stream.

        Raises:
            ApiError: The config is refused.
        """
        # Its tenant is that of the path, too.
        params = call.params | ({"tenant": call.place.tenant} if call.place.tenant else {})
        version, owner = call.place.version, functools.partial(self._owner, asked)
        config = await self._configs.configs.inline(params, version, owner)
        is_stream = call.act is Act.STREAM
        if config is None and (is_stream or not call.answers_early):
            return await self._pass_on(asked)
        sending = Sending(
            upstream=self.upstream,
            watcher=self.watcher,
            asked=asked,
            call=call,
            streams=is_stream or self._facts.streams,
            credentials=self._credentials(asked),
            config=config,
        )
        # Not of the client's connection: the config is registered even if that breaks.
        return await sending.answered(self._detached(sending.run()))

    def _detached(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name="pushkit-gateway-call")
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task

    async def finish(self) -> None:
        """Wait for configs that are being registered, for some seconds."""
        if self._unfinished:
            _, late = await asyncio.wait(self._unfinished, timeout=_FINISHED_WITHIN)
            for each in late:
                each.cancel()


def _path_of(base: str, tenant: str) -> str:
    """Return the path of a tenant. Raises ApiError: the agent might read another path."""
    if leads_elsewhere(tenant):
        raise ApiError(ErrorKind.PARAMS, "tenant: expected a name, found dots")
    return f"{base}/{quote(tenant, safe='')}" if tenant else base
