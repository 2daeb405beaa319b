"""What the client expects: tokens that it handed out, and the tasks that they stand for.

Tokens are stored as hashes only. A registration that was withdrawn or has expired is kept for as
long as the memory of ids: until then its token is still known, so that the retry of a delivery that
was accepted under it gets past step 5 and is recognised as one, while anything new is refused.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from pushkit.errors import InboundError
from pushkit.signing.token import hash_token
from pushkit.storage import Migration, Script, Statement, to_micros
from receiver.replay import MEMORY
from receiver.trust import PresentedToken, TaskPolicy

__all__ = ["MIGRATION", "ExpectedStore", "TaskNotExpectedError", "mint_token"]

MIGRATION = Migration(
    2,
    (
        """
        CREATE TABLE pushkit_expected (
            sender TEXT NOT NULL,
            token_sha256 TEXT,
            task_id TEXT,
            created_at BIGINT NOT NULL,
            expires_at BIGINT,
            withdrawn_at BIGINT
        )
        """,
        (
            "CREATE UNIQUE INDEX pushkit_expected_token ON pushkit_expected (sender, token_sha256)"
            " WHERE token_sha256 IS NOT NULL"
        ),
        "CREATE INDEX pushkit_expected_task ON pushkit_expected (sender, task_id)",
    ),
)


class TaskNotExpectedError(InboundError):
    """Nobody here waits for this task (A2A §4.3.3)."""

    code = "task_not_expected"
    status = 404


_PURGED_AT_ONCE = 100


def mint_token() -> str:
    """Return a fresh token: 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


class ExpectedStore:
    """Scripts over `pushkit_expected`.

    Args:
        kept: How long what has ended is kept: as long as ids are remembered.
    """

    def __init__(self, kept: timedelta = MEMORY) -> None:
        self._kept = kept

    def register(
        self,
        *,
        sender: str,
        token: str | None,
        task_id: str | None,
        now: datetime,
        expires_at: datetime | None,
    ) -> Script[None]:
        """Expect a token, a task, or a task under a token."""
        yield from self._forget(now)
        yield Statement(
            "INSERT INTO pushkit_expected (sender, token_sha256, task_id, created_at, expires_at)"
            " VALUES ($1, $2, $3, $4, $5)",
            (
                sender,
                hash_token(token) if token else None,
                task_id,
                to_micros(now),
                to_micros(expires_at) if expires_at else None,
            ),
        )

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

    def knows_token(self, sender: str, token_sha256: str) -> Script[bool]:
        """Say whether a token was handed to this sender: step 5. `admit` says if it is good still.

        One that ended longer ago than ids are remembered is forgotten at some time.
        """
        rows = yield Statement(
            "SELECT 1 FROM pushkit_expected WHERE sender = $1 AND token_sha256 = $2",
            (sender, token_sha256),
        )
        return bool(rows)

    def admit(
        self,
        policy: TaskPolicy,
        *,
        sender: str,
        token: PresentedToken | None,
        task_id: str | None,
        now: datetime,
    ) -> Script[None]:
        """Do step 8: refuse a task that is not expected, or bind it to its token.

        Raises:
            TaskNotExpectedError: By the policy, or because the token is good no longer.
        """
        live, bound_to = (yield from self._by_token(sender, token, now)) if token else (False, None)
        if token is not None and not token.static and not live:
            raise TaskNotExpectedError("the token was withdrawn or has expired")
        if policy is TaskPolicy.ANY:
            return
        if token is not None and policy is TaskPolicy.BIND and task_id and bound_to is None:
            yield from self._bind(sender, token.sha256, task_id, now)
            return
        if live and bound_to in (None, task_id):
            return
        if not live and (yield from self._knows_task(sender, task_id, now)):
            return
        raise TaskNotExpectedError("the task is not expected under this token")

    def _by_token(
        self, sender: str, token: PresentedToken, now: datetime
    ) -> Script[tuple[bool, str | None]]:
        """Return whether a token is registered and good still, and the task that it stands for."""
        rows = yield Statement(
            "SELECT task_id FROM pushkit_expected WHERE sender = $1 AND token_sha256 = $2"
            " AND withdrawn_at IS NULL AND (expires_at IS NULL OR expires_at > $3)",
            (sender, token.sha256, to_micros(now)),
        )
        return (True, rows[0]["task_id"]) if rows else (False, None)

    def _knows_task(self, sender: str, task_id: str | None, now: datetime) -> Script[bool]:
        """Say whether a task is expected, for a notification without a token of its own."""
        rows = yield Statement(
            "SELECT 1 FROM pushkit_expected WHERE sender = $1 AND task_id = $2"
            " AND withdrawn_at IS NULL AND (expires_at IS NULL OR expires_at > $3) LIMIT 1",
            (sender, task_id, to_micros(now)),
        )
        return bool(rows)

    def _bind(self, sender: str, token_sha256: str, task_id: str, now: datetime) -> Script[None]:
        """Bind a token to its first task; a static one has no row before, or a withdrawn one."""
        yield Statement(
            "INSERT INTO pushkit_expected (sender, token_sha256, task_id, created_at)"
            " VALUES ($1, $2, $3, $4) ON CONFLICT (sender, token_sha256)"
            " WHERE token_sha256 IS NOT NULL"
            " DO UPDATE SET task_id = excluded.task_id, withdrawn_at = NULL",
            (sender, token_sha256, task_id, to_micros(now)),
        )

    def _forget(self, now: datetime) -> Script[None]:
        """Forget what ended before the memory of ids begins, a bounded number at a time."""
        yield Statement(
            "DELETE FROM pushkit_expected WHERE (sender, token_sha256) IN"
            " (SELECT sender, token_sha256 FROM pushkit_expected"
            " WHERE COALESCE(withdrawn_at, expires_at) < $1 LIMIT $2)",
            (to_micros(now - self._kept), _PURGED_AT_ONCE),
        )
