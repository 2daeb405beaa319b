"""The guard at connect time: it looks names up, and judges every address before it is dialled.

Three checks work independently: of the URL (`DestinationPolicy`), of all addresses of its name, and
of the address that a socket is about to dial. A literal address skips the second; a name whose
addresses change between check and connect is caught by the third. Behind an egress proxy, which
dials by itself, all addresses meet the second, and none the third.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

import aiodns
from aiohappyeyeballs import AddrInfoType

from pushkit.errors import UrlDecision
from pushkit.net.addresses import address_is_own
from pushkit.net.destination import Decided, DestinationPolicy
from pushkit.net.failures import LookupFailedError, Probe, current_probe
from pushkit.url import host_and_port

_LOOKUP_TIMEOUT: Final = timedelta(seconds=5)
_MAX_ADDRESSES: Final = 16


class Resolver(Protocol):
    """Looks up the addresses of names."""

    async def resolve(self, host: str) -> Sequence[str]:
        """Return a name's addresses.

        Raises:
            OSError: There are none.
        """
        ...


class SystemResolver:
    """Asks the system's name servers without a thread for each name.

    The system's `getaddrinfo` blocks one of the few threads that the whole process shares: a few
    names whose servers never answer would stop all other lookups.
    """

    def __init__(self) -> None:
        self._resolver: aiodns.DNSResolver | None = None

    async def resolve(self, host: str) -> list[str]:
        """Return a name's addresses, of the address families that this machine has."""
        if self._resolver is None:  # needs a running loop
            self._resolver = aiodns.DNSResolver(timeout=2.0, tries=2)
        try:
            found = await self._resolver.getaddrinfo(
                host, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
        except aiodns.error.DNSError as exc:
            raise OSError(None, str(exc.args[-1])) from exc
        return [node.addr[0].decode("ascii") for node in found.nodes]

    async def close(self) -> None:
        """Cancel the lookups in progress."""
        resolver, self._resolver = self._resolver, None
        if resolver is not None:
            await resolver.close()


class NameLookup:
    """Looks names up, with limits on time and on the number of addresses."""

    def __init__(self, resolver: Resolver | None) -> None:  # the system's name servers if None
        self._own = SystemResolver()
        self._resolver = resolver or self._own

    async def addresses(self, host: str) -> list[str]:
        """Return a name's addresses, and record the time in the request's probe.

        Raises:
            LookupFailedError: The name has no address, too many, or no answer came in time.
        """
        probe = current_probe.get() or Probe()
        probe.enter("resolve")
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT.total_seconds()):
                addresses = await self._resolver.resolve(host)
        except TimeoutError as exc:
            late = "the name could not be looked up in time"
            raise LookupFailedError(errno.ETIMEDOUT, late) from exc
        except OSError as exc:
            raise LookupFailedError(exc.errno, exc.strerror) from exc
        finally:
            probe.enter("connect")
        if not 0 < len(addresses) <= _MAX_ADDRESSES:
            found = f"the name has {len(addresses)} addresses, at most {_MAX_ADDRESSES}"
            raise LookupFailedError(errno.E2BIG, found)
        return list(addresses)

    async def close(self) -> None:
        """Close the system's resolver; one that was passed in belongs to the caller."""
        await self._own.close()


class Guard:
    """Judges addresses by a policy, and refuses this machine's own."""

    def __init__(
        self, policy: DestinationPolicy, *, is_own: Callable[[str], bool] = address_is_own
    ) -> None:
        self.policy = policy
        self._is_own = is_own

    def open_socket(self, address: AddrInfoType) -> socket.socket:
        """Judge the address that a connection is about to dial, and open its socket.

        Raises:
            OSError: The address is refused.
        """
        self.check(str(address[4][0]), address[4][1])
        return dialling_socket(address)

    def check(self, address: str, port: int | str, host: str | None = None) -> None:
        """Judge one address; `host` is its name, None for a socket.

        Raises:
            OSError: The address is refused.
        """
        decision = self.policy.decide_on_address(address)
        if not decision.is_refusal and self._is_own(address):
            decision = UrlDecision.OWN_ADDRESS
        self.policy.report(Decided(decision=decision, host=host, port=int(port), address=address))
        if decision.is_refusal:
            probe = current_probe.get()
            if probe is not None:
                probe.refused = decision
            raise OSError(errno.EACCES, decision.reason)


def dialling_socket(address: AddrInfoType) -> socket.socket:
    """Open a socket for an address, and record the address in the request's probe."""
    family, kind, protocol, _, sockaddr = address
    probe = current_probe.get()
    if probe is not None:
        probe.address = host_and_port(str(sockaddr[0]), int(sockaddr[1]))
    return socket.socket(family, kind, protocol)
