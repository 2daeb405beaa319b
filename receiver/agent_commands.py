"""What an operator does for a new agent: `receiver pin` trusts it, `receiver expect` lets it send.

`pin` prints a sender with its keys, for the configuration; `expect` mints a token, and prints the
push config for the agent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import click

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject
from pushkit.cards import (
    CardForm,
    CardPolicy,
    CardTrust,
    card_url,
    load_public_keys,
)
from pushkit.cards.document import is_card
from pushkit.cards.trust import NamedTrust
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.storage.migrations import Access
from pushkit.terminal.options import (
    allow_option,
    card_trust_options,
    choice_option,
    egress_options,
    out_options,
    read_by,
    read_stream,
    refuse_given,
)
from pushkit.terminal.output import FileKind, OutFile, example
from pushkit.url import Url
from receiver.admin import open_inbox
from receiver.expectation import OVERLAP
from receiver.options import config_option
from receiver.pinning import PinnedCard, pin_card
from receiver.senders import choose_sender

_MAX_EXPIRES_IN = 10 * 365 * 86400


@click.command(
    epilog=example(
        "receiver pin https://agent.example.com --trust cards.toml --name agent",
        "receiver pin https://agent.example.com \\",
        "    --jwks https://agent.example.com/.well-known/jwks.json",
    )
)
@click.argument("url")
@card_trust_options(NamedTrust)
@choice_option(
    "--admit", of=CardForm, multiple=True, help="Count this form whatever it leaves out."
)
@click.option("--name", default="agent", help="The sender's name.")
@out_options("--save", "Write the card there: it has the schemas of the agent's data.")
@allow_option
@egress_options(ConnectionOptions)
def pin(
    url: str,
    *,
    trusted: NamedTrust,
    admit: tuple[CardForm, ...],
    name: str,
    out: OutFile,
    allow: tuple[str, ...],
    connections: ConnectionOptions,
) -> None:
    """Verify the agent card at URL, and print a sender with its keys.

    The sender is a table of receiver.toml. The card is accepted only if its signature covers
    everything that matters, by a key that you trust, as for `pushkit card verify`. Otherwise the
    exit status is 1, with the reason.
    """
    policy = CardPolicy(admit=frozenset(admit))
    client = Transport(DestinationPolicy(allow, loopback=True), connections)

    async def verified() -> PinnedCard:
        origins = trusted.load(Url.parse(card_url(url)).origin)
        async with (
            closing(client) as transport,
            closing(CardTrust(origins, transport=transport)) as trust,
        ):
            return await pin_card(url, trust, now=utc_now(), policy=policy)

    pinned = asyncio.run(verified())
    keys = _keys_of(pinned, trusted.jwks_files)
    for warning in pinned.warnings:
        click.echo(f"warning: {warning}", err=True)
    lines = [
        "[[senders]]",
        f"name = {_toml(name)}",
        f"issuer = {_toml(pinned.issuer)}",
        keys,
    ]
    if out.path is not None:
        card = json.dumps(pinned.card, indent=2, ensure_ascii=False) + "\n"
        out.write(card.encode(), FileKind("an agent card", is_card))
        lines.append(f"card = {_toml(str(out.path))}")
    click.echo("\n".join(lines))


def _keys_of(pinned: PinnedCard, jwks_files: Iterable[Path]) -> str:
    """Return the member of the sender's table that says which keys it has."""
    if pinned.jwks_url is not None:
        return f"jwks_url = {_toml(pinned.jwks_url)}"
    for path in jwks_files:
        if pinned.key is not None and pinned.key.key in load_public_keys(path):
            return f"jwks_file = {_toml(str(path))}"
    raise ConfigError(
        f"{pinned.url}: verified, but no trusted URL publishes its signer's keys: name one (--jwks"
        " URL, or jwks_urls in the trust file), or their JWK Set in a file (--jwks FILE)"
    )


def _toml(text: str) -> str:
    """Return a TOML string: its escapes are those of JSON, except for pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@click.command(epilog=example("receiver expect --sender agent --expires-in 86400"))
@config_option
@click.option("--sender", help="Which trusted sender; may be left out if there is only one.")
@click.option("--task-id", help="The task, if it is already known.")
@click.option("--version", default="1.0", help="The A2A version of the agent.")
@click.option(
    "--expires-in",
    type=click.IntRange(1, _MAX_EXPIRES_IN),
    help="Seconds for which the token is valid; by default those of `[retention]`: 90 days.",
)
@click.option(
    "--authentication", help="Also mint credentials of this scheme: Bearer, Basic or ApiKey."
)
@click.option(
    "--replaces",
    type=click.File("rb"),
    callback=read_by(read_stream),
    help="A file with the token that the new one replaces; - for standard input.",
)
@click.option(
    "--overlap",
    type=click.IntRange(0, _MAX_EXPIRES_IN),
    default=OVERLAP // timedelta(seconds=1),
    help="Seconds for which the replaced token stays valid.",
)
def expect(
    config: Path,
    *,
    sender: str | None,
    task_id: str | None,
    version: str,
    expires_in: int | None,
    authentication: str | None,
    replaces: bytes | None,
    overlap: int,
) -> None:
    """Mint a token, and print the push config to hand to the agent."""
    from receiver.settings import load_settings

    if replaces is None:
        refuse_given("overlap", only_for="--replaces")
    settings = load_settings(config)
    replaced = None if replaces is None else _read_token(replaces)
    receiver = settings.build()
    trusted = choose_sender(sender, receiver.senders.values(), setting="--sender")

    async def register() -> JsonObject:
        try:
            # An inbox is created, but not upgraded.
            schema = await open_inbox(settings.inbox_location).schema()
            await receiver.open(Access.WRITE if schema.found else Access.UPGRADE)
            expectation = await receiver.expect(
                trusted.name,
                task_id=task_id,
                version=WireVersion.parse(version),
                expires_in=timedelta(seconds=expires_in) if expires_in else None,
                authentication=authentication,
                replaces=replaced,
                overlap=timedelta(seconds=overlap),
            )
        finally:
            await receiver.close()
        return expectation.as_json()

    click.echo(json.dumps(asyncio.run(register())))


def _read_token(content: bytes) -> str:
    try:
        return content.decode("utf-8").strip()
    except UnicodeDecodeError as exc:
        raise ConfigError(
            "replaces: expected a file with a token, found one that is no text"
        ) from exc
