"""The documents of the sender's dashboard: its pages and its API show the same ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.clock import utc_now
from pushkit.dashboard.health import findings, headline
from pushkit.dashboard.refused import RefusedConfigs
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import (
    key_document,
    report_document,
    shown_answer,
    subscription_document,
)
from pushkit.delivery.error_codes import meaning, mend
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import ConfigError, InvalidUrlError, NoSigningKeyError
from pushkit.keys.jwk import Algorithm
from pushkit.keys.source import KeySource
from pushkit.lifetimes import TOKEN_LIFETIME
from pushkit.net.authorization import credential_header
from pushkit.outbox.browsing import DestinationStanding, Finished
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import DeliveryFilter, DeliveryReport
from pushkit.outbox.states import DeliveryState
from pushkit.signing.notification_jwt import SIGNATURE_HEADER, body_sha256, static_claims
from pushkit.signing.standard_webhooks import ID_HEADER, TIMESTAMP_HEADER
from pushkit.signing.token import token_headers
from pushkit.subscriptions.inspection import SubscriptionFilter
from pushkit.subscriptions.model import Profile, Subscription, SubscriptionState
from pushkit.terminal.output import document
from pushkit.url import Url, masked_url
from pushkit.version import USER_AGENT
from pushkit.webui.asgi import PageRequest, Refused
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
from pushkit.webui.site import id_of

_MASK: Final = "***"
_DELIVERED: Final = DeliveryState.DELIVERED
_SPARK_ATTEMPTS: Final = 40
_SPARKED: Final = 200  # the last finished deliveries, whose attempts are shown
_PART: Final = "([A-Za-z0-9_.~-]|%[2-9A-F][0-9A-F])"
CURSOR_PATTERN: Final = f"^({_PART}*/){{2}}{_PART}+$"
_CURSOR: Final = re.compile(CURSOR_PATTERN)


class Pages:
    """Documents from the operators' view of outbox, subscriptions and keys."""

    def __init__(
        self,
        outbox: OutboxAdmin,
        subscriptions: SubscriptionAdmin,
        *,
        keys: KeySource | None = None,
        issuer: str | None = None,
        refused: RefusedConfigs | None = None,
    ) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._keys = keys
        self._issuer = issuer
        self._refused = refused

    async def overview(self, _request: PageRequest) -> JsonObject:
        """Return the verdict, and the figures and errors behind it."""
        figures = await self._outbox.figures()
        found = list(findings(figures, self._keys.ring() if self._keys else None))
        delivered = [each for each in figures.finished if each.state is _DELIVERED]
        took = [(each.finished_at - each.age_from).total_seconds() for each in delivered]
        minutes = max((figures.now - figures.finished_since).total_seconds() / 60, 1 / 60)
        return {
            **document(figures, "now"),
            **verdict_document(headline(figures, found), found),
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
            "refused_configs": None if self._refused is None else self._refused.document(),
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
        answers: list[JsonValue] = [
            {"number": each.number, "answer": shown_answer(each)} for each in report.attempts
        ]
        return {
            **report_document(report, with_body=with_body, with_answers=False),
            "answers": answers if with_answers else None,
            "body": shown_body(report.body) if with_body else None,
            "is_sealed": report.body is None,
            "subscription": subscription_document(of.subscription) if of else None,
            "request": self._request(report, of.subscription) if of else None,
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

    def _request(self, report: DeliveryReport, subscription: Subscription) -> JsonObject | None:
        """Return the request of the last attempt, rebuilt from stored rows, with masked secrets.

        It lacks what no row holds: the operator's own credentials for a destination, signature
        schemes other than the JWT, and the signature itself, which is made for each attempt and
        never stored. None if the URL cannot be read.
        """
        try:
            url = Url.parse(subscription.config.url)
        except InvalidUrlError:
            return None
        delivery, body = report.delivery, report.body
        sent_at = report.attempts[-1].started_at if report.attempts else utc_now()
        issued_at = int(sent_at.timestamp())
        is_samples = subscription.profile is Profile.A2A_SAMPLES
        authentication = subscription.config.authentication
        credentials = None
        if authentication is not None and subscription.has_credentials:
            credentials = credential_header(replace(authentication, credentials=_MASK))
        taken = credentials is not None and credentials[0] == "Authorization"
        jwt = f"<JWT {_MASK}>"
        fields = [
            ("Host", url.authority),
            ("Content-Type", delivery.content_type),
            ("User-Agent", USER_AGENT),
            ("Accept-Encoding", "identity"),
            *token_headers(_MASK if subscription.has_token else None),
            *([credentials] if credentials else []),
            (SIGNATURE_HEADER, jwt) if taken else ("Authorization", f"Bearer {jwt}"),
            (ID_HEADER, delivery.id),
            (TIMESTAMP_HEADER, str(issued_at)),
        ]
        return {
            "line": f"POST {masked_url(url.target)} HTTP/1.1",
            "headers": [{"name": name, "value": value} for name, value in fields],
            "jwt_header": self._jwt_header(Algorithm.RS256 if is_samples else None, sent_at),
            "jwt_claims": {
                **static_claims(
                    issuer=self._issuer or "<the issuer>",
                    audience=None if is_samples else masked_url(url.audience),
                    task_id=delivery.task_id,
                    config_id=delivery.config_id,
                ),
                "iat": issued_at,
                "exp": issued_at + int(TOKEN_LIFETIME.total_seconds()),
                "jti": delivery.id,
                "seq": delivery.seq,
                "request_body_sha256": "<sealed>" if body is None else body_sha256(body),
            },
        }

    def _jwt_header(self, wanted: Algorithm | None, sent_at: datetime) -> JsonObject | None:
        if self._keys is None:
            return None
        try:
            key = self._keys.ring().active_key(sent_at, wanted)
        except NoSigningKeyError:
            return None
        return {"alg": key.algorithm.value, "kid": key.kid, "typ": "JWT"}

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
        state = "failing"
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
    """Return the members that filters of deliveries and of subscriptions share.

    A task without a tenant is one of the tenant without a name, on pages and in actions alike.
    """
    names = {"tenant": "tenant", "owner": "owner", "task_id": "task", "origin": "origin"}
    shared = {member: text_of(query, name) for member, name in names.items()}
    if shared["task_id"] is not None and shared["tenant"] is None:
        shared["tenant"] = ""
    return shared


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
