"""Start, close and restart receivers of one process, in random scenarios, and check every call.

python -m tests.verification.soak.restarts --seed 7 --scenarios 100 [--postgresql]

A scenario has one to three receivers on one inbox, each of which is started several times. In that
time callbacks fail, time out, swallow their cancellation or block threads, and other tasks post,
wait, expect, redrive and purge. Then all callbacks succeed, and everything has to be called back,
also what is posted after that, when receivers no longer poll unless they have to. The checks of
single calls are in `Scenario._calling`, those of a close in `Scenario._close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from pushkit import RetryPolicy, wait_schedule
from pushkit.errors import StorageError
from pushkit.events import CalledBack, Event, NotificationDead
from pushkit.progress import advance
from pushkit.scheduling import stop_after_attempt
from pushkit.storage.script import Script, Statement
from pushkit.terminal.databases import showing_progress
from receiver import (
    InboxFilter,
    InboxStatus,
    Limits,
    Notification,
    RateLimit,
    Receiver,
    TaskPolicy,
    TrustedSender,
)
from receiver.admin import open_inbox
from receiver.callbacks import dispatcher, waiting
from receiver.testing import SigningAgent
from tests.databases import PostgresServer, fresh
from tests.eventually import eventually
from tests.verification.soak.killing import options

__all__ = ["run_scenario"]

PATIENCE = 60.0  # seconds in which everything is called back once callbacks behave
DRAIN, TIMEOUT = 0.15, 0.3  # seconds
CLOSING = DRAIN + 2 + 1 + 5 + 10  # the time-outs of the stages of a close, and a busy machine
CALLBACKS = ("coroutine", "thread")
_NEVER = 3600.0  # seconds
_OFTEN = RateLimit(per_second=1e6, burst=10**6)
_AGENT = SigningAgent(webhook_url="https://client.example.com/a2a/push")


class Life:
    """The time of a receiver between a start and the end of a close."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a callback."""

    callback: str
    delivery_id: str
    life: Life
    in_progress: bool = True
    is_abandoned: bool = False  # its receiver was closed, and it continued
    is_reported: bool = False  # its receiver emitted its result
    succeeded: bool = False  # by that result
    had: bool = False  # it succeeded, or may have: it was interrupted


@dataclass(slots=True)
class Calls:
    """The calls of a task."""

    calls: list[Call] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)  # of called notifications, by delivery id

    def had(self, delivery_id: str) -> bool:
        """Return whether all callbacks may have succeeded with a notification."""
        had = {each.callback for each in self.calls if each.had and each.delivery_id == delivery_id}
        return had.issuperset(CALLBACKS)


