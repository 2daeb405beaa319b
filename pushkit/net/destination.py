"""The policy on URLs and addresses that may be reached (wire profile §6). It resolves no names."""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    InvalidUrlError,
    PushkitError,
    UrlDecision,
)
from pushkit.net.addresses import (
    Network,
    address_is_private,
    address_is_public,
    host_is_loopback,
    network_is_private,
    parse_address,
)
from pushkit.options import check_list, check_options
from pushkit.record import record
from pushkit.url import Url, host_and_port, masked_url, normalise_host

_log = logging.getLogger(__name__)

_PORT = re.compile(r"[0-9]{1,5}")
_NO_HOST = re.compile(r"[\s/@*?#]")  # characters of a URL or a pattern
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_ENDS_IN_NUMBER = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$")

# RFC 6761 and its successors, and names of container networks and clouds.
# fmt: off
_SPECIAL_SUFFIXES = (
    "localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp",
    "home.arpa", "arpa", "onion", "invalid", "test", "example", "alt", "svc",
)
# fmt: on


class Decided(NamedTuple):
    """A decision and its subject."""

    decision: UrlDecision
    # The name in the URL; None if the URL is malformed, or a socket is about to dial an address.
    host: str | None = None
    port: int | None = None  # the port in the URL, or the one that is dialled
    address: str | None = None  # the address that was judged; None if the URL was


@record(frozen=True, slots=True, kw_only=True)
class Destination:
    """A URL that passed the policy."""

    url: Url
    allowed_by_name: bool = False  # the operator named the host: its addresses are not judged

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return self.url.origin


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationRules:
    """The operator's rules beside the built-in ones.

    `domains`, `ports`, `networks` and `refused_networks` restrict; they also apply to the names and
    networks that `allow_domains` and `allow_networks` open.

    Attributes:
        domains: Only these names: `client.example.com`, or `*.example.com` for every name below it,
            but not for itself. Empty: any public name.
        ports: Only these ports.
        networks: Only addresses in these networks, as `198.51.100.0/24`; empty: any public one.
        refused_networks: No address in these: your own public ranges, a NAT64 prefix of your own.
        allow_domains: Local and special-use names of an intranet to allow: `corp.example` for
            itself and every name below it.
        allow_networks: Private networks of an intranet to allow, as `10.1.0.0/16`, within RFC 1918
            and fc00::/7. A client's own name can resolve to any address in them, so restrict
            `domains`, too.
        on_decision: Called with every decision on a URL, on an address of its name, and on an
            address that is about to be dialled. It must not block; exceptions are logged.
    """

    domains: Sequence[str] = ()
    ports: Sequence[int] = (443, 8443)
    networks: Sequence[str] = ()
    refused_networks: Sequence[str] = ()
    allow_domains: Sequence[str] = ()
    allow_networks: Sequence[str] = ()
    on_decision: Callable[[Decided], None] | None = None

    def __post_init__(self) -> None:
        check_options(self)


