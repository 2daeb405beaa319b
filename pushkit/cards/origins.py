"""Trust per origin of a card, with the JWK Sets behind it: the part that goes over the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from pushkit.bounded_json import JsonValue
from pushkit.cards.document import named_keys
from pushkit.cards.trust import OriginTrust, TrustedKey, TrustedKeys
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, KeysUnavailableError
from pushkit.keys.jwk import VerificationKey, thumbprint
from pushkit.net.jwks_client import FetchJwks, JwksClient
from pushkit.url import Url


class CardTrust:
    """Trust per origin, with the JWK Sets behind it.

    Raises:
        ConfigError: An origin is no URL or has a path, stands there twice, or has JWKS URLs and
            there is no `fetch`.
    """

    def __init__(
        self,
        origins: Mapping[str, OriginTrust],  # `{"https://agent.example.com": OriginTrust(...)}`
        *,
        # Gets a JWK Set; `functools.partial(fetch_jwks, transport)`, under the transport's
        # destination policy. None if no origin has a JWKS URL.
        fetch: FetchJwks | None = None,
        clock: Callable[[], datetime] = utc_now,  # the present, aware and in UTC
    ) -> None:
        self._origins = _by_origin(origins)
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

    async def keys_for(
        self, url: str, card: bytes | Mapping[str, JsonValue] | None = None
    ) -> TrustedKeys:
        """Return the keys for cards from the origin of a URL; none for an unknown origin.

        A JWK Set without a key that the card names is fetched again, at most once in 30 seconds.
        One that cannot be had is listed as unavailable, and takes only its own keys away.

        Raises:
            MalformedCardError: As `verify_card`.
        """
        trust = self._origins.get(Url.parse(url).origin)
        if trust is None:
            return TrustedKeys()
        keys, unavailable = list(trust.keys), []
        kids = named_keys(card) - {entry.key.kid for entry in keys} if card else ()
        sets = await asyncio.gather(*(self._set(jwks_url, kids) for jwks_url in trust.jwks_urls))
        for jwks_url, found in zip(trust.jwks_urls, sets, strict=True):
            if found is None:
                unavailable.append(jwks_url)
            else:
                keys += [TrustedKey(key=key, jwks_url=jwks_url) for key in found.values()]
        revoked = _revoked(keys, trust.revoked)
        return TrustedKeys(
            keys=tuple(replace(e, revoked_at=revoked.get(_name(e))) for e in keys),
            jwks_urls=trust.jwks_urls,
            unavailable=tuple(unavailable),
        )

    async def _set(
        self, jwks_url: str, kids: Iterable[str]
    ) -> Mapping[str, VerificationKey] | None:
        client = self._clients[jwks_url]
        try:
            for kid in kids:
                await client.find(kid)
            return await client.keys()
        except KeysUnavailableError:
            return None

    async def close(self) -> None:
        """End the fetches that are under way."""
        for client in self._clients.values():
            await client.close()


def _by_origin(origins: Mapping[str, OriginTrust]) -> dict[str, OriginTrust]:
    found: dict[str, OriginTrust] = {}
    for name, trust in origins.items():
        url = Url.parse(name)
        origin = url.origin
        if url.target != "/":  # it would count for every card of the host, not for that path's
            raise ConfigError(f"card trust: {name}: expected scheme, host and port, without a path")
        if origin in found:  # chance would choose whose keys, and whose revocations, count
            raise ConfigError(f"card trust: {name}: this origin stands there twice, expected once")
        found[origin] = trust
    return found


def _revoked(keys: Iterable[TrustedKey], named: Mapping[str, datetime]) -> Mapping[str, datetime]:
    """Return since when keys are revoked, by thumbprint: one is so under each of its names."""
    found: dict[str, datetime] = {}
    for entry in keys:
        name = _name(entry)
        said = (entry.revoked_at, named.get(entry.key.kid), named.get(name), found.get(name))
        moments = [moment for moment in said if moment is not None]
        if moments:
            found[name] = min(moments)
    return found


def _name(entry: TrustedKey) -> str:
    return thumbprint(entry.key.public_key)
