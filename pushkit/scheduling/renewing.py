"""A value from another party that is valid for a while: fetched once, kept, and renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pushkit.errors import PushkitError
from pushkit.record import field, record
from pushkit.scheduling.event_loop import cancelled

T = TypeVar("T")
_E = TypeVar("_E", bound=PushkitError)

_LONGEST_BACKOFF: Final = timedelta(seconds=30)
_LEAST_PAUSE: Final = timedelta(seconds=30)
_EARLY_INTERVAL: Final = timedelta(seconds=30)  # how often a value that proved wrong is fetched


@record(frozen=True, slots=True, kw_only=True)
class CachedValue(Generic[T]):
    """A value, and how long it may be used."""

    # Left out of the repr, as asyncio's debug log prints the result of a task.
    value: T = field(repr=False)
    since: datetime  # when its fetch began
    fresh_until: datetime  # from then on it is renewed
    good_until: datetime  # from then on it is not used any more; never before `fresh_until`

    def is_fresh(self, now: datetime) -> bool:
        """Return whether it need not be renewed yet."""
        # A clock that was set back must not keep a value alive.
        return self.since <= now < self.fresh_until

    def is_good(self, now: datetime) -> bool:
        """Return whether it may be used."""
        return self.since - (self.good_until - self.fresh_until) <= now < self.good_until


class Renewing(Generic[T]):
    """Keeps a value and renews it.

    * There is one fetch at a time. Callers share it, and a cancelled caller does not end it.
    * After a failure the next fetch waits: 1 s, 2 s, 4 s, … 30 s.
    * A value that is not fresh any more but still good is returned at once, and renewed in the
      background.
    """

    def __init__(
        self,
        # Fetches the value, given the one that is held; raises a `PushkitError`.
        fetch: Callable[[CachedValue[T] | None], Awaitable[CachedValue[T]]],
        *,
        clock: Callable[[], datetime],
        # Renew the value in the background when it is not fresh any more, even if it is not used,
        # so that it is stale only while fetches fail.
        unasked: bool = False,
    ) -> None:
        self.fetches: int = 0
        self.failure: PushkitError | None = None
        self._fetch = fetch
        self._clock = clock
        self._unasked = unasked
        self._held: CachedValue[T] | None = None
        self._failures = 0
        self._failed_at: datetime | None = None
        self._early_at: datetime | None = None
        self._flight: asyncio.Task[CachedValue[T] | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def is_flying(self) -> bool:
        """Whether a fetch is in progress."""
        return self._flight is not None and not self._flight.done()

    def usable(self) -> T | None:
        """Return the held value; None if there is none that may be used now."""
        held = self._held
        return held.value if held is not None and held.is_good(self._clock()) else None

    def fresh(self) -> T | None:
        """Return the held value; None if it is not fresh."""
        held = self._held
        return held.value if held is not None and held.is_fresh(self._clock()) else None

    def start(self) -> None:
        """Begin to fetch if there is no value, and to renew it if `unasked`, also after `close`."""
        self._is_closed = False
        if self.usable() is None and not self.backs_off():
            self.begin()
        elif self._timer is None or self._timer_loop is not asyncio.get_running_loop():
            # Not anew: frequent starts would put the renewal off for ever.
            self._renew_after(self._held.fresh_until - self._clock() if self._held else timedelta())

    async def get(self) -> T | None:
        """Return the value, fetched if necessary; None if that failed, see `failure`."""
        found, backs_off = self.usable(), self.backs_off()
        if found is None:
            return None if backs_off else await self.renew()
        if self._held is not None and not (backs_off or self._held.is_fresh(self._clock())):
            self.begin()
        return found

    async def renew(self) -> T | None:
        """Fetch now, or wait for the fetch in progress; None if it fails, see `failure`."""
        flight = self.begin()
        await asyncio.wait([flight])
        renewed = None if flight.cancelled() else flight.result()
        return None if renewed is None else renewed.value

    async def renew_early(self) -> T | None:
        """Renew a value that proved wrong, once in 30 s; None if that fails, or is too early."""
        now, last = self._clock(), self._early_at
        if not self.is_flying:  # else the caller shares the fetch in progress
            if self.backs_off() or (last and last <= now < last + _EARLY_INTERVAL):
                return None
            self._early_at = now
        return await self.renew()

    def begin(self) -> asyncio.Task[CachedValue[T] | None]:
        """Begin to fetch, if no fetch is in progress; return the task, not to be cancelled."""
        if self._flight is None or self._flight.done():
            self._flight = asyncio.create_task(self._run_fetch())
            self._flight.add_done_callback(_retrieve_exception)
        return self._flight

    def backs_off(self) -> bool:
        """Return whether the last fetch failed so recently that the next one waits."""
        if self._failed_at is None or self.is_flying:
            return False
        pause = min(timedelta(seconds=2 ** min(self._failures - 1, 10)), _LONGEST_BACKOFF)
        return self._failed_at <= self._clock() < self._failed_at + pause

    async def close(self) -> None:
        """Cancel the fetch in progress, and stop renewing in the background."""
        self._is_closed = True
        flight, self._flight = self._flight, None
        if flight is not None and not flight.done():  # one that is done may be of another loop
            await cancelled(flight)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run_fetch(self) -> CachedValue[T] | None:
        try:
            held = await self._fetch(self._held)
        except PushkitError as exc:
            self._failures += 1
            self._failed_at, self.failure = self._clock(), exc
            # The frames of its traceback and causes hold the request and the answer.
            exc.__traceback__ = exc.__cause__ = exc.__context__ = None
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
            self._timer_loop = asyncio.get_running_loop()
            self._timer = self._timer_loop.call_later(seconds, self._renew_unasked)

    def _renew_unasked(self) -> None:
        self._timer = None
        self.begin()


def anew(failure: _E) -> _E:
    """Return a copy of a failure to raise: the original would collect the frames of each caller."""
    found = type(failure).__new__(type(failure), *failure.args)
    vars(found).update(vars(failure))
    return found


def _retrieve_exception(flight: asyncio.Task[CachedValue[T] | None]) -> None:
    # All callers may have been cancelled: asyncio must not log the exception as never retrieved.
    if not flight.cancelled():
        flight.exception()
