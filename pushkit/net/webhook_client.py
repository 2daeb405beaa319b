"""POST to webhooks over kept-alive lanes: what the delivery path needs of HTTP/1.1, and no more.

No redirect is followed, no proxy is taken from the environment, no cookie is kept, nothing is
decompressed, and answers are bounded; one deadline is over all of it, looking up the name included.
Names and addresses are judged by the same guard as everywhere, the address once more by the socket
that dials it. Lanes are shared only by what was judged alike: one origin, one TLS context, and
named by the operator or not.

A kept-alive lane may have been closed by its other end while nobody looked. Where that shows before
a byte of an answer came, the request is sent once more over a new connection, within the same
deadline, and counts as one.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType, SocketFactoryType
from aiohttp.abc import AbstractResolver

from pushkit.errors import TransportError
from pushkit.net.addresses import address_is_own, parse_address
from pushkit.net.deadlines import Deadlines
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.failures import (
    BrokenAnswerError,
    ClosedEarlyError,
    LookupFailedError,
    ProxyRefusedError,
    ProxyUnreachableError,
    transport_error,
)
from pushkit.net.guard import Guard, Resolver, dialling_socket
from pushkit.net.lane import Lane, Question, Reply
from pushkit.net.proxy import EgressProxy, ProxyDialler
from pushkit.net.timing import Probe, current_probe
from pushkit.net.tls import tls_context
from pushkit.net.transport import MAX_ANSWER_BYTES, Answer
from pushkit.url import host_and_port
from pushkit.webhook import Headers

__all__ = ["WebhookClient"]

_MAX_PROXY_HEAD_BYTES = 16 * 1024
_KEPT_SECONDS = 15.0
_NEXT_ADDRESS_AFTER = 0.25
_PROXY_HEAD = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


class _Way(NamedTuple):
    """Which requests may share a lane."""

    scheme: str
    host: str
    port: int
    allowed_by_name: bool
    tls: ssl.SSLContext | None


@dataclass(slots=True)
class _Lanes:
    """The lanes of one way: those that wait for work, and how many there are in all."""

    idle: list[Lane] = field(default_factory=list)
    open: set[Lane] = field(default_factory=set)
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class WebhookClient:
    """Connections to webhooks under one destination policy.

    Args:
        policy: Which destinations and addresses are allowed.
        connections: How many connections at once, over all destinations.
        connections_per_host: How many to one host and port.
        resolver: Who looks names up; the system's name servers if None.
        proxy: An egress proxy, as `http://[user:password@]host:port`. Destinations that the
            operator named are dialled without it.
        ca_file: Roots in PEM that are trusted beside the system's.
        is_own: Says whether an address is this machine's own.
        has_news: Says whether a socket has something to read, without reading it.

    Raises:
        ConfigError: The proxy or the file is not what it should be.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        *,
        connections: int = 256,
        connections_per_host: int = 16,
        resolver: AbstractResolver | None = None,
        proxy: str | None = None,
        ca_file: Path | None = None,
        is_own: Callable[[str], bool] = address_is_own,
        has_news: Callable[[int], bool] | None = None,
    ) -> None:
        self.policy = policy
        self._connections = connections
        self._per_host = connections_per_host
        self._resolver = Resolver(resolver)
        self._guard = Guard(policy, self._resolver, is_own=is_own)
        self._proxy = EgressProxy.parse(proxy) if proxy else None
        self._dialler = ProxyDialler(self._proxy, self._resolver) if self._proxy else None
        self._tls = tls_context(ca_file=ca_file)
        self._has_news = has_news or _has_news
        self._deadlines = Deadlines()
        self._lanes: dict[_Way, _Lanes] = {}
        self._open = 0
        self._sweeping: asyncio.TimerHandle | None = None

    async def post(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        *,
        timeout: timedelta,  # noqa: ASYNC109  # the deadline of this attempt, enforced here
        tls: ssl.SSLContext | None = None,
        body_within: timedelta | None = None,
    ) -> Answer:
        """Send one POST and return the answer, whatever its status.

        Args:
            destination: A URL that passed the policy.
            headers: All of them but `Host` and `Content-Length`.
            body: The body.
            timeout: Over everything, from looking up the name to the end of the answer.
            tls: Roots and client certificate for this destination, from `tls_context`; connections
                are shared only under the same one.
            body_within: How long the body of the answer may take once its head is there; None for
                as long as `timeout` leaves it. What is not there by then is dropped, and the
                connection with it.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        url = destination.url
        head = _head(destination, headers, len(body))
        context = (tls or self._tls) if url.scheme == "https" else None
        way = _Way(
            url.scheme,
            url.host,
            url.port,
            destination.allowed_by_name,
            context,
        )
        question = Question(
            head,
            body,
            until=asyncio.get_running_loop().time() + timeout.total_seconds(),
            body_within=None if body_within is None else body_within.total_seconds(),
            max_body_bytes=MAX_ANSWER_BYTES,
        )
        probe = Probe()
        try:
            return await self._ask(way, question, probe)
        except Exception as exc:  # whatever an answer brings about is its sender's doing
            seconds = timeout.total_seconds()
            raise transport_error(exc, destination, seconds=seconds, probe=probe) from exc

    async def close(self) -> None:
        """Close all lanes."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for lanes in self._lanes.values():
            for lane in lanes.idle:
                lane.close()
            lanes.idle.clear()
        await self._resolver.close()

    async def _ask(self, way: _Way, question: Question, probe: Probe) -> Answer:
        lane = self._idle_lane(way) or await self._dialled_lane(way, question.until, probe)
        try:
            reply = await _exchange(lane, question, probe)
        except (ConnectionError, ssl.SSLError):
            if lane.asked == 1 or lane.heard:
                raise
            probe.enter(None)
            self._drop_idle(way)  # the others have been left alone as long, or longer
            lane = await self._dialled_lane(way, question.until, probe)
            reply = await _exchange(lane, question, probe)
        self._give_back(way, lane)
        probe.dialled(lane.peer)
        return Answer(
            status=reply.status,
            headers=Headers(_texts(reply.fields)),
            body=reply.body,
            complete=reply.complete,
            timing=probe.timing(),
        )

    # --- which lane -----------------------------------------------------------------------------

    def _idle_lane(self, way: _Way) -> Lane | None:
        lanes = self._lanes.get(way)
        while lanes is not None and lanes.idle:
            lane = lanes.idle.pop()
            # What came unasked, an end above all, must not become the next request's answer.
            if lane.is_open and not self._has_news(lane.fileno()):
                return lane
            lane.close()
        return None

    async def _dialled_lane(self, way: _Way, until: float, probe: Probe) -> Lane:
        """Return a new lane, or one that became free while there was no room for another."""
        async with asyncio.timeout_at(until):
            while not self._has_room(way):
                await self._room(way)
                lane = self._idle_lane(way)
                if lane is not None:
                    return lane
            lane = Lane(self._deadlines, lambda closed: self._closed(way, closed))
            self._lanes.setdefault(way, _Lanes()).open.add(lane)
            self._open += 1
            reset = current_probe.set(probe)
            try:
                await self._dial(way, lane, probe)
            except BaseException:
                lane.close()
                self._closed(way, lane)
                raise
            finally:
                current_probe.reset(reset)
            return lane

    def _has_room(self, way: _Way) -> bool:
        lanes = self._lanes.get(way)
        if lanes is not None and len(lanes.open) >= self._per_host:
            return False
        if self._open < self._connections:
            return True
        idle = [lane for lanes in self._lanes.values() for lane in lanes.idle]
        if idle:  # the one that waited longest for work makes room, once it is gone
            min(idle, key=lambda lane: lane.idle_since).close()
        return False

    async def _room(self, way: _Way) -> None:
        lanes = self._lanes.setdefault(way, _Lanes())
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lanes.waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(way)
            raise

    def _give_back(self, way: _Way, lane: Lane) -> None:
        if lane.is_open:
            self._lanes[way].idle.append(lane)
            if self._sweeping is None:
                loop = asyncio.get_running_loop()
                self._sweeping = loop.call_later(_KEPT_SECONDS / 2, self._sweep)
            self._wake(way)

    def _closed(self, way: _Way, lane: Lane) -> None:
        lanes = self._lanes.get(way)
        if lanes is None or lane not in lanes.open:
            return
        lanes.open.remove(lane)
        self._open -= 1
        if lane in lanes.idle:
            lanes.idle.remove(lane)
        self._wake(way)
        if not lanes.open and not lanes.waiting:
            del self._lanes[way]

    def _wake(self, way: _Way) -> None:
        """Let one that waits look again: for this way, or for any once there is room in all."""
        first = self._lanes.get(way)
        others = self._lanes.values() if self._open < self._connections else ()
        for lanes in ([first] if first else []) + list(others):
            while lanes.waiting and (lanes.idle or len(lanes.open) < self._per_host):
                waiter = lanes.waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return

    def _drop_idle(self, way: _Way) -> None:
        lanes = self._lanes.get(way)
        for lane in list(lanes.idle) if lanes else ():
            lane.close()
            self._closed(way, lane)

    def _sweep(self) -> None:
        self._sweeping = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _KEPT_SECONDS
        idle = [lane for lanes in self._lanes.values() for lane in lanes.idle]
        for lane in idle:
            if lane.idle_since < oldest:
                lane.close()
        if any(lane.is_open for lane in idle):
            self._sweeping = loop.call_later(_KEPT_SECONDS / 2, self._sweep)

    # --- dialling -------------------------------------------------------------------------------

    async def _dial(self, way: _Way, lane: Lane, probe: Probe) -> None:
        if self._proxy is None or self._dialler is None or way.allowed_by_name:
            by_name = way.allowed_by_name
            found = await self._addresses(
                self._resolver if by_name else self._guard, way.host, way.port, probe
            )
            factory = dialling_socket if by_name else self._guard.open_socket
            sock = await _connected(found, factory)
            await _opened(lane, sock, way)
            return
        addresses = await self._addresses(self._guard, way.host, way.port, probe)
        failed: Exception = OSError(None, "the name has no address")
        for _, _, _, _, sockaddr in addresses:
            try:
                await self._tunnelled(self._proxy, self._dialler, lane, way, str(sockaddr[0]))
            except ProxyRefusedError as exc:
                failed = exc  # nothing has been sent to the destination yet
                continue
            return
        raise failed

    async def _addresses(
        self, resolver: AbstractResolver, host: str, port: int, probe: Probe
    ) -> list[AddrInfoType]:
        if parse_address(host) is not None:  # judged when it is dialled
            probe.enter("connect")
            return [_info(host, port)]
        probe.enter("resolve")
        try:
            answers = await resolver.resolve(host, port)
        except OSError as exc:
            raise LookupFailedError(exc.errno, exc.strerror) from exc
        finally:
            probe.enter("connect")
        return [_info(answer["host"], port) for answer in answers]

    async def _tunnelled(
        self, proxy: EgressProxy, dialler: ProxyDialler, lane: Lane, way: _Way, address: str
    ) -> None:
        """Have the proxy connect to an address that was checked (RFC 9110 §9.3.6)."""
        if address == way.host:  # a literal, which no resolver judged
            self._guard.check(address, way.port)
        try:
            answers = await dialler.resolve(proxy.host, proxy.port)
            infos = [_info(answer["host"], proxy.port) for answer in answers]
            sock = await _connected(infos, dialler.open_socket)
        except OSError as exc:
            # That nobody listens at an egress proxy says nothing of the destination.
            raise ProxyUnreachableError(None, f"the proxy: {exc.strerror or 'failed'}") from exc
        loop = asyncio.get_running_loop()
        asking = _ProxyAnswer(loop.create_future())
        transport, _ = await loop.create_connection(lambda: asking, sock=sock)
        authority = host_and_port(address, way.port)
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        try:
            transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
            await asking.accepted
            transport = await _secured(transport, lane, way)
        except BaseException:
            transport.abort()
            raise
        lane.peer = (address, way.port)
        lane.connection_made(transport)


