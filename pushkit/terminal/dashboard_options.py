"""The settings of a dashboard, as options of a command."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import click

from pushkit.terminal.options import PATH, OptionDecorator, gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """Where a dashboard listens, and what its visitors may do."""

    listen: str  # `host:port`; a token is needed unless this is a loopback address
    variable: str  # the environment variable that may hold the token
    hosts: tuple[str, ...] = ()  # the names that `Host` headers may contain
    token_file: Path | None = None  # a file with the token, mode 0600; precedes the variable
    allow_actions: bool = False  # whether a visitor with the token may change anything
    audit_log: Path | None = None  # gets a line for every action; None for standard error


def dashboard_options(*, listen: str, variable: str) -> OptionDecorator:
    """Add these options to a command, which gets a `DashboardOptions` as `options`."""
    return gathered(
        "options",
        functools.partial(DashboardOptions, variable=variable),
        listen=click.option(
            "--listen",
            default=listen,
            help="Address and port. Other addresses than loopback need a token.",
        ),
        hosts=click.option(
            "--host", "hosts", multiple=True, help="A host name under which browsers reach it."
        ),
        token_file=click.option(
            "--token-file",
            type=PATH,
            help=f"A file with the token, mode 0600.  [env var: {variable} holds the token itself]",
        ),
        allow_actions=click.option(
            "--allow-actions",
            is_flag=True,
            help="Allow actions, such as redrive, to visitors with the token.",
        ),
        audit_log=click.option(
            "--audit-log",
            type=PATH,
            help="A file to which every action adds a line.  [default: standard error]",
        ),
    )
