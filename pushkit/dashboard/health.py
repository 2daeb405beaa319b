"""The sender's health: a pure rule from numbers and keys to findings, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from pushkit.delivery.error_codes import meaning, remedy
from pushkit.errors import NoSigningKeyError
from pushkit.keys.ring import KeyRing
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.stats import OutboxStats
from pushkit.webui.parts import Headline, HealthFinding, Severity, Verdict

_OVERDUE = timedelta(minutes=1)
_OLD = timedelta(hours=1)


def findings(stats: OutboxStats, ring: KeyRing | None) -> Iterator[HealthFinding]:
    """Yield what an operator should know."""
    yield from _of_deliveries(stats)
    if ring is not None:
        try:
            ring.active_key(stats.now)
        except NoSigningKeyError as exc:
            says = f"Nothing can be signed: {exc}."
            yield HealthFinding(Severity.FAILURE, says, remedy("no_signing_key"), "/keys")


def headline(
    stats: OutboxStats,
    found: Sequence[HealthFinding],  # the worst first
) -> Headline:
    """Return the verdict of the overview: its sentence says only what was observed."""
    worst = found[0].severity if found else Severity.NOTE
    fault, warned = worst is Severity.FAILURE, worst is Severity.WARNING
    quiet = Verdict.ATTENTION if warned else Verdict.IDLE
    # Within the last hour. Failed is also what waits after a failed attempt.
    delivered = any(each.state is DeliveryState.DELIVERED for each in stats.finished)
    failed = stats.died.number + stats.retrying
    waiting = stats.pending.number + stats.in_flight.number
    # fmt: off
    rows = (  # the first that holds
        (_is_unclaimed(stats), Verdict.FAILING, "Nothing is sent: no worker claims what is due."),
        (fault and delivered, Verdict.FAILING,
         "Deliveries arrived within the last hour, but something on this side fails."),
        (fault, Verdict.FAILING, "Nothing arrives: something on this side fails."),
        (failed and delivered, Verdict.ATTENTION,
         "Deliveries arrive, but some fail."),
        (failed, Verdict.FAILING, "Nothing arrives: every attempt fails."),
        (delivered and warned, Verdict.ATTENTION,
         "Deliveries arrive, but something needs attention."),
        (delivered, Verdict.HEALTHY, "Healthy: deliveries arrive."),
        (waiting, quiet, "Deliveries wait; none arrived within the last hour."),
        (True, quiet, "Nothing waits, and nothing was sent within the last hour."),
    )
    # fmt: on
    return next(Headline(verdict, says) for holds, verdict, says in rows if holds)


def _is_unclaimed(stats: OutboxStats) -> bool:
    overdue = stats.due_since is not None and stats.now - stats.due_since > _OVERDUE
    return overdue and not stats.local_faults


def _of_deliveries(stats: OutboxStats) -> Iterator[HealthFinding]:
    if _is_unclaimed(stats):
        yield HealthFinding(
            Severity.FAILURE,
            "Deliveries are due, and no worker claims them.",
            "Check that a worker runs (pushkit worker, or the agent's own). If one does, it is"
            " short of CPU, or its `concurrency` is used up.",
            "/deliveries?state=pending",
        )
    for code, number in stats.local_faults.items():
        waits = "delivery waits" if number == 1 else "deliveries wait"
        yield HealthFinding(
            Severity.FAILURE,
            f"{number} {waits} because of an error on this side: {meaning(code)}.",
            remedy(code),
            f"/deliveries?state=pending&error={code}",
        )
    if number := stats.failing.number:
        says = "One destination failed last, or asked to wait."
        if number > 1:
            says = f"{stats.failing} destinations failed last, or asked to wait."
        yield HealthFinding(
            Severity.WARNING,
            says,
            "Deliveries to them are retried automatically; deliveries to others continue.",
            "/destinations",
        )
    if number := stats.died.number:
        yield HealthFinding(
            Severity.WARNING,
            f"{stats.died} dead {'letter' if number == 1 else 'letters'} within the last hour.",
            "Look at their errors; redrive them once their webhook works again.",
            "/deliveries?state=dead",
        )
    elif stats.dead.number:
        yield HealthFinding(
            Severity.NOTE,
            "There are dead letters, none of the newest within the last hour.",
            "Redrive them, or leave them: they are deleted when their retention ends.",
            "/deliveries?state=dead",
        )
    oldest = stats.oldest_pending_at
    if oldest is not None and stats.now - oldest > _OLD:
        yield HealthFinding(
            Severity.NOTE,
            "The oldest delivery that is next in its queue has waited for more than an hour.",
            "It is attempted again by the retry schedule.",
            "/deliveries?state=pending",
        )
