"""What each page shows, as a JSON document: the pages and the API are made of the same."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.clock import utc_now
from pushkit.dashboard.health import Severity, findings, meaning, mend
from pushkit.dashboard.request import rebuilt_request
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import (
    key_document,
    report_document,
    subscription_document,
)
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.keys.source import KeySource
from pushkit.outbox import (
    AtMost,
    DeliveryFilter,
    DeliveryState,
    DestinationKey,
    DestinationStanding,
    Finished,
    OutboxFigures,
)
from pushkit.subscriptions import SubscriptionFilter, SubscriptionState
from pushkit.terminal.output import document

__all__ = ["CURSOR_PATTERN", "MAX_CHARS", "TEXT_PATTERN", "Pages", "delivery_filter"]

_S = TypeVar("_S", DeliveryState, SubscriptionState)

_VERDICTS: Final = {
    Severity.NOTE: "healthy",
    Severity.WARNING: "attention",
    Severity.FAILURE: "failing",
}
_BUCKETS: Final = 60
_SPARK_ATTEMPTS: Final = 40
_SPARKED: Final = 200  # of what ended last, whose attempts are looked at
MAX_CHARS: Final = 512
TEXT_PATTERN: Final = r"^[^\x00-\x1f\x7f]*$"
_PART: Final = "([A-Za-z0-9_.~-]|%[2-9A-F][0-9A-F])"
CURSOR_PATTERN: Final = f"^({_PART}*/){{2}}{_PART}+$"
_TEXT: Final = re.compile(TEXT_PATTERN)
_CURSOR: Final = re.compile(CURSOR_PATTERN)
_JWT: Final = re.compile(rb"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class Pages:
    """Documents over the operators' doors.

    Args:
        outbox: The outbox.
        subscriptions: Subscriptions, with the vault that opens their secrets, to hide them.
        keys: The signing keys; None if they are not known here.
        issuer: `iss`; None likewise.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self,
        outbox: OutboxAdmin,
        subscriptions: SubscriptionAdmin,
        *,
        keys: KeySource | None = None,
        issuer: str | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.outbox = outbox
        self.subscriptions = subscriptions
        self._keys = keys
        self._issuer = issuer
        self._clock = clock

    async def overview(self) -> JsonObject:
        """Return what says whether the sender is healthy, in one look."""
        figures = await self.outbox.figures()
        ring = self._keys.ring() if self._keys else None
        found = findings(figures, ring)
        worst = max((each.severity for each in found), default=Severity.NOTE)
        delivered = [each for each in figures.finished if each.state is DeliveryState.DELIVERED]
        took = sorted((each.finished_at - each.notified_at).total_seconds() for each in delivered)
        minutes = max((figures.now - figures.finished_since).total_seconds() / 60, 1 / 60)
        return {
            "now": figures.now.isoformat(),
            "verdict": _VERDICTS[worst],
            "findings": [
                {
                    "severity": each.severity.name.lower(),
                    "says": each.says,
                    "mend": each.mend,
                    "link": each.link,
                }
                for each in found
            ],
            "pending": _at_most(figures.pending),
            "in_flight": _at_most(figures.in_flight),
            "dead": _at_most(figures.dead),
            "failing_destinations": _at_most(figures.failing),
            "oldest_pending_at": _moment(figures.oldest_pending_at),
            "measured_since": figures.finished_since.isoformat(),
            "delivered": len(delivered),
            "delivered_per_minute": round(len(delivered) / minutes, 2),
            "latency_seconds": {
                "p50": _percentile(took, 0.50),
                "p95": _percentile(took, 0.95),
                "p99": _percentile(took, 0.99),
            },
            "ended": _buckets(figures),
            "errors": [
                {"code": code, "deliveries": number, "means": meaning(code), "mend": mend(code)}
                for code, number in figures.errors.items()
            ],
            "signing_key": next(
                (key for key in self._key_documents(figures.now) if key["signs"]), None
            ),
        }

    async def deliveries(self, query: Mapping[str, str], *, limit: int = 50) -> JsonObject:
        """Return a page of deliveries, newest first."""
        wanted = delivery_filter(query)
        page = await self.outbox.browse(wanted, before=_text(query, "before"), limit=limit)
        return {
            "deliveries": [document(each) for each in page.items],
            "before": page.before,
            "is_cut": page.is_cut,
        }

    async def delivery(
        self, delivery_id: str, *, with_body: bool = False, with_answers: bool = False
    ) -> JsonObject | None:
        """Return one delivery with its attempts and its request; None if there is none."""
        report = await self.outbox.show(delivery_id)
        if report is None:
            return None
        summary = report.delivery
        of = await self.subscriptions.show(summary.subscription_id)
        sent_at = report.attempts[-1].started_at if report.attempts else self._clock()
        found = report_document(report, with_body=with_body, with_answers=False)
        answers: list[JsonValue] = []
        if with_answers:
            for attempt in report.attempts:
                shown = await self._answer(summary.subscription_id, attempt.answer)
                answers.append({"number": attempt.number, "answer": shown})
        error = summary.last_error
        return {
            **found,
            "answers": answers if with_answers else None,
            "keeps_answers": any(attempt.answer is not None for attempt in report.attempts),
            "body": _shown_body(report.body) if with_body else None,
            "is_sealed": report.body is None,
            "why": {"code": error, "means": meaning(error), "mend": mend(error)} if error else None,
            "subscription": subscription_document(of.subscription) if of else None,
            "request": rebuilt_request(
                summary,
                of.subscription if of else None,
                body=report.body,
                sent_at=sent_at,
                ring=self._keys.ring() if self._keys else None,
                issuer=self._issuer,
            ),
        }

    async def subscriptions_page(self, query: Mapping[str, str], *, limit: int = 50) -> JsonObject:
        """Return a page of subscriptions, newest first."""
        wanted = SubscriptionFilter(
            state=_state(SubscriptionState, query),
            tenant=_text(query, "tenant"),
            owner=_text(query, "owner"),
            task_id=_text(query, "task"),
            origin=_text(query, "origin"),
        )
        page = await self.subscriptions.browse(wanted, before=_text(query, "before"), limit=limit)
        return {
            "subscriptions": [subscription_document(each) for each in page.items],
            "before": page.before,
            "is_cut": page.is_cut,
        }

    async def subscription(self, subscription_id: str) -> JsonObject | None:
        """Return one subscription with its newest deliveries; None if there is none."""
        report = await self.subscriptions.show(subscription_id)
        if report is None:
            return None
        of = DeliveryFilter(subscription_id=subscription_id)
        page = await self.outbox.browse(of, limit=20)
        return {
            **subscription_document(report.subscription),
            "states_of_deliveries": {
                state.value: number for state, number in report.deliveries.items()
            },
            "newest": [document(each) for each in page.items],
        }

    async def destinations(self, query: Mapping[str, str], *, limit: int = 50) -> JsonObject:
        """Return a page of destinations that have failed, and those that were delivered to last."""
        now = self._clock()
        page = await self.outbox.destinations(
            after=_destination_key(query.get("after") or None), limit=limit + 1
        )
        shown, more = page[:limit], len(page) > limit
        speeds = await self._speeds(await self.outbox.finished())
        last = shown[-1] if more else None
        return {
            "destinations": [self._destination(each, now, speeds) for each in shown],
            "after": _cursor(last) if last else None,
            "lately": [
                {
                    "origin": origin,
                    "attempt_seconds": [*seconds],
                    "p50": _percentile(sorted(seconds), 0.5),
                }
                for origin, seconds in sorted(speeds.items())
            ],
        }

    async def keys(self) -> JsonObject:
        """Return the signing keys and their states, if they are known here."""
        return {"is_known": self._keys is not None, "keys": [*self._key_documents(self._clock())]}

    # --- parts ---------------------------------------------------------------------------------

    def _key_documents(self, now: datetime) -> list[JsonObject]:
        if self._keys is None:
            return []
        ring = self._keys.ring()
        return [key_document(ring, entry, now) for entry in ring.keys]

    async def _answer(self, subscription_id: str, answer: bytes | None) -> str | None:
        """Return what a webhook answered, without the secrets that it may have echoed."""
        if answer is None:
            return None
        found = await self.subscriptions.without_secrets(subscription_id, answer)
        if found is None:
            return "(not shown: the secrets that it may repeat cannot be opened here)"
        return _JWT.sub(b"<JWT ***>", found).decode("utf-8", "backslashreplace")

    async def _speeds(self, finished: Sequence[Finished]) -> dict[str, list[float]]:
        """Return how long the last attempts at each destination took, the oldest first."""
        lately = finished[:_SPARKED]
        attempts = await self.outbox.attempts_of([each.id for each in lately])
        found: dict[str, list[float]] = defaultdict(list)
        for each in reversed(lately):
            found[each.origin] += [a.duration.total_seconds() for a in attempts[each.id]]
        return {origin: seconds[-_SPARK_ATTEMPTS:] for origin, seconds in found.items()}

    def _destination(
        self, each: DestinationStanding, now: datetime, speeds: Mapping[str, list[float]]
    ) -> JsonObject:
        from_failures = self.outbox.breaker.failures
        state = "closed"
        if each.waits_until > now:
            state = "open" if each.failures >= from_failures else "waits"
        elif each.failures >= from_failures:
            state = "half_open"
        return {
            "tenant": each.tenant,
            "owner": each.owner,
            "origin": each.origin,
            "state": state,
            "failures": each.failures,
            "waits_until": each.waits_until.isoformat() if state in ("open", "waits") else None,
            "attempt_seconds": list(speeds.get(each.origin, [])),
        }


