"""Real peers, both ways: `make interop`, which writes docs/interop.md.

python -m tests.interop.matrix [--only a2a-js] [--write docs/interop.md]

Each cell starts its peer as a process, lets it do one task of four updates, and looks at what
arrived: a pass means every update, once, in order, verified by the scheme that is named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from pushkit import KeyRing, PushSender
from pushkit.bounded_json import JsonObject
from pushkit.integrations.aiohttp import jwks_route
from receiver import Notification, Receiver, SenderProfile, TaskPolicy, TrustedSender
from tests.interop.environments import (
    NODE,
    PEERS,
    ROOT,
    UnavailableError,
    node_modules,
    python_of,
)
from tests.interop.samples import UPDATES

TOKEN = "tok-interop-1"  # of a peer on loopback
CREDENTIALS = "cred-interop-1"
_PATIENCE = 20.0  # seconds


class MismatchError(Exception):
    """What arrived is not what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One thing that is tried.

    Attributes:
        peer: What stands at the other end.
        direction: Who sends to whom.
        version: The A2A version on the wire.
        scheme: What the receiving end verifies.
        attempt: Raises if it does not work.
        cause: Why it cannot, where the cause lies on the other side; and what a user can do.
    """

    peer: str
    direction: str
    version: str
    scheme: str
    attempt: Callable[[], Awaitable[None]]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent on an SDK: how it is started, and which A2A version its client speaks."""

    name: str
    command: tuple[str, ...]
    version: str
    sender: str = "sdk"
    credentials: bool = False


