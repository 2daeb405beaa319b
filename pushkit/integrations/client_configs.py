"""The push configs of an adapter's clients: registered and read with errors that clients may read.

A config store alone sends nothing: whether somebody sends what its configs ask for is reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

from pushkit.a2a import PushConfig, WireVersion
from pushkit.bounded_json import JsonValue
from pushkit.clock import utc_now
from pushkit.delivery.bodies import SnapshotProvider
from pushkit.delivery.registrar import checked_key
from pushkit.delivery.sender import PushSender
from pushkit.errors import InvalidPushConfigError, PushkitError, UnsupportedVersionError
from pushkit.events import PushConfigUnsent
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.filters import FilterChoice, filter_chooser
from pushkit.subscriptions.model import Subscription

_log: Final = logging.getLogger("pushkit.integrations")

_PATIENCE: Final = 60.0  # seconds from a config to the task's first update

_ADVICE: Final = {
    "no_sender": "no PushkitNotificationSender was made: pass one to the request handler, as"
    " push_sender",
    "not_started": "the sender was not started with the application: what earlier processes left"
    " undelivered waits until now; use its lifespan, or `async with`, or fasta2a's push_broker",
    "unused": "no update was ever sent: pass the PushkitNotificationSender to the request handler,"
    " as push_sender, or the agent fasta2a's push_broker",
}


class ClientConfigs:
    """The push configs of an adapter's clients, over a `PushSender`.

    Args:
        sender: Stores the configs, and reports refusals to its operator.
        error_of: Returns the error for a client's own one, or, for None, one without a reason.
        filter: Which updates clients get, as for the adapter.
        min_interval: At most one post of a stream's chunks in this time; None to post each.
    """

    def __init__(
        self,
        sender: PushSender,
        error_of: Callable[[PushkitError | None], Exception],
        filter: FilterChoice,  # noqa: A002  # as `PushSender.subscribe`
        min_interval: timedelta | None = None,
    ) -> None:
        self.sender = sender
        self._error_of = error_of
        self._filter_of = filter_chooser(filter, min_interval)
        self._faults = RepeatedLog(_log)

    @contextmanager
    def errors(self, owner: str) -> Iterator[None]:
        """Replace errors, within, by those that are sent to a client; others are logged."""
        try:
            yield
        except (InvalidPushConfigError, UnsupportedVersionError) as exc:
            self.sender.report_refusal(exc, owner=owner)
            raise self._error_of(exc) from exc
        except PushkitError as exc:
            message = "a push config could not be served"
            self._faults.log(exc.code, logging.ERROR, message, exc_info=exc)
            raise self._error_of(None) from exc

    async def register(
        self,
        task_id: str,
        config: PushConfig | Mapping[str, JsonValue],
        *,
        version: WireVersion,
        owner: str,
        tenant: str = "",
        snapshot: SnapshotProvider | None = None,
    ) -> Subscription:
        """Register a config, as `PushSender.subscribe`, with the owner's filter."""
        with self.errors(owner):
            wiring = _WIRINGS.get(self.sender)
            if wiring is not None:
                await wiring.check(self.sender, owner=owner, task_id=task_id)
            return await self.sender.subscribe(
                task_id,
                config,
                version=version,
                owner=owner,
                tenant=tenant,
                filter=self._filter_of(owner),
                snapshot=snapshot,
            )

    async def of_task(
        self, task_id: str, config_id: str | None = None, *, owner: str, tenant: str = ""
    ) -> list[Subscription]:
        """Return an owner's configs of a task, or the one with an id."""
        with self.errors(owner):
            if config_id is not None:
                checked_key(tenant, task_id, owner, config_id)
            return await self.sender.subscriptions(task_id, config_id, owner=owner, tenant=tenant)

    async def remove(
        self, task_id: str, config_id: str | None, *, owner: str, tenant: str = ""
    ) -> None:
        """Remove one of an owner's configs, or all; unfinished deliveries are cancelled."""
        with self.errors(owner):
            if config_id is not None:
                checked_key(tenant, task_id, owner, config_id)
            await self.sender.unsubscribe(task_id, config_id, owner=owner, tenant=tenant)


class Wiring:
    """What is wired to a `PushSender` in this process, by an adapter that knows how it is told.

    Attributes:
        has_sender: Whether a notification sender was made for it.
    """

    def __init__(self) -> None:
        self.has_sender = False
        self._waits_since: float | None = None  # when the first config came
        self._repeated = RepeatedLog(_log)

    async def check(self, sender: PushSender, *, owner: str, task_id: str) -> None:
        """Log and emit that a config, which is about to be registered, sends nothing."""
        is_first = self._waits_since is None
        if is_first:
            self._waits_since = time.monotonic()
        fault = self.fault(sender)
        # Only now: `subscribe` starts the sender, if nobody else did.
        if fault is None and is_first and "worker" in await sender.unready():
            fault = "not_started"
        if fault is None:
            return
        self._repeated.log(
            fault, logging.ERROR, "a push config was registered, but %s", _ADVICE[fault]
        )
        event = PushConfigUnsent(at=utc_now(), code=fault, owner=owner, task_id=task_id)
        sender.events.emit(event)

    def fault(self, sender: PushSender) -> str | None:
        """Return the code of what keeps updates from being sent; None if nothing is known to."""
        if sender.counts.updates or self._waits_since is None:
            return None
        if not self.has_sender:
            return "no_sender"
        return "unused" if time.monotonic() - self._waits_since > _PATIENCE else None


def wiring_of(sender: PushSender) -> Wiring:
    """Return what is wired to a sender."""
    return _WIRINGS.setdefault(sender, Wiring())


_WIRINGS: Final[WeakKeyDictionary[PushSender, Wiring]] = WeakKeyDictionary()
