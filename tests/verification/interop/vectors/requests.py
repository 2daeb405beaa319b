"""Requests that a receiver would accept, of which a vector changes one thing."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.verification.interop.vectors import crypto

__all__ = [
    "AUDIENCE",
    "BODY",
    "CHANGED",
    "ISSUER",
    "NOW",
    "SECRET",
    "SENDERS",
    "TOKEN",
    "claims_of",
    "http_signature_request",
    "jwt_request",
    "plain_request",
    "weak_request",
    "webhook_request",
]

NOW = 1767225600  # 2026-01-01T00:00:00Z
BASE = "https://client.example.com"
PATH = "/a2a/push"
AUDIENCE = BASE + PATH
ISSUER = "https://agent.example.com"
TOKEN = "tok-vectors-4f1d2c9b7a"
CREDENTIALS = "cred-vectors-8c2e6f0d1b"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the example of Standard Webhooks
DELIVERY = "dlv_0123456789abcdef"
KEYS = crypto.keys()
BODY = (
    '{"statusUpdate":{"taskId":"task-1","contextId":"context-1",'
    '"status":{"state":"TASK_STATE_COMPLETED","timestamp":"2026-01-01T00:00:00Z"}}}'
)
CHANGED = BODY.replace("COMPLETED", "FAILED")
A2A_JSON, JSON = "application/a2a+json", "application/json"
Header = tuple[str, str]


def _webhook_key() -> str:
    x = KEYS["eddsa"]["x"]
    return "whpk_" + base64.b64encode(base64.urlsafe_b64decode(x + "=")).decode()


def _sender(name: str, path: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "path": path, "profile": "standard", "schemes": ["jwt"]} | more


_AGENT: dict[str, Any] = {"issuer": ISSUER, "tokens": [TOKEN]}
SENDERS = [
    _sender("agent", PATH, audience=AUDIENCE, **_AGENT),
    _sender("agent-with-query", "/q", audience=f"{BASE}/q?tenant=7", **_AGENT),
    _sender(
        "agent-with-credentials",
        "/credentials",
        audience=f"{BASE}/credentials",
        credentials=[f"Bearer {CREDENTIALS}"],
        **_AGENT,
    ),
    _sender(
        "http",
        "/http",
        audience=f"{BASE}/http",
        **_AGENT | {"schemes": ["http-message-signatures"]},
    ),
    _sender(
        "webhooks",
        "/webhooks",
        tokens=[TOKEN],
        schemes=["standard-webhooks"],
        webhook_secrets=[SECRET, _webhook_key()],
    ),
    _sender("samples", "/samples", profile="a2a-samples"),
    _sender("trpc", "/trpc", profile="trpc-a2a-go"),
    _sender("unsigned", "/unsigned", profile="unsigned-secret-only", tokens=[TOKEN]),
    _sender(
        "unsigned-with-credentials",
        "/unsigned-credentials",
        profile="unsigned-secret-only",
        credentials=[f"Bearer {CREDENTIALS}"],
    ),
]
_PATHS = {sender["name"]: sender["path"] for sender in SENDERS}


def sha256(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def claims_of(body: str = BODY, **changes: Any) -> dict[str, Any]:
    """Return the claims of a genuine notification; None leaves one out."""
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": NOW,
        "exp": NOW + 300,
        "jti": DELIVERY,
        "taskId": "task-1",
        "configId": "config-1",
        "seq": 1,
        "request_body_sha256": sha256(body),
    }
    return {name: value for name, value in (claims | changes).items() if value is not None}


def plain_request(
    *,
    sender: str,
    body: str = BODY,
    method: str = "POST",
    target: str | None = None,
    content_type: str = A2A_JSON,
    tokens: Sequence[Header] = (("X-A2A-Notification-Token", TOKEN),),
    headers: Sequence[Header] = (),
) -> dict[str, Any]:
    """Return a request without a signature."""
    return {
        "sender": sender,
        "method": method,
        "target": _PATHS[sender] if target is None else target,
        "headers": [["Content-Type", content_type], *map(list, tokens), *map(list, headers)],
        "body": body,
    }


def jwt_request(
    *,
    kid: str = "es256",
    key: Mapping[str, Any] | bytes | None = None,
    header: Mapping[str, Any] | None = None,
    claims: Mapping[str, Any] | None = None,
    payload: str | None = None,
    jwt: str | None = None,
    webhook_id: str = DELIVERY,
    body: str = BODY,
    sent: str | None = None,
    sender: str = "agent",
    field: str = "Authorization",
    scheme: str = "Bearer ",
    headers: Sequence[Header] = (),
    **plain: Any,
) -> dict[str, Any]:
    """Return a request with a notification JWT.

    Args:
        kid: The key, and its name in the header.
        key: What signs in its place; `b""` for nothing.
        header: Members of the header that are set; None leaves one out.
        claims: Claims that are set; None leaves one out.
        payload: The payload as it is signed, in place of `claims`.
        jwt: Stands for the JWT.
        webhook_id: The header beside it.
        body: What is signed.
        sent: What is sent in its place.
        sender: Whose.
        field: The header field of the JWT.
        scheme: What stands before it.
        headers: Further ones.
        plain: What else a request has.
    """
    protected = {"alg": KEYS[kid]["alg"], "kid": kid, "typ": "JWT"} | dict(header or {})
    protected = {name: value for name, value in protected.items() if value is not None}
    stated = claims_of(body, **dict(claims or {}))
    written = json.dumps(stated, separators=(",", ":")) if payload is None else payload
    if jwt is None:
        jwt = crypto.compact(protected, written.encode(), KEYS[kid] if key is None else key)
    prefix = scheme if field == "Authorization" else ""
    ids = [("webhook-id", webhook_id), ("webhook-timestamp", str(NOW))] if webhook_id else []
    return plain_request(
        sender=sender,
        body=body if sent is None else sent,
        headers=[*ids, (field, f"{prefix}{jwt}"), *headers],
        **plain,
    )


def weak_request(*, claims: Mapping[str, Any] | None = None, **of_jwt: Any) -> dict[str, Any]:
    """Return a request of a profile that knows no token, no audience and no id."""
    bare = dict.fromkeys(("iss", "aud", "exp", "jti", "taskId", "configId", "seq"))
    claims = bare | dict(claims or {})
    return jwt_request(kid="rs256", claims=claims, tokens=[], webhook_id="", **of_jwt)


def webhook_request(
    *,
    webhook_id: str = DELIVERY,
    signed_id: str | None = None,
    at: str = str(NOW),
    body: str = BODY,
    sent: str | None = None,
    secrets: Sequence[str] = (SECRET,),
    key: str | None = None,
    more: str = "",
    leave_out: str = "",
) -> dict[str, Any]:
    """Return a request signed as Standard Webhooks has it."""
    signed = f"{webhook_id if signed_id is None else signed_id}.{at}.{body}".encode()
    entries = [crypto.standard_webhook(secret, signed) for secret in secrets]
    if key is not None:
        entries.append(crypto.standard_webhook("", signed, KEYS[key]))
    fields = [
        ("webhook-id", webhook_id),
        ("webhook-timestamp", at),
        ("webhook-signature", " ".join([*entries, *([more] if more else [])])),
    ]
    return plain_request(
        sender="webhooks",
        body=body if sent is None else sent,
        headers=[one for one in fields if one[0] != leave_out],
    )


def http_signature_request(
    *,
    kid: str = "es256",
    signer: str | None = None,
    alg: str = "ecdsa-p256-sha256",
    covers: str = "@method @target-uri content-type content-digest webhook-id"
    " x-a2a-notification-token",
    uri: str = f"{BASE}/http",
    created: int = NOW,
    expires: int | None = NOW + 300,
    tag: str = "a2a-push",
    body: str = BODY,
    sent: str | None = None,
    digest_of: str | None = None,
    content_type_sent: str = A2A_JSON,
    extra: Sequence[Header] = (),
) -> dict[str, Any]:
    """Return a request signed as RFC 9421 has it, over a Content-Digest of RFC 9530."""
    digest = hashlib.sha256((body if digest_of is None else digest_of).encode()).digest()
    fields = {
        "content-type": A2A_JSON,
        "content-digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        "webhook-id": DELIVERY,
        "x-a2a-notification-token": TOKEN,
        "a2a-version": "1.0",
        "@method": "POST",
        "@target-uri": uri,
    }
    names = covers.split()
    parameters = "(" + " ".join(f'"{name}"' for name in names) + f");created={created}"
    parameters += "" if expires is None else f";expires={expires}"
    parameters += f';nonce="vectors";keyid="{kid}";alg="{alg}";tag="{tag}"'
    lines = [f'"{name}": {fields[name]}' for name in names]
    base = "\n".join([*lines, f'"@signature-params": {parameters}'])
    signature = base64.b64encode(crypto.sign(base.encode(), KEYS[signer or kid])).decode()
    return plain_request(
        sender="http",
        body=body if sent is None else sent,
        content_type=content_type_sent,
        headers=[
            ("webhook-id", DELIVERY),
            ("webhook-timestamp", str(created)),
            ("Content-Digest", fields["content-digest"]),
            ("Signature-Input", f"a2a={parameters}"),
            ("Signature", f"a2a=:{signature}:"),
            *extra,
        ],
    )
