"""The sender's dashboard: its routes and its actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, urlencode

from pushkit.bounded_json import JsonObject
from pushkit.dashboard.openapi import openapi_document
from pushkit.dashboard.pages import Pages, delivery_filter
from pushkit.dashboard.refused import RefusedConfigs
from pushkit.delivery.subscription_admin import Changed
from pushkit.keys.source import KeySource
from pushkit.outbox.changes import Redriven, Retried
from pushkit.webui.access import DashboardAccess
from pushkit.webui.asgi import PageRequest
from pushkit.webui.site import Acted, Site, fields_of, id_of

if TYPE_CHECKING:
    from pushkit.delivery.admin import OutboxAdmin
    from pushkit.delivery.sender import PushSender
    from pushkit.delivery.subscription_admin import SubscriptionAdmin


_TEMPLATES: Final = Path(__file__).parent / "templates"
_FILTERS: Final = ("state", "task", "tenant", "owner", "origin", "subscription", "error")

_Change: TypeAlias = Callable[[Sequence[str]], Awaitable[Changed]]


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
    refused = RefusedConfigs()
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
    refused: RefusedConfigs | None = None,
) -> Site:
    """Return the dashboard of an open outbox, and of the refused configs of this process."""
    pages = Pages(outbox, subscriptions, keys=keys, issuer=issuer, refused=refused)
    site = Site(access=access, templates=_TEMPLATES, title="pushkit", database=outbox.location)
    site.show("/", "overview.html", pages.overview)
    site.show("/deliveries", "deliveries.html", pages.deliveries, kept=_FILTERS)
    site.show("/deliveries/{id}", "delivery.html", pages.delivery)
    site.show("/subscriptions", "subscriptions.html", pages.subscriptions, kept=_FILTERS)
    site.show("/subscriptions/{id}", "subscription.html", pages.subscription)
    site.show("/destinations", "destinations.html", pages.destinations)
    site.show("/keys", "keys.html", pages.keys)
    site.search(_found_by)
    site.describe(openapi_document)
    if access.allow_actions:
        _add_actions(site, outbox, subscriptions)
    return site


def _add_actions(site: Site, outbox: OutboxAdmin, subscriptions: SubscriptionAdmin) -> None:
    async def redrive(ids: list[str]) -> tuple[JsonObject, str]:
        return _again("redriven", await outbox.redrive(ids))

    async def resend(ids: list[str]) -> tuple[JsonObject, str]:
        return _again("sent again", await outbox.resend(ids))

    async def retry(ids: list[str]) -> tuple[JsonObject, str]:
        return _again("tried now", await outbox.retry_now(ids))

    async def cancel(ids: list[str]) -> tuple[JsonObject, str]:
        done = await outbox.cancel(ids)
        not_done = {} if len(done) == len(ids) else {"not_pending": len(ids) - len(done)}
        return _result("cancelled", done, not_done)

    async def redrive_all(request: PageRequest) -> Acted:
        query = fields_of(request, _FILTERS)
        found = await outbox.redrive(delivery_filter(query))
        _, said = _again("redriven", found)
        return Acted(f"/deliveries?{urlencode({**query, 'said': said})}", found.ids)

    site.action("/deliveries/redrive-all", "redrive-all", redrive_all, kept=_FILTERS)
    site.actions("/deliveries", "redrive", redrive, kept=_FILTERS)
    site.actions("/deliveries", "resend", resend, kept=_FILTERS)
    site.actions("/deliveries", "retry", retry, kept=_FILTERS)
    site.actions("/deliveries", "cancel", cancel, kept=_FILTERS)
    _add_change(site, "pause", subscriptions.pause, "Paused.")
    _add_change(site, "resume", subscriptions.resume, "Resumed.")
    _add_change(site, "disable", subscriptions.disable, "Disabled.")
    _add_change(site, "enable", subscriptions.enable, "Enabled.")
    _add_change(site, "test", subscriptions.test, "A test notification is on its way.")


def _add_change(site: Site, name: str, change: _Change, done: str) -> None:
    async def one(request: PageRequest) -> Acted:
        found = await change([id_of(request)])
        said = done if found.ids else "Nothing changed: it was in that state already."
        if found.missing:
            said = "There is no such subscription."
        then = f"/subscriptions/{quote(id_of(request), safe='')}?{urlencode({'said': said})}"
        return Acted(then, found.ids)

    site.action(f"/subscriptions/{{id}}/{name}", name, one)


def _found_by(wanted: str) -> str:
    """Return the page for a search text: an id, a destination, or else a task."""
    if wanted.startswith("dlv_"):
        return f"/deliveries/{quote(wanted, safe='')}"
    if wanted.startswith("sub_"):
        return f"/subscriptions/{quote(wanted, safe='')}"
    return f"/deliveries?{urlencode({'origin' if '://' in wanted else 'task': wanted})}"


def _again(done: str, found: Redriven | Retried) -> tuple[JsonObject, str]:
    return _result(done, found.ids, {why.value: n for why, n in found.reasons.items()})


def _result(done: str, ids: Sequence[str], not_done: dict[str, int]) -> tuple[JsonObject, str]:
    said = f"{len(ids)} {done}"
    if not_done:
        said += "; not " + ", ".join(f"{n} ({why})" for why, n in sorted(not_done.items()))
    return {"ids": list(ids), "not_done": {**not_done}}, f"{said}."
