"""What has to be accepted: every scheme, algorithm and A2A version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.verification.interop.vectors.requests import (
    A2A_JSON,
    AUDIENCE,
    BASE,
    CREDENTIALS,
    DELIVERY,
    JSON,
    KEYS,
    NOW,
    SECRET,
    TOKEN,
    http_signature_request,
    jwt_request,
    plain_request,
    sha256,
    webhook_request,
)
from tests.verification.interop.vectors.vector import Vector, accepted, accepted_jwt

__all__ = ["BODIES", "genuine"]

_TASK = '"id":"task-1","contextId":"context-1"'
BODIES = {
    "1.0-status": (
        "1.0",
        A2A_JSON,
        (
            '{"statusUpdate":{"taskId":"task-1","contextId":"context-1",'
            '"status":{"state":"TASK_STATE_WORKING"}}}'
        ),
    ),
    "1.0-artifact": (
        "1.0",
        A2A_JSON,
        (
            '{"artifactUpdate":{"taskId":"task-1","contextId":'
            '"context-1","artifact":{"artifactId":"a-1","parts":[{"text":"héllo <b>& 😀"}]},'
            '"lastChunk":true}}'
        ),
    ),
    "1.0-task": (
        "1.0",
        A2A_JSON,
        f'{{"task":{{{_TASK},"status":{{"state":"TASK_STATE_COMPLETED"}}}}}}',
    ),
    "1.0-message": (
        "1.0",
        A2A_JSON,
        (
            '{"message":{"messageId":"m-1","taskId":"task-1","role":'
            '"ROLE_AGENT","parts":[{"text":"hi"}]}}'
        ),
    ),
    "0.3-task": ("0.3", JSON, f'{{"kind":"task",{_TASK},"status":{{"state":"completed"}}}}'),
    "0.3-status": (
        "0.3",
        JSON,
        (
            '{"kind":"status-update","taskId":"task-1","contextId":"context-1",'
            '"final":true,"status":{"state":"completed"}}'
        ),
    ),
    "0.1-task": (
        "0.1",
        JSON,
        '{"id":"task-1","sessionId":"session-1","status":{"state":"completed"}}',
    ),
    "0.1-status": (
        "0.1",
        JSON,
        '{"id":"task-1","taskId":"task-1","status":{"state":"working"},"final":false}',
    ),
    "agentvault-status": (
        "agentvault-0.2",
        JSON,
        '{"taskId":"task-1","state":"COMPLETED","timestamp":"2026-01-01T00:00:00Z","message":null}',
    ),
    "agentvault-artifact": (
        "agentvault-0.2",
        JSON,
        (
            '{"taskId":"task-1","artifact":{"id":"log-1",'
            '"type":"log","content":"step 1"},"timestamp":"2026-01-01T00:00:00Z"}'
        ),
    ),
}


def genuine() -> Iterator[Vector]:
    """Yield them."""
    yield from _jwts()
    for name, (version, content_type, body) in BODIES.items():
        request = jwt_request(body=body, content_type=content_type)
        yield accepted(f"jwt-{name}", f"A2A {version}, {name}", request, a2a=version)
    yield from _http_signatures()
    yield from _standard_webhooks()
    yield from _legacy()


def _jwts() -> Iterator[Vector]:
    for kid in ("es256", "es384", "eddsa", "rs256", "ps256"):
        what = f"signed with {KEYS[kid]['alg']}"
        yield accepted_jwt(f"jwt-{kid}", what, kid=kid)
    for kid in ("rs256", "ps256"):
        what = f"one `kid` for two keys: the one for {KEYS[kid]['alg']} verifies (RFC 7517 §4.5)"
        request = jwt_request(kid=kid, header={"kid": "shared"})
        yield accepted(f"jwt-shared-kid-{kid}", what, request)
    yield accepted_jwt("jwt-next-key", "the second key of the set", kid="es256-next")
    yield accepted_jwt(
        "jwt-alg-ed25519",
        "alg is Ed25519, RFC 9864's name of EdDSA with this key; older libraries do not know it",
        level="may",
        kid="eddsa",
        header={"alg": "Ed25519"},
    )
    yield accepted_jwt("jwt-scheme-lower-case", "bearer", scheme="bearer ")
    yield accepted_jwt(
        "jwt-in-x-a2a-signature",
        "Authorization has what the client handed out, the JWT is in X-A2A-Signature",
        sender="agent-with-credentials",
        claims={"aud": f"{BASE}/credentials"},
        field="X-A2A-Signature",
        headers=[("Authorization", f"Bearer {CREDENTIALS}")],
    )
    yield accepted_jwt("jwt-aud-list", "aud is a list that names us", claims={"aud": [AUDIENCE]})
    yield accepted_jwt(
        "jwt-aud-query-registered",
        "the webhook was registered, and is configured, with a query",
        sender="agent-with-query",
        target="/q?tenant=7",
        claims={"aud": f"{BASE}/q?tenant=7"},
    )
    yield accepted_jwt(
        "jwt-aud-query-of-request",
        "aud is our URL with exactly the query of the request",
        level="may",
        target="/a2a/push?a=1&b=%20",
        claims={"aud": f"{AUDIENCE}?a=1&b=%20"},
    )
    yield accepted_jwt("jwt-iat-300-ago", "at the edge", claims={"iat": NOW - 300, "exp": NOW})
    yield accepted_jwt(
        "jwt-iat-300-ahead", "at the edge", claims={"iat": NOW + 300, "exp": NOW + 600}
    )
    yield accepted_jwt(
        "jwt-exp-60-ago",
        "expired within the leeway of 60 s",
        level="may",
        claims={"iat": NOW - 120, "exp": NOW - 60},
    )
    yield accepted_jwt(
        "jwt-without-task-config-seq",
        "taskId, configId and seq are not required",
        claims={"taskId": None, "configId": None, "seq": None},
    )
    yield accepted_jwt("jwt-unknown-claims", "more claims", claims={"sub": "x", "x": {"y": [1]}})
    yield accepted_jwt(
        "jwt-white-space-in-body",
        "signed as it is",
        body=json.dumps(json.loads(BODIES["1.0-status"][2]), indent=2) + "\n",
    )
    for name, stated in (("stated", "1.0"), ("misstated", "0.3"), ("later", "9.9")):
        yield accepted_jwt(
            f"jwt-version-{name}",
            f"A2A-Version is {stated}, the body is of 1.0",
            headers=[("A2A-Version", stated)],
        )
    for name, body in (
        ("as-in-1.0", '{"messageUpdate":{"taskId":"task-1","message":{"text":"hi"}}}'),
        ("as-in-0.3", '{"kind":"progress","taskId":"task-1","percent":40}'),
    ):
        yield accepted_jwt(
            f"jwt-later-kind-{name}",
            "a kind that no version has: its sender would give up if it were refused",
            a2a=name.removeprefix("as-in-"),
            level="may",
            body=body,
        )
    yield accepted_jwt("jwt-without-webhook-id", "the header is not needed", webhook_id="")
    yield accepted_jwt(
        "jwt-token-x-a2a-token",
        "the other two spellings of the token's header",
        tokens=[("X-A2A-Token", TOKEN), ("A2A-Notification-Token", TOKEN)],
    )


def _http_signatures() -> Iterator[Vector]:
    for kid, alg in (
        ("es256", "ecdsa-p256-sha256"),
        ("es384", "ecdsa-p384-sha384"),
        ("eddsa", "ed25519"),
        ("rs256", "rsa-v1_5-sha256"),
    ):
        yield accepted(f"http-{kid}", alg, http_signature_request(kid=kid, alg=alg))
    covered = "@method @target-uri content-type content-digest webhook-id a2a-version"
    yield accepted(
        "http-version-covered",
        "A2A-Version, which is covered",
        http_signature_request(
            covers=f"{covered} x-a2a-notification-token", extra=[("A2A-Version", "1.0")]
        ),
    )


def _standard_webhooks() -> Iterator[Vector]:
    yield accepted("webhooks-v1", "HMAC-SHA256", webhook_request())
    yield accepted("webhooks-v1a", "Ed25519", webhook_request(secrets=[], key="eddsa"))
    other = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
    yield accepted(
        "webhooks-two-secrets",
        "a secret is being replaced: one of two entries holds",
        webhook_request(secrets=[other, SECRET]),
    )
    yield accepted("webhooks-unknown-version", "passed over", webhook_request(more="v9,AAAA"))


def _legacy() -> Iterator[Vector]:
    # The senders of these two know no token, no audience and no id.
    bare = dict.fromkeys(("iss", "aud", "exp", "jti", "taskId", "configId", "seq"))
    name, content_type, body = BODIES["0.3-task"]
    weak: dict[str, Any] = {
        "kid": "rs256",
        "content_type": content_type,
        "tokens": [],
        "webhook_id": "",
    }
    yield accepted(
        "trpc-raw",
        "iat and the raw body's hash alone",
        jwt_request(sender="trpc", claims=bare, body=body, **weak),
        a2a=name,
    )
    yield accepted(
        "samples-raw",
        "the same",
        jwt_request(sender="samples", claims=bare, body=body, **weak),
        a2a=name,
    )
    spaced = json.dumps(json.loads(body))
    yield accepted(
        "samples-reserialised",
        "the hash is over the body written compactly, which is sent with spaces",
        jwt_request(
            sender="samples",
            claims=bare | {"request_body_sha256": sha256(body)},
            body=body,
            sent=spaced,
            **weak,
        ),
        a2a=name,
    )
    yield accepted(
        "unsigned-token",
        "no signature: the token is all there is",
        plain_request(sender="unsigned"),
    )
    yield accepted(
        "unsigned-token-0.3",
        "the same, A2A 0.3",
        plain_request(sender="unsigned", body=body, content_type=content_type),
        a2a=name,
    )
    yield accepted(
        "unsigned-credentials",
        "no signature and, as of the JavaScript SDK, no token: the credentials are all there is",
        plain_request(
            sender="unsigned-with-credentials",
            tokens=[],
            headers=[("Authorization", f"Bearer {CREDENTIALS}"), ("webhook-id", DELIVERY)],
        ),
    )
