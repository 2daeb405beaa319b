"""Where a dashboard listens, and who may look and act: by options of a command, or by a file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import click

from pushkit.terminal.options import PATH, Given, gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """Where a dashboard listens, and who may look and act."""

    # `host:port`. Beyond loopback a token is needed.
    listen: str
    variable: str  # the environment variable that may hold the token
    hosts: tuple[str, ...] = ()  # names that it is served under
    token_file: Path | None = None  # a file with the token, mode 0600; before the variable
    allow_actions: bool = False  # whether who has the token may change anything
    # A file that a line is added to for every action; None for standard error.
    audit_log: Path | None = None


def dashboard_options(*, listen: str, variable: str) -> Given:
    """Give a command these options, as one `DashboardOptions` that it calls `options`."""
    return gathered(
        "options",
        functools.partial(DashboardOptions, variable=variable),
        listen=click.option(
            "--listen", default=listen, help="Address and port. Beyond loopback a token is needed."
        ),
        hosts=click.option(
            "--host", "hosts", multiple=True, help="A name that it is served under."
        ),
        token_file=click.option(
            "--token-file",
            type=PATH,
            help=f"A file with the token, mode 0600.  [env var: {variable} holds the token itself]",
        ),
        allow_actions=click.option(
            "--allow-actions", is_flag=True, help="Let who has the token redrive, …"
        ),
        audit_log=click.option(
            "--audit-log",
            type=PATH,
            help="A file that a line is added to for every action.  [default: standard error]",
        ),
    )
