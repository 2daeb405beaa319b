"""The receiver's dashboard: its routes, its actions, and the documents of its pages and its API."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlencode

from pushkit.events import NotificationRefused
from pushkit.options import check_type
from pushkit.webui import api
from pushkit.webui.access import DashboardAccess
from pushkit.webui.asgi import PageRefused, PageRequest
from pushkit.webui.parts import (
    MOST_SHOWN,
    a_minute,
    buckets,
    percentiles,
    shown_body,
    worst_first,
)
from pushkit.webui.site import Link, Site
from receiver.admin import InboxAdmin, Redriven
from receiver.dashboard import documents
from receiver.dashboard.documents import (
    StepResult,
    VerifiedStep,
    findings,
    headline,
    is_of_a_sender,
)
from receiver.dashboard.memory import RecentEvents
from receiver.inbox.inspection import (
    CallbackTrouble,
    InboxFilter,
    NotificationReport,
    NotificationSummary,
)
from receiver.inbox.model import InboxStatus
from receiver.refusals import refusal_of
from receiver.steps import Step, results_of

if TYPE_CHECKING:
    from receiver.receiver import Receiver

_TEMPLATES: Final = Path(__file__).parent / "templates"
_LINKS: Final = (
    Link("/", "Overview"),
    Link("/notifications", "Notifications", others=("/task",)),
    Link("/notifications?status=dead", "Dead letters"),
    Link("/notifications?unmatched=1", "Unmatched"),
    Link("/queues", "Queues"),
    Link("/mailboxes", "Mailboxes"),
    Link("/callbacks", "Callbacks"),
    Link("/refusals", "Refusals"),
)
_SEARCH: Final = ("Task, #number", "Find a task, or a notification by its number")
_OF_TASK: Final = 200
_PURGED: Final = "there is no such notification: it may have been purged"
_FORGOTTEN: Final = "there is no such refusal: only the newest for each reason are kept, in memory"
# Steps that check what is signed, of a notification in the inbox: one without a key may be of a
# sender that does not sign.
_SIGNED: Final = (Step.SIGNATURE, Step.TIME, Step.IDS, Step.BODY)
# Not each signature states them, and the inbox does not say which one it was.
_OF_SOME_SIGNATURES: Final = (Step.ISSUER, Step.AUDIENCE)
_ENDED: Final = {InboxStatus.DONE: StepResult.PASSED, InboxStatus.DEAD: StepResult.FAILED}

NUMBER: Final = "[0-9]{1,18}"
ID: Final = api.id_in_path(NUMBER, int, 0)
SENDER: Final = api.text("sender", "Of this trusted sender.")
OF_NOTIFICATIONS: Final = (
    api.choice("status", "With this status.", InboxStatus),
    SENDER,
    api.text("task", "Of this task.", "task_id"),
    api.flag("unmatched", "1: those that matched no callback.", "unmatched"),
)
ONE_TASK: Final = api.Parameter(
    "task", "The task.", api.TEXT, f"a task, {api.TEXT_IN_WORDS}", str, "", is_required=True
)
CODE: Final = api.text("code", "For this reason.")
BEFORE: Final = api.position("before", NUMBER, int)
# A queue's id, percent-encoded: it has a line break between sender and task, but no NUL.
AFTER: Final = api.position("after", "([A-Za-z0-9_.~-]|%(0[1-9A-F]|[1-9A-F][0-9A-F]))+", unquote)
WITH_BODY: Final = api.flag("body", "1: with the body.")
_PAGED: Final = (BEFORE, api.LIMIT)


def receiver_dashboard(
    receiver: Receiver, *, token: str, hosts: Collection[str], allow_actions: bool = False
) -> Site:
    """Return a receiver's dashboard, to mount where only operators can reach it.

        app.add_subapp("/ops", receiver_dashboard(receiver, token=token, hosts=[host]).app())
        app.mount("/ops", receiver_dashboard(receiver, token=token, hosts=[host]).asgi())

    It shows what tasks contain: never serve it to the public.

    Args:
        receiver: The receiver; refusals are kept from this call on.
        token: The token that readers need; 20 characters or more.
        hosts: The names that it is served under.
        allow_actions: Whether anything may be changed.

    Raises:
        ConfigError: There is no token, or it is too short.
    """
    check_type("token", token, str)  # None, as of a variable that is not set, lets a proxy read
    access = DashboardAccess(token=token, hosts=hosts, allow_actions=allow_actions)
    return dashboard_of(receiver, access=access)


def dashboard_of(
    receiver: Receiver,
    *,
    access: DashboardAccess,
    memory: RecentEvents
    | None = None,  # where refusals are kept; given if other processes add theirs
) -> Site:
    """Return the dashboard of a receiver in this process; refusals are kept from this call on."""
    memory = memory or RecentEvents()
    receiver.events.add(memory.record)
    degraded = receiver.degraded
    return inbox_dashboard(receiver.inbox, access=access, memory=memory, degraded=degraded)


def inbox_dashboard(
    inbox: InboxAdmin,
    *,
    access: DashboardAccess,
    memory: RecentEvents | None = None,  # refusals, which are not stored
    # Returns why a receiver in this process fails for some senders, by part.
    degraded: Callable[[], Mapping[str, str]] = dict,
) -> Site:
    """Return the dashboard of an open inbox."""
    of = InboxPages(inbox, memory or RecentEvents(), memory is not None, degraded)
    site = Site(
        access=access,
        templates=_TEMPLATES,
        title="receiver",
        database=inbox.location,
        links=_LINKS,
        search=_SEARCH,
        found_by=_found_by,
    )
    filters = OF_NOTIFICATIONS
    site.show("/", "overview.html", of.overview)
    site.show("/notifications", "notifications.html", of.notifications, *filters, *_PAGED)
    page = ("/notifications/{id}", "notification.html")
    site.show(*page, of.notification, ID, WITH_BODY)
    site.show("/task", "task.html", of.task, ONE_TASK, SENDER)
    site.show("/queues", "queues.html", of.queues, AFTER, api.LIMIT)
    site.show("/mailboxes", "mailboxes.html", of.mailboxes)
    site.show("/callbacks", "callbacks.html", of.callbacks)
    site.show("/refusals", "refusals.html", of.refusals, CODE, *_PAGED)
    site.show("/refusals/{id}", "refusal_of_one.html", of.refusal, ID)

    async def redrive(ids: list[int]) -> tuple[Redriven, str]:
        """Redrive a dead letter."""
        found = await inbox.redrive(ids)
        said = f"{len(found.ids)} redriven"
        said += f"; {found.skipped} skipped: not a dead letter" if found.skipped else ""
        return found, f"{said}."

    site.changes("/notifications", "redrive", redrive, ID, filters)
    return site


def _found_by(wanted: str) -> str:
    """Return the page for a search text: `#17` is a notification, anything else a task."""
    if wanted.startswith("#") and re.fullmatch(NUMBER, wanted[1:]):
        return f"/notifications/{wanted[1:]}"
    return f"/task?{urlencode({'task': wanted})}" if wanted else "/notifications"


@dataclass(frozen=True, slots=True)
class InboxPages:
    """Documents from the inbox, and from the events of a receiver in this process."""

    _inbox: InboxAdmin
    _memory: RecentEvents  # empty without a receiver in this process
    _is_known: bool  # whether there is one
    _degraded: Callable[[], Mapping[str, str]]

    async def overview(self, _request: PageRequest) -> documents.InboxOverviewDocument:
        """Return whether the receiver is healthy, and its main numbers."""
        stats = await self._inbox.stats(at_most=MOST_SHOWN)
        troubles = await self._inbox.callback_troubles()
        dead = await self._inbox.browse(InboxFilter(status=InboxStatus.DEAD), limit=5)
        newest = await self._inbox.browse(limit=5)
        kept = self._memory.refusals()
        found = worst_first(findings(stats, troubles, kept, self._degraded()))
        arrivals, since, now = stats.arrivals, stats.arrivals_since, stats.now
        times = buckets(((came, done is not None) for came, done in arrivals), since, now)
        return documents.InboxOverviewDocument(
            headline=headline(stats, troubles, kept, found),
            findings=found,
            stats=stats,
            measured_since=since,
            accepted=len(arrivals),
            accepted_per_minute=a_minute(len(arrivals), since, now),
            seconds_until_called_back=percentiles(
                (done - came).total_seconds() for came, done in arrivals if done
            ),
            came=[documents.Came(*each) for each in times],
            refusals=self._reasons(),
            newest_dead=dead.items,
            newest=newest.items,
        )

    async def notifications(self, request: PageRequest) -> documents.Notifications:
        """Return notifications, newest first.

        A page may not be full: `before` leads to the next one.
        """
        query = request.query
        wanted = api.selected(InboxFilter, OF_NOTIFICATIONS, query)
        page = await self._inbox.browse(wanted, before=BEFORE.of(query), limit=api.LIMIT.of(query))
        return documents.Notifications(
            notifications=page.items, before=page.before, is_cut=page.is_cut
        )

    async def notification(self, request: PageRequest) -> documents.NotificationDocument:
        """Return one notification with the steps of its verification and its callbacks."""
        report = await self._inbox.show(ID.of(request.values))
        if report is None:
            raise PageRefused(404, _PURGED)
        return documents.NotificationDocument(
            summary=report.notification,
            steps=steps_of_accepted(report),
            callbacks=report.callbacks,
            body=shown_body(report.body) if WITH_BODY.of(request.query) else None,
        )

    async def task(self, request: PageRequest) -> documents.TaskDocument:
        """Return the newest 200 updates of a task, by `seq`, with the gaps between them."""
        task_id = ONE_TASK.of(request.query)
        wanted = InboxFilter(task_id=task_id, sender=SENDER.of(request.query))
        page = await self._inbox.browse(wanted, limit=_OF_TASK)
        return documents.TaskDocument(
            task_id=task_id, lines=_lines(page.items), is_cut=page.before is not None
        )

    async def queues(self, request: PageRequest) -> documents.InboxQueuesDocument:
        """Return the queues that a process leases, or in which notifications wait for one."""
        limit = api.LIMIT.of(request.query)
        page = await self._inbox.queues(after=AFTER.of(request.query), limit=limit + 1)
        shown = [replace(each, id=quote(each.id, safe="")) for each in page[:limit]]
        return documents.InboxQueuesDocument(
            queues=shown, after=shown[-1].id if len(page) > limit else None
        )

    async def mailboxes(self, _request: PageRequest) -> documents.MailboxesDocument:
        """Return how much waits in each mailbox, and its dead letters."""
        return documents.MailboxesDocument(mailboxes=await self._inbox.mailboxes())

    async def callbacks(self, _request: PageRequest) -> documents.Callbacks:
        """Return the callbacks: their failures, and their last calls."""
        calls = self._memory.calls
        by_name: dict[str, list[CallbackTrouble]] = defaultdict(list)
        for each in await self._inbox.callback_troubles():
            by_name[each.callback].append(each)
        return documents.Callbacks(
            since=self._memory.since if self._is_known else None,
            callbacks=[
                documents.CallbackDocument(
                    callback=name,
                    troubles=by_name.get(name, []),
                    calls=calls.get(name),
                )
                for name in sorted({*by_name, *calls})
            ],
        )

    async def refusals(self, request: PageRequest) -> documents.RefusalsDocument:
        """Return the refused requests by reason, each reason with its remedy."""
        before, limit = BEFORE.of(request.query), api.LIMIT.of(request.query)
        kept = self._memory.refusals(CODE.of(request.query))
        older = [each for each in kept if before is None or each.number < before]
        page = older[:limit]
        return documents.RefusalsDocument(
            by_reason=self._reasons(),
            refusals=page,
            before=str(page[-1].number) if len(older) > limit else None,
        )

    async def refusal(self, request: PageRequest) -> documents.RefusalReport:
        """Return one refusal with every step."""
        found = self._memory.find(ID.of(request.values))
        if found is None:
            raise PageRefused(404, _FORGOTTEN)
        return documents.RefusalReport(
            request=found,
            refusal=refusal_of(found.event.code),
            is_of_a_sender=is_of_a_sender(found.event),
            steps=steps_of_refused(found.event),
        )

    def _reasons(self) -> documents.Reasons:
        counts = self._memory.counts
        rows = [(code, number, refusal_of(code)) for code, number in counts.most_common()]
        return documents.Reasons(
            is_known=self._is_known,
            since=self._memory.since if self._is_known else None,
            process=os.getpid() if self._is_known else None,
            number=counts.total(),
            reasons=[
                documents.Reason(
                    code=code, number=number, refusal=row, steps=[step.word for step in row.steps]
                )
                for code, number, row in rows
            ],
        )


def _lines(found: Sequence[NotificationSummary]) -> list[documents.GapDocument | documents.Update]:
    """Return the notifications of each sender and config by `seq`, with gaps as separate lines."""
    came: dict[tuple[str, str], set[int]] = defaultdict(set)
    for each in found:
        if each.seq is not None:
            came[each.sender, each.config_id or ""].add(each.seq)
    lines: list[documents.GapDocument | documents.Update] = []
    for each in sorted(found, key=lambda n: (n.sender, n.config_id or "", n.seq or 0, n.id)):
        if each.missing and each.seq is not None:
            first, last = each.seq - each.missing, each.seq - 1
            numbers = sorted(
                n for n in came[each.sender, each.config_id or ""] if first <= n <= last
            )
            for begin, end in zip([first - 1, *numbers], [*numbers, last + 1], strict=True):
                if end - begin > 1:
                    lines.append(
                        documents.GapDocument(sender=each.sender, first=begin + 1, last=end - 1)
                    )
        lines.append(documents.Update(summary=each))
    return lines


def steps_of_refused(refused: NotificationRefused) -> list[VerifiedStep]:
    """Return every step with its result; none if the request was no notification."""
    if not refused.steps:
        return []
    found = {Step.SENDER: refused.sender or ""}
    return [
        _step(each.step, StepResult(each.result), each.found or found.get(each.step, ""))
        for each in results_of(refused.steps, refused.code, refused.reason)
    ]


def steps_of_accepted(report: NotificationReport) -> list[VerifiedStep]:
    """Return every step with what it proved: a notification in the inbox has passed 1 to 9.

    Without a key, the inbox does not say whether the sender signs, so neither do the steps.
    """
    found = report.notification
    late = (found.received_at - found.issued_at).total_seconds()
    of_task = f"task {found.task_id}" if found.task_id else "no task"
    key = f"key {found.kid}" if found.kid else "this sender names no key"
    proven = {
        Step.SENDER: found.sender,
        Step.SIGNATURE: key,
        Step.TIME: f"signed {late:.1f} s before it arrived",
        Step.IDS: found.delivery_id,
        Step.TOKEN: "as this sender requires",
        Step.SIZE: f"{found.body_bytes:,} bytes",
        Step.BODY: key,
        Step.CONTENT: of_task,
        Step.REPLAY: f"the first of id {found.delivery_id}",
        Step.TASK: of_task,
        Step.STORED: f"stored {found.received_at:%Y-%m-%d %H:%M:%S} UTC",
    }
    untold = (*_OF_SOME_SIGNATURES, *(() if found.kid else _SIGNED))
    passed = [
        _step(
            step,
            StepResult.NOT_TOLD if step in untold else StepResult.PASSED,
            proven.get(step, ""),
        )
        for step in Step
    ]
    result, says = _of_callbacks(report)
    checks = "callbacks, in the order of the task"
    return [*passed, VerifiedStep(10, "callbacks", checks, says, result)]


def _of_callbacks(report: NotificationReport) -> tuple[StepResult, str]:
    """Return the result of the callbacks, and what is known of them."""
    found, called = report.notification, report.callbacks
    if found.unmatched:
        return StepResult.NOT_REACHED, "it matched no callback"
    ended = _ENDED.get(found.status, StepResult.WAITS)
    if ended is StepResult.PASSED and not called:
        ended = StepResult.NOT_TOLD
    return ended, f"{sum(each.done for each in called)} of {len(called)} done"


def _step(step: Step, result: StepResult, found: str) -> VerifiedStep:
    return VerifiedStep(step.number, step.word, step.checks, found, result)
