"""Is the receiver healthy: a pure rule over figures and what was heard, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pushkit.events.receiver import NotificationRefused
from pushkit.webui.findings import Finding, Severity
from receiver.dashboard.memory import Refused
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
    refusals: Iterable[Refused] = (),  # those that are kept, of a receiver in this process
    degraded: Mapping[str, str] | None = None,  # what such a receiver says is wrong for some
) -> list[Finding]:
    """Return what is to be known."""
    return [
        *_of_callbacks(figures, troubles),
        *_of_refusals(figures, refusals),
        *(
            Finding(
                severity=Severity.WARNING,
                says=f"Wrong for some: {reason}.",
                mend="The receiver's log and receiver check say more.",
                link="/refusals" if part == "keys" else "/callbacks",
            )
            for part, reason in (degraded or {}).items()
        ),
    ]


def _of_callbacks(figures: InboxFigures, troubles: Sequence[CallbackTrouble]) -> Iterator[Finding]:
    if figures.due_since is not None and figures.now - figures.due_since > _OVERDUE:
        yield Finding(
            severity=Severity.FAILURE,
            says="Notifications that could be called back are not taken.",
            mend="Does a receiver with callbacks run? Its log and /readyz say what hangs.",
            link="/notifications?status=received",
        )
    failing = sorted({each.callback for each in troubles if each.waiting})
    if failing:
        waiting = sum(each.waiting for each in troubles)
        named = ", ".join(failing[:3]) + (" …" if failing[3:] else "")
        yield Finding(
            severity=Severity.WARNING,
            says=f"{waiting} {_notifications(waiting)} again for {named}.",
            mend="It failed, and is called again by the schedule; its errors say why.",
            link="/callbacks",
        )
    if figures.dead.number:
        yield Finding(
            severity=Severity.WARNING,
            says="There is a dead letter."
            if figures.dead.number == 1
            else "There are dead letters.",
            mend="Look at why; redrive them once their callback is mended.",
            link="/notifications?status=dead",
        )
    if figures.unmatched.number:
        yield Finding(
            severity=Severity.NOTE,
            says="No callback wanted some notifications.",
            mend="Register one for them and redrive, or leave them.",
            link="/notifications?unmatched=1",
        )


def _of_refusals(figures: InboxFigures, refusals: Iterable[Refused]) -> Iterator[Finding]:
    lately = [each.event for each in refusals if figures.now - each.event.at < _LATELY]
    genuine = [each for each in lately if each.code in _OURS or is_of_a_sender(each)]
    counted = Counter(each.code for each in genuine)
    for code, number in counted.most_common():
        row = refusal_of(code)
        yield Finding(
            severity=Severity.FAILURE if code in _OURS else Severity.WARNING,
            says=f"{number} refused within the last hour: {row.means}.",
            mend=row.mend,
            link=f"/refusals?code={code}",
        )
    strangers = len(lately) - len(genuine)
    if strangers:
        yield Finding(
            severity=Severity.NOTE,
            says=f"{strangers} refused within the last hour that proved no trusted sender.",
            mend="Strangers, or an agent that is set up wrongly: the reasons tell.",
            link="/refusals",
        )


def is_of_a_sender(refused: NotificationRefused) -> bool:
    """Say whether a trusted sender was refused: from step 4 on the signature has been proven."""
    return refused.sender is not None or refused.code in _SIGNED


def _notifications(number: int) -> str:
    return "notification is called back" if number == 1 else "notifications are called back"
