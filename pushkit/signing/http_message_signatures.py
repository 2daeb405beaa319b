"""HTTP Message Signatures (RFC 9421) over push notifications (wire profile §3).

A signature covers method, URL, content type, Content-Digest (RFC 9530), `webhook-id`, and the
`A2A-Version` and every token header that are sent. Its tag, `a2a-push`, distinguishes it from
signatures that others put on the request. A valid signature that covers less is refused.

As with the JWT, the receiver must know the sender before it can look for a key:

1. `read_unverified_signatures` parses the signatures with the tag; each claims a `keyid`.
2. `verify_http_signature` proves one with the key that the caller trusts for that `keyid`.
3. `scheme.check_times` checks its times, and `check_content_digest` the body once it was read.

The text that is signed, the signature base (§2.5), has header fields, with their lines combined,
and the derived components of a request. Components with parameters (`sf`, `key`, `bs`, `req`, `tr`,
`name`) are not supported: notifications need none, and each is another way to read a field.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from pushkit.clock import TOKEN_LIFETIME
from pushkit.errors import (
    ConfigError,
    DigestMismatchError,
    InvalidSignatureError,
    InvalidUrlError,
    MalformedRequestError,
    PushkitError,
)
from pushkit.keys.jwk import Algorithm, RemoteKey, SigningKey, VerificationKey
from pushkit.keys.primitives import HTTP, signature_holds
from pushkit.record import field, record
from pushkit.signing.jose import Sign, sign
from pushkit.signing.scheme import read_moment
from pushkit.url import Url
from pushkit.webhook import A2A_VERSION, TOKEN_HEADERS, Headers, WebhookRequest

if TYPE_CHECKING:
    import http_sf

SIGNATURE_HEADER = "Signature"
SIGNATURE_INPUT_HEADER = "Signature-Input"
CONTENT_DIGEST = "Content-Digest"
TAG = "a2a-push"
LABEL = "a2a"

_COVERED: Final = ("@method", "@target-uri", "content-type", "content-digest", "webhook-id")
_MAX_CANDIDATES = 4  # a rotation needs two
_MAX_COMPONENTS = 64
_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 §5.1, in lower case
_MAX_FIELD_CHARS = 4096  # parsing takes almost a microsecond a character

# The active algorithms in RFC 9530's registry (§5). The others are broken or unsuitable.
_HASHES: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "sha-256": lambda body: hashlib.sha256(body).digest(),
    "sha-512": lambda body: hashlib.sha512(body).digest(),
}

Parameters: TypeAlias = Mapping[str, object]


@record(frozen=True, slots=True, kw_only=True)
class UnverifiedHttpSignature:
    """One well-formed signature with the tag `a2a-push`. Nothing in it is proven."""

    keyid: str  # the key that it claims
    algorithm: str | None  # `alg`, if stated
    components: tuple[str, ...]  # the names of the covered components, in order
    issued_at: datetime  # `created`
    expires_at: datetime  # `expires`
    parameters: str = field(repr=False)  # the value of `@signature-params`
    signature: bytes = field(repr=False)


@record(frozen=True, slots=True, kw_only=True)
class VerifiedHttpSignature:
    """What a valid signature proves."""

    keyid: str  # the key that signed
    delivery_id: str  # `webhook-id`
    issued_at: datetime  # `created`
    expires_at: datetime  # `expires`
    digests: Mapping[str, bytes] = field(repr=False)  # by algorithm, for `check_content_digest`
    length: str | None = None  # `Content-Length`, if that is signed


def required_components(headers: Headers) -> tuple[str, ...]:
    """Return the components that a signature must cover, of the version and tokens those present.

    Otherwise they could be added to a signed request, or removed from it.
    """
    present = [name.lower() for name in (A2A_VERSION, *TOKEN_HEADERS) if headers.all(name)]
    return (*_COVERED, *present)


# --- signing ------------------------------------------------------------------------------------


async def sign_http_message(
    # The request to send. Its target is the absolute URL, normalised; its headers include
    # `Content-Type`, `webhook-id` and the token, if any.
    request: WebhookRequest,
    key: SigningKey | RemoteKey,  # see `jose.at_once` for a key of this process
    *,
    now: datetime,  # the time of this attempt, aware
    sign: Sign = sign,
) -> list[tuple[str, str]]:
    """Return `Content-Digest`, `Signature-Input` and `Signature` for one attempt.

    Raises:
        ConfigError: The request lacks a required component, a header cannot be signed, or the key
            is a remote one for PS256, which has another hash here (RFC 9421 §3.3.1).
        SigningError: The remote key failed, or its signature does not verify.
    """
    if isinstance(key, RemoteKey) and key.algorithm is Algorithm.PS256:
        raise ConfigError(
            f"key {key.kid}: remote keys sign PS256 with SHA-256, and HTTP message signatures need"
            " SHA-512: expected another algorithm"
        )
    digest = (CONTENT_DIGEST, content_digest(request.body))
    headers = Headers([*request.headers, digest])
    components = required_components(headers)
    begins, ends = _static_parameters(components, key.kid, HTTP[key.algorithm].name)
    created = int(now.timestamp())
    expires = created + int(TOKEN_LIFETIME.total_seconds())
    nonce = secrets.token_urlsafe(16)
    parameters = f'{begins};created={created};expires={expires};nonce="{nonce}"{ends}'
    try:
        base = signature_base(request.method, request.target, headers, components, parameters)
    except PushkitError as exc:
        raise ConfigError(f"the request cannot be signed: {exc}") from exc
    return [
        digest,
        (SIGNATURE_INPUT_HEADER, f"{LABEL}={parameters}"),
        (SIGNATURE_HEADER, f"{LABEL}={byte_sequence(await sign(base, key, HTTP))}"),
    ]


@lru_cache(maxsize=256)  # the same at every attempt
def _static_parameters(components: tuple[str, ...], kid: str, alg: str) -> tuple[str, str]:
    """Return the beginning of the parameters, with the covered components, and their end."""
    try:
        begins = write_inner_list(([(name, {}) for name in components], {}))
        ends = write_inner_list(([], {"keyid": kid, "alg": alg, "tag": TAG}))
    except ValueError as exc:
        raise ConfigError("keyid: expected printable ASCII") from exc
    return begins, ends.removeprefix("()")


# --- verifying ----------------------------------------------------------------------------------


def read_unverified_signatures(headers: Headers) -> list[UnverifiedHttpSignature]:
    """Read the signatures with the tag `a2a-push`, without trusting them.

    There are several while a key is being replaced. Signatures with another tag are ignored.

    Raises:
        InvalidSignatureError: A signature with the tag lacks a parameter, or has one of a wrong
            type; or there are more than 4.
        MalformedRequestError: The headers are not structured fields, or name a label twice.
    """
    inputs = read_dictionary(headers, SIGNATURE_INPUT_HEADER)
    signatures = read_dictionary(headers, SIGNATURE_HEADER)
    # A structured-field token would compare equal, too, but is not a string.
    tags = {label: member[1].get("tag") for label, member in inputs.items()}
    ours = [label for label, tag in tags.items() if isinstance(tag, str) and tag == TAG]
    if len(ours) > _MAX_CANDIDATES:
        raise InvalidSignatureError(
            f"{len(ours)} signatures with tag {TAG}, expected at most {_MAX_CANDIDATES}"
        )
    return [_read_one(inputs[label], signatures.get(label)) for label in ours]


def verify_http_signature(
    unverified: UnverifiedHttpSignature,
    key: VerificationKey,  # only its own algorithm is tried
    *,
    method: str,
    # The receiver's own URLs from its configuration, with the query of the request. Any may be the
    # signed one.
    target_uris: Sequence[str],
    headers: Headers,
    # The algorithms that the sender may use.
    algorithms: frozenset[Algorithm] = frozenset(Algorithm),
) -> VerifiedHttpSignature:
    """Prove a signature with the key that is trusted for its `keyid`. The body is not read.

    Raises:
        InvalidSignatureError: The signature covers too little, is by another algorithm or key or
            for another request, or the digest's algorithm may not be trusted.
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
        signature_base(method, uri, headers, unverified.components, unverified.parameters)
        for uri in target_uris
    )
    if not any(signature_holds(key, base, unverified.signature, HTTP) for base in bases):
        raise InvalidSignatureError("the HTTP message signature is invalid for this request")
    return VerifiedHttpSignature(
        keyid=key.kid,
        delivery_id=delivery_id,
        issued_at=unverified.issued_at,
        expires_at=unverified.expires_at,
        digests=digests,
        length=headers.one("content-length") if "content-length" in unverified.components else None,
    )


