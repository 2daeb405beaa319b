"""JSON Web Signatures (RFC 7515): compact, and detached from a payload that travels elsewhere.

The one place that encodes, decodes, signs and verifies them. A signature that is read has one
spelling only, and a header that means what it says; the algorithm is the key's, never the header's
choice. PyJWT does none of this here: it is what the tests hold it against, and the second opinion
of `pushkit verify` and `pushkit doctor`.
"""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Coroutine, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object, write_json
from pushkit.errors import InvalidSignatureError, MalformedJsonError, SigningError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey
from pushkit.keys.primitives import JOSE, Methods, ecdsa_from_der, sign_bytes, signature_holds

if TYPE_CHECKING:
    from pushkit.keys.remote import RemoteKey

# A header field has 8190 bytes at most; the longest URL with the longest ids takes most of them.
_MAX_COMPACT_CHARS: Final = 8000
_MAX_HEADER_CHARS: Final = 8192
_MAX_SIGNATURE_CHARS: Final = 2048  # RSA of 8192 bits takes 1366


_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_STANDARD: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# Of a length: what pads it, and which characters may stand last.
_PADDING: Final = (b"", b"===", b"==", b"=")
_LAST: Final = (_ALPHABET, "", _ALPHABET[::16], _ALPHABET[::4])

_T = TypeVar("_T")


class CompactJws(NamedTuple):
    """A signature with its payload (RFC 7515 §7.1), well-formed. Nothing here is proven."""

    header: JsonObject
    payload: bytes
    signature: bytes
    signed: bytes  # what the signature is over

    def __repr__(self) -> str:
        """Show nothing of what is signed."""
        return f"CompactJws(header={self.header!r})"


class DetachedJws(NamedTuple):
    """The two parts that travel without the payload (RFC 7515 Appendix F), base64url."""

    protected: str
    signature: str


# --- reading ------------------------------------------------------------------------------------


def read_compact(token: str) -> CompactJws:
    """Read a compact JWS without trusting it.

    Raises:
        InvalidSignatureError: Not three segments of base64url in its one spelling, too long, or
            with a header that is not understood.
    """
    if len(token) > _MAX_COMPACT_CHARS:
        raise InvalidSignatureError(f"the JWT is longer than {_MAX_COMPACT_CHARS} characters")
    segments = token.split(".")
    if len(segments) != 3:
        raise InvalidSignatureError("not a compact JWS: expected three segments of base64url")
    signature = decoded(segments[2], "signature")
    header = protected_header(segments[0])
    return CompactJws(
        header=header,
        payload=decoded(segments[1], "payload"),
        signature=signature,
        signed=token.rpartition(".")[0].encode("ascii"),
    )


@lru_cache(maxsize=256)  # a key's is the same in all that it signs; nobody changes it
def protected_header(segment: str) -> JsonObject:
    """Read a protected header; nothing in it is proven.

    Raises:
        InvalidSignatureError: Not base64url without padding, no JSON object without duplicates, or
            with a member that changes what the signature means.
    """
    if len(segment) > _MAX_HEADER_CHARS:
        raise InvalidSignatureError(f"`protected` is longer than {_MAX_HEADER_CHARS} characters")
    header = read_object(decoded(segment, "protected"), "protected")
    # RFC 7515 §4.1.11: an extension that must be understood and is not, refuses the signature.
    if "crit" in header:
        raise InvalidSignatureError("the header has `crit`: no extension is understood")
    # RFC 7797 §3: `b64` changes what is signed.
    if "b64" in header:
        raise InvalidSignatureError("the header has `b64`, which is not supported")
    return header


def algorithm_of(header: Mapping[str, JsonValue]) -> Algorithm:
    """Return the `alg` of a header: what it claims, to be held against the key's own.

    Raises:
        InvalidSignatureError: It is missing, `none`, symmetric or unknown.
    """
    alg = header.get("alg")
    algorithm = Algorithm.parse(alg) if isinstance(alg, str) else None
    if algorithm is None:
        raise InvalidSignatureError(f"`alg`: expected one of {', '.join(Algorithm)}")
    return algorithm


def media_type(typ: str) -> str:
    """Return a `typ` in lower case, and without the `application/` that may be left out."""
    return typ.lower().removeprefix("application/")  # RFC 7515 §4.1.9


def read_object(data: bytes, what: str) -> JsonObject:
    """Read a part of a signature that has to be a JSON object.

    Raises:
        InvalidSignatureError: It is none, or has a member twice.
    """
    try:
        return read_json_object(data)
    except MalformedJsonError as exc:
        raise InvalidSignatureError(f"`{what}`: {exc}") from exc


