"""Secrets that no output may show, and the finding of them however they are written."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Canaries"]


@dataclass
class Canaries:
    """Plants secrets, and says which of them stand somewhere.

    They are random, so that no source line that a traceback shows holds one.
    """

    planted: dict[str, bytes] = field(default_factory=dict)

    def plant(self, name: str, secret: bytes | str | None = None) -> str:
        """Return a new secret, or remember one that was made elsewhere."""
        secret = secret or f"canary{secrets.token_hex(12)}"
        self.planted[name] = secret.encode() if isinstance(secret, str) else secret
        return self.planted[name].decode("latin-1")

    def found_in(self, text: bytes | str) -> set[str]:
        """Return the names of those that stand in a text, plain, in hex or in base64."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        return {
            name
            for name, secret in self.planted.items()
            if any(form in data for form in _forms(secret))
        }


def _forms(secret: bytes) -> Iterable[bytes]:
    yield secret
    yield secret.hex().encode()
    yield repr(secret).encode()[2:-1]
    for shift in range(3):  # base64 looks different at each of three places
        encoded = base64.b64encode(bytes(shift) + secret)[4 if shift else 0 : -4]
        yield encoded
        yield encoded.replace(b"+", b"-").replace(b"/", b"_")
