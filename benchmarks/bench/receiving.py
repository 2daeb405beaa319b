"""One side of a comparison of receivers, which receives notifications that were signed before.

python -m benchmarks.bench.receiving NAME '{"number": 4000, …}'

Receiver and sender are separate processes, each on its own core if there are two. The cost is the
receiver's CPU time, up to the settling of the last callback. Tokens come from `expect()`, one for
each task.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import pinned

if TYPE_CHECKING:
    from aiohttp import web

    from receiver import Receiver
    from receiver.testing import SigningAgent

URL = "https://client.example.com"
PATH = "/a2a/push"
_MOUNT = "/a2a"
ISSUER = "https://agent.example.com"
HERE = Path(__file__).resolve().parent.parent.parent

BODY = (
    '{"statusUpdate":{"taskId":"%s","contextId":"context-0123456789","status":'
    '{"state":"TASK_STATE_WORKING","timestamp":"2026-01-01T12:00:00.000Z","message":{"messageId":'
    '"m-%06d","role":"ROLE_AGENT","parts":[{"text":"%s"}]}},"metadata":{"step":"%d"}}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """The load of a receiver."""

    number: int = 4000  # the number of notifications
    tasks: int = 1000  # the number of tasks, in turn
    connections: int = 64  # each sends the next notification after an answer
    repeated: bool = False  # whether all were accepted before
    forged: bool = False  # whether none is signed by the trusted key
    database: str | None = None  # a PostgreSQL DSN; None for a SQLite file
    backlog: int = 0  # unfinished notifications of another task in the inbox before the first
    processes: int = 1  # the number of receiver processes that share the socket
    slow: float = 0.0  # how long each callback takes, in seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of receivers."""

    name: str  # as in the table
    # The sides, each with its load; ratios are to the last one.
    sides: tuple[tuple[str, Arrivals], ...]
    quick: bool = False  # whether it is part of a quick run


_OURS, _NO_CALLS, _BARE = "receiver", "receiver, no callbacks", "bare PyJWT"
_DRAINING = "receiver, after a stop"
_IN_AIOHTTP, _BARE_AIOHTTP = "receiver in aiohttp", "bare aiohttp"
_IN_FASTAPI, _BARE_FASTAPI = "receiver in FastAPI", "bare FastAPI"
_ONE = Arrivals(number=1000, tasks=50, connections=1)
_CALLING = (_OURS, _IN_AIOHTTP, _IN_FASTAPI)
# So many that the first look-ups of each token, in each process, are few among them.
_MANY = Arrivals(number=12_000)

COMPARISONS = [
    Comparison(
        "receiver: 64 connections, 1,000 tasks",
        ((_OURS, Arrivals()), (_NO_CALLS, Arrivals()), (_BARE, Arrivals())),
        quick=True,
    ),
    Comparison(
        "receiver: 64 connections, 64 tasks",
        ((_OURS, Arrivals(tasks=64)), (_BARE, Arrivals(tasks=64))),
    ),
    Comparison(
        "receiver: invalid signatures",
        ((_OURS, Arrivals(forged=True)), (_BARE, Arrivals(forged=True))),
        quick=True,
    ),
    Comparison(
        "receiver: duplicates",
        ((_OURS, Arrivals(repeated=True)), (_BARE, Arrivals(repeated=True))),
        quick=True,
    ),
    Comparison("receiver: one connection", ((_OURS, _ONE), (_BARE, _ONE))),
    Comparison(
        "receiver mounted in aiohttp",
        ((_IN_AIOHTTP, Arrivals()), (_BARE_AIOHTTP, Arrivals())),
        quick=True,
    ),
    Comparison(
        "receiver mounted in FastAPI on uvicorn",
        ((_IN_FASTAPI, Arrivals()), (_BARE_FASTAPI, Arrivals())),
        quick=True,
    ),
    Comparison(
        "receiver: PostgreSQL", ((_OURS, Arrivals(database="PostgreSQL")), (_BARE, Arrivals()))
    ),
    Comparison(
        "receiver: a million unfinished",
        ((_OURS, Arrivals(backlog=1_000_000)), (_OURS, Arrivals(backlog=1000))),
    ),
    Comparison(
        "receiver: callbacks of 50 ms",
        ((_OURS, Arrivals(slow=0.05)), (_OURS, Arrivals())),
    ),
    Comparison(
        "receiver: a backlog of 100,000 over 10,000 tasks",
        ((_DRAINING, Arrivals(number=100_000, tasks=10_000)), (_OURS, Arrivals())),
    ),
    Comparison(
        "receiver: PostgreSQL beside SQLite",
        ((_OURS, Arrivals(database="PostgreSQL")), (_OURS, Arrivals())),
    ),
    Comparison(
        "receiver: two processes",
        ((_OURS, replace(_MANY, processes=2)), (_OURS, _MANY)),
    ),
    Comparison(
        "receiver: two processes, PostgreSQL",
        (
            (_OURS, replace(_MANY, processes=2, database="PostgreSQL")),
            (_OURS, replace(_MANY, database="PostgreSQL")),
        ),
    ),
]

