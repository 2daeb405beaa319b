"""What has to be refused although its signature holds: body, claims, and what follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from tests.verification.interop.vectors.requests import (
    AUDIENCE,
    BODY,
    ISSUER,
    NOW,
    TOKEN,
    jwt_request,
    sha256,
)
from tests.verification.interop.vectors.vector import Vector, refused

__all__ = ["hostile_claims"]

_CHANGED = BODY.replace("COMPLETED", "FAILED")


def hostile_claims() -> Iterator[Vector]:
    """Yield them."""
    yield from _bodies()
    yield from _claims()
    yield from _beyond_the_jwt()


def _bodies() -> Iterator[Vector]:
    """Yield what was signed over another body."""
    step = "digest_mismatch"
    yield refused("body-changed", "another state", jwt_request(sent=_CHANGED), step)
    yield refused("body-empty", "nothing is sent", jwt_request(sent=""), step)
    yield refused("body-longer", "a line feed more", jwt_request(sent=BODY + "\n"), step)
    spaced = json.dumps(json.loads(BODY))
    yield refused(
        "body-reserialised", "the same JSON in other bytes", jwt_request(sent=spaced), step
    )
    escaped = BODY.replace("task-1", "\\u0074ask-1")
    yield refused("body-escaped", "the same JSON with an escape", jwt_request(sent=escaped), step)
    upper = sha256(BODY).upper()
    yield refused(
        "hash-upper-case",
        "hex in upper case, which a verifier may compare without case",
        jwt_request(claims={"request_body_sha256": upper}),
        step,
        level="may",
    )
    yield refused(
        "hash-of-nothing",
        "the hash of no body",
        jwt_request(claims={"request_body_sha256": sha256("")}),
        step,
    )
    half = sha256(BODY)[:32]
    yield refused(
        "hash-short",
        "the first half of the hash",
        jwt_request(claims={"request_body_sha256": half}),
        step,
    )
    other = hashlib.sha512(BODY.encode()).hexdigest()
    yield refused(
        "hash-sha512",
        "another hash function",
        jwt_request(claims={"request_body_sha256": other}),
        step,
    )
    for name, value in (("missing", None), ("empty", ""), ("list", [sha256(BODY)])):
        yield refused(
            f"hash-{name}",
            "nothing binds the body",
            jwt_request(claims={"request_body_sha256": value}),
        )


def _claims() -> Iterator[Vector]:
    """Yield what holds, and is not for us or not for now."""
    for name, seconds in (("301-ago", -301), ("301-ahead", 301), ("day-ago", -86400)):
        at = NOW + seconds
        yield refused(
            f"iat-{name}",
            "outside the window",
            jwt_request(claims={"iat": at, "exp": at + 300}),
            "stale_timestamp",
            step=4,
        )
    yield refused(
        "iat-day-ago-exp-ahead",
        "exp does not lengthen the window",
        jwt_request(claims={"iat": NOW - 86400}),
        "stale_timestamp",
        step=4,
    )
    yield refused(
        "exp-301-ago",
        "expired",
        jwt_request(claims={"iat": NOW - 200, "exp": NOW - 100}),
        "stale_timestamp",
        step=4,
    )
    yield refused("iat-missing", "no time", jwt_request(claims={"iat": None}))
    for name, value in (("list", [NOW]), ("true", True), ("negative", -1), ("huge", 10**18)):
        yield refused(f"iat-{name}", "no moment", jwt_request(claims={"iat": value}))
    yield refused(
        "iat-text", "a number in quotes", jwt_request(claims={"iat": str(NOW)}), level="may"
    )
    yield refused(
        "exp-missing", "no end", jwt_request(claims={"exp": None}), "invalid_claims", step=4
    )
    yield refused("exp-text", "no moment", jwt_request(claims={"exp": "tomorrow"}))
    yield refused(
        "jti-missing",
        "no id to remember",
        jwt_request(claims={"jti": None}),
        "invalid_claims",
        step=4,
    )
    yield refused("jti-number", "no text", jwt_request(claims={"jti": 7}))
    yield refused(
        "jti-differs",
        "webhook-id is another id",
        jwt_request(webhook_id="dlv_other"),
        "malformed_request",
        step=4,
    )
    yield refused(
        "jti-with-dot",
        "Standard Webhooks forbids it; with the JWT alone it does no harm",
        jwt_request(claims={"jti": "a.b"}, webhook_id="a.b"),
        "invalid_claims",
        step=4,
        level="may",
    )
    for name, issuer in (
        ("other", "https://attacker.example.net"),
        ("missing", None),
        ("slash", f"{ISSUER}/"),
        ("prefix", f"{ISSUER}.attacker.example.net"),
        ("http", "http://agent.example.com"),
    ):
        yield refused(
            f"iss-{name}",
            "another issuer",
            jwt_request(claims={"iss": issuer}),
            "unknown_sender",
            step=2,
        )
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
        yield refused(
            f"aud-{name}",
            "for another webhook",
            jwt_request(claims={"aud": audience}),
            "wrong_audience",
            step=4,
        )
    yield refused("aud-number", "no text", jwt_request(claims={"aud": 7}))
    yield refused(
        "aud-from-host",
        "Host names the audience, and is not believed",
        jwt_request(
            claims={"aud": "https://other.example.com/a2a/push"},
            headers=[("Host", "other.example.com")],
        ),
        "wrong_audience",
        step=4,
    )
    for name, seq in (("zero", 0), ("text", "1"), ("huge", 2**63)):
        yield refused(
            f"seq-{name}",
            "no positive integer of 64 bits",
            jwt_request(claims={"seq": seq}),
            level="may",
        )


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
        yield refused(
            f"token-{name}", "the token", jwt_request(tokens=tokens), "invalid_token", step=5
        )
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
        yield refused(
            f"json-{name}", "signed, and no notification", jwt_request(body=body), code, step=6
        )
    yield refused(
        "other-task",
        "the signed taskId is not the body's",
        jwt_request(claims={"taskId": "task-2"}),
        "malformed_request",
        step=6,
    )
    yield refused("get", "not a POST", jwt_request(method="GET"), "method_not_allowed", step=1)
    yield refused(
        "text-plain",
        "no JSON media type",
        jwt_request(content_type="text/plain"),
        "unsupported_media_type",
        step=1,
    )
