"""The names of the signature schemes: each has headers of its own, so several can be on at once."""

from __future__ import annotations

from enum import StrEnum

from pushkit.errors import ConfigError


class Scheme(StrEnum):
    """How a notification is signed (wire profile §3)."""

    JWT = "jwt"
    """The notification JWT: names issuer, webhook, delivery and body. The default."""
    STANDARD_WEBHOOKS = "standard-webhooks"
    """Id, time and body, by a shared secret (`v1`) or an Ed25519 key (`v1a`). It names no audience:
    what was signed for one webhook holds at every other one that has the same secret or key."""
    HTTP_MESSAGE_SIGNATURES = "http-message-signatures"
    """RFC 9421: method, URL, the headers that matter, and the body by its Content-Digest."""

    @classmethod
    def parse(cls, name: str) -> Scheme:
        """Read a scheme's name.

        Raises:
            ConfigError: No scheme of that name.
        """
        try:
            return cls(name)
        except ValueError as exc:
            raise ConfigError(f"scheme {name!r}: expected one of {', '.join(cls)}") from exc
