"""Push configs: at every peer's agent, and by peers' clients at ours, in every binding."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2_grpc

from pushkit import PushSender
from pushkit.integrations.push_config_api import PushConfigApi
from pushkit.integrations.push_config_api.grpc import PushConfigServicer, PushConfigServicerV03
from receiver import SenderProfile
from tests.ports import free_port
from tests.verification.interop.agents import (
    CREDENTIALS,
    agent_of,
    check_version,
    command_of,
    completed,
    receiving,
    registered_at_agent,
    trusted_pushkit,
    version_of,
)
from tests.verification.interop.cell import Cause, Cell, Direction
from tests.verification.interop.processes import PATIENCE, TOKEN, MismatchError
from tests.verification.interop.webhooks import OWNER, UPDATES, config_api, sending

__all__ = ["config_cells"]

BINDINGS = {"JSON-RPC": "JSONRPC", "HTTP+JSON": "HTTP+JSON", "gRPC": "GRPC"}
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

    return _in_each(bindings, attempt, peer=peer, direction=Direction.AT_ITS_AGENT, cause=cause)


def _client(peer: str, program: str, *bindings: str) -> Cell:
    """Return the cell of configs by a peer's client."""

    async def attempt(binding: str) -> None:
        command = await asyncio.to_thread(command_of, peer, program)
        await _client_to_pushkit(command, binding, version_of(peer))

    return _in_each(bindings, attempt, peer=peer, direction=Direction.ITS_CLIENT)


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


# --- a client, and the API ----------------------------------------------------------------------


@asynccontextmanager
async def _by_grpc(api: PushConfigApi) -> AsyncIterator[str]:
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(
        PushConfigServicer(api, owner=lambda _: OWNER), server
    )
    a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(
        PushConfigServicerV03(api, owner=lambda _: OWNER), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def _client_to_pushkit(command: tuple[str, ...], binding: str, version: str) -> None:
    """Let a peer's client register two configs, and remove one; then notify the other."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            sending(folder) as (push, issuer),
            _by_grpc(config_api(push)) as address,
            receiving(trusted_pushkit(issuer, CREDENTIALS), folder, port) as called,
        ):
            hook = f"http://127.0.0.1:{port}/a2a/push"
            said = await _output_of(
                *(*command, "configs", "--url", address if binding == "gRPC" else f"{issuer}/a2a"),
                *("--binding", BINDINGS[binding], "--version", version, "--hook", hook),
            )
            _judge(said, hook)
            await _notified(push, version)
            await completed(called)
    check_version(called, version)


async def _output_of(*command: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        output, errors = await process.communicate()
    if process.returncode:
        raise MismatchError(f"its client says: {errors.decode().strip()[-200:]}")
    said: dict[str, Any] = json.loads(output)
    return said


def _judge(said: dict[str, Any], hook: str) -> None:
    """Hold what a client got against what the API promises; secrets are in no answer."""
    answers = [*said["created"], said["read"], *said["before"], *said["after"]]
    found = [(config["id"], config["taskId"], config["url"]) for config in answers]
    kept, gone = (("kept", "task-1", hook), ("gone", "task-1", hook))
    if found != [kept, gone, gone, gone, kept, kept]:
        raise MismatchError(f"expected the configs in the order of the calls, found {found}"[:300])
    if TOKEN in str(answers) or CREDENTIALS in str(answers):
        raise MismatchError("an answer has a secret in it")
    if not said["missing"] or not said["foreign"]:
        raise MismatchError("the client does not know the error as a task that is not found")


async def _notified(push: PushSender, version: str) -> None:
    if [str(each.version.value) for each in await push.subscribers("task-1")] != [version]:
        raise MismatchError("expected one config of the version of the binding")
    await push.notify(UPDATES[0])
    await push.notify(UPDATES[-1])
