"""Every command; those that take a database, and what else these need."""

from __future__ import annotations

from collections.abc import Iterator

import click

import pushkit.cli.main
import receiver.cli

__all__ = [
    "ARGUMENTS",
    "PUSHKIT",
    "RECEIVER",
    "RECEIVER_COMMANDS",
    "SENDER_COMMANDS",
    "every_command",
]

# What commands need besides a database.
ARGUMENTS = {
    "gateway": (
        *("--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--shared-configs"),
        *("--issuer", "https://agent.example.com"),
    ),
    "import a2a-sdk": ("--from", "agent.db"),
    "outbox cancel": ("dlv_1",),
    "outbox erase": ("task-1", "--yes"),
    "outbox purge": ("--older-than", "1d"),
    "outbox redrive": ("--all",),
    "outbox resend": ("--task", "task-1"),
    "outbox retry-now": ("--all",),
    "outbox show": ("dlv_1",),
    "subscriptions disable": ("--all",),
    "subscriptions enable": ("--all",),
    "subscriptions pause": ("--all",),
    "subscriptions remove": ("--all", "--yes"),
    "subscriptions resume": ("--all",),
    "subscriptions show": ("sub_1",),
    "subscriptions test": ("--all",),
    "worker": ("--issuer", "https://agent.example.com"),
    "inbox purge": ("--older-than", "1d"),
    "inbox recover": ("--sender", "agent", "--agent", "https://agent.example.com/a2a"),
    "inbox redrive": ("--all",),
    "inbox show": ("1",),
    "mailbox drop": ("laptop",),
    "mailbox redrive": ("laptop",),
}


PUSHKIT, RECEIVER = pushkit.cli.main.cli, receiver.cli.cli


def every_command(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield a group and all that is in it, each with the words that call it."""
    yield path, group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        words = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from every_command(command, words)
        else:
            yield words, command


def _with_a_database(group: click.Group) -> list[str]:
    return sorted(
        path
        for path, command in every_command(group)
        if "database" in {each.name for each in command.params}
    )


SENDER_COMMANDS = _with_a_database(PUSHKIT)
# `check`, `serve` and the like read it from their configuration.
RECEIVER_COMMANDS = _with_a_database(RECEIVER)
