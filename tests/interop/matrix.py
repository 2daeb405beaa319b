"""Real peers, both ways: `make interop`, which writes docs/interop.md.

python -m tests.interop.matrix [--only a2a-js] [--write docs/interop.md]

Each cell starts its peer as a process, lets it do one task of several updates, and looks at what
arrived: a pass means every update, once, in order, verified by the scheme that is named.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
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
    rust_agent,
)
from tests.interop.cards import peers as card_peers
from tests.interop.environments import FOLDER, MissingToolError, UnavailableError
from tests.interop.processes import PATIENCE, MismatchError
from tests.interop.verifiers import LIBRARIES
from tests.interop.verify_programs import PROGRAMS, vectors_before
from tests.interop.webhooks import (
    sender_to_jose,
    sender_to_library,
    sender_to_node_library,
    sender_to_trpc,
)

NOT_RUN = "not run here"


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
        direction="its agent, pushkit inside → receiver" if pushkit else "its sender → receiver",
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
        direction="pushkit → its webhook",
        version="1.0",
        scheme="JWT, remote JWK Set",
        attempt=sender_to_jose,
    )
    programs = [
        Cell(
            peer=name,
            direction="[vectors](vectors/README.md) → its program in `examples/verify`",
            version="all",
            scheme="JWT",
            attempt=functools.partial(vectors_before, name),
        )
        for name in PROGRAMS
    ]
    return [*own, *inside, jose, *_library_cells(), *programs, *_card_cells()]


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


def _compiled_cells() -> list[Cell]:
    """Return agents in Go, Java and Rust with their own senders: of trpc-a2a-go, one that signs."""

    def cell(name: str, version: str, folder: str, cause: str = "", **changes: Any) -> Cell:
        make = next(make for language, make in _LANGUAGES.items() if name.startswith(language))

        async def attempt() -> None:
            agent = await asyncio.to_thread(make, name, version, folder, **changes)
            await agent_to_receiver(agent)

        secret = "its credentials" if changes.get("credentials") else "its token"
        signs = "JWT, profile trpc-a2a-go" if "profile" in changes else f"unsigned, {secret}"
        return Cell(
            peer=name,
            direction="its sender → receiver",
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
            direction="pushkit → its verifier",
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
        _not_here("a2a-java 1.x", "its sender → receiver", "org.a2aproject.sdk"),
        cell("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf"),
        cell("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf", credentials=True),
        cell("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol"),
        cell("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol", credentials=True),
    ]


def _not_here(peer: str, direction: str, package: str) -> Cell:
    """Return what could not be tried: its package was not to be had from the registry."""

    async def attempt() -> None:
        raise MissingToolError(f"{package} could not be had from its registry")

    return Cell(peer=peer, direction=direction, version="1.0", scheme="", attempt=attempt)


def _library_cells() -> list[Cell]:
    to_webhook = functools.partial(Cell, direction="pushkit → its webhook", version="1.0")
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
                direction="its signed cards → pushkit",
                scheme=f"card JWS, form `{peer.form}` admitted",
                attempt=theirs,
            )
        )
        for called in peer.signed:
            ours = functools.partial(cards_one_way, peer, f"pushkit signs, {called}")
            found.append(
                of_peer(
                    direction="pushkit's signed cards → its verifier",
                    scheme=f"card JWS, {called}",
                    attempt=ours,
                )
            )
    go = "a2a-go 2.6 (a2acrypto)"
    found.append(_not_here(go, "its signed cards → pushkit", "that release of the module"))
    return found


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


async def outcome(cell: Cell) -> tuple[str, str]:
    """Try a cell; return `pass`, `fail` or `not run here`, and how far, or the reason."""
    try:
        told = await cell.attempt()
    except MissingToolError as exc:
        return NOT_RUN, str(exc)
    except UnavailableError as exc:
        return "fail", f"not tried: {exc}"
    except MismatchError as exc:
        return "fail", str(exc)
    except TimeoutError:
        return "fail", f"nothing for {PATIENCE:.0f} s"
    return "pass", told or ""


_TABLE = re.compile(r"^\| peer .*?\n(?=\n|\Z)", re.MULTILINE | re.DOTALL)
_HEADING = "| peer | direction | A2A | scheme | result |\n|---|---|---|---|---|\n"


def _key(row: str) -> str:
    return " | ".join(row.split(" | ")[:4])


def _row(cell: Cell, result: str) -> str:
    return f"| {cell.peer} | {cell.direction} | {cell.version} | {cell.scheme} | {result} |"


def _write(page: Path, rows: dict[str, str]) -> None:
    """Write the table of a page anew; of what was not tried now, the row that stands there."""
    text = page.read_text("utf-8")
    for line in text.splitlines():
        rows.setdefault(_key(line), line)
    keys = [_key(_row(cell, "")) for cell in cells()]
    table = _HEADING + "".join(f"{rows[key]}\n" for key in keys if key in rows)
    page.write_text(_TABLE.sub(lambda _: table, text), "utf-8")


async def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Only peers whose name contains this.")
    parser.add_argument("--write", type=Path, help="The page whose table is written.")
    arguments = parser.parse_args()
    rows: dict[str, str] = {}
    broken = 0
    for cell in cells():
        if arguments.only and arguments.only not in cell.peer:
            continue
        found, reason = await outcome(cell)
        known = bool(cell.cause) and found == "fail"
        broken += found == "fail" and not known
        told = cell.cause if known else reason
        row = _row(cell, f"{found}: {told}" if told else found)
        sys.stdout.write(row + (f" ({reason})" if known else "") + "\n")
        sys.stdout.flush()
        rows[_key(row)] = row
    if arguments.write is not None:
        _write(arguments.write, rows)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
