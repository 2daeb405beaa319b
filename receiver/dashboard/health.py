"""Is the receiver healthy: a pure rule over figures and what was heard, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pushkit.events.receiver import NotificationRefused
from pushkit.webui.documents import Finding, Severity
from receiver.dashboard.memory import KeptRefusal
from receiver.inbox.figures import CallbackTrouble, InboxFigures
from receiver.refusals import REFUSALS, refusal_of

_OVERDUE: Final = timedelta(minutes=1)
_LATELY: Final = timedelta(hours=1)
# Something on this side: whoever sends is genuine, or would have been.
_OURS: Final = frozenset(
    {"backlog_full", "inbox_full", "internal", "keys_unavailable", "not_started", "storage"}
)
_SIGNED: Final = frozenset(
    code
    for code, row in REFUSALS.items()
    if row.step is not None and row.step > 3 and code != "malformed_request"
)


def findings(
    figures: InboxFigures,
    troubles: Sequence[CallbackTrouble],
    refusals: Iterable[KeptRefusal] = (),  # those that are kept, of a receiver in this process
    degraded: Mapping[str, str] | None = None,  # what such a receiver says is wrong for some
) -> Iterator[Finding]:
    """Yield what is to be known."""
    yield from _of_callbacks(figures, troubles)
    yield from _of_refusals(figures, refusals)
    for part, reason in (degraded or {}).items():
        link = "/refusals" if part == "keys" else "/callbacks"
        mend = "The receiver's log and receiver check say more."
        yield Finding(Severity.WARNING, f"Wrong for some: {reason}.", mend, link)


def _of_callbacks(figures: InboxFigures, troubles: Sequence[CallbackTrouble]) -> Iterator[Finding]:
    if figures.due_since is not None and figures.now - figures.due_since > _OVERDUE:
        yield Finding(
            Severity.FAILURE,
            "Notifications that could be called back are not taken.",
            "Does a receiver with callbacks run? Its log and /readyz say what hangs.",
            "/notifications?status=received",
        )
    if failing := sorted({each.callback for each in troubles if each.waiting}):
        waiting = sum(each.waiting for each in troubles)
        are = "notification is" if waiting == 1 else "notifications are"
        named = ", ".join(failing[:3]) + (" …" if failing[3:] else "")
        yield Finding(
            Severity.WARNING,
            f"{waiting} {are} called back again for {named}.",
            "It failed, and is called again by the schedule; its errors say why.",
            "/callbacks",
        )
    if dead := figures.dead.number:
        yield Finding(
            Severity.WARNING,
            "There is a dead letter." if dead == 1 else "There are dead letters.",
            "Look at why; redrive them once their callback is mended.",
            "/notifications?status=dead",
        )
    if figures.unmatched.number:
        yield Finding(
            Severity.NOTE,
            "No callback wanted some notifications.",
            "Register one for them and redrive, or leave them.",
            "/notifications?unmatched=1",
        )


def _of_refusals(figures: InboxFigures, refusals: Iterable[KeptRefusal]) -> Iterator[Finding]:
    lately = [each.event for each in refusals if figures.now - each.event.at < _LATELY]
    genuine = [each for each in lately if each.code in _OURS or is_of_a_sender(each)]
    for code, number in Counter(each.code for each in genuine).most_common():
        row = refusal_of(code)
        yield Finding(
            Severity.FAILURE if code in _OURS else Severity.WARNING,
            f"{number} refused within the last hour: {row.means}.",
            row.mend,
            f"/refusals?code={code}",
        )
    if strangers := len(lately) - len(genuine):
        yield Finding(
            Severity.NOTE,
            f"{strangers} refused within the last hour that proved no trusted sender.",
            "Strangers, or an agent that is set up wrongly: the reasons tell.",
            "/refusals",
        )


def is_of_a_sender(refused: NotificationRefused) -> bool:
    """Say whether a trusted sender was refused: from step 4 on the signature has been proven."""
    return refused.sender is not None or refused.code in _SIGNED