# --- parsing ------------------------------------------------------------------------------------


def _read_one(
    member: tuple[object, Parameters], signature: tuple[object, Parameters] | None
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


# --- the signature base (RFC 9421 §2.5) ---------------------------------------------------------


def _url(target_uri: str) -> Url:
    try:
        return Url.parse(target_uri.partition("?")[0])  # the query may have any spelling
    except InvalidUrlError as exc:
        raise InvalidSignatureError(f"a covered component is a part of the URL: {exc}") from exc


def _query(target_uri: str) -> str:
    return target_uri.partition("?")[2]


# RFC 9421 §2.2, from the method and the target URI.
_DERIVED: Final[Mapping[str, Callable[[str, str], str]]] = {
    "@method": lambda method, _: method,
    "@target-uri": lambda _, uri: uri,
    "@authority": lambda _, uri: _url(uri).authority,
    "@scheme": lambda _, uri: _url(uri).scheme,
    "@request-target": lambda _, uri: f"{_url(uri).target}?{_query(uri)}".removesuffix("?"),
    "@path": lambda _, uri: _url(uri).target,
    "@query": lambda _, uri: f"?{_query(uri)}",
}


def signature_base(
    method: str,  # as in the request line
    # The absolute URL. A receiver takes it from its configuration, never from `Host`.
    target_uri: str,
    headers: Headers,
    components: Sequence[str],  # in the order of the signature
    parameters: str,  # the value of `@signature-params`: the signed components and parameters
) -> bytes:
    """Return the signature base over some components of a request.

    Raises:
        InvalidSignatureError: A component is repeated, unknown, not in lower case, or absent.
        MalformedRequestError: A value cannot be signed.
    """
    if len(set(components)) != len(components):
        raise InvalidSignatureError("the signature covers a component twice")
    lines: list[str] = []
    for name in components:
        derive = _DERIVED.get(name)
        value = derive(method, target_uri) if derive else _field_value(headers, name)
        if derive and not (value.isascii() and value.isprintable()):
            raise InvalidSignatureError(f"{name}: expected visible ASCII")
        lines.append(f'"{name}": {value}')
    # RFC 9421 §2.5: the signature base ends without a newline.
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode("ascii")


def _field_value(headers: Headers, name: str) -> str:
    if name.startswith("@"):
        raise InvalidSignatureError(f"the signature covers {name[:40]}, which is not supported")
    if not _FIELD_NAME.fullmatch(name):
        raise InvalidSignatureError("a covered component is not a field name in lower case")
    value = headers.combined(name)
    if value is None:
        raise InvalidSignatureError(
            f"the signature covers {name[:40]}, which is not in the request"
        )
    return value


# --- Content-Digest (RFC 9530): a body's hash, in a header that the signature covers -------------


def content_digest(body: bytes) -> str:
    """Return the value of Content-Digest for a body: its SHA-256."""
    return f"sha-256={byte_sequence(_HASHES['sha-256'](body))}"


def read_content_digest(headers: Headers) -> dict[str, bytes]:
    """Return the digests of a request by algorithm, only `sha-256` and `sha-512`.

    Further algorithms are ignored (RFC 9530 §2).

    Raises:
        InvalidSignatureError: There is no digest by `sha-256` or `sha-512`.
        MalformedRequestError: The header is not a dictionary.
    """
    found: dict[str, bytes] = {}
    for name, (digest, _) in read_dictionary(headers, CONTENT_DIGEST).items():
        if name in _HASHES:
            if not isinstance(digest, bytes):
                raise InvalidSignatureError(f"Content-Digest: {name}: expected a byte sequence")
            found[name] = digest
    if not found:
        raise InvalidSignatureError("Content-Digest: expected sha-256 or sha-512")
    return found


def check_content_digest(
    digests: Mapping[str, bytes], body: bytes, *, length: str | None = None
) -> None:
    """Compare a body with every stated digest; `length` is its Content-Length, if that is signed.

    Raises:
        DigestMismatchError: The digest is of another body.
    """
    for name, digest in digests.items():
        if not hmac.compare_digest(_HASHES[name](body), digest):
            raise DigestMismatchError(
                f"Content-Digest: {name} is not the hash of the body received, of {len(body)} bytes"
                + ("" if length is None else f"; signed are {length}")
            )


# --- structured fields (RFC 9651) ----------------------------------------------------------------


def read_dictionary(headers: Headers, name: str) -> dict[str, tuple[object, Parameters]]:
    """Read a dictionary field: each member with its parameters; empty if the field is absent.

    RFC 9651 §4.2.2 uses the last of two equal keys. This function refuses them, because two readers
    could understand the same request differently.

    Raises:
        MalformedRequestError: Not a dictionary, one of over 4096 characters, or a key or parameter
            is repeated.
    """
    value = headers.combined(name)
    if value is None:
        return {}
    if len(value) > _MAX_FIELD_CHARS:
        raise MalformedRequestError(
            f"header {name}: found {len(value)} characters, expected at most {_MAX_FIELD_CHARS}"
        )
    import http_sf  # takes 25 ms, and only this scheme needs it

    try:
        parsed = http_sf.parse(
            value.encode("ascii"), tltype="dictionary", on_duplicate_key=_refuse_duplicate
        )
    except ValueError as exc:
        raise MalformedRequestError(
            f"header {name}: not a structured dictionary without duplicates"
        ) from exc
    return cast("dict[str, tuple[object, Parameters]]", parsed)


def write_inner_list(inner_list: tuple[list[tuple[object, Parameters]], Parameters]) -> str:
    """Serialize an inner list with its parameters (RFC 9651 §4.1.1.1)."""
    import http_sf

    return http_sf.ser(cast("http_sf.StructuredType", [inner_list]))


def byte_sequence(data: bytes) -> str:
    """Serialize bytes (RFC 9651 §4.1.8)."""
    return f":{base64.b64encode(data).decode('ascii')}:"


def _refuse_duplicate(key: str, context: str) -> None:
    raise ValueError(f"{context} {key} twice")
