"""`pushkit`: keys, agent cards, notifications by hand, outbox, subscriptions, workers."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import click

from pushkit.cli.card import card
from pushkit.cli.dashboard import dashboard
from pushkit.cli.keys import keys
from pushkit.cli.migrate import migrate
from pushkit.cli.outbox import outbox
from pushkit.cli.outbox_again import errors, redrive, resend, retry_now
from pushkit.cli.replay import replay
from pushkit.cli.secrets import secrets
from pushkit.cli.send import send
from pushkit.cli.subscriptions import subscriptions
from pushkit.cli.trigger import trigger
from pushkit.cli.verify import verify
from pushkit.cli.worker import worker
from pushkit.terminal.command import run_command
from pushkit.version import __version__

_ELSEWHERE = "pushkit.commands"


class _Commands(click.Group):
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
    epilog="\b\nExample:\n  pushkit keys new\n"
    "  pushkit send update.json --to https://client.example.com/a2a/push \\\n"
    "      --issuer https://agent.example.com\n"
    "  pushkit verify captured.http --jwks https://agent.example.com/.well-known/jwks.json",
)
@click.version_option(__version__, prog_name="pushkit")
def cli() -> None:
    """Signed A2A push notifications: keys, sending, verifying, the outbox and its workers."""


cli.add_command(card)
cli.add_command(keys)
cli.add_command(replay)
cli.add_command(send)
cli.add_command(trigger)
cli.add_command(verify)
cli.add_command(outbox)
for command in (errors, redrive, resend, retry_now):
    outbox.add_command(command)
cli.add_command(subscriptions)
cli.add_command(migrate)
cli.add_command(worker)
cli.add_command(dashboard)
cli.add_command(secrets)


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()
