"""`pushkit trigger`: makes up realistic updates of a task, and posts them to a webhook."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import click

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    WireVersion,
    push_body,
)
from pushkit.cli.options import KeyFile, key_file_options, signing_options
from pushkit.cli.send import OneUpdate, post_one
from pushkit.delivery.signatures import Signing
from pushkit.keys.ring import KeyRing
from pushkit.net.destination import DestinationPolicy
from pushkit.terminal.output import example

_MESSAGES: Final[Mapping[TaskState, str | None]] = {
    TaskState.SUBMITTED: None,
    TaskState.WORKING: "Reading the quarter's invoices: 120 of 480.",
    TaskState.INPUT_REQUIRED: "Two invoices have no date. Should I leave them out?",
    TaskState.AUTH_REQUIRED: "I need to be let into the archive of last year.",
    TaskState.COMPLETED: "The summary is done: 478 invoices, 2 left out.",
    TaskState.CANCELED: "Cancelled, as you asked.",
    TaskState.FAILED: "The archive did not answer in an hour; nothing was changed.",
    TaskState.REJECTED: "I may not read these invoices.",
}
_KINDS: Final = (*(state.value for state in _MESSAGES), "artifact", "message", "task")


@click.command(
    epilog=example(
        "pushkit trigger completed http://127.0.0.1:9000/a2a/push --token abc",
        "pushkit trigger working artifact completed https://client.example.com/a2a/push \\",
        "    --token abc --keys keys.json --issuer https://agent.example.com",
    )
)
@click.argument("kinds", metavar="KIND...", nargs=-1, required=True, type=click.Choice(_KINDS))
@click.argument("url")
@click.option("--token", help="The token that the client chose.")
@click.option("--issuer", default="urn:pushkit:trigger", help="The `iss`, which names the sender.")
@click.option(
    "--audience",
    help="The URL to sign for, if the webhook expects another one.  [default: URL]",
)
@click.option("--version", default="1.0", help="The A2A version of the bodies.")
@click.option("--task", "task_id", help="The id of the task.  [default: a new one]")
@key_file_options("The key file.  [default: a new key, which receivers do not know]", default=None)
@signing_options
def trigger(
    *,
    kinds: tuple[str, ...],
    url: str,
    token: str | None,
    issuer: str,
    audience: str | None,
    version: str,
    task_id: str | None,
    key_file: KeyFile | None,
    signing: Signing,
) -> None:
    """Post made-up updates of a task to a webhook.

    There is one update for each KIND, in this order: a state (submitted, working, input-required,
    auth-required, completed, canceled, failed, rejected), or artifact, message, task. URL may be
    any address, also a local one. The exit status is 0 if all were accepted, else 1.
    """
    wire, policy = WireVersion.parse(version), DestinationPolicy.naming(url)
    if key_file is None:
        click.echo("signing with a new key, which receivers do not know: use --keys", err=True)
    ring = key_file.ring() if key_file else KeyRing.create(datetime.now(UTC))
    task = Task(
        id=task_id or f"task-{secrets.token_hex(4)}",
        context_id=f"context-{secrets.token_hex(4)}",
        status=TaskStatus(state=TaskState.SUBMITTED),
    )
    accepted = True
    for seq, kind in enumerate(kinds, start=1):
        task, update = _next(task, kind, datetime.now(UTC).replace(microsecond=0))
        one = OneUpdate(
            body=push_body(update, wire, task),
            url=url,
            issuer=issuer,
            token=token,
            seq=seq,
            audience=audience,
        )
        posting = post_one(one, signing=signing, ring=ring, policy=policy)
        accepted &= asyncio.run(posting)
    if not accepted:
        sys.exit(1)


def _next(task: Task, kind: str, now: datetime) -> tuple[Task, TaskUpdate]:
    """Make an update of a kind; return the task after it, and the update."""
    if kind == "task":
        return task, TaskSnapshot(task=task)
    if kind == "message":
        return task, MessageUpdate(message=_message(task, "By the way: one invoice came twice."))
    if kind == "artifact":
        artifact = Artifact(
            artifact_id="summary",
            name="summary.md",
            parts=(
                TextPart(text="# Invoices of the quarter\n\n478 invoices, 91,204.50 EUR."),
                DataPart(data={"invoices": 478, "total": "91204.50", "currency": "EUR"}),
            ),
        )
        return replace(task, artifacts=(*task.artifacts, artifact)), ArtifactUpdate(
            task_id=task.id, context_id=task.context_id, artifact=artifact, last_chunk=True
        )
    state = TaskState(kind)
    text = _MESSAGES[state]
    message = None if text is None else _message(task, text)
    status = TaskStatus(state=state, message=message, timestamp=now)
    return replace(task, status=status), StatusUpdate(
        task_id=task.id, context_id=task.context_id, status=status
    )


def _message(task: Task, text: str) -> Message:
    return Message(
        message_id=f"msg-{secrets.token_hex(4)}",
        role=Role.AGENT,
        parts=(TextPart(text=text),),
        task_id=task.id,
        context_id=task.context_id,
    )
