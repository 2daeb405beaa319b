"""A simulated network between the client's connections and the server's protocols, byte by byte.

Connections carry bytes with latency, in order, in pieces of a seeded size. The faults of a
connection are decided when it is dialled: refused, silent, reset or stalled after a number of bytes
in either direction, or dripping. TLS is simulated by a check that the listener has TLS, and a
certificate for the requested name; the bytes are not encrypted.

Names are looked up in a table that the steps of a scenario change.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import functools
import itertools
import random
import socket
import ssl as ssl_module
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.verification.simulation.loop import PROCESS, Process, SimulatedLoop

__all__ = ["ConnectionFaults", "Link", "Network", "SimulatedResolver", "SimulatedSocket"]

_HIGH_WATER = 65_536
_MSS = 1_460
_PUBLIC = "93.184."
_UNGUARDED = ("attacker", "reader")
_FRESH = 12.0  # seconds from a lookup to dialling its last address


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFaults:
    """The faults of a connection."""

    refused: bool = False  # the connection is refused
    silent: bool = False  # dialling is never answered
    # Bytes of the request after which both ends get a reset; None for never.
    reset_after: int | None = None
    # Bytes of the answer after which both ends do; None for never.
    reset_answer_after: int | None = None
    # Bytes of the answer after which nothing more arrives; None for never.
    stall_after: int | None = None
    drip: float | None = None  # seconds between two bytes of the answer; None for whole segments
    bad_certificate: bool = False  # the TLS handshake fails
    latency: float = 0.002  # seconds for one way


@dataclass(slots=True)
class _Listener:
    factory: Callable[[], asyncio.BaseProtocol]
    process: Process | None
    tls: bool
    context: contextvars.Context


@dataclass(slots=True)
class Link:
    """The network path to one host, which a scenario may disturb."""

    faults: Callable[[], ConnectionFaults]  # returns the faults of the next connection
    cut: bool = False  # whether nothing passes, in either direction
    connections: set[_Pipe] = field(default_factory=set)


class Network:
    """All listeners, names and connections of a world."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        loop.network = self
        self.random = random.Random(f"network {seed}")
        self.names: dict[str, Sequence[str] | Callable[[], Sequence[str]]] = {}
        # By address: called with the client's port and the bytes of everything sent there.
        self.taps: dict[str, list[Callable[[int, bytes], None]]] = defaultdict(list)
        self.certificates: dict[str, set[str]] = {}
        self.dialled = 0
        self.cut_off: set[str] = set()  # addresses of machines that reach nobody
        self.most_open: Counter[str] = Counter()  # connections at once, by process
        self.on_violation: Callable[[str], object] = lambda _: None
        self._looked_up: dict[str, float] = {}
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._links: dict[str, Link] = {}
        self._ports = itertools.count(40_000)
        self._open: list[_Pipe] = []

    # --- called by steps of a scenario ----------------------------------------------------------

    def link(self, host: str) -> Link:
        """Return the path to a host; without faults until its `faults` are replaced."""
        if host not in self._links:
            self._links[host] = Link(
                lambda: ConnectionFaults(latency=0.0005 + self.random.random() * 0.004)
            )
        return self._links[host]

    def drop(self, process: Process, *, reset: bool = True) -> None:
        """Close a dead process's sockets, with or without a reset to its peers."""
        for address, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[address]
        for pipe in list(self._open):
            if process in (pipe.near.process, pipe.far.process):
                pipe.end(reset=reset)

    # --- listening and dialling -----------------------------------------------------------------

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: Any,
        port: int | None,
        *,
        tls: bool = False,
    ) -> _Server:
        address = (str(host), port or next(self._ports))
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, "address in use")
        self._listeners[address] = _Listener(
            factory, PROCESS.get(), tls, contextvars.copy_context()
        )
        return _Server(self, address)

    def unlisten(self, address: tuple[str, int]) -> None:
        self._listeners.pop(address, None)

    async def getaddrinfo(self, host: str, port: int) -> list[Any]:
        addresses = await self.look_up(host)
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in addresses]

    async def look_up(self, host: str) -> Sequence[str]:
        await self.loop.pause(0.001 + self.random.random() * 0.01)
        if host not in self.names:
            raise OSError(None, "no such name")
        answer = self.names[host]
        addresses = answer() if callable(answer) else answer
        for address in addresses:
            self._looked_up[address] = self.loop.time()
        return addresses

    async def connect(self, sock: SimulatedSocket, address: tuple[str, int]) -> None:
        """Connect a socket, as `sock_connect` does."""
        self.dialled += 1
        host, port = str(address[0]), int(address[1])
        process, looked_at = PROCESS.get(), self._looked_up.get(host, -_FRESH)
        # The attacker has no guard, and clients of mailboxes dial what they are told to.
        has_guard = process is None or not process.name.startswith(_UNGUARDED)
        if has_guard and not host.startswith(_PUBLIC):
            self.on_violation(f"dialled {host}, which is not public")
        if process is not None and process.thawed_at > looked_at > 0:
            looked_at = process.thawed_at  # a process frozen in between dials once thawed
        if has_guard and self.loop.time() - looked_at > _FRESH:
            self.on_violation(f"dialled {host}, without looking its name up")
        link = self.link(host)
        faults = link.faults()
        listener = self._listeners.get((host, port))
        is_away = process is not None and process.host in self.cut_off
        if faults.silent or link.cut or is_away:
            await self.loop.create_future()  # until the caller's deadline
        await self.loop.pause(faults.latency * 2)
        alive = listener is not None and (listener.process is None or listener.process.alive)
        if listener is None or faults.refused or not alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        sock.connected = _Connected(listener, faults, link, (host, port))

    async def open_connection(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | None,
        port: int | None,
        *,
        sock: SimulatedSocket | None,
        ssl: Any,
        server_hostname: str | None,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Open a connection over a connected socket, or dial first."""
        if sock is None:
            sock = SimulatedSocket()
            await self.connect(sock, (await self.getaddrinfo(str(host), port or 0))[0][4])
        connected = sock.connected
        if connected is None:
            raise OSError(errno.ENOTCONN, "not connected")
        if ssl:
            await self._shake_hands(connected, server_hostname or host)
        process = PROCESS.get()
        client_host = process.host if process else "198.18.0.1"
        pipe = _Pipe(self, connected, (client_host, next(self._ports)), tls=bool(ssl))
        self._open.append(pipe)
        if process is not None:
            own = sum(each.near.process is process for each in self._open) + 1
            self.most_open[process.name] = max(self.most_open[process.name], own)
        connected.link.connections.add(pipe)
        protocol = factory()
        pipe.near.attach(protocol, contextvars.copy_context(), process)
        protocol.connection_made(pipe.near)
        listener = connected.listener
        context = pipe.far.context = listener.context.copy()

        def accept() -> None:
            if pipe.ended:
                return
            server_side = listener.factory()
            pipe.far.attach(server_side, context, listener.process)
            server_side.connection_made(pipe.far)
            pipe.far.catch_up()

        self.loop.call_later(connected.faults.latency, accept, context=context)
        return pipe.near, protocol

    async def _shake_hands(self, connected: _Connected, name: str | None) -> None:
        await self.loop.pause(connected.faults.latency * 2)
        wanted = self.certificates.get(connected.address[0])
        if not connected.listener.tls:
            raise ssl_module.SSLError(1, "wrong version number")
        if connected.faults.bad_certificate or (wanted is not None and name not in wanted):
            error = ssl_module.SSLCertVerificationError(1, "certificate verify failed")
            error.verify_message = "Hostname mismatch"
            raise error

    def forget(self, pipe: _Pipe) -> None:
        if pipe in self._open:
            self._open.remove(pipe)
        pipe.link.connections.discard(pipe)


@dataclass(slots=True)
class _Connected:
    listener: _Listener
    faults: ConnectionFaults
    link: Link
    address: tuple[str, int]


class _Server(asyncio.AbstractServer):
    def __init__(self, network: Network, address: tuple[str, int]) -> None:
        self._network = network
        self.address = address
        self.sockets: tuple[SimulatedSocket, ...] = (SimulatedSocket(bound=address),)

    def close(self) -> None:
        self._network.unlisten(self.address)

    async def wait_closed(self) -> None:
        pass

    async def start_serving(self) -> None:
        pass

    def is_serving(self) -> bool:
        return True

    async def serve_forever(self) -> None:
        await asyncio.Event().wait()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class SimulatedSocket:
    """Stands where code opens a socket of its own: dials nothing but the simulated network."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = 6

    def __init__(self, *_: Any, bound: tuple[str, int] | None = None, **__: Any) -> None:
        self.connected: _Connected | None = None
        self._bound = bound

    def setblocking(self, flag: bool) -> None: ...

    def setsockopt(self, *_: Any) -> None: ...

    def fileno(self) -> int:
        return -1

    def bind(self, address: Any) -> None:
        # Code binds a socket to learn whether an address is its machine's own.
        process = PROCESS.get()
        if process is None or address[0] != process.host:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    def getpeername(self) -> tuple[str, int]:
        if self.connected is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self.connected.address

    def getsockname(self) -> tuple[str, int]:
        return self._bound or ("0.0.0.0", 0)  # noqa: S104

    def close(self) -> None: ...

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None: ...


class SimulatedResolver:
    """Resolves names by the network's table."""

    async def resolve(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        return list(await loop.network.look_up(host))

    async def close(self) -> None: ...


class _Pipe:
    """One connection: its two ends, and its faults."""

    def __init__(
        self, network: Network, connected: _Connected, client: tuple[str, int], *, tls: bool
    ) -> None:
        self.network = network
        self.loop = network.loop
        self.faults = connected.faults
        self.link = connected.link
        self.client = client[0]
        self.ended = False
        self.near = _End(self, peer=connected.address, own=client, tls=tls)
        self.far = _End(self, peer=client, own=connected.address, tls=tls)
        self.near.other, self.far.other = self.far, self.near
        self.near.reset_after = self.faults.reset_after
        self.far.reset_after = self.faults.reset_answer_after
        self.far.stall_after = self.faults.stall_after
        self.far.drip = self.faults.drip

    def end(self, *, reset: bool) -> None:
        """End the connection; without `reset`, a living peer notices only by its own deadline."""
        if self.ended:
            return
        self.ended = True
        self.network.forget(self)
        for end in (self.near, self.far) if reset else ():
            end.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))


