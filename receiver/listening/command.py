"""`receiver listen`, which is `pushkit listen` too."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from pushkit.a2a import PushConfig, WireVersion, format_push_config
from pushkit.clock import utc_now
from pushkit.keys.files import save_key_ring
from pushkit.keys.ring import KeyRing
from pushkit.net.transport import ConnectionOptions
from pushkit.terminal.command import painted
from pushkit.terminal.listening import listening_at
from pushkit.terminal.options import choice_option, egress_options, gathered
from pushkit.terminal.output import example
from pushkit.terminal.processes import until_stopped
from pushkit.url import host_and_port
from receiver.expectation import mint_token
from receiver.listening.handler import TRIAL_ISSUER, AcceptedSignatures
from receiver.listening.listener import Listening, listening
from receiver.options import scheme_options
from receiver.senders import DEFAULT_PATH, SenderProfile

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
        async with listening(options, listener, state):
            for line in _introduction(options, state, local):
                click.echo(line, err=options.as_json)  # with --json, stdout is for objects
            await stop.wait()


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
        audience = "" if to == webhook else f" --audience {webhook}"
        yield "to try it without an agent, run this in another terminal:"
        command = (
            f"pushkit trigger working artifact completed {to}{audience} --token {options.token}"
            f" --issuer {TRIAL_ISSUER} --keys {state / 'keys.json'}"
        )
        yield f"  {painted(command, bold=True)}"
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
