"""Which URLs may be posted to (wire profile §6). Pure: no name is resolved here.

A URL is parsed once, strictly, and every request is built from the parts: two parsers that read one
string differently are how a check is passed by one address and another one is dialled.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pushkit.errors import ConfigError, DestinationRefusedError

__all__ = ["Destination", "DestinationPolicy", "address_is_public", "origin_of"]

_MAX_URL_CHARS = 2048
_ALLOWED_PORTS = (443, 8443)

# RFC 3986, narrowed: visible ASCII, an authority without user information.
_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>(?:/[!$&-;=@_a-z~%]*)?(?:\?[!$&-;=?@_a-z~%]*)?)",
    # ASCII: without it, ignoring case lets U+017F pass for an "s" and U+212A for a "k".
    re.IGNORECASE | re.ASCII,
)
_PORT = re.compile(r"[0-9]{1,5}")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_ENDS_IN_NUMBER = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")

# RFC 6761 and its successors, and the names that container networks and clouds answer to.
_SPECIAL_SUFFIXES = (
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "home.arpa",
    "arpa",
    "onion",
    "invalid",
    "test",
    "example",
    "alt",
    "svc",
)

# What `ipaddress.is_global` lets through although nothing public lives there.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",
        "168.63.129.16/32",  # a cloud's wire server
        "192.0.0.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",  # 6to4 embeds an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A URL that passed the policy, in parts.

    Attributes:
        scheme: `https` or `http`.
        host: Lower-case name, or an address (IPv6 without brackets).
        port: The port to dial.
        target: Path and query, at least `/`.
        allowed_by_name: The operator named this host: its addresses are not checked.
    """

    scheme: str
    host: str
    port: int
    target: str = field(repr=False)
    allowed_by_name: bool = False

    @property
    def origin(self) -> str:
        """Scheme, host and port: what counts as one destination."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL, put together again from the checked parts."""
        return f"{self.origin}{self.target}"


class DestinationPolicy:
    """Decides about URLs.

    Args:
        allow: Hosts that the operator names for development and tests, as `host:port` or `host:*`,
            for example `["127.0.0.1:*", "[::1]:8080", "localhost:*"]`. For these alone the rules
            on scheme, port, literal addresses and special names are lifted.
    """

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self.allow = tuple(allow)
        self._allowed = frozenset(_parse_allow(entry) for entry in allow)

    def check(self, url: str) -> Destination:
        """Return the destination that a URL names.

        Raises:
            DestinationRefusedError: Says which rule the URL breaks; the URL itself may hold
                secrets in its query and is not repeated.
        """
        scheme, host, port, target = _parse(url)
        if (host, port) in self._allowed or (host, None) in self._allowed:
            return Destination(
                scheme=scheme, host=host, port=port, target=target, allowed_by_name=True
            )
        if scheme != "https":
            raise DestinationRefusedError(
                f"URL: expected https, found http to {host}:{port};"
                f" for development, allow {host}:{port} by name"
            )
        if port not in _ALLOWED_PORTS:
            raise DestinationRefusedError(f"URL: port {port} is not allowed, expected 443 or 8443")
        _check_host(host)
        return Destination(scheme=scheme, host=host, port=port, target=target)


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL (RFC 6454 §4), read as `DestinationPolicy` reads it.

    Raises:
        DestinationRefusedError: Not an http or https URL.
    """
    scheme, host, port, target = _parse(url)
    return Destination(scheme=scheme, host=host, port=port, target=target).origin


def address_is_public(address: str) -> bool:
    """Say whether an address lies in the public internet."""
    if "%" in address:  # a zone: of this machine's own links
        return False
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if any(ip in network for network in _NOT_PUBLIC if network.version == ip.version):
        return False
    if ip.version == 6:
        return ip in _GLOBAL_UNICAST and ip.is_global
    return ip.is_global


def _parse(url: str) -> tuple[str, str, int, str]:
    if len(url) > _MAX_URL_CHARS:
        raise DestinationRefusedError(f"URL: longer than {_MAX_URL_CHARS} characters")
    match = _URL.fullmatch(url)
    if match is None:
        raise DestinationRefusedError(
            "URL: expected https://host[:port]/path in visible ASCII,"
            " without user name, fragment, spaces or backslashes"
        )
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else {"https": 443, "http": 80}[scheme]
    if not 0 < port <= 65535:
        raise DestinationRefusedError(f"URL: {port} is not a port")
    target = match["target"]
    if not target.startswith("/"):
        target = f"/{target}"
    return scheme, _normalise_host(match["host"]), port, target


def _normalise_host(host: str) -> str:
    host = host.lower()
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError as exc:
            raise DestinationRefusedError("URL: not an IPv6 address") from exc
    return host.removesuffix(".")


def _check_host(host: str) -> None:
    if ":" in host or _ENDS_IN_NUMBER.search(host):
        raise DestinationRefusedError("URL: a literal address, expected a host name")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise DestinationRefusedError("URL: not a host name")
    if len(labels) == 1 or any(
        host == suffix or host.endswith(f".{suffix}") for suffix in _SPECIAL_SUFFIXES
    ):
        raise DestinationRefusedError(
            f"URL: {host} is a local or special-use name, expected a public one"
        )


def _parse_allow(entry: str) -> tuple[str, int | None]:
    host, colon, port = entry.rpartition(":")
    if not colon or not host or not (port == "*" or _PORT.fullmatch(port)):
        raise ConfigError(f"allow: {entry!r}: expected host:port or host:*")
    try:
        return _normalise_host(host), None if port == "*" else int(port)
    except DestinationRefusedError as exc:
        raise ConfigError(f"allow: {entry!r}: not a host") from exc
