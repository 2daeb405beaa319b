"""HTTP Message Signatures (RFC 9421) over push notifications (wire profile §3).

A signature covers method, URL, content type, Content-Digest (RFC 9530), `webhook-id` and every
token header that is sent. Its tag, `a2a-push`, tells it from signatures that others put on the
request; a signature that covers less than it must is refused, however well it holds.

As with the JWT, the sender must be known before a key can be looked for:

1. `read_unverified_signatures` parses what carries our tag, and says which `keyid` it claims.
2. `verify_http_signature` proves it with the key that the caller trusts for that `keyid`.
3. `times.check_times`, and `check_content_digest` once the body has been read, do the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from pushkit.errors import ConfigError, InvalidSignatureError, PushkitError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey
from pushkit.keys.primitives import HTTP, signature_holds
from pushkit.keys.remote import RemoteKey
from pushkit.record import field, record
from pushkit.signing.content_digest import CONTENT_DIGEST, content_digest, read_content_digest
from pushkit.signing.jose import sign
from pushkit.signing.signature_base import SignedMessage, signature_base
from pushkit.signing.structured import Parameters, byte_sequence, read_dictionary, write_inner_list
from pushkit.signing.times import TOKEN_LIFETIME, read_moment
from pushkit.signing.token import TOKEN_HEADERS
from pushkit.webhook import Headers, WebhookRequest

SIGNATURE_HEADER = "Signature"
SIGNATURE_INPUT_HEADER = "Signature-Input"
TAG = "a2a-push"
LABEL = "a2a"

_COVERED: Final = ("@method", "@target-uri", "content-type", "content-digest", "webhook-id")
_MAX_CANDIDATES = 4  # two keys of a rotation, twice
_MAX_COMPONENTS = 64


@record(frozen=True, slots=True, kw_only=True)
class UnverifiedHttpSignature:
    """One signature with our tag, well-formed. Nothing here is proven."""

    label: str  # which member of `Signature` it is
    keyid: str  # the key that it claims
    algorithm: str | None  # `alg`, if it is stated
    components: tuple[str, ...]  # the names of what it covers, in order
    issued_at: datetime  # `created`
    expires_at: datetime  # `expires`
    parameters: str = field(repr=False)  # the value of `@signature-params`
    signature: bytes = field(repr=False)


@record(frozen=True, slots=True, kw_only=True)
class VerifiedHttpSignature:
    """What a signature that holds proves."""

    keyid: str  # who signed
    delivery_id: str  # `webhook-id`
    issued_at: datetime  # when: `created`
    expires_at: datetime  # until when it is good: `expires`
    # Of the body, by algorithm: to be held against it with `check_content_digest`.
    digests: Mapping[str, bytes] = field(repr=False)


def required_components(headers: Headers) -> tuple[str, ...]:
    """Return what a signature over these headers must cover: the token too, where one is sent.

    Without it, a token could be put on, or taken from, a request that is signed.
    """
    tokens = [name.lower() for name in TOKEN_HEADERS if headers.all(name)]
    return (*_COVERED, *tokens)


# --- signing ------------------------------------------------------------------------------------


async def sign_http_message(
    # What is sent: its target is the absolute URL, normalised; `Content-Type`, `webhook-id` and any
    # token stand in its headers.
    request: WebhookRequest,
    key: SigningKey | RemoteKey,  # what signs, here (see `jose.at_once`) or elsewhere
    *,
    now: datetime,  # the moment of this attempt, aware
    lifetime: timedelta = TOKEN_LIFETIME,  # how long the signature is good; at most 300 s
) -> list[tuple[str, str]]:
    """Return `Content-Digest`, `Signature-Input` and `Signature` for one attempt.

    Raises:
        ConfigError: The request lacks what must be covered, or a header cannot be signed; or a
            remote key for PS256, whose signatures are of another hash here (RFC 9421 §3.3.1).
        SigningError: The remote key did not sign, or not this.
    """
    if isinstance(key, RemoteKey) and key.algorithm is Algorithm.PS256:
        raise ConfigError(
            f"key {key.kid} is for PS256 in a service of its own, and HTTP message signatures want"
            " SHA-512: expected another algorithm"
        )
    digest = (CONTENT_DIGEST, content_digest(request.body))
    headers = Headers([*request.headers, digest])
    components = required_components(headers)
    begins, ends = _static_parameters(components, key.kid, HTTP[key.algorithm].name)
    created = int(now.timestamp())
    expires = created + int(min(lifetime, TOKEN_LIFETIME).total_seconds())
    nonce = secrets.token_urlsafe(16)
    parameters = f'{begins};created={created};expires={expires};nonce="{nonce}"{ends}'
    message = SignedMessage(method=request.method, target_uri=request.target, headers=headers)
    try:
        base = signature_base(message, components, parameters)
    except PushkitError as exc:
        raise ConfigError(f"the request cannot be signed: {exc}") from exc
    return [
        digest,
        (SIGNATURE_INPUT_HEADER, f"{LABEL}={parameters}"),
        (SIGNATURE_HEADER, f"{LABEL}={byte_sequence(await sign(base, key, HTTP))}"),
    ]


@lru_cache(maxsize=256)  # the same at every attempt
def _static_parameters(components: tuple[str, ...], kid: str, alg: str) -> tuple[str, str]:
    """Return how the parameters begin, with what is covered, and how they end."""
    try:
        begins = write_inner_list(([(name, {}) for name in components], {}))
        ends = write_inner_list(([], {"keyid": kid, "alg": alg, "tag": TAG}))
    except ValueError as exc:
        raise ConfigError("keyid: expected printable ASCII") from exc
    return begins, ends.removeprefix("()")


# --- verifying ----------------------------------------------------------------------------------


def read_unverified_signatures(headers: Headers) -> list[UnverifiedHttpSignature]:
    """Read the signatures that carry our tag, without trusting them; none is an empty list.

    Several may stand there, while a key is being replaced. What others signed is passed over.

    Raises:
        InvalidSignatureError: A signature of ours lacks a parameter, or has one of a wrong type.
        MalformedRequestError: The headers are not structured fields, or name a label twice.
    """
    inputs = read_dictionary(headers, SIGNATURE_INPUT_HEADER)
    signatures = read_dictionary(headers, SIGNATURE_HEADER)
    # A token of that name would be equal, too, and is no string.
    tags = {label: member[1].get("tag") for label, member in inputs.items()}
    ours = [label for label, tag in tags.items() if isinstance(tag, str) and tag == TAG]
    if len(ours) > _MAX_CANDIDATES:
        raise InvalidSignatureError(
            f"{len(ours)} signatures with tag {TAG}, expected at most {_MAX_CANDIDATES}"
        )
    return [_read_one(label, inputs[label], signatures.get(label)) for label in ours]


def verify_http_signature(
    unverified: UnverifiedHttpSignature,
    key: VerificationKey,  # the key; its algorithm is the only one that is tried
    *,
    method: str,
    # The URLs that may have been signed: the receiver's own, from its configuration, with the query
    # of the request.
    target_uris: Sequence[str],
    headers: Headers,
    # Which algorithms the sender may use at all.
    algorithms: frozenset[Algorithm] = frozenset(Algorithm),
) -> VerifiedHttpSignature:
    """Prove a signature with the key that is trusted for its `keyid`. The body is not read.

    Raises:
        InvalidSignatureError: It covers too little, is by another algorithm or key, is over another
            request, or has no digest of the body that may be trusted.
        MalformedRequestError: A covered header cannot be read.
    """
    if key.algorithm not in algorithms:
        raise InvalidSignatureError(f"this sender may not sign with {key.algorithm}")
    if unverified.keyid != key.kid:
        raise InvalidSignatureError("`keyid` names another key")
    if unverified.algorithm not in (None, HTTP[key.algorithm].name):
        raise InvalidSignatureError("`alg` is another algorithm than its key has")
    if missing := set(required_components(headers)).difference(unverified.components):
        raise InvalidSignatureError(f"the signature does not cover {', '.join(sorted(missing))}")
    delivery_id = headers.one("webhook-id") or ""
    if not delivery_id or "." in delivery_id:
        raise InvalidSignatureError("webhook-id: expected an id without `.`")
    digests = read_content_digest(headers)
    bases = (
        signature_base(
            SignedMessage(method=method, target_uri=uri, headers=headers),
            unverified.components,
            unverified.parameters,
        )
        for uri in target_uris
    )
    if not any(signature_holds(key, base, unverified.signature, HTTP) for base in bases):
        raise InvalidSignatureError("the HTTP message signature does not hold for this request")
    return VerifiedHttpSignature(
        keyid=key.kid,
        delivery_id=delivery_id,
        issued_at=unverified.issued_at,
        expires_at=unverified.expires_at,
        digests=digests,
    )


# --- parsing ------------------------------------------------------------------------------------


def _read_one(
    label: str, member: tuple[object, Parameters], signature: tuple[object, Parameters] | None
) -> UnverifiedHttpSignature:
    covered, parameters = member
    if signature is None or not isinstance(signature[0], bytes):
        raise InvalidSignatureError("Signature: expected a byte sequence for each signature input")
    if not isinstance(covered, list):
        raise InvalidSignatureError("Signature-Input: expected a list of components")
    created = read_moment(parameters.get("created"), "parameter", "created")
    expires = read_moment(parameters.get("expires"), "parameter", "expires")
    keyid = _text(parameters, "keyid")
    if created is None or expires is None or keyid is None:
        raise InvalidSignatureError("Signature-Input: expected created, expires and keyid")
    return UnverifiedHttpSignature(
        label=label,
        keyid=keyid,
        algorithm=_text(parameters, "alg"),
        components=_components(covered),
        issued_at=created,
        expires_at=expires,
        parameters=write_inner_list((covered, parameters)),
        signature=signature[0],
    )


def _components(covered: Sequence[tuple[object, Parameters]]) -> tuple[str, ...]:
    if len(covered) > _MAX_COMPONENTS:
        raise InvalidSignatureError(
            f"the signature covers {len(covered)} components, expected at most {_MAX_COMPONENTS}"
        )
    if any(parameters for _, parameters in covered):
        raise InvalidSignatureError("a covered component has parameters: not supported")
    names = tuple(name for name, _ in covered if isinstance(name, str))
    if len(names) != len(covered):
        raise InvalidSignatureError("a covered component's name is not a string")
    return names


def _text(parameters: Parameters, name: str) -> str | None:
    value = parameters.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidSignatureError(f"parameter {name}: expected a string")
