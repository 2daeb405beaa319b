"""What the client expects: tokens that it handed out, and the tasks that they stand for.

Tokens are stored as hashes only. A registration that was withdrawn or has expired is kept for as
long as the memory of ids: until then its token is still known, so that the retry of a delivery that
was accepted under it gets past step 5 and is recognised as one, while anything new is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pushkit.errors import ConfigError, InboundError
from pushkit.record import record
from pushkit.signing.token import hash_token
from pushkit.storage.script import Row, Script, Statement, chunks, padded, texts, to_micros
from receiver.replay.memory import MEMORY
from receiver.trust import TaskPolicy
from receiver.verification import HandedOut, Presented, ProvenSecret


class TaskNotExpectedError(InboundError, code="task_not_expected", status=404):
    """Nobody here waits for this task (A2A §4.3.3)."""


@record(frozen=True, slots=True, kw_only=True)
class Registration:
    """One thing that is expected."""

    sender: str  # of whom
    expectation: str  # its own id; what replaces a token takes the id over, and the task with it
    token_sha256: str  # the token that was handed out, hashed
    credentials_sha256: str | None = None  # the credentials that were handed out with it, hashed
    task_id: str | None = None  # the task, if it is known
    created_at: datetime  # Now
    expires_at: datetime | None = None  # when it ends; None for never


@record(frozen=True, slots=True)
class _Standing:
    """What a secret stands for: whether it is good still, and its task."""

    live: bool
    task_id: str | None


@dataclass(slots=True)
class Standings:
    """What secrets stand for, as it was read."""

    # By sender and secret; nothing of a static secret that is not bound yet.
    found: dict[tuple[str, ProvenSecret], _Standing]
    # Whether one of them was bound since, and with it perhaps others of its task.
    is_changed: bool = False

    def is_bound(self, sender: str, secret: ProvenSecret, task: tuple[str, str] | None) -> bool:
        """Say whether a secret is good, and bound to this task: nothing changes that here."""
        stands = self.found.get((sender, secret))
        return stands is not None and task is not None and stands.live and stands.task_id == task[1]


class ExpectedStore:
    """Scripts over `pushkit_expected`.

    Args:
        kept: How long what has ended is kept: as long as ids are remembered.
    """

    def __init__(self, kept: timedelta = MEMORY) -> None:
        self._kept = kept

    def register(self, registration: Registration) -> Script[None]:
        """Expect a task, known or not, under a token."""
        ends = registration.expires_at
        yield Statement(
            "INSERT INTO pushkit_expected (sender, expectation, token_sha256,"
            " credentials_sha256, task_id, created_at, expires_at)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            (
                registration.sender,
                registration.expectation,
                registration.token_sha256,
                registration.credentials_sha256,
                registration.task_id,
                to_micros(registration.created_at),
                to_micros(ends) if ends else None,
            ),
        )

    def replace(self, old: str, new: Registration, *, overlap: timedelta) -> Script[str | None]:
        """Let a new token stand for what an old one stands for; return the task, if it has one.

        `old` is the hash of the token that goes, and is good for `overlap` from now; what is `new`
        takes over its task and its `expectation`.

        Raises:
            ConfigError: The old token is none that is good.
        """
        now = new.created_at
        rows = yield Statement(
            "SELECT * FROM pushkit_expected WHERE sender = $1 AND token_sha256 = $2"
            " AND static = 0 FOR UPDATE",
            (new.sender, old),
        )
        if not rows or not _standing(rows[0], to_micros(now)).live:
            raise ConfigError(f"replaces: no token that sender {new.sender!r} may use now")
        expectation = rows[0]["expectation"] or new.expectation
        yield Statement(
            "UPDATE pushkit_expected SET expectation = $3,"
            " expires_at = CASE WHEN expires_at < $4 THEN expires_at ELSE $4 END"
            " WHERE sender = $1 AND token_sha256 = $2",
            (new.sender, old, expectation, to_micros(now + overlap)),
        )
        task_id: str | None = rows[0]["task_id"]
        yield from self.register(replace(new, expectation=expectation, task_id=task_id))
        return task_id

    def unregister(
        self, *, sender: str, token: str | None, task_id: str | None, now: datetime
    ) -> Script[int]:
        """Expect a token or a task no longer; return how many registrations that ended."""
        rows = yield Statement(
            "UPDATE pushkit_expected SET withdrawn_at = $4 WHERE sender = $1"
            " AND (token_sha256 = $2 OR task_id = $3) AND withdrawn_at IS NULL RETURNING sender",
            (sender, hash_token(token) if token else None, task_id, to_micros(now)),
        )
        return len(rows)

    def forget(self, now: datetime, *, limit: int = 1000) -> Script[int]:
        """Forget what ended before the memory of ids begins, a bounded lot; return how many."""
        rows = yield Statement(
            "DELETE FROM pushkit_expected WHERE (sender, token_sha256) IN"
            " (SELECT sender, token_sha256 FROM pushkit_expected"
            " WHERE COALESCE(withdrawn_at, expires_at) < $1 AND static = 0"
            " ORDER BY COALESCE(withdrawn_at, expires_at)"
            " LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED) RETURNING sender",
            (to_micros(now - self._kept), limit),
        )
        return len(rows)

    def handed_out(self, sender: str, secret: Presented) -> Script[list[HandedOut]]:
        """Return what was handed to this sender and fits what it sent: for step 5.

        Also what has ended: `check` says if it is good still. One that ended longer ago than ids
        are remembered is forgotten at some time.
        """
        first, second = [*secret.credentials, None, None][:2]
        rows = yield Statement(
            "SELECT token_sha256, credentials_sha256 FROM pushkit_expected"
            " WHERE sender = $1 AND static = 0 AND"
            " (token_sha256 = $2 OR credentials_sha256 = $3 OR credentials_sha256 = $4)",
            (sender, secret.token, first, second),
        )
        return [
            HandedOut(token=row["token_sha256"], credentials=row["credentials_sha256"])
            for row in rows
        ]

    def standings(
        self, secrets: Iterable[tuple[str, ProvenSecret]], now: datetime
    ) -> Script[Standings]:
        """Return what secrets stand for, each beside the sender that sent it."""
        found: dict[tuple[str, ProvenSecret], _Standing] = {}
        moment = to_micros(now)
        for each in chunks(list(dict.fromkeys(secrets))):
            asked = padded(each)
            by_column = " UNION ALL ".join(
                f"SELECT a.sender, a.sha256, e.static, e.task_id, e.withdrawn_at, e.expires_at"
                f" FROM asked a JOIN pushkit_expected e ON e.sender = a.sender"
                f" AND e.{column} = a.sha256"
                for column in ("token_sha256", "credentials_sha256")
            )
            rows = yield Statement(
                f"WITH asked (sender, sha256) AS (VALUES {texts(len(asked), 2)}) {by_column}",
                tuple([text for sender, secret in asked for text in (sender, secret.sha256)]),
            )
            for row in rows:
                secret = ProvenSecret(sha256=row["sha256"], static=bool(row["static"]))
                found[row["sender"], secret] = _standing(row, moment)
        return Standings(found)

    def check(
        self,
        policy: TaskPolicy,
        *,
        sender: str,
        secret: ProvenSecret | None,
        task_id: str | None,
        now: datetime,
        standings: Standings,
    ) -> Script[bool]:
        """Do step 8: refuse a task that is not expected; say whether its secret is to be bound.

        Raises:
            TaskNotExpectedError: By the policy, or because the secret is good no longer.
        """
        stands: _Standing | None = None
        if secret is not None:
            stands = standings.found.get((sender, secret))
            if standings.is_changed and (stands is None or stands.task_id is None):
                stands = yield from self._stands_for(sender, secret, now)
            if not (stands.live if stands else secret.static):
                raise TaskNotExpectedError("the token was withdrawn or has expired")
        if policy is TaskPolicy.ANY:
            return False
        bound_to = stands.task_id if stands else None
        if secret is not None and policy is TaskPolicy.BIND and task_id and bound_to is None:
            return True
        if stands is None and (yield from self._knows_task(sender, task_id, now)):
            return False
        if stands is not None and bound_to in (None, task_id):
            return False
        raise TaskNotExpectedError("the task is not expected under this token")

    def bind(
        self, sender: str, secret: ProvenSecret, task_id: str, now: datetime, standings: Standings
    ) -> Script[None]:
        """Bind a secret to its first task.

        Two notifications may race for one secret: each changes only what is free, and then sees
        who was first.

        Raises:
            TaskNotExpectedError: It is bound to another task.
        """
        standings.is_changed = True
        if secret.static:
            yield Statement(
                "INSERT INTO pushkit_expected (sender, token_sha256, task_id, created_at, static)"
                " VALUES ($1, $2, $3, $4, 1) ON CONFLICT (sender, token_sha256)"
                " WHERE token_sha256 IS NOT NULL DO UPDATE SET static = 1,"
                " task_id = COALESCE(pushkit_expected.task_id, excluded.task_id)",
                (sender, secret.sha256, task_id, to_micros(now)),
            )
        else:
            # With what it replaced and what replaced it: together they stand for one task.
            yield Statement(
                "UPDATE pushkit_expected SET task_id = $3 WHERE sender = $1 AND task_id IS NULL"
                " AND (token_sha256 = $2 OR credentials_sha256 = $2 OR expectation ="
                " (SELECT e.expectation FROM pushkit_expected e WHERE e.sender = $1"
                " AND (e.token_sha256 = $2 OR e.credentials_sha256 = $2)))",
                (sender, secret.sha256, task_id),
            )
        stands = yield from self._stands_for(sender, secret, now)
        if stands is None or stands.task_id != task_id:
            raise TaskNotExpectedError("the task is not expected under this token")

    def _stands_for(
        self, sender: str, secret: ProvenSecret, now: datetime
    ) -> Script[_Standing | None]:
        """Return what a secret stands for; None for a static one that is not bound yet."""
        rows = yield Statement(
            "SELECT task_id, withdrawn_at, expires_at FROM pushkit_expected"
            " WHERE sender = $1 AND static = $3"
            " AND (token_sha256 = $2 OR credentials_sha256 = $2)",
            (sender, secret.sha256, int(secret.static)),
        )
        return _standing(rows[0], to_micros(now)) if rows else None

    def _knows_task(self, sender: str, task_id: str | None, now: datetime) -> Script[bool]:
        """Say whether a task is expected, for a notification without a token of its own."""
        rows = yield Statement(
            "SELECT 1 FROM pushkit_expected WHERE sender = $1 AND task_id = $2"
            " AND withdrawn_at IS NULL AND (expires_at IS NULL OR expires_at > $3) LIMIT 1",
            (sender, task_id, to_micros(now)),
        )
        return bool(rows)


def _standing(row: Row, now: int) -> _Standing:
    expires_at = row["expires_at"]
    live = row["withdrawn_at"] is None and (expires_at is None or expires_at > now)
    return _Standing(live, row["task_id"])
