"""Arguments that would fail later are refused where they are given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
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


# One of each class: that all of its options are checked is in `test_options.py`.
@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        pytest.param(SenderOptions, {"drain": 20}, "drain: found int", id="drain"),
        pytest.param(BreakerPolicy, {"first_wait": 30}, "first_wait: found int", id="first-wait"),
        pytest.param(Retention, {"delivered": 7}, "delivered: found int", id="kept"),
        pytest.param(AlertOptions, {"log": True, "every": 60}, "every: found int", id="alerts"),
        pytest.param(
            SenderOptions,
            {"credentials": DestinationCredentials(origin="https://client.example.com")},
            "credentials: found DestinationCredentials, expected a list",
            id="one-credential",
        ),
        pytest.param(Filter, {"kinds": 5}, "kinds: found int", id="kinds"),
        pytest.param(Signing, {"schemes": "jwt"}, r"expected a list: \['jwt'\]", id="one-scheme"),
        pytest.param(ruled_sender, {"ports": ["443"]}, "ports: found str in", id="ports"),
        pytest.param(wait_schedule, {"seconds": 5}, "seconds: found int", id="waits"),
        pytest.param(wait_schedule, {"jitter": "0.1"}, "jitter: found str", id="jitter"),
        pytest.param(RetryPolicy, {"stop": 5}, "stop: found int", id="stop"),
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
        pytest.param(sender, {"keys": "keys.json", "passphrase": "p"}, "found str", id="pass"),
        pytest.param(load_key_ring, {"path": "k", "passphrase": "p"}, "found str", id="loaded"),
        pytest.param(save_key_ring, {"path": "k", "ring": None}, "ring: found None", id="saved"),
        pytest.param(decode_update, {"body": "{}"}, "body: found str, expected bytes", id="body"),
        pytest.param(receiver, {"concurrency": 0}, "found 0, expected at least 1", id="no-calls"),
        pytest.param(
            receiver,
            {"forwarded_header": "X-Real-IP"},
            "forwarded_header: found 'X-Real-IP', expected one of X-Forwarded-For, Forwarded",
            id="forwarded",
        ),
        pytest.param(InboxRetention, {"ids": None}, "ids: found NoneType", id="ids"),
        pytest.param(Limits, {"peer_rate": 5}, "peer_rate: found int", id="peer-rate"),
        pytest.param(RateLimit, {"per_second": "5", "burst": 5}, "found str", id="per-second"),
        pytest.param(trusted_sender, {"name": 5}, "name: found int", id="name"),
        pytest.param(load_trust, {"url": 5, "senders": []}, "url: found int", id="url"),
        pytest.param(load_trust, {"url": "u", "senders": None}, "found NoneType", id="trusted"),
        pytest.param(verified, {"tokens": "secret"}, "expected a list, found a s", id="handed-out"),
        pytest.param(verified, {"request": b"{}"}, "request: found bytes", id="request"),
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
