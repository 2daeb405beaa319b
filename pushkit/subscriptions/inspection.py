"""Reading the subscriptions of all owners for operators, as scripts."""

from __future__ import annotations

from dataclasses import replace

from pushkit.record import record
from pushkit.storage.paging import Page, Search, conditions, find_records, rows_after
from pushkit.storage.script import Script, Statement
from pushkit.subscriptions.model import Subscription, SubscriptionState
from pushkit.subscriptions.store import read_subscription

_WHERE = {
    None: "removed_at IS NULL",
    SubscriptionState.ACTIVE: "removed_at IS NULL AND active = 1 AND paused = 0",
    SubscriptionState.PAUSED: "removed_at IS NULL AND active = 1 AND paused = 1",
    SubscriptionState.DISABLED: "removed_at IS NULL AND active = 0",
    SubscriptionState.WITHDRAWN: "removed_at IS NOT NULL",
}
_SELECT = "SELECT * FROM pushkit_subscriptions"
_COLUMNS = ("tenant", "owner", "task_id", "origin")


@record(frozen=True, slots=True, kw_only=True)
class SubscriptionFilter:
    """A filter of subscriptions; None is any."""

    state: SubscriptionState | None = None  # the state; None is any but withdrawn
    tenant: str | None = None  # the tenant; empty is the one without a name
    owner: str | None = None  # the owner; empty likewise
    task_id: str | None = None  # the task
    origin: str | None = None  # the destination, as `https://host:port`

    def where(self, *, after: int = 0) -> tuple[str, tuple[str, ...]]:
        """Return the conditions in SQL, and their parameters, numbered after `after` others."""
        wanted = {column: getattr(self, column) for column in _COLUMNS}
        return conditions(wanted, _WHERE[self.state], after=after)


def find(
    wanted: SubscriptionFilter, *, after: str | None, limit: int
) -> Script[list[Subscription]]:
    """Return a page of subscriptions, by id: oldest first."""
    rows = yield from rows_after(_SELECT, wanted, after or "", limit=limit)
    return [*map(read_subscription, rows)]


def browse(
    wanted: SubscriptionFilter, *, before: str | None, limit: int
) -> Script[Page[Subscription]]:
    """Return a page of subscriptions, newest first, in the same time however many there are.

    Args:
        wanted: The filter. A task id without a tenant means one of the tenant without a name.
    """
    older, start = ("id < $1" if before else "$1 = ''"), before or ""
    values: tuple[str, ...] = (start,)
    if wanted.task_id is not None:
        values = (start, wanted.tenant or "", wanted.task_id)
        wanted = replace(wanted, tenant=wanted.tenant or "")
        older = f"tenant = $2 AND task_id = $3 AND {older}"
    looked_at = f"FROM pushkit_subscriptions WHERE {older}"
    search = Search(looked_at=looked_at, named=values, columns="*", wanted=wanted)
    return (yield from find_records(search, _SELECT, read_subscription, limit=limit))


def show(subscription_id: str) -> Script[Subscription | None]:
    """Return one subscription, also a withdrawn one; None if there is none."""
    rows = yield Statement("SELECT * FROM pushkit_subscriptions WHERE id = $1", (subscription_id,))
    return read_subscription(rows[0]) if rows else None
