"""Another party's public keys, fetched from a pinned URL and cached.

The URL is configured, never taken from a message: `jku` as a trust root would let a forger nominate
their own key (RFC 8725 §3.10).

* One fetch at a time; whoever asks meanwhile waits for the same one.
* A set is fresh for the answer's max-age, counted from the start of its fetch.
* An unknown kid asks again, at most once in `refetch_interval`.
* Through an outage the last set stays good for `stale_for`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from pushkit.errors import JwksError, KeysUnavailableError, PushkitError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import MAX_JWKS_BYTES, KeySet, parse_jwks
from pushkit.net.transport import Transport
from pushkit.version import USER_AGENT
from pushkit.webhook import Headers

__all__ = [
    "FetchJwks",
    "FetchedJwks",
    "JwksClient",
    "StaticKeys",
    "VerificationKeys",
    "fetch_jwks",
]

_logger = logging.getLogger(__name__)

_FETCH_TIMEOUT: Final = timedelta(seconds=5)
_REQUEST_HEADERS: Final = (
    ("Accept", "application/jwk-set+json, application/json"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", USER_AGENT),
)
_DEFAULT_AGE: Final = timedelta(seconds=300)
_LONGEST_BACKOFF: Final = timedelta(seconds=30)
_MAX_AGE: Final = re.compile(r'(?:^|[,\s])max-age="?(\d{1,10})"?(?=$|[,\s])', re.IGNORECASE)
_NO_STORE: Final = re.compile(r"(?:^|[,\s])no-(?:store|cache)(?=$|[,\s])", re.IGNORECASE)
_OK: Final = 200
_NOT_MODIFIED: Final = 304


class VerificationKeys(Protocol):
    """The public keys of one sender."""

    async def find(self, kid: str) -> VerificationKey | None:
        """Return the key of that name, or None if the sender has none.

        Raises:
            KeysUnavailableError: The keys cannot be had at the moment.
        """
        ...

    async def keys(self) -> Mapping[str, VerificationKey]:
        """Return all keys by kid.

        Raises:
            KeysUnavailableError: The keys cannot be had at the moment.
        """
        ...

    async def close(self) -> None:
        """End whatever is under way."""
        ...


class StaticKeys:
    """Keys that the operator has configured."""

    def __init__(self, keys: Iterable[VerificationKey]) -> None:
        self._keys = MappingProxyType({key.kid: key for key in keys})

    async def find(self, kid: str) -> VerificationKey | None:
        """Return the key of that name, or None."""
        return self._keys.get(kid)

    async def keys(self) -> Mapping[str, VerificationKey]:
        """Return all keys by kid."""
        return self._keys

    async def close(self) -> None:
        """Nothing is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedJwks:
    """What an HTTP GET for a JWK Set brought; the headers as received, None if absent."""

    status: int
    body: bytes = b""
    cache_control: str | None = None
    etag: str | None = None
    age: str | None = None


