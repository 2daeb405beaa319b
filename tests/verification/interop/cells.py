"""The cells of `make interop`: everything that it tries, in the order of its table."""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import Callable
from typing import Any

from pushkit import Scheme
from receiver import SenderProfile
from tests.verification.interop.agents import (
    Agent,
    agent_to_receiver,
    maker_of,
    node_agent,
    python_agent,
)
from tests.verification.interop.cards import peers as card_peers
from tests.verification.interop.cell import (
    INSIDE,
    ITS_CARDS,
    ITS_SENDER,
    ITS_VERIFIER,
    ITS_WEBHOOK,
    OUR_CARDS,
    VECTORS,
    Cause,
    Cell,
)
from tests.verification.interop.config_cells import config_cells
from tests.verification.interop.environments import (
    FOLDER,
    MissingToolError,
    UnavailableError,
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
            direction=VECTORS,
            version="all",
            scheme="JWT",
            attempt=functools.partial(vectors_before, name),
        )
        for name in PROGRAMS
    ]
    return [
        *_sdk_cells(),
        *_compiled_cells(),
        *_inside_cells(),
        *framework_cells(),
        *gateway_cells(),
        *config_cells(),
        Cell(
            peer="jose (Node)",
            direction=ITS_WEBHOOK,
            version="1.0",
            scheme="JWT, remote JWK Set",
            attempt=sender_to_jose,
        ),
        *_library_cells(),
        *programs,
        *_card_cells(),
    ]


def _sdk_cells() -> list[Cell]:
    """Return the cells of agents of the Python and Node SDKs with their own senders."""
    return [
        *(_sdk_cell(python_agent, release) for release in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")),
        _sdk_cell(python_agent, "1.3.0", credentials=True),
        _sdk_cell(python_agent, "1.3.0", version="0.3", cause=_PYTHON_FOR_0_3),
        _sdk_cell(node_agent, "0.3.14"),
        _sdk_cell(node_agent, "1.0.1", credentials=True),
        _sdk_cell(node_agent, "1.3.0", credentials=True),
        _sdk_cell(node_agent, "1.3.0"),
    ]


def _inside_cells() -> list[Cell]:
    """Return the cells of agents of the Python SDK that send with pushkit."""
    inside = functools.partial(_sdk_cell, python_agent, sender="pushkit")
    return [
        *(inside(release) for release in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")),
        *(inside(release, version="0.3") for release in ("1.0.3", "1.3.0")),
    ]


def _sdk_cell(
    make: Callable[..., Agent], release: str, *, cause: Cause | None = None, **changes: Any
) -> Cell:
    pushkit = changes.get("sender") == "pushkit"
    name = "a2a-sdk" if make is python_agent else "@a2a-js/sdk"
    wire = changes.get("version", "0.3" if release.startswith("0.") else "1.0")
    secret = "its credentials" if changes.get("credentials") else "its token"

    async def attempt() -> None:
        await agent_to_receiver(await asyncio.to_thread(make, release, **changes))

    return Cell(
        peer=f"{name} {release}" + (" (0.3 client)" if "version" in changes else ""),
        direction=INSIDE if pushkit else ITS_SENDER,
        version=wire,
        scheme="JWT, token" if pushkit else f"unsigned, {secret}",
        attempt=attempt,
        cause=cause,
    )


def _compiled_cells() -> list[Cell]:
    """Return the cells of agents in Go, Java and Rust; the sender of trpc-a2a-go signs."""

    def cell(
        name: str, version: str, folder: str, cause: Cause | None = None, **changes: Any
    ) -> Cell:
        make = maker_of(name)

        async def attempt() -> None:
            agent = await asyncio.to_thread(make, name, version, folder, **changes)
            await agent_to_receiver(agent)

        secret = "its credentials" if changes.get("credentials") else "its token"
        signs = "JWT, profile trpc-a2a-go" if "profile" in changes else f"unsigned, {secret}"
        return Cell(
            peer=name,
            direction=ITS_SENDER,
            version=version,
            scheme=signs,
            attempt=attempt,
            cause=cause,
        )

    trpc = SenderProfile.TRPC_A2A_GO
    return [
        cell("a2a-go 0.3.15", "0.3", "a2a_go_0_3"),
        cell("a2a-go 0.3.15", "0.3", "a2a_go_0_3", credentials=True),
        cell("a2a-go 2.4.0", "1.0", "a2a_go_2"),
        cell("a2a-go 2.4.0", "1.0", "a2a_go_2", credentials=True),
        cell("a2a-go 2.4.0 (0.3 client)", "0.3", "a2a_go_2", cause=_GO_FOR_0_3),
        cell("trpc-a2a-go 0.2.5", "0.3", "trpc_0_2", profile=trpc),
        Cell(
            peer="trpc-a2a-go 0.2.5",
            direction=ITS_VERIFIER,
            version="1.0",
            scheme="JWT (RS256), remote JWK Set",
            attempt=sender_to_trpc,
        ),
        cell("a2a-java 0.3.3.Final", "0.3", "a2a_java_0_3", cause=_JAVA_SEND),
        cell(
            "a2a-java 0.3.3.Final (message/stream)",
            "0.3",
            "a2a_java_0_3",
            stream=True,
        ),
        _unavailable_cell("trpc-a2a-go 2.0.0", ITS_SENDER, _REFUSED),
        _unavailable_cell("trpc-a2a-go 2.0.0", ITS_VERIFIER, _REFUSED),
        _unavailable_cell("a2a-java 1.x", ITS_SENDER, _JAVA_1),
        cell("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf"),
        cell("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf", credentials=True),
        cell("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol"),
        cell("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol", credentials=True),
    ]


def _unavailable_cell(peer: str, direction: str, reason: str) -> Cell:
    """Return a cell that cannot be tried, with the reason."""

    async def attempt() -> None:
        raise MissingToolError(reason)

    return Cell(peer=peer, direction=direction, version="1.0", scheme="", attempt=attempt)


def _library_cells() -> list[Cell]:
    to_webhook = functools.partial(Cell, direction=ITS_WEBHOOK, version="1.0")
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
                direction=ITS_CARDS,
                scheme=f"card JWS, form `{peer.form}` admitted",
                attempt=functools.partial(cards_one_way, peer, card_peers.VERIFIES),
            )
        )
        found += [
            card_cell(
                direction=OUR_CARDS,
                scheme=f"card JWS, {form}",
                attempt=functools.partial(cards_one_way, peer, f"pushkit signs, {form}"),
            )
            for form in peer.signed
        ]
    go = "a2a-go 2.6 (a2acrypto)"
    return [*found, *(_unavailable_cell(go, way, _REFUSED) for way in (ITS_CARDS, OUR_CARDS))]


@functools.cache
def _cards_of(peer: card_peers.Peer) -> dict[str, dict[str, str | None]]:
    folder = FOLDER / "cards"
    try:
        card_peers.install(peer, folder)
        return card_peers.check(peer, folder)
    except (SystemExit, OSError, subprocess.SubprocessError) as exc:
        raise UnavailableError(str(exc).strip().splitlines()[-1][:200]) from exc


async def cards_one_way(peer: card_peers.Peer, direction: str) -> str:
    """Verify all vector cards: pushkit's by a release, or those of the release by pushkit."""
    found = await asyncio.to_thread(_cards_of, peer)
    wrong = list(card_peers.unexpected(peer, found, direction))
    if wrong:
        raise MismatchError("; ".join(wrong)[:300])
    return f"{card_peers.count(found[direction])} cards"
