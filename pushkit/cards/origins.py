"""Cards over the network: the keys for each origin, JWK Sets included, and checks of many cards."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from pushkit.bounded_json import JsonValue
from pushkit.cards.document import MAX_CARD_BYTES, named_keys
from pushkit.cards.publishing import CARD_PATH
from pushkit.cards.trust import OriginTrust, TrustedKey, TrustedKeys
from pushkit.cards.verify import FULL_COVERAGE, CardPolicy, CardVerdict, verify_card
from pushkit.clock import utc_now
from pushkit.errors import (
    CardUnavailableError,
    ConfigError,
    InvalidUrlError,
    KeysUnavailableError,
    PushkitError,
)
from pushkit.keys.jwk import thumbprint
from pushkit.net.connection import unexpected_status
from pushkit.net.destination import DestinationPolicy
from pushkit.net.jwks_client import FetchJwks, JwksClient, fetch_jwks
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.record import record
from pushkit.url import Url, masked_url

_TIMEOUT: Final = timedelta(seconds=10)
_AT_ONCE: Final = 16


class CardTrust:
    """The trusted keys for each origin; fetches and caches the JWK Sets.

    Raises:
        ConfigError: An origin is not a URL, has a path, is given twice, or has JWKS URLs while
            there is neither `transport` nor `fetch`.
    """

    def __init__(
        self,
        origins: Mapping[str, OriginTrust],  # `{"https://agent.example.com": OriginTrust(...)}`
        *,
        # Fetches cards and JWK Sets, under its destination policy; closed by whoever made it. None
        # if no origin has a JWKS URL. `CardTrust.open` makes one.
        transport: Transport | None = None,
        fetch: FetchJwks | None = None,  # fetches JWK Sets instead
        clock: Callable[[], datetime] = utc_now,  # the current time, aware and in UTC
    ) -> None:
        self._origins = _by_origin(origins)
        self._transport = transport
        if fetch is None and transport is not None:
            fetch = functools.partial(fetch_jwks, transport)
        urls = {url for trust in self._origins.values() for url in trust.jwks_urls}
        if urls and fetch is None:
            raise ConfigError("card trust: JWKS URLs need a transport: use `CardTrust.open`")
        # Without `stale_for`: the keys of an expired set do not count, and checks await the fetch.
        self._clients = (
            {url: JwksClient(url, fetch=fetch, clock=clock) for url in urls} if fetch else {}
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        origins: Mapping[str, OriginTrust],
        *,
        # For development: hosts for which the destination rules are lifted.
        allow: Sequence[str] = (),
        proxy: str | None = None,  # an egress proxy, `http://[user:password@]host:port`
        ca_file: str | Path | None = None,  # root certificates in PEM, beside the system's
    ) -> AsyncIterator[Self]:
        """Open the trust with an HTTP client of its own, and close both at the end.

        Raises:
            ConfigError: An origin, the proxy's URL or the file of roots cannot be used.
        """
        options = ConnectionOptions(proxy=proxy, ca_file=None if ca_file is None else Path(ca_file))
        async with (
            closing(Transport(DestinationPolicy(allow, loopback=True), options)) as transport,
            closing(cls(origins, transport=transport)) as trust,
        ):
            yield trust

    @property
    def transport(self) -> Transport:
        """The HTTP client that fetches cards and JWK Sets. Raises ConfigError if there is none."""
        if self._transport is None:
            raise ConfigError("card trust: found no transport: use `CardTrust.open`")
        return self._transport

    def knows(self, url: str) -> bool:
        """Return whether the operator trusts any key or JWK Set for the origin of a URL."""
        return Url.parse(url).origin in self._origins

    async def keys_for(
        self, url: str, card: bytes | Mapping[str, JsonValue] | None = None
    ) -> TrustedKeys:
        """Return the keys for cards from the origin of a URL; none for an unknown origin.

        A JWK Set that lacks a key which the card names is fetched again, at most once in 30
        seconds. A set that cannot be fetched is listed as unavailable; the other keys remain.

        Raises:
            MalformedCardError: As `verify_card`.
        """
        trust = self._origins.get(Url.parse(url).origin)
        if trust is None:
            return TrustedKeys()
        kids = named_keys(card) - {entry.key.kid for entry in trust.keys} if card else ()
        sets = await asyncio.gather(*(self._set(jwks_url, kids) for jwks_url in trust.jwks_urls))
        keys = [*trust.keys, *(entry for found in sets if found for entry in found)]
        pairs = zip(trust.jwks_urls, sets, strict=True)
        revoked = _revoked(keys, trust.revoked)
        return TrustedKeys(
            keys=tuple(replace(e, revoked_at=revoked.get(_thumbprint(e))) for e in keys),
            jwks_urls=trust.jwks_urls,
            unavailable=tuple(jwks_url for jwks_url, found in pairs if found is None),
        )

    async def _set(self, jwks_url: str, kids: Iterable[str]) -> list[TrustedKey] | None:
        """Return the keys of a JWK Set; None if it cannot be fetched."""
        client = self._clients[jwks_url]
        try:
            for kid in kids:
                await client.find(kid)
            found = await client.keys()
        except KeysUnavailableError:
            return None
        return [TrustedKey(key=key, jwks_url=jwks_url) for same in found.values() for key in same]

    async def close(self) -> None:
        """Cancel the fetches that are in progress."""
        for client in self._clients.values():
            await client.close()


def _by_origin(origins: Mapping[str, OriginTrust]) -> dict[str, OriginTrust]:
    found: dict[str, OriginTrust] = {}
    for name, trust in origins.items():
        url = Url.parse(name)
        origin = url.origin
        if url.target != "/":  # it would apply to every card of the host, not only to that path
            raise ConfigError(
                f"card trust: {masked_url(name)}: expected scheme, host and port, without a path"
            )
        if origin in found:  # which keys and revocations count would be a matter of chance
            raise ConfigError(f"card trust: {name}: this origin is given twice, expected once")
        found[origin] = trust
    return found


def _revoked(keys: Iterable[TrustedKey], named: Mapping[str, datetime]) -> Mapping[str, datetime]:
    """Return when keys were revoked, by thumbprint: a revocation counts under every `kid`."""
    found: dict[str, datetime] = {}
    for entry in keys:
        name = _thumbprint(entry)
        given = (entry.revoked_at, named.get(entry.key.kid), named.get(name), found.get(name))
        times = [time for time in given if time is not None]
        if times:
            found[name] = min(times)
    return found


def _thumbprint(entry: TrustedKey) -> str:
    return thumbprint(entry.key.public_key)


# --- lists of cards -----------------------------------------------------------------------------


class CardOutcome(StrEnum):
    """The result of checking one card of a list."""

    VERIFIED = "verified"  # a signature counts
    REFUSED = "refused"  # the card is signed, but no signature counts
    UNSIGNED = "unsigned"
    UNTRUSTED = "untrusted"  # no key is trusted for its origin
    FAILED = "failed"  # the card or the keys for it could not be fetched, or the card not read


@record(frozen=True, slots=True, kw_only=True)
class CardCheck:
    """The check of one card of a list."""

    url: str  # of the card
    outcome: CardOutcome
    verdict: CardVerdict | None = None  # None if it could not be fetched or read
    reason: str = ""  # why it is not verified; empty if it is


@record(frozen=True, slots=True, kw_only=True)
class CardSummary:
    """The checks of a list of cards, in the order given."""

    checks: tuple[CardCheck, ...]

    @property
    def counts(self) -> dict[CardOutcome, int]:
        """The number of cards with each outcome, including zeros."""
        found = Counter(check.outcome for check in self.checks)
        return {outcome: found[outcome] for outcome in CardOutcome}

    @property
    def all_verified(self) -> bool:
        """Whether there is at least one card, and all of them are verified."""
        return bool(self.checks) and self.counts[CardOutcome.VERIFIED] == len(self.checks)


def card_url(url: str) -> str:
    """Return the URL of an agent's card; a URL without a path gets the well-known path."""
    try:
        parsed = Url.parse(url)
    except InvalidUrlError:
        return url  # the destination policy reports what is wrong with it
    return f"{parsed.scheme}://{parsed.authority}{CARD_PATH}" if parsed.target == "/" else url


