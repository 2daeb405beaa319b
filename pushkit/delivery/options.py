"""The options of a sender that rarely need changing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pushkit.arguments import (
    Kind,
    check_callable,
    check_count,
    check_duration,
    check_list,
    check_type,
    check_types,
    read_member,
)
from pushkit.delivery.answers import BreakerPolicy, KeepAnswers
from pushkit.delivery.signatures import Signing, SigningChoice
from pushkit.errors import ConfigError
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.destination import DestinationRules
from pushkit.outbox.retention import Retention
from pushkit.scheduling.retry import RetryPolicy

if TYPE_CHECKING:
    from pushkit.alerts.alerts import AlertOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    """The options of a sender that rarely need changing.

    Attributes:
        retry: When to try again, and when to give up.
        timeout: The deadline of one attempt in total; A2A recommends 10 s to 30 s.
        concurrency: How many requests at once, by this process: with several workers, each has its
            own. An owner that has three times as many under way as are free gets no more: a quarter
            is left for the others, and the last eighth for owners that have none.
        concurrency_per_host: How many requests at once to one host and port, over all owners, by
            this process; also how many connections.
        max_body_bytes: The largest body that `notify()` accepts; receivers refuse more.
        go_token_spelling: Send the token as `A2A-Notification-Token` too.
        drain: How long `close()` waits for running attempts.
        breaker: After how many failures a destination is not attempted for a while, and how long.
        disable_after: A subscription that only failed for this long is disabled.
        max_backlog_per_subscription: The most unfinished deliveries of one subscription. Each
            subscription may exceed the three backlog limits by one delivery, for the end of its
            task.
        max_backlog: The most unfinished deliveries in all; counted once a second.
        max_configs_per_task: The most push configs of one owner for one task.
        coalesce: Before an update is refused because of these limits, drop `working` statuses
            without a message that a newer status superseded. The receiver sees a gap in `seq`.
        lease_margin: How much longer than an attempt the lease of a queue lasts. It is renewed
            three times within this; the queues of a worker that died are taken over after at most
            `timeout` plus this (immediately on the same SQLite file).
        poll_interval: How long a worker waits at most before it looks for queues that are due:
            deliveries that other processes stored, retries, workers that died. PostgreSQL also
            wakes it for new ones.
        retain: How long finished deliveries are kept.
        keep_answers: Keep the first KiB of webhooks' answers with their attempts, for
            `outbox.show`: `none`, of `failed` attempts, or `all`. Secrets that were sent are
            masked; with the sender's secret keys, answers are encrypted.
        seal_bodies: Encrypt bodies in the database too, with the sender's secret keys.
        destinations: Which destinations are allowed: domains, ports, networks, and the parts of an
            intranet that are opened.
        proxy: An egress proxy, `http://[user:password@]host:port`: the guard stays on.
        ca_file: Root certificates in PEM, trusted in addition to the system's.
        credentials: How this sender authenticates itself, by destination.
        signing: Which signatures notifications carry; or a function that returns this for each
            subscription, for example to give each client its own Standard Webhooks secret. It is
            called for every attempt: it must be quick and do no I/O. Secrets stay out of the
            database.
        verify_ownership: Before the first delivery, a URL must answer
            `GET url?validationToken=<random>` with the token; until it does, it gets nothing.
        rate_per_origin: The most requests a second of this process to one origin, over all owners,
            in bursts of up to a second's worth; None for no limit. What waits for it takes nothing
            from other origins. Origins named in `allow` have no limit.
        max_subscriptions_per_owner: The most subscriptions of one owner, over all tenants; counted
            once a second.
        max_backlog_per_owner: The most unfinished deliveries to one owner, over all tenants;
            counted once a second.
        alerts: Where dead letters, disabled subscriptions, faults of this side and keys near their
            end are sent; None for nowhere.

    Raises:
        ConfigError: An option has a wrong type, or a number is out of range.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta = timedelta(seconds=15)
    concurrency: int = 256
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
    keep_answers: KeepAnswers | str = KeepAnswers.FAILED
    seal_bodies: bool = False
    destinations: DestinationRules = field(default_factory=DestinationRules)
    proxy: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    credentials: Sequence[DestinationCredentials] = ()
    signing: SigningChoice = field(default_factory=Signing)
    verify_ownership: bool = False
    rate_per_origin: float | None = 100.0
    max_subscriptions_per_owner: int = 100_000
    max_backlog_per_owner: int = 100_000
    alerts: AlertOptions | None = None

    def __post_init__(self) -> None:
        check_types(self, _KINDS)
        check_list("credentials", self.credentials, of=DestinationCredentials, shown=False)
        if self.alerts is not None:
            from pushkit.alerts.alerts import AlertOptions

            check_type("alerts", self.alerts, AlertOptions)
        keep_answers = read_member("keep_answers", self.keep_answers, KeepAnswers)
        object.__setattr__(self, "keep_answers", keep_answers)
        if not isinstance(self.signing, Signing):
            check_callable("signing", self.signing)
        for name in _AT_LEAST_ONE:
            check_count(name, getattr(self, name))
        for name in _ABOVE_ZERO:
            check_duration(name, getattr(self, name))
        if self.rate_per_origin is not None and not self.rate_per_origin > 0:
            raise ConfigError(
                f"rate_per_origin: found {self.rate_per_origin:g} a second, expected more than 0"
            )


_AT_LEAST_ONE = (
    "concurrency",
    "concurrency_per_host",
    "max_body_bytes",
    "max_backlog_per_subscription",
    "max_backlog",
    "max_configs_per_task",
    "max_subscriptions_per_owner",
    "max_backlog_per_owner",
)
_ABOVE_ZERO = ("timeout", "disable_after", "lease_margin", "poll_interval")
_KINDS: Mapping[str, Kind] = {
    "drain": timedelta,
    "rate_per_origin": int | float | None,
    "proxy": str | None,
    "ca_file": str | Path | None,
    # Of a setting that is still a text, "false" would be true.
    "go_token_spelling": bool,
    "coalesce": bool,
    "seal_bodies": bool,
    "verify_ownership": bool,
    "retry": RetryPolicy,
    "breaker": BreakerPolicy,
    "retain": Retention,
    "destinations": DestinationRules,
}
