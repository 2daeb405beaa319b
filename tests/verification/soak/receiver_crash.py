"""Repeatedly kill receiver processes with SIGKILL under a real sender, and check the callbacks.

python -m tests.verification.soak.receiver_crash --kills 1000
    [--database postgresql://… --receivers 2] [--seed 7] [--lose-every 5]

Whenever the kill comes:

- every callback runs for every update that the sender's `notify()` acknowledged,
- the updates of a task are called back in order, and never two at once,
- no callback runs twice for an update, unless its process was killed while the update was the next
  one of a task that it held,
- callbacks continue soon: at once on SQLite, when the lease ends on PostgreSQL; and from the second
  death in a row on, after the wait that comes with it.

With `--lose-every`, the inbox is lost after every so many kills, and recovered (`losses.py`): an
operator asks the agent, and every second receiver does so by itself. The agent is killed, too. Then
every acknowledged update that a restored inbox did not have is called back again, and what comes
after a later one is late.

What a process holds is read from the inbox while it is stopped, right before the kill; which
callbacks had begun, from the file to which callbacks append.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from pushkit import (
    DeliveryState,
    KeyRing,
    PushSender,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from pushkit.clock import utc_now
from pushkit.errors import StorageError
from pushkit.keys.files import save_key_ring
from pushkit.keys.jwk import public_jwk
from pushkit.progress import advance
from pushkit.storage.database import Database
from pushkit.storage.script import Script, Statement
from receiver import InboxStatus
from receiver.admin import InboxAdmin, open_inbox
from tests.eventually import eventually
from tests.verification.soak import killing
from tests.verification.soak.agent_process import BREAKER, ISSUER, OWNER, RETRY
from tests.verification.soak.call_log import CallLog
from tests.verification.soak.losses import Losses
from tests.verification.soak.webhook_process import TOKEN, Settings, reserved_port, start

AHEAD = 20  # a task's updates that are accepted and not yet called back


@dataclass(slots=True)
class Report(killing.Report):
    """The counts; calls are counted for each callback."""

    BROKEN = ("calls_missing", "overtaken", "overlapping", "unexplained", "gaps", "unfinished")

    kills: int = 0
    kills_before_a_call: int = 0
    acknowledged: int = 0
    calls: int = 0
    calls_missing: int = 0
    overtaken: int = 0
    overlapping: int = 0
    in_hand_at_kills: int = 0
    broken_off: int = 0
    called_again: int = 0
    called_again_after_end: int = 0
    unexplained: int = 0
    inboxes_lost: int = 0
    recoveries_broken_off: int = 0
    called_late: int = 0
    gaps: int = 0
    unfinished: int = 0
    slowest_resume: float = 0.0


@dataclass(slots=True)
class Place:
    """A sequence of receiver processes, each started after the previous one was killed."""

    number: int
    process: ForkServerProcess | None = None
    lives: int = 0


class Killer:
    """Runs receivers, kills them, runs them again, while a sender delivers."""

    def __init__(
        self,
        folder: Path,  # where outbox, keys, log and the file of calls are
        *,
        # The inbox, a path or a DSN; by default on SQLite, in the folder.
        database: str | None = None,
        seed: int = 0,  # of the moments of the kills and of the callbacks' slowness
        receivers: int = 1,  # how many processes at once, behind one port
        lease: float = 60,  # the lease of a task's notifications, in seconds
        tasks: int = 100,  # of how many tasks updates are sent
        # After how many kills the inbox is lost, 0 for never: a SQLite file, of one receiver.
        lose_every: int = 0,
    ) -> None:
        self._folder = folder
        self._location = database or f"{folder}/inbox.db"
        self._seed = seed
        self._lease = lease
        self._tasks = range(tasks)
        # After many deaths in a row a notification waits for up to five minutes.
        self._patience = 420 + lease
        self._random = random.Random(seed)  # repeatable, not secret
        self._keys = KeyRing.create(utc_now())
        self._lose_every = lose_every
        self._losses = Losses(folder, self._location, chance=self._random) if lose_every else None
        self._places = [Place(number) for number in range(receivers)]
        self._acknowledged: dict[str, int] = {}
        self._called: dict[str, int] = {}
        self._awaited: dict[str, float] = {}
        self._calls = folder / "calls"
        self._read_to = 0
        self._port = 0
        self.log = CallLog()
        self.report = Report()

    async def run(self, kills: int) -> Report:
        """Kill so many times in all, let the rest be called back, and count."""
        (self._folder / "jwks.json").write_text(
            json.dumps({"keys": [public_jwk(self._keys.signing_key(utc_now()))]}), "utf-8"
        )
        save_key_ring(self._folder / "keys.json", self._keys)
        self._calls.touch()
        with reserved_port() as self._port:
            agent = self._losses.answering() if self._losses else contextlib.nullcontext()
            async with self._sending() as sender, self._reading() as inbox, agent:
                reading = asyncio.create_task(self._follow())
                accepting = [asyncio.create_task(self._accept(sender, n)) for n in self._tasks]
                left = iter(range(kills))
                await asyncio.gather(*(self._lives(each, left, inbox) for each in self._places))
                for task in accepting:
                    task.cancel()
                await asyncio.gather(*accepting, return_exceptions=True)
                if self._losses:
                    await self._losses.recovered()
                await self._finish(sender, inbox)
                reading.cancel()
        self._count()
        return self.report

    # --- the sender ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[PushSender]:
        sender = PushSender(
            issuer=ISSUER,
            keys=self._keys,
            database=self._folder / "outbox.db",
            allow=["127.0.0.1:*"],
            options=SenderOptions(retry=RETRY, timeout=timedelta(seconds=5), breaker=BREAKER),
        )
        async with sender:
            yield sender

    async def _accept(self, sender: PushSender, task: int) -> None:
        task_id = f"task-{task}"
        config = {"url": f"http://127.0.0.1:{self._port}/a2a/push", "id": "soak", "token": TOKEN}
        await sender.subscribe(task_id, config, version="1.0", owner=OWNER)
        for number in range(1, sys.maxsize):
            update = StatusUpdate(
                task_id=task_id,
                context_id=str(number),
                status=TaskStatus(state=TaskState.WORKING),
            )
            # Not cancelled during a call: an update may be stored then, and has to count.
            await asyncio.shield(self._notify(sender, update, number))
            while number - self._called.get(task_id, 0) >= AHEAD:  # noqa: ASYNC110  # a file grows
                await asyncio.sleep(0.02)
            await asyncio.sleep(self._random.uniform(0, 0.2))

    async def _notify(self, sender: PushSender, update: StatusUpdate, number: int) -> None:
        await sender.notify(update)
        assert update.task_id is not None
        self._acknowledged[update.task_id] = number

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Database]:
        inbox = open_inbox(self._location)
        await inbox.open()
        yield inbox
        await inbox.close()

    # --- the receivers -------------------------------------------------------------------------

    async def _lives(self, place: Place, left: Iterator[int], inbox: Database) -> None:
        for _ in left:
            self._start(place)
            pid = pid_of(place)
            if self._random.random() < 0.8:  # else while it starts
                await eventually(lambda: self.log.begun[pid] > 0)  # noqa: B023
            await asyncio.sleep(self._random.uniform(0, 0.3))
            if self._losses:
                # `recover` asks for tasks that a restored inbox knows.
                await eventually(lambda: len(self._called) == len(self._tasks))
                self._losses.copy()
            await self._kill(place, inbox)
            self._count_kill(self.log.begun[pid])
            if self._losses and self.report.kills % self._lose_every == 0:
                self._losses.lose(self.log)

    def _count_kill(self, calls: int) -> None:
        self.report.kills += 1
        advance(1)
        self.report.kills_before_a_call += not calls

    def _start(self, place: Place) -> None:
        place.lives += 1
        place.process = self._process(place)
        if len(self._places) == 1:  # no other receiver runs meanwhile
            self._awaited = dict.fromkeys(self._awaited, time.monotonic())

    def _process(self, place: Place) -> ForkServerProcess:
        # Else the operator alone asks.
        agent = self._losses.agent if self._losses and place.lives % 2 else None
        return start(self._settings(place, agent=agent))

    def _settings(self, place: Place, **more: Any) -> Settings:
        return Settings(
            port=self._port,
            database=self._location,
            jwks=self._folder / "jwks.json",
            calls=self._calls,
            log=self._folder / "receiver.log",
            lease=timedelta(seconds=self._lease),
            seed=self._seed + place.number * 100_000 + place.lives,
            **more,
        )

    async def _kill(self, place: Place, inbox: Database) -> None:
        process = place.process
        assert process is not None
        if not process.is_alive():
            raise RuntimeError(f"a process ended by itself, with {process.exitcode}: see its log")
        await self._stop(place, inbox)
        process.kill()
        await asyncio.to_thread(process.join)
        process.close()

    async def _stop(self, place: Place, inbox: Database) -> None:
        """Let a process stand still, and note what it holds."""
        pid = pid_of(place)
        # Read while it stands still: as soon as it is gone another receiver takes over.
        while True:
            os.kill(pid, signal.SIGSTOP)
            await eventually(lambda: stands_still(pid))
            self._read_lines()
            try:
                held = await inbox.read(_held_by(self.log.dispatchers.get(pid, "")))
                break
            except StorageError:  # it stands still with a lock that SQLite takes for a moment
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(0.01)
        self.log.kill(pid)
        self.log.excuse(held)
        self.log.count_broken_off(pid)
        self._awaited.update(dict.fromkeys(held, time.monotonic()))
        self.report.in_hand_at_kills += len(held)

    async def _finish(self, sender: PushSender, inbox: Database) -> None:
        for place in self._places:
            self._start(place)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while await self._count_unfinished(sender, inbox):  # noqa: ASYNC110  # two databases'
                    await asyncio.sleep(0.1)
        self.report.unfinished = await self._count_unfinished(sender, inbox)
        gaps = await InboxAdmin(inbox).gaps("agent")
        self.report.gaps = sum(each.to_seq is not None for each in gaps)  # else what may come
        for place in self._places:
            await self._kill(place, inbox)

    async def _count_unfinished(self, sender: PushSender, inbox: Database) -> int:
        """Return how much is not delivered, or not called back; a dead letter never will be."""
        outbox = (await sender.outbox.stats()).states
        statuses = (await InboxAdmin(inbox).stats()).statuses
        undelivered = sum(outbox.values()) - outbox[DeliveryState.DELIVERED]
        return undelivered + sum(statuses.values()) - statuses[InboxStatus.DONE]

    # --- what they wrote -----------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            self._read_lines()
            await asyncio.sleep(0.01)

    def _read_lines(self) -> None:
        with self._calls.open("rb") as calls:
            calls.seek(self._read_to)
            lines, end, _ = calls.read().rpartition(b"\n")
        self._read_to += len(lines) + len(end)
        for line in lines.decode().splitlines():
            call = self.log.read(line)
            if call is None:
                continue
            self._called[call.task] = max(call.number, self._called.get(call.task, 0))
            since = self._awaited.pop(call.delivery_id, None)
            if since is not None:
                waited = time.monotonic() - since
                self.report.slowest_resume = max(self.report.slowest_resume, waited)

    def _count(self) -> None:
        report, log = self.report, self.log
        report.acknowledged = sum(self._acknowledged.values())
        report.calls = sum(log.begun.values())
        report.calls_missing = log.missing(self._acknowledged)
        report.overtaken = log.overtaken
        report.overlapping = log.overlapping
        report.broken_off = log.broken_off
        report.called_again = log.called_again
        report.called_again_after_end = log.again_after_end
        report.unexplained = log.unexplained
        report.called_late = log.late
        if self._losses:
            report.inboxes_lost = self._losses.number
            report.recoveries_broken_off = self._losses.broken_off


def pid_of(place: Place) -> int:
    """Return the id of a place's process."""
    assert place.process is not None
    assert place.process.pid is not None
    return place.process.pid


