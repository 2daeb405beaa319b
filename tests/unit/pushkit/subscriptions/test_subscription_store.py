from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest

from pushkit.a2a import Authentication, PushConfig, WireVersion
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.secrets.vault import Vault
from pushkit.storage.migrations import migrate
from pushkit.storage.script import Script
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, DisabledBy, Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.store import open_subscription

if TYPE_CHECKING:
    from tests.databases import ScriptRunner

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
