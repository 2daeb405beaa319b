"""`receiver listen`, which is `pushkit listen` too: a receiver in the foreground.

It serves, and shows, saves and forwards each arrival: as lines for people, or as a JSON object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from pushkit.a2a import (
    ArtifactUpdate,
    MessageUpdate,
    Part,
    PushConfig,
    StatusUpdate,
    TaskSnapshot,
    TaskUpdate,
    TextPart,
    WireVersion,
    format_push_config,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.captured import Circumstances, fields_to_send, save
from pushkit.clock import utc_now
from pushkit.errors import PushkitError, TransportError
from pushkit.keys.files import save_key_ring
from pushkit.keys.jwk import VerificationKey, public_jwk
from pushkit.keys.ring import KeyRing
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from pushkit.terminal.command import painted
from pushkit.terminal.listening import accepting, listening_at
from pushkit.terminal.options import choice_option, egress_options, gathered
from pushkit.terminal.output import example, in_a_line
from pushkit.terminal.processes import until_stopped
from pushkit.url import host_and_port
from pushkit.webui.api import json_object
from receiver.diagnosis.report import said_of, step_lines
from receiver.expectation import mint_token
from receiver.forwards import FORWARD_TIMEOUT
from receiver.limits import ConnectionLimits
from receiver.listening.handler import (
    TRIAL_ISSUER,
    AcceptedSignatures,
    Arrival,
    ListeningHandler,
    Trusting,
)
from receiver.options import scheme_options
from receiver.receiver import Receiver
from receiver.refusals import page_said
from receiver.senders import DEFAULT_PATH, SenderProfile
from receiver.serving.server import HttpServer

_VERSIONS = ((WireVersion.V1_0, "A2A 1.0"), (WireVersion.V0_3, "A2A 0.2, 0.3"))


def _accepted(**given: Any) -> AcceptedSignatures:
    source = AcceptedSignatures(**given)
    jwks, schemes = source.jwks, source.schemes
    if jwks and source.any_key:
        raise click.UsageError("--jwks and --any-key: expected one of them")
    if not source.profile.signed and (source.names_keys or source.issuer):
        raise click.UsageError(
            f"--profile {source.profile} has no signatures: expected no keys (--jwks, --any-key),"
            " and no --issuer"
        )
    if source.any_key and not schemes.is_usual:
        raise click.UsageError("--any-key works for the JWT only: expected no --scheme")
    if jwks and not schemes.by_key:
        raise click.UsageError(
            "--jwks: standard-webhooks has secrets, no keys: expected --webhook-secrets-file"
        )
    if schemes.by_key and not schemes.is_usual and not jwks:
        raise click.UsageError("--scheme: expected --jwks, the agent's keys")
    return source


@click.command(
    epilog=example(
        "pushkit listen --jwks http://127.0.0.1:8001/.well-known/jwks.json",
        "pushkit listen --jwks https://agent.example.com/.well-known/jwks.json \\",
        "    --url https://my-tunnel.example.net --forward http://localhost:3000/hook",
    )
)
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:9000",
    help="Host and port; port 0 for any free port.",
)
@click.option(
    "--url",
    help="The base URL at which agents reach this, through a tunnel or proxy; `aud` must name it."
    "  [default: http:// and the address]",
)
@click.option("--path", default=DEFAULT_PATH, help="The path that agents post to.")
@gathered(
    "source",
    _accepted,
    jwks=click.option("--jwks", help="The agent's JWK Set, a URL or a file: the keys to trust."),
    any_key=click.option(
        "--any-key", is_flag=True, help="Accept any signature. For development only."
    ),
    issuer=click.option("--issuer", help="The `iss` to expect.  [default: any]"),
    profile=choice_option(
        "--profile",
        of=SenderProfile,
        default=SenderProfile.STANDARD.value,
        help="How agents sign; an SDK without pushkit is unsigned-secret-only.",
    ),
    schemes=scheme_options,
)
@click.option("--token", help="The token to expect.  [default: a new one]")
@click.option("--forward", help="Post accepted notifications to this URL, byte by byte.")
@click.option(
    "--save",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save each request here, secrets included, for `pushkit verify` and `pushkit replay`.",
)
@egress_options(ConnectionOptions)
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object per line.")
@click.option("--brief", is_flag=True, help="Show only the steps that fail.")
def listen(
    *,
    address: str,
    url: str | None,
    token: str | None,
    folder: Path | None,
    **more: Any,  # of `Listening`, by its names
) -> None:
    """Show notifications in this terminal, for development.

    Ctrl-C ends it. It mints a token, prints the push config for an agent, and shows each
    notification as it arrives, with every step of its verification. It answers as `receiver serve`
    does, and forgets what it accepted when it ends.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        listening_at(address) as listener,
        tempfile.TemporaryDirectory(prefix="pushkit-listen-") as made,
    ):
        host, port = listener.getsockname()[:2]
        local, state, now = f"http://{host_and_port(host, port)}", Path(made), utc_now()
        ring = KeyRing.create(now)
        save_key_ring(state / "keys.json", ring)
        options = Listening(
            url=(url or local).rstrip("/"),
            token=token or mint_token(),
            trial_key=ring.signing_key(now).to_verification_key(),
            folder=folder,
            **more,
        )
        asyncio.run(_listen(options, listener, state, local))


