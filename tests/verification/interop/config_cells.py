"""Push configs: at every peer's agent, and by peers' clients at ours."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from receiver import SenderProfile
from tests.verification.interop.agents import (
    Agent,
    maker_of,
    node_agent,
    node_client,
    python_agent,
    python_client,
    registered_at_agent,
)
from tests.verification.interop.cell import AT_ITS_AGENT, ITS_CLIENT, Cause, Cell
from tests.verification.interop.configs import client_to_pushkit
from tests.verification.interop.environments import PEERS, go_program
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
    trpc = SenderProfile.TRPC_A2A_GO

    def at(
        peer: str,
        version: str,
        make: Callable[[], Agent],
        *bindings: str,
        cause: Cause | None = None,
    ) -> Cell:
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
            cause=cause,
        )

    def python(release: str, *bindings: str, version: str = "1.0") -> Cell:
        peer = f"a2a-sdk {release}"
        if version == "0.3" and release.startswith("1."):
            peer += " (0.3 client)"
        make = functools.partial(python_agent, release, version=version)
        return at(peer, version, make, *bindings)

    def node(
        release: str, *bindings: str, version: str = "1.0", cause: Cause | None = None
    ) -> Cell:
        make = functools.partial(node_agent, release)
        return at(f"@a2a-js/sdk {release}", version, make, *bindings, cause=cause)

    def compiled(peer: str, version: str, folder: str, *bindings: str, **how: Any) -> Cell:
        make = functools.partial(maker_of(peer), peer, version, folder, **how)
        return at(peer, version, make, *bindings)

    def client(
        peer: str, version: str, program: Callable[[], tuple[str, ...]], *bindings: str
    ) -> Cell:
        async def attempt() -> None:
            command = await asyncio.to_thread(program)
            for binding in bindings:
                try:
                    await client_to_pushkit(command, binding, version)
                except MismatchError as exc:
                    raise MismatchError(f"{binding}: {exc}") from exc

        named = ", ".join(bindings)
        return Cell(peer=peer, direction=ITS_CLIENT, version=version, scheme=named, attempt=attempt)

    in_go = functools.partial(go_program, PEERS / "go" / "a2a_go_2")
    in_python = functools.partial(python_client, "1.3.0")
    in_node = functools.partial(node_client, "1.3.0")
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
        compiled("trpc-a2a-go 0.2.5", "0.3", "trpc_0_2", rpc, profile=trpc),
        client("a2a-sdk 1.3.0", "1.0", in_python, rpc, rest),
        client("a2a-sdk 1.3.0 (0.3 client)", "0.3", in_python, rpc),
        client("@a2a-js/sdk 1.3.0", "1.0", in_node, rpc, rest),
        client("a2a-go 2.4.0", "1.0", in_go, rpc, rest, by_grpc),
        client("a2a-go 2.4.0 (0.3 client)", "0.3", in_go, rpc, by_grpc),
        compiled("a2a-java 0.3.3.Final", "0.3", "a2a_java_0_3", rpc, rest),
        compiled("a2a-server-lf 0.5.3 (Rust)", "1.0", "a2a_server_lf", rpc, rest),
        compiled("a2a-protocol-server 0.15.0 (Rust)", "1.0", "a2a_protocol", rpc, rest),
    ]
