"""Keys and vectors for tests of signatures, and base64url without the code under test."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

from pushkit.keys.jwk import Algorithm, SigningKey, generate_key

__all__ = ["b64url", "key", "vectors"]


def b64url(data: bytes) -> str:
    """Write base64url without padding (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@cache
def key(algorithm: Algorithm = Algorithm.ES256) -> SigningKey:
    """Return a key, the same one in every test: RSA keys are slow to generate."""
    return generate_key(algorithm)


def vectors(name: str) -> list[dict[str, Any]]:
    """Return the vectors of a file in `tests/vectors`."""
    file = Path(__file__).parent / "vectors" / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(file.read_bytes())["vectors"]
    return found
