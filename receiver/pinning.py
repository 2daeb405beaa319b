"""Pins a sender by its verified agent card, in Python and by `receiver pin`.

A card says where its signer publishes keys, and which schemas its data has. Neither can be trusted
more than the signature on the card: the card is verified strictly, under keys that the operator
trusts, and the operator then copies the result into the configuration.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from pushkit.bounded_json import JsonObject
from pushkit.cards import (
    FULL_COVERAGE,
    CardForm,
    CardPolicy,
    CardTrust,
    TrustedKey,
    card_url,
    fetch_card,
    load_public_keys,
    verify_card,
)
from pushkit.cards.document import is_card
from pushkit.cards.trust import NamedTrust
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.terminal.options import (
    allow_option,
    card_trust_options,
    choice_option,
    egress_options,
    out_options,
)
from pushkit.terminal.output import FileKind, OutFile, example
from pushkit.url import Url


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCard:
    """The facts of a verified card that a configuration needs."""

    url: str  # of the card
    issuer: str  # the agent's base URL: the `iss` of its notifications
    # Where its signer publishes keys: one of the URLs that the operator trusts, if any.
    jwks_url: str | None
    key: TrustedKey | None  # that signed it
    card: JsonObject  # for `TrustedSender(card=...)`: it has the schemas of the agent's data
    warnings: tuple[str, ...] = ()  # about members that the signature does not cover


async def pin_card(
    url: str,
    trust: CardTrust,
    *,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> PinnedCard:
    """Fetch and verify the card at a URL, or the one of the agent at that URL.

    Raises:
        CardRefusedError: No signature is accepted; the message says why.
        PushkitError: It cannot be fetched, or is no card.
        ConfigError: The trust has no transport.
    """
    url = card_url(url)
    content = await fetch_card(trust.transport, url)
    keys = await trust.keys_for(url, content)
    verdict = await asyncio.to_thread(verify_card, content, keys, now=now, policy=policy)
    verdict.require()
    served_at = Url.parse(url)
    return PinnedCard(
        url=url,
        issuer=f"{served_at.scheme}://{served_at.authority}",
        jwks_url=verdict.jwks_url,
        key=verdict.best.key if verdict.best else None,
        card=verdict.card,
        warnings=verdict.warnings,
    )


# --- receiver pin ---------------------------------------------------------------------------------


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
