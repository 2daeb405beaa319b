"""What has to be refused although its signature holds: body, claims, and what follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from tests.verification.interop.vectors.requests import (
    AUDIENCE,
    BODY,
    CHANGED,
    ISSUER,
    NOW,
    TOKEN,
    sha256,
)
from tests.verification.interop.vectors.vector import Level, Vector, refused

__all__ = ["hostile_claims"]


def hostile_claims() -> Iterator[Vector]:
    """Yield them."""
    yield from _bodies()
    yield from _claims()
    yield from _beyond_the_jwt()


def stating(
    name: str, what: str, code: str = "invalid_signature", *, level: Level = "must", **claims: Any
) -> Vector:
    """Return the vector of a JWT with these claims; None leaves one out."""
    return refused(name, what, code, level=level, claims=claims)


def _bodies() -> Iterator[Vector]:
    """Yield what was signed over another body."""
    step = "digest_mismatch"
    yield refused("body-changed", "another state", step, sent=CHANGED)
    yield refused("body-empty", "nothing is sent", step, sent="")
    yield refused("body-longer", "a line feed more", step, sent=BODY + "\n")
    spaced = json.dumps(json.loads(BODY))
    yield refused("body-reserialised", "the same JSON in other bytes", step, sent=spaced)
    escaped = BODY.replace("task-1", "\\u0074ask-1")
    yield refused("body-escaped", "the same JSON with an escape", step, sent=escaped)
    upper = sha256(BODY).upper()
    yield stating(
        "hash-upper-case",
        "hex in upper case, which a verifier may compare without case",
        step,
        level="may",
        request_body_sha256=upper,
    )
    yield stating("hash-of-nothing", "the hash of no body", step, request_body_sha256=sha256(""))
    half = sha256(BODY)[:32]
    yield stating("hash-short", "the first half of the hash", step, request_body_sha256=half)
    other = hashlib.sha512(BODY.encode()).hexdigest()
    yield stating("hash-sha512", "another hash function", step, request_body_sha256=other)
    for name, value in (("missing", None), ("empty", ""), ("list", [sha256(BODY)])):
        yield stating(f"hash-{name}", "nothing binds the body", request_body_sha256=value)


def _claims() -> Iterator[Vector]:
    """Yield what holds, and is not for us or not for now."""
    for name, seconds in (("301-ago", -301), ("301-ahead", 301), ("day-ago", -86400)):
        at = NOW + seconds
        yield stating(f"iat-{name}", "outside the window", "stale_timestamp", iat=at, exp=at + 300)
    yield stating(
        "iat-day-ago-exp-ahead",
        "exp does not lengthen the window",
        "stale_timestamp",
        iat=NOW - 86400,
    )
    yield stating("exp-301-ago", "expired", "stale_timestamp", iat=NOW - 200, exp=NOW - 100)
    yield stating("iat-missing", "no time", iat=None)
    for name, value in (("list", [NOW]), ("true", True), ("negative", -1), ("huge", 10**18)):
        yield stating(f"iat-{name}", "no moment", iat=value)
    yield stating("iat-text", "a number in quotes", level="may", iat=str(NOW))
    yield stating("exp-missing", "no end", "invalid_claims", exp=None)
    yield stating("exp-text", "no moment", exp="tomorrow")
    yield stating("jti-missing", "no id to remember", "invalid_claims", jti=None)
    yield stating("jti-number", "no text", jti=7)
    yield refused(
        "jti-differs",
        "webhook-id is another id",
        "malformed_request",
        step=4,
        webhook_id="dlv_other",
    )
    yield refused(
        "jti-with-dot",
        "Standard Webhooks forbids it; with the JWT alone it does no harm",
        "invalid_claims",
        level="may",
        claims={"jti": "a.b"},
        webhook_id="a.b",
    )
    for name, issuer in (
        ("other", "https://attacker.example.net"),
        ("missing", None),
        ("slash", f"{ISSUER}/"),
        ("prefix", f"{ISSUER}.attacker.example.net"),
        ("http", "http://agent.example.com"),
    ):
        yield stating(f"iss-{name}", "another issuer", "unknown_sender", iss=issuer)
    for name, audience in (
        ("missing", None),
        ("other-host", "https://other.example.com/a2a/push"),
        ("other-path", f"{AUDIENCE}/b"),
        ("origin", "https://client.example.com"),
        ("longer", f"{AUDIENCE}x"),
        ("http", AUDIENCE.replace("https", "http")),
        ("empty-list", []),
        ("other-list", ["https://other.example.com/a2a/push", ISSUER]),
        ("other-query", f"{AUDIENCE}?a=1"),
        ("issuer", ISSUER),
    ):
        yield stating(f"aud-{name}", "for another webhook", "wrong_audience", aud=audience)
    yield stating("aud-number", "no text", aud=7)
    yield refused(
        "aud-from-host",
        "Host names the audience, and is not believed",
        "wrong_audience",
        claims={"aud": "https://other.example.com/a2a/push"},
        headers=[("Host", "other.example.com")],
    )
    for name, seq in (("zero", 0), ("text", "1"), ("huge", 2**63)):
        yield stating(f"seq-{name}", "no positive integer of 64 bits", level="may", seq=seq)


def _beyond_the_jwt() -> Iterator[Vector]:
    """Yield what the signature cannot refuse: it holds in all of these."""
    for name, tokens in (
        ("missing", []),
        ("other", [("X-A2A-Notification-Token", "tok-other-000000000000")]),
        ("prefix", [("X-A2A-Notification-Token", TOKEN[:-1])]),
        ("longer", [("X-A2A-Notification-Token", f"{TOKEN}0")]),
        (
            "differ",
            [("X-A2A-Notification-Token", TOKEN), ("X-A2A-Token", "tok-other-000000000000")],
        ),
    ):
        yield refused(f"token-{name}", "the token", "invalid_token", tokens=tokens)
    for name, body, code in (
        ("not-json", "{", "malformed_body"),
        ("twice", '{"task":{"id":"a"},"task":{"id":"b"}}', "malformed_body"),
        ("nan", '{"statusUpdate":NaN}', "malformed_body"),
        ("deep", "[" * 500 + "]" * 500, "malformed_body"),
        ("of-no-version", '{"hello":"world"}', "unrecognised_body"),
        ("array", "[]", "unrecognised_body"),
        (
            "of-two-later-kinds",
            '{"x":{"taskId":"task-1"},"y":{"taskId":"task-1"}}',
            "unrecognised_body",
        ),
        (
            "two-updates",
            '{"task":{"id":"task-1"},"message":{"messageId":"m"}}',
            "unrecognised_body",
        ),
    ):
        yield refused(f"json-{name}", "signed, and no notification", code, body=body)
    yield refused(
        "other-task",
        "the signed taskId is not the body's",
        "malformed_request",
        step=6,
        claims={"taskId": "task-2"},
    )
    yield refused("get", "not a POST", "method_not_allowed", method="GET")
    yield refused(
        "text-plain", "no JSON media type", "unsupported_media_type", content_type="text/plain"
    )
