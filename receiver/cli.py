"""`receiver`: the command line of the webhook service."""

from __future__ import annotations

import click

from pushkit.terminal.command import LazyGroup, run_command
from pushkit.terminal.output import example
from pushkit.version import __version__

_PLACES = {
    "check": "receiver.check_command:check",
    "dashboard": "receiver.inbox_commands:dashboard",
    "doctor": "receiver.diagnosis.doctor_command:doctor",
    "expect": "receiver.agent_commands:expect",
    "inbox": "receiver.inbox_commands:inbox",
    "listen": "receiver.listening.command:listen",
    "mailbox": "receiver.inbox_commands:mailbox",
    "migrate": "receiver.inbox_commands:migrate",
    "pin": "receiver.agent_commands:pin",
    "serve": "receiver.serve_command:serve",
    "verify": "receiver.diagnosis.verify_command:verify",
}


@click.group(
    cls=LazyGroup,
    places=_PLACES,
    context_settings={"show_default": True},
    epilog=example(
        "receiver check --config receiver.toml", "receiver serve --config receiver.toml"
    ),
)
@click.version_option(__version__, prog_name="receiver")
def cli() -> None:
    """Receive signed A2A push notifications, and call back once for each."""


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()
