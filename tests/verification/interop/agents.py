"""Agents on the SDKs, and pushkit's receiver: each does one task."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pushkit.a2a import ArtifactUpdate, TaskSnapshot, TextPart
from pushkit.bounded_json import JsonObject
from receiver import Notification, Receiver, SenderProfile, TaskPolicy, TrustedSender
from tests.ports import free_port
from tests.served import served
from tests.verification.interop.client import Client
from tests.verification.interop.environments import (
    NODE,
    PEERS,
    cargo_program,
    go_program,
    maven_program,
    node_modules,
    python_of,
)
from tests.verification.interop.processes import PATIENCE, TOKEN, MismatchError, end, running

__all__ = [
    "Agent",
    "agent_to_receiver",
    "artifacts_of",
    "go_agent",
    "java_agent",
    "maker_of",
    "node_agent",
    "node_client",
    "python_agent",
    "python_client",
    "registered_at_agent",
    "rust_agent",
]

CREDENTIALS = "cred-interop-1"


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent on an SDK: how it is started, and which A2A version its client speaks."""

    name: str
    command: tuple[str, ...]
    version: str
    sender: str = "sdk"
    credentials: bool = False
    profile: SenderProfile = SenderProfile.UNSIGNED_SECRET_ONLY
    stream: bool = False


def _python(release: str) -> str:
    requirement = f"a2a-sdk[http-server]=={release}"
    return str(python_of(f"py-{release}", requirement, "uvicorn", "httpx"))


def _modules(release: str) -> str:
    return str(node_modules(f"js-{release}", f"@a2a-js/sdk@{release}", "express@4"))


def python_client(release: str) -> tuple[str, ...]:
    """Return the command of a client on a release, installed where it is not yet."""
    return (_python(release), str(PEERS / "configs_1_x.py"))


def node_client(release: str) -> tuple[str, ...]:
    """Return the command of a client on a release, installed where it is not yet."""
    return (str(NODE), str(PEERS / "configs_1.mjs"), "--modules", _modules(release))


def python_agent(release: str, **changes: Any) -> Agent:
    """Return an agent on a release, installed where it is not yet."""
    old = release.startswith("0.")
    python = _python(release)
    script = PEERS / ("agent_0_x.py" if old else "agent_1_x.py")
    wire = changes.pop("version", "0.3" if old else "1.0")
    return Agent(f"a2a-sdk {release}", (python, str(script)), wire, **changes)


def node_agent(release: str, **changes: Any) -> Agent:
    """Return an agent on a release, installed where it is not yet."""
    old = release.startswith("0.")
    script = PEERS / ("agent_0_3.mjs" if old else "agent_1.mjs")
    command = (str(NODE), str(script), "--modules", _modules(release))
    return Agent(f"@a2a-js/sdk {release}", command, "0.3" if old else "1.0", **changes)


def go_agent(name: str, version: str, folder: str, **changes: Any) -> Agent:
    """Return an agent in Go, built where it is not yet."""
    return Agent(name, go_program(PEERS / "go" / folder), version, **changes)


def rust_agent(name: str, version: str, folder: str, **changes: Any) -> Agent:
    """Return an agent in Rust, built where it is not yet."""
    return Agent(name, cargo_program(PEERS / "rust" / folder, "agent"), version, **changes)


def java_agent(name: str, version: str, folder: str, **changes: Any) -> Agent:
    """Return an agent in Java, built where it is not yet."""
    return Agent(name, maven_program(PEERS / "java" / folder), version, **changes)


_LANGUAGES: dict[str, Callable[..., Agent]] = {
    "a2a-go": go_agent,
    "trpc": go_agent,
    "a2a-java": java_agent,
    "a2a-server-lf": rust_agent,
    "a2a-protocol": rust_agent,
}


def maker_of(peer: str) -> Callable[..., Agent]:
    """Return what builds an agent of a peer, by its language."""
    return next(make for start, make in _LANGUAGES.items() if peer.startswith(start))


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

    async with served(receiver.app(), port):
        yield called


def trusted(agent: Agent, agent_port: int) -> TrustedSender:
    """Return how an agent is trusted: by its signature, or by a secret alone."""
    url = f"http://127.0.0.1:{agent_port}"
    if agent.sender == "pushkit":
        return TrustedSender(
            name="agent",
            issuer=url,
            jwks_url=f"{url}/.well-known/jwks.json",
            tokens=[TOKEN],
            tasks=TaskPolicy.ANY,
        )
    if agent.profile.signed:
        return TrustedSender(
            name="agent",
            profile=agent.profile,
            jwks_url=f"{url}/.well-known/jwks.json",
            token_required=False,
            tasks=TaskPolicy.ANY,
        )
    return TrustedSender(
        name="agent",
        profile=agent.profile,
        tokens=[TOKEN],
        token_required=not agent.credentials,
        credentials=[f"Bearer {CREDENTIALS}"] if agent.credentials else [],
        tasks=TaskPolicy.ANY,
    )


