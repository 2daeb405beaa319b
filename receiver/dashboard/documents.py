"""What the receiver's dashboard shows, and its API returns: documents, and findings of health.

The findings follow from numbers and events by a pure rule, each with a remedy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from pushkit.events import NotificationRefused
from pushkit.webui.api import Document, Members
from pushkit.webui.parts import (
    Headline,
    HealthFinding,
    NewestFirst,
    Percentiles,
    Severity,
    Verdict,
    first_that_holds,
    is_overdue,
)
from receiver.dashboard.memory import MOST_KEPT, Calls, KeptRefusal
from receiver.inbox.inspection import (
    CallbackTrouble,
    InboxQueue,
    InboxStats,
    NotificationSummary,
)
from receiver.inbox.mailboxes import MailboxState
from receiver.inbox.model import CallbackState
from receiver.refusals import Refusal, refusal_of
from receiver.steps import Step

_STATS = "now received in_progress dead unmatched incomplete oldest_unfinished_at"
_REFUSED = "number reason event"
_RECENTLY: Final = timedelta(hours=1)
# Refusals for a reason on this side: the sender did nothing wrong.
_OURS: Final = frozenset(
    {"backlog_full", "inbox_full", "internal", "keys_unavailable", "not_started", "storage"}
)


class Reason(Document):
    """A reason for refusals, with its remedy."""

    code: str
    number: int
    refusal: Annotated[Refusal, Members("status means remedy", inline=True)]
    steps: Annotated[Sequence[str], "The steps of the verification that it can come from."]


class Reasons(Document):
    """The number of refusals by reason."""

    is_known: Annotated[bool, "Whether a receiver runs in this process."]
    since: datetime | None
    process: int | None
    number: int
    reasons: Sequence[Reason]


class Came(NamedTuple):
    """How many notifications came in a minute, or so."""

    at: datetime
    done: Annotated[int, "By a callback."]
    other: int


class InboxOverviewDocument(Document):
    """Whether the receiver is healthy, and its main numbers."""

    headline: Annotated[Headline, Members(inline=True)]
    findings: Sequence[HealthFinding]
    stats: Annotated[InboxStats, Members(_STATS, inline=True)]
    measured_since: datetime
    accepted: int
    accepted_per_minute: float
    seconds_until_called_back: Percentiles
    came: Sequence[Came]
    refusals: Reasons
    newest_dead: Sequence[NotificationSummary]
    newest: Sequence[NotificationSummary]


class Notifications(NewestFirst):
    """A page of notifications."""

    notifications: Sequence[NotificationSummary]


class StepResult(StrEnum):
    """The result of a step: one of a refused request, or of a notification in the inbox."""

    PASSED = "passed"
    REFUSED = "refused"
    NOT_CHECKED = "not_checked"
    NOT_REACHED = "not_reached"
    FAILED = "failed"
    WAITS = "waits"
    NOT_TOLD = "not_told"


class VerifiedStep(NamedTuple):
    """A step of the verification, with its result."""

    step: int
    name: str
    checks: str
    found: str
    result: StepResult


class NotificationDocument(Document):
    """A notification with the steps of its verification and its callbacks."""

    summary: Annotated[NotificationSummary, Members(inline=True)]
    steps: Sequence[VerifiedStep]
    callbacks: Sequence[CallbackState]
    body: str | None


class GapDocument(Document):
    """Numbers that had not arrived before the next notification, and have not since."""

    gap: Literal[True] = True
    sender: str
    first: int
    last: int


class Update(Document):
    """A notification of a task."""

    gap: Literal[False] = False
    summary: Annotated[NotificationSummary, Members(inline=True)]


class TaskDocument(Document):
    """The notifications of a task."""

    task_id: str
    lines: Sequence[GapDocument | Update]
    is_cut: bool


class InboxQueuesDocument(Document):
    """A page of queues."""

    queues: Sequence[InboxQueue]
    after: str | None


class MailboxesDocument(Document):
    """The mailboxes that have anything."""

    mailboxes: Sequence[MailboxState]


class CallbackDocument(Document):
    """A callback."""

    callback: str
    troubles: Annotated[Sequence[CallbackTrouble], Members("error waiting dead last_at newest")]
    calls: Annotated[Calls | None, Members("number failed seconds latency_seconds failures")]


class Callbacks(Document):
    """The callbacks that fail, or were called in this process."""

    since: datetime | None
    callbacks: Sequence[CallbackDocument]


class RefusalsDocument(Document):
    """A page of refused requests."""

    by_reason: Annotated[Reasons, Members(inline=True)]
    refusals: Annotated[Sequence[KeptRefusal], Members(_REFUSED)]
    before: str | None


class RefusalReport(Document):
    """A refused request with every step of its verification."""

    request: Annotated[KeptRefusal, Members(_REFUSED, inline=True)]
    refusal: Annotated[Refusal, Members("means remedy", inline=True)]
    is_of_a_sender: bool
    steps: Sequence[VerifiedStep]


# --- health ---------------------------------------------------------------------------------------


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
        (is_overdue(stats.due_since, stats.now), Verdict.FAILING,
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
    return first_that_holds(rows)


def _is_recent(stats: InboxStats, at: datetime | None) -> bool:
    return at is not None and stats.now - at < _RECENTLY


def _of_callbacks(
    stats: InboxStats, troubles: Sequence[CallbackTrouble]
) -> Iterator[HealthFinding]:
    if is_overdue(stats.due_since, stats.now):
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