class _End(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, pipe: _Pipe, *, peer: tuple[str, int], own: tuple[str, int], tls: bool
    ) -> None:
        super().__init__()
        self._pipe = pipe
        self._loop = pipe.loop
        self._facts = {"peername": peer, "sockname": own, "socket": None}
        if tls:
            self._facts["sslcontext"] = self._facts["ssl_object"] = object()  # type: ignore[assignment]
        self.other: _End = self
        self.process: Process | None = None
        self.protocol: Any = None
        self.context: contextvars.Context | None = None
        self.closing = False
        self.reset_after: int | None = None
        self.stall_after: int | None = None
        self.drip: float | None = None
        self._lost = False
        self._sent = self._written = self.received = 0
        self._arrives_at = 0.0
        self._paused = False
        self._stopped_writer = False
        self._inbox: deque[bytes | None] = deque()
        self._waiting_bytes = 0

    def attach(self, protocol: Any, context: contextvars.Context, process: Process | None) -> None:
        self.protocol, self.context, self.process = protocol, context, process

    # --- called by its protocol -----------------------------------------------------------------

    @property
    def peer_process(self) -> Process | None:
        """The process at the other end."""
        return self.other.process

    def arrives(self, length: int) -> Callable[[], bool]:
        """Return a function that says whether the next `length` bytes have arrived."""
        written, other = self._written + length, self.other
        return lambda: other.received >= written

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing or self._lost

    def write(self, data: Any) -> None:
        if self.closing or self._lost or not data:
            return
        sent = bytes(data)
        self._written += len(sent)
        if self._pipe.ended:
            return
        if self.stall_after is not None:
            sent = sent[: max(self.stall_after - self._sent, 0)]
        cut = None if self.reset_after is None else max(self.reset_after - self._sent, 0)
        resets = cut is not None and len(sent) > cut
        if resets:
            sent = sent[:cut]
        self._sent += len(sent)
        for piece in self._pieces(sent):
            self._send(piece)
        if resets:
            self._loop.call_at(self._arrives_at, functools.partial(self._pipe.end, reset=True))
        elif self.other._waiting_bytes > _HIGH_WATER and not self._stopped_writer:
            self._stopped_writer = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._loop.call_soon(self.catch_up, context=self.context)

    def close(self) -> None:
        if self.closing or self._lost:
            return
        self.closing = True
        self._send(None)
        self._loop.call_soon(self.lose, None, context=self.context)

    def abort(self) -> None:
        self.closing = True
        self._pipe.end(reset=True)
        self.lose(None)

    # --- transmission ---------------------------------------------------------------------------

    def _pieces(self, data: bytes) -> list[bytes]:
        if self.drip is not None:
            return [data[at : at + 1] for at in range(len(data))]
        if len(data) <= _MSS and self._loop.network.random.random() < 0.9:
            return [data]
        pieces, at = [], 0
        while at < len(data):
            size = self._loop.network.random.randint(1, _MSS)
            pieces.append(data[at : at + size])
            at += size
        return pieces

    def _send(self, piece: bytes | None) -> None:
        self.other._waiting_bytes += len(piece or b"")
        latency = self._pipe.faults.latency * (0.5 + self._loop.network.random.random())
        moment = self._loop.time() + latency
        if self.drip is not None:
            moment = max(moment, self._arrives_at + self.drip)
        self._arrives_at = max(moment, self._arrives_at + 1e-7)  # pieces stay in order
        self._loop.call_at(self._arrives_at, self.other.arrive, piece, context=self.other.context)

    def arrive(self, piece: bytes | None) -> None:
        pipe = self._pipe
        if self._lost or pipe.link.cut or pipe.client in pipe.network.cut_off:
            return  # a cut link loses it; TCP would retry for longer than any deadline
        if piece and self is self._pipe.far:
            for listen in self._pipe.network.taps.get(self._facts["sockname"][0], ()):  # type: ignore[index]
                listen(self._facts["peername"][1], piece)  # type: ignore[index]
        self._inbox.append(piece)
        self.catch_up()

    def catch_up(self) -> None:
        while self._inbox and not self._paused and not self._lost and self.protocol is not None:
            piece = self._inbox.popleft()
            if piece is None:
                if not self.protocol.eof_received():
                    self.close()
            else:
                self._waiting_bytes -= len(piece)
                if self.closing:
                    continue
                self.received += len(piece)
                self._hand_over(piece)
        other = self.other
        if other._stopped_writer and self._waiting_bytes <= _HIGH_WATER // 4 and not other._lost:
            other._stopped_writer = False
            self._loop.call_soon(other.protocol.resume_writing, context=other.context)

    def _hand_over(self, piece: bytes) -> None:
        """Pass a piece to the protocol, in parts that fit its buffer if it has one."""
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(piece)
            return
        while piece:
            buffer = memoryview(self.protocol.get_buffer(len(piece)))
            now, piece = piece[: len(buffer)], piece[len(buffer) :]
            buffer[: len(now)] = now
            self.protocol.buffer_updated(len(now))

    def lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self.closing = True
        if self.protocol is not None:
            self._loop.call_soon(self.protocol.connection_lost, error, context=self.context)
        if self.other._lost:
            self._pipe.ended = True
            self._pipe.network.forget(self._pipe)
