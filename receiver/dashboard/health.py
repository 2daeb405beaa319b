"""The receiver's health: a pure rule from numbers and events to findings, each with a remedy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from pushkit.events import NotificationRefused
from pushkit.webui.parts import Headline, HealthFinding, Severity, Verdict
from receiver.dashboard.memory import MOST_KEPT, KeptRefusal
from receiver.inbox.inspection import CallbackTrouble, InboxStats
from receiver.refusals import refusal_of
from receiver.steps import Step

_OVERDUE: Final = timedelta(minutes=1)
_RECENTLY: Final = timedelta(hours=1)
# Refusals for a reason on this side: the sender did nothing wrong.
_OURS: Final = frozenset(
    {"backlog_full", "inbox_full", "internal", "keys_unavailable", "not_started", "storage"}
)


def findings(
    stats: InboxStats,
    troubles: Sequence[CallbackTrouble],
    refusals: Iterable[KeptRefusal],  # kept by a receiver in this process
    degraded: Mapping[str, str],  # why it fails for some senders, by part
) -> Iterator[HealthFinding]:
    """Yield what an operator should know."""
    yield from _of_callbacks(stats, troubles)
    yield from _of_refusals(stats, refusals)
    for part, reason in degraded.items():
        link = "/refusals" if part == "keys" else "/callbacks"
        remedy = "The receiver's log says more."
        yield HealthFinding(Severity.WARNING, f"Degraded: {reason}.", remedy, link)


def headline(
    stats: InboxStats,
    troubles: Sequence[CallbackTrouble],
    refusals: Iterable[KeptRefusal],
    found: Sequence[HealthFinding],  # the worst first
) -> Headline:
    """Return the verdict of the overview: its sentence says only what was observed."""
    worst = found[0].severity if found else Severity.NOTE
    fault, warned = worst is Severity.FAILURE, worst is Severity.WARNING
    quiet = Verdict.ATTENTION if warned else Verdict.IDLE
    # Within the last hour. Failed is also what waits after a failed call; refused are requests of
    # proven senders, or for a reason on this side.
    accepted = bool(stats.arrivals)
    called_back = any(done is not None for _, done in stats.arrivals)
    failed = any(
        each.waiting or (each.dead and _is_recent(stats, each.last_at)) for each in troubles
    )
    refused, _ = _recent(stats, refusals)
    waiting = stats.received.number + stats.in_progress.number
    # fmt: off
    rows = (  # the first that holds
        (_is_unclaimed(stats), Verdict.FAILING,
         "No callback runs: no receiver claims what is due."),
        (fault and accepted, Verdict.FAILING,
         "Notifications arrive, but something on this side fails."),
        (fault, Verdict.FAILING, "Nothing is accepted: something on this side fails."),
        (refused and not accepted, Verdict.FAILING,
         "Nothing is accepted: every notification is refused."),
        (waiting and not accepted, quiet,
         "Nothing arrived within the last hour; earlier notifications wait."),
        (not accepted, quiet, "Nothing arrived within the last hour, and nothing waits."),
        (failed and not called_back, Verdict.FAILING,
         "Notifications arrive, but every callback fails."),
        (failed, Verdict.ATTENTION, "Notifications arrive, but some callbacks fail."),
        (warned, Verdict.ATTENTION, "Notifications arrive, but something needs attention."),
        (called_back, Verdict.HEALTHY,
         "Healthy: notifications arrive, and callbacks run."),
        (waiting, Verdict.IDLE, "Notifications arrive; none has been called back yet."),
        (True, Verdict.IDLE, "Notifications arrive, and no callback wants them."),
    )
    # fmt: on
    return next(Headline(verdict, says) for holds, verdict, says in rows if holds)


def _is_recent(stats: InboxStats, at: datetime | None) -> bool:
    return at is not None and stats.now - at < _RECENTLY


def _is_unclaimed(stats: InboxStats) -> bool:
    return stats.due_since is not None and stats.now - stats.due_since > _OVERDUE


def _of_callbacks(
    stats: InboxStats, troubles: Sequence[CallbackTrouble]
) -> Iterator[HealthFinding]:
    if _is_unclaimed(stats):
        yield HealthFinding(
            Severity.FAILURE,
            "Notifications are due for their callbacks, and no receiver claims them.",
            "Check that a receiver with callbacks runs: its log and /readyz say what hangs.",
            "/notifications?status=received",
        )
    if failing := sorted({each.callback for each in troubles if each.waiting}):
        named = ", ".join(failing[:3]) + (" …" if failing[3:] else "")
        yield HealthFinding(
            Severity.WARNING,
            f"{'A callback fails' if len(failing) == 1 else 'Callbacks fail'}: {named}.",
            "Notifications wait for a retry, by the schedule; the errors say why.",
            "/callbacks",
        )
    if dead := stats.dead.number:
        yield HealthFinding(
            Severity.WARNING,
            "There is a dead letter." if dead == 1 else "There are dead letters.",
            "Look at their errors; redrive them once their callback works again.",
            "/notifications?status=dead",
        )
    if stats.unmatched.number:
        yield HealthFinding(
            Severity.NOTE,
            "Some notifications matched no callback.",
            "Register a callback for them and redrive them, or ignore them.",
            "/notifications?unmatched=1",
        )


_Refused: TypeAlias = list[NotificationRefused]


def _recent(stats: InboxStats, refusals: Iterable[KeptRefusal]) -> tuple[_Refused, _Refused]:
    """Return the refusals of the last hour: of proven senders or on this side, and the others."""
    genuine, strangers = _Refused(), _Refused()
    for each in refusals:
        if _is_recent(stats, each.event.at):
            is_genuine = each.event.code in _OURS or is_of_a_sender(each.event)
            (genuine if is_genuine else strangers).append(each.event)
    return genuine, strangers


def _of_refusals(stats: InboxStats, refusals: Iterable[KeptRefusal]) -> Iterator[HealthFinding]:
    genuine, strangers = _recent(stats, refusals)
    by_code = defaultdict[str, _Refused](list)
    for each in genuine:
        by_code[each.code].append(each)
    for code, of_code in sorted(by_code.items(), key=lambda found: -len(found[1])):
        row = refusal_of(code)
        yield HealthFinding(
            Severity.FAILURE if code in _OURS else Severity.WARNING,
            f"{_requests(of_code)} refused within the last hour: {row.means}.",
            row.remedy,
            f"/refusals?code={code}",
        )
    if strangers:
        yield HealthFinding(
            Severity.NOTE,
            f"{_requests(strangers)} refused within the last hour, not from a proven sender.",
            "These are strangers, or a misconfigured agent: the reasons tell which.",
            "/refusals",
        )


def _requests(refused: Sequence[NotificationRefused]) -> str:
    """Return how many there are, with a + if older ones are no longer kept."""
    kept = Counter((each.code, each.sender is not None) for each in refused)
    more = "+" if max(kept.values()) == MOST_KEPT else ""
    return "1 request" if len(refused) == 1 else f"{len(refused)}{more} requests"


def is_of_a_sender(refused: NotificationRefused) -> bool:
    """Return whether a trusted sender was refused, not a stranger."""
    # Refusals by what is signed do not name the sender, though its signature is valid.
    return refused.sender is not None or Step.SIGNATURE.word in refused.steps[:-1]
