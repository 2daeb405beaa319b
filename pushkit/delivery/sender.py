"""`PushSender`: the front door of the sending side."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pushkit.a2a import (
    AnyUpdate,
    NativeUpdate,
    PushConfig,
    Task,
    WireVersion,
    parse_push_config,
)
from pushkit.alerts import AlertOptions, Alerts
from pushkit.bounded_json import JsonValue
from pushkit.clock import utc_now
from pushkit.delivery.attempt import Attempt, OriginRateLimiter
from pushkit.delivery.bodies import BodyEncoder, SnapshotProvider
from pushkit.delivery.enqueue import Enqueuer, Notice
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.ownership import Ownership
from pushkit.delivery.registrar import (
    Choice,
    Registrar,
    change_subscriptions,
    checked_key,
    send_tests,
)
from pushkit.delivery.reporting import (
    NotifyCounts,
    NotifyResult,
    Reports,
    keys_near_end,
    report_changed,
    report_ring_changes,
)
from pushkit.delivery.route import Routes
from pushkit.delivery.signatures import warn_of_no_audience
from pushkit.delivery.snapshots import reader, register
from pushkit.delivery.worker import Worker
from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    InvalidPushConfigError,
    PushkitError,
    StorageError,
    UnsupportedVersionError,
)
from pushkit.events import (
    Event,
    HealthFault,
    Listener,
    Listeners,
    OutboxChange,
    OutboxChanged,
    PushConfigRefused,
    SubscriptionChange,
)
from pushkit.keys.files import KeySource, key_source
from pushkit.keys.jwk import RemoteSigner
from pushkit.keys.jwks import jwks_response
from pushkit.keys.ring import KeyRing
from pushkit.lifetime import HasLifetime
from pushkit.net.authorization import Credentials
from pushkit.net.destination import SENDER_ALLOW, DestinationPolicy, local_advice
from pushkit.net.transport import ConnectionOptions, Transport
from pushkit.options import check_each, check_type, checked, read_member
from pushkit.outbox import clients
from pushkit.outbox import store as outbox
from pushkit.outbox.clients import EVERY_DELIVERY, DeliveryProgress, Recovered, WantedDeliveries
from pushkit.outbox.model import Delivery, IdempotencyKey
from pushkit.outbox.schema import open_outbox
from pushkit.scheduling.event_loop import housekeep
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage.database import fault_of, promptly, read_now
from pushkit.storage.migrations import Access
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.filters import requested_filter
from pushkit.subscriptions.model import (
    EVERYTHING,
    DisabledBy,
    Filter,
    Profile,
    StoredSubscription,
    Subscription,
    SubscriptionKey,
)
from pushkit.subscriptions.store import open_subscription
from pushkit.url import unchecked_host
from pushkit.webhook import DocumentResponse

if TYPE_CHECKING:
    from pushkit.delivery.admin import OutboxAdmin
    from pushkit.delivery.subscription_admin import SubscriptionAdmin
    from pushkit.delivery.watches import Watches
    from pushkit.telemetry.metrics import Gauges
    from pushkit.telemetry.sides import SenderMetrics
    from pushkit.telemetry.tracing import Tracing

_log = logging.getLogger("pushkit.delivery")


class PushSender(HasLifetime):
    """Signs and delivers task updates to the webhooks that clients registered.

    `notify()` returns once the update is on disk. A worker in this process delivers it, and also
    what earlier processes left undelivered.

        async with PushSender(issuer="https://agent.example.com", keys="keys.json",
                              database="outbox.db") as sender:
            await sender.subscribe("task-1", {"id": "1", "url": "https://client.example.com/a2a"},
                                   version="1.0", owner="alice")
            await sender.notify(update)

    Args:
        issuer: `iss` of every notification: normally the agent's base URL.
        keys: A key file (see `pushkit keys new`), a `KeyRing`, any `KeySource`, or a
            `RemoteSigner` for a key that stays in a KMS.
        database: The outbox: the path of a SQLite file, or a PostgreSQL DSN
            (`postgresql://user@host/name`). Any number of processes may share it, if all have the
            same issuer and the same keys: the process that sends a delivery signs it.
        allow: Destinations that are not checked, for development, for example `["127.0.0.1:*"]`.
        options: Time-outs, limits and the retry policy.
        passphrase: The passphrase of the key file.
        clock: Returns the current time, aware, in UTC.
        on_event: Called with every event (`pushkit.events`): a dead letter, a subscription that was
            disabled, a breaker that opened, a recipient that was refused, each attempt. It runs
            on the event loop and must be quick; exceptions that it raises are logged.
        tracing: Makes spans (`pushkit.telemetry.tracing.Tracing()`); by default there are none.
        secrets: The keys that encrypt tokens and credentials in the database: `SecretKeys`, or the
            path of a file (see `pushkit secrets generate`). The default is the environment's
            `PUSHKIT_SECRET_KEYS` or `PUSHKIT_SECRET_KEYS_FILE`; without keys nothing is encrypted.
    """

    @checked
    def __init__(
        self,
        *,
        issuer: str,
        keys: KeyRing | KeySource | RemoteSigner | str | Path,
        database: str | Path,
        allow: Sequence[str] = (),
        options: SenderOptions | None = None,
        passphrase: bytes | None = None,
        clock: Callable[[], datetime] = utc_now,
        on_event: Listener | None = None,
        secrets: SecretKeys | str | Path | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__("pushkit")
        _check_issuer(issuer)
        self.options: SenderOptions = SenderOptions() if options is None else options
        if tracing is not None:
            from pushkit.telemetry.tracing import Tracing

            check_type("tracing", tracing, Tracing)
        self.events: Listeners = Listeners(_log)
        self._tracing = tracing
        if on_event is not None:
            self.events.add(on_event)
        self._clock = clock
        self._keys = key_source(
            keys,
            passphrase,
            lambda before, now: report_ring_changes(self.events, before, now, self._clock()),
        )
        self._vault = Vault(_secret_keys(secrets), seals_bodies=self.options.seal_bodies)
        self._policy = DestinationPolicy(allow, self.options.destinations)
        self._database = open_outbox(database, clock=clock)
        connections = _connections(self.options)
        self._client = Transport(self._policy, connections)  # posts deliveries
        self._transport = Transport(self._policy, connections)  # for tokens, and proof of ownership
        self._credentials = Credentials(self.options.credentials, self._transport, clock)
        self._ownership: Ownership | None = None
        if self.options.verify_ownership:
            self._ownership = Ownership(self._database, self._transport, clock)
        routes = Routes(
            issuer=issuer,
            policy=self._policy,
            vault=self._vault,
            credentials=self._credentials,
            go_token_spelling=self.options.go_token_spelling,
        )
        self._attempt = Attempt(
            options=self.options,
            routes=routes,
            keys=self._keys,
            client=self._client,
            vault=self._vault,
            ownership=self._ownership,
            rate_limiter=OriginRateLimiter(self._policy, self.options.rate_per_origin),
            clock=clock,
            events=self.events,
            tracing=tracing,
        )
        self._worker = Worker(self._database, self._attempt)
        self._bodies = BodyEncoder(self.options.max_body_bytes)
        self._enqueuer = Enqueuer(self._database, self.options, routes, self._vault)
        self._registrar = Registrar(self._database, self.options, self._vault)
        self._reports = Reports(self.events)
        self._metrics: SenderMetrics | None = None
        if self.options.alerts is not None:
            self._alerts = self._new_alerts(self.options.alerts)

    # --- lifetime ------------------------------------------------------------------------------

    async def _open_parts(self, access: Access) -> None:
        self._keys.ring()  # a bad key file is reported now, not at the first delivery
        await self._database.open(access)
        if self._worker.is_retired:
            self._worker = Worker(self._database, self._attempt)
        warn_of_no_audience(self.options.signing)
        if self._policy.allow:
            _log.warning(
                "destinations named in allow are not checked: %s", ", ".join(self._policy.allow)
            )

    def _start_parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        outbox, retention = self.outbox, self.options.retain
        return {
            "worker": self._worker.run(),
            "housekeeping": housekeep("outbox", lambda: outbox.retain(retention), log=_log),
        }

    async def _finish(self) -> None:
        await self._end_background()
        if self.is_open:
            await self._worker.finish(within=self.options.drain)

    async def _close_parts(self) -> None:
        self._worker.retire()
        await self._credentials.close()
        if self._ownership is not None:
            await self._ownership.close()
        await self._client.close()
        await self._transport.close()
        await self._database.close()

    async def _ready(self) -> None:
        # After `open()` no worker is started: that process only enqueues, or pumps by hand.
        if not self.is_open:
            if self._closed:
                raise ConfigError("the sender is closed: await start(), or use `async with`, again")
            await self.start()

    @property
    def worker(self) -> Worker:
        """The worker, for callers that run it by hand: `await sender.worker.run_once()`."""
        if not self.is_open:
            raise ConfigError("the sender is not open: use `async with` or await start()")
        return self._worker

    @property
    def outbox(self) -> OutboxAdmin:
        """The outbox of all owners, for operators: dead letters, redrive, retention."""
        from pushkit.delivery.admin import OutboxAdmin

        self._check_process()
        return OutboxAdmin(
            self._database,
            wake=self._wake,
            vault=self._vault,
            breaker=self.options.breaker,
            events=self.events,
            clock=self._clock,
        )

    @property
    def subscription_admin(self) -> SubscriptionAdmin:
        """The subscriptions of all owners, for operators: list, pause, disable, test, remove."""
        from pushkit.delivery.subscription_admin import SubscriptionAdmin

        self._check_process()
        return SubscriptionAdmin(
            self._database,
            wake=self._wake,
            vault=self._vault,
            events=self.events,
            clock=self._clock,
        )

    def _wake(self, ids: Collection[str]) -> None:
        self._worker.changed(ids)  # of the worker that is there now: each start may have its own

    def watches(self) -> Watches:
        """Return the tasks that a gateway watches, as one more gateway sees them."""
        from pushkit.delivery.watches import Watches

        return Watches(self._database, self._vault)

    @property
    def metrics(self) -> SenderMetrics:
        """Metrics for Prometheus, counted from the first access of this property on."""
        if self._metrics is None:
            from pushkit.telemetry.sides import SenderMetrics

            number = self.options.concurrency
            self._metrics = SenderMetrics(
                read=self._read,
                slots=lambda: (number - self._worker.runner.scheduler.free, number),
            )
            self.events.add(self._metrics.on_event)
            self._measure()
        return self._metrics

    async def _read(self) -> Gauges:
        from pushkit.outbox.stats import outbox_gauges
        from pushkit.telemetry.sides import key_gauges

        gauges = dict(key_gauges(self._keys.ring(), self._clock()))
        opens_at = self.options.breaker.failures
        try:
            async with promptly():
                gauges |= await read_now(self._database, outbox_gauges, breaker_opens_at=opens_at)
        except StorageError:
            return gauges | {"pushkit_database_up": {(): 0.0}}
        return gauges | {"pushkit_database_up": {(): 1.0}}

    async def unready(self) -> dict[str, str]:
        """Return what prevents delivery: `{}`, or the reason by part.

        The parts are `storage`, `worker` (it does not run, and the sender was not opened without
        one) and `keys`.
        """
        found: dict[str, str] = {}
        if fault := await fault_of(self._database, self._database.now()):
            found["storage"] = f"storage: {fault}"
        # One that was opened by `open()` has no worker: others deliver.
        running = self._background
        if any(task.done() for task in running) if running else not self.is_open:
            found["worker"] = "worker: it does not run"
        try:
            self._keys.ring().active_key(self._clock())
        except PushkitError as exc:
            found["keys"] = f"keys: {exc}"
        return found

    def _new_alerts(self, options: AlertOptions) -> Alerts:
        from pushkit.delivery.alert_webhook import OutboxAlertWebhook

        webhook = None
        if options.webhook is not None:
            try:
                self._policy.check(options.webhook)
            except DestinationRefusedError as exc:
                advice = exc.advice(SENDER_ALLOW)
                raise ConfigError(f"alerts: webhook: {exc}{advice}") from exc
            config = PushConfig(id="alerts", url=options.webhook, token=options.webhook_token)
            webhook = OutboxAlertWebhook(self.subscribe, self.notify, config, every=options.every)
        return Alerts(options, webhook, look=self._look, events=self.events)

    async def _look(self) -> list[Event]:
        """Return an event for each current fault, for alerts."""
        unready, now = await self.unready(), self._clock()
        if self._closed:
            return []  # a part that was stopped has no fault
        faults = [HealthFault(at=now, part=part, reason=why) for part, why in unready.items()]
        if "keys" in unready:
            return [*faults]
        return [*faults, *keys_near_end(self._keys.ring(), now)]

    # --- subscriptions -------------------------------------------------------------------------

    async def subscribe(
        self,
        task_id: str,
        config: PushConfig | Mapping[str, JsonValue],
        *,
        version: WireVersion | str,
        owner: str = "",
        tenant: str = "",
        profile: Profile | str = Profile.STANDARD,
        filter: Filter = EVERYTHING,  # noqa: A002  # the usual word
        snapshot: Task | SnapshotProvider | None = None,
    ) -> Subscription:
        """Register a client's push-notification config for a task.

        A second call with the same (tenant, task, owner, config id) changes the subscription and
        keeps its `seq`. It returns the subscription with `replaced` set, and logs a warning if the
        URL, version or filter differs. Two configs without an `id` are the same config.

        Args:
            task_id: The task.
            config: A `PushConfig`, or the JSON object that the client sent, of any version.
                Its `id` defaults to the task id, as in the SDKs.
            version: The A2A version that the client speaks; it determines the body.
            owner: The client that registers. Owners never see or change each other's configs.
            tenant: The tenant, where the agent has several.
            profile: How notifications are signed.
            filter: Which updates the client gets. Other updates consume no `seq`. If the config has
                the extension `urn:pushkit:push-filter:v1`, it gets what both ask for.
            snapshot: Send the task as it stands first, whatever the filter: a coroutine function
                that gets the owner and returns the task as that owner sees it, or None if there is
                none yet. It is called twice (`pushkit.delivery.snapshots` says why). Nothing is
                missed if changes are stored where it reads them before `notify()` is called. A
                `Task` is for a caller who knows that it does not change meanwhile. The result's
                `last_seq` is the snapshot's `seq`: 1, unless the config was there before.

        Raises:
            InvalidPushConfigError: The config is malformed, its URL is refused, or the task or the
                owner is reserved for alerts.
            TooManyConfigsError: This owner has `max_configs_per_task` for the task already.
            TooManySubscriptionsError: This owner has `max_subscriptions_per_owner` already.
            UnsupportedVersionError: A version that pushkit does not speak.
            ConfigError: An argument has a wrong type: SQLite would accept 7 for '7'.
            StorageError: The database refused, or the snapshot took too long to read.
        """
        check_each(str, task_id=task_id, owner=owner, tenant=tenant)
        check_type("filter", filter, Filter)
        host = ""
        try:
            wire_version = WireVersion.parse(str(version))
            if not isinstance(config, PushConfig):
                config = parse_push_config(config, wire_version)
            host = unchecked_host(config.url)
            origin = self._policy.check(config.url).origin
            signed_as = read_member("profile", profile, Profile)
            wanted = filter.narrowed(requested_filter(config))
            key = checked_key(tenant, task_id, owner, config.id or task_id)
            await self._ready()
            put = functools.partial(
                self._registrar.put,
                key,
                config,
                version=wire_version,
                origin=origin,
                profile=signed_as,
                wanted=wanted,
            )
            if snapshot is None:
                subscription, before, _ = await self._database.write_patiently(put)
            else:
                read = reader(
                    snapshot,
                    self._bodies,
                    task_id=task_id,
                    owner=owner,
                    version=wire_version,
                    clock=self._clock,
                )
                subscription, before, held = await register(
                    self._database, self._vault, lambda body: put(snapshot=body), read
                )
                if held is not None:
                    self.worker.wake()
        except (InvalidPushConfigError, UnsupportedVersionError) as exc:
            self.report_refusal(exc, owner=owner, tenant=tenant, task_id=task_id, host=host)
            if advice := local_advice(exc):  # a note is in tracebacks, not in answers to clients
                exc.add_note(advice.removeprefix("; "))
            raise
        change = SubscriptionChange.REGISTERED
        if before is not None:
            self.worker.changed([before.id])
            change = SubscriptionChange.REPLACED
            self._reports.report_replaced(before, subscription)
        report_changed(self.events, change, [subscription], self._clock())
        return subscription

    def check_url(self, url: str) -> None:
        """Check the URL of a config before there is a task, as `subscribe` does.

        Raises:
            DestinationRefusedError: The URL is malformed, or a destination that is not allowed.
        """
        self._policy.check(url)

    def report_refusal(
        self,
        error: PushkitError,
        *,
        owner: str,
        code: str | None = None,
        tenant: str = "",
        task_id: str = "",
        host: str = "",
    ) -> None:
        """Log, count and emit that a client's push config was refused, for operators.

        `subscribe` does this itself, and an error is reported once. It is for agents that refuse a
        config before, for example because `parse_inline_config` raised.

        Args:
            error: The refusal; its text is what the client is told.
            owner: The client; empty if it is not authenticated.
            code: The reason, for programs; the error's own by default. One of few.
            tenant: The tenant that the client named.
            task_id: The task.
            host: The host of the webhook.
        """
        if error.reported:
            return
        error.reported = True
        self._reports.report_refused_config(
            PushConfigRefused(
                at=self._clock(),
                code=code or error.code,
                reason=str(error),
                tenant=tenant,
                owner=owner,
                task_id=task_id,
                host=host,
            ),
            local_advice(error),
        )

    async def unsubscribe(
        self, task_id: str, config_id: str | None = None, *, owner: str = "", tenant: str = ""
    ) -> int:
        """Remove one of an owner's subscriptions to a task; by default, all of them.

        Their unfinished deliveries are cancelled in the same transaction (A2A 1.0 §3.1.10).

        Returns:
            How many subscriptions were removed.
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        return await self._change(SubscriptionChange.REMOVED, choice)

    async def pause(
        self, task_id: str, config_id: str | None = None, *, owner: str = "", tenant: str = ""
    ) -> int:
        """Stop attempting an owner's deliveries until `resume`; updates are still stored.

        Returns:
            How many subscriptions were found: the given one, or all of the owner's to the task.
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        return await self._change(SubscriptionChange.PAUSED, choice)

    async def resume(
        self, task_id: str, config_id: str | None = None, *, owner: str = "", tenant: str = ""
    ) -> int:
        """Attempt an owner's deliveries again, in order.

        Returns:
            How many subscriptions were found, as `pause`.
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        return await self._change(SubscriptionChange.RESUMED, choice)

    async def disable(
        self, task_id: str, config_id: str | None = None, *, owner: str = "", tenant: str = ""
    ) -> int:
        """Stop notifying an owner, and cancel unfinished deliveries.

        This holds until `enable`, or until the owner registers the same subscription again.

        Returns:
            How many subscriptions were found, as `pause`.
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        return await self._change(SubscriptionChange.DISABLED, choice)

    async def enable(
        self,
        task_id: str,
        config_id: str | None = None,
        *,
        owner: str = "",
        tenant: str = "",
        resend: bool = False,
        disabled_by: Collection[DisabledBy] | None = None,
    ) -> int:
        """Enable subscriptions that were disabled by `disable`, by a 410 or by constant failure.

        Args:
            task_id: The task.
            config_id: The subscription; by default all of that owner's to the task.
            owner: The client that registered it.
            tenant: The tenant of the task.
            resend: Bring back the deliveries that were cancelled with it; ids and `seq` stay.
            disabled_by: Only those that one of these disabled; by default all.

        Returns:
            How many subscriptions were found, as `pause`.
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        return await self._change(
            SubscriptionChange.ENABLED, choice, resend=resend, disabled_by=disabled_by
        )

    async def send_test(
        self,
        task_id: str,
        config_id: str | None = None,
        *,
        owner: str = "",
        tenant: str = "",
        snapshot: Task | None = None,
    ) -> list[str]:
        """Send a test notification to an owner's webhooks, regardless of their filters.

        It is queued and consumes a `seq` like any update. A 1.0 client gets a message of the agent;
        a 0.3 or 0.1 client gets the task as it is now (`snapshot`), or one in state `unknown`.

        Returns:
            The delivery ids; `deliveries()` returns the outcome of each.
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        sent = await self._database.write_patiently(
            lambda: send_tests(self._database, self._vault, choice, snapshot)
        )
        self.worker.wake()
        return list(sent.deliveries)

    async def _change(
        self,
        change: SubscriptionChange,
        choice: Choice,
        *,
        resend: bool = False,
        disabled_by: Collection[DisabledBy] | None = None,
    ) -> int:
        found = await self._database.write_patiently(
            lambda: change_subscriptions(
                self._database, change, choice, resend=resend, disabled_by=disabled_by
            )
        )
        self.worker.changed([each.id for each in found.subscriptions])
        return report_changed(self.events, change, found.subscriptions, self._clock())

    async def _choice(self, tenant: str, task_id: str, owner: str, config_id: str | None) -> Choice:
        check_each(str, tenant=tenant, task_id=task_id, owner=owner)
        if config_id is not None:
            check_each(str, config_id=config_id)
        await self._ready()
        return Choice(tenant=tenant, task_id=task_id, owner=owner, config_id=config_id)

    async def subscriptions(
        self, task_id: str, config_id: str | None = None, *, owner: str = "", tenant: str = ""
    ) -> list[Subscription]:
        """Return an owner's subscriptions to a task, oldest first; or the one with a config id.

        They are without tokens and credentials (A2A#1681).
        """
        choice = await self._choice(tenant, task_id, owner, config_id)
        return await self._database.read(subscriptions.of_owner(**choice._asdict()))

    async def progress(self, key: SubscriptionKey) -> DeliveryProgress | None:
        """Return how far the deliveries of a subscription are; None if there is none of this key.

        One that was withdrawn as its task ended counts as long as deliveries of it are kept.
        """
        await self._ready()
        return await self._database.read(clients.progress(key))

    async def recover(
        self, key: SubscriptionKey, wanted: WantedDeliveries = EVERY_DELIVERY
    ) -> Recovered | None:
        """Send notifications of a subscription again, for a client that lost them.

        It sends again what the outbox keeps, with the same ids and `seq`, ahead of what is pending:
        200 at a time, and `SenderOptions.max_recovered_per_owner` in a day. A subscription counts
        as for `progress`.

        Returns:
            Which, and where to go on; None if there is no subscription of this key.

        Raises:
            InvalidPushConfigError: It is disabled, or its owner has used up the day.
        """
        await self._ready()
        most = self.options.max_recovered_per_owner
        recovered = await self._database.write_patiently(
            lambda: clients.recover(self._database, key, wanted, most_in_a_day=most)
        )
        if recovered is not None and recovered.seqs:
            self.worker.wake()
            if self.events.wants(OutboxChanged.usual_level):
                many, change = len(recovered.seqs), OutboxChange.RESENT
                self.events.emit(OutboxChanged(at=self._clock(), change=change, count=many))
        return recovered

    async def subscribers(self, task_id: str, *, tenant: str = "") -> list[Subscription]:
        """Return all owners' active subscriptions to a task: for the agent, not for clients."""
        return [each.subscription for each in await self._active(task_id, tenant)]

    async def configs_to_send_with(self, task_id: str, *, tenant: str = "") -> list[PushConfig]:
        """Return the active configs of all owners for a task, with tokens and credentials.

        For code that posts by other means than this sender. Never return them to a client.

        Raises:
            SealedSecretError: A secret of one of them cannot be opened.
        """
        found = await self._active(task_id, tenant)
        opened = [open_subscription(self._vault, each) for each in found]
        return [replace(each.config, task_id=task_id) for each in opened]

    async def _active(self, task_id: str, tenant: str) -> list[StoredSubscription]:
        check_each(str, task_id=task_id, tenant=tenant)
        await self._ready()
        of_task = subscriptions.stored_of_task(tenant=tenant, task_id=task_id)
        return await self._database.read(of_task)

    # --- updates -------------------------------------------------------------------------------

    async def notify(
        self,
        update: AnyUpdate,
        *,
        tenant: str = "",
        snapshot: Task | SnapshotProvider | None = None,
        idempotency_key: str | IdempotencyKey | None = None,
        connection: object | None = None,
    ) -> NotifyResult:
        """Store a task update for every subscription to its task.

        Returns once the update is on disk for each recipient that can have it. One recipient's
        problem (a full backlog, a body that is too large, a missing snapshot) is reported in the
        result, the log and the events; the other recipients get the update. An exception concerns
        all of them: nothing was stored.

        A call that is cancelled may or may not have stored the update, as after
        `CommitUncertainError`: repeat it with the same `idempotency_key`.

        Args:
            update: The update. An SDK's own event is converted only for recipients that speak
                another A2A version.
            tenant: The tenant of the task.
            snapshot: The whole task, for 0.3 clients, whose notifications are tasks, and for 0.1
                clients, if the update is an artifact or a message. Without it a 0.3 client gets a
                task without history for a status, and nothing for an artifact or a message.
                A coroutine function gets an owner and returns the task as that owner sees it, or
                None. It is called if a recipient needs it, once per owner, outside of pushkit's
                transactions.
            idempotency_key: A repeated call with the same key and update changes nothing, and
                returns the same deliveries; recipients that were refused are tried again. A key
                belongs to its task, and is remembered as long as finished deliveries are. For a
                string, the update is compared; an `IdempotencyKey` carries its own digest.
            connection: Your own connection to the same database, inside a transaction: the update
                is stored or lost together with the transaction's other writes. When this returns
                and listeners are called, it is not committed yet.
                An `asyncpg` or `sqlite3` connection; of SQLAlchemy's, `await
                connection.get_raw_connection()`, or `connection.connection` without asyncio. The
                transaction locks the task's subscriptions, in id order, until it ends: keep it
                short, and notify several tasks in one transaction in one order everywhere. On
                PostgreSQL it is READ COMMITTED. On SQLite, open the sender first, then begin with
                `BEGIN IMMEDIATE`: the file has one writer, and opening writes.

        Returns:
            The deliveries that were stored, and the recipients that were refused, with reasons.

        Raises:
            InvalidUpdateError: The update has no task id, or the snapshot is of another task.
            IdempotencyConflictError: The key was used with another update.
            ConfigError: The connection is of an unknown kind, to another outbox, not in a
                transaction, or in one that is too strict; or an argument has a wrong type.
            CommitUncertainError: The connection broke in the commit: it may be stored or not.
            StorageError: The database refused.
        """
        check_type("tenant", tenant, str)
        bodies = self._bodies.prepare(update, snapshot, now=self._clock(), tenant=tenant)
        if idempotency_key is not None and not isinstance(idempotency_key, IdempotencyKey):
            check_type("idempotency_key", idempotency_key, str)
            neutral = update.neutral if isinstance(update, NativeUpdate) else update
            idempotency_key = IdempotencyKey.of(idempotency_key, neutral)
        if not self.is_open:
            await self._ready()
        notice = Notice(
            bodies=bodies,
            idempotency_key=idempotency_key,
            # Deliveries stored by a caller's connection cannot be attempted before it commits.
            worker=None if connection is not None else self._worker,
        )
        if self._tracing is None:
            result = await self._enqueuer.store(notice, connection)
        else:
            with self._tracing.notifying(bodies.task[1]) as span:
                notice = replace(notice, traceparent=span.traceparent)
                result = await self._enqueuer.store(notice, connection)
        self._reports.report(update, tenant, result)
        return result

    @property
    def counts(self) -> NotifyCounts:
        """Counts of what `notify()` did in this process, for metrics."""
        return self._reports.counts

    async def deliveries(self, task_id: str, *, tenant: str = "") -> list[Delivery]:
        """Return every delivery of a task with its body, by subscription and `seq`.

        Raises:
            SealedSecretError: A body is sealed with a key that this sender does not have.
        """
        check_each(str, task_id=task_id, tenant=tenant)
        await self._ready()
        found = await self._database.read(outbox.of_task(tenant=tenant, task_id=task_id))
        return [replace(each, body=self._vault.open_body(each.id, each.body)) for each in found]

    def jwks(self, if_none_match: str | None = None) -> DocumentResponse:
        """Return the answer to `GET /.well-known/jwks.json`: the public keys, cacheable."""
        return jwks_response(self._keys.ring(), self._clock(), if_none_match)


def _check_issuer(issuer: str) -> None:
    if not issuer or issuer != issuer.strip() or not issuer.isprintable():
        raise ConfigError(
            f"issuer: found {issuer!r}, expected the agent's base URL, or another name without"
            " control characters, and without blanks around it"
        )


def _secret_keys(secrets: SecretKeys | str | Path | None) -> SecretKeys | None:
    """Return the given keys, those of a file, or by default the environment's, if it has some."""
    if secrets is None:
        return SecretKeys.from_environment()
    return secrets if isinstance(secrets, SecretKeys) else SecretKeys.from_file(secrets)


def _connections(options: SenderOptions) -> ConnectionOptions:
    return ConnectionOptions(
        max_connections=options.concurrency,
        max_connections_per_host=options.concurrency_per_host,
        proxy=options.proxy,
        ca_file=None if options.ca_file is None else Path(options.ca_file),
    )
