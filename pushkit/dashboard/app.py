"""The sender's dashboard: routes, and what the buttons do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, urlencode

from pushkit.bounded_json import JsonObject
from pushkit.clock import utc_now
from pushkit.dashboard.openapi import openapi_document
from pushkit.dashboard.pages import Pages, delivery_filter
from pushkit.delivery.again import Redriven, Retried
from pushkit.delivery.subscription_admin import Changed
from pushkit.keys.source import KeySource
from pushkit.webui.access import DashboardAccess
from pushkit.webui.documents import limit_of
from pushkit.webui.exchange import PageRequest, Refused, SeeOther
from pushkit.webui.site import Site

if TYPE_CHECKING:
    from pushkit.delivery.admin import OutboxAdmin
    from pushkit.delivery.sender import PushSender
    from pushkit.delivery.subscription_admin import SubscriptionAdmin


_TEMPLATES: Final = Path(__file__).parent / "templates"
_MAX_SELECTED: Final = 200
_DELIVERY: Final = "/deliveries/{id}"
_SUBSCRIPTION: Final = "/subscriptions/{id}"
_FILTERS: Final = ("state", "task", "tenant", "owner", "origin", "subscription", "error")

_Act: TypeAlias = Callable[[list[str]], Awaitable[tuple[JsonObject, str]]]
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
    """Return a sender's dashboard, to be mounted where operators are.

        app.add_subapp("/ops", sender_dashboard(push, token=token, hosts=["ops.example.com"]).app())
        app.mount("/ops", sender_dashboard(push, token=token, hosts=["ops.example.com"]).asgi())

    It shows what tasks contain: serve it where operators are, never beside the webhook of others.

    Args:
        sender: The sender.
        token: What readers show; 20 characters or more.
        hosts: The names that it is served under.
        allow_actions: Whether anything may be changed.
        keys: The signing keys, to show their states.
        issuer: `iss` of its notifications, to show them whole.

    Raises:
        ConfigError: The token is too short.
    """
    return dashboard_app(
        sender.outbox,
        sender.subscription_admin,
        access=DashboardAccess(token=token, hosts=hosts, allow_actions=allow_actions),
        keys=keys,
        issuer=issuer,
    )


def dashboard_app(
    outbox: OutboxAdmin,
    subscriptions: SubscriptionAdmin,
    *,
    access: DashboardAccess,
    keys: KeySource | None = None,
    issuer: str | None = None,
    clock: Callable[[], datetime] = utc_now,
) -> Site:
    """Return the dashboard over an outbox that is open."""
    pages = Pages(outbox, subscriptions, keys=keys, issuer=issuer, clock=clock)
    site = Site(access=access, templates=_TEMPLATES, title="pushkit", clock=clock)
    _add_pages(site, pages)
    site.live("/live")
    _add_api(site, pages)
    if access.allow_actions:
        _add_actions(site, pages)
    return site


def _add_pages(site: Site, pages: Pages) -> None:
    async def overview(_request: PageRequest) -> JsonObject:
        return {"found": await pages.overview()}

    async def deliveries(request: PageRequest) -> JsonObject:
        query = dict(request.query)
        found = await pages.deliveries(query)
        return {
            "found": found,
            "query": _kept(query),
            "older": _older(query, found),
            "is_further": bool(query.get("before")),
        }

    async def delivery(request: PageRequest) -> JsonObject:
        return {"found": await _delivery(pages, request)}

    async def subscriptions(request: PageRequest) -> JsonObject:
        query = dict(request.query)
        found = await pages.subscriptions_page(query)
        return {"found": found, "query": _kept(query), "older": _older(query, found)}

    async def subscription(request: PageRequest) -> JsonObject:
        return {"found": await _subscription(pages, request)}

    async def destinations(request: PageRequest) -> JsonObject:
        return {"found": await pages.destinations(dict(request.query))}

    async def keys(_request: PageRequest) -> JsonObject:
        return {"found": await pages.keys()}

    async def search(request: PageRequest) -> JsonObject:
        raise SeeOther(_found_by(request.query.get("q", "").strip()))

    site.page("/", "overview.html", overview)
    site.page("/deliveries", "deliveries.html", deliveries)
    site.page(_DELIVERY, "delivery.html", delivery)
    site.page("/subscriptions", "subscriptions.html", subscriptions)
    site.page(_SUBSCRIPTION, "subscription.html", subscription)
    site.page("/destinations", "destinations.html", destinations)
    site.page("/keys", "keys.html", keys)
    site.document("/search", search)


def _add_api(site: Site, pages: Pages) -> None:
    async def overview(_request: PageRequest) -> JsonObject:
        return await pages.overview()

    async def deliveries(request: PageRequest) -> JsonObject:
        return await pages.deliveries(dict(request.query), limit=limit_of(request.query))

    async def subscriptions(request: PageRequest) -> JsonObject:
        return await pages.subscriptions_page(dict(request.query), limit=limit_of(request.query))

    async def destinations(request: PageRequest) -> JsonObject:
        return await pages.destinations(dict(request.query), limit=limit_of(request.query))

    async def keys(_request: PageRequest) -> JsonObject:
        return await pages.keys()

    async def openapi(request: PageRequest) -> JsonObject:
        return openapi_document(f"{request.root}/api/v1", with_actions=site.access.allow_actions)

    site.document("/api/v1/overview", overview)
    site.document("/api/v1/deliveries", deliveries)
    site.document(f"/api/v1{_DELIVERY}", lambda request: _delivery(pages, request))
    site.document("/api/v1/subscriptions", subscriptions)
    site.document(f"/api/v1{_SUBSCRIPTION}", lambda request: _subscription(pages, request))
    site.document("/api/v1/destinations", destinations)
    site.document("/api/v1/keys", keys)
    site.document("/api/openapi.json", openapi)


def _add_actions(site: Site, pages: Pages) -> None:
    outbox, subscriptions = pages.outbox, pages.subscriptions

    async def redrive(ids: list[str]) -> tuple[JsonObject, str]:
        return _again("redriven", await outbox.redrive(ids))

    async def resend(ids: list[str]) -> tuple[JsonObject, str]:
        return _again("sent again", await outbox.resend(ids))

    async def retry(ids: list[str]) -> tuple[JsonObject, str]:
        return _again("tried now", await outbox.retry_now(ids))

    async def cancel(ids: list[str]) -> tuple[JsonObject, str]:
        done = await outbox.cancel(ids)
        not_done = {} if len(done) == len(ids) else {"not_pending": len(ids) - len(done)}
        return _came_to("cancelled", done, not_done)

    async def redrive_all(request: PageRequest) -> str:
        query = {name: request.field(name) for name in _FILTERS if request.field(name)}
        found = await outbox.redrive(delivery_filter(query))
        _, said = _again("redriven", found)
        return f"/deliveries?{urlencode({**query, 'said': said})}"

    site.action("/deliveries/redrive-all", "redrive-all", redrive_all)
    _add_delivery_action(site, "redrive", redrive)
    _add_delivery_action(site, "resend", resend)
    _add_delivery_action(site, "retry", retry)
    _add_delivery_action(site, "cancel", cancel)
    _add_subscription_action(site, "pause", subscriptions.pause)
    _add_subscription_action(site, "resume", subscriptions.resume)
    _add_subscription_action(site, "disable", subscriptions.disable)
    _add_subscription_action(site, "enable", subscriptions.enable)
    _add_subscription_action(site, "test", subscriptions.test)


def _add_delivery_action(site: Site, name: str, act: _Act) -> None:
    """Let one delivery, several that were ticked, or a program's be acted on."""

    async def one(request: PageRequest) -> str:
        delivery_id = _id(request)
        _, said = await act([delivery_id])
        return f"/deliveries/{quote(delivery_id, safe='')}?{urlencode({'said': said})}"

    async def selected(request: PageRequest) -> str:
        ids = request.form.get("id", [])[:_MAX_SELECTED]
        said = (await act(ids))[1] if ids else "Nothing was selected."
        query = {name: request.field(name) for name in _FILTERS if request.field(name)}
        return f"/deliveries?{urlencode({**query, 'said': said})}"

    async def by_api(request: PageRequest) -> JsonObject:
        found, _ = await act([_id(request)])
        return found

    site.action(f"{_DELIVERY}/{name}", name, one)
    site.action(f"/deliveries/{name}", name, selected)
    site.api_action(f"/api/v1{_DELIVERY}/{name}", name, by_api)


