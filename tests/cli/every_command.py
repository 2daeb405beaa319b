"""Every command that takes a database, and what else it needs."""

from __future__ import annotations

from collections.abc import Iterator

import click

import pushkit.cli.main
import receiver.cli

__all__ = ["ARGUMENTS", "RECEIVER_COMMANDS", "SENDER_COMMANDS"]

# What commands need besides a database.
ARGUMENTS = {
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
    "inbox redrive": ("--all",),
    "inbox show": ("1",),
}


def _commands(group: click.Group, parameters: set[str], *path: str) -> Iterator[str]:
    """Yield the names of commands with one of these parameters."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, parameters, *path, name)
        elif parameters & {each.name for each in command.params}:
            yield " ".join((*path, name))


SENDER_COMMANDS = sorted(_commands(pushkit.cli.main.cli, {"database"}))
# `check`, `serve` and the like read it from their configuration.
RECEIVER_COMMANDS = sorted(_commands(receiver.cli.cli, {"database"}))
