"""The programs of a world: agents and workers that send, and receivers; all of it the real code."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any, Final

from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import Algorithm, PushSender, RetryPolicy, SenderOptions, Signing, wait_schedule
from pushkit.keys.jwk import (
    SigningKey,
    VerificationKey,
    generate_key,
    public_jwk,
    verification_key,
)
from pushkit.keys.source import KeySource
from pushkit.secrets.sealing import SecretKeys
from receiver import Limits, Notification, Receiver, SenderProfile, TaskPolicy, TrustedSender
from tests.simulation.secrecy import CANARY, WEBHOOK_SECRET
from tests.simulation.webhook import KeyServer
from tests.simulation.world import Machine, Unit, World

__all__ = [
    "CALLBACK_TIMEOUT",
    "ISSUER",
    "OTHER_ISSUER",
    "SCHEMES",
    "ReceivingUnit",
    "SendingUnit",
    "other_key",
    "trusted",
]

CALLBACK_TIMEOUT = timedelta(seconds=120)
ISSUER = "https://agent.example.com"
OTHER_ISSUER = "https://other.example.com"

# How notifications are signed, by the last part of a webhook's URL. Those of a receiver that does
# not verify (`unsigned`), or not all of it, carry a JWT besides.
SCHEMES: Final = {
    "jwt": Signing(),
    "signatures": Signing(schemes=["http-message-signatures"]),
    "webhooks": Signing(schemes=["standard-webhooks"], webhook_secrets=[WEBHOOK_SECRET]),
    "both": Signing(schemes=["jwt", "http-message-signatures"]),
    "samples": Signing(),
    "unsigned": Signing(),
}


@functools.cache
def other_key() -> SigningKey:
    """Return the key of an agent that is trusted, too, and means harm."""
    return generate_key(Algorithm.ES256)


@functools.cache
def _verified_by_other() -> VerificationKey:
    return verification_key(public_jwk(other_key()))


def _tokens(trust: str) -> list[str]:
    owners = range(2 if trust == "fewer" else 8)
    return [f"{CANARY}-owner{n}{again}" for n in owners for again in ("", "-again")]


def trusted(hows: Collection[str], trust: str = "all") -> list[TrustedSender]:
    """Return whom a receiver trusts, one sender for each way to sign.

    Args:
        hows: Which ways to sign there are; `jwt` goes without saying.
        trust: `all`; `fewer` knows the tokens of two owners; `other` does not know our agent.
    """
    keys = {"jwks_url": f"{ISSUER}/.well-known/jwks.json"}
    given: dict[str, dict[str, Any]] = {
        "jwt": {"issuer": ISSUER, **keys},
        "signatures": {"schemes": {"http-message-signatures"}, **keys},
        "webhooks": {"schemes": {"standard-webhooks"}, "webhook_secrets": [WEBHOOK_SECRET]},
        "both": {"issuer": ISSUER, "schemes": {"jwt", "http-message-signatures"}, **keys},
        "samples": {"profile": SenderProfile.A2A_SAMPLES, **keys},
        "unsigned": {"profile": SenderProfile.UNSIGNED_SECRET_ONLY},
    }
    other = TrustedSender(
        name="other",
        issuer=OTHER_ISSUER,
        keys={other_key().kid: _verified_by_other()},
        path="/jwt",
        tasks=TaskPolicy.ANY,
        tokens=[f"{CANARY}-other"],
    )
    if trust == "other":
        return [other]
    return [other] + [
        TrustedSender(
            name=how, path=f"/{how}", tasks=TaskPolicy.ANY, tokens=_tokens(trust), **given[how]
        )
        for how in given
        if how == "jwt" or how in hows
    ]


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
        on_published: Shown each document of keys.
        keys_for: For how many seconds these may be kept.
        crowded: Whether its claims look at little of what is due.

    Attributes:
        secrets: What its next start seals with, if anything is sealed.
    """

    secrets: SecretKeys | None = None

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
        on_published: Callable[[bytes], object] = lambda _: None,
        keys_for: int = 60,
        crowded: bool = False,
    ) -> None:
        super().__init__(world, name, machine)
        self._keys = keys
        self._options = options
        self._delivers = delivers
        self._keys_at = keys_at
        self._on_published = on_published
        self._keys_for = keys_for
        self._crowded = crowded
        self.sender: PushSender | None = None
        self.running_secrets: SecretKeys | None = None

    def start(self) -> None:
        if not self.is_up:
            self.sender = None  # that of a dead process answers nobody
        super().start()

    async def main(self) -> None:
        sender = PushSender(
            issuer=ISSUER,
            keys=self._keys,
            database="simulated",
            clock=self.machine.now,
            options=self._options,
            secrets=self.secrets,
            on_event=lambda event: self.world.secrets.look_at("an event", repr(event)),
        )

        def document() -> bytes:
            body = sender.jwks().body
            self._on_published(body)
            return body

        self.running_secrets = self.secrets
        await (sender.start() if self._delivers else sender.open())
        if self._crowded:
            leases = sender.worker._leases
            leases.window, leases.destinations = 1, 8
        self.sender = sender
        if self._keys_at is not None:
            with contextlib.suppress(OSError):
                self.world.network.listen(
                    lambda: KeyServer(document, self._keys_for), self._keys_at, 443, tls=True
                )
        await asyncio.Event().wait()

    async def shut(self) -> None:
        sender, self.sender = self.sender, None
        if sender is not None:
            await sender.close()

    def slots_taken(self) -> int:
        """How many slots of its worker are taken, by deliveries or for a claim under way."""
        if not self.is_up or self.sender is None or not self._delivers:
            return 0
        return self._options.concurrency - self.sender.worker.slots.free


class ReceivingUnit(Unit):
    """One of our receivers, behind its aiohttp application.

    Args:
        world: Where it lives.
        name: Its name.
        machine: Where it runs, and stores.
        callback: The client's own code, with the name that it is registered by.
        host: The name under which it is reached; that of its twin, if it is one.
        hows: How its senders may sign.
        room: How much of one sender may be unfinished there; None for much.

    Attributes:
        trust: Whom it trusts when it is started (see `trusted`).
    """

    def __init__(
        self,
        world: World,
        name: str,
        machine: Machine,
        callback: Callable[[str, str, Notification], Awaitable[None]],
        host: str,
        hows: Collection[str] = (),
        room: int | None = None,
    ) -> None:
        super().__init__(world, name, machine)
        self._callback = callback
        self._host = host
        self._hows = hows
        self._limits = Limits() if room is None else Limits(max_backlog_per_sender=room)
        self.trust = "all"
        self._receiver: Receiver | None = None
        self._runner: web.AppRunner | None = None

    async def main(self) -> None:
        self._runner = self._receiver = None
        receiver = Receiver(
            url=f"https://{self._host}.example.com",
            senders=trusted(self._hows, self.trust),
            database="simulated",
            clock=self.machine.now,
            retry=RetryPolicy(wait=wait_schedule((1, 2, 4)), stop=stop_after_attempt(20)),
            callback_timeout=CALLBACK_TIMEOUT,
            limits=self._limits,
        )
        self._receiver = receiver

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

    def reload(self, trust: str) -> None:
        """Trust others from now on."""
        self.trust = trust
        receiver = self._receiver
        if receiver is not None:
            self.do(lambda: receiver.reload_senders(trusted(self._hows, trust)))

    async def shut(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