def decoded(segment: str, what: str) -> bytes:
    """Decode base64url in its one spelling: a lenient decoder gives one signature many.

    Raises:
        InvalidSignatureError: Anything else.
    """
    try:
        # Whatever is not of this alphabet is of none: the decoder refuses it.
        written = segment.encode("ascii").translate(_STANDARD) + _PADDING[len(segment) % 4]
        data = binascii.a2b_base64(written, strict_mode=True)
    except ValueError as exc:
        raise InvalidSignatureError(f"`{what}` is not base64url without padding") from exc
    # RFC 4648 §3.5: bits left over in the last character would spell one signature sixteen ways.
    if not segment or segment[-1] not in _LAST[len(segment) % 4]:
        raise InvalidSignatureError(f"`{what}` is not canonical base64url without padding")
    return data


def holding_key(
    jws: DetachedJws, payload: bytes, keys: Iterable[VerificationKey]
) -> VerificationKey | None:
    """Return the first key under which a signature over a payload holds; None if none.

    Each key verifies with its own algorithm, whatever the header says.

    Raises:
        InvalidSignatureError: The signature is not base64url without padding.
    """
    if len(jws.signature) > _MAX_SIGNATURE_CHARS:
        raise InvalidSignatureError(f"`signature` is longer than {_MAX_SIGNATURE_CHARS} characters")
    signature = decoded(jws.signature, "signature")
    signed = f"{jws.protected}.{encoded(payload)}".encode("ascii")
    return next((key for key in keys if signature_holds(key, signed, signature)), None)


# --- signing ------------------------------------------------------------------------------------


def encoded(data: bytes) -> str:
    """Write base64url without padding (RFC 7515 §2)."""
    written = binascii.b2a_base64(data, newline=False)
    return written.translate(_URL_SAFE).rstrip(b"=").decode("ascii")


async def sign_jwt(claims: Mapping[str, JsonValue], key: SigningKey | RemoteKey) -> str:
    """Return claims as a signed JWT (RFC 7519) in compact form.

    Raises:
        SigningError: The remote key did not sign, or not this.
    """
    signed = f"{_jwt_header(key.algorithm, key.kid)}.{encoded(write_json(claims, foreign=False))}"
    data = signed.encode("ascii")
    signature = sign_bytes(key, data) if isinstance(key, SigningKey) else await sign(data, key)
    return f"{signed}.{encoded(signature)}"


@lru_cache(maxsize=64)  # the same at every attempt
def _jwt_header(algorithm: Algorithm, kid: str) -> str:
    return encoded(write_json({"alg": algorithm.value, "kid": kid, "typ": "JWT"}))


async def sign_detached(
    payload: bytes, header: Mapping[str, JsonValue], key: SigningKey | RemoteKey
) -> DetachedJws:
    """Sign a payload that travels elsewhere: the verifier has to come by the very same bytes.

    `header` is the protected one, besides `alg` and `kid`, which are the key's.

    Raises:
        SigningError: The remote key did not sign, or not this.
    """
    protected = encoded(write_json({"alg": key.algorithm.value, "kid": key.kid, **header}))
    signature = await sign(f"{protected}.{encoded(payload)}".encode("ascii"), key)
    return DetachedJws(protected=protected, signature=encoded(signature))


def at_once(signing: Coroutine[Any, Any, _T]) -> _T:
    """Return what signing with a key of this process comes to, which has nothing to wait for.

    Raises:
        SigningError: The key is elsewhere.
    """
    try:
        signing.send(None)
    except StopIteration as done:
        return cast("_T", done.value)
    signing.close()
    raise SigningError("the key is in a service of its own: expected one here, or to be awaited")


async def sign(data: bytes, key: SigningKey | RemoteKey, methods: Methods = JOSE) -> bytes:
    """Return the signature of data, by a key that is here or elsewhere.

    A remote key's is held against the public key that is published: a signature that nobody could
    verify does not go out.

    Raises:
        SigningError: The remote key did not sign, or not this.
    """
    if isinstance(key, SigningKey):
        return sign_bytes(key, data, methods)
    import asyncio  # who verifies, or signs with a key that is here, does without

    try:
        signature: object = await key.signer.sign(data)
    except (Exception, asyncio.CancelledError) as exc:  # whatever a service's library raises
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise  # it is this call that was cancelled
        # Without its text, which may hold secrets.
        raise SigningError(f"key {key.kid} did not sign: {type(exc).__name__}") from exc
    if not isinstance(signature, bytes):
        raise SigningError(
            f"key {key.kid}: sign() returned {type(signature).__name__}, expected bytes"
        )
    forms, curve = [signature], getattr(key.public.public_key, "curve", None)
    if curve is not None:  # of the right length it may be DER still
        with contextlib.suppress(ValueError, OverflowError):
            forms.append(ecdsa_from_der(signature, curve.key_size))
    for form in forms:
        if signature_holds(key.public, data, form, methods):
            return form
    raise SigningError(
        f"key {key.kid}: the signature does not hold under its own public key: it must be over the"
        f" data as they are, with {key.algorithm}"
    )
