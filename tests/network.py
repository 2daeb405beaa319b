"""A network that a test controls, and that never leaves loopback, whatever the code does.

An audit hook sees every socket that Python connects or sends from, whoever opened it; outside of
loopback it refuses. It stands whether or not the code under test has a guard of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiodns
import pytest

__all__ = ["LeftLoopbackError", "Names", "Network", "the_network"]

Answers = Sequence[str]
Dialled = tuple[str, int]


class LeftLoopbackError(OSError):
    """A socket was about to leave loopback."""


class Names:
    """DNS for a test: sets of addresses by name, returned in order; the last one repeats."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answers]] = {}
        self.asked: list[str] = []

    def says(self, name: str, *answers: Answers) -> None:
        self.answers[name] = list(answers)

    async def resolve(self, host: str) -> Answers:
        self.asked.append(host)
        sets = self.answers.get(host) or _as_libc_reads(host)
        if not sets:
            raise OSError(None, "no such name")
        return sets.pop(0) if len(sets) > 1 else sets[0]


@dataclass
class Network:
    """The addresses that were dialled, and the server behind each public address."""

    names: Names = field(default_factory=Names)  # its DNS
    # Every address that a socket was told to dial, in order, reached or not.
    dialled: list[Dialled] = field(default_factory=list)
    # Which port on loopback stands for a public address and port.
    places: dict[Dialled, int] = field(default_factory=dict)

    def leads(self, name: str, address: str, port: int, *, to: int) -> None:
        """Let a name have a public address, behind which a server on loopback stands."""
        self.names.says(name, [address])
        self.places[address, port] = to


@contextmanager
def the_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Yield a network that records dialled addresses; nothing leaves loopback meanwhile."""
    network = Network()
    loop_class = asyncio.selector_events.BaseSelectorEventLoop
    connect: Callable[..., object] = loop_class.sock_connect

    async def sock_connect(
        loop: asyncio.AbstractEventLoop, sock: socket.socket, address: tuple[str, int]
    ) -> None:
        dialled = (address[0], address[1])
        network.dialled.append(dialled)
        port = network.places.get(dialled)
        await connect(loop, sock, address if port is None else ("127.0.0.1", port))  # type: ignore[misc]

    async def no_lookup(*_: object, **__: object) -> None:
        raise aiodns.error.DNSError(1, "this test asks no name server")

    monkeypatch.setattr(loop_class, "sock_connect", sock_connect)
    # No hook of Python's sees what c-ares sends.
    monkeypatch.setattr(aiodns.DNSResolver, "getaddrinfo", no_lookup)
    _standing.append(network)
    try:
        yield network
    finally:
        _standing.remove(network)


_standing: list[Network] = []
_LEAVING = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


def _stay_on_loopback(event: str, arguments: tuple[object, ...]) -> None:
    if not _standing:
        return
    if event == "socket.getaddrinfo" and not _is_loopback(arguments[0]):
        raise LeftLoopbackError(None, f"a lookup of {arguments[0]!r} by the system")
    if event in _LEAVING:
        sock, address = arguments[0], arguments[1]
        assert isinstance(sock, socket.socket)
        if sock.family != socket.AF_UNIX and not _is_loopback(_host_of(address)):
            raise LeftLoopbackError(None, f"a connection to {_host_of(address)}")


sys.addaudithook(_stay_on_loopback)


def _host_of(address: object) -> object:
    return address[0] if isinstance(address, tuple) else address


def _is_loopback(host: object) -> bool:
    text = host.decode() if isinstance(host, bytes) else host
    try:
        return ipaddress.ip_address(str(text)).is_loopback
    except ValueError:
        return text in {None, "localhost"}


def _as_libc_reads(host: str) -> list[Answers]:
    """Resolve spellings that are not names, as a C library does."""
    if host.rstrip(".").lower() == "localhost":
        return [["127.0.0.1"]]
    try:
        return [[socket.inet_ntoa(socket.inet_aton(host))]]
    except (OSError, UnicodeError):
        return []
