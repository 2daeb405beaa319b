"""Simulated webhooks that answer, fail, hang, drip, redirect, ask to wait, or disconnect.

They use an HTTP server of their own, so that no defect of the code under test is on both sides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from math import inf
from typing import Any, ClassVar

from tests.verification.simulation.loop import Process
from tests.verification.simulation.world import Machine, World

__all__ = [
    "SHORTEST_WAIT",
    "UNHURRIED",
    "Arrival",
    "Behaviour",
    "KeyServer",
    "Webhook",
    "behaviour_of",
    "first_request",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How a webhook answers."""

    status: int | None = 200  # the status; None to never answer
    after: float = 0.001  # seconds until it answers
    headers: tuple[tuple[str, str], ...] = ()  # more header lines
    # Seconds between two bytes of an endless answer body; None for a plain one.
    drips: float | None = None
    closes: bool = False  # whether it closes the connection in place of answering
    is_garbage: bool = False  # whether its answer is not HTTP
    retry_after: str | None = None  # `Retry-After`; `+20` for the date in 20 s
    # Seconds after its answer until it sends a second one, for no request.
    babbles_after: float | None = None
    leaves_after: float | None = None  # seconds after its answer until it closes the connection


_BABBLE = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbabble"
SHORTEST_WAIT = 1.0  # seconds that a sender waits at least if it is asked to
UNHURRIED = 1.0  # seconds: the longest answer of webhooks whose owners use all slots
_AWAY = 0.1  # seconds after which a babble has arrived, and its connection is closed
_BEHAVIOURS = {
    "ok": Behaviour(),
    "leisurely": Behaviour(after=0.5),
    "unhurried": Behaviour(after=UNHURRIED),
    "slow": Behaviour(after=3.0),
    "sluggish": Behaviour(after=8.0),
    "late": Behaviour(after=12.0),
    "tired": Behaviour(status=500, after=2.0),
    "hang": Behaviour(status=None),
    "close": Behaviour(closes=True),
    "drip": Behaviour(status=200, drips=0.2),
    "drip 500": Behaviour(status=500, drips=0.2),
    "redirect": Behaviour(
        status=302, headers=(("Location", "https://hook0.example.com/elsewhere"),)
    ),
    "babble": Behaviour(babbles_after=0.0),
    "babble late": Behaviour(status=503, babbles_after=0.3),
    "leave": Behaviour(leaves_after=0.0),
    "leave late": Behaviour(leaves_after=0.5),
    "garbage": Behaviour(status=200, is_garbage=True),
    # Its head is malformed below a sound status line, which counts.
    "malformed": Behaviour(status=200, headers=(("Content-Length", "abc"),)),
}


def behaviour_of(name: str) -> Behaviour:
    """Return a behaviour by its name: a word, or a status such as `503` or `429 Retry-After 7`."""
    if name in _BEHAVIOURS:
        return _BEHAVIOURS[name]
    status, _, wait = name.partition(" Retry-After ")
    return Behaviour(status=int(status), retry_after=wait or None)


@dataclass(slots=True, kw_only=True)
class Arrival:
    """A complete request."""

    at: float  # when it arrived, which may be before the webhook has answered the previous one
    host: str
    delivery_id: str  # its `webhook-id`
    marker: str  # the marker of its update (see `ledger.Notice`)
    task: str
    process: Process | None  # the process that sent it
    path: str
    body: bytes = b""
    status: int | None = None  # the status of the answer, once there is one
    answered_at: float | None = None  # when it was answered
    asked_for: float = 0.0  # the seconds of the answer's `Retry-After`
    # Seconds for which the sender may wait because of it: failures meanwhile may not count.
    may_wait: float = 0.0
    # Returns whether the head of the answer has arrived.
    is_heard: Callable[[], bool] = lambda: False
    is_open: Callable[[], bool] = lambda: False  # returns whether the connection is open
    drips: bool = False  # whether the body of the answer has no end
    after_babble: bool = False  # whether the sender may have taken a babble for the answer

    @property
    def is_taken(self) -> bool:
        """Whether it was answered 2xx, and the answer has arrived."""
        return self.status is not None and 200 <= self.status < 300 and self.is_heard()

    @property
    def is_under_way(self) -> bool:
        """Whether the sender waits for the answer."""
        return self.is_open() and not self.is_heard()


@dataclass
class Webhook:
    """A host that receives notifications."""

    world: World
    name: str
    machine: Machine
    on_arrival: Callable[[Arrival], None]  # called with each request
    behaviour: Behaviour = field(default_factory=Behaviour)
    # Of the next answers, before `behaviour`.
    next_behaviours: list[Behaviour] = field(default_factory=list)

    def open(self) -> None:
        """Begin to listen."""
        self.world.network.names[self.name] = [self.machine.address]
        self.world.network.listen(lambda: _Connection(self), self.machine.address, 443, tls=True)