def stands_still(pid: int) -> bool:
    """Return whether every thread of a process is stopped."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(each.read_text().rpartition(")")[2].split()[0] == "T" for each in threads)


def _held_by(dispatcher: str) -> Script[dict[str, set[str]]]:
    """Return what a dispatcher may have begun: delivery ids, and the callbacks that had each.

    Of each queue, that is the first notification: the next one begins once it was settled.
    """
    rows = yield Statement(
        "SELECT i.delivery_id, c.callback FROM pushkit_inbox_queues q JOIN pushkit_inbox i"
        " ON i.queue_id = q.id AND i.state = 'pending' AND i.waits = 0"
        " AND i.place <= q.sending_to LEFT JOIN pushkit_callbacks c"
        " ON c.notification_id = i.id AND c.done = 1"
        " WHERE q.lease_worker = $1 AND NOT EXISTS (SELECT 1 FROM pushkit_inbox b"
        " WHERE b.queue_id = i.queue_id AND b.state = 'pending' AND b.place < i.place)",
        (dispatcher,),
    )
    held: dict[str, set[str]] = {row["delivery_id"]: set() for row in rows}
    for row in rows:
        if row["callback"] is not None:
            held[row["delivery_id"]].add(row["callback"])
    return held


def _make(folder: Path, **given: Any) -> Killer:
    if given["lose_every"] and (given["database"] or given["receivers"] > 1):
        sys.exit("--lose-every: expected one receiver, and no database")
    return Killer(folder, **given)


if __name__ == "__main__":
    logging.getLogger("pushkit").setLevel(logging.CRITICAL)  # every kill fails many attempts
    # A lease is in seconds; 0 kills: never.
    sys.exit(killing.run(__doc__, _make, receivers=1, lease=4.0, lose_every=0))
