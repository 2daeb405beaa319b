"""One side of a comparison of senders, in its own process: it sends, and prints its cost.

python -m benchmarks.bench.sides NAME '{"ports": [8080], "tasks": 64, "updates": 2000, …}'
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import logging
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from benchmarks.bench import pinned

if TYPE_CHECKING:
    from pushkit import PushSender


class AtOnce(TypedDict, total=False):
    """Options of a sender: how many attempts run at once."""

    concurrency: int
    concurrency_per_host: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a side."""

    ports: tuple[int, ...]  # the ports of the webhooks on 127.0.0.1; tasks are spread over them
    tasks: int = 64  # tasks that send at once, each one update after another
    updates: int = 2000  # updates in total
    body_bytes: int = 0  # the length of a message in each update; 0 for none
    events: bool = True  # whether to pass the SDK's own events; False for pushkit's updates
    algorithm: str = "ES256"  # of the signing key
    database: str | None = None  # a PostgreSQL DSN; None for a SQLite file
    rate: float | None = None  # updates a second in total; None for as many as possible
    concurrency: int | None = None  # attempts at once, also at one host; None for the defaults
    left_out: int = 0  # webhooks, counted from the last, that no task has
    # Webhooks among the others, counted from the last, that never answer: not waited for.
    hanging: int = 0
    backlog: int = 0  # pending deliveries before the first attempt; `updates` of them are measured
    workers: int = 1  # processes over which the tasks are spread
    part: int | None = None  # the number of this process: 0, 1, …; None for their parent

    @classmethod
    def parse(cls, text: str) -> Load:
        """Return the load of a JSON object."""
        given = json.loads(text)
        known = {field.name for field in fields(cls)}
        return cls(**{k: v for k, v in given.items() if k in known} | {"ports": given["ports"]})

    def url(self, task: int) -> str:
        """Return the webhook of a task."""
        ports = self.ports[: len(self.ports) - self.left_out]
        return f"http://127.0.0.1:{ports[task % len(ports)]}/hook"

    @property
    def at_once(self) -> AtOnce:
        """The options of a sender that say how many attempts run at once: none by default."""
        if self.concurrency is None:
            return {}
        return {"concurrency": self.concurrency, "concurrency_per_host": self.concurrency}

    @property
    def numbers(self) -> range:
        """The tasks of this process."""
        share = self.tasks // self.workers
        return range(share * (self.part or 0), share * ((self.part or 0) + 1))

    @property
    def answered(self) -> int:
        """How many of the updates go to webhooks that answer."""
        used = len(self.ports) - self.left_out
        ours = [task for task in range(self.tasks) if task % used < used - self.hanging]
        return self.updates // self.tasks * len(ours)


@dataclass(slots=True)
class Cost:
    """The cost of sending, from the first update to the last acknowledgement."""

    seconds: float  # on the wall clock
    cpu: float  # of all processes, in seconds
    waits: list[float]  # how long the agent waited for each call, in seconds
    peak_mib: float = 0.0  # the most memory that was in use


# The modules of the updates' types; each side imports what it needs once, as an agent does.
_types_of_sdk: Callable[[], Any] = functools.cache(lambda: importlib.import_module("a2a.types"))
_types: Callable[[], Any] = functools.cache(lambda: importlib.import_module("pushkit.a2a"))


def event(load: Load, task: int) -> Any:
    """Return an update as an event of the SDK, with its time in its metadata."""
    types = _types_of_sdk()
    message = None
    if load.body_bytes:
        part = types.Part(text="x" * load.body_bytes)
        message = types.Message(message_id="m", role=types.Role.ROLE_AGENT, parts=[part])
    made = types.TaskStatusUpdateEvent(
        task_id=f"task-{task}",
        context_id="context-0123456789",
        status=types.TaskStatus(state=types.TaskState.TASK_STATE_WORKING, message=message),
    )
    made.metadata["sent"] = str(time.monotonic_ns())
    return made


def ready(load: Load, task: int) -> Any:
    """Return an update of pushkit's own types, with its time in its metadata."""
    types = _types()
    message = None
    if load.body_bytes:
        text = types.TextPart(text="x" * load.body_bytes)
        message = types.Message(message_id="m", role=types.Role.AGENT, parts=(text,))
    return types.StatusUpdate(
        task_id=f"task-{task}",
        context_id="context-0123456789",
        status=types.TaskStatus(state=types.TaskState.WORKING, message=message),
        metadata={"sent": str(time.monotonic_ns())},
    )


