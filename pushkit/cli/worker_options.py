"""The options of `pushkit worker`: what it delivers and as whom, how, and where alerts go.

Without any of them it delivers as `SenderOptions` does by default.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from pushkit.alerts.alerts import AlertOptions
from pushkit.cli.databases import database_option
from pushkit.cli.options import (
    KeyFile,
    SigningGiven,
    key_file_options,
    signing_options,
)
from pushkit.outbox.retention import Retention
from pushkit.scheduling import stop_after_attempt, stop_after_delay
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.terminal.command import parse_age
from pushkit.terminal.log_output import LogFormat
from pushkit.terminal.options import (
    PATH,
    OptionDecorator,
    age_option,
    allow_option,
    choice_option,
    gathered,
    read_by,
    seconds_option,
    variable_option,
)
from pushkit.variables import secret_variable

_ALERT_TOKEN_VARIABLE = "PUSHKIT_ALERT_TOKEN"  # noqa: S105  # where it is, not what
_FOREVER = "forever"
_WAITS = "5s,5m,30m,2h,5h,10h,14h,20h,24h"  # DEFAULT_SCHEDULE, as people read it


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivering:
    """How a worker delivers."""

    timeout: timedelta
    waits: tuple[timedelta, ...]
    max_age: timedelta
    disable_after: timedelta
    keep_delivered: timedelta | None
    keep_dead: timedelta | None
    keep_answers: bool
    go_token_spelling: bool

    def options(self) -> dict[str, Any]:
        """Return what that is in `SenderOptions`."""
        return {
            "timeout": self.timeout,
            "retry": RetryPolicy(
                wait=wait_schedule([wait.total_seconds() for wait in self.waits]),
                stop=stop_after_attempt(len(self.waits) + 1)
                | stop_after_delay(self.max_age.total_seconds()),
            ),
            "disable_after": self.disable_after,
            "retain": Retention(delivered=self.keep_delivered, dead=self.keep_dead),
            "keep_answers": self.keep_answers,
            "go_token_spelling": self.go_token_spelling,
        }


def _waits(value: str) -> tuple[timedelta, ...]:
    return tuple(parse_age(each.strip()) for each in value.split(","))


def _age_option(name: str, default: str, says: str) -> OptionDecorator:
    return age_option(name, metavar="AGE", default=default, help=says)


def _keep_option(name: str, default: str, says: str) -> OptionDecorator:
    kept = read_by(lambda value: None if value == _FOREVER else parse_age(value))
    return click.option(name, metavar=f"AGE|{_FOREVER}", default=default, callback=kept, help=says)


delivery_options = gathered(
    "delivering",
    Delivering,
    timeout=_age_option("--timeout", "15s", "The deadline of one attempt in total."),
    waits=click.option(
        "--waits",
        metavar="AGE,AGE,…",
        default=_WAITS,
        callback=read_by(_waits),
        help="After the 1st, 2nd, … failed attempt; after the last one a delivery is dead.",
    ),
    max_age=_age_option("--max-age", "90h", "Nor is a delivery tried when it is older than this."),
    disable_after=_age_option(
        "--disable-after", "5d", "A subscription with nothing but failures for so long is disabled."
    ),
    keep_delivered=_keep_option(
        "--keep-delivered", "7d", "How long delivered and cancelled deliveries stay."
    ),
    keep_dead=_keep_option("--keep-dead", "30d", "How long dead letters stay."),
    keep_answers=click.option(
        "--keep-answers", is_flag=True, help="Keep the first KiB of each answer, for outbox show."
    ),
    go_token_spelling=click.option(
        "--go-token-spelling", is_flag=True, help="Send the token as A2A-Notification-Token too."
    ),
)


def _alerts(
    *,
    alert_log: bool,
    alert_command: str | None,
    alert_webhook: str | None,
    alert_token: str | None,
    alert_every: timedelta,
) -> AlertOptions | None:
    """Return where alerts go; None where nobody wants any."""
    if not (alert_log or alert_command or alert_webhook):
        return None
    try:
        command = tuple(shlex.split(alert_command or ""))
    except ValueError as exc:
        raise click.UsageError("--alert-command: a quote is not closed") from exc
    return AlertOptions(
        log=alert_log,
        command=command,
        webhook=alert_webhook,
        webhook_token=alert_token or secret_variable(_ALERT_TOKEN_VARIABLE),
        every=alert_every,
    )


_alert_options = gathered(
    "alerts",
    _alerts,
    alert_log=click.option("--alert-log", is_flag=True, help="Write alerts to the log."),
    alert_command=click.option(
        "--alert-command",
        metavar="COMMAND",
        help="Run this for each alert, which it gets as JSON on standard input; without a shell.",
    ),
    alert_webhook=variable_option(
        "--alert-webhook",
        metavar="URL",
        envvar="PUSHKIT_ALERT_WEBHOOK",
        help="Send alerts there: signed, through the same outbox.",
    ),
    alert_token=variable_option(
        "--alert-token", envvar=_ALERT_TOKEN_VARIABLE, help="The token that this webhook expects."
    ),
    alert_every=_age_option("--alert-every", "1h", "The same alert once in this time."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker process is started with."""

    database: str = field(repr=False)  # a DSN may hold a password
    issuer: str
    key_file: KeyFile
    signing: SigningGiven
    allow: tuple[str, ...]
    destinations: Path | None
    concurrency: int
    concurrency_per_host: int
    drain: timedelta
    delivering: Delivering
    alerts: AlertOptions | None
    tracing: bool
    verbose: bool
    log_format: LogFormat


worker_options = gathered(
    "settings",
    WorkerSettings,
    database=database_option,
    issuer=variable_option(
        "--issuer", required=True, envvar="PUSHKIT_ISSUER", help="`iss`: who this is from."
    ),
    key_file=key_file_options(),
    signing=signing_options,
    allow=allow_option,
    destinations=variable_option(
        "--destinations",
        type=PATH,
        envvar="PUSHKIT_DESTINATIONS",
        help="A TOML file: rules, proxy, credentials.",
    ),
    concurrency=click.option(
        "--concurrency",
        type=click.IntRange(1, 4096),
        default=256,
        help="Attempts at once, in each process.",
    ),
    concurrency_per_host=click.option(
        "--per-host",
        "concurrency_per_host",
        type=click.IntRange(1, 4096),
        default=16,
        help="Attempts at once to one destination, over all processes.",
    ),
    drain=seconds_option(
        "--drain",
        within=(0, 600),
        default=20,
        help="Seconds that running attempts are given at the end.",
    ),
    delivering=delivery_options,
    alerts=_alert_options,
    tracing=click.option(
        "--tracing", is_flag=True, help="Make spans (under opentelemetry-instrument, for example)."
    ),
    verbose=click.option("--verbose", is_flag=True, help="Log every attempt."),
    log_format=choice_option(
        "--log-format",
        of=LogFormat,
        default=LogFormat.TEXT.value,
        envvar="PUSHKIT_LOG_FORMAT",
        show_envvar=True,
        help="Lines for people, or JSON objects.",
    ),
)
