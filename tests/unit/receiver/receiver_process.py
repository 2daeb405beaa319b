"""A receiver process for tests: it calls back, or accepts one request, and may be killed any time.

python receiver_process.py call DSN LEASE_SECONDS
    calls back from the inbox there; each call is a row of `calls`, in the order of the calls. The
    first of them end once another process calls back, too.
python receiver_process.py accept DATABASE REQUEST JWKS TOKEN
    accepts the request in the file REQUEST once a line is read, signed by a key of the file JWKS.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from datetime import timedelta
from pathlib import Path

import asyncpg

from pushkit.webhook import WebhookRequest
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.callbacks import dispatcher
from tests.eventually import eventually

BASE_URL = "https://client.example.com"
ISSUER = "https://agent.example.com"


async def call_back(dsn: str, lease_seconds: str) -> None:
    """Call back until killed."""
    dispatcher._LEASE = timedelta(seconds=float(lease_seconds))  # type: ignore[misc]
    dispatcher._SURE_FOR = dispatcher._LEASE / 2  # type: ignore[misc]
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=4)
    receiver = Receiver(
        url=BASE_URL,
        senders=[TrustedSender(name="agent", issuer=ISSUER, keys=[], tasks=TaskPolicy.ANY)],
        database=dsn,
        concurrency=2,  # there are more tasks than that, and than it leases ahead
    )

    @receiver.on_update(name="write-down")
    async def write_down(notification: Notification) -> None:
        await pool.execute(
            "INSERT INTO calls (pid, delivery_id) VALUES ($1, $2)",
            os.getpid(),
            notification.delivery_id,
        )
        await eventually(lambda: pool.fetchval("SELECT COUNT(DISTINCT pid) = 2 FROM calls"))

    async with receiver:
        print("READY", flush=True)  # noqa: T201  # to the test
        await asyncio.Event().wait()


async def accept(database: str, request: str, jwks: str, token: str) -> None:
    """Accept one request."""
    receiver = Receiver(
        url=BASE_URL,
        senders=[
            TrustedSender(
                name="agent",
                issuer=ISSUER,
                jwks_file=Path(jwks),
                tasks=TaskPolicy.ANY,
                tokens=[token],
            )
        ],
        database=database,
    )
    await receiver.open()
    print("READY", flush=True)  # noqa: T201  # to the test
    found = await asyncio.to_thread(_read_when_told, Path(request))
    print("RECEIVING", flush=True)  # noqa: T201  # to the test
    await receiver.receive(found)


def _read_when_told(path: Path) -> WebhookRequest:
    sys.stdin.readline()
    found: WebhookRequest = pickle.loads(path.read_bytes())  # noqa: S301  # the test's
    return found


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    asyncio.run(call_back(*arguments) if what == "call" else accept(*arguments))
