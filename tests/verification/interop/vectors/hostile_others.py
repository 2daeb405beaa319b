"""What has to be refused by the other schemes and profiles, and what comes a second time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from tests.verification.interop.vectors.requests import (
    BODY,
    CHANGED,
    KEYS,
    NOW,
    TOKEN,
    http_signature_request,
    plain_request,
    weak_request,
    webhook_request,
)
from tests.verification.interop.vectors.vector import Vector, accepted, refused

__all__ = ["hostile_others"]


def hostile_others() -> Iterator[Vector]:
    """Yield them."""
    yield from _http_signatures()
    yield from _standard_webhooks()
    yield from _legacy()
    yield from _replays()


def _http_signatures() -> Iterator[Vector]:
    http = partial(refused, by=http_signature_request)
    covers = "@method @target-uri content-type content-digest webhook-id x-a2a-notification-token"
    for component in covers.split():
        less = " ".join(name for name in covers.split() if name != component)
        name = f"http-without-{component.lstrip('@')}"
        yield http(name, "the signature covers too little", covers=less)
    yield http("http-foreign-key", "a stranger's key, named as ours", signer="attacker")
    yield http("http-foreign-keyid", "a stranger's key, by its own name", kid="attacker")
    yield http("http-other-alg", "not the key's", alg="ed25519")
    yield http("http-other-tag", "signed for something else", tag="other")
    yield http("http-other-url", "for another webhook", uri="https://other.example.com/http")
    yield http(
        "http-body-changed", "the digest is of another body", "digest_mismatch", sent=CHANGED
    )
    yield http(
        "http-digest-changed",
        "body and digest go together, the signature does not",
        "digest_mismatch",
        digest_of=BODY,
        body=CHANGED,
    )
    yield http(
        "http-media-type-changed",
        "a covered header is another",
        content_type_sent="application/json",
    )
    yield http("http-stale", "301 s ago", "stale_timestamp", created=NOW - 301, expires=NOW)
    yield http("http-expired", "expired", "stale_timestamp", created=NOW - 200, expires=NOW - 100)
    yield http("http-no-expires", "no end", expires=None)
    yield refused("http-none", "no signature", by=plain_request, sender="http")
    yield http(
        "http-token-added",
        "a second token header, which is not covered",
        extra=[("X-A2A-Token", TOKEN)],
    )
    yield http(
        "http-version-added", "A2A-Version, which is not covered", extra=[("A2A-Version", "0.3")]
    )


def _standard_webhooks() -> Iterator[Vector]:
    hooks = partial(refused, by=webhook_request)
    yield hooks("webhooks-body-changed", "another body", sent=CHANGED)
    yield hooks("webhooks-other-secret", "a stranger's secret", secrets=["whsec_" + "A" * 32])
    yield hooks("webhooks-other-key", "a stranger's key", secrets=[], key="es256-next")
    yield hooks("webhooks-id-changed", "another id", signed_id="dlv_other")
    yield hooks("webhooks-no-signature", "no entry", secrets=[])
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        yield hooks(f"webhooks-without-{name}", "a header is missing", leave_out=name)
    yield hooks("webhooks-stale", "301 s ago", "stale_timestamp", at=str(NOW - 301))
    yield hooks("webhooks-ahead", "301 s ahead", "stale_timestamp", at=str(NOW + 301))
    yield hooks("webhooks-no-number", "no plain digits", "malformed_request", at=f"+{NOW}")
    yield hooks(
        "webhooks-boundary",
        "id and time of `a.1767225600.{…}` cut elsewhere: the same signed bytes",
        "malformed_request",
        webhook_id=f"dlv.{NOW}",
        signed_id="dlv",
        body=f"{NOW}.{BODY}",
        sent=BODY,
    )


def _legacy() -> Iterator[Vector]:
    weak = partial(refused, by=weak_request)
    what = "also the weak profiles refuse it"
    of_other_scheme = KEYS["ps256"] | {"alg": "RS256"}
    for name in ("trpc", "samples"):
        yield weak(f"{name}-body-changed", what, "digest_mismatch", sender=name, sent=CHANGED)
        yield weak(f"{name}-stale", what, "stale_timestamp", sender=name, claims={"iat": NOW - 301})
        yield weak(f"{name}-foreign-key", what, sender=name, key=of_other_scheme)
    yield weak(
        "trpc-reserialised",
        "the hash of the first samples is not this profile's",
        "digest_mismatch",
        sender="trpc",
        sent=json.dumps(json.loads(BODY)),
    )
    unsigned = partial(refused, code="invalid_token", by=plain_request)
    yield unsigned(
        "unsigned-no-token",
        "nothing proves anything",
        sender="unsigned",
        tokens=[],
    )
    yield unsigned(
        "unsigned-other-token",
        "not the token",
        sender="unsigned",
        tokens=[("X-A2A-Notification-Token", "tok-other-000000000000")],
    )
    yield unsigned(
        "unsigned-other-credentials",
        "not the credentials",
        sender="unsigned-with-credentials",
        tokens=[],
        headers=[("Authorization", "Bearer cred-other")],
    )


def _replays() -> Iterator[Vector]:
    yield accepted(
        "replay-retry",
        "the same id and body, signed anew: a retry; nobody is called again",
        code="duplicate",
        after="jwt-es256",
        claims={"iat": NOW + 5, "exp": NOW + 305},
    )
    yield accepted("replay-same", "the very same request", code="duplicate", after="jwt-es256")
    yield refused(
        "replay-conflict",
        "an id that was accepted, with another body",
        "id_conflict",
        after="jwt-es256",
        body=CHANGED,
    )
