"""Start, close and start again receivers of one process, in random stories, and judge every call.

python tests/soak/restarts.py --seed 7 --stories 100 [--postgresql] [--redis]

A story has one to three receivers on one inbox, each of which lives several times, while callbacks
fail, run out of time, swallow their cancellation or sit in threads, and others post, wait, expect,
redrive and purge. Then all callbacks behave, and everything has to be called back. In the end
nobody looks for anything by himself any more, where others can tell: what comes then has to be
called back, too, and waited for. What must hold besides is said where it is judged.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from pushkit import RetryPolicy, wait_schedule  # noqa: E402  # also run as a script
from pushkit.errors import StorageError  # noqa: E402
from pushkit.events.model import Event  # noqa: E402
from pushkit.events.receiver import CalledBack, NotificationDead  # noqa: E402
from pushkit.progress import advance  # noqa: E402
from pushkit.scheduling import stop_after_attempt  # noqa: E402
from pushkit.storage.script import Script, Statement  # noqa: E402
from pushkit.terminal.progress import showing_progress  # noqa: E402
from receiver import (  # noqa: E402
    InboxFilter,
    InboxStatus,
    Limits,
    Notification,
    RateLimit,
    Receiver,
    TaskPolicy,
    TrustedSender,
)
from receiver.admin import open_inbox  # noqa: E402
from receiver.callbacks import dispatcher, waiting  # noqa: E402
from receiver.testing import SigningAgent  # noqa: E402
from tests.databases import PostgresServer, fresh  # noqa: E402
from tests.redis_server import RedisServer  # noqa: E402

__all__ = ["run_story"]

PATIENCE = 60.0  # seconds in which everything is called back once callbacks behave
DRAIN, TIMEOUT = 0.15, 0.3  # seconds
CLOSING = DRAIN + 2 + 1 + 5 + 10  # those that a close may take at its stages, and a busy machine
CALLBACKS = ("coroutine", "thread")
_NEVER = 3600.0  # seconds
_OFTEN = RateLimit(per_second=1e6, burst=10**6)
_AGENT = SigningAgent(webhook_url="https://client.example.com/a2a/push")


class Life:
    """A receiver between a start and the end of a close."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a callback."""

    callback: str
    delivery_id: str
    life: Life
    under_way: bool = True
    is_left: bool = False  # its receiver was closed, and it went on
    is_told: bool = False  # its receiver told how it ended
    well: bool = False  # and that was well
    had: bool = False  # or may have been: it was broken off meanwhile


@dataclass(slots=True)
class Line:
    """The calls of a task."""

    calls: list[Call] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)  # of what was called, by delivery id

    def had(self, delivery_id: str) -> bool:
        """Say whether all callbacks may have had it."""
        had = {each.callback for each in self.calls if each.had and each.delivery_id == delivery_id}
        return had.issuperset(CALLBACKS)


