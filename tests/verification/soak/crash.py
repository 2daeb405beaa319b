"""Repeatedly kill sending processes with SIGKILL, and check what happened to their updates.

python -m tests.verification.soak.crash --kills 1000 [--seed 7]
    [--database postgresql://… --workers 4]

Whenever the kill comes:

- no update that `notify()` acknowledged is lost,
- no update arrives for the first time before an earlier one of its task,
- an update arrives again at most as often as it was in flight when its worker was killed,
- a config that joined late begins with the task as it stood, and every acknowledged update is in
  that or arrives after it,
- deliveries continue soon: other workers claim the queues of a dead worker at once on SQLite, and
  when their lease ends on PostgreSQL.

After each kill, the deliveries that were in flight are read from the database.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from pushkit.progress import advance
from pushkit.storage.database import Database
from pushkit.storage.script import Script, Statement
from tests.eventually import eventually
from tests.served import answering, served
from tests.verification.soak import killing
from tests.verification.soak.killing import Process, count_unfinished, reading

TASKS = 8  # of each process
_LIVES = 2  # of processes, one after another, in which a task is joined
_PATIENCE = 60  # seconds in which something must arrive, in the end


@dataclass(slots=True)
class WorkingTime:
    """A clock that stops while no process works: a busy machine starts processes slowly."""

    workers: int = 0
    _passed: float = 0.0
    _since: float = 0.0

    def now(self) -> float:
        """Return the seconds in which at least one has worked."""
        return self._passed + (time.monotonic() - self._since if self.workers else 0.0)

    def begin(self) -> None:
        """Count one that works from now on."""
        if not self.workers:
            self._since = time.monotonic()
        self.workers += 1

    def end(self) -> None:
        """Count one less."""
        self._passed, self._since = self.now(), time.monotonic()
        self.workers -= 1


class Arrival(NamedTuple):
    """What a notification says."""

    number: int  # of the update; of a snapshot, of the last one in it
    is_snapshot: bool


@dataclass(slots=True)
class Webhook:
    """The webhook, which records what arrives."""

    random: random.Random
    clock: WorkingTime
    # Of each task and config, by `seq`, in the order in which each came first.
    arrivals: dict[tuple[str, str], dict[int, Arrival]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    ids: Counter[str] = field(default_factory=Counter)
    awaited: dict[str, float] = field(default_factory=dict)
    slowest_resume: float = 0.0

    async def receive(self, request: web.Request) -> web.Response:
        """Take one update; answer a few of them slowly."""
        [(kind, update)] = json.loads(await request.read()).items()
        delivery_id = request.headers["webhook-id"]
        claims = _claims_of(request.headers["Authorization"])
        arrival = Arrival(int(update["contextId"]), is_snapshot=kind == "task")
        self.arrivals[claims["taskId"], claims["configId"]].setdefault(claims["seq"], arrival)
        self.ids[delivery_id] += 1
        since = self.awaited.pop(delivery_id, None)
        if since is not None:
            self.slowest_resume = max(self.slowest_resume, self.clock.now() - since)
        if self.random.random() < 0.05:
            await asyncio.sleep(0.02)
        return web.Response(status=202)


@dataclass(slots=True)
class Report(killing.Report):
    """The counts of a run."""

    BROKEN = ("lost", "overtaken", "without_snapshot", "unexplained_duplicates", "unfinished")

    kills: int = 0
    acknowledged: int = 0
    arrived: int = 0
    lost: int = 0
    overtaken: int = 0
    joined: int = 0
    joined_again: int = 0  # after a kill while the snapshot was held
    without_snapshot: int = 0
    in_flight_at_kills: int = 0
    duplicates: int = 0
    unexplained_duplicates: int = 0
    unfinished: int = 0
    slowest_resume: float = 0.0


@dataclass(slots=True)
class Agent:
    """One process at a time, and what it said."""

    place: int
    clock: WorkingTime
    acknowledged: dict[str, int] = field(default_factory=dict)
    # Of each task, the `seq` of the snapshot of each config that has joined.
    joined: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    worker: str = ""
    process: Process | None = None

    async def read(self) -> None:
        """Take down what the process says, to its end."""
        assert self.process is not None
        async for line in self.process.lines():
            what, *words = line.split()
            if what == "ACK":
                self.acknowledged[words[0]] = int(words[1])
            else:
                self.joined[words[0]].append(int(words[2]))


class Killer:
    """Runs processes, kills them, runs them again.

    Args:
        folder: For a database on SQLite, unless one is given.
        database: A path or a DSN.
        seed: Of the moments of the kills and of the webhook's slowness.
        workers: How many processes at once.
        timeout: Of an attempt, in seconds.
        margin: Of its lease, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        database: str | None = None,
        seed: int = 0,
        workers: int = 1,
        timeout: float,
        margin: float,
    ) -> None:
        self._location = database or f"{folder}/outbox.db"
        self._random = random.Random(seed)  # repeatable, not secret
        self._lease = ("--timeout", str(timeout), "--margin", str(margin))
        self._url = ""
        self._exposed: Counter[str] = Counter()
        self._clock = WorkingTime()
        self._agents = [Agent(place, self._clock) for place in range(workers)]
        self.webhook = Webhook(random.Random(seed), self._clock)
        self.report = Report()

    async def run(self, kills: int) -> Report:
        """Kill so many times in all, let the rest be delivered, and count."""
        app = answering(self.webhook.receive)
        async with served(app) as self._url, reading(self._location) as database:
            left = iter(range(kills))
            await asyncio.gather(*(self._lives(agent, left, database) for agent in self._agents))
            await self._deliver_the_rest(database)
        self._count()
        return self.report

    async def _lives(self, agent: Agent, left: Iterable[int], database: Database) -> None:
        tasks = [f"task-{agent.place}-{n}" for n in range(TASKS)]
        for life, _ in enumerate(left):
            joined = f"joined-{agent.place}-{life // _LIVES}"
            listening = await self._start(agent, [*tasks, joined], joined)
            seen = sum(self.webhook.ids.values())
            await eventually(lambda: sum(self.webhook.ids.values()) > seen)  # noqa: B023
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            await self._kill(agent, listening)
            await self._look_at_what_it_held(agent, database)

    async def _look_at_what_it_held(self, agent: Agent, database: Database) -> None:
        held = await database.read(_held_by(agent.worker))
        self._exposed.update(held)
        self.webhook.awaited.update(dict.fromkeys(held, self._clock.now()))
        self.report.in_flight_at_kills += len(held)
        self.report.kills += 1
        advance(1)

    async def _deliver_the_rest(self, database: Database) -> None:
        agent = Agent(len(self._agents), self._clock)
        listening = await self._start(agent)
        arrived, deadline = 0, time.monotonic() + _PATIENCE
        while await database.read(count_unfinished()) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            if sum(self.webhook.ids.values()) > arrived:
                arrived, deadline = sum(self.webhook.ids.values()), time.monotonic() + _PATIENCE
        self.report.unfinished = await database.read(count_unfinished())
        await self._kill(agent, listening)

    async def _start(
        self, agent: Agent, tasks: Iterable[str] = (), *joined: str
    ) -> asyncio.Task[None]:
        starts = [("--start", f"{task}={agent.acknowledged.get(task, 0) + 1}") for task in tasks]
        starts += [("--join", f"{task}={len(agent.joined[task])}") for task in joined]
        agent.process = Process(
            "agent_process",
            *("--database", self._location, "--webhook", self._url),
            *self._lease,
            *(word for start in starts for word in start),
        )
        agent.worker = (await agent.process.start()).removeprefix("WORKER ")
        self._clock.begin()
        return asyncio.create_task(agent.read())

    async def _kill(self, agent: Agent, listening: asyncio.Task[None]) -> None:
        assert agent.process is not None
        await agent.process.kill()
        await listening  # it ends with the process that writes, which the killed one stands for
        self._clock.end()

    def _count(self) -> None:
        report = self.report
        for agent in self._agents:
            for task, last in agent.acknowledged.items():
                report.acknowledged += last
                snapshots = agent.joined[task]
                report.joined += len(snapshots)
                report.joined_again += sum(seq > 1 for seq in snapshots)
                self._judge(task, "soak", last, snapshot=0)
                for number, seq in enumerate(snapshots):
                    self._judge(task, f"joined-{number}", last, snapshot=seq)
        for arrivals in self.webhook.arrivals.values():
            numbers = [each.number for each in arrivals.values() if not each.is_snapshot]
            for order in (arrivals, numbers):
                report.overtaken += sum(later <= earlier for earlier, later in pairwise(order))
        report.arrived = self.webhook.ids.total()
        for delivery_id, times in self.webhook.ids.items():
            report.duplicates += times - 1
            report.unexplained_duplicates += max(0, times - 1 - self._exposed[delivery_id])
        report.slowest_resume = self.webhook.slowest_resume

    def _judge(self, task: str, config: str, last: int, *, snapshot: int) -> None:
        """Count what a config lacks of the updates 1… to the last acknowledged one.

        `snapshot` is the `seq` of its last snapshot; 0 for a config that was there from the start.
        """
        arrivals = self.webhook.arrivals[task, config]
        before = arrivals.get(snapshot, Arrival(0, is_snapshot=False))
        if snapshot:  # of several, if it was killed while it joined, the first came first
            is_first = before.is_snapshot and next(iter(arrivals)) == 1 and arrivals[1].is_snapshot
            self.report.without_snapshot += not is_first
        came = {each.number for each in arrivals.values() if not each.is_snapshot}
        self.report.lost += len(set(range(before.number + 1, last + 1)) - came)


def _claims_of(authorization: str) -> dict[str, Any]:
    """Return what a notification's JWT says; the receiver's tests check its signature."""
    payload = authorization.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=="))
    return claims


def _held_by(worker: str) -> Script[list[str]]:
    rows = yield Statement(
        "SELECT d.id FROM pushkit_deliveries d JOIN pushkit_subscriptions q"
        " ON q.id = d.subscription_id WHERE q.lease_worker = $1 AND d.state = 'pending'"
        " AND d.waits = 0 AND d.seq <= q.sending_to",
        (worker,),
    )
    return [row["id"] for row in rows]


if __name__ == "__main__":
    sys.exit(killing.run(__doc__, Killer, workers=1, timeout=1.0, margin=1.0))