async def _exchange(lane: Lane, question: Question, probe: Probe) -> Reply:
    probe.enter("wait")
    try:
        reply = await lane.ask(question)
    except BaseException:
        lane.close()
        raise
    probe.enter("body", reply.head_at)
    return reply


class _ProxyAnswer(asyncio.Protocol):
    """Waits for the head of the proxy's answer; the destination speaks only once it is asked."""

    def __init__(self, accepted: asyncio.Future[None]) -> None:
        self.accepted = accepted
        self._head = bytearray()

    def data_received(self, data: bytes) -> None:
        """Read the head."""
        self._head += data
        if self.accepted.done():
            return
        end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) <= _MAX_PROXY_HEAD_BYTES:
            return
        match = _PROXY_HEAD.match(self._head)
        if match is None or end < 0:
            self.accepted.set_exception(BrokenAnswerError("the proxy's answer is not HTTP"))
        elif not match[1].startswith(b"2"):
            refused = ProxyRefusedError(f"the proxy answered {int(match[1])}")
            self.accepted.set_exception(refused)
        elif end + 4 != len(self._head):
            self.accepted.set_exception(BrokenAnswerError("the proxy spoke for the destination"))
        else:
            self.accepted.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say that there is no answer."""
        if not self.accepted.done():
            self.accepted.set_exception(exc or ClosedEarlyError("the proxy closed the connection"))


async def _secured(transport: asyncio.Transport, lane: Lane, way: _Way) -> asyncio.Transport:
    if way.tls is None:
        transport.set_protocol(lane)
        return transport
    secured = await asyncio.get_running_loop().start_tls(
        transport, lane, way.tls, server_hostname=way.host, ssl_shutdown_timeout=1
    )
    if secured is None:
        raise ClosedEarlyError("closed in the TLS handshake")
    return secured


async def _connected(infos: list[AddrInfoType], factory: SocketFactoryType) -> socket.socket:
    return await aiohappyeyeballs.start_connection(
        infos,
        happy_eyeballs_delay=_NEXT_ADDRESS_AFTER,
        interleave=1,
        loop=asyncio.get_running_loop(),
        socket_factory=factory,
    )


async def _opened(lane: Lane, sock: socket.socket, way: _Way) -> None:
    loop = asyncio.get_running_loop()
    try:
        lane.peer = sock.getpeername()
        if way.tls is None:
            await loop.create_connection(lambda: lane, sock=sock)
        else:
            await loop.create_connection(
                lambda: lane,
                sock=sock,
                ssl=way.tls,
                server_hostname=way.host,
                ssl_shutdown_timeout=1,
            )
    except BaseException:
        sock.close()
        raise


def _info(address: str, port: int) -> AddrInfoType:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))


def _head(destination: Destination, headers: Sequence[tuple[str, str]], length: int) -> bytes:
    """Return request line and fields.

    Raises:
        TransportError: A field has a line break or a zero in it.
    """
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = (
        f"POST {destination.url.target} HTTP/1.1\r\nHost: {destination.url.authority}\r\n"
        f"{''.join(lines)}Content-Length: {length}\r\n\r\n"
    )
    ends = len(lines) + 4
    if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:
        raise TransportError(f"{destination.origin}: a header field holds a line break or a zero")
    return text.encode()


def _texts(fields: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(n.decode("latin-1"), v.decode("utf-8", "surrogateescape")) for n, v in fields]


def _has_news(number: int) -> bool:
    if number < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return bool(poll.poll(0))
