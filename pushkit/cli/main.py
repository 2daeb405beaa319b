"""`pushkit`: keys, agent cards, notifications by hand, outbox, subscriptions, workers."""

from __future__ import annotations

import click

from pushkit.cli.card import card
from pushkit.cli.keys import keys
from pushkit.cli.migrate import migrate
from pushkit.cli.outbox import outbox
from pushkit.cli.outbox_again import errors, redrive, resend, retry_now
from pushkit.cli.secrets import secrets
from pushkit.cli.send import send
from pushkit.cli.subscriptions import subscriptions
from pushkit.cli.verify import verify
from pushkit.cli.worker import worker
from pushkit.terminal.command import run_command
from pushkit.version import __version__

__all__ = ["cli", "main"]


@click.group(
    epilog="\b\nExample:\n  pushkit keys new\n"
    "  pushkit send update.json --to https://client.example.com/a2a/push \\\n"
    "      --issuer https://agent.example.com\n"
    "  pushkit verify captured.http --jwks https://agent.example.com/.well-known/jwks.json"
)
@click.version_option(__version__, prog_name="pushkit")
def cli() -> None:
    """Signed A2A push notifications: keys, sending, verifying, the outbox and its workers."""


cli.add_command(card)
cli.add_command(keys)
cli.add_command(send)
cli.add_command(verify)
cli.add_command(outbox)
for command in (errors, redrive, resend, retry_now):
    outbox.add_command(command)
cli.add_command(subscriptions)
cli.add_command(migrate)
cli.add_command(worker)
cli.add_command(secrets)


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()
