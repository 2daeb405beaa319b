"""The documents of the receiver's dashboard: its pages and its API show the same ones."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, unquote

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError
from pushkit.terminal.output import document
from pushkit.webui.asgi import PageRequest, Refused
from pushkit.webui.documents import (
    buckets,
    choice_of,
    limit_of,
    page_document,
    percentiles,
    shown_body,
    text_of,
    verdict_document,
)
from receiver.admin import InboxAdmin
from receiver.dashboard.health import findings, headline, is_of_a_sender
from receiver.dashboard.memory import Calls, KeptRefusal, Memory
from receiver.dashboard.steps import steps_of_accepted, steps_of_refused
from receiver.inbox.inspection import CallbackTrouble, InboxFilter, NotificationSummary
from receiver.inbox.model import InboxStatus
from receiver.refusals import refusal_of

_OF_TASK: Final = 200
_MAX_DIGITS: Final = 18
# A queue's id, percent-encoded: it has a line break between sender and task, but no NUL.
CURSOR_PATTERN: Final = "^([A-Za-z0-9_.~-]|%(0[1-9A-F]|[1-9A-F][0-9A-F]))+$"
_TROUBLE: Final = "error waiting dead last_at newest"
_PURGED: Final = "there is no such notification: it may have been purged"
_FORGOTTEN: Final = "there is no such refusal: only the newest for each reason are kept, in memory"


class InboxPages:
    """Documents from the inbox, and from the events of a receiver in this process."""

    def __init__(
        self,
        inbox: InboxAdmin,
        *,
        memory: Memory | None = None,  # its events; None without a receiver in this process
        # Returns why such a receiver fails for some senders, by part.
        degraded: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.inbox = inbox
        self._memory = memory
        self._degraded = degraded

    async def overview(self, _request: PageRequest) -> JsonObject:
        """Return the verdict, and the figures and refusals behind it."""
        figures = await self.inbox.figures()
        troubles = await self.inbox.callback_troubles()
        dead = await self.inbox.browse(InboxFilter(status=InboxStatus.DEAD), limit=5)
        newest = await self.inbox.browse(limit=5)
        kept = self._memory.refusals() if self._memory else []
        found = list(findings(figures, troubles, kept, self._degraded()))
        minutes = max((figures.now - figures.arrivals_since).total_seconds() / 60, 1 / 60)
        return {
            "now": figures.now.isoformat(),
            **verdict_document(headline(figures, troubles, kept, found), found),
            **document(figures, "received in_progress dead unmatched incomplete"),
            **document(figures, "oldest_unfinished_at"),
            "measured_since": figures.arrivals_since.isoformat(),
            "accepted": len(figures.arrivals),
            "accepted_per_minute": round(len(figures.arrivals) / minutes, 2),
            "seconds_until_called_back": percentiles(
                (done - came).total_seconds() for came, done in figures.arrivals if done
            ),
            "came": buckets(
                ((came, "done" if done else "other") for came, done in figures.arrivals),
                ("done", "other"),
                figures.arrivals_since,
                figures.now,
            ),
            "refusals": self._refusals_document(),
            "newest_dead": [document(each) for each in dead.items],
            "newest": [document(each) for each in newest.items],
        }

    async def notifications(self, request: PageRequest) -> JsonObject:
        """Return a page of notifications, newest first."""
        query = request.query
        page = await self.inbox.browse(
            inbox_filter(query), before=_before(query), limit=limit_of(query)
        )
        return page_document("notifications", page, document)

    async def notification(self, request: PageRequest) -> JsonObject:
        """Return one notification with its verification steps and its callbacks."""
        report = await self.inbox.show(number_of(request.values["id"]))
        if report is None:
            raise Refused(404, _PURGED)
        with_body = request.query.get("body") == "1"
        return {
            **document(report.notification),
            "steps": [*steps_of_accepted(report)],
            **document(report, "callbacks"),
            "body": shown_body(report.body) if with_body else None,
        }

    async def task(self, request: PageRequest) -> JsonObject:
        """Return the notifications of a task in the order of `seq`, with the gaps between them."""
        query = request.query
        task_id = text_of(query, "task")
        if task_id is None:
            raise ConfigError("task: expected the id of a task")
        wanted = InboxFilter(task_id=task_id, sender=text_of(query, "sender"))
        page = await self.inbox.browse(wanted, limit=_OF_TASK)
        return {"task_id": task_id, "lines": _lines(page.items), "is_cut": page.before is not None}

    async def queues(self, request: PageRequest) -> JsonObject:
        """Return a page of the queues that a process leases, or that are due, by id."""
        limit = limit_of(request.query)
        page = await self.inbox.queues(after=_after(request.query), limit=limit + 1)
        shown, more = page[:limit], len(page) > limit
        return {
            "queues": [{**document(each), "id": _cursor(each.id)} for each in shown],
            "after": _cursor(shown[-1].id) if more else None,
        }

    async def callbacks(self, _request: PageRequest) -> JsonObject:
        """Return the callbacks with their errors, and their calls in this process."""
        troubles = await self.inbox.callback_troubles()
        calls = self._memory.calls if self._memory else {}
        by_name: dict[str, list[CallbackTrouble]] = defaultdict(list)
        for each in troubles:
            by_name[each.callback].append(each)
        return {
            "since": self._memory.since.isoformat() if self._memory else None,
            "callbacks": [
                {
                    "callback": name,
                    "troubles": [document(each, _TROUBLE) for each in by_name.get(name, [])],
                    "calls": _calls(calls[name]) if name in calls else None,
                }
                for name in sorted({*by_name, *calls})
            ],
        }

    async def refusals(self, request: PageRequest) -> JsonObject:
        """Return the number of refusals by reason, and a page of refusals, newest first."""
        query, limit = request.query, limit_of(request.query)
        code, before = text_of(query, "code"), _before(query)
        kept = self._memory.refusals(code) if self._memory else []
        older = [each for each in kept if before is None or each.number < before]
        page = older[:limit]
        return {
            **self._refusals_document(),
            "refusals": [_refused(each) for each in page],
            "before": str(page[-1].number) if len(older) > limit else None,
        }

    async def refusal(self, request: PageRequest) -> JsonObject:
        """Return one refusal with its verification steps."""
        number = number_of(request.values["id"])
        found = self._memory.find(number) if self._memory else None
        if found is None:
            raise Refused(404, _FORGOTTEN)
        row = refusal_of(found.event.code)
        return {
            **_refused(found),
            **document(row, "means mend"),
            "is_of_a_sender": is_of_a_sender(found.event),
            "steps": [*steps_of_refused(found.event)],
        }

    def _refusals_document(self) -> JsonObject:
        counts = self._memory.counts.most_common() if self._memory else []
        return {
            "is_known": self._memory is not None,
            "since": self._memory.since.isoformat() if self._memory else None,
            "process": os.getpid() if self._memory else None,
            "number": sum(number for _, number in counts),
            "reasons": [_reason(code, number) for code, number in counts],
        }


def inbox_filter(query: Mapping[str, str]) -> InboxFilter:
    """Return the filter that a query asks for. Raises ConfigError: a wrong value."""
    return InboxFilter(
        status=choice_of(query, "status", InboxStatus),
        sender=text_of(query, "sender"),
        task_id=text_of(query, "task"),
        unmatched=query.get("unmatched") == "1",
    )


def _before(query: Mapping[str, str]) -> int | None:
    found = query.get("before") or None
    if found is None:
        return None
    if not is_number(found):
        raise ConfigError("before: expected the `before` of the previous page")
    return int(found)


def _cursor(queue_id: str) -> str:
    return quote(queue_id, safe="")


def _after(query: Mapping[str, str]) -> str | None:
    found = query.get("after") or None
    if found is not None and not re.fullmatch(CURSOR_PATTERN, found):
        raise ConfigError("after: expected the `after` of the previous page")
    return found and unquote(found)


def is_number(text: str) -> bool:
    """Return whether a text can be the id of a notification or refusal."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def number_of(text: str) -> int:
    """Return the id in a path or a form. Raises Refused: it is not a number."""
    if not is_number(text):
        raise Refused(404, "there is nothing with this number")
    return int(text)


