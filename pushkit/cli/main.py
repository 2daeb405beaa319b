"""`pushkit`: keys, agent cards, notifications by hand, outbox, subscriptions, workers."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

import click

from pushkit.errors import ConfigError
from pushkit.terminal.command import LazyGroup, find_command, loaded, run_command
from pushkit.terminal.output import example
from pushkit.version import __version__

_ENTRY_POINTS = "pushkit.commands"
_NAMES = "card gateway keys outbox secrets send subscriptions worker"
_PLACES = {name: f"pushkit.cli.{name}:{name}" for name in _NAMES.split()} | {
    "dashboard": "pushkit.cli.databases:dashboard",
    "import": "pushkit.cli.importing:import_",
    "migrate": "pushkit.cli.databases:migrate",
    "replay": "pushkit.cli.send:replay",
    "trigger": "pushkit.cli.send:trigger",
}


class _Commands(LazyGroup):
    """The commands of this package, and those that other packages add by an entry point.

    The receiver adds some that way, because this package must not import it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *entry_points(group=_ENTRY_POINTS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        for entry_point in entry_points(group=_ENTRY_POINTS, name=cmd_name):
            return loaded(cmd_name, functools.partial(_found, entry_point))
        return None


def _found(entry_point: EntryPoint) -> click.Command:
    """Import a command of another package. Raises ConfigError: something hides our `receiver`."""
    package = entry_point.module.partition(".")[0]
    if package == "receiver":
        spec, ours = find_spec(package), Path(__file__).resolve().parents[2] / package
        found = Path((spec and spec.origin) or ours / "__init__.py").resolve()
        if found.parent != ours:
            raise ConfigError(f"{found} hides the package `{package}`: rename it")
    return find_command(entry_point.value)


@click.group(
    cls=_Commands,
    context_settings={"show_default": True},
    places=_PLACES,
    epilog=example(
        "pushkit keys new",
        "pushkit send update.json --to https://client.example.com/a2a/push \\",
        "    --issuer https://agent.example.com",
        "pushkit verify captured.http --jwks https://agent.example.com/.well-known/jwks.json",
    ),
)
@click.version_option(__version__, prog_name="pushkit")
def cli() -> None:
    """Signed A2A push notifications: keys, sending, verifying, the outbox and its workers."""


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()
