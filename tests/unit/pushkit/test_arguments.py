"""Arguments that would fail later are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit import (
    AlertOptions,
    Authentication,
    BreakerPolicy,
    DestinationCredentials,
    DestinationRules,
    Filter,
    KeyRing,
    PushSender,
    Retention,
    SenderOptions,
    Signing,
    decode_update,
    load_key_ring,
    save_key_ring,
    wait_schedule,
)
from pushkit.errors import ConfigError
from pushkit.scheduling.retry import RetryPolicy
from receiver import (
    Headers,
    InboxRetention,
    Limits,
    RateLimit,
    Receiver,
    WebhookRequest,
    load_trust,
    verify_notification,
)
from receiver.callbacks.registry import CallbackRegistry
from tests.unit.receiver.conftest import trusted_sender

Make = Callable[..., object]


def sender(**given: Any) -> PushSender:
    return PushSender(issuer="https://agent.example.com", database="outbox.db", **given)


def keyed_sender(**given: Any) -> PushSender:
    given = {"issuer": "https://agent.example.com", "database": "outbox.db", **given}
    return PushSender(keys=KeyRing.create(datetime.now(UTC)), **given)


def receiver(**given: Any) -> Receiver:
    url = "https://client.example.com"
    given = {"senders": [trusted_sender()], "database": "inbox.db", **given}
    return Receiver(url=url, **given)


def ruled_sender(**given: Any) -> PushSender:
    return keyed_sender(options=SenderOptions(destinations=DestinationRules(**given)))


def verified(**given: Any) -> object:
    request = WebhookRequest(target="/a2a/push", headers=Headers(), body=b"{}")
    trust = load_trust("https://client.example.com", [])
    return verify_notification(
        **{"request": request, "trust": trust, "now": datetime.now(UTC), **given}
    )


def callback(**given: Any) -> object:
    async def called(_: object) -> None: ...

    return CallbackRegistry().add(called, **given)


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        pytest.param(SenderOptions, {"drain": 20}, "drain: found int", id="drain"),
        pytest.param(SenderOptions, {"timeout": 10}, "timeout: found int", id="timeout"),
        pytest.param(SenderOptions, {"poll_interval": 0.5}, "found float", id="poll-interval"),
        pytest.param(SenderOptions, {"concurrency": 2.5}, "concurrency: found float", id="slots"),
        pytest.param(SenderOptions, {"max_backlog": "10"}, "max_backlog: found str", id="backlog"),
        pytest.param(BreakerPolicy, {"first_wait": 30}, "first_wait: found int", id="first-wait"),
        pytest.param(BreakerPolicy, {"failures": "5"}, "failures: found str", id="failures"),
        pytest.param(Retention, {"delivered": 7}, "delivered: found int", id="kept"),
        pytest.param(Retention, {"per_task": "7"}, "per_task: found str", id="kept-per-task"),
        pytest.param(AlertOptions, {"log": True, "every": 60}, "every: found int", id="alerts"),
        pytest.param(SenderOptions, {"retry": 3}, "retry: found int", id="retry"),
        pytest.param(SenderOptions, {"retain": None}, "retain: found NoneType", id="retain"),
        pytest.param(SenderOptions, {"breaker": 5}, "breaker: found int", id="breaker"),
        pytest.param(SenderOptions, {"destinations": []}, "destinations: found list", id="rules"),
        pytest.param(SenderOptions, {"signing": "jwt"}, "signing: found str", id="signing"),
        pytest.param(SenderOptions, {"alerts": 5}, "alerts: found int", id="where-alerts-go"),
        pytest.param(SenderOptions, {"proxy": 5}, "proxy: found int", id="proxy"),
        pytest.param(SenderOptions, {"ca_file": b"ca"}, "ca_file: found bytes", id="ca-file"),
        pytest.param(SenderOptions, {"seal_bodies": "false"}, "bodies: found str", id="sealed"),
        pytest.param(SenderOptions, {"coalesce": None}, "coalesce: found NoneType", id="coalesce"),
        pytest.param(SenderOptions, {"rate_per_origin": "9"}, "origin: found str", id="rate"),
        pytest.param(
            SenderOptions,
            {"credentials": DestinationCredentials(origin="https://client.example.com")},
            "credentials: found DestinationCredentials, expected a list",
            id="one-credential",
        ),
        pytest.param(SenderOptions, {"credentials": ["a"]}, "found str in", id="credentials"),
        pytest.param(Filter, {"kinds": 5}, "kinds: found int", id="kinds"),
        pytest.param(Signing, {"schemes": "jwt"}, r"expected a list: \['jwt'\]", id="one-scheme"),
        pytest.param(
            Signing,
            {"schemes": ["standard-webhooks"], "webhook_secrets": [5]},
            "webhook_secrets: found int in the list",
            id="webhook-secrets",
        ),
        pytest.param(ruled_sender, {"domains": "a.example"}, "domains: found 'a.exa", id="domains"),
        pytest.param(ruled_sender, {"refused_networks": "::/0"}, "refused_n", id="networks"),
        pytest.param(ruled_sender, {"ports": ["443"]}, "ports: found str in", id="ports"),
        pytest.param(ruled_sender, {"on_decision": 5}, "on_decision: found int", id="decisions"),
        pytest.param(wait_schedule, {"seconds": 5}, "seconds: found int", id="waits"),
        pytest.param(wait_schedule, {"jitter": "0.1"}, "jitter: found str", id="jitter"),
        pytest.param(RetryPolicy, {"stop": 5}, "stop: found int", id="stop"),
        pytest.param(RetryPolicy, {"wait": 5}, "wait: found int", id="wait"),
        pytest.param(Authentication, {"schemes": "Bearer"}, "schemes: found a str", id="schemes"),
        pytest.param(Authentication, {"schemes": 5}, "schemes: found int", id="no-schemes"),
        pytest.param(
            Authentication,
            {"schemes": ["Bearer"], "credentials": 5},
            "credentials: found int, expected a string",
            id="webhook-credentials",
        ),
        pytest.param(sender, {"keys": None}, "keys: found NoneType", id="keys"),
        pytest.param(keyed_sender, {"options": {}}, "options: found dict", id="options"),
        pytest.param(keyed_sender, {"on_event": "log"}, "on_event: found str", id="listener"),
        pytest.param(keyed_sender, {"issuer": 5}, "issuer: found int", id="issuer"),
        pytest.param(keyed_sender, {"clock": None}, "clock: found NoneType", id="clock"),
        pytest.param(keyed_sender, {"secrets": 5}, "secrets: found int", id="secrets"),
        pytest.param(keyed_sender, {"allow": [80]}, "allow: found int in the list", id="allow"),
        pytest.param(sender, {"keys": "keys.json", "passphrase": "p"}, "found str", id="pass"),
        pytest.param(load_key_ring, {"path": "k", "passphrase": "p"}, "found str", id="loaded"),
        pytest.param(save_key_ring, {"path": "k", "ring": None}, "ring: found None", id="saved"),
        pytest.param(decode_update, {"body": "{}"}, "body: found str, expected bytes", id="body"),
        pytest.param(keyed_sender, {"database": None}, "database: found NoneType", id="database"),
        pytest.param(receiver, {"concurrency": 0}, "found 0, expected at least 1", id="no-calls"),
        pytest.param(receiver, {"drain": 20}, "drain: found int", id="receiver-drain"),
        pytest.param(receiver, {"retry": 3}, "retry: found int", id="receiver-retry"),
        pytest.param(receiver, {"retention": 5}, "retention: found int", id="retention"),
        pytest.param(receiver, {"alerts": True}, "alerts: found bool", id="receiver-alerts"),
        pytest.param(receiver, {"clock": 5}, "clock: found int", id="receiver-clock"),
        pytest.param(receiver, {"validation_echo": "no"}, "echo: found str", id="echo"),
        pytest.param(receiver, {"senders": ["a"]}, "senders: found str in", id="senders"),
        pytest.param(receiver, {"trusted_proxies": [5]}, "proxies: found int", id="proxies"),
        pytest.param(
            receiver,
            {"forwarded_header": "X-Real-IP"},
            "forwarded_header: found 'X-Real-IP', expected one of X-Forwarded-For, Forwarded",
            id="forwarded",
        ),
        pytest.param(InboxRetention, {"ids": None}, "ids: found NoneType", id="ids"),
        pytest.param(InboxRetention, {"done": 7}, "done: found int", id="done"),
        pytest.param(Limits, {"peer_rate": 5}, "peer_rate: found int", id="peer-rate"),
        pytest.param(RateLimit, {"per_second": "5", "burst": 5}, "found str", id="per-second"),
        pytest.param(RateLimit, {"per_second": 5, "burst": 0.5}, "burst: found", id="burst"),
        pytest.param(trusted_sender, {"name": 5}, "name: found int", id="name"),
        pytest.param(trusted_sender, {"issuer": 5}, "issuer: found int", id="sender-issuer"),
        pytest.param(trusted_sender, {"rate": 5}, "rate: found int", id="sender-rate"),
        pytest.param(trusted_sender, {"path": None}, "path: found NoneType", id="path"),
        pytest.param(trusted_sender, {"tokens": [5]}, "tokens: found int in the", id="tokens"),
        pytest.param(trusted_sender, {"token_required": None}, "found NoneType", id="required"),
        pytest.param(trusted_sender, {"max_body_bytes": 1.5}, "found float", id="sender-body"),
        pytest.param(trusted_sender, {"keys": {"k": "pem"}}, "found str in", id="sender-keys"),
        pytest.param(load_trust, {"url": 5, "senders": []}, "url: found int", id="url"),
        pytest.param(load_trust, {"url": "u", "senders": None}, "found NoneType", id="trusted"),
        pytest.param(verified, {"tokens": "secret"}, "expected a list, found a s", id="handed-out"),
        pytest.param(verified, {"request": b"{}"}, "request: found bytes", id="request"),
        pytest.param(Limits, {"max_body_bytes": 0}, "max_body_bytes: found 0", id="no-body"),
        pytest.param(Limits, {"request_timeout": 10}, "timeout: found int", id="request-timeout"),
        pytest.param(Limits, {"request_timeout": timedelta(0)}, "found 0:00", id="no-time"),
        pytest.param(callback, {"timeout": 5}, "timeout: found int", id="call-timeout"),
    ],
)
def test_arguments_that_would_fail_later_are_refused_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    given: dict[str, object],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        make(**given)
