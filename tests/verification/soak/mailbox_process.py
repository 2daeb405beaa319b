"""The processes that `mailbox_crash.py` kills: a receiver with a mailbox, and its clients.

A client appends to the file of calls as `webhook_process.py` does, with `mailbox` as callback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from datetime import timedelta
from multiprocessing.context import ForkServerProcess

from pushkit import StatusUpdate
from pushkit.terminal.listening import accepting
from receiver import Mailbox, MailboxOptions
from receiver.limits import ConnectionLimits
from receiver.serving.server import HttpServer
from tests.verification.soak.webhook_process import (
    ProcessSettings,
    make_receiver,
    shared_port,
    start_process,
)

__all__ = ["start_client", "start_service"]

_MAILBOX_TOKEN = "the-token-of-the-mailbox"
_LEASE = timedelta(seconds=5)


def start_service(settings: ProcessSettings) -> ForkServerProcess:
    """Start a process that receives until it is killed."""
    return start_process(_serve, settings)


def start_client(settings: ProcessSettings) -> ForkServerProcess:
    """Start a process that fetches until it is killed."""
    return start_process(_fetch, settings)


async def _serve(settings: ProcessSettings) -> None:
    logging.basicConfig(filename=settings.log, level=logging.WARNING)
    receiver = make_receiver(settings.port, settings.database, settings.jwks)
    receiver.mailbox(MailboxOptions(name="soak", tokens=[_MAILBOX_TOKEN], lease=_LEASE))
    server = HttpServer(
        receiver.handler.handle,
        limits=ConnectionLimits(),
        is_proxy=receiver.handler.peers.is_proxy,
        max_head_bytes=receiver.handler.limits.max_header_bytes,
        refuse=receiver.handler.refuse,
    )
    with shared_port(settings.port) as listening:
        async with receiver:
            listening.listen(1024)
            async with accepting(server.protocol_for, [listening]):
                await asyncio.Event().wait()


async def _fetch(settings: ProcessSettings) -> None:
    logging.basicConfig(filename=settings.log.with_name("client.log"), level=logging.WARNING)
    slowness = random.Random(settings.seed)
    calls = os.open(settings.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(what: str, *words: str | None) -> None:
        os.write(calls, f"{what} {os.getpid()} mailbox {' '.join(map(str, words))}\n".encode())

    url = f"http://127.0.0.1:{settings.port}/mailbox/soak"
    async for notification in Mailbox(url, _MAILBOX_TOKEN):
        update = notification.update
        assert isinstance(update, StatusUpdate)
        words = (update.task_id, update.context_id, notification.delivery_id)
        write("BEGIN", *words)
        await asyncio.sleep(slowness.uniform(0, 0.05))
        write("END", *words)
