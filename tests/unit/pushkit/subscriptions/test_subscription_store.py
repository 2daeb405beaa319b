from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from pushkit.a2a import Authentication, PushConfig, WireVersion
from pushkit.delivery.ownership import proof_remains_for, prove
from pushkit.outbox import store as outbox
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.outbox.states import CancelledBy
from pushkit.secrets.vault import Vault
from pushkit.storage.migrations import migrate
from pushkit.storage.script import Row, Script
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import (
    OUTBOX,
    DisabledBy,
    Owner,
    Profile,
    Subscription,
    SubscriptionKey,
)
from pushkit.subscriptions.store import open_subscription
from tests.databases import ScriptRunner, SqliteConnection
from tests.unit.pushkit.deliveries import add_delivery, add_subscription, rows_of

T = TypeVar("T")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAIN = Vault(None)
KEY = SubscriptionKey(tenant="acme", task_id="task-1", owner="alice", config_id="config-1")
URL = "https://client.example.com/hook?a=1"


class Database:
    def __init__(self, scripts: ScriptRunner) -> None:
        self.scripts = scripts
        self.run(migrate("outbox", SENDER_MIGRATIONS))

    def run(self, script: Script[T]) -> T:
        return self.scripts.run(script)

    def put(
        self,
        key: SubscriptionKey = KEY,
        config: PushConfig | None = None,
        *,
        version: WireVersion = WireVersion.V1_0,
        profile: Profile = Profile.STANDARD,
        vault: Vault = PLAIN,
        now: datetime = NOW,
    ) -> Subscription:
        return self.run(
            subscriptions.put(
                key,
                config or PushConfig(url=URL),
                version=version,
                origin="https://client.example.com:443",
                profile=profile,
                vault=vault,
                now=now,
            )
        )

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


def test_everything_that_was_put_comes_back(database: Database) -> None:
    authentication = Authentication(schemes=("Bearer", "Basic"), credentials="secret value")
    config = PushConfig(url=URL, token="token", authentication=authentication)
    put = database.put(config=config, version=WireVersion.V0_3, profile=Profile.A2A_SAMPLES)
    [found] = database.run(subscriptions.of_owner(tenant="acme", task_id="task-1", owner="alice"))
    assert found == put
    assert (found.key, found.version, found.profile) == (KEY, WireVersion.V0_3, Profile.A2A_SAMPLES)
    assert found.config == PushConfig(
        url=URL, id="config-1", authentication=replace(authentication, credentials=None)
    )
    assert (found.has_token, found.has_credentials) == (True, True)
    [stored] = database.run(subscriptions.by_ids([put.id])).values()
    assert open_subscription(PLAIN, stored).config == replace(config, id="config-1")
    assert (found.last_seq, found.active, found.created_at) == (0, True, NOW)


def take_seqs(wanted: Mapping[str, int]) -> Script[None]:
    """Take so many numbers for deliveries of each subscription."""
    queues = yield from OUTBOX.lock(wanted)
    yield from OUTBOX.write(
        [each._replace(last_seq=each.last_seq + wanted[each.id]) for each in queues.values()]
    )


def test_setting_it_again_changes_it_and_keeps_id_and_seq(database: Database) -> None:
    first = database.put(config=PushConfig(url=URL, token="old"))
    database.run(take_seqs({first.id: 2}))
    second = database.put(config=PushConfig(url=URL + "2"), now=NOW + timedelta(days=1))
    assert (second.id, second.last_seq, second.created_at) == (first.id, 2, NOW)
    assert (second.config.url, second.has_token) == (URL + "2", False)


def test_the_revision_of_a_subscription_grows_only_when_it_is_registered(
    database: Database,
) -> None:
    first = database.put()
    assert database.put(config=PushConfig(url=URL, token="new")).revision == first.revision + 1
    database.run(subscriptions.set_paused(first.id, NOW, paused=True))
    database.run(subscriptions.disable(first.id, NOW, DisabledBy.OPERATOR))
    database.run(subscriptions.enable(first.id, NOW))
    database.run(subscriptions.set_failing_since(first.id, NOW))
    database.run(take_seqs({first.id: 1}))
    [recipient] = database.run(subscriptions.lock_recipients([("acme", "task-1")]))
    assert recipient.revision == first.revision + 1


def test_removing_and_creating_it_starts_anew(database: Database) -> None:
    first = database.put()
    database.run(take_seqs({first.id: 1}))
    assert database.run(subscriptions.remove(KEY)) == first.id
    second = database.put()
    assert second.id != first.id
    assert second.last_seq == 0


def test_each_subscription_takes_the_numbers_that_it_needs(database: Database) -> None:
    ids = [
        database.put(SubscriptionKey(tenant="", task_id=str(n), owner="", config_id="")).id
        for n in range(300)
    ]
    database.run(take_seqs({each: 1 + n % 3 for n, each in enumerate(ids)}))
    recipients = database.run(subscriptions.lock_recipients([("", str(n)) for n in range(300)]))
    assert {each.id: each.queue.last_seq for each in recipients} == {
        each: 1 + n % 3 for n, each in enumerate(ids)
    }
    assert [each.id for each in recipients] == sorted(ids)


def test_a_later_id_sorts_after_the_others(database: Database) -> None:
    # Rows are locked in the order of their ids.
    ids = [
        database.put(KEY._replace(config_id=str(n)), now=NOW + timedelta(seconds=n)).id
        for n in range(20)
    ]
    assert ids == sorted(ids)


