"""Secrets in the database: sealed if there are keys, and opened for use.

A sealed value is bound to its row: it cannot be opened in another row, or beside another URL. Size
limits, idempotency and signatures apply to the opened bytes.
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

# No token or credentials begin with a blank (`PushConfig` checks that), so that a client cannot
# register a text that looks sealed.
_TEXT: Final = " sealed:"


@record(frozen=True, slots=True, kw_only=True)
class SecretColumn:
    """A column that holds secrets, sealed or plain."""

    table: str  # its table
    name: str
    row: str  # what a row stands for, in messages
    belongs_to: tuple[str, ...]  # the columns that a secret is bound to
    is_text: bool  # whether it holds text, or bytes
    key: tuple[str, ...] = ("id",)  # the columns that name a row
    besides: str = ""  # the columns that are set with it, in SQL

    def pack(self, sealed: bytes) -> str | bytes:
        """Return a sealed value, or its beginning, in the form that is stored."""
        return _TEXT + base64.b64encode(sealed).decode("ascii") if self.is_text else sealed

    def unpack(self, stored: str | bytes) -> bytes:
        """Return the bytes of a stored value, sealed or plain.

        Raises:
            SealedSecretError: It begins like a sealed value, and is none.
        """
        if not isinstance(stored, str):
            return bytes(stored)
        try:
            if stored.startswith(_TEXT):
                return base64.b64decode(stored.removeprefix(_TEXT), validate=True)
            return stored.encode("ascii")
        except (binascii.Error, ValueError) as exc:
            raise SealedSecretError("damaged: it is not a sealed secret any more") from exc

    def is_sealed(self, stored: str | bytes) -> bool:
        """Return whether a stored value is sealed."""
        return stored.startswith(_TEXT) if isinstance(stored, str) else is_sealed(stored)

    @property
    def mark(self) -> str | bytes:
        """The prefix of every sealed value."""
        return _TEXT if self.is_text else SEALED

    @property
    def head_length(self) -> int:
        """The length of the stored prefix and key id."""
        return len(self.pack(bytes(SEALED_HEAD_BYTES)))  # 12 bytes are exactly 16 characters

    def context(self, belongs_to: Sequence[str]) -> bytes:
        """Return an unambiguous encoding of the row that a secret is bound to."""
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
        besides=", revision = revision + 1",  # workers that cached the opened secret open it anew
    )
    for name in ("token", "credentials")
)
WATCHER: Final = SecretColumn(
    table="pushkit_watches",
    name="credentials",
    row="watched task",
    belongs_to=("tenant", "task_id"),
    is_text=True,
    key=("tenant", "task_id"),
)
"""What a gateway asks an agent with, about a task that it watches."""
BODY: Final = SecretColumn(
    table="pushkit_bodies", name="body", row="delivery", belongs_to=("id",), is_text=False
)
# Not bound as a body is: or else a webhook's answer could be moved there, to be signed and sent.
ANSWER: Final = SecretColumn(
    table="pushkit_attempts",
    name="answer",
    row="attempt",
    belongs_to=("delivery_id",),
    is_text=False,
    key=("delivery_id", "number"),
)


class Vault:
    """Seals and opens secrets.

    Args:
        keys: Without keys, secrets are stored plain, and sealed ones cannot be opened.
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

    @property
    def seals(self) -> bool:
        """Whether there are keys to seal with."""
        return self._keys is not None

    def seal_text(
        self, column: SecretColumn, plain: str | None, belongs_to: Sequence[str]
    ) -> str | None:
        """Return a token or credentials in the form that is stored."""
        if plain is None or self._keys is None:
            return plain
        sealed = self._keys.seal(plain.encode("ascii"), column.context(belongs_to))
        return str(column.pack(sealed))

    def open_text(
        self, column: SecretColumn, row_id: str, stored: str | None, belongs_to: Sequence[str]
    ) -> str | None:
        """Return a stored token or credentials, opened. Raises as `open`."""
        if stored is None or not column.is_sealed(stored):
            return stored
        return self.open(column, row_id, stored, belongs_to).decode("ascii")

    def seal_body(self, delivery_id: str, body: bytes) -> bytes:
        """Return a body in the form that is stored."""
        if self._keys is None or not self._seals_bodies:
            return body
        return self._keys.seal(body, BODY.context([delivery_id]))

    def open_body(self, delivery_id: str, stored: bytes) -> bytes:
        """Return a stored body, opened. Raises as `open`."""
        return self.open(BODY, delivery_id, stored, [delivery_id]) if is_sealed(stored) else stored

    def seal_answer(self, delivery_id: str, answer: bytes) -> bytes:
        """Return a webhook's answer in the form that is stored: sealed if there are keys."""
        if self._keys is not None:
            return self._keys.seal(answer, ANSWER.context([delivery_id]))
        # No webhook can pass an answer off as a sealed one.
        return b"?" + answer[1:] if is_sealed(answer) else answer

    def open_answer(self, delivery_id: str, number: int, stored: bytes) -> bytes:
        """Return a stored answer, opened; `number` is its attempt's. Raises as `open`."""
        return self.open(ANSWER, f"{delivery_id} {number}", stored, [delivery_id])

    def open(
        self, column: SecretColumn, row_id: str, stored: str | bytes, belongs_to: Sequence[str]
    ) -> bytes:
        """Return a stored value, opened if it is sealed.

        Raises:
            SealedSecretError: It cannot be opened; the message names the row and the reason.
        """
        try:
            found = column.unpack(stored)
            if not column.is_sealed(stored):
                return found
            if self._keys is None:
                raise SecretKeyMissingError(
                    "it is sealed, and there are no secret keys: set PUSHKIT_SECRET_KEYS"
                )
            return self._keys.open(found, column.context(belongs_to))
        except SealedSecretError as exc:
            raise type(exc)(f"the {column.name} of {column.row} {row_id}: {exc}") from exc
