"""The cells of `make interop`: everything that it tries, in the order of its table."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from pushkit import Scheme
from receiver import SenderProfile
from tests.verification.interop.agents import Agent, agent_cell, agent_to_receiver
from tests.verification.interop.cards import peers as card_peers
from tests.verification.interop.cell import Cause, Cell, Direction
from tests.verification.interop.config_cells import config_cells
from tests.verification.interop.environments import (
    MissingToolError,
)
from tests.verification.interop.framework_cells import framework_cells
from tests.verification.interop.gateway_cells import gateway_cells
from tests.verification.interop.processes import MismatchError
from tests.verification.interop.verifiers import LIBRARIES
from tests.verification.interop.verify_programs import PROGRAMS, vectors_before
from tests.verification.interop.webhooks import (
    sender_to_jose,
    sender_to_library,
    sender_to_node_library,
    sender_to_trpc,
)

__all__ = ["cells"]


_OTHER_BODY = "expected A2A 0.3 on the wire, found 1.0"
_PYTHON_FOR_0_3 = Cause(
    "a2a-sdk 1.x sends a 0.3 client the 1.0 body (its own sender ignores the version that a config"
    " was registered in). The receiver decodes it by its shape; with pushkit inside the agent the"
    " client gets 0.3",
    _OTHER_BODY,
)
_GO_FOR_0_3 = Cause(
    "a2a-go 2 sends a 0.3 client the 1.0 body (its sender knows one version). The receiver decodes"
    " it by its shape",
    _OTHER_BODY,
)
_JAVA_SEND = Cause(
    "a2a-java 0.3 drops the config of a message/send that begins a task. Register it by"
    " message/stream, or by tasks/pushNotificationConfig/set",
    "no completed task arrived; what did: []",
)
_REFUSED = "the registry answers that this release is not available (403)"
_JAVA_1 = (
    "the registry has no org.a2aproject.sdk (404). 1.0.0.Alpha3 of the former io.github.a2asdk does"
    " not speak 1.0 but a draft, whose messages hold `pushNotificationConfig`"
)


def cells() -> list[Cell]:
    """Return all cells, in the order of the table."""
    programs = [
        Cell(
            peer=name,
            direction=Direction.VECTORS,
            version="all",
            scheme="JWT",
            attempt=functools.partial(vectors_before, name),
        )
        for name in PROGRAMS
    ]
    return [
        *_sender_cells(),
        *_inside_cells(),
        *framework_cells(),
        *gateway_cells(),
        *config_cells(),
        Cell(
            peer="jose (Node)",
            direction=Direction.ITS_WEBHOOK,
            version="1.0",
            scheme="JWT, remote JWK Set",
            attempt=sender_to_jose,
        ),
        *_library_cells(),
        *programs,
        *_card_cells(),
    ]


def _sender_cells() -> list[Cell]:
    """Return the cells of agents with their own senders; that of trpc-a2a-go signs."""
    return [
        *(_sends(f"a2a-sdk {release}") for release in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")),
        _sends("a2a-sdk 1.3.0", credentials=True),
        _sends("a2a-sdk 1.3.0 (0.3 client)", cause=_PYTHON_FOR_0_3),
        _sends("@a2a-js/sdk 0.3.14"),
        _sends("@a2a-js/sdk 1.0.1", credentials=True),
        _sends("@a2a-js/sdk 1.3.0", credentials=True),
        _sends("@a2a-js/sdk 1.3.0"),
        _sends("a2a-go 0.3.15"),
        _sends("a2a-go 0.3.15", credentials=True),
        _sends("a2a-go 2.4.0"),
        _sends("a2a-go 2.4.0", credentials=True),
        _sends("a2a-go 2.4.0 (0.3 client)", cause=_GO_FOR_0_3),
        _sends("trpc-a2a-go 0.2.5", profile=SenderProfile.TRPC_A2A_GO),
        Cell(
            peer="trpc-a2a-go 0.2.5",
            direction=Direction.ITS_VERIFIER,
            version="1.0",
            scheme="JWT (RS256), remote JWK Set",
            attempt=sender_to_trpc,
        ),
        _sends("a2a-java 0.3.3.Final", cause=_JAVA_SEND),
        _sends("a2a-java 0.3.3.Final (message/stream)", stream=True),
        _unavailable_cell("trpc-a2a-go 2.0.0", Direction.ITS_SENDER, _REFUSED),
        _unavailable_cell("trpc-a2a-go 2.0.0", Direction.ITS_VERIFIER, _REFUSED),
        _unavailable_cell("a2a-java 1.x", Direction.ITS_SENDER, _JAVA_1),
        _sends("a2a-server-lf 0.5.3 (Rust)"),
        _sends("a2a-server-lf 0.5.3 (Rust)", credentials=True),
        _sends("a2a-protocol-server 0.15.0 (Rust)"),
        _sends("a2a-protocol-server 0.15.0 (Rust)", credentials=True),
    ]


def _inside_cells() -> list[Cell]:
    """Return the cells of agents of the Python SDK that send with pushkit."""
    releases = ("0.2.16", "0.3.26", "1.0.3", "1.3.0", "1.0.3 (0.3 client)", "1.3.0 (0.3 client)")
    return [_sends(f"a2a-sdk {release}", sender="pushkit") for release in releases]


def _sends(peer: str, **details: Any) -> Cell:
    async def attempt(agent: Agent) -> None:
        await agent_to_receiver(agent)

    direction, scheme = Direction.ITS_SENDER, "unsigned, its token"
    if details.get("sender") == "pushkit":
        direction, scheme = Direction.INSIDE, "JWT, token"
    elif "profile" in details:
        scheme = "JWT, profile trpc-a2a-go"
    elif "credentials" in details:
        scheme = "unsigned, its credentials"
    return agent_cell(attempt, peer, direction=direction, scheme=scheme, **details)


def _unavailable_cell(peer: str, direction: Direction, reason: str) -> Cell:
    """Return a cell that cannot be tried, with the reason."""

    async def attempt() -> None:
        raise MissingToolError(reason)

    return Cell(peer=peer, direction=direction, version="1.0", scheme="", attempt=attempt)


def _library_cells() -> list[Cell]:
    to_webhook = functools.partial(Cell, direction=Direction.ITS_WEBHOOK, version="1.0")
    webhooks = Scheme.STANDARD_WEBHOOKS
    found = [
        to_webhook(
            peer=f"{library} (Node)",
            scheme=webhooks.value,
            attempt=functools.partial(sender_to_node_library, library),
        )
        for library in ("standardwebhooks", "svix")
    ]
    for name, library in LIBRARIES.items():
        scheme = Scheme.HTTP_MESSAGE_SIGNATURES if name.startswith("http") else webhooks
        attempt = functools.partial(sender_to_library, library, scheme)
        found.append(to_webhook(peer=name, scheme=scheme.value, attempt=attempt))
    return found


def _card_cells() -> list[Cell]:
    found = []
    for peer in card_peers.PEERS:
        card_cell = functools.partial(
            Cell, peer=peer.name, version="0.3" if peer.cards == "cards_v03" else "1.0"
        )
        found.append(
            card_cell(
                direction=Direction.ITS_CARDS,
                scheme=f"card JWS, form `{peer.form}` admitted",
                attempt=functools.partial(cards_one_way, peer, card_peers.VERIFIES),
            )
        )
        found += [
            card_cell(
                direction=Direction.OUR_CARDS,
                scheme=f"card JWS, {form}",
                attempt=functools.partial(cards_one_way, peer, f"pushkit signs, {form}"),
            )
            for form in peer.signed
        ]
    go, ways = "a2a-go 2.6 (a2acrypto)", (Direction.ITS_CARDS, Direction.OUR_CARDS)
    return [*found, *(_unavailable_cell(go, way, _REFUSED) for way in ways)]


async def cards_one_way(peer: card_peers.Peer, direction: str) -> str:
    """Verify all vector cards: pushkit's by a release, or those of the release by pushkit."""
    found = await asyncio.to_thread(card_peers.check, peer)
    wrong = list(card_peers.unexpected(peer, found, direction))
    if wrong:
        raise MismatchError("; ".join(wrong)[:300])
    return f"{card_peers.count(found[direction])} cards"
