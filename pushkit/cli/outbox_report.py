"""How `pushkit outbox` tells what it found: rows for people, JSON for programs."""

from __future__ import annotations

from datetime import timedelta

from pushkit.bounded_json import JsonObject
from pushkit.outbox import DeliveryReport, DeliverySummary, LoggedAttempt, OutboxStats
from pushkit.terminal.output import document, milliseconds, moment

__all__ = ["attempt_row", "report_document", "stats_document", "summary_row"]


def summary_row(summary: DeliverySummary) -> tuple[str, ...]:
    """Return a delivery as a row of `pushkit outbox list`."""
    return (
        summary.id,
        summary.state.value,
        summary.task_id,
        str(summary.seq),
        summary.origin,
        str(summary.attempts),
        moment(summary.notified_at),
        str(summary.last_status or "-"),
        summary.last_error or "-",
    )


def attempt_row(attempt: LoggedAttempt) -> tuple[str, ...]:
    """Return an attempt as a row of `pushkit outbox show`."""
    timing = attempt.timing
    phases = (attempt.duration, timing.resolve, timing.connect, timing.wait, timing.body)
    return (
        str(attempt.number),
        moment(attempt.started_at),
        *map(milliseconds, phases),
        timing.address or "-",
        attempt.outcome,
        str(attempt.status or "-"),
        attempt.error or "-",
    )


def report_document(report: DeliveryReport, *, with_body: bool, with_answers: bool) -> JsonObject:
    """Return a delivery with its attempts as JSON; what others wrote only if it is asked for."""
    found = document(report.delivery)
    found["log"] = [
        _attempt_document(attempt, with_answer=with_answers) for attempt in report.attempts
    ]
    if with_body:
        body = report.body
        found["body"] = None if body is None else body.decode("utf-8", "backslashreplace")
    return found


def _attempt_document(attempt: LoggedAttempt, *, with_answer: bool) -> JsonObject:
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
    """Return the outbox in numbers as JSON."""
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


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
