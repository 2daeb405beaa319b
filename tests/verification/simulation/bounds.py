"""Bounds of rows, log lines, connections and tasks, in proportion to the work that was done."""

from __future__ import annotations

from collections.abc import Mapping

from tests.verification.simulation.disk import Disk
from tests.verification.simulation.postgres import PostgresServer
from tests.verification.simulation.world import World

__all__ = ["check_bounds"]

_CONNECTIONS = 64  # the most that one program may have open at once
_TASKS = 64  # the most that a process may have once everything is over
_OUTBOX = {
    "pushkit_destinations": ":hosts * 8",  # one for each owner
    "pushkit_attempts": ":claims",
}
_INBOX = {
    "pushkit_callbacks": ":callbacks * (SELECT COUNT(*) FROM pushkit_inbox)",
    "pushkit_sequences": "(SELECT COUNT(*) FROM pushkit_inbox)"
    " + (SELECT COUNT(*) FROM pushkit_forgotten) + 1",
    "pushkit_inbox_queues": "(SELECT COUNT(*) FROM pushkit_inbox)",
}


def check_bounds(
    world: World,
    outbox: Disk | PostgresServer,  # the senders' database
    inboxes: Mapping[str, Disk | PostgresServer],  # the receivers' databases, by receiver
    *,
    claims: int,  # at least how many deliveries were handed to workers
    hosts: int,  # how many webhooks and receivers there are
    callbacks: int = 2,  # how many each receiver has
) -> None:
    """Check the bounds of a world once everything is over."""
    known = {":claims": claims, ":hosts": hosts, ":callbacks": callbacks}
    _check_rows(world, "the outbox", outbox, _OUTBOX, known)
    for name, inbox in inboxes.items():
        _check_rows(world, name, inbox, _INBOX, known)
    for process, most in world.network.most_open.items():
        if most > _CONNECTIONS and process != "attacker":
            world.violated(f"{process} had {most} connections open at once")
    for process, tasks in world.loop.live_tasks().items():
        if tasks > _TASKS:
            world.violated(f"{process} has {tasks} tasks when everything is over")
    lines = 200 + 4 * (world.network.dialled + len(world.troubles) + claims) + len(world.trace)
    if world.secrets.lines > lines:
        world.violated(f"{world.secrets.lines} lines of log, expected {lines} at most")


def _check_rows(
    world: World,
    whose: str,
    disk: Disk | PostgresServer,
    bounds: Mapping[str, str],
    known: Mapping[str, int],
) -> None:
    for table, formula in bounds.items():
        bound = formula
        for name, number in known.items():
            bound = bound.replace(name, str(number))
        [row] = disk.select(f"SELECT (SELECT COUNT(*) FROM {table}) AS rows, {bound} AS bound")
        if row["rows"] > row["bound"]:
            world.violated(f"{whose}: {row['rows']} rows of {table}, expected {row['bound']}")
