"""An egress proxy, with the guard on (RFC 9110 §9.3.6, CONNECT).

Behind a proxy a connector sees only the proxy's address. So the name is looked up and checked here,
and the proxy is asked for the address that was checked, never for the name, which it would look up
once more. Server name and certificate stay the destination's.
"""

from __future__ import annotations

import base64
import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.net.addresses import parse_address
from pushkit.net.guard import dialling_socket
from pushkit.url import Url, parse_host_and_port

_EXPECTED = "expected http://[user:password@]host:port"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressProxy:
    """A proxy that the operator configured."""

    host: str  # its name or address
    port: int
    # What it is told about who asks, if anything.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read `http://[user:password@]host:port`.

        Raises:
            ConfigError: It is something else. The message does not repeat it: it may hold a
                password.
        """
        scheme, _, rest = url.partition("://")
        user, _, place = rest.rpartition("@")
        try:
            found = Url.parse(f"{scheme}://{place}")
        except InvalidUrlError as exc:
            raise ConfigError(f"proxy: {_EXPECTED}") from exc
        has_port = parse_host_and_port(place.removesuffix("/")) is not None
        if found.scheme != "http" or found.target != "/" or not has_port or not user.isascii():
            raise ConfigError(f"proxy: {_EXPECTED}")
        return cls(host=found.host, port=found.port, headers=_authorization(user))

    @property
    def url(self) -> URL:
        """Where the proxy listens, without the credentials."""
        return URL.build(scheme="http", host=self.host, port=self.port)


class ProxyDialler(AbstractResolver):
    """Resolves and dials the one proxy, and nothing else; its address may be private."""

    def __init__(self, proxy: EgressProxy, resolver: AbstractResolver) -> None:
        self.proxy = proxy
        self._resolver = resolver
        self._addresses: frozenset[str] = frozenset(
            {proxy.host} if parse_address(proxy.host) else ()
        )

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the proxy's addresses.

        Raises:
            OSError: Another name is asked for, or there is no address.
        """
        if host != self.proxy.host:
            raise OSError(errno.EACCES, "not the name of the proxy")
        answers = await self._resolver.resolve(host, port, family)
        self._addresses = frozenset(answer["host"] for answer in answers)
        return answers

    def open_socket(self, address: AddrInfoType) -> socket.socket:
        """Open the socket that is about to dial the proxy.

        Raises:
            OSError: It is about to dial something else.
        """
        host, port = str(address[4][0]), address[4][1]
        if host not in self._addresses or port != self.proxy.port:
            raise OSError(errno.EACCES, "not an address of the proxy")
        return dialling_socket(address)

    async def close(self) -> None:
        """The resolver is the caller's."""


def _authorization(credentials: str) -> dict[str, str]:
    if not credentials:
        return {}
    # RFC 7617 §2: the first colon ends the user name.
    user, _, password = credentials.partition(":")
    encoded = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode("ascii")
    return {"Proxy-Authorization": f"Basic {encoded}"}
