"""Where a dashboard listens, and who may look and act: by options of a command, or by a file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """Where a dashboard listens, and who may look and act.

    Attributes:
        listen: `host:port`. Beyond loopback a token is needed.
        variable: The environment variable that may hold the token.
        hosts: Names that it is served under.
        token_file: A file with the token, mode 0600; before the variable.
        allow_actions: Whether who has the token may change anything.
        audit_log: A file that a line is added to for every action; None for standard error.
    """

    listen: str
    variable: str
    hosts: tuple[str, ...] = ()
    token_file: Path | None = None
    allow_actions: bool = False
    audit_log: Path | None = None


def dashboard_options(
    *, listen: str, variable: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options, which it gets as one `DashboardOptions`, named `options`.

    Args:
        listen: Where it listens by default.
        variable: The environment variable that may hold the token.
    """
    path = click.Path(dir_okay=False, path_type=Path)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--listen",
            default=listen,
            show_default=True,
            help="Address and port. Beyond loopback a token is needed.",
        )
        @click.option("--host", "hosts", multiple=True, help="A name that it is served under.")
        @click.option(
            "--token-file",
            type=path,
            help=f"A file with the token, mode 0600.  [env var: {variable} holds the token itself]",
        )
        @click.option("--allow-actions", is_flag=True, help="Let who has the token redrive, …")
        @click.option(
            "--audit-log",
            type=path,
            help="A file that a line is added to for every action.  [default: standard error]",
        )
        @functools.wraps(command)
        def gathered(**given: Any) -> None:
            options = DashboardOptions(
                variable=variable,
                **{name: given.pop(name) for name in _NAMES},
            )
            command(options=options, **given)

        return gathered

    return decorate


_NAMES = ("listen", "hosts", "token_file", "allow_actions", "audit_log")