class Scenario:
    """One scenario.

    Args:
        location: An empty database: a path or a DSN.
    """

    def __init__(self, seed: int, location: str) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._inbox = open_inbox(location)
        self._is_calm = False
        self._is_purged = self._random.random() < 0.3  # then finished notifications are gone
        self._calls: defaultdict[str, Calls] = defaultdict(Calls)
        self._accepted: set[tuple[str, str]] = set()  # task, delivery id
        self._dead: set[str] = set()
        self._checking = threading.Lock()
        self.complaints: list[str] = []
        self.seen = Counter[str]()
        many = self._random.choice((1, 1, 2, 3))
        polls = many > 1 and not location.startswith("postgres")
        dispatcher.POLL_INTERVAL = timedelta(seconds=1 if polls else _NEVER)
        waiting._POLL_SECONDS = 1.0 if polls else _NEVER
        self._lives: dict[Receiver, Life] = {self._receiver(location): Life() for _ in range(many)}

    def _receiver(self, location: str) -> Receiver:
        key = _AGENT.key.to_verification_key()
        trusted = TrustedSender(
            name="agent",
            issuer=_AGENT.issuer,
            keys=[key],
            tokens=[_AGENT.token],
            tasks=TaskPolicy.ANY,
        )
        receiver = Receiver(
            url="https://client.example.com",
            senders=[trusted],
            database=location,
            limits=Limits(peer_rate=_OFTEN, sender_rate=_OFTEN),
            retry=RetryPolicy(wait=wait_schedule((0.01, 0.1)), stop=stop_after_attempt(6)),
            concurrency=self._random.choice((1, 2, 4)),
            callback_timeout=timedelta(seconds=TIMEOUT),
            drain=timedelta(seconds=DRAIN),
            on_event=self._record,
        )

        @receiver.on_update(name="coroutine")
        async def coroutine(notification: Notification) -> None:
            await self._coroutine(notification, self._lives[receiver])

        @receiver.on_update(name="thread")
        def thread(notification: Notification) -> None:
            self._thread(notification, self._lives[receiver])

        return receiver

    # --- callbacks -----------------------------------------------------------------------------

    async def _coroutine(self, notification: Notification, life: Life) -> None:
        end, takes = self._chance()
        with self._calling("coroutine", notification, life) as call:
            try:
                await asyncio.sleep(takes)
            except asyncio.CancelledError:
                if end != "swallows":
                    raise
                call.had = True  # a time-out counts as a failure, a close may not
                await asyncio.sleep(self._random.choice((0.1, 2.5)))
                return
            self._finish(end)
            call.had = True

    def _thread(self, notification: Notification, life: Life) -> None:
        end, takes = self._chance()
        with self._calling("thread", notification, life) as call:
            time.sleep(takes)
            self._finish(end)
            call.had = True

    def _chance(self) -> tuple[str, float]:
        if self._is_calm:
            return "well", 0.0
        end = self._random.choice(("well", "well", "well", "fails", "cancels", "swallows"))
        takes = self._random.choice((0.0, 0.0, 0.01, 0.01, 0.05, 0.2, 0.7))
        return end, takes if end != "swallows" else 0.7

    def _finish(self, end: str) -> None:
        self.seen[end] += 1
        if end == "fails":
            raise ValueError(end)
        if end == "cancels":
            raise asyncio.CancelledError

    @contextlib.contextmanager
    def _calling(self, name: str, notification: Notification, life: Life) -> Iterator[Call]:
        """Check a call at its beginning: once, in order, one of a task at a time."""
        delivery_id, task = notification.delivery_id, str(notification.task_id)
        call = Call(name, delivery_id, life)
        with self._checking:
            known = self._calls[task]
            what = f"{name} of {delivery_id}"
            if any(e.in_progress and not e.is_abandoned for e in known.calls):
                self.complaints.append(f"{what} began while another call of its task ran")
            if any(
                e.succeeded and (e.callback, e.delivery_id) == (name, delivery_id)
                for e in known.calls
            ):
                self.complaints.append(f"{what} was called again though it had succeeded")
            for other, number in known.ids.items():
                if number > notification.id and delivery_id not in known.ids:
                    self.complaints.append(f"{what} was overtaken by {other}")
                if number < notification.id and not known.had(other) and other not in self._dead:
                    self.complaints.append(f"{what} overtook {other}")
            known.ids[delivery_id] = notification.id
            known.calls.append(call)
        try:
            yield call
        finally:
            call.in_progress = False

    def _record(self, event: Event) -> None:
        if isinstance(event, NotificationDead):
            self._dead.add(str(event.delivery_id))
        if isinstance(event, CalledBack):
            key = event.callback, event.delivery_id
            calls = self._calls[str(event.task_id)].calls
            call = next(e for e in reversed(calls) if (e.callback, e.delivery_id) == key)
            call.is_reported, call.succeeded = True, event.error is None

    # --- concurrent tasks ----------------------------------------------------------------------

    async def _live(self, receiver: Receiver) -> None:
        for _ in range(self._random.randint(1, 4)):
            await asyncio.sleep(self._random.choice((0, 0.01, 0.1)))
            starting = asyncio.create_task(receiver.start())
            if self._random.random() < 0.2:
                await asyncio.sleep(self._random.choice((0, 0.001, 0.01)))
                starting.cancel()
            await asyncio.wait([starting])
            await asyncio.sleep(self._random.choice((0, 0.01, 0.1, 0.5, 1)))
            await self._close(receiver)

    async def _close(self, receiver: Receiver) -> None:
        """Close a receiver in a random way; check that it ends in time, with all permits free."""
        life, begun = self._lives[receiver], time.monotonic()
        way = self._random.choice(("closes", "winds down", "is cancelled", "starts meanwhile"))
        self.seen[way] += 1
        if way == "winds down":
            receiver.wind_down()
            await asyncio.sleep(self._random.uniform(0, 2 * DRAIN))
        if way == "is cancelled":
            closing = asyncio.create_task(receiver.close())
            await asyncio.sleep(self._random.uniform(0, DRAIN))
            closing.cancel()
        starting: list[asyncio.Task[None]] = []
        closing = asyncio.create_task(receiver.close())
        if way == "starts meanwhile":
            await asyncio.sleep(self._random.uniform(0, DRAIN))
            starting.append(asyncio.create_task(receiver.start()))
        await closing
        self._lives[receiver] = Life()
        took = time.monotonic() - begun
        with self._checking:
            for known in self._calls.values():
                for call in known.calls:
                    call.is_abandoned |= call.life is life and call.in_progress
        if took > CLOSING:
            self.complaints.append(f"a close took {took:.1f} s")
        usage = receiver.dispatcher.usage()
        if not starting and usage[0]:
            self.complaints.append(f"permits in use after a close: {usage}")
        if starting:
            await starting[0]
            await asyncio.sleep(self._random.choice((0, 0.1)))
            await self._close(receiver)

    async def _post(self, task: str) -> None:
        """Post the notifications of a task, some at once, until each is accepted."""
        number = 0
        for _ in range(self._random.randint(1, 6)):
            await asyncio.sleep(self._random.choice((0, 0.01, 0.1, 0.5)))
            burst = range(number, number + self._random.choice((1, 1, 2, 10)))
            number = burst.stop
            await asyncio.gather(*(self._deliver(task, each) for each in burst))

    async def _deliver(self, task: str, number: int) -> None:
        draft = replace(_AGENT.draft(task, number + 1), delivery_id=f"{self._seed}-{task}-{number}")
        status = 503
        while status == 503:
            request = replace(draft.request(), target="/a2a/push")
            status = (await self._one().receive(request)).status
            await asyncio.sleep(0.02 if status == 503 else 0)
        if status not in {200, 202}:
            self.complaints.append(f"{draft.delivery_id} was answered {status}")
        self._accepted.add((task, draft.delivery_id))

    async def _wait(self, task: str) -> None:
        """Wait for a notification of a task: the wait ends with it, or with a close."""
        while not self._is_purged:
            with contextlib.suppress(StorageError):
                found = await self._one().wait(task, until=lambda _: True, timeout=2 * PATIENCE)
                async with contextlib.aclosing(self._one().updates(task)) as updates:
                    async for first in updates:
                        if first.id != found.id:
                            self.complaints.append(f"{task}: {found.id} came before {first.id}")
                        return
            await asyncio.sleep(0.01)

    async def _operate(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.3))
            receiver = self._one()
            receiver.dispatcher.wake()  # it does not poll for retries
            with contextlib.suppress(StorageError):
                await receiver.inbox.redrive(InboxFilter())
                if self._is_purged:
                    await receiver.inbox.purge(older_than=timedelta(0))
                if self._random.random() < 0.3:
                    await receiver.expect(task_id="other")
                    await receiver.unregister(task_id="other")

    def _one(self) -> Receiver:
        return self._random.choice(list(self._lives))

    # --- the course ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Play the scenario, and check its end."""
        before = asyncio.all_tasks()
        await self._inbox.open()
        operating = asyncio.create_task(self._operate())
        traffic = self._begin_traffic("early")
        await asyncio.gather(*(self._live(each) for each in self._lives))
        await self._until("calls continue after every close", self._nothing_runs)
        self._is_calm = True
        await self._free_leases()
        await asyncio.gather(*(each.start() for each in self._lives))
        await self._until("posted or waited for in vain", lambda: _all_done(traffic))
        await self._until("not called back", self._all_is_done)
        operating.cancel()
        await asyncio.wait([operating])
        traffic += self._begin_traffic("late")
        await self._until("posted or waited for in vain, late", lambda: _all_done(traffic))
        await self._until("not called back, late", self._all_is_done)
        await asyncio.gather(*(self._close(each) for each in self._lives))
        await self._inbox.close()
        await self._until(f"tasks left: {asyncio.all_tasks() - before}", lambda: _same(before))
        self._check_end()

    def _begin_traffic(self, when: str) -> list[asyncio.Task[None]]:
        """Begin to post to, and wait for, some tasks."""
        tasks = [f"{when}-{number}" for number in range(self._random.randint(1, 4))]
        return [asyncio.create_task(do(each)) for each in tasks for do in (self._post, self._wait)]

    async def _until(self, complaint: str, holds: Callable[[], Awaitable[object]]) -> None:
        try:
            await eventually(holds, within=PATIENCE)
        except TimeoutError:
            self.complaints.append(complaint)

    async def _nothing_runs(self) -> bool:
        return not any(e.in_progress for known in self._calls.values() for e in known.calls)

    async def _all_is_done(self) -> bool:
        statuses = (await self._one().inbox.stats()).statuses
        return not sum(statuses.values()) - statuses[InboxStatus.DONE]

    async def _free_leases(self) -> None:
        """End all leases; only calls that a close could not cancel may have one."""
        unreported = {
            e.delivery_id
            for known in self._calls.values()
            for e in known.calls
            if not e.is_reported
        }
        held = await self._inbox.write(_freed())
        self.seen["left"] += len(held)
        if held - unreported:
            self.complaints.append(f"leases were left behind: {held - unreported}")

    def _check_end(self) -> None:
        for task, delivery_id in self._accepted:
            if not self._calls[task].had(delivery_id):
                self.complaints.append(f"{delivery_id} was accepted and is lost")
        for receiver in self._lives:
            if receiver.dispatcher.caller.hanging:
                self.complaints.append("calls hang after the end")
        self.seen["accepted"] += len(self._accepted)
        self.seen["dead"] += len(self._dead)


