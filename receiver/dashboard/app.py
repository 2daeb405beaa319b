"""The receiver's dashboard: its routes and its actions."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from pushkit.webui.access import DashboardAccess
from pushkit.webui.site import Site
from receiver.dashboard.memory import Memory
from receiver.dashboard.openapi import openapi_document
from receiver.dashboard.pages import InboxPages, is_number, number_of

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonObject
    from receiver.admin import InboxAdmin
    from receiver.receiver import Receiver


_TEMPLATES: Final = Path(__file__).parent / "templates"
_FILTERS: Final = ("status", "sender", "task", "unmatched")


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
    memory: Memory | None = None,  # where refusals are kept; given if other processes add theirs
) -> Site:
    """Return the dashboard of a receiver in this process; refusals are kept from this call on."""
    memory = memory or Memory()
    receiver.events.add(memory.record)
    pages = InboxPages(receiver.inbox, memory=memory, degraded=receiver.degraded)
    return _site(pages, access)


def inbox_dashboard(inbox: InboxAdmin, *, access: DashboardAccess) -> Site:
    """Return the dashboard of an open inbox: without refusals, which are not stored."""
    return _site(InboxPages(inbox), access)


def _site(pages: InboxPages, access: DashboardAccess) -> Site:
    site = Site(
        access=access, templates=_TEMPLATES, title="receiver", database=pages.inbox.location
    )
    site.show("/", "overview.html", pages.overview)
    site.show("/notifications", "notifications.html", pages.notifications, kept=_FILTERS)
    site.show("/notifications/{id}", "notification.html", pages.notification)
    site.show("/task", "task.html", pages.task)
    site.show("/queues", "queues.html", pages.queues)
    site.show("/callbacks", "callbacks.html", pages.callbacks)
    site.show("/refusals", "refusals.html", pages.refusals, kept=("code",))
    site.show("/refusals/{id}", "refusal_of_one.html", pages.refusal)
    site.search(_found_by)
    site.describe(openapi_document)

    async def redrive(ids: list[str]) -> tuple[JsonObject, str]:
        found = await pages.inbox.redrive([number_of(each) for each in ids])
        said = f"{len(found.ids)} redriven"
        said += f"; {found.skipped} skipped: not a dead letter" if found.skipped else ""
        return {"ids": list(found.ids), "skipped": found.skipped}, f"{said}."

    if access.allow_actions:
        site.actions("/notifications", "redrive", redrive, kept=_FILTERS)
    return site


def _found_by(wanted: str) -> str:
    """Return the page for a search text: `#17` is a notification, anything else a task."""
    if wanted.startswith("#") and is_number(wanted[1:]):
        return f"/notifications/{wanted[1:]}"
    return f"/task?{urlencode({'task': wanted})}" if wanted else "/notifications"
