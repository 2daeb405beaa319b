"""Trust per origin of a card, with the JWK Sets behind it: the part that goes over the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from pushkit.cards.trust import OriginTrust, TrustedKey, TrustedKeys
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, KeysUnavailableError
from pushkit.keys.jwk import VerificationKey, thumbprint
from pushkit.net.jwks_client import FetchJwks, JwksClient
from pushkit.url import Url


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
        # A pinned key that is revoked is so in every JWK Set, too.
        pinned = {thumbprint(e.key.public_key): e.revoked_at for e in trust.keys if e.revoked_at}
        revoked = {**pinned, **trust.revoked}
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


def _with_revocation(entry: TrustedKey, revoked: Mapping[str, datetime]) -> TrustedKey:
    names = (entry.key.kid, thumbprint(entry.key.public_key))
    moments = [revoked[name] for name in names if name in revoked]
    if entry.revoked_at is not None:
        moments.append(entry.revoked_at)
    return replace(entry, revoked_at=min(moments, default=None))