async def _listen(options: Listening, listener: socket.socket, state: Path, local: str) -> None:
    with until_stopped() as stop:
        async with listening(options, listener, state, stop) as output:
            for line in _introduction(options, state, local):
                click.echo(line, err=options.as_json)  # with --json, stdout is for objects
            await stop.wait()
    if output.failure is not None:
        raise output.failure


def _introduction(options: Listening, state: Path, local: str) -> Iterator[str]:
    """Yield how agents reach this receiver, and which signatures it accepts."""
    source, webhook = options.source, f"{options.url}{options.path}"
    yield f"listening on {local}; agents post to {painted(webhook, bold=True)}"
    yield "the push config for your agent:"
    config = PushConfig(url=webhook, token=options.token)
    for version, name in _VERSIONS:
        written = json.dumps(format_push_config(config, version))
        yield f"  {name:13} {painted(written, bold=True)}"
    yield _says_what_is_accepted(source)
    if source.any_key:
        warning = "warning: --any-key: signatures are not checked, so anybody can be your agent"
        yield painted(warning, "yellow", bold=True)
    if source.can_be_tried:
        to = f"{local}{options.path}"
        words = ["pushkit", "trigger", "working", "artifact", "completed", to]
        words += [] if to == webhook else ["--audience", webhook]
        words += ["--token", options.token, "--issuer", TRIAL_ISSUER]
        words += ["--keys", str(state / "keys.json")]
        yield "to try it without an agent, run this in another terminal:"
        yield f"  {painted(shlex.join(words), bold=True)}"
    yield ""


def _says_what_is_accepted(source: AcceptedSignatures) -> str:
    if not source.profile.signed:
        return f"accepts everything with the token, unsigned ({source.profile.value})"
    if source.any_key:
        return "accepts signatures of any key"
    if not source.schemes.by_key:
        return "accepts signatures made with the webhook secret (standard-webhooks)"
    if source.jwks is None:
        return "accepts no agent's signature yet: add --jwks with the URL or file of its keys"
    issuer = f", for {source.issuer or 'any issuer'}" if source.states_issuer else ""
    by = "" if source.schemes.is_usual else f", by {' and '.join(source.schemes.names)}"
    return f"accepts signatures of the keys of {source.jwks}{issuer}{by}"


# --- serving, and showing, saving and forwarding each arrival ------------------------------------

