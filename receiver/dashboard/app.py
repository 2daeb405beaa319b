"""The receiver's dashboard: routes, and what the buttons do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from pushkit.clock import utc_now
from pushkit.webui.access import DashboardAccess
from pushkit.webui.documents import limit_of
from pushkit.webui.exchange import PageRequest, Refused, SeeOther
from pushkit.webui.site import Site
from receiver.dashboard.memory import Memory
from receiver.dashboard.openapi import openapi_document
from receiver.dashboard.pages import InboxPages

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonObject
    from receiver.admin import InboxAdmin
    from receiver.receiver import Receiver


_TEMPLATES: Final = Path(__file__).parent / "templates"
_FILTERS: Final = ("status", "sender", "task", "unmatched")
_MAX_DIGITS: Final = 18
_MAX_SELECTED: Final = 200
_NOTIFICATION: Final = "/notifications/{id}"
_REFUSAL: Final = "/refusals/{id}"
_PURGED: Final = "there is no such notification: it may have been purged"
_FORGOTTEN: Final = "there is no such refusal: only the newest of each reason are kept, in memory"


def receiver_dashboard(
    receiver: Receiver, *, token: str, hosts: Collection[str], allow_actions: bool = False
) -> Site:
    """Return a receiver's dashboard, to be mounted where operators are.

        app.add_subapp("/ops", receiver_dashboard(receiver, token=token, hosts=[host]).app())
        app.mount("/ops", receiver_dashboard(receiver, token=token, hosts=[host]).asgi())

    It shows what tasks contain: never mount it beside the webhook.

    Args:
        receiver: The receiver; refusals are kept from here on.
        token: What readers show; 20 characters or more.
        hosts: The names that it is served under.
        allow_actions: Whether anything may be changed.

    Raises:
        ConfigError: The token is too short.
    """
    access = DashboardAccess(token=token, hosts=hosts, allow_actions=allow_actions)
    return dashboard_of(receiver, access=access)


def dashboard_of(
    receiver: Receiver,
    *,
    access: DashboardAccess,  # who may look, and act
    clock: Callable[[], datetime] = utc_now,  # returns now, aware, in UTC
    memory: Memory | None = None,  # where refusals are kept, if others tell there, too
) -> Site:
    """Return the dashboard of a receiver of this process; refusals are kept from here on."""
    memory = memory or Memory(clock)
    receiver.events.add(memory.hear)
    pages = InboxPages(receiver.inbox, clock=clock, memory=memory, degraded=receiver.degraded)
    return _site(pages, access, clock)


def inbox_dashboard(
    inbox: InboxAdmin, *, access: DashboardAccess, clock: Callable[[], datetime] = utc_now
) -> Site:
    """Return the dashboard over an inbox that is open: without refusals, which are in no row."""
    return _site(InboxPages(inbox, clock=clock), access, clock)


def _site(pages: InboxPages, access: DashboardAccess, clock: Callable[[], datetime]) -> Site:
    site = Site(access=access, templates=_TEMPLATES, title="receiver", clock=clock)
    _add_pages(site, pages)
    site.live("/live")
    _add_api(site, pages)
    if access.allow_actions:
        _add_actions(site, pages.inbox)
    return site


def _add_pages(site: Site, pages: InboxPages) -> None:
    async def overview(_request: PageRequest) -> JsonObject:
        return {"found": await pages.overview()}

    async def notifications(request: PageRequest) -> JsonObject:
        query = request.query
        found = await pages.notifications(query)
        kept = {name: query[name] for name in _FILTERS if query.get(name)}
        return {
            "found": found,
            "query": {name: query.get(name, "") for name in _FILTERS},
            "older": urlencode({**kept, "before": str(found["before"] or "")}),
        }

    async def notification(request: PageRequest) -> JsonObject:
        return {"found": await _notification(pages, request)}

    async def task(request: PageRequest) -> JsonObject:
        return {"found": await pages.task(request.query)}

    async def callbacks(_request: PageRequest) -> JsonObject:
        return {"found": await pages.callbacks()}

    async def refusals(request: PageRequest) -> JsonObject:
        code = request.query.get("code", "")
        found = await pages.refusals(request.query)
        kept = {"code": code} if code else {}
        older = urlencode({**kept, "before": str(found["before"] or "")})
        return {"found": found, "code": code, "older": older}

    async def refusal(request: PageRequest) -> JsonObject:
        return {"found": await _refusal(pages, request)}

    async def search(request: PageRequest) -> JsonObject:
        raise SeeOther(_found_by(request.query.get("q", "").strip()))

    site.page("/", "overview.html", overview)
    site.page("/notifications", "notifications.html", notifications)
    site.page(_NOTIFICATION, "notification.html", notification)
    site.page("/task", "task.html", task)
    site.page("/callbacks", "callbacks.html", callbacks)
    site.page("/refusals", "refusals.html", refusals)
    site.page(_REFUSAL, "refusal_of_one.html", refusal)
    site.document("/search", search)


def _add_api(site: Site, pages: InboxPages) -> None:
    async def overview(_request: PageRequest) -> JsonObject:
        return await pages.overview()

    async def notifications(request: PageRequest) -> JsonObject:
        return await pages.notifications(request.query, limit=limit_of(request.query))

    async def task(request: PageRequest) -> JsonObject:
        return await pages.task(request.query)

    async def callbacks(_request: PageRequest) -> JsonObject:
        return await pages.callbacks()

    async def refusals(request: PageRequest) -> JsonObject:
        return await pages.refusals(request.query, limit=limit_of(request.query))

    async def openapi(request: PageRequest) -> JsonObject:
        actions = site.access.allow_actions
        return openapi_document(f"{request.root}/api/v1", with_actions=actions)

    site.document("/api/v1/overview", overview)
    site.document("/api/v1/notifications", notifications)
    site.document(f"/api/v1{_NOTIFICATION}", lambda request: _notification(pages, request))
    site.document("/api/v1/task", task)
    site.document("/api/v1/callbacks", callbacks)
    site.document("/api/v1/refusals", refusals)
    site.document(f"/api/v1{_REFUSAL}", lambda request: _refusal(pages, request))
    site.document("/api/openapi.json", openapi)


def _add_actions(site: Site, inbox: InboxAdmin) -> None:
    async def redrive(ids: Sequence[int]) -> tuple[JsonObject, str]:
        found = await inbox.redrive(ids)
        said = f"{len(found.ids)} called back again"
        said += f"; not {found.skipped}, which are no dead letters" if found.skipped else ""
        return {"ids": list(found.ids), "skipped": found.skipped}, f"{said}."

    async def one(request: PageRequest) -> str:
        number = _number(request)
        _, said = await redrive([number])
        return f"/notifications/{number}?{urlencode({'said': said})}"

    async def selected(request: PageRequest) -> str:
        ids = [int(each) for each in request.form.get("id", []) if _is_number(each)]
        said = (await redrive(ids[:_MAX_SELECTED]))[1] if ids else "Nothing was selected."
        query = {name: request.field(name) for name in _FILTERS if request.field(name)}
        return f"/notifications?{urlencode({**query, 'said': said})}"

    async def by_api(request: PageRequest) -> JsonObject:
        return (await redrive([_number(request)]))[0]

    site.action(f"{_NOTIFICATION}/redrive", "redrive", one)
    site.action("/notifications/redrive", "redrive", selected)
    site.api_action(f"/api/v1{_NOTIFICATION}/redrive", "redrive", by_api)


def _found_by(wanted: str) -> str:
    """Return the page of what somebody looks for: `#17` is a notification, all else a task."""
    if wanted.startswith("#") and _is_number(wanted[1:]):
        return f"/notifications/{wanted[1:]}"
    return f"/task?{urlencode({'task': wanted})}" if wanted else "/notifications"


async def _notification(pages: InboxPages, request: PageRequest) -> JsonObject:
    with_body = request.query.get("body") == "1"
    found = await pages.notification(_number(request), with_body=with_body)
    if found is None:
        raise Refused(404, _PURGED)
    return found


async def _refusal(pages: InboxPages, request: PageRequest) -> JsonObject:
    found = await pages.refusal(_number(request))
    if found is None:
        raise Refused(404, _FORGOTTEN)
    return found


def _number(request: PageRequest) -> int:
    found = request.values["id"]
    if not _is_number(found):
        raise Refused(404, "there is nothing of this number")
    return int(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
