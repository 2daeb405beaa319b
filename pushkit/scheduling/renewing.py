"""A value that another party hands out for a while: fetched once for all, kept, and renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pushkit.errors import PushkitError
from pushkit.record import field, record

T = TypeVar("T")
_E = TypeVar("_E", bound=PushkitError)

_LONGEST_BACKOFF: Final = timedelta(seconds=30)
_LEAST_PAUSE: Final = timedelta(seconds=30)


@record(frozen=True, slots=True, kw_only=True)
class Held(Generic[T]):
    """A value, and for how long it may be used."""

    # The value, which no repr shows: asyncio's debug log prints what a task returns.
    value: T = field(repr=False)
    since: datetime  # when its fetch began
    fresh_until: datetime  # from this moment on it is renewed
    good_until: datetime  # from this moment on it is not used any more; never before `fresh_until`

    def is_fresh(self, now: datetime) -> bool:
        """Say whether it need not be renewed yet."""
        # A clock that was set back must not keep a value alive.
        return self.since <= now < self.fresh_until

    def is_good(self, now: datetime) -> bool:
        """Say whether it may be used."""
        return self.since - (self.good_until - self.fresh_until) <= now < self.good_until


class Renewing(Generic[T]):
    """Keeps a value and renews it.

    * One fetch at a time. Whoever asks meanwhile waits for the same one, and whoever is cancelled
      ends it for nobody.
    * After a failure the next fetch waits: 1 s, 2 s, 4 s, … 30 s.
    * A value that is fresh no longer but still good is returned at once, and renewed in the
      background.
    """

    def __init__(
        self,
        # Gets the value, given the one that is held; fails with a `PushkitError`.
        fetch: Callable[[Held[T] | None], Awaitable[Held[T]]],
        *,
        clock: Callable[[], datetime],
        # Renew the value when it is fresh no longer although nobody asks for it, so that it is
        # stale only while fetches fail.
        unasked: bool = False,
    ) -> None:
        self.fetches: int = 0
        self.failure: PushkitError | None = None
        self._fetch = fetch
        self._clock = clock
        self._unasked = unasked
        self._held: Held[T] | None = None
        self._failures = 0
        self._failed_at: datetime | None = None
        self._flight: asyncio.Task[Held[T] | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def is_flying(self) -> bool:
        """Whether a fetch is under way."""
        return self._flight is not None and not self._flight.done()

    def usable(self) -> T | None:
        """Return the value as it is held; None if there is none that may be used now."""
        held = self._held
        return held.value if held is not None and held.is_good(self._clock()) else None

    def fresh(self) -> T | None:
        """Return the value as it is held; None if it is not fresh."""
        held = self._held
        return held.value if held is not None and held.is_fresh(self._clock()) else None

    def start(self) -> None:
        """Begin to fetch, unless there is a value, and renew it by itself, also after `close`."""
        self._is_closed = False
        if self.usable() is None and not self.backs_off():
            self.begin()
        else:
            self._renew_after(self._held.fresh_until - self._clock() if self._held else timedelta())

    async def get(self) -> T | None:
        """Return the value, fetched if it has to be; None if it cannot be had, see `failure`."""
        found, backs_off = self.usable(), self.backs_off()
        if found is None:
            return None if backs_off else await self.renew()
        if self._held is not None and not (backs_off or self._held.is_fresh(self._clock())):
            self.begin()
        return found

    async def renew(self) -> T | None:
        """Fetch now, or wait for the fetch under way; None if it fails, see `failure`."""
        flight = self.begin()
        await asyncio.wait([flight])
        renewed = None if flight.cancelled() else flight.result()
        return None if renewed is None else renewed.value

    def begin(self) -> asyncio.Task[Held[T] | None]:
        """Begin to fetch, unless that is under way; return the task, which nobody may cancel."""
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._fly())
            self._flight.add_done_callback(_looked_at)
        return self._flight

    def backs_off(self) -> bool:
        """Say whether the last fetch failed so recently that the next one waits."""
        if self._failed_at is None or self.is_flying:
            return False
        pause = min(timedelta(seconds=2 ** min(self._failures - 1, 10)), _LONGEST_BACKOFF)
        return self._failed_at <= self._clock() < self._failed_at + pause

    def drop(self, value: T) -> None:
        """Forget a value that turned out to be no good, unless there is another one already."""
        if self._held is not None and self._held.value == value:
            self._held = None

    async def close(self) -> None:
        """End the fetch under way, and begin no other by itself."""
        self._is_closed = True
        if self._flight is not None and not self._flight.done():  # one may be of another event loop
            self._flight.cancel()
            await asyncio.wait([self._flight])
        if self._timer is not None:
            self._timer.cancel()

    async def _fly(self) -> Held[T] | None:
        try:
            held = await self._fetch(self._held)
        except PushkitError as exc:
            self._failures += 1
            self._failed_at, self.failure = self._clock(), exc
            exc.__traceback__ = None  # its frames hold what was asked, and answered
            self._renew_after(_LEAST_PAUSE)
            return None
        finally:
            self.fetches += 1
        self._held = held
        self._failures, self._failed_at, self.failure = 0, None, None
        self._renew_after(held.fresh_until - self._clock())
        return held

    def _renew_after(self, pause: timedelta) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._unasked and not self._is_closed:
            seconds = max(pause, _LEAST_PAUSE).total_seconds()
            self._timer = asyncio.get_running_loop().call_later(seconds, self.begin)


def anew(failure: _E) -> _E:
    """Return a failure to be raised: itself, it would keep the frames of everybody who met it."""
    found = type(failure).__new__(type(failure), *failure.args)
    vars(found).update(vars(failure))
    return found


def _looked_at(flight: asyncio.Task[Held[T] | None]) -> None:
    # Whoever waited may be gone: that is nothing to complain about.
    if not flight.cancelled():
        flight.exception()
