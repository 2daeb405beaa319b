"""`Receiver`: verifies notifications, stores them, and calls the application back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Unpack
from urllib.parse import unquote

from pushkit.alerts import AlertOptions, Alerts
from pushkit.clock import utc_now
from pushkit.errors import ConfigError, StorageError
from pushkit.events import Event, HealthFault, Listener, Listeners
from pushkit.options import Count, Duration, Wait, check_list, check_type, checked
from pushkit.peers import ForwardedHeader, Peers
from pushkit.scheduling.retry import RetryPolicy
from pushkit.storage.database import promptly
from pushkit.version import __version__
from pushkit.webhook import WebhookRequest
from receiver.accepting import Acceptance
from receiver.admin import InboxAdmin, open_inbox
from receiver.callbacks.dispatcher import (
    CALLBACK_CONCURRENCY,
    CALLBACK_TIMEOUT,
    Dispatcher,
    callback_retry,
)
from receiver.callbacks.registry import CallbackDecorators, CallbackRegistry, Wanted
from receiver.callbacks.waiting import Arrivals
from receiver.expectation import Expecting
from receiver.inbox.retention import InboxRetention
from receiver.limits import Limits
from receiver.mailbox.service import Mailboxes, MailboxOptions
from receiver.request import Answer, Request
from receiver.request_handler import RequestHandler
from receiver.runtime import DRAIN
from receiver.selection import path_of
from receiver.senders import TrustedSender, check_memory
from receiver.steps import Trail
from receiver.trust import Trust, key_transport, warn_of_weak_trust
from receiver.verification import check_request

if TYPE_CHECKING:
    from aiohttp import web

    from pushkit.telemetry.metrics import Gauges
    from pushkit.telemetry.sides import ReceiverMetrics
    from pushkit.telemetry.tracing import Tracing
    from receiver.asgi import AsgiApp
    from receiver.forwards import Forward
    from receiver.inbox.mailboxes import MailboxState

_log = logging.getLogger("receiver")


class Receiver(Expecting, CallbackDecorators):
    """Accepts signed notifications, and calls back once for each.

        receiver = Receiver(
            url="https://client.example.com",
            senders=[TrustedSender(name="agent", issuer="https://agent.example.com",
                                   jwks_url="https://agent.example.com/.well-known/jwks.json")],
            database="inbox.db",
        )

        @receiver.on_status("completed")
        async def completed(notification: StatusNotification) -> None: ...

        web.run_app(receiver.app())

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths. The
            expected audience is made from it, never from a `Host` header.
        senders: The trusted senders.
        database: The inbox and the expected tasks: the path of a SQLite file, or a PostgreSQL DSN.
        allow: Hosts that are not checked when JWK Sets are fetched, for development, as `host:port`
            or `host:*`.
        proxy: An egress proxy for JWK Sets and alerts, `http://[user:password@]host:port`; hosts in
            `allow` and on this machine are reached without it.
        ca_file: Root certificates in PEM, trusted beside the system's for JWK Sets and alerts.
        limits: Sizes, rates and backlogs.
        retry: When a failed callback is called again.
        concurrency: How many callbacks may run at once.
        callback_timeout: How long one call may take; None for any time. After it, a coroutine is
            cancelled and has failed; a plain function continues in its thread, and hangs.
        drain: How long callbacks may continue once this receiver is closed.
        retention: How long finished notifications are kept, how long ids are remembered, and for
            how long a task is expected.
        trusted_proxies: Addresses and networks of the reverse proxies in front, for example
            `["10.0.0.0/8"]`: the client address that they state is believed.
        forwarded_header: Which header these proxies write: `X-Forwarded-For` or `Forwarded`.
        validation_echo: Whether a `GET` with `validationToken` is answered with the token.
        clock: Returns the current time, aware, in UTC.
        on_event: Called with every event (`pushkit.events`): notifications accepted, repeated and
            refused, and the result of each callback. It runs on the event loop and must return
            quickly; its errors are logged.
        tracing: Makes spans (`pushkit.telemetry.tracing.Tracing()`); none without it.
        alerts: Where alerts of dead letters, stuck callbacks, missing keys and database faults are
            sent; nowhere if None.

    Attributes:
        inbox: The inbox, for operators: find, redrive, purge.
        trust: The trusted senders that are currently in force.
    """

    @checked
    def __init__(
        self,
        *,
        url: str,
        senders: Sequence[TrustedSender],
        database: str | Path,
        allow: Sequence[str] = (),
        proxy: str | None = None,
        ca_file: str | Path | None = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        concurrency: Count = CALLBACK_CONCURRENCY,
        callback_timeout: Duration | None = CALLBACK_TIMEOUT,
        drain: Wait = DRAIN,
        retention: InboxRetention | None = None,
        trusted_proxies: Sequence[str] = (),
        forwarded_header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR,
        validation_echo: bool = False,
        clock: Callable[[], datetime] = utc_now,
        on_event: Listener | None = None,
        tracing: Tracing | None = None,
        alerts: AlertOptions | None = None,
    ) -> None:
        super().__init__()
        if tracing is not None:
            from pushkit.telemetry.tracing import Tracing

            check_type("tracing", tracing, Tracing)
        limits = Limits() if limits is None else limits
        retry = callback_retry() if retry is None else retry
        self._retention = InboxRetention() if retention is None else retention
        _check_senders(senders, self._retention.ids)
        self.events: Listeners = Listeners(_log)
        if on_event is not None:
            self.events.add(on_event)
        self._clock = clock
        self._database = inbox = open_inbox(database, clock=clock)
        self._transport = key_transport(allow, proxy, ca_file)
        self.trust: Trust = Trust.build(url, senders, self._transport, clock)
        self.url: str = self.trust.url
        self.callbacks: CallbackRegistry = CallbackRegistry()
        self.dispatcher: Dispatcher = Dispatcher(
            inbox,
            self.callbacks,
            retry=retry,
            concurrency=concurrency,
            timeout=callback_timeout,
            senders=lambda: len(self.trust.senders),
            prepare=self._with_verdicts_on_data,
            events=self.events,
            tracing=tracing,
            clock=clock,
        )
        self._mailboxes = Mailboxes(
            inbox,
            path=path_of(self.url),
            retry=retry,
            clock=clock,
            events=self.events,
            request_timeout=limits.request_timeout,
        )
        self.inbox: InboxAdmin = InboxAdmin(inbox, wake=self.dispatcher.wake)
        self._metrics: ReceiverMetrics | None = None
        self._arrivals = Arrivals(inbox)
        self._drain = drain
        acceptance = Acceptance(inbox, limits, self.dispatcher, self._arrivals.announce, tracing)
        self.handler: RequestHandler = RequestHandler(
            acceptance,
            self._mailboxes,
            peers=Peers(trusted_proxies, forwarded_header),
            runtime=self,
            validation_echo=validation_echo,
            limits=limits,
            clock=clock,
            events=self.events,
            ids_kept=self._retention.ids,
        )
        if alerts is not None:
            self._alerts = self._sending_alerts(alerts)

    @property
    def senders(self) -> dict[str, TrustedSender]:
        """The trusted senders that are currently in force, by name."""
        return dict(self.trust.senders)

    @property
    def mailboxes(self) -> list[MailboxOptions]:
        """The mailboxes that it has."""
        return self._mailboxes.options

    # --- serving -------------------------------------------------------------------------------

    def app(self) -> web.Application:
        """Return an aiohttp application that starts and stops with this receiver.

        Mount it under a prefix with `add_subapp`, or run it alone.
        """
        from receiver.app import application  # the only method that needs aiohttp

        return application(self.handler.handle, self, self.wind_down)

    def asgi(self) -> AsgiApp:
        """Return an ASGI application; served alone, it starts and stops this receiver.

        Starlette and FastAPI send no lifespan events to mounted applications: pass
        `lifespan=receiver.lifespan` to the host, or enter this receiver in the host's own lifespan.
        """
        from receiver.asgi import AsgiApp

        return AsgiApp(self.handler, self)

    async def receive(
        self, request: WebhookRequest, *, path: str | None = None, peer: str = ""
    ) -> Answer:
        """Answer one request as the adapters do, for frameworks without one.

        Send the answer as it is: status, headers and body.

        Args:
            request: The whole request.
            path: The sender's path, if the request's own path has a prefix before it.
            peer: The address that it came from.

        Raises:
            ConfigError: An argument has a wrong type.
        """
        check_request(request)
        check_type("peer", peer, str)
        path = path or request.target.partition("?")[0]
        asked = Request.of(request, unquote(path), peer=peer, trail=Trail())
        return await self.handler.handle(asked)

    @property
    def metrics(self) -> ReceiverMetrics:
        """Metrics for Prometheus, counted since this property was first used."""
        if self._metrics is None:
            from pushkit.telemetry.sides import ReceiverMetrics

            self._metrics = ReceiverMetrics(
                read=self._read,
                slots=self.dispatcher.usage,
                hanging=self.dispatcher.caller.count_hanging,
            )
            self.events.add(self._metrics.on_event)
            self._measure()
        return self._metrics

    def _sending_alerts(self, options: AlertOptions) -> Alerts:
        from receiver.alert_webhook import SignedAlertWebhook

        webhook = None
        if options.webhook is not None:
            webhook = SignedAlertWebhook(
                options.webhook,
                options.webhook_secret,
                self._clock,
                self._transport.options,
            )
        return Alerts(options, webhook, look=self._look, events=self.events)

    async def _look(self) -> list[Event]:
        unready, at = await self.unready(), self._clock()
        if not self._is_running:
            return []  # parts that have been stopped are no faults
        of_some = self._faults_of_some()
        return [
            *(HealthFault(at=at, part=part, reason=why) for part, why in unready.items()),
            *(
                HealthFault(at=at, part=part, about=about, reason=why)
                for (part, about), why in of_some.items()
                if part not in unready
            ),
        ]

    async def _read(self) -> Gauges:
        missing = self.trust.missing()
        gauges: dict[str, Mapping[tuple[str, ...], float]] = {
            "receiver_keys_missing": {(name,): float(name in missing) for name in self.senders},
            "receiver_build_info": {(__version__,): 1.0},
        }
        try:
            async with promptly():
                gauges |= await self.inbox.gauges()
                mailboxes = await self.inbox.mailboxes() if self.mailboxes else ()
        except StorageError:
            return gauges | {"receiver_database_up": {(): 0.0}}
        return gauges | {"receiver_database_up": {(): 1.0}, **self._mailbox_gauges(mailboxes)}

    def _mailbox_gauges(self, states: Sequence[MailboxState]) -> Gauges:
        names, now = [each.name for each in self.mailboxes], self._clock()
        counts: dict[tuple[str, ...], float] = {
            (name, status): 0.0 for name in names for status in ("pending", "dead")
        }
        ages: dict[tuple[str, ...], float] = {(name,): 0.0 for name in names}
        for state in states:
            counts |= {
                (state.mailbox, "pending"): state.pending,
                (state.mailbox, "dead"): state.dead,
            }
            waited = 0.0 if state.oldest is None else (now - state.oldest).total_seconds()
            ages[state.mailbox,] = max(waited, 0.0)
        return {"receiver_mailbox": counts, "receiver_mailbox_oldest_seconds": ages}

    # --- trust ---------------------------------------------------------------------------------

    async def reload_senders(self, senders: Sequence[TrustedSender]) -> None:
        """Trust these senders from now on, instead of the current ones.

        All or nothing: if one of them is invalid, nothing changes. A request in progress is
        verified against the trust in force when it arrived. Fetched keys are kept for senders whose
        `jwks_url` and `stale_for` are the same; key files are read again.

        Raises:
            ConfigError: As for `senders` of the constructor; the current ones stay in force.
        """
        _check_senders(senders, self._retention.ids)
        before = self.trust
        trust = Trust.build(self.url, senders, self._transport, self._clock, before=before)
        warn_of_weak_trust(senders)
        self.callbacks.warn_of_unknown(trust.senders)
        self.trust = trust
        trust.load()
        await before.close(but=trust)

    # --- callbacks -----------------------------------------------------------------------------

    def forward(self, to: Forward, **wanted: Unpack[Wanted]) -> None:
        """Forward every update, or those selected: `receiver.forward(HttpForward(url))`.

        Raises:
            ConfigError: `to` is no `Forward`, or a selection is wrong.
        """
        if not callable(getattr(to, "send", None)):
            found = type(to).__name__
            raise ConfigError(f"to: found {found}, expected a Forward, such as HttpForward(url)")
        wanted["name"] = wanted.get("name") or to.name
        self.callbacks.add(to.send, **wanted)
        self._forwards.append(to)

    def mailbox(self, options: MailboxOptions, **wanted: Unpack[Wanted]) -> None:
        """Keep every update, or those selected, for a client that fetches them.

        The client's side is `receiver.Mailbox`; docs/extensions/mailbox.md says more.

        Raises:
            ConfigError: There is a mailbox of this name, or a selection is wrong.
        """
        check_type("options", options, MailboxOptions)
        wanted["name"] = wanted.get("name") or f"mailbox:{options.name}"
        keep = self._mailboxes.add(options)
        try:
            self.callbacks.add(keep, **wanted)
        except BaseException:  # else clients would be answered that there is nothing, for ever
            self._mailboxes.remove(options.name)
            raise


def _check_senders(senders: Sequence[TrustedSender], ids_kept: timedelta) -> None:
    if not senders:
        raise ConfigError("senders: expected a list of at least one trusted sender")
    check_list("senders", senders, of=TrustedSender)
    check_memory(senders, ids_kept)
