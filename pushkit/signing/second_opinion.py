"""PyJWT's word on a notification JWT, for `pushkit verify` and `pushkit doctor`.

It shares no code with `jose.py`, and nothing else asks it: whether a request is accepted, `jose.py`
says alone.
"""

from __future__ import annotations

from pushkit.errors import InvalidSignatureError
from pushkit.keys.jwk import Algorithm, VerificationKey


def ask_pyjwt(token: str, key: VerificationKey) -> None:
    """Hold a JWT against its key once more.

    Raises:
        InvalidSignatureError: PyJWT refuses it.
    """
    import jwt  # nothing else needs it

    jws = jwt.PyJWS(algorithms=[key.algorithm.value])
    names = [key.algorithm.value]
    if key.algorithm is Algorithm.EDDSA:
        names.append("Ed25519")  # RFC 9864's name for it
        jws.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())
    try:
        jws.decode(token, key.public_key, algorithms=names)
    except (jwt.PyJWTError, ValueError) as exc:
        raise InvalidSignatureError(f"it holds here, but PyJWT refuses it: {exc}") from exc
