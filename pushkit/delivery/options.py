"""The options of a sender that rarely need changing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pushkit.alerts import AlertOptions
from pushkit.delivery.answers import BreakerPolicy, KeepAnswers
from pushkit.delivery.signatures import Signing, SigningChoice
from pushkit.net.authorization import DestinationCredentials
from pushkit.net.destination import DestinationRules
from pushkit.options import Bounds, Count, Duration, Wait, check_options
from pushkit.outbox.retention import Retention
from pushkit.scheduling.retry import RetryPolicy


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
        max_recovered_per_owner: The most deliveries that one owner may have sent again in a day of
            UTC, over all tenants, by `PushSender.recover`.
        alerts: Where dead letters, disabled subscriptions, faults of this side and keys near their
            end are sent; None for nowhere.

    Raises:
        ConfigError: An option has a wrong type, or a number is out of range.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: Duration = timedelta(seconds=15)
    concurrency: Count = 256
    concurrency_per_host: Count = 16
    max_body_bytes: Count = 1024 * 1024
    go_token_spelling: bool = False
    drain: Wait = timedelta(seconds=20)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    disable_after: Duration = timedelta(days=5)
    max_backlog_per_subscription: Count = 10_000
    max_backlog: Count = 1_000_000
    max_configs_per_task: Count = 100
    coalesce: bool = False
    lease_margin: Duration = timedelta(seconds=15)
    poll_interval: Duration = timedelta(seconds=1)
    retain: Retention = field(default_factory=Retention)
    keep_answers: KeepAnswers | str = KeepAnswers.FAILED
    seal_bodies: bool = False
    destinations: DestinationRules = field(default_factory=DestinationRules)
    proxy: str | None = field(default=None, repr=False)
    ca_file: Path | str | None = None
    credentials: Sequence[DestinationCredentials] = ()
    signing: SigningChoice = field(default_factory=Signing)
    verify_ownership: bool = False
    rate_per_origin: Annotated[float, Bounds(above=0)] | None = 100.0
    max_subscriptions_per_owner: Count = 100_000
    max_backlog_per_owner: Count = 100_000
    max_recovered_per_owner: Count = 10_000
    alerts: AlertOptions | None = None

    def __post_init__(self) -> None:
        check_options(self)
