"""Another party's public keys, fetched from a pinned URL and cached.

The URL is configured, never taken from a message: `jku` as a trust root would let forgers name
their own keys (RFC 8725 §3.10).

* A set is fresh for the answer's max-age, counted from the start of its fetch.
* An unknown kid causes another fetch, at most once in 30 seconds.
* Only one fetch runs at a time, and none for a while after a failure. While fetches fail, the last
  set is used for `stale_for` more, and no caller waits (`pushkit.scheduling.renewing`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from pushkit.clock import JWKS_MAX_AGE, LONGEST_JWKS_MAX_AGE, utc_now
from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    JwksError,
    KeysUnavailableError,
    PushkitError,
)
from pushkit.files import read_file
from pushkit.keys.jwk import Algorithm, VerificationKey
from pushkit.keys.jwks import (
    MAX_JWKS_BYTES,
    KeysByKid,
    KeySet,
    keys_by_kid,
    parse_jwks,
    parse_jwks_file,
)
from pushkit.logs import RepeatedLog
from pushkit.net.connection import HttpAnswer, unexpected_status
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.record import record
from pushkit.scheduling.renewing import CachedValue, Renewing
from pushkit.url import is_http_url, masked_url
from pushkit.webhook import Headers

_logger = logging.getLogger(__name__)
_NOT_FETCHED: Final = "the keys from %s could not be fetched: %s"
_LEFT_OUT: Final = "keys from %s are left out: %s"

_FETCH_TIMEOUT: Final = timedelta(seconds=5)
_MEDIA_TYPES: Final = "application/jwk-set+json, application/json"
# A set is kept at least this long, whatever its headers say. It must not exceed the shortest
# `max-age`, because a sender may sign with a key that was published for only that long.
_MIN_AGE: Final = timedelta(seconds=1)
_MAX_AGE: Final = re.compile(r'(?:^|[,\s])max-age="?(\d{1,10})"?(?=$|[,\s])', re.IGNORECASE)
_NO_STORE: Final = re.compile(r"(?:^|[,\s])no-(?:store|cache)(?=$|[,\s])", re.IGNORECASE)


# Takes the URL and the entity tag of the current set, if any. Raises a `PushkitError` if there is
# no answer. It ends within seconds, follows no redirect and reads at most MAX_JWKS_BYTES + 1.
FetchJwks: TypeAlias = Callable[[str, str | None], Awaitable[HttpAnswer]]


@record(frozen=True, slots=True, kw_only=True)
class _FetchedSet:
    keys: KeysByKid
    etag: str | None


class JwksClient:
    """The keys behind one JWKS URL."""

    def __init__(
        self,
        url: str,  # the pinned URL, which the caller has checked
        *,
        fetch: FetchJwks,  # for example `functools.partial(fetch_jwks, transport)`
        clock: Callable[[], datetime] = utc_now,  # the current time, aware and in UTC
        # How long a set that is no longer fresh may be used while fetches fail. A revoked key may
        # count for this long. With 0, callers wait for the fetch.
        stale_for: timedelta = timedelta(0),
        # Those that the owner of the keys may sign with, for keys that state none.
        algorithms: Collection[Algorithm] = frozenset(Algorithm),
    ) -> None:
        self.url = url
        self._shown = masked_url(url)
        self._fetch = fetch
        self._clock = clock
        self._stale_for = stale_for
        self._algorithms = algorithms
        self._set = Renewing(self._fetched, clock=clock, unasked=bool(stale_for))
        self._log = RepeatedLog(_logger)
        self._loaded = False

    async def find(self, kid: str) -> Sequence[VerificationKey]:
        """Return the keys with a kid; if it is unknown, the set is fetched again.

        Raises:
            KeysUnavailableError: No usable keys can be loaded at the moment.
        """
        fetches = self._set.fetches
        keys = await self.keys()
        if kid not in keys and self._set.fetches == fetches:
            renewed = await self._set.renew_early()
            keys = await self.keys() if renewed is None else renewed.keys
        return keys.get(kid, ())

    async def keys(self) -> KeysByKid:
        """Return all keys.

        Raises:
            KeysUnavailableError: No usable keys can be loaded at the moment.
        """
        found = await self._set.get()
        if found is None:
            raise KeysUnavailableError(self._reason())
        return found.keys

    def at_hand(self, kids: Collection[str]) -> KeysByKid | None:
        """Return all keys; None unless they are fresh and include `kids`."""
        found = self._set.fresh()
        return None if found is None or not found.keys.keys() >= set(kids) else found.keys

    def missing(self) -> str | None:
        """Return why no keys may be used at the moment; None if some may."""
        return self._reason() if self._set.usable() is None else None

    def failing(self) -> str | None:
        """Return `missing()` if the last fetch failed; None otherwise, and before one has ended."""
        return None if self._set.failure is None else self.missing()

    def load(self) -> None:
        """Start a fetch, without waiting, if no keys may be used.

        From then on the keys are renewed in the background, also after `close`.
        """
        self._set.start()

    async def close(self) -> None:
        """Cancel a fetch in progress. The transport belongs to the caller."""
        await self._set.close()

    def _reason(self) -> str:
        why = self._set.failure or "the fetch is in progress"
        if self._loaded:
            return f"the keys from {self._shown} are older than may be trusted: {why}"
        return f"no keys from {self._shown} yet: {why}"

    async def _fetched(self, held: CachedValue[_FetchedSet] | None) -> CachedValue[_FetchedSet]:
        started = self._clock()
        try:
            # After a failure without the tag: it may be the cause, for example if it is too long.
            etag = held.value.etag if held and self._set.failure is None else None
            answer = await self._fetch(self.url, etag)
            found = self._read(answer, held.value if held else None)
        except PushkitError as exc:
            says = str(exc)
            if isinstance(exc, DestinationRefusedError):
                says += exc.advice("allow=[\"{0}\"], or --allow '{0}'")
            self._log.log("fetch", logging.WARNING, _NOT_FETCHED, self._shown, says)
            raise
        self._loaded = True
        until = started + min(max(_lifetime(answer.headers), _MIN_AGE), LONGEST_JWKS_MAX_AGE)
        return CachedValue(
            value=found, since=started, fresh_until=until, good_until=until + self._stale_for
        )

    def _read(self, answer: HttpAnswer, held: _FetchedSet | None) -> _FetchedSet:
        etag = _joined(answer.headers, "ETag")
        if answer.status == 304 and held is not None:
            return _FetchedSet(keys=held.keys, etag=etag or held.etag)
        if answer.status != 200:
            raise JwksError(unexpected_status(answer.status))
        found = parse_jwks(answer.body, self._algorithms)
        if found.refused:
            self._log.log("keys", logging.WARNING, _LEFT_OUT, self._shown, found.left_out())
        return _FetchedSet(keys=MappingProxyType(keys_by_kid(found.keys)), etag=etag)


def _lifetime(headers: Headers) -> timedelta:
    """Return how long an answer is fresh by its header fields (RFC 9111 §4.2)."""
    directives = _joined(headers, "Cache-Control") or ""
    if _NO_STORE.search(directives):
        return timedelta(0)
    found = _MAX_AGE.search(directives)
    if found is None:
        return JWKS_MAX_AGE
    # RFC 9111 §4.2.3: shared caches on the way have kept it for `Age` seconds already.
    age = _joined(headers, "Age") or ""
    spent = int(age) if age.isascii() and age.isdigit() and len(age) <= len("2147483648") else 0
    return timedelta(seconds=int(found[1]) - spent)


async def fetch_jwks(transport: Transport, url: str, etag: str | None = None) -> HttpAnswer:
    """Get a JWK Set over HTTP, under the transport's destination policy; see `FetchJwks`.

    Raises:
        DestinationRefusedError: The policy refuses the URL.
        JwksError: The answer is compressed, although that was not accepted, or too large.
        TransportError: No complete answer head in time.
    """
    conditional = [] if etag is None else [("If-None-Match", etag)]
    return await transport.get_document(
        url,
        _MEDIA_TYPES,
        *conditional,
        timeout=_FETCH_TIMEOUT,
        max_body_bytes=MAX_JWKS_BYTES,
        error=JwksError,
    )


async def load_jwks(
    where: str,
    *,
    allow: Sequence[str] | None = None,
    connections: ConnectionOptions | None = None,
) -> Sequence[VerificationKey]:
    """Return the keys of a JWK Set from a URL or a file that the operator names.

    Keys that are left out are logged. `allow` are hosts named for development; with None, the URL's
    own host is allowed by name. `connections` are the proxy and the roots, if any.

    Raises:
        ConfigError: The set cannot be fetched or read, or a file has no usable key.
    """
    try:
        if not is_http_url(where):
            content = await asyncio.to_thread(read_file, Path(where))
            return _usable(where, parse_jwks_file(content, where))
        policy = DestinationPolicy.naming(where)
        if allow is not None:
            policy = DestinationPolicy(allow, loopback=True)
        async with closing(Transport(policy, connections)) as transport:
            answer = await fetch_jwks(transport, where)
        if answer.status != 200:
            raise ConfigError(f"found status {answer.status}, expected 200")
        return _usable(where, parse_jwks(answer.body))
    except OSError as exc:
        raise ConfigError(f"--jwks: {where}: {exc.strerror}") from exc
    except DestinationRefusedError as exc:
        advice = exc.advice("add --allow '{}'")
        raise ConfigError(f"--jwks: {exc}{advice}") from exc
    except PushkitError as exc:
        raise ConfigError(f"--jwks: {where}: {exc}") from exc


def _usable(where: str, found: KeySet) -> Sequence[VerificationKey]:
    if found.refused:
        _logger.warning("%s: left out: %s", masked_url(where), found.left_out())
    return found.keys


def _joined(headers: Headers, name: str) -> str | None:
    return ", ".join(headers.all(name)) or None