def _freed() -> Script[set[str]]:
    """End all leases; return the first unfinished notification of each queue that had one."""
    rows = yield Statement(
        "SELECT q.id, (SELECT i.delivery_id FROM pushkit_inbox i WHERE i.queue_id = q.id"
        " AND i.state = 'pending' ORDER BY i.place LIMIT 1) AS first"
        " FROM pushkit_inbox_queues q WHERE q.lease_worker IS NOT NULL"
    )
    yield Statement(
        "UPDATE pushkit_inbox_queues SET lease_until = 0 WHERE lease_worker IS NOT NULL"
    )
    return {row["first"] or f"nothing of {row['id']}" for row in rows}


async def _all_done(tasks: list[asyncio.Task[None]]) -> bool:
    return all(each.done() for each in tasks)


async def _same(before: set[asyncio.Task[object]]) -> bool:
    return asyncio.all_tasks() <= before


def run_scenario(seed: int, location: str) -> tuple[list[str], Counter[str]]:
    """Play a scenario; return its violations, and counts of what happened."""
    threads, files = set(threading.enumerate()), _open_files()
    scenario = Scenario(seed, location)
    asyncio.run(scenario.run())
    deadline = time.monotonic() + PATIENCE
    while left := set(threading.enumerate()) - threads:
        if time.monotonic() > deadline:
            scenario.complaints.append(f"threads left: {[each.name for each in left]}")
            break
        time.sleep(0.01)
    if (now := _open_files()) != files:
        scenario.complaints.append(f"open files: {files} before, {now} after")
    return scenario.complaints, scenario.seen


def _open_files() -> int:
    gc.collect()  # closes unreachable files
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> int:
    """Run from the command line."""
    arguments = options(__doc__, seed=0, scenarios=100, postgresql=False).parse_args()
    logging.disable()  # callbacks fail all the time
    seen = Counter[str]()
    broken = 0
    with contextlib.ExitStack() as servers, tempfile.TemporaryDirectory() as folder:
        postgres = None
        if arguments.postgresql:
            postgres = PostgresServer()
            servers.callback(postgres.remove)
        for seed in range(arguments.seed, arguments.seed + arguments.scenarios):
            location = fresh(postgres.dsn) if postgres else f"{folder}/{seed}.db"
            complaints, of_scenario = run_scenario(seed, location)
            seen += of_scenario
            broken += bool(complaints)
            for each in complaints:
                print(f"scenario {seed}: {each}", flush=True)
            advance(1)
    print(*(f"{what}: {count}" for what, count in sorted(seen.items())), sep=", ")
    print(f"{broken} of {arguments.scenarios} scenarios broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    with showing_progress():
        sys.exit(main())
