"""The guard at connect time: names are looked up, and every address is checked as it is dialled.

Three checks, each of which would do without the other two: the URL (`DestinationPolicy`), all of
a name's addresses, and the very address that a socket is about to dial. A literal address never
comes to the second, an answer that changes between check and connect not past the third.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import AsyncResolver

from pushkit.net.addresses import address_is_own
from pushkit.net.destination import Decision, DestinationPolicy, Judged
from pushkit.net.failures import LookupFailedError
from pushkit.net.timing import Probe, current_probe

_LOOKUP_TIMEOUT: Final = timedelta(seconds=5)
_MAX_ANSWERS: Final = 16


class Resolver(AbstractResolver):
    """Looks names up, without a thread for each: a name server that is silent costs only memory.

    The system's `getaddrinfo` blocks a thread, of the few that the whole process shares: some names
    whose servers never answer would keep everybody else's from being looked up.

    Args:
        resolver: Who is asked; one that reads the system's settings if None.
        timeout: After which a lookup has failed.
    """

    def __init__(
        self, resolver: AbstractResolver | None = None, *, timeout: timedelta = _LOOKUP_TIMEOUT
    ) -> None:
        self._given = resolver
        self._own: AsyncResolver | None = None
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return a name's addresses.

        Raises:
            OSError: There are none, too many, or no answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout.total_seconds()) as deadline:
                answers = await self._asked().resolve(host, port, family)
        except TimeoutError as exc:
            if not deadline.expired():
                raise
            raise OSError(errno.ETIMEDOUT, "the name could not be looked up in time") from exc
        if len(answers) > _MAX_ANSWERS:
            raise OSError(
                errno.E2BIG, f"the name has {len(answers)} addresses, at most {_MAX_ANSWERS}"
            )
        return answers

    async def close(self) -> None:
        """Let go of the name servers; one that was given is the caller's."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    def _asked(self) -> AbstractResolver:
        if self._given is not None:
            return self._given
        if self._own is None:  # needs a running loop
            self._own = AsyncResolver(timeout=2.0, tries=2)
        return self._own


class Guard(AbstractResolver):
    """Resolves and dials what a policy permits, this machine's own addresses never.

    A refusal is an `OSError`, because aiohttp lets others escape raw.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        resolver: AbstractResolver,
        *,
        is_own: Callable[[str], bool] = address_is_own,
    ) -> None:
        self._policy = policy
        self._resolver = resolver
        self._is_own = is_own

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return a name's addresses if all of them are permitted.

        All, not any: a name with a public and a private address is an attack that needs two
        attempts.

        Raises:
            OSError: One of them is refused, or there is none.
        """
        answers = await self._resolver.resolve(host, port, family)
        for answer in answers:
            self.check(answer["host"], port, host)
        return answers

    def open_socket(self, address: AddrInfoType) -> socket.socket:
        """Open the socket that is about to dial an address; the last word on where it goes.

        Raises:
            OSError: The address is refused.
        """
        self.check(str(address[4][0]), address[4][1])
        return dialling_socket(address)

    async def close(self) -> None:
        """The resolver is the caller's."""

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


async def look_up(resolver: AbstractResolver, host: str, port: int) -> list[str]:
    """Return a name's addresses, and take down how long that took.

    Raises:
        LookupFailedError: There are none, or one of them is refused.
    """
    probe = current_probe.get() or Probe()
    probe.enter("resolve")
    try:
        return [answer["host"] for answer in await resolver.resolve(host, port)]
    except OSError as exc:
        raise LookupFailedError(exc.errno, exc.strerror) from exc
    finally:
        probe.enter("connect")


def dialling_socket(address: AddrInfoType) -> socket.socket:
    """Open the socket that is about to dial an address, and take the address down."""
    family, kind, protocol, _, sockaddr = address
    probe = current_probe.get()
    if probe is not None:
        probe.dialled(sockaddr)
    return socket.socket(family, kind, protocol)
