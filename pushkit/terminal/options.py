"""Options of the commands of both packages, and what a command gets of them.

What belongs together comes to a command as one object: see `gathered`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from pushkit.terminal.command import json_option, parse_age
from pushkit.terminal.output import Columns, table_of

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonObject

Given: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""A decorator that gives a command an option, or several."""

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file that is there."""
PATH: Final = click.Path(dir_okay=False, path_type=Path)
"""A file that may be there."""

allow_option = click.option(
    "--allow", multiple=True, metavar="HOST:PORT", help="A destination named for development."
)


def gathered(name: str, make: Callable[..., object], **options: Given) -> Given:
    """Give a command options, and what is made of their values as one argument.

    Args:
        name: What the command calls it.
        make: Makes it of the values, by name.
        **options: What gives each value, in the order of `--help`; also what is gathered itself.
    """

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            mine = {each: given.pop(each) for each in options}
            command(**{name: make(**mine)}, **given)

        made: Callable[..., None] = run
        for option in reversed(options.values()):
            made = option(made)
        return made

    return add


def read_by(read: Callable[[Any], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback of click that reads the value of an option, where it has one."""
    return lambda _context, _parameter, value: None if value is None else read(value)


def variable_option(*names: str, envvar: str, **more: Any) -> Given:
    """Give a command an option that an environment variable may stand in for; the help says so."""
    return click.option(*names, envvar=envvar, show_envvar=True, **more)


def choice_option(*names: str, of: Iterable[Enum], **more: Any) -> Given:
    """Give a command an option, or several values of one, that is a member of an enum by value.

    What is not named here is as of `click.option`; a default is a value.
    """
    members = {each.value: each for each in of}

    def member(value: Any) -> Any:
        return tuple(map(member, value)) if isinstance(value, tuple) else members[value]

    return click.option(*names, type=click.Choice(list(members)), callback=read_by(member), **more)


def seconds_option(*names: str, within: tuple[int, int], **more: Any) -> Given:
    """Give a command an option in whole seconds within bounds, as a `timedelta`."""
    span = read_by(lambda seconds: timedelta(seconds=seconds))
    return click.option(*names, type=click.IntRange(*within), callback=span, **more)


def age_option(name: str, **more: Any) -> Given:
    """Give a command an option like `90m`, `12h`, `7d`, as a `timedelta`."""
    return click.option(name, callback=read_by(parse_age), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which page of a list to show, and how."""

    after: Any  # the last id of the page before
    limit: int  # how many at the most
    as_json: bool  # whether as JSON, not as a table

    def show(
        self,
        found: Sequence[Any],
        document: Callable[[Any], JsonObject],
        columns: Columns,
    ) -> None:
        """Write what was found, which has ids, and whether there may be more."""
        if self.as_json:
            click.echo(json.dumps([document(each) for each in found], indent=2))
            return
        click.echo(table_of(columns, found))
        if len(found) == self.limit:
            click.echo(f"there may be more: --after {found[-1].id}", err=True)


def page_options(ids: type = str) -> Given:
    """Give a command that lists what has such ids its `page`."""
    return gathered(
        "page",
        Page,
        after=click.option("--after", type=ids, help="The last id of the page before."),
        limit=click.option("--limit", type=click.IntRange(1, 10000), default=100),
        as_json=json_option,
    )


def chosen_options(
    kind: Callable[..., object], wanted: Given, *, all_says: str, ids: type = str
) -> Given:
    """Give a command what is `chosen`: by ids, by a filter or with `--all`.

    The filter, made without arguments, leaves nothing out; its options are gathered as `wanted`.
    """

    def choose(*, ids: tuple[object, ...], wanted: object, everything: bool) -> object:
        if [bool(ids), wanted != kind(), everything].count(True) != 1:
            raise click.UsageError("expected either ids, or a filter, or --all")
        return ids or wanted

    return gathered(
        "chosen",
        choose,
        ids=click.argument("ids", metavar="[ID]...", nargs=-1, type=ids),
        wanted=wanted,
        everything=click.option("--all", "everything", is_flag=True, help=all_says),
    )
