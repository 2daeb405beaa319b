"""Registrations: the tokens that `expect()` handed out, and the tasks that they authorise.

Tokens are stored as hashes only. A registration that was withdrawn or has expired is kept for as
long as ids are remembered: until then the retry of a delivery that was accepted under its token
passes step 5 and is recognised as a retry, while anything new is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pushkit.errors import ConfigError, InboundError
from pushkit.record import record
from pushkit.storage.script import Row, Script, Statement, run_for_rows, to_micros
from pushkit.webhook import hash_token
from receiver.senders import TaskPolicy
from receiver.tokens import HandedOut, Presented, ProvenSecret


class TaskNotExpectedError(InboundError, code="task_not_expected", status=404):
    """The task is not expected (A2A §4.3.3)."""


class Registration(NamedTuple):
    """One expected task, known or not, with the token that authorises its notifications."""

    sender: str  # the name of the trusted sender
    expectation: str  # its id; a replacement token keeps it, and with it the task
    token_sha256: str  # the hash of the token
    credentials_sha256: str | None  # the hash of the credentials that go with it
    task_id: str | None  # the task, if it is known
    created_at: datetime
    expires_at: datetime | None  # None for never


@record(frozen=True, slots=True)
class _RegisteredSecret:
    """Whether a secret is still valid, and its task."""

    live: bool
    task_id: str | None


@dataclass(slots=True)
class RegisteredSecrets:
    """Several secrets, as they were read in this transaction."""

    # By sender and secret; without static secrets that are not bound yet.
    found: dict[tuple[str, ProvenSecret], _RegisteredSecret]
    # Whether a secret was bound since they were read, and perhaps others of its task with it.
    is_changed: bool = False

    def is_bound(self, sender: str, secret: ProvenSecret, task_id: str | None) -> bool:
        """Return whether a secret is valid, and bound to this task for good."""
        found = self.found.get((sender, secret))
        return found is not None and task_id is not None and found.live and found.task_id == task_id


def register(registration: Registration) -> Script[None]:
    """Store a registration."""
    ends = registration.expires_at
    yield Statement(
        "INSERT INTO pushkit_expected (sender, expectation, token_sha256,"
        " credentials_sha256, task_id, created_at, expires_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)",
        (
            *registration[:5],
            to_micros(registration.created_at),
            to_micros(ends) if ends else None,
        ),
    )


def replace_token(old: str, new: Registration, *, overlap: timedelta) -> Script[str | None]:
    """Store a registration that replaces an older one; return its task, if it has one.

    `old` is the hash of the older token, which stays valid for `overlap` from now. The new
    registration takes over its task and its `expectation`.

    Raises:
        ConfigError: The old token is unknown, or no longer valid.
    """
    now = new.created_at
    rows = yield Statement(
        "UPDATE pushkit_expected SET expectation = COALESCE(expectation, $3),"
        " expires_at = CASE WHEN expires_at < $4 THEN expires_at ELSE $4 END"
        " WHERE sender = $1 AND token_sha256 = $2 AND static = 0 AND withdrawn_at IS NULL"
        " AND (expires_at IS NULL OR expires_at > $5) RETURNING expectation, task_id",
        (new.sender, old, new.expectation, to_micros(now + overlap), to_micros(now)),
    )
    if not rows:
        raise ConfigError(f"replaces: found no valid token of sender {new.sender!r}")
    task_id: str | None = rows[0]["task_id"]
    yield from register(new._replace(expectation=rows[0]["expectation"], task_id=task_id))
    return task_id


def unregister(
    *, sender: str, token: str | None, task_id: str | None, now: datetime
) -> Script[int]:
    """Withdraw the registrations of a token or a task; return how many there were."""
    rows = yield Statement(
        "UPDATE pushkit_expected SET withdrawn_at = $4 WHERE sender = $1"
        " AND (token_sha256 = $2 OR task_id = $3) AND withdrawn_at IS NULL RETURNING sender",
        (sender, hash_token(token) if token else None, task_id, to_micros(now)),
    )
    return len(rows)


def forget_registrations(ended_before: datetime) -> Script[int]:
    """Delete registrations that ended before a moment, at most 1,000; return how many."""
    rows = yield Statement(
        "DELETE FROM pushkit_expected WHERE (sender, token_sha256) IN"
        " (SELECT sender, token_sha256 FROM pushkit_expected"
        " WHERE COALESCE(withdrawn_at, expires_at) < $1 AND static = 0"
        " ORDER BY COALESCE(withdrawn_at, expires_at)"
        " LIMIT 1000 FOR UPDATE SKIP LOCKED) RETURNING sender",
        (to_micros(ended_before),),
    )
    return len(rows)


def handed_out(sender: str, secret: Presented) -> Script[list[HandedOut]]:
    """Return the registrations of this sender that fit the secrets of a request: for step 5.

    Including ended ones that are not deleted yet: `check` refuses those.
    """
    first, second = [*secret.credentials, None, None][:2]
    rows = yield Statement(
        "SELECT token_sha256, credentials_sha256 FROM pushkit_expected"
        " WHERE sender = $1 AND static = 0 AND"
        " (token_sha256 = $2 OR credentials_sha256 = $3 OR credentials_sha256 = $4)",
        (sender, secret.token, first, second),
    )
    return [
        HandedOut(token=row["token_sha256"], credentials=row["credentials_sha256"]) for row in rows
    ]


def read_secrets(
    secrets: Iterable[tuple[str, ProvenSecret]], now: datetime
) -> Script[RegisteredSecrets]:
    """Return secrets as they are stored, each given with its sender."""
    found: dict[tuple[str, ProvenSecret], _RegisteredSecret] = {}
    moment = to_micros(now)
    by_column = " UNION ALL ".join(
        "SELECT a.sender, a.sha256, e.static, e.task_id, e.withdrawn_at, e.expires_at"
        " FROM asked a CROSS JOIN pushkit_expected e WHERE e.sender = a.sender"
        f" AND e.{column} = a.sha256"
        for column in ("token_sha256", "credentials_sha256")
    )
    rows = yield from run_for_rows(
        f"WITH asked (sender, sha256) AS (VALUES $rows) {by_column}",
        [(sender, secret.sha256) for sender, secret in dict.fromkeys(secrets)],
    )
    for row in rows:
        secret = ProvenSecret(sha256=row["sha256"], static=bool(row["static"]))
        found[row["sender"], secret] = _registered_secret(row, moment)
    return RegisteredSecrets(found)


def check_expected(
    policy: TaskPolicy,
    *,
    sender: str,
    secret: ProvenSecret | None,
    task_id: str | None,
    now: datetime,
    registered: RegisteredSecrets,
) -> Script[bool]:
    """Do step 8: refuse a task that is not expected; return whether to bind its secret to it.

    Raises:
        TaskNotExpectedError: By the policy, or because the secret is no longer valid.
    """
    stored: _RegisteredSecret | None = None
    if secret is not None:
        stored = registered.found.get((sender, secret))
        if registered.is_changed and (stored is None or stored.task_id is None):
            again = yield from read_secrets([(sender, secret)], now)
            stored = again.found.get((sender, secret))
        if not (stored.live if stored else secret.static):
            raise TaskNotExpectedError("the token was withdrawn or has expired")
    if policy is TaskPolicy.ANY:
        return False
    bound_to = stored.task_id if stored else None
    if secret is not None and policy is TaskPolicy.BIND and task_id and bound_to is None:
        return True
    if stored is None and (yield from _is_expected(sender, task_id, now)):
        return False
    if stored is not None and bound_to in (None, task_id):
        return False
    raise _not_expected(is_bound=bound_to is not None)


def bind_secret(
    sender: str,
    secret: ProvenSecret,
    task_id: str,
    now: datetime,
    registered: RegisteredSecrets,
) -> Script[None]:
    """Bind a secret to its first task.

    Two notifications may race for one secret: each updates it only if it is unbound, and then
    reads which task it is bound to.

    Raises:
        TaskNotExpectedError: It is bound to another task.
    """
    registered.is_changed = True
    if secret.static:
        yield Statement(
            "INSERT INTO pushkit_expected (sender, token_sha256, task_id, created_at, static)"
            " VALUES ($1, $2, $3, $4, 1) ON CONFLICT (sender, token_sha256)"
            " WHERE token_sha256 IS NOT NULL DO UPDATE SET static = 1,"
            " task_id = COALESCE(pushkit_expected.task_id, excluded.task_id)",
            (sender, secret.sha256, task_id, to_micros(now)),
        )
    else:
        # With the tokens that it replaced or that replaced it: they share one task.
        yield Statement(
            "UPDATE pushkit_expected SET task_id = $3 WHERE sender = $1 AND task_id IS NULL"
            " AND (token_sha256 = $2 OR credentials_sha256 = $2 OR expectation ="
            " (SELECT e.expectation FROM pushkit_expected e WHERE e.sender = $1"
            " AND (e.token_sha256 = $2 OR e.credentials_sha256 = $2)))",
            (sender, secret.sha256, task_id),
        )
    stored = (yield from read_secrets([(sender, secret)], now)).found.get((sender, secret))
    if stored is None or stored.task_id != task_id:
        raise _not_expected(is_bound=True)


def _is_expected(sender: str, task_id: str | None, now: datetime) -> Script[bool]:
    """Return whether a task is expected: for a notification that no registered token backs."""
    rows = yield Statement(
        "SELECT 1 FROM pushkit_expected WHERE sender = $1 AND task_id = $2"
        " AND withdrawn_at IS NULL AND (expires_at IS NULL OR expires_at > $3) LIMIT 1",
        (sender, task_id, to_micros(now)),
    )
    return bool(rows)


def _not_expected(*, is_bound: bool) -> TaskNotExpectedError:
    if is_bound:
        found = "the token belongs to another task: each task needs a token of its own"
    else:
        found = "neither the task nor its token was registered: do so before the agent starts it"
    return TaskNotExpectedError(f"{found} (`Receiver.expect()`, or `receiver expect`)")


def _registered_secret(row: Row, now: int) -> _RegisteredSecret:
    expires_at = row["expires_at"]
    live = row["withdrawn_at"] is None and (expires_at is None or expires_at > now)
    return _RegisteredSecret(live, row["task_id"])
