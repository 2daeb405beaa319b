"""How long signatures and keys count: numbers on which both sides rely (wire profile §3 and §4)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

TOKEN_LIFETIME: Final = timedelta(seconds=300)
"""From `iat` to `exp`."""
TOLERANCE: Final = timedelta(seconds=300)
"""How far the time of a signature may be from a receiver's, unless it is configured."""
LONGEST_TOLERANCE: Final = timedelta(days=1)
"""The most that can be configured."""
JWKS_MAX_AGE: Final = timedelta(seconds=300)
"""How long a JWK Set may be cached, unless it is configured or the answer says otherwise."""
LONGEST_JWKS_MAX_AGE: Final = timedelta(days=1)
"""The most that a sender can configure, and that a receiver takes from an answer."""