def delivery_filter(query: Mapping[str, str]) -> DeliveryFilter:
    """Return the filter that a query means.

    Raises:
        ConfigError: A state that there is not, or a value that cannot stand in a database.
    """
    return DeliveryFilter(
        state=_state(DeliveryState, query),
        tenant=_text(query, "tenant"),
        owner=_text(query, "owner"),
        task_id=_text(query, "task"),
        subscription_id=_text(query, "subscription"),
        origin=_text(query, "origin"),
        error=_text(query, "error"),
    )


def _text(query: Mapping[str, str], name: str) -> str | None:
    """Return a value of a query; an empty field of a form is none."""
    found = query.get(name) or None
    if found is not None and (len(found) > MAX_CHARS or not _TEXT.fullmatch(found)):
        raise ConfigError(f"{name}: expected at most {MAX_CHARS} characters, none of control")
    return found


def _state(states: type[_S], query: Mapping[str, str]) -> _S | None:
    found = query.get("state") or None
    if found is None:
        return None
    try:
        return states(found)
    except ValueError as exc:
        raise ConfigError(f"state: expected one of {', '.join(states)}") from exc


def _destination_key(after: str | None) -> DestinationKey | None:
    """Return the key that a cursor is (see `_cursor`)."""
    if after is None:
        return None
    if not _CURSOR.fullmatch(after):
        raise ConfigError("after: expected what a page before returned as `after`")
    tenant, owner, origin = map(unquote, after.split("/"))
    return (tenant, owner, origin)


