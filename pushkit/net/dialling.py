"""Dialling a connection: look the name up, judge its addresses, connect, and start TLS.

The guard judges all addresses of a name, and once more the one that a socket is about to dial.
Hosts that the operator named are dialled unguarded; those in `allow`, and those on this machine,
without the egress proxy.

Behind an egress proxy (RFC 9110 §9.3.6, CONNECT) no socket goes to the destination. So the name is
looked up and judged before, and the proxy is asked for the judged address, never for the name,
which it would look up once more. Server name and certificate stay the destination's.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple, Self, TypeAlias
from urllib.parse import unquote

import aiohappyeyeballs
from aiohappyeyeballs import AddrInfoType, SocketFactoryType

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.net.addresses import parse_address
from pushkit.net.connection import Connection
from pushkit.net.failures import ClosedEarlyError, ProxyFailedError, ProxyRefusedError
from pushkit.net.guard import Guard, NameLookup, dialling_socket
from pushkit.url import Url, host_and_port, parse_host_and_port

_NEXT_ADDRESS_AFTER: Final = 0.25
_TLS_SHUTDOWN_SECONDS: Final = 1
_PROXY_REACHED_SECONDS: Final = 5
# Through the proxy, if the name has another address: otherwise one that drops all packets would
# take the whole time of every attempt.
_ADDRESS_REACHED_SECONDS: Final = 5
_MAX_PROXY_HEAD_BYTES: Final = 16 * 1024
_PROXY_HEAD: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_INTERIM_HEAD: Final = re.compile(rb"HTTP/1\.[01] 1(?!01)[0-9]{2}[ \r]")  # 101 is a final answer
_PROXY_EXPECTED: Final = "expected http://[user:password@]host:port"


class Endpoint(NamedTuple):
    """Where a connection leads: requests share one only if the policy judged them alike."""

    scheme: str
    host: str
    port: int
    allowed_by_name: bool
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressProxy:
    """A proxy that the operator configured."""

    host: str  # name or address
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # its credentials, if any

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `http://[user:password@]host:port`.

        Raises:
            ConfigError: The URL has another form. The message does not quote it: it may hold a
                password.
        """
        scheme, _, rest = url.partition("://")
        user, _, place = rest.rpartition("@")
        try:
            found = Url.parse(f"{scheme}://{place}")
        except InvalidUrlError as exc:
            raise ConfigError(f"proxy: {_PROXY_EXPECTED}") from exc
        has_port = parse_host_and_port(place.removesuffix("/")) is not None
        if found.scheme != "http" or found.target != "/" or not has_port or not user.isascii():
            raise ConfigError(f"proxy: {_PROXY_EXPECTED}")
        if not user:
            return cls(host=found.host, port=found.port)
        name, _, password = user.partition(":")  # RFC 7617 §2: the first colon ends the user name
        pair = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode("ascii")
        headers = {"Proxy-Authorization": f"Basic {pair}"}
        return cls(host=found.host, port=found.port, headers=headers)


class Dialler:
    """Dials connections, through the egress proxy if there is one."""

    def __init__(self, guard: Guard, lookup: NameLookup, proxy: EgressProxy | None) -> None:
        self._guard = guard
        self._lookup = lookup
        self._proxy = proxy

    async def dial(self, endpoint: Endpoint, connection: Connection) -> None:
        """Connect a new connection to its endpoint.

        Raises:
            OSError: No address could be reached, an address is refused, or TLS failed.
            ProxyRefusedError: The proxy reached none of the addresses.
            ProxyFailedError: The proxy is unreachable, wants credentials, or is no proxy.
        """
        is_name = parse_address(endpoint.host) is None
        addresses = await self._lookup.addresses(endpoint.host) if is_name else [endpoint.host]
        by_name = endpoint.allowed_by_name
        if by_name and (self._proxy is None or self._guard.policy.avoids_proxy(endpoint.host)):
            sock = await _connect(addresses, endpoint.port, dialling_socket)
            await _attach(connection, sock, endpoint)
            return
        # A literal address is judged at its socket, if there is one.
        if not by_name and (is_name or self._proxy is not None):
            # All must pass: else a name with a public and a private address is an attack that takes
            # two attempts.
            for address in addresses:
                self._guard.check(address, endpoint.port, endpoint.host)
        if self._proxy is None:
            sock = await _connect(addresses, endpoint.port, self._guard.open_socket)
            await _attach(connection, sock, endpoint)
            return
        failed: Exception = OSError(None, "the name has no address")
        for number, address in enumerate(addresses, 1):
            within = _ADDRESS_REACHED_SECONDS if number < len(addresses) else None
            try:
                await self._tunnel(self._proxy, connection, endpoint, address, within)
            except ProxyRefusedError as exc:
                failed = exc  # the destination has received nothing yet
                continue
            return
        try:
            raise failed
        finally:
            del failed  # breaks a cycle that holds the request

    async def _tunnel(
        self,
        proxy: EgressProxy,
        connection: Connection,
        endpoint: Endpoint,
        address: str,
        within: float | None,  # seconds
    ) -> None:
        """Let the proxy connect to an address that was judged (RFC 9110 §9.3.6), in time."""
        try:
            is_name = parse_address(proxy.host) is None
            async with asyncio.timeout(_PROXY_REACHED_SECONDS):
                addresses = await self._lookup.addresses(proxy.host) if is_name else [proxy.host]
                sock = await _connect(addresses, proxy.port, dialling_socket)
        except OSError as exc:  # TimeoutError is one
            raise ProxyFailedError(f"the proxy: {exc.strerror or 'not reached'}") from exc
        loop = asyncio.get_running_loop()
        answer = _ProxyAnswer(loop.create_future())
        transport, _ = await loop.create_connection(lambda: answer, sock=sock)
        authority = host_and_port(address, endpoint.port)
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        try:
            transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
            try:
                async with asyncio.timeout(within):
                    await answer.accepted()
            except TimeoutError as exc:
                raise ProxyRefusedError("the proxy did not reach the address in time") from exc
            transport = await _start_tls(transport, connection, endpoint)
        except BaseException:
            transport.abort()
            raise
        connection.address = authority
        connection.connection_made(transport)


