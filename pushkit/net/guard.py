"""The guard at connect time: names are looked up, and every address is checked as it is dialled.

Three checks, each of which would do without the other two: the URL (`DestinationPolicy`), all of
a name's addresses, and the very address that a socket is about to dial. A literal address never
comes to the second, an answer that changes between check and connect not past the third.
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

from pushkit.net.addresses import address_is_own
from pushkit.net.destination import Decision, DestinationPolicy, Judged
from pushkit.net.failures import LookupFailedError
from pushkit.net.timing import Probe, current_probe

_LOOKUP_TIMEOUT: Final = timedelta(seconds=5)
_MAX_ADDRESSES: Final = 16


class Resolver(Protocol):
    """Whom names are asked of."""

    async def resolve(self, host: str) -> Sequence[str]:
        """Return a name's addresses.

        Raises:
            OSError: There are none.
        """
        ...


class SystemResolver:
    """The name servers of the system's settings, asked without a thread for each name.

    The system's `getaddrinfo` blocks a thread, of the few that the whole process shares: some names
    whose servers never answer would keep everybody else's from being looked up.
    """

    def __init__(self) -> None:
        self._asked: aiodns.DNSResolver | None = None

    async def resolve(self, host: str) -> list[str]:
        """Return a name's addresses, of the families that this machine has."""
        if self._asked is None:  # needs a running loop
            self._asked = aiodns.DNSResolver(timeout=2.0, tries=2)
        try:
            found = await self._asked.getaddrinfo(
                host, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
            )
        except aiodns.error.DNSError as exc:
            raise OSError(None, str(exc.args[-1])) from exc
        return [node.addr[0].decode("ascii") for node in found.nodes]

    async def close(self) -> None:
        """Give up what is under way."""
        asked, self._asked = self._asked, None
        if asked is not None:
            await asked.close()


class Names:
    """Looks names up, within bounds of time and number."""

    def __init__(
        self,
        resolver: Resolver | None = None,  # the system's name servers if None
        *,
        timeout: timedelta = _LOOKUP_TIMEOUT,
    ) -> None:
        self._own = SystemResolver()
        self._resolver = resolver or self._own
        self._timeout = timeout

    async def look_up(self, host: str) -> list[str]:
        """Return a name's addresses, and take down how long that took.

        Raises:
            LookupFailedError: There are none, too many, or no answer in time.
        """
        probe = current_probe.get() or Probe()
        probe.enter("resolve")
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
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
        """Let go of the name servers; a resolver that was given is the caller's."""
        await self._own.close()


class Guard:
    """Dials what a policy permits, this machine's own addresses never."""

    def __init__(
        self, policy: DestinationPolicy, *, is_own: Callable[[str], bool] = address_is_own
    ) -> None:
        self._policy = policy
        self._is_own = is_own

    def open_socket(self, address: AddrInfoType) -> socket.socket:
        """Open the socket that is about to dial an address; the last word on where it goes.

        Raises:
            OSError: The address is refused.
        """
        self.check(str(address[4][0]), address[4][1])
        return dialling_socket(address)

    def check(self, address: str, port: int | str, host: str | None = None) -> None:
        """Judge one address.

        Raises:
            OSError: It is refused.
        """
        decision = self._policy.judge_address(address)
        if not decision.is_refusal and self._is_own(address):
            decision = Decision.OWN_ADDRESS
        self._policy.tell(Judged(decision=decision, host=host, port=int(port), address=address))
        if decision.is_refusal:
            probe = current_probe.get()
            if probe is not None:
                probe.refused = decision
            raise OSError(errno.EACCES, decision.reason)


def dialling_socket(address: AddrInfoType) -> socket.socket:
    """Open the socket that is about to dial an address, and take the address down."""
    family, kind, protocol, _, sockaddr = address
    probe = current_probe.get()
    if probe is not None:
        probe.dialled(sockaddr)
    return socket.socket(family, kind, protocol)
