"""What each page shows, as a JSON document: the pages and the API are made of the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError
from pushkit.terminal.output import document
from receiver.admin import InboxAdmin
from receiver.inbox import (
    CallbackState,
    InboxFilter,
    InboxStatus,
    NotificationReport,
    NotificationSummary,
)

__all__ = ["InboxPages"]

_MAX_CHARS: Final = 512
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_OF_TASK: Final = 200


class InboxPages:
    """Documents over the inbox.

    Args:
        inbox: The inbox.
        clock: Returns now, aware, in UTC.
    """

    def __init__(self, inbox: InboxAdmin, *, clock: Callable[[], datetime]) -> None:
        self.inbox = inbox
        self._clock = clock

    async def overview(self) -> JsonObject:
        """Return what says whether callbacks keep up, in one look."""
        stats, now = await self.inbox.stats(), self._clock()
        dead = await self.inbox.browse(InboxFilter(status=InboxStatus.DEAD), limit=5)
        newest = await self.inbox.browse(limit=5)
        oldest = stats.oldest_unfinished_at
        waits = (now - oldest).total_seconds() if oldest else 0.0
        verdict = "healthy"
        if stats.statuses[InboxStatus.DEAD]:
            verdict = "attention"
        if waits > 600:
            verdict = "failing"
        return {
            "verdict": verdict,
            "statuses": {status.value: number for status, number in stats.statuses.items()},
            "oldest_unfinished_at": oldest.isoformat() if oldest else None,
            "senders": [document(each) for each in stats.senders],
            "dead": [_summary(each) for each in dead.items],
            "newest": [_summary(each) for each in newest.items],
        }

    async def notifications(self, query: Mapping[str, str], *, limit: int = 50) -> JsonObject:
        """Return a page of notifications, newest first."""
        page = await self.inbox.browse(inbox_filter(query), before=_before(query), limit=limit)
        return {
            "notifications": [_summary(each) for each in page.items],
            "before": page.before,
            "is_cut": page.is_cut,
        }

    async def notification(self, number: int, *, with_body: bool = False) -> JsonObject | None:
        """Return one notification with the steps it passed and its callbacks; None if none."""
        report = await self.inbox.show(number)
        if report is None:
            return None
        return {
            **_summary(report.notification),
            "steps": _steps(report),
            "callbacks": [_callback(each) for each in report.callbacks],
            "body": _shown(report.body) if with_body else None,
        }

    async def task(self, task_id: str, sender: str | None) -> JsonObject:
        """Return the notifications of a task in the order of `seq`, with what never came."""
        wanted = InboxFilter(task_id=task_id, sender=sender)
        page = await self.inbox.browse(wanted, limit=_OF_TASK)
        return {
            "task_id": task_id,
            "lines": _lines(page.items),
            "is_cut": page.before is not None,
        }


def inbox_filter(query: Mapping[str, str]) -> InboxFilter:
    """Return the filter that a query means.

    Raises:
        ConfigError: A status that there is not, or a value that cannot stand in a database.
    """
    status = query.get("status") or None
    if status is not None and status not in {*InboxStatus}:
        raise ConfigError(f"status: expected one of {', '.join(InboxStatus)}")
    return InboxFilter(
        status=InboxStatus(status) if status else None,
        sender=_text(query, "sender"),
        task_id=_text(query, "task"),
        unmatched=query.get("unmatched") == "1",
    )


def _text(query: Mapping[str, str], name: str) -> str | None:
    found = query.get(name) or None
    if found is not None and (len(found) > _MAX_CHARS or not _TEXT.fullmatch(found)):
        raise ConfigError(f"{name}: expected at most {_MAX_CHARS} characters, none of control")
    return found


def _before(query: Mapping[str, str]) -> int | None:
    found = query.get("before") or None
    if found is None:
        return None
    if not (found.isascii() and found.isdigit() and len(found) <= 18):
        raise ConfigError("before: expected what a page before returned as `before`")
    return int(found)


def _summary(found: NotificationSummary) -> JsonObject:
    return document(found)


def _callback(found: CallbackState) -> JsonObject:
    return document(found)


def _steps(report: NotificationReport) -> list[JsonValue]:
    """Return the steps of the verification (`receiver.verification`) with what each has proven.

    Whatever is in the inbox has passed all of them.
    """
    found = report.notification
    done = sum(each.done for each in report.callbacks)
    late = (found.received_at - found.issued_at).total_seconds()
    of_task = f"task {found.task_id}" if found.task_id else "no task"
    passed = (
        ("address, head and size", f"{found.body_bytes:,} bytes"),
        ("trusted sender", found.sender),
        (
            "signature, over this body",
            f"key {found.kid}" if found.kid else "this sender signs none",
        ),
        ("times, audience, issuer", f"signed {late:.1f} s before it came"),
        ("token and credentials", "as this sender has to show"),
        ("the body can be read", of_task),
        ("no replay", f"the first of id {found.delivery_id}"),
        ("the task is expected", of_task),
        ("there was room", f"stored {found.received_at:%Y-%m-%d %H:%M:%S} UTC"),
    )
    steps: list[JsonValue] = [
        {"step": number, "checks": checks, "found": proven, "result": "passed"}
        for number, (checks, proven) in enumerate(passed, start=1)
    ]
    ended = {
        InboxStatus.DONE: "passed",
        InboxStatus.DEAD: "failed",
    }.get(found.status, "waits")
    said = f"{done} of {len(report.callbacks)} had it"
    if found.unmatched:
        said = "no callback wanted it"
    steps.append({"step": 10, "checks": "callbacks", "found": said, "result": ended})
    return steps


def _lines(found: Sequence[NotificationSummary]) -> list[JsonValue]:
    """Return the notifications of each sender and config by `seq`, gaps as lines of their own."""
    lines: list[JsonValue] = []
    for each in sorted(found, key=lambda n: (n.sender, n.config_id or "", n.seq or 0, n.id)):
        if each.missing:
            last = (each.seq or 0) - 1
            first = last - each.missing + 1
            lines.append({"gap": True, "sender": each.sender, "first": first, "last": last})
        lines.append({"gap": False, **_summary(each)})
    return lines


def _shown(body: bytes) -> str:
    text = body.decode("utf-8", "backslashreplace")
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