class DestinationPolicy:
    """Decides about URLs and addresses.

    Args:
        allow: Hosts that the operator names for development and tests, as `host:port` or `host:*`,
            for example `["127.0.0.1:*", "[::1]:8080", "localhost:*"]`. The rules on scheme, port,
            literal addresses and special names do not apply to them, nor do `rules`.
        rules: The operator's further rules.
        loopback: Whether hosts on this machine are allowed, too: only where no outsider, but the
            operator alone names URLs, in a command or in a configuration.

    Raises:
        ConfigError: An entry is malformed.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        rules: DestinationRules = DestinationRules(),
        *,
        loopback: bool = False,
    ) -> None:
        check_list("allow", allow, of=str, shown=False)
        self.allow: tuple[str, ...] = tuple(allow)
        self._loopback = loopback
        self._is_of_urls = False
        self._named = frozenset(_parse_allow(entry) for entry in allow)
        self._intranet = tuple(_parse_intranet_domain(entry) for entry in rules.allow_domains)
        self._private = tuple(map(_parse_private_network, rules.allow_networks))
        self._domains = tuple(self._parse_domain(domain) for domain in rules.domains)
        self._ports = tuple(_parse_port(port) for port in rules.ports)
        self._networks = tuple(_parse_network("networks", each) for each in rules.networks)
        self._refused = tuple(
            _parse_network("refused_networks", each) for each in rules.refused_networks
        )
        self._on_decision = rules.on_decision
        # A decision on a URL does not change, and the few in use are judged at every attempt.
        self._decide = functools.lru_cache(maxsize=4096)(self.decide_on_url)

    @classmethod
    def naming(cls, *urls: str) -> Self:
        """Return a policy whose `allow` names the hosts and ports of these URLs.

        Raises:
            ConfigError: One is not an absolute http or https URL.
        """
        try:
            parsed = [Url.parse(url) for url in urls]
        except InvalidUrlError as exc:
            found = " ".join(map(masked_url, urls))[:100]
            raise ConfigError(
                f"found {found!r}, expected an absolute http or https URL, without user name or"
                " fragment"
            ) from exc
        policy = cls([host_and_port(url.host, url.port) for url in parsed])
        policy._is_of_urls = True
        return policy

    def check(self, text: str) -> Destination:
        """Return the destination that a URL names.

        Raises:
            DestinationRefusedError: The URL breaks a rule, which the message names. It does not
                quote the URL, whose query may hold secrets.
        """
        try:
            url = Url.parse(text)
        except InvalidUrlError as exc:
            self.report(Decided(decision=UrlDecision.NOT_A_URL))
            raise DestinationRefusedError(str(exc), decision=UrlDecision.NOT_A_URL) from exc
        decision = self._decide(url)
        self.report(Decided(decision=decision, host=url.host, port=url.port))
        if decision.is_refusal:
            expected = ""
            if decision is UrlDecision.PORT:
                expected = f", expected {' or '.join(map(str, self._ports))}"
            # Clients read this, too: it says nothing that only the operator can do.
            raise DestinationRefusedError(
                f"URL: {url.origin}: {decision.reason}{expected}",
                decision=decision,
                allow=host_and_port(url.host, url.port),
            )
        return Destination(url=url, allowed_by_name=decision is UrlDecision.NAMED)

    def decide_on_url(self, url: Url) -> UrlDecision:
        """Decide on a URL without its addresses."""
        if self.allows_by_name(url):
            return UrlDecision.NAMED
        if url.scheme != "https":
            return UrlDecision.NOT_HTTPS
        if url.port not in self._ports:
            return UrlDecision.PORT
        decision = self._decide_on_host(url.host)
        listed = not self._domains or any(_is_within(url.host, each) for each in self._domains)
        return decision if listed or decision.is_refusal else UrlDecision.OTHER_DOMAIN

    def decide_on_address(self, text: str) -> UrlDecision:
        """Decide on an address that is about to be dialled."""
        address = parse_address(text)
        if address is None:
            return UrlDecision.NOT_PUBLIC
        decision = UrlDecision.PUBLIC
        if not address_is_public(text):
            if not (address_is_private(address) and any(address in n for n in self._private)):
                return UrlDecision.NOT_PUBLIC
            decision = UrlDecision.INTRANET
        if self._networks and not any(address in network for network in self._networks):
            return UrlDecision.OTHER_NETWORK
        if any(address in network for network in self._refused):
            return UrlDecision.REFUSED_NETWORK
        return decision

    def allows_by_name(self, url: Url) -> bool:
        """Return whether the operator named the host of a URL."""
        if self._loopback and host_is_loopback(url.host):
            return True
        return (url.host, url.port) in self._named or (url.host, None) in self._named

    def avoids_proxy(self, host: str) -> bool:
        """Return whether a host that is allowed by name is dialled without the egress proxy.

        Those of `allow` are, and of the URLs of `naming` those on this machine.
        """
        return not self._is_of_urls or host_is_loopback(host)

    def report(self, decided: Decided) -> None:
        """Call the operator's `on_decision` with a decision."""
        if self._on_decision is None:
            return
        try:
            self._on_decision(decided)
        except Exception:  # noqa: BLE001  # the decision is valid all the same
            _log.exception("on_decision failed")

    def _decide_on_host(self, host: str) -> UrlDecision:
        labels = host.split(".")
        if ":" in host or _ENDS_IN_NUMBER.search(host):
            return UrlDecision.LITERAL_ADDRESS
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
            return UrlDecision.NOT_A_NAME
        if len(labels) == 1:
            return UrlDecision.SPECIAL_NAME
        if _is_below(host, self._intranet):
            return UrlDecision.INTRANET
        return (
            UrlDecision.SPECIAL_NAME if _is_below(host, _SPECIAL_SUFFIXES) else UrlDecision.PUBLIC
        )

    def _parse_domain(self, entry: str) -> str:
        domain = entry.lower().removesuffix(".")
        if self._decide_on_host(domain.removeprefix("*.")).is_refusal:
            raise ConfigError(
                f"domains: {entry!r}: expected a public name or one within allow_domains,"
                " with or without *. before it"
            )
        return domain


SENDER_ALLOW: Final = "PushSender(allow=[\"{0}\"]), or --allow '{0}'"
"""The places of a sender's `allow`, for `DestinationRefusedError.advice`."""


def local_advice(error: PushkitError) -> str:
    """Return the advice for a webhook on this machine, for a log.

    Nothing for any other one: whoever registered it may be an attacker.
    """
    if isinstance(error, DestinationRefusedError) and error.allow is not None:
        host = error.allow.rpartition(":")[0].strip("[]")
        return error.advice(SENDER_ALLOW) if host_is_loopback(host) else ""
    return ""


def _is_within(host: str, domain: str) -> bool:
    # The dot counts: `*.example.com` does not match `evilexample.com`.
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def _is_below(host: str, domains: Sequence[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _parse_allow(entry: str) -> tuple[str, int | None]:
    host, colon, port = entry.rpartition(":")
    is_one = colon and host and not _NO_HOST.search(host)
    if not is_one or not (port == "*" or _PORT.fullmatch(port)):
        raise ConfigError(f"allow: {entry!r}: expected host:port or host:*")
    try:
        return normalise_host(host), None if port == "*" else int(port)
    except InvalidUrlError as exc:
        raise ConfigError(f"allow: {entry!r}: not a host") from exc


def _parse_intranet_domain(entry: str) -> str:
    domain = entry.lower().removesuffix(".")
    is_name = len(domain) <= 253 and all(map(_LABEL.fullmatch, domain.split(".")))
    # RFC 6761 §6.3: names below localhost are this machine, which no rule may open.
    if not is_name or _ENDS_IN_NUMBER.search(domain) or _is_below(domain, ("localhost",)):
        raise ConfigError(
            f"allow_domains: {entry!r}: expected a name such as corp.example, which includes every"
            " name below it"
        )
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


def _parse_private_network(entry: str) -> Network:
    network = _parse_network("allow_networks", entry)
    if not network_is_private(network):
        raise ConfigError(
            f"allow_networks: {entry!r}: expected a network within 10.0.0.0/8, 172.16.0.0/12,"
            " 192.168.0.0/16 or fc00::/7"
        )
    return network
