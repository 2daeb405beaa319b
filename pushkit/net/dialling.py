"""Dialling a lane: the name looked up, its addresses judged, TLS, and the egress proxy if any.

Every address is judged by the guard: all of a name's at once, and the one that a socket is about
to dial once more. What the operator named is dialled as it is.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType, SocketFactoryType

from pushkit.net.addresses import parse_address
from pushkit.net.failures import (
    ClosedEarlyError,
    ProxyFailedError,
    ProxyRefusedError,
)
from pushkit.net.guard import Guard, Names, dialling_socket
from pushkit.net.lane import Lane
from pushkit.net.lanes import Way
from pushkit.net.proxy import EgressProxy
from pushkit.url import host_and_port

_NEXT_ADDRESS_AFTER: Final = 0.25
_TLS_SHUTDOWN_SECONDS: Final = 1
_PROXY_REACHED_WITHIN: Final = timedelta(seconds=5)
# By the proxy, where there is another address: one that swallows everything takes the whole attempt
# otherwise, and each attempt.
_ADDRESS_REACHED_WITHIN: Final = timedelta(seconds=5)
_MAX_PROXY_HEAD_BYTES: Final = 16 * 1024
_PROXY_HEAD: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")


class Dialler:
    """Dials lanes, through the egress proxy if there is one.

    What the operator named is dialled unguarded, and without the proxy.
    """

    def __init__(self, guard: Guard, names: Names, proxy: EgressProxy | None) -> None:
        self._guard = guard
        self._names = names
        self._proxy = proxy

    async def dial(self, way: Way, lane: Lane) -> None:
        """Connect a lane.

        Raises:
            OSError: No address could be reached, or none may be; TLS failed.
            ProxyRefusedError: The proxy reached none of them.
            ProxyFailedError: The proxy was not reached, wants credentials, or is none.
        """
        is_name = parse_address(way.host) is None
        addresses = await self._names.look_up(way.host) if is_name else [way.host]
        if way.allowed_by_name:
            await _open(lane, await _connected(addresses, way.port, dialling_socket), way)
            return
        if is_name or self._proxy is not None:  # else the socket alone has a say
            # All, not any: a name with a public and a private address is an attack that needs two
            # attempts.
            for address in addresses:
                self._guard.check(address, way.port, way.host)
        if self._proxy is None:
            sock = await _connected(addresses, way.port, self._guard.open_socket)
            await _open(lane, sock, way)
            return
        failed: Exception = OSError(None, "the name has no address")
        for number, address in enumerate(addresses, 1):
            within = _ADDRESS_REACHED_WITHIN if number < len(addresses) else None
            try:
                await self._tunnel(self._proxy, lane, way, address, within)
            except ProxyRefusedError as exc:
                failed = exc  # nothing has been sent to the destination yet
                continue
            return
        raise failed

    async def _tunnel(
        self, proxy: EgressProxy, lane: Lane, way: Way, address: str, within: timedelta | None
    ) -> None:
        """Have the proxy connect to an address that was checked (RFC 9110 §9.3.6), in time."""
        try:
            is_name = parse_address(proxy.host) is None
            async with asyncio.timeout(_PROXY_REACHED_WITHIN.total_seconds()):
                addresses = await self._names.look_up(proxy.host) if is_name else [proxy.host]
                sock = await _connected(addresses, proxy.port, dialling_socket)
        except OSError as exc:  # a time-out, too
            raise ProxyFailedError(f"the proxy: {exc.strerror or 'not reached'}") from exc
        loop = asyncio.get_running_loop()
        asking = _ProxyAnswer(loop.create_future())
        transport, _ = await loop.create_connection(lambda: asking, sock=sock)
        authority = host_and_port(address, way.port)
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        try:
            transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
            await _accepted(asking, within)
            transport = await _secured(transport, lane, way)
        except BaseException:
            transport.abort()
            raise
        lane.address = authority
        lane.connection_made(transport)


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
            self.accepted.set_exception(ProxyFailedError("the proxy's answer is not HTTP"))
        elif match[1] == b"407":
            self.accepted.set_exception(ProxyFailedError("the proxy answered 407"))
        elif not match[1].startswith(b"2"):
            refused = ProxyRefusedError(f"the proxy answered {int(match[1])}")
            self.accepted.set_exception(refused)
        elif end + 4 != len(self._head):
            self.accepted.set_exception(ProxyFailedError("the proxy spoke for the destination"))
        else:
            self.accepted.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the interface
        """Say that there is no answer."""
        if not self.accepted.done():
            closed = ProxyFailedError("the proxy closed the connection without an answer")
            self.accepted.set_exception(closed)


async def _accepted(asking: _ProxyAnswer, within: timedelta | None) -> None:
    try:
        async with asyncio.timeout(None if within is None else within.total_seconds()):
            await asking.accepted
    except TimeoutError as exc:
        raise ProxyRefusedError("the proxy did not reach the address in time") from exc


async def _secured(transport: asyncio.Transport, lane: Lane, way: Way) -> asyncio.Transport:
    if way.tls is None:
        transport.set_protocol(lane)
        return transport
    try:
        secured = await asyncio.get_running_loop().start_tls(
            transport,
            lane,
            way.tls,
            server_hostname=way.host,
            ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
        )
    except OSError as exc:
        exc.__traceback__ = None  # as in `_open`
        raise
    if secured is None:
        raise ClosedEarlyError("closed in the TLS handshake")
    return secured


async def _connected(
    addresses: Sequence[str], port: int, factory: SocketFactoryType
) -> socket.socket:
    return await aiohappyeyeballs.start_connection(
        [_info(address, port) for address in addresses],
        happy_eyeballs_delay=_NEXT_ADDRESS_AFTER,
        interleave=1,
        loop=asyncio.get_running_loop(),
        socket_factory=factory,
    )


async def _open(lane: Lane, sock: socket.socket, way: Way) -> None:
    tls = None if way.tls is None else _TLS_SHUTDOWN_SECONDS
    try:
        lane.address = host_and_port(*sock.getpeername()[:2])
        await asyncio.get_running_loop().create_connection(
            lambda: lane,
            sock=sock,
            ssl=way.tls,
            server_hostname=way.host if way.tls else None,
            ssl_shutdown_timeout=tls,
        )
    except BaseException as exc:
        sock.close()
        exc.__traceback__ = None  # its frames hold the buffers of a TLS handshake, and it them
        raise


def _info(address: str, port: int) -> AddrInfoType:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
