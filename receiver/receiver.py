"""`Receiver`: the front door of the receiving side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from pushkit.a2a import TaskState, WireVersion
from pushkit.arguments import check_type
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, StorageError
from pushkit.events.listeners import Listener, Listeners
from pushkit.events.model import Event, HealthFault
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.scheduling.housekeeping import Housekeeper
from pushkit.scheduling.retry import RetryPolicy
from pushkit.storage.migrations import Access
from pushkit.version import __version__
from pushkit.webhook import WebhookRequest
from receiver.admin import InboxAdmin, open_inbox
from receiver.callbacks.dispatcher import CALLBACK_TIMEOUT, Dispatcher, callback_retry
from receiver.callbacks.registry import CallbackDecorators, CallbackRegistry, Wanted
from receiver.callbacks.waiting import SETTLED_STATES, Arrivals, in_states
from receiver.edge import Edge
from receiver.expected import ExpectedStore
from receiver.expecting import Expectation, hand_out
from receiver.inbox.model import Notification
from receiver.inbox.retention import InboxRetention
from receiver.intake import Intake
from receiver.limits import Limits
from receiver.peers import ForwardedHeader, Peers
from receiver.refusals import Verdict
from receiver.replay import open_replay
from receiver.runtime import DRAIN, LoopLock, Runtime
from receiver.trust import TrustedSender, check_memory
from receiver.trusted_keys import Trust, warn_of_weak_trust
from receiver.verification import Head

if TYPE_CHECKING:
    from aiohttp import web

    from pushkit.alerts.alerts import AlertOptions, Alerts
    from pushkit.telemetry.metrics import Readings
    from pushkit.telemetry.sides import ReceiverMetrics
    from pushkit.telemetry.tracing import Tracing
    from receiver.asgi import AsgiApp
    from receiver.forwards import Forward

_log = logging.getLogger("receiver")


class Receiver(CallbackDecorators):
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
        callback_timeout: How long one call may take; None for any time. A coroutine is then
            cancelled, and has failed; a plain function goes on in its thread, and hangs.
        drain: How long callbacks may go on once this receiver is closed.
        retention: How long notifications stay that are over, how long ids are remembered, and for
            how long a task is expected.
        trusted_proxies: Addresses and networks of the reverse proxies in front, for example
            `["10.0.0.0/8"]`: what they say of a client's address is believed.
        forwarded_header: Which header these proxies write.
        validation_echo: Whether a `GET` with `validationToken` is answered with the token.
        clock: Returns now, aware, in UTC.
        on_event: Called with everything that happens (`pushkit.events`): what was accepted,
            repeated and refused, and how each callback ended. Quick, on the event loop; what it
            raises is logged.
        tracing: Makes spans (`pushkit.telemetry.tracing.Tracing()`); none without it.
        alerts: Where dead letters, stuck callbacks, keys that are missing and faults of the
            database are sent; nowhere if None.
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
        concurrency: int = 64,
        callback_timeout: timedelta | None = CALLBACK_TIMEOUT,
        drain: timedelta = DRAIN,
        retention: InboxRetention | None = None,
        trusted_proxies: Sequence[str] = (),
        forwarded_header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR,
        validation_echo: bool = False,
        clock: Callable[[], datetime] = utc_now,
        on_event: Listener | None = None,
        tracing: Tracing | None = None,
        alerts: AlertOptions | None = None,
    ) -> None:
        if not senders:
            raise ConfigError("senders: expected at least one trusted sender")
        if concurrency < 1:
            raise ConfigError(f"concurrency: found {concurrency}, expected at least 1")
        if callback_timeout is not None and callback_timeout <= timedelta(0):
            raise ConfigError(
                f"callback_timeout: found {callback_timeout}, expected more than zero, or None"
            )
        check_type("drain", drain, timedelta)
        retry = callback_retry() if retry is None else retry
        check_type("retry", retry, RetryPolicy)
        retention = retention or InboxRetention()
        check_memory(senders, retention.ids)
        self.events: Listeners = Listeners(_log)
        if on_event is not None:
            self.events.add(on_event)
        self._clock = clock
        self._database = open_inbox(database, clock=clock)
        self._transport = Transport(DestinationPolicy(allow))
        trust = Trust.build(url, senders, self._transport, clock)
        self.url: str = trust.url
        memory = open_replay(replay, namespace=self.url, remember_for=retention.ids)
        self.callbacks: CallbackRegistry = CallbackRegistry()
        self.dispatcher: Dispatcher = Dispatcher(
            self._database,
            self.callbacks,
            retry=retry,
            concurrency=concurrency,
            timeout=callback_timeout,
            senders=lambda: len(self.trust),
            prepare=self._with_verdicts_on_data,
            events=self.events,
            tracing=tracing,
            clock=clock,
        )
        self._arrivals = Arrivals(self._database)
        self.intake: Intake = Intake(
            trust,
            self._database,
            memory,
            limits=limits or Limits(),
            clock=clock,
            slots=self.dispatcher,
            accepted=self._arrivals.announce,
            events=self.events,
            ids_kept=retention.ids,
            tracing=tracing,
        )
        self.inbox: InboxAdmin = InboxAdmin(self._database, wake=self.dispatcher.let_wait)
        self._expected = ExpectedStore(retention.ids)
        self._expected_for = retention.expected
        self._ids_kept = retention.ids
        self._metrics: ReceiverMetrics | None = None
        self._runtime = Runtime(
            database=self._database,
            replay=memory,
            transport=self._transport,
            intake=self.intake,
            dispatcher=self.dispatcher,
            arrivals=self._arrivals,
            housekeeper=Housekeeper("inbox", lambda: self.inbox.retain(retention), log=_log),
            drain=drain,
        )
        self.edge: Edge = Edge(
            self.intake,
            self._runtime,
            peers=Peers(trusted_proxies, forwarded_header),
            validation_echo=validation_echo,
        )
        self._is_ending = False
        self._closing: asyncio.Task[None] | None = None
        # Held by who starts or closes it: whoever starts it meanwhile waits for the end first.
        self._turn = LoopLock()
        self._alerts = None if alerts is None else self._sending_alerts(alerts)

    @property
    def trust(self) -> Trust:
        """The trusted senders, as they are at this moment."""
        return self.intake.trust

    @property
    def senders(self) -> dict[str, TrustedSender]:
        """The trusted senders by name, as they are at this moment."""
        return {sender.name: sender for sender in self.trust.senders()}

    # --- life ----------------------------------------------------------------------------------

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Open the inbox without callbacks: for a process that only expects, or only waits.

        Whoever asks for something opens a receiver, too, but not one that was closed.

        Args:
            access: By default the inbox is made, and its schema brought up to date; with
                `Access.WRITE` it is taken as it is, or refused.
        """
        await self._runtime.open(access)

    async def start(self) -> None:
        """Open the inbox and start the callbacks. Does nothing if it runs already."""
        if self._closing is not None and not self._closing.done():
            await asyncio.wait([self._closing])
        async with self._turn.here:
            self._is_ending = False
            await self._runtime.start()
            if self._alerts is not None:
                self._alerts.start()
            if self._metrics is not None:
                self._metrics.start()

    def wind_down(self) -> None:
        """Call nobody back any more: what is being called has `drain` from here on.

        Notifications are still taken in. For a service that ends; `close` does the rest.
        """
        self._is_ending = True
        self._runtime.wind_down()

    async def close(self) -> None:
        """Wait for running callbacks, then close the inbox. What is left stays for the next start.

        A coroutine that does not end in time is cancelled, and called again then. A plain function
        cannot be: what it is inside of is called again when its lease has ended.

        Who calls it while another call is at it waits for the end, too; of whoever is cancelled in
        here it goes on to the end.
        """
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close(), name="receiver-closing")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        async with self._turn.here:
            self._is_ending = True
            if self._metrics is not None:
                await self._metrics.stop()
            await self._runtime.close()
            if self._alerts is not None:
                await self._alerts.stop()

    @property
    def is_open(self) -> bool:
        """Whether notifications can be taken in."""
        return self._runtime.is_open

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()  # nobody else does
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- serving -------------------------------------------------------------------------------

    def app(self) -> web.Application:
        """Return an aiohttp application that starts and stops with this receiver.

        Mount it under a prefix with `add_subapp`, or run it alone.
        """
        from receiver.app import application  # who asks for it has aiohttp

        return application(self.edge, self)

    def asgi(self) -> AsgiApp:
        """Return an ASGI application: alone, it starts and stops with this receiver.

        A mounted application is told neither by Starlette nor by FastAPI: there, pass
        `lifespan=receiver.lifespan` to the host, or enter this receiver in the host's own.
        """
        from receiver.asgi import AsgiApp

        return AsgiApp(self)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Run from start to end of a host: `FastAPI(lifespan=receiver.lifespan)`."""
        async with self:
            yield

    async def unready(self) -> dict[str, str]:
        """Return what stands in the way of serving anybody, `{}` if nothing does.

        `storage` and `callbacks` (they do not run), each with the reason.
        """
        return await self._runtime.unready()

    def degraded(self) -> dict[str, str]:
        """Return what is wrong for some senders or tasks and not for all, `{}` if nothing is.

        `keys` (of a sender, whose requests are answered 503 until they are loaded), with the
        reason.
        """
        return self._runtime.degraded()

    async def receive(
        self, request: WebhookRequest, *, path: str | None = None, peer: str = ""
    ) -> Verdict:
        """Take one request through all steps, for frameworks that have no adapter here.

        Args:
            request: The request, whole.
            path: The sender's path, where the request's own path has a prefix before it.
            peer: The address that it came from.
        """
        path = path or request.target.partition("?")[0]
        head = Head(
            method=request.method, path=path, target=request.target, headers=request.headers
        )

        async def read(_limit: int) -> bytes:
            return request.body

        return await self.intake.take(head, self.trust.at(path), read, peer=peer)

    @property
    def metrics(self) -> ReceiverMetrics:
        """Metrics for Prometheus, counted from the first use of this on."""
        if self._metrics is None:
            from pushkit.telemetry.sides import ReceiverMetrics

            self._metrics = ReceiverMetrics(
                read=self._read, slots=self.dispatcher.slots, hanging=self.dispatcher.count_hanging
            )
            self.events.add(self._metrics.on_event)
        return self._metrics

    def _sending_alerts(self, options: AlertOptions) -> Alerts:
        from pushkit.alerts.alerts import Alerts
        from receiver.alert_webhook import AlertWebhook

        sinks = options.sinks()
        if options.webhook is not None:
            sinks.append(AlertWebhook(options.webhook, options.webhook_secret, self._clock))
        return Alerts(options, sinks, look=self._look, events=self.events)

    async def _look(self) -> list[Event]:
        """Return what is wrong just now, for alerts."""
        unready, at = await self.unready(), self._clock()
        if self._is_ending:
            return []  # nothing that has been stopped is a fault
        of_some = self._runtime.faults_of_some()
        return [
            *(HealthFault(at=at, part=part, reason=why) for part, why in unready.items()),
            *(
                HealthFault(at=at, part=part, about=about, reason=why)
                for (part, about), why in of_some.items()
                if part not in unready
            ),
        ]

    async def _read(self) -> Readings:
        missing = self.trust.missing()
        readings: dict[str, Mapping[tuple[str, ...], float]] = {
            "receiver_keys_missing": {(name,): float(name in missing) for name in self.senders},
            "receiver_build_info": {(__version__,): 1.0},
        }
        try:
            backlog = await self.inbox.backlog()
        except StorageError:
            return readings | {"receiver_database_up": {(): 0.0}}
        return readings | {
            "receiver_database_up": {(): 1.0},
            "receiver_inbox": {(name,): float(count) for name, count in backlog.statuses.items()},
            "receiver_oldest_unfinished_seconds": {(): backlog.oldest.total_seconds()},
        }

    # --- trust ---------------------------------------------------------------------------------

    async def reload_senders(self, senders: Sequence[TrustedSender]) -> None:
        """Trust these senders from now on, instead of those before.

        All or nothing: if one of them is wrong, nothing changes. A request that is under way goes
        on with the trust that it met. Keys that were fetched stay, of senders whose `jwks_url` and
        `stale_for` are the same; key files are read again.

        Raises:
            ConfigError: As for `senders` of the constructor; what was trusted before still is.
        """
        if not senders:
            raise ConfigError("senders: expected at least one trusted sender")
        check_memory(senders, self._ids_kept)
        before = self.trust
        trust = Trust.build(self.url, senders, self._transport, self._clock, before=before)
        warn_of_weak_trust(senders)
        self.intake.trust = trust
        trust.load()
        await before.close(but=trust)

    # --- callbacks -----------------------------------------------------------------------------

    def forward(self, to: Forward, **wanted: Unpack[Wanted]) -> None:
        """Hand on every update, or those that are named: `receiver.forward(HttpForward(url))`."""
        wanted["name"] = wanted.get("name") or to.name
        self.callbacks.add(to.send, **wanted)
        self._runtime.close_with(to)

    # --- expecting and waiting -----------------------------------------------------------------

    async def expect(
        self,
        sender: str | None = None,
        *,
        task_id: str | None = None,
        version: WireVersion | str = WireVersion.V1_0,
        expires_in: timedelta | None = None,
        authentication: str | None = None,
        replaces: str | None = None,
        overlap: timedelta = timedelta(hours=1),
    ) -> Expectation:
        """Mint a token for a task, and return the push config to hand to the agent.

        Args:
            sender: Which trusted sender; may be left out if there is only one.
            task_id: The task, if it is known already; not with `replaces`.
            version: The A2A version that the agent speaks.
            expires_in: How long the token is good for; None for as long as the receiver's
                `retention.expected` says, by default 90 days.
            authentication: Mint credentials of this scheme too (`Bearer`, `Basic` or `ApiKey`),
                which the agent must then send: one that ignores the config's `authentication` is
                refused.
            replaces: A token that was handed out before. The new one stands for the same task.
            overlap: For how long the replaced token is good beside the new one.

        Raises:
            ConfigError: No such sender or scheme, no time at all, or the token to replace is none
                that is good.
            StorageError: This receiver was closed.
        """
        trusted = self._sender(sender)
        await self._runtime.ask()
        return await self._database.write(
            hand_out(
                self._expected,
                trusted,
                url=f"{self.url}{trusted.path}",
                task_id=task_id,
                version=version,
                expires_in=self._expected_for if expires_in is None else expires_in,
                authentication=authentication,
                replaces=replaces,
                overlap=overlap,
                now=self._clock(),
            )
        )

    async def expect_no_longer(
        self, sender: str | None = None, *, token: str | None = None, task_id: str | None = None
    ) -> int:
        """Withdraw what was expected by token or task; return how many registrations that was.

        Args:
            sender: Whose; may be left out if there is only one trusted sender.
            token: The registration of this token.
            task_id: Or those of this task.

        Raises:
            ConfigError: Neither token nor task is given.
            StorageError: This receiver was closed.
        """
        if token is None and task_id is None:
            raise ConfigError("expect_no_longer: expected a token or a task_id, found neither")
        await self._runtime.ask()
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
            ConfigError: No such state or sender.
            StorageError: This receiver was closed, before or meanwhile.
        """
        wanted = until if callable(until) else in_states(until)
        await self._runtime.listen()
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        async with asyncio.timeout(seconds):
            found = await self._arrivals.wait(
                task_id,
                wanted=wanted,
                sender=self._sender(sender).name,
                after=after.id if after else 0,
            )
            return await self._with_verdicts_on_data(found)

    async def updates(
        self, task_id: str, *, sender: str | None = None
    ) -> AsyncGenerator[Notification, None]:
        """Yield a task's notifications, from the first; ends after a terminal state.

        Raises:
            ConfigError: No such sender.
            StorageError: This receiver was closed, before or meanwhile.
        """
        await self._runtime.listen()
        arrivals = self._arrivals.updates(task_id, sender=self._sender(sender).name)
        async with contextlib.aclosing(arrivals) as updates:
            async for notification in updates:
                yield await self._with_verdicts_on_data(notification)
                if notification.state is not None and notification.state.terminal:
                    return

    # --- within --------------------------------------------------------------------------------

    def _sender(self, name: str | None) -> TrustedSender:
        if name is None and len(self.senders) == 1:
            return next(iter(self.senders.values()))
        if name is None or name not in self.senders:
            found = "none" if name is None else repr(name)
            raise ConfigError(f"sender: found {found}, expected one of {', '.join(self.senders)}")
        return self.senders[name]

    async def _with_verdicts_on_data(self, notification: Notification) -> Notification:
        sender = self.trust.sender(notification.sender)
        if sender is None or sender.schemas is None:
            return notification
        from pushkit.schemas import check_structured_data_apart

        found = await check_structured_data_apart(notification.update, sender.schemas)
        return replace(notification, data=tuple(found))
