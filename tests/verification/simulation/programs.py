"""The programs of a world, running the real code: agents and workers that send, and receivers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, Final

import aiohttp
from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import Algorithm, PushSender, RetryPolicy, SenderOptions, Signing, wait_schedule
from pushkit.errors import PushkitError, StorageError
from pushkit.integrations.push_config_api import PushConfigApi, push_config_app
from pushkit.keys.files import KeySource
from pushkit.keys.jwk import (
    SigningKey,
    VerificationKey,
    generate_key,
    public_jwk,
    verification_key,
)
from pushkit.queue.runner import seconds
from pushkit.secrets.sealing import SecretKeys
from receiver import (
    Limits,
    Mailbox,
    MailboxOptions,
    Notification,
    Receiver,
    SenderProfile,
    TaskPolicy,
    TrustedSender,
)
from receiver.inbox.inspection import InboxGap
from receiver.mailbox.client import MailboxRefusedError
from tests.verification.simulation.fairness import CROWDED_STEPS
from tests.verification.simulation.mailboxes import MAILBOX_LEASE, MAILBOX_TRIES
from tests.verification.simulation.secrecy import CANARY, WEBHOOK_SECRET
from tests.verification.simulation.webhook import KeyServer
from tests.verification.simulation.world import Unit

__all__ = [
    "API_URL",
    "CALLBACK_TIMEOUT",
    "ISSUER",
    "OTHER_ISSUER",
    "SCHEMES",
    "ClientMistakeError",
    "ReaderUnit",
    "ReceivingUnit",
    "SendingUnit",
    "api_token",
    "other_key",
    "trusted",
]

CALLBACK_TIMEOUT = timedelta(seconds=120)
ISSUER = "https://agent.example.com"
API_URL = f"{ISSUER}:8443/"  # of the agents' push-config API
OTHER_ISSUER = "https://other.example.com"
_LAST_WORDS = 5.0  # seconds for an ack of a program that stops
_FIRST_WAIT = 0.8  # seconds: the shortest wait of a mailbox's schedule, and its jitter
_RETRY_AFTER = 5.0  # seconds that a nack asks for, of a client that has several
_MAILBOX = MailboxOptions(name="laptop", tokens=[f"{CANARY}-of-the-mailbox"], lease=MAILBOX_LEASE)

# How notifications are signed, by the last part of a webhook's URL. Receivers that verify nothing
# (`unsigned`), or not every claim (`samples`), get a JWT all the same.
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
    """Return the key of another trusted agent, which floods receivers."""
    return generate_key(Algorithm.ES256)


@functools.cache
def _verified_by_other() -> VerificationKey:
    return verification_key(public_jwk(other_key()))


def _tokens(trust: str) -> list[str]:
    owners = range(2 if trust == "fewer" else 8)
    return [f"{CANARY}-owner{n}{again}" for n in owners for again in ("", "-again")]


def trusted(hows: Collection[str], trust: str = "all") -> list[TrustedSender]:
    """Return a receiver's trusted senders, one for each way to sign.

    Args:
        hows: The ways to sign in use; `jwt` is always added.
        trust: `all`; `fewer` for the tokens of two owners; `other` for another agent only.
    """
    keys = {"jwks_url": f"{ISSUER}/.well-known/jwks.json"}
    given: dict[str, dict[str, Any]] = {
        "jwt": {"issuer": ISSUER, **keys},
        "signatures": {"schemes": {"http-message-signatures"}, **keys},
        "webhooks": {"schemes": {"standard-webhooks"}, "webhook_secrets": [WEBHOOK_SECRET]},
        "both": {"issuer": ISSUER, "schemes": {"jwt", "http-message-signatures"}, **keys},
        "samples": {"profile": SenderProfile.A2A_SAMPLES, **keys},
        "unsigned": {"profile": SenderProfile.UNSIGNED_SECRET_ONLY},
        # Its tokens are handed out, and each belongs to one task.
        "renewed": {"issuer": ISSUER, "tasks": TaskPolicy.BIND, "tokens": [], **keys},
    }
    other = TrustedSender(
        name="other",
        issuer=OTHER_ISSUER,
        keys=[_verified_by_other()],
        path="/jwt",
        tasks=TaskPolicy.ANY,
        tokens=[f"{CANARY}-other"],
    )
    if trust == "other":
        return [other]
    return [other] + [
        TrustedSender(
            name=how,
            path=f"/{how}",
            **{"tasks": TaskPolicy.ANY, "tokens": _tokens(trust), **given[how]},
        )
        for how in given
        if how == "jwt" or how in hows
    ]


def api_token(owner: str) -> str:
    """Return the token of a client of the agents' push-config API."""
    return f"{CANARY}-of-{owner}"


