"""The programs of a world: agents and workers that send, and receivers; all of it the real code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from pushkit import PushSender, RetryPolicy, SenderOptions, wait_schedule
from pushkit.keys.source import KeySource
from pushkit.work import stop_after_attempt
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from tests.simulation.webhook import KeyServer
from tests.simulation.world import Machine, Unit, World

__all__ = ["ReceivingUnit", "SendingUnit"]

_ISSUER = "https://agent.example.com"


class SendingUnit(Unit):
    """An agent, or a worker.

    Args:
        world: Where it lives.
        name: Its name.
        machine: Where it runs.
        keys: What it signs with.
        options: How it sends.
        delivers: Whether it delivers, or only enqueues.
        keys_at: The address at which it publishes its keys, if it does.
    """

    def __init__(
        self,
        world: World,
        name: str,
        machine: Machine,
        *,
        keys: KeySource,
        options: SenderOptions,
        delivers: bool,
        keys_at: str | None = None,
    ) -> None:
        super().__init__(world, name, machine)
        self._keys = keys
        self._options = options
        self._delivers = delivers
        self._keys_at = keys_at
        self.sender: PushSender | None = None

    async def main(self) -> None:
        self.sender = None
        sender = PushSender(
            issuer=_ISSUER,
            keys=self._keys,
            database="simulated",
            clock=self.machine.now,
            options=self._options,
        )
        await (sender.start() if self._delivers else sender.open())
        self.sender = sender
        if self._keys_at is not None:
            with contextlib.suppress(OSError):
                self.world.network.listen(
                    lambda: KeyServer(lambda: sender.jwks().body), self._keys_at, 443, tls=True
                )
        await asyncio.Event().wait()

    async def shut(self) -> None:
        sender, self.sender = self.sender, None
        if sender is not None:
            await sender.close()


class ReceivingUnit(Unit):
    """One of our receivers, behind its aiohttp application.

    Args:
        world: Where it lives.
        name: Its name.
        machine: Where it runs, and stores.
        callback: The client's own code, with the name that it is registered by.
        host: The name under which it is reached; that of its twin, if it is one.
    """

    def __init__(
        self,
        world: World,
        name: str,
        machine: Machine,
        callback: Callable[[str, str, Notification], Awaitable[None]],
        host: str,
    ) -> None:
        super().__init__(world, name, machine)
        self._callback = callback
        self._host = host
        self._runner: web.AppRunner | None = None

    async def main(self) -> None:
        self._runner = None
        receiver = Receiver(
            url=f"https://{self._host}.example.com",
            senders=[
                TrustedSender(
                    name="agent",
                    issuer=_ISSUER,
                    jwks_url=f"{_ISSUER}/.well-known/jwks.json",
                    path="/hook",
                    tasks=TaskPolicy.ANY,
                    tokens=[f"SECRET-owner{number}" for number in range(8)],
                )
            ],
            database="simulated",
            clock=self.machine.now,
            retry=RetryPolicy(wait=wait_schedule((1, 2, 4)), stop=stop_after_attempt(20)),
        )

        @receiver.on_update(name="client")
        async def client(notification: Notification) -> None:
            await self._callback(self._host, "client", notification)

        @receiver.on_update(name="audit")
        async def audit(notification: Notification) -> None:
            await self._callback(self._host, "audit", notification)

        runner = web.AppRunner(receiver.app(), handle_signals=False, access_log=None)
        await runner.setup()
        tls: Any = object()
        await web.TCPSite(runner, self.machine.address, 443, ssl_context=tls).start()
        self._runner = runner
        await asyncio.Event().wait()

    async def shut(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
