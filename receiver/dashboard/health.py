"""The receiver's health: a pure rule from figures and events to findings, each with a remedy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pushkit.events.receiver import NotificationRefused
from pushkit.webui.documents import Finding, Severity
from receiver.dashboard.memory import MOST_KEPT, KeptRefusal
from receiver.inbox.inspection import CallbackTrouble, InboxFigures
from receiver.refusals import REFUSALS, refusal_of

_OVERDUE: Final = timedelta(minutes=1)
_RECENTLY: Final = timedelta(hours=1)
# Refusals for a reason on this side: the sender did nothing wrong.
_OURS: Final = frozenset(
    {"backlog_full", "inbox_full", "internal", "keys_unavailable", "not_started", "storage"}
)
# Refusals of step 4 do not name the sender, though its signature is verified.
_SIGNED: Final = frozenset(
    code for code, row in REFUSALS.items() if row.step == 4 and code != "malformed_request"
)


def findings(
    figures: InboxFigures,
    troubles: Sequence[CallbackTrouble],
    refusals: Iterable[KeptRefusal] = (),  # kept by a receiver in this process
    degraded: Mapping[str, str] | None = None,  # why it fails for some senders, by part
) -> Iterator[Finding]:
    """Yield what an operator should know."""
    yield from _of_callbacks(figures, troubles)
    yield from _of_refusals(figures, refusals)
    for part, reason in (degraded or {}).items():
        link = "/refusals" if part == "keys" else "/callbacks"
        mend = "The receiver's log says more."
        yield Finding(Severity.WARNING, f"Degraded: {reason}.", mend, link)


def _of_callbacks(figures: InboxFigures, troubles: Sequence[CallbackTrouble]) -> Iterator[Finding]:
    if figures.due_since is not None and figures.now - figures.due_since > _OVERDUE:
        yield Finding(
            Severity.FAILURE,
            "Notifications are due for their callbacks, and no receiver claims them.",
            "Check that a receiver with callbacks runs: its log and /readyz say what hangs.",
            "/notifications?status=received",
        )
    if failing := sorted({each.callback for each in troubles if each.waiting}):
        named = ", ".join(failing[:3]) + (" …" if failing[3:] else "")
        yield Finding(
            Severity.WARNING,
            f"{'A callback fails' if len(failing) == 1 else 'Callbacks fail'}: {named}.",
            "Notifications wait for a retry, by the schedule; the errors say why.",
            "/callbacks",
        )
    if dead := figures.dead.number:
        yield Finding(
            Severity.WARNING,
            "There is a dead letter." if dead == 1 else "There are dead letters.",
            "Look at their errors; redrive them once their callback works again.",
            "/notifications?status=dead",
        )
    if figures.unmatched.number:
        yield Finding(
            Severity.NOTE,
            "Some notifications matched no callback.",
            "Register a callback for them and redrive them, or ignore them.",
            "/notifications?unmatched=1",
        )


def _of_refusals(figures: InboxFigures, refusals: Iterable[KeptRefusal]) -> Iterator[Finding]:
    recent = [each.event for each in refusals if figures.now - each.event.at < _RECENTLY]
    genuine, strangers = defaultdict[str, list[NotificationRefused]](list), []
    for each in recent:
        if each.code in _OURS or is_of_a_sender(each):
            genuine[each.code].append(each)
        else:
            strangers.append(each)
    for code, of_code in sorted(genuine.items(), key=lambda found: -len(found[1])):
        row = refusal_of(code)
        yield Finding(
            Severity.FAILURE if code in _OURS else Severity.WARNING,
            f"{_requests(of_code)} refused within the last hour: {row.means}.",
            row.mend,
            f"/refusals?code={code}",
        )
    if strangers:
        yield Finding(
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
    return refused.sender is not None or refused.code in _SIGNED