def _refused(found: KeptRefusal) -> JsonObject:
    event = document(found.event, "at code status sender task_id delivery_id peer")
    return {**document(found, "number reason"), **event}


def _reason(code: str, number: int) -> JsonObject:
    row = refusal_of(code)
    steps: list[JsonValue] = [step.word for step in row.steps]
    return {"code": code, "number": number, **document(row, "status means mend"), "steps": steps}


def _calls(found: Calls) -> JsonObject:
    took = [each.total_seconds() for each in found.took]
    return {
        "number": found.calls,
        "failed": found.failed,
        "seconds": [*took],
        "latency_seconds": percentiles(took),
        "failures": [
            document(each, "at notification_id task_id error") for each in reversed(found.failures)
        ],
    }


def _lines(found: Sequence[NotificationSummary]) -> list[JsonValue]:
    """Return the notifications of each sender and config by `seq`, with gaps as separate lines.

    A gap is the numbers that had not arrived before the next notification, and have not since.
    """
    came: dict[tuple[str, str], set[int]] = defaultdict(set)
    for each in found:
        if each.seq is not None:
            came[each.sender, each.config_id or ""].add(each.seq)
    lines: list[JsonValue] = []
    for each in sorted(found, key=lambda n: (n.sender, n.config_id or "", n.seq or 0, n.id)):
        if each.missing and each.seq is not None:
            first, last = each.seq - each.missing, each.seq - 1
            numbers = sorted(
                n for n in came[each.sender, each.config_id or ""] if first <= n <= last
            )
            for begin, end in zip([first - 1, *numbers], [*numbers, last + 1], strict=True):
                if end - begin > 1:
                    gap = {"first": begin + 1, "last": end - 1}
                    lines.append({"gap": True, "sender": each.sender, **gap})
        lines.append({"gap": False, **document(each)})
    return lines
