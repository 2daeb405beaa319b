"""`SecretsAdmin`: the keys that seal the secrets of an outbox, and sealing them with a new one.

Reads find the values, and each row is written only if it is unchanged, and no transaction holds it.
Transactions that enqueue or settle meanwhile do not wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from pushkit.errors import ConfigError, SealedSecretError
from pushkit.progress import advance
from pushkit.record import field, record
from pushkit.secrets.sealing import SEALED, SecretKeys
from pushkit.secrets.vault import ANSWER, BODY, CREDENTIALS, TOKEN, WATCHER, SecretColumn, Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Row, Script, SqlValue, Statement
from pushkit.storage.sqlite import SqliteDatabase

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
