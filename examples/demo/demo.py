"""The demo of both sides on one machine: `make demo`.

It runs three processes on loopback: an a2a-sdk agent with pushkit inside, the receiver service, and
this client, which sends a message with a push config and prints the callbacks as they arrive. Then
it makes five attacks, and prints how each is refused. The exit status is 0 only if all checks pass.

With `--trace` the three processes make OpenTelemetry spans, and the demo prints the trace of the
task as a tree: `make demo TRACE=1`. With `--prometheus`, a Prometheus scrapes both sides: `make
demo PROMETHEUS=1`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import aiohttp
import httpx
from a2a.client import ClientConfig, create_client
from a2a.helpers import new_text_message
from a2a.types import (
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)

from pushkit import Algorithm, load_key_ring
from pushkit.keys.jwk import generate_key
from pushkit.webhook import WebhookRequest
from receiver.testing import Draft, SigningAgent

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

EXAMPLES = Path(__file__).resolve().parent.parent
DEADLINE = 120.0

COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
BOLD, DIM, GREEN, RED, OFF = (
    ("\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m") if COLOUR else ("",) * 5
)

CONFIG = """
url = "{receiver}"
listen = "127.0.0.1:{port}"

[[senders]]
name = "counting-agent"
issuer = "{agent}"
jwks_url = "{agent}/.well-known/jwks.json"
tasks = "bind"

[[callbacks]]
call = "demo_handlers:show"
"""

HANDLERS = """
import json
from datetime import UTC, datetime


