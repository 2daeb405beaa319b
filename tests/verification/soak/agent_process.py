"""The sending process that `crash.py` kills: it accepts updates of a few tasks, and delivers.

Every update is numbered; `ACK task number` is printed after `notify()` has returned. After a kill,
the next process continues after the last acknowledged number of each task.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import UTC, datetime, timedelta

from pushkit import KeyRing, PushSender, SenderOptions, StatusUpdate, TaskState, TaskStatus

_BACKLOG = 50  # of a task: a process lives too briefly to deliver all that it could accept


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


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
        while (await sender.notify(update, idempotency_key=str(number))).refused:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # its backlog is full
        say(f"ACK {task_id} {number}")
        await asyncio.sleep(0.002)


async def main() -> None:
    """Run until killed; without a task, only deliver what is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--webhook", required=True)
    parser.add_argument("--timeout", type=float, default=15, help="Of an attempt, in seconds.")
    parser.add_argument(
        "--margin", type=float, default=15, help="Of a lease beyond an attempt, in seconds."
    )
    parser.add_argument("--start", action="append", default=[], help="task=number")
    arguments = parser.parse_args()
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=arguments.database,
        allow=["127.0.0.1:*"],
        options=SenderOptions(
            timeout=timedelta(seconds=arguments.timeout),
            lease_margin=timedelta(seconds=arguments.margin),
            max_backlog_per_subscription=_BACKLOG,
        ),
    )
    async with sender:
        say(f"WORKER {sender.worker.name}")
        starts = [entry.split("=") for entry in arguments.start]
        await asyncio.gather(
            asyncio.Event().wait(),
            *(accept(sender, task, arguments.webhook, int(number)) for task, number in starts),
        )


if __name__ == "__main__":
    asyncio.run(main())
