"""What is held against a request once a JWT's claims are proven (wire profile §4)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from datetime import datetime, timedelta

from pushkit.errors import (
    AudienceError,
    DigestMismatchError,
    IssuerError,
    MalformedRequestError,
    TimestampError,
)
from pushkit.logs import printable
from pushkit.signing.audience import audience_with_query
from pushkit.signing.jwt_reading import JwtClaims
from pushkit.url import masked_url
from pushkit.webhook import Headers

__all__ = [
    "EXPIRY_LEEWAY",
    "TOLERANCE",
    "body_sha256",
    "check_audience",
    "check_body",
    "check_expiry",
    "check_issuer",
    "check_times",
    "check_timestamp",
    "check_webhook_id",
]

TOLERANCE = timedelta(seconds=300)
EXPIRY_LEEWAY = timedelta(seconds=60)

_SHOWN_URLS = 3


def body_sha256(body: bytes) -> str:
    """Return the lower-case hex SHA-256 of a raw body."""
    return hashlib.sha256(body).hexdigest()


def check_body(verified: JwtClaims, body: bytes) -> None:
    """Hold the body against the signed hash.

    Raises:
        DigestMismatchError: The signature is over another body.
    """
    if not hmac.compare_digest(verified.body_sha256.encode(), body_sha256(body).encode()):
        raise DigestMismatchError("request_body_sha256 is not the SHA-256 of the body received")


def check_times(
    verified: JwtClaims,
    now: datetime,
    *,
    tolerance: timedelta = TOLERANCE,
    leeway: timedelta = EXPIRY_LEEWAY,
) -> None:
    """Hold `iat` and `exp` against the clock.

    Raises:
        TimestampError: Issued more than `tolerance` ago or ahead, or expired by over `leeway`.
    """
    check_timestamp(verified.issued_at, now, tolerance)
    if verified.expires_at is not None:
        check_expiry(verified.expires_at, now, leeway, "the JWT")


def check_timestamp(moment: datetime, now: datetime, tolerance: timedelta) -> None:
    """Refuse a moment that is further than `tolerance` from now, either way."""
    age = now - moment
    if abs(age) > tolerance:
        seconds = int(tolerance.total_seconds())
        found = f"{int(abs(age).total_seconds())} s {'ago' if age > timedelta(0) else 'ahead'}"
        raise TimestampError(f"issued {found}, expected within {seconds} s: check the clocks")


def check_expiry(moment: datetime, now: datetime, leeway: timedelta, what: str) -> None:
    """Refuse what expired more than `leeway` ago."""
    # The leeway goes to the clock's side: at the end of the calendar there is none to add.
    if now - leeway > moment:
        raise TimestampError(f"{what} has expired")


def check_issuer(verified: JwtClaims, issuer: str) -> None:
    """Refuse another issuer than the one that is trusted."""
    if verified.issuer != issuer:
        raise IssuerError(f"`iss` is {printable(verified.issuer)}, expected {issuer}")


def check_audience(verified: JwtClaims, audiences: Collection[str], target: str) -> None:
    """Refuse a notification that was signed for another webhook.

    Args:
        verified: The proven claims.
        audiences: The receiver's own URLs, normalised, from its configuration.
        target: The request target: its query may stand in `aud`.
    """
    accepted = {*audiences, *(audience_with_query(own, target) for own in audiences)}
    if not accepted.intersection(verified.audience):
        raise AudienceError(
            f"`aud` is {_shown(verified.audience)}, expected {_shown(audiences)}: the URL of this"
            " receiver and the sender's path, or what the sender's `audience` names"
        )


def _shown(urls: Collection[str]) -> str:
    shown = [printable(masked_url(url)) for url in urls]
    more = f" and {len(shown) - _SHOWN_URLS} more" if len(shown) > _SHOWN_URLS else ""
    return " or ".join(shown[:_SHOWN_URLS]) + more if shown else "none"


def check_webhook_id(verified: JwtClaims, headers: Headers) -> None:
    """Refuse a request whose `webhook-id` is not its signed `jti` (wire profile §2)."""
    webhook_id = headers.one("webhook-id")
    if webhook_id is not None and verified.delivery_id not in (None, webhook_id):
        raise MalformedRequestError("`webhook-id` and the signed `jti` differ")
