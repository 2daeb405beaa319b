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
    KeyRing,
    PushSender,
    Retention,
    SenderOptions,
)
from pushkit.errors import ConfigError
from pushkit.scheduling.retry import RetryPolicy
from receiver import Limits, Receiver
from receiver.callbacks.registry import CallbackRegistry
from tests.receiver.conftest import trusted_sender

Make = Callable[..., object]


def sender(**given: Any) -> PushSender:
    return PushSender(issuer="https://agent.example.com", database="outbox.db", **given)


def keyed_sender(**given: Any) -> PushSender:
    given = {"issuer": "https://agent.example.com", "database": "outbox.db", **given}
    return PushSender(keys=KeyRing.create(datetime.now(UTC)), **given)


def receiver(**given: Any) -> Receiver:
    url = "https://client.example.com"
    return Receiver(url=url, senders=[trusted_sender()], database="inbox.db", **given)


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
        pytest.param(RetryPolicy, {"stop": 5}, "stop: found int", id="stop"),
        pytest.param(RetryPolicy, {"wait": 5}, "wait: found int", id="wait"),
        pytest.param(Authentication, {"schemes": "Bearer"}, "schemes: found a str", id="schemes"),
        pytest.param(sender, {"keys": None}, "keys: found NoneType", id="keys"),
        pytest.param(keyed_sender, {"options": {}}, "options: found dict", id="options"),
        pytest.param(keyed_sender, {"on_event": "log"}, "on_event: found str", id="listener"),
        pytest.param(keyed_sender, {"database": None}, "database: found NoneType", id="database"),
        pytest.param(receiver, {"concurrency": 0}, "found 0, expected at least 1", id="no-calls"),
        pytest.param(receiver, {"drain": 20}, "drain: found int", id="receiver-drain"),
        pytest.param(receiver, {"retry": 3}, "retry: found int", id="receiver-retry"),
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
