"""The receiver's dashboard as an aiohttp application."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.webui.site import Site
from receiver.dashboard.pages import InboxPages

if TYPE_CHECKING:
    from aiohttp import web

    from pushkit.bounded_json import JsonObject
    from pushkit.webui.access import DashboardAccess
    from receiver.admin import InboxAdmin

__all__ = ["inbox_dashboard"]

_TEMPLATES: Final = Path(__file__).parent / "templates"
_FILTERS: Final = ("status", "sender", "task", "unmatched")


def inbox_dashboard(
    inbox: InboxAdmin, *, access: DashboardAccess, clock: Callable[[], datetime] = utc_now
) -> web.Application:
    """Return the dashboard over an inbox that is open.

    Args:
        inbox: The inbox.
        access: Who may look, and act.
        clock: Returns now, aware, in UTC.
    """
    pages = InboxPages(inbox, clock=clock)
    site = Site(access=access, templates=_TEMPLATES, title="receiver", clock=clock)

    async def overview(_request: web.Request) -> JsonObject:
        return {"found": await pages.overview()}

    async def notifications(request: web.Request) -> JsonObject:
        query = dict(request.query)
        found = await pages.notifications(query)
        kept = {name: query[name] for name in _FILTERS if query.get(name)}
        return {
            "found": found,
            "query": {name: query.get(name, "") for name in _FILTERS},
            "older": urlencode({**kept, "before": str(found["before"] or "")}),
        }

    async def notification(request: web.Request) -> JsonObject:
        return {"found": await one(request)}

    async def task(request: web.Request) -> JsonObject:
        return {"found": await of_task(request)}

    async def one(request: web.Request) -> JsonObject:
        with_body = request.query.get("body") == "1"
        found = await pages.notification(_number(request), with_body=with_body)
        if found is None:
            raise site.not_found("there is no such notification: it may have been purged")
        return found

    async def of_task(request: web.Request) -> JsonObject:
        task_id = request.query.get("task", "")
        if not task_id or len(task_id) > 512 or "\x00" in task_id:
            raise ConfigError("task: expected the id of a task")
        return await pages.task(task_id, request.query.get("sender") or None)

    async def redrive(request: web.Request) -> str:
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
    return site.app


_NOTIFICATION: Final = "/notifications/{id:[0-9]{1,18}}"


def _number(request: web.Request) -> int:
    return int(request.match_info["id"])
