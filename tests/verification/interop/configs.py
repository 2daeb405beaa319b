"""Peers' clients before pushkit's push-config API, in every binding that it serves."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2_grpc

from pushkit import PushSender
from pushkit.integrations.push_config_api import PushConfigApi
from pushkit.integrations.push_config_api.grpc import PushConfigServicer, PushConfigServicerV03
from tests.ports import free_port
from tests.verification.interop.agents import (
    CREDENTIALS,
    check_version,
    completed,
    receiving,
    trusted_pushkit,
)
from tests.verification.interop.processes import PATIENCE, TOKEN, MismatchError
from tests.verification.interop.samples import UPDATES
from tests.verification.interop.webhooks import OWNER, config_api, sending

__all__ = ["client_to_pushkit"]

BINDINGS = {"JSON-RPC": "JSONRPC", "HTTP+JSON": "HTTP+JSON", "gRPC": "GRPC"}


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


async def client_to_pushkit(command: tuple[str, ...], binding: str, version: str) -> None:
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
