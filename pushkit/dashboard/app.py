"""The sender's dashboard: its routes and its actions."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, urlencode

from pushkit.dashboard import pages
from pushkit.dashboard.documents import ConfigRefusals, Done
from pushkit.dashboard.pages import OF_DELIVERIES, Pages, filter_of
from pushkit.keys.files import KeySource
from pushkit.outbox.changes import Requeued, Retried
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.webui.access import DashboardAccess
from pushkit.webui.api import LIMIT
from pushkit.webui.asgi import PageRequest
from pushkit.webui.site import FormResult, Link, Site, fields_of

if TYPE_CHECKING:
    from pushkit.delivery.admin import OutboxAdmin
    from pushkit.delivery.sender import PushSender
    from pushkit.delivery.subscription_admin import Changed, SubscriptionAdmin


_Act: TypeAlias = "Callable[[Sequence[str]], Awaitable[Changed]]"
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
        ConfigError: The token is too short.
    """
    refused = ConfigRefusals()
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
    refused: ConfigRefusals | None = None,
) -> Site:
    """Return the dashboard of an open outbox, and of the refused configs of this process."""
    of = Pages(outbox, subscriptions, keys=keys, issuer=issuer, refused=refused)
    site = Site(
        access=access,
        templates=_TEMPLATES,
        title="pushkit",
        database=outbox.location,
        links=_LINKS,
        search=_SEARCH,
        found_by=_found_by,
    )
    paged = (pages.BEFORE, LIMIT)
    site.show("/", "overview.html", of.overview)
    site.show("/deliveries", "deliveries.html", of.deliveries, *OF_DELIVERIES, *paged)
    flags = (pages.WITH_BODY, pages.WITH_ANSWERS)
    site.show("/deliveries/{id}", "delivery.html", of.delivery, pages.ID, *flags)
    wanted = (*pages.OF_SUBSCRIPTIONS, *paged)
    site.show("/subscriptions", "subscriptions.html", of.subscriptions, *wanted)
    site.show("/subscriptions/{id}", "subscription.html", of.subscription, pages.ID)
    site.show("/queues", "queues.html", of.queues, pages.AFTER_QUEUE, LIMIT)
    after = pages.AFTER_DESTINATION
    site.show("/destinations", "destinations.html", of.destinations, after, LIMIT)
    site.show("/keys", "keys.html", of.keys)
    _add_changes(site, outbox)
    _add_changes_of_subscriptions(site, subscriptions)
    return site


def _add_changes(site: Site, outbox: OutboxAdmin) -> None:
    async def redrive(ids: list[str]) -> tuple[Done, str]:
        """Redrive a dead letter."""
        return _requeued("redriven", await outbox.redrive(ids))

    async def resend(ids: list[str]) -> tuple[Done, str]:
        """Send a delivered or cancelled delivery again."""
        return _requeued("sent again", await outbox.resend(ids))

    async def retry(ids: list[str]) -> tuple[Done, str]:
        """Attempt a pending delivery now."""
        return _requeued("tried now", await outbox.retry_now(ids))

    async def cancel(ids: list[str]) -> tuple[Done, str]:
        """Cancel a pending delivery."""
        done = await outbox.cancel(ids)
        not_done = {} if len(done) == len(ids) else {"not_pending": len(ids) - len(done)}
        return _result("cancelled", done, not_done)

    async def redrive_all(request: PageRequest) -> FormResult:
        query = fields_of(request, OF_DELIVERIES)
        found = await outbox.redrive(filter_of(DeliveryFilter, OF_DELIVERIES, query))
        done, said = _requeued("redriven", found)
        return FormResult(done.ids, said, "/deliveries", query)

    site.change("/deliveries/redrive-all", "redrive-all", redrive_all, OF_DELIVERIES)
    for act in (redrive, resend, retry, cancel):
        site.changes("/deliveries", act.__name__, act, pages.ID, OF_DELIVERIES)


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
    found = await act([pages.ID.of(request.values)])
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


def _requeued(done: str, found: Requeued | Retried) -> tuple[Done, str]:
    return _result(done, found.ids, {why.value: n for why, n in found.reasons.items()})


def _result(done: str, ids: Sequence[str], not_done: dict[str, int]) -> tuple[Done, str]:
    said = f"{len(ids)} {done}"
    if not_done:
        said += "; not " + ", ".join(f"{n} ({why})" for why, n in sorted(not_done.items()))
    return Done(ids=ids, not_done=not_done), f"{said}."