def show(notification):
    status = getattr(notification.update, "status", None)
    print("CALLBACK " + json.dumps({
        "kind": notification.kind.value,
        "state": notification.state.value if notification.state else None,
        "task": notification.task_id,
        "seq": notification.seq,
        "sender": notification.sender,
        "kid": notification.kid,
        "said_at": status.timestamp.isoformat() if status and status.timestamp else None,
        "now": datetime.now(UTC).isoformat(),
    }), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The processes of the demo, and the callbacks that arrived."""

    folder: Path
    agent: str
    receiver: str
    ops: str
    callbacks: asyncio.Queue[dict[str, object]]

    @property
    def webhook(self) -> str:
        """The URL for notifications."""
        return f"{self.receiver}/a2a/push"


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def world(folder: Path, *, traced: bool, scraped: bool) -> AsyncIterator[World]:
    """Run the agent and the receiver as processes until the block ends."""
    agent_port, receiver_port, ops = free_port(), free_port(), f"127.0.0.1:{free_port()}"
    agent, receiver = f"http://127.0.0.1:{agent_port}", f"http://127.0.0.1:{receiver_port}"
    config = CONFIG.format(agent=agent, receiver=receiver, port=receiver_port)
    agent_program: tuple[str | Path, ...] = (EXAMPLES / "a2a_sdk_agent" / "agent.py",)
    receiver_program: tuple[str | Path, ...] = ("-m", "receiver.cli")
    if traced:
        config = f"tracing = true\n{config}"
        agent_program = (EXAMPLES / "demo" / "traced.py", "agent")
        receiver_program = (EXAMPLES / "demo" / "traced.py", "receiver")
    if scraped:
        config = f'ops_listen = "{ops}"\n{config}'
        agent_program = (EXAMPLES / "demo" / "scraped.py",)
    (folder / "receiver.toml").write_text(config)
    (folder / "demo_handlers.py").write_text(HANDLERS)
    run(folder, "-m", "pushkit.cli.main", "keys", "new", "keys.json")
    callbacks: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    async with process(folder, *agent_program, "--port", str(agent_port), "--allow", "127.0.0.1:*"):
        # Without the agent's keys, the receiver would answer the first update with 503.
        await until_answering(f"{agent}/.well-known/jwks.json")
        async with process(
            folder, *receiver_program, "serve", "--config", "receiver.toml", callbacks=callbacks
        ):
            await until_answering(receiver)
            yield World(folder=folder, agent=agent, receiver=receiver, ops=ops, callbacks=callbacks)


def run(folder: Path, *arguments: str | Path) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        process_group=0,  # Ctrl-C is for the demo, which ends after this
    )
    return done.stdout


@contextlib.asynccontextmanager
async def process(
    folder: Path,
    *arguments: str | Path,
    callbacks: asyncio.Queue[dict[str, object]] | None = None,
) -> AsyncIterator[None]:
    """Run a process until the block ends; its output goes to the queue, or to a log file."""
    with (folder / f"{secrets.token_hex(4)}.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            *map(str, arguments),
            cwd=folder,
            stderr=log,
            stdout=asyncio.subprocess.PIPE if callbacks is not None else log,
            process_group=0,  # Ctrl-C is for the demo, which ends this: it may still be asked
        )
        reading = (
            asyncio.create_task(read_callbacks(running.stdout, callbacks))
            if running.stdout is not None and callbacks is not None
            else None
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has failed
                running.terminate()
            await running.wait()
            if reading is not None:
                await reading


async def read_callbacks(
    output: asyncio.StreamReader, callbacks: asyncio.Queue[dict[str, object]]
) -> None:
    """Queue every callback that the receiver's handler prints."""
    async for line in output:
        if line.startswith(b"CALLBACK "):
            await callbacks.put(json.loads(line.removeprefix(b"CALLBACK ")))


async def until_answering(url: str) -> None:
    """Wait until a URL answers."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(DEADLINE):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(url):
                    return
            await asyncio.sleep(0.1)


# --- the client --------------------------------------------------------------------------------


def expect(folder: Path) -> dict[str, str]:
    """Let the receiver mint a token, and return the push config for the agent."""
    printed = run(folder, "-m", "receiver.cli", "expect", "--config", "receiver.toml")
    config: dict[str, str] = json.loads(printed)
    return config


async def send_message(agent: str, config: dict[str, str], tracer: Tracer | None) -> str:
    """Send a message with a push config, and return the id of the task without waiting for it."""
    if tracer is None:
        return await _send_message(agent, config, {})
    from opentelemetry import propagate

    with tracer.start_as_current_span("send a message"):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        return await _send_message(agent, config, headers)


async def _send_message(agent: str, config: dict[str, str], headers: dict[str, str]) -> str:
    http = httpx.AsyncClient(headers=headers)
    client = await create_client(
        agent, ClientConfig(streaming=False, polling=True, httpx_client=http)
    )
    request = SendMessageRequest(
        message=new_text_message("Please count.", role=Role.ROLE_USER),
        configuration=SendMessageConfiguration(
            return_immediately=True,
            task_push_notification_config=TaskPushNotificationConfig(**config),
        ),
    )
    task_id = ""
    async for event in client.send_message(request):
        task_id = event.task.id
    await client.close()
    return task_id


async def watch(callbacks: asyncio.Queue[dict[str, object]], task_id: str) -> int:
    """Print every callback of a task until it is completed; return how many there were."""
    print(f"{BOLD}{'seq':>5}  {'update':16} {'state':12} {'signed by':26} latency{OFF}")
    count = 0
    async with asyncio.timeout(DEADLINE):
        while True:
            callback = await callbacks.get()
            if callback["task"] != task_id:
                continue
            count += 1
            print(
                f"{callback['seq']!s:>5}  {callback['kind']!s:16} {callback['state'] or '-'!s:12} "
                f"{callback['sender']} {str(callback['kid'])[:8]}… {latency(callback):>9}"
            )
            if callback["state"] == "completed":
                return count


def latency(callback: dict[str, object]) -> str:
    """Return the time from the agent's status to the callback."""
    if not callback["said_at"]:
        return "-"
    said, now = (datetime.fromisoformat(str(callback[name])) for name in ("said_at", "now"))
    return f"{(now - said) / timedelta(milliseconds=1):.0f} ms"


# --- the attacks -------------------------------------------------------------------------------


def attacks(genuine: Draft) -> Iterator[tuple[str, Draft, tuple[int, str]]]:
    """Yield the five attacks, made from a genuine notification, with the expected refusals."""
    other_body = genuine.body.replace(b"WORKING", b"COMPLETED")
    stranger = generate_key(Algorithm.ES256)
    long_ago = datetime.now(UTC) - timedelta(minutes=6)
    yield "altered body", replace(genuine, body_sent=other_body), (401, "digest_mismatch")
    yield "replayed id, another body", replace(genuine, body=other_body), (409, "id_conflict")
    yield "stale timestamp", replace(genuine, issued_at=long_ago), (401, "stale_timestamp")
    yield "wrong token", replace(genuine, token="guessed"), (401, "invalid_token")
    yield "unknown key", replace(genuine, key=stranger), (401, "invalid_signature")


async def attack(here: World) -> bool:
    """Send a genuine request, its retry, and the five attacks; return whether all checks pass."""
    agent = SigningAgent(
        webhook_url=here.webhook,
        issuer=here.agent,
        token=expect(here.folder)["token"],
        key=load_key_ring(here.folder / "keys.json").signing_key(datetime.now(UTC)),
    )
    genuine = agent.draft("demo-task")
    passed = True
    async with aiohttp.ClientSession() as session:
        for name, draft, wanted in (
            ("genuine request", genuine, (202, "")),
            ("its retry (no callback)", genuine, (200, "")),
            *attacks(genuine),
        ):
            passed &= report(name, await post(session, draft.request()), wanted)
    called = [await here.callbacks.get()]
    await asyncio.sleep(0.5)
    while not here.callbacks.empty():
        called.append(here.callbacks.get_nowait())
    return report("callbacks for all of these", (len(called), ""), (1, "")) and passed


async def post(session: aiohttp.ClientSession, request: WebhookRequest) -> tuple[int, str]:
    """Post once; return status and problem code."""
    async with session.post(
        request.target, headers=list(request.headers), data=request.body
    ) as answer:
        problem = json.loads(await answer.read() or b"{}")
        return answer.status, problem.get("code", "")


def report(name: str, found: tuple[int, str], wanted: tuple[int, str]) -> bool:
    """Print the result of a check; return whether it passes."""
    passes = found == wanted
    mark = f"{GREEN}✓{OFF}" if passes else f"{RED}✗ expected {wanted[0]} {wanted[1]}{OFF}"
    print(f"  {mark} {name:30} {found[0]} {found[1]}")
    return passes


def print_trace(folder: Path, task_id: str) -> bool:
    """Print the trace of a task as a tree; return whether it is a single one of all processes."""
    from traced import spans_in, tree, without_the_sdks

    spans = without_the_sdks(spans_in(folder, task_id))
    processes = {each.process for each in spans}
    traces = {each.trace_id for each in spans}
    names = ", ".join(sorted(processes))
    print(f"\n{BOLD}{len(traces)} trace of {len(spans)} spans, of {names}{OFF}\n")
    print("\n".join(tree(spans)))
    return len(traces) == 1 and processes == {"client", "agent", "receiver"}


async def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(description="A real agent, the receiver, and five attacks.")
    wanted = parser.add_mutually_exclusive_group()
    wanted.add_argument("--trace", action="store_true", help="print the trace of the task")
    wanted.add_argument("--prometheus", action="store_true", help="have both sides scraped")
    given = parser.parse_args()
    traced, scraped = given.trace, given.prometheus
    if scraped and shutil.which("prometheus") is None:
        print("--prometheus: Prometheus is missing: apt install prometheus", file=sys.stderr)
        return 2
    if traced and not found_sdk():
        print(
            "--trace: OpenTelemetry's SDK is missing: pip install 'opentelemetry-sdk>=1.27'",
            file=sys.stderr,
        )
        return 2
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pushkit-demo-") as name:
        folder = Path(name)
        async with (
            world(folder, traced=traced, scraped=scraped) as here,
            watched(here, scraped=scraped) as report_metrics,
        ):
            print(f"{DIM}agent    {here.agent}  (a2a-sdk, pushkit inside)")
            print(f"receiver {here.receiver}  (receiver serve){OFF}\n")
            tracer = None
            if traced:
                from traced import record

                tracer = record("client", folder)
            task_id = await send_message(here.agent, expect(folder), tracer)
            print(f"The client sent a message; the agent runs task {task_id}.\n")
            count = await watch(here.callbacks, task_id)
            print(f"\n{count} updates, each signed, delivered in order and called back once.\n")
            print("Now five attacks:\n")
            passed = await attack(here)
            passed &= await report_metrics(count + 1)  # the genuine one of the attacks
        if traced:  # both processes have ended, so all their spans are written
            passed &= print_trace(folder, task_id)
    verdict = f"{GREEN}All checks passed{OFF}" if passed else f"{RED}Some checks failed{OFF}"
    print(f"\n{verdict}, in {time.monotonic() - began:.1f} s.")
    return 0 if passed else 1


@contextlib.asynccontextmanager
async def watched(here: World, *, scraped: bool) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """Let a Prometheus scrape both sides; yield a function that prints what it found."""

    async def skip(_updates: int) -> bool:
        return True

    if not scraped:
        yield skip
        return
    from scraped import scraping

    pages = {"agent": here.agent.removeprefix("http://"), "receiver": here.ops}
    async with scraping(here.folder, free_port(), pages) as prometheus:

        async def print_metrics(updates: int) -> bool:
            print("\nPrometheus has scraped both sides:\n")
            return await prometheus.report(updates)

        yield print_metrics


def found_sdk() -> bool:
    """Return whether OpenTelemetry's SDK is installed."""
    try:
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        return False
    return True


def interrupt(_number: int, _frame: object) -> NoReturn:
    """End the demo: asyncio's own way ends nothing if a library swallows the cancellation."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupt)
    try:
        status = asyncio.run(main())
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
