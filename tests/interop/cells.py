"""What `make interop` tries: each cell is one thing that a real peer does with pushkit."""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pushkit import Scheme
from receiver import SenderProfile
from tests.interop.agents import (
    Agent,
    agent_to_receiver,
    go_agent,
    java_agent,
    node_agent,
    python_agent,
    registered_at_agent,
    rust_agent,
)
from tests.interop.cards import peers as card_peers
from tests.interop.configs import client_to_pushkit
from tests.interop.environments import (
    FOLDER,
    PEERS,
    MissingToolError,
    UnavailableError,
    go_program,
)
from tests.interop.processes import MismatchError
from tests.interop.verifiers import LIBRARIES
from tests.interop.verify_programs import PROGRAMS, vectors_before
from tests.interop.webhooks import (
    sender_to_jose,
    sender_to_library,
    sender_to_node_library,
    sender_to_trpc,
)

__all__ = ["COLUMNS", "Cell", "cells"]

ITS_SENDER = "its sender → receiver"
INSIDE = "its agent, pushkit inside → receiver"
ITS_WEBHOOK = "pushkit → its webhook"
ITS_VERIFIER = "pushkit → its verifier"
VECTORS = "[vectors](vectors/README.md) → its program in `examples/verify`"
ITS_CARDS = "its signed cards → pushkit"
OUR_CARDS = "pushkit's signed cards → its verifier"
AT_ITS_AGENT = "a config → its agent, which then sends"
ITS_CLIENT = "its client's configs → pushkit, which then sends"

