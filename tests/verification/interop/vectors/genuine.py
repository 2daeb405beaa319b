"""What has to be accepted: every scheme, algorithm and A2A version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

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
    plain_request,
    weak_request,
    webhook_request,
)
from tests.verification.interop.vectors.vector import Vector, accepted

__all__ = ["BODIES", "genuine"]

_TASK = '"id":"task-1","contextId":"context-1"'
_OF_TASK = '"taskId":"task-1","contextId":"context-1"'
# By the version of A2A, and what it is.
BODIES = {
    "1.0-status": f'{{"statusUpdate":{{{_OF_TASK},"status":{{"state":"TASK_STATE_WORKING"}}}}}}',
    "1.0-artifact": f'{{"artifactUpdate":{{{_OF_TASK},"artifact":{{"artifactId":"a-1",'
    '"parts":[{"text":"héllo <b>& 😀"}]},"lastChunk":true}}',
    "1.0-task": f'{{"task":{{{_TASK},"status":{{"state":"TASK_STATE_COMPLETED"}}}}}}',
    "1.0-message": '{"message":{"messageId":"m-1","taskId":"task-1","role":"ROLE_AGENT",'
    '"parts":[{"text":"hi"}]}}',
    "0.3-task": f'{{"kind":"task",{_TASK},"status":{{"state":"completed"}}}}',
    "0.3-status": f'{{"kind":"status-update",{_OF_TASK},"final":true,'
    '"status":{"state":"completed"}}',
    "0.1-task": '{"id":"task-1","sessionId":"session-1","status":{"state":"completed"}}',
    "0.1-status": '{"id":"task-1","taskId":"task-1","status":{"state":"working"},"final":false}',
    "agentvault-status": '{"taskId":"task-1","state":"COMPLETED",'
    '"timestamp":"2026-01-01T00:00:00Z","message":null}',
    "agentvault-artifact": '{"taskId":"task-1","artifact":{"id":"log-1","type":"log",'
    '"content":"step 1"},"timestamp":"2026-01-01T00:00:00Z"}',
}


def genuine() -> Iterator[Vector]:
    """Yield them."""
    yield from _jwts()
    for name, body in BODIES.items():
        version = name.partition("-")[0].replace("agentvault", "agentvault-0.2")
        media_type = A2A_JSON if version == "1.0" else JSON
        what = f"A2A {version}, {name}"
        yield accepted(f"jwt-{name}", what, a2a=version, body=body, content_type=media_type)
    yield from _http_signatures()
    yield from _standard_webhooks()
    yield from _legacy()


def _jwts() -> Iterator[Vector]:
    for kid in ("es256", "es384", "eddsa", "rs256", "ps256"):
        what = f"signed with {KEYS[kid]['alg']}"
        yield accepted(f"jwt-{kid}", what, kid=kid)
    for kid in ("rs256", "ps256"):
        what = f"one `kid` for two keys: the one for {KEYS[kid]['alg']} verifies (RFC 7517 §4.5)"
        yield accepted(f"jwt-shared-kid-{kid}", what, kid=kid, header={"kid": "shared"})
    yield accepted("jwt-next-key", "the second key of the set", kid="es256-next")
    yield accepted(
        "jwt-alg-ed25519",
        "alg is Ed25519, RFC 9864's name of EdDSA with this key; older libraries do not know it",
        level="may",
        kid="eddsa",
        header={"alg": "Ed25519"},
    )
    yield accepted("jwt-scheme-lower-case", "bearer", scheme="bearer ")
    yield accepted(
        "jwt-in-x-a2a-signature",
        "Authorization has what the client handed out, the JWT is in X-A2A-Signature",
        sender="agent-with-credentials",
        claims={"aud": f"{BASE}/credentials"},
        field="X-A2A-Signature",
        headers=[("Authorization", f"Bearer {CREDENTIALS}")],
    )
    yield accepted("jwt-aud-list", "aud is a list that names us", claims={"aud": [AUDIENCE]})
    yield accepted(
        "jwt-aud-query-registered",
        "the webhook was registered, and is configured, with a query",
        sender="agent-with-query",
        target="/q?tenant=7",
        claims={"aud": f"{BASE}/q?tenant=7"},
    )
    yield accepted(
        "jwt-aud-query-of-request",
        "aud is our URL with exactly the query of the request",
        level="may",
        target="/a2a/push?a=1&b=%20",
        claims={"aud": f"{AUDIENCE}?a=1&b=%20"},
    )
    yield accepted("jwt-iat-300-ago", "at the edge", claims={"iat": NOW - 300, "exp": NOW})
    yield accepted("jwt-iat-300-ahead", "at the edge", claims={"iat": NOW + 300, "exp": NOW + 600})
    yield accepted(
        "jwt-exp-60-ago",
        "expired within the leeway of 60 s",
        level="may",
        claims={"iat": NOW - 120, "exp": NOW - 60},
    )
    yield accepted(
        "jwt-without-task-config-seq",
        "taskId, configId and seq are not required",
        claims={"taskId": None, "configId": None, "seq": None},
    )
    yield accepted("jwt-unknown-claims", "more claims", claims={"sub": "x", "x": {"y": [1]}})
    yield accepted(
        "jwt-white-space-in-body",
        "signed as it is",
        body=json.dumps(json.loads(BODIES["1.0-status"]), indent=2) + "\n",
    )
    for name, stated in (("stated", "1.0"), ("misstated", "0.3"), ("later", "9.9")):
        yield accepted(
            f"jwt-version-{name}",
            f"A2A-Version is {stated}, the body is of 1.0",
            headers=[("A2A-Version", stated)],
        )
    for name, body in (
        ("as-in-1.0", '{"messageUpdate":{"taskId":"task-1","message":{"text":"hi"}}}'),
        ("as-in-0.3", '{"kind":"progress","taskId":"task-1","percent":40}'),
    ):
        yield accepted(
            f"jwt-later-kind-{name}",
            "a kind that no version has: its sender would give up if it were refused",
            a2a=name.removeprefix("as-in-"),
            level="may",
            body=body,
        )
    yield accepted("jwt-without-webhook-id", "the header is not needed", webhook_id="")
    yield accepted(
        "jwt-token-x-a2a-token",
        "the other two spellings of the token's header",
        tokens=[("X-A2A-Token", TOKEN), ("A2A-Notification-Token", TOKEN)],
    )


def _http_signatures() -> Iterator[Vector]:
    http = partial(accepted, by=http_signature_request)
    for kid, alg in (
        ("es256", "ecdsa-p256-sha256"),
        ("es384", "ecdsa-p384-sha384"),
        ("eddsa", "ed25519"),
        ("rs256", "rsa-v1_5-sha256"),
    ):
        yield http(f"http-{kid}", alg, kid=kid, alg=alg)
    covered = "@method @target-uri content-type content-digest webhook-id a2a-version"
    yield http(
        "http-version-covered",
        "A2A-Version, which is covered",
        covers=f"{covered} x-a2a-notification-token",
        extra=[("A2A-Version", "1.0")],
    )


def _standard_webhooks() -> Iterator[Vector]:
    hooks = partial(accepted, by=webhook_request)
    yield hooks("webhooks-v1", "HMAC-SHA256")
    yield hooks("webhooks-v1a", "Ed25519", secrets=[], key="eddsa")
    other = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
    yield hooks(
        "webhooks-two-secrets",
        "a secret is being replaced: one of two entries holds",
        secrets=[other, SECRET],
    )
    yield hooks("webhooks-unknown-version", "passed over", more="v9,AAAA")


def _legacy() -> Iterator[Vector]:
    body = BODIES["0.3-task"]
    in_0_3 = partial(accepted, a2a="0.3", content_type=JSON, body=body)
    weak = partial(in_0_3, by=weak_request)
    yield weak("trpc-raw", "iat and the raw body's hash alone", sender="trpc")
    yield weak("samples-raw", "the same", sender="samples")
    yield weak(
        "samples-reserialised",
        "the hash is over the body written compactly, which is sent with spaces",
        sender="samples",
        sent=json.dumps(json.loads(body)),
    )
    unsigned = partial(accepted, by=plain_request)
    yield unsigned("unsigned-token", "no signature: the token is all there is", sender="unsigned")
    yield in_0_3("unsigned-token-0.3", "the same, A2A 0.3", by=plain_request, sender="unsigned")
    yield unsigned(
        "unsigned-credentials",
        "no signature and, as of the JavaScript SDK, no token: the credentials are all there is",
        sender="unsigned-with-credentials",
        tokens=[],
        headers=[("Authorization", f"Bearer {CREDENTIALS}"), ("webhook-id", DELIVERY)],
    )