class Story:
    """One story.

    Args:
        location: An empty database: a path or a DSN.
        replay: A Redis URL, for the memory of ids; None for the database.
    """

    def __init__(self, seed: int, location: str, replay: str | None) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._inbox = open_inbox(location)
        self._is_calm = False
        self._is_purged = self._random.random() < 0.3  # then nobody can wait for what is over
        self._lines: defaultdict[str, Line] = defaultdict(Line)
        self._accepted: set[tuple[str, str]] = set()  # task, delivery id
        self._dead: set[str] = set()
        self._judging = threading.Lock()
        self.complaints: list[str] = []
        self.seen = Counter[str]()
        many = self._random.choice((1, 1, 2, 3))
        polls = many > 1 and not location.startswith("postgres")
        dispatcher.POLL_INTERVAL = timedelta(seconds=1 if polls else _NEVER)
        waiting._POLL_SECONDS = 1.0 if polls else _NEVER
        self._lives: dict[Receiver, Life] = {
            self._receiver(location, replay): Life() for _ in range(many)
        }

    def _receiver(self, location: str, replay: str | None) -> Receiver:
        key = _AGENT.key.to_verification_key()
        trusted = TrustedSender(
            name="agent",
            issuer=_AGENT.issuer,
            keys={key.kid: key},
            tokens=[_AGENT.token],
            tasks=TaskPolicy.ANY,
        )
        receiver = Receiver(
            url="https://client.example.com",
            senders=[trusted],
            database=location,
            replay=replay,
            limits=Limits(peer_rate=_OFTEN, sender_rate=_OFTEN),
            retry=RetryPolicy(wait=wait_schedule((0.01, 0.1)), stop=stop_after_attempt(6)),
            concurrency=self._random.choice((1, 2, 4)),
            callback_timeout=timedelta(seconds=TIMEOUT),
            drain=timedelta(seconds=DRAIN),
            on_event=self._hear,
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
                call.had = True  # a time-out fails, an end may not
                await asyncio.sleep(self._random.choice((0.1, 2.5)))
                return
            self._come_to(end)
            call.had = True

    def _thread(self, notification: Notification, life: Life) -> None:
        end, takes = self._chance()
        with self._calling("thread", notification, life) as call:
            time.sleep(takes)
            self._come_to(end)
            call.had = True

    def _chance(self) -> tuple[str, float]:
        if self._is_calm:
            return "well", 0.0
        end = self._random.choice(("well", "well", "well", "fails", "cancels", "swallows"))
        takes = self._random.choice((0.0, 0.0, 0.01, 0.01, 0.05, 0.2, 0.7))
        return end, takes if end != "swallows" else 0.7

    def _come_to(self, end: str) -> None:
        self.seen[end] += 1
        if end == "fails":
            raise ValueError(end)
        if end == "cancels":
            raise asyncio.CancelledError

    @contextlib.contextmanager
    def _calling(self, name: str, notification: Notification, life: Life) -> Iterator[Call]:
        """Judge a call at its beginning: once, in order, one of a task at a time."""
        delivery_id, task = notification.delivery_id, str(notification.task_id)
        call = Call(name, delivery_id, life)
        with self._judging:
            line = self._lines[task]
            said = f"{name} of {delivery_id}"
            if any(e.under_way and not e.is_left for e in line.calls):
                self.complaints.append(f"{said} began while another call of its task went on")
            if any(
                e.well and (e.callback, e.delivery_id) == (name, delivery_id) for e in line.calls
            ):
                self.complaints.append(f"{said} was called again though it had ended well")
            for other, number in line.ids.items():
                if number > notification.id and delivery_id not in line.ids:
                    self.complaints.append(f"{said} was overtaken by {other}")
                if number < notification.id and not line.had(other) and other not in self._dead:
                    self.complaints.append(f"{said} overtook {other}")
            line.ids[delivery_id] = notification.id
            line.calls.append(call)
        try:
            yield call
        finally:
            call.under_way = False

    def _hear(self, event: Event) -> None:
        if isinstance(event, NotificationDead):
            self._dead.add(str(event.delivery_id))
        if isinstance(event, CalledBack):
            said = event.callback, event.delivery_id
            calls = self._lines[str(event.task_id)].calls
            call = next(e for e in reversed(calls) if (e.callback, e.delivery_id) == said)
            call.is_told, call.well = True, event.error is None

    # --- what goes on beside -------------------------------------------------------------------

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
        """Close a receiver, somehow: in time, and nothing of it is left in work."""
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
        with self._judging:
            for line in self._lines.values():
                for call in line.calls:
                    call.is_left |= call.life is life and call.under_way
        if took > CLOSING:
            self.complaints.append(f"a close took {took:.1f} s")
        if not starting and receiver.dispatcher.slots()[0]:
            self.complaints.append(f"places in use after a close: {receiver.dispatcher.slots()}")
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
        """Wait for something of a task: whoever waits hears of it, or of a close."""
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
            receiver.dispatcher.wake()  # retries are found by looking
            with contextlib.suppress(StorageError):
                await receiver.inbox.redrive(InboxFilter())
                if self._is_purged:
                    await receiver.inbox.purge(older_than=timedelta(0))
                if self._random.random() < 0.3:
                    await receiver.expect(task_id="other")
                    await receiver.expect_no_longer(task_id="other")

    def _one(self) -> Receiver:
        return self._random.choice(list(self._lives))

    # --- from beginning to end -----------------------------------------------------------------

    async def run(self) -> None:
        """Tell the story, and judge what is left of it."""
        before = asyncio.all_tasks()
        await self._inbox.open()
        operating = asyncio.create_task(self._operate())
        beside = self._beside("early")
        await asyncio.gather(*(self._live(each) for each in self._lives))
        await self._until("calls go on after every close", self._nothing_runs)
        self._is_calm = True
        await self._free_leases()
        await asyncio.gather(*(each.start() for each in self._lives))
        await self._until("posted or waited for in vain", lambda: _all_done(beside))
        await self._until("not called back", self._all_is_done)
        operating.cancel()
        await asyncio.wait([operating])
        beside += self._beside("late")
        await self._until("posted or waited for in vain, late", lambda: _all_done(beside))
        await self._until("not called back, late", self._all_is_done)
        await asyncio.gather(*(self._close(each) for each in self._lives))
        await self._inbox.close()
        await self._until(f"tasks left: {asyncio.all_tasks() - before}", lambda: _same(before))
        self._judge_the_end()

    def _beside(self, when: str) -> list[asyncio.Task[None]]:
        """Begin to post, and to wait, for some tasks."""
        tasks = [f"{when}-{number}" for number in range(self._random.randint(1, 4))]
        return [asyncio.create_task(do(each)) for each in tasks for do in (self._post, self._wait)]

    async def _until(self, complaint: str, holds: Callable[[], Awaitable[object]]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not await holds():  # noqa: ASYNC110  # threads' and databases' doing
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self.complaints.append(complaint)

    async def _nothing_runs(self) -> bool:
        return not any(e.under_way for line in self._lines.values() for e in line.calls)

    async def _all_is_done(self) -> bool:
        statuses = (await self._one().inbox.stats()).statuses
        return not sum(statuses.values()) - statuses[InboxStatus.DONE]

    async def _free_leases(self) -> None:
        """Let leases end: only what a close could not break off is under one."""
        left = {e.delivery_id for line in self._lines.values() for e in line.calls if not e.is_told}
        held = await self._inbox.write(_freed())
        self.seen["left"] += len(held)
        if held - left:
            self.complaints.append(f"leases were left behind: {held - left}")

    def _judge_the_end(self) -> None:
        for task, delivery_id in self._accepted:
            if not self._lines[task].had(delivery_id):
                self.complaints.append(f"{delivery_id} was accepted and is lost")
        for receiver in self._lives:
            if receiver.dispatcher.count_hanging():
                self.complaints.append("calls hang after the end")
        self.seen["accepted"] += len(self._accepted)
        self.seen["dead"] += len(self._dead)


def _freed() -> Script[set[str]]:
    rows = yield Statement(
        "UPDATE pushkit_inbox SET lease_until = 0 WHERE status = 'in_progress'"
        " RETURNING delivery_id"
    )
    return {row["delivery_id"] for row in rows}


async def _all_done(tasks: list[asyncio.Task[None]]) -> bool:
    return all(each.done() for each in tasks)


async def _same(before: set[asyncio.Task[object]]) -> bool:
    return asyncio.all_tasks() <= before


def run_story(
    seed: int, location: str, replay: str | None = None
) -> tuple[list[str], Counter[str]]:
    """Tell a story; return what was wrong, and what it had seen."""
    threads, files = set(threading.enumerate()), _open_files()
    story = Story(seed, location, replay)
    asyncio.run(story.run())
    deadline = time.monotonic() + PATIENCE
    while left := set(threading.enumerate()) - threads:
        if time.monotonic() > deadline:
            story.complaints.append(f"threads left: {[each.name for each in left]}")
            break
        time.sleep(0.01)
    if (now := _open_files()) != files:
        story.complaints.append(f"open files: {files} before, {now} after")
    return story.complaints, story.seen


def _open_files() -> int:
    gc.collect()  # closes what was left to it before
    return len(list(Path("/proc/self/fd").iterdir()))


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="Of the first story.")
    parser.add_argument("--stories", type=int, default=100)
    parser.add_argument("--postgresql", action="store_true", help="On a server of its own.")
    parser.add_argument("--redis", action="store_true", help="The memory of ids is elsewhere.")
    arguments = parser.parse_args()
    logging.disable()  # callbacks fail all the time
    seen = Counter[str]()
    broken = 0
    with contextlib.ExitStack() as servers, tempfile.TemporaryDirectory() as folder:
        postgres = redis = None
        if arguments.postgresql:
            postgres = PostgresServer()
            servers.callback(postgres.remove)
        if arguments.redis:
            redis = RedisServer()
            servers.callback(redis.remove)
        for seed in range(arguments.seed, arguments.seed + arguments.stories):
            location = fresh(postgres.dsn) if postgres else f"{folder}/{seed}.db"
            complaints, of_story = run_story(seed, location, redis.url if redis else None)
            seen += of_story
            broken += bool(complaints)
            for each in complaints:
                print(f"story {seed}: {each}", flush=True)
            advance(1)
    print(*(f"{what}: {count}" for what, count in sorted(seen.items())), sep=", ")
    print(f"{broken} of {arguments.stories} stories broke a promise")
    return 1 if broken else 0


if __name__ == "__main__":
    with showing_progress():
        sys.exit(main())