# The error to raise, and its text. (A future with an error, and its traceback with the frame that
# has the future, are a cycle, which would hold the request.)
_Refusal: TypeAlias = tuple[type[ProxyRefusedError | ProxyFailedError], str]


class _ProxyAnswer(asyncio.Protocol):
    """Reads the head of the proxy's answer. The destination sends nothing before its request."""

    def __init__(self, refusal: asyncio.Future[_Refusal | None]) -> None:
        self._refusal = refusal  # None if the proxy accepted
        self._head = bytearray()
        self._passed = 0  # bytes of interim answers

    async def accepted(self) -> None:
        """Wait until the proxy has connected. Raises the error if it does not."""
        refusal = await self._refusal
        if refusal is not None:
            error, reason = refusal
            raise error(reason)

    def data_received(self, data: bytes) -> None:
        """Collect the head, and judge it once it is complete."""
        self._head += data
        if self._refusal.done():
            return
        end = self._head.find(b"\r\n\r\n")
        while end >= 0 and _INTERIM_HEAD.match(self._head):  # RFC 9110 §15.2
            del self._head[: end + 4]
            self._passed += end + 4
            end = self._head.find(b"\r\n\r\n")
        if end < 0 and len(self._head) + self._passed <= _MAX_PROXY_HEAD_BYTES:
            return
        match = _PROXY_HEAD.match(self._head)
        if match is None or end < 0:
            self._refusal.set_result((ProxyFailedError, "the proxy's answer is not HTTP"))
        elif not match[1].startswith(b"2"):
            status = int(match[1])
            error = ProxyRefusedError if _is_of_address(status, self._head) else ProxyFailedError
            self._refusal.set_result((error, f"the proxy answered {status}"))
        elif end + 4 != len(self._head):
            self._refusal.set_result((ProxyFailedError, "the proxy sent bytes after its answer"))
        else:
            self._refusal.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the interface
        """Fail if the answer was not complete."""
        if not self._refusal.done():
            closed = "the proxy closed the connection without an answer"
            self._refusal.set_result((ProxyFailedError, closed))


def _is_of_address(status: int, head: bytearray) -> bool:
    """Return whether the proxy forbids the address, or cannot reach it.

    Other failures are the proxy's own, or of a server that is no proxy (400, 405, 501). A 407 that
    asks for no credentials forbids the address (RFC 9110 §15.5.8 requires it to ask).
    """
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return b"\r\nproxy-authenticate:" not in head.lower()
    return status == HTTPStatus.FORBIDDEN or (
        status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    )


async def _start_tls(
    transport: asyncio.Transport, connection: Connection, endpoint: Endpoint
) -> asyncio.Transport:
    if endpoint.tls is None:
        transport.set_protocol(connection)
        return transport
    try:
        secured = await asyncio.get_running_loop().start_tls(
            transport,
            connection,
            endpoint.tls,
            server_hostname=endpoint.host,
            ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
        )
    except OSError as exc:
        exc.__traceback__ = None  # as in `_attach`
        raise
    if secured is None:
        raise ClosedEarlyError("closed in the TLS handshake")
    return secured


async def _connect(
    addresses: Sequence[str], port: int, factory: SocketFactoryType
) -> socket.socket:
    try:
        return await aiohappyeyeballs.start_connection(
            [_address_info(address, port) for address in addresses],
            happy_eyeballs_delay=_NEXT_ADDRESS_AFTER,
            interleave=1,
            loop=asyncio.get_running_loop(),
            socket_factory=factory,
        )
    except OSError as exc:
        exc.__traceback__ = None  # breaks a cycle that holds the request
        raise


async def _attach(connection: Connection, sock: socket.socket, endpoint: Endpoint) -> None:
    """Hand a connected socket to a connection, after the TLS handshake if there is one."""
    try:
        connection.address = host_and_port(*sock.getpeername()[:2])
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            sock=sock,
            ssl=endpoint.tls,
            server_hostname=endpoint.host if endpoint.tls else None,
            ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS if endpoint.tls else None,
        )
    except BaseException as exc:
        sock.close()
        exc.__traceback__ = None  # breaks a cycle that holds the handshake's buffers
        raise


def _address_info(address: str, port: int) -> AddrInfoType:
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
