"""The destinations table, as scripts: how long each one waits, and its failures in a row.

A destination is one origin for one owner. It has a row only once it failed or asked to wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TypeAlias

from pushkit.outbox.model import Delivery
from pushkit.storage.script import Script, Statement, chunks, padded, rows_of_places, to_micros

DestinationKey: TypeAlias = tuple[str, str, str]

# What tells the destination of a delivery from others.
destination_of: Callable[[Delivery], DestinationKey] = attrgetter("tenant", "owner", "origin")


class DestinationStore:
    """Scripts over `pushkit_destinations`.

    Whoever settles comes here last: a destination's row is the one that many settle at once.
    """

    def hold(self, delivery: Delivery, until: datetime) -> Script[None]:
        """Let the destination of a delivery wait."""
        yield Statement(
            "INSERT INTO pushkit_destinations (tenant, owner, origin, until)"
            " VALUES ($1, $2, $3, $4)"
            # Of two answers the longer wait counts, whichever of them came last.
            " ON CONFLICT (tenant, owner, origin) DO UPDATE SET until = excluded.until"
            " WHERE excluded.until > pushkit_destinations.until",
            (*destination_of(delivery), to_micros(until)),
        )

    def failed(self, delivery: Delivery, now: datetime) -> Script[int | None]:
        """Count a failure and return how many there are now in a row.

        None while the destination waits already: attempts that were running when it began to wait
        say nothing new, and each would double the wait.
        """
        rows = yield Statement(
            "INSERT INTO pushkit_destinations (tenant, owner, origin, failures)"
            " VALUES ($1, $2, $3, 1)"
            " ON CONFLICT (tenant, owner, origin) DO UPDATE"
            " SET failures = pushkit_destinations.failures + 1"
            " WHERE pushkit_destinations.until <= $4 RETURNING failures",
            (*destination_of(delivery), to_micros(now)),
        )
        return int(rows[0]["failures"]) if rows else None

    def failing(self, deliveries: Sequence[Delivery]) -> Script[dict[DestinationKey, int]]:
        """Return how many failures in a row there are, of the destinations that have any.

        Their rows are held, in order, so that of two who end a row of failures one knows it.
        """
        found: dict[DestinationKey, int] = {}
        keys = sorted(set(map(destination_of, deliveries)))
        for chunk in chunks(keys):
            wanted = padded(chunk)
            rows = yield Statement(
                "SELECT h.tenant, h.owner, h.origin, h.failures"
                f" FROM (VALUES {rows_of_places(len(wanted), 3)}) v"
                " CROSS JOIN pushkit_destinations h WHERE h.tenant = v.column1"
                " AND h.owner = v.column2 AND h.origin = v.column3 AND h.failures > 0"
                " ORDER BY h.tenant, h.owner, h.origin FOR UPDATE OF h",
                tuple(itertools.chain.from_iterable(wanted)),
            )
            found |= {(row["tenant"], row["owner"], row["origin"]): row["failures"] for row in rows}
        return found

    def half_open(
        self, keys: Sequence[DestinationKey], *, failures: int, now: datetime
    ) -> Script[int]:
        """End the wait of destinations, each of which is then given one delivery at a time.

        Until one of them is answered: with so many failures in a row a destination is on probation.

        Args:
            failures: From how many failures in a row on a destination gets one at a time.

        Returns:
            How many of them waited.
        """
        waited = 0
        for tenant, owner, origin in sorted(set(keys)):
            rows = yield Statement(
                "UPDATE pushkit_destinations SET until = $4, failures ="
                " CASE WHEN failures < CAST($5 AS INTEGER) THEN CAST($5 AS INTEGER)"
                " ELSE failures END"
                " WHERE tenant = $1 AND owner = $2 AND origin = $3 AND until > $4"
                " RETURNING origin",
                (tenant, owner, origin, to_micros(now), failures),
            )
            yield Statement(
                "UPDATE pushkit_parked SET again_at = $4"
                " WHERE tenant = $1 AND owner = $2 AND origin = $3 AND again_at > $4",
                (tenant, owner, origin, to_micros(now)),
            )
            waited += len(rows)
        return waited

    def answered(self, delivery: Delivery) -> Script[None]:
        """Start counting the failures of a delivery's destination anew."""
        yield Statement(
            "UPDATE pushkit_destinations SET failures = 0"
            " WHERE tenant = $1 AND owner = $2 AND origin = $3",
            destination_of(delivery),
        )
