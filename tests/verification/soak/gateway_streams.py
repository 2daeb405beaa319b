"""Hold many idle streams through one gateway: memory of each, and whether all of them still live.

python -m tests.verification.soak.gateway_streams --streams 10000 [--watched]

Each stream is that of a message: passed on, or, with `--watched`, with a push config, so that its
task is watched as well. Once all are open, the agent sends one event to each.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.unit.pushkit.gateway.agent import ScriptedAgent
from tests.verification.soak.killing import Process, options, write_report
from tests.verification.soak.webhook_process import reserved_port

_AT_ONCE = 200  # streams that are being opened


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the process has no memory")


def _request(number: int, *, watched: bool) -> bytes:
    said = {"messageId": str(number), "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    params: dict[str, Any] = {"message": said}
    if watched:  # port 9 answers nobody: what is told stays in the outbox
        config = {"url": "http://127.0.0.1:9/hook"}
        params["configuration"] = {"taskPushNotificationConfig": config}
    call = {"jsonrpc": "2.0", "id": number, "method": "SendStreamingMessage", "params": params}
    body = json.dumps(call).encode()
    return (
        b"POST / HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        b"Accept: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


async def hold(count: int, *, watched: bool) -> dict[str, float]:
    """Open the streams, and measure."""
    with tempfile.TemporaryDirectory(prefix="pushkit-streams-") as folder, reserved_port() as port:
        async with ScriptedAgent().served() as agent:
            gateway = Process(
                "gateway_process",
                *("--upstream", agent.origin, "--database", f"{folder}/outbox.db"),
                *("--port", str(port), "--streams", str(count + 100)),
            )
            pid = int((await gateway.start()).split()[1])
            try:
                return await _held(agent, port, pid, count, watched=watched)
            finally:
                await gateway.kill()


async def _held(
    agent: ScriptedAgent, port: int, pid: int, count: int, *, watched: bool
) -> dict[str, float]:
    opening = asyncio.Semaphore(_AT_ONCE)
    writers: list[asyncio.StreamWriter] = []

    async def opened(number: int) -> asyncio.StreamReader:
        async with opening:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(_request(number, watched=watched))
            await reader.readuntil(b"data: ")
            return reader

    await opened(count)  # what the first request loads is no stream's
    before, since = memory_of(pid), time.monotonic()
    readers = await asyncio.gather(*[opened(number) for number in range(count)])
    agent.received.clear()
    opened_in, after, since = time.monotonic() - since, memory_of(pid), time.monotonic()
    for task_id in agent.tasks:
        agent.chunk(task_id, "news")
    await asyncio.gather(*[reader.readuntil(b"news") for reader in readers])
    told_in = time.monotonic() - since
    for writer in writers:
        writer.close()
    await asyncio.sleep(5)
    return {
        "streams": count,
        "opened_in_seconds": opened_in,
        "news_for_all_in_seconds": told_in,
        "kib_of_each": (after - before) / count / 1024,
        "mib_before": before / 2**20,
        "mib_with_all": after / 2**20,
        "mib_after_all_left": memory_of(pid) / 2**20,
    }


def main() -> int:
    """Run from the command line."""
    parser = options(__doc__, streams=10_000, watched=False)
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the gateway inherits it
    if most < 2 * arguments.streams + 150:  # two for each stream, here and in the gateway
        parser.error(f"--streams: this machine allows {most} files, enough for {most // 2 - 75}")
    figures = asyncio.run(hold(arguments.streams, watched=arguments.watched))
    return write_report(figures, holds=True, seed=0)


if __name__ == "__main__":
    sys.exit(main())
