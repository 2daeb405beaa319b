"""An outbox of the time when claims were counted as attempts, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pushkit.outbox.migrations import SENDER_MIGRATIONS
from pushkit.storage.migrations import migrate
from pushkit.storage.script import Row, Script, Statement
from tests.databases import fresh

if TYPE_CHECKING:
    from tests.databases import ScriptRunner

BEFORE = tuple(each for each in SENDER_MIGRATIONS if each.version < 6)


@pytest.fixture
def postgres_dsn(postgres_server: str) -> str:
    """Return the DSN of a schema without tables: the test makes them in their old version."""
    return fresh(postgres_server)


def store(state: str, *, claims: int, logged: int) -> Script[None]:
    yield Statement(
        "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id, config_id,"
        " seq, origin, content_type, body, state, head, attempts, notified_at, not_before)"
        " VALUES ('id', 's', '', '', 't', 'c', 1, 'o', 'application/json', $1, $2, 0, $3, 1, 1)",
        (b"{}", state, claims),
    )
    for number in range(1, logged + 1):
        yield Statement(
            "INSERT INTO pushkit_attempts (delivery_id, number, started_at, duration, outcome)"
            " VALUES ('id', $1, 1, 1, 'retry')",
            (number,),
        )


def rows(sql: str) -> Script[list[Row]]:
    return list((yield Statement(sql)))


@pytest.mark.parametrize(
    ("state", "claims", "logged", "attempts"),
    [
        pytest.param("pending", 0, 0, 0, id="never claimed"),
        pytest.param("pending", 3, 3, 3, id="tried"),
        pytest.param("pending", 10, 0, 0, id="claimed by processes that died"),
        pytest.param("pending", 10, 2, 2, id="tried, and claimed by processes that died"),
        pytest.param("pending", 1, 4, 1, id="redriven"),
        pytest.param("in_flight", 1, 0, 1, id="in flight"),
        pytest.param("in_flight", 9, 2, 2, id="in flight after claims that came to nothing"),
        pytest.param("delivered", 2, 2, 2, id="delivered"),
        pytest.param("dead", 10, 0, 10, id="dead"),
        pytest.param("cancelled", 1, 0, 1, id="cancelled"),
    ],
)
def test_the_migration_counts_requests_as_attempts_and_keeps_the_fence(
    scripts: ScriptRunner, state: str, claims: int, logged: int, attempts: int
) -> None:
    scripts.run(migrate("sender", BEFORE))
    scripts.run(store(state, claims=claims, logged=logged))
    scripts.run(migrate("sender", SENDER_MIGRATIONS))
    [row] = scripts.run(rows("SELECT * FROM pushkit_deliveries"))
    assert (row["claims"], row["attempts"], row["fruitless_claims"]) == (claims, attempts, 0)
    assert row["state"] == state