# --- receivers ----------------------------------------------------------------------------------


@dataclass
class Counts:
    """What a receiver process counts."""

    called: int = 0
    moments: dict[str, int] = field(default_factory=dict)
    start: Callable[[], Coroutine[Any, Any, None]] | None = None  # starts the callbacks


def _jwk(path: str) -> Mapping[str, Any]:
    document: dict[str, Any] = json.loads(Path(path).read_bytes())
    return document


class Bare:
    """What a bare handler does: PyJWT, the hash, and the ids in a set."""

    def __init__(self, jwks: str) -> None:
        import jwt

        self._key: Any = jwt.PyJWK(_jwk(jwks)["keys"][0]).key
        self._seen: set[str] = set()

    def status_of(self, authorization: str, body: bytes) -> int:
        """Return the status of the answer to one request."""
        import jwt

        try:
            claims = jwt.decode(
                authorization.removeprefix("Bearer "),
                self._key,
                algorithms=["ES256"],
                audience=URL + PATH,
                issuer=ISSUER,
            )
        except jwt.InvalidTokenError:
            return 401
        if claims["request_body_sha256"] != hashlib.sha256(body).hexdigest():
            return 401
        if claims["jti"] in self._seen:
            return 200
        self._seen.add(claims["jti"])
        return 202


async def bare(given: Mapping[str, Any], _: Counts, *, routed: bool) -> None:
    """Run a bare handler of aiohttp: at a route of an application, or for every request."""
    from aiohttp import web

    handler = Bare(given["jwks"])

    async def receive(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        return web.Response(status=handler.status_of(request.headers["Authorization"], body))

    if not routed:
        await _serve_aiohttp(web.Server(receive, access_log=None), given)
        return
    app = web.Application()
    app.router.add_post(PATH, receive)
    await _run_aiohttp(app, given)


async def bare_fastapi(given: Mapping[str, Any], _: Counts) -> None:
    """Run a bare handler of FastAPI, on uvicorn."""
    from fastapi import FastAPI, Request, Response

    handler, app = Bare(given["jwks"]), FastAPI()

    # FastAPI reads the annotations, which are names of this function.
    async def receive(request):  # type: ignore[no-untyped-def]
        body = await request.body()
        return Response(status_code=handler.status_of(request.headers["authorization"], body))

    receive.__annotations__["request"] = Request
    app.post(PATH)(receive)
    await _serve_uvicorn(app, given)


async def _serve_aiohttp(server: Any, given: Mapping[str, Any]) -> None:
    shared = socket.socket(fileno=given["socket"])
    listening = await asyncio.get_running_loop().create_server(server, sock=shared, backlog=1024)
    await _KEPT.enter_async_context(listening)


async def _run_aiohttp(app: web.Application, given: Mapping[str, Any]) -> None:
    from aiohttp import web

    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await _serve_aiohttp(runner.server, given)


async def _serve_uvicorn(app: Any, given: Mapping[str, Any]) -> None:
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, http="httptools")
    server = uvicorn.Server(config)
    shared = socket.socket(fileno=given["socket"])
    _TASKS.append(asyncio.get_running_loop().create_task(server.serve([shared])))
    while not server.started:
        await asyncio.sleep(0.01)


async def in_aiohttp(given: Mapping[str, Any], counts: Counts) -> None:
    """Run the receiver as a sub-application of aiohttp."""
    from aiohttp import web

    receiver = await opened(given, counts, mount=_MOUNT)
    app = web.Application()
    app.add_subapp(_MOUNT, receiver.app())
    await _run_aiohttp(app, given)


async def in_fastapi(given: Mapping[str, Any], counts: Counts) -> None:
    """Run the receiver mounted in FastAPI, on uvicorn."""
    from fastapi import FastAPI

    receiver = await opened(given, counts, mount=_MOUNT)
    await receiver.start()
    app = FastAPI()
    app.mount(_MOUNT, receiver.asgi())
    await _serve_uvicorn(app, given)


