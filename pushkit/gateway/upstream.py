"""The agent behind a gateway: the one host that the gateway asks, whatever its cards say."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import aiohttp
from yarl import URL

from pushkit.a2a import Task, WireVersion
from pushkit.bounded_json import JsonObject
from pushkit.errors import (
    ConfigError,
    InvalidUrlError,
    MalformedJsonError,
    PushkitError,
    UnrecognisedBodyError,
)
from pushkit.gateway.calls import (
    OwnRequest,
    Place,
    read_answer,
    read_task,
    subscribe_request,
    task_request,
)
from pushkit.gateway.events import EventLines, EventStream
from pushkit.gateway.options import GatewayOptions
from pushkit.logs import RepeatedLog
from pushkit.net.tls import tls_context
from pushkit.url import Url
from pushkit.version import USER_AGENT

_log: Final = logging.getLogger("pushkit.gateway")

Fields: TypeAlias = Iterable[tuple[str, str]]

_NOT_FOUND: Final = -32001
_AT_ONCE: Final = 64 * 1024  # bytes: a longer body is written in parts
EVENT_STREAM: Final = "text/event-stream"


class UpstreamError(PushkitError, code="upstream"):
    """The agent could not be asked; `status` is what a client gets."""

    def __init__(self, reason: str, status: int = 502) -> None:
        super().__init__(reason)
        self.status = status


class TaskRefusedError(PushkitError, code="task_refused"):
    """The agent refuses a caller a task: `status` is its own, 404 for a task that is not there."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the agent refuses the task, with HTTP status {status}")
        self.status = status


class ShownTask(NamedTuple):
    """A task as the agent shows it."""

    task: Task
    written: JsonObject  # as the agent writes it
    answer: aiohttp.ClientResponse  # its head


