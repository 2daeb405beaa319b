"""Fairness: what hostile owners send does not delay the updates of others."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf

from pushkit import TaskState
from tests.verification.simulation.disk import Disk
from tests.verification.simulation.ledger import Notice
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.webhook import UNHURRIED
from tests.verification.simulation.world import World

__all__ = ["CROWDED_STEPS", "SELDOM", "check_fairness"]

SELDOM = 0.5  # seconds after which a worker at a limit looks again for due deliveries
# Of how many groups a claim reads the first queue during a flood; of owners, of half as many.
CROWDED_STEPS = 8

_QUEUES = (
    "SELECT d.*, s.version AS spoken FROM pushkit_deliveries d"
    " LEFT JOIN pushkit_subscriptions s ON s.id = d.subscription_id"
    " ORDER BY d.subscription_id, d.seq"
)
_CHUNKS = frozenset({"artifact", "chunk", "last"})
# The shapes of updates whose tasks are not under way.
_NOT_UNDER_WAY = frozenset(TaskState) - {TaskState.SUBMITTED, TaskState.WORKING}


def check_fairness(
    world: World,
    outbox: Disk | PostgresServer,  # the senders' database
    notices: Sequence[Notice],
    *,
    gathering: Mapping[tuple[str, str], float],  # see `ledger.Instructions`
    first_heard: Callable[[str], float],  # when a delivery first reached its client; or infinity
) -> None:
    """Innocent owners are served in time, however much hostile owners send.

    In time is, with every permit taken: until the attempts in progress end, and those begun before
    a claim found the owner; each claim reads the queues of a few more owners. What is gathered is
    served with the delivery that stands for it. It may wait for an interval after the one before
    it, but only until something is stored that is not gathered with it.
    """
    queues: dict[str, list[sqlite3.Row]] = defaultdict(list)
    for row in outbox.select(_QUEUES):
        queues[row["subscription_id"]].append(row)
    owners = {queue[0]["owner"] for queue in queues.values()}
    fair = 2 * UNHURRIED + SELDOM * max(ceil(len(owners) / (CROWDED_STEPS // 2)), 1)
    notice_of = {delivery_id: notice for notice in notices for delivery_id in notice.ids}
    for queue in queues.values():
        interval = gathering.get((queue[0]["task_id"], queue[0]["owner"]), 0.0)
        for place, row in enumerate(queue):
            notice = notice_of.get(row["id"])
            if notice is None or notice.acknowledged_at is None or _is_hostile(row):
                continue
            # What is gathered is sent with the next one that is not.
            ahead = [each["id"] for each in queue[:place] if not _is_gathered(each)]
            to_come = [each["id"] for each in queue[place:] if not _is_gathered(each)]
            begun = notice.acknowledged_at
            heard = first_heard(ahead[-1]) if ahead else inf
            if heard < inf:  # it waits for those before it in any case
                begun = max(begun, heard)
                if _may_be_gathered(row["spoken"], notice, notice_of.get(ahead[-1])):
                    follows = notice_of.get(to_come[1]) if to_come[1:] else None
                    until = None if follows is None else follows.acknowledged_at
                    begun = max(begun, min(heard + interval, until or inf))
            latency = first_heard(to_come[0]) - begun if to_come else inf
            if latency > fair:
                world.violated(f"an innocent owner waited {latency:.1f} s for {row['id']}")


def _is_hostile(row: sqlite3.Row) -> bool:
    return str(row["owner"]).startswith("mallory")


def _is_gathered(row: sqlite3.Row) -> bool:
    """Return whether the next delivery of its queue stands for a delivery."""
    return bool(row["cancelled_by"] == "superseded")


def _may_be_gathered(version: str, notice: Notice, before: Notice | None) -> bool:
    """Return whether an update may be gathered with the one before it, in a version of A2A."""
    if before is None:
        return False
    if version == "1.0":
        return {notice.shape, before.shape} <= _CHUNKS
    # What was sent before is a snapshot: it may be older than the state of its update.
    return version == "0.3" and notice.shape not in _NOT_UNDER_WAY
