"""Secrets in the database: sealed if there are keys, and opened for use.

A sealed value is bound to its row: it cannot be opened in another row, or beside another URL. Size
limits, idempotency and signatures apply to the opened bytes.

`SecretsAdmin` seals them with a new key: reads find the values, and each row is written only if it
is unchanged, and no transaction holds it. Those that enqueue or settle meanwhile do not wait.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from pushkit.errors import ConfigError, SealedSecretError, SecretKeyMissingError
from pushkit.progress import advance
from pushkit.record import field, record
from pushkit.secrets.sealing import SEALED, SEALED_HEAD_BYTES, SecretKeys, is_sealed
from pushkit.storage.database import Database
from pushkit.storage.script import Row, Script, SqlValue, Statement
from pushkit.storage.sqlite import SqliteDatabase

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


# --- new keys ------------------------------------------------------------------------------------

_BATCH: Final = 50
_PAUSE: Final = timedelta(milliseconds=20)  # between two batches, for other transactions
_PASSES: Final = 20  # how often rows that were held or changed are tried again


@record(frozen=True, slots=True, kw_only=True)
class SecretsStatus:
    """How many secrets are sealed with each key, by id; None counts the plain ones."""

    secrets: Mapping[str | None, int]  # tokens and credentials
    bodies: Mapping[str | None, int]  # bodies of deliveries, finished ones included
    answers: Mapping[str | None, int]  # kept answers of webhooks


@record(frozen=False, slots=True)
class Rotated:
    """The result of a rotation."""

    secrets: int = 0  # how many tokens and credentials were written
    bodies: int = 0  # how many bodies were written
    answers: int = 0  # how many answers of webhooks were written
    # Why values could not be opened; they are unchanged.
    unopened: list[str] = field(default_factory=list)
    held: int = 0  # how many rows others held all the time; the next rotation tries them again
    # Whether a SQLite file or its log still holds old values, because others were using it.
    traces: bool = False


class SecretsAdmin:
    """Secrets in an outbox, for operators. Everything here is safe beside running traffic."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def status(self) -> SecretsStatus:
        """Return how many secrets are sealed with each key."""
        tokens, credentials, watchers, bodies, answers = [
            await self._database.read(_count_keys(column))
            for column in (TOKEN, CREDENTIALS, WATCHER, BODY, ANSWER)
        ]
        return SecretsStatus(
            secrets=tokens + credentials + watchers, bodies=bodies, answers=answers
        )

    async def rotate(
        self, keys: SecretKeys, *, bodies: bool = False, vacuum: bool = False
    ) -> Rotated:
        """Seal secrets with the first key that are plain, or sealed with another one.

        Args:
            keys: The first one seals; all of them open.
            bodies: Whether to seal plain bodies, too; sealed ones are resealed in any case.
            vacuum: Whether to write a SQLite file anew afterwards, so that no old value is left in
                an unused part of it; who writes waits meanwhile.

        Raises:
            ConfigError: `vacuum` on PostgreSQL.
        """
        if vacuum and not isinstance(self._database, SqliteDatabase):
            raise ConfigError(
                "vacuum: found PostgreSQL, expected a SQLite file; run VACUUM FULL on the server"
                " when its lock disturbs nobody"
            )
        rotated = Rotated()
        for _ in range(_PASSES):
            rotated.unopened.clear()
            rotated.held = 0
            for column in (TOKEN, CREDENTIALS, WATCHER):
                rotated.secrets += await self._rotate(keys, column, rotated, plain=True)
            rotated.bodies += await self._rotate(keys, BODY, rotated, plain=bodies)
            rotated.answers += await self._rotate(keys, ANSWER, rotated, plain=True)
            if not rotated.held:
                break
        if isinstance(self._database, SqliteDatabase):
            rotated.traces = not await self._database.empty_log(vacuum=vacuum)
        return rotated

    async def _rotate(
        self, keys: SecretKeys, column: SecretColumn, rotated: Rotated, *, plain: bool
    ) -> int:
        vault, written = Vault(keys), 0
        after: Sequence[SqlValue] = before_all(column)
        while page := await self._database.read(
            find_other_keys(column, keys, plain=plain, after=after, limit=_BATCH)
        ):
            resealed: list[tuple[Row, str | bytes]] = []
            for row in page:
                belongs_to = [row[name] for name in column.belongs_to]
                try:
                    row_id = " ".join(str(row[name]) for name in column.key)
                    opened = vault.open(column, row_id, row[column.name], belongs_to)
                except SealedSecretError as exc:
                    rotated.unopened.append(str(exc))
                    continue
                sealed = keys.seal(opened, column.context(belongs_to))
                resealed.append((row, column.pack(sealed)))
            of_page = await self._database.write(write_resealed(column, resealed))
            written += of_page
            rotated.held += len(resealed) - of_page
            after = [page[-1][name] for name in column.key]
            advance(len(page))
            await asyncio.sleep(_PAUSE.total_seconds())
        return written