async def opened(given: Mapping[str, Any], counts: Counts, *, mount: str = "") -> Receiver:
    """Return a receiver that is open, without callbacks yet; it is to be mounted there."""
    from pushkit.terminal.processes import collect_rarely
    from receiver import Limits, Notification, RateLimit, Receiver, TaskPolicy, TrustedSender

    unlimited = RateLimit(per_second=1e9, burst=10**9)
    sender = TrustedSender(
        name="agent",
        path=PATH.removeprefix(mount),
        issuer=ISSUER,
        jwks_file=Path(given["jwks"]),
        tasks=TaskPolicy.BIND,
    )
    receiver = Receiver(
        url=URL + mount,
        senders=[sender],
        database=given["database"] or f"{given['folder']}/inbox.db",
        limits=Limits(
            peer_rate=unlimited,
            sender_rate=unlimited,
            max_backlog=2**40,
            max_backlog_per_sender=2**40,
        ),
    )

    @receiver.on_update
    async def called(notification: Notification) -> None:
        if given["slow"]:
            await asyncio.sleep(given["slow"])
        counts.called += 1
        counts.moments[notification.delivery_id] = time.monotonic_ns()

    counts.start = receiver.start
    await receiver.open()
    if given["is_first"]:
        tokens = [(await receiver.expect()).config.token for _ in range(given["tasks"])]
        Path(f"{given['folder']}/tokens.json").write_text(json.dumps(tokens))
    if given["is_first"] and given["backlog"]:
        await asyncio.to_thread(_fill, f"{given['folder']}/inbox.db", given["backlog"])
    collect_rarely()
    return receiver


async def ours(given: Mapping[str, Any], counts: Counts, *, calls: bool) -> None:
    """Run the receiver, as `receiver serve` does."""
    from pushkit.terminal.listening import accepting
    from receiver.limits import ConnectionLimits
    from receiver.serving.server import HttpServer

    receiver = await opened(given, counts)
    if calls:
        await receiver.start()
    server = HttpServer(
        receiver.handler.handle,
        limits=ConnectionLimits(max_connections_per_peer=512),
        is_proxy=receiver.handler.peers.is_proxy,
        max_head_bytes=16384,
        refuse=receiver.handler.refuse,
    )
    shared = socket.socket(fileno=given["socket"])
    await _KEPT.enter_async_context(accepting(server.protocol_for, [shared]))


def _fill(path: str, backlog: int) -> None:
    """Store unfinished notifications of one task that waits."""
    import sqlite3

    from receiver.inbox.store import queue_id_of

    with contextlib.closing(sqlite3.connect(path)) as database:
        later = (int(time.time()) + 3600) * 1_000_000
        database.execute(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)"
            " INSERT INTO pushkit_inbox (queue_id, place, sender, delivery_id, task_id, missing,"
            " late, version, kid, issued_at, received_at, not_before, scheduled_at, body,"
            " body_bytes, body_sha256) SELECT ?, n, 'agent', 'waiting-' || n, 'waits', 0, 0, '1.0',"
            " 'k', 0, 0, ?, 0, '{}', 2, '' FROM n",
            (backlog, queue := queue_id_of("agent", "waits", ""), later),
        )
        database.execute(
            "INSERT INTO pushkit_inbox_queues (id, tenant, owner, origin, last_seq, due_at)"
            " VALUES (?, '', 'agent', '', ?, ?)",
            (queue, backlog, later),
        )
        database.commit()


_KEPT = contextlib.AsyncExitStack()
_TASKS: list[asyncio.Task[None]] = []

SIDES: dict[str, Callable[[Mapping[str, Any], Counts], Awaitable[None]]] = {
    "bare PyJWT": lambda given, counts: bare(given, counts, routed=False),
    "bare aiohttp": lambda given, counts: bare(given, counts, routed=True),
    "bare FastAPI": bare_fastapi,
    "receiver in aiohttp": in_aiohttp,
    "receiver in FastAPI": in_fastapi,
    "receiver": lambda given, counts: ours(given, counts, calls=True),
    "receiver, no callbacks": lambda given, counts: ours(given, counts, calls=False),
    "receiver, after a stop": lambda given, counts: ours(given, counts, calls=False),
}