# Takes the URL and the entity tag that is held, if any. Raises a `PushkitError` if there is no
# answer; ends within seconds, follows no redirect and reads no more than MAX_JWKS_BYTES + 1.
FetchJwks: TypeAlias = Callable[[str, str | None], Awaitable[FetchedJwks]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    keys: Mapping[str, VerificationKey]
    etag: str | None
    fetched_at: datetime
    fresh_until: datetime

    def is_fresh(self, now: datetime) -> bool:
        # A clock that was set back must not keep a set alive.
        return self.fetched_at <= now < self.fresh_until


class JwksClient:
    """The keys behind one JWKS URL.

    Args:
        url: The pinned URL; whether it is acceptable is the caller's decision.
        fetch: Gets it, see `FetchJwks`; `functools.partial(fetch_jwks, transport)` will do.
        clock: The present, aware and in UTC.
        min_age: A set is kept at least so long, whatever its headers say. No more than the
            shortest `max-age`: a sender may sign with a key that was published for that long.
        max_age: And at most so long.
        refetch_interval: How often unknown kids may cause a fetch.
        stale_for: How long a set may be used after it ceased to be fresh, while fetches fail.
    """

    def __init__(
        self,
        url: str,
        *,
        fetch: FetchJwks,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        min_age: timedelta = timedelta(seconds=1),
        max_age: timedelta = timedelta(hours=24),
        refetch_interval: timedelta = timedelta(seconds=30),
        stale_for: timedelta = timedelta(hours=24),
    ) -> None:
        self.url = url
        self._fetch = fetch
        self._clock = clock
        self._min_age = min_age
        self._max_age = max_age
        self._refetch_interval = refetch_interval
        self._stale_for = stale_for
        self._held: _Held | None = None
        self._flight: asyncio.Task[None] | None = None
        self._fetches = 0
        self._failures = 0
        self._last_error: PushkitError | None = None
        self._failed_at: datetime | None = None
        self._last_refetch: datetime | None = None

    async def find(self, kid: str) -> VerificationKey | None:
        """Return the key of that name; None if the sender has none.

        Raises:
            KeysUnavailableError: No set was ever loaded, or the last one is too old to be trusted.
        """
        fetches = self._fetches
        keys = await self.keys()
        if kid not in keys and self._fetches == fetches and self._may_refetch():
            await self._load()
            keys = self._usable()
        return keys.get(kid)

    async def keys(self) -> Mapping[str, VerificationKey]:
        """Return all keys by kid.

        Raises:
            KeysUnavailableError: No set was ever loaded, or the last one is too old to be trusted.
        """
        now = self._clock()
        fresh = self._held is not None and self._held.is_fresh(now)
        if not fresh and not self._backs_off(now):
            await self._load()
        return self._usable()

    async def refresh(self) -> None:
        """Fetch now, however fresh the set is.

        Raises:
            PushkitError: What the fetch failed with; the set that is held stays in use.
        """
        await self._load()
        if self._last_error is not None:
            raise self._last_error

    async def close(self) -> None:
        """End a fetch that is under way. The HTTP session is the caller's."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait([self._flight])

    def _usable(self) -> Mapping[str, VerificationKey]:
        if self._held is None:
            raise KeysUnavailableError(f"no keys from {self.url} yet: {self._last_error}")
        if self._clock() >= self._held.fresh_until + self._stale_for:
            raise KeysUnavailableError(
                f"the keys from {self.url} are older than may be trusted: {self._last_error}"
            )
        return self._held.keys

    def _may_refetch(self) -> bool:
        if self._is_flying():
            return True  # and share it
        now = self._clock()
        if self._backs_off(now) or _within(self._last_refetch, now, self._refetch_interval):
            return False
        self._last_refetch = now
        return True

    def _backs_off(self, now: datetime) -> bool:
        if not self._failures or self._is_flying():
            return False
        pause = min(timedelta(seconds=2 ** min(self._failures - 1, 10)), _LONGEST_BACKOFF)
        return _within(self._failed_at, now, pause)

    def _is_flying(self) -> bool:
        return self._flight is not None and not self._flight.done()

    async def _load(self) -> None:
        """Join the fetch under way, or start one. A caller that is cancelled does not end it."""
        flight = self._flight
        if flight is None or flight.done():
            flight = self._flight = asyncio.create_task(self._fly())
        await asyncio.wait([flight])
        if not flight.cancelled():
            flight.result()

    async def _fly(self) -> None:
        try:
            self._held = await self._fetched(self._clock())
        except PushkitError as exc:
            self._failures += 1
            self._failed_at = self._clock()
            self._last_error = exc
            _logger.warning("the keys from %s could not be fetched: %s", self.url, exc)
        else:
            self._failures = 0
            self._last_error = None
        finally:
            self._fetches += 1

    async def _fetched(self, started: datetime) -> _Held:
        held = self._held
        answer = await self._fetch(self.url, held.etag if held else None)
        fresh_until = started + self._freshness(answer)
        if answer.status == _NOT_MODIFIED and held is not None:
            etag = answer.etag or held.etag
            return _Held(keys=held.keys, etag=etag, fetched_at=started, fresh_until=fresh_until)
        if answer.status != _OK:
            raise JwksError(f"expected HTTP status 200, found {answer.status}")
        keys = self._reported(parse_jwks(answer.body)).keys
        return _Held(
            keys=MappingProxyType(dict(keys)),
            etag=answer.etag,
            fetched_at=started,
            fresh_until=fresh_until,
        )

    def _reported(self, key_set: KeySet) -> KeySet:
        for name, reason in key_set.refused:
            _logger.warning("key %s from %s is left out: %s", name, self.url, reason)
        return key_set

    def _freshness(self, answer: FetchedJwks) -> timedelta:
        return min(max(_lifetime(answer), self._min_age), self._max_age)


def _within(since: datetime | None, now: datetime, span: timedelta) -> bool:
    return since is not None and since <= now < since + span


def _lifetime(answer: FetchedJwks) -> timedelta:
    """Return for how long an answer says that it is fresh (RFC 9111 §4.2)."""
    directives = answer.cache_control or ""
    if _NO_STORE.search(directives):
        return timedelta(0)
    found = _MAX_AGE.search(directives)
    if found is None:
        return _DEFAULT_AGE
    # RFC 9111 §4.2.3: a shared cache on the way has held it for `Age` already.
    age = answer.age or ""
    spent = int(age) if age.isascii() and age.isdigit() and len(age) <= len("2147483648") else 0
    return timedelta(seconds=int(found[1]) - spent)


async def fetch_jwks(transport: Transport, url: str, etag: str | None = None) -> FetchedJwks:
    """Get a JWK Set over HTTP, under the transport's destination policy; see `FetchJwks`.

    Args:
        transport: Follows no redirect, reads at most 64 KiB.
        url: The pinned URL.
        etag: The entity tag that is held, if any.

    Raises:
        DestinationRefusedError: The policy refuses the URL.
        JwksError: The answer is compressed, although that was not accepted, or too large.
        TransportError: No answer.
    """
    conditional = [] if etag is None else [("If-None-Match", etag)]
    answer = await transport.get(
        transport.policy.check(url), [*_REQUEST_HEADERS, *conditional], timeout=_FETCH_TIMEOUT
    )
    # A decompression bomb needs a decompressor; there is none.
    encodings = answer.headers.all("Content-Encoding")
    if any(encoding.strip().lower() != "identity" for encoding in encodings):
        raise JwksError("the answer is compressed, expected Content-Encoding identity")
    if not answer.complete:
        raise JwksError(f"the answer broke off, or is longer than {MAX_JWKS_BYTES} bytes")
    return FetchedJwks(
        status=answer.status,
        body=answer.body,
        cache_control=_joined(answer.headers, "Cache-Control"),
        etag=_joined(answer.headers, "ETag"),
        age=_joined(answer.headers, "Age"),
    )


def _joined(headers: Headers, name: str) -> str | None:
    return ", ".join(headers.all(name)) or None
