"""The documents of the sender's dashboard: its pages and its API show the same ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.clock import utc_now
from pushkit.dashboard.health import findings, meaning, mend
from pushkit.dashboard.request import rebuilt_request
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import key_document, report_document, subscription_document
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.keys.source import KeySource
from pushkit.outbox.browsing import DestinationStanding, Finished
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.outbox.states import DeliveryState
from pushkit.subscriptions.inspection import SubscriptionFilter
from pushkit.subscriptions.model import SubscriptionState
from pushkit.terminal.output import document
from pushkit.webui.documents import (
    buckets,
    choice_of,
    limit_of,
    page_document,
    percentile,
    percentiles,
    shown_body,
    text_of,
    verdict_document,
)
from pushkit.webui.exchange import PageRequest, Refused
from pushkit.webui.site import id_of

_DELIVERED: Final = DeliveryState.DELIVERED
_SPARK_ATTEMPTS: Final = 40
_SPARKED: Final = 200  # the last finished deliveries, whose attempts are shown
_PART: Final = "([A-Za-z0-9_.~-]|%[2-9A-F][0-9A-F])"
CURSOR_PATTERN: Final = f"^({_PART}*/){{2}}{_PART}+$"
_CURSOR: Final = re.compile(CURSOR_PATTERN)
_JWT: Final = re.compile(rb"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


class Pages:
    """Documents from the operators' view of outbox, subscriptions and keys."""

    def __init__(
        self,
        outbox: OutboxAdmin,
        subscriptions: SubscriptionAdmin,
        *,
        keys: KeySource | None = None,
        issuer: str | None = None,
    ) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._keys = keys
        self._issuer = issuer

    async def overview(self, _request: PageRequest) -> JsonObject:
        """Return the verdict, and the figures and errors behind it."""
        figures = await self._outbox.figures()
        ring = self._keys.ring() if self._keys else None
        delivered = [each for each in figures.finished if each.state is _DELIVERED]
        took = [(each.finished_at - each.notified_at).total_seconds() for each in delivered]
        minutes = max((figures.now - figures.finished_since).total_seconds() / 60, 1 / 60)
        return {
            **document(figures, "now"),
            **verdict_document(findings(figures, ring)),
            **document(figures, "pending in_flight dead oldest_pending_at"),
            "failing_destinations": document(figures.failing),
            "measured_since": figures.finished_since.isoformat(),
            "delivered": len(delivered),
            "delivered_per_minute": round(len(delivered) / minutes, 2),
            "latency_seconds": percentiles(took),
            "ended": buckets(
                (
                    (each.finished_at, "delivered" if each.state is _DELIVERED else "other")
                    for each in figures.finished
                ),
                ("delivered", "other"),
                figures.finished_since,
                figures.now,
            ),
            "errors": [
                {"code": code, "deliveries": number, "means": meaning(code), "mend": mend(code)}
                for code, number in figures.errors.items()
            ],
            "signing_key": next(
                (key for key in self._key_documents(figures.now) if key["signs"]), None
            ),
        }

    async def deliveries(self, request: PageRequest) -> JsonObject:
        """Return a page of deliveries, newest first."""
        query = request.query
        page = await self._outbox.browse(
            delivery_filter(query), before=text_of(query, "before"), limit=limit_of(query)
        )
        return page_document("deliveries", page, document)

    async def delivery(self, request: PageRequest) -> JsonObject:
        """Return one delivery with its attempts and its request."""
        report = await self._outbox.show(id_of(request))
        if report is None:
            raise Refused(404, "there is no delivery of this id: it may have been purged")
        with_body = request.query.get("body") == "1"
        with_answers = request.query.get("answers") == "1"
        summary = report.delivery
        of = await self._subscriptions.show(summary.subscription_id)
        sent_at = report.attempts[-1].started_at if report.attempts else utc_now()
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
            "body": shown_body(report.body) if with_body else None,
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

    async def subscriptions(self, request: PageRequest) -> JsonObject:
        """Return a page of subscriptions, newest first."""
        query = request.query
        wanted = SubscriptionFilter(
            state=choice_of(query, "state", SubscriptionState), **_shared_filter(query)
        )
        page = await self._subscriptions.browse(
            wanted, before=text_of(query, "before"), limit=limit_of(query)
        )
        return page_document("subscriptions", page, subscription_document)

    async def subscription(self, request: PageRequest) -> JsonObject:
        """Return one subscription with its newest deliveries."""
        subscription_id = id_of(request)
        report = await self._subscriptions.show(subscription_id)
        if report is None:
            raise Refused(404, "there is no subscription of this id")
        of = DeliveryFilter(subscription_id=subscription_id)
        page = await self._outbox.browse(of, limit=20)
        return {
            **subscription_document(report.subscription),
            "states_of_deliveries": {str(state): n for state, n in report.deliveries.items()},
            "newest": [document(each) for each in page.items],
        }

    async def destinations(self, request: PageRequest) -> JsonObject:
        """Return a page of destinations with failures or a wait, and the last attempted ones."""
        now, limit = utc_now(), limit_of(request.query)
        after = _destination_key(request.query.get("after") or None)
        page = await self._outbox.destinations(after=after, limit=limit + 1)
        shown, more = page[:limit], len(page) > limit
        speeds = await self._speeds(await self._outbox.finished())
        last = shown[-1] if more else None
        return {
            "destinations": [self._destination(each, now, speeds) for each in shown],
            "after": _cursor(last) if last else None,
            "lately": [
                {
                    "origin": origin,
                    "attempt_seconds": [*seconds],
                    "p50": percentile(sorted(seconds), 0.5),
                }
                for origin, seconds in sorted(speeds.items())
            ],
        }

    async def keys(self, _request: PageRequest) -> JsonObject:
        """Return the signing keys and their states, if the dashboard was given them."""
        return {"is_known": self._keys is not None, "keys": [*self._key_documents(utc_now())]}

    # --- parts ---------------------------------------------------------------------------------

    def _key_documents(self, now: datetime) -> list[JsonObject]:
        if self._keys is None:
            return []
        ring = self._keys.ring()
        return [key_document(ring, entry, now) for entry in ring.keys]

    async def _answer(self, subscription_id: str, answer: bytes | None) -> str | None:
        """Return a webhook's answer, without the secrets that it may have echoed."""
        if answer is None:
            return None
        found = await self._subscriptions.without_secrets(subscription_id, answer)
        if found is None:
            return "(not shown: it may repeat secrets that this dashboard has no key to open)"
        return _JWT.sub(b"<JWT ***>", found).decode("utf-8", "backslashreplace")

    async def _speeds(self, finished: Sequence[Finished]) -> dict[str, list[float]]:
        """Return the durations of the last attempts by origin, in seconds, the oldest first."""
        lately = finished[:_SPARKED]
        attempts = await self._outbox.attempts_of([each.id for each in lately])
        found: dict[str, list[float]] = defaultdict(list)
        for each in reversed(lately):
            found[each.origin] += [a.duration.total_seconds() for a in attempts[each.id]]
        return {origin: seconds[-_SPARK_ATTEMPTS:] for origin, seconds in found.items()}

    def _destination(
        self, each: DestinationStanding, now: datetime, speeds: Mapping[str, list[float]]
    ) -> JsonObject:
        threshold = self._outbox.breaker.failures
        state = "closed"
        if each.waits_until > now:
            state = "open" if each.failures >= threshold else "waits"
        elif each.failures >= threshold:
            state = "half_open"
        return {
            **document(each, "tenant owner origin"),
            "state": state,
            "failures": each.failures,
            "waits_until": each.waits_until.isoformat() if state in ("open", "waits") else None,
            "attempt_seconds": list(speeds.get(each.origin, [])),
        }


def delivery_filter(query: Mapping[str, str]) -> DeliveryFilter:
    """Return the filter that a query asks for. Raises ConfigError: a wrong value."""
    return DeliveryFilter(
        state=choice_of(query, "state", DeliveryState),
        subscription_id=text_of(query, "subscription"),
        error=text_of(query, "error"),
        **_shared_filter(query),
    )


def _shared_filter(query: Mapping[str, str]) -> dict[str, Any]:
    """Return the members that filters of deliveries and of subscriptions share."""
    names = {"tenant": "tenant", "owner": "owner", "task_id": "task", "origin": "origin"}
    return {member: text_of(query, name) for member, name in names.items()}


def _destination_key(after: str | None) -> DestinationKey | None:
    """Return the destination of a cursor (see `_cursor`)."""
    if after is None:
        return None
    if not _CURSOR.fullmatch(after):
        raise ConfigError("after: expected the `after` of the previous page")
    tenant, owner, origin = map(unquote, after.split("/"))
    return (tenant, owner, origin)


def _cursor(each: DestinationStanding) -> str:
    return "/".join(quote(part, safe="") for part in (each.tenant, each.owner, each.origin))
