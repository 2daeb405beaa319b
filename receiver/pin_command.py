"""`receiver pin`: verifies an agent's card, and prints a `[[senders]]` table."""

from __future__ import annotations

import asyncio
import functools
import json
from datetime import UTC, datetime
from pathlib import Path

import click

from pushkit.cards import CardTrust, load_card_trust
from pushkit.cards.document import is_card
from pushkit.net.destination import DestinationPolicy
from pushkit.net.jwks_client import fetch_jwks
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.terminal.options import FILE, allow_option, egress_options
from pushkit.terminal.out import FileKind, OutFile, out_options
from pushkit.terminal.output import example
from receiver.pinning import PinnedCard, pin_card


@click.command(
    epilog=example("receiver pin https://agent.example.com --trust cards.toml --name agent")
)
@click.argument("url")
@click.option(
    "--trust",
    "trust_file",
    type=FILE,
    required=True,
    help="Whose cards are trusted, under which keys: a TOML file as for `pushkit card verify`.",
)
@click.option("--name", default="agent", help="The sender's name.")
@out_options("--save", "Write the card there: it has the schemas of the agent's data.")
@allow_option
@egress_options(ConnectionOptions)
def pin(
    url: str,
    *,
    trust_file: Path,
    name: str,
    out: OutFile,
    allow: tuple[str, ...],
    connections: ConnectionOptions,
) -> None:
    """Verify the agent card at URL, and print a sender with its keys.

    The sender is a table of receiver.toml. The card is accepted only if its signature covers
    everything that matters, by a key that the trust file names. Otherwise the exit status is 1,
    with the reason.
    """
    policy = DestinationPolicy(allow, loopback=True)
    pinned = asyncio.run(_pin(url, trust_file, Transport(policy, connections)))
    for warning in pinned.warnings:
        click.echo(f"warning: {warning}", err=True)
    lines = [
        "[[senders]]",
        f"name = {_toml(name)}",
        f"issuer = {_toml(pinned.issuer)}",
        f"jwks_url = {_toml(pinned.jwks_url)}",
    ]
    if out.path is not None:
        card = json.dumps(pinned.card, indent=2, ensure_ascii=False) + "\n"
        out.write(card.encode(), FileKind("an agent card", is_card))
        lines.append(f"card = {_toml(str(out.path))}")
    click.echo("\n".join(lines))


def _toml(text: str) -> str:
    """Return a TOML string: its escapes are those of JSON, except for pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


async def _pin(url: str, trust_file: Path, client: Transport) -> PinnedCard:
    origins = load_card_trust(trust_file)
    async with (
        closing(client) as transport,
        closing(CardTrust(origins, fetch=functools.partial(fetch_jwks, transport))) as trust,
    ):
        return await pin_card(url, trust, transport=transport, now=datetime.now(UTC))
