"""Builds notifications, and records the evidence in them: what was signed, and with which key.

It uses none of pushkit's signing code except the primitives, so that the evidence is independent of
the code under test.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from pushkit.keys.jwk import Algorithm, SigningKey, public_pem
from pushkit.keys.primitives import HTTP as BY_HTTP
from pushkit.keys.primitives import sign_bytes
from tests.verification.soak.fuzzing.parties import HTTP, JWT, LIFETIME, WEBHOOKS, Party

__all__ = [
    "MARK",
    "NOT_JWT",
    "TOKEN_HEADERS",
    "VERSION",
    "Draft",
    "Evidence",
    "Request",
    "careful_json",
    "sha256",
    "status_body",
]

Json = dict[str, Any]
Fields = list[tuple[str, str]]

MARK = "the-body-is-private"
VERSION = "a2a-version"
TOKEN_HEADERS = ("x-a2a-token", "x-a2a-notification-token", "a2a-notification-token")
ALGORITHM_NAMES = {
    Algorithm.ES256: "ecdsa-p256-sha256",
    Algorithm.ES384: "ecdsa-p384-sha384",
    Algorithm.EDDSA: "ed25519",
    Algorithm.RS256: "rsa-v1_5-sha256",
    Algorithm.PS256: "rsa-pss-sha512",
}
_JOSE = jwt.algorithms.get_default_algorithms()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One signature, and what it says."""

    scheme: str
    text: str  # its text in the request
    by: str  # the `kid` of the key, or the shared secret; empty if it was made without a key
    algorithm: Algorithm | None = None
    # When it was made, in Unix seconds; None if it states no valid time.
    issued: float | None = None
    expires: float | None = None  # when it expires, in Unix seconds; infinite if it does not say
    begins: float | None = 0  # when it begins to be valid; None if that is no valid time
    delivery_id: str | None = None  # the id of the delivery that it states; None if it states none
    digests: frozenset[str] = frozenset()  # the digests of the bodies that it covers
    issuer: object = None  # the issuer that it states
    # The webhooks that it states; None if its scheme has no audience.
    audiences: tuple[object, ...] | None = None
    # For an HTTP message signature, the values of the covered components.
    covers: Mapping[str, str] | None = None
    unreadable: str = ""  # why a strict reader refuses it, whoever signed it; empty otherwise


