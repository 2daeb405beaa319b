"""PyJWT's verdict on a notification JWT, for `pushkit verify` and `pushkit doctor`.

It shares no code with `jose.py`, which alone decides whether a request is accepted.
"""

from __future__ import annotations

from pushkit.errors import InvalidSignatureError
from pushkit.keys.jwk import Algorithm, VerificationKey


def ask_pyjwt(token: str, key: VerificationKey) -> None:
    """Verify a JWT with PyJWT.

    Raises:
        InvalidSignatureError: PyJWT refuses it.
    """
    import jwt  # only these commands need it

    jws = jwt.PyJWS(algorithms=[key.algorithm.value])
    names = [key.algorithm.value]
    if key.algorithm is Algorithm.EDDSA:
        names.append("Ed25519")  # RFC 9864's name of the algorithm
        jws.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())
    try:
        jws.decode(token, key.public_key, algorithms=names)
    except (jwt.PyJWTError, ValueError) as exc:
        raise InvalidSignatureError(f"pushkit accepts it, but PyJWT refuses it: {exc}") from exc
