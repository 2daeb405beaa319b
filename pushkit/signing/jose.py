"""JSON Web Signatures (RFC 7515): compact, and detached from their payload.

This module alone encodes, decodes, signs and verifies them. It accepts only one spelling of a
signature, and no header member that changes its meaning. The key determines the algorithm, not the
header. It does not use PyJWT, which the tests compare it with, and which `pushkit verify` and
`pushkit doctor` ask for a second opinion.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object, write_json
from pushkit.errors import InvalidSignatureError, MalformedJsonError, SigningError
from pushkit.keys.jwk import Algorithm, RemoteKey, SigningKey, VerificationKey
from pushkit.keys.primitives import JOSE, Methods, ecdsa_from_der, sign_bytes, signature_holds

# A header field has at most 8190 bytes; the longest URL with the longest ids takes most of them.
_MAX_COMPACT_CHARS: Final = 8000
_MAX_HEADER_CHARS: Final = 8192
_MAX_SIGNATURE_CHARS: Final = 2048  # RSA with 8192 bits takes 1366

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_STANDARD: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# By the length modulo 4: the padding, and the characters that may be last.
_PADDING: Final = (b"", b"===", b"==", b"=")
_LAST: Final = (_ALPHABET, "", _ALPHABET[::16], _ALPHABET[::4])

_T = TypeVar("_T")


class DetachedJws(NamedTuple):
    """A signature without its payload (RFC 7515 Appendix F): two parts in base64url."""

    protected: str
    signature: str


# --- reading ------------------------------------------------------------------------------------


def read_compact(token: str) -> tuple[bytes, str, bytes, bytes]:
    """Read a compact JWS (RFC 7515 §7.1) without trusting it.

    Returns:
        What the signature is over, the protected header as it is written, the payload, and the
        signature.

    Raises:
        InvalidSignatureError: Not three segments of canonical base64url, too long, or a header that
            is not understood.
    """
    if len(token) > _MAX_COMPACT_CHARS:
        raise InvalidSignatureError(f"the JWT is longer than {_MAX_COMPACT_CHARS} characters")
    segments = token.split(".")
    if len(segments) != 3:
        raise InvalidSignatureError("not a compact JWS: expected three segments of base64url")
    signature = b64url_decode(segments[2], "signature")
    protected_header(segments[0])
    payload = b64url_decode(segments[1], "payload")
    signed = token[: -1 - len(segments[2])].encode("ascii")  # now known to be ASCII
    return signed, segments[0], payload, signature


@lru_cache(maxsize=256)  # all signatures by one key have the same; callers must not change it
def protected_header(segment: str) -> JsonObject:
    """Read a protected header. Nothing in it is proven.

    Raises:
        InvalidSignatureError: Not base64url without padding, not a JSON object without duplicates,
            or a member changes the meaning of the signature.
    """
    if len(segment) > _MAX_HEADER_CHARS:
        raise InvalidSignatureError(f"`protected` is longer than {_MAX_HEADER_CHARS} characters")
    header = read_object(b64url_decode(segment, "protected"), "protected")
    # RFC 7515 §4.1.11: an extension that is critical and not understood invalidates the signature.
    if "crit" in header:
        raise InvalidSignatureError("the header has `crit`: no extension is understood")
    # RFC 7797 §3: `b64` changes what is signed.
    if "b64" in header:
        raise InvalidSignatureError("the header has `b64`, which is not supported")
    return header


def algorithm_of(header: Mapping[str, JsonValue]) -> Algorithm:
    """Return the `alg` that a header claims, for comparison with the key's.

    Raises:
        InvalidSignatureError: `alg` is missing, `none`, symmetric or unknown.
    """
    alg = header.get("alg")
    algorithm = Algorithm.parse(alg) if isinstance(alg, str) else None
    if algorithm is None:
        raise InvalidSignatureError(f"`alg`: expected one of {', '.join(Algorithm)}")
    return algorithm


def media_type(typ: str) -> str:
    """Return a `typ` in lower case, without the optional `application/` (RFC 7515 §4.1.9)."""
    return typ.lower().removeprefix("application/")


def read_object(data: bytes, what: str) -> JsonObject:
    """Read a part of a signature that must be a JSON object.

    Raises:
        InvalidSignatureError: Not a JSON object, or a member is repeated.
    """
    try:
        return read_json_object(data)
    except MalformedJsonError as exc:
        raise InvalidSignatureError(f"`{what}`: {exc}") from exc


def b64url_decode(segment: str, what: str) -> bytes:
    """Decode canonical base64url: a lenient decoder would accept many spellings of a signature.

    Raises:
        InvalidSignatureError: Not canonical, or padded.
    """
    try:
        # `+`, `/` and `=` become `!`: strict mode refuses it, as every other foreign character.
        written = segment.encode("ascii").translate(_STANDARD) + _PADDING[len(segment) % 4]
        data = binascii.a2b_base64(written, strict_mode=True)
    except ValueError as exc:
        raise InvalidSignatureError(f"`{what}` is not base64url without padding") from exc
    # RFC 4648 §3.5: unused bits in the last character would allow sixteen spellings.
    if not segment or segment[-1] not in _LAST[len(segment) % 4]:
        raise InvalidSignatureError(f"`{what}` is not canonical base64url without padding")
    return data


def find_verifying_key(
    jws: DetachedJws, payload: bytes, keys: Iterable[VerificationKey]
) -> VerificationKey | None:
    """Return the first key that verifies a signature over a payload; None if no key does.

    Each key verifies with its own algorithm, whatever the header says.

    Raises:
        InvalidSignatureError: The signature is not base64url without padding.
    """
    if len(jws.signature) > _MAX_SIGNATURE_CHARS:
        raise InvalidSignatureError(f"`signature` is longer than {_MAX_SIGNATURE_CHARS} characters")
    signature = b64url_decode(jws.signature, "signature")
    signed = f"{jws.protected}.{b64url_encode(payload)}".encode("ascii")
    return next((key for key in keys if signature_holds(key, signed, signature)), None)


# --- signing ------------------------------------------------------------------------------------


def b64url_encode(data: bytes) -> str:
    """Write base64url without padding (RFC 7515 §2)."""
    written = binascii.b2a_base64(data, newline=False)
    return written.translate(_URL_SAFE).rstrip(b"=").decode("ascii")


async def sign(data: bytes, key: SigningKey | RemoteKey, methods: Methods = JOSE, /) -> bytes:
    """Return the signature of data, by a key of this process or a remote one.

    A remote key's signature is verified with its public key, so that none goes out that receivers
    would refuse.

    Raises:
        SigningError: The remote key failed, or its signature does not verify.
    """
    if isinstance(key, SigningKey):
        return sign_bytes(key, data, methods)
    import asyncio  # only remote keys need it

    try:
        signature: object = await key.signer.sign(data)
    except (Exception, asyncio.CancelledError) as exc:  # whatever a service's library raises
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise  # this call was cancelled
        # The error's text may hold secrets, so the message has only its type.
        raise SigningError(f"key {key.kid} did not sign: {type(exc).__name__}") from exc
    if not isinstance(signature, bytes):
        raise SigningError(
            f"key {key.kid}: sign() returned {type(signature).__name__}, expected bytes"
        )
    forms, curve = [signature], getattr(key.public.public_key, "curve", None)
    if curve is not None:  # a signature of the right length may still be DER
        with contextlib.suppress(ValueError, OverflowError):
            forms.append(ecdsa_from_der(signature, curve.key_size))
    for form in forms:
        if signature_holds(key.public, data, form, methods):
            return form
    raise SigningError(
        f"key {key.kid}: the signature is invalid under its own public key: it must be over the"
        f" data as they are, with {key.algorithm}"
    )


Sign: TypeAlias = Callable[[bytes, SigningKey | RemoteKey, Methods], Awaitable[bytes]]
"""`sign`, or a substitute, which raises as `sign`."""


async def sign_jwt(
    claims: Mapping[str, JsonValue], key: SigningKey | RemoteKey, sign: Sign = sign
) -> str:
    """Return claims as a signed JWT (RFC 7519) in compact form.

    Raises:
        SigningError: The remote key failed, or its signature does not verify.
    """
    signed = (
        f"{_jwt_header(key.algorithm, key.kid)}.{b64url_encode(write_json(claims, foreign=False))}"
    )
    return f"{signed}.{b64url_encode(await sign(signed.encode('ascii'), key, JOSE))}"


@lru_cache(maxsize=64)  # the same at every attempt
def _jwt_header(algorithm: Algorithm, kid: str) -> str:
    return b64url_encode(write_json({"alg": algorithm.value, "kid": kid, "typ": "JWT"}))


async def sign_detached(
    payload: bytes, header: Mapping[str, JsonValue], key: SigningKey | RemoteKey
) -> DetachedJws:
    """Sign a payload that is not part of the result: the verifier must have the same bytes.

    `header` is added to the protected header after the key's `alg` and `kid`.

    Raises:
        SigningError: The remote key failed, or its signature does not verify.
    """
    protected = b64url_encode(write_json({"alg": key.algorithm.value, "kid": key.kid, **header}))
    signature = await sign(f"{protected}.{b64url_encode(payload)}".encode("ascii"), key)
    return DetachedJws(protected=protected, signature=b64url_encode(signature))


def at_once(signing: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of signing with a key of this process, without an event loop.

    Raises:
        SigningError: The key is a remote one.
    """
    try:
        signing.send(None)
    except StopIteration as done:
        return cast("_T", done.value)
    signing.close()
    raise SigningError(
        "the key is in a service of its own: expected one of this process, or `await`"
    )
