"""How a command ends: 0 done, 1 refused or failed, 2 called wrongly; errors in readable lines."""

from __future__ import annotations

import sys

import click

from pushkit.errors import PushkitError

__all__ = ["run_command"]


def run_command(group: click.Group) -> None:
    """Run a click group, and exit.

    What is raised on purpose becomes `error: …` on standard error, a line each, and exit status 1;
    click itself answers a wrong call with its usage and exit status 2.
    """
    try:
        group()
    except PushkitError as exc:
        for line in str(exc).splitlines():
            click.echo(f"error: {line}", err=True)
        sys.exit(1)
