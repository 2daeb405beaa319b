"""Kill the sending process with SIGKILL, again and again, and count what became of its updates.

python tests/soak/crash.py --kills 1000 [--database postgresql://…]

What must hold, whatever the moment of the kill:

- nothing that `notify()` acknowledged is lost,
- no update overtakes an earlier one of its task,
- an update arrives twice at most as often as attempts were in flight at a kill,
- work goes on soon after the restart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

ROOT = Path(__file__).resolve().parent.parent.parent
TASKS = 8  # as in agent_process.py


@dataclass(slots=True)
class Webhook:
    """What arrived, in order, by task; and how many requests were under way at a kill."""

    arrived: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    under_way: int = 0
    last_arrival: float = 0.0

    async def receive(self, request: web.Request) -> web.Response:
        """Take one update; a few of them slowly."""
        self.under_way += 1
        try:
            update = json.loads(await request.read())["statusUpdate"]
            if random.random() < 0.05:  # noqa: S311  # not a secret
                await asyncio.sleep(0.02)
            self.arrived[update["taskId"]].append(int(update["contextId"]))
            self.last_arrival = time.monotonic()
            return web.Response(status=202)
        finally:
            self.under_way -= 1


@dataclass(slots=True)
class Report:
    """What was counted."""

    kills: int = 0
    acknowledged: int = 0
    arrived: int = 0
    lost: int = 0
    overtaken: int = 0
    duplicates: int = 0
    in_flight_at_kills: int = 0
    slowest_resume: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every promise was kept; the time to resume is judged by the caller."""
        return not self.lost and not self.overtaken and self.duplicates <= self.in_flight_at_kills


class Killer:
    """Runs the process, kills it, runs it again."""

    def __init__(self, database: str, seed: int) -> None:
        self._database = database
        self._random = random.Random(seed)  # noqa: S311  # repeatable, not secret
        self._acknowledged = {f"task-{index}": 0 for index in range(TASKS)}
        self.webhook = Webhook()
        self.report = Report()

    async def run(self, kills: int) -> Report:
        """Kill so many times, let the rest be delivered, and count."""
        runner = web.AppRunner(self._app(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        url = f"http://127.0.0.1:{port}/hook"
        for _ in range(kills):
            await self._one_life(url)
        await self._deliver_the_rest(url)
        await runner.cleanup()
        self._count()
        return self.report

    def _app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/hook", self.webhook.receive)])
        return app

    async def _one_life(self, url: str) -> None:
        started = time.monotonic()
        process = await self._start(url)
        reading = asyncio.create_task(self._read(process))
        before = self.webhook.last_arrival
        await self._until(lambda: self.webhook.last_arrival > before, seconds=60)
        self.report.slowest_resume = max(self.report.slowest_resume, time.monotonic() - started)
        await asyncio.sleep(self._random.uniform(0.0, 0.3))
        # The worker runs at most so many attempts; what it has claimed may be on its way.
        process.send_signal(signal.SIGKILL)
        self.report.kills += 1
        self.report.in_flight_at_kills += TASKS
        await process.wait()
        await reading

    async def _deliver_the_rest(self, url: str) -> None:
        process = await self._start(url, "--drain")
        wanted = dict(self._acknowledged)
        await self._until(
            lambda: all(
                self.webhook.arrived[task] and max(self.webhook.arrived[task]) >= number
                for task, number in wanted.items()
                if number
            ),
            seconds=120,
        )
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def _start(self, url: str, *more: str) -> asyncio.subprocess.Process:
        starts = [str(number) for number in self._acknowledged.values()]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "tests" / "soak" / "agent_process.py"),
            *("--database", self._database, "--webhook", url, "--start", *starts, *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            words = line.split()
            if len(words) == 3 and words[0] == b"ACK":  # a cut last line was not acknowledged
                self._acknowledged[words[1].decode()] = int(words[2])

    async def _until(self, condition: object, *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            if time.monotonic() > deadline:
                return  # the count says what is missing
            await asyncio.sleep(0.01)

    def _count(self) -> None:
        report = self.report
        for task, last in self._acknowledged.items():
            numbers = self.webhook.arrived[task]
            report.acknowledged += last
            report.arrived += len(numbers)
            report.lost += len(set(range(1, last + 1)) - set(numbers))
            report.duplicates += len(numbers) - len(set(numbers))
            first_seen = list(dict.fromkeys(numbers))
            report.overtaken += sum(
                later < earlier for earlier, later in zip(first_seen, first_seen[1:], strict=False)
            )


async def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="A SQLite file or a PostgreSQL DSN.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pushkit-crash-") as folder:
        killer = Killer(arguments.database or f"{folder}/outbox.db", arguments.seed)
        report = await killer.run(arguments.kills)
    for name in report.__slots__:
        value = getattr(report, name)
        print(f"{name:20} {value:.2f}" if isinstance(value, float) else f"{name:20} {value}")
    print("every promise held" if report.holds else "A PROMISE WAS BROKEN")
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
