"""How `pushkit outbox` tells people what it found."""

from __future__ import annotations

from pushkit.outbox import DeliverySummary, LoggedAttempt
from pushkit.terminal.output import milliseconds, moment

__all__ = ["attempt_row", "summary_row"]


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
