"""The trusted keys for each origin of cards, with those of JWK Sets that are fetched."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Self

from pushkit.bounded_json import JsonValue
from pushkit.cards.document import named_keys
from pushkit.cards.trust import OriginTrust, TrustedKey, TrustedKeys
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, KeysUnavailableError
from pushkit.keys.jwk import thumbprint
from pushkit.keys.jwks import KeysByKid
from pushkit.net.destination import DestinationPolicy
from pushkit.net.jwks_client import FetchJwks, JwksClient, fetch_jwks
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.url import Url, masked_url


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
        allow: Sequence[
            str
        ] = (),  # for development: hosts for which the destination rules are lifted
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
        keys, unavailable = list(trust.keys), []
        kids = named_keys(card) - {entry.key.kid for entry in keys} if card else ()
        sets = await asyncio.gather(*(self._set(jwks_url, kids) for jwks_url in trust.jwks_urls))
        for jwks_url, found in zip(trust.jwks_urls, sets, strict=True):
            if found is None:
                unavailable.append(jwks_url)
            else:
                keys += [
                    TrustedKey(key=key, jwks_url=jwks_url)
                    for same in found.values()
                    for key in same
                ]
        revoked = _revoked(keys, trust.revoked)
        return TrustedKeys(
            keys=tuple(replace(e, revoked_at=revoked.get(_thumbprint(e))) for e in keys),
            jwks_urls=trust.jwks_urls,
            unavailable=tuple(unavailable),
        )

    async def _set(self, jwks_url: str, kids: Iterable[str]) -> KeysByKid | None:
        client = self._clients[jwks_url]
        try:
            for kid in kids:
                await client.find(kid)
            return await client.keys()
        except KeysUnavailableError:
            return None

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
