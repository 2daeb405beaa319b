"""Which addresses are public, which an intranet may open, and which are this machine's own.

`ipaddress.is_global` is not used: its answers for multicast, 6to4 relays, NAT64 and a cloud's wire
server are wrong for this purpose, and differ between patch versions of Python.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from functools import cache
from typing import Final, TypeAlias

_log = logging.getLogger(__name__)

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


# fmt: off
# RFC 6890, the IANA IPv4 special-purpose registry, and other networks closed to strangers.
_IPV4_REFUSED: Final = _networks(
    "0.0.0.0/8",  # this network; 0.0.0.0 is loopback on Linux
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8",
    "100.64.0.0/10",  # carrier-grade NAT, and a cloud's metadata
    "168.63.129.16/32",  # a cloud's wire server
    "169.254.0.0/16",  # link-local, and most clouds' metadata
    "192.88.99.0/24",  # 6to4 relays
    "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
)
# fmt: on

# Only this is routed (IANA IPv6 address space). It excludes the forms that embed an IPv4 address in
# other ranges: mapped ::ffff:0:0/96, compatible ::/96, translated ::ffff:0:0:0/96, NAT64
# 64:ff9b::/96 and 64:ff9b:1::/48.
_IPV6_ROUTED: Final = ipaddress.IPv6Network("2000::/3")
_IPV6_REFUSED: Final = _networks(
    "2001::/23",  # protocol assignments: Teredo (embeds an IPv4 address), ORCHID, benchmarking
    "2001:db8::/32",
    "2002::/16",  # 6to4: embeds an IPv4 address
    "2620:4f:8000::/48",
    "3fff::/20",
)
# The networks that an intranet may open: RFC 1918 and RFC 4193.
_PRIVATE: Final = _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
# Within them, never those that serve a cloud's machines metadata with credentials: Scaleway's,
# Oracle's, Amazon's and Google's.
_CLOUDS_OWN: Final = _networks("fd00:42::/32", "fd00:c1::/32", "fd00:ec2::/32", "fd20:ce::/32")
# RFC 5214 §6.1: the interface identifier of ISATAP, under any prefix, before an IPv4 address.
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})

# A process or machine without a free socket fails with these, whatever the address.
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def parse_address(text: str) -> Address | None:
    """Return the address that a text spells canonically, or None.

    An address with a zone (`%eth0`) is of this machine's own links: None.
    """
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def host_is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine, by its address or as `localhost`."""
    if host in ("localhost", "::1"):
        return True
    return host.startswith("127.") and parse_address(host) is not None


def address_is_public(text: str) -> bool:
    """Return whether an address is public."""
    address = parse_address(text)
    if address is None:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _IPV4_REFUSED)
    if address not in _IPV6_ROUTED or any(address in network for network in _IPV6_REFUSED):
        return False
    return not _is_isatap(address)


def address_is_private(address: Address) -> bool:
    """Return whether an address lies in a range that an intranet may open."""
    if any(address in network for network in _CLOUDS_OWN):
        return False
    return any(address in network for network in _PRIVATE) and not _is_isatap(address)


def network_is_private(network: Network) -> bool:
    """Return whether a network lies within one of the ranges that an intranet may open."""
    first, last = network.network_address, network.broadcast_address
    return any(first in private and last in private for private in _PRIVATE)


def _is_isatap(address: Address) -> bool:
    return address.version == 6 and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP


def address_is_own(text: str) -> bool:
    """Return whether an address is one of this machine's.

    A socket can be bound to the machine's own addresses only. The kernel is asked each time, so
    that an address which was added a second ago counts, and no list of interfaces has to be read,
    which a hardened service may not do. Nothing is sent.

    Raises:
        OSError: This process has no socket left.
    """
    address = parse_address(text)
    if address is None:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return _any_can_be_bound(family) or _can_be_bound(family, text)


def _can_be_bound(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as exc:
        if exc.errno in EXHAUSTED:
            raise
        # Any other error counts as bound: the address is refused.
        return exc.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True


@cache
def _any_can_be_bound(family: socket.AddressFamily) -> bool:
    """Return whether this machine binds to foreign addresses, too: then binding proves nothing."""
    foreign = "203.0.113.1" if family is socket.AF_INET else "2001:db8::1"
    if not _can_be_bound(family, foreign):
        return False
    _log.error(
        "net.%s.ip_nonlocal_bind is on, so own addresses cannot be told from others and every"
        " destination is refused: run in a network namespace where it is off",
        "ipv4" if family is socket.AF_INET else "ipv6",
    )
    return True
