"""`Receiver`: the front door of the receiving side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from aiohttp import web

from pushkit.a2a import PushConfig, TaskState, UpdateKind, WireVersion, format_push_config
from pushkit.bounded_json import JsonObject
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, StorageError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.signing.audience import audience_of
from pushkit.webhook import WebhookRequest
from pushkit.work import RetryPolicy, cancelled
from receiver.admin import InboxAdmin, open_inbox
from receiver.app import problems, routes
from receiver.callbacks.dispatcher import Dispatcher, callback_retry
from receiver.callbacks.registry import KINDS_WITH_STATE, CallbackFunction, CallbackRegistry
from receiver.callbacks.waiting import SETTLED_STATES, Arrivals
from receiver.expected import ExpectedStore, mint_token
from receiver.inbox import InboxRetention, Notification
from receiver.pipeline import Limits, Pipeline, Verdict
from receiver.replay import open_replay
from receiver.trust import Trust, TrustedSender, sender_keys

__all__ = ["Expectation", "Receiver"]

F = TypeVar("F", bound=CallbackFunction)

_log = logging.getLogger("receiver")

_DRAIN = timedelta(seconds=20)
_HOUSEKEEPING = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What `expect()` hands out.

    Attributes:
        sender: The agent that may use it.
        config: The push config for that agent, with URL and token.
        version: The A2A version that it is written in.
    """

    sender: str
    config: PushConfig
    version: WireVersion

    def as_json(self) -> JsonObject:
        """Return the config object as this A2A version writes it."""
        return format_push_config(self.config, self.version)


def _base_url(url: str) -> str:
    normalised = audience_of(url)
    if "?" in normalised:
        raise ConfigError("url: expected a base URL without a query: the senders' paths follow it")
    return normalised.rstrip("/")