async def agent_to_receiver(agent: Agent) -> list[Notification]:
    """Let an agent do a task, and see that the receiver calls back for every update of it.

    Returns the notifications.
    """
    port, agent_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = (*agent.command, "--port", str(agent_port), "--sender", agent.sender)
        async with (
            running(*command, "--folder", name, port=agent_port) as process,
            receiving(trusted(agent, agent_port), folder, port) as called,
        ):
            client = Client(url=f"http://127.0.0.1:{agent_port}/", version=agent.version)
            config = _config(agent, f"http://127.0.0.1:{port}/a2a/push")
            await client.send("hi", stream=agent.stream, config=config)
            await completed(called)
            await end(process)
    versions = {n.update.origin.value for n in called if n.update.origin}
    if versions != {agent.version}:
        raise MismatchError(
            f"expected A2A {agent.version} on the wire, found {', '.join(versions)}"
        )
    seqs = [n.seq for n in called if n.seq is not None]
    if agent.sender == "pushkit" and (seqs != sorted(seqs) or len(seqs) != len(called)):
        raise MismatchError(f"expected rising seqs, found {[n.seq for n in called]}")
    ends = [str(n.state) for n in called if n.state is not None and n.state.terminal]
    if agent.sender == "pushkit" and len(ends) != 1:
        raise MismatchError(f"expected the task's end once, found {ends}")
    _compare(called)
    return called


def artifacts_of(called: list[Notification]) -> list[str]:
    """Return the texts of a task's artifacts, as a client puts them together."""
    texts: dict[str, str] = {}
    for update in (each.update for each in called):
        chunks = update.task.artifacts if isinstance(update, TaskSnapshot) else ()
        append = isinstance(update, ArtifactUpdate) and update.append
        if isinstance(update, ArtifactUpdate):
            chunks = (update.artifact,)
        for artifact in chunks:
            before = texts.get(artifact.artifact_id, "") if append else ""
            said = (part.text for part in artifact.parts if isinstance(part, TextPart))
            texts[artifact.artifact_id] = before + "".join(said)
    return [text.strip() for text in texts.values()]


async def registered_at_agent(agent: Agent, binding: str) -> None:
    """Register a webhook for a task that waits, by a binding of A2A, and let the task go on."""
    port, agent_port, grpc_port = free_port(), free_port(), free_port()
    hook = f"http://127.0.0.1:{port}/a2a/push"
    client = Client(
        url=f"http://127.0.0.1:{agent_port}/",
        version=agent.version,
        grpc=f"127.0.0.1:{grpc_port}",
    )
    command = (*agent.command, "--port", str(agent_port))
    if binding == "gRPC":
        command += ("--grpc-port", str(grpc_port))
    with tempfile.TemporaryDirectory() as name:
        async with (
            running(*command, port=agent_port),
            receiving(trusted(agent, agent_port), Path(name), port) as called,
        ):
            task = await client.send("wait")
            found = await client.register(binding, str(task["id"]), hook, TOKEN)
            if found != hook:
                raise MismatchError(f"expected the URL that was registered, found {found}")
            await client.send("go on", task=task)
            await completed(called)
    _compare(called)  # in which version it sends is another question


def _config(agent: Agent, hook: str) -> JsonObject:
    config: JsonObject = {"url": hook, "token": TOKEN}
    if agent.credentials and agent.version == "1.0":
        config["authentication"] = {"scheme": "Bearer", "credentials": CREDENTIALS}
    elif agent.credentials:
        config["authentication"] = {"schemes": ["Bearer"], "credentials": CREDENTIALS}
    return config


async def completed(called: list[Notification]) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not any(n.state is not None and n.state.terminal for n in called):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        states = [str(n.state) for n in called]
        raise MismatchError(f"no completed task arrived; what did: {states}") from None


def _compare(called: list[Notification]) -> None:
    tasks = {n.task_id for n in called}
    if len(tasks) != 1:
        raise MismatchError(f"expected one task, found {len(tasks)}")
    ids = [n.delivery_id for n in called]
    if len(set(ids)) != len(ids):
        raise MismatchError("an update was called back twice")