# The matrix of the page: one row a peer, and of each direction the column that it counts in.
COLUMNS = {
    ITS_SENDER: "it sends",
    INSIDE: "pushkit inside",
    ITS_WEBHOOK: "pushkit sends",
    ITS_VERIFIER: "pushkit sends",
    VECTORS: "pushkit sends",
    ITS_CARDS: "its cards",
    OUR_CARDS: "pushkit's cards",
    AT_ITS_AGENT: "configs",
    ITS_CLIENT: "configs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing that is tried.

    Attributes:
        peer: What stands at the other end.
        direction: Who sends to whom.
        version: The A2A version on the wire.
        scheme: What the receiving end verifies.
        attempt: Raises if it does not work; may return how far it does.
        cause: Why it cannot, where the cause lies on the other side; and what a user can do.
    """

    peer: str
    direction: str
    version: str
    scheme: str
    attempt: Callable[[], Awaitable[str | None]]
    cause: str = ""


def _agent_cell(
    make: Callable[..., Agent], release: str, *, cause: str = "", **changes: Any
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


_COMPAT = (
    "a2a-sdk 1.x sends a 0.3 client the 1.0 body (its own sender ignores the version that a config"
    " was registered in). The receiver decodes it by its shape; with pushkit inside the agent the"
    " client gets 0.3"
)


def cells() -> list[Cell]:
    """Return everything that is tried, in the order of the table."""
    own = [_agent_cell(python_agent, v) for v in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")]
    own += [
        _agent_cell(python_agent, "1.3.0", credentials=True),
        _agent_cell(python_agent, "1.3.0", version="0.3", cause=_COMPAT),
        _agent_cell(node_agent, "0.3.14"),
        _agent_cell(node_agent, "1.0.1", credentials=True),
        _agent_cell(node_agent, "1.3.0", credentials=True),
        _agent_cell(node_agent, "1.3.0"),
    ]
    own += _compiled_cells()
    inside = [
        _agent_cell(python_agent, version, sender="pushkit")
        for version in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")
    ]
    inside += [
        _agent_cell(python_agent, version, sender="pushkit", version="0.3")
        for version in ("1.0.3", "1.3.0")
    ]
    jose = Cell(
        peer="jose (Node)",
        direction=ITS_WEBHOOK,
        version="1.0",
        scheme="JWT, remote JWK Set",
        attempt=sender_to_jose,
    )
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
        *(*own, *inside, *_config_cells()),
        *(jose, *_library_cells(), *programs, *_card_cells()),
    ]


_TO_0_3 = (
    "a2a-go 2 sends a 0.3 client the 1.0 body (its sender knows one version). The receiver decodes"
    " it by its shape"
)


_JAVA_SEND = (
    "a2a-java 0.3 drops the config of a message/send that begins a task. Register it by"
    " message/stream, or by tasks/pushNotificationConfig/set"
)
_LANGUAGES: dict[str, Callable[..., Agent]] = {
    "a2a-go": go_agent,
    "trpc": go_agent,
    "a2a-java": java_agent,
    "a2a-server-lf": rust_agent,
    "a2a-protocol": rust_agent,
}


def _maker_of(peer: str) -> Callable[..., Agent]:
    return next(make for start, make in _LANGUAGES.items() if peer.startswith(start))


def _compiled_cells() -> list[Cell]:
    """Return agents in Go, Java and Rust with their own senders: of trpc-a2a-go, one that signs."""

    def cell(name: str, version: str, folder: str, cause: str = "", **changes: Any) -> Cell:
        make = _maker_of(name)

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
        cell("a2a-go 2.4.0 (0.3 client)", "0.3", "a2a_go_2", cause=_TO_0_3),
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
            method="message/stream",
        ),
        _not_here("trpc-a2a-go 2.0 (alpha)", ITS_SENDER, "that release"),
        _not_here("trpc-a2a-go 2.0 (alpha)", ITS_VERIFIER, "that release"),
        _not_here("a2a-java 1.x", ITS_SENDER, "org.a2aproject.sdk"),
        cell("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf"),
        cell("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf", credentials=True),
        cell("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol"),
        cell("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol", credentials=True),
    ]


_ID_IN_BODY = (
    "@a2a-js/sdk 1.0.1 reads the task's id from the body alone, not from the URL. Put it into the"
    " body, too; 1.3.0 reads the URL"
)


def _config_cells() -> list[Cell]:
    """Return the bindings in which configs are registered, both ways; each for both versions."""
    rpc, rest, by_grpc = "JSON-RPC", "HTTP+JSON", "gRPC"

    def at(peer: str, version: str, make: Callable[[], Agent], *bindings: str, **more: str) -> Cell:
        async def attempt() -> None:
            agent = await asyncio.to_thread(make)
            for binding in bindings:
                try:
                    await registered_at_agent(agent, binding)
                except MismatchError as exc:
                    raise MismatchError(f"{binding}: {exc}") from exc

        named = ", ".join(bindings)
        return Cell(
            peer=peer,
            direction=AT_ITS_AGENT,
            version=version,
            scheme=named,
            attempt=attempt,
            **more,
        )

    def python(release: str, *bindings: str, version: str = "1.0") -> Cell:
        peer = f"a2a-sdk {release}"
        if version == "0.3" and release.startswith("1."):
            peer += " (0.3 client)"
        make = functools.partial(python_agent, release, version=version)
        return at(peer, version, make, *bindings)

    def node(release: str, *bindings: str, version: str = "1.0", **more: str) -> Cell:
        make = functools.partial(node_agent, release)
        return at(f"@a2a-js/sdk {release}", version, make, *bindings, **more)

    def compiled(peer: str, version: str, folder: str, *bindings: str) -> Cell:
        make = functools.partial(_maker_of(peer), peer, version, folder)
        return at(peer, version, make, *bindings)

    def client(peer: str, version: str, *bindings: str) -> Cell:
        async def attempt() -> None:
            program = await asyncio.to_thread(go_program, PEERS / "go" / "a2a_go_2")
            for binding in bindings:
                await client_to_pushkit(program, binding, version)

        named = ", ".join(bindings)
        return Cell(peer=peer, direction=ITS_CLIENT, version=version, scheme=named, attempt=attempt)

    return [
        python("0.2.16", rpc, version="0.3"),
        python("0.3.26", rpc, version="0.3"),
        python("1.0.3", rpc, rest),
        python("1.3.0", rpc, rest),
        python("1.3.0", rpc, rest, version="0.3"),
        node("0.3.14", rpc, version="0.3"),
        node("1.0.1", rpc),
        node("1.0.1", rest, cause=_ID_IN_BODY),
        node("1.3.0", rpc, rest),
        compiled("a2a-go 0.3.15", "0.3", "a2a_go_0_3", rpc, by_grpc),
        compiled("a2a-go 2.4.0", "1.0", "a2a_go_2", rpc, rest, by_grpc),
        compiled("a2a-go 2.4.0 (0.3 client)", "0.3", "a2a_go_2", rpc, rest, by_grpc),
        client("a2a-go 2.4.0", "1.0", rpc, rest, by_grpc),
        client("a2a-go 2.4.0 (0.3 client)", "0.3", rpc, by_grpc),
        compiled("a2a-java 0.3.3.Final", "0.3", "a2a_java_0_3", rpc, rest),
        compiled("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf", rpc, rest),
        compiled("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol", rpc, rest),
    ]


def _not_here(peer: str, direction: str, package: str) -> Cell:
    """Return what could not be tried: its package was not to be had from the registry."""

    async def attempt() -> None:
        raise MissingToolError(f"{package} could not be had from its registry")

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
        of_peer = functools.partial(
            Cell, peer=peer.name, version="0.3" if peer.cards == "cards_v03" else "1.0"
        )
        theirs = functools.partial(cards_one_way, peer, card_peers.VERIFIES)
        found.append(
            of_peer(
                direction=ITS_CARDS,
                scheme=f"card JWS, form `{peer.form}` admitted",
                attempt=theirs,
            )
        )
        for called in peer.signed:
            ours = functools.partial(cards_one_way, peer, f"pushkit signs, {called}")
            found.append(
                of_peer(
                    direction=OUR_CARDS,
                    scheme=f"card JWS, {called}",
                    attempt=ours,
                )
            )
    go = "a2a-go 2.6 (a2acrypto)"
    return [*found, *(_not_here(go, way, "that release") for way in (ITS_CARDS, OUR_CARDS))]


@functools.cache
def _cards_of(peer: card_peers.Peer) -> dict[str, dict[str, str | None]]:
    folder = FOLDER / "cards"
    try:
        card_peers.install(peer, folder)
        return card_peers.check(peer, folder)
    except (SystemExit, OSError, subprocess.SubprocessError) as exc:
        raise UnavailableError(str(exc).strip().splitlines()[-1][:200]) from exc


async def cards_one_way(peer: card_peers.Peer, direction: str) -> str:
    """Let a release verify every vector card of pushkit's, or pushkit every one of its."""
    found = await asyncio.to_thread(_cards_of, peer)
    wrong = list(card_peers.unexpected(peer, found, direction))
    if wrong:
        raise MismatchError("; ".join(wrong)[:300])
    return f"{card_peers.count(found[direction])} cards"
