"""Running commands: lazy groups, errors and exit statuses; `--json`, ages and colours.

The exit status is 0 for success, 1 for a refusal or a failure, and 2 for a wrong call.
"""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import click

from pushkit.errors import DestinationRefusedError, PushkitError
from pushkit.options import LONGEST_AGE, UNITS

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON, not a table.")

_AGE = re.compile(r"([0-9]{1,7})([smhd])")


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def __init__(self, *args: Any, places: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = places or {}  # `module:function` of each command, by its name

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self._places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        place = self._places.get(cmd_name)
        if place is not None and cmd_name not in self.commands:
            self.add_command(loaded(cmd_name, lambda: find_command(place)), cmd_name)
        return super().get_command(ctx, cmd_name)


def find_command(place: str) -> click.Command:
    """Import the command at `module:function`."""
    found = pkgutil.resolve_name(place)
    if not isinstance(found, click.Command):
        raise TypeError(f"{place} is no command")
    return found


def loaded(name: str, load: Callable[[], click.Command]) -> click.Command:
    """Return the command that `load` returns; if it fails, one that reports why.

    So that a command that cannot be loaded, because another module has the name of ours or a
    library is missing, leaves the others, and `--help`, as they are.
    """
    try:
        return load()
    except (Exception, SystemExit) as exc:  # noqa: BLE001  # a module of somebody else was run
        return BrokenCommand(name, f"cannot be loaded: {str(exc) or type(exc).__name__}")


class BrokenCommand(click.Command):
    """A command in place of one that cannot be loaded: with any arguments, it reports why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            name,
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            short_help=reason,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True},
        )
        self.reason = reason

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Raise ClickException: why it cannot be loaded."""
        raise click.ClickException(f"{ctx.info_name} {self.reason}")


def run_command(group: click.Group) -> None:
    """Run a click group, and exit.

    Errors of pushkit and of the operating system become lines `error: …` on standard error, and
    exit status 1; click itself answers a wrong call with its usage and status 2.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as of stderr: Latin-1 has no ✓
    with errors_reported():
        group()


def _open_closed_streams() -> None:
    """Open each standard stream that is closed, as by `2>&-`, on the null device.

    Python has None in its place, and the next file or socket would get its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # until the end


@contextlib.contextmanager
def errors_reported() -> Iterator[None]:
    """Report errors of pushkit and of the operating system, and exit with status 1."""
    try:
        yield
    except DestinationRefusedError as exc:
        _fail(str(exc) + exc.advice("add --allow '{}'"))
    except PushkitError as exc:
        _fail(str(exc))
    except OSError as exc:  # for example a full disk
        where = "" if exc.filename is None else f"{os.fsdecode(exc.filename)}: "
        _fail(f"{where}{exc.strerror or type(exc).__name__}")


def _fail(message: str) -> NoReturn:
    for line in message.splitlines():
        click.echo(f"error: {line}", err=True)
    sys.exit(1)


def parse_age(value: str) -> timedelta:
    """Read an age like `90m`, `12h` or `7d`. Raises click.BadParameter."""
    found = _AGE.fullmatch(value)
    if found is None:
        raise click.BadParameter("expected a number and s, m, h or d, for example 30d")
    read = timedelta(**{UNITS[found[2]]: int(found[1])})
    if read > LONGEST_AGE:
        raise click.BadParameter(f"expected at most {LONGEST_AGE.days}d")
    return read


def painted(text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
    """Return text with a style if standard output is a terminal, else unchanged."""
    # no-color.org: any value that is not empty.
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=colour, bold=bold or None, dim=dim or None)
