"""The sender's health: a pure rule from figures and keys to findings, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pushkit.delivery.error_codes import meaning, mend
from pushkit.errors import NoSigningKeyError
from pushkit.keys.ring import KeyRing
from pushkit.outbox.browsing import OutboxFigures
from pushkit.webui.documents import Finding, Severity

_OVERDUE = timedelta(minutes=1)
_OLD = timedelta(hours=1)


def findings(figures: OutboxFigures, ring: KeyRing | None) -> Iterator[Finding]:
    """Yield what an operator should know."""
    yield from _of_deliveries(figures)
    if ring is not None:
        try:
            ring.active_key(figures.now)
        except NoSigningKeyError as exc:
            says = f"Nothing can be signed: {exc}."
            yield Finding(Severity.FAILURE, says, mend("no_signing_key"), "/keys")


def _of_deliveries(figures: OutboxFigures) -> Iterator[Finding]:
    overdue = figures.due_since is not None and figures.now - figures.due_since > _OVERDUE
    if overdue and not figures.local_faults:
        yield Finding(
            Severity.FAILURE,
            "Deliveries are due, and no worker claims them.",
            "Check that a worker runs (pushkit worker, or the agent's own). If one does, it is"
            " short of slots or of CPU.",
            "/deliveries?state=pending",
        )
    for code, number in figures.local_faults.items():
        waits = "delivery waits" if number == 1 else "deliveries wait"
        yield Finding(
            Severity.FAILURE,
            f"{number} {waits} because of an error on this side: {meaning(code)}.",
            mend(code),
            f"/deliveries?state=pending&error={code}",
        )
    if number := figures.failing.number:
        fail = "One destination fails" if number == 1 else f"{figures.failing} destinations fail"
        yield Finding(
            Severity.WARNING,
            f"{fail} or asked to wait.",
            "Deliveries to them are retried automatically; deliveries to others continue.",
            "/destinations",
        )
    if number := figures.died.number:
        yield Finding(
            Severity.WARNING,
            f"{figures.died} dead {'letter' if number == 1 else 'letters'} within the last hour.",
            "Look at their errors; redrive them once their webhook works again.",
            "/deliveries?state=dead",
        )
    elif figures.dead.number:
        yield Finding(
            Severity.NOTE,
            "There are dead letters, none of the newest within the last hour.",
            "Redrive them, or leave them: they are deleted when their retention ends.",
            "/deliveries?state=dead",
        )
    oldest = figures.oldest_pending_at
    if oldest is not None and figures.now - oldest > _OLD:
        yield Finding(
            Severity.NOTE,
            "The oldest delivery at the head of a queue has waited for more than an hour.",
            "It is attempted again by the retry schedule.",
            "/deliveries?state=pending",
        )
