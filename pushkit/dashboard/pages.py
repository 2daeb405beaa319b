"""The documents of the sender's dashboard: its pages and its API show the same ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from pushkit.clock import TOKEN_LIFETIME, utc_now
from pushkit.dashboard import documents
from pushkit.dashboard.health import findings, headline
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import (
    KeyDocument,
    key_document,
    report_document,
    shown_answer,
    subscription_document,
)
from pushkit.delivery.error_codes import meaning, remedy
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import InvalidUrlError, NoSigningKeyError
from pushkit.keys.files import KeySource
from pushkit.keys.jwk import Algorithm
from pushkit.net.authorization import credential_header
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import (
    DeliveryFilter,
    DeliveryReport,
    SubscriptionFilter,
    of_unnamed_tenant,
)
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.stats import FailingDestination, Finished
from pushkit.signing.notification_jwt import SIGNATURE_HEADER, body_sha256, static_claims
from pushkit.signing.standard_webhooks import ID_HEADER, TIMESTAMP_HEADER
from pushkit.signing.token import token_headers
from pushkit.subscriptions.model import Profile, Subscription, SubscriptionState
from pushkit.url import Url, masked_url
from pushkit.version import USER_AGENT
from pushkit.webhook import A2A_VERSION
from pushkit.webui import api
from pushkit.webui.asgi import PageRefused, PageRequest
from pushkit.webui.parts import (
    MOST_SHOWN,
    a_minute,
    buckets,
    percentile,
    percentiles,
    shown_body,
    worst_first,
)

F = TypeVar("F", DeliveryFilter, SubscriptionFilter)

_MASK: Final = "***"
_SPARK_ATTEMPTS: Final = 40
_SPARKED: Final = 200  # the last finished deliveries, whose attempts are shown


def _destination_key(after: str) -> DestinationKey:
    """Return the destination of a cursor (see `_cursor`)."""
    tenant, owner, origin = map(unquote, after.split("/"))
    return (tenant, owner, origin)


_PART: Final = "([A-Za-z0-9_.~-]|%[2-9A-F][0-9A-F])"
ID: Final = api.id_in_path("[!-~]{1,128}", str, "")
_OF_BOTH: Final = (
    api.text("task", "Of this task; without `tenant`, of the unnamed tenant.", "task_id"),
    api.text("tenant", "Of this tenant."),
    api.text("owner", "Of this owner."),
    api.text("origin", "To this destination: https://host:port."),
)
OF_DELIVERIES: Final = (
    api.choice("state", "In this state.", DeliveryState),
    *_OF_BOTH,
    api.text("subscription", "Of this subscription.", "subscription_id"),
    api.text("error", "With this code as their last error."),
)
OF_SUBSCRIPTIONS: Final = (
    api.choice("state", "In this state; by default all but `withdrawn`.", SubscriptionState),
    *_OF_BOTH,
)
BEFORE: Final = api.position("before", api.TEXT, str)
AFTER_DESTINATION: Final = api.position("after", f"({_PART}*/){{2}}{_PART}+", _destination_key)
AFTER_QUEUE: Final = api.position("after", api.TEXT, str)
WITH_BODY: Final = api.flag("body", "1: with the body.")
WITH_ANSWERS: Final = api.flag("answers", "1: with the webhook's answers, if they were stored.")


class Pages:
    """Documents from the operators' view of outbox, subscriptions and keys."""

    def __init__(
        self,
        outbox: OutboxAdmin,
        subscriptions: SubscriptionAdmin,
        *,
        keys: KeySource | None = None,
        issuer: str | None = None,
        refused: documents.ConfigRefusals | None = None,
    ) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._keys = keys
        self._issuer = issuer
        self._refused = refused

    async def overview(self, _request: PageRequest) -> documents.OverviewDocument:
        """Return whether the sender is healthy, and its main numbers."""
        stats = await self._outbox.stats(at_most=MOST_SHOWN)
        found = worst_first(findings(stats, self._keys.ring() if self._keys else None))
        ended = [(each, each.state is DeliveryState.DELIVERED) for each in stats.finished]
        delivered = [each for each, is_delivered in ended if is_delivered]
        since, now = stats.finished_since, stats.now
        times = buckets(((each.finished_at, good) for each, good in ended), since, now)
        return documents.OverviewDocument(
            headline=headline(stats, found),
            findings=found,
            stats=stats,
            failing_destinations=stats.failing,
            measured_since=since,
            delivered=len(delivered),
            delivered_per_minute=a_minute(len(delivered), since, now),
            latency_seconds=percentiles(
                (each.finished_at - each.age_from).total_seconds() for each in delivered
            ),
            ended=[documents.Ended(*each) for each in times],
            errors=[
                documents.ErrorCount(
                    code=code, means=meaning(code), remedy=remedy(code), deliveries=number
                )
                for code, number in stats.errors.items()
            ],
            refused_configs=self._refused,
            signing_key=next((key for key in self._key_documents(now) if key.signs), None),
        )

    async def deliveries(self, request: PageRequest) -> documents.Deliveries:
        """Return deliveries, newest first.

        A page may not be full: `before` leads to the next one.
        """
        query = request.query
        page = await self._outbox.browse(
            filter_of(DeliveryFilter, OF_DELIVERIES, query),
            before=BEFORE.of(query),
            limit=api.LIMIT.of(query),
        )
        return documents.Deliveries(deliveries=page.items, before=page.before, is_cut=page.is_cut)

    async def delivery(self, request: PageRequest) -> documents.DeliveryDocument:
        """Return one delivery with its attempts, and its request rebuilt."""
        report = await self._outbox.show(ID.of(request.values))
        if report is None:
            raise PageRefused(404, "there is no delivery of this id: it may have been purged")
        of = await self._subscriptions.show(report.delivery.subscription_id)
        answers = [
            documents.WebhookAnswer(number=each.number, answer=shown_answer(each))
            for each in report.attempts
        ]
        return documents.DeliveryDocument(
            report=report_document(report),
            answers=answers if WITH_ANSWERS.of(request.query) else None,
            body=shown_body(report.body) if WITH_BODY.of(request.query) else None,
            is_sealed=report.body is None,
            subscription=subscription_document(of.subscription) if of else None,
            request=self._request(report, of.subscription) if of else None,
        )

    async def subscriptions(self, request: PageRequest) -> documents.Subscriptions:
        """Return subscriptions, newest first, without secrets."""
        query = request.query
        page = await self._subscriptions.browse(
            filter_of(SubscriptionFilter, OF_SUBSCRIPTIONS, query),
            before=BEFORE.of(query),
            limit=api.LIMIT.of(query),
        )
        return documents.Subscriptions(
            subscriptions=[subscription_document(each) for each in page.items],
            before=page.before,
            is_cut=page.is_cut,
        )

    async def subscription(self, request: PageRequest) -> documents.SubscriptionReportDocument:
        """Return one subscription with its newest deliveries."""
        subscription_id = ID.of(request.values)
        report = await self._subscriptions.show(subscription_id)
        if report is None:
            raise PageRefused(404, "there is no subscription of this id")
        page = await self._outbox.browse(DeliveryFilter(subscription_id=subscription_id), limit=20)
        return documents.SubscriptionReportDocument(
            subscription=subscription_document(report.subscription),
            states_of_deliveries={state.value: n for state, n in report.deliveries.items()},
            newest=page.items,
        )

    async def destinations(self, request: PageRequest) -> documents.Destinations:
        """Return destinations that failed last or asked to wait, with their breakers."""
        now, limit = utc_now(), api.LIMIT.of(request.query)
        page = await self._outbox.destinations(
            after=AFTER_DESTINATION.of(request.query), limit=limit + 1
        )
        shown, more = page[:limit], len(page) > limit
        speeds = await self._speeds(await self._outbox.finished())
        return documents.Destinations(
            destinations=[self._destination(each, now, speeds) for each in shown],
            after=_cursor(shown[-1]) if more else None,
            lately=[
                documents.Speed(
                    origin=origin, attempt_seconds=took, p50=percentile(sorted(took), 0.5)
                )
                for origin, took in sorted(speeds.items())
            ],
        )

    async def queues(self, request: PageRequest) -> documents.QueuesDocument:
        """Return the queues that a worker leases, or in which deliveries wait for one."""
        limit = api.LIMIT.of(request.query)
        page = await self._outbox.queues(after=AFTER_QUEUE.of(request.query), limit=limit + 1)
        after = page[limit - 1].id if len(page) > limit else None
        return documents.QueuesDocument(queues=page[:limit], after=after)

    async def keys(self, _request: PageRequest) -> documents.Keys:
        """Return the signing keys and their states."""
        return documents.Keys(is_known=self._keys is not None, keys=self._key_documents(utc_now()))

    # --- parts ---------------------------------------------------------------------------------

    def _key_documents(self, now: datetime) -> list[KeyDocument]:
        if self._keys is None:
            return []
        ring = self._keys.ring()
        return [key_document(ring, entry, now) for entry in ring.keys]

    def _request(
        self, report: DeliveryReport, subscription: Subscription
    ) -> documents.RequestDocument | None:
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
            (A2A_VERSION, delivery.version.value),
            ("User-Agent", USER_AGENT),
            ("Accept-Encoding", "identity"),
            *token_headers(_MASK if subscription.has_token else None),
            *([credentials] if credentials else []),
            (SIGNATURE_HEADER, jwt) if taken else ("Authorization", f"Bearer {jwt}"),
            (ID_HEADER, delivery.id),
            (TIMESTAMP_HEADER, str(issued_at)),
        ]
        claims = static_claims(
            issuer=self._issuer or "<the issuer>",
            audience=None if is_samples else masked_url(url.audience),
            task_id=delivery.task_id,
            config_id=delivery.config_id,
        )
        return documents.RequestDocument(
            line=f"POST {masked_url(url.target)} HTTP/1.1",
            headers=[documents.FieldDocument(name=name, value=value) for name, value in fields],
            jwt_header=self._jwt_header(Algorithm.RS256 if is_samples else None, sent_at),
            jwt_claims={
                **claims,
                "iat": issued_at,
                "exp": issued_at + int(TOKEN_LIFETIME.total_seconds()),
                "jti": delivery.id,
                "seq": delivery.seq,
                "request_body_sha256": "<sealed>" if body is None else body_sha256(body),
            },
        )

    def _jwt_header(self, wanted: Algorithm | None, sent_at: datetime) -> dict[str, str] | None:
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
        self, each: FailingDestination, now: datetime, speeds: Mapping[str, list[float]]
    ) -> documents.DestinationDocument:
        threshold, waits = self._outbox.breaker.failures, each.waits_until > now
        state = documents.BreakerState.WAITS if waits else documents.BreakerState.FAILING
        if each.failures >= threshold:
            state = documents.BreakerState.OPEN if waits else documents.BreakerState.HALF_OPEN
        return documents.DestinationDocument(
            destination=each,
            state=state,
            waits_until=each.waits_until if waits else None,
            attempt_seconds=speeds.get(each.origin, []),
        )


def filter_of(
    filters: Callable[..., F], by: Iterable[api.Parameter[Any]], query: Mapping[str, str]
) -> F:
    """Return the filter that a query asks for. Raises PageRefused: a wrong value.

    A task without a tenant is one of the tenant without a name, on pages and in actions alike.
    """
    return of_unnamed_tenant(api.selected(filters, by, query))


def _cursor(each: FailingDestination) -> str:
    return "/".join(quote(part, safe="") for part in (each.tenant, each.owner, each.origin))
