"""The sending process that `crash.py` kills: it accepts updates of a few tasks, and delivers.

Every update is numbered; `ACK task number` is printed after `notify()` has returned. After a kill,
the next process continues after the last acknowledged number of each task.

Clients join some of the tasks late, with a snapshot, which says the number of the last update that
is stored: `JOINED task number seq` is printed after `subscribe()` has returned, for the config
`joined-number`. After a kill, the next process joins the first config anew that was not joined yet.

With `--api` it serves the push-config API at that port.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import (
    BreakerPolicy,
    KeyRing,
    PushSender,
    RetryPolicy,
    SenderOptions,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    wait_schedule,
)
from pushkit.delivery import snapshots
from pushkit.errors import InvalidPushConfigError, StorageError
from pushkit.integrations.push_config_api import PushConfigApi, push_config_app
from tests.verification.soak.killing import options

ISSUER = "https://agent.example.com"
OWNER = "soak"
# Of a sender whose webhook is killed all the time.
RETRY = RetryPolicy(wait=wait_schedule((0.05, 0.1, 0.2)), stop=stop_after_attempt(10**6))
BREAKER = BreakerPolicy(failures=10**6)

_BACKLOG = 50  # of a task: a process lives too briefly to deliver all that it could accept
_JOINS = 6  # of a task: each update is delivered to all of its configs
_WORKING = TaskStatus(state=TaskState.WORKING)


async def accept(sender: PushSender, task_id: str, webhook: str, stored: dict[str, int]) -> None:
    """Accept updates of one task, one after another, until the process is killed."""
    config = {"url": webhook, "id": "soak"}
    await sender.subscribe(task_id, config, version="1.0", owner=OWNER)
    while True:
        number = stored[task_id]
        # The same bytes whenever repeated.
        update = StatusUpdate(task_id=task_id, context_id=str(number), status=_WORKING)
        while (await sender.notify(update, idempotency_key=str(number))).refused:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # its backlog is full
        print(f"ACK {task_id} {number}", flush=True)
        await asyncio.sleep(0.002)
        stored[task_id] += 1


async def join(
    sender: PushSender, task_id: str, webhook: str, number: int, stored: dict[str, int]
) -> None:
    """Subscribe configs to one task, one after another, while its updates are accepted."""

    async def read(_owner: str) -> Task:
        await asyncio.sleep(random.uniform(0, 0.03))
        task = Task(id=task_id, context_id=str(stored[task_id]), status=_WORKING)
        await asyncio.sleep(random.uniform(0, 0.03))
        return task

    for each in range(number, _JOINS):
        config = {"url": webhook, "id": f"joined-{each}"}
        while True:
            try:
                found = await sender.subscribe(
                    task_id, config, version="1.0", owner=OWNER, snapshot=read
                )
                break
            except (InvalidPushConfigError, StorageError):  # its backlog is full; read too slowly
                await asyncio.sleep(0.02)
        print(f"JOINED {task_id} {each} {found.last_seq}", flush=True)


async def main() -> None:
    """Run until killed; without a task, only deliver what is there."""
    # A port on 127.0.0.1 that others may share; and of an attempt and its lease, in seconds.
    parser = options(None, database="", keys=None, webhook="", api=0, timeout=15.0, margin=15.0)
    # Of a task, the number of the next update, or of the next config: `task=number`.
    for name in ("--start", "--join"):
        parser.add_argument(name, action="append", default=[])
    arguments = parser.parse_args()
    # A killed process leaves a snapshot that is held: what is behind it waits for so long.
    vars(snapshots).update(HELD_FOR=timedelta(seconds=1))
    sender = PushSender(
        issuer=ISSUER,
        keys=arguments.keys or KeyRing.create(datetime.now(UTC)),
        database=arguments.database,
        allow=["127.0.0.1:*"],
        options=SenderOptions(
            timeout=timedelta(seconds=arguments.timeout),
            lease_margin=timedelta(seconds=arguments.margin),
            max_backlog_per_subscription=_BACKLOG,
            max_recovered_per_owner=10**6,
            retry=RETRY,
            breaker=BREAKER,
        ),
    )
    async with sender:
        if arguments.api:
            await _serve(sender, arguments.api)
        print(f"WORKER {sender.worker.name}", flush=True)
        # The number of the last update in the task store. It holds each before that is notified,
        # and what a killed process stored: at most the one after the last acknowledged.
        stored = _numbers(arguments.start)
        webhook, joined = arguments.webhook, _numbers(arguments.join)
        await asyncio.gather(
            asyncio.Event().wait(),
            *(accept(sender, task, webhook, stored) for task in stored),
            *(join(sender, task, webhook, number, stored) for task, number in joined.items()),
        )


async def _serve(sender: PushSender, port: int) -> None:
    app = push_config_app(PushConfigApi(sender, task_exists=None), owner=lambda _: OWNER)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_port=True).start()


def _numbers(words: list[str]) -> dict[str, int]:
    return {task: int(number) for task, number in (each.split("=") for each in words)}


if __name__ == "__main__":
    asyncio.run(main())
