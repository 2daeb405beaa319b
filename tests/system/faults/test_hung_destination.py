"""One of a hundred destinations hangs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

from aiohttp import web

from tests.eventually import eventually
from tests.served import answering
from tests.system.faults.conftest import Senders, numbered

DESTINATIONS = 100
UPDATES = 3
TASKS_OF_THE_HUNG_ONE = 200


async def test_one_hung_destination_of_a_hundred_does_not_hold_the_others_up(
    tmp_path: Path, senders: Senders
) -> None:
    all_others_delivered = asyncio.Event()
    arrived: Counter[str] = Counter()
    hung_port = 0

    async def receive(request: web.Request) -> web.Response:
        update = json.loads(await request.read())["statusUpdate"]
        if request.url.port == hung_port:
            await all_others_delivered.wait()
        arrived[update["taskId"]] += 1
        return web.Response(status=202)

    # To the hung ones a connection stays open until the test ends: nothing to wait for.
    runner = web.AppRunner(answering(receive), access_log=None, shutdown_timeout=0)
    await runner.setup()
    for _ in range(DESTINATIONS):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    hung_port, *ports = [address[1] for address in runner.addresses]

    sender = await senders.make(
        str(tmp_path / "outbox.db"),
        working=False,
        timeout=timedelta(minutes=10),
        lease_margin=timedelta(minutes=10),  # what is stored in flight waits until all are stored
    )
    for number in range(TASKS_OF_THE_HUNG_ONE):  # first, so that all of it is due before the rest
        url = f"http://127.0.0.1:{hung_port}/hook"
        await sender.subscribe(f"hung-{number}", {"url": url}, version="1.0")
        await sender.notify(numbered(f"hung-{number}", 1))
    for port in ports:
        url = f"http://127.0.0.1:{port}/hook"
        await sender.subscribe(f"task-{port}", {"url": url}, version="1.0")
        for number in range(UPDATES):
            await sender.notify(numbered(f"task-{port}", number))
    running = asyncio.create_task(sender.worker.run())

    await eventually(lambda: all(arrived[f"task-{port}"] == UPDATES for port in ports))
    all_others_delivered.set()

    await eventually(
        lambda: all(arrived[f"hung-{number}"] for number in range(TASKS_OF_THE_HUNG_ONE))
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sender.worker.finish(timedelta(seconds=5))
    await runner.cleanup()
