"""`receiver pin`: verifies an agent's card, and prints a `[[senders]]` table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from pushkit.cards import CardForm, CardPolicy, CardTrust, card_url, load_public_keys
from pushkit.cards.document import is_card
from pushkit.cards.trust import NamedTrust
from pushkit.errors import ConfigError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.terminal.options import (
    allow_option,
    card_trust_options,
    choice_option,
    egress_options,
)
from pushkit.terminal.out import FileKind, OutFile, out_options
from pushkit.terminal.output import example
from pushkit.url import Url
from receiver.pinning import PinnedCard, pin_card


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
    client = Transport(DestinationPolicy(allow, loopback=True), connections)
    pinned = asyncio.run(_pin(url, trusted, CardPolicy(admit=frozenset(admit)), client))
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


async def _pin(url: str, trusted: NamedTrust, policy: CardPolicy, client: Transport) -> PinnedCard:
    origins = trusted.load(Url.parse(card_url(url)).origin)
    async with (
        closing(client) as transport,
        closing(CardTrust(origins, transport=transport)) as trust,
    ):
        now = datetime.now(UTC)
        return await pin_card(url, trust, now=now, policy=policy)
