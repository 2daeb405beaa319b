"""The process that is killed: it accepts updates for a few tasks, and delivers them.

Every update is numbered; `ACK task number` is printed once `notify()` has returned, and never
before. After a kill it goes on behind the last number that its task has in the outbox.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus

TASKS = 8


async def accept(sender: PushSender, task_id: str, webhook: str, number: int) -> None:
    """Accept updates of one task, one after another, until the process is killed."""
    config = {"url": webhook, "id": "soak"}
    await sender.subscribe(task_id, config, version="1.0", owner="soak")
    while True:
        number += 1
        update = StatusUpdate(
            task_id=task_id,
            context_id=str(number),
            status=TaskStatus(state=TaskState.WORKING),  # the same bytes whenever repeated
        )
        await sender.notify(update, idempotency_key=str(number))
        sys.stdout.write(f"ACK {task_id} {number}\n")
        sys.stdout.flush()
        await asyncio.sleep(0.002)


async def main() -> None:
    """Run until killed; with `--drain`, only deliver what is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--webhook", required=True)
    parser.add_argument("--start", type=int, nargs=TASKS, default=[0] * TASKS)
    parser.add_argument("--drain", action="store_true")
    arguments = parser.parse_args()
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=arguments.database,
        allow=["127.0.0.1:*"],
    )
    async with sender:
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        if arguments.drain:
            await asyncio.Event().wait()
        await asyncio.gather(
            *(
                accept(sender, f"task-{index}", arguments.webhook, arguments.start[index])
                for index in range(TASKS)
            )
        )


if __name__ == "__main__":
    asyncio.run(main())
