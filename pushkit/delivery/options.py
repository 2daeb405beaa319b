"""What one rarely changes about a sender."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from pushkit.delivery.breaker import BreakerPolicy
from pushkit.errors import ConfigError
from pushkit.outbox import Retention
from pushkit.work import RetryPolicy

__all__ = ["SenderOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    """What one rarely changes.

    Attributes:
        retry: When to try again, and when to give up.
        timeout: The deadline of one attempt in total; A2A recommends 10 s to 30 s.
        concurrency: How many attempts at once.
        concurrency_per_host: How many connections to one host and port.
        max_body_bytes: The largest body that `notify()` accepts; receivers refuse more.
        go_token_spelling: Send the token as `A2A-Notification-Token` too.
        drain: How long `close()` waits for attempts that are running.
        breaker: When a destination is left alone, and for how long.
        disable_after: After how long of nothing but failures a subscription is disabled.
        max_backlog_per_subscription: The most unfinished deliveries of one subscription.
        max_backlog: The most unfinished deliveries in all; counted once a second.
        max_configs_per_task: The most push configs of one owner for one task.
        coalesce: Before an update is refused because of these limits, drop `working` statuses
            without a message that a newer status overtook; the gap in `seq` tells the receiver.
        lease_margin: How much longer than an attempt a lease lasts: what a worker that died had
            in work is taken over after `timeout` and this (at once, where that was on SQLite).
        poll_interval: How long an idle worker waits at most before it looks for what other
            processes stored; PostgreSQL wakes it at once besides.
        retain: How long the worker lets finished deliveries stay.
        keep_answers: Keep the first KiB of each answer with its attempt, for `outbox.show`.
        seal_bodies: Encrypt bodies in the database too, with the sender's secret keys.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta = timedelta(seconds=15)
    concurrency: int = 64
    concurrency_per_host: int = 16
    max_body_bytes: int = 1024 * 1024
    go_token_spelling: bool = False
    drain: timedelta = timedelta(seconds=20)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    disable_after: timedelta = timedelta(days=5)
    max_backlog_per_subscription: int = 10_000
    max_backlog: int = 1_000_000
    max_configs_per_task: int = 100
    coalesce: bool = False
    lease_margin: timedelta = timedelta(seconds=15)
    poll_interval: timedelta = timedelta(seconds=1)
    retain: Retention = field(default_factory=Retention)
    keep_answers: bool = False
    seal_bodies: bool = False

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: found {getattr(self, name)}, expected at least 1")
        for name in _LONGER_THAN_NOTHING:
            if getattr(self, name) <= timedelta(0):
                raise ConfigError(f"{name}: found {getattr(self, name)}, expected more than 0 s")


_AT_LEAST_ONE = (
    "concurrency",
    "concurrency_per_host",
    "max_body_bytes",
    "max_backlog_per_subscription",
    "max_backlog",
    "max_configs_per_task",
)
_LONGER_THAN_NOTHING = ("timeout", "disable_after", "lease_margin", "poll_interval")
