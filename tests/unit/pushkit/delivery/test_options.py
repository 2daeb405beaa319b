"""The bounds and defaults of a sender's options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pushkit import SenderOptions
from pushkit.errors import ConfigError

COUNTS = [
    *("concurrency", "concurrency_per_host", "max_body_bytes", "max_configs_per_task"),
    *("max_backlog_per_subscription", "max_backlog", "max_backlog_per_owner"),
    "max_subscriptions_per_owner",
]
TIMES = ["timeout", "disable_after", "lease_margin", "poll_interval"]
LEAST = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("name", "least", "less", "says"),
    [
        *((name, 1, 0, "found 0, expected at least 1") for name in COUNTS),
        *((name, LEAST, timedelta(0), "found 0:00:00, expected more than zero") for name in TIMES),
    ],
)
def test_an_option_has_a_least_value(name: str, least: Any, less: Any, says: str) -> None:
    SenderOptions(**{name: least})
    for wrong in (less, less - least):
        with pytest.raises(ConfigError, match=f"^{name}: found"):
            SenderOptions(**{name: wrong})
    with pytest.raises(ConfigError, match=f"^{name}: {says}"):
        SenderOptions(**{name: less})


def test_the_defaults_match_the_documentation() -> None:
    options = SenderOptions()

    assert options.timeout == timedelta(seconds=15)
    assert (options.concurrency, options.concurrency_per_host) == (256, 16)
    assert options.max_body_bytes == 1024 * 1024
    assert options.drain == timedelta(seconds=20)
    assert options.disable_after == timedelta(days=5)
    assert (options.max_backlog_per_subscription, options.max_backlog) == (10_000, 1_000_000)
    assert options.max_configs_per_task == 100
    assert (options.max_subscriptions_per_owner, options.max_backlog_per_owner) == (100_000,) * 2
    assert options.lease_margin == timedelta(seconds=15)
    assert options.poll_interval == timedelta(seconds=1)
    assert options.rate_per_origin == 100
    assert options.keep_answers == "failed"
    off = ("coalesce", "seal_bodies", "verify_ownership", "go_token_spelling")
    assert not any(getattr(options, name) for name in off)
