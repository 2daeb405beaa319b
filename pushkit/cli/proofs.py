"""Checks a captured request by each signature scheme, for `pushkit verify`.

Unlike a receiver, it does not stop at the first failure, and reports what was found and expected,
except tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.errors import ConfigError, InboundError, InvalidSignatureError
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.http_message_signatures import (
    TAG,
    check_content_digest,
    read_content_digest,
    read_unverified_signatures,
    verify_http_signature,
)
from pushkit.signing.notification_jwt import (
    SIGNATURE_HEADER,
    JwtClaims,
    UnverifiedJwt,
    body_sha256,
    check_audience,
    check_body,
    check_issuer,
    check_webhook_id,
    find_jwt,
    read_unverified,
    read_unverified_claims,
    verify_signature,
)
from pushkit.signing.scheme import Scheme
from pushkit.signing.second_opinion import ask_pyjwt
from pushkit.signing.standard_webhooks import (
    WebhookVerifier,
    check_webhook_signature,
    read_unverified_webhook,
)
from pushkit.signing.times import check_expiry, check_not_before, check_timestamp
from pushkit.url import audience_with_query
from pushkit.webhook import WebhookRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a request is checked against."""

    keys: Mapping[str, VerificationKey] | None  # the sender's, by `kid`; None if not given
    verifiers: Sequence[WebhookVerifier]  # the secrets of Standard Webhooks
    issuer: str | None  # the `iss`; None for any
    audience: str | None  # the webhook's URL, normalised; None for any
    now: datetime  # when the request was received
    tolerance: timedelta  # how far its time may be from `now`


@dataclass(frozen=True, slots=True)
class Check:
    """One check and its result."""

    name: str
    holds: bool | None  # None if it was not checked
    says: str  # what was found; if it does not hold, also what was expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The checks of one scheme, and the claims of the request."""

    checks: tuple[Check, ...]  # in the order of the wire profile
    facts: Mapping[str, str | None]  # the claims by name; proven only if every check holds


def checked(
    name: str, says: str, check: Callable[[], object], *, found: str = "", instead: str = ""
) -> Check:
    """Run a check that raises InboundError if it does not hold, and return its result.

    In that case, the result says the error and what was `found`, or what `instead` says.
    """
    try:
        check()
    except InboundError as exc:
        failed = instead or (f"{exc}: {found}" if found else str(exc))
        return Check(name, False, failed)
    return Check(name, True, says)


def examine(scheme: Scheme, request: WebhookRequest, expected: Expected) -> Examined:
    """Check a request by one scheme. Raises ConfigError: an option that this needs is missing."""
    if scheme is Scheme.JWT:
        return _by_jwt(request, expected)
    if scheme is Scheme.STANDARD_WEBHOOKS:
        return _by_secret(request, expected)
    return _by_http_signature(request, expected)


# --- by JWT -------------------------------------------------------------------------------------


def _by_jwt(request: WebhookRequest, expected: Expected) -> Examined:
    try:
        token = find_jwt(request.headers)
        if token is None:
            raise InvalidSignatureError(f"no JWT in {SIGNATURE_HEADER} or Authorization")
        unverified = read_unverified(token)
        claims = read_unverified_claims(unverified)
    except InboundError as exc:
        return _unreadable(exc, "body", "time", "expiry", "issuer", "audience", "webhook-id")
    found = {"issuer": claims.issuer or "none", "audience": ", ".join(claims.audience) or "none"}
    webhook_ids = request.headers.all("webhook-id")
    checks = [
        _signature_of_jwt(unverified, expected.keys),
        checked(
            "body",
            f"sha256 {claims.body_sha256}",
            lambda: check_body(claims, body_sha256(request.body)),
            found=f"signed {claims.body_sha256}, received {body_sha256(request.body)}",
        ),
        _time(claims.issued_at, expected),
        _expiry(claims.expires_at, expected),
        *_not_before(claims.not_before, expected),
        _issuer(claims, expected.issuer, found["issuer"]),
        _audience(claims, expected.audience, request.target, found["audience"]),
        checked(
            "webhook-id",
            claims.delivery_id or "no id is signed",
            lambda: check_webhook_id(claims, request.headers),
            found=f"signed {claims.delivery_id}, found {', '.join(webhook_ids)}",
        ),
    ]
    facts = {
        "kid": unverified.kid,
        **found,
        "issued": _moment(claims.issued_at, expected.now),
        "delivery": claims.delivery_id,
        "task": claims.task_id,
        "seq": None if claims.seq is None else str(claims.seq),
    }
    return Examined(checks=tuple(checks), facts=facts)


def _signature_of_jwt(
    unverified: UnverifiedJwt, keys: Mapping[str, VerificationKey] | None
) -> Check:
    found = f"`kid` {unverified.kid}" if unverified.kid else "no `kid`"
    if keys is None:
        return Check(
            "signature", None, f"--jwks was not given, nor saved with the request; found {found}"
        )
    key = keys.get(unverified.kid or "")
    if key is None:
        return Check("signature", False, f"no known key: {_keys(found, keys)}")
    says = f"{key.algorithm.value}, kid {key.kid}"

    def by_both() -> None:
        verify_signature(unverified, key)
        ask_pyjwt(unverified.token, key)

    found = f"found alg {unverified.algorithm}, the key is {says}"
    return checked("signature", f"{says}; PyJWT agrees", by_both, found=found)


