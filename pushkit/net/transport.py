"""HTTP requests over aiohttp to destinations that others chose, for all but notifications."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import aiohttp
from aiohappyeyeballs import SocketFactoryType
from aiohttp.abc import AbstractResolver
from yarl import URL

from pushkit.errors import PushkitError
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.failures import (
    LookupFailedError,
    ProxyRefusedError,
    ProxyUnreachableError,
    transport_error,
)
from pushkit.net.guard import Guard, Resolver, dialling_socket, look_up
from pushkit.net.posting import MAX_ANSWER_BYTES, Answer, ConnectionOptions
from pushkit.net.proxy import EgressProxy, ProxyDialler
from pushkit.net.timing import Probe, Timing, current_probe
from pushkit.net.tls import tls_context
from pushkit.url import Url, host_and_port
from pushkit.version import USER_AGENT
from pushkit.webhook import Headers


class Transport:
    """Connections under one destination policy.

    No redirect is followed, no proxy is taken from the environment, no cookie is kept, nothing is
    decompressed, and answers are read up to a bound; one deadline is over all of it, looking up
    the name included. `timing` says no more than the address, where one was dialled.

    Pooled connections are not dialled again, hence not checked again: one transport per policy, and
    in it separate pools. Destinations that the operator named have one of their own, so that no
    other destination ever travels over a connection whose address was not checked.

    Raises:
        ConfigError: The proxy or the file is not what it should be.
    """

    def __init__(self, policy: DestinationPolicy, options: ConnectionOptions | None = None) -> None:
        options = options or ConnectionOptions()
        self.policy = policy
        self.options = options
        self._resolver = Resolver(options.resolver)
        self._guard = Guard(policy, self._resolver, is_own=options.is_own)
        proxy = EgressProxy.parse(options.proxy) if options.proxy else None
        self._to_proxy = ProxyDialler(proxy, self._resolver) if proxy else None
        self._tls = tls_context(ca_file=options.ca_file)
        self._pools: dict[str, aiohttp.ClientSession] = {}

    async def post(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],  # all of them but `Host` and `Content-Length`
        body: bytes,
        *,
        timeout: timedelta,  # noqa: ASYNC109  # the deadline over all of it, enforced here
        tls: ssl.SSLContext | None = None,  # roots and client certificate, from `tls_context`
    ) -> Answer:
        """Send one POST and return the answer, whatever its status.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        request = _Request("POST", headers, tls or self._tls, body)
        return await self._send(request, destination, timeout.total_seconds())

    async def get(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],
        *,
        timeout: timedelta,  # noqa: ASYNC109  # as above
        max_body_bytes: int = MAX_ANSWER_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send one GET and return the answer; the rest is as for `post`."""
        request = _Request("GET", headers, tls or self._tls, max_body_bytes=max_body_bytes)
        return await self._send(request, destination, timeout.total_seconds())

    async def get_document(
        self,
        url: str,
        media_types: str,  # what `Accept` says
        *headers: tuple[str, str],  # what is said besides
        timeout: timedelta,  # noqa: ASYNC109  # as above
        max_body_bytes: int = MAX_ANSWER_BYTES,
        error: type[PushkitError],  # what is raised for an answer that cannot be read
    ) -> Answer:
        """Get a document as it stands, or the answer of another status than 200.

        Raises:
            DestinationRefusedError: The policy refuses the URL.
            PushkitError: An `error`: it is compressed, although that was not accepted, broke off,
                or is too large.
            TransportError: No answer.
        """
        wanted = [("Accept", media_types), ("Accept-Encoding", "identity")]
        wanted += [("User-Agent", USER_AGENT), *headers]
        answer = await self.get(
            self.policy.check(url), wanted, timeout=timeout, max_body_bytes=max_body_bytes
        )
        if answer.status == 200:
            # A decompression bomb needs a decompressor; there is none.
            encodings = answer.headers.all("Content-Encoding")
            if any(encoding.strip().lower() != "identity" for encoding in encodings):
                raise error("the answer is compressed, expected Content-Encoding identity")
            if not answer.complete:
                raise error(f"the answer broke off, or is longer than {max_body_bytes} bytes")
        return answer

    async def close(self) -> None:
        """Close all pools."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.close()
        await self._resolver.close()

    async def _send(self, request: _Request, destination: Destination, seconds: float) -> Answer:
        probe = Probe()
        reset = current_probe.set(probe)
        try:
            async with asyncio.timeout(seconds) as deadline:
                if self._to_proxy is None or destination.allowed_by_name:
                    pool = (
                        self._pool("named", self._resolver, dialling_socket)
                        if destination.allowed_by_name
                        else self._pool("checked", self._guard, self._guard.open_socket)
                    )
                    return await _ask(pool, request, destination.url, deadline)
                return await self._through_proxy(self._to_proxy, request, destination.url, deadline)
        except Exception as exc:  # whatever an answer brings about is its sender's doing
            raise transport_error(_cause(exc), destination, seconds=seconds, probe=probe) from exc
        finally:
            current_probe.reset(reset)

    async def _through_proxy(
        self, to_proxy: ProxyDialler, request: _Request, url: Url, deadline: asyncio.Timeout
    ) -> Answer:
        """Ask the proxy for one checked address after another, until it reaches one."""
        request = request._replace(headers=[("Host", url.authority), *request.headers])
        route = {
            "proxy": to_proxy.proxy.url,
            "proxy_headers": to_proxy.proxy.headers,
            "server_hostname": url.host,
        }
        pool = self._pool("proxied", to_proxy, to_proxy.open_socket)
        failed: Exception = OSError(None, "the name has no address")
        for address in await look_up(self._guard, url.host, url.port):
            try:
                answer = await _ask(pool, request, replace(url, host=address), deadline, route)
            except aiohttp.ClientHttpProxyError as exc:
                failed = exc  # nothing has been sent to the destination yet
                continue
            dialled = host_and_port(address, url.port)
            return replace(answer, timing=replace(answer.timing, address=dialled))
        raise failed

    def _pool(
        self, name: str, resolver: AbstractResolver, socket_factory: SocketFactoryType
    ) -> aiohttp.ClientSession:
        if name in self._pools:
            return self._pools[name]
        self._pools[name] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self.options.most,
                limit_per_host=self.options.most_per_host,
                resolver=resolver,
                use_dns_cache=False,
                socket_factory=socket_factory,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        )
        return self._pools[name]