def _cursor(each: DestinationStanding) -> str:
    return "/".join(quote(part, safe="") for part in (each.tenant, each.owner, each.origin))


def _at_most(found: AtMost) -> JsonObject:
    return {"number": found.number, "more": found.more}


def _moment(found: datetime | None) -> str | None:
    return found.isoformat() if found else None


def _percentile(ordered: Sequence[float], part: float) -> float | None:
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def _buckets(figures: OutboxFigures) -> list[JsonValue]:
    """Return how many ended in each sixtieth of the time that was measured."""
    whole = max(figures.now - figures.finished_since, timedelta(seconds=1))
    found = [{"delivered": 0, "other": 0} for _ in range(_BUCKETS)]
    for each in figures.finished:
        place = int((each.finished_at - figures.finished_since) / whole * _BUCKETS)
        name = "delivered" if each.state is DeliveryState.DELIVERED else "other"
        found[min(max(place, 0), _BUCKETS - 1)][name] += 1
    return [
        {"at": (figures.finished_since + whole * n / _BUCKETS).isoformat(), **each}
        for n, each in enumerate(found)
    ]


def _shown_body(body: bytes | None) -> str | None:
    """Return a body as people read it: JSON in lines, anything else as it is."""
    if body is None:
        return None
    text = body.decode("utf-8", "backslashreplace")
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