def _issuer(claims: JwtClaims, issuer: str | None, found: str) -> Check:
    if issuer is None:
        return Check("issuer", None, f"--issuer was not given; found {found}")
    expected = f"`iss`: found {found}, expected {issuer}"
    return checked("issuer", found, lambda: check_issuer(claims, issuer), instead=expected)


def _audience(claims: JwtClaims, audience: str | None, target: str, found: str) -> Check:
    if audience is None:
        return Check("audience", None, f"--audience was not given; found {found}")
    accepted = dict.fromkeys((audience, audience_with_query(audience, target)))
    return checked(
        "audience",
        found,
        lambda: check_audience(claims, [audience], target),
        instead=f"`aud`: found {found}, expected {' or '.join(accepted)}",
    )


# --- by the other schemes -----------------------------------------------------------------------


def _by_http_signature(request: WebhookRequest, expected: Expected) -> Examined:
    if expected.audience is None:
        raise ConfigError("--audience: expected the URL of the webhook, which is signed")
    url = audience_with_query(expected.audience, request.target)
    try:
        found = read_unverified_signatures(request.headers)
    except InboundError as exc:
        return _unreadable(exc, "body", "time", "expiry")
    keys = expected.keys or {}
    own = [one for one in found if one.keyid in keys]
    if not own:
        kids = ", ".join(f"`keyid` {one.keyid}" for one in found) or "none"
        says = f"no signature with tag {TAG} by a known key: {_keys(kids, keys)}"
        return _unreadable(InvalidSignatureError(says), "body", "time", "expiry")
    signature = own[0]
    checks = (
        checked(
            "signature",
            f"kid {signature.keyid}, over {url}",
            lambda: verify_http_signature(
                signature,
                keys[signature.keyid],
                method=request.method,
                target_uris=[url],
                headers=request.headers,
            ),
            found=f"checked by kid {signature.keyid}, over {request.method} {url}",
        ),
        checked(
            "body",
            "Content-Digest",
            lambda: check_content_digest(read_content_digest(request.headers), request.body),
        ),
        _time(signature.issued_at, expected),
        _expiry(signature.expires_at, expected),
    )
    facts = {
        "kid": signature.keyid,
        "audience": url,
        "issued": _moment(signature.issued_at, expected.now),
        "delivery": ", ".join(request.headers.all("webhook-id")),
    }
    return Examined(checks=checks, facts=facts)


def _by_secret(request: WebhookRequest, expected: Expected) -> Examined:
    if not expected.verifiers:
        raise ConfigError(
            f"--webhook-secrets-file: expected the secrets of {Scheme.STANDARD_WEBHOOKS}"
        )
    try:
        webhook = read_unverified_webhook(request.headers)
    except InboundError as exc:
        return _unreadable(exc, "time")
    checks = (
        checked(
            "signature",
            "over id, time and body",
            lambda: check_webhook_signature(webhook, request.body, expected.verifiers),
        ),
        _time(webhook.timestamp, expected),
    )
    facts = {"issued": _moment(webhook.timestamp, expected.now), "delivery": webhook.delivery_id}
    return Examined(checks=checks, facts=facts)


# --- by all schemes -----------------------------------------------------------------------------


def _unreadable(refusal: InboundError, *others: str) -> Examined:
    """Return the result without a readable signature: the other checks are skipped."""
    skipped = (Check(name, None, "there is nothing to check") for name in others)
    failed = Check("signature", False, str(refusal))
    return Examined(checks=(failed, *skipped), facts={})


def _time(issued_at: datetime, expected: Expected) -> Check:
    return checked(
        "time",
        _moment(issued_at, expected.now),
        lambda: check_timestamp(issued_at, expected.now, expected.tolerance),
    )


def _expiry(expires_at: datetime | None, expected: Expected) -> Check:
    if expires_at is None:
        return Check("expiry", None, "none is stated")
    return checked(
        "expiry",
        f"{expires_at:%Y-%m-%dT%H:%M:%SZ}",
        lambda: check_expiry(expires_at, expected.now),
        found=_moment(expires_at, expected.now),
    )


def _not_before(not_before: datetime | None, expected: Expected) -> tuple[Check, ...]:
    """Check `nbf` if it is stated: few senders do."""
    if not_before is None:
        return ()
    found = _moment(not_before, expected.now)
    in_time = functools.partial(check_not_before, not_before, expected.now, expected.tolerance)
    return (checked("not before", found, in_time, found=found),)


def _keys(found: str, keys: Mapping[str, VerificationKey]) -> str:
    return f"found {found}, expected {' or '.join(keys) or 'none: the JWK Set is empty'}"


def _moment(moment: datetime, now: datetime) -> str:
    seconds = int((now - moment).total_seconds())
    age = f"{seconds} s ago" if seconds >= 0 else f"{-seconds} s ahead"
    return f"{moment:%Y-%m-%dT%H:%M:%SZ} ({age})"
