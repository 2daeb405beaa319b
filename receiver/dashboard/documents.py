"""The documents of the receiver's dashboard: what its pages show, and its API returns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pushkit.webui.api import Document, Members
from pushkit.webui.parts import Headline, HealthFinding, NewestFirst, Percentiles
from receiver.dashboard.memory import Calls, KeptRefusal
from receiver.inbox.inspection import (
    CallbackTrouble,
    InboxQueue,
    InboxStats,
    NotificationSummary,
)
from receiver.inbox.mailboxes import MailboxState
from receiver.inbox.model import CallbackState
from receiver.refusals import Refusal

_STATS = "now received in_progress dead unmatched incomplete oldest_unfinished_at"
_REFUSED = "number reason event"


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
