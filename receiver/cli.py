"""`receiver`: the command line of the webhook service."""

from __future__ import annotations

import click

from pushkit.terminal.command import LazyGroup, run_command
from pushkit.terminal.output import example
from pushkit.version import __version__

_MODULES = {
    "check": "receiver.check_command",
    "dashboard": "receiver.inbox_commands",
    "doctor": "receiver.diagnosis.doctor_command",
    "expect": "receiver.expect_command",
    "inbox": "receiver.inbox_commands",
    "listen": "receiver.listening.command",
    "mailbox": "receiver.inbox_commands",
    "migrate": "receiver.inbox_commands",
    "pin": "receiver.pin_command",
    "serve": "receiver.serve_command",
    "verify": "receiver.diagnosis.verify_command",
}


@click.group(
    cls=LazyGroup,
    modules=_MODULES,
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
