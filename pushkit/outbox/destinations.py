"""The destinations table, as scripts: how long each one waits, and its failures in a row.

A destination is one origin for one owner. It has a row only once it failed or asked to wait.
"""

from __future__ import annotations

from datetime import datetime

from pushkit.outbox.model import Delivery
from pushkit.storage import Script, Statement, to_micros

__all__ = ["DESTINATIONS_TABLE", "DestinationStore"]

DESTINATIONS_TABLE = """
    CREATE TABLE pushkit_destinations (
        tenant TEXT NOT NULL,
        owner TEXT NOT NULL,
        origin TEXT NOT NULL,
        until BIGINT NOT NULL DEFAULT 0,
        failures INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, owner, origin)
    )
    """


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
            (*_key(delivery), to_micros(until)),
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
            (*_key(delivery), to_micros(now)),
        )
        return int(rows[0]["failures"]) if rows else None

    def answered(self, delivery: Delivery) -> Script[int]:
        """Start counting anew; return how many failures in a row that ends. Writes only then."""
        rows = yield Statement(
            "SELECT failures FROM pushkit_destinations"
            " WHERE tenant = $1 AND owner = $2 AND origin = $3",
            _key(delivery),
        )
        ended = int(rows[0]["failures"]) if rows else 0
        if ended:
            yield Statement(
                "UPDATE pushkit_destinations SET failures = 0"
                " WHERE tenant = $1 AND owner = $2 AND origin = $3",
                _key(delivery),
            )
        return ended


def _key(delivery: Delivery) -> tuple[str, str, str]:
    return (delivery.tenant, delivery.owner, delivery.origin)