class _Connection(asyncio.Protocol):
    _REASONS: ClassVar = {200: "OK", 202: "Accepted", 204: "No Content"}

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self._received = b""
        self._received_at = 0.0
        self._transport: Any = None
        self._answering: Arrival | None = None
        self._babbled_at: float | None = None
        self._was_asked = False  # a babble during a request cannot be told from its answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._received_at = self._webhook.world.loop.time()
        self._next()

    def _next(self) -> None:
        if self._answering is None and (found := first_request(self._received)):
            head, fields, body, self._received = found
            self._answer(head.split(b" ", 2)[1].decode("latin-1"), fields, body)

    def _answer(self, path: str, fields: dict[str, str], body: bytes) -> None:
        webhook, world = self._webhook, self._webhook.world
        arrival = _arrival(
            webhook, path, fields, body, self._transport.peer_process, self._received_at
        )
        transport = self._transport
        arrival.is_open = lambda: (
            not transport.is_closing() and (arrival.process is None or arrival.process.alive)
        )
        if self._babbled_at is not None:
            arrival.after_babble = True
            waited = arrival.at - max(self._babbled_at, getattr(arrival.process, "thawed_at", 0.0))
            if waited > _AWAY and not self._was_asked:
                world.violated(
                    f"used a connection with an unrequested answer: {arrival.delivery_id}"
                )
        whose = arrival.process.name if arrival.process else "-"
        world.note(f"{webhook.name} got {arrival.delivery_id} {arrival.marker} from {whose}")
        webhook.on_arrival(arrival)
        self._answering = arrival
        behaviour = webhook.next_behaviours.pop(0) if webhook.next_behaviours else webhook.behaviour
        world.loop.call_later(behaviour.after, self._send, behaviour, arrival)

    def _send(self, behaviour: Behaviour, arrival: Arrival) -> None:
        if self._transport.is_closing() or behaviour.status is None:
            return
        if behaviour.closes:
            self._transport.close()
            return
        self._answering = None
        arrival.status, arrival.answered_at = behaviour.status, self._webhook.world.loop.time()
        self._webhook.world.note(
            f"{self._webhook.name} says {behaviour.status} {arrival.delivery_id}"
        )
        version = "HTTP" if behaviour.is_garbage else "HTTP/1.1"
        lines = [f"{version} {behaviour.status} {self._REASONS.get(behaviour.status, 'Whatever')}"]
        lines += [f"{name}: {value}" for name, value in behaviour.headers]
        if behaviour.retry_after is not None:
            lines.append(f"Retry-After: {self._retry_after(behaviour.retry_after)}")
            if behaviour.status in (429, 503) and behaviour.retry_after.isdigit():
                arrival.asked_for = float(behaviour.retry_after)
                arrival.may_wait = max(arrival.asked_for, SHORTEST_WAIT)
            elif behaviour.retry_after.startswith("+"):
                # For a date, which is counted in whole seconds, by the sender's clock.
                arrival.asked_for, arrival.may_wait = 0.001, inf
        body = b"" if behaviour.status in (204, 304) else arrival.delivery_id.encode()
        lines.append(f"Content-Length: {len(body) if behaviour.drips is None else 1_000_000}")
        head = "\r\n".join([*lines, "", ""]).encode()
        if not behaviour.is_garbage:  # the head counts, even if the body breaks off
            arrival.is_heard = self._transport.arrives(len(head))
        self._transport.write(head + body + (_BABBLE if behaviour.babbles_after == 0 else b""))
        if behaviour.drips is not None:
            arrival.drips = True
            self._drip(behaviour.drips)
            return
        if behaviour.leaves_after is not None:
            self._webhook.world.loop.call_later(behaviour.leaves_after, self._transport.close)
        elif behaviour.babbles_after == 0:
            self._babbled_at = self._webhook.world.loop.time()
        elif behaviour.babbles_after is not None:
            self._webhook.world.loop.call_later(behaviour.babbles_after, self._babble)
        self._next()

    def _babble(self) -> None:
        self._babbled_at = self._webhook.world.loop.time()
        if self._answering is not None:
            self._was_asked = self._answering.after_babble = True
            # Every later answer over this connection is taken for that to the next request.
            self._webhook.world.trouble("babble", whom=self._webhook.name.partition(".")[0])
        self._transport.write(_BABBLE)

    def _retry_after(self, wanted: str) -> str:
        if not wanted.startswith("+"):
            return wanted
        return format_datetime(
            self._webhook.machine.now() + timedelta(seconds=int(wanted[1:])), usegmt=True
        )

    def _drip(self, every: float) -> None:
        if not self._transport.is_closing():
            self._transport.write(b".")
            self._webhook.world.loop.call_later(every, self._drip, every)


class KeyServer(asyncio.Protocol):
    """Answers every request with one document."""

    def __init__(self, document: Callable[[], bytes], keeps: int) -> None:
        self._document = document
        self._keeps = keeps
        self._transport: Any = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received:
            self._received = b""
            body = self._document()
            head = f"HTTP/1.1 200 OK\r\nCache-Control: max-age={self._keeps}"
            head += f"\r\nContent-Length: {len(body)}"
            self._transport.write(f"{head}\r\n\r\n".encode() + body)


def first_request(stream: bytes) -> tuple[bytes, dict[str, str], bytes, bytes] | None:
    """Return the first request's head, fields (by lower-case names) and body, and the rest."""
    head, end, rest = stream.partition(b"\r\n\r\n")
    if not end:
        return None
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    fields = {name.lower(): value.strip() for name, _, value in lines}
    length = int(fields.get("content-length", "0"))
    if len(rest) < length:
        return None
    return head, fields, rest[:length], rest[length:]


def _arrival(
    webhook: Webhook,
    path: str,
    fields: dict[str, str],
    body: bytes,
    process: Process | None,
    at: float,
) -> Arrival:
    update = json.loads(body)
    event = next(iter(update.values())) if len(update) == 1 else update
    return Arrival(
        at=at,
        host=webhook.name,
        delivery_id=fields["webhook-id"],
        marker=str((event.get("metadata") or {}).get("marker", "")),
        task=str(event.get("taskId") or event.get("id")),
        process=process,
        path=path,
        body=body,
    )
