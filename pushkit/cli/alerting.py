"""The options of `pushkit worker` that say where alerts go."""

from __future__ import annotations

import shlex
from datetime import timedelta

import click

from pushkit.alerts.alerts import AlertOptions
from pushkit.terminal.command import age
from pushkit.terminal.options import gathered


def _wanted(
    *, log: bool, command: str | None, webhook: str | None, token: str | None, every: timedelta
) -> AlertOptions | None:
    """Return where alerts go; None where nobody wants any."""
    if not (log or command or webhook):
        return None
    try:
        words = tuple(shlex.split(command or ""))
    except ValueError as exc:
        raise click.UsageError("--alert-command: a quote is not closed") from exc
    return AlertOptions(log=log, command=words, webhook=webhook, webhook_token=token, every=every)


alert_options = gathered(
    "alerts",
    _wanted,
    log=click.option("--alert-log", "log", is_flag=True, help="Write alerts to the log."),
    command=click.option(
        "--alert-command",
        "command",
        metavar="COMMAND",
        help="Run this for each alert, which it gets as JSON on standard input; without a shell.",
    ),
    webhook=click.option(
        "--alert-webhook",
        "webhook",
        metavar="URL",
        envvar="PUSHKIT_ALERT_WEBHOOK",
        show_envvar=True,
        help="Send alerts there: signed, through the same outbox.",
    ),
    token=click.option(
        "--alert-token",
        "token",
        envvar="PUSHKIT_ALERT_TOKEN",
        show_envvar=True,
        help="The token that this webhook expects.",
    ),
    every=click.option(
        "--alert-every",
        "every",
        metavar="AGE",
        default="1h",
        callback=age,
        help="The same alert once in this time.",
    ),
)
