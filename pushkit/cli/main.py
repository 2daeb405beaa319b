"""`pushkit`: keys, agent cards, notifications by hand, outbox, subscriptions, workers."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import click

from pushkit.terminal.command import LazyGroup, run_command
from pushkit.terminal.output import example
from pushkit.version import __version__

_ENTRY_POINTS = "pushkit.commands"
_NAMES = "card dashboard keys outbox replay secrets send subscriptions verify worker"
_MODULES = {name: f"pushkit.cli.{name}" for name in _NAMES.split()} | {
    "migrate": "pushkit.cli.databases",
    "trigger": "pushkit.cli.send",
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
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for entry_point in entry_points(group=_ENTRY_POINTS, name=cmd_name):
            try:
                command = entry_point.load()
            except ImportError as exc:
                raise click.ClickException(_import_error(entry_point.module, exc)) from exc
            return command if isinstance(command, click.Command) else None
        return None


def _import_error(module: str, exc: ImportError) -> str:
    package = module.partition(".")[0]
    found = getattr(sys.modules.get(package), "__file__", None)
    if found is None or hasattr(sys.modules[package], "__path__"):
        return f"{module} cannot be imported: {exc}"
    return f"{found} hides the package `{package}`, which has this command: rename the file"


@click.group(
    cls=_Commands,
    context_settings={"show_default": True},
    modules=_MODULES,
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
