"""What operators look at, as JSON: for `--json` of the commands, and for the dashboard."""

from __future__ import annotations

from datetime import datetime, timedelta

from pushkit.bounded_json import JsonObject
from pushkit.keys.ring import KeyRing, KeyState, RingKey
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.inspection import DeliveryReport, OutboxStats
from pushkit.subscriptions.model import Subscription
from pushkit.terminal.output import document
from pushkit.url import masked_url


def report_document(report: DeliveryReport, *, with_body: bool, with_answers: bool) -> JsonObject:
    """Return a delivery with its attempts; what others wrote only if it is asked for."""
    found = document(report.delivery)
    found["log"] = [
        attempt_document(attempt, with_answer=with_answers) for attempt in report.attempts
    ]
    if with_body:
        body = report.body
        found["body"] = None if body is None else body.decode("utf-8", "backslashreplace")
    return found


def attempt_document(attempt: LoggedAttempt, *, with_answer: bool = False) -> JsonObject:
    """Return an attempt; what the webhook answered only if it is asked for."""
    timing = attempt.timing
    found: JsonObject = {
        "number": attempt.number,
        "started_at": attempt.started_at.isoformat(),
        "duration_seconds": attempt.duration.total_seconds(),
        "resolve_seconds": _seconds(timing.resolve),
        "connect_seconds": _seconds(timing.connect),
        "wait_seconds": _seconds(timing.wait),
        "body_seconds": _seconds(timing.body),
        "address": timing.address,
        "outcome": attempt.outcome,
        "status": attempt.status,
        "error": attempt.error,
    }
    if with_answer and attempt.answer is not None:
        found["answer"] = attempt.answer.decode("utf-8", "backslashreplace")
    return found


def stats_document(stats: OutboxStats) -> JsonObject:
    """Return the outbox in numbers."""
    oldest = stats.oldest_pending_at
    return {
        "states": {state.value: count for state, count in stats.states.items()},
        "oldest_pending_at": oldest.isoformat() if oldest else None,
        "origins": [
            {"origin": o.origin, "pending": o.pending, "in_flight": o.in_flight, "dead": o.dead}
            for o in stats.origins
        ],
        "errors": {**stats.errors},
        "local_faults": {**stats.local_faults},
    }


def subscription_document(subscription: Subscription) -> JsonObject:
    """Return a subscription; of its token and credentials, whether there are any."""
    key, wanted = subscription.key, subscription.wanted
    authentication = subscription.config.authentication
    return {
        "id": subscription.id,
        "state": subscription.state.value,
        "tenant": key.tenant,
        "task_id": key.task_id,
        "owner": key.owner,
        "config_id": key.config_id,
        "version": subscription.version.value,
        # Its query is where clients put keys.
        "url": masked_url(subscription.config.url),
        "origin": subscription.origin,
        "profile": subscription.profile.value,
        "has_token": subscription.has_token,
        "has_credentials": subscription.has_credentials,
        "schemes": list(authentication.schemes) if authentication else [],
        "states": None if wanted.states is None else [*sorted(wanted.states)],
        "kinds": None if wanted.kinds is None else [*sorted(wanted.kinds)],
        "last_chunk_only": wanted.last_chunk_only,
        "last_seq": subscription.last_seq,
        "task_ended": subscription.ended,
        "failing_since": _moment(subscription.failing_since),
        "disabled_by": subscription.disabled_by,
        "disabled_at": _moment(subscription.disabled_at),
        "created_at": subscription.created_at.isoformat(),
    }


def key_document(ring: KeyRing, entry: RingKey, now: datetime) -> JsonObject:
    """Return a key of a ring: its name and its times, and nothing of the key itself."""
    state = ring.state(entry.kid, now)
    return {
        "kid": entry.kid,
        "alg": entry.algorithm.value,
        "state": state.value,
        "signs": state is KeyState.ACTIVE and entry.algorithm is ring.default_algorithm,
        "published_at": entry.published_at.isoformat(),
        "activates_at": _moment(entry.activates_at),
        "retires_at": None if state is KeyState.REVOKED else _moment(ring.retires_at(entry.kid)),
        "revoked_at": _moment(entry.revoked_at),
    }


def _moment(found: datetime | None) -> str | None:
    return found.isoformat() if found else None


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
