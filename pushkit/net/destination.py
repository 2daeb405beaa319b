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
from pushkit.net.addresses import Network, address_is_public

__all__ = ["Destination", "DestinationPolicy", "DestinationRules", "origin_of"]

_MAX_URL_CHARS = 2048
_SCHEME_PORTS = {"https": 443, "http": 80}

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
        return f"{self.scheme}://{self._bracketed}:{self.port}"

    @property
    def authority(self) -> str:
        """What `Host` says: the port only where it is not the scheme's own (RFC 9110 §4.2.3)."""
        standard = self.port == _SCHEME_PORTS[self.scheme]
        return self._bracketed if standard else f"{self._bracketed}:{self.port}"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def url(self) -> str:
        """The URL, put together again from the checked parts."""
        return f"{self.origin}{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationRules:
    """Narrows down where may be posted to; the built-in rules hold beside it.

    Attributes:
        domains: Only these names: `client.example.com`, or `*.example.com` for every name below
            it, itself not among them. Empty: any public name.
        ports: Only these ports.
        networks: Only addresses in these networks, as `198.51.100.0/24`; empty: any public one.
        refused_networks: No address in these: your own public ranges, a NAT64 prefix of your own.
    """

    domains: Sequence[str] = ()
    ports: Sequence[int] = (443, 8443)
    networks: Sequence[str] = ()
    refused_networks: Sequence[str] = ()


class DestinationPolicy:
    """Decides about URLs and addresses.

    Args:
        allow: Hosts that the operator names for development and tests, as `host:port` or `host:*`,
            for example `["127.0.0.1:*", "[::1]:8080", "localhost:*"]`. For these alone the rules
            on scheme, port, literal addresses and special names are lifted, and `rules` too.
        rules: Narrows down the rest.

    Raises:
        ConfigError: An entry is not what it should be.
    """

    def __init__(
        self, allow: Sequence[str] = (), rules: DestinationRules = DestinationRules()
    ) -> None:
        self.allow = tuple(allow)
        self._allowed = frozenset(_parse_allow(entry) for entry in allow)
        self._domains = tuple(_parse_domain(domain) for domain in rules.domains)
        self._ports = tuple(_parse_port(port) for port in rules.ports)
        self._networks = tuple(_parse_network("networks", each) for each in rules.networks)
        self._refused = tuple(
            _parse_network("refused_networks", each) for each in rules.refused_networks
        )

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
        self._check_scheme(scheme, host, port)
        self._check_port(port)
        _check_host(host)
        if self._domains and not any(_is_within(host, domain) for domain in self._domains):
            raise DestinationRefusedError(
                f"URL: {host} is not among the domains that this sender posts to"
            )
        return Destination(scheme=scheme, host=host, port=port, target=target)

    def _check_scheme(self, scheme: str, host: str, port: int) -> None:
        if scheme != "https":
            raise DestinationRefusedError(
                f"URL: expected https, found http to {host}:{port};"
                f" for development, allow {host}:{port} by name"
            )

    def _check_port(self, port: int) -> None:
        if port not in self._ports:
            expected = " or ".join(str(each) for each in self._ports)
            raise DestinationRefusedError(f"URL: port {port} is not allowed, expected {expected}")

    def refusal_of(self, address: str) -> str | None:
        """Return why an address may not be dialled; None if it may."""
        if not address_is_public(address):
            return "the address is not public"
        ip = ipaddress.ip_address(address)
        if self._networks and not any(ip in network for network in self._networks):
            return "the address is outside of the networks that are allowed"
        if any(ip in network for network in self._refused):
            return "the address is in a network that is refused"
        return None


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL (RFC 6454 §4), read as `DestinationPolicy` reads it.

    Raises:
        DestinationRefusedError: Not an http or https URL.
    """
    scheme, host, port, target = _parse(url)
    return Destination(scheme=scheme, host=host, port=port, target=target).origin


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
    port = int(match["port"]) if match["port"] else _SCHEME_PORTS[scheme]
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


def _is_within(host: str, domain: str) -> bool:
    # The dot stands: `*.example.com` is not the suffix of `evilexample.com`.
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def _parse_domain(entry: str) -> str:
    domain = entry.lower().removesuffix(".")
    name = domain.removeprefix("*.")
    try:
        _check_host(name)
    except DestinationRefusedError as exc:
        raise ConfigError(
            f"domains: {entry!r}: expected a public name, or *. and a public name"
        ) from exc
    return domain


def _parse_port(port: int) -> int:
    if not 0 < port <= 65535:
        raise ConfigError(f"ports: {port} is not a port")
    return port


def _parse_network(setting: str, entry: str) -> Network:
    try:
        return ipaddress.ip_network(entry)
    except ValueError as exc:
        raise ConfigError(f"{setting}: {entry!r}: expected a network such as 8.8.8.0/24") from exc