def test_removing_an_unknown_subscription_does_nothing(database: Database) -> None:
    assert database.run(subscriptions.remove(KEY)) is None


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(KEY._replace(tenant=""), id="tenant"),
        pytest.param(KEY._replace(owner="bob"), id="owner"),
        pytest.param(KEY._replace(owner="ALICE"), id="owner in capitals"),
        pytest.param(KEY._replace(owner="alice "), id="owner with a space"),
        pytest.param(KEY._replace(task_id="task-2"), id="task"),
        pytest.param(KEY._replace(config_id="config-2"), id="config"),
    ],
)
def test_another_key_is_another_subscription(database: Database, key: SubscriptionKey) -> None:
    mine, theirs = database.put(), database.put(key)
    assert mine.id != theirs.id
    database.run(subscriptions.remove(key))
    found = database.run(subscriptions.of_owner(tenant="acme", task_id="task-1", owner="alice"))
    assert [subscription.id for subscription in found] == [mine.id]


def test_updates_go_to_every_owner_of_the_tenant_in_id_order(database: Database) -> None:
    mine = [database.put(KEY._replace(owner=owner)) for owner in ("alice", "bob", "carol")]
    database.put(KEY._replace(tenant="another"))
    disabled = database.put(KEY._replace(owner="dave"))
    database.run(subscriptions.disable(disabled.id, NOW, DisabledBy.GONE))
    found = database.run(subscriptions.stored_of_task(tenant="acme", task_id="task-1"))
    assert [each.subscription.id for each in found] == sorted(each.id for each in mine)


def test_ids_that_are_gone_are_left_out(database: Database) -> None:
    subscription = database.put()
    assert set(database.run(subscriptions.by_ids([subscription.id, "gone", subscription.id]))) == {
        subscription.id
    }


# --- withdrawn: out of view, there for its dead letters -------------------------------------------


def test_a_withdrawn_one_gets_no_updates(database: Database) -> None:
    subscription = database.put()
    tasks = [("acme", "task-1")]
    assert database.run(subscriptions.count_recipients(tasks)) == {("acme", "task-1"): 1}
    database.run(subscriptions.withdraw([subscription.id], NOW))
    assert database.run(subscriptions.lock_recipients(tasks)) == []
    assert database.run(subscriptions.count_recipients(tasks)) == {}


def test_a_withdrawn_one_is_not_removed_by_its_key(database: Database) -> None:
    withdrawn = database.put()
    database.run(subscriptions.withdraw([withdrawn.id], NOW))
    assert database.run(subscriptions.remove(KEY)) is None
    second = database.put()
    assert database.run(subscriptions.remove(KEY)) == second.id
    assert set(database.run(subscriptions.by_ids([withdrawn.id, second.id]))) == {withdrawn.id}


def test_only_withdrawn_ones_that_were_named_are_forgotten(database: Database) -> None:
    named, unnamed, active = (database.put(KEY._replace(config_id=str(n))) for n in range(3))
    database.run(subscriptions.withdraw([named.id, unnamed.id], NOW))
    assert database.run(subscriptions.forget([named.id, active.id])) == 1
    assert set(database.run(subscriptions.by_ids([named.id, unnamed.id, active.id]))) == {
        unnamed.id,
        active.id,
    }


def test_no_repr_shows_a_secret(database: Database) -> None:
    authentication = Authentication(schemes=("Bearer",), credentials="canary")
    config = PushConfig(url="https://a.example.com", token="canary", authentication=authentication)
    assert "canary" not in repr(database.put(config=config))


# --- owners --------------------------------------------------------------------------------------


LONG_AGO = NOW - timedelta(days=30)
ALICE = Owner(tenant="acme", name="alice")
PROVED = "https://client.example.com/canary?canary"
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
            explain = rows_of(f"EXPLAIN QUERY PLAN {counting.sql}", *counting.parameters)
            plan = [step["detail"] for step in database.run(explain)]
            assert any("USING INDEX pushkit_subscriptions_of_owner" in step for step in plan)
            assert not any(step.startswith("SCAN s") for step in plan)


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
    database.run(prove(ALICE, PROVED, now=NOW))
    assert database.run(proof_remains_for(ALICE, PROVED, now=NOW - day)) == 30 * day
    assert database.run(proof_remains_for(ALICE, PROVED, now=NOW + day)) == 29 * day
    assert not database.run(proof_remains_for(ALICE, PROVED, now=NOW + 30 * day))
    assert not database.run(proof_remains_for(ALICE, f"{PROVED}&", now=NOW))
    for other in OTHERS:
        assert not database.run(proof_remains_for(other, PROVED, now=NOW))


def test_a_proof_may_be_given_again_and_old_ones_are_forgotten(database: Database) -> None:
    database.run(prove(ALICE, PROVED, now=LONG_AGO))
    database.run(prove(ALICE, f"{PROVED}&", now=NOW))
    database.run(prove(ALICE, f"{PROVED}&", now=NOW))
    assert len(rows(database)) == 1


def test_no_url_is_stored(database: Database) -> None:
    database.run(prove(ALICE, PROVED, now=NOW))
    assert "canary" not in repr([tuple(row) for row in rows(database)])


def rows(database: Database) -> list[Row]:
    return database.run(rows_of("SELECT tenant, owner, url_sha256 FROM pushkit_proved_urls"))
