"""`pushkit`: keys, agent cards, notifications by hand, outbox, subscriptions, workers."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import click

from pushkit.terminal.command import LazyGroup, run_command
from pushkit.version import __version__

_ELSEWHERE = "pushkit.commands"
_OWN = (
    *("card", "dashboard", "keys", "migrate", "outbox", "replay", "secrets", "send"),
    *("subscriptions", "trigger", "verify", "worker"),
)


class _Commands(LazyGroup):
    """Our own commands, and those that other packages offer by an entry point.

    The receiver offers some, and nothing here may import it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return sorted({*super().list_commands(ctx), *entry_points(group=_ELSEWHERE).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for offered in entry_points(group=_ELSEWHERE, name=cmd_name):
            try:
                command = offered.load()
            except ImportError as exc:
                raise click.ClickException(_why_not(offered.module, exc)) from exc
            return command if isinstance(command, click.Command) else None
        return None


def _why_not(module: str, exc: ImportError) -> str:
    package = module.partition(".")[0]
    found = getattr(sys.modules.get(package), "__file__", None)
    if found is None or hasattr(sys.modules[package], "__path__"):
        return f"{module} cannot be imported: {exc}"
    return f"{found} hides the package `{package}`, whose command this is: give it another name"


@click.group(
    cls=_Commands,
    context_settings={"show_default": True},
    modules={name: f"pushkit.cli.{name}" for name in _OWN},
    epilog="\b\nExample:\n  pushkit keys new\n"
    "  pushkit send update.json --to https://client.example.com/a2a/push \\\n"
    "      --issuer https://agent.example.com\n"
    "  pushkit verify captured.http --jwks https://agent.example.com/.well-known/jwks.json",
)
@click.version_option(__version__, prog_name="pushkit")
def cli() -> None:
    """Signed A2A push notifications: keys, sending, verifying, the outbox and its workers."""


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()
