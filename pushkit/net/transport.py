"""HTTP requests to destinations that others chose, over aiohttp.

No redirect is followed, no proxy is taken from the environment, no cookie is kept, nothing is
decompressed, and the answer is read up to a bound; one deadline is over all of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from pushkit.errors import TransportError
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.webhook import Headers

__all__ = ["Answer", "Transport"]

_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a destination answered.

    Attributes:
        status: The status code.
        headers: The header fields.
        body: The body, up to 64 KiB.
        complete: False if the body was longer, or broke off, or did not end within the timeout.
            The status stands all the same: a 2xx was an acknowledgement when its head arrived.
    """

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    complete: bool = True


class Transport:
    """A pool of connections under one destination policy.

    Pooled connections are not dialled again, hence not checked again: one transport per policy.

    Args:
        policy: Which destinations and addresses are allowed.
        connections: How many connections at once, over all destinations.
        connections_per_host: How many to one host and port.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        *,
        connections: int = 256,
        connections_per_host: int = 16,
    ) -> None:
        self.policy = policy
        self._connections = connections
        self._connections_per_host = connections_per_host
        self._session: aiohttp.ClientSession | None = None

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
        return await self._request("POST", destination, headers, body, timeout)

    async def get(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        *,
        timeout: timedelta,  # noqa: ASYNC109  # as above
    ) -> Answer:
        """Send one GET and return the answer, whatever its status.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        return await self._request("GET", destination, headers, None, timeout)

    async def close(self) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(
        self,
        method: str,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        body: bytes | None,
        timeout: timedelta,  # noqa: ASYNC109  # as above
    ) -> Answer:
        seconds = timeout.total_seconds()
        try:
            async with (
                asyncio.timeout(seconds) as deadline,
                self._open_session().request(
                    method,
                    URL(destination.url, encoded=True),
                    data=body,
                    headers=list(headers),
                    allow_redirects=False,
                    skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
                ) as response,
            ):
                answer_body, complete = await _read_bounded(response, deadline)
                return Answer(
                    status=response.status,
                    headers=Headers(list(response.headers.items())),
                    body=answer_body,
                    complete=complete,
                )
        except TimeoutError as exc:
            raise TransportError(
                f"no complete answer from {destination.origin} within {seconds:g} s"
            ) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise TransportError(
                f"{destination.origin}: {type(exc).__name__}: {_reason(exc)}"
            ) from exc

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections,
                    limit_per_host=self._connections_per_host,
                    resolver=_CheckedResolver(self.policy),
                    use_dns_cache=False,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            )
        return self._session


class _CheckedResolver(AbstractResolver):
    """Resolves names, and refuses one that has any address outside the policy.

    Literal addresses never come here: the policy refuses them, or the operator named them.
    """

    def __init__(self, policy: DestinationPolicy) -> None:
        self._policy = policy
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = await self._resolver.resolve(host, port, family)
        for answer in answers:
            if not self._policy.permits_address(host.rstrip(".").lower(), answer["host"]):
                raise OSError(f"{host} resolves to an address that is not public")
        return answers

    async def close(self) -> None:
        await self._resolver.close()


async def _read_bounded(
    response: aiohttp.ClientResponse, deadline: asyncio.Timeout
) -> tuple[bytes, bool]:
    """Read a body up to the bound and the deadline, and say whether that was all of it."""
    body = bytearray()
    try:
        # A little before the deadline, which would take the status away with the body.
        async with asyncio.timeout_at((deadline.when() or 0) - 0.05):
            while len(body) <= _MAX_ANSWER_BYTES:
                chunk = await response.content.read(_MAX_ANSWER_BYTES + 1 - len(body))
                if not chunk:
                    return bytes(body), True
                body += chunk
    except (TimeoutError, aiohttp.ClientError):
        pass  # what was read is reported as incomplete
    response.close()  # the rest is not wanted: neither read nor kept alive
    return bytes(body[:_MAX_ANSWER_BYTES]), False


def _reason(exc: BaseException) -> str:
    # The text of a client error may hold the URL with its query: only an OS error's reason is safe.
    inner = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return inner.strerror or "failed" if isinstance(inner, OSError) else "failed"
