"""Whether somebody sends what the configs ask for: a config store alone sends nothing."""

from __future__ import annotations

import logging
import time
from typing import Final
from weakref import WeakKeyDictionary

from pushkit.clock import utc_now
from pushkit.delivery.sender import PushSender
from pushkit.events.sender import PushConfigUnsent
from pushkit.logs import RepeatedLog

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


class Wiring:
    """What is wired to a `PushSender` in this process.

    Attributes:
        has_sender: Whether a notification sender was made for it.
        unsent: How many configs were registered while nothing would send for them.
    """

    def __init__(self) -> None:
        self.has_sender = False
        self.unsent = 0
        self._waits_since: float | None = None  # when the first config came
        self._repeated = RepeatedLog(_log)

    async def check(self, sender: PushSender, *, owner: str, task_id: str) -> None:
        """Log, count and emit that a config, which is about to be registered, sends nothing."""
        is_first, now = self._waits_since is None, time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        fault = self.fault(sender)
        # Only now: `subscribe` starts the sender, if nobody else did.
        if fault is None and is_first and "worker" in await sender.unready():
            fault = "not_started"
        if fault is None:
            return
        self.unsent += 1
        self._repeated.log(
            fault, logging.ERROR, "a push config was registered, but %s", _ADVICE[fault]
        )
        event = PushConfigUnsent(at=utc_now(), code=fault, owner=owner, task_id=task_id)
        if sender.events.wants(PushConfigUnsent.usual_level):
            sender.events.emit(event)

    def fault(self, sender: PushSender) -> str | None:
        """Return the code of what keeps updates from being sent; None if nothing is known to."""
        if sender.counts.updates:
            return None
        if not self.has_sender and self._waits_since is not None:
            return "no_sender"
        waits = 0.0 if self._waits_since is None else time.monotonic() - self._waits_since
        return "unused" if waits > _PATIENCE else None


def wiring_of(sender: PushSender) -> Wiring:
    """Return what is wired to a sender."""
    return _WIRINGS.setdefault(sender, Wiring())


_WIRINGS: Final[WeakKeyDictionary[PushSender, Wiring]] = WeakKeyDictionary()
