"""What has to be refused by the other schemes and profiles, and what comes a second time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.verification.interop.vectors.requests import (
    BODY,
    KEYS,
    NOW,
    TOKEN,
    http_signature_request,
    jwt_request,
    plain_request,
    webhook_request,
)
from tests.verification.interop.vectors.vector import (
    Vector,
    accepted_jwt,
    refused,
    refused_jwt,
)

__all__ = ["hostile_others"]

_CHANGED = BODY.replace("COMPLETED", "FAILED")


def hostile_others() -> Iterator[Vector]:
    """Yield them."""
    yield from _http_signatures()
    yield from _standard_webhooks()
    yield from _legacy()
    yield from _replays()


def _http_signatures() -> Iterator[Vector]:
    make = http_signature_request
    covers = "@method @target-uri content-type content-digest webhook-id x-a2a-notification-token"
    for component in covers.split():
        less = " ".join(name for name in covers.split() if name != component)
        name = f"http-without-{component.lstrip('@')}"
        yield refused(name, "the signature covers too little", make(covers=less))
    yield refused("http-foreign-key", "a stranger's key, named as ours", make(signer="attacker"))
    yield refused("http-foreign-keyid", "a stranger's key, by its own name", make(kid="attacker"))
    yield refused("http-other-alg", "not the key's", make(alg="ed25519"))
    yield refused("http-other-tag", "signed for something else", make(tag="other"))
    yield refused(
        "http-other-url", "for another webhook", make(uri="https://other.example.com/http")
    )
    yield refused(
        "http-body-changed", "the digest is of another body", make(sent=_CHANGED), "digest_mismatch"
    )
    yield refused(
        "http-digest-changed",
        "body and digest go together, the signature does not",
        make(digest_of=BODY, body=_CHANGED),
        "digest_mismatch",
    )
    yield refused(
        "http-media-type-changed",
        "a covered header is another",
        make(content_type_sent="application/json"),
    )
    yield refused(
        "http-stale", "301 s ago", make(created=NOW - 301, expires=NOW), "stale_timestamp", step=4
    )
    yield refused(
        "http-expired",
        "expired",
        make(created=NOW - 200, expires=NOW - 100),
        "stale_timestamp",
        step=4,
    )
    yield refused("http-no-expires", "no end", make(expires=None))
    yield refused("http-none", "no signature", plain_request(sender="http"))
    yield refused(
        "http-token-added",
        "a second token header, which is not covered",
        make(extra=[("X-A2A-Token", TOKEN)]),
    )
    yield refused(
        "http-version-added",
        "A2A-Version, which is not covered",
        make(extra=[("A2A-Version", "0.3")]),
    )


def _standard_webhooks() -> Iterator[Vector]:
    make = webhook_request
    yield refused("webhooks-body-changed", "another body", make(sent=_CHANGED))
    yield refused(
        "webhooks-other-secret", "a stranger's secret", make(secrets=["whsec_" + "A" * 32])
    )
    yield refused("webhooks-other-key", "a stranger's key", make(secrets=[], key="es256-next"))
    yield refused("webhooks-id-changed", "another id", make(signed_id="dlv_other"))
    yield refused("webhooks-no-signature", "no entry", make(secrets=[]))
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        yield refused(
            f"webhooks-without-{name}",
            "a header is missing",
            make(leave_out=name),
        )
    yield refused("webhooks-stale", "301 s ago", make(at=str(NOW - 301)), "stale_timestamp", step=4)
    yield refused(
        "webhooks-ahead", "301 s ahead", make(at=str(NOW + 301)), "stale_timestamp", step=4
    )
    yield refused("webhooks-no-number", "no plain digits", make(at=f"+{NOW}"), "malformed_request")
    yield refused(
        "webhooks-boundary",
        "id and time of `a.1767225600.{…}` cut elsewhere: the same signed bytes",
        make(webhook_id=f"dlv.{NOW}", signed_id="dlv", body=f"{NOW}.{BODY}", sent=BODY),
        "malformed_request",
    )


def _legacy() -> Iterator[Vector]:
    bare = dict.fromkeys(("iss", "aud", "exp", "jti", "taskId", "configId", "seq"))
    for sender in ("trpc", "samples"):
        for name, changes, code, step in (
            ("body-changed", {"sent": _CHANGED}, "digest_mismatch", 3),
            ("stale", {"claims": bare | {"iat": NOW - 301}}, "stale_timestamp", 4),
            ("foreign-key", {"key": KEYS["ps256"] | {"alg": "RS256"}}, "invalid_signature", 3),
        ):
            asked: dict[str, Any] = {
                "claims": bare,
                "kid": "rs256",
                "tokens": [],
                "webhook_id": "",
            }
            request = jwt_request(sender=sender, **(asked | changes))
            yield refused(
                f"{sender}-{name}", "also the weak profiles refuse it", request, code, step=step
            )
    spaced = json.dumps(json.loads(BODY))
    yield refused_jwt(
        "trpc-reserialised",
        "the hash of the first samples is not this profile's",
        "digest_mismatch",
        sender="trpc",
        claims=bare,
        kid="rs256",
        sent=spaced,
        tokens=[],
        webhook_id="",
    )
    yield refused(
        "unsigned-no-token",
        "nothing proves anything",
        plain_request(sender="unsigned", tokens=[]),
        "invalid_token",
        step=5,
    )
    yield refused(
        "unsigned-other-token",
        "not the token",
        plain_request(
            sender="unsigned", tokens=[("X-A2A-Notification-Token", "tok-other-000000000000")]
        ),
        "invalid_token",
        step=5,
    )
    yield refused(
        "unsigned-other-credentials",
        "not the credentials",
        plain_request(
            sender="unsigned-with-credentials",
            tokens=[],
            headers=[("Authorization", "Bearer cred-other")],
        ),
        "invalid_token",
        step=5,
    )


def _replays() -> Iterator[Vector]:
    yield accepted_jwt(
        "replay-retry",
        "the same id and body, signed anew: a retry; nobody is called again",
        code="duplicate",
        after="jwt-es256",
        claims={"iat": NOW + 5, "exp": NOW + 305},
    )
    yield accepted_jwt("replay-same", "the very same request", code="duplicate", after="jwt-es256")
    yield refused_jwt(
        "replay-conflict",
        "an id that was accepted, with another body",
        "id_conflict",
        step=7,
        after="jwt-es256",
        body=_CHANGED,
    )
