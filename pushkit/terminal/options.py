"""Options of the commands of both packages.

Options that belong together reach a command as one object: see `gathered`.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import click
from click.core import ParameterSource

from pushkit.errors import ConfigError
from pushkit.files import unmarked
from pushkit.options import REQUIRED, Bounds, Option, age_text, options_of, sentences_of
from pushkit.storage.location import masked
from pushkit.terminal.command import json_option, parse_age
from pushkit.terminal.output import Columns, OutFile, table_of

if TYPE_CHECKING:
    from pushkit.bounded_json import JsonValue

OptionDecorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
"""Adds one or several options to a command."""

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
"""A file that exists."""
PATH: Final = click.Path(dir_okay=False, path_type=Path)
"""A file that may not exist yet."""

FOREVER: Final = "forever"
"""For what has no end, in place of an age."""

allow_option = click.option(
    "--allow",
    multiple=True,
    metavar="HOST:PORT",
    help="For development: a host for which the destination rules are lifted.",
)


def egress_options(make: Callable[..., object]) -> OptionDecorator:
    """Add how a command reaches other hosts, which gets what `make` makes of it."""
    return gathered(
        "connections",
        make,
        proxy=option_of(make, "proxy", metavar="URL", envvar="PUSHKIT_PROXY"),
        ca_file=option_of(make, "ca_file", type=FILE, envvar="PUSHKIT_CA_FILE"),
    )


def card_trust_options(make: Callable[..., object]) -> OptionDecorator:
    """Add whose cards a command trusts, which gets as `trusted` what `make` makes of it."""

    def made(**given: Any) -> object:
        if not any(given.values()):
            raise click.UsageError("no keys to trust: expected --key, --jwks or --trust")
        if given["trust_file"] is not None and (given["keys"] or given["jwks"]):
            raise click.UsageError("expected either --trust, or --key and --jwks")
        return make(**given)

    return gathered(
        "trusted",
        made,
        keys=option_of(make, "keys"),
        jwks=option_of(make, "jwks", "--jwks", metavar="FILE_OR_URL"),
        trust_file=option_of(make, "trust_file", "--trust", "trust_file"),
    )


def gathered(name: str, make: Callable[..., object], **options: OptionDecorator) -> OptionDecorator:
    """Add options to a command, which gets one object made from their values.

    Args:
        name: The name of the command's argument.
        make: Makes the object; gets the values by name.
        **options: Adds the option for each value, in the order of `--help`; may be gathered itself.
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


def refuse_given(*names: str, only_for: str) -> None:
    """Refuse those of this command's options that were given, but would have no effect.

    Args:
        *names: The names of the command's arguments; values from the environment are no mistakes.
        only_for: What the options belong to, for the message.

    Raises:
        click.UsageError: One of them is on the command line.
    """
    for option in click.get_current_context().command.params:
        if option.name in names and is_given(option.name):
            raise click.UsageError(f"{option.opts[0]} is only for {only_for}")


def is_given(name: str) -> bool:
    """Return whether an argument of this command is on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def with_place(command: str) -> str:
    """Return a command with those options that say where this command's data is."""
    context = click.get_current_context()
    for name in ("config", "database"):
        if name in context.params and is_given(name):
            command += f" --{name} {shlex.quote(masked(str(context.params[name])))}"
    return command


