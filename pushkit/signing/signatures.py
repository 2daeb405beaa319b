"""Signatures over bytes in their JOSE form (RFC 7518 §3), by a key that is here or elsewhere."""

from __future__ import annotations

import contextlib
from typing import Final

import jwt

from pushkit.errors import SigningError
from pushkit.keys.jwk import Algorithm, SigningKey
from pushkit.keys.remote import RemoteKey

__all__ = ["sign"]

_jws: Final = jwt.PyJWS(algorithms=[algorithm.value for algorithm in Algorithm])


async def sign(data: bytes, key: SigningKey | RemoteKey) -> bytes:
    """Return the signature of data.

    A remote key's is held against the public key that is published: a signature that nobody could
    verify does not go out.

    Raises:
        SigningError: The remote key did not sign, or not this.
    """
    if isinstance(key, SigningKey):
        here = _jws.get_algorithm_by_name(key.algorithm.value)
        return here.sign(data, key.private_key)
    try:
        signature = await key.signer.sign(data)
    except Exception as exc:  # whatever a service's library raises; its text may hold secrets
        raise SigningError(f"key {key.kid} did not sign: {type(exc).__name__}") from exc
    return _checked(data, signature, key)


def _checked(data: bytes, signature: object, key: RemoteKey) -> bytes:
    if not isinstance(signature, bytes):
        raise SigningError(
            f"key {key.kid}: sign() returned {type(signature).__name__}, expected bytes"
        )
    elsewhere = _jws.get_algorithm_by_name(key.algorithm.value)
    for form in _forms(signature, key):
        if elsewhere.verify(data, key.public.public_key, form):
            return form
    raise SigningError(
        f"key {key.kid}: the signature does not hold under its own public key: it must be over the"
        f" data as they are, with {key.algorithm}"
    )


def _forms(signature: bytes, key: RemoteKey) -> list[bytes]:
    """Return what a signature may mean in JOSE form: of the right length it may be DER still."""
    forms, curve = [signature], getattr(key.public.public_key, "curve", None)
    if curve is None:
        return forms
    with contextlib.suppress(ValueError, OverflowError):  # no DER, or numbers beyond the curve
        forms.append(jwt.utils.der_to_raw_signature(signature, curve))
    return forms
