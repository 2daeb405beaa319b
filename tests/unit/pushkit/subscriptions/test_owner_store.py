"""Counts of an owner, and the URLs that it proved to own, on both databases."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest

from pushkit.delivery.ownership import proof_remains_for, prove
from pushkit.outbox import store as outbox
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.outbox.states import CancelledBy
from pushkit.storage.migrations import migrate
from pushkit.storage.script import Script, Statement
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import Owner, Subscription
from tests.databases import SqliteConnection
from tests.unit.pushkit.deliveries import add_delivery, add_subscription

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import ScriptRunner

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)
ALICE = Owner(tenant="acme", name="alice")
URL = "https://client.example.com/canary?canary"


class Database:
    def __init__(self, scripts: ScriptRunner) -> None:
        self.scripts = scripts
        self.run(migrate("outbox", SENDER_MIGRATIONS))

    def run(self, script: Script[T]) -> T:
        return self.scripts.run(script)

    def subscribe(self, owner: Owner, config_id: str, *, deliveries: int = 0) -> Subscription:
        subscription = self.run(
            add_subscription(now=NOW, tenant=owner.tenant, owner=owner.name, config_id=config_id)
        )
        for _ in range(deliveries):
            self.run(add_delivery(subscription, now=NOW))
        return subscription


@pytest.fixture
def database(scripts: ScriptRunner) -> Database:
    return Database(scripts)


BOB = Owner(tenant="acme", name="bob")
OTHERS = [BOB, Owner(tenant="", name="alice")]


def test_an_owners_subscriptions_are_counted_up_to_the_limit(database: Database) -> None:
    for number in range(3):
        database.subscribe(ALICE, f"config-{number}")
    database.subscribe(BOB, "config-0")
    assert [
        database.run(subscriptions.count_of_owner_in_all("alice", limit)) for limit in (2, 3, 9)
    ] == [2, 3, 3]


def test_subscriptions_and_deliveries_of_an_owner_are_counted_over_all_tenants(
    database: Database,
) -> None:
    for number in range(3):
        database.subscribe(Owner(tenant=f"tenant-{number}", name="alice"), "config", deliveries=2)
    assert database.run(subscriptions.count_of_owner_in_all("alice", 9)) == 3
    assert database.run(subscriptions.backlog_of_owner("alice", 9)) == 6


def test_the_rows_of_an_owner_are_found_by_an_index(tmp_path: Path) -> None:
    with contextlib.closing(SqliteConnection(tmp_path / "database.db")) as scripts:
        database = Database(scripts)
        for script in (
            subscriptions.count_of_owner_in_all("alice", 9),
            subscriptions.backlog_of_owner("alice", 9),
        ):
            counting = next(script)
            plan = database.run(explained(counting))
            assert any("USING INDEX pushkit_subscriptions_of_owner" in step for step in plan)
            assert not any(step.startswith("SCAN s") for step in plan)


def explained(counting: Statement) -> Script[list[str]]:
    steps = yield Statement(f"EXPLAIN QUERY PLAN {counting.sql}", counting.parameters)
    return [step["detail"] for step in steps]


def test_a_withdrawn_subscription_is_not_counted(database: Database) -> None:
    subscription = database.subscribe(ALICE, "config-1")
    database.run(subscriptions.withdraw([subscription.id], NOW))
    assert database.run(subscriptions.count_of_owner_in_all("alice", 9)) == 0


def test_unfinished_deliveries_of_an_owner_are_counted_up_to_the_limit(database: Database) -> None:
    first = database.subscribe(ALICE, "config-1", deliveries=3)
    database.subscribe(ALICE, "config-2", deliveries=2)
    database.subscribe(BOB, "config-0", deliveries=4)
    assert [
        database.run(subscriptions.backlog_of_owner("alice", limit)) for limit in (2, 5, 9)
    ] == [2, 5, 5]
    database.run(outbox.cancel_subscription(first.id, NOW, CancelledBy.REMOVED))
    assert database.run(subscriptions.backlog_of_owner("alice", 9)) == 2


def test_a_proof_is_of_one_owner_and_one_url_and_for_a_while(database: Database) -> None:
    day = timedelta(days=1)
    database.run(prove(ALICE, URL, now=NOW))
    assert database.run(proof_remains_for(ALICE, URL, now=NOW - day)) == 30 * day
    assert database.run(proof_remains_for(ALICE, URL, now=NOW + day)) == 29 * day
    assert not database.run(proof_remains_for(ALICE, URL, now=NOW + 30 * day))
    assert not database.run(proof_remains_for(ALICE, f"{URL}&", now=NOW))
    for other in OTHERS:
        assert not database.run(proof_remains_for(other, URL, now=NOW))


def test_a_proof_may_be_given_again_and_old_ones_are_forgotten(database: Database) -> None:
    database.run(prove(ALICE, URL, now=LONG_AGO))
    database.run(prove(ALICE, f"{URL}&", now=NOW))
    database.run(prove(ALICE, f"{URL}&", now=NOW))
    assert len(rows(database)) == 1


def test_no_url_is_stored(database: Database) -> None:
    database.run(prove(ALICE, URL, now=NOW))
    assert "canary" not in repr([list(row.values()) for row in rows(database)])


def rows(database: Database) -> list[dict[str, object]]:
    def read() -> Script[list[dict[str, object]]]:
        found = yield Statement("SELECT tenant, owner, url_sha256 FROM pushkit_proved_urls")
        return [{name: row[name] for name in ("tenant", "owner", "url_sha256")} for row in found]

    return database.run(read())
