"""Deliveries, subscriptions and keys as JSON: for `--json` of the commands, and the dashboard."""

from __future__ import annotations

from datetime import datetime, timedelta

from pushkit.bounded_json import JsonObject
from pushkit.delivery.error_codes import meaning, remedy
from pushkit.keys.ring import KeyRing, KeyState, RingKey
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.inspection import DeliveryReport
from pushkit.subscriptions.model import Subscription
from pushkit.terminal.output import document
from pushkit.url import masked_url


def report_document(report: DeliveryReport, *, with_body: bool, with_answers: bool) -> JsonObject:
    """Return a delivery with its attempts; its body and the webhook's answers only on request."""
    found = document(report.delivery)
    found["why"] = why_document(report)
    found["log"] = [_attempt_document(each, with_answer=with_answers) for each in report.attempts]
    if with_body:
        body = report.body
        found["body"] = None if body is None else body.decode("utf-8", "backslashreplace")
    return found


def _attempt_document(attempt: LoggedAttempt, *, with_answer: bool) -> JsonObject:
    timing = attempt.timing
    found = {
        **document(attempt, "number started_at"),
        "duration_seconds": attempt.duration.total_seconds(),
        "resolve_seconds": _seconds(timing.resolve),
        "connect_seconds": _seconds(timing.connect),
        "wait_seconds": _seconds(timing.wait),
        "body_seconds": _seconds(timing.body),
        "address": timing.address,
        **document(attempt, "outcome status error"),
    }
    if with_answer:
        found["answer"] = shown_answer(attempt)
    return found


def shown_answer(attempt: LoggedAttempt) -> str | None:
    """Return the answer that was kept with an attempt as text; None if none was."""
    if attempt.is_sealed:
        return "(sealed with a secret key that this process does not have)"
    return None if attempt.answer is None else attempt.answer.decode("utf-8", "backslashreplace")


def why_document(report: DeliveryReport) -> JsonObject | None:
    """Return a delivery's last error with its meaning, its remedy, and the webhook's last answer.

    None if it has no error. The answer is that of the last failed attempt, if it was kept.
    """
    code = report.delivery.last_error
    if code is None:
        return None
    failed = [each for each in report.attempts if each.error is not None]
    return {
        "code": code,
        "means": meaning(code),
        "remedy": remedy(code),
        "answer": shown_answer(failed[-1]) if failed else None,
    }


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def subscription_document(subscription: Subscription) -> JsonObject:
    """Return a subscription; it says whether it has a token and credentials, but not which."""
    wanted, authentication = subscription.wanted, subscription.config.authentication
    return {
        **document(subscription, "id state"),
        **document(subscription.key, "tenant task_id owner config_id"),
        "version": subscription.version,
        # Clients put keys into the query.
        "url": masked_url(subscription.config.url),
        **document(subscription, "origin profile has_token has_credentials"),
        "schemes": list(authentication.schemes) if authentication else [],
        "states": None if wanted.states is None else [*sorted(wanted.states)],
        "kinds": None if wanted.kinds is None else [*sorted(wanted.kinds)],
        "last_chunk_only": wanted.last_chunk_only,
        "min_interval_seconds": _seconds(wanted.min_interval),
        "last_seq": subscription.last_seq,
        "task_ended": subscription.ended,
        **document(subscription, "failing_since disabled_by disabled_at created_at"),
    }


def key_document(ring: KeyRing, entry: RingKey, now: datetime) -> JsonObject:
    """Return the name and the times of a key in a ring, without the key itself."""
    state = ring.state(entry.kid, now)
    retires_at = None if state is KeyState.REVOKED else ring.retires_at(entry.kid)
    return {
        "kid": entry.kid,
        "alg": entry.algorithm,
        "state": state,
        "signs": state is KeyState.ACTIVE and entry.algorithm is ring.default_algorithm,
        **document(entry, "published_at activates_at"),
        "retires_at": retires_at.isoformat() if retires_at else None,
        **document(entry, "revoked_at"),
    }