def _add_subscription_action(site: Site, name: str, change: _Change) -> None:
    async def one(request: PageRequest) -> str:
        subscription_id = _id(request)
        said = _changed(name, await change([subscription_id]))
        return f"/subscriptions/{quote(subscription_id, safe='')}?{urlencode({'said': said})}"

    site.action(f"{_SUBSCRIPTION}/{name}", name, one)


def _kept(query: dict[str, str]) -> JsonObject:
    return {name: query.get(name, "") for name in _FILTERS}


def _older(query: dict[str, str], found: JsonObject) -> str:
    kept = {name: query[name] for name in _FILTERS if query.get(name)}
    return urlencode({**kept, "before": str(found["before"] or "")})


def _found_by(wanted: str) -> str:
    """Return the page of what somebody looks for: an id, a destination, else a task."""
    if wanted.startswith("dlv_"):
        return f"/deliveries/{quote(wanted, safe='')}"
    if wanted.startswith("sub_"):
        return f"/subscriptions/{quote(wanted, safe='')}"
    return f"/deliveries?{urlencode({'origin' if '://' in wanted else 'task': wanted})}"


async def _delivery(pages: Pages, request: PageRequest) -> JsonObject:
    found = await pages.delivery(
        _id(request),
        with_body=request.query.get("body") == "1",
        with_answers=request.query.get("answers") == "1",
    )
    if found is None:
        raise Refused(404, "there is no delivery of this id: it may have been purged")
    return found


async def _subscription(pages: Pages, request: PageRequest) -> JsonObject:
    found = await pages.subscription(_id(request))
    if found is None:
        raise Refused(404, "there is no subscription of this id")
    return found


def _id(request: PageRequest) -> str:
    found = request.values["id"]
    if len(found) > 128 or not found.isprintable():
        raise Refused(404, "there is nothing of this id")
    return found


def _again(done: str, found: Redriven | Retried) -> tuple[JsonObject, str]:
    return _came_to(done, list(found.ids), {why.value: n for why, n in found.reasons.items()})


def _came_to(done: str, ids: list[str], not_done: dict[str, int]) -> tuple[JsonObject, str]:
    said = f"{len(ids)} {done}"
    if not_done:
        said += "; not " + ", ".join(f"{n} ({why})" for why, n in sorted(not_done.items()))
    return {"ids": list(ids), "not_done": {**not_done}}, f"{said}."


def _changed(name: str, found: Changed) -> str:
    done = {"pause": "Paused", "resume": "Resumed", "disable": "Disabled", "enable": "Enabled"}
    if found.missing:
        return "There is no such subscription."
    if not found.ids:
        return "It was so already."
    if name == "test":
        return "A test notification is on its way."
    return f"{done[name]}."
