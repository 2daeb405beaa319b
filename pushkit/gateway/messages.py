"""Requests of clients as they go to the agent, and its answers as they go to clients.

A message with a push config, or one that its client wants an early answer to, goes to the agent
without its config, as a stream where the agent has streams, and its task is watched from the first
event on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import aiohttp
from aiohttp import web

from pushkit.a2a import MessageUpdate, Task, TaskSnapshot
from pushkit.errors import (
    MalformedJsonError,
    PushkitError,
    StorageError,
    UnrecognisedBodyError,
)
from pushkit.gateway.calls import (
    Act,
    Binding,
    ClientCall,
    message_answer,
    message_request,
    read_answer,
    read_update,
)
from pushkit.gateway.events import EventStream, Waiting
from pushkit.gateway.upstream import (
    EVENT_STREAM,
    Fields,
    TaskRefusedError,
    Upstream,
    UpstreamError,
    is_event_stream,
)
from pushkit.gateway.watcher import Watcher, counted
from pushkit.integrations.push_config_api.configs import InlineConfig
from pushkit.integrations.push_config_api.errors import (
    ApiError,
    ErrorKind,
    http_error,
    json_rpc_refusal,
)
from pushkit.webhook import Headers

_log: Final = logging.getLogger("pushkit.gateway")

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OF_THIS_REQUEST: Final = frozenset(
    {
        "a2a-version",
        "accept",
        "accept-encoding",
        "content-type",
        "range",
        "user-agent",
    }
)
_OF_ITS_BODY: Final = frozenset(
    {
        "accept-ranges",
        "content-digest",
        "content-encoding",
        "content-length",
        "content-md5",
        "content-type",
        "digest",
        "etag",
        "last-modified",
        "repr-digest",
    }
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # all but the tab (RFC 9110 §5.5)


class Asked(NamedTuple):
    """A request of a client, read."""

    request: web.BaseRequest
    headers: Headers  # as they were received
    body: bytes
    fields: list[tuple[str, str]]  # as they go to the agent

    @property
    def path(self) -> str:
        """The path, undecoded."""
        return self.request.raw_path.partition("?")[0]

    @property
    def fields_to_ask_with(self) -> list[tuple[str, str]]:
        """The fields with which the gateway asks the agent for this caller."""
        return without(_OF_THIS_REQUEST, self.fields)


def end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the fields of a head that concern not only its connection (RFC 9110 §7.6.1), as text.

    aiohttp writes it again in UTF-8. What is not UTF-8 is ISO 8859-1 (§5.5): of anything else
    aiohttp would leave bytes out, and the name of a user would be that of another one.
    """
    fields = [(name.decode("ascii"), _text(value)) for name, value in raw]
    options = ",".join(value for name, value in fields if name.lower() == "connection").lower()
    return without(_HOP_BY_HOP | {each.strip() for each in options.split(",")}, fields)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def without(names: Set[str], fields: Fields) -> list[tuple[str, str]]:
    """Return fields without those of some names, which are in lower case."""
    return [field for field in fields if field[0].lower() not in names]


def not_compressed(fields: Fields) -> list[tuple[str, str]]:
    """Return fields that ask for an answer that the gateway can read."""
    return [*without({"accept-encoding"}, fields), ("Accept-Encoding", "identity")]


