"""Hostile URLs are refused at registration and at delivery."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from pushkit import DestinationRules, PushSender
from pushkit.errors import ConfigError, DestinationRefusedError, InvalidPushConfigError, UrlDecision
from pushkit.net.destination import DestinationPolicy
from pushkit.outbox.states import DeliveryState
from pushkit.url import Url
from tests.hostile import attackers_dns, hostile_urls
from tests.internet import Internet
from tests.unit.pushkit.deliveries import add_subscription
from tests.unit.pushkit.delivery.conftest import Senders, deliver_due, enqueue, status


class Relaxed(DestinationPolicy):
    """A policy that allows http and any port, and keeps all other rules."""

    def decide_on_url(self, url: Url) -> UrlDecision:
        return super().decide_on_url(replace(url, scheme="https", port=443))


@pytest.fixture
async def canary(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """Return a list of a port on loopback, then one entry per connection to that port."""
    found: list[int] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.append(1)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    found.append(server.sockets[0].getsockname()[1])
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        for variable in (name, name.lower()):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{found[0]}")
    yield found
    server.close()


@pytest.fixture(
    params=[
        pytest.param(DestinationPolicy, id="every rule"),
        pytest.param(Relaxed, id="any scheme and port"),
    ]
)
def urls(
    request: pytest.FixtureRequest, canary: list[int], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Return the hostile URLs for senders with the real or with the relaxed policy."""
    policy = request.param
    monkeypatch.setattr("pushkit.delivery.sender.DestinationPolicy", policy)
    lines = hostile_urls(8443 if policy is DestinationPolicy else canary[0])
    if policy is Relaxed:
        lines = [line for line in lines if not line.only_its_port_is_wrong]
    # Each URL as it is, with a name that has to be looked up, and both as https.
    spellings = [url for line in lines for url in (line.url, line.looked_up())]
    return list(dict.fromkeys(url for each in spellings for url in (each, _secure(each))))


def _secure(url: str) -> str:
    return url.replace("http://", "https://", 1)


async def test_no_hostile_url_can_be_registered_and_delivered_to(
    public: Internet, senders: Senders, canary: list[int], urls: list[str]
) -> None:
    attackers_dns(public.network.names)
    sender = await senders.open(allow=())
    accepted = []
    for number, url in enumerate(urls):
        with suppress(InvalidPushConfigError):
            await sender.subscribe(f"task-{number}", {"url": url}, version="1.0")
            accepted.append(url)
            if "rebind" not in url:  # its second DNS answer is public, so it would be dialled
                await sender.notify(status(task_id=f"task-{number}"))
    # Registration accepts only names that DNS resolves at delivery.
    assert {"attacker.example.com" in url for url in accepted} == {True}
    assert await sender.worker.run_once() > 5
    assert (public.network.dialled, canary[1:]) == ([], [])


async def test_no_stored_hostile_url_is_delivered_to(
    public: Internet, senders: Senders, canary: list[int], urls: list[str]
) -> None:
    attackers_dns(public.network.names)
    sender = await senders.open(allow=(), concurrency=512)
    stored = [url for url in urls if "rebind" not in url]
    for number, url in enumerate(stored):
        await store(sender, f"config-{number}", url)
    ids = (await sender.notify(status())).ids
    assert len(ids) == len(stored) > 100
    await deliver_due(sender)
    assert (public.network.dialled, canary[1:]) == ([], [])
    found = await sender.deliveries("task-1")
    assert {(each.state, each.attempts) for each in found} == {(DeliveryState.PENDING, 1)}
    assert {each.last_error for each in found} == {"destination_refused", "address_refused"}


async def test_without_the_guard_a_hostile_url_reaches_the_canary(
    public: Internet, senders: Senders, canary: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Proves that the two tests above would see a connection.
    monkeypatch.setattr("pushkit.delivery.sender.DestinationPolicy", Relaxed)
    monkeypatch.setattr("pushkit.net.guard.Guard.check", lambda *_: None)
    attackers_dns(public.network.names)
    sender = await senders.open(allow=())
    url = f"http://loop.attacker.example.com:{canary[0]}/"
    await enqueue(sender, url)
    await sender.worker.run_once()
    assert public.network.dialled == [("127.0.0.1", canary[0])]
    assert len(canary) == 2


async def store(sender: PushSender, config_id: str, url: str) -> None:
    """Store a subscription that registration would refuse."""
    await sender._database.write(
        add_subscription(
            now=sender._clock(),
            owner="",
            config_id=config_id,
            origin=f"https://{config_id}.example.com:443",
            url=url,
        )
    )


# --- the operator's rules ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "accepted"),
    [
        ("https://client.example.com/", True),
        ("https://a.partner.net/", True),
        ("https://a.b.partner.net:9443/", True),
        ("https://partner.net/", False),
        ("https://evilpartner.net/", False),
        ("https://client.example.com.evil.net/", False),
        ("https://a.partner.net:8443/", False),
        ("http://client.example.com/", False),
    ],
)
async def test_only_the_operators_domains_and_ports_are_registered(
    senders: Senders, url: str, accepted: bool
) -> None:
    rules = DestinationRules(domains=["Client.Example.com.", "*.partner.net"], ports=[443, 9443])
    sender = await senders.open(allow=(), destinations=rules)
    if accepted:
        assert await sender.subscribe("task-1", {"url": url}, version="1.0")
    else:
        with pytest.raises(DestinationRefusedError):
            await sender.subscribe("task-1", {"url": url}, version="1.0")


@pytest.mark.parametrize(
    "rules",
    [
        DestinationRules(domains=["*.com.*"]),
        DestinationRules(networks=["10.0.0.1/8"]),
        DestinationRules(refused_networks=["example.com"]),
    ],
)
def test_an_invalid_rule_is_a_configuration_error(rules: DestinationRules) -> None:
    with pytest.raises(ConfigError):
        DestinationPolicy(rules=rules)


async def test_allowed_development_destinations_are_logged_once_at_the_start(
    senders: Senders, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await senders.open(allow=("127.0.0.1:*", "hooks.internal:80"))
    await sender.start()
    said = [record for record in caplog.records if "not checked" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    assert "127.0.0.1:*, hooks.internal:80" in said[0].getMessage()
