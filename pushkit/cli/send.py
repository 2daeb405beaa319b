"""`pushkit send`, `trigger` and `replay`: post by hand, to try out a webhook.

The first two sign updates; the last one posts captured requests again, byte for byte.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    PushConfig,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    WireVersion,
    decode_update,
    push_body,
)
from pushkit.bounded_json import read_json_object
from pushkit.captured import fields_to_send, read_request
from pushkit.cli.options import KeyFile, key_file_options, signing_options
from pushkit.delivery.answers import classify_response
from pushkit.delivery.route import Routes
from pushkit.delivery.signatures import Signing, signed_headers
from pushkit.errors import (
    ConfigError,
    InvalidUpdateError,
    MalformedJsonError,
    MalformedRequestError,
    PushkitError,
)
from pushkit.files import read_file
from pushkit.keys.ring import KeyRing
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.outbox.model import Delivery, new_delivery_id
from pushkit.outbox.states import Outcome
from pushkit.secrets.vault import Vault
from pushkit.subscriptions.model import Profile, StoredSubscription, Subscription, SubscriptionKey
from pushkit.terminal.options import (
    FILE,
    allow_option,
    choice_option,
    egress_options,
    gathered,
    read_by,
    read_stream,
    seconds_option,
)
from pushkit.terminal.output import example, harmless
from pushkit.url import audience_of
from pushkit.webhook import WebhookRequest

# Visible ASCII without `.`, which Standard Webhooks reserves, and receivers refuse.
_DELIVERY_ID = re.compile(r"[!-\-/-~]{1,256}")

_SECRET_HEADERS = {
    *("authorization", "signature", "webhook-signature"),
    *("x-a2a-notification-token", "x-a2a-signature", "x-a2a-token"),
}
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


def _delivery_id(value: str) -> str:
    if not _DELIVERY_ID.fullmatch(value):
        raise click.BadParameter("expected 1 to 256 visible ASCII characters without a dot")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class OneUpdate:
    """An update to sign and post once, without an outbox."""

    body: bytes  # JSON of any A2A version
    url: str
    issuer: str  # `iss`
    token: str | None = field(repr=False)  # the token that the client chose
    delivery_id: str | None = None  # None for a new one
    seq: int = 1  # the number of the update in its task
    profile: Profile = Profile.STANDARD  # how it is signed
    within: timedelta = timedelta(seconds=15)  # the time-out
    audience: str | None = None  # the URL to sign for; None for `url`


@click.command(
    epilog=example(
        "pushkit send update.json --to https://client.example.com/a2a/push \\",
        "    --issuer https://agent.example.com --token abc",
        "… | pushkit send - --to http://127.0.0.1:9000/a2a/push --issuer http://127.0.0.1:8001",
    )
)
@gathered(
    "one",
    OneUpdate,
    body=click.argument(
        "body", metavar="UPDATE", type=click.File("rb"), callback=read_by(read_stream)
    ),
    url=click.option("--to", "url", required=True, help="The webhook URL."),
    issuer=click.option("--issuer", required=True, help="The `iss`, which names the sender."),
    token=click.option("--token", help="The token that the client chose."),
    delivery_id=click.option(
        "--id",
        "delivery_id",
        callback=read_by(_delivery_id),
        help="The delivery id; a retry has the same id.  [default: a new one]",
    ),
    seq=click.option(
        "--seq", type=click.IntRange(1), default=1, help="The number of the update in its task."
    ),
    profile=choice_option(
        "--profile", of=Profile, default=Profile.STANDARD.value, help="How to sign it."
    ),
    within=seconds_option(
        "--timeout", "within", within=(1, 600), default=15, help="Seconds in total."
    ),
)
@allow_option
@egress_options(ConnectionOptions)
@key_file_options()
@signing_options
def send(
    *,
    one: OneUpdate,
    allow: tuple[str, ...],
    connections: ConnectionOptions,
    key_file: KeyFile,
    signing: Signing,
) -> None:
    """Sign an update and post it to a webhook once.

    UPDATE is a file with a JSON body of any A2A version, or - for standard input. Its bytes are
    sent unchanged. The exit status is 0 if the webhook accepted it, else 1.
    """
    client = Transport(DestinationPolicy(allow, loopback=True), connections)
    posting = _post_one(one, signing=signing, ring=key_file.ring(), client=client)
    if not asyncio.run(posting):
        sys.exit(1)


async def _post_one(one: OneUpdate, *, signing: Signing, ring: KeyRing, client: Transport) -> bool:
    """Sign, print and post; return whether it was accepted. Raises PushkitError: no answer."""
    now = datetime.now(UTC)
    policy = client.policy
    delivery, stored = _rows_of(one, origin=policy.check(one.url).origin, now=now)
    route = Routes(issuer=one.issuer, policy=policy, vault=Vault()).of(stored)
    if one.audience is not None:
        audience = audience_of(one.audience)
        route = replace(route, claims={**route.claims, "aud": audience})
    key = ring.signing_key(now, route.algorithm)
    headers = await signed_headers(route, delivery, one.body, signing=signing, key=key, now=now)
    url = route.destination.url
    click.echo(f"> POST {url.origin}{url.target.partition('?')[0]}")
    for name, value in headers:
        click.echo(f"> {name}: {'***' if name.lower() in _SECRET_HEADERS else value}")
    click.echo(f"> ({len(one.body)} bytes)")
    async with closing(client) as transport:
        answer = await transport.post(route.destination, headers, one.body, timeout=one.within)
    response_class = classify_response(answer.status, answer.headers, now)
    says = _problem_code(answer) or response_class.error or response_class.outcome.value
    click.echo(f"< {answer.status} ({says})")
    return response_class.outcome is Outcome.DELIVERED


def _problem_code(answer: HttpAnswer) -> str | None:
    """Return the code of a problem document (RFC 9457); None if the answer is not one."""
    try:
        code = read_json_object(answer.body).get("code")
    except MalformedJsonError:
        return None
    return code if isinstance(code, str) and code.isprintable() else None


def _rows_of(one: OneUpdate, *, origin: str, now: datetime) -> tuple[Delivery, StoredSubscription]:
    """Return the delivery and the subscription that this update would have in an outbox."""
    update = decode_update(one.body)
    config = PushConfig(url=one.url, token=one.token)
    if not update.task_id:
        raise InvalidUpdateError("the update names no task, expected a task id")
    version = update.origin or WireVersion.V1_0
    key = SubscriptionKey(tenant="", task_id=update.task_id, owner="", config_id=update.task_id)
    subscription = Subscription(
        id="cli",
        key=key,
        version=version,
        config=config,
        origin=origin,
        profile=one.profile,
        last_seq=one.seq,
        active=True,
        created_at=now,
    )
    delivery = Delivery(
        id=one.delivery_id or new_delivery_id(now),
        subscription_id=subscription.id,
        tenant="",
        owner="",
        task_id=update.task_id,
        config_id=key.config_id,
        seq=one.seq,
        origin=origin,
        version=version,
        body=one.body,
        notified_at=now,
        not_before=now,
    )
    stored = StoredSubscription(subscription=subscription, token=config.token, credentials=None)
    return delivery, stored


# --- made-up updates -----------------------------------------------------------------------------


@click.command(
    epilog=example(
        "pushkit trigger completed http://127.0.0.1:9000/a2a/push --token abc",
        "pushkit trigger working artifact completed https://client.example.com/a2a/push \\",
        "    --token abc --keys keys.json --issuer https://agent.example.com",
    )
)
@click.argument("kinds", metavar="KIND...", nargs=-1, type=click.Choice(_KINDS))
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
@egress_options(ConnectionOptions)
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
    connections: ConnectionOptions,
) -> None:
    """Post made-up updates of a task to a webhook.

    There is one update for each KIND, in this order: a state (submitted, working, input-required,
    auth-required, completed, canceled, failed, rejected), or artifact, message, task. URL may be
    any address, also a local one. The exit status is 0 if all were accepted, else 1.
    """
    if not kinds:
        raise click.UsageError(f"found {url!r} alone, expected one KIND or more, and then the URL")
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
        client = Transport(policy, connections)
        posting = _post_one(one, signing=signing, ring=ring, client=client)
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


# --- captured requests ---------------------------------------------------------------------------

_SHOWN_BYTES = 500


@click.command(
    epilog=example(
        "pushkit replay captures/*.http http://127.0.0.1:9000/a2a/push",
        "pushkit replay captures/20260101T120000Z-0001-accepted.http http://127.0.0.1:3000/hook",
    )
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.argument("url")
@seconds_option("--timeout", within=(1, 600), default=15, help="Seconds for each request.")
@egress_options(ConnectionOptions)
def replay(
    *, files: tuple[Path, ...], url: str, timeout: timedelta, connections: ConnectionOptions
) -> None:
    """Post captured requests to URL, in the order given.

    Each FILE is one that `listen --save` wrote. Bodies and headers are sent unchanged, including
    signatures and times: a receiver with another time or audience refuses them, and one that has
    received them before does nothing. The exit status is 0 if all were answered 2xx, else 1.
    """
    requests = [(file, _read(file)) for file in files]
    client = Transport(DestinationPolicy.naming(url), connections)
    if not asyncio.run(_post_all(requests, url, timeout, client)):
        sys.exit(1)


def _read(file: Path) -> WebhookRequest:
    try:
        return read_request(read_file(file))
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}") from exc
    except MalformedRequestError as exc:
        raise MalformedRequestError(f"{file}: {exc}") from exc


async def _post_all(
    requests: list[tuple[Path, WebhookRequest]], url: str, within: timedelta, client: Transport
) -> bool:
    accepted = True
    async with closing(client):
        destination = client.policy.check(url)
        for file, request in requests:
            try:
                answer = await client.post(
                    destination, fields_to_send(request), request.body, timeout=within
                )
            except PushkitError as exc:
                click.echo(f"{file.name}: {exc.code}: {exc}", err=True)
                accepted = False
                continue
            click.echo(f"{file.name}: {len(request.body)} bytes, answered {answer.status}")
            if not 200 <= answer.status < 300:
                accepted = False
                click.echo(f"  {harmless(answer.body[:_SHOWN_BYTES])}")
    return accepted
