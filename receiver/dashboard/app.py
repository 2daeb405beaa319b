"""The receiver's dashboard: its routes and its actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from pushkit.webui.access import DashboardAccess
from pushkit.webui.api import LIMIT
from pushkit.webui.site import Link, Site
from receiver.admin import Redriven
from receiver.dashboard import pages
from receiver.dashboard.memory import RecentEvents
from receiver.dashboard.pages import InboxPages

if TYPE_CHECKING:
    from receiver.admin import InboxAdmin
    from receiver.receiver import Receiver


_TEMPLATES: Final = Path(__file__).parent / "templates"
_LINKS: Final = (
    Link("/", "Overview"),
    Link("/notifications", "Notifications", others=("/task",)),
    Link("/notifications?status=dead", "Dead letters"),
    Link("/notifications?unmatched=1", "Unmatched"),
    Link("/queues", "Queues"),
    Link("/mailboxes", "Mailboxes"),
    Link("/callbacks", "Callbacks"),
    Link("/refusals", "Refusals"),
)
_PAGED: Final = (pages.BEFORE, LIMIT)
_SEARCH: Final = ("Task, #number", "Find a task, or a notification by its number")


def receiver_dashboard(
    receiver: Receiver, *, token: str, hosts: Collection[str], allow_actions: bool = False
) -> Site:
    """Return a receiver's dashboard, to mount where only operators can reach it.

        app.add_subapp("/ops", receiver_dashboard(receiver, token=token, hosts=[host]).app())
        app.mount("/ops", receiver_dashboard(receiver, token=token, hosts=[host]).asgi())

    It shows what tasks contain: never serve it to the public.

    Args:
        receiver: The receiver; refusals are kept from this call on.
        token: The token that readers need; 20 characters or more.
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
    access: DashboardAccess,
    memory: RecentEvents
    | None = None,  # where refusals are kept; given if other processes add theirs
) -> Site:
    """Return the dashboard of a receiver in this process; refusals are kept from this call on."""
    memory = memory or RecentEvents()
    receiver.events.add(memory.record)
    degraded = receiver.degraded
    return inbox_dashboard(receiver.inbox, access=access, memory=memory, degraded=degraded)


def inbox_dashboard(
    inbox: InboxAdmin,
    *,
    access: DashboardAccess,
    memory: RecentEvents | None = None,  # refusals, which are not stored
    # Returns why a receiver in this process fails for some senders, by part.
    degraded: Callable[[], Mapping[str, str]] = dict,
) -> Site:
    """Return the dashboard of an open inbox."""
    of = InboxPages(inbox, memory=memory, degraded=degraded)
    site = Site(
        access=access,
        templates=_TEMPLATES,
        title="receiver",
        database=inbox.location,
        links=_LINKS,
        search=_SEARCH,
        found_by=_found_by,
    )
    filters = pages.OF_NOTIFICATIONS
    site.show("/", "overview.html", of.overview)
    site.show("/notifications", "notifications.html", of.notifications, *filters, *_PAGED)
    page = ("/notifications/{id}", "notification.html")
    site.show(*page, of.notification, pages.ID, pages.WITH_BODY)
    site.show("/task", "task.html", of.task, pages.ONE_TASK, pages.SENDER)
    site.show("/queues", "queues.html", of.queues, pages.AFTER, LIMIT)
    site.show("/mailboxes", "mailboxes.html", of.mailboxes)
    site.show("/callbacks", "callbacks.html", of.callbacks)
    site.show("/refusals", "refusals.html", of.refusals, pages.CODE, *_PAGED)
    site.show("/refusals/{id}", "refusal_of_one.html", of.refusal, pages.ID)

    async def redrive(ids: list[int]) -> tuple[Redriven, str]:
        """Redrive a dead letter."""
        found = await inbox.redrive(ids)
        said = f"{len(found.ids)} redriven"
        said += f"; {found.skipped} skipped: not a dead letter" if found.skipped else ""
        return found, f"{said}."

    site.changes("/notifications", "redrive", redrive, pages.ID, filters)
    return site


def _found_by(wanted: str) -> str:
    """Return the page for a search text: `#17` is a notification, anything else a task."""
    if wanted.startswith("#") and re.fullmatch(pages.NUMBER, wanted[1:]):
        return f"/notifications/{wanted[1:]}"
    return f"/task?{urlencode({'task': wanted})}" if wanted else "/notifications"
