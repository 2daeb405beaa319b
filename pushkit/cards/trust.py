"""The keys that the operator trusts for cards, per origin of the card.

A card names its own key (`kid`, `jku`), and so does a forged one: if `jku` were a trust root,
forgers could nominate their own key (A2A#2096). Both only select among the keys configured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.keys.jwk import VerificationKey, thumbprint
from pushkit.url import Url


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A key that the operator trusts, and for how long."""

    key: VerificationKey
    jwks_url: str | None = None  # the trusted URL that it was fetched from; None for a pinned key
    not_before: datetime | None = None  # when the key starts to count
    # When the key stops counting, also for what it signed before: a card bears no date.
    expires_at: datetime | None = None
    revoked_at: datetime | None = None  # the same, for a key that was withdrawn

    def __post_init__(self) -> None:
        for moment in (self.not_before, self.expires_at, self.revoked_at):
            if moment is not None and moment.utcoffset() is None:
                raise ConfigError("a trusted key: expected times with a time zone")

    def objection(self, now: datetime) -> str | None:
        """Return why the key does not count at a time; None if it does."""
        if self.revoked_at is not None and now >= self.revoked_at:
            return f"key {self.key.kid!a} was revoked at {self.revoked_at.isoformat()}"
        if self.expires_at is not None and now >= self.expires_at:
            return f"key {self.key.kid!a} expired at {self.expires_at.isoformat()}"
        if self.not_before is not None and now < self.not_before:
            return f"key {self.key.kid!a} counts from {self.not_before.isoformat()} on"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKeys:
    """The keys that are trusted for one card."""

    keys: tuple[TrustedKey, ...] = ()  # pinned and fetched
    jwks_urls: tuple[str, ...] = ()  # of the trusted JWK Sets, whether or not they were fetched
    unavailable: tuple[str, ...] = ()  # those of `jwks_urls` that could not be fetched

    @classmethod
    def pinned(cls, *keys: VerificationKey) -> TrustedKeys:
        """Return trust in keys that the operator holds, without an expiry."""
        return cls(keys=tuple(TrustedKey(key=key) for key in keys))

    def candidates(self, kid: str | None, jku: str | None) -> list[TrustedKey]:
        """Return the keys to try for a signature with this `kid` and `jku`.

        A trusted `jku` selects the keys published there and the pinned ones; any other `jku` is
        ignored. A known `kid` selects its keys. An unknown `kid` is ignored, because the operator
        may have pinned the key under another name than the signer's.
        """
        found = list(self.keys)
        if jku in self.jwks_urls:
            found = [entry for entry in found if entry.jwks_url in (None, jku)]
        named = [entry for entry in found if entry.key.kid == kid]
        return named or found


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginTrust:
    """What the operator trusts for the cards of one origin."""

    keys: tuple[TrustedKey, ...] = ()  # pinned
    # A key that is removed from its JWK Set stops counting when the cached set expires.
    jwks_urls: tuple[str, ...] = ()
    # When keys were withdrawn, by `kid` or RFC 7638 thumbprint. From then on they do not count,
    # even where they are still published.
    revoked: Mapping[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for url in self.jwks_urls:
            try:
                Url.parse(url)
            except InvalidUrlError as exc:
                raise ConfigError(f"trusted JWK Sets: {exc}") from exc
        # A JWK Set may have any key. Of pinned keys alone, such a name would revoke nothing: a PEM
        # file does not say under which `kid` its key signs.
        names = {name for e in self.keys for name in (e.key.kid, thumbprint(e.key.public_key))}
        if names and not self.jwks_urls and (unknown := self.revoked.keys() - names):
            raise ConfigError(
                f"revoked: {', '.join(map(ascii, sorted(unknown)))}: found no pinned key of this"
                f" kid or thumbprint, expected one of {', '.join(map(ascii, sorted(names)))}"
            )
