"""Whose signature on a card counts: what the operator says, per origin of the card.

A card names its own key (`kid`, `jku`), and so does a forged one: taken as a trust root, `jku` lets
forgers nominate their own key (A2A#2096). Both only select among what is configured here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pushkit.clock import utc_now
from pushkit.errors import ConfigError, KeysUnavailableError
from pushkit.keys.jwk import VerificationKey, thumbprint
from pushkit.net.jwks_client import FetchJwks, JwksClient
from pushkit.url import Url

__all__ = ["CardTrust", "OriginTrust", "TrustedKey", "TrustedKeys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A key that the operator trusts, and for how long.

    Attributes:
        key: The public key.
        jwks_url: The trusted URL that it was fetched from; None for a pinned key.
        not_before: Before this moment it is not used yet.
        expires_at: From this moment it counts no longer. A card bears no date: what the key signed
            while it was good does not count either.
        revoked_at: The same, for a key that was withdrawn.
    """

    key: VerificationKey
    jwks_url: str | None = None
    not_before: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def __post_init__(self) -> None:
        for moment in (self.not_before, self.expires_at, self.revoked_at):
            if moment is not None and moment.utcoffset() is None:
                raise ConfigError("a trusted key: expected times with a time zone")

    def objection(self, now: datetime) -> str | None:
        """Return why the key does not count at a moment; None if it does."""
        if self.revoked_at is not None and now >= self.revoked_at:
            return f"key {self.key.kid!a} was revoked at {self.revoked_at.isoformat()}"
        if self.expires_at is not None and now >= self.expires_at:
            return f"key {self.key.kid!a} expired at {self.expires_at.isoformat()}"
        if self.not_before is not None and now < self.not_before:
            return f"key {self.key.kid!a} counts from {self.not_before.isoformat()} on"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKeys:
    """The keys that count for one card, as they are now.

    Attributes:
        keys: The keys, pinned and fetched.
        jwks_urls: The trusted JWK Set URLs, whether or not they could be fetched.
        unavailable: Those of them that could not be.
    """

    keys: tuple[TrustedKey, ...] = ()
    jwks_urls: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()

    @classmethod
    def pinned(cls, *keys: VerificationKey) -> TrustedKeys:
        """Trust keys that the operator has, without an end."""
        return cls(keys=tuple(TrustedKey(key=key) for key in keys))

    def candidates(self, kid: str | None, jku: str | None) -> list[TrustedKey]:
        """Return the keys to try for a signature, by what its header says.

        A `jku` that is trusted selects the keys published there, and the pinned ones; any other is
        ignored. A `kid` that is known selects its keys; a pinned key may go by another name than
        the signer's, so an unknown one selects nothing.
        """
        found = list(self.keys)
        if jku in self.jwks_urls:
            found = [entry for entry in found if entry.jwks_url in (None, jku)]
        named = [entry for entry in found if entry.key.kid == kid]
        return named or found


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginTrust:
    """What the operator trusts for the cards of one origin.

    Attributes:
        keys: Pinned keys.
        jwks_urls: URLs of JWK Sets. A key that is taken out of its set counts no longer, as soon as
            the cached set ends.
        revoked: Keys that were withdrawn, and when, by `kid` or RFC 7638 thumbprint: they do not
            count, wherever they are still published.
    """

    keys: tuple[TrustedKey, ...] = ()
    jwks_urls: tuple[str, ...] = ()
    revoked: Mapping[str, datetime] = field(default_factory=dict)


class CardTrust:
    """Trust per origin, with the JWK Sets behind it.

    Args:
        origins: By origin, for example `{"https://agent.example.com": OriginTrust(...)}`.
        fetch: Gets a JWK Set; `functools.partial(fetch_jwks, transport)`, under the transport's
            destination policy. None if no origin has a JWKS URL.
        clock: Returns now, aware, in UTC.

    Raises:
        ConfigError: An origin is no URL, or has JWKS URLs and there is no `fetch`.
    """

    def __init__(
        self,
        origins: Mapping[str, OriginTrust],
        *,
        fetch: FetchJwks | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._origins = {Url.parse(origin).origin: trust for origin, trust in origins.items()}
        urls = {url for trust in self._origins.values() for url in trust.jwks_urls}
        if urls and fetch is None:
            raise ConfigError("card trust: JWKS URLs need a `fetch`")
        # Nothing of a set counts after its end: no `stale_for`. A registry waits for the fetch.
        self._clients = (
            {url: JwksClient(url, fetch=fetch, clock=clock) for url in urls} if fetch else {}
        )

    def knows(self, url: str) -> bool:
        """Say whether the operator trusts anything for cards from the origin of a URL."""
        return Url.parse(url).origin in self._origins

    async def keys_for(self, url: str) -> TrustedKeys:
        """Return the keys for cards from the origin of a URL; none for an unknown origin.

        A JWK Set that cannot be had is listed as unavailable, and takes only its own keys away.
        """
        trust = self._origins.get(Url.parse(url).origin)
        if trust is None:
            return TrustedKeys()
        keys, unavailable = list(trust.keys), []
        sets = await asyncio.gather(*(self._set(jwks_url) for jwks_url in trust.jwks_urls))
        for jwks_url, found in zip(trust.jwks_urls, sets, strict=True):
            if found is None:
                unavailable.append(jwks_url)
            else:
                keys += [TrustedKey(key=key, jwks_url=jwks_url) for key in found.values()]
        revoked = _revocations(trust)
        return TrustedKeys(
            keys=tuple(_with_revocation(entry, revoked) for entry in keys),
            jwks_urls=trust.jwks_urls,
            unavailable=tuple(unavailable),
        )

    async def _set(self, jwks_url: str) -> Mapping[str, VerificationKey] | None:
        try:
            return await self._clients[jwks_url].keys()
        except KeysUnavailableError:
            return None

    async def close(self) -> None:
        """End the fetches that are under way."""
        for client in self._clients.values():
            await client.close()


def _revocations(trust: OriginTrust) -> dict[str, datetime]:
    """Return what is revoked; a pinned key that is, is so in every JWK Set too."""
    pinned = {
        thumbprint(entry.key.public_key): entry.revoked_at
        for entry in trust.keys
        if entry.revoked_at is not None
    }
    return {**pinned, **trust.revoked}


def _with_revocation(entry: TrustedKey, revoked: Mapping[str, datetime]) -> TrustedKey:
    names = (entry.key.kid, thumbprint(entry.key.public_key))
    moments = [revoked[name] for name in names if name in revoked]
    if entry.revoked_at is not None:
        moments.append(entry.revoked_at)
    return replace(entry, revoked_at=min(moments, default=None))
