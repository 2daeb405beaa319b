"""A listener that keeps the newest refusals of a receiver, and the results of its callbacks.

Its memory is bounded for each reason, for trusted senders and for strangers apart, so that neither
a flood of strangers nor one frequent reason pushes out the others.

All processes of a service send these events to the one that serves the dashboard. They share the
two ends of an unnamed socket, so no other process can write to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from pushkit.clock import utc_now
from pushkit.events import CalledBack, Event, Listener, NotificationRefused
from pushkit.webui.api import Members
from pushkit.webui.parts import Percentiles, percentiles

_REFUSED = "at code status sender task_id delivery_id peer"
_SHOWN: Final = (NotificationRefused, CalledBack)
MOST_KEPT: Final = 100  # refusals for each reason, of senders and of strangers
_DURATIONS: Final = 40  # the last calls of a callback whose durations are kept
_FAILURES: Final = 10
_MOST_CHARS: Final = 500
_LARGEST: Final = 65_536  # bytes of an event that is sent
_AT_ONCE: Final = 100
_MOST_UNSENT: Final = 10_000  # events that wait until the socket has room, which is for a dozen


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRefusal:
    """One refusal."""

    number: int  # 1, 2, 3… since this memory began
    event: Annotated[NotificationRefused, Members(_REFUSED, inline=True)]

    @property
    def reason(self) -> str:
        """What was found and expected, cut to a bounded length."""
        return self.event.reason[:_MOST_CHARS]


@dataclass(slots=True)
class Calls:
    """The calls of a callback in this process, the last failures first."""

    number: int = 0
    failed: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_DURATIONS))
    failures: Annotated[deque[CalledBack], Members("at notification_id task_id error")] = field(
        default_factory=lambda: deque(maxlen=_FAILURES)
    )

    @property
    def latency_seconds(self) -> Percentiles:
        """How long they took."""
        return percentiles(self.seconds)


class RecentEvents:
    """Counts refusals and calls of callbacks, and keeps the newest ones."""

    def __init__(self) -> None:
        self.since: datetime = utc_now()
        self.counts: Counter[str] = Counter()
        self.calls: defaultdict[str, Calls] = defaultdict(Calls)
        self._number = 0
        self._kept: defaultdict[tuple[str, bool], deque[KeptRefusal]] = defaultdict(
            lambda: deque(maxlen=MOST_KEPT)
        )

    def record(self, event: Event) -> None:
        """Keep a refusal or a call of a callback; ignore any other event."""
        if isinstance(event, NotificationRefused):
            self._number += 1
            self.counts[event.code] += 1
            one = KeptRefusal(number=self._number, event=event)
            self._kept[event.code, event.sender is not None].append(one)
        elif isinstance(event, CalledBack):
            calls = self.calls[event.callback]
            calls.number += 1
            calls.seconds.append(event.took.total_seconds())
            if event.error is not None:
                calls.failed += 1
                calls.failures.appendleft(event)

    def refusals(self, code: str | None = None) -> list[KeptRefusal]:
        """Return the kept refusals for one reason or all, the newest first."""
        found = [
            each for (of, _), kept in self._kept.items() if code in (None, of) for each in kept
        ]
        return sorted(found, key=lambda each: each.number, reverse=True)

    def find(self, number: int) -> KeptRefusal | None:
        """Return one refusal; None if it is no longer kept."""
        return next((each for each in self.refusals() if each.number == number), None)


def event_sockets() -> tuple[socket.socket, socket.socket]:
    """Return the receiving end, and the sending end for all other processes."""
    incoming, outgoing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    incoming.setblocking(False)
    outgoing.setblocking(False)
    return incoming, outgoing


def sending(outgoing: socket.socket) -> Listener:
    """Return a listener that sends what a dashboard shows, in order; inside an event loop."""
    loop, unsent = asyncio.get_running_loop(), deque[bytes](maxlen=_MOST_UNSENT)

    def send(event: Event) -> None:
        if isinstance(event, _SHOWN) and len(message := pickle.dumps(event)) <= _LARGEST:
            unsent.append(message)
            if len(unsent) == 1:  # else it is not its turn
                send_more()

    def send_more() -> None:
        try:
            while unsent:
                outgoing.send(unsent[0])
                unsent.popleft()
        except BlockingIOError:
            loop.add_writer(outgoing, send_more)
            return
        except OSError:  # the service ends
            unsent.clear()
        loop.remove_writer(outgoing)

    return send


@contextlib.contextmanager
def receiving(incoming: socket.socket, listener: Listener) -> Iterator[None]:
    """Call a listener with the events that arrive; inside an event loop."""

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                listener(pickle.loads(incoming.recv(_LARGEST)))  # noqa: S301  # from our own processes

    loop = asyncio.get_running_loop()
    loop.add_reader(incoming, read)
    try:
        yield
    finally:
        loop.remove_reader(incoming)
