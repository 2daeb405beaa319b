"""HTTP requests to destinations that others chose, over aiohttp.

No redirect is followed, no proxy is taken from the environment, no cookie is kept, nothing is
decompressed, and the answer is read up to a bound; one deadline is over all of it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp
from aiohappyeyeballs import AddrInfoType, SocketFactoryType
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from pushkit.errors import TransportError
from pushkit.net.destination import Destination, DestinationPolicy, address_is_public
from pushkit.net.timing import Probe, TimedResponse, Timing, current_probe, timing_trace
from pushkit.webhook import Headers

__all__ = ["Answer", "Transport"]

_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a destination answered.

    Attributes:
        status: The status code.
        headers: The header fields.
        body: The body, up to 64 KiB or what was asked for.
        complete: False if the body was longer, or broke off, or did not end within the timeout.
            The status stands all the same: a 2xx was an acknowledgement when its head arrived.
        timing: Where the time went, and which address was dialled.
    """

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    complete: bool = True
    timing: Timing = field(default_factory=Timing)


class Transport:
    """Connections under one destination policy.

    Pooled connections are not dialled again, hence not checked again: one transport per policy, and
    in it two pools. Destinations that the operator named have one of their own, so that no other
    destination ever travels over a connection whose address was not checked.

    Args:
        policy: Which destinations and addresses are allowed.
        connections: How many connections at once, over all destinations.
        connections_per_host: How many to one host and port.
        resolver: Who looks names up; the system's resolver if None.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        *,
        connections: int = 256,
        connections_per_host: int = 16,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self.policy = policy
        self._connections = connections
        self._connections_per_host = connections_per_host
        self._resolver = resolver
        self._checked: aiohttp.ClientSession | None = None
        self._named: aiohttp.ClientSession | None = None

    async def post(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        *,
        timeout: timedelta,  # noqa: ASYNC109  # the deadline of this attempt, enforced here
    ) -> Answer:
        """Send one POST and return the answer, whatever its status.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        return await self._request("POST", destination, headers, body, timeout=timeout)

    async def get(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        *,
        timeout: timedelta,  # noqa: ASYNC109  # as above
        max_body_bytes: int = _MAX_ANSWER_BYTES,
    ) -> Answer:
        """Send one GET and return the answer, whatever its status.

        Args:
            destination: Where to.
            headers: The header fields.
            timeout: For all of it.
            max_body_bytes: How much of the answer's body is read.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        return await self._request(
            "GET", destination, headers, None, timeout=timeout, max_body_bytes=max_body_bytes
        )

    async def close(self) -> None:
        """Close both pools."""
        sessions = (self._checked, self._named)
        self._checked = self._named = None
        for session in sessions:
            if session is not None:
                await session.close()

    async def _request(
        self,
        method: str,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        body: bytes | None,
        *,
        timeout: timedelta,  # noqa: ASYNC109  # as above
        max_body_bytes: int = _MAX_ANSWER_BYTES,
    ) -> Answer:
        seconds = timeout.total_seconds()
        probe = Probe()
        reset = current_probe.set(probe)
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                self._session(destination).request(
                    method,
                    URL(destination.url, encoded=True),
                    data=body,
                    headers=list(headers),
                    allow_redirects=False,
                    skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
                ) as response,
            ):
                probe.enter("body")
                answer_body, complete = await _read_bounded(response, deadline, max_body_bytes)
                return Answer(
                    status=response.status,
                    headers=Headers(list(response.headers.items())),
                    body=answer_body,
                    complete=complete,
                    timing=probe.timing(),
                )
        except TimeoutError as exc:
            raise TransportError(
                f"no complete answer from {destination.origin} within {seconds:g} s",
                timing=probe.timing(),
            ) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise TransportError(
                f"{destination.origin}: {type(exc).__name__}: {_reason(exc)}",
                timing=probe.timing(),
            ) from exc
        finally:
            current_probe.reset(reset)

    def _session(self, destination: Destination) -> aiohttp.ClientSession:
        resolver = self._resolver or ThreadedResolver()
        if destination.allowed_by_name:
            self._named = self._named or self._open_session(resolver, _dialling_socket)
            return self._named
        if self._checked is None:
            self._checked = self._open_session(_CheckedResolver(resolver), _checked_socket)
        return self._checked

    def _open_session(
        self, resolver: AbstractResolver, socket_factory: SocketFactoryType
    ) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections,
                limit_per_host=self._connections_per_host,
                resolver=resolver,
                use_dns_cache=False,
                socket_factory=socket_factory,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            response_class=TimedResponse,
            trace_configs=[timing_trace()],
        )


def _dialling_socket(address: AddrInfoType) -> socket.socket:
    """Open the socket that is about to dial an address, and take the address down."""
    family, kind, protocol, _, sockaddr = address
    probe = current_probe.get()
    if probe is not None:
        probe.dialled(sockaddr)
    return socket.socket(family, kind, protocol)


def _checked_socket(address: AddrInfoType) -> socket.socket:
    """Open the socket that is about to dial an address; the last word on where it goes.

    A literal address never passes a resolver: this is what sees it. The refusal is an `OSError`,
    because aiohttp lets others escape raw.
    """
    if not address_is_public(str(address[4][0])):
        raise OSError(errno.EACCES, "the address is not public")
    return _dialling_socket(address)


class _CheckedResolver(AbstractResolver):
    """Resolves names, and refuses one that has any address that is not public.

    Any, not all: a name with a public and a private address is an attack that needs two attempts.
    """

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = await self._resolver.resolve(host, port, family)
        if not all(address_is_public(answer["host"]) for answer in answers):
            raise OSError(errno.EACCES, "the name has an address that is not public")
        return answers

    async def close(self) -> None:
        await self._resolver.close()


async def _read_bounded(
    response: aiohttp.ClientResponse, deadline: asyncio.Timeout, max_bytes: int
) -> tuple[bytes, bool]:
    """Read a body up to the bound and the deadline, and say whether that was all of it."""
    body = bytearray()
    try:
        # A little before the deadline, which would take the status away with the body.
        async with asyncio.timeout_at((deadline.when() or 0) - 0.05):
            while len(body) <= max_bytes:
                chunk = await response.content.read(max_bytes + 1 - len(body))
                if not chunk:
                    return bytes(body), True
                body += chunk
    except (TimeoutError, aiohttp.ClientError):
        pass  # what was read is reported as incomplete
    response.close()  # the rest is not wanted: neither read nor kept alive
    return bytes(body[:max_bytes]), False


def _reason(exc: BaseException) -> str:
    # The text of a client error may hold the URL with its query: only an OS error's reason is safe.
    inner = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return inner.strerror or "failed" if isinstance(inner, OSError) else "failed"