def _count_keys(column: SecretColumn) -> Script[Counter[str | None]]:
    """Return how many values are sealed with each key; plain values are not read."""
    rows = yield Statement(
        f"SELECT CASE WHEN SUBSTR({column.name}, 1, {len(column.mark)}) = $1"
        f" THEN SUBSTR({column.name}, 1, {column.head_length}) END AS head, COUNT(*) AS found"
        f" FROM {column.table} WHERE {column.name} IS NOT NULL GROUP BY 1",
        (column.mark,),
    )
    counted: Counter[str | None] = Counter()
    for row in rows:
        head = row["head"]
        key = None if head is None else column.unpack(head)[len(SEALED) :].hex()
        counted[key] += row["found"]
    return counted


def before_all(column: SecretColumn) -> Sequence[SqlValue]:
    """Return what is less than the key of any row."""
    return [0 if name == "number" else "" for name in column.key]


def find_other_keys(
    column: SecretColumn,
    keys: SecretKeys,
    *,
    plain: bool,
    after: Sequence[SqlValue],
    limit: int,
) -> Script[Sequence[Row]]:
    """Return a page of rows whose secret is sealed with another key than the first, or plain.

    `plain` says whether to include plain secrets; `after` is the key of the last row of the page
    before, at first `before_all(column)`.
    """
    names = ", ".join(dict.fromkeys([*column.key, column.name, *column.belongs_to]))
    key = ", ".join(column.key)
    last = ", ".join(f"${place}" for place in range(5, 5 + len(after)))
    return (
        yield Statement(
            f"SELECT {names} FROM {column.table} WHERE ({key}) > ({last})"
            f" AND SUBSTR({column.name}, 1, {column.head_length}) <> $1"
            f" AND (CAST($2 AS BIGINT) = 1 OR SUBSTR({column.name}, 1, {len(column.mark)}) = $3)"
            f" ORDER BY {key} LIMIT CAST($4 AS BIGINT)",
            (column.pack(keys.head), int(plain), column.mark, limit, *after),
        )
    )


def write_resealed(
    column: SecretColumn, resealed: Sequence[tuple[Row, str | bytes]]
) -> Script[int]:
    """Write resealed values in the order of keys to rows that are unchanged; return how many."""
    as_found = tuple(dict.fromkeys([*column.key, column.name, *column.belongs_to]))
    key = ", ".join(column.key)
    same = " AND ".join(f"{name} = ${place}" for place, name in enumerate(as_found, start=2))
    written = 0
    for row, value in resealed:
        rows = yield Statement(
            f"UPDATE {column.table} SET {column.name} = $1{column.besides} WHERE ({key}) IN"
            f" (SELECT {key} FROM {column.table} WHERE {same} FOR UPDATE SKIP LOCKED)"
            f" RETURNING {key}",
            (value, *(row[name] for name in as_found)),
        )
        written += len(rows)
    return written
