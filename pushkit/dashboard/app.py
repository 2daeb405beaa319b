"""The sender's dashboard: its routes, its actions, and the documents of its pages and its API."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

from pushkit.clock import utc_now
from pushkit.dashboard import documents
from pushkit.dashboard.documents import findings, headline, request_document
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import (
    KeyDocument,
    key_document,
    report_document,
    shown_answer,
    subscription_document,
)
from pushkit.delivery.error_codes import meaning, remedy
from pushkit.delivery.subscription_admin import Changed, SubscriptionAdmin
from pushkit.keys.files import KeySource
from pushkit.keys.ring import KeyRing
from pushkit.options import check_type
from pushkit.outbox.changes import Requeued, Retried
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import DeliveryFilter, SubscriptionFilter, of_unnamed_tenant
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.stats import FailingDestination, Finished
from pushkit.subscriptions.model import SubscriptionState
from pushkit.webui import api
from pushkit.webui.access import DashboardAccess
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
from pushkit.webui.site import FormResult, Link, Site, fields_of

if TYPE_CHECKING:
    from pushkit.delivery.sender import PushSender

_Act: TypeAlias = Callable[[Sequence[str]], Awaitable[Changed]]
_TEMPLATES: Final = Path(__file__).parent / "templates"
_LINKS: Final = (
    Link("/", "Overview"),
    Link("/deliveries", "Deliveries"),
    Link("/deliveries?state=dead", "Dead letters"),
    Link("/subscriptions", "Subscriptions"),
    Link("/queues", "Queues"),
    Link("/destinations", "Destinations"),
    Link("/keys", "Keys"),
)
_SEARCH: Final = (
    "Task, dlv_…, sub_…",
    "Find a task, delivery, subscription or destination",
)
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


def sender_dashboard(
    sender: PushSender,
    *,
    token: str,
    hosts: Collection[str],
    allow_actions: bool = False,
    keys: KeySource | None = None,
    issuer: str | None = None,
) -> Site:
    """Return a sender's dashboard, to mount where only operators can reach it.

        app.add_subapp("/ops", sender_dashboard(push, token=token, hosts=["ops.example.com"]).app())
        app.mount("/ops", sender_dashboard(push, token=token, hosts=["ops.example.com"]).asgi())

    It shows what tasks contain: never serve it to the public.

    Args:
        sender: The sender.
        token: The token that readers need; 20 characters or more.
        hosts: The names that it is served under.
        allow_actions: Whether anything may be changed.
        keys: The signing keys, to show their states.
        issuer: `iss` of the sender's notifications, to show their claims in full.

    Raises:
        ConfigError: There is no token, or it is too short.
    """
    check_type("token", token, str)  # None, as of a variable that is not set, lets a proxy read
    refused = documents.ConfigRefusals()
    sender.events.add(refused.record)
    return dashboard_app(
        sender.outbox,
        sender.subscription_admin,
        access=DashboardAccess(token=token, hosts=hosts, allow_actions=allow_actions),
        keys=keys,
        issuer=issuer,
        refused=refused,
    )


def dashboard_app(
    outbox: OutboxAdmin,
    subscriptions: SubscriptionAdmin,
    *,
    access: DashboardAccess,
    keys: KeySource | None = None,
    issuer: str | None = None,
    refused: documents.ConfigRefusals | None = None,
) -> Site:
    """Return the dashboard of an open outbox, and of the refused configs of this process."""
    of = Pages(outbox, subscriptions, keys, issuer, refused)
    site = Site(
        access=access,
        templates=_TEMPLATES,
        title="pushkit",
        database=outbox.location,
        links=_LINKS,
        search=_SEARCH,
        found_by=_found_by,
    )
    paged = (BEFORE, api.LIMIT)
    site.show("/", "overview.html", of.overview)
    site.show("/deliveries", "deliveries.html", of.deliveries, *OF_DELIVERIES, *paged)
    flags = (WITH_BODY, WITH_ANSWERS)
    site.show("/deliveries/{id}", "delivery.html", of.delivery, ID, *flags)
    wanted = (*OF_SUBSCRIPTIONS, *paged)
    site.show("/subscriptions", "subscriptions.html", of.subscriptions, *wanted)
    site.show("/subscriptions/{id}", "subscription.html", of.subscription, ID)
    site.show("/queues", "queues.html", of.queues, AFTER_QUEUE, api.LIMIT)
    after = AFTER_DESTINATION
    site.show("/destinations", "destinations.html", of.destinations, after, api.LIMIT)
    site.show("/keys", "keys.html", of.keys)
    _add_changes(site, outbox)
    _add_changes_of_subscriptions(site, subscriptions)
    return site


def _add_changes(site: Site, outbox: OutboxAdmin) -> None:
    async def redrive(ids: list[str]) -> tuple[documents.Done, str]:
        """Redrive a dead letter."""
        return _requeued("redriven", await outbox.redrive(ids))

    async def resend(ids: list[str]) -> tuple[documents.Done, str]:
        """Send a delivered or cancelled delivery again."""
        return _requeued("sent again", await outbox.resend(ids))

    async def retry(ids: list[str]) -> tuple[documents.Done, str]:
        """Attempt a pending delivery now."""
        return _requeued("tried now", await outbox.retry_now(ids))

    async def cancel(ids: list[str]) -> tuple[documents.Done, str]:
        """Cancel a pending delivery."""
        done = await outbox.cancel(ids)
        not_done = {} if len(done) == len(ids) else {"not_pending": len(ids) - len(done)}
        return _result("cancelled", done, not_done)

    async def redrive_all(request: PageRequest) -> FormResult:
        query = fields_of(request, OF_DELIVERIES)
        wanted = api.selected(DeliveryFilter, OF_DELIVERIES, query)
        found = await outbox.redrive(of_unnamed_tenant(wanted))  # as the page shows them
        done, said = _requeued("redriven", found)
        return FormResult(done.ids, said, "/deliveries", query)

    site.change("/deliveries/redrive-all", "redrive-all", redrive_all, OF_DELIVERIES)
    for act in (redrive, resend, retry, cancel):
        site.changes("/deliveries", act.__name__, act, ID, OF_DELIVERIES)


def _add_changes_of_subscriptions(site: Site, subscriptions: SubscriptionAdmin) -> None:
    for name, act, done in (
        ("pause", subscriptions.pause, "Paused."),
        ("resume", subscriptions.resume, "Resumed."),
        ("disable", subscriptions.disable, "Disabled."),
        ("enable", subscriptions.enable, "Enabled."),
        ("test", subscriptions.test, "A test notification is on its way."),
    ):
        change = functools.partial(_change_subscription, act, done)
        site.change(f"/subscriptions/{{id}}/{name}", name, change)


async def _change_subscription(act: _Act, done: str, request: PageRequest) -> FormResult:
    found = await act([ID.of(request.values)])
    said = done if found.ids else "Nothing changed: it was in that state already."
    if found.missing:
        said = "There is no such subscription."
    return FormResult(found.ids, said, request.path.rpartition("/")[0])


def _found_by(wanted: str) -> str:
    """Return the page for a search text: an id, a destination, or else a task."""
    if wanted.startswith("dlv_"):
        return f"/deliveries/{quote(wanted, safe='')}"
    if wanted.startswith("sub_"):
        return f"/subscriptions/{quote(wanted, safe='')}"
    return f"/deliveries?{urlencode({'origin' if '://' in wanted else 'task': wanted})}"


def _requeued(done: str, found: Requeued | Retried) -> tuple[documents.Done, str]:
    return _result(done, found.ids, {why.value: n for why, n in found.reasons.items()})


def _result(done: str, ids: Sequence[str], not_done: dict[str, int]) -> tuple[documents.Done, str]:
    said = f"{len(ids)} {done}"
    if not_done:
        said += "; not " + ", ".join(f"{n} ({why})" for why, n in sorted(not_done.items()))
    return documents.Done(ids=ids, not_done=not_done), f"{said}."


@dataclass(frozen=True, slots=True)
class Pages:
    """Documents from the operators' view of outbox, subscriptions and keys."""

    _outbox: OutboxAdmin
    _subscriptions: SubscriptionAdmin
    _keys: KeySource | None
    _issuer: str | None
    _refused: documents.ConfigRefusals | None

    async def overview(self, _request: PageRequest) -> documents.OverviewDocument:
        """Return whether the sender is healthy, and its main numbers."""
        stats = await self._outbox.stats(at_most=MOST_SHOWN)
        found = worst_first(findings(stats, self._ring()))
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
            api.selected(DeliveryFilter, OF_DELIVERIES, query),
            before=BEFORE.of(query),
            limit=api.LIMIT.of(query),
        )
        return documents.Deliveries(deliveries=page.items, before=page.before, is_cut=page.is_cut)

    async def delivery(self, request: PageRequest) -> documents.DeliveryDocument:
        """Return one delivery with its attempts, and its request rebuilt."""
        report = await self._outbox.show(ID.of(request.values))
        if report is None:
            raise PageRefused(404, "there is no delivery of this id: it may have been purged")
        found = await self._subscriptions.show(report.delivery.subscription_id)
        of = found.subscription if found else None
        answers = [
            documents.WebhookAnswer(number=each.number, answer=shown_answer(each))
            for each in report.attempts
        ]
        return documents.DeliveryDocument(
            report=report_document(report),
            answers=answers if WITH_ANSWERS.of(request.query) else None,
            body=shown_body(report.body) if WITH_BODY.of(request.query) else None,
            is_sealed=report.body is None,
            subscription=subscription_document(of) if of else None,
            request=request_document(report, of, self._ring(), self._issuer) if of else None,
        )

    async def subscriptions(self, request: PageRequest) -> documents.Subscriptions:
        """Return subscriptions, newest first, without secrets."""
        query = request.query
        page = await self._subscriptions.browse(
            api.selected(SubscriptionFilter, OF_SUBSCRIPTIONS, query),
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
        ring = self._ring()
        return [key_document(ring, entry, now) for entry in ring.keys] if ring else []

    def _ring(self) -> KeyRing | None:
        return self._keys.ring() if self._keys else None

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


def _cursor(each: FailingDestination) -> str:
    return "/".join(quote(part, safe="") for part in (each.tenant, each.owner, each.origin))