# --- processes -----------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running(*command: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a peer until the block ends, from the moment on at which it listens."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{PEERS}"},
    )
    try:
        await _listening(process, port)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(_PATIENCE):
        while True:
            if process.returncode is not None:
                _, errors = await process.communicate()
                last = errors.decode(errors="replace").strip().splitlines()[-1:]
                raise MismatchError(f"the peer ended by itself: {''.join(last)[:200]}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return


# --- an agent of an SDK, and pushkit's receiver --------------------------------------------------


@asynccontextmanager
async def receiving(sender: TrustedSender, folder: Path, port: int) -> AsyncIterator[list[Any]]:
    """Run a receiver that trusts one sender; yield the list of its callbacks."""
    receiver = Receiver(
        url=f"http://127.0.0.1:{port}",
        senders=[sender],
        database=folder / "inbox.db",
        allow=["127.0.0.1:*"],
    )
    called: list[Notification] = []

    @receiver.on_update()
    async def every_update(notification: Notification) -> None:
        called.append(notification)

    runner = web.AppRunner(receiver.app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield called
    finally:
        await runner.cleanup()


def trusted(agent: Agent, agent_port: int) -> TrustedSender:
    """Return how an agent is trusted: by its signature, or by a secret alone."""
    if agent.sender == "pushkit":
        url = f"http://127.0.0.1:{agent_port}"
        return TrustedSender(
            name="agent",
            issuer=url,
            jwks_url=f"{url}/.well-known/jwks.json",
            tokens=[TOKEN],
            tasks=TaskPolicy.ANY,
        )
    return TrustedSender(
        name="agent",
        profile=SenderProfile.UNSIGNED_SECRET_ONLY,
        tokens=[TOKEN],
        token_required=not agent.credentials,
        credentials=[f"Bearer {CREDENTIALS}"] if agent.credentials else [],
        tasks=TaskPolicy.ANY,
    )


async def agent_to_receiver(agent: Agent) -> None:
    """Let an agent do a task, and see that the receiver calls back for every update of it."""
    port, agent_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = (*agent.command, "--port", str(agent_port), "--sender", agent.sender)
        async with (
            running(*command, "--folder", name, port=agent_port),
            receiving(trusted(agent, agent_port), folder, port) as called,
        ):
            await _send_message(agent, agent_port, f"http://127.0.0.1:{port}/a2a/push")
            await _completed(called)
    _compare(agent, called)


async def _send_message(agent: Agent, port: int, hook: str) -> None:
    write = _of_1_0 if agent.version == "1.0" else _of_0_3
    call, headers = write({"url": hook, "token": TOKEN}, credentials=agent.credentials)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/", json=call, headers=headers) as answer,
    ):
        found = await answer.json(content_type=None)
        if "error" in found:
            raise MismatchError(f"the agent refused: {json.dumps(found['error'])[:200]}")


def _of_1_0(config: JsonObject, *, credentials: bool) -> tuple[JsonObject, dict[str, str]]:
    if credentials:
        config["authentication"] = {"scheme": "Bearer", "credentials": CREDENTIALS}
    message: JsonObject = {
        "messageId": uuid.uuid4().hex,
        "role": "ROLE_USER",
        "parts": [{"text": "hi"}],
    }
    params: JsonObject = {
        "message": message,
        "configuration": {"taskPushNotificationConfig": config},
    }
    call: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    return call, {"A2A-Version": "1.0"}


def _of_0_3(config: JsonObject, *, credentials: bool) -> tuple[JsonObject, dict[str, str]]:
    if credentials:
        config["authentication"] = {"schemes": ["Bearer"], "credentials": CREDENTIALS}
    message: JsonObject = {
        "kind": "message",
        "messageId": uuid.uuid4().hex,
        "role": "user",
        "parts": [{"kind": "text", "text": "hi"}],
    }
    configuration: JsonObject = {
        "acceptedOutputModes": ["text/plain"],
        "blocking": True,
        "pushNotificationConfig": config,
    }
    params: JsonObject = {"message": message, "configuration": configuration}
    return {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}, {}


async def _completed(called: list[Notification]) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            while not any(n.state is not None and n.state.terminal for n in called):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        states = [str(n.state) for n in called]
        raise MismatchError(f"no completed task arrived; what did: {states}") from None


def _compare(agent: Agent, called: list[Notification]) -> None:
    tasks = {n.task_id for n in called}
    if len(tasks) != 1:
        raise MismatchError(f"expected one task, found {len(tasks)}")
    versions = {n.update.origin.value for n in called if n.update.origin}
    if versions != {agent.version}:
        raise MismatchError(
            f"expected A2A {agent.version} on the wire, found {', '.join(versions)}"
        )
    if agent.sender == "pushkit" and [n.seq for n in called] != list(range(1, len(called) + 1)):
        raise MismatchError(f"expected every seq from 1 on, found {[n.seq for n in called]}")
    ids = [n.delivery_id for n in called]
    if len(set(ids)) != len(ids):
        raise MismatchError("an update was called back twice")


# --- pushkit's sender, and a webhook of somebody else's ------------------------------------------


@asynccontextmanager
async def sending(folder: Path, **options: Any) -> AsyncIterator[tuple[PushSender, str]]:
    """Run a sender and its JWK Set; yield it and its issuer."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}"
    push = PushSender(
        issuer=issuer,
        keys=KeyRing.create(datetime.now(UTC)),
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
        **options,
    )
    app = web.Application()
    app.add_routes([jwks_route(push)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with push:
            yield push, issuer
    finally:
        await runner.cleanup()


async def sender_to_jose() -> None:
    """Let a Node webhook verify with `jose` and a remote JWK Set."""
    port = free_port()
    modules = node_modules("js-verifiers", "jose@5", "standardwebhooks@1", "svix@1")
    with tempfile.TemporaryDirectory() as name:
        async with sending(Path(name)) as (push, issuer):
            command = (
                *(str(NODE), str(PEERS / "receiver.mjs"), "--port", str(port)),
                *("--modules", str(modules), "--issuer", issuer),
                *("--jwks", f"{issuer}/.well-known/jwks.json"),
            )
            async with running(*command, port=port) as peer:
                await push.subscribe(
                    "task-1",
                    {"url": f"http://127.0.0.1:{port}/hook", "token": TOKEN},
                    version="1.0",
                )
                for update in UPDATES:
                    await push.notify(update)
                await _verified(peer, len(UPDATES))


async def _verified(peer: asyncio.subprocess.Process, count: int) -> None:
    assert peer.stdout is not None
    async with asyncio.timeout(_PATIENCE):
        for seq in range(1, count + 1):
            said = json.loads(await peer.stdout.readline())
            if not said["ok"]:
                raise MismatchError(str(said["reason"])[:200])
            if (said["seq"], said["token"]) != (seq, TOKEN):
                raise MismatchError(f"expected seq {seq} with its token, found {said['seq']}")


# --- the matrix ----------------------------------------------------------------------------------


def _python_agent(release: str, **changes: Any) -> Agent:
    old = release.startswith("0.")
    requirement = f"a2a-sdk[http-server]=={release}"
    python = python_of(f"py-{release}", requirement, "uvicorn", "httpx")
    script = PEERS / ("agent_0_x.py" if old else "agent_1_x.py")
    wire = changes.pop("version", "0.3" if old else "1.0")
    return Agent(f"a2a-sdk {release}", (str(python), str(script)), wire, **changes)


def _node_agent(release: str, **changes: Any) -> Agent:
    old = release.startswith("0.")
    modules = node_modules(f"js-{release}", f"@a2a-js/sdk@{release}", "express@4")
    script = PEERS / ("agent_0_3.mjs" if old else "agent_1.mjs")
    command = (str(NODE), str(script), "--modules", str(modules))
    return Agent(f"@a2a-js/sdk {release}", command, "0.3" if old else "1.0", **changes)


def _agent_cell(
    make: Callable[..., Agent], release: str, *, cause: str = "", **changes: Any
) -> Cell:
    pushkit = changes.get("sender") == "pushkit"
    name = "a2a-sdk" if make is _python_agent else "@a2a-js/sdk"
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
    own = [_agent_cell(_python_agent, v) for v in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")]
    own += [
        _agent_cell(_python_agent, "1.3.0", credentials=True),
        _agent_cell(_python_agent, "1.3.0", version="0.3", cause=_COMPAT),
        _agent_cell(_node_agent, "0.3.14"),
        _agent_cell(_node_agent, "1.0.1", credentials=True),
        _agent_cell(_node_agent, "1.3.0", credentials=True),
        _agent_cell(_node_agent, "1.3.0"),
    ]
    inside = [
        _agent_cell(_python_agent, version, sender="pushkit")
        for version in ("0.2.16", "0.3.26", "1.0.3", "1.3.0")
    ]
    inside += [
        _agent_cell(_python_agent, version, sender="pushkit", version="0.3")
        for version in ("1.0.3", "1.3.0")
    ]
    jose = Cell(
        peer="jose (Node)",
        direction="pushkit → its webhook",
        version="1.0",
        scheme="JWT, remote JWK Set",
        attempt=sender_to_jose,
    )
    return [*own, *inside, jose]


async def outcome(cell: Cell) -> tuple[bool, str]:
    """Try a cell; return whether it passed, and the reason if not."""
    try:
        await cell.attempt()
    except UnavailableError as exc:
        return False, f"not tried: {exc}"
    except MismatchError as exc:
        return False, str(exc)
    except TimeoutError:
        return False, f"nothing for {_PATIENCE:.0f} s"
    return True, ""


_HEAD = """# Interoperability

What `make interop` saw: real peers from their registries, each as a process of its own, one task of
several updates each. A pass means that every update arrived, once, in order, and verified by the
scheme that is named. A fail names its cause, and what you can do about it.

| peer | direction | A2A | scheme | result |
|---|---|---|---|---|
"""


async def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Only peers whose name contains this.")
    parser.add_argument("--write", type=Path, help="Where the table goes.")
    arguments = parser.parse_args()
    lines, broken = [], 0
    for cell in cells():
        if arguments.only and arguments.only not in cell.peer:
            continue
        passed, reason = await outcome(cell)
        known = bool(cell.cause) and not passed
        broken += not passed and not known
        result = "pass" if passed else f"fail: {cell.cause if known else reason}"
        line = f"| {cell.peer} | {cell.direction} | {cell.version} | {cell.scheme} | {result} |"
        sys.stdout.write(line + (f" ({reason})" if known else "") + "\n")
        sys.stdout.flush()
        lines.append(line)
    if arguments.write is not None and not arguments.only:
        arguments.write.write_text(_HEAD + "\n".join(lines) + "\n", "utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
