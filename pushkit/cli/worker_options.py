"""The options of `pushkit worker`; their defaults are those of `SenderOptions`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from pushkit.alerts.alerts import AlertOptions
from pushkit.cli.databases import database_option
from pushkit.cli.options import KeyFile, key_file_options, signing_options
from pushkit.delivery.signatures import Signing
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

_ALERT_TOKEN_VARIABLE = "PUSHKIT_ALERT_TOKEN"  # noqa: S105  # the name of the variable
_FOREVER = "forever"
_WAITS = "5s,5m,30m,2h,5h,10h,14h,20h,24h"  # DEFAULT_SCHEDULE


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
        """Return the arguments of `SenderOptions`."""
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
    timeout=_age_option("--timeout", "15s", "The time-out of an attempt in total."),
    waits=click.option(
        "--waits",
        metavar="AGE,AGE,…",
        default=_WAITS,
        callback=read_by(_waits),
        help="The waits after the 1st, 2nd, … failed attempt; one more failure is final.",
    ),
    max_age=_age_option("--max-age", "90h", "Give up deliveries that are older than this."),
    disable_after=_age_option(
        "--disable-after", "5d", "Disable subscriptions that only fail for this long."
    ),
    keep_delivered=_keep_option(
        "--keep-delivered", "7d", "How long to keep delivered and cancelled deliveries."
    ),
    keep_dead=_keep_option("--keep-dead", "30d", "How long to keep dead letters."),
    keep_answers=click.option(
        "--keep-answers",
        is_flag=True,
        help="Keep the first KiB of each answer, for `pushkit outbox show`.",
    ),
    go_token_spelling=click.option(
        "--go-token-spelling", is_flag=True, help="Also send the token as A2A-Notification-Token."
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
    """Return where alerts go; None without any of the options."""
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
        help="Run this for each alert, with the alert as JSON on standard input; without a shell.",
    ),
    alert_webhook=variable_option(
        "--alert-webhook",
        metavar="URL",
        envvar="PUSHKIT_ALERT_WEBHOOK",
        help="Send alerts to this webhook, signed, through the same outbox.",
    ),
    alert_token=variable_option(
        "--alert-token",
        envvar=_ALERT_TOKEN_VARIABLE,
        help="The token that the alert webhook expects.",
    ),
    alert_every=_age_option("--alert-every", "1h", "Send the same alert once in this time."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker process."""

    database: str = field(repr=False)  # a DSN may hold a password
    issuer: str
    key_file: KeyFile
    signing: Signing
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
        "--issuer",
        required=True,
        envvar="PUSHKIT_ISSUER",
        help="The `iss`, which names the sender.",
    ),
    key_file=key_file_options(),
    signing=signing_options,
    allow=allow_option,
    destinations=variable_option(
        "--destinations",
        type=PATH,
        envvar="PUSHKIT_DESTINATIONS",
        help="A TOML file with destination rules, proxy and credentials.",
    ),
    concurrency=click.option(
        "--concurrency",
        type=click.IntRange(1, 4096),
        default=256,
        help="How many attempts each process makes at once.",
    ),
    concurrency_per_host=click.option(
        "--per-host",
        "concurrency_per_host",
        type=click.IntRange(1, 4096),
        default=16,
        help="How many attempts all processes make at once to one origin.",
    ),
    drain=seconds_option(
        "--drain",
        within=(0, 600),
        default=20,
        help="Seconds that attempts in progress get at the end.",
    ),
    delivering=delivery_options,
    alerts=_alert_options,
    tracing=click.option(
        "--tracing", is_flag=True, help="Make OpenTelemetry spans, see opentelemetry-instrument."
    ),
    verbose=click.option("--verbose", is_flag=True, help="Log every attempt."),
    log_format=choice_option(
        "--log-format",
        of=LogFormat,
        default=LogFormat.TEXT.value,
        envvar="PUSHKIT_LOG_FORMAT",
        show_envvar=True,
        help="Log lines for people, or JSON objects.",
    ),
)