async def run(load: Load, send: Callable[[int], Awaitable[object]]) -> Cost:
    """Send all updates, those of a task one after another."""
    waits: list[float] = []
    each = load.updates // load.tasks
    began, cpu = time.perf_counter(), time.process_time()

    async def one(task: int) -> None:
        pause = None if load.rate is None else load.tasks / load.rate
        due = began + (0 if pause is None else pause * task / load.tasks)
        for _ in range(each):
            if pause is not None:
                await asyncio.sleep(max(0, due - time.perf_counter()))
                due += pause
            asked = time.perf_counter()
            await send(task)
            waits.append(time.perf_counter() - asked)

    await asyncio.gather(*(one(task) for task in load.numbers))
    return Cost(time.perf_counter() - began, time.process_time() - cpu, waits)


async def a2a_sdk(load: Load) -> Cost:
    """Run a2a-sdk's own sender: unsigned, not durable."""
    import httpx
    from a2a.server.context import ServerCallContext
    from a2a.server.tasks import (
        BasePushNotificationSender,
        InMemoryPushNotificationConfigStore,
    )
    from a2a.types import TaskPushNotificationConfig

    store = InMemoryPushNotificationConfigStore()
    for task in range(load.tasks):
        config = TaskPushNotificationConfig(url=load.url(task))
        await store.set_info(f"task-{task}", config, ServerCallContext())
    async with httpx.AsyncClient() as client:
        sender = BasePushNotificationSender(client, store)
        return await run(
            load, lambda task: sender.send_notification(f"task-{task}", event(load, task))
        )


async def arrived(load: Load) -> int:
    """Return how many requests have reached the webhooks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", load.ports[0])
    writer.write(b"GET /count HTTP/1.1\r\nHost: sink\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.rpartition(b": ")[2]))
    writer.close()
    return int(body)


async def until_all_arrived(load: Load) -> None:
    """Wait until all updates have reached the webhooks that answer."""
    while await arrived(load) < load.answered:
        await asyncio.sleep(0.005)  # 1 % of the shortest run


async def pushkit(load: Load) -> Cost:
    """Run pushkit: signed and durable, until the last delivery has arrived."""
    from a2a.server.tasks import InMemoryTaskStore

    from pushkit import Algorithm, KeyRing, PushSender, SenderOptions
    from pushkit.integrations.a2a_sdk import PushkitNotificationSender

    with tempfile.TemporaryDirectory() as folder:
        async with PushSender(
            issuer="https://agent.example.com",
            keys=KeyRing.create(datetime.now(UTC), Algorithm(load.algorithm)),
            database=load.database or f"{folder}/outbox.db",
            allow=["127.0.0.1:*"],
            options=SenderOptions(**load.at_once),
        ) as push:
            for task in load.numbers:
                config = {"url": load.url(task), "id": "bench"}
                await push.subscribe(f"task-{task}", config, version="1.0")
            sender = PushkitNotificationSender(push, task_store=InMemoryTaskStore())

            async def send(task: int) -> None:
                if load.events:
                    await sender.send_notification(f"task-{task}", event(load, task))
                else:
                    await push.notify(ready(load, task))

            began, cpu = time.perf_counter(), time.process_time()
            cost = await run(load, send)
            await until_all_arrived(load)
            return Cost(time.perf_counter() - began, time.process_time() - cpu, cost.waits)


async def _agent(load: Load, task_store: Any, **parts: Any) -> list[float]:
    """Run an agent on a2a-sdk; return the seconds that each of its tasks of four events took."""
    from a2a.helpers import new_task_from_user_message, new_text_part
    from a2a.server.agent_execution import AgentExecutor
    from a2a.server.context import ServerCallContext
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.tasks import TaskUpdater
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        Message,
        Part,
        Role,
        SendMessageConfiguration,
        SendMessageRequest,
        TaskPushNotificationConfig,
    )

    class WorkingAgent(AgentExecutor):
        async def execute(self, context: Any, event_queue: Any) -> None:
            task = new_task_from_user_message(context.message)
            task.id, task.context_id = context.task_id, context.context_id
            await event_queue.enqueue_event(task)
            updater = TaskUpdater(event_queue, context.task_id, context.context_id)
            await updater.start_work()
            await updater.add_artifact([new_text_part("result")], name="result")
            await updater.complete()

        async def cancel(self, context: Any, event_queue: Any) -> None:
            raise NotImplementedError

    card = AgentCard(name="Agent", capabilities=AgentCapabilities(push_notifications=True))
    handler = DefaultRequestHandler(
        agent_executor=WorkingAgent(), task_store=task_store, agent_card=card, **parts
    )

    async def send(task: int) -> None:
        config = TaskPushNotificationConfig(id="bench", url=load.url(task))
        message = Message(message_id=f"{task}", role=Role.ROLE_USER, parts=[Part(text="work")])
        request = SendMessageRequest(
            message=message,
            configuration=SendMessageConfiguration(task_push_notification_config=config),
        )
        await handler.on_message_send(request, ServerCallContext())

    return (await run(replace(load, updates=load.updates // 4), send)).waits


async def agent_with_pushkit(load: Load) -> Cost:
    """Run an agent with pushkit's sender; `waits` has the seconds of its tasks."""
    from a2a.server.tasks import InMemoryTaskStore

    from pushkit import KeyRing, PushSender
    from pushkit.integrations.a2a_sdk import PushkitConfigStore, PushkitNotificationSender

    with tempfile.TemporaryDirectory() as folder:
        async with PushSender(
            issuer="https://agent.example.com",
            keys=KeyRing.create(datetime.now(UTC)),
            database=f"{folder}/outbox.db",
            allow=["127.0.0.1:*"],
        ) as push:
            store = InMemoryTaskStore()
            began, cpu = time.perf_counter(), time.process_time()
            waits = await _agent(
                load,
                store,
                push_config_store=PushkitConfigStore(push),
                push_sender=PushkitNotificationSender(push, task_store=store),
            )
            await until_all_arrived(load)
            return Cost(time.perf_counter() - began, time.process_time() - cpu, waits)


