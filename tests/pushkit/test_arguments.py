"""What would fail far from its cause is refused where it is given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit import Authentication, PushSender, SenderOptions
from pushkit.errors import ConfigError
from pushkit.scheduling.retry import RetryPolicy
from receiver import Limits, Receiver
from receiver.callbacks.registry import CallbackRegistry
from tests.receiver.conftest import trusted_sender

Make = Callable[..., object]


def sender(**given: Any) -> PushSender:
    return PushSender(issuer="https://agent.example.com", database="outbox.db", **given)


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
        pytest.param(SenderOptions, {"retry": 3}, "retry: found int", id="retry"),
        pytest.param(SenderOptions, {"retain": None}, "retain: found NoneType", id="retain"),
        pytest.param(SenderOptions, {"breaker": 5}, "breaker: found int", id="breaker"),
        pytest.param(SenderOptions, {"destinations": []}, "destinations: found list", id="rules"),
        pytest.param(SenderOptions, {"signing": "jwt"}, "signing: found str", id="signing"),
        pytest.param(RetryPolicy, {"stop": 5}, "stop: found int", id="stop"),
        pytest.param(RetryPolicy, {"wait": 5}, "wait: found int", id="wait"),
        pytest.param(Authentication, {"schemes": "Bearer"}, "schemes: found a str", id="schemes"),
        pytest.param(sender, {"keys": None}, "keys: found NoneType", id="keys"),
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