async def serve(side: str, given: Mapping[str, Any]) -> None:
    """Serve, and answer questions on standard input by lines on standard output."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    counts = Counts()
    await SIDES[side](given, counts)
    print("ready", flush=True)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    starting: list[asyncio.Task[None]] = []

    def asked() -> None:
        line = sys.stdin.readline()
        if not line:
            ended.set()
            return
        if "start" in line and counts.start is not None:
            starting.append(loop.create_task(counts.start()))
        said: dict[str, Any] = {"cpu": time.process_time(), "called": counts.called}
        if "moments" in line:
            said["moments"] = counts.moments
        print(json.dumps(said), flush=True)

    loop.add_reader(sys.stdin.fileno(), asked)
    await ended.wait()
    os._exit(0)


# --- the sender ---------------------------------------------------------------------------------


def signed(
    agent: SigningAgent, arrivals: Arrivals, tokens: Sequence[str], *, seq: int
) -> list[tuple[str, bytes]]:
    """Return the signed requests as bytes, each with its id.

    Args:
        agent: Signs them.
        arrivals: The load.
        tokens: The token of each task.
        seq: The first `seq` of each task.
    """
    from pushkit.outbox.model import new_delivery_id

    requests = []
    for n in range(arrivals.number):
        task = n % arrivals.tasks
        draft = replace(
            agent.draft(f"task-{task}", n // arrivals.tasks + seq),
            token=tokens[task],
            delivery_id=new_delivery_id(datetime.now(UTC)),  # in order, like those of pushkit
            body=(BODY % (f"task-{task}", n, "Working on it, step by step. " * 10, n)).encode(),
        )
        request = (draft.forged() if arrivals.forged else draft).request()
        lines = [f"POST {PATH} HTTP/1.1", "Host: client.example.com"]
        lines += [f"{name}: {value}" for name, value in request.headers]
        lines += [f"Content-Length: {len(request.body)}", "", ""]
        requests.append((draft.delivery_id, "\r\n".join(lines).encode() + request.body))
    return requests


class Connection(asyncio.Protocol):
    """Sends requests one after another, each after the answer to the previous one."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._held = b""
        self._sent: tuple[str, int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        """Count a complete answer, and send the next request."""
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._held[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._held) < end + 4 + length:
            return
        self._held = self._held[end + 4 + length :]
        assert self._sent is not None  # noqa: S101
        self._sender.answered(int(head[9:12]), *self._sent)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection was closed."""
        self._sender.lost(exc)

    def _next(self) -> None:
        found = next(self._sender.requests, None)
        if found is not None:
            self._sent = (found[0], time.monotonic_ns())
            self._transport.write(found[1])  # type: ignore[attr-defined]


class Sender:
    """Sends requests over several connections, and keeps the statuses and latencies."""

    def __init__(self, requests: Sequence[tuple[str, bytes]]) -> None:
        self.requests = iter(requests)
        self.statuses: dict[int, int] = {}
        self.sent: dict[str, int] = {}
        self.waits: list[int] = []
        self._left = len(requests)
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, port: int, connections: int) -> float:
        """Send all requests; return the seconds that it took."""
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        made = [
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
            for _ in range(connections)
        ]
        await self._all
        took = time.perf_counter() - began
        for transport, _ in made:
            transport.abort()
        return took

    def answered(self, status: int, jti: str, at: int) -> None:
        """Record an answer."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.waits.append(time.monotonic_ns() - at)
        self.sent[jti] = at
        self._left -= 1
        if not self._left:
            self._all.set_result(None)

    def lost(self, exc: Exception | None) -> None:
        """Fail, unless all requests are answered."""
        if not self._all.done():
            self._all.set_exception(exc or ConnectionError("closed by the receiver"))


class Receiving:
    """The processes of a receiver, which share a socket.

    Each has its own core if there are enough, and the sender has another one.
    """

    def __init__(self, side: str, arrivals: Arrivals, folder: str) -> None:
        self._given = {
            "folder": folder,
            "jwks": f"{folder}/jwks.json",
            "tasks": arrivals.tasks,
            "database": arrivals.database,
            "backlog": arrivals.backlog,
            "slow": arrivals.slow,
        }
        self._side = side
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._processes = [self._start(number) for number in range(arrivals.processes)]

    def _start(self, number: int) -> subprocess.Popen[str]:
        shared = self._socket.fileno()
        given = json.dumps({**self._given, "socket": shared, "is_first": number == 0})
        process = subprocess.Popen(
            [*pinned(2 * number), sys.executable, "-m", __spec__.name, "serve", self._side, given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE,
            pass_fds=[shared],
        )
        assert process.stdout is not None  # noqa: S101
        process.stdout.readline()  # it listens
        return process

    def ask(self, what: str = "") -> dict[str, Any]:
        """Return the sum of what the processes have counted."""
        said: dict[str, Any] = {"cpu": 0.0, "called": 0, "moments": {}}
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101
            assert process.stdout is not None  # noqa: S101
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            one = json.loads(process.stdout.readline())
            said["cpu"] += one["cpu"]
            said["called"] += one["called"]
            said["moments"] |= one.get("moments", {})
        return said

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            with process:
                process.kill()
        self._socket.close()


async def measure(side: str, arrivals: Arrivals) -> dict[str, Any]:
    """Run a receiver, send to it, and return its figures."""
    from pushkit import Algorithm, KeyRing
    from pushkit.keys.jwks import jwks_document
    from receiver.testing import SigningAgent

    with tempfile.TemporaryDirectory() as folder:
        now = datetime.now(UTC)
        ring = KeyRing.create(now, Algorithm.ES256)
        Path(f"{folder}/jwks.json").write_bytes(jwks_document(ring, now))
        agent = SigningAgent(webhook_url=URL + PATH, issuer=ISSUER, key=ring.signing_key(now))
        receiving = Receiving(side, arrivals, folder)
        try:
            return await _measured(side, arrivals, receiving, folder, agent)
        finally:
            receiving.end()


async def _measured(
    side: str, arrivals: Arrivals, receiving: Receiving, folder: str, agent: SigningAgent
) -> dict[str, Any]:
    ask, port = receiving.ask, receiving.port
    if side == "receiver, after a stop":
        return await _drained(arrivals, receiving, agent, folder)

    async def until_called(number: int) -> None:
        while side in _CALLING and ask()["called"] < number:
            await asyncio.sleep(0.01)

    tokens = ["token"] * arrivals.tasks
    with contextlib.suppress(FileNotFoundError):
        tokens = json.loads(Path(f"{folder}/tokens.json").read_text())
    requests = signed(agent, arrivals, tokens, seq=2)
    warm = signed(agent, Arrivals(number=arrivals.tasks, tasks=arrivals.tasks), tokens, seq=1)
    before = warm if not arrivals.repeated else [*warm, *requests]
    await Sender(before).run(port, arrivals.connections)
    await until_called(len(before))
    at_first = ask()
    sender, began = Sender(requests), time.perf_counter()
    answered = await sender.run(port, arrivals.connections)
    if not (arrivals.forged or arrivals.repeated):
        await until_called(at_first["called"] + len(requests))
    called = time.perf_counter() - began
    if side in _CALLING:
        await asyncio.sleep(0.05)  # the last of them are settled
    if set(sender.statuses) != {expected := _status(arrivals)}:
        raise RuntimeError(f"{side}: answered {sender.statuses}, expected {expected} alone")
    at_last = ask("moments")
    moments = at_last["moments"]
    waits = sorted(sender.waits)
    # Duplicates were called back before they were sent again.
    calls = sorted(moments[jti] - at for jti, at in sender.sent.items() if moments.get(jti, 0) > at)
    return {
        "answered": len(requests) / answered,
        "called": len(requests) / called,
        "cpu_us": 1e6 * (at_last["cpu"] - at_first["cpu"]) / len(requests),
        "wait_p50_ms": 1e-6 * waits[len(waits) // 2],
        "call_p50_ms": 1e-6 * calls[len(calls) // 2] if calls else 0.0,
    }


async def _drained(
    arrivals: Arrivals, receiving: Receiving, agent: SigningAgent, folder: str
) -> dict[str, Any]:
    """Store notifications while no callback runs; then measure until all were called back."""
    tokens = json.loads(Path(f"{folder}/tokens.json").read_text())
    await Sender(signed(agent, arrivals, tokens, seq=1)).run(receiving.port, arrivals.connections)
    at_first, began = receiving.ask("start"), time.perf_counter()
    while receiving.ask()["called"] < arrivals.number:
        await asyncio.sleep(0.02)
    took = time.perf_counter() - began
    await asyncio.sleep(0.05)  # the last of them are settled
    cpu = receiving.ask()["cpu"] - at_first["cpu"]
    rate = arrivals.number / took
    figures = {"answered": rate, "called": rate, "cpu_us": 1e6 * cpu / arrivals.number}
    return {**figures, "wait_p50_ms": 0.0, "call_p50_ms": 0.0}


def _status(arrivals: Arrivals) -> int:
    return 401 if arrivals.forged else 200 if arrivals.repeated else 202


def main() -> None:
    """Serve, or measure one side and print its figures as JSON."""
    import uvloop

    if sys.argv[1] == "serve":
        uvloop.run(serve(sys.argv[2], json.loads(sys.argv[3])))
        return
    arrivals = Arrivals(**json.loads(sys.argv[2]))
    print(json.dumps(uvloop.run(measure(sys.argv[1], arrivals))))


if __name__ == "__main__":
    main()