class Upstream:
    """The agent.

    Raises:
        ConfigError: The URL, or a file of TLS, cannot be used.
    """

    def __init__(self, url: str, options: GatewayOptions) -> None:
        if re.match(r"(wss?|grpcs?)://", url, re.IGNORECASE):
            scheme = url.partition(":")[0]
            raise ConfigError(
                f"upstream: found {scheme}://, expected http:// or https://: the gateway speaks"
                " JSON-RPC and HTTP+JSON, not WebSocket and not gRPC"
            )
        try:
            self.url: Final = Url.parse(url)
        except InvalidUrlError as exc:
            raise ConfigError(
                "upstream: expected the base URL of an agent, like http://127.0.0.1:8000"
            ) from exc
        path, _, query = self.url.target.partition("?")
        if query:
            raise ConfigError("upstream: found a query, expected the base URL of an agent")
        self.base_path: Final = path.rstrip("/")
        self.root = "/"  # what follows the base path for a request at `/`; empty for nothing
        self._options = options
        self._tls: ssl.SSLContext | bool = True
        if options.upstream_ca_file is not None or options.upstream_certificate is not None:
            ca_file = options.upstream_ca_file
            self._tls = tls_context(
                client=options.upstream_certificate,
                ca_file=None if ca_file is None else Path(ca_file),
            )
        self._session: aiohttp.ClientSession | None = None
        self._streams = set[EventStream]()
        self._faults = RepeatedLog(_log)

    @property
    def streams(self) -> int:
        """How many streams are read."""
        return len(self._streams)

    async def open(self) -> None:
        """Make the client."""
        # Many agents close a connection after five quiet seconds, perhaps as a request comes.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4, ssl=self._tls)
        # Bodies are passed on byte by byte; the only host is the operator's; no cookie is kept.
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            trust_env=False,
            max_line_size=16_384,
            max_field_size=16_384,
        )

    async def close(self) -> None:
        """Close all connections, those of streams that are still read, too."""
        for stream in list(self._streams):
            await stream.close()
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def asked(
        self, method: str, path: str, body: bytes, fields: Fields, *, streams: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and yield the head of the answer; then its body is not read further.

        Args:
            method: The HTTP method.
            path: Path and query below the base URL, as they are sent.
            body: The body.
            fields: The header fields, without those of the connection.
            streams: Whether the answer may be a stream of events.

        Raises:
            UpstreamError: There is no answer.
        """
        answer = await self.ask(method, path, body, fields, streams=streams)
        try:
            yield answer
        finally:
            answer.release() if answer.content.at_eof() else answer.close()

    async def ask(
        self, method: str, path: str, body: bytes, fields: Fields, *, streams: bool = False
    ) -> aiohttp.ClientResponse:
        """Send a request, and return the head of the answer, which the caller closes.

        Arguments and errors are as for `asked`.
        """
        if self._session is None:
            raise UpstreamError("the gateway is not open")
        options = self._options
        silence = options.stream_timeout if streams else options.timeout
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=options.connect_timeout.total_seconds(),
            sock_read=silence.total_seconds(),
        )
        if path.partition("?")[0] == "/":
            path = self.root + path[1:]
        scheme, authority = self.url.scheme, self.url.authority
        url = URL(f"{scheme}://{authority}{self.base_path}{path}", encoded=True)
        try:
            # aiohttp's own time-out begins once the request is written, which the agent must read.
            async with asyncio.timeout(silence.total_seconds()):
                return await self._session.request(
                    method,
                    url,
                    headers=list(fields),
                    data=io.BytesIO(body) if len(body) > _AT_ONCE else body or None,
                    allow_redirects=False,
                    timeout=timeout,
                )
        except TimeoutError as exc:
            raise UpstreamError("the agent did not answer in time", 504) from exc
        except aiohttp.ClientResponseError as exc:
            raise UpstreamError("the agent's answer is not valid HTTP") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise UpstreamError(f"the agent cannot be reached: {type(exc).__name__}") from exc

    async def read(self, answer: aiohttp.ClientResponse) -> bytes:
        """Return the body of an answer.

        Raises:
            UpstreamError: It is too long, or broke off.
        """
        body, most = bytearray(), self._options.max_body_bytes
        try:
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > most:
                    answer.close()
                    raise UpstreamError(f"an answer of the agent is longer than {most} bytes")
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise UpstreamError("an answer of the agent broke off") from exc
        return bytes(body)

    async def task(
        self, place: Place, task_id: str, fields: Fields, history_length: int | None = None
    ) -> ShownTask:
        """Return a task.

        Raises:
            TaskRefusedError: There is no such task for these credentials.
            UpstreamError: The agent did not answer with a task.
        """
        request = task_request(place, task_id, history_length)
        async with self.asked(*request, _own_fields(place, request, fields)) as answer:
            body = await self.read(answer)
        refused = answer.status in (401, 403, 404)
        try:
            answered = read_answer(body, place.binding)
            if answered.result is not None and answer.status == 200:
                task = read_task(answered.result, place.version)
                if task.id != task_id:
                    raise UpstreamError("the agent answered with another task than was asked for")
                return ShownTask(task, answered.result, answer)
            refused = refused or answered.code == _NOT_FOUND
        except (MalformedJsonError, UnrecognisedBodyError) as exc:
            if not refused:
                raise UpstreamError(f"the agent did not answer with a task: {exc}") from exc
        if refused:
            raise TaskRefusedError(answer.status if answer.status in (401, 403) else 404)
        raise UpstreamError(f"the agent did not answer with a task: HTTP status {answer.status}")

    async def subscribe(self, place: Place, task_id: str, fields: Fields) -> EventStream | None:
        """Return the stream of a task; None if the agent gives none.

        Raises:
            UpstreamError: There is no answer.
        """
        request = subscribe_request(place, task_id)
        own = _own_fields(place, request, fields, EVENT_STREAM)
        answer = await self.ask(*request, own, streams=True)
        if request.method == "GET" and answer.status in (404, 405):  # some SDKs know POST alone
            answer.close()
            answer = await self.ask(*request._replace(method="POST"), own, streams=True)
        if is_event_stream(answer):
            return self.stream_of(answer, place, is_own=True)
        answer.close()
        return None

    def stream_of(
        self, answer: aiohttp.ClientResponse, place: Place, *, is_own: bool = False
    ) -> EventStream:
        """Return the stream of an answer, which is read from now on until its end."""
        stream = EventStream(
            answer=answer,
            place=place,
            lines=EventLines(self._options.max_event_bytes),
            on_end=self._streams.discard,
            faults=self._faults,
            is_own=is_own,
        )
        self._streams.add(stream)
        return stream

    async def card(self, path: str, fields: Fields = ()) -> tuple[aiohttp.ClientResponse, bytes]:
        """Return the answer to a request for the card, and its body.

        Raises:
            UpstreamError: There is no whole answer.
        """
        own = [("Accept", "application/json"), ("Accept-Encoding", "identity")]
        async with self.asked("GET", path, b"", [*own, *fields]) as answer:
            return answer, await self.read(answer)

    async def asks_who_calls(self, place: Place) -> bool:
        """Return whether the agent refuses a task to a caller without credentials, as unknown.

        Raises:
            UpstreamError: There is no answer.
        """
        request = task_request(place, "pushkit-no-such-task")
        async with self.asked(*request, _own_fields(place, request, ())) as answer:
            await self.read(answer)
        return answer.status in (401, 403)


def _own_fields(
    place: Place, request: OwnRequest, fields: Fields, accept: str = "application/json"
) -> list[tuple[str, str]]:
    own = [("Accept", accept), ("Accept-Encoding", "identity"), ("User-Agent", USER_AGENT)]
    if place.version is not WireVersion.V0_3:  # which has no such field: missing, it means 0.3
        own.append(("A2A-Version", place.version.value))
    if request.body:
        own.append(("Content-Type", "application/json"))
    return [*own, *fields]


def is_event_stream(answer: aiohttp.ClientResponse) -> bool:
    """Return whether an answer is a stream of events."""
    return answer.status == 200 and answer.content_type == EVENT_STREAM
