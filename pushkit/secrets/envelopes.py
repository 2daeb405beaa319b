"""Bodies at rest: sealed for the database where that is asked for, opened where they are needed.

What is sealed belongs to its delivery: in another delivery's row it cannot be opened. Size limits,
idempotency and signatures are about the bytes inside.
"""

from __future__ import annotations

from typing import Final

from pushkit.errors import ConfigError, SealedSecretError, SecretKeyMissingError
from pushkit.secrets.sealing import SecretKeys, is_sealed

__all__ = ["PLAIN", "Envelopes"]


class Envelopes:
    """Seals and opens.

    Args:
        keys: Without any, what is sealed stays closed.
        seals: Whether new bodies are sealed.

    Raises:
        ConfigError: They are to be sealed, and there are no keys.
    """

    def __init__(self, keys: SecretKeys | None, *, seals: bool = False) -> None:
        if seals and keys is None:
            raise ConfigError(
                "seal_bodies: expected secret keys to seal with, found none: give `secrets`, or set"
                " PUSHKIT_SECRET_KEYS"
            )
        self._keys = keys
        self._seals = seals

    def seal(self, delivery_id: str, body: bytes) -> bytes:
        """Return a body as its row holds it."""
        if self._keys is None or not self._seals:
            return body
        return self._keys.seal(body, _context(delivery_id))

    def open(self, delivery_id: str, stored: bytes) -> bytes:
        """Return the bytes that are sent.

        Raises:
            SealedSecretError: They cannot be opened; the message says why.
        """
        if not is_sealed(stored):
            return stored
        try:
            if self._keys is None:
                raise SecretKeyMissingError(
                    "it is sealed, and there are no secret keys here: set PUSHKIT_SECRET_KEYS"
                )
            return self._keys.open(stored, _context(delivery_id))
        except SealedSecretError as exc:
            raise type(exc)(f"the body of delivery {delivery_id}: {exc}") from exc


PLAIN: Final = Envelopes(None)


def _context(delivery_id: str) -> bytes:
    return b"pushkit delivery\0" + delivery_id.encode("utf-8")