class Receiver:
    """Accepts signed notifications, and turns each into callbacks once.

        receiver = Receiver(
            url="https://client.example.com",
            senders=[TrustedSender(name="agent", issuer="https://agent.example.com",
                                   jwks_url="https://agent.example.com/.well-known/jwks.json")],
            database="inbox.db",
        )

        @receiver.on_status("completed")
        async def completed(notification: Notification) -> None: ...

        web.run_app(receiver.app())

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths: the
            audience comes from here, never from a `Host` header.
        senders: Who is trusted.
        database: Inbox and expected tasks: the path of a SQLite file, or a PostgreSQL DSN.
        replay: A Redis URL, for the memory of ids alone; None keeps it in the database.
        allow: Hosts that are named for development, for the fetching of JWK Sets.
        limits: Sizes and rates.
        retry: When a failed callback is called again.
        concurrency: How many callbacks at once.
        retention: How long notifications stay that are over, and how long ids are remembered.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self,
        *,
        url: str,
        senders: Sequence[TrustedSender],
        database: str | Path,
        replay: str | None = None,
        allow: Sequence[str] = (),
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        concurrency: int = 16,
        retention: InboxRetention | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        if not senders:
            raise ConfigError("senders: expected at least one trusted sender")
        self.url = _base_url(url)
        self.senders = {sender.name: sender for sender in senders}
        self._clock = clock
        self._retention = retention or InboxRetention()
        self._database = open_inbox(database, clock=clock)
        self._replay = open_replay(replay, namespace=self.url, remember_for=self._retention.ids)
        self._transport = Transport(DestinationPolicy(allow))
        self.trust = Trust(
            [(sender, sender_keys(sender, self._transport, clock)) for sender in senders]
        )
        self.pipeline = Pipeline(
            self.trust,
            self._database,
            self._replay,
            own_url=lambda path: f"{self.url}{path}",
            limits=limits or Limits(),
            clock=clock,
        )
        self.callbacks = CallbackRegistry()
        self.dispatcher = Dispatcher(
            self._database,
            self.callbacks,
            retry=retry or callback_retry(),
            concurrency=concurrency,
        )
        self.inbox = InboxAdmin(self._database, wake=self.dispatcher.pump.wake)
        self._arrivals = Arrivals(self._database)
        self._expected = ExpectedStore(self._retention.ids)
        self._opening = asyncio.Lock()
        self._background: list[asyncio.Task[None]] = []
        self._listening: asyncio.Task[None] | None = None

    # --- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the inbox without callbacks: for a process that only expects, or only waits."""
        async with self._opening:
            await self._database.open()

    async def start(self) -> None:
        """Open the inbox and start the callbacks. Does nothing if it runs already."""
        await self._listen()
        try:
            await self._replay.open()
        except StorageError as exc:  # callbacks go on without it
            _log.error("%s: notifications are answered 503 until it is back", exc)
        if not self._background:
            self._background = [
                asyncio.create_task(self.dispatcher.pump.run(), name="receiver-callbacks"),
                asyncio.create_task(self._keep_house(), name="receiver-housekeeping"),
            ]

    async def close(self) -> None:
        """Wait for running callbacks, then close the inbox. What is left stays for the next start.

        A callback that does not end in time is cancelled, and called again then.
        """
        background, self._background = self._background, []
        if self._listening is not None:
            background.append(self._listening)
            self._listening = None
        for task in background:
            await cancelled(task)
        try:
            async with asyncio.timeout(_DRAIN.total_seconds()):
                await self.dispatcher.pump.drain()
        except TimeoutError:
            await self.dispatcher.pump.abandon()
        await self.dispatcher.retire()
        await self._replay.close()
        await self.trust.close()
        await self._transport.close()
        await self._database.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # --- serving -------------------------------------------------------------------------------

    def app(self) -> web.Application:
        """Return an aiohttp application that starts and stops with this receiver.

        Mount it under a prefix with `add_subapp`, or run it alone.
        """
        app = web.Application(middlewares=[problems])
        app.add_routes(routes(self))
        app.cleanup_ctx.append(self._lifespan)
        return app

    async def receive(
        self, request: WebhookRequest, *, path: str | None = None, peer: str = ""
    ) -> Verdict:
        """Take one request through the steps, for frameworks that have no adapter here.

        Args:
            request: The request, whole.
            path: The sender's path, where the request's own path has a prefix before it.
            peer: The address that it came from.
        """
        path = path or request.target.partition("?")[0]
        verdict = await self.pipeline.receive(request, path=path, peer=peer)
        if verdict.notification_id is not None:
            self._hear()
        return verdict

    async def _lifespan(self, _app: web.Application) -> AsyncIterator[None]:
        async with self:
            yield

    # --- callbacks -----------------------------------------------------------------------------

    def on_update(
        self,
        *,
        kinds: Iterable[UpdateKind | str] = (),
        states: Iterable[TaskState | str] = (),
        senders: Iterable[str] = (),
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Register a callback for every update, or for those that are named."""

        def register(function: F) -> F:
            self.callbacks.add(function, kinds=kinds, states=states, senders=senders, name=name)
            return function

        return register

    def on_status(
        self, *states: TaskState | str, senders: Iterable[str] = (), name: str | None = None
    ) -> Callable[[F], F]:
        """Register a callback for task states: status updates, and whole tasks (A2A 0.3)."""
        return self.on_update(kinds=KINDS_WITH_STATE, states=states, senders=senders, name=name)

    def on_artifact(
        self, *, senders: Iterable[str] = (), name: str | None = None
    ) -> Callable[[F], F]:
        """Register a callback for artifact updates.

        An A2A 0.3 agent sends whole tasks instead: their artifacts come with `on_status`.
        """
        return self.on_update(kinds=[UpdateKind.ARTIFACT_UPDATE], senders=senders, name=name)

    # --- expecting and waiting -----------------------------------------------------------------

    async def expect(
        self,
        sender: str | None = None,
        *,
        task_id: str | None = None,
        version: WireVersion | str = WireVersion.V1_0,
        expires_in: timedelta | None = None,
    ) -> Expectation:
        """Mint a token for a task, and return the push config to hand to the agent.

        Args:
            sender: Which trusted sender; may be left out if there is only one.
            task_id: The task, if it is known already.
            version: The A2A version that the agent speaks.
            expires_in: How long the token is good for; None for ever.
        """
        trusted = self._sender(sender)
        token, now = mint_token(), self._clock()
        await self.open()
        await self._database.write(
            self._expected.register(
                sender=trusted.name,
                token=token,
                task_id=task_id,
                now=now,
                expires_at=now + expires_in if expires_in else None,
            )
        )
        config = PushConfig(url=f"{self.url}{trusted.path}", token=token, task_id=task_id)
        return Expectation(
            sender=trusted.name, config=config, version=WireVersion.parse(str(version))
        )

    async def expect_no_longer(
        self, sender: str | None = None, *, token: str | None = None, task_id: str | None = None
    ) -> int:
        """Withdraw what was expected by token or task; return how many registrations that was."""
        await self.open()
        return await self._database.write(
            self._expected.unregister(
                sender=self._sender(sender).name, token=token, task_id=task_id, now=self._clock()
            )
        )

    async def wait(
        self,
        task_id: str,
        *,
        until: Collection[TaskState] | Callable[[Notification], bool] = SETTLED_STATES,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109  # part of the promise
        after: Notification | None = None,
        sender: str | None = None,
    ) -> Notification:
        """Return the first notification of a task that is wanted, past ones included.

            asked = await receiver.wait(task_id, timeout=3600)       # input-required, say
            ...                                                      # answer the agent
            done = await receiver.wait(task_id, after=asked, timeout=3600)

        Args:
            task_id: The task.
            until: States, or a predicate; by default a state in which the agent stops by itself:
                terminal, input-required or auth-required.
            timeout: A timedelta or seconds; None waits for ever.
            after: Only what came after this one.
            sender: Whose task it is; may be left out if there is only one trusted sender.

        Raises:
            TimeoutError: Nothing of that kind arrived in time.
        """
        await self._listen()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        async with asyncio.timeout(seconds):
            return await self._arrivals.wait(
                task_id,
                until=until,
                sender=self._sender(sender).name,
                after=after.id if after else 0,
            )

    async def updates(
        self, task_id: str, *, sender: str | None = None
    ) -> AsyncGenerator[Notification, None]:
        """Yield a task's notifications, from the first; ends after a terminal state."""
        await self._listen()
        arrivals = self._arrivals.updates(task_id, sender=self._sender(sender).name)
        async with contextlib.aclosing(arrivals) as updates:
            async for notification in updates:
                yield notification
                if notification.state is not None and notification.state.terminal:
                    return

    # --- within --------------------------------------------------------------------------------

    def _sender(self, name: str | None) -> TrustedSender:
        if name is None and len(self.senders) == 1:
            return next(iter(self.senders.values()))
        if name is None or name not in self.senders:
            raise ConfigError(f"sender: found {name!r}, expected one of {', '.join(self.senders)}")
        return self.senders[name]

    async def _listen(self) -> None:
        """Open the inbox, and hear of what other processes accept from now on."""
        await self.open()
        if self._listening is None:
            self._listening = asyncio.create_task(
                self._database.listen(self._hear), name="receiver-listening"
            )

    def _hear(self) -> None:
        self.dispatcher.pump.wake()
        self._arrivals.announce()

    async def _keep_house(self) -> None:
        while True:
            try:
                await self.inbox.retain(self._retention)
            except StorageError:
                _log.exception("housekeeping: the inbox is out of reach; trying again later")
            await asyncio.sleep(_HOUSEKEEPING.total_seconds())
