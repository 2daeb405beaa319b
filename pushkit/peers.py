"""`Peers`: the address of a request's client, also behind reverse proxies; and its rate key.

A header that names the client is believed only from a trusted proxy's socket, and is read from the
right: anything left of the first hop that is no trusted proxy may be forged by that hop.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TypeAlias

from pushkit.errors import ConfigError
from pushkit.options import checked
from pushkit.webhook import Headers

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_WITH_PORT = re.compile(r"(\d+\.\d+\.\d+\.\d+):\d+|\[([0-9a-fA-F:.]+)\](?::\d+)?")
_MAX_HOPS = 32
_LONGEST_ADDRESS = 128  # characters, with a port and a zone


class ForwardedHeader(StrEnum):
    """Which header the trusted proxies write. The other one is the client's, and is ignored."""

    X_FORWARDED_FOR = "X-Forwarded-For"
    FORWARDED = "Forwarded"
    """RFC 7239."""


class Peers:
    """Finds the address that a request came from.

    Raises:
        ConfigError: An entry is neither an address nor a network.
    """

    @checked
    def __init__(
        self,
        # Addresses and networks of the reverse proxies in front, for example `["10.0.0.0/8"]`.
        # Without proxies, the peer is the one of the socket.
        trusted_proxies: Sequence[str] = (),
        # Which header these proxies write.
        header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR,
    ) -> None:
        self._proxies = [_network(entry) for entry in trusted_proxies]
        self._header = header

    def is_proxy(self, address: str) -> bool:
        """Return whether an address is a trusted proxy's."""
        parsed = _parse(address)
        return parsed is not None and self._trusts(parsed)

    def of(self, socket_peer: str, headers: Headers) -> str:
        """Return the address that a request came from, by its socket and its headers."""
        hop = _parse(socket_peer) if self._proxies else None
        if hop is None or not self._trusts(hop):
            return _shown(socket_peer)
        for named in self._hops(headers):
            before = _parse(named)
            if before is None:
                break  # hidden or garbled: the hop that wrote it is the last known one
            hop = before
            if not self._trusts(hop):
                break
        return str(hop)

    def _trusts(self, address: _Address) -> bool:
        return any(address in proxy for proxy in self._proxies)

    def _hops(self, headers: Headers) -> Iterator[str]:
        """Yield the addresses in the header, from the right."""
        value = ",".join(headers.all(self._header))
        if self._header is ForwardedHeader.X_FORWARDED_FOR:
            for address in value.split(",")[: -_MAX_HOPS - 1 : -1]:
                yield address.strip()
        else:
            for element in itertools.islice(_unquoted(value, ","), _MAX_HOPS):
                yield _for(element)


@functools.lru_cache(maxsize=4096)
def rate_key(peer: str) -> str:
    """Return the key under which a peer is counted: for IPv6 the /64 that one subscriber has."""
    address = _parse(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return peer if address is None else str(address)


def _for(element: str) -> str:
    """Return the `for` of one element (RFC 7239 §4); empty if it has not exactly one."""
    pairs = [pair.partition("=") for pair in _unquoted(element, ";")]
    named = [value.strip() for name, _, value in pairs if name.strip().lower() == "for"]
    return named[0].removeprefix('"').removesuffix('"') if len(named) == 1 else ""


def _unquoted(text: str, separator: str) -> Iterator[str]:
    """Yield the parts of a text, split outside of quotes, from the right (nearest proxy first).

    A proxy quotes the `Host` that a client sent, which may contain `,for=192.0.2.1`; and a quote
    that a client leaves open, on the left, must not swallow what a proxy appended. Only the parts
    that are asked for are looked for: a client may have written thousands of others.
    """
    end = at = len(text)
    quoted = False
    while (at := max(text.rfind('"', 0, at), text.rfind(separator, 0, at))) >= 0:
        if text[at] == '"':
            backslashes = at - len(text[:at].rstrip("\\"))
            quoted ^= backslashes % 2 == 0  # RFC 9110 §5.6.4: not an escaped quote
        elif not quoted:
            yield text[at + 1 : end]
            end = at
    yield text[:end]


@functools.lru_cache(maxsize=4096)
def _shown(text: str) -> str:
    """Return an address in its canonical spelling; any other text unchanged."""
    address = _parse(text)
    return text if address is None else str(address)


def _parse(text: str) -> _Address | None:
    return _parsed(text) if len(text) <= _LONGEST_ADDRESS else None


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> _Address | None:
    with_port = _WITH_PORT.fullmatch(text)
    if with_port is not None:
        text = with_port[1] or with_port[2]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 peers as mapped addresses.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(entry)
    except ValueError as exc:
        raise ConfigError(
            f"trusted_proxies: {entry!r}: expected an address or a network, like 10.0.0.0/8"
        ) from exc