_SHOWN_TEXT = 200
_LAST_ANSWERS = 2.0  # seconds
# Where signatures do not cover the head alone, each connection may hold a body of anybody.
_LIMITS = ConnectionLimits(max_connections=64, max_connections_per_peer=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The options of the command."""

    url: str  # the base URL at which agents reach the receiver: the audience
    path: str  # of the webhook
    source: AcceptedSignatures  # which signatures are accepted
    token: str = field(repr=False)  # of the push config
    trial_key: VerificationKey  # a key of this machine, to try it with
    forward: str | None  # the URL that accepted notifications are posted to, if any
    folder: Path | None  # the folder in which requests are saved, if any
    as_json: bool  # write a JSON object per line
    brief: bool  # show only the steps that fail
    # To the JWK Set and the forward.
    connections: ConnectionOptions = field(default_factory=ConnectionOptions)


@contextlib.asynccontextmanager
async def listening(
    options: Listening, listener: socket.socket, state: Path, stop: asyncio.Event | None = None
) -> AsyncIterator[Output]:
    """Listen while the block runs, with an inbox in `state`.

    `stop` is set if nothing can be shown any more.

    Raises:
        PushkitError: Wrong options.
    """
    trusting = Trusting(
        source=options.source, path=options.path, token=options.token, trial_key=options.trial_key
    )
    jwks = options.source.jwks
    proxy, is_url = options.connections.proxy, options.source.is_url
    # What is allowed is reached without the proxy.
    allow = DestinationPolicy.naming(jwks).allow if jwks and is_url and proxy is None else ()
    receiver = Receiver(
        url=options.url,
        senders=trusting.senders(),
        database=state / "inbox.db",
        allow=allow,
        proxy=proxy,
        ca_file=options.connections.ca_file,
        validation_echo=True,
    )
    output = Output(options, receiver, stop or asyncio.Event())
    handler = ListeningHandler(receiver, trusting, output.show)
    server = HttpServer(
        handler.handle,
        limits=_LIMITS,
        is_proxy=receiver.handler.peers.is_proxy,
        max_head_bytes=receiver.handler.limits.max_header_bytes,
        refuse=receiver.handler.refuse,
    )
    async with _quiet(), receiver, output:
        try:
            async with accepting(server.protocol_for, [listener]):
                yield output
        finally:
            await server.drain(_LAST_ANSWERS)


@contextlib.asynccontextmanager
async def _quiet() -> AsyncIterator[None]:
    """Suppress the receiver's log of refusals: each is shown already."""
    log = logging.getLogger("receiver")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


class Output:
    """Shows and saves each arrival, and forwards those that were accepted, one after another."""

    def __init__(self, options: Listening, receiver: Receiver, stop: asyncio.Event) -> None:
        self.failure: OSError | None = None  # why nothing can be shown any more
        self._stop = stop
        self._options = options
        self._receiver = receiver
        self._client = (
            Transport(DestinationPolicy.naming(options.forward), options.connections)
            if options.forward
            else None
        )
        self._arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        self._forwarding: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._client is not None:
            self._forwarding = asyncio.create_task(self._forward_all(self._client))

    async def __aexit__(self, *_: object) -> None:
        if self._forwarding is not None:
            self._forwarding.cancel()
        if self._client is not None:
            await self._client.close()

    async def show(self, arrival: Arrival) -> None:
        """Show and save one, and queue it for the forward."""
        options = self._options
        if options.as_json:
            self._write(json.dumps(_as_json(arrival)))
        else:
            for line in _lines_of(arrival, brief=options.brief):
                self._write(line)
        if options.folder is not None:
            await self._save(arrival, options.folder)
        if arrival.code == "accepted" and self._client is not None:
            self._arrivals.put_nowait(arrival)

    async def _save(self, arrival: Arrival, folder: Path) -> None:
        source = self._options.source
        unknown = source.any_key or not source.profile.signed
        circumstances = Circumstances(
            received_at=arrival.at,
            audience=f"{self._receiver.url}{self._options.path}",
            issuer=source.issuer,
            jwks=None if unknown else {"keys": await self._keys()},
            answered=f"{arrival.status} {arrival.code}",
            profile=source.profile.value,
        )
        name = f"{arrival.at:%Y%m%dT%H%M%SZ}-{arrival.number:04}-{arrival.code}"
        try:
            path = await asyncio.to_thread(save, folder, name, arrival.request, circumstances)
        except PushkitError as exc:
            self._write(f"error: {exc}", err=True)
        else:
            self._say(f"saved {path}")

    async def _keys(self) -> list[JsonValue]:
        snapshot = await self._receiver.trust.snapshot()
        return [
            public_jwk(key) for held in snapshot.held for same in held.keys.values() for key in same
        ]

    async def _forward_all(self, client: Transport) -> None:
        url = self._options.forward or ""
        destination = client.policy.check(url)
        shown = f"{destination.origin}{destination.url.target.partition('?')[0]}"
        while True:
            arrival = await self._arrivals.get()
            try:
                answer = await client.post(
                    destination,
                    fields_to_send(arrival.request),
                    arrival.request.body,
                    timeout=FORWARD_TIMEOUT,
                )
            except TransportError as exc:
                self._say(f"→ #{arrival.number} {shown}: {exc.code}: {exc}", colour="red")
            else:
                taken = 200 <= answer.status < 300
                self._say(
                    f"→ #{arrival.number} {shown} answered {answer.status}",
                    colour="green" if taken else "red",
                )

    def _say(self, text: str, *, colour: str | None = None) -> None:
        # With --json, stdout is for objects.
        self._write(f"  {painted(text, colour, dim=colour is None)}", err=self._options.as_json)

    def _write(self, line: str, *, err: bool = False) -> None:
        try:
            click.echo(line, err=err)
        except OSError as exc:  # whoever reads it has enough, as `head` has; or a disk is full
            self.failure = exc
            self._stop.set()


# --- what is shown of an arrival -----------------------------------------------------------------


def _lines_of(arrival: Arrival, *, brief: bool) -> Iterator[str]:
    """Yield the lines that show an arrival."""
    target = in_a_line(arrival.request.target.partition("?")[0])
    moment = f"{arrival.at.astimezone():%H:%M:%S}"
    yield (
        f"{painted(moment, dim=True)} #{arrival.number} {arrival.request.method} {target}"
        f" from {arrival.peer}, {len(arrival.request.body)} bytes"
    )
    for line in step_lines(arrival.steps, brief=brief):
        yield f"  {line}"
    colour = "green" if arrival.status < 300 else "red"
    says = f"{arrival.status} {arrival.code}"
    if all(one.result.holds is not False for one in arrival.steps) and arrival.reason:
        says = f"{says}: {in_a_line(arrival.reason)}{page_said(arrival.code)}"
    yield f"  {painted(says, colour, bold=True)}{_facts(arrival)}"


def _as_json(arrival: Arrival) -> JsonObject:
    """Return an arrival as a JSON object."""
    proven = arrival.proven
    update = proven and proven.update
    facts = ("sender", "delivery_id", "task_id", "seq")
    return {
        **json_object(arrival, "number at peer status code reason"),
        "steps": [
            {"step": one.name, "holds": one.result.holds, "says": said_of(one)}
            for one in arrival.steps
        ],
        **{name: getattr(proven, name, None) for name in facts},
        "kind": update.kind.value if update else None,
        "state": update.state.value if update and update.state else None,
    }


def _facts(arrival: Arrival) -> str:
    proven = arrival.proven
    if proven is None:
        return ""
    update = proven.update
    state = update.state.value if update.state else ""
    seq = None if proven.seq is None else f"seq {proven.seq}"
    facts = (proven.task_id, seq, update.kind.value, state)
    shown = "  ".join(in_a_line(fact) for fact in facts if fact)
    text = in_a_line(_text_of(update))
    return f"  {shown}" + (f"  “{text}”" if text else "")


def _text_of(update: TaskUpdate) -> str:
    """Return the beginning of an update's text."""
    parts: Sequence[Part] = ()
    if isinstance(update, ArtifactUpdate):
        parts = update.artifact.parts
    elif isinstance(update, MessageUpdate):
        parts = update.message.parts
    elif isinstance(update, StatusUpdate) and update.status.message:
        parts = update.status.message.parts
    elif isinstance(update, TaskSnapshot) and update.task.status and update.task.status.message:
        parts = update.task.status.message.parts
    text = " ".join(part.text for part in parts if isinstance(part, TextPart))
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…"
