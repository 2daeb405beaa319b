"""The options of `pushkit worker` that say where alerts go."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from pushkit.alerts import AlertOptions
from pushkit.terminal.command import age

__all__ = ["alert_options"]

_R = TypeVar("_R")

_OPTIONS = (
    click.option("--alert-log", is_flag=True, help="Write alerts to the log."),
    click.option(
        "--alert-command",
        metavar="COMMAND",
        help="Run this for each alert, which it gets as JSON on standard input; without a shell.",
    ),
    click.option(
        "--alert-webhook",
        metavar="URL",
        envvar="PUSHKIT_ALERT_WEBHOOK",
        show_envvar=True,
        help="Send alerts there: signed, through the same outbox.",
    ),
    click.option(
        "--alert-every",
        metavar="AGE",
        default="1h",
        show_default=True,
        callback=age,
        help="The same alert once in this time.",
    ),
)


def alert_options(command: Callable[..., _R]) -> Callable[..., _R]:
    """Add the options to a command, which gets `alerts`: None where nobody wants any."""

    @functools.wraps(command)
    def run(
        *,
        alert_log: bool,
        alert_command: str | None,
        alert_webhook: str | None,
        alert_every: timedelta,
        **given: Any,
    ) -> _R:
        alerts = AlertOptions(
            log=alert_log,
            command=tuple(shlex.split(alert_command or "")),
            webhook=alert_webhook,
            every=alert_every,
        )
        wanted = alerts.log or alerts.command or alerts.webhook
        return command(alerts=alerts if wanted else None, **given)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run
