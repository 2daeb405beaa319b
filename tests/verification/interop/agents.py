"""Agents on the SDKs, and pushkit's receiver: each does one task."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pushkit.a2a import ArtifactUpdate, TaskSnapshot, TextPart
from pushkit.bounded_json import JsonObject
from receiver import Notification, Receiver, SenderProfile, TaskPolicy, TrustedSender
from tests.eventually import eventually
from tests.ports import free_port
from tests.served import served
from tests.verification.interop.cell import Cause, Cell, Direction
from tests.verification.interop.client import Client
from tests.verification.interop.environments import (
    PEERS,
    cargo_program,
    go_program,
    maven_program,
    node,
    node_modules,
    python_of,
)
from tests.verification.interop.processes import PATIENCE, TOKEN, MismatchError, end, running

__all__ = [
    "Agent",
    "agent_cell",
    "agent_of",
    "agent_to_receiver",
    "artifacts_of",
    "check_order",
    "check_version",
    "command_of",
    "registered_at_agent",
    "trusted_pushkit",
    "version_of",
]

CREDENTIALS = "cred-interop-1"


# The A2A version of each peer that is built, and the folder of its agent; its language comes first.
_BUILT = {
    "a2a-go 0.3.15": ("0.3", "go/a2a_go_0_3"),
    "a2a-go 2.4.0": ("1.0", "go/a2a_go_2"),
    "trpc-a2a-go 0.2.5": ("0.3", "go/trpc_0_2"),
    "a2a-java 0.3.3.Final": ("0.3", "java/a2a_java_0_3"),
    "a2a-server-lf 0.5.3": ("1.0", "rust/a2a_server_lf"),
    "a2a-protocol-server 0.15.0": ("1.0", "rust/a2a_protocol"),
}
_BUILDERS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "go": go_program,
    "java": maven_program,
    "rust": lambda source: cargo_program(source, "agent"),
}
# The A2A version of each framework in Python, and what is installed for it.
_FRAMEWORKS = {
    "google-adk 2.13.0": ("1.0", "google-adk[a2a]==2.13.0"),
    "google-adk 1.39.1": ("0.3", "google-adk[a2a]==1.39.1"),
    "strands-agents 1.62.0": ("0.3", "strands-agents[a2a]==1.62.0"),
    "agent-framework-a2a 1.0.0b261022": (
        *("1.0", "agent-framework-a2a==1.0.0b261022", "a2a-sdk[http-server]"),
    ),
    "crewai 1.15.30": ("0.3", "crewai[a2a]==1.15.30"),
    "pydantic-ai 2.62.0": ("1.0", "pydantic-ai==2.62.0", "fasta2a==2.1.1"),
    "langgraph-api 0.16.7": ("1.0", "langgraph-api==0.16.7", "langgraph-cli[inmem]"),
    "a2akit 0.0.32": ("0.3", "a2akit==0.0.32"),
    "agno 3.1.10": (
        *("0.3", "agno==3.1.10", "a2a-sdk[http-server]<1", "fastapi", "python-multipart"),
    ),
}


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent: how it is started, and which A2A version its client speaks."""

    command: tuple[str, ...]
    version: str
    sender: str = "sdk"
    credentials: bool = False
    profile: SenderProfile = SenderProfile.UNSIGNED_SECRET_ONLY
    stream: bool = False


def version_of(peer: str) -> str:
    """Return the A2A version in which a peer is spoken to, by its name in the tables."""
    name = peer.partition(" (")[0]
    version, *_ = _BUILT.get(name) or _FRAMEWORKS.get(name) or ("0.3" if " 0." in name else "1.0",)
    return "0.3" if "(0.3 client)" in peer else version


def command_of(peer: str, *program: str) -> tuple[str, ...]:
    """Return the command of a peer's agent, or of another program of `peers` on that release.

    It is installed, or built, where it is not yet.
    """
    name = peer.partition(" (")[0]
    if name in _BUILT:
        folder = _BUILT[name][1]
        return _BUILDERS[folder.partition("/")[0]](PEERS / folder)
    sdk, _, release = name.partition(" ")
    if sdk == "@a2a-js/sdk":
        modules = node_modules(f"js-{release}", f"{sdk}@{release}", "express@4")
        script = program[0] if program else "agent_0_3.mjs" if " 0." in name else "agent_1.mjs"
        return (node(), str(PEERS / script), "--modules", str(modules))
    if name in _FRAMEWORKS:
        requirements = _FRAMEWORKS[name][1:]
        python = python_of(f"framework-{name.replace(' ', '-')}", *requirements, "uvicorn")
    else:
        requirement = f"{sdk}[http-server]=={release}"
        python = python_of(f"py-{release}", requirement, "uvicorn", "httpx")
    script, *more = program or ("agent_0_x.py" if " 0." in name else "agent_1_x.py",)
    return (str(python), str(PEERS / script), *more)


def agent_of(peer: str, *program: str, **details: Any) -> Agent:
    """Return the agent of a peer (see `command_of`)."""
    return Agent(command_of(peer, *program), version_of(peer), **details)


def agent_cell(
    attempt: Callable[[Agent], Awaitable[str | None]],
    peer: str,
    *program: str,
    direction: Direction,
    scheme: str,
    cause: Cause | None = None,
    **details: Any,
) -> Cell:
    """Return a cell in which something is tried with a peer's agent."""

    async def with_agent() -> str | None:
        return await attempt(await asyncio.to_thread(agent_of, peer, *program, **details))

    return Cell(
        peer=peer,
        direction=direction,
        version=version_of(peer),
        scheme=scheme,
        attempt=with_agent,
        cause=cause,
    )


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
        return trusted_pushkit(url)
    how: dict[str, Any] = {"name": "agent", "profile": agent.profile, "tasks": TaskPolicy.ANY}
    if agent.profile.signed:
        jwks_url = f"{url}/.well-known/jwks.json"
        return TrustedSender(jwks_url=jwks_url, token_required=False, **how)
    credentials = [f"Bearer {CREDENTIALS}"] if agent.credentials else []
    return TrustedSender(
        tokens=[TOKEN], token_required=not credentials, credentials=credentials, **how
    )


def trusted_pushkit(url: str, *credentials: str) -> TrustedSender:
    """Return how an agent that sends with pushkit is trusted."""
    return TrustedSender(
        name="agent",
        issuer=url,
        jwks_url=f"{url}/.well-known/jwks.json",
        tokens=[TOKEN],
        credentials=[f"Bearer {each}" for each in credentials],
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
    check_version(called, agent.version)
    if agent.sender == "pushkit":
        check_order(called)
    _compare(called)
    return called


def check_version(called: Sequence[Notification], version: str) -> None:
    """Check in which version of A2A notifications came."""
    versions = {n.update.origin.value for n in called if n.update.origin}
    if versions != {version}:
        raise MismatchError(f"expected A2A {version} on the wire, found {', '.join(versions)}")


def check_order(called: Sequence[Notification]) -> None:
    """Check that notifications of pushkit, of one task, have rising seqs, and end once."""
    seqs = [n.seq for n in called if n.seq is not None]
    if seqs != sorted(set(seqs)) or len(seqs) != len(called):
        raise MismatchError(f"expected rising seqs, found {[n.seq for n in called]}")
    ends = [str(n.state) for n in called if n.state is not None and n.state.terminal]
    if len(ends) != 1:
        raise MismatchError(f"expected the task's end once, found {ends}")


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
    def is_over() -> bool:
        return any(n.state is not None and n.state.terminal for n in called)

    try:
        await eventually(is_over, within=PATIENCE)
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