def _given(answer: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    """Return the fields of the agent's answer that go to the client."""
    fields = end_to_end(answer.raw_headers)
    for name, value in fields:
        if _CONTROL.search(value):  # aiohttp reads it, and does not write it
            raise UpstreamError(f"the agent's answer has a control character in the field {name}")
    return fields


def head_of(answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Return the head of the agent's answer, as it goes to the client."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    response.headers.extend(_given(answer))
    return response


def whole(answer: aiohttp.ClientResponse, body: bytes) -> web.Response:
    """Return the agent's answer, which was read."""
    response = web.Response(status=answer.status, reason=answer.reason, body=body)
    response.headers.clear()
    response.headers.extend(without({"content-length"}, _given(answer)))
    return response


def instead(answer: aiohttp.ClientResponse, body: bytes) -> web.Response:
    """Return the agent's answer with another body, which is JSON.

    What else its head says is for the client, such as to which web pages a browser may show it.
    """
    response = web.json_response(body=body, status=answer.status)
    response.headers.extend(without(_OF_ITS_BODY, _given(answer)))
    return response


def for_browsers(answer: aiohttp.ClientResponse) -> list[tuple[str, str]]:
    """Return what the agent's answer says of the web pages to which a browser may show it."""
    return [
        (name, value)
        for name, value in _given(answer)
        if name.lower() == "vary" or name.lower().startswith("access-control-")
    ]


def cut(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """End a connection whose answer is not whole, so that the client sees that it is not."""
    if request.transport is not None:
        request.transport.abort()
    response.force_close()
    return response


def refusal(call: ClientCall, error: ApiError) -> web.Response:
    """Return the answer to a message whose config is refused."""
    if call.place.binding is Binding.HTTP_JSON:
        told, status = http_error(error), error.status
    else:
        told = json_rpc_refusal(error, call.place.version, call.id)
        status = error.status if error.kind is ErrorKind.CALLER else 200
    return web.json_response(body=json.dumps(told).encode(), status=status)


# --- messages ------------------------------------------------------------------------------------

Respond: TypeAlias = Callable[[], Awaitable[web.StreamResponse]]
"""Answers the client, on its connection."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sending:
    """A message on its way to the agent, and its answer."""

    upstream: Upstream
    watcher: Watcher
    asked: Asked  # the client's request
    call: ClientCall  # what it says
    streams: bool  # whether the agent streams
    credentials: list[tuple[str, str]]  # what the agent is asked with about the task
    config: InlineConfig | None  # the push config of the message
    _unsent: Waiting[bytes] | None = field(init=False, default=None)  # the stream's, for its client
    _is_left: bool = field(init=False, default=False)  # whether nobody waits for the answer

    async def answered(self, running: asyncio.Task[Respond]) -> web.StreamResponse:
        """Answer the client, once `run` knows how, which goes on if the client leaves."""
        try:
            respond = await asyncio.shield(running)
            return await respond()
        finally:
            self._is_left = True
            if self._unsent is not None:
                self._unsent.drop()

    async def run(self) -> Respond:
        """Send the message, register its config, watch its task. Raises ApiError, UpstreamError."""
        task_id = self.call.task_id if self.streams else ""
        try:
            with counted(self.watcher.expected, (self.call.place.tenant, task_id)):
                return await self._sent()
        except (ApiError, UpstreamError):
            raise
        except PushkitError as exc:
            raise UpstreamError(str(exc), 503) from exc
        except Exception as exc:  # the client waits for an answer
            _log.exception("a message could not be answered")
            raise UpstreamError("internal error", 500) from exc

    async def _sent(self) -> Respond:
        """Send the message; return how the client is answered."""
        _, mark, query = self.asked.request.raw_path.partition("?")
        request = message_request(self.call, mark + query, streams=self.streams)
        fields = without({"accept"}, not_compressed(self.asked.fields))
        accept = EVENT_STREAM if self.streams else "application/json"
        fields.append(("Accept", accept))
        answer = await self.upstream.ask(*request, fields, streams=self.streams)
        if is_event_stream(answer):
            return await self._streamed(answer)
        try:
            return await self._answered_once(answer, await self.upstream.read(answer))
        finally:
            answer.close()

    async def _answered_once(self, answer: aiohttp.ClientResponse, body: bytes) -> Respond:
        """Take the one answer of an agent that does not stream, or that refuses."""
        place, update = self.call.place, None
        try:
            result = read_answer(body, place.binding).result
            update = read_update(result, place.version) if result is not None else None
        except (MalformedJsonError, UnrecognisedBodyError):
            pass  # it is the client's to understand
        if update is not None and update.task_id and not isinstance(update, MessageUpdate):
            seen = update.task if isinstance(update, TaskSnapshot) else None
            await self._watch(update.task_id, seen=seen)
        return _at_once(whole(answer, body))

    async def _streamed(self, answer: aiohttp.ClientResponse) -> Respond:
        stream = self.upstream.stream_of(answer, self.call.place)
        if self.call.act is Act.STREAM and not self._is_left:
            self._unsent = stream.for_client()
        first = await stream.first
        update = first.update if first is not None else None
        # A message belongs to no task that can be watched.
        has_task = update is not None and not isinstance(update, MessageUpdate)
        task_id = update.task_id if update is not None and has_task else None
        try:
            is_watched = bool(task_id) and await self._watch(task_id or "", stream=stream)
        except (ApiError, StorageError):
            stream.unwatch()  # the client is told; the agent works on
            raise
        if not is_watched:
            stream.unwatch()
        if self._unsent is not None:
            return functools.partial(self._passed_on, answer, self._unsent)
        if first is None:
            raise UpstreamError("the agent's stream ended before its first event")
        early = self.call.answers_early
        as_is = isinstance(update, TaskSnapshot) and update.origin is self.call.place.version
        is_over = update is not None and update.state is not None and update.state.terminal
        if not task_id or (as_is and (early or is_over)):
            return _at_once(instead(answer, first.data))  # also of a message, or an error
        return functools.partial(self._task_answered, stream, task_id, early=early)

    async def _task_answered(
        self, stream: EventStream, task_id: str, *, early: bool
    ) -> web.StreamResponse:
        """Answer with the whole task: as it is, or at its end."""
        if not early:
            await asyncio.shield(stream.settled)
        try:
            shown = await self.upstream.task(
                self.call.place,
                task_id,
                self.asked.fields_to_ask_with,
                self.call.history_length,
            )
        except TaskRefusedError as exc:
            raise UpstreamError("the agent does not show the task that it began") from exc
        return instead(stream.answer, message_answer(self.call, shown.written))

    async def _watch(
        self, task_id: str, *, stream: EventStream | None = None, seen: Task | None = None
    ) -> bool:
        """Register the config, and watch the task; return whether the stream is read for it.

        A task without a config is left alone, unless it is watched here already.

        Raises:
            ApiError: The config is refused.
            StorageError: The task cannot be watched.
        """
        place = self.call.place
        if self.config is None:
            there = self.watcher.get(place.tenant, task_id)
            return there is not None and there.attach(stream)
        await self.config.register(task_id)
        return await self.watcher.add(place, task_id, self.credentials, stream=stream, seen=seen)

    async def _passed_on(
        self, answer: aiohttp.ClientResponse, unsent: Waiting[bytes]
    ) -> web.StreamResponse:
        response, request = head_of(answer), self.asked.request
        await response.prepare(request)
        if request.transport is not None:
            unsent.on_drop = request.transport.abort  # a client that reads nothing is waited for
        with contextlib.suppress(ConnectionError):  # the client is gone; the stream is read on
            async for chunk in unsent.items():
                await response.write(chunk)
        unsent.on_drop = None
        return cut(request, response) if unsent.lost else response


def _at_once(response: web.Response) -> Respond:
    async def respond() -> web.StreamResponse:
        return response

    return respond
