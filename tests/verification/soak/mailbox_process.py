"""The processes that `mailbox_crash.py` kills: a receiver with a mailbox, and its clients.

A client appends to the file of calls as `webhook_process.py` does, with `mailbox` as callback.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from pushkit.terminal.listening import accepting
from receiver import Mailbox, MailboxOptions
from receiver.limits import ConnectionLimits
from receiver.serving.server import HttpServer
from tests.verification.soak.webhook_process import Calls, Settings, make_receiver, shared_port

__all__ = ["fetch", "serve"]

_MAILBOX_TOKEN = "the-token-of-the-mailbox"
_LEASE = timedelta(seconds=5)


async def serve(settings: Settings) -> None:
    """Receive, and keep everything in a mailbox."""
    logging.basicConfig(filename=settings.log, level=logging.WARNING)
    receiver = make_receiver(settings)
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


async def fetch(settings: Settings) -> None:
    """Handle what the mailbox hands out."""
    logging.basicConfig(filename=settings.log.with_name("client.log"), level=logging.WARNING)
    calls = Calls(settings, longest=0.05)
    url = f"http://127.0.0.1:{settings.port}/mailbox/soak"
    async for notification in Mailbox(url, _MAILBOX_TOKEN):
        await calls.call("mailbox", notification)
