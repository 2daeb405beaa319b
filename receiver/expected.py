"""What the client expects: tokens that it handed out, and the tasks that they stand for.

Tokens are stored as hashes only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

from pushkit.errors import InboundError
from pushkit.signing.token import hash_token
from pushkit.storage import Migration, Script, Statement, to_micros
from receiver.trust import TaskPolicy

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
            expires_at BIGINT
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


@dataclass(frozen=True, slots=True)
class _Expectation:
    task_id: str | None


def mint_token() -> str:
    """Return a fresh token: 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


class ExpectedStore:
    """Scripts over `pushkit_expected`."""

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

    def unregister(self, *, sender: str, token: str | None, task_id: str | None) -> Script[int]:
        """Expect a token or a task no longer; return how many registrations that ended."""
        rows = yield Statement(
            "DELETE FROM pushkit_expected WHERE sender = $1"
            " AND (token_sha256 = $2 OR task_id = $3) RETURNING sender",
            (sender, hash_token(token) if token else None, task_id),
        )
        return len(rows)

    def knows_token(self, sender: str, token_sha256: str, now: datetime) -> Script[bool]:
        """Say whether a token is registered and has not expired."""
        found = yield from self._by_token(sender, token_sha256, now)
        return found is not None

    def admit(
        self,
        policy: TaskPolicy,
        *,
        sender: str,
        token_sha256: str | None,
        task_id: str | None,
        now: datetime,
    ) -> Script[None]:
        """Do step 8: refuse a task that is not expected, or bind it to its token.

        Raises:
            TaskNotExpectedError: By the policy.
        """
        if policy is TaskPolicy.ANY:
            return
        found = (yield from self._by_token(sender, token_sha256, now)) if token_sha256 else None
        if found is not None and found.task_id in (None, task_id):
            if policy is TaskPolicy.BIND and found.task_id is None and task_id is not None:
                yield from self._bind(sender, token_sha256, task_id)
            return
        if found is None and policy is TaskPolicy.BIND and token_sha256 and task_id:
            # A static token: bound to its first task like one that was registered.
            yield from self._insert_bound(sender, token_sha256, task_id, now)
            return
        if found is None and (yield from self._knows_task(sender, task_id, now)):
            return
        raise TaskNotExpectedError("the task is not expected under this token")

    def _by_token(
        self, sender: str, token_sha256: str | None, now: datetime
    ) -> Script[_Expectation | None]:
        rows = yield Statement(
            "SELECT task_id FROM pushkit_expected WHERE sender = $1 AND token_sha256 = $2"
            " AND (expires_at IS NULL OR expires_at > $3)",
            (sender, token_sha256, to_micros(now)),
        )
        return _Expectation(rows[0]["task_id"]) if rows else None

    def _knows_task(self, sender: str, task_id: str | None, now: datetime) -> Script[bool]:
        rows = yield Statement(
            "SELECT 1 FROM pushkit_expected WHERE sender = $1 AND task_id = $2"
            " AND token_sha256 IS NULL AND (expires_at IS NULL OR expires_at > $3)",
            (sender, task_id, to_micros(now)),
        )
        return bool(rows)

    def _bind(self, sender: str, token_sha256: str | None, task_id: str) -> Script[None]:
        yield Statement(
            "UPDATE pushkit_expected SET task_id = $3 WHERE sender = $1 AND token_sha256 = $2",
            (sender, token_sha256, task_id),
        )

    def _insert_bound(
        self, sender: str, token_sha256: str, task_id: str, now: datetime
    ) -> Script[None]:
        yield Statement(
            "INSERT INTO pushkit_expected (sender, token_sha256, task_id, created_at)"
            " VALUES ($1, $2, $3, $4)",
            (sender, token_sha256, task_id, to_micros(now)),
        )
