"""`SecretsAdmin`: which keys the secrets of an outbox are sealed with, and sealing them anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pushkit.errors import SealedSecretError
from pushkit.outbox import BodyResealing, ResealedBody, StoredBody
from pushkit.secrets.envelopes import Envelopes
from pushkit.secrets.sealing import SecretKeys
from pushkit.storage import Database, SqliteDatabase
from pushkit.subscriptions import Resealed, Resealing, StoredSubscription, Vault, head_of

__all__ = ["Rotated", "SecretsAdmin", "SecretsStatus"]

_BATCH: Final = 50
# Between two batches: whoever waits for the database goes first.
_PAUSE: Final = timedelta(milliseconds=20)
# Rows that somebody held, or changed, are looked for again so many times.
_PASSES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsStatus:
    """How many secrets are sealed with which key, by id; None counts those that are plain.

    Attributes:
        subscriptions: Tokens and credentials.
        bodies: Bodies of deliveries, finished ones included.
    """

    subscriptions: Mapping[str | None, int]
    bodies: Mapping[str | None, int]


@dataclass(slots=True)
class Rotated:
    """What a rotation did.

    Attributes:
        subscriptions: How many subscriptions were written.
        bodies: How many bodies.
        unopened: What could not be opened, and why: it stays as it is.
        held: How many rows others held all the time; the next rotation takes them up.
        traces: Whether a SQLite file's log still holds what was there before: it was being read.
    """

    subscriptions: int = 0
    bodies: int = 0
    unopened: list[str] = field(default_factory=list)
    held: int = 0
    traces: bool = False


class SecretsAdmin:
    """Secrets in an outbox, for operators. Everything here is safe beside running traffic.

    Args:
        database: Where outbox and subscriptions live, open (see `open_outbox`).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscriptions = Resealing()
        self._bodies = BodyResealing()

    async def status(self) -> SecretsStatus:
        """Return how many secrets are sealed with which key."""
        return SecretsStatus(
            subscriptions=await self._database.read(self._subscriptions.keys()),
            bodies=await self._database.read(self._bodies.keys()),
        )

    async def rotate(self, keys: SecretKeys, *, bodies: bool = False) -> Rotated:
        """Seal with the first key what is plain or sealed with another one.

        Args:
            keys: The first one seals; the others open what is there.
            bodies: Seal plain bodies, too; sealed ones are sealed anew in any case.
        """
        rotated = Rotated()
        for _ in range(_PASSES):
            rotated.unopened.clear()
            rotated.held = await self._rotate_subscriptions(keys, rotated)
            rotated.held += await self._rotate_bodies(keys, rotated, plain=bodies)
            if not rotated.held:
                break
        if isinstance(self._database, SqliteDatabase):
            rotated.traces = not await self._database.empty_log()
        return rotated

    async def _rotate_subscriptions(self, keys: SecretKeys, rotated: Rotated) -> int:
        vault, after, held = Vault(keys), "", 0
        while page := await self._database.read(
            self._subscriptions.find(head_of(keys), after=after, limit=_BATCH)
        ):
            resealed = [found for each in page if (found := _resealed(vault, each, rotated))]
            written = await self._database.write(self._subscriptions.write(resealed))
            rotated.subscriptions += written
            held += len(resealed) - written
            after = page[-1].subscription.id
            await asyncio.sleep(_PAUSE.total_seconds())
        return held

    async def _rotate_bodies(self, keys: SecretKeys, rotated: Rotated, *, plain: bool) -> int:
        envelopes, after, held = Envelopes(keys, seals=True), "", 0
        while page := await self._database.read(
            self._bodies.find(keys.head, plain=plain, after=after, limit=_BATCH)
        ):
            resealed = [
                found for each in page if (found := _resealed_body(envelopes, each, rotated))
            ]
            written = await self._database.write(self._bodies.write(resealed))
            rotated.bodies += written
            held += len(resealed) - written
            after = page[-1].delivery_id
            await asyncio.sleep(_PAUSE.total_seconds())
        return held


def _resealed(vault: Vault, stored: StoredSubscription, rotated: Rotated) -> Resealed | None:
    try:
        sealed = vault.reseal(stored)
    except SealedSecretError as exc:
        rotated.unopened.append(str(exc))
        return None
    return Resealed(id=stored.subscription.id, found=stored.secrets, sealed=sealed)


def _resealed_body(
    envelopes: Envelopes, stored: StoredBody, rotated: Rotated
) -> ResealedBody | None:
    try:
        body = envelopes.open(stored.delivery_id, stored.body)
    except SealedSecretError as exc:
        rotated.unopened.append(str(exc))
        return None
    return ResealedBody(found=stored, sealed=envelopes.seal(stored.delivery_id, body))
