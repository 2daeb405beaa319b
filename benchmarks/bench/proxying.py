"""One side of a comparison of proxies: the gateway as it is started, or a bare proxy of aiohttp.

python -m benchmarks.bench.proxying NAME '{"number": 4000, …}'

Agent and clients share this process, and the proxy is another one, on its own core if there are
two. The cost is the proxy's CPU time. Nothing here is watched: it is what is passed on.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from benchmarks.bench import pinned

HERE = Path(__file__).resolve().parent.parent.parent
GATEWAY, BARE = "gateway", "bare aiohttp proxy"
_TASK = {"id": "task-1", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
_EVENTS = 10
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """The load of a proxy."""

    number: int = 4000  # the number of requests
    connections: int = 16  # each makes the next request after an answer
    streams: bool = False  # whether each answer is a stream of ten events


@dataclass(frozen=True, slots=True)
class Proxies:
    """A comparison of proxies."""

    name: str  # as in the table
    load: Passing
    quick: bool = False  # whether it is part of a quick run


COMPARED = [
    Proxies("gateway: unary calls, passed on", Passing(), quick=True),
    Proxies("gateway: one connection", Passing(number=1000, connections=1)),
    Proxies("gateway: streams of ten events, passed on", Passing(number=1000, streams=True)),
]


async def _agent(request: web.Request) -> web.StreamResponse:
    if request.method == "GET":
        card = {"url": f"http://{request.host}/", "capabilities": {"streaming": True}}
        return web.json_response(card)
    asked = await request.json()
    if asked["method"] != "SendStreamingMessage":
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": _TASK})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(_EVENTS):
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": {"task": _TASK}}
        await response.write(f"data: {json.dumps(said)}\n\n".encode())
    return response


def _bare(upstream: str, port: int) -> None:
    """Serve a proxy that does nothing but pass on."""

    async def answer(request: web.Request) -> web.StreamResponse:
        session = request.app[client]
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name != "Host"}
        async with session.request(
            request.method, upstream + request.raw_path, data=body, headers=headers
        ) as found:
            response = web.StreamResponse(status=found.status)
            response.content_type = found.content_type
            if found.content_length is not None:
                response.content_length = found.content_length
            await response.prepare(request)
            async for chunk in found.content.iter_any():
                await response.write(chunk)
            return response

    async def sessions(app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            app[client] = session
            yield

    client = web.AppKey("client", aiohttp.ClientSession)
    app = web.Application(client_max_size=2**24)
    app.cleanup_ctx.append(sessions)
    app.router.add_route("*", "/{path:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=lambda *_: None)


@asynccontextmanager
async def _proxy(side: str, upstream: str, folder: str) -> AsyncIterator[tuple[str, int]]:
    """Start a proxy; yield its origin and its process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    origin = f"http://127.0.0.1:{port}"
    command = [*pinned(1), sys.executable, "-m", "benchmarks.bench.proxying", "bare", upstream]
    command += [str(port)]
    if side == GATEWAY:
        main = ["-c", "from pushkit.cli.main import main; main()"]
        keys = f"{folder}/keys.json"
        made = [sys.executable, *main, "keys", "new", keys]
        subprocess.run(made, check=True, cwd=HERE, stdout=subprocess.DEVNULL)
        command = [*pinned(1), sys.executable, *main, "gateway", "--upstream", upstream]
        command += ["--listen", f"127.0.0.1:{port}", "--issuer", origin, "--shared-configs"]
        command += ["--keys", keys, "--database", f"{folder}/outbox.db"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as client:
            while True:
                try:
                    async with client.get(f"{origin}/.well-known/agent-card.json"):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
        yield origin, process.pid
    finally:
        process.terminate()
        await process.wait()


def _cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def _measured(side: str, load: Passing) -> dict[str, float]:
    runner = web.ServerRunner(web.Server(_agent, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = f"http://127.0.0.1:{runner.addresses[0][1]}"
    waits: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with _proxy(side, upstream, folder) as (origin, pid):
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as client:
                await _asked(client, origin, load, load.number // 10, [])
                before, began = _cpu(pid), time.perf_counter()
                await _asked(client, origin, load, load.number, waits)
                seconds, used = time.perf_counter() - began, _cpu(pid) - before
    await runner.cleanup()
    cuts = statistics.quantiles(waits, n=100)
    return {
        "per_second": load.number / seconds,
        "cpu_us": 1e6 * used / load.number,
        "wait_p50_ms": 1e3 * cuts[49],
        "wait_p99_ms": 1e3 * cuts[98],
    }


async def _asked(
    client: aiohttp.ClientSession, origin: str, load: Passing, number: int, waits: list[float]
) -> None:
    """Make requests; note how long each waits for the first bytes of its answer."""
    method = "SendStreamingMessage" if load.streams else "GetTask"
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello " * 20}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    left = iter(range(number))

    async def one_connection() -> None:
        for _ in left:
            began = time.perf_counter()
            async with client.post(origin, json=body, headers={"A2A-Version": "1.0"}) as answer:
                await answer.content.readany()
                waits.append(time.perf_counter() - began)
                await answer.read()

    await asyncio.gather(*[one_connection() for _ in range(load.connections)])


if __name__ == "__main__":
    if sys.argv[1] == "bare":
        _bare(sys.argv[2], int(sys.argv[3]))
    else:
        print(json.dumps(asyncio.run(_measured(sys.argv[1], Passing(**json.loads(sys.argv[2]))))))