async def fetch_card(transport: Transport, url: str) -> bytes:
    """Fetch a card over HTTP, under the transport's destination policy, without redirects.

    Raises:
        DestinationRefusedError: The policy refuses the URL.
        CardUnavailableError: The status is not 200, or the body is compressed or too long.
        TransportError: There was no answer.
    """
    answer = await transport.get_document(
        url,
        "application/json",
        timeout=_TIMEOUT,
        max_body_bytes=MAX_CARD_BYTES,
        error=CardUnavailableError,
    )
    if answer.status != 200:
        raise CardUnavailableError(unexpected_status(answer.status))
    return answer.body


async def verify_cards(
    urls: Iterable[str],
    trust: CardTrust,
    *,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> CardSummary:
    """Fetch and verify many cards, 16 at a time, with the transport of `trust`.

    An error with one card becomes the outcome of that card, and the others are still checked. The
    URLs are those of cards or of agents; duplicates are checked once.

    Raises:
        ConfigError: The trust has no transport.
    """
    transport = trust.transport
    slots = asyncio.Semaphore(_AT_ONCE)

    async def check(url: str) -> CardCheck:
        try:
            async with slots:
                card = await fetch_card(transport, url)
                keys = await trust.keys_for(url, card)
                # Verification may take seconds, so it must not block the other fetches.
                verdict = await asyncio.to_thread(verify_card, card, keys, now=now, policy=policy)
        except PushkitError as exc:
            return CardCheck(url=url, outcome=CardOutcome.FAILED, reason=str(exc))
        outcome = _outcome(verdict, trusted=trust.knows(url))
        return CardCheck(url=url, outcome=outcome, verdict=verdict, reason=verdict.reason)

    checks = await asyncio.gather(*(check(card_url(url)) for url in dict.fromkeys(urls)))
    return CardSummary(checks=tuple(checks))


def _outcome(verdict: CardVerdict, *, trusted: bool) -> CardOutcome:
    if verdict.verified:
        return CardOutcome.VERIFIED
    if not verdict.signatures:
        return CardOutcome.UNSIGNED
    if not trusted:
        return CardOutcome.UNTRUSTED
    return CardOutcome.FAILED if verdict.trusted.unavailable else CardOutcome.REFUSED