def _owner_of(request: web.Request) -> str | None:
    _, is_token, owner = request.headers.get("Authorization", "").partition(f"{CANARY}-of-")
    return owner if is_token else None


async def _serve(app: web.Application, address: str, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, handle_signals=False, access_log=None)
    await runner.setup()
    tls: Any = object()
    await web.TCPSite(runner, address, port, ssl_context=tls).start()
    return runner


@dataclass(eq=False, kw_only=True)
class SendingUnit(Unit):
    """An agent, or a worker."""

    keys: KeySource
    options: SenderOptions
    delivers: bool  # whether it delivers, or only enqueues
    keys_at: str | None = None  # the address at which it publishes its keys, if it does
    on_published: Callable[[bytes], object]  # called with each published key set
    has_api: bool = False  # whether it answers clients who ask for what they lost, beside its keys
    keys_for: int = 60  # seconds for which a key set may be cached
    crowded: bool = False  # whether its claims read only few of the due deliveries
    secrets: SecretKeys | None = None  # the secret keys of its next start, if secrets are sealed
    running_secrets: SecretKeys | None = field(default=None, init=False)
    sender: PushSender | None = field(default=None, init=False)
    _api: web.AppRunner | None = field(default=None, init=False)

    def start(self) -> None:
        if not self.is_up:
            self.sender = None  # the one of a dead process does not answer
        super().start()

    async def main(self) -> None:
        sender = PushSender(
            issuer=ISSUER,
            keys=self.keys,
            database="simulated",
            clock=self.machine.now,
            options=self.options,
            secrets=self.secrets,
            on_event=lambda event: self.world.secrets.check("an event", repr(event)),
        )

        def document() -> bytes:
            body = sender.jwks().body
            self.on_published(body)
            return body

        self.running_secrets = self.secrets
        await (sender.start() if self.delivers else sender.open())
        if self.crowded:
            claims = sender.worker._claims
            claims.window, claims.steps = 1, CROWDED_STEPS
        self.sender = sender
        if self.keys_at is not None:
            with contextlib.suppress(OSError):
                self.world.network.listen(
                    lambda: KeyServer(document, self.keys_for), self.keys_at, 443, tls=True
                )
        self._api = None
        if self.has_api and self.keys_at is not None:
            app = push_config_app(PushConfigApi(sender, task_exists=None), owner=_owner_of)
            with contextlib.suppress(OSError):
                self._api = await _serve(app, self.keys_at, 8443)
        await asyncio.Event().wait()

    async def shut(self) -> None:
        sender, self.sender = self.sender, None
        if self._api is not None:
            await self._api.cleanup()
        if sender is not None:
            await sender.close()

    @property
    def slots_taken(self) -> int:
        """How many slots its worker uses, for deliveries or for a claim in progress."""
        if not self.is_up or self.sender is None or not self.delivers:
            return 0
        return self.options.concurrency - self.sender.worker.runner.scheduler.free