class _Request(NamedTuple):
    method: str
    headers: Sequence[tuple[str, str]]
    tls: ssl.SSLContext
    body: bytes | None = None
    max_body_bytes: int = MAX_ANSWER_BYTES


async def _ask(
    session: aiohttp.ClientSession,
    request: _Request,
    url: Url,
    deadline: asyncio.Timeout,
    route: Mapping[str, Any] | None = None,  # what aiohttp is told of a proxy
) -> Answer:
    probe = current_probe.get()
    async with session.request(
        request.method,
        URL(str(url), encoded=True),
        data=request.body,
        headers=list(request.headers),
        allow_redirects=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        ssl=request.tls,
        **(route or {}),
    ) as response:
        # A little before the deadline, which would take the status away with the body.
        until = (deadline.when() or 0) - 0.05
        body, complete = await _read_bounded(response, until, request.max_body_bytes)
        return Answer(
            status=response.status,
            headers=Headers(list(response.headers.items())),
            body=body,
            complete=complete,
            timing=Timing(address=probe.address if probe else None),
        )


async def _read_bounded(
    response: aiohttp.ClientResponse, until: float, max_bytes: int
) -> tuple[bytes, bool]:
    """Read a body up to the bound and the moment, and say whether that was all of it."""
    body = bytearray()
    try:
        async with asyncio.timeout_at(until):
            while len(body) <= max_bytes:
                chunk = await response.content.read(max_bytes + 1 - len(body))
                if not chunk:
                    return bytes(body), True
                body += chunk
    except (TimeoutError, aiohttp.ClientError):
        pass  # what was read is reported as incomplete
    response.close()  # the rest is not wanted: neither read nor kept alive
    return bytes(body[:max_bytes]), False


def _cause(exc: Exception) -> Exception:
    """Return what lies beneath an error of aiohttp's."""
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        return ProxyRefusedError(f"the proxy answered {exc.status}")
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return exc.certificate_error
    if not isinstance(exc, aiohttp.ClientConnectorError):
        return exc
    inner = exc.os_error
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        return LookupFailedError(inner.errno, inner.strerror)
    if isinstance(exc, aiohttp.ClientProxyConnectionError):
        return ProxyUnreachableError(None, f"the proxy: {inner.strerror or 'failed'}")
    return inner
