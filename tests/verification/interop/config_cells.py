"""Push configs: at every peer's agent, and by peers' clients at ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from receiver import SenderProfile
from tests.verification.interop.agents import (
    agent_of,
    command_of,
    registered_at_agent,
    version_of,
)
from tests.verification.interop.cell import AT_ITS_AGENT, ITS_CLIENT, Cause, Cell
from tests.verification.interop.configs import client_to_pushkit
from tests.verification.interop.processes import MismatchError

__all__ = ["config_cells"]

_ID_IN_BODY = Cause(
    "@a2a-js/sdk 1.0.1 reads the task's id from the body alone, not from the URL. Put it into the"
    " body, too; 1.3.0 reads the URL",
    "Task not found: ",
)


def config_cells() -> list[Cell]:
    """Return the bindings in which configs are registered, both ways; each for both versions."""
    rpc, rest, by_grpc = "JSON-RPC", "HTTP+JSON", "gRPC"
    return [
        _at("a2a-sdk 0.2.16", rpc),
        _at("a2a-sdk 0.3.26", rpc),
        _at("a2a-sdk 1.0.3", rpc, rest),
        _at("a2a-sdk 1.3.0", rpc, rest),
        _at("a2a-sdk 1.3.0 (0.3 client)", rpc, rest),
        _at("@a2a-js/sdk 0.3.14", rpc),
        _at("@a2a-js/sdk 1.0.1", rpc),
        _at("@a2a-js/sdk 1.0.1", rest, cause=_ID_IN_BODY),
        _at("@a2a-js/sdk 1.3.0", rpc, rest),
        _at("a2a-go 0.3.15", rpc, by_grpc),
        _at("a2a-go 2.4.0", rpc, rest, by_grpc),
        _at("a2a-go 2.4.0 (0.3 client)", rpc, rest, by_grpc),
        _at("trpc-a2a-go 0.2.5", rpc, profile=SenderProfile.TRPC_A2A_GO),
        _client("a2a-sdk 1.3.0", "configs_1_x.py", rpc, rest),
        _client("a2a-sdk 1.3.0 (0.3 client)", "configs_1_x.py", rpc),
        _client("@a2a-js/sdk 1.3.0", "configs_1.mjs", rpc, rest),
        _client("a2a-go 2.4.0", "", rpc, rest, by_grpc),
        _client("a2a-go 2.4.0 (0.3 client)", "", rpc, by_grpc),
        _at("a2a-java 0.3.3.Final", rpc, rest),
        _at("a2a-server-lf 0.5.3 (Rust)", rpc, rest),
        _at("a2a-protocol-server 0.15.0 (Rust)", rpc, rest),
    ]


def _at(peer: str, *bindings: str, cause: Cause | None = None, **details: Any) -> Cell:
    """Return the cell of configs at a peer's agent."""

    async def attempt(binding: str) -> None:
        await registered_at_agent(await asyncio.to_thread(agent_of, peer, **details), binding)

    return _in_each(bindings, attempt, peer=peer, direction=AT_ITS_AGENT, cause=cause)


def _client(peer: str, program: str, *bindings: str) -> Cell:
    """Return the cell of configs by a peer's client."""

    async def attempt(binding: str) -> None:
        command = await asyncio.to_thread(command_of, peer, program)
        await client_to_pushkit(command, binding, version_of(peer))

    return _in_each(bindings, attempt, peer=peer, direction=ITS_CLIENT)


def _in_each(
    bindings: tuple[str, ...], attempt: Callable[[str], Awaitable[None]], **about: Any
) -> Cell:
    async def in_each() -> None:
        for binding in bindings:
            try:
                await attempt(binding)
            except MismatchError as exc:
                raise MismatchError(f"{binding}: {exc}") from exc

    version, named = version_of(about["peer"]), ", ".join(bindings)
    return Cell(version=version, scheme=named, attempt=in_each, **about)