async def agent_with_sdk(load: Load) -> Cost:
    """Run an agent with a2a-sdk's own sender; `waits` has the seconds of its tasks."""
    import httpx
    from a2a.server.tasks import (
        BasePushNotificationSender,
        InMemoryPushNotificationConfigStore,
        InMemoryTaskStore,
    )

    configs = InMemoryPushNotificationConfigStore()
    async with httpx.AsyncClient() as client:
        sender = BasePushNotificationSender(client, configs)
        began, cpu = time.perf_counter(), time.process_time()
        waits = await _agent(
            load, InMemoryTaskStore(), push_config_store=configs, push_sender=sender
        )
        await until_all_arrived(load)
        return Cost(time.perf_counter() - began, time.process_time() - cpu, waits)


async def store_backlog(push: PushSender, outbox: str, load: Load) -> None:
    """Store pending deliveries in a SQLite outbox, equally many of each task.

    `notify()` stores the first two of each task; the others are copies of the second, which gives
    the same rows in a fraction of the time.
    """
    for task in load.numbers:
        config = {"url": load.url(task), "id": "bench"}
        await push.subscribe(f"task-{task}", config, version="1.0")
        await push.notify(ready(load, task))
        await push.notify(ready(load, task))
    await asyncio.to_thread(_copy_second, outbox, load.backlog // load.tasks)


def _copy_second(outbox: str, each: int) -> None:
    with contextlib.closing(sqlite3.connect(outbox)) as database:
        columns = [name for _, name, *_ in database.execute(_COLUMNS)]
        others = ", ".join(name for name in columns if name not in {"id", "seq"})
        database.execute("CREATE TEMP TABLE second AS SELECT * FROM pushkit_deliveries WHERE seq=2")
        now = int(time.time() * 1000)
        for first in range(3, each + 1, 1000):  # the log has room for a transaction of this size
            numbers = (first, min(first + 999, each))
            database.execute(_COPY % (others, others), (*numbers, now))
            database.execute(_COPY_BODIES, numbers)
            database.commit()
        database.execute("UPDATE pushkit_subscriptions SET last_seq = ?", (each,))
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_COLUMNS = "SELECT * FROM pragma_table_info('pushkit_deliveries')"
_NUMBERS = (
    "WITH RECURSIVE numbers (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?2)"
)
_COPY = (
    f"{_NUMBERS} INSERT INTO pushkit_deliveries (id, seq, %s)"  # noqa: S608  # our own columns
    " SELECT printf('dlv_%%012x', ?3 + n) || lower(hex(randomblob(10))), n, %s"
    " FROM numbers CROSS JOIN second"
)
_COPY_BODIES = (
    f"{_NUMBERS} INSERT INTO pushkit_bodies SELECT d.id, b.body, b.traceparent"  # noqa: S608
    " FROM numbers CROSS JOIN second s JOIN pushkit_bodies b ON b.id = s.id"
    " JOIN pushkit_deliveries d ON d.subscription_id = s.subscription_id AND d.seq = n"
)


async def draining(load: Load) -> Cost:
    """Run pushkit over a backlog, until `updates` of it are delivered."""
    from pushkit import Algorithm, KeyRing, PushSender, SenderOptions

    with tempfile.TemporaryDirectory() as folder:
        outbox = f"{folder}/outbox.db"
        push = PushSender(
            issuer="https://agent.example.com",
            keys=KeyRing.create(datetime.now(UTC), Algorithm(load.algorithm)),
            database=outbox,
            allow=["127.0.0.1:*"],
            options=SenderOptions(
                **load.at_once,
                max_backlog=2**40,
                max_backlog_per_owner=2**40,
                max_backlog_per_subscription=2**40,
            ),
        )
        await push.open()
        await store_backlog(push, outbox, load)
        began, cpu = time.perf_counter(), time.process_time()
        await push.start()
        while (done := await arrived(load)) < load.updates:
            await asyncio.sleep(0.02)
        took, spent = time.perf_counter() - began, time.process_time() - cpu
        await push.close()
        # Polling may find a few more than `updates` delivered.
        return Cost(took * load.updates / done, spent * load.updates / done, [])


async def bare_commits(load: Load) -> Cost:
    """Run only `sqlite3`: one row a commit, with `synchronous = FULL`, in a thread."""
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(
            f"{folder}/bare.db", isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB)")

        def store() -> None:
            database.execute("INSERT INTO rows (body) VALUES (?)", (b"x" * 560,))

        async def send(_task: int) -> None:
            await asyncio.to_thread(store)

        cost = await run(load, send)
        database.close()
        return cost


async def bare_posts(load: Load) -> Cost:
    """Run only the transport: the cost of a POST."""
    from pushkit.net.destination import DestinationPolicy
    from pushkit.net.transport import ConnectionOptions, Transport

    options = ConnectionOptions(max_connections_per_host=load.concurrency or 256)
    client = Transport(DestinationPolicy(["127.0.0.1:*"]), options)
    body = b'{"statusUpdate":{"metadata":{"sent":"%d"}}}'
    filler = b" " * max(0, 560 + load.body_bytes - len(body) - 18)
    headers = [("Content-Type", "application/a2a+json"), ("Authorization", "Bearer " + "x" * 420)]
    targets = [client.policy.check(load.url(task)) for task in range(load.tasks)]
    timeout, body_within = timedelta(seconds=10), timedelta(seconds=1)

    async def send(task: int) -> None:
        said = body % time.monotonic_ns() + filler
        await client.post(targets[task], headers, said, timeout=timeout, body_within=body_within)

    cost = await run(load, send)
    await client.close()
    return cost


async def bare_signatures(load: Load) -> Cost:
    """Run only `cryptography`: the cost of an ES256 signature."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    how = ec.ECDSA(hashes.SHA256())
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(load.updates):
        key.sign(b"x" * 400, how)
    return Cost(time.perf_counter() - began, time.process_time() - cpu, [])


SIDES: dict[str, Callable[[Load], Awaitable[Cost]]] = {
    "a2a-sdk": a2a_sdk,
    "pushkit": pushkit,
    "bare POST": bare_posts,
    "bare ES256": bare_signatures,
    "bare commit": bare_commits,
    "draining": draining,
    "agent, pushkit": agent_with_pushkit,
    "agent, a2a-sdk": agent_with_sdk,
}


async def spread(side: str, load: Load) -> Cost:
    """Run a side in several processes, each with its part of the tasks; return the total cost.

    Each has its own core if there are enough, and the webhook has another one.
    """
    processes = []
    for part in range(load.workers):
        given = json.dumps(asdict(replace(load, part=part)))
        command = [*pinned(2 * part), sys.executable, "-m", __spec__.name, side, given]
        processes.append(await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE))
    said = await asyncio.gather(*(process.communicate() for process in processes))
    costs = [Cost(**json.loads(output)) for output, _ in said]
    return Cost(
        seconds=max(each.seconds for each in costs),
        cpu=sum(each.cpu for each in costs),
        waits=[wait for each in costs for wait in each.waits],
        peak_mib=sum(each.peak_mib for each in costs),
    )


async def measured(side: str, load: Load) -> Cost:
    """Run a side in one process, or in several if the load says so."""
    if load.workers > 1 and load.part is None:
        return await spread(side, load)
    cost = await SIDES[side](load)
    cost.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return cost


def main() -> None:
    """Run one side, and print its cost as JSON."""
    logging.disable(logging.CRITICAL)
    cost = asyncio.run(measured(sys.argv[1], Load.parse(sys.argv[2])))
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
