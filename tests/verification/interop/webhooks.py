"""pushkit's sender, and webhooks that verify by somebody else's library."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from pushkit import (
    Algorithm,
    Artifact,
    ArtifactUpdate,
    KeyRing,
    PushSender,
    Scheme,
    SenderOptions,
    Signing,
    StatusUpdate,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.integrations.aiohttp import jwks_route
from pushkit.integrations.push_config_api import PushConfigApi, push_config_app
from tests.ports import free_port
from tests.served import served
from tests.verification.interop.environments import PEERS, go_program, node, node_modules
from tests.verification.interop.processes import (
    PATIENCE,
    TOKEN,
    MismatchError,
    line_of,
    running,
)
from tests.verification.interop.verifiers import SECRET, Library, verifying

__all__ = [
    "UPDATES",
    "config_api",
    "sender_to_jose",
    "sender_to_library",
    "sender_to_node_library",
    "sender_to_trpc",
    "sending",
    "signed_by",
]

OWNER = "alice"
_NODE_VERIFIERS = ("jose@5", "standardwebhooks@1", "svix@1")


def _status(state: TaskState) -> StatusUpdate:
    return StatusUpdate(task_id="task-1", context_id="context-1", status=TaskStatus(state=state))


# One task, as every sender here sends it.
UPDATES = (
    _status(TaskState.SUBMITTED),
    _status(TaskState.WORKING),
    ArtifactUpdate(
        task_id="task-1",
        context_id="context-1",
        artifact=Artifact(artifact_id="result", parts=(TextPart(text="héllo <b>&"),)),
        last_chunk=True,
    ),
    _status(TaskState.COMPLETED),
)


def config_api(push: PushSender) -> PushConfigApi:
    """Return the API that clients register at; task-1 is everybody's."""
    return PushConfigApi(push, task_exists=lambda _, task_id: task_id == "task-1")


@asynccontextmanager
async def sending(
    folder: Path, algorithm: Algorithm = Algorithm.ES256, **options: Any
) -> AsyncIterator[tuple[PushSender, str]]:
    """Run a sender, its JWK Set and its push-config API (/a2a); yield it and its issuer."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    push = PushSender(
        issuer=issuer,
        keys=KeyRing.create(datetime.now(UTC), algorithm),
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
        **options,
    )
    app = web.Application()
    app.add_routes([jwks_route(push)])
    app.add_subapp("/a2a", push_config_app(config_api(push), owner=lambda _: OWNER))
    async with served(app, port), push:
        yield push, issuer


async def sender_to_jose() -> None:
    """Let a Node webhook verify with `jose` and a remote JWK Set."""
    port = free_port()
    modules = node_modules("js-verifiers", *_NODE_VERIFIERS)
    with tempfile.TemporaryDirectory() as name:
        async with sending(Path(name)) as (push, issuer):
            command = (
                *(node(), str(PEERS / "receiver.mjs"), "--port", str(port)),
                *("--modules", str(modules), "--issuer", issuer),
                *("--jwks", f"{issuer}/.well-known/jwks.json"),
            )
            async with running(*command, port=port) as peer:
                for seq, said in enumerate(await _all_held(push, port, peer), 1):
                    if (said["seq"], said["token"]) != (seq, TOKEN):
                        raise MismatchError(f"expected seq {seq}, found {said['seq']}")


async def sender_to_trpc() -> None:
    """Let trpc-a2a-go verify by our JWK Set. It takes RS256 alone."""
    port = free_port()
    program = await asyncio.to_thread(go_program, PEERS / "go" / "trpc_0_2")
    with tempfile.TemporaryDirectory() as name:
        async with sending(Path(name), Algorithm.RS256) as (push, issuer):
            jwks = f"{issuer}/.well-known/jwks.json"
            async with running(*program, "--port", str(port), "--jwks", jwks, port=port) as peer:
                await _all_held(push, port, peer)


async def sender_to_node_library(library: str) -> None:
    """Let a Node webhook verify Standard Webhooks signatures with a library."""
    port = free_port()
    modules = node_modules("js-verifiers", *_NODE_VERIFIERS)
    command = (
        *(node(), str(PEERS / "webhook_library.mjs"), "--port", str(port)),
        *("--modules", str(modules), "--library", library, "--secret", SECRET),
    )
    with tempfile.TemporaryDirectory() as name:
        async with (
            sending(Path(name), options=signed_by(Scheme.STANDARD_WEBHOOKS)) as (push, _),
            running(*command, port=port) as peer,
        ):
            await _all_held(push, port, peer)


async def sender_to_library(library: Library, scheme: Scheme) -> None:
    """Let a Python webhook verify with a library."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        async with (
            sending(Path(name), options=signed_by(scheme)) as (push, issuer),
            verifying(library, issuer, port) as said,
        ):
            await _notify(push, port)
            async with asyncio.timeout(PATIENCE):
                for _update in UPDATES:
                    if (reason := await said.get()) is not None:
                        raise MismatchError(reason[:200])


def signed_by(*schemes: Scheme) -> SenderOptions:
    """Return the options of a sender that signs by these schemes."""
    secrets = [SECRET] if Scheme.STANDARD_WEBHOOKS in schemes else []
    return SenderOptions(signing=Signing(schemes=schemes, webhook_secrets=secrets))


async def _all_held(
    push: PushSender, port: int, peer: asyncio.subprocess.Process
) -> list[dict[str, Any]]:
    """Send all updates to a peer, and see that it accepts them; return what it says of each."""
    await _notify(push, port)
    told = []
    for _update in UPDATES:
        told.append(said := json.loads(await line_of(peer, b"{")))
        if not said["ok"]:
            raise MismatchError(str(said["reason"])[:200])
    return told


async def _notify(push: PushSender, port: int) -> None:
    hook = {"url": f"http://127.0.0.1:{port}/hook?a=%2F&b", "token": TOKEN}
    await push.subscribe("task-1", hook, version="1.0")
    for update in UPDATES:
        await push.notify(update)
