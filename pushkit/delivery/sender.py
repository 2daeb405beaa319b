"""`PushSender`: the front door of the sending side."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from pushkit.a2a import (
    PushConfig,
    Task,
    TaskUpdate,
    WireVersion,
    parse_push_config,
    push_body,
)
from pushkit.bounded_json import JsonValue
from pushkit.delivery.attempt import Attempt
from pushkit.delivery.worker import Worker
from pushkit.errors import (
    ConfigError,
    InvalidPushConfigError,
    InvalidUpdateError,
    PayloadTooLargeError,
)
from pushkit.keys.jwks import JwksResponse, jwks_response
from pushkit.keys.ring import KeyRing
from pushkit.keys.source import KeySource, key_source
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.outbox import MIGRATION as OUTBOX_MIGRATION
from pushkit.outbox import Delivery, OutboxStore
from pushkit.storage import Script, open_location
from pushkit.subscriptions import MIGRATION as SUBSCRIPTIONS_MIGRATION
from pushkit.subscriptions import Profile, Subscription, SubscriptionKey, SubscriptionStore
from pushkit.work import RetryPolicy

__all__ = ["PushSender", "SenderOptions"]

_log = logging.getLogger("pushkit.delivery")

_MAX_ID_CHARS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    """What one rarely changes.

    Attributes:
        retry: When to try again, and when to give up.
        timeout: The deadline of one attempt in total; A2A recommends 10 s to 30 s.
        concurrency: How many attempts at once.
        concurrency_per_host: How many connections to one host and port.
        max_body_bytes: The largest body that `notify()` accepts; receivers refuse more.
        go_token_spelling: Send the token as `A2A-Notification-Token` too.
        drain: How long `close()` waits for attempts that are running.
    """

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: timedelta = timedelta(seconds=15)
    concurrency: int = 64
    concurrency_per_host: int = 16
    max_body_bytes: int = 1024 * 1024
    go_token_spelling: bool = False
    drain: timedelta = timedelta(seconds=20)


def utc_now() -> datetime:
    """Return now, aware, in UTC."""
    return datetime.now(UTC)


class PushSender:
    """Signs and delivers task updates to the webhooks that clients registered.

    `notify()` returns once the update is on disk; a worker in this process does the rest, and goes
    on with what an earlier process left behind.

        async with PushSender(issuer="https://agent.example.com", keys="keys.json",
                              database="outbox.db") as sender:
            await sender.subscribe("task-1", {"url": "https://client.example.com/a2a"},
                                   version="1.0", owner="alice")
            await sender.notify(update)

    Args:
        issuer: `iss` of every notification: normally the agent's base URL.
        keys: A key file (see `pushkit keys new`), a `KeyRing`, or any `KeySource`.
        database: The outbox: the path of a SQLite file, or a PostgreSQL DSN
            (`postgresql://user@host/name`), on which any number of agents and workers may work.
        allow: Destinations that are named for development, for example `["127.0.0.1:*"]`.
        options: Time-outs, limits and the retry policy.
        passphrase: Of the key file.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self,
        *,
        issuer: str,
        keys: KeyRing | KeySource | str | Path,
        database: str | Path,
        allow: Sequence[str] = (),
        options: SenderOptions | None = None,
        passphrase: bytes | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        if not issuer:
            raise ConfigError("issuer: expected the agent's base URL, found nothing")
        self.options = options or SenderOptions()
        self._clock = clock
        self._keys = key_source(keys, passphrase)
        self._policy = DestinationPolicy(allow)
        self._database = open_location(
            database,
            component="sender",
            migrations=(SUBSCRIPTIONS_MIGRATION, OUTBOX_MIGRATION),
            clock=clock,
        )
        self._transport = Transport(
            self._policy,
            connections=self.options.concurrency,
            connections_per_host=self.options.concurrency_per_host,
        )
        self._attempt = Attempt(
            issuer=issuer,
            keys=self._keys,
            transport=self._transport,
            retry=self.options.retry,
            timeout=self.options.timeout,
            go_token_spelling=self.options.go_token_spelling,
            clock=clock,
        )
        self._outbox = OutboxStore()
        self._subscriptions = SubscriptionStore()
        self._opening = asyncio.Lock()
        self._closed = False
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None

    # --- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the outbox and start the worker. Does nothing if it runs already."""
        await self.open()
        if self._running is None:
            self._running = asyncio.create_task(self.worker.run(), name="pushkit-worker")

    async def open(self) -> None:
        """Open the outbox without a worker, for a process that only enqueues."""
        async with self._opening:
            if self._worker is not None:
                return
            if self._closed:
                raise ConfigError("the sender is closed: make a new one")
            self._keys.ring()  # a bad key file is reported now, not at the first delivery
            await self._database.open()
            self._worker = Worker(
                self._database,
                self._attempt,
                clock=self._clock,
                concurrency=self.options.concurrency,
                concurrency_per_origin=self.options.concurrency_per_host,
            )
        if self._policy.allow:
            _log.warning(
                "destinations named in allow are not checked: %s", ", ".join(self._policy.allow)
            )

    async def close(self) -> None:
        """Stop claiming, give running attempts their time, and close the outbox.

        What is not delivered stays in the outbox for the next start. A closed sender stays closed.
        """
        self._closed = True
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                await asyncio.wait_for(worker.pump.drain(), self.options.drain.total_seconds())
            except TimeoutError:
                await worker.pump.abandon()
            worker.retire()
        await self._transport.close()
        await self._database.close()

    async def _ready(self) -> None:
        # Not a worker beside `open()`: that process only enqueues, or pumps by hand.
        if self._worker is None:
            await self.start()

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

    @property
    def worker(self) -> Worker:
        """The worker, for callers that pump by hand: `await sender.worker.run_once()`."""
        if self._worker is None:
            raise ConfigError("the sender is not open: use `async with` or await start()")
        return self._worker

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
    ) -> Subscription:
        """Register a client's push-notification config for a task.

        The same (tenant, task, owner, config id) again changes the subscription, keeping its `seq`.

        Args:
            task_id: The task.
            config: A `PushConfig`, or the JSON object that the client sent, of either version.
                Its `id` defaults to the task id, as in the SDKs.
            version: The A2A version that the client speaks: it decides the body.
            owner: Who registered it: owners never see or change each other's.
            tenant: The tenant, where the agent has several.
            profile: How it is signed.

        Raises:
            InvalidPushConfigError: The config is malformed, or its URL is refused.
            UnsupportedVersionError: A version that pushkit does not speak.
        """
        wire_version = WireVersion.parse(str(version))
        parsed = (
            config if isinstance(config, PushConfig) else parse_push_config(config, wire_version)
        )
        destination = self._policy.check(parsed.url)
        key = SubscriptionKey(
            tenant=tenant,
            task_id=_checked_id("task_id", task_id),
            owner=owner,
            config_id=_checked_id("id", parsed.id or task_id),
        )
        await self._ready()
        return await self._database.write(
            self._put(
                key,
                parsed,
                version=wire_version,
                origin=destination.origin,
                profile=_parse_profile(profile),
            )
        )

    async def unsubscribe(
        self, task_id: str, config_id: str | None = None, *, owner: str = "", tenant: str = ""
    ) -> int:
        """Remove an owner's subscription, or all of that owner's to the task.

        What is still unfinished is cancelled in the same transaction (A2A 1.0 §3.1.10).

        Returns:
            How many subscriptions were removed.
        """
        await self._ready()
        return await self._database.write(
            self._remove(tenant=tenant, task_id=task_id, owner=owner, config_id=config_id)
        )

    async def subscriptions(
        self, task_id: str, *, owner: str = "", tenant: str = ""
    ) -> list[Subscription]:
        """Return one owner's subscriptions to a task."""
        await self._ready()
        return await self._database.read(
            self._subscriptions.of_owner(tenant=tenant, task_id=task_id, owner=owner)
        )

    async def subscribers(self, task_id: str, *, tenant: str = "") -> list[Subscription]:
        """Return every owner's active subscriptions to a task: for the agent, not for clients."""
        await self._ready()
        return await self._database.read(
            self._subscriptions.active_of_task(tenant=tenant, task_id=task_id)
        )

    # --- updates -------------------------------------------------------------------------------

    async def notify(
        self,
        update: TaskUpdate,
        *,
        tenant: str = "",
        snapshot: Task | None = None,
        idempotency_key: str | None = None,
    ) -> list[str]:
        """Accept a task update for every subscription to its task.

        Returns once all of it is on disk, or raises and has stored nothing. An update of a task
        without subscriptions is nothing to do.

        Args:
            update: What happened.
            tenant: The tenant of the task.
            snapshot: The whole task, needed where a 0.3 client subscribed: its body is a task.
            idempotency_key: The same key and update again changes nothing.

        Returns:
            The delivery ids, one per subscription.

        Raises:
            InvalidUpdateError: The update has no task id, or cannot be written in a version.
            SnapshotRequiredError: A 0.3 subscription, and neither update nor snapshot is a task.
            PayloadTooLargeError: A body over `max_body_bytes`.
            IdempotencyConflictError: The key was used with another update.
            StorageError: The database refused.
        """
        if not update.task_id:
            raise InvalidUpdateError(
                f"a {update.kind.value} update without a task id: nobody can have subscribed to it"
            )
        await self._ready()
        ids = await self._database.write(self._enqueue(update, tenant, snapshot, idempotency_key))
        if ids and self._worker is not None:  # closed in the meantime, yet stored all the same
            self._worker.pump.wake()
        return ids

    async def deliveries(self, task_id: str, *, tenant: str = "") -> list[Delivery]:
        """Return every delivery of a task, by subscription and `seq`."""
        await self._ready()
        return await self._database.read(self._outbox.of_task(tenant=tenant, task_id=task_id))

    def jwks(self, if_none_match: str | None = None) -> JwksResponse:
        """Return the answer to `GET /.well-known/jwks.json`: the public keys, cacheable."""
        return jwks_response(self._keys.ring(), self._clock(), if_none_match)

    # --- scripts -------------------------------------------------------------------------------

    def _put(
        self,
        key: SubscriptionKey,
        config: PushConfig,
        *,
        version: WireVersion,
        origin: str,
        profile: Profile,
    ) -> Script[Subscription]:
        subscription = yield from self._subscriptions.put(
            key,
            config,
            version=version,
            origin=origin,
            profile=profile,
            now=(yield from self._database.now()),
        )
        yield from self._outbox.move(subscription.id, origin)
        return subscription

    def _enqueue(
        self,
        update: TaskUpdate,
        tenant: str,
        snapshot: Task | None,
        idempotency_key: str | None,
    ) -> Script[list[str]]:
        task_id = update.task_id or ""
        subscriptions = yield from self._subscriptions.lock_active_of_task(
            tenant=tenant, task_id=task_id
        )
        now = yield from self._database.now()
        bodies: dict[WireVersion, bytes] = {}
        ids = []
        for subscription in subscriptions:
            version = subscription.version
            if version not in bodies:
                bodies[version] = self._body(update, version, snapshot)
            delivery_id = yield from self._enqueue_one(
                subscription, bodies[version], idempotency_key, now
            )
            ids.append(delivery_id)
        yield from self._database.wake()
        return ids

    def _enqueue_one(
        self,
        subscription: Subscription,
        body: bytes,
        idempotency_key: str | None,
        now: datetime,
    ) -> Script[str]:
        if idempotency_key is not None:
            found = yield from self._outbox.find_enqueued(subscription.id, idempotency_key, body)
            if found is not None:
                return found
        seq = yield from self._subscriptions.take_seq(subscription.id)
        return (
            yield from self._outbox.enqueue(
                subscription_id=subscription.id,
                tenant=subscription.key.tenant,
                owner=subscription.key.owner,
                task_id=subscription.key.task_id,
                config_id=subscription.key.config_id,
                origin=subscription.origin,
                seq=seq,
                content_type=subscription.version.content_type,
                body=body,
                idempotency_key=idempotency_key,
                now=now,
            )
        )

    def _body(self, update: TaskUpdate, version: WireVersion, snapshot: Task | None) -> bytes:
        body = push_body(update, version, snapshot)
        if len(body) > self.options.max_body_bytes:
            raise PayloadTooLargeError(
                f"the {version.value} body would be {len(body)} bytes,"
                f" expected at most {self.options.max_body_bytes}: send large artifacts by URL"
            )
        return body

    def _remove(
        self, *, tenant: str, task_id: str, owner: str, config_id: str | None
    ) -> Script[int]:
        subscriptions = yield from self._subscriptions.of_owner(
            tenant=tenant, task_id=task_id, owner=owner
        )
        removed = 0
        for subscription in subscriptions:
            if config_id is None or subscription.key.config_id == config_id:
                yield from self._subscriptions.remove(subscription.key)
                now = yield from self._database.now()
                yield from self._outbox.cancel_subscription(subscription.id, now)
                removed += 1
        return removed


def _checked_id(name: str, value: str) -> str:
    if not value or len(value) > _MAX_ID_CHARS or not value.isprintable():
        raise InvalidPushConfigError(
            f"{name}: expected 1 to {_MAX_ID_CHARS} printable characters, found {len(value)}"
        )
    return value


def _parse_profile(profile: Profile | str) -> Profile:
    try:
        return Profile(profile)
    except ValueError as exc:
        known = ", ".join(entry.value for entry in Profile)
        raise ConfigError(f"profile: found {profile!r}, expected one of {known}") from exc
