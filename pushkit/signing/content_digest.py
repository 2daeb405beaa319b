"""Content-Digest (RFC 9530): the hash of a body's bytes, as a header that a signature can cover."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

from pushkit.errors import DigestMismatchError, InvalidSignatureError
from pushkit.signing.structured import byte_sequence, read_dictionary
from pushkit.webhook import Headers

CONTENT_DIGEST = "Content-Digest"

# RFC 9530 §5: the algorithms in its registry that are active. The others are broken or unsuitable.
_HASHES: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "sha-256": lambda body: hashlib.sha256(body).digest(),
    "sha-512": lambda body: hashlib.sha512(body).digest(),
}


def content_digest(body: bytes) -> str:
    """Return the value of Content-Digest for a body: its SHA-256."""
    return f"sha-256={byte_sequence(_HASHES['sha-256'](body))}"


def read_content_digest(headers: Headers) -> dict[str, bytes]:
    """Return the digests of a request by algorithm, `sha-256` and `sha-512` alone.

    Others beside these are passed over (RFC 9530 §2); others alone are refused.

    Raises:
        InvalidSignatureError: No digest by an algorithm that may be trusted.
        MalformedRequestError: Not a dictionary.
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


def check_content_digest(digests: Mapping[str, bytes], body: bytes) -> None:
    """Hold a body against every digest that was stated.

    Raises:
        DigestMismatchError: It is another body.
    """
    for name, digest in digests.items():
        if not hmac.compare_digest(_HASHES[name](body), digest):
            raise DigestMismatchError(f"Content-Digest: {name} is not the body's that was received")