@dataclass
class Request:
    """The request as it is sent."""

    target: str
    fields: Fields
    body: bytes
    method: str = "POST"
    chunked: bool = False
    wire: Callable[[bytes], bytes] = lambda raw: raw

    def all(self, name: str) -> list[str]:
        return [value.strip(" \t") for key, value in self.fields if key.lower() == name.lower()]

    def drop(self, name: str) -> None:
        self.fields = [one for one in self.fields if one[0].lower() != name.lower()]

    def put(self, name: str, value: str) -> None:
        self.drop(name)
        self.fields.append((name, value))

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass
class Draft:
    """A notification that would be accepted; changes alter it before, or after, it is signed."""

    party: Party  # its sender
    at: int  # when it is signed
    number: str  # a unique number
    task: str
    token: str = ""  # its token; empty for none
    credentials: str = ""  # a static `Authorization`, or `ApiKey …`; empty for none
    body: bytes = b""
    target: str = ""
    url: str = ""
    method: str = "POST"
    fields: Fields = field(default_factory=list)
    key: SigningKey | None = None  # the signing key, by default the party's first one
    secret: str | SigningKey | None = None
    how: str = "key"  # `key`, or a way to sign without it: `hmac`, `none`, `zeros`
    algorithm: Algorithm | None = None
    header: Json = field(default_factory=dict)
    claims: Json = field(default_factory=dict)
    raw_header: bytes | None = None
    raw_payload: Callable[[bytes], bytes] = lambda raw: raw
    spell: Callable[[str], str] = lambda segment: segment
    uncovered: frozenset[str] = frozenset()
    parameters: Json = field(default_factory=dict)
    # The changes to make after signing.
    after: list[Callable[[Request], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        party = self.party
        self.body = self.body or status_body(self.task, self.number)
        self.target, self.url = party.path, party.url
        self.key = party.keys[0] if party.keys else None
        self.secret = party.secret
        self.fields = [("Content-Type", "application/a2a+json"), ("A2A-Version", "1.0")]
        if party.states_ids and party.profile == "standard":
            self.fields.append(("webhook-id", self.number))
            self.fields.append(("webhook-timestamp", str(self.at)))
        if party.id_field and not party.id_field.startswith("/"):
            self.fields.append((party.id_field, self.number))
        for name in TOKEN_HEADERS[:2] if self.token else ():
            self.fields.append((name, self.token))
        scheme, _, value = self.credentials.partition(" ")
        if self.credentials:
            as_key = scheme == "ApiKey"
            self.fields.append(
                ("X-Api-Key", value) if as_key else ("Authorization", self.credentials)
            )

    def put(self, name: str, *values: str) -> None:
        """Set a header field to these values."""
        self.fields = [one for one in self.fields if one[0].lower() != name.lower()]
        self.fields += [(name, value) for value in values]

    def value(self, name: str) -> str | None:
        """Return the value of a field as a signature covers it."""
        found = [value.strip(" \t") for key, value in self.fields if key.lower() == name]
        return ", ".join(found) if found else None

    def finished(self) -> tuple[Request, list[Evidence]]:
        """Sign a draft as its party does, and make the changes that come after signing."""
        made: list[Evidence] = []
        fields = list(self.fields)
        for scheme in self.party.signs:
            new, evidence = _SIGN[scheme](self)
            fields += new
            made.append(evidence)
        request = Request(target=self.target, fields=fields, body=self.body)
        for change in self.after:
            change(request)
        return request, made


def status_body(task: str, number: str, state: str = "TASK_STATE_WORKING") -> bytes:
    """Write a status update, A2A 1.0."""
    metadata = {"note": MARK, "event": number}
    event = {"taskId": task, "contextId": "c", "status": {"state": state}, "metadata": metadata}
    return json.dumps({"statusUpdate": event}).encode()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


# --- the JWT ------------------------------------------------------------------------------------

NOT_JWT = {"crit", "b64"}


def _sign_jwt(draft: Draft) -> tuple[Fields, Evidence]:
    assert draft.key is not None
    # Another change may have put a key in its place that cannot sign by that algorithm.
    of_rsa = isinstance(draft.key.private_key, RSAPrivateKey)
    algorithm = (draft.algorithm if of_rsa else None) or draft.key.algorithm
    header = {"alg": algorithm.value, "kid": draft.key.kid, "typ": "JWT", **draft.header}
    payload = json.dumps(_without_none({**_claims(draft), **draft.claims})).encode()
    parts = (
        json.dumps(_without_none(header)).encode()
        if draft.raw_header is None
        else draft.raw_header,
        draft.raw_payload(payload),
    )
    signed = ".".join(draft.spell(b64url(part)) for part in parts)
    signature = b64url(_jose(draft, algorithm, signed.encode()))
    compact = f"{signed}.{draft.spell(signature)}"
    plain = ".".join([*map(b64url, parts), signature]) == compact
    taken = any(name.lower() == "authorization" for name, _ in draft.fields)
    name, prefix = ("X-A2A-Signature", "") if taken else ("Authorization", "Bearer ")
    return [(name, f"{prefix}{compact}")], _jwt_evidence(
        draft, compact, parts, algorithm, plain=plain
    )


def _jose(draft: Draft, algorithm: Algorithm, data: bytes) -> bytes:
    assert draft.key is not None
    if draft.how == "hmac":  # the public key for a secret: RFC 8725 §2.1
        return hmac.digest(public_pem(draft.key), data, hashlib.sha256)
    if draft.how != "key":
        return b"" if draft.how == "none" else bytes(64)
    return _JOSE[algorithm.value].sign(data, draft.key.private_key)


def _claims(draft: Draft) -> Json:
    claims = {"iat": draft.at, "request_body_sha256": sha256(draft.body)}
    if draft.party.profile != "standard":  # what the first senders state, and no more
        return claims
    return {
        "iss": draft.party.issuer,
        "aud": draft.url,
        "exp": draft.at + LIFETIME,
        "jti": draft.number,
        "taskId": draft.task,
        "configId": "config-1",
        "seq": 1,
        **claims,
    }


def _jwt_evidence(
    draft: Draft,
    compact: str,
    parts: tuple[bytes, bytes],
    algorithm: Algorithm,
    *,
    plain: bool,
) -> Evidence:
    assert draft.key is not None
    by = draft.key.kid if draft.how == "key" else ""
    try:
        header, claims = (careful_json(part) for part in parts)
    except ValueError as exc:
        return Evidence(scheme=JWT, text=compact, by=by, unreadable=f"its JSON: {exc}")
    if not (isinstance(header, dict) and isinstance(claims, dict)):
        return Evidence(scheme=JWT, text=compact, by=by, unreadable="no object")
    digest = claims.get("request_body_sha256")
    audience, jti = claims.get("aud"), claims.get("jti")
    legacy = draft.party.profile != "standard"
    return Evidence(
        scheme=JWT,
        text=compact,
        by=by,
        algorithm=algorithm,
        issued=_time(claims.get("iat")),
        expires=float("inf") if legacy and "exp" not in claims else _time(claims.get("exp")),
        begins=_time(claims.get("nbf", 0)),
        delivery_id=jti if isinstance(jti, str) else None,
        digests=frozenset([digest] if isinstance(digest, str) else []),
        issuer=claims.get("iss"),
        audiences=tuple(audience) if isinstance(audience, list) else (audience,),
        unreadable=_fault_of(header, algorithm) if plain else "another spelling of its base64url",
    )


def _fault_of(header: Json, made: Algorithm) -> str:
    if NOT_JWT & header.keys():
        return "its header has `crit` or `b64`"
    if str(header.get("typ", "JWT")).upper() != "JWT":
        return "its `typ` is not JWT"
    names = (made.value, "Ed25519") if made is Algorithm.EDDSA else (made.value,)
    if header.get("alg") not in names:
        return "its `alg` is not how it was signed"
    return ""


def _time(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 <= value < 1e12 else None  # type: ignore[arg-type,operator]


def careful_json(data: bytes) -> Any:
    """Read JSON that all readers read alike; raises ValueError for any other."""

    def members(pairs: list[tuple[str, object]]) -> Json:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a member twice")
        return dict(pairs)

    def constant(name: str) -> object:
        raise ValueError(name)

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=members, parse_constant=constant)
    except RecursionError as exc:
        raise ValueError("too deep") from exc


# --- HTTP message signatures --------------------------------------------------------------------


def _sign_http(draft: Draft) -> tuple[Fields, Evidence]:
    assert draft.key is not None
    digest = f"sha-256=:{b64encode(hashlib.sha256(draft.body).digest()).decode()}:"
    there = [name for name in (VERSION, *TOKEN_HEADERS) if draft.value(name) is not None]
    names = ["@method", "@target-uri", "content-type", "content-digest", "webhook-id", *there]
    derived = {"@method": draft.method, "@target-uri": draft.url, "content-digest": digest}
    values = {name: derived.get(name) or draft.value(name) for name in names}
    covers = {k: v for k, v in values.items() if v is not None and k not in draft.uncovered}
    parameters = {
        "created": draft.at,
        "expires": draft.at + LIFETIME,
        "nonce": draft.number,
        "keyid": draft.key.kid,
        "alg": ALGORITHM_NAMES[draft.key.algorithm],
        "tag": "a2a-push",
        **draft.parameters,
    }
    written = "".join(f";{k}={_bare(v)}" for k, v in parameters.items() if v is not None)
    stated = "({}){}".format(" ".join(f'"{name}"' for name in covers), written)
    lines = [f'"{name}": {value}' for name, value in covers.items()]
    base = "\n".join([*lines, f'"@signature-params": {stated}']).encode("latin-1")
    made = sign_bytes(draft.key, base, BY_HTTP) if draft.how == "key" else bytes(64)
    signature = b64encode(made).decode()
    fields = [
        ("Content-Digest", digest),
        ("Signature-Input", f"a2a={stated}"),
        ("Signature", f"a2a=:{signature}:"),
    ]
    return fields, Evidence(
        scheme=HTTP,
        text=signature,
        by=draft.key.kid if draft.how == "key" else "",
        algorithm=draft.key.algorithm,
        issued=_time(parameters["created"]),
        expires=_time(parameters["expires"]),
        delivery_id=covers.get("webhook-id"),
        digests=frozenset([sha256(draft.body)] if "content-digest" in covers else []),
        covers=covers,
        unreadable="" if parameters["tag"] == "a2a-push" else "it is not for this",
    )


def _bare(value: object) -> str:
    return str(value) if isinstance(value, int) else f'"{value}"'


# --- Standard Webhooks --------------------------------------------------------------------------


def _sign_webhook(draft: Draft) -> tuple[Fields, Evidence]:
    assert draft.secret is not None
    number, at = draft.value("webhook-id") or "", draft.value("webhook-timestamp") or ""
    content = f"{number}.{at}.".encode("latin-1") + draft.body
    if isinstance(draft.secret, str):
        key = b64decode(draft.secret.removeprefix("whsec_"))
        version, by, made = "v1", draft.secret, hmac.digest(key, content, hashlib.sha256)
    else:
        version, by, made = "v1a", draft.secret.kid, sign_bytes(draft.secret, content)
    text = f"{version},{b64encode(made if draft.how == 'key' else bytes(64)).decode()}"
    return [("webhook-signature", text)], Evidence(
        scheme=WEBHOOKS,
        text=text,
        by=by if draft.how == "key" else "",
        issued=float(at) if at.isdecimal() and at.isascii() else None,
        expires=float("inf"),
        delivery_id=number,
        digests=frozenset([sha256(draft.body)]),
        # If the id contains a dot, the same bytes mean something else with another boundary.
        unreadable="its id has a dot" if "." in number else "",
    )


_SIGN = {JWT: _sign_jwt, HTTP: _sign_http, WEBHOOKS: _sign_webhook}


def b64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _without_none(members: Json) -> Json:
    return {name: value for name, value in members.items() if value is not None}
