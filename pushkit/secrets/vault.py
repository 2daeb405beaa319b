"""Secrets as they lie in the database: sealed where there are keys, opened where they are needed.

What is sealed belongs to its row. A ciphertext that is moved to another row, or beside which
somebody wrote another URL, cannot be opened. Size limits, idempotency and signatures are about the
bytes inside.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Final

from pushkit.errors import ConfigError, SealedSecretError, SecretKeyMissingError
from pushkit.record import record
from pushkit.secrets.sealing import SEALED, SEALED_HEAD_BYTES, SecretKeys, is_sealed

# A blank begins no token and no credentials (`PushConfig` sees to that): nobody can register a text
# that is taken for a sealed one.
_TEXT: Final = " sealed:"


@record(frozen=True, slots=True, kw_only=True)
class SecretColumn:
    """A column that holds secrets, sealed or plain."""

    table: str  # its table, whose rows have an `id`
    name: str
    row: str  # what a row is, for messages
    belongs_to: tuple[str, ...]  # the columns that a secret is bound to
    is_text: bool  # whether it holds text, or bytes
    besides: str = ""  # what else is set when it is written, in SQL

    def pack(self, sealed: bytes) -> str | bytes:
        """Return a sealed value, or the beginning of one, as the column holds it."""
        return _TEXT + base64.b64encode(sealed).decode("ascii") if self.is_text else sealed

    def unpack(self, stored: str | bytes) -> bytes:
        """Return what the column holds as it was sealed, or as it is if it was not.

        Raises:
            SealedSecretError: It looks like a sealed value, and is none.
        """
        if not isinstance(stored, str):
            return bytes(stored)
        try:
            if stored.startswith(_TEXT):
                return base64.b64decode(stored.removeprefix(_TEXT), validate=True)
            return stored.encode("ascii")
        except (binascii.Error, ValueError) as exc:
            raise SealedSecretError("not a sealed secret any more") from exc

    def is_sealed(self, stored: str | bytes) -> bool:
        """Say whether a value is sealed."""
        return stored.startswith(_TEXT) if isinstance(stored, str) else is_sealed(stored)

    @property
    def mark(self) -> str | bytes:
        """How each sealed value begins."""
        return _TEXT if self.is_text else SEALED

    @property
    def head_length(self) -> int:
        """How far a sealed value goes that tells its key."""
        return len(self.pack(bytes(SEALED_HEAD_BYTES)))  # whole characters: 12 bytes are 16 of them

    def context(self, belongs_to: Sequence[str]) -> bytes:
        """Return what a secret belongs to, unambiguously."""
        if self.is_text:
            return json.dumps([f"pushkit {self.row}", self.name, *belongs_to]).encode("ascii")
        return f"pushkit {self.row}\0{''.join(belongs_to)}".encode()


TOKEN, CREDENTIALS = (
    SecretColumn(
        table="pushkit_subscriptions",
        name=name,
        row="subscription",
        belongs_to=("tenant", "task_id", "owner", "config_id", "url"),
        is_text=True,
        besides=", revision = revision + 1",  # whoever remembers what it opened opens it anew
    )
    for name in ("token", "credentials")
)
BODY: Final = SecretColumn(
    table="pushkit_bodies", name="body", row="delivery", belongs_to=("id",), is_text=False
)


class Vault:
    """Seals and opens.

    Args:
        keys: Without any, secrets are stored as they are, and what is sealed stays closed.
        seals_bodies: Whether bodies are sealed, too.

    Raises:
        ConfigError: Bodies are to be sealed, and there are no keys.
    """

    def __init__(self, keys: SecretKeys | None = None, *, seals_bodies: bool = False) -> None:
        if seals_bodies and keys is None:
            raise ConfigError(
                "seal_bodies: expected secret keys to seal with, found none: give `secrets`, or set"
                " PUSHKIT_SECRET_KEYS"
            )
        self._keys = keys
        self._seals_bodies = seals_bodies

    def seal_text(
        self, column: SecretColumn, plain: str | None, belongs_to: Sequence[str]
    ) -> str | None:
        """Return a token or credentials as their row holds them."""
        if plain is None or self._keys is None:
            return plain
        sealed = self._keys.seal(plain.encode("ascii"), column.context(belongs_to))
        return str(column.pack(sealed))

    def open_text(
        self, column: SecretColumn, row_id: str, stored: str | None, belongs_to: Sequence[str]
    ) -> str | None:
        """Return a token or credentials as they are sent.

        Raises:
            SealedSecretError: They cannot be opened: the message says why, and whose they are.
        """
        if stored is None or not column.is_sealed(stored):
            return stored
        return self.open(column, row_id, stored, belongs_to).decode("ascii")

    def seal_body(self, delivery_id: str, body: bytes) -> bytes:
        """Return a body as its row holds it."""
        if self._keys is None or not self._seals_bodies:
            return body
        return self._keys.seal(body, BODY.context([delivery_id]))

    def open_body(self, delivery_id: str, stored: bytes) -> bytes:
        """Return the bytes that are sent.

        Raises:
            SealedSecretError: They cannot be opened; the message says why.
        """
        return self.open(BODY, delivery_id, stored, [delivery_id]) if is_sealed(stored) else stored

    def open(
        self, column: SecretColumn, row_id: str, stored: str | bytes, belongs_to: Sequence[str]
    ) -> bytes:
        """Return what a row holds, opened if it is sealed.

        Raises:
            SealedSecretError: It cannot be opened; the message says why.
        """
        try:
            found = column.unpack(stored)
            if not column.is_sealed(stored):
                return found
            if self._keys is None:
                raise SecretKeyMissingError(
                    "it is sealed, and there are no secret keys here: set PUSHKIT_SECRET_KEYS"
                )
            return self._keys.open(found, column.context(belongs_to))
        except SealedSecretError as exc:
            raise type(exc)(f"the {column.name} of {column.row} {row_id}: {exc}") from exc