def read_by(read: Callable[[Any], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback for click that applies a function to the value of an option, if any."""
    return lambda _context, _parameter, value: None if value is None else read(value)


at_option = click.option(
    "--at",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S%z"]),
    callback=read_by(lambda at: at.replace(tzinfo=at.tzinfo or UTC)),
    help="Verify as of this time, in UTC.  [default: now]",
)


def read_stream(file: IO[bytes]) -> bytes:
    """Return the content of a file or of standard input, without a byte order mark.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8 by its mark.
    """
    try:
        return unmarked(file.read())
    except OSError as exc:
        file.close()
        raise ConfigError(f"{getattr(file, 'name', '-')}: {exc.strerror}") from exc


def variable_option(*names: str, envvar: str, **more: Any) -> OptionDecorator:
    """Add an option with an environment variable as its default, which `--help` mentions."""
    return click.option(*names, envvar=envvar, show_envvar=True, **more)


def choice_option(*names: str, of: Iterable[Enum], **more: Any) -> OptionDecorator:
    """Add an option whose values are those of an enum; the command gets members of the enum.

    Other arguments are those of `click.option`; a default is a value, not a member.
    """
    return click.option(*names, **_choice(of), **more)


def _choice(of: Iterable[Enum]) -> dict[str, Any]:
    members = {each.value: each for each in of}

    def member(value: Any) -> Any:
        return tuple(map(member, value)) if isinstance(value, tuple) else members[value]

    return {"type": click.Choice(list(members)), "callback": read_by(member)}


def seconds_option(*names: str, within: tuple[int, int], **more: Any) -> OptionDecorator:
    """Add an option in whole seconds within bounds; the command gets a `timedelta`."""
    span = read_by(lambda seconds: timedelta(seconds=seconds))
    return click.option(*names, type=click.IntRange(*within), callback=span, **more)


def option_of(
    declared: Callable[..., object], name: str, *words: str, **more: Any
) -> OptionDecorator:
    """Add an option of a class (see `pushkit.options`) to a command.

    Args:
        declared: The class.
        name: The option's name there.
        *words: What is written, and the name of the command's argument; by default `name`, of a
            list in the singular.
        **more: Other arguments of `click.option`; they precede.
    """
    option = options_of(declared)[name]
    says = sentences_of(declared).get(name, "")  # there are no docstrings under -OO
    own = {"help": says.partition(". ")[0].removesuffix(".") + ".", **_click_type(option)}
    word = re.sub("ie$", "y", name.removesuffix("s")) if option.items else name
    written = words or (f"--{word.replace('_', '-')}", name)
    return click.option(*written, **{**own, "show_envvar": "envvar" in more, **more})


def _click_type(option: Option) -> dict[str, Any]:
    """Return the arguments of `click.option` that follow from an option's type and default."""
    default = None if option.default is REQUIRED else option.default
    if bool in option.kinds:
        return {"is_flag": True, "default": default}
    if option.items:
        return {"multiple": True, "type": PATH if Path in option.items else str}
    if option.enum is not None:
        return {**_choice(option.enum), "default": default and option.enum(default).value}
    if timedelta in option.kinds:
        return _click_age(option, default)
    if int in option.kinds:
        bounds = option.bounds or Bounds()
        return {"type": click.IntRange(bounds.least, bounds.most), "default": default}
    return {"type": PATH if Path in option.kinds else str, "default": default}


def _click_age(option: Option, default: timedelta | None) -> dict[str, Any]:
    lasts = type(None) in option.kinds

    def read(value: str) -> object:
        try:
            return option.check(None if lasts and value == FOREVER else parse_age(value), "")
        except ConfigError as exc:
            raise click.BadParameter(str(exc).removeprefix(": ")) from exc

    shown = FOREVER if default is None else age_text(default)
    metavar = f"AGE|{FOREVER}" if lasts else "AGE"
    return {"metavar": metavar, "default": shown, "callback": read_by(read)}


def age_option(name: str, **more: Any) -> OptionDecorator:
    """Add an option like `90m`, `12h` or `7d`; the command gets a `timedelta`."""
    return click.option(name, callback=read_by(parse_age), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """Which page of a list to show, and in which format."""

    after: Any  # the last id of the previous page
    limit: int  # the maximum number of rows
    as_json: bool  # as JSON instead of a table

    def show(
        self,
        found: Sequence[Any],
        document: Callable[[Any], JsonValue],
        columns: Columns,
    ) -> None:
        """Write the rows, which have ids, and say so if there may be more."""
        if self.as_json:
            click.echo(json.dumps([document(each) for each in found], indent=2))
            return
        click.echo(table_of(columns, found))
        if len(found) == self.limit:
            click.echo(f"there may be more: --after {found[-1].id}", err=True)


def page_options(ids: type = str) -> OptionDecorator:
    """Add the options for one page of a list of rows with such ids, as `page`."""
    return gathered(
        "page",
        ListPage,
        after=click.option("--after", type=ids, help="The last id of the previous page."),
        limit=click.option(
            "--limit", type=click.IntRange(1, 10000), default=100, help="The most rows to show."
        ),
        as_json=json_option,
    )


def chosen_options(
    kind: Callable[..., object], wanted: OptionDecorator, *, all_says: str, ids: type = str
) -> OptionDecorator:
    """Add what selects rows, as `chosen`: ids, a filter of this kind, or `--all`.

    `kind()` is the filter that selects everything; `wanted` adds the options of a filter.
    """

    def choose(*, ids: tuple[object, ...], wanted: object, everything: bool) -> object:
        if [bool(ids), wanted != kind(), everything].count(True) != 1:
            raise click.UsageError("expected ids, filter options, or --all")
        return ids or wanted

    return gathered(
        "chosen",
        choose,
        ids=click.argument("ids", metavar="[ID]...", nargs=-1, type=ids),
        wanted=wanted,
        everything=click.option("--all", "everything", is_flag=True, help=all_says),
    )


def out_options(
    name: str = "--out", says: str = "The file to write.  [default: standard output]"
) -> OptionDecorator:
    """Add this option and `--force` to a command, which gets an `OutFile` as `out`."""

    def make(*, path: Path | None, force: bool) -> OutFile:
        if force and path is None:
            raise click.UsageError(f"--force is only for {name}")
        return OutFile(path=path, force=force)

    return gathered(
        "out",
        make,
        path=click.option(name, "path", type=PATH, help=says),
        force=click.option(
            "--force", is_flag=True, help=f"Replace another kind of file by {name}."
        ),
    )


# --- dashboards -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """Where a dashboard listens, and what its visitors may do.

    Attributes:
        listen: `host:port` of its own listener; beyond loopback a token is required.
        variable: The environment variable that may hold the token.
        hosts: The host names under which browsers reach it.
        token_file: A file with the token, mode 0600; it precedes the variable.
        allow_actions: Allow actions, such as redrive, with the token.
        audit_log: A file to which every action adds a line; by default the log (standard error)
            gets it.
    """

    listen: str
    variable: str
    hosts: Sequence[str] = ()
    token_file: Path | None = None
    allow_actions: bool = False
    audit_log: Path | None = None


def dashboard_options(*, listen: str, variable: str) -> OptionDecorator:
    """Add these options to a command, which gets a `DashboardOptions` as `options`."""
    own = functools.partial(option_of, DashboardOptions)
    in_variable = f"A file with the token, mode 0600.  [env var: {variable} holds the token itself]"
    return gathered(
        "options",
        functools.partial(DashboardOptions, variable=variable),
        listen=own("listen", default=listen),
        hosts=own("hosts"),
        token_file=own("token_file", help=in_variable),
        allow_actions=own("allow_actions"),
        audit_log=own("audit_log"),
    )
