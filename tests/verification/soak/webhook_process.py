"""The receiver process that `receiver_crash.py` kills: it logs the beginning and end of each call.

Each line is appended to one file by a single write, so that a kill never leaves half of one:

    START pid dispatcher
    BEGIN pid callback task number delivery-id [late]
    END pid callback task number delivery-id
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import random
import socket
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import uvicorn
from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import RetryPolicy, StatusUpdate, wait_schedule
from receiver import Limits, Notification, RateLimit, Receiver, TaskPolicy, TrustedSender
from receiver.callbacks import dispatcher
from receiver.recovery import Recovery
from tests.verification.soak.agent_process import ISSUER

__all__ = ["TOKEN", "Calls", "Settings", "make_receiver", "reserved_port", "shared_port", "start"]

TOKEN = "the-token-of-the-soak"
# Every process is a fork of one that has imported everything: a start takes a tenth of a second.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__, "asyncpg"])

_OFTEN = RateLimit(per_second=1e6, burst=10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a process that calls back, or of a client of a mailbox."""

    port: int  # the port on 127.0.0.1, which other processes may share
    database: str  # the inbox: a path or a DSN
    jwks: Path  # the file with the sender's keys
    calls: Path  # the file to which calls are appended
    log: Path  # the file for its log
    seed: int  # decides how long calls take
    lease: timedelta
    edge: str = "aiohttp"  # `aiohttp`, or `asgi` for uvicorn
    # Where the sender's API answers: a third callback asks there for what is missing.
    agent: str | None = None


class Calls:
    """Makes calls, and appends their beginning and end to the file."""

    def __init__(self, settings: Settings, longest: float) -> None:
        self._random = random.Random(settings.seed)
        self._longest = longest
        self._file = os.open(settings.calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, *words: str) -> None:
        os.write(self._file, f"{' '.join((what, str(os.getpid()), *words))}\n".encode())

    async def call(self, name: str, notification: Notification) -> None:
        update = notification.update
        assert isinstance(update, StatusUpdate)
        assert update.task_id is not None
        assert update.context_id is not None
        words = (name, update.task_id, update.context_id, notification.delivery_id)
        self.write("BEGIN", *words, *(["late"] if notification.late else []))
        await asyncio.sleep(self._random.uniform(0, self._longest))
        self.write("END", *words)


def start(
    settings: Settings, run: Callable[[Settings], Coroutine[None, None, None]] | None = None
) -> ForkServerProcess:
    """Start a process that runs a coroutine function until it is killed; by default it receives."""
    process = _processes.Process(target=_run, args=(run or _serve, settings))
    process.start()
    return process


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a port that any number of receivers may listen on, one after another."""
    with shared_port(0) as reserved:
        yield reserved.getsockname()[1]


def _run(run: Callable[[Settings], Coroutine[None, None, None]], settings: Settings) -> None:
    asyncio.run(run(settings))


def make_receiver(settings: Settings, **more: Any) -> Receiver:
    """Make a receiver that trusts the agent, has no rate, and gives nothing up."""
    return Receiver(
        url=f"http://127.0.0.1:{settings.port}",
        senders=[
            TrustedSender(
                name="agent",
                issuer=ISSUER,
                jwks_file=settings.jwks,
                tokens=[TOKEN],
                tasks=TaskPolicy.ANY,
            )
        ],
        database=settings.database,
        limits=Limits(peer_rate=_OFTEN, sender_rate=_OFTEN),
        # A notification held at several kills is delayed by seconds, and never becomes dead.
        retry=RetryPolicy(wait=wait_schedule((0.1, 0.2, 0.5)), stop=stop_after_attempt(10**6)),
        **more,
    )


def shared_port(port: int) -> socket.socket:
    """Return a socket bound to a port on 127.0.0.1, or any, that other processes may share."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind(("127.0.0.1", port))
    return listening


async def _serve(settings: Settings) -> None:
    logging.basicConfig(filename=settings.log, level=logging.WARNING)
    vars(dispatcher).update(_LEASE=settings.lease, _SURE_FOR=settings.lease / 2)
    receiver = make_receiver(settings, concurrency=8)
    calls = Calls(settings, longest=0.01)
    for name in ("first", "second"):
        receiver.on_update(name=name)(partial(calls.call, name))
    if settings.agent is not None:
        receiver.on_update(name="recovery")(Recovery(settings.agent).missing)
    calls.write("START", receiver.dispatcher.name)
    with shared_port(settings.port) as listening:
        await (_serve_asgi if settings.edge == "asgi" else _serve_aiohttp)(receiver, listening)


async def _serve_aiohttp(receiver: Receiver, listening: socket.socket) -> None:
    runner = web.AppRunner(receiver.app(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening, backlog=1024).start()
    await asyncio.Event().wait()


async def _serve_asgi(receiver: Receiver, listening: socket.socket) -> None:
    config = uvicorn.Config(receiver.asgi(), log_config=None, lifespan="on", ws="none")
    await uvicorn.Server(config).serve(sockets=[listening])
