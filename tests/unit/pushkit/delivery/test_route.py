"""The route of a subscription is cached until the subscription changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pushkit import (
    DeliveryState,
    DestinationRules,
    PushSender,
    SecretKeys,
    Signing,
    Subscription,
)
from pushkit.delivery.route import Routes
from pushkit.errors import SealedSecretError
from pushkit.net.authorization import Credentials
from pushkit.net.destination import Decided, DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.secrets.sealing import SecretKey
from pushkit.secrets.vault import SecretsAdmin, Vault
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import StoredSubscription
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Received, Senders, Webhook, status

BASIC = {"scheme": "Basic", "credentials": "of-the-client"}
OLD, NEW = SecretKey.generate(), SecretKey.generate()


async def subscribe(sender: PushSender, webhook: Webhook, **changes: Any) -> Subscription:
    config = {"url": webhook.url(), "token": "first-token", "authentication": BASIC}
    profile = changes.pop("profile", "standard")
    return await sender.subscribe(
        "task-1", config | changes, version="1.0", owner="alice", profile=profile
    )


async def deliver(sender: PushSender, webhook: Webhook) -> Received:
    """Deliver an update, and return its request."""
    before = len(webhook.received)
    await sender.notify(status())
    assert await sender.worker.run_once() == 1
    [request] = webhook.received[before:]
    return request


async def fail(sender: PushSender) -> str | None:
    """Try to deliver an update that cannot be sent, and return why."""
    await sender.notify(status())
    assert await sender.worker.run_once() == 1
    *_, last = await sender.deliveries("task-1")
    assert last.state is DeliveryState.PENDING
    return last.last_error


# --- the subscription ---------------------------------------------------------------------------


async def test_a_delivery_uses_the_config_registered_last(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open()
    await subscribe(sender, webhook)
    await deliver(sender, webhook)
    changes: dict[str, Any] = {
        "url": webhook.url("/moved"),
        "token": "second-token",
        "authentication": {"scheme": "ApiKey", "credentials": "another"},
        "profile": "a2a-samples",
    }
    await subscribe(sender, webhook, **changes)
    request = await deliver(sender, webhook)
    claims = request.claims(senders.public_keys())
    assert (request.path, claims.audience) == ("/moved", ())
    assert request.headers.one("X-A2A-Token") == "second-token"
    assert request.headers.one("X-Api-Key") == "another"
    await subscribe(sender, webhook)
    request = await deliver(sender, webhook)
    assert (request.path, request.headers.one("X-Api-Key")) == ("/hook", None)
    assert request.headers.one("Authorization") == "Basic of-the-client"


async def test_a_delivery_uses_a_config_registered_by_another_process(
    senders: Senders, webhook: Webhook
) -> None:
    worker, agent = await senders.open(), await senders.open()
    await subscribe(agent, webhook)
    await deliver(worker, webhook)
    await subscribe(agent, webhook, url=webhook.url("/moved"), token="second-token")
    request = await deliver(worker, webhook)
    assert (request.path, request.headers.one("X-A2A-Token")) == ("/moved", "second-token")


async def test_a_subscription_removed_and_registered_again_has_a_new_route(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook)
    await deliver(sender, webhook)
    await sender.unsubscribe("task-1", owner="alice")
    await subscribe(sender, webhook, token="second-token")
    request = await deliver(sender, webhook)
    assert request.headers.one("X-A2A-Token") == "second-token"


async def test_a_url_is_checked_once_until_its_subscription_changes(
    senders: Senders, webhook: Webhook
) -> None:
    heard: list[Decided] = []
    rules = DestinationRules(on_decision=heard.append)
    sender = await senders.open(destinations=rules)

    async def judged(doing: Callable[[], Any]) -> int:
        heard.clear()
        await doing()
        return sum(each.address is None for each in heard)

    async def deliver_twice() -> None:
        for _ in range(2):
            await deliver(sender, webhook)

    async def pause_and_disable() -> None:
        admin = sender.subscription_admin
        for change in (admin.pause, admin.resume, admin.disable, admin.enable):
            await change([subscription.id])
        await deliver_twice()

    subscription = await subscribe(sender, webhook)
    assert await judged(deliver_twice) == 1
    assert await judged(pause_and_disable) == 0
    await subscribe(sender, webhook)
    assert await judged(deliver_twice) == 1


async def test_a_signing_function_is_called_for_every_attempt_with_opened_secrets(
    senders: Senders, webhook: Webhook
) -> None:
    asked: list[str | None] = []

    def signing(subscription: Subscription) -> Signing:
        asked.append(subscription.config.token)
        return Signing()

    sender = await senders.open(signing=signing)
    await subscribe(sender, webhook)
    for _ in range(3):
        await deliver(sender, webhook)
    assert asked == ["first-token"] * 3


# --- secret keys --------------------------------------------------------------------------------


async def test_resealed_secrets_are_opened_again(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(secrets=SecretKeys([OLD]))
    await subscribe(sender, webhook)
    await deliver(sender, webhook)
    async with senders.stored() as database:
        assert (await SecretsAdmin(database).rotate(SecretKeys([NEW, OLD]))).secrets == 2
    # The sender has only the old key.
    assert await fail(sender) == "secret_key_missing"


async def test_a_secret_opened_by_one_sender_stays_sealed_for_another(
    senders: Senders, webhook: Webhook
) -> None:
    with_keys = await senders.open(secrets=SecretKeys([OLD]))
    await subscribe(with_keys, webhook)
    await deliver(with_keys, webhook)
    assert await fail(await senders.open()) == "secret_key_missing"


async def test_every_attempt_tries_again_to_open_a_sealed_secret(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await senders.open(secrets=SecretKeys([OLD]))
    await subscribe(sender, webhook)
    to = "UPDATE pushkit_subscriptions SET url = $1"
    await senders.execute(to, webhook.url("/mallory"))
    assert await fail(sender) == "sealed_secret"
    clock.advance(60)
    assert await sender.worker.run_once() == 1
    [waiting] = await sender.deliveries("task-1")
    assert (waiting.faults, waiting.last_error) == (2, "sealed_secret")
    await senders.execute(to, webhook.url())
    clock.advance(60)
    assert await sender.worker.run_once() == 1
    [request] = webhook.received
    assert request.headers.one("X-A2A-Token") == "first-token"


# --- rules and the allow list -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allow", "rules"),
    [
        pytest.param((), {}, id="no longer named"),
        pytest.param(("localhost:*",), {"domains": ["client.example.com"]}, id="other rules"),
    ],
)
async def test_each_sender_applies_its_own_rules(
    senders: Senders, webhook: Webhook, allow: tuple[str, ...], rules: dict[str, Any]
) -> None:
    named = await senders.open()
    await subscribe(named, webhook)
    await deliver(named, webhook)
    other = await senders.open(allow=allow, destinations=DestinationRules(**rules))
    assert await fail(other) == "destination_refused"


# --- the cache ----------------------------------------------------------------------------------


@pytest.fixture
def routes() -> Routes:
    return make_routes(Vault())


def make_routes(vault: Vault) -> Routes:
    policy = DestinationPolicy(allow=["127.0.0.1:*"])
    return Routes(
        issuer="https://agent.example.com",
        policy=policy,
        vault=vault,
        credentials=Credentials((), Transport(policy), Clock()),
        most=2,
    )


@pytest.fixture
async def stored(senders: Senders, webhook: Webhook) -> StoredSubscription:
    sender = await senders.open(secrets=SecretKeys([OLD]))
    await subscribe(sender, webhook)
    async with senders.stored() as database:
        [found] = await database.read(subscriptions.stored_of_task(tenant="", task_id="task-1"))
    return found


def revised(stored: StoredSubscription, revision: int, name: str = "one") -> StoredSubscription:
    subscription = replace(stored.subscription, id=name, revision=revision)
    return replace(stored, subscription=subscription, token="abc", credentials=None)


def test_a_route_is_cached_for_one_revision(routes: Routes, stored: StoredSubscription) -> None:
    assert routes.known("one", 3) is None
    route = routes.of(revised(stored, 3))
    assert routes.known("one", 3) is routes.of(revised(stored, 3)) is route
    assert routes.known("one", 4) is None
    assert routes.of(revised(stored, 4)) is not route


def test_the_cache_drops_the_route_used_least_recently(
    routes: Routes, stored: StoredSubscription
) -> None:
    for name in ("one", "two"):
        routes.of(revised(stored, 0, name))
    routes.known("one", 0)
    routes.of(revised(stored, 0, "three"))
    known = [name for name in ("one", "two", "three") if routes.known(name, 0)]
    assert known == ["one", "three"]


def test_a_route_that_fails_is_not_cached(stored: StoredSubscription) -> None:
    routes = make_routes(Vault())
    with pytest.raises(SealedSecretError):
        routes.of(stored)
    assert routes.known(stored.subscription.id, stored.subscription.revision) is None


def test_no_repr_of_a_route_shows_a_secret(stored: StoredSubscription) -> None:
    route = make_routes(Vault(SecretKeys([OLD]))).of(stored)
    assert "first-token" not in repr(route)
    assert "of-the-client" not in repr(route)