@dataclass(eq=False, kw_only=True)
class ReceivingUnit(Unit):
    """A receiver of this project, as an aiohttp application."""

    # Called with the host, the callback's name and the notification.
    callback: Callable[[str, str, Notification], Awaitable[None]]
    host: str  # its host name, which two twins share
    hows: Collection[str] = ()  # the ways in which its senders sign
    limits: Limits
    trust: str = "all"  # whom it trusts at its next start (see `trusted`)
    has_mailbox: bool = False
    # Called with the host, for each update before which others are missing; None to do nothing.
    heed: Callable[[str, Notification], Awaitable[None]] | None = None
    served_at: list[float] = field(default_factory=list, init=False)  # when it began to, each time
    _receiver: Receiver | None = field(default=None, init=False)
    _runner: web.AppRunner | None = field(default=None, init=False)

    async def main(self) -> None:
        self._runner = self._receiver = None
        receiver = Receiver(
            url=f"https://{self.host}.example.com",
            senders=trusted(self.hows, self.trust),
            database="simulated",
            clock=self.machine.now,
            retry=RetryPolicy(
                wait=wait_schedule((1, 2, 4)), stop=stop_after_attempt(MAILBOX_TRIES)
            ),
            callback_timeout=CALLBACK_TIMEOUT,
            limits=self.limits,
        )
        self._receiver = receiver

        @receiver.on_update(name="client")
        async def client(notification: Notification) -> None:
            await self.callback(self.host, "client", notification)

        @receiver.on_update(name="audit")
        async def audit(notification: Notification) -> None:
            await self.callback(self.host, "audit", notification)

        if self.has_mailbox:
            receiver.mailbox(_MAILBOX)

        if self.heed is not None:
            receiver.on_update(name="heed", senders=self._agents)(
                functools.partial(self.heed, self.host)
            )

        self._runner = await _serve(receiver.app(), self.machine.address, 443)
        self.served_at.append(self.world.loop.time())
        await asyncio.Event().wait()

    async def expect(self, **how: Any) -> str | None:
        """Hand out a token to the sender `renewed`; None if that fails."""
        if self._receiver is None:
            return None
        try:
            return (await self._receiver.expect("renewed", **how)).config.token
        except PushkitError:
            return None

    @property
    def _agents(self) -> list[str]:
        """The names of the trusted senders that are the agents."""
        return [how for how in SCHEMES if how == "jwt" or how in self.hows]

    async def gaps(self) -> list[InboxGap]:
        """Return what its inbox lacks."""
        if self._receiver is None:
            raise StorageError("the receiver has not started")
        inbox = self._receiver.inbox
        return [gap for name in self._agents for gap in await inbox.gaps(name)]

    async def purge(self) -> None:
        """Delete the notifications that are done."""
        if self._receiver is not None:
            with contextlib.suppress(PushkitError):
                await self._receiver.inbox.purge(older_than=timedelta(0))

    @property
    def worker(self) -> str | None:
        """The name under which it leases queues, once it has one."""
        return None if self._receiver is None else vars(self._receiver.dispatcher).get("name")

    @property
    def slots_taken(self) -> int:
        """How many of its permits are in use."""
        if self._receiver is None or not self.is_up:
            return 0
        return self._receiver.dispatcher.usage()[0]

    def reload(self, trust: str) -> None:
        """Change whom it trusts, now and at its next starts."""
        self.trust = trust
        receiver = self._receiver

        async def reload() -> None:
            # As a service reads its file, when it runs: a frozen process reloads several times.
            if receiver is not None:
                await receiver.reload_senders(trusted(self.hows, self.trust))

        self.do(reload)

    async def shut(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


class ClientMistakeError(Exception):
    """A program that fetches from a mailbox fails with a notification."""


class _Watched(Mailbox):
    """A client of a mailbox that reports the answers to its settlements.

    It fetches one notification after another, as programs do that use `Mailbox`; or several at
    once, by polls or from a stream, as clients in other languages may.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        handle: Callable[[Notification], Awaitable[bool]],
        answered: Callable[[str, Notification, int, float], object],
    ) -> None:
        super().__init__(url, token)
        self._handle = handle
        self._answered = answered
        self._handling: set[asyncio.Task[None]] = set()

    async def _settle(self, verb: str, held: Any) -> Any:
        asked_at = asyncio.get_running_loop().time()
        body: Any = {"receipt": held.receipt}
        if verb == "nack":
            asked_at += _RETRY_AFTER if self._handling else _FIRST_WAIT
            body |= {"retry_after": _RETRY_AFTER} if self._handling else {}
        answer = await self._ask("POST", f"/{verb}", body)
        self._answered(verb, held.notification, answer.status, asked_at)
        return answer

    async def one_by_one(self) -> None:
        """Handle one after another, until `handle` wants no more."""
        async for notification in self:
            if not await self._handle(notification):
                break

    async def several(self) -> None:
        """Poll for several at once; poll again once all are settled."""
        while True:
            asked_at = seconds()
            answer = await self._ask("GET", "?wait=20&max=4")
            for message in answer.message.get("notifications", ()):
                self._begin(message, asked_at)
            if self._handling:
                await asyncio.wait(self._handling)

    async def stream(self) -> None:
        """Handle what a stream of events brings, until it ends."""
        loop = asyncio.get_running_loop()
        headers = self._headers | {"Accept": "text/event-stream"}
        timeout = aiohttp.ClientTimeout(sock_connect=15, sock_read=40)
        connector = aiohttp.TCPConnector(ssl=self._tls, resolver=aiohttp.ThreadedResolver())
        # What comes may have waited while this program stood still, or in the network.
        unknown = -inf
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get(f"{self._url}?max=2", headers=headers) as response,
            ):
                async for line in response.content:
                    if line.startswith(b"data: "):
                        self._begin(json.loads(line.removeprefix(b"data: ")), unknown)
        if self._handling:
            await asyncio.wait(self._handling)
        await asyncio.sleep(loop.random.uniform(0.5, 2.0))  # type: ignore[attr-defined]

    def _begin(self, message: dict[str, Any], asked_at: float) -> None:
        task = asyncio.create_task(self._handle_apart(message, asked_at))
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _handle_apart(self, message: dict[str, Any], asked_at: float) -> None:
        held = await self._read(message)
        assert held is not None
        if not await self._holds(held, asked_at):
            return
        renewing, verb = asyncio.create_task(self._renew(held)), "ack"
        try:
            await self._handle(held.notification)
        except ClientMistakeError:
            verb = "nack"
        settling = asyncio.create_task(self._settle(verb, held))
        try:
            await asyncio.shield(settling)
        except asyncio.CancelledError:  # the program stops: what it has handled, it says at once
            await asyncio.wait([settling], timeout=_LAST_WORDS)
            settling.cancel()
            raise
        finally:
            renewing.cancel()

    async def leave(self) -> None:
        """Break off what was fetched apart."""
        for task in self._handling:
            task.cancel()
        if self._handling:
            await asyncio.wait(self._handling)


@dataclass(eq=False, kw_only=True)
class ReaderUnit(Unit):
    """A program that fetches from the mailbox of a receiver."""

    host: str  # the host name of the receiver
    fetches: str  # how: `one_by_one`, `several` or `stream`
    # Called with the host and the notification; returns whether it fetches the next one. An error
    # that the program makes is a `ClientMistakeError`.
    handle: Callable[[str, Notification], Awaitable[bool]]
    # Called with the host, the verb of a settlement, its notification, the status of the answer,
    # and when it was asked for; for a nack, when the notification may come again.
    answered: Callable[[str, str, Notification, int, float], object]
    _main: asyncio.Task[Any] | None = field(default=None, init=False)

    async def main(self) -> None:
        self._main = asyncio.current_task()
        while True:
            mailbox = _Watched(
                f"https://{self.host}.example.com{_MAILBOX.path}",
                _MAILBOX.tokens[0],
                handle=functools.partial(self.handle, self.host),
                answered=functools.partial(self.answered, self.host),
            )
            try:
                async with mailbox:
                    try:
                        await getattr(mailbox, self.fetches)()
                    finally:
                        await mailbox.leave()
            except ClientMistakeError:
                self.world.note("the client's own mistake")
            except MailboxRefusedError as exc:
                self.world.violated(f"{self.name} was refused: {exc}")
            await asyncio.sleep(1.0)

    async def shut(self) -> None:
        main, self._main = self._main, None
        if main is not None:
            main.cancel()
            await asyncio.wait([main])
