"""The receiver's dashboard: routes, and what the button does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.webui.access import DashboardAccess
from pushkit.webui.exchange import PageRequest, Refused
from pushkit.webui.site import Site
from receiver.dashboard.pages import InboxPages

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonObject
    from receiver.admin import InboxAdmin
    from receiver.receiver import Receiver

__all__ = ["dashboard_of", "inbox_dashboard", "receiver_dashboard"]

_TEMPLATES: Final = Path(__file__).parent / "templates"
_MAX_DIGITS: Final = 18
_FILTERS: Final = ("status", "sender", "task", "unmatched")


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


def dashboard_of(receiver: Receiver, *, access: DashboardAccess) -> Site:
    """Return the dashboard of a receiver that runs in this process."""
    return inbox_dashboard(receiver.inbox, access=access)


def inbox_dashboard(
    inbox: InboxAdmin, *, access: DashboardAccess, clock: Callable[[], datetime] = utc_now
) -> Site:
    """Return the dashboard over an inbox that is open.

    Args:
        inbox: The inbox.
        access: Who may look, and act.
        clock: Returns now, aware, in UTC.
    """
    pages = InboxPages(inbox, clock=clock)
    site = Site(access=access, templates=_TEMPLATES, title="receiver", clock=clock)

    async def overview(_request: PageRequest) -> JsonObject:
        return {"found": await pages.overview()}

    async def notifications(request: PageRequest) -> JsonObject:
        query = dict(request.query)
        found = await pages.notifications(query)
        kept = {name: query[name] for name in _FILTERS if query.get(name)}
        return {
            "found": found,
            "query": {name: query.get(name, "") for name in _FILTERS},
            "older": urlencode({**kept, "before": str(found["before"] or "")}),
        }

    async def notification(request: PageRequest) -> JsonObject:
        return {"found": await one(request)}

    async def task(request: PageRequest) -> JsonObject:
        return {"found": await of_task(request)}

    async def one(request: PageRequest) -> JsonObject:
        with_body = request.query.get("body") == "1"
        found = await pages.notification(_number(request), with_body=with_body)
        if found is None:
            raise Refused(404, "there is no such notification: it may have been purged")
        return found

    async def of_task(request: PageRequest) -> JsonObject:
        task_id = request.query.get("task", "")
        if not task_id or len(task_id) > 512 or "\x00" in task_id:
            raise ConfigError("task: expected the id of a task")
        return await pages.task(task_id, request.query.get("sender") or None)

    async def redrive(request: PageRequest) -> str:
        number = _number(request)
        redriven = await inbox.redrive([number])
        said = "Called back again." if redriven.ids else "It is no dead letter."
        return f"/notifications/{number}?{urlencode({'said': said})}"

    site.page("/", "overview.html", overview)
    site.page("/notifications", "notifications.html", notifications)
    site.page(_NOTIFICATION, "notification.html", notification)
    site.page("/task", "task.html", task)
    site.live("/live")
    site.document("/api/v1/overview", lambda _: pages.overview())
    site.document("/api/v1/notifications", lambda r: pages.notifications(dict(r.query)))
    site.document(f"/api/v1{_NOTIFICATION}", one)
    site.document("/api/v1/task", of_task)
    if access.allow_actions:
        site.action(f"{_NOTIFICATION}/redrive", "redrive", redrive)
    return site


_NOTIFICATION: Final = "/notifications/{id}"


def _number(request: PageRequest) -> int:
    found = request.values["id"]
    if not (found.isascii() and found.isdigit() and len(found) <= _MAX_DIGITS):
        raise Refused(404, "there is no such notification: expected its number")
    return int(found)
